//! 222, 314, 303: setting offsets of groups, and where they stand in time.
//!
//! 222 is answered by setting offsets here, not by telling the consumers (220): they learn of it at their next pull,
//! which is answered 21, so that members that are away, or of any language, follow too.
//!
//! Source: apache/rocketmq 5.3.x `AdminBrokerProcessor` `resetOffset`, `cloneGroupOffset`, `queryConsumeTimeSpan`.

use super::{Answer, invalid, refuse};
use crate::broker::{Broker, Context, Outcome, holds, query};
use crate::ids::QueueOffset;
use crate::limits::{RESETS_MAX, TOPIC_QUEUES_MAX};
use crate::protocol::bodies::{self, MessageQueue, encode_queue_offsets};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::Response;
use crate::storage::{Missing, QueueBounds};
use serde_json::json;
use smallvec::SmallVec;

/// What 222 asks for.
struct Wanted<'a> {
    group: &'a str,
    topic: &'a str,
    /// `None`: all queues.
    queue_id: Option<u32>,
    offset: Option<i64>,
    /// Negative: the end.
    timestamp: i64,
    /// False moves no queue forward.
    is_force: bool,
}

impl<'a> Wanted<'a> {
    fn decode(command: &Command<'a>) -> Result<Self, FieldError> {
        let queue_id = command.i32("queueId")?.unwrap_or(-1);
        Ok(Self {
            group: command.require_text("group")?,
            topic: command.require_text("topic")?,
            queue_id: u32::try_from(queue_id).ok(),
            offset: command.i64("offset")?.filter(|offset| *offset >= 0),
            timestamp: command.require_i64("timestamp")?,
            is_force: command.bool("isForce").unwrap_or(true),
        })
    }
}

/// 222.
pub fn reset_offsets(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let wanted = Wanted::decode(command)?;
    let Some(topic) = broker.topics.get(wanted.topic) else {
        let remark = format!("Topic {} does not exist", wanted.topic);
        return refuse(ResponseCode::TOPIC_NOT_EXIST, remark);
    };
    if !broker.groups.contains(wanted.group) {
        let remark = format!("Group {} does not exist", wanted.group);
        return refuse(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark);
    }
    let queues = topic.config.read_queue_nums;
    let range = match wanted.queue_id {
        Some(queue_id) if queue_id >= queues => {
            return invalid(format!(
                "queueId is {queue_id}, the topic has {queues} queues"
            ));
        }
        Some(queue_id) => queue_id..queue_id + 1,
        None => 0..queues,
    };
    let mut found = Vec::new();
    let mut missing: SmallVec<[Missing; 4]> = SmallVec::new();
    for queue_id in range {
        match new_offset(&wanted, queue_id, cx) {
            Ok(Some(offset)) => found.push((queue_id, offset.0)),
            Ok(None) => {
                let remark = format!(
                    "Target offset {} not in consume queue range of queue {queue_id}",
                    wanted.offset.unwrap_or_default()
                );
                return refuse(ResponseCode::SYSTEM_ERROR, remark);
            }
            Err(one) => missing.push(one),
        }
    }
    if !missing.is_empty() {
        return Ok(Outcome::Read(missing));
    }
    if !wanted.is_force {
        found.retain(|(queue_id, offset)| {
            let now = broker.offsets.get(wanted.group, wanted.topic, *queue_id);
            now.is_none_or(|now| *offset < now)
        });
    }
    apply(broker, &wanted, &found, cx)
}

/// `None`: the offset that was asked for lies outside the queue.
fn new_offset(
    wanted: &Wanted<'_>,
    queue_id: u32,
    cx: &Context<'_>,
) -> Result<Option<QueueOffset>, Missing> {
    let queue = cx.store.queue(wanted.topic, queue_id);
    let bounds = queue
        .map(|queue| cx.store.bounds(queue))
        .unwrap_or_default();
    if let (Some(offset), Some(_)) = (wanted.offset, wanted.queue_id) {
        let offset = QueueOffset(offset.unsigned_abs());
        let is_inside = bounds.min <= offset && offset <= bounds.max;
        return Ok(is_inside.then_some(offset));
    }
    match queue {
        Some(queue) if wanted.timestamp >= 0 => {
            query::offset_at(queue, bounds, wanted.timestamp, cx).map(Some)
        }
        _ => Ok(Some(bounds.max)),
    }
}

