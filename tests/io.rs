//! The backend on the real kernel: what a close, a full socket, a full disk, a signal and a lack of buffers come to;
//! who owns memory until when; kernels that lack something.

mod support;

use bytes::Bytes;
use ringmq::io::uring::{Features, TaskWork, Uring, UringConfig};
use ringmq::io::{Completion, Done, File, FileSystem, Io, Op, Socket, Token, WriteMode};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::{Client, Server, free_ports};

const PATIENCE: Duration = Duration::from_secs(20);
const ACCEPT: Token = Token::new(1, 0, 0);
const RECEIVE: Token = Token::new(2, 7, 1);
const SEND: Token = Token::new(3, 7, 1);
const CLOSE: Token = Token::new(4, 7, 1);
const FILE: Token = Token::new(5, 0, 0);

const ALL_FEATURES: [Features; 3] = [
    Features::BEST,
    Features {
        task_work: TaskWork::Cooperative,
        multishot: true,
    },
    Features::LEAST,
];

/// A ring and what it has completed; the test is its loop.
struct Loop {
    io: Uring,
    completions: Vec<Completion>,
    /// Of the files, and of the probe of their file system.
    directory: tempfile::TempDir,
}

impl Loop {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut UringConfig)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = UringConfig::new(directory.path().to_owned());
        change(&mut config);
        Self {
            io: Uring::new(&config).expect("a ring"),
            completions: Vec::new(),
            directory,
        }
    }

    /// The next completion with that token; others stay.
    fn next(&mut self, token: Token) -> Completion {
        let started = Instant::now();
        loop {
            if let Some(at) = self.completions.iter().position(|c| c.token == token) {
                return self.completions.remove(at);
            }
            assert!(started.elapsed() < PATIENCE, "no completion of {token:?}");
            let deadline = self.io.now().after_ms(100);
            self.io
                .wait(Some(deadline), &mut self.completions)
                .expect("a ring that works");
        }
    }

    /// Turns once, for whatever there is.
    fn turn(&mut self, ms: u64) {
        let deadline = self.io.now().after_ms(ms);
        self.io
            .wait(Some(deadline), &mut self.completions)
            .expect("a ring that works");
    }

    fn listen(&mut self) -> (Socket, SocketAddr) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (listener, address) = self.io.listen(any).expect("listens");
        self.io.submit(ACCEPT, Op::Accept { listener });
        (listener, address)
    }

    fn accept(&mut self, listener: Socket, address: SocketAddr) -> (TcpStream, Socket) {
        let stream = TcpStream::connect(address).expect("connects");
        let completion = self.next(ACCEPT);
        if !completion.more {
            self.io.submit(ACCEPT, Op::Accept { listener });
        }
        match completion.result {
            Ok(Done::Accepted { socket, peer }) => {
                assert_eq!(Some(peer), stream.local_addr().ok());
                (stream, socket)
            }
            other => panic!("accept: {other:?}"),
        }
    }

    fn pair(&mut self) -> (TcpStream, Socket) {
        let (listener, address) = self.listen();
        self.accept(listener, address)
    }

    /// Takes all bytes of one receive completion and gives the buffer back.
    fn take(&mut self, done: Done, into: &mut Vec<u8>) {
        match done {
            Done::Received { buffer, bytes } => {
                into.extend_from_slice(self.io.received(buffer, bytes));
                self.io.release(buffer);
            }
            other => panic!("receive: {other:?}"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn errno(completion: Completion) -> i32 {
    completion.result.expect_err("a failure").errno
}

/// Memory that says when it is freed.
struct Watched {
    memory: Vec<u8>,
    freed: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::Release);
    }
}

fn watched(len: usize) -> (Bytes, Arc<AtomicBool>) {
    let freed = Arc::new(AtomicBool::new(false));
    let pattern: Vec<u8> = (0..251).collect();
    let mut memory = pattern.repeat(len / 251 + 1);
    memory.truncate(len);
    let freed_too = Arc::clone(&freed);
    let bytes = Bytes::from_owner(Watched {
        memory,
        freed: freed_too,
    });
    (bytes, freed)
}

/// More than sockets of this machine take in while nobody reads.
const TOO_MUCH: usize = 48 << 20;

#[test]
fn what_is_sent_arrives_whatever_the_kernel_has() {
    for features in ALL_FEATURES {
        let mut turns = Loop::with(|config| config.features = features);
        assert_eq!(turns.io.features(), features);
        let (listener, address) = turns.listen();
        for round in 0..3_u8 {
            let (mut stream, socket) = turns.accept(listener, address);
            turns.io.submit(RECEIVE, Op::Receive { socket });
            let sent: Vec<u8> = (0..200_000_u32).map(|i| (i as u8) ^ round).collect();
            let mut received = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| stream.write_all(&sent).expect("sends"));
                while received.len() < sent.len() {
                    let completion = turns.next(RECEIVE);
                    let more = completion.more;
                    match completion.result {
                        Ok(done) => turns.take(done, &mut received),
                        Err(failed) => assert_eq!(failed.errno, libc::ENOBUFS, "{features:?}"),
                    }
                    if !more {
                        turns.io.submit(RECEIVE, Op::Receive { socket });
                    }
                }
            });
            assert!(received == sent, "{features:?}: other bytes");
            let segments = vec![Bytes::from(received), Bytes::from_static(b"end")];
            turns.io.submit(SEND, Op::Send { socket, segments });
            let mut echoed = vec![0; sent.len() + 3];
            let reader = std::thread::spawn(move || {
                stream.read_exact(&mut echoed).expect("receives");
                (stream, echoed)
            });
            match turns.next(SEND).result {
                Ok(Done::Sent { bytes, .. }) => assert_eq!(bytes, sent.len() + 3),
                other => panic!("{features:?}: {other:?}"),
            }
            let (stream, echoed) = reader.join().expect("no panic");
            assert!(echoed == [&sent[..], b"end"].concat(), "{features:?}");
            drop(stream);
            let ended = turns.next(RECEIVE);
            assert!(matches!(ended.result, Ok(Done::ReceiveEnded)), "{ended:?}");
            turns.io.submit(CLOSE, Op::Close { socket });
            assert!(matches!(turns.next(CLOSE).result, Ok(Done::Closed)));
        }
        assert_eq!(turns.io.in_flight(), 1, "only the accept: {features:?}");
    }
}

