//! Opening the index: which files to believe, and deriving the rest from the log.
//!
//! Files that are full were flushed before the next one was begun. The last is believed as it is after an orderly
//! stop of ours; otherwise its units are walked, each compared with the chain that leads to it, and its slots made
//! from them. After a crash of ours only units of records count that the checkpoint covers. A file of a wrong size, or
//! that contradicts itself, is removed with all later ones.

use super::layout::{HEADER_BYTES, Header, SLOT_BYTES, UNIT_BYTES, Unit};
use super::{Index, IndexFile, PAGE_SLOTS, PAGES_AT_ONCE, UNITS_AT_ONCE, name_text, slot_writes};
use crate::clock::Now;
use crate::ids::PhysicalOffset;
use crate::io::{File, FileSystem};
use crate::limits::INDEX_DERIVED_BYTES_MAX;
use crate::protocol::message::sys_flag;
use crate::storage::recovery::at_path;
use crate::storage::scan::{Scanner, Step};
use crate::storage::segment::Segments;
use crate::storage::{IndexConfig, OpenError};
use std::path::Path;

const BLOCK_UNITS: u32 = 32 * 1024;
const BLOCK_SLOTS: u32 = 256 * 1024;

/// What the opening store knows.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub segments: &'a Segments,
    /// End of the log.
    pub end: PhysicalOffset,
    /// The checkpoint says that the keys of all records below are in the index.
    pub covered: Option<PhysicalOffset>,
    /// ... and the store was closed in order, by us.
    pub is_clean: bool,
}

/// Opens the index below `root` and derives what it lacks.
pub fn open<F: FileSystem>(
    config: IndexConfig,
    root: &Path,
    found: &Found<'_>,
    now: Now,
    io: &mut F,
) -> Result<Index, OpenError> {
    let directory = root.join("index");
    let mut index = Index::new(config.is_enabled, config.sizes, &directory);
    if !config.is_enabled {
        return Ok(index);
    }
    // Somebody may have removed the folder to have it derived again.
    let existed = io.is_directory(&directory);
    io.create_directories(&directory)
        .map_err(at_path(&directory))?;
    let is_whole = index.load(found, io)?;
    let from = match (found.covered, index.files.back()) {
        (Some(covered), last) if existed && is_whole => {
            // A file that got full after the checkpoint reaches further.
            last.map_or(covered, |file| covered.max(file.header.end))
        }
        (_, Some(file)) => file.header.end,
        (_, None) => found.segments.start(),
    };
    index.derive(from, found, now, io)?;
    index.write_all(io)?;
    index.covered = found.end;
    Ok(index)
}

impl Index {
    /// Loads the files that can be believed and removes the others. Whether none had to be removed.
    fn load<F: FileSystem>(&mut self, found: &Found<'_>, io: &mut F) -> Result<bool, OpenError> {
        let directory = self.directory.clone();
        let names = io.list(&directory).map_err(at_path(&directory))?;
        let mut names: Vec<u64> = names
            .iter()
            .filter(|name| name.len() == 17)
            .filter_map(|name| name.parse().ok())
            .collect();
        names.sort_unstable();
        let mut is_whole = true;
        let last_name = names.last().copied();
        for (place, name) in names.iter().enumerate() {
            let is_last = place + 1 == names.len();
            let loaded = is_whole && self.load_file(*name, is_last, found, io)?;
            if !loaded {
                is_whole &= is_last && self.is_new(*name, found, io)?;
                let path = self.directory.join(name_text(*name));
                io.remove(&path).map_err(at_path(&path))?;
            }
        }
        if self.files.back().map(|file| file.name) != last_name
            && let Some(mut last) = self.files.pop_back()
        {
            // It was no last one when it was loaded.
            if self.walk_file(&mut last, found.end, io)? {
                self.files.push_back(last);
            } else {
                let path = self.directory.join(name_text(last.name));
                io.close(last.file);
                io.remove(&path).map_err(at_path(&path))?;
                self.reset();
            }
        }
        Ok(is_whole)
    }

    /// Begun after the checkpoint: what it has is derived again in any case.
    fn is_new<F: FileSystem>(
        &self,
        name: u64,
        found: &Found<'_>,
        io: &mut F,
    ) -> Result<bool, OpenError> {
        let Some(covered) = found.covered.filter(|_| !found.is_clean) else {
            return Ok(false);
        };
        let path = self.directory.join(name_text(name));
        let file = io.open(&path).map_err(at_path(&path))?;
        let mut header = [0; HEADER_BYTES as usize];
        let read = io.read_at(file, 0, &mut header);
        io.close(file);
        let read = read.map_err(at_path(&path))?;
        let header = Header::decode(&header);
        Ok(read == 0 || header.next <= 1 || header.begin >= covered)
    }

