//! A broker over the simulated disk, and the frames that go into it: the same work each time, and none of the kernel.
//!
//! What a benchmark counts is the part of a turn that is ringmq's: [`Desk::handle`], [`Desk::write`] and
//! [`Desk::answer`]. What the simulated disk does is between them, in [`Desk::complete`].
#![allow(dead_code, reason = "every benchmark compiles it, none uses all of it")]

use bytes::BytesMut;
use ringmq::broker::{Broker, ConfigFiles, Context, Effects, Outcome, Peer, handler};
use ringmq::ids::ConnectionId;
use ringmq::io::{Completion, Io};
use ringmq::protocol::command::{Command, Encoding, Scratch};
use ringmq::protocol::frame::{Split, split};
use ringmq::protocol::response::{Request, Response};
use ringmq::stats::{Asked, Counters};
use ringmq::storage::{Arrival, FetchDone, Fetched, FlushMode, Store, StoreConfig};
use ringmq::testing::config::broker_config;
use ringmq::testing::sim_io::SimIo;
use std::net::SocketAddr;
use std::path::PathBuf;

pub const BODY: &[u8] = &[b'x'; 1024];
pub const PROPERTIES: &str = "UNIQ_KEY\u{1}7F000001000218B4AAC2000000000000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}\
    color\u{1}blue\u{2}weight\u{1}17\u{2}";
pub const SQL: &str =
    "TAGS = 'TagA' AND weight BETWEEN 5 AND 20 AND (color IN ('red', 'blue') OR size IS NULL)";

const PEER: Peer = Peer {
    connection: ConnectionId {
        index: 3,
        generation: 1,
    },
    address: SocketAddr::new(
        std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9)),
        40_000,
    ),
};

/// The turns of a shard without its sockets.
pub struct Desk {
    pub io: SimIo,
    pub store: Store,
    pub broker: Broker,
    pub effects: Effects,
    pub counters: Counters,
    scratch: Scratch,
    completions: Vec<Completion>,
    arrivals: Vec<Arrival>,
    fetches: Vec<FetchDone>,
    out: BytesMut,
}

macro_rules! context {
    ($desk:ident, $fetched:expr) => {
        &mut Context {
            store: &mut $desk.store,
            now: $desk.io.now(),
            fetched: $fetched,
            first_run: true,
            effects: &mut $desk.effects,
            counters: &mut $desk.counters,
        }
    };
}

fn store_config() -> StoreConfig {
    let root = PathBuf::from("/store");
    StoreConfig {
        commit_log: root.join("commitlog"),
        consume_queue: root.join("consumequeue"),
        root,
        segment_bytes: 16 << 20,
        queue_file_bytes: 6_000_000,
        flush: FlushMode::Async {
            interval_ms: 3_600_000,
            bytes: 1 << 22,
        },
        tail_cache_bytes: 8 << 20,
        entry_cache_bytes: 8 << 20,
        disk_full_percent: 100,
        retention: Default::default(),
        index: Default::default(),
        zero_fill: false,
        delay_levels: Default::default(),
    }
}

impl Desk {
    pub fn new() -> Self {
        let mut io = SimIo::new();
        let now = io.now();
        let (store, _) = Store::open(store_config(), now, &mut io).expect("a store");
        let mut desk = Self {
            io,
            store,
            broker: Broker::load(broker_config(), ConfigFiles::default()).expect("a broker"),
            effects: Effects::default(),
            counters: Counters::default(),
            scratch: Scratch::default(),
            completions: Vec::new(),
            arrivals: Vec::new(),
            fetches: Vec::new(),
            out: BytesMut::with_capacity(65_536),
        };
        // The first turn of a shard starts what delivers delayed messages.
        desk.expire();
        desk.turn();
        desk
    }

