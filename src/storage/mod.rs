//! The commit log of one shard and what is derived from it. No sockets, no request semantics.
//!
//! Handlers call [`Store::append`], [`Store::entry`] and [`Store::record`], which do no I/O. The loop calls
//! [`Store::seal`] once per turn and feeds [`Store::on_completion`]; what became visible comes out of
//! [`Store::take_arrivals`].
//!
//! **Invariants**: `flushed ≤ written ≤ appended`, `visible` is `written` (ASYNC_FLUSH) or `flushed` (SYNC_FLUSH);
//! every watermark only grows and has one writer. Nothing above `visible` has a consume queue entry.

use crate::clock::Now;
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::io::{Completion, Io};
use crate::protocol::message::NewMessage;
use bytes::Bytes;
use std::path::PathBuf;

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
    Log {
        at: PhysicalOffset,
        bytes: u32,
    },
    Entries {
        queue: QueueIndex,
        from: QueueOffset,
        count: u32,
    },
}

/// What was read from disk for one request. Empty for a first run; dropped with the request.
#[derive(Debug, Default)]
pub struct Fetched {
    ranges: Vec<(PhysicalOffset, Bytes)>,
    entries: Vec<(QueueIndex, QueueOffset, Vec<Entry>)>,
}

impl Fetched {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.entries.is_empty()
    }
}

/// A queue got messages: entries `from..to` are visible now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    pub queue: QueueIndex,
    pub from: QueueOffset,
    pub to: QueueOffset,
}

/// A read that the shard asked for by [`Store::fetch`] is done: run the request `key` again.
#[derive(Debug)]
pub struct FetchDone {
    pub key: u64,
    pub result: Result<Fetched, String>,
}

/// Kinds of [`crate::io::Token`] that belong to the store: completions with them go to [`Store::on_completion`].
pub const TOKEN_KINDS: std::ops::RangeInclusive<u8> = 0x40..=0x5f;

#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
}

impl Store {
    /// Opens or creates the store: lock, recovery, first segment prepared. Blocking; called before the shard serves.
    pub fn open<I: Io>(
        config: StoreConfig,
        now: Now,
        io: &mut I,
    ) -> Result<(Self, Recovered), OpenError> {
        let _ = (config, now, io);
        todo!()
    }

    // ---- for handlers: no I/O, no waiting ----

    /// The queue if it has ever been opened.
    pub fn queue(&self, topic: &str, queue_id: u32) -> Option<QueueIndex> {
        todo!("{topic} {queue_id} {:?}", self.config)
    }
    /// The queue, made if missing (its file comes with its first message). The name has been checked.
    pub fn open_queue(&mut self, topic: &str, queue_id: u32) -> QueueIndex {
        todo!("{topic} {queue_id}")
    }
    /// Topics and queues that exist on disk or in memory, sorted.
    pub fn queues(&self) -> Vec<(String, u32, QueueIndex)> {
        todo!()
    }
    pub fn bounds(&self, queue: QueueIndex) -> QueueBounds {
        todo!("{queue:?}")
    }
    /// Appends to the open batch, assigning both offsets.
    pub fn append(
        &mut self,
        queue: QueueIndex,
        message: &NewMessage<'_>,
        now: Now,
    ) -> Result<Appended, AppendError> {
        todo!("{queue:?} {message:?} {now:?}")
    }
    /// Appends all or none, consecutively; returns one `Appended` per message in `appended`.
    pub fn append_all(
        &mut self,
        queue: QueueIndex,
        messages: &[NewMessage<'_>],
        now: Now,
        appended: &mut Vec<Appended>,
    ) -> Result<(), AppendError> {
        todo!("{queue:?} {} {now:?} {appended:?}", messages.len())
    }
    /// The entry at an offset inside the bounds.
    pub fn entry(
        &self,
        queue: QueueIndex,
        at: QueueOffset,
        fetched: &Fetched,
    ) -> Result<Entry, Missing> {
        todo!("{queue:?} {at} {fetched:?}")
    }
    /// The record's bytes, shared with the tail cache or what was fetched; no copy.
    pub fn record(
        &self,
        at: PhysicalOffset,
        bytes: u32,
        fetched: &Fetched,
    ) -> Result<Bytes, Missing> {
        todo!("{at} {bytes} {fetched:?}")
    }
    /// First byte of the log that still exists, and the first that is not visible yet.
    pub fn log_bounds(&self) -> (PhysicalOffset, PhysicalOffset) {
        todo!()
    }
    /// Store timestamp of the newest visible message of the queue in this process's memory, if known.
    pub fn last_store_timestamp(&self, queue: QueueIndex) -> Option<u64> {
        todo!("{queue:?}")
    }
    /// Forgets the queues of a topic; their files are removed in the background. A topic of that name made later
    /// starts at offset 0.
    pub fn delete_topic(&mut self, topic: &str) {
        todo!("{topic}")
    }

    // ---- for the loop ----

    /// Ends the open batch: one write (more only at a segment's end or over the write limit). Also starts what is
    /// due: flush, entries to disk, the next segment, checkpoint.
    pub fn seal<I: Io>(&mut self, now: Now, io: &mut I) {
        let _ = (now, io);
        todo!()
    }
    /// A completion with one of [`TOKEN_KINDS`]. Reads that [`Store::fetch`] started come out of `fetches`.
    pub fn on_completion<I: Io>(
        &mut self,
        completion: Completion,
        now: Now,
        io: &mut I,
        fetches: &mut Vec<FetchDone>,
    ) {
        let _ = (completion, now, io, fetches);
        todo!()
    }
    /// Everything appended below is visible: acknowledged and delivered.
    pub fn visible(&self) -> PhysicalOffset {
        todo!()
    }
    /// Everything appended below is written (a send with WAIT=false is acknowledged then).
    pub fn written(&self) -> PhysicalOffset {
        todo!()
    }
    pub fn flushed(&self) -> PhysicalOffset {
        todo!()
    }
    /// Why the log is read-only, if it is: all sends that wait are answered with it.
    pub fn failure(&self) -> Option<&str> {
        todo!()
    }
    /// Moves out what became visible since the last call, at most one `Arrival` per queue.
    pub fn take_arrivals(&mut self, arrivals: &mut Vec<Arrival>) {
        todo!("{arrivals:?}")
    }
    /// Starts reading what a request misses, adding to what it has; the result comes as a [`FetchDone`] with `key`.
    pub fn fetch<I: Io>(&mut self, key: u64, missing: &[Missing], have: Fetched, io: &mut I) {
        let _ = (key, missing, have, io);
        todo!()
    }
    /// When the store wants [`Store::seal`] to be called again without other cause, in monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        todo!()
    }
    /// Refuses further appends, then flushes log and queues and writes the checkpoint, over several turns.
    pub fn begin_stop<I: Io>(&mut self, now: Now, io: &mut I) {
        let _ = (now, io);
        todo!()
    }
    /// The stop is complete: `abort` is removed, nothing is in flight.
    pub fn is_stopped(&self) -> bool {
        todo!()
    }
}
