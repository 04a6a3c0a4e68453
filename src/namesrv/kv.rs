//! Key-value configuration: texts by namespace and key, kept in `kvConfig.json`.
//!
//! A namespace stays when its last key is deleted, as with stock name servers: brokers take an empty
//! `ORDER_TOPIC_CONFIG` for "no topic is in order", a missing one for "nothing said".

use crate::limits::{NAMESRV_KV_BYTES_MAX, NAMESRV_KV_ENTRIES_MAX};
use crate::protocol::bodies::{self, KvTable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Namespace of the queues of topics that are in order over several brokers.
pub(super) const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";

type Table = BTreeMap<String, BTreeMap<String, String>>;

/// `kvConfig.json` of stock name servers, in both directions.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    config_table: Table,
}

#[derive(Debug, Default)]
pub(super) struct KvConfig {
    file: File,
    /// Namespaces and entries.
    entries: usize,
    /// Bytes of all names and values.
    bytes: usize,
    is_changed: bool,
}

impl KvConfig {
    /// **Errors**: not the file of a name server. What is in it is taken whole, also beyond the limits.
    pub fn decode(contents: &[u8]) -> Result<Self, String> {
        // An empty file is what a crash leaves of a stock name server's.
        if contents.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let file: File = bodies::decode(contents).map_err(|e| format!("kvConfig.json: {e}"))?;
        let mut config = Self::default();
        for (namespace, table) in &file.config_table {
            config.entries += 1 + table.len();
            config.bytes += namespace.len();
            config.bytes += table.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        }
        config.file = file;
        Ok(config)
    }

    /// New contents of the file, if something changed since the last call.
    pub fn take_file(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.is_changed).then(|| bodies::encode(&self.file))
    }

    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        let value = self.file.config_table.get(namespace)?.get(key)?;
        Some(value)
    }

    /// All of a namespace; `None` where it never had a key.
    pub fn namespace(&self, namespace: &str) -> Option<KvTable<'_>> {
        let table = self.file.config_table.get(namespace)?;
        Some(KvTable {
            table: table
                .iter()
                .map(|(k, v)| (k.as_str(), v.as_str()))
                .collect(),
        })
    }

    /// **Errors**: a limit, named with the present value.
    pub fn put(&mut self, namespace: &str, key: &str, value: &str) -> Result<(), String> {
        let table = self.file.config_table.get(namespace);
        let old = table.and_then(|t| t.get(key)).map(String::as_str);
        if old == Some(value) {
            return Ok(());
        }
        let (is_new_namespace, is_new_key) = (table.is_none(), old.is_none());
        let mut bytes = self.bytes - old.map_or(0, str::len) + value.len();
        bytes += if is_new_key { key.len() } else { 0 };
        bytes += if is_new_namespace { namespace.len() } else { 0 };
        let entries = self.entries + usize::from(is_new_namespace) + usize::from(is_new_key);
        if entries > NAMESRV_KV_ENTRIES_MAX && entries > self.entries {
            return Err(format!(
                "the key-value configuration has {} entries, the limit is {NAMESRV_KV_ENTRIES_MAX}",
                self.entries
            ));
        }
        if bytes > NAMESRV_KV_BYTES_MAX && bytes > self.bytes {
            return Err(format!(
                "the key-value configuration has {} bytes, the limit is {NAMESRV_KV_BYTES_MAX}",
                self.bytes
            ));
        }
        let tables = &mut self.file.config_table;
        let table = tables.entry(namespace.to_owned()).or_default();
        table.insert(key.to_owned(), value.to_owned());
        (self.entries, self.bytes, self.is_changed) = (entries, bytes, true);
        Ok(())
    }

    /// A missing key is a success.
    pub fn delete(&mut self, namespace: &str, key: &str) {
        let table = self.file.config_table.get_mut(namespace);
        if let Some(value) = table.and_then(|t| t.remove(key)) {
            self.entries -= 1;
            self.bytes -= key.len() + value.len();
            self.is_changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_read_listed_saved_and_loaded() {
        let mut config = KvConfig::default();
        assert_eq!(config.take_file(), None);
        config
            .put(ORDER_TOPIC_CONFIG, "T", "b-0:4;b-1:4")
            .expect("room");
        config.put("N", "k", "v").expect("room");
        let file = config.take_file().expect("changed");
        assert_eq!(
            std::str::from_utf8(&file),
            Ok(r#"{"configTable":{"N":{"k":"v"},"ORDER_TOPIC_CONFIG":{"T":"b-0:4;b-1:4"}}}"#)
        );
        config.put("N", "k", "v").expect("room");
        assert_eq!(config.take_file(), None, "the same value changes nothing");
        let mut loaded = KvConfig::decode(&file).expect("a file");
        assert_eq!(loaded.get(ORDER_TOPIC_CONFIG, "T"), Some("b-0:4;b-1:4"));
        assert_eq!(
            (loaded.entries, loaded.bytes),
            (config.entries, config.bytes)
        );
        loaded.delete("N", "k");
        loaded.delete("N", "k");
        loaded.delete("other", "k");
        assert_eq!(loaded.get("N", "k"), None);
        let emptied = loaded.namespace("N").expect("it stays");
        assert!(emptied.table.is_empty() && loaded.namespace("other").is_none());
    }

    /// Written by Apache 4.9.8, pretty or not; and what a crash leaves of it.
    #[test]
    fn files_of_stock_name_servers_are_read() {
        for contents in [
            "{\n\t\"configTable\":{\n\t\t\"N\":{\"k\":\"v\"\n\t\t}\n\t}\n}",
            "{\"configTable\":{\"N\":{\"k\":\"v\"}}}",
        ] {
            let config = KvConfig::decode(contents.as_bytes()).expect("a file");
            assert_eq!(config.get("N", "k"), Some("v"), "{contents}");
        }
        assert!(KvConfig::decode(b" \n").is_ok());
        let error = KvConfig::decode(b"{\"configTable\":[").expect_err("broken");
        assert!(error.starts_with("kvConfig.json: "), "{error}");
    }

    #[test]
    fn entries_and_bytes_are_bounded() {
        let mut config = KvConfig::default();
        for index in 0..NAMESRV_KV_ENTRIES_MAX - 1 {
            config.put("N", &index.to_string(), "").expect("room");
        }
        assert_eq!(
            config.put("N", "more", ""),
            Err("the key-value configuration has 10000 entries, the limit is 10000".to_owned())
        );
        config.put("N", "7", "changed").expect("no new entry");
        config.delete("N", "8");
        config.put("N", "more", "").expect("room again");
        let mut config = KvConfig::default();
        let large = "x".repeat(NAMESRV_KV_BYTES_MAX - 2);
        config.put("N", "k", &large).expect("exactly at the limit");
        let error = config.put("N", "l", "").expect_err("beyond it");
        assert_eq!(
            error,
            "the key-value configuration has 2097152 bytes, the limit is 2097152"
        );
        config.put("N", "k", "short").expect("smaller");
        config.put("N", "l", "").expect("room again");
    }
}
