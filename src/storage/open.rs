//! Opens a store: lock, recovery, and the state that the shard works with.

use super::checkpoint::{Checkpoint, Marks};
use super::commit_log::{CommitLog, LogStart};
use super::durable::{Mark, MarkFile};
use super::fetch::Fetches;
use super::index::{self, Index};
use super::queue_files::QueueFiles;
use super::queue_table::QueueTable;
use super::queue_writer::QueueWriter;
use super::recovery::{Recovery, abort_path, at_path, checkpoint_path, lock_path};
use super::removals::Removals;
use super::retention::Retention;
use super::space::DiskWatch;
use super::tail_cache::TailCache;
use super::tombstones::Tombstones;
use super::upkeep::Upkeep;
use super::{OpenError, Recovered, Store, StoreConfig};
use crate::clock::Now;
use crate::io::{File, FileSystem, Io};
use crate::limits::ENTRY_BYTES;
use std::io::ErrorKind;
use std::path::Path;

/// After a kill, the lock stays until the kernel has torn down the dead process's ring: milliseconds.
const LOCK_WAIT_MS: u64 = 2000;
const LOCK_RETRY_MS: u64 = 20;

impl Store {
    /// Opens or creates the store: lock, recovery, first segment prepared. Blocking; called before the shard serves.
    pub fn open<I: Io>(
        config: StoreConfig,
        now: Now,
        io: &mut I,
    ) -> Result<(Self, Recovered), OpenError> {
        assert!(
            config.queue_file_bytes.is_multiple_of(ENTRY_BYTES as u64)
                && config.queue_file_bytes > 0,
            "queue files of {} bytes",
            config.queue_file_bytes
        );
        for directory in [&config.root, &config.commit_log, &config.consume_queue] {
            io.create_directories(directory)
                .map_err(at_path(directory))?;
        }
        let settings = config.root.join("config");
        io.create_directories(&settings)
            .map_err(at_path(&settings))?;
        let lock = lock(&config.root, now, io)?;
        match Self::open_locked(config, lock, now, io) {
            Ok((store, mut recovered)) => {
                let end = io.now();
                recovered.milliseconds = end.monotonic_us.saturating_sub(now.monotonic_us) / 1000;
                Ok((store, recovered))
            }
            Err(error) => {
                io.close(lock);
                Err(error)
            }
        }
    }

    fn open_locked<I: Io>(
        config: StoreConfig,
        lock: File,
        now: Now,
        io: &mut I,
    ) -> Result<(Self, Recovered), OpenError> {
        let root = config.root.clone();
        let checkpoint = Checkpoint::decode(&read_or_empty(&checkpoint_path(&root), io)?);
        let tombstones = read_tombstones(&root, io)?;
        let is_clean = !io.exists(&abort_path(&root));

        let mark = Mark::decode(&read_or_empty(&Mark::path(&root), io)?);

        let mut recovery = Recovery::new(&config, io, checkpoint, tombstones, is_clean);
        recovery.believe(mark);
        let plan = recovery.survey()?;
        mark_running(&root, recovery.io)?;
        recovery.repair(plan)?;

        let mut table = QueueTable::new(config.entry_cache_bytes);
        let start = recovery.segments.start();
        for ((topic, queue_id), mut queue) in std::mem::take(&mut recovery.queues) {
            let bounds = queue.finish(start, plan.clear_behind, recovery.io)?;
            table.add(&topic, queue_id, bounds);
        }
        let Recovery {
            segments,
            mut tombstones,
            mut report,
            store_timestamp,
            ..
        } = recovery;
        report.queues = table.len();
        let end = report.end;
        if tombstones.settle(start, end) {
            let path = Tombstones::path(&root);
            io.replace(&path, &tombstones.encode(), false)
                .map_err(at_path(&path))?;
        }
        let was_clean = checkpoint.marks.is_some_and(|marks| marks.is_clean);
        let found = index::Found {
            segments: &segments,
            end,
            covered: checkpoint.index_covers(),
            is_clean: is_clean && was_clean,
        };
        let index = index::open(config.index, &root, &found, now, io)?;
        let log_start = LogStart {
            end,
            store_timestamp,
        };
        let checkpoint = begin_checkpoint(&root, checkpoint, &table, &index, log_start, io)?;
        let mark = MarkFile::open(&root, mark, end, io)?;
        let disk = DiskWatch::new(&config.commit_log, config.disk_full_percent, end, io);
        let store = Self {
            lock,
            log: CommitLog::new(segments, log_start, config.flush, config.tail_cache_bytes),
            tail: TailCache::new(config.tail_cache_bytes),
            table,
            files: QueueFiles::new(config.consume_queue.clone(), config.queue_file_bytes),
            writer: QueueWriter::default(),
            fetches: Fetches::default(),
            index,
            removals: Removals::new(tombstones, &root),
            retention: Retention::new(&config),
            upkeep: Upkeep::new(&root, checkpoint),
            disk,
            mark,
            is_closed: false,
            config,
        };
        Ok((store, report))
    }
}

