//! Offsets by bounds and time, messages by place, and the handler's own answers.

use super::pulls::{cold_desk, fill};
use super::*;
use crate::ids::PhysicalOffset;
use crate::protocol::message::parse_offset_message_id;

fn offset_of(response: &Response) -> i64 {
    match response.header {
        ResponseHeader::Offset(offset) if response.code == ResponseCode::SUCCESS => offset,
        _ => panic!("{response:?}"),
    }
}

fn search(desk: &mut Desk, queue_id: &str, timestamp: i64, boundary: &str) -> i64 {
    let timestamp = timestamp.to_string();
    let mut fields = vec![
        ("topic", "T"),
        ("queueId", queue_id),
        ("timestamp", &*timestamp),
    ];
    if !boundary.is_empty() {
        fields.push(("boundaryType", boundary));
    }
    offset_of(&desk.call(29, &fields, &[]))
}

/// Sends one message at each of these milliseconds.
fn send_at(desk: &mut Desk, times: &[u64]) -> u64 {
    let start = desk.io.now();
    for ms in times {
        desk.io.set_now(Now {
            monotonic_us: start.monotonic_us + ms * 1000,
            wall_ms: start.wall_ms + ms,
        });
        desk.send("T", 0, "", b"x");
    }
    start.wall_ms
}

/// The offset by definition, over all store times.
fn expected(times: &[u64], at: i64, is_upper: bool) -> i64 {
    let earlier = times
        .iter()
        .filter(|time| (**time as i64) < at || is_upper && **time as i64 == at);
    let split = earlier.count() as i64;
    if is_upper { (split - 1).max(0) } else { split }
}

/// Sources: apache/rocketmq#2661, #5752, #4070: equal stamps, between, before all, after all.
#[test]
fn search_by_time_is_exact_at_every_boundary() {
    for times in [
        &[10_u64, 10, 10, 10, 10][..],
        &[10],
        &[10, 20, 20, 20, 30],
        &[10, 11, 12, 13, 14, 14, 14, 15],
    ] {
        let mut desk = Desk::new();
        let start = send_at(&mut desk, times) as i64;
        let boundaries = [
            ("", false),
            ("LOWER", false),
            ("UPPER", true),
            ("upper", true),
        ];
        for at in 5..40 {
            for (boundary, is_upper) in boundaries {
                let found = search(&mut desk, "0", start + at, boundary);
                let expected = expected(times, at, is_upper);
                assert_eq!(found, expected, "{times:?} {at} {boundary}");
            }
        }
        let max = times.len() as i64;
        assert_eq!(
            search(&mut desk, "0", i64::MAX, "LOWER"),
            max,
            "later than all: the end"
        );
        assert_eq!(search(&mut desk, "0", i64::MAX, "UPPER"), max - 1);
        for boundary in ["LOWER", "UPPER"] {
            assert_eq!(
                search(&mut desk, "0", 0, boundary),
                0,
                "before all: the start"
            );
            assert_eq!(search(&mut desk, "0", -1, boundary), 0);
        }
    }
}

#[test]
fn search_by_time_reads_what_is_cold() {
    let mut desk = cold_desk();
    let start = desk.io.now();
    let times: Vec<u64> = (0..3000_u64).map(|n| n / 3 * 10).collect();
    for (n, ms) in times.iter().enumerate() {
        desk.io.set_now(Now {
            monotonic_us: start.monotonic_us + ms * 1000,
            wall_ms: start.wall_ms + ms,
        });
        desk.start_send(&Sending::default());
        if n % 3 == 2 {
            desk.turn();
        }
    }
    fill(&mut desk, 0, "");
    for at in [0, 5, 10, 4995, 5000, 9990, 9991] {
        for (boundary, is_upper) in [("LOWER", false), ("UPPER", true)] {
            desk.reads = 0;
            let found = search(&mut desk, "0", start.wall_ms as i64 + at, boundary);
            assert_eq!(found, expected(&times, at, is_upper), "{at} {boundary}");
            assert!(desk.reads > 0 && desk.reads <= 2 * 13, "{}", desk.reads);
        }
    }
}

