//! Brokers by name, topics by name, and what is asked of them.

use super::{Change, ChangeKind, Source};
use crate::protocol::bodies::{BrokerData, DataVersion, QueueData, TopicConfig, TopicRoute, perm};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The brokers of one name: a master and its slaves.
#[derive(Debug)]
pub(super) struct Group {
    pub cluster: String,
    /// Said by the broker that registered last.
    pub acting_master: bool,
    /// By broker id; never empty.
    pub members: BTreeMap<i64, Member>,
}

/// One broker.
#[derive(Debug)]
pub(super) struct Member {
    pub address: String,
    pub ha_address: String,
    pub source: Source,
    pub version: DataVersion,
    pub timeout_us: u64,
    pub expires_us: u64,
}

impl Group {
    pub fn has_master(&self) -> bool {
        self.members.contains_key(&0)
    }

    fn data(&self, name: &str) -> BrokerData {
        BrokerData {
            cluster: self.cluster.clone(),
            broker_name: name.to_owned(),
            addresses: self
                .members
                .iter()
                .map(|(id, m)| (*id, m.address.clone()))
                .collect(),
        }
    }
}

/// Queues of one topic at the brokers of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queues {
    pub read: u32,
    pub write: u32,
    pub perm: u32,
    pub sys_flag: i32,
}

impl From<&TopicConfig> for Queues {
    fn from(topic: &TopicConfig) -> Self {
        Self {
            read: topic.read_queue_nums,
            write: topic.write_queue_nums,
            perm: topic.perm,
            sys_flag: topic.topic_sys_flag,
        }
    }
}

impl From<&QueueData> for Queues {
    fn from(queue: &QueueData) -> Self {
        Self {
            read: queue.read_queue_nums,
            write: queue.write_queue_nums,
            perm: queue.perm,
            sys_flag: queue.topic_sys_flag,
        }
    }
}

/// A topic's queues by broker name, sorted. A vector, since most topics are on few brokers and there are many topics.
#[derive(Debug, Default)]
pub(super) struct Topic(Vec<(Arc<str>, Queues)>);

impl Topic {
    fn find(&self, broker: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(name, _)| (**name).cmp(broker))
    }

    pub fn get(&self, broker: &str) -> Option<&Queues> {
        self.find(broker).ok().map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, broker: &str) -> Option<&mut Queues> {
        self.find(broker).ok().map(|at| &mut self.0[at].1)
    }

    fn remove(&mut self, broker: &str) -> bool {
        self.find(broker).map(|at| self.0.remove(at)).is_ok()
    }

    /// Of several brokers the first one's, as in Java, where the order is a hash map's.
    fn sys_flag(&self) -> i32 {
        self.0.first().map_or(0, |(_, queues)| queues.sys_flag)
    }
}

/// Bits of a topic's system flag: it belongs to a unit; a unit subscribes to it.
pub(super) const SYS_FLAG_UNIT: i32 = 1;
pub(super) const SYS_FLAG_UNIT_SUB: i32 = 2;

/// All brokers and topics.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub groups: BTreeMap<Arc<str>, Group>,
    topics: BTreeMap<Box<str>, Topic>,
    /// Members of all groups.
    pub members: usize,
    /// Pairs of topic and broker name.
    pub pairs: usize,
    pub changes: Vec<Change>,
}

impl Routes {
    pub fn note(&mut self, kind: ChangeKind, broker: &str, id: i64, address: &str) {
        self.changes.push(Change {
            kind,
            broker: broker.to_owned(),
            id,
            address: address.to_owned(),
        });
    }

    pub fn next_expiry(&self) -> Option<u64> {
        let members = self.groups.values().flat_map(|g| g.members.values());
        members.map(|m| m.expires_us).min()
    }

    pub fn topic(&self, topic: &str) -> Option<&Topic> {
        self.topics.get(topic)
    }

    /// Sets the queues of a topic at a broker that is registered.
    pub fn put(&mut self, topic: &str, broker: &Arc<str>, queues: Queues) {
        debug_assert!(self.groups.contains_key(broker), "{broker}");
        let entry = match self.topics.get_mut(topic) {
            Some(entry) => entry,
            None => self.topics.entry(topic.into()).or_default(),
        };
        match entry.find(broker) {
            Ok(at) => entry.0[at].1 = queues,
            Err(at) => {
                entry.0.insert(at, (Arc::clone(broker), queues));
                self.pairs += 1;
            }
        }
    }

    /// Takes topics away from a broker: those for which `keep` is false.
    pub fn retain_topics(&mut self, broker: &str, keep: impl Fn(&str) -> bool) {
        let pairs = &mut self.pairs;
        self.topics.retain(|topic, entry| {
            if !keep(topic) && entry.remove(broker) {
                *pairs -= 1;
            }
            !entry.0.is_empty()
        });
    }

