//! Delay levels: queues of `SCHEDULE_TOPIC_XXXX`, delivered in order.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../schedule/ScheduleMessageService.java`.

use super::{Delays, PERSIST_MS, RETRY_MS, RUN_BYTES_MAX, RUN_MESSAGES_MAX, RUN_READS_MAX};
use crate::broker::internal::{self, NotStored, Step};
use crate::broker::{Broker, Context};
use crate::clock::Now;
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::protocol::hash;
use crate::protocol::message::{NewMessage, Record, StoredMessage};
use crate::protocol::names::SCHEDULE_TOPIC;
use crate::protocol::properties::{self, name};
use crate::storage::{Entry, Missing};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;

/// Taken out of a message that is delivered.
pub const DELAY_PROPERTIES: [&str; 5] = [
    name::DELAY,
    name::TIMER_DELIVER_MS,
    name::TIMER_DELAY_SECONDS,
    name::TIMER_DELAY_MS,
    name::TIMER_OUT_MS,
];

/// Runs that are remembered until they are flushed; beyond it, the newest counts together with the one before it.
const UNSETTLED_MAX: usize = 1024;

/// Where the delivery of one level stands.
#[derive(Debug)]
pub struct Level {
    pub queue: Option<QueueIndex>,
    /// The next to be delivered.
    next: QueueOffset,
    /// All before it is delivered and flushed: what the file says.
    settled: QueueOffset,
    /// Delivered, but not flushed when last looked at: the offset behind, and the end of the copies.
    unsettled: VecDeque<(QueueOffset, PhysicalOffset)>,
    pub due_us: Option<u64>,
    is_reading: bool,
}

impl Level {
    pub fn new(next: Option<QueueOffset>) -> Self {
        let next = next.unwrap_or_default();
        Self {
            queue: None,
            next,
            settled: next,
            unsettled: VecDeque::new(),
            due_us: None,
            is_reading: false,
        }
    }

    /// Waits for nothing but an arrival.
    pub fn is_idle(&self) -> bool {
        self.due_us.is_none() && !self.is_reading
    }

    pub fn settled(&self) -> QueueOffset {
        self.settled
    }

    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Moves on by what is flushed; whether that was anything.
    pub fn settle(&mut self, flushed: PhysicalOffset) -> bool {
        let before = self.settled;
        while let Some((next, _)) = self.unsettled.front().filter(|(_, end)| *end <= flushed) {
            self.settled = *next;
            self.unsettled.pop_front();
        }
        self.settled != before
    }

    /// Copies up to `end` deliver all before `next`.
    fn delivered(&mut self, end: PhysicalOffset) {
        if self.unsettled.len() >= UNSETTLED_MAX {
            self.unsettled.pop_back();
        }
        self.unsettled.push_back((self.next, end));
    }
}

/// A read failed: the level is tried again.
pub fn level_failed(broker: &mut Broker, level: u32, now: Now) {
    let level = &mut broker.delays.levels[level as usize - 1];
    level.is_reading = false;
    level.due_us = Some(now.after_ms(RETRY_MS));
}

/// Delivers what is due of a level.
pub fn run_level(broker: &mut Broker, number: u32, cx: &mut Context<'_>) -> Step {
    if broker.delays.is_stopping {
        return Step::Done;
    }
    let Some(queue) = cx.store.queue(SCHEDULE_TOPIC, number - 1) else {
        return Step::Done;
    };
    let bounds = cx.store.bounds(queue);
    let level = &mut broker.delays.levels[number as usize - 1];
    level.queue = Some(queue);
    level.due_us = None;
    level.is_reading = false;
    if level.next < bounds.min || level.next > bounds.max {
        tracing::warn!(
            level = number,
            next = level.next.0,
            min = bounds.min.0,
            max = bounds.max.0,
            "the delay level goes on at the nearest message that is there"
        );
        level.next = level.next.clamp(bounds.min, bounds.max);
    }
    let mut run = Run {
        number,
        queue,
        end: None,
        messages: 0,
        bytes: 0,
    };
    let stop = run.deliver(broker, bounds.max, cx);
    let level = &mut broker.delays.levels[number as usize - 1];
    if let Some(end) = run.end {
        level.delivered(end);
        let persist_us = cx.now.after_ms(PERSIST_MS);
        broker.delays.persist_us.get_or_insert(persist_us);
    }
    let level = &mut broker.delays.levels[number as usize - 1];
    match stop {
        Stop::Empty => {}
        Stop::DueAt(due_us) => level.due_us = Some(due_us),
        // What was read is used up; the rest is asked for anew.
        Stop::Missing(_) if run.messages > 0 => level.due_us = Some(cx.now.monotonic_us),
        Stop::Missing(missing) => {
            level.is_reading = true;
            return Step::Missing(missing);
        }
    }
    Step::Done
}

/// One run of a level.
struct Run {
    number: u32,
    queue: QueueIndex,
    /// End of the last copy.
    end: Option<PhysicalOffset>,
    messages: usize,
    bytes: usize,
}

/// Why a run ends.
enum Stop {
    Empty,
    DueAt(u64),
    Missing(SmallVec<[Missing; 4]>),
}

