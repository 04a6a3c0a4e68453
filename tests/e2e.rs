//! Goal: what a client sees over real sockets and a real ring, with one and with two shards.

mod support;

use ringmq::protocol::command::Encoding;
use std::time::{Duration, Instant};
use support::{Client, Server, send_fields};

fn with_server(flags: &[(&str, &str)], test: impl Fn(&Server)) {
    for shards in ["1", "2"] {
        let directory = tempfile::tempdir().expect("a directory");
        let all = [&[("shards", shards)], flags].concat();
        let server = Server::start(&directory.path().join("store"), &all);
        test(&server);
        server.stop();
    }
}

#[test]
fn a_held_pull_is_answered_by_the_send_that_it_waited_for() {
    with_server(&[], |server| {
        let (mut producer, mut consumer) =
            (Client::connect(server.port), Client::connect(server.port));
        let first = producer.send_message("T", 0, "A", b"one");
        assert_eq!(
            (first.code, first.number("queueOffset")),
            (0, 0),
            "{}",
            first.remark
        );
        for offset in 1..200 {
            let opaque = consumer.start_pull("T", 0, offset, 15_000, "*");
            let body = format!("message {offset}");
            assert_eq!(producer.send_message("T", 0, "A", body.as_bytes()).code, 0);
            let answer = consumer.receive().expect("an answer");
            assert_eq!(
                (answer.opaque, answer.code),
                (opaque, 0),
                "every wake ends in one answer"
            );
            assert_eq!(answer.messages(), [(offset, body.into_bytes())]);
            assert_eq!(answer.number("nextBeginOffset") as u64, offset + 1);
        }
    });
}

/// Source: alibaba/RocketMQ issue 292; the cursor of a hold moves past what its filter does not want.
#[test]
fn an_unmatched_tag_neither_wakes_nor_lags() {
    with_server(&[], |server| {
        let (mut producer, mut consumer) =
            (Client::connect(server.port), Client::connect(server.port));
        producer.send_message("T", 0, "A", b"0");
        let asked = Instant::now();
        let opaque = consumer.start_pull("T", 0, 1, 400, "B || C");
        for _ in 0..5 {
            producer.send_message("T", 0, "A", b"not wanted");
        }
        let answer = consumer.receive().expect("an answer");
        assert_eq!(
            (answer.opaque, answer.code, answer.number("nextBeginOffset")),
            (opaque, 20, 6),
            "a Go consumer before 2.1.1 moves on at 20 only"
        );
        assert!(
            asked.elapsed() >= Duration::from_millis(400),
            "answered before its deadline"
        );
        let opaque = consumer.start_pull("T", 0, 6, 15_000, "B || C");
        producer.send_message("T", 0, "A", b"not wanted");
        producer.send_message("T", 0, "C", b"wanted");
        let answer = consumer.receive().expect("an answer");
        assert_eq!(
            (answer.opaque, answer.messages()),
            (opaque, vec![(7, b"wanted".to_vec())])
        );
    });
}

#[test]
fn pull_answers_follow_the_table_of_states() {
    with_server(&[], |server| {
        let mut client = Client::connect(server.port);
        let state = |client: &mut Client, topic: &str, queue, offset| {
            let answer = client.pull(topic, queue, offset, 0, "*");
            (
                answer.code,
                answer.remark.clone(),
                answer
                    .fields
                    .get("nextBeginOffset")
                    .cloned()
                    .unwrap_or_default(),
            )
        };
        let expect = |code, remark: &str, next: &str| (code, remark.to_owned(), next.to_owned());
        assert_eq!(state(&mut client, "Absent", 0, 0).0, 17);
        client.send_message("T", 0, "", b"x");
        client.send_message("T", 0, "", b"y");
        assert_eq!(state(&mut client, "T", 0, 0), expect(0, "FOUND", "2"));
        assert_eq!(
            state(&mut client, "T", 0, 2),
            expect(19, "OFFSET_OVERFLOW_ONE", "2")
        );
        assert_eq!(
            state(&mut client, "T", 0, 9),
            expect(21, "OFFSET_OVERFLOW_BADLY", "2")
        );
        assert_eq!(
            state(&mut client, "T", 1, 0),
            expect(19, "NO_MESSAGE_IN_QUEUE", "0")
        );
        assert_eq!(
            state(&mut client, "T", 1, 5),
            expect(21, "NO_MESSAGE_IN_QUEUE", "0")
        );
        assert_eq!(state(&mut client, "T", 99, 0).0, 29);
        let filtered = client.pull("T", 0, 0, 0, "Rare");
        assert_eq!((filtered.code, filtered.number("nextBeginOffset")), (20, 2));
    });
}

