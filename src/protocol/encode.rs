//! Writes the head of a frame: length prefix, header word, header. Allocates only into the buffer it is handed.
//!
//! JSON keys come in Java's order, which is alphabetical; decoders don't care, people who compare captures do.

use super::command::{Encoding, VERSION};
use super::frame::{HEADER_WORD_BYTES, LENGTH_PREFIX_BYTES};
use super::scan::find_unwritable;
use bytes::{BufMut, BytesMut};

/// Largest header that the three bytes of the header word can tell.
const HEADER_LENGTH_MAX: usize = 0xFF_FFFF;
/// Binary code of the language that every frame of ours names, since every client knows it.
const LANGUAGE_JAVA: u8 = 0;

/// The envelope of a frame, without its fields.
pub(super) struct Head<'a> {
    pub code: i32,
    pub flag: i32,
    pub opaque: i32,
    pub remark: Option<&'a str>,
    /// Bytes of the body that will follow; only announced here.
    pub body_bytes: usize,
}

/// Where the extFields of a header come from.
pub(super) trait FieldSource {
    /// True where the header has no extFields at all, as opposed to empty ones.
    fn is_absent(&self) -> bool;
    /// Hands every field to `write`, as name and text.
    fn each(&self, write: impl FnMut(&str, &str));
}

/// Appends the head of a frame.
///
/// **Invariants**: header and frame fit their length fields; the limits of all that goes into a frame are far
/// below, so that more is a defect of ours and stops the process.
pub(super) fn head(
    head: &Head<'_>,
    fields: &impl FieldSource,
    encoding: Encoding,
    out: &mut BytesMut,
) {
    let start = out.len();
    out.put_bytes(0, LENGTH_PREFIX_BYTES + HEADER_WORD_BYTES);
    let header_start = out.len();
    match encoding {
        Encoding::Json => json(head, fields, out),
        Encoding::Binary => binary(head, fields, out),
    }
    let header_bytes = out.len() - header_start;
    assert!(
        header_bytes <= HEADER_LENGTH_MAX,
        "header of {header_bytes} bytes"
    );
    let frame_bytes = HEADER_WORD_BYTES + header_bytes + head.body_bytes;
    put_length(out, start, frame_bytes);
    put_length(out, start + LENGTH_PREFIX_BYTES, header_bytes);
    out[start + LENGTH_PREFIX_BYTES] = encoding as u8;
}

/// Writes a length over the four bytes at `at`.
fn put_length(out: &mut [u8], at: usize, length: usize) {
    let length = i32::try_from(length).expect("lengths are below the frame limit");
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn json(head: &Head<'_>, fields: &impl FieldSource, out: &mut BytesMut) {
    out.put_slice(b"{\"code\":");
    put_number(out, head.code);
    if !fields.is_absent() {
        out.put_slice(b",\"extFields\":");
        json_fields(fields, out);
    }
    out.put_slice(b",\"flag\":");
    put_number(out, head.flag);
    out.put_slice(b",\"language\":\"JAVA\",\"opaque\":");
    put_number(out, head.opaque);
    if let Some(remark) = head.remark {
        out.put_slice(b",\"remark\":");
        put_json_string(out, remark);
    }
    out.put_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    put_number(out, VERSION);
    out.put_u8(b'}');
}

fn json_fields(fields: &impl FieldSource, out: &mut BytesMut) {
    let mut separator = b'{';
    fields.each(|name, value| {
        out.put_u8(separator);
        separator = b',';
        put_json_string(out, name);
        out.put_u8(b':');
        put_json_string(out, value);
    });
    if separator == b'{' {
        out.put_u8(b'{');
    }
    out.put_u8(b'}');
}

fn put_number(out: &mut BytesMut, number: i32) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a JSON string. Quotes, backslashes and control characters are escaped; the rest stays UTF-8.
fn put_json_string(out: &mut BytesMut, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut rest = text.as_bytes();
    out.put_u8(b'"');
    while let Some(at) = find_unwritable(rest) {
        let byte = rest[at];
        out.put_slice(&rest[..at]);
        match byte {
            b'"' | b'\\' => out.put_slice(&[b'\\', byte]),
            _ => {
                let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
                out.put_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
        rest = &rest[at + 1..];
    }
    out.put_slice(rest);
    out.put_u8(b'"');
}

/// Layout: see [`super::binary`]. Codes beyond 16 bits are cut, as Java cuts them.
fn binary(head: &Head<'_>, fields: &impl FieldSource, out: &mut BytesMut) {
    out.put_i16(head.code as i16);
    out.put_u8(LANGUAGE_JAVA);
    out.put_i16(VERSION as i16);
    out.put_i32(head.opaque);
    out.put_i32(head.flag);
    put_binary_text(out, head.remark.unwrap_or_default());
    let length_at = out.len();
    out.put_i32(0);
    fields.each(|name, value| {
        let name_bytes = i16::try_from(name.len()).expect("field names are short");
        out.put_i16(name_bytes);
        out.put_slice(name.as_bytes());
        put_binary_text(out, value);
    });
    let entries_bytes = out.len() - length_at - 4;
    put_length(out, length_at, entries_bytes);
}

fn put_binary_text(out: &mut BytesMut, text: &str) {
    let length_at = out.len();
    out.put_i32(0);
    put_length(out, length_at, text.len());
    out.put_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        for (text, expected) in [
            ("", r#""""#),
            ("plain", r#""plain""#),
            ("TAGS\u{1}a\u{2}", r#""TAGS\u0001a\u0002""#),
            ("\n\u{1F}\u{7F}", "\"\\u000A\\u001F\u{7F}\""),
            (r#"a"b\c/"#, r#""a\"b\\c/""#),
            ("主题ü\u{1F600}", "\"主题ü\u{1F600}\""),
        ] {
            let mut out = BytesMut::new();
            put_json_string(&mut out, text);
            assert_eq!(out, expected.as_bytes(), "{text:?}");
        }
    }
}
