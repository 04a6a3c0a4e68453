//! 36: a consumer gives a message back; it comes again later, or goes to the dead letters of the group.
//!
//! The message is named by its place in the log, so that it may be cold: the request runs again with it. The copy
//! waits in its delay level like any other delayed message, or is in the group's dead letters at once.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/AbstractSendMessageProcessor.java` `consumerSendMsgBack`.

use super::delay::{self, When};
use super::groups::Group;
use super::internal::{self, NotStored};
use super::topics::{PERM_WRITE, Refusal};
use super::{Acknowledgement, Broker, Context, Outcome, Peer};
use crate::ids::PhysicalOffset;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::hash;
use crate::protocol::message::{NewMessage, Record, StoredMessage, offset_message_id};
use crate::protocol::names::{DLQ_PREFIX, RETRY_PREFIX, check_group};
use crate::protocol::properties::{self, name};
use crate::protocol::response::{Response, ResponseHeader};
use crate::storage::Missing;
use smallvec::smallvec;
use std::rc::Rc;

#[cfg(test)]
mod tests;

/// Clients from this version on say how often their message may be retried. Source: apache/rocketmq
/// `MQVersion.Version.V3_4_9`.
pub(super) const VERSION_WITH_MAX_RECONSUME_TIMES: i32 = 121;
/// Level of the first retry where the client leaves it to the broker.
const FIRST_LEVEL: i64 = 3;

/// The request as it came.
struct SendBack<'a> {
    group: &'a str,
    at: i64,
    level: i64,
    origin_message_id: &'a str,
    max_reconsume_times: Option<i32>,
}

/// Why a request is not answered with success.
enum Stop {
    Refused(Refusal),
    Missing(Missing),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop::Refused(refusal)
    }
}

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let version_has_max = command.version >= VERSION_WITH_MAX_RECONSUME_TIMES;
    let max = command.i32("maxReconsumeTimes")?;
    let sent = SendBack {
        group: command.require_text("group")?,
        at: command.require_i64("offset")?,
        level: i64::from(command.require_i32("delayLevel")?),
        origin_message_id: command.text("originMsgId").unwrap_or_default(),
        max_reconsume_times: max.filter(|_| version_has_max),
    };
    Ok(match send_back(broker, &sent, peer, cx) {
        Ok(outcome) => outcome,
        Err(Stop::Missing(missing)) => Outcome::Read(smallvec![missing]),
        Err(Stop::Refused((code, remark))) => Outcome::Reply(Response::error(code, remark)),
    })
}

