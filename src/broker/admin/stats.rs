//! 202, 208, 317: where the queues of a topic stand, and how far a group is in them.
//!
//! Both tell store times of messages that may have left memory. What has to be read is asked for all at once, so
//! that a topic of a thousand queues takes two rounds of reads and not two thousand.
//!
//! Source: apache/rocketmq 5.3.x `AdminBrokerProcessor` `getTopicStatsInfo`, `getConsumeStats`.

use super::{Answer, refuse};
use crate::broker::{Broker, Context, Outcome, query};
use crate::ids::QueueIndex;
use crate::limits::{STATS_READS_MAX, STATS_ROWS_MAX};
use crate::protocol::bodies::{
    ConsumeQueueStats, QueueStats, encode_all_consume_stats, encode_consume_stats,
    encode_topic_stats,
};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::Command;
use crate::protocol::response::Response;
use crate::storage::{Missing, QueueBounds};
use smallvec::SmallVec;

/// Store times, and what has to be read for those that are not in memory.
#[derive(Default)]
pub(super) struct StoreTimes {
    missing: SmallVec<[Missing; 4]>,
    asked: usize,
}

impl StoreTimes {
    /// In milliseconds; 0 where the message is gone, or not read yet.
    pub(super) fn of(&mut self, queue: QueueIndex, offset: u64, cx: &Context<'_>) -> u64 {
        self.asked += 1;
        match query::store_time(queue, offset, cx) {
            Ok(time) => time,
            // The further ones stay unknown, rather than that a question about everything reads everything.
            Err(_) if self.asked > STATS_READS_MAX => 0,
            Err(missing) => {
                self.missing.push(missing);
                0
            }
        }
    }

    pub(super) fn answer(self, body: impl FnOnce() -> Vec<u8>) -> Outcome {
        if self.missing.is_empty() {
            Outcome::Reply(Response::with_body(body()))
        } else {
            Outcome::Read(self.missing)
        }
    }
}

fn find_queue(topic: &str, queue_id: u32, cx: &Context<'_>) -> Option<(QueueIndex, QueueBounds)> {
    let queue = cx.store.queue(topic, queue_id)?;
    Some((queue, cx.store.bounds(queue)))
}

/// 202.
pub fn topic_stats(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let name = command.require_text("topic")?;
    let Some(topic) = broker.topics.get(name) else {
        let remark = format!("topic[{name}] not exist");
        return refuse(ResponseCode::TOPIC_NOT_EXIST, remark);
    };
    let config = &topic.config;
    let mut times = StoreTimes::default();
    let mut rows = Vec::new();
    for queue_id in 0..config.write_queue_nums.max(config.read_queue_nums) {
        let found = find_queue(name, queue_id, cx);
        let bounds = found.map(|(_, bounds)| bounds).unwrap_or_default();
        let last_update_ms = match found {
            Some((queue, bounds)) if bounds.max > bounds.min => cx
                .store
                .last_store_timestamp(queue)
                .unwrap_or_else(|| times.of(queue, bounds.max.0 - 1, cx)),
            _ => 0,
        };
        rows.push(QueueStats {
            queue_id,
            min_offset: bounds.min.0,
            max_offset: bounds.max.0,
            last_update_ms,
        });
    }
    let broker_name = &broker.config.broker_name;
    Ok(times.answer(|| encode_topic_stats(broker_name, name, &rows)))
}

/// Topics of a group: those that the request lists; otherwise the one that it names, or all that the group has to do
/// with. A live group has to do with what it subscribes to, any other with what it has committed for.
///
/// Java knows a live group's topics only from its first commit on; until then its tools show nothing, and here the
/// whole lag.
fn topics_of(broker: &Broker, command: &Command<'_>, group: &str) -> Vec<String> {
    let list = command.text("topicList").unwrap_or_default();
    let listed: Vec<&str> = list.split(';').filter(|topic| !topic.is_empty()).collect();
    let subscribed = broker.clients.topics_of(group);
    let named = command
        .text("topic")
        .filter(|topic| !topic.trim().is_empty());
    let mut topics = if !listed.is_empty() {
        listed
    } else if let Some(topic) = named {
        let is_wanted = subscribed.is_empty() || subscribed.contains(&topic);
        if is_wanted { vec![topic] } else { Vec::new() }
    } else if !subscribed.is_empty() {
        subscribed
    } else {
        broker.offsets.topics_of(group)
    };
    topics.sort_unstable();
    topics.dedup();
    topics.into_iter().map(str::to_owned).collect()
}

