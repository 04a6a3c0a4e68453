//! The stored message: the same bytes in the commit log and in a pull reply (`messages.md` section 1).
//!
//! ```text
//! offset  width    field                     (offsets for IPv4 hosts; an IPv6 host takes 12 bytes more)
//!      0      4    total size, this field included
//!      4      4    magic: v1, v2, or blank
//!      8      4    body CRC
//!     12      4    queue id
//!     16      4    flag
//!     20      8    queue offset
//!     28      8    physical offset
//!     36      4    sys flag
//!     40      8    born timestamp, ms
//!     48   8|20    born host: address, port as 4 bytes
//!     56      8    store timestamp, ms
//!     64   8|20    store host
//!     72      4    reconsume times
//!     76      8    prepared transaction offset
//!     84      4    body bytes B
//!     88      B    body
//!   88+B    1|2    topic bytes T: 1 byte in v1, 2 in v2
//!   89+B      T    topic
//! 89+B+T      2    properties bytes P
//! 91+B+T      P    properties
//! ```
//!
//! Source: apache/rocketmq 4.9.8 `store/.../CommitLog.java` `doAppend`, `common/.../message/MessageDecoder.java`.

use super::reader::Reader;
use super::{hash, properties};
use crate::ids::{PhysicalOffset, QueueOffset};
use crate::limits::{FRAME_BYTES_MAX, TOPIC_BYTES_MAX};
use arrayvec::ArrayString;
use bytes::{BufMut, BytesMut};
use std::net::{IpAddr, SocketAddr};

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// End-of-file blank: total size = what is left of the segment.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Positions that never move: they lie before the hosts.
pub const QUEUE_OFFSET_AT: usize = 20;
pub const PHYSICAL_OFFSET_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;
const TOTAL_SIZE_AT: usize = 0;
const MAGIC_AT: usize = 4;
const BORN_HOST_AT: usize = 48;

/// Bytes of a v1 record with IPv4 hosts, without body, topic and properties.
pub const RECORD_OVERHEAD_BYTES: usize = 91;
/// Bytes of a blank's size and magic: what a segment must have left behind its last record.
pub const BLANK_BYTES: usize = 8;
/// Fixed fields between the store host and the body: reconsume times, transaction offset, body bytes.
const BEHIND_STORE_HOST_BYTES: usize = 4 + 8 + 4;
const V6_EXTRA_BYTES: usize = 12;

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
        let host_extra = |host: SocketAddr| {
            if host.ip().to_canonical().is_ipv6() {
                V6_EXTRA_BYTES
            } else {
                0
            }
        };
        RECORD_OVERHEAD_BYTES
            + host_extra(self.born_host)
            + host_extra(self.store_host)
            + usize::from(self.is_v2())
            + self.topic.len()
            + self.body.len()
            + self.properties.len()
    }

    fn is_v2(&self) -> bool {
        self.topic.len() > TOPIC_BYTES_MAX
    }

    /// The sys flag with the bits that say how the hosts are written.
    fn stored_sys_flag(&self) -> i32 {
        let bit = |host: SocketAddr, bit| {
            if host.ip().to_canonical().is_ipv6() {
                bit
            } else {
                0
            }
        };
        self.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6)
            | bit(self.born_host, sys_flag::BORN_HOST_V6)
            | bit(self.store_host, sys_flag::STORE_HOST_V6)
    }

    /// Appends the record. The caller has checked the limits of body, topic and properties.
    pub fn encode(
        &self,
        queue_offset: QueueOffset,
        at: PhysicalOffset,
        store_timestamp: u64,
        out: &mut BytesMut,
    ) {
        let start = out.len();
        let record_bytes = self.encoded_bytes();
        assert!(
            record_bytes <= FRAME_BYTES_MAX as usize,
            "record of {record_bytes} bytes"
        );
        assert!(
            self.properties.len() <= i16::MAX as usize,
            "unchecked properties"
        );
        assert!(self.topic.len() <= i16::MAX as usize, "unchecked topic");
        out.reserve(record_bytes);
        out.put_u32(record_bytes as u32);
        out.put_u32(if self.is_v2() { MAGIC_V2 } else { MAGIC_V1 });
        out.put_u32(hash::body_crc(self.body));
        out.put_u32(self.queue_id);
        out.put_i32(self.flag);
        out.put_u64(queue_offset.0);
        out.put_u64(at.0);
        out.put_i32(self.stored_sys_flag());
        out.put_i64(self.born_timestamp);
        put_host(self.born_host, out);
        out.put_u64(store_timestamp);
        put_host(self.store_host, out);
        out.put_i32(self.reconsume_times);
        out.put_u64(self.prepared_transaction_offset);
        out.put_u32(self.body.len() as u32);
        out.put_slice(self.body);
        if self.is_v2() {
            out.put_u16(self.topic.len() as u16);
        } else {
            out.put_u8(self.topic.len() as u8);
        }
        out.put_slice(self.topic.as_bytes());
        out.put_u16(self.properties.len() as u16);
        out.put_slice(self.properties.as_bytes());
        assert_eq!(out.len() - start, record_bytes, "layout and size agree");
    }
}

