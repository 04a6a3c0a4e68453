//! Topic configuration, its file, and the registration with name servers.

use super::{BodyError, null_as_default};
use flate2::read::ZlibDecoder;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;

/// Largest inflated registration body: 100 000 topics of 127 bytes with room to spare.
const INFLATED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Counts changes of a table; compared by name servers and replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVersion {
    pub counter: i64,
    pub state_version: i64,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
}

impl DataVersion {
    pub fn bump(&mut self, wall_ms: u64) {
        self.counter += 1;
        self.timestamp = wall_ms as i64;
    }
}

/// Configuration of one topic on one broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfig {
    #[serde(deserialize_with = "null_as_default")]
    pub attributes: BTreeMap<String, String>,
    pub order: bool,
    /// 4 read, 2 write, 1 inherit.
    pub perm: u32,
    pub read_queue_nums: u32,
    pub topic_filter_type: String,
    pub topic_name: String,
    pub topic_sys_flag: i32,
    pub write_queue_nums: u32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            attributes: BTreeMap::new(),
            order: false,
            perm: 6,
            read_queue_nums: 16,
            topic_filter_type: "SINGLE_TAG".to_owned(),
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

impl TopicConfig {
    pub fn new(name: &str, queue_nums: u32, perm: u32) -> Self {
        Self {
            topic_name: name.to_owned(),
            read_queue_nums: queue_nums,
            write_queue_nums: queue_nums,
            perm,
            ..Self::default()
        }
    }
}

/// `topics.json`, body of 21, and the larger part of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicTable {
    #[serde(deserialize_with = "null_as_default")]
    pub data_version: DataVersion,
    #[serde(deserialize_with = "null_as_default")]
    pub topic_config_table: BTreeMap<String, TopicConfig>,
}

/// As [`TopicTable`], with the empty static-topic fields that 5.x name servers read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopicTableOut<'a> {
    data_version: &'a DataVersion,
    mapping_data_version: DataVersion,
    topic_config_table: &'a BTreeMap<String, TopicConfig>,
    topic_queue_mapping_detail_map: serde_json::Map<String, serde_json::Value>,
    topic_queue_mapping_info_map: serde_json::Map<String, serde_json::Value>,
}

impl TopicTable {
    fn out(&self) -> TopicTableOut<'_> {
        TopicTableOut {
            data_version: &self.data_version,
            mapping_data_version: DataVersion::default(),
            topic_config_table: &self.topic_config_table,
            topic_queue_mapping_detail_map: serde_json::Map::new(),
            topic_queue_mapping_info_map: serde_json::Map::new(),
        }
    }

    /// Body of 21.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&self.out()).expect("plain data is JSON")
    }

    /// Contents of `topics.json`.
    pub fn encode_file(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("plain data is JSON")
    }

    /// Body of 103, uncompressed.
    pub fn encode_registration(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Out<'a> {
            filter_server_list: [String; 0],
            topic_config_serialize_wrapper: TopicTableOut<'a>,
        }
        let out = Out {
            filter_server_list: [],
            topic_config_serialize_wrapper: self.out(),
        };
        serde_json::to_vec(&out).expect("plain data is JSON")
    }
}

/// Body of 103 as a name server reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Registration {
    #[serde(deserialize_with = "null_as_default")]
    pub filter_server_list: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub topic_config_serialize_wrapper: TopicTable,
}

