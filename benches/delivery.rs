//! Send → delivery through a held pull against a bare blocking TCP relay, in one run.
//!
//! The broker (one shard, no flush) and the relay have processor 0, the client processor 1. A round sends 1 KiB and
//! ends when the consumer's connection has it. All are measured in turn, in blocks, and the medians of the blocks are
//! compared. Then the broker's CPU time, context switches and system calls for each message at a fixed rate.
//!
//! `cargo bench --bench delivery`; needs two processors, and `perf` for the system calls. With `load PORT SECONDS` it
//! is only the load of the last part, on a broker that runs already: what the scripts in `perf/` look at.

use bytes::BytesMut;
use ringmq::protocol::command::{Command as Header, Encoding, Scratch};
use ringmq::protocol::frame::{Split, split};
use ringmq::protocol::response::Request;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BODY: usize = 1024;
const WARM_UP: usize = 2000;
const BLOCKS: usize = 10;
const ROUNDS: usize = 2000;
const RATE: u64 = 10_000;
const RATE_SECONDS: u64 = 5;
const NO_FLUSH: [&str; 5] = [
    "--shards=1",
    "--cores=0",
    // Once for each segment, and not for each message.
    "--zeroFillSegments=false",
    "--flushIntervalCommitLog=60000",
    "--flushCommitLogBytes=1073741824",
];

fn pin(core: usize) {
    let is_pinned = core_affinity::set_for_current(core_affinity::CoreId { id: core });
    assert!(
        is_pinned,
        "processor {core} is not allowed; this benchmark needs two"
    );
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_nodelay(true).expect("a socket");
    stream
}

struct Broker {
    process: Child,
    port: u16,
    started: Duration,
    _store: tempfile::TempDir,
}

impl Broker {
    fn start(flags: &[&str]) -> Self {
        let store = tempfile::tempdir().expect("a directory");
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("an address").port()
        };
        let (name_server, port) = (free(), free());
        let began = Instant::now();
        let process = Command::new(env!("CARGO_BIN_EXE_ringmq"))
            .arg(format!(
                "--storePathRootDir={}",
                store.path().join("store").display()
            ))
            .arg(format!("--namesrvListenPort={name_server}"))
            .arg(format!("--listenPort={port}"))
            .args(flags)
            .stderr(Stdio::null())
            .spawn()
            .expect("ringmq starts");
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "it did not start"
            );
            std::thread::yield_now();
        }
        Self {
            started: began.elapsed(),
            process,
            port,
            _store: store,
        }
    }

    fn read(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.process.id());
        std::fs::read_to_string(path).expect("it runs")
    }

    fn resident_kib(&self) -> u64 {
        let status = self.read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Voluntary and other context switches of all threads.
    fn switches(&self) -> u64 {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("it runs");
        let of_task = |task: std::io::Result<std::fs::DirEntry>| {
            let name = task.expect("a task").file_name();
            let status = self.read(&format!("task/{}/status", name.display()));
            let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
            let number = |line: &str| {
                line.split_whitespace()
                    .nth(1)
                    .and_then(|n| n.parse::<u64>().ok())
            };
            counts.filter_map(number).sum::<u64>()
        };
        tasks.map(of_task).sum()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Gone already if it failed, which the measurement has said.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The two connections of a measurement and the frames that go over them.
struct Pair {
    producer: TcpStream,
    consumer: TcpStream,
    received: BytesMut,
    acknowledged: BytesMut,
    out: BytesMut,
    offset: u64,
}

impl Pair {
    /// The first send makes the topic; then the first pull is parked.
    fn new(port: u16) -> Self {
        let mut pair = Self {
            producer: connect(port),
            consumer: connect(port),
            received: BytesMut::new(),
            acknowledged: BytesMut::new(),
            out: BytesMut::new(),
            offset: 1,
        };
        pair.send();
        frame(&mut pair.producer, &mut pair.acknowledged);
        pair.park();
        pair
    }

    fn send(&mut self) {
        let fields = [
            ("a", "PG"),
            ("b", "Bench"),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", "0"),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", "UNIQ_KEY\u{1}0A0B0C0D00000000000000000000AAAA"),
        ];
        request(&mut self.out, 310, &fields, &[b'x'; BODY]);
        write_whole(&mut self.producer, &self.out);
    }

    fn park(&mut self) {
        let offset = self.offset.to_string();
        let fields = [
            ("consumerGroup", "G"),
            ("topic", "Bench"),
            ("queueId", "0"),
            ("queueOffset", &*offset),
            ("maxMsgNums", "32"),
            ("sysFlag", "6"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "15000"),
            ("subscription", "*"),
            ("subVersion", "0"),
        ];
        request(&mut self.out, 11, &fields, &[]);
        write_whole(&mut self.consumer, &self.out);
    }

    /// Nanoseconds from the send to the consumer; then everything is made ready for the next one.
    fn round(&mut self) -> u64 {
        let began = Instant::now();
        self.send();
        let bytes = frame(&mut self.consumer, &mut self.received);
        let nanos = began.elapsed().as_nanos() as u64;
        assert!(bytes > BODY, "no message came");
        self.offset += 1;
        self.park();
        frame(&mut self.producer, &mut self.acknowledged);
        nanos
    }

    /// Sends at a fixed rate, whatever has been answered, until it is enough; meanwhile takes what comes and parks
    /// the next pull.
    fn paced(&mut self, mut is_enough: impl FnMut(Duration) -> bool) -> f64 {
        let began = Instant::now();
        let mut buffer = [0; 65_536];
        let mut sent = 0;
        for socket in [&self.consumer, &self.producer] {
            socket.set_nonblocking(true).expect("a socket");
        }
        while !is_enough(began.elapsed()) {
            // At least once for each send, so that a load that has fallen behind reads what it is answered.
            loop {
                if let Ok(count) = self.consumer.read(&mut buffer) {
                    self.received.extend_from_slice(&buffer[..count]);
                    self.take();
                }
                // Acknowledgements: that they come is all that is wanted of them.
                let _ = self.producer.read(&mut buffer);
                if began.elapsed() >= Duration::from_nanos(sent * 1_000_000_000 / RATE) {
                    break;
                }
            }
            self.send();
            sent += 1;
        }
        let rate = sent as f64 / began.elapsed().as_secs_f64();
        println!("  {rate:.0} messages a second, {sent} in all");
        sent as f64
    }

    fn take(&mut self) {
        let Split::Frame(whole) = split(&self.received).expect("a frame") else {
            return;
        };
        let mut scratch = Scratch::default();
        let header = Header::decode(&whole, &mut scratch).expect("a header");
        let next = header
            .text("nextBeginOffset")
            .and_then(|next| next.parse().ok());
        self.offset = next.expect("an offset");
        let bytes = whole.bytes;
        let _frame = self.received.split_to(bytes);
        self.park();
    }
}

fn request(out: &mut BytesMut, code: i32, fields: &[(&str, &str)], body: &[u8]) {
    out.clear();
    let request = Request {
        code,
        opaque: 1,
        one_way: false,
        encoding: Encoding::Json,
        fields,
        body,
    };
    request.encode(out);
}

/// Writes all, also to a socket that doesn't block.
fn write_whole(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::yield_now();
            }
            Err(error) => panic!("the broker does not take a request: {error}"),
        }
    }
}

