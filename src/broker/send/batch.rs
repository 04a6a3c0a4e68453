//! Batches: several messages of one topic and queue in one send (`messages.md` section 4).
//!
//! Every record becomes an ordinary message with its own properties, key and offset. All of them are appended
//! together or none is.

use super::stored::{self, ClientProperties};
use super::{SendScratch, Sent, Target, append_refusal, check_body, illegal, message};
use crate::broker::topics::Refusal;
use crate::broker::{Acknowledgement, Broker, BrokerConfig, Context};
use crate::limits::BATCH_MESSAGES_MAX;
use crate::protocol::codes::ResponseCode;
use crate::protocol::hash;
use crate::protocol::message::{
    BatchRecord, NewMessage, batch_records, offset_message_id, sys_flag,
};
use crate::protocol::names::RETRY_PREFIX;
use crate::protocol::response::{MessageIds, ResponseHeader, SendResponseHeader};
use crate::stats::series::Incoming;
use crate::storage::Appended;
use std::ops::Range;

/// Where the properties of a record are.
enum Properties<'a> {
    AsSent(&'a str),
    /// In the scratch, because something had to be changed.
    Rewritten(Range<usize>),
}

/// A record that has been checked.
struct Checked<'a> {
    record: BatchRecord<'a>,
    tags_code: i64,
    properties: Properties<'a>,
}

pub(super) fn send(
    broker: &mut Broker,
    sent: &Sent<'_>,
    target: Target,
    scratch: &mut SendScratch,
    cx: &mut Context<'_>,
) -> Result<Acknowledgement, Refusal> {
    check_topic(sent.header.topic)?;
    let batch = ClientProperties::read(sent.header.properties);
    check_kind(broker, target.sys_flag, &batch, cx.now.wall_ms)?;
    check_body(broker, sent.body)?;
    let records = check_records(broker, sent.body, scratch, cx)?;
    let messages: Vec<NewMessage<'_>> = records
        .iter()
        .map(|checked| NewMessage {
            flag: checked.record.flag,
            properties: match &checked.properties {
                Properties::AsSent(properties) => properties,
                Properties::Rewritten(range) => &scratch.properties[range.clone()],
            },
            tags_code: checked.tags_code,
            ..message(broker, sent, &target, checked.record.body)
        })
        .collect();
    scratch.appended.clear();
    let result = cx
        .store
        .append_all(target.queue, &messages, cx.now, &mut scratch.appended);
    result.map_err(append_refusal)?;
    cx.counters.messages_in += messages.len() as u64;
    cx.counters.message_bytes_in += sent.body.len() as u64;
    let bytes = |appended: &Appended| appended.end.bytes_since(appended.at);
    let incoming = Incoming {
        queue: target.queue,
        kind: batch.message_type(),
        messages: messages.len() as u64,
        bytes: scratch.appended.iter().map(bytes).sum(),
        now_us: cx.now.monotonic_us,
    };
    cx.counters.count_incoming(sent.header.topic, incoming);
    Ok(acknowledge(
        &broker.config,
        &scratch.appended,
        target.queue_id,
        &batch,
    ))
}

fn check_topic(topic: &str) -> Result<(), Refusal> {
    if !topic.starts_with(RETRY_PREFIX) {
        return Ok(());
    }
    let remark = format!("batch request does not support retry group {topic}");
    Err((ResponseCode::MESSAGE_ILLEGAL, remark))
}

/// Neither a batch nor one of its records can be delayed or half.
fn check_kind(
    broker: &Broker,
    flags: i32,
    properties: &ClientProperties<'_>,
    wall_ms: u64,
) -> Result<(), Refusal> {
    if flags & sys_flag::TRANSACTION_MASK != 0 || properties.is_half {
        return Err(illegal(
            "a batch can't hold transaction messages".to_owned(),
        ));
    }
    super::check_inner_batch(flags, properties)?;
    properties.check_no_delay(broker, wall_ms)
}

/// Checks every record before the first is stored.
fn check_records<'a>(
    broker: &Broker,
    body: &'a [u8],
    scratch: &mut SendScratch,
    cx: &Context<'_>,
) -> Result<Vec<Checked<'a>>, Refusal> {
    let mut records = Vec::new();
    scratch.properties.clear();
    for record in batch_records(body) {
        let index = records.len();
        let at_record =
            |(code, remark): Refusal| (code, format!("record {index} of the batch: {remark}"));
        if index == BATCH_MESSAGES_MAX as usize {
            let reason = format!("the batch has more than {BATCH_MESSAGES_MAX} records");
            return Err(illegal(reason));
        }
        let record = record.map_err(|error| at_record(illegal(error.to_string())))?;
        let client = ClientProperties::read(record.properties);
        check_kind(broker, 0, &client, cx.now.wall_ms).map_err(at_record)?;
        let properties = if client.are_stored_as_sent() {
            Properties::AsSent(record.properties)
        } else {
            let start = scratch.properties.len();
            let make = || scratch.keys.make(broker.config.address, cx.now.wall_ms);
            let unique_key = client.unique_key_or(make);
            client.store_record(record.properties, &unique_key, &mut scratch.properties);
            stored::check_bytes(&scratch.properties[start..], 0).map_err(at_record)?;
            Properties::Rewritten(start..scratch.properties.len())
        };
        records.push(Checked {
            record,
            tags_code: hash::tags_code(client.tag),
            properties,
        });
    }
    Ok(records)
}

fn acknowledge(
    config: &BrokerConfig,
    appended: &[Appended],
    queue_id: u32,
    batch: &ClientProperties<'_>,
) -> Acknowledgement {
    const ID_BYTES: usize = 33;
    let (first, last) = appended
        .first()
        .zip(appended.last())
        .expect("a batch with a body has a record");
    let mut ids = String::with_capacity(appended.len() * ID_BYTES);
    for (index, Appended { at, .. }) in appended.iter().enumerate() {
        if index > 0 {
            ids.push(',');
        }
        ids.push_str(&offset_message_id(config.address, *at));
    }
    Acknowledgement {
        end: last.end,
        wait_flush: batch.wait,
        header: ResponseHeader::Send(SendResponseHeader {
            message_id: MessageIds::Many(ids),
            queue_id,
            queue_offset: first.queue_offset.0,
            transaction_id: batch.unique_key(),
            region: config.region,
            trace_on: config.trace_on,
        }),
    }
}
