//! How long the commit log takes, for the metrics.
//!
//! The loop says when it has seen completions ([`LogTimes::observe`]); nothing here decides anything.

use super::{Histogram, SHARD_BITS};

/// Times of one shard's log in microseconds, and sizes of its batches.
#[derive(Clone, Debug)]
pub struct LogTimes {
    /// From the turn of an append to the completion of its write; each write once.
    pub append_to_written: Histogram,
    /// From the completion of a write to that of the flush that covers it; each flush once, by its oldest write.
    pub written_to_flushed: Histogram,
    /// Messages that became one batch.
    pub batch_messages: Histogram,
    pub writes: u64,
    pub flushes: u64,
    /// When the newest write, and the newest write that was flushed, had completed.
    pub written_us: u64,
    pub flushed_written_us: u64,
    /// When the newest flush had completed.
    pub flushed_us: u64,
    seen_us: u64,
    open_messages: u64,
    /// The oldest write that is not flushed; of those that the flush in flight doesn't cover, the oldest.
    unflushed_us: Option<u64>,
    uncovered_us: Option<u64>,
}

impl Default for LogTimes {
    fn default() -> Self {
        let new = || Histogram::new(SHARD_BITS);
        Self {
            append_to_written: new(),
            written_to_flushed: new(),
            batch_messages: new(),
            writes: 0,
            flushes: 0,
            written_us: 0,
            flushed_written_us: 0,
            flushed_us: 0,
            seen_us: 0,
            open_messages: 0,
            unflushed_us: None,
            uncovered_us: None,
        }
    }
}

impl LogTimes {
    /// The instant at which the completions that follow were seen, in monotonic microseconds.
    pub fn observe(&mut self, now_us: u64) {
        self.seen_us = now_us;
    }

    pub fn on_appended(&mut self) {
        self.open_messages += 1;
    }

    /// The open batch ends; returns the instant that its writes began to be waited for.
    pub fn on_sealed(&mut self) -> u64 {
        let messages = std::mem::take(&mut self.open_messages);
        if messages > 0 {
            self.batch_messages.record(messages);
        }
        self.seen_us
    }

    /// A write counts that was sealed at an instant.
    pub fn on_written(&mut self, sealed_us: u64, flush_in_flight: bool) {
        self.writes += 1;
        self.written_us = self.seen_us;
        let micros = self.seen_us.saturating_sub(sealed_us);
        self.append_to_written.record(micros);
        let oldest = if flush_in_flight {
            &mut self.uncovered_us
        } else {
            &mut self.unflushed_us
        };
        oldest.get_or_insert(self.seen_us);
    }

    pub fn on_flushed(&mut self) {
        self.flushes += 1;
        self.flushed_us = self.seen_us;
        if let Some(written_us) = self.unflushed_us.take() {
            self.flushed_written_us = written_us;
            let micros = self.seen_us.saturating_sub(written_us);
            self.written_to_flushed.record(micros);
        }
        self.unflushed_us = self.uncovered_us.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_measured_from_the_oldest_write_that_it_covers() {
        let mut times = LogTimes::default();
        times.observe(100);
        times.on_appended();
        times.on_appended();
        let sealed_us = times.on_sealed();
        times.observe(130);
        times.on_written(sealed_us, false);
        times.observe(200);
        times.on_written(200, true);
        times.observe(330);
        times.on_flushed();
        assert_eq!((times.flushed_written_us, times.flushed_us), (130, 330));
        times.observe(340);
        times.on_flushed();
        let sums = [&times.append_to_written, &times.written_to_flushed].map(Histogram::sum);
        assert_eq!(sums, [30, 200 + 140]);
        assert_eq!(
            (times.batch_messages.sum(), times.writes, times.flushes),
            (2, 2, 2)
        );
        assert_eq!(times.on_sealed(), 340, "a batch without messages is none");
        assert_eq!(times.batch_messages.count(), 1);
    }
}
