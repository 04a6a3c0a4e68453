//! Which function answers which request.

use super::{Broker, Context, Outcome, Peer};
use super::{admin, clients, offsets, pull, query, send};
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::Command;
use crate::protocol::response::Response;

/// Runs one request. One-way requests give `Outcome::Nothing`, whatever their handler says: what they appended or
/// committed stands, nobody waits for it. A response frame of a client asks for nothing.
pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    if command.is_response() {
        return Outcome::Nothing;
    }
    let outcome = dispatch(broker, command, peer, cx);
    if !command.is_one_way() {
        return outcome;
    }
    match outcome {
        Outcome::Held => panic!("a one-way pull was parked: nobody would take its answer"),
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
    match RequestCode(command.code) {
        RequestCode::SEND_MESSAGE
        | RequestCode::SEND_MESSAGE_V2
        | RequestCode::SEND_BATCH_MESSAGE => send::handle(broker, command, peer, cx),
        RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE => {
            pull::handle(broker, command, peer, cx)
        }
        RequestCode::QUERY_CONSUMER_OFFSET => offsets::query(broker, command, cx),
        RequestCode::UPDATE_CONSUMER_OFFSET => offsets::update(broker, command, cx),
        RequestCode::SEARCH_OFFSET_BY_TIMESTAMP => query::search_offset(broker, command, cx),
        RequestCode::GET_MAX_OFFSET => query::max_offset(broker, command, cx),
        RequestCode::GET_MIN_OFFSET => query::min_offset(broker, command, cx),
        RequestCode::GET_EARLIEST_MSG_STORETIME => query::earliest_store_time(broker, command, cx),
        RequestCode::VIEW_MESSAGE_BY_ID => query::view_message(broker, command, cx),
        RequestCode::HEART_BEAT => clients::heartbeat(broker, command, peer, cx),
        RequestCode::UNREGISTER_CLIENT => clients::unregister(broker, command, peer, cx),
        RequestCode::GET_CONSUMER_LIST_BY_GROUP => clients::list_by_group(broker, command, cx),
        RequestCode::CHECK_CLIENT_CONFIG => clients::check_config(broker, command, cx),
        code => admin::handle(broker, command, cx).unwrap_or_else(|| unsupported(code, cx)),
    }
}

/// 3, so that a caller of a code that isn't there learns it at once instead of waiting for its timeout.
fn unsupported(code: RequestCode, cx: &mut Context<'_>) -> Outcome {
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
