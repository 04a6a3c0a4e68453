//! What groups have popped of their queues and not acknowledged.
//!
//! **Owned by**: one shard. A queue of a group has a window: the next offset to be popped, and of those before it the
//! ones that are with a consumer. All below the first of these is done with, which is what is committed: after the end
//! of a process the group goes on there, so that nothing is lost that was not acknowledged.

use crate::clock::Now;
use crate::ids::{NameMap, PhysicalOffset, QueueOffset};
use crate::limits::{POP_IN_FLIGHT_MAX, POP_QUEUES_MAX, POP_WINDOW_MAX};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Key of a window.
pub type Key = u32;

/// A message that is with a consumer.
#[derive(Debug)]
struct Popped {
    /// Wall clock milliseconds: part of the handle that acknowledges it.
    at_ms: u64,
    /// When it is to be delivered again, in monotonic microseconds.
    ends_us: u64,
    /// Its copy waits for its flush; nobody can acknowledge it any more.
    is_copied: bool,
    ordered: bool,
}

/// What a group has of one queue.
#[derive(Debug)]
pub struct Window {
    pub group: Rc<str>,
    pub topic: Rc<str>,
    pub queue_id: u32,
    pub next: QueueOffset,
    popped: BTreeMap<u64, Popped>,
    /// How often messages came back that are consumed in order; only of those that are not done with.
    returned: BTreeMap<u64, u32>,
}

impl Window {
    pub fn new(group: Rc<str>, topic: Rc<str>, queue_id: u32, next: QueueOffset) -> Self {
        Self {
            group,
            topic,
            queue_id,
            next,
            popped: BTreeMap::new(),
            returned: BTreeMap::new(),
        }
    }

    /// All before it is done with.
    pub fn floor(&self) -> QueueOffset {
        let first = self.popped.first_key_value();
        first.map_or(self.next, |(offset, _)| QueueOffset(*offset))
    }

    /// Whether messages are with a consumer that consumes in order: nothing further is popped.
    pub fn is_locked(&self) -> bool {
        self.popped.values().any(|popped| popped.ordered)
    }

    pub fn has_popped(&self) -> bool {
        !self.popped.is_empty()
    }

    /// Offsets that are with consumers.
    pub fn popped_between(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        self.popped.range(first..=last).map(|(offset, _)| *offset)
    }

    pub fn returned(&self, offset: u64) -> u32 {
        self.returned.get(&offset).copied().unwrap_or(0)
    }
}

/// All windows of a shard, and when their messages are due.
#[derive(Debug, Default)]
pub struct Windows {
    slots: Slab<Window>,
    by_name: NameMap<Key>,
    /// End, window, offset.
    ends: BTreeSet<(u64, Key, u64)>,
    /// Copies that are not flushed: their end in the log, window, offset of the original.
    unsettled: VecDeque<(PhysicalOffset, Key, u64)>,
    in_flight: usize,
}

fn name(group: &str, topic: &str, queue_id: u32) -> String {
    // Names have no control characters.
    format!("{group}\u{1}{topic}\u{1}{queue_id}")
}

impl Windows {
    pub fn find(&self, group: &str, topic: &str, queue_id: u32) -> Option<Key> {
        self.by_name
            .get(name(group, topic, queue_id).as_str())
            .copied()
    }

    /// `None` at the limit. Windows with nothing popped are forgotten there first: their offset is committed.
    pub fn add(&mut self, window: Window) -> Option<Key> {
        if self.slots.len() >= POP_QUEUES_MAX {
            self.forget(|window| !window.has_popped());
        }
        if self.slots.len() >= POP_QUEUES_MAX {
            return None;
        }
        let name = name(&window.group, &window.topic, window.queue_id);
        let key = self.slots.insert(window) as Key;
        self.by_name.insert(name.into(), key);
        Some(key)
    }

    pub fn get(&self, key: Key) -> &Window {
        &self.slots[key as usize]
    }

    pub fn get_mut(&mut self, key: Key) -> &mut Window {
        &mut self.slots[key as usize]
    }

