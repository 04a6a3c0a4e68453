//! Clients that break the rules or take what they can: their connection pays, the others are served, the memory stays
//! bounded, a counter says so. Over real sockets and the real ring.

mod support;

use ringmq::protocol::bodies::{KvTableBuf, decode};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Client, Server, send_fields};

const PATIENCE: Duration = Duration::from_secs(30);

fn with_server(flags: &[(&str, &str)], test: impl FnOnce(&Server)) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let flags = [&[("shards", "1")], flags].concat();
    let server = Server::start(&store, &flags);
    test(&server);
    server.stop();
}

/// A figure of the runtime information (28).
fn figure(client: &mut Client, name: &str) -> u64 {
    let answer = client.call(28, &[], &[]);
    let table: KvTableBuf = decode(&answer.body).expect("a table");
    table.table[name].parse().expect(name)
}

fn await_figure(client: &mut Client, name: &str, is_reached: impl Fn(u64) -> bool) {
    let started = Instant::now();
    loop {
        let value = figure(client, name);
        if is_reached(value) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{name} stays at {value}");
    }
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("statm"));
    let statm = statm.expect("Linux");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .expect("a column")
        .parse()
        .expect("a number");
    pages * rustix::param::page_size() as u64
}

const MIB: u64 = 1024 * 1024;

/// A queue whose pulls answer with as much as one answer may have.
fn fill(client: &mut Client) {
    let body = vec![b'x'; 100_000];
    for _ in 0..4 {
        let answer = client.send_message("Big", 0, "A", &body);
        assert_eq!(answer.code, 0, "{}", answer.remark);
    }
}

/// Far more answers than the broker is willing to hold for one connection: it stops to read, and each answer arrives
/// in the end, in order.
#[test]
fn a_slow_reader_is_not_read_from_and_misses_nothing() {
    const PULLS: usize = 600;
    with_server(&[], |server| {
        let mut other = Client::connect(server.port);
        fill(&mut other);
        let before = resident(server.pid());
        let mut slow = Client::connect(server.port);
        let asked: Vec<i32> = (0..PULLS)
            .map(|_| slow.start_pull("Big", 0, 0, 0, "*"))
            .collect();
        await_figure(&mut other, "connectionsPausedSlow", |times| times > 0);
        // Others go on, and what is held for the slow one is no multiple of the limit.
        for number in 0..100_u32 {
            let answer = other.send_message("T", 0, "A", &number.to_be_bytes());
            assert_eq!(answer.code, 0, "{}", answer.remark);
        }
        let grown = resident(server.pid()).saturating_sub(before);
        assert!(grown < 48 * MIB, "{grown} bytes for one slow reader");
        let first = slow.receive().expect("an answer");
        assert!(first.messages().len() > 1);
        for (index, opaque) in asked.iter().enumerate().skip(1) {
            let answer = slow.receive().expect("an answer");
            assert_eq!(answer.opaque, *opaque, "answer {index}");
            assert_eq!(answer.body, first.body, "answer {index}");
        }
        // It is a connection like any other afterwards.
        assert_eq!(slow.send_message("T", 0, "A", b"again").code, 0);
        assert_eq!(figure(&mut other, "connectionsClosedSlow"), 0);
    });
}

#[test]
fn a_client_that_never_reads_is_stopped_by_its_own_socket() {
    with_server(&[], |server| {
        let mut other = Client::connect(server.port);
        fill(&mut other);
        let before = resident(server.pid());
        let mut deaf = Client::connect(server.port);
        deaf.write_timeout(Duration::from_millis(300));
        // Every request asks for some 250 KB: without a bound these would be gigabytes.
        let mut asked = 0_u32;
        while deaf.try_start_pull("Big", 0, 0, 0, "*").is_some() {
            asked += 1;
            assert!(asked < 200_000, "the broker goes on reading");
        }
        let grown = resident(server.pid()).saturating_sub(before);
        assert!(
            grown < 64 * MIB,
            "{grown} bytes for one client after {asked} requests"
        );
        assert_eq!(other.send_message("T", 0, "A", b"served").code, 0);
        assert!(figure(&mut other, "connectionsPausedSlow") > 0);
    });
}

