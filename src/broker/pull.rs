//! 11, 361: pulls. Checks in Apache's order, then one pass over the queue's entries.

use super::filter::{Filter, Subscription};
use super::topics::PERM_READ;
use super::{Broker, BrokerConfig, Context, Outcome, Peer};
use crate::ids::{ConnectionId, QueueIndex, QueueOffset};
use crate::limits::{HOLD_MS_MAX, PULL_BYTES_MAX, PULL_ENTRIES_EXAMINED_MAX, PULL_MESSAGES_MAX};
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::{Command, Encoding};
use crate::protocol::headers::{
    PULL_FLAG_COMMIT_OFFSET, PULL_FLAG_SUBSCRIPTION, PULL_FLAG_SUSPEND, PullHeader,
};
use crate::protocol::response::{Body, PullResponseHeader, Response, ResponseHeader};
use crate::storage::{Missing, QueueBounds};
use bytes::Bytes;
use smallvec::SmallVec;
use std::rc::Rc;

/// Records read from disk for one pull at once, and their bytes. Source: apache/rocketmq `maxTransferCountOnMessageInDisk`.
const COLD_MESSAGES: usize = 8;
const COLD_BYTES: u32 = 64 * 1024;

/// A pull that passed its checks, with all it needs to be evaluated again: after a hold, or after a read.
#[derive(Clone, Debug)]
pub struct PullRequest {
    pub connection: ConnectionId,
    pub opaque: i32,
    pub encoding: Encoding,
    pub group: Rc<str>,
    pub topic: Rc<str>,
    pub queue_id: u32,
    pub queue: QueueIndex,
    /// What the client asked for.
    pub offset: i64,
    /// Examined up to here: the first offset that the filter has not seen.
    pub cursor: QueueOffset,
    pub messages_max: u32,
    pub subscription: Rc<Subscription>,
    /// May be held when nothing is found; false once it was.
    pub suspend: bool,
    /// End of the hold, in monotonic microseconds.
    pub deadline_us: u64,
}

/// What becomes of a hold when messages arrive. Consumed where it is made, so its size costs no copy.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum Woken {
    Stay,
    Answer(Response),
    Read(SmallVec<[Missing; 4]>),
}

/// What one pass over the entries found.
enum Scan {
    Found {
        segments: SmallVec<[Bytes; 4]>,
        bytes: usize,
        next: u64,
    },
    NoneMatched {
        next: u64,
    },
    Missing(SmallVec<[Missing; 4]>),
}

type Refusal = (ResponseCode, String);

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let header = match PullHeader::decode(command) {
        Ok(header) => header,
        Err(error) => {
            return Outcome::Reply(Response::error(
                ResponseCode::SYSTEM_ERROR,
                error.to_string(),
            ));
        }
    };
    match check(broker, command, &header, peer, cx) {
        Ok(request) => {
            if cx.first_run
                && header.sys_flag & PULL_FLAG_COMMIT_OFFSET != 0
                && header.commit_offset >= 0
            {
                let offset = header.commit_offset as u64;
                let (group, topic, id) = (header.consumer_group, header.topic, request.queue_id);
                broker
                    .offsets
                    .commit(group, topic, id, offset, cx.now.monotonic_us);
            }
            resume(broker, request, cx)
        }
        Err((code, remark)) => Outcome::Reply(Response::error(code, remark)),
    }
}

