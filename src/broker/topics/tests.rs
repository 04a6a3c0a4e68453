use super::*;
use crate::broker::ConfigFiles;
use crate::broker::tests::config_files::{apache_file, assert_kept, json, malicious_names};
use crate::broker::tests::{Desk, broker_config, store_config};
use crate::protocol::bodies::{Registration, RegistrationForm};
use proptest::prelude::*;

fn load(bytes: &[u8]) -> Topics {
    Topics::load(&broker_config(), Some(bytes)).unwrap()
}

fn encode(topics: &Topics) -> Vec<u8> {
    file::encode(&topics.version, topics.table.values(), &topics.kept)
}

fn desk_with(topics: &[u8]) -> Desk {
    let files = ConfigFiles {
        topics: Some(topics),
        ..ConfigFiles::default()
    };
    Desk::open_with(broker_config(), store_config(), files)
}

#[test]
fn files_of_apache_lose_nothing() {
    for store in ["clean", "crashed"] {
        let bytes = apache_file(store, "topics.json");
        let topics = load(&bytes);
        assert_eq!(topics.get("T_go29918").unwrap().config.read_queue_nums, 4);
        let saved = encode(&topics);
        let (mut before, after) = (json(&bytes), json(&saved));
        // The template follows our configuration, which says 4.
        before["topicConfigTable"]
            .as_object_mut()
            .unwrap()
            .remove("TBW102");
        assert_kept(&before, &after, store);
        assert_eq!(encode(&load(&saved)), saved, "{store}: saved twice");
    }
}

#[test]
fn what_is_not_known_is_kept() {
    let bytes = r#"{"dataVersion":{"counter":7,"stateVersion":1,"timestamp":5},"futureTable":{"a":[1,{}]},
        "topicConfigTable":{
            "T":{"attributes":{"message.type":"FIFO"},"order":true,"perm":6,"readQueueNums":3,"writeQueueNums":2,
                "topicFilterType":"MULTI_TAG","topicName":"T","topicSysFlag":1,"futureFlag":{"b":[true,null]}},
            "%RETRY%G+T":{"perm":6,"readQueueNums":1,"writeQueueNums":1,"topicName":"%RETRY%G+T","futureFlag":1}}}"#;
    let topics = load(bytes.as_bytes());
    assert_eq!(topics.version().counter, 7);
    assert!(topics.get("%RETRY%G+T").is_none(), "kept, not served");
    assert_kept(&json(bytes.as_bytes()), &json(&encode(&topics)), "");

    // A change by a tool keeps them as well.
    let mut desk = desk_with(bytes.as_bytes());
    let changed = desk.with(|broker, cx| broker.topics.put(TopicConfig::new("T", 4, 6), cx));
    assert_eq!(changed, Ok(true));
    let saved = json(&desk.files[file::FILE]);
    assert_eq!(saved["topicConfigTable"]["T"]["futureFlag"]["b"][0], true);
    assert_eq!(saved["topicConfigTable"]["T"]["readQueueNums"], 4);
    assert_eq!(saved["futureTable"]["a"][0], 1);
}

