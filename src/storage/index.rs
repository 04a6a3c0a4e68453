//! Index files: from the keys of messages to their places in the log, in RocketMQ's format.
//!
//! Keys are taken when their message is appended and put into the newest file once it is visible. Slots of that file
//! are in memory; its units are written in blocks, its slots and header when a checkpoint is taken or the file is
//! full. All of it is derived: what is not on disk after a crash is taken from the log again.
//!
//! A failed write is tried again; a failed flush, or too many keys that wait, ends the index until the next start,
//! which derives what is missing. Messages don't depend on it.
//!
//! Source: apache/rocketmq 4.9.8 `store/.../index/IndexService.java`, `IndexFile.java`.

mod layout;
mod recovery;
mod walk;

pub use layout::{Sizes, key_hash};
pub use recovery::{Found, open};
pub use walk::{Walk, WalkRead};

use super::tokens;
use crate::clock::Now;
use crate::ids::PhysicalOffset;
use crate::io::{Failed, File, Io, Op, Token};
use crate::limits::{INDEX_FILES_MAX, INDEX_KEYS_WAITING_MAX};
use crate::protocol::properties::{self, name};
use bytes::{BufMut, Bytes, BytesMut};
use layout::{Header, Unit};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// Slots that are written together.
const PAGE_SLOTS: u32 = 1024;
/// Pages in one round of writes.
const PAGES_AT_ONCE: usize = 256;
/// Units that are written without a checkpoint; 20 bytes each.
const UNITS_AT_ONCE: usize = 16 * 1024;
const RETRY_MS: u64 = 1000;

/// A key of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    at: PhysicalOffset,
    stored_ms: u64,
    hash: u32,
}

#[derive(Debug)]
struct IndexFile {
    /// Its name is a time, written as a number; files are in its order.
    name: u64,
    file: File,
    header: Header,
    /// All of it is on disk.
    is_flushed: bool,
}

#[derive(Debug)]
enum Work {
    Idle,
    Writing {
        left: usize,
        units: usize,
        pages: Vec<u32>,
        failed: Option<i32>,
    },
    Flushing,
    Opening {
        name: u64,
    },
    Removing,
}

/// Writing and flushing all that the newest file has.
#[derive(Debug)]
struct Round {
    until: u32,
    /// Slots that are left; `None` while units are.
    pages: Option<BTreeSet<u32>>,
    is_written: bool,
    covers: Option<PhysicalOffset>,
}

#[derive(Debug)]
pub struct Index {
    is_enabled: bool,
    sizes: Sizes,
    directory: PathBuf,
    /// Oldest first. Only the last grows.
    files: VecDeque<IndexFile>,
    /// Of the last file.
    slots: Vec<u32>,
    /// Pages of slots that changed.
    dirty: BTreeSet<u32>,
    /// Units of the last file that are not written; the first of them is `written`.
    tail: VecDeque<Unit>,
    written: u32,
    /// Keys of messages that are not visible, or that wait for a file.
    keys: VecDeque<Key>,
    visible: PhysicalOffset,
    work: Work,
    round: Option<Round>,
    /// A checkpoint waits until the keys of all records below are on disk.
    wanted: Option<PhysicalOffset>,
    covered: PhysicalOffset,
    retry_us: Option<u64>,
    is_broken: bool,
    last_error: Option<String>,
}

/// The keys of a message: the unique one, and those that are set, between spaces.
fn keys_of(encoded: &str) -> impl Iterator<Item = &str> {
    let unique = properties::get(encoded, name::UNIQUE_KEY);
    let keys = properties::get(encoded, name::KEYS).unwrap_or("");
    unique
        .into_iter()
        .chain(keys.split(' '))
        .filter(|key| !key.is_empty())
}

