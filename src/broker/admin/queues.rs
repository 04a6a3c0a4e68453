//! 321: entries of a consume queue.
//!
//! Source: apache/rocketmq 5.3.x `AdminBrokerProcessor#queryConsumeQueue`, body `QueryConsumeQueueResponseBody`.

use super::connections::subscription_data;
use super::{Answer, refuse};
use crate::broker::{Broker, Context, Outcome};
use crate::ids::QueueOffset;
use crate::limits::PULL_ENTRIES_EXAMINED_MAX;
use crate::protocol::bodies;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::Command;
use crate::protocol::response::Response;
use crate::storage::Missing;
use serde_json::json;
use smallvec::smallvec;

/// `eval` says whether the group's subscription may want the message, by the tags code alone.
pub fn entries(broker: &Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let topic = command.text("topic").unwrap_or_default();
    let queue_id = command.require_i32("queueId")?;
    let queue = u32::try_from(queue_id)
        .ok()
        .and_then(|id| cx.store.queue(topic, id));
    let Some(queue) = queue else {
        let remark = format!("{queue_id}@{topic} is not exist!");
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    };
    let bounds = cx.store.bounds(queue);
    let group = command.text("consumerGroup").unwrap_or_default();
    let subscription = broker
        .clients
        .group(group, topic)
        .and_then(|group| group.subscription);
    let count = command
        .i32("count")?
        .unwrap_or(0)
        .clamp(0, PULL_ENTRIES_EXAMINED_MAX as i32);
    let from = u64::try_from(command.require_i64("index")?)
        .unwrap_or(0)
        .max(bounds.min.0);
    let end = bounds.max.0.min(from.saturating_add(count as u64));
    let mut data = Vec::new();
    for at in from..end {
        let Ok(entry) = cx.store.entry(queue, QueueOffset(at), cx.fetched) else {
            let (from, count) = (QueueOffset(at), (end - at) as u32);
            return Ok(Outcome::Read(smallvec![Missing::Entries {
                queue,
                from,
                count
            }]));
        };
        let eval = subscription
            .as_ref()
            .is_some_and(|s| s.filter.may_match(entry.tags_code));
        data.push(
            json!({"eval": eval, "physicOffset": entry.at.0, "physicSize": entry.bytes,
            "tagsCode": entry.tags_code}),
        );
    }
    let body = json!({"maxQueueIndex": bounds.max.0, "minQueueIndex": bounds.min.0, "queueData": data,
        "subscriptionData": subscription.map(|subscription| subscription_data(&subscription))});
    Ok(Outcome::Reply(Response::with_body(bodies::encode(&body))))
}
