//! Opening a store: which log end and which queue entries to believe, and making the rest true.
//!
//! 1. `abort` tells a crash from an orderly stop. It is written again before anything is changed.
//! 2. The place where the scan of the log begins: everything below is flushed and has its entries on disk. After an
//!    orderly stop of ours that is the log's end, so that a start takes constant time; after a crash of ours, what
//!    the checkpoint says; in a store that Apache wrote, the end of the last entry, or after a crash the newest
//!    segment that begins [3 s before](super::checkpoint) Apache's timestamps.
//! 3. Each record is checked; entries that are missing are derived from it. The first break is the log's end. Below
//!    the durable mark it is corruption, and the store is not opened.
//! 4. What lies behind the end is zeroed and later segments removed, whatever they hold: a power cut persists
//!    unflushed writes out of order. Queues lose what lies behind, and are derived from the whole log where their
//!    files are missing, of a wrong size, or contradict the log.
//!
//! Source of Apache's rules: apache/rocketmq 5.3.3 `CommitLog.recoverNormally`, `recoverAbnormally`,
//! `checkMessageAndReturnSize`, `ConsumeQueue.recover`, `DefaultMessageStore.load`.

use super::checkpoint::{Checkpoint, Marks, Totals};
use super::derive::Target;
use super::durable::{Mark, SumCheck};
use super::log_end::first_nonzero;
use super::queue_recovery::{RecoveringQueue, Taken};
use super::queue_table::QUEUE_ID_MAX;
use super::scan::{Scanner, Step};
use super::segment::{Segment, Segments, file_name, parse_file_name};
use super::tombstones::Tombstones;
use super::{Entry, OpenError, Recovered, StoreConfig};
use crate::ids::PhysicalOffset;
use crate::io::{File, FileSystem};
use crate::limits::ENTRY_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Topic and queue id.
pub type QueueName = (String, u32);
pub type Queues = BTreeMap<QueueName, RecoveringQueue>;

pub fn at_path(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_path_buf();
    move |source| OpenError::Io { path, source }
}

/// What opening works on.
pub struct Recovery<'a, F> {
    pub config: &'a StoreConfig,
    pub io: &'a mut F,
    /// Segment made by this opening: all zeros, so nothing stale is looked for in it. (ext4 calls its unwritten
    /// extents data, and reading them would take seconds.)
    pub created: Option<PhysicalOffset>,
    pub checkpoint: Checkpoint,
    /// What the last life knew to be flushed; `None` if Apache wrote to the store since, or it isn't there.
    mark: Option<Mark>,
    pub tombstones: Tombstones,
    pub segments: Segments,
    pub queues: Queues,
    pub report: Recovered,
    /// Newest store timestamp met.
    pub store_timestamp: u64,
    /// Queues that have to be derived from the whole log.
    rebuild: BTreeSet<QueueName>,
}

/// Where the scan begins, and whether what lies behind the ends of log and queues has to be cleared.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// There is no segment: make one.
    new_log: Option<PhysicalOffset>,
    scan_from: PhysicalOffset,
    pub clear_behind: bool,
}

impl<'a, F: FileSystem> Recovery<'a, F> {
    pub fn new(
        config: &'a StoreConfig,
        io: &'a mut F,
        checkpoint: Checkpoint,
        tombstones: Tombstones,
        is_clean: bool,
    ) -> Self {
        let segments = Segments::new(
            config.commit_log.clone(),
            config.segment_bytes,
            config.zero_fill,
        );
        let marks = checkpoint.marks.unwrap_or_default();
        Self {
            config,
            io,
            created: None,
            checkpoint,
            mark: None,
            tombstones,
            segments,
            queues: Queues::new(),
            report: Recovered {
                clean: is_clean,
                ..Recovered::default()
            },
            store_timestamp: marks.store_timestamp.max(checkpoint.log_timestamp),
            rebuild: BTreeSet::new(),
        }
    }

    /// Takes a durable mark, if it goes further than the checkpoint of the same life.
    pub fn believe(&mut self, mark: Option<Mark>) {
        let marks = self.checkpoint.marks;
        let goes_on = |mark: &Mark| marks.is_some_and(|marks| mark.flushed.end >= marks.flushed);
        self.mark = mark.filter(goes_on);
    }

