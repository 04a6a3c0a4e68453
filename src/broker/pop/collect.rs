//! What a pop takes: the queues in turn, of each what matches, up to the number that was asked for.

use super::PopRequest;
use super::windows::{self, Window};
use crate::broker::pull::{self, Looked, PullRequest};
use crate::broker::topics::Refusal;
use crate::broker::{Broker, Context};
use crate::ids::{QueueIndex, QueueOffset};
use crate::limits::{POP_IN_FLIGHT_MAX, POP_QUEUES_MAX, PULL_BYTES_MAX};
use crate::protocol::codes::ResponseCode;
use crate::protocol::message::queue_offset_of;
use crate::protocol::names::RETRY_PREFIX;
use crate::protocol::response::{Body, Response, ResponseHeader};
use crate::stats::Delivered;
use crate::storage::Missing;
use bytes::Bytes;
use smallvec::SmallVec;
use std::fmt::Write;
use std::rc::Rc;

/// Every so many pops look at the retry topic first; the others look there with what is left.
const RETRY_FIRST_EVERY: u64 = 5;
/// The revive queue of messages that are popped in order.
const ORDERED_REVIVE_QUEUE: i64 = 999;

/// What a look at all queues came to.
pub(super) enum Collected {
    Answer(Box<Response>),
    Missing(SmallVec<[Missing; 4]>),
    /// Nothing so far, but not all was looked at.
    More,
    Nothing,
}

/// The messages of one pop.
#[derive(Default)]
struct Gathered {
    segments: SmallVec<[Bytes; 4]>,
    bytes: usize,
    messages: u32,
    rest: u64,
    start_offsets: String,
    offsets: String,
    order_counts: String,
}

/// The queues to look at, in turn.
fn places(broker: &mut Broker, request: &PopRequest) -> Vec<(Rc<str>, u32)> {
    let turn = broker.pops.turn;
    broker.pops.turn += 1;
    let queues_of = |topic: &Rc<str>| {
        let found = broker.topics.get(topic);
        let count = found.map_or(0, |found| found.config.read_queue_nums);
        (0..count).map(move |place| ((u64::from(place) + turn) % u64::from(count)) as u32)
    };
    let topic = &request.base.topic;
    let mut normal: Vec<(Rc<str>, u32)> = match request.queue_id {
        Some(queue_id) => vec![(topic.clone(), queue_id)],
        None => queues_of(topic).map(|id| (topic.clone(), id)).collect(),
    };
    let Some(retry_topic) = request.retry_topic.as_ref().filter(|_| !request.ordered) else {
        return normal;
    };
    let mut retry: Vec<_> = queues_of(retry_topic)
        .map(|id| (retry_topic.clone(), id))
        .collect();
    if turn.is_multiple_of(RETRY_FIRST_EVERY) {
        retry.append(&mut normal);
        return retry;
    }
    normal.append(&mut retry);
    normal
}

pub(super) fn collect(
    broker: &mut Broker,
    request: &PopRequest,
    cx: &mut Context<'_>,
) -> Collected {
    let mut gathered = Gathered::default();
    let mut first_missing = None;
    let mut is_more = false;
    for (topic, queue_id) in places(broker, request) {
        let is_full = gathered.messages >= request.base.messages_max
            || gathered.bytes >= PULL_BYTES_MAX as usize;
        let Some(queue) = broker.topics.queue(&topic, queue_id, cx.store) else {
            continue;
        };
        let key = match window(broker, request, &topic, queue_id, queue, cx) {
            Ok(key) => key,
            Err((code, remark)) if gathered.messages == 0 => {
                return Collected::Answer(Box::new(Response::error(code, remark)));
            }
            Err(_) => break,
        };
        if !is_full {
            match pop_queue(broker, request, (key, queue), &mut gathered, cx) {
                Looked::Missing(missing) => {
                    first_missing.get_or_insert(missing);
                }
                Looked::Refused | Looked::Moved(_) => is_more = true,
                Looked::Found { .. } | Looked::End => {}
            }
        }
        let max = cx.store.bounds(queue).max.0;
        gathered.rest += max.saturating_sub(broker.pops.windows.get(key).next.0);
    }
    if gathered.messages > 0 {
        return Collected::Answer(Box::new(found(request, gathered, cx)));
    }
    match first_missing {
        Some(missing) => Collected::Missing(missing),
        None if is_more => Collected::More,
        None => Collected::Nothing,
    }
}

