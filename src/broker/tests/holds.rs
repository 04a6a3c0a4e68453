//! Holds: woken by the arrival, ended at their deadline, never stranded, each answered once.

use super::pulls::{cold_desk, fill};
use super::*;
use crate::broker::pull::PullRequest;
use crate::ids::{QueueIndex, QueueOffset};
use crate::limits::{HOLD_MS_MAX, HOLDS_MAX};
use crate::stats::Asked;
use std::rc::Rc;

/// A pull that may be held.
fn waiting<'a>() -> Pulling<'a> {
    Pulling {
        sys_flag: SUBSCRIPTION | SUSPEND,
        ..Pulling::default()
    }
}

/// A desk whose queue 0 of T has one message, and the pull that waits for the second.
fn desk_with_one() -> (Desk, Pulling<'static>) {
    let mut desk = Desk::new();
    desk.send("T", 0, "A", b"first");
    (
        desk,
        Pulling {
            offset: 1,
            ..waiting()
        },
    )
}

// ---- waking ----

/// Source: apache/rocketmq#7358. A message lands before, between or after all steps of a pull: however the steps of
/// the two interleave, the pull is answered with it, in the turn that makes it visible.
#[test]
fn no_interleaving_of_send_and_pull_loses_the_wake() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Step {
        Append,
        Seal,
        Complete,
        Deliver,
    }
    use Step::*;
    let one = [Append, Seal, Complete, Deliver];
    let two_at_once = [Append, Append, Seal, Complete, Deliver];
    let overlapping = [
        Append, Seal, Append, Complete, Deliver, Seal, Complete, Deliver,
    ];
    for flush in [ASYNC, FlushMode::Sync] {
        for steps in [&one[..], &two_at_once, &overlapping] {
            for place in 0..=steps.len() {
                let mut desk = Desk::open(
                    broker_config(),
                    StoreConfig {
                        flush,
                        ..store_config()
                    },
                );
                desk.send("T", 0, "", b"first");
                let mut opaque = None;
                for (index, step) in steps.iter().enumerate() {
                    if index == place {
                        opaque = Some(desk.start_pull(&Pulling {
                            offset: 1,
                            ..waiting()
                        }));
                    }
                    desk.io.hold(true);
                    match step {
                        Append => {
                            desk.start_send(&Sending::default());
                        }
                        Seal => {
                            let now = desk.io.now();
                            desk.store.seal(now, &mut desk.io);
                        }
                        Complete => {
                            desk.io.hold(false);
                            desk.settle();
                        }
                        Deliver => desk.deliver(),
                    }
                    if *step == Deliver {
                        desk.check_holds();
                    }
                }
                desk.io.hold(false);
                let opaque = opaque.unwrap_or_else(|| {
                    desk.start_pull(&Pulling {
                        offset: 1,
                        ..waiting()
                    })
                });
                let context = format!("{flush:?} {steps:?} pull before step {place}");
                let response = desk
                    .take(opaque)
                    .unwrap_or_else(|| panic!("stranded: {context}"));
                let found = messages(&response);
                assert_eq!(found[0].0, 1, "{context}");
                assert!(desk.take(opaque).is_none(), "one answer: {context}");
                assert!(desk.broker.holds.is_empty());
            }
        }
    }
}

/// Sources: mxsm/rocketmq-rust#837, #759, #746: every wake ends in exactly one response with the right opaque.
#[test]
fn every_wake_ends_in_one_answer_to_the_right_request() {
    let (mut desk, pull) = desk_with_one();
    let opaques: Vec<_> = (1..6)
        .map(|index| {
            desk.start_pull(&Pulling {
                from: connection(index),
                ..pull
            })
        })
        .collect();
    assert!(desk.answers.is_empty());
    assert_eq!(desk.broker.holds.len(), 5);
    desk.start_send(&Sending {
        body: b"second",
        ..Sending::default()
    });
    desk.turn();
    assert_eq!(desk.answers.len(), 6, "five pulls and the send");
    for (index, opaque) in (1..6).zip(opaques) {
        let place = desk
            .answers
            .iter()
            .position(|a| a.opaque == opaque)
            .unwrap();
        let answered = desk.answers.remove(place);
        assert_eq!(answered.connection, connection(index));
        assert_eq!(state(&answered.response), (0, "FOUND", 2));
        assert_eq!(messages(&answered.response), [(1, "second".to_owned())]);
    }
    assert_eq!((desk.counters.holds_woken, desk.counters.holds_now), (5, 0));
    desk.pass_ms(60_000);
    assert_eq!(
        desk.answers.len(),
        1,
        "nothing but the send's answer is left"
    );
}

