//! Which messages a subscription wants.
//!
//! A tag filter looks at the tags code of the consume queue entry first, which costs no look at the record, then
//! compares the tag itself: two tags may have one code ("Aa" and "BB"), and a record that only its code lets
//! through would be dropped by the client, whose group then makes no progress (apache/rocketmq PR #72).
//! An SQL92 filter always looks at the record.

use crate::protocol::hash;
use crate::protocol::headers::{EXPRESSION_TYPE_SQL92, EXPRESSION_TYPE_TAG};
use crate::protocol::message::tag_of;

pub mod sql;

/// Subscribes to every message.
pub const EVERYTHING: &str = "*";

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
    /// Any of these tags: code and text, both compared, since two tags may have one code. Sorted, each once; none
    /// at all matches no message.
    Tags(Vec<(i64, String)>),
    Sql(Box<sql::Program>),
    /// An expression that nobody can read: matches nothing, and a pull with it is told why.
    Invalid(Box<str>),
}

/// Answered with code 23.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterError {
    #[error("expression type {0} is not supported; use TAG or SQL92")]
    Type(String),
    #[error("{0}")]
    Syntax(String),
    #[error(transparent)]
    Sql(#[from] sql::SqlError),
}

/// A missing type means TAG.
///
/// **Source**: apache/rocketmq 5.3.x `common/.../filter/ExpressionType.java` `isTagType`.
pub fn is_tag_type(expression_type: &str) -> bool {
    expression_type.is_empty() || expression_type == EXPRESSION_TYPE_TAG
}

/// Says which switch it is, since the bare text sends people to search for one (apache/rocketmq#310, #8631).
pub const SQL_IS_OFF: &str = "The broker does not support consumer to filter message by SQL92: enablePropertyFilter \
    is false in its configuration";

/// **Source**: apache/rocketmq 5.3.x `common/.../filter/ExpressionType.java` `SQL92`, which compares the case.
pub fn is_sql_type(expression_type: &str) -> bool {
    expression_type == EXPRESSION_TYPE_SQL92
}

impl Filter {
    /// A tag expression: `*` and the empty text mean all; `A || B` is split, trimmed, empty pieces dropped.
    ///
    /// Of type SQL92: see [`sql`].
    ///
    /// **Errors**: the type is another one; the SQL92 expression is not one; or nothing is left between the separators, as in `||`. A piece of blanks is
    /// something that is left, so that ` || ` is a subscription to nothing.
    /// **Source**: apache/rocketmq 5.3.x `remoting/.../protocol/filter/FilterAPI.java` `buildSubscriptionData`.
    pub fn parse(expression: &str, expression_type: &str) -> Result<Self, FilterError> {
        if is_sql_type(expression_type) {
            return Ok(Filter::Sql(Box::new(sql::compile(expression)?)));
        }
        if !is_tag_type(expression_type) {
            return Err(FilterError::Type(expression_type.to_owned()));
        }
        if expression.is_empty() || expression == EVERYTHING {
            return Ok(Filter::All);
        }
        if expression.split("||").all(str::is_empty) {
            return Err(FilterError::Syntax(format!(
                "the expression {expression} has no tag"
            )));
        }
        let mut tags: Vec<(i64, String)> = expression
            .split("||")
            .map(java_trim)
            .filter(|tag| !tag.is_empty())
            .map(|tag| (hash::tags_code(tag), tag.to_owned()))
            .collect();
        tags.sort_unstable();
        tags.dedup();
        Ok(Filter::Tags(tags))
    }

    /// By the tags code of the consume queue entry: false is certain, true needs [`Filter::matches_record`].
    pub fn may_match(&self, tags_code: i64) -> bool {
        match self {
            Filter::All | Filter::Sql(_) => true,
            Filter::Invalid(_) => false,
            Filter::Tags(tags) => !with_code(tags, tags_code).is_empty(),
        }
    }

    /// By the tag or the properties of the record. A record whose properties can't be read matches nothing.
    pub fn matches_record(&self, record: &[u8]) -> bool {
        match self {
            Filter::All => true,
            Filter::Sql(program) => program.matches_record(record),
            Filter::Invalid(_) => false,
            Filter::Tags(tags) => tag_of(record).is_ok_and(|tag| {
                let candidates = with_code(tags, hash::tags_code(tag));
                candidates.iter().any(|(_, wanted)| wanted == tag)
            }),
        }
    }
}

/// The tags of one code. Java compares 32 bits of it; an entry of another broker may carry more.
fn with_code(tags: &[(i64, String)], code: i64) -> &[(i64, String)] {
    let code = i64::from(code as i32);
    let start = tags.partition_point(|(tag, _)| *tag < code);
    let count = tags[start..].iter().take_while(|(tag, _)| *tag == code);
    &tags[start..start + count.count()]
}

