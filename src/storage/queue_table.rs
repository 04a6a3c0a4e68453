//! All consume queues of a shard: by name, by index, and how many entries of them stay in memory.

use super::checkpoint::Totals;
use super::consume_queue::{Queue, QueueStart};
use super::{Arrival, Entry};
use crate::ids::{NameMap, PhysicalOffset, QueueIndex, QueueOffset};
use std::collections::VecDeque;

/// Queue ids that the table takes; more than `TOPIC_QUEUES_MAX`, since an Apache store may hold some.
pub const QUEUE_ID_MAX: u32 = 1 << 16;
/// Entries that may wait for their files, however small the budget: a second of a busy shard.
const ENTRIES_MAX_MIN: usize = 1 << 20;
/// Entries of a queue that stay in memory if any may go: enough for one reply.
const KEPT_PER_QUEUE: usize = 64;

/// A record in the log whose entry waits until it is visible.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub queue: QueueIndex,
    pub queue_offset: QueueOffset,
    pub entry: Entry,
    pub store_timestamp: u64,
    /// In monotonic microseconds.
    pub appended_us: u64,
}

/// **Invariants**: `entries_in_memory` is the sum over all queues; `pending` is in log order; indices are never reused.
#[derive(Debug)]
pub struct QueueTable {
    queues: Vec<Queue>,
    /// Per topic, the index of each queue id.
    topics: NameMap<Vec<Option<QueueIndex>>>,
    pending: VecDeque<Pending>,
    arrivals: Vec<Arrival>,
    /// Queues with entries to write, in the order in which they became so.
    pub(super) dirty: VecDeque<QueueIndex>,
    entries_in_memory: usize,
    entries_max: usize,
    entries_limit: usize,
    /// Where the next eviction starts.
    hand: usize,
    dispatched_timestamp: u64,
}

impl QueueTable {
    pub fn new(entry_cache_bytes: u64) -> Self {
        let entries = entry_cache_bytes / size_of::<Entry>() as u64;
        let entries_max = usize::try_from(entries).unwrap_or(usize::MAX);
        Self {
            queues: Vec::new(),
            topics: NameMap::default(),
            pending: VecDeque::new(),
            arrivals: Vec::new(),
            dirty: VecDeque::new(),
            entries_in_memory: 0,
            entries_max,
            entries_limit: entries_max.saturating_mul(2).max(ENTRIES_MAX_MIN),
            hand: 0,
            dispatched_timestamp: 0,
        }
    }

    #[cfg(test)]
    pub fn with_limit(entries: usize) -> Self {
        Self {
            entries_max: entries,
            entries_limit: 2 * entries,
            ..Self::new(0)
        }
    }

    pub fn find(&self, topic: &str, queue_id: u32) -> Option<QueueIndex> {
        let queues = self.topics.get(topic)?;
        queues.get(queue_id as usize).copied().flatten()
    }

    /// Adds a queue that isn't there yet.
    pub fn add(&mut self, topic: &str, queue_id: u32, start: QueueStart) -> QueueIndex {
        assert!(queue_id < QUEUE_ID_MAX, "queue id {queue_id}");
        let index = QueueIndex(self.queues.len() as u32);
        if !self.topics.contains_key(topic) {
            self.topics.insert(topic.into(), Vec::new());
        }
        if let Some(ids) = self.topics.get_mut(topic) {
            if ids.len() <= queue_id as usize {
                ids.resize(queue_id as usize + 1, None);
            }
            let slot = &mut ids[queue_id as usize];
            assert!(slot.is_none(), "{topic} {queue_id} is there");
            *slot = Some(index);
        }
        self.queues.push(Queue::new(topic.into(), queue_id, start));
        index
    }

    pub fn get(&self, index: QueueIndex) -> &Queue {
        &self.queues[index.index()]
    }

    pub fn get_mut(&mut self, index: QueueIndex) -> &mut Queue {
        &mut self.queues[index.index()]
    }

