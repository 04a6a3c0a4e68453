//! Goal: transactions over real sockets: what a producer commits is delivered, what it rolls back is not, what it
//! leaves open is asked for; over kills too. Method: a real process, killed at once after what it acknowledged.

mod support;

use ringmq::protocol::message::{Record, StoredMessage};
use std::collections::BTreeSet;
use std::path::Path;
use support::{Answer, Client, Server};

const PROPERTIES: &str = "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}UNIQ_KEY\u{1}u\u{2}";
const COMMIT: &str = "8";
const ROLLBACK: &str = "12";

/// Where a half message is.
#[derive(Clone)]
struct Half {
    offset: String,
    at: String,
}

fn start(store: &Path, flush: &str, checks_max: &str) -> Server {
    let flags = [
        ("shards", "1"),
        ("flushDiskType", flush),
        ("transactionTimeOut", "300"),
        ("transactionCheckInterval", "500"),
        ("transactionCheckMax", checks_max),
    ];
    Server::start(store, &flags)
}

fn begin(client: &mut Client, body: &str) -> Half {
    let born = wall_ms().to_string();
    let fields = [
        ("a", "PG"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", "4"),
        ("g", born.as_str()),
        ("h", "0"),
        ("i", PROPERTIES),
    ];
    let answer = client.call(310, &fields, body.as_bytes());
    assert_eq!(answer.code, 0, "{}", answer.remark);
    assert_eq!(answer.fields["transactionId"], "u");
    let at = u64::from_str_radix(&answer.fields["msgId"][16..], 16).expect("a place");
    Half {
        offset: answer.fields["queueOffset"].to_owned(),
        at: at.to_string(),
    }
}

fn end_fields<'a>(half: &'a Half, decision: &'a str, is_check: &'a str) -> [(&'a str, &'a str); 6] {
    [
        ("producerGroup", "PG"),
        ("tranStateTableOffset", &half.offset),
        ("commitLogOffset", &half.at),
        ("commitOrRollback", decision),
        ("fromTransactionCheck", is_check),
        ("msgId", "u"),
    ]
}

fn end(client: &mut Client, half: &Half, decision: &str) -> Answer {
    client.call(37, &end_fields(half, decision, "false"), &[])
}

fn join(client: &mut Client) {
    let body = br#"{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"PG"}]}"#;
    let answer = client.call(34, &[], body);
    assert_eq!(answer.code, 0, "{}", answer.remark);
}

/// The next check that the broker sends: where the message is now, and its body.
fn await_check(client: &mut Client) -> (Half, String) {
    let check = client.receive().expect("a check");
    assert_eq!((check.code, check.is_request), (39, true));
    let Ok(Record::Message(message)) = StoredMessage::decode(&check.body) else {
        panic!("a message");
    };
    assert_eq!((message.topic, message.queue_id), ("T", 1));
    let half = Half {
        offset: check.fields["tranStateTableOffset"].to_owned(),
        at: check.fields["commitLogOffset"].to_owned(),
    };
    let body = String::from_utf8(message.body.to_vec()).expect("text");
    (half, body)
}

fn bodies(client: &mut Client, topic: &str, queue_id: u32) -> Vec<String> {
    let messages = client.read_queue(topic, queue_id);
    let text = |(_, body): (u64, Vec<u8>)| String::from_utf8(body).expect("text");
    messages.into_iter().map(text).collect()
}

#[test]
fn a_producer_commits_rolls_back_and_is_asked() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("store"), "ASYNC_FLUSH", "1000");
    let mut producer = Client::connect(server.port);
    join(&mut producer);
    let halves = ["commit", "roll back", "open"].map(|body| begin(&mut producer, body));
    let mut consumer = Client::connect(server.port);
    assert!(
        bodies(&mut consumer, "T", 1).is_empty(),
        "nothing is committed"
    );
    let held = consumer.start_pull("T", 1, 0, 15_000, "*");
    producer.send_one_way(37, &end_fields(&halves[0], COMMIT, "false"), &[]);
    let woken = consumer.receive().expect("woken by the commit");
    assert_eq!(
        (woken.opaque, woken.messages()[0].1.as_slice()),
        (held, &b"commit"[..])
    );
    assert_eq!(end(&mut producer, &halves[1], ROLLBACK).code, 0);
    let second = end(&mut producer, &halves[1], COMMIT);
    assert_eq!(second.code, 1);
    assert!(
        second.remark.contains("decided already"),
        "{}",
        second.remark
    );
    let (asked, body) = await_check(&mut producer);
    assert_eq!(body, "open");
    let fields = end_fields(&asked, COMMIT, "true");
    producer.send_one_way(37, &fields, &[]);
    let pulled = consumer.pull("T", 1, 1, 15_000, "*");
    assert_eq!(pulled.messages()[0].1, b"open");
    // A commit by an id that names no half message, one-way too: the connection goes on.
    let nowhere = Half {
        offset: "0".to_owned(),
        at: "17".to_owned(),
    };
    producer.send_one_way(37, &end_fields(&nowhere, COMMIT, "false"), &[]);
    assert_eq!(end(&mut producer, &nowhere, COMMIT).code, 1);
    assert_eq!(bodies(&mut consumer, "T", 1), ["commit", "open"]);
    server.stop();
}

