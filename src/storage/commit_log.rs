//! The commit log: open batch, writes in flight, watermarks, rolling.
//!
//! ```text
//! flushed ≤ written ≤ appended        all in bytes from the log's first byte ever
//! ```

use super::{AppendError, FlushMode, OpenError, StoreConfig, token};
use crate::ids::PhysicalOffset;
use crate::io::{Done, Failed, File, Io, Op};
use crate::limits::{LOG_WRITE_BYTES_MAX, UNWRITTEN_BYTES_MAX};
use crate::protocol::message::MAGIC_BLANK;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::path::PathBuf;

/// Bytes that the end-of-file blank needs.
pub const BLANK_BYTES: u64 = 8;
/// Memory that batches are built in; handed back by the readers, so steady state allocates nothing.
const CHUNK_BYTES: usize = 1 << 20;
/// A segment that could not be prepared is tried again after this pause.
const PREPARE_RETRY_US: u64 = 1_000_000;

/// One file of the log.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub start: u64,
    pub file: File,
}

/// The segment after the newest one.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Next {
    Absent,
    Preparing,
    Ready(File),
    Failed { errno: i32, retry_us: u64 },
}

#[derive(Debug)]
struct Batch {
    /// Position behind the batch, the blank of a finished segment included.
    end: u64,
    done: bool,
}

#[derive(Debug)]
struct Sealed {
    start: u64,
    end: u64,
    bytes: Bytes,
}

#[derive(Debug)]
pub struct CommitLog {
    directory: PathBuf,
    pub segments: Vec<Segment>,
    segment_bytes: u64,
    zero_fill: bool,
    mode: FlushMode,
    next: Next,
    chunk: BytesMut,
    /// Position of the first byte in `chunk`.
    chunk_start: u64,
    appended: u64,
    written: u64,
    flushed: u64,
    sealed: VecDeque<Sealed>,
    in_flight: VecDeque<Batch>,
    first_in_flight: u32,
    /// End of what the flush in flight covers.
    flushing: Option<u64>,
    unflushed_since_us: Option<u64>,
    pub failure: Option<String>,
    pub stopping: bool,
}

impl CommitLog {
    /// A log whose segments are known and whose end was found by recovery.
    pub fn new(config: &StoreConfig, segments: Vec<Segment>, end: u64) -> Self {
        Self {
            directory: config.commit_log.clone(),
            segments,
            segment_bytes: config.segment_bytes,
            zero_fill: config.zero_fill,
            mode: config.flush,
            next: Next::Absent,
            chunk: BytesMut::new(),
            chunk_start: end,
            appended: end,
            written: end,
            flushed: end,
            sealed: VecDeque::new(),
            in_flight: VecDeque::new(),
            first_in_flight: 0,
            flushing: None,
            unflushed_since_us: None,
            failure: None,
            stopping: false,
        }
    }

    /// Creates the first segment of an empty log, not filled with zeros: that would make a first start slow.
    pub fn create_first<I: Io>(config: &StoreConfig, io: &mut I) -> Result<Segment, OpenError> {
        let path = config.commit_log.join(segment_name(0));
        let failed = |path: PathBuf| move |source| OpenError::Io { path, source };
        io.create_directories(&config.commit_log)
            .map_err(failed(config.commit_log.clone()))?;
        let file = io
            .create(&path, config.segment_bytes)
            .map_err(failed(path))?;
        io.flush_directory(&config.commit_log)
            .map_err(failed(config.commit_log.clone()))?;
        Ok(Segment { start: 0, file })
    }

    pub fn appended(&self) -> PhysicalOffset {
        PhysicalOffset(self.appended)
    }

    pub fn written(&self) -> PhysicalOffset {
        PhysicalOffset(self.written)
    }

    pub fn flushed(&self) -> PhysicalOffset {
        PhysicalOffset(self.flushed)
    }

    pub fn visible(&self) -> PhysicalOffset {
        match self.mode {
            FlushMode::Async { .. } => self.written(),
            FlushMode::Sync => self.flushed(),
        }
    }

    pub fn start(&self) -> PhysicalOffset {
        PhysicalOffset(self.segments.first().map_or(0, |s| s.start))
    }

    pub fn segment_of(&self, at: u64) -> Option<Segment> {
        let behind = self.segments.partition_point(|s| s.start <= at);
        let segment = self.segments.get(behind.checked_sub(1)?)?;
        (at < segment.start + self.segment_bytes).then_some(*segment)
    }

    fn newest_end(&self) -> u64 {
        self.segments.last().map_or(0, |s| s.start) + self.segment_bytes
    }