#[test]
fn malformed_frames_cost_their_connection_and_are_counted() {
    let frame = |length: u32, header: u32, rest: &[u8]| {
        [&length.to_be_bytes()[..], &header.to_be_bytes(), rest].concat()
    };
    let malformed = [
        (
            "a frame of more than 16 MiB",
            frame((16 << 20) + 1, 10, b""),
        ),
        ("the longest length there is", frame(u32::MAX, 10, b"")),
        ("a length that is no length", frame(3, 0, b"")),
        ("a header longer than its frame", frame(10, 100, b"{}")),
        ("an unknown serialize type", frame(6, 7 << 24 | 2, b"{}")),
        ("a header that is no JSON", frame(9, 5, b"hello")),
        ("a binary header of nothing", frame(5, 1 << 24 | 1, b"\0")),
        (
            "another protocol",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        ),
    ];
    with_server(&[], |server| {
        let mut other = Client::connect(server.port);
        for (index, (what, bytes)) in malformed.iter().enumerate() {
            let mut bad = Client::connect(server.port);
            bad.send_raw(bytes);
            assert!(bad.receive().is_none(), "{what} is answered");
            let counted = figure(&mut other, "framesMalformed");
            assert_eq!(counted, index as u64 + 1, "{what}");
        }
        await_figure(&mut other, "connections", |now| now == 1);
    });
}

/// What is promised and doesn't come costs the bytes that came, not those that were promised.
#[test]
fn half_frames_cost_what_has_come_of_them() {
    with_server(&[], |server| {
        let mut other = Client::connect(server.port);
        let before = resident(server.pid());
        let half: Vec<TcpStream> = (0..200)
            .map(|_| {
                let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
                let promised = 16_u32 << 20;
                stream.write_all(&promised.to_be_bytes()).expect("sends");
                stream.write_all(&100_u32.to_be_bytes()).expect("sends");
                stream.write_all(b"{\"code\":").expect("sends");
                stream
            })
            .collect();
        await_figure(&mut other, "connections", |now| now == 201);
        let grown = resident(server.pid()).saturating_sub(before);
        assert!(grown < 16 * MIB, "{grown} bytes for half frames");
        assert_eq!(other.send_message("T", 0, "A", b"served").code, 0);
        drop(half);
        await_figure(&mut other, "connections", |now| now == 1);
        assert_eq!(figure(&mut other, "framesMalformed"), 0);
    });
}

/// As many idle connections as the limit of open files allows, up to 10 000.
#[test]
fn idle_connections_cost_little() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: u64 = 10_000;
    const OTHERS: u64 = 500;
    let hard = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: hard,
        maximum: hard,
    };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised");
    let count = WANTED.min(hard.unwrap_or(WANTED + OTHERS).saturating_sub(OTHERS));
    assert!(
        count >= 1000,
        "this test needs 1500 open files (ulimit -Hn), the limit is {hard:?}"
    );
    if count < WANTED {
        println!("{count} instead of {WANTED} connections: the limit of open files is {hard:?}");
    }
    with_server(&[], |server| {
        let mut other = Client::connect(server.port);
        let before = resident(server.pid());
        let idle: Vec<TcpStream> = (0..count)
            .map(|_| TcpStream::connect(("127.0.0.1", server.port)).expect("connects"))
            .collect();
        await_figure(&mut other, "connections", |now| now == count + 1);
        let grown = resident(server.pid()).saturating_sub(before);
        assert!(
            grown < 4096 * count + 16 * MIB,
            "{grown} bytes for {count} connections"
        );
        let mut last = Client::connect(server.port);
        assert_eq!(last.send_message("T", 0, "A", b"served").code, 0);
        drop(idle);
        await_figure(&mut other, "connections", |now| now == 2);
    });
}

/// New clients wait until there is a file for them; the broker doesn't spin, and the others are served.
#[test]
fn clients_beyond_the_open_files_wait() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    const FILES: u64 = 150;
    // An accept goes by the limit of when it was submitted, so that this needs one for each client.
    with_server(&[("ringFeatures", "plain")], |server| {
        let mut other = Client::connect(server.port);
        assert_eq!(other.send_message("T", 0, "A", b"first").code, 0);
        let few = Rlimit {
            current: Some(FILES),
            maximum: Some(FILES),
        };
        let pid = Pid::from_raw(server.pid() as i32);
        prlimit(pid, Resource::Nofile, few).expect("a limit may be lowered");
        let many: Vec<TcpStream> = (0..2 * FILES)
            .map(|_| TcpStream::connect(("127.0.0.1", server.port)).expect("waits in the backlog"))
            .collect();
        await_figure(&mut other, "connectionsRefused", |times| times > 0);
        let turns = figure(&mut other, "turns");
        assert_eq!(other.pull("T", 0, 1, 1500, "*").code, 19);
        let turns = figure(&mut other, "turns") - turns;
        assert!(turns < 30, "{turns} turns in 1.5 s");
        drop(many);
        let mut new = Client::connect(server.port);
        assert_eq!(new.send_message("T", 0, "A", b"served").code, 0);
    });
}

