//! 200050 and its companions: consumption where the broker keeps the progress of a group.
//!
//! A message that is popped is invisible to its group for the time that the consumer asks for. Acknowledged within it,
//! it is done with; otherwise a copy goes to the group's retry topic for pops, and after the group's last try to its
//! dead letters. What is not done with is never below the committed offset ([`windows`]): after the end of a process
//! it is popped again from there.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../processor/PopMessageProcessor.java`. There check points are stored as
//! messages of a revive topic; here the committed offset is all that has to be kept.

use super::pull::{self, PullRequest};
use super::topics::Refusal;
use super::{Addressed, Broker, Context, Outcome, Peer};
use crate::ids::ConnectionId;
use crate::limits::HOLD_MS_MAX;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::headers::{PULL_FLAG_SUBSCRIPTION, PopHeader, PullHeader};
use crate::protocol::names::{self, RETRY_PREFIX};
use crate::protocol::response::{Response, ResponseHeader};
use crate::storage::Arrival;
use std::rc::Rc;

mod assignment;
mod batch;
mod collect;
mod modes;
mod receipts;
mod revive;
#[cfg(test)]
mod tests;
mod waiting;
mod windows;

pub use assignment::{Waiting, query_assignment};
pub use batch::acknowledge_batch;
use collect::{Collected, collect, commit};
pub use modes::{FILE as MODES_FILE, Modes, set_mode};
pub use receipts::{acknowledge, change_invisible_time};
pub(super) use revive::{failed as revive_failed, run as run_revive};

/// Messages of one pop. Source: apache/rocketmq 5.3.x `PopMessageProcessor`.
const MESSAGES_MAX: i32 = 32;
/// A pop that is so much older than its time to wait has been given up by its client.
const LATE_MS: i64 = 500;
/// A held pop is answered so long before its client gives it up.
const EARLY_MS: i64 = 50;

/// A pop that passed its checks.
#[derive(Clone, Debug)]
pub struct PopRequest {
    /// Of the topic; its queue and offset are those of no queue in particular.
    base: PullRequest,
    /// `None`: any.
    queue_id: Option<u32>,
    /// `None`: the topic is a retry topic itself.
    retry_topic: Option<Rc<str>>,
    invisible_ms: u64,
    /// A group without an offset starts at the end.
    starts_at_end: bool,
    ordered: bool,
}

impl PopRequest {
    /// The topics that it waits for.
    fn topics(&self) -> impl Iterator<Item = &str> {
        let retry = self.retry_topic.as_deref();
        std::iter::once(&*self.base.topic).chain(retry)
    }
}

/// What a shard knows of pops.
#[derive(Debug, Default)]
pub struct Pops {
    windows: windows::Windows,
    waiting: waiting::Waiting,
    revive: revive::Revive,
    /// Counts pops: queues take turns.
    turn: u64,
}

impl Pops {
    /// Messages that are with consumers, and pops that wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.windows.in_flight(), self.waiting.len())
    }

    pub fn next_deadline(&self) -> Option<u64> {
        let waiting = self.waiting.first_deadline().map(|(at, _)| at);
        [waiting, self.revive.next_deadline(&self.windows)]
            .into_iter()
            .flatten()
            .min()
    }

    pub fn drop_connection(&mut self, connection: ConnectionId) {
        self.waiting.drop_connection(connection);
    }

    pub fn remove_group(&mut self, group: &str) {
        self.windows.forget(|window| *window.group == *group);
    }
}

