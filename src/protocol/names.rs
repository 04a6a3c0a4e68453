//! Names of topics and groups: rules, reserved ones, prefixes.
//!
//! Source: apache/rocketmq 5.3.x `common/.../topic/TopicValidator.java`, `common/.../MixAll.java`.
//! Names are case-sensitive. Topics named like a cluster or a broker are system topics too; which these are, only
//! the configuration tells, so that their owner checks them.

use crate::limits::{GROUP_BYTES_MAX, SYSTEM_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX};

pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DLQ_PREFIX: &str = "%DLQ%";
pub const SYSTEM_TOPIC_PREFIX: &str = "rmq_sys_";
pub const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";

pub const AUTO_CREATE_TOPIC: &str = "TBW102";
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
pub const CHECK_MAX_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
pub const OFFSET_MOVED_TOPIC: &str = "OFFSET_MOVED_EVENT";
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
/// End of the name of a cluster's topic for the replies of request and reply.
pub const REPLY_TOPIC_SUFFIX: &str = "_REPLY_TOPIC";

/// System topics that clients may send to.
const SYSTEM_TOPICS_OPEN: [&str; 4] = [
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    "CHECKPOINT_TOPIC",
];

/// System topics that clients may not send to.
const SYSTEM_TOPICS_CLOSED: [&str; 13] = [
    SCHEDULE_TOPIC,
    "SCHEDULE_TOPIC_XXXX_V2",
    HALF_TOPIC,
    OP_HALF_TOPIC,
    CHECK_MAX_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
    "RMQ_SYS_TOPIC_CONFIG_SYNC",
    "RMQ_SYS_CONSUMER_OFFSET_SYNC",
    "RMQ_SYS_DELAY_OFFSET_SYNC",
    "RMQ_SYS_SUBSCRIPTION_GROUP_SYNC",
    "RMQ_SYS_MESSAGE_MODE_SYNC",
    "RMQ_SYS_TIMER_METRICS_SYNC",
];

/// Group that command line tools pull as.
pub const TOOLS_GROUP: &str = "TOOLS_CONSUMER";

/// Groups that exist from the start of a broker.
pub const SYSTEM_GROUPS: [&str; 8] = [
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    #[error("the {kind} is empty")]
    Empty { kind: &'static str },
    #[error("the {kind} has {bytes} bytes, the limit is {max}")]
    TooLong {
        kind: &'static str,
        bytes: usize,
        max: usize,
    },
    #[error("the {kind} contains {character:?}; allowed are letters, digits, %, |, - and _")]
    Character { kind: &'static str, character: char },
}

/// Checks a topic name. These names become directories: nothing but the allowed characters gets through.
///
/// **Errors**: answered with code 29. **Source**: apache/rocketmq 5.3.x `TopicValidator#validateTopic`.
pub fn check_topic(name: &str) -> Result<(), NameError> {
    let max = if is_retry_or_dlq(name) {
        SYSTEM_TOPIC_BYTES_MAX
    } else {
        TOPIC_BYTES_MAX
    };
    check(name, "topic", max)
}

/// Checks a group name.
///
/// **Errors**: answered with code 29. **Source**: apache/rocketmq 5.3.x `TopicValidator#validateGroup`.
pub fn check_group(name: &str) -> Result<(), NameError> {
    check(name, "group", GROUP_BYTES_MAX)
}

fn check(name: &str, kind: &'static str, max: usize) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { kind });
    }
    if name.len() > max {
        let bytes = name.len();
        return Err(NameError::TooLong { kind, bytes, max });
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '%' | '|' | '-' | '_');
    match name.chars().find(|&character| !allowed(character)) {
        Some(character) => Err(NameError::Character { kind, character }),
        None => Ok(()),
    }
}

/// System topics can't be created, changed or deleted by clients.
pub fn is_system_topic(name: &str) -> bool {
    name.starts_with(SYSTEM_TOPIC_PREFIX)
        || SYSTEM_TOPICS_OPEN.contains(&name)
        || SYSTEM_TOPICS_CLOSED.contains(&name)
}

/// System topics that clients can't send to (code 16).
pub fn is_send_refused(name: &str) -> bool {
    SYSTEM_TOPICS_CLOSED.contains(&name)
}

/// Groups that exist from the start, and all whose prefix lets them be created although auto-creation is off.
pub fn is_system_group(name: &str) -> bool {
    name.starts_with(SYSTEM_GROUP_PREFIX) || SYSTEM_GROUPS.contains(&name)
}

pub fn is_retry_or_dlq(name: &str) -> bool {
    name.starts_with(RETRY_PREFIX) || name.starts_with(DLQ_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names() {
        let long = "t".repeat(127);
        let retry = format!("{RETRY_PREFIX}{}", "g".repeat(248));
        for name in ["T", "%RETRY%g", "a|b-c_d%9", &long, &retry] {
            assert_eq!(check_topic(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn wrong_topic_names() {
        let too_long = |bytes, max| NameError::TooLong {
            kind: "topic",
            bytes,
            max,
        };
        let character = |character| NameError::Character {
            kind: "topic",
            character,
        };
        let retry = format!("{DLQ_PREFIX}{}", "g".repeat(251));
        let cases = [
            ("", NameError::Empty { kind: "topic" }),
            (&"t".repeat(128), too_long(128, 127)),
            (&retry, too_long(256, 255)),
            (" ", character(' ')),
            ("..", character('.')),
            ("a/b", character('/')),
            ("a\0", character('\0')),
            ("主题", character('主')),
        ];
        for (name, expected) in cases {
            assert_eq!(check_topic(name), Err(expected), "{name}");
        }
    }

    /// A group of the longest name still has a retry topic that fits the one length byte of a v1 record, which
    /// is what Go and 4.9 clients read.
    #[test]
    fn retry_topic_of_the_longest_group_fits_a_v1_record() {
        let group = "g".repeat(GROUP_BYTES_MAX);
        assert_eq!(check_group(&group), Ok(()));
        assert!(check_group(&format!("{group}g")).is_err());
        assert_eq!(RETRY_PREFIX.len() + group.len(), TOPIC_BYTES_MAX);
    }

    #[test]
    fn system_names() {
        for (name, system, refused) in [
            ("TBW102", true, false),
            ("RMQ_SYS_TRACE_TOPIC", true, false),
            ("SCHEDULE_TOPIC_XXXX", true, true),
            ("RMQ_SYS_TRANS_HALF_TOPIC", true, true),
            ("rmq_sys_anything", true, false),
            ("RMQ_SYS_anything", false, false),
            ("%RETRY%g", false, false),
            ("T", false, false),
        ] {
            assert_eq!(is_system_topic(name), system, "{name}");
            assert_eq!(is_send_refused(name), refused, "{name}");
        }
        assert!(is_system_group("TOOLS_CONSUMER"));
        assert!(is_system_group("CID_RMQ_SYS_X"));
        assert!(!is_system_group("CID_X"));
    }
}
