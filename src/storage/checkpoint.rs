//! The file `checkpoint`: how far log and queues are on disk.
//!
//! ```text
//! offset  width    field                                             owner
//!      0      8    store timestamp up to which the log is flushed    Apache: physicMsgTimestamp
//!      8      8    ... up to which the queues are                    Apache: logicsMsgTimestamp
//!     16      8    ... up to which the index is (0: not known)       Apache: indexMsgTimestamp
//!     24     16    master's flushed offset, confirmed offset         Apache 5.x
//!     40     24    zeros
//!     64      4    "RING"                                            ours, from here on
//!     68      4    version 1
//!     72      8    offset below which every record's entry is on disk
//!     80      8    offset below which the log is flushed: the durable mark
//!     88      8    store timestamp of the newest record
//!     96      8    1 = closed in order: the log ends at the durable mark
//!    104     16    copies of the fields at 0 and 8
//!    120      8    queues that have entries of records below the offset at 72
//!    128      8    the sum of these entries: tells whether a file is missing
//!    136      4    CRC-32C of 64..136
//!    140   3956    zeros
//! ```
//!
//! Apache maps the 4096 bytes and writes only its own fields, so that ours survive it. Our part counts only if the
//! copies agree: if Apache wrote messages in between, they don't, and its rules apply.
//!
//! Source of Apache's part: apache/rocketmq 4.9.8 and 5.3.3 `store/.../StoreCheckpoint.java`.

use crate::ids::PhysicalOffset;
use bytes::{Buf, BufMut, Bytes, BytesMut};

pub const CHECKPOINT_BYTES: usize = 4096;
const OURS_AT: usize = 64;
const CRC_AT: usize = 136;
const MAGIC: u32 = u32::from_be_bytes(*b"RING");
const VERSION: u32 = 1;
/// Apache looks this far behind the older of its timestamps. Source: `StoreCheckpoint.getMinTimestamp`.
const APACHE_MARGIN_MS: u64 = 3000;

/// Our part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Every record below has its entry on disk, if it has one.
    pub dispatched: PhysicalOffset,
    /// The durable mark.
    pub flushed: PhysicalOffset,
    pub store_timestamp: u64,
    pub is_clean: bool,
    pub totals: Totals,
}

/// How many queues have entries in their files, and how many in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    pub queues: u64,
    pub entries: u64,
}

