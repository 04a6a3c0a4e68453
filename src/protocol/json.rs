//! The JSON header: one pass, no tree, no allocation.
//!
//! Strings without escapes are borrowed from the header; the others are unescaped into the scratch, which never
//! makes them longer. Numbers and booleans stand for their text wherever a text is expected, and quoted numbers
//! for numbers, as in fastjson. Raw control characters inside strings are let through for the same reason.
//! Nothing recurses: the nesting of what is skipped is kept in the bits of one word.

use super::command::{
    Command, Encoding, Entry, Fields, HeaderError, LANGUAGE_OTHER, Scratch, Source, Span,
};
use super::frame::Frame;
use crate::limits::{HEADER_DEPTH_MAX, HEADER_FIELDS_MAX};

const _: () = assert!(
    HEADER_DEPTH_MAX <= u64::BITS,
    "one bit for each open container"
);

/// Decodes a header into `scratch`, which is empty.
pub(super) fn decode<'a>(
    frame: &Frame<'a>,
    scratch: &'a mut Scratch,
) -> Result<Command<'a>, HeaderError> {
    let header = std::str::from_utf8(frame.header).map_err(|_| HeaderError::Utf8)?;
    let mut scanner = Scanner {
        header,
        bytes: header.as_bytes(),
        at: 0,
        scratch,
    };
    let envelope = scanner.envelope()?;
    let Scratch { text, entries } = scratch;
    let resolve = |span: Span| span.resolve(header, text);
    Ok(Command {
        encoding: Encoding::Json,
        code: envelope.code,
        language: envelope.language.map_or(LANGUAGE_OTHER, resolve),
        version: envelope.version,
        opaque: envelope.opaque,
        flag: envelope.flag,
        remark: envelope.remark.map(resolve),
        fields: Fields {
            entries,
            header,
            text,
        },
        body: frame.body,
    })
}

/// What the header says beside its fields. Missing numbers are 0.
#[derive(Default)]
struct Envelope {
    code: i32,
    language: Option<Span>,
    version: i32,
    opaque: i32,
    flag: i32,
    remark: Option<Span>,
}

/// Keys of the envelope. The serialize type is among the others: the frame has told it.
enum Key {
    Code,
    Language,
    Version,
    Opaque,
    Flag,
    Remark,
    ExtFields,
    Other,
}

struct Scanner<'h, 's> {
    header: &'h str,
    /// The bytes of `header`.
    bytes: &'h [u8],
    /// Next byte to look at.
    at: usize,
    scratch: &'s mut Scratch,
}

impl Scanner<'_, '_> {
    fn envelope(&mut self) -> Result<Envelope, HeaderError> {
        let mut envelope = Envelope::default();
        self.skip_space();
        self.expect(b'{')?;
        let mut first = true;
        while let Some(key) = self.next_key(first)? {
            first = false;
            match self.key_of(key) {
                Key::Code => envelope.code = self.integer()?,
                Key::Language => envelope.language = self.value()?,
                Key::Version => envelope.version = self.integer()?,
                Key::Opaque => envelope.opaque = self.integer()?,
                Key::Flag => envelope.flag = self.integer()?,
                Key::Remark => envelope.remark = self.value()?,
                Key::ExtFields => self.ext_fields()?,
                Key::Other => self.skip_value()?,
            }
        }
        self.skip_space();
        if self.at == self.bytes.len() {
            Ok(envelope)
        } else {
            Err(self.error())
        }
    }

    fn key_of(&self, key: Span) -> Key {
        match key.resolve(self.header, &self.scratch.text) {
            "code" => Key::Code,
            "language" => Key::Language,
            "version" => Key::Version,
            "opaque" => Key::Opaque,
            "flag" => Key::Flag,
            "remark" => Key::Remark,
            "extFields" => Key::ExtFields,
            _ => Key::Other,
        }
    }

