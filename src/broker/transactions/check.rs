//! What becomes of half messages that nobody decides: their producers are asked (39), in the end they go to
//! `TRANS_CHECK_MAX_TIME_TOPIC`.
//!
//! A run reads the records of decisions after the start, then looks at half messages that are new to it, then at
//! those that are due. Each message is dealt with by itself: one that can't be read keeps no other back.

use super::super::internal::{self, NotStored, Step};
use super::super::relay::AddressedCall;
use super::super::{Broker, Context};
use super::{Half, TransactionConfig, decide, origin_of, settle, target_of};
use crate::clock::Now;
use crate::ids::{ConnectionId, QueueIndex, QueueOffset};
use crate::limits::{HALVES_STRETCH_MAX, PROPERTIES_BYTES_MAX, PULL_ENTRIES_EXAMINED_MAX};
use crate::protocol::calls::ClientCall;
use crate::protocol::codes::RequestCode;
use crate::protocol::hash;
use crate::protocol::message::{NewMessage, Record, StoredMessage, offset_message_id, sys_flag};
use crate::protocol::names::{CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC};
use crate::protocol::properties::{self, name};
use crate::storage::{Entry, Missing};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Pause after a failure: the store is busy, or a read failed.
pub(super) const RETRY_MS: u64 = 100;
/// Longest sleep of a deadline, so that steps of the wall clock are noticed.
const SLEEP_MS_MAX: u64 = 10_000;
/// A half message that its producer's group was not there for in so long is given up. Source: apache/rocketmq
/// `fileReservedTime`, 72 hours.
const AGE_MS_MAX: u64 = 72 * 3_600_000;
/// Messages and bytes that one run deals with before it gives way; offsets that it passes over.
const RUN_MESSAGES_MAX: usize = 512;
const RUN_BYTES_MAX: usize = 1 << 20;
const RUN_PASSED_MAX: usize = 16_384;
/// Records that one run asks for.
const RUN_READS_MAX: usize = 64;

/// One run.
#[derive(Default)]
struct Run {
    messages: usize,
    bytes: usize,
    passed: usize,
    missing: SmallVec<[Missing; 4]>,
    /// When to run again, in monotonic microseconds.
    due_us: Option<u64>,
}

impl Run {
    fn is_over(&self) -> bool {
        self.messages >= RUN_MESSAGES_MAX
            || self.bytes >= RUN_BYTES_MAX
            || self.passed >= RUN_PASSED_MAX
    }

    fn has_progress(&self) -> bool {
        self.messages > 0 || self.passed > 0
    }

    fn again_at(&mut self, due_us: u64) {
        self.due_us = Some(self.due_us.map_or(due_us, |at| at.min(due_us)));
    }
}

/// A read failed, or there was no room for it: tried again.
pub fn failed(broker: &mut Broker, now: Now) {
    broker.transactions.is_reading = false;
    broker.transactions.due_us = Some(now.after_ms(RETRY_MS));
}

pub fn run(broker: &mut Broker, cx: &mut Context<'_>) -> Step {
    let state = &mut broker.transactions;
    state.is_reading = false;
    state.due_us = None;
    if state.is_stopping {
        return Step::Done;
    }
    let mut run = Run::default();
    load(broker, cx, &mut run);
    if broker.transactions.loading.is_none()
        && let Some(queue) = cx.store.queue(HALF_TOPIC, 0)
    {
        broker.transactions.queue = Some(queue);
        let worked = settle(broker, cx)
            .and_then(|()| {
                ask(broker, queue, cx, &mut run);
                examine(broker, queue, cx, &mut run)
            })
            .and_then(|()| check_due(broker, cx, &mut run));
        if let Err(error) = worked {
            tracing::debug!(%error, "half messages wait for the store");
            run.again_at(cx.now.after_ms(RETRY_MS));
        }
    }
    let state = &mut broker.transactions;
    if run.has_progress() {
        state.has_changed(cx.now);
    }
    if run.is_over() || !run.missing.is_empty() && run.has_progress() {
        run.again_at(cx.now.monotonic_us);
    } else if !run.missing.is_empty() {
        state.is_reading = true;
        return Step::Missing(run.missing);
    }
    state.due_us = run.due_us;
    Step::Done
}

