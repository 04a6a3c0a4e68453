//! Pulls: every check of `semantics.md` section 4, every state of section 5, filters, limits, cold data.

use super::*;
use crate::limits::{PULL_BYTES_MAX, PULL_COLD_BYTES_MAX, PULL_ENTRIES_EXAMINED_MAX};
use crate::protocol::hash;

fn check_refused(desk: &mut Desk, cases: &[(Pulling<'_>, i32, &str)]) {
    for (pulling, code, text) in cases {
        let response = desk.pull(pulling);
        assert_eq!(response.code.0, *code, "{response:?}");
        assert!(remark(&response).contains(text), "{response:?}");
    }
}

/// A heartbeat of a consumer, as a Java client sends it.
pub fn heartbeat(
    desk: &mut Desk,
    from: ConnectionId,
    group: &str,
    subscriptions: &[(&str, &str, i64)],
) {
    heartbeat_of(desk, from, group, "CLUSTERING", subscriptions);
}

fn heartbeat_of(
    desk: &mut Desk,
    from: ConnectionId,
    group: &str,
    model: &str,
    subscriptions: &[(&str, &str, i64)],
) {
    let sets: Vec<String> = subscriptions
        .iter()
        .map(|(topic, expression, version)| {
            format!(
                r#"{{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"{expression}","subVersion":{version},"tagsSet":[],"topic":"{topic}"}}"#
            )
        })
        .collect();
    let body = format!(
        r#"{{"clientID":"c@{}","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"{group}","messageModel":"{model}","subscriptionDataSet":[{}],"unitMode":false}}],"producerDataSet":[]}}"#,
        from.index,
        sets.join(",")
    );
    let opaque = desk.start(from, RequestCode::HEART_BEAT.0, &[], body.as_bytes());
    let response = desk.take(opaque).expect("an answer");
    assert_eq!(response.code, ResponseCode::SUCCESS, "{response:?}");
    desk.perform();
}

fn update_topic(desk: &mut Desk, topic: &str, queues: &str, perm: &str) {
    let fields = [
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", queues),
        ("writeQueueNums", queues),
        ("perm", perm),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "false"),
    ];
    assert_eq!(desk.call(17, &fields, &[]).code, ResponseCode::SUCCESS);
}

// ---- checks ----

#[expect(clippy::too_many_lines, reason = "a list of cases")]
#[test]
fn broker_group_and_topic_are_checked_in_order() {
    let pull = Pulling::default();
    let lite = Pulling {
        code: RequestCode::LITE_PULL_MESSAGE,
        ..pull
    };
    let mut blind = Desk::open(
        BrokerConfig {
            permission: 2,
            ..broker_config()
        },
        store_config(),
    );
    check_refused(
        &mut blind,
        &[(
            lite,
            16,
            "the broker[10.0.0.1] pulling message is forbidden",
        )],
    );

    let config = BrokerConfig {
        lite_pull_enable: false,
        auto_create_groups: false,
        ..broker_config()
    };
    let mut desk = Desk::open(config, store_config());
    let tools = Pulling {
        group: "TOOLS_CONSUMER",
        ..pull
    };
    check_refused(
        &mut desk,
        &[
            (
                lite,
                16,
                "the broker[10.0.0.1] for lite pull consumer is forbidden",
            ),
            (pull, 26, "subscription group [G] does not exist"),
            (Pulling { group: "", ..pull }, 26, "does not exist"),
            (tools, 17, "topic[T] not exist, apply first please!"),
        ],
    );
    update_topic(&mut desk, "WriteOnly", "1", "2");
    desk.send("T", 0, "", b"x");
    check_refused(
        &mut desk,
        &[
            (
                Pulling {
                    topic: "WriteOnly",
                    ..tools
                },
                16,
                "the topic[WriteOnly] pulling message is forbidden",
            ),
            (
                Pulling {
                    queue_id: 4,
                    ..tools
                },
                29,
                "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[10.0.0.9:40000]",
            ),
            (
                Pulling {
                    queue_id: -1,
                    ..tools
                },
                29,
                "queueId[-1] is illegal",
            ),
        ],
    );
    assert_eq!(
        desk.pull(&tools).code.0,
        0,
        "tools pull without a heartbeat"
    );
}

#[test]
fn a_group_that_may_not_consume_is_refused() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"x");
    let body = br#"{"groupName":"Off","consumeEnable":false}"#;
    assert_eq!(desk.call(200, &[], body).code, ResponseCode::SUCCESS);
    let body = br#"{"groupName":"NoBroadcast","consumeBroadcastEnable":false}"#;
    assert_eq!(desk.call(200, &[], body).code, ResponseCode::SUCCESS);
    let off = Pulling {
        group: "Off",
        ..Pulling::default()
    };
    let broadcast = Pulling {
        group: "NoBroadcast",
        sys_flag: 0,
        ..Pulling::default()
    };
    heartbeat_of(
        &mut desk,
        connection(1),
        "NoBroadcast",
        "BROADCASTING",
        &[("T", "*", 1)],
    );
    check_refused(
        &mut desk,
        &[
            (off, 16, "subscription group no permission, Off"),
            (
                broadcast,
                16,
                "the consumer group[NoBroadcast] can not consume by broadcast way",
            ),
        ],
    );
}

