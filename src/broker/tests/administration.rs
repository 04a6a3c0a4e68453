//! Connected clients, offsets set from outside, relayed requests, settings: what tools ask a broker for.

use super::pulls::heartbeat;
use super::*;
use crate::broker::clients;
use serde_json::{Value, json};

const MEMBER: ConnectionId = connection(1);

fn body(response: &Response) -> Value {
    let Body::Bytes(bytes) = &response.body else {
        panic!("{response:?}");
    };
    serde_json::from_str(&crate::protocol::fastjson::to_strict(
        std::str::from_utf8(bytes).unwrap(),
    ))
    .unwrap()
}

fn refused(response: &Response) -> (i32, String) {
    let remark = response.remark.clone().unwrap_or_default();
    (response.code.0, remark.into_owned())
}

/// A desk with five messages in queue 0 of T, a minute apart, and a live group.
fn desk() -> Desk {
    let mut desk = Desk::new();
    for n in 0..5 {
        desk.send("T", 0, "A", format!("m{n}").as_bytes());
        desk.pass_ms(60_000);
    }
    heartbeat(&mut desk, MEMBER, "G", &[("T", "A || B", 7)]);
    desk
}

fn commit(desk: &mut Desk, group: &str, offset: &str) {
    let fields = [
        ("consumerGroup", group),
        ("topic", "T"),
        ("queueId", "0"),
        ("commitOffset", offset),
    ];
    assert_eq!(desk.call(15, &fields, &[]).code.0, 0);
}

fn committed(desk: &mut Desk, group: &str) -> Option<i64> {
    let fields = [
        ("consumerGroup", group),
        ("topic", "T"),
        ("queueId", "0"),
        ("setZeroIfNotFound", "false"),
    ];
    match desk.call(14, &fields, &[]).header {
        ResponseHeader::Offset(offset) => Some(offset),
        _ => None,
    }
}

#[test]
fn members_and_their_subscriptions_are_shown() {
    let mut desk = desk();
    let shown = body(&desk.call(203, &[("consumerGroup", "G")], &[]));
    let connections = shown["connectionSet"].as_array().unwrap();
    assert_eq!(connections.len(), 1);
    assert_eq!(connections[0]["clientAddr"], "10.0.0.9:40000");
    assert_eq!(connections[0]["language"], "JAVA");
    assert!(connections[0]["version"].as_i64() > Some(0));
    assert_eq!(shown["messageModel"], "CLUSTERING");
    let subscription = &shown["subscriptionTable"]["T"];
    assert_eq!(subscription["subString"], "A || B");
    assert_eq!(subscription["tagsSet"], json!(["A", "B"]));
    assert_eq!(subscription["codeSet"], json!([65, 66]));
    let nobody = refused(&desk.call(203, &[("consumerGroup", "Nobody")], &[]));
    assert_eq!(
        nobody,
        (206, "the consumer group[Nobody] not online".to_owned())
    );

    let one = body(&desk.call(345, &[("group", "G"), ("topic", "T")], &[]));
    assert_eq!(
        (&one["group"], &one["subscriptionData"]["subVersion"]),
        (&json!("G"), &json!(7))
    );
    let none = body(&desk.call(345, &[("group", "G"), ("topic", "U")], &[]));
    assert_eq!(none["subscriptionData"], Value::Null);

    commit(&mut desk, "TOOLS_CONSUMER", "1");
    let groups = body(&desk.call(300, &[("topic", "T")], &[]));
    assert_eq!(
        groups,
        json!({"groupList": ["G", "TOOLS_CONSUMER"]}),
        "live ones and committed ones"
    );
    let topics = body(&desk.call(343, &[("group", "TOOLS_CONSUMER")], &[]));
    assert_eq!(topics["topicList"], json!(["T"]));
    let system = body(&desk.call(305, &[], &[]));
    let names = system["topicList"].as_array().unwrap();
    assert!(
        names.contains(&json!("TBW102")) && !names.contains(&json!("T")),
        "{names:?}"
    );
}

