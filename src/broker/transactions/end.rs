//! 37: a producer decides.
//!
//! Java sends it one-way, Go and C++ as a request. The half message is named by its place in the log, so that it may
//! be cold: the request runs again with it. The first decision stands, whichever of a message's places it names: a
//! producer that takes longer than a check may still name the first.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/EndTransactionProcessor.java`.

use super::super::internal::{self, NotStored};
use super::super::topics::Refusal;
use super::super::{Acknowledgement, Broker, Context, Outcome, send};
use super::{HALVES_AHEAD_MAX, decide, origin_of, settle, target_of};
use crate::ids::PhysicalOffset;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::hash;
use crate::protocol::message::{NewMessage, Record, StoredMessage, sys_flag};
use crate::protocol::names::HALF_TOPIC;
use crate::protocol::properties::{self, name};
use crate::protocol::response::{Response, ResponseHeader};
use smallvec::smallvec;

/// The request as it came.
struct End<'a> {
    group: &'a str,
    offset: i64,
    at: i64,
    is_commit: bool,
    /// The answer to a check.
    is_from_check: bool,
}

pub fn end(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let decision = command.require_i32("commitOrRollback")?;
    let asked = End {
        group: command.require_text("producerGroup")?,
        offset: command.require_i64("tranStateTableOffset")?,
        at: command.require_i64("commitLogOffset")?,
        is_commit: decision == sys_flag::TRANSACTION_COMMIT,
        is_from_check: command.text("fromTransactionCheck") == Some("true"),
    };
    // The producer does not know yet: it is asked again.
    if decision == 0 {
        return Ok(Outcome::Reply(Response::success()));
    }
    if !asked.is_commit && decision != sys_flag::TRANSACTION_ROLLBACK {
        let remark = format!("commitOrRollback is {decision}, which is none of 0, 8 and 12");
        let response = Response::error(ResponseCode::SYSTEM_ERROR, remark);
        return Ok(Outcome::Reply(response));
    }
    let Some(at) = place(asked.at, cx) else {
        return Ok(refuse(not_found(asked.at), cx));
    };
    let record = match cx.store.record_at(at, cx.fetched) {
        Ok(record) => record,
        Err(missing) => return Ok(Outcome::Read(smallvec![missing])),
    };
    let outcome = match StoredMessage::decode(&record) {
        Ok(Record::Message(stored)) if stored.topic == HALF_TOPIC => {
            end_half(broker, &asked, &stored, cx)
        }
        _ => Err(not_found(asked.at)),
    };
    Ok(outcome.unwrap_or_else(|refusal| refuse(refusal, cx)))
}

fn place(at: i64, cx: &Context<'_>) -> Option<PhysicalOffset> {
    let at = PhysicalOffset(u64::try_from(at).ok()?);
    let (start, end) = cx.store.log_bounds();
    (start..end).contains(&at).then_some(at)
}

/// Java sends one-way, so that the log is where a refusal can be seen.
fn refuse((code, remark): Refusal, cx: &mut Context<'_>) -> Outcome {
    tracing::debug!(%remark, "the end of a transaction is refused");
    cx.counters.transactions_refused += 1;
    Outcome::Reply(Response::error(code, remark))
}

fn not_found(at: i64) -> Refusal {
    let remark = format!("Find prepared transaction message failed: there is none at {at}");
    (ResponseCode::SYSTEM_ERROR, remark)
}

