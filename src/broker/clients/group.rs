//! One consumer group: its members and what it subscribes to.
//!
//! The subscriptions belong to the group, not to a member: the newest version of each wins, and topics that a
//! heartbeat doesn't name are gone, as in Java. Members that disagree therefore lose messages (apache/rocketmq#5388,
//! #2359, #351), and so do members that share a client id (apache/rocketmq#667, #2760). Neither can be told from a
//! rollout by a single heartbeat, so both are allowed and named in a warning.

use crate::broker::Peer;
use crate::broker::filter::{Filter, Subscription};
use crate::ids::{ConnectionId, NameMap};
use crate::limits::{
    EXPRESSION_BYTES_MAX, SUBSCRIPTION_COST, SUBSCRIPTIONS_BYTES_MAX, SUBSCRIPTIONS_MAX,
};
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

/// A heartbeat, but for what it says of a group.
#[derive(Clone, Copy, Debug)]
pub struct Beat<'a> {
    pub client_id: &'a Rc<str>,
    pub peer: Peer,
    pub now_us: u64,
    /// It leaves its subscriptions out: those that are there hold.
    pub keep_subscriptions: bool,
}

#[derive(Debug)]
pub struct ConsumerGroup {
    pub name: Rc<str>,
    pub broadcasting: bool,
    /// `push`, `pull` or `pop`, as RocketMQ's metrics call it.
    pub consume_mode: &'static str,
    pub members: BTreeMap<ConnectionId, Member>,
    pub subscriptions: NameMap<Rc<Subscription>>,
    /// Its members are to be notified at the end of this turn.
    pub is_changed: bool,
    /// Members may disagree: looked for again at each heartbeat.
    maybe_divided: bool,
    shared_id_warned_us: Option<u64>,
    divided_warned_us: Option<u64>,
    filter_warned_us: Option<u64>,
    /// What the subscriptions take, by [`cost`].
    pub bytes: usize,
    hasher: RandomState,
}

impl ConsumerGroup {
    pub fn new(name: &str, hasher: &RandomState) -> Self {
        Self {
            name: Rc::from(name),
            broadcasting: false,
            consume_mode: consume_mode(""),
            members: BTreeMap::new(),
            subscriptions: NameMap::default(),
            is_changed: false,
            maybe_divided: false,
            shared_id_warned_us: None,
            divided_warned_us: None,
            filter_warned_us: None,
            bytes: 0,
            hasher: hasher.clone(),
        }
    }

    /// A heartbeat of a member, a new one or one that is known. True if the others have to know of it: the member is
    /// new, or the set of topics changed; a newer expression for a topic concerns nobody else.
    ///
    /// `room`: what further subscriptions may take, by [`cost`].
    /// **Source**: apache/rocketmq 5.3.x `ConsumerGroupInfo` `updateChannel`, `updateSubscription`.
    pub fn hear(&mut self, data: &ConsumerData, beat: &Beat<'_>, room: usize) -> bool {
        self.broadcasting = data.message_model == BROADCASTING;
        self.consume_mode = consume_mode(&data.consume_type);
        let connection = beat.peer.connection;
        let digest = if beat.keep_subscriptions {
            self.members.get(&connection).map_or(0, |m| m.digest)
        } else {
            self.digest(data)
        };
        let joined = match self.members.get_mut(&connection) {
            Some(member) => {
                member.heard_us = beat.now_us;
                self.maybe_divided |= member.digest != digest;
                member.digest = digest;
                if member.client_id != *beat.client_id {
                    tracing::debug!(group = &*self.name, peer = %beat.peer.address, from = ?member.client_id,
                        to = ?beat.client_id, "a connection changed its client id");
                    member.client_id = Rc::clone(beat.client_id);
                }
                false
            }
            None => {
                self.join(beat, digest);
                true
            }
        };
        let topics_changed = !beat.keep_subscriptions && self.subscribe(data, beat.now_us, room);
        self.warn_shared_id(connection, beat.now_us);
        self.warn_divided(connection, beat.now_us);
        joined | topics_changed
    }

