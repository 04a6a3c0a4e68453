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

use super::checkpoint::{Checkpoint, Totals};
use super::queue_recovery::{RecoveringQueue, Taken};
use super::queue_table::QUEUE_ID_MAX;
use super::scan::{Scanner, Step};
use super::segment::{Segment, Segments, file_name, parse_file_name};
use super::tombstones::Tombstones;
use super::{Entry, OpenError, Recovered, StoreConfig};
use crate::ids::PhysicalOffset;
use crate::io::{File, FileSystem};
use crate::limits::{ENTRY_BYTES, KIB, SYSTEM_TOPIC_BYTES_MAX};
use crate::protocol::message::{StoredMessage, sys_flag};
use crate::protocol::names::SCHEDULE_TOPIC;
use crate::protocol::{hash, properties};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Topic and queue id.
pub type QueueName = (String, u32);
pub type Queues = BTreeMap<QueueName, RecoveringQueue>;

/// Default `messageDelayLevel`, in milliseconds, level 1 first.
const DELAY_LEVELS_MS: [u64; 18] = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000,
    480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
];

/// How far the bytes behind a crash's end are looked at to tell how many were cut; all are zeroed.
const CUT_COUNT_BYTES_MAX: u64 = 64 * 1024 * KIB as u64;

pub fn at_path(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_path_buf();
    move |source| OpenError::Io { path, source }
}

/// First byte that isn't zero in a range of a file.
pub fn first_nonzero<F: FileSystem>(
    file: File,
    from: u64,
    end: u64,
    io: &F,
) -> io::Result<Option<u64>> {
    let mut block = vec![0; 64 * KIB as usize];
    let mut at = from;
    while at < end {
        at = io.next_data(file, at)?.max(at);
        if at >= end {
            return Ok(None);
        }
        let want = block.len().min((end - at) as usize);
        let count = io.read_at(file, at, &mut block[..want])?;
        if let Some(found) = block[..count].iter().position(|byte| *byte != 0) {
            return Ok(Some(at + found as u64));
        }
        if count < want {
            return Ok(None);
        }
        at += count as u64;
    }
    Ok(None)
}