/// The retry topic of a group for what it popped of a topic; `None`: the topic is one.
fn retry_topic(group: &str, topic: &str) -> Option<String> {
    (!topic.starts_with(RETRY_PREFIX)).then(|| format!("{RETRY_PREFIX}{group}_{topic}"))
}

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let header = PopHeader::decode(command)?;
    let now_ms = i64::try_from(cx.now.wall_ms).unwrap_or(i64::MAX);
    let age_ms = now_ms.saturating_sub(header.born_time);
    let is_late = cx.first_run && age_ms.saturating_sub(header.poll_time) > LATE_MS;
    if is_late {
        return Ok(Outcome::Reply(nothing("the pop is too late")));
    }
    let request = match check(broker, command, &header, peer, cx) {
        Ok(request) => request,
        Err((code, remark)) => return Ok(Outcome::Reply(Response::error(code, remark))),
    };
    Ok(match collect(broker, &request, cx) {
        Collected::Answer(response) => Outcome::Reply(*response),
        Collected::Missing(missing) => Outcome::Read(missing),
        Collected::More => {
            Outcome::Reply(nothing("the filter refused as much as one pop examines"))
        }
        Collected::Nothing
            if command.is_one_way() || request.base.deadline_us <= cx.now.monotonic_us =>
        {
            Outcome::Reply(nothing("no message"))
        }
        Collected::Nothing if !broker.pops.waiting.has_room() => Outcome::Reply(Response::error(
            ResponseCode::POLLING_FULL,
            "as many pops wait as this shard holds",
        )),
        Collected::Nothing => {
            broker.pops.waiting.park(request);
            Outcome::Held
        }
    })
}

fn nothing(remark: &'static str) -> Response {
    Response::error(ResponseCode::POLLING_TIMEOUT, remark)
}

fn invalid(remark: String) -> Refusal {
    (ResponseCode::INVALID_PARAMETER, remark)
}

