//! Checkpoints, and the way to an orderly stop.
//!
//! A checkpoint is taken some time after something became visible: what is visible then (the target) gets its
//! entries written, log and queue files flushed, and then the file says so. An idle store takes one last checkpoint
//! and is silent.
//!
//! Stop: log written and flushed, deleted topics removed, a checkpoint that says clean, `abort` removed, files closed.
//! Where one of these fails, `abort` stays, and the next start recovers.

use super::checkpoint::{Checkpoint, Marks, Totals};
use super::commit_log::CommitLog;
use super::durable::Sum;
use super::index::Index;
use super::queue_files::QueueFiles;
use super::queue_table::QueueTable;
use super::queue_writer::QueueWriter;
use super::recovery::{abort_path, checkpoint_path};
use super::removals::Removals;
use super::tokens;
use crate::clock::Now;
use crate::ids::PhysicalOffset;
use crate::io::{Failed, Io, Op};
use crate::limits::MIB;
use std::path::{Path, PathBuf};

/// Time from the first message behind a checkpoint to the next one. Recovery scans what came since the last.
const CHECKPOINT_AFTER_MS: u64 = 10_000;
/// ... or to this many bytes of log, so that recovery scans and rewrites no more than a second's worth.
const CHECKPOINT_AFTER_BYTES: u64 = 256 * MIB as u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    /// Entries of the target are being written.
    Writing,
    FlushingLog,
    FlushingQueues,
    /// The file is being replaced.
    Replacing,
    /// What was written can't be trusted: no checkpoint until restart.
    Broken,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stop {
    Not,
    Asked,
    /// The clean checkpoint is on disk, `abort` is being removed.
    RemovingAbort,
    /// Nothing more is started; what is in flight has to end.
    Draining,
    Done,
}

/// What a checkpoint covers.
#[derive(Clone, Copy, Debug, Default)]
struct Target {
    dispatched: PhysicalOffset,
    timestamp: u64,
    totals: Totals,
    /// Sum of the log there, if a batch ends there.
    sum: Option<Sum>,
    /// `QueueWriter::failures` when it began.
    failures: u64,
}

/// The parts of a store that upkeep works on.
pub struct Parts<'a> {
    pub log: &'a mut CommitLog,
    pub table: &'a mut QueueTable,
    pub files: &'a mut QueueFiles,
    pub writer: &'a mut QueueWriter,
    pub index: &'a mut Index,
    pub removals: &'a Removals,
    /// Nothing of it is under way.
    pub retention_is_quiet: bool,
    /// No cold read is in flight.
    pub reads_are_quiet: bool,
    /// The durable mark isn't being written.
    pub mark_is_quiet: bool,
}

#[derive(Debug)]
pub struct Upkeep {
    root: PathBuf,
    phase: Phase,
    /// When something became visible that the last checkpoint doesn't cover.
    since_us: Option<u64>,
    target: Target,
    /// As on disk.
    checkpoint: Checkpoint,
    /// As being written.
    next: Checkpoint,
    stop: Stop,
    last_error: Option<String>,
    /// Queues were deleted since the last checkpoint, so that its totals are wrong.
    totals_changed: bool,
}