impl Index {
    fn new(is_enabled: bool, sizes: Sizes, directory: &Path) -> Self {
        let slots = if is_enabled { sizes.slots as usize } else { 0 };
        Self {
            is_enabled,
            sizes,
            directory: directory.to_path_buf(),
            files: VecDeque::new(),
            slots: vec![0; slots],
            dirty: BTreeSet::new(),
            tail: VecDeque::new(),
            written: 1,
            keys: VecDeque::new(),
            visible: PhysicalOffset(0),
            work: Work::Idle,
            round: None,
            wanted: None,
            covered: PhysicalOffset(0),
            retry_us: None,
            is_broken: false,
            last_error: None,
        }
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// The keys of all records below are on disk.
    pub fn covered(&self) -> Option<PhysicalOffset> {
        (self.is_enabled && !self.is_broken).then_some(self.covered)
    }

    /// Time and place of the newest record in the index.
    pub fn newest(&self) -> (u64, PhysicalOffset) {
        let last = self.files.iter().rev().find(|file| file.header.next > 1);
        last.map_or((0, PhysicalOffset(0)), |file| {
            (file.header.end_ms, file.header.end)
        })
    }

    /// Takes the keys of a message that was appended.
    pub fn note(&mut self, topic: &str, encoded: &str, at: PhysicalOffset, stored_ms: u64) {
        if !self.is_enabled || self.is_broken {
            return;
        }
        for key in keys_of(encoded) {
            let hash = key_hash(topic, key);
            self.keys.push_back(Key {
                at,
                stored_ms,
                hash,
            });
        }
        if self.keys.len() + self.tail.len() > INDEX_KEYS_WAITING_MAX {
            let waiting = self.keys.len() + self.tail.len();
            self.give_up(format!(
                "{waiting} keys wait for the disk, the limit is {INDEX_KEYS_WAITING_MAX}"
            ));
        }
    }

    /// No index until the next start.
    fn give_up(&mut self, reason: String) {
        self.is_broken = true;
        self.last_error = Some(format!(
            "message index: {reason}; it ends here until the next start"
        ));
        self.keys = VecDeque::new();
        self.round = None;
        self.wanted = None;
        self.retry_us = None;
    }

    /// A checkpoint begins that is to cover the records below.
    pub fn begin_round(&mut self, target: PhysicalOffset) {
        if self.is_enabled && !self.is_broken && self.retry_us.is_none() {
            self.wanted = Some(target);
        }
    }

    /// The checkpoint need not wait any longer: all is on disk, or can't be.
    pub fn is_settled(&self) -> bool {
        self.wanted.is_none()
    }

    /// Nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        matches!(self.work, Work::Idle)
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.retry_us.filter(|_| self.is_quiet())
    }

    fn has_room(&self) -> bool {
        self.files
            .back()
            .is_some_and(|file| file.header.next < self.sizes.units)
    }

    fn unwritten(&self, number: u32) -> Option<Unit> {
        let place = number.checked_sub(self.written)?;
        self.tail.get(place as usize).copied()
    }

    /// Puts keys that became visible into the newest file, as long as it has room.
    fn take_keys(&mut self, visible: PhysicalOffset) {
        self.visible = visible;
        while let Some(key) = self.keys.front().copied().filter(|key| key.at < visible)
            && self.has_room()
        {
            self.keys.pop_front();
            self.put(key);
        }
    }

    fn put(&mut self, key: Key) {
        let Some(file) = self.files.back_mut() else {
            unreachable!("there is room in no file");
        };
        let header = &mut file.header;
        if header.next == 1 {
            header.begin = key.at;
            header.begin_ms = key.stored_ms;
        }
        let slot = self.sizes.slot_of(key.hash);
        let previous = self.slots[slot as usize];
        self.tail.push_back(Unit {
            hash: key.hash,
            at: key.at,
            seconds: header.seconds(key.stored_ms),
            previous,
        });
        self.slots[slot as usize] = header.next;
        self.dirty.insert(slot / PAGE_SLOTS);
        header.used_slots += u32::from(previous == 0);
        header.next += 1;
        header.end = key.at;
        header.end_ms = key.stored_ms;
        file.is_flushed = false;
    }

    /// Starts what is due. `is_unread`: no read is in flight, so that a file may be closed.
    pub fn drive<I: Io>(
        &mut self,
        (log_start, visible): (PhysicalOffset, PhysicalOffset),
        is_unread: bool,
        now: Now,
        io: &mut I,
    ) {
        self.take_keys(visible);
        if !self.is_enabled || self.is_broken || !self.is_quiet() {
            return;
        }
        if self.retry_us.is_some_and(|retry| retry > now.monotonic_us) {
            return;
        }
        self.retry_us = None;
        let is_waiting =
            |before: PhysicalOffset| self.keys.front().is_some_and(|key| key.at < before);
        let is_flushed = self.files.back().is_none_or(|file| file.is_flushed);
        if self.round.is_some() {
            return self.go_on(io);
        }
        if is_waiting(visible) {
            // The newest file is full.
            if is_flushed {
                self.open_next(now, io);
            } else {
                self.begin(None, io);
            }
            return;
        }
        if let Some(wanted) = self.wanted {
            if is_flushed {
                self.covered = self.covered.max(wanted);
                self.wanted = None;
            } else {
                return self.begin(Some(wanted), io);
            }
        }
        if self.tail.len() >= UNITS_AT_ONCE {
            self.write_units(io);
        } else if is_unread {
            self.remove_oldest(log_start, io);
        }
    }

