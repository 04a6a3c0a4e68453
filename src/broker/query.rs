//! 29, 30, 31, 32, 33: offsets of a queue, by time, and messages by id.
//!
//! What isn't in memory is asked for with `Outcome::Read`, and the request runs again from its start with all that
//! was read for it so far.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/AdminBrokerProcessor.java`, `QueryMessageProcessor.java`,
//! `store/.../ConsumeQueue.java` `binarySearchInQueueByTime`.

use super::{Context, Outcome};
use crate::ids::{PhysicalOffset, QueueIndex, QueueOffset};
use crate::limits::PULL_ENTRIES_EXAMINED_MAX;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::message::{RECORD_OVERHEAD_BYTES, Record, StoredMessage, store_timestamp_of};
use crate::protocol::response::{Response, ResponseHeader};
use crate::storage::{Entry, Missing, QueueBounds};
use smallvec::smallvec;

/// Bytes of a record in which its store timestamp lies, whatever its hosts. No record is shorter.
const START_BYTES: u32 = RECORD_OVERHEAD_BYTES as u32;

/// Why there is no answer yet, or none at all.
enum Stop {
    Missing(Missing),
    Field(FieldError),
    /// Code 1 with this text.
    Refused(String),
}

impl From<FieldError> for Stop {
    fn from(error: FieldError) -> Self {
        Stop::Field(error)
    }
}

impl From<Missing> for Stop {
    fn from(missing: Missing) -> Self {
        Stop::Missing(missing)
    }
}

fn outcome(result: Result<Response, Stop>) -> Result<Outcome, FieldError> {
    match result {
        Ok(response) => Ok(Outcome::Reply(response)),
        Err(Stop::Missing(missing)) => Ok(Outcome::Read(smallvec![missing])),
        Err(Stop::Field(error)) => Err(error),
        Err(Stop::Refused(remark)) => {
            let response = Response::error(ResponseCode::SYSTEM_ERROR, remark);
            Ok(Outcome::Reply(response))
        }
    }
}

fn offset_response(offset: QueueOffset) -> Response {
    let offset = i64::try_from(offset.0).unwrap_or(i64::MAX);
    Response::with_header(ResponseHeader::Offset(offset))
}

/// The queue that a request names; `None` where it has never been opened. Apache answers for every name, and so a
/// question creates nothing here.
fn find_queue(
    command: &Command<'_>,
    cx: &Context<'_>,
) -> Result<Option<(QueueIndex, QueueBounds)>, FieldError> {
    let topic = command.require_text("topic")?;
    let queue_id = u32::try_from(command.require_i32("queueId")?).ok();
    let queue = queue_id.and_then(|id| cx.store.queue(topic, id));
    Ok(queue.map(|queue| (queue, cx.store.bounds(queue))))
}

/// Code 30: the offset that the next message gets; 0 without a queue.
pub fn max_offset(command: &Command<'_>, cx: &Context<'_>) -> Result<Outcome, FieldError> {
    let bounds = find_queue(command, cx)?.map(|(_, bounds)| bounds);
    let offset = bounds.unwrap_or_default().max;
    Ok(Outcome::Reply(offset_response(offset)))
}

/// Code 31: the offset of the oldest message; 0 without a queue.
pub fn min_offset(command: &Command<'_>, cx: &Context<'_>) -> Result<Outcome, FieldError> {
    let bounds = find_queue(command, cx)?.map(|(_, bounds)| bounds);
    let offset = bounds.unwrap_or_default().min;
    Ok(Outcome::Reply(offset_response(offset)))
}

/// Code 29: the offset at a store time.
pub fn search_offset(command: &Command<'_>, cx: &Context<'_>) -> Result<Outcome, FieldError> {
    outcome(search(command, cx))
}

/// `LOWER`: the first message stored at the time or later, the end of the queue if there is none. `UPPER`: the last
/// message stored at the time or earlier, the start of the queue if there is none. Of messages with equal stamps
/// `LOWER` is the first and `UPPER` the last (apache/rocketmq#2661, #5752).
fn search(command: &Command<'_>, cx: &Context<'_>) -> Result<Response, Stop> {
    let timestamp = command.require_i64("timestamp")?;
    let is_upper = command
        .text("boundaryType")
        .is_some_and(|boundary| boundary.eq_ignore_ascii_case("UPPER"));
    let Some((queue, bounds)) = find_queue(command, cx)? else {
        return Ok(offset_response(QueueOffset(0)));
    };
    // One past the last message that counts as earlier.
    let split = partition(queue, bounds, cx, |stored| {
        let stored = i64::try_from(stored).unwrap_or(i64::MAX);
        stored < timestamp || is_upper && stored == timestamp
    })?;
    let offset = if is_upper && split > bounds.min {
        QueueOffset(split.0 - 1)
    } else {
        split
    };
    Ok(offset_response(offset))
}

