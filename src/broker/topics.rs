//! The topics of one shard: configuration and open queues; auto-creation; `config/topics.json`.
//!
//! **Owned by**: one shard. A change bumps the version of the table and asks for registration at once; the file is
//! replaced once per turn ([`Topics::persist`]), however many topics changed in it.

use super::{BrokerConfig, Context};
use crate::ids::{NameMap, QueueIndex};
use crate::limits::{QUEUES_OPEN_MAX, TOPIC_QUEUES_MAX, TOPICS_MAX};
use crate::protocol::bodies::{DataVersion, TopicConfig, TopicTable};
use crate::protocol::codes::ResponseCode;
use crate::protocol::names::{
    AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, CHECK_MAX_TOPIC, HALF_TOPIC, OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC, REPLY_TOPIC_SUFFIX, SCHEDULE_TOPIC, SELF_TEST_TOPIC, TRACE_TOPIC, check_topic,
    is_retry_or_dlq, is_system_topic,
};
use crate::storage::Store;
use bytes::Bytes;
use serde_json::{Map, Value};
use std::rc::Rc;

mod file;
#[cfg(test)]
mod tests;

pub const PERM_READ: u32 = 4;
pub const PERM_WRITE: u32 = 2;
pub const PERM_INHERIT: u32 = 1;

/// Queues of the topic that is named like the cluster. Source: apache/rocketmq `TopicConfig.defaultReadQueueNums`.
const CLUSTER_TOPIC_QUEUES: u32 = 16;
/// One per delay level. Source: apache/rocketmq `TopicConfigManager.SCHEDULE_TOPIC_QUEUE_NUM`.
const SCHEDULE_TOPIC_QUEUES: u32 = 18;

#[derive(Debug)]
pub struct Topic {
    pub name: Rc<str>,
    pub config: TopicConfig,
    /// Keys of the file that this version doesn't know.
    other: Map<String, Value>,
    /// By queue id; filled when the queue is first used.
    queues: Vec<Option<QueueIndex>>,
}

/// Why a topic can't be had: the code and the remark of the answer.
pub type Refusal = (ResponseCode, String);

/// All topics of a shard.
///
/// **Invariants**: every name in the table passes `check_topic`; no topic has more than `TOPIC_QUEUES_MAX` queues.
#[derive(Debug)]
pub struct Topics {
    table: NameMap<Topic>,
    version: DataVersion,
    broker_permission: u32,
    /// Names that the configuration makes system topics: cluster, broker, the cluster's replies.
    own_names: [String; 3],
    kept: file::Kept,
    /// Queues that were opened, over all topics; those of deleted topics count on.
    queues_opened: usize,
    /// The file is behind the table.
    is_dirty: bool,
    /// The table may differ from what the life before this one registered under the same version.
    is_new: bool,
}

/// Topics that exist on every broker. Source: apache/rocketmq 5.3.x `TopicConfigManager` `init`.
fn system_topics(config: &BrokerConfig) -> Vec<TopicConfig> {
    let queues = config.default_topic_queue_nums;
    let mut topics = vec![
        TopicConfig::new(SELF_TEST_TOPIC, 1, 6),
        TopicConfig::new(BENCHMARK_TOPIC, 1024, 6),
        TopicConfig::new(&config.cluster_name, CLUSTER_TOPIC_QUEUES, 7),
        TopicConfig::new(&config.broker_name, 1, 7),
        TopicConfig::new(OFFSET_MOVED_TOPIC, 1, 6),
        TopicConfig::new(SCHEDULE_TOPIC, SCHEDULE_TOPIC_QUEUES, 6),
        TopicConfig::new(HALF_TOPIC, 1, 6),
        TopicConfig::new(OP_HALF_TOPIC, 1, 6),
        TopicConfig::new(CHECK_MAX_TOPIC, 1, 6),
        TopicConfig::new(&reply_topic(config), 1, 6),
    ];
    if config.auto_create_topics {
        topics.push(TopicConfig::new(AUTO_CREATE_TOPIC, queues, 7));
    }
    if config.trace_topic_enable {
        topics.push(TopicConfig::new(TRACE_TOPIC, 1, 6));
    }
    topics
}

fn reply_topic(config: &BrokerConfig) -> String {
    format!("{}{REPLY_TOPIC_SUFFIX}", config.cluster_name)
}

impl Topics {
    /// The table of a new or an existing shard: what the file says, then the system topics that are missing.
    /// **Errors**: the file can't be used, see [`file::load`].
    pub fn load(config: &BrokerConfig, bytes: Option<&[u8]>) -> Result<Self, String> {
        let loaded = match bytes {
            Some(bytes) => file::load(bytes)?,
            None => file::Loaded::default(),
        };
        let mut topics = Self {
            table: NameMap::default(),
            version: loaded.version,
            broker_permission: config.permission,
            own_names: [
                config.cluster_name.clone(),
                config.broker_name.clone(),
                reply_topic(config),
            ],
            kept: loaded.kept,
            queues_opened: 0,
            is_dirty: true,
            is_new: true,
        };
        for stored in loaded.topics {
            topics.insert(stored.config, stored.other);
        }
        for topic in system_topics(config) {
            // The queues of the template follow the configuration; the others keep what they have.
            if topic.topic_name == AUTO_CREATE_TOPIC || topics.get(&topic.topic_name).is_none() {
                topics.insert(topic, Map::new());
            }
        }
        if !config.auto_create_topics {
            topics.table.remove(AUTO_CREATE_TOPIC);
        }
        Ok(topics)
    }

