//! Who is connected: producers, consumers and their subscriptions. 34, 35, 38, 46, and 40 to the clients.
//!
//! **Owned by**: one shard. A membership is a pair of group and connection, not of group and client id: one client
//! may come with several groups, and one id on several connections. It ends with its connection, with 35, or 120 s
//! after its last heartbeat. The groups of a connection are known, so that a close costs what it has, not what all
//! others have.

use super::filter::Subscription;
use super::{Broker, Context, Notification, Peer};
use crate::ids::{ConnectionId, NameMap};
use crate::limits::{MEMBERSHIPS_MAX, PRODUCER_GROUPS_MAX, SUBSCRIPTIONS_BYTES_MAX};
use crate::protocol::bodies::ConsumerData;
use group::{Beat, ConsumerGroup};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;

mod group;
mod requests;
#[cfg(test)]
mod tests;

pub use group::Member;
pub use requests::{check_config, heartbeat, list_by_group, unregister};

/// Heartbeats come every 30 s; a member without one for this long is gone. Source: apache/rocketmq
/// `channelExpiredTimeout`.
const MEMBER_US: u64 = 120_000_000;

/// Pause between two warnings that there is no room.
const FULL_WARN_US: u64 = 60_000_000;

/// A producer of a group: who it is and when it was heard last.
#[derive(Clone, Debug)]
pub struct Producer {
    pub client_id: Rc<str>,
    pub address: SocketAddr,
    pub language: &'static str,
    pub version: i32,
    /// In monotonic microseconds.
    pub heard_us: u64,
}

#[derive(Debug)]
struct ProducerGroup {
    name: Rc<str>,
    members: BTreeMap<ConnectionId, Producer>,
}

/// What a client program is, as its heartbeats say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ClientKind {
    /// In lower case; empty where it is none that is known.
    pub language: &'static str,
    pub version: i32,
}

/// The groups of one connection.
#[derive(Debug, Default)]
struct Joined {
    kind: ClientKind,
    consumers: Vec<Rc<str>>,
    producers: Vec<Rc<str>>,
}

/// A group and a connection that is in it.
type Membership = (Rc<str>, ConnectionId);

/// Why a heartbeat's group was left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    #[error("this shard has {MEMBERSHIPS_MAX} memberships, the limit")]
    Memberships,
    #[error("this shard has {PRODUCER_GROUPS_MAX} groups of producers, the limit")]
    ProducerGroups,
}

/// All members of a shard.
///
/// **Invariants**: no group without a member; a connection is in a group exactly if the group is in its [`Joined`].
#[derive(Debug, Default)]
pub struct Clients {
    consumers: NameMap<ConsumerGroup>,
    producers: NameMap<ProducerGroup>,
    connections: HashMap<ConnectionId, Joined, ahash::RandomState>,
    /// The newest connection of each producer's client id.
    producer_ids: HashMap<Rc<str>, ConnectionId, ahash::RandomState>,
    consumer_memberships: usize,
    producer_memberships: usize,
    /// What the subscriptions of all groups take.
    subscription_bytes: usize,
    /// When a heartbeat was last left out for want of room, and said so.
    full_warned_us: Option<u64>,
    /// Groups whose members are to be notified at the end of this turn.
    changed: Vec<Rc<str>>,
    /// When a member may have been silent for too long; `None` without members.
    scan_us: Option<u64>,
    hasher: ahash::RandomState,
}

/// What a pull needs to know of its group's heartbeats.
#[derive(Clone, Debug)]
pub struct GroupView {
    pub broadcasting: bool,
    pub subscription: Option<Rc<Subscription>>,
}

impl Clients {
    /// The live group and its subscription to the topic; `None` without a heartbeat. No allocation.
    pub fn group(&self, group: &str, topic: &str) -> Option<GroupView> {
        let group = self.consumers.get(group)?;
        Some(GroupView {
            broadcasting: group.broadcasting,
            subscription: group.subscriptions.get(topic).cloned(),
        })
    }

