//! Goal: a half message is delivered exactly if its producer commits it, once; what is undecided is asked for, over
//! restarts too. Method: requests as clients send them, over a simulated disk, with limits that are small in tests.

use super::*;
use crate::broker::BrokerConfig;
use crate::broker::delay::tests::run_ms;
use crate::broker::relay::AddressedCall;
use crate::broker::tests::{
    Desk, Pulling, SUBSCRIPTION, SUSPEND, body_bytes, broker_config, connection, each_message,
    message_id, messages, remark, sent, store_config,
};
use crate::ids::ConnectionId;
use crate::io::Io;
use crate::protocol::codes::RequestCode;
use crate::protocol::command::FLAG_ONE_WAY;
use crate::protocol::message::Record;
use crate::protocol::names::CHECK_MAX_TOPIC;
use crate::protocol::response::Response;
use crate::storage::StoreConfig;
use std::collections::BTreeMap;

const PRODUCER: ConnectionId = connection(5);
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;
const PROPERTIES: &str =
    "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}TAGS\u{1}A\u{2}UNIQ_KEY\u{1}u\u{2}";

/// A half message as its producer knows it.
#[derive(Clone, Debug)]
struct Begun {
    offset: u64,
    at: u64,
}

fn start_send(desk: &mut Desk, properties: &str, sys_flag: &str, body: &str) -> i32 {
    let born = desk.io.now().wall_ms.to_string();
    let fields = [
        ("a", "PG"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", sys_flag),
        ("g", &born),
        ("h", "7"),
        ("i", properties),
    ];
    desk.start(PRODUCER, 310, &fields, body.as_bytes())
}

fn send(desk: &mut Desk, properties: &str, body: &str) -> Response {
    let opaque = start_send(desk, properties, "4", body);
    desk.turn();
    desk.take(opaque).expect("an answer in this turn")
}

fn begin_with(desk: &mut Desk, properties: &str, body: &str) -> Begun {
    let answer = sent(&send(desk, properties, body));
    let at = u64::from_str_radix(&message_id(&answer)[16..], 16).expect("a place");
    let offset = answer.queue_offset;
    Begun { offset, at }
}

fn begin(desk: &mut Desk, body: &str) -> Begun {
    begin_with(desk, PROPERTIES, body)
}

fn start_end(desk: &mut Desk, half: &Begun, decision: i32, is_check: bool, flag: i32) -> i32 {
    let (offset, at) = (half.offset.to_string(), half.at.to_string());
    let decision = decision.to_string();
    let fields = [
        ("producerGroup", "PG"),
        ("tranStateTableOffset", offset.as_str()),
        ("commitLogOffset", &at),
        ("commitOrRollback", &decision),
        (
            "fromTransactionCheck",
            if is_check { "true" } else { "false" },
        ),
        ("msgId", "u"),
    ];
    desk.start_flagged(PRODUCER, RequestCode::END_TRANSACTION.0, &fields, &[], flag)
}

fn end(desk: &mut Desk, half: &Begun, decision: i32) -> Response {
    let opaque = start_end(desk, half, decision, false, 0);
    answer_of(desk, opaque)
}

/// The answer to an end; where the half message is cold, its read and its write take turns.
fn answer_of(desk: &mut Desk, opaque: i32) -> Response {
    for _ in 0..4 {
        desk.turn();
        if let Some(answer) = desk.take(opaque) {
            return answer;
        }
    }
    panic!("no answer in these turns");
}

fn bodies_of(desk: &mut Desk, topic: &str, queue_id: i32) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let answer = desk.pull(&Pulling {
            topic,
            queue_id,
            offset: found.len() as i64,
            ..Pulling::default()
        });
        let more = messages(&answer);
        if more.is_empty() {
            return found;
        }
        found.extend(more.into_iter().map(|(_, body)| body));
    }
}

fn bodies(desk: &mut Desk) -> Vec<String> {
    bodies_of(desk, "T", 1)
}

fn join(desk: &mut Desk, from: ConnectionId) {
    let id = format!("c{}", from.index);
    let body = serde_json::json!({"clientID": id, "consumerDataSet": [],
        "producerDataSet": [{"groupName": "PG"}]});
    desk.start(from, 34, &[], body.to_string().as_bytes());
    desk.turn();
    desk.answers.clear();
}

