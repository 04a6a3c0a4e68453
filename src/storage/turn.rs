//! What the loop calls: ending the batch, completions, arrivals, cold reads, stop.

use super::fetch::Places;
use super::retention;
use super::upkeep::Parts;
use super::{Arrival, Deleted, FetchDone, Fetched, FlushMode, Missing, Store, tokens};
use crate::clock::Now;
use crate::ids::PhysicalOffset;
use crate::io::{Completion, Done, Failed, File, Io, Space, Token};
use crate::stats::LogTimes;
use bytes::{Bytes, BytesMut};

/// What the store expects a completion to be: the operation that the token's kind names.
fn expect_unit(token: Token, result: Result<Done, Failed>) -> Result<(), Failed> {
    match result {
        Ok(Done::Written | Done::Flushed | Done::Replaced | Done::Removed) => Ok(()),
        Ok(done) => unreachable!("{token:?} completed with {done:?}"),
        Err(failed) => Err(failed),
    }
}

fn expect_file(token: Token, result: Result<Done, Failed>) -> Result<File, Failed> {
    match result {
        Ok(Done::Opened { file }) => Ok(file),
        Ok(done) => unreachable!("{token:?} completed with {done:?}"),
        Err(failed) => Err(failed),
    }
}

fn expect_space(token: Token, result: Result<Done, Failed>) -> Result<Space, Failed> {
    match result {
        Ok(Done::Space(space)) => Ok(space),
        Ok(done) => unreachable!("{token:?} completed with {done:?}"),
        Err(failed) => Err(failed),
    }
}

fn expect_bytes(token: Token, result: Result<Done, Failed>) -> Result<BytesMut, Failed> {
    match result {
        Ok(Done::Read { bytes }) => Ok(bytes),
        Ok(done) => unreachable!("{token:?} completed with {done:?}"),
        Err(failed) => Err(failed),
    }
}

impl Store {
    /// Ends the open batch: one write (more only at a segment's end or over the write limit). Also starts what is
    /// due: flush, entries to disk, the next segment, checkpoint.
    pub fn seal<I: Io>(&mut self, now: Now, io: &mut I) {
        self.log.seal(&mut self.tail, io);
        self.drive(now, io);
    }

    /// Starts all that is due. Cheap when nothing is.
    fn drive<I: Io>(&mut self, now: Now, io: &mut I) {
        if self.is_closed {
            return;
        }
        if !self.upkeep.is_stopping() {
            self.log.prepare_next(now, io);
        }
        self.log.retry_full(now, self.upkeep.is_stopping(), io);
        self.log.flush(now, io);
        self.mark.drive(self.log.flushed_sum(), io);
        self.disk.drive(self.log.appended(), now, io);
        self.table.dispatch(self.log.visible());
        self.tail.trim(self.log.visible());
        self.removals.drive(&self.table, &mut self.files, now, io);
        self.writer.drive(&mut self.table, &mut self.files, now, io);
        let mut parts = retention::Parts {
            log: &mut self.log,
            tail: &mut self.tail,
            table: &mut self.table,
            files: &mut self.files,
            fetches: &self.fetches,
            upkeep: &mut self.upkeep,
        };
        self.retention.drive(&mut parts, now, io);
        let log_range = (self.log.start(), self.log.visible());
        self.index
            .drive(log_range, self.fetches.is_quiet(), now, io);
        let mut parts = Parts {
            log: &mut self.log,
            table: &mut self.table,
            files: &mut self.files,
            writer: &mut self.writer,
            index: &mut self.index,
            removals: &self.removals,
            retention_is_quiet: self.retention.is_quiet(),
            reads_are_quiet: self.fetches.is_quiet(),
            mark_is_quiet: self.mark.is_quiet(),
        };
        self.upkeep.drive(&mut parts, now, io);
        if self.upkeep.is_stopped() {
            self.log.segments.close(io);
            self.files.close_all(io);
            self.mark.close(io);
            self.index.close(io);
            io.close(self.lock);
            self.is_closed = true;
        }
    }

