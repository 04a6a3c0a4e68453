//! The stored message: the same bytes in the commit log and in a pull reply (`messages.md` section 1).

use super::hash::body_crc;
use super::properties;
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

/// Fixed bytes of a v1 record with IPv4 hosts: everything but body, topic and properties.
const FIXED_BYTES: usize = 91;
/// Additional bytes of an IPv6 host.
const V6_MORE: usize = 12;

impl NewMessage<'_> {
    fn is_v2(&self) -> bool {
        self.topic.len() > TOPIC_BYTES_MAX
    }

    /// Bytes of the record. v2 is used only for topics over 127 bytes.
    pub fn encoded_bytes(&self) -> usize {
        let hosts = V6_MORE
            * (usize::from(self.born_host.is_ipv6()) + usize::from(self.store_host.is_ipv6()));
        let fixed = FIXED_BYTES + usize::from(self.is_v2()) + hosts;
        fixed + self.body.len() + self.topic.len() + self.properties.len()
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
        let total = self.encoded_bytes();
        let mut sys_flag = self.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6);
        if self.born_host.is_ipv6() {
            sys_flag |= sys_flag::BORN_HOST_V6;
        }
        if self.store_host.is_ipv6() {
            sys_flag |= sys_flag::STORE_HOST_V6;
        }
        out.put_u32(total as u32);
        out.put_u32(if self.is_v2() { MAGIC_V2 } else { MAGIC_V1 });
        out.put_u32(body_crc(self.body));
        out.put_u32(self.queue_id);
        out.put_i32(self.flag);
        out.put_u64(queue_offset.0);
        out.put_u64(at.0);
        out.put_i32(sys_flag);
        out.put_i64(self.born_timestamp);
        put_host(out, self.born_host);
        out.put_u64(store_timestamp);
        put_host(out, self.store_host);
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
        assert_eq!(
            out.len() - start,
            total,
            "the record has the length it announces"
        );
    }
}

fn put_host(out: &mut BytesMut, host: SocketAddr) {
    match host.ip() {
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
    pub properties: &'a str,
}

/// What lies at a place of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Message(StoredMessage<'a>),
    /// End of the segment; its total size.
    Blank(u32),
}

/// Reads big-endian fields in order; every read is checked.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let end = self.at.checked_add(count).ok_or(MessageError::Lengths)?;
        let bytes = self.bytes.get(self.at..end).ok_or(MessageError::Lengths)?;
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        self.take(N)?.try_into().map_err(|_| MessageError::Lengths)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, MessageError> {
        self.array().map(i32::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, MessageError> {
        self.array().map(i64::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_be_bytes)
    }

    fn length(&mut self) -> Result<usize, MessageError> {
        usize::try_from(self.i32()?).map_err(|_| MessageError::Lengths)
    }

    fn host(&mut self, v6: bool) -> Result<SocketAddr, MessageError> {
        let ip = if v6 {
            IpAddr::from(self.array::<16>()?)
        } else {
            IpAddr::from(self.array::<4>()?)
        };
        // Java keeps the port as an int; a broken one is no reason to lose the message.
        Ok(SocketAddr::new(ip, self.i32()? as u16))
    }
}

/// Total size and magic of what lies at the start of `bytes`.
fn peek(bytes: &[u8]) -> Result<(u32, u32), MessageError> {
    let mut fields = Fields { bytes, at: 0 };
    let short = |_| MessageError::Short {
        have: bytes.len(),
        need: 8,
    };
    Ok((fields.u32().map_err(short)?, fields.u32().map_err(short)?))
}

impl<'a> StoredMessage<'a> {
    /// Decodes the record at the start of `bytes`, which may go on behind it. Structure is checked, the body CRC is not.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, MessageError> {
        let (total, magic) = peek(bytes)?;
        match magic {
            MAGIC_BLANK => return Ok(Record::Blank(total)),
            MAGIC_V1 | MAGIC_V2 => {}
            other => return Err(MessageError::Magic(other)),
        }
        if (total as usize) < FIXED_BYTES || total > FRAME_BYTES_MAX {
            return Err(MessageError::Size(i64::from(total)));
        }
        let need = total as usize;
        let record = bytes.get(..need).ok_or(MessageError::Short {
            have: bytes.len(),
            need,
        })?;
        Self::decode_record(record, magic == MAGIC_V2).map(Record::Message)
    }

    fn decode_record(bytes: &'a [u8], v2: bool) -> Result<Self, MessageError> {
        let mut f = Fields { bytes, at: 8 };
        let (body_crc, queue_id, flag) = (f.u32()?, f.i32()?, f.i32()?);
        let (queue_offset, physical_offset) = (QueueOffset(f.u64()?), PhysicalOffset(f.u64()?));
        let sys_flag = f.i32()?;
        let (born_timestamp, born_host) =
            (f.i64()?, f.host(sys_flag & sys_flag::BORN_HOST_V6 != 0)?);
        let (store_timestamp, store_host) =
            (f.u64()?, f.host(sys_flag & sys_flag::STORE_HOST_V6 != 0)?);
        let (reconsume_times, prepared_transaction_offset) = (f.i32()?, f.u64()?);
        let body_bytes = f.length()?;
        let body = f.take(body_bytes)?;
        let topic_bytes = if v2 {
            usize::from(f.u16()?)
        } else {
            usize::from(f.array::<1>()?[0])
        };
        let topic = std::str::from_utf8(f.take(topic_bytes)?).map_err(|_| MessageError::Utf8)?;
        let properties_bytes = usize::from(f.u16()?);
        let properties_bytes = f.take(properties_bytes)?;
        if f.at != bytes.len() {
            return Err(MessageError::Lengths);
        }
        Ok(Self {
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
            // Look-ups see nothing in properties that aren't text; the bytes themselves stay as they are.
            properties: std::str::from_utf8(properties_bytes).unwrap_or_default(),
        })
    }

    pub fn check_body_crc(&self) -> Result<(), MessageError> {
        let computed = body_crc(self.body);
        if computed == self.body_crc {
            return Ok(());
        }
        Err(MessageError::BodyCrc {
            stored: self.body_crc,
            computed,
        })
    }

    /// The value of TAGS, "" without one.
    pub fn tag(&self) -> &'a str {
        properties::get(self.properties, "TAGS").unwrap_or_default()
    }
}

