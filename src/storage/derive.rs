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
use crate::protocol::message::{StoredMessage, sys_flag};
use crate::protocol::names::SCHEDULE_TOPIC;
use crate::protocol::{hash, properties};

/// Default `messageDelayLevel`, in milliseconds, level 1 first.
const DELAY_LEVELS_MS: [u64; 18] = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000,
    480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
];

/// Where entries of scanned records go.
pub struct Target<'a> {
    pub config: &'a StoreConfig,
    pub tombstones: &'a Tombstones,
    pub queues: &'a mut Queues,
}

impl Target<'_> {
    /// Takes the entry of a record. `None` if it has none.
    pub fn take<F: FileSystem>(
        self,
        message: &StoredMessage<'_>,
        whole_log: bool,
        io: &mut F,
    ) -> Result<Option<(QueueName, Taken)>, OpenError> {
        if !has_entry(message)
            || self
                .tombstones
                .covers(message.topic, message.physical_offset)
        {
            return Ok(None);
        }
        let entry = Entry {
            at: message.physical_offset,
            bytes: message.bytes.len() as u32,
            tags_code: tags_code(message),
        };
        let key = (message.topic.to_owned(), message.queue_id as u32);
        let queue = self.queues.entry(key.clone()).or_insert_with(|| {
            let root = &self.config.consume_queue;
            RecoveringQueue::new(
                root,
                message.topic,
                message.queue_id as u32,
                self.config.queue_file_bytes,
            )
        });
        let taken = queue.take(message.queue_offset, entry, whole_log, io)?;
        Ok(Some((key, taken)))
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
fn tags_code(message: &StoredMessage<'_>) -> i64 {
    if message.topic == SCHEDULE_TOPIC
        && let Some(level) = properties::get(message.properties, properties::name::DELAY)
        && let Ok(level) = level.parse::<i64>()
        && level > 0
    {
        let index = (level as usize).min(DELAY_LEVELS_MS.len()) - 1;
        return (message.store_timestamp + DELAY_LEVELS_MS[index]) as i64;
    }
    hash::tags_code(message.tag())
}
