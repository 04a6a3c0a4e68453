//! JSON bodies. Reading is tolerant: missing keys are defaults, null collections are empty, unknown keys are
//! ignored (or kept, where a file is written back). Writing is compact, with Java's field names.

mod clients;
mod groups;
mod routes;
mod stats;
mod topics;

pub use clients::*;
pub use groups::*;
pub use routes::*;
pub use stats::*;
pub use topics::*;

use super::fastjson::to_strict;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// Why a body or file can't be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("not UTF-8")]
    Utf8,
    #[error("not the expected JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("compressed body is broken: {0}")]
    Compressed(String),
}

/// Reads a JSON body of any dialect.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    let text = std::str::from_utf8(body).map_err(|_| BodyError::Utf8)?;
    Ok(serde_json::from_str(&to_strict(text))?)
}

/// Null reads as the default: Go writes nil slices and maps that way.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A JSON string literal.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A message queue as fastjson writes it in front of a colon: an object as a key.
fn queue_key(broker_name: &str, topic: &str, queue_id: u32) -> String {
    format!(
        "{{\"brokerName\":{},\"queueId\":{queue_id},\"topic\":{}}}",
        quoted(broker_name),
        quoted(topic)
    )
}
