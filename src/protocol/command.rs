//! RemotingCommand, the envelope of every request and response; JSON and ROCKETMQ binary are its encodings.
//!
//! Decoding borrows: texts without escapes point into the frame, the others into a [`Scratch`] that keeps its
//! capacity, so that the hot path allocates nothing. The fields are told apart by scanning once; what they mean is
//! up to [`super::headers`] and the handlers.

use super::frame::Frame;
use super::{binary, json};
use crate::limits::HEADER_BYTES_MAX;
use std::num::NonZeroU64;

/// Serialize type of a header; the first byte of the header word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Json = 0,
    Binary = 1,
}

/// Version that ringmq gives in every frame: the ordinal of V5_3_3. Java clients need at least 232 to filter by SQL92.
pub const VERSION: i32 = 479;

pub const FLAG_RESPONSE: i32 = 1;
pub const FLAG_ONE_WAY: i32 = 2;

/// Language of a header that names none, or none that is known.
pub(super) const LANGUAGE_OTHER: &str = "OTHER";

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("header is not JSON at byte {at}")]
    Json { at: u32 },
    #[error("binary header ends inside a field")]
    Truncated,
    #[error("more than {max} fields")]
    TooManyFields { max: usize },
}

/// Memory of a decoder, kept over calls so that decoding a send or a pull allocates nothing in steady state.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Unescaped text of strings that had escapes, and every text of a binary header.
    pub(super) text: String,
    pub(super) entries: Vec<Entry>,
    /// A JSON header that was not UTF-8, made so.
    pub(super) repaired: String,
}

impl Scratch {
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }
}

/// Place of a text: bytes of the header or of the scratch.
///
/// **Shape**: bit 63 tells the scratch from the header, then 31 bits of start and 32 of end; plus 1, so that an
/// `Option<Span>` is a word too and travels in a register. Headers are far shorter than 2 GiB (`HEADER_BYTES_MAX`),
/// and unescaped text is no longer than what it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(NonZeroU64);

impl Span {
    const SCRATCH_BIT: u64 = 1 << 63;

    pub fn header(start: usize, end: usize) -> Self {
        Self(NonZeroU64::MIN.saturating_add((start as u64) << 32 | end as u64))
    }

    pub fn scratch(start: usize, end: usize) -> Self {
        Self(Self::header(start, end).0 | Self::SCRATCH_BIT)
    }

    pub fn resolve<'a>(self, header: &'a str, text: &'a str) -> &'a str {
        let bits = self.0.get() - 1;
        let source = if bits & Self::SCRATCH_BIT == 0 {
            header
        } else {
            text
        };
        let start = (bits & !Self::SCRATCH_BIT) >> 32;
        let end = bits & u64::from(u32::MAX);
        // A span is made from the text that it is resolved against and ends at ASCII delimiters or whole texts.
        let bytes = start as usize..end as usize;
        source.get(bytes).unwrap_or_default()
    }
}

const _: () = assert!(HEADER_BYTES_MAX < 1 << 29, "a span of a repaired header");

/// One field of the extFields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub name: Span,
    pub value: Span,
}

/// A decoded header, borrowed from the frame and the scratch.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    pub encoding: Encoding,
    pub code: i32,
    /// Name as sent in JSON ("JAVA"), or the name of the binary code; "OTHER" where missing or unknown.
    pub language: &'a str,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<&'a str>,
    pub fields: Fields<'a>,
    pub body: &'a [u8],
}

/// The extFields: names and texts in the order of the frame. Scalars are coerced to text, nulls are left out.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    pub(super) entries: &'a [Entry],
    pub(super) header: &'a str,
    pub(super) text: &'a str,
}

impl<'a> Fields<'a> {
    /// Text of a field; of a name that is there twice, the last.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.entries
            .iter()
            .rfind(|entry| entry.name.resolve(self.header, self.text) == name)
            .map(|entry| entry.value.resolve(self.header, self.text))
    }

    /// All fields in order. A name that is there twice comes twice: whoever collects lets the last win.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let Fields {
            entries,
            header,
            text,
        } = *self;
        entries.iter().map(move |entry| {
            (
                entry.name.resolve(header, text),
                entry.value.resolve(header, text),
            )
        })
    }
}

/// A field that the handler needs is missing or not what it must be. Answered with code 1 and this text
/// (Java: "the custom field <name> is null").
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FieldError {
    #[error("the custom field <{0}> is null")]
    Missing(&'static str),
    #[error("the custom field <{name}> is not {expected}: {value:.40}")]
    Invalid {
        name: &'static str,
        expected: &'static str,
        value: String,
    },
}

/// Parses an i32 as Java's `Integer.parseInt` does. An empty text counts as a missing field.
pub(super) fn parse_i32(name: &'static str, value: &str) -> Result<Option<i32>, FieldError> {
    parse(name, value, "a 32-bit integer")
}

/// Parses an i64 as Java's `Long.parseLong` does. An empty text counts as a missing field.
pub(super) fn parse_i64(name: &'static str, value: &str) -> Result<Option<i64>, FieldError> {
    parse(name, value, "a 64-bit integer")
}

fn parse<T: std::str::FromStr>(
    name: &'static str,
    value: &str,
    expected: &'static str,
) -> Result<Option<T>, FieldError> {
    if value.is_empty() {
        return Ok(None);
    }
    match value.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(FieldError::Invalid {
            name,
            expected,
            // The message shows 40 characters; what a client sent may be half a megabyte.
            value: value.chars().take(40).collect(),
        }),
    }
}

