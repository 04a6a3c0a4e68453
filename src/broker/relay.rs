//! Requests that the broker sends to a client because somebody else asked: the asker's answer waits for the client's.
//!
//! **Owned by**: one shard. A call waits in [`Relays`] until the client answers, its connection closes, or 10 s have
//! passed; the asker gets exactly one answer. A client that is not connected here is looked for at the other shards
//! of the process, one after the other, by way of the control thread. That is asked itself for routes of topics, which
//! wait in the same way.

use super::{Addressed, Broker, Context, Outcome, Peer, pop};
use crate::ids::{ConnectionId, ShardId};
use crate::limits::CLIENT_CALLS_MAX;
use crate::protocol::calls::{CallError, CallResult, ClientAnswer, ClientCall, ForwardedCall};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, Encoding};
use crate::protocol::response::{Body, Response, ResponseHeader};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Source: apache/rocketmq 5.3.x `Broker2Client#callClient`.
const CALL_MS: u64 = 10_000;
/// Opaques of calls have this bit set and the number of the call below it, so that they are none of those of
/// one-way requests.
const OPAQUE_BIT: u64 = 1 << 30;

/// Who gets the answer.
#[derive(Clone, Copy, Debug)]
pub enum Asker {
    Connection {
        connection: ConnectionId,
        opaque: i32,
        encoding: Encoding,
    },
    Shard {
        shard: ShardId,
        id: u64,
    },
    /// A one-way request.
    Nobody,
}

impl Asker {
    pub fn of(command: &Command<'_>, peer: Peer) -> Self {
        if command.is_one_way() {
            return Asker::Nobody;
        }
        Asker::Connection {
            connection: peer.connection,
            opaque: command.opaque,
            encoding: command.encoding,
        }
    }
}

/// What is made of the answer.
#[derive(Debug)]
pub enum Purpose {
    /// 324, 325: the answer to a send.
    Reply { queue_id: i32 },
    /// The client's answer as it is.
    Pass,
    /// 400: the answer is the route of a topic, which the control thread has.
    Assign(Box<pop::Waiting>),
}

#[derive(Debug)]
struct Call {
    /// `None` while it is with other shards, or with the control thread.
    client: Option<ConnectionId>,
    asker: Asker,
    purpose: Purpose,
    deadline_us: u64,
}

/// A request to a client, for the shard to send.
#[derive(Clone, Debug)]
pub struct AddressedCall {
    pub connection: ConnectionId,
    pub opaque: i32,
    /// No answer is expected.
    pub one_way: bool,
    pub call: ClientCall,
}

/// Mail for other shards, and for the control thread.
#[derive(Clone, Debug)]
pub enum Letter {
    Call(Box<ForwardedCall>),
    /// For the control thread: what name servers say of a topic.
    Route {
        id: u64,
        topic: String,
    },
    Answer {
        origin: ShardId,
        id: u64,
        result: CallResult,
    },
}

/// Calls that wait, by number. All wait equally long, so that the first is the first to end.
#[derive(Debug, Default)]
pub struct Relays {
    calls: BTreeMap<u64, Call>,
    next: u64,
}

impl Relays {
    /// In monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.calls.values().next().map(|call| call.deadline_us)
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn insert(
        &mut self,
        client: Option<ConnectionId>,
        asker: Asker,
        purpose: Purpose,
        cx: &Context<'_>,
    ) -> Result<u64, Box<Response>> {
        if self.calls.len() >= CLIENT_CALLS_MAX {
            return Err(Box::new(response(purpose, Err(CallError::Busy))));
        }
        self.next += 1;
        let call = Call {
            client,
            asker,
            purpose,
            deadline_us: cx.now.after_ms(CALL_MS),
        };
        self.calls.insert(self.next, call);
        Ok(self.next)
    }