#[test]
fn what_was_acknowledged_survives_kills() {
    for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().join("store");
        let server = start(&store, flush, "1000");
        let mut producer = Client::connect(server.port);
        let names: Vec<String> = (0..60).map(|n| format!("h{n}")).collect();
        let halves: Vec<Half> = names
            .iter()
            .map(|body| begin(&mut producer, body))
            .collect();
        for (half, decision) in halves
            .iter()
            .zip([COMMIT, ROLLBACK].into_iter().cycle())
            .take(40)
        {
            assert_eq!(end(&mut producer, half, decision).code, 0);
        }
        server.kill();
        let server = start(&store, flush, "1000");
        let mut producer = Client::connect(server.port);
        let committed: Vec<String> = names[..40].iter().step_by(2).cloned().collect();
        assert_eq!(bodies(&mut producer, "T", 1), committed, "{flush}");
        assert_eq!(
            end(&mut producer, &halves[1], COMMIT).code,
            1,
            "rolled back before"
        );
        join(&mut producer);
        // Killed again while checks are under way.
        await_check(&mut producer);
        server.kill();
        let server = start(&store, flush, "1000");
        let mut producer = Client::connect(server.port);
        join(&mut producer);
        let mut open: BTreeSet<String> = names[40..].iter().cloned().collect();
        while !open.is_empty() {
            let (half, body) = await_check(&mut producer);
            assert!(names[40..].contains(&body), "{body} was decided, {flush}");
            open.remove(&body);
            producer.send_one_way(37, &end_fields(&half, COMMIT, "true"), &[]);
        }
        let mut consumer = Client::connect(server.port);
        let all = await_count(&mut consumer, 40);
        assert_eq!(all[..20], committed);
        let mut rest = all[20..].to_vec();
        rest.sort();
        let mut expected = names[40..].to_vec();
        expected.sort();
        assert_eq!(rest, expected, "{flush}");
        server.stop();
        let server = start(&store, flush, "1000");
        let mut consumer = Client::connect(server.port);
        assert_eq!(bodies(&mut consumer, "T", 1).len(), 40, "{flush}");
        server.stop();
    }
}

#[test]
fn what_nobody_decides_is_given_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("store"), "ASYNC_FLUSH", "3");
    let mut producer = Client::connect(server.port);
    join(&mut producer);
    let half = begin(&mut producer, "x");
    let mut places = BTreeSet::new();
    for _ in 0..3 {
        let (asked, body) = await_check(&mut producer);
        assert_eq!(body, "x");
        places.insert(asked.offset);
    }
    assert_eq!(places.len(), 3, "stored again for each check: {places:?}");
    let mut consumer = Client::connect(server.port);
    let found = consumer.pull("TRANS_CHECK_MAX_TIME_TOPIC", 0, 0, 15_000, "*");
    assert_eq!(found.messages()[0].1, b"x");
    assert_eq!(end(&mut producer, &half, COMMIT).code, 1);
    assert!(bodies(&mut consumer, "T", 1).is_empty());
    server.stop();
}

/// Held pulls, until so many are there.
fn await_count(client: &mut Client, count: u64) -> Vec<String> {
    for _ in 0..count {
        let there = bodies(client, "T", 1);
        if there.len() as u64 >= count {
            return there;
        }
        client.pull("T", 1, there.len() as u64, 5000, "*");
    }
    panic!("fewer than {count} messages came");
}

fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_millis() as u64
}
