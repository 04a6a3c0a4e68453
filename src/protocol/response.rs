//! What is written back, and the requests that a broker sends to its clients.

use super::codes::ResponseCode;
use super::command::{Encoding, FLAG_ONE_WAY, FLAG_RESPONSE};
use super::{binary, json};
use arrayvec::ArrayString;
use bytes::{BufMut, Bytes, BytesMut};
use std::borrow::Cow;

/// An answer, complete but for opaque and encoding, which are the asker's.
#[derive(Debug, Clone)]
pub struct Response {
    pub code: ResponseCode,
    pub remark: Option<Cow<'static, str>>,
    pub header: ResponseHeader,
    pub body: Body,
}

#[derive(Debug, Clone)]
pub enum ResponseHeader {
    /// No extFields.
    None,
    Send(SendResponseHeader),
    Pull(PullResponseHeader),
    /// `offset` of 14, 29, 30, 31.
    Offset(i64),
    Fields(Vec<(&'static str, String)>),
}

/// Header of 10/310/320. Text fields: msgId, queueId, queueOffset, transactionId (if any), MSG_REGION, TRACE_ON.
#[derive(Debug, Clone)]
pub struct SendResponseHeader {
    pub message_id: MessageIds,
    pub queue_id: u32,
    pub queue_offset: u64,
    /// UNIQ_KEY of a single message.
    pub transaction_id: Option<ArrayString<64>>,
}

#[derive(Debug, Clone)]
pub enum MessageIds {
    One(ArrayString<56>),
    /// Comma-joined ids of a batch.
    Many(String),
}

/// Header of 11/361: all four in every answer, or clients throw or reset to 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullResponseHeader {
    pub suggest_which_broker_id: i64,
    pub next_begin_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
}

#[derive(Debug, Clone)]
pub enum Body {
    None,
    Bytes(Bytes),
    /// Stored records, gathered by the sender without a copy; `bytes` is their sum.
    Stored {
        segments: smallvec::SmallVec<[Bytes; 4]>,
        bytes: usize,
    },
}

impl Response {
    pub fn success() -> Self {
        Self {
            code: ResponseCode::SUCCESS,
            remark: None,
            header: ResponseHeader::None,
            body: Body::None,
        }
    }
    pub fn error(code: ResponseCode, remark: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            remark: Some(remark.into()),
            header: ResponseHeader::None,
            body: Body::None,
        }
    }
    pub fn with_body(body: impl Into<Bytes>) -> Self {
        Self {
            body: Body::Bytes(body.into()),
            ..Self::success()
        }
    }
    pub fn with_header(header: ResponseHeader) -> Self {
        Self {
            header,
            ..Self::success()
        }
    }
    /// Bytes of the body, which follow the encoded head.
    pub fn body_bytes(&self) -> usize {
        match &self.body {
            Body::None => 0,
            Body::Bytes(bytes) => bytes.len(),
            Body::Stored { bytes, .. } => *bytes,
        }
    }
    /// Appends length prefix, header word and header: everything but the body. Allocates only into `out`.
    pub fn encode_head(&self, opaque: i32, encoding: Encoding, out: &mut BytesMut) {
        let remark = self.remark.as_deref();
        write_head(out, encoding, self.body_bytes(), |out| {
            let mut writer =
                HeadWriter::open(out, encoding, self.code.0, FLAG_RESPONSE, opaque, remark);
            match &self.header {
                ResponseHeader::None => {}
                ResponseHeader::Send(header) => writer.fields(|w| header.write(w)),
                ResponseHeader::Pull(header) => writer.fields(|w| header.write(w)),
                ResponseHeader::Offset(offset) => writer.fields(|w| w.integer("offset", *offset)),
                ResponseHeader::Fields(fields) => writer.fields(|w| {
                    for (name, value) in fields {
                        w.text(name, value);
                    }
                }),
            }
            writer.close(FLAG_RESPONSE, opaque, remark);
        });
    }
}

