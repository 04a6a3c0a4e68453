//! The properties of a message: what the broker reads of them, and what it stores.
//!
//! All that a client sent stays as it is, byte for byte. The broker takes out what it owns and adds it anew; Apache
//! does the same by way of a map, so that there the order is lost.

use super::illegal;
use crate::broker::delay::{self, When};
use crate::broker::topics::Refusal;
use crate::broker::{Broker, BrokerConfig};
use crate::limits::PROPERTIES_BYTES_MAX;
use crate::protocol::codes::ResponseCode;
use crate::protocol::properties::{self, name};
use crate::stats::series::MessageType;
use arrayvec::ArrayString;
use std::borrow::Cow;

/// Set by the broker, whatever a client sends.
const OWNED: [&str; 4] = [
    name::POP_CHECK_POINT,
    name::CLUSTER,
    name::MSG_REGION,
    name::TRACE_ON,
];
/// Taken out on the way to the dead letters, which are delivered at once.
const OWNED_AND_DELAY: [&str; 5] = [
    name::POP_CHECK_POINT,
    name::CLUSTER,
    name::MSG_REGION,
    name::TRACE_ON,
    name::DELAY,
];
const INNER_NUMBER: &str = "INNER_NUM";

/// What the broker needs of a client's properties, read in one pass; of a key that is there twice, the last.
#[derive(Debug)]
pub(super) struct ClientProperties<'a> {
    /// "" without one.
    pub tag: &'a str,
    /// "" without one.
    unique_key: &'a str,
    /// Whether the answer waits for a flush.
    pub wait: bool,
    pub delay: Option<&'a str>,
    timer_seconds: Option<&'a str>,
    timer_ms: Option<&'a str>,
    timer_at_ms: Option<&'a str>,
    pub is_half: bool,
    pub is_inner_batch: bool,
    /// One of the messages that are consumed in their order.
    is_ordered: bool,
    has_owned: bool,
    has_pop_check_point: bool,
}

impl<'a> ClientProperties<'a> {
    pub fn read(encoded: &'a str) -> Self {
        let mut read = Self {
            tag: "",
            unique_key: "",
            wait: true,
            delay: None,
            timer_seconds: None,
            timer_ms: None,
            timer_at_ms: None,
            is_half: false,
            is_inner_batch: false,
            is_ordered: false,
            has_owned: false,
            has_pop_check_point: false,
        };
        for (key, value) in properties::iter(encoded) {
            match key {
                name::TAGS => read.tag = value,
                name::UNIQUE_KEY => read.unique_key = value,
                name::WAIT => read.wait = is_true(value),
                name::DELAY => read.delay = Some(value),
                name::TIMER_DELAY_SECONDS => read.timer_seconds = Some(value),
                name::TIMER_DELAY_MS => read.timer_ms = Some(value),
                name::TIMER_DELIVER_MS => read.timer_at_ms = Some(value),
                name::TRANSACTION_PREPARED => read.is_half = is_true(value),
                INNER_NUMBER => read.is_inner_batch = true,
                name::SHARDING_KEY => read.is_ordered = true,
                name::POP_CHECK_POINT => {
                    read.has_owned = true;
                    read.has_pop_check_point = true;
                }
                name::CLUSTER | name::MSG_REGION | name::TRACE_ON => read.has_owned = true,
                _ => {}
            }
        }
        read
    }

    /// What the message is for the metrics.
    pub fn message_type(&self) -> MessageType {
        let timers = [self.timer_seconds, self.timer_ms, self.timer_at_ms];
        if self.is_half {
            MessageType::Transaction
        } else if self.is_ordered {
            MessageType::Fifo
        } else if self.delay.is_some() || timers.iter().any(Option::is_some) {
            MessageType::Delay
        } else {
            MessageType::Normal
        }
    }