#[test]
fn one_arrival_shares_its_bytes_among_all_that_it_wakes() {
    let (mut desk, pull) = desk_with_one();
    for index in 0..3 {
        let group = format!("G{index}");
        desk.start_pull(&Pulling {
            group: &group,
            ..pull
        });
    }
    desk.start_send(&Sending::default());
    desk.turn();
    let pointers: Vec<_> = desk
        .answers
        .iter()
        .filter_map(|answered| match &answered.response.body {
            Body::Stored { segments, .. } => Some(segments[0].as_ptr()),
            _ => None,
        })
        .collect();
    assert_eq!(pointers.len(), 3);
    assert!(pointers.iter().all(|pointer| *pointer == pointers[0]));
}

#[test]
fn a_wake_brings_all_that_came_in_the_turn() {
    let (mut desk, pull) = desk_with_one();
    let opaque = desk.start_pull(&Pulling { max: 3, ..pull });
    for n in 0..5 {
        desk.start_send(&Sending {
            body: &[b'0' + n],
            ..Sending::default()
        });
    }
    desk.turn();
    let response = desk.take(opaque).unwrap();
    assert_eq!(messages(&response).len(), 3, "as many as asked");
    assert_eq!(pulled(&response).next_begin_offset, 4);
    assert_eq!(pulled(&response).max_offset, 6);
}

#[test]
fn holds_of_an_empty_queue_wait_for_its_first_message() {
    let mut desk = Desk::new();
    desk.send("T", 1, "", b"makes the topic");
    let opaque = desk.start_pull(&waiting());
    assert!(desk.take(opaque).is_none());
    desk.send("T", 1, "", b"another queue");
    assert!(desk.take(opaque).is_none());
    desk.send("T", 0, "", b"x");
    assert_eq!(messages(&desk.take(opaque).unwrap()), [(0, "x".to_owned())]);
}

/// The wake is bound to visibility, whatever the flush mode (apache/rocketmq#8239, #10615).
#[test]
fn in_sync_flush_a_hold_wakes_when_its_message_is_durable() {
    let mut desk = Desk::open(
        broker_config(),
        StoreConfig {
            flush: FlushMode::Sync,
            ..store_config()
        },
    );
    desk.send("T", 0, "", b"first");
    let opaque = desk.start_pull(&Pulling {
        offset: 1,
        ..waiting()
    });
    desk.start_send(&Sending::default());
    desk.io.hold(true);
    let now = desk.io.now();
    desk.store.seal(now, &mut desk.io);
    let mut completions = Vec::new();
    desk.io.complete(0, &mut completions);
    for completion in completions {
        desk.store
            .on_completion(completion, now, &mut desk.io, &mut Vec::new());
    }
    desk.deliver();
    assert!(desk.take(opaque).is_none(), "written, not flushed");
    desk.io.hold(false);
    desk.turn();
    assert_eq!(messages(&desk.take(opaque).unwrap()).len(), 1);
}

// ---- filters ----

/// Sources: alibaba/RocketMQ#292, apache/rocketmq#8472: what doesn't match moves the cursor and wakes nobody; what
/// matches behind any number of such messages wakes at once.
#[test]
fn a_filter_that_does_not_match_moves_the_cursor() {
    let (mut desk, pull) = desk_with_one();
    let opaque = desk.start_pull(&Pulling {
        expression: "B || C",
        ..pull
    });
    for _ in 0..3 {
        desk.send("T", 0, "A", b"not wanted");
    }
    let hold = desk.broker.holds.iter().next().unwrap();
    assert_eq!((hold.offset, hold.cursor), (QueueOffset(1), QueueOffset(4)));
    assert_eq!(
        hold.refused,
        Some((QueueOffset(3), 65)),
        "the last message and its tags code"
    );
    assert_eq!((hold.group, hold.topic, hold.queue_id), ("G", "T", 0));
    assert_eq!(
        (hold.connection, hold.expression),
        (connection(1), "B || C")
    );
    assert_eq!(desk.counters.holds_woken, 0);
    desk.send("T", 0, "C", b"wanted");
    assert_eq!(
        messages(&desk.take(opaque).unwrap()),
        [(4, "wanted".to_owned())]
    );
}

