use crate::broker::clients;
use crate::broker::tests::config_files::{json, malicious_names};
use crate::broker::tests::pulls::{cold_desk, fill, heartbeat};
use crate::broker::tests::{Desk, Pulling, SUBSCRIPTION, SUSPEND, connection};
use crate::io::Io;
use crate::protocol::bodies::{ConsumeStats, MessageQueue, TopicStatsTable};
use crate::protocol::codes::ResponseCode;
use crate::protocol::response::{Body, Response, ResponseHeader};
use serde_json::{Value, json as value};

fn bytes_of(response: &Response) -> Vec<u8> {
    match &response.body {
        Body::Bytes(bytes) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn field<'a>(response: &'a Response, name: &str) -> &'a str {
    let ResponseHeader::Fields(fields) = &response.header else {
        panic!("{response:?}");
    };
    let field = fields.iter().find(|(known, _)| *known == name);
    &field.unwrap().1
}

/// 17 for topic T as `mqadmin` sends it, with some fields changed or left out.
fn update(desk: &mut Desk, changed: &[(&str, &str)]) -> (i32, String) {
    let mut fields = vec![
        ("topic", "T"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "8"),
        ("writeQueueNums", "4"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    for (name, text) in changed {
        fields.retain(|(known, _)| known != name);
        if *text != "absent" {
            fields.push((name, text));
        }
    }
    let response = desk.call(17, &fields, &[]);
    let remark = response.remark.unwrap_or_default().into_owned();
    (response.code.0, remark)
}

fn topic(desk: &mut Desk, name: &str) -> Result<Value, i32> {
    let response = desk.call(351, &[("topic", name), ("lo", "true")], &[]);
    match response.code {
        ResponseCode::SUCCESS => Ok(json(&bytes_of(&response))),
        code => Err(code.0),
    }
}

#[test]
fn a_topic_is_created_changed_and_shown() {
    let mut desk = Desk::new();
    desk.perform();
    let before = desk.registrations;
    assert_eq!(topic(&mut desk, "T"), Err(17));
    assert_eq!(update(&mut desk, &[]).0, 0);
    assert_eq!(desk.registrations, before + 1);
    let expected = value!({"attributes": {}, "mappingDetail": null, "order": false, "perm": 6, "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG", "topicName": "T", "topicSysFlag": 0, "writeQueueNums": 4});
    assert_eq!(topic(&mut desk, "T"), Ok(expected));

    let version = desk.broker.topics.version();
    assert_eq!(update(&mut desk, &[]).0, 0, "the same again");
    assert_eq!(
        (desk.broker.topics.version(), desk.registrations),
        (version, before + 1)
    );

    let changes = [
        ("perm", "4"),
        ("order", "true"),
        ("topicFilterType", "MULTI_TAG"),
        ("attributes", "+message.type=FIFO,+queue.type=BatchCQ"),
        ("topicSysFlag", "absent"),
        ("defaultTopic", "absent"),
    ];
    assert_eq!(update(&mut desk, &changes).0, 0);
    let shown = topic(&mut desk, "T").unwrap();
    assert_eq!(
        shown["attributes"],
        value!({"message.type": "FIFO", "queue.type": "SimpleCQ"})
    );
    assert_eq!(
        (&shown["perm"], &shown["order"]),
        (&value!(4), &value!(true))
    );
    assert_eq!(update(&mut desk, &[("attributes", "-message.type")]).0, 0);
    let shown = topic(&mut desk, "T").unwrap();
    assert_eq!(
        shown["attributes"],
        value!({"queue.type": "SimpleCQ"}),
        "the others stay"
    );
    let saved = json(&desk.files["config/topics.json"]);
    assert_eq!(saved["topicConfigTable"]["T"]["perm"], 6);
}

#[test]
fn topics_that_can_not_be_are_refused_with_a_reason() {
    let mut desk = Desk::new();
    let topics = desk.broker.topics.len();
    for (name, text, code, expected) in [
        (
            "readQueueNums",
            "0",
            29,
            "readQueueNums is 0, allowed are 1 to 1024",
        ),
        (
            "writeQueueNums",
            "1025",
            29,
            "writeQueueNums is 1025, allowed are 1 to 1024",
        ),
        ("writeQueueNums", "-1", 29, "writeQueueNums is -1"),
        ("perm", "16", 29, "perm is 16, allowed are"),
        ("perm", "-1", 29, "perm is -1"),
        (
            "topicFilterType",
            "NO_TAG",
            29,
            "allowed are SINGLE_TAG and MULTI_TAG",
        ),
        (
            "attributes",
            "+message.type=MIXED",
            29,
            "MIXED message type is not supported.",
        ),
        (
            "attributes",
            "message.type=FIFO",
            29,
            "neither +key=value nor -key",
        ),
        ("attributes", "-message.type", 29, "it can't be removed"),
        (
            "topic",
            "TBW102",
            29,
            "The topic[TBW102] is conflict with system topic.",
        ),
        ("topic", "rmq_sys_x", 29, "conflict with system topic"),
        ("topic", "C", 29, "conflict with system topic"),
        ("topic", "b", 29, "conflict with system topic"),
        ("topic", "C_REPLY_TOPIC", 29, "conflict with system topic"),
        ("perm", "absent", 1, "the custom field <perm> is null"),
        ("perm", "x", 1, "<perm> is not a 32-bit integer"),
        ("topic", "absent", 1, "the custom field <topic> is null"),
    ] {
        let (answered, remark) = update(&mut desk, &[(name, text)]);
        assert_eq!(answered, code, "{name}={text}: {remark}");
        assert!(remark.contains(expected), "{name}={text}: {remark}");
    }
    for name in malicious_names() {
        let (code, remark) = update(&mut desk, &[("topic", &name)]);
        assert_eq!(code, 29, "{name:?}: {remark}");
    }
    assert_eq!(desk.broker.topics.len(), topics);
}

#[test]
fn a_list_of_topics_is_created_whole_or_not_at_all() {
    let mut desk = Desk::new();
    let mut list = |topics: Value| {
        let body = value!({"topicConfigList": topics}).to_string();
        let response = desk.call(18, &[], body.as_bytes());
        let names = ["A", "B"].map(|name| desk.broker.topics.get(name).is_some());
        (response.code.0, names)
    };
    let good = value!({"topicName": "A", "readQueueNums": 2, "writeQueueNums": 2, "attributes": {"+message.type": "FIFO"}});
    let bad = value!({"topicName": "B", "readQueueNums": 0});
    assert_eq!(list(value!([good, bad])), (29, [false, false]));
    assert_eq!(
        list(value!([good, {"topicName": "../x"}])),
        (29, [false, false])
    );
    assert_eq!(list(value!([])), (0, [false, false]));
    assert_eq!(list(value!([good, {"topicName": "B"}])), (0, [true, true]));
    assert_eq!(
        list(value!([good, {"topicName": "B"}])),
        (0, [true, true]),
        "again"
    );
    let config = &desk.broker.topics.get("A").unwrap().config;
    assert_eq!(config.attributes["message.type"], "FIFO");
    assert_eq!(desk.call(18, &[], b"{").code.0, 1);
    let many: Vec<Value> = (0..60_000)
        .map(|n| value!({"topicName": format!("N{n}")}))
        .collect();
    let body = value!({"topicConfigList": many}).to_string();
    let response = desk.call(18, &[], body.as_bytes());
    assert_eq!(response.code.0, 1);
    assert!(
        response
            .remark
            .unwrap()
            .contains("60000 topics can't be created")
    );
    assert!(desk.broker.topics.get("N0").is_none());
}

/// The tool goes on until it has the announced number; source: apache/rocketmq 5.3 `MQClientAPIImpl`.
#[test]
fn tables_are_shown_page_by_page() {
    let mut desk = Desk::new();
    desk.with(|broker, cx| {
        for n in 0..30 {
            let topic = crate::protocol::bodies::TopicConfig::new(&format!("T{n}"), 1, 6);
            broker.topics.put(topic, cx).unwrap();
            let config = broker.config.clone();
            broker
                .groups
                .find_or_create(&config, &format!("G{n}"), cx)
                .unwrap();
        }
    });
    for (code, sequence, max, total, table, expected) in [
        (
            21,
            "topicSeq",
            "maxTopicNum",
            "totalTopicNum",
            "topicConfigTable",
            desk.broker.topics.len(),
        ),
        (
            201,
            "groupSeq",
            "maxGroupNum",
            "totalGroupNum",
            "subscriptionGroupTable",
            desk.broker.groups.len(),
        ),
    ] {
        let all = desk.call(code, &[], &[]);
        assert_eq!(field(&all, total), expected.to_string());
        let all = json(&bytes_of(&all));
        let all = all[table].as_object().unwrap().clone();
        assert_eq!(all.len(), expected);
        let (mut seen, mut version) = (serde_json::Map::new(), String::new());
        while seen.len() < expected {
            let from = seen.len().to_string();
            let response = desk.call(
                code,
                &[(sequence, &from), (max, "7"), ("dataVersion", &version)],
                &[],
            );
            assert_eq!(field(&response, total), expected.to_string());
            let page = json(&bytes_of(&response));
            version = page["dataVersion"].to_string();
            let page = page[table].as_object().unwrap().clone();
            assert!((1..=7).contains(&page.len()), "{code}: {}", page.len());
            seen.extend(page);
        }
        assert_eq!(seen, all, "{code}");
        let stale = r#"{"counter":0,"stateVersion":0,"timestamp":0}"#;
        let response = desk.call(
            code,
            &[(sequence, "20"), (max, "3"), ("dataVersion", stale)],
            &[],
        );
        let page = json(&bytes_of(&response));
        let first: Vec<_> = page[table].as_object().unwrap().keys().collect();
        let expected: Vec<_> = all.keys().take(3).collect();
        assert_eq!(first, expected, "an old version starts again");
        let beyond = desk.call(code, &[(sequence, "999"), ("dataVersion", &version)], &[]);
        assert_eq!(json(&bytes_of(&beyond))[table], value!({}));
        assert_eq!(desk.call(code, &[(sequence, "x")], &[]).code.0, 1);
    }
}

#[test]
fn a_group_is_created_changed_shown_and_deleted() {
    let mut desk = Desk::new();
    let mut body = value!({"groupName": "G", "retryMaxTimes": 3, "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "consumeEnable": false, "attributes": {"+a": "1"}});
    assert_eq!(desk.call(200, &[], body.to_string().as_bytes()).code.0, 0);
    let shown = |desk: &mut Desk| {
        let response = desk.call(201, &[], &[]);
        json(&bytes_of(&response))["subscriptionGroupTable"].clone()
    };
    let group = shown(&mut desk)["G"].clone();
    assert_eq!(group["groupRetryPolicy"]["type"], "CUSTOMIZED");
    assert_eq!(
        (&group["retryMaxTimes"], &group["attributes"]),
        (&value!(3), &value!({"a": "1"}))
    );
    assert!(!desk.broker.groups.get("G").unwrap().consume_enable);
    body["attributes"] = value!({"-a": "", "b": "2"});
    assert_eq!(desk.call(200, &[], body.to_string().as_bytes()).code.0, 0);
    assert_eq!(shown(&mut desk)["G"]["attributes"], value!({"b": "2"}));

    for name in malicious_names() {
        let body = value!({"groupName": name}).to_string();
        assert_eq!(desk.call(200, &[], body.as_bytes()).code.0, 29, "{name:?}");
    }
    assert_eq!(
        desk.call(200, &[], br#"{"groupName":"G","retryQueueNums":1025}"#)
            .code
            .0,
        29
    );
    assert_eq!(desk.call(200, &[], b"").code.0, 1);
    let fat = value!({"groupName": "Fat", "future": "x".repeat(16 * 1024)}).to_string();
    assert_eq!(desk.call(200, &[], fat.as_bytes()).code.0, 29);

    let commit = |desk: &mut Desk| {
        desk.with(|broker, cx| broker.offsets.commit("G", "T", 0, 5, cx.now.monotonic_us));
    };
    commit(&mut desk);
    assert_eq!(desk.call(207, &[("groupName", "G")], &[]).code.0, 0);
    assert!(shown(&mut desk).get("G").is_none());
    assert_eq!(
        desk.broker.offsets.get("G", "T", 0),
        Some(5),
        "offsets stay"
    );
    let clean = [("groupName", "G"), ("cleanOffset", "true")];
    assert_eq!(
        desk.call(207, &clean, &[]).code.0,
        0,
        "also where it isn't there"
    );
    assert_eq!(desk.broker.offsets.get("G", "T", 0), None);
}

/// Sources: apache/rocketmq#4774, #551, apache/rocketmq-client-cpp#488, apache/rocketmq#9703.
#[test]
fn a_topic_that_is_deleted_and_made_again_starts_at_zero() {
    let mut desk = Desk::new();
    for n in 0..5 {
        desk.send("T", 0, "", &[n]);
    }
    for group in ["G", "H"] {
        desk.with(|broker, cx| broker.offsets.commit(group, "T", 0, 5, cx.now.monotonic_us));
    }
    let held = desk.start_pull(&Pulling {
        offset: 5,
        sys_flag: SUSPEND | SUBSCRIPTION,
        ..Pulling::default()
    });
    desk.turn();
    let before = desk.registrations;
    assert_eq!(desk.call(215, &[("topic", "T")], &[]).code.0, 0);
    assert_eq!(desk.registrations, before + 1);
    assert_eq!(desk.take(held).unwrap().code.0, 17, "its holds end");
    assert_eq!(topic(&mut desk, "T"), Err(17));
    for group in ["G", "H"] {
        assert_eq!(desk.broker.offsets.get(group, "T", 0), None);
    }
    desk.pass_ms(1);
    assert_eq!(
        json(&desk.files["config/consumerOffset.json"])["offsetTable"],
        value!({})
    );
    assert_eq!(
        desk.call(215, &[("topic", "T")], &[]).code.0,
        0,
        "also where it isn't there"
    );
    for _ in 0..3 {
        desk.pass_ms(1000);
    }
    assert_eq!(desk.send("T", 0, "", b"new").queue_offset, 0);
}

#[test]
fn system_topics_can_not_be_deleted() {
    let mut desk = Desk::new();
    let count = desk.broker.topics.len();
    for name in [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_x",
        "C",
        "b",
        "C_REPLY_TOPIC",
        "",
        " ",
    ] {
        assert_eq!(
            desk.call(215, &[("topic", name)], &[]).code.0,
            29,
            "{name:?}"
        );
    }
    for name in malicious_names()
        .iter()
        .filter(|name| !name.trim().is_empty())
    {
        assert_eq!(
            desk.call(215, &[("topic", name)], &[]).code.0,
            0,
            "{name:?}"
        );
    }
    assert_eq!(desk.broker.topics.len(), count);
}

fn topic_stats(desk: &mut Desk, name: &str) -> TopicStatsTable {
    let response = desk.call(202, &[("topic", name)], &[]);
    TopicStatsTable::decode(&bytes_of(&response)).unwrap()
}

#[test]
fn the_state_of_a_topic_is_told() {
    let mut desk = Desk::new();
    let start = desk.io.now().wall_ms;
    assert_eq!(desk.call(202, &[("topic", "T")], &[]).code.0, 17);
    for n in 0..3 {
        desk.send("T", 1, "", &[n]);
        desk.io.advance_ms(10);
    }
    let stats = topic_stats(&mut desk, "T");
    assert_eq!(stats.offset_table.len(), 4, "every queue");
    let row = stats.offset_table[&MessageQueue::new("b", "T", 1)];
    assert_eq!((row.min_offset, row.max_offset), (0, 3));
    assert_eq!(row.last_update_timestamp, start as i64 + 20);
    let empty = stats.offset_table[&MessageQueue::new("b", "T", 0)];
    assert_eq!(
        (
            empty.min_offset,
            empty.max_offset,
            empty.last_update_timestamp
        ),
        (0, 0, 0)
    );
    // A map from objects, which no strict parser takes and Java's needs.
    let response = desk.call(202, &[("topic", "T")], &[]);
    let text = String::from_utf8(bytes_of(&response)).unwrap();
    assert!(
        text.starts_with(r#"{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"#),
        "{text}"
    );
}

fn consume_stats(desk: &mut Desk, fields: &[(&str, &str)]) -> Vec<(String, i32, i64, i64)> {
    let all = [&[("consumerGroup", "G")], fields].concat();
    let response = desk.call(208, &all, &[]);
    let stats = ConsumeStats::decode(&bytes_of(&response)).unwrap();
    let rows = stats.offset_table.into_iter();
    rows.map(|(queue, row)| {
        (
            queue.topic,
            queue.queue_id,
            row.broker_offset,
            row.consumer_offset,
        )
    })
    .collect()
}

#[test]
fn the_progress_of_a_group_is_told() {
    let mut desk = Desk::new();
    let start = desk.io.now().wall_ms as i64;
    for name in ["T", "U"] {
        update(
            &mut desk,
            &[
                ("topic", name),
                ("readQueueNums", "1"),
                ("writeQueueNums", "1"),
            ],
        );
        for n in 0..3 {
            desk.send(name, 0, "", &[n]);
            desk.io.advance_ms(10);
        }
    }
    let row = |topic: &str, consumed| (topic.to_owned(), 0, 3, consumed);
    assert_eq!(consume_stats(&mut desk, &[]), []);
    desk.with(|broker, cx| broker.offsets.commit("G", "T", 0, 2, cx.now.monotonic_us));
    assert_eq!(
        consume_stats(&mut desk, &[]),
        [row("T", 2)],
        "what it has committed for"
    );
    assert_eq!(consume_stats(&mut desk, &[("topic", "U")]), [row("U", 0)]);
    assert_eq!(consume_stats(&mut desk, &[("topic", "Nothing")]), []);
    assert_eq!(
        consume_stats(&mut desk, &[("topicList", "U;Nothing;T;")]),
        [row("T", 2), row("U", 0)]
    );

    heartbeat(&mut desk, connection(1), "G", &[("U", "*", 1)]);
    assert_eq!(
        consume_stats(&mut desk, &[]),
        [row("U", 0)],
        "what it subscribes to"
    );
    assert_eq!(consume_stats(&mut desk, &[("topic", "T")]), [], "no longer");
    assert_eq!(
        consume_stats(&mut desk, &[("topicList", "T")]),
        [row("T", 2)],
        "asked for by list"
    );
    desk.with(|broker, _| clients::on_closed(broker, connection(1)));

    let response = desk.call(208, &[("consumerGroup", "G")], &[]);
    let stats = ConsumeStats::decode(&bytes_of(&response)).unwrap();
    let row = stats.offset_table[&MessageQueue::new("b", "T", 0)];
    assert_eq!(
        (row.last_timestamp, row.pull_offset),
        (start + 10, 2),
        "of message 1"
    );
    desk.with(|broker, cx| broker.offsets.commit("G", "T", 0, 99, cx.now.monotonic_us));
    let response = desk.call(208, &[("consumerGroup", "G")], &[]);
    let stats = ConsumeStats::decode(&bytes_of(&response)).unwrap();
    let row = stats.offset_table[&MessageQueue::new("b", "T", 0)];
    assert_eq!(
        (row.consumer_offset, row.last_timestamp),
        (99, 0),
        "beyond the end"
    );
    assert_eq!(desk.call(208, &[], &[]).code.0, 1);
}

#[test]
fn store_times_on_disk_are_read_in_a_few_rounds() {
    let mut desk = cold_desk();
    let start = desk.io.now().wall_ms as i64;
    update(
        &mut desk,
        &[("readQueueNums", "64"), ("writeQueueNums", "64")],
    );
    for queue_id in 0..64 {
        desk.send("T", queue_id, "", b"x");
        desk.with(|broker, cx| {
            broker
                .offsets
                .commit("G", "T", queue_id as u32, 1, cx.now.monotonic_us)
        });
    }
    fill(&mut desk, 1, "A");
    let response = desk.call(208, &[("consumerGroup", "G")], &[]);
    let stats = ConsumeStats::decode(&bytes_of(&response)).unwrap();
    assert_eq!(stats.offset_table.len(), 64);
    assert!(
        stats
            .offset_table
            .values()
            .all(|row| row.last_timestamp == start)
    );
    assert!((1..=3).contains(&desk.reads), "{} rounds", desk.reads);
}

/// `mqadmin clusterList` and `brokerStatus` read these, and some fail on one that is missing.
#[test]
fn a_broker_tells_what_it_is_doing() {
    let mut desk = Desk::new();
    fill(&mut desk, 3, "A");
    let table = |desk: &mut Desk| {
        let response = desk.call(28, &[], &[]);
        json(&bytes_of(&response))["table"].clone()
    };
    let first = table(&mut desk);
    for name in [
        "putTps",
        "getTransferedTps",
        "getTransferredTps",
        "getTotalTps",
    ] {
        let rates = first[name].as_str().unwrap();
        assert_eq!(
            rates
                .split(' ')
                .filter(|r| r.parse::<f64>().is_ok())
                .count(),
            3,
            "{name}: {rates}"
        );
    }
    for (name, value) in [
        ("msgPutTotalTodayNow", "3"),
        ("putMessageTimesTotal", "3"),
        ("msgGetTotalTodayNow", "0"),
        ("sendThreadPoolQueueSize", "0"),
        ("pageCacheLockTimeMills", "0"),
        ("commitLogMinOffset", "0"),
        ("writable", "true"),
    ] {
        assert_eq!(first[name], *value, "{name}");
    }
    let version = first["brokerVersionDesc"].as_str().unwrap();
    assert!(version.starts_with("ringmq-"), "{version}");
    let end: u64 = first["commitLogMaxOffset"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(end > 0);
}
