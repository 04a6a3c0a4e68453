//! 324, 325: the reply to a request of another client, pushed to it (326).
//!
//! The replier's answer comes when the requester has answered, or can't be reached. The reply is not stored: nobody
//! consumes the reply topic, which only gives repliers a route.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/ReplyMessageProcessor.java`.

use super::relay::{self, Asker, Purpose};
use super::{Broker, Context, Outcome, Peer};
use crate::protocol::calls::ClientCall;
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::{Command, FieldError};
use crate::protocol::headers::SendHeader;
use crate::protocol::properties::{self, name};
use crate::protocol::response::Response;
use bytes::Bytes;

/// Added to the reply's properties: when it was pushed, in milliseconds.
const PUSH_REPLY_TIME: &str = "PUSH_REPLY_TIME";

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let header = SendHeader::decode(command)?;
    let max = broker.config.message_bytes_max as usize;
    if command.body.len() > max {
        let bytes = command.body.len();
        let remark =
            format!("the reply's body has {bytes} bytes, the limit is {max} (maxMessageSize)");
        return Ok(Outcome::Reply(Response::error(
            ResponseCode::MESSAGE_ILLEGAL,
            remark,
        )));
    }
    let Some(client_id) = properties::get(header.properties, name::REPLY_TO_CLIENT) else {
        let remark = format!(
            "reply message properties[{}] is null",
            name::REPLY_TO_CLIENT
        );
        return Ok(Outcome::Reply(Response::error(
            ResponseCode::SYSTEM_ERROR,
            remark,
        )));
    };
    let call = push(broker, &header, command.body, peer, cx);
    let purpose = Purpose::Reply {
        queue_id: header.queue_id,
    };
    let asker = Asker::of(command, peer);
    Ok(relay::call_producer(
        broker, client_id, call, asker, purpose, cx,
    ))
}

/// The request to the client. Hosts are written without the slash that Java has in front of them.
fn push(
    broker: &Broker,
    header: &SendHeader<'_>,
    body: &[u8],
    peer: Peer,
    cx: &Context<'_>,
) -> ClientCall {
    let mut pushed = header.properties.to_owned();
    properties::append(&mut pushed, PUSH_REPLY_TIME, &cx.now.wall_ms.to_string());
    let text = str::to_owned;
    ClientCall {
        code: RequestCode::PUSH_REPLY_MESSAGE_TO_CLIENT,
        fields: vec![
            ("producerGroup", text(header.producer_group)),
            ("topic", text(header.topic)),
            ("defaultTopic", text(header.default_topic)),
            (
                "defaultTopicQueueNums",
                header.default_topic_queue_nums.to_string(),
            ),
            ("queueId", header.queue_id.to_string()),
            ("sysFlag", header.sys_flag.to_string()),
            ("bornTimestamp", header.born_timestamp.to_string()),
            ("flag", header.flag.to_string()),
            ("properties", pushed),
            ("reconsumeTimes", header.reconsume_times.to_string()),
            ("unitMode", header.unit_mode.to_string()),
            ("bornHost", peer.address.to_string()),
            ("storeHost", broker.config.address.to_string()),
            ("storeTimestamp", cx.now.wall_ms.to_string()),
        ],
        body: Bytes::copy_from_slice(body),
    }
}