    /// Everything below was on disk: a break there is damage, not the tail of a crash.
    fn durable(&self) -> Option<PhysicalOffset> {
        let marks = self.checkpoint.marks?;
        let mark = self.mark.map_or(marks.flushed, |mark| mark.flushed.end);
        Some(marks.flushed.max(mark))
    }

    /// Finds out what there is and where to begin. Changes nothing but an unfinished last segment.
    pub fn survey(&mut self) -> Result<Plan, OpenError> {
        self.load_segments()?;
        self.load_queues()?;
        if self.segments.len() == 0 {
            let first = self.first_of_new_log()?;
            return Ok(Plan {
                new_log: Some(first),
                scan_from: first,
                clear_behind: true,
            });
        }
        let plan = self.plan()?;
        self.find_queue_ends(plan.scan_from)?;
        if self.agrees_with_checkpoint() {
            return Ok(plan);
        }
        // A queue is missing, or shorter than it was: derive all that the log still has.
        let scan_from = self.segments.start();
        self.rebuild.clear();
        self.find_queue_ends(scan_from)?;
        Ok(Plan {
            scan_from,
            clear_behind: true,
            ..plan
        })
    }

    /// Whether the queues found are those that the checkpoint tells of.
    fn agrees_with_checkpoint(&self) -> bool {
        let Some(marks) = self.checkpoint.marks else {
            return true;
        };
        let mut found = Totals::default();
        for queue in self.queues.values() {
            found.add(queue.entries_in_files());
        }
        found == marks.totals
    }

    /// Makes true what the survey found. Afterwards the log ends at `report.end`, with its segment open.
    pub fn repair(&mut self, plan: Plan) -> Result<(), OpenError> {
        if let Some(first) = plan.new_log {
            self.add_segment(first)?;
        }
        self.check_sums(plan.scan_from)?;
        self.drop_deleted()?;
        self.report.start = self.segments.start();
        let end = self.scan(plan.scan_from)?;
        self.rebuild_queues(end)?;
        self.report.end = end;
        self.report.is_unmarked = self.durable().is_none() && end > self.segments.start();
        let durable = self.durable().unwrap_or(plan.scan_from);
        self.secure(durable.max(self.segments.start()), end)?;
        self.end_log(end, plan.clear_behind)
    }

    fn load_segments(&mut self) -> Result<(), OpenError> {
        let directory = self.config.commit_log.clone();
        let names = self.io.list(&directory).map_err(at_path(&directory))?;
        let mut firsts: Vec<u64> = names
            .iter()
            .filter_map(|name| parse_file_name(name))
            .collect();
        firsts.sort_unstable();
        let count = firsts.len();
        for (index, first) in firsts.into_iter().enumerate() {
            let path = directory.join(file_name(first));
            let file = self.io.open(&path).map_err(at_path(&path))?;
            let found = self.io.len(file).map_err(at_path(&path))?;
            if found != self.config.segment_bytes {
                let is_last = index + 1 == count;
                if is_last && self.is_unfinished(file, found)? {
                    self.io.close(file);
                    self.io.remove(&path).map_err(at_path(&path))?;
                    continue;
                }
                return Err(OpenError::FileSize {
                    path,
                    found,
                    expected: self.config.segment_bytes,
                    key: "mappedFileSizeCommitLog",
                });
            }
            if index > 0 && first != self.segments.end().0 {
                return Err(OpenError::Corrupt {
                    path,
                    offset: self.segments.end().0,
                    reason: "the segment in front of this one is missing".to_owned(),
                });
            }
            let first = PhysicalOffset(first);
            self.segments.push(Segment { first, file });
        }
        Ok(())
    }

    /// The last segment was being made when the process died: shorter than it should be, and unused.
    fn is_unfinished(&self, file: File, found: u64) -> Result<bool, OpenError> {
        if found > self.config.segment_bytes {
            return Ok(false);
        }
        let used = first_nonzero(file, 0, found, self.io);
        Ok(used.map_err(at_path(&self.config.commit_log))?.is_none())
    }

    fn load_queues(&mut self) -> Result<(), OpenError> {
        let root = self.config.consume_queue.clone();
        let file_bytes = self.config.queue_file_bytes;
        for topic in self.io.list(&root).map_err(at_path(&root))? {
            let directory = root.join(&topic);
            for name in self.io.list(&directory).map_err(at_path(&directory))? {
                let is_plain = name
                    .parse::<u32>()
                    .is_ok_and(|id| id < QUEUE_ID_MAX && id.to_string() == name);
                let Some(queue_id) = is_plain.then(|| name.parse().ok()).flatten() else {
                    continue;
                };
                let mut queue = RecoveringQueue::new(&root, &topic, queue_id, file_bytes);
                queue.load(self.io)?;
                self.queues.insert((topic.clone(), queue_id), queue);
            }
        }
        self.check_queue_file_bytes()
    }