/// Appends a host. An IPv4 address that a dual-stack socket maps into IPv6 is written as IPv4.
fn put_host(host: SocketAddr, out: &mut BytesMut) {
    match host.ip().to_canonical() {
        IpAddr::V4(ip) => out.put_slice(&ip.octets()),
        IpAddr::V6(ip) => out.put_slice(&ip.octets()),
    }
    out.put_u32(u32::from(host.port()));
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
    /// Empty where the bytes are not UTF-8, which only a record of another broker can be.
    pub properties: &'a str,
    /// The properties as stored.
    pub properties_bytes: &'a [u8],
}

/// What lies at a place of the log.
#[expect(
    clippy::large_enum_variant,
    reason = "a view that is taken apart at once; a box would allocate for each record"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Message(StoredMessage<'a>),
    /// End of the segment; its total size.
    Blank(u32),
}

impl<'a> StoredMessage<'a> {
    /// Decodes the record at the start of `bytes`, which may go on behind it. Structure is checked, the body CRC is not.
    ///
    /// **Errors**: `Short` asks for more bytes; the others say that no record starts here.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, MessageError> {
        let (total, magic) = match read_start(bytes)? {
            Start::Blank(total) => return Ok(Record::Blank(total)),
            Start::Record { total, magic } => (total, magic),
        };
        let bytes = bytes.get(..total).ok_or(MessageError::Short {
            have: bytes.len(),
            need: total,
        })?;
        decode_fields(bytes, magic)
            .ok_or(MessageError::Lengths)?
            .map(Record::Message)
    }

    /// Compares the stored CRC with that of the body.
    pub fn check_body_crc(&self) -> Result<(), MessageError> {
        let computed = hash::body_crc(self.body);
        if self.body_crc == computed {
            Ok(())
        } else {
            Err(MessageError::BodyCrc {
                stored: self.body_crc,
                computed,
            })
        }
    }

    /// The value of TAGS, "" without one.
    pub fn tag(&self) -> &'a str {
        tag_in(self.properties_bytes)
    }
}

/// What the first eight bytes tell.
enum Start {
    Blank(u32),
    Record { total: usize, magic: u32 },
}

/// Reads size and magic. The size is checked only if the magic is one, since garbage has any size.
fn read_start(bytes: &[u8]) -> Result<Start, MessageError> {
    let short = MessageError::Short {
        have: bytes.len(),
        need: BLANK_BYTES,
    };
    let total = u32_at(bytes, TOTAL_SIZE_AT).ok_or(short)?;
    let magic = u32_at(bytes, MAGIC_AT).ok_or(short)?;
    let size_error = MessageError::Size(i64::from(total as i32));
    match magic {
        MAGIC_BLANK if (total as i32) < BLANK_BYTES as i32 => Err(size_error),
        MAGIC_BLANK => Ok(Start::Blank(total)),
        MAGIC_V1 | MAGIC_V2 => {
            if total > FRAME_BYTES_MAX || (total as usize) < RECORD_OVERHEAD_BYTES {
                return Err(size_error);
            }
            let total = total as usize;
            Ok(Start::Record { total, magic })
        }
        unknown => Err(MessageError::Magic(unknown)),
    }
}

