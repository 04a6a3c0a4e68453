//! Committed offsets of consumer groups; `config/consumerOffset.json`. 14, 15.

use super::{Broker, Context, Outcome};
use crate::ids::NameMap;
use crate::limits::TOPIC_QUEUES_MAX;
use crate::protocol::bodies::{self, OffsetTable};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::{Response, ResponseHeader};
use std::collections::BTreeMap;

const FILE: &str = "config/consumerOffset.json";

/// Group → topic → queue id → next offset.
#[derive(Debug, Default)]
pub struct ConsumerOffsets {
    groups: NameMap<NameMap<Vec<Option<u64>>>>,
    persist_ms: u64,
    due_us: Option<u64>,
}

impl ConsumerOffsets {
    pub fn load(file: Option<&[u8]>, persist_ms: u64) -> Result<Self, String> {
        let mut offsets = Self {
            persist_ms,
            ..Self::default()
        };
        let Some(bytes) = file else {
            return Ok(offsets);
        };
        let table: OffsetTable = bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?;
        for (key, queues) in table.offset_table {
            let Some((topic, group)) = key.split_once('@') else {
                continue;
            };
            for (queue_id, offset) in queues {
                offsets.set(group, topic, queue_id, offset.max(0) as u64);
            }
        }
        Ok(offsets)
    }

    pub fn get(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        self.groups
            .get(group)?
            .get(topic)?
            .get(queue_id as usize)
            .copied()
            .flatten()
    }

    fn set(&mut self, group: &str, topic: &str, queue_id: u32, offset: u64) {
        if queue_id >= TOPIC_QUEUES_MAX {
            return;
        }
        if !self.groups.contains_key(group) {
            self.groups.insert(group.into(), NameMap::default());
        }
        let Some(topics) = self.groups.get_mut(group) else {
            return;
        };
        if !topics.contains_key(topic) {
            topics.insert(topic.into(), Vec::new());
        }
        let Some(queues) = topics.get_mut(topic) else {
            return;
        };
        let place = queue_id as usize;
        if queues.len() <= place {
            queues.resize(place + 1, None);
        }
        queues[place] = Some(offset);
    }

    /// Stored even if smaller. No allocation when the key exists.
    pub fn commit(&mut self, group: &str, topic: &str, queue_id: u32, offset: u64, now_us: u64) {
        self.set(group, topic, queue_id, offset);
        self.due_us.get_or_insert(now_us + self.persist_ms * 1000);
    }

    /// Topics that a group has committed for, sorted.
    pub fn topics_of(&self, group: &str) -> Vec<&str> {
        let mut topics: Vec<&str> = self
            .groups
            .get(group)
            .into_iter()
            .flatten()
            .map(|(t, _)| &**t)
            .collect();
        topics.sort_unstable();
        topics
    }

    pub fn remove_topic(&mut self, topic: &str, now_us: u64) {
        for topics in self.groups.values_mut() {
            topics.remove(topic);
        }
        self.due_us.get_or_insert(now_us);
    }

    pub fn remove_group(&mut self, group: &str, now_us: u64) {
        self.groups.remove(group);
        self.due_us.get_or_insert(now_us);
    }

    /// Offsets beyond the end of their queue would skip messages that are still to come: they are set to the end.
    /// Returns how many.
    pub fn clamp(&mut self, max_of: impl Fn(&str, u32) -> u64) -> usize {
        let mut clamped = 0;
        for (topic, queues) in self.groups.values_mut().flatten() {
            for (queue_id, offset) in queues.iter_mut().enumerate() {
                let max = max_of(topic, queue_id as u32);
                if let Some(offset) = offset.as_mut().filter(|o| **o > max) {
                    *offset = max;
                    clamped += 1;
                }
            }
        }
        clamped
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.due_us
    }