#[test]
fn subscriptions_are_checked_in_order() {
    let mut desk = Desk::new();
    desk.send("T", 0, "A", b"x");
    let push = Pulling {
        sys_flag: 0,
        expression: "ignored",
        version: 5,
        ..Pulling::default()
    };
    check_refused(
        &mut desk,
        &[(push, 24, "the consumer's group info not exist")],
    );
    heartbeat(&mut desk, connection(1), "G", &[("Other", "*", 5)]);
    check_refused(
        &mut desk,
        &[(push, 24, "the consumer's subscription not exist")],
    );
    heartbeat(&mut desk, connection(1), "G", &[("T", "A", 4)]);
    check_refused(
        &mut desk,
        &[(push, 25, "the consumer's subscription not latest")],
    );
    heartbeat(&mut desk, connection(1), "G", &[("T", "A", 5)]);
    assert_eq!(desk.pull(&push).code.0, 0);
    assert_eq!(
        desk.pull(&Pulling { version: 0, ..push }).code.0,
        0,
        "Go sends 0"
    );
    heartbeat(&mut desk, connection(1), "G", &[("T", "B", 6)]);
    assert_eq!(
        state(&desk.pull(&push)),
        (20, "NO_MATCHED_MESSAGE", 1),
        "the heartbeat's filter counts"
    );
}

/// Sources: apache/rocketmq#310, #8631, #2972: what is off is said together with what to do.
#[test]
fn expressions_that_can_not_be_used_are_refused() {
    let mut desk = Desk::new();
    desk.send("T", 0, "A", b"x");
    let pull = Pulling::default();
    let sql = Pulling {
        expression: "a > 1",
        expression_type: "SQL92",
        ..pull
    };
    check_refused(
        &mut desk,
        &[
            (
                Pulling {
                    expression: "||",
                    ..pull
                },
                23,
                "parse the consumer's subscription failed",
            ),
            (
                sql,
                1,
                "The broker does not support consumer to filter message by SQL92",
            ),
            (sql, 1, "subscribe with tags"),
        ],
    );
    for expression in ["*", "", "A", "A || B"] {
        for _ in 0..2 {
            assert_eq!(
                desk.pull(&Pulling { expression, ..pull }).code.0,
                0,
                "{expression}"
            );
        }
    }
    // A pull of the same group and topic with another expression is another subscription.
    assert_eq!(
        desk.pull(&Pulling {
            expression: "B",
            ..pull
        })
        .code
        .0,
        20
    );
}

#[test]
fn a_missing_field_is_named() {
    let mut desk = Desk::new();
    let response = desk.call(11, &[("consumerGroup", "G"), ("topic", "T")], &[]);
    assert_eq!(
        (response.code.0, remark(&response)),
        (1, "the custom field <queueId> is null")
    );
}

// ---- states ----

