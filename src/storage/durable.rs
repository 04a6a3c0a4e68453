//! The file `config/ringmq.durableMark`: how far the log is flushed, and a checksum of its bytes up to there. It tells
//! the tail of a crash from damage: what breaks below the mark was once on disk as a whole.
//!
//! ```text
//! offset  width    field                             two slots, 512 bytes apart, written in turn
//!      0      4    "MARK"
//!      4      4    version 1
//!      8      8    sequence: the higher one counts
//!     16      8    base: where recovery begins to read
//!     24      8    the durable mark
//!     32      4    sum of the log at the base
//!     36      4    ... and at the mark
//!     40      4    CRC-32C of 0..40
//! ```
//!
//! A sum is the CRC-32C of all bytes that this process wrote to the log up to a place, whole records with header and
//! properties, which RocketMQ's body CRC doesn't cover. The slot is written after the flush that it tells of, so that
//! it never promises too much; it is not flushed itself: a power cut leaves an older mark.

use super::OpenError;
use super::recovery::at_path;
use super::tokens;
use crate::ids::PhysicalOffset;
use crate::io::{Failed, File, FileSystem, Io, Op};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::path::{Path, PathBuf};

/// Path below the root of the store.
const FILE: &str = "config/ringmq.durableMark";
const MAGIC: u32 = u32::from_be_bytes(*b"MARK");
const VERSION: u32 = 1;
const CRC_AT: usize = 40;
const SLOT_BYTES: usize = 44;
/// Slots lie in sectors of their own, so that a torn write harms one of them.
const SLOT_DISTANCE: u64 = 512;

/// Checksum of the log up to a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    pub end: PhysicalOffset,
    pub crc: u32,
}

/// What a slot says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    pub sequence: u64,
    pub base: Sum,
    pub flushed: Sum,
}

impl Mark {
    pub fn path(root: &Path) -> PathBuf {
        root.join(FILE)
    }

    /// The newest slot that is whole.
    pub fn decode(contents: &[u8]) -> Option<Self> {
        let slots = [0, SLOT_DISTANCE as usize];
        let marks = slots.map(|at| contents.get(at..at + SLOT_BYTES).and_then(decode_slot));
        marks.into_iter().flatten().max_by_key(|mark| mark.sequence)
    }

    fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(SLOT_BYTES);
        out.put_u32(MAGIC);
        out.put_u32(VERSION);
        out.put_u64(self.sequence);
        out.put_u64(self.base.end.0);
        out.put_u64(self.flushed.end.0);
        out.put_u32(self.base.crc);
        out.put_u32(self.flushed.crc);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out.freeze()
    }

    fn position(&self) -> u64 {
        self.sequence % 2 * SLOT_DISTANCE
    }
}

fn decode_slot(slot: &[u8]) -> Option<Mark> {
    let crc = crc32c::crc32c(&slot[..CRC_AT]);
    let mut fields = slot;
    let known = fields.get_u32() == MAGIC && fields.get_u32() == VERSION;
    let sequence = fields.get_u64();
    let (base, flushed) = (fields.get_u64(), fields.get_u64());
    let sum = |end, crc| Sum {
        end: PhysicalOffset(end),
        crc,
    };
    let mark = Mark {
        sequence,
        base: sum(base, fields.get_u32()),
        flushed: sum(flushed, fields.get_u32()),
    };
    (known && fields.get_u32() == crc).then_some(mark)
}

/// Compares what a scan reads with the sums of a mark.
#[derive(Clone, Copy, Debug)]
pub struct SumCheck {
    mark: Mark,
    /// The sum so far, from the base on.
    crc: Option<u32>,
    pub is_wrong: bool,
}

impl SumCheck {
    pub fn new(mark: Mark) -> Self {
        Self {
            mark,
            crc: None,
            is_wrong: false,
        }
    }

    pub fn take(&mut self, bytes: &[u8]) {
        self.crc = self.crc.map(|crc| crc32c::crc32c_append(crc, bytes));
    }

