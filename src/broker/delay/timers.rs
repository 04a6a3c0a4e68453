//! Timer messages: delivered at any time, from the queue of `rmq_sys_wheel_timer`.
//!
//! Their entries say when they are due, so that the consume queue itself is the spilled form: in memory are the
//! earliest of them, up to a bound, and the place (time, then offset) behind the last of these, the horizon. When few
//! are left, the queue is scanned for those at the horizon and behind.
//!
//! **Invariants**: every pending message before the horizon is in memory, but for what a scan has not come to; what
//! the file says (`below`, `tail`) is delivered and flushed.

use super::levels::deliver_copy;
use super::{Delays, PERSIST_MS, RETRY_MS, RUN_BYTES_MAX, RUN_MESSAGES_MAX, RUN_READS_MAX};
use crate::broker::internal::Step;
use crate::broker::{Broker, Context};
use crate::clock::Now;
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::limits::{PULL_ENTRIES_EXAMINED_MAX, TIMERS_IN_MEMORY_MAX};
use crate::protocol::bodies;
use crate::protocol::message::{Record, StoredMessage};
use crate::protocol::names::TIMER_TOPIC;
use crate::storage::{Entry, Missing};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Path below the store's root.
pub const FILE: &str = "config/ringmqTimers.json";
/// Entries that one run of a scan examines.
const SCAN_ENTRIES_MAX: usize = 8 * PULL_ENTRIES_EXAMINED_MAX as usize;
/// Times are far above the hashes that Apache writes into these entries.
const DUE_MS_MIN: i64 = 1 << 33;

/// Where a message stands in the order of delivery: when it is due, then its offset.
type Place = (u64, u64);

const END: Place = (u64::MAX, u64::MAX);

/// A pending message in memory; ordered by its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Timer {
    place: Place,
    at: PhysicalOffset,
    bytes: u32,
}

/// What the file says: of the offsets before `tail`, all before the place `below` are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct State {
    below_ms: u64,
    below_offset: u64,
    tail: u64,
    /// No offset before it is pending.
    low: u64,
}

/// A pass over the queue for what is at a place and behind.
#[derive(Debug)]
struct Scan {
    next: u64,
    end: u64,
    from: Place,
    /// First offset that was found pending.
    low: Option<u64>,
}

#[derive(Debug)]
pub struct Timers {
    pub queue: Option<QueueIndex>,
    heap: BinaryHeap<Reverse<Timer>>,
    /// Due and taken from the heap, in order.
    batch: Vec<Timer>,
    horizon: Place,
    /// Offsets from here on have not been looked at.
    tail: u64,
    low: u64,
    /// The low end that holds once nothing before the place is pending.
    next_low: Option<(Place, u64)>,
    scan: Option<Scan>,
    /// End of the newest copy.
    copied: PhysicalOffset,
    /// What the file may say once the log is flushed up to the offset.
    snapshot: Option<(State, PhysicalOffset)>,
    written: State,
    pub due_us: Option<u64>,
    pub persist_us: Option<u64>,
    is_reading: bool,
}

impl Timers {
    /// **Errors**: the file is no JSON of its form.
    pub fn load(bytes: Option<&[u8]>) -> Result<Self, String> {
        let state: State = match bytes {
            Some(bytes) => bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?,
            None => State::default(),
        };
        Ok(Self {
            queue: None,
            heap: BinaryHeap::new(),
            batch: Vec::new(),
            horizon: END,
            tail: state.tail,
            low: state.low,
            next_low: None,
            scan: Some(Scan {
                next: state.low,
                end: state.tail,
                from: (state.below_ms, state.below_offset),
                low: None,
            }),
            copied: PhysicalOffset(0),
            snapshot: None,
            written: state,
            due_us: None,
            persist_us: None,
            is_reading: false,
        })
    }

    /// Pending messages in memory.
    pub fn in_memory(&self) -> usize {
        self.heap.len() + self.batch.len()
    }

    pub fn is_reading(&self) -> bool {
        self.is_reading
    }

    fn first(&self) -> Option<Timer> {
        let first = self.batch.first().copied();
        first.or_else(|| self.heap.peek().map(|timer| timer.0))
    }

    /// Takes an entry into memory if it belongs there.
    fn take(&mut self, offset: u64, entry: &Entry) {
        if entry.is_blank() || entry.tags_code < DUE_MS_MIN {
            return;
        }
        let timer = Timer {
            place: (entry.tags_code as u64, offset),
            at: entry.at,
            bytes: entry.bytes,
        };
        if timer.place < self.horizon {
            self.heap.push(Reverse(timer));
        }
        if self.heap.len() > TIMERS_IN_MEMORY_MAX {
            self.cut();
        }
    }