/// Each operation ends with its own completion, the close with the last one.
#[test]
fn a_close_ends_the_receive_and_the_send_in_flight() {
    for features in ALL_FEATURES {
        let mut turns = Loop::with(|config| config.features = features);
        let (_silent, socket) = turns.pair();
        turns.io.submit(RECEIVE, Op::Receive { socket });
        let (bytes, freed) = watched(TOO_MUCH);
        let segments = vec![bytes];
        turns.io.submit(SEND, Op::Send { socket, segments });
        turns.turn(50);
        assert!(turns.completions.is_empty(), "{:?}", turns.completions);
        turns.io.submit(CLOSE, Op::Close { socket });
        let started = Instant::now();
        while !turns.completions.iter().any(|c| c.token == CLOSE) {
            assert!(started.elapsed() < PATIENCE);
            turns.turn(100);
        }
        let order: Vec<Token> = turns.completions.iter().map(|c| c.token).collect();
        assert_eq!(order.len(), 3, "{:?}", turns.completions);
        assert_eq!(order[2], CLOSE, "{:?}", turns.completions);
        for completion in turns.completions.drain(..) {
            match (completion.token, completion.result) {
                (RECEIVE, Ok(Done::ReceiveEnded)) => {}
                (RECEIVE, Err(failed)) => assert_eq!(failed.errno, libc::ECANCELED),
                // What the peer's machine had taken was sent.
                (SEND, Ok(Done::Sent { bytes, .. })) => assert!(bytes < TOO_MUCH),
                (SEND, Err(failed)) => assert_eq!(failed.errno, libc::EPIPE),
                (CLOSE, Ok(Done::Closed)) => {}
                other => panic!("{features:?}: {other:?}"),
            }
        }
        assert!(freed.load(Ordering::Acquire));
    }
}

/// A slot that is used again: what the old connection still completes has the old generation.
#[test]
fn a_token_comes_back_with_its_own_generation() {
    let mut turns = Loop::new();
    let (listener, address) = turns.listen();
    let (_first, old) = turns.accept(listener, address);
    turns.io.submit(RECEIVE, Op::Receive { socket: old });
    turns.turn(0);
    turns.io.submit(CLOSE, Op::Close { socket: old });
    turns.next(CLOSE);
    let (mut second, new) = turns.accept(listener, address);
    assert_eq!(old, new, "the slot is used again");
    let next = Token::new(RECEIVE.kind, RECEIVE.index, RECEIVE.generation + 1);
    turns.io.submit(next, Op::Receive { socket: new });
    second.write_all(b"new").expect("sends");
    let received = turns.next(next);
    assert!(received.result.is_ok(), "{received:?}");
    let late = turns.next(RECEIVE);
    assert!(!late.more);
    assert!(!matches!(late.result, Ok(Done::Received { .. })));
}

