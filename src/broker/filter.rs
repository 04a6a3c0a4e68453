//! Which messages a subscription wants.

use crate::protocol::hash::tags_code;
use crate::protocol::message::tag_of;

/// A group's subscription to one topic, compiled once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    pub topic: String,
    /// As the client wrote it.
    pub expression: String,
    /// "TAG" or "SQL92".
    pub expression_type: String,
    pub version: i64,
    pub filter: Filter,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    All,
    /// Any of these tags: code and text, both compared, since two tags may have one code.
    Tags(Vec<(i64, String)>),
}

/// Answered with code 23.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterError {
    #[error("expression type {0} is not supported by this version, use TAG")]
    Type(String),
    #[error("no tag in the expression {0:?}")]
    Syntax(String),
}

impl Filter {
    /// `*` and the empty text mean all; `A || B` is split, trimmed, empty pieces dropped.
    pub fn parse(expression: &str, expression_type: &str) -> Result<Self, FilterError> {
        if !expression_type.is_empty() && expression_type != "TAG" {
            return Err(FilterError::Type(expression_type.to_owned()));
        }
        let text = expression.trim();
        if text.is_empty() || text == "*" {
            return Ok(Self::All);
        }
        let tags: Vec<(i64, String)> = text
            .split("||")
            .map(str::trim)
            .filter(|t| !t.is_empty())
            .map(|t| (tags_code(t), t.to_owned()))
            .collect();
        if tags.is_empty() {
            Err(FilterError::Syntax(expression.to_owned()))
        } else {
            Ok(Self::Tags(tags))
        }
    }

    /// By the tags code of the consume queue entry: false is certain, true needs [`Filter::matches_record`].
    pub fn may_match(&self, code: i64) -> bool {
        match self {
            Self::All => true,
            Self::Tags(tags) => tags.iter().any(|(c, _)| *c == code),
        }
    }

    /// By the tag itself.
    pub fn matches_record(&self, record: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Tags(tags) => tag_of(record).is_ok_and(|tag| tags.iter().any(|(_, t)| t == tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_java_reads_them() {
        let tags = |list: &[&str]| {
            Ok(Filter::Tags(
                list.iter()
                    .map(|t| (tags_code(t), (*t).to_owned()))
                    .collect(),
            ))
        };
        assert_eq!(Filter::parse("*", "TAG"), Ok(Filter::All));
        assert_eq!(Filter::parse("", ""), Ok(Filter::All));
        assert_eq!(Filter::parse(" A || B ||", "TAG"), tags(&["A", "B"]));
        assert_eq!(
            Filter::parse("||", "TAG"),
            Err(FilterError::Syntax("||".into()))
        );
        assert_eq!(
            Filter::parse("a > 1", "SQL92"),
            Err(FilterError::Type("SQL92".into()))
        );
    }

    /// Source: apache/rocketmq PR 72 (ROCKETMQ-134).
    #[test]
    fn tags_with_one_code_are_told_apart() {
        let filter = Filter::parse("Aa", "TAG").expect("a tag");
        assert!(filter.may_match(tags_code("BB")), "the codes are equal");
        let mut record = bytes::BytesMut::new();
        let address = ([127, 0, 0, 1], 1).into();
        let message = crate::protocol::message::NewMessage {
            topic: "T",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: address,
            store_host: address,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"",
            properties: "TAGS\u{1}BB\u{2}",
            tags_code: tags_code("BB"),
        };
        message.encode(
            crate::ids::QueueOffset(0),
            crate::ids::PhysicalOffset(0),
            0,
            &mut record,
        );
        assert!(!filter.matches_record(&record));
        assert!(
            Filter::parse("BB", "TAG")
                .expect("a tag")
                .matches_record(&record)
        );
    }
}
