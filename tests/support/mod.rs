//! A running ringmq process and a client of the wire, for the tests that need both.
#![allow(dead_code)]

pub mod workload;

use bytes::BytesMut;
use ringmq::protocol::command::{Command, Encoding, Scratch};
use ringmq::protocol::frame::{Split, split};
use ringmq::protocol::message::{Record, StoredMessage};
use ringmq::protocol::response::Request;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);

/// The broker under test: the one that cargo built along, or for programs outside of the package `RINGMQ_BIN`.
fn binary() -> PathBuf {
    let built = option_env!("CARGO_BIN_EXE_ringmq").map(PathBuf::from);
    built.unwrap_or_else(|| {
        let named = std::env::var_os("RINGMQ_BIN");
        PathBuf::from(named.expect("RINGMQ_BIN names the broker"))
    })
}

/// Two ports that were free a moment ago, with room for the shards behind the second. They lie below the ports that
/// the kernel gives to clients, one of which might take them until the server comes.
pub fn free_ports() -> (u16, u16) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = (std::process::id() % 200) as u16 * 100;
    loop {
        let step = NEXT.fetch_add(50, Ordering::Relaxed) % 20_000;
        let first = 12_000 + (base + step) % 20_000;
        let ports = [first, first + 5, first + 15];
        if ports
            .iter()
            .all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        {
            return (first, first + 5);
        }
    }
}

pub struct Server {
    child: Child,
    pub name_server: u16,
    pub port: u16,
    pub log: PathBuf,
}

impl Server {
    pub fn start(store: &Path, flags: &[(&str, &str)]) -> Self {
        let (name_server, port) = free_ports();
        Self::start_on(store, flags, name_server, port)
    }

    /// With arguments in front of the flags.
    pub fn start_with(store: &Path, arguments: &[&str], flags: &[(&str, &str)]) -> Self {
        let (name_server, port) = free_ports();
        Self::launch(store, arguments, flags, name_server, port)
    }

    pub fn start_on(store: &Path, flags: &[(&str, &str)], name_server: u16, port: u16) -> Self {
        Self::launch(store, &[], flags, name_server, port)
    }

    fn launch(
        store: &Path,
        arguments: &[&str],
        flags: &[(&str, &str)],
        name_server: u16,
        port: u16,
    ) -> Self {
        let log = store.with_extension("log");
        let output = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let mut command = std::process::Command::new(binary());
        command.args(arguments);
        command.args([
            "--storePathRootDir",
            &store.to_string_lossy(),
            "--zeroFillSegments",
            "false",
        ]);
        command.args([
            "--namesrvListenPort",
            &name_server.to_string(),
            "--listenPort",
            &port.to_string(),
        ]);
        let defaults = [
            // Many servers at once would take tens of gigabytes of disk with the default.
            ("mappedFileSizeCommitLog", "67108864"),
            ("metricsPort", "0"),
            // Neither the age of a store nor how full this machine's disk is may decide what a test finds.
            ("fileReservedTime", "1000000"),
            ("diskMaxUsedSpaceRatio", "99"),
            ("diskSpaceCleanForciblyRatio", "99"),
            ("diskSpaceWarningLevelRatio", "100"),
        ];
        for (name, value) in defaults {
            if !flags.iter().any(|(given, _)| *given == name) {
                command.arg(format!("--{name}")).arg(value);
            }
        }
        for (name, value) in flags {
            command.arg(format!("--{name}")).arg(value);
        }
        let child = command
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .expect("ringmq starts");
        let mut server = Self {
            child,
            name_server,
            port,
            log,
        };
        let shards = flags.iter().find(|(name, _)| *name == "shards");
        let shards: u16 = shards.map_or(1, |(_, count)| count.parse().expect("a number"));
        for shard in 0..shards {
            server.wait_ready(port + 10 * shard);
        }
        server
    }

