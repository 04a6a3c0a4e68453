//! Which entry a record of the log has: the rules of dispatch, for recovery.
//!
//! Source: apache/rocketmq 5.3.3 `DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue`,
//! `CommitLog.checkMessageAndReturnSize`.

use super::queue_recovery::{RecoveringQueue, Taken};
use super::queue_table::QUEUE_ID_MAX;
use super::recovery::{QueueName, Queues};
use super::tombstones::Tombstones;
use super::{Entry, OpenError, StoreConfig};
use crate::io::FileSystem;
use crate::limits::SYSTEM_TOPIC_BYTES_MAX;
use crate::protocol::delay::DelayLevels;
use crate::protocol::message::{StoredMessage, sys_flag};
use crate::protocol::names::{SCHEDULE_TOPIC, TIMER_TOPIC};
use crate::protocol::{hash, properties};

/// Where entries of scanned records go.
pub struct Target<'a> {
    pub config: &'a StoreConfig,
    pub tombstones: &'a Tombstones,
    pub queues: &'a mut Queues,
    /// Set to the queue of the record; its memory is used again.
    pub name: &'a mut QueueName,
    /// Queues that aren't there yet are made.
    pub adds: bool,
}

impl Target<'_> {
    /// Takes the entry of a record. `None` if it has none, or its queue isn't wanted.
    pub fn take<F: FileSystem>(
        self,
        message: &StoredMessage<'_>,
        whole_log: bool,
        io: &mut F,
    ) -> Result<Option<Taken>, OpenError> {
        let at = message.physical_offset;
        if !has_entry(message) || self.tombstones.covers(message.topic, at) {
            return Ok(None);
        }
        let queue_id = message.queue_id as u32;
        self.name.0.clear();
        self.name.0.push_str(message.topic);
        self.name.1 = queue_id;
        if self.adds && !self.queues.contains_key(self.name) {
            let root = &self.config.consume_queue;
            let file_bytes = self.config.queue_file_bytes;
            let queue = RecoveringQueue::new(root, message.topic, queue_id, file_bytes);
            self.queues.insert(self.name.clone(), queue);
        }
        let Some(queue) = self.queues.get_mut(self.name) else {
            return Ok(None);
        };
        let entry = Entry {
            at,
            bytes: message.bytes.len() as u32,
            tags_code: tags_code(message, &self.config.delay_levels),
        };
        let taken = queue.take(message.queue_offset, entry, whole_log, io)?;
        Ok(Some(taken))
    }
}

/// Apache's rule of dispatch: prepared and rolled-back messages have no entry. Inner batches are entries of another
/// kind of queue. A topic becomes a directory, so that a name which could lead elsewhere has none either.
fn has_entry(message: &StoredMessage<'_>) -> bool {
    let kind = message.sys_flag & sys_flag::TRANSACTION_MASK;
    let is_dispatched = kind == 0 || kind == sys_flag::TRANSACTION_COMMIT;
    let is_plain = message.sys_flag & sys_flag::INNER_BATCH == 0;
    let topic = message.topic;
    let is_name = !topic.is_empty()
        && topic.len() <= SYSTEM_TOPIC_BYTES_MAX
        && !topic.contains(['/', '\0'])
        && topic != "."
        && topic != "..";
    let is_queue = u32::try_from(message.queue_id).is_ok_and(|id| id < QUEUE_ID_MAX);
    is_dispatched && is_plain && is_name && is_queue
}

/// Tags code of a record's entry; in the schedule topic, when the message is due.
fn tags_code(message: &StoredMessage<'_>, levels: &DelayLevels) -> i64 {
    if message.topic == SCHEDULE_TOPIC
        && let Some(level) = properties::get(message.properties, properties::name::DELAY)
        && let Some(level) = level.parse().ok().and_then(|asked| levels.level(asked))
    {
        return (message.store_timestamp + levels.delay_ms(level)) as i64;
    }
    // When it is due, too; Apache has the tag's hash there and does not read it.
    if message.topic == TIMER_TOPIC
        && let Some(due_ms) = properties::get(message.properties, properties::name::TIMER_OUT_MS)
        && let Ok(due_ms) = due_ms.parse()
    {
        return due_ms;
    }
    hash::tags_code(message.tag())
}
