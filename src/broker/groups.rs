//! Subscription groups: configuration, auto-creation, `config/subscriptionGroup.json`.

use super::{BrokerConfig, Context};

/// What a pull or a send needs to know of a group.
#[derive(Clone, Debug)]
pub struct Group {
    pub consume_enable: bool,
    pub consume_broadcast_enable: bool,
    pub retry_queue_nums: u32,
    pub retry_max_times: i32,
    pub notify_consumer_ids_changed: bool,
}

#[derive(Debug)]
pub struct Groups {}

impl Groups {
    pub fn load(config: &BrokerConfig, file: Option<&[u8]>) -> Result<Self, String> {
        let _ = (config, file);
        todo!()
    }
    /// The group, auto-created where that is on or it is a system group.
    pub fn find_or_create(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        cx: &mut Context<'_>,
    ) -> Option<Group> {
        let _ = (config, name, cx);
        todo!()
    }
    pub fn contains(&self, name: &str) -> bool {
        let _ = name;
        todo!()
    }
}