    /// Makes room for records of these sizes: rolls where the segment can't take the first. Nothing is appended
    /// unless all of them fit what may wait for the disk.
    pub fn reserve(&mut self, total: u64, largest: u64) -> Result<(), AppendError> {
        if let Some(reason) = &self.failure {
            return Err(AppendError::ReadOnly(reason.clone()));
        }
        if self.stopping {
            return Err(AppendError::Stopping);
        }
        if total + BLANK_BYTES > self.segment_bytes {
            return Err(AppendError::TooLong {
                bytes: largest,
                max: self.segment_bytes - BLANK_BYTES,
            });
        }
        let unwritten = self.appended - self.written;
        if unwritten + total > UNWRITTEN_BYTES_MAX {
            return Err(AppendError::Busy {
                unwritten,
                max: UNWRITTEN_BYTES_MAX,
            });
        }
        if self.appended + total + BLANK_BYTES > self.newest_end() {
            self.roll()?;
        }
        Ok(())
    }

    /// Ends the segment with a blank record and goes on in the next one.
    fn roll(&mut self) -> Result<(), AppendError> {
        let file = match &self.next {
            Next::Ready(file) => *file,
            Next::Failed { errno, .. } => {
                return Err(AppendError::DiskFull(
                    std::io::Error::from_raw_os_error(*errno).to_string(),
                ));
            }
            Next::Absent | Next::Preparing => {
                return Err(AppendError::Busy {
                    unwritten: self.appended - self.written,
                    max: UNWRITTEN_BYTES_MAX,
                });
            }
        };
        let end = self.newest_end();
        self.chunk.put_u32((end - self.appended) as u32);
        self.chunk.put_u32(MAGIC_BLANK);
        self.appended = end;
        self.close_batch();
        self.segments.push(Segment { start: end, file });
        self.next = Next::Absent;
        Ok(())
    }

    /// Where the next record goes; `encode` must append exactly the bytes that were reserved for it.
    pub fn append(
        &mut self,
        encode: impl FnOnce(PhysicalOffset, &mut BytesMut),
    ) -> (PhysicalOffset, PhysicalOffset) {
        let at = PhysicalOffset(self.appended);
        let before = self.chunk.len();
        if self.chunk.capacity() - before < 4096 {
            self.chunk.reserve(CHUNK_BYTES);
        }
        encode(at, &mut self.chunk);
        self.appended += (self.chunk.len() - before) as u64;
        if self.chunk.len() >= LOG_WRITE_BYTES_MAX {
            self.close_batch();
        }
        (at, PhysicalOffset(self.appended))
    }

    fn close_batch(&mut self) {
        if self.chunk.is_empty() {
            return;
        }
        let bytes = self.chunk.split().freeze();
        self.sealed.push_back(Sealed {
            start: self.chunk_start,
            end: self.appended,
            bytes,
        });
        self.chunk_start = self.appended;
    }

    /// Submits what was appended; hands each batch to `keep` for the tail cache.
    pub fn seal<I: Io>(
        &mut self,
        now_us: u64,
        io: &mut I,
        mut keep: impl FnMut(PhysicalOffset, Bytes),
    ) {
        self.close_batch();
        while let Some(front) = self.sealed.front() {
            let segment = self
                .segment_of(front.start)
                .expect("a batch lies in a segment");
            // A batch in a new segment waits for all before it, so that a crash leaves no hole in an older segment.
            if front.start == segment.start && !self.in_flight.is_empty() {
                break;
            }
            let Some(batch) = self.sealed.pop_front() else {
                break;
            };
            let index = self
                .first_in_flight
                .wrapping_add(self.in_flight.len() as u32);
            self.in_flight.push_back(Batch {
                end: batch.end,
                done: false,
            });
            keep(PhysicalOffset(batch.start), batch.bytes.clone());
            let position = batch.start - segment.start;
            io.submit(
                token(token::LOG_WRITE, index),
                Op::Write {
                    file: segment.file,
                    position,
                    bytes: batch.bytes,
                },
            );
        }
        self.prepare_next(now_us, io);
        self.flush_if_due(now_us, io);
    }

    fn prepare_next<I: Io>(&mut self, now_us: u64, io: &mut I) {
        let used = self.segment_bytes - (self.newest_end() - self.appended);
        let small = self.segment_bytes <= 16 << 20;
        let wanted = used > 0 && (small || used > self.segment_bytes / 2);
        let retry = matches!(self.next, Next::Failed { retry_us, .. } if retry_us <= now_us);
        if wanted
            && (self.next == Next::Absent || retry)
            && !self.stopping
            && self.failure.is_none()
        {
            self.next = Next::Preparing;
            let path = self.directory.join(segment_name(self.newest_end()));
            let op = Op::Prepare {
                path,
                len: self.segment_bytes,
                zero_fill: self.zero_fill,
            };
            io.submit(token(token::LOG_PREPARE, 0), op);
        }
    }

