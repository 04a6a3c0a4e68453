//! The commit log of one shard and what is derived from it. No sockets, no request semantics.
//!
//! Handlers call [`Store::append`], [`Store::entry`] and [`Store::record`], which do no I/O. The loop calls
//! [`Store::seal`] once per turn and feeds [`Store::on_completion`]; what became visible comes out of
//! [`Store::take_arrivals`].
//!
//! **Invariants**: `flushed ≤ written ≤ appended`, `visible` is `written` (ASYNC_FLUSH) or `flushed` (SYNC_FLUSH);
//! every watermark only grows and has one writer. Nothing above `visible` has a consume queue entry.

mod checkpoint;
mod chunks;
mod commit_log;
mod consume_queue;
mod derive;
mod durable;
mod fetch;
mod flush;
mod index;
mod log_end;
mod open;
mod queue_files;
mod queue_recovery;
mod queue_table;
mod queue_writer;
mod recovery;
mod removals;
mod retention;
mod scan;
mod segment;
mod space;
mod tail_cache;
#[cfg(test)]
mod tests;
mod tokens;
mod tombstones;
mod turn;
mod upkeep;

use crate::clock::Now;
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::io::File;
use crate::limits::PULL_ENTRIES_EXAMINED_MAX;
use crate::protocol::delay::DelayLevels;
use crate::protocol::message::{NewMessage, RECORD_OVERHEAD_BYTES, sys_flag};
use bytes::Bytes;
use commit_log::CommitLog;
use consume_queue::QueueStart;
use durable::MarkFile;
use fetch::Fetches;
use index::Index;
pub use index::Sizes as IndexSizes;
use queue_files::QueueFiles;
use queue_table::{Pending, QueueTable};
use queue_writer::QueueWriter;
use removals::Removals;
use retention::Retention;
pub use retention::{Deleted, RetentionConfig, Why};
use space::DiskWatch;
use std::path::PathBuf;
use tail_cache::TailCache;
use upkeep::Upkeep;

/// When a send is acknowledged and delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushMode {
    /// When written. Flushed in the background after `interval_ms` or `bytes`, whichever is first.
    Async { interval_ms: u64, bytes: u64 },
    /// When flushed: group commit, one flush in flight.
    Sync,
}

#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// `commitlog/`, `consumequeue/`, `config/`, `checkpoint`, `abort`, `lock` lie below.
    pub root: PathBuf,
    pub commit_log: PathBuf,
    pub consume_queue: PathBuf,
    /// Bytes of a segment (`mappedFileSizeCommitLog`).
    pub segment_bytes: u64,
    /// Bytes of a consume queue file (`mappedFileSizeConsumeQueue`), a multiple of 20.
    pub queue_file_bytes: u64,
    pub flush: FlushMode,
    /// Recent log bytes kept in memory.
    pub tail_cache_bytes: u64,
    /// Consume queue entries kept in memory, over all queues, in bytes.
    pub entry_cache_bytes: u64,
    /// Fill the next segment with zeros ahead of use.
    pub zero_fill: bool,
    /// From so many percent of the log's disk in use on, sends are refused (`diskSpaceWarningLevelRatio`).
    pub disk_full_percent: u64,
    /// When entries of the schedule topic are due, for those that are derived from the log.
    pub delay_levels: DelayLevels,
    pub retention: RetentionConfig,
    pub index: IndexConfig,
}

/// Index files of message keys, in the folder `index`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexConfig {
    /// `messageIndexEnable`.
    pub is_enabled: bool,
    pub sizes: IndexSizes,
}

/// A question to the index: the places of records with a key of this hash, stored about then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyQuery {
    hash: u32,
    /// Seconds, as the index has them.
    begin: u32,
    end: u32,
    max: u32,
}

impl KeyQuery {
    /// Up to `max` places, the newest. Seconds are taken whole: who asks compares milliseconds.
    pub fn new(hash: u32, begin_ms: u64, end_ms: u64, max: u32) -> Self {
        let seconds = |ms: u64| u32::try_from(ms / 1000).unwrap_or(u32::MAX);
        Self {
            hash,
            begin: seconds(begin_ms),
            end: seconds(end_ms),
            max,
        }
    }

    fn begin_ms(&self) -> u64 {
        u64::from(self.begin) * 1000
    }

