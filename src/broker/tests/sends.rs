//! Sends: every check of `semantics.md` section 3, what is stored, batches.

use super::*;
use crate::limits::PROPERTIES_BYTES_MAX;
use crate::protocol::message::{BatchRecord, parse_offset_message_id};
use crate::testing::sim_io::OpKind;

/// The record of a message as it lies in the log.
pub fn with_record(
    desk: &mut Desk,
    topic: &str,
    queue_id: i32,
    offset: i64,
    check: impl FnMut(&StoredMessage<'_>),
) {
    let response = desk.pull(&Pulling {
        topic,
        queue_id,
        offset,
        max: 1,
        ..Pulling::default()
    });
    assert_eq!(response.code, ResponseCode::SUCCESS, "{response:?}");
    each_message(&response, check);
}

fn properties_of(desk: &mut Desk, topic: &str, offset: i64) -> String {
    let mut properties = String::new();
    with_record(desk, topic, 0, offset, |message| {
        properties.push_str(message.properties)
    });
    properties
}

fn refused(desk: &mut Desk, sending: Sending<'_>) -> (i32, String) {
    let before = desk.counters.sends_refused;
    let appended = desk.counters.messages_in;
    let response = desk.send_message(&sending);
    assert_eq!(desk.counters.sends_refused, before + 1, "{response:?}");
    assert_eq!(desk.counters.messages_in, appended, "nothing was stored");
    (response.code.0, remark(&response).to_owned())
}

fn check_refused(desk: &mut Desk, cases: &[(Sending<'_>, i32, &str)]) {
    for (sending, code, text) in cases {
        let (found, remark) = refused(desk, *sending);
        assert_eq!(found, *code, "{remark}");
        assert!(remark.contains(text), "{remark:?} should say {text:?}");
    }
}

#[expect(clippy::too_many_lines, reason = "a list of cases")]
#[test]
fn topics_and_queues_are_checked() {
    let mut desk = Desk::new();
    let send = Sending::default();
    let long = "t".repeat(128);
    check_refused(
        &mut desk,
        &[
            (Sending { topic: "", ..send }, 29, "empty"),
            (
                Sending {
                    topic: "a b",
                    ..send
                },
                29,
                "' '",
            ),
            (
                Sending {
                    topic: "../x",
                    ..send
                },
                29,
                "'.'",
            ),
            (
                Sending {
                    topic: &long,
                    ..send
                },
                29,
                "the limit is 127",
            ),
            (
                Sending {
                    topic: "SCHEDULE_TOPIC_XXXX",
                    ..send
                },
                16,
                "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
            ),
            (
                Sending {
                    topic: "RMQ_SYS_TRANS_HALF_TOPIC",
                    ..send
                },
                16,
                "forbidden",
            ),
            (
                Sending {
                    default_topic: "Nothing",
                    ..send
                },
                17,
                "topic[T] not exist, apply first please!",
            ),
            (
                Sending {
                    queue_id: 4,
                    ..send
                },
                29,
                "request queueId[4] is illegal",
            ),
            (
                Sending {
                    queue_id: i32::MAX,
                    ..send
                },
                29,
                "illegal",
            ),
        ],
    );
    let mut closed = Desk::open(
        BrokerConfig {
            auto_create_topics: false,
            ..broker_config()
        },
        store_config(),
    );
    check_refused(&mut closed, &[(send, 17, "not exist")]);
}

/// Apache refuses only ordered topics on a broker that can't be written to.
#[test]
fn a_broker_that_can_not_be_written_to_refuses_ordered_topics() {
    let mut desk = Desk::open(
        BrokerConfig {
            permission: 4,
            ..broker_config()
        },
        store_config(),
    );
    desk.send("T", 0, "", b"x");
    let fields = [
        ("topic", "Ordered"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "1"),
        ("writeQueueNums", "1"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "true"),
    ];
    assert_eq!(desk.call(17, &fields, &[]).code, ResponseCode::SUCCESS);
    let ordered = Sending {
        topic: "Ordered",
        ..Sending::default()
    };
    check_refused(
        &mut desk,
        &[(
            ordered,
            16,
            "the broker[10.0.0.1] sending message is forbidden",
        )],
    );
}

#[test]
fn a_missing_field_is_named() {
    let mut desk = Desk::new();
    let response = desk.call(310, &[("a", "G")], b"x");
    assert_eq!(response.code.0, 1);
    assert_eq!(remark(&response), "the custom field <topic> is null");
}

#[test]
fn the_broker_spreads_sends_that_name_no_queue() {
    let mut desk = Desk::new();
    let mut counts = [0; 4];
    for _ in 0..8 {
        counts[desk.send("T", -1, "", b"x").queue_id as usize] += 1;
    }
    assert_eq!(counts, [2; 4]);
    assert_eq!(
        desk.send("T", 2, "", b"x").queue_id,
        2,
        "a chosen queue is honoured"
    );
}

/// Sources: alibaba/RocketMQ#87, alibaba/canal#1617, apache/rocketmq#523.
#[test]
fn bodies_are_limited() {
    let limit = 1000;
    let mut desk = Desk::open(
        BrokerConfig {
            message_bytes_max: limit,
            ..broker_config()
        },
        store_config(),
    );
    let (most, more) = (vec![b'x'; limit as usize], vec![b'x'; limit as usize + 1]);
    desk.send("T", 0, "", &most[1..]);
    desk.send("T", 0, "", &most);
    let send = Sending::default();
    check_refused(
        &mut desk,
        &[
            (
                Sending {
                    body: &more,
                    ..send
                },
                13,
                "its body has 1001 bytes, the limit is 1000 (maxMessageSize)",
            ),
            (Sending { body: &[], ..send }, 13, "no body"),
        ],
    );
    with_record(&mut desk, "T", 0, 1, |message| {
        assert_eq!(message.body, most)
    });
}

/// Sources: apache/rocketmq#3786, #1110.
#[test]
fn properties_are_limited_with_what_the_broker_adds() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"x");
    let added = properties_of(&mut desk, "T", 0).len();
    let room = PROPERTIES_BYTES_MAX - added - "k\u{1}\u{2}".len();
    for (length, code) in [
        (room - 1, 0),
        (room, 0),
        (room + 1, 13),
        (PROPERTIES_BYTES_MAX, 13),
    ] {
        let properties = format!("k\u{1}{}\u{2}", "v".repeat(length));
        let response = desk.send_message(&Sending {
            properties: &properties,
            ..Sending::default()
        });
        assert_eq!(response.code.0, code, "{length} {response:?}");
        if code == 13 {
            assert!(
                remark(&response).contains("the limit is 32767"),
                "{response:?}"
            );
        }
    }
    assert_eq!(properties_of(&mut desk, "T", 2).len(), PROPERTIES_BYTES_MAX);
}

#[test]
fn what_can_not_be_delivered_as_asked_is_refused() {
    let mut desk = Desk::new();
    let now_ms = desk.io.now().wall_ms;
    for (properties, code, text) in [
        ("DELAY\u{1}x\u{2}", 13, "property DELAY is no number"),
        ("TIMER_DELIVER_MS\u{1}soon\u{2}", 13, "no number"),
        ("TRAN_MSG\u{1}true\u{2}", 13, "property PGROUP"),
        (
            "TRAN_MSG\u{1}TRUE\u{2}PGROUP\u{1}G\u{2}DELAY\u{1}1\u{2}",
            13,
            "can't have a delay",
        ),
        ("INNER_NUM\u{1}3\u{2}", 13, "inner batch"),
    ] {
        check_refused(
            &mut desk,
            &[(
                Sending {
                    properties,
                    ..Sending::default()
                },
                code,
                text,
            )],
        );
    }
    for (sys_flag, code, text) in [
        (0x4, 13, "TRAN_MSG=true"),
        (0xC, 13, "TRAN_MSG=true"),
        (0x80, 13, "inner"),
        (0x40, 13, "inner"),
    ] {
        check_refused(
            &mut desk,
            &[(
                Sending {
                    sys_flag,
                    ..Sending::default()
                },
                code,
                text,
            )],
        );
    }
    let past = format!("TIMER_DELIVER_MS\u{1}{now_ms}\u{2}");
    for properties in [
        "DELAY\u{1}0\u{2}",
        "DELAY\u{1}-1\u{2}",
        "TRAN_MSG\u{1}false\u{2}",
        &past,
        "TIMER_DELAY_MS\u{1}0\u{2}",
    ] {
        let response = desk.send_message(&Sending {
            properties,
            ..Sending::default()
        });
        assert_eq!(response.code.0, 0, "{properties:?} {response:?}");
    }
}

#[test]
fn properties_are_stored_byte_for_byte_with_those_of_the_broker() {
    let mut desk = Desk::new();
    let owned = "CLUSTER\u{1}C\u{2}MSG_REGION\u{1}R\u{2}TRACE_ON\u{1}true\u{2}";
    let cases = [
        (
            "UNIQ_KEY\u{1}u1\u{2}KEYS\u{1}a b\u{2}",
            "UNIQ_KEY\u{1}u1\u{2}KEYS\u{1}a b\u{2}",
        ),
        // A 4.9 producer leaves the last separator out.
        (
            "UNIQ_KEY\u{1}u1\u{2}TAGS\u{1}A",
            "UNIQ_KEY\u{1}u1\u{2}TAGS\u{1}A\u{2}",
        ),
        (
            "POP_CK\u{1}1 2 3\u{2}UNIQ_KEY\u{1}u1",
            "UNIQ_KEY\u{1}u1\u{2}",
        ),
        (
            "TRACE_ON\u{1}false\u{2}UNIQ_KEY\u{1}u1\u{2}MSG_REGION\u{1}X\u{2}CLUSTER\u{1}Y\u{2}",
            "UNIQ_KEY\u{1}u1\u{2}",
        ),
        (
            "WAIT\u{1}true\u{2}UNIQ_KEY\u{1}u1\u{2}unknown\u{1}ü\u{2}",
            "WAIT\u{1}true\u{2}UNIQ_KEY\u{1}u1\u{2}unknown\u{1}ü\u{2}",
        ),
        (
            "REPLY_TO_CLIENT\u{1}c@1\u{2}TTL\u{1}3000\u{2}UNIQ_KEY\u{1}u1\u{2}",
            "REPLY_TO_CLIENT\u{1}c@1\u{2}TTL\u{1}3000\u{2}UNIQ_KEY\u{1}u1\u{2}",
        ),
    ];
    for (offset, (properties, expected)) in cases.into_iter().enumerate() {
        let header = sent(&desk.send_message(&Sending {
            properties,
            ..Sending::default()
        }));
        assert_eq!(header.transaction_id.as_deref(), Some("u1"));
        assert_eq!(
            properties_of(&mut desk, "T", offset as i64),
            format!("{expected}{owned}")
        );
    }
}

#[test]
fn a_message_without_a_key_gets_one() {
    let mut desk = Desk::new();
    for properties in ["", "TAGS\u{1}A", "UNIQ_KEY\u{1}\u{2}"] {
        let header = sent(&desk.send_message(&Sending {
            properties,
            ..Sending::default()
        }));
        let key = header.transaction_id.expect("a key");
        assert_eq!(key.len(), 32);
        assert!(key.starts_with("0A000001"), "{key}");
        let stored = properties_of(&mut desk, "T", header.queue_offset as i64);
        assert_eq!(
            crate::protocol::properties::get(&stored, "UNIQ_KEY"),
            Some(&*key)
        );
    }
}

#[test]
fn records_carry_what_the_header_says() {
    let mut desk = Desk::new();
    for code in [RequestCode::SEND_MESSAGE, RequestCode::SEND_MESSAGE_V2] {
        let sending = Sending {
            code,
            queue_id: 3,
            sys_flag: 0x301,
            flag: 77,
            properties: "TAGS\u{1}TagA\u{2}",
            reconsume_times: 2,
            ..Sending::default()
        };
        let header = sent(&desk.send_message(&sending));
        with_record(&mut desk, "T", 3, header.queue_offset as i64, |message| {
            assert_eq!(
                (message.queue_id, message.flag, message.sys_flag),
                (3, 77, 0x301)
            );
            assert_eq!(
                (message.born_timestamp, message.reconsume_times),
                (1_699_999_999_999, 2)
            );
            assert_eq!(message.born_host, ([10, 0, 0, 9], 40_000).into());
            assert_eq!(message.store_host, ([10, 0, 0, 1], 10_911).into());
            assert_eq!(
                (message.topic, message.body, message.tag()),
                ("T", &b"body"[..], "TagA")
            );
            let place = parse_offset_message_id(message_id(&header));
            assert_eq!(place, Some((message.store_host, message.physical_offset)));
        });
        assert_eq!(header.queue_id, 3);
    }
}

#[test]
fn a_send_without_wait_is_answered_when_written() {
    let mut desk = Desk::new();
    for (properties, wait) in [
        ("", true),
        ("WAIT\u{1}true\u{2}", true),
        ("WAIT\u{1}false\u{2}", false),
        ("WAIT\u{1}x", false),
    ] {
        desk.start_send(&Sending {
            properties,
            ..Sending::default()
        });
        let (_, _, acknowledgement) = desk.acks.pop().expect("an append");
        assert_eq!(acknowledgement.wait_flush, wait, "{properties}");
    }
}

#[test]
fn a_one_way_send_is_stored_and_not_answered() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"first");
    let sending = Sending {
        body: b"one-way",
        ..Sending::default()
    };
    sending.with_fields(|fields| {
        desk.start_flagged(connection(0), 310, fields, sending.body, FLAG_ONE_WAY)
    });
    desk.turn();
    assert!(desk.answers.is_empty());
    assert_eq!(desk.one_ways, 1);
    let found = messages(&desk.pull(&Pulling::default()));
    assert_eq!(found[1], (1, "one-way".to_owned()));
    // Refused, and nobody hears of it.
    let refused = Sending {
        topic: "",
        ..Sending::default()
    };
    refused
        .with_fields(|fields| desk.start_flagged(connection(0), 310, fields, b"x", FLAG_ONE_WAY));
    assert!(desk.answers.is_empty());
}