/// Decodes a record from exactly its bytes; `None` where the inner lengths don't add up.
fn decode_fields(bytes: &[u8], magic: u32) -> Option<Result<StoredMessage<'_>, MessageError>> {
    let mut reader = Reader::new(bytes);
    reader.bytes(BLANK_BYTES)?;
    let body_crc = reader.u32()?;
    let queue_id = reader.i32()?;
    let flag = reader.i32()?;
    let queue_offset = QueueOffset(reader.u64()?);
    let physical_offset = PhysicalOffset(reader.u64()?);
    let sys_flag = reader.i32()?;
    let born_timestamp = reader.i64()?;
    let born_host = read_host(&mut reader, sys_flag & sys_flag::BORN_HOST_V6 != 0)?;
    let store_timestamp = reader.u64()?;
    let store_host = read_host(&mut reader, sys_flag & sys_flag::STORE_HOST_V6 != 0)?;
    let reconsume_times = reader.i32()?;
    let prepared_transaction_offset = reader.u64()?;
    let body = reader.bytes_behind_i32()?;
    let topic = if magic == MAGIC_V2 {
        reader.bytes_behind_i16()?
    } else {
        reader.bytes_behind_u8()?
    };
    let properties_bytes = reader.bytes_behind_i16()?;
    if !reader.is_empty() {
        return None;
    }
    let Ok(topic) = std::str::from_utf8(topic) else {
        return Some(Err(MessageError::Utf8));
    };
    Some(Ok(StoredMessage {
        bytes,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        topic,
        properties: std::str::from_utf8(properties_bytes).unwrap_or_default(),
        properties_bytes,
    }))
}

/// Reads a host. A port beyond 16 bits, which no socket has, makes the record one whose lengths don't add up.
fn read_host(reader: &mut Reader<'_>, is_v6: bool) -> Option<SocketAddr> {
    let ip = if is_v6 {
        IpAddr::from(reader.array::<16>()?)
    } else {
        IpAddr::from(reader.array::<4>()?)
    };
    let port = u16::try_from(reader.u32()?).ok()?;
    Some(SocketAddr::new(ip, port))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*field))
}

/// Position of the store timestamp, and of what lies behind the store host.
fn positions(record: &[u8]) -> Option<(usize, usize)> {
    let sys_flag = u32_at(record, SYS_FLAG_AT)? as i32;
    let host_bytes = |bit| {
        if sys_flag & bit == 0 {
            8
        } else {
            8 + V6_EXTRA_BYTES
        }
    };
    let store_timestamp_at = BORN_HOST_AT + host_bytes(sys_flag::BORN_HOST_V6);
    let behind_store_host_at = store_timestamp_at + 8 + host_bytes(sys_flag::STORE_HOST_V6);
    Some((store_timestamp_at, behind_store_host_at))
}

fn short(record: &[u8]) -> MessageError {
    MessageError::Short {
        have: record.len(),
        need: RECORD_OVERHEAD_BYTES,
    }
}

/// Store timestamp of a record without decoding the rest.
pub fn store_timestamp_of(record: &[u8]) -> Result<u64, MessageError> {
    let (at, _) = positions(record).ok_or_else(|| short(record))?;
    let field = record.get(at..).and_then(<[u8]>::first_chunk);
    Ok(u64::from_be_bytes(*field.ok_or_else(|| short(record))?))
}

/// Queue offset and size of the record at the start of `bytes`; `None` where there is none.
pub fn queue_offset_of(bytes: &[u8]) -> Option<(QueueOffset, usize)> {
    let size = u32_at(bytes, TOTAL_SIZE_AT)?;
    let offset = bytes.get(QUEUE_OFFSET_AT..)?.first_chunk()?;
    Some((QueueOffset(u64::from_be_bytes(*offset)), size as usize))
}

/// TAGS of a record without decoding the rest; the hot path of the tag filter. "" without one, or where the tag is
/// not UTF-8.
pub fn tag_of(record: &[u8]) -> Result<&str, MessageError> {
    Ok(tag_in(properties_of(record)?))
}

/// Encoded properties of a record without decoding the rest.
pub fn properties_of(record: &[u8]) -> Result<&[u8], MessageError> {
    let magic = u32_at(record, MAGIC_AT).ok_or_else(|| short(record))?;
    let (_, at) = positions(record).ok_or_else(|| short(record))?;
    let lengths = || {
        let body_length_at = at + BEHIND_STORE_HOST_BYTES - 4;
        let mut reader = Reader::new(record.get(body_length_at..)?);
        reader.bytes_behind_i32()?;
        match magic {
            MAGIC_V2 => reader.bytes_behind_i16()?,
            _ => reader.bytes_behind_u8()?,
        };
        reader.bytes_behind_i16()
    };
    lengths().ok_or(MessageError::Lengths)
}

fn tag_in(properties: &[u8]) -> &str {
    properties::get_bytes(properties, properties::name::TAGS)
        .and_then(|tag| std::str::from_utf8(tag).ok())
        .unwrap_or_default()
}