#[test]
fn a_closed_socket_takes_no_operation() {
    let mut turns = Loop::new();
    let (_peer, socket) = turns.pair();
    turns.io.submit(CLOSE, Op::Close { socket });
    assert!(matches!(turns.next(CLOSE).result, Ok(Done::Closed)));
    turns.io.submit(RECEIVE, Op::Receive { socket });
    assert_eq!(errno(turns.next(RECEIVE)), libc::EBADF);
    let segments = vec![Bytes::from_static(b"x")];
    turns.io.submit(SEND, Op::Send { socket, segments });
    assert_eq!(errno(turns.next(SEND)), libc::EBADF);
    turns.io.submit(CLOSE, Op::Close { socket });
    assert_eq!(errno(turns.next(CLOSE)), libc::EBADF);
}

/// All buffers are lent: the receive ends, and goes on where it was once some are back.
#[test]
fn a_receive_without_buffers_ends_and_goes_on() {
    for features in ALL_FEATURES {
        let mut turns = Loop::with(|config| {
            config.receive_buffers = 2;
            config.receive_buffer_bytes = 4096;
            config.features = features;
        });
        let (mut stream, socket) = turns.pair();
        let sent: Vec<u8> = (0..50_000_u32).map(|i| i as u8).collect();
        stream.write_all(&sent).expect("fits the socket");
        let (mut received, mut lent, mut starved) = (Vec::new(), Vec::new(), 0);
        turns.io.submit(RECEIVE, Op::Receive { socket });
        while received.len() < sent.len() {
            let completion = turns.next(RECEIVE);
            let more = completion.more;
            match completion.result {
                Ok(Done::Received { buffer, bytes }) => {
                    received.extend_from_slice(turns.io.received(buffer, bytes));
                    lent.push(buffer);
                }
                Err(failed) => {
                    assert_eq!((failed.errno, more), (libc::ENOBUFS, false));
                    starved += 1;
                    lent.drain(..).for_each(|buffer| turns.io.release(buffer));
                }
                other => panic!("{other:?}"),
            }
            if !more {
                turns.io.submit(RECEIVE, Op::Receive { socket });
            }
        }
        assert!(received == sent, "{features:?}: other bytes");
        assert!(starved > 3, "{features:?}: {starved} times without buffers");
    }
}

/// Stopped, what has arrived is still handed over; then nothing more until it is armed again.
#[test]
fn a_receive_that_is_stopped_loses_nothing() {
    for features in ALL_FEATURES {
        let mut turns = Loop::with(|config| config.features = features);
        let (mut stream, socket) = turns.pair();
        turns.io.submit(RECEIVE, Op::Receive { socket });
        turns.turn(0);
        stream.write_all(b"before").expect("sends");
        turns.io.submit(RECEIVE, Op::StopReceive { socket });
        let mut received = Vec::new();
        loop {
            let completion = turns.next(RECEIVE);
            let more = completion.more;
            match completion.result {
                Ok(done) => turns.take(done, &mut received),
                Err(failed) => assert_eq!(failed.errno, libc::ECANCELED),
            }
            if !more {
                break;
            }
        }
        stream.write_all(b" after").expect("sends");
        turns.turn(50);
        assert!(turns.completions.is_empty(), "{:?}", turns.completions);
        turns.io.submit(RECEIVE, Op::StopReceive { socket });
        turns.io.submit(RECEIVE, Op::Receive { socket });
        while received.len() < b"before after".len() {
            let done = turns.next(RECEIVE).result.expect("bytes");
            turns.take(done, &mut received);
            if !features.multishot {
                turns.io.submit(RECEIVE, Op::Receive { socket });
            }
        }
        assert_eq!(received, b"before after", "{features:?}");
    }
}

#[test]
fn memory_belongs_to_the_ring_until_the_completion_is_taken() {
    let mut turns = Loop::new();
    let (mut stream, socket) = turns.pair();
    let (bytes, freed) = watched(TOO_MUCH);
    let expected = bytes.to_vec();
    let segments = vec![bytes];
    turns.io.submit(SEND, Op::Send { socket, segments });
    turns.turn(50);
    assert!(!freed.load(Ordering::Acquire), "freed while it is sent");
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; TOO_MUCH];
        stream.read_exact(&mut received).expect("receives");
        (stream, received)
    });
    let sent = turns.next(SEND);
    assert!(!freed.load(Ordering::Acquire), "the completion has it");
    drop(sent);
    assert!(freed.load(Ordering::Acquire));
    let (_stream, received) = reader.join().expect("no panic");
    assert!(received == expected, "other bytes");
}