impl Registration {
    /// Reads the zlib form: `int32 length, dataVersion JSON, int32 count, count × (int32 length, "name read write perm
    /// filterType attributes"), int32 length, filterServerList JSON`; what 5.x writes behind it is ignored.
    pub fn decode_compressed(body: &[u8]) -> Result<Self, BodyError> {
        let mut bytes = Vec::new();
        let broken = |error: std::io::Error| BodyError::Compressed(error.to_string());
        ZlibDecoder::new(body)
            .take(INFLATED_BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(broken)?;
        let mut rest = &bytes[..];
        let data_version = serde_json::from_slice(block(&mut rest)?)?;
        let count = int(&mut rest)?;
        let mut topic_config_table = BTreeMap::new();
        for _ in 0..count {
            let topic = topic_line(block(&mut rest)?)?;
            topic_config_table.insert(topic.topic_name.clone(), topic);
        }
        let filter_server_list = block(&mut rest)
            .ok()
            .and_then(|b| serde_json::from_slice(b).ok())
            .unwrap_or_default();
        let topic_config_serialize_wrapper = TopicTable {
            data_version,
            topic_config_table,
        };
        Ok(Self {
            filter_server_list,
            topic_config_serialize_wrapper,
        })
    }
}

fn int(rest: &mut &[u8]) -> Result<usize, BodyError> {
    let short = || BodyError::Compressed("it ends inside a length".to_owned());
    let (head, tail) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    *rest = tail;
    usize::try_from(i32::from_be_bytes(*head)).map_err(|_| short())
}

fn block<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], BodyError> {
    let length = int(rest)?;
    let short = || BodyError::Compressed(format!("{length} bytes announced, {} left", rest.len()));
    let (head, tail) = rest.split_at_checked(length).ok_or_else(short)?;
    *rest = tail;
    Ok(head)
}

fn topic_line(line: &[u8]) -> Result<TopicConfig, BodyError> {
    let text = std::str::from_utf8(line).map_err(|_| BodyError::Utf8)?;
    let mut parts = text.splitn(6, ' ');
    let mut next = || {
        parts
            .next()
            .ok_or_else(|| BodyError::Compressed(format!("topic line too short: {text:.80}")))
    };
    let number = |text: &str| {
        text.parse()
            .map_err(|_| BodyError::Compressed(format!("not a number: {text:.20}")))
    };
    Ok(TopicConfig {
        topic_name: next()?.to_owned(),
        read_queue_nums: number(next()?)?,
        write_queue_nums: number(next()?)?,
        perm: number(next()?)?,
        topic_filter_type: next()?.to_owned(),
        attributes: next()
            .ok()
            .and_then(|a| serde_json::from_str(a).ok())
            .unwrap_or_default(),
        ..TopicConfig::default()
    })
}

/// Body of 18.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigList {
    #[serde(deserialize_with = "null_as_default")]
    pub topic_config_list: Vec<TopicConfig>,
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;
    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use std::io::Write;

    #[test]
    fn a_compressed_registration_reads_like_a_plain_one() {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        let mut put = |bytes: &[u8]| {
            zlib.write_all(&(bytes.len() as i32).to_be_bytes())
                .expect("memory");
            zlib.write_all(bytes).expect("memory");
        };
        put(br#"{"counter":3,"timestamp":5}"#);
        zlib.write_all(&2_i32.to_be_bytes()).expect("memory");
        let mut put = |bytes: &[u8]| {
            zlib.write_all(&(bytes.len() as i32).to_be_bytes())
                .expect("memory");
            zlib.write_all(bytes).expect("memory");
        };
        put(b"T 8 4 6 SINGLE_TAG {\"a\":\"b\"}");
        put(b"U 1 1 7 MULTI_TAG");
        put(b"[]");
        let body = zlib.finish().expect("memory");
        let read = Registration::decode_compressed(&body).expect("decodes");
        let table = read.topic_config_serialize_wrapper;
        assert_eq!(
            (table.data_version.counter, table.topic_config_table.len()),
            (3, 2)
        );
        let t = &table.topic_config_table["T"];
        assert_eq!((t.read_queue_nums, t.write_queue_nums, t.perm), (8, 4, 6));
        assert_eq!(t.attributes["a"], "b");
        for end in 0..body.len() {
            let _ = Registration::decode_compressed(&body[..end]);
        }
    }

    #[test]
    fn files_of_both_lines_are_read() {
        let old = br#"{"dataVersion":{"counter":6,"timestamp":17},"topicConfigTable":{"T":{"order":false,"perm":6,
            "readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}"#;
        let table: TopicTable = decode(old).expect("4.9");
        assert_eq!(table.topic_config_table["T"], TopicConfig::new("T", 4, 6));
        let again: TopicTable = decode(&table.encode()).expect("our own");
        assert_eq!(again, table);
        let registration: Registration = decode(&table.encode_registration()).expect("our own");
        assert_eq!(registration.topic_config_serialize_wrapper, table);
    }
}
