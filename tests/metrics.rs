//! What the metrics' port tells after known traffic, over real sockets: exact counts, health, holds and why they wait,
//! the slowest deliveries; and that a reader who doesn't read delays nobody.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::{Client, Server, free_ports, send_fields};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server of one shard that is ready, and the port of its metrics.
fn start(store: &Path, flags: &[(&str, &str)]) -> (Server, u16) {
    let (name_server, port) = free_ports();
    let metrics = name_server + 1;
    let metrics_port = metrics.to_string();
    let own = [("metricsPort", metrics_port.as_str()), ("shards", "1")];
    let own = own
        .iter()
        .filter(|(name, _)| !flags.iter().any(|(n, _)| n == name));
    let all: Vec<_> = own.chain(flags).copied().collect();
    let server = Server::start_on(store, &all, name_server, port);
    // It listens a moment before it is ready.
    let ready = || get(metrics, "/readyz", "*/*");
    let (_, _, body) = until("it is ready", ready, |(status, ..)| *status == 200);
    assert_eq!(body, "ready\n");
    (server, metrics)
}

/// Status, head and body of one request.
fn get(port: u16, path: &str, accept: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("it answers and closes");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    let status = status.parse().expect("a number");
    (status, head.to_ascii_lowercase(), body.to_owned())
}

/// Samples by name, each with its labels.
struct Samples(BTreeMap<String, Vec<(String, f64)>>);

impl Samples {
    fn of(port: u16) -> Self {
        let (status, _, body) = get(port, "/metrics", "*/*");
        assert_eq!(status, 200);
        let mut samples = BTreeMap::<String, Vec<(String, f64)>>::new();
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').expect("labels");
            let value = value.parse().expect("a number");
            samples
                .entry(name.to_owned())
                .or_default()
                .push((labels.to_owned(), value));
        }
        Self(samples)
    }

    /// Sum of the series whose labels have this part.
    fn sum(&self, name: &str, labels: &str) -> f64 {
        let series = self.0.get(name).into_iter().flatten();
        let matching = series.filter(|(has, _)| has.contains(labels));
        matching.map(|(_, value)| value).sum::<f64>() + 0.0
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

fn json(port: u16, path: &str) -> Value {
    let (status, head, body) = get(port, path, "*/*");
    assert_eq!(status, 200, "{body}");
    assert!(head.contains("application/json"), "{head}");
    serde_json::from_str(&body).expect("JSON")
}

/// Asks until the answer is as wanted.
fn until<T>(what: &str, mut ask: impl FnMut() -> T, is_wanted: impl Fn(&T) -> bool) -> T {
    let started = Instant::now();
    loop {
        let answer = ask();
        if is_wanted(&answer) {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: not in time");
        std::thread::yield_now();
    }
}

fn heartbeat(client: &mut Client, group: &str, topic: &str) {
    let body = format!(
        r#"{{"clientID":"c@1","producerDataSet":[{{"groupName":"PG"}}],"consumerDataSet":[{{"groupName":"{group}",
        "consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet":[{{"topic":"{topic}","subString":"*","subVersion":1}}]}}]}}"#
    );
    assert_eq!(client.call(34, &[], body.as_bytes()).code, 0);
}

/// Six messages stored, two sends refused, six delivered, one of them to a pull that waited.
fn traffic(port: u16, producer: &mut Client, consumer: &mut Client) {
    for queue in 0..3 {
        assert_eq!(producer.send_message("T", queue, "A", &[b'x'; 100]).code, 0);
    }
    for _ in 0..2 {
        let fields = send_fields("T", "0", "__SHARDINGKEY\u{1}k\u{2}");
        assert_eq!(producer.call(310, &fields, &[b'x'; 2000]).code, 0);
    }
    let refused = [("0", &b""[..], 13), ("99", b"x", 29)];
    for (queue, body, code) in refused {
        assert_eq!(
            producer.call(310, &send_fields("T", queue, ""), body).code,
            code
        );
    }
    // Queue 0 has three messages; two pulls of them, and one that waits for a fourth.
    assert_eq!(consumer.pull("T", 0, 0, 0, "*").messages().len(), 3);
    assert_eq!(consumer.pull("T", 0, 1, 0, "*").messages().len(), 2);
    consumer.start_pull("T", 0, 3, 15_000, "*");
    let held = || Samples::of(port).sum("ringmq_holds", "");
    until("the pull is held", held, |count| *count == 1.0);
    assert_eq!(producer.send_message("T", 0, "A", &[b'x'; 100]).code, 0);
    assert_eq!(consumer.receive().expect("an answer").messages().len(), 1);
    let commit = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("commitOffset", "1"),
    ];
    assert_eq!(consumer.call(15, &commit, b"").code, 0);
    assert_eq!(consumer.call(9999, &[], b"").code, 3);
}

