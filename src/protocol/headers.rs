//! Headers of the requests on the hot path, decoded without allocation, in one pass over the fields.

use super::codes::RequestCode;
use super::command::{Command, FieldError, parse_bool, parse_i32, parse_i64};

/// Header of 10 (long names), 310 and 320 (one letter each); of 324 and 325 likewise.
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

/// Fields of a send by their long names, which are those of errors too.
mod send_field {
    pub const PRODUCER_GROUP: &str = "producerGroup";
    pub const TOPIC: &str = "topic";
    pub const DEFAULT_TOPIC: &str = "defaultTopic";
    pub const DEFAULT_TOPIC_QUEUE_NUMS: &str = "defaultTopicQueueNums";
    pub const QUEUE_ID: &str = "queueId";
    pub const SYS_FLAG: &str = "sysFlag";
    pub const BORN_TIMESTAMP: &str = "bornTimestamp";
    pub const FLAG: &str = "flag";
    pub const PROPERTIES: &str = "properties";
    pub const RECONSUME_TIMES: &str = "reconsumeTimes";
    pub const UNIT_MODE: &str = "unitMode";
    pub const MAX_RECONSUME_TIMES: &str = "maxReconsumeTimes";
    pub const BATCH: &str = "batch";
}

/// The long name that a letter stands for. Source: apache/rocketmq 4.9.8
/// `common/.../protocol/header/SendMessageRequestHeaderV2.java`.
fn long_name(letter: &str) -> &str {
    match letter {
        "a" => send_field::PRODUCER_GROUP,
        "b" => send_field::TOPIC,
        "c" => send_field::DEFAULT_TOPIC,
        "d" => send_field::DEFAULT_TOPIC_QUEUE_NUMS,
        "e" => send_field::QUEUE_ID,
        "f" => send_field::SYS_FLAG,
        "g" => send_field::BORN_TIMESTAMP,
        "h" => send_field::FLAG,
        "i" => send_field::PROPERTIES,
        "j" => send_field::RECONSUME_TIMES,
        "k" => send_field::UNIT_MODE,
        "l" => send_field::MAX_RECONSUME_TIMES,
        "m" => send_field::BATCH,
        _ => "",
    }
}

/// What has been seen of a send's fields; only the optional ones have a default.
#[derive(Default)]
struct SendFields<'a> {
    producer_group: Option<&'a str>,
    topic: Option<&'a str>,
    default_topic: Option<&'a str>,
    default_topic_queue_nums: Option<i32>,
    queue_id: Option<i32>,
    sys_flag: Option<i32>,
    born_timestamp: Option<i64>,
    flag: Option<i32>,
    properties: &'a str,
    reconsume_times: Option<i32>,
    unit_mode: bool,
    batch: bool,
    max_reconsume_times: Option<i32>,
}