    /// A completion with one of [`TOKEN_KINDS`](super::TOKEN_KINDS). Reads that [`Store::fetch`] started come out of
    /// `fetches`.
    pub fn on_completion<I: Io>(
        &mut self,
        completion: Completion,
        now: Now,
        io: &mut I,
        fetches: &mut Vec<FetchDone>,
    ) {
        let Completion { token, result, .. } = completion;
        if self.is_closed {
            // The segment that was in preparation at the stop.
            if let Ok(Done::Opened { file }) = result {
                io.close(file);
            }
            return;
        }
        match token.kind {
            tokens::LOG_WRITE => self.log.on_written(token, expect_unit(token, result), now),
            tokens::QUEUE_OPEN => {
                self.on_queue_opened(token, expect_file(token, result), now, io, fetches)
            }
            tokens::QUEUE_WRITE => {
                let result = expect_unit(token, result);
                self.writer
                    .on_written(token, result, &mut self.table, &mut self.files, now, io);
            }
            tokens::QUEUE_FLUSH => {
                let result = expect_unit(token, result);
                self.writer
                    .on_flushed(token, result, &self.table, &mut self.files, io);
            }
            tokens::COLD_READ => {
                let result = expect_bytes(token, result);
                let mut places = Places {
                    log: &self.log,
                    table: &self.table,
                    files: &mut self.files,
                    index: &self.index,
                };
                self.fetches
                    .on_read(token, result, &mut places, io, fetches);
            }
            tokens::START_READ => {
                let bytes = expect_bytes(token, result);
                self.retention
                    .on_entries(token, bytes, &mut self.files, now, io);
            }
            tokens::INDEX_WRITE => self.index.on_written(expect_unit(token, result), now),
            _ => self.on_single(token, result, now),
        }
        self.drive(now, io);
    }

    /// Operations of which at most one is in flight.
    fn on_single(&mut self, token: Token, result: Result<Done, Failed>, now: Now) {
        match token {
            tokens::LOG_FLUSH => self.log.on_flushed(expect_unit(token, result)),
            tokens::LOG_PREPARE => {
                let file = expect_file(token, result);
                self.log.segments.on_prepared(file, now.monotonic_us);
            }
            tokens::CHECKPOINT => {
                if let Some(base) = self.upkeep.on_replaced(expect_unit(token, result)) {
                    self.mark.begin_at(base);
                }
            }
            tokens::DURABLE_MARK => self.mark.on_written(expect_unit(token, result)),
            tokens::TOMBSTONES => self.removals.on_buried(expect_unit(token, result), now),
            tokens::REMOVE_TOPIC => {
                let result = expect_unit(token, result);
                self.removals.on_removed(result, &mut self.table, now);
            }
            tokens::RETENTION_SPACE => self.retention.on_space(expect_space(token, result), now),
            tokens::DATE_READ => {
                let bytes = expect_bytes(token, result);
                self.retention.on_dated(bytes, now);
            }
            tokens::REMOVE_SEGMENT => {
                let result = expect_unit(token, result);
                self.retention.on_segment_removed(result, now);
            }
            tokens::REMOVE_QUEUE_FILE => {
                let result = expect_unit(token, result);
                self.retention.on_queue_file_removed(result, now);
            }
            tokens::INDEX_OPEN => self.index.on_opened(expect_file(token, result), now),
            tokens::INDEX_FLUSH => self.index.on_flushed(expect_unit(token, result)),
            tokens::INDEX_REMOVE => self.index.on_removed(expect_unit(token, result)),
            tokens::SPACE => self.disk.on_space(expect_space(token, result), now),
            tokens::REMOVE_ABORT => self.upkeep.on_abort_removed(expect_unit(token, result)),
            _ => unreachable!("{token:?} is no operation of the store"),
        }
    }

    fn on_queue_opened<I: Io>(
        &mut self,
        token: Token,
        result: Result<File, Failed>,
        now: Now,
        io: &mut I,
        fetches: &mut Vec<FetchDone>,
    ) {
        let opened = self.files.on_opened(token, result, io);
        if let Err(failed) = &opened.result {
            self.retention.on_open_failed(failed, now);
        }
        let mut places = Places {
            log: &self.log,
            table: &self.table,
            files: &mut self.files,
            index: &self.index,
        };
        self.fetches
            .on_opened(&opened.reads, &opened.result, &mut places, io, fetches);
        let name = (opened.queue, opened.number);
        self.writer.on_opened(
            name,
            opened.result,
            &mut self.table,
            &mut self.files,
            now,
            io,
        );
    }