/// A metric, labels that are all there in this order, and what their series add up to.
const RPC: &str = "rocketmq_rpc_latency_count";
const BROKER: &str = r#"cluster="DefaultCluster",node_type="broker",node_id="broker-a""#;
const EXPECTED: &[(&str, &str, f64)] = &[
    ("rocketmq_messages_in_total", BROKER, 6.0),
    (
        "rocketmq_messages_in_total",
        r#"topic="T",message_type="normal",is_system="false""#,
        4.0,
    ),
    (
        "rocketmq_messages_in_total",
        r#"topic="T",message_type="fifo",is_system="false""#,
        2.0,
    ),
    (
        "rocketmq_message_size_bucket",
        r#"message_type="fifo",is_system="false",le="1024""#,
        0.0,
    ),
    (
        "rocketmq_message_size_bucket",
        r#"message_type="fifo",is_system="false",le="4096""#,
        2.0,
    ),
    ("rocketmq_message_size_count", "", 6.0),
    ("rocketmq_messages_out_total", BROKER, 6.0),
    (
        "rocketmq_messages_out_total",
        r#"topic="T",consumer_group="G",is_retry="false""#,
        6.0,
    ),
    // Queue 0 has 4, of which 1 is committed and all were delivered; no offset at all for the others.
    (
        "rocketmq_consumer_lag_messages",
        r#"consumer_group="G",topic="T",is_retry="false""#,
        3.0,
    ),
    (
        "rocketmq_consumer_inflight_messages",
        r#"consumer_group="G",topic="T""#,
        3.0,
    ),
    ("rocketmq_consumer_ready_messages", BROKER, 0.0),
    ("rocketmq_consumer_queueing_latency", BROKER, 0.0),
    (
        "rocketmq_consumer_connections",
        r#"consumer_group="G",consume_mode="push""#,
        1.0,
    ),
    (
        "rocketmq_producer_connections",
        r#"language="java",version="v5_3_3""#,
        1.0,
    ),
    ("rocketmq_broker_permission", BROKER, 6.0),
    (
        RPC,
        r#"request_code="send_message_v2",response_code="success",is_long_polling="false""#,
        6.0,
    ),
    (
        RPC,
        r#"request_code="send_message_v2",response_code="message_illegal""#,
        1.0,
    ),
    (
        RPC,
        r#"request_code="pull_message",response_code="success",is_long_polling="true""#,
        1.0,
    ),
    (
        RPC,
        r#"request_code="pull_message",response_code="success",is_long_polling="false""#,
        2.0,
    ),
    (
        RPC,
        r#"request_code="heart_beat",response_code="success""#,
        1.0,
    ),
    (
        RPC,
        r#"request_code="others",response_code="request_code_not_supported""#,
        1.0,
    ),
    (
        "ringmq_delivery_seconds_count",
        r#"topic="T",consumer_group="G""#,
        1.0,
    ),
    ("ringmq_holds_parked_total", "", 1.0),
    ("ringmq_holds_woken_total", "", 1.0),
    ("ringmq_holds_expired_total", "", 0.0),
    ("ringmq_hold_seconds_count", "", 1.0),
    ("ringmq_holds", "", 0.0),
    ("ringmq_messages_in_total", "", 6.0),
    ("ringmq_messages_out_total", "", 6.0),
    ("ringmq_pulls_found_total", "", 3.0),
    ("ringmq_sends_refused_total", "", 2.0),
    (
        "ringmq_send_refusals_total",
        r#"response_code="message_illegal""#,
        1.0,
    ),
    ("ringmq_send_refusals_total", "", 2.0),
    ("ringmq_requests_unsupported_total", "", 1.0),
    ("ringmq_connections", "", 3.0),
    ("ringmq_connections_accepted_total", "", 4.0),
    ("ringmq_frames_received_total", "", 14.0),
    ("ringmq_batch_messages_sum", "", 6.0),
    ("ringmq_shard_up", r#"shard="0",node_id="broker-a""#, 1.0),
    ("ringmq_shard_serves", "", 1.0),
    ("ringmq_log_read_only", "", 0.0),
];

#[test]
fn counts_are_exact_after_known_traffic() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, port) = start(&directory.path().join("store"), &[]);
    let mut clients = [(); 3].map(|()| Client::connect(server.port));
    let [producer, consumer, member] = &mut clients;
    assert!(!Samples::of(port).has("rocketmq_messages_in_total"));
    // Notifications go to the member, so that they are not in the consumer's way.
    heartbeat(member, "G", "T");
    traffic(port, producer, consumer);
    let after = Samples::of(port);
    for (name, labels, value) in EXPECTED {
        assert!(after.has(name), "{name} is missing");
        assert_eq!(after.sum(name, labels), *value, "{name} {labels}");
    }
    let bytes_in = after.sum("rocketmq_throughput_in_total", BROKER);
    for (name, value) in [
        ("rocketmq_message_size_sum", bytes_in),
        ("ringmq_log_visible_bytes", bytes_in),
        (
            "ringmq_append_to_written_seconds_count",
            after.sum("ringmq_log_writes_total", ""),
        ),
    ] {
        assert_eq!(after.sum(name, ""), value, "{name}");
    }
    assert!(after.sum("rocketmq_throughput_out_total", BROKER) > 4.0 * 2000.0);
    assert!(after.has("rocketmq_consumer_lag_latency"));
    drop(clients);
    let closes = || Samples::of(port).sum("ringmq_connection_closes_total", r#"reason="client""#);
    // Three, and the one that found the server ready.
    until("the closes are counted", closes, |count| *count == 4.0);
    server.stop();
}

