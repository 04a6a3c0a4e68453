//! The JSON header: one pass, no tree, no allocation.
//!
//! Strings without escapes are borrowed from the header; the others are unescaped into the scratch, which never
//! makes them longer. Numbers and booleans stand for their text wherever a text is expected, and quoted numbers
//! for numbers, as in fastjson. Raw control characters inside strings are let through for the same reason.
//! Nothing recurses: the nesting of what is skipped is kept in the bits of one word.

use super::command::{
    Command, Encoding, Entry, Fields, HeaderError, LANGUAGE_OTHER, Scratch, Span,
};
use super::frame::Frame;
use super::scan;
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
    let Scratch {
        text,
        entries,
        repaired,
    } = scratch;
    let header = match std::str::from_utf8(frame.header) {
        Ok(header) => header,
        Err(_) => {
            *repaired = String::from_utf8_lossy(frame.header).into_owned();
            repaired
        }
    };
    let mut scanner = Scanner {
        header,
        bytes: header.as_bytes(),
        at: 0,
        text,
        entries,
        has_too_many_fields: false,
    };
    let envelope = scanner.envelope().ok_or_else(|| scanner.error())?;
    let text: &str = text;
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

/// A value where a text is wanted.
enum Value {
    Null,
    Text(Span),
}

/// A key of an object, or its end.
enum Next {
    Key(Span),
    End,
}

/// The state of a scan. Methods return `None` where the header is not JSON, with `at` on the byte that isn't: a
/// `Result` with the error in it would be handed through memory on every call, which shows on the hot path.
struct Scanner<'h, 's> {
    header: &'h str,
    /// The bytes of `header`.
    bytes: &'h [u8],
    /// Next byte to look at.
    at: usize,
    /// Unescaped texts.
    text: &'s mut String,
    entries: &'s mut Vec<Entry>,
    /// The scan ended for this reason, not for its syntax.
    has_too_many_fields: bool,
}

impl Scanner<'_, '_> {
    fn error(&self) -> HeaderError {
        if self.has_too_many_fields {
            let max = HEADER_FIELDS_MAX;
            return HeaderError::TooManyFields { max };
        }
        HeaderError::Json {
            at: u32::try_from(self.at).unwrap_or(u32::MAX),
        }
    }

    fn envelope(&mut self) -> Option<Envelope> {
        let mut envelope = Envelope::default();
        self.skip_space();
        self.expect(b'{')?;
        let mut first = true;
        while let Next::Key(key) = self.next_key(first)? {
            first = false;
            match self.key_of(key) {
                Key::Code => envelope.code = self.integer()?,
                Key::Language => envelope.language = self.text()?,
                Key::Version => envelope.version = self.integer()?,
                Key::Opaque => envelope.opaque = self.integer()?,
                Key::Flag => envelope.flag = self.integer()?,
                Key::Remark => envelope.remark = self.text()?,
                Key::ExtFields => self.ext_fields()?,
                Key::Other => self.skip_value()?,
            }
        }
        self.skip_space();
        (self.at == self.bytes.len()).then_some(envelope)
    }

    fn key_of(&self, key: Span) -> Key {
        match key.resolve(self.header, self.text) {
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
    fn ext_fields(&mut self) -> Option<()> {
        self.entries.clear();
        if self.peek() != Some(b'{') {
            return match self.literal()? {
                Value::Null => Some(()),
                Value::Text(_) => None,
            };
        }
        self.at += 1;
        let mut first = true;
        while let Next::Key(name) = self.next_key(first)? {
            first = false;
            match self.value()? {
                Value::Text(value) => self.push(Entry { name, value })?,
                Value::Null => self.remove(name),
            }
        }
        Some(())
    }

    fn push(&mut self, entry: Entry) -> Option<()> {
        if self.entries.len() == HEADER_FIELDS_MAX {
            self.has_too_many_fields = true;
            return None;
        }
        self.entries.push(entry);
        Some(())
    }

    /// A null is the last value of its name, so that earlier ones don't count.
    fn remove(&mut self, name: Span) {
        let (header, text) = (self.header, &*self.text);
        let name = name.resolve(header, text);
        self.entries
            .retain(|entry| entry.name.resolve(header, text) != name);
    }

    /// The next key of an object, with the scanner on its value, or behind the closing brace.
    fn next_key(&mut self, first: bool) -> Option<Next> {
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Some(Next::End);
        }
        if !first {
            self.expect(b',')?;
            self.skip_space();
        }
        let key = self.string()?;
        self.skip_space();
        self.expect(b':')?;
        self.skip_space();
        Some(Next::Key(key))
    }

    /// Text of a value; null is none. The outer `None` is an error.
    fn text(&mut self) -> Option<Option<Span>> {
        Some(match self.value()? {
            Value::Null => None,
            Value::Text(span) => Some(span),
        })
    }

    /// Text of a value. A nested value is its JSON text, as in fastjson.
    fn value(&mut self) -> Option<Value> {
        match self.peek() {
            Some(b'"') => Some(Value::Text(self.string()?)),
            Some(b'{' | b'[') => {
                let start = self.at;
                self.skip_container()?;
                Some(Value::Text(Span::header(start, self.at)))
            }
            _ => self.literal(),
        }
    }

    fn integer(&mut self) -> Option<i32> {
        let at = self.at;
        let Some(span) = self.text()? else {
            return Some(0);
        };
        let number = span.resolve(self.header, self.text).parse().ok();
        if number.is_none() {
            self.at = at;
        }
        number
    }

    /// A string, with the scanner on its opening quote.
    fn string(&mut self) -> Option<Span> {
        self.expect(b'"')?;
        let start = self.at;
        if self.find_quote_or_escape()? == b'"' {
            let end = self.at;
            self.at += 1;
            Some(Span::header(start, end))
        } else {
            self.escaped_string(start)
        }
    }

    /// Moves to the next quote or backslash.
    fn find_quote_or_escape(&mut self) -> Option<u8> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(distance) = scan::find_quote_or_escape(rest) else {
            self.at = self.bytes.len();
            return None;
        };
        self.at += distance;
        self.peek()
    }