fn apply(
    broker: &mut Broker,
    wanted: &Wanted<'_>,
    offsets: &[(u32, u64)],
    cx: &mut Context<'_>,
) -> Answer {
    let now_us = cx.now.monotonic_us;
    for (queue_id, offset) in offsets {
        let (group, topic) = (wanted.group, wanted.topic);
        let has_room = broker.resets.put(group, topic, *queue_id, *offset)
            && broker
                .offsets
                .commit(group, topic, *queue_id, *offset, now_us);
        if !has_room {
            let remark =
                format!("there is no room for further offsets, {RESETS_MAX} resets wait at most");
            return refuse(ResponseCode::SYSTEM_ERROR, remark);
        }
    }
    tracing::info!(
        group = wanted.group,
        topic = wanted.topic,
        ?offsets,
        "offsets reset"
    );
    holds::answer_resets(broker, wanted.group, wanted.topic, cx);
    let body = encode_queue_offsets(&broker.config.broker_name, wanted.topic, offsets);
    Ok(Outcome::Reply(Response::with_body(body)))
}

/// 314: a group takes the offsets of another one, for a topic or for all.
pub fn clone_offsets(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let source = command.require_text("srcGroup")?;
    let target = command.require_text("destGroup")?;
    if !broker.groups.contains(target) {
        let remark = format!("Group {target} does not exist");
        return refuse(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark);
    }
    let named = command
        .text("topic")
        .filter(|topic| !topic.trim().is_empty());
    let topics: Vec<String> = match named {
        Some(topic) => vec![topic.to_owned()],
        None => broker
            .offsets
            .topics_of(source)
            .into_iter()
            .map(str::to_owned)
            .collect(),
    };
    for topic in topics
        .iter()
        .filter(|topic| broker.topics.get(topic).is_some())
    {
        for queue_id in 0..TOPIC_QUEUES_MAX {
            if let Some(offset) = broker.offsets.get(source, topic, queue_id) {
                broker
                    .offsets
                    .commit(target, topic, queue_id, offset, cx.now.monotonic_us);
            }
        }
    }
    Ok(Outcome::Reply(Response::success()))
}

/// 303: for each queue the store times of its first, its last and the group's last message, and how far behind the
/// group is, in milliseconds.
pub fn time_spans(broker: &Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let topic = command.require_text("topic")?;
    let group = command.require_text("group")?;
    let Some(config) = broker.topics.get(topic).map(|topic| &topic.config) else {
        let remark = format!("topic[{topic}] not exist");
        return refuse(ResponseCode::TOPIC_NOT_EXIST, remark);
    };
    let mut times = super::stats::StoreTimes::default();
    let mut spans = Vec::new();
    for queue_id in 0..config.write_queue_nums {
        let queue = cx.store.queue(topic, queue_id);
        let bounds = queue
            .map(|queue| cx.store.bounds(queue))
            .unwrap_or_default();
        let QueueBounds { min, max } = bounds;
        let mut time_of = |offset: u64| match queue {
            Some(queue) if (min.0..max.0).contains(&offset) => times.of(queue, offset, cx),
            _ => 0,
        };
        let consumed = broker.offsets.get(group, topic, queue_id).unwrap_or(0);
        let first_ms = time_of(min.0);
        let last_ms = time_of(max.0.saturating_sub(1));
        let consumed_ms = match consumed.checked_sub(1) {
            Some(last) => time_of(last),
            None => first_ms,
        };
        let delay_ms = if consumed < max.0 {
            let next_ms = time_of(consumed.max(min.0));
            cx.now.wall_ms.saturating_sub(next_ms)
        } else {
            0
        };
        spans.push(
            json!({"consumeTimeStamp": consumed_ms, "delayTime": delay_ms, "maxTimeStamp": last_ms,
            "messageQueue": MessageQueue::new(&broker.config.broker_name, topic, queue_id),
            "minTimeStamp": first_ms}),
        );
    }
    Ok(times.answer(|| bodies::encode(&json!({"consumeTimeSpanSet": spans}))))
}