/// Learns which half messages are decided.
fn load(broker: &mut Broker, cx: &mut Context<'_>, run: &mut Run) {
    let Some(mut next) = broker.transactions.loading else {
        return;
    };
    let Some(queue) = cx.store.queue(OP_HALF_TOPIC, 0) else {
        broker.transactions.loading = None;
        return;
    };
    let bounds = cx.store.bounds(queue);
    next = next.clamp(bounds.min.0, bounds.max.0);
    let halves = cx.store.queue(HALF_TOPIC, 0);
    let halves_max = halves.map_or(0, |queue| cx.store.bounds(queue).max.0);
    while next < bounds.max.0 && !run.is_over() {
        match look_up(queue, next, bounds.max.0, cx, |_| true) {
            Ok(Some((record, _))) => {
                learn(broker, next, &record, halves_max);
                run.bytes += record.len();
            }
            Ok(None) => {}
            Err(missing) => {
                run.missing = missing;
                break;
            }
        }
        run.messages += 1;
        next += 1;
    }
    broker.transactions.loading = (next < bounds.max.0).then_some(next);
}

/// A record of decisions: one offset, or several with a comma behind each (5.x).
fn learn(broker: &mut Broker, op: u64, record: &[u8], halves_max: u64) {
    let Ok(Record::Message(stored)) = StoredMessage::decode(record) else {
        tracing::error!(op, "a record of decisions can't be read, it is left out");
        return;
    };
    let text = std::str::from_utf8(stored.body).unwrap_or_default();
    let state = &mut broker.transactions;
    for half in text
        .split(',')
        .filter_map(|part| part.trim().parse::<u64>().ok())
    {
        state.note_decision(op, half);
        if (state.tail..halves_max).contains(&half) {
            state.decided.set(half, state.tail);
        }
    }
}

/// The record at an offset of a queue, `None` if it is lost. **Errors**: what has to be read, with more of what comes
/// next and is wanted.
fn look_up(
    queue: QueueIndex,
    offset: u64,
    max: u64,
    cx: &Context<'_>,
    is_wanted: impl Fn(u64) -> bool,
) -> Result<Option<(Bytes, Entry)>, SmallVec<[Missing; 4]>> {
    let entry_at = |offset| cx.store.entry(queue, QueueOffset(offset), cx.fetched);
    let entry = entry_at(offset).map_err(|_| {
        let count = (max - offset).min(u64::from(PULL_ENTRIES_EXAMINED_MAX)) as u32;
        let from = QueueOffset(offset);
        SmallVec::from_iter([Missing::Entries { queue, from, count }])
    })?;
    let start = cx.store.log_bounds().0;
    let is_there = |entry: &Entry| !entry.is_blank() && entry.at >= start;
    if !is_there(&entry) {
        return Ok(None);
    }
    if let Ok(record) = cx.store.record(entry.at, entry.bytes, cx.fetched) {
        return Ok(Some((record, entry)));
    }
    let mut bytes = 0;
    let entries = (offset..max)
        .filter(|offset| is_wanted(*offset))
        .map_while(|at| entry_at(at).ok());
    let records = entries.filter(is_there).filter_map(|entry| {
        let missing = cx.store.record(entry.at, entry.bytes, cx.fetched).err()?;
        Some((missing, entry.bytes as usize))
    });
    let records = records.take_while(|(_, size)| {
        bytes += size;
        bytes - size < RUN_BYTES_MAX
    });
    Err(records
        .take(RUN_READS_MAX)
        .map(|(missing, _)| missing)
        .collect())
}

