//! `config/delayOffset.json`: the next offset of each delay level.

use crate::ids::QueueOffset;
use crate::protocol::bodies;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Path below the store's root.
pub const FILE: &str = "config/delayOffset.json";

/// What this version doesn't know of the file, and levels beyond those that are configured.
#[derive(Debug, Default)]
pub struct Kept {
    offsets: BTreeMap<u32, u64>,
    other: Map<String, Value>,
}

/// Source: apache/rocketmq 5.3.x `DelayOffsetSerializeWrapper`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    offset_table: BTreeMap<String, u64>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Offsets by level. **Errors**: the file is no JSON of its form.
pub fn load(bytes: Option<&[u8]>) -> Result<(BTreeMap<u32, QueueOffset>, Kept), String> {
    let file: File = match bytes {
        Some(bytes) => bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?,
        None => File::default(),
    };
    let mut kept = Kept {
        other: file.other,
        ..Kept::default()
    };
    let mut offsets = BTreeMap::new();
    for (level, offset) in file.offset_table {
        if let Ok(level) = level.parse() {
            offsets.insert(level, QueueOffset(offset));
            kept.offsets.insert(level, offset);
        }
    }
    Ok((offsets, kept))
}

/// `levels`: from level 1.
pub fn encode(levels: impl Iterator<Item = QueueOffset>, kept: &Kept) -> Vec<u8> {
    let mut offsets = kept.offsets.clone();
    offsets.extend((1..).zip(levels.map(|offset| offset.0)));
    let file = File {
        offset_table: offsets
            .iter()
            .map(|(level, offset)| (level.to_string(), *offset))
            .collect(),
        other: kept.other.clone(),
    };
    bodies::encode(&file)
}
