//! Tests of the store as a whole, over a disk in memory.

mod apache;
mod basics;
mod crash;
mod damage;
mod full;
mod index;
mod model;
mod property;
mod queues;
mod retention;

use super::*;
use crate::ids::QueueOffset;
use crate::io::{Completion, Io};
use crate::protocol::delay::DelayLevels;
use crate::protocol::message::{Record, StoredMessage};
use crate::testing::disk::Disk;
use crate::testing::sim_io::SimIo;
use std::net::SocketAddr;

pub const SEGMENT_BYTES: u64 = 4096;
pub const QUEUE_FILE_BYTES: u64 = 200;

pub fn config(flush: FlushMode) -> StoreConfig {
    StoreConfig {
        root: "/store".into(),
        commit_log: "/store/commitlog".into(),
        consume_queue: "/store/consumequeue".into(),
        segment_bytes: SEGMENT_BYTES,
        queue_file_bytes: QUEUE_FILE_BYTES,
        flush,
        tail_cache_bytes: 1 << 20,
        entry_cache_bytes: 1 << 20,
        disk_full_percent: 90,
        zero_fill: true,
        delay_levels: DelayLevels::default(),
        retention: RetentionConfig::default(),
        index: IndexConfig {
            is_enabled: true,
            sizes: IndexSizes {
                slots: 7,
                units: 40,
            },
        },
    }
}

pub const ASYNC: FlushMode = FlushMode::Async {
    interval_ms: 50,
    bytes: 1 << 20,
};

pub fn message<'a>(topic: &'a str, queue_id: u32, body: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic,
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 7,
        born_host: SocketAddr::from(([10, 0, 0, 2], 40_000)),
        store_host: SocketAddr::from(([10, 0, 0, 1], 10_911)),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: "TAGS\u{1}TagA\u{2}",
        tags_code: 2_598_919,
    }
}

/// SplitMix64: enough to choose orders and fates.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A store and its disk, with the loop's part played by the test.
pub struct Shop {
    pub io: SimIo,
    pub store: Store,
    pub recovered: Recovered,
    pub arrivals: Vec<Arrival>,
    pub done: Vec<FetchDone>,
    /// Entries of the last cold read, so that reading on needs no further one.
    kept: Fetched,
}

impl Shop {
    pub fn open(config: StoreConfig) -> Self {
        Self::reopen(Disk::new(), config)
    }

    pub fn reopen(disk: Disk, config: StoreConfig) -> Self {
        Self::try_open(SimIo::with_disk(disk), config)
            .map_err(|(error, _)| error)
            .unwrap()
    }

    #[allow(clippy::result_large_err)] // a test helper: the disk comes back with the error
    pub fn try_open(mut io: SimIo, config: StoreConfig) -> Result<Self, (OpenError, SimIo)> {
        let now = io.now();
        match Store::open(config, now, &mut io) {
            Ok((store, recovered)) => Ok(Self {
                io,
                store,
                recovered,
                arrivals: Vec::new(),
                done: Vec::new(),
                kept: Fetched::default(),
            }),
            Err(error) => Err((error, io)),
        }
    }

    pub fn try_send(
        &mut self,
        topic: &str,
        queue_id: u32,
        body: &[u8],
    ) -> Result<Appended, AppendError> {
        let queue = self.store.open_queue(topic, queue_id);
        let now = self.io.now();
        self.store
            .append(queue, &message(topic, queue_id, body), now)
    }

    pub fn send(&mut self, topic: &str, queue_id: u32, body: &[u8]) -> Appended {
        self.try_send(topic, queue_id, body).unwrap()
    }

    /// Seals, then handles completions until nothing is pending.
    pub fn turn(&mut self) {
        let now = self.io.now();
        self.store.seal(now, &mut self.io);
        self.settle();
    }

    /// Handles completions until nothing is pending.
    pub fn settle(&mut self) {
        loop {
            let mut completions = Vec::new();
            self.io.ready(&mut completions);
            if completions.is_empty() {
                break;
            }
            self.handle(completions);
        }
        self.store.take_arrivals(&mut self.arrivals);
    }

    pub fn handle(&mut self, completions: Vec<Completion>) {
        let now = self.io.now();
        for completion in completions {
            self.store
                .on_completion(completion, now, &mut self.io, &mut self.done);
            self.check_watermarks();
        }
    }

