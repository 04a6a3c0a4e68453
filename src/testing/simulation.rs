//! A shard that lives and dies on a simulated machine, all of it driven by one seed.
//!
//! The event loop, codec, broker, storage, holds and timers are those of a release. A run is a few lives on one disk;
//! each begins with reading everything back and ends with a kill, a power cut or an orderly stop. The last one is calm:
//! all must come to rest.

use super::clients::{
    Answer, ClientFaults, Clients, GROUP, QUEUES, TOPIC, pull_fields, request, take_answer,
};
use super::disk::Disk;
use super::host::{DiskFaults, Host};
use super::ledger::{Crash, Durability, Event, Ledger, Seen};
use super::network::NetworkFaults;
use super::random::{Random, Trace};
use crate::clock::Now;
use crate::config::Config;
use crate::control::mail::{FromShard, ToShard};
use crate::ids::{PhysicalOffset, QueueOffset};
use crate::limits::{CONNECTION_OUT_BYTES_MAX, HOLDS_MAX, OUT_BYTES_MAX, PARTIAL_FRAMES_BYTES_MAX};
use crate::shard::launch::build_simulated;
use crate::shard::mailbox::MailSender;
use crate::shard::{Phase, Shard};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

const LIVES: u64 = 4;
/// A run that needs more turns than this to come to rest does not.
const TURNS_MAX: u64 = 60_000;
/// Turns in 100 ms of simulated time. Clients that ask again at once, as those of a broker that stops, make 6 000.
const SPIN_TURNS: u64 = 20_000;

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub trace: Trace,
    /// What is wrong; the first one ends the run.
    pub finding: Option<String>,
    pub turns: u64,
    pub acknowledged: u64,
    pub delivered: u64,
    pub power_cuts: u64,
    pub failures: u64,
}

/// Faults and sizes of a run; some seeds do without whole classes.
#[derive(Clone, Copy, Debug)]
struct Weather {
    is_sync: bool,
    disk: DiskFaults,
    network: NetworkFaults,
    clients: ClientFaults,
    clock_jumps: bool,
}

impl Weather {
    fn of(random: &mut Random) -> Self {
        let mut class = |share: u32| if random.below(3) == 0 { share } else { 0 };
        let (write, flush, read) = (class(40), class(80), class(300));
        let (other, stall) = (class(2000), class(50));
        let (reset, end, slow) = (class(60), class(60), class(60));
        let short_sends = class(3000);
        Self {
            is_sync: random.below(2) == 0,
            disk: DiskFaults {
                write,
                flush,
                read,
                other,
                stall,
                latency_us: [50, 500, 10_000][random.below(3) as usize],
                inline: random.below(2) == 0,
            },
            network: NetworkFaults {
                piece_bytes: [1 << 20, 1 << 20, 300, 40][random.below(4) as usize],
                latency_us: [20, 300, 3_000][random.below(3) as usize],
                short_sends,
            },
            clients: ClientFaults {
                reset,
                end,
                stall: slow,
                commit_ms: (other == 0).then_some(if stall > 0 { 12_000 } else { 1_000 }),
                pause_us: [500, 3_000, 20_000][random.below(3) as usize],
            },
            clock_jumps: random.below(4) == 0,
        }
    }

    fn durability(&self) -> Durability {
        match self.is_sync {
            true => Durability::Flushed,
            false => Durability::Written {
                window_ms: if self.disk.stall > 0 { 12_000 } else { 1_000 },
            },
        }
    }

    fn config(&self, random: &mut Random) -> Result<Config, String> {
        let flags = [
            ("storePathRootDir", "/simulated/store"),
            ("shards", "1"),
            ("brokerIP1", "127.0.0.1"),
            ("listenPort", "10911"),
            (
                "flushDiskType",
                if self.is_sync {
                    "SYNC_FLUSH"
                } else {
                    "ASYNC_FLUSH"
                },
            ),
            ("flushIntervalCommitLog", "100"),
            ("flushConsumerOffsetInterval", "300"),
            ("mappedFileSizeCommitLog", "65536"),
            (
                "mappedFileSizeConsumeQueue",
                ["400", "2000", "60000"][random.below(3) as usize],
            ),
            ("tailCacheBytes", "65536"),
            ("entryCacheBytes", "65536"),
            ("zeroFillSegments", "false"),
            // Apache's default takes 20 MB of memory for each start.
            ("maxHashSlotNum", "1000"),
            ("maxIndexNum", "4000"),
        ];
        let flags: Vec<(String, String)> = flags
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Config::load(None, &flags).map_err(|e| e.to_string())
    }
}

