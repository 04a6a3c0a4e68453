//! Goal: what clients see of segments that retention deletes, across a clean end and a kill. Method: a store of small
//! segments, opened again with a limit that it exceeds.

mod support;

use std::time::{Duration, Instant};
use support::{Client, Server};

const SMALL: [(&str, &str); 3] = [
    ("shards", "1"),
    ("mappedFileSizeCommitLog", "131072"),
    ("mappedFileSizeConsumeQueue", "2000"),
];

fn offset(client: &mut Client, code: i32, topic: &str) -> i64 {
    let answer = client.call(code, &[("topic", topic), ("queueId", "0")], &[]);
    assert_eq!(answer.code, 0, "{}", answer.remark);
    answer.number("offset")
}

fn fill(client: &mut Client, topic: &str, count: usize) {
    let mut sent = 0;
    while sent < count {
        let answer = client.send_message(topic, 0, "A", &[b'x'; 1000]);
        match answer.code {
            0 => sent += 1,
            // The next segment is still being made.
            2 => {}
            other => panic!("{other} {}", answer.remark),
        }
    }
}

/// Waits until the queue begins further on, and stays there.
fn wait_deleted(client: &mut Client, segments: &std::path::Path) -> i64 {
    let started = Instant::now();
    // Two to keep, and the one that is prepared behind them.
    while std::fs::read_dir(segments).expect("a folder").count() > 3 {
        assert!(started.elapsed() < Duration::from_secs(20), "not deleted");
        offset(client, 31, "T");
    }
    offset(client, 31, "T")
}

#[test]
fn clients_of_deleted_messages_are_sent_on_to_those_that_are_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let server = Server::start(&store, &SMALL);
    let mut client = Client::connect(server.port);
    fill(&mut client, "Old", 50);
    fill(&mut client, "T", 900);
    let commit = [
        ("consumerGroup", "TOOLS_CONSUMER"),
        ("topic", "T"),
        ("queueId", "0"),
        ("commitOffset", "3"),
    ];
    assert_eq!(client.call(15, &commit, &[]).code, 0);
    server.stop();

    let limits = [
        ("maxCommitLogBytes", "262144"),
        ("deleteCommitLogFilesInterval", "0"),
    ];
    let flags = [&SMALL[..], &limits].concat();
    let server = Server::start(&store, &flags);
    let mut client = Client::connect(server.port);
    let min = wait_deleted(&mut client, &store.join("commitlog"));
    assert!(min > 600, "{min}");
    let check = |client: &mut Client| {
        assert_eq!(offset(client, 31, "T"), min);
        assert_eq!(offset(client, 30, "T"), 900);
        assert_eq!(
            (offset(client, 31, "Old"), offset(client, 30, "Old")),
            (50, 50)
        );
        // Where the group is, and far in front of what is there: on to the first message.
        for at in [0, 3, min as u64 - 1] {
            let answer = client.pull("T", 0, at, 0, "*");
            assert_eq!((answer.code, answer.number("nextBeginOffset")), (21, min));
            assert_eq!(answer.number("minOffset"), min);
            assert_eq!(answer.number("maxOffset"), 900);
        }
        let left = client.read_queue("T", 0);
        let offsets: Vec<i64> = left.iter().map(|(at, _)| *at as i64).collect();
        assert_eq!(offsets, (min..900).collect::<Vec<i64>>());
        let answer = client.call(202, &[("topic", "T")], &[]);
        let stats = String::from_utf8(answer.body.to_vec()).expect("text");
        assert!(stats.contains(&format!("\"minOffset\":{min}")), "{stats}");
        let answer = client.call(
            208,
            &[("consumerGroup", "TOOLS_CONSUMER"), ("topic", "T")],
            &[],
        );
        let progress = String::from_utf8(answer.body.to_vec()).expect("text");
        assert!(progress.contains("\"consumerOffset\":3"), "{progress}");
        assert!(progress.contains("\"brokerOffset\":900"), "{progress}");
        let earliest = client.call(32, &[("topic", "T"), ("queueId", "0")], &[]);
        assert!(earliest.number("timestamp") > 1_700_000_000_000);
    };
    check(&mut client);
    server.kill();
    let server = Server::start(&store, &flags);
    check(&mut Client::connect(server.port));
    server.stop();
    let server = Server::start(&store, &flags);
    let mut client = Client::connect(server.port);
    check(&mut client);
    let answer = client.send_message("Old", 0, "A", b"new");
    assert_eq!((answer.code, answer.number("queueOffset")), (0, 50));
    server.stop();
}
