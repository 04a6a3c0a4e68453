//! Reads the log record by record, at recovery. Each record is checked: structure, place, body CRC.

use super::OpenError;
use super::durable::SumCheck;
use super::segment::Segments;
use crate::ids::PhysicalOffset;
use crate::io::FileSystem;
use crate::limits::MIB;
use crate::protocol::message::{BLANK_BYTES, MAGIC_BLANK, MessageError, Record, StoredMessage};

/// Bytes read at once; a longer record is read as a whole.
const BLOCK_BYTES: u64 = 4 * MIB as u64;

/// Place of the next record and the bytes read ahead of it.
#[derive(Debug)]
pub struct Scanner {
    at: PhysicalOffset,
    buffer: Vec<u8>,
    /// Physical offset of the first byte in the buffer.
    buffer_start: PhysicalOffset,
    scanned_bytes: u64,
    check: Option<SumCheck>,
}

/// What the scan met.
#[derive(Debug)]
pub enum Step<'a> {
    Record(StoredMessage<'a>),
    /// No record begins here. Everything before is sound.
    Break {
        reason: String,
    },
    /// The last segment is full.
    End,
}

/// What the first eight bytes at a place tell.
enum Peek {
    Record { bytes: u64 },
    SegmentEnd { blank: Option<[u8; BLANK_BYTES]> },
    End,
    Nothing { reason: String },
}

impl Scanner {
    pub fn new(at: PhysicalOffset) -> Self {
        Self {
            at,
            buffer: Vec::new(),
            buffer_start: at,
            scanned_bytes: 0,
            check: None,
        }
    }

    /// Compares with the sums of a durable mark while reading.
    pub fn check(&mut self, mut check: SumCheck) {
        check.reach(self.at);
        self.check = Some(check);
    }

    pub fn is_sum_wrong(&self) -> bool {
        self.check.is_some_and(|check| check.is_wrong)
    }

    /// Where the next record begins; after `Break` or `End`, the end of the log.
    pub fn at(&self) -> PhysicalOffset {
        self.at
    }

    pub fn scanned_bytes(&self) -> u64 {
        self.scanned_bytes
    }

    /// The next record.
    ///
    /// **Errors**: a read failed. What is wrong with the bytes is no error but a `Break`.
    pub fn next<F: FileSystem>(
        &mut self,
        segments: &Segments,
        io: &F,
    ) -> Result<Step<'_>, OpenError> {
        let bytes = loop {
            match self.peek(segments, io)? {
                Peek::Record { bytes } => break bytes,
                Peek::SegmentEnd { blank } => self.take_blank(blank, segments),
                Peek::End => return Ok(Step::End),
                Peek::Nothing { reason } => return Ok(Step::Break { reason }),
            }
        };
        self.fill(bytes, segments, io)?;
        let at = self.at;
        let from = at.bytes_since(self.buffer_start) as usize;
        let end = (from + bytes as usize).min(self.buffer.len());
        match decode(&self.buffer[from..end], at) {
            Ok(message) => {
                self.at = at.advance(bytes);
                self.scanned_bytes += bytes;
                if let Some(check) = &mut self.check {
                    check.take(message.bytes);
                    check.reach(self.at);
                }
                Ok(Step::Record(message))
            }
            Err(reason) => Ok(Step::Break { reason }),
        }
    }

    fn take_blank(&mut self, blank: Option<[u8; BLANK_BYTES]>, segments: &Segments) {
        self.at = self.segment_end(segments);
        if let Some(check) = &mut self.check {
            check.take(blank.as_ref().map_or(&[], |blank| &blank[..]));
            check.reach(self.at);
        }
    }

    fn segment_end(&self, segments: &Segments) -> PhysicalOffset {
        let into = self.at.bytes_since(segments.start()) % segments.bytes();
        self.at.advance(segments.bytes() - into)
    }

    fn peek<F: FileSystem>(&mut self, segments: &Segments, io: &F) -> Result<Peek, OpenError> {
        if self.at >= segments.end() {
            return Ok(Peek::End);
        }
        let room = self.segment_end(segments).bytes_since(self.at);
        if room < BLANK_BYTES as u64 {
            return Ok(Peek::SegmentEnd { blank: None });
        }
        self.fill(BLANK_BYTES as u64, segments, io)?;
        let from = self.at.bytes_since(self.buffer_start) as usize;
        let Some(start) = self.buffer[from..].first_chunk::<BLANK_BYTES>() else {
            let reason = "the file ends early".to_owned();
            return Ok(Peek::Nothing { reason });
        };
        if *start == [0; BLANK_BYTES] {
            let reason = "nothing is written here".to_owned();
            return Ok(Peek::Nothing { reason });
        }
        let [s0, s1, s2, s3, m0, m1, m2, m3] = *start;
        let bytes = u64::from(u32::from_be_bytes([s0, s1, s2, s3]));
        if u32::from_be_bytes([m0, m1, m2, m3]) == MAGIC_BLANK {
            let blank = Some(*start);
            return Ok(Peek::SegmentEnd { blank });
        }
        if bytes > room {
            let reason = format!("a record of {bytes} bytes, the segment has {room} left");
            return Ok(Peek::Nothing { reason });
        }
        Ok(Peek::Record {
            bytes: bytes.max(BLANK_BYTES as u64),
        })
    }

    /// Makes the buffer hold `bytes` from the current place on, as far as the file has them.
    fn fill<F: FileSystem>(
        &mut self,
        bytes: u64,
        segments: &Segments,
        io: &F,
    ) -> Result<(), OpenError> {
        let buffer_end = self.buffer_start.advance(self.buffer.len() as u64);
        if self.at >= self.buffer_start && self.at.advance(bytes) <= buffer_end {
            return Ok(());
        }
        let Some(segment) = segments.find(self.at) else {
            unreachable!("{} lies in no segment", self.at);
        };
        let room = self.segment_end(segments).bytes_since(self.at);
        let want = bytes.max(BLOCK_BYTES).min(room);
        self.buffer.resize(want as usize, 0);
        let position = self.at.bytes_since(segment.first);
        let read = io.read_at(segment.file, position, &mut self.buffer);
        let count = read.map_err(|source| OpenError::Io {
            path: segments.path(segment.first),
            source,
        })?;
        self.buffer.truncate(count);
        self.buffer_start = self.at;
        Ok(())
    }
}

/// A record that is sound and lies where it says, or why not.
fn decode(bytes: &[u8], at: PhysicalOffset) -> Result<StoredMessage<'_>, String> {
    let message = match StoredMessage::decode(bytes) {
        Ok(Record::Message(message)) => message,
        Ok(Record::Blank(_)) => return Err("a blank record inside a segment".to_owned()),
        Err(MessageError::Short { .. }) => return Err("the record is cut off".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    if message.physical_offset != at {
        let stored = message.physical_offset;
        return Err(format!("the record says that it lies at {stored}"));
    }
    message
        .check_body_crc()
        .map_err(|error| error.to_string())?;
    Ok(message)
}
