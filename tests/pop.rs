//! Goal: what a group pops over real sockets comes at once, comes again if nobody acknowledges it, and is there after a
//! kill. Method: a real process, killed with messages in flight.

mod support;

use std::time::{Duration, Instant};
use support::{Answer, Client, Server};

const POP: i32 = 200_050;
const ACKNOWLEDGE: i32 = 200_051;

fn start_pop(client: &mut Client, poll_ms: u64, invisible_ms: u64) -> i32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let born = since.expect("after 1970").as_millis().to_string();
    let (poll, invisible) = (poll_ms.to_string(), invisible_ms.to_string());
    let fields = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "-1"),
        ("maxMsgNums", "32"),
        ("invisibleTime", &*invisible),
        ("pollTime", &*poll),
        ("bornTime", &*born),
        ("initMode", "0"),
        ("exp", "*"),
        ("expType", "TAG"),
    ];
    client.send(POP, &fields, &[])
}

fn pop(client: &mut Client, poll_ms: u64, invisible_ms: u64) -> Answer {
    let opaque = start_pop(client, poll_ms, invisible_ms);
    let answer = client.receive().expect("an answer");
    assert_eq!(answer.opaque, opaque);
    answer
}

fn texts(answer: &Answer) -> Vec<String> {
    let messages = answer.messages().into_iter();
    let bodies = messages.map(|(_, body)| String::from_utf8(body).expect("text"));
    bodies.collect()
}

/// Acknowledges what one pop gave, all of it from one queue.
fn acknowledge(client: &mut Client, answer: &Answer) {
    let info = &answer.fields["msgOffsetInfo"];
    let parts: Vec<&str> = info.split(' ').collect();
    let [flag, queue_id, offsets] = parts[..] else {
        panic!("messages of one queue: {info}");
    };
    let topic = if flag == "1" { "%RETRY%G_T" } else { "T" };
    for offset in offsets.split(',') {
        let handle = format!(
            "{offset} {} {} {} {flag} broker {queue_id} {offset}",
            answer.fields["popTime"], answer.fields["invisibleTime"], answer.fields["reviveQid"]
        );
        let fields = [
            ("consumerGroup", "G"),
            ("topic", topic),
            ("queueId", queue_id),
            ("extraInfo", &*handle),
            ("offset", offset),
        ];
        let answer = client.call(ACKNOWLEDGE, &fields, &[]);
        assert_eq!(answer.code, 0, "{}", answer.remark);
    }
}

#[test]
fn a_held_pop_is_answered_by_the_send_and_what_is_not_acknowledged_comes_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&directory.path().join("store"), &[("shards", "1")]);
    let (mut producer, mut consumer) = (Client::connect(server.port), Client::connect(server.port));
    producer.send_message("T", 1, "A", b"0");
    let answer = pop(&mut consumer, 0, 60_000);
    assert_eq!(texts(&answer), ["0"]);
    acknowledge(&mut consumer, &answer);
    for number in 1..100 {
        let opaque = start_pop(&mut consumer, 15_000, 60_000);
        let body = number.to_string();
        producer.send_message("T", number % 4, "A", body.as_bytes());
        let answer = consumer.receive().expect("an answer");
        assert_eq!((answer.opaque, texts(&answer)), (opaque, vec![body]));
        acknowledge(&mut consumer, &answer);
    }
    producer.send_message("T", 2, "A", b"again");
    let asked = Instant::now();
    assert_eq!(texts(&pop(&mut consumer, 0, 1000)), ["again"]);
    let answer = pop(&mut consumer, 15_000, 60_000);
    assert_eq!(texts(&answer), ["again"]);
    let waited = asked.elapsed();
    assert!(
        waited >= Duration::from_millis(1000),
        "invisible for {waited:?}"
    );
    assert!(
        waited < Duration::from_secs(10),
        "woken by the copy, not at the deadline: {waited:?}"
    );
    acknowledge(&mut consumer, &answer);
    assert_eq!(pop(&mut consumer, 0, 1000).code, 210);
    server.stop();
}

#[test]
fn a_kill_loses_nothing_that_was_popped() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let flags = [("shards", "1")];
    let mut server = Server::start(&store, &flags);
    let mut client = Client::connect(server.port);
    for number in 0..20 {
        client.send_message("T", 0, "A", format!("{number:02}").as_bytes());
    }
    for round in 0..3 {
        let answer = pop(&mut client, 0, 60_000);
        assert_eq!(texts(&answer).len(), 20, "round {round}");
        server.kill();
        server = Server::start(&store, &flags);
        client = Client::connect(server.port);
    }
    let answer = pop(&mut client, 0, 60_000);
    assert_eq!(texts(&answer).len(), 20);
    acknowledge(&mut client, &answer);
    server.stop();
    let server = Server::start(&store, &flags);
    let mut client = Client::connect(server.port);
    assert_eq!(
        pop(&mut client, 0, 60_000).code,
        210,
        "a clean end keeps the acknowledgements"
    );
    server.stop();
}
