//! Decoding a send or a pull, and encoding its answer, allocates nothing once the buffers have grown.
//!
//! The allocator of this test counts what this thread allocates. It has a file of its own, since there is one
//! allocator for a whole program.

use bytes::{Bytes, BytesMut};
use ringmq::protocol::command::{Command, Encoding, Scratch};
use ringmq::protocol::frame::{Split, split};
use ringmq::protocol::headers::{PullHeader, SendHeader};
use ringmq::protocol::response::{
    MessageIds, PullResponseHeader, Request, Response, ResponseHeader, SendResponseHeader,
};
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

fn allocations(run: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

const SEND: &[(&str, &str)] = &[
    ("a", "PG"),
    ("b", "T"),
    ("c", "TBW102"),
    ("d", "4"),
    ("e", "1"),
    ("f", "0"),
    ("g", "1796098598938"),
    ("h", "0"),
    (
        "i",
        "UNIQ_KEY\u{1}FD00000000000000000000000000000249964E0E2F2A00EAF8130000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA",
    ),
    ("j", "0"),
    ("k", "false"),
    ("m", "false"),
    ("n", "broker-a"),
];

const PULL: &[(&str, &str)] = &[
    ("consumerGroup", "G"),
    ("topic", "T"),
    ("queueId", "7"),
    ("queueOffset", "0"),
    ("maxMsgNums", "32"),
    ("sysFlag", "2"),
    ("commitOffset", "0"),
    ("suspendTimeoutMillis", "15000"),
    ("subVersion", "1796098594697"),
    ("expressionType", "TAG"),
    ("bname", "broker-a"),
];

fn frame_of(code: i32, encoding: Encoding, fields: &[(&str, &str)]) -> BytesMut {
    let request = Request {
        code,
        opaque: 1,
        one_way: false,
        encoding,
        fields,
        body: b"hello",
    };
    let mut out = BytesMut::new();
    request.encode(&mut out);
    out
}

fn decode(stream: &[u8], scratch: &mut Scratch) {
    let Ok(Split::Frame(frame)) = split(stream) else {
        panic!("a frame");
    };
    let command = Command::decode(&frame, scratch).expect("a header");
    match command.code {
        310 => assert_eq!(SendHeader::decode(&command).map(|send| send.topic), Ok("T")),
        _ => assert_eq!(
            PullHeader::decode(&command).map(|pull| pull.queue_id),
            Ok(7)
        ),
    }
}

#[test]
fn the_allocator_counts() {
    assert!(allocations(|| drop(std::hint::black_box(Box::new(1)))) > 0);
}

#[test]
fn decoding_a_send_or_a_pull_allocates_nothing() {
    for encoding in [Encoding::Json, Encoding::Binary] {
        let send = frame_of(310, encoding, SEND);
        let pull = frame_of(11, encoding, PULL);
        let mut scratch = Scratch::default();
        decode(&send, &mut scratch);
        decode(&pull, &mut scratch);
        let allocations = allocations(|| {
            for _ in 0..100 {
                decode(&send, &mut scratch);
                decode(&pull, &mut scratch);
            }
        });
        assert_eq!(allocations, 0, "{encoding:?}");
    }
}

#[test]
fn encoding_an_answer_allocates_nothing() {
    let id = "0A00000100002A9F00000000000003E8";
    let answers = [
        Response::with_header(ResponseHeader::Send(SendResponseHeader {
            message_id: MessageIds::One(id.try_into().expect("an id")),
            queue_id: 1,
            queue_offset: 5,
            transaction_id: Some(id.try_into().expect("an id")),
            region: "DefaultRegion",
            trace_on: true,
        })),
        Response::with_header(ResponseHeader::Pull(PullResponseHeader {
            suggest_which_broker_id: 0,
            next_begin_offset: 6,
            min_offset: 0,
            max_offset: 6,
        })),
        Response::with_body(Bytes::from_static(b"body")),
    ];
    let mut out = BytesMut::with_capacity(4096);
    for encoding in [Encoding::Json, Encoding::Binary] {
        for answer in &answers {
            let allocations = allocations(|| {
                for opaque in 0..100 {
                    out.clear();
                    answer.encode_head(opaque, encoding, &mut out);
                }
            });
            assert_eq!(allocations, 0, "{encoding:?} {answer:?}");
        }
    }
}
