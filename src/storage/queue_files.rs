//! The consume queue files that are open: opened in the background when first needed, closed when too many are.
//!
//! A file is created with its full size, sparse. Apache refuses a store with a file of another size.

use super::consume_queue::Queue;
use super::segment::file_name;
use super::tokens;
use crate::ids::QueueIndex;
use crate::io::{Failed, File, Io, Op, Token};
use crate::limits::ENTRY_BYTES;
use slab::Slab;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Consume queue files open at once. At the limit, those that nothing is in flight for are closed, the longest
/// unused first.
const OPEN_MAX: usize = 1024;
/// Files closed at once when the limit is reached, so that the search for them is rare.
const CLOSE_AT_ONCE: usize = OPEN_MAX / 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Opening,
    Open(File),
}

#[derive(Debug)]
struct OpenFile {
    queue: QueueIndex,
    number: u64,
    state: State,
    /// Operations in flight.
    pins: u32,
    last_used: u64,
    generation: u32,
    /// Its queue was deleted: close it when nothing is in flight.
    is_doomed: bool,
    /// Cold reads that wait for it.
    reads: Vec<u32>,
}

/// A place in the table; stays valid while the file is pinned or being opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotId(u32);

/// What [`QueueFiles::acquire`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// Open and pinned until [`QueueFiles::release`].
    Ready(SlotId, File),
    /// Being opened; ask again when it is.
    Opening(SlotId),
}

/// What became of an opening.
#[derive(Debug)]
pub struct Opened {
    pub queue: QueueIndex,
    pub number: u64,
    pub result: Result<(), Failed>,
    /// Cold reads that waited.
    pub reads: Vec<u32>,
}

#[derive(Debug)]
pub struct QueueFiles {
    root: PathBuf,
    file_bytes: u64,
    slots: Slab<OpenFile>,
    by_name: HashMap<(QueueIndex, u64), SlotId, ahash::RandomState>,
    uses: u64,
    generation: u32,
}

/// Directory of a queue below `consumequeue/`.
pub fn queue_directory(root: &Path, topic: &str, queue_id: u32) -> PathBuf {
    root.join(topic).join(queue_id.to_string())
}

