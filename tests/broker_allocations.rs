//! A send, a pull that is parked and the wake between them allocate nothing in steady state: handlers, holds and the
//! open batch reuse what they have. Counted are the calls that a turn makes into the broker, over a store on a real
//! ring; what the ring and the store's background work allocate is theirs.
//!
//! The allocator of this test counts what this thread allocates. It has a file of its own, since there is one
//! allocator for a whole program.

use bytes::BytesMut;
use ringmq::broker::{Broker, BrokerConfig, ConfigFiles, Context, Effects, Outcome, Peer, handler};
use ringmq::ids::ConnectionId;
use ringmq::io::uring::{Uring, UringConfig};
use ringmq::io::{Completion, Io, WriteMode};
use ringmq::protocol::codes::ResponseCode;
use ringmq::protocol::command::{Command, Encoding, Scratch};
use ringmq::protocol::frame::{Split, split};
use ringmq::protocol::response::Request;
use ringmq::stats::slow::Hops;
use ringmq::stats::{Asked, Counters};
use ringmq::storage::{Arrival, FetchDone, Fetched, FlushMode, Store, StoreConfig};
use ringmq::testing::config::broker_config;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

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

const PEER: Peer = Peer {
    connection: ConnectionId {
        index: 3,
        generation: 1,
    },
    address: std::net::SocketAddr::new(
        std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9)),
        40_000,
    ),
};

/// A broker on a store in a temporary directory, and what its calls have allocated.
struct Bench {
    io: Uring,
    store: Store,
    broker: Broker,
    effects: Effects,
    counters: Counters,
    scratch: Scratch,
    allocations: usize,
    completions: Vec<Completion>,
    arrivals: Vec<Arrival>,
    fetches: Vec<FetchDone>,
}

macro_rules! context {
    ($bench:ident, $fetched:expr) => {
        &mut Context {
            store: &mut $bench.store,
            now: $bench.io.now(),
            fetched: $fetched,
            first_run: true,
            effects: &mut $bench.effects,
            counters: &mut $bench.counters,
        }
    };
}

impl Bench {
    fn open(root: &std::path::Path) -> Self {
        let mut io = Uring::new(&UringConfig {
            receive_buffers: 8,
            receive_buffer_bytes: 4096,
            write_mode: Some(WriteMode::Inline),
            ..UringConfig::new(root.to_owned())
        })
        .expect("a ring");
        let now = io.now();
        let config = StoreConfig {
            root: root.to_owned(),
            commit_log: root.join("commitlog"),
            consume_queue: root.join("consumequeue"),
            segment_bytes: 16 << 20,
            queue_file_bytes: 6_000_000,
            flush: FlushMode::Async {
                interval_ms: 3_600_000,
                bytes: 1 << 30,
            },
            tail_cache_bytes: 8 << 20,
            entry_cache_bytes: 8 << 20,
            disk_full_percent: 100,
            zero_fill: false,
            delay_levels: Default::default(),
            retention: Default::default(),
            index: Default::default(),
        };
        let (store, _) = Store::open(config, now, &mut io).expect("a store");
        let config = BrokerConfig {
            timer_ms_max: 1,
            ..broker_config()
        };
        Self {
            io,
            store,
            broker: Broker::load(config, ConfigFiles::default()).expect("a broker"),
            effects: Effects::default(),
            counters: Counters::default(),
            scratch: Scratch::default(),
            allocations: 0,
            completions: Vec::new(),
            arrivals: Vec::new(),
            fetches: Vec::new(),
        }
    }

