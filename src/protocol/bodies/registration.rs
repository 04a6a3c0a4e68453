//! Body of 103: a broker tells a name server its topics.
//!
//! ```text
//! compressed form, inside one zlib stream; lengths and counts are 4 bytes
//! length, data version as JSON
//! count of topics, then for each: length, "name read write perm filterType [attributes]"
//! length, list of filter servers as JSON
//! count of mappings of static topics, then for each: length, mapping as JSON       (5.x; may be missing)
//! ```
//!
//! Source: apache/rocketmq 5.3 `remoting/.../protocol/body/RegisterBrokerBody.java`.

use super::topics::{MappedTopicTable, TopicConfig, TopicTable};
use super::{BodyError, lenient};
use crate::limits::REGISTRATION_BYTES_MAX;
use crate::protocol::hash;
use crate::protocol::reader::Reader;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};
use std::io::{Error as IoError, ErrorKind, Read, Write};

/// How the body of a registration is written; the field `compressed` of its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegistrationForm {
    Json,
    Compressed,
}

/// Topics and filter servers of a broker. Static topics, which only 5.x has, are neither read nor written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Registration {
    #[serde(deserialize_with = "lenient::or_default")]
    pub filter_server_list: Vec<String>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic_config_serialize_wrapper: TopicTable,
}

/// Checks the field `bodyCrc32` of a registration; 0 or missing is no CRC.
///
/// **Errors**: answered with code 1.
pub fn check_body_crc(body: &[u8], announced: Option<u32>) -> Result<(), BodyError> {
    let computed = hash::body_crc(body);
    match announced {
        None | Some(0) => Ok(()),
        Some(announced) if announced == computed => Ok(()),
        Some(announced) => Err(BodyError::Crc {
            announced,
            computed,
        }),
    }
}

impl Registration {
    pub fn encode(&self, form: RegistrationForm) -> Vec<u8> {
        match form {
            RegistrationForm::Json => encode_json(
                &self.filter_server_list,
                &self.topic_config_serialize_wrapper,
            ),
            RegistrationForm::Compressed => compress(&self.to_parts()),
        }
    }

    /// Reads a body. The compressed form is inflated up to `REGISTRATION_BYTES_MAX`.
    ///
    /// **Errors**: answered with code 1.
    pub fn decode(body: &[u8], form: RegistrationForm) -> Result<Self, BodyError> {
        match form {
            RegistrationForm::Json => super::decode(body),
            RegistrationForm::Compressed => Self::from_parts(&inflate(body)?),
        }
    }

    fn to_parts(&self) -> Vec<u8> {
        let table = &self.topic_config_serialize_wrapper;
        let mut parts = Vec::new();
        put_part(&mut parts, &super::encode(&table.data_version));
        put_length(&mut parts, table.topic_config_table.len());
        for topic in table.topic_config_table.values() {
            put_part(&mut parts, topic.to_text().as_bytes());
        }
        put_part(&mut parts, &super::encode(&self.filter_server_list));
        // No mappings of static topics.
        put_length(&mut parts, 0);
        parts
    }

    fn from_parts(parts: &[u8]) -> Result<Self, BodyError> {
        let mut reader = Reader::new(parts);
        let mut body = Self::default();
        let table = &mut body.topic_config_serialize_wrapper;
        table.data_version = super::decode(take_part(&mut reader)?)?;
        for _ in 0..take_count(&mut reader)? {
            let text = std::str::from_utf8(take_part(&mut reader)?).map_err(|_| BodyError::Utf8)?;
            let topic = TopicConfig::from_text(text)?;
            table
                .topic_config_table
                .insert(topic.topic_name.clone(), topic);
        }
        // Java keeps the registration where this list can't be read.
        body.filter_server_list = super::decode(take_part(&mut reader)?).unwrap_or_default();
        Ok(body)
    }

    /// [`Self::decode`] of the compressed form.
    pub fn decode_compressed(body: &[u8]) -> Result<Self, BodyError> {
        Self::decode(body, RegistrationForm::Compressed)
    }
}

impl TopicTable {
    /// Body of 103 as JSON, without filter servers.
    pub fn encode_registration(&self) -> Vec<u8> {
        encode_json(&[], self)
    }
}

fn encode_json(filter_server_list: &[String], table: &TopicTable) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        filter_server_list: &'a [String],
        topic_config_serialize_wrapper: MappedTopicTable<'a>,
    }
    super::encode(&Body {
        filter_server_list,
        topic_config_serialize_wrapper: table.mapped(),
    })
}

fn put_length(parts: &mut Vec<u8>, length: usize) {
    let length = i32::try_from(length).expect("a broker's topics are bounded");
    parts.extend(length.to_be_bytes());
}

fn put_part(parts: &mut Vec<u8>, part: &[u8]) {
    put_length(parts, part.len());
    parts.extend(part);
}

