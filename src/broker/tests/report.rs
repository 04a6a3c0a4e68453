//! What whoever watches is told of holds and lags.

use super::*;
use crate::broker::report;
use crate::limits::{HOLDS_EXAMINED_MAX, LAG_QUEUES_MAX};
use crate::stats::report::{HoldPage, HoldsWanted, Lags};

/// A context over the fields of a desk, with nothing fetched.
macro_rules! context {
    ($desk:ident, $none:expr) => {
        &mut Context {
            store: &mut $desk.store,
            now: $desk.io.now(),
            fetched: $none,
            first_run: true,
            effects: &mut $desk.effects,
            counters: &mut $desk.counters,
        }
    };
}

fn page(desk: &mut Desk, wanted: &HoldsWanted) -> HoldPage {
    let none = Fetched::default();
    let cx = context!(desk, &none);
    report::holds(&desk.broker, wanted, 7, |_| None, cx)
}

fn lags(desk: &mut Desk) -> Lags {
    let none = Fetched::default();
    let cx = context!(desk, &none);
    report::lags(&desk.broker, cx)
}

fn all() -> HoldsWanted {
    HoldsWanted {
        rows_max: 10_000,
        ..HoldsWanted::default()
    }
}

fn park(desk: &mut Desk, group: &str, expression: &str, offset: i64) {
    desk.start_pull(&Pulling {
        group,
        offset,
        expression,
        sys_flag: SUBSCRIPTION | SUSPEND,
        ..Pulling::default()
    });
}

fn heartbeat(desk: &mut Desk, group: &str, topics: &[String]) {
    let subscriptions = topics
        .iter()
        .map(|topic| format!(r#"{{"topic":"{topic}","subString":"*","subVersion":1}}"#));
    let body = format!(
        r#"{{"clientID":"c","producerDataSet":[],"consumerDataSet":[{{"groupName":"{group}","subscriptionDataSet":[{}]}}]}}"#,
        subscriptions.collect::<Vec<_>>().join(",")
    );
    assert_eq!(desk.call(34, &[], body.as_bytes()).code.0, 0);
}

#[test]
fn every_hold_is_on_one_page() {
    let mut desk = Desk::new();
    desk.send("T", 0, "A", b"0");
    let count = 2 * HOLDS_EXAMINED_MAX + 7;
    for n in 0..count {
        park(&mut desk, if n % 3 == 0 { "G" } else { "H" }, "*", 1);
    }
    let (mut wanted, mut seen, mut pages) = (all(), 0, 0);
    loop {
        let page = page(&mut desk, &wanted);
        assert!(page.matching <= HOLDS_EXAMINED_MAX as u64);
        assert_eq!(page.rows.len() as u64, page.matching);
        seen += page.rows.len();
        pages += 1;
        match page.next {
            Some(next) => wanted.from = next,
            None => break,
        }
    }
    assert_eq!((seen, desk.broker.holds.len()), (count, count));
    assert!(pages >= 3, "{pages}");
    let few = HoldsWanted {
        group: Some("G".to_owned()),
        rows_max: 5,
        ..HoldsWanted::default()
    };
    let page = page(&mut desk, &few);
    assert_eq!(page.rows.len(), 5);
    assert_eq!(
        page.matching,
        HOLDS_EXAMINED_MAX as u64 / 3 + 1,
        "all are counted"
    );
    assert!(page.rows.iter().all(|row| row.group == "G"));
}

#[test]
fn a_filter_says_why_it_refused() {
    for (expression, tag, why) in [
        (
            "B || C",
            "A",
            r#"its tag is "A", which is none of "B || C""#,
        ),
        ("B || C", "", r#"it has no tag, which is none of "B || C""#),
        (
            "Aa",
            "BB",
            r#"its tag is "BB", which has the hash of "Aa" and is not the same"#,
        ),
    ] {
        let mut desk = Desk::new();
        desk.send("T", 0, "A", b"0");
        park(&mut desk, "G", expression, 1);
        assert!(page(&mut desk, &all()).rows[0].last_refused.is_none());
        desk.send("T", 0, tag, b"1");
        desk.io.advance_ms(250);
        let rows = page(&mut desk, &all()).rows;
        let refused = rows[0].last_refused.as_ref().expect("it was refused");
        assert_eq!((refused.offset, refused.why.as_str()), (1, why));
        assert_eq!(
            (rows[0].shard, rows[0].asked_offset, rows[0].examined_to),
            (7, 1, 2)
        );
        assert_eq!(rows[0].waited_ms, 250);
        assert_eq!(
            rows[0].deadline - rows[0].since,
            rows[0].waited_ms + rows[0].left_ms
        );
    }
}

#[test]
fn a_lag_is_what_lies_behind_the_committed_offset() {
    let mut desk = Desk::new();
    heartbeat(&mut desk, "G", &["T".to_owned(), "Absent".to_owned()]);
    for body in [b"0", b"1", b"2", b"3"] {
        desk.send("T", 1, "A", body);
        desk.io.advance_ms(1_000);
    }
    let pull = Pulling {
        queue_id: 1,
        max: 3,
        sys_flag: SUBSCRIPTION,
        ..Pulling::default()
    };
    let expect = |desk: &mut Desk, messages, in_flight, ready, latency_ms, queueing_ms| {
        let lags = lags(desk);
        assert_eq!((lags.rows.len(), lags.left_out), (1, 0));
        let row = &lags.rows[0];
        assert_eq!((row.group.as_str(), row.topic.as_str()), ("G", "T"));
        assert_eq!(
            (row.messages, row.in_flight, row.ready),
            (messages, in_flight, ready)
        );
        assert_eq!((row.latency_ms, row.queueing_ms), (latency_ms, queueing_ms));
    };
    expect(&mut desk, 0, 0, 0, 0, 0);
    let commit = |desk: &mut Desk, offset: &str| {
        let fields = [
            ("consumerGroup", "G"),
            ("topic", "T"),
            ("queueId", "1"),
            ("commitOffset", offset),
        ];
        assert_eq!(desk.call(15, &fields, &[]).code.0, 0);
    };
    commit(&mut desk, "0");
    expect(&mut desk, 4, 0, 4, 4_000, 4_000);
    assert_eq!(messages(&desk.pull(&pull)).len(), 3);
    expect(&mut desk, 4, 3, 1, 4_000, 1_000);
    commit(&mut desk, "2");
    expect(&mut desk, 2, 1, 1, 2_000, 1_000);
    commit(&mut desk, "4");
    expect(&mut desk, 0, 0, 0, 0, 0);
}

#[test]
fn lags_beyond_the_limit_are_counted() {
    let mut desk = Desk::new();
    let fits = LAG_QUEUES_MAX / 1024;
    let topics: Vec<String> = (0..fits + 2).map(|n| format!("T{n}")).collect();
    for topic in &topics {
        let fields = [
            ("topic", topic.as_str()),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", "1024"),
            ("writeQueueNums", "1024"),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        assert_eq!(desk.call(17, &fields, &[]).code.0, 0);
    }
    heartbeat(&mut desk, "G", &topics);
    let lags = lags(&mut desk);
    assert_eq!((lags.rows.len(), lags.left_out), (fits, 2));
}
