//! The commit log of one shard and what is derived from it. No sockets, no request semantics.
//!
//! Handlers call [`Store::append`], [`Store::entry`] and [`Store::record`], which do no I/O. The loop calls
//! [`Store::seal`] once per turn and feeds [`Store::on_completion`]; what became visible comes out of
//! [`Store::take_arrivals`].
//!
//! **Invariants**: `flushed ≤ written ≤ appended`, `visible` is `written` (ASYNC_FLUSH) or `flushed` (SYNC_FLUSH);
//! every watermark only grows and has one writer. Nothing above `visible` has a consume queue entry.

mod commit_log;
mod consume_queue;
mod fetch;
mod recovery;
mod store;
mod tail_cache;

pub use store::Store;

use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::io::Token;
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
    fn record(&self, at: PhysicalOffset, bytes: u32) -> Option<Bytes> {
        self.ranges.iter().find_map(|(start, range)| {
            let from = usize::try_from(at.0.checked_sub(start.0)?).ok()?;
            let to = from.checked_add(bytes as usize)?;
            (to <= range.len()).then(|| range.slice(from..to))
        })
    }

    fn entry(&self, queue: QueueIndex, at: QueueOffset) -> Option<Entry> {
        self.entries.iter().find_map(|(q, from, entries)| {
            let place = usize::try_from(at.0.checked_sub(from.0)?).ok()?;
            if *q == queue {
                entries.get(place).copied()
            } else {
                None
            }
        })
    }

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

/// Kinds of the store's own operations.
mod token {
    use super::Token;

    pub const LOG_WRITE: u8 = 0x40;
    pub const LOG_FLUSH: u8 = 0x41;
    pub const LOG_PREPARE: u8 = 0x42;
    pub const FETCH: u8 = 0x43;
    pub const REMOVE: u8 = 0x44;

    pub fn make(kind: u8, index: u32) -> Token {
        Token::new(kind, index, 0)
    }
}

fn token(kind: u8, index: u32) -> Token {
    token::make(kind, index)
}