fn check(
    broker: &mut Broker,
    command: &Command<'_>,
    header: &PullHeader<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<PullRequest, Refusal> {
    let config = &broker.config;
    if config.permission & PERM_READ == 0 {
        let remark = format!(
            "the broker[{}] pulling message is forbidden",
            config.address
        );
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    if command.code == RequestCode::LITE_PULL_MESSAGE.0 && !config.lite_pull_enable {
        return Err((
            ResponseCode::NO_PERMISSION,
            "lite pull is off (litePullMessageEnable)".to_owned(),
        ));
    }
    let name = header.consumer_group;
    let group = broker
        .groups
        .find_or_create(&broker.config, name, cx)
        .ok_or_else(|| {
            (
                ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
                format!("subscription group [{name}] does not exist"),
            )
        })?;
    if !group.consume_enable {
        return Err((
            ResponseCode::NO_PERMISSION,
            format!("subscription group no permission, {name}"),
        ));
    }
    let topic = broker.topics.get(header.topic).ok_or_else(|| {
        (
            ResponseCode::TOPIC_NOT_EXIST,
            format!("topic[{}] not exist, apply first please!", header.topic),
        )
    })?;
    if topic.config.perm & PERM_READ == 0 {
        let remark = format!("the topic[{}] pulling message is forbidden", header.topic);
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    let queues = topic.config.read_queue_nums;
    let topic_name = topic.name.clone();
    let queue_id = u32::try_from(header.queue_id).ok().filter(|id| *id < queues).ok_or_else(|| {
        let remark = format!(
            "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{queues}] consumer:[{}]",
            header.queue_id, header.topic, peer.address
        );
        (ResponseCode::INVALID_PARAMETER, remark)
    })?;
    let subscription = subscription(broker, header, group.consume_broadcast_enable)?;
    let queue = broker
        .topics
        .queue(header.topic, queue_id, cx.store)
        .ok_or_else(|| {
            (
                ResponseCode::SYSTEM_ERROR,
                format!(
                    "queue {queue_id} of topic[{}] can't be opened",
                    header.topic
                ),
            )
        })?;
    let hold_ms = if broker.config.long_polling {
        u64::try_from(header.suspend_timeout_millis)
            .unwrap_or(0)
            .min(HOLD_MS_MAX)
    } else {
        broker.config.short_polling_ms
    };
    Ok(PullRequest {
        connection: peer.connection,
        opaque: command.opaque,
        encoding: command.encoding,
        group: Rc::clone(&group.name),
        topic: topic_name,
        queue_id,
        queue,
        offset: header.queue_offset,
        cursor: QueueOffset(header.queue_offset.max(0) as u64),
        messages_max: (header.max_msg_nums.max(1) as u32).min(PULL_MESSAGES_MAX),
        subscription,
        suspend: header.sys_flag & PULL_FLAG_SUSPEND != 0 && hold_ms > 0 && cx.first_run,
        deadline_us: cx.now.after_ms(hold_ms),
    })
}

fn subscription(
    broker: &mut Broker,
    header: &PullHeader<'_>,
    broadcast_enabled: bool,
) -> Result<Rc<Subscription>, Refusal> {
    if header.sys_flag & PULL_FLAG_SUBSCRIPTION != 0 {
        let expression = header.subscription.unwrap_or("*");
        return broker
            .subscriptions
            .get(header.topic, expression, header.expression_type)
            .map_err(|error| {
                (
                    ResponseCode::SUBSCRIPTION_PARSE_FAILED,
                    format!("parse the consumer's subscription failed: {error}"),
                )
            });
    }
    let view = broker
        .clients
        .group(header.consumer_group, header.topic)
        .ok_or_else(|| {
            (
                ResponseCode::SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist".to_owned(),
            )
        })?;
    if view.broadcasting && !broadcast_enabled {
        let remark = format!(
            "the consumer group[{}] can not consume by broadcast way",
            header.consumer_group
        );
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    let subscription = view.subscription.ok_or_else(|| {
        (
            ResponseCode::SUBSCRIPTION_NOT_EXIST,
            "the consumer's subscription not exist".to_owned(),
        )
    })?;
    if subscription.version < header.sub_version {
        return Err((
            ResponseCode::SUBSCRIPTION_NOT_LATEST,
            "the consumer's subscription not latest".to_owned(),
        ));
    }
    Ok(subscription)
}

/// Evaluates a pull, with what was read for it in `cx.fetched`; parks it when it may wait and nothing is there.
pub fn resume(broker: &mut Broker, mut request: PullRequest, cx: &mut Context<'_>) -> Outcome {
    let bounds = cx.store.bounds(request.queue);
    let (min, max) = (bounds.min.0 as i64, bounds.max.0 as i64);
    let asked = request.offset;
    let moved = |next, remark| answer(ResponseCode::PULL_OFFSET_MOVED, remark, next, bounds);
    if max == 0 && asked != 0 {
        return Outcome::Reply(moved(0, "NO_MESSAGE_IN_QUEUE"));
    }
    if asked < min {
        return Outcome::Reply(moved(min, "OFFSET_TOO_SMALL"));
    }
    if asked > max {
        return Outcome::Reply(moved(max, "OFFSET_OVERFLOW_BADLY"));
    }
    if request.cursor.0 < bounds.max.0 {
        match scan(&request, bounds, cx) {
            Scan::Found {
                segments,
                bytes,
                next,
            } => return Outcome::Reply(found(segments, bytes, next, bounds, cx)),
            Scan::Missing(missing) => return Outcome::Read(missing),
            // Nothing of what is there matches: the hold goes on from the end; without one the client asks again.
            Scan::NoneMatched { next } if next < bounds.max.0 || !request.suspend => {
                let response = answer(
                    ResponseCode::PULL_RETRY_IMMEDIATELY,
                    "NO_MATCHED_MESSAGE",
                    next as i64,
                    bounds,
                );
                return Outcome::Reply(response);
            }
            Scan::NoneMatched { next } => request.cursor = QueueOffset(next),
        }
    }
    if request.suspend {
        request.suspend = false;
        return match broker.holds.park(request, cx.counters) {
            Ok(()) => Outcome::Held,
            Err(request) => Outcome::Reply(not_found(&request, bounds)),
        };
    }
    Outcome::Reply(not_found(&request, bounds))
}

/// 19: the queue's end. A cursor beyond what was asked for goes back to the client, which takes it for every code.
fn not_found(request: &PullRequest, bounds: QueueBounds) -> Response {
    let remark = if bounds.max.0 == 0 {
        "NO_MESSAGE_IN_QUEUE"
    } else {
        "OFFSET_OVERFLOW_ONE"
    };
    answer(
        ResponseCode::PULL_NOT_FOUND,
        remark,
        request.cursor.0 as i64,
        bounds,
    )
}

/// A held pull, with new messages in its queue.
pub fn evaluate_held(
    _config: &BrokerConfig,
    request: &mut PullRequest,
    cx: &mut Context<'_>,
) -> Woken {
    let bounds = cx.store.bounds(request.queue);
    while request.cursor.0 < bounds.max.0 {
        match scan(request, bounds, cx) {
            Scan::Found {
                segments,
                bytes,
                next,
            } => return Woken::Answer(found(segments, bytes, next, bounds, cx)),
            Scan::Missing(missing) => return Woken::Read(missing),
            Scan::NoneMatched { next } => {
                assert!(next > request.cursor.0, "a scan at {next} makes progress");
                request.cursor = QueueOffset(next);
            }
        }
    }
    Woken::Stay
}

fn found(
    segments: SmallVec<[Bytes; 4]>,
    bytes: usize,
    next: u64,
    bounds: QueueBounds,
    cx: &mut Context<'_>,
) -> Response {
    cx.counters.messages_out += segments.len() as u64;
    cx.counters.message_bytes_out += bytes as u64;
    let mut response = answer(ResponseCode::SUCCESS, "FOUND", next as i64, bounds);
    response.body = Body::Stored { segments, bytes };
    response
}

fn answer(code: ResponseCode, remark: &'static str, next: i64, bounds: QueueBounds) -> Response {
    Response {
        code,
        remark: Some(remark.into()),
        header: ResponseHeader::Pull(PullResponseHeader {
            suggest_which_broker_id: 0,
            next_begin_offset: next,
            min_offset: bounds.min.0 as i64,
            max_offset: bounds.max.0 as i64,
        }),
        body: Body::None,
    }
}

/// One pass from the cursor: bounded in entries examined, messages and bytes; at least one message if any matches.
fn scan(request: &PullRequest, bounds: QueueBounds, cx: &Context<'_>) -> Scan {
    let filter = &request.subscription.filter;
    let first = request.cursor.0;
    let examined = u64::from(PULL_ENTRIES_EXAMINED_MAX.max(request.messages_max));
    let last = bounds.max.0.min(first + examined);
    let mut segments = SmallVec::new();
    let mut bytes = 0_usize;
    let mut next = first;
    while next < last {
        let entry = match cx.store.entry(request.queue, QueueOffset(next), cx.fetched) {
            Ok(entry) => entry,
            Err(_) if !segments.is_empty() => break,
            Err(_) => {
                let missing = Missing::Entries {
                    queue: request.queue,
                    from: QueueOffset(next),
                    count: (bounds.max.0 - next).min(examined) as u32,
                };
                return Scan::Missing(SmallVec::from_slice(&[missing]));
            }
        };
        if filter.may_match(entry.tags_code) {
            let full = segments.len() >= request.messages_max as usize
                || !segments.is_empty() && bytes + entry.bytes as usize > PULL_BYTES_MAX as usize;
            if full {
                break;
            }
            match cx.store.record(entry.at, entry.bytes, cx.fetched) {
                Ok(record) if filter.matches_record(&record) => {
                    bytes += record.len();
                    segments.push(record);
                }
                Ok(_) => {}
                Err(_) if !segments.is_empty() => break,
                Err(_) => return Scan::Missing(cold_records(request, next, last, filter, cx)),
            }
        }
        next += 1;
    }
    if segments.is_empty() {
        Scan::NoneMatched { next }
    } else {
        Scan::Found {
            segments,
            bytes,
            next,
        }
    }
}

/// The next records that the filter may want, for one round of reads.
fn cold_records(
    request: &PullRequest,
    from: u64,
    to: u64,
    filter: &Filter,
    cx: &Context<'_>,
) -> SmallVec<[Missing; 4]> {
    let mut missing = SmallVec::new();
    let mut bytes = 0;
    for offset in from..to {
        let Ok(entry) = cx
            .store
            .entry(request.queue, QueueOffset(offset), cx.fetched)
        else {
            break;
        };
        if !filter.may_match(entry.tags_code) {
            continue;
        }
        bytes += entry.bytes;
        let enough =
            missing.len() >= COLD_MESSAGES.min(request.messages_max as usize) || bytes > COLD_BYTES;
        if !missing.is_empty() && enough {
            break;
        }
        missing.push(Missing::Log {
            at: entry.at,
            bytes: entry.bytes,
        });
    }
    missing
}