#[test]
fn answers_follow_the_table_of_states() {
    let mut desk = Desk::new();
    for body in ["a", "b"] {
        desk.send("T", 0, "A", body.as_bytes());
    }
    let cases = [
        (0, 0, "*", (0, "FOUND", 2)),
        (0, 1, "A", (0, "FOUND", 2)),
        (0, 0, "B", (20, "NO_MATCHED_MESSAGE", 2)),
        (0, 1, "B", (20, "NO_MATCHED_MESSAGE", 2)),
        (0, 2, "*", (19, "OFFSET_OVERFLOW_ONE", 2)),
        (0, 3, "*", (21, "OFFSET_OVERFLOW_BADLY", 2)),
        (0, i64::MAX, "*", (21, "OFFSET_OVERFLOW_BADLY", 2)),
        (0, -1, "*", (21, "OFFSET_TOO_SMALL", 0)),
        (0, i64::MIN, "*", (21, "OFFSET_TOO_SMALL", 0)),
        (1, 0, "*", (19, "NO_MESSAGE_IN_QUEUE", 0)),
        (1, 7, "*", (21, "NO_MESSAGE_IN_QUEUE", 0)),
        (1, -1, "*", (21, "NO_MESSAGE_IN_QUEUE", 0)),
    ];
    for code in [RequestCode::PULL_MESSAGE, RequestCode::LITE_PULL_MESSAGE] {
        for (queue_id, offset, expression, expected) in cases {
            let pulling = Pulling {
                code,
                queue_id,
                offset,
                expression,
                ..Pulling::default()
            };
            let response = desk.pull(&pulling);
            assert_eq!(
                state(&response),
                expected,
                "{queue_id} {offset} {expression}"
            );
            let header = pulled(&response);
            let max = if queue_id == 0 { 2 } else { 0 };
            assert_eq!(
                (header.min_offset, header.max_offset),
                (0, max),
                "in every answer"
            );
            assert_eq!(header.suggest_which_broker_id, 0);
            assert_eq!(
                response.body_bytes() > 0,
                expected.0 == 0,
                "a body with code 0 only"
            );
        }
    }
}

/// The offset that an answer 21 gives is one that the next pull is served at (apache/rocketmq#7740).
#[test]
fn a_corrected_offset_is_accepted() {
    let mut desk = Desk::new();
    for n in 0..5 {
        desk.send("T", 0, "", &[b'0' + n]);
    }
    for offset in [-5, 99] {
        let next = pulled(&desk.pull(&Pulling {
            offset,
            ..Pulling::default()
        }))
        .next_begin_offset;
        let code = desk
            .pull(&Pulling {
                offset: next,
                ..Pulling::default()
            })
            .code
            .0;
        assert!(matches!(code, 0 | 19), "{offset} {next} {code}");
    }
    let next = pulled(&desk.pull(&Pulling {
        queue_id: 2,
        offset: 4,
        ..Pulling::default()
    }))
    .next_begin_offset;
    assert_eq!(
        desk.pull(&Pulling {
            queue_id: 2,
            offset: next,
            ..Pulling::default()
        })
        .code
        .0,
        19
    );
}

#[test]
fn what_is_not_visible_is_not_there() {
    let mut desk = Desk::open(
        broker_config(),
        StoreConfig {
            flush: FlushMode::Sync,
            ..store_config()
        },
    );
    desk.send("T", 0, "", b"flushed");
    desk.io.hold(true);
    desk.start_send(&Sending::default());
    let now = desk.io.now();
    desk.store.seal(now, &mut desk.io);
    let opaque = desk.start_pull(&Pulling::default());
    let response = desk.take(opaque).expect("an answer");
    assert_eq!(
        messages(&response).len(),
        1,
        "apache/rocketmq#8239: only what is durable"
    );
    assert_eq!(pulled(&response).max_offset, 1);
}

// ---- limits of an answer ----

#[test]
fn an_answer_has_as_many_messages_as_asked() {
    let mut desk = Desk::new();
    for n in 0..50 {
        desk.start_send(&Sending {
            body: format!("{n}").as_bytes(),
            ..Sending::default()
        });
    }
    desk.turn();
    for (max, expected) in [(1, 1), (32, 32), (0, 1), (-1, 1), (i32::MAX, 50)] {
        let response = desk.pull(&Pulling {
            max,
            ..Pulling::default()
        });
        let found = messages(&response);
        assert_eq!(
            (found.len(), pulled(&response).next_begin_offset),
            (expected, expected as i64),
            "{max}"
        );
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(at, (offset, body))| at as u64 == *offset && *body == at.to_string())
        );
    }
}