#[test]
fn a_batch_is_as_many_messages_and_a_binary_client_is_answered_in_binary() {
    with_server(&[], |server| {
        let mut client = Client::connect(server.port);
        client.encoding = Encoding::Binary;
        let mut body = Vec::new();
        for text in ["a", "b", "c"] {
            let properties = b"KEYS\x01k";
            body.extend_from_slice(&((22 + text.len() + properties.len()) as u32).to_be_bytes());
            body.extend_from_slice(&[0; 12]);
            body.extend_from_slice(&(text.len() as u32).to_be_bytes());
            body.extend_from_slice(text.as_bytes());
            body.extend_from_slice(&(properties.len() as u16).to_be_bytes());
            body.extend_from_slice(properties);
        }
        let answer = client.call(320, &send_fields("B", "1", ""), &body);
        assert_eq!(
            (answer.code, answer.number("queueOffset")),
            (0, 0),
            "{}",
            answer.remark
        );
        assert_eq!(answer.fields["msgId"].split(',').count(), 3);
        let bodies: Vec<_> = client
            .read_queue("B", 1)
            .into_iter()
            .map(|(_, body)| body)
            .collect();
        assert_eq!(bodies, [b"a", b"b", b"c"]);
        let broken = client.call(320, &send_fields("B", "1", ""), &body[..body.len() - 1]);
        assert_eq!(broken.code, 13, "{}", broken.remark);
        assert_eq!(client.read_queue("B", 1).len(), 3, "all or nothing");
    });
}

#[test]
fn a_topic_of_a_first_send_exists_on_all_shards() {
    with_server(&[("defaultTopicQueueNums", "8")], |server| {
        let mut client = Client::connect(server.port);
        assert_eq!(client.send_message("New", 0, "", b"x").code, 0);
        let mut names = Client::connect(server.name_server);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let route = names.call(
                105,
                &[("topic", "New"), ("acceptStandardJsonOnly", "true")],
                &[],
            );
            let route: serde_json::Value = serde_json::from_slice(&route.body).unwrap_or_default();
            let brokers = route["brokerDatas"].as_array().map_or(0, Vec::len);
            let shards = names.call(106, &[], &[]);
            let shards: serde_json::Value = serde_json::from_slice(&shards.body).expect("JSON");
            if brokers > 0
                && brokers
                    == shards["brokerAddrTable"]
                        .as_object()
                        .map_or(0, serde_json::Map::len)
            {
                return;
            }
            assert!(Instant::now() < deadline, "route of the new topic: {route}");
        }
    });
}

#[test]
fn administration_is_registered_when_it_is_answered() {
    with_server(&[], |server| {
        let (mut client, mut names) = (
            Client::connect(server.port),
            Client::connect(server.name_server),
        );
        let fields = |perm: &'static str| {
            [
                ("topic", "Admin"),
                ("defaultTopic", "x"),
                ("readQueueNums", "3"),
                ("writeQueueNums", "3"),
                ("perm", perm),
            ]
        };
        let answer = client.call(17, &fields("6"), &[]);
        assert_eq!(answer.code, 0, "{}", answer.remark);
        assert_eq!(
            names.call(105, &[("topic", "Admin")], &[]).code,
            0,
            "the name server knows it at once"
        );
        assert_eq!(
            client
                .send_message("Admin", 2, "", b"x")
                .number("queueOffset"),
            0
        );
        assert_eq!(client.call(17, &fields("99"), &[]).code, 29);
        assert_eq!(client.call(215, &[("topic", "Admin")], &[]).code, 0);
        assert_eq!(client.call(351, &[("topic", "Admin")], &[]).code, 17);
        assert_eq!(client.call(17, &fields("6"), &[]).code, 0);
        let again = client.send_message("Admin", 2, "", b"y");
        assert_eq!(
            again.number("queueOffset"),
            0,
            "a topic made again starts at 0"
        );
        assert_eq!(client.read_queue("Admin", 2), [(0, b"y".to_vec())]);
    });
}

#[test]
fn what_is_not_delivered_as_asked_is_refused() {
    with_server(&[("maxMessageSize", "1000")], |server| {
        let mut client = Client::connect(server.port);
        let half = client.call(310, &send_fields("T", "0", "TRAN_MSG\u{1}true\u{2}"), b"x");
        assert_eq!(half.code, 13, "{}", half.remark);
        assert!(half.remark.contains("PGROUP"), "{}", half.remark);
        assert_eq!(client.send_message("T", 0, "", &[0; 1000]).code, 0);
        let long = client.send_message("T", 0, "", &[0; 1001]);
        assert_eq!(long.code, 13);
        assert!(
            long.remark.contains("1001") && long.remark.contains("maxMessageSize"),
            "{}",
            long.remark
        );
        let properties = format!("K\u{1}{}\u{2}", "v".repeat(32_767));
        assert_eq!(
            client
                .call(310, &send_fields("T", "0", &properties), b"x")
                .code,
            13
        );
        assert_eq!(client.send_message("../x", 0, "", b"x").code, 29);
        assert_eq!(
            client.send_message("SCHEDULE_TOPIC_XXXX", 0, "", b"x").code,
            16
        );
        let unknown = client.call(4711, &[], &[]);
        assert_eq!(
            (unknown.code, unknown.remark.as_str()),
            (3, " request type 4711 not supported")
        );
    });
}