#[test]
fn both_formats_are_served_and_other_paths_are_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, port) = start(&directory.path().join("store"), &[("shards", "2")]);
    let (_, head, body) = get(port, "/metrics", "*/*");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("# TYPE ringmq_turns_total counter\n"));
    assert!(!body.contains("# EOF"));
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3";
    let (_, head, body) = get(port, "/metrics", accept);
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(body.contains("# TYPE ringmq_turns counter\n"));
    assert!(body.ends_with("# EOF\n"));
    let samples = Samples::of(port);
    for shard in ["0", "1"] {
        let labels = format!(r#"shard="{shard}",node_id="broker-a-{shard}""#);
        assert_eq!(samples.sum("ringmq_shard_up", &labels), 1.0);
    }
    assert_eq!(get(port, "/other", "*/*").0, 404);
    assert_eq!(get(port, "/holds?limit=x", "*/*").0, 400);
    assert_eq!(get(port, "/holds?topik=x", "*/*").0, 400);
    assert_eq!(get(port, "/healthz", "*/*").0, 200);
    server.stop();
}

fn ringmq(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
    command.args(arguments).output().expect("it runs")
}

#[test]
fn a_hold_says_who_waits_for_what_and_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, port) = start(&directory.path().join("store"), &[]);
    let (mut producer, mut consumer) = (Client::connect(server.port), Client::connect(server.port));
    producer.send_message("T", 0, "A", b"0");
    producer.send_message("U", 0, "A", b"0");
    heartbeat(&mut consumer, "G", "T");
    consumer.start_pull("T", 0, 1, 15_000, "B || C");
    consumer.start_pull("U", 0, 1, 15_000, "*");
    until(
        "both are held",
        || json(port, "/holds"),
        |holds| holds["total"] == 2,
    );
    producer.send_message("T", 0, "A", b"1");
    producer.send_message("T", 0, "", b"2");
    let holds = json(port, "/holds?topic=T&group=G");
    assert_eq!((&holds["total"], &holds["listed"]), (&1.into(), &1.into()));
    let hold = &holds["holds"][0];
    for (name, value) in [
        ("shard", Value::from(0)),
        ("broker", "broker-a".into()),
        ("topic", "T".into()),
        ("queueId", 0.into()),
        ("group", "G".into()),
        ("clientId", "c@1".into()),
        ("filter", "B || C".into()),
        ("askedOffset", 1.into()),
        ("examinedTo", 3.into()),
    ] {
        assert_eq!(hold[name], value, "{name}: {hold}");
    }
    let refused = &hold["lastRefused"];
    assert_eq!(
        (&refused["offset"], &refused["tag"]),
        (&2.into(), &"".into())
    );
    assert_eq!(
        refused["why"],
        r#"it has no tag, which is none of "B || C""#
    );
    let (since, deadline) = (hold["since"].as_u64(), hold["deadline"].as_u64());
    let whole = deadline
        .zip(since)
        .map(|(deadline, since)| deadline - since);
    assert!(
        whole.is_some_and(|ms| (14_990..=15_000).contains(&ms)),
        "{hold}"
    );
    assert_eq!(json(port, "/holds?group=H")["total"], 0);
    assert_eq!(json(port, "/holds?limit=1")["listed"], 1);

    let broker = format!("127.0.0.1:{port}");
    let shown = ringmq(&["holds", "--broker", &broker, "--topic", "T"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{shown:?}");
    assert!(text.contains("c@1"), "{text}");
    assert!(text.ends_with("1 of 1 holds\n"), "{text}");
    let shown = ringmq(&["holds", "-b", &broker, "--json"]);
    let answer: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(answer["total"], 2);
    let wrong = format!("127.0.0.1:{}", server.port);
    let refused = ringmq(&["holds", "-b", &wrong]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("metricsPort"), "{text}");
    server.stop();
}

#[test]
fn slow_deliveries_are_remembered_hop_by_hop() {
    for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let directory = tempfile::tempdir().expect("a directory");
        let (server, port) = start(&directory.path().join("store"), &[("flushDiskType", flush)]);
        let (mut producer, mut consumer) =
            (Client::connect(server.port), Client::connect(server.port));
        producer.send_message("T", 0, "A", b"0");
        for offset in 1..=50 {
            consumer.start_pull("T", 0, offset, 15_000, "*");
            // Answered after it, so that the pull is held.
            consumer.call(30, &[("topic", "T"), ("queueId", "0")], b"");
            producer.send_message("T", 0, "A", b"x");
            assert_eq!(consumer.receive().expect("an answer").messages().len(), 1);
        }
        let is_sent = |answer: &Value| {
            let rows = answer["deliveries"].as_array().expect("a list");
            rows.iter().all(|row| row["sentUs"].is_u64())
        };
        let answer = until("all were sent", || json(port, "/slow"), is_sent);
        let rows = answer["deliveries"].as_array().expect("a list");
        assert_eq!(rows.len(), 32, "the slowest of 50");
        let mut last = u64::MAX;
        for row in rows {
            let hops = ["writtenUs", "visibleUs", "replyQueuedUs", "sentUs"];
            let hops = hops.map(|name| row[name].as_u64().expect("a time"));
            assert!(hops.is_sorted(), "{row}");
            assert!(hops[2] <= last, "slowest first");
            last = hops[2];
            if flush == "ASYNC_FLUSH" {
                assert_eq!(hops[0], hops[1], "written is enough");
            }
            assert_eq!((&row["topic"], &row["group"]), (&"T".into(), &"G".into()));
            assert_eq!(row["messages"], 1);
        }
        let shown = ringmq(&["slow", "-b", &format!("127.0.0.1:{port}")]);
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert_eq!(text.lines().count(), 33, "{text}");
        server.stop();
    }
}