#[test]
fn producers_are_shown_by_group() {
    let mut desk = Desk::new();
    let beat =
        json!({"clientID": "p", "consumerDataSet": [], "producerDataSet": [{"groupName": "PG"}]});
    desk.call(34, &[], beat.to_string().as_bytes());
    let shown = body(&desk.call(204, &[("producerGroup", "PG")], &[]));
    assert_eq!(shown["connectionSet"][0]["clientId"], "p");
    assert_eq!(
        refused(&desk.call(204, &[("producerGroup", "X")], &[])).0,
        1
    );
    desk.pass_ms(5000);
    let all = body(&desk.call(328, &[], &[]));
    let row = &all["data"]["PG"][0];
    assert_eq!(
        (&row["clientId"], &row["remoteIP"]),
        (&json!("p"), &json!("10.0.0.9:40000"))
    );
    let heard = row["lastUpdateTimestamp"].as_u64().unwrap();
    assert_eq!(heard, desk.io.now().wall_ms - 5000);
}

/// 222 for queue 0 and all others of T.
fn reset(desk: &mut Desk, changed: &[(&str, &str)]) -> Response {
    let mut fields = vec![
        ("group", "G"),
        ("topic", "T"),
        ("timestamp", "-1"),
        ("isForce", "true"),
    ];
    for (name, value) in changed {
        fields.retain(|(known, _)| known != name);
        fields.push((name, value));
    }
    desk.call(222, &fields, &[])
}

fn new_offset(response: &Response) -> i64 {
    let table = body(response);
    let table = table["offsetTable"].as_object().unwrap();
    let key = table
        .keys()
        .find(|key| key.contains("\"queueId\":0"))
        .unwrap();
    table[key].as_i64().unwrap()
}

/// Java's tools read queues as keys; consumers hear of it by a pull that is answered 21.
#[test]
fn an_offset_that_was_set_reaches_the_consumer_at_its_next_pull() {
    let mut desk = desk();
    commit(&mut desk, "G", "5");
    let third_ms = {
        let response = desk.pull(&Pulling {
            offset: 2,
            ..Pulling::default()
        });
        let Body::Stored { segments, .. } = &response.body else {
            panic!("{response:?}");
        };
        crate::protocol::message::store_timestamp_of(&segments[0]).unwrap()
    };
    let response = reset(&mut desk, &[("timestamp", &third_ms.to_string())]);
    assert_eq!(new_offset(&response), 2);
    assert_eq!(committed(&mut desk, "G"), Some(2));
    commit(&mut desk, "G", "5");
    assert_eq!(
        committed(&mut desk, "G"),
        Some(2),
        "the consumer has not heard of it"
    );
    let pull = Pulling {
        offset: 5,
        ..Pulling::default()
    };
    let answer = desk.pull(&pull);
    assert_eq!(
        (answer.code.0, answer.remark.as_deref()),
        (21, Some("OFFSET_RESET"))
    );
    let ResponseHeader::Pull(header) = answer.header else {
        panic!("{:?}", answer.header);
    };
    assert_eq!(header.next_begin_offset, 2);
    assert_eq!(desk.pull(&Pulling { offset: 2, ..pull }).code.0, 0, "once");
    commit(&mut desk, "G", "4");
    assert_eq!(committed(&mut desk, "G"), Some(4));

    assert_eq!(new_offset(&reset(&mut desk, &[])), 5, "the end");
    assert_eq!(
        new_offset(&reset(&mut desk, &[("timestamp", "0")])),
        0,
        "the start"
    );
    let one = reset(&mut desk, &[("queueId", "0"), ("offset", "3")]);
    assert_eq!(new_offset(&one), 3);
    assert_eq!(body(&one)["offsetTable"].as_object().unwrap().len(), 1);
    let later = reset(&mut desk, &[("isForce", "false"), ("queueId", "0")]);
    assert_eq!(body(&later)["offsetTable"], json!({}), "not forward");
}

#[test]
fn a_held_pull_hears_of_a_set_offset_at_once() {
    let mut desk = desk();
    let pull = Pulling {
        offset: 5,
        sys_flag: SUBSCRIPTION | SUSPEND,
        ..Pulling::default()
    };
    let opaque = desk.start_pull(&pull);
    desk.turn();
    assert!(desk.take(opaque).is_none(), "held");
    reset(&mut desk, &[("timestamp", "0")]);
    let answer = desk.take(opaque).expect("an answer");
    assert_eq!(
        (answer.code.0, answer.remark.as_deref()),
        (21, Some("OFFSET_RESET"))
    );
}