    /// Takes a topic away from all brokers, or from those of one cluster.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(entry) = self.topics.get_mut(topic) else {
            return;
        };
        let (groups, before) = (&self.groups, entry.0.len());
        entry.0.retain(|(broker, _)| {
            cluster.is_some_and(|cluster| groups.get(broker).is_none_or(|g| g.cluster != cluster))
        });
        self.pairs -= before - entry.0.len();
        if entry.0.is_empty() {
            self.topics.remove(topic);
        }
    }

    /// Drops the brokers that `is_gone` picks, and the topics that only they had.
    pub fn drop_where(&mut self, kind: ChangeKind, is_gone: impl Fn(&Member) -> bool) {
        let mut gone: Vec<(Arc<str>, i64)> = Vec::new();
        for (name, group) in &self.groups {
            let ids = group.members.iter().filter(|(_, m)| is_gone(m));
            gone.extend(ids.map(|(id, _)| (Arc::clone(name), *id)));
        }
        for (name, id) in gone {
            self.drop_member(kind, &name, id);
        }
    }

    /// 104: drops whatever has this address under the name; a stale one changes nothing.
    pub fn unregister(&mut self, name: &str, address: &str) {
        let Some(group) = self.groups.get(name) else {
            return;
        };
        let ids = group.members.iter().filter(|(_, m)| m.address == address);
        let ids: Vec<i64> = ids.map(|(id, _)| *id).collect();
        for id in ids {
            self.drop_member(ChangeKind::Unregistered, name, id);
        }
    }

    pub fn drop_member(&mut self, kind: ChangeKind, name: &str, id: i64) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        let Some(member) = group.members.remove(&id) else {
            return;
        };
        self.members -= 1;
        let (is_empty, has_acting) = (
            group.members.is_empty(),
            group.acting_master && !group.has_master(),
        );
        self.note(kind, name, id, &member.address);
        if is_empty {
            self.retain_topics(name, |_| false);
            self.groups.remove(name);
        } else if has_acting {
            // A slave that stands in for its master takes no messages.
            self.set_write_permission(name, false);
        }
    }

    /// Gives or takes the permission to write at all topics of a broker name, until it registers with a new data
    /// version. Apache's code 327 sets read and write, and so opens topics that were closed for reading and forgets
    /// the inherit bit; here it gives back what 205 took. Returns the topics of the broker.
    pub fn set_write_permission(&mut self, broker: &str, is_given: bool) -> usize {
        let mut count = 0;
        for queues in self.topics.values_mut().filter_map(|t| t.get_mut(broker)) {
            if is_given {
                queues.perm |= perm::WRITE;
            } else {
                queues.perm &= !perm::WRITE;
            }
            count += 1;
        }
        count
    }

    /// `None` where no broker has the topic.
    pub fn route(&self, topic: &str, order_topic_conf: Option<&str>) -> Option<TopicRoute> {
        let entry = self.topics.get(topic)?;
        let mut route = TopicRoute {
            order_topic_conf: order_topic_conf.map(str::to_owned),
            ..TopicRoute::default()
        };
        for (broker, queues) in &entry.0 {
            let Some(group) = self.groups.get(broker) else {
                debug_assert!(false, "{topic} is at {broker}, which is not registered");
                continue;
            };
            route.brokers.push(group.data(broker));
            route.queues.push(QueueData {
                broker_name: broker.to_string(),
                perm: queues.perm,
                read_queue_nums: queues.read,
                topic_sys_flag: queues.sys_flag,
                write_queue_nums: queues.write,
            });
        }
        Some(route)
    }

    /// All brokers by name.
    pub fn brokers(&self) -> BTreeMap<String, BrokerData> {
        let groups = self.groups.iter();
        groups
            .map(|(name, group)| (name.to_string(), group.data(name)))
            .collect()
    }

    /// The brokers of one name, if it is in use.
    pub fn broker(&self, name: &str) -> Option<BrokerData> {
        self.groups.get(name).map(|group| group.data(name))
    }

    /// Topics, sorted, that `is_wanted` picks by their system flag.
    pub fn topics_with_flag(&self, is_wanted: impl Fn(i32) -> bool) -> Vec<String> {
        let topics = self.topics.iter();
        topics
            .filter(|(_, topic)| is_wanted(topic.sys_flag()))
            .map(|(name, _)| name.to_string())
            .collect()
    }

    /// Topics, sorted, that some broker of the cluster has.
    pub fn topics_of_cluster(&self, cluster: &str) -> Vec<String> {
        let is_inside = |broker: &Arc<str>| {
            let group = self.groups.get(broker);
            group.is_some_and(|g| g.cluster == cluster)
        };
        let topics = self.topics.iter();
        topics
            .filter(|(_, topic)| topic.0.iter().any(|(broker, _)| is_inside(broker)))
            .map(|(name, _)| name.to_string())
            .collect()
    }

    /// The member with this address under this name.
    pub fn member_mut(&mut self, cluster: &str, name: &str, address: &str) -> Option<&mut Member> {
        let group = self.groups.get_mut(name)?;
        let mut members = group.members.values_mut();
        members.find(|m| m.address == address && group.cluster == cluster)
    }

    /// Panics unless all indices agree; for tests.
    #[cfg(test)]
    pub fn check(&self) {
        let members: usize = self.groups.values().map(|g| g.members.len()).sum();
        assert_eq!(members, self.members);
        assert!(self.groups.values().all(|g| !g.members.is_empty()));
        let pairs: usize = self.topics.values().map(|t| t.0.len()).sum();
        assert_eq!(pairs, self.pairs);
        for (topic, entry) in &self.topics {
            assert!(!entry.0.is_empty(), "{topic}");
            assert!(entry.0.is_sorted_by(|a, b| a.0 < b.0), "{topic}");
            assert!(
                entry.0.iter().all(|(b, _)| self.groups.contains_key(b)),
                "{topic}"
            );
        }
    }
}
