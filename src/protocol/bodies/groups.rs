//! Configuration of groups: bodies of 200, 201, 225, 352, and the file `subscriptionGroup.json`.

use super::{DataVersion, lenient};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// One group. Keys that are not known here are kept and written back, so that nothing of a newer broker's
/// configuration is lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupConfig {
    #[serde(deserialize_with = "lenient::or_default")]
    pub attributes: BTreeMap<String, String>,
    #[serde(deserialize_with = "lenient::integer")]
    pub broker_id: i64,
    #[serde(deserialize_with = "lenient::boolean")]
    pub consume_broadcast_enable: bool,
    #[serde(deserialize_with = "lenient::boolean")]
    pub consume_enable: bool,
    #[serde(deserialize_with = "lenient::boolean")]
    pub consume_from_min_enable: bool,
    #[serde(deserialize_with = "lenient::boolean")]
    pub consume_message_orderly: bool,
    #[serde(deserialize_with = "lenient::integer")]
    pub consume_timeout_minute: i32,
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_name: String,
    #[serde(deserialize_with = "lenient::integer")]
    pub group_sys_flag: i32,
    #[serde(deserialize_with = "lenient::boolean")]
    pub notify_consumer_ids_changed_enable: bool,
    #[serde(deserialize_with = "lenient::integer")]
    pub retry_max_times: i32,
    #[serde(deserialize_with = "lenient::integer")]
    pub retry_queue_nums: u32,
    #[serde(deserialize_with = "lenient::integer")]
    pub which_broker_when_consume_slowly: i64,
    /// Everything else, as it was.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for GroupConfig {
    /// Java's values where a key is missing.
    fn default() -> Self {
        Self {
            attributes: BTreeMap::new(),
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: false,
            consume_timeout_minute: 15,
            group_name: String::new(),
            group_sys_flag: 0,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            which_broker_when_consume_slowly: 1,
            other: Map::new(),
        }
    }
}

/// Body of 225.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupConfigList {
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_config_list: Vec<GroupConfig>,
}

/// All groups of a broker: answer to 201, and the file `subscriptionGroup.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupTable {
    #[serde(deserialize_with = "lenient::or_default")]
    pub data_version: DataVersion,
    /// 5.x: topics that a group may not read, by group.
    #[serde(deserialize_with = "lenient::or_default")]
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i64>>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub subscription_group_table: BTreeMap<String, GroupConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::{decode, encode};

    #[test]
    fn group_of_4_9_is_read() {
        let body = br#"{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,"consumeFromMinEnable":false,"groupName":"AdmG","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#;
        let group: GroupConfig = decode(body).expect("a group");
        let expected = GroupConfig {
            consume_broadcast_enable: false,
            consume_from_min_enable: false,
            group_name: "AdmG".to_owned(),
            ..GroupConfig::default()
        };
        assert_eq!(group, expected);
    }

    /// The example of `requests.md` section E.2.
    #[test]
    fn group_of_5_keeps_what_is_unknown_here() {
        let body = r#"{"attributes":{"a":"b"},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"G","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":-1,"retryQueueNums":1,"subscriptionDataSet":null,"whichBrokerWhenConsumeSlowly":1,"big":9223372036854775807}"#;
        let group: GroupConfig = decode(body.as_bytes()).expect("a group");
        assert_eq!((&*group.group_name, group.retry_max_times), ("G", -1));
        let before: Value = serde_json::from_str(body).expect("JSON");
        let after: Value = serde_json::from_slice(&encode(&group)).expect("JSON");
        assert_eq!(after, before);
    }

    #[test]
    fn table_is_read_and_written_alike() {
        let body = r#"{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},"forbiddenTable":{"G":{"T":1}},"subscriptionGroupTable":{"":{"groupName":""},"G":{"groupName":"G"}}}"#;
        let table: GroupTable = decode(body.as_bytes()).expect("a table");
        assert_eq!(table.subscription_group_table.len(), 2);
        assert_eq!(table.forbidden_table["G"]["T"], 1);
        let again: GroupTable = decode(&encode(&table)).expect("a table");
        assert_eq!(again, table);
        assert_eq!(
            encode(&GroupTable::default()),
            br#"{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"forbiddenTable":{},"subscriptionGroupTable":{}}"#
        );
    }
}