    /// Queues that exist, sorted by name.
    pub fn list(&self) -> Vec<(String, u32, QueueIndex)> {
        let live = self
            .queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| !queue.is_deleted);
        let mut list: Vec<_> = live
            .map(|(index, queue)| {
                let index = QueueIndex(index as u32);
                (queue.topic.to_string(), queue.queue_id, index)
            })
            .collect();
        list.sort();
        list
    }

    /// Queues that have entries, and how many they have given out.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for queue in self.queues.iter().filter(|queue| !queue.is_deleted) {
            totals.add(queue.entries_in_files());
        }
        totals
    }

    /// The files of a deleted topic of this name are gone.
    pub fn unblock(&mut self, topic: &str) {
        let indices = self.topics.get(topic).into_iter().flatten().flatten();
        for index in indices {
            self.queues[index.index()].is_blocked = false;
        }
    }

    /// Indices given out so far, those of deleted queues included.
    pub fn count(&self) -> u32 {
        self.queues.len() as u32
    }

    pub fn len(&self) -> usize {
        self.topics.values().flatten().flatten().count()
    }

    /// Forgets the queues of a topic. Whether there were any.
    pub fn delete_topic(&mut self, topic: &str) -> bool {
        let Some(queues) = self.topics.remove(topic) else {
            return false;
        };
        for index in queues.into_iter().flatten() {
            let queue = &mut self.queues[index.index()];
            self.entries_in_memory -= queue.in_memory();
            queue.delete();
        }
        let queues = &mut self.queues;
        self.arrivals
            .retain(|arrival| !queues[arrival.queue.index()].is_deleted);
        for (place, arrival) in self.arrivals.iter().enumerate() {
            queues[arrival.queue.index()].arrival = Some(place as u32);
        }
        true
    }

    /// Remembers the entry of an appended record.
    pub fn push_pending(&mut self, pending: Pending) {
        self.pending.push_back(pending);
    }

    /// Publishes the entries of all records that end at or below `visible`.
    pub fn dispatch(&mut self, visible: PhysicalOffset) {
        while let Some(pending) = self.pending.front()
            && pending.entry.end() <= visible
        {
            let pending = *pending;
            self.pending.pop_front();
            self.dispatched_timestamp = pending.store_timestamp;
            self.publish(pending);
        }
    }

    fn publish(&mut self, pending: Pending) {
        let queue = &mut self.queues[pending.queue.index()];
        if queue.is_deleted {
            return;
        }
        queue.publish(pending.queue_offset, pending.entry, pending.store_timestamp);
        self.entries_in_memory += 1;
        if !queue.is_dirty {
            queue.is_dirty = true;
            self.dirty.push_back(pending.queue);
        }
        let to = pending.queue_offset.advance(1);
        match queue.arrival {
            Some(place) => self.arrivals[place as usize].to = to,
            None => {
                queue.arrival = Some(self.arrivals.len() as u32);
                self.arrivals.push(Arrival {
                    queue: pending.queue,
                    from: pending.queue_offset,
                    to,
                    appended_us: pending.appended_us,
                });
            }
        }
    }

    pub fn take_arrivals(&mut self, arrivals: &mut Vec<Arrival>) {
        for arrival in &self.arrivals {
            self.queues[arrival.queue.index()].arrival = None;
        }
        arrivals.append(&mut self.arrivals);
    }

    /// Store timestamp of the newest record whose entry was published.
    pub fn dispatched_timestamp(&self) -> u64 {
        self.dispatched_timestamp
    }

    /// Entries in memory are over the budget.
    pub fn is_over_budget(&self) -> bool {
        self.entries_in_memory > self.entries_max
    }

    /// Bytes of entries in memory, and the most there may be: the budget twice over, since entries that aren't on disk
    /// can't be evicted. Above it, appends are refused.
    pub fn memory(&self) -> (u64, u64) {
        let bytes = |entries: usize| (entries * size_of::<Entry>()) as u64;
        (bytes(self.entries_in_memory), bytes(self.entries_limit))
    }

    #[cfg(test)]
    pub fn entries_in_memory(&self) -> usize {
        self.entries_in_memory
    }

    /// Evicts entries that are on disk until the budget is kept: half of what a queue has, in turn, so that a busy
    /// queue gives more than a quiet one. Entries that aren't on disk stay, whatever the budget.
    pub fn evict(&mut self) {
        let mut idle_visits = 0;
        let count = self.queues.len();
        while self.is_over_budget() && idle_visits < count {
            let queue = &mut self.queues[self.hand];
            self.hand = (self.hand + 1) % count;
            let evictable = queue.evictable();
            let half = (evictable / 2).max(evictable.min(KEPT_PER_QUEUE));
            if half == 0 {
                idle_visits += 1;
                continue;
            }
            idle_visits = 0;
            queue.evict(half);
            self.entries_in_memory -= half;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(table: &mut QueueTable, queue: QueueIndex, at: u64) {
        let queue_offset = table.get_mut(queue).assign();
        let entry = Entry {
            at: PhysicalOffset(at),
            bytes: 10,
            tags_code: 0,
        };
        table.push_pending(Pending {
            queue,
            queue_offset,
            entry,
            store_timestamp: at,
            appended_us: at,
        });
    }

    #[test]
    fn arrivals_are_merged_per_queue_and_only_of_what_is_visible() {
        let mut table = QueueTable::new(1 << 20);
        let a = table.add("A", 0, QueueStart::default());
        let b = table.add("B", 3, QueueStart::default());
        for (queue, at) in [(a, 0), (b, 10), (a, 20), (a, 30)] {
            append(&mut table, queue, at);
        }
        table.dispatch(PhysicalOffset(39));
        let mut arrivals = Vec::new();
        table.take_arrivals(&mut arrivals);
        let expected = [(a, 0, 2, 0), (b, 0, 1, 10)].map(|(queue, from, to, at)| Arrival {
            queue,
            from: QueueOffset(from),
            to: QueueOffset(to),
            appended_us: at,
        });
        assert_eq!(arrivals, expected);
        arrivals.clear();
        table.dispatch(PhysicalOffset(40));
        table.take_arrivals(&mut arrivals);
        assert_eq!(arrivals.len(), 1);
        assert_eq!(arrivals[0].from, QueueOffset(2));
    }

    #[test]
    fn eviction_keeps_the_budget_and_what_is_not_on_disk() {
        let mut table = QueueTable::new(10 * size_of::<Entry>() as u64);
        let queues = [0, 1].map(|id| table.add("A", id, QueueStart::default()));
        for at in 0..200 {
            append(&mut table, queues[at as usize % 2], at * 10);
        }
        table.dispatch(PhysicalOffset(2000));
        table.evict();
        assert_eq!(table.entries_in_memory(), 200, "nothing is on disk");
        table.get_mut(queues[0]).advance_persisted(100);
        table.evict();
        assert_eq!(table.get(queues[0]).in_memory(), 0);
        assert_eq!(table.get(queues[1]).in_memory(), 100);
        assert_eq!(table.entries_in_memory(), 100);
    }

    #[test]
    fn a_deleted_topic_is_gone_and_can_be_made_again() {
        let mut table = QueueTable::new(1 << 20);
        let old = table.add("A", 0, QueueStart::default());
        let other = table.add("B", 0, QueueStart::default());
        append(&mut table, old, 0);
        append(&mut table, other, 10);
        table.dispatch(PhysicalOffset(20));
        append(&mut table, old, 20);
        assert!(table.delete_topic("A"));
        assert!(!table.delete_topic("A"));
        assert_eq!(table.find("A", 0), None);
        let new = table.add("A", 0, QueueStart::default());
        assert_ne!(new, old);
        append(&mut table, new, 30);
        table.dispatch(PhysicalOffset(40));
        let mut arrivals = Vec::new();
        table.take_arrivals(&mut arrivals);
        let queues: Vec<_> = arrivals.iter().map(|arrival| arrival.queue).collect();
        assert_eq!(queues, [other, new]);
        assert_eq!(table.get(new).bounds().max, QueueOffset(1));
        assert_eq!(table.entries_in_memory(), 2);
        assert_eq!(table.list().len(), 2);
    }
}
