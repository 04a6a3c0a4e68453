//! One consume queue at recovery: finds what of its files can be trusted, then takes entries derived from the log.
//!
//! Trusted are entries of records below the place where the scan of the log begins: the checkpoint says that they
//! are on disk. After a power cut, what lies behind may be holes and entries in any mixture.

use super::consume_queue::QueueStart;
use super::queue_files::queue_directory;
use super::segment::{file_name, parse_file_name};
use super::{Entry, OpenError};
use crate::ids::{PhysicalOffset, QueueOffset};
use crate::io::{File, FileSystem};
use crate::limits::{ENTRY_BYTES, KIB};
use bytes::BytesMut;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Entries collected before they are written.
const BUFFER_BYTES: usize = 64 * KIB as usize;

/// Files found in a queue's directory.
#[derive(Debug, Default)]
struct Found {
    numbers: Vec<u64>,
    /// Bytes of files that have another size than configured.
    wrong_sizes: Vec<(PathBuf, u64)>,
}

#[derive(Debug)]
pub struct RecoveringQueue {
    pub topic: String,
    pub queue_id: u32,
    directory: PathBuf,
    entries_per_file: u64,
    found: Found,
    /// The next entry; entries below are on disk or in the buffer.
    next: u64,
    /// Nothing is known of it yet: the first record decides where it begins.
    is_empty: bool,
    /// Its files can't be trusted: all entries are derived again.
    is_damaged: bool,
    /// The largest `next` that was ever trusted: offsets never go back.
    highest: u64,
    first: Option<Entry>,
    last: Option<Entry>,
    buffer: BytesMut,
    open: Option<(u64, File)>,
    touched: BTreeSet<u64>,
}

/// Whether a record's entry was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Yes,
    /// It is there already.
    Known,
    /// Entries are missing in front of it, or contradict it: derive the queue from the whole log.
    Damaged,
}

fn at_path(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_path_buf();
    move |source| OpenError::Io { path, source }
}

impl RecoveringQueue {
    /// A queue that has no files.
    pub fn new(root: &Path, topic: &str, queue_id: u32, file_bytes: u64) -> Self {
        Self {
            topic: topic.to_owned(),
            queue_id,
            directory: queue_directory(root, topic, queue_id),
            entries_per_file: file_bytes / ENTRY_BYTES as u64,
            found: Found::default(),
            next: 0,
            is_empty: true,
            is_damaged: false,
            highest: 0,
            first: None,
            last: None,
            buffer: BytesMut::new(),
            open: None,
            touched: BTreeSet::new(),
        }
    }

    fn file_bytes(&self) -> u64 {
        self.entries_per_file * ENTRY_BYTES as u64
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(file_name(number * self.file_bytes()))
    }