/// 208: where a group stands.
pub fn consume_stats(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let group = command.require_text("consumerGroup")?;
    let mut times = StoreTimes::default();
    let mut rows = Vec::new();
    for topic in topics_of(broker, command, group) {
        let Some(queues) = broker.topics.get(&topic).map(|t| t.config.read_queue_nums) else {
            continue;
        };
        if rows.len() + queues as usize > STATS_ROWS_MAX {
            let remark = format!(
                "group {group} has more than {STATS_ROWS_MAX} queues; ask for its topics one by one"
            );
            return refuse(ResponseCode::SYSTEM_ERROR, remark);
        }
        topic_rows(broker, group, &topic, &mut times, &mut rows, cx);
    }
    let broker_name = &broker.config.broker_name;
    Ok(times.answer(|| encode_consume_stats(broker_name, &rows)))
}

/// Adds where a group stands in the queues of a topic.
fn topic_rows(
    broker: &Broker,
    group: &str,
    topic: &str,
    times: &mut StoreTimes,
    rows: &mut Vec<ConsumeQueueStats>,
    cx: &Context<'_>,
) {
    let queues = broker
        .topics
        .get(topic)
        .map_or(0, |topic| topic.config.read_queue_nums);
    for queue_id in 0..queues {
        let found = find_queue(topic, queue_id, cx);
        let bounds = found.map(|(_, bounds)| bounds).unwrap_or_default();
        let consumer_offset = broker.offsets.get(group, topic, queue_id).unwrap_or(0);
        // The last message consumed, where it is still there.
        let last = consumer_offset.checked_sub(1);
        let last = last.filter(|at| (bounds.min.0..bounds.max.0).contains(at));
        let last_timestamp = match (found, last) {
            (Some((queue, _)), Some(at)) => times.of(queue, at, cx),
            _ => 0,
        };
        rows.push(ConsumeQueueStats {
            topic: topic.to_owned(),
            queue_id,
            broker_offset: bounds.max.0,
            consumer_offset,
            pull_offset: consumer_offset,
            last_timestamp,
        });
    }
}

/// 317: where all groups stand in the topics that they have committed for; `isOrder` leaves out those without order.
pub fn all_consume_stats(broker: &Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Answer {
    let only_ordered = command.bool("isOrder").unwrap_or(false);
    let table = broker.groups.stored().subscription_group_table;
    let (mut times, mut row_count, mut behind) = (StoreTimes::default(), 0, 0_u64);
    let mut list = Vec::new();
    for group in table.keys() {
        let mut stats = Vec::new();
        for topic in broker.offsets.topics_of(group) {
            let config = broker.topics.get(topic).map(|topic| &topic.config);
            if !config.is_some_and(|config| config.order || !only_ordered) {
                continue;
            }
            let mut rows = Vec::new();
            topic_rows(broker, group, topic, &mut times, &mut rows, cx);
            row_count += rows.len();
            if row_count > STATS_ROWS_MAX {
                let remark = format!(
                    "the groups have more than {STATS_ROWS_MAX} queues; ask for one by one"
                );
                return refuse(ResponseCode::SYSTEM_ERROR, remark);
            }
            let lag =
                |row: &ConsumeQueueStats| row.broker_offset.saturating_sub(row.consumer_offset);
            behind += rows.iter().map(lag).sum::<u64>();
            stats.push(encode_consume_stats(&broker.config.broker_name, &rows));
        }
        if !stats.is_empty() {
            list.push((group.as_str(), stats));
        }
    }
    let address = broker.config.address.to_string();
    Ok(times.answer(|| encode_all_consume_stats(&address, &list, behind)))
}
