//! Subscription groups: configuration, auto-creation, `config/subscriptionGroup.json`.
//!
//! **Owned by**: one shard. The file is replaced once per turn ([`Groups::persist`]). What this version doesn't know
//! of it is kept and written back, and so are groups whose names are not allowed: 4.9 stores have one without a name,
//! and took names up to 255 bytes.

use super::{BrokerConfig, Context};
use crate::ids::NameMap;
use crate::limits::GROUPS_MAX;
use crate::protocol::bodies::{self, DataVersion, GroupConfig, GroupTable};
use crate::protocol::names::{SYSTEM_GROUPS, check_group, is_system_group};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::rc::Rc;

#[cfg(test)]
mod tests;

/// Path below the store's root.
pub const FILE: &str = "config/subscriptionGroup.json";

/// What a pull or a send needs to know of a group.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: Rc<str>,
    pub consume_enable: bool,
    pub consume_broadcast_enable: bool,
    pub retry_queue_nums: u32,
    pub retry_max_times: i32,
    pub notify_consumer_ids_changed: bool,
}

/// All groups of a shard. **Invariant**: every name in the table passes `check_group`.
#[derive(Debug)]
pub struct Groups {
    table: NameMap<(Rc<Group>, GroupConfig)>,
    version: DataVersion,
    /// 5.x: topics that a group may not read. Kept for its tools; nothing here goes by it yet.
    forbidden: BTreeMap<String, BTreeMap<String, i64>>,
    /// Groups whose names are not allowed.
    kept: BTreeMap<String, GroupConfig>,
    /// Keys of the file beside the tables.
    other: Map<String, Value>,
    /// The file is behind the table.
    is_dirty: bool,
}

/// The file; the keys of the tables are those of the answer to 201.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct File {
    #[serde(flatten)]
    table: GroupTable,
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl Groups {
    /// The table of a new or an existing shard, with the system groups. **Errors**: the file is no JSON of its form.
    pub fn load(bytes: Option<&[u8]>) -> Result<Self, String> {
        let file: File = match bytes {
            Some(bytes) => bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?,
            None => File::default(),
        };
        let mut groups = Self {
            table: NameMap::default(),
            version: file.table.data_version,
            forbidden: file.table.forbidden_table,
            kept: BTreeMap::new(),
            other: file.other,
            is_dirty: true,
        };
        for (name, mut group) in file.table.subscription_group_table {
            if let Err(error) = check_group(&name) {
                // Java makes the group without a name at times; it is of no use to anybody.
                if !name.is_empty() {
                    tracing::warn!(file = FILE, group = ?name.chars().take(80).collect::<String>(), %error,
                        "a group is not served because of its name; the file keeps it");
                }
                groups.kept.insert(name, group);
                continue;
            }
            group.group_name = name;
            groups.insert(group);
        }
        for name in SYSTEM_GROUPS {
            if !groups.contains(name) {
                groups.insert(new_config(name));
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
            retry_max_times: config.retry_max_times,
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

    pub fn config(&self, name: &str) -> Option<&GroupConfig> {
        self.table.get(name).map(|(_, config)| config)
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

    /// The group, auto-created where that is on or it is a system group. `None` otherwise, and at the limit of
    /// groups.
    ///
    /// **Source**: apache/rocketmq 5.3.x `SubscriptionGroupManager#findSubscriptionGroupConfig`.
    pub fn find_or_create(
        &mut self,
        config: &BrokerConfig,
        name: &str,
        cx: &mut Context<'_>,
    ) -> Option<Rc<Group>> {
        if let Some(group) = self.get(name) {
            return Some(group);
        }
        let may_create = config.auto_create_groups || is_system_group(name);
        if !may_create || check_group(name).is_err() {
            return None;
        }
        if let Err(reason) = self.put(new_config(name), cx) {
            tracing::debug!(group = name, reason, "a group was not created");
            return None;
        }
        tracing::info!(group = name, "group created");
        self.get(name)
    }

    /// Creates or changes a group and persists it; one that stays as it is is not written.
    ///
    /// **Errors**: the name is not allowed; the limit of groups. Callers check names first, for a better text.
    pub fn put(&mut self, config: GroupConfig, cx: &mut Context<'_>) -> Result<(), String> {
        check_group(&config.group_name).map_err(|e| e.to_string())?;
        let known = self.config(&config.group_name);
        if known.is_some_and(|known| *known == config) {
            return Ok(());
        }
        if known.is_none() && self.table.len() >= GROUPS_MAX {
            return Err(format!(
                "group {} can't be created: this shard has {GROUPS_MAX} groups, the limit",
                config.group_name
            ));
        }
        self.insert(config);
        self.changed(cx);
        Ok(())
    }

    pub fn remove(&mut self, name: &str, cx: &mut Context<'_>) {
        let forbidden = self.forbidden.remove(name).is_some();
        if self.table.remove(name).is_some() || forbidden {
            self.changed(cx);
        }
    }

    fn changed(&mut self, cx: &mut Context<'_>) {
        self.version.bump(cx.now.wall_ms);
        self.is_dirty = true;
    }

    /// Replaces the file if the table has changed, at the end of a turn.
    pub fn persist(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.is_dirty) {
            let contents = self.encode_file();
            cx.effects.files.push((FILE, contents.into()));
        }
    }

    fn encode_file(&self) -> Vec<u8> {
        let mut table = self.stored();
        table.subscription_group_table.extend(self.kept.clone());
        let file = File {
            table,
            other: self.other.clone(),
        };
        serde_json::to_vec_pretty(&file).expect("keys are texts, and memory takes every write")
    }

    /// The whole table, as tools see it.
    pub fn stored(&self) -> GroupTable {
        let configs = self.table.values().map(|(_, config)| config);
        GroupTable {
            data_version: self.version,
            forbidden_table: self.forbidden.clone(),
            subscription_group_table: configs
                .map(|config| (config.group_name.clone(), config.clone()))
                .collect(),
        }
    }
}

fn new_config(name: &str) -> GroupConfig {
    GroupConfig {
        group_name: name.to_owned(),
        ..GroupConfig::default()
    }
}