impl<'a> SendFields<'a> {
    fn set(&mut self, long_name: &str, value: &'a str) -> Result<(), FieldError> {
        use send_field::*;
        match long_name {
            PRODUCER_GROUP => self.producer_group = Some(value),
            TOPIC => self.topic = Some(value),
            DEFAULT_TOPIC => self.default_topic = Some(value),
            DEFAULT_TOPIC_QUEUE_NUMS => {
                self.default_topic_queue_nums = parse_i32(DEFAULT_TOPIC_QUEUE_NUMS, value)?;
            }
            QUEUE_ID => self.queue_id = parse_i32(QUEUE_ID, value)?,
            SYS_FLAG => self.sys_flag = parse_i32(SYS_FLAG, value)?,
            BORN_TIMESTAMP => self.born_timestamp = parse_i64(BORN_TIMESTAMP, value)?,
            FLAG => self.flag = parse_i32(FLAG, value)?,
            PROPERTIES => self.properties = value,
            RECONSUME_TIMES => self.reconsume_times = parse_i32(RECONSUME_TIMES, value)?,
            UNIT_MODE => self.unit_mode = parse_bool(value),
            BATCH => self.batch = parse_bool(value),
            MAX_RECONSUME_TIMES => {
                self.max_reconsume_times = parse_i32(MAX_RECONSUME_TIMES, value)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<SendHeader<'a>, FieldError> {
        use send_field::*;
        Ok(SendHeader {
            producer_group: require(PRODUCER_GROUP, self.producer_group)?,
            topic: require(TOPIC, self.topic)?,
            default_topic: require(DEFAULT_TOPIC, self.default_topic)?,
            default_topic_queue_nums: require(
                DEFAULT_TOPIC_QUEUE_NUMS,
                self.default_topic_queue_nums,
            )?,
            queue_id: require(QUEUE_ID, self.queue_id)?,
            sys_flag: require(SYS_FLAG, self.sys_flag)?,
            born_timestamp: require(BORN_TIMESTAMP, self.born_timestamp)?,
            flag: require(FLAG, self.flag)?,
            properties: self.properties,
            reconsume_times: self.reconsume_times.unwrap_or(0),
            unit_mode: self.unit_mode,
            batch: self.batch,
            max_reconsume_times: self.max_reconsume_times,
        })
    }
}

fn require<T>(name: &'static str, value: Option<T>) -> Result<T, FieldError> {
    value.ok_or(FieldError::Missing(name))
}

impl<'a> SendHeader<'a> {
    /// Picks the names by the request code.
    ///
    /// **Errors**: a field that Java requires is missing, or a number is none; answered with code 1.
    pub fn decode(command: &Command<'a>) -> Result<Self, FieldError> {
        let short_names = matches!(
            RequestCode(command.code),
            RequestCode::SEND_MESSAGE_V2
                | RequestCode::SEND_BATCH_MESSAGE
                | RequestCode::SEND_REPLY_MESSAGE_V2
        );
        let mut fields = SendFields::default();
        for (name, value) in command.fields.iter() {
            let name = if short_names { long_name(name) } else { name };
            fields.set(name, value)?;
        }
        fields.finish()
    }
}

pub const PULL_FLAG_COMMIT_OFFSET: i32 = 1;
pub const PULL_FLAG_SUSPEND: i32 = 2;
pub const PULL_FLAG_SUBSCRIPTION: i32 = 4;
pub const PULL_FLAG_CLASS_FILTER: i32 = 8;
pub const PULL_FLAG_LITE: i32 = 16;

/// Expression type of a filter by tags, and of a request that names none.
pub const EXPRESSION_TYPE_TAG: &str = "TAG";
pub const EXPRESSION_TYPE_SQL92: &str = "SQL92";

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

/// What has been seen of a pull's fields.
#[derive(Default)]
struct PullFields<'a> {
    consumer_group: Option<&'a str>,
    topic: Option<&'a str>,
    queue_id: Option<i32>,
    queue_offset: Option<i64>,
    max_msg_nums: Option<i32>,
    sys_flag: Option<i32>,
    commit_offset: Option<i64>,
    suspend_timeout_millis: Option<i64>,
    subscription: Option<&'a str>,
    sub_version: Option<i64>,
    expression_type: &'a str,
}

impl<'a> PullFields<'a> {
    fn set(&mut self, name: &str, value: &'a str) -> Result<(), FieldError> {
        match name {
            "consumerGroup" => self.consumer_group = Some(value),
            "topic" => self.topic = Some(value),
            "queueId" => self.queue_id = parse_i32("queueId", value)?,
            "queueOffset" => self.queue_offset = parse_i64("queueOffset", value)?,
            "maxMsgNums" => self.max_msg_nums = parse_i32("maxMsgNums", value)?,
            "sysFlag" => self.sys_flag = parse_i32("sysFlag", value)?,
            "commitOffset" => self.commit_offset = parse_i64("commitOffset", value)?,
            "suspendTimeoutMillis" => {
                self.suspend_timeout_millis = parse_i64("suspendTimeoutMillis", value)?;
            }
            "subscription" => self.subscription = Some(value),
            "subVersion" => self.sub_version = parse_i64("subVersion", value)?,
            "expressionType" => self.expression_type = value,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> PullHeader<'a> {
    /// Reads the fields of a pull.
    ///
    /// **Errors**: a field that Java requires is missing, or a number is none; answered with code 1.
    pub fn decode(command: &Command<'a>) -> Result<Self, FieldError> {
        let mut fields = PullFields::default();
        for (name, value) in command.fields.iter() {
            fields.set(name, value)?;
        }
        Ok(PullHeader {
            consumer_group: require("consumerGroup", fields.consumer_group)?,
            topic: require("topic", fields.topic)?,
            queue_id: require("queueId", fields.queue_id)?,
            queue_offset: require("queueOffset", fields.queue_offset)?,
            max_msg_nums: require("maxMsgNums", fields.max_msg_nums)?,
            sys_flag: require("sysFlag", fields.sys_flag)?,
            commit_offset: require("commitOffset", fields.commit_offset)?,
            suspend_timeout_millis: require("suspendTimeoutMillis", fields.suspend_timeout_millis)?,
            subscription: fields.subscription,
            sub_version: require("subVersion", fields.sub_version)?,
            expression_type: match fields.expression_type {
                "" => EXPRESSION_TYPE_TAG,
                named => named,
            },
        })
    }
}

/// Header of 200050.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PopHeader<'a> {
    pub consumer_group: &'a str,
    pub topic: &'a str,
    /// Negative: any.
    pub queue_id: i32,
    pub max_msg_nums: i32,
    pub invisible_time: i64,
    pub poll_time: i64,
    pub born_time: i64,
    /// 0: a new group starts at the first message; 1: behind the last.
    pub init_mode: i32,
    /// "" where missing: everything.
    pub expression: &'a str,
    /// "TAG" where missing.
    pub expression_type: &'a str,
    pub order: bool,
}

impl<'a> PopHeader<'a> {
    /// **Errors**: a field that Java requires is missing, or a number is none; answered with code 1.
    pub fn decode(command: &Command<'a>) -> Result<Self, FieldError> {
        let expression_type = command.text("expType").unwrap_or_default();
        Ok(Self {
            consumer_group: command.require_text("consumerGroup")?,
            topic: command.require_text("topic")?,
            queue_id: command.require_i32("queueId")?,
            max_msg_nums: command.require_i32("maxMsgNums")?,
            invisible_time: command.require_i64("invisibleTime")?,
            poll_time: command.require_i64("pollTime")?,
            born_time: command.require_i64("bornTime")?,
            init_mode: command.require_i32("initMode")?,
            expression: command.text("exp").unwrap_or_default(),
            expression_type: match expression_type {
                "" => EXPRESSION_TYPE_TAG,
                named => named,
            },
            order: command.bool("order").unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::{Encoding, Scratch};
    use crate::protocol::frame::Frame;

    fn with_command<T>(header: &str, read: impl FnOnce(&Command<'_>) -> T) -> T {
        let frame = Frame {
            encoding: Encoding::Json,
            header: header.as_bytes(),
            body: b"",
            bytes: 0,
        };
        let mut scratch = Scratch::default();
        read(&Command::decode(&frame, &mut scratch).expect("a header"))
    }

    fn check_send(header: &str, expected: SendHeader<'_>) {
        with_command(header, |command| {
            assert_eq!(SendHeader::decode(command), Ok(expected), "{header}");
        });
    }

    /// Trap 2 of `conventions.md`: `ali-ons` leaves `l` and `m` out and sends numbers and booleans.
    #[test]
    fn send_of_ali_ons_is_read() {
        check_send(
            r#"{"code":310,"language":"JAVA","opaque":2,"flag":0,"version":121,"extFields":{"a":"PID","b":"SmokeT",
            "c":"TBW102","d":4,"e":3,"f":0,"g":1796098557281,"h":0,"i":"TAGS\u0001TagA\u0002","j":0,"k":false}}"#,
            SendHeader {
                producer_group: "PID",
                topic: "SmokeT",
                default_topic: "TBW102",
                default_topic_queue_nums: 4,
                queue_id: 3,
                sys_flag: 0,
                born_timestamp: 1_796_098_557_281,
                flag: 0,
                properties: "TAGS\u{1}TagA\u{2}",
                reconsume_times: 0,
                unit_mode: false,
                batch: false,
                max_reconsume_times: None,
            },
        );
    }

    /// Trap 5: Go sends single messages as 10 with long names and `bname`.
    #[test]
    fn send_of_go_is_read() {
        check_send(
            r#"{"code":10,"extFields":{"sysFlag":"4","bornTimestamp":"1796098496158","bname":"broker-a","properties":"",
            "reconsumeTimes":"1","defaultTopic":"TBW102","batch":"false","maxReconsumeTimes":"0","producerGroup":"PG",
            "queueId":"-1","flag":"7","topic":"T","unitMode":"true","defaultTopicQueueNums":"4","a":"no"}}"#,
            SendHeader {
                producer_group: "PG",
                topic: "T",
                default_topic: "TBW102",
                default_topic_queue_nums: 4,
                queue_id: -1,
                sys_flag: 4,
                born_timestamp: 1_796_098_496_158,
                flag: 7,
                properties: "",
                reconsume_times: 1,
                unit_mode: true,
                batch: false,
                max_reconsume_times: Some(0),
            },
        );
    }

