//! The topics of one shard: configuration and open queues; auto-creation; `config/topics.json`.

use super::{BrokerConfig, Context};
use crate::ids::{NameMap, QueueIndex};
use crate::limits::{TOPIC_QUEUES_MAX, TOPICS_MAX};
use crate::protocol::bodies::{self, DataVersion, TopicConfig, TopicTable};
use crate::protocol::codes::ResponseCode;
use crate::protocol::names::{
    AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, CHECK_MAX_TOPIC, HALF_TOPIC, OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC, SCHEDULE_TOPIC, SELF_TEST_TOPIC, TRACE_TOPIC, check_topic, is_retry_or_dlq,
};
use crate::storage::Store;
use bytes::Bytes;
use std::rc::Rc;

pub const PERM_READ: u32 = 4;
pub const PERM_WRITE: u32 = 2;
pub const PERM_INHERIT: u32 = 1;
const FILE: &str = "config/topics.json";

#[derive(Debug)]
pub struct Topic {
    pub name: Rc<str>,
    pub config: TopicConfig,
    /// By queue id; filled when the queue is first used.
    queues: Vec<Option<QueueIndex>>,
}

/// Why a topic can't be had: the code and the remark of the answer.
pub type Refusal = (ResponseCode, String);

#[derive(Debug)]
pub struct Topics {
    table: NameMap<Topic>,
    version: DataVersion,
    broker_permission: u32,
}

/// Topics that exist on every broker. Source: apache/rocketmq `TopicConfigManager`.
fn system_topics(config: &BrokerConfig) -> Vec<TopicConfig> {
    let queues = config.default_topic_queue_nums;
    let mut topics = vec![
        TopicConfig::new(SELF_TEST_TOPIC, 1, 6),
        TopicConfig::new(BENCHMARK_TOPIC, TOPIC_QUEUES_MAX, 6),
        TopicConfig::new(&config.cluster_name, 16, 7),
        TopicConfig::new(&config.broker_name, 1, 7),
        TopicConfig::new(OFFSET_MOVED_TOPIC, 1, 6),
        TopicConfig::new(SCHEDULE_TOPIC, 18, 6),
        TopicConfig::new(HALF_TOPIC, 1, 6),
        TopicConfig::new(OP_HALF_TOPIC, 1, 6),
        TopicConfig::new(CHECK_MAX_TOPIC, 1, 6),
        TopicConfig::new(&format!("{}_REPLY_TOPIC", config.cluster_name), 1, 6),
    ];
    if config.auto_create_topics {
        topics.push(TopicConfig::new(AUTO_CREATE_TOPIC, queues, 7));
    }
    if config.trace_topic_enable {
        topics.push(TopicConfig::new(TRACE_TOPIC, 1, 6));
    }
    topics
}

impl Topics {
    /// The table of a new or an existing shard: what the file says, then the system topics that are missing.
    pub fn load(config: &BrokerConfig, file: Option<&[u8]>) -> Result<Self, String> {
        let stored: TopicTable = match file {
            Some(bytes) => bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?,
            None => TopicTable::default(),
        };
        let mut topics = Self {
            table: NameMap::default(),
            version: stored.data_version,
            broker_permission: config.permission,
        };
        for (name, mut topic) in stored.topic_config_table {
            if let Err(error) = check_topic(&name) {
                return Err(format!("{FILE}: topic {name:?}: {error}"));
            }
            topic.topic_name = name;
            topics.insert(topic);
        }
        for topic in system_topics(config) {
            // The queues of the template follow the configuration; the others keep what they have.
            if topic.topic_name == AUTO_CREATE_TOPIC
                || !topics.table.contains_key(&*topic.topic_name)
            {
                topics.insert(topic);
            }
        }
        if !config.auto_create_topics {
            topics.table.remove(AUTO_CREATE_TOPIC);
        }
        Ok(topics)
    }

