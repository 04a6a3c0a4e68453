//! RemotingCommand, the envelope of every request and response; [`super::json`] and [`super::binary`] are its
//! encodings.

use super::frame::Frame;
use super::{binary, json};
use crate::limits::HEADER_FIELDS_MAX;

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

/// A header that can't be read; the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("header is not JSON at byte {at}")]
    Json { at: u32 },
    #[error("binary header ends inside a field")]
    Truncated,
    #[error("text is not UTF-8")]
    Utf8,
    #[error("more than {HEADER_FIELDS_MAX} fields")]
    TooManyFields,
}

/// A piece of the header, or of the scratch where it had to be unescaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u32,
    pub end: u32,
    pub in_text: bool,
}

/// Memory of a decoder, kept over calls so that decoding a send or a pull allocates nothing in steady state.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Text of strings that had escapes.
    pub(super) text: String,
    pub(super) fields: Vec<(Span, Span)>,
}

impl Scratch {
    fn clear(&mut self) {
        self.text.clear();
        self.fields.clear();
    }

    pub(super) fn push(&mut self, name: Span, value: Span) -> Result<(), HeaderError> {
        if self.fields.len() >= HEADER_FIELDS_MAX {
            return Err(HeaderError::TooManyFields);
        }
        self.fields.push((name, value));
        Ok(())
    }
}

/// The fixed part of a header, as its decoder found it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Envelope {
    pub code: i32,
    pub language: Option<Span>,
    pub language_code: Option<u8>,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<Span>,
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
    scratch: &'a Scratch,
    header: &'a [u8],
}

impl<'a> Fields<'a> {
    fn span(self, span: Span) -> &'a str {
        let range = span.start as usize..span.end as usize;
        if span.in_text {
            self.scratch.text.get(range).unwrap_or_default()
        } else {
            // Decoders have checked the text; a failed look-up would be an empty field, never a panic.
            self.header
                .get(range)
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .unwrap_or_default()
        }
    }

    /// The text of a field; the last one wins where a name comes twice.
    pub fn get(self, name: &str) -> Option<&'a str> {
        let found = self.scratch.fields.iter().rev().find(|(n, _)| {
            let bytes = (n.end - n.start) as usize;
            bytes == name.len() && self.span(*n) == name
        })?;
        Some(self.span(found.1))
    }

    pub fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.scratch
            .fields
            .iter()
            .map(move |(name, value)| (self.span(*name), self.span(*value)))
    }
}

/// A field that the handler needs is missing or not what it must be. Answered with code 1 and this text.
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

impl<'a> Command<'a> {
    /// Decodes the header of a frame. Tolerates every field order, missing `language`, `version`, `remark`,
    /// `extFields`, `serializeTypeCurrentRPC`, unknown keys, white space, null, numbers and booleans as field values.
    ///
    /// **Errors**: [`HeaderError`]; the connection is closed, since the asker's opaque is not known.
    pub fn decode(frame: &Frame<'a>, scratch: &'a mut Scratch) -> Result<Command<'a>, HeaderError> {
        scratch.clear();
        let envelope = match frame.encoding {
            Encoding::Json => json::decode(frame.header, scratch)?,
            Encoding::Binary => binary::decode(frame.header, scratch)?,
        };
        let fields = Fields {
            scratch,
            header: frame.header,
        };
        let language = match (envelope.language, envelope.language_code) {
            (Some(span), _) => fields.span(span),
            (None, Some(code)) => LANGUAGES.get(usize::from(code)).copied().unwrap_or("OTHER"),
            (None, None) => "OTHER",
        };
        Ok(Command {
            encoding: frame.encoding,
            code: envelope.code,
            language,
            version: envelope.version,
            opaque: envelope.opaque,
            flag: envelope.flag,
            remark: envelope.remark.map(|span| fields.span(span)),
            fields,
            body: frame.body,
        })
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