    fn join(&mut self, beat: &Beat<'_>, digest: u64) {
        let mut has_twin = false;
        for other in self.members.values_mut() {
            if other.client_id == *beat.client_id {
                other.has_twin = true;
                has_twin = true;
            }
        }
        let member = Member {
            client_id: Rc::clone(beat.client_id),
            address: beat.peer.address,
            joined_us: beat.now_us,
            heard_us: beat.now_us,
            digest,
            has_twin,
        };
        self.members.insert(beat.peer.connection, member);
        self.maybe_divided = true;
    }

    /// Newer versions replace, topics that are gone go. True if the set of topics changed.
    fn subscribe(&mut self, data: &ConsumerData, now_us: u64, room: usize) -> bool {
        let limit = self.bytes.saturating_add(room);
        let mut changed = false;
        let mut named: HashSet<&str, _> = HashSet::with_hasher(self.hasher.clone());
        for sent in &data.subscription_data_set {
            let topic = sent.topic.as_str();
            let known = self.subscriptions.get(topic);
            let is_known = known.is_some();
            if known.is_none_or(|known| known.version < sent.sub_version) {
                if let Err(reason) = self.check(sent, is_known, limit) {
                    self.warn_filter(&reason, now_us);
                    if !is_known {
                        continue;
                    }
                } else {
                    self.replace(sent, now_us);
                    changed |= !is_known;
                }
            }
            named.insert(topic);
        }
        let before = self.subscriptions.len();
        self.subscriptions
            .retain(|topic, _| named.contains(&**topic));
        let left = self.subscriptions.values();
        self.bytes = left.map(|s| cost(&s.topic, &s.expression)).sum();
        changed | (self.subscriptions.len() != before)
    }

    /// Puts a subscription in. One that means nothing matches nothing.
    fn replace(&mut self, sent: &SubscriptionData, now_us: u64) {
        let filter = Filter::parse(&sent.sub_string, &sent.expression_type);
        let filter = filter.unwrap_or_else(|error| {
            self.warn_filter(&format!("matches nothing: {error}"), now_us);
            Filter::Tags(Vec::new())
        });
        self.bytes += cost(&sent.topic, &sent.sub_string);
        let subscription = Subscription {
            topic: sent.topic.clone(),
            expression: sent.sub_string.clone(),
            expression_type: sent.expression_type.clone(),
            version: sent.sub_version,
            filter,
        };
        self.subscriptions
            .insert(sent.topic.as_str().into(), Rc::new(subscription));
    }

    fn check(&self, sent: &SubscriptionData, is_known: bool, limit: usize) -> Result<(), String> {
        check_topic(&sent.topic).map_err(|e| format!("is left out: {e}"))?;
        let bytes = sent.sub_string.len().max(sent.expression_type.len());
        if bytes > EXPRESSION_BYTES_MAX {
            return Err(format!(
                "is left out: its expression has {bytes} bytes, the limit is {EXPRESSION_BYTES_MAX}"
            ));
        }
        if !is_known && self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(format!(
                "is left out: the group has {SUBSCRIPTIONS_MAX} of them, the limit"
            ));
        }
        if self.bytes + cost(&sent.topic, &sent.sub_string) > limit {
            return Err(format!(
                "is left out: those of all groups take {SUBSCRIPTIONS_BYTES_MAX} bytes, the limit"
            ));
        }
        Ok(())
    }

    fn warn_filter(&mut self, reason: &str, now_us: u64) {
        if !is_recent(self.filter_warned_us, now_us) {
            self.filter_warned_us = Some(now_us);
            tracing::warn!(group = &*self.name, reason = ?reason, "a subscription is not as the client wants it");
        }
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

/// **Source**: apache/rocketmq 5.3.x `ConsumeType`.
fn consume_mode(consume_type: &str) -> &'static str {
    match consume_type {
        "CONSUME_ACTIVELY" => "pull",
        "CONSUME_POP" => "pop",
        _ => "push",
    }
}

fn is_recent(warned_us: Option<u64>, now_us: u64) -> bool {
    warned_us.is_some_and(|at| now_us < at.saturating_add(WARN_US))
}

/// Memory of a subscription, in bytes, from above.
fn cost(topic: &str, expression: &str) -> usize {
    SUBSCRIPTION_COST + 2 * topic.len() + 16 * expression.len()
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
        let beat = Beat {
            client_id: &id.into(),
            peer,
            now_us: seconds * SECOND,
            keep_subscriptions: false,
        };
        group.hear(&data, &beat, usize::MAX);
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