fn lock<I: Io>(root: &Path, now: Now, io: &mut I) -> Result<File, OpenError> {
    let path = lock_path(root);
    let mut waited_ms = 0;
    let mut ignored = Vec::new();
    loop {
        match io.lock(&path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(at_path(&path)(error));
            }
            Err(_) if waited_ms >= LOCK_WAIT_MS => {
                let path = root.to_path_buf();
                return Err(OpenError::Locked { path });
            }
            Err(_) => {
                waited_ms += LOCK_RETRY_MS;
                let waited = io.wait(Some(now.after_ms(waited_ms)), &mut ignored);
                waited.map_err(at_path(&path))?;
            }
        }
    }
}

fn read_or_empty<F: FileSystem>(path: &Path, io: &F) -> Result<Vec<u8>, OpenError> {
    match io.read_whole(path) {
        Ok(contents) => Ok(contents),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(at_path(path)(error)),
    }
}

fn read_tombstones<F: FileSystem>(root: &Path, io: &F) -> Result<Tombstones, OpenError> {
    let path = Tombstones::path(root);
    let contents = read_or_empty(&path, io)?;
    if contents.is_empty() {
        return Ok(Tombstones::default());
    }
    Tombstones::decode(&contents).map_err(|reason| OpenError::Corrupt {
        path,
        offset: 0,
        reason,
    })
}

/// Writes `abort`: from here on, only an orderly stop makes the store clean again.
fn mark_running<F: FileSystem>(root: &Path, io: &mut F) -> Result<(), OpenError> {
    let path = abort_path(root);
    if !io.exists(&path) {
        let file = io.create(&path, 0).map_err(at_path(&path))?;
        io.close(file);
    }
    io.flush_directory(root).map_err(at_path(root))
}

/// What recovery has made true, so that the next one begins here.
fn begin_checkpoint<F: FileSystem>(
    root: &Path,
    found: Checkpoint,
    table: &QueueTable,
    index: &Index,
    log: LogStart,
    io: &mut F,
) -> Result<Checkpoint, OpenError> {
    let LogStart {
        end,
        store_timestamp,
    } = log;
    let queues_timestamp = found.queues_timestamp.max(store_timestamp);
    let has_keys = index.covered().is_some();
    let checkpoint = Checkpoint {
        log_timestamp: found.log_timestamp.max(store_timestamp),
        queues_timestamp,
        index_timestamp: if has_keys { queues_timestamp } else { 0 },
        marks: Some(Marks {
            dispatched: end,
            flushed: end,
            store_timestamp,
            is_clean: false,
            totals: table.totals(),
        }),
        ..found
    };
    let path = checkpoint_path(root);
    io.replace(&path, &checkpoint.encode(), false)
        .map_err(at_path(&path))?;
    Ok(checkpoint)
}
