//! `ringmq bench throughput`: connections with a window of requests in flight; consumers that keep up, that start when
//! all is stored, or none.

use super::arguments::value;
use super::load::{self, Load, Target};
use super::process::{Usage, rounded};
use super::producer::{Kind, Pace};
use super::report::Report;
use super::{Interrupt, consumer, producer, wire};
use clap::ArgMatches;
use serde_json::{Map, Value, json};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

/// What brokers take in one request.
const REQUEST_BYTES_MAX: u64 = 4 << 20;
/// Of a message in a batch, besides its body.
const RECORD_BYTES: u64 = 22;

fn kind(matches: &ArgMatches) -> Result<Kind, String> {
    if matches.get_flag("one-way") {
        return Ok(Kind::OneWay);
    }
    let Some(messages) = matches.get_one::<u32>("batch").copied() else {
        return Ok(Kind::Single);
    };
    let body = u64::from(value::<u32>(matches, "body"));
    let bytes = u64::from(messages) * (body + RECORD_BYTES);
    if bytes > REQUEST_BYTES_MAX {
        return Err(format!(
            "a batch of {messages} messages of {body} bytes has {bytes} bytes, more than {REQUEST_BYTES_MAX}"
        ));
    }
    Ok(Kind::Batch(messages))
}

/// Counts at one moment.
#[derive(Clone, Copy)]
struct Moment {
    at: u64,
    sent: u64,
    delivered: u64,
}

impl Moment {
    /// What was taken by the broker, and what came to the group that is behind.
    fn of(load: &Load) -> Self {
        let counts = load.counts.borrow();
        Self {
            at: load.now(),
            sent: load.expected(),
            delivered: counts.delivered.iter().min().copied().unwrap_or_default(),
        }
    }
}

fn per_second(messages: u64, nanos: u64) -> Value {
    json!((messages as f64 * 1e9 / nanos.max(1) as f64).round())
}

/// The report, and why it ended early if it did.
pub async fn measure(
    matches: &ArgMatches,
    interrupt: &Interrupt,
    target: Target,
) -> Result<(Report, Option<String>), String> {
    let (warm_up, duration) = (
        value::<Duration>(matches, "warm-up"),
        value::<Duration>(matches, "duration"),
    );
    let connections: u32 = value(matches, "connections");
    let consumers: String = value(matches, "consumers");
    let groups = match consumers.as_str() {
        "none" => 0,
        _ => value::<u32>(matches, "groups") as usize,
    };
    let pid = matches.get_one::<u32>("pid").copied();
    let usage = || pid.map(Usage::read).transpose();
    usage()?;
    let kind = kind(matches)?;
    let load = Load::new(target, kind, connections as usize, groups, warm_up);
    let early = if consumers == "keep-up" { groups } else { 0 };
    for group in 0..early {
        consumer::start(&load, group).await?;
    }
    let began = SystemTime::now();
    let window = value::<u32>(matches, "in-flight") as usize;
    for index in 0..connections {
        producer::start(&load, index, Pace::Window(window)).await?;
    }
    let bar = load::progress(warm_up + duration);
    let mut is_whole = load.run_for(warm_up, interrupt, &bar).await;
    let (from, before) = (Moment::of(&load), usage()?);
    if is_whole {
        is_whole = load.run_for(warm_up + duration, interrupt, &bar).await;
    }
    let (to, after) = (Moment::of(&load), usage()?);
    load.settle(early, interrupt).await;
    let backlog = match consumers.as_str() {
        "late" => take_backlog(&load, interrupt).await?,
        _ => None,
    };
    load.finish(interrupt);
    if groups == 0 && !interrupt.is_set() {
        compare_stored(&load).await?;
    }
    bar.finish_and_clear();
    let (nanos, messages) = (to.at - from.at, to.sent - from.sent);
    let mut values = settings(matches, &load);
    let mut add = |name: &str, value: Value| values.insert(name.to_owned(), value);
    rates(&load, (from, to), early > 0, backlog, &mut add);
    counted(&load, &mut add);
    if let (Some(before), Some(after)) = (before, after) {
        let seconds = (nanos as f64 / 1e9).max(1e-9);
        add("server", before.until(after, seconds, messages));
    }
    add("ended early", json!(!is_whole));
    let mut report = report(&load, values, early > 0);
    report.began = began;
    report.seconds = nanos as f64 / 1e9;
    let failure = load.counts.borrow_mut().failure.take();
    Ok((report, failure))
}

