//! Goal: what was acknowledged is there once, in order, unchanged, after clean ends and after `kill -9` at random
//! moments under load. Method: one ageing store, small segments so that rolling happens.

mod support;

use std::collections::BTreeMap;
use support::{Client, Server};

const FLAGS: [(&str, &str); 2] = [
    ("mappedFileSizeCommitLog", "131072"),
    ("mappedFileSizeConsumeQueue", "2000"),
];

/// A small generator; the seed is printed when a cycle fails.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn a_clean_end_keeps_everything() {
    for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().join("store");
        let flags = [&FLAGS[..], &[("shards", "1"), ("flushDiskType", flush)]].concat();
        let mut expected = Vec::new();
        for round in 0..3_u64 {
            let server = Server::start(&store, &flags);
            let mut client = Client::connect(server.port);
            assert_eq!(expected.is_empty(), round == 0);
            if round > 0 {
                assert_eq!(
                    client.read_queue("T", 1),
                    expected,
                    "round {round}, {flush}"
                );
            }
            for _ in 0..(if flush == "SYNC_FLUSH" { 60 } else { 400 }) {
                let body = format!(
                    "{round} {} {}",
                    expected.len(),
                    "x".repeat(expected.len() % 900)
                );
                let answer = client.send_message("T", 1, "A", body.as_bytes());
                if answer.code == 2 {
                    // The next segment is still being made.
                    continue;
                }
                assert_eq!(
                    (answer.code, answer.number("queueOffset")),
                    (0, expected.len() as i64),
                    "{}",
                    answer.remark
                );
                expected.push((expected.len() as u64, body.into_bytes()));
            }
            let commit = [
                ("consumerGroup", "TOOLS_CONSUMER"),
                ("topic", "T"),
                ("queueId", "1"),
                ("commitOffset", "7"),
            ];
            assert_eq!(client.call(15, &commit, &[]).code, 0);
            server.stop();
        }
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        let query = [
            ("consumerGroup", "TOOLS_CONSUMER"),
            ("topic", "T"),
            ("queueId", "1"),
        ];
        assert_eq!(client.call(14, &query, &[]).number("offset"), 7);
        assert_eq!(client.read_queue("T", 1), expected);
        server.stop();
    }
}

#[test]
fn kill_nine_loses_nothing_that_was_acknowledged() {
    let rounds: u64 = std::env::var("RINGMQ_KILL_ROUNDS")
        .ok()
        .and_then(|r| r.parse().ok())
        .unwrap_or(12);
    let mut random = Random(0x5eed);
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let flags = [&FLAGS[..], &[("shards", "1")]].concat();
    // Per queue: body of each acknowledged offset; what was sent last may be there or not.
    let mut acknowledged: BTreeMap<u32, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    let mut sent = 0_u64;
    for round in 0..rounds {
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        for (queue, expected) in &acknowledged {
            let found: BTreeMap<u64, Vec<u8>> =
                client.read_queue("T", *queue).into_iter().collect();
            for (offset, body) in expected {
                assert_eq!(
                    found.get(offset),
                    Some(body),
                    "round {round} queue {queue} offset {offset}, seed 0x5eed"
                );
            }
            let dense = found.keys().copied().eq(0..found.len() as u64);
            assert!(dense, "round {round} queue {queue}: offsets have gaps");
        }
        let count = 20 + random.below(300);
        let mut waiting = BTreeMap::new();
        for _ in 0..count {
            let queue = random.below(3) as u32;
            let body = format!("{sent} {}", "y".repeat(random.below(1500) as usize)).into_bytes();
            sent += 1;
            let queue_text = queue.to_string();
            let opaque = client.send(
                310,
                &support::send_fields("T", &queue_text, "TAGS\u{1}A"),
                &body,
            );
            waiting.insert(opaque, (queue, body));
            // Some are left without an answer: the process dies with them in flight.
            if random.below(4) > 0 {
                take_answer(&mut client, &mut waiting, &mut acknowledged);
            }
        }
        server.kill();
    }
    assert!(
        acknowledged.values().map(BTreeMap::len).sum::<usize>() > 100,
        "the test sent too little"
    );
}

fn take_answer(
    client: &mut Client,
    waiting: &mut BTreeMap<i32, (u32, Vec<u8>)>,
    acknowledged: &mut BTreeMap<u32, BTreeMap<u64, Vec<u8>>>,
) {
    let answer = client.receive().expect("an answer");
    let (queue, body) = waiting.remove(&answer.opaque).expect("an answer to a send");
    if answer.code == 0 {
        let offset = answer.number("queueOffset") as u64;
        let before = acknowledged.entry(queue).or_default().insert(offset, body);
        assert_eq!(
            before, None,
            "offset {offset} of queue {queue} was given out twice"
        );
    } else {
        assert_eq!(answer.code, 2, "{}", answer.remark);
    }
}
