use super::*;
use crate::broker::ConfigFiles;
use crate::broker::tests::config_files::{apache_file, assert_kept, json};
use crate::broker::tests::pulls::{cold_desk, fill};
use crate::broker::tests::{Desk, broker_config, store_config};
use crate::ids::QueueOffset;
use crate::protocol::bodies::TopicConfig;
use proptest::prelude::*;

fn load(bytes: &[u8]) -> ConsumerOffsets {
    ConsumerOffsets::load(Some(bytes), 5000).unwrap()
}

/// A desk with topic T of two queues and group G.
fn desk() -> Desk {
    let mut desk = Desk::new();
    desk.with(|broker, cx| {
        broker.topics.put(TopicConfig::new("T", 2, 6), cx).unwrap();
        let config = broker.config.clone();
        broker.groups.find_or_create(&config, "G", cx).unwrap();
    });
    desk
}

fn commit(desk: &mut Desk, fields: &[(&str, &str)]) -> i32 {
    let mut all = vec![
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("commitOffset", "7"),
    ];
    for (name, value) in fields {
        all.retain(|(known, _)| known != name);
        if *value != "absent" {
            all.push((name, value));
        }
    }
    desk.call(15, &all, &[]).code.0
}

/// The offset that 14 answers, or its code.
fn query(
    desk: &mut Desk,
    group: &str,
    topic: &str,
    queue_id: &str,
    zero: Option<&str>,
) -> Result<i64, i32> {
    let mut fields = vec![
        ("consumerGroup", group),
        ("topic", topic),
        ("queueId", queue_id),
    ];
    fields.extend(zero.map(|value| ("setZeroIfNotFound", value)));
    let response = desk.call(14, &fields, &[]);
    match response.header {
        ResponseHeader::Offset(offset) if response.code == ResponseCode::SUCCESS => Ok(offset),
        _ => Err(response.code.0),
    }
}

#[test]
fn files_of_apache_lose_nothing() {
    for store in ["clean", "crashed"] {
        let bytes = apache_file(store, "consumerOffset.json");
        let offsets = load(&bytes);
        assert_eq!(offsets.get("CG_go29918", "T_go29918", 1), Some(4));
        assert_eq!(offsets.get("CG_go29918", "%RETRY%CG_go29918", 0), Some(1));
        assert_eq!(offsets.next_deadline(), None, "nothing to write");
        let saved = offsets.encode_file();
        assert_kept(&json(&bytes), &json(&saved), store);
        assert_eq!(load(&saved).encode_file(), saved, "{store}: saved twice");
    }
}

#[test]
fn what_is_not_known_is_kept() {
    let bytes = r#"{"dataVersion":{"counter":7,"stateVersion":1,"timestamp":5},"futureTable":{"a":1},
        "offsetTable":{"T@G":{0:4,"1":5,2:-1,70000:9},"NoGroup":{0:3},"%RETRY%G+T@G":{0:1}}}"#;
    let offsets = load(bytes.as_bytes());
    assert_eq!(
        (offsets.get("G", "T", 0), offsets.get("G", "T", 1)),
        (Some(4), Some(5))
    );
    assert_eq!(
        (offsets.get("G", "T", 2), offsets.get("G", "T", 70_000)),
        (None, None)
    );
    assert_kept(&json(bytes.as_bytes()), &json(&offsets.encode_file()), "");
}

#[test]
fn a_file_that_can_not_be_used_is_named() {
    for bytes in [
        "",
        "[]",
        r#"{"offsetTable":{"T@G":{"x":1}}}"#,
        r#"{"offsetTable":{"T@G":{0:""#,
    ] {
        let error = ConsumerOffsets::load(Some(bytes.as_bytes()), 1).unwrap_err();
        assert!(error.contains(FILE), "{bytes}: {error}");
    }
}

#[test]
fn commits_are_checked() {
    let mut desk = desk();
    for (fields, code) in [
        (&[("commitOffset", "9")][..], 0),
        (&[("commitOffset", "3")], 0),
        (&[("queueId", "1023")], 0),
        (&[("consumerGroup", "Nobody")], 26),
        (&[("topic", "Nothing")], 17),
        (&[("consumerGroup", "Nobody"), ("topic", "Nothing")], 26),
        (&[("queueId", "absent")], 29),
        (&[("commitOffset", "absent")], 29),
        (&[("queueId", "")], 29),
        (&[("commitOffset", "x")], 29),
        (&[("queueId", "-1")], 29),
        (&[("queueId", "1024")], 29),
        (&[("commitOffset", "-1")], 29),
        (&[("consumerGroup", "absent")], 1),
    ] {
        assert_eq!(commit(&mut desk, fields), code, "{fields:?}");
    }
    assert_eq!(
        desk.broker.offsets.get("G", "T", 0),
        Some(3),
        "stored even if smaller"
    );
    assert_eq!(desk.broker.offsets.topics_of("G"), ["T"]);
}

