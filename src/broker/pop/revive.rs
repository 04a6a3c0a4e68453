//! What was popped and not acknowledged in time is delivered again, as a copy in the group's retry topic; after the
//! last try it is a dead letter. Messages that are popped in order are given back to their queue instead.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/PopReviveService.java`, which knows no last try.

use super::windows::{Key, Windows};
use super::{commit, receipts, retry_topic};
use crate::broker::internal::{self, Step, Task};
use crate::broker::{Broker, Context};
use crate::clock::Now;
use crate::ids::QueueOffset;
use crate::protocol::hash;
use crate::protocol::message::{NewMessage, Record, StoredMessage};
use crate::protocol::names::DLQ_PREFIX;
use crate::protocol::properties::{self, name};
use crate::storage::Missing;
use smallvec::smallvec;

/// Messages that one run delivers before it gives way.
const RUN_MESSAGES_MAX: usize = 256;
/// Pause after a failure: the store is busy, or a read failed.
const RETRY_MS: u64 = 100;
/// Pause between a copy and the look whether it is flushed.
const SETTLE_MS: u64 = 200;

#[derive(Debug, Default)]
pub struct Revive {
    is_reading: bool,
    is_stopping: bool,
    /// Nothing is delivered before, after a failure.
    paused_until_us: u64,
    settle_us: Option<u64>,
}

impl Revive {
    pub fn next_deadline(&self, windows: &Windows) -> Option<u64> {
        if self.is_stopping {
            return None;
        }
        let due = windows.next_end().filter(|_| !self.is_reading);
        let due = due.map(|at| at.max(self.paused_until_us));
        [due, self.settle_us].into_iter().flatten().min()
    }
}

pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    let state = &broker.pops.revive;
    let now_us = cx.now.monotonic_us;
    let is_due = broker.pops.windows.first_due(cx.now).is_some();
    let may_run = !state.is_reading && !state.is_stopping && state.paused_until_us <= now_us;
    if state.settle_us.is_some_and(|at| at <= now_us) {
        settle(broker, cx);
    }
    if is_due && may_run {
        internal::run(broker, Task::PopRevive, cx);
    }
}

/// Copies that are flushed let the committed offsets move on.
fn settle(broker: &mut Broker, cx: &mut Context<'_>) {
    for key in broker.pops.windows.settle(cx.store.flushed()) {
        commit(broker, key, cx);
        receipts::wake_window(broker, key, cx);
    }
    let waits = !broker.pops.windows.is_settled();
    broker.pops.revive.settle_us = waits.then(|| cx.now.after_ms(SETTLE_MS));
}

pub fn begin_stop(broker: &mut Broker, cx: &mut Context<'_>) {
    broker.pops.revive.is_stopping = true;
    settle(broker, cx);
}

pub fn failed(broker: &mut Broker, now: Now) {
    broker.pops.revive.is_reading = false;
    broker.pops.revive.paused_until_us = now.after_ms(RETRY_MS);
}

/// Why a run stops before all is delivered.
enum Stop {
    Missing(Missing),
    Failed,
}

pub fn run(broker: &mut Broker, cx: &mut Context<'_>) -> Step {
    broker.pops.revive.is_reading = false;
    if broker.pops.revive.is_stopping {
        return Step::Done;
    }
    for delivered in 0..RUN_MESSAGES_MAX {
        let Some((key, offset)) = broker.pops.windows.first_due(cx.now) else {
            return Step::Done;
        };
        if broker.pops.windows.is_ordered(key, offset) {
            broker.pops.windows.give_back(key);
            receipts::wake_window(broker, key, cx);
            continue;
        }
        match deliver(broker, key, offset, cx) {
            Ok(()) => {}
            // What was read is used up; the rest is asked for anew.
            Err(Stop::Missing(_)) if delivered > 0 => return Step::Done,
            Err(Stop::Missing(missing)) => {
                broker.pops.revive.is_reading = true;
                return Step::Missing(smallvec![missing]);
            }
            Err(Stop::Failed) => {
                failed(broker, cx.now);
                return Step::Done;
            }
        }
    }
    Step::Done
}