    /// Everything appended below is visible: acknowledged and delivered.
    pub fn visible(&self) -> PhysicalOffset {
        self.log.visible()
    }

    /// Everything appended below is written (a send with WAIT=false is acknowledged then).
    pub fn written(&self) -> PhysicalOffset {
        self.log.written()
    }

    /// When the completions that follow were seen, in monotonic microseconds; for measuring alone.
    pub fn observe(&mut self, now_us: u64) {
        self.log.times.observe(now_us);
    }

    pub fn times(&self) -> &LogTimes {
        &self.log.times
    }

    /// When the newest visible messages were written, and when they became visible; in monotonic microseconds.
    pub fn visible_since(&self) -> (u64, u64) {
        let times = &self.log.times;
        match self.config.flush {
            FlushMode::Async { .. } => (times.written_us, times.written_us),
            FlushMode::Sync => (times.flushed_written_us, times.flushed_us),
        }
    }

    /// A record's worth of the oldest bytes in memory, if there are any: everything before them is older.
    pub fn oldest_in_memory(&self, bytes: u32) -> Option<Bytes> {
        self.tail.get(self.tail.start()?, bytes)
    }

    pub fn appended(&self) -> PhysicalOffset {
        self.log.appended()
    }

    pub fn flushed(&self) -> PhysicalOffset {
        self.log.flushed()
    }

    /// Why the log is read-only, if it is: all sends that wait are answered with it.
    pub fn failure(&self) -> Option<&str> {
        self.log.failure()
    }

    /// Why sends are refused for now, if the disk is full: the ratio, a segment or a write.
    pub fn disk_full(&self) -> Option<String> {
        self.disk
            .refusal()
            .or_else(|| self.log.disk_full().map(str::to_owned))
    }

    /// What background work failed last: queue files, checkpoint, removal of deleted topics. It is tried again; none
    /// of it endangers messages.
    pub fn last_background_error(&self) -> Option<&str> {
        let removals = self.removals.last_error();
        self.writer
            .last_error()
            .or(removals)
            .or(self.retention.last_error())
            .or(self.index.last_error())
            .or(self.upkeep.last_error())
            .or(self.mark.last_error())
    }

    /// Moves out what became visible since the last call, at most one `Arrival` per queue.
    pub fn take_arrivals(&mut self, arrivals: &mut Vec<Arrival>) {
        self.table.take_arrivals(arrivals);
    }

    /// Starts reading what a request misses, adding to what it has; the result comes as a [`FetchDone`] with `key`.
    ///
    /// `Some` if there is nothing to read: all of it is in memory by now, or gone. The request is run again at once.
    pub fn fetch<I: Io>(
        &mut self,
        key: u64,
        missing: &[Missing],
        have: Fetched,
        io: &mut I,
    ) -> Option<FetchDone> {
        let mut places = Places {
            log: &self.log,
            table: &self.table,
            files: &mut self.files,
            index: &self.index,
        };
        self.fetches.begin(key, missing, have, &mut places, io)
    }

    /// When the store wants [`Store::seal`] to be called again without other cause, in monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.is_closed {
            return None;
        }
        let deadlines = [
            self.log.next_deadline(),
            self.writer.next_deadline(&self.table),
            self.removals.next_deadline(),
            self.index.next_deadline(),
            self.disk.next_deadline(self.log.appended()),
            self.retention
                .next_deadline(&self.log, &self.table, &self.upkeep),
            self.upkeep
                .next_deadline(&self.writer, &self.removals, self.retention.is_quiet()),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// The next of the segments that were deleted since the last call; for the log and the counters.
    pub fn take_deleted(&mut self) -> Option<Deleted> {
        self.retention.take_deleted()
    }

    /// Refuses further appends, then flushes log and queues and writes the checkpoint, over several turns.
    pub fn begin_stop<I: Io>(&mut self, now: Now, io: &mut I) {
        self.upkeep.begin_stop();
        self.seal(now, io);
    }

    /// The stop is complete: `abort` is removed, nothing is in flight.
    pub fn is_stopped(&self) -> bool {
        self.is_closed
    }
}
