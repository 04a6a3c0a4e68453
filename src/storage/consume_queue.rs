//! Consume queues: 20-byte entries per message, recent ones in memory, all of them in files like RocketMQ's.
//!
//! ```text
//! 0            8          12           20
//! | offset i64 | size i32 | tags i64   |
//! ```

use super::{Entry, StoreConfig};
use crate::ids::PhysicalOffset;
use crate::io::FileSystem;
use crate::limits::ENTRY_BYTES;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

/// Entries kept in memory per queue once they are on disk.
const CACHED_ENTRIES: usize = 1024;
/// Unpersisted entries that are written at once.
pub const PERSIST_ENTRIES: u64 = 2048;

/// One queue of one topic.
#[derive(Debug)]
pub struct ConsumeQueue {
    pub topic: Box<str>,
    pub queue_id: u32,
    directory: PathBuf,
    file_bytes: u64,
    /// Offset that the next append gets.
    pub next: u64,
    /// First offset that is not visible.
    pub max: u64,
    pub min: u64,
    /// Visible entries `max - entries.len() .. max`.
    entries: VecDeque<Entry>,
    /// Entries below are in the files.
    pub persisted: u64,
    pub last_store_ms: Option<u64>,
    pub deleted: bool,
}

impl ConsumeQueue {
    pub fn new(config: &StoreConfig, topic: &str, queue_id: u32) -> Self {
        Self {
            topic: topic.into(),
            queue_id,
            directory: config.consume_queue.join(topic).join(queue_id.to_string()),
            file_bytes: config.queue_file_bytes,
            next: 0,
            max: 0,
            min: 0,
            entries: VecDeque::new(),
            persisted: 0,
            last_store_ms: None,
            deleted: false,
        }
    }

    /// Starts the queue at an offset; nothing is in memory yet.
    pub fn set_range(&mut self, min: u64, max: u64) {
        assert!(
            self.entries.is_empty(),
            "a queue with entries can't be placed"
        );
        (self.min, self.max, self.next, self.persisted) = (min, max, max, max);
    }

    pub fn publish(&mut self, offset: u64, entry: Entry) {
        assert_eq!(
            offset, self.max,
            "queue offsets are dense ({} {})",
            self.topic, self.queue_id
        );
        self.entries.push_back(entry);
        self.max += 1;
        self.next = self.next.max(self.max);
    }

    /// The entry, if it is in memory.
    pub fn get(&self, offset: u64) -> Option<Entry> {
        let first = self.max - self.entries.len() as u64;
        self.entries
            .get(usize::try_from(offset.checked_sub(first)?).ok()?)
            .copied()
    }

    pub fn unpersisted(&self) -> u64 {
        self.max - self.persisted
    }

    fn file_entries(&self) -> u64 {
        self.file_bytes / ENTRY_BYTES as u64
    }

    /// Path of the file with this entry, its position there, and how many entries follow it in the file.
    pub fn place(&self, offset: u64) -> (PathBuf, u64, u64) {
        let first = offset / self.file_entries() * self.file_entries();
        let path = self
            .directory
            .join(format!("{:020}", first * ENTRY_BYTES as u64));
        (
            path,
            (offset - first) * ENTRY_BYTES as u64,
            self.file_entries() - (offset - first),
        )
    }

    /// Writes what is not in the files yet, then forgets old entries. Page cache only, unless `flush`.
    pub fn persist(&mut self, io: &mut impl FileSystem, flush: bool) -> io::Result<()> {
        while self.persisted < self.max {
            let (path, position, room) = self.place(self.persisted);
            let count = room.min(self.max - self.persisted);
            let mut bytes = Vec::with_capacity(count as usize * ENTRY_BYTES);
            for offset in self.persisted..self.persisted + count {
                encode(
                    self.get(offset)
                        .expect("entries that are not persisted are in memory"),
                    &mut bytes,
                );
            }
            if !io.exists(&path) {
                io.create_directories(&self.directory)?;
                let file = io.create_sparse(&path, self.file_bytes)?;
                io.close(file);
            }
            let file = io.open(&path)?;
            let mut result = io.write_at(file, position, &bytes);
            if flush && result.is_ok() {
                result = io.flush(file);
            }
            io.close(file);
            result?;
            self.persisted += count;
        }
        if self.entries.len() > CACHED_ENTRIES {
            self.entries.drain(..self.entries.len() - CACHED_ENTRIES);
            self.entries.shrink_to(2 * CACHED_ENTRIES);
        }
        Ok(())
    }
}

pub fn encode(entry: Entry, out: &mut Vec<u8>) {
    out.extend_from_slice(&entry.at.0.to_be_bytes());
    out.extend_from_slice(&entry.bytes.to_be_bytes());
    out.extend_from_slice(&entry.tags_code.to_be_bytes());
}

/// The entry, unless it is empty (never written) or Apache's filler in front of a queue that starts late.
pub fn decode(bytes: &[u8]) -> Option<Entry> {
    let bytes: &[u8; ENTRY_BYTES] = bytes.try_into().ok()?;
    let (at, rest) = bytes.split_first_chunk::<8>()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let (tags, _) = rest.split_first_chunk::<8>()?;
    let (at, size) = (u64::from_be_bytes(*at), u32::from_be_bytes(*size));
    if size == 0 || size == i32::MAX as u32 || at > i64::MAX as u64 {
        return None;
    }
    Some(Entry {
        at: PhysicalOffset(at),
        bytes: size,
        tags_code: i64::from_be_bytes(*tags),
    })
}
