//! The name server's state machine: brokers, topics, key-value configuration. No I/O, no clock.

mod requests;

use crate::clock::Now;
use crate::protocol::bodies::{BrokerData, DataVersion, QueueData, Registration, TopicRoute};
use std::collections::BTreeMap;

/// A broker that is silent for this long is dropped. Source: apache/rocketmq `RouteInfoManager`.
const BROKER_US: u64 = 120_000_000;
/// Brokers of one name server; a registration beyond is refused.
const BROKERS_MAX: usize = 4096;
/// Entries of the key-value configuration.
const KV_ENTRIES_MAX: usize = 10_000;

/// Where a registration came from; its end takes the broker out at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Source {
    Connection(u64),
    /// A shard of this process; never closes before the process does.
    Shard(u16),
}

#[derive(Debug)]
struct Live {
    name: String,
    broker_id: i64,
    source: Source,
    version: DataVersion,
    ha_address: String,
    expires_us: u64,
    timeout_us: u64,
}

/// All routes. Keys are sorted, so that answers don't depend on a hash.
#[derive(Debug, Default)]
pub struct NameServer {
    /// By broker name.
    brokers: BTreeMap<String, BrokerData>,
    /// By broker address.
    live: BTreeMap<String, Live>,
    /// Topic → broker name → queues.
    topics: BTreeMap<String, BTreeMap<String, QueueData>>,
    /// Namespace → key → value.
    kv: BTreeMap<String, BTreeMap<String, String>>,
    kv_changed: bool,
}

/// A registration, as 103 brings it.
#[derive(Debug)]
pub struct Broker<'a> {
    pub cluster: &'a str,
    pub name: &'a str,
    pub id: i64,
    pub address: &'a str,
    pub ha_address: &'a str,
    /// Heartbeat timeout; `None` is the default.
    pub timeout_ms: Option<u64>,
}

