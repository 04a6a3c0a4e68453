//! The files of a commit log: equal sizes, named by the physical offset of their first byte, without gaps.
//!
//! The file behind the newest one is prepared in the background as soon as the newest one is used, so that a roll
//! only takes it over. If it isn't ready at the roll, appends that need it are refused (busy, or disk full) until
//! it is: nothing waits.

use super::tokens;
use crate::ids::PhysicalOffset;
use crate::io::{Failed, File, Io, Op};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

/// Digits of a file name in `commitlog/` and `consumequeue/`. Source: apache/rocketmq `UtilAll.offset2FileName`.
const NAME_DIGITS: usize = 20;
/// Pause between attempts to prepare a segment after one failed, usually because the disk is full.
const PREPARE_RETRY_MS: u64 = 1000;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// Name of the file that starts at a byte offset.
pub fn file_name(first_byte: u64) -> String {
    format!("{first_byte:0width$}", width = NAME_DIGITS)
}

/// The first byte that a file name tells; `None` for other files.
pub fn parse_file_name(name: &str) -> Option<u64> {
    let is_offset = name.len() == NAME_DIGITS && name.bytes().all(|b| b.is_ascii_digit());
    is_offset.then(|| name.parse().ok()).flatten()
}

/// The disk, or what this user may have of it, is full.
pub fn is_no_room(errno: i32) -> bool {
    errno == ENOSPC || errno == EDQUOT
}

/// One file of the log, open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    pub first: PhysicalOffset,
    pub file: File,
}

/// The file behind the newest one.
#[derive(Debug)]
enum Next {
    Absent,
    Preparing,
    Ready(File),
    Failed { errno: i32, retry_us: u64 },
}

/// Why the next segment can't be taken yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotReady {
    /// It is being prepared.
    Busy,
    DiskFull(String),
}

/// **Invariants**: segments are adjacent and in order; there is always one, in which the log ends or behind which
/// the next record begins a new one.
#[derive(Debug)]
pub struct Segments {
    directory: PathBuf,
    bytes: u64,
    zero_fill: bool,
    list: VecDeque<Segment>,
    next: Next,
}

impl Segments {
    pub fn new(directory: PathBuf, bytes: u64, zero_fill: bool) -> Self {
        Self {
            directory,
            bytes,
            zero_fill,
            list: VecDeque::new(),
            next: Next::Absent,
        }
    }

    /// Bytes of each segment.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds the segment behind the newest one.
    pub fn push(&mut self, segment: Segment) {
        if let Some(last) = self.list.back() {
            let end = last.first.advance(self.bytes);
            assert_eq!(segment.first, end, "segments are adjacent");
        }
        self.list.push_back(segment);
    }

    /// Removes the newest segment.
    pub fn pop(&mut self) -> Option<Segment> {
        self.list.pop_back()
    }

    /// The newest segment is unused: it becomes the prepared one.
    pub fn put_back(&mut self) {
        if let Some(segment) = self.list.pop_back() {
            self.next = Next::Ready(segment.file);
        }
    }

    pub fn path(&self, first: PhysicalOffset) -> PathBuf {
        self.directory.join(file_name(first.0))
    }

    /// First byte that still exists.
    pub fn start(&self) -> PhysicalOffset {
        self.list.front().map_or_else(Default::default, |s| s.first)
    }

    /// First byte behind the newest segment.
    pub fn end(&self) -> PhysicalOffset {
        let behind = |s: &Segment| s.first.advance(self.bytes);
        self.list.back().map_or_else(Default::default, behind)
    }

    pub fn get(&self, index: usize) -> Option<Segment> {
        self.list.get(index).copied()
    }

    /// Index of the segment that holds a byte.
    pub fn index_of(&self, at: PhysicalOffset) -> Option<usize> {
        if at < self.start() || at >= self.end() {
            return None;
        }
        Some((at.bytes_since(self.start()) / self.bytes) as usize)
    }

    /// The segment that holds a byte.
    pub fn find(&self, at: PhysicalOffset) -> Option<Segment> {
        self.index_of(at).and_then(|index| self.get(index))
    }