    /// If no queue file has the configured size and some have another one, the configuration is wrong, not the store.
    fn check_queue_file_bytes(&self) -> Result<(), OpenError> {
        if self.queues.values().any(RecoveringQueue::has_files) {
            return Ok(());
        }
        let expected = self.config.queue_file_bytes;
        let mut wrong = self.queues.values().flat_map(|queue| queue.wrong_sizes());
        match wrong.find(|(_, found)| *found > 0 && found.is_multiple_of(ENTRY_BYTES as u64)) {
            Some((path, found)) => Err(OpenError::FileSize {
                path: path.clone(),
                found: *found,
                expected,
                key: "mappedFileSizeConsumeQueue",
            }),
            None => Ok(()),
        }
    }

    /// Where a log without any segment begins: at 0, or behind all that entries speak of, so that no entry of a lost
    /// log ever names a record of the new one.
    fn first_of_new_log(&mut self) -> Result<PhysicalOffset, OpenError> {
        let mark = self.durable().map_or(0, |durable| durable.0);
        if mark > 0 {
            return Err(OpenError::Corrupt {
                path: self.config.commit_log.clone(),
                offset: mark,
                reason: "the checkpoint says that the log was flushed up to here, but it has no segment; \
                         to begin a new log, remove the file checkpoint"
                    .to_owned(),
            });
        }
        let everything = PhysicalOffset(u64::MAX);
        let mut behind = 0;
        for queue in self.queues.values_mut() {
            queue.find_end(everything, self.io)?;
            behind = behind.max(queue.last().map_or(0, |entry| entry.end().0));
            queue.pause(self.io);
        }
        Ok(PhysicalOffset(
            behind.next_multiple_of(self.config.segment_bytes),
        ))
    }

    /// Creates a segment, allocated but not filled with zeros: a start shall not take the time to write a segment.
    pub fn add_segment(&mut self, first: PhysicalOffset) -> Result<(), OpenError> {
        let path = self.segments.path(first);
        let created = self.io.create(&path, self.config.segment_bytes);
        let file = created.map_err(at_path(&path))?;
        let directory = &self.config.commit_log;
        self.io.flush(file).map_err(at_path(&path))?;
        self.io
            .flush_directory(directory)
            .map_err(at_path(directory))?;
        self.segments.push(Segment { first, file });
        self.created = Some(first);
        Ok(())
    }

    /// An orderly stop that left no entries: there is nothing to derive, and nothing behind the end to clear.
    fn ended_without_queues(&self) -> bool {
        let ended_so = |marks: &Marks| marks.is_clean && marks.totals == Totals::default();
        self.report.clean && self.checkpoint.marks.as_ref().is_some_and(ended_so)
    }

    fn plan(&mut self) -> Result<Plan, OpenError> {
        let start = self.segments.start();
        let exists = |at: PhysicalOffset| start <= at && at <= self.segments.end();
        if !self.queues.values().any(RecoveringQueue::has_files) && !self.ended_without_queues() {
            // Somebody removed the queues to have them derived again, or a crash came before the first had a file.
            return Ok(Plan {
                new_log: None,
                scan_from: start,
                clear_behind: true,
            });
        }
        if let Some(marks) = self.checkpoint.marks {
            let scan_from = marks.dispatched.min(marks.flushed).max(start);
            if exists(scan_from) {
                let clear_behind = !(self.report.clean && marks.is_clean);
                return Ok(Plan {
                    new_log: None,
                    scan_from,
                    clear_behind,
                });
            }
        }
        if self.report.clean
            && let Some(scan_from) = self.end_of_entries()?
            && scan_from >= start
            && scan_from <= self.segments.end()
        {
            return Ok(Plan {
                new_log: None,
                scan_from,
                clear_behind: true,
            });
        }
        Ok(Plan {
            new_log: None,
            scan_from: self.apache_segment()?,
            clear_behind: true,
        })
    }

