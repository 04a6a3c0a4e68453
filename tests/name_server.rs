//! The control thread with real sockets on loopback: the embedded name server as clients and brokers see it, shards
//! that are only mailboxes, external name servers that answer, are slow, or are dead.
//!
//! Method: each test starts `control::run` on a thread of its own, with a port of the kernel's choice.

use bytes::{Bytes, BytesMut};
use ringmq::control::mail::{FromShard, ToShard};
use ringmq::control::{
    ControlConfig, ExitReason, ShardIdentity, Signals, ToShardSender, open_name_server, run,
};
use ringmq::ids::ShardId;
use ringmq::protocol::bodies::{TopicConfig, TopicTable, check_body_crc};
use ringmq::protocol::codes::ResponseCode;
use ringmq::protocol::command::{Command, Encoding, Scratch};
use ringmq::protocol::frame::{Split, split};
use ringmq::protocol::response::{Request, Response};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Longer than anything here should take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A control thread and the ends of its shards.
struct Running {
    name_server: SocketAddr,
    mail: mpsc::Sender<FromShard>,
    shards: Vec<Receiver<ToShard>>,
    signals: UnixStream,
    thread: JoinHandle<ExitReason>,
    directory: tempfile::TempDir,
}

fn identity(shard: u16) -> ShardIdentity {
    ShardIdentity {
        shard: ShardId(shard),
        cluster: "DefaultCluster".to_owned(),
        broker_name: format!("broker-{shard}"),
        broker_id: 0,
        address: format!("127.0.0.1:{}", 10_911 + 10 * shard),
        ha_address: format!("127.0.0.1:{}", 10_912 + 10 * shard),
    }
}

fn start(shards: u16, external: &[SocketAddr]) -> Running {
    start_in(tempfile::tempdir().expect("a directory"), shards, external)
}

fn start_in(directory: tempfile::TempDir, shards: u16, external: &[SocketAddr]) -> Running {
    let path = directory.path().join("kvConfig.json");
    let open = open_name_server(LOOPBACK, path).expect("a free port");
    let name_server = open.address().expect("bound");
    let (mail, from_shards) = mpsc::channel(1024);
    let (signals, other) = UnixStream::pair().expect("a pair");
    let mut receivers = Vec::new();
    let mut senders: Vec<(ShardIdentity, ToShardSender)> = Vec::new();
    for shard in 0..shards {
        let (sender, receiver) = channel();
        receivers.push(receiver);
        let send = move |mail| sender.send(mail).map_err(|e| e.0);
        senders.push((identity(shard), Box::new(send)));
    }
    let config = ControlConfig {
        name_server: Some(open),
        external: external.iter().map(ToString::to_string).collect(),
        shards: senders,
        mail: from_shards,
        signals: Signals::from(other),
    };
    Running {
        name_server,
        mail,
        shards: receivers,
        signals,
        thread: std::thread::spawn(move || run(config)),
        directory,
    }
}

impl Running {
    fn client(&self) -> Client {
        Client::connect(self.name_server)
    }

    fn report(&self, mail: FromShard) {
        self.mail
            .blocking_send(mail)
            .expect("the control thread lives");
    }

    fn register(&self, shard: u16, sequence: u64, topics: &[&str]) {
        self.report(FromShard::Register {
            shard: ShardId(shard),
            sequence,
            body: registration(sequence, topics).into(),
        });
    }

    /// The next mail of a shard.
    fn next(&self, shard: usize) -> ToShard {
        self.shards[shard]
            .recv_timeout(PATIENCE)
            .expect("mail for the shard")
    }

    fn next_sequence(&self, shard: usize) -> u64 {
        match self.next(shard) {
            ToShard::Registered { sequence } => sequence,
            other => panic!("{other:?}"),
        }
    }

    fn signal(&mut self) {
        self.signals
            .write_all(&[0])
            .expect("the control thread lives");
    }

    /// Answers every stop, and returns how it ended and what is in the store.
    fn stop(mut self) -> (ExitReason, tempfile::TempDir) {
        self.signal();
        for shard in 0..self.shards.len() {
            while !matches!(self.next(shard), ToShard::Stop) {}
            let shard = ShardId(shard as u16);
            self.report(FromShard::Stopped { shard });
        }
        (self.thread.join().expect("no panic"), self.directory)
    }
}