/// A check as the producer reads it.
struct Asked {
    half: Begun,
    topic: String,
    queue_id: i32,
    body: String,
    properties: String,
}

fn read_check(call: &AddressedCall) -> Asked {
    assert_eq!(call.call.code.0, 39);
    assert!(call.one_way);
    let field = |name| {
        let found = call.call.fields.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let Record::Message(stored) = StoredMessage::decode(&call.call.body).unwrap() else {
        panic!("a message");
    };
    stored.check_body_crc().unwrap();
    let half = Begun {
        offset: field("tranStateTableOffset").parse().unwrap(),
        at: field("commitLogOffset").parse().unwrap(),
    };
    assert_eq!(
        (stored.queue_offset.0, stored.physical_offset.0),
        (half.offset, half.at)
    );
    assert_eq!((field("topic"), field("msgId")), ("T".into(), "u".into()));
    assert_eq!(
        field("offsetMsgId"),
        format!("0A00000100002A9F{:016X}", half.at)
    );
    Asked {
        half,
        topic: stored.topic.to_owned(),
        queue_id: stored.queue_id,
        body: String::from_utf8(stored.body.to_vec()).unwrap(),
        properties: stored.properties.to_owned(),
    }
}

fn take_checks(desk: &mut Desk) -> Vec<Asked> {
    let calls = std::mem::take(&mut desk.calls);
    calls.iter().map(read_check).collect()
}

#[test]
fn a_half_message_is_there_for_consumers_once_it_is_committed() {
    let mut desk = Desk::new();
    let held = desk.start_pull(&Pulling {
        queue_id: 1,
        sys_flag: SUBSCRIPTION | SUSPEND,
        ..Pulling::default()
    });
    desk.take(held);
    let answer = sent(&send(&mut desk, PROPERTIES, "one"));
    assert_eq!((answer.queue_id, answer.queue_offset), (1, 0));
    assert_eq!(answer.transaction_id.as_deref(), Some("u"));
    let half = Begun {
        offset: 0,
        at: u64::from_str_radix(&message_id(&answer)[16..], 16).unwrap(),
    };
    assert!(bodies(&mut desk).is_empty(), "not committed yet");
    assert_eq!(bodies_of(&mut desk, HALF_TOPIC, 0), ["one"]);
    let held = desk.start_pull(&Pulling {
        queue_id: 1,
        sys_flag: SUBSCRIPTION | SUSPEND,
        expression: "A",
        ..Pulling::default()
    });
    desk.turn();
    assert!(desk.take(held).is_none());
    // One-way, as Java does.
    start_end(&mut desk, &half, COMMIT, false, FLAG_ONE_WAY);
    desk.turn();
    let delivered = desk.take(held).expect("woken by the commit");
    each_message(&delivered, |message| {
        assert_eq!((message.topic, message.queue_id, message.flag), ("T", 1, 7));
        assert_eq!((message.body, message.sys_flag), (&b"one"[..], COMMIT));
        assert_eq!(message.prepared_transaction_offset, half.at);
        assert_eq!(
            message.properties,
            "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}TAGS\u{1}A\u{2}UNIQ_KEY\u{1}u\u{2}CLUSTER\u{1}C\u{2}\
             MSG_REGION\u{1}R\u{2}TRACE_ON\u{1}true\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}1\u{2}"
        );
    });
    let op = desk.pull(&Pulling {
        topic: OP_HALF_TOPIC,
        ..Pulling::default()
    });
    each_message(&op, |message| {
        assert_eq!((message.body, message.tag()), (&b"0"[..], "d"));
    });
    assert_eq!(desk.counters.transactions_committed, 1);
    // Nothing is asked about it (apache/rocketmq#1517, G1).
    join(&mut desk, PRODUCER);
    run_ms(&mut desk, 120_000);
    assert!(desk.calls.is_empty());
}

#[test]
fn the_first_decision_stands() {
    for (first, second, expected) in [
        (COMMIT, ROLLBACK, 1),
        (ROLLBACK, COMMIT, 0),
        (COMMIT, COMMIT, 1),
        (ROLLBACK, ROLLBACK, 0),
    ] {
        let mut desk = Desk::new();
        let half = begin(&mut desk, "x");
        assert_eq!(
            end(&mut desk, &half, 0).code.0,
            0,
            "unknown decides nothing"
        );
        assert_eq!(end(&mut desk, &half, first).code.0, 0);
        let refused = end(&mut desk, &half, second);
        assert_eq!(refused.code.0, 1);
        assert!(remark(&refused).contains("decided already"), "{refused:?}");
        assert_eq!(bodies(&mut desk).len(), expected, "{first} then {second}");
        let mut desk = desk.killed(broker_config(), store_config());
        run_ms(&mut desk, 10);
        assert_eq!(end(&mut desk, &half, COMMIT).code.0, 1, "after a restart");
        assert_eq!(bodies(&mut desk).len(), expected);
    }
}

#[test]
fn decisions_about_what_is_no_half_message_of_the_group_are_refused() {
    let mut desk = Desk::new();
    let plain = desk.send("T", 1, "", b"plain");
    let plain_at = u64::from_str_radix(&message_id(&plain)[16..], 16).unwrap();
    let half = begin(&mut desk, "x");
    let other = begin_with(&mut desk, &PROPERTIES.replace("PG\u{2}", "OTHER\u{2}"), "y");
    for (what, offset, at, expected) in [
        ("a plain message", 0, plain_at, "Find prepared"),
        ("behind the log", 0, 1 << 40, "Find prepared"),
        (
            "another offset",
            1,
            half.at,
            "transaction state table offset",
        ),
        ("another group", other.offset, other.at, "producer group"),
    ] {
        let refused = end(&mut desk, &Begun { offset, at }, COMMIT);
        assert_eq!(refused.code.0, 1, "{what}");
        assert!(remark(&refused).contains(expected), "{what}: {refused:?}");
    }
    assert_eq!(end(&mut desk, &half, 3).code.0, 1, "no decision");
    assert_eq!(desk.counters.transactions_refused, 4);
    assert_eq!(bodies(&mut desk), ["plain"]);
    assert_eq!(end(&mut desk, &half, COMMIT).code.0, 0);
    assert_eq!(bodies(&mut desk), ["plain", "x"]);
}

#[test]
fn half_messages_that_can_not_be_dealt_with_are_refused() {
    let mut desk = Desk::new();
    let long = format!("{PROPERTIES}K\u{1}{}\u{2}", "v".repeat(32_600));
    for (properties, sys_flag, expected) in [
        ("TRAN_MSG\u{1}true\u{2}", "4", "PGROUP"),
        ("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}\u{2}", "4", "PGROUP"),
        ("", "4", "TRAN_MSG=true"),
        (&format!("{PROPERTIES}DELAY\u{1}3\u{2}"), "4", "delay"),
        (&long, "4", "properties"),
    ] {
        let opaque = start_send(&mut desk, properties, sys_flag, "x");
        desk.turn();
        let refused = desk.take(opaque).unwrap();
        assert_eq!(refused.code.0, 13, "{refused:?}");
        assert!(remark(&refused).contains(expected), "{refused:?}");
    }
    let mut config = broker_config();
    config.transactions.is_refused = true;
    let mut desk = Desk::open(config, store_config());
    let refused = send(&mut desk, PROPERTIES, "x");
    assert_eq!(refused.code.0, 16);
    assert!(remark(&refused).contains("rejectTransactionMessage"));
}

#[test]
fn an_undecided_half_message_is_asked_for_with_its_new_place() {
    let mut desk = Desk::new();
    join(&mut desk, PRODUCER);
    let half = begin(&mut desk, "x");
    run_ms(&mut desk, 5999);
    assert!(desk.calls.is_empty(), "early");
    run_ms(&mut desk, 1);
    let asked = take_checks(&mut desk);
    assert_eq!(asked.len(), 1);
    let first = &asked[0];
    assert_eq!(
        (first.topic.as_str(), first.queue_id, first.body.as_str()),
        ("T", 1, "x")
    );
    assert_eq!(first.half.offset, 1, "stored again");
    for property in [
        "PGROUP\u{1}PG",
        "TRANSACTION_CHECK_TIMES\u{1}1",
        "TRAN_PREPARED_QUEUE_OFFSET\u{1}0",
    ] {
        assert!(first.properties.contains(property), "{}", first.properties);
    }
    run_ms(&mut desk, 29_999);
    assert!(desk.calls.is_empty(), "one check an interval");
    run_ms(&mut desk, 1);
    let again = take_checks(&mut desk);
    assert_eq!((again.len(), again[0].half.offset), (1, 2));
    // The producer was slow: it answers with the place that it sent to.
    assert_eq!(end(&mut desk, &half, COMMIT).code.0, 0);
    let opaque = start_end(&mut desk, &again[0].half, COMMIT, true, 0);
    desk.turn();
    assert_eq!(desk.take(opaque).unwrap().code.0, 1, "committed already");
    assert_eq!(bodies(&mut desk), ["x"]);
    run_ms(&mut desk, 120_000);
    assert!(desk.calls.is_empty());
    assert_eq!(desk.counters.transactions_checked, 2);
}

#[test]
fn the_answer_to_a_check_decides_and_producers_take_turns() {
    let mut desk = Desk::new();
    join(&mut desk, PRODUCER);
    join(&mut desk, connection(6));
    for body in ["a", "b", "c"] {
        begin(&mut desk, body);
    }
    run_ms(&mut desk, 6010);
    let asked_of: Vec<u32> = desk
        .calls
        .iter()
        .map(|call| call.connection.index)
        .collect();
    assert_eq!(asked_of, [5, 6, 5]);
    let asked = take_checks(&mut desk);
    for (asked, decision) in asked.iter().zip([COMMIT, ROLLBACK, 0]) {
        start_end(&mut desk, &asked.half, decision, true, FLAG_ONE_WAY);
    }
    desk.turn();
    assert_eq!(bodies(&mut desk), ["a"]);
    run_ms(&mut desk, 30_000);
    let asked = take_checks(&mut desk);
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].body, "c");
}

