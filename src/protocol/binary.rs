//! The ROCKETMQ binary header.
//!
//! ```text
//! offset  width  field
//!      0      2  code, i16
//!      2      1  language
//!      3      2  version, i16
//!      5      4  opaque, i32
//!      9      4  flag, i32
//!     13      4  remark bytes R, then the remark
//!   17+R      4  bytes of all entries, then the entries:
//!                name bytes i16, name, value bytes i32, value
//! ```
//!
//! A text of no bytes is Java's null: an empty remark or value is absent. Codes from 32 768 on don't fit: the pop
//! codes arrive truncated and are answered as unknown.
//! Source: apache/rocketmq 4.9.8 `remoting/.../protocol/RocketMQSerializable.java`.

use super::command::{
    Command, Encoding, Entry, Fields, HeaderError, LANGUAGE_OTHER, Scratch, Span,
};
use super::frame::Frame;
use super::reader::Reader;
use crate::limits::HEADER_FIELDS_MAX;

/// Languages by their binary code. Source: apache/rocketmq 5.3 `remoting/.../protocol/LanguageCode.java`.
const LANGUAGES: [&str; 14] = [
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    LANGUAGE_OTHER,
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
];

/// Copies a text into the scratch, since a binary header as a whole is no text that could be borrowed.
fn keep(bytes: &[u8], text: &mut String) -> Span {
    let start = text.len();
    text.push_str(&String::from_utf8_lossy(bytes));
    Span::scratch(start, text.len())
}

/// What a header says before its fields.
struct Envelope<'h> {
    code: i16,
    language: u8,
    version: i16,
    opaque: i32,
    flag: i32,
    remark: &'h [u8],
    entries: &'h [u8],
}

fn read_envelope(header: &[u8]) -> Option<Envelope<'_>> {
    let mut reader = Reader::new(header);
    let code = reader.i16()?;
    let [language] = reader.array()?;
    Some(Envelope {
        code,
        language,
        version: reader.i16()?,
        opaque: reader.i32()?,
        flag: reader.i32()?,
        remark: reader.bytes_behind_i32()?,
        entries: reader.bytes_behind_i32()?,
    })
}

/// Decodes a header into `scratch`, which is empty.
pub(super) fn decode<'a>(
    frame: &Frame<'a>,
    scratch: &'a mut Scratch,
) -> Result<Command<'a>, HeaderError> {
    let envelope = read_envelope(frame.header).ok_or(HeaderError::Truncated)?;
    let remark = match envelope.remark {
        [] => None,
        remark => Some(keep(remark, &mut scratch.text)),
    };
    decode_entries(envelope.entries, scratch)?;
    let Scratch { text, entries, .. } = scratch;
    let language = LANGUAGES.get(usize::from(envelope.language));
    Ok(Command {
        encoding: Encoding::Binary,
        code: i32::from(envelope.code),
        language: language.unwrap_or(&LANGUAGE_OTHER),
        version: i32::from(envelope.version),
        opaque: envelope.opaque,
        flag: envelope.flag,
        remark: remark.map(|span| span.resolve("", text)),
        fields: Fields {
            entries,
            header: "",
            text,
        },
        body: frame.body,
    })
}

fn read_entry<'h>(reader: &mut Reader<'h>) -> Option<(&'h [u8], &'h [u8])> {
    Some((reader.bytes_behind_i16()?, reader.bytes_behind_i32()?))
}

fn decode_entries(bytes: &[u8], scratch: &mut Scratch) -> Result<(), HeaderError> {
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let (name, value) = read_entry(&mut reader).ok_or(HeaderError::Truncated)?;
        if value.is_empty() {
            continue;
        }
        if scratch.entries.len() == HEADER_FIELDS_MAX {
            return Err(HeaderError::TooManyFields {
                max: HEADER_FIELDS_MAX,
            });
        }
        let name = keep(name, &mut scratch.text);
        let value = keep(value, &mut scratch.text);
        scratch.entries.push(Entry { name, value });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(language: u8, remark: &[u8], entries: &[u8]) -> Vec<u8> {
        let mut header = vec![
            0x7F, 0xFF, language, 0x80, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 3,
        ];
        header.extend((remark.len() as u32).to_be_bytes());
        header.extend(remark);
        header.extend((entries.len() as u32).to_be_bytes());
        header.extend(entries);
        header
    }

    fn entry(name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut entry = (name.len() as u16).to_be_bytes().to_vec();
        entry.extend(name);
        entry.extend((value.len() as u32).to_be_bytes());
        entry.extend(value);
        entry
    }

    fn check(header: &[u8], expected: impl FnOnce(Result<Command<'_>, HeaderError>)) {
        let mut scratch = Scratch::default();
        let frame = Frame {
            encoding: Encoding::Binary,
            header,
            body: b"body",
            bytes: 0,
        };
        expected(Command::decode(&frame, &mut scratch));
    }

    #[test]
    fn integers_keep_their_sign() {
        check(&header(9, b"why", b""), |command| {
            let command = command.expect("a header");
            assert_eq!(
                (command.code, command.version, command.opaque),
                (32_767, -32_768, -1)
            );
            assert_eq!((command.language, command.flag), ("GO", 3));
            assert_eq!((command.remark, command.body), (Some("why"), &b"body"[..]));
        });
    }

    #[test]
    fn unknown_language_is_other() {
        check(&header(14, b"", b""), |command| {
            let command = command.expect("a header");
            assert_eq!((command.language, command.remark), ("OTHER", None));
        });
    }

    #[test]
    fn value_of_no_bytes_is_absent() {
        let mut entries = entry(b"i", b"");
        entries.extend(entry(b"k", "ü".as_bytes()));
        check(&header(0, b"", &entries), |command| {
            let fields = command.expect("a header").fields;
            assert_eq!(fields.get("i"), None);
            assert_eq!(fields.iter().collect::<Vec<_>>(), [("k", "ü")]);
        });
    }

    #[test]
    fn every_cut_header_is_truncated() {
        let whole = header(0, b"remark", &entry(b"topic", b"T"));
        for length in 0..whole.len() {
            check(&whole[..length], |command| {
                assert_eq!(command.err(), Some(HeaderError::Truncated), "{length}");
            });
        }
    }

    #[test]
    fn negative_lengths_are_truncated() {
        for entries in [&[0xFF, 0xFF][..], &[0, 1, b'k', 0xFF, 0xFF, 0xFF, 0xFF]] {
            check(&header(0, b"", entries), |command| {
                assert_eq!(command.err(), Some(HeaderError::Truncated));
            });
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        check(
            &header(0, b"\xFF", &entry(b"k\xFE", b"a\xFFb")),
            |command| {
                let command = command.expect("a header");
                assert_eq!(command.remark, Some("\u{FFFD}"));
                assert_eq!(command.fields.get("k\u{FFFD}"), Some("a\u{FFFD}b"));
            },
        );
    }

    #[test]
    fn fields_are_bounded() {
        let max = HEADER_FIELDS_MAX;
        let most = entry(b"k", b"v").repeat(max);
        check(&header(0, b"", &most), |command| {
            assert_eq!(command.expect("a header").fields.iter().count(), max);
        });
        let more = entry(b"k", b"v").repeat(max + 1);
        check(&header(0, b"", &more), |command| {
            assert_eq!(command.err(), Some(HeaderError::TooManyFields { max }));
        });
    }
}
