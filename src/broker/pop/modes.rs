//! 401: which groups pop a topic and which pull it. Consumers that let the broker allocate learn of it with their
//! queues ([`assignment`](super::assignment)).
//!
//! Source: apache/rocketmq 5.3.x `broker/.../loadbalance/MessageRequestModeManager.java`,
//! `broker/.../processor/QueryAssignmentProcessor.java` `setMessageRequestMode`.

use crate::broker::topics::Refusal;
use crate::broker::{Broker, Context, Outcome};
use crate::limits::REQUEST_MODES_MAX;
use crate::protocol::bodies;
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::names::RETRY_PREFIX;
use crate::protocol::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Path below the store's root.
pub const FILE: &str = "config/messageRequestMode.json";

/// How a group consumes a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Mode {
    #[default]
    Pull,
    Pop,
}

/// Body of 401, and the value of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Setting {
    consumer_group: String,
    mode: Mode,
    /// How many further consumers pop the queues of each; 0 and less: all consumers pop all queues.
    pop_share_queue_num: i32,
    topic: String,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// The modes that were set: topic → group → mode.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Modes {
    message_request_mode_map: BTreeMap<String, BTreeMap<String, Setting>>,
    /// What this version doesn't know of the file.
    #[serde(flatten)]
    other: Map<String, Value>,
    #[serde(skip)]
    is_dirty: bool,
}

impl Modes {
    /// **Errors**: the file is no JSON of its form.
    pub fn load(bytes: Option<&[u8]>) -> Result<Self, String> {
        let loaded = bytes.map(bodies::decode).transpose();
        let loaded = loaded.map_err(|e| format!("{FILE}: {e}"))?;
        Ok(loaded.unwrap_or_default())
    }

    /// The mode, and for pops how many further consumers share a queue. Pull where nothing was set.
    pub(super) fn get(&self, group: &str, topic: &str) -> (Mode, i32) {
        let groups = self.message_request_mode_map.get(topic);
        let setting = groups.and_then(|groups| groups.get(group));
        setting.map_or((Mode::Pull, 0), |setting| {
            (setting.mode, setting.pop_share_queue_num)
        })
    }

    fn len(&self) -> usize {
        let groups = self.message_request_mode_map.values();
        groups.map(BTreeMap::len).sum()
    }

    /// False at the limit.
    fn set(&mut self, setting: Setting) -> bool {
        let groups = self.message_request_mode_map.get(&setting.topic);
        let is_known = groups.is_some_and(|groups| groups.contains_key(&setting.consumer_group));
        if !is_known && self.len() >= REQUEST_MODES_MAX {
            return false;
        }
        let groups = self.message_request_mode_map.entry(setting.topic.clone());
        let groups = groups.or_default();
        groups.insert(setting.consumer_group.clone(), setting);
        self.is_dirty = true;
        true
    }

    pub fn remove_topic(&mut self, topic: &str) {
        self.is_dirty |= self.message_request_mode_map.remove(topic).is_some();
    }

    pub fn remove_group(&mut self, group: &str) {
        let before = self.len();
        self.message_request_mode_map.retain(|_, groups| {
            groups.remove(group);
            !groups.is_empty()
        });
        self.is_dirty |= self.len() != before;
    }

    /// Once a turn.
    pub fn persist(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.is_dirty) {
            let contents = bodies::encode(self);
            cx.effects.files.push((FILE, contents.into()));
        }
    }
}

/// 401.
pub fn set_mode(
    broker: &mut Broker,
    command: &Command<'_>,
    cx: &mut Context<'_>,
) -> Result<Outcome, FieldError> {
    let response = match set(broker, command, cx) {
        Ok(()) => Response::success(),
        Err((code, remark)) => Response::error(code, remark),
    };
    Ok(Outcome::Reply(response))
}

fn set(broker: &mut Broker, command: &Command<'_>, cx: &mut Context<'_>) -> Result<(), Refusal> {
    let setting: Setting = bodies::decode(command.body)
        .map_err(|error| (ResponseCode::SYSTEM_ERROR, error.to_string()))?;
    let (topic, group) = (&setting.topic, &setting.consumer_group);
    if topic.starts_with(RETRY_PREFIX) {
        let remark = "retry topic is not allowed to set mode".to_owned();
        return Err((ResponseCode::NO_PERMISSION, remark));
    }
    if broker.topics.get(topic).is_none() {
        let remark = format!("topic[{topic:.255}] not exist");
        return Err((ResponseCode::TOPIC_NOT_EXIST, remark));
    }
    let known = broker.groups.find_or_create(&broker.config, group, cx);
    if known.is_none() {
        let remark = format!("subscription group [{group:.255}] does not exist");
        return Err((ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
    }
    let (mode, share) = (setting.mode, setting.pop_share_queue_num);
    tracing::info!(group, topic, ?mode, share, "mode of consumption set");
    if !broker.modes.set(setting) {
        let remark = format!("this shard has {REQUEST_MODES_MAX} modes of consumption, the limit");
        return Err((ResponseCode::SYSTEM_ERROR, remark));
    }
    Ok(())
}
