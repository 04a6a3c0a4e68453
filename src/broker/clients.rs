//! Who is connected: producers, consumers and their subscriptions. 34, 35, 38, 46, and 40 to the clients.

use super::filter::{Filter, Subscription};
use super::{Broker, Context, Notification, Outcome, Peer};
use crate::ids::{ConnectionId, NameMap};
use crate::protocol::bodies::{self, CheckClientConfig, ConsumerData, ConsumerIds, Heartbeat};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::names::{RETRY_PREFIX, check_group};
use crate::protocol::response::Response;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Heartbeats come every 30 s; a member without one for this long is gone. Source: apache/rocketmq `ClientChannelInfo`.
const MEMBER_US: u64 = 120_000_000;
/// Groups that one heartbeat may name.
const HEARTBEAT_GROUPS_MAX: usize = 4096;

#[derive(Debug)]
struct Member {
    client_id: String,
    heard_us: u64,
}

#[derive(Debug, Default)]
struct ConsumerGroup {
    broadcasting: bool,
    members: BTreeMap<ConnectionId, Member>,
    subscriptions: NameMap<Rc<Subscription>>,
}

/// Consumer groups with their members, keyed by group and connection.
#[derive(Debug, Default)]
pub struct Clients {
    consumers: NameMap<ConsumerGroup>,
    producers: NameMap<BTreeMap<ConnectionId, Member>>,
    scan_us: Option<u64>,
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

    pub fn next_deadline(&self) -> Option<u64> {
        self.scan_us
    }

    /// Topics that a live group subscribes to, sorted.
    pub fn topics_of(&self, group: &str) -> Vec<String> {
        let mut topics: Vec<String> = self
            .consumers
            .get(group)
            .into_iter()
            .flat_map(|g| g.subscriptions.keys().map(|t| t.to_string()))
            .collect();
        topics.sort();
        topics
    }

    /// Puts the member in; true if the group changed for the others.
    fn consumer(&mut self, data: &ConsumerData, client_id: &str, peer: Peer, now_us: u64) -> bool {
        let group = self
            .consumers
            .entry(data.group_name.as_str().into())
            .or_default();
        group.broadcasting = data.message_model == "BROADCASTING";
        let member = Member {
            client_id: client_id.to_owned(),
            heard_us: now_us,
        };
        let joined = group.members.insert(peer.connection, member).is_none();
        joined | group.subscribe(data)
    }

    /// Takes the connection out of the group; the rest is to be notified if it was in.
    fn leave(&mut self, group_name: &str, connection: ConnectionId) -> bool {
        let Some(group) = self.consumers.get_mut(group_name) else {
            return false;
        };
        let left = group.members.remove(&connection).is_some();
        if group.members.is_empty() {
            self.consumers.remove(group_name);
        }
        left
    }

    fn groups_of(&self, connection: ConnectionId) -> Vec<String> {
        let mut groups: Vec<String> = self
            .consumers
            .iter()
            .filter(|(_, g)| g.members.contains_key(&connection))
            .map(|(name, _)| name.to_string())
            .collect();
        groups.sort();
        groups
    }
}