/// Stores a message anew, or forgets it where it is gone.
fn deliver(broker: &mut Broker, key: Key, offset: u64, cx: &mut Context<'_>) -> Result<(), Stop> {
    let window = broker.pops.windows.get(key);
    let (group, topic, queue_id) = (window.group.clone(), window.topic.clone(), window.queue_id);
    let queue = cx.store.queue(&topic, queue_id);
    let bounds = queue.map(|queue| (queue, cx.store.bounds(queue)));
    let is_there = |(_, bounds): &(_, crate::storage::QueueBounds)| {
        (bounds.min.0..bounds.max.0).contains(&offset)
    };
    let Some((queue, _)) = bounds.filter(is_there) else {
        return gone(broker, key, offset, cx);
    };
    let entry = cx.store.entry(queue, QueueOffset(offset), cx.fetched);
    let entry = entry.map_err(Stop::Missing)?;
    if entry.is_blank() || entry.at < cx.store.log_bounds().0 {
        return gone(broker, key, offset, cx);
    }
    let record = cx.store.record(entry.at, entry.bytes, cx.fetched);
    let record = record.map_err(Stop::Missing)?;
    let Ok(Record::Message(stored)) = StoredMessage::decode(&record) else {
        tracing::error!(
            group = &*group,
            topic = &*topic,
            queue_id,
            offset,
            "a popped message can't be read, it is left out"
        );
        return gone(broker, key, offset, cx);
    };
    let popped_ms = broker.pops.windows.popped_ms(key, offset);
    let popped_ms = popped_ms.unwrap_or(cx.now.wall_ms);
    let end = copy(broker, &group, &stored, popped_ms, cx)?;
    broker.pops.windows.copied(key, offset, end);
    cx.counters.pops_revived += 1;
    let settle_us = cx.now.after_ms(SETTLE_MS);
    broker.pops.revive.settle_us.get_or_insert(settle_us);
    Ok(())
}

fn gone(broker: &mut Broker, key: Key, offset: u64, cx: &mut Context<'_>) -> Result<(), Stop> {
    broker.pops.windows.gone(key, offset);
    commit(broker, key, cx);
    Ok(())
}

/// Appends the copy; its end in the log.
fn copy(
    broker: &mut Broker,
    group: &str,
    stored: &StoredMessage<'_>,
    popped_ms: u64,
    cx: &mut Context<'_>,
) -> Result<crate::ids::PhysicalOffset, Stop> {
    let known = broker.groups.get(group);
    let max = known.map_or(i32::MAX, |group| group.retry_max_times);
    let is_dead = stored.reconsume_times >= max;
    let topic = if is_dead {
        format!("{DLQ_PREFIX}{group}")
    } else {
        retry_topic(group, stored.topic).unwrap_or_else(|| stored.topic.to_owned())
    };
    let mut kept = stored.properties.to_owned();
    if properties::get(stored.properties, name::FIRST_POP_TIME).is_none() {
        properties::append(&mut kept, name::FIRST_POP_TIME, &popped_ms.to_string());
        if kept.len() > crate::limits::PROPERTIES_BYTES_MAX {
            properties::remove(&mut kept, name::FIRST_POP_TIME);
        }
    }
    let message = NewMessage {
        topic: &topic,
        properties: &kept,
        tags_code: hash::tags_code(stored.tag()),
        reconsume_times: stored.reconsume_times.saturating_add(1),
        ..internal::copy_of(stored, &broker.config)
    };
    match internal::append(broker, &message, cx) {
        Ok(appended) => {
            if is_dead {
                cx.counters.count_dead_letter(group);
            }
            Ok(appended.end)
        }
        Err(error) => {
            tracing::debug!(group, topic, %error, "a popped message waits for the store");
            Err(Stop::Failed)
        }
    }
}