impl NameServer {
    /// With the key-value configuration of `kvConfig.json`, if there is one.
    pub fn new(kv_file: Option<&[u8]>) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct File {
            #[serde(default)]
            config_table: BTreeMap<String, BTreeMap<String, String>>,
        }
        let kv = match kv_file {
            None => BTreeMap::new(),
            Some(bytes) => {
                let file: File = crate::protocol::bodies::decode(bytes)
                    .map_err(|e| format!("kvConfig.json: {e}"))?;
                file.config_table
            }
        };
        Ok(Self {
            kv,
            ..Self::default()
        })
    }

    /// Contents of `kvConfig.json`, if they changed since the last call.
    pub fn take_kv_file(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.kv_changed).then(|| {
            serde_json::to_vec_pretty(&serde_json::json!({ "configTable": self.kv }))
                .expect("plain data is JSON")
        })
    }

    /// Takes a broker in, or refreshes it. Returns the master's address and HA address for a slave.
    pub fn register(
        &mut self,
        broker: &Broker<'_>,
        registration: Registration,
        source: Source,
        now: Now,
    ) -> Result<(String, String), String> {
        if self.live.len() >= BROKERS_MAX && !self.live.contains_key(broker.address) {
            return Err(format!(
                "{} brokers are registered, the limit is {BROKERS_MAX}",
                self.live.len()
            ));
        }
        self.forget_other_id(broker);
        let table = registration.topic_config_serialize_wrapper;
        let timeout_us = broker
            .timeout_ms
            .map_or(BROKER_US, |ms| ms.max(1000) * 1000);
        let live = Live {
            name: broker.name.to_owned(),
            broker_id: broker.id,
            source,
            version: table.data_version,
            ha_address: broker.ha_address.to_owned(),
            expires_us: now.monotonic_us + timeout_us,
            timeout_us,
        };
        let new = self.live.insert(broker.address.to_owned(), live).is_none();
        if new {
            tracing::info!(
                broker = broker.name,
                id = broker.id,
                address = broker.address,
                "broker registered"
            );
        }
        let data = self
            .brokers
            .entry(broker.name.to_owned())
            .or_insert_with(|| BrokerData {
                cluster: broker.cluster.to_owned(),
                broker_name: broker.name.to_owned(),
                addresses: BTreeMap::new(),
            });
        broker.cluster.clone_into(&mut data.cluster);
        data.addresses.insert(broker.id, broker.address.to_owned());
        let smallest = data.addresses.keys().next() == Some(&broker.id);
        if smallest {
            for (name, topic) in table.topic_config_table {
                let queue = QueueData {
                    broker_name: broker.name.to_owned(),
                    read_queue_nums: topic.read_queue_nums,
                    write_queue_nums: topic.write_queue_nums,
                    perm: topic.perm,
                    topic_sys_flag: topic.topic_sys_flag,
                };
                self.topics
                    .entry(name)
                    .or_default()
                    .insert(broker.name.to_owned(), queue);
            }
        }
        Ok(self.master_of(broker))
    }

    /// One address is one broker: a slave that became master leaves its old id.
    fn forget_other_id(&mut self, broker: &Broker<'_>) {
        let stale = self
            .live
            .get(broker.address)
            .filter(|l| l.name != broker.name || l.broker_id != broker.id);
        if stale.is_some() {
            self.drop_broker(broker.address);
        }
    }

    fn master_of(&self, broker: &Broker<'_>) -> (String, String) {
        if broker.id == 0 {
            return (String::new(), String::new());
        }
        let master = self
            .brokers
            .get(broker.name)
            .and_then(|b| b.addresses.get(&0))
            .cloned()
            .unwrap_or_default();
        let ha = self
            .live
            .get(&master)
            .map(|l| l.ha_address.clone())
            .unwrap_or_default();
        (master, ha)
    }

    /// The broker is heard of; false if it isn't registered.
    pub fn refresh(&mut self, address: &str, now: Now) -> bool {
        let Some(live) = self.live.get_mut(address) else {
            return false;
        };
        live.expires_us = now.monotonic_us + live.timeout_us;
        true
    }

    pub fn drop_broker(&mut self, address: &str) {
        let Some(live) = self.live.remove(address) else {
            return;
        };
        tracing::info!(
            broker = live.name,
            id = live.broker_id,
            address,
            "broker dropped"
        );
        let Some(data) = self.brokers.get_mut(&live.name) else {
            return;
        };
        data.addresses.retain(|_, a| a != address);
        if !data.addresses.is_empty() {
            return;
        }
        self.brokers.remove(&live.name);
        self.topics.retain(|_, queues| {
            queues.remove(&live.name);
            !queues.is_empty()
        });
    }

    /// The connection is gone, and with it the brokers that registered over it.
    pub fn on_closed(&mut self, source: Source) {
        let gone: Vec<String> = self
            .live
            .iter()
            .filter(|(_, l)| l.source == source)
            .map(|(a, _)| a.clone())
            .collect();
        for address in gone {
            self.drop_broker(&address);
        }
    }

    pub fn expire(&mut self, now: Now) {
        let gone = self
            .live
            .iter()
            .filter(|(_, l)| l.expires_us <= now.monotonic_us);
        let gone: Vec<String> = gone.map(|(a, _)| a.clone()).collect();
        for address in gone {
            self.drop_broker(&address);
        }
    }

    pub fn next_expiry(&self) -> Option<u64> {
        self.live.values().map(|l| l.expires_us).min()
    }

    /// `None` where no broker has the topic.
    pub fn route(&self, topic: &str) -> Option<TopicRoute> {
        let queues: Vec<QueueData> = self.topics.get(topic)?.values().cloned().collect();
        let brokers: Vec<BrokerData> = queues
            .iter()
            .filter_map(|q| self.brokers.get(&q.broker_name))
            .cloned()
            .collect();
        if brokers.is_empty() {
            return None;
        }
        let order_topic_conf = self
            .kv
            .get("ORDER_TOPIC_CONFIG")
            .and_then(|n| n.get(topic))
            .cloned();
        Some(TopicRoute {
            brokers,
            queues,
            order_topic_conf,
        })
    }
}
