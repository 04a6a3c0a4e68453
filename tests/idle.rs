//! What waiting costs: nothing between deadlines, and deadlines are kept.

mod support;

use ringmq::protocol::bodies::{KvTableBuf, decode};
use std::time::{Duration, Instant};
use support::{Client, Server};

const HOLDS: usize = 10_000;
const CONNECTIONS: usize = 10;

fn figure(client: &mut Client, name: &str) -> u64 {
    let answer = client.call(28, &[], &[]);
    let table: KvTableBuf = decode(&answer.body).expect("a table");
    table.table[name].parse().expect(name)
}

/// Times that the threads of that name gave up their processor.
fn switches(pid: u32, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("Linux");
    let mut sum = 0;
    for task in tasks {
        let path = task.expect("a task").path();
        let read = |file: &str| std::fs::read_to_string(path.join(file)).expect("a thread");
        if read("comm").trim().starts_with(name) {
            let status = read("status");
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = line.and_then(|count| count.trim().parse::<u64>().ok());
            sum += count.expect("a count");
        }
    }
    sum
}

fn with_server(test: impl FnOnce(&Server)) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let server = Server::start(&store, &[("shards", "1")]);
    test(&server);
    server.stop();
}

/// Between two short holds the shard has nothing to do: it turns for them, for the questions about it, and not once
/// for the 10 000 that are held longer.
#[test]
fn held_pulls_cost_no_turns_until_their_deadline() {
    with_server(|server| {
        let mut other = Client::connect(server.port);
        assert_eq!(other.send_message("T", 0, "A", b"first").code, 0);
        let mut holding: Vec<Client> = (0..CONNECTIONS)
            .map(|_| Client::connect(server.port))
            .collect();
        for index in 0..HOLDS {
            holding[index % CONNECTIONS].start_pull("T", 0, 1, 29_000, "*");
        }
        let started = Instant::now();
        while figure(&mut other, "holds") < HOLDS as u64 {
            assert!(started.elapsed() < Duration::from_secs(20), "not parked");
        }
        // What the message and the start left to do (flush, files) is done before it.
        assert_eq!(other.pull("T", 0, 1, 1500, "*").code, 19);
        let (turns, slept) = (
            figure(&mut other, "turns"),
            switches(server.pid(), "ringmq-shard"),
        );
        assert_eq!(other.pull("T", 0, 1, 2500, "*").code, 19);
        let turns = figure(&mut other, "turns") - turns;
        let slept = switches(server.pid(), "ringmq-shard") - slept;
        // A few for each of two requests and one deadline.
        assert!(turns <= 12, "{turns} turns in 2.5 s");
        assert!(slept <= 12, "{slept} context switches in 2.5 s");
        assert_eq!(figure(&mut other, "holds"), HOLDS as u64);
        println!("{turns} turns, {slept} context switches in 2.5 s with {HOLDS} holds");
    });
}

/// In the order of their deadlines, none early. How late is printed, since it depends on the machine.
#[test]
fn holds_end_at_their_deadlines_in_order() {
    const COUNT: u64 = 1000;
    with_server(|server| {
        let mut client = Client::connect(server.port);
        assert_eq!(client.send_message("T", 0, "A", b"first").code, 0);
        // All of 500 to 1499, mixed.
        let holds: Vec<u64> = (0..COUNT).map(|index| 500 + index * 7 % COUNT).collect();
        let asked: Vec<(i32, Instant)> = holds
            .iter()
            .map(|hold_ms| {
                let before = Instant::now();
                let opaque = client.start_pull("T", 0, 1, *hold_ms as u32, "*");
                (opaque, before + Duration::from_millis(*hold_ms))
            })
            .collect();
        let first = asked[0].0;
        let (mut late, mut place) = (Vec::new(), vec![None; COUNT as usize]);
        for nth in 0..COUNT {
            let answer = client.receive().expect("an answer");
            let now = Instant::now();
            assert_eq!(answer.code, 19);
            let index = (answer.opaque - first) as usize;
            let (opaque, deadline) = asked[index];
            assert_eq!(opaque, answer.opaque);
            assert!(now >= deadline, "{:?} early", deadline - now);
            assert_eq!(place[index].replace(nth), None, "one answer for each");
            late.push(now - deadline);
        }
        // Asked for earlier and held for less: answered earlier, whenever the broker came to read them.
        for (index, hold_ms) in holds.iter().enumerate() {
            for after in index + 1..holds.len() {
                assert!(
                    *hold_ms >= holds[after] || place[index] < place[after],
                    "pull {after} of {} ms before pull {index} of {hold_ms} ms",
                    holds[after]
                );
            }
        }
        late.sort();
        let [half, most, worst] = [500, 990, 999].map(|index| late[index]);
        println!("late: median {half:?}, 99 % {most:?}, all {worst:?}");
    });
}
