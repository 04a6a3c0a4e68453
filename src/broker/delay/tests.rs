//! Goal: what is delayed comes once, whole, not early and in the turn in which it is due; over restarts too.

use super::*;
use crate::broker::tests::{
    Desk, Pulling, SUBSCRIPTION, SUSPEND, Sending, broker_config, sent, store_config,
};
use crate::io::Io;
use crate::protocol::message::{Record, StoredMessage};
use crate::protocol::response::{Body, Response, ResponseHeader};
use crate::storage::StoreConfig;

/// Bodies, properties and store times of a topic's queue.
fn messages(desk: &mut Desk, topic: &str, queue_id: i32) -> Vec<(String, String, u64)> {
    let mut found = Vec::new();
    let mut offset = 0;
    loop {
        let response = desk.pull(&Pulling {
            topic,
            queue_id,
            offset,
            ..Pulling::default()
        });
        let ResponseHeader::Pull(header) = response.header else {
            return found;
        };
        offset = header.next_begin_offset;
        let records = records(&response);
        if records.is_empty() {
            return found;
        }
        found.extend(records);
    }
}

fn records(response: &Response) -> Vec<(String, String, u64)> {
    let Body::Stored { segments, .. } = &response.body else {
        return Vec::new();
    };
    let all: Vec<u8> = segments.iter().flatten().copied().collect();
    let mut rest = &all[..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let Record::Message(message) = StoredMessage::decode(rest).unwrap() else {
            panic!("a message");
        };
        let body = String::from_utf8(message.body.to_vec()).unwrap();
        found.push((body, message.properties.to_owned(), message.store_timestamp));
        rest = &rest[message.bytes.len()..];
    }
    found
}

fn delayed<'a>(properties: &'a str, body: &'a str) -> Sending<'a> {
    Sending {
        properties,
        body: body.as_bytes(),
        ..Sending::default()
    }
}

/// Runs turns as the loop does: at every deadline, up to a time from now.
pub(in crate::broker) fn run_ms(desk: &mut Desk, ms: u64) {
    let end_us = desk.io.now().monotonic_us + ms * 1000;
    desk.turn();
    loop {
        let now_us = desk.io.now().monotonic_us;
        let next = [desk.broker.next_deadline(), desk.store.next_deadline()];
        let next = next.into_iter().flatten().min().unwrap_or(u64::MAX);
        if next.max(now_us) > end_us || now_us == end_us {
            break;
        }
        // The simulated clock has whole milliseconds.
        desk.pass_ms((next.saturating_sub(now_us)).div_ceil(1000));
    }
    let left_us = end_us.saturating_sub(desk.io.now().monotonic_us);
    desk.pass_ms(left_us / 1000);
}

fn bodies(desk: &mut Desk) -> Vec<String> {
    let found = messages(desk, "T", 0);
    found.into_iter().map(|(body, _, _)| body).collect()
}

#[test]
fn a_delayed_message_comes_when_it_is_due_and_wakes_a_held_pull() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"first");
    let held = desk.start_pull(&Pulling {
        offset: 1,
        sys_flag: SUBSCRIPTION | SUSPEND,
        ..Pulling::default()
    });
    let properties = "TAGS\u{1}A\u{2}UNIQ_KEY\u{1}u\u{2}DELAY\u{1}1\u{2}";
    let before_ms = desk.io.now().wall_ms;
    let answer = sent(&desk.send_message(&delayed(properties, "later")));
    assert_eq!(
        (answer.queue_id, answer.queue_offset),
        (0, 0),
        "the parked record's offset"
    );
    run_ms(&mut desk, 999);
    assert!(desk.take(held).is_none(), "early");
    desk.pass_ms(1);
    let response = desk
        .take(held)
        .expect("woken in the turn in which it is due");
    let records = records(&response);
    assert_eq!(records.len(), 1);
    let (body, properties, stored_ms) = &records[0];
    assert_eq!((body.as_str(), *stored_ms), ("later", before_ms + 1000));
    assert_eq!(
        properties,
        "TAGS\u{1}A\u{2}UNIQ_KEY\u{1}u\u{2}CLUSTER\u{1}C\u{2}MSG_REGION\u{1}R\u{2}TRACE_ON\u{1}true\u{2}\
         REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}0\u{2}"
    );
}