// ---- retries and dead letters ----

fn closed_groups() -> Desk {
    Desk::open(
        BrokerConfig {
            auto_create_groups: false,
            ..broker_config()
        },
        store_config(),
    )
}

#[test]
fn a_retry_needs_its_group() {
    let mut desk = closed_groups();
    let retry = Sending {
        topic: "%RETRY%Nobody",
        ..Sending::default()
    };
    check_refused(
        &mut desk,
        &[(retry, 26, "subscription group not exist, Nobody")],
    );
    assert!(
        desk.broker.topics.get("%RETRY%Nobody").is_none(),
        "the name left no topic"
    );
}

/// Source: apache/rocketmq#2724: the last failure goes to the dead letters at once, not after the last delay.
#[test]
fn a_message_retried_too_often_goes_to_the_dead_letters() {
    let mut desk = Desk::new();
    let retry = Sending {
        topic: "%RETRY%G",
        properties: "UNIQ_KEY\u{1}u\u{2}DELAY\u{1}18\u{2}RETRY_TOPIC\u{1}T\u{2}TRAN_MSG\u{1}true\u{2}",
        reconsume_times: 3,
        max_reconsume_times: Some(2),
        ..Sending::default()
    };
    let header = sent(&desk.send_message(&retry));
    assert_eq!((header.queue_id, header.queue_offset), (0, 0));
    with_record(&mut desk, "%DLQ%G", 0, 0, |message| {
        assert_eq!((message.topic, message.reconsume_times), ("%DLQ%G", 3));
        assert!(
            message
                .properties
                .starts_with("UNIQ_KEY\u{1}u\u{2}RETRY_TOPIC\u{1}T\u{2}TRAN_MSG")
        );
    });
    // As often as allowed is not too often.
    let now = Sending {
        reconsume_times: 2,
        properties: "",
        ..retry
    };
    assert_eq!(desk.send_message(&now).code, ResponseCode::SUCCESS);
    with_record(&mut desk, "%RETRY%G", 0, 0, |message| {
        assert_eq!(message.topic, "%RETRY%G")
    });
    // Without a word from the client the group's 16 counts.
    let group = Sending {
        properties: "",
        max_reconsume_times: None,
        reconsume_times: 16,
        ..retry
    };
    assert_eq!(desk.send_message(&group).code, ResponseCode::SUCCESS);
    assert_eq!(
        sent(&desk.send_message(&Sending {
            reconsume_times: 17,
            ..group
        }))
        .queue_offset,
        1,
        "in the dead letters"
    );
}

