//! Brings consume queue entries to disk, lazily: queues are derived from the log, so nothing waits for them.
//!
//! Dirty queues are written in rounds: half a second after the first became dirty, when memory is over its budget,
//! for a checkpoint, and at the stop. A round writes what each queue has by then, one write per queue and file, a
//! bounded number in flight. A failed write is tried again a second later; its entries stay in memory.
//! A failed flush is final: entries that left memory may be lost, so that no checkpoint is taken any more and the
//! next start derives them again from the log.

use super::queue_files::{Acquired, QueueFiles, SlotId};
use super::queue_table::QueueTable;
use super::tokens;
use crate::clock::Now;
use crate::ids::QueueIndex;
use crate::io::{Failed, Io, Op, Token};
use bytes::BytesMut;
use std::collections::{BTreeSet, VecDeque};

/// Time that entries of a quiet shard wait in memory; a round then writes a queue's new entries at once.
const WRITE_AFTER_MS: u64 = 500;
const RETRY_MS: u64 = 1000;
/// Bounds the operations that one turn submits.
const WRITES_IN_FLIGHT_MAX: usize = 32;
const FLUSHES_IN_FLIGHT_MAX: usize = 4;

#[derive(Debug, Default)]
pub struct QueueWriter {
    /// Queues still to be written in this round.
    round: VecDeque<QueueIndex>,
    /// Queues whose file is being opened for a write.
    opening: BTreeSet<(QueueIndex, u64)>,
    /// Writes in flight: slot and the queue offset that it reaches.
    writes: Vec<(SlotId, u64)>,
    /// Files written since their last flush.
    unflushed: BTreeSet<(QueueIndex, u64)>,
    /// Files that the checkpoint in progress still has to flush.
    to_flush: Vec<(QueueIndex, u64)>,
    flushing: Vec<SlotId>,
    opening_for_flush: BTreeSet<(QueueIndex, u64)>,
    dirty_since_us: Option<u64>,
    retry_us: Option<u64>,
    failures: u64,
    last_error: Option<String>,
    flush_failed: bool,
    /// Encoded entries; the memory of finished writes is used again.
    scratch: BytesMut,
}

impl QueueWriter {
    /// No round is in progress and none of its operations is in flight.
    pub fn is_idle(&self) -> bool {
        self.round.is_empty() && self.opening.is_empty() && self.writes.is_empty()
    }

