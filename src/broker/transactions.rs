//! Transactions: half messages, their decisions (37), checks with their producers (39).
//!
//! A half message lies in `RMQ_SYS_TRANS_HALF_TOPIC` until its producer decides: a commit stores it anew where it
//! belongs, and both decisions leave a record in `RMQ_SYS_TRANS_OP_HALF_TOPIC` that names its offset. One that stays
//! undecided is stored again at the end of the half queue, which that record says too, and one producer of its group
//! is asked.
//!
//! **Owned by**: one shard. In memory are the undecided ones of a stretch of the half queue, and one bit for each of
//! those behind it that are decided already; the queue itself is the rest. After a start the records of decisions are
//! read first; until then nothing is decided.
//!
//! **Invariants**: a half message is decided once; the record of a decision is never in the log without what it
//! decided; what the file says holds for what is flushed.
//!
//! Source: apache/rocketmq 5.3.x `broker/.../transaction/queue/TransactionalMessageServiceImpl.java`,
//! `TransactionalMessageBridge.java`.

use super::internal::{self, NotStored, Task};
use super::{Broker, Context};
use crate::clock::Now;
use crate::ids::{PhysicalOffset, QueueIndex};
use crate::limits::{HALVES_AHEAD_MAX, HALVES_IN_MEMORY_MAX, HALVES_STRETCH_MAX, OP_MARKS_MAX};
use crate::protocol::bodies;
use crate::protocol::hash;
use crate::protocol::message::{NewMessage, StoredMessage, sys_flag};
use crate::protocol::names::{HALF_TOPIC, OP_HALF_TOPIC};
use crate::protocol::properties::{self, name};
use crate::storage::{Appended, Arrival};
use bits::Bits;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod bits;
mod check;
mod end;
#[cfg(test)]
mod tests;

pub(super) use check::{failed, run};
pub use end::end;

/// Path below the store's root.
pub const FILE: &str = "config/ringmqTransactions.json";
/// As which Apache keeps its progress among the consumers' offsets.
const APACHE_GROUP: &str = "CID_RMQ_SYS_TRANS";
/// Tag of a record that half messages are decided. Source: apache/rocketmq `TransactionalMessageUtil.REMOVE_TAG`.
const DECIDED_TAG: &str = "d";
/// Pause between a change and the replacement of the file.
const PERSIST_MS: u64 = 1000;
/// Decisions between two marks.
const MARK_OPS: u32 = if cfg!(test) { 4 } else { 256 };
/// Room that a half message leaves for the properties of its checks. Source: arithmetic, their names, two numbers and
/// the separators.
pub(super) const CHECK_PROPERTIES_BYTES: usize = 96;

/// `transactionTimeOut`, `transactionCheckInterval`, `transactionCheckMax`, `rejectTransactionMessage`.
#[derive(Clone, Copy, Debug)]
pub struct TransactionConfig {
    /// Age of a half message at its first check, in milliseconds.
    pub timeout_ms: u64,
    /// From one check to the next.
    pub interval_ms: u64,
    pub checks_max: u32,
    /// Half messages are refused.
    pub is_refused: bool,
}

/// An undecided half message.
#[derive(Clone, Copy, Debug)]
struct Half {
    /// When its producer is asked, in wall clock milliseconds.
    due_ms: u64,
    at: PhysicalOffset,
    bytes: u32,
    /// The offset that it was sent to.
    origin: u64,
}

/// Decisions before `end` are all of half messages up to `highest`.
#[derive(Clone, Copy, Debug)]
struct Mark {
    end: u64,
    highest: u64,
}

/// What the file says: half messages before the one offset are decided, decisions before the other are all of those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct State {
    half_offset: u64,
    op_offset: u64,
}