    fn begin<I: Io>(&mut self, covers: Option<PhysicalOffset>, io: &mut I) {
        self.round = Some(Round {
            until: self.written + self.tail.len() as u32,
            pages: None,
            is_written: false,
            covers,
        });
        self.go_on(io);
    }

    /// The next step of a round: units, then slots, then the header and a flush.
    fn go_on<I: Io>(&mut self, io: &mut I) {
        let (Some(round), Some(file)) = (&mut self.round, self.files.back_mut()) else {
            return;
        };
        if round.is_written {
            self.work = Work::Flushing;
            io.submit(tokens::INDEX_FLUSH, Op::Flush { file: file.file });
            return;
        }
        if self.written < round.until {
            return self.write_units(io);
        }
        let left = round
            .pages
            .get_or_insert_with(|| std::mem::take(&mut self.dirty));
        let mut pages: Vec<u32> = Vec::new();
        while pages.len() < PAGES_AT_ONCE
            && let Some(page) = left.pop_first()
        {
            pages.push(page);
        }
        let mut writes = slot_writes(self.sizes, &self.slots, &pages);
        if left.is_empty() {
            round.is_written = true;
            writes.push((0, file.header.encode()));
        }
        self.submit_writes(writes, 0, pages, io);
    }

    fn write_units<I: Io>(&mut self, io: &mut I) {
        let units = self.tail.len().min(UNITS_AT_ONCE);
        let write = self.unit_write(units);
        self.submit_writes(vec![write], units, Vec::new(), io);
    }

    fn unit_write(&self, units: usize) -> (u64, Bytes) {
        let mut out = BytesMut::with_capacity(units * layout::UNIT_BYTES as usize);
        for unit in self.tail.iter().take(units) {
            unit.encode(&mut out);
        }
        (self.sizes.unit_position(self.written), out.freeze())
    }

    fn submit_writes<I: Io>(
        &mut self,
        writes: Vec<(u64, Bytes)>,
        units: usize,
        pages: Vec<u32>,
        io: &mut I,
    ) {
        let Some(last) = self.files.back() else {
            return;
        };
        self.work = Work::Writing {
            left: writes.len(),
            units,
            pages,
            failed: None,
        };
        for (number, (position, bytes)) in writes.into_iter().enumerate() {
            let token = Token::new(tokens::INDEX_WRITE, number as u32, 0);
            let file = last.file;
            io.submit(
                token,
                Op::Write {
                    file,
                    position,
                    bytes,
                },
            );
        }
    }

    pub fn on_written(&mut self, result: Result<(), Failed>, now: Now) {
        let Work::Writing {
            left,
            units,
            pages,
            failed,
        } = &mut self.work
        else {
            unreachable!("no unit of the index was being written");
        };
        *left -= 1;
        if let Err(error) = result {
            failed.get_or_insert(error.errno);
        }
        if *left > 0 {
            return;
        }
        match *failed {
            None => {
                self.tail.drain(..*units);
                self.written += *units as u32;
                self.work = Work::Idle;
            }
            Some(errno) => {
                self.dirty.extend(pages.iter());
                self.work = Work::Idle;
                self.fail("writing an index file", &Failed { errno }, now);
            }
        }
    }

    /// Tried again later; a checkpoint does not wait for it.
    fn fail(&mut self, what: &str, failed: &Failed, now: Now) {
        if let Some(pages) = self.round.take().and_then(|round| round.pages) {
            self.dirty.extend(pages);
        }
        self.wanted = None;
        self.last_error = Some(format!("{what}: {}", failed.error()));
        self.retry_us = Some(now.after_ms(RETRY_MS));
    }

    pub fn on_flushed(&mut self, result: Result<(), Failed>) {
        assert!(
            matches!(self.work, Work::Flushing),
            "no index file was being flushed"
        );
        self.work = Work::Idle;
        let round = self.round.take();
        match (result, round, self.files.back_mut()) {
            (Err(failed), ..) => self.give_up(format!("flushing a file: {}", failed.error())),
            (Ok(()), Some(round), Some(file)) => {
                file.is_flushed = self.tail.is_empty() && self.dirty.is_empty();
                if let Some(covers) = round.covers {
                    self.covered = self.covered.max(covers);
                    self.wanted = self.wanted.filter(|wanted| *wanted > covers);
                }
            }
            (Ok(()), ..) => {}
        }
    }

    /// A name behind that of the newest file, made from the time as Apache does.
    fn next_name(&self, wall_ms: u64) -> u64 {
        let newest = self.files.back().map_or(0, |file| file.name);
        time_name(wall_ms).max(newest + 1)
    }

