//! 25, 26: the configuration of a running broker.
//!
//! 25 changes the keys of a closed list, of which none names a path, an address or a program: an open list was how
//! brokers were taken over (CVE-2023-33246). A change lasts until the process ends; the file is the operator's.

use super::{Answer, refuse};
use crate::broker::{Broker, BrokerConfig, Outcome};
use crate::protocol::bodies;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::Command;
use crate::protocol::response::{Response, ResponseHeader};
use std::fmt::Write;

/// Largest body of 25. Source: ours, all keys with their values are less.
const BODY_BYTES_MAX: usize = 16 * 1024;

enum Change {
    Switch(fn(&mut BrokerConfig, bool)),
    Milliseconds(u64, u64, fn(&mut BrokerConfig, u64)),
}

/// What may be changed.
const CHANGES: [(&str, Change); 8] = [
    (
        "autoCreateTopicEnable",
        Change::Switch(|c, on| c.auto_create_topics = on),
    ),
    (
        "autoCreateSubscriptionGroup",
        Change::Switch(|c, on| c.auto_create_groups = on),
    ),
    (
        "longPollingEnable",
        Change::Switch(|c, on| c.long_polling = on),
    ),
    (
        "shortPollingTimeMills",
        Change::Milliseconds(1, 29_000, |c, ms| c.short_polling_ms = ms),
    ),
    (
        "litePullMessageEnable",
        Change::Switch(|c, on| c.lite_pull_enable = on),
    ),
    (
        "enablePropertyFilter",
        Change::Switch(|c, on| c.property_filter_enable = on),
    ),
    (
        "youngQueuesStartAtZero",
        Change::Switch(|c, on| c.young_queues_start_at_zero = on),
    ),
    ("traceOn", Change::Switch(|c, on| c.trace_on = on)),
];

/// 26: all keys with their values, in the form of the file.
pub fn settings(broker: &Broker) -> Answer {
    let mut text = String::new();
    for (key, value) in &broker.config.settings {
        let _ = writeln!(text, "{key}={value}");
    }
    let version = bodies::encode(&broker.settings_version);
    let version = String::from_utf8_lossy(&version).into_owned();
    let mut response = Response::with_body(text);
    response.header = ResponseHeader::Fields(vec![("version", version)]);
    Ok(Outcome::Reply(response))
}

/// 25: all of the body's keys or none.
pub fn update(broker: &mut Broker, command: &Command<'_>, now_ms: u64) -> Answer {
    if command.body.len() > BODY_BYTES_MAX {
        let remark = format!("the body has more than {BODY_BYTES_MAX} bytes");
        return refuse(ResponseCode::INVALID_PARAMETER, remark);
    }
    let wanted = match java_properties::read(command.body) {
        Ok(wanted) => wanted,
        Err(error) => return refuse(ResponseCode::INVALID_PARAMETER, error.to_string()),
    };
    let mut changed = broker.config.clone();
    for (key, value) in &wanted {
        let Some((name, change)) = CHANGES.iter().find(|(name, _)| name == key) else {
            let names: Vec<&str> = CHANGES.iter().map(|(name, _)| *name).collect();
            let remark = format!(
                "{key:?} can't be changed in a running broker; what can: {}",
                names.join(", ")
            );
            return refuse(ResponseCode::NO_PERMISSION, remark);
        };
        if let Err(reason) = apply(&mut changed, change, value.trim()) {
            return refuse(ResponseCode::INVALID_PARAMETER, format!("{name} {reason}"));
        }
        let known = changed.settings.iter_mut().find(|(known, _)| known == name);
        if let Some((_, known)) = known {
            *known = value.trim().to_owned();
        }
    }
    tracing::info!(?wanted, "configuration changed until the process ends");
    broker.config = changed;
    broker.settings_version.bump(now_ms);
    Ok(Outcome::Reply(Response::success()))
}

fn apply(config: &mut BrokerConfig, change: &Change, value: &str) -> Result<(), String> {
    match change {
        Change::Switch(set) => match value.parse() {
            Ok(on) => set(config, on),
            Err(_) => return Err(format!("is {value:?}, allowed are true and false")),
        },
        Change::Milliseconds(min, max, set) => match value.parse() {
            Ok(ms) if (*min..=*max).contains(&ms) => set(config, ms),
            _ => return Err(format!("is {value:?}, allowed are {min} to {max}")),
        },
    }
    Ok(())
}
