//! One consumer group: its members and what it subscribes to.
//!
//! The subscriptions belong to the group, not to a member: the newest version of each wins, and topics that a
//! heartbeat doesn't name are gone, as in Java. Members that disagree therefore lose messages (apache/rocketmq#5388,
//! #2359, #351), and so do members that share a client id (apache/rocketmq#667, #2760). Neither can be told from a
//! rollout by a single heartbeat, so both are allowed and named in a warning.

use crate::broker::Peer;
use crate::broker::filter::{Filter, Subscription};
use crate::ids::{ConnectionId, NameMap};
use crate::limits::{EXPRESSION_BYTES_MAX, SUBSCRIPTIONS_MAX};
use crate::protocol::bodies::{ConsumerData, SubscriptionData};
use crate::protocol::names::check_topic;
use ahash::RandomState;
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;

const BROADCASTING: &str = "BROADCASTING";
/// Pause between two warnings of one kind about one group.
const WARN_US: u64 = 600_000_000;

/// One connection of a group.
#[derive(Clone, Debug)]
pub struct Member {
    pub client_id: Rc<str>,
    pub address: SocketAddr,
    pub joined_us: u64,
    /// Of the last heartbeat.
    pub heard_us: u64,
    /// Of what the last heartbeat subscribed to, whatever its versions; equal for equal subscriptions.
    digest: u64,
    /// When it joined, another member had the same client id, or one came later.
    has_twin: bool,
}

#[derive(Debug)]
pub struct ConsumerGroup {
    pub name: Rc<str>,
    pub broadcasting: bool,
    pub members: BTreeMap<ConnectionId, Member>,
    pub subscriptions: NameMap<Rc<Subscription>>,
    /// Its members are to be notified at the end of this turn.
    pub is_changed: bool,
    /// Members may disagree: looked for again at each heartbeat.
    maybe_divided: bool,
    shared_id_warned_us: Option<u64>,
    divided_warned_us: Option<u64>,
    hasher: RandomState,
}

impl ConsumerGroup {
    pub fn new(name: &str, hasher: &RandomState) -> Self {
        Self {
            name: Rc::from(name),
            broadcasting: false,
            members: BTreeMap::new(),
            subscriptions: NameMap::default(),
            is_changed: false,
            maybe_divided: false,
            shared_id_warned_us: None,
            divided_warned_us: None,
            hasher: hasher.clone(),
        }
    }

    /// A heartbeat of a member, a new one or one that is known. True if the others have to know of it: the member is
    /// new, or the set of topics changed; a newer expression for a topic concerns nobody else.
    ///
    /// **Source**: apache/rocketmq 5.3.x `ConsumerGroupInfo` `updateChannel`, `updateSubscription`.
    pub fn hear(
        &mut self,
        data: &ConsumerData,
        client_id: &Rc<str>,
        peer: Peer,
        now_us: u64,
        keep_subscriptions: bool,
    ) -> bool {
        self.broadcasting = data.message_model == BROADCASTING;
        let digest = if keep_subscriptions {
            self.members.get(&peer.connection).map_or(0, |m| m.digest)
        } else {
            self.digest(data)
        };
        let joined = match self.members.get_mut(&peer.connection) {
            Some(member) => {
                member.heard_us = now_us;
                self.maybe_divided |= member.digest != digest;
                member.digest = digest;
                if member.client_id != *client_id {
                    tracing::warn!(group = &*self.name, peer = %peer.address, from = ?member.client_id,
                        to = ?client_id, "a connection changed its client id");
                    member.client_id = Rc::clone(client_id);
                }
                false
            }
            None => {
                self.join(client_id, peer, now_us, digest);
                true
            }
        };
        let topics_changed = !keep_subscriptions && self.subscribe(data);
        self.warn_shared_id(peer.connection, now_us);
        self.warn_divided(peer.connection, now_us);
        joined | topics_changed
    }

    fn join(&mut self, client_id: &Rc<str>, peer: Peer, now_us: u64, digest: u64) {
        let mut has_twin = false;
        for other in self.members.values_mut() {
            if other.client_id == *client_id {
                other.has_twin = true;
                has_twin = true;
            }
        }
        let member = Member {
            client_id: Rc::clone(client_id),
            address: peer.address,
            joined_us: now_us,
            heard_us: now_us,
            digest,
            has_twin,
        };
        self.members.insert(peer.connection, member);
        self.maybe_divided = true;
    }

