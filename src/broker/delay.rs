//! Messages that are delivered later: delay levels and timers.
//!
//! **Owned by**: one shard. Nothing of a pending message is in memory but what the store's caches keep: a level is a
//! queue of `SCHEDULE_TOPIC_XXXX` whose entries say when they are due, in order, so that its state is a position and
//! a deadline.

use super::internal::{self, Task};
use super::topics::Refusal;
use super::{Broker, Context};
use crate::clock::Now;
use crate::ids::QueueIndex;
use crate::protocol::message::NewMessage;
use crate::protocol::names::{SCHEDULE_TOPIC, TIMER_TOPIC};
use crate::protocol::properties::{self, name};
use crate::storage::Arrival;

mod file;
mod levels;
#[cfg(test)]
pub(super) mod tests;
mod timers;

pub use file::FILE;
pub(super) use levels::{level_failed, run_level};
pub use timers::FILE as TIMERS_FILE;
pub(super) use timers::{run_timers, timers_failed};

/// Pause after a failure: the store is busy, or a read failed.
const RETRY_MS: u64 = 100;
/// Longest sleep of a deadline: steps of the wall clock are noticed after this time. Source: arithmetic, a clock that
/// is slewed by 500 ppm is 5 ms off after it.
const SLEEP_MS_MAX: u64 = 10_000;
/// Pause between the delivery of messages and the replacement of the file that says so.
const PERSIST_MS: u64 = 200;
/// Messages and bytes that one run delivers before it gives way.
const RUN_MESSAGES_MAX: usize = 512;
const RUN_BYTES_MAX: usize = 1 << 20;
/// Records that one run asks for.
const RUN_READS_MAX: usize = 64;

/// When a message is to be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Now,
    /// Delay level, from 1.
    Level(u32),
    /// Wall clock milliseconds.
    At(u64),
}

/// All that a shard has to deliver later.
#[derive(Debug)]
pub struct Delays {
    levels: Vec<levels::Level>,
    pub(super) timers: timers::Timers,
    /// The levels have been looked at after the start.
    is_started: bool,
    is_stopping: bool,
    persist_us: Option<u64>,
    kept: file::Kept,
    /// Memory of the properties of what is delivered.
    properties: String,
}

impl Delays {
    /// **Errors**: the file is no JSON of its form.
    pub fn load(
        level_count: usize,
        bytes: Option<&[u8]>,
        timers: Option<&[u8]>,
    ) -> Result<Self, String> {
        let (offsets, kept) = file::load(bytes)?;
        let level = |level: usize| levels::Level::new(offsets.get(&(level as u32)).copied());
        Ok(Self {
            levels: (1..=level_count).map(level).collect(),
            timers: timers::Timers::load(timers)?,
            is_started: false,
            is_stopping: false,
            persist_us: None,
            kept,
            properties: String::new(),
        })
    }

    pub fn next_deadline(&self) -> Option<u64> {
        if self.is_stopping {
            return None;
        }
        if !self.is_started {
            return Some(0);
        }
        let due = self.levels.iter().filter_map(|level| level.due_us);
        let timers = [self.timers.due_us, self.timers.persist_us];
        let timers = timers.into_iter().flatten();
        due.chain(self.persist_us).chain(timers).min()
    }

    /// The deadline for a wall clock time.
    fn deadline(due_ms: u64, now: Now) -> u64 {
        now.after_ms(due_ms.saturating_sub(now.wall_ms).min(SLEEP_MS_MAX))
    }

    fn level_of(&self, queue: QueueIndex) -> Option<u32> {
        let place = self.levels.iter().position(|l| l.queue == Some(queue))?;
        Some(place as u32 + 1)
    }
}

/// Something was parked and is visible now: its level is due if it has nothing to wait for.
pub fn on_arrival(broker: &mut Broker, arrival: Arrival, cx: &mut Context<'_>) {
    if broker.delays.timers.queue == Some(arrival.queue) {
        if !broker.delays.timers.is_reading() {
            internal::run(broker, Task::Timers, cx);
        }
        return;
    }
    if let Some(level) = broker.delays.level_of(arrival.queue)
        && broker.delays.levels[level as usize - 1].is_idle()
        && !broker.delays.is_stopping
    {
        internal::run(broker, Task::DelayLevel(level), cx);
    }
}