/// A ring that goes while the kernel has memory of it: not before the kernel has given it back.
#[test]
fn a_ring_is_dropped_with_operations_in_flight() {
    for features in ALL_FEATURES {
        let mut turns = Loop::with(|config| config.features = features);
        let (mut stream, socket) = turns.pair();
        turns.io.submit(RECEIVE, Op::Receive { socket });
        let (bytes, freed) = watched(TOO_MUCH);
        let expected = bytes.to_vec();
        let segments = vec![bytes];
        turns.io.submit(SEND, Op::Send { socket, segments });
        turns.turn(50);
        let started = Instant::now();
        drop(turns);
        assert!(started.elapsed() < PATIENCE);
        assert!(freed.load(Ordering::Acquire), "{features:?}: leaked");
        let mut received = Vec::new();
        // An end or a reset: the rest was never sent.
        let _ = stream.read_to_end(&mut received);
        assert!(received.len() < TOO_MUCH);
        assert!(expected.starts_with(&received), "{features:?}: other bytes");
    }
}

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Release);
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

#[test]
#[expect(unsafe_code, reason = "a signal for one thread")]
fn a_signal_interrupts_a_wait_and_nothing_else() {
    // SAFETY: the handler only adds to a number; without SA_RESTART, so that the system call returns.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as *const () as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let mut turns = Loop::new();
    let (mut stream, socket) = turns.pair();
    turns.io.submit(RECEIVE, Op::Receive { socket });
    // SAFETY: no preconditions.
    let waiting = unsafe { libc::pthread_self() };
    let noticed = Arc::new(AtomicBool::new(false));
    let noticed_too = Arc::clone(&noticed);
    let signals = std::thread::spawn(move || {
        while !noticed_too.load(Ordering::Acquire) {
            // SAFETY: the thread lives, since it joins this one.
            unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) };
            std::thread::yield_now();
        }
        stream.write_all(b"after").expect("sends");
        stream
    });
    // Without a deadline, so that only a signal can end it.
    let waited = turns.io.wait(None, &mut turns.completions);
    noticed.store(true, Ordering::Release);
    waited.expect("an interrupted wait is no failure");
    let _stream = signals.join().expect("no panic");
    assert!(SIGNALS.load(Ordering::Acquire) > 0);
    let mut received = Vec::new();
    while received.len() < 5 {
        let done = turns.next(RECEIVE).result.expect("bytes");
        turns.take(done, &mut received);
    }
    assert_eq!(received, b"after");
}

/// A pipe takes part of a write and gives part of a read: both go on until they are whole.
#[test]
fn short_writes_and_reads_go_on() {
    let mut turns = Loop::with(|config| config.write_mode = Some(WriteMode::Ring));
    let path = turns.path("pipe");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let file = turns.io.open(&path).expect("opens");
    let mut other = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("opens");
    let (bytes, freed) = watched(300_000);
    let expected = bytes.to_vec();
    let write = Op::Write {
        file,
        position: 0,
        bytes,
    };
    turns.io.submit(FILE, write);
    turns.turn(20);
    assert!(turns.completions.is_empty(), "the pipe took all of it");
    assert!(!freed.load(Ordering::Acquire));
    let len = expected.len();
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; len];
        other.read_exact(&mut received).expect("reads");
        (other, received)
    });
    assert!(matches!(turns.next(FILE).result, Ok(Done::Written)));
    let (mut other, received) = reader.join().expect("no panic");
    assert!(received == expected, "other bytes");
    let read = Op::Read {
        file,
        position: 0,
        len: 30_000,
    };
    turns.io.submit(FILE, read);
    for part in expected[..30_000].chunks(10_000) {
        assert!(turns.completions.is_empty(), "{:?}", turns.completions);
        other.write_all(part).expect("writes");
        turns.turn(20);
    }
    match turns.next(FILE).result {
        Ok(Done::Read { bytes }) => assert!(bytes == expected[..30_000], "other bytes"),
        other => panic!("{other:?}"),
    }
}

