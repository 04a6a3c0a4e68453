//! Headers of the requests on the hot path, decoded without allocation.

use super::codes::RequestCode;
use super::command::{Command, FieldError};

/// Header of 10 (long names), 310 and 320 (one letter each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHeader<'a> {
    pub producer_group: &'a str,
    pub topic: &'a str,
    pub default_topic: &'a str,
    pub default_topic_queue_nums: i32,
    /// Negative: the broker picks.
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    /// Encoded properties, unescaped; empty where missing.
    pub properties: &'a str,
    pub reconsume_times: i32,
    pub unit_mode: bool,
    /// True only for a case-insensitive "true": C++ clients send "1" and expect one message.
    pub batch: bool,
    pub max_reconsume_times: Option<i32>,
}

/// Names of the fields in order of [`SendHeader`].
type SendNames = [&'static str; 13];

const LONG: SendNames = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "batch",
    "maxReconsumeTimes",
];
const SHORT: SendNames = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "m", "l",
];

impl<'a> SendHeader<'a> {
    /// Picks the names by the request code.
    pub fn decode(command: &Command<'a>) -> Result<Self, FieldError> {
        let names = if command.code == RequestCode::SEND_MESSAGE.0 {
            &LONG
        } else {
            &SHORT
        };
        Ok(Self {
            producer_group: command.require_text(names[0])?,
            topic: command.require_text(names[1])?,
            default_topic: command.text(names[2]).unwrap_or_default(),
            default_topic_queue_nums: command.i32(names[3])?.unwrap_or(0),
            queue_id: command.require_i32(names[4])?,
            sys_flag: command.require_i32(names[5])?,
            born_timestamp: command.require_i64(names[6])?,
            flag: command.require_i32(names[7])?,
            properties: command.text(names[8]).unwrap_or_default(),
            reconsume_times: command.i32(names[9])?.unwrap_or(0),
            unit_mode: command.bool(names[10]).unwrap_or(false),
            batch: command.bool(names[11]).unwrap_or(false),
            max_reconsume_times: command.i32(names[12])?,
        })
    }
}

pub const PULL_FLAG_COMMIT_OFFSET: i32 = 1;
pub const PULL_FLAG_SUSPEND: i32 = 2;
pub const PULL_FLAG_SUBSCRIPTION: i32 = 4;
pub const PULL_FLAG_CLASS_FILTER: i32 = 8;
pub const PULL_FLAG_LITE: i32 = 16;

/// Header of 11 and 361.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullHeader<'a> {
    pub consumer_group: &'a str,
    pub topic: &'a str,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub max_msg_nums: i32,
    pub sys_flag: i32,
    pub commit_offset: i64,
    pub suspend_timeout_millis: i64,
    pub subscription: Option<&'a str>,
    pub sub_version: i64,
    /// "TAG" where missing.
    pub expression_type: &'a str,
}

impl<'a> PullHeader<'a> {
    pub fn decode(command: &Command<'a>) -> Result<Self, FieldError> {
        Ok(Self {
            consumer_group: command.require_text("consumerGroup")?,
            topic: command.require_text("topic")?,
            queue_id: command.require_i32("queueId")?,
            queue_offset: command.require_i64("queueOffset")?,
            max_msg_nums: command.require_i32("maxMsgNums")?,
            sys_flag: command.require_i32("sysFlag")?,
            commit_offset: command.i64("commitOffset")?.unwrap_or(0),
            suspend_timeout_millis: command.i64("suspendTimeoutMillis")?.unwrap_or(0),
            subscription: command.text("subscription"),
            sub_version: command.i64("subVersion")?.unwrap_or(0),
            expression_type: command
                .text("expressionType")
                .filter(|t| !t.is_empty())
                .unwrap_or("TAG"),
        })
    }
}
