//! Offsets that an administrator has set (222) and that their consumers have not taken yet.
//!
//! A queue of a group is at its new offset at once: 14 tells it. Until a pull has been answered with it (21,
//! OFFSET_RESET), commits for the queue are dropped: the consumer still works on what it had. As in Apache, this is
//! kept in memory only; after a restart the committed offset, which was set too, is what consumers begin with.
//!
//! Source: apache/rocketmq 5.3.x `ConsumerOffsetManager` `assignResetOffset`, `queryThenEraseResetOffset`.

use crate::ids::NameMap;
use crate::limits::RESETS_MAX;
use std::collections::BTreeMap;

/// Group → topic → queue id → offset.
#[derive(Debug, Default)]
pub struct Resets {
    groups: NameMap<NameMap<BTreeMap<u32, u64>>>,
    count: usize,
}

impl Resets {
    /// False: there is no room for a further queue.
    pub fn put(&mut self, group: &str, topic: &str, queue_id: u32, offset: u64) -> bool {
        let is_there = self.get(group, topic, queue_id).is_some();
        if !is_there && self.count >= RESETS_MAX {
            return false;
        }
        let topics = self.groups.entry(group.into()).or_default();
        topics
            .entry(topic.into())
            .or_default()
            .insert(queue_id, offset);
        self.count += usize::from(!is_there);
        true
    }

    pub fn get(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        let queues = self.groups.get(group)?.get(topic)?;
        queues.get(&queue_id).copied()
    }

    /// Takes it out; nothing is looked up while there is none at all.
    pub fn take(&mut self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let topics = self.groups.get_mut(group)?;
        let queues = topics.get_mut(topic)?;
        let offset = queues.remove(&queue_id)?;
        self.count -= 1;
        if queues.is_empty() {
            topics.remove(topic);
        }
        if topics.is_empty() {
            self.groups.remove(group);
        }
        Some(offset)
    }

    pub fn remove_topic(&mut self, topic: &str) {
        for topics in self.groups.values_mut() {
            topics.remove(topic);
        }
        self.groups.retain(|_, topics| !topics.is_empty());
        self.recount();
    }

    pub fn remove_group(&mut self, group: &str) {
        self.groups.remove(group);
        self.recount();
    }

    fn recount(&mut self) {
        let queues = self.groups.values().flat_map(NameMap::values);
        self.count = queues.map(BTreeMap::len).sum();
    }
}
