//! Clients that put load on a broker until it is gone, and remember what they were told.

use super::{Client, Server};
use ringmq::testing::ledger::{Crash, Durability, Event, Finding, Ledger, Place, Seen, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// Of the topic `T`, in each shard.
pub const QUEUES: u32 = 3;
const GROUP: &str = "TOOLS_CONSUMER";

/// A small generator; the seed is printed when a cycle fails.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The text of a message, all of which follows from its value.
fn body(value: Value) -> Vec<u8> {
    let mut random = Random(u64::from(value.producer) << 32 ^ value.sequence);
    let length = random.below(1500) as usize;
    let letter = char::from(b'a' + random.below(26) as u8);
    let filler = letter.to_string().repeat(length);
    format!("{} {} {filler}", value.producer, value.sequence).into_bytes()
}

fn seen(bytes: &[u8]) -> Seen {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut words = text.split(' ');
    let producer = words.next()?.parse().ok()?;
    let sequence = words.next()?.parse().ok()?;
    let value = Value { producer, sequence };
    (body(value) == bytes).then_some(value)
}

/// One ageing store and what all clients know of it.
pub struct Run {
    ledger: Mutex<Ledger>,
    /// Answers that come while the fault is being made tell nothing.
    is_over: AtomicBool,
    began: Instant,
    producers: AtomicU32,
    positions: AtomicU64,
    /// Committed offset of queue 0 of shard 0 that the file on disk held.
    committed: AtomicU64,
    /// Messages that a consumer was handed.
    pub delivered: AtomicU64,
    /// Acknowledged while it counted.
    pub acknowledged: AtomicU64,
}

impl Run {
    pub fn new(durability: Durability) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new(durability)),
            is_over: AtomicBool::new(false),
            began: Instant::now(),
            producers: AtomicU32::new(0),
            positions: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Notes what a client learnt, unless the fault has begun.
    fn learn(&self, event: &Event) -> bool {
        let mut ledger = self.ledger.lock().expect("no client panicked");
        let counts = !self.is_over.load(Ordering::SeqCst);
        if counts {
            ledger.note(event);
        }
        counts
    }

    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    pub fn certain(&self) -> usize {
        self.ledger.lock().expect("no client panicked").certain()
    }

    pub fn findings(&self) -> Vec<Finding> {
        let ledger = self.ledger.lock().expect("no client panicked");
        ledger.findings().to_vec()
    }

    /// Before the fault is made: what arrives from here on tells nothing.
    pub fn end_of_knowledge(&self) {
        let _ledger = self.ledger.lock().expect("no client panicked");
        self.is_over.store(true, Ordering::SeqCst);
    }

    fn crashed(&self, how: Crash) {
        let mut ledger = self.ledger.lock().expect("no client panicked");
        let at_ms = self.now_ms();
        ledger.note(&Event::Crashed { how, at_ms });
        self.is_over.store(false, Ordering::SeqCst);
    }

    /// Reads everything back from a broker that was started again, after a crash or an orderly stop.
    pub fn read_back(&self, port: u16, shards: u16, how: Crash) {
        self.crashed(how);
        for shard in 0..shards {
            let mut client = Client::connect(port + 10 * shard);
            for queue in 0..QUEUES {
                let queue_text = queue.to_string();
                let query = [
                    ("consumerGroup", GROUP),
                    ("topic", "T"),
                    ("queueId", &*queue_text),
                ];
                let answer = client.call(14, &query, &[]);
                let committed = answer.fields.get("offset");
                let committed = committed.map_or(-1, |text| text.parse().expect("a number"));
                let messages = client.read_queue_if_there("T", queue);
                let messages = messages.iter().map(|(at, body)| (*at, seen(body)));
                let event = Event::ReadBack {
                    queue: u32::from(shard) * QUEUES + queue,
                    messages: messages.collect(),
                    committed,
                    at_ms: self.now_ms(),
                };
                self.learn(&event);
            }
        }
    }

    /// Puts load on all shards until `fault` has ended the server, which it does after `target` answers.
    pub fn load(
        &self,
        port: u16,
        store: &Path,
        shards: u16,
        random: &mut Random,
        mut is_enough: impl FnMut(u64) -> bool,
        fault: impl FnOnce(),
    ) {
        let (answered, answers) = channel();
        std::thread::scope(|scope| {
            for shard in 0..shards {
                let folder = shard_folder(store, shard, shards);
                let random = Random(random.below(u64::MAX >> 33));
                let answered = answered.clone();
                let client = Client::connect(port + 10 * shard);
                scope.spawn(move || self.produce(client, shard, random, &answered));
                for queue in 0..QUEUES {
                    let folder = folder.clone();
                    let client = Client::connect(port + 10 * shard);
                    scope.spawn(move || self.consume(client, shard, queue, &folder));
                }
            }
            drop(answered);
            let mut count = 0;
            while !is_enough(count) {
                answers.recv().expect("producers are at work");
                count += 1;
            }
            fault();
        });
    }

    /// Sends until the broker is gone: single messages and batches, up to eight without an answer.
    fn produce(&self, mut client: Client, shard: u16, mut random: Random, answered: &Sender<()>) {
        let producer = self.producers.fetch_add(1, Ordering::SeqCst);
        let mut sequence = 0;
        let mut waiting: BTreeMap<i32, (u32, Vec<Value>)> = BTreeMap::new();
        loop {
            let queue = random.below(u64::from(QUEUES)) as u32;
            let is_batch = random.below(4) == 0;
            let count = if is_batch { 1 + random.below(5) } else { 1 };
            let global = u32::from(shard) * QUEUES + queue;
            let values: Vec<Value> = (sequence..sequence + count)
                .map(|sequence| Value { producer, sequence })
                .collect();
            sequence += count;
            {
                // From here on they may be there, answered or not; a fault that has begun changes nothing about that.
                let mut ledger = self.ledger.lock().expect("no client panicked");
                for value in &values {
                    let queue = global;
                    ledger.note(&Event::Sent {
                        value: *value,
                        queue,
                    });
                }
            }
            let bodies: Vec<Vec<u8>> = values.iter().map(|value| body(*value)).collect();
            let queue_text = queue.to_string();
            let fields = super::send_fields("T", &queue_text, "TAGS\u{1}A");
            let sent = if is_batch {
                let fields = [&fields[..], &[("m", "true")]].concat();
                client.try_send(320, &fields, &super::batch(&bodies))
            } else {
                client.try_send(310, &fields, &bodies[0])
            };
            let Some(opaque) = sent else { return };
            waiting.insert(opaque, (global, values));
            while waiting.len() > random.below(8) as usize {
                let Some(answer) = client.receive() else {
                    return;
                };
                let (queue, values) = waiting.remove(&answer.opaque).expect("an answer to a send");
                for (index, value) in (0..).zip(values) {
                    match answer.code {
                        0 => {
                            let offset = answer.number("queueOffset") as u64 + index;
                            let place = Place { queue, offset };
                            let at_ms = self.now_ms();
                            let counts = self.learn(&Event::Acknowledged {
                                value,
                                place,
                                at_ms,
                            });
                            self.acknowledged
                                .fetch_add(u64::from(counts), Ordering::SeqCst);
                        }
                        // Busy, or the disk is full: the broker says that it took nothing.
                        2 | 14 => {
                            self.learn(&Event::Refused { value });
                        }
                        // The disk failed or is late: it may be there.
                        1 | 10 => {}
                        other => panic!("a send was answered {other}: {}", answer.remark),
                    }
                }
                if answered.send(()).is_err() {
                    return;
                }
            }
        }
    }

    /// Pulls a queue, held where there is nothing yet, and commits, until the broker is gone.
    fn consume(&self, mut client: Client, shard: u16, queue: u32, store: &Path) {
        let position = self.positions.fetch_add(1, Ordering::SeqCst);
        let global = u32::from(shard) * QUEUES + queue;
        let queue_text = queue.to_string();
        let group = [
            ("consumerGroup", GROUP),
            ("topic", "T"),
            ("queueId", &*queue_text),
        ];
        let sent = client.try_send(14, &group, &[]);
        let Some(answer) = sent.and_then(|_| client.receive()) else {
            return;
        };
        let offset = answer.fields.get("offset");
        let mut offset = offset.map_or(0, |offset| offset.parse().expect("a number"));
        loop {
            let pull = client.try_start_pull("T", queue, offset, 15_000, "*");
            let Some(answer) = pull.and_then(|_| client.receive()) else {
                return;
            };
            if answer.code == 17 {
                // Nobody has sent yet.
                continue;
            }
            offset = answer.number("nextBeginOffset") as u64;
            for (at, body) in answer.messages() {
                let place = Place {
                    queue: global,
                    offset: at,
                };
                let counts = self.learn(&Event::Delivered {
                    position,
                    place,
                    seen: seen(&body),
                    at_ms: self.now_ms(),
                });
                self.delivered
                    .fetch_add(u64::from(counts), Ordering::SeqCst);
            }
            let offset_text = offset.to_string();
            let commit = [&group[..], &[("commitOffset", &*offset_text)]].concat();
            if client.try_send(15, &commit, &[]).is_none() || client.receive().is_none() {
                return;
            }
            if global == 0 {
                self.note_committed(store);
            }
        }
    }

    /// What the file of committed offsets says is promised to survive.
    fn note_committed(&self, store: &Path) {
        let Ok(text) = std::fs::read_to_string(store.join("config/consumerOffset.json")) else {
            return;
        };
        let table: serde_json::Value =
            serde_json::from_str(&text).expect("a file that is replaced as a whole");
        let offset = table["offsetTable"][format!("T@{GROUP}")]["0"].as_u64();
        let offset = offset.unwrap_or(0);
        let before = self.committed.fetch_max(offset, Ordering::SeqCst);
        assert!(offset >= before, "the committed offset went back");
        self.learn(&Event::Committed { queue: 0, offset });
    }
}