#[test]
fn after_the_last_check_it_is_given_up() {
    let mut config = broker_config();
    config.transactions.checks_max = 3;
    let mut desk = Desk::open(config, store_config());
    join(&mut desk, PRODUCER);
    let half = begin(&mut desk, "x");
    for _ in 0..10 {
        run_ms(&mut desk, 30_000);
        join(&mut desk, PRODUCER);
    }
    assert_eq!(take_checks(&mut desk).len(), 3);
    assert_eq!(bodies_of(&mut desk, CHECK_MAX_TOPIC, 0), ["x"]);
    assert_eq!(end(&mut desk, &half, COMMIT).code.0, 1, "too late");
    assert!(bodies(&mut desk).is_empty());
    assert_eq!(desk.counters.transactions_given_up, 1);
}

/// Nobody is there to be asked: that is no check, however long it lasts. Three days without anybody are the end.
#[test]
fn a_group_that_is_away_is_asked_when_it_is_back() {
    let mut desk = Desk::new();
    begin(&mut desk, "x");
    run_ms(&mut desk, 3_600_000);
    assert_eq!(
        bodies_of(&mut desk, HALF_TOPIC, 0).len(),
        1,
        "not stored again"
    );
    join(&mut desk, PRODUCER);
    run_ms(&mut desk, 30_000);
    let asked = take_checks(&mut desk);
    assert_eq!(asked.len(), 1);
    assert!(
        asked[0]
            .properties
            .contains("TRANSACTION_CHECK_TIMES\u{1}1\u{2}")
    );
    desk.close(PRODUCER);
    desk.io.advance_ms(73 * 3_600_000);
    run_ms(&mut desk, 1000);
    assert_eq!(bodies_of(&mut desk, CHECK_MAX_TOPIC, 0), ["x"]);
}

