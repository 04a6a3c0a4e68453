//! The commit log of one shard: open batch, writes in flight, watermarks, rolling.
//!
//! **Owned by**: one shard, on its thread. A record gets its physical offset when it is appended to the open batch;
//! [`CommitLog::seal`] turns the batch into writes. Writes finish in any order; only the contiguous finished prefix
//! counts. Flushing is in `flush.rs`.
//!
//! **Invariants**: `flushed ≤ written ≤ appended`; each has one writer and only grows. After a failed write or flush
//! all of them stand still and nothing is submitted any more.
//!
//! End of a segment, as in Apache: a record goes into a segment only if at least 8 bytes stay behind it. Otherwise
//! these bytes become a blank record:
//!
//! ```text
//! offset  width    field
//!      0      4    bytes from here to the end of the segment
//!      4      4    magic CBD43194
//!      8      -    zeros, never written: the file has them
//! ```

use super::chunks::Chunks;
use super::flush::Flushing;
use super::segment::{NotReady, Segments};
use super::tail_cache::TailCache;
use super::{AppendError, FlushMode, tokens};
use crate::clock::Now;
use crate::ids::{PhysicalOffset, QueueOffset};
use crate::io::{Failed, Io, Op, Token};
use crate::limits::{LOG_WRITE_BYTES_MAX, UNWRITTEN_BYTES_MAX};
use crate::protocol::message::{BLANK_BYTES, MAGIC_BLANK, NewMessage};
use crate::stats::LogTimes;
use bytes::{BufMut, Bytes};
use std::collections::VecDeque;

/// A sealed piece of the log, not yet submitted.
#[derive(Debug)]
struct Part {
    start: PhysicalOffset,
    bytes: Bytes,
    /// What counts as written with it: its last byte, or the end of the segment behind a blank.
    end: PhysicalOffset,
}

#[derive(Debug)]
struct Write {
    start: PhysicalOffset,
    end: PhysicalOffset,
    /// When it was sealed, in monotonic microseconds.
    sealed_us: u64,
    done: bool,
}

/// Writes that the kernel has, in log order, numbered without gaps.
#[derive(Debug, Default)]
struct Writes {
    queue: VecDeque<Write>,
    /// Number of the oldest one.
    first: u64,
}

/// Where the log starts after recovery.
#[derive(Clone, Copy, Debug)]
pub struct LogStart {
    pub end: PhysicalOffset,
    pub store_timestamp: u64,
}

#[derive(Debug)]
pub struct CommitLog {
    pub(super) segments: Segments,
    pub(super) mode: FlushMode,
    chunks: Chunks,
    /// Physical offset of the first byte of the current chunk.
    batch_start: PhysicalOffset,
    sealed: VecDeque<Part>,
    writes: Writes,
    appended: PhysicalOffset,
    written: PhysicalOffset,
    pub(super) flushed: PhysicalOffset,
    pub(super) flushing: Flushing,
    pub(super) failure: Option<String>,
    pub(super) times: LogTimes,
    store_timestamp: u64,
}

impl CommitLog {
    pub fn new(
        segments: Segments,
        start: LogStart,
        mode: FlushMode,
        tail_cache_bytes: u64,
    ) -> Self {
        let end = start.end;
        assert!(
            segments.start() <= end && end <= segments.end(),
            "the log ends at {end}, its segments cover {} to {}",
            segments.start(),
            segments.end()
        );
        Self {
            segments,
            mode,
            chunks: Chunks::new(tail_cache_bytes),
            batch_start: end,
            sealed: VecDeque::new(),
            writes: Writes::default(),
            appended: end,
            written: end,
            flushed: end,
            flushing: Flushing::default(),
            failure: None,
            times: LogTimes::default(),
            store_timestamp: start.store_timestamp,
        }
    }

    pub fn start(&self) -> PhysicalOffset {
        self.segments.start()
    }
    pub fn appended(&self) -> PhysicalOffset {
        self.appended
    }
    pub fn written(&self) -> PhysicalOffset {
        self.written
    }
    pub fn flushed(&self) -> PhysicalOffset {
        self.flushed
    }
    pub fn visible(&self) -> PhysicalOffset {
        match self.mode {
            FlushMode::Async { .. } => self.written,
            FlushMode::Sync => self.flushed,
        }
    }
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
    /// Store timestamp of the newest record.
    pub fn store_timestamp(&self) -> u64 {
        self.store_timestamp
    }
    /// Everything appended was submitted and has completed. The next segment may still be in preparation: a stop
    /// doesn't wait for its zeros.
    pub fn is_quiet(&self) -> bool {
        self.writes.queue.is_empty()
            && !self.flushing.in_flight()
            && (self.failure.is_some() || self.written == self.appended)
    }