#[test]
fn values_that_are_missing_are_those_of_java() {
    let topics =
        load(br#"{"topicConfigTable":{"T":{},"U":{"attributes":null,"topicName":"other"}}}"#);
    let config = &topics.get("T").unwrap().config;
    assert_eq!((config.read_queue_nums, config.perm), (16, 6));
    assert_eq!(
        topics.get("U").unwrap().config.topic_name,
        "U",
        "the key names the topic"
    );
    for empty in ["{}", r#"{"topicConfigTable":null,"dataVersion":null}"#] {
        assert!(load(empty.as_bytes()).get("BenchmarkTest").is_some());
    }
}

#[test]
fn a_file_that_can_not_be_used_is_named() {
    for (bytes, expected) in [
        ("", "config/topics.json"),
        ("[]", "config/topics.json"),
        (
            r#"{"topicConfigTable":{"T":{"perm":"x"}}}"#,
            "config/topics.json",
        ),
        (
            r#"{"topicConfigTable":{"T":{"readQueueNums":1025}}}"#,
            "topic T has 1025 queues, a shard serves at most 1024",
        ),
    ] {
        let error = Topics::load(&broker_config(), Some(bytes.as_bytes())).unwrap_err();
        assert!(error.contains(expected), "{bytes}: {error}");
    }
}

#[test]
fn system_topics_are_there() {
    let topics = Topics::load(&broker_config(), None).unwrap();
    let row = |name: &str| {
        let config = &topics.get(name).unwrap().config;
        (config.read_queue_nums, config.write_queue_nums, config.perm)
    };
    for (name, queues, perm) in [
        ("TBW102", 4, 7),
        ("C", 16, 7),
        ("b", 1, 7),
        ("C_REPLY_TOPIC", 1, 6),
        ("SELF_TEST_TOPIC", 1, 6),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("BenchmarkTest", 1024, 6),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6),
    ] {
        assert_eq!(row(name), (queues, queues, perm), "{name}");
        assert!(topics.is_system(name), "{name}");
    }
    assert!(topics.get("RMQ_SYS_TRACE_TOPIC").is_none());
    assert!(!topics.is_system("T") && topics.is_system("rmq_sys_X"));

    let config = BrokerConfig {
        auto_create_topics: false,
        trace_topic_enable: true,
        ..broker_config()
    };
    let stored = br#"{"topicConfigTable":{"TBW102":{"perm":7},"C":{"perm":6,"readQueueNums":3}}}"#;
    let topics = Topics::load(&config, Some(stored)).unwrap();
    assert!(topics.get("TBW102").is_none(), "switched off");
    assert!(topics.get("RMQ_SYS_TRACE_TOPIC").is_some());
    assert_eq!(
        topics.get("C").unwrap().config.read_queue_nums,
        3,
        "as it was"
    );
}

/// Source: reliability rules for names; CVE-2019-17572.
#[test]
fn names_that_are_not_allowed_come_in_nowhere() {
    let mut desk = Desk::new();
    let count = desk.broker.topics.len();
    for name in malicious_names() {
        let config = TopicConfig::new(&name, 1, 6);
        let put = desk.with(|broker, cx| broker.topics.put(config.clone(), cx));
        assert_eq!(
            put.unwrap_err().0,
            ResponseCode::INVALID_PARAMETER,
            "{name:?}"
        );
        desk.with(|broker, cx| broker.topics.adopt(config, cx));
        desk.with(|broker, cx| broker.topics.ensure_group_topic(&name, 1, cx));
        let sent = desk.with(|broker, cx| {
            let config = broker.config.clone();
            let topic = broker.topics.for_send(&config, &name, "TBW102", 4, cx);
            topic.map(|topic| topic.config.clone())
        });
        assert!(sent.is_err(), "{name:?}");
        let restored = desk
            .broker
            .topics
            .restore(&broker_config(), [(&*name, 0)].into_iter());
        assert_eq!(restored, 0, "{name:?}");

        let escaped = serde_json::to_string(&name).unwrap();
        let bytes = format!(r#"{{"topicConfigTable":{{{escaped}:{{"perm":6}}}}}}"#);
        let topics = load(bytes.as_bytes());
        assert!(topics.get(&name).is_none(), "{name:?}");
        assert_kept(&json(bytes.as_bytes()), &json(&encode(&topics)), &name);
    }
    assert_eq!(desk.broker.topics.len(), count);
}

#[test]
fn topics_are_created_by_the_rules_of_their_template() {
    let stored = br#"{"topicConfigTable":{
        "Narrow":{"perm":5,"readQueueNums":9,"writeQueueNums":2,"topicFilterType":"MULTI_TAG"},
        "Plain":{"perm":6,"readQueueNums":9,"writeQueueNums":9}}}"#;
    let mut desk = desk_with(stored);
    let mut made = |name: &str, template: &str, queues: i32| {
        desk.with(|broker, cx| {
            let config = broker.config.clone();
            let topic = broker.topics.for_send(&config, name, template, queues, cx);
            topic.map(|topic| {
                let config = &topic.config;
                (config.read_queue_nums, config.write_queue_nums, config.perm)
            })
        })
        .map_err(|(code, _)| code)
    };
    assert_eq!(made("A", "TBW102", 3), Ok((3, 3, 6)));
    assert_eq!(
        made("B", "TBW102", 99),
        Ok((4, 4, 6)),
        "at most as many as the template"
    );
    assert_eq!(made("C1", "TBW102", -1), Ok((1, 1, 6)), "at least one");
    assert_eq!(
        made("D", "Narrow", 8),
        Ok((2, 2, 4)),
        "permissions but inherit"
    );
    assert_eq!(made("E", "Plain", 8), Err(ResponseCode::TOPIC_NOT_EXIST));
    assert_eq!(made("F", "Nowhere", 8), Err(ResponseCode::TOPIC_NOT_EXIST));
    assert_eq!(made("%RETRY%G", "Nowhere", 8), Ok((1, 1, 6)));
    assert_eq!(made("A", "Nowhere", 8), Ok((3, 3, 6)), "it is there");
    assert_eq!(
        desk.broker
            .topics
            .get("D")
            .unwrap()
            .config
            .topic_filter_type,
        "MULTI_TAG"
    );

    desk.broker.config.auto_create_topics = false;
    let refused = desk.with(|broker, cx| {
        let config = broker.config.clone();
        broker
            .topics
            .for_send(&config, "G", "TBW102", 4, cx)
            .map(|_| ())
    });
    let (code, remark) = refused.unwrap_err();
    assert_eq!(code, ResponseCode::TOPIC_NOT_EXIST);
    assert!(remark.contains("autoCreateTopicEnable"), "{remark}");
}

