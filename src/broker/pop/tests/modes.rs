//! 400 and 401: what consumers that let the broker allocate are told. Method: heartbeats, a route as the control thread
//! gives it, and for each consumer the queues that it is told.

use super::*;
use crate::broker::pop::MODES_FILE;
use crate::broker::relay::{self, Letter};
use crate::broker::tests::body_bytes;
use crate::broker::tests::pulls::heartbeat;
use crate::limits::REQUEST_MODES_MAX;
use crate::protocol::bodies::{Dialect, QueueData, TopicRoute};
use crate::protocol::calls::{CallError, CallResult, ClientAnswer};
use bytes::Bytes;
use serde_json::Value;

fn set(desk: &mut Desk, topic: &str, group: &str, mode: &str, share: i32) -> i32 {
    let body = format!(
        r#"{{"topic":"{topic}","consumerGroup":"{group}","mode":"{mode}","popShareQueueNum":{share}}}"#
    );
    let code = Code::SET_MESSAGE_REQUEST_MODE.0;
    desk.call(code, &[], body.as_bytes()).code.0
}

fn start_query(desk: &mut Desk, client: u32, model: &str, strategy: &str) -> i32 {
    let body = format!(
        r#"{{"topic":"T","consumerGroup":"G","clientId":"c@{client}","strategyName":"{strategy}","messageModel":"{model}"}}"#
    );
    let code = Code::QUERY_ASSIGNMENT.0;
    desk.start(connection(client), code, &[], body.as_bytes())
}

/// Two brokers with three and two queues; a third one's may not be read.
fn route() -> CallResult {
    let queues = |broker_name: &str, read_queue_nums, perm| QueueData {
        broker_name: broker_name.to_owned(),
        perm,
        read_queue_nums,
        topic_sys_flag: 0,
        write_queue_nums: 9,
    };
    let route = TopicRoute {
        queues: vec![
            queues("b2", 2, 6),
            queues("b", 3, 4),
            queues("write-only", 3, 2),
        ],
        ..TopicRoute::default()
    };
    Ok(ClientAnswer {
        code: 0,
        remark: None,
        body: route.encode(Dialect::Fastjson).into(),
    })
}

fn answer_route(desk: &mut Desk, route: CallResult) {
    let Some(Letter::Route { id, topic }) = desk.letters.pop() else {
        panic!("no route was asked for");
    };
    assert_eq!(topic, "T");
    desk.with(|broker, cx| relay::on_forwarded_answer(broker, id, route, cx));
}

/// What a consumer is told: mode, and its queues in order.
fn told(desk: &mut Desk, client: u32, model: &str, strategy: &str) -> (String, Vec<String>) {
    let opaque = start_query(desk, client, model, strategy);
    desk.turn();
    assert!(desk.take(opaque).is_none(), "the route is not there yet");
    answer_route(desk, route());
    let answer = desk.take(opaque).expect("an answer");
    assert_eq!(answer.code.0, 0, "{answer:?}");
    let body: Value = serde_json::from_slice(&body_bytes(&answer)).expect("JSON");
    let all = body["messageQueueAssignments"].as_array().expect("a list");
    let mut modes: Vec<&str> = all.iter().filter_map(|a| a["mode"].as_str()).collect();
    modes.dedup();
    let queues = all.iter().map(|assignment| {
        let queue = &assignment["messageQueue"];
        assert_eq!(queue["topic"], "T");
        let broker = queue["brokerName"].as_str().expect("a name");
        format!("{broker}:{}", queue["queueId"])
    });
    (modes.join(" "), queues.collect())
}

fn consumers(count: u32) -> Desk {
    let mut desk = desk_with(1);
    for client in 1..=count {
        heartbeat(&mut desk, connection(client), "G", &[("T", "*", 1)]);
    }
    desk
}

#[test]
fn pulling_consumers_share_the_queues_of_all_brokers() {
    let mut desk = consumers(2);
    for (client, model, strategy, expected) in [
        (1, "CLUSTERING", "AVG", vec!["b:0", "b:1", "b:2"]),
        (2, "CLUSTERING", "AVG", vec!["b2:0", "b2:1"]),
        (1, "CLUSTERING", "AVG_BY_CIRCLE", vec!["b:0", "b:2", "b2:1"]),
        (2, "CLUSTERING", "AVG_BY_CIRCLE", vec!["b:1", "b2:0"]),
        (
            2,
            "BROADCASTING",
            "AVG",
            vec!["b:0", "b:1", "b:2", "b2:0", "b2:1"],
        ),
    ] {
        let told = told(&mut desk, client, model, strategy);
        assert_eq!(
            told,
            (
                "PULL".to_owned(),
                expected.iter().map(|q| q.to_string()).collect()
            )
        );
    }
    // Not one of the group's members, of which the others are told nothing either.
    let (_, queues) = told(&mut desk, 3, "CLUSTERING", "AVG");
    assert_eq!(queues, [""; 0]);
}

#[test]
fn popping_consumers_pop_all_queues_of_every_broker() {
    let mut desk = consumers(2);
    assert_eq!(set(&mut desk, "T", "G", "POP", -1), 0);
    for client in 1..=3 {
        let (mode, queues) = told(&mut desk, client, "CLUSTERING", "AVG");
        assert_eq!(
            (mode.as_str(), queues),
            ("POP", vec!["b:-1".to_owned(), "b2:-1".to_owned()])
        );
    }
}

