//! 11, 361: pulls.
//!
//! A pull is checked once (codes of `semantics.md` section 4), then evaluated: now, after an arrival, after its
//! bytes were read, or at the end of its hold. Evaluating and parking happen in one call, so that no arrival falls
//! in between (apache/rocketmq#7358).

use super::filter::{self, Filter, Subscription};
use super::groups::Group;
use super::topics::{PERM_READ, Refusal};
use super::{Broker, Context, Outcome, Peer};
use crate::ids::{ConnectionId, NameMap, QueueIndex, QueueOffset};
use crate::limits::{HOLD_MS_MAX, PULL_MESSAGES_MAX};
use crate::protocol::codes::{RequestCode, ResponseCode};
use crate::protocol::command::{Command, Encoding};
use crate::protocol::headers::{
    PULL_FLAG_COMMIT_OFFSET, PULL_FLAG_SUBSCRIPTION, PULL_FLAG_SUSPEND, PullHeader,
};
use crate::protocol::response::Response;
use crate::stats::Asked;
use crate::storage::Missing;
use bytes::Bytes;
use scan::{Answer, Evaluation};
use smallvec::SmallVec;
use std::rc::Rc;

mod scan;

/// Compiled expressions that pulls brought along, per shard; at the limit all are forgotten. Source: ours, a few
/// expressions per consumer.
const SUBSCRIPTIONS_MAX: usize = 4096;
/// Longer expressions are compiled at every pull, so that the table stays below 4 MiB.
const SUBSCRIPTION_KEY_BYTES_MAX: usize = 1024;

/// A pull that passed its checks, with all it needs to be evaluated again: after a hold, or after a read.
#[derive(Clone, Debug)]
pub struct PullRequest {
    pub connection: ConnectionId,
    pub opaque: i32,
    pub encoding: Encoding,
    /// Request code, and when it came.
    pub asked: Asked,
    pub group: Rc<str>,
    pub topic: Rc<str>,
    pub queue_id: u32,
    pub queue: QueueIndex,
    /// What the client asked for.
    pub offset: QueueOffset,
    /// Examined up to here: the first offset that the filter has not seen.
    pub cursor: QueueOffset,
    pub messages_max: u32,
    pub subscription: Rc<Subscription>,
    /// May be held when nothing is found.
    pub suspend: bool,
    /// End of the hold, in monotonic microseconds.
    pub deadline_us: u64,
    /// When it was parked first, in monotonic microseconds; `None` before.
    pub held_since_us: Option<u64>,
    /// The message that the filter refused last, and its tags code.
    pub refused: Option<(QueueOffset, i64)>,
}

/// What pulls keep between them, so that one in steady state allocates nothing.
#[derive(Debug, Default)]
pub struct PullCache {
    subscriptions: NameMap<Rc<Subscription>>,
    key: String,
}