    /// Hands a frame to the broker; what that allocates is counted.
    fn handle(&mut self, stream: &[u8]) -> Outcome {
        let Ok(Split::Frame(frame)) = split(stream) else {
            panic!("a frame");
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        let command = Command::decode(&frame, &mut scratch).expect("a header");
        let none = Fetched::default();
        let before = ALLOCATIONS.get();
        let outcome = handler::handle(&mut self.broker, &command, PEER, context!(self, &none));
        let asked = Asked {
            code: command.code,
            since_us: 0,
        };
        self.counters.count_answer(asked, 0, false);
        self.allocations += ALLOCATIONS.get() - before;
        self.scratch = scratch;
        outcome
    }

    /// Writes what was appended, then wakes; what the wake allocates is counted.
    fn turn(&mut self) {
        let now = self.io.now();
        self.store.seal(now, &mut self.io);
        loop {
            self.io.ready(&mut self.completions);
            if self.completions.is_empty() {
                break;
            }
            for completion in self.completions.drain(..) {
                self.store
                    .on_completion(completion, now, &mut self.io, &mut self.fetches);
            }
        }
        self.store.take_arrivals(&mut self.arrivals);
        let none = Fetched::default();
        for arrival in std::mem::take(&mut self.arrivals) {
            let before = ALLOCATIONS.get();
            self.broker.on_arrival(arrival, context!(self, &none));
            self.allocations += ALLOCATIONS.get() - before;
        }
        self.count_turn();
    }

    /// What a shard counts and measures at the end of a turn.
    fn count_turn(&mut self) {
        let (written_us, visible_us) = self.store.visible_since();
        let hops = Hops {
            written_us,
            visible_us,
            queued_us: self.io.measured_us(),
        };
        let before = ALLOCATIONS.get();
        self.counters.replies_queued(hops, |_| 1);
        self.counters
            .tables
            .slow
            .on_sent(PEER.connection, hops.queued_us);
        self.allocations += ALLOCATIONS.get() - before;
    }

    /// Lets the ring work until all that was appended is visible.
    fn settle(&mut self) {
        let end = self.store.log_bounds().1;
        while self.store.log_bounds().1 == end {
            let deadline = self.io.now().monotonic_us + 1000;
            self.io
                .wait(Some(deadline), &mut self.completions)
                .expect("the ring works");
            self.turn();
        }
    }
}

fn frame_of(code: i32, fields: &[(&str, &str)], body: &[u8]) -> BytesMut {
    let request = Request {
        code,
        opaque: 1,
        one_way: false,
        encoding: Encoding::Json,
        fields,
        body,
    };
    let mut out = BytesMut::new();
    request.encode(&mut out);
    out
}

fn send_frame(tag: &str) -> BytesMut {
    let properties =
        format!("UNIQ_KEY\u{1}7F000001000218B4AAC2000000000000\u{2}TAGS\u{1}{tag}\u{2}");
    let fields = [
        ("a", "PG"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "0"),
        ("f", "0"),
        ("g", "1796098598938"),
        ("h", "0"),
        ("i", &properties),
    ];
    frame_of(310, &fields, b"hello")
}

/// An expression with a sign is SQL92.
fn pull_frame(offset: u64, expression: &str) -> BytesMut {
    let offset = offset.to_string();
    let kind = if expression.contains('=') {
        "SQL92"
    } else {
        "TAG"
    };
    let fields = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("queueOffset", &offset),
        ("maxMsgNums", "32"),
        ("sysFlag", "7"),
        ("commitOffset", &offset),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", expression),
        ("subVersion", "0"),
        ("expressionType", kind),
    ];
    frame_of(11, &fields, b"")
}

/// Sends and pulls in turn, the pull parked before the send; returns the allocations of the second half and how many
/// messages it had.
fn ping_pong(expression: &str, rounds: u64) -> (usize, u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut bench = Bench::open(directory.path());
    let send = send_frame("TagA");
    assert!(matches!(bench.handle(&send), Outcome::Append(_)));
    bench.settle();
    for offset in 1..=rounds {
        if offset == rounds / 2 {
            bench.allocations = 0;
        }
        let pull = pull_frame(offset, expression);
        assert!(matches!(bench.handle(&pull), Outcome::Held));
        assert!(matches!(bench.handle(&send), Outcome::Append(_)));
        let end = bench.store.log_bounds().1;
        bench.turn();
        if bench.store.log_bounds().1 == end {
            bench.settle();
        }
        assert_eq!(bench.effects.replies.len(), 1, "the hold was woken");
        assert_eq!(
            bench.effects.replies[0].response.code,
            ResponseCode::SUCCESS
        );
        let slowest = bench.counters.tables.slow.slowest(0).len() as u64;
        assert_eq!(slowest, offset.min(32), "the recorder is at work");
        bench.effects.replies.clear();
    }
    (bench.allocations, rounds - rounds / 2)
}

#[test]
fn a_send_and_the_wake_of_a_held_pull_allocate_nothing() {
    let sql =
        "TAGS = 'TagA' AND a IS NULL AND (b <= 5 OR UNIQ_KEY CONTAINS 'B4' OR c IN ('x', 'y'))";
    for expression in ["*", "TagA", "TagB || TagA", sql] {
        let (allocations, messages) = ping_pong(expression, 4000);
        assert_eq!(allocations, 0, "for {messages} messages, {expression}");
    }
}

/// A commit, and a pull that goes by the heartbeats of its group.
#[test]
fn a_known_group_is_found_without_an_allocation() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut bench = Bench::open(directory.path());
    assert!(matches!(
        bench.handle(&send_frame("TagA")),
        Outcome::Append(_)
    ));
    let heartbeat = br#"{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T",
        "subString":"TagA","subVersion":1}]}],"producerDataSet":[]}"#;
    let heartbeat = frame_of(34, &[], heartbeat);
    assert!(matches!(bench.handle(&heartbeat), Outcome::Reply(_)));
    let commit = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("commitOffset", "1"),
    ];
    let commit = frame_of(15, &commit, b"");
    let pull = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("queueOffset", "9"),
        ("maxMsgNums", "32"),
        ("sysFlag", "0"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "15000"),
        ("subVersion", "0"),
    ];
    let pull = frame_of(11, &pull, b"");
    for round in 0..100 {
        if round == 50 {
            bench.allocations = 0;
        }
        for frame in [&commit, &pull] {
            let outcome = bench.handle(frame);
            assert!(matches!(outcome, Outcome::Reply(_)), "{outcome:?}");
        }
        bench.count_turn();
    }
    assert_eq!(bench.allocations, 0);
}
