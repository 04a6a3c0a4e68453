//! Goal: what was acknowledged is there once, in order, unchanged, after clean ends and after `kill -9` at random
//! moments under load. Method: one ageing store per setting, small segments so that rolling happens, clients that
//! remember what they were told.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use support::{Client, Server};

const QUEUES: u32 = 3;

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

/// A body that is found again nowhere else.
fn body(shard: u16, number: u64, random: &mut Random) -> Vec<u8> {
    format!(
        "{shard} {number} {}",
        "y".repeat(random.below(1500) as usize)
    )
    .into_bytes()
}

/// What the clients of one shard know of it, over all rounds.
#[derive(Default)]
struct Ledger {
    sent: u64,
    /// Body by queue and offset: acknowledged, or handed to a consumer.
    certain: BTreeMap<(u32, u64), Vec<u8>>,
    /// Refused: must not be there.
    refused: BTreeSet<Vec<u8>>,
    /// No answer came: may be there, once.
    open: BTreeSet<Vec<u8>>,
    /// Of the group and queue 0, and known to be in the file.
    committed: i64,
}

impl Ledger {
    fn certainly(&mut self, queue: u32, offset: u64, body: Vec<u8>) {
        let before = self.certain.insert((queue, offset), body.clone());
        let is_same = before.is_none_or(|before| before == body);
        assert!(
            is_same,
            "offset {offset} of queue {queue} was given out twice"
        );
    }

    /// Everything that is certain is there once, in its place; whatever else is there was sent and not refused.
    fn check(&self, client: &mut Client, context: &str) {
        let mut bodies = BTreeSet::new();
        for queue in 0..QUEUES {
            let found = client.read_queue("T", queue);
            let dense = found
                .iter()
                .map(|(offset, _)| *offset)
                .eq(0..found.len() as u64);
            assert!(dense, "{context}: the offsets of queue {queue} have gaps");
            for (offset, body) in found {
                let expected = self.certain.get(&(queue, offset));
                if let Some(expected) = expected {
                    assert_eq!(*expected, body, "{context}: queue {queue} offset {offset}");
                } else {
                    let was_open = self.open.contains(&body);
                    assert!(
                        was_open,
                        "{context}: queue {queue} offset {offset} is no message that was sent and not refused"
                    );
                }
                assert!(
                    bodies.insert(body),
                    "{context}: queue {queue} offset {offset} is there twice"
                );
            }
        }
        let missing = self
            .certain
            .iter()
            .find(|(_, body)| !bodies.contains(*body));
        assert!(
            missing.is_none(),
            "{context}: {:?} is gone",
            missing.map(|(place, _)| place)
        );
        let query = [
            ("consumerGroup", "TOOLS_CONSUMER"),
            ("topic", "T"),
            ("queueId", "0"),
        ];
        if self.committed > 0 {
            let offset = client.call(14, &query, &[]).number("offset");
            assert!(
                offset >= self.committed,
                "{context}: committed {}, found {offset}",
                self.committed
            );
        }
    }
}

/// Sends until the broker is gone: single messages and batches, up to eight without an answer.
fn produce(
    mut client: Client,
    shard: u16,
    mut random: Random,
    ledger: &Mutex<Ledger>,
    answered: &Sender<()>,
) {
    let mut waiting: BTreeMap<i32, (u32, Vec<Vec<u8>>)> = BTreeMap::new();
    loop {
        let queue = random.below(u64::from(QUEUES)) as u32;
        let count = if random.below(4) == 0 {
            1 + random.below(5)
        } else {
            1
        };
        let bodies: Vec<Vec<u8>> = {
            let mut ledger = ledger.lock().unwrap();
            let numbers = ledger.sent..ledger.sent + count;
            ledger.sent = numbers.end;
            let bodies: Vec<_> = numbers.map(|n| body(shard, n, &mut random)).collect();
            // From here on it may be there, answered or not.
            ledger.open.extend(bodies.iter().cloned());
            bodies
        };
        let queue_text = queue.to_string();
        let fields = support::send_fields("T", &queue_text, "TAGS\u{1}A");
        let sent = if count == 1 {
            client.try_send(310, &fields, &bodies[0])
        } else {
            let fields = [&fields[..], &[("m", "true")]].concat();
            client.try_send(320, &fields, &support::batch(&bodies))
        };
        let Some(opaque) = sent else { return };
        waiting.insert(opaque, (queue, bodies));
        while waiting.len() > random.below(8) as usize {
            let Some(answer) = client.receive() else {
                return;
            };
            let (queue, bodies) = waiting.remove(&answer.opaque).expect("an answer to a send");
            let mut ledger = ledger.lock().unwrap();
            if answer.code == 0 {
                let first = answer.number("queueOffset") as u64;
                for (index, body) in bodies.into_iter().enumerate() {
                    ledger.open.remove(&body);
                    ledger.certainly(queue, first + index as u64, body);
                }
            } else {
                // Busy: the next segment is still being made.
                assert_eq!(answer.code, 2, "{}", answer.remark);
                for body in bodies {
                    ledger.open.remove(&body);
                    ledger.refused.insert(body);
                }
            }
            drop(ledger);
            if answered.send(()).is_err() {
                return;
            }
        }
    }
}