/// `String.trim` of Java: takes off everything up to the blank.
fn java_trim(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{PhysicalOffset, QueueOffset};
    use crate::protocol::message::NewMessage;
    use bytes::BytesMut;

    fn tags(names: &[&str]) -> Filter {
        let mut tags: Vec<_> = names
            .iter()
            .map(|tag| (hash::tags_code(tag), (*tag).to_owned()))
            .collect();
        tags.sort_unstable();
        Filter::Tags(tags)
    }

    fn record(properties: &str) -> BytesMut {
        let mut out = BytesMut::new();
        let message = NewMessage {
            topic: "T",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: ([127, 0, 0, 1], 1).into(),
            store_host: ([127, 0, 0, 1], 1).into(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"x",
            properties,
            tags_code: 0,
        };
        message.encode(QueueOffset(0), PhysicalOffset(0), 0, &mut out);
        out
    }

    #[test]
    fn expressions() {
        let cases = [
            ("", Ok(Filter::All)),
            ("*", Ok(Filter::All)),
            ("A", Ok(tags(&["A"]))),
            ("A || B", Ok(tags(&["A", "B"]))),
            ("B||A||B", Ok(tags(&["A", "B"]))),
            ("\t A ||", Ok(tags(&["A"]))),
            ("|| A", Ok(tags(&["A"]))),
            ("A|B", Ok(tags(&["A|B"]))),
            ("A|||B", Ok(tags(&["A", "|B"]))),
            ("* || A", Ok(tags(&["*", "A"]))),
            (" ", Ok(tags(&[]))),
            (" || ", Ok(tags(&[]))),
            ("||", Err("the expression || has no tag")),
            ("||||", Err("the expression |||| has no tag")),
        ];
        for (expression, expected) in cases {
            for expression_type in ["TAG", ""] {
                let parsed = Filter::parse(expression, expression_type);
                let parsed = parsed.map_err(|error| error.to_string());
                assert_eq!(
                    parsed,
                    expected.clone().map_err(str::to_owned),
                    "{expression}"
                );
            }
        }
    }

    #[test]
    fn other_types_are_refused() {
        let error = Filter::parse("a > 1", "sql92").expect_err("not supported");
        assert_eq!(error, FilterError::Type("sql92".to_owned()));
        assert!(error.to_string().contains("SQL92"));
        assert!(!is_tag_type("tag"), "Java compares the case");
    }

    /// apache/rocketmq PR #72 (ROCKETMQ-134): "Aa" and "BB" have the code 2112.
    #[test]
    fn tags_with_one_code_are_told_apart() {
        let filter = Filter::parse("Aa", "TAG").expect("a filter");
        assert_eq!(hash::tags_code("BB"), hash::tags_code("Aa"));
        assert!(filter.may_match(hash::tags_code("BB")));
        assert!(!filter.matches_record(&record("TAGS\u{1}BB\u{2}")));
        assert!(filter.matches_record(&record("TAGS\u{1}Aa\u{2}")));
        let both = Filter::parse("Aa||BB", "TAG").expect("a filter");
        assert!(both.matches_record(&record("TAGS\u{1}BB")));
        assert!(both.matches_record(&record("k\u{1}v\u{2}TAGS\u{1}Aa")));
    }

    #[test]
    fn records_match_by_their_tag() {
        let filter = Filter::parse("TagA || 标签", "TAG").expect("a filter");
        for (properties, expected) in [
            ("TAGS\u{1}TagA\u{2}", true),
            ("TAGS\u{1}标签\u{2}", true),
            ("TAGS\u{1}TagB\u{2}", false),
            ("TAGS\u{1}taga\u{2}", false),
            ("TAGS\u{1}\u{2}", false),
            ("", false),
        ] {
            let record = record(properties);
            assert_eq!(filter.matches_record(&record), expected, "{properties}");
            assert!(Filter::All.matches_record(&record));
            let tag = tag_of(&record).expect("a record");
            assert!(!expected || filter.may_match(hash::tags_code(tag)));
        }
        assert!(!filter.may_match(0));
        assert!(Filter::All.may_match(0));
        assert!(!filter.matches_record(b"short"));
        assert!(!tags(&[]).may_match(0), "a subscription to nothing");
    }

    /// Only 32 bits of an entry's code count.
    #[test]
    fn high_bits_of_a_code_do_not_count() {
        let filter = Filter::parse("TopicTest#KEY1", "TAG").expect("a filter");
        assert!(filter.may_match(-1_656_969_516));
        assert!(filter.may_match(i64::from(-1_656_969_516_i32 as u32)));
    }
}