/// A read ends short at the end of the file, and only there.
#[test]
fn files_are_written_read_and_flushed_in_both_modes() {
    for mode in [WriteMode::Inline, WriteMode::Ring] {
        let mut turns = Loop::with(|config| config.write_mode = Some(mode));
        let path = turns.path("file");
        let file = turns.io.create(&path, 0).expect("a file");
        // Below and above what is written inline.
        for (position, len) in [(0, 1000), (1000, 300_000)] {
            let (bytes, freed) = watched(len);
            let write = Op::Write {
                file,
                position,
                bytes,
            };
            turns.io.submit(FILE, write);
            assert!(matches!(turns.next(FILE).result, Ok(Done::Written)));
            assert!(freed.load(Ordering::Acquire));
        }
        turns.io.submit(FILE, Op::Flush { file });
        assert!(matches!(turns.next(FILE).result, Ok(Done::Flushed)));
        let read = Op::Read {
            file,
            position: 500,
            len: 1_000_000,
        };
        turns.io.submit(FILE, read);
        let whole = std::fs::read(&path).expect("a file");
        assert_eq!(whole.len(), 301_000);
        match turns.next(FILE).result {
            Ok(Done::Read { bytes }) => assert!(bytes == whole[500..], "other bytes"),
            other => panic!("{other:?}"),
        }
    }
}

/// A small file system of its own, gone at the end.
struct Mount(tempfile::TempDir);

impl Mount {
    /// `None`: this user may not mount.
    fn new(kib: u32) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
            .arg(directory.path())
            .output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        mounted.then_some(Self(directory))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "umount");
    }
}

#[test]
fn a_full_disk_fails_the_write_and_nothing_else() {
    let Some(mount) = Mount::new(256) else {
        println!("skipped: this user may not mount a tmpfs");
        return;
    };
    for mode in [WriteMode::Inline, WriteMode::Ring] {
        let mut turns = Loop::with(|config| config.write_mode = Some(mode));
        let path = mount.0.path().join("file");
        let file = turns.io.create(&path, 0).expect("a file");
        let write = |turns: &mut Loop, position, len| {
            let (bytes, freed) = watched(len);
            let write = Op::Write {
                file,
                position,
                bytes,
            };
            turns.io.submit(FILE, write);
            let result = turns.next(FILE).result;
            assert!(freed.load(Ordering::Acquire));
            result.map_err(|failed| failed.errno)
        };
        assert!(matches!(write(&mut turns, 0, 60_000), Ok(Done::Written)));
        // The first of it is written before there is no more room: that is no success.
        let full = write(&mut turns, 60_000, 400_000).expect_err("no room");
        assert_eq!(full, libc::ENOSPC, "{mode:?}");
        let full = write(&mut turns, 300_000, 1000).expect_err("no room");
        assert_eq!(full, libc::ENOSPC, "{mode:?}");
        assert!(matches!(write(&mut turns, 0, 60_000), Ok(Done::Written)));
        turns.io.close(file);
        turns.io.remove(&path).expect("removes");
        let prepare = Op::Prepare {
            path: mount.0.path().join("segment"),
            len: 1 << 20,
            zero_fill: true,
        };
        turns.io.submit(FILE, prepare);
        assert_eq!(errno(turns.next(FILE)), libc::ENOSPC);
        assert!(!mount.0.path().join("segment").exists(), "left behind");
        let small = Op::Replace {
            path: mount.0.path().join("small.json"),
            contents: Bytes::from_static(b"{}"),
            keep_backup: true,
        };
        turns.io.submit(FILE, small);
        assert!(matches!(turns.next(FILE).result, Ok(Done::Replaced)));
    }
}

#[test]
fn a_file_that_is_not_open_fails_its_operation() {
    let mut turns = Loop::with(|config| config.write_mode = Some(WriteMode::Ring));
    let file = File(99);
    let operations = [
        Op::Flush { file },
        Op::Read {
            file,
            position: 0,
            len: 10,
        },
        Op::Write {
            file,
            position: 0,
            bytes: Bytes::from_static(b"x"),
        },
    ];
    for operation in operations {
        turns.io.submit(FILE, operation);
        assert_eq!(errno(turns.next(FILE)), libc::EBADF);
    }
}