fn send_back(
    broker: &mut Broker,
    sent: &SendBack<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, Stop> {
    let group = check_group_of(broker, sent.group, cx)?;
    if broker.config.permission & PERM_WRITE == 0 {
        let ip = broker.config.address.ip();
        let remark = format!("the broker[{ip}] sending message is forbidden");
        return Err((ResponseCode::NO_PERMISSION, remark).into());
    }
    if group.retry_queue_nums == 0 {
        return Ok(Outcome::Reply(Response::success()));
    }
    let retry_topic = format!("{RETRY_PREFIX}{}", sent.group);
    ensure_writable(broker, &retry_topic, group.retry_queue_nums, cx)?;
    let record = find(sent.at, cx)?;
    let Ok(Record::Message(stored)) = StoredMessage::decode(&record) else {
        return Err(not_found(sent.at));
    };
    let max = sent.max_reconsume_times.unwrap_or(group.retry_max_times);
    // `>=`, so that the last failure is a dead letter at once (apache/rocketmq#2724, #6163).
    let is_dead = sent.level < 0 || stored.reconsume_times >= max;
    let (topic, queue_id, when) = if is_dead {
        let topic = format!("{DLQ_PREFIX}{}", sent.group);
        ensure_writable(broker, &topic, 1, cx)?;
        tracing::debug!(group = sent.group, peer = %peer.address, at = sent.at, "a message is a dead letter");
        (topic, 0, When::Now)
    } else {
        let asked = match sent.level {
            0 => FIRST_LEVEL + i64::from(stored.reconsume_times.max(0)),
            level => level,
        };
        let when = broker.config.delay_levels.level(asked);
        let when = when.map_or(When::Now, When::Level);
        let queues = broker.topics.get(&retry_topic);
        let queues = queues.map_or(1, |topic| topic.config.write_queue_nums.max(1));
        // The queue that the position picks is as good as any, and the same after a repeat.
        (
            retry_topic,
            (sent.at as u64 % u64::from(queues)) as u32,
            when,
        )
    };
    let copy = Copy {
        stored: &stored,
        topic: &topic,
        queue_id,
        when,
        is_dead,
        origin_message_id: sent.origin_message_id,
    };
    let end = store(broker, &copy, cx)?;
    Ok(Outcome::Append(Acknowledgement {
        end,
        wait_flush: true,
        header: ResponseHeader::None,
    }))
}

/// The group's settings; made where groups may be made.
fn check_group_of(
    broker: &mut Broker,
    name: &str,
    cx: &mut Context<'_>,
) -> Result<Rc<Group>, Refusal> {
    let is_name = check_group(name).is_ok();
    let group = is_name
        .then(|| broker.groups.find_or_create(&broker.config, name, cx))
        .flatten();
    group.ok_or_else(|| {
        let remark = format!("subscription group not exist, {name}");
        (ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    })
}

fn ensure_writable(
    broker: &mut Broker,
    topic: &str,
    queues: u32,
    cx: &mut Context<'_>,
) -> Result<(), Refusal> {
    broker.topics.ensure_group_topic(topic, queues, cx);
    match broker.topics.get(topic) {
        None => Err((
            ResponseCode::SYSTEM_ERROR,
            format!("topic[{topic}] not exist"),
        )),
        Some(found) if found.config.perm & PERM_WRITE == 0 => Err((
            ResponseCode::NO_PERMISSION,
            format!("the topic[{topic}] sending message is forbidden"),
        )),
        Some(_) => Ok(()),
    }
}

fn not_found(at: i64) -> Stop {
    let remark = format!("look message by offset failed, {at}");
    Stop::Refused((ResponseCode::SYSTEM_ERROR, remark))
}

/// The message at a place that the client names.
fn find(at: i64, cx: &Context<'_>) -> Result<bytes::Bytes, Stop> {
    let place = PhysicalOffset(u64::try_from(at).map_err(|_| not_found(at))?);
    let (start, end) = cx.store.log_bounds();
    if place < start || place >= end {
        return Err(not_found(at));
    }
    cx.store.record_at(place, cx.fetched).map_err(Stop::Missing)
}

/// What is stored.
struct Copy<'a> {
    stored: &'a StoredMessage<'a>,
    topic: &'a str,
    queue_id: u32,
    when: When,
    is_dead: bool,
    origin_message_id: &'a str,
}

/// Stores the copy with the properties that say where it came from, as far as they aren't there already.
fn store(
    broker: &mut Broker,
    copy: &Copy<'_>,
    cx: &mut Context<'_>,
) -> Result<PhysicalOffset, Refusal> {
    let stored = copy.stored;
    let encoded = stored.properties;
    let mut kept = String::with_capacity(encoded.len() + 256);
    properties::copy_without(
        encoded,
        &[name::DELAY, name::REAL_TOPIC, name::REAL_QUEUE_ID],
        &mut kept,
    );
    let mut add_missing = |key: &str, value: &str| {
        if properties::get(encoded, key).is_none() {
            properties::append(&mut kept, key, value);
        }
    };
    add_missing(name::RETRY_TOPIC, stored.topic);
    let own_id = offset_message_id(broker.config.address, stored.physical_offset);
    let origin_id = match copy.origin_message_id {
        "" => own_id.as_str(),
        id => id,
    };
    add_missing(name::ORIGIN_MESSAGE_ID, origin_id);
    if copy.is_dead {
        let origin = properties::get(encoded, name::RETRY_TOPIC).unwrap_or(stored.topic);
        let id = properties::get(encoded, name::ORIGIN_MESSAGE_ID).unwrap_or(origin_id);
        add_missing(name::DLQ_ORIGIN_TOPIC, origin);
        add_missing(name::DLQ_ORIGIN_MESSAGE_ID, id);
    }
    if let When::Level(level) = copy.when {
        properties::append(&mut kept, name::DELAY, itoa::Buffer::new().format(level));
    }
    let parked = delay::park(copy.when, copy.topic, copy.queue_id, &mut kept, broker, cx);
    drop_over_limit(&mut kept);
    let message = NewMessage {
        topic: copy.topic,
        queue_id: copy.queue_id,
        properties: &kept,
        tags_code: hash::tags_code(stored.tag()),
        reconsume_times: stored.reconsume_times.saturating_add(1),
        ..internal::copy_of(stored, &broker.config)
    };
    let appended = match parked {
        Some(parked) => cx
            .store
            .append(parked.queue, &parked.message(message), cx.now)
            .map_err(NotStored::from),
        None => internal::append(broker, &message, cx),
    };
    match appended {
        Ok(appended) => Ok(appended.end),
        Err(NotStored::Store(error)) => Err(super::send::append_refusal(error)),
        Err(error) => Err((ResponseCode::SYSTEM_ERROR, error.to_string())),
    }
}

/// A message whose properties leave no room for those that are added loses the added ones which only tools read, so
/// that it can be retried at all.
fn drop_over_limit(kept: &mut String) {
    for key in [
        name::DLQ_ORIGIN_MESSAGE_ID,
        name::DLQ_ORIGIN_TOPIC,
        name::ORIGIN_MESSAGE_ID,
        name::CLUSTER,
        name::MSG_REGION,
        name::TRACE_ON,
    ] {
        if kept.len() > crate::limits::PROPERTIES_BYTES_MAX {
            properties::remove(kept, key);
        }
    }
}