#[test]
fn a_message_has_its_own_immunity_and_no_decision_after_it() {
    let mut desk = Desk::new();
    join(&mut desk, PRODUCER);
    let properties = format!("{PROPERTIES}CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}20\u{2}");
    let halves: Vec<Begun> = ["a", "b"]
        .iter()
        .map(|b| begin_with(&mut desk, &properties, b))
        .collect();
    run_ms(&mut desk, 20_000 - 10);
    assert!(desk.calls.is_empty(), "early");
    assert_eq!(end(&mut desk, &halves[0], COMMIT).code.0, 0);
    run_ms(&mut desk, 50);
    let asked = take_checks(&mut desk);
    assert_eq!(asked.len(), 1);
    let late = end(&mut desk, &halves[1], COMMIT);
    assert_eq!(late.code.0, 604, "{late:?}");
    assert!(remark(&late).contains("the limit is 20 s"), "{late:?}");
    let opaque = start_end(&mut desk, &asked[0].half, COMMIT, true, 0);
    desk.turn();
    assert_eq!(desk.take(opaque).unwrap().code.0, 0);
    assert_eq!(bodies(&mut desk), ["a", "b"]);
}

/// After any kill what was acknowledged is decided or asked for again. Also where all of it is cold, one-way included.
#[test]
fn what_is_undecided_outlives_a_kill() {
    let cold = || StoreConfig {
        tail_cache_bytes: 0,
        segment_bytes: 1 << 16,
        ..store_config()
    };
    for store in [store_config as fn() -> StoreConfig, cold] {
        let mut desk = Desk::open(broker_config(), store());
        let halves: Vec<Begun> = (0..6).map(|n| begin(&mut desk, &format!("h{n}"))).collect();
        end(&mut desk, &halves[1], COMMIT);
        end(&mut desk, &halves[2], ROLLBACK);
        for round in 0..40 {
            desk.send("Other", 0, "", &vec![round; 4000]);
        }
        let mut desk = desk.killed(broker_config(), store());
        run_ms(&mut desk, 10);
        start_end(&mut desk, &halves[3], COMMIT, false, FLAG_ONE_WAY);
        desk.turn();
        desk.turn();
        assert_eq!(bodies(&mut desk), ["h1", "h3"]);
        join(&mut desk, PRODUCER);
        run_ms(&mut desk, 6010);
        let asked = take_checks(&mut desk);
        let asked: Vec<&str> = asked.iter().map(|asked| asked.body.as_str()).collect();
        assert_eq!(asked, ["h0", "h4", "h5"]);
        // Again between a check and its answer.
        let mut desk = desk.killed(broker_config(), store());
        run_ms(&mut desk, 10);
        join(&mut desk, PRODUCER);
        run_ms(&mut desk, 30_010);
        let mut asked = take_checks(&mut desk);
        asked.sort_by_key(|asked| asked.half.offset);
        for asked in &asked {
            assert!(
                asked
                    .properties
                    .contains("TRANSACTION_CHECK_TIMES\u{1}2\u{2}")
            );
            start_end(&mut desk, &asked.half, COMMIT, true, 0);
        }
        desk.turn();
        assert_eq!(bodies(&mut desk), ["h1", "h3", "h0", "h4", "h5"]);
    }
}

