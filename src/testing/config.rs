//! The configuration that suites start from, where they drive a broker without a process.

use crate::broker::BrokerConfig;
use crate::broker::transactions::TransactionConfig;
use crate::ids::ShardId;
use crate::protocol::delay::DelayLevels;

/// A broker that takes everything and creates what it is asked for, with Apache's defaults.
pub fn broker_config() -> BrokerConfig {
    BrokerConfig {
        shard: ShardId(0),
        cluster_name: "C".to_owned(),
        broker_name: "b".to_owned(),
        broker_id: 0,
        address: ([10, 0, 0, 1], 10_911).into(),
        auto_create_topics: true,
        auto_create_groups: true,
        default_topic_queue_nums: 4,
        message_bytes_max: 4 << 20,
        region: "R",
        trace_on: true,
        trace_topic_enable: false,
        long_polling: true,
        short_polling_ms: 1000,
        permission: 6,
        lite_pull_enable: true,
        property_filter_enable: true,
        young_queues_start_at_zero: true,
        settings: vec![("longPollingEnable", "true".to_owned())],
        offsets_persist_ms: 5000,
        timers: true,
        timer_ms_max: 3 * 86_400_000,
        delay_levels: DelayLevels::default(),
        transactions: TransactionConfig {
            timeout_ms: 6000,
            interval_ms: 30_000,
            checks_max: 15,
            is_refused: false,
        },
    }
}
