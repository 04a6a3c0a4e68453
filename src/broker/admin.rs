//! Topic and group administration and what a broker tells of itself: 17, 18, 21, 28, 200, 201, 202, 207, 208, 215, 351.
//!
//! What changes a topic is answered once the name servers know of it: a tool that creates a topic asks for its route
//! next. What changes nothing is answered at once.

use super::Outcome;
use crate::limits::METADATA_PAGE_MAX;
use crate::protocol::bodies::{self, DataVersion};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, FieldError};
use crate::protocol::response::{Response, ResponseHeader};
use std::collections::BTreeMap;

mod attributes;
mod groups;
mod runtime;
mod stats;
#[cfg(test)]
mod tests;
mod topics;

pub use groups::{all_groups, delete_group, update_group};
pub use runtime::runtime;
pub use stats::{consume_stats, topic_stats};
pub use topics::{all_topics, delete_topic, topic, update_topic, update_topics};

type Answer = Result<Outcome, FieldError>;

fn refuse(code: ResponseCode, remark: impl Into<String>) -> Answer {
    Ok(Outcome::Reply(Response::error(code, remark.into())))
}

fn invalid(remark: impl Into<String>) -> Answer {
    refuse(ResponseCode::INVALID_PARAMETER, remark)
}

/// A table's part that a request asks for, by the names of its fields.
struct PageFields {
    sequence: &'static str,
    max: &'static str,
    /// Of the answer: how many there are in all.
    total: &'static str,
}

/// Keeps the page of a table that a 5.x tool asks for, and returns the header of the answer. A tool that names no
/// page gets everything; one whose version of the table is an old one starts again from the first.
///
/// The tool goes on until it has seen the announced number, so both have to agree.
///
/// **Source**: apache/rocketmq 5.3.x `TopicConfigManager#subTopicConfigTable`, `MQClientAPIImpl#getAllTopicConfig`.
fn keep_page<V>(
    command: &Command<'_>,
    fields: &PageFields,
    version: DataVersion,
    table: &mut BTreeMap<String, V>,
) -> Result<ResponseHeader, FieldError> {
    let header = ResponseHeader::Fields(vec![(fields.total, table.len().to_string())]);
    let (sequence, max) = (command.i32(fields.sequence)?, command.i32(fields.max)?);
    let known = command.text("dataVersion");
    if sequence.is_none() && max.is_none() && known.is_none() {
        return Ok(header);
    }
    let known: Option<DataVersion> = known.and_then(|text| bodies::decode(text.as_bytes()).ok());
    let from = match sequence {
        Some(sequence) if known == Some(version) => usize::try_from(sequence).unwrap_or(0),
        _ => 0,
    };
    let count = max.and_then(|max| usize::try_from(max).ok());
    let count = count.unwrap_or(usize::MAX).min(METADATA_PAGE_MAX);
    let all = std::mem::take(table);
    table.extend(all.into_iter().skip(from).take(count));
    Ok(header)
}

fn answer_with(header: ResponseHeader, body: Vec<u8>) -> Answer {
    let mut response = Response::with_body(body);
    response.header = header;
    Ok(Outcome::Reply(response))
}
