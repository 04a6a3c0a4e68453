//! The store on real files through io_uring: rolling, cold reads, restart; how fast an empty store opens; what an
//! append allocates.
//!
//! Method: the test plays the shard's loop. `RINGMQ_MEASURE=1 cargo test --release --test store_files -- --nocapture`
//! also prints figures.

use bytes::Bytes;
use ringmq::clock::Now;
use ringmq::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use ringmq::io::uring::{Uring, UringConfig};
use ringmq::io::{Completion, Io};
use ringmq::protocol::message::NewMessage;
use ringmq::storage::{
    AppendError, Arrival, FetchDone, Fetched, FlushMode, Recovered, Store, StoreConfig,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is; counting touches no heap memory.
#[expect(unsafe_code, reason = "an allocator can't be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: u64 = 1 << 20;
const ASYNC: FlushMode = FlushMode::Async {
    interval_ms: 20,
    bytes: 4 * MIB,
};

fn config(root: &Path, segment_bytes: u64, flush: FlushMode) -> StoreConfig {
    StoreConfig {
        root: root.to_path_buf(),
        commit_log: root.join("commitlog"),
        consume_queue: root.join("consumequeue"),
        segment_bytes,
        queue_file_bytes: 20_000,
        flush,
        tail_cache_bytes: 4 * MIB,
        entry_cache_bytes: MIB / 4,
        disk_full_percent: 100,
        zero_fill: true,
        delay_levels: Default::default(),
        index: Default::default(),
    }
}

fn message<'a>(topic: &'a str, queue_id: u32, body: &'a [u8]) -> NewMessage<'a> {
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
        properties: "UNIQ_KEY\u{1}0A00000200002A9F0000000000000001\u{2}",
        tags_code: 0,
    }
}

/// A store with its ring; the test is its loop.
struct Shop {
    store: Store,
    io: Uring,
    now: Now,
    completions: Vec<Completion>,
    arrivals: Vec<Arrival>,
    done: Vec<FetchDone>,
}

impl Shop {
    fn open(config: StoreConfig) -> (Self, Recovered) {
        std::fs::create_dir_all(&config.root).unwrap();
        let mut io = Uring::new(&UringConfig {
            receive_buffers: 8,
            receive_buffer_bytes: 4096,
            ..UringConfig::new(config.root.clone())
        })
        .unwrap();
        let now = io.now();
        let (store, recovered) = Store::open(config, now, &mut io).unwrap();
        let shop = Self {
            store,
            io,
            now,
            completions: Vec::new(),
            arrivals: Vec::new(),
            done: Vec::new(),
        };
        (shop, recovered)
    }

    fn handle(&mut self) {
        for completion in self.completions.drain(..) {
            // The doorbell rings for the file worker's results.
            if ringmq::storage::TOKEN_KINDS.contains(&completion.token.kind) {
                let (now, io) = (self.now, &mut self.io);
                self.store
                    .on_completion(completion, now, io, &mut self.done);
            }
        }
    }

    /// Seals, and handles what completes at once.
    fn seal(&mut self) {
        self.now = self.io.now();
        self.store.seal(self.now, &mut self.io);
        self.io.ready(&mut self.completions);
        self.handle();
        self.store.take_arrivals(&mut self.arrivals);
    }

    /// Waits for completions, or until the store wants to be woken.
    fn wait(&mut self) {
        let deadline = self.store.next_deadline();
        let soon = self.io.now().after_ms(100);
        let deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
        self.io.wait(deadline, &mut self.completions).unwrap();
        self.now = self.io.now();
        self.handle();
        self.seal();
    }

    fn wait_until(&mut self, mut is_true: impl FnMut(&Self) -> bool) {
        for _ in 0..100_000 {
            if is_true(self) {
                return;
            }
            self.wait();
        }
        panic!("it does not come true");
    }

