//! Goal: stores that Apache RocketMQ 4.9.8 wrote open with one shard: every queue has the offsets that Apache printed
//! before, and every message reads back.

mod support;

use std::path::{Path, PathBuf};
use support::{Client, Server};

fn unpack(name: &str, target: &Path) -> PathBuf {
    let archive = format!(
        "{}/tests/golden/apache-stores/{name}.tar.xz",
        env!("CARGO_MANIFEST_DIR")
    );
    let file = std::fs::File::open(archive).expect("the archive");
    tar::Archive::new(xz2::read::XzDecoder::new(file))
        .unpack(target)
        .expect("unpacks");
    let mut entries = std::fs::read_dir(target).expect("a folder");
    entries
        .next()
        .expect("one folder")
        .expect("readable")
        .path()
}

/// Topic, queue id, min, max of each line that `topicStatus` printed.
fn expected(name: &str) -> Vec<(String, u32, u64, u64)> {
    let path = format!(
        "{}/tests/golden/apache-stores/{name}.expected.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).expect("the expectation");
    let mut topic = String::new();
    let mut rows = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["##", "topicStatus", name] => topic = (*name).to_owned(),
            ["broker-a", queue, min, max, ..] => {
                let number = |text: &str| text.parse::<u64>().expect("a number");
                rows.push((
                    topic.clone(),
                    number(queue) as u32,
                    number(min),
                    number(max),
                ));
            }
            _ => {}
        }
    }
    assert!(rows.len() >= 12, "{} rows in the expectation", rows.len());
    rows
}

fn check(name: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = unpack(name, directory.path());
    let flags = [
        ("shards", "1"),
        ("brokerName", "broker-a"),
        ("mappedFileSizeCommitLog", "262144"),
        ("mappedFileSizeConsumeQueue", "2000"),
        ("tailCacheBytes", "65536"),
    ];
    for round in 0..2 {
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        for (topic, queue, min, max) in expected(name) {
            let queue_text = queue.to_string();
            let fields = [("topic", topic.as_str()), ("queueId", &queue_text)];
            let found = (
                client.call(31, &fields, &[]).number("offset"),
                client.call(30, &fields, &[]).number("offset"),
            );
            assert_eq!(
                found,
                (min as i64, max as i64),
                "{name} {topic} {queue}, round {round}"
            );
            let offsets: Vec<u64> = client
                .read_queue(&topic, queue)
                .into_iter()
                .map(|(offset, _)| offset)
                .collect();
            assert_eq!(
                offsets,
                (min..max).collect::<Vec<_>>(),
                "{name} {topic} {queue}, round {round}"
            );
        }
        let query = [
            ("consumerGroup", "CG_go29918"),
            ("topic", "T_go29918"),
            ("queueId", "0"),
        ];
        assert_eq!(
            client.call(14, &query, &[]).number("offset"),
            4,
            "committed offsets are kept"
        );
        server.stop();
    }
}

#[test]
fn a_store_that_apache_closed_opens() {
    check("apache-4.9.8-store-clean");
}

#[test]
fn a_store_that_apache_left_when_killed_opens() {
    check("apache-4.9.8-store-crashed");
}
