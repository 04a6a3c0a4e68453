//! 200051, 200053: what becomes of a message that was popped, by its handle.
//!
//! A handle has eight parts: first offset of its pop, time of the pop, invisible time, revive queue, kind of topic,
//! broker name, queue, offset. The time of the pop tells a handle from older ones of the same message.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/AckMessageProcessor.java`,
//! `ChangeInvisibleTimeProcessor.java`.

use super::{commit, wake, windows};
use crate::broker::topics::Refusal;
use crate::broker::{Broker, Context, Outcome};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::{Response, ResponseHeader};
use std::rc::Rc;

/// Parts of a handle that are used here.
struct Handle {
    popped_ms: u64,
    revive_queue: i64,
}

impl Handle {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(' ').collect();
        if parts.len() < 8 {
            return None;
        }
        Some(Self {
            popped_ms: parts[1].parse().ok()?,
            revive_queue: parts[3].parse().ok()?,
        })
    }
}

/// A message that a consumer speaks of.
struct Receipt {
    group: String,
    topic: String,
    queue_id: u32,
    offset: u64,
    handle: Handle,
}

fn refuse<T>(code: ResponseCode, remark: String) -> Result<T, Refusal> {
    Err((code, remark))
}

fn read(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Result<Receipt, Refusal>, FieldError> {
    let group = command.require_text("consumerGroup")?;
    let topic = command.require_text("topic")?;
    let queue_id = command.require_i32("queueId")?;
    let text = command.require_text("extraInfo")?;
    let offset = command.require_i64("offset")?;
    Ok(check(broker, (group, topic, queue_id, offset), text, cx))
}

fn check(
    broker: &mut Broker,
    (group, topic, queue_id, offset): (&str, &str, i32, i64),
    text: &str,
    cx: &mut Context<'_>,
) -> Result<Receipt, Refusal> {
    let Some(found) = broker.topics.get(topic) else {
        let remark = format!("topic[{topic}] not exist, apply first please!");
        return refuse(ResponseCode::TOPIC_NOT_EXIST, remark);
    };
    let queues = found.config.read_queue_nums;
    let id = u32::try_from(queue_id).ok().filter(|id| *id < queues);
    let Some(id) = id else {
        let remark = format!("queueId[{queue_id}] is illegal, topic[{topic}] has {queues} queues");
        return refuse(ResponseCode::MESSAGE_ILLEGAL, remark);
    };
    let Some(handle) = Handle::parse(text) else {
        let remark = format!("extraInfo is no receipt handle: {text:.80}");
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    };
    let bounds = broker
        .topics
        .queue(topic, id, cx.store)
        .map(|queue| cx.store.bounds(queue));
    let offset = u64::try_from(offset).ok().zip(bounds);
    match offset {
        Some((offset, bounds)) if offset >= bounds.min.0 && offset <= bounds.max.0 => Ok(Receipt {
            group: group.to_owned(),
            topic: topic.to_owned(),
            queue_id: id,
            offset,
            handle,
        }),
        _ => {
            let remark = format!("there is no such offset in topic[{topic}] queue {id}");
            refuse(ResponseCode::NO_MESSAGE, remark)
        }
    }
}

/// 200051. A handle that is no longer its message's is answered 0 too: consumers ask twice.
pub fn acknowledge(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let response = match read(broker, command, cx)? {
        Ok(receipt) => {
            let (group, topic) = (&receipt.group, &receipt.topic);
            if let Some(key) = broker.pops.windows.find(group, topic, receipt.queue_id) {
                let handle = (receipt.offset, receipt.handle.popped_ms);
                acknowledge_one(broker, key, handle, cx);
            }
            Response::success()
        }
        Err((code, remark)) => Response::error(code, remark),
    };
    Ok(Outcome::Reply(response))
}

/// The message of a window at an offset, if it was popped at that time.
pub(super) fn acknowledge_one(
    broker: &mut Broker,
    key: windows::Key,
    (offset, popped_ms): (u64, u64),
    cx: &mut Context<'_>,
) {
    let windows = &mut broker.pops.windows;
    let had_no_room = windows.room(key) == 0 || windows.get(key).is_locked();
    if windows.acknowledge(key, offset, popped_ms) {
        cx.counters.pops_acknowledged += 1;
        commit(broker, key, cx);
        if had_no_room {
            wake_window(broker, key, cx);
        }
    }
}

/// Pops that waited for a place in the window, or for the end of its lock.
pub(super) fn wake_window(broker: &mut Broker, key: windows::Key, cx: &mut Context<'_>) {
    let window = broker.pops.windows.get(key);
    let (topic, queue_id): (Rc<str>, u32) = (window.topic.clone(), window.queue_id);
    wake(broker, &topic, queue_id, cx);
}

/// 200053. The answer tells the parts of the handle that counts from here on.
pub fn change_invisible_time(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let invisible_ms = command.require_i64("invisibleTime")?;
    let invisible_ms = u64::try_from(invisible_ms).unwrap_or(0);
    let receipt = match read(broker, command, cx)? {
        Ok(receipt) => receipt,
        Err((code, remark)) => return Ok(Outcome::Reply(Response::error(code, remark))),
    };
    let windows = &mut broker.pops.windows;
    let key = windows.find(&receipt.group, &receipt.topic, receipt.queue_id);
    let (popped_ms, now_ms) = (receipt.handle.popped_ms, cx.now.wall_ms);
    let ends_us = cx.now.after_ms(invisible_ms);
    let is_changed =
        key.is_some_and(|key| windows.change(key, receipt.offset, popped_ms, now_ms, ends_us));
    if !is_changed {
        let remark = "the message is not with this consumer any more";
        let response = Response::error(ResponseCode::NO_MESSAGE, remark);
        return Ok(Outcome::Reply(response));
    }
    let fields = vec![
        ("popTime", now_ms.to_string()),
        ("invisibleTime", invisible_ms.to_string()),
        ("reviveQid", receipt.handle.revive_queue.to_string()),
    ];
    let response = Response::with_header(ResponseHeader::Fields(fields));
    Ok(Outcome::Reply(response))
}
