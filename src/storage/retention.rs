//! Deleting what is too old, or too much: whole segments from the front of the log, never the newest, one at a time.
//!
//! 1. Looks every ten seconds while there is more than one segment: how full is the disk, how large the log, and when
//!    was the front segment's last message stored (the first one behind it tells). Only what the checkpoint on disk
//!    covers is ever deleted, so that a recovery needs nothing of it.
//! 2. Finds where each queue begins without the segment: a binary search over its entries, on disk for most.
//! 3. In one turn the log and the queues begin behind it. Pulls in front are answered 21 from here on.
//! 4. The file is closed once no read of it is in flight, and removed by the files thread, which is where the file
//!    system frees its blocks. A crash in front of this leaves the segment, and the next start begins with it again.
//! 5. Consume queue files with nothing but such entries are removed, from the front; the last one of a queue stays,
//!    since it says where the queue goes on.
//!
//! Deliberately absent: segments used again under another name. The file behind the newest segment is filled with
//! zeros ahead of use, by another thread, and a used one would have to be filled as well.

use super::commit_log::CommitLog;
use super::fetch::Fetches;
use super::queue_files::{Acquired, QueueFiles, SlotId};
use super::queue_table::QueueTable;
use super::segment::Segment;
use super::tail_cache::TailCache;
use super::upkeep::Upkeep;
use super::{Entry, StoreConfig, tokens};
use crate::clock::Now;
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::io::{Failed, Io, Op, Space, Token};
use crate::limits::{ENTRY_BYTES, RETENTION_ENTRIES_READ, RETENTION_QUEUES_A_TURN};
use crate::protocol::message::{RECORD_OVERHEAD_BYTES, store_timestamp_of};
use bytes::BytesMut;
use std::collections::VecDeque;
use std::path::PathBuf;

/// Pause between two looks when nothing is to be deleted. Source: apache/rocketmq `cleanResourceInterval`.
const LOOK_MS: u64 = 10_000;
/// Pause after a failed read or removal.
const RETRY_MS: u64 = 10_000;
const HOUR_MS: u64 = 3_600_000;

/// What is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetentionConfig {
    /// Age from which on messages may be deleted (`fileReservedTime`).
    pub reserved_ms: u64,
    /// Hours of the day at which they are: bit 0 is midnight (`deleteWhen`).
    pub hours: u32,
    /// How far the clock of these hours is ahead of UTC.
    pub utc_offset_s: i64,
    /// Used percent of the disk from which on they are at any hour (`diskMaxUsedSpaceRatio`).
    pub used_percent_max: u64,
    /// ... from which on messages of any age are (`diskSpaceCleanForciblyRatio`); above 100: never.
    pub forced_percent: u64,
    /// Bytes of segments above which messages of any age are (`maxCommitLogBytes`).
    pub log_bytes_max: u64,
    /// Pause between two segments (`deleteCommitLogFilesInterval`).
    pub pace_ms: u64,
}

/// Apache's defaults.
impl Default for RetentionConfig {
    fn default() -> Self {
        Self {
            reserved_ms: 72 * HOUR_MS,
            hours: 1 << 4,
            utc_offset_s: 0,
            used_percent_max: 75,
            forced_percent: 85,
            log_bytes_max: u64::MAX,
            pace_ms: 100,
        }
    }
}

/// Why a segment was deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Older than `fileReservedTime`, at an hour of `deleteWhen`.
    Age,
    /// Older than `fileReservedTime`, and the disk is used to `diskMaxUsedSpaceRatio`.
    AgeAndDisk,
    /// The disk is used to `diskSpaceCleanForciblyRatio`, whatever the age.
    Disk,
    /// The log has more than `maxCommitLogBytes`, whatever the age.
    Size,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Age => "older than fileReservedTime",
            Self::AgeAndDisk => {
                "older than fileReservedTime, the disk used to diskMaxUsedSpaceRatio"
            }
            Self::Disk => "the disk is used to diskSpaceCleanForciblyRatio",
            Self::Size => "the log has more than maxCommitLogBytes",
        })
    }
}

/// A segment that was deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deleted {
    pub first: PhysicalOffset,
    pub bytes: u64,
    pub why: Why,
    /// Queues that lost messages.
    pub queues: usize,
}