/// More readers than there are places, none of which reads or asks: clients don't notice, and a place is free again
/// when the first gives up.
#[test]
fn readers_that_do_not_read_delay_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, port) = start(&directory.path().join("store"), &[]);
    let mut idle: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens"))
        .collect();
    for stream in idle.iter_mut().take(8) {
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .expect("it reads");
    }
    let mut client = Client::connect(server.port);
    for _ in 0..100 {
        assert_eq!(client.send_message("T", 0, "A", b"x").code, 0);
    }
    drop(idle);
    assert_eq!(get(port, "/healthz", "*/*").0, 200);
    assert_eq!(
        Samples::of(port).sum("rocketmq_messages_in_total", ""),
        100.0
    );
    server.stop();
}

#[test]
fn a_stopping_process_is_not_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, port) = start(&directory.path().join("store"), &[]);
    server.stop();
    assert!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "it is gone with the process"
    );
}

/// The port that the configuration names has to be free; the usual one is done without.
#[test]
fn a_taken_port_ends_the_start_only_if_it_was_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, port) = start(&directory.path().join("first"), &[]);
    let (name_server, broker) = free_ports();
    let flags = [
        format!(
            "--storePathRootDir={}",
            directory.path().join("second").display()
        ),
        format!("--namesrvListenPort={name_server}"),
        format!("--listenPort={broker}"),
        "--shards=1".to_owned(),
        format!("--metricsPort={port}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let output = ringmq(&flags);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("set metricsPort (0: off)"), "{text}");
    first.stop();
}