pub fn shard_folder(store: &Path, shard: u16, shards: u16) -> PathBuf {
    match shards {
        1 => store.to_path_buf(),
        _ => store.join(format!("shard-{shard}")),
    }
}

/// Starts a broker on the store, reads everything back, puts load on it and kills it, `rounds` times.
pub fn kill_rounds(
    run: &Run,
    store: &Path,
    shards: u16,
    flags: &[(&str, &str)],
    rounds: u64,
    seed: u64,
    mut before_start: impl FnMut(u64),
) {
    let mut random = Random(seed);
    let is_slow = flags.contains(&("flushDiskType", "SYNC_FLUSH"));
    for round in 0..=rounds {
        before_start(round);
        let server = Server::start(store, flags);
        if round > 0 {
            run.read_back(server.port, shards, Crash::Process);
        }
        let findings = run.findings();
        assert!(
            findings.is_empty(),
            "{shards} shards, {flags:?}, round {round}, seed {seed:#x}: {findings:?}"
        );
        if round == rounds {
            server.stop();
            break;
        }
        let committed = run.committed();
        let target = 10 + random.below(if is_slow { 60 } else { 300 });
        // Every other time not before a further offset is in the file.
        let is_enough = |count| count >= target && (round % 2 == 0 || run.committed() > committed);
        let port = server.port;
        run.load(port, store, shards, &mut random, is_enough, move || {
            server.kill();
        });
    }
}