    fn insert(&mut self, config: TopicConfig) {
        let name: Box<str> = config.topic_name.as_str().into();
        match self.table.get_mut(&name) {
            Some(topic) => topic.config = config,
            None => {
                let topic = Topic {
                    name: Rc::from(&*name),
                    config,
                    queues: Vec::new(),
                };
                self.table.insert(name, topic);
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&Topic> {
        self.table.get(name)
    }

    /// The open queue; `None` if the topic is unknown or the id is beyond max(read, write) queues.
    pub fn queue(&mut self, name: &str, queue_id: u32, store: &mut Store) -> Option<QueueIndex> {
        let topic = self.table.get_mut(name)?;
        if queue_id
            >= topic
                .config
                .read_queue_nums
                .max(topic.config.write_queue_nums)
        {
            return None;
        }
        let place = queue_id as usize;
        if topic.queues.len() <= place {
            topic.queues.resize(place + 1, None);
        }
        Some(*topic.queues[place].get_or_insert_with(|| store.open_queue(name, queue_id)))
    }

    /// Names, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.table.keys().map(|k| &**k).collect();
        names.sort_unstable();
        names
    }

    /// Creates or changes a topic, persists and registers.
    pub fn put(&mut self, config: TopicConfig, cx: &mut Context<'_>) -> Result<(), Refusal> {
        if self.table.len() >= TOPICS_MAX && !self.table.contains_key(&*config.topic_name) {
            let remark = format!(
                "this shard has {} topics, the limit is {TOPICS_MAX}",
                self.table.len()
            );
            return Err((ResponseCode::SYSTEM_ERROR, remark));
        }
        self.insert(config);
        self.changed(cx);
        Ok(())
    }

    fn changed(&mut self, cx: &mut Context<'_>) {
        self.version.bump(cx.now.wall_ms);
        cx.effects.register = true;
        cx.effects
            .files
            .push((FILE, self.stored().encode_file().into()));
    }

    /// Forgets a topic; false if it was not there.
    pub fn remove(&mut self, name: &str, cx: &mut Context<'_>) -> bool {
        let removed = self.table.remove(name).is_some();
        if removed {
            self.changed(cx);
        }
        removed
    }

    /// The topic for a send, created by the rules of auto-creation where it is missing (code 17 where it can't be).
    pub fn for_send(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        default_topic: &str,
        queue_nums: i32,
        cx: &mut Context<'_>,
    ) -> Result<&Topic, Refusal> {
        if !self.table.contains_key(name) {
            let created = self.created_like(config, name, default_topic, queue_nums)?;
            tracing::info!(
                topic = name,
                queues = created.write_queue_nums,
                "topic created by a first send"
            );
            cx.effects.created_topics.push(created.clone());
            self.put(created, cx)?;
        }
        let missing = || {
            (
                ResponseCode::TOPIC_NOT_EXIST,
                format!("topic[{name}] not exist, apply first please!"),
            )
        };
        self.table.get(name).ok_or_else(missing)
    }

    fn created_like(
        &self,
        config: &BrokerConfig,
        name: &str,
        default_topic: &str,
        queue_nums: i32,
    ) -> Result<TopicConfig, Refusal> {
        if is_retry_or_dlq(name) {
            return Ok(TopicConfig::new(name, 1, 6));
        }
        let template = self
            .table
            .get(default_topic)
            .filter(|t| t.config.perm & PERM_INHERIT != 0);
        let Some(template) = template.filter(|_| config.auto_create_topics) else {
            let remark = format!(
                "topic[{name}] not exist, apply first please! (autoCreateTopicEnable={}, template {default_topic})",
                config.auto_create_topics
            );
            return Err((ResponseCode::TOPIC_NOT_EXIST, remark));
        };
        let most = template.config.write_queue_nums;
        let queues = u32::try_from(queue_nums).unwrap_or(0).clamp(1, most.max(1));
        let mut topic = TopicConfig::new(name, queues, template.config.perm & !PERM_INHERIT);
        topic
            .topic_filter_type
            .clone_from(&template.config.topic_filter_type);
        Ok(topic)
    }

    /// Creates what another shard created by a first send; an existing topic stays as it is.
    pub fn adopt(&mut self, topic: TopicConfig, cx: &mut Context<'_>) {
        if self.table.contains_key(&*topic.topic_name) {
            return;
        }
        if let Err((_, reason)) = self.put(topic, cx) {
            tracing::warn!(reason, "a topic of another shard was not created");
        }
    }

    /// A `%RETRY%`/`%DLQ%` topic of a group, created if missing.
    pub fn ensure_group_topic(&mut self, name: &str, queue_nums: u32, cx: &mut Context<'_>) {
        if self.table.contains_key(name) || check_topic(name).is_err() {
            return;
        }
        if let Err((_, reason)) = self.put(TopicConfig::new(name, queue_nums.max(1), 6), cx) {
            tracing::warn!(topic = name, reason, "a group's topic was not created");
        }
    }

    /// The whole table.
    pub fn stored(&self) -> TopicTable {
        let topic_config_table = self
            .table
            .iter()
            .map(|(n, t)| (n.to_string(), t.config.clone()))
            .collect();
        TopicTable {
            data_version: self.version,
            topic_config_table,
        }
    }

    /// Whole RegisterBrokerBody as JSON for the name servers; permissions within those of the broker.
    pub fn registration_body(&self) -> Bytes {
        let mut table = self.stored();
        for topic in table.topic_config_table.values_mut() {
            topic.perm &= self.broker_permission | PERM_INHERIT;
        }
        table.encode_registration().into()
    }
}
