//! 200, 201, 207.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/AdminBrokerProcessor.java`.

use super::{Answer, PageFields, answer_with, invalid, keep_page, refuse};
use crate::broker::{Broker, Context, Outcome};
use crate::limits::{GROUP_CONFIG_BYTES_MAX, TOPIC_QUEUES_MAX};
use crate::protocol::bodies::{self, GroupConfig};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::Command;
use crate::protocol::names::check_group;
use crate::protocol::response::Response;
use std::collections::BTreeMap;

/// 200: a whole configuration; keys that this version doesn't know are kept.
pub fn update_group(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    if command.body.len() > GROUP_CONFIG_BYTES_MAX {
        let bytes = command.body.len();
        return invalid(format!(
            "the group's configuration has {bytes} bytes, the limit is {GROUP_CONFIG_BYTES_MAX}"
        ));
    }
    let mut group: GroupConfig = match bodies::decode(command.body) {
        Ok(group) => group,
        Err(error) => return refuse(ResponseCode::SYSTEM_ERROR, error.to_string()),
    };
    if let Err(error) = check_group(&group.group_name) {
        return invalid(format!("The specified group is not valid: {error}"));
    }
    if group.retry_queue_nums > TOPIC_QUEUES_MAX {
        return invalid(format!(
            "retryQueueNums is {}, allowed are at most {TOPIC_QUEUES_MAX}",
            group.retry_queue_nums
        ));
    }
    let known = broker.groups.config(&group.group_name);
    group.attributes = alter(known.map(|known| &known.attributes), group.attributes);
    let name = group.group_name.clone();
    match broker.groups.put(group, cx) {
        Ok(()) => {
            tracing::info!(group = name, "group created or changed");
            Ok(Outcome::Reply(Response::success()))
        }
        Err(reason) => refuse(ResponseCode::SYSTEM_ERROR, reason),
    }
}

/// Attributes of a group: `+key` sets, `-key` removes, and so does a tool that sends back what it read. No version
/// of Apache up to 5.3 knows any, so every key is taken.
fn alter(
    known: Option<&BTreeMap<String, String>>,
    changes: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut altered = known.cloned().unwrap_or_default();
    for (key, value) in changes {
        if let Some(key) = key.strip_prefix('-') {
            altered.remove(key);
        } else {
            let key = key.strip_prefix('+').unwrap_or(&key);
            altered.insert(key.to_owned(), value);
        }
    }
    altered
}

/// 201.
pub fn all_groups(broker: &Broker, command: &Command<'_>) -> Answer {
    let fields = PageFields {
        sequence: "groupSeq",
        max: "maxGroupNum",
        total: "totalGroupNum",
    };
    let mut table = broker.groups.stored();
    let version = table.data_version;
    let configs = &mut table.subscription_group_table;
    let header = keep_page(command, &fields, version, configs)?;
    table
        .forbidden_table
        .retain(|group, _| table.subscription_group_table.contains_key(group));
    answer_with(header, bodies::encode(&table))
}

/// 207: 0 also for a group that isn't there.
pub fn delete_group(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let name = command.require_text("groupName")?;
    tracing::info!(group = ?name, "group deleted");
    broker.groups.remove(name, cx);
    broker.resets.remove_group(name);
    broker.pops.remove_group(name);
    broker.modes.remove_group(name);
    if command.bool("cleanOffset").unwrap_or(false) {
        broker.offsets.remove_group(name, cx.now.monotonic_us);
    }
    Ok(Outcome::Reply(Response::success()))
}
