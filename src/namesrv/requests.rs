//! Which function answers which request of a name server.

use super::kv::ORDER_TOPIC_CONFIG;
use super::routes::{Queues, SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB};
use super::{Broker, NameServer, Source};
use crate::clock::Now;
use crate::limits::{FRAME_BYTES_MAX, NAMESRV_ROUTES_MAX, NAMESRV_TEXT_BYTES_MAX};
use crate::protocol::bodies::{
    self, BodyError, BrokerData, DataVersion, Dialect, Registration, RegistrationForm, TopicList,
    TopicRoute, TopicTable,
};
use crate::protocol::codes::{RequestCode as Code, ResponseCode};
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::{Response, ResponseHeader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// From V4_9_4 on, clients read standard JSON. Source: apache/rocketmq `ClientRequestProcessor`.
const STRICT_JSON_VERSION: i32 = 401;
/// From V3_0_11 on, the body of a registration has filter servers beside the topics.
const REGISTRATION_BODY_VERSION: i32 = 37;
/// Largest body of an answer: a frame, less its header.
const BODY_BYTES_MAX: usize = (FRAME_BYTES_MAX - 64 * 1024) as usize;

/// A request that can't be answered as asked.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Field(#[from] FieldError),
    #[error("{0}")]
    Body(#[from] BodyError),
    #[error("{0}")]
    Text(String),
}

type Answer = Result<Response, Refusal>;

fn fields(pairs: Vec<(&'static str, String)>) -> Response {
    Response::with_header(ResponseHeader::Fields(pairs))
}

fn topic_list(topics: Vec<String>) -> Response {
    Response::with_body(bodies::encode(&TopicList {
        topic_list: topics,
        broker_addr: None,
    }))
}

impl NameServer {
    /// Answers one request; `None` for one-way ones and for answers. `source` is the connection that it came over.
    pub fn handle(&mut self, command: &Command<'_>, source: Source, now: Now) -> Option<Response> {
        if command.is_response() {
            return None;
        }
        let answer = self.answer(command, source, now).unwrap_or_else(|error| {
            let remark = error.to_string();
            if Code(command.code) == Code::REGISTER_BROKER {
                // Brokers register one-way or log the answer deep down; a missing broker is missed here.
                let address = command.text("brokerAddr").unwrap_or("unknown address");
                self.refused = Some(format!("{address:.255}: {remark}"));
            }
            Response::error(ResponseCode::SYSTEM_ERROR, remark)
        });
        if command.is_one_way() {
            return None;
        }
        if answer.body_bytes() > BODY_BYTES_MAX {
            let remark = format!(
                "the answer has {} bytes, the limit is {BODY_BYTES_MAX}",
                answer.body_bytes()
            );
            return Some(Response::error(ResponseCode::SYSTEM_ERROR, remark));
        }
        Some(answer)
    }

    fn answer(&mut self, command: &Command<'_>, source: Source, now: Now) -> Answer {
        match Code(command.code) {
            Code::REGISTER_BROKER => self.on_register(command, source, now),
            Code::UNREGISTER_BROKER => self.on_unregister(command),
            Code::GET_ROUTEINFO_BY_TOPIC => self.on_route(command),
            Code::GET_BROKER_CLUSTER_INFO => {
                let body = bodies::encode_cluster_info(&self.routes.brokers());
                Ok(Response::with_body(body))
            }
            Code::PUT_KV_CONFIG => self.put_kv(command),
            Code::GET_KV_CONFIG => self.get_kv(command),
            Code::DELETE_KV_CONFIG => self.delete_kv(command),
            Code::GET_KVLIST_BY_NAMESPACE => self.kv_list(command),
            Code::WIPE_WRITE_PERM_OF_BROKER => self.set_write_permission(command, false),
            Code::ADD_WRITE_PERM_OF_BROKER => self.set_write_permission(command, true),
            Code::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => Ok(self.flagged_topics(|_| true)),
            Code::GET_UNIT_TOPIC_LIST => Ok(self.flagged_topics(|f| f & SYS_FLAG_UNIT != 0)),
            Code::GET_HAS_UNIT_SUB_TOPIC_LIST => {
                Ok(self.flagged_topics(|f| f & SYS_FLAG_UNIT_SUB != 0))
            }
            Code::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => Ok(self
                .flagged_topics(|f| f & (SYS_FLAG_UNIT | SYS_FLAG_UNIT_SUB) == SYS_FLAG_UNIT_SUB)),
            Code::GET_TOPICS_BY_CLUSTER => {
                let cluster = command.require_text("cluster")?;
                Ok(topic_list(self.routes.topics_of_cluster(cluster)))
            }
            Code::GET_SYSTEM_TOPIC_LIST_FROM_NS => Ok(self.system_topics()),
            Code::DELETE_TOPIC_IN_NAMESRV => {
                let cluster = command.text("clusterName").filter(|c| !c.is_empty());
                let topic = command.require_text("topic")?;
                self.routes.delete_topic(topic, cluster);
                Ok(Response::success())
            }
            Code::REGISTER_TOPIC_IN_NAMESRV => self.register_topic(command),
            Code::QUERY_DATA_VERSION => self.data_version(command, now),
            Code::BROKER_HEARTBEAT => self.on_heartbeat(command, now),
            Code::GET_BROKER_MEMBER_GROUP => self.member_group(command),
            Code::GET_NAMESRV_CONFIG => Ok(Response::with_body(self.properties())),
            Code::UPDATE_NAMESRV_CONFIG => Ok(Response::error(
                ResponseCode::NO_PERMISSION,
                "the name server's configuration can't be changed over the wire",
            )),
            code => Ok(Response::error(
                ResponseCode::REQUEST_CODE_NOT_SUPPORTED,
                format!(" request type {} not supported", code.0),
            )),
        }
    }

    fn on_register(&mut self, command: &Command<'_>, source: Source, now: Now) -> Answer {
        let announced = command.i32("bodyCrc32")?;
        bodies::check_body_crc(command.body, announced.map(i32::cast_unsigned))?;
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
            acting_master: command.bool("enableActingMaster"),
        };
        let table = registered_topics(command)?;
        let master = self
            .register(&broker, &table, source, now)
            .map_err(Refusal::Text)?;
        let mut pairs = Vec::new();
        if !master.address.is_empty() {
            pairs.push(("haServerAddr", master.ha_address));
            pairs.push(("masterAddr", master.address));
        }
        let mut response = fields(pairs);
        // Without the namespace there is no body: the broker would take "no topic is in order" from an empty table.
        if let Some(table) = self.kv.namespace(ORDER_TOPIC_CONFIG) {
            response.body = Response::with_body(bodies::encode(&table)).body;
        }
        Ok(response)
    }

    fn on_unregister(&mut self, command: &Command<'_>) -> Answer {
        let name = command.require_text("brokerName")?;
        let address = command.require_text("brokerAddr")?;
        self.routes.unregister(name, address);
        Ok(Response::success())
    }

    fn on_route(&self, command: &Command<'_>) -> Answer {
        let topic = command.require_text("topic")?;
        let order = self.kv.get(ORDER_TOPIC_CONFIG, topic);
        let order = order.filter(|_| self.settings.order_message_enable);
        let Some(route) = self.routes.route(topic, order) else {
            // Java and Go clients fall back to the default topic on code 17 and nothing else.
            let remark = format!(
                "No topic route info in name server for the topic: {topic}\n\
                 See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
            );
            return Ok(Response::error(ResponseCode::TOPIC_NOT_EXIST, remark));
        };
        let is_strict = command.version >= STRICT_JSON_VERSION
            || command.bool("acceptStandardJsonOnly").unwrap_or(false);
        let dialect = if is_strict {
            Dialect::Strict
        } else {
            Dialect::Fastjson
        };
        Ok(Response::with_body(route.encode(dialect)))
    }

    fn put_kv(&mut self, command: &Command<'_>) -> Answer {
        let (namespace, key) = namespace_and_key(command)?;
        let value = command.require_text("value")?;
        self.kv.put(namespace, key, value).map_err(Refusal::Text)?;
        Ok(Response::success())
    }

    fn get_kv(&self, command: &Command<'_>) -> Answer {
        let (namespace, key) = namespace_and_key(command)?;
        Ok(match self.kv.get(namespace, key) {
            Some(value) => fields(vec![("value", value.to_owned())]),
            None => {
                let remark = format!("No config item, Namespace: {namespace} Key: {key}");
                Response::error(ResponseCode::QUERY_NOT_FOUND, remark)
            }
        })
    }

    fn delete_kv(&mut self, command: &Command<'_>) -> Answer {
        let (namespace, key) = namespace_and_key(command)?;
        self.kv.delete(namespace, key);
        Ok(Response::success())
    }

    fn kv_list(&self, command: &Command<'_>) -> Answer {
        let namespace = command.require_text("namespace")?;
        Ok(match self.kv.namespace(namespace) {
            Some(table) => Response::with_body(bodies::encode(&table)),
            None => {
                let remark = format!("No config item, Namespace: {namespace}");
                Response::error(ResponseCode::QUERY_NOT_FOUND, remark)
            }
        })
    }

    fn set_write_permission(&mut self, command: &Command<'_>, is_given: bool) -> Answer {
        let broker = command.require_text("brokerName")?;
        let count = self.routes.set_write_permission(broker, is_given);
        let name = if is_given {
            "addTopicCount"
        } else {
            "wipeTopicCount"
        };
        Ok(fields(vec![(name, count.to_string())]))
    }

    fn flagged_topics(&self, is_wanted: impl Fn(i32) -> bool) -> Response {
        topic_list(self.routes.topics_with_flag(is_wanted))
    }

    /// Names of clusters and brokers, which are topics too, and the address of some broker.
    fn system_topics(&self) -> Response {
        let groups = &self.routes.groups;
        let mut names = BTreeSet::new();
        for (name, group) in groups {
            names.extend([group.cluster.as_str(), name]);
        }
        let mut members = groups.values().flat_map(|g| g.members.values());
        Response::with_body(bodies::encode(&TopicList {
            topic_list: names.into_iter().map(str::to_owned).collect(),
            broker_addr: members.next().map(|m| m.address.clone()),
        }))
    }

    /// Adds a topic at brokers that are registered. Apache answers 0 also where it did nothing.
    fn register_topic(&mut self, command: &Command<'_>) -> Answer {
        let topic = command.require_text("topic")?;
        if topic.is_empty() || topic.len() > NAMESRV_TEXT_BYTES_MAX {
            let bytes = topic.len();
            return Err(Refusal::Text(format!("a topic name of {bytes} bytes")));
        }
        let route: TopicRoute = bodies::decode(command.body)?;
        let mut entries: Vec<(Arc<str>, Queues)> = Vec::new();
        for queue in &route.queues {
            let Some((name, _)) = self.routes.groups.get_key_value(queue.broker_name.as_str())
            else {
                let broker = &queue.broker_name;
                return Err(Refusal::Text(format!(
                    "broker {broker:.255} is not registered"
                )));
            };
            entries.push((Arc::clone(name), Queues::from(queue)));
        }
        if self.routes.pairs + entries.len() > NAMESRV_ROUTES_MAX {
            return Err(Refusal::Text(format!(
                "all brokers together have {} topics, the limit is {NAMESRV_ROUTES_MAX}",
                self.routes.pairs
            )));
        }
        for (broker, queues) in entries {
            self.routes.put(topic, &broker, queues);
        }
        Ok(Response::success())
    }

    /// Whether the broker has to register; asking counts as a sign of life.
    fn data_version(&mut self, command: &Command<'_>, now: Now) -> Answer {
        let (cluster, name) = (
            command.require_text("clusterName")?,
            command.require_text("brokerName")?,
        );
        let address = command.require_text("brokerAddr")?;
        let asked: DataVersion = bodies::decode(command.body)?;
        let Some(member) = self.routes.member_mut(cluster, name, address) else {
            return Ok(fields(vec![("changed", true.to_string())]));
        };
        member.expires_us = now.monotonic_us.saturating_add(member.timeout_us);
        let is_changed = member.version != asked;
        let mut response = fields(vec![("changed", is_changed.to_string())]);
        response.body = Response::with_body(bodies::encode(&member.version)).body;
        Ok(response)
    }

    /// A broker that is not registered gets a success too: it registers every 30 s anyway.
    fn on_heartbeat(&mut self, command: &Command<'_>, now: Now) -> Answer {
        let (cluster, name) = (
            command.require_text("clusterName")?,
            command.require_text("brokerName")?,
        );
        let address = command.require_text("brokerAddr")?;
        if let Some(member) = self.routes.member_mut(cluster, name, address) {
            member.expires_us = now.monotonic_us.saturating_add(member.timeout_us);
        }
        Ok(Response::success())
    }

    fn member_group(&self, command: &Command<'_>) -> Answer {
        let (cluster, name) = (
            command.require_text("clusterName")?,
            command.require_text("brokerName")?,
        );
        let group = self.routes.broker(name).unwrap_or_else(|| BrokerData {
            cluster: cluster.to_owned(),
            broker_name: name.to_owned(),
            addresses: BTreeMap::new(),
        });
        Ok(Response::with_body(bodies::encode_member_group(&group)))
    }

    /// Answer to 319, in Apache's names where it has one.
    fn properties(&self) -> String {
        let settings = &self.settings;
        format!(
            "deleteTopicWithBrokerRegistration={}\nenableAllTopicList=true\nenableTopicList=true\nlistenPort={}\n\
             needWaitForService=false\norderMessageEnable={}\nreturnOrderTopicConfigToBroker=true\n\
             supportActingMaster=false\n",
            settings.delete_topic_with_broker_registration,
            settings.listen_port,
            settings.order_message_enable
        )
    }
}

fn namespace_and_key<'a>(command: &Command<'a>) -> Result<(&'a str, &'a str), FieldError> {
    Ok((
        command.require_text("namespace")?,
        command.require_text("key")?,
    ))
}