    pub fn on_prepared(&mut self, result: Result<Done, Failed>, now_us: u64) {
        self.next = match result {
            Ok(Done::Opened { file }) => Next::Ready(file),
            Ok(other) => panic!("a segment was prepared with {other:?}"),
            Err(failed) => {
                tracing::error!(error = %failed.error(), "the next segment could not be prepared");
                Next::Failed {
                    errno: failed.errno,
                    retry_us: now_us + PREPARE_RETRY_US,
                }
            }
        };
    }

    /// A write ended. Only the contiguous finished prefix counts: recovery would stop at a gap.
    /// Example: A, B, C in flight; C then A finish → `written` = end of A.
    pub fn on_written(&mut self, index: u32, result: Result<Done, Failed>, now_us: u64) {
        if let Err(failed) = result {
            self.fail(format!("write failed: {}", failed.error()));
            return;
        }
        let place = index.wrapping_sub(self.first_in_flight) as usize;
        let batch = self
            .in_flight
            .get_mut(place)
            .expect("a write that is in flight");
        batch.done = true;
        while self.in_flight.front().is_some_and(|b| b.done) && self.failure.is_none() {
            let Some(batch) = self.in_flight.pop_front() else {
                break;
            };
            assert!(
                batch.end >= self.written,
                "written went back from {} to {}",
                self.written,
                batch.end
            );
            self.written = batch.end;
            self.first_in_flight = self.first_in_flight.wrapping_add(1);
            self.unflushed_since_us.get_or_insert(now_us);
        }
    }

    fn fail(&mut self, reason: String) {
        if self.failure.is_none() {
            tracing::error!(reason, "the commit log is read-only until restart");
            self.failure = Some(reason);
        }
    }

    fn flush_if_due<I: Io>(&mut self, now_us: u64, io: &mut I) {
        if self.flushing.is_some() || self.flushed == self.written || self.failure.is_some() {
            return;
        }
        let due = match self.mode {
            FlushMode::Sync => true,
            FlushMode::Async { bytes, .. } => {
                self.stopping
                    || self.written - self.flushed >= bytes
                    || self.flush_deadline().is_some_and(|at| at <= now_us)
            }
        };
        if !due {
            return;
        }
        let segment = self
            .segment_of(self.flushed)
            .expect("what is written lies in a segment");
        // One file at a time; what reaches into the next segment is flushed after this.
        let end = self.written.min(segment.start + self.segment_bytes);
        self.flushing = Some(end);
        self.unflushed_since_us = (end < self.written).then_some(now_us);
        io.submit(token(token::LOG_FLUSH, 0), Op::Flush { file: segment.file });
    }

    fn flush_deadline(&self) -> Option<u64> {
        match self.mode {
            FlushMode::Sync => None,
            FlushMode::Async { interval_ms, .. } => {
                self.unflushed_since_us.map(|us| us + interval_ms * 1000)
            }
        }
    }

    /// A flush ended. One that failed is final: its pages may be gone while a second flush says 0.
    pub fn on_flushed<I: Io>(&mut self, result: Result<Done, Failed>, now_us: u64, io: &mut I) {
        let end = self.flushing.take().expect("a flush was in flight");
        match result {
            Ok(_) => {
                assert!(
                    self.flushed <= end && end <= self.written,
                    "{} {end} {}",
                    self.flushed,
                    self.written
                );
                self.flushed = end;
                self.flush_if_due(now_us, io);
            }
            Err(failed) => self.fail(format!("flush failed: {}", failed.error())),
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let retry = match self.next {
            Next::Failed { retry_us, .. } => Some(retry_us),
            Next::Absent | Next::Preparing | Next::Ready(_) => None,
        };
        let flush = if self.flushing.is_none() && self.failure.is_none() {
            self.flush_deadline()
        } else {
            None
        };
        retry.into_iter().chain(flush).min()
    }

    /// A seal would submit something: bytes appended after the turn's seal, or a new segment's first batch whose
    /// predecessors are written by now.
    pub fn has_unsealed(&self) -> bool {
        !self.chunk.is_empty() || !self.sealed.is_empty() && self.in_flight.is_empty()
    }

    /// Everything appended is flushed and nothing is in flight, or nothing more can be done.
    pub fn is_settled(&self) -> bool {
        let quiet = self.flushing.is_none() && self.next != Next::Preparing;
        quiet && (self.failure.is_some() || self.flushed == self.appended)
    }
}

/// File name of the segment that starts at this offset.
pub fn segment_name(start: u64) -> String {
    format!("{start:020}")
}