    fn end_ms(&self) -> u64 {
        u64::from(self.end) * 1000 + 999
    }
}

/// What [`Store::open`] found and did; printed in the start log.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub clean: bool,
    pub segments: usize,
    pub queues: usize,
    pub start: PhysicalOffset,
    pub end: PhysicalOffset,
    pub scanned_bytes: u64,
    pub scanned_messages: u64,
    /// Bytes cut off as the tail of a crash.
    pub cut_bytes: u64,
    pub queues_rebuilt: usize,
    /// The store was not new and has no durable mark, since Apache wrote to it last.
    pub is_unmarked: bool,
    pub milliseconds: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the store {path} is locked by another process")]
    Locked { path: PathBuf },
    #[error("{path} has {found} bytes, the configuration says {expected} ({key})")]
    FileSize {
        path: PathBuf,
        found: u64,
        expected: u64,
        key: &'static str,
    },
    #[error("{path} at offset {offset}: {reason}")]
    Corrupt {
        path: PathBuf,
        offset: u64,
        reason: String,
    },
}

/// One consume queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub at: PhysicalOffset,
    pub bytes: u32,
    pub tags_code: i64,
}

/// Where a message went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    pub queue_offset: QueueOffset,
    pub at: PhysicalOffset,
    /// First byte behind the record: acknowledged once `visible` has reached it.
    pub end: PhysicalOffset,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// Code 2.
    #[error("{unwritten} bytes wait for the disk, the limit is {max}")]
    Busy { unwritten: u64, max: u64 },
    /// Code 14; the log turned read-only after a failed write or flush.
    #[error("the commit log is read-only until restart: {0}")]
    ReadOnly(String),
    /// Code 14.
    #[error("the disk is full: {0}")]
    DiskFull(String),
    /// Code 14.
    #[error("the broker is stopping")]
    Stopping,
    /// Code 13.
    #[error("the record has {bytes} bytes, a segment takes at most {max}")]
    TooLong { bytes: u64, max: u64 },
}

/// Offsets of a queue. `max` is the next offset to become visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueBounds {
    pub min: QueueOffset,
    pub max: QueueOffset,
}

/// Bytes that a handler needs and that are not in memory. The shard reads them and runs the request again with
/// them in [`Fetched`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The record at a place, of a known size.
    Log { at: PhysicalOffset, bytes: u32 },
    /// The record at a place, whatever its size.
    Record { at: PhysicalOffset },
    Entries {
        queue: QueueIndex,
        from: QueueOffset,
        count: u32,
    },
    /// Places of a key.
    Keys(KeyQuery),
}

/// What was read from disk for one request. Empty for a first run; dropped with the request.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Records, sorted by place.
    ranges: Vec<(PhysicalOffset, Bytes)>,
    entries: Vec<(QueueIndex, QueueOffset, Vec<Entry>)>,
    keys: Vec<(KeyQuery, Vec<PhysicalOffset>)>,
}

impl Fetched {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.entries.is_empty() && self.keys.is_empty()
    }

    fn record_at(&self, at: PhysicalOffset) -> Option<Bytes> {
        let place = self.ranges.binary_search_by_key(&at, |(start, _)| *start);
        self.ranges
            .get(place.ok()?)
            .map(|(_, record)| record.clone())
    }

    fn record(&self, at: PhysicalOffset, bytes: u32) -> Option<Bytes> {
        let record = self.record_at(at)?;
        (record.len() == bytes as usize).then_some(record)
    }

    fn entry(&self, queue: QueueIndex, at: QueueOffset) -> Option<Entry> {
        self.entries.iter().find_map(|(of, from, entries)| {
            let index = at.0.checked_sub(from.0).filter(|_| *of == queue)?;
            entries.get(usize::try_from(index).ok()?).copied()
        })
    }
}

/// A queue got messages: entries `from..to` are visible now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    pub queue: QueueIndex,
    pub from: QueueOffset,
    pub to: QueueOffset,
    /// When the first of them was appended, in monotonic microseconds.
    pub appended_us: u64,
}

/// A read that the shard asked for by [`Store::fetch`] is done: run the request `key` again.
#[derive(Debug)]
pub struct FetchDone {
    pub key: u64,
    pub result: Result<Fetched, String>,
}

/// Kinds of [`crate::io::Token`] that belong to the store: completions with them go to [`Store::on_completion`].
pub const TOKEN_KINDS: std::ops::RangeInclusive<u8> = 0x40..=0x5f;