    /// The object of fields, or null. A second one replaces the first.
    fn ext_fields(&mut self) -> Result<(), HeaderError> {
        self.scratch.entries.clear();
        if self.peek() != Some(b'{') {
            return match self.literal()? {
                Literal::Null => Ok(()),
                Literal::Scalar(_) => Err(self.error()),
            };
        }
        self.at += 1;
        let mut first = true;
        while let Some(name) = self.next_key(first)? {
            first = false;
            match self.value()? {
                Some(value) => self.push(Entry { name, value })?,
                None => self.remove(name),
            }
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry) -> Result<(), HeaderError> {
        if self.scratch.entries.len() == HEADER_FIELDS_MAX {
            return Err(HeaderError::TooManyFields {
                max: HEADER_FIELDS_MAX,
            });
        }
        self.scratch.entries.push(entry);
        Ok(())
    }

    /// A null is the last value of its name, so that earlier ones don't count.
    fn remove(&mut self, name: Span) {
        let Scratch { text, entries } = &mut *self.scratch;
        let name = name.resolve(self.header, text);
        entries.retain(|entry| entry.name.resolve(self.header, text) != name);
    }

    /// The next key of an object, with the scanner on its value; `None` behind the closing brace.
    fn next_key(&mut self, first: bool) -> Result<Option<Span>, HeaderError> {
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(None);
        }
        if !first {
            self.expect(b',')?;
            self.skip_space();
        }
        let key = self.string()?;
        self.skip_space();
        self.expect(b':')?;
        self.skip_space();
        Ok(Some(key))
    }

    /// Text of a value; `None` is null. A nested value is its JSON text, as in fastjson.
    fn value(&mut self) -> Result<Option<Span>, HeaderError> {
        match self.peek() {
            Some(b'"') => self.string().map(Some),
            Some(b'{' | b'[') => {
                let start = self.at;
                self.skip_container()?;
                Ok(Some(span(start, self.at, Source::Header)))
            }
            _ => match self.literal()? {
                Literal::Null => Ok(None),
                Literal::Scalar(span) => Ok(Some(span)),
            },
        }
    }

    fn integer(&mut self) -> Result<i32, HeaderError> {
        let at = self.at;
        let Some(span) = self.value()? else {
            return Ok(0);
        };
        let text = span.resolve(self.header, &self.scratch.text);
        text.parse().map_err(|_| error_at(at))
    }

    /// A string, with the scanner on its opening quote.
    fn string(&mut self) -> Result<Span, HeaderError> {
        self.expect(b'"')?;
        let start = self.at;
        match self.find_quote_or_escape()? {
            b'"' => {
                let end = self.at;
                self.at += 1;
                Ok(span(start, end, Source::Header))
            }
            _ => self.escaped_string(start),
        }
    }