    /// Largest record that fits a segment with the blank behind it.
    fn record_bytes_max(&self) -> u64 {
        self.segments.bytes() - BLANK_BYTES as u64
    }

    /// Bytes left in the segment that the next record would go into.
    fn room(&self) -> u64 {
        let end = self.segments.end();
        assert!(self.appended <= end, "{} lies beyond {end}", self.appended);
        end.bytes_since(self.appended)
    }

    /// Whether records of these sizes, appended one behind the other, find room. Nothing is changed.
    ///
    /// **Errors**: why not. A group that doesn't fit one segment is `TooLong`, so that one prepared segment suffices.
    pub fn check_room(
        &self,
        records: impl Iterator<Item = u64> + Clone,
    ) -> Result<(), AppendError> {
        if let Some(reason) = &self.failure {
            return Err(AppendError::ReadOnly(reason.clone()));
        }
        let total: u64 = records.clone().sum();
        let max = self.record_bytes_max();
        if total > max {
            return Err(AppendError::TooLong { bytes: total, max });
        }
        let unwritten = self.appended.bytes_since(self.visible());
        let busy = AppendError::Busy {
            unwritten,
            max: UNWRITTEN_BYTES_MAX,
        };
        if unwritten + total > UNWRITTEN_BYTES_MAX {
            return Err(busy);
        }
        let mut room = self.room();
        for bytes in records {
            if bytes + BLANK_BYTES as u64 > room {
                return match self.segments.next_ready() {
                    Ok(()) => Ok(()),
                    Err(NotReady::Busy) => Err(busy),
                    Err(NotReady::DiskFull(text)) => Err(AppendError::DiskFull(text)),
                };
            }
            room -= bytes;
        }
        Ok(())
    }

    /// Store timestamp of a record appended now: never before that of an earlier record.
    pub fn next_store_timestamp(&self, now: Now) -> u64 {
        self.store_timestamp.max(now.wall_ms)
    }

    /// Encodes a record into the open batch; [`CommitLog::check_room`] has allowed it. Returns its place.
    pub fn append(
        &mut self,
        message: &NewMessage<'_>,
        queue_offset: QueueOffset,
        record_bytes: u64,
        now: Now,
    ) -> PhysicalOffset {
        if record_bytes + BLANK_BYTES as u64 > self.room() {
            self.roll();
        }
        // A blank may follow in the same chunk.
        let need = record_bytes as usize + BLANK_BYTES;
        if !self.chunks.has_room(need) {
            self.cut(self.appended);
            self.chunks.renew(need);
        }
        let at = self.appended;
        self.store_timestamp = self.next_store_timestamp(now);
        let chunk = self.chunks.current();
        let before = chunk.len();
        message.encode(queue_offset, at, self.store_timestamp, chunk);
        let encoded = (chunk.len() - before) as u64;
        assert_eq!(encoded, record_bytes, "announced and encoded size at {at}");
        self.advance_appended(at.advance(record_bytes));
        self.times.on_appended();
        at
    }

    fn advance_appended(&mut self, to: PhysicalOffset) {
        assert!(to >= self.appended, "appended {} to {to}", self.appended);
        self.appended = to;
    }

    /// Ends the current segment with a blank and begins the prepared one.
    fn roll(&mut self) {
        let room = self.room();
        // A segment that Apache filled to its last byte has no room even for the blank.
        if room >= BLANK_BYTES as u64 {
            if !self.chunks.has_room(BLANK_BYTES) {
                self.cut(self.appended);
                self.chunks.renew(BLANK_BYTES);
            }
            let chunk = self.chunks.current();
            chunk.put_u32(room as u32);
            chunk.put_u32(MAGIC_BLANK);
        }
        let end = self.segments.end();
        self.cut(end);
        self.advance_appended(end);
        self.batch_start = end;
        let segment = self.segments.take_next();
        assert_eq!(
            segment.first, end,
            "the next segment begins where this one ends"
        );
    }

