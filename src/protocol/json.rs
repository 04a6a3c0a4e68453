//! JSON headers: a scanner of its own, since every message passes it. Bodies are left to serde.

use super::command::{Envelope, HeaderError, Scratch, Span, VERSION};
use bytes::{BufMut, BytesMut};

/// Nesting of values that are skipped.
const DEPTH_MAX: u32 = 32;

/// Decodes a header into the scratch.
pub(super) fn decode(header: &[u8], scratch: &mut Scratch) -> Result<Envelope, HeaderError> {
    std::str::from_utf8(header).map_err(|_| HeaderError::Utf8)?;
    let mut scan = Scanner {
        bytes: header,
        at: 0,
        scratch,
    };
    let envelope = scan.envelope()?;
    scan.space();
    if scan.at != header.len() {
        Err(scan.error())
    } else {
        Ok(envelope)
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    scratch: &'a mut Scratch,
}

impl Scanner<'_> {
    fn error(&self) -> HeaderError {
        HeaderError::Json { at: self.at as u32 }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Skips white space, then takes exactly this byte.
    fn expect(&mut self, byte: u8) -> Result<(), HeaderError> {
        self.space();
        if self.peek() != Some(byte) {
            return Err(self.error());
        }
        self.at += 1;
        Ok(())
    }

    /// After a member: true if another follows, false at the closing byte.
    fn more(&mut self, close: u8) -> Result<bool, HeaderError> {
        self.space();
        let next = self.peek();
        self.at += 1;
        match next {
            Some(b',') => Ok(true),
            Some(byte) if byte == close => Ok(false),
            _ => Err(self.error()),
        }
    }

    fn is_empty(&mut self, close: u8) -> bool {
        self.space();
        let empty = self.peek() == Some(close);
        self.at += usize::from(empty);
        empty
    }

    fn envelope(&mut self) -> Result<Envelope, HeaderError> {
        let mut envelope = Envelope::default();
        self.expect(b'{')?;
        if self.is_empty(b'}') {
            return Ok(envelope);
        }
        loop {
            self.space();
            let key = self.string()?;
            self.expect(b':')?;
            self.space();
            self.member(key, &mut envelope)?;
            if !self.more(b'}')? {
                return Ok(envelope);
            }
        }
    }

    fn member(&mut self, key: Span, envelope: &mut Envelope) -> Result<(), HeaderError> {
        let name = if key.in_text {
            &[][..]
        } else {
            &self.bytes[key.start as usize..key.end as usize]
        };
        match name {
            b"code" => envelope.code = self.integer()?,
            b"version" => envelope.version = self.integer()?,
            b"opaque" => envelope.opaque = self.integer()?,
            b"flag" => envelope.flag = self.integer()?,
            b"language" => envelope.language = self.scalar()?,
            b"remark" => envelope.remark = self.scalar()?,
            b"extFields" => self.fields()?,
            _ => self.skip(0)?,
        }
        Ok(())
    }

    fn fields(&mut self) -> Result<(), HeaderError> {
        if self.peek() != Some(b'{') {
            return self.skip(0);
        }
        self.at += 1;
        if self.is_empty(b'}') {
            return Ok(());
        }
        loop {
            self.space();
            let name = self.string()?;
            self.expect(b':')?;
            self.space();
            if let Some(value) = self.scalar()? {
                self.scratch.push(name, value)?;
            }
            if !self.more(b'}')? {
                return Ok(());
            }
        }
    }

    /// A string, or a number or boolean as its text; `None` for null and for nested values, which are skipped.
    fn scalar(&mut self) -> Result<Option<Span>, HeaderError> {
        match self.peek() {
            Some(b'"') => self.string().map(Some),
            Some(b'{' | b'[') => self.skip(0).map(|()| None),
            _ => {
                let span = self.bare()?;
                let text = &self.bytes[span.start as usize..span.end as usize];
                Ok(if text == b"null" { None } else { Some(span) })
            }
        }
    }

    /// A number or literal: everything up to the next structural byte.
    fn bare(&mut self) -> Result<Span, HeaderError> {
        let start = self.at;
        while let Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'+' | b'.') = self.peek() {
            self.at += 1;
        }
        let text = &self.bytes[start..self.at];
        let number = text
            .first()
            .is_some_and(|b| b.is_ascii_digit() || *b == b'-');
        if !number && !matches!(text, b"true" | b"false" | b"null") {
            self.at = start;
            return Err(self.error());
        }
        Ok(Span {
            start: start as u32,
            end: self.at as u32,
            in_text: false,
        })
    }

    /// An integer, given as a number or as a string; null is 0.
    fn integer(&mut self) -> Result<i32, HeaderError> {
        let at = self.at;
        let Some(span) = self.scalar()? else {
            return Ok(0);
        };
        let (start, end) = (span.start as usize, span.end as usize);
        let text = if span.in_text {
            self.scratch.text.get(start..end)
        } else {
            str_at(self.bytes, start, end)
        };
        let value: Option<i64> = text.and_then(|t| t.parse().ok());
        // Java narrows a long the same way.
        value
            .map(|v| v as i32)
            .ok_or(HeaderError::Json { at: at as u32 })
    }

    fn string(&mut self) -> Result<Span, HeaderError> {
        if self.peek() != Some(b'"') {
            return Err(self.error());
        }
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek() {
                Some(b'"') => {
                    let span = Span {
                        start: start as u32,
                        end: self.at as u32,
                        in_text: false,
                    };
                    self.at += 1;
                    return Ok(span);
                }
                Some(b'\\') => return self.escaped_string(start),
                Some(_) => self.at += 1,
                None => return Err(self.error()),
            }
        }
    }

    /// The string from its first escape on goes to the scratch.
    fn escaped_string(&mut self, start: usize) -> Result<Span, HeaderError> {
        let text_start = self.scratch.text.len();
        let mut run = start;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.push_run(run)?;
                    self.at += 1;
                    let end = self.scratch.text.len() as u32;
                    return Ok(Span {
                        start: text_start as u32,
                        end,
                        in_text: true,
                    });
                }
                Some(b'\\') => {
                    self.push_run(run)?;
                    self.at += 1;
                    let character = self.escape()?;
                    self.scratch.text.push(character);
                    run = self.at;
                }
                Some(_) => self.at += 1,
                None => return Err(self.error()),
            }
        }
    }

    fn push_run(&mut self, run: usize) -> Result<(), HeaderError> {
        let text = str_at(self.bytes, run, self.at).ok_or(HeaderError::Utf8)?;
        self.scratch.text.push_str(text);
        Ok(())
    }

    fn escape(&mut self) -> Result<char, HeaderError> {
        let byte = self.peek().ok_or(self.error())?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(self.error()),
        })
    }

    /// `\uXXXX`, a surrogate pair as one character; half a pair becomes U+FFFD, as Java would print it.
    fn unicode(&mut self) -> Result<char, HeaderError> {
        let first = self.hex4()?;
        if !(0xD800..0xDC00).contains(&first) {
            return Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        if self.bytes.get(self.at..self.at + 2) != Some(b"\\u") {
            return Ok(char::REPLACEMENT_CHARACTER);
        }
        self.at += 2;
        let second = self.hex4()?;
        if !(0xDC00..0xE000).contains(&second) {
            // Not the other half: read it again on its own.
            self.at -= 6;
            return Ok(char::REPLACEMENT_CHARACTER);
        }
        let code = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, HeaderError> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self
                .peek()
                .and_then(|b| char::from(b).to_digit(16))
                .ok_or(self.error())?;
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }

    /// Any value, ignored.
    fn skip(&mut self, depth: u32) -> Result<(), HeaderError> {
        if depth > DEPTH_MAX {
            return Err(self.error());
        }
        let close = match self.peek() {
            Some(b'{') => b'}',
            Some(b'[') => b']',
            Some(b'"') => return self.skip_string(),
            _ => return self.bare().map(|_| ()),
        };
        self.at += 1;
        if self.is_empty(close) {
            return Ok(());
        }
        loop {
            self.space();
            if close == b'}' {
                self.skip_string()?;
                self.expect(b':')?;
                self.space();
            }
            self.skip(depth + 1)?;
            if !self.more(close)? {
                return Ok(());
            }
        }
    }

    fn skip_string(&mut self) -> Result<(), HeaderError> {
        let text = self.scratch.text.len();
        self.string()?;
        self.scratch.text.truncate(text);
        Ok(())
    }
}