/// Sources: alibaba/RocketMQ#87, alibaba/canal#3731: big messages are consumable, one at a time if need be.
#[test]
fn an_answer_has_a_bounded_size_and_at_least_one_message() {
    let mut desk = Desk::open(broker_config(), big_store_config());
    let big = vec![b'x'; 4 << 20];
    for _ in 0..2 {
        desk.send("T", 0, "", &big);
    }
    let quarter = vec![b'y'; PULL_BYTES_MAX as usize / 4];
    for _ in 0..8 {
        desk.send("T", 1, "", &quarter);
    }
    for offset in 0..2 {
        let response = desk.pull(&Pulling {
            offset,
            ..Pulling::default()
        });
        assert_eq!(state(&response), (0, "FOUND", offset + 1));
        assert!(response.body_bytes() < crate::limits::FRAME_BYTES_MAX as usize);
    }
    let response = desk.pull(&Pulling {
        queue_id: 1,
        ..Pulling::default()
    });
    assert_eq!(messages(&response).len(), 3, "the fourth would be too much");
    assert!(response.body_bytes() <= PULL_BYTES_MAX as usize);
}

#[test]
fn an_answer_shares_the_bytes_of_the_log() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"x");
    let pointer = |desk: &mut Desk, group| {
        let response = desk.pull(&Pulling {
            group,
            ..Pulling::default()
        });
        let Body::Stored { segments, .. } = response.body else {
            panic!("records");
        };
        segments[0].as_ptr()
    };
    assert_eq!(pointer(&mut desk, "G1"), pointer(&mut desk, "G2"));
}

/// Neighbours in the log leave as one slice, so that an answer costs one segment of the send, not one per message.
#[test]
fn neighbours_in_the_log_are_one_segment() {
    let mut desk = Desk::new();
    for (tag, queue_id) in [
        ("A", 0),
        ("A", 0),
        ("B", 0),
        ("A", 0),
        ("A", 1),
        ("A", 0),
        ("A", 0),
    ] {
        let properties = format!("TAGS\u{1}{tag}\u{2}");
        let properties = &*properties;
        desk.start_send(&Sending {
            queue_id,
            properties,
            ..Sending::default()
        });
    }
    desk.turn();
    for (expression, max, segments, count) in [
        ("*", 32, 2, 6),
        ("A", 32, 3, 5),
        ("*", 3, 1, 3),
        ("A", 3, 2, 3),
        ("B", 32, 1, 1),
    ] {
        let response = desk.pull(&Pulling {
            expression,
            max,
            ..Pulling::default()
        });
        assert_eq!(messages(&response).len(), count, "{expression} {max}");
        let Body::Stored {
            segments: found, ..
        } = &response.body
        else {
            panic!("records");
        };
        assert_eq!(found.len(), segments, "{expression} {max}");
    }
    assert_eq!(desk.counters.messages_out, 18);
}

// ---- filters ----

/// Source: alibaba/RocketMQ#292: a group on A ends at the end although the last message is a B.
#[test]
fn unmatched_messages_do_not_stop_a_group() {
    let mut desk = Desk::new();
    for tag in ["A", "A", "B", "A", "B"] {
        desk.send("T", 0, tag, tag.as_bytes());
    }
    let pull = Pulling {
        expression: "A",
        ..Pulling::default()
    };
    let response = desk.pull(&pull);
    assert_eq!(
        messages(&response)
            .iter()
            .map(|(offset, _)| *offset)
            .collect::<Vec<_>>(),
        [0, 1, 3]
    );
    assert_eq!(
        pulled(&response).next_begin_offset,
        5,
        "behind the last B too"
    );
    assert_eq!(
        state(&desk.pull(&Pulling { offset: 4, ..pull })),
        (20, "NO_MATCHED_MESSAGE", 5)
    );
}