/// More operations at once than the queue has entries.
#[test]
fn more_operations_than_entries_are_all_done() {
    const COUNT: u32 = 5000;
    let mut turns = Loop::with(|config| config.write_mode = Some(WriteMode::Ring));
    let path = turns.path("file");
    let file = turns.io.create(&path, 0).expect("a file");
    for index in 0..COUNT {
        let write = Op::Write {
            file,
            position: u64::from(index) * 4,
            bytes: Bytes::copy_from_slice(&index.to_le_bytes()),
        };
        turns.io.submit(Token::new(FILE.kind, index, 0), write);
    }
    let started = Instant::now();
    let mut done = vec![false; COUNT as usize];
    while done.contains(&false) {
        assert!(started.elapsed() < PATIENCE);
        turns.turn(100);
        for completion in turns.completions.drain(..) {
            assert!(matches!(completion.result, Ok(Done::Written)));
            let was_done = std::mem::replace(&mut done[completion.token.index as usize], true);
            assert!(!was_done, "{:?} completed twice", completion.token);
        }
    }
    let whole = std::fs::read(&path).expect("a file");
    let numbers = whole
        .chunks(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    assert!(numbers.eq(0..COUNT));
    assert_eq!(turns.io.in_flight(), 0);
}

#[test]
fn a_doorbell_wakes_the_wait() {
    let mut turns = Loop::new();
    let doorbell = turns.io.doorbell().expect("a doorbell");
    for _ in 0..100 {
        let bell = doorbell.clone();
        let ringing = std::thread::spawn(move || bell.0.ring());
        let rang = turns.next(ringmq::io::DOORBELL);
        assert!(matches!(rang.result, Ok(Done::Rang)));
        ringing.join().expect("no panic");
    }
}

/// The whole broker with the least that it can do with.
#[test]
fn a_broker_serves_without_the_features_of_newer_kernels() {
    let directory = tempfile::tempdir().expect("a directory");
    let flags = [("shards", "1"), ("ringFeatures", "plain")];
    let server = Server::start(&directory.path().join("store"), &flags);
    let mut producers: Vec<Client> = (0..20).map(|_| Client::connect(server.port)).collect();
    let mut consumer = Client::connect(server.port);
    producers[0].send_message("T", 0, "A", b"0");
    for offset in 1..200_u64 {
        let opaque = consumer.start_pull("T", 0, offset, 15_000, "*");
        let body = vec![b'x'; 300 * offset as usize];
        let producer = &mut producers[offset as usize % 20];
        assert_eq!(producer.send_message("T", 0, "A", &body).code, 0);
        let answer = consumer.receive().expect("an answer");
        assert_eq!(answer.opaque, opaque);
        assert_eq!(answer.messages(), [(offset, body)]);
    }
    let log = server.log.clone();
    server.stop();
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("does without"), "{log}");
}

/// Starts the broker where one system call fails with an error number, as in a container that forbids it or on a
/// kernel that lacks it.
#[expect(unsafe_code, reason = "a seccomp filter for a child")]
fn start_without(store: &Path, call: libc::c_long, errno: i32) -> Output {
    let (name_server, port) = free_ports();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
    command.arg(format!("--storePathRootDir={}", store.display()));
    command.arg(format!("--namesrvListenPort={name_server}"));
    command.arg(format!("--listenPort={port}"));
    command.arg("--shards=1");
    let statement = |code: u32, k: u32, skip: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: skip,
        k,
    };
    let program = [
        // The number of the system call is the first word of what a filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | errno as u32,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    // SAFETY: between fork and exec only two system calls are made, on memory that the closure owns.
    unsafe {
        command.pre_exec(move || {
            let filter = libc::sock_fprog {
                len: program.len() as u16,
                filter: program.as_ptr().cast_mut(),
            };
            let none = 0 as libc::c_ulong;
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, none, none, none) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
            if libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter, none, none) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.output().expect("runs")
}

#[test]
fn a_kernel_that_refuses_is_named_in_one_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let setup = libc::SYS_io_uring_setup;
    let register = libc::SYS_io_uring_register;
    let expected = [
        (setup, libc::EPERM, "io_uring is forbidden here"),
        (setup, libc::ENOSYS, "the kernel lacks io_uring"),
        (setup, libc::EINVAL, "the kernel lacks io_uring"),
        (setup, libc::ENOMEM, "ulimit -l"),
        (
            register,
            libc::EINVAL,
            "the kernel lacks the probe of io_uring",
        ),
        (register, libc::ENOMEM, "ulimit -l"),
    ];
    for (call, errno, text) in expected {
        let output = start_without(directory.path(), call, errno);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = log.lines().filter(|l| l.starts_with("ringmq: ")).collect();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert_eq!(lines.len(), 1, "{log}");
        assert!(lines[0].contains(text), "{text:?} in {}", lines[0]);
    }
}
