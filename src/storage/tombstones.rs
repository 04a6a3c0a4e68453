//! Deleted topics: what must not come back when queues are derived from the log again.
//!
//! `config/ringmq.deletedTopics.json` maps a topic to the log's end when it was deleted; records of the topic below
//! have no entries. It is on disk before the topic's queue files are removed. An entry is forgotten once the log
//! begins behind it.

use crate::ids::{NameMap, PhysicalOffset};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Path below the root of the store.
const FILE: &str = "config/ringmq.deletedTopics.json";

#[derive(Debug, Default)]
pub struct Tombstones {
    topics: NameMap<PhysicalOffset>,
}

impl Tombstones {
    pub fn path(root: &Path) -> PathBuf {
        root.join(FILE)
    }

    /// **Errors**: the contents are not what this module wrote.
    pub fn decode(contents: &[u8]) -> Result<Self, String> {
        let topics: BTreeMap<Box<str>, u64> =
            serde_json::from_slice(contents).map_err(|error| error.to_string())?;
        let topics = topics
            .into_iter()
            .map(|(topic, end)| (topic, PhysicalOffset(end)));
        Ok(Self {
            topics: topics.collect(),
        })
    }

    pub fn encode(&self) -> Bytes {
        let sorted: BTreeMap<&str, u64> = self
            .topics
            .iter()
            .map(|(topic, end)| (&**topic, end.0))
            .collect();
        let text = serde_json::to_vec_pretty(&sorted).expect("texts and integers are JSON");
        Bytes::from(text)
    }

    /// The topic was deleted when the log ended here.
    pub fn bury(&mut self, topic: &str, log_end: PhysicalOffset) {
        self.topics.insert(topic.into(), log_end);
    }

    /// Whether a record of the topic was deleted with it.
    pub fn covers(&self, topic: &str, at: PhysicalOffset) -> bool {
        self.topics.get(topic).is_some_and(|end| at < *end)
    }

    pub fn get(&self, topic: &str) -> Option<PhysicalOffset> {
        self.topics.get(topic).copied()
    }

    /// Fits the tombstones to the log as recovered: what lies in front of it is forgotten; an offset behind its end,
    /// which a crash took back, becomes the end, or it would cover records to come. Whether anything changed.
    pub fn settle(&mut self, log_start: PhysicalOffset, log_end: PhysicalOffset) -> bool {
        let before = self.topics.len();
        self.topics.retain(|_, end| *end > log_start);
        let mut changed = self.topics.len() < before;
        for end in self.topics.values_mut() {
            changed |= *end > log_end;
            *end = log_end.min(*end);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_below_the_deletion_are_covered() {
        let mut tombstones = Tombstones::default();
        tombstones.bury("A", PhysicalOffset(100));
        let tombstones = Tombstones::decode(&tombstones.encode()).unwrap();
        assert!(tombstones.covers("A", PhysicalOffset(99)));
        assert!(!tombstones.covers("A", PhysicalOffset(100)));
        assert!(!tombstones.covers("B", PhysicalOffset(0)));
    }

    #[test]
    fn entries_are_forgotten_with_the_log_they_are_about() {
        let mut tombstones = Tombstones::default();
        tombstones.bury("A", PhysicalOffset(100));
        assert!(!tombstones.settle(PhysicalOffset(99), PhysicalOffset(200)));
        assert!(tombstones.settle(PhysicalOffset(100), PhysicalOffset(200)));
        assert_eq!(tombstones.get("A"), None);
    }

    #[test]
    fn records_behind_a_log_that_was_cut_are_not_covered() {
        let mut tombstones = Tombstones::default();
        tombstones.bury("A", PhysicalOffset(100));
        assert!(tombstones.settle(PhysicalOffset(0), PhysicalOffset(80)));
        assert!(tombstones.covers("A", PhysicalOffset(79)));
        assert!(!tombstones.covers("A", PhysicalOffset(80)));
    }
}
