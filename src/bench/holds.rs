//! `ringmq bench holds`: many pulls that wait on one queue. What they cost while nothing comes; how soon one beside
//! them is answered; then how soon all are, by one message.

use super::Interrupt;
use super::arguments::value;
use super::load::{self, Target};
use super::pair::Pair;
use super::payload::Payload;
use super::process::Usage;
use super::report::{Latencies, Report};
use super::verify::{Findings, QueueReader};
use super::wire::{self, Reader, Writer};
use crate::protocol::command::Scratch;
use bytes::BytesMut;
use clap::ArgMatches;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

/// One for those that all wait, one for the pair beside them.
pub const QUEUES: u32 = 2;
const QUEUE_OF_ALL: u32 = 0;
const QUEUE_OF_ONE: u32 = 1;
/// From the pull of the pair to its message: it is parked by then.
const PARKED_MICROS: i64 = 2000;
const TICK: Duration = Duration::from_millis(20);
/// What does not come within this long after the last that came, does not come.
const SILENCE: Duration = Duration::from_secs(3);

struct Waiting {
    start: Instant,
    topic: String,
    suspend_ms: String,
    counts: RefCell<Counts>,
}

struct Counts {
    /// By pull.
    answered: Vec<bool>,
    latencies: Latencies,
    findings: Findings,
    failure: Option<String>,
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
    let (pulls, connections) = (
        value::<u32>(matches, "pulls"),
        value(matches, "connections"),
    );
    let pid = matches.get_one::<u32>("pid").copied();
    let usage = || pid.map(Usage::read).transpose();
    let fresh = usage()?;
    // Longer than the run: a deadline is not what is measured.
    let suspend = warm_up + duration + Duration::from_secs(60);
    let waiting = Rc::new(Waiting {
        start: Instant::now(),
        topic: target.topic.clone(),
        suspend_ms: suspend.as_millis().to_string(),
        counts: RefCell::new(Counts {
            answered: vec![false; pulls as usize],
            latencies: Latencies::new(),
            findings: Findings::default(),
            failure: None,
        }),
    });
    let began = SystemTime::now();
    for connection in 0..connections {
        let mine = (0..pulls).filter(|pull| pull % connections == connection);
        park(&waiting, &target, mine).await?;
    }
    let bar = load::progress(warm_up + duration);
    sleep(warm_up, interrupt, &bar).await;
    let (before, from) = (usage()?, Instant::now());
    sleep(duration, interrupt, &bar).await;
    let (after, seconds) = (usage()?, from.elapsed().as_secs_f64());
    bar.finish_and_clear();
    let mut findings = Findings::default();
    let rounds: u64 = value(matches, "rounds");
    let one = one_beside(&target, rounds, interrupt, &mut findings).await?;
    if !interrupt.is_set() {
        wake_all(&waiting, &target).await?;
        all_answered(&waiting, interrupt).await;
    }
    let mut counts = waiting.counts.borrow_mut();
    findings.merge(std::mem::take(&mut counts.findings));
    let mut values = Map::new();
    let mut add = |name: &str, value: Value| values.insert(name.to_owned(), value);
    add("broker", json!(target.address.to_string()));
    add("header", json!(value::<String>(matches, "header")));
    add("body bytes", json!(target.body));
    add("pulls", json!(pulls));
    add("connections", json!(connections));
    if let (Some(fresh), Some(before), Some(after)) = (fresh, before, after) {
        add("idle server", before.while_idle(after, seconds));
        add("resident KiB of a pull", fresh.growth(after, pulls));
    }
    add("wrong", json!(findings.count));
    add("ended early", json!(interrupt.is_set()));
    let report = Report {
        name: "holds",
        values,
        latencies: vec![
            ("one answered", one),
            ("all answered", counts.latencies.clone()),
        ],
        findings: findings.lines,
        began,
        seconds,
    };
    Ok((report, counts.failure.take()))
}

/// Messages for one that waits beside the others, one after the other.
async fn one_beside(
    target: &Target,
    rounds: u64,
    interrupt: &Interrupt,
    findings: &mut Findings,
) -> Result<Latencies, String> {
    let mut latencies = Latencies::new();
    let mut pair = Pair::connect(target, QUEUE_OF_ONE).await?;
    for round in 0..rounds {
        if interrupt.is_set() {
            break;
        }
        let took = pair.round(round, PARKED_MICROS, findings).await?;
        latencies.record(took.as_nanos() as u64);
    }
    Ok(latencies)
}