#[test]
fn a_match_behind_many_messages_of_one_turn_wakes() {
    let (mut desk, pull) = desk_with_one();
    let opaque = desk.start_pull(&Pulling {
        expression: "B",
        ..pull
    });
    for _ in 0..2500 {
        desk.start_send(&Sending {
            properties: "TAGS\u{1}A\u{2}",
            ..Sending::default()
        });
    }
    desk.start_send(&Sending {
        properties: "TAGS\u{1}B\u{2}",
        ..Sending::default()
    });
    desk.turn();
    assert_eq!(messages(&desk.take(opaque).unwrap())[0].0, 2501);
}

#[test]
fn a_tag_of_the_same_hash_does_not_wake() {
    let (mut desk, pull) = desk_with_one();
    let opaque = desk.start_pull(&Pulling {
        expression: "Aa",
        ..pull
    });
    desk.send("T", 0, "BB", b"other");
    assert!(desk.take(opaque).is_none());
    desk.send("T", 0, "Aa", b"mine");
    assert_eq!(
        messages(&desk.take(opaque).unwrap()),
        [(2, "mine".to_owned())]
    );
}

/// What the filter refuses is told at once on the first look, so that the group's offset moves on; the next pull is
/// parked at the end.
#[test]
fn a_pull_is_parked_only_when_it_has_seen_the_end() {
    let (mut desk, pull) = desk_with_one();
    let rare = Pulling {
        expression: "B",
        offset: 0,
        ..pull
    };
    assert_eq!(state(&desk.pull(&rare)), (20, "NO_MATCHED_MESSAGE", 1));
    let opaque = desk.start_pull(&Pulling { offset: 1, ..rare });
    desk.turn();
    assert!(desk.take(opaque).is_none());
}

// ---- deadlines ----

/// Source: apache/rocketmq#8179: the client's time is honoured, to the microsecond of the loop's clock.
#[test]
fn a_hold_ends_at_its_deadline() {
    for (asked_ms, held_ms) in [
        (1, 1),
        (1000, 1000),
        (15_000, 15_000),
        (20_000, 20_000),
        (HOLD_MS_MAX as i64, HOLD_MS_MAX),
        (60_000, HOLD_MS_MAX),
        (i64::MAX, HOLD_MS_MAX),
    ] {
        let (mut desk, pull) = desk_with_one();
        let start = desk.io.now();
        let opaque = desk.start_pull(&Pulling {
            suspend_ms: asked_ms,
            ..pull
        });
        assert_eq!(
            desk.broker.holds.next_deadline(),
            Some(start.after_ms(held_ms))
        );
        desk.io.set_now(Now {
            monotonic_us: start.after_ms(held_ms) - 1,
            ..start
        });
        desk.expire();
        assert!(desk.take(opaque).is_none(), "a microsecond before");
        desk.io.set_now(Now {
            monotonic_us: start.after_ms(held_ms),
            ..start
        });
        desk.expire();
        let response = desk.take(opaque).unwrap();
        assert_eq!(state(&response), (19, "OFFSET_OVERFLOW_ONE", 1));
        let header = pulled(&response);
        assert_eq!((header.min_offset, header.max_offset), (0, 1));
        assert_eq!(desk.broker.holds.next_deadline(), None);
        assert_eq!(
            (desk.counters.holds_expired, desk.counters.holds_woken),
            (1, 0)
        );
    }
}

/// Source: redpanda-data/redpanda#1115: parked means parked, no empty answers before the deadline.
#[test]
fn an_idle_queue_answers_nothing_early() {
    let (mut desk, pull) = desk_with_one();
    let opaque = desk.start_pull(&Pulling {
        suspend_ms: 20_000,
        ..pull
    });
    for second in 0..20 {
        assert!(desk.take(opaque).is_none(), "after {second} s");
        desk.send("T", 1, "A", b"another queue");
        desk.send("Other", 0, "A", b"another topic");
        desk.pass_ms(1000);
    }
    assert_eq!(desk.take(opaque).unwrap().code.0, 19);
}

