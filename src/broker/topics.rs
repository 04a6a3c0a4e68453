//! The topics of one shard: configuration and open queues; auto-creation; `config/topics.json`.

use super::{BrokerConfig, Context};
use crate::ids::{NameMap, QueueIndex};
use crate::protocol::bodies::TopicConfig;
use crate::protocol::codes::ResponseCode;
use crate::storage::Store;
use bytes::Bytes;
use std::rc::Rc;

pub const PERM_READ: u32 = 4;
pub const PERM_WRITE: u32 = 2;
pub const PERM_INHERIT: u32 = 1;

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
}

impl Topics {
    /// The table of a new or an existing shard: what the file says, then the system topics that are missing.
    pub fn load(config: &BrokerConfig, file: Option<&[u8]>) -> Result<Self, String> {
        let _ = (config, file);
        todo!()
    }
    pub fn get(&self, name: &str) -> Option<&Topic> {
        self.table.get(name)
    }
    /// The open queue; `None` if the topic is unknown or the id is beyond max(read, write) queues.
    pub fn queue(&mut self, name: &str, queue_id: u32, store: &mut Store) -> Option<QueueIndex> {
        let _ = (name, queue_id, store);
        todo!()
    }
    /// Names, sorted.
    pub fn names(&self) -> Vec<&str> {
        todo!()
    }
    /// The topic for a send, created by the rules of auto-creation where it is missing (code 17 where it can't be).
    /// Sets `effects.register`, `created_topics` and `files`.
    pub fn for_send(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        default_topic: &str,
        queue_nums: i32,
        cx: &mut Context<'_>,
    ) -> Result<&Topic, Refusal> {
        let _ = (config, name, default_topic, queue_nums, cx);
        todo!()
    }
    /// Creates what another shard created by a first send; an existing topic stays as it is.
    pub fn adopt(&mut self, topic: TopicConfig, cx: &mut Context<'_>) {
        let _ = (topic, cx);
        todo!()
    }
    /// A `%RETRY%`/`%DLQ%` topic of a group, created if missing.
    pub fn ensure_group_topic(&mut self, name: &str, queue_nums: u32, cx: &mut Context<'_>) {
        let _ = (name, queue_nums, cx);
        todo!()
    }
    /// Whole RegisterBrokerBody as JSON for the name servers.
    pub fn registration_body(&self) -> Bytes {
        todo!()
    }
}