    /// The scan has come to a place, everything before was taken.
    pub fn reach(&mut self, at: PhysicalOffset) {
        if at == self.mark.base.end {
            self.crc = Some(self.mark.base.crc);
        }
        if at == self.mark.flushed.end {
            self.is_wrong |= self.crc.is_some_and(|crc| crc != self.mark.flushed.crc);
            self.crc = None;
        }
    }
}

/// Keeps the file up to date, behind the flushes of the log.
#[derive(Debug)]
pub struct MarkFile {
    path: PathBuf,
    file: File,
    /// As on disk or being written.
    mark: Mark,
    is_writing: bool,
    last_error: Option<String>,
}

impl MarkFile {
    /// Makes the file tell of a log that was just recovered and flushed to its end.
    pub fn open<F: FileSystem>(
        root: &Path,
        before: Option<Mark>,
        end: PhysicalOffset,
        io: &mut F,
    ) -> Result<Self, OpenError> {
        let path = Mark::path(root);
        let here = Sum { end, crc: 0 };
        let mark = Mark {
            sequence: before.map_or(0, |mark| mark.sequence) + 1,
            base: here,
            flushed: here,
        };
        let opened = io.create(&path, 2 * SLOT_DISTANCE);
        let file = opened.map_err(at_path(&path))?;
        io.write_at(file, mark.position(), &mark.encode())
            .and_then(|()| io.flush(file))
            .map_err(at_path(&path))?;
        if let Some(directory) = path.parent() {
            io.flush_directory(directory).map_err(at_path(directory))?;
        }
        Ok(Self {
            path,
            file,
            mark,
            is_writing: false,
            last_error: None,
        })
    }

    /// A checkpoint is on disk: recovery will begin at this place.
    pub fn begin_at(&mut self, base: Sum) {
        self.mark.base = base;
    }

    /// Tells of what is flushed, if that is news. One write at a time; the next one tells of all that came meanwhile.
    pub fn drive<I: Io>(&mut self, flushed: Sum, io: &mut I) {
        if self.is_writing || flushed.end <= self.mark.flushed.end {
            return;
        }
        self.is_writing = true;
        self.mark.sequence += 1;
        self.mark.flushed = flushed;
        let op = Op::Write {
            file: self.file,
            position: self.mark.position(),
            bytes: self.mark.encode(),
        };
        io.submit(tokens::DURABLE_MARK, op);
    }

    /// Without it a crash is told from damage by an older mark; it is written again after the next flush.
    pub fn on_written(&mut self, result: Result<(), Failed>) {
        assert!(self.is_writing, "no durable mark was being written");
        self.is_writing = false;
        if let Err(failed) = result {
            let error = failed.error();
            if self.last_error.is_none() {
                tracing::warn!(path = %self.path.display(), %error, "the durable mark can't be written");
            }
            self.last_error = Some(format!("writing {}: {error}", self.path.display()));
        }
    }

    pub fn is_quiet(&self) -> bool {
        !self.is_writing
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    pub fn close<I: Io>(&mut self, io: &mut I) {
        io.close(self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_whole_slot_counts() {
        let mark = |sequence: u64| Mark {
            sequence,
            base: Sum {
                end: PhysicalOffset(5),
                crc: 6,
            },
            flushed: Sum {
                end: PhysicalOffset(100 + sequence),
                crc: 7,
            },
        };
        let mut file = vec![0; 1024];
        assert_eq!(Mark::decode(&file), None);
        assert_eq!(Mark::decode(&[]), None);
        for sequence in [3, 4] {
            let at = mark(sequence).position() as usize;
            file[at..at + SLOT_BYTES].copy_from_slice(&mark(sequence).encode());
        }
        assert_eq!(Mark::decode(&file), Some(mark(4)));
        for at in 0..SLOT_BYTES {
            let mut torn = file.clone();
            torn[at] ^= 1;
            assert_eq!(Mark::decode(&torn), Some(mark(3)), "byte {at}");
        }
        assert_eq!(Mark::decode(&file[..512]), Some(mark(4)), "a short file");
    }
}