    /// Splits the filled part of the chunk off; `end` counts as written with it.
    fn cut(&mut self, end: PhysicalOffset) {
        if self.chunks.filled() > 0 {
            let bytes = self.chunks.current().split().freeze();
            let part = Part {
                start: self.batch_start,
                bytes,
                end,
            };
            let bytes_end = part.start.advance(part.bytes.len() as u64);
            assert!(bytes_end <= end, "{bytes_end} bytes before {end}");
            self.sealed.push_back(part);
        }
        self.batch_start = end;
    }

    /// Ends the open batch and submits it.
    pub fn seal<I: Io>(&mut self, tail: &mut TailCache, io: &mut I) {
        if self.failure.is_some() {
            return;
        }
        self.cut(self.appended);
        let sealed_us = self.times.on_sealed();
        while let Some(part) = self.sealed.pop_front() {
            tail.push(part.start, part.bytes.clone());
            self.submit(part, sealed_us, io);
        }
    }

    /// One write, or several of a part beyond the largest write.
    fn submit<I: Io>(&mut self, part: Part, sealed_us: u64, io: &mut I) {
        let Part {
            mut start,
            mut bytes,
            end,
        } = part;
        let Some(segment) = self.segments.find(start) else {
            unreachable!("a batch at {start} lies in no segment");
        };
        loop {
            let piece = bytes.split_to(bytes.len().min(LOG_WRITE_BYTES_MAX));
            let piece_end = start.advance(piece.len() as u64);
            let number = self.writes.first + self.writes.queue.len() as u64;
            self.writes.queue.push_back(Write {
                start,
                end: if bytes.is_empty() { end } else { piece_end },
                sealed_us,
                done: false,
            });
            let op = Op::Write {
                file: segment.file,
                position: start.bytes_since(segment.first),
                bytes: piece,
            };
            io.submit(tokens::log_write(number), op);
            start = piece_end;
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// A write finished. Moves `written` to the end of the finished prefix.
    ///
    /// Bytes behind a gap do not count, even if their own write has finished: recovery would stop at the gap.
    /// Example: A, B, C in flight; C then A finish → `written` = end of A.
    pub fn on_written(&mut self, token: Token, result: Result<(), Failed>) {
        let number = tokens::log_write_number(token);
        let index = number.checked_sub(self.writes.first);
        let write = index.and_then(|index| self.writes.queue.get_mut(index as usize));
        let Some(write) = write else {
            unreachable!("write {number} is not in flight: {:?}", self.writes);
        };
        assert!(!write.done, "write {number} finished twice");
        write.done = true;
        let start = write.start;
        if let Err(failed) = result {
            self.fail("write", start, &failed);
        }
        while let Some(write) = self.writes.queue.front()
            && write.done
        {
            if self.failure.is_none() {
                assert!(
                    write.end > self.written,
                    "written {} to {}",
                    self.written,
                    write.end
                );
                self.written = write.end;
                let flush_in_flight = self.flushing.in_flight();
                self.times.on_written(write.sealed_us, flush_in_flight);
            }
            self.writes.first += 1;
            self.writes.queue.pop_front();
        }
        assert!(
            self.written <= self.appended,
            "{} > {}",
            self.written,
            self.appended
        );
    }

    /// One strike: the log is read-only until restart.
    pub(super) fn fail(&mut self, what: &str, at: PhysicalOffset, failed: &Failed) {
        if self.failure.is_some() {
            return;
        }
        let (path, position) = self.segments.place(at);
        let error = failed.error();
        self.failure = Some(format!(
            "{what} of {} at {position} failed: {error}",
            path.display()
        ));
    }

    /// Starts what is due besides the batch: the next segment once this one is used.
    pub fn prepare_next<I: Io>(&mut self, now: Now, io: &mut I) {
        if self.failure.is_none() && self.room() < self.segments.bytes() {
            self.segments.prepare_next(now.monotonic_us, io);
        }
    }

    /// What wakes the log without other cause. Appends that came after the turn's seal are due at once.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.failure.is_some() {
            return None;
        }
        if self.chunks.filled() > 0 || !self.sealed.is_empty() {
            return Some(0);
        }
        let retry = self.segments.retry_us();
        [retry, self.flush_due_us()].into_iter().flatten().min()
    }
}
