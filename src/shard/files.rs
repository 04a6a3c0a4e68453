//! Configuration files being replaced: one write in flight per file, the newest contents next.

use super::token_kind;
use crate::io::{Io, Op, Token};
use bytes::Bytes;
use std::path::{Path, PathBuf};

/// Pause before a failed replacement is tried again.
const RETRY_US: u64 = 5_000_000;
/// The same while the shard stops, which waits for the files for 4.5 s at most.
const RETRY_STOPPING_US: u64 = 300_000;

#[derive(Debug)]
struct ConfigFile {
    name: &'static str,
    in_flight: bool,
    /// Contents to write next; after a failure the same again.
    next: Option<Bytes>,
    written: Bytes,
    retry_us: Option<u64>,
}

/// The files of one shard.
#[derive(Debug)]
pub struct ConfigFiles {
    root: PathBuf,
    files: Vec<ConfigFile>,
    pause_us: u64,
}

impl ConfigFiles {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            files: Vec::new(),
            pause_us: RETRY_US,
        }
    }

    /// From now on the shard waits for what is not written yet.
    pub fn begin_stop(&mut self, now_us: u64) {
        self.pause_us = RETRY_STOPPING_US;
        for file in &mut self.files {
            file.retry_us = file.retry_us.map(|_| now_us);
        }
    }

    /// Replaces a file below the root, now or when the replacement in flight is done.
    pub fn replace<I: Io>(&mut self, name: &'static str, contents: Bytes, io: &mut I) {
        let index = match self.files.iter().position(|f| f.name == name) {
            Some(index) => index,
            None => {
                self.files.push(ConfigFile {
                    name,
                    in_flight: false,
                    next: None,
                    written: Bytes::new(),
                    retry_us: None,
                });
                self.files.len() - 1
            }
        };
        self.files[index].next = Some(contents);
        self.start(index, io);
    }

    fn start<I: Io>(&mut self, index: usize, io: &mut I) {
        let file = &mut self.files[index];
        if file.in_flight {
            return;
        }
        let Some(contents) = file.next.take() else {
            return;
        };
        file.in_flight = true;
        file.retry_us = None;
        file.written = contents.clone();
        let token = Token::new(token_kind::CONFIG_FILE, index as u32, 0);
        io.submit(
            token,
            Op::Replace {
                path: self.root.join(file.name),
                contents,
                keep_backup: true,
            },
        );
    }

    /// A replacement ended. After a failure the old file is still there, and it is tried again later.
    pub fn on_replaced<I: Io>(
        &mut self,
        index: u32,
        failed: Option<std::io::Error>,
        now_us: u64,
        io: &mut I,
    ) {
        let Some(file) = self.files.get_mut(index as usize) else {
            return;
        };
        file.in_flight = false;
        if let Some(error) = failed {
            tracing::warn!(file = %self.root.join(file.name).display(), %error, "a configuration file was not written");
            let contents = std::mem::take(&mut file.written);
            file.next.get_or_insert(contents);
            file.retry_us = Some(now_us + self.pause_us);
            return;
        }
        self.start(index as usize, io);
    }

    /// Tries again what failed.
    pub fn retry<I: Io>(&mut self, now_us: u64, io: &mut I) {
        for index in 0..self.files.len() {
            if self.files[index].retry_us.is_some_and(|at| at <= now_us) {
                self.start(index, io);
            }
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.files.iter().filter_map(|f| f.retry_us).min()
    }

    /// Nothing is in flight and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.files.iter().all(|f| !f.in_flight && f.next.is_none())
    }
}
