//! 10, 310, 320: sends. Checks in Apache's order, then one append.

use super::topics::PERM_WRITE;
use super::{Acknowledgement, Broker, Context, Outcome, Peer};
use crate::ids::QueueIndex;
use crate::limits::{BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX};
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::Command;
use crate::protocol::hash::tags_code;
use crate::protocol::headers::SendHeader;
use crate::protocol::message::{NewMessage, batch_records, offset_message_id, sys_flag};
use crate::protocol::names::{check_topic, is_retry_or_dlq, is_send_refused};
use crate::protocol::properties;
use crate::protocol::response::{MessageIds, Response, SendResponseHeader};
use crate::storage::{AppendError, Appended};
use arrayvec::ArrayString;
use std::fmt::Write;

/// Set by the broker, whatever the client sends.
const OVERWRITTEN: [&str; 4] = ["POP_CK", "CLUSTER", "MSG_REGION", "TRACE_ON"];

/// Memory reused by sends: the properties as they will be stored, and what picks a queue.
#[derive(Debug, Default)]
pub struct SendScratch {
    pub properties: String,
    appended: Vec<Appended>,
    next_queue: u32,
    next_id: u32,
}

type Refusal = (ResponseCode, String);

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    match send(broker, command, peer, cx) {
        Ok(ack) => Outcome::Append(ack),
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
    cx: &mut Context<'_>,
) -> Result<Acknowledgement, Refusal> {
    let header =
        SendHeader::decode(command).map_err(|e| (ResponseCode::SYSTEM_ERROR, e.to_string()))?;
    let batch = command.code == RequestCode::SEND_BATCH_MESSAGE.0;
    check_request(broker, &header, command.body, batch)?;
    let (queue, queue_id) = queue_for(broker, &header, cx)?;
    if batch {
        return append_batch(broker, &header, command.body, (queue, queue_id), peer, cx);
    }
    let scratch = &mut broker.scratch;
    let mut text = std::mem::take(&mut scratch.properties);
    store_properties(
        &broker.config,
        header.properties,
        &mut text,
        &mut scratch.next_id,
        cx,
    );
    let result = append_one(
        broker,
        &header,
        command.body,
        &text,
        (queue, queue_id),
        peer,
        cx,
    );
    broker.scratch.properties = text;
    result
}

fn check_request(
    broker: &Broker,
    header: &SendHeader<'_>,
    body: &[u8],
    batch: bool,
) -> Result<(), Refusal> {
    let config = &broker.config;
    let refuse = |code, remark: String| Err((code, remark));
    if config.permission & PERM_WRITE == 0 {
        return refuse(
            ResponseCode::NO_PERMISSION,
            format!(
                "the broker[{}] sending message is forbidden",
                config.address
            ),
        );
    }
    if let Err(error) = check_topic(header.topic) {
        return refuse(ResponseCode::INVALID_PARAMETER, error.to_string());
    }
    if is_send_refused(header.topic) {
        return refuse(
            ResponseCode::NO_PERMISSION,
            format!("Sending message to topic[{}] is forbidden.", header.topic),
        );
    }
    let max = config.message_bytes_max as usize;
    if body.len() > max {
        let remark = format!(
            "the body has {} bytes, the limit is {max} (maxMessageSize)",
            body.len()
        );
        return refuse(ResponseCode::MESSAGE_ILLEGAL, remark);
    }
    if batch && is_retry_or_dlq(header.topic) {
        return refuse(
            ResponseCode::MESSAGE_ILLEGAL,
            "a batch can't go to a retry topic".to_owned(),
        );
    }
    if batch && header.topic.len() > TOPIC_BYTES_MAX {
        return refuse(
            ResponseCode::MESSAGE_ILLEGAL,
            "the topic of a batch is too long".to_owned(),
        );
    }
    check_kind(header)
}