    fn reset(&mut self) {
        self.slots = vec![0; self.sizes.slots as usize];
        self.dirty.clear();
        self.tail.clear();
        self.written = 1;
    }

    /// Whether the file can be believed; it is closed otherwise.
    fn load_file<F: FileSystem>(
        &mut self,
        name: u64,
        is_last: bool,
        found: &Found<'_>,
        io: &mut F,
    ) -> Result<bool, OpenError> {
        let path = self.directory.join(name_text(name));
        let file = io.open(&path).map_err(at_path(&path))?;
        let mut header = [0; HEADER_BYTES as usize];
        let len = io.len(file).map_err(at_path(&path))?;
        io.read_at(file, 0, &mut header).map_err(at_path(&path))?;
        let mut loaded = IndexFile {
            name,
            file,
            header: Header::decode(&header),
            is_flushed: true,
        };
        let is_clean = found.is_clean && found.covered.is_some();
        let limit = match found.covered {
            Some(covered) if !is_clean => covered,
            _ => found.end,
        };
        let mut is_sound = len == self.sizes.file_bytes() && self.is_plausible(&loaded.header);
        if is_sound && is_last {
            is_sound = loaded.header.end < found.end || !is_clean;
            is_sound = is_sound
                && (is_clean && self.load_slots(&loaded, io)?
                    || self.walk_file(&mut loaded, limit, io)?);
        } else if is_sound {
            is_sound = loaded.header.end < found.end;
        }
        if is_sound {
            self.files.push_back(loaded);
        } else {
            io.close(file);
        }
        Ok(is_sound)
    }

    fn is_plausible(&self, header: &Header) -> bool {
        let behind = self
            .files
            .back()
            .map_or(PhysicalOffset(0), |file| file.header.end);
        (2..=self.sizes.units).contains(&header.next)
            && behind <= header.begin
            && header.begin <= header.end
            && header.begin_ms > 0
    }

    /// Reads the slots of a file that was closed in order. `false` if one of them can't be.
    fn load_slots<F: FileSystem>(&mut self, file: &IndexFile, io: &F) -> Result<bool, OpenError> {
        self.reset();
        let path = self.directory.join(name_text(file.name));
        let mut used = 0;
        let mut first = 0;
        while first < self.sizes.slots {
            let position = self.sizes.slot_position(first);
            // A new file has few slots and large holes.
            let data = io.next_data(file.file, position).map_err(at_path(&path))?;
            let skipped = data.saturating_sub(position) / SLOT_BYTES;
            first = self
                .sizes
                .slots
                .min(first.saturating_add(u32::try_from(skipped).unwrap_or(u32::MAX)));
            let count = BLOCK_SLOTS.min(self.sizes.slots - first);
            let mut bytes = vec![0; count as usize * SLOT_BYTES as usize];
            let position = self.sizes.slot_position(first);
            io.read_at(file.file, position, &mut bytes)
                .map_err(at_path(&path))?;
            for (slot, bytes) in bytes.as_chunks().0.iter().enumerate() {
                let unit = u32::from_be_bytes(*bytes);
                if unit >= file.header.next {
                    return Ok(false);
                }
                if unit > 0 {
                    self.slots[first as usize + slot] = unit;
                    used += 1;
                }
            }
            first += count;
        }
        self.written = file.header.next;
        Ok(used == file.header.used_slots)
    }

