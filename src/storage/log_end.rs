//! The end of the log at recovery: what counts is made durable, what lies behind is made zeros.

use super::OpenError;
use super::recovery::{Recovery, at_path};
use crate::ids::PhysicalOffset;
use crate::io::{File, FileSystem};
use crate::limits::{KIB, MIB};
use std::io;

/// Bytes read and written at once.
const BLOCK_BYTES: usize = MIB as usize;
/// How far the bytes behind a crash's end are looked at to tell how many were cut; all are zeroed.
const CUT_COUNT_BYTES_MAX: u64 = 64 * MIB as u64;

impl<F: FileSystem> Recovery<'_, F> {
    /// Makes the log end here: zeros behind, no later segments, and a segment to go on in.
    pub fn end_log(&mut self, end: PhysicalOffset, clear_behind: bool) -> Result<(), OpenError> {
        if clear_behind {
            self.cut(end)?;
        }
        if end == self.segments.end() {
            self.add_segment(end)?;
        }
        while self.segments.len() > 1
            && let Some(last) = self.segments.get(self.segments.len() - 1)
            && last.first > end
        {
            let is_next = last.first.0 <= end.0 + self.config.segment_bytes;
            if is_next && !clear_behind {
                // Prepared before an orderly stop, and not used yet.
                self.segments.put_back();
            } else {
                self.remove_last_segment()?;
            }
        }
        self.report.segments = self.segments.len();
        Ok(())
    }

    fn remove_last_segment(&mut self) -> Result<(), OpenError> {
        if let Some(segment) = self.segments.pop() {
            self.io.close(segment.file);
            let path = self.segments.path(segment.first);
            self.io.remove(&path).map_err(at_path(&path))?;
        }
        Ok(())
    }

    /// Zeroes the rest of the segment. Allocated blocks stay; on some file systems the zeros cost a flush a little more
    /// than those that were written ahead, until the next roll. Reading a whole segment to keep those would cost the
    /// start more.
    fn cut(&mut self, end: PhysicalOffset) -> Result<(), OpenError> {
        let Some(segment) = self.segments.find(end) else {
            return Ok(());
        };
        if self.created == Some(segment.first) {
            return Ok(());
        }
        let path = self.segments.path(segment.first);
        let position = end.bytes_since(segment.first);
        let bytes = self.config.segment_bytes;
        let window = bytes.min(position + CUT_COUNT_BYTES_MAX);
        let last = last_nonzero(segment.file, position, window, self.io);
        let last = last.map_err(at_path(&path))?;
        self.report.cut_bytes = last.map_or(0, |last| last + 1 - position);
        let zeroed = self.io.zero_range(segment.file, position, bytes - position);
        zeroed.map_err(at_path(&path))?;
        self.io.flush(segment.file).map_err(at_path(&path))
    }

    /// Makes bytes that were written but perhaps not flushed durable: all that was read counts from here on. They are
    /// written again before the flush, since a flush that failed in the last life may have left pages that the kernel
    /// takes for clean and that are not on the disk.
    pub fn secure(&mut self, from: PhysicalOffset, end: PhysicalOffset) -> Result<(), OpenError> {
        let mut at = from;
        let mut block = vec![0; BLOCK_BYTES];
        while at < end
            && let Some(segment) = self.segments.find(at)
        {
            let path = self.segments.path(segment.first);
            let position = at.bytes_since(segment.first);
            let left = end
                .bytes_since(at)
                .min(self.config.segment_bytes - position);
            let want = block.len().min(left as usize);
            let read = self.io.read_at(segment.file, position, &mut block[..want]);
            let count = read.map_err(at_path(&path))?;
            let written = self.io.write_at(segment.file, position, &block[..count]);
            written.map_err(at_path(&path))?;
            at = at.advance(want as u64);
            if want as u64 == left {
                self.io.flush(segment.file).map_err(at_path(&path))?;
            }
        }
        Ok(())
    }
}

/// First byte that isn't zero in a range of a file.
pub fn first_nonzero<F: FileSystem>(
    file: File,
    from: u64,
    end: u64,
    io: &F,
) -> io::Result<Option<u64>> {
    let mut block = vec![0; 64 * KIB as usize];
    let mut at = from;
    while at < end {
        at = io.next_data(file, at)?.max(at);
        if at >= end {
            return Ok(None);
        }
        let want = block.len().min((end - at) as usize);
        let count = io.read_at(file, at, &mut block[..want])?;
        if let Some(found) = block[..count].iter().position(|byte| *byte != 0) {
            return Ok(Some(at + found as u64));
        }
        if count < want {
            return Ok(None);
        }
        at += count as u64;
    }
    Ok(None)
}

/// Last byte that isn't zero in a range of a file.
fn last_nonzero<F: FileSystem>(file: File, from: u64, end: u64, io: &F) -> io::Result<Option<u64>> {
    let mut last = None;
    let mut at = from;
    let mut block = vec![0; BLOCK_BYTES];
    while at < end {
        at = io.next_data(file, at)?.max(at);
        let want = block.len().min(end.saturating_sub(at) as usize);
        let count = io.read_at(file, at, &mut block[..want])?;
        if count == 0 {
            break;
        }
        if let Some(found) = block[..count].iter().rposition(|byte| *byte != 0) {
            last = Some(at + found as u64);
        }
        at += count as u64;
    }
    Ok(last)
}