#[test]
fn levels_are_capped_and_those_below_one_are_none() {
    let mut desk = Desk::new();
    for (level, parked_in) in [
        ("18", Some(17)),
        ("99", Some(17)),
        ("5", Some(4)),
        ("0", None),
    ] {
        let properties = format!("DELAY\u{1}{level}\u{2}");
        let before = parked_in.map(|id| desk.store.open_queue(SCHEDULE_TOPIC, id));
        let before = before.map(|queue| (queue, desk.store.bounds(queue).max.0));
        desk.send_message(&delayed(&properties, level));
        if let Some((queue, max)) = before {
            assert_eq!(desk.store.bounds(queue).max.0, max + 1, "level {level}");
        }
    }
    assert_eq!(bodies(&mut desk), ["0"]);
    run_ms(&mut desk, 60_000);
    assert_eq!(bodies(&mut desk), ["0", "5"]);
    run_ms(&mut desk, 7_140_000 - 1);
    assert_eq!(bodies(&mut desk), ["0", "5"], "early");
    run_ms(&mut desk, 1);
    assert_eq!(bodies(&mut desk), ["0", "5", "18", "99"]);
}

/// The key `messageDelayLevel`, also where entries are derived from the log again.
#[test]
fn configured_levels_hold_after_the_queues_were_lost() {
    let levels = crate::protocol::delay::DelayLevels::parse("2s 7s").unwrap();
    let broker = || super::super::BrokerConfig {
        delay_levels: levels.clone(),
        ..broker_config()
    };
    let store = || StoreConfig {
        delay_levels: levels.clone(),
        ..store_config()
    };
    let mut desk = Desk::open(broker(), store());
    desk.send_message(&delayed("DELAY\u{1}3\u{2}", "seven"));
    desk.send_message(&delayed("DELAY\u{1}1\u{2}", "two"));
    // Nothing of the queues has reached the disk yet.
    let mut desk = desk.killed(broker(), store());
    run_ms(&mut desk, 1999);
    assert!(bodies(&mut desk).is_empty());
    run_ms(&mut desk, 1);
    assert_eq!(bodies(&mut desk), ["two"]);
    run_ms(&mut desk, 4999);
    assert_eq!(bodies(&mut desk), ["two"]);
    run_ms(&mut desk, 1);
    assert_eq!(bodies(&mut desk), ["two", "seven"]);
}

/// Source: apache/rocketmq#2357 (D6): one delivery offset, so that nothing is delivered anew after a change.
#[test]
fn what_was_delivered_before_a_kill_is_not_delivered_again() {
    let mut desk = Desk::new();
    for body in ["a", "b"] {
        desk.send_message(&delayed("DELAY\u{1}1\u{2}", body));
    }
    run_ms(&mut desk, 1000);
    assert_eq!(bodies(&mut desk), ["a", "b"]);
    desk.send_message(&delayed("DELAY\u{1}1\u{2}", "c"));
    run_ms(&mut desk, 600);
    assert!(
        String::from_utf8_lossy(&desk.files[FILE]).contains("\"1\":2"),
        "{:?}",
        desk.files[FILE]
    );
    let mut desk = desk.killed(broker_config(), store_config());
    run_ms(&mut desk, 399);
    assert_eq!(bodies(&mut desk), ["a", "b"]);
    run_ms(&mut desk, 1);
    assert_eq!(bodies(&mut desk), ["a", "b", "c"]);
    // Due while nobody ran.
    desk.send_message(&delayed("DELAY\u{1}1\u{2}", "d"));
    desk.io.advance_ms(5000);
    let mut desk = desk.killed(broker_config(), store_config());
    run_ms(&mut desk, 0);
    assert!(bodies(&mut desk).ends_with(&["d".to_owned()]));
}

