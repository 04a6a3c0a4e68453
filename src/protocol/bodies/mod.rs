//! JSON bodies: heartbeats, topic and group configuration, statistics, routes, registration.
//!
//! None of them is on the path of a message, so they are parsed into owned values. They are read leniently, as
//! fastjson would (`lenient`): keys may be missing or unknown, null means the default, integers may be quoted,
//! enumerations may come as numbers. They are written compactly, fields in Java's alphabetical order, empty
//! collections as such, since several Java classes have no default for them.
//!
//! Two dialects of fastjson are no JSON: [`decode`] reads both, [`encode_bare_keys`] and the `encode` of a type
//! with object keys write them.

pub mod groups;
pub mod heartbeat;
mod lenient;
pub mod locks;
mod object_keys;
pub mod offsets;
pub mod registration;
pub mod routes;
pub mod stats;
pub mod tables;
pub mod topics;

pub use groups::*;
pub use heartbeat::*;
pub use locks::*;
pub use offsets::*;
pub use registration::*;
pub use routes::*;
pub use stats::*;
pub use tables::*;
pub use topics::*;

use super::fastjson;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};
use std::io::{Result as IoResult, Write};

/// A body that can't be read. Answered with code 1 and this text.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is not UTF-8")]
    Utf8,
    #[error("the body is not what it must be: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the compressed body is broken: {0}")]
    Compressed(#[from] std::io::Error),
    #[error("the compressed body ends inside a part")]
    Truncated,
    #[error("not a topic configuration: {0}")]
    TopicText(String),
    #[error("the CRC of the body is {computed}, announced was {announced}")]
    Crc { announced: u32, computed: u32 },
}

/// Reads a JSON body in any of fastjson's dialects.
///
/// **Errors**: the body is no JSON, or a value is of the wrong kind.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    let text = std::str::from_utf8(body).map_err(|_| BodyError::Utf8)?;
    Ok(serde_json::from_str(&fastjson::to_strict(text))?)
}

/// Writes a JSON body. Integer keys are quoted, which every client reads.
pub fn encode<T: Serialize>(body: &T) -> Vec<u8> {
    serde_json::to_vec(body).expect("keys are texts or integers, and memory takes every write")
}

/// Writes a JSON body with bare integer keys, `{0:5}`, as fastjson does. Keys have 32 or 64 bits.
pub fn encode_bare_keys<T: Serialize>(body: &T) -> Vec<u8> {
    let mut out = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut out, BareKeys(KeyState::Outside));
    body.serialize(&mut serializer)
        .expect("keys are texts or integers, and memory takes every write");
    out
}

/// Leaves the quotes of integer keys out: `serde_json` opens a string for every key and tells only then what is
/// in it, so that the opening quote waits for the first piece.
struct BareKeys(KeyState);

#[derive(Clone, Copy, PartialEq)]
enum KeyState {
    Outside,
    /// A string was opened; its quote is not written yet.
    Opened,
    /// The opening quote is written.
    Quoted,
    /// The string is an integer key.
    Bare,
}

impl BareKeys {
    fn start_text(&mut self, out: &mut (impl Write + ?Sized)) -> IoResult<()> {
        if self.0 == KeyState::Opened {
            self.0 = KeyState::Quoted;
            out.write_all(b"\"")?;
        }
        Ok(())
    }

    fn start_integer(&mut self) {
        if self.0 == KeyState::Opened {
            self.0 = KeyState::Bare;
        }
    }
}

impl Formatter for BareKeys {
    fn begin_string<W: Write + ?Sized>(&mut self, _: &mut W) -> IoResult<()> {
        self.0 = KeyState::Opened;
        Ok(())
    }