impl ConsumerGroup {
    /// Newer versions replace, topics that are gone go. True if the set of topics changed.
    fn subscribe(&mut self, data: &ConsumerData) -> bool {
        let mut changed = false;
        for sent in &data.subscription_data_set {
            let known = self.subscriptions.get(sent.topic.as_str());
            if known
                .is_some_and(|k| k.version >= sent.sub_version && k.expression == sent.sub_string)
            {
                continue;
            }
            changed |= known.is_none();
            let filter = Filter::parse(&sent.sub_string, &sent.expression_type).unwrap_or_else(|error| {
                tracing::warn!(group = data.group_name, topic = sent.topic, %error, "a subscription matches nothing");
                Filter::Tags(Vec::new())
            });
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
        let before = self.subscriptions.len();
        self.subscriptions.retain(|topic, _| {
            data.subscription_data_set
                .iter()
                .any(|s| *s.topic == **topic)
        });
        changed | (self.subscriptions.len() != before)
    }
}

/// Tells all members of a group to balance again; once per group and turn.
fn notify(broker: &Broker, group_name: &str, cx: &mut Context<'_>) {
    let wanted = broker
        .groups
        .get(group_name)
        .is_none_or(|g| g.notify_consumer_ids_changed);
    let Some(group) = broker
        .clients
        .consumers
        .get(group_name)
        .filter(|g| wanted && !g.broadcasting)
    else {
        return;
    };
    for connection in group.members.keys() {
        let notification = Notification {
            connection: *connection,
            group: group_name.to_owned(),
        };
        if !cx.effects.notifications.contains(&notification) {
            cx.effects.notifications.push(notification);
        }
    }
}

pub fn heartbeat(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let beat: Heartbeat = match bodies::decode(command.body) {
        Ok(beat) => beat,
        Err(error) => {
            let remark = format!("heartbeat: {error}");
            return Ok(Outcome::Reply(Response::error(
                ResponseCode::SYSTEM_ERROR,
                remark,
            )));
        }
    };
    let now_us = cx.now.monotonic_us;
    for producer in beat.producer_data_set.iter().take(HEARTBEAT_GROUPS_MAX) {
        if check_group(&producer.group_name).is_ok() {
            let member = Member {
                client_id: beat.client_id.clone(),
                heard_us: now_us,
            };
            broker
                .clients
                .producers
                .entry(producer.group_name.as_str().into())
                .or_default()
                .insert(peer.connection, member);
        }
    }
    for data in beat.consumer_data_set.iter().take(HEARTBEAT_GROUPS_MAX) {
        let Some(group) = broker
            .groups
            .find_or_create(&broker.config, &data.group_name, cx)
        else {
            continue;
        };
        let retry = format!("{RETRY_PREFIX}{}", data.group_name);
        broker
            .topics
            .ensure_group_topic(&retry, group.retry_queue_nums, cx);
        if broker.clients.consumer(data, &beat.client_id, peer, now_us) {
            notify(broker, &data.group_name, cx);
        }
    }
    broker.clients.scan_us.get_or_insert(now_us + MEMBER_US);
    Ok(Outcome::Reply(Response::success()))
}

pub fn unregister(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    if let Some(group) = command.text("producerGroup")
        && let Some(members) = broker.clients.producers.get_mut(group)
    {
        members.remove(&peer.connection);
        if members.is_empty() {
            broker.clients.producers.remove(group);
        }
    }
    if let Some(group) = command.text("consumerGroup")
        && broker.clients.leave(group, peer.connection)
    {
        notify(broker, group, cx);
    }
    Ok(Outcome::Reply(Response::success()))
}

pub fn list_by_group(broker: &mut Broker, command: &Command<'_>) -> Result<Outcome, FieldError> {
    let name = command.require_text("consumerGroup")?;
    let members = broker.clients.consumers.get(name).map(|g| &g.members);
    let mut ids: Vec<String> = members
        .into_iter()
        .flatten()
        .map(|(_, m)| m.client_id.clone())
        .collect();
    ids.sort();
    ids.dedup();
    if ids.is_empty() {
        let remark = format!("no consumer for this group, {name}");
        return Ok(Outcome::Reply(Response::error(
            ResponseCode::SYSTEM_ERROR,
            remark,
        )));
    }
    let body = serde_json::to_vec(&ConsumerIds {
        consumer_id_list: ids,
    })
    .expect("plain data is JSON");
    Ok(Outcome::Reply(Response::with_body(body)))
}

/// 46: a consumer asks before it starts whether its expression is understood.
pub fn check_config(command: &Command<'_>) -> Result<Outcome, FieldError> {
    let refuse = |code, remark: String| Ok(Outcome::Reply(Response::error(code, remark)));
    let check: CheckClientConfig = match bodies::decode(command.body) {
        Ok(check) => check,
        Err(error) => {
            return refuse(
                ResponseCode::SYSTEM_ERROR,
                format!("check client config: {error}"),
            );
        }
    };
    let data = &check.subscription_data;
    match Filter::parse(&data.sub_string, &data.expression_type) {
        Ok(_) => Ok(Outcome::Reply(Response::success())),
        Err(error @ super::filter::FilterError::Type(_)) => refuse(
            ResponseCode::SYSTEM_ERROR,
            format!(
                "The broker does not support consumer to filter message by {}: {error}",
                data.expression_type
            ),
        ),
        Err(error) => refuse(ResponseCode::SUBSCRIPTION_PARSE_FAILED, error.to_string()),
    }
}

pub fn on_closed(broker: &mut Broker, connection: ConnectionId, cx: &mut Context<'_>) {
    broker.clients.producers.retain(|_, members| {
        members.remove(&connection);
        !members.is_empty()
    });
    for group in broker.clients.groups_of(connection) {
        broker.clients.leave(&group, connection);
        notify(broker, &group, cx);
    }
}

/// Members that have been silent for too long leave.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    let now_us = cx.now.monotonic_us;
    if broker.clients.scan_us.is_none_or(|at| at > now_us) {
        return;
    }
    let mut silent = Vec::new();
    for (name, group) in &broker.clients.consumers {
        let gone = group
            .members
            .iter()
            .filter(|(_, m)| m.heard_us + MEMBER_US <= now_us);
        silent.extend(gone.map(|(connection, _)| (name.to_string(), *connection)));
    }
    silent.sort();
    for (group, connection) in silent {
        broker.clients.leave(&group, connection);
        notify(broker, &group, cx);
    }
    broker.clients.producers.retain(|_, members| {
        members.retain(|_, m| m.heard_us + MEMBER_US > now_us);
        !members.is_empty()
    });
    let consumers = broker
        .clients
        .consumers
        .values()
        .flat_map(|g| g.members.values());
    let members = consumers.chain(broker.clients.producers.values().flat_map(BTreeMap::values));
    broker.clients.scan_us = members.map(|m| m.heard_us + MEMBER_US).min();
}
