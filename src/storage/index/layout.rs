//! Bytes of an index file.
//!
//! ```text
//! header, 40 bytes                     slots, 4 bytes each            units, 20 bytes each; the first is unused
//!  0  8  first store timestamp         newest unit whose hash          0  4  hash of topic#key, not negative
//!  8  8  last store timestamp          falls here, 0 = none            4  8  physical offset of the record
//! 16  8  first physical offset                                        12  4  seconds since the first timestamp
//! 24  8  last physical offset                                         16  4  the next older unit of the slot
//! 32  4  slots in use
//! 36  4  next unit
//! ```
//!
//! Source: apache/rocketmq 4.9.8 `store/.../index/IndexFile.java`, `IndexHeader.java`.

use crate::ids::PhysicalOffset;
use crate::protocol::hash::java_string_hash_of;
use bytes::{Buf, BufMut, Bytes, BytesMut};

pub const HEADER_BYTES: u64 = 40;
pub const SLOT_BYTES: u64 = 4;
pub const UNIT_BYTES: u64 = 20;

/// Hash of a key as it is stored.
pub fn key_hash(topic: &str, key: &str) -> u32 {
    // `Math.abs`, with the one number that stays negative turned into 0.
    let hash = java_string_hash_of([topic, "#", key]);
    hash.checked_abs().unwrap_or(0).unsigned_abs()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    pub hash: u32,
    pub at: PhysicalOffset,
    pub seconds: i32,
    pub previous: u32,
}

impl Unit {
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u32(self.hash);
        out.put_u64(self.at.0);
        out.put_i32(self.seconds);
        out.put_u32(self.previous);
    }

    pub fn decode(bytes: &[u8; UNIT_BYTES as usize]) -> Self {
        let mut fields = &bytes[..];
        Self {
            hash: fields.get_u32(),
            at: PhysicalOffset(fields.get_u64()),
            seconds: fields.get_i32(),
            previous: fields.get_u32(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub begin_ms: u64,
    pub end_ms: u64,
    pub begin: PhysicalOffset,
    pub end: PhysicalOffset,
    pub used_slots: u32,
    /// Number of the next unit; the first has 1.
    pub next: u32,
}

impl Header {
    pub const EMPTY: Self = Self {
        begin_ms: 0,
        end_ms: 0,
        begin: PhysicalOffset(0),
        end: PhysicalOffset(0),
        used_slots: 0,
        next: 1,
    };

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER_BYTES as usize);
        out.put_u64(self.begin_ms);
        out.put_u64(self.end_ms);
        out.put_u64(self.begin.0);
        out.put_u64(self.end.0);
        out.put_u32(self.used_slots);
        out.put_u32(self.next);
        out.freeze()
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Self {
        let mut fields = &bytes[..];
        Self {
            begin_ms: fields.get_u64(),
            end_ms: fields.get_u64(),
            begin: PhysicalOffset(fields.get_u64()),
            end: PhysicalOffset(fields.get_u64()),
            used_slots: fields.get_u32(),
            next: fields.get_u32(),
        }
    }

    /// Seconds since the first timestamp, as a unit has them.
    pub fn seconds(&self, stored_ms: u64) -> i32 {
        i32::try_from(stored_ms.saturating_sub(self.begin_ms) / 1000).unwrap_or(i32::MAX)
    }
}

/// How many slots and units a file has (`maxHashSlotNum`, `maxIndexNum`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    pub slots: u32,
    pub units: u32,
}

impl Sizes {
    pub fn file_bytes(self) -> u64 {
        self.unit_position(self.units)
    }

    pub fn slot_of(self, hash: u32) -> u32 {
        hash % self.slots
    }

    pub fn slot_position(self, slot: u32) -> u64 {
        HEADER_BYTES + u64::from(slot) * SLOT_BYTES
    }

    pub fn unit_position(self, unit: u32) -> u64 {
        self.slot_position(self.slots) + u64::from(unit) * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_places_are_those_of_apache() {
        // `TopicTest#KEY1` hashes to -1656969516 in Java.
        assert_eq!(key_hash("TopicTest", "KEY1"), 1_656_969_516);
        let sizes = Sizes {
            slots: 5_000_000,
            units: 20_000_000,
        };
        assert_eq!(sizes.file_bytes(), 40 + 5_000_000 * 4 + 20_000_000 * 20);
        assert_eq!(sizes.unit_position(1), 20_000_060);
        assert_eq!(sizes.slot_position(sizes.slot_of(7)), 68);
    }

    #[test]
    fn header_and_unit_come_back() {
        let header = Header {
            begin_ms: 1_700_000_000_000,
            end_ms: 1_700_000_009_999,
            begin: PhysicalOffset(1),
            end: PhysicalOffset(2),
            used_slots: 3,
            next: 4,
        };
        let bytes = header.encode();
        assert_eq!(bytes[36..], [0, 0, 0, 4]);
        assert_eq!(Header::decode(bytes.first_chunk().unwrap()), header);
        let unit = Unit {
            hash: 5,
            at: PhysicalOffset(6),
            seconds: header.seconds(1_700_000_007_999),
            previous: 8,
        };
        let mut out = BytesMut::new();
        unit.encode(&mut out);
        assert_eq!(out[12..16], [0, 0, 0, 7]);
        assert_eq!(Unit::decode(out.first_chunk().unwrap()), unit);
    }
}