/// What this version can't deliver is refused, not stored as something else.
fn check_kind(header: &SendHeader<'_>) -> Result<(), Refusal> {
    let half = header.sys_flag & sys_flag::TRANSACTION_MASK != 0
        || properties::get(header.properties, "TRAN_MSG")
            .is_some_and(|v| v.eq_ignore_ascii_case("true"));
    if half {
        let remark = "this version does not take transactional messages".to_owned();
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    let positive = |key| {
        properties::get(header.properties, key)
            .and_then(|v| v.parse::<i64>().ok())
            .is_some_and(|v| v > 0)
    };
    if let Some(key) = [
        "DELAY",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
    ]
    .into_iter()
    .find(|k| positive(k))
    {
        let remark = format!("this version does not deliver delayed messages (property {key})");
        return Err((ResponseCode::MESSAGE_ILLEGAL, remark));
    }
    Ok(())
}

/// The topic, made where it may be, and the queue that the client chose.
fn queue_for(
    broker: &mut Broker,
    header: &SendHeader<'_>,
    cx: &mut Context<'_>,
) -> Result<(QueueIndex, u32), Refusal> {
    let topic = broker.topics.for_send(
        &broker.config,
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        cx,
    )?;
    if topic.config.perm & PERM_WRITE == 0 {
        let remark = format!("the topic[{}] sending message is forbidden", header.topic);
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    let (read, write) = (topic.config.read_queue_nums, topic.config.write_queue_nums);
    let queue_id = match u32::try_from(header.queue_id) {
        Ok(id) if id < read.max(write) => id,
        Ok(id) => {
            let remark = format!(
                "request queueId[{id}] is illegal, topic[{}] has {write} write queues",
                header.topic
            );
            return Err((ResponseCode::INVALID_PARAMETER, remark));
        }
        Err(_) => {
            broker.scratch.next_queue = broker.scratch.next_queue.wrapping_add(1);
            broker.scratch.next_queue % write.max(1)
        }
    };
    let queue = broker.topics.queue(header.topic, queue_id, cx.store);
    let missing = || {
        (
            ResponseCode::SYSTEM_ERROR,
            format!(
                "queue {queue_id} of topic[{}] can't be opened",
                header.topic
            ),
        )
    };
    Ok((queue.ok_or_else(missing)?, queue_id))
}

/// The properties as stored: the client's, without what the broker owns, then what the broker adds.
fn store_properties(
    config: &super::BrokerConfig,
    sent: &str,
    out: &mut String,
    next_id: &mut u32,
    cx: &Context<'_>,
) {
    out.clear();
    properties::copy_without(sent, &OVERWRITTEN, out);
    if properties::get(sent, "UNIQ_KEY").is_none() {
        let id = unique_id(config, next_id, cx);
        properties::append(out, "UNIQ_KEY", &id);
    }
    properties::append(out, "CLUSTER", &config.cluster_name);
    properties::append(out, "MSG_REGION", &config.region);
    properties::append(
        out,
        "TRACE_ON",
        if config.trace_on { "true" } else { "false" },
    );
}

/// A client id for a message that came without one: address, port, time, counter.
fn unique_id(config: &super::BrokerConfig, next_id: &mut u32, cx: &Context<'_>) -> ArrayString<64> {
    *next_id = next_id.wrapping_add(1);
    let at = crate::ids::PhysicalOffset((cx.now.wall_ms << 20) | u64::from(*next_id & 0xF_FFFF));
    let mut id = ArrayString::new();
    // 56 characters at most, so it always fits.
    let _ = id.try_push_str(&offset_message_id(config.address, at));
    id
}

fn check_properties(text: &str) -> Result<(), Refusal> {
    if text.len() <= PROPERTIES_BYTES_MAX {
        return Ok(());
    }
    let remark = format!(
        "the properties have {} bytes with those of the broker, the limit is {PROPERTIES_BYTES_MAX}",
        text.len()
    );
    Err((ResponseCode::MESSAGE_ILLEGAL, remark))
}

fn message<'a>(
    broker: &Broker,
    header: &SendHeader<'a>,
    peer: Peer,
    queue_id: u32,
    body: &'a [u8],
    text: &'a str,
) -> NewMessage<'a> {
    NewMessage {
        topic: header.topic,
        queue_id,
        flag: header.flag,
        sys_flag: header.sys_flag,
        born_timestamp: header.born_timestamp,
        born_host: peer.address,
        store_host: broker.config.address,
        reconsume_times: header.reconsume_times,
        prepared_transaction_offset: 0,
        body,
        properties: text,
        tags_code: tags_code(properties::get(text, "TAGS").unwrap_or_default()),
    }
}

