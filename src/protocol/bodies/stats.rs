//! Statistics of topics and groups: answers to 202 and 208.
//!
//! Their maps have queues as keys, which is no JSON. Nothing here implements `Serialize`, so that they can't be
//! written as anything but what Java reads.

use super::{BodyError, MessageQueue, lenient, object_keys};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Answer to 202.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicStatsTable {
    #[serde(deserialize_with = "object_keys::deserialize")]
    pub offset_table: BTreeMap<MessageQueue, TopicOffset>,
    /// 5.x; messages per second.
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_put_tps: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicOffset {
    /// Store time of the last message in ms; 0 without one.
    pub last_update_timestamp: i64,
    pub max_offset: i64,
    pub min_offset: i64,
}

impl TopicStatsTable {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"{\"offsetTable\":".to_vec();
        object_keys::encode(&self.offset_table, &mut out);
        out.extend(b",\"topicPutTps\":");
        out.extend(super::encode(&self.topic_put_tps));
        out.push(b'}');
        out
    }

    pub fn decode(body: &[u8]) -> Result<Self, BodyError> {
        super::decode(body)
    }
}

/// Answer to 208.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeStats {
    /// Messages per second.
    #[serde(deserialize_with = "lenient::or_default")]
    pub consume_tps: f64,
    #[serde(deserialize_with = "object_keys::deserialize")]
    pub offset_table: BTreeMap<MessageQueue, OffsetWrapper>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OffsetWrapper {
    /// Next offset to be written.
    pub broker_offset: i64,
    /// Committed offset of the group.
    pub consumer_offset: i64,
    /// Store time in ms of the last message consumed.
    pub last_timestamp: i64,
    /// 5.x: next offset to be pulled.
    pub pull_offset: i64,
}

impl ConsumeStats {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"{\"consumeTps\":".to_vec();
        out.extend(super::encode(&self.consume_tps));
        out.extend(b",\"offsetTable\":");
        object_keys::encode(&self.offset_table, &mut out);
        out.push(b'}');
        out
    }

    pub fn decode(body: &[u8]) -> Result<Self, BodyError> {
        super::decode(body)
    }
}

/// One queue of 202.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStats {
    pub queue_id: u32,
    pub min_offset: u64,
    pub max_offset: u64,
    /// Store time of the last message in ms; 0 without one.
    pub last_update_ms: u64,
}

/// Answer to 202 for the queues of one topic.
pub fn encode_topic_stats(broker_name: &str, topic: &str, queues: &[QueueStats]) -> Vec<u8> {
    let row = |queue: &QueueStats| {
        let offset = TopicOffset {
            last_update_timestamp: queue.last_update_ms as i64,
            max_offset: queue.max_offset as i64,
            min_offset: queue.min_offset as i64,
        };
        (
            MessageQueue::new(broker_name, topic, queue.queue_id),
            offset,
        )
    };
    let table = TopicStatsTable {
        offset_table: queues.iter().map(row).collect(),
        topic_put_tps: 0.0,
    };
    table.encode()
}

/// One queue of 208.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumeQueueStats {
    pub topic: String,
    pub queue_id: u32,
    pub broker_offset: u64,
    pub consumer_offset: u64,
    pub pull_offset: u64,
    /// Store time in ms of the last message consumed; 0 without one.
    pub last_timestamp: u64,
}

/// Answer to 208 for the queues of one broker.
pub fn encode_consume_stats(broker_name: &str, queues: &[ConsumeQueueStats]) -> Vec<u8> {
    let row = |queue: &ConsumeQueueStats| {
        let offset = OffsetWrapper {
            broker_offset: queue.broker_offset as i64,
            consumer_offset: queue.consumer_offset as i64,
            last_timestamp: queue.last_timestamp as i64,
            pull_offset: queue.pull_offset as i64,
        };
        (
            MessageQueue::new(broker_name, &queue.topic, queue.queue_id),
            offset,
        )
    };
    let stats = ConsumeStats {
        consume_tps: 0.0,
        offset_table: queues.iter().map(row).collect(),
    };
    stats.encode()
}

/// Answer to 317: the encoded answers to 208 of each group, one for each of its topics.
pub fn encode_all_consume_stats(
    address: &str,
    groups: &[(&str, Vec<Vec<u8>>)],
    behind: u64,
) -> Vec<u8> {
    let mut out = b"{\"brokerAddr\":".to_vec();
    out.extend(super::encode(&address));
    out.extend(b",\"consumeStatsList\":[");
    for (index, (group, topics)) in groups.iter().enumerate() {
        out.extend(if index == 0 { &b"{"[..] } else { b",{" });
        out.extend(super::encode(group));
        out.extend(b":[");
        out.extend(topics.join(&b','));
        out.extend(b"]}");
    }
    out.extend(format!("],\"totalDiff\":{behind},\"totalInflightDiff\":0}}").as_bytes());
    out
}

