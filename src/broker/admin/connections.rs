//! 203, 204, 300, 305, 328, 343, 345: who is connected, who consumes what.
//!
//! Source: apache/rocketmq 5.3.x `AdminBrokerProcessor`, bodies `ConsumerConnection`, `ProducerConnection`,
//! `ProducerTableInfo`, `GroupList`, `TopicList`, `QuerySubscriptionResponseBody`.

use super::{Answer, refuse};
use crate::broker::filter::{Filter, Subscription};
use crate::broker::{Broker, Context, Outcome};
use crate::protocol::bodies;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::Command;
use crate::protocol::response::Response;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

fn answer(body: &Value) -> Answer {
    Ok(Outcome::Reply(Response::with_body(bodies::encode(body))))
}

/// A subscription as clients announce it.
pub(super) fn subscription_data(subscription: &Subscription) -> Value {
    let tags: &[(i64, String)] = match &subscription.filter {
        Filter::Tags(tags) => tags,
        Filter::All | Filter::Sql(_) | Filter::Invalid(_) => &[],
    };
    json!({
        "classFilterMode": false,
        "codeSet": tags.iter().map(|(code, _)| *code).collect::<Vec<_>>(),
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": tags.iter().map(|(_, tag)| tag.as_str()).collect::<Vec<_>>(),
        "topic": subscription.topic,
    })
}

/// 203: the members of a group and what it subscribes to; 206 where nobody is there.
pub fn consumers(broker: &Broker, command: &Command<'_>) -> Answer {
    let name = command.require_text("consumerGroup")?;
    let Some(group) = broker.clients.consumer_group(name) else {
        let remark = format!("the consumer group[{name}] not online");
        return refuse(ResponseCode::CONSUMER_NOT_ONLINE, remark);
    };
    let connections: Vec<Value> = group
        .members
        .values()
        .map(|member| {
            json!({"clientAddr": member.address.to_string(), "clientId": &*member.client_id,
                "language": member.language, "version": member.version})
        })
        .collect();
    let mut subscriptions: Vec<_> = group.subscriptions.values().collect();
    subscriptions.sort_unstable_by(|left, right| left.topic.cmp(&right.topic));
    let table: Map<String, Value> = subscriptions
        .into_iter()
        .map(|subscription| (subscription.topic.clone(), subscription_data(subscription)))
        .collect();
    answer(&json!({
        "connectionSet": connections,
        "consumeFromWhere": &*group.consume_from_where,
        "consumeType": &*group.consume_type,
        "messageModel": if group.broadcasting { "BROADCASTING" } else { "CLUSTERING" },
        "subscriptionTable": table,
    }))
}

/// 204.
pub fn producers(broker: &Broker, command: &Command<'_>) -> Answer {
    let name = command.require_text("producerGroup")?;
    let connections: Vec<Value> = broker
        .clients
        .producers_of(name)
        .map(|producer| {
            json!({"clientAddr": producer.address.to_string(), "clientId": &*producer.client_id,
                "language": producer.language, "version": producer.version})
        })
        .collect();
    if connections.is_empty() {
        let remark = format!("the producer group[{name}] not exist");
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    }
    answer(&json!({"connectionSet": connections}))
}

/// 328: the producers of all groups.
pub fn all_producers(broker: &Broker, cx: &Context<'_>) -> Answer {
    let mut data = Map::new();
    for (group, producer) in broker.clients.all_producers() {
        let silent_ms = cx.now.monotonic_us.saturating_sub(producer.heard_us) / 1000;
        let row = json!({"clientId": &*producer.client_id, "language": producer.language,
            "lastUpdateTimestamp": cx.now.wall_ms.saturating_sub(silent_ms),
            "remoteIP": producer.address.to_string(), "version": producer.version});
        let rows = data
            .entry(group)
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(rows) = rows {
            rows.push(row);
        }
    }
    answer(&json!({"data": data}))
}

/// 300: the groups of a topic: those that have committed for it, and those that subscribe to it now.
pub fn groups_of_topic(broker: &Broker, command: &Command<'_>) -> Answer {
    let topic = command.require_text("topic")?;
    let mut groups: BTreeSet<&str> = broker.offsets.groups_of(topic).collect();
    groups.extend(broker.clients.groups_of(topic));
    answer(&json!({"groupList": groups}))
}

/// 343: the topics of a group, likewise.
pub fn topics_of_group(broker: &Broker, command: &Command<'_>) -> Answer {
    let group = command.require_text("group")?;
    let mut topics: BTreeSet<&str> = broker.offsets.topics_of(group).into_iter().collect();
    topics.extend(broker.clients.topics_of(group));
    answer(&json!({"brokerAddr": broker.config.address.to_string(), "topicList": topics}))
}

/// 345: what a group subscribes to of a topic; null without a heartbeat.
pub fn subscription(broker: &Broker, command: &Command<'_>) -> Answer {
    let group = command.require_text("group")?;
    let topic = command.text("topic").unwrap_or_default();
    let found = broker
        .clients
        .group(group, topic)
        .and_then(|group| group.subscription);
    answer(
        &json!({"group": group, "subscriptionData": found.map(|found| subscription_data(&found)),
        "topic": topic}),
    )
}

/// 305.
pub fn system_topics(broker: &Broker) -> Answer {
    let names = broker.topics.names();
    let mut names: Vec<&str> = names
        .into_iter()
        .filter(|name| broker.topics.is_system(name))
        .collect();
    names.sort_unstable();
    answer(&json!({"brokerAddr": broker.config.address.to_string(), "topicList": names}))
}