fn registration(version: u64, topics: &[&str]) -> Vec<u8> {
    let mut table = TopicTable::default();
    table.data_version.counter = version as i64;
    for topic in topics {
        let config = TopicConfig::new(topic, 4, 6);
        table.topic_config_table.insert((*topic).to_owned(), config);
    }
    table.encode_registration()
}

/// An answer, or a request at a fake name server.
#[derive(Debug)]
struct Received {
    code: i32,
    opaque: i32,
    remark: Option<String>,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Received {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

fn frame(code: i32, opaque: i32, fields: &[(&str, &str)], body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let encoding = if opaque % 2 == 0 {
        Encoding::Binary
    } else {
        Encoding::Json
    };
    Request {
        code,
        opaque,
        one_way: false,
        encoding,
        fields,
        body,
    }
    .encode(&mut out);
    out
}

/// One end of a connection.
struct Client {
    stream: TcpStream,
    received: BytesMut,
    next_opaque: i32,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the port is open");
        Self::over(stream)
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self {
            stream,
            received: BytesMut::new(),
            next_opaque: 0,
        }
    }

    /// The next frame; `None` when the peer has closed.
    fn receive(&mut self) -> Option<Received> {
        loop {
            if let Split::Frame(frame) = split(&self.received).expect("frames") {
                let mut scratch = Scratch::default();
                let command = Command::decode(&frame, &mut scratch).expect("a command");
                let received = Received {
                    code: command.code,
                    opaque: command.opaque,
                    remark: command.remark.map(str::to_owned),
                    fields: command
                        .fields
                        .iter()
                        .map(|(n, v)| (n.to_owned(), v.to_owned()))
                        .collect(),
                    body: command.body.to_vec(),
                };
                let used = frame.bytes;
                let _ = self.received.split_to(used);
                return Some(received);
            }
            let mut buffer = [0; 64 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn ask(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Received {
        self.next_opaque += 1;
        let request = frame(code, self.next_opaque, fields, body);
        self.stream.write_all(&request).expect("it reads");
        let answer = self.receive().expect("an answer");
        assert_eq!(answer.opaque, self.next_opaque);
        answer
    }

    fn route(&mut self, topic: &str) -> Received {
        self.ask(105, &[("topic", topic)], b"")
    }

    fn answer(&mut self, opaque: i32) {
        let mut out = BytesMut::new();
        Response::success().encode_head(opaque, Encoding::Json, &mut out);
        self.stream.write_all(&out).expect("it reads");
    }
}

/// Asks until the answer is as expected.
fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn broker_fields(address: &str) -> Vec<(&'static str, String)> {
    [
        ("brokerName", "broker-a"),
        ("brokerAddr", address),
        ("clusterName", "DefaultCluster"),
        ("haServerAddr", "10.0.0.1:10912"),
        ("brokerId", "0"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

fn register_broker(client: &mut Client, address: &str, topics: &[&str]) -> Received {
    let fields = broker_fields(address);
    let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (*n, v.as_str())).collect();
    client.ask(103, &fields, &registration(1, topics))
}

#[test]
fn broker_is_routed_as_long_as_its_connection_lives() {
    let running = start(0, &[]);
    let (mut broker, mut client) = (running.client(), running.client());
    assert_eq!(client.route("T").code, 17);
    assert_eq!(
        register_broker(&mut broker, "10.0.0.1:10911", &["T", "U"]).code,
        0
    );
    let route = client.route("T");
    assert_eq!(route.code, 0);
    assert!(
        route
            .text()
            .starts_with(r#"{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"#),
        "{}",
        route.text()
    );
    drop(broker);
    wait_for("the broker's end takes its routes away", || {
        client.route("T").code == 17
    });
    let unknown = client.ask(12_345, &[], b"");
    assert_eq!(
        (unknown.code, unknown.remark.as_deref()),
        (3, Some(" request type 12345 not supported"))
    );
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

/// A broker that asks for a short time-out and falls silent, its connection open.
#[test]
fn silent_broker_expires_at_its_own_deadline() {
    let running = start(0, &[]);
    let (mut broker, mut client) = (running.client(), running.client());
    register_broker(&mut broker, "10.0.0.9:10911", &["U", "V"]);
    let mut fields = broker_fields("10.0.0.1:10911");
    fields[0].1 = "fast".to_owned();
    fields.push(("heartbeatTimeoutMillis", "1000".to_owned()));
    let mut fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let registered = Instant::now();
    let answer = broker.ask(103, &fields, &registration(1, &["T", "U"]));
    assert_eq!(answer.code, 0);
    while registered.elapsed() < Duration::from_millis(1500) {
        fields.retain(|(name, _)| *name != "heartbeatTimeoutMillis");
        assert_eq!(broker.ask(904, &fields, b"").code, 0);
        assert_eq!(client.route("T").code, 0, "heartbeats keep it");
    }
    let silent = Instant::now();
    wait_for("it expires", || client.route("T").code == 17);
    assert!(silent.elapsed() < Duration::from_secs(3));
    assert_eq!(client.route("U").code, 0);
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

#[test]
fn frames_may_be_split_anywhere_and_come_in_bulk() {
    let running = start(0, &[]);
    let mut client = running.client();
    register_broker(&mut client, "10.0.0.1:10911", &["T", "U"]);
    let mut stream = running.client();
    stream.stream.set_nodelay(true).expect("a socket");
    for byte in frame(105, 77, &[("topic", "T")], b"") {
        stream.stream.write_all(&[byte]).expect("it reads");
    }
    assert_eq!(stream.receive().map(|r| (r.code, r.opaque)), Some((0, 77)));
    let mut bulk = BytesMut::new();
    for opaque in 0..5000 {
        bulk.extend_from_slice(&frame(105, opaque, &[("topic", "T")], b""));
    }
    let mut writer = stream.stream.try_clone().expect("a socket");
    let writer = std::thread::spawn(move || writer.write_all(&bulk));
    for opaque in 0..5000 {
        assert_eq!(
            stream.receive().map(|r| (r.code, r.opaque)),
            Some((0, opaque))
        );
    }
    writer.join().expect("no panic").expect("it reads");
    // A large body: a registration of many topics.
    let topics: Vec<String> = (0..20_000).map(|i| format!("topic-{i:0>40}")).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    assert_eq!(
        register_broker(&mut client, "10.0.0.2:10911", &topics).code,
        0
    );
    let list = client.ask(206, &[], b"");
    assert!(
        list.text()
            .contains("topic-0000000000000000000000000000000000019999")
    );
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

#[test]
fn garbage_closes_its_connection_only() {
    let running = start(0, &[]);
    let mut steady = running.client();
    let too_long = (16 * 1024 * 1024 + 1_u32).to_be_bytes();
    let header_beyond = [0, 0, 0, 8, 0, 0, 0, 9, 1, 2, 3, 4];
    let no_json = [0, 0, 0, 8, 0, 0, 0, 4, b'n', b'o', b'p', b'e'];
    let tls = [0x16, 3, 1, 2, 0, 1, 0, 1];
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &too_long,
        &header_beyond,
        &no_json,
        &tls,
        &[0; 64],
    ] {
        let mut client = running.client();
        client.stream.write_all(garbage).expect("accepted");
        assert!(client.receive().is_none(), "{garbage:?}");
        assert_eq!(steady.route("T").code, 17);
    }
    // What came before the garbage is answered.
    let mut client = running.client();
    let mut bytes = frame(105, 5, &[("topic", "T")], b"");
    bytes.extend_from_slice(&no_json);
    client.stream.write_all(&bytes).expect("accepted");
    assert_eq!(client.receive().map(|r| r.opaque), Some(5));
    assert!(client.receive().is_none());
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

#[test]
fn shards_are_routed_confirmed_and_told_of_topics() {
    let running = start(2, &[]);
    running.report(FromShard::Ready { shard: ShardId(0) });
    running.register(0, 1, &["T"]);
    running.register(1, 1, &["T", "U"]);
    assert_eq!((running.next_sequence(0), running.next_sequence(1)), (1, 1));
    let mut client = running.client();
    let route = client.route("T");
    assert!(route.text().contains("127.0.0.1:10911") && route.text().contains("127.0.0.1:10921"));
    let topic = TopicConfig::new("New", 2, 6);
    running.report(FromShard::TopicCreated {
        shard: ShardId(1),
        topic: topic.clone(),
    });
    assert!(matches!(running.next(0), ToShard::CreateTopic(created) if created == topic));
    assert!(
        running.shards[1].try_recv().is_err(),
        "the shard that has it is not told"
    );
    running.register(0, 2, &["T", "New"]);
    let (shard, count) = (ShardId(0), 1);
    running.report(FromShard::TopicsAdopted { shard, count });
    assert_eq!(running.next_sequence(0), 2);
    assert_eq!(client.route("New").code, 0);
    running.register(0, 3, &["New"]);
    assert_eq!(running.next_sequence(0), 3);
    assert!(
        !client.route("T").text().contains("broker-0"),
        "deleted there"
    );
    // Not a shard, not a registration: told in the log, no harm.
    running.register(9, 1, &["T"]);
    running.report(FromShard::Register {
        shard: ShardId(0),
        sequence: 4,
        body: Bytes::from_static(b"{"),
    });
    assert_eq!(running.next_sequence(0), 4);
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

/// A producer that asks between the registrations of two shards would keep a route to one of them for 30 s.
#[test]
fn a_new_topic_is_routed_to_all_shards_at_once() {
    let running = start(2, &[]);
    running.register(0, 1, &["T"]);
    running.register(1, 1, &["T"]);
    assert_eq!((running.next_sequence(0), running.next_sequence(1)), (1, 1));
    let mut client = running.client();
    let create = |shard, topic| {
        running.report(FromShard::TopicCreated {
            shard: ShardId(shard),
            topic: TopicConfig::new(topic, 2, 6),
        });
    };
    let adopted = |shard| {
        let (shard, count) = (ShardId(shard), 1);
        running.report(FromShard::TopicsAdopted { shard, count });
    };
    let created = Instant::now();
    create(1, "New");
    running.register(1, 2, &["T", "New"]);
    assert!(matches!(running.next(0), ToShard::CreateTopic(_)));
    let early = client.route("New");
    // On a machine that stood still meanwhile, it may be there: nothing waits longer than a second.
    assert!(early.code == 17 || created.elapsed() >= Duration::from_secs(1));
    // What shard 0 registered before it took the topic up does not count.
    running.register(0, 2, &["T"]);
    let early = client.route("New");
    assert!(early.code == 17 || created.elapsed() >= Duration::from_secs(1));
    running.register(0, 3, &["T", "New"]);
    adopted(0);
    assert_eq!((running.next_sequence(0), running.next_sequence(1)), (3, 2));
    let route = client.route("New");
    assert!(route.text().contains("broker-0") && route.text().contains("broker-1"));

    // Both created it, each by a first send of its own.
    create(0, "Both");
    running.register(0, 4, &["T", "New", "Both"]);
    create(1, "Both");
    running.register(1, 3, &["T", "New", "Both"]);
    // A shard that doesn't take it up holds nobody up for good.
    assert!(matches!(running.next(0), ToShard::CreateTopic(_)));
    assert!(matches!(running.next(1), ToShard::CreateTopic(_)));
    assert_eq!((running.next_sequence(0), running.next_sequence(1)), (4, 3));
    assert_eq!(client.route("Both").code, 0);
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

/// Clients that come while the shards still start wait, rather than hear that their topics don't exist
/// (apache/rocketmq#5322).
#[test]
fn name_server_answers_once_all_shards_have_registered() {
    let running = start(2, &[]);
    let address = running.name_server;
    running.register(0, 1, &["T"]);
    let (answers, early) = channel();
    std::thread::spawn(move || answers.send(Client::connect(address).route("T")));
    let none_yet = early.recv_timeout(Duration::from_millis(100));
    assert!(matches!(none_yet, Err(RecvTimeoutError::Timeout)));
    running.register(1, 1, &["T"]);
    let route = early.recv_timeout(PATIENCE).expect("an answer");
    assert!(route.text().contains("broker-0") && route.text().contains("broker-1"));
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

#[test]
fn key_value_configuration_survives_a_restart() {
    let running = start(0, &[]);
    let mut client = running.client();
    let item = [("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T")];
    let value = [item[0], item[1], ("value", "broker-a:4")];
    assert_eq!(client.ask(100, &value, b"").code, 0);
    let path = running.directory.path().join("kvConfig.json");
    let written = std::fs::read_to_string(&path).expect("written before the answer");
    assert_eq!(
        written,
        r#"{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}"#
    );
    let (reason, directory) = running.stop();
    assert_eq!(reason, ExitReason::Stopped);
    let running = start_in(directory, 0, &[]);
    let got = running.client().ask(101, &item, b"");
    assert_eq!(got.fields["value"], "broker-a:4");
    // A file that can't be written is told to whoever asked.
    std::fs::remove_file(&path).expect("there");
    std::fs::create_dir_all(path.join("in the way")).expect("a directory");
    let refused = running.client().ask(102, &item, b"");
    assert_eq!(refused.code, 1);
    let remark = refused.remark.expect("a remark");
    assert!(
        remark.starts_with("kvConfig.json could not be written: "),
        "{remark}"
    );
    running.stop();
}

#[test]
fn file_that_can_not_be_read_stops_the_start() {
    let check = |prepare: &dyn Fn(&Path)| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kvConfig.json");
        prepare(&path);
        let error = open_name_server(LOOPBACK, path.clone()).expect_err("unreadable");
        let start = format!("{}: ", path.display());
        assert!(error.starts_with(&start), "{error}");
    };
    check(&|path| std::fs::write(path, "{\"configTable\":").expect("written"));
    check(&|path| std::fs::create_dir(path).expect("made"));
}

#[test]
fn taken_port_is_told_with_the_remedy() {
    let listener = TcpListener::bind(LOOPBACK).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let error = open_name_server(address, "kvConfig.json".into()).expect_err("taken");
    let port = address.port();
    assert!(
        error.starts_with(&format!("name server port {port} is taken: ")),
        "{error}"
    );
    assert!(
        error.ends_with("set namesrvListenPort or stop the other process"),
        "{error}"
    );
}

/// A name server of which the test plays every move.
struct Fake {
    listener: TcpListener,
    address: SocketAddr,
}

impl Fake {
    fn new() -> Self {
        let listener = TcpListener::bind(LOOPBACK).expect("a free port");
        let address = listener.local_addr().expect("bound");
        Self { listener, address }
    }

    fn accept(&self) -> Client {
        Client::over(self.listener.accept().expect("a connection").0)
    }
}

#[test]
fn external_name_server_is_told_everything_until_the_stop() {
    let fake = Fake::new();
    let mut running = start(2, &[fake.address]);
    running.register(0, 1, &["T", "U"]);
    let mut peer = fake.accept();
    let request = peer.receive().expect("a registration");
    assert_eq!(request.code, 103);
    let expected = identity(0);
    let crc: u32 = request.fields["bodyCrc32"].parse().expect("a number");
    assert!(crc != 0 && check_body_crc(&request.body, Some(crc)).is_ok());
    assert_eq!(request.fields["brokerName"], expected.broker_name);
    assert_eq!(request.fields["brokerAddr"], expected.address);
    assert_eq!(request.fields["haServerAddr"], expected.ha_address);
    assert_eq!(request.fields["clusterName"], expected.cluster);
    assert_eq!(
        (&*request.fields["brokerId"], &*request.fields["compressed"]),
        ("0", "false")
    );
    assert_eq!(request.body, registration(1, &["T", "U"]));
    // Confirmed only by the answer.
    let none_yet = running.shards[0].recv_timeout(Duration::from_millis(200));
    assert!(matches!(none_yet, Err(RecvTimeoutError::Timeout)));
    peer.answer(request.opaque);
    assert_eq!(running.next_sequence(0), 1);
    // While one is under way, changes gather in the next.
    running.register(0, 2, &["T"]);
    let second = peer.receive().expect("a registration");
    running.register(0, 3, &["T", "V"]);
    running.register(0, 4, &["T", "W"]);
    running.register(1, 1, &["X", "Y"]);
    let other = peer.receive().expect("the other shard does not wait");
    assert_eq!(other.fields["brokerName"], "broker-1");
    peer.answer(other.opaque);
    assert_eq!(running.next_sequence(1), 1);
    peer.answer(second.opaque);
    assert_eq!(running.next_sequence(0), 2);
    let newest = peer.receive().expect("a registration");
    assert_eq!(newest.body, registration(4, &["T", "W"]));
    peer.answer(newest.opaque);
    assert_eq!(running.next_sequence(0), 4);
    // A restart of the name server: everything is registered again.
    drop(peer);
    let mut peer = fake.accept();
    let mut names: Vec<String> = Vec::new();
    for _ in 0..2 {
        let again = peer.receive().expect("a registration");
        names.push(again.fields["brokerName"].clone());
        peer.answer(again.opaque);
    }
    names.sort();
    assert_eq!(names, ["broker-0", "broker-1"]);
    // The stop unregisters both while the shards stop.
    running.signal();
    for shard in 0..2 {
        let gone = peer.receive().expect("an unregistration");
        assert_eq!(
            (gone.code, gone.fields["brokerName"].as_str()),
            (104, format!("broker-{shard}").as_str())
        );
        peer.answer(gone.opaque);
        running.report(FromShard::Stopped {
            shard: ShardId(shard),
        });
    }
    assert_eq!(
        running.thread.join().expect("no panic"),
        ExitReason::Stopped
    );
    assert!(peer.receive().is_none());
}

/// A dead name server and a silent one: registration with the embedded one and confirmations go on
/// (apache/rocketmq#7870).
#[test]
fn dead_and_silent_name_servers_delay_nobody() {
    let dead = Fake::new().address;
    let silent = Fake::new();
    let running = start(1, &[dead, silent.address]);
    let begun = Instant::now();
    running.register(0, 1, &["T", "U"]);
    let mut client = running.client();
    wait_for("routed at once", || client.route("T").code == 0);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(running.next_sequence(0), 1);
    let waited = begun.elapsed();
    assert!(
        waited > Duration::from_millis(2500) && waited < Duration::from_secs(6),
        "{waited:?}"
    );
    // Known to be silent: nobody waits again.
    let begun = Instant::now();
    running.register(0, 2, &["T", "V"]);
    assert_eq!(running.next_sequence(0), 2);
    assert!(
        begun.elapsed() < Duration::from_millis(500),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    assert_eq!(running.stop().0, ExitReason::Stopped);
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn name_server_that_talks_garbage_is_left_and_tried_again() {
    let fake = Fake::new();
    let running = start(1, &[fake.address]);
    running.register(0, 1, &["T", "U"]);
    let mut peer = fake.accept();
    peer.receive().expect("a registration");
    peer.stream
        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .expect("it reads");
    assert_eq!(running.next_sequence(0), 1, "not waited for any longer");
    assert!(peer.receive().is_none());
    let mut peer = fake.accept();
    let again = peer.receive().expect("a registration");
    // A refusal is an answer.
    let mut out = BytesMut::new();
    Response::error(ResponseCode::SYSTEM_ERROR, "no").encode_head(
        again.opaque,
        Encoding::Json,
        &mut out,
    );
    peer.stream.write_all(&out).expect("it reads");
    running.register(0, 2, &["T"]);
    let next = peer.receive().expect("a registration");
    peer.answer(next.opaque);
    assert_eq!(running.next_sequence(0), 2);
    assert_eq!(running.stop().0, ExitReason::Stopped);
}

#[test]
fn failed_shard_ends_the_process_and_the_others_stop_in_order() {
    let running = start(2, &[]);
    running.report(FromShard::Failed {
        shard: ShardId(1),
        reason: "the disk is gone".to_owned(),
    });
    assert!(matches!(running.next(0), ToShard::Stop));
    running.report(FromShard::Stopped { shard: ShardId(0) });
    let reason = running.thread.join().expect("no panic");
    assert_eq!(
        reason,
        ExitReason::Failed("shard 1: the disk is gone".to_owned())
    );
}

#[test]
fn shard_that_does_not_stop_is_named() {
    let mut running = start(2, &[]);
    running.signal();
    assert!(matches!(running.next(0), ToShard::Stop));
    running.report(FromShard::Stopped { shard: ShardId(0) });
    let reason = running.thread.join().expect("no panic");
    assert_eq!(
        reason,
        ExitReason::Failed("shard 1 did not stop within 5 s".to_owned())
    );
}

#[test]
fn second_signal_ends_at_once_but_not_one_sent_twice() {
    let mut running = start(1, &[]);
    running.signal();
    running.signal();
    assert!(matches!(running.next(0), ToShard::Stop));
    assert!(matches!(
        running.shards[0].recv_timeout(Duration::from_millis(400)),
        Err(RecvTimeoutError::Timeout)
    ));
    assert!(!running.thread.is_finished());
    let begun = Instant::now();
    running.signal();
    let reason = running.thread.join().expect("no panic");
    assert_eq!(
        reason,
        ExitReason::Failed("second signal, ended at once".to_owned())
    );
    assert!(begun.elapsed() < Duration::from_secs(1));
}

/// Ends with many clients connected: what the kernel still holds is given up.
#[test]
fn stop_does_not_wait_for_clients() {
    let running = start(1, &[]);
    running.register(0, 1, &["T", "U"]);
    let mut clients: Vec<Client> = (0..300).map(|_| running.client()).collect();
    for client in &mut clients {
        assert_eq!(client.route("T").code, 0);
    }
    let begun = Instant::now();
    assert_eq!(running.stop().0, ExitReason::Stopped);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert!(clients.iter_mut().all(|c| c.receive().is_none()));
}