    /// File, path and position inside of a byte that exists; for messages about it.
    pub fn place(&self, at: PhysicalOffset) -> (PathBuf, u64) {
        match self.find(at) {
            Some(segment) => (self.path(segment.first), at.bytes_since(segment.first)),
            None => (self.directory.clone(), at.0),
        }
    }

    /// Starts preparing the file behind the newest one, unless that has been done.
    pub fn prepare_next<I: Io>(&mut self, now_us: u64, io: &mut I) {
        match self.next {
            Next::Preparing | Next::Ready(_) => return,
            Next::Failed { retry_us, .. } if now_us < retry_us => return,
            Next::Absent | Next::Failed { .. } => {}
        }
        let op = Op::Prepare {
            path: self.path(self.end()),
            len: self.bytes,
            zero_fill: self.zero_fill,
        };
        self.next = Next::Preparing;
        io.submit(tokens::LOG_PREPARE, op);
    }

    pub fn on_prepared(&mut self, result: Result<File, Failed>, now_us: u64) {
        assert!(
            matches!(self.next, Next::Preparing),
            "prepared without being asked: {:?}",
            self.next
        );
        self.next = match result {
            Ok(file) => Next::Ready(file),
            Err(failed) => Next::Failed {
                errno: failed.errno,
                retry_us: now_us + PREPARE_RETRY_MS * 1000,
            },
        };
    }

    /// When [`Segments::prepare_next`] tries again.
    pub fn retry_us(&self) -> Option<u64> {
        match self.next {
            Next::Failed { retry_us, .. } => Some(retry_us),
            Next::Absent | Next::Preparing | Next::Ready(_) => None,
        }
    }

    /// Why [`Segments::take_next`] would not find a file.
    pub fn next_ready(&self) -> Result<(), NotReady> {
        match &self.next {
            Next::Ready(_) => Ok(()),
            Next::Absent | Next::Preparing => Err(NotReady::Busy),
            Next::Failed { errno, .. } => Err(self.not_prepared(*errno)),
        }
    }

    fn not_prepared(&self, errno: i32) -> NotReady {
        let error = io::Error::from_raw_os_error(errno);
        let path = self.path(self.end());
        let what = if is_no_room(errno) {
            "no room for"
        } else {
            "can't prepare"
        };
        NotReady::DiskFull(format!("{what} {}: {error}", path.display()))
    }

    /// Makes the prepared file the newest segment.
    pub fn take_next(&mut self) -> Segment {
        let Next::Ready(file) = std::mem::replace(&mut self.next, Next::Absent) else {
            unreachable!("a roll was decided without a prepared segment");
        };
        let segment = Segment {
            first: self.end(),
            file,
        };
        self.push(segment);
        segment
    }

    /// Closes all files; nothing may be in flight.
    pub fn close<I: Io>(&mut self, io: &mut I) {
        for segment in self.list.drain(..) {
            io.close(segment.file);
        }
        if let Next::Ready(file) = std::mem::replace(&mut self.next, Next::Absent) {
            io.close(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_twenty_digits() {
        assert_eq!(file_name(1_073_741_824), "00000000001073741824");
        assert_eq!(parse_file_name("00000000001073741824"), Some(1_073_741_824));
        for other in [
            "lock",
            "1073741824",
            "0000000000107374182x",
            "0000000000107374182 ",
        ] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }

    #[test]
    fn bytes_are_found_in_their_segment() {
        let mut segments = Segments::new(PathBuf::from("/log"), 100, false);
        for index in 2..5 {
            segments.push(Segment {
                first: PhysicalOffset(index * 100),
                file: File(index as u32),
            });
        }
        let cases = [
            (199, None),
            (200, Some(2)),
            (299, Some(2)),
            (300, Some(3)),
            (499, Some(4)),
            (500, None),
        ];
        for (at, expected) in cases {
            let found = segments.find(PhysicalOffset(at));
            assert_eq!(found.map(|s| s.file), expected.map(File), "{at}");
        }
    }
}
