//! 307, 309: what a tool asks a consumer, by way of the broker that it is connected to.
//!
//! Source: apache/rocketmq 5.3.x `AdminBrokerProcessor` `getConsumerRunningInfo`, `consumeMessageDirectly`.

use super::{Answer, refuse};
use crate::broker::relay::{self, Asker, Purpose};
use crate::broker::{Broker, Context, Outcome, Peer, query};
use crate::ids::ConnectionId;
use crate::protocol::calls::ClientCall;
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::{Command, FieldError};
use crate::protocol::message::parse_offset_message_id;
use bytes::Bytes;
use smallvec::smallvec;

/// The connection of a member. `Err` is the refusal.
fn find_member(
    broker: &Broker,
    command: &Command<'_>,
) -> Result<Result<ConnectionId, String>, FieldError> {
    let group = command.require_text("consumerGroup")?;
    let client_id = command.require_text("clientId")?;
    let mut members = broker.clients.members(group);
    let found = members.find(|(_, member)| *member.client_id == *client_id);
    let found = found.map(|(connection, _)| connection);
    Ok(found.ok_or_else(|| format!("The Consumer <{group}> <{client_id}> not online")))
}

/// The fields of the request that the client gets too.
fn fields_of(command: &Command<'_>, names: &[&'static str]) -> Vec<(&'static str, String)> {
    let value = |name: &&'static str| Some((*name, command.text(name)?.to_owned()));
    names.iter().filter_map(value).collect()
}

/// 307.
pub fn running_info(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Answer {
    let connection = match find_member(broker, command)? {
        Ok(connection) => connection,
        Err(remark) => return refuse(ResponseCode::SYSTEM_ERROR, remark),
    };
    let call = ClientCall {
        code: RequestCode::GET_CONSUMER_RUNNING_INFO,
        fields: fields_of(command, &["consumerGroup", "clientId", "jstackEnable"]),
        body: Bytes::new(),
    };
    let asker = Asker::of(command, peer);
    Ok(relay::call(
        broker,
        connection,
        call,
        asker,
        Purpose::Pass,
        cx,
    ))
}

/// 309: the client gets the message along.
pub fn consume_directly(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Answer {
    let connection = match find_member(broker, command)? {
        Ok(connection) => connection,
        Err(remark) => return refuse(ResponseCode::SYSTEM_ERROR, remark),
    };
    let id = command.require_text("msgId")?;
    let Some((_, at)) = parse_offset_message_id(id) else {
        return refuse(
            ResponseCode::SYSTEM_ERROR,
            format!("{id} is no id of a message"),
        );
    };
    let (start, end) = cx.store.log_bounds();
    if at < start || at >= end {
        let remark = format!("can not find message by the offset, {at}");
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    }
    let record = match cx.store.record_at(at, cx.fetched) {
        Ok(record) => record,
        Err(missing) => return Ok(Outcome::Read(smallvec![missing])),
    };
    if !query::is_message(&record) {
        let remark = format!("can not find message by the offset, {at}");
        return refuse(ResponseCode::SYSTEM_ERROR, remark);
    }
    let mut fields = fields_of(command, &["consumerGroup", "clientId", "msgId", "topic"]);
    fields.push(("brokerName", broker.config.broker_name.clone()));
    let call = ClientCall {
        code: RequestCode::CONSUME_MESSAGE_DIRECTLY,
        fields,
        body: record,
    };
    let asker = Asker::of(command, peer);
    Ok(relay::call(
        broker,
        connection,
        call,
        asker,
        Purpose::Pass,
        cx,
    ))
}
