//! What is written back, and the requests that a broker sends to its clients.

use super::codes::ResponseCode;
use super::command::Encoding;
use arrayvec::ArrayString;
use bytes::{Bytes, BytesMut};
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
        todo!("{opaque} {encoding:?} {out:?}")
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
        todo!("{out:?}")
    }
}