    /// How many messages of the window may be popped.
    pub fn room(&self, key: Key) -> u32 {
        let popped = self.get(key).popped.len();
        let window = POP_WINDOW_MAX.saturating_sub(popped);
        window.min(POP_IN_FLIGHT_MAX.saturating_sub(self.in_flight)) as u32
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A message goes to a consumer.
    pub fn pop(&mut self, key: Key, offset: u64, at_ms: u64, ends_us: u64, ordered: bool) {
        let popped = Popped {
            at_ms,
            ends_us,
            is_copied: false,
            ordered,
        };
        let before = self.slots[key as usize].popped.insert(offset, popped);
        assert!(before.is_none(), "offset {offset} is popped twice");
        self.ends.insert((ends_us, key, offset));
        self.in_flight += 1;
    }

    fn valid(&self, key: Key, offset: u64, at_ms: u64) -> Option<u64> {
        let popped = self.get(key).popped.get(&offset)?;
        (popped.at_ms == at_ms && !popped.is_copied).then_some(popped.ends_us)
    }

    /// False: the handle is not, or no longer, that of the message.
    pub fn acknowledge(&mut self, key: Key, offset: u64, at_ms: u64) -> bool {
        let Some(ends_us) = self.valid(key, offset, at_ms) else {
            return false;
        };
        self.ends.remove(&(ends_us, key, offset));
        self.done(key, offset);
        true
    }

    /// The message stays with its consumer until another time, under another handle. False as above.
    pub fn change(
        &mut self,
        key: Key,
        offset: u64,
        at_ms: u64,
        new_ms: u64,
        new_ends_us: u64,
    ) -> bool {
        let Some(ends_us) = self.valid(key, offset, at_ms) else {
            return false;
        };
        self.ends.remove(&(ends_us, key, offset));
        self.ends.insert((new_ends_us, key, offset));
        if let Some(popped) = self.slots[key as usize].popped.get_mut(&offset) {
            popped.at_ms = new_ms;
            popped.ends_us = new_ends_us;
        }
        true
    }

    /// The message is done with: acknowledged, copied for good, or gone from the log.
    fn done(&mut self, key: Key, offset: u64) {
        let window = &mut self.slots[key as usize];
        if window.popped.remove(&offset).is_some() {
            self.in_flight -= 1;
        }
        window.returned.remove(&offset);
    }

    pub fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(ends_us, ..)| *ends_us)
    }

    /// The message whose time is over first, if it is.
    pub fn first_due(&self, now: Now) -> Option<(Key, u64)> {
        let (ends_us, key, offset) = self.ends.first()?;
        (*ends_us <= now.monotonic_us).then_some((*key, *offset))
    }

    pub fn is_ordered(&self, key: Key, offset: u64) -> bool {
        let popped = self.get(key).popped.get(&offset);
        popped.is_some_and(|popped| popped.ordered)
    }

    /// When it went to its consumer last, in wall clock milliseconds.
    pub fn popped_ms(&self, key: Key, offset: u64) -> Option<u64> {
        let popped = self.get(key).popped.get(&offset)?;
        Some(popped.at_ms)
    }

    fn take_end(&mut self, key: Key, offset: u64) {
        if let Some(popped) = self.get(key).popped.get(&offset) {
            let ends_us = popped.ends_us;
            self.ends.remove(&(ends_us, key, offset));
        }
    }

    /// Its record is not there any more.
    pub fn gone(&mut self, key: Key, offset: u64) {
        self.take_end(key, offset);
        self.done(key, offset);
    }

    /// A copy of it is in the open batch.
    pub fn copied(&mut self, key: Key, offset: u64, end: PhysicalOffset) {
        self.take_end(key, offset);
        if let Some(popped) = self.slots[key as usize].popped.get_mut(&offset) {
            popped.is_copied = true;
            self.unsettled.push_back((end, key, offset));
        }
    }

    /// Copies up to here are flushed: their originals are done with. Returns their windows.
    pub fn settle(&mut self, flushed: PhysicalOffset) -> BTreeSet<Key> {
        let mut windows = BTreeSet::new();
        while let Some((end, key, offset)) = self.unsettled.front().copied() {
            if end > flushed {
                break;
            }
            self.unsettled.pop_front();
            self.done(key, offset);
            windows.insert(key);
        }
        windows
    }

    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// What was popped in order and not acknowledged is popped again from its first message on.
    pub fn give_back(&mut self, key: Key) {
        let floor = self.get(key).floor();
        let window = &mut self.slots[key as usize];
        for (offset, popped) in std::mem::take(&mut window.popped) {
            self.ends.remove(&(popped.ends_us, key, offset));
            self.in_flight -= 1;
            *window.returned.entry(offset).or_insert(0) += 1;
        }
        self.unsettled.retain(|(_, of, _)| *of != key);
        window.next = floor;
    }

    /// The group goes on elsewhere in the queue, whatever it had popped.
    pub fn reset(&mut self, key: Key, next: QueueOffset) {
        self.give_back(key);
        let window = &mut self.slots[key as usize];
        window.returned.clear();
        window.next = next;
    }

    pub fn forget(&mut self, is_meant: impl Fn(&Window) -> bool) {
        let meant = self.slots.iter().filter(|(_, window)| is_meant(window));
        let keys: Vec<Key> = meant.map(|(key, _)| key as Key).collect();
        for key in keys {
            self.give_back(key);
            let window = self.slots.remove(key as usize);
            self.by_name
                .remove(name(&window.group, &window.topic, window.queue_id).as_str());
        }
    }
}