    pub fn i32(&self, name: &'static str) -> Result<Option<i32>, FieldError> {
        self.number(name, "a 32-bit integer")
    }

    pub fn require_i32(&self, name: &'static str) -> Result<i32, FieldError> {
        self.i32(name)?.ok_or(FieldError::Missing(name))
    }

    pub fn i64(&self, name: &'static str) -> Result<Option<i64>, FieldError> {
        self.number(name, "a 64-bit integer")
    }

    pub fn require_i64(&self, name: &'static str) -> Result<i64, FieldError> {
        self.i64(name)?.ok_or(FieldError::Missing(name))
    }

    fn number<T: std::str::FromStr>(
        &self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, FieldError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let invalid = |_| FieldError::Invalid {
            name,
            expected,
            value: text.to_owned(),
        };
        text.parse().map(Some).map_err(invalid)
    }

    /// Case-insensitive "true" is true, anything else false, as Java parses it.
    pub fn bool(&self, name: &'static str) -> Option<bool> {
        self.text(name)
            .map(|text| text.eq_ignore_ascii_case("true"))
    }
}

/// Languages by their binary code. Source: apache/rocketmq `LanguageCode`.
pub const LANGUAGES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
];

#[cfg(test)]
mod tests {
    use super::super::codes::ResponseCode;
    use super::super::frame::{Split, split};
    use super::super::headers::{PullHeader, SendHeader};
    use super::super::response::{Request, Response, ResponseHeader};
    use super::*;
    use bytes::BytesMut;

