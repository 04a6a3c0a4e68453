//! What a registration (103) does to the table.
//!
//! Nothing changes before everything is checked, so that a refused registration leaves no trace.

use super::routes::{Group, Member, Queues, Routes};
use super::{Broker, ChangeKind, Master, Source};
use crate::clock::Now;
use crate::limits::{NAMESRV_BROKERS_MAX, NAMESRV_ROUTES_MAX, NAMESRV_TEXT_BYTES_MAX, TOPICS_MAX};
use crate::protocol::bodies::{TopicConfig, TopicTable, perm};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A broker that is silent for this long is dropped. Source: apache/rocketmq `RouteInfoManager`.
const TIMEOUT_MS: u64 = 120_000;
/// What a broker may ask for instead. Shorter ones would drop it between two turns, longer ones are a mistake.
const TIMEOUT_MS_RANGE: RangeInclusive<u64> = 1000..=86_400_000;

/// One registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registration<'a> {
    pub broker: &'a Broker<'a>,
    pub table: &'a TopicTable,
    /// Topics that the table does not name are gone.
    pub is_whole: bool,
    pub source: Source,
}

impl Registration<'_> {
    /// Topics by name. Java takes the name inside, and nobody has seen another outside.
    fn topics(&self) -> impl Iterator<Item = (&str, &TopicConfig)> {
        let table = &self.table.topic_config_table;
        table.iter().map(|(key, topic)| {
            let inside = topic.topic_name.as_str();
            (if inside.is_empty() { key } else { inside }, topic)
        })
    }
}

/// What the checks found out.
struct Verdict {
    /// Topics are taken over; a slave's only where it may stand in for the master.
    takes_topics: bool,
    /// All topics are set; else only those that are missing.
    is_changed: bool,
    /// Permission bits that stay.
    perm_mask: u32,
}

impl Routes {
    pub fn register(
        &mut self,
        registration: &Registration<'_>,
        now: Now,
    ) -> Result<Master, String> {
        check_texts(registration)?;
        self.check_cluster(registration.broker)?;
        let verdict = self.judge(registration)?;
        self.check_room(registration, &verdict)?;
        let name = self.enter(registration, now);
        if verdict.takes_topics {
            self.take_topics(registration, &verdict, &name);
        }
        Ok(self.master_of(registration.broker))
    }

    /// Two clusters with a broker name in common would mix their routes. A broker that moved is let through: nobody
    /// else has its name.
    fn check_cluster(&self, broker: &Broker<'_>) -> Result<(), String> {
        let group = self.groups.get(broker.name);
        let Some(group) = group.filter(|g| g.cluster != broker.cluster) else {
            return Ok(());
        };
        let mut members = group.members.iter();
        match members.find(|(_, m)| m.address != broker.address) {
            None => Ok(()),
            Some((id, member)) => Err(format!(
                "broker name {} is taken in cluster {}: id {id} at {}",
                broker.name, group.cluster, member.address
            )),
        }
    }

    fn judge(&self, registration: &Registration<'_>) -> Result<Verdict, String> {
        let (broker, table) = (registration.broker, registration.table);
        let group = self.groups.get(broker.name);
        let group = group.filter(|g| g.cluster == broker.cluster);
        let known = group.and_then(|g| g.members.get(&broker.id));
        if let Some(known) = known
            && known.address != broker.address
            && known.version.state_version > table.data_version.state_version
        {
            // An old master that comes back does not push out the one elected since.
            return Err(format!(
                "broker {} id {} is at {} with state version {}, {} has {}",
                broker.name,
                broker.id,
                known.address,
                known.version.state_version,
                broker.address,
                table.data_version.state_version
            ));
        }
        if known.is_none() && !registration.is_whole && table.topic_config_table.len() == 1 {
            // The form in which 5.x announces a new topic. The broker registers whole when it reads this.
            return Err(format!(
                "a single topic of broker {} id {}, which has not registered",
                broker.name, broker.id
            ));
        }
        let is_smallest = group.is_none_or(|g| {
            let mut others = g
                .members
                .iter()
                .filter(|(_, m)| m.address != broker.address);
            others.all(|(id, _)| *id >= broker.id)
        });
        let is_prime_slave = broker.id != 0 && broker.acting_master.is_some() && is_smallest;
        let stands_in = is_prime_slave && broker.acting_master == Some(true);
        let is_same =
            known.is_some_and(|k| k.address == broker.address && k.version == table.data_version);
        Ok(Verdict {
            takes_topics: broker.id == 0 || is_prime_slave,
            is_changed: !is_same,
            perm_mask: if stands_in { !perm::WRITE } else { u32::MAX },
        })
    }