    /// A string that starts at `start`, with the scanner on its first backslash; goes into the scratch.
    fn escaped_string(&mut self, start: usize) -> Option<Span> {
        let text_start = self.text.len();
        let mut plain_start = start;
        loop {
            let stop = self.find_quote_or_escape()?;
            let plain = self.header.get(plain_start..self.at).unwrap_or_default();
            self.text.push_str(plain);
            self.at += 1;
            if stop == b'"' {
                break;
            }
            let character = self.escape()?;
            self.text.push(character);
            plain_start = self.at;
        }
        Some(Span::scratch(text_start, self.text.len()))
    }

    /// The character of an escape, with the scanner behind its backslash.
    fn escape(&mut self) -> Option<char> {
        let byte = self.peek()?;
        let character = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{C}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return None,
        };
        self.at += 1;
        Some(character)
    }

    /// The character of `\uXXXX` or of a surrogate pair, with the scanner behind the `u`. Half a pair becomes
    /// U+FFFD: no UTF-8 text can hold it.
    fn unicode_escape(&mut self) -> Option<char> {
        let unit = self.hex_unit()?;
        if !(0xD800..0xDC00).contains(&unit) {
            return Some(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if !rest.starts_with(b"\\u") {
            return Some(char::REPLACEMENT_CHARACTER);
        }
        let second_at = self.at;
        self.at += 2;
        let second = self.hex_unit()?;
        if (0xDC00..0xE000).contains(&second) {
            let code_point = 0x1_0000 + ((unit - 0xD800) << 10) + (second - 0xDC00);
            Some(char::from_u32(code_point).unwrap_or(char::REPLACEMENT_CHARACTER))
        } else {
            self.at = second_at;
            Some(char::REPLACEMENT_CHARACTER)
        }
    }

    fn hex_unit(&mut self) -> Option<u32> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = char::from(self.peek()?).to_digit(16)?;
            unit = unit * 16 + digit;
            self.at += 1;
        }
        Some(unit)
    }

    /// null, true, false or a number. Numbers are not checked to the letter: they are texts to whoever reads them.
    fn literal(&mut self) -> Option<Value> {
        let start = self.at;
        let rest = self.bytes.get(start..).unwrap_or_default();
        let is_literal =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = rest.iter().take_while(|byte| is_literal(byte)).count();
        let text = Value::Text(Span::header(start, start + length));
        let value = match &rest[..length] {
            b"null" => Value::Null,
            b"true" | b"false" | [b'-' | b'0'..=b'9', ..] => text,
            _ => return None,
        };
        self.at += length;
        Some(value)
    }

    fn skip_value(&mut self) -> Option<()> {
        match self.peek() {
            Some(b'"') => self.skip_string(),
            Some(b'{' | b'[') => self.skip_container(),
            _ => self.literal().map(|_| ()),
        }
    }

    fn skip_string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        while self.find_quote_or_escape()? == b'\\' {
            self.at += 2;
        }
        self.at += 1;
        Some(())
    }

    /// Skips an object or array and all in it. Brackets must match; commas and colons are not looked at.
    fn skip_container(&mut self) -> Option<()> {
        // One bit for each open container, the innermost lowest: 1 = object.
        let mut open: u64 = 0;
        let mut depth = 0;
        loop {
            let byte = self.peek()?;
            match byte {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'{' | b'[' => {
                    if depth == HEADER_DEPTH_MAX {
                        return None;
                    }
                    open = open << 1 | u64::from(byte == b'{');
                    depth += 1;
                }
                b'}' | b']' => {
                    if (open & 1 == 1) != (byte == b'}') {
                        return None;
                    }
                    open >>= 1;
                    depth -= 1;
                }
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
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

    fn expect(&mut self, byte: u8) -> Option<()> {
        if self.peek() != Some(byte) {
            return None;
        }
        self.at += 1;
        Some(())
    }
}

#[cfg(test)]
mod tests;
