//! The stored message: the same bytes in the commit log and in a pull reply (`messages.md` section 1).

use crate::ids::{PhysicalOffset, QueueOffset};
use bytes::BytesMut;
use std::net::SocketAddr;

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// End-of-file blank: total size = what is left of the segment.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Positions that never move: they lie before the hosts.
pub const QUEUE_OFFSET_AT: usize = 20;
pub const PHYSICAL_OFFSET_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;

pub mod sys_flag {
    pub const COMPRESSED: i32 = 0x1;
    pub const MULTI_TAGS: i32 = 0x2;
    pub const TRANSACTION_PREPARED: i32 = 0x4;
    pub const TRANSACTION_COMMIT: i32 = 0x8;
    pub const TRANSACTION_ROLLBACK: i32 = 0xC;
    pub const TRANSACTION_MASK: i32 = 0xC;
    pub const BORN_HOST_V6: i32 = 0x10;
    pub const STORE_HOST_V6: i32 = 0x20;
    pub const NEED_UNWRAP: i32 = 0x40;
    pub const INNER_BATCH: i32 = 0x80;
}

/// A message to be stored; offsets and store time are given to [`NewMessage::encode`].
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    pub topic: &'a str,
    pub queue_id: u32,
    pub flag: i32,
    /// Without the host bits: `encode` sets them by the addresses.
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: u64,
    pub body: &'a [u8],
    pub properties: &'a str,
    /// Tags code for the consume queue (delay records carry a timestamp here instead).
    pub tags_code: i64,
}

impl NewMessage<'_> {
    /// Bytes of the record. v2 is used only for topics over 127 bytes.
    pub fn encoded_bytes(&self) -> usize {
        todo!()
    }
    /// Appends the record. The caller has checked the limits of body, topic and properties.
    pub fn encode(
        &self,
        queue_offset: QueueOffset,
        at: PhysicalOffset,
        store_timestamp: u64,
        out: &mut BytesMut,
    ) {
        todo!("{queue_offset} {at} {store_timestamp} {out:?}")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    #[error("{have} bytes, at least {need} needed")]
    Short { have: usize, need: usize },
    #[error("unknown magic {0:#010x}")]
    Magic(u32),
    #[error("total size {0} is out of range")]
    Size(i64),
    #[error("inner lengths do not add up to the total size")]
    Lengths,
    #[error("body CRC is {stored:#010x}, computed {computed:#010x}")]
    BodyCrc { stored: u32, computed: u32 },
    #[error("text is not UTF-8")]
    Utf8,
}

/// View of one stored record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredMessage<'a> {
    pub bytes: &'a [u8],
    pub body_crc: u32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: QueueOffset,
    pub physical_offset: PhysicalOffset,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: SocketAddr,
    pub store_timestamp: u64,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: u64,
    pub body: &'a [u8],
    pub topic: &'a str,
    pub properties: &'a str,
}

/// What lies at a place of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Message(StoredMessage<'a>),
    /// End of the segment; its total size.
    Blank(u32),
}

impl<'a> StoredMessage<'a> {
    /// Decodes the record at the start of `bytes`, which may go on behind it. Structure is checked, the body CRC is not.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, MessageError> {
        todo!("{}", bytes.len())
    }
    pub fn check_body_crc(&self) -> Result<(), MessageError> {
        todo!()
    }
    /// The value of TAGS, "" without one.
    pub fn tag(&self) -> &'a str {
        todo!()
    }
}

/// Store timestamp of a record without decoding the rest.
pub fn store_timestamp_of(record: &[u8]) -> Result<u64, MessageError> {
    todo!("{}", record.len())
}
/// TAGS of a record without decoding the rest; the hot path of the tag filter.
pub fn tag_of(record: &[u8]) -> Result<&str, MessageError> {
    todo!("{}", record.len())
}

/// One record of a client batch (body of 320).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a str,
}

/// Iterates over the records of a batch body; an error ends it. Inner sizes must sum up to the body.
pub fn batch_records(body: &[u8]) -> impl Iterator<Item = Result<BatchRecord<'_>, MessageError>> {
    let _ = body;
    std::iter::empty()
}

/// Text form of a record's server id: 32 or 56 upper-case hexadecimal characters.
pub fn offset_message_id(store_host: SocketAddr, at: PhysicalOffset) -> arrayvec::ArrayString<56> {
    todo!("{store_host} {at}")
}
pub fn parse_offset_message_id(id: &str) -> Option<(SocketAddr, PhysicalOffset)> {
    todo!("{id}")
}
