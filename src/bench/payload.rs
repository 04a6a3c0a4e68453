//! What a message carries: by whom, its number, when it was to be sent, and a checksum over all that.
//!
//! ```text
//! offset  width  field
//!      0      4  CRC-32 of everything behind it
//!      4      4  producer
//!      8      4  queue
//!     12      8  number, dense for each producer and queue
//!     20      8  intended send time, nanoseconds since the start of the run
//!     28      n  filler
//! ```

use bytes::{BufMut, BytesMut};

pub const HEAD_BYTES: usize = 28;
const CHECKSUM_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    pub producer: u32,
    pub queue: u32,
    pub number: u64,
    pub intended: u64,
}

impl Payload {
    /// Replaces `out` by a body of `bytes`, which are at least those of the head.
    pub fn write(self, bytes: usize, out: &mut BytesMut) {
        assert!(bytes >= HEAD_BYTES, "a body of {bytes} bytes has no room");
        out.clear();
        out.put_u32(0);
        out.put_u32(self.producer);
        out.put_u32(self.queue);
        out.put_u64(self.number);
        out.put_u64(self.intended);
        out.put_bytes(b'x', bytes - HEAD_BYTES);
        let checksum = crc32fast::hash(&out[CHECKSUM_BYTES..]);
        out[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_be_bytes());
    }

    /// `None`: these are not the bytes that were sent.
    pub fn read(body: &[u8]) -> Option<Self> {
        let (checksum, rest) = body.split_first_chunk::<CHECKSUM_BYTES>()?;
        if crc32fast::hash(rest) != u32::from_be_bytes(*checksum) {
            return None;
        }
        let (producer, rest) = rest.split_first_chunk()?;
        let (queue, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (intended, _) = rest.split_first_chunk()?;
        Some(Self {
            producer: u32::from_be_bytes(*producer),
            queue: u32::from_be_bytes(*queue),
            number: u64::from_be_bytes(*number),
            intended: u64::from_be_bytes(*intended),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_seen() {
        let payload = Payload {
            producer: 3,
            queue: 1,
            number: 7,
            intended: u64::MAX,
        };
        let mut body = BytesMut::new();
        payload.write(40, &mut body);
        assert_eq!((body.len(), Payload::read(&body)), (40, Some(payload)));
        for bit in 0..body.len() * 8 {
            body[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Payload::read(&body), None, "bit {bit}");
            body[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Payload::read(&body[..27]), None);
    }
}