/// A crash between the copy and its flush must not skip the message: the file never says more than what is flushed.
#[test]
fn the_file_says_only_what_is_flushed() {
    let mut desk = Desk::new();
    desk.send_message(&delayed("DELAY\u{1}1\u{2}", "a"));
    run_ms(&mut desk, 900);
    desk.io
        .fail(crate::testing::sim_io::OpKind::Flush, 0, 100, 5);
    run_ms(&mut desk, 2000);
    assert_eq!(bodies(&mut desk), ["a"], "delivered, not flushed");
    let file = desk.files.get(FILE).map(|f| String::from_utf8_lossy(f));
    assert!(file.is_none_or(|file| file.contains("\"1\":0")));
}

#[test]
fn cold_messages_are_read_and_come_in_order() {
    let store = || StoreConfig {
        tail_cache_bytes: 4096,
        entry_cache_bytes: 400,
        ..store_config()
    };
    let mut desk = Desk::open(broker_config(), store());
    let expected: Vec<String> = (0..700).map(|n| format!("{n}")).collect();
    for body in &expected {
        desk.start_send(&delayed("DELAY\u{1}1\u{2}", body));
    }
    desk.turn();
    run_ms(&mut desk, 1000);
    for _ in 0..100 {
        run_ms(&mut desk, 0);
    }
    assert!(desk.reads > 0, "read from disk");
    assert_eq!(bodies(&mut desk), expected);
}

#[test]
fn a_busy_store_delays_and_a_deleted_topic_drops() {
    let mut desk = Desk::new();
    desk.send_message(&delayed("DELAY\u{1}1\u{2}", "gone"));
    let delete = [("topic", "T")];
    assert_eq!(desk.call(215, &delete, &[]).code.0, 0);
    run_ms(&mut desk, 1000);
    desk.send_message(&delayed("DELAY\u{1}1\u{2}", "kept"));
    run_ms(&mut desk, 1000);
    assert_eq!(bodies(&mut desk), ["kept"]);
}

#[test]
fn a_clock_that_went_back_delays_by_the_level_at_most() {
    let mut desk = Desk::new();
    desk.send_message(&delayed("DELAY\u{1}1\u{2}", "a"));
    let entry = desk.store.queue(SCHEDULE_TOPIC, 0).unwrap();
    let entry = desk.store.entry(
        entry,
        crate::ids::QueueOffset(0),
        &crate::storage::Fetched::default(),
    );
    let tags_code = entry.unwrap().tags_code;
    assert_eq!(tags_code as u64, desk.io.now().wall_ms + 1000);
}

#[test]
fn the_file_of_apache_is_read_and_what_is_unknown_stays() {
    let text = br#"{"dataVersion":{"counter":3},"offsetTable":{1:7,2:0,40:5}}"#;
    let (offsets, kept) = file::load(Some(text)).unwrap();
    assert_eq!(offsets[&1].0, 7);
    let written = file::encode([crate::ids::QueueOffset(9)].into_iter(), &kept);
    let written = String::from_utf8(written).unwrap();
    for part in ["\"1\":9", "\"2\":0", "\"40\":5", "\"dataVersion\""] {
        assert!(written.contains(part), "{part} in {written}");
    }
}

