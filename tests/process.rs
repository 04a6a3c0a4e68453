//! The process as a user meets it: help, configuration, what ends a start and with which words, signals.

mod support;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use support::{Client, Server, free_ports};

fn ringmq() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ringmq"))
}

/// A start that is expected to fail; the flags win over one shard and ports that are free.
fn start(store: &Path, flags: &[(&str, &str)]) -> Output {
    let (name_server, port) = free_ports();
    let mut all: BTreeMap<&str, String> = BTreeMap::from([
        ("storePathRootDir", store.display().to_string()),
        ("namesrvListenPort", name_server.to_string()),
        ("listenPort", port.to_string()),
        ("shards", "1".to_owned()),
    ]);
    all.extend(
        flags
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned())),
    );
    let flags = all.iter().map(|(name, value)| format!("--{name}={value}"));
    ringmq().args(flags).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The last line of what a failed start says, which has to be one for the user; the exit code is 1.
fn refusal(output: &Output) -> String {
    let text = errors(output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().last().unwrap_or_default().to_owned();
    assert!(line.starts_with("ringmq: "), "{text}");
    assert_eq!(
        text.matches("ringmq: ").count(),
        1,
        "one line, not more: {text}"
    );
    line
}

#[test]
fn help_names_the_keys_and_shows_how() {
    let output = ringmq().arg("--help").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for key in [
        "--shards",
        "--listenPort",
        "--namesrvAddr",
        "--flushDiskType",
        "--brokerIP1",
        "--bindAddress",
    ] {
        assert!(text.contains(key), "{key} in\n{text}");
    }
    assert!(text.contains("Examples:"), "{text}");
}

#[test]
fn taken_ports_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let broker = refusal(&start(directory.path(), &[("listenPort", &port)]));
    assert!(
        broker.contains(&format!("127.0.0.1:{port}")) && broker.contains("listenPort"),
        "{broker}"
    );
    let name_server = refusal(&start(directory.path(), &[("namesrvListenPort", &port)]));
    assert!(
        name_server.contains(&port) && name_server.contains("namesrvListenPort"),
        "{name_server}"
    );
}

/// One shard that can't serve keeps the others from nothing: their stores are closed as after any other end.
#[test]
fn shards_close_their_stores_when_another_cannot_start() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("store");
    std::fs::create_dir_all(root.join("shard-0")).unwrap();
    // In the place of the second shard's folder.
    std::fs::write(root.join("shard-1"), "a file").unwrap();
    let line = refusal(&start(&root, &[("shards", "2")]));
    assert!(line.contains("shard-1"), "{line}");
    assert!(
        !root.join("shard-0/abort").exists(),
        "shard 0 was not closed"
    );
}

#[test]
fn a_store_that_cannot_be_had_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let no_folder = refusal(&start(&file, &[]));
    assert!(no_folder.contains(file.to_str().unwrap()), "{no_folder}");
    let unwritable = refusal(&start(Path::new("/proc/ringmq-store"), &[]));
    assert!(unwritable.contains("/proc/ringmq-store"), "{unwritable}");

    let store = directory.path().join("store");
    let server = Server::start(&store, &[("shards", "1")]);
    let locked = refusal(&start(&store, &[]));
    assert!(
        locked.contains(store.to_str().unwrap()) && locked.contains("locked"),
        "{locked}"
    );
    server.stop();
}

#[test]
fn a_bad_value_is_refused_with_its_place_and_what_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("broker.conf");
    std::fs::write(&file, "# comment\nlistenPort = 70000\n").unwrap();
    let output = ringmq().arg("-c").arg(&file).output().unwrap();
    let line = refusal(&output);
    for part in ["broker.conf line 2", "listenPort", "70000", "65534"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let flag = ringmq().arg("--shards=x").output().unwrap();
    assert_eq!(flag.status.code(), Some(2));
    assert!(errors(&flag).contains("0 to 256"), "{}", errors(&flag));
}

#[test]
fn a_stock_configuration_starts_and_says_what_it_did_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("broker.conf");
    let text = "brokerName = stock\nsendMessageThreadPoolNums = 16\nflushDiskTyp = SYNC_FLUSH\n";
    std::fs::write(&file, text).unwrap();
    let print = ringmq().arg("-p").arg("-c").arg(&file).output().unwrap();
    assert!(print.status.success(), "{}", errors(&print));
    assert!(String::from_utf8(print.stdout).unwrap().contains("stock"));
    let store = directory.path().join("store");
    let server = Server::start_with(&store, &["-c", file.to_str().unwrap()], &[("shards", "1")]);
    let log = server.log.clone();
    server.stop();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("sendMessageThreadPoolNums"), "{log}");
    assert!(
        log.contains("\"flushDiskTyp\" is ignored; is it flushDiskType?"),
        "{log}"
    );
    for told in [
        "version",
        "shards=1",
        "127.0.0.1",
        "write_mode=\"",
        "core=",
        "name server serves",
        "bindAddress",
    ] {
        assert!(log.contains(told), "{told} in {log}");
    }
}

/// `prlimit` of util-linux sets the limit before the program runs.
#[test]
fn a_low_limit_of_open_files_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (name_server, port) = free_ports();
    let output = Command::new("prlimit")
        .arg("--nofile=30:30")
        .arg(env!("CARGO_BIN_EXE_ringmq"))
        .arg(format!("--storePathRootDir={}", directory.path().display()))
        .args([
            format!("--namesrvListenPort={name_server}"),
            format!("--listenPort={port}"),
            "--shards=2".to_owned(),
        ])
        .output()
        .expect("prlimit, of util-linux");
    let line = refusal(&output);
    assert!(line.contains("30") && line.contains("ulimit -n"), "{line}");
}

#[test]
fn both_signals_answer_what_is_held_and_end_with_0() {
    for signal in ["TERM", "INT"] {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        let server = Server::start(&store, &[("shards", "1")]);
        let mut client = Client::connect(server.port);
        assert_eq!(client.send_message("T", 0, "A", b"kept").code, 0);
        let opaque = client.start_pull("T", 0, 1, 15_000, "*");
        // The pull is parked when the request behind it is answered.
        client.send_message("U", 0, "A", b"fence");
        server.stop_by(signal);
        let answer = client.receive().expect("the held pull is answered");
        assert_eq!(answer.opaque, opaque);
        assert!(!store.join("abort").exists(), "the store was not closed");
        let server = Server::start(&store, &[("shards", "1")]);
        let mut client = Client::connect(server.port);
        assert_eq!(client.read_queue("T", 0), [(0, b"kept".to_vec())]);
        server.stop();
    }
}
