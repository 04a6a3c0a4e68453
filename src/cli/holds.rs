//! `ringmq holds`: who waits for what, and why; `ringmq slow`: the slowest deliveries.

use super::{fetch, print, table};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::Value;
use std::fmt::Write;

const HOLDS_EXAMPLES: &str = "Examples:
  ringmq holds                                    all of the broker on this machine
  ringmq holds --topic Orders --group billing     why these consumers get nothing
  ringmq holds --broker mq1.example.org:5557 --json | jq '.holds[0]'

EXAMINED is the first offset that the filter has not seen; a filter that refuses everything moves it on.";

const SLOW_EXAMPLES: &str = "Examples:
  ringmq slow
  ringmq slow --broker mq1.example.org:5557 --json

Times are microseconds from the arrival of the message: written, visible (in SYNC_FLUSH: flushed), reply queued, reply
taken by the kernel. Kept are the slowest of the last five to ten minutes.";

fn asking(command: Command) -> Command {
    command
        .arg(
            Arg::new("broker")
                .long("broker")
                .short('b')
                .value_name("HOST:PORT")
                .default_value("127.0.0.1:5557")
                .help("metricsPort of the broker"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("print what the broker answers, as JSON"),
        )
}

/// The subcommands of this module.
pub fn commands() -> [Command; 2] {
    let holds = asking(Command::new("holds"))
        .about("Pulls that wait: since when, up to where they looked, why the last message was not for them")
        .after_help(HOLDS_EXAMPLES)
        .arg(
            Arg::new("topic")
                .long("topic")
                .short('t')
                .value_name("NAME")
                .help("only those of this topic"),
        )
        .arg(
            Arg::new("group")
                .long("group")
                .short('g')
                .value_name("NAME")
                .help("only those of this consumer group"),
        )
        .arg(
            Arg::new("limit")
                .long("limit")
                .value_name("N")
                .value_parser(value_parser!(u32))
                .default_value("100")
                .help("show at most so many, those that have waited longest"),
        );
    let slow = asking(Command::new("slow"))
        .about("The slowest deliveries to pulls that waited, with the time of each hop")
        .after_help(SLOW_EXAMPLES);
    [holds, slow]
}

/// Runs one of them; `None` if it is another's. **Errors**: one line for the user.
pub fn run(name: &str, matches: &ArgMatches) -> Option<Result<(), String>> {
    match name {
        "holds" => Some(holds(matches)),
        "slow" => Some(slow(matches)),
        _ => None,
    }
}

fn text<'m>(matches: &'m ArgMatches, name: &str) -> Option<&'m str> {
    matches.get_one::<String>(name).map(String::as_str)
}

fn fetched(matches: &ArgMatches, path: &str) -> Result<(String, Value), String> {
    let broker = text(matches, "broker").unwrap_or_default();
    let body = fetch::get(broker, path)?;
    let value = serde_json::from_str(&body);
    let value = value.map_err(|error| format!("{broker} did not answer JSON: {error}"))?;
    Ok((body, value))
}

fn holds(matches: &ArgMatches) -> Result<(), String> {
    let mut query = form_urlencoded::Serializer::new("/holds?".to_owned());
    for name in ["topic", "group"] {
        if let Some(value) = text(matches, name) {
            query.append_pair(name, value);
        }
    }
    if let Some(limit) = matches.get_one::<u32>("limit") {
        query.append_pair("limit", &limit.to_string());
    }
    let (body, answer) = fetched(matches, &query.finish())?;
    if matches.get_flag("json") {
        return print(&(body + "\n"));
    }
    print(&holds_table(&answer))
}

fn slow(matches: &ArgMatches) -> Result<(), String> {
    let (body, answer) = fetched(matches, "/slow")?;
    if matches.get_flag("json") {
        return print(&(body + "\n"));
    }
    print(&slow_table(&answer))
}

