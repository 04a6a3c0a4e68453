//! Flushing the commit log: at most one flush in flight, which covers the writes that completed before it began.
//!
//! SYNC_FLUSH: a flush begins whenever something is written and none is in flight, so that all that arrives
//! meanwhile shares the next one. ASYNC_FLUSH: little and often, by time or bytes, since a big flush stalls
//! concurrent writes.

use super::FlushMode;
use super::commit_log::CommitLog;
use super::durable::Sum;
use super::tokens;
use crate::clock::Now;
use crate::ids::PhysicalOffset;
use crate::io::{Failed, Io, Op};

#[derive(Debug, Default)]
pub struct Flushing {
    /// The flush in flight: `flushed` becomes this when it succeeds.
    target: Option<PhysicalOffset>,
    /// ... and `flushed_sum` this.
    sum: Option<Sum>,
    /// When the oldest unflushed byte was written; `None` if there is none, or its flush is in flight.
    since_us: Option<u64>,
    /// Somebody needs `flushed` to reach this (checkpoint, stop).
    wanted: PhysicalOffset,
}

impl Flushing {
    pub fn in_flight(&self) -> bool {
        self.target.is_some()
    }
}

impl CommitLog {
    /// Asks for `flushed` to reach an offset soon, whatever the mode.
    pub fn want_flushed(&mut self, to: PhysicalOffset) {
        self.flushing.wanted = self.flushing.wanted.max(to);
    }

    /// When a background flush is due.
    pub(super) fn flush_due_us(&self) -> Option<u64> {
        match self.mode {
            FlushMode::Sync => None,
            FlushMode::Async { interval_ms, .. } => {
                let since = self.flushing.since_us?;
                Some(since.saturating_add(interval_ms.saturating_mul(1000)))
            }
        }
    }

    fn flush_is_due(&self, now: Now) -> bool {
        if self.flushed < self.flushing.wanted.min(self.written()) {
            return true;
        }
        match self.mode {
            FlushMode::Sync => true,
            FlushMode::Async { bytes, .. } => {
                self.written().bytes_since(self.flushed) >= bytes
                    || self
                        .flush_due_us()
                        .is_some_and(|due| due <= now.monotonic_us)
            }
        }
    }

    /// Begins a flush if one is due and none is in flight.
    ///
    /// It covers one segment file; what lies in the next one is flushed by the next flush, which begins when this
    /// one completes.
    pub fn flush<I: Io>(&mut self, now: Now, io: &mut I) {
        if self.failure.is_some() || self.flushing.in_flight() || self.flushed == self.written() {
            return;
        }
        if self.flushing.since_us.is_none() {
            self.flushing.since_us = Some(now.monotonic_us);
        }
        if !self.flush_is_due(now) {
            return;
        }
        let Some(segment) = self.segments.find(self.flushed) else {
            unreachable!("unflushed bytes at {} lie in no segment", self.flushed);
        };
        let segment_end = segment.first.advance(self.segments.bytes());
        self.flushing.target = Some(self.written().min(segment_end));
        let sum = self.written_sum();
        self.flushing.sum = (sum.end <= segment_end).then_some(sum);
        self.flushing.since_us = None;
        io.submit(tokens::LOG_FLUSH, Op::Flush { file: segment.file });
    }

    /// A flush finished. A failed one is final: the kernel has dropped the dirty pages, so that a second flush
    /// would succeed without the data being on disk.
    pub fn on_flushed(&mut self, result: Result<(), Failed>) {
        let Some(target) = self.flushing.target.take() else {
            unreachable!("a flush completed that was not in flight");
        };
        if let Err(failed) = result {
            self.fail("flush", self.flushed, &failed);
        }
        if self.failure.is_none() {
            assert!(
                self.flushed < target && target <= self.written(),
                "flushed {} to {target}, written {}",
                self.flushed,
                self.written()
            );
            self.flushed = target;
            if let Some(sum) = self.flushing.sum {
                self.flushed_sum = sum;
            }
            self.times.on_flushed();
        }
    }
}