impl Upkeep {
    pub fn new(root: &Path, checkpoint: Checkpoint) -> Self {
        Self {
            root: root.to_path_buf(),
            phase: Phase::Idle,
            since_us: None,
            target: Target::default(),
            checkpoint,
            next: checkpoint,
            stop: Stop::Not,
            last_error: None,
            totals_changed: false,
        }
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    pub fn is_stopping(&self) -> bool {
        self.stop != Stop::Not
    }

    pub fn is_stopped(&self) -> bool {
        self.stop == Stop::Done
    }

    pub fn begin_stop(&mut self) {
        if self.stop == Stop::Not {
            self.stop = Stop::Asked;
        }
    }

    pub fn on_topic_deleted(&mut self) {
        self.totals_changed = true;
    }

    /// Queue files were removed: a checkpoint that still counts them would make the next start read the whole log.
    pub fn on_files_removed(&mut self) {
        self.totals_changed = true;
        self.since_us = Some(0);
    }

    /// No checkpoint is in progress.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Only what [`Upkeep::drive`] would act upon: a deadline in the past must not wake the loop again and again.
    pub fn next_deadline(
        &self,
        writer: &QueueWriter,
        removals: &Removals,
        retention_is_quiet: bool,
    ) -> Option<u64> {
        let is_free = writer.is_idle() && removals.is_done() && retention_is_quiet;
        let can_begin = self.phase == Phase::Idle && is_free;
        let since = self
            .since_us
            .filter(|_| can_begin && self.stop == Stop::Not)?;
        Some(since.saturating_add(CHECKPOINT_AFTER_MS * 1000))
    }

    pub fn drive<I: Io>(&mut self, parts: &mut Parts<'_>, now: Now, io: &mut I) {
        self.note_news(parts, now);
        self.note_failures(parts);
        // A clean checkpoint is seen before another one would begin.
        self.drive_stop(parts, io);
        if self.stop == Stop::Asked {
            parts.log.want_flushed(parts.log.appended());
            parts.log.flush(now, io);
        }
        if self.begins(parts, now) {
            self.begin(parts);
        }
        self.advance(parts, now, io);
        self.drive_stop(parts, io);
    }

    fn note_news(&mut self, parts: &Parts<'_>, now: Now) {
        let is_news = self.totals_changed || parts.log.visible() > self.covered();
        if self.phase == Phase::Idle && is_news && self.since_us.is_none() {
            self.since_us = Some(now.monotonic_us);
        }
    }

    /// After some failures there is no checkpoint any more, and a stop doesn't wait for one.
    fn note_failures(&mut self, parts: &Parts<'_>) {
        let is_final = parts.log.failure().is_some() || parts.writer.has_flush_failed();
        if is_final && self.phase != Phase::Replacing {
            self.phase = Phase::Broken;
        }
        let is_stuck = !parts.removals.is_done() && parts.removals.last_error().is_some();
        if self.stop == Stop::Asked && (self.phase == Phase::Broken || is_stuck) {
            self.stop = Stop::Draining;
        }
    }

    /// Whether a checkpoint begins now.
    fn begins(&self, parts: &Parts<'_>, now: Now) -> bool {
        if self.stop > Stop::Asked
            || self.phase != Phase::Idle
            || !parts.writer.is_idle()
            || !parts.removals.is_done()
            || !parts.retention_is_quiet
        {
            return false;
        }
        if self.stop == Stop::Asked {
            return parts.log.flushed() == parts.log.appended();
        }
        let news = parts.log.visible().bytes_since(self.covered());
        let due = self.next_deadline(parts.writer, parts.removals, true);
        news >= CHECKPOINT_AFTER_BYTES || due.is_some_and(|due| due <= now.monotonic_us)
    }

    /// What the last checkpoint covers.
    pub fn covered(&self) -> PhysicalOffset {
        let marks = self.checkpoint.marks;
        marks.map_or(PhysicalOffset(0), |marks| marks.dispatched)
    }

    fn begin(&mut self, parts: &mut Parts<'_>) {
        let dispatched = parts.log.visible();
        let sums = [parts.log.written_sum(), parts.log.flushed_sum()];
        self.target = Target {
            dispatched,
            sum: sums.into_iter().find(|sum| sum.end == dispatched),
            timestamp: parts.table.dispatched_timestamp(),
            totals: parts.table.totals(),
            failures: parts.writer.failures(),
        };
        self.totals_changed = false;
        self.since_us = None;
        parts.writer.begin_round(parts.table);
        parts.index.begin_round(self.target.dispatched);
        self.phase = Phase::Writing;
    }

    fn advance<I: Io>(&mut self, parts: &mut Parts<'_>, now: Now, io: &mut I) {
        if self.phase == Phase::Writing {
            parts.writer.drive(parts.table, parts.files, now, io);
            if parts.writer.failures() != self.target.failures {
                return self.give_up();
            }
            if !parts.writer.is_idle() {
                return;
            }
            parts.log.want_flushed(self.target.dispatched);
            self.phase = Phase::FlushingLog;
        }
        if self.phase == Phase::FlushingLog {
            parts.log.flush(now, io);
            if parts.log.flushed() < self.target.dispatched {
                return;
            }
            parts.writer.begin_flush();
            self.phase = Phase::FlushingQueues;
        }
        if self.phase == Phase::FlushingQueues {
            parts.writer.drive_flush(parts.table, parts.files, io);
            let log_range = (parts.log.start(), parts.log.visible());
            parts.index.drive(log_range, false, now, io);
            if parts.writer.is_flushed()
                && !parts.writer.has_flush_failed()
                && parts.index.is_settled()
            {
                self.replace(parts, io);
            }
        }
    }

    /// Entries could not be written: the next attempt is due later, or at the stop, never.
    fn give_up(&mut self) {
        self.phase = Phase::Idle;
        self.totals_changed = true;
        if self.stop == Stop::Asked {
            self.phase = Phase::Broken;
            self.stop = Stop::Draining;
        }
    }

    fn replace<I: Io>(&mut self, parts: &Parts<'_>, io: &mut I) {
        let timestamp = self.target.timestamp;
        let is_clean = self.stop == Stop::Asked && self.target.dispatched == parts.log.appended();
        let queues_timestamp = self.checkpoint.queues_timestamp.max(timestamp);
        let has_keys = parts.index.covered() >= Some(self.target.dispatched);
        self.next = Checkpoint {
            log_timestamp: self.checkpoint.log_timestamp.max(timestamp),
            queues_timestamp,
            index_timestamp: if has_keys { queues_timestamp } else { 0 },
            marks: Some(Marks {
                dispatched: self.target.dispatched,
                flushed: parts.log.flushed(),
                store_timestamp: parts.log.store_timestamp(),
                is_clean,
                totals: self.target.totals,
            }),
            ..self.checkpoint
        };
        self.phase = Phase::Replacing;
        let op = Op::Replace {
            path: checkpoint_path(&self.root),
            contents: self.next.encode(),
            keep_backup: false,
        };
        io.submit(tokens::CHECKPOINT, op);
    }

    /// Returns the sum of the log where the next recovery will begin.
    pub fn on_replaced(&mut self, result: Result<(), Failed>) -> Option<Sum> {
        assert_eq!(
            self.phase,
            Phase::Replacing,
            "no checkpoint was being written"
        );
        self.phase = Phase::Idle;
        match result {
            Ok(()) => {
                self.checkpoint = self.next;
                self.target.sum
            }
            Err(failed) => {
                self.last_error = Some(format!("writing the checkpoint: {}", failed.error()));
                self.give_up();
                None
            }
        }
    }

    fn drive_stop<I: Io>(&mut self, parts: &mut Parts<'_>, io: &mut I) {
        let marks = self.checkpoint.marks.unwrap_or_default();
        let is_clean = marks.is_clean && marks.dispatched == parts.log.appended();
        if self.stop == Stop::Asked && self.phase == Phase::Idle && is_clean {
            self.stop = Stop::RemovingAbort;
            let path = abort_path(&self.root);
            io.submit(tokens::REMOVE_ABORT, Op::Remove { path });
        }
        let is_quiet = parts.log.is_quiet()
            && parts.writer.is_idle()
            && parts.files.is_quiet()
            && parts.removals.is_quiet()
            && parts.retention_is_quiet
            && parts.reads_are_quiet
            && parts.mark_is_quiet
            && parts.index.is_quiet()
            && self.phase != Phase::Replacing;
        if self.stop == Stop::Draining && is_quiet {
            self.stop = Stop::Done;
        }
    }

    pub fn on_abort_removed(&mut self, result: Result<(), Failed>) {
        assert_eq!(
            self.stop,
            Stop::RemovingAbort,
            "abort was not being removed"
        );
        if let Err(failed) = result {
            self.last_error = Some(format!("removing abort: {}", failed.error()));
        }
        self.stop = Stop::Draining;
    }
}
