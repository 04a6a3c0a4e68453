//! `config/topics.json`: as Apache 4.9 and 5.x write it, and so that both read it.
//!
//! What this version doesn't know is kept and written back: keys of later versions, and topics that can't be served
//! here because of their names, such as the pop retry topics of 5.x with a `+` in them.

use super::Topic;
use crate::limits::TOPIC_QUEUES_MAX;
use crate::protocol::bodies::{self, DataVersion, TopicConfig};
use crate::protocol::names::check_topic;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Path below the store's root.
pub const FILE: &str = "config/topics.json";

/// One topic in the file. The configuration takes the keys that it knows, the rest stays in `other`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredTopic {
    #[serde(flatten)]
    pub config: TopicConfig,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    data_version: Option<DataVersion>,
    topic_config_table: Option<BTreeMap<String, StoredTopic>>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// What the file holds, sorted into what can be served and what is only kept.
#[derive(Debug, Default)]
pub struct Loaded {
    pub version: DataVersion,
    pub topics: Vec<StoredTopic>,
    pub kept: Kept,
}

/// Parts of the file that mean nothing to this version.
#[derive(Debug, Default)]
pub struct Kept {
    /// Topics whose names are not allowed.
    topics: BTreeMap<String, StoredTopic>,
    /// Keys beside the table.
    other: Map<String, Value>,
}

/// Reads the file. **Errors**: it is no JSON of this form; a topic has more queues than a shard serves, so that
/// some of its messages could not be reached.
pub fn load(bytes: &[u8]) -> Result<Loaded, String> {
    let file: File = bodies::decode(bytes).map_err(|e| format!("{FILE}: {e}"))?;
    let mut loaded = Loaded {
        version: file.data_version.unwrap_or_default(),
        ..Loaded::default()
    };
    loaded.kept.other = file.other;
    for (name, mut topic) in file.topic_config_table.unwrap_or_default() {
        if let Err(error) = check_topic(&name) {
            tracing::warn!(file = FILE, topic = ?name.chars().take(80).collect::<String>(), %error,
                "a topic is not served because of its name; the file keeps it");
            loaded.kept.topics.insert(name, topic);
            continue;
        }
        let config = &mut topic.config;
        let queues = config.read_queue_nums.max(config.write_queue_nums);
        if queues > TOPIC_QUEUES_MAX {
            return Err(format!(
                "{FILE}: topic {name} has {queues} queues, a shard serves at most {TOPIC_QUEUES_MAX} of a topic"
            ));
        }
        config.topic_name = name;
        loaded.topics.push(topic);
    }
    Ok(loaded)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileOut<'a> {
    data_version: &'a DataVersion,
    topic_config_table: Table<'a>,
    #[serde(flatten)]
    other: &'a Map<String, Value>,
}

/// All topics by name, those that are only kept among them.
struct Table<'a>(BTreeMap<&'a str, TopicOut<'a>>);

impl Serialize for Table<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(&self.0)
    }
}

#[derive(Serialize)]
struct TopicOut<'a> {
    #[serde(flatten)]
    config: &'a TopicConfig,
    #[serde(flatten)]
    other: &'a Map<String, Value>,
}

/// Contents of the file, topics sorted by name.
pub fn encode<'a>(
    version: &DataVersion,
    topics: impl Iterator<Item = &'a Topic>,
    kept: &Kept,
) -> Vec<u8> {
    let served = topics.map(|topic| {
        let out = TopicOut {
            config: &topic.config,
            other: &topic.other,
        };
        (&*topic.name, out)
    });
    let unserved = kept.topics.iter().map(|(name, topic)| {
        let out = TopicOut {
            config: &topic.config,
            other: &topic.other,
        };
        (&**name, out)
    });
    let file = FileOut {
        data_version: version,
        topic_config_table: Table(served.chain(unserved).collect()),
        other: &kept.other,
    };
    serde_json::to_vec_pretty(&file).expect("keys are texts, and memory takes every write")
}