async fn sleep(length: Duration, interrupt: &Interrupt, bar: &ProgressBar) {
    let start = Instant::now();
    while start.elapsed() < length && !interrupt.is_set() {
        // Seldom: what is measured has to be left alone.
        let tick = length.saturating_sub(start.elapsed()).min(TICK * 5);
        tokio::time::sleep(tick).await;
        bar.inc(tick.as_millis() as u64);
    }
}

/// A connection with some of the pulls.
async fn park(
    waiting: &Rc<Waiting>,
    target: &Target,
    pulls: impl Iterator<Item = u32>,
) -> Result<(), String> {
    let (mut writer, reader) = wire::connect(target.address, target.encoding).await?;
    let mut out = BytesMut::new();
    for pull in pulls {
        waiting.pull(pull as i32, "0", &writer, &mut out);
    }
    writer.write(&mut out).await?;
    let waiting = Rc::clone(waiting);
    tokio_uring::spawn(async move {
        if let Err(reason) = waiting.answers(writer, reader).await {
            waiting.counts.borrow_mut().failure.get_or_insert(reason);
        }
    });
    Ok(())
}

impl Waiting {
    /// The opaque of a pull is its number.
    fn pull(&self, pull: i32, offset: &str, writer: &Writer, out: &mut BytesMut) {
        let fields = wire::pull_fields(&self.topic, &self.topic, "0", offset, &self.suspend_ms);
        writer.encode(wire::PULL, pull, &fields, &[], out);
    }

    async fn answers(&self, mut writer: Writer, mut reader: Reader) -> Result<(), String> {
        let (mut scratch, mut out) = (Scratch::default(), BytesMut::new());
        loop {
            let frame = reader.frame().await?;
            let now = self.start.elapsed().as_nanos() as u64;
            let answer = wire::decode(&frame, &mut scratch)?;
            if !answer.is_response() {
                continue;
            }
            let (body, next) = wire::pulled(&answer)?;
            let pull = answer.opaque;
            if body.is_empty() {
                self.pull(pull, &next.to_string(), &writer, &mut out);
                writer.write(&mut out).await?;
                continue;
            }
            let mut counts = self.counts.borrow_mut();
            let Counts {
                answered,
                latencies,
                findings,
                ..
            } = &mut *counts;
            // Each pull is the first of a consumer of its own.
            let mut queue = QueueReader::new(&self.topic, QUEUE_OF_ALL);
            queue.take(body, next, findings, |payload| {
                latencies.record(now.saturating_sub(payload.intended));
            });
            let place = usize::try_from(pull).ok();
            match place.and_then(|place| answered.get_mut(place)) {
                Some(is_answered) if !*is_answered => *is_answered = true,
                _ => findings.add(|| format!("an answer to pull {pull}, which waits for none")),
            }
        }
    }

    fn answered(&self) -> usize {
        let counts = self.counts.borrow();
        counts.answered.iter().filter(|is| **is).count()
    }
}

/// Sends the message that they all wait for.
async fn wake_all(waiting: &Waiting, target: &Target) -> Result<(), String> {
    let (mut writer, mut reader) = wire::connect(target.address, target.encoding).await?;
    let payload = Payload {
        producer: 0,
        queue: QUEUE_OF_ALL,
        number: 0,
        intended: waiting.start.elapsed().as_nanos() as u64,
    };
    let (mut body, mut out) = (BytesMut::new(), BytesMut::new());
    payload.write(target.body, &mut body);
    let fields = wire::send_fields(&target.topic, &target.queues_text, "0");
    writer.encode(wire::SEND, 1, &fields, &body, &mut out);
    writer.write(&mut out).await?;
    let frame = reader.frame().await?;
    let mut scratch = Scratch::default();
    let answer = wire::decode(&frame, &mut scratch)?;
    match answer.code {
        0 => Ok(()),
        code => {
            let remark = answer.remark.unwrap_or_default();
            Err(format!("a send was refused with {code}: {remark}"))
        }
    }
}

async fn all_answered(waiting: &Waiting, interrupt: &Interrupt) {
    let all = waiting.counts.borrow().answered.len();
    let (mut last, mut since) = (0, Instant::now());
    while last < all && !interrupt.is_set() && since.elapsed() < SILENCE {
        tokio::time::sleep(TICK).await;
        let answered = waiting.answered();
        if answered != last {
            (last, since) = (answered, Instant::now());
        }
    }
    if last < all && !interrupt.is_set() {
        let mut counts = waiting.counts.borrow_mut();
        let line = || format!("{last} of {all} pulls were answered by the message they wait for");
        counts.findings.add(line);
    }
}