/// All of a shard.
#[derive(Debug)]
pub struct Transactions {
    /// Of the half messages.
    queue: Option<QueueIndex>,
    /// The next decision to be read after the start; `None` when all are known.
    loading: Option<u64>,
    /// By offset. Those at `tail` and behind were stored again by this process.
    undecided: BTreeMap<u64, Half>,
    /// When and which.
    due: BTreeSet<(u64, u64)>,
    /// Present offset of those that were stored again, by their origin.
    moved: BTreeMap<u64, u64>,
    /// Stored again for a check, which is sent when they are visible. Each is undecided, or was when it was stored.
    to_ask: VecDeque<u64>,
    /// Offsets from here on have not been looked at.
    tail: u64,
    /// Which of those are decided.
    decided: Bits,
    marks: VecDeque<Mark>,
    /// Decisions since the newest mark, the end of all, and the highest offset that they name.
    unmarked: u32,
    op_end: u64,
    highest: Option<u64>,
    /// Decisions before it are all of half messages that the file says are decided.
    op_low: u64,
    /// A decision that stands, but whose record the store had no room for.
    owed: Option<u64>,
    /// Checks that were sent, to take turns among producers.
    checks: u64,
    snapshot: Option<(State, PhysicalOffset)>,
    written: State,
    due_us: Option<u64>,
    persist_us: Option<u64>,
    is_started: bool,
    is_reading: bool,
    is_stopping: bool,
}

impl Transactions {
    /// `apache`: where a stock broker stood, by its committed offsets; counts where there is no file yet.
    ///
    /// **Errors**: the file is no JSON of its form.
    pub fn load(
        bytes: Option<&[u8]>,
        offsets: &super::offsets::ConsumerOffsets,
    ) -> Result<Self, String> {
        let of = |topic| offsets.get(APACHE_GROUP, topic, 0).unwrap_or_default();
        let state = match bytes {
            Some(bytes) => bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?,
            None => State {
                half_offset: of(HALF_TOPIC),
                op_offset: of(OP_HALF_TOPIC),
            },
        };
        Ok(Self {
            queue: None,
            loading: Some(state.op_offset),
            undecided: BTreeMap::new(),
            due: BTreeSet::new(),
            moved: BTreeMap::new(),
            to_ask: VecDeque::new(),
            tail: state.half_offset,
            decided: Bits::default(),
            marks: VecDeque::new(),
            unmarked: 0,
            op_end: state.op_offset,
            highest: None,
            op_low: state.op_offset,
            owed: None,
            checks: 0,
            snapshot: None,
            written: state,
            due_us: None,
            persist_us: None,
            is_started: false,
            is_reading: false,
            is_stopping: false,
        })
    }