// ---- batches ----

fn batch_body(records: &[(&str, &str)]) -> Vec<u8> {
    let mut out = BytesMut::new();
    for (index, (body, properties)) in records.iter().enumerate() {
        let record = BatchRecord {
            flag: index as i32,
            body: body.as_bytes(),
            properties,
        };
        record.encode(&mut out);
    }
    out.to_vec()
}

fn batch(body: &[u8]) -> Sending<'_> {
    Sending {
        code: RequestCode::SEND_BATCH_MESSAGE,
        batch: "true",
        properties: "WAIT\u{1}true\u{2}UNIQ_KEY\u{1}whole\u{2}",
        body,
        ..Sending::default()
    }
}

#[test]
fn every_record_of_a_batch_is_a_message_of_its_own() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"before");
    let body = batch_body(&[
        ("a", "UNIQ_KEY\u{1}u1\u{2}TAGS\u{1}A\u{2}"),
        ("b", "TAGS\u{1}B"),
        ("c", "POP_CK\u{1}1\u{2}UNIQ_KEY\u{1}u3\u{2}"),
    ]);
    let header = sent(&desk.send_message(&batch(&body)));
    assert_eq!(header.queue_offset, 1);
    assert_eq!(header.transaction_id.as_deref(), Some("whole"));
    let ids: Vec<String> = message_id(&header).split(',').map(str::to_owned).collect();
    let response = desk.pull(&Pulling {
        offset: 1,
        ..Pulling::default()
    });
    let mut found = Vec::new();
    each_message(&response, |message| {
        let index = found.len();
        assert_eq!(message.flag, index as i32);
        assert_eq!(message.queue_offset.0, 1 + index as u64);
        let place = parse_offset_message_id(&ids[index]).expect("an id");
        assert_eq!(place, (message.store_host, message.physical_offset));
        found.push((message.tag().to_owned(), message.properties.to_owned()));
    });
    assert_eq!(ids.len(), 3);
    assert_eq!(
        found[0],
        (
            "A".to_owned(),
            "UNIQ_KEY\u{1}u1\u{2}TAGS\u{1}A\u{2}".to_owned()
        )
    );
    assert_eq!(found[1].0, "B");
    let generated = found[1]
        .1
        .strip_prefix("TAGS\u{1}B\u{2}UNIQ_KEY\u{1}")
        .expect("a key is added");
    assert_eq!(generated.len(), 33);
    assert_eq!(found[2].1, "UNIQ_KEY\u{1}u3\u{2}");
    // The tags of single records are filtered by.
    let tagged = desk.pull(&Pulling {
        expression: "B",
        ..Pulling::default()
    });
    assert_eq!(messages(&tagged), [(2, "b".to_owned())]);
}