impl Totals {
    /// Counts a queue with so many entries.
    pub fn add(&mut self, entries: u64) {
        self.queues += u64::from(entries > 0);
        self.entries += entries;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint {
    pub log_timestamp: u64,
    pub queues_timestamp: u64,
    pub index_timestamp: u64,
    /// `masterFlushedOffset` and `confirmPhyOffset` of Apache 5.x, kept as found.
    pub apache_offsets: [u64; 2],
    pub marks: Option<Marks>,
}

impl Checkpoint {
    /// Reads the file's contents; a short file counts as filled up with zeros.
    pub fn decode(contents: &[u8]) -> Self {
        let mut whole = [0; CHECKPOINT_BYTES];
        let have = contents.len().min(CHECKPOINT_BYTES);
        whole[..have].copy_from_slice(&contents[..have]);
        let mut fields = &whole[..];
        let log_timestamp = fields.get_u64();
        let queues_timestamp = fields.get_u64();
        let index_timestamp = fields.get_u64();
        let apache_offsets = [fields.get_u64(), fields.get_u64()];
        let mut checkpoint = Self {
            log_timestamp,
            queues_timestamp,
            index_timestamp,
            apache_offsets,
            marks: None,
        };
        checkpoint.marks = checkpoint.decode_marks(&whole);
        checkpoint
    }

    fn decode_marks(&self, whole: &[u8; CHECKPOINT_BYTES]) -> Option<Marks> {
        let mut fields = &whole[OURS_AT..];
        let known = fields.get_u32() == MAGIC && fields.get_u32() == VERSION;
        let mut marks = Marks {
            dispatched: PhysicalOffset(fields.get_u64()),
            flushed: PhysicalOffset(fields.get_u64()),
            store_timestamp: fields.get_u64(),
            is_clean: fields.get_u64() == 1,
            totals: Totals::default(),
        };
        let agrees =
            fields.get_u64() == self.log_timestamp && fields.get_u64() == self.queues_timestamp;
        marks.totals = Totals {
            queues: fields.get_u64(),
            entries: fields.get_u64(),
        };
        let crc = crc32c::crc32c(&whole[OURS_AT..CRC_AT]);
        (known && agrees && fields.get_u32() == crc).then_some(marks)
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(CHECKPOINT_BYTES);
        out.put_u64(self.log_timestamp);
        out.put_u64(self.queues_timestamp);
        out.put_u64(self.index_timestamp);
        out.put_u64(self.apache_offsets[0]);
        out.put_u64(self.apache_offsets[1]);
        out.resize(OURS_AT, 0);
        if let Some(marks) = self.marks {
            out.put_u32(MAGIC);
            out.put_u32(VERSION);
            out.put_u64(marks.dispatched.0);
            out.put_u64(marks.flushed.0);
            out.put_u64(marks.store_timestamp);
            out.put_u64(u64::from(marks.is_clean));
            out.put_u64(self.log_timestamp);
            out.put_u64(self.queues_timestamp);
            out.put_u64(marks.totals.queues);
            out.put_u64(marks.totals.entries);
            let crc = crc32c::crc32c(&out[OURS_AT..CRC_AT]);
            out.put_u32(crc);
        }
        out.resize(CHECKPOINT_BYTES, 0);
        out.freeze()
    }

    /// The keys of all records below our mark are in the index: only a checkpoint of ours, taken with an index, has
    /// these two times equal.
    pub fn index_covers(&self) -> Option<PhysicalOffset> {
        let marks = self.marks?;
        (self.index_timestamp == self.queues_timestamp).then_some(marks.dispatched)
    }

    /// Records stored at or before this time are flushed and have their entries on disk: Apache's rule.
    pub fn apache_timestamp(&self) -> u64 {
        let older = self.log_timestamp.min(self.queues_timestamp);
        older.saturating_sub(APACHE_MARGIN_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Checkpoint {
        Checkpoint {
            log_timestamp: 1_700_000_000_001,
            queues_timestamp: 1_700_000_000_000,
            index_timestamp: 3,
            apache_offsets: [4, 5],
            marks: Some(Marks {
                dispatched: PhysicalOffset(10),
                flushed: PhysicalOffset(20),
                store_timestamp: 1_700_000_000_002,
                is_clean: true,
                totals: Totals {
                    queues: 7,
                    entries: 8,
                },
            }),
        }
    }

    #[test]
    fn both_parts_come_back() {
        let encoded = example().encode();
        assert_eq!(encoded.len(), CHECKPOINT_BYTES);
        assert_eq!(encoded[..8], 1_700_000_000_001_u64.to_be_bytes());
        assert_eq!(encoded[16..24], 3_u64.to_be_bytes());
        assert_eq!(Checkpoint::decode(&encoded), example());
    }

    #[test]
    fn our_part_does_not_count_once_apache_wrote_its_own() {
        for at in [0, 8] {
            let mut changed = example().encode().to_vec();
            changed[at + 7] ^= 1;
            assert_eq!(Checkpoint::decode(&changed).marks, None, "field at {at}");
        }
        let mut changed = example().encode().to_vec();
        changed[23] ^= 1;
        assert!(
            Checkpoint::decode(&changed).marks.is_some(),
            "the index is not ours"
        );
    }

    #[test]
    fn a_flipped_bit_in_our_part_is_found() {
        for at in OURS_AT..CRC_AT + 4 {
            let mut changed = example().encode().to_vec();
            changed[at] ^= 4;
            assert_eq!(Checkpoint::decode(&changed).marks, None, "byte {at}");
        }
    }

    #[test]
    fn an_absent_or_foreign_file_has_no_marks() {
        assert_eq!(Checkpoint::decode(&[]), Checkpoint::default());
        let mut apache = vec![0; CHECKPOINT_BYTES];
        apache[..8].copy_from_slice(&5000_u64.to_be_bytes());
        apache[8..16].copy_from_slice(&4000_u64.to_be_bytes());
        let checkpoint = Checkpoint::decode(&apache);
        assert_eq!(checkpoint.marks, None);
        assert_eq!(checkpoint.apache_timestamp(), 1000);
    }
}
