//! Small lists and tables: answers to 206, 219, 224, 304, 300 and others, and the body of 103's answer.

use super::lenient;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Names of topics: answer to 206, 224, 304, 305, 311, 312, 313, 343.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicList {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_list: Vec<String>,
}

/// Names of groups: answer to 300.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupList {
    #[serde(deserialize_with = "lenient::or_default")]
    pub group_list: Vec<String>,
}

/// Texts by name, as they are written: answer to 28, 103, 219.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvTable<'a> {
    pub table: BTreeMap<&'a str, &'a str>,
}

/// Texts by name, as they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTableBuf {
    #[serde(deserialize_with = "lenient::or_default")]
    pub table: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::{decode, encode};

    #[test]
    fn lists_and_tables_are_written_even_if_empty() {
        assert_eq!(encode(&TopicList::default()), br#"{"topicList":[]}"#);
        assert_eq!(encode(&GroupList::default()), br#"{"groupList":[]}"#);
        assert_eq!(encode(&KvTable::default()), br#"{"table":{}}"#);
    }

    #[test]
    fn lists_and_tables_are_read_back() {
        let topics = TopicList {
            broker_addr: Some("10.0.0.1:10911".to_owned()),
            topic_list: vec!["T".to_owned(), "主题".to_owned()],
        };
        let body = encode(&topics);
        let expected = r#"{"brokerAddr":"10.0.0.1:10911","topicList":["T","主题"]}"#;
        assert_eq!(std::str::from_utf8(&body), Ok(expected));
        assert_eq!(decode::<TopicList>(&body).ok(), Some(topics));
        let table = KvTable {
            table: BTreeMap::from([("T", "broker-a:8")]),
        };
        let read: KvTableBuf = decode(&encode(&table)).expect("a table");
        assert_eq!(read.table["T"], "broker-a:8");
        assert_eq!(
            decode::<TopicList>(b"{\"topicList\":null}").ok(),
            Some(TopicList::default())
        );
    }
}