#[test]
fn a_turn_writes_and_registers_once() {
    let mut desk = Desk::new();
    desk.perform();
    assert_eq!(desk.registrations, 1, "a new life makes itself known");
    let first = desk.broker.topics.version();
    assert_eq!(
        (first.counter, desk.files.contains_key(file::FILE)),
        (1, true)
    );
    desk.files.clear();
    desk.perform();
    assert!(desk.files.is_empty(), "nothing changed");
    desk.with(|broker, cx| {
        for name in ["A", "B", "A"] {
            broker.topics.put(TopicConfig::new(name, 1, 6), cx).unwrap();
        }
        assert!(cx.effects.files.is_empty(), "not before the turn ends");
    });
    assert_eq!(desk.registrations, 2);
    assert_eq!(
        desk.broker.topics.version().counter,
        first.counter + 2,
        "two changes"
    );
    let saved = json(&desk.files[file::FILE]);
    assert_eq!(saved["topicConfigTable"]["B"]["perm"], 6);
    assert_eq!(saved["dataVersion"]["counter"], first.counter + 2);
    assert!(desk.with(|broker, cx| broker.topics.remove("A", cx)));
    assert!(!desk.with(|broker, cx| broker.topics.remove("A", cx)));
    assert_eq!(desk.registrations, 3);
}

#[test]
fn queues_open_lazily_within_their_bounds() {
    let mut desk = Desk::new();
    desk.with(|broker, cx| {
        let mut topic = TopicConfig::new("T", 2, 6);
        topic.read_queue_nums = 3;
        broker.topics.put(topic, cx).unwrap();
        assert!(broker.topics.open_queues("T").is_empty());
        let queue = broker.topics.queue("T", 2, cx.store).unwrap();
        assert_eq!(broker.topics.queue("T", 2, cx.store), Some(queue));
        assert_eq!(broker.topics.open_queues("T"), [queue]);
        assert_eq!(broker.topics.queue("T", 3, cx.store), None);
        assert_eq!(broker.topics.queue("T", u32::MAX, cx.store), None);
        assert_eq!(broker.topics.queue("U", 0, cx.store), None);
        broker.topics.queues_opened = QUEUES_OPEN_MAX;
        assert_eq!(
            broker.topics.queue("T", 2, cx.store),
            Some(queue),
            "it is open"
        );
        assert_eq!(broker.topics.queue("T", 1, cx.store), None, "the limit");
    });
}

