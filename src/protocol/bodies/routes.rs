//! Routes, clusters and the brokers of one name: answers to 105, 106, 901.
//!
//! Go takes the addresses of a route out of the raw text: it must be compact, without a space behind a colon.

use super::lenient;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// First version whose route answers are standard JSON: the ordinal of V4_9_4. Older ones get bare keys.
pub const STANDARD_ROUTE_VERSION: i32 = 401;

/// How the ids of a route's brokers are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteDialect {
    /// `{"0":"10.0.0.1:10911"}`
    Standard,
    /// `{0:"10.0.0.1:10911"}`
    BareKeys,
}

impl RouteDialect {
    /// The dialect that a stock name server answers in.
    ///
    /// **Source**: apache/rocketmq 5.3 `namesrv/.../processor/ClientRequestProcessor.java`.
    pub fn of(version: i32, accept_standard_json_only: Option<bool>) -> Self {
        if version >= STANDARD_ROUTE_VERSION || accept_standard_json_only == Some(true) {
            Self::Standard
        } else {
            Self::BareKeys
        }
    }
}

/// Answer to 105.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicRouteData {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_datas: Vec<BrokerData>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `broker:queues;…` for topics that are in order over several brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub queue_datas: Vec<QueueData>,
}

impl TopicRouteData {
    pub fn encode(&self, dialect: RouteDialect) -> Vec<u8> {
        match dialect {
            RouteDialect::Standard => super::encode(self),
            RouteDialect::BareKeys => super::encode_bare_keys(self),
        }
    }
}

/// The brokers of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerData {
    /// Address by broker id; 0 is the master.
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_addrs: BTreeMap<i64, String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub cluster: String,
    /// 5.x.
    #[serde(deserialize_with = "lenient::boolean")]
    pub enable_acting_master: bool,
}

/// The queues of a topic at the brokers of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueData {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::integer")]
    pub perm: i32,
    #[serde(deserialize_with = "lenient::integer")]
    pub read_queue_nums: i32,
    #[serde(deserialize_with = "lenient::integer")]
    pub topic_sys_flag: i32,
    #[serde(deserialize_with = "lenient::integer")]
    pub write_queue_nums: i32,
}

/// Answer to 106.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterInfo {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Names of brokers by cluster.
    #[serde(deserialize_with = "lenient::or_default")]
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

/// Answer to 901.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerMemberGroupBody {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_member_group: BrokerMemberGroup,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerMemberGroup {
    /// Address by broker id; empty for an unknown name.
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_addrs: BTreeMap<i64, String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::or_default")]
    pub cluster: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::{decode, encode};

    fn broker(name: &str) -> BrokerData {
        BrokerData {
            broker_addrs: BTreeMap::from([
                (0, "10.0.0.1:10911".to_owned()),
                (1, "10.0.0.2:10911".to_owned()),
            ]),
            broker_name: name.to_owned(),
            cluster: "DefaultCluster".to_owned(),
            enable_acting_master: false,
        }
    }

    fn route() -> TopicRouteData {
        TopicRouteData {
            broker_datas: vec![broker("broker-a")],
            queue_datas: vec![QueueData {
                broker_name: "broker-a".to_owned(),
                perm: 6,
                read_queue_nums: 8,
                topic_sys_flag: 0,
                write_queue_nums: 8,
            }],
            ..TopicRouteData::default()
        }
    }

    /// The example of `requests.md` section D.1, with a slave.
    const STANDARD: &str = r#"{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}"#;

    /// Trap 3 of `conventions.md`: the ids are quoted for the newer askers only.
    #[test]
    fn route_is_written_in_both_dialects() {
        let bare = STANDARD.replace("\"0\":", "0:").replace("\"1\":", "1:");
        for (dialect, expected) in [
            (RouteDialect::Standard, STANDARD),
            (RouteDialect::BareKeys, &bare),
        ] {
            let body = route().encode(dialect);
            assert_eq!(std::str::from_utf8(&body), Ok(expected));
            assert_eq!(decode::<TopicRouteData>(&body).ok(), Some(route()));
        }
    }

    #[test]
    fn dialect_depends_on_the_asker() {
        for (version, only, expected) in [
            (401, None, RouteDialect::Standard),
            (479, Some(false), RouteDialect::Standard),
            (400, None, RouteDialect::BareKeys),
            (317, Some(false), RouteDialect::BareKeys),
            (317, Some(true), RouteDialect::Standard),
        ] {
            assert_eq!(
                RouteDialect::of(version, only),
                expected,
                "{version} {only:?}"
            );
        }
    }

    /// Captured from Apache 4.9.8: a route without the fields of 5.x.
    #[test]
    fn route_of_4_9_is_read() {
        let body = br#"{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}"#;
        assert_eq!(decode::<TopicRouteData>(body).ok(), Some(route()));
    }

    #[test]
    fn empty_collections_are_written_and_order_only_where_there_is_one() {
        let expected = br#"{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}"#;
        assert_eq!(encode(&TopicRouteData::default()), expected);
        let ordered = TopicRouteData {
            order_topic_conf: Some("broker-a:8".to_owned()),
            ..route()
        };
        let body = ordered.encode(RouteDialect::Standard);
        assert!(
            String::from_utf8_lossy(&body)
                .contains(r#","orderTopicConf":"broker-a:8","queueDatas""#)
        );
        assert_eq!(decode::<TopicRouteData>(&body).ok(), Some(ordered));
        let expected = br#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#;
        assert_eq!(encode(&ClusterInfo::default()), expected);
    }

    #[test]
    fn cluster_info_is_the_worked_example() {
        let mut broker = broker("b");
        broker.broker_addrs.remove(&1);
        let info = ClusterInfo {
            broker_addr_table: BTreeMap::from([("b".to_owned(), broker)]),
            cluster_addr_table: BTreeMap::from([(
                "DefaultCluster".to_owned(),
                vec!["b".to_owned()],
            )]),
        };
        let body = encode(&info);
        let expected = r#"{"brokerAddrTable":{"b":{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"b","cluster":"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["b"]}}"#;
        assert_eq!(std::str::from_utf8(&body), Ok(expected));
        assert_eq!(decode::<ClusterInfo>(&body).ok(), Some(info));
    }

    #[test]
    fn member_group_of_an_unknown_name_is_empty() {
        let group = BrokerMemberGroupBody {
            broker_member_group: BrokerMemberGroup {
                broker_name: "b".to_owned(),
                cluster: "c".to_owned(),
                ..BrokerMemberGroup::default()
            },
        };
        let body = encode(&group);
        let expected =
            br#"{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"b","cluster":"c"}}"#;
        assert_eq!(body, expected);
        assert_eq!(decode::<BrokerMemberGroupBody>(&body).ok(), Some(group));
    }
}