    /// Forgets the later half; the queue has it.
    fn cut(&mut self) {
        let mut timers = std::mem::take(&mut self.heap).into_vec();
        timers.sort_unstable_by_key(|timer| timer.0);
        let kept = timers.len() / 2;
        self.horizon = timers[kept].0.place;
        timers.truncate(kept);
        self.heap = timers.into();
    }

    fn wants_scan(&self) -> bool {
        self.scan.is_none() && self.horizon != END && self.in_memory() < TIMERS_IN_MEMORY_MAX / 4
    }

    fn begin_scan(&mut self) {
        self.scan = Some(Scan {
            next: self.low,
            end: self.tail,
            from: std::mem::replace(&mut self.horizon, END),
            low: None,
        });
    }

    fn state(&mut self) -> State {
        let first = self.first().map_or(END, |timer| timer.place);
        let scan_from = self.scan.as_ref().map_or(END, |scan| scan.from);
        let below = first.min(self.horizon).min(scan_from);
        if let Some((from, low)) = self.next_low.filter(|(from, _)| below >= *from) {
            self.low = low;
            self.next_low = None;
            debug_assert!(from <= below);
        }
        if below == END {
            self.low = self.tail;
        }
        State {
            below_ms: below.0,
            below_offset: below.1,
            tail: self.tail,
            low: self.low,
        }
    }

    /// What the file is to say now, if that has changed.
    pub fn persist(&mut self, now: Now, flushed: PhysicalOffset) -> Option<Vec<u8>> {
        self.persist_us = None;
        let settled = self.snapshot.filter(|(_, end)| *end <= flushed);
        if settled.is_some() || self.snapshot.is_none() {
            let state = self.state();
            self.snapshot = Some((state, self.copied));
        }
        let newest = self.snapshot.filter(|(_, end)| *end <= flushed).or(settled);
        if self.snapshot.is_some_and(|(_, end)| end > flushed) {
            self.persist_us = Some(now.after_ms(PERSIST_MS));
        } else {
            self.snapshot = None;
        }
        let (state, _) = newest.filter(|(state, _)| *state != self.written)?;
        self.written = state;
        Some(bodies::encode(&state))
    }
}

/// A read failed: tried again.
pub fn timers_failed(broker: &mut Broker, now: Now) {
    broker.delays.timers.is_reading = false;
    broker.delays.timers.due_us = Some(now.after_ms(RETRY_MS));
}

/// Looks at new entries, goes on with a scan, delivers what is due.
pub fn run_timers(broker: &mut Broker, cx: &mut Context<'_>) -> Step {
    if broker.delays.is_stopping {
        return Step::Done;
    }
    let Some(queue) = cx.store.queue(TIMER_TOPIC, 0) else {
        broker.delays.timers.due_us = None;
        return Step::Done;
    };
    let timers = &mut broker.delays.timers;
    timers.queue = Some(queue);
    timers.due_us = None;
    timers.is_reading = false;
    let mut missing = SmallVec::new();
    let has_examined = examine(timers, queue, cx, &mut missing);
    let delivered = deliver(broker, cx, &mut missing);
    let timers = &mut broker.delays.timers;
    if has_examined || delivered > 0 {
        timers.persist_us.get_or_insert(cx.now.after_ms(PERSIST_MS));
    }
    if timers.wants_scan() {
        timers.begin_scan();
        timers.due_us = Some(cx.now.monotonic_us);
    }
    if missing.is_empty() {
        return Step::Done;
    }
    if has_examined || delivered > 0 {
        timers.due_us = Some(cx.now.monotonic_us);
        return Step::Done;
    }
    timers.is_reading = true;
    Step::Missing(missing)
}