    /// After an orderly stop of Apache: the end of the last record that has an entry.
    fn end_of_entries(&mut self) -> Result<Option<PhysicalOffset>, OpenError> {
        let everything = PhysicalOffset(u64::MAX);
        let mut newest: Option<Entry> = None;
        for queue in self.queues.values_mut() {
            queue.find_end(everything, self.io)?;
            let last = queue.last().filter(|entry| !entry.is_blank());
            newest = newest.max_by_place(last);
            queue.pause(self.io);
        }
        let Some(entry) = newest else {
            return Ok(None);
        };
        // The record must be there, or the entries belong to another log.
        let is_sound = self.record_at(entry)?.is_some();
        Ok(is_sound.then(|| entry.end()))
    }

    /// Queue id and offset that the record of an entry states, if there is a record of that size.
    fn record_at(&self, entry: Entry) -> Result<Option<(u32, u64)>, OpenError> {
        let Some(segment) = self.segments.find(entry.at) else {
            return Ok(None);
        };
        let mut header = [0; 36];
        let position = entry.at.bytes_since(segment.first);
        let read = self.io.read_at(segment.file, position, &mut header);
        let count = read.map_err(at_path(&self.segments.path(segment.first)))?;
        Ok((count == header.len())
            .then(|| parse_header(&header, entry))
            .flatten())
    }

    /// Apache's rule after a crash: the newest segment whose first record is old enough, else the first segment.
    fn apache_segment(&mut self) -> Result<PhysicalOffset, OpenError> {
        let known = self.checkpoint.apache_timestamp();
        for index in (1..self.segments.len()).rev() {
            let Some(segment) = self.segments.get(index) else {
                break;
            };
            let mut scanner = Scanner::new(segment.first);
            if let Step::Record(message) = scanner.next(&self.segments, self.io)?
                && (1..=known).contains(&message.store_timestamp)
            {
                return Ok(segment.first);
            }
        }
        Ok(self.segments.start())
    }

    fn find_queue_ends(&mut self, limit: PhysicalOffset) -> Result<(), OpenError> {
        let keys: Vec<_> = self.queues.keys().cloned().collect();
        keys.iter()
            .try_for_each(|key| self.find_queue_end(key, limit))
    }

    fn find_queue_end(&mut self, key: &QueueName, limit: PhysicalOffset) -> Result<(), OpenError> {
        let Some(queue) = self.queues.get_mut(key) else {
            return Ok(());
        };
        queue.find_end(limit, self.io)?;
        queue.pause(self.io);
        let mut is_damaged = queue.is_damaged();
        for (entry, stated) in queue.witnesses().into_iter().flatten() {
            if !entry.is_blank() && entry.at >= self.segments.start() {
                is_damaged |= self.record_at(entry)? != Some(stated);
            }
        }
        if is_damaged {
            self.rebuild.insert(key.clone());
        }
        Ok(())
    }

    /// Removes the directories of queues that were deleted, where the process died before it had.
    fn drop_deleted(&mut self) -> Result<(), OpenError> {
        let tombstones = &self.tombstones;
        let is_deleted = |queue: &RecoveringQueue| match queue.last() {
            Some(entry) => tombstones.covers(&queue.topic, entry.at),
            None => tombstones.get(&queue.topic).is_some(),
        };
        let deleted: Vec<_> = self
            .queues
            .iter()
            .filter(|(_, queue)| is_deleted(queue))
            .map(|(key, _)| key.clone())
            .collect();
        for key in deleted {
            self.queues.remove(&key);
            self.rebuild.remove(&key);
            let path =
                super::queue_files::queue_directory(&self.config.consume_queue, &key.0, key.1);
            self.io.remove_directory(&path).map_err(at_path(&path))?;
        }
        Ok(())
    }

    /// Scans the log to its end, taking entries that are missing.
    fn scan(&mut self, from: PhysicalOffset) -> Result<PhysicalOffset, OpenError> {
        let mut scanner = Scanner::new(from);
        let mut name = QueueName::default();
        let whole_log = from == self.segments.start();
        let reason = loop {
            let message = match scanner.next(&self.segments, self.io)? {
                Step::Record(message) => message,
                Step::Break { reason } => break reason,
                Step::End => break "the last segment is full".to_owned(),
            };
            self.report.scanned_messages += 1;
            self.store_timestamp = self.store_timestamp.max(message.store_timestamp);
            let target = Target {
                config: self.config,
                tombstones: &self.tombstones,
                queues: &mut self.queues,
                name: &mut name,
                adds: true,
            };
            if target.take(&message, whole_log, self.io)? == Some(Taken::Damaged)
                && !self.rebuild.contains(&name)
            {
                self.rebuild.insert(name.clone());
            }
        };
        self.report.scanned_bytes += scanner.scanned_bytes();
        let end = scanner.at();
        self.check_damage(end, &reason)?;
        Ok(end)
    }