fn rates(
    load: &Load,
    (from, to): (Moment, Moment),
    is_delivered_at_once: bool,
    backlog: Option<(u64, u64)>,
    add: &mut dyn FnMut(&str, Value) -> Option<Value>,
) {
    let (nanos, messages) = (to.at - from.at, to.sent - from.sent);
    add("messages per second", per_second(messages, nanos));
    let bytes = messages * load.target.body as u64;
    add(
        "MB per second",
        json!(rounded(bytes as f64 * 1e3 / nanos.max(1) as f64)),
    );
    if is_delivered_at_once {
        let delivered = to.delivered - from.delivered;
        add(
            "delivered per second and group",
            per_second(delivered, nanos),
        );
    }
    if let Some((messages, nanos)) = backlog {
        add("backlog per second and group", per_second(messages, nanos));
    }
}

/// Starts the consumers now; messages and nanoseconds until the last has them all.
async fn take_backlog(
    load: &Rc<Load>,
    interrupt: &Interrupt,
) -> Result<Option<(u64, u64)>, String> {
    if interrupt.is_set() {
        return Ok(None);
    }
    let start = load.now();
    for group in 0..load.groups {
        consumer::start(load, group).await?;
    }
    load.settle(load.groups, interrupt).await;
    let end = load.counts.borrow().last_delivered;
    Ok(Some((load.expected(), end.saturating_sub(start))))
}

/// Without consumers: whether the broker has what it acknowledged. One-way messages may still be on their way.
async fn compare_stored(load: &Rc<Load>) -> Result<(), String> {
    let target = &load.target;
    let expected = load.expected();
    let mut stored = 0;
    let mut last = None;
    while stored != expected && last != Some(stored) {
        last = Some(stored);
        tokio::time::sleep(Duration::from_millis(500)).await;
        stored = wire::stored(
            target.address,
            target.encoding,
            &target.topic,
            target.queues,
        )
        .await?;
    }
    if stored != expected {
        let mut counts = load.counts.borrow_mut();
        counts
            .findings
            .add(|| format!("{stored} messages are stored, {expected} were sent"));
    }
    Ok(())
}

fn settings(matches: &ArgMatches, load: &Load) -> Map<String, Value> {
    let request = match load.kind {
        Kind::Single => "one message".to_owned(),
        Kind::OneWay => "one message, one-way".to_owned(),
        Kind::Batch(messages) => format!("batch of {messages}"),
    };
    let mut values = Map::new();
    let mut add = |name: &str, value: Value| values.insert(name.to_owned(), value);
    add("broker", json!(load.target.address.to_string()));
    add("header", json!(value::<String>(matches, "header")));
    add("body bytes", json!(load.target.body));
    add("queues", json!(load.target.queues));
    add("connections", json!(value::<u32>(matches, "connections")));
    add("in flight", json!(value::<u32>(matches, "in-flight")));
    add("request", json!(request));
    add("consumers", json!(value::<String>(matches, "consumers")));
    add("groups", json!(load.groups));
    values
}

fn counted(load: &Load, add: &mut dyn FnMut(&str, Value) -> Option<Value>) {
    let counts = load.counts.borrow();
    add("sent, with warm-up", json!(counts.sent));
    if load.kind != Kind::OneWay {
        add("acknowledged", json!(counts.acknowledged));
    }
    add("refused", json!(counts.refused));
    add("delivered", json!(counts.delivered.iter().sum::<u64>()));
    add("out of order", json!(counts.out_of_order));
    add("wrong", json!(counts.findings.count));
}

fn report(load: &Load, values: Map<String, Value>, is_delivered_at_once: bool) -> Report {
    let counts = load.counts.borrow();
    let mut latencies = Vec::new();
    if load.kind != Kind::OneWay {
        latencies.push(("send to acknowledgement", counts.acknowledgement.clone()));
    }
    // From a backlog it is the age of the backlog.
    if is_delivered_at_once {
        latencies.push(("send to delivery", counts.delivery.clone()));
    }
    Report {
        name: "throughput",
        values,
        latencies,
        findings: counts.findings.lines.clone(),
        began: SystemTime::UNIX_EPOCH,
        seconds: 0.0,
    }
}
