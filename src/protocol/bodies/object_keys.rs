//! Maps whose keys are objects: `{{"brokerName":"b","queueId":0,"topic":"T"}:5}`.
//!
//! It is the only form that Java reads into a map from a queue. Reading relies on [`crate::protocol::fastjson`],
//! which has made the keys texts.

use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Appends the map.
pub(super) fn encode<K: Serialize, V: Serialize>(map: &BTreeMap<K, V>, out: &mut Vec<u8>) {
    let mut separator = b'{';
    for (key, value) in map {
        out.push(separator);
        separator = b',';
        out.extend(super::encode(key));
        out.push(b':');
        out.extend(super::encode(value));
    }
    if map.is_empty() {
        out.push(b'{');
    }
    out.push(b'}');
}

/// Reads the map; null is an empty one.
pub(super) fn deserialize<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: DeserializeOwned + Ord,
    V: Deserialize<'de>,
{
    deserializer.deserialize_any(MapVisitor(PhantomData))
}

struct MapVisitor<K, V>(PhantomData<(K, V)>);

impl<'de, K, V> Visitor<'de> for MapVisitor<K, V>
where
    K: DeserializeOwned + Ord,
    V: Deserialize<'de>,
{
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map whose keys are objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry::<String, V>()? {
            map.insert(serde_json::from_str(&key).map_err(A::Error::custom)?, value);
        }
        Ok(map)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }
}