    /// When [`expire`] has something to look at, in monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.scan_us
    }

    /// Topics that a live group subscribes to, sorted; empty without one.
    pub fn topics_of(&self, group: &str) -> Vec<&str> {
        let group = self.consumers.get(group);
        let topics = group.into_iter().flat_map(|g| g.subscriptions.keys());
        let mut topics: Vec<&str> = topics.map(|topic| &**topic).collect();
        topics.sort_unstable();
        topics
    }

    pub(super) fn consumer_group(&self, name: &str) -> Option<&ConsumerGroup> {
        self.consumers.get(name)
    }

    /// Live groups that subscribe to a topic.
    pub fn groups_of<'a>(&'a self, topic: &'a str) -> impl Iterator<Item = &'a str> {
        let groups = self.consumers.values();
        let groups = groups.filter(move |group| group.subscriptions.contains_key(topic));
        groups.map(|group| &*group.name)
    }

    pub fn producers_of(&self, group: &str) -> impl Iterator<Item = &Producer> {
        let group = self.producers.get(group);
        group.into_iter().flat_map(|group| group.members.values())
    }

    /// All producers with their groups, sorted by group.
    pub fn all_producers(&self) -> Vec<(&str, &Producer)> {
        let groups = self.producers.values();
        let mut all: Vec<_> = groups
            .flat_map(|group| group.members.values().map(|member| (&*group.name, member)))
            .collect();
        all.sort_by_key(|(name, _)| *name);
        all
    }

    /// The connection of a producer, of whatever group, by its client id.
    pub fn producer(&self, client_id: &str) -> Option<ConnectionId> {
        self.producer_ids.get(client_id).copied()
    }

    /// A producer of a group; with `turn` counting up, one after the other.
    pub fn producer_in_turn(&self, group: &str, turn: u64) -> Option<ConnectionId> {
        let members = &self.producers.get(group)?.members;
        let place = turn.checked_rem(members.len() as u64)?;
        members.keys().nth(place as usize).copied()
    }

    /// Live groups, sorted.
    pub fn live_groups(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.consumers.values().map(|group| &*group.name).collect();
        names.sort_unstable();
        names
    }

    /// What the last heartbeat of a connection says of its program. Nothing without a membership.
    fn hear_kind(&mut self, connection: ConnectionId, kind: ClientKind) {
        if let Some(joined) = self.connections.get_mut(&connection) {
            joined.kind = kind;
        }
    }

    fn kind_of(&self, connection: ConnectionId) -> ClientKind {
        let joined = self.connections.get(&connection);
        joined.map(|joined| joined.kind).unwrap_or_default()
    }

    /// How many members of one kind each live group has, and how it consumes; sorted.
    pub fn consumers_by_kind(&self) -> BTreeMap<(&str, &'static str, ClientKind), u64> {
        let mut counts = BTreeMap::new();
        for group in self.consumers.values() {
            for connection in group.members.keys() {
                let kind = self.kind_of(*connection);
                *counts
                    .entry((&*group.name, group.consume_mode, kind))
                    .or_default() += 1;
            }
        }
        counts
    }

    /// How many memberships of producers there are of one kind; sorted.
    pub fn producers_by_kind(&self) -> BTreeMap<ClientKind, u64> {
        let mut counts = BTreeMap::new();
        for group in self.producers.values() {
            for connection in group.members.keys() {
                *counts.entry(self.kind_of(*connection)).or_default() += 1;
            }
        }
        counts
    }

    /// Members of a live group, by connection.
    pub fn members(&self, group: &str) -> impl Iterator<Item = (ConnectionId, &Member)> {
        let group = self.consumers.get(group);
        let members = group.into_iter().flat_map(|g| &g.members);
        members.map(|(connection, member)| (*connection, member))
    }

    /// Consumers of a live group, each once, sorted.
    pub fn client_ids(&self, group: &str) -> Vec<String> {
        let group = self.consumers.get(group);
        group.map(|group| group.client_ids()).unwrap_or_default()
    }

    /// Live groups whose members subscribe to different topics or tags, sorted.
    pub fn divided_groups(&self) -> Vec<&str> {
        let divided = self.consumers.values().filter(|group| group.is_divided());
        let mut names: Vec<&str> = divided.map(|group| &*group.name).collect();
        names.sort_unstable();
        names
    }

    /// A consumer's heartbeat for one group. **Errors**: no room for a further member.
    fn hear_consumer(&mut self, data: &ConsumerData, beat: &Beat<'_>) -> Result<(), Full> {
        let (name, connection) = (data.group_name.as_str(), beat.peer.connection);
        let known = self.consumers.get(name);
        let is_member = known.is_some_and(|g| g.members.contains_key(&connection));
        if !is_member && self.consumer_memberships >= MEMBERSHIPS_MAX {
            return Err(Full::Memberships);
        }
        let hasher = &self.hasher;
        let group = self
            .consumers
            .entry(name.into())
            .or_insert_with(|| ConsumerGroup::new(name, hasher));
        let before = group.bytes;
        let room = SUBSCRIPTIONS_BYTES_MAX.saturating_sub(self.subscription_bytes);
        let changed = group.hear(data, beat, room);
        self.subscription_bytes = self.subscription_bytes - before + group.bytes;
        if changed && !std::mem::replace(&mut group.is_changed, true) {
            self.changed.push(Rc::clone(&group.name));
        }
        if !is_member {
            self.consumer_memberships += 1;
            let joined = self.connections.entry(connection).or_default();
            joined.consumers.push(Rc::clone(&group.name));
        }
        self.scan_us.get_or_insert(beat.now_us + MEMBER_US);
        Ok(())
    }

    /// A producer's heartbeat for one group. **Errors**: no room for a further group or member.
    fn hear_producer(&mut self, name: &str, beat: &Beat<'_>) -> Result<(), Full> {
        let (client_id, connection, now_us) = (beat.client_id, beat.peer.connection, beat.now_us);
        let known = self.producers.get_mut(name);
        if let Some(member) = known.and_then(|group| group.members.get_mut(&connection)) {
            member.heard_us = now_us;
            return Ok(());
        }
        if self.producer_memberships >= MEMBERSHIPS_MAX {
            return Err(Full::Memberships);
        }
        if self.producers.len() >= PRODUCER_GROUPS_MAX && !self.producers.contains_key(name) {
            return Err(Full::ProducerGroups);
        }
        let group = self
            .producers
            .entry(name.into())
            .or_insert_with(|| ProducerGroup {
                name: Rc::from(name),
                members: BTreeMap::new(),
            });
        let producer = Producer {
            client_id: Rc::clone(client_id),
            address: beat.peer.address,
            language: beat.language,
            version: beat.version,
            heard_us: now_us,
        };
        self.producer_ids.insert(Rc::clone(client_id), connection);
        group.members.insert(connection, producer);
        self.producer_memberships += 1;
        let joined = self.connections.entry(connection).or_default();
        joined.producers.push(Rc::clone(&group.name));
        self.scan_us.get_or_insert(now_us + MEMBER_US);
        Ok(())
    }

    /// Says that a heartbeat was left out, now and then.
    fn warn_full(&mut self, group: &str, peer: Peer, error: Full, now_us: u64) {
        let again_us = self.full_warned_us.map(|at| at + FULL_WARN_US);
        if again_us.is_none_or(|at| at <= now_us) {
            self.full_warned_us = Some(now_us);
            tracing::warn!(group, peer = %peer.address, %error, "a member was left out");
        }
    }

    /// Takes the connection out of the group; the rest of it is to be notified.
    fn leave_consumer(&mut self, name: &str, connection: ConnectionId) {
        if let Some(joined) = self.connections.get_mut(&connection) {
            joined.consumers.retain(|group| **group != *name);
        }
        self.drop_consumer(name, connection);
        self.forget_empty(connection);
    }

    fn drop_consumer(&mut self, name: &str, connection: ConnectionId) {
        let Some(group) = self.consumers.get_mut(name) else {
            return;
        };
        if group.members.remove(&connection).is_none() {
            return;
        }
        self.consumer_memberships -= 1;
        if group.members.is_empty() {
            tracing::debug!(group = name, "the last consumer of a group is gone");
            self.subscription_bytes -= group.bytes;
            self.consumers.remove(name);
        } else if !std::mem::replace(&mut group.is_changed, true) {
            self.changed.push(Rc::clone(&group.name));
        }
    }

    fn leave_producer(&mut self, name: &str, connection: ConnectionId) {
        if let Some(joined) = self.connections.get_mut(&connection) {
            joined.producers.retain(|group| **group != *name);
        }
        self.drop_producer(name, connection);
        self.forget_empty(connection);
    }

    fn drop_producer(&mut self, name: &str, connection: ConnectionId) {
        let Some(group) = self.producers.get_mut(name) else {
            return;
        };
        let left = group.members.remove(&connection);
        if group.members.is_empty() {
            self.producers.remove(name);
        }
        let Some(producer) = left else {
            return;
        };
        self.producer_memberships -= 1;
        let joined = self.connections.get(&connection);
        let is_producer = joined.is_some_and(|joined| !joined.producers.is_empty());
        let named = self.producer_ids.get(&producer.client_id);
        if named == Some(&connection) && !is_producer {
            self.producer_ids.remove(&producer.client_id);
        }
    }

    /// Forgets a connection that is in no group any more; the last one takes the deadline along.
    fn forget_empty(&mut self, connection: ConnectionId) {
        let joined = self.connections.get(&connection);
        if joined.is_some_and(|j| j.consumers.is_empty() && j.producers.is_empty()) {
            self.connections.remove(&connection);
        }
        if self.connections.is_empty() {
            self.scan_us = None;
        }
    }

    fn drop_connection(&mut self, connection: ConnectionId) {
        let joined = self.connections.remove(&connection).unwrap_or_default();
        for group in &joined.consumers {
            self.drop_consumer(group, connection);
        }
        for group in &joined.producers {
            self.drop_producer(group, connection);
        }
        self.forget_empty(connection);
    }

    /// Consumers that were heard last at `limit_us` or before, sorted.
    fn silent_consumers(&self, limit_us: u64) -> Vec<Membership> {
        let mut silent = Vec::new();
        for group in self.consumers.values() {
            let members = group.members.iter();
            let members = members.filter(|(_, member)| member.heard_us <= limit_us);
            silent.extend(members.map(|(id, _)| (Rc::clone(&group.name), *id)));
        }
        silent.sort_unstable();
        silent
    }

    /// Producers that were heard last at `limit_us` or before, sorted.
    fn silent_producers(&self, limit_us: u64) -> Vec<Membership> {
        let mut silent = Vec::new();
        for group in self.producers.values() {
            let members = group.members.iter();
            let members = members.filter(|(_, member)| member.heard_us <= limit_us);
            silent.extend(members.map(|(id, _)| (Rc::clone(&group.name), *id)));
        }
        silent.sort_unstable();
        silent
    }

    /// When the member that has been silent the longest will have been so for too long.
    fn next_silence(&self) -> Option<u64> {
        let consumers = self.consumers.values().flat_map(|g| g.members.values());
        let producers = self.producers.values().flat_map(|g| g.members.values());
        let heard = consumers.map(|m| m.heard_us);
        let heard = heard.chain(producers.map(|m| m.heard_us));
        heard.min().map(|at| at + MEMBER_US)
    }
}

