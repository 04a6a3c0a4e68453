//! Producers and consumers on one thread, and what they count. A run has one of these, shared by its tasks.

use super::payload::Payload;
use super::report::Latencies;
use super::verify::{Findings, QueueReader};
use super::wire::{self, Reader, Writer};
use super::{Interrupt, arguments};
use crate::protocol::command::{Encoding, Scratch};
use bytes::BytesMut;
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Sends of one connection without an answer; beyond, it waits. Times count from when each was due anyway.
const OUTSTANDING_MAX: usize = 65_536;
/// Waits longer than this are slept, the rest is polled: a timer is a millisecond late.
const POLLED: Duration = Duration::from_millis(2);
const TICK: Duration = Duration::from_millis(20);
/// After the last send: what does not come within this long after the last that came, does not come.
const SILENCE: Duration = Duration::from_secs(3);
/// Codes of a pull that go on at the offset of the answer.
const PULL_AGAIN: [i32; 3] = [19, 20, 21];

#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    pub encoding: Encoding,
    pub topic: String,
    pub queues: u32,
    pub body: usize,
}

impl Target {
    pub async fn new(matches: &ArgMatches) -> Result<Self, String> {
        let encoding = match arguments::value::<String>(matches, "header").as_str() {
            "rocketmq" => Encoding::Binary,
            _ => Encoding::Json,
        };
        let address = match matches.get_one::<String>("namesrv") {
            Some(name_server) => wire::broker_of(wire::resolve(name_server)?).await?,
            None => wire::resolve(&arguments::value::<String>(matches, "broker"))?,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = now.map_or(0, |now| now.as_millis());
        Ok(Self {
            address,
            encoding,
            topic: format!("ringmq-bench-{millis}-{}", std::process::id()),
            queues: arguments::value(matches, "queues"),
            body: arguments::value::<u32>(matches, "body") as usize,
        })
    }
}

/// When a producer sends.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// At `first`, and then every `interval`, whatever was answered; both in nanoseconds.
    Open { first: u64, interval: u64 },
    /// When the last one has been acknowledged and delivered to every group.
    Closed,
}

pub struct Counts {
    pub sent: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub delivered: Vec<u64>,
    pub out_of_order: u64,
    pub acknowledgement: Latencies,
    pub delivery: Latencies,
    pub findings: Findings,
    /// Why a task ended before its time.
    pub failure: Option<String>,
}

/// One producer's message on its way, in a closed loop.
#[derive(Default)]
struct Round {
    open: Cell<usize>,
    closed: Notify,
}

pub struct Load {
    pub target: Target,
    pub counts: RefCell<Counts>,
    groups: usize,
    rounds: Vec<Round>,
    start: Instant,
    /// Messages that were due earlier are not measured.
    record_from: u64,
    stopped: Cell<bool>,
}

