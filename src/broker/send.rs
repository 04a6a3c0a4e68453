//! 10, 310, 320: sends.
//!
//! A send is checked in Apache's order (`semantics.md` section 3), then appended to the open batch; it is answered
//! when its bytes count. Delayed ones and half messages are parked in a topic of the broker first
//! ([`super::delay`], [`super::transactions`]).
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/SendMessageProcessor.java`,
//! `AbstractSendMessageProcessor.java` `msgCheck`, `broker/.../util/HookUtils.java`.

use super::delay::{self, When};
use super::retry::VERSION_WITH_MAX_RECONSUME_TIMES;
use super::topics::{PERM_WRITE, Refusal};
use super::transactions;
use super::unique_key::UniqueKeys;
use super::{Acknowledgement, Broker, Context, Outcome, Peer};
use crate::ids::QueueIndex;
use crate::limits::TOPIC_BYTES_MAX;
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::Command;
use crate::protocol::hash;
use crate::protocol::headers::SendHeader;
use crate::protocol::message::{NewMessage, offset_message_id, sys_flag};
use crate::protocol::names::{self, DLQ_PREFIX, RETRY_PREFIX};
use crate::protocol::properties::{self, name};
use crate::protocol::response::{MessageIds, Response, ResponseHeader, SendResponseHeader};
use crate::stats::series::Incoming;
use crate::storage::{AppendError, Appended};
use arrayvec::ArrayString;
use stored::ClientProperties;

mod batch;
mod stored;

const MULTI_TAG: &str = "MULTI_TAG";

/// Memory reused by sends: the properties as they will be stored, where a batch went.
#[derive(Debug, Default)]
pub struct SendScratch {
    pub properties: String,
    appended: Vec<Appended>,
    /// Picks the queue of sends that leave it to the broker.
    next_queue: u32,
    keys: UniqueKeys,
}

/// A send as it came.
#[derive(Clone, Copy)]
struct Sent<'a> {
    header: SendHeader<'a>,
    body: &'a [u8],
    /// Of the client.
    version: i32,
    peer: Peer,
}

/// Where a send goes.
#[derive(Clone, Copy)]
struct Target {
    queue: QueueIndex,
    queue_id: u32,
    sys_flag: i32,
}

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let mut scratch = std::mem::take(&mut broker.scratch);
    let result = send(broker, command, peer, &mut scratch, cx);
    broker.scratch = scratch;
    match result {
        Ok(acknowledgement) => Outcome::Append(acknowledgement),
        Err((code, remark)) => {
            cx.counters.sends_refused += 1;
            Outcome::Reply(Response::error(code, remark))
        }
    }
}

fn send(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    scratch: &mut SendScratch,
    cx: &mut Context<'_>,
) -> Result<Acknowledgement, Refusal> {
    let header = SendHeader::decode(command)
        .map_err(|error| (ResponseCode::SYSTEM_ERROR, error.to_string()))?;
    let sent = Sent {
        header,
        body: command.body,
        version: command.version,
        peer,
    };
    let target = find_target(broker, &sent, &mut scratch.next_queue, cx)?;
    // C++ clients send a batch with code 10 or 310 and "1" for `batch`, which Java reads as false: the encoded batch
    // is stored as one message, as Apache does.
    if header.batch || RequestCode(command.code) == RequestCode::SEND_BATCH_MESSAGE {
        batch::send(broker, &sent, target, scratch, cx)
    } else {
        send_one(broker, &sent, target, scratch, cx)
    }
}

/// Checks topic and queue; makes the topic where it may be made.
fn find_target(
    broker: &mut Broker,
    sent: &Sent<'_>,
    next_queue: &mut u32,
    cx: &mut Context<'_>,
) -> Result<Target, Refusal> {
    let header = &sent.header;
    let name = header.topic;
    check_permissions(broker, name)?;
    if name.starts_with(RETRY_PREFIX) && broker.topics.get(name).is_none() {
        // Before the topic is made, so that no name of a group that isn't there leaves one behind.
        find_retry_max(broker, name, cx)?;
        broker.topics.ensure_group_topic(name, 1, cx);
    }
    let topic = broker.topics.for_send(
        &broker.config,
        name,
        header.default_topic,
        header.default_topic_queue_nums,
        cx,
    )?;
    let multi_tags = topic.config.topic_filter_type == MULTI_TAG;
    let (read, write) = (topic.config.read_queue_nums, topic.config.write_queue_nums);
    let queue_id = choose_queue(sent, read, write, next_queue)?;
    let queue = broker.topics.queue(name, queue_id, cx.store);
    let queue = queue.ok_or_else(|| {
        let remark = format!("queue {queue_id} of topic[{name}] can't be opened");
        (ResponseCode::SYSTEM_ERROR, remark)
    })?;
    let multi_tags = if multi_tags { sys_flag::MULTI_TAGS } else { 0 };
    Ok(Target {
        queue,
        queue_id,
        sys_flag: header.sys_flag | multi_tags,
    })
}

fn check_permissions(broker: &Broker, name: &str) -> Result<(), Refusal> {
    let config = &broker.config;
    // Apache lets other topics pass: their producers don't choose a broker that can't be written to.
    let is_ordered = || broker.topics.get(name).is_some_and(|t| t.config.order);
    if config.permission & PERM_WRITE == 0 && is_ordered() {
        let remark = format!(
            "the broker[{}] sending message is forbidden",
            config.address.ip()
        );
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    names::check_topic(name).map_err(|error| {
        let remark = format!("The specified topic is not valid: {error}");
        (ResponseCode::INVALID_PARAMETER, remark)
    })?;
    // A longer name would need records of version 2, which Go and 4.9 clients can't read.
    if name.len() > TOPIC_BYTES_MAX {
        return Err(illegal(format!(
            "its topic has {} bytes, the limit is {TOPIC_BYTES_MAX}",
            name.len()
        )));
    }
    if names::is_send_refused(name) || name == names::TIMER_TOPIC {
        let remark = format!("Sending message to topic[{name}] is forbidden.");
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    Ok(())
}

/// The queue that the client chose, or the next one where it leaves that to the broker.
fn choose_queue(
    sent: &Sent<'_>,
    read: u32,
    write: u32,
    next_queue: &mut u32,
) -> Result<u32, Refusal> {
    let asked = sent.header.queue_id;
    let illegal = || {
        let remark = format!(
            "request queueId[{asked}] is illegal, topic[{}] has {write} queues to write and {read} to read, \
             Producer: {}",
            sent.header.topic, sent.peer.address
        );
        (ResponseCode::INVALID_PARAMETER, remark)
    };
    match u32::try_from(asked) {
        Ok(queue_id) if queue_id < read.max(write) => Ok(queue_id),
        Ok(_) => Err(illegal()),
        Err(_) if write == 0 => Err(illegal()),
        Err(_) => {
            *next_queue = next_queue.wrapping_add(1);
            Ok(*next_queue % write)
        }
    }
}

/// How often messages of a retry topic may be retried; its group has to be there.
fn find_retry_max(
    broker: &mut Broker,
    retry_topic: &str,
    cx: &mut Context<'_>,
) -> Result<i32, Refusal> {
    let name = retry_topic.strip_prefix(RETRY_PREFIX).unwrap_or_default();
    match broker.groups.find_or_create(&broker.config, name, cx) {
        Some(group) => Ok(group.retry_max_times),
        None => {
            let remark = format!("subscription group not exist, {name}");
            Err((ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark))
        }
    }
}

/// A message that has been retried too often goes to the dead letters, at once and whatever its delay
/// (apache/rocketmq#2724).
fn dead_letter_topic(
    broker: &mut Broker,
    sent: &Sent<'_>,
    cx: &mut Context<'_>,
) -> Result<Option<String>, Refusal> {
    let header = &sent.header;
    let Some(group) = header.topic.strip_prefix(RETRY_PREFIX) else {
        return Ok(None);
    };
    let group_max = find_retry_max(broker, header.topic, cx)?;
    let max = match header.max_reconsume_times {
        Some(max) if sent.version >= VERSION_WITH_MAX_RECONSUME_TIMES => max,
        _ => group_max,
    };
    // A consumer in order sends what it gives up with the count of failures before the last, so that the limit would
    // never be passed (apache/rocketmq#6163); it sends nothing else here.
    let is_ordered = broker.locks.has_any(group, cx.now.monotonic_us);
    Ok((header.reconsume_times > max || is_ordered).then(|| format!("{DLQ_PREFIX}{group}")))
}

/// Redirects to the dead letters of a group, which have one queue.
fn dead_letter_target(
    broker: &mut Broker,
    name: &str,
    target: Target,
    cx: &mut Context<'_>,
) -> Result<Target, Refusal> {
    broker.topics.ensure_group_topic(name, 1, cx);
    match broker.topics.queue(name, 0, cx.store) {
        Some(queue) => Ok(Target {
            queue,
            queue_id: 0,
            ..target
        }),
        None => {
            let remark = format!("topic[{name}] not exist");
            Err((ResponseCode::SYSTEM_ERROR, remark))
        }
    }
}

fn send_one(
    broker: &mut Broker,
    sent: &Sent<'_>,
    target: Target,
    scratch: &mut SendScratch,
    cx: &mut Context<'_>,
) -> Result<Acknowledgement, Refusal> {
    let client = ClientProperties::read(sent.header.properties);
    let dead_letter = dead_letter_topic(broker, sent, cx)?;
    let is_half = check_half(broker, sent, &client, dead_letter.is_some())?;
    check_body(broker, sent.body)?;
    check_inner_batch(target.sys_flag, &client)?;
    let target = match &dead_letter {
        Some(name) => dead_letter_target(broker, name, target, cx)?,
        None => target,
    };
    let when = match &dead_letter {
        Some(_) => When::Now,
        None => client.when(broker, cx.now.wall_ms)?,
    };
    if is_half && when != When::Now {
        return Err(illegal("a half message can't have a delay".to_owned()));
    }
    let unique_key = client.unique_key_or(|| {
        let address = broker.config.address;
        scratch.keys.make(address, cx.now.wall_ms)
    });
    client.store_one(
        sent.header.properties,
        dead_letter.is_some(),
        &unique_key,
        &broker.config,
        &mut scratch.properties,
    );
    let topic = dead_letter.as_deref().unwrap_or(sent.header.topic);
    let kept = &mut scratch.properties;
    let half_queue = is_half.then(|| transactions::park(topic, target.queue_id, kept, broker, cx));
    let parked = delay::park(when, topic, target.queue_id, kept, broker, cx);
    let room = if is_half {
        transactions::CHECK_PROPERTIES_BYTES
    } else {
        0
    };
    stored::check_bytes(kept, room)?;
    let message = NewMessage {
        properties: kept,
        topic,
        tags_code: hash::tags_code(client.tag),
        ..message(broker, sent, &target, sent.body)
    };
    let appended = match (half_queue, parked) {
        (Some(queue), _) => {
            let half = transactions::half(message);
            cx.store.append(queue, &half, cx.now)
        }
        (None, None) => cx.store.append(target.queue, &message, cx.now),
        (None, Some(parked)) => {
            let parked_message = parked.message(message);
            cx.store.append(parked.queue, &parked_message, cx.now)
        }
    };
    let appended = appended.map_err(append_refusal)?;
    cx.counters.transactions_begun += u64::from(is_half);
    count(sent, &target, &client, &dead_letter, appended, cx);
    let message_id = offset_message_id(broker.config.address, appended.at);
    Ok(Acknowledgement {
        end: appended.end,
        wait_flush: client.wait,
        header: ResponseHeader::Send(SendResponseHeader {
            message_id: MessageIds::One(message_id),
            queue_id: target.queue_id,
            queue_offset: appended.queue_offset.0,
            transaction_id: ArrayString::from(&unique_key).ok(),
            region: broker.config.region,
            trace_on: broker.config.trace_on,
        }),
    })
}

/// Counts a message that was taken.
fn count(
    sent: &Sent<'_>,
    target: &Target,
    client: &ClientProperties<'_>,
    dead_letter: &Option<String>,
    appended: Appended,
    cx: &mut Context<'_>,
) {
    cx.counters.messages_in += 1;
    cx.counters.message_bytes_in += sent.body.len() as u64;
    if dead_letter.is_some() {
        let group = sent.header.topic.strip_prefix(RETRY_PREFIX);
        cx.counters.count_dead_letter(group.unwrap_or_default());
    }
    let incoming = Incoming {
        queue: target.queue,
        kind: client.message_type(),
        messages: 1,
        bytes: appended.end.bytes_since(appended.at),
        now_us: cx.now.monotonic_us,
    };
    let topic = dead_letter.as_deref().unwrap_or(sent.header.topic);
    cx.counters.count_incoming(topic, incoming);
}

/// What all messages of a send have in common; without properties and tag.
fn message<'a>(
    broker: &Broker,
    sent: &Sent<'a>,
    target: &Target,
    body: &'a [u8],
) -> NewMessage<'a> {
    NewMessage {
        topic: sent.header.topic,
        queue_id: target.queue_id,
        flag: sent.header.flag,
        sys_flag: target.sys_flag,
        born_timestamp: sent.header.born_timestamp,
        born_host: sent.peer.address,
        store_host: broker.config.address,
        reconsume_times: sent.header.reconsume_times,
        prepared_transaction_offset: 0,
        body,
        properties: "",
        tags_code: 0,
    }
}

/// Whether it is a half message. One that was one once and comes back as a retry keeps its property and is none any
/// more.
fn check_half(
    broker: &Broker,
    sent: &Sent<'_>,
    client: &ClientProperties<'_>,
    is_dead_letter: bool,
) -> Result<bool, Refusal> {
    let is_retry = is_dead_letter || sent.header.reconsume_times > 0 && client.delay.is_some();
    if !client.is_half || is_retry {
        let is_prepared = sent.header.sys_flag & sys_flag::TRANSACTION_PREPARED != 0;
        return if is_prepared && !is_retry {
            Err(illegal(format!(
                "its sysFlag {} is that of a half message, but it has no property {}=true",
                sent.header.sys_flag,
                name::TRANSACTION_PREPARED
            )))
        } else {
            Ok(false)
        };
    }
    if broker.config.transactions.is_refused {
        let remark = format!(
            "the broker[{}] sending transaction message is forbidden (rejectTransactionMessage)",
            broker.config.address.ip()
        );
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    let group = properties::get(sent.header.properties, name::PRODUCER_GROUP);
    if group.is_none_or(str::is_empty) {
        return Err(illegal(format!(
            "a half message needs the group of its producers, property {}",
            name::PRODUCER_GROUP
        )));
    }
    Ok(true)
}

fn check_body(broker: &Broker, body: &[u8]) -> Result<(), Refusal> {
    let max = broker.config.message_bytes_max as usize;
    if body.is_empty() {
        return Err(illegal("it has no body".to_owned()));
    }
    if body.len() > max {
        let bytes = body.len();
        return Err(illegal(format!(
            "its body has {bytes} bytes, the limit is {max} (maxMessageSize)"
        )));
    }
    Ok(())
}

/// Inner batches of 5.x need a topic of their own kind, which this version doesn't have.
fn check_inner_batch(flags: i32, client: &ClientProperties<'_>) -> Result<(), Refusal> {
    let inner = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    if flags & inner != 0 || client.is_inner_batch {
        return Err(illegal(
            "it is an inner batch, which only topics with queue.type=BatchCQ take".to_owned(),
        ));
    }
    Ok(())
}

/// Code 13, with what is wrong.
pub(super) fn illegal(reason: String) -> Refusal {
    let remark = format!("the message is illegal: {reason}");
    (ResponseCode::MESSAGE_ILLEGAL, remark)
}

/// Why the store didn't take it. The codes are those on which Java clients try another broker, but for 13.
pub(super) fn append_refusal(error: AppendError) -> Refusal {
    match error {
        AppendError::Busy { .. } => (
            ResponseCode::SYSTEM_BUSY,
            format!("[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error}"),
        ),
        AppendError::ReadOnly(_) | AppendError::DiskFull(_) | AppendError::Stopping => (
            ResponseCode::SERVICE_NOT_AVAILABLE,
            format!("service not available now: {error}"),
        ),
        AppendError::TooLong { .. } => illegal(error.to_string()),
    }
}
