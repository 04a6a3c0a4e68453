//! Finding the places of a key: from the newest file to the oldest, along the chain of its slot.

use super::layout::{SLOT_BYTES, UNIT_BYTES, Unit};
use super::{Index, Key};
use crate::ids::PhysicalOffset;
use crate::io::File;
use crate::limits::INDEX_STEPS_MAX;
use crate::storage::KeyQuery;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Slot,
    Unit(u32),
}

/// How far the search for a key has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walk {
    pub query: KeyQuery,
    /// Newest first.
    pub found: Vec<PhysicalOffset>,
    /// The newest file that is not yet searched has this name, or an older one.
    name: u64,
    at: At,
    steps: u32,
    is_begun: bool,
}

/// A read that a walk needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkRead {
    pub file: File,
    pub position: u64,
    pub len: u32,
}

impl Walk {
    pub fn new(query: KeyQuery) -> Self {
        Self {
            query,
            found: Vec::new(),
            name: u64::MAX,
            at: At::Slot,
            steps: 0,
            is_begun: false,
        }
    }

    fn leave(&mut self, name: u64) {
        self.at = At::Slot;
        match name.checked_sub(1) {
            Some(older) => self.name = older,
            None => self.steps = INDEX_STEPS_MAX,
        }
    }

    fn visit(&mut self, number: u32, unit: Unit, name: u64, begin_ms: u64) {
        self.steps += 1;
        let seconds = u64::try_from(unit.seconds).unwrap_or(0);
        // The fraction of the second is not kept: who asks compares the record's own time.
        let from_ms = begin_ms.saturating_add(seconds * 1000);
        let is_late = from_ms.saturating_add(999) >= self.query.begin_ms();
        let is_in_time = is_late && from_ms <= self.query.end_ms();
        if unit.hash == self.query.hash && is_in_time && !self.found.contains(&unit.at) {
            self.found.push(unit.at);
        }
        if unit.previous == 0 || unit.previous >= number {
            self.leave(name);
        } else {
            self.at = At::Unit(unit.previous);
        }
    }
}

impl Index {
    /// Goes on in memory as far as possible. The read that is needed then, `None` at the end.
    pub fn advance(&self, walk: &mut Walk) -> Option<WalkRead> {
        let query = walk.query;
        if !walk.is_begun {
            walk.is_begun = true;
            self.find_waiting(walk);
        }
        while walk.found.len() < query.max as usize && walk.steps < INDEX_STEPS_MAX {
            let name = walk.name;
            let (place, file) = self
                .files
                .iter()
                .enumerate()
                .rev()
                .find(|(_, file)| file.name <= name)?;
            if file.name != walk.name {
                walk.name = file.name;
                walk.at = At::Slot;
            }
            let is_last = place + 1 == self.files.len();
            let header = file.header;
            let is_apart = header.begin_ms > query.end_ms()
                || header.end_ms.saturating_add(999) < query.begin_ms();
            match walk.at {
                _ if is_apart || header.next <= 1 => walk.leave(file.name),
                At::Slot => {
                    let slot = self.sizes.slot_of(query.hash);
                    if !is_last {
                        return Some(WalkRead {
                            file: file.file,
                            position: self.sizes.slot_position(slot),
                            len: SLOT_BYTES as u32,
                        });
                    }
                    walk.at = At::Unit(self.slots[slot as usize]);
                }
                At::Unit(number) if number == 0 || number >= header.next => walk.leave(file.name),
                At::Unit(number) => {
                    let Some(unit) = self.unwritten(number).filter(|_| is_last) else {
                        return Some(WalkRead {
                            file: file.file,
                            position: self.sizes.unit_position(number),
                            len: UNIT_BYTES as u32,
                        });
                    };
                    walk.visit(number, unit, file.name, header.begin_ms);
                }
            }
        }
        None
    }

    /// Keys of visible messages that wait for the next file.
    fn find_waiting(&self, walk: &mut Walk) {
        let query = walk.query;
        let is_asked = |key: &&Key| {
            key.hash == query.hash
                && key.at < self.visible
                && (query.begin_ms()..=query.end_ms()).contains(&key.stored_ms)
        };
        for key in self.keys.iter().rev().filter(is_asked) {
            if walk.found.len() < query.max as usize && !walk.found.contains(&key.at) {
                walk.found.push(key.at);
            }
        }
    }

    /// Takes what a read brought.
    pub fn feed(&self, walk: &mut Walk, bytes: &[u8]) -> Result<(), String> {
        let name = walk.name;
        let Some(file) = self.files.iter().find(|file| file.name == name) else {
            walk.leave(name);
            return Ok(());
        };
        match walk.at {
            At::Slot => {
                let slot = bytes.first_chunk::<{ SLOT_BYTES as usize }>();
                let slot =
                    slot.ok_or_else(|| format!("index file {name} ends inside its slots"))?;
                walk.at = At::Unit(u32::from_be_bytes(*slot));
            }
            At::Unit(number) => {
                let unit = bytes.first_chunk::<{ UNIT_BYTES as usize }>();
                let unit =
                    unit.ok_or_else(|| format!("index file {name} ends inside its units"))?;
                walk.visit(number, Unit::decode(unit), name, file.header.begin_ms);
            }
        }
        Ok(())
    }
}