impl Load {
    pub fn new(target: Target, producers: usize, groups: usize, warm_up: Duration) -> Rc<Self> {
        let counts = Counts {
            sent: 0,
            acknowledged: 0,
            refused: 0,
            delivered: vec![0; groups],
            out_of_order: 0,
            acknowledgement: Latencies::new(),
            delivery: Latencies::new(),
            findings: Findings::default(),
            failure: None,
        };
        Rc::new(Self {
            target,
            counts: RefCell::new(counts),
            groups,
            rounds: (0..producers).map(|_| Round::default()).collect(),
            start: Instant::now(),
            record_from: warm_up.as_nanos() as u64,
            stopped: Cell::new(false),
        })
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn fail(&self, reason: String) {
        // What ends because the run has ended is no failure.
        if !self.stopped.replace(true) {
            self.counts.borrow_mut().failure = Some(reason);
        }
    }

    /// Until then; `false` if the run ends before.
    async fn wait_until(&self, at: u64) -> bool {
        while !self.stopped.get() {
            let left = Duration::from_nanos(at.saturating_sub(self.now()));
            if left.is_zero() {
                return true;
            }
            if left > POLLED {
                tokio::time::sleep((left - POLLED / 2).min(TICK)).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
        false
    }

    fn part_of_round(&self, producer: u32, parts: usize) {
        if let Some(round) = self.rounds.get(producer as usize) {
            let open = round.open.get().saturating_sub(parts);
            round.open.set(open);
            if open == 0 {
                round.closed.notify_one();
            }
        }
    }

    /// Lets it run. `false`: it was interrupted or failed.
    pub async fn run_for(&self, until: Duration, interrupt: &Interrupt, bar: &ProgressBar) -> bool {
        while self.start.elapsed() < until {
            if interrupt.is_set() || self.stopped.get() {
                return false;
            }
            let left = until.saturating_sub(self.start.elapsed());
            tokio::time::sleep(left.min(TICK)).await;
            bar.set_position(self.start.elapsed().as_millis() as u64);
            let counts = self.counts.borrow();
            let delivered = counts.delivered.iter().min().copied();
            bar.set_message(format!(
                "{} acknowledged, {} delivered",
                counts.acknowledged,
                delivered.unwrap_or_default()
            ));
        }
        true
    }

    /// Ends the producers and waits for what is on its way; what does not come is a finding.
    pub async fn finish(&self, interrupt: &Interrupt) {
        let has_failed = self.stopped.replace(true);
        let (mut last, mut since) = (0, Instant::now());
        while let Some(came) = self.open() {
            if came != last {
                (last, since) = (came, Instant::now());
            }
            // Without its connections nothing comes.
            if has_failed || interrupt.is_set() || since.elapsed() > SILENCE {
                break;
            }
            tokio::time::sleep(TICK).await;
        }
        if !has_failed && !interrupt.is_set() {
            self.compare_counts();
        }
    }

    /// While something is on its way: how much has come.
    fn open(&self) -> Option<u64> {
        let counts = self.counts.borrow();
        let answered = counts.acknowledged + counts.refused;
        let mut delivered = counts.delivered.iter();
        let is_delivered = delivered.all(|count| *count >= counts.acknowledged);
        if answered == counts.sent && is_delivered {
            return None;
        }
        Some(answered + counts.delivered.iter().sum::<u64>())
    }

    fn compare_counts(&self) {
        let mut counts = self.counts.borrow_mut();
        let counts = &mut *counts;
        let (sent, acknowledged, refused) = (counts.sent, counts.acknowledged, counts.refused);
        let findings = &mut counts.findings;
        if acknowledged + refused != sent {
            let missing = sent - acknowledged - refused;
            findings.add(|| format!("{missing} of {sent} sends were not answered"));
        }
        for (group, delivered) in counts.delivered.iter().enumerate() {
            if *delivered != acknowledged {
                findings.add(|| {
                    format!(
                        "group {group} got {delivered} messages, {acknowledged} were acknowledged"
                    )
                });
            }
        }
    }
}

pub fn progress(length: Duration) -> ProgressBar {
    let bar = ProgressBar::new(length.as_millis() as u64);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}");
    bar.with_style(style.expect("a template that indicatif takes"))
}

/// Connects a producer and starts its two tasks.
pub async fn start_producer(load: &Rc<Load>, index: u32, pace: Pace) -> Result<(), String> {
    let (writer, reader) = wire::connect(load.target.address, load.target.encoding).await?;
    let pending: Pending = Rc::default();
    let (shared, intended) = (Rc::clone(load), Rc::clone(&pending));
    tokio_uring::spawn(async move {
        if let Err(reason) = acknowledgements(&shared, index, reader, &intended).await {
            shared.fail(reason);
        }
    });
    let shared = Rc::clone(load);
    tokio_uring::spawn(async move {
        if let Err(reason) = produce(&shared, index, pace, writer, &pending).await {
            shared.fail(reason);
        }
    });
    Ok(())
}

/// Intended times by opaque.
type Pending = Rc<RefCell<HashMap<i32, u64>>>;

async fn produce(
    load: &Load,
    producer: u32,
    pace: Pace,
    mut writer: Writer,
    pending: &Pending,
) -> Result<(), String> {
    let target = &load.target;
    let queues = target.queues.to_string();
    let names: Vec<String> = (0..target.queues).map(|queue| queue.to_string()).collect();
    let (mut body, mut out) = (BytesMut::new(), BytesMut::new());
    for number in 0_u64.. {
        let intended = match pace {
            Pace::Open { first, interval } => {
                let at = first + number * interval;
                if !load.wait_until(at).await {
                    return Ok(());
                }
                at
            }
            Pace::Closed => {
                let round = &load.rounds[producer as usize];
                if number > 0 {
                    round.closed.notified().await;
                }
                if load.stopped.get() {
                    return Ok(());
                }
                round.open.set(1 + load.groups);
                load.now()
            }
        };
        while pending.borrow().len() >= OUTSTANDING_MAX {
            if load.stopped.get() {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
        let payload = Payload {
            producer,
            number,
            intended,
        };
        payload.write(target.body, &mut body);
        let queue = &names[(number % u64::from(target.queues)) as usize];
        let fields = wire::send_fields(&target.topic, &queues, queue);
        // Unique among those without an answer, of which there are fewer.
        let opaque = (number & 0x3FFF_FFFF) as i32;
        writer.encode(wire::SEND, opaque, &fields, &body, &mut out);
        pending.borrow_mut().insert(opaque, intended);
        load.counts.borrow_mut().sent += 1;
        writer.write(&mut out).await?;
    }
    Ok(())
}

async fn acknowledgements(
    load: &Load,
    producer: u32,
    mut reader: Reader,
    pending: &Pending,
) -> Result<(), String> {
    let mut scratch = Scratch::default();
    loop {
        let frame = reader.frame().await?;
        let now = load.now();
        let answer = wire::decode(&frame, &mut scratch)?;
        if !answer.is_response() {
            continue;
        }
        let intended = pending.borrow_mut().remove(&answer.opaque);
        let mut counts = load.counts.borrow_mut();
        let Some(intended) = intended else {
            let opaque = answer.opaque;
            counts
                .findings
                .add(|| format!("an answer to {opaque}, which waits for none"));
            continue;
        };
        if answer.code == 0 {
            counts.acknowledged += 1;
            if intended >= load.record_from {
                counts.acknowledgement.record(now.saturating_sub(intended));
            }
            drop(counts);
            load.part_of_round(producer, 1);
        } else {
            let (code, remark) = (answer.code, answer.remark.unwrap_or_default());
            counts.refused += 1;
            counts
                .findings
                .add(|| format!("a send was refused with {code}: {remark}"));
            drop(counts);
            load.part_of_round(producer, usize::MAX);
        }
    }
}

/// Connects a group; one pull for each queue waits when this returns, but for the way to the broker.
pub async fn start_consumer(load: &Rc<Load>, group: usize) -> Result<(), String> {
    let (writer, reader) = wire::connect(load.target.address, load.target.encoding).await?;
    let target = &load.target;
    let queues =
        (0..target.queues).map(|queue| QueueReader::new(&target.topic, queue, target.queues));
    let mut consumer = Consumer {
        load: Rc::clone(load),
        group,
        name: format!("{}-{group}", target.topic),
        writer,
        queues: queues.collect(),
        out: BytesMut::new(),
    };
    for queue in 0..target.queues as usize {
        consumer.pull(queue);
    }
    consumer.writer.write(&mut consumer.out).await?;
    tokio_uring::spawn(async move {
        let load = Rc::clone(&consumer.load);
        if let Err(reason) = consumer.run(reader).await {
            load.fail(reason);
        }
    });
    Ok(())
}

struct Consumer {
    load: Rc<Load>,
    group: usize,
    name: String,
    writer: Writer,
    queues: Vec<QueueReader>,
    out: BytesMut,
}

impl Consumer {
    /// The opaque of a pull is its queue.
    fn pull(&mut self, queue: usize) {
        let (id, offset) = (queue.to_string(), self.queues[queue].next.to_string());
        let fields = wire::pull_fields(&self.name, &self.load.target.topic, &id, &offset);
        self.writer
            .encode(wire::PULL, queue as i32, &fields, &[], &mut self.out);
    }

    async fn run(&mut self, mut reader: Reader) -> Result<(), String> {
        let mut scratch = Scratch::default();
        loop {
            let frame = reader.frame().await?;
            let now = self.load.now();
            let answer = wire::decode(&frame, &mut scratch)?;
            if !answer.is_response() {
                continue;
            }
            let queue = usize::try_from(answer.opaque).ok();
            let queue = queue.filter(|queue| *queue < self.queues.len());
            let queue = queue
                .ok_or_else(|| format!("an answer to {}, which no pull has", answer.opaque))?;
            if answer.code != 0 && !PULL_AGAIN.contains(&answer.code) {
                let remark = answer.remark.unwrap_or_default();
                return Err(format!("a pull was refused with {}: {remark}", answer.code));
            }
            let next = answer.require_i64("nextBeginOffset");
            let next = next.map_err(|error| format!("an answer to a pull: {error}"))?;
            let body = if answer.code == 0 { answer.body } else { &[] };
            self.take(queue, body, next as u64, now);
            self.pull(queue);
            self.writer.write(&mut self.out).await?;
        }
    }

    fn take(&mut self, queue: usize, body: &[u8], next: u64, now: u64) {
        let Self {
            load,
            group,
            queues,
            ..
        } = self;
        let mut counts = load.counts.borrow_mut();
        let Counts {
            findings,
            delivery,
            delivered,
            out_of_order,
            ..
        } = &mut *counts;
        let before = queues[queue].out_of_order;
        queues[queue].take(body, next, findings, |payload| {
            delivered[*group] += 1;
            if payload.intended >= load.record_from {
                delivery.record(now.saturating_sub(payload.intended));
            }
            load.part_of_round(payload.producer, 1);
        });
        *out_of_order += queues[queue].out_of_order - before;
    }
}