    /// In monotonic microseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.is_stopping {
            return None;
        }
        if !self.is_started {
            return Some(0);
        }
        let due_us = self.due_us.filter(|_| !self.is_reading);
        due_us.into_iter().chain(self.persist_us).min()
    }

    /// Undecided half messages in memory.
    pub fn in_memory(&self) -> usize {
        self.undecided.len()
    }

    /// All before it are decided.
    fn low(&self) -> u64 {
        let first = self.undecided.first_key_value();
        first.map_or(self.tail, |(offset, _)| self.tail.min(*offset))
    }

    /// The stretch from the first undecided to the tail is as long as it may be.
    fn is_long(&self) -> bool {
        self.tail - self.low() >= HALVES_STRETCH_MAX
    }

    fn is_full(&self) -> bool {
        self.is_long() || self.undecided.len() >= HALVES_IN_MEMORY_MAX
    }

    /// The undecided half message that was sent to `origin`.
    fn present(&self, origin: u64) -> Option<u64> {
        if self.undecided.contains_key(&origin) {
            return Some(origin);
        }
        self.moved.get(&origin).copied()
    }

    fn insert(&mut self, offset: u64, half: Half) {
        self.due.insert((half.due_ms, offset));
        if half.origin != offset {
            self.moved.insert(half.origin, offset);
        }
        self.undecided.insert(offset, half);
    }

    /// It is decided, or is at another place now.
    fn remove(&mut self, offset: u64) {
        if let Some(half) = self.undecided.remove(&offset) {
            self.due.remove(&(half.due_ms, offset));
            if self.moved.get(&half.origin) == Some(&offset) {
                self.moved.remove(&half.origin);
            }
        }
        if offset >= self.tail {
            self.decided.set(offset, self.tail);
        }
    }

    fn postpone(&mut self, offset: u64, due_ms: u64) {
        if let Some(half) = self.undecided.get_mut(&offset) {
            self.due.remove(&(half.due_ms, offset));
            half.due_ms = due_ms;
            self.due.insert((due_ms, offset));
        }
    }

    /// A record at `op` says that `half` is decided.
    fn note_decision(&mut self, op: u64, half: u64) {
        let highest = self.highest.map_or(half, |highest| highest.max(half));
        self.highest = Some(highest);
        self.op_end = op + 1;
        self.unmarked += 1;
        if self.unmarked < MARK_OPS {
            return;
        }
        self.unmarked = 0;
        if self.marks.len() >= OP_MARKS_MAX {
            self.marks.pop_back();
        }
        let end = op + 1;
        self.marks.push_back(Mark { end, highest });
    }

    fn state(&mut self) -> State {
        let low = self.low();
        while let Some(mark) = self.marks.front().filter(|mark| mark.highest < low) {
            self.op_low = mark.end;
            self.marks.pop_front();
        }
        if self.loading.is_none() && self.owed.is_none() && self.highest.is_none_or(|h| h < low) {
            self.op_low = self.op_end;
        }
        State {
            half_offset: low,
            op_offset: self.op_low,
        }
    }

    /// What the file is to say now, if that has changed.
    fn persist(
        &mut self,
        now: Now,
        flushed: PhysicalOffset,
        appended: PhysicalOffset,
    ) -> Option<Vec<u8>> {
        self.persist_us = None;
        if self.loading.is_some() {
            return None;
        }
        let mut contents = None;
        if let Some((state, _)) = self.snapshot.filter(|(_, end)| *end <= flushed) {
            self.snapshot = None;
            if state != self.written {
                self.written = state;
                contents = Some(bodies::encode(&state));
            }
        }
        if self.snapshot.is_none() {
            let state = self.state();
            self.snapshot = (state != self.written).then_some((state, appended));
        }
        if self.snapshot.is_some() {
            self.persist_us = Some(now.after_ms(PERSIST_MS));
        }
        contents
    }

    fn has_changed(&mut self, now: Now) {
        self.persist_us.get_or_insert(now.after_ms(PERSIST_MS));
    }
}

/// Half messages are visible.
pub fn on_arrival(broker: &mut Broker, arrival: Arrival, cx: &mut Context<'_>) {
    let state = &broker.transactions;
    if state.queue == Some(arrival.queue) && !state.is_reading {
        internal::run(broker, Task::Transactions, cx);
    }
}

/// Checks what is due, writes the file.
pub fn expire(broker: &mut Broker, cx: &mut Context<'_>) {
    let state = &mut broker.transactions;
    if state.is_stopping {
        return;
    }
    let is_first = !std::mem::replace(&mut state.is_started, true);
    let is_due = state.due_us.is_some_and(|at| at <= cx.now.monotonic_us) && !state.is_reading;
    if is_first || is_due {
        internal::run(broker, Task::Transactions, cx);
    }
    let persist_us = broker.transactions.persist_us;
    if persist_us.is_some_and(|at| at <= cx.now.monotonic_us) {
        persist(broker, cx);
    }
}

/// Checks nothing any more. Called again until the store is closed.
pub fn begin_stop(broker: &mut Broker, cx: &mut Context<'_>) {
    broker.transactions.is_stopping = true;
    persist(broker, cx);
}

