//! Topic and group administration: 17, 18, 21, 200, 201, 202, 207, 208, 215, 351.

use super::{Broker, Context, Outcome, holds, query};
use crate::limits::TOPIC_QUEUES_MAX;
use crate::protocol::bodies::{
    self, ConsumeQueueStats, GroupConfig, QueueStats, TopicConfig, TopicConfigList,
    encode_consume_stats, encode_topic_stats,
};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::names::{check_group, check_topic, is_system_topic};
use crate::protocol::response::{Response, ResponseHeader};
use crate::storage::Missing;
use smallvec::smallvec;

type Answer = Result<Outcome, FieldError>;

fn refuse(code: ResponseCode, remark: impl Into<String>) -> Answer {
    Ok(Outcome::Reply(Response::error(code, remark.into())))
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data is JSON")
}

/// What is wrong with a topic's configuration, if anything.
fn topic_error(topic: &TopicConfig) -> Option<String> {
    let name = &topic.topic_name;
    if let Err(error) = check_topic(name) {
        return Some(error.to_string());
    }
    if is_system_topic(name) {
        return Some(format!("The topic[{name}] is conflict with system topic."));
    }
    for (key, count) in [
        ("readQueueNums", topic.read_queue_nums),
        ("writeQueueNums", topic.write_queue_nums),
    ] {
        if count == 0 || count > TOPIC_QUEUES_MAX {
            return Some(format!(
                "{key} of topic[{name}] is {count}, allowed are 1 to {TOPIC_QUEUES_MAX}"
            ));
        }
    }
    (topic.perm > 15).then(|| {
        format!(
            "perm of topic[{name}] is {}, allowed are 0 to 15",
            topic.perm
        )
    })
}

fn number(command: &Command<'_>, name: &'static str) -> Result<u32, FieldError> {
    let value = command.require_i32(name)?;
    u32::try_from(value).map_err(|_| FieldError::Invalid {
        name,
        expected: "at least 0",
        value: value.to_string(),
    })
}

pub fn update_topic(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let mut topic = TopicConfig::new(command.require_text("topic")?, 1, number(command, "perm")?);
    topic.read_queue_nums = number(command, "readQueueNums")?;
    topic.write_queue_nums = number(command, "writeQueueNums")?;
    topic.topic_sys_flag = command.i32("topicSysFlag")?.unwrap_or(0);
    topic.order = command.bool("order").unwrap_or(false);
    if let Some(kind) = command.text("topicFilterType") {
        kind.clone_into(&mut topic.topic_filter_type);
    }
    if let Some(known) = broker.topics.get(&topic.topic_name) {
        topic.attributes.clone_from(&known.config.attributes);
    }
    for change in command.text("attributes").unwrap_or_default().split(',') {
        if let Some((key, value)) = change.strip_prefix('+').and_then(|c| c.split_once('=')) {
            topic.attributes.insert(key.to_owned(), value.to_owned());
        } else if let Some(key) = change.strip_prefix('-') {
            topic.attributes.remove(key);
        }
    }
    put_topics(broker, vec![topic], cx)
}

pub fn update_topics(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    match bodies::decode::<TopicConfigList>(command.body) {
        Ok(list) => put_topics(broker, list.topic_config_list, cx),
        Err(error) => refuse(ResponseCode::SYSTEM_ERROR, error.to_string()),
    }
}

/// All or none: answered when the name servers know.
fn put_topics(broker: &mut Broker, topics: Vec<TopicConfig>, cx: &mut Context<'_>) -> Answer {
    if let Some(reason) = topics.iter().find_map(topic_error) {
        return refuse(ResponseCode::INVALID_PARAMETER, reason);
    }
    for topic in topics {
        if let Err((code, reason)) = broker.topics.put(topic, cx) {
            return refuse(code, reason);
        }
    }
    Ok(Outcome::AwaitRegistration(Response::success()))
}

pub fn all_topics(broker: &Broker) -> Answer {
    let table = broker.topics.stored();
    let total = vec![("totalTopicNum", table.topic_config_table.len().to_string())];
    let mut response = Response::with_body(table.encode());
    response.header = ResponseHeader::Fields(total);
    Ok(Outcome::Reply(response))
}

pub fn topic(broker: &Broker, command: &Command<'_>) -> Answer {
    let name = command.require_text("topic")?;
    match broker.topics.get(name) {
        Some(topic) => Ok(Outcome::Reply(Response::with_body(json(&topic.config)))),
        None => refuse(
            ResponseCode::TOPIC_NOT_EXIST,
            format!("No topic in this broker. topic: {name}"),
        ),
    }
}

/// 215: configuration, queues, committed offsets and holds go; a topic of that name starts again at offset 0.
pub fn delete_topic(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let name = command.require_text("topic")?;
    if is_system_topic(name) {
        return refuse(
            ResponseCode::INVALID_PARAMETER,
            format!("The topic[{name}] is conflict with system topic."),
        );
    }
    if !broker.topics.remove(name, cx) {
        return Ok(Outcome::Reply(Response::success()));
    }
    let queues: Vec<_> = cx
        .store
        .queues()
        .into_iter()
        .filter(|(t, _, _)| t == name)
        .map(|(_, _, q)| q)
        .collect();
    cx.store.delete_topic(name);
    broker.offsets.remove_topic(name, cx.now.monotonic_us);
    holds::answer_deleted(broker, &queues, cx);
    Ok(Outcome::AwaitRegistration(Response::success()))
}