/// The topics in the body of a registration; none where there is no body.
fn registered_topics(command: &Command<'_>) -> Result<TopicTable, BodyError> {
    if command.body.is_empty() {
        return Ok(TopicTable::default());
    }
    let form = registration_form(command);
    let registration = Registration::decode(command.body, form)?;
    let table = registration.topic_config_serialize_wrapper;
    let is_old = command.version < REGISTRATION_BODY_VERSION && form == RegistrationForm::Json;
    if is_old && table == TopicTable::default() {
        // The old form is the table alone. Tools that send no version have the new one.
        return bodies::decode(command.body);
    }
    Ok(table)
}

/// Told by the body, which is JSON or a zlib stream: brokers of 5.x say `compressed=false` whatever they send
/// (apache/rocketmq 5.3 `BrokerOuterAPI#registerBrokerAll`), and fail at stock name servers with
/// `compressedRegister=true`.
fn registration_form(command: &Command<'_>) -> RegistrationForm {
    let is_zlib = matches!(*command.body, [first, second, ..]
        if first & 0x0F == 8 && u16::from_be_bytes([first, second]) % 31 == 0);
    if is_zlib || (command.bool("compressed") == Some(true) && !command.body.starts_with(b"{")) {
        RegistrationForm::Compressed
    } else {
        RegistrationForm::Json
    }
}
