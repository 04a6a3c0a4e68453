use super::*;
use crate::broker::tests::config_files::malicious_names;
use crate::broker::tests::{Desk, connection};
use crate::protocol::codes::ResponseCode;
use crate::protocol::response::{Body, Response};
use serde_json::{Value, json};

mod histories;

const NOTHING: &[(&str, &str, i64)] = &[];

/// A heartbeat as a Java client sends it, with one group of consumers.
fn beat_of(client_id: &str, group: &str, model: &str, topics: &[(&str, &str, i64)]) -> Value {
    let subscription = |(topic, expression, version): &(&str, &str, i64)| {
        json!({"classFilterMode": false, "codeSet": [], "expressionType": "TAG", "subString": expression,
            "subVersion": version, "tagsSet": [], "topic": topic})
    };
    let subscriptions: Vec<Value> = topics.iter().map(subscription).collect();
    json!({"clientID": client_id, "heartbeatFingerprint": 0, "withoutSub": false,
        "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
        "consumerDataSet": [{"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": group, "messageModel": model, "subscriptionDataSet": subscriptions, "unitMode": false}]})
}

fn beat(desk: &mut Desk, from: u32, client_id: &str, group: &str, topics: &[(&str, &str, i64)]) {
    let body = beat_of(client_id, group, "CLUSTERING", topics);
    send_beat(desk, from, &body);
}

fn send_beat(desk: &mut Desk, from: u32, body: &Value) {
    let opaque = desk.start(connection(from), 34, &[], body.to_string().as_bytes());
    desk.turn();
    let response = desk.take(opaque).unwrap();
    assert_eq!(
        response.code,
        ResponseCode::SUCCESS,
        "{:?}",
        response.remark
    );
}

/// Who was notified since the last time: connection and group, sorted.
fn notified(desk: &mut Desk) -> Vec<(u32, String)> {
    let taken = std::mem::take(&mut desk.notifications).into_iter();
    let mut all: Vec<_> = taken.map(|n| (n.connection.index, n.group)).collect();
    all.sort();
    all
}

fn of_group(group: &str, connections: &[u32]) -> Vec<(u32, String)> {
    connections
        .iter()
        .map(|id| (*id, group.to_owned()))
        .collect()
}