/// Reads one frame; its size.
fn frame(stream: &mut TcpStream, received: &mut BytesMut) -> usize {
    let mut buffer = [0; 65_536];
    loop {
        if let Split::Frame(frame) = split(received).expect("a frame") {
            let bytes = frame.bytes;
            let _frame = received.split_to(bytes);
            return bytes;
        }
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "the broker closed the connection");
        received.extend_from_slice(&buffer[..count]);
    }
}

/// A relay on a thread of its own, with messages and acknowledgements as large as the broker's frames.
struct Relay {
    producer: TcpStream,
    consumer: TcpStream,
    message: Vec<u8>,
    answer: Vec<u8>,
}

impl Relay {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (message, answer) = (vec![0; BODY + 250], vec![0; 200]);
        let (copy, acknowledgement) = (message.clone(), answer.clone());
        std::thread::spawn(move || relay(&listener, copy, &acknowledgement));
        Self {
            producer: connect(port),
            consumer: connect(port),
            message,
            answer,
        }
    }

    fn round(&mut self) -> u64 {
        let began = Instant::now();
        self.producer.write_all(&self.message).expect("sends");
        self.consumer
            .read_exact(&mut self.message)
            .expect("the message");
        let nanos = began.elapsed().as_nanos() as u64;
        self.producer
            .read_exact(&mut self.answer)
            .expect("the acknowledgement");
        nanos
    }
}

/// Forwards each message to another connection, then acknowledges it: what no broker can be faster than.
fn relay(listener: &TcpListener, mut message: Vec<u8>, acknowledgement: &[u8]) {
    pin(0);
    let (mut producer, _) = listener.accept().expect("a producer");
    let (mut consumer, _) = listener.accept().expect("a consumer");
    producer.set_nodelay(true).expect("a socket");
    consumer.set_nodelay(true).expect("a socket");
    while producer.read_exact(&mut message).is_ok() {
        let forwarded = consumer.write_all(&message);
        let acknowledged = forwarded.and_then(|()| producer.write_all(acknowledgement));
        acknowledged.expect("both are there");
    }
}

