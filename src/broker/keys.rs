//! 12: messages by a key of theirs, or by their unique key.
//!
//! The index knows hashes and seconds. Topic, key and time of each record are compared here, so that another message
//! of the same hash is never an answer (apache/rocketmq#3613).
//!
//! Source: apache/rocketmq 4.9.8 and 5.3.3 `broker/.../processor/QueryMessageProcessor.java`,
//! `DefaultMessageStore.queryMessage`.

use super::{Context, Outcome};
use crate::limits::{
    QUERY_BYTES_MAX, QUERY_MESSAGES_MAX, QUERY_READS_MAX, QUERY_RECORDS_MAX, QUERY_UNIQUE_MAX,
};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::message::{Record, StoredMessage};
use crate::protocol::properties::{self, name};
use crate::protocol::response::{Body, Response, ResponseHeader};
use crate::storage::{KeyQuery, Missing, Store};
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

/// What is asked for.
struct Question<'a> {
    topic: &'a str,
    key: &'a str,
    begin_ms: u64,
    end_ms: u64,
    is_unique: bool,
    max: usize,
}

impl<'a> Question<'a> {
    fn read(command: &'a Command<'_>) -> Result<Self, FieldError> {
        let time = |name| Ok(u64::try_from(command.require_i64(name)?).unwrap_or(0));
        let is_unique = command.text("_UNIQUE_KEY_QUERY") == Some("true");
        let asked = command.require_i32("maxNum")?;
        let max = if is_unique {
            QUERY_UNIQUE_MAX
        } else {
            u32::try_from(asked).unwrap_or(0).min(QUERY_MESSAGES_MAX)
        };
        Ok(Self {
            topic: command.require_text("topic")?,
            key: command.require_text("key")?,
            begin_ms: time("beginTimestamp")?,
            end_ms: time("endTimestamp")?,
            is_unique,
            max: max as usize,
        })
    }

    /// Whether the record is what is asked for.
    fn is_met(&self, record: &[u8]) -> bool {
        let Ok(Record::Message(message)) = StoredMessage::decode(record) else {
            return false;
        };
        let unique = properties::get(message.properties, name::UNIQUE_KEY);
        let keys = || properties::get(message.properties, name::KEYS).unwrap_or("");
        let has_key = unique == Some(self.key)
            || !self.is_unique && keys().split(' ').any(|key| key == self.key);
        message.topic == self.topic
            && has_key
            && (self.begin_ms..=self.end_ms).contains(&message.store_timestamp)
    }
}

/// Code 12.
pub fn query_message(command: &Command<'_>, cx: &Context<'_>) -> Result<Outcome, FieldError> {
    let question = Question::read(command)?;
    Ok(match find(&question, cx) {
        Ok(found) => Outcome::Reply(answer(found, cx)),
        Err(missing) => Outcome::Read(missing),
    })
}

/// The newest messages that were asked for, or what has to be read first.
fn find(
    question: &Question<'_>,
    cx: &Context<'_>,
) -> Result<SmallVec<[Bytes; 4]>, SmallVec<[Missing; 4]>> {
    let mut found: SmallVec<[Bytes; 4]> = SmallVec::new();
    if question.max == 0 || question.key.is_empty() {
        return Ok(found);
    }
    let hash = Store::key_hash(question.topic, question.key);
    let (begin_ms, end_ms) = (question.begin_ms, question.end_ms);
    let query = KeyQuery::new(hash, begin_ms, end_ms, QUERY_RECORDS_MAX);
    let places = cx
        .store
        .find_key(query, cx.fetched)
        .map_err(|missing| smallvec![missing])?;
    let (start, end) = cx.store.log_bounds();
    let mut missing: SmallVec<[Missing; 4]> = SmallVec::new();
    let mut bytes = 0;
    for at in places.iter().filter(|at| start <= **at && **at < end) {
        match cx.store.record_at(*at, cx.fetched) {
            Ok(record) if question.is_met(&record) => {
                bytes += record.len();
                if found.len() == question.max || !found.is_empty() && bytes > QUERY_BYTES_MAX {
                    break;
                }
                found.push(record);
            }
            Ok(_) => {}
            Err(read) => missing.push(read),
        }
        if missing.len() == QUERY_READS_MAX {
            break;
        }
    }
    if missing.is_empty() {
        Ok(found)
    } else {
        Err(missing)
    }
}

fn answer(found: SmallVec<[Bytes; 4]>, cx: &Context<'_>) -> Response {
    if found.is_empty() {
        return Response::error(
            ResponseCode::QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
        );
    }
    let (timestamp, at) = cx.store.newest_key();
    let fields = vec![
        ("indexLastUpdateTimestamp", timestamp.to_string()),
        ("indexLastUpdatePhyoffset", at.0.to_string()),
    ];
    let bytes = found.iter().map(Bytes::len).sum();
    Response {
        body: Body::Stored {
            segments: found,
            bytes,
        },
        ..Response::with_header(ResponseHeader::Fields(fields))
    }
}