/// Answer to 222: the new offsets of queues of one broker.
pub fn encode_queue_offsets(broker_name: &str, topic: &str, offsets: &[(u32, u64)]) -> Vec<u8> {
    let row = |(queue_id, offset): &(u32, u64)| {
        (MessageQueue::new(broker_name, topic, *queue_id), *offset)
    };
    let table: BTreeMap<MessageQueue, u64> = offsets.iter().map(row).collect();
    let mut out = b"{\"offsetTable\":".to_vec();
    object_keys::encode(&table, &mut out);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queue_id: i32) -> MessageQueue {
        MessageQueue {
            broker_name: "broker-a".to_owned(),
            queue_id,
            topic: "T".to_owned(),
        }
    }

    /// The examples of `requests.md` section F.2; trap 14 of `semantics.md` section 19.
    #[test]
    fn topic_stats_are_the_worked_example() {
        let body = r#"{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":1700000000000,"maxOffset":6,"minOffset":0}},"topicPutTps":0.0}"#;
        let offset = TopicOffset {
            last_update_timestamp: 1_700_000_000_000,
            max_offset: 6,
            min_offset: 0,
        };
        let table = TopicStatsTable {
            offset_table: BTreeMap::from([(queue(0), offset)]),
            topic_put_tps: 0.0,
        };
        assert_eq!(String::from_utf8(table.encode()).as_deref(), Ok(body));
        assert_eq!(TopicStatsTable::decode(body.as_bytes()).ok(), Some(table));
        let row = QueueStats {
            queue_id: 0,
            min_offset: 0,
            max_offset: 6,
            last_update_ms: 1_700_000_000_000,
        };
        assert_eq!(encode_topic_stats("broker-a", "T", &[row]), body.as_bytes());
    }

    #[test]
    fn consume_stats_are_the_worked_example() {
        let body = r#"{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":6,"consumerOffset":5,"lastTimestamp":1700000000000,"pullOffset":5}}}"#;
        let offset = OffsetWrapper {
            broker_offset: 6,
            consumer_offset: 5,
            last_timestamp: 1_700_000_000_000,
            pull_offset: 5,
        };
        let stats = ConsumeStats {
            consume_tps: 0.0,
            offset_table: BTreeMap::from([(queue(0), offset)]),
        };
        assert_eq!(String::from_utf8(stats.encode()).as_deref(), Ok(body));
        assert_eq!(ConsumeStats::decode(body.as_bytes()).ok(), Some(stats));
        let row = ConsumeQueueStats {
            topic: "T".to_owned(),
            queue_id: 0,
            broker_offset: 6,
            consumer_offset: 5,
            pull_offset: 5,
            last_timestamp: 1_700_000_000_000,
        };
        assert_eq!(encode_consume_stats("broker-a", &[row]), body.as_bytes());
    }

    #[test]
    fn queues_come_in_order() {
        let table = TopicStatsTable {
            offset_table: [2, 0, 1]
                .map(|id| (queue(id), TopicOffset::default()))
                .into(),
            topic_put_tps: 1.5,
        };
        let body = table.encode();
        let text = String::from_utf8_lossy(&body);
        let places: Vec<_> = (0..3)
            .map(|id| text.find(&format!("\"queueId\":{id}")))
            .collect();
        assert!(places.is_sorted() && places[0].is_some(), "{text}");
        assert_eq!(TopicStatsTable::decode(&body).ok(), Some(table));
    }

    #[test]
    fn empty_tables_and_those_of_4_9_are_read() {
        assert_eq!(
            TopicStatsTable::default().encode(),
            br#"{"offsetTable":{},"topicPutTps":0.0}"#
        );
        for body in [
            &br#"{"offsetTable":{}}"#[..],
            br#"{"offsetTable":null}"#,
            b"{}",
        ] {
            assert_eq!(
                TopicStatsTable::decode(body).ok(),
                Some(TopicStatsTable::default())
            );
        }
        let body = br#"{"consumeTps":0,"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:{"brokerOffset":9}}}"#;
        let stats = ConsumeStats::decode(body).expect("statistics");
        assert_eq!(
            stats
                .offset_table
                .values()
                .map(|o| o.broker_offset)
                .collect::<Vec<_>>(),
            [9]
        );
        assert!(ConsumeStats::decode(br#"{"offsetTable":{0:{}}}"#).is_err());
    }
}