    /// Trap 1: C++ sends the batch flag as "1", which Java and we read as false.
    #[test]
    fn batch_flag_of_cpp_is_not_a_batch() {
        for (code, batch, expected) in [
            (310, "1", false),
            (310, "true", true),
            (320, "TRUE", true),
            (325, "0", false),
        ] {
            let header = format!(
                r#"{{"code":{code},"extFields":{{"a":"G","b":"T","c":"D","d":4,"e":0,"f":0,"g":"1","h":0,"m":"{batch}"}}}}"#
            );
            with_command(&header, |command| {
                let send = SendHeader::decode(command).expect("a send");
                assert_eq!(send.batch, expected, "{code} {batch}");
            });
        }
    }

    #[test]
    fn missing_field_of_a_send_is_named() {
        let header =
            r#"{"code":310,"extFields":{"a":"G","c":"D","d":4,"e":0,"f":0,"g":"1","h":0}}"#;
        with_command(header, |command| {
            assert_eq!(
                SendHeader::decode(command),
                Err(FieldError::Missing("topic"))
            );
        });
        let header = r#"{"code":10,"extFields":{"queueId":"one"}}"#;
        with_command(header, |command| {
            let error = SendHeader::decode(command).expect_err("no number");
            assert_eq!(
                error.to_string(),
                "the custom field <queueId> is not a 32-bit integer: one"
            );
        });
    }