#[test]
fn offsets_that_can_not_be_set_are_refused() {
    let mut desk = desk();
    for (changed, code) in [
        (("topic", "Nothing"), 17),
        (("group", "Nobody"), 26),
        (("queueId", "99"), 29),
    ] {
        assert_eq!(
            refused(&reset(&mut desk, &[changed])).0,
            code,
            "{changed:?}"
        );
    }
    let outside = reset(&mut desk, &[("queueId", "0"), ("offset", "6")]);
    assert_eq!(refused(&outside).0, 1);
    assert_eq!(committed(&mut desk, "G"), None);
}

#[test]
fn a_group_takes_the_offsets_of_another() {
    let mut desk = desk();
    commit(&mut desk, "G", "3");
    heartbeat(&mut desk, connection(2), "H", &[("T", "*", 1)]);
    let fields = [
        ("srcGroup", "G"),
        ("destGroup", "H"),
        ("topic", "T"),
        ("offline", "false"),
    ];
    assert_eq!(desk.call(314, &fields, &[]).code.0, 0);
    assert_eq!(committed(&mut desk, "H"), Some(3));
    let fields = [
        ("srcGroup", "G"),
        ("destGroup", "Nobody"),
        ("offline", "false"),
    ];
    assert_eq!(refused(&desk.call(314, &fields, &[])).0, 26);
}

#[test]
fn a_group_is_shown_in_time() {
    let mut desk = desk();
    commit(&mut desk, "G", "3");
    let shown = body(&desk.call(303, &[("topic", "T"), ("group", "G")], &[]));
    let spans = shown["consumeTimeSpanSet"].as_array().unwrap();
    let span = spans
        .iter()
        .find(|span| span["messageQueue"]["queueId"] == 0)
        .unwrap();
    let field = |name: &str| span[name].as_i64().unwrap();
    assert_eq!(field("maxTimeStamp") - field("minTimeStamp"), 4 * 60_000);
    assert_eq!(
        field("consumeTimeStamp") - field("minTimeStamp"),
        2 * 60_000
    );
    assert_eq!(
        field("delayTime"),
        2 * 60_000,
        "the fourth message waits for so long"
    );
    assert_eq!(
        refused(&desk.call(303, &[("topic", "X"), ("group", "G")], &[])).0,
        17
    );
}

#[test]
fn all_groups_are_shown_at_once() {
    let mut desk = desk();
    commit(&mut desk, "G", "3");
    commit(&mut desk, "TOOLS_CONSUMER", "0");
    let shown = body(&desk.call(317, &[("isOrder", "false")], &[]));
    let list = shown["consumeStatsList"].as_array().unwrap();
    let groups: Vec<_> = list
        .iter()
        .flat_map(|one| one.as_object().unwrap().keys())
        .collect();
    assert_eq!(groups, ["G", "TOOLS_CONSUMER"]);
    let table = list[0]["G"][0]["offsetTable"].as_object().unwrap();
    assert_eq!(
        table
            .values()
            .map(|row| row["consumerOffset"].as_i64().unwrap())
            .sum::<i64>(),
        3
    );
    assert_eq!(
        (&shown["totalDiff"], &shown["brokerAddr"]),
        (&json!(7), &json!("10.0.0.1:10911"))
    );
    let ordered = body(&desk.call(317, &[("isOrder", "true")], &[]));
    assert_eq!(ordered["consumeStatsList"], json!([]));
}