/// The parts of a store that retention works on.
pub struct Parts<'a> {
    pub log: &'a mut CommitLog,
    pub tail: &'a mut TailCache,
    pub table: &'a mut QueueTable,
    pub files: &'a mut QueueFiles,
    pub fetches: &'a Fetches,
    pub upkeep: &'a mut Upkeep,
}

/// A range of a queue's entries in which its new start lies; `(low, low)` once it is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    low: u64,
    high: u64,
}

/// Looks for the first entry of each queue behind a segment.
#[derive(Debug)]
struct Search {
    behind: PhysicalOffset,
    why: Why,
    /// Place in the table of the queue at hand.
    queue: u32,
    /// `None`: not begun with.
    range: Option<Range>,
    /// A read of entries is in flight: its slot, and the offset of its first entry.
    reading: Option<(SlotId, u64)>,
    /// It gave way to other work of the turn and waits for nothing.
    is_ready: bool,
    found: Vec<(QueueIndex, QueueOffset)>,
}

#[derive(Debug)]
enum Step {
    Idle,
    /// How full is the disk?
    Measuring,
    /// It is known, and whether the front segment goes is to be decided.
    Measured,
    /// When was the first message behind the front segment, which begins here, stored?
    Dating(PhysicalOffset),
    Searching(Search),
    /// The log begins behind it; reads of it are in flight.
    Retiring(Segment, Deleted),
    Removing(Deleted),
    RemovingQueueFile,
}

#[derive(Debug)]
pub struct Retention {
    config: RetentionConfig,
    commit_log: PathBuf,
    step: Step,
    /// When to look again, in monotonic microseconds.
    due_us: u64,
    /// As last measured.
    used_percent: u64,
    /// The front segment's first byte, and when the first message behind it was stored.
    dated: Option<(PhysicalOffset, u64)>,
    /// The next queue whose files are looked at; `None`: all have been, since a segment was deleted.
    trim_next: Option<u32>,
    /// A file that could not be removed.
    unremoved: Option<(Token, PathBuf)>,
    deleting: Option<Deleted>,
    files_removed: bool,
    deleted: VecDeque<Deleted>,
    last_error: Option<String>,
}

/// Whether an entry's record lies in front of the log's start, or nowhere.
fn is_gone(entry: Option<Entry>, start: PhysicalOffset) -> bool {
    entry.is_none_or(|entry| entry.at < start || entry.is_blank() && entry.at.0 == 0)
}

impl Retention {
    pub fn new(config: &StoreConfig) -> Self {
        Self {
            config: config.retention,
            commit_log: config.commit_log.clone(),
            step: Step::Idle,
            due_us: 0,
            used_percent: 0,
            dated: None,
            trim_next: Some(0),
            unremoved: None,
            deleting: None,
            files_removed: false,
            deleted: VecDeque::new(),
            last_error: None,
        }
    }