#[expect(clippy::too_many_lines, reason = "a list of cases")]
#[test]
fn a_batch_is_stored_whole_or_not_at_all() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"x");
    let good = batch_body(&[("a", ""), ("b", "")]);
    let delayed = batch_body(&[("a", ""), ("b", "DELAY\u{1}3\u{2}")]);
    let half = batch_body(&[("a", "TRAN_MSG\u{1}true\u{2}")]);
    let long = format!("k\u{1}{}", "v".repeat(PROPERTIES_BYTES_MAX - 2));
    let long = batch_body(&[("a", ""), ("b", &long)]);
    let ten = vec![b'x'; 5 << 20];
    let send = batch(&good);
    check_refused(
        &mut desk,
        &[
            (
                Sending {
                    body: &good[..good.len() - 1],
                    ..send
                },
                13,
                "record 1 of the batch",
            ),
            (
                Sending {
                    body: &[0; 10],
                    ..send
                },
                13,
                "record 0 of the batch",
            ),
            (Sending { body: b"", ..send }, 13, "no body"),
            (Sending { body: &ten, ..send }, 13, "maxMessageSize"),
            (
                Sending {
                    body: &delayed,
                    ..send
                },
                13,
                "record 1 of the batch: the message is illegal: property DELAY=3",
            ),
            (
                Sending {
                    body: &half,
                    ..send
                },
                13,
                "transaction",
            ),
            (
                Sending {
                    body: &long,
                    ..send
                },
                13,
                "record 1 of the batch",
            ),
            (
                Sending {
                    properties: "DELAY\u{1}3\u{2}",
                    ..send
                },
                13,
                "a later delivery",
            ),
            (
                Sending {
                    sys_flag: 4,
                    ..send
                },
                13,
                "transaction",
            ),
            (
                Sending {
                    topic: "%RETRY%G",
                    ..send
                },
                13,
                "batch request does not support retry group %RETRY%G",
            ),
        ],
    );
    let long = format!("%DLQ%{}", "g".repeat(125));
    for sending in [send, Sending::default()] {
        let sending = Sending {
            topic: &long,
            ..sending
        };
        let text = "its topic has 130 bytes, the limit is 127";
        check_refused(&mut desk, &[(sending, 13, text)]);
    }
    assert_eq!(desk.send("T", 0, "", b"y").queue_offset, 1);
}