    fn insert(&mut self, config: TopicConfig, other: Map<String, Value>) {
        if let Some(topic) = self.table.get_mut(config.topic_name.as_str()) {
            topic.config = config;
            return;
        }
        let name: Box<str> = config.topic_name.as_str().into();
        let topic = Topic {
            name: Rc::from(&*name),
            config,
            other,
            queues: Vec::new(),
        };
        self.table.insert(name, topic);
    }

    pub fn get(&self, name: &str) -> Option<&Topic> {
        self.table.get(name)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn version(&self) -> DataVersion {
        self.version
    }

    /// System topics can't be changed or deleted by clients; those named after the configuration are among them.
    pub fn is_system(&self, name: &str) -> bool {
        is_system_topic(name) || self.own_names.iter().any(|own| own == name)
    }

    /// The open queue; `None` if the topic is unknown, the id is beyond max(read, write) queues, or this shard has
    /// opened as many queues as it may.
    pub fn queue(&mut self, name: &str, queue_id: u32, store: &mut Store) -> Option<QueueIndex> {
        let topic = self.table.get_mut(name)?;
        let config = &topic.config;
        if queue_id >= config.read_queue_nums.max(config.write_queue_nums) {
            return None;
        }
        let place = queue_id as usize;
        if let Some(Some(queue)) = topic.queues.get(place) {
            return Some(*queue);
        }
        if self.queues_opened >= QUEUES_OPEN_MAX && store.queue(name, queue_id).is_none() {
            return None;
        }
        if topic.queues.len() <= place {
            topic.queues.resize(place + 1, None);
        }
        let queue = store.open_queue(name, queue_id);
        topic.queues[place] = Some(queue);
        self.queues_opened += 1;
        Some(queue)
    }

    /// The queues of a topic that were opened so far.
    pub fn open_queues(&self, name: &str) -> Vec<QueueIndex> {
        let queues = self.table.get(name).map(|topic| &topic.queues);
        queues.into_iter().flatten().copied().flatten().collect()
    }

    /// Names, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.table.keys().map(|k| &**k).collect();
        names.sort_unstable();
        names
    }

    /// Creates or changes a topic, persists and registers; one that stays as it is does neither. Returns whether it
    /// changed.
    ///
    /// **Errors**: 29 for a name or a number of queues that is not allowed; 1 at the limit of topics. Callers check
    /// names first, for a better text; here is where no other name gets past.
    pub fn put(&mut self, config: TopicConfig, cx: &mut Context<'_>) -> Result<bool, Refusal> {
        self.check_put(&config)?;
        let known = self.table.get(config.topic_name.as_str());
        if known.is_some_and(|topic| topic.config == config) {
            return Ok(false);
        }
        self.insert(config, Map::new());
        self.changed(cx);
        Ok(true)
    }

    fn check_put(&self, config: &TopicConfig) -> Result<(), Refusal> {
        let name = &config.topic_name;
        check_topic(name).map_err(|e| (ResponseCode::INVALID_PARAMETER, e.to_string()))?;
        let queues = config.read_queue_nums.max(config.write_queue_nums);
        if queues > TOPIC_QUEUES_MAX {
            let remark = format!(
                "topic[{name}] has {queues} queues, allowed are at most {TOPIC_QUEUES_MAX}"
            );
            return Err((ResponseCode::INVALID_PARAMETER, remark));
        }
        if self.table.len() >= TOPICS_MAX && !self.table.contains_key(name.as_str()) {
            let remark = format!(
                "topic[{name}] can't be created: this shard has {TOPICS_MAX} topics, the limit"
            );
            return Err((ResponseCode::SYSTEM_ERROR, remark));
        }
        Ok(())
    }

    /// How many more topics there may be.
    pub fn room(&self) -> usize {
        TOPICS_MAX.saturating_sub(self.table.len())
    }

    fn changed(&mut self, cx: &mut Context<'_>) {
        self.version.bump(cx.now.wall_ms);
        self.is_dirty = true;
        cx.effects.register = true;
    }