/// The commit log of a shard, its consume queues, and what belongs to them.
///
/// Handlers' functions are here; opening is in `open.rs`, what the loop calls in `turn.rs`.
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    lock: File,
    log: CommitLog,
    tail: TailCache,
    table: QueueTable,
    files: QueueFiles,
    writer: QueueWriter,
    fetches: Fetches,
    index: Index,
    removals: Removals,
    retention: Retention,
    upkeep: Upkeep,
    disk: DiskWatch,
    mark: MarkFile,
    is_closed: bool,
}

impl Store {
    // ---- for handlers: no I/O, no waiting ----

    /// The queue if it has ever been opened.
    pub fn queue(&self, topic: &str, queue_id: u32) -> Option<QueueIndex> {
        self.table.find(topic, queue_id)
    }

    /// The queue, made if missing (its file comes with its first message). The name has been checked.
    pub fn open_queue(&mut self, topic: &str, queue_id: u32) -> QueueIndex {
        if let Some(queue) = self.table.find(topic, queue_id) {
            return queue;
        }
        let queue = self.table.add(topic, queue_id, QueueStart::default());
        self.table.get_mut(queue).is_blocked = self.removals.is_pending(topic);
        queue
    }

    /// Topics and queues that exist on disk or in memory, sorted.
    pub fn queues(&self) -> Vec<(String, u32, QueueIndex)> {
        self.table.list()
    }

    /// Topic and queue id.
    pub fn name_of(&self, queue: QueueIndex) -> (&str, u32) {
        let queue = self.table.get(queue);
        (&queue.topic, queue.queue_id)
    }

    pub fn bounds(&self, queue: QueueIndex) -> QueueBounds {
        self.table.get(queue).bounds()
    }

    /// Appends to the open batch, assigning both offsets.
    pub fn append(
        &mut self,
        queue: QueueIndex,
        message: &NewMessage<'_>,
        now: Now,
    ) -> Result<Appended, AppendError> {
        let record_bytes = message.encoded_bytes() as u64;
        self.check_append(std::iter::once(record_bytes))?;
        Ok(self.append_checked(queue, message, record_bytes, now))
    }

