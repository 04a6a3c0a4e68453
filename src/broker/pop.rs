//! 200050 and its companions: consumption where the broker keeps the progress of a group.
//!
//! A message that is popped is invisible to its group for the time that the consumer asks for. Acknowledged within it,
//! it is done with; otherwise a copy goes to the group's retry topic for pops, and after the group's last try to its
//! dead letters. What is not done with is never below the committed offset ([`windows`]): after the end of a process
//! it is popped again from there.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/PopMessageProcessor.java`. There check points are stored as
//! messages of a revive topic; here the committed offset is all that has to be kept.

use super::pull::{self, Looked, PullRequest};
use super::topics::Refusal;
use super::{Addressed, Broker, Context, Outcome, Peer};
use crate::ids::{ConnectionId, QueueIndex, QueueOffset};
use crate::limits::{HOLD_MS_MAX, POP_IN_FLIGHT_MAX, POP_QUEUES_MAX, PULL_BYTES_MAX};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::headers::{PULL_FLAG_SUBSCRIPTION, PopHeader, PullHeader};
use crate::protocol::message::queue_offset_of;
use crate::protocol::names::{self, RETRY_PREFIX};
use crate::protocol::response::{Body, Response, ResponseHeader};
use crate::stats::Delivered;
use crate::storage::{Arrival, Missing};
use bytes::Bytes;
use smallvec::SmallVec;
use std::fmt::Write;
use std::rc::Rc;

mod receipts;
mod revive;
#[cfg(test)]
mod tests;
mod waiting;
mod windows;

pub use receipts::{acknowledge, change_invisible_time};
pub(super) use revive::{failed as revive_failed, run as run_revive};
use windows::Window;

/// Messages of one pop. Source: apache/rocketmq 5.3.x `PopMessageProcessor`.
const MESSAGES_MAX: i32 = 32;
/// A pop that is so much older than its time to wait has been given up by its client.
const LATE_MS: i64 = 500;
/// A held pop is answered so long before its client gives it up.
const EARLY_MS: i64 = 50;
/// Every so many pops look at the retry topic first; the others look there with what is left.
const RETRY_FIRST_EVERY: u64 = 5;
/// The revive queue of messages that are popped in order.
const ORDERED_REVIVE_QUEUE: i64 = 999;

/// A pop that passed its checks.
#[derive(Clone, Debug)]
pub struct PopRequest {
    /// Of the topic; its queue and offset are those of no queue in particular.
    base: PullRequest,
    /// `None`: any.
    queue_id: Option<u32>,
    /// `None`: the topic is a retry topic itself.
    retry_topic: Option<Rc<str>>,
    invisible_ms: u64,
    /// A group without an offset starts at the end.
    starts_at_end: bool,
    ordered: bool,
}

impl PopRequest {
    /// The topics that it waits for.
    fn topics(&self) -> impl Iterator<Item = &str> {
        let retry = self.retry_topic.as_deref();
        std::iter::once(&*self.base.topic).chain(retry)
    }
}

/// What a shard knows of pops.
#[derive(Debug, Default)]
pub struct Pops {
    windows: windows::Windows,
    waiting: waiting::Waiting,
    revive: revive::Revive,
    /// Counts pops: queues take turns.
    turn: u64,
}

impl Pops {
    /// Messages that are with consumers, and pops that wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.windows.in_flight(), self.waiting.len())
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let waiting = self.waiting.first_deadline().map(|(at, _)| at);
        [waiting, self.revive.next_deadline(&self.windows)]
            .into_iter()
            .flatten()
            .min()
    }

    pub fn drop_connection(&mut self, connection: ConnectionId) {
        self.waiting.drop_connection(connection);
    }

    pub fn remove_group(&mut self, group: &str) {
        self.windows.forget(|window| *window.group == *group);
    }
}

/// The retry topic of a group for what it popped of a topic; `None`: the topic is one.
fn retry_topic(group: &str, topic: &str) -> Option<String> {
    (!topic.starts_with(RETRY_PREFIX)).then(|| format!("{RETRY_PREFIX}{group}_{topic}"))
}

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let header = PopHeader::decode(command)?;
    let now_ms = i64::try_from(cx.now.wall_ms).unwrap_or(i64::MAX);
    let age_ms = now_ms.saturating_sub(header.born_time);
    let is_late = cx.first_run && age_ms.saturating_sub(header.poll_time) > LATE_MS;
    if is_late {
        return Ok(Outcome::Reply(nothing("the pop is too late")));
    }
    let request = match check(broker, command, &header, peer, cx) {
        Ok(request) => request,
        Err((code, remark)) => return Ok(Outcome::Reply(Response::error(code, remark))),
    };
    Ok(match collect(broker, &request, cx) {
        Collected::Answer(response) => Outcome::Reply(*response),
        Collected::Missing(missing) => Outcome::Read(missing),
        Collected::More => {
            Outcome::Reply(nothing("the filter refused as much as one pop examines"))
        }
        Collected::Nothing
            if command.is_one_way() || request.base.deadline_us <= cx.now.monotonic_us =>
        {
            Outcome::Reply(nothing("no message"))
        }
        Collected::Nothing if !broker.pops.waiting.has_room() => Outcome::Reply(Response::error(
            ResponseCode::POLLING_FULL,
            "as many pops wait as this shard holds",
        )),
        Collected::Nothing => {
            broker.pops.waiting.park(request);
            Outcome::Held
        }
    })
}

fn nothing(remark: &'static str) -> Response {
    Response::error(ResponseCode::POLLING_TIMEOUT, remark)
}