#[test]
fn who_does_not_ask_to_wait_is_answered_at_once() {
    let (mut desk, pull) = desk_with_one();
    for pulling in [
        Pulling {
            sys_flag: SUBSCRIPTION,
            ..pull
        },
        Pulling {
            suspend_ms: 0,
            ..pull
        },
        Pulling {
            suspend_ms: -1,
            ..pull
        },
    ] {
        assert_eq!(state(&desk.pull(&pulling)), (19, "OFFSET_OVERFLOW_ONE", 1));
    }
    assert_eq!(desk.counters.holds_parked, 0);
    // Offsets out of range are told, not waited for.
    for offset in [-1, 2] {
        assert_eq!(desk.pull(&Pulling { offset, ..pull }).code.0, 21);
    }
    // A one-way pull has nobody to wait.
    pull.with_fields(|fields| desk.start_flagged(connection(1), 11, fields, &[], FLAG_ONE_WAY));
    assert!(desk.broker.holds.is_empty());
}

#[test]
fn without_long_polling_a_hold_is_short() {
    let config = BrokerConfig {
        long_polling: false,
        short_polling_ms: 700,
        ..broker_config()
    };
    let mut desk = Desk::open(config, store_config());
    desk.send("T", 0, "", b"x");
    let opaque = desk.start_pull(&Pulling {
        offset: 1,
        ..waiting()
    });
    desk.pass_ms(699);
    assert!(desk.take(opaque).is_none());
    desk.pass_ms(1);
    assert_eq!(desk.take(opaque).unwrap().code.0, 19);
}

#[test]
fn a_hold_whose_filter_refused_messages_ends_with_its_cursor() {
    let (mut desk, pull) = desk_with_one();
    let opaque = desk.start_pull(&Pulling {
        expression: "B",
        suspend_ms: 1000,
        ..pull
    });
    desk.send("T", 0, "A", b"not wanted");
    desk.pass_ms(1000);
    assert_eq!(
        state(&desk.take(opaque).unwrap()),
        (20, "NO_MATCHED_MESSAGE", 2)
    );
}

/// Source: apache/rocketmq#8485: holds cost nothing while nothing happens: no timer is due before the first of them
/// ends.
#[test]
fn ten_thousand_idle_holds_set_one_timer() {
    let (mut desk, pull) = desk_with_one();
    for n in 0..10_000_u32 {
        let suspend_ms = 5000 + i64::from(n * 7919 % 10_000);
        desk.start_pull(&Pulling {
            from: connection(n % 100),
            suspend_ms,
            ..pull
        });
    }
    assert_eq!(desk.counters.holds_now, 10_000);
    let start = desk.io.now();
    assert_eq!(
        desk.broker.holds.next_deadline(),
        Some(start.after_ms(5000))
    );
    let mut answered = 0;
    for ms in (5000..15_000).step_by(250) {
        desk.io.set_now(Now {
            monotonic_us: start.after_ms(ms),
            ..start
        });
        desk.expire();
        let expected = (ms - 5000 + 1) as usize;
        answered += desk.answers.drain(..).len();
        assert_eq!(answered, expected, "after {ms} ms");
    }
}

// ---- ends of other kinds ----

#[test]
fn the_holds_of_a_closed_connection_are_dropped() {
    let (mut desk, pull) = desk_with_one();
    for from in [connection(1), connection(2), connection(1)] {
        desk.start_pull(&Pulling { from, ..pull });
    }
    desk.close(connection(1));
    assert_eq!(desk.broker.holds.len(), 1);
    // The slot is used again by another connection.
    let again = ConnectionId {
        index: 1,
        generation: 2,
    };
    let opaque = desk.start_pull(&Pulling {
        from: again,
        ..pull
    });
    desk.close(connection(1));
    assert_eq!(
        desk.broker.holds.len(),
        2,
        "the old connection has nothing left"
    );
    desk.start_send(&Sending::default());
    desk.turn();
    assert_eq!(desk.take(opaque).unwrap().code.0, 0);
    assert!(
        desk.answers
            .iter()
            .all(|answered| answered.connection != connection(1))
    );
}

#[test]
fn a_deleted_topic_answers_its_holds() {
    let (mut desk, pull) = desk_with_one();
    let opaques = [0, 1].map(|queue_id| {
        let offset = i64::from(queue_id == 0);
        desk.start_pull(&Pulling {
            queue_id,
            offset,
            ..pull
        })
    });
    desk.send("Other", 0, "", b"x");
    let other = desk.start_pull(&Pulling {
        topic: "Other",
        ..pull
    });
    assert_eq!(
        desk.call(215, &[("topic", "T")], &[]).code,
        ResponseCode::SUCCESS
    );
    for opaque in opaques {
        assert_eq!(
            desk.take(opaque).unwrap().code,
            ResponseCode::TOPIC_NOT_EXIST
        );
    }
    assert!(desk.take(other).is_none());
    assert_eq!(desk.broker.holds.len(), 1);
    // A topic of the same name made later is another one.
    assert_eq!(desk.send("T", 0, "", b"new").queue_offset, 0);
    assert_eq!(
        messages(&desk.pull(&Pulling::default())),
        [(0, "new".to_owned())]
    );
}