fn percentile(sorted: &[u64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100] as f64 / 1000.0
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn latency() {
    let polling = [&NO_FLUSH[..], &["--busyPollMicros=50"]].concat();
    let (broker, poller) = (Broker::start(&NO_FLUSH), Broker::start(&polling));
    let mut relay = Relay::start();
    // Not before: what is started has the processors of who starts it.
    pin(1);
    let (mut pair, mut polled) = (Pair::new(broker.port), Pair::new(poller.port));
    let mut rounds: [(&str, &mut dyn FnMut() -> u64); 3] = [
        ("blocking TCP relay", &mut || relay.round()),
        ("held pull", &mut || pair.round()),
        ("held pull, busyPollMicros=50", &mut || polled.round()),
    ];
    let mut blocks: [Vec<f64>; 3] = Default::default();
    let mut all: [Vec<u64>; 3] = Default::default();
    for block in 0..=BLOCKS {
        for (index, (_, round)) in rounds.iter_mut().enumerate() {
            let count = if block == 0 { WARM_UP } else { ROUNDS };
            let mut nanos: Vec<u64> = (0..count).map(|_| round()).collect();
            nanos.sort_unstable();
            if block > 0 {
                blocks[index].push(percentile(&nanos, 50));
                all[index].extend(nanos);
            }
        }
    }
    println!(
        "send to delivery, {BODY} bytes, {BLOCKS} blocks of {ROUNDS} rounds each, microseconds"
    );
    let floor = median(&blocks[0]);
    for (index, (name, _)) in rounds.iter().enumerate() {
        all[index].sort_unstable();
        let middle = median(&blocks[index]);
        let (p90, p99) = (percentile(&all[index], 90), percentile(&all[index], 99));
        let low = blocks[index].iter().copied().fold(f64::MAX, f64::min);
        let high = blocks[index].iter().copied().fold(0.0, f64::max);
        let ratio = middle / floor;
        println!(
            "  {name:<30} p50 {middle:6.1} ({low:.1} to {high:.1})  p90 {p90:6.1}  p99 {p99:6.1}  {ratio:.2} x the relay"
        );
    }
}

fn cost_per_message() {
    let broker = Broker::start(&NO_FLUSH);
    pin(1);
    let mut pair = Pair::new(broker.port);
    println!("\none producer, one consumer, {RATE} messages a second wanted");
    pair.paced(|elapsed| elapsed > Duration::from_secs(1));
    let switches = broker.switches();
    let sent = pair.paced(|elapsed| elapsed > Duration::from_secs(RATE_SECONDS));
    let switches = broker.switches() - switches;
    println!(
        "  context switches    {:.2} a message",
        switches as f64 / sent
    );
    let process = broker.process.id().to_string();
    let counter = Command::new("perf")
        .args([
            "stat",
            "-x",
            ",",
            "-e",
            "raw_syscalls:sys_enter,task-clock",
            "-p",
            &process,
        ])
        .args(["--", "sleep", &RATE_SECONDS.to_string()])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let Ok(mut counter) = counter else {
        println!("  not counted: perf is missing (Debian: linux-perf)");
        return;
    };
    let sent = pair.paced(|_| counter.try_wait().expect("perf runs").is_some());
    let output = counter.wait_with_output().expect("perf ends");
    let text = String::from_utf8_lossy(&output.stderr);
    let counts = text
        .lines()
        .map(|line| line.split(',').next().unwrap_or_default().parse::<f64>());
    match counts.collect::<Result<Vec<f64>, _>>().as_deref() {
        Ok([calls, millis]) => {
            println!("  system calls        {:.2} a message", calls / sent);
            println!(
                "  CPU time            {:.2} microseconds a message",
                millis * 1e3 / sent
            );
        }
        _ => println!("  not counted: {}", text.trim()),
    }
}

fn start() {
    let (mut millis, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..7 {
        let broker = Broker::start(&["--shards=2"]);
        millis.push(broker.started.as_secs_f64() * 1e3);
        memory.push(broker.resident_kib() as f64 / 1024.0);
    }
    println!("\nstart on an empty store, two shards, 7 times");
    println!(
        "  to the first accepted connection   {:.0} ms (median)",
        median(&millis)
    );
    println!(
        "  resident memory                    {:.1} MiB (median)",
        median(&memory)
    );
}

/// The load alone, on a broker on this machine.
fn load(arguments: &[String]) -> Result<(), String> {
    let [port, seconds] = arguments else {
        return Err("usage: delivery load PORT SECONDS".to_owned());
    };
    let port = port.parse().map_err(|error| format!("{port}: {error}"))?;
    let seconds = seconds
        .parse()
        .map_err(|error| format!("{seconds}: {error}"))?;
    let mut pair = Pair::new(port);
    pair.paced(|elapsed| elapsed > Duration::from_secs(seconds));
    Ok(())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("load") {
        let arguments: Vec<String> = arguments.filter(|argument| argument != "--bench").collect();
        if let Err(error) = load(&arguments) {
            eprintln!("{error}");
            std::process::exit(2);
        }
        return;
    }
    // Run by `cargo test --benches`, where there is nothing to measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("kernel {}, load before {}", kernel.trim(), load.trim());
    // Each on a thread of its own, since they bind themselves to a processor.
    for measurement in [latency, cost_per_message, start] {
        let done = std::thread::spawn(measurement).join();
        done.expect("the measurement said why it failed");
    }
}