/// The window of a queue, made where the group has none.
fn window(
    broker: &mut Broker,
    request: &PopRequest,
    topic: &Rc<str>,
    queue_id: u32,
    queue: QueueIndex,
    cx: &mut Context<'_>,
) -> Result<windows::Key, Refusal> {
    let group = &request.base.group;
    let reset = broker.resets.take(group, topic, queue_id);
    if let Some(key) = broker.pops.windows.find(group, topic, queue_id) {
        if let Some(offset) = reset {
            broker.pops.windows.reset(key, QueueOffset(offset));
        }
        return Ok(key);
    }
    let bounds = cx.store.bounds(queue);
    let is_young = broker.config.young_queues_start_at_zero
        && bounds.min == QueueOffset(0)
        && (bounds.max == bounds.min || is_in_memory(queue, bounds.min, cx));
    let at_end = request.starts_at_end && !is_young && *topic == request.base.topic;
    let committed = broker.offsets.get(group, topic, queue_id).map(QueueOffset);
    let first = if at_end { bounds.max } else { bounds.min };
    let next = committed.unwrap_or(first);
    let now_us = cx.now.monotonic_us;
    if committed.is_none()
        && !broker
            .offsets
            .commit(group, topic, queue_id, next.0, now_us)
    {
        let remark = "this shard has no room for the offset of a further queue".to_owned();
        return Err((ResponseCode::SYSTEM_ERROR, remark));
    }
    let window = Window::new(group.clone(), topic.clone(), queue_id, next);
    broker.pops.windows.add(window).ok_or_else(|| {
        let remark = format!(
            "messages of {POP_QUEUES_MAX} queues are with consumers that popped them, the limit of a shard"
        );
        (ResponseCode::SYSTEM_BUSY, remark)
    })
}

fn is_in_memory(queue: QueueIndex, offset: QueueOffset, cx: &Context<'_>) -> bool {
    let entry = cx.store.entry(queue, offset, cx.fetched);
    entry.is_ok_and(|entry| cx.store.record(entry.at, entry.bytes, cx.fetched).is_ok())
}

/// Pops what matches of one queue.
fn pop_queue(
    broker: &mut Broker,
    request: &PopRequest,
    (key, queue): (windows::Key, QueueIndex),
    gathered: &mut Gathered,
    cx: &mut Context<'_>,
) -> Looked {
    let windows = &mut broker.pops.windows;
    let window = windows.get(key);
    if request.ordered && window.has_popped() || window.is_locked() {
        return Looked::End;
    }
    let room = windows.room(key);
    if room == 0 {
        tracing::debug!(
            group = &*request.base.group,
            topic = &*window.topic,
            in_flight = windows.in_flight(),
            limit = POP_IN_FLIGHT_MAX,
            "too many popped messages are not acknowledged"
        );
        return Looked::End;
    }
    let mut pull = PullRequest {
        topic: window.topic.clone(),
        queue_id: window.queue_id,
        queue,
        offset: window.next,
        cursor: window.next,
        messages_max: (request.base.messages_max - gathered.messages).min(room),
        ..request.base.clone()
    };
    let start = window.next;
    let looked = pull::look(&mut pull, cx);
    match &looked {
        Looked::Found { segments, bytes } => {
            let offsets = offsets_of(segments);
            take(broker, request, key, &offsets, gathered, cx);
            gathered.segments.extend(segments.iter().cloned());
            gathered.bytes += bytes;
            broker.pops.windows.get_mut(key).next = pull.cursor;
            let delivered = Delivered {
                group: &pull.group,
                topic: &pull.topic,
                connection: pull.connection,
                queue_id: pull.queue_id,
                offset: start.0,
                next: pull.cursor.0,
                messages: offsets.len() as u32,
                bytes: *bytes,
            };
            cx.counters
                .count_delivered(delivered, None, cx.now.monotonic_us);
        }
        Looked::Moved(next) => broker.pops.windows.reset(key, *next),
        Looked::Refused | Looked::End | Looked::Missing(_) => {
            broker.pops.windows.get_mut(key).next = pull.cursor;
        }
    }
    commit(broker, key, cx);
    looked
}

