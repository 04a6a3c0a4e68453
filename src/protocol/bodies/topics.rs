//! Configuration of topics: bodies of 18, 21, 103, 351, and the file `topics.json`.

use super::{BodyError, DataVersion, lenient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bits of `perm`.
pub mod perm {
    pub const PRIORITY: u32 = 8;
    pub const READ: u32 = 4;
    pub const WRITE: u32 = 2;
    /// The topic is a template for others.
    pub const INHERIT: u32 = 1;
}

/// Filter type of a topic whose messages have one tag each; the other is `MULTI_TAG`.
pub const FILTER_TYPE_SINGLE_TAG: &str = "SINGLE_TAG";

/// Configuration of one topic on one broker. Numbers are as they were sent or stored; whether they make sense is
/// the owner's to check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfig {
    /// 5.x, for example `{"message.type":"FIFO"}`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub attributes: BTreeMap<String, String>,
    #[serde(deserialize_with = "lenient::boolean")]
    pub order: bool,
    /// Bits of [`perm`].
    #[serde(deserialize_with = "lenient::integer")]
    pub perm: u32,
    #[serde(deserialize_with = "lenient::integer")]
    pub read_queue_nums: u32,
    /// `SINGLE_TAG` or `MULTI_TAG`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_filter_type: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_name: String,
    #[serde(deserialize_with = "lenient::integer")]
    pub topic_sys_flag: i32,
    #[serde(deserialize_with = "lenient::integer")]
    pub write_queue_nums: u32,
}

impl Default for TopicConfig {
    /// Java's values where a key is missing.
    fn default() -> Self {
        Self {
            attributes: BTreeMap::new(),
            order: false,
            perm: perm::READ | perm::WRITE,
            read_queue_nums: 16,
            topic_filter_type: FILTER_TYPE_SINGLE_TAG.to_owned(),
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

impl TopicConfig {
    /// A topic with as many queues to read as to write.
    pub fn new(name: &str, queue_nums: u32, perm: u32) -> Self {
        Self {
            topic_name: name.to_owned(),
            read_queue_nums: queue_nums,
            write_queue_nums: queue_nums,
            perm,
            ..Self::default()
        }
    }

    /// The text of a topic in a compressed registration: fields separated by one space.
    ///
    /// Attributes are left out where there are none: a 4.9 name server refuses a registration with a sixth field.
    /// **Source**: apache/rocketmq 5.3 `common/.../TopicConfig.java` `encode`.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!(
            "{} {} {} {} {}",
            self.topic_name,
            self.read_queue_nums,
            self.write_queue_nums,
            self.perm,
            self.topic_filter_type
        );
        if !self.attributes.is_empty() {
            text.push(' ');
            text.push_str(&String::from_utf8_lossy(&super::encode(&self.attributes)));
        }
        text
    }

    /// Reads the text of a compressed registration. Unreadable attributes are no attributes, as in Java.
    pub(super) fn from_text(text: &str) -> Result<Self, BodyError> {
        let error = || BodyError::TopicText(text.chars().take(120).collect());
        let mut parts = text.splitn(6, ' ');
        let mut part = || parts.next().ok_or_else(error);
        let topic_name = part()?.to_owned();
        let mut number = || part()?.parse().map_err(|_| error());
        Ok(Self {
            topic_name,
            read_queue_nums: number()?,
            write_queue_nums: number()?,
            perm: number()?,
            topic_filter_type: part()?.to_owned(),
            attributes: parts
                .next()
                .and_then(|attributes| serde_json::from_str(attributes).ok())
                .unwrap_or_default(),
            ..Self::default()
        })
    }
}

/// Body of 18.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfigList {
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_config_list: Vec<TopicConfig>,
}

/// All topics of a broker: answer to 21, the larger part of 103, and the file `topics.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicTable {
    #[serde(deserialize_with = "lenient::or_default")]
    pub data_version: DataVersion,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_config_table: BTreeMap<String, TopicConfig>,
}

/// A table with the fields for static topics, which 5.x reads; there are none here.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MappedTopicTable<'a> {
    data_version: &'a DataVersion,
    mapping_data_version: DataVersion,
    topic_config_table: &'a BTreeMap<String, TopicConfig>,
    topic_queue_mapping_detail_map: BTreeMap<String, ()>,
    topic_queue_mapping_info_map: BTreeMap<String, ()>,
}