/// Entries of the scan and new ones, as far as they are in memory. Whether there were any.
fn examine(
    timers: &mut Timers,
    queue: QueueIndex,
    cx: &Context<'_>,
    missing: &mut SmallVec<[Missing; 4]>,
) -> bool {
    let bounds = cx.store.bounds(queue);
    let mut left = SCAN_ENTRIES_MAX;
    if let Some(mut scan) = timers.scan.take() {
        scan.next = scan.next.max(bounds.min.0);
        scan.end = scan.end.min(bounds.max.0);
        while scan.next < scan.end && left > 0 {
            match cx.store.entry(queue, QueueOffset(scan.next), cx.fetched) {
                Ok(entry) if (entry.tags_code.max(0) as u64, scan.next) >= scan.from => {
                    scan.low.get_or_insert(scan.next);
                    timers.take(scan.next, &entry);
                }
                Ok(_) => {}
                Err(_) => {
                    *missing = entries(queue, scan.next, scan.end);
                    break;
                }
            }
            scan.next += 1;
            left -= 1;
        }
        if scan.next >= scan.end {
            timers.next_low = Some((scan.from, scan.low.unwrap_or(scan.end)));
        } else {
            timers.scan = Some(scan);
        }
    }
    timers.tail = timers.tail.clamp(bounds.min.0, bounds.max.0);
    while timers.tail < bounds.max.0 && left > 0 {
        let Ok(entry) = cx.store.entry(queue, QueueOffset(timers.tail), cx.fetched) else {
            if missing.is_empty() {
                *missing = entries(queue, timers.tail, bounds.max.0);
            }
            break;
        };
        timers.take(timers.tail, &entry);
        timers.tail += 1;
        left -= 1;
    }
    if left == 0 {
        timers.due_us = Some(cx.now.monotonic_us);
    }
    left < SCAN_ENTRIES_MAX
}

fn entries(queue: QueueIndex, from: u64, end: u64) -> SmallVec<[Missing; 4]> {
    let step = u64::from(PULL_ENTRIES_EXAMINED_MAX);
    let starts = (from..end).step_by(step as usize);
    let part = |from| Missing::Entries {
        queue,
        from: QueueOffset(from),
        count: step.min(end - from) as u32,
    };
    starts
        .take(SCAN_ENTRIES_MAX / step as usize)
        .map(part)
        .collect()
}

/// Delivers what is due, in order; how many.
fn deliver(
    broker: &mut Broker,
    cx: &mut Context<'_>,
    missing: &mut SmallVec<[Missing; 4]>,
) -> usize {
    let (mut delivered, mut bytes) = (0, 0);
    loop {
        let timers = &mut broker.delays.timers;
        fill_batch(timers, cx.now);
        let Some(timer) = timers.batch.first().copied() else {
            if let Some(next) = timers.first() {
                let due_us = Delays::deadline(next.place.0, cx.now);
                timers.due_us = Some(timers.due_us.map_or(due_us, |at| at.min(due_us)));
            }
            return delivered;
        };
        if delivered >= RUN_MESSAGES_MAX || bytes >= RUN_BYTES_MAX {
            timers.due_us = Some(cx.now.monotonic_us);
            return delivered;
        }
        if timer.at >= cx.store.log_bounds().0 {
            let Ok(record) = cx.store.record(timer.at, timer.bytes, cx.fetched) else {
                missing.extend(records(timers, cx));
                return delivered;
            };
            if let Err(()) = copy(broker, &record, cx) {
                return delivered;
            }
            bytes += record.len();
        } else {
            tracing::warn!(at = %timer.at, due_ms = timer.place.0,
                "a timer message is lost: its segment was deleted before it was due (fileReservedTime)");
        }
        broker.delays.timers.batch.remove(0);
        delivered += 1;
    }
}

/// Moves the next ones that are due out of the heap. One that came late goes behind those already taken.
fn fill_batch(timers: &mut Timers, now: Now) {
    while timers.batch.len() < RUN_READS_MAX
        && let Some(next) = timers.heap.peek()
        && next.0.place.0 <= now.wall_ms
    {
        timers.batch.extend(timers.heap.pop().map(|timer| timer.0));
    }
}

fn records(timers: &Timers, cx: &Context<'_>) -> SmallVec<[Missing; 4]> {
    let start = cx.store.log_bounds().0;
    let there = timers.batch.iter().filter(|timer| timer.at >= start);
    there
        .filter_map(|timer| cx.store.record(timer.at, timer.bytes, cx.fetched).err())
        .collect()
}

/// Stores one message where it belongs. **Errors**: the store takes nothing now.
fn copy(broker: &mut Broker, record: &[u8], cx: &mut Context<'_>) -> Result<(), ()> {
    let Ok(Record::Message(stored)) = StoredMessage::decode(record) else {
        tracing::error!("a timer message can't be read, it is left out");
        return Ok(());
    };
    match deliver_copy(broker, &stored, cx) {
        Ok(end) => {
            let copied = &mut broker.delays.timers.copied;
            *copied = end.unwrap_or(*copied).max(*copied);
            Ok(())
        }
        Err(error) => {
            tracing::debug!(%error, "a timer message waits for the store");
            broker.delays.timers.due_us = Some(cx.now.after_ms(RETRY_MS));
            Err(())
        }
    }
}
