//! Statistics in fastjson's dialect: maps whose keys are objects. Java tools read no other form.

use super::queue_key;

/// One queue of 202.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStats {
    pub queue_id: u32,
    pub min_offset: u64,
    pub max_offset: u64,
    /// Store time of the last message in milliseconds; 0 without one.
    pub last_update_ms: u64,
}

/// Answer to 202.
pub fn encode_topic_stats(broker_name: &str, topic: &str, queues: &[QueueStats]) -> String {
    let rows: Vec<String> = queues
        .iter()
        .map(|q| {
            format!(
                "{}:{{\"lastUpdateTimestamp\":{},\"maxOffset\":{},\"minOffset\":{}}}",
                queue_key(broker_name, topic, q.queue_id),
                q.last_update_ms,
                q.max_offset,
                q.min_offset
            )
        })
        .collect();
    format!(
        "{{\"offsetTable\":{{{}}},\"topicPutTps\":0.0}}",
        rows.join(",")
    )
}

/// One queue of 208.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumeQueueStats {
    pub topic: String,
    pub queue_id: u32,
    pub broker_offset: u64,
    pub consumer_offset: u64,
    pub pull_offset: u64,
    pub last_timestamp: u64,
}

/// Answer to 208.
pub fn encode_consume_stats(broker_name: &str, queues: &[ConsumeQueueStats]) -> String {
    let rows: Vec<String> = queues
        .iter()
        .map(|q| {
            format!(
                "{}:{{\"brokerOffset\":{},\"consumerOffset\":{},\"lastTimestamp\":{},\"pullOffset\":{}}}",
                queue_key(broker_name, &q.topic, q.queue_id),
                q.broker_offset,
                q.consumer_offset,
                q.last_timestamp,
                q.pull_offset
            )
        })
        .collect();
    format!(
        "{{\"consumeTps\":0.0,\"offsetTable\":{{{}}}}}",
        rows.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_objects() {
        let queue = QueueStats {
            queue_id: 0,
            min_offset: 0,
            max_offset: 6,
            last_update_ms: 1_700_000_000_000,
        };
        assert_eq!(
            encode_topic_stats("broker-a", "T", &[queue]),
            r#"{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":1700000000000,"maxOffset":6,"minOffset":0}},"topicPutTps":0.0}"#
        );
    }
}