#[test]
fn a_stopping_broker_answers_all_holds() {
    let (mut desk, pull) = desk_with_one();
    let opaques: Vec<_> = (0..3).map(|_| desk.start_pull(&pull)).collect();
    desk.begin_stop();
    for opaque in opaques {
        assert_eq!(
            state(&desk.take(opaque).unwrap()),
            (19, "OFFSET_OVERFLOW_ONE", 1)
        );
    }
    assert!(desk.broker.holds.is_empty());
}

#[test]
fn at_the_limit_a_pull_is_answered_instead_of_held() {
    let mut holds = crate::broker::holds::Holds::default();
    let mut counters = Counters::default();
    let subscription = Rc::new(filter::Subscription {
        topic: "T".to_owned(),
        expression: "*".to_owned(),
        expression_type: "TAG".to_owned(),
        version: 0,
        filter: filter::Filter::All,
    });
    let request = PullRequest {
        connection: connection(0),
        opaque: 0,
        encoding: Encoding::Json,
        asked: Asked {
            code: 11,
            since_us: 0,
        },
        group: "G".into(),
        topic: "T".into(),
        queue_id: 0,
        queue: QueueIndex(0),
        offset: QueueOffset(0),
        cursor: QueueOffset(0),
        messages_max: 32,
        subscription,
        suspend: true,
        deadline_us: 0,
        held_since_us: None,
        refused: None,
    };
    for n in 0..HOLDS_MAX {
        let parked = holds.park(
            PullRequest {
                connection: connection(n as u32 % 1000),
                deadline_us: n as u64,
                ..request.clone()
            },
            &mut counters,
        );
        assert!(parked.is_ok());
    }
    assert!(holds.park(request, &mut counters).is_err());
    assert_eq!(
        (holds.len(), counters.holds_now),
        (HOLDS_MAX, HOLDS_MAX as u64)
    );
    holds.drop_connection(connection(7), &mut counters);
    assert_eq!(holds.len(), HOLDS_MAX - HOLDS_MAX / 1000);
}

// ---- cold holds ----

/// An arrival whose bytes have left memory before its hold was evaluated, a close or a deletion in the middle of the
/// read: each of these ends in the right answer, or in none.
#[test]
fn a_hold_that_has_to_read_comes_back() {
    for ending in ["found", "refused", "closed", "deleted"] {
        let mut desk = cold_desk();
        fill(&mut desk, 3, "A");
        let expression = if ending == "refused" { "B" } else { "A" };
        let opaque = desk.start_pull(&Pulling {
            offset: 3,
            expression,
            ..waiting()
        });
        assert!(desk.take(opaque).is_none());
        assert_eq!(desk.broker.holds.len(), 1);
        // The message goes to disk and out of memory before anybody looks at it.
        desk.start_send(&Sending {
            properties: "TAGS\u{1}A\u{2}",
            ..Sending::default()
        });
        for _ in 0..4 {
            let now = desk.io.now();
            desk.store.seal(now, &mut desk.io);
            desk.settle();
            desk.io.advance_ms(3_000);
        }
        desk.io.hold(true);
        desk.deliver();
        let is_reading = desk.broker.holds.is_empty();
        match ending {
            "closed" => desk.close(connection(1)),
            "deleted" => {
                desk.call(215, &[("topic", "T")], &[]);
            }
            _ => {}
        }
        desk.io.hold(false);
        desk.turn();
        assert!(is_reading, "the bytes were cold: {ending}");
        let response = desk.take(opaque);
        match ending {
            "found" => assert_eq!(messages(&response.unwrap())[0].0, 3),
            "deleted" => assert_eq!(response.unwrap().code.0, 17),
            "refused" => {
                assert!(response.is_none());
                assert_eq!(
                    desk.broker.holds.iter().next().unwrap().cursor,
                    QueueOffset(4)
                );
                desk.send("T", 0, "B", b"wanted");
                assert_eq!(messages(&desk.take(opaque).unwrap())[0].0, 4);
            }
            _ => {}
        }
    }
}
