//! What `ringmq bench` can be asked for.

use super::payload::HEAD_BYTES;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  ringmq bench floor --cpu 1 --peer-cpu 0
                          what no broker on this machine can be faster than
  ringmq bench latency --rate 1000 --pid $(pidof ringmq)
                          1 000 messages a second, and what they cost the broker
  ringmq bench latency --closed --cpu 1 --json closed.json --hgrm closed.hgrm
                          one message after the other; files for other programs
  ringmq bench latency --namesrv 10.0.0.5:9876 --producers 4 --groups 3 --queues 8 --header rocketmq
                          at the first broker that this name server knows
  ringmq bench throughput --connections 64 --in-flight 1 --pid $(pidof ringmq)
                          many clients that wait for each answer
  ringmq bench throughput --in-flight 256 --consumers late
                          one that does not; a consumer that finds it all stored
  ringmq bench holds --pulls 10000 --connections 100 --pid $(pidof ringmq)
                          what 10 000 waiting consumers cost while nothing comes
  ringmq bench race --rounds 1000000
                          looks for messages that a parked pull has missed

Every message is checked: offsets without a gap, the bytes that were sent, once, as many as were acknowledged.
Exit code 1: something was wrong, or the broker could not be measured. Ctrl-C prints what was measured so far.";

/// A number of seconds that may have a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    let length = Duration::try_from_secs_f64(number).map_err(|error| error.to_string())?;
    if length > Duration::from_secs(24 * 3600) {
        return Err("at most a day".to_owned());
    }
    Ok(length)
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// Options of every subcommand.
fn common(command: Command) -> Command {
    let bytes = value_parser!(u32).range(HEAD_BYTES as i64..=4 << 20);
    command
        .arg(
            option("body", "BYTES", "size of a message's body")
                .value_parser(bytes)
                .default_value("1024"),
        )
        .arg(
            option("cpu", "N", "bind the load to this processor")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            option("json", "FILE", "write the results there as JSON")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            option(
                "hgrm",
                "FILE",
                "write the histograms there as an HdrHistogram log",
            )
            .value_parser(value_parser!(PathBuf)),
        )
}

/// Options of those that need a broker.
fn against_broker(command: Command) -> Command {
    common(command)
        .arg(
            option("broker", "HOST:PORT", "address of the broker").default_value("127.0.0.1:10911"),
        )
        .arg(option(
            "namesrv",
            "HOST:PORT",
            "ask this name server for a broker, instead of --broker",
        ))
        .arg(
            option("header", "ENCODING", "encoding of the headers")
                .value_parser(["json", "rocketmq"])
                .default_value("json"),
        )
}

fn duration() -> Arg {
    option("duration", "SECONDS", "how long to measure")
        .value_parser(seconds)
        .default_value("10")
}

/// Options of those that put load on it for a while.
fn loading(command: Command) -> Command {
    against_broker(command)
        .arg(duration())
        .arg(
            option(
                "queues",
                "N",
                "queues of the topic, which is made for the run and deleted",
            )
            .value_parser(value_parser!(u32).range(1..=1024))
            .default_value("1"),
        )
        .arg(pid())
}

fn latency() -> Command {
    loading(Command::new("latency"))
        .about("Send to acknowledgement, and send to delivery through a held pull")
        .arg(
            option(
                "rate",
                "PER_SECOND",
                "messages a second of all producers; times count from when each was due",
            )
            .value_parser(value_parser!(u32).range(1..=10_000_000))
            .default_value("1000"),
        )
        .arg(
            Arg::new("closed")
                .long("closed")
                .action(ArgAction::SetTrue)
                .conflicts_with("rate")
                .help(
                    "send the next one when the last was acknowledged and delivered to every group",
                ),
        )
        .arg(warm_up())
        .arg(
            option("producers", "N", "connections that send")
                .value_parser(value_parser!(u32).range(1..=10_000))
                .default_value("1"),
        )
        .arg(groups())
}

fn throughput() -> Command {
    loading(Command::new("throughput"))
        .about("How many messages a second, with requests in flight on several connections")
        .arg(
            option("connections", "N", "connections that send")
                .value_parser(value_parser!(u32).range(1..=10_000))
                .default_value("1"),
        )
        .arg(
            option(
                "in-flight",
                "N",
                "requests of a connection without an answer; one-way: written at once",
            )
            .value_parser(value_parser!(u32).range(1..=65_536))
            .default_value("64"),
        )
        .arg(
            Arg::new("one-way")
                .long("one-way")
                .action(ArgAction::SetTrue)
                .help("ask for no answers"),
        )
        .arg(
            option("batch", "N", "messages in a request")
                .value_parser(value_parser!(u32).range(1..=100_000))
                .conflicts_with("one-way"),
        )
        .arg(
            option(
                "consumers",
                "WHEN",
                "keep-up: from the start; late: when all is stored",
            )
            .value_parser(["keep-up", "late", "none"])
            .default_value("keep-up"),
        )
        .arg(groups())
        .arg(warm_up())
}

fn pid() -> Arg {
    option(
        "pid",
        "PID",
        "process of the broker on this machine, to read its cost from /proc",
    )
    .value_parser(value_parser!(u32))
}

fn holds() -> Command {
    against_broker(Command::new("holds"))
        .about("Pulls that wait: what they cost while nothing comes, and how soon one, and then all, are answered")
        .arg(
            option("pulls", "N", "pulls that wait")
                .value_parser(value_parser!(u32).range(1..=200_000))
                .default_value("1000"),
        )
        .arg(
            option("connections", "N", "over which they are spread")
                .value_parser(value_parser!(u32).range(1..=10_000))
                .default_value("10"),
        )
        .arg(
            option("rounds", "N", "messages for one that waits beside them")
                .value_parser(value_parser!(u64).range(1..=1_000_000))
                .default_value("100"),
        )
        .arg(duration())
        .arg(warm_up())
        .arg(pid())
}

fn race() -> Command {
    against_broker(Command::new("race"))
        .about("A pull and its message at nearly the same moment: how many deliveries come late")
        .arg(
            option("rounds", "N", "a pull and a send in each")
                .value_parser(value_parser!(u64).range(1..=1_000_000_000))
                .default_value("100000"),
        )
        .arg(
            option(
                "skew",
                "MICROSECONDS",
                "one up to so much before the other, either way",
            )
            .value_parser(value_parser!(u32).range(0..=1_000_000))
            .default_value("200"),
        )
}

fn groups() -> Arg {
    option(
        "groups",
        "N",
        "consumer groups, each with a held pull for every queue",
    )
    .value_parser(value_parser!(u32).range(1..=1000))
    .default_value("1")
}

fn warm_up() -> Arg {
    option(
        "warm-up",
        "SECONDS",
        "before the measurement, not counted in it",
    )
    .value_parser(seconds)
    .default_value("1")
}

fn floor() -> Command {
    common(Command::new("floor"))
        .about("Bare TCP relay, ping-pong, write and fdatasync on this machine")
        .arg(duration())
        .arg(
            option("peer-cpu", "N", "bind the relay to this processor")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            option(
                "dir",
                "FOLDER",
                "where to write; it should be on the disk of the store",
            )
            .value_parser(value_parser!(PathBuf))
            .default_value("."),
        )
}

/// The subcommand with its own.
pub fn command() -> Command {
    Command::new("bench")
        .about("Puts load on a broker, any that speaks the protocol, and measures it")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([latency(), throughput(), holds(), race(), floor()])
}

/// A value that has a default.
pub fn value<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> T {
    let found = matches.get_one::<T>(name);
    found.cloned().expect("an option with a default")
}
