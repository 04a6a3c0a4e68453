//! Routes, clusters and the brokers of one name: answers to 105, 106, 901.
//!
//! Go takes the addresses of a route out of the raw text: it must be compact, without a space behind a colon.

use super::lenient;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

/// How the ids of a route's brokers are written.
///
/// A stock name server answers strictly from V4_9_4 on (version 401), or where `acceptStandardJsonOnly` is true.
/// Source: apache/rocketmq 5.3 `namesrv/.../processor/ClientRequestProcessor.java`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// `{"0":"10.0.0.1:10911"}`
    Strict,
    /// `{0:"10.0.0.1:10911"}`
    Fastjson,
}

/// Answer to 105.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicRoute {
    #[serde(rename = "brokerDatas", deserialize_with = "lenient::or_default")]
    pub brokers: Vec<BrokerData>,
    #[serde(rename = "queueDatas", deserialize_with = "lenient::or_default")]
    pub queues: Vec<QueueData>,
    /// `broker:queues;…` for topics that are in order over several brokers.
    pub order_topic_conf: Option<String>,
}

impl TopicRoute {
    pub fn encode(&self, dialect: Dialect) -> Vec<u8> {
        match dialect {
            Dialect::Strict => super::encode(self),
            Dialect::Fastjson => super::encode_bare_keys(self),
        }
    }
}

/// With an empty table of filter servers, which Java has no default for.
impl Serialize for TopicRoute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut route = serializer.serialize_struct("TopicRouteData", 4)?;
        route.serialize_field("brokerDatas", &self.brokers)?;
        route.serialize_field("filterServerTable", &BTreeMap::<String, ()>::new())?;
        if let Some(conf) = &self.order_topic_conf {
            route.serialize_field("orderTopicConf", conf)?;
        }
        route.serialize_field("queueDatas", &self.queues)?;
        route.end()
    }
}

/// The brokers of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerData {
    #[serde(deserialize_with = "lenient::or_default")]
    pub cluster: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    /// Address by broker id; 0 is the master.
    #[serde(rename = "brokerAddrs", deserialize_with = "lenient::or_default")]
    pub addresses: BTreeMap<i64, String>,
}

/// With the field of 5.x that says whether a slave may act as master: none may.
impl Serialize for BrokerData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut broker = serializer.serialize_struct("BrokerData", 4)?;
        broker.serialize_field("brokerAddrs", &self.addresses)?;
        broker.serialize_field("brokerName", &self.broker_name)?;
        broker.serialize_field("cluster", &self.cluster)?;
        broker.serialize_field("enableActingMaster", &false)?;
        broker.end()
    }
}

/// The queues of a topic at the brokers of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueData {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::integer")]
    pub perm: u32,
    #[serde(deserialize_with = "lenient::integer")]
    pub read_queue_nums: u32,
    #[serde(deserialize_with = "lenient::integer")]
    pub topic_sys_flag: i32,
    #[serde(deserialize_with = "lenient::integer")]
    pub write_queue_nums: u32,
}

/// Answer to 106.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterInfo {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Names of brokers by cluster.
    #[serde(deserialize_with = "lenient::or_default")]
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

/// Answer to 106 for these brokers, by name.
pub fn encode_cluster_info(brokers: &BTreeMap<String, BrokerData>) -> Vec<u8> {
    let mut info = ClusterInfo {
        broker_addr_table: brokers.clone(),
        cluster_addr_table: BTreeMap::new(),
    };
    for (name, broker) in brokers {
        let cluster = info.cluster_addr_table.entry(broker.cluster.clone());
        cluster.or_default().push(name.clone());
    }
    super::encode(&info)
}

/// Answer to 901.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerMemberGroup {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_member_group: BrokerData,
}

/// Answer to 901 for the brokers of one name; without addresses where the name is unknown.
pub fn encode_member_group(broker: &BrokerData) -> Vec<u8> {
    super::encode(&BrokerMemberGroup {
        broker_member_group: broker.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::{decode, encode};

    fn broker(name: &str) -> BrokerData {
        BrokerData {
            addresses: BTreeMap::from([
                (0, "10.0.0.1:10911".to_owned()),
                (1, "10.0.0.2:10911".to_owned()),
            ]),
            broker_name: name.to_owned(),
            cluster: "DefaultCluster".to_owned(),
        }
    }

    fn route() -> TopicRoute {
        TopicRoute {
            brokers: vec![broker("broker-a")],
            queues: vec![QueueData {
                broker_name: "broker-a".to_owned(),
                perm: 6,
                read_queue_nums: 8,
                topic_sys_flag: 0,
                write_queue_nums: 8,
            }],
            order_topic_conf: None,
        }
    }

    /// The example of `requests.md` section D.1, with a slave.
    const STRICT: &str = r#"{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}"#;

    /// Trap 3 of `conventions.md`: the ids are quoted for the newer askers only. Trap 13 of `semantics.md` section
    /// 19: no space anywhere.
    #[test]
    fn route_is_written_in_both_dialects() {
        let bare = STRICT.replace("\"0\":", "0:").replace("\"1\":", "1:");
        for (dialect, expected) in [(Dialect::Strict, STRICT), (Dialect::Fastjson, &bare)] {
            let body = route().encode(dialect);
            assert_eq!(std::str::from_utf8(&body), Ok(expected));
            assert_eq!(decode::<TopicRoute>(&body).ok(), Some(route()));
        }
    }

    /// Captured from Apache 4.9.8: a route without the fields of 5.x.
    #[test]
    fn route_of_4_9_is_read() {
        let body = br#"{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}"#;
        assert_eq!(decode::<TopicRoute>(body).ok(), Some(route()));
    }

    #[test]
    fn empty_collections_are_written_and_order_only_where_there_is_one() {
        let expected = br#"{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}"#;
        assert_eq!(encode(&TopicRoute::default()), expected);
        let ordered = TopicRoute {
            order_topic_conf: Some("broker-a:8".to_owned()),
            ..route()
        };
        let body = ordered.encode(Dialect::Strict);
        let text = String::from_utf8_lossy(&body);
        assert!(
            text.contains(r#","orderTopicConf":"broker-a:8","queueDatas""#),
            "{text}"
        );
        assert_eq!(decode::<TopicRoute>(&body).ok(), Some(ordered));
        let expected = br#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#;
        assert_eq!(encode_cluster_info(&BTreeMap::new()), expected);
    }

    #[test]
    fn cluster_info_is_the_worked_example() {
        let mut broker = broker("b");
        broker.addresses.remove(&1);
        let body = encode_cluster_info(&BTreeMap::from([("b".to_owned(), broker)]));
        let expected = r#"{"brokerAddrTable":{"b":{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"b","cluster":"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["b"]}}"#;
        assert_eq!(std::str::from_utf8(&body), Ok(expected));
        let info: ClusterInfo = decode(&body).expect("a cluster");
        assert_eq!(encode(&info), body);
    }

    #[test]
    fn member_group_of_an_unknown_name_is_empty() {
        let broker = BrokerData {
            broker_name: "b".to_owned(),
            cluster: "c".to_owned(),
            addresses: BTreeMap::new(),
        };
        let body = encode_member_group(&broker);
        let group: BrokerMemberGroup = decode(&body).expect("a group");
        assert_eq!(group.broker_member_group, broker);
        let text = String::from_utf8_lossy(&body);
        assert!(
            text.starts_with(
                r#"{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"b","cluster":"c""#
            ),
            "{text}"
        );
    }
}