    /// The client's key, or one that is made now. Clients match answers and tools find messages by it, so that the
    /// client's is never changed.
    pub fn unique_key_or(&self, make: impl FnOnce() -> ArrayString<56>) -> Cow<'a, str> {
        if self.unique_key.is_empty() {
            Cow::Owned(make().to_string())
        } else {
            Cow::Borrowed(self.unique_key)
        }
    }

    /// The client's key as it goes into the answer.
    pub fn unique_key(&self) -> Option<ArrayString<64>> {
        let key = Some(self.unique_key).filter(|key| !key.is_empty());
        key.and_then(|key| ArrayString::from(key).ok())
    }

    /// When it is to be delivered. A level below 1 is no delay; a time that has passed is none either. The level
    /// counts where both are there.
    pub fn when(&self, broker: &Broker, wall_ms: u64) -> Result<When, Refusal> {
        if let Some(text) = self.delay
            && let Some(level) = delay::level(broker, text)?
        {
            return Ok(When::Level(level));
        }
        let Some((key, value, at_ms)) = self.timer(wall_ms)? else {
            return Ok(When::Now);
        };
        if !broker.config.timers {
            let remark = format!(
                "property {key}={value:.40}, but timer messages are off (timerWheelEnable)"
            );
            return Err((ResponseCode::SYSTEM_ERROR, remark));
        }
        let max_ms = broker.config.timer_ms_max;
        if at_ms - wall_ms > max_ms {
            return Err(illegal(format!(
                "property {key}={value:.40} is {} ms away, the limit is {max_ms}",
                at_ms - wall_ms
            )));
        }
        Ok(When::At(at_ms))
    }

    /// The timer property that counts and its time, if that lies in the future.
    fn timer(&self, wall_ms: u64) -> Result<Option<(&'static str, &'a str, u64)>, Refusal> {
        let now_ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
        let (key, value, at_ms) = if let Some(seconds) = self.timer_seconds {
            let delay_ms = number(name::TIMER_DELAY_SECONDS, seconds)?.saturating_mul(1000);
            (
                name::TIMER_DELAY_SECONDS,
                seconds,
                now_ms.saturating_add(delay_ms),
            )
        } else if let Some(ms) = self.timer_ms {
            let delay_ms = number(name::TIMER_DELAY_MS, ms)?;
            (name::TIMER_DELAY_MS, ms, now_ms.saturating_add(delay_ms))
        } else if let Some(at) = self.timer_at_ms {
            let at_ms = number(name::TIMER_DELIVER_MS, at)?;
            (name::TIMER_DELIVER_MS, at, at_ms)
        } else {
            return Ok(None);
        };
        Ok((at_ms > now_ms).then_some((key, value, at_ms as u64)))
    }

    /// Refuses a delay where none is possible: in a batch.
    pub fn check_no_delay(&self, broker: &Broker, wall_ms: u64) -> Result<(), Refusal> {
        let level = match self.delay {
            Some(text) => delay::level(broker, text)?.map(|_| (name::DELAY, text)),
            None => None,
        };
        let Some((key, value)) = level.or(self.timer(wall_ms)?.map(|(key, value, _)| (key, value)))
        else {
            return Ok(());
        };
        Err(illegal(format!(
            "property {key}={value:.40} asks for a later delivery, which a batch can't have"
        )))
    }

    /// Writes the properties of a single message as they are stored.
    pub fn store_one(
        &self,
        encoded: &str,
        drop_delay: bool,
        unique_key: &str,
        config: &BrokerConfig,
        out: &mut String,
    ) {
        out.clear();
        if drop_delay {
            properties::copy_without(encoded, &OWNED_AND_DELAY, out);
        } else if self.has_owned {
            properties::copy_without(encoded, &OWNED, out);
        } else {
            out.push_str(encoded);
        }
        if self.unique_key.is_empty() {
            properties::append(out, name::UNIQUE_KEY, unique_key);
        }
        properties::append(out, name::CLUSTER, &config.cluster_name);
        properties::append(out, name::MSG_REGION, config.region);
        let trace_on = if config.trace_on { "true" } else { "false" };
        properties::append(out, name::TRACE_ON, trace_on);
    }

    /// Whether a record of a batch is stored with the very properties that it came with.
    pub fn are_stored_as_sent(&self) -> bool {
        !self.unique_key.is_empty() && !self.has_pop_check_point
    }

    /// Appends the properties of one record of a batch as they are stored: Apache adds nothing to them, so that a
    /// batch stays small; only the key that tools need is added where it is missing.
    pub fn store_record(&self, encoded: &str, unique_key: &str, out: &mut String) {
        let start = out.len();
        properties::copy_without(encoded, &[name::POP_CHECK_POINT], out);
        if self.unique_key.is_empty() {
            // The separator belongs to this record only if something of it is there already.
            if out.len() > start && !out.ends_with('\u{2}') {
                out.push('\u{2}');
            }
            for part in [name::UNIQUE_KEY, "\u{1}", unique_key, "\u{2}"] {
                out.push_str(part);
            }
        }
    }
}

/// `Boolean.parseBoolean` of Java.
fn is_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

fn number(key: &str, value: &str) -> Result<i64, Refusal> {
    value
        .parse()
        .map_err(|_| illegal(format!("property {key} is no number: {value:.40}")))
}

/// Refuses what doesn't fit the record's 16-bit length (apache/rocketmq#3786), with `room` for what comes later.
pub(super) fn check_bytes(stored: &str, room: usize) -> Result<(), Refusal> {
    if stored.len() + room <= PROPERTIES_BYTES_MAX {
        return Ok(());
    }
    Err(illegal(format!(
        "its properties have {} bytes with those that the broker adds, the limit is {PROPERTIES_BYTES_MAX}, which the \
         stored format sets and no key changes",
        stored.len() + room
    )))
}
