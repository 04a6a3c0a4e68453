//! 29, 30, 31, 32, 33: offsets of a queue, by time, and messages by id.

use super::{Broker, Context, Outcome};
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::message::{Record, StoredMessage, store_timestamp_of};
use crate::protocol::response::{Response, ResponseHeader};
use crate::storage::Missing;
use smallvec::smallvec;

/// The queue named by topic and queueId; `None` where it has never had a message.
fn queue(
    broker: &Broker,
    command: &Command<'_>,
    cx: &Context<'_>,
) -> Result<Option<QueueIndex>, FieldError> {
    let topic = command.require_text("topic")?;
    let id = command.require_i32("queueId")?;
    let known = broker.topics.get(topic).is_some();
    Ok(u32::try_from(id)
        .ok()
        .filter(|_| known)
        .and_then(|id| cx.store.queue(topic, id)))
}

fn offset(value: u64) -> Outcome {
    Outcome::Reply(Response::with_header(ResponseHeader::Offset(value as i64)))
}

pub fn max_offset(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let queue = queue(broker, command, cx)?;
    Ok(offset(queue.map_or(0, |q| cx.store.bounds(q).max.0)))
}

pub fn min_offset(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let queue = queue(broker, command, cx)?;
    Ok(offset(queue.map_or(0, |q| cx.store.bounds(q).min.0)))
}

/// Store time of a message of a queue.
pub fn store_time(queue: QueueIndex, at: u64, cx: &Context<'_>) -> Result<u64, Missing> {
    let entry = cx.store.entry(queue, QueueOffset(at), cx.fetched)?;
    let record = cx.store.record(entry.at, entry.bytes, cx.fetched)?;
    // A record that can't be read sorts first: a search then never skips what is behind it.
    Ok(store_timestamp_of(&record).unwrap_or(0))
}

/// Code 29. LOWER: the first message stored at or after the time, the end if there is none. UPPER: the last one
/// stored at or before it.
pub fn search_offset(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let time = command.require_i64("timestamp")?.max(0) as u64;
    let upper = command
        .text("boundaryType")
        .is_some_and(|t| t.eq_ignore_ascii_case("UPPER"));
    let Some(queue) = queue(broker, command, cx)? else {
        return Ok(offset(0));
    };
    let bounds = cx.store.bounds(queue);
    let (mut low, mut high) = (bounds.min.0, bounds.max.0);
    while low < high {
        let middle = low + (high - low) / 2;
        let stored = match store_time(queue, middle, cx) {
            Ok(stored) => stored,
            Err(missing) => return Ok(Outcome::Read(smallvec![missing])),
        };
        let before = if upper { stored <= time } else { stored < time };
        if before {
            low = middle + 1
        } else {
            high = middle
        }
    }
    Ok(offset(if upper {
        low.saturating_sub(1).max(bounds.min.0)
    } else {
        low
    }))
}

pub fn earliest_store_time(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let queue = queue(broker, command, cx)?;
    let bounds = queue.map(|q| (q, cx.store.bounds(q)));
    let time = match bounds.filter(|(_, b)| b.min < b.max) {
        None => -1,
        Some((queue, bounds)) => match store_time(queue, bounds.min.0, cx) {
            Ok(stored) => stored as i64,
            Err(missing) => return Ok(Outcome::Read(smallvec![missing])),
        },
    };
    let fields = vec![("timestamp", time.to_string())];
    Ok(Outcome::Reply(Response::with_header(
        ResponseHeader::Fields(fields),
    )))
}

/// Code 33. The offset must be exactly the start of a record: ids of clients look alike, and must fail cleanly.
pub fn view_message(command: &Command<'_>, cx: &mut Context<'_>) -> Result<Outcome, FieldError> {
    let asked = command.require_i64("offset")?;
    let none = || {
        let remark = format!("can not find message by the offset, {asked}");
        Ok(Outcome::Reply(Response::error(
            ResponseCode::SYSTEM_ERROR,
            remark,
        )))
    };
    let (start, end) = cx.store.log_bounds();
    let Ok(at) = u64::try_from(asked).map(PhysicalOffset) else {
        return none();
    };
    if at < start || at >= end {
        return none();
    }
    let record = match cx.store.record_at(at, cx.fetched) {
        Ok(record) => record,
        Err(missing) => return Ok(Outcome::Read(smallvec![missing])),
    };
    match StoredMessage::decode(&record) {
        Ok(Record::Message(message)) if message.physical_offset == at => {
            Ok(Outcome::Reply(Response::with_body(record)))
        }
        _ => none(),
    }
}