impl Run {
    fn deliver(&mut self, broker: &mut Broker, max: QueueOffset, cx: &mut Context<'_>) -> Stop {
        let place = self.number as usize - 1;
        loop {
            let next = broker.delays.levels[place].next;
            if next >= max {
                return Stop::Empty;
            }
            if self.messages >= RUN_MESSAGES_MAX || self.bytes >= RUN_BYTES_MAX {
                return Stop::DueAt(cx.now.monotonic_us);
            }
            let entry = match cx.store.entry(self.queue, next, cx.fetched) {
                Ok(entry) => entry,
                Err(missing) => return Stop::Missing(smallvec![missing]),
            };
            let is_gone = entry.is_blank() || entry.at < cx.store.log_bounds().0;
            if !is_gone {
                let due_ms = self.due_ms(broker, &entry, cx.now);
                if due_ms > cx.now.wall_ms {
                    return Stop::DueAt(Delays::deadline(due_ms, cx.now));
                }
                let Ok(record) = cx.store.record(entry.at, entry.bytes, cx.fetched) else {
                    return Stop::Missing(self.records(broker, next, max, cx));
                };
                if let Err(stop) = self.copy(broker, &record, cx) {
                    return stop;
                }
            }
            broker.delays.levels[place].next = QueueOffset(next.0 + 1);
            self.messages += 1;
        }
    }

    /// When an entry is due. One that is due later than its level allows was stored before the clock went back.
    fn due_ms(&self, broker: &Broker, entry: &Entry, now: Now) -> u64 {
        let latest = now.wall_ms + broker.config.delay_levels.delay_ms(self.number);
        match u64::try_from(entry.tags_code) {
            Ok(due_ms) if due_ms <= latest => due_ms,
            _ => now.wall_ms,
        }
    }

    /// The records of the next entries that are due, as far as their entries are known.
    fn records(
        &self,
        broker: &Broker,
        from: QueueOffset,
        max: QueueOffset,
        cx: &Context<'_>,
    ) -> SmallVec<[Missing; 4]> {
        let mut missing = SmallVec::new();
        let mut bytes = 0;
        for offset in from.0..max.0 {
            let Ok(entry) = cx.store.entry(self.queue, QueueOffset(offset), cx.fetched) else {
                break;
            };
            let is_due = self.due_ms(broker, &entry, cx.now) <= cx.now.wall_ms;
            let is_full = missing.len() >= RUN_READS_MAX || bytes >= RUN_BYTES_MAX;
            if entry.is_blank() || !is_due || is_full {
                break;
            }
            if let Err(record) = cx.store.record(entry.at, entry.bytes, cx.fetched) {
                missing.push(record);
                bytes += entry.bytes as usize;
            }
        }
        missing
    }

    /// Stores the message anew where it belongs. What can't be delivered at all is left out, with a warning.
    fn copy(
        &mut self,
        broker: &mut Broker,
        record: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), Stop> {
        let Ok(Record::Message(stored)) = StoredMessage::decode(record) else {
            tracing::error!(
                level = self.number,
                "a delayed message can't be read, it is left out"
            );
            return Ok(());
        };
        match deliver_copy(broker, &stored, cx) {
            Ok(end) => {
                self.end = end.or(self.end);
                self.bytes += record.len();
                Ok(())
            }
            Err(error) => {
                tracing::debug!(level = self.number, %error, "a delayed message waits for the store");
                Err(Stop::DueAt(cx.now.after_ms(RETRY_MS)))
            }
        }
    }
}

/// Appends a parked message to its real topic. `None`: its topic is gone. **Errors**: the store takes nothing now.
pub fn deliver_copy(
    broker: &mut Broker,
    stored: &StoredMessage<'_>,
    cx: &mut Context<'_>,
) -> Result<Option<PhysicalOffset>, NotStored> {
    let encoded = stored.properties;
    let topic = properties::get(encoded, name::REAL_TOPIC);
    let queue_id = properties::get(encoded, name::REAL_QUEUE_ID);
    let (Some(topic), Some(queue_id)) = (topic, queue_id.and_then(|id| id.parse().ok())) else {
        tracing::error!(
            at = stored.physical_offset.0,
            "a parked message does not say where it goes, it is left out"
        );
        return Ok(None);
    };
    let mut kept = std::mem::take(&mut broker.delays.properties);
    kept.clear();
    properties::copy_without(encoded, &DELAY_PROPERTIES, &mut kept);
    let message = NewMessage {
        topic,
        queue_id,
        properties: &kept,
        tags_code: hash::tags_code(stored.tag()),
        ..internal::copy_of(stored, &broker.config)
    };
    let appended = internal::append(broker, &message, cx);
    broker.delays.properties = kept;
    match appended {
        Ok(appended) => Ok(Some(appended.end)),
        Err(error @ NotStored::Store(_)) => Err(error),
        Err(error @ (NotStored::NoTopic | NotStored::NoQueue)) => {
            tracing::warn!(topic, %error, "a delayed message is left out");
            Ok(None)
        }
    }
}