fn take_part<'b>(reader: &mut Reader<'b>) -> Result<&'b [u8], BodyError> {
    reader.bytes_behind_i32().ok_or(BodyError::Truncated)
}

/// A count; a negative one makes an empty loop, as in Java.
fn take_count(reader: &mut Reader<'_>) -> Result<i32, BodyError> {
    reader.i32().ok_or(BodyError::Truncated)
}

fn compress(parts: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder
        .write_all(parts)
        .and_then(|()| encoder.finish())
        .expect("memory takes every write")
}

fn inflate(body: &[u8]) -> Result<Vec<u8>, BodyError> {
    let mut parts = Vec::new();
    ZlibDecoder::new(body)
        .take(REGISTRATION_BYTES_MAX + 1)
        .read_to_end(&mut parts)?;
    if parts.len() as u64 > REGISTRATION_BYTES_MAX {
        return Err(IoError::new(ErrorKind::InvalidData, "it inflates beyond the limit").into());
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::bodies::DataVersion;

    fn body() -> Registration {
        let topic = |name: &str| TopicConfig {
            topic_name: name.to_owned(),
            ..TopicConfig::default()
        };
        Registration {
            filter_server_list: vec!["10.0.0.1:30000".to_owned()],
            topic_config_serialize_wrapper: TopicTable {
                data_version: DataVersion {
                    counter: 12,
                    state_version: 0,
                    timestamp: 1_700_000_000_000,
                },
                topic_config_table: ["TBW102", "S"]
                    .map(|name| (name.to_owned(), topic(name)))
                    .into(),
            },
        }
    }

    #[test]
    fn body_survives_both_forms() {
        for form in [RegistrationForm::Json, RegistrationForm::Compressed] {
            let bytes = body().encode(form);
            assert_eq!(
                Registration::decode(&bytes, form).ok(),
                Some(body()),
                "{form:?}"
            );
        }
    }

    #[test]
    fn compressed_form_is_the_drawn_one() {
        let parts = inflate(&body().encode(RegistrationForm::Compressed)).expect("zlib");
        let version = br#"{"counter":12,"stateVersion":0,"timestamp":1700000000000}"#;
        assert_eq!(parts[..4], (version.len() as u32).to_be_bytes());
        assert_eq!(&parts[4..4 + version.len()], version);
        let topics = &parts[4 + version.len()..];
        assert_eq!(
            topics[..27],
            *b"\0\0\0\x02\0\0\0\x14S 16 16 6 SINGLE_TAG"[..27].as_ref()
        );
    }

    /// A 4.9 broker's stream ends behind the filter servers; a 5.x broker's may go on with static topics.
    #[test]
    fn what_follows_the_filter_servers_is_not_read() {
        let parts = body().to_parts();
        let mapping = br#"{"bname":"b","topic":"S","totalQueues":4}"#;
        let mut mapped = parts[..parts.len() - 4].to_vec();
        put_length(&mut mapped, 1);
        put_part(&mut mapped, mapping);
        for parts in [&parts[..parts.len() - 4], &mapped] {
            let read = Registration::decode_compressed(&compress(parts));
            assert_eq!(read.ok(), Some(body()));
        }
    }

    #[test]
    fn broken_streams_are_errors() {
        let decode = |bytes: &[u8]| Registration::decode(bytes, RegistrationForm::Compressed);
        assert!(matches!(decode(b"no zlib"), Err(BodyError::Compressed(_))));
        let whole = body().encode(RegistrationForm::Compressed);
        assert!(decode(&whole[..whole.len() / 2]).is_err());
        let parts = body().to_parts();
        for length in 0..parts.len() - 4 {
            assert!(decode(&compress(&parts[..length])).is_err(), "{length}");
        }
    }

    #[test]
    fn table_alone_is_a_registration() {
        let mut expected = body();
        expected.filter_server_list.clear();
        let bytes = expected
            .topic_config_serialize_wrapper
            .encode_registration();
        assert_eq!(bytes, expected.encode(RegistrationForm::Json));
        let read = Registration::decode(&bytes, RegistrationForm::Json);
        assert_eq!(read.ok(), Some(expected));
    }

    #[test]
    fn inflation_is_bounded() {
        let bomb = compress(&vec![0; REGISTRATION_BYTES_MAX as usize + 1]);
        assert!(bomb.len() < 1 << 20);
        let error =
            Registration::decode(&bomb, RegistrationForm::Compressed).expect_err("too long");
        assert!(matches!(error, BodyError::Compressed(_)), "{error}");
    }

    #[test]
    fn crc_is_checked_only_if_announced() {
        assert!(check_body_crc(b"hello", None).is_ok());
        assert!(check_body_crc(b"hello", Some(0)).is_ok());
        assert!(check_body_crc(b"hello", Some(0x3610_A686)).is_ok());
        let error = check_body_crc(b"hello", Some(1)).expect_err("another");
        assert_eq!(
            error.to_string(),
            "the CRC of the body is 907060870, announced was 1"
        );
    }
}