/// The file moves on, so that a start reads what is undecided and not all there ever was.
#[test]
fn the_file_says_where_undecided_ones_begin() {
    let mut desk = Desk::new();
    let halves: Vec<Begun> = (0..20)
        .map(|n| begin(&mut desk, &format!("h{n}")))
        .collect();
    for half in &halves[..12] {
        end(&mut desk, half, ROLLBACK);
    }
    run_ms(&mut desk, 5000);
    let file = String::from_utf8_lossy(&desk.files[FILE]).into_owned();
    assert_eq!(file, r#"{"halfOffset":12,"opOffset":12}"#);
    // The oldest stays: decisions behind it are needed again.
    for half in &halves[13..] {
        end(&mut desk, half, ROLLBACK);
    }
    let mut desk = desk.killed(broker_config(), store_config());
    run_ms(&mut desk, 10);
    assert_eq!(
        desk.broker
            .transactions
            .undecided
            .keys()
            .collect::<Vec<_>>(),
        [&12]
    );
    assert_eq!(end(&mut desk, &halves[15], COMMIT).code.0, 1);
    assert_eq!(end(&mut desk, &halves[12], COMMIT).code.0, 0);
    assert_eq!(bodies(&mut desk), ["h12"]);
}

/// What a stock broker left: its offsets, and decisions with several offsets in one record.
#[test]
fn the_store_of_apache_goes_on() {
    let offsets = r#"{"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:3},"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:2}}}"#;
    let offsets =
        crate::broker::offsets::ConsumerOffsets::load(Some(offsets.as_bytes()), 5000).unwrap();
    let state = Transactions::load(None, &offsets).unwrap();
    assert_eq!((state.tail, state.loading), (3, Some(2)));
    let mut desk = Desk::new();
    for n in 0..6 {
        begin(&mut desk, &format!("h{n}"));
    }
    let body = b"1,2,4,";
    desk.with(|broker, cx| {
        let mut op = NewMessage {
            topic: OP_HALF_TOPIC,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: broker.config.address,
            store_host: broker.config.address,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: "TAGS\u{1}d\u{2}",
            tags_code: 0,
        };
        internal::append(broker, &op, cx).unwrap();
        op.body = b"no number";
        internal::append(broker, &op, cx).unwrap();
    });
    desk.turn();
    let mut desk = desk.killed(broker_config(), store_config());
    run_ms(&mut desk, 10);
    assert_eq!(
        desk.broker
            .transactions
            .undecided
            .keys()
            .collect::<Vec<_>>(),
        [&0, &3, &5]
    );
}

/// What is behind those in memory waits for room, but can be decided.
#[test]
fn more_half_messages_than_fit_into_memory_are_all_asked_for() {
    let mut desk = Desk::new();
    let count = 3 * HALVES_IN_MEMORY_MAX;
    let halves: Vec<Begun> = (0..count)
        .map(|n| begin(&mut desk, &format!("h{n}")))
        .collect();
    assert!(desk.broker.transactions.in_memory() <= HALVES_IN_MEMORY_MAX);
    // One that is not looked at yet can be decided.
    assert_eq!(end(&mut desk, &halves[count - 1], COMMIT).code.0, 0);
    assert_eq!(end(&mut desk, &halves[count - 1], COMMIT).code.0, 1);
    let mut seen = BTreeMap::new();
    for _ in 0..20 {
        join(&mut desk, PRODUCER);
        run_ms(&mut desk, 10_000);
        for asked in take_checks(&mut desk) {
            *seen.entry(asked.body.clone()).or_insert(0) += 1;
            start_end(&mut desk, &asked.half, ROLLBACK, true, FLAG_ONE_WAY);
        }
        desk.turn();
    }
    assert_eq!(seen.len(), count - 1, "all but the decided one");
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    assert_eq!(bodies(&mut desk), [format!("h{}", count - 1)]);
    assert_eq!(desk.broker.transactions.in_memory(), 0);
}

/// Old undecided ones don't keep the start of the scan back for ever.
#[test]
fn the_stretch_is_bounded_while_a_group_is_away() {
    let mut desk = Desk::new();
    let properties = PROPERTIES.replace("PG\u{2}", "AWAY\u{2}");
    begin_with(&mut desk, &properties, "away");
    for n in 0..3 * HALVES_STRETCH_MAX {
        let half = begin(&mut desk, &n.to_string());
        end(&mut desk, &half, ROLLBACK);
        let state = &desk.broker.transactions;
        assert!(state.tail - state.low() <= HALVES_STRETCH_MAX + 1, "{n}");
    }
    let records = bodies_of(&mut desk, HALF_TOPIC, 0);
    let copies = records.iter().filter(|body| *body == "away").count();
    assert!((3..=5).contains(&copies), "{copies} copies");
    let state = &desk.broker.transactions;
    assert_eq!(state.undecided.len(), 1);
}

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Sources: apache/rocketmq#544 (G2), #9500 (G3): every half message ends committed, rolled back or given up, whatever
/// happens in between; what was answered as committed is delivered once, what was rolled back never.
#[test]
fn every_half_message_ends_one_way() {
    for seed in 1..=8_u64 {
        let mut life = Life {
            desk: Desk::open(Life::config(), Life::store(seed)),
            seed,
            dice: seed,
            halves: Vec::new(),
            decided: BTreeMap::new(),
        };
        while life.halves.len() < 120 {
            life = life.step();
        }
        life.end();
    }
}

/// A broker, its producers, and what they were told.
struct Life {
    desk: Desk,
    seed: u64,
    dice: u64,
    halves: Vec<(String, Begun)>,
    decided: BTreeMap<String, i32>,
}

impl Life {
    fn store(seed: u64) -> StoreConfig {
        StoreConfig {
            tail_cache_bytes: if seed.is_multiple_of(2) { 0 } else { 64 << 20 },
            ..store_config()
        }
    }

    fn config() -> BrokerConfig {
        let mut config = broker_config();
        config.transactions.checks_max = 2;
        config
    }

    fn pick(&mut self, of: u64) -> u64 {
        random(&mut self.dice) % of
    }

    fn step(mut self) -> Self {
        let asked = connection(7);
        match self.pick(12) {
            0..=5 => self.begin(),
            6..=8 if !self.halves.is_empty() => {
                let place = self.pick(self.halves.len() as u64);
                let (body, half) = self.halves[place as usize].clone();
                let decision = [COMMIT, ROLLBACK][self.pick(2) as usize];
                self.decide(&body, &half, decision, false);
            }
            9 => {
                join(&mut self.desk, asked);
                let ms = self.pick(20_000);
                run_ms(&mut self.desk, ms);
                for asked in take_checks(&mut self.desk) {
                    let decision = [COMMIT, ROLLBACK, 0][self.pick(3) as usize];
                    if decision != 0 {
                        self.decide(&asked.body, &asked.half, decision, true);
                    }
                }
            }
            10 => self.desk.close(asked),
            11 if self.pick(4) == 0 => {
                self.desk = self.desk.killed(Self::config(), Self::store(self.seed));
                run_ms(&mut self.desk, 10);
            }
            _ => {
                let ms = self.pick(3000);
                run_ms(&mut self.desk, ms);
            }
        }
        self
    }

    fn begin(&mut self) {
        let body = format!("h{}", self.halves.len());
        let immunity = self.pick(40);
        let properties = match self.pick(3) {
            0 => format!("{PROPERTIES}CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}{immunity}\u{2}"),
            _ => PROPERTIES.to_owned(),
        };
        let half = begin_with(&mut self.desk, &properties, &body);
        self.halves.push((body, half));
    }

    /// Decides and compares with what was decided before.
    fn decide(&mut self, body: &str, half: &Begun, decision: i32, is_check: bool) {
        let seed = self.seed;
        let opaque = start_end(&mut self.desk, half, decision, is_check, 0);
        match answer_of(&mut self.desk, opaque).code.0 {
            0 => {
                let before = self.decided.insert(body.to_owned(), decision);
                assert_eq!(before, None, "seed {seed}: {body} was decided twice");
            }
            1 => {
                let given_up = bodies_of(&mut self.desk, CHECK_MAX_TOPIC, 0);
                let is_over = self.decided.contains_key(body) || given_up.iter().any(|b| b == body);
                assert!(is_over, "seed {seed}: {body} is refused, but undecided");
            }
            604 => assert!(!is_check),
            code => panic!("seed {seed}: {code}"),
        }
    }

    /// Nobody decides any more.
    fn end(mut self) {
        let (mut desk, seed) = (self.desk, self.seed);
        for _ in 0..12 {
            join(&mut desk, connection(6));
            run_ms(&mut desk, 40_000);
            desk.calls.clear();
        }
        let committed = bodies(&mut desk);
        let given_up = bodies_of(&mut desk, CHECK_MAX_TOPIC, 0);
        for (body, _) in self.halves.drain(..) {
            let delivered = committed.iter().filter(|b| **b == body).count();
            let left = given_up.iter().filter(|b| **b == body).count();
            let expected = match self.decided.get(&body) {
                Some(&COMMIT) => (1, 0),
                Some(_) => (0, 0),
                None => (0, 1),
            };
            assert_eq!((delivered, left), expected, "seed {seed}, {body}");
        }
        let is_both = !committed.is_empty() && !given_up.is_empty();
        assert!(is_both, "seed {seed} shows too little");
        assert_eq!(desk.broker.transactions.in_memory(), 0, "seed {seed}");
    }
}

#[test]
fn a_check_has_the_whole_message() {
    let mut desk = Desk::new();
    join(&mut desk, PRODUCER);
    begin(&mut desk, "x");
    run_ms(&mut desk, 6010);
    let half = desk.pull(&Pulling {
        topic: HALF_TOPIC,
        offset: 1,
        ..Pulling::default()
    });
    let stored = body_bytes(&half);
    let call = desk.calls.pop().unwrap();
    // The same but for the topic, its length and that of the record, and the queue.
    assert_eq!(
        call.call.body.len() + HALF_TOPIC.len(),
        stored.len() + "T".len()
    );
}