    fn json(header: &str) -> Frame<'_> {
        Frame {
            encoding: Encoding::Json,
            header: header.as_bytes(),
            body: &[],
            bytes: 0,
        }
    }

    fn fields(header: &str) -> Vec<(String, String)> {
        let mut scratch = Scratch::default();
        let frame = json(header);
        let command = Command::decode(&frame, &mut scratch).expect(header);
        command
            .fields
            .iter()
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect()
    }

    #[test]
    fn headers_of_non_java_clients_are_read() {
        let pair = |n: &str, v: &str| (n.to_owned(), v.to_owned());
        // Go: no serializeTypeCurrentRPC, empty remark.
        let go = r#"{"code":17,"language":"GO","version":317,"opaque":1,"flag":0,"remark":"","extFields":{"topic":"T"}}"#;
        assert_eq!(fields(go), [pair("topic", "T")]);
        // Node: numbers and booleans inside extFields.
        let node = r#"{"code":310,"extFields":{"d":4,"k":false,"n":null,"g":1.5e3,"x":{"y":[1]}},"flag":0,"opaque":2}"#;
        assert_eq!(
            fields(node),
            [pair("d", "4"), pair("k", "false"), pair("g", "1.5e3")]
        );
        assert_eq!(fields("{}"), []);
        assert_eq!(
            fields(r#" { "extFields" : null , "unknown":[{"a":"\u0041"},2] } "#),
            []
        );
        assert_eq!(
            fields(r#"{"extFields":{"a":"1","a":"2"}}"#).last(),
            Some(&pair("a", "2"))
        );
    }

    #[test]
    fn escapes_become_text() {
        let header = r#"{"code":10,"extFields":{"i":"TAGS\u0001A\u0002k\u0001\"\\\/\n\u00e9\ud83d\ude00\ud83d\u0002","j":"plain"}}"#;
        let got = fields(header);
        assert_eq!(got[0].1, "TAGS\u{1}A\u{2}k\u{1}\"\\/\né😀\u{FFFD}\u{2}");
        assert_eq!(got[1].1, "plain");
    }

    #[test]
    fn broken_headers_are_errors() {
        for bad in [
            "",
            "{",
            "[]",
            "{\"code\"}",
            "{\"code\":}",
            "{\"code\":1,}",
            "{\"code\":1}x",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\ud8",
            "nul",
            "{\"code\":\"x\"}",
            "{\"extFields\":{\"a\":1",
        ] {
            let mut scratch = Scratch::default();
            assert!(Command::decode(&json(bad), &mut scratch).is_err(), "{bad}");
        }
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(1000), "]".repeat(1000));
        assert!(Command::decode(&json(&deep), &mut Scratch::default()).is_err());
    }

    #[test]
    fn the_binary_example_of_the_format_is_read() {
        let bytes = [
            0, 0, 0, 0x25, 1, 0, 0, 0x21, 0, 0x69, 0, 1, 0x91, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0x0C, 0, 5, b't', b'o', b'p', b'i', b'c', 0, 0, 0, 1, b'T',
        ];
        let Ok(Split::Frame(frame)) = split(&bytes) else {
            panic!("a frame")
        };
        let mut scratch = Scratch::default();
        let command = Command::decode(&frame, &mut scratch).expect("binary");
        assert_eq!(
            (
                command.code,
                command.version,
                command.opaque,
                command.language
            ),
            (105, 401, 1, "JAVA")
        );
        assert_eq!(command.text("topic"), Some("T"));
        for end in 0..frame.header.len() {
            let cut = Frame {
                header: &frame.header[..end],
                ..frame
            };
            assert!(
                Command::decode(&cut, &mut Scratch::default()).is_err(),
                "cut at {end}"
            );
        }
    }

    #[test]
    fn what_is_written_is_read_back_in_both_encodings() {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let fields: &[(&str, &str)] = &[("topic", "T\u{1}\"x\""), ("queueId", "7")];
            let request = Request {
                code: 40,
                opaque: -5,
                one_way: true,
                encoding,
                fields,
                body: b"body",
            };
            let mut out = BytesMut::new();
            request.encode(&mut out);
            let Ok(Split::Frame(frame)) = split(&out) else {
                panic!("a frame")
            };
            let mut scratch = Scratch::default();
            let command = Command::decode(&frame, &mut scratch).expect("decodes");
            assert_eq!(
                (command.code, command.opaque, command.flag, command.body),
                (40, -5, 2, &b"body"[..])
            );
            assert_eq!(command.fields.iter().collect::<Vec<_>>(), fields);

            let mut response = Response::error(ResponseCode::PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE");
            response.header = ResponseHeader::Offset(-1);
            out.clear();
            response.encode_head(9, encoding, &mut out);
            let Ok(Split::Frame(frame)) = split(&out) else {
                panic!("a frame")
            };
            let mut scratch = Scratch::default();
            let command = Command::decode(&frame, &mut scratch).expect("decodes");
            assert!(command.is_response() && !command.is_one_way());
            assert_eq!(
                (command.code, command.remark),
                (19, Some("OFFSET_OVERFLOW_ONE"))
            );
            assert_eq!(command.require_i64("offset"), Ok(-1));
            assert_eq!((command.version, command.language), (VERSION, "JAVA"));
        }
    }

    #[test]
    fn java_order_of_a_json_header_is_kept() {
        let mut out = BytesMut::new();
        Response::with_header(ResponseHeader::Offset(5)).encode_head(7, Encoding::Json, &mut out);
        let expected = r#"{"code":0,"extFields":{"offset":"5"},"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}"#;
        assert_eq!(std::str::from_utf8(&out[8..]), Ok(expected));
    }

    #[test]
    fn a_cpp_batch_marker_is_no_batch() {
        let header = r#"{"code":310,"extFields":{"a":"g","b":"T","c":"TBW102","d":"4","e":"0","f":"0","g":"1","h":"0","m":"1"}}"#;
        let frame = json(header);
        let mut scratch = Scratch::default();
        let command = Command::decode(&frame, &mut scratch).expect("decodes");
        let send = SendHeader::decode(&command).expect("a send");
        assert_eq!(
            (send.batch, send.max_reconsume_times, send.topic),
            (false, None, "T")
        );
        assert_eq!(
            PullHeader::decode(&command),
            Err(FieldError::Missing("consumerGroup"))
        );
    }
}