    /// Replaces the file if the table has changed, at the end of a turn.
    ///
    /// The first time in a process it also bumps the version: system topics and permissions may differ from what
    /// name servers know under the old one, and those keep what they have while the version is equal.
    pub fn persist(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.is_new) {
            self.changed(cx);
        }
        if std::mem::take(&mut self.is_dirty) {
            let contents = file::encode(&self.version, self.table.values(), &self.kept);
            cx.effects.files.push((file::FILE, contents.into()));
        }
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
            self.put(created.clone(), cx)?;
            tracing::info!(
                topic = name,
                queues = created.write_queue_nums,
                "topic created by a first send"
            );
            cx.effects.created_topics.push(created);
        }
        self.table
            .get(name)
            .ok_or_else(|| missing(name, "it was not created"))
    }

    /// A new topic after a template with the inherit bit; retry and dead-letter topics need none.
    ///
    /// **Source**: apache/rocketmq 5.3.x `TopicConfigManager#createTopicInSendMessageMethod`.
    fn created_like(
        &self,
        config: &BrokerConfig,
        name: &str,
        default_topic: &str,
        queue_nums: i32,
    ) -> Result<TopicConfig, Refusal> {
        if is_retry_or_dlq(name) {
            return Ok(TopicConfig::new(name, 1, PERM_READ | PERM_WRITE));
        }
        if !config.auto_create_topics {
            return Err(missing(name, "autoCreateTopicEnable is false"));
        }
        let template = self.table.get(default_topic).map(|topic| &topic.config);
        let template = template.filter(|template| template.perm & PERM_INHERIT != 0);
        let Some(template) = template else {
            let why = format!("topic[{default_topic}] is no template for others");
            return Err(missing(name, &why));
        };
        let queues = u32::try_from(queue_nums).unwrap_or(0);
        let queues = queues.min(template.write_queue_nums).max(1);
        let mut topic = TopicConfig::new(name, queues, template.perm & !PERM_INHERIT);
        topic
            .topic_filter_type
            .clone_from(&template.topic_filter_type);
        Ok(topic)
    }

    /// Creates what another shard created by a first send; an existing topic stays as it is.
    pub fn adopt(&mut self, topic: TopicConfig, cx: &mut Context<'_>) {
        if self.table.contains_key(topic.topic_name.as_str()) {
            return;
        }
        if let Err((_, reason)) = self.put(topic, cx) {
            tracing::warn!(reason, "a topic of another shard was not created");
        }
    }

    /// A `%RETRY%`/`%DLQ%` topic of a group, created if missing.
    pub fn ensure_group_topic(&mut self, name: &str, queue_nums: u32, cx: &mut Context<'_>) {
        if self.table.contains_key(name) {
            return;
        }
        let queue_nums = queue_nums.clamp(1, TOPIC_QUEUES_MAX);
        let topic = TopicConfig::new(name, queue_nums, PERM_READ | PERM_WRITE);
        if let Err((_, reason)) = self.put(topic, cx) {
            // Asked for again at every heartbeat.
            tracing::debug!(topic = name, reason, "a group's topic was not created");
        }
    }

    /// Makes the topics whose queues are in the store but not in the file: a process that died between the first
    /// send to a topic and the replacement of the file has acknowledged messages that nobody could ask for. So has one
    /// that stopped in order while its disk did not take the file.
    ///
    /// `queues`: every queue of the store.
    /// Returns how many were made.
    pub fn restore<'q>(
        &mut self,
        config: &BrokerConfig,
        queues: impl Iterator<Item = (&'q str, u32)>,
    ) -> usize {
        let mut restored: NameMap<u32> = NameMap::default();
        for (name, queue_id) in queues {
            if self.table.contains_key(name) || check_topic(name).is_err() {
                continue;
            }
            let count = restored.entry(name.into()).or_default();
            *count = (*count).max(queue_id.saturating_add(1));
        }
        let made = restored.len();
        for (name, count) in restored {
            let least = if is_retry_or_dlq(&name) {
                1
            } else {
                config.default_topic_queue_nums
            };
            let queues = count.max(least).min(TOPIC_QUEUES_MAX);
            tracing::warn!(
                topic = &*name,
                queues,
                "a topic was missing in the configuration, made again from its queues"
            );
            let topic = TopicConfig::new(&name, queues, PERM_READ | PERM_WRITE);
            self.insert(topic, Map::new());
        }
        made
    }

    /// The whole table.
    pub fn stored(&self) -> TopicTable {
        let configs = self.table.values().map(|topic| &topic.config);
        TopicTable {
            data_version: self.version,
            topic_config_table: configs
                .map(|config| (config.topic_name.clone(), config.clone()))
                .collect(),
        }
    }

    /// Whole RegisterBrokerBody as JSON for the name servers. A broker that may not be read and written takes its
    /// permission from every topic, and the inherit bit with it.
    ///
    /// **Source**: apache/rocketmq 5.3.x `BrokerController#registerBrokerAll`.
    pub fn registration_body(&self) -> Bytes {
        let mut table = self.stored();
        let both = PERM_READ | PERM_WRITE;
        if self.broker_permission & both != both {
            for topic in table.topic_config_table.values_mut() {
                topic.perm &= self.broker_permission;
            }
        }
        table.encode_registration().into()
    }
}

fn missing(name: &str, why: &str) -> Refusal {
    let remark = format!("topic[{name}] not exist, apply first please! {why}");
    (ResponseCode::TOPIC_NOT_EXIST, remark)
}