#[test]
fn a_broken_connection_pays_alone() {
    with_server(&[], |server| {
        let mut good = Client::connect(server.port);
        good.send_message("T", 0, "", b"x");
        for bytes in [
            &[0xff; 16][..],
            &[0x01, 0, 0, 1],
            &[0, 0, 0, 8, 9, 0, 0, 4, 1, 2, 3, 4],
            b"\0\0\0\x08\0\0\0\x04{{{{",
        ] {
            let mut bad = Client::connect(server.port);
            bad.send_raw(bytes);
            assert!(bad.receive().is_none(), "closed after {bytes:?}");
        }
        let mut half = Client::connect(server.port);
        half.send_raw(&[0, 0, 1, 0, 0]);
        drop(half);
        let mut vanishing = Client::connect(server.port);
        vanishing.start_pull("T", 0, 1, 15_000, "*");
        drop(vanishing);
        assert_eq!(good.send_message("T", 0, "", b"y").number("queueOffset"), 1);
        assert_eq!(good.read_queue("T", 0).len(), 2);
    });
}

#[test]
fn group_members_are_listed_and_told_of_changes() {
    with_server(&[], |server| {
        let beat = |id: &str| {
            format!(
                r#"{{"clientID":"{id}","producerDataSet":[],"consumerDataSet":[{{"groupName":"CG","consumeType":"CONSUME_PASSIVELY",
                "messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{{"topic":"T",
                "subString":"*","subVersion":1,"expressionType":"TAG"}}]}}]}}"#
            )
        };
        let group = [("consumerGroup", "CG")];
        let (mut one, mut two) = (Client::connect(server.port), Client::connect(server.port));
        assert_eq!(one.call(38, &group, &[]).code, 1);
        assert_eq!(one.call(34, &[], beat("one").as_bytes()).code, 0);
        assert_eq!(
            one.call(38, &group, &[]).body,
            br#"{"consumerIdList":["one"]}"#
        );
        assert_eq!(two.call(34, &[], beat("two").as_bytes()).code, 0);
        let told = one.receive().expect("a notification");
        assert_eq!(
            (
                told.is_request,
                told.code,
                told.fields["consumerGroup"].as_str()
            ),
            (true, 40, "CG")
        );
        assert_eq!(
            two.call(38, &group, &[]).body,
            br#"{"consumerIdList":["one","two"]}"#
        );
        drop(two);
        assert_eq!(
            one.receive().map(|told| told.code),
            Some(40),
            "a close is told at once"
        );
        assert_eq!(
            one.call(38, &group, &[]).body,
            br#"{"consumerIdList":["one"]}"#
        );
    });
}

#[test]
fn messages_are_found_by_key_after_an_orderly_stop_and_a_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let flags = [
        ("shards", "1"),
        ("maxHashSlotNum", "10"),
        ("maxIndexNum", "50"),
        ("tailCacheBytes", "65536"),
    ];
    let rounds = 4;
    for round in 0..rounds {
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        for number in 0..100 {
            let properties =
                format!("KEYS\u{1}r{round}n{number} all\u{2}UNIQ_KEY\u{1}U{round}n{number}\u{2}");
            let body = format!("{round} {number}");
            let sent = client.call(310, &send_fields("T", "0", &properties), body.as_bytes());
            assert_eq!(sent.code, 0, "{}", sent.remark);
        }
        for (of, number) in (0..=round).flat_map(|of| [(of, 0), (of, 57), (of, 99)]) {
            for (key, unique) in [("r", "false"), ("U", "true")] {
                let key = format!("{key}{of}n{number}");
                let fields = [
                    ("topic", "T"),
                    ("key", &key),
                    ("maxNum", "32"),
                    ("beginTimestamp", "0"),
                    ("endTimestamp", "9223372036854775807"),
                    ("_UNIQUE_KEY_QUERY", unique),
                ];
                let found = client.call(12, &fields, &[]);
                let body = format!("{of} {number}").into_bytes();
                let expected = [(of * 100 + number, body)];
                assert_eq!(
                    found.messages(),
                    expected,
                    "{key} in round {round}: {found:?}"
                );
                assert!(found.fields.contains_key("indexLastUpdatePhyoffset"));
            }
        }
        if round % 2 == 0 {
            server.stop();
        } else {
            server.kill();
        }
    }
}