impl TopicTable {
    pub(super) fn mapped(&self) -> MappedTopicTable<'_> {
        MappedTopicTable {
            data_version: &self.data_version,
            mapping_data_version: DataVersion::default(),
            topic_config_table: &self.topic_config_table,
            topic_queue_mapping_detail_map: BTreeMap::new(),
            topic_queue_mapping_info_map: BTreeMap::new(),
        }
    }

    /// Answer to 21.
    pub fn encode(&self) -> Vec<u8> {
        super::encode(&self.mapped())
    }

    /// Contents of `topics.json`.
    pub fn encode_file(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("keys are texts, and memory takes every write")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::decode;

    fn config(topic_name: &str) -> TopicConfig {
        TopicConfig {
            topic_name: topic_name.to_owned(),
            read_queue_nums: 8,
            write_queue_nums: 4,
            ..TopicConfig::default()
        }
    }

    #[test]
    fn topics_of_4_9_are_read() {
        let body = "{\n\t\"dataVersion\":{\n\t\t\"counter\":6,\n\t\t\"timestamp\":1796101773660\n\t},\n\t\"topicConfigTable\":{\n\t\t\"T\":{\n\
            \t\t\t\"order\":false,\n\t\t\t\"perm\":6,\n\t\t\t\"readQueueNums\":8,\n\t\t\t\"topicFilterType\":\"SINGLE_TAG\",\n\
            \t\t\t\"topicName\":\"T\",\n\t\t\t\"topicSysFlag\":0,\n\t\t\t\"writeQueueNums\":4\n\t\t}\n\t}\n}";
        let table: TopicTable = decode(body.as_bytes()).expect("a table");
        let expected = TopicTable {
            data_version: DataVersion {
                counter: 6,
                state_version: 0,
                timestamp: 1_796_101_773_660,
            },
            topic_config_table: BTreeMap::from([("T".to_owned(), config("T"))]),
        };
        assert_eq!(table, expected);
    }

    #[test]
    fn topics_of_5_are_read_and_written_alike() {
        let body = r#"{"dataVersion":{"counter":12,"stateVersion":1,"timestamp":1700000000000},"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"topicConfigTable":{"T":{"attributes":{"message.type":"FIFO"},"order":true,"perm":7,"readQueueNums":8,"topicFilterType":"MULTI_TAG","topicName":"T","topicSysFlag":3,"writeQueueNums":4}},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}"#;
        let table: TopicTable = decode(body.as_bytes()).expect("a table");
        let topic = &table.topic_config_table["T"];
        let expected = TopicConfig {
            attributes: BTreeMap::from([("message.type".to_owned(), "FIFO".to_owned())]),
            order: true,
            perm: perm::READ | perm::WRITE | perm::INHERIT,
            topic_filter_type: "MULTI_TAG".to_owned(),
            topic_sys_flag: 3,
            ..config("T")
        };
        assert_eq!(*topic, expected);
        assert_eq!(String::from_utf8(table.encode()).as_deref(), Ok(body));
        assert_eq!(decode::<TopicTable>(&table.encode_file()).ok(), Some(table));
    }

    #[test]
    fn missing_values_are_those_of_java() {
        let topic: TopicConfig =
            decode(br#"{"topicName":"T","attributes":null}"#).expect("a topic");
        assert_eq!(
            (topic.perm, topic.read_queue_nums, topic.write_queue_nums),
            (6, 16, 16)
        );
        let list: TopicConfigList =
            decode(br#"{"topicConfigList":[{"topicName":"A"},{}]}"#).expect("a list");
        assert_eq!(list.topic_config_list.len(), 2);
    }

    #[test]
    fn text_of_a_registration() {
        let with_attributes = TopicConfig {
            attributes: BTreeMap::from([("a".to_owned(), "b c".to_owned())]),
            topic_filter_type: "MULTI_TAG".to_owned(),
            ..config("T")
        };
        for (topic, text) in [
            (config("T"), "T 8 4 6 SINGLE_TAG"),
            (with_attributes, r#"T 8 4 6 MULTI_TAG {"a":"b c"}"#),
        ] {
            assert_eq!(topic.to_text(), text);
            assert_eq!(TopicConfig::from_text(text).ok(), Some(topic));
        }
        for text in ["", "T", "T 8 4 6", "T x 4 6 SINGLE_TAG"] {
            assert!(TopicConfig::from_text(text).is_err(), "{text}");
        }
    }
}