    /// The number of a call by the opaque that was sent with it.
    fn number_of(&self, opaque: i32) -> Option<u64> {
        let low = u64::from(u32::try_from(opaque).ok()?).checked_sub(OPAQUE_BIT)?;
        let number = (self.next & !(OPAQUE_BIT - 1)) | low;
        // It was sent before the counter's lower part began again.
        let number = if number > self.next {
            number.checked_sub(OPAQUE_BIT)?
        } else {
            number
        };
        self.calls.contains_key(&number).then_some(number)
    }
}

fn opaque_of(number: u64) -> i32 {
    (OPAQUE_BIT | (number & (OPAQUE_BIT - 1))) as i32
}

fn parked(asker: Asker) -> Outcome {
    match asker {
        Asker::Nobody => Outcome::Nothing,
        Asker::Connection { .. } | Asker::Shard { .. } => Outcome::Held,
    }
}

/// Asks a client that is connected here. `Held`, or the refusal.
pub fn call(
    broker: &mut Broker,
    connection: ConnectionId,
    call: ClientCall,
    asker: Asker,
    purpose: Purpose,
    cx: &mut Context<'_>,
) -> Outcome {
    match broker.relays.insert(Some(connection), asker, purpose, cx) {
        Ok(number) => {
            cx.effects.calls.push(AddressedCall {
                connection,
                opaque: opaque_of(number),
                one_way: false,
                call,
            });
            parked(asker)
        }
        Err(refused) => Outcome::Reply(*refused),
    }
}

/// Asks a producer, wherever in the process it is connected.
pub fn call_producer(
    broker: &mut Broker,
    client_id: &str,
    call: ClientCall,
    asker: Asker,
    purpose: Purpose,
    cx: &mut Context<'_>,
) -> Outcome {
    if let Some(connection) = broker.clients.producer(client_id) {
        return self::call(broker, connection, call, asker, purpose, cx);
    }
    match broker.relays.insert(None, asker, purpose, cx) {
        Ok(id) => {
            let forwarded = ForwardedCall {
                origin: broker.config.shard,
                id,
                client_id: client_id.to_owned(),
                call,
            };
            cx.effects.letters.push(Letter::Call(Box::new(forwarded)));
            parked(asker)
        }
        Err(refused) => Outcome::Reply(*refused),
    }
}

/// Asks the control thread for the route of a topic. `Held`, or the refusal.
pub fn ask_route(
    broker: &mut Broker,
    topic: String,
    asker: Asker,
    purpose: Purpose,
    cx: &mut Context<'_>,
) -> Outcome {
    match broker.relays.insert(None, asker, purpose, cx) {
        Ok(id) => {
            cx.effects.letters.push(Letter::Route { id, topic });
            parked(asker)
        }
        Err(refused) => Outcome::Reply(*refused),
    }
}

/// A call of another shard: for a client of this one, or passed on.
pub fn on_forwarded(broker: &mut Broker, forwarded: ForwardedCall, cx: &mut Context<'_>) {
    let Some(connection) = broker.clients.producer(&forwarded.client_id) else {
        cx.effects.letters.push(Letter::Call(Box::new(forwarded)));
        return;
    };
    let (shard, id) = (forwarded.origin, forwarded.id);
    let asker = Asker::Shard { shard, id };
    let outcome = call(broker, connection, forwarded.call, asker, Purpose::Pass, cx);
    if !matches!(outcome, Outcome::Held) {
        let result = Err(CallError::Busy);
        let origin = shard;
        cx.effects
            .letters
            .push(Letter::Answer { origin, id, result });
    }
}

/// What became of a call at the other shards. It may be over here.
pub fn on_forwarded_answer(broker: &mut Broker, id: u64, result: CallResult, cx: &mut Context<'_>) {
    if broker
        .relays
        .calls
        .get(&id)
        .is_some_and(|call| call.client.is_none())
    {
        finish(broker, id, result, cx);
    }
}

