//! 200151: acknowledgements of many messages at once.
//!
//! Source: apache/rocketmq 5.3.x `remoting/.../protocol/body/BatchAck.java`, `BitSetSerializerDeserializer.java`,
//! `broker/.../processor/AckMessageProcessor.java`.

use super::receipts;
use crate::broker::{Broker, Context, Outcome};
use crate::protocol::bodies;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::names::RETRY_PREFIX;
use crate::protocol::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Batch {
    acks: Option<Vec<Acks>>,
}

/// Messages of one pop of one queue.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Acks {
    #[serde(rename = "c", alias = "consumerGroup")]
    group: String,
    #[serde(rename = "t", alias = "topic")]
    topic: String,
    /// "1", "2": its retry topic, in the form of either version.
    #[serde(rename = "r", alias = "retry")]
    kind: Option<String>,
    #[serde(rename = "so", alias = "startOffset")]
    start_offset: u64,
    #[serde(rename = "q", alias = "queueId")]
    queue_id: u32,
    #[serde(rename = "pt", alias = "popTime")]
    popped_ms: u64,
    #[serde(rename = "b", alias = "bitSet")]
    bits: String,
}

impl Acks {
    fn real_topic(&self) -> String {
        let (group, topic) = (&self.group, &self.topic);
        match self.kind.as_deref() {
            Some("1") => format!("{RETRY_PREFIX}{group}_{topic}"),
            Some("2") => format!("{RETRY_PREFIX}{group}+{topic}"),
            _ => topic.clone(),
        }
    }
}

/// Java's `BitSet`: bit 0 of byte 0 is the message at the start offset.
struct Bits {
    start: u64,
    bytes: Vec<u8>,
}

impl Bits {
    fn contains(&self, offset: u64) -> bool {
        let bit = offset.checked_sub(self.start);
        let byte = bit.and_then(|bit| self.bytes.get(usize::try_from(bit / 8).ok()?));
        byte.is_some_and(|byte| byte >> ((offset - self.start) % 8) & 1 == 1)
    }

    /// The first and the last.
    fn ends(&self) -> Option<(u64, u64)> {
        let is_set = |byte: &u8| *byte != 0;
        let first = self.bytes.iter().position(is_set)?;
        let last = self.bytes.iter().rposition(is_set)?;
        let low = first as u64 * 8 + u64::from(self.bytes[first].trailing_zeros());
        let high = last as u64 * 8 + 7 - u64::from(self.bytes[last].leading_zeros());
        Some((
            self.start.saturating_add(low),
            self.start.saturating_add(high),
        ))
    }
}

/// 208 where no part of it can be one of messages that there are.
pub fn acknowledge_batch(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let batch: Batch = match bodies::decode(command.body) {
        Ok(batch) => batch,
        Err(error) => {
            let response = Response::error(ResponseCode::SYSTEM_ERROR, error.to_string());
            return Ok(Outcome::Reply(response));
        }
    };
    let mut is_there = false;
    for acks in batch.acks.iter().flatten() {
        is_there |= acknowledge(broker, acks, cx);
    }
    let response = if is_there {
        Response::success()
    } else {
        let remark = "no message of the batch is there";
        Response::error(ResponseCode::NO_MESSAGE, remark)
    };
    Ok(Outcome::Reply(response))
}

/// Whether one of its messages can be there. Costs what was popped of the queue, however many bits are set.
fn acknowledge(broker: &mut Broker, acks: &Acks, cx: &mut Context<'_>) -> bool {
    let (topic, queue_id) = (acks.real_topic(), acks.queue_id);
    let bytes = STANDARD.decode(&acks.bits).unwrap_or_default();
    let bits = Bits {
        start: acks.start_offset,
        bytes,
    };
    let queue = broker.topics.queue(&topic, queue_id, cx.store);
    let (Some(queue), Some((first, last))) = (queue, bits.ends()) else {
        return false;
    };
    let bounds = cx.store.bounds(queue);
    if last < bounds.min.0 || first >= bounds.max.0 {
        return false;
    }
    let windows = &broker.pops.windows;
    if let Some(key) = windows.find(&acks.group, &topic, queue_id) {
        let popped = windows.get(key).popped_between(first, last);
        let named: Vec<u64> = popped.filter(|offset| bits.contains(*offset)).collect();
        for offset in named {
            receipts::acknowledge_one(broker, key, (offset, acks.popped_ms), cx);
        }
    }
    true
}