impl QueueFiles {
    pub fn new(root: PathBuf, file_bytes: u64) -> Self {
        assert!(
            file_bytes > 0 && file_bytes.is_multiple_of(ENTRY_BYTES as u64),
            "a queue file of {file_bytes} bytes"
        );
        Self {
            root,
            file_bytes,
            slots: Slab::new(),
            by_name: HashMap::default(),
            uses: 0,
            generation: 0,
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn entries_per_file(&self) -> u64 {
        self.file_bytes / ENTRY_BYTES as u64
    }

    /// Number of the file that holds an entry, from 0 at the queue's offset 0.
    pub fn number_of(&self, queue_offset: u64) -> u64 {
        queue_offset / self.entries_per_file()
    }

    /// First queue offset behind a file.
    pub fn end_of(&self, number: u64) -> u64 {
        (number + 1) * self.entries_per_file()
    }

    /// Byte position of an entry in its file.
    pub fn position_of(&self, queue_offset: u64) -> u64 {
        queue_offset % self.entries_per_file() * ENTRY_BYTES as u64
    }

    /// Gives a file for one operation, or begins to open it.
    pub fn acquire<I: Io>(
        &mut self,
        index: QueueIndex,
        queue: &Queue,
        number: u64,
        io: &mut I,
    ) -> Acquired {
        assert!(!queue.is_deleted, "{index:?} is deleted");
        self.uses += 1;
        if let Some(id) = self.by_name.get(&(index, number)).copied() {
            let slot = &mut self.slots[id.0 as usize];
            slot.last_used = self.uses;
            return match slot.state {
                State::Opening => Acquired::Opening(id),
                State::Open(file) => {
                    slot.pins += 1;
                    Acquired::Ready(id, file)
                }
            };
        }
        self.make_room(io);
        self.generation = self.generation.wrapping_add(1);
        let key = self.slots.insert(OpenFile {
            queue: index,
            number,
            state: State::Opening,
            pins: 0,
            last_used: self.uses,
            generation: self.generation,
            is_doomed: false,
            reads: Vec::new(),
        });
        let id = SlotId(key as u32);
        self.by_name.insert((index, number), id);
        let op = Op::Prepare {
            path: self.path(queue, number),
            len: self.file_bytes,
            zero_fill: false,
        };
        io.submit(Token::new(tokens::QUEUE_OPEN, id.0, self.generation), op);
        Acquired::Opening(id)
    }

    /// A cold read waits for a file that is being opened.
    pub fn wait_for(&mut self, id: SlotId, read: u32) {
        self.slots[id.0 as usize].reads.push(read);
    }

    pub fn on_opened<I: Io>(
        &mut self,
        token: Token,
        result: Result<File, Failed>,
        io: &mut I,
    ) -> Opened {
        let key = token.index as usize;
        let slot = &mut self.slots[key];
        assert_eq!(
            slot.generation, token.generation,
            "slot {key} was reused while opening"
        );
        assert_eq!(slot.state, State::Opening, "slot {key}");
        let opened = Opened {
            queue: slot.queue,
            number: slot.number,
            result: result.as_ref().map(|_| ()).map_err(|failed| Failed {
                errno: failed.errno,
            }),
            reads: std::mem::take(&mut slot.reads),
        };
        match result {
            Ok(file) => {
                slot.state = State::Open(file);
                self.close_if_doomed(key, io);
            }
            Err(_) => self.forget(key),
        }
        opened
    }

    /// An operation on an acquired file finished. Which queue and file it was.
    pub fn release<I: Io>(&mut self, id: SlotId, io: &mut I) -> (QueueIndex, u64) {
        let slot = &mut self.slots[id.0 as usize];
        assert!(slot.pins > 0, "{id:?} is not pinned");
        slot.pins -= 1;
        let name = (slot.queue, slot.number);
        self.close_if_doomed(id.0 as usize, io);
        name
    }

    /// Token of an operation on an acquired file.
    pub fn token(&self, kind: u8, id: SlotId) -> Token {
        Token::new(kind, id.0, self.slots[id.0 as usize].generation)
    }

    /// The slot that a token names.
    pub fn slot_of(&self, token: Token) -> SlotId {
        let slot = self.slots.get(token.index as usize);
        let generation = slot.map(|slot| slot.generation);
        assert_eq!(
            generation,
            Some(token.generation),
            "{token:?} outlived its slot"
        );
        SlotId(token.index)
    }

    /// The queue was deleted: its files are closed once nothing is in flight for them.
    pub fn doom<I: Io>(&mut self, is_deleted: impl Fn(QueueIndex) -> bool, io: &mut I) {
        let doomed: Vec<usize> = self
            .slots
            .iter()
            .filter(|(_, slot)| !slot.is_doomed && is_deleted(slot.queue))
            .map(|(key, _)| key)
            .collect();
        for key in doomed {
            self.slots[key].is_doomed = true;
            self.close_if_doomed(key, io);
        }
    }

    /// Closes a file that is going to be removed. `false`: it is in use.
    pub fn close_unused<I: Io>(&mut self, index: QueueIndex, number: u64, io: &mut I) -> bool {
        let Some(id) = self.by_name.get(&(index, number)).copied() else {
            return true;
        };
        let slot = &self.slots[id.0 as usize];
        let is_used = slot.pins > 0 || slot.state == State::Opening;
        if !is_used {
            self.close(id.0 as usize, io);
        }
        !is_used
    }

    /// Path of a queue's file.
    pub fn path(&self, queue: &Queue, number: u64) -> PathBuf {
        let directory = queue_directory(&self.root, &queue.topic, queue.queue_id);
        directory.join(file_name(number * self.file_bytes))
    }

    /// A deleted queue's file is still being opened, which may create it.
    pub fn is_opening_doomed(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|(_, slot)| slot.is_doomed && slot.state == State::Opening)
    }

    fn close_if_doomed<I: Io>(&mut self, key: usize, io: &mut I) {
        let slot = &self.slots[key];
        if slot.is_doomed && slot.pins == 0 {
            self.close(key, io);
        }
    }

    fn close<I: Io>(&mut self, key: usize, io: &mut I) {
        if let State::Open(file) = self.slots[key].state {
            io.close(file);
            self.forget(key);
        }
    }

    fn forget(&mut self, key: usize) {
        let slot = self.slots.remove(key);
        self.by_name.remove(&(slot.queue, slot.number));
    }

    fn make_room<I: Io>(&mut self, io: &mut I) {
        if self.slots.len() < OPEN_MAX {
            return;
        }
        let idle = |slot: &OpenFile| slot.pins == 0 && slot.state != State::Opening;
        let candidates = self.slots.iter().filter(|(_, slot)| idle(slot));
        let mut by_use: Vec<(u64, usize)> = candidates
            .map(|(key, slot)| (slot.last_used, key))
            .collect();
        by_use.sort_unstable();
        for (_, key) in by_use.into_iter().take(CLOSE_AT_ONCE) {
            self.close(key, io);
        }
    }

    /// Nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        let busy = |slot: &OpenFile| slot.pins > 0 || slot.state == State::Opening;
        !self.slots.iter().any(|(_, slot)| busy(slot))
    }

    /// Closes all files; nothing may be in flight.
    pub fn close_all<I: Io>(&mut self, io: &mut I) {
        assert!(self.is_quiet(), "operations are in flight");
        for (_, slot) in &self.slots {
            if let State::Open(file) = slot.state {
                io.close(file);
            }
        }
        self.slots.clear();
        self.by_name.clear();
    }
}