#[test]
fn a_shard_has_a_bounded_number_of_offsets() {
    let mut desk = desk();
    assert_eq!(commit(&mut desk, &[]), 0);
    desk.broker.offsets.size = OFFSETS_MAX;
    assert_eq!(commit(&mut desk, &[("queueId", "1")]), 1);
    assert_eq!(
        commit(&mut desk, &[("commitOffset", "8")]),
        0,
        "a queue that is there"
    );
    desk.with(|broker, cx| broker.offsets.remove_group("Nobody", cx.now.monotonic_us));
    assert_eq!(
        desk.broker.offsets.size,
        OFFSET_ROW_COST + 1,
        "counted again"
    );
    assert_eq!(commit(&mut desk, &[("queueId", "1")]), 0);
}

/// The rule of `semantics.md` section 8. Sources: apache/rocketmq#4909, #9083, apache/rocketmq-client-go#855, #958.
#[test]
fn young_queues_start_at_zero() {
    let bounds = |min, max| QueueBounds {
        min: QueueOffset(min),
        max: QueueOffset(max),
    };
    for (asked, bounds, in_memory, expected) in [
        (true, bounds(0, 5), true, true),
        (true, bounds(0, 5), false, false),
        (true, bounds(1, 5), true, false),
        (true, bounds(5, 5), true, false),
        (true, bounds(0, 0), false, true),
        (false, bounds(0, 5), true, false),
        (false, bounds(0, 0), false, false),
    ] {
        let zero = starts_at_zero(asked, bounds, || in_memory);
        assert_eq!(zero, expected, "{asked} {bounds:?} {in_memory}");
    }
}

#[test]
fn a_group_without_an_offset_is_no_error() {
    let mut desk = desk();
    desk.send("T", 0, "", b"x");
    for zero in [None, Some("true"), Some("TRUE")] {
        assert_eq!(
            query(&mut desk, "Nobody", "T", "0", zero),
            Ok(0),
            "{zero:?}"
        );
    }
    assert_eq!(query(&mut desk, "Nobody", "T", "0", Some("false")), Err(22));
    assert_eq!(
        query(&mut desk, "G", "T", "1", None),
        Ok(0),
        "an empty queue"
    );
    assert_eq!(
        query(&mut desk, "G", "T", "2", None),
        Err(22),
        "no such queue"
    );
    assert_eq!(query(&mut desk, "G", "T", "-1", None), Err(22));
    assert_eq!(query(&mut desk, "G", "Nothing", "0", None), Err(22));
    assert_eq!(commit(&mut desk, &[]), 0);
    assert_eq!(query(&mut desk, "G", "T", "0", Some("false")), Ok(7));
    desk.broker.config.young_queues_start_at_zero = false;
    assert_eq!(
        query(&mut desk, "Nobody", "T", "0", Some("true")),
        Err(22),
        "truly last"
    );
}

/// Source: apache/rocketmq#4909, #334: a group that wants the newest messages only doesn't start at those on disk.
#[test]
fn queues_whose_first_message_left_memory_are_not_young() {
    let mut desk = cold_desk();
    desk.send("T", 0, "", b"x");
    let early = query(&mut desk, "G", "T", "0", None);
    fill(&mut desk, 1, "A");
    assert_eq!(
        (early, query(&mut desk, "G", "T", "0", None)),
        (Err(22), Err(22))
    );
    assert_eq!(
        query(&mut desk, "G", "T", "1", None),
        Ok(0),
        "an empty queue"
    );
}

#[test]
fn the_file_is_written_once_an_interval_and_never_while_idle() {
    let mut desk = desk();
    desk.perform();
    desk.files.clear();
    assert_eq!(desk.broker.offsets.next_deadline(), None);
    assert_eq!(commit(&mut desk, &[]), 0);
    let due = desk.broker.offsets.next_deadline().unwrap();
    desk.pass_ms(3000);
    assert_eq!(commit(&mut desk, &[("commitOffset", "8")]), 0);
    assert_eq!(
        desk.broker.offsets.next_deadline(),
        Some(due),
        "of the first change"
    );
    assert!(desk.files.is_empty());
    desk.pass_ms(2001);
    assert_eq!(json(&desk.files[FILE])["offsetTable"]["T@G"]["0"], 8);
    assert_eq!(json(&desk.files[FILE])["dataVersion"]["counter"], 1);
    desk.files.clear();
    assert_eq!(desk.broker.offsets.next_deadline(), None);
    desk.pass_ms(60_000);
    assert!(desk.files.is_empty());
    assert_eq!(commit(&mut desk, &[]), 0);
    desk.begin_stop();
    assert!(desk.files.contains_key(FILE), "a stop writes what there is");
}

