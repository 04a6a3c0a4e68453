//! Committed offsets of consumer groups; `config/consumerOffset.json`. 14, 15.
//!
//! **Owned by**: one shard. A commit changes memory; the file is replaced `persist_ms` after the first change since
//! the last time, so that an idle shard has nothing to do. After a crash groups fall back by at most that interval;
//! they never run ahead, since what lies beyond a recovered queue is set to its end ([`ConsumerOffsets::clamp`]).

use super::{Broker, Context, Outcome};
use crate::ids::NameMap;
use crate::limits::{OFFSET_ROW_COST, OFFSETS_MAX, TOPIC_QUEUES_MAX};
use crate::protocol::bodies::{self, DataVersion, OffsetTable, split_topic_at_group};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::{Response, ResponseHeader};
use crate::storage::{Fetched, QueueBounds};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// Path below the store's root.
pub const FILE: &str = "config/consumerOffset.json";

/// Queue without an offset in a [`Row`].
const NONE: i64 = -1;

/// Next offset by queue id.
type Row = Vec<i64>;

/// Group → topic → queue id → next offset.
#[derive(Debug, Default)]
pub struct ConsumerOffsets {
    groups: NameMap<NameMap<Row>>,
    /// Places of all rows, and [`OFFSET_ROW_COST`] for each row.
    size: usize,
    version: DataVersion,
    persist_ms: u64,
    due_us: Option<u64>,
    /// What the file has that can't be an offset here: keys without a group, queue ids beyond the limit.
    kept: BTreeMap<String, BTreeMap<u32, i64>>,
    /// Keys of the file beside the table.
    other: Map<String, Value>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    data_version: Option<DataVersion>,
    /// Not a flattened [`OffsetTable`]: integer keys can't be read through one.
    offset_table: Option<BTreeMap<String, BTreeMap<u32, i64>>>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl ConsumerOffsets {
    /// The offsets of a new or an existing shard. **Errors**: the file is no JSON of its form.
    pub fn load(bytes: Option<&[u8]>, persist_ms: u64) -> Result<Self, String> {
        let file: File = match bytes {
            Some(bytes) => bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?,
            None => File::default(),
        };
        let mut offsets = Self {
            persist_ms,
            version: file.data_version.unwrap_or_default(),
            other: file.other,
            ..Self::default()
        };
        for (key, queues) in file.offset_table.unwrap_or_default() {
            offsets.load_row(&key, queues);
        }
        Ok(offsets)
    }

    fn load_row(&mut self, key: &str, queues: BTreeMap<u32, i64>) {
        let names = split_topic_at_group(key);
        for (queue_id, offset) in queues {
            match names {
                Some((topic, group)) if queue_id < TOPIC_QUEUES_MAX && offset >= 0 => {
                    self.set(group, topic, queue_id, offset);
                }
                _ => {
                    let row = self.kept.entry(key.to_owned()).or_default();
                    row.insert(queue_id, offset);
                }
            }
        }
    }

    pub fn get(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        let row = self.groups.get(group)?.get(topic)?;
        let offset = row.get(queue_id as usize)?;
        u64::try_from(*offset).ok()
    }

    /// The place of a queue that has a row. No allocation.
    fn place(&mut self, group: &str, topic: &str, queue_id: u32) -> Option<&mut i64> {
        let row = self.groups.get_mut(group)?.get_mut(topic)?;
        row.get_mut(queue_id as usize)
    }

    fn set(&mut self, group: &str, topic: &str, queue_id: u32, offset: i64) {
        let topics = self.groups.entry(group.into()).or_default();
        let row = topics.entry(topic.into()).or_insert_with(|| {
            self.size += OFFSET_ROW_COST;
            Row::new()
        });
        let place = queue_id as usize;
        if row.len() <= place {
            self.size += place + 1 - row.len();
            row.resize(place + 1, NONE);
        }
        row[place] = offset;
    }

    /// Stored even if smaller. No allocation when the queue has been committed for before. False: there is no room
    /// for a further queue, or its id is beyond the limit.
    pub fn commit(
        &mut self,
        group: &str,
        topic: &str,
        queue_id: u32,
        offset: u64,
        now_us: u64,
    ) -> bool {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        if let Some(place) = self.place(group, topic, queue_id) {
            *place = offset;
        } else {
            let cost = OFFSET_ROW_COST + queue_id as usize + 1;
            if queue_id >= TOPIC_QUEUES_MAX || self.size + cost > OFFSETS_MAX {
                return false;
            }
            self.set(group, topic, queue_id, offset);
        }
        self.due_us
            .get_or_insert(now_us.saturating_add(self.persist_ms * 1000));
        true
    }

    /// Topics that a group has committed for, sorted.
    pub fn topics_of(&self, group: &str) -> Vec<&str> {
        let topics = self.groups.get(group).into_iter().flatten();
        let mut topics: Vec<&str> = topics.map(|(topic, _)| &**topic).collect();
        topics.sort_unstable();
        topics
    }

    /// Groups that have committed for a topic.
    pub fn groups_of<'a>(&'a self, topic: &'a str) -> impl Iterator<Item = &'a str> {
        let groups = self.groups.iter();
        let groups = groups.filter(move |(_, topics)| topics.contains_key(topic));
        groups.map(|(group, _)| &**group)
    }

    /// Forgets all offsets for a topic: one made later under its name starts at 0.
    pub fn remove_topic(&mut self, topic: &str, now_us: u64) {
        for topics in self.groups.values_mut() {
            topics.remove(topic);
        }
        self.groups.retain(|_, topics| !topics.is_empty());
        self.kept
            .retain(|key, _| split_topic_at_group(key).is_none_or(|(of, _)| of != topic));
        self.removed(now_us);
    }

    pub fn remove_group(&mut self, group: &str, now_us: u64) {
        self.groups.remove(group);
        self.kept
            .retain(|key, _| split_topic_at_group(key).is_none_or(|(_, of)| of != group));
        self.removed(now_us);
    }

    /// Persisted at once: after a crash the offsets of what was deleted must not come back.
    fn removed(&mut self, now_us: u64) {
        let rows = self.groups.values().flat_map(NameMap::values);
        self.size = rows.map(|row| OFFSET_ROW_COST + row.len()).sum();
        self.due_us = Some(now_us);
    }

    /// Offsets beyond the end of their queue would skip messages that are still to come: they are set to the end.
    /// Returns how many. `max_of` gives the end of a queue, 0 where there is none.
    pub fn clamp(&mut self, max_of: impl Fn(&str, u32) -> u64) -> usize {
        let mut clamped = 0;
        for (topic, row) in self.groups.values_mut().flatten() {
            for (queue_id, offset) in (0..).zip(row) {
                let max = i64::try_from(max_of(topic, queue_id)).unwrap_or(i64::MAX);
                if *offset > max {
                    *offset = max;
                    clamped += 1;
                }
            }
        }
        if clamped > 0 {
            self.due_us = Some(0);
        }
        clamped
    }

    /// When the file is to be replaced; `None` when it holds all there is.
    pub fn next_deadline(&self) -> Option<u64> {
        self.due_us
    }

    /// All offsets, as tools see them.
    pub fn stored(&self) -> OffsetTable {
        let mut table = OffsetTable {
            data_version: self.version,
            ..OffsetTable::default()
        };
        for (group, topics) in &self.groups {
            for (topic, row) in topics {
                let known = (0..).zip(row).filter(|(_, offset)| **offset != NONE);
                let row = known.map(|(queue_id, offset)| (queue_id, *offset));
                let key = bodies::topic_at_group(topic, group);
                table.offset_table.insert(key, row.collect());
            }
        }
        table
    }

    /// Contents of the file. Queue ids are quoted, which both lines of Apache read, and everybody else too.
    fn encode_file(&self) -> Vec<u8> {
        let mut table = self.stored();
        for (key, kept) in &self.kept {
            let row = table.offset_table.entry(key.clone()).or_default();
            row.extend(kept);
        }
        let file = File {
            data_version: Some(table.data_version),
            offset_table: Some(table.offset_table),
            other: self.other.clone(),
        };
        serde_json::to_vec_pretty(&file).expect("plain data is JSON")
    }
}

/// What 14 answers where nothing is committed: 0, or nothing, on which clients go by their `consumeFromWhere`.
///
/// A young queue starts at 0 even for a group that wants the newest messages only: its first message is still in
/// memory, so the group most likely came with the topic, and the messages sent while both started are not skipped.
/// A queue without any message starts at 0 in every case; saying so leaves no gap between this answer and the
/// client's next question, as 4.9 does it and 5.x no longer.
///
/// **Source**: apache/rocketmq 5.3.x and 4.9.8 `ConsumerManageProcessor#queryConsumerOffset`; reports
/// apache/rocketmq#4909, #9083, apache/rocketmq-client-go#855.
fn starts_at_zero(
    zero_if_not_found: bool,
    bounds: QueueBounds,
    is_first_in_memory: impl FnOnce() -> bool,
) -> bool {
    zero_if_not_found && bounds.min.0 == 0 && (bounds.max.0 == 0 || is_first_in_memory())
}

/// Code 14. Groups and topics that don't exist are no errors, they just have no offset.
pub fn query(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let group = command.require_text("consumerGroup")?;
    let topic = command.require_text("topic")?;
    let queue_id = u32::try_from(command.require_i32("queueId")?).ok();
    let committed = queue_id.and_then(|id| broker.offsets.get(group, topic, id));
    let offset = committed.or_else(|| {
        let asked = command.bool("setZeroIfNotFound").unwrap_or(true);
        let zero = asked && broker.config.young_queues_start_at_zero;
        let bounds = queue_bounds(broker, topic, queue_id?, cx)?;
        let in_memory = || is_first_in_memory(topic, queue_id, cx);
        starts_at_zero(zero, bounds, in_memory).then_some(0)
    });
    let response = match offset {
        Some(offset) => Response::with_header(ResponseHeader::Offset(offset as i64)),
        None => {
            let remark = format!("Not found, maybe this group consumer boot first: {group}");
            Response::error(ResponseCode::QUERY_NOT_FOUND, remark)
        }
    };
    Ok(Outcome::Reply(response))
}

/// Bounds of a queue that exists or may come to: one of a known topic that has had no message is empty.
fn queue_bounds(
    broker: &Broker,
    topic: &str,
    queue_id: u32,
    cx: &Context<'_>,
) -> Option<QueueBounds> {
    let config = &broker.topics.get(topic)?.config;
    if queue_id >= config.read_queue_nums.max(config.write_queue_nums) {
        return None;
    }
    let queue = cx.store.queue(topic, queue_id);
    Some(queue.map(|q| cx.store.bounds(q)).unwrap_or_default())
}

fn is_first_in_memory(topic: &str, queue_id: Option<u32>, cx: &Context<'_>) -> bool {
    let Some(queue) = queue_id.and_then(|id| cx.store.queue(topic, id)) else {
        return false;
    };
    let none = Fetched::default();
    let first = cx.store.entry(queue, cx.store.bounds(queue).min, &none);
    first.is_ok_and(|entry| cx.store.record(entry.at, entry.bytes, &none).is_ok())
}

/// Code 15.
pub fn update(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let group = command.require_text("consumerGroup")?;
    let topic = command.require_text("topic")?;
    let refuse = |code, remark: String| Ok(Outcome::Reply(Response::error(code, remark)));
    if !broker.groups.contains(group) {
        let remark = format!("Group {group} not exist!");
        return refuse(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark);
    }
    if broker.topics.get(topic).is_none() {
        let remark = format!("Topic {topic} not exist!");
        return refuse(ResponseCode::TOPIC_NOT_EXIST, remark);
    }
    let (queue_id, offset) = match commit_of(command) {
        Ok(commit) => commit,
        Err(remark) => return refuse(ResponseCode::INVALID_PARAMETER, remark),
    };
    let now_us = cx.now.monotonic_us;
    if broker.resets.get(group, topic, queue_id).is_some() {
        // The consumer has not heard yet that its offset was set.
        return Ok(Outcome::Reply(Response::success()));
    }
    if broker
        .offsets
        .commit(group, topic, queue_id, offset, now_us)
    {
        return Ok(Outcome::Reply(Response::success()));
    }
    let remark = format!("this shard has room for {OFFSETS_MAX} offsets, all of it is taken");
    refuse(ResponseCode::SYSTEM_ERROR, remark)
}

/// Queue and offset of a commit; `Err` says what is wrong with them.
fn commit_of(command: &Command<'_>) -> Result<(u32, u64), String> {
    let queue_id = command.require_i32("queueId").map_err(|e| e.to_string())?;
    let offset = command
        .require_i64("commitOffset")
        .map_err(|e| e.to_string())?;
    let id = u32::try_from(queue_id).ok();
    let id = id.filter(|id| *id < TOPIC_QUEUES_MAX);
    match (id, u64::try_from(offset)) {
        (Some(id), Ok(offset)) => Ok((id, offset)),
        (None, _) => Err(format!(
            "queueId is {queue_id}, allowed are 0 to {}",
            TOPIC_QUEUES_MAX - 1
        )),
        (_, Err(_)) => Err(format!("commitOffset is {offset}, allowed are 0 and more")),
    }
}

pub fn persist_if_due(broker: &mut Broker, cx: &mut Context<'_>) {
    let due_us = broker.offsets.due_us;
    if due_us.is_some_and(|at| at <= cx.now.monotonic_us) {
        persist_now(broker, cx);
    }
}

/// Writes the offsets if any changed.
pub fn persist_now(broker: &mut Broker, cx: &mut Context<'_>) {
    if broker.offsets.due_us.take().is_some() {
        broker.offsets.version.bump(cx.now.wall_ms);
        let contents = broker.offsets.encode_file();
        cx.effects.files.push((FILE, contents.into()));
    }
}