fn end_half(
    broker: &mut Broker,
    asked: &End<'_>,
    stored: &StoredMessage<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, Refusal> {
    check(asked, stored, cx)?;
    let offset = undecided(broker, stored)?;
    settle(broker, cx).map_err(refusal)?;
    let committed = if asked.is_commit {
        Some(commit(broker, stored, cx).map_err(refusal)?)
    } else {
        None
    };
    let decision = decide(broker, offset, cx);
    let count = if asked.is_commit {
        &mut cx.counters.transactions_committed
    } else {
        &mut cx.counters.transactions_rolled_back
    };
    *count += 1;
    let end = decision.map(|appended| appended.end).or(committed);
    Ok(end.map_or(Outcome::Reply(Response::success()), |end| {
        Outcome::Append(Acknowledgement {
            end,
            wait_flush: true,
            header: ResponseHeader::None,
        })
    }))
}

/// Whether the request is about this half message, and not too late.
fn check(asked: &End<'_>, stored: &StoredMessage<'_>, cx: &Context<'_>) -> Result<(), Refusal> {
    let encoded = stored.properties;
    let wrong = |what: &str, is: &str, asked: &str| {
        let remark = format!("The {what} wrong: it is {is}, asked for was {asked}");
        Err((ResponseCode::SYSTEM_ERROR, remark))
    };
    let group = properties::get(encoded, name::PRODUCER_GROUP).unwrap_or_default();
    if group != asked.group || group.is_empty() {
        return wrong("producer group", group, asked.group);
    }
    let offset = stored.queue_offset.0;
    if u64::try_from(asked.offset) != Ok(offset) {
        let (is, asked) = (offset.to_string(), asked.offset.to_string());
        return wrong("transaction state table offset", &is, &asked);
    }
    let immunity = properties::get(encoded, name::CHECK_IMMUNITY_SECONDS);
    let immunity_s = immunity.and_then(|text| text.parse::<i64>().ok());
    if let Some(immunity_s) = immunity_s.filter(|s| *s >= 0 && !asked.is_from_check) {
        let age_ms = (cx.now.wall_ms as i64).saturating_sub(stored.born_timestamp);
        if age_ms > immunity_s.saturating_mul(1000) {
            let remark = format!(
                "the decision came {age_ms} ms after the message, the limit is {immunity_s} s ({})",
                name::CHECK_IMMUNITY_SECONDS
            );
            return Err((ResponseCode::ILLEGAL_OPERATION, remark));
        }
    }
    Ok(())
}

/// Where the half message is now, if it is undecided.
fn undecided(broker: &Broker, stored: &StoredMessage<'_>) -> Result<u64, Refusal> {
    let state = &broker.transactions;
    let offset = stored.queue_offset.0;
    if state.loading.is_some() {
        let remark = "decisions are read after the start, it will be asked for again".to_owned();
        return Err((ResponseCode::SYSTEM_BUSY, remark));
    }
    if let Some(present) = state.present(origin_of(stored)) {
        return Ok(present);
    }
    let ahead = offset.checked_sub(state.tail);
    if ahead.is_some_and(|ahead| ahead >= HALVES_AHEAD_MAX) {
        let remark = format!(
            "{} half messages before it are not looked at yet, the limit is {HALVES_AHEAD_MAX}",
            offset - state.tail
        );
        return Err((ResponseCode::SYSTEM_BUSY, remark));
    }
    if ahead.is_some() && !state.decided.contains(offset) {
        return Ok(offset);
    }
    let remark = format!("the half message at {offset} is decided already");
    Err((ResponseCode::SYSTEM_ERROR, remark))
}

fn refusal(error: NotStored) -> Refusal {
    match error {
        NotStored::Store(error) => send::append_refusal(error),
        error @ (NotStored::NoTopic | NotStored::NoQueue) => {
            (ResponseCode::SYSTEM_ERROR, error.to_string())
        }
    }
}

/// Stores the message where it belongs, with all that its producer gave it.
fn commit(
    broker: &mut Broker,
    stored: &StoredMessage<'_>,
    cx: &mut Context<'_>,
) -> Result<PhysicalOffset, NotStored> {
    let (topic, queue_id) = target_of(stored).ok_or(NotStored::NoTopic)?;
    let message = NewMessage {
        topic,
        queue_id,
        sys_flag: stored.sys_flag & !sys_flag::TRANSACTION_MASK | sys_flag::TRANSACTION_COMMIT,
        prepared_transaction_offset: stored.physical_offset.0,
        properties: stored.properties,
        tags_code: hash::tags_code(stored.tag()),
        ..internal::copy_of(stored, &broker.config)
    };
    Ok(internal::append(broker, &message, cx)?.end)
}