    /// Hands a frame to the broker; bytes of the answer, 0 if there is none yet.
    #[inline(never)]
    pub fn handle(&mut self, stream: &[u8]) -> usize {
        let Ok(Split::Frame(frame)) = split(stream) else {
            panic!("a frame");
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        let command = Command::decode(&frame, &mut scratch).expect("a header");
        let none = Fetched::default();
        let outcome = handler::handle(&mut self.broker, &command, PEER, context!(self, &none));
        let asked = Asked {
            code: command.code,
            since_us: 0,
        };
        self.counters.count_answer(asked, 0, false);
        let bytes = match outcome {
            Outcome::Reply(response) => self.encode(&response),
            Outcome::Append(acknowledgement) => {
                self.encode(&Response::with_header(acknowledgement.header))
            }
            Outcome::Held | Outcome::Nothing => 0,
            other => panic!("no answer: {other:?}"),
        };
        self.scratch = scratch;
        bytes
    }

    fn encode(&mut self, response: &Response) -> usize {
        self.out.clear();
        response.encode_head(1, Encoding::Json, &mut self.out);
        self.out.len()
    }

    /// The open batch becomes a write.
    #[inline(never)]
    pub fn write(&mut self) {
        let now = self.io.now();
        self.store.seal(now, &mut self.io);
    }

    /// The simulated disk works.
    pub fn complete(&mut self) -> bool {
        self.io.ready(&mut self.completions);
        !self.completions.is_empty()
    }

    /// What completed becomes visible, wakes holds, and their answers are encoded; how many there were.
    #[inline(never)]
    pub fn answer(&mut self) -> usize {
        let now = self.io.now();
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.store
                .on_completion(completion, now, &mut self.io, &mut self.fetches);
        }
        self.completions = completions;
        self.store.take_arrivals(&mut self.arrivals);
        let none = Fetched::default();
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for arrival in arrivals.drain(..) {
            self.broker.on_arrival(arrival, context!(self, &none));
        }
        self.arrivals = arrivals;
        self.broker.end_turn(context!(self, &none));
        self.take_replies()
    }

    fn take_replies(&mut self) -> usize {
        assert!(
            self.effects.task_reads.is_empty() && self.effects.reads.is_empty(),
            "all is in memory"
        );
        let mut replies = std::mem::take(&mut self.effects.replies);
        let count = replies.len();
        for reply in replies.drain(..) {
            self.encode(&reply.response);
        }
        self.effects.replies = replies;
        self.effects.files.clear();
        count
    }

    /// All that has to be written and done now; how many held pulls were answered.
    pub fn turn(&mut self) -> usize {
        let mut answered = 0;
        self.write();
        while self.complete() {
            answered += self.answer();
            self.write();
        }
        answered
    }

    /// What is due; how many held pulls were answered.
    pub fn expire(&mut self) -> usize {
        let none = Fetched::default();
        self.broker.expire(context!(self, &none));
        self.take_replies()
    }

    /// What a shard does when it wakes for nothing.
    pub fn idle(&mut self) -> Option<u64> {
        self.expire();
        self.write();
        self.answer();
        let deadlines = [self.broker.next_deadline(), self.store.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Offset of the next message of a queue.
    pub fn end(&self, topic: &str, queue: u32) -> u64 {
        let queue = self.store.queue(topic, queue);
        queue.map_or(0, |queue| self.store.bounds(queue).max.0)
    }
}

fn frame_of(encoding: Encoding, code: i32, fields: &[(&str, &str)], body: &[u8]) -> BytesMut {
    let request = Request {
        code,
        opaque: 1,
        one_way: false,
        encoding,
        fields,
        body,
    };
    let mut out = BytesMut::new();
    request.encode(&mut out);
    out
}

pub fn request_frame(code: i32, fields: &[(&str, &str)], body: &[u8]) -> BytesMut {
    frame_of(Encoding::Json, code, fields, body)
}

pub fn send_frame(encoding: Encoding, queue: u32, properties: &str) -> BytesMut {
    let queue = queue.to_string();
    let fields = [
        ("a", "PG"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", &queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
        ("n", "b"),
    ];
    frame_of(encoding, 310, &fields, BODY)
}

/// A pull that waits. An expression with a sign is SQL92.
pub fn pull_frame(
    encoding: Encoding,
    queue: u32,
    offset: u64,
    expression: &str,
    hold_ms: u64,
) -> BytesMut {
    let (queue, offset, hold_ms) = (queue.to_string(), offset.to_string(), hold_ms.to_string());
    let is_sql = expression.contains('=');
    let fields = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", &*queue),
        ("queueOffset", &offset),
        ("maxMsgNums", "32"),
        // A subscription, and it waits.
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", &hold_ms),
        ("subscription", expression),
        ("subVersion", "0"),
        ("expressionType", if is_sql { "SQL92" } else { "TAG" }),
    ];
    frame_of(encoding, 11, &fields, b"")
}