/// Source: apache/rocketmq PR #72: "Aa" and "BB" have one hash; a FOUND that the client filters to nothing loses its
/// progress.
#[test]
fn tags_of_one_hash_are_told_apart() {
    assert_eq!(hash::tags_code("Aa"), hash::tags_code("BB"));
    let mut desk = Desk::new();
    desk.send("T", 0, "BB", b"other");
    let pull = Pulling {
        expression: "Aa",
        ..Pulling::default()
    };
    assert_eq!(state(&desk.pull(&pull)), (20, "NO_MATCHED_MESSAGE", 1));
    desk.send("T", 0, "Aa", b"mine");
    assert_eq!(messages(&desk.pull(&pull)), [(1, "mine".to_owned())]);
}

#[test]
fn a_pull_examines_a_bounded_number_of_entries() {
    let mut desk = Desk::new();
    let limit = i64::from(PULL_ENTRIES_EXAMINED_MAX);
    let sending = Sending {
        properties: "TAGS\u{1}A\u{2}",
        ..Sending::default()
    };
    for _ in 0..limit * 2 + 10 {
        desk.start_send(&sending);
    }
    desk.turn();
    desk.send("T", 0, "B", b"last");
    let rare = Pulling {
        expression: "B",
        ..Pulling::default()
    };
    let mut offset = 0;
    for expected in [limit, limit * 2] {
        let response = desk.pull(&Pulling { offset, ..rare });
        assert_eq!(state(&response), (20, "NO_MATCHED_MESSAGE", expected));
        offset = expected;
    }
    assert_eq!(
        messages(&desk.pull(&Pulling { offset, ..rare })),
        [(limit as u64 * 2 + 10, "last".to_owned())]
    );
    // Who asks for more messages may look at more entries.
    let more = Pulling { max: 1024, ..rare };
    assert_eq!(state(&desk.pull(&more)).2, 1024);
}

// ---- committing along ----

#[test]
fn a_pull_commits_what_it_brings_along() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"x");
    let committed = |desk: &Desk| desk.broker.offsets.get("G", "T", 0);
    let pull = Pulling {
        sys_flag: SUBSCRIPTION,
        commit: 1,
        ..Pulling::default()
    };
    desk.pull(&pull);
    assert_eq!(committed(&desk), None, "without the flag");
    let flagged = Pulling {
        sys_flag: SUBSCRIPTION | COMMIT,
        ..pull
    };
    desk.pull(&Pulling {
        commit: -1,
        ..flagged
    });
    assert_eq!(committed(&desk), None, "a client without an offset says -1");
    desk.pull(&flagged);
    assert_eq!(committed(&desk), Some(1));
    desk.pull(&Pulling {
        commit: 0,
        offset: 99,
        ..flagged
    });
    assert_eq!(
        committed(&desk),
        Some(0),
        "also where the answer is 21, and backwards"
    );
    desk.pull(&Pulling {
        commit: 7,
        queue_id: 44,
        ..flagged
    });
    assert_eq!(committed(&desk), Some(0), "not where a check fails");
}

#[test]
fn the_offset_is_committed_once_although_the_pull_runs_twice() {
    let mut desk = cold_desk();
    fill(&mut desk, 100, "A");
    let pull = Pulling {
        sys_flag: SUBSCRIPTION | COMMIT,
        commit: 3,
        ..Pulling::default()
    };
    let opaque = desk.start_pull(&pull);
    assert!(desk.take(opaque).is_none(), "it has to read");
    desk.broker.offsets.commit("G", "T", 0, 50, 0);
    desk.turn();
    assert_eq!(messages(&desk.take(opaque).expect("an answer"))[0].0, 0);
    assert_eq!(
        desk.broker.offsets.get("G", "T", 0),
        Some(50),
        "what was committed meanwhile stays"
    );
}

// ---- cold data ----

/// A desk that keeps nothing in memory but what isn't on disk yet.
pub fn cold_desk() -> Desk {
    let config = StoreConfig {
        tail_cache_bytes: 0,
        entry_cache_bytes: 0,
        ..store_config()
    };
    Desk::open(broker_config(), config)
}