    /// Newer versions replace, topics that are gone go. True if the set of topics changed.
    fn subscribe(&mut self, data: &ConsumerData) -> bool {
        let mut changed = false;
        let mut named: HashSet<&str, _> = HashSet::with_hasher(self.hasher.clone());
        for sent in &data.subscription_data_set {
            let topic = sent.topic.as_str();
            let known = self.subscriptions.get(topic);
            if known.is_some_and(|known| known.version >= sent.sub_version) {
                named.insert(topic);
                continue;
            }
            if known.is_none() {
                if let Err(reason) = self.check_new(sent) {
                    tracing::debug!(group = &*self.name, reason, "a subscription was left out");
                    continue;
                }
                changed = true;
            }
            named.insert(topic);
            let subscription = compile(&self.name, sent);
            self.subscriptions
                .insert(topic.into(), Rc::new(subscription));
        }
        let before = self.subscriptions.len();
        self.subscriptions
            .retain(|topic, _| named.contains(&**topic));
        changed | (self.subscriptions.len() != before)
    }

    fn check_new(&self, sent: &SubscriptionData) -> Result<(), String> {
        check_topic(&sent.topic).map_err(|e| e.to_string())?;
        if sent.sub_string.len() > EXPRESSION_BYTES_MAX {
            let bytes = sent.sub_string.len();
            return Err(format!(
                "its expression has {bytes} bytes, the limit is {EXPRESSION_BYTES_MAX}"
            ));
        }
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(format!(
                "the group has {SUBSCRIPTIONS_MAX} of them, the limit"
            ));
        }
        Ok(())
    }

    /// The same for all members that subscribe to the same, in any order and version.
    fn digest(&self, data: &ConsumerData) -> u64 {
        let one = |s: &SubscriptionData| {
            self.hasher
                .hash_one((&s.topic, &s.sub_string, &s.expression_type))
        };
        let all = data.subscription_data_set.iter().map(one);
        all.fold(0, u64::wrapping_add)
    }

    /// Two members with one client id share the queues of one member, or get the same ones twice. A client that lost
    /// its connection and came back is two members as well, for as long as nobody has noticed; its old connection
    /// says nothing any more, which tells it apart.
    fn warn_shared_id(&mut self, connection: ConnectionId, now_us: u64) {
        let Some(member) = self.members.get(&connection) else {
            return;
        };
        if !member.has_twin || is_recent(self.shared_id_warned_us, now_us) {
            return;
        }
        let mut twins = self
            .members
            .iter()
            .filter(|(id, other)| **id != connection && other.client_id == member.client_id)
            .map(|(_, other)| other)
            .peekable();
        let has_twin = twins.peek().is_some();
        let both_speak = |other: &&Member| {
            member.heard_us.min(other.heard_us) > member.joined_us.max(other.joined_us)
        };
        if let Some(twin) = twins.find(both_speak) {
            tracing::warn!(group = &*self.name, client_id = ?member.client_id, one = %member.address,
                other = %twin.address, "two members of a group have the same client id, so that queues may have no \
                consumer or two; give each process an instance name of its own");
            self.shared_id_warned_us = Some(now_us);
        }
        if let Some(member) = self.members.get_mut(&connection) {
            member.has_twin = has_twin;
        }
    }

    fn warn_divided(&mut self, connection: ConnectionId, now_us: u64) {
        if !self.maybe_divided || is_recent(self.divided_warned_us, now_us) {
            return;
        }
        let Some(member) = self.members.get(&connection) else {
            return;
        };
        let other = self.members.values().find(|m| m.digest != member.digest);
        self.maybe_divided = other.is_some();
        if let Some(other) = other {
            tracing::warn!(group = &*self.name, one = ?member.client_id, one_address = %member.address,
                other = ?other.client_id, other_address = %other.address, "members of a group subscribe to different \
                topics or tags, so that messages are lost; all members of a group have to subscribe to the same");
            self.divided_warned_us = Some(now_us);
        }
    }

    /// Members disagree about what to subscribe to, as far as their last heartbeats say.
    pub fn is_divided(&self) -> bool {
        let mut digests = self.members.values().map(|m| m.digest);
        let first = digests.next();
        digests.any(|digest| Some(digest) != first)
    }

    /// Client ids of all members, sorted, each once.
    ///
    /// Java lists an id once for each connection, so that a client which lost its connection and came back shares
    /// its queues with itself until the old connection is noticed.
    pub fn client_ids(&self) -> Vec<String> {
        let mut ids: Vec<&str> = self.members.values().map(|m| &*m.client_id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(str::to_owned).collect()
    }
}