fn text_of(response: &Response) -> String {
    match &response.body {
        Body::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn list(desk: &mut Desk, group: &str) -> Result<String, (i32, String)> {
    let response = desk.call(38, &[("consumerGroup", group)], &[]);
    match response.code {
        ResponseCode::SUCCESS => Ok(text_of(&response)),
        code => Err((code.0, response.remark.unwrap_or_default().into_owned())),
    }
}

fn expression(desk: &Desk, group: &str, topic: &str) -> Option<String> {
    let view = desk.broker.clients.group(group, topic)?;
    view.subscription.map(|s| s.expression.clone())
}

/// Every membership is in both tables, and the counts are right.
fn check(clients: &Clients) {
    let mut counts = (0, 0);
    for (connection, joined) in &clients.connections {
        assert!(!joined.consumers.is_empty() || !joined.producers.is_empty());
        for name in &joined.consumers {
            assert!(clients.consumers[&**name].members.contains_key(connection));
        }
        for name in &joined.producers {
            assert!(clients.producers[&**name].members.contains_key(connection));
        }
        counts.0 += joined.consumers.len();
        counts.1 += joined.producers.len();
    }
    let consumers: usize = clients.consumers.values().map(|g| g.members.len()).sum();
    let producers: usize = clients.producers.values().map(|g| g.members.len()).sum();
    assert_eq!(counts, (consumers, producers));
    assert_eq!(
        (clients.consumer_memberships, clients.producer_memberships),
        counts
    );
    assert!(clients.consumers.values().all(|g| !g.members.is_empty()));
    assert!(clients.producers.values().all(|g| !g.members.is_empty()));
    assert_eq!(clients.scan_us.is_some(), !clients.connections.is_empty());
    let bytes: usize = clients.consumers.values().map(|g| g.bytes).sum();
    assert_eq!(clients.subscription_bytes, bytes);
}

#[test]
fn a_heartbeat_makes_a_member_its_group_and_its_retry_topic() {
    let mut desk = Desk::new();
    beat(
        &mut desk,
        1,
        "10.0.0.2@1",
        "G",
        &[("T", "A || B", 5), ("%RETRY%G", "*", 5)],
    );
    assert!(desk.broker.groups.contains("G"));
    let retry = &desk.broker.topics.get("%RETRY%G").unwrap().config;
    assert_eq!(
        (retry.read_queue_nums, retry.write_queue_nums, retry.perm),
        (1, 1, 6)
    );
    assert_eq!(
        list(&mut desk, "G").unwrap(),
        r#"{"consumerIdList":["10.0.0.2@1"]}"#
    );
    assert_eq!(desk.broker.clients.topics_of("G"), ["%RETRY%G", "T"]);
    assert_eq!(expression(&desk, "G", "T").as_deref(), Some("A || B"));
    let view = desk.broker.clients.group("G", "Other").unwrap();
    assert!(!view.broadcasting && view.subscription.is_none());
    assert!(desk.broker.clients.group("H", "T").is_none());
    check(&desk.broker.clients);
}

#[test]
fn retry_topics_have_the_queues_of_their_group() {
    let mut desk = Desk::new();
    let body = json!({"groupName": "G", "retryQueueNums": 3}).to_string();
    assert_eq!(
        desk.call(200, &[], body.as_bytes()).code,
        ResponseCode::SUCCESS
    );
    beat(&mut desk, 1, "c", "G", NOTHING);
    assert_eq!(
        desk.broker
            .topics
            .get("%RETRY%G")
            .unwrap()
            .config
            .write_queue_nums,
        3
    );
}

/// Bodies of clients in other languages: Go quotes codes and has nanoseconds, C++ sends ordinals and a quoted
/// version, Node leaves out what it doesn't use.
#[test]
fn heartbeats_of_all_clients_are_understood() {
    let go = r#"{"clientID":"go","producerDataSet":[{"groupName":"PG"}],"consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA"],"codeSet":["2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}"#;
    let cpp = "{\"clientID\":\"cpp\",\"consumerDataSet\":[{\"consumeFromWhere\":0,\"consumeType\":1,\"groupName\":\"G\",\
        \"messageModel\":1,\"subscriptionDataSet\":[{\"subString\":\"TagA\",\"subVersion\":\"1796098548612\",\
        \"topic\":\"T\"}]}],\"producerDataSet\":[{\"groupName\":\"PG\"}]}\n";
    let node = r#"{"clientID":"node","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING","subscriptionDataSet":[{"subString":"TagA","subVersion":1,"topic":"T"}],"unitMode":false}],"producerDataSet":null}"#;
    let cpp_broadcasting =
        r#"{"clientID":"cpp","consumerDataSet":[{"groupName":"G","messageModel":0}]}"#;
    for (body, client, broadcasting) in [
        (go, "go", false),
        (cpp, "cpp", false),
        (node, "node", false),
        (cpp_broadcasting, "cpp", true),
    ] {
        let mut desk = Desk::new();
        let opaque = desk.start(connection(1), 34, &[], body.as_bytes());
        desk.turn();
        assert_eq!(
            desk.take(opaque).unwrap().code,
            ResponseCode::SUCCESS,
            "{client}"
        );
        let ids = list(&mut desk, "G").unwrap();
        assert_eq!(ids, format!(r#"{{"consumerIdList":["{client}"]}}"#));
        let view = desk.broker.clients.group("G", "T").unwrap();
        assert_eq!(view.broadcasting, broadcasting, "{client}");
        if let Some(subscription) = view.subscription {
            let filter = crate::broker::filter::Filter::parse("TagA", "TAG");
            assert_eq!(Ok(&subscription.filter), filter.as_ref(), "{client}");
        }
    }
}

/// A member joins, a set of topics changes, a member leaves in any of three ways: all that are in the group then are
/// told, nobody else, and a newer expression is nobody's business.
#[test]
fn members_are_told_when_their_group_changes() {
    let mut desk = Desk::new();
    beat(&mut desk, 9, "other", "H", &[("T", "*", 1)]);
    assert_eq!(notified(&mut desk), of_group("H", &[9]));

    beat(&mut desk, 1, "a", "G", &[("T", "*", 1)]);
    assert_eq!(
        notified(&mut desk),
        of_group("G", &[1]),
        "the first one too"
    );
    beat(&mut desk, 2, "b", "G", &[("T", "*", 1)]);
    assert_eq!(
        notified(&mut desk),
        of_group("G", &[1, 2]),
        "a member joins"
    );
    for _ in 0..3 {
        beat(&mut desk, 1, "a", "G", &[("T", "*", 1)]);
        beat(&mut desk, 2, "b", "G", &[("T", "*", 1)]);
    }
    assert_eq!(notified(&mut desk), [], "nothing changed");
    beat(&mut desk, 1, "a", "G", &[("T", "A", 2)]);
    assert_eq!(notified(&mut desk), [], "a newer expression");
    assert_eq!(expression(&desk, "G", "T").as_deref(), Some("A"));
    beat(&mut desk, 1, "a", "G", &[("T", "A", 2), ("U", "*", 2)]);
    assert_eq!(notified(&mut desk), of_group("G", &[1, 2]), "a topic more");
    beat(&mut desk, 1, "a", "G", &[("T", "A", 2)]);
    assert_eq!(notified(&mut desk), of_group("G", &[1, 2]), "a topic less");

    beat(&mut desk, 3, "c", "G", &[("T", "A", 2)]);
    beat(&mut desk, 4, "d", "G", &[("T", "A", 2)]);
    notified(&mut desk);
    desk.start(
        connection(2),
        35,
        &[("clientID", "b"), ("consumerGroup", "G")],
        &[],
    );
    desk.turn();
    assert_eq!(
        notified(&mut desk),
        of_group("G", &[1, 3, 4]),
        "a member ends"
    );
    desk.close(connection(3));
    assert_eq!(
        notified(&mut desk),
        of_group("G", &[1, 4]),
        "a connection is closed"
    );
    desk.pass_ms(60_000);
    beat(&mut desk, 1, "a", "G", &[("T", "A", 2)]);
    desk.pass_ms(61_000);
    assert_eq!(
        notified(&mut desk),
        of_group("G", &[1]),
        "a member is silent, the other group's too"
    );
    desk.close(connection(1));
    assert_eq!(notified(&mut desk), [], "nobody is left");
    check(&desk.broker.clients);
}

/// Source: apache/seatunnel#9959: a group that restarts floods itself with notifications.
#[test]
fn a_turn_notifies_each_member_once() {
    let mut desk = Desk::new();
    let body =
        |id: u32| beat_of(&format!("c{id}"), "G", "CLUSTERING", &[("T", "*", 1)]).to_string();
    for id in 0..200 {
        desk.start(connection(id), 34, &[], body(id).as_bytes());
    }
    desk.turn();
    let all: Vec<u32> = (0..200).collect();
    assert_eq!(notified(&mut desk), of_group("G", &all));
    desk.with(|broker, _| (0..199).for_each(|id| on_closed(broker, connection(id))));
    assert_eq!(notified(&mut desk), of_group("G", &[199]));
}

#[test]
fn nobody_is_told_who_has_nothing_to_balance() {
    let mut desk = Desk::new();
    for id in 0..2 {
        let body = beat_of("c", "G", "BROADCASTING", &[("T", "*", 1)]);
        send_beat(&mut desk, id, &body);
    }
    assert_eq!(notified(&mut desk), [], "all queues each");
    assert!(desk.broker.clients.group("G", "T").unwrap().broadcasting);

    let quiet = json!({"groupName": "Q", "notifyConsumerIdsChangedEnable": false}).to_string();
    assert_eq!(
        desk.call(200, &[], quiet.as_bytes()).code,
        ResponseCode::SUCCESS
    );
    beat(&mut desk, 1, "a", "Q", &[("T", "*", 1)]);
    beat(&mut desk, 2, "b", "Q", &[("T", "*", 1)]);
    desk.close(connection(2));
    assert_eq!(notified(&mut desk), [], "switched off");
}

/// Sources: apache/rocketmq#5388, #2359, #351: the newest subscription wins, as in Java; members that disagree can be
/// told.
#[test]
fn the_newest_subscription_wins() {
    let mut desk = Desk::new();
    beat(&mut desk, 1, "a", "G", &[("T", "A", 5)]);
    beat(&mut desk, 2, "b", "G", &[("T", "B", 6)]);
    assert_eq!(expression(&desk, "G", "T").as_deref(), Some("B"));
    beat(&mut desk, 1, "a", "G", &[("T", "A", 5)]);
    assert_eq!(
        expression(&desk, "G", "T").as_deref(),
        Some("B"),
        "an old version"
    );
    beat(&mut desk, 1, "a", "G", &[("T", "C", 6)]);
    assert_eq!(expression(&desk, "G", "T").as_deref(), Some("B"), "as old");
    assert_eq!(desk.broker.clients.divided_groups(), ["G"]);
    beat(&mut desk, 1, "a", "G", &[("U", "*", 9)]);
    assert_eq!(
        desk.broker.clients.topics_of("G"),
        ["U"],
        "what it doesn't name is gone"
    );
    beat(&mut desk, 2, "b", "G", &[("U", "*", 7)]);
    assert!(desk.broker.clients.divided_groups().is_empty());
}

#[test]
fn expressions_that_mean_nothing_match_nothing() {
    let mut desk = Desk::new();
    let mut body = beat_of("a", "G", "CLUSTERING", &[("T", "||", 1), ("U", "a >", 1)]);
    body["consumerDataSet"][0]["subscriptionDataSet"][1]["expressionType"] = "SQL92".into();
    send_beat(&mut desk, 1, &body);
    for topic in ["T", "U"] {
        let subscription = desk
            .broker
            .clients
            .group("G", topic)
            .unwrap()
            .subscription
            .unwrap();
        assert!(!subscription.filter.may_match(0), "{topic}");
    }
    assert_eq!(expression(&desk, "G", "U").as_deref(), Some("a >"));
}

#[test]
fn a_heartbeat_without_subscriptions_keeps_them() {
    let mut desk = Desk::new();
    beat(&mut desk, 1, "a", "G", &[("T", "A", 5)]);
    let mut body = beat_of("a", "G", "CLUSTERING", NOTHING);
    body["withoutSub"] = true.into();
    body["heartbeatFingerprint"] = 7.into();
    send_beat(&mut desk, 1, &body);
    assert_eq!(expression(&desk, "G", "T").as_deref(), Some("A"));
    assert!(desk.broker.clients.divided_groups().is_empty());
}

#[test]
fn nobody_in_a_group_is_an_error_that_clients_know() {
    let mut desk = Desk::new();
    let expected = (1, "no consumer for this group, Nobody".to_owned());
    assert_eq!(list(&mut desk, "Nobody"), Err(expected));
    for (id, client) in [(1, "b"), (2, "a"), (3, "a")] {
        beat(&mut desk, id, client, "G", NOTHING);
    }
    assert_eq!(
        list(&mut desk, "G").unwrap(),
        r#"{"consumerIdList":["a","b"]}"#,
        "each id once"
    );
    desk.close(connection(3));
    assert_eq!(
        list(&mut desk, "G").unwrap(),
        r#"{"consumerIdList":["a","b"]}"#,
        "it has another"
    );
    desk.close(connection(2));
    assert_eq!(list(&mut desk, "G").unwrap(), r#"{"consumerIdList":["b"]}"#);
}

#[test]
fn groups_that_can_not_be_created_are_left_out() {
    let mut desk = Desk::new();
    desk.broker.config.auto_create_groups = false;
    let mut body = beat_of("a", "Nobody", "CLUSTERING", &[("T", "*", 1)]);
    let tools = body["consumerDataSet"][0].clone();
    body["consumerDataSet"].as_array_mut().unwrap().push(tools);
    body["consumerDataSet"][1]["groupName"] = "TOOLS_CONSUMER".into();
    send_beat(&mut desk, 1, &body);
    assert!(list(&mut desk, "Nobody").is_err());
    assert!(desk.broker.topics.get("%RETRY%Nobody").is_none());
    assert!(list(&mut desk, "TOOLS_CONSUMER").is_ok());
}

#[test]
fn names_that_are_not_allowed_come_in_nowhere() {
    let mut desk = Desk::new();
    let topics = desk.broker.topics.len();
    for name in malicious_names() {
        let mut body = beat_of("a", &name, "CLUSTERING", &[("T", "*", 1)]);
        body["producerDataSet"] = json!([{"groupName": name}]);
        send_beat(&mut desk, 1, &body);
        beat(&mut desk, 2, "b", "G", &[(&name, "*", 1), ("T", "*", 1)]);
    }
    assert_eq!(
        desk.broker.topics.len(),
        topics + 1,
        "but for the retry topic of G"
    );
    assert_eq!(desk.broker.clients.topics_of("G"), ["T"]);
    assert_eq!(desk.broker.clients.consumers.len(), 1);
    assert_eq!(
        desk.broker.clients.producers.len(),
        1,
        "the inner one of Java"
    );
}

#[test]
fn broken_heartbeats_are_refused() {
    let mut desk = Desk::new();
    let long = json!({"clientID": "x".repeat(1025)}).to_string();
    for body in [
        "",
        "null",
        "[1]",
        "{\"clientID\":",
        r#"{"consumerDataSet":5}"#,
        &long,
    ] {
        let response = desk.call(34, &[], body.as_bytes());
        assert_eq!(response.code, ResponseCode::SYSTEM_ERROR, "{body}");
    }
    check(&desk.broker.clients);
}

/// A producer's heartbeat.
fn hear(clients: &mut Clients, group: &str, connection: ConnectionId) -> Result<(), Full> {
    let beat = Beat {
        client_id: &"c".into(),
        peer: Peer {
            connection,
            address: ([10, 0, 0, 9], 1).into(),
        },
        language: "JAVA",
        version: 479,
        now_us: 0,
        keep_subscriptions: false,
    };
    clients.hear_producer(group, &beat)
}

/// Source: apache/rocketmq PR 8672, #8959: tables of producers that grow for ever.
#[test]
fn tables_are_bounded() {
    let mut clients = Clients::default();
    for index in 0..PRODUCER_GROUPS_MAX {
        hear(&mut clients, &format!("P{index}"), connection(1)).unwrap();
    }
    let full = hear(&mut clients, "OneMore", connection(1));
    assert_eq!(full, Err(Full::ProducerGroups));
    assert_eq!(
        hear(&mut clients, "P1", connection(1)),
        Ok(()),
        "it is there"
    );
    for index in 0..MEMBERSHIPS_MAX - PRODUCER_GROUPS_MAX {
        let connection = connection(2 + index as u32);
        hear(&mut clients, "P1", connection).unwrap();
    }
    let full = hear(&mut clients, "P1", connection(u32::MAX));
    assert_eq!(full, Err(Full::Memberships));
    check(&clients);
    clients.drop_connection(connection(1));
    check(&clients);
    assert_eq!(clients.producers.len(), 1);
    assert_eq!(hear(&mut clients, "OneMore", connection(2)), Ok(()));
}

#[test]
fn a_group_has_a_bounded_number_of_topics() {
    let mut desk = Desk::new();
    let names: Vec<String> = (0..5000).map(|n| format!("T{n}")).collect();
    let topics: Vec<_> = names.iter().map(|name| (name.as_str(), "*", 1)).collect();
    beat(&mut desk, 1, "a", "G", &topics);
    assert_eq!(desk.broker.clients.topics_of("G").len(), 4096);
    let long = "x".repeat(32 * 1024 + 1);
    beat(&mut desk, 1, "a", "H", &[("T", &long, 1), ("U", "*", 1)]);
    assert_eq!(desk.broker.clients.topics_of("H"), ["U"]);
}

#[test]
fn subscriptions_of_all_groups_together_are_bounded() {
    let mut desk = Desk::new();
    let long = "x".repeat(32 * 1024);
    let names: Vec<String> = (0..200).map(|n| format!("T{n}")).collect();
    let topics: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), &*long, 1))
        .collect();
    for group in ["A", "B", "C", "D"] {
        beat(&mut desk, 1, "a", group, &topics);
    }
    let counts = ["A", "B", "C", "D"].map(|group| desk.broker.clients.topics_of(group).len());
    assert_eq!(counts[..2], [200, 200]);
    assert!(
        (100..200).contains(&counts[2]) && counts[3] == 0,
        "{counts:?}"
    );
    assert!(desk.broker.clients.subscription_bytes <= SUBSCRIPTIONS_BYTES_MAX);
    beat(&mut desk, 1, "a", "A", &[("T0", "*", 2)]);
    beat(&mut desk, 1, "a", "D", &[("T0", "*", 2)]);
    assert_eq!(
        desk.broker.clients.topics_of("D"),
        ["T0"],
        "there is room again"
    );
    check(&desk.broker.clients);
}

/// What can't be taken leaves what is there.
#[test]
fn an_expression_that_is_too_long_does_not_replace_another() {
    let mut desk = Desk::new();
    let long = "x".repeat(32 * 1024 + 1);
    beat(&mut desk, 1, "a", "G", &[("T", "A", 1)]);
    beat(&mut desk, 1, "a", "G", &[("T", &long, 2)]);
    assert_eq!(expression(&desk, "G", "T").as_deref(), Some("A"));
    check(&desk.broker.clients);
}

#[test]
fn a_shard_without_members_has_nothing_to_wake_up_for() {
    let mut desk = Desk::new();
    assert_eq!(desk.broker.clients.next_deadline(), None);
    beat(&mut desk, 1, "a", "G", NOTHING);
    let first = desk.broker.clients.next_deadline().unwrap();
    desk.io.advance_ms(100_000);
    beat(&mut desk, 1, "a", "G", NOTHING);
    assert_eq!(
        desk.broker.clients.next_deadline(),
        Some(first),
        "not moved by each heartbeat"
    );
    desk.pass_ms(20_001);
    assert!(list(&mut desk, "G").is_ok());
    assert_eq!(
        desk.broker.clients.next_deadline(),
        Some(first + 100_000_000)
    );
    desk.close(connection(1));
    assert_eq!(desk.broker.clients.next_deadline(), None);
    beat(&mut desk, 1, "a", "G", NOTHING);
    desk.pass_ms(120_001);
    assert!(list(&mut desk, "G").is_err(), "120 s without a heartbeat");
    assert_eq!(desk.broker.clients.next_deadline(), None);
    check(&desk.broker.clients);
}

#[test]
fn a_client_ends_one_role_at_a_time() {
    let mut desk = Desk::new();
    beat(&mut desk, 1, "a", "G", NOTHING);
    let end = |desk: &mut Desk, fields: &[(&str, &str)]| {
        let opaque = desk.start(connection(1), 35, fields, &[]);
        desk.turn();
        assert_eq!(desk.take(opaque).unwrap().code, ResponseCode::SUCCESS);
        check(&desk.broker.clients);
    };
    end(&mut desk, &[("clientID", "a")]);
    end(
        &mut desk,
        &[
            ("clientID", "a"),
            ("consumerGroup", "Nobody"),
            ("producerGroup", "Nobody"),
        ],
    );
    assert!(list(&mut desk, "G").is_ok());
    end(&mut desk, &[("clientID", "a"), ("consumerGroup", "G")]);
    assert!(list(&mut desk, "G").is_err());
    assert_eq!(desk.broker.clients.producers.len(), 1);
    end(
        &mut desk,
        &[
            ("clientID", "a"),
            ("producerGroup", "CLIENT_INNER_PRODUCER"),
        ],
    );
    assert!(desk.broker.clients.producers.is_empty());
}

/// Source: apache/rocketmq#310, #8631, #2972 (B8): SQL92 works by default, and where it is off the key is named.
#[test]
fn a_client_asks_whether_its_expression_is_understood() {
    let mut desk = Desk::new();
    let mut code = |kind: &str, expression: &str| {
        let body = json!({"clientId": "a", "group": "G", "subscriptionData":
            {"topic": "T", "subString": expression, "expressionType": kind}});
        let response = desk.call(46, &[], body.to_string().as_bytes());
        (
            response.code.0,
            response.remark.unwrap_or_default().into_owned(),
        )
    };
    assert_eq!(code("TAG", "A || B"), (0, String::new()));
    assert_eq!(code("", "*"), (0, String::new()));
    assert_eq!(code("TAG", "||").0, 23);
    assert_eq!(code("XPATH", "a").0, 23);
    assert_eq!(code("SQL92", "a > 1"), (0, String::new()));
    let (refused, remark) = code("SQL92", "a > 'x'");
    assert_eq!(refused, 23);
    assert!(remark.ends_with("at position 5: 'x'"), "{remark}");
    assert_eq!(desk.call(46, &[], b"[").code, ResponseCode::SYSTEM_ERROR);
    desk.broker.config.property_filter_enable = false;
    let body = json!({"clientId": "a", "group": "G", "subscriptionData":
        {"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}});
    let response = desk.call(46, &[], body.to_string().as_bytes());
    assert_eq!(response.code, ResponseCode::SYSTEM_ERROR);
    let remark = response.remark.unwrap_or_default();
    assert!(remark.contains("enablePropertyFilter"), "{remark}");
}

#[test]
fn a_pull_is_not_answered_by_a_memory_of_its_group() {
    let mut desk = Desk::new();
    beat(&mut desk, 1, "a", "G", &[("T", "*", 1)]);
    assert!(desk.broker.clients.group("G", "T").is_some());
    desk.close(connection(1));
    assert!(desk.broker.clients.group("G", "T").is_none());
}