/// Apache answers for every name: 0, and -1 for the time.
#[test]
fn bounds_of_queues_that_are_not_there() {
    let mut desk = Desk::new();
    send_at(&mut desk, &[7, 9]);
    let start = desk.io.now().wall_ms as i64 - 9;
    let cases = [
        ("T", "0", (2, 0), start + 7),
        ("T", "1", (0, 0), -1),
        ("T", "99", (0, 0), -1),
        ("T", "-1", (0, 0), -1),
        ("Unknown", "0", (0, 0), -1),
    ];
    for (topic, queue_id, (max, min), earliest) in cases {
        let fields = [("topic", topic), ("queueId", queue_id)];
        assert_eq!(
            offset_of(&desk.call(30, &fields, &[])),
            max,
            "{topic} {queue_id}"
        );
        assert_eq!(
            offset_of(&desk.call(31, &fields, &[])),
            min,
            "{topic} {queue_id}"
        );
        let response = desk.call(32, &fields, &[]);
        let ResponseHeader::Fields(found) = &response.header else {
            panic!("{response:?}");
        };
        let expected = [("timestamp", earliest.to_string())];
        assert_eq!(found[..], expected, "{topic} {queue_id}");
    }
    assert_eq!(search(&mut desk, "7", start, "LOWER"), 0);
    assert!(
        desk.store.queue("Unknown", 0).is_none(),
        "a question creates nothing"
    );
    let response = desk.call(30, &[("topic", "T")], &[]);
    let text = "the custom field <queueId> is null";
    assert_eq!((response.code.0, remark(&response)), (1, text));
}

fn view(desk: &mut Desk, offset: i64) -> Response {
    let offset = offset.to_string();
    let fields = [("topic", "T"), ("offset", &*offset)];
    desk.call(33, &fields, &[])
}

/// A client's unique key looks like a message id: whatever is decoded from it fails cleanly.
#[test]
fn a_message_is_viewed_at_its_exact_place_only() {
    let mut desk = Desk::new();
    let places: Vec<u64> = (0..3)
        .map(|n| {
            let header = desk.send("T", 0, "A", &[b'0' + n]);
            parse_offset_message_id(message_id(&header))
                .expect("an id")
                .1
                .0
        })
        .collect();
    for (n, place) in places.iter().enumerate() {
        let response = view(&mut desk, *place as i64);
        assert_eq!(messages(&response), [(n as u64, n.to_string())]);
    }
    let (_, end) = desk.store.log_bounds();
    for offset in (0..end.0 + 200).filter(|offset| !places.contains(offset)) {
        let found = desk
            .store
            .record_at(PhysicalOffset(offset), &Fetched::default());
        assert!(found.is_err(), "{offset}");
    }
    for offset in [-1, i64::MIN, i64::MAX, end.0 as i64, end.0 as i64 + 1] {
        let response = view(&mut desk, offset);
        assert_eq!(response.code, ResponseCode::SYSTEM_ERROR);
        let text = format!("can not find message by the offset, {offset}");
        assert_eq!(remark(&response), text);
    }
    // What isn't visible yet isn't there.
    desk.start_send(&Sending::default());
    let opaque = desk.start(connection(0), 33, &[("offset", &end.0.to_string())], &[]);
    assert_eq!(desk.take(opaque).unwrap().code.0, 1);
}

#[test]
fn a_cold_message_of_any_size_is_viewed() {
    let mut desk = cold_desk();
    let bodies = [10_usize, 5000, 100_000];
    let places: Vec<i64> = bodies
        .iter()
        .map(|bytes| {
            let header = desk.send("T", 0, "", &vec![b'x'; *bytes]);
            parse_offset_message_id(message_id(&header)).unwrap().1.0 as i64
        })
        .collect();
    fill(&mut desk, 0, "");
    for (place, bytes) in places.into_iter().zip(bodies) {
        let response = view(&mut desk, place);
        assert_eq!(messages(&response)[0].1.len(), bytes);
    }
    assert_eq!(desk.reads, 3);
}

// ---- the handler's own answers ----

#[test]
fn requests_that_are_not_there_are_answered_at_once() {
    let mut desk = Desk::new();
    for (code, text) in [
        (
            40,
            " request type 40 not supported (NOTIFY_CONSUMER_IDS_CHANGED)",
        ),
        (200_056, " request type 200056 not supported (POP_ROLLBACK)"),
        (9999, " request type 9999 not supported"),
        (-1, " request type -1 not supported"),
    ] {
        let response = desk.call(code, &[], &[]);
        assert_eq!((response.code.0, remark(&response)), (3, text));
    }
    assert_eq!(desk.counters.requests_unsupported, 4);
    desk.start_flagged(connection(0), 9999, &[], &[], FLAG_ONE_WAY);
    assert!(desk.answers.is_empty());
}

#[test]
fn a_response_of_a_client_asks_for_nothing() {
    let mut frame = BytesMut::new();
    Response::success().encode_head(1, Encoding::Json, &mut frame);
    let mut desk = Desk::new();
    desk.run_frame(peer(connection(0)), frame.to_vec(), Fetched::default(), 0);
    assert!(desk.answers.is_empty());
    assert_eq!(desk.one_ways, 1);
}

/// Every code that the broker serves answers something else than 3.
#[test]
fn served_codes_are_served() {
    let mut desk = Desk::new();
    let served = [
        10, 11, 14, 15, 17, 18, 21, 29, 30, 31, 32, 33, 34, 35, 38, 46, 200, 201, 202, 207, 208,
        215, 310, 320, 351, 361,
    ];
    for code in served {
        let response = desk.call(code, &[], &[]);
        assert_ne!(response.code.0, 3, "{code}");
    }
}