/// Position of the store timestamp: it moves with the born host.
fn store_timestamp_at(record: &[u8]) -> Result<usize, MessageError> {
    let mut f = Fields {
        bytes: record,
        at: SYS_FLAG_AT,
    };
    let v6 = f.i32()? & sys_flag::BORN_HOST_V6 != 0;
    Ok(if v6 { 56 + V6_MORE } else { 56 })
}

/// Store timestamp of a record without decoding the rest.
pub fn store_timestamp_of(record: &[u8]) -> Result<u64, MessageError> {
    let at = store_timestamp_at(record)?;
    Fields { bytes: record, at }.u64()
}

/// TAGS of a record without decoding the rest; the hot path of the tag filter.
pub fn tag_of(record: &[u8]) -> Result<&str, MessageError> {
    let (_, magic) = peek(record)?;
    let mut f = Fields {
        bytes: record,
        at: SYS_FLAG_AT,
    };
    let sys_flag = f.i32()?;
    let v6 = usize::from(sys_flag & sys_flag::BORN_HOST_V6 != 0)
        + usize::from(sys_flag & sys_flag::STORE_HOST_V6 != 0);
    f.at = 84 + v6 * V6_MORE;
    let body_bytes = f.length()?;
    f.take(body_bytes)?;
    let topic_bytes = if magic == MAGIC_V2 {
        usize::from(f.u16()?)
    } else {
        usize::from(f.array::<1>()?[0])
    };
    f.take(topic_bytes)?;
    let properties_bytes = usize::from(f.u16()?);
    let encoded = std::str::from_utf8(f.take(properties_bytes)?).unwrap_or_default();
    Ok(properties::get(encoded, "TAGS").unwrap_or_default())
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
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = batch_record(rest);
        rest = record.as_ref().map_or(&[][..], |(_, after)| after);
        Some(record.map(|(record, _)| record))
    })
}

fn batch_record(bytes: &[u8]) -> Result<(BatchRecord<'_>, &[u8]), MessageError> {
    let mut f = Fields { bytes, at: 0 };
    let total = f.length()?;
    f.take(8)?;
    let flag = f.i32()?;
    let body_bytes = f.length()?;
    let body = f.take(body_bytes)?;
    let properties_bytes = usize::from(f.u16()?);
    let properties =
        std::str::from_utf8(f.take(properties_bytes)?).map_err(|_| MessageError::Utf8)?;
    if f.at != total {
        return Err(MessageError::Lengths);
    }
    Ok((
        BatchRecord {
            flag,
            body,
            properties,
        },
        &bytes[total..],
    ))
}