    fn end_string<W: Write + ?Sized>(&mut self, out: &mut W) -> IoResult<()> {
        let state = std::mem::replace(&mut self.0, KeyState::Outside);
        match state {
            KeyState::Opened => out.write_all(b"\"\""),
            KeyState::Quoted => out.write_all(b"\""),
            KeyState::Bare | KeyState::Outside => Ok(()),
        }
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> IoResult<()> {
        self.start_text(out)?;
        out.write_all(text.as_bytes())
    }

    fn write_char_escape<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> IoResult<()> {
        self.start_text(out)?;
        CompactFormatter.write_char_escape(out, escape)
    }

    fn write_i32<W: Write + ?Sized>(&mut self, out: &mut W, number: i32) -> IoResult<()> {
        self.start_integer();
        CompactFormatter.write_i32(out, number)
    }

    fn write_i64<W: Write + ?Sized>(&mut self, out: &mut W, number: i64) -> IoResult<()> {
        self.start_integer();
        CompactFormatter.write_i64(out, number)
    }

    fn write_u32<W: Write + ?Sized>(&mut self, out: &mut W, number: u32) -> IoResult<()> {
        self.start_integer();
        CompactFormatter.write_u32(out, number)
    }

    fn write_u64<W: Write + ?Sized>(&mut self, out: &mut W, number: u64) -> IoResult<()> {
        self.start_integer();
        CompactFormatter.write_u64(out, number)
    }
}

/// A queue as Java names it; the key of maps in statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MessageQueue {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::integer")]
    pub queue_id: i32,
    #[serde(deserialize_with = "lenient::or_default")]
    pub topic: String,
}

impl MessageQueue {
    pub fn new(broker_name: &str, topic: &str, queue_id: u32) -> Self {
        Self {
            broker_name: broker_name.to_owned(),
            queue_id: queue_id as i32,
            topic: topic.to_owned(),
        }
    }
}

/// Version of a table: which of two is newer. Body of 322 and its answer.
///
/// `state_version` is 5.x; 4.9 leaves it out and ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVersion {
    #[serde(deserialize_with = "lenient::integer")]
    pub counter: i64,
    #[serde(deserialize_with = "lenient::integer")]
    pub state_version: i64,
    /// Milliseconds.
    #[serde(deserialize_with = "lenient::integer")]
    pub timestamp: i64,
}

impl DataVersion {
    /// Counts one more change of the table.
    pub fn bump(&mut self, wall_ms: u64) {
        self.counter = self.counter.saturating_add(1);
        self.timestamp = i64::try_from(wall_ms).unwrap_or(i64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn integer_keys_are_bare_or_quoted() {
        let table = BTreeMap::from([
            ("a\u{1}\"", BTreeMap::from([(0_i64, 5_i64), (-1, i64::MAX)])),
            ("", BTreeMap::new()),
        ]);
        let bare = encode_bare_keys(&table);
        assert_eq!(
            std::str::from_utf8(&bare),
            Ok(r#"{"":{},"a\u0001\"":{-1:9223372036854775807,0:5}}"#)
        );
        let quoted = encode(&table);
        assert_eq!(
            std::str::from_utf8(&quoted),
            Ok(r#"{"":{},"a\u0001\"":{"-1":9223372036854775807,"0":5}}"#)
        );
        let unsigned = BTreeMap::from([(7_u32, BTreeMap::from([(u64::MAX, "x")]))]);
        assert_eq!(
            encode_bare_keys(&unsigned),
            br#"{7:{18446744073709551615:"x"}}"#
        );
        let signed = BTreeMap::from([(-7_i32, ())]);
        assert_eq!(encode_bare_keys(&signed), b"{-7:null}");
        let texts = encode_bare_keys(&["", "x", "1"]);
        assert_eq!(texts, br#"["","x","1"]"#);
    }

    #[test]
    fn data_version_of_both_lines_is_read() {
        for (body, counter, state_version) in [
            (&br#"{"counter":12,"timestamp":1700000000000}"#[..], 12, 0),
            (
                br#"{"counter":3,"stateVersion":7,"timestamp":1700000000000}"#,
                3,
                7,
            ),
            (
                br#"{"counter":"3","stateVersion":null,"timestamp":1700000000000,"new":{}}"#,
                3,
                0,
            ),
        ] {
            let version: DataVersion = decode(body).expect("a version");
            let expected = DataVersion {
                counter,
                state_version,
                timestamp: 1_700_000_000_000,
            };
            assert_eq!(version, expected);
        }
        let body = encode(&DataVersion::default());
        assert_eq!(body, br#"{"counter":0,"stateVersion":0,"timestamp":0}"#);
    }

    #[test]
    fn bump_counts_changes() {
        let mut version = DataVersion::default();
        version.bump(7);
        version.bump(9);
        assert_eq!((version.counter, version.timestamp), (2, 9));
    }

    #[test]
    fn broken_bodies_are_errors() {
        for body in [
            &b""[..],
            b"null",
            b"[]x",
            b"{\"counter\":[]}",
            b"\xFF",
            b"{\"counter\":1.5}",
        ] {
            assert!(decode::<DataVersion>(body).is_err(), "{body:?}");
        }
    }
}