/// Conventions, trap 1: C++ clients say "1", which is not true.
#[test]
fn what_says_batch_1_is_stored_as_one_message() {
    let mut desk = Desk::new();
    let body = batch_body(&[("a", ""), ("b", "")]);
    for code in [RequestCode::SEND_MESSAGE, RequestCode::SEND_MESSAGE_V2] {
        let sending = Sending {
            code,
            batch: "1",
            ..batch(&body)
        };
        let header = sent(&desk.send_message(&sending));
        with_record(&mut desk, "T", 0, header.queue_offset as i64, |message| {
            assert_eq!(message.body, body)
        });
    }
    assert_eq!(desk.counters.messages_in, 2);
    let as_java = Sending {
        code: RequestCode::SEND_MESSAGE_V2,
        batch: "TRUE",
        ..batch(&body)
    };
    desk.send_message(&as_java);
    assert_eq!(desk.counters.messages_in, 4);
}

#[test]
fn a_batch_has_a_bounded_number_of_records() {
    let mut desk = Desk::open(broker_config(), big_store_config());
    let one = batch_body(&[("", "UNIQ_KEY\u{1}u\u{2}")]);
    let most = crate::limits::BATCH_MESSAGES_MAX as usize;
    let body = one.repeat(most + 1);
    assert!(body.len() < 4 << 20);
    check_refused(&mut desk, &[(batch(&body), 13, "more than 65536 records")]);
    let header = sent(&desk.send_message(&batch(&body[one.len()..])));
    assert_eq!(message_id(&header).split(',').count(), most);
}