#[test]
fn entries_of_a_queue_are_shown() {
    let mut desk = desk();
    let fields = [
        ("topic", "T"),
        ("queueId", "0"),
        ("index", "3"),
        ("count", "10"),
        ("consumerGroup", "G"),
    ];
    let shown = body(&desk.call(321, &fields, &[]));
    assert_eq!(
        (&shown["minQueueIndex"], &shown["maxQueueIndex"]),
        (&json!(0), &json!(5))
    );
    let data = shown["queueData"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    assert_eq!(
        (&data[0]["tagsCode"], &data[0]["eval"]),
        (&json!(65), &json!(true))
    );
    assert!(data[0]["physicOffset"].as_u64() < data[1]["physicOffset"].as_u64());
    assert_eq!(shown["subscriptionData"]["subString"], "A || B");
    let fields = [
        ("topic", "T"),
        ("queueId", "77"),
        ("index", "0"),
        ("count", "1"),
    ];
    assert_eq!(refused(&desk.call(321, &fields, &[])).0, 1);
}

fn client_id(desk: &Desk) -> String {
    let (_, member): (_, &clients::Member) = desk.broker.clients.members("G").next().unwrap();
    member.client_id.to_string()
}

#[test]
fn requests_to_a_consumer_are_relayed_with_their_answers() {
    let mut desk = desk();
    let id = client_id(&desk);
    let sent = desk.send("T", 0, "A", b"direct");
    let MessageIds::One(message_id) = sent.message_id else {
        panic!("one id");
    };
    let asker = connection(5);
    for code in [307, 309] {
        let fields = [
            ("consumerGroup", "G"),
            ("clientId", &*id),
            ("msgId", &*message_id),
        ];
        let opaque = desk.start(asker, code, &fields, &[]);
        desk.turn();
        let call = desk.calls.pop().expect("a call");
        assert_eq!((call.connection, call.call.code.0), (MEMBER, code));
        if code == 309 {
            assert!(call.call.body.windows(6).any(|bytes| bytes == b"direct"));
            assert!(call.call.fields.contains(&("brokerName", "b".to_owned())));
        }
        let mut frame = BytesMut::new();
        let response = Response::with_body(&b"{as it is}"[..]);
        response.encode_head(call.opaque, Encoding::Json, &mut frame);
        frame.extend_from_slice(b"{as it is}");
        desk.run_frame(peer(MEMBER), frame.to_vec(), Fetched::default(), 0);
        desk.turn();
        let answer = desk.take(opaque).expect("an answer");
        assert!(matches!(&answer.body, Body::Bytes(bytes) if &bytes[..] == b"{as it is}"));

        let opaque = desk.start(asker, code, &fields, &[]);
        desk.turn();
        desk.pass_ms(10_000);
        assert_eq!(
            desk.take(opaque).map(|answer| answer.code.0),
            Some(207),
            "silent"
        );
        desk.calls.clear();
        let fields = [
            ("consumerGroup", "G"),
            ("clientId", "else"),
            ("msgId", &*message_id),
        ];
        let (code, remark) = refused(&desk.call(code, &fields, &[]));
        assert_eq!((code, &*remark), (1, "The Consumer <G> <else> not online"));
    }
    let fields = [
        ("consumerGroup", "G"),
        ("clientId", &*id),
        ("msgId", "0A00000100002A9F00000000000FFFFF"),
    ];
    assert_eq!(
        refused(&desk.call(309, &fields, &[])).0,
        1,
        "no such message"
    );
}

/// CVE-2023-33246 (apache/rocketmq): only keys of a closed list, and all of a request or none of it.
#[test]
fn only_harmless_settings_can_be_changed() {
    let mut desk = Desk::new();
    let mut update = |text: &str| refused(&desk.call(25, &[], text.as_bytes()));
    assert_eq!(
        update("longPollingEnable=false\nshortPollingTimeMills=500\n"),
        (0, String::new())
    );
    for (text, code) in [
        ("rocketmqHome=-c $@|sh . echo id;", 16),
        ("storePathRootDir=/", 16),
        ("brokerConfigPath=/etc/passwd", 16),
        ("namesrvAddr=127.0.0.1:1", 16),
        ("filterServerNums=1", 16),
        ("longPollingEnable=true\nlistenPort=1", 16),
        ("longPollingEnable=yes", 29),
        ("shortPollingTimeMills=0", 29),
    ] {
        let (found, remark) = update(text);
        assert_eq!(found, code, "{text}: {remark}");
    }
    assert!(!desk.broker.config.long_polling, "all or nothing");
    assert_eq!(desk.broker.config.short_polling_ms, 500);
    let shown = desk.call(26, &[], &[]);
    let Body::Bytes(text) = &shown.body else {
        panic!("{shown:?}");
    };
    assert_eq!(&text[..], b"longPollingEnable=false\n");
    let ResponseHeader::Fields(fields) = &shown.header else {
        panic!("{shown:?}");
    };
    assert!(fields[0].1.contains("\"counter\":1"), "{fields:?}");
}