/// The first message stored at the time or later, the end of the queue if there is none.
pub(super) fn offset_at(
    queue: QueueIndex,
    bounds: QueueBounds,
    timestamp: i64,
    cx: &Context<'_>,
) -> Result<QueueOffset, Missing> {
    partition(queue, bounds, cx, |stored| {
        i64::try_from(stored).unwrap_or(i64::MAX) < timestamp
    })
}

/// The first offset whose message is not earlier. Store times grow with the offset, but for steps of the clock.
fn partition(
    queue: QueueIndex,
    bounds: QueueBounds,
    cx: &Context<'_>,
    is_earlier: impl Fn(u64) -> bool,
) -> Result<QueueOffset, Missing> {
    let (mut low, mut high) = (bounds.min.0, bounds.max.0);
    while low < high {
        let middle = low + (high - low) / 2;
        let entry = cx
            .store
            .entry(queue, QueueOffset(middle), cx.fetched)
            .map_err(|_| missing_entries(queue, low, middle, high))?;
        let (log_start, _) = cx.store.log_bounds();
        let is_gone = entry.is_blank() || entry.at < log_start;
        let earlier = is_gone || is_earlier(store_time_of(entry, cx)?);
        if earlier {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(QueueOffset(low))
}

/// The entry in the middle, with all others of the range as soon as they are few enough, so that the last ten or so
/// steps of a search cost one read.
fn missing_entries(queue: QueueIndex, low: u64, middle: u64, high: u64) -> Missing {
    let (from, count) = if high - low <= u64::from(PULL_ENTRIES_EXAMINED_MAX) {
        (low, (high - low) as u32)
    } else {
        (middle, 1)
    };
    Missing::Entries {
        queue,
        from: QueueOffset(from),
        count,
    }
}

/// Store time of a message in its queue, in milliseconds.
pub(super) fn store_time(queue: QueueIndex, offset: u64, cx: &Context<'_>) -> Result<u64, Missing> {
    let entry = cx.store.entry(queue, QueueOffset(offset), cx.fetched)?;
    store_time_of(entry, cx)
}

/// Of the record's start where that is in memory; what has to be read is read whole, since only whole records can
/// be checked. 0 where the message is gone.
fn store_time_of(entry: Entry, cx: &Context<'_>) -> Result<u64, Missing> {
    if entry.is_blank() || entry.at < cx.store.log_bounds().0 {
        return Ok(0);
    }
    let in_memory = cx.store.record(entry.at, START_BYTES, cx.fetched);
    let record = in_memory.or_else(|_| cx.store.record(entry.at, entry.bytes, cx.fetched))?;
    // Bytes of this length always have the field.
    Ok(store_timestamp_of(&record).unwrap_or(0))
}

/// Code 32: the store time of the oldest message, -1 if there is none.
pub fn earliest_store_time(command: &Command<'_>, cx: &Context<'_>) -> Result<Outcome, FieldError> {
    outcome(earliest(command, cx))
}

fn earliest(command: &Command<'_>, cx: &Context<'_>) -> Result<Response, Stop> {
    let timestamp = match find_queue(command, cx)? {
        Some((queue, bounds)) if bounds.min < bounds.max => {
            let entry = cx.store.entry(queue, bounds.min, cx.fetched)?;
            if entry.is_blank() || entry.at < cx.store.log_bounds().0 {
                -1
            } else {
                i64::try_from(store_time_of(entry, cx)?).unwrap_or(i64::MAX)
            }
        }
        _ => -1,
    };
    let fields = vec![("timestamp", timestamp.to_string())];
    Ok(Response::with_header(ResponseHeader::Fields(fields)))
}

/// Code 33: the message at a physical offset.
///
/// Tools take any 32 digits for a message id and ask for what they decode from it, so that anything but the exact
/// start of a message has to fail cleanly.
pub fn view_message(command: &Command<'_>, cx: &Context<'_>) -> Result<Outcome, FieldError> {
    outcome(view(command, cx))
}

fn view(command: &Command<'_>, cx: &Context<'_>) -> Result<Response, Stop> {
    let offset = command.require_i64("offset")?;
    let refused = || Stop::Refused(format!("can not find message by the offset, {offset}"));
    let at = PhysicalOffset(u64::try_from(offset).map_err(|_| refused())?);
    let (start, end) = cx.store.log_bounds();
    if at < start || at >= end {
        return Err(refused());
    }
    let record = cx.store.record_at(at, cx.fetched)?;
    if !is_message(&record) {
        return Err(refused());
    }
    Ok(Response::with_body(record))
}

/// A whole message whose body is as it was stored; the store has checked size and place.
pub(super) fn is_message(record: &[u8]) -> bool {
    match StoredMessage::decode(record) {
        Ok(Record::Message(message)) => {
            message.bytes.len() == record.len() && message.check_body_crc().is_ok()
        }
        Ok(Record::Blank(_)) | Err(_) => false,
    }
}
