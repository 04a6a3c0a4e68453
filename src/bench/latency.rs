//! `ringmq bench latency`: send → acknowledgement and send → delivery, at a fixed rate or one after the other.

use super::arguments::value;
use super::load::{self, Load, Target};
use super::process::{Usage, rounded};
use super::producer::{Kind, Pace};
use super::report::Report;
use super::{Interrupt, consumer, producer};
use clap::ArgMatches;
use serde_json::{Map, Value, json};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

const NANOS: u64 = 1_000_000_000;

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
    let producers: u32 = value(matches, "producers");
    let groups: u32 = value(matches, "groups");
    let pid = matches.get_one::<u32>("pid").copied();
    let usage = || pid.map(Usage::read).transpose();
    usage()?;
    let load = Load::new(
        target,
        Kind::Single,
        producers as usize,
        groups as usize,
        warm_up,
    );
    for group in 0..groups as usize {
        consumer::start(&load, group).await?;
    }
    let began = SystemTime::now();
    let start = load.now();
    for index in 0..producers {
        producer::start(&load, index, pace(matches, start, index, producers)).await?;
    }
    let offset = Duration::from_nanos(start);
    let bar = load::progress(offset + warm_up + duration);
    let mut is_whole = load.run_for(offset + warm_up, interrupt, &bar).await;
    let (first, before, from) = (sent(&load), usage()?, load.now());
    if is_whole {
        is_whole = load
            .run_for(offset + warm_up + duration, interrupt, &bar)
            .await;
    }
    let (last, after, to) = (sent(&load), usage()?, load.now());
    load.settle(load.groups, interrupt).await;
    load.finish(interrupt);
    bar.finish_and_clear();
    let seconds = (to - from) as f64 / 1e9;
    let mut report = report(matches, &load, seconds, last - first);
    report.began = began;
    if let (Some(before), Some(after)) = (before, after) {
        let server = before.until(after, seconds.max(1e-9), last - first);
        report.values.insert("server".to_owned(), server);
    }
    report
        .values
        .insert("ended early".to_owned(), json!(!is_whole));
    let failure = load.counts.borrow_mut().failure.take();
    Ok((report, failure))
}

/// Producers share the rate and take turns.
fn pace(matches: &ArgMatches, start: u64, index: u32, producers: u32) -> Pace {
    if matches.get_flag("closed") {
        return Pace::Closed;
    }
    let rate = u64::from(value::<u32>(matches, "rate"));
    Pace::Open {
        first: start + u64::from(index) * NANOS / rate,
        interval: u64::from(producers) * NANOS / rate,
    }
}

fn sent(load: &Load) -> u64 {
    load.counts.borrow().sent
}

fn report(matches: &ArgMatches, load: &Rc<Load>, seconds: f64, measured: u64) -> Report {
    let counts = load.counts.borrow();
    let target = &load.target;
    let rate = match matches.get_flag("closed") {
        true => Value::from("closed loop"),
        false => json!(value::<u32>(matches, "rate")),
    };
    let mut values = Map::new();
    let mut add = |name: &str, value: Value| values.insert(name.to_owned(), value);
    add("broker", json!(target.address.to_string()));
    add("header", json!(value::<String>(matches, "header")));
    add("body bytes", json!(target.body));
    add("queues", json!(target.queues));
    add("producers", json!(value::<u32>(matches, "producers")));
    add("groups", json!(value::<u32>(matches, "groups")));
    add("offered per second", rate);
    let achieved = measured as f64 / seconds.max(1e-9);
    add("sent per second", json!(rounded(achieved)));
    add("sent, with warm-up", json!(counts.sent));
    add("acknowledged", json!(counts.acknowledged));
    add("refused", json!(counts.refused));
    add("delivered", json!(counts.delivered.iter().sum::<u64>()));
    add("out of order", json!(counts.out_of_order));
    add("wrong", json!(counts.findings.count));
    Report {
        name: "latency",
        values,
        latencies: vec![
            ("send to acknowledgement", counts.acknowledgement.clone()),
            ("send to delivery", counts.delivery.clone()),
        ],
        findings: counts.findings.lines.clone(),
        began: SystemTime::UNIX_EPOCH,
        seconds,
    }
}