/// Sends the checks for which half messages were stored again.
fn ask(broker: &mut Broker, queue: QueueIndex, cx: &mut Context<'_>, run: &mut Run) {
    let max = cx.store.bounds(queue).max.0;
    while let Some(offset) = broker.transactions.to_ask.front().copied()
        && offset < max
        && !run.is_over()
    {
        let half = broker.transactions.undecided.get(&offset).copied();
        if let Some(half) = half {
            let Ok(record) = cx.store.record(half.at, half.bytes, cx.fetched) else {
                run.missing = records(broker, half, cx);
                return;
            };
            if let Ok(Record::Message(stored)) = StoredMessage::decode(&record) {
                send_check(broker, &stored, cx);
            }
            run.bytes += record.len();
        }
        run.messages += 1;
        broker.transactions.to_ask.pop_front();
    }
}

/// Takes in half messages that are new.
fn examine(
    broker: &mut Broker,
    queue: QueueIndex,
    cx: &mut Context<'_>,
    run: &mut Run,
) -> Result<(), NotStored> {
    let bounds = cx.store.bounds(queue);
    let state = &mut broker.transactions;
    state.tail = state.tail.clamp(bounds.min.0, bounds.max.0);
    loop {
        let state = &mut broker.transactions;
        let offset = state.tail;
        if offset >= bounds.max.0 || state.is_full() || run.is_over() {
            return Ok(());
        }
        let is_wanted =
            |offset| !state.decided.contains(offset) && !state.undecided.contains_key(&offset);
        if !is_wanted(offset) {
            pass(broker, run);
            continue;
        }
        match look_up(queue, offset, bounds.max.0, cx, is_wanted) {
            Ok(Some((record, entry))) => {
                run.messages += 1;
                run.bytes += record.len();
                take(broker, &record, &entry, cx)?;
            }
            Ok(None) => {}
            Err(missing) => {
                run.missing = missing;
                return Ok(());
            }
        }
        pass(broker, run);
    }
}

fn pass(broker: &mut Broker, run: &mut Run) {
    let state = &mut broker.transactions;
    state.tail += 1;
    state.decided.forget_below(state.tail);
    run.passed += 1;
}

fn take(
    broker: &mut Broker,
    record: &[u8],
    entry: &Entry,
    cx: &mut Context<'_>,
) -> Result<(), NotStored> {
    let offset = broker.transactions.tail;
    let Ok(Record::Message(stored)) = StoredMessage::decode(record) else {
        tracing::error!(offset, "a half message can't be read, it is left out");
        return Ok(());
    };
    let origin = origin_of(&stored);
    // A crash came between its new place and the record that says so.
    if let Some(older) = broker.transactions.present(origin) {
        settle(broker, cx)?;
        decide(broker, older, cx);
    }
    let half = Half {
        due_ms: due_ms(&stored, &broker.config.transactions),
        at: entry.at,
        bytes: entry.bytes,
        origin,
    };
    broker.transactions.insert(offset, half);
    Ok(())
}