/// Watermarks and ends of queues at the end of the last turn.
#[derive(Debug, Default)]
struct Before {
    marks: [PhysicalOffset; 3],
    ends: BTreeMap<(String, u32), QueueOffset>,
}

struct Simulation {
    weather: Weather,
    config: Config,
    random: Random,
    shard: Shard<Host>,
    sender: MailSender<ToShard>,
    mail: mpsc::Receiver<FromShard>,
    clients: Clients,
    before: Before,
    turns: u64,
    failures: u64,
    power_cuts: u64,
    /// When the log failed, in milliseconds.
    failed_ms: Option<u64>,
    /// Turns since time went on.
    spin: (u64, u64),
}

/// Runs a seed to its end or to the first thing that is wrong.
pub fn run(seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let weather = Weather::of(&mut random);
    let mut outcome = Outcome {
        trace: Trace::new(),
        finding: None,
        turns: 0,
        acknowledged: 0,
        delivered: 0,
        power_cuts: 0,
        failures: 0,
    };
    let now = Now {
        monotonic_us: 1_000_000,
        wall_ms: 1_700_000_000_000,
    };
    let disk = Disk::new();
    let config = weather.config(&mut random);
    let host = Host::new(
        disk,
        now,
        weather.disk,
        weather.network,
        Random::new(random.draw()),
        Trace::new(),
    );
    let mut simulation =
        match config.and_then(|config| Simulation::new(weather, config, random, host)) {
            Ok(simulation) => simulation,
            Err(reason) => {
                outcome.finding = Some(reason);
                return outcome;
            }
        };
    // The simulation stays what it is after an error, so that the trace tells where.
    outcome.finding = simulation.live().err();
    outcome.trace = simulation.shard.io.trace;
    outcome.turns = simulation.turns;
    outcome.acknowledged = simulation.clients.acknowledged;
    outcome.delivered = simulation.clients.delivered;
    outcome.power_cuts = simulation.power_cuts;
    outcome.failures = simulation.failures + simulation.shard.io.failures;
    outcome
}

type Started = (Shard<Host>, MailSender<ToShard>, mpsc::Receiver<FromShard>);

fn start(config: &Config, host: Host) -> Result<Started, String> {
    let (report, mail) = mpsc::channel(64);
    let (shard, sender) =
        build_simulated(config, host, report).map_err(|e| format!("does not start: {e}"))?;
    Ok((shard, sender, mail))
}

impl Simulation {
    fn new(weather: Weather, config: Config, random: Random, host: Host) -> Result<Self, String> {
        let (shard, sender, mail) = start(&config, host)?;
        let ledger = Ledger::new(weather.durability());
        Ok(Self {
            weather,
            config,
            random,
            shard,
            sender,
            mail,
            clients: Clients::new(ledger, weather.clients),
            before: Before::default(),
            turns: 0,
            failures: 0,
            power_cuts: 0,
            failed_ms: None,
            spin: (0, 0),
        })
    }

    fn live(&mut self) -> Result<(), String> {
        for life in 0..LIVES {
            let is_last = life + 1 == LIVES;
            self.read_back(false)?;
            self.clients.restart(&mut self.shard.io);
            self.clients.is_busy = true;
            self.shard.io.set_calm(is_last);
            let turns = 100 + self.random.below(500);
            let mut after_failure = 30;
            for _ in 0..turns {
                self.turn()?;
                if self.shard.core.store.failure().is_some() {
                    after_failure -= 1;
                    if after_failure == 0 {
                        break;
                    }
                }
            }
            if is_last {
                self.come_to_rest()?;
                self.read_back(true)?;
                self.stop()?;
                self.read_back(false)?;
            } else {
                self.end_life()?;
            }
        }
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.shard.io.now_us() / 1000
    }

    fn end_life(&mut self) -> Result<(), String> {
        match self.random.below(3) {
            0 => {
                let disk = self.shard.io.kill();
                self.restart(disk, Crash::Process)
            }
            1 => {
                self.power_cuts += 1;
                let disk = self.shard.io.power_cut();
                self.restart(disk, Crash::Power)
            }
            _ => self.stop(),
        }
    }