    /// Writes and openings that failed so far.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// The last round failed and waits to be tried again.
    pub fn is_failing(&self) -> bool {
        self.retry_us.is_some()
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// A flush failed: what is on disk can't be trusted any more.
    pub fn has_flush_failed(&self) -> bool {
        self.flush_failed
    }

    pub fn next_deadline(&self, table: &QueueTable) -> Option<u64> {
        if table.dirty.is_empty() || !self.is_idle() {
            return None;
        }
        let due = self.dirty_since_us?.saturating_add(WRITE_AFTER_MS * 1000);
        Some(due.max(self.retry_us.unwrap_or(0)))
    }

    /// Starts a round if one is due, and goes on with the one in progress.
    pub fn drive<I: Io>(
        &mut self,
        table: &mut QueueTable,
        files: &mut QueueFiles,
        now: Now,
        io: &mut I,
    ) {
        if !table.dirty.is_empty() && self.dirty_since_us.is_none() {
            self.dirty_since_us = Some(now.monotonic_us);
        }
        if self.is_idle() && !table.dirty.is_empty() {
            let due = self
                .next_deadline(table)
                .is_some_and(|due| due <= now.monotonic_us);
            let may_retry = self.retry_us.is_none_or(|retry| retry <= now.monotonic_us);
            if due || (table.is_over_budget() && may_retry) {
                self.begin_round(table);
            }
        }
        self.advance_round(table, files, io);
    }

    /// Takes all dirty queues into a round; the one before must have ended.
    pub fn begin_round(&mut self, table: &mut QueueTable) {
        assert!(self.is_idle(), "a round is in progress");
        std::mem::swap(&mut self.round, &mut table.dirty);
        self.dirty_since_us = None;
        self.retry_us = None;
    }

    fn advance_round<I: Io>(&mut self, table: &mut QueueTable, files: &mut QueueFiles, io: &mut I) {
        while self.writes.len() + self.opening.len() < WRITES_IN_FLIGHT_MAX
            && let Some(index) = self.round.pop_front()
        {
            self.write(index, table, files, io);
        }
    }

    fn write<I: Io>(
        &mut self,
        index: QueueIndex,
        table: &mut QueueTable,
        files: &mut QueueFiles,
        io: &mut I,
    ) {
        let queue = table.get_mut(index);
        if queue.is_deleted || queue.unpersisted() == 0 {
            queue.is_dirty = false;
            return;
        }
        if queue.is_blocked {
            table.dirty.push_back(index);
            return;
        }
        let from = queue.persisted();
        let number = files.number_of(from);
        let (slot, file) = match files.acquire(index, queue, number, io) {
            Acquired::Ready(slot, file) => (slot, file),
            Acquired::Opening(_) => {
                self.opening.insert((index, number));
                return;
            }
        };
        let to = queue.bounds().max.0.min(files.end_of(number));
        queue.encode_unpersisted(to, &mut self.scratch);
        let op = Op::Write {
            file,
            position: files.position_of(from),
            bytes: self.scratch.split().freeze(),
        };
        queue.is_writing = true;
        self.writes.push((slot, to));
        io.submit(files.token(tokens::QUEUE_WRITE, slot), op);
    }

    pub fn on_written<I: Io>(
        &mut self,
        token: Token,
        result: Result<(), Failed>,
        table: &mut QueueTable,
        files: &mut QueueFiles,
        now: Now,
        io: &mut I,
    ) {
        let slot = files.slot_of(token);
        let place = self.writes.iter().position(|(id, _)| *id == slot);
        let Some(place) = place else {
            unreachable!("{token:?} is no write in flight");
        };
        let (_, to) = self.writes.swap_remove(place);
        let (index, number) = files.release(slot, io);
        let queue = table.get_mut(index);
        queue.is_writing = false;
        if queue.is_deleted {
            queue.is_dirty = false;
            return;
        }
        match result {
            Ok(()) => {
                queue.advance_persisted(to);
                self.unflushed.insert((index, number));
                let crossed = to == files.end_of(number);
                match queue.unpersisted() {
                    0 => queue.is_dirty = false,
                    // The rest lies in the next file and belongs to this round.
                    _ if crossed => self.round.push_back(index),
                    _ => table.dirty.push_back(index),
                }
                table.evict();
            }
            Err(failed) => self.on_failed("write", index, &failed, table, now),
        }
    }

    fn on_failed(
        &mut self,
        what: &str,
        index: QueueIndex,
        failed: &Failed,
        table: &mut QueueTable,
        now: Now,
    ) {
        let queue = table.get(index);
        let error = failed.error();
        self.last_error = Some(format!(
            "{what} of queue {} {}: {error}",
            queue.topic, queue.queue_id
        ));
        self.failures += 1;
        self.retry_us = Some(now.monotonic_us + RETRY_MS * 1000);
        table.dirty.push_back(index);
    }

    /// A file was opened: what waited for it goes on.
    pub fn on_opened<I: Io>(
        &mut self,
        name: (QueueIndex, u64),
        result: Result<(), Failed>,
        table: &mut QueueTable,
        files: &mut QueueFiles,
        now: Now,
        io: &mut I,
    ) {
        let for_flush = self.opening_for_flush.remove(&name);
        if for_flush {
            match &result {
                Ok(()) => self.to_flush.push(name),
                Err(_) => self.flush_failed = true,
            }
        }
        if self.opening.remove(&name) {
            match result {
                Ok(()) => self.write(name.0, table, files, io),
                Err(failed) => self.on_failed("opening", name.0, &failed, table, now),
            }
        }
    }

    /// Begins to flush all files written since their last flush.
    pub fn begin_flush(&mut self) {
        assert!(self.is_flushed(), "flushes are in flight");
        self.to_flush.extend(std::mem::take(&mut self.unflushed));
    }

    /// All that [`QueueWriter::begin_flush`] found is flushed, or failed.
    pub fn is_flushed(&self) -> bool {
        self.to_flush.is_empty() && self.flushing.is_empty() && self.opening_for_flush.is_empty()
    }

    pub fn drive_flush<I: Io>(&mut self, table: &QueueTable, files: &mut QueueFiles, io: &mut I) {
        while self.flushing.len() + self.opening_for_flush.len() < FLUSHES_IN_FLIGHT_MAX
            && let Some((index, number)) = self.to_flush.pop()
        {
            let queue = table.get(index);
            let is_removed = files.end_of(number) <= queue.kept_in_files().0;
            if queue.is_deleted || is_removed {
                continue;
            }
            match files.acquire(index, queue, number, io) {
                Acquired::Ready(slot, file) => {
                    self.flushing.push(slot);
                    io.submit(files.token(tokens::QUEUE_FLUSH, slot), Op::Flush { file });
                }
                Acquired::Opening(_) => {
                    self.opening_for_flush.insert((index, number));
                }
            }
        }
    }

    pub fn on_flushed<I: Io>(
        &mut self,
        token: Token,
        result: Result<(), Failed>,
        table: &QueueTable,
        files: &mut QueueFiles,
        io: &mut I,
    ) {
        let slot = files.slot_of(token);
        self.flushing.retain(|id| *id != slot);
        let (index, _) = files.release(slot, io);
        if let Err(failed) = result
            && !table.get(index).is_deleted
        {
            let queue = table.get(index);
            let error = failed.error();
            self.last_error = Some(format!(
                "flush of queue {} {}: {error}",
                queue.topic, queue.queue_id
            ));
            self.flush_failed = true;
        }
    }
}