/// Commits what is done with.
pub(super) fn commit(broker: &mut Broker, key: windows::Key, cx: &Context<'_>) {
    let window = broker.pops.windows.get(key);
    let (group, topic, queue_id) = (&window.group, &window.topic, window.queue_id);
    let floor = window.floor().0;
    if broker.offsets.get(group, topic, queue_id) != Some(floor) {
        let now_us = cx.now.monotonic_us;
        broker.offsets.commit(group, topic, queue_id, floor, now_us);
    }
}

fn offsets_of(segments: &[Bytes]) -> Vec<u64> {
    let mut offsets = Vec::new();
    for segment in segments {
        let mut rest = &segment[..];
        while let Some((offset, bytes)) = queue_offset_of(rest) {
            offsets.push(offset.0);
            rest = rest.get(bytes..).unwrap_or_default();
        }
    }
    offsets
}

/// The messages go to the consumer: they are popped, and named in the answer.
fn take(
    broker: &mut Broker,
    request: &PopRequest,
    key: windows::Key,
    offsets: &[u64],
    gathered: &mut Gathered,
    cx: &Context<'_>,
) {
    let windows = &mut broker.pops.windows;
    let queue_id = windows.get(key).queue_id;
    let is_retry = windows.get(key).topic.starts_with(RETRY_PREFIX);
    let flag = u8::from(is_retry);
    let ends_us = cx.now.after_ms(request.invisible_ms);
    for text in [&mut gathered.start_offsets, &mut gathered.offsets] {
        if !text.is_empty() {
            text.push(';');
        }
    }
    let first = offsets.first().copied().unwrap_or_default();
    let written = write!(gathered.start_offsets, "{flag} {queue_id} {first}")
        .and_then(|()| write!(gathered.offsets, "{flag} {queue_id} "));
    written.expect("a string takes all");
    for (place, offset) in offsets.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        write!(gathered.offsets, "{comma}{offset}").expect("a string takes all");
        let returned = windows.get(key).returned(*offset);
        if request.ordered && returned > 0 {
            let semicolon = if gathered.order_counts.is_empty() {
                ""
            } else {
                ";"
            };
            write!(
                gathered.order_counts,
                "{semicolon}{flag} qo{queue_id}%{offset} {returned}"
            )
            .expect("a string takes all");
        }
        windows.pop(key, *offset, cx.now.wall_ms, ends_us, request.ordered);
    }
    gathered.messages += offsets.len() as u32;
}

fn found(request: &PopRequest, gathered: Gathered, cx: &Context<'_>) -> Response {
    let revive_queue = if request.ordered {
        ORDERED_REVIVE_QUEUE
    } else {
        0
    };
    let mut fields = vec![
        ("popTime", cx.now.wall_ms.to_string()),
        ("invisibleTime", request.invisible_ms.to_string()),
        ("reviveQid", revive_queue.to_string()),
        ("restNum", gathered.rest.to_string()),
        ("startOffsetInfo", gathered.start_offsets),
        ("msgOffsetInfo", gathered.offsets),
    ];
    if !gathered.order_counts.is_empty() {
        fields.push(("orderCountInfo", gathered.order_counts));
    }
    Response {
        remark: Some("FOUND".into()),
        header: ResponseHeader::Fields(fields),
        body: Body::Stored {
            segments: gathered.segments,
            bytes: gathered.bytes,
        },
        ..Response::success()
    }
}
