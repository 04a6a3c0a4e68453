//! `ringmq bench` against a broker that tells the truth, and against peers that don't: each lie must be found. Nothing
//! here depends on how long something takes.

mod support;

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use ringmq::protocol::command::{Command, Scratch};
use ringmq::protocol::frame::{Frame, Split, split};
use ringmq::protocol::message::{Record, StoredMessage};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Client, Server};

fn bench(arguments: &[&str]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_ringmq"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("ringmq bench runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it with files in `folder`; its JSON. It must succeed.
fn measured(folder: &Path, arguments: &[&str]) -> Value {
    let (json, log) = (folder.join("out.json"), folder.join("out.hgrm"));
    let files = [
        "--json",
        json.to_str().unwrap(),
        "--hgrm",
        log.to_str().unwrap(),
    ];
    let output = bench(&[arguments, &files].concat());
    assert!(
        output.status.success(),
        "{arguments:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    let results: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let log = std::fs::read(log).unwrap();
    let kinds = IntervalLogIterator::new(&log)
        .filter(|entry| matches!(entry, Ok(LogEntry::Interval(_))))
        .count();
    let latencies = results["latencyMicros"].as_object().unwrap();
    assert_eq!(kinds, latencies.len(), "a histogram for each kind");
    for name in latencies.keys() {
        assert!(
            text(&output.stdout).contains(name),
            "{name} is in the table"
        );
    }
    results
}

/// What was sent was acknowledged and came to every group.
fn assert_complete(results: &Value, groups: u64) {
    let values = &results["values"];
    let number = |name: &str| {
        values[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {results}"))
    };
    assert!(number("sent, with warm-up") > 0, "{results}");
    assert_eq!(number("acknowledged"), number("sent, with warm-up"));
    assert_eq!(number("delivered"), groups * number("acknowledged"));
    assert_eq!((number("refused"), number("wrong")), (0, 0));
    assert_eq!(results["wrong"], serde_json::json!([]));
    assert_eq!(values["ended early"], false);
}

#[test]
fn latency_counts_what_a_broker_does() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"), &[]);
    let broker = format!("127.0.0.1:{}", server.port);
    let name_server = format!("127.0.0.1:{}", server.name_server);
    let pid = server.pid().to_string();
    let short = ["--duration", "0.5", "--warm-up", "0.1", "--pid", &pid];
    let cases: [(&[&str], u64); 3] = [
        (&["latency", "--broker", &broker, "--rate", "2000"], 1),
        (
            &[
                "latency",
                "--broker",
                &broker,
                "--closed",
                "--producers",
                "3",
                "--groups",
                "2",
            ],
            2,
        ),
        (
            &[
                "latency",
                "--namesrv",
                &name_server,
                "--header",
                "rocketmq",
                "--queues",
                "3",
                "--groups",
                "2",
                "--body",
                "28",
            ],
            2,
        ),
    ];
    for (arguments, groups) in cases {
        let results = measured(folder.path(), &[arguments, &short].concat());
        assert_complete(&results, groups);
        let latencies = &results["latencyMicros"];
        let (sent, delivered) = (
            latencies["send to acknowledgement"]["count"]
                .as_u64()
                .unwrap(),
            latencies["send to delivery"]["count"].as_u64().unwrap(),
        );
        assert_eq!(delivered, groups * sent, "{results}");
        let all = results["values"]["sent, with warm-up"].as_u64().unwrap();
        assert!(
            0 < sent && sent < all,
            "the warm-up is not measured: {results}"
        );
        assert!(
            results["values"]["server"]["residentKiB"].as_u64() > Some(1000),
            "{results}"
        );
    }
    // What a run made is gone.
    let topics = Client::connect(server.port).call(21, &[], &[]);
    let topics = text(&topics.body);
    assert!(topics.contains("TBW102"), "{topics}");
    assert!(!topics.contains("ringmq-bench-"), "{topics}");
    server.stop();
}

#[test]
fn floor_measures_each_kind() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let results = measured(
        folder.path(),
        &["floor", "--duration", "0.05", "--dir", dir],
    );
    let latencies = results["latencyMicros"].as_object().unwrap();
    assert_eq!(latencies.len(), 6);
    for (name, row) in latencies {
        assert!(row["count"].as_u64() > Some(0), "{name}: {results}");
        assert!(row["p50"].as_f64() > Some(0.0), "{name}: {results}");
    }
    let left = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(left.count(), 2, "only the results are left");
}

/// Rewrites an answer to a pull that has messages; `None` leaves it as it is.
type Lie = fn(&Frame<'_>, &mut Vec<u8>) -> Option<Vec<u8>>;

/// Forwards connections to the broker and, once in a connection, tells the lie.
fn start_liar(broker: u16, lie: Lie) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let server = TcpStream::connect(("127.0.0.1", broker)).unwrap();
            for socket in [&client, &server] {
                socket.set_nodelay(true).unwrap();
            }
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                // Ends with either connection.
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || forward(server, client, lie));
        }
    });
    port
}