/// What opening works on.
pub struct Recovery<'a, F> {
    pub config: &'a StoreConfig,
    pub io: &'a mut F,
    /// Segment made by this opening: all zeros, so nothing stale is looked for in it. (ext4 calls its unwritten
    /// extents data, and reading them would take seconds.)
    pub created: Option<PhysicalOffset>,
    pub checkpoint: Checkpoint,
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
            found.add(queue.next());
        }
        found == marks.totals
    }

    /// Makes true what the survey found. Afterwards the log ends at `report.end`, with its segment open.
    pub fn repair(&mut self, plan: Plan) -> Result<(), OpenError> {
        if let Some(first) = plan.new_log {
            self.add_segment(first)?;
        }
        self.drop_deleted()?;
        self.report.start = self.segments.start();
        let end = self.scan(plan.scan_from)?;
        self.rebuild_queues(end)?;
        self.report.end = end;
        let durable = self
            .checkpoint
            .marks
            .map_or(plan.scan_from, |marks| marks.flushed);
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
        let mark = self.checkpoint.marks.map_or(0, |marks| marks.flushed.0);
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
    fn add_segment(&mut self, first: PhysicalOffset) -> Result<(), OpenError> {
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

    fn plan(&mut self) -> Result<Plan, OpenError> {
        let start = self.segments.start();
        let exists = |at: PhysicalOffset| start <= at && at <= self.segments.end();
        if !self.queues.values().any(RecoveringQueue::has_files) {
            // New, or somebody removed the queues to have them derived again.
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
        let last = queue.last().filter(|entry| !entry.is_blank());
        let expected = queue.expected_last();
        let mut is_damaged = queue.is_damaged();
        if let Some(entry) = last
            && entry.at >= self.segments.start()
        {
            is_damaged |= self.record_at(entry)? != Some(expected);
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
        let reason = loop {
            let (key, taken) = match scanner.next(&self.segments, self.io)? {
                Step::Record(message) => {
                    self.report.scanned_messages += 1;
                    self.store_timestamp = self.store_timestamp.max(message.store_timestamp);
                    let whole_log = from == self.segments.start();
                    let target = Target {
                        config: self.config,
                        tombstones: &self.tombstones,
                        queues: &mut self.queues,
                    };
                    match target.take(&message, whole_log, self.io)? {
                        Some(taken) => taken,
                        None => continue,
                    }
                }
                Step::Break { reason } => break reason,
                Step::End => break "the last segment is full".to_owned(),
            };
            if taken == Taken::Damaged {
                self.rebuild.insert(key);
            }
        };
        self.report.scanned_bytes += scanner.scanned_bytes();
        let end = scanner.at();
        let durable = self.checkpoint.marks.map_or(end, |marks| marks.flushed);
        if end < durable {
            let (path, _) = self.segments.place(end);
            return Err(OpenError::Corrupt {
                path,
                offset: end.0,
                reason: format!("{reason}; the log is known to be flushed up to {durable}"),
            });
        }
        Ok(end)
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
        while scanner.at() < end
            && let Step::Record(message) = scanner.next(&self.segments, self.io)?
        {
            let key = (message.topic.to_owned(), message.queue_id as u32);
            if rebuilding.contains_key(&key) {
                let target = Target {
                    config: self.config,
                    tombstones: &self.tombstones,
                    queues: &mut rebuilding,
                };
                target.take(&message, true, self.io)?;
            }
        }
        self.report.scanned_bytes += scanner.scanned_bytes();
        self.queues.append(&mut rebuilding);
        Ok(())
    }

    /// Makes the log end here: zeros behind, no later segments, and a segment to go on in.
    fn end_log(&mut self, end: PhysicalOffset, clear_behind: bool) -> Result<(), OpenError> {
        if clear_behind {
            self.cut(end)?;
        }
        if end == self.segments.end() {
            self.add_segment(end)?;
        }
        while self.segments.len() > 1
            && let Some(last) = self.segments.get(self.segments.len() - 1)
            && last.first > end
        {
            let is_next = last.first.0 <= end.0 + self.config.segment_bytes;
            if is_next && !clear_behind {
                // Prepared before an orderly stop, and not used yet.
                self.segments.put_back();
            } else {
                self.remove_last_segment()?;
            }
        }
        self.report.segments = self.segments.len();
        Ok(())
    }

    fn remove_last_segment(&mut self) -> Result<(), OpenError> {
        if let Some(segment) = self.segments.pop() {
            self.io.close(segment.file);
            let path = self.segments.path(segment.first);
            self.io.remove(&path).map_err(at_path(&path))?;
        }
        Ok(())
    }

    fn cut(&mut self, end: PhysicalOffset) -> Result<(), OpenError> {
        let Some(segment) = self.segments.find(end) else {
            return Ok(());
        };
        let path = self.segments.path(segment.first);
        if self.created == Some(segment.first) {
            return Ok(());
        }
        let position = end.bytes_since(segment.first);
        let bytes = self.config.segment_bytes;
        let stale = first_nonzero(segment.file, position, bytes, self.io);
        if let Some(stale) = stale.map_err(at_path(&path))? {
            let window = bytes.min(stale + CUT_COUNT_BYTES_MAX);
            let last = last_nonzero(segment.file, stale, window, self.io);
            self.report.cut_bytes = last.map_err(at_path(&path))? + 1 - position;
            let zeroed = self.io.zero_range(segment.file, stale, bytes - stale);
            zeroed.map_err(at_path(&path))?;
        }
        self.io.flush(segment.file).map_err(at_path(&path))
    }

    /// Makes bytes that were written but perhaps not flushed durable: all that was read counts from here on. They are
    /// written again before the flush, since a flush that failed in the last life may have left pages that the kernel
    /// takes for clean and that are not on the disk.
    fn secure(&mut self, from: PhysicalOffset, end: PhysicalOffset) -> Result<(), OpenError> {
        let mut at = from;
        let mut block = vec![0; 1024 * KIB as usize];
        while at < end
            && let Some(segment) = self.segments.find(at)
        {
            let path = self.segments.path(segment.first);
            let position = at.bytes_since(segment.first);
            let left = end
                .bytes_since(at)
                .min(self.config.segment_bytes - position);
            let want = block.len().min(left as usize);
            let read = self.io.read_at(segment.file, position, &mut block[..want]);
            let count = read.map_err(at_path(&path))?;
            let written = self.io.write_at(segment.file, position, &block[..count]);
            written.map_err(at_path(&path))?;
            at = at.advance(want as u64);
            if want as u64 == left {
                self.io.flush(segment.file).map_err(at_path(&path))?;
            }
        }
        Ok(())
    }
}

/// Last byte that isn't zero in a range whose first one isn't.
fn last_nonzero<F: FileSystem>(file: File, from: u64, end: u64, io: &F) -> io::Result<u64> {
    let mut last = from;
    let mut at = from;
    let mut block = vec![0; 64 * KIB as usize];
    while at < end {
        let want = block.len().min((end - at) as usize);
        let count = io.read_at(file, at, &mut block[..want])?;
        if count == 0 {
            break;
        }
        if let Some(found) = block[..count].iter().rposition(|byte| *byte != 0) {
            last = at + found as u64;
        }
        at += count as u64;
    }
    Ok(last)
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

/// Where entries of scanned records go.
struct Target<'a> {
    config: &'a StoreConfig,
    tombstones: &'a Tombstones,
    queues: &'a mut Queues,
}

impl Target<'_> {
    /// Takes the entry of a record. `None` if it has none.
    fn take<F: FileSystem>(
        self,
        message: &StoredMessage<'_>,
        whole_log: bool,
        io: &mut F,
    ) -> Result<Option<(QueueName, Taken)>, OpenError> {
        if !has_entry(message)
            || self
                .tombstones
                .covers(message.topic, message.physical_offset)
        {
            return Ok(None);
        }
        let entry = Entry {
            at: message.physical_offset,
            bytes: message.bytes.len() as u32,
            tags_code: tags_code(message),
        };
        let key = (message.topic.to_owned(), message.queue_id as u32);
        let queue = self.queues.entry(key.clone()).or_insert_with(|| {
            let root = &self.config.consume_queue;
            RecoveringQueue::new(
                root,
                message.topic,
                message.queue_id as u32,
                self.config.queue_file_bytes,
            )
        });
        let taken = queue.take(message.queue_offset, entry, whole_log, io)?;
        Ok(Some((key, taken)))
    }
}

/// Apache's rule of dispatch: prepared and rolled-back messages have no entry. Inner batches are entries of another
/// kind of queue. A topic becomes a directory, so that a name which could lead elsewhere has none either.
fn has_entry(message: &StoredMessage<'_>) -> bool {
    let kind = message.sys_flag & sys_flag::TRANSACTION_MASK;
    let is_dispatched = kind == 0 || kind == sys_flag::TRANSACTION_COMMIT;
    let is_plain = message.sys_flag & sys_flag::INNER_BATCH == 0;
    let topic = message.topic;
    let is_name = !topic.is_empty()
        && topic.len() <= SYSTEM_TOPIC_BYTES_MAX
        && !topic.contains(['/', '\0'])
        && topic != "."
        && topic != "..";
    let is_queue = u32::try_from(message.queue_id).is_ok_and(|id| id < QUEUE_ID_MAX);
    is_dispatched && is_plain && is_name && is_queue
}

/// Tags code of a record's entry; in the schedule topic, when the message is due.
fn tags_code(message: &StoredMessage<'_>) -> i64 {
    if message.topic == SCHEDULE_TOPIC
        && let Some(level) = properties::get(message.properties, properties::name::DELAY)
        && let Ok(level) = level.parse::<i64>()
        && level > 0
    {
        let index = (level as usize).min(DELAY_LEVELS_MS.len()) - 1;
        return (message.store_timestamp + DELAY_LEVELS_MS[index]) as i64;
    }
    hash::tags_code(message.tag())
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
