//! Arguments → configuration → shards → wait → exit code.
//!
//! Exit codes: 0 after a clean end, 1 with one line that says why, 2 for bad usage.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ringmq::bench;
use ringmq::cli::holds;
use ringmq::config::{Config, describe, keys};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: u8 = 2;

const ABOUT: &str =
    "A message broker that speaks the Apache RocketMQ protocol: one io_uring shard per processor.

Without arguments: name server on port 9876, brokers from port 10911 on, store in ./ringmq-data.
Connections are accepted from this machine only, unless bindAddress says otherwise.";

const EXAMPLES: &str = "Examples:
  ringmq --shards 1 --listenPort 20911      one shard, like a stock broker
  ringmq -c broker.conf                     RocketMQ's broker.conf; flags win over it
  ringmq -n '10.0.0.5:9876;10.0.0.6:9876'   register there; no name server in this process
  ringmq --bindAddress 0.0.0.0 --brokerIP1 mq1.example.org
                                            open to the network, under this name
  ringmq -c broker.conf -p                  print what it amounts to, and end

Every key is a line of the file as well: key = value, comments on lines of their own.
Keys of Apache RocketMQ that mean nothing here are accepted there and named at the start.
RINGMQ_LOG=debug logs more.";

fn arguments() -> Command {
    let command = Command::new("ringmq")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(EXAMPLES)
        .subcommands(holds::commands())
        .subcommand(bench::command())
        .arg(
            Arg::new("config")
                .short('c')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("configuration file in the format of Java properties"),
        )
        .arg(
            Arg::new("print")
                .short('p')
                .action(ArgAction::SetTrue)
                .help("print the configuration and end"),
        );
    keys::all().fold(command, |command, key| {
        let argument = Arg::new(key.name)
            .long(key.name)
            .value_name(key.kind.allowed())
            .allow_hyphen_values(true)
            .help_heading(key.area)
            .help(describe(&key));
        command.arg(match key.name {
            "namesrvAddr" => argument.short('n'),
            _ => argument,
        })
    })
}

fn flags(matches: &ArgMatches) -> Vec<(String, String)> {
    keys::all()
        .filter_map(|key| {
            let value = matches.get_one::<String>(key.name)?;
            Some((key.name.to_owned(), value.clone()))
        })
        .collect()
}

/// One line for each event, on standard error.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("RINGMQ_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| "info".into()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

fn fail(reason: &dyn std::fmt::Display, code: ExitCode) -> ExitCode {
    eprintln!("ringmq: {reason}");
    code
}

fn main() -> ExitCode {
    let matches = arguments().get_matches();
    if let Some((name, matches)) = matches.subcommand()
        && let Some(result) = holds::run(name, matches).or_else(|| bench::run(name, matches))
    {
        return match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => fail(&reason, ExitCode::FAILURE),
        };
    }
    start_log();
    let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let config = match Config::load(file, &flags(&matches)) {
        Ok(config) => config,
        Err(error) if error.is_usage => return fail(&error, ExitCode::from(USAGE)),
        Err(error) => return fail(&error, ExitCode::FAILURE),
    };
    if matches.get_flag("print") {
        return match std::io::stdout().write_all(config.print().as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, ExitCode::FAILURE),
        };
    }
    match ringmq::shard::launch::run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => fail(&reason, ExitCode::FAILURE),
    }
}