    /// Appends all or none, consecutively; returns one `Appended` per message in `appended`.
    pub fn append_all(
        &mut self,
        queue: QueueIndex,
        messages: &[NewMessage<'_>],
        now: Now,
        appended: &mut Vec<Appended>,
    ) -> Result<(), AppendError> {
        self.check_append(
            messages
                .iter()
                .map(|message| message.encoded_bytes() as u64),
        )?;
        for message in messages {
            let record_bytes = message.encoded_bytes() as u64;
            appended.push(self.append_checked(queue, message, record_bytes, now));
        }
        Ok(())
    }

    fn check_append(&self, records: impl Iterator<Item = u64> + Clone) -> Result<(), AppendError> {
        if self.upkeep.is_stopping() {
            return Err(AppendError::Stopping);
        }
        if self.log.failure().is_none()
            && let Some(reason) = self.disk.refusal()
        {
            return Err(AppendError::DiskFull(reason));
        }
        let (unwritten, max) = self.table.memory();
        if unwritten > max {
            return Err(match self.writer.last_error() {
                Some(error) if self.writer.is_failing() => AppendError::DiskFull(error.to_owned()),
                _ => AppendError::Busy { unwritten, max },
            });
        }
        self.log.check_room(records)
    }

    fn append_checked(
        &mut self,
        index: QueueIndex,
        message: &NewMessage<'_>,
        record_bytes: u64,
        now: Now,
    ) -> Appended {
        let queue = self.table.get_mut(index);
        assert!(!queue.is_deleted, "append to the deleted {index:?}");
        assert_eq!(
            queue.queue_id, message.queue_id,
            "queue id of {}",
            message.topic
        );
        debug_assert_eq!(&*queue.topic, message.topic);
        // Prepared and rolled-back messages have no place in their queue: Apache writes offset 0.
        let kind = message.sys_flag & sys_flag::TRANSACTION_MASK;
        let has_entry = kind == 0 || kind == sys_flag::TRANSACTION_COMMIT;
        let queue_offset = if has_entry {
            queue.assign()
        } else {
            QueueOffset(0)
        };
        let at = self.log.append(message, queue_offset, record_bytes, now);
        if has_entry {
            let stored_ms = self.log.store_timestamp();
            self.index
                .note(message.topic, message.properties, at, stored_ms);
            self.table.push_pending(Pending {
                queue: index,
                queue_offset,
                entry: Entry {
                    at,
                    bytes: record_bytes as u32,
                    tags_code: message.tags_code,
                },
                store_timestamp: self.log.store_timestamp(),
                appended_us: now.monotonic_us,
            });
        }
        Appended {
            queue_offset,
            at,
            end: at.advance(record_bytes),
        }
    }

    /// Store timestamp that a message gets which is appended now.
    pub fn next_store_timestamp(&self, now: Now) -> u64 {
        self.log.next_store_timestamp(now)
    }

    /// The entry at an offset inside the bounds. [`Entry::is_blank`] where its record is lost: skip it.
    pub fn entry(
        &self,
        queue: QueueIndex,
        at: QueueOffset,
        fetched: &Fetched,
    ) -> Result<Entry, Missing> {
        let state = self.table.get(queue);
        let bounds = state.bounds();
        if bounds.min <= at
            && at < bounds.max
            && let Some(entry) = state.recent(at).or_else(|| fetched.entry(queue, at))
        {
            return Ok(entry);
        }
        // Outside the bounds: reading it gives an error.
        let cold = state.recent_start().saturating_sub(at.0).max(1);
        Err(Missing::Entries {
            queue,
            from: at,
            count: cold.min(u64::from(PULL_ENTRIES_EXAMINED_MAX)) as u32,
        })
    }

    /// The record at a place that somebody outside names, checked. A place without one gives `Missing`, and the read
    /// of it an error.
    pub fn record_at(&self, at: PhysicalOffset, fetched: &Fetched) -> Result<Bytes, Missing> {
        let in_memory = || {
            if at < self.log.start() {
                return None;
            }
            let start = self.tail.get(at, RECORD_OVERHEAD_BYTES as u32)?;
            let bytes = fetch::check_record(&start, at).ok()?;
            let record = self.tail.get(at, u32::try_from(bytes).ok()?)?;
            (at.advance(bytes as u64) <= self.log.visible()).then_some(record)
        };
        let found = fetched.record_at(at).or_else(in_memory);
        found.ok_or(Missing::Record { at })
    }

    /// The record's bytes, shared with the tail cache or what was fetched; no copy.
    pub fn record(
        &self,
        at: PhysicalOffset,
        bytes: u32,
        fetched: &Fetched,
    ) -> Result<Bytes, Missing> {
        let found = self
            .tail
            .get(at, bytes)
            .or_else(|| fetched.record(at, bytes));
        found.ok_or(Missing::Log { at, bytes })
    }

    /// Places of records whose hash is that of the key, newest first: topic, key and time are still to be compared.
    pub fn find_key<'a>(
        &self,
        query: KeyQuery,
        fetched: &'a Fetched,
    ) -> Result<&'a [PhysicalOffset], Missing> {
        let found = fetched.keys.iter().find(|(of, _)| *of == query);
        found
            .map(|(_, places)| &**places)
            .ok_or(Missing::Keys(query))
    }

    /// Hash of a key for [`KeyQuery`].
    pub fn key_hash(topic: &str, key: &str) -> u32 {
        index::key_hash(topic, key)
    }

    /// Store time and place of the newest record in the index.
    pub fn newest_key(&self) -> (u64, PhysicalOffset) {
        self.index.newest()
    }

    /// First byte of the log that still exists, and the first that is not visible yet.
    pub fn log_bounds(&self) -> (PhysicalOffset, PhysicalOffset) {
        (self.log.start(), self.log.visible())
    }

    /// Store timestamp of the newest visible message of the queue in this process's memory, if known.
    pub fn last_store_timestamp(&self, queue: QueueIndex) -> Option<u64> {
        self.table.get(queue).last_store_timestamp()
    }

    /// Forgets the queues of a topic; their files are removed in the background. A topic of that name made later
    /// starts at offset 0.
    pub fn delete_topic(&mut self, topic: &str) {
        if self.table.delete_topic(topic) {
            self.removals.bury(topic, self.log.appended());
            self.upkeep.on_topic_deleted();
        }
    }

    pub fn config(&self) -> &StoreConfig {
        &self.config
    }
}