/// Text form of a record's server id: 32 or 56 upper-case hexadecimal characters.
///
/// **Shape**: address (4 or 16 bytes), port (4 bytes), physical offset (8 bytes). Clients decode it and connect to
/// that address, so the host must be the one that is announced.
pub fn offset_message_id(store_host: SocketAddr, at: PhysicalOffset) -> ArrayString<56> {
    let mut id = ArrayString::new();
    match store_host.ip().to_canonical() {
        IpAddr::V4(ip) => push_hex(&ip.octets(), &mut id),
        IpAddr::V6(ip) => push_hex(&ip.octets(), &mut id),
    }
    push_hex(&u32::from(store_host.port()).to_be_bytes(), &mut id);
    push_hex(&at.0.to_be_bytes(), &mut id);
    id
}

fn push_hex(bytes: &[u8], id: &mut ArrayString<56>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        id.push(char::from(HEX[usize::from(byte >> 4)]));
        id.push(char::from(HEX[usize::from(byte & 15)]));
    }
}

/// Reads a server id. A client's unique key has the same shape: what it names need not exist.
pub fn parse_offset_message_id(id: &str) -> Option<(SocketAddr, PhysicalOffset)> {
    const BYTES_MAX: usize = 28;
    let digits = id.as_bytes();
    let mut bytes = [0; BYTES_MAX];
    let count = match digits.len() {
        32 => 16,
        56 => BYTES_MAX,
        _ => return None,
    };
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    let mut reader = Reader::new(&bytes[..count]);
    let store_host = read_host(&mut reader, count == BYTES_MAX)?;
    Some((store_host, PhysicalOffset(reader.u64()?)))
}

/// One record of a client batch (body of 320).
///
/// **Shape**: total size 4, magic 4 (0), body CRC 4 (0), flag 4, body bytes 4, body, properties bytes 2, properties.
/// **Source**: apache/rocketmq 4.9.8 `common/.../message/MessageDecoder.java` `encodeMessage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRecord<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a str,
}

/// Bytes of a batch record without body and properties.
const BATCH_RECORD_OVERHEAD_BYTES: usize = 22;

/// Iterates over the records of a batch body; an error ends it. Inner sizes must sum up to the body.
///
/// **Errors**: the batch is refused as a whole, with code 13; so collect before the first record is stored.
pub fn batch_records(body: &[u8]) -> impl Iterator<Item = Result<BatchRecord<'_>, MessageError>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = split_batch_record(rest);
        rest = record.as_ref().map_or(&[], |&(_, behind)| behind);
        Some(record.map(|(record, _)| record))
    })
}

/// Splits the first record off a batch.
fn split_batch_record(batch: &[u8]) -> Result<(BatchRecord<'_>, &[u8]), MessageError> {
    let need = |need| MessageError::Short {
        have: batch.len(),
        need,
    };
    let total = u32_at(batch, 0).ok_or(need(BATCH_RECORD_OVERHEAD_BYTES))? as i32;
    let size = usize::try_from(total).map_err(|_| MessageError::Size(total.into()))?;
    if size < BATCH_RECORD_OVERHEAD_BYTES {
        return Err(MessageError::Size(total.into()));
    }
    let (bytes, behind) = batch.split_at_checked(size).ok_or(need(size))?;
    let read = || {
        let mut reader = Reader::new(bytes);
        reader.array::<12>()?;
        let flag = reader.i32()?;
        let body = reader.bytes_behind_i32()?;
        let properties = reader.bytes_behind_i16()?;
        reader.is_empty().then_some((flag, body, properties))
    };
    let (flag, body, properties) = read().ok_or(MessageError::Lengths)?;
    let properties = std::str::from_utf8(properties).map_err(|_| MessageError::Utf8)?;
    let record = BatchRecord {
        flag,
        body,
        properties,
    };
    Ok((record, behind))
}

impl BatchRecord<'_> {
    /// Appends the record as a client does; body and properties are below their limits.
    pub fn encode(&self, out: &mut BytesMut) {
        let record_bytes = BATCH_RECORD_OVERHEAD_BYTES + self.body.len() + self.properties.len();
        assert!(
            record_bytes <= FRAME_BYTES_MAX as usize,
            "record of {record_bytes} bytes"
        );
        assert!(
            self.properties.len() <= i16::MAX as usize,
            "unchecked properties"
        );
        out.put_u32(record_bytes as u32);
        out.put_u64(0);
        out.put_i32(self.flag);
        out.put_u32(self.body.len() as u32);
        out.put_slice(self.body);
        out.put_u16(self.properties.len() as u16);
        out.put_slice(self.properties.as_bytes());
    }
}

#[cfg(test)]
mod tests;