/// Delivers what is due, writes the file.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    if broker.delays.is_stopping {
        return;
    }
    let is_first = !std::mem::replace(&mut broker.delays.is_started, true);
    for level in 1..=broker.delays.levels.len() as u32 {
        let state = &broker.delays.levels[level as usize - 1];
        let is_due = state.due_us.is_some_and(|at| at <= cx.now.monotonic_us);
        if is_first || is_due {
            internal::run(broker, Task::DelayLevel(level), cx);
        }
    }
    let due_us = broker.delays.timers.due_us;
    if is_first || due_us.is_some_and(|at| at <= cx.now.monotonic_us) {
        internal::run(broker, Task::Timers, cx);
    }
    let persist_us = broker.delays.timers.persist_us;
    if persist_us.is_some_and(|at| at <= cx.now.monotonic_us) {
        persist_timers(broker, cx);
    }
    if broker
        .delays
        .persist_us
        .is_some_and(|at| at <= cx.now.monotonic_us)
    {
        persist(broker, cx);
    }
}

/// Delivers nothing any more. Called again until the store is closed: what was delivered counts when it is flushed.
pub fn begin_stop(broker: &mut Broker, cx: &mut Context<'_>) {
    broker.delays.is_stopping = true;
    persist(broker, cx);
    persist_timers(broker, cx);
}

fn persist_timers(broker: &mut Broker, cx: &mut Context<'_>) {
    let contents = broker.delays.timers.persist(cx.now, cx.store.flushed());
    if let Some(contents) = contents {
        cx.effects.files.push((TIMERS_FILE, contents.into()));
    }
}

/// Replaces the file if more has been delivered for good.
fn persist(broker: &mut Broker, cx: &mut Context<'_>) {
    let delays = &mut broker.delays;
    delays.persist_us = None;
    let flushed = cx.store.flushed();
    let mut is_changed = false;
    let mut waits = false;
    for level in &mut delays.levels {
        is_changed |= level.settle(flushed);
        waits |= !level.is_settled();
    }
    if waits {
        delays.persist_us = Some(cx.now.after_ms(PERSIST_MS));
    }
    if is_changed {
        let offsets = delays.levels.iter().map(levels::Level::settled);
        let contents = file::encode(offsets, &delays.kept);
        cx.effects.files.push((file::FILE, contents.into()));
    }
}

/// Where a message waits.
#[derive(Clone, Copy, Debug)]
pub struct Parked {
    pub queue: QueueIndex,
    topic: &'static str,
    queue_id: u32,
    /// When it is due, in wall clock milliseconds.
    due_ms: u64,
}

impl Parked {
    /// The message as it waits; its properties say where it goes.
    pub fn message<'a>(&self, message: NewMessage<'a>) -> NewMessage<'a> {
        NewMessage {
            topic: self.topic,
            queue_id: self.queue_id,
            tags_code: self.due_ms as i64,
            ..message
        }
    }
}

/// Where a message waits that is not to be delivered now; its properties are told where it goes in the end.
pub fn park(
    when: When,
    topic: &str,
    queue_id: u32,
    properties: &mut String,
    broker: &mut Broker,
    cx: &mut Context<'_>,
) -> Option<Parked> {
    if when == When::Now {
        return None;
    }
    properties::append(properties, name::REAL_TOPIC, topic);
    let mut number = itoa::Buffer::new();
    properties::append(properties, name::REAL_QUEUE_ID, number.format(queue_id));
    let due_in = cx.store.next_store_timestamp(cx.now);
    match when {
        When::Now => None,
        When::Level(level) => {
            let queue = cx.store.open_queue(SCHEDULE_TOPIC, level - 1);
            broker.delays.levels[level as usize - 1].queue = Some(queue);
            Some(Parked {
                queue,
                topic: SCHEDULE_TOPIC,
                queue_id: level - 1,
                due_ms: due_in + broker.config.delay_levels.delay_ms(level),
            })
        }
        When::At(due_ms) => {
            properties::append(properties, name::TIMER_OUT_MS, number.format(due_ms));
            let queue = cx.store.open_queue(TIMER_TOPIC, 0);
            broker.delays.timers.queue = Some(queue);
            Some(Parked {
                queue,
                topic: TIMER_TOPIC,
                queue_id: 0,
                due_ms,
            })
        }
    }
}

/// The level that a property asks for. **Errors**: 13, it is no number.
pub fn level(broker: &Broker, text: &str) -> Result<Option<u32>, Refusal> {
    let asked = text.parse::<i64>().map_err(|_| {
        let reason = format!("property {} is no number: {text:.40}", name::DELAY);
        super::send::illegal(reason)
    })?;
    Ok(broker.config.delay_levels.level(asked))
}