fn persist(broker: &mut Broker, cx: &mut Context<'_>) {
    let (flushed, appended) = (cx.store.flushed(), cx.store.appended());
    let contents = broker.transactions.persist(cx.now, flushed, appended);
    if let Some(contents) = contents {
        cx.effects.files.push((FILE, contents.into()));
    }
}

/// Where a half message waits; its properties are told where it goes in the end.
pub fn park(
    topic: &str,
    queue_id: u32,
    kept: &mut String,
    broker: &mut Broker,
    cx: &mut Context<'_>,
) -> QueueIndex {
    // Only the broker knows of these.
    properties::remove(kept, name::TRANSACTION_CHECK_TIMES);
    properties::remove(kept, name::TRANSACTION_PREPARED_QUEUE_OFFSET);
    properties::append(kept, name::REAL_TOPIC, topic);
    let mut number = itoa::Buffer::new();
    properties::append(kept, name::REAL_QUEUE_ID, number.format(queue_id));
    let queue = cx.store.open_queue(HALF_TOPIC, 0);
    broker.transactions.queue = Some(queue);
    queue
}

/// The message as it waits.
pub fn half(message: NewMessage<'_>) -> NewMessage<'_> {
    NewMessage {
        topic: HALF_TOPIC,
        queue_id: 0,
        sys_flag: message.sys_flag & !sys_flag::TRANSACTION_MASK,
        ..message
    }
}

/// The offset that a half message was sent to.
fn origin_of(stored: &StoredMessage<'_>) -> u64 {
    let origin = properties::get(stored.properties, name::TRANSACTION_PREPARED_QUEUE_OFFSET);
    let origin = origin.and_then(|text| text.parse().ok());
    origin.unwrap_or(stored.queue_offset.0)
}

/// Where a half message goes in the end.
fn target_of<'a>(stored: &StoredMessage<'a>) -> Option<(&'a str, u32)> {
    let topic = properties::get(stored.properties, name::REAL_TOPIC)?;
    let queue_id = properties::get(stored.properties, name::REAL_QUEUE_ID)?;
    Some((topic, queue_id.parse().ok()?))
}

/// Records that a half message is decided; it is from now on, even if its record has to wait.
fn decide(broker: &mut Broker, offset: u64, cx: &mut Context<'_>) -> Option<Appended> {
    broker.transactions.remove(offset);
    broker.transactions.has_changed(cx.now);
    match append_decision(broker, offset, cx) {
        Ok(appended) => Some(appended),
        Err(error) => {
            tracing::warn!(offset, %error, "the record of a decision waits for the store");
            let owed = broker.transactions.owed.replace(offset);
            assert_eq!(owed, None, "decisions are refused while one waits");
            broker.transactions.due_us = Some(cx.now.after_ms(check::RETRY_MS));
            None
        }
    }
}

/// Writes the record that waits, if one does. **Errors**: the store still takes nothing.
fn settle(broker: &mut Broker, cx: &mut Context<'_>) -> Result<(), NotStored> {
    if let Some(offset) = broker.transactions.owed {
        append_decision(broker, offset, cx)?;
        broker.transactions.owed = None;
    }
    Ok(())
}

/// One record for each decision, without a separator: what both 4.9 and 5.x read.
fn append_decision(
    broker: &mut Broker,
    offset: u64,
    cx: &mut Context<'_>,
) -> Result<Appended, NotStored> {
    let mut number = itoa::Buffer::new();
    let mut tags = String::new();
    properties::append(&mut tags, name::TAGS, DECIDED_TAG);
    let message = NewMessage {
        topic: OP_HALF_TOPIC,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: cx.now.wall_ms as i64,
        born_host: broker.config.address,
        store_host: broker.config.address,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: number.format(offset).as_bytes(),
        properties: &tags,
        tags_code: hash::tags_code(DECIDED_TAG),
    };
    let appended = internal::append(broker, &message, cx)?;
    let state = &mut broker.transactions;
    state.note_decision(appended.queue_offset.0, offset);
    Ok(appended)
}
