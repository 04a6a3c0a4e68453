//! Which function answers which request.

use super::{
    Broker, Context, Outcome, Peer, admin, clients, keys, locks, offsets, pop, pull, query, relay,
    reply, retry, send, transactions,
};
use crate::protocol::codes::{RequestCode as Code, ResponseCode};
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::Response;

/// Runs one request. One-way requests give `Outcome::Nothing`, whatever their handler says: what they appended or
/// committed stands, nobody waits for it; only the end of a transaction may have to be read for and run again. A response frame of a client answers a request of this broker.
pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    if command.is_response() {
        relay::on_answer(broker, command, peer, cx);
        return Outcome::Nothing;
    }
    let outcome = dispatch(broker, command, peer, cx);
    if !command.is_one_way() {
        return outcome;
    }
    match outcome {
        Outcome::Held => panic!("a one-way pull was parked: nobody would take its answer"),
        Outcome::Read(missing) if Code(command.code) == Code::END_TRANSACTION => {
            Outcome::Read(missing)
        }
        Outcome::Reply(_)
        | Outcome::Append(_)
        | Outcome::Read(_)
        | Outcome::AwaitRegistration(_)
        | Outcome::Nothing => Outcome::Nothing,
    }
}

fn dispatch(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let result = match Code(command.code) {
        Code::SEND_MESSAGE | Code::SEND_MESSAGE_V2 | Code::SEND_BATCH_MESSAGE => {
            return send::handle(broker, command, peer, cx);
        }
        Code::PULL_MESSAGE | Code::LITE_PULL_MESSAGE => {
            return pull::handle(broker, command, peer, cx);
        }
        Code::SEND_REPLY_MESSAGE | Code::SEND_REPLY_MESSAGE_V2 => {
            reply::handle(broker, command, peer, cx)
        }
        Code::QUERY_CONSUMER_OFFSET => offsets::query(broker, command, cx),
        Code::UPDATE_CONSUMER_OFFSET => offsets::update(broker, command, cx),
        Code::SEARCH_OFFSET_BY_TIMESTAMP => query::search_offset(command, cx),
        Code::GET_MAX_OFFSET => query::max_offset(command, cx),
        Code::GET_MIN_OFFSET => query::min_offset(command, cx),
        Code::GET_EARLIEST_MSG_STORETIME => query::earliest_store_time(command, cx),
        Code::VIEW_MESSAGE_BY_ID => query::view_message(command, cx),
        Code::QUERY_MESSAGE => keys::query_message(command, cx),
        Code::POP_MESSAGE => pop::handle(broker, command, peer, cx),
        Code::ACK_MESSAGE => pop::acknowledge(broker, command, cx),
        Code::CHANGE_MESSAGE_INVISIBLETIME => pop::change_invisible_time(broker, command, cx),
        Code::BATCH_ACK_MESSAGE => pop::acknowledge_batch(broker, command, cx),
        Code::POLLING_INFO => pop::waiting_count(broker, command, peer, cx),
        Code::QUERY_ASSIGNMENT => pop::query_assignment(broker, command, peer, cx),
        Code::SET_MESSAGE_REQUEST_MODE => pop::set_mode(broker, command, cx),
        Code::CONSUMER_SEND_MSG_BACK => retry::handle(broker, command, peer, cx),
        Code::END_TRANSACTION => transactions::end(broker, command, cx),
        Code::LOCK_BATCH_MQ => locks::lock(broker, command, peer, cx),
        Code::UNLOCK_BATCH_MQ => locks::unlock(broker, command),
        Code::HEART_BEAT => clients::heartbeat(broker, command, peer, cx),
        Code::UNREGISTER_CLIENT => clients::unregister(broker, command, peer),
        Code::GET_CONSUMER_LIST_BY_GROUP => clients::list_by_group(broker, command),
        Code::CHECK_CLIENT_CONFIG => clients::check_config(broker, command),
        Code::UPDATE_AND_CREATE_TOPIC => admin::update_topic(broker, command, cx),
        Code::UPDATE_AND_CREATE_TOPIC_LIST => admin::update_topics(broker, command, cx),
        Code::GET_ALL_TOPIC_CONFIG => admin::all_topics(broker, command),
        Code::GET_TOPIC_CONFIG => admin::topic(broker, command),
        Code::DELETE_TOPIC_IN_BROKER => admin::delete_topic(broker, command, cx),
        Code::GET_TOPIC_STATS_INFO => admin::topic_stats(broker, command, cx),
        Code::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => admin::update_group(broker, command, cx),
        Code::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => admin::all_groups(broker, command),
        Code::DELETE_SUBSCRIPTIONGROUP => admin::delete_group(broker, command, cx),
        Code::GET_BROKER_RUNTIME_INFO => admin::runtime(broker, command, cx),
        Code::GET_CONSUME_STATS => admin::consume_stats(broker, command, cx),
        Code::GET_CONSUMER_CONNECTION_LIST => admin::consumers(broker, command),
        Code::GET_PRODUCER_CONNECTION_LIST => admin::producers(broker, command),
        Code::GET_ALL_PRODUCER_INFO => admin::all_producers(broker, cx),
        Code::QUERY_TOPIC_CONSUME_BY_WHO => admin::groups_of_topic(broker, command),
        Code::QUERY_TOPICS_BY_CONSUMER => admin::topics_of_group(broker, command),
        Code::QUERY_SUBSCRIPTION_BY_CONSUMER => admin::subscription(broker, command),
        Code::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => admin::system_topics(broker),
        Code::INVOKE_BROKER_TO_RESET_OFFSET => admin::reset_offsets(broker, command, cx),
        Code::CLONE_GROUP_OFFSET => admin::clone_offsets(broker, command, cx),
        Code::GET_BROKER_CONSUME_STATS => admin::all_consume_stats(broker, command, cx),
        Code::QUERY_CONSUME_QUEUE => admin::entries(broker, command, cx),
        Code::QUERY_CONSUME_TIME_SPAN => admin::time_spans(broker, command, cx),
        Code::GET_CONSUMER_RUNNING_INFO => admin::running_info(broker, command, peer, cx),
        Code::CONSUME_MESSAGE_DIRECTLY => admin::consume_directly(broker, command, peer, cx),
        Code::GET_BROKER_CONFIG => admin::settings(broker),
        Code::UPDATE_BROKER_CONFIG => admin::update_settings(broker, command, cx.now.wall_ms),
        code => Ok(unsupported(code, cx)),
    };
    result.unwrap_or_else(|error: FieldError| {
        let response = Response::error(ResponseCode::SYSTEM_ERROR, error.to_string());
        Outcome::Reply(response)
    })
}

/// 3, so that a caller of a code that isn't there learns it at once instead of waiting for its timeout.
fn unsupported(code: Code, cx: &mut Context<'_>) -> Outcome {
    cx.counters.requests_unsupported += 1;
    let number = code.0;
    let remark = match code.name() {
        Some(name) => format!(" request type {number} not supported ({name})"),
        None => format!(" request type {number} not supported"),
    };
    Outcome::Reply(Response::error(
        ResponseCode::REQUEST_CODE_NOT_SUPPORTED,
        remark,
    ))
}