fn str_at(bytes: &[u8], start: usize, end: usize) -> Option<&str> {
    std::str::from_utf8(bytes.get(start..end)?).ok()
}

/// Writes a JSON header in the order of Java: `open`, fields, `close`.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub out: &'a mut BytesMut,
    fields: u32,
}

impl<'a> Writer<'a> {
    pub fn open(out: &'a mut BytesMut, code: i32) -> Self {
        out.put_slice(b"{\"code\":");
        put_integer(out, i64::from(code));
        Self { out, fields: 0 }
    }

    /// An empty `extFields`, where the header is defined but has nothing in it.
    pub fn begin_fields(&mut self) {
        self.out.put_slice(b",\"extFields\":{");
    }

    pub fn end_fields(&mut self) {
        self.out.put_slice(b"}");
    }

    fn name(&mut self, name: &str) {
        if self.fields > 0 {
            self.out.put_u8(b',');
        }
        self.fields += 1;
        put_string(self.out, name);
        self.out.put_u8(b':');
    }

    pub fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        put_string(self.out, value);
    }

    pub fn integer(&mut self, name: &str, value: i64) {
        self.name(name);
        self.out.put_u8(b'"');
        put_integer(self.out, value);
        self.out.put_u8(b'"');
    }

    pub fn close(self, flag: i32, opaque: i32, remark: Option<&str>) {
        let out = self.out;
        out.put_slice(b",\"flag\":");
        put_integer(out, i64::from(flag));
        out.put_slice(b",\"language\":\"JAVA\",\"opaque\":");
        put_integer(out, i64::from(opaque));
        if let Some(remark) = remark {
            out.put_slice(b",\"remark\":");
            put_string(out, remark);
        }
        out.put_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
        put_integer(out, i64::from(VERSION));
        out.put_u8(b'}');
    }
}

fn put_integer(out: &mut BytesMut, value: i64) {
    out.put_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A JSON string: quotes, backslashes and control characters escaped, everything else as UTF-8.
pub(super) fn put_string(out: &mut BytesMut, text: &str) {
    out.put_u8(b'"');
    let mut run = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.put_slice(&text.as_bytes()[run..at]);
        run = at + 1;
        match byte {
            b'"' => out.put_slice(b"\\\""),
            b'\\' => out.put_slice(b"\\\\"),
            b'\n' => out.put_slice(b"\\n"),
            b'\r' => out.put_slice(b"\\r"),
            b'\t' => out.put_slice(b"\\t"),
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.put_slice(b"\\u00");
                out.put_u8(HEX[usize::from(byte >> 4)]);
                out.put_u8(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.put_slice(&text.as_bytes()[run..]);
    out.put_u8(b'"');
}
