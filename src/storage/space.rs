//! Room on the log's disk: asked for in the background while the log grows. From the configured ratio on sends are
//! refused, before a write would fail; reads, commits and deletions go on. While it is full it is asked again and
//! again, so that sends are taken as soon as there is room. An idle store asks nothing.
//!
//! Source of the rule: apache/rocketmq `DefaultMessageStore.CleanCommitLogService.isSpaceToDelete`.

use super::tokens;
use crate::clock::Now;
use crate::ids::PhysicalOffset;
use crate::io::{Failed, FileSystem, Io, Op, Space};
use std::path::{Path, PathBuf};

/// Pause between two questions. What a shard writes meanwhile is small against a tenth of a disk.
const ASK_MS: u64 = 1000;

#[derive(Debug)]
pub struct DiskWatch {
    path: PathBuf,
    limit_percent: u64,
    /// As last heard; `None` if the file system doesn't tell.
    space: Option<Space>,
    /// End of the log when it was last asked.
    asked_at: PhysicalOffset,
    /// Not before this instant again.
    next_us: u64,
    is_asking: bool,
}

impl DiskWatch {
    pub fn new<F: FileSystem>(
        path: &Path,
        limit_percent: u64,
        end: PhysicalOffset,
        io: &F,
    ) -> Self {
        let mut watch = Self {
            path: path.to_path_buf(),
            limit_percent,
            space: None,
            asked_at: end,
            next_us: 0,
            is_asking: false,
        };
        watch.learn(io.space(path).ok());
        watch
    }

    fn is_full(&self) -> bool {
        let percent = self.space.map(Space::used_percent);
        percent.is_some_and(|percent| percent >= self.limit_percent)
    }

    /// Why sends are refused, with the numbers and the key.
    pub fn refusal(&self) -> Option<String> {
        let space = self.space.filter(|_| self.is_full())?;
        Some(format!(
            "{} % of the disk of {} are in use ({} bytes, {} are free), the limit is {} % (diskSpaceWarningLevelRatio)",
            space.used_percent(),
            self.path.display(),
            space.used,
            space.available,
            self.limit_percent
        ))
    }

    /// When the disk is to be looked at: while it is full, or once the log has grown.
    pub fn next_deadline(&self, appended: PhysicalOffset) -> Option<u64> {
        let wants = self.is_full() || appended > self.asked_at;
        (wants && !self.is_asking).then_some(self.next_us)
    }

    pub fn drive<I: Io>(&mut self, appended: PhysicalOffset, now: Now, io: &mut I) {
        let due = self.next_deadline(appended);
        if due.is_some_and(|due| due <= now.monotonic_us) {
            self.is_asking = true;
            self.asked_at = appended;
            let path = self.path.clone();
            io.submit(tokens::SPACE, Op::Space { path });
        }
    }

    pub fn on_space(&mut self, result: Result<Space, Failed>, now: Now) {
        assert!(self.is_asking, "nobody asked for the room on the disk");
        self.is_asking = false;
        self.next_us = now.after_ms(ASK_MS);
        self.learn(result.ok());
    }

    fn learn(&mut self, space: Option<Space>) {
        let was_full = self.is_full();
        self.space = space;
        match (was_full, self.refusal()) {
            (false, Some(reason)) => tracing::error!(reason, "sends are refused: the disk is full"),
            (true, None) => {
                tracing::info!(path = %self.path.display(), "there is room on the disk again, sends are taken")
            }
            _ => {}
        }
    }
}