/// Case-insensitive "true" is true, anything else false: C++ clients send "1" and Java reads it as false.
pub(super) fn parse_bool(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

impl<'a> Command<'a> {
    /// Decodes the header of a frame. Tolerates every field order, missing `language`, `version`, `remark`,
    /// `extFields`, `serializeTypeCurrentRPC`, unknown keys, white space, null, numbers and booleans as field values.
    /// Bytes that are not UTF-8 become U+FFFD, as in Java: C++ clients send texts of any charset.
    ///
    /// **Errors**: the header can't be read, so there is no opaque to answer to; the connection is closed.
    /// **Source**: apache/rocketmq 4.9.8 `remoting/.../protocol/RemotingCommand.java` `headerDecode`.
    pub fn decode(frame: &Frame<'a>, scratch: &'a mut Scratch) -> Result<Command<'a>, HeaderError> {
        scratch.clear();
        match frame.encoding {
            Encoding::Json => json::decode(frame, scratch),
            Encoding::Binary => binary::decode(frame, scratch),
        }
    }

    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    pub fn is_one_way(&self) -> bool {
        self.flag & FLAG_ONE_WAY != 0
    }

    pub fn text(&self, name: &'static str) -> Option<&'a str> {
        self.fields.get(name)
    }

    pub fn require_text(&self, name: &'static str) -> Result<&'a str, FieldError> {
        self.text(name).ok_or(FieldError::Missing(name))
    }

    /// An i32; `None` where the field is missing or empty.
    pub fn i32(&self, name: &'static str) -> Result<Option<i32>, FieldError> {
        parse_i32(name, self.text(name).unwrap_or_default())
    }

    pub fn require_i32(&self, name: &'static str) -> Result<i32, FieldError> {
        self.i32(name)?.ok_or(FieldError::Missing(name))
    }

    /// An i64; `None` where the field is missing or empty.
    pub fn i64(&self, name: &'static str) -> Result<Option<i64>, FieldError> {
        parse_i64(name, self.text(name).unwrap_or_default())
    }

    pub fn require_i64(&self, name: &'static str) -> Result<i64, FieldError> {
        self.i64(name)?.ok_or(FieldError::Missing(name))
    }

    /// Case-insensitive "true" is true, anything else false, as Java parses it.
    pub fn bool(&self, name: &'static str) -> Option<bool> {
        self.text(name).map(parse_bool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frame::{Split, split};

    /// The frames of `framing.md` sections 2 and 5: the same request in both encodings.
    const JSON_REQUEST: &[u8] = b"\x00\x00\x00\x7F\x00\x00\x00\x7B{\"code\":105,\"extFields\":{\"topic\":\"T\"},\
        \"flag\":0,\"language\":\"JAVA\",\"opaque\":1,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":401}";
    const BINARY_REQUEST: &[u8] = &[
        0, 0, 0, 0x25, 1, 0, 0, 0x21, 0, 0x69, 0, 1, 0x91, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0x0C, 0, 5, 0x74, 0x6F, 0x70, 0x69, 0x63, 0, 0, 0, 1, 0x54,
    ];

    fn whole(stream: &[u8]) -> Frame<'_> {
        match split(stream).expect("a frame") {
            Split::Frame(frame) => frame,
            incomplete => panic!("{incomplete:?}"),
        }
    }

    #[test]
    fn route_request_reads_the_same_in_both_encodings() {
        for (stream, encoding) in [
            (JSON_REQUEST, Encoding::Json),
            (BINARY_REQUEST, Encoding::Binary),
        ] {
            let mut scratch = Scratch::default();
            let command = Command::decode(&whole(stream), &mut scratch).expect("a header");
            assert_eq!(command.encoding, encoding);
            assert_eq!(
                (command.code, command.language, command.version),
                (105, "JAVA", 401)
            );
            assert_eq!((command.opaque, command.flag, command.remark), (1, 0, None));
            assert_eq!(command.fields.iter().collect::<Vec<_>>(), [("topic", "T")]);
            assert_eq!(command.body, b"");
            assert!(!command.is_response());
            assert!(!command.is_one_way());
        }
    }

    #[test]
    fn accessors_follow_java() {
        let header = br#"{"extFields":{"n":"7","big":"9223372036854775807","neg":"-1","plus":"+3","bad":"7x",
            "empty":"","yes":"TRUE","one":"1","text":"t"}}"#;
        let frame = Frame {
            encoding: Encoding::Json,
            header,
            body: b"",
            bytes: 0,
        };
        let mut scratch = Scratch::default();
        let command = Command::decode(&frame, &mut scratch).expect("a header");
        assert_eq!(command.i32("n"), Ok(Some(7)));
        assert_eq!(command.require_i64("big"), Ok(i64::MAX));
        assert_eq!(command.require_i32("neg"), Ok(-1));
        assert_eq!(command.i32("plus"), Ok(Some(3)));
        assert_eq!(command.i32("empty"), Ok(None));
        assert_eq!(command.i64("absent"), Ok(None));
        assert_eq!(
            command.require_i64("absent"),
            Err(FieldError::Missing("absent"))
        );
        let error = command.require_i32("bad").expect_err("not a number");
        assert_eq!(
            error.to_string(),
            "the custom field <bad> is not a 32-bit integer: 7x"
        );
        assert!(command.i32("big").is_err());
        assert_eq!(command.bool("yes"), Some(true));
        assert_eq!(command.bool("one"), Some(false));
        assert_eq!(command.bool("absent"), None);
        assert_eq!(command.require_text("empty"), Ok(""));
        let missing = command.require_text("topic").expect_err("missing");
        assert_eq!(missing.to_string(), "the custom field <topic> is null");
    }
}
