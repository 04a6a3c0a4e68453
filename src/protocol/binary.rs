//! ROCKETMQ binary headers.
//!
//! ```text
//! code i16 | language u8 | version i16 | opaque i32 | flag i32 | remark length i32, bytes | fields length i32,
//! entries: name length i16, bytes, value length i32, bytes
//! ```

use super::command::{Envelope, HeaderError, Scratch, Span, VERSION};
use bytes::{BufMut, BytesMut};

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8], HeaderError> {
        let end = self.at.checked_add(count).ok_or(HeaderError::Truncated)?;
        let bytes = self.bytes.get(self.at..end).ok_or(HeaderError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    fn i16(&mut self) -> Result<i16, HeaderError> {
        let bytes = self.take(2)?;
        Ok(i16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn i32(&mut self) -> Result<i32, HeaderError> {
        let bytes = self.take(4)?;
        Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A text of that length. Negative lengths are malformed.
    fn text(&mut self, length: i32) -> Result<Span, HeaderError> {
        let length = usize::try_from(length).map_err(|_| HeaderError::Truncated)?;
        let start = self.at;
        std::str::from_utf8(self.take(length)?).map_err(|_| HeaderError::Utf8)?;
        Ok(Span {
            start: start as u32,
            end: self.at as u32,
            in_text: false,
        })
    }
}

/// Decodes a header; every text is borrowed from it.
pub(super) fn decode(header: &[u8], scratch: &mut Scratch) -> Result<Envelope, HeaderError> {
    let mut reader = Reader {
        bytes: header,
        at: 0,
    };
    let mut envelope = Envelope {
        code: i32::from(reader.i16()?),
        language_code: Some(reader.take(1)?[0]),
        version: i32::from(reader.i16()?),
        opaque: reader.i32()?,
        flag: reader.i32()?,
        ..Envelope::default()
    };
    let remark_bytes = reader.i32()?;
    if remark_bytes > 0 {
        envelope.remark = Some(reader.text(remark_bytes)?);
    }
    let fields_bytes = usize::try_from(reader.i32()?).map_err(|_| HeaderError::Truncated)?;
    let end = reader
        .at
        .checked_add(fields_bytes)
        .filter(|end| *end <= header.len())
        .ok_or(HeaderError::Truncated)?;
    while reader.at < end {
        let name_bytes = reader.i16()?;
        let name = reader.text(i32::from(name_bytes))?;
        let value_bytes = reader.i32()?;
        let value = reader.text(value_bytes)?;
        // Java reads an empty value as null.
        if value_bytes > 0 {
            scratch.push(name, value)?;
        }
    }
    if reader.at > end {
        Err(HeaderError::Truncated)
    } else {
        Ok(envelope)
    }
}

/// Writes a binary header; the length of the fields is patched at the end.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub out: &'a mut BytesMut,
    fields_at: usize,
}

impl<'a> Writer<'a> {
    pub fn open(
        out: &'a mut BytesMut,
        code: i32,
        flag: i32,
        opaque: i32,
        remark: Option<&str>,
    ) -> Self {
        out.put_i16(code as i16);
        out.put_u8(0);
        out.put_i16(VERSION as i16);
        out.put_i32(opaque);
        out.put_i32(flag);
        let remark = remark.unwrap_or_default();
        out.put_i32(remark.len() as i32);
        out.put_slice(remark.as_bytes());
        let fields_at = out.len();
        out.put_i32(0);
        Self { out, fields_at }
    }

    pub fn text(&mut self, name: &str, value: &str) {
        self.out.put_i16(name.len() as i16);
        self.out.put_slice(name.as_bytes());
        self.out.put_i32(value.len() as i32);
        self.out.put_slice(value.as_bytes());
    }

    pub fn integer(&mut self, name: &str, value: i64) {
        self.text(name, itoa::Buffer::new().format(value));
    }

    pub fn close(self) {
        let bytes = (self.out.len() - self.fields_at - 4) as i32;
        self.out[self.fields_at..self.fields_at + 4].copy_from_slice(&bytes.to_be_bytes());
    }
}
