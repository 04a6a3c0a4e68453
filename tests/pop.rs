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

const SET_MODE: i32 = 401;
const QUERY_ASSIGNMENT: i32 = 400;

fn beat(client: &mut Client) {
    let body = br#"{"clientID":"c","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],"topic":"T"}],"unitMode":false}],"producerDataSet":[]}"#;
    assert_eq!(client.call(34, &[], body).code, 0);
}

/// Brokers, queues and modes that the group's only consumer is told, sorted.
fn told(client: &mut Client) -> Vec<(String, i64, String)> {
    let query = br#"{"topic":"T","consumerGroup":"G","clientId":"c","strategyName":"AVG","messageModel":"CLUSTERING"}"#;
    let answer = client.call(QUERY_ASSIGNMENT, &[], query);
    assert_eq!(answer.code, 0, "{}", answer.remark);
    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    let all = body["messageQueueAssignments"].as_array();
    let mut told: Vec<_> = all
        .into_iter()
        .flatten()
        .map(|assignment| {
            let queue = &assignment["messageQueue"];
            let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
            let queue_id = queue["queueId"].as_i64().expect("a number");
            (
                text(&queue["brokerName"]),
                queue_id,
                text(&assignment["mode"]),
            )
        })
        .collect();
    told.sort();
    told
}

/// Two shards of a process and a broker that is a process of its own, all at the first one's name server: a consumer is
/// told the queues of all three, whichever it asks, and after a kill the mode that was set.
#[test]
fn a_consumer_is_told_the_queues_of_all_brokers_by_any_of_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let (near, far) = (directory.path().join("near"), directory.path().join("far"));
    let near_flags = [("shards", "2"), ("brokerName", "near")];
    let mut server = Server::start(&near, &near_flags);
    let address = format!("127.0.0.1:{}", server.name_server);
    let far_flags = [
        ("shards", "1"),
        ("brokerName", "far"),
        ("namesrvAddr", address.as_str()),
    ];
    let other = Server::start(&far, &far_flags);
    let all = |of: &Server| [server.port, server.port + 10, of.port].map(Client::connect);
    let mut clients = all(&other);
    let fields = [
        ("topic", "T"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "1"),
        ("writeQueueNums", "1"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "false"),
    ];
    for client in &mut clients {
        assert_eq!(client.call(17, &fields, &[]).code, 0);
        beat(client);
    }
    let expected = |queue_id: i64, mode: &str| {
        ["far", "near-0", "near-1"].map(|name| (name.to_owned(), queue_id, mode.to_owned()))
    };
    for client in &mut clients {
        assert_eq!(told(client), expected(0, "PULL"));
    }
    let mode = br#"{"topic":"T","consumerGroup":"G","mode":"POP","popShareQueueNum":-1}"#;
    for client in &mut clients {
        assert_eq!(client.call(SET_MODE, &[], mode).code, 0);
        assert_eq!(told(client), expected(-1, "POP"));
    }
    let (name_server, port) = (server.name_server, server.port);
    // A clean end, since an answer does not wait for its file.
    server.stop();
    let [.., mut of_other] = clients;
    let query = br#"{"topic":"T","consumerGroup":"G","clientId":"c","strategyName":"AVG","messageModel":"CLUSTERING"}"#;
    let without = of_other.call(QUERY_ASSIGNMENT, &[], query);
    assert_eq!(without.code, 1, "the consumer keeps what it has");
    server = Server::start_on(&near, &near_flags, name_server, port);
    let mut client = Client::connect(server.port);
    beat(&mut client);
    let wanted = ("near-1".to_owned(), -1, "POP".to_owned());
    let asked = Instant::now();
    // Shards serve before the name server knows them; until then a consumer is told nothing and asks again.
    let mut last = told(&mut client);
    while !last.contains(&wanted) {
        assert!(asked.elapsed() < Duration::from_secs(20), "{last:?}");
        last = told(&mut client);
    }
    server.stop();
    other.stop();
}