fn refused(error: AppendError) -> Refusal {
    let code = match &error {
        AppendError::Busy { .. } => ResponseCode::SYSTEM_BUSY,
        AppendError::ReadOnly(_) | AppendError::DiskFull(_) | AppendError::Stopping => {
            ResponseCode::SERVICE_NOT_AVAILABLE
        }
        AppendError::TooLong { .. } => ResponseCode::MESSAGE_ILLEGAL,
    };
    (code, error.to_string())
}

fn append_one(
    broker: &mut Broker,
    header: &SendHeader<'_>,
    body: &[u8],
    text: &str,
    (queue, queue_id): (QueueIndex, u32),
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Acknowledgement, Refusal> {
    check_properties(text)?;
    let message = message(broker, header, peer, queue_id, body, text);
    let appended = cx.store.append(queue, &message, cx.now).map_err(refused)?;
    cx.counters.messages_in += 1;
    cx.counters.message_bytes_in += body.len() as u64;
    let transaction_id =
        properties::get(text, "UNIQ_KEY").and_then(|id| ArrayString::from(id).ok());
    let id = offset_message_id(broker.config.address, appended.at);
    Ok(Acknowledgement {
        end: appended.end,
        wait_flush: waits(text),
        header: SendResponseHeader {
            message_id: MessageIds::One(id),
            queue_id,
            queue_offset: appended.queue_offset.0,
            transaction_id,
        },
    })
}

fn waits(text: &str) -> bool {
    properties::get(text, "WAIT").is_none_or(|v| v.eq_ignore_ascii_case("true"))
}

/// Every record of a batch is a message of its own, all in one write.
fn append_batch(
    broker: &mut Broker,
    header: &SendHeader<'_>,
    body: &[u8],
    (queue, queue_id): (QueueIndex, u32),
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Acknowledgement, Refusal> {
    let illegal = |remark: String| (ResponseCode::MESSAGE_ILLEGAL, remark);
    let mut texts = Vec::new();
    let mut records = Vec::new();
    for record in batch_records(body) {
        let record = record.map_err(|e| {
            illegal(format!(
                "record {} of the batch is broken: {e}",
                records.len()
            ))
        })?;
        if records.len() >= BATCH_MESSAGES_MAX as usize {
            return Err(illegal(format!(
                "the batch has more than {BATCH_MESSAGES_MAX} messages"
            )));
        }
        let mut text = String::new();
        store_properties(
            &broker.config,
            record.properties,
            &mut text,
            &mut broker.scratch.next_id,
            cx,
        );
        check_properties(&text)?;
        texts.push(text);
        records.push(record);
    }
    if records.is_empty() {
        return Err(illegal("the batch is empty".to_owned()));
    }
    let messages: Vec<NewMessage<'_>> = records
        .iter()
        .zip(&texts)
        .map(|(r, text)| NewMessage {
            flag: r.flag,
            ..message(broker, header, peer, queue_id, r.body, text)
        })
        .collect();
    let mut appended = std::mem::take(&mut broker.scratch.appended);
    appended.clear();
    let result = cx
        .store
        .append_all(queue, &messages, cx.now, &mut appended)
        .map_err(refused);
    let ack = result.map(|()| acknowledge_batch(broker, &appended, queue_id, header));
    broker.scratch.appended = appended;
    cx.counters.messages_in += messages.len() as u64;
    cx.counters.message_bytes_in += body.len() as u64;
    ack
}

fn acknowledge_batch(
    broker: &Broker,
    appended: &[Appended],
    queue_id: u32,
    header: &SendHeader<'_>,
) -> Acknowledgement {
    let mut ids = String::with_capacity(appended.len() * 33);
    for (index, one) in appended.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let written = write!(
            ids,
            "{comma}{}",
            offset_message_id(broker.config.address, one.at)
        );
        written.expect("writing to memory");
    }
    let (first, last) = appended
        .first()
        .zip(appended.last())
        .expect("a batch is not empty");
    Acknowledgement {
        end: last.end,
        wait_flush: waits(header.properties),
        header: SendResponseHeader {
            message_id: MessageIds::Many(ids),
            queue_id,
            queue_offset: first.queue_offset.0,
            transaction_id: None,
        },
    }
}
