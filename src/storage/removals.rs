//! Removes the files of deleted topics in the background: first the tombstone reaches the disk, then the directory
//! goes. A topic of the same name made meanwhile keeps its entries in memory until then.

use super::queue_files::QueueFiles;
use super::queue_table::QueueTable;
use super::tokens;
use super::tombstones::Tombstones;
use crate::clock::Now;
use crate::ids::PhysicalOffset;
use crate::io::{Failed, Io, Op};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Pause after a failed write or removal.
const RETRY_MS: u64 = 10_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Step {
    #[default]
    Idle,
    /// Tombstones of the first so many topics are being written.
    Burying { topics: usize },
    /// The directory of the first topic is being removed.
    Removing,
}

#[derive(Debug)]
pub struct Removals {
    tombstones: Tombstones,
    tombstones_path: PathBuf,
    /// Topics whose directory is still there.
    topics: VecDeque<Box<str>>,
    /// The first so many have their tombstones on disk.
    buried: usize,
    step: Step,
    retry_us: Option<u64>,
    last_error: Option<String>,
    /// Queues were deleted since their files were last looked at.
    files_to_close: bool,
}

impl Removals {
    pub fn new(tombstones: Tombstones, root: &Path) -> Self {
        Self {
            tombstones,
            tombstones_path: Tombstones::path(root),
            topics: VecDeque::new(),
            buried: 0,
            step: Step::Idle,
            retry_us: None,
            last_error: None,
            files_to_close: false,
        }
    }

    pub fn bury(&mut self, topic: &str, log_end: PhysicalOffset) {
        self.tombstones.bury(topic, log_end);
        self.topics.push_back(topic.into());
        self.files_to_close = true;
    }

    /// Files of a deleted topic of this name are still there.
    pub fn is_pending(&self, topic: &str) -> bool {
        self.topics.iter().any(|pending| **pending == *topic)
    }

    /// Whether the tombstones of all deletions of the topic are on disk.
    #[cfg(test)]
    pub fn is_durable(&self, topic: &str) -> bool {
        let unburied = self.topics.iter().skip(self.buried);
        !unburied.into_iter().any(|pending| **pending == *topic)
    }

    /// Nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.topics.is_empty() && self.step == Step::Idle
    }

    /// Nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        self.step == Step::Idle
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.retry_us.filter(|_| self.step == Step::Idle)
    }

    pub fn drive<I: Io>(
        &mut self,
        table: &QueueTable,
        files: &mut QueueFiles,
        now: Now,
        io: &mut I,
    ) {
        if std::mem::take(&mut self.files_to_close) {
            files.doom(|index| table.get(index).is_deleted, io);
        }
        let is_early = self.retry_us.is_some_and(|retry| now.monotonic_us < retry);
        if self.topics.is_empty() || self.step != Step::Idle || is_early {
            return;
        }
        self.retry_us = None;
        if self.buried == 0 {
            self.step = Step::Burying {
                topics: self.topics.len(),
            };
            let op = Op::Replace {
                path: self.tombstones_path.clone(),
                contents: self.tombstones.encode(),
                keep_backup: false,
            };
            io.submit(tokens::TOMBSTONES, op);
        } else if let Some(topic) = self.topics.front()
            && !files.is_opening_doomed()
        {
            self.step = Step::Removing;
            let path = files.root().join(&**topic);
            io.submit(tokens::REMOVE_TOPIC, Op::RemoveDirectory { path });
        }
    }

    pub fn on_buried(&mut self, result: Result<(), Failed>, now: Now) {
        let Step::Burying { topics } = std::mem::take(&mut self.step) else {
            unreachable!("tombstones were not being written");
        };
        match result {
            Ok(()) => self.buried = topics,
            Err(failed) => self.on_failed("writing the tombstones", &failed, now),
        }
    }

    pub fn on_removed(&mut self, result: Result<(), Failed>, table: &mut QueueTable, now: Now) {
        assert_eq!(self.step, Step::Removing, "no directory was being removed");
        self.step = Step::Idle;
        if let Err(failed) = result {
            return self.on_failed("removing a deleted topic", &failed, now);
        }
        self.buried -= 1;
        if let Some(topic) = self.topics.pop_front()
            && !self.is_pending(&topic)
        {
            table.unblock(&topic);
        }
    }

    fn on_failed(&mut self, what: &str, failed: &Failed, now: Now) {
        self.last_error = Some(format!("{what}: {}", failed.error()));
        self.retry_us = Some(now.after_ms(RETRY_MS));
    }
}