    /// An orderly stop, in calm weather: what a failing disk does to it is not simulated.
    fn stop(&mut self) -> Result<(), String> {
        self.shard.io.set_calm(true);
        self.sender
            .try_send(ToShard::Stop)
            .map_err(|mail| format!("no room for {mail:?}"))?;
        let begun_ms = self.now_ms();
        while self.shard.core.phase != Phase::Stopped {
            self.turn()?;
            if self.now_ms() > begun_ms + 10_000 {
                return Err("the stop takes more than ten seconds".to_owned());
            }
        }
        let disk = self.shard.io.kill();
        self.restart(disk, Crash::Process)
    }

    fn restart(&mut self, disk: Disk, how: Crash) -> Result<(), String> {
        let at_ms = self.failed_ms.take().unwrap_or_else(|| self.now_ms());
        self.clients.ledger.note(&Event::Crashed { how, at_ms });
        let is_kept = self.weather.is_sync || how == Crash::Process;
        self.clients.lose(is_kept);
        let io = &mut self.shard.io;
        self.failures += io.failures;
        let mut host = Host::new(
            disk,
            io.instant_of_turn(),
            self.weather.disk,
            self.weather.network,
            io.random.clone(),
            io.trace,
        );
        host.failures = 0;
        io.failures = 0;
        self.before = Before::default();
        (self.shard, self.sender, self.mail) = start(&self.config, host)?;
        Ok(())
    }

    /// One turn of the shard, its clients and its control thread, then all that must hold after every turn.
    fn turn(&mut self) -> Result<(), String> {
        self.turns += 1;
        if self.weather.clock_jumps && self.random.below(200) == 0 {
            let wall_ms = 1_700_000_000_000 + self.random.below(20_000);
            self.shard.io.set_wall(wall_ms);
        }
        self.clients.turn(&mut self.shard.io);
        self.shard.turn().map_err(|e| format!("the ring: {e}"))?;
        while let Ok(mail) = self.mail.try_recv() {
            if let FromShard::Register { sequence, .. } = mail {
                self.sender
                    .try_send(ToShard::Registered { sequence })
                    .map_err(|mail| format!("no room for {mail:?}"))?;
            }
        }
        if self.shard.core.store.failure().is_some() {
            let now_ms = self.now_ms();
            self.failed_ms.get_or_insert(now_ms);
        }
        self.check_turn()
            .map_err(|what| format!("turn {}: {what}", self.turns))
    }

    fn check_turn(&mut self) -> Result<(), String> {
        if let Some(finding) = self.clients.ledger.findings().first() {
            return Err(finding.to_string());
        }
        if let Some(finding) = self.clients.findings.first() {
            return Err(finding.clone());
        }
        let now_us = self.shard.io.now_us();
        self.spin = match self.spin {
            (since, turns) if since / 100_000 == now_us / 100_000 => (since, turns + 1),
            _ => (now_us, 0),
        };
        if self.spin.1 > SPIN_TURNS {
            return Err("the loop spins".to_owned());
        }
        self.check_watermarks()?;
        self.check_holds()?;
        self.check_bounds()
    }

    fn check_watermarks(&mut self) -> Result<(), String> {
        let store = &self.shard.core.store;
        let marks = [store.flushed(), store.written(), store.appended()];
        if !marks.is_sorted() {
            return Err(format!("flushed, written, appended: {marks:?}"));
        }
        let before = self.before.marks;
        if marks.iter().zip(before).any(|(now, before)| *now < before) {
            return Err(format!("watermarks went from {before:?} to {marks:?}"));
        }
        self.before.marks = marks;
        let visible = if self.weather.is_sync {
            marks[0]
        } else {
            marks[1]
        };
        if store.visible() != visible {
            return Err(format!("visible {} and {marks:?}", store.visible()));
        }
        for (topic, id, queue) in store.queues() {
            let bounds = store.bounds(queue);
            let end = self.before.ends.entry((topic, id)).or_default();
            if bounds.max < *end || bounds.min > bounds.max {
                return Err(format!("queue {id} went from {end:?} to {bounds:?}"));
            }
            *end = bounds.max;
        }
        Ok(())
    }