    fn check_room(&self, registration: &Registration<'_>, verdict: &Verdict) -> Result<(), String> {
        let broker = registration.broker;
        let group = self.groups.get(broker.name);
        let is_known = group.is_some_and(|g| g.members.contains_key(&broker.id));
        if !is_known && self.members >= NAMESRV_BROKERS_MAX {
            return Err(format!(
                "{} brokers are registered, the limit is {NAMESRV_BROKERS_MAX}",
                self.members
            ));
        }
        let topics = registration.table.topic_config_table.len();
        if topics > TOPICS_MAX {
            return Err(format!(
                "broker {} has {topics} topics, the limit is {TOPICS_MAX}",
                broker.name
            ));
        }
        if !verdict.takes_topics || self.pairs + topics <= NAMESRV_ROUTES_MAX {
            return Ok(());
        }
        let is_new = |name: &str| {
            self.topic(name)
                .is_none_or(|t| t.get(broker.name).is_none())
        };
        let new = registration
            .topics()
            .filter(|(name, _)| is_new(name))
            .count();
        if self.pairs + new > NAMESRV_ROUTES_MAX {
            return Err(format!(
                "all brokers together have {} topics and {} has {new} more, the limit is {NAMESRV_ROUTES_MAX}",
                self.pairs, broker.name
            ));
        }
        Ok(())
    }

    /// Puts the broker into the table of brokers.
    fn enter(&mut self, registration: &Registration<'_>, now: Now) -> Arc<str> {
        let broker = registration.broker;
        self.leave_other_ids(broker);
        let name = match self.groups.get_key_value(broker.name) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(broker.name),
        };
        let timeout_ms = broker.timeout_ms.map_or(TIMEOUT_MS, |ms| {
            ms.clamp(*TIMEOUT_MS_RANGE.start(), *TIMEOUT_MS_RANGE.end())
        });
        let member = Member {
            address: broker.address.to_owned(),
            ha_address: broker.ha_address.to_owned(),
            source: registration.source,
            version: registration.table.data_version,
            timeout_us: timeout_ms * 1000,
            expires_us: now.after_ms(timeout_ms),
        };
        let group = self
            .groups
            .entry(Arc::clone(&name))
            .or_insert_with(|| Group {
                cluster: broker.cluster.to_owned(),
                acting_master: false,
                members: BTreeMap::new(),
            });
        group.acting_master = broker.acting_master.unwrap_or(false);
        let old = group.members.insert(broker.id, member);
        if old.is_none() {
            self.members += 1;
        }
        match old {
            Some(old) if old.address == broker.address => return name,
            Some(old) => self.note(ChangeKind::Replaced, broker.name, broker.id, &old.address),
            None => {}
        }
        self.note(
            ChangeKind::Registered,
            broker.name,
            broker.id,
            broker.address,
        );
        name
    }

    /// A slave that became master, or the other way round: its address is there once. The group stays, and with it
    /// its topics, even if this leaves it empty until the next step. Not so where the broker moved to another cluster.
    fn leave_other_ids(&mut self, broker: &Broker<'_>) {
        let moved = self.groups.get(broker.name);
        if let Some(moved) = moved.filter(|g| g.cluster != broker.cluster) {
            let ids: Vec<i64> = moved.members.keys().copied().collect();
            for id in ids {
                self.drop_member(ChangeKind::Replaced, broker.name, id);
            }
        }
        let Some(group) = self.groups.get_mut(broker.name) else {
            return;
        };
        let before = group.members.len();
        group
            .members
            .retain(|id, m| *id == broker.id || m.address != broker.address);
        self.members -= before - group.members.len();
    }

    fn take_topics(
        &mut self,
        registration: &Registration<'_>,
        verdict: &Verdict,
        broker: &Arc<str>,
    ) {
        if verdict.is_changed && registration.is_whole {
            let names: BTreeSet<&str> = registration.topics().map(|(name, _)| name).collect();
            self.retain_topics(broker, |topic| names.contains(topic));
        }
        for (name, topic) in registration.topics() {
            let is_there = self.topic(name).is_some_and(|t| t.get(broker).is_some());
            if verdict.is_changed || !is_there {
                let mut queues = Queues::from(topic);
                queues.perm &= verdict.perm_mask;
                self.put(name, broker, queues);
            }
        }
    }

    fn master_of(&self, broker: &Broker<'_>) -> Master {
        if broker.id == 0 {
            return Master::default();
        }
        let group = self.groups.get(broker.name);
        let master = group.and_then(|g| g.members.get(&0));
        master.map_or_else(Master::default, |m| Master {
            address: m.address.clone(),
            ha_address: m.ha_address.clone(),
        })
    }
}

/// Names and addresses are kept per broker and topic, and shown in answers: none empty, none endless.
fn check_texts(registration: &Registration<'_>) -> Result<(), String> {
    let broker = registration.broker;
    let check = |what: &str, text: &str| {
        if text.is_empty() {
            return Err(format!("the {what} of a registration is empty"));
        }
        if text.len() > NAMESRV_TEXT_BYTES_MAX {
            return Err(format!(
                "a {what} of {} bytes, the limit is {NAMESRV_TEXT_BYTES_MAX}",
                text.len()
            ));
        }
        Ok(())
    };
    check("cluster name", broker.cluster)?;
    check("broker name", broker.name)?;
    check("address", broker.address)?;
    if !broker.ha_address.is_empty() {
        check("HA address", broker.ha_address)?;
    }
    if broker.id < 0 {
        return Err(format!("broker id {} is negative", broker.id));
    }
    registration
        .topics()
        .try_for_each(|(topic, _)| check("topic name", topic))
}
