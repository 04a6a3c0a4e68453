//! 34, 35, 38, 46.

use super::ClientKind;
use super::group::Beat;
use crate::broker::filter::{Filter, FilterError};
use crate::broker::{Broker, Context, Outcome, Peer};
use crate::limits::{CLIENT_ID_BYTES_MAX, HEARTBEAT_GROUPS_MAX};
use crate::protocol::bodies::{self, CheckClientConfig, ConsumerData, ConsumerIds, Heartbeat};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::names::{RETRY_PREFIX, check_group};
use crate::protocol::response::Response;
use std::rc::Rc;

type Answer = Result<Outcome, FieldError>;

fn refuse(code: ResponseCode, remark: impl Into<String>) -> Answer {
    Ok(Outcome::Reply(Response::error(code, remark.into())))
}

/// A heartbeat, 34.
///
/// The answer says nothing of the second version of heartbeats, so that clients stay with the first; one that leaves
/// its subscriptions out all the same keeps those it had.
///
/// Groups that can't be created, and those beyond a limit, are left out silently, as in Java; the client notices when
/// it asks for the members of its group.
///
/// **Source**: apache/rocketmq 5.3.x `ClientManageProcessor#heartBeat`.
pub fn heartbeat(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Answer {
    let sent: Heartbeat = match bodies::decode(command.body) {
        Ok(sent) => sent,
        Err(error) => return refuse(ResponseCode::SYSTEM_ERROR, format!("heartbeat: {error}")),
    };
    if sent.client_id.len() > CLIENT_ID_BYTES_MAX {
        let bytes = sent.client_id.len();
        let remark = format!("the clientID has {bytes} bytes, the limit is {CLIENT_ID_BYTES_MAX}");
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    }
    let (client_id, now_us): (Rc<str>, u64) = (sent.client_id.into(), cx.now.monotonic_us);
    let beat = Beat {
        client_id: &client_id,
        peer,
        now_us,
        keep_subscriptions: sent.without_sub,
    };
    for data in sent.consumer_data_set.iter().take(HEARTBEAT_GROUPS_MAX) {
        hear_consumer(broker, data, &beat, cx);
    }
    for producer in sent.producer_data_set.iter().take(HEARTBEAT_GROUPS_MAX) {
        let name = producer.group_name.as_str();
        if check_group(name).is_err() {
            continue;
        }
        let clients = &mut broker.clients;
        let heard = clients.hear_producer(name, &client_id, peer.connection, now_us);
        if let Err(error) = heard {
            clients.warn_full(name, peer, error, now_us);
        }
    }
    let kind = ClientKind {
        language: language_label(command.language),
        version: command.version,
    };
    broker.clients.hear_kind(peer.connection, kind);
    Ok(Outcome::Reply(Response::success()))
}

/// A language as a label; only the known ones, since clients choose it. **Source**: apache/rocketmq `LanguageCode`.
fn language_label(name: &str) -> &'static str {
    const LABELS: [&str; 14] = [
        "java", "cpp", "dotnet", "python", "delphi", "erlang", "ruby", "other", "http", "go",
        "php", "oms", "rust", "node_js",
    ];
    let known = LABELS.iter().find(|label| label.eq_ignore_ascii_case(name));
    known.copied().unwrap_or("other")
}

fn hear_consumer(broker: &mut Broker, data: &ConsumerData, beat: &Beat<'_>, cx: &mut Context<'_>) {
    let name = &data.group_name;
    let group = broker.groups.find_or_create(&broker.config, name, cx);
    let Some(group) = group else {
        return;
    };
    let retry_topic = format!("{RETRY_PREFIX}{name}");
    broker
        .topics
        .ensure_group_topic(&retry_topic, group.retry_queue_nums, cx);
    if let Err(error) = broker.clients.hear_consumer(data, beat) {
        let now_us = beat.now_us;
        broker.clients.warn_full(name, beat.peer, error, now_us);
    }
}

/// 35: the client ends one of its roles; each field is there only for that role.
pub fn unregister(broker: &mut Broker, command: &Command<'_>, peer: Peer) -> Answer {
    if let Some(group) = command.text("producerGroup") {
        broker.clients.leave_producer(group, peer.connection);
    }
    if let Some(group) = command.text("consumerGroup") {
        broker.clients.leave_consumer(group, peer.connection);
    }
    Ok(Outcome::Reply(Response::success()))
}

/// 38: the members of a group; without one code 1, at which clients leave their queues as they are.
pub fn list_by_group(broker: &mut Broker, command: &Command<'_>) -> Answer {
    let name = command.require_text("consumerGroup")?;
    let Some(group) = broker.clients.consumers.get(name) else {
        let remark = format!("no consumer for this group, {name}");
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    };
    let body = bodies::encode(&ConsumerIds {
        consumer_id_list: group.client_ids(),
    });
    Ok(Outcome::Reply(Response::with_body(body)))
}

/// 46: a consumer asks before it starts whether its expression is understood; anything but success ends its start.
pub fn check_config(command: &Command<'_>) -> Answer {
    let check: CheckClientConfig = match bodies::decode(command.body) {
        Ok(check) => check,
        Err(error) => {
            let remark = format!("check client config: {error}");
            return refuse(ResponseCode::SYSTEM_ERROR, remark);
        }
    };
    let data = &check.subscription_data;
    match Filter::parse(&data.sub_string, &data.expression_type) {
        Ok(_) => Ok(Outcome::Reply(Response::success())),
        // Named with what to do, since the bare text sends people to a switch (apache/rocketmq#310, #8631).
        Err(FilterError::Type(kind)) if kind.eq_ignore_ascii_case("SQL92") => refuse(
            ResponseCode::SYSTEM_ERROR,
            format!(
                "The broker does not support consumer to filter message by {kind}; this version of ringmq filters by \
                 TAG only, and no configuration key changes that: subscribe with tags, or filter in the consumer"
            ),
        ),
        Err(error) => refuse(ResponseCode::SUBSCRIPTION_PARSE_FAILED, error.to_string()),
    }
}