    /// The log must not break below the durable mark.
    fn check_damage(&self, end: PhysicalOffset, reason: &str) -> Result<(), OpenError> {
        let durable = self.durable().unwrap_or(end);
        if end < durable {
            let (path, _) = self.segments.place(end);
            return Err(OpenError::Corrupt {
                path,
                offset: end.0,
                reason: format!("{reason}; the log is known to be flushed up to {durable}"),
            });
        }
        Ok(())
    }

    /// The records below the mark must be those that were flushed, to the last byte of header and properties. Nothing
    /// has been changed yet.
    fn check_sums(&mut self, from: PhysicalOffset) -> Result<(), OpenError> {
        let Some(mark) = self.mark.filter(|mark| from <= mark.base.end) else {
            return Ok(());
        };
        let mut scanner = Scanner::new(mark.base.end.max(from));
        scanner.check(SumCheck::new(mark));
        while scanner.at() < mark.flushed.end {
            match scanner.next(&self.segments, self.io)? {
                Step::Record(_) => {}
                Step::Break { reason } => {
                    self.check_damage(scanner.at(), &reason)?;
                    break;
                }
                Step::End => break,
            }
        }
        self.report.scanned_bytes += scanner.scanned_bytes();
        if !scanner.is_sum_wrong() {
            return Ok(());
        }
        let (path, position) = self.segments.place(mark.base.end);
        let (from, to) = (mark.base.end, mark.flushed.end);
        Err(OpenError::Corrupt {
            path,
            offset: position,
            reason: format!(
                "the log from {from} to {to} is not what was flushed: its checksum differs from that in {}",
                Mark::path(&self.config.root).display()
            ),
        })
    }

    /// Derives damaged queues from the whole log.
    fn rebuild_queues(&mut self, end: PhysicalOffset) -> Result<(), OpenError> {
        if self.rebuild.is_empty() {
            return Ok(());
        }
        let mut rebuilding = Queues::new();
        for key in &self.rebuild {
            if let Some(mut queue) = self.queues.remove(key) {
                queue.reset(self.io)?;
                rebuilding.insert(key.clone(), queue);
            }
        }
        self.report.queues_rebuilt = rebuilding.len();
        let mut scanner = Scanner::new(self.segments.start());
        let mut name = QueueName::default();
        while scanner.at() < end
            && let Step::Record(message) = scanner.next(&self.segments, self.io)?
        {
            let target = Target {
                config: self.config,
                tombstones: &self.tombstones,
                queues: &mut rebuilding,
                name: &mut name,
                adds: false,
            };
            target.take(&message, true, self.io)?;
        }
        self.report.scanned_bytes += scanner.scanned_bytes();
        self.queues.append(&mut rebuilding);
        Ok(())
    }
}

fn parse_header(header: &[u8; 36], entry: Entry) -> Option<(u32, u64)> {
    let u32_at = |at: usize| {
        header[at..]
            .first_chunk()
            .map(|bytes| u32::from_be_bytes(*bytes))
    };
    let u64_at = |at: usize| {
        header[at..]
            .first_chunk()
            .map(|bytes| u64::from_be_bytes(*bytes))
    };
    let is_record = u32_at(0)? == entry.bytes && u64_at(28)? == entry.at.0;
    is_record.then_some((u32_at(12)?, u64_at(20)?))
}

/// Picks the entry that lies further on.
trait MaxByPlace {
    fn max_by_place(self, other: Option<Entry>) -> Option<Entry>;
}

impl MaxByPlace for Option<Entry> {
    fn max_by_place(self, other: Option<Entry>) -> Option<Entry> {
        [self, other]
            .into_iter()
            .flatten()
            .max_by_key(|entry| entry.at)
    }
}

/// Files of a store below its root.
pub fn checkpoint_path(root: &Path) -> PathBuf {
    root.join("checkpoint")
}
pub fn abort_path(root: &Path) -> PathBuf {
    root.join("abort")
}
pub fn lock_path(root: &Path) -> PathBuf {
    root.join("lock")
}