fn query_key(desk: &mut Desk, topic: &str, key: &str, max: &str, unique: bool) -> Response {
    query_between(desk, (topic, key, max, unique), (0, i64::MAX))
}

fn query_between(
    desk: &mut Desk,
    (topic, key, max, unique): (&str, &str, &str, bool),
    (begin, end): (i64, i64),
) -> Response {
    let (begin, end) = (begin.to_string(), end.to_string());
    let mut fields = vec![
        ("topic", topic),
        ("key", key),
        ("maxNum", max),
        ("beginTimestamp", &*begin),
        ("endTimestamp", &*end),
    ];
    if unique {
        fields.push(("_UNIQUE_KEY_QUERY", "true"));
    }
    desk.call(12, &fields, &[])
}

fn send_keyed(desk: &mut Desk, topic: &str, keys: &str, unique: &str, body: &str) {
    let properties = format!("KEYS\u{1}{keys}\u{2}UNIQ_KEY\u{1}{unique}\u{2}");
    let sending = Sending {
        topic,
        properties: &properties,
        body: body.as_bytes(),
        ..Sending::default()
    };
    sent(&desk.send_message(&sending));
}

fn bodies_of(response: &Response) -> Vec<String> {
    let mut bodies = Vec::new();
    each_message(response, |message| {
        bodies.push(String::from_utf8(message.body.to_vec()).unwrap());
    });
    bodies
}

#[test]
fn messages_are_found_by_each_of_their_keys() {
    for mut desk in [Desk::new(), cold_desk()] {
        for n in 0..100 {
            let keys = format!("k{n} all");
            send_keyed(&mut desk, "T", &keys, &format!("U{n}"), &n.to_string());
        }
        desk.pass_ms(20_000);
        desk.turn();
        let found = query_key(&mut desk, "T", "k42", "32", false);
        assert_eq!(bodies_of(&found), ["42"]);
        let ResponseHeader::Fields(fields) = &found.header else {
            panic!("{found:?}");
        };
        assert_eq!(fields[0].0, "indexLastUpdateTimestamp");
        assert!(fields[1].1.parse::<u64>().unwrap() > 0, "{fields:?}");
        let newest: Vec<String> = (68..100).rev().map(|n| n.to_string()).collect();
        assert_eq!(
            bodies_of(&query_key(&mut desk, "T", "all", "32", false)),
            newest
        );
        let most = query_key(&mut desk, "T", "all", "1000", false);
        assert_eq!(bodies_of(&most).len(), 64, "the limit");
        assert_eq!(
            bodies_of(&query_key(&mut desk, "T", "U7", "0", true)),
            ["7"]
        );
        for (topic, key, unique) in [("T", "k100", false), ("U", "k1", false), ("T", "k1", true)] {
            let none = query_key(&mut desk, topic, key, "32", unique);
            assert_eq!(none.code, ResponseCode::QUERY_NOT_FOUND, "{topic} {key}");
        }
    }
}

#[test]
fn a_query_by_key_is_exact_in_time() {
    let mut desk = Desk::new();
    let start = desk.io.now();
    for ms in [0_u64, 400, 1500, 1501] {
        desk.io.set_now(Now {
            monotonic_us: start.monotonic_us + ms * 1000,
            wall_ms: start.wall_ms + ms,
        });
        send_keyed(&mut desk, "T", "k", &format!("U{ms}"), &ms.to_string());
    }
    let begin = start.wall_ms as i64;
    for (from, to, expected) in [
        (0, 1501, &["1501", "1500", "400", "0"][..]),
        (1, 1500, &["1500", "400"]),
        (1500, 1500, &["1500"]),
    ] {
        let found = query_between(
            &mut desk,
            ("T", "k", "32", false),
            (begin + from, begin + to),
        );
        assert_eq!(bodies_of(&found), expected, "{from}..{to}");
    }
}

/// apache/rocketmq#3613: `AaTopic#Aa` and `BBTopic#Aa`, and keys `Aa` and `BB`, have the same hash.
#[test]
fn a_key_of_the_same_hash_is_no_answer() {
    let mut desk = Desk::new();
    for topic in ["AaTopic", "BBTopic"] {
        for key in ["Aa", "BB"] {
            send_keyed(
                &mut desk,
                topic,
                key,
                &format!("{topic}{key}"),
                &format!("{topic} {key}"),
            );
        }
    }
    for topic in ["AaTopic", "BBTopic"] {
        for key in ["Aa", "BB"] {
            let found = query_key(&mut desk, topic, key, "32", false);
            assert_eq!(bodies_of(&found), [format!("{topic} {key}")]);
        }
    }
}