    /// Lists the files. One of another size, or a gap between two, makes the queue damaged.
    pub fn load<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        let names = io.list(&self.directory).map_err(at_path(&self.directory))?;
        for first_byte in names.iter().filter_map(|name| parse_file_name(name)) {
            let path = self.directory.join(file_name(first_byte));
            let file = io.open(&path).map_err(at_path(&path))?;
            let len = io.len(file);
            io.close(file);
            let len = len.map_err(at_path(&path))?;
            if len != self.file_bytes() || !first_byte.is_multiple_of(self.file_bytes()) {
                self.found.wrong_sizes.push((path, len));
                continue;
            }
            self.found.numbers.push(first_byte / self.file_bytes());
        }
        let numbers = &self.found.numbers;
        let has_gap = numbers.windows(2).any(|pair| pair[1] != pair[0] + 1);
        self.is_damaged = has_gap || !self.found.wrong_sizes.is_empty();
        if let Some(last) = numbers.last() {
            self.highest = last * self.entries_per_file;
        }
        Ok(())
    }

    pub fn has_files(&self) -> bool {
        !self.found.numbers.is_empty()
    }

    /// Files of another size than configured.
    pub fn wrong_sizes(&self) -> &[(PathBuf, u64)] {
        &self.found.wrong_sizes
    }

    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Entries in its files that are trusted.
    pub fn entries_in_files(&self) -> u64 {
        self.next.saturating_sub(self.files_start())
    }

    fn files_start(&self) -> u64 {
        let first = self.found.numbers.first();
        first.map_or(self.next, |number| number * self.entries_per_file)
    }

    /// The last entry that is trusted.
    pub fn last(&self) -> Option<Entry> {
        self.last
    }

    /// The first and the last trusted entry, each with the queue id and offset that its record must state.
    pub fn witnesses(&self) -> [Option<(Entry, (u32, u64))>; 2] {
        let first = self
            .first
            .map(|entry| (entry, (self.queue_id, self.files_start())));
        let last = self
            .last
            .map(|entry| (entry, (self.queue_id, self.next - 1)));
        [first, last]
    }

    /// Finds the end of what is trusted: valid entries of records below `limit`. They lie in front of all others.
    pub fn find_end<F: FileSystem>(
        &mut self,
        limit: PhysicalOffset,
        io: &mut F,
    ) -> Result<(), OpenError> {
        if self.is_damaged {
            return Ok(());
        }
        let (Some(first), Some(last)) = (self.found.numbers.first(), self.found.numbers.last())
        else {
            return Ok(());
        };
        let start = first * self.entries_per_file;
        let end = (last + 1) * self.entries_per_file;
        let next = self.partition(start, end, io, |entry| {
            entry.is_some_and(|entry| entry.is_blank() || entry.at < limit)
        })?;
        self.next = next;
        self.highest = self.highest.max(next);
        self.is_empty = next == 0 || next == start;
        self.first = if next > start {
            self.read(start, io)?
        } else {
            None
        };
        // A hole in front of entries: the file is not what it was.
        self.is_damaged = next > start && self.first.is_none();
        self.last = if next > start {
            self.read(next - 1, io)?
        } else {
            None
        };
        // The queue begins at its first file, even if nothing in it counts.
        if next == start && start > 0 {
            self.is_empty = false;
        }
        Ok(())
    }

    /// First offset in a range for which the condition is false; it is true for all in front of it.
    fn partition<F: FileSystem>(
        &mut self,
        start: u64,
        end: u64,
        io: &mut F,
        mut is_before: impl FnMut(Option<Entry>) -> bool,
    ) -> Result<u64, OpenError> {
        let (mut low, mut high) = (start, end);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(self.read(middle, io)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn open_file<F: FileSystem>(&mut self, number: u64, io: &mut F) -> Result<File, OpenError> {
        if let Some((open, file)) = self.open {
            if open == number {
                return Ok(file);
            }
            self.close(io);
        }
        let path = self.path(number);
        let file = if self.found.numbers.contains(&number) {
            io.open(&path).map_err(at_path(&path))?
        } else {
            io.create_directories(&self.directory)
                .map_err(at_path(&path))?;
            let file = io.create(&path, 0).map_err(at_path(&path))?;
            io.set_len(file, self.file_bytes())
                .map_err(at_path(&path))?;
            self.found.numbers.push(number);
            self.found.numbers.sort_unstable();
            self.touched.insert(number);
            file
        };
        self.open = Some((number, file));
        Ok(file)
    }

    fn close<F: FileSystem>(&mut self, io: &mut F) {
        if let Some((_, file)) = self.open.take() {
            io.close(file);
        }
    }

    /// Releases what is open; the queue can be asked further.
    pub fn pause<F: FileSystem>(&mut self, io: &mut F) {
        self.close(io);
    }

    fn read<F: FileSystem>(&mut self, at: u64, io: &mut F) -> Result<Option<Entry>, OpenError> {
        let number = at / self.entries_per_file;
        let file = self.open_file(number, io)?;
        let position = at % self.entries_per_file * ENTRY_BYTES as u64;
        let mut bytes = [0; ENTRY_BYTES];
        let count = io
            .read_at(file, position, &mut bytes)
            .map_err(at_path(&self.path(number)))?;
        Ok((count == ENTRY_BYTES)
            .then(|| Entry::decode(&bytes))
            .flatten())
    }

    /// Takes the entry of a record that the scan found.
    pub fn take<F: FileSystem>(
        &mut self,
        offset: QueueOffset,
        entry: Entry,
        whole_log: bool,
        io: &mut F,
    ) -> Result<Taken, OpenError> {
        let offset = offset.0;
        if self.is_damaged {
            return Ok(Taken::Damaged);
        }
        if offset < self.next {
            return self.take_known(offset, entry, io);
        }
        if offset > self.next {
            if self.is_empty && whole_log {
                self.begin_at(offset, io)?;
            } else if whole_log {
                self.fill_gap(offset, entry.at, io)?;
            } else {
                return Ok(Taken::Damaged);
            }
        }
        self.push(entry, io)?;
        Ok(Taken::Yes)
    }

    /// An offset below the end: the entry is there, or the topic was deleted and made again before.
    fn take_known<F: FileSystem>(
        &mut self,
        offset: u64,
        entry: Entry,
        io: &mut F,
    ) -> Result<Taken, OpenError> {
        self.write_buffer(io)?;
        let first = self.found.numbers.first().copied().unwrap_or(0);
        let in_files = offset >= first * self.entries_per_file;
        if in_files && self.read(offset, io)? == Some(entry) {
            return Ok(Taken::Known);
        }
        if offset > 0 {
            return Ok(Taken::Damaged);
        }
        self.remove_files(io)?;
        self.next = 0;
        self.highest = 0;
        self.push(entry, io)?;
        Ok(Taken::Yes)
    }

    /// Begins an empty queue whose first messages are gone, with blanks up to there, as Apache does.
    fn begin_at<F: FileSystem>(&mut self, offset: u64, io: &mut F) -> Result<(), OpenError> {
        self.next = offset - offset % self.entries_per_file;
        while self.next < offset {
            self.push(Entry::BLANK, io)?;
        }
        Ok(())
    }

    fn fill_gap<F: FileSystem>(
        &mut self,
        offset: u64,
        at: PhysicalOffset,
        io: &mut F,
    ) -> Result<(), OpenError> {
        while self.next < offset {
            self.push(Entry { at, ..Entry::BLANK }, io)?;
        }
        Ok(())
    }

    fn push<F: FileSystem>(&mut self, entry: Entry, io: &mut F) -> Result<(), OpenError> {
        entry.encode(&mut self.buffer);
        self.next += 1;
        self.is_empty = false;
        self.last = Some(entry);
        self.highest = self.highest.max(self.next);
        let file_is_full = self.next.is_multiple_of(self.entries_per_file);
        if file_is_full || self.buffer.len() >= BUFFER_BYTES {
            self.write_buffer(io)?;
        }
        Ok(())
    }

    fn write_buffer<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let count = (self.buffer.len() / ENTRY_BYTES) as u64;
        let from = self.next - count;
        let number = from / self.entries_per_file;
        let file = self.open_file(number, io)?;
        let position = from % self.entries_per_file * ENTRY_BYTES as u64;
        let written = io.write_at(file, position, &self.buffer);
        written.map_err(at_path(&self.path(number)))?;
        self.buffer.clear();
        self.touched.insert(number);
        Ok(())
    }

    /// Drops everything, to derive the queue from the whole log.
    pub fn reset<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        self.remove_files(io)?;
        self.next = 0;
        self.is_empty = true;
        self.is_damaged = false;
        self.first = None;
        self.last = None;
        Ok(())
    }

    fn remove_files<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        self.close(io);
        self.buffer.clear();
        self.touched.clear();
        let numbers = std::mem::take(&mut self.found.numbers);
        let wrong = std::mem::take(&mut self.found.wrong_sizes);
        let right = numbers.into_iter().map(|number| self.path(number));
        let paths: Vec<PathBuf> = right
            .chain(wrong.into_iter().map(|(path, _)| path))
            .collect();
        for path in paths {
            io.remove(&path).map_err(at_path(&path))?;
        }
        Ok(())
    }

    /// Writes what is left, removes or zeroes what lies behind the end, flushes, and tells the queue's bounds.
    pub fn finish<F: FileSystem>(
        &mut self,
        log_start: PhysicalOffset,
        clear_behind: bool,
        io: &mut F,
    ) -> Result<QueueStart, OpenError> {
        self.write_buffer(io)?;
        if self.is_empty {
            self.keep_offsets(io)?;
        }
        if clear_behind {
            self.clear_behind(io)?;
        }
        let min = self.find_min(log_start, io)?;
        self.flush_touched(io)?;
        self.close(io);
        Ok(QueueStart {
            files: QueueOffset(self.files_start().min(min)),
            min: QueueOffset(min),
            max: QueueOffset(self.next),
        })
    }

    /// All its records are gone. The offsets that were given out stay taken: a file says so.
    fn keep_offsets<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        if self.highest == 0 {
            return Ok(());
        }
        self.begin_at(self.highest, io)?;
        self.open_file(self.highest / self.entries_per_file, io)?;
        self.write_buffer(io)
    }

    fn clear_behind<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        let last = self.next / self.entries_per_file;
        let behind: Vec<u64> = self
            .found
            .numbers
            .iter()
            .copied()
            .filter(|number| *number > last)
            .collect();
        for number in behind {
            self.close(io);
            let path = self.path(number);
            io.remove(&path).map_err(at_path(&path))?;
            self.found.numbers.retain(|found| *found != number);
            self.touched.remove(&number);
        }
        if !self.found.numbers.contains(&last) {
            return Ok(());
        }
        let file = self.open_file(last, io)?;
        let position = self.next % self.entries_per_file * ENTRY_BYTES as u64;
        let path = self.path(last);
        let stale = super::log_end::first_nonzero(file, position, self.file_bytes(), io);
        if let Some(stale) = stale.map_err(at_path(&path))? {
            let zeroed = io.zero_range(file, stale, self.file_bytes() - stale);
            zeroed.map_err(at_path(&path))?;
            self.touched.insert(last);
        }
        Ok(())
    }

    /// First entry whose record still exists.
    fn find_min<F: FileSystem>(
        &mut self,
        log_start: PhysicalOffset,
        io: &mut F,
    ) -> Result<u64, OpenError> {
        let Some(first) = self.found.numbers.first() else {
            return Ok(self.next);
        };
        let start = (first * self.entries_per_file).min(self.next);
        let end = self.next;
        let is_gone = |entry: Option<Entry>| {
            entry.is_none_or(|entry| entry.at < log_start || (entry.is_blank() && entry.at.0 == 0))
        };
        if start == end || !is_gone(self.read(start, io)?) {
            return Ok(start);
        }
        self.partition(start, end, io, is_gone)
    }

    fn flush_touched<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        let touched = std::mem::take(&mut self.touched);
        let any = !touched.is_empty();
        for number in touched {
            let file = self.open_file(number, io)?;
            io.flush(file).map_err(at_path(&self.path(number)))?;
        }
        if any {
            io.flush_directory(&self.directory)
                .map_err(at_path(&self.directory))?;
        }
        Ok(())
    }
}