    fn check_holds(&self) -> Result<(), String> {
        let core = &self.shard.core;
        for hold in core.broker.holds.iter() {
            let end = core.store.bounds(hold.queue).max;
            let (queue, cursor) = (hold.queue_id, hold.cursor);
            if cursor != end {
                return Err(format!(
                    "stranded hold (queue {queue}: checked to {cursor:?}, end {end:?})"
                ));
            }
            let connection = core.connections.get(hold.connection);
            if connection.is_none_or(|connection| connection.closing) {
                return Err(format!("a hold of queue {queue} without a connection"));
            }
            if hold.deadline_us <= core.now.monotonic_us {
                return Err(format!("a hold of queue {queue} beyond its deadline"));
            }
        }
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), String> {
        let core = &self.shard.core;
        let connections = &core.connections;
        let (mut out, mut partial, mut most) = (0, 0, 0);
        for (_, connection) in connections.iter() {
            out += connection.out_bytes;
            partial += connection.partial.len() + connection.unread.len();
            most = most.max(connection.out_bytes);
        }
        let counted = (connections.out_bytes, connections.partial_bytes);
        if counted != (out, partial) {
            return Err(format!(
                "bytes are {:?}, counted {counted:?}",
                (out, partial)
            ));
        }
        let bounds = [
            ("bytes out", out, OUT_BYTES_MAX),
            ("bytes out of a connection", most, CONNECTION_OUT_BYTES_MAX),
            (
                "bytes of unfinished frames",
                partial,
                PARTIAL_FRAMES_BYTES_MAX,
            ),
            ("holds", core.broker.holds.len(), HOLDS_MAX),
            ("lent buffers", self.shard.io.network.lent(), 0),
        ];
        match bounds.iter().find(|(_, value, bound)| value > bound) {
            Some((what, value, bound)) => Err(format!("{value} {what}, at most {bound}")),
            None => Ok(()),
        }
    }

    /// Without faults everything is answered and everything is read.
    fn come_to_rest(&mut self) -> Result<(), String> {
        self.clients.is_busy = false;
        let begun = self.turns;
        loop {
            self.turn()?;
            let store = &self.shard.core.store;
            let end = |queue| {
                let index = store.queue(TOPIC, queue);
                index.map_or(0, |index| store.bounds(index).max.0)
            };
            let is_quiet = store.visible() == store.appended();
            let all_are_held = self.shard.core.broker.holds.len() == self.clients.consumers();
            if is_quiet && all_are_held && self.clients.are_at_rest(end) {
                return Ok(());
            }
            if self.turns > begun + TURNS_MAX {
                return Err(self.clients.describe());
            }
        }
    }

    /// Reads every queue as a client does.
    fn read_back(&mut self, is_at_rest: bool) -> Result<(), String> {
        self.shard.io.set_calm(true);
        let is_busy = std::mem::replace(&mut self.clients.is_busy, false);
        let socket = self.shard.io.network.connect();
        let mut received = Vec::new();
        let mut opaque = 0;
        for queue in 0..QUEUES {
            let mut messages: Vec<(u64, Seen)> = Vec::new();
            let mut offset = 0;
            let text = queue.to_string();
            let mut ask = |simulation: &mut Self, code, fields: &[(&str, &str)]| {
                opaque += 1;
                let frame = request(code, opaque, fields, &[]);
                let io = &mut simulation.shard.io;
                let now_us = io.now_us();
                io.network.write(socket, &frame, now_us, &mut io.random);
                simulation.await_answer(socket, &mut received)
            };
            loop {
                let offset_text = i64::to_string(&offset);
                let fields = pull_fields(&text, &offset_text, false, "*");
                let answer = ask(self, 11, &fields)?;
                messages.extend(answer.messages());
                match (answer.code, answer.number("nextBeginOffset")) {
                    // Nobody has sent yet.
                    (17, _) | (19, Some(_)) => break,
                    (0 | 20 | 21, Some(next)) => offset = next,
                    _ => return Err(format!("reading queue {queue} back: {answer:?}")),
                }
            }
            let fields = [
                ("consumerGroup", GROUP),
                ("topic", TOPIC),
                ("queueId", &*text),
            ];
            let answer = ask(self, 14, &fields)?;
            let committed = answer.number("offset").unwrap_or(-1);
            self.clients.check_filtered(queue, &messages, is_at_rest);
            let at_ms = self.now_ms();
            self.clients.ledger.note(&Event::ReadBack {
                queue,
                messages,
                committed,
                at_ms,
            });
        }
        self.shard.io.network.end(socket);
        self.clients.is_busy = is_busy;
        self.check_turn()
            .map_err(|what| format!("turn {}, read back: {what}", self.turns))
    }

    fn await_answer(
        &mut self,
        socket: crate::io::Socket,
        received: &mut Vec<u8>,
    ) -> Result<Answer, String> {
        for _ in 0..TURNS_MAX {
            received.extend(self.shard.io.network.read(socket));
            if let Some(answer) = take_answer(received)? {
                return Ok(answer);
            }
            self.turn()?;
        }
        Err("the reader is not answered".to_owned())
    }
}
