//! A fixed workload for counting instructions: pulls are parked, sends wake them, on one thread, without the kernel.
//!
//! `perf/instructions.sh` runs it under callgrind, which counts inside of `Desk::handle`, `Desk::write` and
//! `Desk::answer` from the last message of the warm-up on. A run of `instructions WORKLOAD 0` has the warm-up only; the
//! difference of the two runs is that of the messages asked for.
//!
//! `cargo bench --bench instructions -- json 2000`

#[path = "support/mod.rs"]
mod support;

use ringmq::protocol::command::Encoding;
use support::{Desk, PROPERTIES, SQL, pull_frame, send_frame};

/// So many make every table and buffer as large as it gets.
const WARM_UP: u64 = 500;

/// Name, encoding of the headers, filter of the pull, messages for each pull.
const WORKLOADS: [(&str, Encoding, &str, u64); 5] = [
    ("json", Encoding::Json, "*", 1),
    ("binary", Encoding::Binary, "*", 1),
    ("tags", Encoding::Json, "TagB || TagA", 1),
    ("sql", Encoding::Json, SQL, 1),
    ("batch", Encoding::Json, "*", 32),
];

fn run(encoding: Encoding, expression: &str, sends_each: u64, messages: u64) {
    let mut desk = Desk::new();
    let send = send_frame(encoding, 0, PROPERTIES);
    desk.handle(&send);
    desk.turn();
    let (first, last) = (desk.end("T", 0), 1 + WARM_UP + messages);
    let mut offset = first;
    while offset < last {
        let pull = pull_frame(encoding, 0, offset, expression, 15_000);
        assert_eq!(desk.handle(&pull), 0, "it is held");
        for _ in 0..sends_each {
            assert!(desk.handle(&send) > 0, "it is acknowledged");
        }
        assert_eq!(desk.turn(), 1, "the hold was woken");
        offset += sends_each;
    }
    assert_eq!(desk.end("T", 0), offset, "all came");
    println!("messages {}", offset - first);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // As run by `cargo test`: all of them, briefly.
    if arguments.is_empty() {
        for (_, encoding, expression, sends_each) in WORKLOADS {
            run(encoding, expression, sends_each, 0);
        }
        return;
    }
    let plain: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let name = plain.first().copied().unwrap_or("json");
    let messages = plain.get(1).map_or(Ok(2000), |count| count.parse());
    let workload = WORKLOADS.iter().find(|workload| workload.0 == name);
    let (Some((_, encoding, expression, sends_each)), Ok(messages)) = (workload, messages) else {
        let names = WORKLOADS.map(|workload| workload.0).join(", ");
        eprintln!("usage: instructions WORKLOAD MESSAGES; workloads: {names}");
        std::process::exit(2);
    };
    run(*encoding, expression, *sends_each, messages);
}
