//! Goal: a message that failed comes again as often as allowed, then is a dead letter, at once.

use super::*;
use crate::broker::delay::tests::run_ms;
use crate::broker::tests::sends::with_record;
use crate::broker::tests::{Desk, Sending, sent};
use crate::protocol::message::parse_offset_message_id;
use crate::protocol::response::MessageIds;

fn place(response: &Response) -> u64 {
    let MessageIds::One(id) = sent(response).message_id else {
        panic!("one id");
    };
    parse_offset_message_id(&id).unwrap().1.0
}

fn give_back(desk: &mut Desk, at: u64, level: i32, max: i32) -> Response {
    let fields = [
        ("group", "G".to_owned()),
        ("offset", at.to_string()),
        ("delayLevel", level.to_string()),
        ("originMsgId", "ORIGIN".to_owned()),
        ("originTopic", "T".to_owned()),
        ("unitMode", "false".to_owned()),
        ("maxReconsumeTimes", max.to_string()),
    ];
    let fields: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (*k, v.as_str())).collect();
    desk.call(36, &fields, &[])
}

/// Place of the newest message of a queue.
fn newest(desk: &mut Desk, topic: &str) -> u64 {
    let queue = desk.store.queue(topic, 0).expect("a queue");
    let max = desk.store.bounds(queue).max.0;
    let mut at = 0;
    with_record(desk, topic, 0, max as i64 - 1, |message| {
        at = message.physical_offset.0;
    });
    at
}

/// Source: apache/rocketmq#2724, PR #3318 (D1): the last failure is a dead letter at once.
#[test]
fn a_message_that_fails_each_time_ends_in_the_dead_letters_at_once() {
    let mut desk = Desk::new();
    let response = desk.send_message(&Sending {
        properties: "TAGS\u{1}A\u{2}UNIQ_KEY\u{1}u\u{2}",
        ..Sending::default()
    });
    let mut at = place(&response);
    for (times, delay_ms) in [(1, 10_000), (2, 30_000)] {
        assert_eq!(give_back(&mut desk, at, 0, 2).code.0, 0);
        run_ms(&mut desk, delay_ms - 1);
        let queue = desk.store.queue("%RETRY%G", 0);
        let before = queue.map_or(0, |queue| desk.store.bounds(queue).max.0);
        assert_eq!(before, times - 1, "early");
        run_ms(&mut desk, 1);
        at = newest(&mut desk, "%RETRY%G");
        with_record(&mut desk, "%RETRY%G", 0, times as i64 - 1, |message| {
            assert_eq!(message.reconsume_times as u64, times);
            let get = |key| properties::get(message.properties, key);
            assert_eq!(get(name::RETRY_TOPIC), Some("T"));
            assert_eq!(get(name::ORIGIN_MESSAGE_ID), Some("ORIGIN"));
            assert_eq!(get(name::UNIQUE_KEY), Some("u"));
            assert_eq!(get(name::DELAY), None);
            assert_eq!(message.properties.matches("REAL_TOPIC").count(), 1);
        });
    }
    assert_eq!(give_back(&mut desk, at, 18, 2).code.0, 0);
    with_record(&mut desk, "%DLQ%G", 0, 0, |message| {
        assert_eq!(message.reconsume_times, 3);
        let get = |key| properties::get(message.properties, key);
        assert_eq!(get(name::RETRY_TOPIC), Some("T"));
        assert_eq!(get(name::DLQ_ORIGIN_TOPIC), Some("T"));
        assert_eq!(get(name::DLQ_ORIGIN_MESSAGE_ID), Some("ORIGIN"));
    });
    assert!(desk.broker.topics.get("%RETRY%G").is_some());
    assert!(desk.registrations > 0, "their routes are registered");
}

#[test]
fn a_negative_level_is_a_dead_letter_and_a_positive_one_is_the_delay() {
    let mut desk = Desk::new();
    let at = place(&desk.send_message(&Sending::default()));
    assert_eq!(give_back(&mut desk, at, -1, 16).code.0, 0);
    with_record(&mut desk, "%DLQ%G", 0, 0, |message| {
        assert_eq!(message.topic, "%DLQ%G");
    });
    assert_eq!(give_back(&mut desk, at, 1, 16).code.0, 0);
    run_ms(&mut desk, 1000);
    newest(&mut desk, "%RETRY%G");
}

#[test]
fn the_checks_come_in_apaches_order() {
    let mut desk = Desk::new();
    let at = place(&desk.send_message(&Sending::default()));
    let beyond = give_back(&mut desk, 999_999_999, 0, 16);
    assert_eq!(beyond.code.0, 1);
    assert_eq!(
        beyond.remark.unwrap(),
        "look message by offset failed, 999999999"
    );
    assert!(
        desk.broker.topics.get("%RETRY%G").is_some(),
        "made before the look-up"
    );
    desk.broker.config.auto_create_groups = false;
    let fields = [("group", "Nobody"), ("offset", "0"), ("delayLevel", "0")];
    assert_eq!(desk.call(36, &fields, &[]).code.0, 26);
    desk.broker.config.permission = 4;
    assert_eq!(give_back(&mut desk, at, 0, 16).code.0, 16);
}

/// Source: apache/rocketmq#3786 (H14): the properties that the broker adds fit, or the ones for tools give way.
#[test]
fn a_message_with_full_properties_can_be_retried() {
    let mut desk = Desk::new();
    let properties = format!("UNIQ_KEY\u{1}u\u{2}k\u{1}{}\u{2}", "x".repeat(32_600));
    let at = place(&desk.send_message(&Sending {
        properties: &properties,
        ..Sending::default()
    }));
    assert_eq!(give_back(&mut desk, at, 1, 16).code.0, 0);
    run_ms(&mut desk, 1000);
    newest(&mut desk, "%RETRY%G");
}

/// Source: apache/rocketmq#6163 (D2): a consumer in order gives its message back after the last attempt only.
#[test]
fn what_an_ordered_consumer_sends_to_its_retry_topic_is_a_dead_letter() {
    let mut desk = Desk::new();
    let body = br#"{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}"#;
    assert_eq!(desk.call(41, &[], body).code.0, 0);
    let retry = Sending {
        topic: "%RETRY%G",
        properties: "UNIQ_KEY\u{1}u\u{2}DELAY\u{1}4\u{2}RETRY_TOPIC\u{1}T\u{2}",
        reconsume_times: 1,
        max_reconsume_times: Some(1),
        ..Sending::default()
    };
    desk.send_message(&retry);
    with_record(&mut desk, "%DLQ%G", 0, 0, |message| {
        assert_eq!(message.reconsume_times, 1);
    });
}