/// Pulls a queue, held where there is nothing yet, and commits, until the broker is gone.
fn consume(mut client: Client, queue: u32, ledger: &Mutex<Ledger>, store: &Path) {
    let queue_text = queue.to_string();
    let group = [
        ("consumerGroup", "TOOLS_CONSUMER"),
        ("topic", "T"),
        ("queueId", &*queue_text),
    ];
    let Some(answer) = client
        .try_send(14, &group, &[])
        .and_then(|_| client.receive())
    else {
        return;
    };
    let mut offset = answer
        .fields
        .get("offset")
        .map_or(0, |offset| offset.parse().unwrap());
    loop {
        if client
            .try_start_pull("T", queue, offset, 15_000, "*")
            .is_none()
        {
            return;
        }
        let Some(answer) = client.receive() else {
            return;
        };
        if answer.code == 17 {
            // Nobody has sent yet.
            continue;
        }
        offset = answer.number("nextBeginOffset") as u64;
        for (at, body) in answer.messages() {
            let mut ledger = ledger.lock().unwrap();
            assert!(
                !ledger.refused.contains(&body),
                "a refused message was delivered"
            );
            ledger.open.remove(&body);
            ledger.certainly(queue, at, body);
        }
        let offset_text = offset.to_string();
        let commit = [
            ("consumerGroup", "TOOLS_CONSUMER"),
            ("topic", "T"),
            ("queueId", &*queue_text),
            ("commitOffset", &*offset_text),
        ];
        if client.try_send(15, &commit, &[]).is_none() || client.receive().is_none() {
            return;
        }
        if queue == 0 {
            note_committed(ledger, store);
        }
    }
}

/// What the file of committed offsets says is promised to survive.
fn note_committed(ledger: &Mutex<Ledger>, store: &Path) {
    let Ok(text) = std::fs::read_to_string(store.join("config/consumerOffset.json")) else {
        return;
    };
    let table: serde_json::Value =
        serde_json::from_str(&text).expect("a file that is replaced as a whole");
    let offset = table["offsetTable"]["T@TOOLS_CONSUMER"]["0"]
        .as_i64()
        .unwrap_or(0);
    let mut ledger = ledger.lock().unwrap();
    assert!(offset >= ledger.committed, "the committed offset went back");
    ledger.committed = offset;
}

fn kill_rounds(shards: u16, flush: &str, rounds: u64, seed: u64) {
    let mut random = Random(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let count = shards.to_string();
    let own = [
        ("shards", &*count),
        ("flushDiskType", flush),
        ("flushConsumerOffsetInterval", "100"),
    ];
    let flags = [&FLAGS[..], &own].concat();
    let ledgers: Vec<Mutex<Ledger>> = (0..shards).map(|_| Mutex::default()).collect();
    for round in 0..=rounds {
        let context = format!("{shards} shards, {flush}, round {round}, seed {seed:#x}");
        let server = Server::start(&store, &flags);
        for (shard, ledger) in ledgers.iter().enumerate() {
            let mut client = Client::connect(server.port + 10 * shard as u16);
            if round > 0 {
                ledger.lock().unwrap().check(&mut client, &context);
            }
        }
        if round == rounds {
            server.stop();
            break;
        }
        let committed = ledgers[0].lock().unwrap().committed;
        let target = 10 + random.below(if flush == "SYNC_FLUSH" { 60 } else { 300 });
        let (answered, answers) = channel();
        std::thread::scope(|scope| {
            for (shard, ledger) in ledgers.iter().enumerate() {
                let (port, shard) = (server.port + 10 * shard as u16, shard as u16);
                let folder = match shards {
                    1 => store.clone(),
                    _ => store.join(format!("shard-{shard}")),
                };
                let seed = Random(random.below(u64::MAX >> 33));
                let answered = answered.clone();
                let client = Client::connect(port);
                scope.spawn(move || produce(client, shard, seed, ledger, &answered));
                for queue in 0..QUEUES {
                    let folder = folder.clone();
                    let client = Client::connect(port);
                    scope.spawn(move || consume(client, queue, ledger, &folder));
                }
            }
            for _ in 0..target {
                answers.recv().expect("producers are at work");
            }
            // Every other time not before a further offset is in the file.
            while round % 2 == 1 && ledgers[0].lock().unwrap().committed <= committed {
                answers.recv().expect("producers are at work");
            }
            server.kill();
        });
    }
    for ledger in &ledgers {
        let ledger = ledger.lock().unwrap();
        assert!(
            ledger.certain.len() as u64 > 10 * rounds,
            "the test sent too little"
        );
    }
    assert!(
        ledgers[0].lock().unwrap().committed > 0,
        "nothing was committed"
    );
}

/// Rounds for each setting; the long form is asked for by the environment.
fn rounds() -> u64 {
    let asked = std::env::var("RINGMQ_KILL_ROUNDS").ok();
    asked.and_then(|rounds| rounds.parse().ok()).unwrap_or(5)
}

#[test]
fn kill_nine_loses_nothing_with_one_shard() {
    kill_rounds(1, "ASYNC_FLUSH", rounds(), 0x5eed);
    kill_rounds(1, "SYNC_FLUSH", rounds(), 0x5eed);
}

#[test]
fn kill_nine_loses_nothing_with_two_shards() {
    kill_rounds(2, "ASYNC_FLUSH", rounds(), 0x2bad);
    kill_rounds(2, "SYNC_FLUSH", rounds(), 0x2bad);
}