/// Sends messages `0`, `1`, … with a tag, and lets everything go to disk.
pub fn fill(desk: &mut Desk, count: u32, tag: &str) {
    let properties = format!("TAGS\u{1}{tag}\u{2}");
    for n in 0..count {
        desk.start_send(&Sending {
            body: n.to_string().as_bytes(),
            properties: &properties,
            ..Sending::default()
        });
        if n % 50 == 0 {
            desk.turn();
        }
    }
    desk.turn();
    for _ in 0..5 {
        desk.pass_ms(10_000);
    }
    desk.answers.clear();
    desk.reads = 0;
}

#[test]
fn cold_messages_are_read_and_all_delivered() {
    let mut desk = cold_desk();
    fill(&mut desk, 300, "A");
    let (mut offset, mut found) = (0, Vec::new());
    while offset < 300 {
        let response = desk.pull(&Pulling {
            offset,
            expression: "A",
            ..Pulling::default()
        });
        let (code, _, next) = state(&response);
        assert_eq!(code, 0);
        assert!(next > offset);
        found.extend(messages(&response));
        offset = next;
    }
    let expected: Vec<_> = (0..300).map(|n| (n, n.to_string())).collect();
    assert_eq!(found, expected);
    assert!(desk.reads > 0, "the data was cold");
    assert!(
        desk.reads <= 2 * 300_u32.div_ceil(32),
        "an answer costs at most two reads: {}",
        desk.reads
    );
}

#[test]
fn a_filtered_pull_over_cold_data_makes_bounded_progress() {
    let mut desk = cold_desk();
    let limit = PULL_ENTRIES_EXAMINED_MAX;
    fill(&mut desk, limit + 100, "A");
    let rare = Pulling {
        expression: "B",
        ..Pulling::default()
    };
    assert_eq!(
        state(&desk.pull(&rare)),
        (20, "NO_MATCHED_MESSAGE", i64::from(limit))
    );
    assert_eq!(desk.reads, 1, "entries only");
    let offset = i64::from(limit);
    assert_eq!(
        state(&desk.pull(&Pulling { offset, ..rare })).2,
        offset + 100
    );
}

/// Records that only their tag's hash lets through have to be read; a pull does so once, then reports its progress.
#[test]
fn a_pull_does_not_read_for_ever_for_hashes_that_collide() {
    let mut desk = cold_desk();
    fill(&mut desk, 200, "BB");
    let (mut offset, mut pulls) = (0, 0);
    while offset < 200 {
        let before = desk.reads;
        let response = desk.pull(&Pulling {
            offset,
            expression: "Aa",
            ..Pulling::default()
        });
        let (code, text, next) = state(&response);
        assert_eq!((code, text), (20, "NO_MATCHED_MESSAGE"));
        assert!(next > offset);
        assert!(desk.reads - before <= 2);
        offset = next;
        pulls += 1;
    }
    assert!(pulls <= 200_u32.div_ceil(32) + 1, "{pulls}");
}

#[test]
fn cold_messages_of_many_queues_are_read_with_few_reads() {
    let mut desk = cold_desk();
    let body = vec![b'x'; 3000];
    for n in 0..40 {
        for queue_id in 0..4 {
            desk.start_send(&Sending {
                queue_id,
                body: &body[n..],
                ..Sending::default()
            });
        }
        desk.turn();
    }
    fill(&mut desk, 0, "");
    let response = desk.pull(&Pulling {
        queue_id: 2,
        ..Pulling::default()
    });
    let found = messages(&response);
    let bytes = response.body_bytes() as u32;
    assert!(
        found.len() >= 4,
        "messages 12 KB apart are read together: {}",
        found.len()
    );
    assert!(bytes <= PULL_COLD_BYTES_MAX);
    assert_eq!(desk.reads, 2);
}

#[test]
fn a_cold_message_that_is_bigger_than_the_limit_is_read_alone() {
    let mut desk = cold_desk();
    let big = vec![b'x'; PULL_COLD_BYTES_MAX as usize * 3];
    for _ in 0..3 {
        desk.send("T", 0, "", &big);
    }
    fill(&mut desk, 0, "");
    let response = desk.pull(&Pulling::default());
    assert_eq!(messages(&response).len(), 1);
    assert_eq!(pulled(&response).next_begin_offset, 1);
}