fn check(
    broker: &mut Broker,
    command: &Command<'_>,
    header: &PopHeader<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<PopRequest, Refusal> {
    if header.max_msg_nums > MESSAGES_MAX {
        let max = header.max_msg_nums;
        return Err(invalid(format!(
            "maxMsgNums is {max}, the limit is {MESSAGES_MAX}"
        )));
    }
    let as_pull = PullHeader {
        consumer_group: header.consumer_group,
        topic: header.topic,
        queue_id: header.queue_id.max(0),
        queue_offset: 0,
        max_msg_nums: header.max_msg_nums,
        sys_flag: PULL_FLAG_SUBSCRIPTION,
        commit_offset: 0,
        suspend_timeout_millis: 0,
        subscription: Some(header.expression),
        sub_version: 0,
        expression_type: header.expression_type,
    };
    let base = pull::check(broker, command, &as_pull, peer, cx)?;
    let retry = retry_topic(header.consumer_group, header.topic);
    if let Some(name) = &retry {
        names::check_topic(name).map_err(|e| invalid(format!("its retry topic {name}: {e}")))?;
    }
    let waited_ms = (cx.now.wall_ms as i64)
        .saturating_sub(header.born_time)
        .max(0);
    let wait_ms = header
        .poll_time
        .saturating_sub(waited_ms)
        .saturating_sub(EARLY_MS);
    let wait_ms = u64::try_from(wait_ms).unwrap_or(0).min(HOLD_MS_MAX);
    Ok(PopRequest {
        base: PullRequest {
            deadline_us: cx.now.after_ms(wait_ms),
            ..base
        },
        queue_id: u32::try_from(header.queue_id).ok(),
        retry_topic: retry.map(Rc::from),
        invisible_ms: u64::try_from(header.invisible_time).unwrap_or(0),
        starts_at_end: header.init_mode == 1,
        ordered: header.order,
    })
}

/// 200055: how many pops wait for a queue, or, where it is negative, for any of the topic.
pub fn waiting_count(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let group = command.require_text("consumerGroup")?;
    let topic = command.require_text("topic")?;
    let queue_id = command.require_i32("queueId")?;
    if let Err((code, remark)) = check_place(broker, command, (group, topic, queue_id), peer, cx) {
        return Ok(Outcome::Reply(Response::error(code, remark)));
    }
    let count = broker
        .pops
        .waiting
        .count(group, topic, u32::try_from(queue_id).ok());
    let fields = vec![("pollingNum", count.to_string())];
    let response = Response::with_header(ResponseHeader::Fields(fields));
    Ok(Outcome::Reply(response))
}

/// Checks topic, queue and group as for a pop.
fn check_place(
    broker: &mut Broker,
    command: &Command<'_>,
    (consumer_group, topic, queue_id): (&str, &str, i32),
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<PullRequest, Refusal> {
    let as_pull = PullHeader {
        consumer_group,
        topic,
        queue_id: queue_id.max(0),
        queue_offset: 0,
        max_msg_nums: 1,
        sys_flag: PULL_FLAG_SUBSCRIPTION,
        commit_offset: 0,
        suspend_timeout_millis: 0,
        subscription: Some("*"),
        sub_version: 0,
        expression_type: "TAG",
    };
    pull::check(broker, command, &as_pull, peer, cx)
}

/// A queue has messages: answers the pops that wait for them.
pub fn on_arrival(broker: &mut Broker, arrival: Arrival, cx: &mut Context<'_>) {
    if broker.pops.waiting.is_empty() {
        return;
    }
    let (topic, queue_id) = cx.store.name_of(arrival.queue);
    let topic: Rc<str> = topic.into();
    wake(broker, &topic, queue_id, cx);
}

/// Answers the pops that wait for a queue, the earliest first, until nothing is left for them.
fn wake(broker: &mut Broker, topic: &str, queue_id: u32, cx: &mut Context<'_>) {
    let mut number = 0;
    let mut without: Vec<(Rc<str>, Rc<super::filter::Subscription>)> = Vec::new();
    while let Some((next, request)) = broker.pops.waiting.next_of(topic, number) {
        number = next;
        let other = request.queue_id.is_some_and(|id| id != queue_id);
        let is_known = without.iter().any(|(group, subscription)| {
            *group == request.base.group && Rc::ptr_eq(subscription, &request.base.subscription)
        });
        if is_known || other && *request.base.topic == *topic {
            continue;
        }
        let request = request.clone();
        match collect(broker, &request, cx) {
            Collected::Answer(response) => {
                cx.counters.pops_woken += 1;
                answer(broker, number, *response, cx);
            }
            // A read is a request's: the client asks again at once.
            Collected::Missing(_) | Collected::More => {
                answer(broker, number, nothing("ask again"), cx);
            }
            Collected::Nothing if request.queue_id.is_none() => {
                without.push((
                    request.base.group.clone(),
                    request.base.subscription.clone(),
                ));
            }
            Collected::Nothing => {}
        }
    }
}

fn answer(broker: &mut Broker, number: waiting::Number, response: Response, cx: &mut Context<'_>) {
    let Some(request) = broker.pops.waiting.remove(number) else {
        return;
    };
    let base = request.base;
    cx.counters.count_answer(base.asked, response.code.0, true);
    cx.effects.replies.push(Addressed {
        connection: base.connection,
        opaque: base.opaque,
        encoding: base.encoding,
        response,
    });
}

/// Answers pops whose time is over; what was popped and not acknowledged is delivered again.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((deadline_us, number)) = broker.pops.waiting.first_deadline() {
        if deadline_us > cx.now.monotonic_us {
            break;
        }
        answer(broker, number, nothing("no message"), cx);
    }
    revive::expire(broker, cx);
}

/// Answers every pop that waits; the broker stops.
pub fn begin_stop(broker: &mut Broker, cx: &mut Context<'_>) {
    while let Some((_, number)) = broker.pops.waiting.first_deadline() {
        answer(broker, number, nothing("the broker stops"), cx);
    }
    revive::begin_stop(broker, cx);
}

/// A topic is gone: what was popped of it too, and who waits for it is told.
pub fn remove_topic(broker: &mut Broker, topic: &str, cx: &mut Context<'_>) {
    broker.pops.windows.forget(|window| *window.topic == *topic);
    broker.modes.remove_topic(topic);
    let mut number = 0;
    while let Some((next, request)) = broker.pops.waiting.next_of(topic, number) {
        number = next;
        if *request.base.topic == *topic {
            let response = pull::topic_gone(&request.base);
            answer(broker, number, response, cx);
        }
    }
}