    /// Nothing is under way.
    pub fn is_quiet(&self) -> bool {
        matches!(self.step, Step::Idle)
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    pub fn take_deleted(&mut self) -> Option<Deleted> {
        self.deleted.pop_front()
    }

    pub fn next_deadline(
        &self,
        log: &CommitLog,
        table: &QueueTable,
        upkeep: &Upkeep,
    ) -> Option<u64> {
        match &self.step {
            Step::Searching(search) if search.is_ready => Some(0),
            Step::Idle if upkeep.is_idle() && !upkeep.is_stopping() => {
                let is_wanted = self.unremoved.is_some()
                    || self.trim_next.is_some_and(|place| place < table.count())
                    || log.segments.len() > 1;
                is_wanted.then_some(self.due_us)
            }
            _ => None,
        }
    }

    /// Goes on with what is under way, or begins what is due.
    pub fn drive<I: Io>(&mut self, parts: &mut Parts<'_>, now: Now, io: &mut I) {
        if std::mem::take(&mut self.files_removed) {
            parts.upkeep.on_files_removed();
        }
        if parts.upkeep.is_stopping()
            && matches!(&self.step, Step::Searching(search) if search.reading.is_none())
        {
            self.step = Step::Idle;
        }
        if self.is_quiet() {
            self.begin(parts, now, io);
        }
        if matches!(self.step, Step::Measured) {
            self.decide(parts, now, io);
        }
        if let Step::Searching(search) = &mut self.step
            && search.advance(parts, io)
        {
            self.retire(parts);
        }
        if let Step::Retiring(segment, deleted) = &self.step
            && !parts.fetches.uses(segment.file)
        {
            // The name goes last, on the files thread: freeing the blocks of a segment takes a while.
            io.close(segment.file);
            let path = parts.log.segments.path(segment.first);
            self.step = Step::Removing(*deleted);
            self.remove(tokens::REMOVE_SEGMENT, path, io);
        }
    }

    fn remove<I: Io>(&mut self, token: Token, path: PathBuf, io: &mut I) {
        self.unremoved = Some((token, path.clone()));
        io.submit(token, Op::Remove { path });
    }

    fn begin<I: Io>(&mut self, parts: &mut Parts<'_>, now: Now, io: &mut I) {
        let may_begin = parts.upkeep.is_idle() && !parts.upkeep.is_stopping();
        if !may_begin || now.monotonic_us < self.due_us {
            return;
        }
        if let Some((token, path)) = self.unremoved.take() {
            self.step = match self.deleting {
                Some(deleted) if token == tokens::REMOVE_SEGMENT => Step::Removing(deleted),
                _ => Step::RemovingQueueFile,
            };
            self.remove(token, path, io);
        } else if self.trim(parts, io) || parts.log.segments.len() < 2 {
            // A queue file at a time, and nothing to look at otherwise.
        } else if front_end(parts.log) <= parts.upkeep.covered() {
            self.step = Step::Measuring;
            let path = self.commit_log.clone();
            io.submit(tokens::RETENTION_SPACE, Op::Space { path });
        } else {
            self.due_us = now.after_ms(LOOK_MS);
        }
    }

    pub fn on_space(&mut self, result: Result<Space, Failed>, now: Now) {
        assert!(matches!(self.step, Step::Measuring), "{:?}", self.step);
        match result {
            Ok(space) => {
                self.used_percent = space.used_percent();
                self.step = Step::Measured;
            }
            Err(failed) => self.on_failed("asking how full the disk is", &failed, now),
        }
    }

    /// Whether the front segment goes; first finds out how old it is, where that matters.
    fn decide<I: Io>(&mut self, parts: &Parts<'_>, now: Now, io: &mut I) {
        let segments = &parts.log.segments;
        let config = &self.config;
        let log_bytes = segments.bytes().saturating_mul(segments.len() as u64);
        let first = segments.start();
        let why = if self.used_percent >= config.forced_percent {
            Some(Why::Disk)
        } else if log_bytes > config.log_bytes_max {
            Some(Why::Size)
        } else if let Some((_, stored_ms)) = self.dated.filter(|(of, _)| *of == first) {
            let is_old = now.wall_ms.saturating_sub(stored_ms) >= config.reserved_ms;
            let is_full = self.used_percent >= config.used_percent_max;
            let why = if is_full { Why::AgeAndDisk } else { Why::Age };
            (is_old && (is_full || self.is_hour(now))).then_some(why)
        } else if let Some(next) = segments.get(1) {
            self.step = Step::Dating(first);
            let op = Op::Read {
                file: next.file,
                position: 0,
                len: RECORD_OVERHEAD_BYTES as u32,
            };
            io.submit(tokens::DATE_READ, op);
            return;
        } else {
            None
        };
        self.step = Step::Idle;
        match why {
            Some(why) => {
                self.step = Step::Searching(Search {
                    behind: front_end(parts.log),
                    why,
                    queue: 0,
                    range: None,
                    reading: None,
                    is_ready: false,
                    found: Vec::new(),
                });
            }
            None => self.due_us = now.after_ms(LOOK_MS),
        }
    }

    fn is_hour(&self, now: Now) -> bool {
        let local_s = (now.wall_ms / 1000) as i64 + self.config.utc_offset_s;
        let hour = local_s.div_euclid(3600).rem_euclid(24);
        self.config.hours >> hour & 1 == 1
    }

    pub fn on_dated(&mut self, result: Result<BytesMut, Failed>, now: Now) {
        let Step::Dating(first) = self.step else {
            unreachable!("dated in {:?}", self.step);
        };
        match result {
            Ok(bytes) => match store_timestamp_of(&bytes) {
                Ok(stored_ms) if stored_ms > 0 => {
                    self.dated = Some((first, stored_ms));
                    self.step = Step::Measured;
                }
                // Nothing is written behind it yet.
                _ => {
                    self.step = Step::Idle;
                    self.due_us = now.after_ms(LOOK_MS);
                }
            },
            Err(failed) => self.on_failed("reading the age of a segment", &failed, now),
        }
    }

    /// Entries that a search waited for.
    pub fn on_entries<I: Io>(
        &mut self,
        token: Token,
        result: Result<BytesMut, Failed>,
        files: &mut QueueFiles,
        now: Now,
        io: &mut I,
    ) {
        files.release(files.slot_of(token), io);
        let Step::Searching(search) = &mut self.step else {
            unreachable!("entries read in {:?}", self.step);
        };
        let Some((_, from)) = search.reading.take() else {
            unreachable!("no entries were being read");
        };
        match result {
            Ok(bytes) if bytes.len() >= ENTRY_BYTES => search.narrow_by(from, &bytes),
            Ok(_) => {
                let failed = Failed { errno: libc::EIO };
                self.on_failed("reading entries, of which there are none,", &failed, now);
            }
            Err(failed) => self.on_failed("reading entries", &failed, now),
        }
    }

    /// A queue file could not be opened, perhaps the one that a search waits for.
    pub fn on_open_failed(&mut self, failed: &Failed, now: Now) {
        if matches!(&self.step, Step::Searching(search) if search.reading.is_none()) {
            self.on_failed("opening a queue file", failed, now);
        }
    }

    /// The log and its queues begin behind the front segment from here on.
    fn retire(&mut self, parts: &mut Parts<'_>) {
        let Step::Searching(search) = std::mem::replace(&mut self.step, Step::Idle) else {
            unreachable!("retired in {:?}", self.step);
        };
        let Some(segment) = parts.log.segments.pop_front() else {
            unreachable!("the only segment was to be deleted");
        };
        assert_eq!(
            parts.log.start(),
            search.behind,
            "the log begins elsewhere than searched for"
        );
        parts.tail.drop_below(search.behind);
        let mut queues = 0;
        for (index, min) in search.found {
            let queue = parts.table.get_mut(index);
            if !queue.is_deleted {
                queue.raise_min(min);
                queues += 1;
            }
        }
        self.trim_next = Some(0);
        let deleted = Deleted {
            first: segment.first,
            bytes: parts.log.segments.bytes(),
            why: search.why,
            queues,
        };
        self.deleting = Some(deleted);
        self.step = Step::Retiring(segment, deleted);
    }

    pub fn on_segment_removed(&mut self, result: Result<(), Failed>, now: Now) {
        let Step::Removing(deleted) = self.step else {
            unreachable!("a segment was removed in {:?}", self.step);
        };
        self.step = Step::Idle;
        match result {
            Ok(()) => {
                self.unremoved = None;
                self.deleting = None;
                self.deleted.push_back(deleted);
                self.due_us = now.after_ms(self.config.pace_ms);
            }
            Err(failed) => self.on_failed("removing a segment", &failed, now),
        }
    }

    /// Begins to remove the next queue file that nobody needs. `false`: there is none.
    fn trim<I: Io>(&mut self, parts: &mut Parts<'_>, io: &mut I) -> bool {
        let files = &mut *parts.files;
        while let Some(place) = self.trim_next {
            if place >= parts.table.count() {
                self.trim_next = None;
                return false;
            }
            let index = QueueIndex(place);
            let queue = parts.table.get_mut(index);
            let (start, kept) = queue.kept_in_files();
            let number = files.number_of(start);
            let is_wanted = queue.is_deleted || queue.is_blocked || files.end_of(number) > kept;
            // One that is in use is left to the next segment's turn.
            if is_wanted || !files.close_unused(index, number, io) {
                self.trim_next = Some(place + 1);
                continue;
            }
            queue.raise_files_start(files.end_of(number));
            let path = files.path(queue, number);
            self.step = Step::RemovingQueueFile;
            self.remove(tokens::REMOVE_QUEUE_FILE, path, io);
            return true;
        }
        false
    }

    pub fn on_queue_file_removed(&mut self, result: Result<(), Failed>, now: Now) {
        assert!(
            matches!(self.step, Step::RemovingQueueFile),
            "{:?}",
            self.step
        );
        self.step = Step::Idle;
        match result {
            Ok(()) => {
                self.unremoved = None;
                self.files_removed = true;
            }
            Err(failed) => self.on_failed("removing a queue file", &failed, now),
        }
    }

    fn on_failed(&mut self, what: &str, failed: &Failed, now: Now) {
        self.last_error = Some(format!("retention: {what}: {}", failed.error()));
        self.step = Step::Idle;
        self.due_us = now.after_ms(RETRY_MS);
    }
}

/// First byte behind the front segment.
fn front_end(log: &CommitLog) -> PhysicalOffset {
    log.start().advance(log.segments.bytes())
}

impl Search {
    /// Goes on until all queues are searched (`true`), entries have to be read, or enough is done for a turn.
    fn advance<I: Io>(&mut self, parts: &mut Parts<'_>, io: &mut I) -> bool {
        self.is_ready = false;
        for _ in 0..RETENTION_QUEUES_A_TURN {
            if self.reading.is_some() {
                return false;
            }
            let index = QueueIndex(self.queue);
            if self.queue >= parts.table.count() {
                return true;
            }
            let queue = parts.table.get(index);
            let bounds = queue.bounds();
            if queue.is_deleted {
                self.next_queue();
                continue;
            }
            let range = self.range.get_or_insert(Range {
                low: bounds.min.0,
                high: bounds.max.0,
            });
            // What is in memory costs nothing.
            let recent = queue.recent_start().max(range.low);
            let behind = self.behind;
            let in_memory = |at: u64| queue.recent(QueueOffset(at));
            if recent < range.high {
                if is_gone(in_memory(recent), behind) {
                    range.low = partition(recent, range.high, |at| is_gone(in_memory(at), behind));
                    range.high = range.low;
                } else {
                    range.high = recent;
                }
            }
            if range.low == range.high {
                if range.low > bounds.min.0 {
                    self.found.push((index, QueueOffset(range.low)));
                }
                self.next_queue();
                continue;
            }
            let range = *range;
            self.read(index, range, parts, io);
            return false;
        }
        self.is_ready = true;
        false
    }