/// A request of the broker (or of a client of a name server): used for 40, registration, and by the load harness.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    pub code: i32,
    pub opaque: i32,
    pub one_way: bool,
    pub encoding: Encoding,
    pub fields: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

impl Request<'_> {
    /// Appends the whole frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let flag = if self.one_way { FLAG_ONE_WAY } else { 0 };
        write_head(out, self.encoding, self.body.len(), |out| {
            let mut writer =
                HeadWriter::open(out, self.encoding, self.code, flag, self.opaque, None);
            if !self.fields.is_empty() {
                writer.fields(|w| {
                    for (name, value) in self.fields {
                        w.text(name, value);
                    }
                });
            }
            writer.close(flag, self.opaque, None);
        });
        out.put_slice(self.body);
    }
}

impl SendResponseHeader {
    fn write(&self, writer: &mut HeadWriter<'_>) {
        match &self.message_id {
            MessageIds::One(id) => writer.text("msgId", id),
            MessageIds::Many(ids) => writer.text("msgId", ids),
        }
        writer.integer("queueId", i64::from(self.queue_id));
        writer.integer("queueOffset", self.queue_offset as i64);
        if let Some(id) = &self.transaction_id {
            writer.text("transactionId", id);
        }
        writer.text("MSG_REGION", "DefaultRegion");
        writer.text("TRACE_ON", "true");
    }
}

impl PullResponseHeader {
    fn write(&self, writer: &mut HeadWriter<'_>) {
        writer.integer("suggestWhichBrokerId", self.suggest_which_broker_id);
        writer.integer("nextBeginOffset", self.next_begin_offset);
        writer.integer("minOffset", self.min_offset);
        writer.integer("maxOffset", self.max_offset);
    }
}

/// One of the two header writers.
enum HeadWriter<'a> {
    Json(json::Writer<'a>),
    Binary(binary::Writer<'a>),
}

impl<'a> HeadWriter<'a> {
    fn open(
        out: &'a mut BytesMut,
        encoding: Encoding,
        code: i32,
        flag: i32,
        opaque: i32,
        remark: Option<&str>,
    ) -> Self {
        match encoding {
            Encoding::Json => Self::Json(json::Writer::open(out, code)),
            Encoding::Binary => Self::Binary(binary::Writer::open(out, code, flag, opaque, remark)),
        }
    }

    fn fields(&mut self, write: impl FnOnce(&mut Self)) {
        if let Self::Json(writer) = self {
            writer.begin_fields();
        }
        write(self);
        if let Self::Json(writer) = self {
            writer.end_fields();
        }
    }

    fn text(&mut self, name: &str, value: &str) {
        match self {
            Self::Json(writer) => writer.text(name, value),
            Self::Binary(writer) => writer.text(name, value),
        }
    }

    fn integer(&mut self, name: &str, value: i64) {
        match self {
            Self::Json(writer) => writer.integer(name, value),
            Self::Binary(writer) => writer.integer(name, value),
        }
    }

    fn close(self, flag: i32, opaque: i32, remark: Option<&str>) {
        match self {
            Self::Json(writer) => writer.close(flag, opaque, remark),
            Self::Binary(writer) => writer.close(),
        }
    }
}

/// Writes the header between its two length words, which are patched once it is known.
fn write_head(
    out: &mut BytesMut,
    encoding: Encoding,
    body_bytes: usize,
    header: impl FnOnce(&mut BytesMut),
) {
    let start = out.len();
    out.put_u64(0);
    header(out);
    let header_bytes = out.len() - start - 8;
    assert!(
        header_bytes < 1 << 24,
        "a header of {header_bytes} bytes does not fit its length word"
    );
    let length = (4 + header_bytes + body_bytes) as u32;
    let word = ((encoding as u32) << 24) | header_bytes as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&word.to_be_bytes());
}