fn checks_of(stored: &StoredMessage<'_>) -> u32 {
    let checks = properties::get(stored.properties, name::TRANSACTION_CHECK_TIMES);
    checks
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// When the producer is asked, or asked again. The age counts from the client's clock, if that isn't ahead of ours.
fn due_ms(stored: &StoredMessage<'_>, config: &TransactionConfig) -> u64 {
    if checks_of(stored) > 0 {
        return stored.store_timestamp + config.interval_ms;
    }
    let immunity = properties::get(stored.properties, name::CHECK_IMMUNITY_SECONDS);
    let immunity = immunity.and_then(|text| text.parse::<u64>().ok());
    let immunity_ms = immunity.map_or(config.timeout_ms, |s| s.saturating_mul(1000));
    let born = u64::try_from(stored.born_timestamp).unwrap_or_default();
    born.min(stored.store_timestamp).saturating_add(immunity_ms)
}

/// Asks the producers of those that are due; moves the first ones out of the way of those that aren't looked at yet.
fn check_due(broker: &mut Broker, cx: &mut Context<'_>, run: &mut Run) -> Result<(), NotStored> {
    while !run.is_over() {
        let state = &broker.transactions;
        let Some((due_ms, offset)) = state.due.first().copied() else {
            return Ok(());
        };
        let is_due = due_ms <= cx.now.wall_ms;
        // Moving pays only while most of the stretch is decided.
        let is_sparse = (state.undecided.len() as u64) < HALVES_STRETCH_MAX / 8;
        let is_in_the_way = !is_due && state.is_long() && is_sparse;
        if !is_due && !is_in_the_way {
            let sleep_ms = (due_ms - cx.now.wall_ms).min(SLEEP_MS_MAX);
            run.again_at(cx.now.after_ms(sleep_ms));
            return Ok(());
        }
        let first = state.undecided.first_key_value();
        let offset = match first.filter(|_| is_in_the_way) {
            Some((first, _)) => *first,
            None => offset,
        };
        let half = state.undecided[&offset];
        if half.at < cx.store.log_bounds().0 {
            tracing::warn!(offset, "a half message is not in the log any more");
            broker.transactions.remove(offset);
            run.messages += 1;
            continue;
        }
        let Ok(record) = cx.store.record(half.at, half.bytes, cx.fetched) else {
            run.missing.extend(records(broker, half, cx));
            return Ok(());
        };
        run.messages += 1;
        run.bytes += record.len();
        settle(broker, cx)?;
        deal_with(broker, offset, &record, is_due, cx)?;
    }
    Ok(())
}

/// The record of one, and those of the next that are due.
fn records(broker: &Broker, half: Half, cx: &Context<'_>) -> SmallVec<[Missing; 4]> {
    let state = &broker.transactions;
    let start = cx.store.log_bounds().0;
    let due = state
        .due
        .iter()
        .take_while(|(due_ms, _)| *due_ms <= cx.now.wall_ms);
    let due = due.map(|(_, offset)| state.undecided[offset]);
    let wanted = std::iter::once(half).chain(due.filter(|other| other.at != half.at));
    let there = wanted.filter(|half| half.at >= start);
    there
        .filter_map(|half| cx.store.record(half.at, half.bytes, cx.fetched).err())
        .take(RUN_READS_MAX)
        .collect()
}

/// One that is due, or in the way.
fn deal_with(
    broker: &mut Broker,
    offset: u64,
    record: &[u8],
    is_due: bool,
    cx: &mut Context<'_>,
) -> Result<(), NotStored> {
    let Ok(Record::Message(stored)) = StoredMessage::decode(record) else {
        tracing::error!(offset, "a half message can't be read, it is left out");
        broker.transactions.remove(offset);
        return Ok(());
    };
    if !is_due {
        return store_again(broker, offset, &stored, false, cx);
    }
    let config = broker.config.transactions;
    let age_ms = cx.now.wall_ms.saturating_sub(stored.store_timestamp);
    if checks_of(&stored) >= config.checks_max || age_ms > AGE_MS_MAX {
        return give_up(broker, offset, &stored, cx);
    }
    if producer(broker, &stored).is_some() {
        store_again(broker, offset, &stored, true, cx)
    } else if broker.transactions.is_full() {
        store_again(broker, offset, &stored, false, cx)
    } else {
        // It counts as no check: a group may be away for longer than all checks take.
        let due_ms = cx.now.wall_ms + config.interval_ms;
        broker.transactions.postpone(offset, due_ms);
        Ok(())
    }
}

/// A producer of the message's group, the groups' members in turn.
fn producer(broker: &Broker, stored: &StoredMessage<'_>) -> Option<ConnectionId> {
    let group = properties::get(stored.properties, name::PRODUCER_GROUP)?;
    broker
        .clients
        .producer_in_turn(group, broker.transactions.checks)
}

/// Moves a half message to the end of its queue; its producer is asked when it is visible there.
fn store_again(
    broker: &mut Broker,
    offset: u64,
    stored: &StoredMessage<'_>,
    is_to_be_checked: bool,
    cx: &mut Context<'_>,
) -> Result<(), NotStored> {
    let checks = checks_of(stored) + u32::from(is_to_be_checked);
    let origin = origin_of(stored);
    let mut kept = String::with_capacity(stored.properties.len() + super::CHECK_PROPERTIES_BYTES);
    let added = [
        name::TRANSACTION_CHECK_TIMES,
        name::TRANSACTION_PREPARED_QUEUE_OFFSET,
    ];
    properties::copy_without(stored.properties, &added, &mut kept);
    let mut number = itoa::Buffer::new();
    properties::append(&mut kept, added[0], number.format(checks));
    properties::append(&mut kept, added[1], number.format(origin));
    if kept.len() > PROPERTIES_BYTES_MAX {
        tracing::warn!(
            offset,
            "a half message has no room for the properties of a check"
        );
        return give_up(broker, offset, stored, cx);
    }
    let message = NewMessage {
        topic: HALF_TOPIC,
        properties: &kept,
        tags_code: hash::tags_code(stored.tag()),
        ..internal::copy_of(stored, &broker.config)
    };
    let appended = internal::append(broker, &message, cx)?;
    decide(broker, offset, cx);
    let half = Half {
        due_ms: cx.now.wall_ms + broker.config.transactions.interval_ms,
        at: appended.at,
        bytes: appended.end.bytes_since(appended.at) as u32,
        origin,
    };
    let offset = appended.queue_offset.0;
    broker.transactions.insert(offset, half);
    if is_to_be_checked {
        broker.transactions.to_ask.push_back(offset);
    }
    Ok(())
}

/// Nobody is asked any more: an operator may look at it.
fn give_up(
    broker: &mut Broker,
    offset: u64,
    stored: &StoredMessage<'_>,
    cx: &mut Context<'_>,
) -> Result<(), NotStored> {
    let message = NewMessage {
        topic: CHECK_MAX_TOPIC,
        sys_flag: stored.sys_flag & !sys_flag::TRANSACTION_MASK,
        properties: stored.properties,
        tags_code: hash::tags_code(stored.tag()),
        ..internal::copy_of(stored, &broker.config)
    };
    internal::append(broker, &message, cx)?;
    tracing::warn!(
        offset,
        checks = checks_of(stored),
        group = properties::get(stored.properties, name::PRODUCER_GROUP),
        "a half message is given up, it goes to {CHECK_MAX_TOPIC}"
    );
    decide(broker, offset, cx);
    cx.counters.transactions_given_up += 1;
    Ok(())
}

/// Asks a producer: the message as it is stored, with its real topic.
fn send_check(broker: &mut Broker, stored: &StoredMessage<'_>, cx: &mut Context<'_>) {
    let Some(connection) = producer(broker, stored) else {
        return;
    };
    let Some((topic, queue_id)) = target_of(stored) else {
        return;
    };
    let message = NewMessage {
        topic,
        queue_id,
        properties: stored.properties,
        ..internal::copy_of(stored, &broker.config)
    };
    let mut body = BytesMut::new();
    let (offset, at) = (stored.queue_offset, stored.physical_offset);
    message.encode(offset, at, stored.store_timestamp, &mut body);
    let key = properties::get(stored.properties, name::UNIQUE_KEY).unwrap_or_default();
    let call = ClientCall {
        code: RequestCode::CHECK_TRANSACTION_STATE,
        fields: vec![
            ("topic", topic.to_owned()),
            ("tranStateTableOffset", offset.to_string()),
            ("commitLogOffset", at.to_string()),
            ("msgId", key.to_owned()),
            ("transactionId", key.to_owned()),
            (
                "offsetMsgId",
                offset_message_id(broker.config.address, at).to_string(),
            ),
            ("bname", broker.config.broker_name.clone()),
        ],
        body: body.freeze(),
    };
    let checks = &mut broker.transactions.checks;
    *checks += 1;
    cx.counters.transactions_checked += 1;
    cx.effects.calls.push(AddressedCall {
        connection,
        opaque: (*checks & 0x3FFF_FFFF) as i32,
        one_way: true,
        call,
    });
}