    fn encode(&self) -> Vec<u8> {
        let mut table = OffsetTable::default();
        for (group, topics) in &self.groups {
            for (topic, queues) in topics {
                let row: BTreeMap<u32, i64> = (0..)
                    .zip(queues)
                    .filter_map(|(id, o)| o.map(|o| (id, o as i64)))
                    .collect();
                table.offset_table.insert(format!("{topic}@{group}"), row);
            }
        }
        serde_json::to_vec_pretty(&table).expect("plain data is JSON")
    }
}

/// Code 14. Without an offset: 0 for a young queue whose first message is still in memory, unless the client says
/// not to; otherwise 22, on which clients go by `consumeFromWhere`.
///
/// **Source**: apache/rocketmq `ConsumerManageProcessor`.
pub fn query(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let (group, topic) = (
        command.require_text("consumerGroup")?,
        command.require_text("topic")?,
    );
    let queue_id = command.require_i32("queueId")?;
    let found =
        |offset: u64| Outcome::Reply(Response::with_header(ResponseHeader::Offset(offset as i64)));
    let id = u32::try_from(queue_id).ok();
    if let Some(offset) = id.and_then(|id| broker.offsets.get(group, topic, id)) {
        return Ok(found(offset));
    }
    let zero = command.bool("setZeroIfNotFound").unwrap_or(true);
    if zero && id.is_some_and(|id| is_young(topic, id, cx)) {
        return Ok(found(0));
    }
    let remark = format!("Not found, maybe this is a new consumer group: {group}");
    Ok(Outcome::Reply(Response::error(
        ResponseCode::QUERY_NOT_FOUND,
        remark,
    )))
}

/// Starts at 0, and its first message (if any) has not left memory.
fn is_young(topic: &str, queue_id: u32, cx: &Context<'_>) -> bool {
    let Some(queue) = cx.store.queue(topic, queue_id) else {
        return true;
    };
    let bounds = cx.store.bounds(queue);
    if bounds.min.0 > 0 {
        return false;
    }
    if bounds.max.0 == 0 {
        return true;
    }
    let none = crate::storage::Fetched::default();
    let entry = cx.store.entry(queue, bounds.min, &none);
    entry.is_ok_and(|e| cx.store.record(e.at, e.bytes, &none).is_ok())
}

/// Code 15.
pub fn update(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let (group, topic) = (
        command.require_text("consumerGroup")?,
        command.require_text("topic")?,
    );
    let (queue_id, offset) = (
        command.require_i32("queueId")?,
        command.require_i64("commitOffset")?,
    );
    let refuse = |code, remark: String| Ok(Outcome::Reply(Response::error(code, remark)));
    if !broker.groups.contains(group) {
        return refuse(
            ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
            format!("Group {group} not exist!"),
        );
    }
    if broker.topics.get(topic).is_none() {
        return refuse(
            ResponseCode::TOPIC_NOT_EXIST,
            format!("Topic {topic} not exist!"),
        );
    }
    match (u32::try_from(queue_id), u64::try_from(offset)) {
        (Ok(id), Ok(offset)) if id < TOPIC_QUEUES_MAX => {
            broker
                .offsets
                .commit(group, topic, id, offset, cx.now.monotonic_us);
            Ok(Outcome::Reply(Response::success()))
        }
        _ => refuse(
            ResponseCode::INVALID_PARAMETER,
            format!("queueId {queue_id} or offset {offset} is out of range"),
        ),
    }
}

pub fn persist_if_due(broker: &mut Broker, cx: &mut Context<'_>) {
    if broker
        .offsets
        .due_us
        .is_some_and(|at| at <= cx.now.monotonic_us)
    {
        persist_now(broker, cx);
    }
}

/// Writes the offsets if any changed.
pub fn persist_now(broker: &mut Broker, cx: &mut Context<'_>) {
    if broker.offsets.due_us.take().is_some() {
        cx.effects
            .files
            .push((FILE, broker.offsets.encode().into()));
    }
}