    fn open_next<I: Io>(&mut self, now: Now, io: &mut I) {
        let name = self.next_name(now.wall_ms);
        self.work = Work::Opening { name };
        let op = Op::Prepare {
            path: self.path(name),
            len: self.sizes.file_bytes(),
            zero_fill: false,
        };
        io.submit(tokens::INDEX_OPEN, op);
    }

    pub fn on_opened(&mut self, result: Result<File, Failed>, now: Now) {
        let Work::Opening { name } = self.work else {
            unreachable!("no index file was being opened");
        };
        self.work = Work::Idle;
        match result {
            Ok(file) => self.add_file(name, file),
            Err(failed) => self.fail("making an index file", &failed, now),
        }
    }

    fn add_file(&mut self, name: u64, file: File) {
        self.files.push_back(IndexFile {
            name,
            file,
            header: Header::EMPTY,
            is_flushed: true,
        });
        // New memory instead of zeros over the old: it comes page by page as it is used.
        self.slots = vec![0; self.sizes.slots as usize];
        self.dirty.clear();
        self.tail.clear();
        self.written = 1;
    }

    /// Removes the oldest file when there are too many, or when the log has none of its records any more.
    fn remove_oldest<I: Io>(&mut self, log_start: PhysicalOffset, io: &mut I) {
        let is_gone = |file: &IndexFile| file.header.end < log_start;
        let is_due = self.files.len() > INDEX_FILES_MAX || self.files.front().is_some_and(is_gone);
        if self.files.len() > 1
            && is_due
            && let Some(oldest) = self.files.pop_front()
        {
            io.close(oldest.file);
            self.work = Work::Removing;
            let path = self.path(oldest.name);
            io.submit(tokens::INDEX_REMOVE, Op::Remove { path });
        }
    }

    pub fn on_removed(&mut self, result: Result<(), Failed>) {
        assert!(
            matches!(self.work, Work::Removing),
            "no index file was being removed"
        );
        self.work = Work::Idle;
        if let Err(failed) = result {
            // The next start removes it.
            self.last_error = Some(format!("removing an index file: {}", failed.error()));
        }
    }

    pub fn close<I: Io>(&mut self, io: &mut I) {
        assert!(self.is_quiet(), "operations are in flight");
        for file in self.files.drain(..) {
            io.close(file.file);
        }
    }

    fn path(&self, name: u64) -> PathBuf {
        self.directory.join(name_text(name))
    }
}

/// Names have 17 digits.
fn name_text(name: u64) -> String {
    format!("{name:017}")
}

/// Year, month, day, hour, minute, second, milliseconds (UTC) as the digits of a number.
fn time_name(wall_ms: u64) -> u64 {
    let (days, in_day) = (wall_ms / 86_400_000, wall_ms % 86_400_000);
    // Civil date of a day count, by eras of 400 years that begin in March.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let date = (year * 100 + month) * 100 + day_of_month;
    let (seconds, ms) = (in_day / 1000, in_day % 1000);
    let time = (seconds / 3600 * 100 + seconds / 60 % 60) * 100 + seconds % 60;
    (date * 1_000_000 + time) * 1000 + ms
}

/// The bytes of pages of slots; neighbours are one write.
fn slot_writes(sizes: Sizes, slots: &[u32], pages: &[u32]) -> Vec<(u64, Bytes)> {
    let mut writes: Vec<(u64, Bytes)> = Vec::new();
    for run in pages.chunk_by(|a, b| a + 1 == *b) {
        let first = run[0] * PAGE_SLOTS;
        let end = (first + run.len() as u32 * PAGE_SLOTS).min(sizes.slots);
        let mut out = BytesMut::with_capacity((end - first) as usize * 4);
        for slot in &slots[first as usize..end as usize] {
            out.put_u32(*slot);
        }
        writes.push((sizes.slot_position(first), out.freeze()));
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_times() {
        for (ms, name) in [
            (0, 19_700_101_000_000_000),
            (951_782_399_999, 20_000_228_235_959_999),
            (951_782_400_000, 20_000_229_000_000_000),
            (1_700_000_000_123, 20_231_114_221_320_123),
        ] {
            assert_eq!(time_name(ms), name, "{ms}");
        }
        assert_eq!(name_text(5), "00000000000000005");
    }

    #[test]
    fn keys_are_the_unique_one_and_those_between_spaces() {
        let found = |encoded: &str| keys_of(encoded).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            found("KEYS\u{1}a  b\u{2}UNIQ_KEY\u{1}u\u{2}"),
            ["u", "a", "b"]
        );
        assert_eq!(found("TAGS\u{1}a\u{2}"), Vec::<String>::new());
    }
}