fn is_recent(warned_us: Option<u64>, now_us: u64) -> bool {
    warned_us.is_some_and(|at| now_us < at.saturating_add(WARN_US))
}

fn compile(group: &str, sent: &SubscriptionData) -> Subscription {
    let filter = Filter::parse(&sent.sub_string, &sent.expression_type).unwrap_or_else(|error| {
        tracing::warn!(group, topic = sent.topic, error = ?error.to_string(), "a subscription matches nothing");
        Filter::Tags(Vec::new())
    });
    Subscription {
        topic: sent.topic.clone(),
        expression: sent.sub_string.clone(),
        expression_type: sent.expression_type.clone(),
        version: sent.sub_version,
        filter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn hear(group: &mut ConsumerGroup, index: u32, id: &str, topic: &str, seconds: u64) {
        let data = ConsumerData {
            subscription_data_set: vec![SubscriptionData {
                topic: topic.to_owned(),
                sub_version: seconds as i64,
                ..SubscriptionData::default()
            }],
            ..ConsumerData::default()
        };
        let connection = ConnectionId {
            index,
            generation: 1,
        };
        let address = ([10, 0, 0, index as u8], 1).into();
        let peer = Peer {
            connection,
            address,
        };
        group.hear(&data, &id.into(), peer, seconds * SECOND, false);
    }

    /// Sources: apache/rocketmq#667, #2760, #1547: containers that share a client id.
    #[test]
    fn two_that_speak_under_one_id_are_named() {
        let mut group = ConsumerGroup::new("G", &RandomState::new());
        hear(&mut group, 1, "a", "T", 0);
        hear(&mut group, 2, "a", "T", 10);
        hear(&mut group, 3, "b", "T", 10);
        assert_eq!(
            group.shared_id_warned_us, None,
            "one may be back under a new connection"
        );
        hear(&mut group, 1, "a", "T", 30);
        hear(&mut group, 3, "b", "T", 35);
        assert_eq!(group.shared_id_warned_us, None);
        hear(&mut group, 2, "a", "T", 40);
        assert_eq!(group.shared_id_warned_us, Some(40 * SECOND), "both speak");
        hear(&mut group, 1, "a", "T", 60);
        assert_eq!(
            group.shared_id_warned_us,
            Some(40 * SECOND),
            "not again so soon"
        );
        hear(&mut group, 2, "a", "T", 641);
        assert_eq!(group.shared_id_warned_us, Some(641 * SECOND));
    }

    #[test]
    fn a_client_that_came_back_is_not_named() {
        let mut group = ConsumerGroup::new("G", &RandomState::new());
        hear(&mut group, 1, "a", "T", 0);
        hear(&mut group, 1, "a", "T", 30);
        for seconds in (40..160).step_by(30) {
            hear(&mut group, 2, "a", "T", seconds);
        }
        assert_eq!(group.shared_id_warned_us, None);
        let gone = ConnectionId {
            index: 1,
            generation: 1,
        };
        group.members.remove(&gone);
        hear(&mut group, 2, "a", "T", 170);
        let left = group.members.values().next().expect("one is left");
        assert!(!left.has_twin, "not looked for any more");
    }

    /// Sources: apache/rocketmq#5388, #351: members with different tags, or different topics.
    #[test]
    fn members_that_disagree_are_named() {
        let mut group = ConsumerGroup::new("G", &RandomState::new());
        hear(&mut group, 1, "a", "T", 0);
        hear(&mut group, 2, "b", "T", 1);
        assert!(!group.is_divided());
        assert_eq!(group.divided_warned_us, None);
        hear(&mut group, 3, "c", "U", 2);
        assert!(group.is_divided());
        assert_eq!(group.divided_warned_us, Some(2 * SECOND));
        hear(&mut group, 1, "a", "T", 30);
        assert_eq!(
            group.divided_warned_us,
            Some(2 * SECOND),
            "not again so soon"
        );
        hear(&mut group, 1, "a", "T", 603);
        assert_eq!(group.divided_warned_us, Some(603 * SECOND));
        hear(&mut group, 3, "c", "T", 610);
        assert!(!group.is_divided());
        hear(&mut group, 2, "b", "T", 1204);
        assert!(!group.maybe_divided, "not looked for any more");
    }
}
