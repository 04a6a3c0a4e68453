//! Offsets of groups: the file `consumerOffset.json`, and the answer to 43.

use super::{BodyError, DataVersion, lenient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Committed offsets of all groups.
///
/// Both lines read it with bare and with quoted queue ids; [`Self::encode`] writes bare ones, as they do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OffsetTable {
    /// 5.x; 4.9 ignores it.
    #[serde(deserialize_with = "lenient::or_default")]
    pub data_version: DataVersion,
    /// Offset by queue id, by `topic@group`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub offset_table: BTreeMap<String, BTreeMap<u32, i64>>,
}

impl OffsetTable {
    pub fn encode(&self) -> Vec<u8> {
        super::encode_bare_keys(self)
    }

    pub fn decode(text: &[u8]) -> Result<Self, BodyError> {
        super::decode(text)
    }
}

/// Key of a group's offsets of a topic. Neither name can hold an `@`.
pub fn topic_at_group(topic: &str, group: &str) -> String {
    format!("{topic}@{group}")
}

/// Topic and group of a key.
pub fn split_topic_at_group(key: &str) -> Option<(&str, &str)> {
    key.split_once('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets() -> OffsetTable {
        let key = topic_at_group("T", "G");
        OffsetTable {
            offset_table: BTreeMap::from([(key, BTreeMap::from([(0, 4), (3, i64::MAX)]))]),
            ..OffsetTable::default()
        }
    }

    #[test]
    fn file_is_read_in_every_form() {
        for text in [
            "{\n\t\"offsetTable\":{\n\t\t\"T@G\":{0:4,3:9223372036854775807\n\t\t}\n\t}\n}",
            r#"{"offsetTable":{"T@G":{"0":4,"3":9223372036854775807}}}"#,
            r#"{"dataVersion":null,"offsetTable":{"T@G":{ 0 :4,"3":9223372036854775807}},"resetOffsetTable":{}}"#,
        ] {
            let read = OffsetTable::decode(text.as_bytes());
            assert_eq!(read.ok(), Some(offsets()), "{text}");
        }
    }

    #[test]
    fn file_is_written_with_bare_queue_ids() {
        let text = offsets().encode();
        let expected = r#"{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{"T@G":{0:4,3:9223372036854775807}}}"#;
        assert_eq!(std::str::from_utf8(&text), Ok(expected));
        assert_eq!(OffsetTable::decode(&text).ok(), Some(offsets()));
    }

    #[test]
    fn key_names_topic_and_group() {
        assert_eq!(split_topic_at_group("%RETRY%G@G"), Some(("%RETRY%G", "G")));
        assert_eq!(split_topic_at_group("T"), None);
    }
}