#[test]
fn what_is_deleted_does_not_come_back() {
    let mut offsets =
        load(br#"{"offsetTable":{"T@G":{0:4},"T@H":{0:4},"U@G":{0:4},"T@X":{70000:1}}}"#);
    offsets.remove_topic("T", 9);
    assert_eq!(offsets.next_deadline(), Some(9), "written at once");
    assert_eq!(
        (offsets.get("G", "T", 0), offsets.get("H", "T", 0)),
        (None, None)
    );
    assert_eq!(offsets.get("G", "U", 0), Some(4));
    assert!(offsets.topics_of("H").is_empty());
    offsets.remove_group("G", 9);
    assert_eq!(
        json(&offsets.encode_file())["offsetTable"],
        serde_json::json!({})
    );
    assert_eq!(offsets.size, 0);
}

/// Source: apache/rocketmq#1135, #617: an offset beyond the end skips what is still to come.
#[test]
fn offsets_beyond_a_recovered_end_are_set_to_it() {
    let mut offsets = load(br#"{"offsetTable":{"T@G":{0:4,1:9,3:0},"Gone@G":{0:1}}}"#);
    assert_eq!(offsets.clamp(|_, _| u64::MAX), 0);
    assert_eq!(offsets.next_deadline(), None);
    let clamped = offsets.clamp(|topic, queue_id| match (topic, queue_id) {
        ("T", 0) => 4,
        ("T", 1) => 8,
        _ => 0,
    });
    assert_eq!(clamped, 2);
    assert_eq!(offsets.next_deadline(), Some(0), "written at once");
    let all: Vec<_> = (0..4).map(|id| offsets.get("G", "T", id)).collect();
    assert_eq!(all, [Some(4), Some(8), None, Some(0)]);
    assert_eq!(offsets.get("G", "Gone", 0), Some(0));
}

#[test]
fn a_desk_loads_what_another_has_saved() {
    let mut desk = desk();
    assert_eq!(commit(&mut desk, &[]), 0);
    desk.begin_stop();
    let files = ConfigFiles {
        topics: Some(&desk.files["config/topics.json"]),
        groups: Some(&desk.files["config/subscriptionGroup.json"]),
        offsets: Some(&desk.files[FILE]),
        ..ConfigFiles::default()
    };
    let again = Desk::open_with(broker_config(), store_config(), files);
    assert_eq!(again.broker.offsets.get("G", "T", 0), Some(7));
    assert!(again.broker.groups.contains("G") && again.broker.topics.get("T").is_some());
}

proptest! {
    /// Whatever a file holds, it holds the same after a start.
    #[test]
    fn files_survive_being_loaded_and_saved(
        rows in prop::collection::btree_map("(\\PC{0,9}@)?[A-Za-z0-9_%|@-]{0,9}",
            prop::collection::btree_map(0..3000_u32, -2..i64::MAX, 1..5), 0..12),
        counter in 0..i64::MAX,
    ) {
        let file = serde_json::json!({"offsetTable": rows, "dataVersion": {"counter": counter}, "xFuture": counter});
        let bytes = serde_json::to_vec(&file).unwrap();
        let saved = load(&bytes).encode_file();
        assert_kept(&json(&bytes), &json(&saved), "");
        prop_assert_eq!(load(&saved).encode_file(), saved);
    }

    /// Commits, removals and reads are those of a map, and the count of what they take is exact.
    #[test]
    fn histories_are_those_of_a_map(
        steps in prop::collection::vec((0..4_u8, 0..3_usize, 0..3_usize, 0..5_u32, 0..100_u64), 0..60),
    ) {
        const NAMES: [&str; 3] = ["A", "B", "C"];
        let mut offsets = ConsumerOffsets::default();
        let mut model: BTreeMap<(usize, usize, u32), u64> = BTreeMap::new();
        for (step, group, topic, queue_id, offset) in steps {
            match step {
                0 => {
                    offsets.remove_topic(NAMES[topic], 1);
                    model.retain(|(_, of, _), _| *of != topic);
                }
                1 if offset < 20 => {
                    offsets.remove_group(NAMES[group], 1);
                    model.retain(|(of, _, _), _| *of != group);
                }
                _ => {
                    prop_assert!(offsets.commit(NAMES[group], NAMES[topic], queue_id, offset, 0));
                    model.insert((group, topic, queue_id), offset);
                }
            }
            let rows = offsets.groups.values().flat_map(NameMap::values);
            let size: usize = rows.map(|row| OFFSET_ROW_COST + row.len()).sum();
            prop_assert_eq!(offsets.size, size);
        }
        let again = load(&offsets.encode_file());
        for (group, group_name) in NAMES.into_iter().enumerate() {
            for (topic, topic_name) in NAMES.into_iter().enumerate() {
                for queue_id in 0..6 {
                    let expected = model.get(&(group, topic, queue_id)).copied();
                    prop_assert_eq!(offsets.get(group_name, topic_name, queue_id), expected);
                    prop_assert_eq!(again.get(group_name, topic_name, queue_id), expected);
                }
            }
        }
    }
}