#[test]
fn holds_of_a_client_that_vanishes_are_dropped() {
    with_server(&[], |server| {
        let mut other = Client::connect(server.port);
        assert_eq!(other.send_message("T", 0, "A", b"first").code, 0);
        let mut vanishing = Client::connect(server.port);
        for _ in 0..1000 {
            vanishing.start_pull("T", 0, 1, 20_000, "*");
        }
        await_figure(&mut other, "holds", |now| now == 1000);
        drop(vanishing);
        await_figure(&mut other, "holds", |now| now == 0);
        // Nobody is there to be woken, and the slots are those of others by now.
        let mut holding = Client::connect(server.port);
        let opaque = holding.start_pull("T", 0, 1, 20_000, "*");
        await_figure(&mut other, "holds", |now| now == 1);
        assert_eq!(other.send_message("T", 0, "A", b"second").code, 0);
        let answer = holding.receive().expect("an answer");
        assert_eq!(answer.opaque, opaque);
        assert_eq!(answer.messages(), [(1, b"second".to_vec())]);
    });
}

/// More bytes at once than there are receive buffers: everybody waits a little, nobody is lost.
#[test]
fn all_connections_are_served_when_receive_buffers_run_out() {
    const CONNECTIONS: usize = 100;
    const EACH: usize = 6;
    with_server(&[("mappedFileSizeCommitLog", "268435456")], |server| {
        let body = vec![b'y'; 300_000];
        let mut clients: Vec<Client> = (0..CONNECTIONS)
            .map(|_| Client::connect(server.port))
            .collect();
        std::thread::scope(|scope| {
            for (index, client) in clients.iter_mut().enumerate() {
                let body = &body;
                scope.spawn(move || {
                    let queue = (index % 4).to_string();
                    let fields = send_fields("T", &queue, "");
                    let asked: Vec<i32> =
                        (0..EACH).map(|_| client.send(310, &fields, body)).collect();
                    for opaque in asked {
                        let answer = client.receive().expect("an answer");
                        assert_eq!(
                            (answer.opaque, answer.code),
                            (opaque, 0),
                            "{}",
                            answer.remark
                        );
                    }
                });
            }
        });
        let mut reader = Client::connect(server.port);
        let stored: usize = (0..4)
            .map(|queue| reader.read_queue("T", queue).len())
            .sum();
        assert_eq!(stored, CONNECTIONS * EACH);
        assert!(figure(&mut reader, "receivesStarved") > 0);
    });
}

/// Paused, and then it takes nothing of what waits for it.
#[test]
fn a_client_that_stays_stuck_is_closed() {
    with_server(&[("serverChannelMaxIdleTimeSeconds", "2")], |server| {
        let mut other = Client::connect(server.port);
        fill(&mut other);
        let mut deaf = Client::connect(server.port);
        for _ in 0..300 {
            deaf.start_pull("Big", 0, 0, 0, "*");
        }
        let started = Instant::now();
        // Each question is a sign of life of the one who asks.
        while figure(&mut other, "connectionsClosedSlow") == 0 {
            assert!(started.elapsed() < PATIENCE, "it is not closed");
            assert_eq!(other.pull("Big", 0, 4, 100, "*").code, 19);
        }
        await_figure(&mut other, "connections", |now| now == 1);
        assert_eq!(figure(&mut other, "connectionsClosedSlow"), 1);
    });
}

#[test]
fn a_silent_client_is_closed() {
    with_server(&[("serverChannelMaxIdleTimeSeconds", "1")], |server| {
        let mut silent = Client::connect(server.port);
        silent.send_message("T", 0, "A", b"first");
        assert!(silent.receive().is_none(), "nothing was asked for");
        let mut other = Client::connect(server.port);
        assert_eq!(figure(&mut other, "connectionsClosedSlow"), 0);
        assert_eq!(figure(&mut other, "connections"), 1);
    });
}
