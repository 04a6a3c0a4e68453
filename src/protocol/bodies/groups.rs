//! Subscription groups and committed offsets, and their files.

use super::{DataVersion, null_as_default};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Configuration of one consumer group. Fields that ringmq does not know are kept when the file is written back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupConfig {
    pub group_name: String,
    pub consume_enable: bool,
    pub consume_from_min_enable: bool,
    pub consume_broadcast_enable: bool,
    pub consume_message_orderly: bool,
    pub retry_queue_nums: u32,
    pub retry_max_times: i32,
    pub broker_id: i64,
    pub which_broker_when_consume_slowly: i64,
    pub notify_consumer_ids_changed_enable: bool,
    pub group_sys_flag: i32,
    pub consume_timeout_minute: i32,
    #[serde(deserialize_with = "null_as_default")]
    pub attributes: BTreeMap<String, String>,
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            group_name: String::new(),
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            consume_message_orderly: false,
            retry_queue_nums: 1,
            retry_max_times: 16,
            broker_id: 0,
            which_broker_when_consume_slowly: 1,
            notify_consumer_ids_changed_enable: true,
            group_sys_flag: 0,
            consume_timeout_minute: 15,
            attributes: BTreeMap::new(),
            other: serde_json::Map::new(),
        }
    }
}

/// `subscriptionGroup.json` and body of 201.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupTable {
    #[serde(deserialize_with = "null_as_default")]
    pub data_version: DataVersion,
    #[serde(deserialize_with = "null_as_default")]
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i64>>,
    #[serde(deserialize_with = "null_as_default")]
    pub subscription_group_table: BTreeMap<String, GroupConfig>,
}

/// Body of 225.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupConfigList {
    #[serde(deserialize_with = "null_as_default")]
    pub group_config_list: Vec<GroupConfig>,
}

/// `consumerOffset.json`: `topic@group` → queue id → offset. Integer keys are written with quotes, which Apache's
/// parser reads as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OffsetTable {
    #[serde(deserialize_with = "null_as_default")]
    pub data_version: DataVersion,
    #[serde(deserialize_with = "null_as_default")]
    pub offset_table: BTreeMap<String, BTreeMap<u32, i64>>,
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;

    #[test]
    fn offsets_are_read_in_both_dialects() {
        let bare: OffsetTable =
            decode(b"{\n\t\"offsetTable\":{\n\t\t\"T@G\":{0:4,1:5\n\t\t}\n\t}\n}")
                .expect("fastjson");
        let strict: OffsetTable =
            decode(br#"{"offsetTable":{"T@G":{"0":4,"1":5}}}"#).expect("strict");
        assert_eq!(bare, strict);
        assert_eq!(bare.offset_table["T@G"][&1], 5);
    }

    #[test]
    fn unknown_fields_of_a_group_survive() {
        let text = br#"{"subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":3,
            "groupRetryPolicy":{"type":"CUSTOMIZED"}}}}"#;
        let table: GroupTable = decode(text).expect("5.x");
        let group = &table.subscription_group_table["G"];
        assert_eq!((group.retry_max_times, group.retry_queue_nums), (3, 1));
        let written = serde_json::to_string(&table).expect("JSON");
        assert!(
            written.contains(r#""groupRetryPolicy":{"type":"CUSTOMIZED"}"#),
            "{written}"
        );
    }
}