    const PULL: PullHeader<'_> = PullHeader {
        consumer_group: "CG",
        topic: "T",
        queue_id: 3,
        queue_offset: 0,
        max_msg_nums: 32,
        sys_flag: 6,
        commit_offset: 0,
        suspend_timeout_millis: 15_000,
        subscription: Some("*"),
        sub_version: 1_796_098_548_612,
        expression_type: "TAG",
    };

    #[test]
    fn pull_of_cpp_is_read() {
        let header = r#"{"code":11,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","commitOffset":"0","consumerGroup":"CG",
            "maxMsgNums":32,"queueId":3,"queueOffset":"0","subVersion":"1796098548612","subscription":"*",
            "suspendTimeoutMillis":"15000","sysFlag":6,"topic":"T"},"language":"CPP","opaque":24,"version":63}"#;
        with_command(header, |command| {
            assert_eq!(PullHeader::decode(command), Ok(PULL));
        });
    }

    #[test]
    fn pull_names_its_expression_type() {
        let header = r#"{"code":361,"extFields":{"commitOffset":"5","consumerGroup":"CG","maxMsgNums":"32","queueId":"3",
            "queueOffset":"-1","subVersion":"0","expressionType":"SQL92","suspendTimeoutMillis":"15000","sysFlag":"6",
            "topic":"T","maxMsgBytes":"1"}}"#;
        with_command(header, |command| {
            let expected = PullHeader {
                queue_offset: -1,
                commit_offset: 5,
                subscription: None,
                sub_version: 0,
                expression_type: "SQL92",
                ..PULL
            };
            assert_eq!(PullHeader::decode(command), Ok(expected));
        });
        with_command(r#"{"code":11,"extFields":{"topic":"T"}}"#, |command| {
            let missing = FieldError::Missing("consumerGroup");
            assert_eq!(PullHeader::decode(command), Err(missing));
        });
    }
}