    fn next_queue(&mut self) {
        self.queue += 1;
        self.range = None;
    }

    /// Reads entries in the middle of a range, or all of it if that is not many.
    fn read<I: Io>(&mut self, index: QueueIndex, range: Range, parts: &mut Parts<'_>, io: &mut I) {
        let count = range.high - range.low;
        let from = if count <= RETENTION_ENTRIES_READ {
            range.low
        } else {
            range.low + count / 2
        };
        let files = &mut *parts.files;
        let number = files.number_of(from);
        let to = range
            .high
            .min(from + RETENTION_ENTRIES_READ)
            .min(files.end_of(number));
        let queue = parts.table.get(index);
        // A file that is being opened: the completion drives the search again.
        if let Acquired::Ready(slot, file) = files.acquire(index, queue, number, io) {
            self.reading = Some((slot, from));
            let op = Op::Read {
                file,
                position: files.position_of(from),
                len: (to - from) as u32 * ENTRY_BYTES as u32,
            };
            io.submit(files.token(tokens::START_READ, slot), op);
        }
    }

    /// Narrows the range by entries of it.
    fn narrow_by(&mut self, from: u64, bytes: &[u8]) {
        let behind = self.behind;
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        let gone = entries.partition_point(|entry| is_gone(Entry::decode(entry), behind)) as u64;
        let Some(range) = &mut self.range else {
            unreachable!("entries of no range were read");
        };
        if gone > 0 {
            range.low = from + gone;
        }
        if gone < entries.len() as u64 {
            range.high = from + gone;
        }
        assert!(range.low <= range.high, "{range:?}");
    }
}

/// First offset in a range for which the condition is false; it is true for all in front of it.
fn partition(mut low: u64, mut high: u64, is_before: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
