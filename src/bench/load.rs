//! Producers and consumers on one thread, and what they count. A run has one of these, shared by its tasks.

use super::producer::Kind;
use super::report::Latencies;
use super::verify::Findings;
use super::wire;
use super::{Interrupt, arguments};
use crate::protocol::command::Encoding;
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Waits longer than this are slept, the rest is polled: a timer is a millisecond late.
const POLLED: Duration = Duration::from_millis(2);
const TICK: Duration = Duration::from_millis(20);
/// After the last send: what does not come within this long after the last that came, does not come.
const SILENCE: Duration = Duration::from_secs(3);
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    pub encoding: Encoding,
    pub topic: String,
    pub queues: u32,
    /// The same as text.
    pub queues_text: String,
    pub body: usize,
}

impl Target {
    pub async fn new(matches: &ArgMatches, queues: u32) -> Result<Self, String> {
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
            queues,
            queues_text: queues.to_string(),
            body: arguments::value::<u32>(matches, "body") as usize,
        })
    }
}

pub struct Counts {
    pub sent: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub delivered: Vec<u64>,
    pub out_of_order: u64,
    /// When the last message came, in nanoseconds.
    pub last_delivered: u64,
    pub acknowledgement: Latencies,
    pub delivery: Latencies,
    pub findings: Findings,
    /// Why a task ended before its time.
    pub failure: Option<String>,
}

/// One producer's message on its way, in a closed loop; `closed` is told of every answer in any loop.
#[derive(Default)]
pub struct Round {
    pub open: Cell<usize>,
    pub closed: Notify,
}

pub struct Load {
    pub target: Target,
    pub counts: RefCell<Counts>,
    pub kind: Kind,
    pub groups: usize,
    rounds: Vec<Round>,
    start: Instant,
    /// Messages that were due earlier are not measured.
    record_from: u64,
    /// Nothing more is sent.
    stopped: Cell<bool>,
    /// What ends now, ends because the run has.
    over: Cell<bool>,
}

impl Load {
    pub fn new(
        target: Target,
        kind: Kind,
        producers: usize,
        groups: usize,
        warm_up: Duration,
    ) -> Rc<Self> {
        let counts = Counts {
            sent: 0,
            acknowledged: 0,
            refused: 0,
            delivered: vec![0; groups],
            out_of_order: 0,
            last_delivered: 0,
            acknowledgement: Latencies::new(),
            delivery: Latencies::new(),
            findings: Findings::default(),
            failure: None,
        };
        Rc::new(Self {
            target,
            kind,
            counts: RefCell::new(counts),
            groups,
            rounds: (0..producers).map(|_| Round::default()).collect(),
            start: Instant::now(),
            record_from: warm_up.as_nanos() as u64,
            stopped: Cell::new(false),
            over: Cell::new(false),
        })
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub fn fail(&self, reason: String) {
        if !self.over.get() {
            self.stopped.set(true);
            let mut counts = self.counts.borrow_mut();
            counts.failure.get_or_insert(reason);
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Whether what was due then is measured.
    pub fn is_recorded(&self, intended: u64) -> bool {
        intended >= self.record_from
    }

    pub fn round(&self, producer: u32) -> &Round {
        &self.rounds[producer as usize]
    }

    fn has_failed(&self) -> bool {
        self.counts.borrow().failure.is_some()
    }

    /// Until then; `false` if the run ends before.
    pub async fn wait_until(&self, at: u64) -> bool {
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

    pub fn part_of_round(&self, producer: u32, parts: usize) {
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

    /// Ends the producers.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    /// Messages that every group must get.
    pub fn expected(&self) -> u64 {
        let counts = self.counts.borrow();
        match self.kind {
            Kind::OneWay => counts.sent,
            Kind::Single | Kind::Batch(_) => counts.acknowledged,
        }
    }

    /// Waits for what is on its way, to `groups` of the groups.
    pub async fn settle(&self, groups: usize, interrupt: &Interrupt) {
        self.stop();
        let (mut last, mut since) = (0, Instant::now());
        while let Some(came) = self.open(groups) {
            if came != last {
                (last, since) = (came, Instant::now());
            }
            // Without its connections nothing comes.
            if self.has_failed() || interrupt.is_set() || since.elapsed() > SILENCE {
                break;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// While something is on its way: how much has come.
    fn open(&self, groups: usize) -> Option<u64> {
        let expected = self.expected();
        let counts = self.counts.borrow();
        let is_answered = match self.kind {
            Kind::OneWay => true,
            Kind::Single | Kind::Batch(_) => counts.acknowledged + counts.refused == counts.sent,
        };
        let delivered = &counts.delivered[..groups];
        if is_answered && delivered.iter().all(|count| *count >= expected) {
            return None;
        }
        Some(counts.acknowledged + counts.refused + delivered.iter().sum::<u64>())
    }

    /// Ends the run; what did not come is a finding.
    pub fn finish(&self, interrupt: &Interrupt) {
        if !self.has_failed() && !interrupt.is_set() {
            self.compare_counts();
        }
        self.over.set(true);
    }

    fn compare_counts(&self) {
        let expected = self.expected();
        let mut counts = self.counts.borrow_mut();
        let counts = &mut *counts;
        let (sent, answered) = (counts.sent, counts.acknowledged + counts.refused);
        let findings = &mut counts.findings;
        if answered != sent && self.kind != Kind::OneWay {
            let missing = sent - answered;
            findings.add(|| format!("{missing} of {sent} sends were not answered"));
        }
        let what = match self.kind {
            Kind::OneWay => "sent",
            Kind::Single | Kind::Batch(_) => "acknowledged",
        };
        for (group, delivered) in counts.delivered.iter().enumerate() {
            if *delivered != expected {
                findings.add(|| {
                    format!("group {group} got {delivered} messages, {expected} were {what}")
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