fn invalid(remark: String) -> Refusal {
    (ResponseCode::INVALID_PARAMETER, remark)
}

fn check(
    broker: &mut Broker,
    command: &Command<'_>,
    header: &PopHeader<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<PopRequest, Refusal> {
    if header.max_msg_nums > MESSAGES_MAX {
        let max = header.max_msg_nums;
        return Err(invalid(format!(
            "maxMsgNums is {max}, the limit is {MESSAGES_MAX}"
        )));
    }
    let as_pull = PullHeader {
        consumer_group: header.consumer_group,
        topic: header.topic,
        queue_id: header.queue_id.max(0),
        queue_offset: 0,
        max_msg_nums: header.max_msg_nums,
        sys_flag: PULL_FLAG_SUBSCRIPTION,
        commit_offset: 0,
        suspend_timeout_millis: 0,
        subscription: Some(header.expression),
        sub_version: 0,
        expression_type: header.expression_type,
    };
    let base = pull::check(broker, command, &as_pull, peer, cx)?;
    let retry = retry_topic(header.consumer_group, header.topic);
    if let Some(name) = &retry {
        names::check_topic(name).map_err(|e| invalid(format!("its retry topic {name}: {e}")))?;
    }
    let waited_ms = (cx.now.wall_ms as i64)
        .saturating_sub(header.born_time)
        .max(0);
    let wait_ms = header
        .poll_time
        .saturating_sub(waited_ms)
        .saturating_sub(EARLY_MS);
    let wait_ms = u64::try_from(wait_ms).unwrap_or(0).min(HOLD_MS_MAX);
    Ok(PopRequest {
        base: PullRequest {
            deadline_us: cx.now.after_ms(wait_ms),
            ..base
        },
        queue_id: u32::try_from(header.queue_id).ok(),
        retry_topic: retry.map(Rc::from),
        invisible_ms: u64::try_from(header.invisible_time).unwrap_or(0),
        starts_at_end: header.init_mode == 1,
        ordered: header.order,
    })
}

/// What a look at all queues came to.
enum Collected {
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

fn collect(broker: &mut Broker, request: &PopRequest, cx: &mut Context<'_>) -> Collected {
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
fn commit(broker: &mut Broker, key: windows::Key, cx: &Context<'_>) {
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

/// A queue has messages: answers the pops that wait for them.
pub fn on_arrival(broker: &mut Broker, arrival: Arrival, cx: &mut Context<'_>) {
    if broker.pops.waiting.is_empty() {
        return;
    }
    let (topic, queue_id) = cx.store.name_of(arrival.queue);
    let topic: Rc<str> = topic.into();
    wake(broker, &topic, queue_id, cx);
}

/// Answers the pops that wait for a queue, the earliest first, until nothing is left for them.
fn wake(broker: &mut Broker, topic: &str, queue_id: u32, cx: &mut Context<'_>) {
    let mut number = 0;
    let mut without: Vec<(Rc<str>, Rc<super::filter::Subscription>)> = Vec::new();
    while let Some((next, request)) = broker.pops.waiting.next_of(topic, number) {
        number = next;
        let other = request.queue_id.is_some_and(|id| id != queue_id);
        let is_known = without.iter().any(|(group, subscription)| {
            *group == request.base.group && Rc::ptr_eq(subscription, &request.base.subscription)
        });
        if is_known || other && *request.base.topic == *topic {
            continue;
        }
        let request = request.clone();
        match collect(broker, &request, cx) {
            Collected::Answer(response) => {
                cx.counters.pops_woken += 1;
                answer(broker, number, *response, cx);
            }
            // A read is a request's: the client asks again at once.
            Collected::Missing(_) | Collected::More => {
                answer(broker, number, nothing("ask again"), cx);
            }
            Collected::Nothing if request.queue_id.is_none() => {
                without.push((
                    request.base.group.clone(),
                    request.base.subscription.clone(),
                ));
            }
            Collected::Nothing => {}
        }
    }
}

fn answer(broker: &mut Broker, number: waiting::Number, response: Response, cx: &mut Context<'_>) {
    let Some(request) = broker.pops.waiting.remove(number) else {
        return;
    };
    let base = request.base;
    cx.counters.count_answer(base.asked, response.code.0, true);
    cx.effects.replies.push(Addressed {
        connection: base.connection,
        opaque: base.opaque,
        encoding: base.encoding,
        response,
    });
}

/// Answers pops whose time is over; what was popped and not acknowledged is delivered again.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((deadline_us, number)) = broker.pops.waiting.first_deadline() {
        if deadline_us > cx.now.monotonic_us {
            break;
        }
        answer(broker, number, nothing("no message"), cx);
    }
    revive::expire(broker, cx);
}

/// Answers every pop that waits; the broker stops.
pub fn begin_stop(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((_, number)) = broker.pops.waiting.first_deadline() {
        answer(broker, number, nothing("the broker stops"), cx);
    }
    revive::begin_stop(broker, cx);
}

/// A topic is gone: what was popped of it too, and who waits for it is told.
pub fn remove_topic(broker: &mut Broker, topic: &str, cx: &mut Context<'_>) {
    broker.pops.windows.forget(|window| *window.topic == *topic);
    let mut number = 0;
    while let Some((next, request)) = broker.pops.waiting.next_of(topic, number) {
        number = next;
        if *request.base.topic == *topic {
            let response = pull::topic_gone(&request.base);
            answer(broker, number, response, cx);
        }
    }
}
