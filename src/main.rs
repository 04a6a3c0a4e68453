//! Arguments → configuration → shards → wait → exit code.

use clap::{Arg, ArgMatches, Command, value_parser};
use ringmq::config::{Config, KEYS, Kind};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const AFTER_HELP: &str = "Examples:
  ringmq                                 name server on 9876, a shard per core from 10911 on, store in ./ringmq-data
  ringmq --shards 1 --listenPort 20911   one shard, like a stock broker
  ringmq -c broker.conf                  RocketMQ's broker.conf; flags win over it
  ringmq -n 10.0.0.5:9876                register there; the embedded name server stays off

Connections are accepted from this machine only, unless --bindAddress says otherwise.";

fn arguments() -> Command {
    let mut command = Command::new("ringmq")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A message broker that speaks the Apache RocketMQ protocol: one io_uring shard per core.")
        .after_help(AFTER_HELP)
        .arg(Arg::new("config").short('c').value_name("FILE").value_parser(value_parser!(PathBuf)).help("configuration file (Java properties)"))
        .arg(Arg::new("namesrv").short('n').value_name("ADDRESSES").help("the same as --namesrvAddr"));
    for key in KEYS {
        let allowed = match key.kind {
            Kind::Bool => "true|false".to_owned(),
            Kind::Integer { min, max } => format!("{min}..{max}"),
            Kind::OneOf(names) => names.join("|"),
            Kind::Text => "TEXT".to_owned(),
        };
        let default = if key.default.is_empty() {
            String::new()
        } else {
            format!(" [default: {}]", key.default)
        };
        let argument = Arg::new(key.name)
            .long(key.name)
            .value_name(allowed)
            .help(format!("{}{default}", key.help));
        command = command.arg(argument);
    }
    command
}

fn flags(matches: &ArgMatches) -> Vec<(String, String)> {
    let given = |id: &str| matches.get_one::<String>(id).cloned();
    let mut flags: Vec<(String, String)> = KEYS
        .iter()
        .filter_map(|k| given(k.name).map(|value| (k.name.to_owned(), value)))
        .collect();
    flags.extend(given("namesrv").map(|value| ("namesrvAddr".to_owned(), value)));
    flags
}

fn main() -> ExitCode {
    let matches = arguments().get_matches();
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("RINGMQ_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let result = Config::load(file, &flags(&matches))
        .map_err(|e| e.to_string())
        .and_then(|config| ringmq::shard::launch::run(&config));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("ringmq: {reason}");
            ExitCode::FAILURE
        }
    }
}