/// Tells the members of the groups that changed in this turn to balance again, each once, whatever changed how often
/// (apache/seatunnel#9959). The member that caused it is told too.
///
/// **Source**: apache/rocketmq 5.3.x `ConsumerManager`, `DefaultConsumerIdsChangeListener`.
pub fn notify_changed(broker: &mut Broker, cx: &mut Context<'_>) {
    for name in std::mem::take(&mut broker.clients.changed) {
        let Some(group) = broker.clients.consumers.get_mut(&*name) else {
            continue;
        };
        group.is_changed = false;
        let config = broker.groups.get(&name);
        let is_wanted = config.is_none_or(|config| config.notify_consumer_ids_changed);
        // Members that broadcast have all queues each, there is nothing to balance.
        if group.broadcasting || !is_wanted {
            continue;
        }
        let notification = |connection: &ConnectionId| Notification {
            connection: *connection,
            group: name.to_string(),
        };
        let notifications = group.members.keys().map(notification);
        cx.effects.notifications.extend(notifications);
    }
}

/// A connection is closed: all its memberships end.
pub fn on_closed(broker: &mut Broker, connection: ConnectionId) {
    broker.clients.drop_connection(connection);
}

/// Members that have been silent for too long leave.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    let now_us = cx.now.monotonic_us;
    let clients = &mut broker.clients;
    if clients.scan_us.is_none_or(|at| at > now_us) {
        return;
    }
    let limit_us = now_us.saturating_sub(MEMBER_US);
    for (group, connection) in clients.silent_consumers(limit_us) {
        tracing::warn!(group = &*group, %connection, "no heartbeat for 120 s, the member is gone");
        clients.leave_consumer(&group, connection);
    }
    for (group, connection) in clients.silent_producers(limit_us) {
        clients.leave_producer(&group, connection);
    }
    clients.scan_us = clients.next_silence();
}