/// Text form of a record's server id: 32 or 56 upper-case hexadecimal characters.
pub fn offset_message_id(store_host: SocketAddr, at: PhysicalOffset) -> ArrayString<56> {
    let mut id = ArrayString::new();
    let mut push = |bytes: &[u8]| {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        for byte in bytes {
            id.push(char::from(HEX[usize::from(byte >> 4)]));
            id.push(char::from(HEX[usize::from(byte & 15)]));
        }
    };
    match store_host.ip() {
        IpAddr::V4(ip) => push(&ip.octets()),
        IpAddr::V6(ip) => push(&ip.octets()),
    }
    push(&u32::from(store_host.port()).to_be_bytes());
    push(&at.0.to_be_bytes());
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> NewMessage<'static> {
        NewMessage {
            topic: "T",
            queue_id: 1,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_000,
            born_host: ([10, 0, 0, 2], 40_000).into(),
            store_host: ([10, 0, 0, 1], 10_911).into(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"hello",
            properties: "TAGS\u{1}TagA\u{2}UNIQ_KEY\u{1}7F000001000218B4AAC2000000000000\u{2}",
            tags_code: 0,
        }
    }

    #[test]
    fn the_worked_example_of_the_format_is_met_byte_for_byte() {
        let mut out = BytesMut::new();
        example().encode(
            QueueOffset(5),
            PhysicalOffset(1000),
            1_700_000_000_001,
            &mut out,
        );
        let fixed: [&[u8]; 9] = [
            &[
                0, 0, 0, 0x95, 0xDA, 0xA3, 0x20, 0xA7, 0x36, 0x10, 0xA6, 0x86,
            ],
            &[0, 0, 0, 1, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 3, 0xE8],
            &[0, 0, 0, 0, 0, 0, 1, 0x8B, 0xCF, 0xE5, 0x68, 0],
            &[10, 0, 0, 2, 0, 0, 0x9C, 0x40],
            &[0, 0, 1, 0x8B, 0xCF, 0xE5, 0x68, 1],
            &[10, 0, 0, 1, 0, 0, 0x2A, 0x9F],
            &[0; 12],
            &[0, 0, 0, 5, b'h', b'e', b'l', b'l', b'o', 1, b'T', 0, 0x34],
        ];
        assert_eq!(out[..97], fixed.concat());
        assert_eq!(out.len(), 0x95);
        let Ok(Record::Message(message)) = StoredMessage::decode(&out) else {
            panic!("decodes")
        };
        assert_eq!((message.tag(), message.check_body_crc()), ("TagA", Ok(())));
        assert_eq!(store_timestamp_of(&out), Ok(1_700_000_000_001));
        assert_eq!(tag_of(&out), Ok("TagA"));
    }

    #[test]
    fn hosts_and_long_topics_move_what_follows() {
        let v6: SocketAddr = ([0, 0, 0, 0, 0, 0, 0, 1], 7).into();
        let long = format!("%RETRY%{}", "g".repeat(200));
        for (born, store, topic) in [
            (v6, example().store_host, "T"),
            (example().born_host, v6, "T"),
            (v6, v6, long.as_str()),
        ] {
            let message = NewMessage {
                born_host: born,
                store_host: store,
                topic,
                ..example()
            };
            let mut out = BytesMut::new();
            message.encode(QueueOffset(1), PhysicalOffset(2), 3, &mut out);
            assert_eq!(out.len(), message.encoded_bytes());
            let Ok(Record::Message(stored)) = StoredMessage::decode(&out) else {
                panic!("decodes")
            };
            assert_eq!(
                (stored.born_host, stored.store_host, stored.topic),
                (born, store, topic)
            );
            assert_eq!(
                (store_timestamp_of(&out), tag_of(&out)),
                (Ok(3), Ok("TagA"))
            );
        }
    }

    #[test]
    fn every_cut_and_every_flipped_length_is_an_error_not_a_panic() {
        let mut out = BytesMut::new();
        example().encode(QueueOffset(5), PhysicalOffset(1000), 1, &mut out);
        for end in 0..out.len() {
            assert!(StoredMessage::decode(&out[..end]).is_err(), "cut at {end}");
            let _ = tag_of(&out[..end]);
        }
        for at in 0..out.len() {
            for bit in 0..8 {
                let mut broken = out.to_vec();
                broken[at] ^= 1 << bit;
                let _ = StoredMessage::decode(&broken).map(|r| match r {
                    Record::Message(m) => m.check_body_crc().is_ok(),
                    Record::Blank(_) => false,
                });
            }
        }
    }

    #[test]
    fn a_batch_is_its_records_and_nothing_else() {
        let one: &[u8] = &[
            0, 0, 0, 0x21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, b'A', 0, 10,
        ];
        let one = [one, b"WAIT\x01true\x02"].concat();
        let record = BatchRecord {
            flag: 0,
            body: b"A",
            properties: "WAIT\u{1}true\u{2}",
        };
        let two = [&one[..], &one[..]].concat();
        let all: Result<Vec<_>, _> = batch_records(&two).collect();
        assert_eq!(all, Ok(vec![record, record]));
        for end in 1..one.len() {
            assert!(
                batch_records(&one[..end]).any(|r| r.is_err()),
                "cut at {end}"
            );
        }
        let mut larger = one.clone();
        larger[3] += 1;
        larger.push(0);
        assert_eq!(
            batch_records(&larger).next(),
            Some(Err(MessageError::Lengths))
        );
    }

    #[test]
    fn a_server_id_names_address_and_offset() {
        let id = offset_message_id(([10, 0, 0, 1], 10_911).into(), PhysicalOffset(1000));
        assert_eq!(id.as_str(), "0A00000100002A9F00000000000003E8");
        assert_eq!(
            offset_message_id(([0, 0, 0, 0, 0, 0, 0, 1], 1).into(), PhysicalOffset(0)).len(),
            56
        );
    }
}