/// A value as a cell; `-` where there is none.
fn cell(row: &Value, name: &str) -> String {
    match &row[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn seconds(row: &Value, name: &str) -> String {
    let ms = row[name].as_u64().unwrap_or_default();
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

fn rows<'a>(answer: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    answer[name].as_array().into_iter().flatten()
}

fn silent(answer: &Value, out: &mut String) {
    for shard in rows(answer, "notAnswering") {
        let _ = writeln!(out, "{}", shard.as_str().unwrap_or_default());
    }
}

fn holds_table(answer: &Value) -> String {
    let line = |hold: &Value| {
        let client = match &hold["clientId"] {
            Value::String(id) => format!("{id} {}", cell(hold, "client")),
            _ => cell(hold, "client"),
        };
        let refused = &hold["lastRefused"];
        let why = match refused {
            Value::Null => "-".to_owned(),
            refused => format!("{}: {}", refused["offset"], cell(refused, "why")),
        };
        vec![
            cell(hold, "broker"),
            cell(hold, "topic"),
            cell(hold, "queueId"),
            cell(hold, "group"),
            client,
            seconds(hold, "waitedMs"),
            seconds(hold, "leftMs"),
            cell(hold, "askedOffset"),
            cell(hold, "examinedTo"),
            cell(hold, "filter"),
            why,
        ]
    };
    let lines: Vec<_> = rows(answer, "holds").map(line).collect();
    let mut out = String::new();
    if !lines.is_empty() {
        let heading = [
            "BROKER",
            "TOPIC",
            "QUEUE",
            "GROUP",
            "CLIENT",
            "WAITED",
            "LEFT",
            "ASKED",
            "EXAMINED",
            "FILTER",
            "LAST REFUSED",
        ];
        out.push_str(&table::aligned(&heading, &lines));
    }
    let _ = writeln!(out, "{} of {} holds", answer["listed"], answer["total"]);
    silent(answer, &mut out);
    out
}

fn slow_table(answer: &Value) -> String {
    let line = |row: &Value| {
        let names = [
            "broker",
            "topic",
            "queueId",
            "group",
            "client",
            "messages",
            "writtenUs",
            "visibleUs",
            "replyQueuedUs",
            "sentUs",
        ];
        names.map(|name| cell(row, name)).to_vec()
    };
    let lines: Vec<_> = rows(answer, "deliveries").map(line).collect();
    let mut out = String::new();
    if lines.is_empty() {
        out.push_str("no deliveries to pulls that waited in the last minutes\n");
    } else {
        let heading = [
            "BROKER", "TOPIC", "QUEUE", "GROUP", "CLIENT", "MESSAGES", "WRITTEN", "VISIBLE",
            "QUEUED", "SENT",
        ];
        out.push_str(&table::aligned(&heading, &lines));
    }
    silent(answer, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hold_is_one_line() {
        let answer = json!({
            "total": 2, "listed": 1, "notAnswering": ["shard 1 is starting"],
            "holds": [{
                "shard": 0, "broker": "b", "topic": "T", "queueId": 3, "group": "G", "clientId": "c@1",
                "client": "10.0.0.1:7", "filter": "A || B", "askedOffset": 5, "examinedTo": 9, "since": 1,
                "waitedMs": 1234, "deadline": 2, "leftMs": 13_766,
                "lastRefused": {"offset": 8, "tag": "C", "why": "its tag is \"C\", which is none of \"A || B\""},
            }],
        });
        let expected = "\
BROKER  TOPIC  QUEUE  GROUP  CLIENT          WAITED   LEFT      ASKED  EXAMINED  FILTER  LAST REFUSED
b       T      3      G      c@1 10.0.0.1:7  1.234 s  13.766 s  5      9         A || B  8: its tag is \"C\", which is none of \"A || B\"
1 of 2 holds
shard 1 is starting
";
        assert_eq!(holds_table(&answer), expected);
    }

    #[test]
    fn nothing_to_show_is_said() {
        let answer =
            json!({"total": 0, "listed": 0, "holds": [], "deliveries": [], "notAnswering": []});
        assert_eq!(holds_table(&answer), "0 of 0 holds\n");
        assert!(slow_table(&answer).starts_with("no deliveries"));
    }
}