    /// `flushed ≤ written ≤ appended`, and no queue has an entry above `visible`.
    fn check_watermarks(&self) {
        let log = &self.store.log;
        let (flushed, written, appended) = (log.flushed(), log.written(), log.appended());
        assert!(
            flushed <= written && written <= appended,
            "{flushed} {written} {appended}"
        );
        for (topic, queue_id, index) in self.store.queues() {
            let queue = self.store.table.get(index);
            let last = queue.bounds().max.0.checked_sub(1);
            let entry = last.and_then(|last| queue.recent(QueueOffset(last)));
            let end = entry.map_or(PhysicalOffset(0), |entry| entry.end());
            assert!(
                end <= log.visible(),
                "{topic} {queue_id}: {end} above {}",
                log.visible()
            );
        }
    }

    /// Seals, then completes up to `steps` pending operations in an order that the seed chooses. The rest stays in
    /// flight.
    pub fn partial_turn(&mut self, seed: u64, steps: usize) {
        self.io.hold(true);
        let now = self.io.now();
        self.store.seal(now, &mut self.io);
        let mut random = Random(seed);
        for _ in 0..steps {
            let pending = self.io.pending().len();
            if pending == 0 {
                break;
            }
            self.complete(random.below(pending));
        }
        self.io.hold(false);
        self.store.take_arrivals(&mut self.arrivals);
    }

    /// Completes the pending operation at `index`.
    pub fn complete(&mut self, index: usize) {
        let mut completions = Vec::new();
        self.io.complete(index, &mut completions);
        self.handle(completions);
    }

    /// Lets time pass; the store is woken when it asked to be.
    pub fn pass_ms(&mut self, ms: u64) {
        let end = self.io.now().monotonic_us + ms * 1000;
        for _ in 0..10_000 {
            let Some(deadline) = self
                .store
                .next_deadline()
                .filter(|deadline| *deadline <= end)
            else {
                let left = end - self.io.now().monotonic_us;
                self.io.advance_ms(left.div_ceil(1000));
                return;
            };
            let late = deadline.saturating_sub(self.io.now().monotonic_us);
            self.io.advance_ms(late.div_ceil(1000));
            self.turn();
        }
        panic!(
            "the store asks to be woken again and again: {:?}",
            self.store.next_deadline()
        );
    }

    pub fn stop(&mut self) {
        let now = self.io.now();
        self.store.begin_stop(now, &mut self.io);
        self.settle();
    }

    /// Stops in order and opens again.
    pub fn restart(mut self) -> Self {
        self.stop();
        assert!(self.store.is_stopped(), "{:?}", self.store);
        let config = self.store.config().clone();
        let disk = self.io.disk().clone();
        Self::reopen(disk, config)
    }

    pub fn bounds(&self, topic: &str, queue_id: u32) -> (u64, u64) {
        let queue = self.store.queue(topic, queue_id).expect("the queue exists");
        let bounds = self.store.bounds(queue);
        (bounds.min.0, bounds.max.0)
    }

    /// Reads one message as a pull would: entry, record, with cold reads where they are missing.
    pub fn read(&mut self, topic: &str, queue_id: u32, at: u64) -> Result<Bytes, String> {
        let queue = self.store.queue(topic, queue_id).ok_or("no such queue")?;
        let mut fetched = std::mem::take(&mut self.kept);
        for _ in 0..4 {
            let result = self
                .store
                .entry(queue, QueueOffset(at), &fetched)
                .and_then(|entry| self.store.record(entry.at, entry.bytes, &fetched));
            let missing = match result {
                Ok(record) => {
                    fetched.ranges.clear();
                    fetched
                        .entries
                        .drain(..fetched.entries.len().saturating_sub(1));
                    self.kept = fetched;
                    return Ok(record);
                }
                Err(missing) => missing,
            };
            fetched = match self.store.fetch(9, &[missing], fetched, &mut self.io) {
                Some(done) => done.result?,
                None => {
                    self.settle();
                    let done = self.done.pop().ok_or("the read did not complete")?;
                    assert_eq!(done.key, 9);
                    done.result?
                }
            };
        }
        Err("still missing after four reads".to_owned())
    }

    pub fn body(&mut self, topic: &str, queue_id: u32, at: u64) -> Vec<u8> {
        let record = self.read(topic, queue_id, at).unwrap();
        let Ok(Record::Message(message)) = StoredMessage::decode(&record) else {
            panic!("no message at {at} of {topic} {queue_id}");
        };
        assert_eq!(message.topic, topic);
        assert_eq!(message.queue_id as u32, queue_id);
        assert_eq!(message.queue_offset, QueueOffset(at));
        message.check_body_crc().unwrap();
        message.body.to_vec()
    }

    /// All bodies of a queue, in order.
    pub fn bodies(&mut self, topic: &str, queue_id: u32) -> Vec<String> {
        let (min, max) = self.bounds(topic, queue_id);
        let bodies = (min..max).map(|at| self.body(topic, queue_id, at));
        bodies
            .map(|body| String::from_utf8(body).unwrap())
            .collect()
    }
}