    /// Moves to the next quote or backslash.
    fn find_quote_or_escape(&mut self) -> Result<u8, HeaderError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.iter().position(|&byte| matches!(byte, b'"' | b'\\')) {
            Some(distance) => {
                self.at += distance;
                Ok(rest[distance])
            }
            None => {
                self.at = self.bytes.len();
                Err(self.error())
            }
        }
    }

    /// A string that starts at `start`, with the scanner on its first backslash; goes into the scratch.
    fn escaped_string(&mut self, start: usize) -> Result<Span, HeaderError> {
        let text_start = self.scratch.text.len();
        let mut plain_start = start;
        loop {
            let stop = self.find_quote_or_escape()?;
            let plain = self.header.get(plain_start..self.at).unwrap_or_default();
            self.scratch.text.push_str(plain);
            self.at += 1;
            if stop == b'"' {
                break;
            }
            let character = self.escape()?;
            self.scratch.text.push(character);
            plain_start = self.at;
        }
        Ok(span(text_start, self.scratch.text.len(), Source::Scratch))
    }

    /// The character of an escape, with the scanner behind its backslash.
    fn escape(&mut self) -> Result<char, HeaderError> {
        let byte = self.peek().ok_or_else(|| self.error())?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{C}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => {
                self.at -= 1;
                return Err(self.error());
            }
        })
    }

    /// The character of `\uXXXX` or of a surrogate pair, with the scanner behind the `u`. Half a pair becomes
    /// U+FFFD: no UTF-8 text can hold it.
    fn unicode_escape(&mut self) -> Result<char, HeaderError> {
        let unit = self.hex_unit()?;
        if !(0xD800..0xDC00).contains(&unit) {
            return Ok(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if !rest.starts_with(b"\\u") {
            return Ok(char::REPLACEMENT_CHARACTER);
        }
        let second_at = self.at;
        self.at += 2;
        let second = self.hex_unit()?;
        if (0xDC00..0xE000).contains(&second) {
            let code_point = 0x1_0000 + ((unit - 0xD800) << 10) + (second - 0xDC00);
            Ok(char::from_u32(code_point).unwrap_or(char::REPLACEMENT_CHARACTER))
        } else {
            self.at = second_at;
            Ok(char::REPLACEMENT_CHARACTER)
        }
    }

    fn hex_unit(&mut self) -> Result<u32, HeaderError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.error())?;
            self.at += 1;
        }
        Ok(unit)
    }

    /// null, true, false or a number. Numbers are not checked to the letter: they are texts to whoever reads them.
    fn literal(&mut self) -> Result<Literal, HeaderError> {
        let start = self.at;
        let rest = self.bytes.get(start..).unwrap_or_default();
        let is_literal =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = rest.iter().take_while(|byte| is_literal(byte)).count();
        let scalar = match &rest[..length] {
            b"null" => Literal::Null,
            b"true" | b"false" => Literal::Scalar(span(start, start + length, Source::Header)),
            [b'-' | b'0'..=b'9', ..] => {
                Literal::Scalar(span(start, start + length, Source::Header))
            }
            _ => return Err(self.error()),
        };
        self.at += length;
        Ok(scalar)
    }

    fn skip_value(&mut self) -> Result<(), HeaderError> {
        match self.peek() {
            Some(b'"') => self.skip_string(),
            Some(b'{' | b'[') => self.skip_container(),
            _ => self.literal().map(|_| ()),
        }
    }

    fn skip_string(&mut self) -> Result<(), HeaderError> {
        self.expect(b'"')?;
        while self.find_quote_or_escape()? == b'\\' {
            self.at += 2;
        }
        self.at += 1;
        Ok(())
    }

    /// Skips an object or array and all in it. Brackets must match; commas and colons are not looked at.
    fn skip_container(&mut self) -> Result<(), HeaderError> {
        // One bit for each open container, the innermost lowest: 1 = object.
        let mut open: u64 = 0;
        let mut depth = 0;
        loop {
            let byte = self.peek().ok_or_else(|| self.error())?;
            match byte {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'{' | b'[' => {
                    if depth == HEADER_DEPTH_MAX {
                        return Err(self.error());
                    }
                    open = open << 1 | u64::from(byte == b'{');
                    depth += 1;
                }
                b'}' | b']' => {
                    if (open & 1 == 1) != (byte == b'}') {
                        return Err(self.error());
                    }
                    open >>= 1;
                    depth -= 1;
                }
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), HeaderError> {
        if self.peek() != Some(byte) {
            return Err(self.error());
        }
        self.at += 1;
        Ok(())
    }

    fn error(&self) -> HeaderError {
        error_at(self.at)
    }
}

enum Literal {
    Null,
    Scalar(Span),
}

fn span(start: usize, end: usize, source: Source) -> Span {
    Span { start, end, source }
}

fn error_at(at: usize) -> HeaderError {
    HeaderError::Json {
        at: u32::try_from(at).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_header(header: &str, expected: impl FnOnce(Result<Command<'_>, HeaderError>)) {
        let mut scratch = Scratch::default();
        let frame = Frame {
            encoding: Encoding::Json,
            header: header.as_bytes(),
            body: b"",
            bytes: 0,
        };
        expected(Command::decode(&frame, &mut scratch));
    }

    /// Checks the fields of `{"extFields":<fields>}`.
    fn check_fields(fields: &str, expected: &[(&str, &str)]) {
        with_header(&format!("{{\"extFields\":{fields}}}"), |command| {
            let command = command.unwrap_or_else(|error| panic!("{fields}: {error}"));
            assert_eq!(
                command.fields.iter().collect::<Vec<_>>(),
                expected,
                "{fields}"
            );
        });
    }

    fn check_error(header: &str, at: u32) {
        with_header(header, |command| {
            assert_eq!(command.err(), Some(HeaderError::Json { at }), "{header}");
        });
    }

    #[test]
    fn missing_keys_have_defaults() {
        for header in [
            "{}",
            " {\n} \n",
            r#"{"flag":null,"remark":null,"extFields":null,"language":null}"#,
        ] {
            with_header(header, |command| {
                let command = command.expect("a header");
                assert_eq!(
                    (command.code, command.version, command.opaque, command.flag),
                    (0, 0, 0, 0)
                );
                assert_eq!((command.language, command.remark), ("OTHER", None));
                assert_eq!(command.fields.iter().count(), 0);
            });
        }
    }

    /// Trap 0 of `conventions.md`: Go, C++ and Node leave `serializeTypeCurrentRPC` out, some send an empty remark.
    #[test]
    fn header_of_a_go_client_is_read() {
        let header = r#"{"code":105,"language":"GO","version":317,"opaque":2,"flag":0,"remark":"","extFields":{"topic":"T"}}"#;
        with_header(header, |command| {
            let command = command.expect("a header");
            assert_eq!(
                (command.code, command.language, command.version),
                (105, "GO", 317)
            );
            assert_eq!((command.opaque, command.remark), (2, Some("")));
            assert_eq!(command.fields.get("topic"), Some("T"));
        });
    }

    /// Trap 2: `ali-ons` sends JSON numbers and booleans as field values.
    #[test]
    fn scalars_in_ext_fields_are_coerced_to_text() {
        check_fields(
            r#"{"d":4,"k":false,"t":true,"g":1796098557281,"n":-1,"f":1.5e3}"#,
            &[
                ("d", "4"),
                ("k", "false"),
                ("t", "true"),
                ("g", "1796098557281"),
                ("n", "-1"),
                ("f", "1.5e3"),
            ],
        );
    }

    /// Trap 4: C++ sends `OnsChannel` and signatures without credentials, and a newline behind the header.
    #[test]
    fn header_of_a_cpp_client_is_read() {
        let header = "{\"code\":105,\"extFields\":{\"AccessKey\":\"\",\"OnsChannel\":\"ALIYUN\",\"Signature\":\"F+Q=\",\
            \"topic\":\"S\"},\"flag\":0,\"language\":\"CPP\",\"opaque\":0,\"remark\":\"\",\"version\":63}\n";
        with_header(header, |command| {
            let command = command.expect("a header");
            assert_eq!(
                (command.language, command.fields.get("topic")),
                ("CPP", Some("S"))
            );
            assert_eq!(command.fields.get("AccessKey"), Some(""));
        });
    }

    #[test]
    fn null_is_absent_and_the_last_of_a_name_wins() {
        check_fields(r#"{"a":null,"b":"1"}"#, &[("b", "1")]);
        check_fields(r#"{"a":"1","b":"2","a":null}"#, &[("b", "2")]);
        with_header(
            r#"{"code":1,"code":2,"extFields":{"x":"1"},"extFields":{"a":"1","a":"2"}}"#,
            |command| {
                let command = command.expect("a header");
                assert_eq!(command.code, 2);
                assert_eq!(
                    (command.fields.get("a"), command.fields.get("x")),
                    (Some("2"), None)
                );
            },
        );
    }

    #[test]
    fn escapes_are_unescaped() {
        let cases = [
            (r"TAGS\u0001TagA\u0002", "TAGS\u{1}TagA\u{2}"),
            (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{C}\n\r\t"),
            (r"ü\u00fc\u4E3B主", "üü主主"),
            (r"\ud83d\ude00!", "\u{1F600}!"),
            // Halves of pairs, alone, twice, or before another escape.
            (r"\ud83d", "\u{FFFD}"),
            (r"\ude00x", "\u{FFFD}x"),
            (r"\ud83d\ud83d\ude00", "\u{FFFD}\u{1F600}"),
            (r"\ud83d\n", "\u{FFFD}\n"),
            (r"\u0000", "\0"),
        ];
        for (escaped, expected) in cases {
            check_fields(&format!("{{\"i\":\"{escaped}\"}}"), &[("i", expected)]);
            check_fields(
                &format!("{{\"x{escaped}\":\"v\"}}"),
                &[(&format!("x{expected}"), "v")],
            );
        }
    }

    #[test]
    fn raw_control_characters_are_let_through() {
        check_fields("{\"i\":\"a\u{1}b\u{2}\"}", &[("i", "a\u{1}b\u{2}")]);
    }

    #[test]
    fn escaped_keys_are_keys() {
        with_header(
            r#"{"c\u006fde":7,"extFields":{"\u0061":"x","b":"\u0062"},"remark":"a\tb"}"#,
            |command| {
                let command = command.expect("a header");
                assert_eq!((command.code, command.remark), (7, Some("a\tb")));
                assert_eq!(
                    command.fields.iter().collect::<Vec<_>>(),
                    [("a", "x"), ("b", "b")]
                );
            },
        );
    }

    #[test]
    fn quoted_numbers_are_numbers() {
        with_header(
            r#"{"code":"105","opaque":-2147483648,"version":"\u0037"}"#,
            |command| {
                let command = command.expect("a header");
                assert_eq!(
                    (command.code, command.opaque, command.version),
                    (105, i32::MIN, 7)
                );
            },
        );
    }

    #[test]
    fn unknown_keys_are_skipped_whatever_they_hold() {
        let header = r#"{"x":{"a":[1,{"b":"]}\""},[]],"c":null},"y":[],"z":"\u0031\\","w":-1.5E+3,"code":9}"#;
        with_header(header, |command| {
            assert_eq!(command.expect("a header").code, 9)
        });
    }

    #[test]
    fn nested_value_of_a_field_is_its_text() {
        check_fields(
            r#"{"a":{"b":[1, 2]},"c":"d"}"#,
            &[("a", r#"{"b":[1, 2]}"#), ("c", "d")],
        );
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        let max = HEADER_DEPTH_MAX as usize;
        with_header(&nested(max), |command| assert!(command.is_ok()));
        check_error(&nested(max + 1), 5 + HEADER_DEPTH_MAX);
    }

    #[test]
    fn broken_headers_name_the_byte() {
        for (header, at) in [
            ("", 0),
            ("[]", 0),
            ("{", 1),
            (r#"{"a"#, 3),
            (r#"{"a"}"#, 4),
            (r#"{"a":}"#, 5),
            (r#"{"a":1,}"#, 7),
            (r#"{"a":1 "b":2}"#, 7),
            (r#"{"a":1}x"#, 7),
            (r#"{"code":1.5}"#, 8),
            (r#"{"code":2147483648}"#, 8),
            (r#"{"code":nul}"#, 8),
            (r#"{"code":"\x"}"#, 10),
            (r#"{"code":"\u00g0"}"#, 13),
            (r#"{"extFields":[]}"#, 13),
            (r#"{"extFields":1}"#, 14),
            (r#"{"extFields":{"a":"b"}"#, 22),
            (r#"{"x":[}]}"#, 6),
            (r#"{"x":"\"#, 7),
            (r#"{'code':1}"#, 1),
        ] {
            check_error(header, at);
        }
    }

    #[test]
    fn header_that_is_not_utf8_is_refused() {
        let frame = Frame {
            encoding: Encoding::Json,
            header: b"{\"remark\":\"\xFF\"}",
            body: b"",
            bytes: 0,
        };
        let mut scratch = Scratch::default();
        assert_eq!(
            Command::decode(&frame, &mut scratch).err(),
            Some(HeaderError::Utf8)
        );
    }

    #[test]
    fn fields_are_bounded() {
        let fields = |count: usize| {
            let fields: Vec<String> = (0..count).map(|n| format!("\"{n}\":{n}")).collect();
            format!("{{\"extFields\":{{{}}}}}", fields.join(","))
        };
        let max = HEADER_FIELDS_MAX;
        with_header(&fields(max), |command| {
            assert_eq!(command.expect("a header").fields.get("255"), Some("255"));
        });
        with_header(&fields(max + 1), |command| {
            assert_eq!(command.err(), Some(HeaderError::TooManyFields { max }));
        });
    }
}