pub fn update_group(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let group: GroupConfig = match bodies::decode(command.body) {
        Ok(group) => group,
        Err(error) => return refuse(ResponseCode::SYSTEM_ERROR, error.to_string()),
    };
    if let Err(error) = check_group(&group.group_name) {
        return refuse(ResponseCode::INVALID_PARAMETER, error.to_string());
    }
    match broker.groups.put(group, cx) {
        Ok(()) => Ok(Outcome::Reply(Response::success())),
        Err(reason) => refuse(ResponseCode::SYSTEM_ERROR, reason),
    }
}

pub fn all_groups(broker: &Broker) -> Answer {
    let table = broker.groups.stored();
    let total = vec![(
        "totalGroupNum",
        table.subscription_group_table.len().to_string(),
    )];
    let mut response = Response::with_body(json(&table));
    response.header = ResponseHeader::Fields(total);
    Ok(Outcome::Reply(response))
}

pub fn delete_group(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let name = command.require_text("groupName")?;
    broker.groups.remove(name, cx);
    if command.bool("cleanOffset").unwrap_or(false) {
        broker.offsets.remove_group(name, cx.now.monotonic_us);
    }
    Ok(Outcome::Reply(Response::success()))
}

/// Store time of the newest message of a queue; 0 without one.
fn last_time(broker_topic: (&str, u32), at: Option<u64>, cx: &Context<'_>) -> Result<u64, Missing> {
    let (Some(queue), Some(at)) = (cx.store.queue(broker_topic.0, broker_topic.1), at) else {
        return Ok(0);
    };
    match cx.store.last_store_timestamp(queue) {
        Some(time) => Ok(time),
        None => query::store_time(queue, at, cx),
    }
}

pub fn topic_stats(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let name = command.require_text("topic")?;
    let Some(topic) = broker.topics.get(name) else {
        return refuse(
            ResponseCode::TOPIC_NOT_EXIST,
            format!("topic[{name}] not exist"),
        );
    };
    let mut rows = Vec::new();
    for queue_id in 0..topic.config.write_queue_nums {
        let bounds = cx
            .store
            .queue(name, queue_id)
            .map(|q| cx.store.bounds(q))
            .unwrap_or_default();
        let newest = (bounds.max > bounds.min).then(|| bounds.max.0 - 1);
        let last_update_ms = match last_time((name, queue_id), newest, cx) {
            Ok(time) => time,
            Err(missing) => return Ok(Outcome::Read(smallvec![missing])),
        };
        rows.push(QueueStats {
            queue_id,
            min_offset: bounds.min.0,
            max_offset: bounds.max.0,
            last_update_ms,
        });
    }
    Ok(Outcome::Reply(Response::with_body(encode_topic_stats(
        &broker.config.broker_name,
        name,
        &rows,
    ))))
}

/// 208: where a group stands, in the topics that it subscribes to or has committed for.
pub fn consume_stats(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let group = command.require_text("consumerGroup")?;
    let mut topics: Vec<String> = match command.text("topic").filter(|t| !t.is_empty()) {
        Some(topic) => vec![topic.to_owned()],
        None => broker
            .offsets
            .topics_of(group)
            .into_iter()
            .map(str::to_owned)
            .collect(),
    };
    if command.text("topic").is_none_or(str::is_empty) {
        topics.extend(broker.clients.topics_of(group));
    }
    topics.sort();
    topics.dedup();
    let mut rows = Vec::new();
    for topic in topics {
        let Some(config) = broker.topics.get(&topic).map(|t| t.config.clone()) else {
            continue;
        };
        for queue_id in 0..config.read_queue_nums {
            let bounds = cx
                .store
                .queue(&topic, queue_id)
                .map(|q| cx.store.bounds(q))
                .unwrap_or_default();
            let consumer_offset = broker.offsets.get(group, &topic, queue_id).unwrap_or(0);
            let consumed = consumer_offset
                .checked_sub(1)
                .filter(|o| *o >= bounds.min.0 && *o < bounds.max.0);
            let last_timestamp =
                match consumed.and_then(|o| cx.store.queue(&topic, queue_id).map(|q| (q, o))) {
                    None => 0,
                    Some((queue, offset)) => match query::store_time(queue, offset, cx) {
                        Ok(time) => time,
                        Err(missing) => return Ok(Outcome::Read(smallvec![missing])),
                    },
                };
            rows.push(ConsumeQueueStats {
                topic: topic.clone(),
                queue_id,
                broker_offset: bounds.max.0,
                consumer_offset,
                pull_offset: consumer_offset,
                last_timestamp,
            });
        }
    }
    Ok(Outcome::Reply(Response::with_body(encode_consume_stats(
        &broker.config.broker_name,
        &rows,
    ))))
}
