//! Routes and cluster information of a name server. Compact on purpose: Go takes the addresses from the raw text.

use super::quoted;
use serde::Serialize;
use std::collections::BTreeMap;

/// Addresses of one broker name, by broker id; id 0 is the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerData {
    pub cluster: String,
    pub broker_name: String,
    pub addresses: BTreeMap<i64, String>,
}

/// Queues of a topic on one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueData {
    pub broker_name: String,
    pub read_queue_nums: u32,
    pub write_queue_nums: u32,
    pub perm: u32,
    pub topic_sys_flag: i32,
}

/// Answer to 105.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicRoute {
    pub brokers: Vec<BrokerData>,
    pub queues: Vec<QueueData>,
    pub order_topic_conf: Option<String>,
}

/// How integer keys are written: `{"0":…}`, or `{0:…}` as stock name servers do for clients below V4_9_4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Strict,
    Fastjson,
}

impl BrokerData {
    fn write(&self, dialect: Dialect, out: &mut String) {
        out.push_str("{\"brokerAddrs\":{");
        for (index, (id, address)) in self.addresses.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            match dialect {
                Dialect::Strict => out.push_str(&format!("\"{id}\":")),
                Dialect::Fastjson => out.push_str(&format!("{id}:")),
            }
            out.push_str(&quoted(address));
        }
        out.push_str(&format!(
            "}},\"brokerName\":{},\"cluster\":{},\"enableActingMaster\":false}}",
            quoted(&self.broker_name),
            quoted(&self.cluster)
        ));
    }
}

impl TopicRoute {
    pub fn encode(&self, dialect: Dialect) -> String {
        let mut out = String::from("{\"brokerDatas\":[");
        for (index, broker) in self.brokers.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            broker.write(dialect, &mut out);
        }
        out.push_str("],\"filterServerTable\":{}");
        if let Some(conf) = &self.order_topic_conf {
            out.push_str(&format!(",\"orderTopicConf\":{}", quoted(conf)));
        }
        out.push_str(",\"queueDatas\":[");
        for (index, queue) in self.queues.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            // Go reads the misspelt name; Java reads the other one.
            out.push_str(&format!(
                "{{\"brokerName\":{},\"perm\":{},\"readQueueNums\":{},\"topicSynFlag\":{flag},\"topicSysFlag\":{flag},\"writeQueueNums\":{}}}",
                quoted(&queue.broker_name),
                queue.perm,
                queue.read_queue_nums,
                queue.write_queue_nums,
                flag = queue.topic_sys_flag,
            ));
        }
        out.push_str("]}");
        out
    }
}

/// Answer to 106; integer keys always with quotes, which every client reads.
pub fn encode_cluster_info(brokers: &BTreeMap<String, BrokerData>) -> String {
    let mut clusters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut out = String::from("{\"brokerAddrTable\":{");
    for (index, (name, broker)) in brokers.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        clusters.entry(&broker.cluster).or_default().push(name);
        out.push_str(&format!("{}:", quoted(name)));
        broker.write(Dialect::Strict, &mut out);
    }
    let clusters = serde_json::to_string(&clusters).expect("plain data is JSON");
    out.push_str(&format!("}},\"clusterAddrTable\":{clusters}}}"));
    out
}

/// Answer to 901.
pub fn encode_member_group(broker: &BrokerData) -> String {
    let mut out = String::from("{\"brokerMemberGroup\":");
    broker.write(Dialect::Strict, &mut out);
    out.push('}');
    out
}

/// Answer to 206, 224, 304.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicList {
    pub topic_list: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
}

/// Body of 219 and of the answer to 103.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KvTable<'a> {
    pub table: BTreeMap<&'a str, &'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_written_in_the_dialect_of_the_asker() {
        let broker = BrokerData {
            cluster: "DefaultCluster".into(),
            broker_name: "b".into(),
            addresses: [
                (0, "127.0.0.1:10911".to_owned()),
                (1, "127.0.0.1:10921".to_owned()),
            ]
            .into(),
        };
        let queue = QueueData {
            broker_name: "b".into(),
            read_queue_nums: 8,
            write_queue_nums: 8,
            perm: 6,
            topic_sys_flag: 0,
        };
        let route = TopicRoute {
            brokers: vec![broker],
            queues: vec![queue],
            order_topic_conf: None,
        };
        let strict = route.encode(Dialect::Strict);
        assert!(
            strict.contains(r#""brokerAddrs":{"0":"127.0.0.1:10911","1":"127.0.0.1:10921"}"#),
            "{strict}"
        );
        assert!(serde_json::from_str::<serde_json::Value>(&strict).is_ok());
        let bare = route.encode(Dialect::Fastjson);
        assert!(
            bare.contains(r#""brokerAddrs":{0:"127.0.0.1:10911",1:"#),
            "{bare}"
        );
        assert!(!strict.contains(' '), "Go cuts the raw text");
    }
}