#[test]
fn a_shard_has_a_bounded_number_of_topics() {
    let mut desk = Desk::new();
    desk.with(|broker, cx| {
        for index in 0..broker.topics.room() {
            let topic = TopicConfig::new(&format!("T{index}"), 1, 6);
            broker.topics.insert(topic, Map::new());
        }
        let config = TopicConfig::new("OneMore", 1, 6);
        let (code, remark) = broker.topics.put(config, cx).unwrap_err();
        assert_eq!(code, ResponseCode::SYSTEM_ERROR);
        assert!(remark.contains("50000 topics"), "{remark}");
        let known = TopicConfig::new("T1", 2, 6);
        assert_eq!(
            broker.topics.put(known, cx),
            Ok(true),
            "a topic that is there may change"
        );
    });
}

#[test]
fn name_servers_are_told_what_the_broker_permits() {
    for (permission, expected, template) in [(6, 6, 7), (4, 4, 4), (2, 2, 2), (0, 0, 0)] {
        let config = BrokerConfig {
            permission,
            ..broker_config()
        };
        let stored = br#"{"topicConfigTable":{"T":{"perm":6}}}"#;
        let topics = Topics::load(&config, Some(stored)).unwrap();
        let body = topics.registration_body();
        let body = Registration::decode(&body, RegistrationForm::Json).unwrap();
        let table = body.topic_config_serialize_wrapper.topic_config_table;
        assert_eq!(
            (table["T"].perm, table["TBW102"].perm),
            (expected, template)
        );
        assert_eq!(topics.get("T").unwrap().config.perm, 6, "stored as it was");
    }
}

/// A send is acknowledged before the file says that its topic was created; a crash in between must not hide it.
#[test]
fn topics_that_a_crash_left_out_are_made_again() {
    let mut topics =
        load(br#"{"topicConfigTable":{"Known":{"readQueueNums":2,"writeQueueNums":2}}}"#);
    let queues = [
        ("Known", 7),
        ("Lost", 0),
        ("Lost", 5),
        ("%RETRY%G", 0),
        ("Young", 1),
    ];
    assert_eq!(topics.restore(&broker_config(), queues.into_iter()), 3);
    for (name, queues) in [("Known", 2), ("Lost", 6), ("%RETRY%G", 1), ("Young", 4)] {
        let config = &topics.get(name).unwrap().config;
        assert_eq!(
            (config.write_queue_nums, config.perm),
            (queues, 6),
            "{name}"
        );
    }
    assert_eq!(topics.restore(&broker_config(), queues.into_iter()), 0);
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof!["[A-Za-z0-9_%|-]{1,20}", "\\PC{0,12}"]
}

proptest! {
    /// Whatever a file holds, a start and a change later it holds the same.
    #[test]
    fn files_survive_being_loaded_and_saved(
        topics in prop::collection::btree_map(names(), (0..=1024_u32, 0..=1024_u32, 0..16_u32, any::<i32>()), 0..12),
        extra in prop::collection::btree_map("[a-z]{1,4}Future", any::<i64>(), 0..4),
        counter in 0..i64::MAX,
    ) {
        let table: serde_json::Map<String, Value> = topics
            .iter()
            .filter(|(name, _)| *name != "TBW102")
            .map(|(name, (read, write, perm, flag))| {
                let mut topic = serde_json::json!({
                    "perm": perm, "readQueueNums": read, "writeQueueNums": write, "topicSysFlag": flag,
                    "topicName": name, "attributes": {"a": name},
                });
                for (key, value) in &extra {
                    topic[key] = (*value).into();
                }
                (name.clone(), topic)
            })
            .collect();
        let mut file = serde_json::json!({"topicConfigTable": table, "dataVersion": {"counter": counter}});
        for (key, value) in &extra {
            file[key] = (*value).into();
        }
        let bytes = serde_json::to_vec(&file).unwrap();
        let topics = load(&bytes);
        let saved = encode(&topics);
        assert_kept(&json(&bytes), &json(&saved), "");
        prop_assert_eq!(encode(&load(&saved)), saved);
    }
}
