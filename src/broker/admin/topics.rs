//! 17, 18, 21, 215, 351.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/AdminBrokerProcessor.java`.

use super::attributes::{self, Attributes};
use super::{Answer, PageFields, answer_with, invalid, keep_page, refuse};
use crate::broker::topics::Topics;
use crate::broker::{Broker, Context, Outcome, holds, pop};
use crate::limits::TOPIC_QUEUES_MAX;
use crate::protocol::bodies::{self, TopicConfig, TopicConfigList};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::Command;
use crate::protocol::names::check_topic;
use crate::protocol::response::Response;
use serde::Serialize;
use std::collections::BTreeSet;

const FILTER_TYPES: [&str; 2] = ["SINGLE_TAG", "MULTI_TAG"];
/// All bits of `perm`.
const PERM_MAX: u32 = 15;

/// 17.
pub fn update_topic(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let mut topic = TopicConfig::new(command.require_text("topic")?, 0, 0);
    for (field, number) in [
        ("perm", &mut topic.perm),
        ("readQueueNums", &mut topic.read_queue_nums),
        ("writeQueueNums", &mut topic.write_queue_nums),
    ] {
        let sent = command.require_i32(field)?;
        match u32::try_from(sent) {
            Ok(sent) => *number = sent,
            Err(_) => return invalid(format!("{field} is {sent}, it can't be negative")),
        }
    }
    topic.topic_sys_flag = command.i32("topicSysFlag")?.unwrap_or(0);
    topic.order = command.bool("order").unwrap_or(false);
    if let Some(filter_type) = command.text("topicFilterType") {
        filter_type.clone_into(&mut topic.topic_filter_type);
    }
    match attributes::parse(command.text("attributes").unwrap_or_default()) {
        Ok(changes) => topic.attributes = changes,
        Err(remark) => return invalid(remark),
    }
    put_topics(broker, vec![topic], cx)
}

/// 18: all or none.
pub fn update_topics(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    match bodies::decode::<TopicConfigList>(command.body) {
        Ok(list) => put_topics(broker, list.topic_config_list, cx),
        Err(error) => refuse(ResponseCode::SYSTEM_ERROR, error.to_string()),
    }
}

/// Creates or changes topics whose attributes are changes yet, keys with signs.
fn put_topics(broker: &mut Broker, mut topics: Vec<TopicConfig>, cx: &mut Context<'_>) -> Answer {
    let mut new = BTreeSet::new();
    for topic in &mut topics {
        let known = broker.topics.get(&topic.topic_name);
        let known: Option<&Attributes> = known.map(|topic| &topic.config.attributes);
        if known.is_none() {
            new.insert(topic.topic_name.clone());
        }
        let checked =
            check(topic, &broker.topics).and_then(|()| attributes::alter(known, &topic.attributes));
        match checked {
            Ok(attributes) => topic.attributes = attributes,
            Err(remark) => return invalid(format!("{remark} (topic {:?})", topic.topic_name)),
        }
    }
    if new.len() > broker.topics.room() {
        let remark = format!(
            "{} topics can't be created: this shard has room for {}",
            new.len(),
            broker.topics.room()
        );
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    }
    let mut changed = false;
    for topic in topics {
        let name = topic.topic_name.clone();
        match broker.topics.put(topic, cx) {
            Ok(true) => {
                tracing::info!(topic = name, "topic created or changed");
                changed = true;
            }
            Ok(false) => {}
            Err((code, remark)) => return refuse(code, remark),
        }
    }
    let response = Response::success();
    Ok(if changed {
        Outcome::AwaitRegistration(response)
    } else {
        Outcome::Reply(response)
    })
}

/// **Errors**: what is wrong with a topic that a tool sends.
fn check(topic: &TopicConfig, topics: &Topics) -> Result<(), String> {
    let name = &topic.topic_name;
    check_topic(name).map_err(|error| format!("The specified topic is not valid: {error}"))?;
    if topics.is_system(name) {
        return Err(format!("The topic[{name}] is conflict with system topic."));
    }
    for (field, count) in [
        ("readQueueNums", topic.read_queue_nums),
        ("writeQueueNums", topic.write_queue_nums),
    ] {
        if count == 0 || count > TOPIC_QUEUES_MAX {
            return Err(format!(
                "{field} is {count}, allowed are 1 to {TOPIC_QUEUES_MAX}"
            ));
        }
    }
    if topic.perm > PERM_MAX {
        let perm = topic.perm;
        return Err(format!(
            "perm is {perm}, allowed are sums of 4 (read), 2 (write), 1 (inherit), 8 (priority)"
        ));
    }
    if !FILTER_TYPES.contains(&topic.topic_filter_type.as_str()) {
        let allowed = FILTER_TYPES.join(" and ");
        let sent = topic.topic_filter_type.chars().take(40).collect::<String>();
        return Err(format!(
            "topicFilterType is {sent:?}, allowed are {allowed}"
        ));
    }
    Ok(())
}

/// 21.
pub fn all_topics(broker: &Broker, command: &Command<'_>) -> Answer {
    let fields = PageFields {
        sequence: "topicSeq",
        max: "maxTopicNum",
        total: "totalTopicNum",
    };
    let mut table = broker.topics.stored();
    let version = table.data_version;
    let header = keep_page(command, &fields, version, &mut table.topic_config_table)?;
    answer_with(header, table.encode())
}

/// Answer to 351. Static topics, which a mapping would be for, there are none.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopicAnswer<'a> {
    #[serde(flatten)]
    config: &'a TopicConfig,
    mapping_detail: Option<()>,
}

/// 351: 17 for a topic that isn't there, which tools take for "no"; any other code is a failure to them.
pub fn topic(broker: &Broker, command: &Command<'_>) -> Answer {
    let name = command.require_text("topic")?;
    let Some(topic) = broker.topics.get(name) else {
        let remark = format!("No topic in this broker. topic: {name}");
        return refuse(ResponseCode::TOPIC_NOT_EXIST, remark);
    };
    let body = bodies::encode(&TopicAnswer {
        config: &topic.config,
        mapping_detail: None,
    });
    Ok(Outcome::Reply(Response::with_body(body)))
}

/// 215: configuration, queues, committed offsets and holds go; a topic of that name starts again at offset 0, for
/// every group (apache/rocketmq#4774, #551).
pub fn delete_topic(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let name = command.require_text("topic")?;
    if name.trim().is_empty() {
        return invalid("The specified topic is blank.");
    }
    if broker.topics.is_system(name) {
        return invalid(format!("The topic[{name}] is conflict with system topic."));
    }
    let queues = broker.topics.open_queues(name);
    if !broker.topics.remove(name, cx) {
        return Ok(Outcome::Reply(Response::success()));
    }
    tracing::info!(topic = name, "topic deleted");
    cx.store.delete_topic(name);
    broker.offsets.remove_topic(name, cx.now.monotonic_us);
    broker.resets.remove_topic(name);
    holds::answer_deleted(broker, &queues, cx);
    pop::remove_topic(broker, name, cx);
    Ok(Outcome::AwaitRegistration(Response::success()))
}
