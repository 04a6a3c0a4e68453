//! One consume queue: where its messages lie in the log, by queue offset.
//!
//! ```text
//! offset  width    field of an entry on disk
//!      0      8    physical offset
//!      8      4    record bytes
//!     12      8    tags code, or deliver timestamp in the schedule topic
//! ```
//!
//! A file holds a fixed number of entries and is named by its first byte's offset in the queue. A queue whose first
//! messages are gone may begin with blank entries, as Apache writes them: physical offset 0, size `i32::MAX`. Recovery
//! fills a gap with blanks too, which carry the offset of the record behind the gap. In memory a blank has 0 bytes.
//!
//! **Life of an offset**: assigned at append (`next`), published with its entry when its record is visible (`max`),
//! on disk some time later (`persisted`). Only entries on disk may leave memory.

use super::{Entry, QueueBounds};
use crate::ids::{PhysicalOffset, QueueOffset};
use crate::limits::ENTRY_BYTES;
use bytes::{BufMut, BytesMut};
use std::collections::VecDeque;

/// Size of a blank entry on disk. Source: apache/rocketmq 5.3.3 `ConsumeQueue.fillPreBlank`.
const BLANK_SIZE: u32 = i32::MAX as u32;

impl Entry {
    /// Fills the places in front of a queue's first entry, or of one that is lost.
    pub const BLANK: Self = Self {
        at: PhysicalOffset(0),
        bytes: 0,
        tags_code: 0,
    };

    pub fn is_blank(&self) -> bool {
        self.bytes == 0
    }

    /// First byte behind the record.
    pub fn end(&self) -> PhysicalOffset {
        self.at.advance(u64::from(self.bytes))
    }

    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u64(self.at.0);
        out.put_u32(if self.is_blank() {
            BLANK_SIZE
        } else {
            self.bytes
        });
        out.put_i64(self.tags_code);
    }

    /// The entry in 20 bytes; `None` where there is none.
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (at, rest) = bytes.split_first_chunk::<8>()?;
        let (size, tags_code) = rest.split_first_chunk::<4>()?;
        let at = u64::from_be_bytes(*at);
        let bytes = u32::from_be_bytes(*size);
        // Negative in Java's eyes, or never written.
        if at > i64::MAX as u64 || bytes == 0 || bytes > BLANK_SIZE {
            return None;
        }
        Some(Self {
            at: PhysicalOffset(at),
            bytes: if bytes == BLANK_SIZE { 0 } else { bytes },
            tags_code: i64::from_be_bytes(*tags_code.first_chunk()?),
        })
    }
}

/// What recovery knows of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStart {
    /// First offset in its files; below `min` where records are gone and their entries are not.
    pub files: QueueOffset,
    pub min: QueueOffset,
    pub max: QueueOffset,
}

/// **Invariants**: `min ≤ max ≤ next`, `persisted ≤ max`; `recent` ends at `max` and begins at or below `persisted`.
#[derive(Debug)]
pub struct Queue {
    pub topic: Box<str>,
    pub queue_id: u32,
    files_start: u64,
    min: u64,
    next: u64,
    max: u64,
    persisted: u64,
    recent: VecDeque<Entry>,
    last_store_timestamp: Option<u64>,
    /// Place in the list of arrivals of this turn.
    pub(super) arrival: Option<u32>,
    /// Its topic was deleted: the index stays, the queue is gone.
    pub(super) is_deleted: bool,
    /// In the list of queues with entries to write.
    pub(super) is_dirty: bool,
    /// Files of a deleted topic of this name are still there: entries wait in memory.
    pub(super) is_blocked: bool,
    /// A write of its entries is in flight.
    pub(super) is_writing: bool,
}

impl Queue {
    pub fn new(topic: Box<str>, queue_id: u32, start: QueueStart) -> Self {
        assert!(start.files <= start.min, "{start:?}");
        assert!(start.min <= start.max, "{start:?}");
        Self {
            topic,
            queue_id,
            files_start: start.files.0,
            min: start.min.0,
            next: start.max.0,
            max: start.max.0,
            persisted: start.max.0,
            recent: VecDeque::new(),
            last_store_timestamp: None,
            arrival: None,
            is_deleted: false,
            is_dirty: false,
            is_blocked: false,
            is_writing: false,
        }
    }

    pub fn bounds(&self) -> QueueBounds {
        QueueBounds {
            min: QueueOffset(self.min),
            max: QueueOffset(self.max),
        }
    }

    /// Entries in its files once all of them are written.
    pub fn entries_in_files(&self) -> u64 {
        self.max - self.files_start
    }

    /// Messages below are gone.
    pub fn raise_min(&mut self, to: QueueOffset) {
        assert!(
            self.min <= to.0 && to.0 <= self.max,
            "{} {to} {}",
            self.min,
            self.max
        );
        self.min = to.0;
    }

    /// First offset in its files, and the first that its files have to keep: of what can be read, what is not written
    /// yet, and the last one given out, which says where the queue goes on.
    pub fn kept_in_files(&self) -> (u64, u64) {
        let last = self.max.saturating_sub(1);
        (self.files_start, self.min.min(self.persisted).min(last))
    }

    /// Files below are removed.
    pub fn raise_files_start(&mut self, to: u64) {
        assert!(
            self.files_start < to && to <= self.kept_in_files().1,
            "{} {to}",
            self.files_start
        );
        self.files_start = to;
    }