    /// Appends, waiting while the next segment isn't ready.
    fn send(&mut self, queue: QueueIndex, message: &NewMessage<'_>) -> PhysicalOffset {
        for _ in 0..100_000 {
            match self.store.append(queue, message, self.now) {
                Ok(appended) => return appended.end,
                Err(AppendError::Busy { .. }) => self.wait(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("busy for ever");
    }

    fn read(&mut self, queue: QueueIndex, at: u64) -> Bytes {
        let mut fetched = Fetched::default();
        for _ in 0..4 {
            let entry = self.store.entry(queue, QueueOffset(at), &fetched);
            let record = entry.and_then(|e| self.store.record(e.at, e.bytes, &fetched));
            let missing = match record {
                Ok(record) => return record,
                Err(missing) => missing,
            };
            let done = self.store.fetch(1, &[missing], fetched, &mut self.io);
            if done.is_none() {
                self.wait_until(|shop| !shop.done.is_empty());
            }
            let done = done.or_else(|| self.done.pop()).unwrap();
            fetched = done.result.unwrap();
        }
        panic!("still missing after four reads");
    }

    fn stop(mut self) {
        self.store.begin_stop(self.now, &mut self.io);
        self.wait_until(|shop| shop.store.is_stopped());
    }
}

fn body(number: u64) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(8 + number as usize * 7 % 3000, number as u8);
    body
}

fn contains(record: &[u8], body: &[u8]) -> bool {
    record[88..].starts_with(body)
}

#[test]
fn a_store_rolls_reads_cold_and_comes_back() {
    for flush in [ASYNC, FlushMode::Sync] {
        let directory = tempfile::tempdir().unwrap();
        let config = config(&directory.path().join("store"), MIB, flush);
        let (mut shop, recovered) = Shop::open(config.clone());
        assert!(recovered.clean);
        let queues = [0, 1, 2].map(|id| shop.store.open_queue("T", id));
        const COUNT: u64 = 6000;
        let mut end = PhysicalOffset(0);
        for number in 0..COUNT {
            let queue = (number % 3) as usize;
            end = shop.send(queues[queue], &message("T", queue as u32, &body(number)));
            if number % 7 == 0 {
                shop.seal();
            }
        }
        shop.seal();
        shop.wait_until(|shop| shop.store.visible() == end);
        let check = |shop: &mut Shop| {
            for number in (0..COUNT).step_by(13) {
                let queue = shop.store.queue("T", (number % 3) as u32).unwrap();
                let record = shop.read(queue, number / 3);
                assert!(
                    contains(&record, &body(number)),
                    "{flush:?}: message {number}"
                );
            }
        };
        check(&mut shop);
        shop.stop();
        assert!(!config.root.join("abort").exists());
        let (mut shop, recovered) = Shop::open(config.clone());
        assert!(recovered.clean);
        assert_eq!((recovered.scanned_messages, recovered.end), (0, end));
        assert!(recovered.segments >= 9, "{recovered:?}");
        check(&mut shop);
        // A process that dies closes its files and nothing more.
        let Shop { io, .. } = shop;
        drop(io);
        let (mut shop, recovered) = Shop::open(config);
        assert!(!recovered.clean);
        assert_eq!(recovered.end, end);
        check(&mut shop);
        shop.stop();
    }
}

#[test]
fn an_empty_store_with_large_segments_opens_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        segment_bytes: 1024 * MIB,
        queue_file_bytes: 6_000_000,
        ..config(&directory.path().join("store"), MIB, ASYNC)
    };
    let (shop, recovered) = Shop::open(config);
    // The aim is 100 ms; the bound leaves room for a machine that is busy with other tests.
    assert!(recovered.milliseconds < 1000, "{recovered:?}");
    shop.stop();
}

#[test]
fn steady_appends_allocate_nothing_per_message() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(&directory.path().join("store"), 64 * MIB, ASYNC);
    let (mut shop, _) = Shop::open(config);
    let queue = shop.store.open_queue("T", 0);
    let body = [b'x'; 1024];
    let message = message("T", 0, &body);
    let turn = |shop: &mut Shop, messages: usize| {
        for _ in 0..messages {
            shop.send(queue, &message);
        }
        shop.seal();
        shop.arrivals.clear();
    };
    // The tail cache and all tables grow to their size.
    for _ in 0..600 {
        turn(&mut shop, 16);
    }
    let before = ALLOCATIONS.get();
    for _ in 0..600 {
        turn(&mut shop, 16);
    }
    let allocations = ALLOCATIONS.get() - before;
    // Some for queue files and their writes, none for messages, of which there are 9600.
    assert!(allocations < 600, "{allocations} allocations in 600 turns");
    shop.stop();
}

#[test]
fn figures() {
    if std::env::var_os("RINGMQ_MEASURE").is_none() {
        return;
    }
    for (bytes, per_turn) in [(256, 1), (256, 64), (1024, 16), (1024, 256)] {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            queue_file_bytes: 6_000_000,
            ..config(&directory.path().join("store"), 1024 * MIB, ASYNC)
        };
        let (mut shop, opened) = Shop::open(config.clone());
        let queue = shop.store.open_queue("T", 0);
        let body = vec![b'x'; bytes];
        let message = message("T", 0, &body);
        let count = 400_000 / (bytes / 256);
        let start = shop.io.now().monotonic_us;
        let mut turns = hdrhistogram::Histogram::<u64>::new(3).unwrap();
        for turn in 0..count / per_turn {
            let before = shop.io.now().monotonic_us;
            for _ in 0..per_turn {
                shop.send(queue, &message);
            }
            shop.seal();
            shop.arrivals.clear();
            turns += shop.io.now().monotonic_us - before;
            // Completions of the ring and of the file worker.
            if turn % 64 == 0 {
                shop.io.wait(Some(0), &mut shop.completions).unwrap();
                shop.handle();
            }
        }
        let us = shop.io.now().monotonic_us - start;
        let quantile = |q| turns.value_at_quantile(q);
        println!(
            "{bytes} bytes, {per_turn} a turn: {:.2} us a message; turn p50 {} p99 {} p99.9 {} max {} us; {:?}, open {} ms",
            us as f64 / count as f64,
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            turns.max(),
            shop.io.write_mode(),
            opened.milliseconds
        );
        shop.stop();
        std::fs::remove_dir_all(&config.consume_queue).unwrap();
        let (shop, derived) = Shop::open(config);
        println!(
            "  queues derived again: {} MiB in {} ms",
            derived.scanned_bytes / MIB,
            derived.milliseconds
        );
        shop.stop();
    }
}
