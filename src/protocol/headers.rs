//! Headers of the requests on the hot path, decoded without allocation.

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

impl<'a> SendHeader<'a> {
    /// Picks the names by the request code.
    pub fn decode(command: &Command<'a>) -> Result<Self, FieldError> {
        todo!("{command:?}")
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
        todo!("{command:?}")
    }
}