    fn wait_ready(&mut self, port: u16) {
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = self.child.try_wait().expect("waits") {
                panic!(
                    "ringmq ended with {status}: {}",
                    std::fs::read_to_string(&self.log).unwrap_or_default()
                );
            }
            assert!(
                started.elapsed() < DEADLINE,
                "ringmq did not listen in time"
            );
            std::thread::yield_now();
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM; the exit code must be 0.
    pub fn stop(self) {
        self.stop_by("TERM");
    }

    /// A signal by its name; the exit code must be 0.
    pub fn stop_by(mut self, signal: &str) {
        let status = std::process::Command::new("kill")
            .args(["-s", signal])
            .arg(self.pid().to_string())
            .status()
            .expect("kill runs");
        assert!(status.success());
        let status = self.child.wait().expect("waits");
        assert!(
            status.success(),
            "ended with {status}: {}",
            std::fs::read_to_string(&self.log).unwrap_or_default()
        );
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("waits");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Gone already after `stop` and `kill`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub code: i32,
    pub opaque: i32,
    pub is_request: bool,
    pub remark: String,
    pub fields: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn number(&self, name: &str) -> i64 {
        self.fields[name].parse().expect(name)
    }

    /// Bodies of the records, with their queue offsets.
    pub fn messages(&self) -> Vec<(u64, Vec<u8>)> {
        let mut rest = &self.body[..];
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let Ok(Record::Message(message)) = StoredMessage::decode(rest) else {
                panic!("a broken record")
            };
            message.check_body_crc().expect("CRC");
            messages.push((message.queue_offset.0, message.body.to_vec()));
            rest = &rest[message.bytes.len()..];
        }
        messages
    }
}

pub struct Client {
    stream: TcpStream,
    received: BytesMut,
    opaque: i32,
    pub encoding: Encoding,
}

impl Client {
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        Self {
            stream,
            received: BytesMut::new(),
            opaque: 0,
            encoding: Encoding::Json,
        }
    }

