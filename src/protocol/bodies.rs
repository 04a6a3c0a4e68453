//! JSON bodies: heartbeats, topic and group configuration, statistics, routes, registration.

use serde::{Deserialize, Serialize};

/// Configuration of one topic on one broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicConfig {
    pub topic_name: String,
    pub read_queue_nums: u32,
    pub write_queue_nums: u32,
    /// 4 read, 2 write, 1 inherit.
    pub perm: u32,
    pub topic_filter_type: String,
    pub topic_sys_flag: i32,
    pub order: bool,
    pub attributes: std::collections::BTreeMap<String, String>,
}