// ---- the store refuses ----

#[test]
fn a_store_that_does_not_take_it_says_why() {
    let mut desk = Desk::new();
    desk.send("T", 0, "", b"x");
    let segment = desk.store.config().segment_bytes;
    let small = StoreConfig {
        segment_bytes: 4096,
        ..store_config()
    };
    let mut tiny = Desk::open(broker_config(), small);
    let body = vec![b'x'; 5000];
    check_refused(
        &mut tiny,
        &[(
            Sending {
                body: &body,
                ..Sending::default()
            },
            13,
            "a segment takes at most",
        )],
    );
    assert!(segment > 5000);

    desk.io.fail(OpKind::Write, 0, 1, 5);
    desk.start_send(&Sending::default());
    desk.turn();
    assert!(
        desk.answers.is_empty(),
        "a failed write is never acknowledged"
    );
    check_refused(
        &mut desk,
        &[(Sending::default(), 14, "read-only until restart")],
    );

    let mut stopping = Desk::new();
    stopping.send("T", 0, "", b"x");
    let now = stopping.io.now();
    stopping.store.begin_stop(now, &mut stopping.io);
    check_refused(
        &mut stopping,
        &[(Sending::default(), 14, "the broker is stopping")],
    );
}

/// Reason strings with the measured values (apache/rocketmq#593, #2945).
#[test]
fn refusals_of_the_store_have_their_codes() {
    use crate::storage::AppendError;
    for (error, code, text) in [
        (
            AppendError::Busy {
                unwritten: 7,
                max: 5,
            },
            2,
            "7 bytes wait for the disk, the limit is 5",
        ),
        (
            AppendError::DiskFull("90 %".to_owned()),
            14,
            "the disk is full: 90 %",
        ),
        (AppendError::ReadOnly("EIO".to_owned()), 14, "EIO"),
        (AppendError::TooLong { bytes: 9, max: 8 }, 13, "9 bytes"),
    ] {
        let (found, remark) = send::append_refusal(error);
        assert_eq!(found.0, code);
        assert!(remark.contains(text), "{remark}");
    }
}