    pub fn send(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> i32 {
        self.try_send(code, fields, body).expect("sends")
    }

    /// `None`: the broker is gone.
    pub fn try_send(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Option<i32> {
        self.try_send_as(code, fields, body, false)
    }

    pub fn send_one_way(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) {
        self.try_send_as(code, fields, body, true).expect("sends");
    }

    fn try_send_as(
        &mut self,
        code: i32,
        fields: &[(&str, &str)],
        body: &[u8],
        one_way: bool,
    ) -> Option<i32> {
        self.opaque += 1;
        let mut out = BytesMut::new();
        Request {
            code,
            opaque: self.opaque,
            one_way,
            encoding: self.encoding,
            fields,
            body,
        }
        .encode(&mut out);
        self.stream.write_all(&out).ok()?;
        Some(self.opaque)
    }

    pub fn write_timeout(&mut self, timeout: Duration) {
        let set = self.stream.set_write_timeout(Some(timeout));
        set.expect("a socket");
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sends");
    }

    /// The next frame; `None` when the broker closed the connection.
    pub fn receive(&mut self) -> Option<Answer> {
        loop {
            let parsed = match split(&self.received).expect("a frame") {
                Split::Incomplete { .. } => None,
                Split::Frame(frame) => {
                    let mut scratch = Scratch::default();
                    let command = Command::decode(&frame, &mut scratch).expect("a header");
                    let answer = Answer {
                        code: command.code,
                        opaque: command.opaque,
                        is_request: !command.is_response(),
                        remark: command.remark.unwrap_or_default().to_owned(),
                        fields: command
                            .fields
                            .iter()
                            .map(|(n, v)| (n.to_owned(), v.to_owned()))
                            .collect(),
                        body: frame.body.to_vec(),
                    };
                    Some((answer, frame.bytes))
                }
            };
            if let Some((answer, bytes)) = parsed {
                let _ = self.received.split_to(bytes);
                return Some(answer);
            }
            let mut buffer = [0; 65_536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// Sends and waits for the answer to it; notifications in between are skipped.
    pub fn call(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        let opaque = self.send(code, fields, body);
        loop {
            let answer = self.receive().expect("an answer, not a close");
            if !answer.is_request && answer.opaque == opaque {
                return answer;
            }
        }
    }

    pub fn send_message(&mut self, topic: &str, queue_id: u32, tag: &str, body: &[u8]) -> Answer {
        let properties = if tag.is_empty() {
            String::new()
        } else {
            format!("TAGS\u{1}{tag}\u{2}")
        };
        let queue = queue_id.to_string();
        let fields = send_fields(topic, &queue, &properties);
        self.call(310, &fields, body)
    }

    pub fn start_pull(
        &mut self,
        topic: &str,
        queue_id: u32,
        offset: u64,
        hold_ms: u32,
        tags: &str,
    ) -> i32 {
        self.try_start_pull(topic, queue_id, offset, hold_ms, tags)
            .expect("sends")
    }

    /// `None`: the broker is gone.
    pub fn try_start_pull(
        &mut self,
        topic: &str,
        queue_id: u32,
        offset: u64,
        hold_ms: u32,
        tags: &str,
    ) -> Option<i32> {
        let (queue, offset, hold) = (
            queue_id.to_string(),
            offset.to_string(),
            hold_ms.to_string(),
        );
        let flag = if hold_ms > 0 { "6" } else { "4" };
        let fields = [
            ("consumerGroup", "G"),
            ("topic", topic),
            ("queueId", &queue),
            ("queueOffset", &offset),
            ("maxMsgNums", "32"),
            ("sysFlag", flag),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", &hold),
            ("subscription", tags),
            ("subVersion", "0"),
        ];
        self.try_send(11, &fields, &[])
    }

    pub fn pull(
        &mut self,
        topic: &str,
        queue_id: u32,
        offset: u64,
        hold_ms: u32,
        tags: &str,
    ) -> Answer {
        let opaque = self.start_pull(topic, queue_id, offset, hold_ms, tags);
        let answer = self.receive().expect("an answer");
        assert_eq!(answer.opaque, opaque);
        answer
    }

    /// All messages of a queue from its start; none where a crash came before the shard had made the topic, so that it
    /// can't have acknowledged one.
    pub fn read_queue_if_there(&mut self, topic: &str, queue_id: u32) -> Vec<(u64, Vec<u8>)> {
        match self.pull(topic, queue_id, 0, 0, "*").code {
            17 => Vec::new(),
            _ => self.read_queue(topic, queue_id),
        }
    }

    /// All messages of a queue from its start.
    pub fn read_queue(&mut self, topic: &str, queue_id: u32) -> Vec<(u64, Vec<u8>)> {
        let mut messages = Vec::new();
        let mut offset = 0;
        loop {
            let answer = self.pull(topic, queue_id, offset, 0, "*");
            match answer.code {
                0 => messages.extend(answer.messages()),
                20 | 21 => {}
                19 => return messages,
                other => panic!(
                    "pull of {topic} {queue_id} at {offset}: {other} {}",
                    answer.remark
                ),
            }
            offset = answer.number("nextBeginOffset") as u64;
        }
    }
}

pub fn send_fields<'a>(
    topic: &'a str,
    queue: &'a str,
    properties: &'a str,
) -> [(&'a str, &'a str); 9] {
    [
        ("a", "PG"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
    ]
}

/// The body of a batch, as clients encode it; all messages have one tag.
pub fn batch(bodies: &[Vec<u8>]) -> Vec<u8> {
    let properties = b"TAGS\x01A";
    let mut out = Vec::new();
    for body in bodies {
        out.extend_from_slice(&((22 + body.len() + properties.len()) as u32).to_be_bytes());
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        out.extend_from_slice(properties);
    }
    out
}