#[test]
fn popping_consumers_share_as_many_queues_as_was_set() {
    let mut desk = consumers(4);
    assert_eq!(set(&mut desk, "T", "G", "POP", 1), 0);
    for (client, expected) in [
        (1, vec!["b:0", "b:1", "b:2"]),
        (2, vec!["b:2", "b2:0"]),
        (3, vec!["b2:0", "b2:1"]),
        (4, vec!["b:0", "b:1", "b2:1"]),
    ] {
        let (mode, queues) = told(&mut desk, client, "CLUSTERING", "AVG");
        assert_eq!(
            (mode.as_str(), queues),
            ("POP", expected.iter().map(|q| q.to_string()).collect())
        );
    }
    // More consumers than queues: each has one.
    let mut desk = consumers(7);
    assert_eq!(set(&mut desk, "T", "G", "POP", 2), 0);
    for (client, expected) in [(1, "b:0"), (5, "b2:1"), (6, "b:0"), (7, "b:1")] {
        let (_, queues) = told(&mut desk, client, "CLUSTERING", "AVG");
        assert_eq!(queues, [expected]);
    }
}

/// Without assignments, and with an error, Java's consumer keeps what it has.
#[test]
fn a_consumer_keeps_its_queues_where_the_route_is_not_there() {
    let mut desk = consumers(1);
    let unknown = ClientAnswer {
        code: 17,
        remark: None,
        body: Bytes::new(),
    };
    let failed = ClientAnswer {
        code: 1,
        remark: Some("no name server is reached".to_owned()),
        body: Bytes::new(),
    };
    for (route, code, text) in [
        (Ok(unknown), 0, "{}"),
        (Ok(failed), 1, "no name server is reached"),
        (
            Err(CallError::Gone),
            1,
            "the route of topic[T] is not there",
        ),
    ] {
        let opaque = start_query(&mut desk, 1, "CLUSTERING", "AVG");
        desk.turn();
        answer_route(&mut desk, route);
        let answer = desk.take(opaque).expect("an answer");
        assert_eq!(answer.code.0, code);
        let body = String::from_utf8(body_bytes(&answer)).expect("text");
        let said = answer.remark.as_deref().unwrap_or(&body);
        assert!(said.contains(text), "{said}");
    }
    // Nobody is in the group; a strategy that only clients know.
    let mut desk = desk_with(1);
    for strategy in ["AVG", "CONSISTENT_HASH"] {
        let opaque = start_query(&mut desk, 1, "CLUSTERING", strategy);
        let answer = desk.take(opaque).expect("an answer");
        assert_eq!(body_bytes(&answer), b"{}");
        heartbeat(&mut desk, connection(1), "G", &[("T", "*", 1)]);
    }
    assert!(desk.letters.is_empty());
}

#[test]
fn a_route_that_does_not_come_is_waited_for_no_longer_than_a_client() {
    let mut desk = consumers(1);
    let opaque = start_query(&mut desk, 1, "CLUSTERING", "AVG");
    desk.turn();
    desk.pass_ms(10_001);
    assert_eq!(desk.take(opaque).expect("an answer").code.0, 1);
    answer_route(&mut desk, route());
    assert!(desk.answers.is_empty(), "it is answered once");
}

#[test]
fn modes_are_persisted_and_go_with_their_topic_and_group() {
    let mut desk = desk_with(1);
    for (topic, mode, code) in [
        ("%RETRY%G", "POP", 16),
        ("none", "POP", 17),
        ("T", "PUSH", 1),
        ("T", "POP", 0),
    ] {
        assert_eq!(set(&mut desk, topic, "G", mode, -1), code, "{topic} {mode}");
    }
    let file = r#"{"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"POP","popShareQueueNum":-1,"topic":"T"}}}}"#;
    assert_eq!(desk.files[MODES_FILE], file);
    let mut desk = desk.killed(broker_config(), store_config());
    heartbeat(&mut desk, connection(1), "G", &[("T", "*", 1)]);
    assert_eq!(told(&mut desk, 1, "CLUSTERING", "AVG").0, "POP");
    assert_eq!(set(&mut desk, "T", "H", "POP", 0), 0);
    let fields = [("groupName", "G"), ("removeOffset", "false")];
    desk.call(Code::DELETE_SUBSCRIPTIONGROUP.0, &fields, &[]);
    let left = r#"{"messageRequestModeMap":{"T":{"H":{"consumerGroup":"H","mode":"POP","popShareQueueNum":0,"topic":"T"}}}}"#;
    assert_eq!(desk.files[MODES_FILE], left);
    desk.call(Code::DELETE_TOPIC_IN_BROKER.0, &[("topic", "T")], &[]);
    assert_eq!(desk.files[MODES_FILE], r#"{"messageRequestModeMap":{}}"#);
}

#[test]
fn modes_are_bounded() {
    let mut desk = desk_with(1);
    for group in 0..REQUEST_MODES_MAX {
        assert_eq!(set(&mut desk, "T", &format!("G{group}"), "POP", 0), 0);
    }
    assert_eq!(set(&mut desk, "T", "further", "POP", 0), 1);
    assert_eq!(
        set(&mut desk, "T", "G0", "PULL", 0),
        0,
        "a known one changes"
    );
    let broken = crate::broker::pop::Modes::load(Some(b"{\"messageRequestModeMap\":5}"));
    let error = broken.expect_err("it is no table");
    assert!(error.starts_with(MODES_FILE), "{error}");
}
