//! Names of topics and groups: rules, reserved ones, prefixes.

use crate::limits::{GROUP_BYTES_MAX, SYSTEM_TOPIC_BYTES_MAX, TOPIC_BYTES_MAX};

pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DLQ_PREFIX: &str = "%DLQ%";
pub const AUTO_CREATE_TOPIC: &str = "TBW102";
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
pub const CHECK_MAX_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
pub const OFFSET_MOVED_TOPIC: &str = "OFFSET_MOVED_EVENT";
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
const SYSTEM_PREFIX: &str = "rmq_sys_";

/// Groups that exist from the start. Source: apache/rocketmq `SubscriptionGroupManager`.
pub const SYSTEM_GROUPS: [&str; 8] = [
    "TOOLS_CONSUMER",
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

fn check(kind: &'static str, name: &str, max: usize) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { kind });
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '%' | '|' | '-' | '_');
    if let Some(character) = name.chars().find(|c| !allowed(*c)) {
        return Err(NameError::Character { kind, character });
    }
    if name.len() > max {
        return Err(NameError::TooLong {
            kind,
            bytes: name.len(),
            max,
        });
    }
    Ok(())
}

/// Checks a topic name. These names become directories: nothing but the allowed characters gets through.
pub fn check_topic(name: &str) -> Result<(), NameError> {
    let max = if is_retry_or_dlq(name) {
        SYSTEM_TOPIC_BYTES_MAX
    } else {
        TOPIC_BYTES_MAX
    };
    check("topic name", name, max)
}

pub fn check_group(name: &str) -> Result<(), NameError> {
    check("group name", name, GROUP_BYTES_MAX)
}

/// System topics can't be created, changed or deleted by clients.
pub fn is_system_topic(name: &str) -> bool {
    const NAMES: [&str; 9] = [
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    ];
    NAMES.contains(&name) || name.starts_with(SYSTEM_PREFIX)
}

/// System topics that clients can't send to (code 16). Source: apache/rocketmq `TopicValidator`.
pub fn is_send_refused(name: &str) -> bool {
    const NAMES: [&str; 6] = [
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    ];
    NAMES.contains(&name)
}

pub fn is_system_group(name: &str) -> bool {
    SYSTEM_GROUPS.contains(&name) || name.starts_with("CID_RMQ_SYS_")
}

pub fn is_retry_or_dlq(name: &str) -> bool {
    name.starts_with(RETRY_PREFIX) || name.starts_with(DLQ_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_directory_are_refused() {
        for bad in [
            "",
            "../x",
            "a/b",
            "a\0",
            "ü",
            "a b",
            ".",
            "a.b",
            &"x".repeat(128),
            "a\u{1}b",
        ] {
            assert!(check_topic(bad).is_err(), "{bad:?}");
        }
        for good in [
            "T",
            "%RETRY%g",
            "a|b-c_d",
            &"x".repeat(127),
            &format!("%DLQ%{}", "g".repeat(120)),
        ] {
            assert_eq!(check_topic(good), Ok(()), "{good:?}");
        }
    }
}
