//! Goal: what is delayed comes, not early, though the process is killed while it waits. Method: a real process, killed
//! at once after the sends; another one after the first delivery.

mod support;

use ringmq::protocol::message::{Record, StoredMessage};
use std::collections::BTreeMap;
use support::{Client, Server, send_fields};

/// Pulls, held, until that many bodies were seen; store time of the first delivery of each.
fn await_bodies(client: &mut Client, count: usize) -> BTreeMap<String, u64> {
    let mut seen = BTreeMap::new();
    let mut offset = 0;
    for _ in 0..200 {
        if seen.len() >= count {
            return seen;
        }
        let answer = client.pull("T", 1, offset, 15_000, "*");
        if answer.code == 0 {
            let mut rest = &answer.body[..];
            while let Ok(Record::Message(message)) = StoredMessage::decode(rest) {
                let body = String::from_utf8(message.body.to_vec()).expect("text");
                seen.entry(body).or_insert(message.store_timestamp);
                rest = &rest[message.bytes.len()..];
            }
        }
        assert!([0, 19, 20].contains(&answer.code), "{}", answer.remark);
        offset = answer.number("nextBeginOffset") as u64;
    }
    panic!("{count} were sent, there are {seen:?}");
}

#[test]
fn delayed_messages_survive_a_kill() {
    for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().join("store");
        let flags = [
            ("shards", "1"),
            ("flushDiskType", flush),
            ("messageDelayLevel", "1s 2s"),
        ];
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        let mut due = BTreeMap::new();
        client.send_message("T", 1, "A", b"now");
        for (property, value, ms) in [
            ("DELAY", "1", 1000),
            ("DELAY", "2", 2000),
            ("TIMER_DELAY_MS", "1500", 1500),
            ("TIMER_DELAY_SEC", "3", 3000),
        ] {
            let properties = format!("{property}\u{1}{value}\u{2}");
            let body = format!("{property} {value}");
            let before_ms = wall_ms();
            let answer = client.call(310, &send_fields("T", "1", &properties), body.as_bytes());
            assert_eq!(answer.code, 0, "{}", answer.remark);
            due.insert(body, before_ms + ms);
        }
        server.kill();
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        let first = await_bodies(&mut client, 2);
        server.kill();
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        let all = await_bodies(&mut client, 5);
        for (body, stored_ms) in first.iter().chain(&all).filter(|(body, _)| *body != "now") {
            assert!(*stored_ms >= due[body], "{body} came early, {flush}");
        }
        server.stop();
        // A clean end says what was delivered: nothing comes again.
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        let before = client.read_queue("T", 1).len() as u64;
        assert_eq!(client.pull("T", 1, before, 1000, "*").code, 19, "{flush}");
        server.stop();
    }
}

fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_millis() as u64
}
