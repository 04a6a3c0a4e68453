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
use super::durable::Sum;
use super::flush::Flushing;
use super::segment::{NotReady, Segments, is_no_room};
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

/// Pause between attempts to write what found no room on the disk.
const FULL_RETRY_MS: u64 = 1000;

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
    /// Sum of the log behind it, if it ends a batch.
    sum: Option<u32>,
    state: WriteState,
}

#[derive(Debug)]
enum WriteState {
    InFlight(Bytes),
    /// There was no room on the disk: it is written again, as a whole, once some time has passed.
    Stalled(Bytes),
    Done,
}

/// The disk took no more.
#[derive(Debug)]
struct Full {
    reason: String,
    retry_us: u64,
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
    /// Some writes wait for room on the disk.
    full: Option<Full>,
    pub(super) times: LogTimes,
    store_timestamp: u64,
    /// CRC-32C of all that was sealed.
    sealed_crc: u32,
    written_sum: Sum,
    pub(super) flushed_sum: Sum,
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
            full: None,
            times: LogTimes::default(),
            store_timestamp: start.store_timestamp,
            sealed_crc: 0,
            written_sum: Sum { end, crc: 0 },
            flushed_sum: Sum { end, crc: 0 },
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
    /// The last batch that is written as a whole.
    pub fn written_sum(&self) -> Sum {
        self.written_sum
    }
    /// The last batch that is known to be flushed as a whole.
    pub fn flushed_sum(&self) -> Sum {
        self.flushed_sum
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
        if let Some(full) = &self.full {
            return Err(AppendError::DiskFull(full.reason.clone()));
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
        self.sealed_crc = crc32c::crc32c_append(self.sealed_crc, &bytes);
        loop {
            let piece = bytes.split_to(bytes.len().min(LOG_WRITE_BYTES_MAX));
            let piece_end = start.advance(piece.len() as u64);
            let number = self.writes.first + self.writes.queue.len() as u64;
            self.writes.queue.push_back(Write {
                start,
                end: if bytes.is_empty() { end } else { piece_end },
                sealed_us,
                sum: bytes.is_empty().then_some(self.sealed_crc),
                state: WriteState::InFlight(piece.clone()),
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
    pub fn on_written(&mut self, token: Token, result: Result<(), Failed>, now: Now) {
        let number = tokens::log_write_number(token);
        let index = number.checked_sub(self.writes.first);
        let write = index.and_then(|index| self.writes.queue.get_mut(index as usize));
        let Some(write) = write else {
            unreachable!("write {number} is not in flight: {:?}", self.writes);
        };
        let state = std::mem::replace(&mut write.state, WriteState::Done);
        let WriteState::InFlight(bytes) = state else {
            unreachable!("write {number} finished, but was {state:?}");
        };
        let start = write.start;
        match result {
            Ok(()) => {}
            Err(failed) if is_no_room(failed.errno) && self.failure.is_none() => {
                write.state = WriteState::Stalled(bytes);
                self.stall(start, &failed, now);
            }
            Err(failed) => self.fail("write", start, &failed),
        }
        self.take_finished();
    }

    /// Moves `written` over the finished prefix.
    fn take_finished(&mut self) {
        while let Some(write) = self.writes.queue.front()
            && matches!(write.state, WriteState::Done)
        {
            if self.failure.is_none() {
                assert!(
                    write.end > self.written,
                    "written {} to {}",
                    self.written,
                    write.end
                );
                self.written = write.end;
                if let Some(crc) = write.sum {
                    let end = write.end;
                    self.written_sum = Sum { end, crc };
                }
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

    /// A write found no room. Nothing of it counts, and sends are refused until it has been done: it holds records
    /// that have their offsets, so that it is not given up.
    fn stall(&mut self, at: PhysicalOffset, failed: &Failed, now: Now) {
        let (path, position) = self.segments.place(at);
        let error = failed.error();
        let reason = format!("no room to write {} at {position}: {error}", path.display());
        if self.full.is_none() {
            tracing::error!(reason, "sends are refused until there is room on the disk");
        }
        let retry_us = now.after_ms(FULL_RETRY_MS);
        self.full = Some(Full { reason, retry_us });
    }

    /// Writes again what found no room. At a stop there is no waiting for it: the log is cut there.
    pub fn retry_full<I: Io>(&mut self, now: Now, is_stopping: bool, io: &mut I) {
        let Some(full) = &self.full else {
            return;
        };
        if is_stopping && self.failure.is_none() {
            self.failure = Some(full.reason.clone());
        }
        if self.failure.is_some() {
            self.drop_stalled();
            return;
        }
        if self.writes.queue.is_empty() {
            tracing::info!(
                "there is room on the disk again: what waited is written, sends are taken"
            );
            self.full = None;
            return;
        }
        if now.monotonic_us < full.retry_us {
            return;
        }
        for (index, write) in self.writes.queue.iter_mut().enumerate() {
            let WriteState::Stalled(bytes) = &write.state else {
                continue;
            };
            let bytes = bytes.clone();
            let Some(segment) = self.segments.find(write.start) else {
                unreachable!("a write at {} lies in no segment", write.start);
            };
            write.state = WriteState::InFlight(bytes.clone());
            let op = Op::Write {
                file: segment.file,
                position: write.start.bytes_since(segment.first),
                bytes,
            };
            io.submit(tokens::log_write(self.writes.first + index as u64), op);
        }
    }

    /// After a failure nothing is written any more.
    fn drop_stalled(&mut self) {
        self.full = None;
        for write in &mut self.writes.queue {
            if matches!(write.state, WriteState::Stalled(_)) {
                write.state = WriteState::Done;
            }
        }
        self.take_finished();
    }

    /// When [`CommitLog::retry_full`] tries again.
    fn full_retry_us(&self) -> Option<u64> {
        let is_stalled = |write: &Write| matches!(write.state, WriteState::Stalled(_));
        let full = self.full.as_ref()?;
        let waits = self.writes.queue.iter().any(is_stalled);
        waits.then_some(full.retry_us)
    }

    /// Why no write can be done, if the disk is full.
    pub fn disk_full(&self) -> Option<&str> {
        self.full.as_ref().map(|full| full.reason.as_str())
    }

    /// One strike: the log is read-only until restart.
    pub(super) fn fail(&mut self, what: &str, at: PhysicalOffset, failed: &Failed) {
        if self.failure.is_some() {
            return;
        }
        let (path, position) = self.segments.place(at);
        let error = failed.error();
        let reason = format!("{what} of {} at {position} failed: {error}", path.display());
        tracing::error!(reason, "the commit log is read-only until restart");
        self.failure = Some(reason);
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
        let full = self.full_retry_us();
        [retry, full, self.flush_due_us()]
            .into_iter()
            .flatten()
            .min()
    }
}