fn forward(mut server: TcpStream, mut client: TcpStream, lie: Lie) {
    let (mut received, mut buffer) = (Vec::new(), [0; 65_536]);
    let (mut memory, mut has_lied) = (Vec::new(), false);
    while let Ok(count) = server.read(&mut buffer) {
        if count == 0 {
            break;
        }
        received.extend_from_slice(&buffer[..count]);
        while let Ok(Split::Frame(frame)) = split(&received) {
            let bytes = frame.bytes;
            let mut out = received[..bytes].to_vec();
            let mut scratch = Scratch::default();
            let answer = Command::decode(&frame, &mut scratch).unwrap();
            let is_pull = answer.code == 0 && answer.text("nextBeginOffset").is_some();
            if is_pull
                && !has_lied
                && let Some(body) = lie(&frame, &mut memory)
            {
                has_lied = true;
                let behind_prefix = 4 + frame.header.len() + body.len();
                out.truncate(8 + frame.header.len());
                out[..4].copy_from_slice(&(behind_prefix as u32).to_be_bytes());
                out.extend_from_slice(&body);
            }
            received.drain(..bytes);
            if client.write_all(&out).is_err() {
                return;
            }
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

fn first(frame: &Frame<'_>) -> usize {
    match StoredMessage::decode(frame.body).unwrap() {
        Record::Message(message) => message.bytes.len(),
        Record::Blank(_) => panic!("a blank"),
    }
}

/// Where the body of the first message starts.
const BODY_AT: usize = 88;

#[test]
fn every_lie_is_found() {
    let honest: Lie = |_, _| None;
    let corrupts: Lie = |frame, _| {
        let mut body = frame.body.to_vec();
        body[BODY_AT + 30] ^= 1;
        Some(body)
    };
    // With a checksum that fits: only the sender's own tells.
    let forges: Lie = |frame, _| {
        let mut body = frame.body.to_vec();
        body[BODY_AT + 30] ^= 1;
        let length = u32::from_be_bytes(body[84..88].try_into().unwrap()) as usize;
        let checksum = crc32fast::hash(&body[BODY_AT..BODY_AT + length]) & 0x7FFF_FFFF;
        body[8..12].copy_from_slice(&checksum.to_be_bytes());
        Some(body)
    };
    let duplicates: Lie = |frame, _| Some([frame.body, &frame.body[..first(frame)]].concat());
    let loses: Lie = |frame, _| Some(frame.body[first(frame)..].to_vec());
    let moves: Lie = |frame, _| {
        let mut body = frame.body.to_vec();
        body[27] ^= 1;
        Some(body)
    };
    // The message that came before once more, at the place of this one.
    let repeats: Lie = |frame, memory| {
        let mut body = frame.body.to_vec();
        let record = body[..first(frame)].to_vec();
        if memory.is_empty() {
            *memory = record;
            return None;
        }
        let place = body[20..36].to_vec();
        body.splice(..record.len(), memory.iter().copied());
        body[20..36].copy_from_slice(&place);
        Some(body)
    };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"), &[]);
    let cases: [(&str, Lie, &str); 7] = [
        ("honest", honest, ""),
        ("corrupts", corrupts, "body CRC is"),
        ("forges", forges, "not the bytes that were sent"),
        ("duplicates", duplicates, "once more"),
        ("loses", loses, "were acknowledged"),
        ("moves", moves, "offset 1 where 0 follows"),
        ("repeats", repeats, "once more"),
    ];
    for (name, lie, expected) in cases {
        let port = start_liar(server.port, lie);
        let broker = format!("127.0.0.1:{port}");
        let output = bench(&[
            "latency",
            "--broker",
            &broker,
            "--rate",
            "500",
            "--duration",
            "0.3",
            "--warm-up",
            "0",
        ]);
        let (table, errors) = (text(&output.stdout), text(&output.stderr));
        if expected.is_empty() {
            assert!(output.status.success(), "{name}: {table}{errors}");
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{name}: {table}{errors}");
        let is_found = table
            .lines()
            .any(|line| line.starts_with("WRONG: ") && line.contains(expected));
        assert!(is_found, "{name}: {table}{errors}");
    }
    server.stop();
}

#[test]
fn throughput_counts_what_a_broker_does() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"), &[]);
    let broker = format!("127.0.0.1:{}", server.port);
    let short = [
        "throughput",
        "--broker",
        &broker,
        "--duration",
        "0.3",
        "--warm-up",
        "0.1",
    ];
    let cases: [(&[&str], u64); 5] = [
        (
            &[
                "--connections",
                "4",
                "--in-flight",
                "8",
                "--queues",
                "2",
                "--groups",
                "2",
            ],
            2,
        ),
        (
            &[
                "--consumers",
                "late",
                "--header",
                "rocketmq",
                "--in-flight",
                "32",
            ],
            1,
        ),
        (&["--consumers", "none"], 0),
        (&["--batch", "16", "--queues", "3", "--in-flight", "2"], 1),
        (&["--one-way", "--in-flight", "4", "--body", "100"], 1),
    ];
    for (arguments, groups) in cases {
        let results = measured(folder.path(), &[&short[..], arguments].concat());
        let values = &results["values"];
        if arguments.contains(&"--one-way") {
            let (sent, delivered) = (&values["sent, with warm-up"], &values["delivered"]);
            assert!(sent.as_u64() > Some(0) && sent == delivered, "{results}");
            continue;
        }
        assert_complete(&results, groups);
        assert!(
            values["messages per second"].as_f64() > Some(0.0),
            "{results}"
        );
        if arguments.contains(&"late") {
            assert!(
                values["backlog per second and group"].as_f64() > Some(0.0),
                "{results}"
            );
        }
        if arguments.contains(&"16") {
            assert_eq!(
                values["sent, with warm-up"].as_u64().unwrap() % 16,
                0,
                "{results}"
            );
        }
    }
    server.stop();
}

#[test]
fn holds_are_all_answered() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"), &[]);
    let broker = format!("127.0.0.1:{}", server.port);
    let pid = server.pid().to_string();
    let results = measured(
        folder.path(),
        &[
            "holds",
            "--broker",
            &broker,
            "--pulls",
            "300",
            "--connections",
            "7",
            "--rounds",
            "5",
            "--duration",
            "0.2",
            "--warm-up",
            "0.1",
            "--pid",
            &pid,
        ],
    );
    assert_eq!(results["values"]["wrong"], 0, "{results}");
    let count = |name: &str| results["latencyMicros"][name]["count"].as_u64();
    assert_eq!(
        (count("one answered"), count("all answered")),
        (Some(5), Some(300)),
        "{results}"
    );
    assert!(
        results["values"]["idle server"]["residentKiB"].as_u64() > Some(1000),
        "{results}"
    );
    server.stop();
}

#[test]
fn race_counts_late_deliveries() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"), &[]);
    let broker = format!("127.0.0.1:{}", server.port);
    // Every skew from -20 to 20 comes.
    let results = measured(
        folder.path(),
        &[
            "race", "--broker", &broker, "--rounds", "100", "--skew", "20",
        ],
    );
    let values = &results["values"];
    assert_eq!(
        (&values["rounds"], &values["wrong"]),
        (&Value::from(100), &Value::from(0))
    );
    assert_eq!(
        results["latencyMicros"]["later of both to delivery"]["count"],
        100
    );
    let late = |name: &str| values[name].as_u64().unwrap();
    assert!(late("over 1 s") <= late("over 100 ms") && late("over 100 ms") <= late("over 1 ms"));
    server.stop();
}

/// Two messages of an answer change their places: each is whole, and both are where the other belongs.
#[test]
fn swapped_messages_of_a_backlog_are_found() {
    let swaps: Lie = |frame, _| {
        let length = first(frame);
        let second = frame.body.get(length..length * 2)?;
        let mut body = [second, &frame.body[..length]].concat();
        body.extend_from_slice(&frame.body[length * 2..]);
        Some(body)
    };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"), &[]);
    let broker = format!("127.0.0.1:{}", start_liar(server.port, swaps));
    let output = bench(&[
        "throughput",
        "--broker",
        &broker,
        "--consumers",
        "late",
        "--duration",
        "0.2",
        "--warm-up",
        "0",
    ]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("offset 1 where 0 follows"), "{table}");
    server.stop();
}

/// Answers with messages that went by in `an_interrupt_prints_what_was_measured`.
static WENT_BY: AtomicU64 = AtomicU64::new(0);

#[test]
fn an_interrupt_prints_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("store"), &[]);
    let counts: Lie = |_, _| {
        WENT_BY.fetch_add(1, Ordering::Relaxed);
        None
    };
    let broker = format!("127.0.0.1:{}", start_liar(server.port, counts));
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_ringmq"))
        .args([
            "bench",
            "latency",
            "--broker",
            &broker,
            "--duration",
            "3600",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ringmq bench runs");
    let deadline = Instant::now() + Duration::from_secs(20);
    while WENT_BY.load(Ordering::Relaxed) < 10 && Instant::now() < deadline {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it runs until it is told to end"
        );
        std::thread::yield_now();
    }
    let killed = std::process::Command::new("kill")
        .args(["-s", "INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let (table, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{table}{errors}");
    assert!(table.contains("send to delivery"), "{table}");
    let ended = table.lines().find(|line| line.contains("ended early"));
    assert!(ended.is_some_and(|line| line.ends_with("true")), "{table}");
    server.stop();
}

#[test]
fn what_cannot_be_measured_is_said_in_a_line() {
    // Nobody listens there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let cases: [(&[&str], &str); 3] = [
        (&["latency", "--broker", &address], "no connection to"),
        (&["latency", "--broker", "nowhere"], "nowhere is no address"),
        (&["floor", "--cpu", "9999"], "processor 9999"),
    ];
    for (arguments, expected) in cases {
        let output = bench(arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}
