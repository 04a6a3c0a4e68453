//! Names of topics and groups: rules, reserved ones, prefixes.

pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DLQ_PREFIX: &str = "%DLQ%";
pub const AUTO_CREATE_TOPIC: &str = "TBW102";
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

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
pub fn check_topic(name: &str) -> Result<(), NameError> {
    todo!("{name}")
}
pub fn check_group(name: &str) -> Result<(), NameError> {
    todo!("{name}")
}
/// System topics can't be created, changed or deleted by clients.
pub fn is_system_topic(name: &str) -> bool {
    todo!("{name}")
}
/// System topics that clients can't send to (code 16).
pub fn is_send_refused(name: &str) -> bool {
    todo!("{name}")
}
pub fn is_system_group(name: &str) -> bool {
    todo!("{name}")
}
pub fn is_retry_or_dlq(name: &str) -> bool {
    name.starts_with(RETRY_PREFIX) || name.starts_with(DLQ_PREFIX)
}