pub fn handle(
    broker: &mut Broker,
    command: &Command<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Outcome {
    let header = match PullHeader::decode(command) {
        Ok(header) => header,
        Err(error) => {
            let response = Response::error(ResponseCode::SYSTEM_ERROR, error.to_string());
            return Outcome::Reply(response);
        }
    };
    match check(broker, command, &header, peer, cx) {
        Ok(request) => first_run(broker, request, &header, cx),
        Err((code, remark)) => Outcome::Reply(Response::error(code, remark)),
    }
}

fn first_run(
    broker: &mut Broker,
    mut request: PullRequest,
    header: &PullHeader<'_>,
    cx: &mut Context<'_>,
) -> Outcome {
    let reset = broker
        .resets
        .take(&request.group, &request.topic, request.queue_id);
    if let Some(offset) = reset {
        return Outcome::Reply(offset_reset(&request, offset, cx));
    }
    if cx.first_run && header.sys_flag & PULL_FLAG_COMMIT_OFFSET != 0 {
        commit_offset(broker, &request, header.commit_offset, cx);
    }
    if header.queue_offset < 0 {
        let answer = Answer::negative_offset(cx.store.bounds(request.queue));
        return Outcome::Reply(answer.response(&request, None, cx));
    }
    match scan::evaluate(&mut request, cx.store, cx.fetched) {
        Evaluation::Answer(answer) | Evaluation::Refused(answer) => {
            Outcome::Reply(answer.response(&request, None, cx))
        }
        Evaluation::Missing(missing) => Outcome::Read(missing),
        // What the filter refused is reported at once, so that the group's offset moves on.
        Evaluation::End if request.cursor > request.offset => {
            Outcome::Reply(scan::end(&request, cx.store).response(&request, None, cx))
        }
        Evaluation::End => park(broker, request, cx),
    }
}

/// Commits what the client says with its pull. A negative offset is what a consumer without one says.
fn commit_offset(broker: &mut Broker, request: &PullRequest, commit_offset: i64, cx: &Context<'_>) {
    if let Ok(offset) = u64::try_from(commit_offset) {
        let now_us = cx.now.monotonic_us;
        broker.offsets.commit(
            &request.group,
            &request.topic,
            request.queue_id,
            offset,
            now_us,
        );
    }
}

/// Parks a pull that has examined all there is, or answers it where it can't be held.
fn park(broker: &mut Broker, mut request: PullRequest, cx: &mut Context<'_>) -> Outcome {
    if !request.suspend || request.deadline_us <= cx.now.monotonic_us {
        return Outcome::Reply(scan::end(&request, cx.store).response(&request, None, cx));
    }
    request.held_since_us.get_or_insert(cx.now.monotonic_us);
    match broker.holds.park(request, cx.counters) {
        Ok(()) => Outcome::Held,
        Err(request) => Outcome::Reply(scan::end(&request, cx.store).response(&request, None, cx)),
    }
}

/// Evaluates a held pull again, with what was read for it in `cx.fetched`. The caller knows that its connection is
/// still open.
///
/// It goes back to the holds where the filter still refused everything, so that arrivals during the read are not
/// lost: they lie below the queue's end, which the pull is compared with before it is parked.
pub fn resume(broker: &mut Broker, mut request: PullRequest, cx: &mut Context<'_>) -> Outcome {
    if cx.store.queue(&request.topic, request.queue_id) != Some(request.queue) {
        return Outcome::Reply(topic_gone(&request));
    }
    match evaluate_to_end(&mut request, cx) {
        HeldEvaluation::Answer(answer) => {
            cx.counters.holds_woken += 1;
            let parked_us = request.held_since_us.unwrap_or(cx.now.monotonic_us);
            cx.counters.count_hold(parked_us, cx.now.monotonic_us);
            Outcome::Reply(answer.response(&request, None, cx))
        }
        HeldEvaluation::Missing(missing) => Outcome::Read(missing),
        HeldEvaluation::End => park(broker, request, cx),
    }
}

/// What becomes of a held pull.
pub(super) enum HeldEvaluation {
    Answer(Answer),
    Missing(SmallVec<[Missing; 4]>),
    /// Its filter refused all there is.
    End,
}

/// Evaluates a held pull up to the end of its queue. What a turn brought is bounded by what it could write.
pub(super) fn evaluate_to_end(request: &mut PullRequest, cx: &Context<'_>) -> HeldEvaluation {
    loop {
        let cursor = request.cursor;
        match scan::evaluate(request, cx.store, cx.fetched) {
            Evaluation::Refused(_) => {
                assert!(request.cursor > cursor, "no progress at {cursor}");
            }
            Evaluation::Answer(answer) => return HeldEvaluation::Answer(answer),
            Evaluation::Missing(missing) => return HeldEvaluation::Missing(missing),
            Evaluation::End => return HeldEvaluation::End,
        }
    }
}

/// What a look at a queue found, for whoever answers in another form than a pull is answered.
pub(super) enum Looked {
    Found {
        segments: SmallVec<[Bytes; 4]>,
        bytes: usize,
    },
    /// There is nothing at this offset, but here.
    Moved(QueueOffset),
    /// The filter refused as much as one look examines; there is more.
    Refused,
    Missing(SmallVec<[Missing; 4]>),
    End,
}

/// Looks at a queue from the cursor on, which moves behind what was examined.
pub(super) fn look(request: &mut PullRequest, cx: &Context<'_>) -> Looked {
    match scan::evaluate(request, cx.store, cx.fetched) {
        Evaluation::Answer(answer) => answer.into_looked(),
        Evaluation::Refused(_) => Looked::Refused,
        Evaluation::Missing(missing) => Looked::Missing(missing),
        Evaluation::End => Looked::End,
    }
}

/// The answer to a held pull whose time is over: what there is now, or 19; 20 where the filter refused something
/// meanwhile.
///
/// Both carry the cursor as `nextBeginOffset`, but not every client takes it from a 19: Go before 2.1.1 goes on from
/// where it was, sees the same messages refused again and never commits (apache/rocketmq-client-go#732). From a 20
/// all of them do, and it is what Apache answers, which evaluates the pull once more at its deadline.
pub(super) fn at_deadline(request: &mut PullRequest, cx: &mut Context<'_>) -> Response {
    let answer = match evaluate_to_end(request, cx) {
        HeldEvaluation::Answer(answer) => answer,
        // A read would be later than the client expects; it asks again at once.
        HeldEvaluation::End | HeldEvaluation::Missing(_) => scan::end(request, cx.store),
    };
    answer.response(request, None, cx)
}

/// The answer to a pull, held or not, whose offset was set by an administrator.
pub(super) fn offset_reset(request: &PullRequest, offset: u64, cx: &mut Context<'_>) -> Response {
    let answer = Answer::reset(offset, cx.store.bounds(request.queue));
    answer.response(request, None, cx)
}

/// The answer to a held pull whose queue was deleted.
pub(super) fn topic_gone(request: &PullRequest) -> Response {
    Response::error(
        ResponseCode::TOPIC_NOT_EXIST,
        format!("topic[{}] not exist, it was deleted", request.topic),
    )
}

/// The checks of a pull, in Apache's order.
///
/// **Source**: apache/rocketmq 5.3.x `broker/.../processor/PullMessageProcessor.java` `processRequest`.
pub(super) fn check(
    broker: &mut Broker,
    command: &Command<'_>,
    header: &PullHeader<'_>,
    peer: Peer,
    cx: &mut Context<'_>,
) -> Result<PullRequest, Refusal> {
    check_broker(broker, command)?;
    let group = check_group(broker, header.consumer_group, cx)?;
    let (topic, queue_id) = check_topic(broker, header, peer)?;
    let subscription = if header.sys_flag & PULL_FLAG_SUBSCRIPTION != 0 {
        broker.pulls.subscription(header)?
    } else {
        heartbeat_subscription(broker, header, group.consume_broadcast_enable)?
    };
    check_filter(broker, &subscription)?;
    let queue = broker
        .topics
        .queue(header.topic, queue_id, cx.store)
        .ok_or_else(|| unknown_topic(header.topic))?;
    let offset = QueueOffset(u64::try_from(header.queue_offset).unwrap_or(0));
    let messages_max = u32::try_from(header.max_msg_nums).unwrap_or(0);
    Ok(PullRequest {
        connection: peer.connection,
        opaque: command.opaque,
        encoding: command.encoding,
        asked: Asked {
            code: command.code,
            since_us: cx.now.monotonic_us,
        },
        group: group.name.clone(),
        topic,
        queue_id,
        queue,
        offset,
        cursor: offset,
        messages_max: messages_max.clamp(1, PULL_MESSAGES_MAX),
        subscription,
        suspend: header.sys_flag & PULL_FLAG_SUSPEND != 0 && !command.is_one_way(),
        deadline_us: cx.now.after_ms(hold_ms(broker, header)),
        held_since_us: None,
        refused: None,
    })
}

/// How long this pull may be held, in milliseconds.
fn hold_ms(broker: &Broker, header: &PullHeader<'_>) -> u64 {
    let asked = if broker.config.long_polling {
        u64::try_from(header.suspend_timeout_millis).unwrap_or(0)
    } else {
        broker.config.short_polling_ms
    };
    asked.min(HOLD_MS_MAX)
}

fn check_broker(broker: &Broker, command: &Command<'_>) -> Result<(), Refusal> {
    let ip = broker.config.address.ip();
    let remark = if broker.config.permission & PERM_READ == 0 {
        format!("the broker[{ip}] pulling message is forbidden")
    } else if RequestCode(command.code) == RequestCode::LITE_PULL_MESSAGE
        && !broker.config.lite_pull_enable
    {
        format!("the broker[{ip}] for lite pull consumer is forbidden")
    } else {
        return Ok(());
    };
    Err((ResponseCode::NO_PERMISSION, remark))
}

fn check_group(
    broker: &mut Broker,
    name: &str,
    cx: &mut Context<'_>,
) -> Result<Rc<Group>, Refusal> {
    let group = broker.groups.find_or_create(&broker.config, name, cx);
    let Some(group) = group else {
        let remark = format!(
            "subscription group [{name}] does not exist, create it first or set autoCreateSubscriptionGroup=true"
        );
        return Err((ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
    };
    if !group.consume_enable {
        let remark = format!("subscription group no permission, {name}");
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    Ok(group)
}

fn check_topic(
    broker: &Broker,
    header: &PullHeader<'_>,
    peer: Peer,
) -> Result<(Rc<str>, u32), Refusal> {
    let name = header.topic;
    let topic = broker.topics.get(name).ok_or_else(|| unknown_topic(name))?;
    if topic.config.perm & PERM_READ == 0 {
        let remark = format!("the topic[{name}] pulling message is forbidden");
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    let read_queue_nums = topic.config.read_queue_nums;
    match u32::try_from(header.queue_id) {
        Ok(queue_id) if queue_id < read_queue_nums => Ok((topic.name.clone(), queue_id)),
        _ => {
            let remark = format!(
                "queueId[{}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{read_queue_nums}] consumer:[{}]",
                header.queue_id, peer.address
            );
            Err((ResponseCode::INVALID_PARAMETER, remark))
        }
    }
}

fn unknown_topic(name: &str) -> Refusal {
    let remark = format!("topic[{name}] not exist, apply first please!");
    (ResponseCode::TOPIC_NOT_EXIST, remark)
}

/// The subscription that the group's heartbeats announced.
fn heartbeat_subscription(
    broker: &Broker,
    header: &PullHeader<'_>,
    broadcast_enable: bool,
) -> Result<Rc<Subscription>, Refusal> {
    let missing = |what: &str| {
        let remark = format!("the consumer's {what} not exist");
        (ResponseCode::SUBSCRIPTION_NOT_EXIST, remark)
    };
    let group = broker.clients.group(header.consumer_group, header.topic);
    let group = group.ok_or_else(|| missing("group info"))?;
    if group.broadcasting && !broadcast_enable {
        let remark = format!(
            "the consumer group[{}] can not consume by broadcast way",
            header.consumer_group
        );
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    let subscription = group.subscription.ok_or_else(|| missing("subscription"))?;
    if subscription.version < header.sub_version {
        let remark = "the consumer's subscription not latest".to_owned();
        return Err((ResponseCode::SUBSCRIPTION_NOT_LATEST, remark));
    }
    Ok(subscription)
}

/// A subscription that means nothing is refused at every pull, those of heartbeats too, so that its client can see
/// why nothing comes; Java answers 27 there, which says only that there is no filter.
fn check_filter(broker: &Broker, subscription: &Subscription) -> Result<(), Refusal> {
    match &subscription.filter {
        Filter::All | Filter::Tags(_) => Ok(()),
        Filter::Sql(_) if broker.config.property_filter_enable => Ok(()),
        Filter::Sql(_) => Err((ResponseCode::SYSTEM_ERROR, filter::SQL_IS_OFF.to_owned())),
        Filter::Invalid(error) => Err(parse_failed(error)),
    }
}

fn parse_failed(error: &dyn std::fmt::Display) -> Refusal {
    let remark = format!("parse the consumer's subscription failed: {error}");
    (ResponseCode::SUBSCRIPTION_PARSE_FAILED, remark)
}

impl PullCache {
    /// The subscription that a pull brings along, compiled at its first use.
    fn subscription(&mut self, header: &PullHeader<'_>) -> Result<Rc<Subscription>, Refusal> {
        let expression = header.subscription.unwrap_or_default();
        self.key.clear();
        // Names have no control characters, so that no two subscriptions have one key.
        for part in [
            header.consumer_group,
            "\u{1}",
            header.topic,
            "\u{1}",
            header.expression_type,
            "\u{1}",
            expression,
        ] {
            self.key.push_str(part);
        }
        if let Some(known) = self.subscriptions.get(self.key.as_str()) {
            return Ok(known.clone());
        }
        let filter = Filter::parse(expression, header.expression_type)
            .map_err(|error| parse_failed(&error))?;
        let subscription = Rc::new(Subscription {
            topic: header.topic.to_owned(),
            expression: expression.to_owned(),
            expression_type: header.expression_type.to_owned(),
            version: header.sub_version,
            filter,
        });
        if self.key.len() <= SUBSCRIPTION_KEY_BYTES_MAX {
            if self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
                self.subscriptions.clear();
            }
            let key = self.key.as_str().into();
            self.subscriptions.insert(key, subscription.clone());
        }
        Ok(subscription)
    }
}