    pub fn last_store_timestamp(&self) -> Option<u64> {
        self.last_store_timestamp
    }

    /// Gives out the next offset.
    pub fn assign(&mut self) -> QueueOffset {
        let offset = self.next;
        self.next += 1;
        QueueOffset(offset)
    }

    /// The record of an assigned offset is visible.
    pub fn publish(&mut self, offset: QueueOffset, entry: Entry, store_timestamp: u64) {
        assert_eq!(
            offset.0, self.max,
            "entries of {} are published in order",
            self.topic
        );
        assert!(self.max < self.next, "offset {offset} was not assigned");
        self.recent.push_back(entry);
        self.max += 1;
        self.last_store_timestamp = Some(store_timestamp);
    }

    /// First offset whose entry is in memory.
    pub fn recent_start(&self) -> u64 {
        self.max - self.recent.len() as u64
    }

    pub fn recent(&self, at: QueueOffset) -> Option<Entry> {
        let index = at.0.checked_sub(self.recent_start())?;
        self.recent.get(usize::try_from(index).ok()?).copied()
    }

    /// Entries in memory that may leave it.
    pub fn evictable(&self) -> usize {
        (self.persisted.saturating_sub(self.recent_start())) as usize
    }

    /// Drops the oldest entries in memory; they are on disk.
    pub fn evict(&mut self, count: usize) {
        assert!(count <= self.evictable(), "{count} of {}", self.evictable());
        self.recent.drain(..count);
        // Memory of a burst is given back once most of it is unused.
        if self.recent.capacity() > 64 && self.recent.len() < self.recent.capacity() / 4 {
            self.recent.shrink_to(self.recent.len() * 2);
        }
    }

    pub fn in_memory(&self) -> usize {
        self.recent.len()
    }

    pub fn persisted(&self) -> u64 {
        self.persisted
    }

    pub fn unpersisted(&self) -> u64 {
        self.max - self.persisted
    }

    /// Encodes the entries from `persisted` up to `end`.
    pub fn encode_unpersisted(&self, end: u64, out: &mut BytesMut) {
        assert!(
            self.persisted <= end && end <= self.max,
            "{} {end} {}",
            self.persisted,
            self.max
        );
        let skip = (self.persisted - self.recent_start()) as usize;
        let count = (end - self.persisted) as usize;
        for entry in self.recent.iter().skip(skip).take(count) {
            entry.encode(out);
        }
    }

    pub fn advance_persisted(&mut self, to: u64) {
        assert!(
            self.persisted <= to && to <= self.max,
            "{} {to} {}",
            self.persisted,
            self.max
        );
        self.persisted = to;
    }

    /// Forgets everything but that it was there.
    pub fn delete(&mut self) {
        let gone = Self::new(Box::default(), self.queue_id, QueueStart::default());
        *self = Self {
            is_deleted: true,
            is_dirty: self.is_dirty,
            is_writing: self.is_writing,
            ..gone
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64) -> Entry {
        Entry {
            at: PhysicalOffset(at),
            bytes: 10,
            tags_code: -1,
        }
    }

    #[test]
    fn entries_keep_apaches_layout() {
        // The worked example of `messages.md` section 5.
        let example = Entry {
            at: PhysicalOffset(0x3E8),
            bytes: 0x95,
            tags_code: 0x27_A807,
        };
        let mut out = BytesMut::new();
        example.encode(&mut out);
        let expected = [
            0, 0, 0, 0, 0, 0, 3, 0xE8, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0x27, 0xA8, 0x07,
        ];
        assert_eq!(out[..], expected);
        assert_eq!(Entry::decode(&expected), Some(example));
    }

    #[test]
    fn what_is_no_entry_is_told_from_a_blank() {
        assert_eq!(Entry::decode(&[0; ENTRY_BYTES]), None);
        assert_eq!(Entry::decode(&[0xFF; ENTRY_BYTES]), None);
        let mut out = BytesMut::new();
        Entry::BLANK.encode(&mut out);
        assert_eq!(out[8..12], [0x7F, 0xFF, 0xFF, 0xFF]);
        let decoded = Entry::decode(out[..].first_chunk().unwrap()).unwrap();
        assert!(decoded.is_blank());
    }

    #[test]
    fn only_entries_on_disk_leave_memory() {
        let start = QueueStart {
            files: QueueOffset(0),
            min: QueueOffset(3),
            max: QueueOffset(7),
        };
        let mut queue = Queue::new("T".into(), 0, start);
        for index in 0..4 {
            let offset = queue.assign();
            assert_eq!(offset, QueueOffset(7 + index));
            queue.publish(offset, entry(index * 10), 5);
        }
        assert_eq!(queue.evictable(), 0);
        queue.advance_persisted(9);
        assert_eq!(queue.evictable(), 2);
        queue.evict(2);
        assert_eq!(queue.recent(QueueOffset(8)), None);
        assert_eq!(queue.recent(QueueOffset(9)), Some(entry(20)));
        assert_eq!(queue.recent(QueueOffset(11)), None);
        let mut out = BytesMut::new();
        queue.encode_unpersisted(11, &mut out);
        assert_eq!(out.len(), 2 * ENTRY_BYTES);
        assert_eq!(out[7], 20);
    }
}
