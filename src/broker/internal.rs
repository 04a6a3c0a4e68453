//! What a shard stores on its own account: delayed messages that are due, retries, dead letters; half messages and
//! their decisions.
//!
//! One direction, the same for all: something is due or asked for → a [`Task`] runs, as a handler does, with what is
//! in memory → what is missing is read and the task runs again with it → [`append`] puts the message into the open
//! batch of the turn → the write completes → dispatch → holds wake. Nobody is answered: a task that has to know that
//! its messages count compares their end with [`Store::flushed`](crate::storage::Store::flushed).
//!
//! A task that has made progress ends and is due again at once, so that it gives way to requests after each turn's
//! share; one without progress asks for its reads and keeps what it has read.

use super::{Broker, BrokerConfig, Context, delay, pop, transactions};
use crate::limits::TOPIC_QUEUES_MAX;
use crate::protocol::message::{NewMessage, StoredMessage};
use crate::protocol::names::{self, DLQ_PREFIX, RETRY_PREFIX};
use crate::storage::{AppendError, Appended, Missing};
use smallvec::SmallVec;

/// Something that the broker does by itself. Its state is in the broker; this only names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Deliver what is due of a delay level (from 1).
    DelayLevel(u32),
    /// Look at new timer messages, deliver those that are due.
    Timers,
    /// Learn of half messages and decisions, ask the producers of those that are due.
    Transactions,
    /// Deliver again what was popped and not acknowledged in time.
    PopRevive,
}

/// How a run of a task ended.
#[derive(PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing to do for now; the task has said when it is due again.
    Done,
    /// Runs again with these.
    Missing(SmallVec<[Missing; 4]>),
}

/// Runs a task with what is in memory and in `cx.fetched`; reads that it needs go into the effects.
///
/// At most one read of a task is under way: whoever starts tasks asks the task's state first.
pub fn run(broker: &mut Broker, task: Task, cx: &mut Context<'_>) {
    let step = match task {
        Task::DelayLevel(level) => delay::run_level(broker, level, cx),
        Task::Timers => delay::run_timers(broker, cx),
        Task::Transactions => transactions::run(broker, cx),
        Task::PopRevive => pop::run_revive(broker, cx),
    };
    if let Step::Missing(missing) = step {
        cx.effects.task_reads.push((task, missing));
    }
}

/// The read of a task failed, or there was no room for it: the task is tried again later.
pub fn failed(broker: &mut Broker, task: Task, cx: &mut Context<'_>) {
    match task {
        Task::DelayLevel(level) => delay::level_failed(broker, level, cx.now),
        Task::Timers => delay::timers_failed(broker, cx.now),
        Task::Transactions => transactions::failed(broker, cx.now),
        Task::PopRevive => pop::revive_failed(broker, cx.now),
    }
}

/// Why a message of the broker was not stored.
#[derive(Debug, thiserror::Error)]
pub enum NotStored {
    #[error("its topic is not there any more")]
    NoTopic,
    #[error("no queue of its topic can be opened")]
    NoQueue,
    #[error("{0}")]
    Store(#[from] AppendError),
}

/// A new message with all of a stored one but its topic, queue, properties and tags code.
pub fn copy_of<'a>(stored: &StoredMessage<'a>, config: &BrokerConfig) -> NewMessage<'a> {
    NewMessage {
        topic: stored.topic,
        queue_id: 0,
        flag: stored.flag,
        sys_flag: stored.sys_flag,
        born_timestamp: stored.born_timestamp,
        born_host: stored.born_host,
        store_host: config.address,
        reconsume_times: stored.reconsume_times,
        prepared_transaction_offset: 0,
        body: stored.body,
        properties: "",
        tags_code: 0,
    }
}

/// Appends a message of the broker to the open batch. Topics of the broker's own (`SCHEDULE_TOPIC_XXXX`, the half
/// topic) have any queue that is asked for, those of groups are made where they are missing; of any other a queue
/// that is gone is replaced by one that is there.
pub fn append(
    broker: &mut Broker,
    message: &NewMessage<'_>,
    cx: &mut Context<'_>,
) -> Result<Appended, NotStored> {
    let (topic, queue_id) = (message.topic, message.queue_id);
    if names::is_system_topic(topic) && queue_id < TOPIC_QUEUES_MAX {
        let queue = cx.store.open_queue(topic, queue_id);
        return Ok(cx.store.append(queue, message, cx.now)?);
    }
    if topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX) {
        broker.topics.ensure_group_topic(topic, 1, cx);
    }
    let config = &broker.topics.get(topic).ok_or(NotStored::NoTopic)?.config;
    let queues = config.read_queue_nums.max(config.write_queue_nums);
    let queue_id = queue_id.checked_rem(queues).ok_or(NotStored::NoQueue)?;
    let queue = broker.topics.queue(topic, queue_id, cx.store);
    let queue = queue.ok_or(NotStored::NoQueue)?;
    let message = NewMessage {
        queue_id,
        ..*message
    };
    Ok(cx.store.append(queue, &message, cx.now)?)
}
