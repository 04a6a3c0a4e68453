//! Subscription groups: configuration, auto-creation, `config/subscriptionGroup.json`.

use super::{BrokerConfig, Context};
use crate::ids::NameMap;
use crate::limits::GROUPS_MAX;
use crate::protocol::bodies::{self, DataVersion, GroupConfig, GroupTable};
use crate::protocol::names::{SYSTEM_GROUPS, check_group, is_system_group};
use std::rc::Rc;

const FILE: &str = "config/subscriptionGroup.json";

/// What a pull or a send needs to know of a group.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: Rc<str>,
    pub consume_enable: bool,
    pub consume_broadcast_enable: bool,
    pub retry_queue_nums: u32,
    pub notify_consumer_ids_changed: bool,
}

#[derive(Debug)]
pub struct Groups {
    table: NameMap<(Rc<Group>, GroupConfig)>,
    version: DataVersion,
    other: GroupTable,
}

impl Groups {
    pub fn load(config: &BrokerConfig, file: Option<&[u8]>) -> Result<Self, String> {
        let _ = config;
        let mut stored: GroupTable = match file {
            Some(bytes) => bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?,
            None => GroupTable::default(),
        };
        let configs = std::mem::take(&mut stored.subscription_group_table);
        let mut groups = Self {
            table: NameMap::default(),
            version: stored.data_version,
            other: stored,
        };
        for (name, mut group) in configs {
            // Apache keeps a group with an empty name here at times; it is of no use.
            if check_group(&name).is_ok() {
                group.group_name = name;
                groups.insert(group);
            }
        }
        for name in SYSTEM_GROUPS {
            if !groups.contains(name) {
                groups.insert(GroupConfig {
                    group_name: name.to_owned(),
                    ..GroupConfig::default()
                });
            }
        }
        Ok(groups)
    }

    fn insert(&mut self, config: GroupConfig) {
        let name = config.group_name.as_str();
        let group = Group {
            name: Rc::from(name),
            consume_enable: config.consume_enable,
            consume_broadcast_enable: config.consume_broadcast_enable,
            retry_queue_nums: config.retry_queue_nums,
            notify_consumer_ids_changed: config.notify_consumer_ids_changed_enable,
        };
        self.table.insert(name.into(), (Rc::new(group), config));
    }

    pub fn contains(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    pub fn get(&self, name: &str) -> Option<Rc<Group>> {
        self.table.get(name).map(|(group, _)| Rc::clone(group))
    }

    /// The group, auto-created where that is on or it is a system group.
    pub fn find_or_create(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        cx: &mut Context<'_>,
    ) -> Option<Rc<Group>> {
        if let Some(group) = self.get(name) {
            return Some(group);
        }
        if !(config.auto_create_groups || is_system_group(name)) || check_group(name).is_err() {
            return None;
        }
        self.put(
            GroupConfig {
                group_name: name.to_owned(),
                ..GroupConfig::default()
            },
            cx,
        )
        .ok()?;
        self.get(name)
    }

    /// Creates or changes a group and persists. **Errors**: too many groups.
    pub fn put(&mut self, config: GroupConfig, cx: &mut Context<'_>) -> Result<(), String> {
        if self.table.len() >= GROUPS_MAX && !self.contains(&config.group_name) {
            return Err(format!(
                "this shard has {} groups, the limit is {GROUPS_MAX}",
                self.table.len()
            ));
        }
        self.insert(config);
        self.changed(cx);
        Ok(())
    }

    pub fn remove(&mut self, name: &str, cx: &mut Context<'_>) {
        if self.table.remove(name).is_some() {
            self.changed(cx);
        }
    }

    fn changed(&mut self, cx: &mut Context<'_>) {
        self.version.bump(cx.now.wall_ms);
        let text = serde_json::to_vec_pretty(&self.stored()).expect("plain data is JSON");
        cx.effects.files.push((FILE, text.into()));
    }

    /// The whole table.
    pub fn stored(&self) -> GroupTable {
        let mut table = self.other.clone();
        table.data_version = self.version;
        table.subscription_group_table = self
            .table
            .iter()
            .map(|(n, (_, c))| (n.to_string(), c.clone()))
            .collect();
        table
    }
}