/// A client's answer. One that nobody waits for, or of another client, is dropped.
pub fn on_answer(broker: &mut Broker, command: &Command<'_>, peer: Peer, cx: &mut Context<'_>) {
    let Some(number) = broker.relays.number_of(command.opaque) else {
        return;
    };
    if broker.relays.calls[&number].client != Some(peer.connection) {
        return;
    }
    let answer = ClientAnswer {
        code: command.code,
        remark: command.remark.map(str::to_owned),
        body: Bytes::copy_from_slice(command.body),
    };
    finish(broker, number, Ok(answer), cx);
}

/// The client's connection is closed.
pub fn on_closed(broker: &mut Broker, connection: ConnectionId, cx: &mut Context<'_>) {
    let calls = broker.relays.calls.iter();
    let gone = calls.filter(|(_, call)| call.client == Some(connection));
    let gone: Vec<u64> = gone.map(|(number, _)| *number).collect();
    for number in gone {
        finish(broker, number, Err(CallError::Gone), cx);
    }
}

pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((number, call)) = broker.relays.calls.first_key_value()
        && call.deadline_us <= cx.now.monotonic_us
    {
        let number = *number;
        finish(broker, number, Err(CallError::Timeout), cx);
    }
}

/// The broker stops: nobody waits any longer.
pub fn answer_all(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((number, _)) = broker.relays.calls.first_key_value() {
        let number = *number;
        finish(broker, number, Err(CallError::Gone), cx);
    }
}

fn finish(broker: &mut Broker, number: u64, result: CallResult, cx: &mut Context<'_>) {
    let Some(call) = broker.relays.calls.remove(&number) else {
        return;
    };
    match call.asker {
        Asker::Connection {
            connection,
            opaque,
            encoding,
        } => cx.effects.replies.push(Addressed {
            connection,
            opaque,
            encoding,
            response: response(call.purpose, result),
        }),
        Asker::Nobody => {}
        Asker::Shard { shard, id } => cx.effects.letters.push(Letter::Answer {
            origin: shard,
            id,
            result,
        }),
    }
}

/// The codes are Apache's: a client that is not there 1, one that does not answer 207.
fn response(purpose: Purpose, result: CallResult) -> Response {
    let (code, remark) = match (purpose, result) {
        (Purpose::Assign(waiting), result) => return waiting.response(result),
        (Purpose::Pass, Ok(answer)) => {
            return Response {
                code: ResponseCode(answer.code),
                remark: answer.remark.map(Into::into),
                header: ResponseHeader::None,
                body: Body::Bytes(answer.body),
            };
        }
        (Purpose::Pass, Err(CallError::Timeout)) => {
            let remark = CallError::Timeout.to_string();
            (ResponseCode::CONSUME_MSG_TIMEOUT, remark)
        }
        (_, Err(CallError::Busy)) => (
            ResponseCode::SYSTEM_BUSY,
            format!("{}, the limit is {CLIENT_CALLS_MAX}", CallError::Busy),
        ),
        (Purpose::Pass, Err(error)) => (ResponseCode::SYSTEM_ERROR, error.to_string()),
        (Purpose::Reply { queue_id }, Ok(answer)) if answer.code == 0 => {
            return Response::with_header(ResponseHeader::Fields(vec![
                ("msgId", "0".to_owned()),
                ("queueId", queue_id.to_string()),
                ("queueOffset", "0".to_owned()),
            ]));
        }
        (Purpose::Reply { .. }, Ok(answer)) => {
            let reason = answer.remark.unwrap_or_default();
            let remark = format!(
                "push reply message to the client failed: code {}, {reason}",
                answer.code
            );
            (ResponseCode::SYSTEM_ERROR, remark)
        }
        (Purpose::Reply { .. }, Err(error)) => {
            let remark = format!("push reply message to the client failed: {error}");
            (ResponseCode::SYSTEM_ERROR, remark)
        }
    };
    Response::error(code, remark)
}
