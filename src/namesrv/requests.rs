//! Which function answers which request of a name server.

use super::{Broker, KV_ENTRIES_MAX, NameServer, Source};
use crate::clock::Now;
use crate::protocol::bodies::{self, DataVersion, Dialect, KvTable, Registration, TopicList};
use crate::protocol::codes::{RequestCode as Code, ResponseCode};
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::{Response, ResponseHeader};
use std::collections::BTreeMap;

/// From V4_9_4 on, clients read standard JSON. Source: apache/rocketmq `ClientRequestProcessor`.
const STRICT_JSON_VERSION: i32 = 401;
const WRITE: u32 = 2;

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data is JSON")
}

fn fields(pairs: Vec<(&'static str, String)>) -> Response {
    Response::with_header(ResponseHeader::Fields(pairs))
}

impl NameServer {
    /// Answers one request; `None` for one-way ones.
    pub fn handle(&mut self, command: &Command<'_>, source: Source, now: Now) -> Option<Response> {
        if command.is_response() {
            return None;
        }
        let answer = self
            .answer(command, source, now)
            .unwrap_or_else(|error| Response::error(ResponseCode::SYSTEM_ERROR, error.to_string()));
        (!command.is_one_way()).then_some(answer)
    }

    fn answer(
        &mut self,
        command: &Command<'_>,
        source: Source,
        now: Now,
    ) -> Result<Response, FieldError> {
        match Code(command.code) {
            Code::REGISTER_BROKER => self.on_register(command, source, now),
            Code::UNREGISTER_BROKER => {
                self.drop_broker(command.require_text("brokerAddr")?);
                Ok(Response::success())
            }
            Code::GET_ROUTEINFO_BY_TOPIC => self.on_route(command),
            Code::GET_BROKER_CLUSTER_INFO => Ok(Response::with_body(bodies::encode_cluster_info(
                &self.brokers,
            ))),
            Code::PUT_KV_CONFIG => self.put_kv(command),
            Code::GET_KV_CONFIG => self.get_kv(command),
            Code::DELETE_KV_CONFIG => self.delete_kv(command),
            Code::GET_KVLIST_BY_NAMESPACE => self.kv_list(command),
            Code::WIPE_WRITE_PERM_OF_BROKER => self.write_permission(command, false),
            Code::ADD_WRITE_PERM_OF_BROKER => self.write_permission(command, true),
            Code::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => {
                Ok(topic_list(self.topics.keys().cloned().collect()))
            }
            Code::GET_TOPICS_BY_CLUSTER => self.topics_of_cluster(command),
            Code::GET_SYSTEM_TOPIC_LIST_FROM_NS => Ok(self.system_topics()),
            Code::GET_UNIT_TOPIC_LIST
            | Code::GET_HAS_UNIT_SUB_TOPIC_LIST
            | Code::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => Ok(topic_list(Vec::new())),
            Code::DELETE_TOPIC_IN_NAMESRV => self.delete_topic(command),
            Code::QUERY_DATA_VERSION => self.data_version(command, now),
            Code::BROKER_HEARTBEAT => {
                self.refresh(command.require_text("brokerAddr")?, now);
                Ok(Response::success())
            }
            Code::GET_BROKER_MEMBER_GROUP => self.member_group(command),
            Code::GET_NAMESRV_CONFIG => Ok(Response::with_body("kvConfigPath=kvConfig.json\n")),
            Code::UPDATE_NAMESRV_CONFIG => {
                let remark = "the name server's configuration can't be changed over the wire";
                Ok(Response::error(ResponseCode::NO_PERMISSION, remark))
            }
            code => {
                let name = code.name().map(|n| format!(" ({n})")).unwrap_or_default();
                let remark = format!(" request type {}{name} not supported", code.0);
                Ok(Response::error(
                    ResponseCode::REQUEST_CODE_NOT_SUPPORTED,
                    remark,
                ))
            }
        }
    }

    fn on_register(
        &mut self,
        command: &Command<'_>,
        source: Source,
        now: Now,
    ) -> Result<Response, FieldError> {
        let refuse = |remark: String| Ok(Response::error(ResponseCode::SYSTEM_ERROR, remark));
        let crc = command.i32("bodyCrc32")?.unwrap_or(0);
        let computed = crate::protocol::hash::body_crc(command.body) as i32;
        if crc != 0 && crc != computed {
            return refuse(format!(
                "the body's CRC is {computed}, the header says {crc}"
            ));
        }
        let broker = Broker {
            cluster: command.require_text("clusterName")?,
            name: command.require_text("brokerName")?,
            id: command.require_i64("brokerId")?,
            address: command.require_text("brokerAddr")?,
            ha_address: command.text("haServerAddr").unwrap_or_default(),
            timeout_ms: command
                .i64("heartbeatTimeoutMillis")?
                .and_then(|ms| u64::try_from(ms).ok())
                .filter(|ms| *ms > 0),
        };
        let registration = if command.body.is_empty() {
            Ok(Registration::default())
        } else if command.bool("compressed").unwrap_or(false) {
            Registration::decode_compressed(command.body)
        } else {
            bodies::decode(command.body)
        };
        let registration = match registration {
            Ok(registration) => registration,
            Err(error) => return refuse(format!("registration of {}: {error}", broker.name)),
        };
        match self.register(&broker, registration, source, now) {
            Err(reason) => refuse(reason),
            Ok((master, ha)) => {
                let mut response = fields(vec![("haServerAddr", ha), ("masterAddr", master)]);
                response.body =
                    Response::with_body(json(&self.kv_table("ORDER_TOPIC_CONFIG"))).body;
                Ok(response)
            }
        }
    }

    fn on_route(&self, command: &Command<'_>) -> Result<Response, FieldError> {
        let topic = command.require_text("topic")?;
        let Some(route) = self.route(topic) else {
            let remark = format!("No topic route info in name server for the topic: {topic}");
            return Ok(Response::error(ResponseCode::TOPIC_NOT_EXIST, remark));
        };
        let strict = command.version >= STRICT_JSON_VERSION
            || command.bool("acceptStandardJsonOnly").unwrap_or(false);
        let dialect = if strict {
            Dialect::Strict
        } else {
            Dialect::Fastjson
        };
        Ok(Response::with_body(route.encode(dialect)))
    }

    fn kv_table(&self, namespace: &str) -> KvTable<'_> {
        let pairs = self.kv.get(namespace).into_iter().flatten();
        KvTable {
            table: pairs.map(|(k, v)| (k.as_str(), v.as_str())).collect(),
        }
    }

    fn put_kv(&mut self, command: &Command<'_>) -> Result<Response, FieldError> {
        let (namespace, key) = (
            command.require_text("namespace")?,
            command.require_text("key")?,
        );
        let value = command.require_text("value")?;
        let count: usize = self.kv.values().map(BTreeMap::len).sum();
        if count >= KV_ENTRIES_MAX {
            let remark = format!(
                "{count} entries in the key-value configuration, the limit is {KV_ENTRIES_MAX}"
            );
            return Ok(Response::error(ResponseCode::SYSTEM_ERROR, remark));
        }
        self.kv
            .entry(namespace.to_owned())
            .or_default()
            .insert(key.to_owned(), value.to_owned());
        self.kv_changed = true;
        Ok(Response::success())
    }

    fn get_kv(&self, command: &Command<'_>) -> Result<Response, FieldError> {
        let (namespace, key) = (
            command.require_text("namespace")?,
            command.require_text("key")?,
        );
        Ok(match self.kv.get(namespace).and_then(|n| n.get(key)) {
            Some(value) => fields(vec![("value", value.clone())]),
            None => {
                let remark = format!("No config item, Namespace: {namespace} Key: {key}");
                Response::error(ResponseCode::QUERY_NOT_FOUND, remark)
            }
        })
    }

    fn delete_kv(&mut self, command: &Command<'_>) -> Result<Response, FieldError> {
        let (namespace, key) = (
            command.require_text("namespace")?,
            command.require_text("key")?,
        );
        if let Some(table) = self.kv.get_mut(namespace) {
            self.kv_changed |= table.remove(key).is_some();
        }
        Ok(Response::success())
    }

    fn kv_list(&self, command: &Command<'_>) -> Result<Response, FieldError> {
        let namespace = command.require_text("namespace")?;
        if !self.kv.contains_key(namespace) {
            let remark = format!("No config item, Namespace: {namespace}");
            return Ok(Response::error(ResponseCode::QUERY_NOT_FOUND, remark));
        }
        Ok(Response::with_body(json(&self.kv_table(namespace))))
    }

    /// Until the broker registers again, as with stock name servers.
    fn write_permission(
        &mut self,
        command: &Command<'_>,
        add: bool,
    ) -> Result<Response, FieldError> {
        let broker = command.require_text("brokerName")?;
        let mut count = 0;
        for queue in self.topics.values_mut().filter_map(|q| q.get_mut(broker)) {
            queue.perm = if add {
                queue.perm | WRITE
            } else {
                queue.perm & !WRITE
            };
            count += 1;
        }
        let name = if add {
            "addTopicCount"
        } else {
            "wipeTopicCount"
        };
        Ok(fields(vec![(name, count.to_string())]))
    }

    fn topics_of_cluster(&self, command: &Command<'_>) -> Result<Response, FieldError> {
        let cluster = command.require_text("cluster")?;
        let inside = |name: &String| self.brokers.get(name).is_some_and(|b| b.cluster == cluster);
        let topics = self
            .topics
            .iter()
            .filter(|(_, queues)| queues.keys().any(inside));
        Ok(topic_list(topics.map(|(t, _)| t.clone()).collect()))
    }

    fn system_topics(&self) -> Response {
        let mut names: Vec<String> = self
            .brokers
            .values()
            .flat_map(|b| [b.cluster.clone(), b.broker_name.clone()])
            .collect();
        names.sort();
        names.dedup();
        let broker_addr = self
            .brokers
            .values()
            .find_map(|b| b.addresses.get(&0))
            .cloned();
        Response::with_body(json(&TopicList {
            topic_list: names,
            broker_addr,
        }))
    }

    fn delete_topic(&mut self, command: &Command<'_>) -> Result<Response, FieldError> {
        let topic = command.require_text("topic")?;
        match command.text("clusterName").filter(|c| !c.is_empty()) {
            None => {
                self.topics.remove(topic);
            }
            Some(cluster) => {
                let brokers = &self.brokers;
                if let Some(queues) = self.topics.get_mut(topic) {
                    queues.retain(|name, _| brokers.get(name).is_none_or(|b| b.cluster != cluster));
                    if queues.is_empty() {
                        self.topics.remove(topic);
                    }
                }
            }
        }
        Ok(Response::success())
    }

    fn data_version(&mut self, command: &Command<'_>, now: Now) -> Result<Response, FieldError> {
        let address = command.require_text("brokerAddr")?;
        let asked: DataVersion = bodies::decode(command.body).unwrap_or_default();
        let known = self.live.get(address).map(|l| l.version);
        let changed = known != Some(asked);
        if !changed {
            self.refresh(address, now);
        }
        let mut response = fields(vec![("changed", changed.to_string())]);
        if let Some(known) = known {
            response.body = Response::with_body(json(&known)).body;
        }
        Ok(response)
    }

    fn member_group(&self, command: &Command<'_>) -> Result<Response, FieldError> {
        let (cluster, name) = (
            command.require_text("clusterName")?,
            command.require_text("brokerName")?,
        );
        let empty = || bodies::BrokerData {
            cluster: cluster.to_owned(),
            broker_name: name.to_owned(),
            addresses: BTreeMap::new(),
        };
        let group = self.brokers.get(name).cloned().unwrap_or_else(empty);
        Ok(Response::with_body(bodies::encode_member_group(&group)))
    }
}

fn topic_list(topics: Vec<String>) -> Response {
    Response::with_body(json(&TopicList {
        topic_list: topics,
        broker_addr: None,
    }))
}