/// Source: apache/rocketmq#8022, #5646, #6533 (F2): every form of the property, by default, to the millisecond.
#[test]
fn timer_messages_come_when_they_are_due() {
    let mut desk = Desk::new();
    let now_ms = desk.io.now().wall_ms;
    for (property, value) in [
        ("TIMER_DELIVER_MS", now_ms + 1234),
        ("TIMER_DELAY_MS", 1235),
        ("TIMER_DELAY_SEC", 2),
    ] {
        let properties = format!("UNIQ_KEY\u{1}u\u{2}{property}\u{1}{value}\u{2}");
        let response = desk.send_message(&delayed(&properties, property));
        assert_eq!(response.code.0, 0, "{response:?}");
    }
    for (ms, count) in [(1233, 0), (1, 1), (1, 2), (764, 2), (1, 3)] {
        run_ms(&mut desk, ms);
        assert_eq!(bodies(&mut desk).len(), count, "{} ms", ms);
    }
    let found = messages(&mut desk, "T", 0);
    let stored: Vec<u64> = found.iter().map(|(_, _, at)| at - now_ms).collect();
    assert_eq!(stored, [1234, 1235, 2000]);
    assert!(
        found
            .iter()
            .all(|(_, properties, _)| !properties.contains("TIMER_"))
    );
    let far = format!("TIMER_DELAY_SEC\u{1}{}\u{2}", 3 * 86_400 + 1);
    assert_eq!(desk.send_message(&delayed(&far, "x")).code.0, 13);
    desk.broker.config.timers = false;
    let off = desk.send_message(&delayed("TIMER_DELAY_SEC\u{1}1\u{2}", "x"));
    assert_eq!(off.code.0, 1);
    assert!(off.remark.unwrap().contains("timerWheelEnable"));
}

#[test]
fn timers_survive_a_kill_and_are_not_repeated() {
    let mut desk = Desk::new();
    for (ms, body) in [(5000, "late"), (1000, "early"), (3000, "between")] {
        let properties = format!("TIMER_DELAY_MS\u{1}{ms}\u{2}");
        desk.send_message(&delayed(&properties, body));
    }
    run_ms(&mut desk, 2000);
    assert_eq!(bodies(&mut desk), ["early"]);
    let mut desk = desk.killed(broker_config(), store_config());
    run_ms(&mut desk, 999);
    assert_eq!(bodies(&mut desk), ["early"]);
    run_ms(&mut desk, 1);
    assert_eq!(bodies(&mut desk), ["early", "between"]);
    desk.io.advance_ms(10_000);
    let mut desk = desk.killed(broker_config(), store_config());
    run_ms(&mut desk, 5);
    let found = bodies(&mut desk);
    assert_eq!(found.last().map(String::as_str), Some("late"));
    run_ms(&mut desk, 1000);
    let mut desk = desk.killed(broker_config(), store_config());
    run_ms(&mut desk, 1000);
    assert_eq!(bodies(&mut desk), found, "all are delivered");
}

/// More than may be in memory, in an order that is not that of their times, from a store that keeps little of them.
#[test]
fn timers_beyond_the_memory_wait_on_disk() {
    let store = || StoreConfig {
        tail_cache_bytes: 4096,
        entry_cache_bytes: 4000,
        ..store_config()
    };
    let mut desk = Desk::open(broker_config(), store());
    let count = 3 * crate::limits::TIMERS_IN_MEMORY_MAX as u64;
    for n in 0..count {
        let ms = 10_000 + n.wrapping_mul(7_919) % count * 10;
        let properties = format!("TIMER_DELAY_MS\u{1}{ms}\u{2}");
        desk.start_send(&delayed(&properties, &format!("{ms}")));
        if n % 256 == 255 {
            desk.turn();
            assert!(desk.broker.delays.timers.in_memory() <= crate::limits::TIMERS_IN_MEMORY_MAX);
        }
    }
    desk.turn();
    run_ms(&mut desk, 10_000 + count * 10);
    let numbers: Vec<u64> = bodies(&mut desk)
        .iter()
        .map(|body| body.parse().unwrap())
        .collect();
    assert_eq!(numbers.len() as u64, count, "each once");
    assert!(numbers.is_sorted(), "in the order of their times");
}
