//! Goal: what was acknowledged is there once, in order, unchanged, after clean ends and after `kill -9` at random
//! moments under load. Method: one ageing store per setting, small segments so that rolling happens, clients that
//! remember what they were told.

mod support;

use ringmq::testing::ledger::{Crash, Durability, Finding};
use std::path::Path;
use std::sync::atomic::Ordering;
use support::workload::{self, Random, Run, shard_folder};
use support::{Client, Server};

const FLAGS: [(&str, &str); 2] = [
    ("mappedFileSizeCommitLog", "131072"),
    ("mappedFileSizeConsumeQueue", "2000"),
];

#[test]
fn a_clean_end_keeps_everything() {
    for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().join("store");
        let flags = [&FLAGS[..], &[("shards", "1"), ("flushDiskType", flush)]].concat();
        let mut expected = Vec::new();
        for round in 0..3_u64 {
            let server = Server::start(&store, &flags);
            let mut client = Client::connect(server.port);
            assert_eq!(expected.is_empty(), round == 0);
            if round > 0 {
                assert_eq!(
                    client.read_queue("T", 1),
                    expected,
                    "round {round}, {flush}"
                );
            }
            for _ in 0..(if flush == "SYNC_FLUSH" { 60 } else { 400 }) {
                let body = format!(
                    "{round} {} {}",
                    expected.len(),
                    "x".repeat(expected.len() % 900)
                );
                let answer = client.send_message("T", 1, "A", body.as_bytes());
                if answer.code == 2 {
                    // The next segment is still being made.
                    continue;
                }
                assert_eq!(
                    (answer.code, answer.number("queueOffset")),
                    (0, expected.len() as i64),
                    "{}",
                    answer.remark
                );
                expected.push((expected.len() as u64, body.into_bytes()));
            }
            let commit = [
                ("consumerGroup", "TOOLS_CONSUMER"),
                ("topic", "T"),
                ("queueId", "1"),
                ("commitOffset", "7"),
            ];
            assert_eq!(client.call(15, &commit, &[]).code, 0);
            server.stop();
        }
        let server = Server::start(&store, &flags);
        let mut client = Client::connect(server.port);
        let query = [
            ("consumerGroup", "TOOLS_CONSUMER"),
            ("topic", "T"),
            ("queueId", "1"),
        ];
        assert_eq!(client.call(14, &query, &[]).number("offset"), 7);
        assert_eq!(client.read_queue("T", 1), expected);
        server.stop();
    }
}

fn kill_rounds(shards: u16, flush: &str, seed: u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let count = shards.to_string();
    let own = [
        ("shards", &*count),
        ("flushDiskType", flush),
        ("flushConsumerOffsetInterval", "100"),
    ];
    let flags = [&FLAGS[..], &own].concat();
    let run = Run::new(Durability::Flushed);
    workload::kill_rounds(&run, &store, shards, &flags, rounds(), seed, |_| {});
    assert!(
        run.certain() as u64 > 10 * rounds(),
        "the test sent too little"
    );
    assert!(run.committed() > 0, "nothing was committed");
}

/// Rounds for each setting; the long form is asked for by the environment.
fn rounds() -> u64 {
    let asked = std::env::var("RINGMQ_KILL_ROUNDS").ok();
    asked.and_then(|rounds| rounds.parse().ok()).unwrap_or(5)
}

#[test]
fn kill_nine_loses_nothing_with_one_shard() {
    kill_rounds(1, "ASYNC_FLUSH", 0x5eed);
    kill_rounds(1, "SYNC_FLUSH", 0x5eed);
}

#[test]
fn kill_nine_loses_nothing_with_two_shards() {
    kill_rounds(2, "ASYNC_FLUSH", 0x2bad);
    kill_rounds(2, "SYNC_FLUSH", 0x2bad);
}

/// The control of the two above: a log from whose end something is gone has to be told.
#[test]
fn what_a_crash_takes_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let flags = [
        &FLAGS[..],
        &[("shards", "1"), ("flushDiskType", "ASYNC_FLUSH")],
    ]
    .concat();
    let run = Run::new(Durability::Flushed);
    let server = Server::start(&store, &flags);
    let port = server.port;
    let is_enough = |count| count >= 50 && run.delivered.load(Ordering::SeqCst) > 50;
    let mut random = Random(1);
    run.load(port, &store, 1, &mut random, is_enough, move || {
        server.kill();
    });
    zero_the_end(&shard_folder(&store, 0, 1).join("commitlog"));
    let server = Server::start(&store, &flags);
    run.read_back(server.port, 1, Crash::Process);
    let findings = run.findings();
    let is_loss =
        |finding: &Finding| matches!(finding, Finding::LostWrite(..) | Finding::TakenBack(..));
    assert!(findings.iter().any(is_loss), "{findings:?}");
    server.stop();
}

/// Zeroes the last 16 KiB of what is not zero in the newest segment.
fn zero_the_end(log: &Path) {
    let mut segments: Vec<_> = std::fs::read_dir(log)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    segments.sort();
    for segment in segments.iter().rev() {
        let mut bytes = std::fs::read(segment).expect("a segment");
        if let Some(end) = bytes.iter().rposition(|byte| *byte != 0) {
            bytes[end.saturating_sub(16 * 1024)..].fill(0);
            std::fs::write(segment, bytes).expect("written");
            return;
        }
    }
    panic!("the log is empty");
}