    /// Makes the slots from the units of records below `limit`. `false` where there is none.
    fn walk_file<F: FileSystem>(
        &mut self,
        file: &mut IndexFile,
        limit: PhysicalOffset,
        io: &mut F,
    ) -> Result<bool, OpenError> {
        self.reset();
        let path = self.directory.join(name_text(file.name));
        let found = file.header;
        let mut header = Header {
            end: found.begin,
            end_ms: found.begin_ms,
            used_slots: 0,
            next: 1,
            ..found
        };
        let mut bytes = vec![0; BLOCK_UNITS as usize * UNIT_BYTES as usize];
        'blocks: while header.next < self.sizes.units {
            let position = self.sizes.unit_position(header.next);
            let read = io
                .read_at(file.file, position, &mut bytes)
                .map_err(at_path(&path))?;
            let units = bytes[..read].as_chunks().0;
            if units.is_empty() {
                break;
            }
            for unit in units {
                let unit = Unit::decode(unit);
                let slot = self.sizes.slot_of(unit.hash) as usize;
                // What was never written is all zeros.
                let is_written = unit.hash > 0 || unit.at.0 > 0;
                let follows = is_written
                    && (header.next > 1 || unit.at == header.begin)
                    && unit.at >= header.end
                    && unit.at < limit
                    && unit.seconds >= 0;
                if header.next >= self.sizes.units || !follows || unit.previous != self.slots[slot]
                {
                    break 'blocks;
                }
                self.slots[slot] = header.next;
                self.dirty.insert(slot as u32 / PAGE_SLOTS);
                header.used_slots += u32::from(unit.previous == 0);
                header.next += 1;
                header.end = unit.at;
                header.end_ms =
                    header.begin_ms + u64::from(unit.seconds.unsigned_abs()) * 1000 + 999;
            }
        }
        if header.next == found.next {
            header.end_ms = found.end_ms;
        }
        file.header = header;
        self.written = header.next;
        if header.next > 1 {
            let position = self.sizes.slot_position(0);
            let len = u64::from(self.sizes.slots) * SLOT_BYTES;
            io.zero_range(file.file, position, len)
                .map_err(at_path(&path))?;
            file.is_flushed = false;
        }
        Ok(header.next > 1)
    }

    /// Takes the keys of the records from a place on, of the newest ones if there are too many.
    fn derive<F: FileSystem>(
        &mut self,
        from: PhysicalOffset,
        found: &Found<'_>,
        now: Now,
        io: &mut F,
    ) -> Result<(), OpenError> {
        let segments = found.segments;
        let start = segments.start();
        let mut from = from.max(start);
        if found.end.0.saturating_sub(from.0) > INDEX_DERIVED_BYTES_MAX {
            let earliest = PhysicalOffset(found.end.0 - INDEX_DERIVED_BYTES_MAX);
            let into = earliest.bytes_since(start) % segments.bytes();
            from = earliest.advance(segments.bytes() - into);
        }
        let mut scanner = Scanner::new(from);
        while scanner.at() < found.end
            && let Step::Record(message) = scanner.next(segments, io)?
        {
            let kind = message.sys_flag & sys_flag::TRANSACTION_MASK;
            if kind == 0 || kind == sys_flag::TRANSACTION_COMMIT {
                let (at, stored_ms) = (message.physical_offset, message.store_timestamp);
                self.note(message.topic, message.properties, at, stored_ms);
            }
            self.take_keys(found.end);
            while !self.keys.is_empty() {
                // Full, or there is none.
                self.write_all(io)?;
                self.make_file(now, io)?;
                self.take_keys(found.end);
            }
            if self.tail.len() >= UNITS_AT_ONCE {
                self.write_tail(io)?;
            }
        }
        Ok(())
    }

    fn make_file<F: FileSystem>(&mut self, now: Now, io: &mut F) -> Result<(), OpenError> {
        let name = self.next_name(now.wall_ms);
        let path = self.directory.join(name_text(name));
        let file = io.create(&path, 0).map_err(at_path(&path))?;
        io.set_len(file, self.sizes.file_bytes())
            .map_err(at_path(&path))?;
        io.flush_directory(&self.directory)
            .map_err(at_path(&self.directory))?;
        self.add_file(name, file);
        Ok(())
    }

    fn last_place(&self) -> Option<(File, std::path::PathBuf)> {
        let last = self.files.back()?;
        Some((last.file, self.directory.join(name_text(last.name))))
    }

    fn write_tail<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        let Some((file, path)) = self.last_place() else {
            return Ok(());
        };
        let (position, bytes) = self.unit_write(self.tail.len());
        io.write_at(file, position, &bytes)
            .map_err(at_path(&path))?;
        self.written += self.tail.len() as u32;
        self.tail.clear();
        Ok(())
    }

    /// Writes and flushes all that the last file has.
    fn write_all<F: FileSystem>(&mut self, io: &mut F) -> Result<(), OpenError> {
        let Some((file, path)) = self.last_place() else {
            return Ok(());
        };
        if self.files.back().is_some_and(|last| last.is_flushed) {
            return Ok(());
        }
        self.write_tail(io)?;
        let pages: Vec<u32> = std::mem::take(&mut self.dirty).into_iter().collect();
        for pages in pages.chunks(PAGES_AT_ONCE) {
            for (position, bytes) in slot_writes(self.sizes, &self.slots, pages) {
                io.write_at(file, position, &bytes)
                    .map_err(at_path(&path))?;
            }
        }
        let Some(last) = self.files.back_mut() else {
            return Ok(());
        };
        io.write_at(file, 0, &last.header.encode())
            .map_err(at_path(&path))?;
        io.flush(file).map_err(at_path(&path))?;
        last.is_flushed = true;
        Ok(())
    }
}
