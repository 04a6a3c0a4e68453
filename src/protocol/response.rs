//! What is written back, and the requests that a broker sends to its clients.
//!
//! A response is data: the handler fills it in, the shard writes the head and hands the body's segments to the
//! kernel as they are.

use super::codes::ResponseCode;
use super::command::{Encoding, FLAG_ONE_WAY, FLAG_RESPONSE};
use super::encode::{self, FieldSource, Head};
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
    /// `regionId`: clients put it into their traces.
    pub region: &'static str,
    /// `traceOn`: whether clients trace the message.
    pub trace_on: bool,
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

impl FieldSource for ResponseHeader {
    fn is_absent(&self) -> bool {
        matches!(self, ResponseHeader::None)
    }

    fn each(&self, mut write: impl FnMut(&str, &str)) {
        match self {
            ResponseHeader::None => {}
            ResponseHeader::Send(header) => header.each(write),
            ResponseHeader::Pull(header) => header.each(write),
            ResponseHeader::Offset(offset) => write_number("offset", *offset, write),
            ResponseHeader::Fields(fields) => {
                for (name, value) in fields {
                    write(name, value);
                }
            }
        }
    }
}

impl SendResponseHeader {
    /// In alphabetical order, as the worked example of `framing.md` has it.
    fn each(&self, mut write: impl FnMut(&str, &str)) {
        write("MSG_REGION", self.region);
        write("TRACE_ON", if self.trace_on { "true" } else { "false" });
        match &self.message_id {
            MessageIds::One(id) => write("msgId", id),
            MessageIds::Many(ids) => write("msgId", ids),
        }
        write_number("queueId", self.queue_id, &mut write);
        write_number("queueOffset", self.queue_offset, &mut write);
        if let Some(id) = &self.transaction_id {
            write("transactionId", id);
        }
    }
}

impl PullResponseHeader {
    fn each(&self, mut write: impl FnMut(&str, &str)) {
        for (name, number) in [
            ("suggestWhichBrokerId", self.suggest_which_broker_id),
            ("nextBeginOffset", self.next_begin_offset),
            ("minOffset", self.min_offset),
            ("maxOffset", self.max_offset),
        ] {
            write_number(name, number, &mut write);
        }
    }
}

fn write_number(name: &str, number: impl itoa::Integer, mut write: impl FnMut(&str, &str)) {
    write(name, itoa::Buffer::new().format(number));
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
        let head = Head {
            code: self.code.0,
            flag: FLAG_RESPONSE,
            opaque,
            remark: self.remark.as_deref(),
            body_bytes: self.body_bytes(),
        };
        encode::head(&head, &self.header, encoding, out);
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

/// The fields of a request; none at all where the list is empty, as Java has it for requests without a header.
struct RequestFields<'a>(&'a [(&'a str, &'a str)]);

impl FieldSource for RequestFields<'_> {
    fn is_absent(&self) -> bool {
        self.0.is_empty()
    }

    fn each(&self, mut write: impl FnMut(&str, &str)) {
        for (name, value) in self.0 {
            write(name, value);
        }
    }
}

impl Request<'_> {
    /// Appends the whole frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let head = Head {
            code: self.code,
            flag: if self.one_way { FLAG_ONE_WAY } else { 0 },
            opaque: self.opaque,
            remark: None,
            body_bytes: self.body.len(),
        };
        encode::head(&head, &RequestFields(self.fields), self.encoding, out);
        out.extend_from_slice(self.body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::{Command, Scratch, VERSION};
    use crate::protocol::frame::{Frame, Split, split};

    fn id<const N: usize>(text: &str) -> ArrayString<N> {
        ArrayString::from(text).expect("short enough")
    }

    fn send_response(message_id: MessageIds) -> Response {
        Response::with_header(ResponseHeader::Send(SendResponseHeader {
            message_id,
            queue_id: 1,
            queue_offset: 5,
            transaction_id: Some(id("7F000001000218B4AAC2000000000000")),
            region: "DefaultRegion",
            trace_on: true,
        }))
    }

    fn head(response: &Response, opaque: i32, encoding: Encoding) -> BytesMut {
        let mut out = BytesMut::new();
        response.encode_head(opaque, encoding, &mut out);
        out
    }

    /// The second example of `framing.md` section 2, but for our version, which has as many digits.
    #[test]
    fn send_response_is_the_worked_example() {
        let message_id = MessageIds::One(id("0A00000100002A9F00000000000003E8"));
        let out = head(&send_response(message_id), 5, Encoding::Json);
        let expected = "{\"code\":0,\"extFields\":{\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\",\
            \"msgId\":\"0A00000100002A9F00000000000003E8\",\"queueId\":\"1\",\"queueOffset\":\"5\",\
            \"transactionId\":\"7F000001000218B4AAC2000000000000\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":5,\
            \"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}";
        assert_eq!(out[..8], [0, 0, 1, 0x1E, 0, 0, 1, 0x1A]);
        assert_eq!(std::str::from_utf8(&out[8..]), Ok(expected));
    }

    #[test]
    fn batch_names_every_id() {
        let response = send_response(MessageIds::Many("A,B".to_owned()));
        let out = head(&response, 1, Encoding::Json);
        assert!(String::from_utf8_lossy(&out).contains("\"msgId\":\"A,B\""));
    }

    /// The binary example of `framing.md` section 5, but for our version.
    #[test]
    fn binary_request_is_the_worked_example() {
        let mut out = BytesMut::new();
        let request = Request {
            code: 105,
            opaque: 1,
            one_way: false,
            encoding: Encoding::Binary,
            fields: &[("topic", "T")],
            body: b"",
        };
        request.encode(&mut out);
        let expected = [
            0, 0, 0, 0x25, 1, 0, 0, 0x21, 0, 0x69, 0, 1, 0xDF, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0x0C, 0, 5, 0x74, 0x6F, 0x70, 0x69, 0x63, 0, 0, 0, 1, 0x54,
        ];
        assert_eq!(out[..], expected);
    }

    #[test]
    fn one_way_request_says_so_and_leaves_no_fields_out_of_place() {
        let mut out = BytesMut::new();
        let request = Request {
            code: 40,
            opaque: -1,
            one_way: true,
            encoding: Encoding::Json,
            fields: &[],
            body: b"{}",
        };
        request.encode(&mut out);
        let expected = "{\"code\":40,\"flag\":2,\"language\":\"JAVA\",\"opaque\":-1,\
            \"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}{}";
        assert_eq!(std::str::from_utf8(&out[8..]), Ok(expected));
    }

    fn decode_frame(out: &[u8]) -> Frame<'_> {
        match split(out).expect("a frame") {
            Split::Frame(frame) => frame,
            incomplete => panic!("{incomplete:?}"),
        }
    }

    /// Trap 1 of `semantics.md` section 19: all four numbers, whatever the code, or Go resets to offset 0.
    #[test]
    fn pull_response_has_all_four_numbers() {
        let header = PullResponseHeader {
            suggest_which_broker_id: 0,
            next_begin_offset: i64::MAX,
            min_offset: 0,
            max_offset: -1,
        };
        let mut response = Response::error(ResponseCode::PULL_NOT_FOUND, "not found");
        response.header = ResponseHeader::Pull(header);
        for encoding in [Encoding::Json, Encoding::Binary] {
            let out = head(&response, 11, encoding);
            let mut scratch = Scratch::default();
            let command = Command::decode(&decode_frame(&out), &mut scratch).expect("a header");
            assert_eq!((command.code, command.opaque, command.flag), (19, 11, 1));
            assert_eq!((command.language, command.version), ("JAVA", VERSION));
            assert_eq!(command.remark, Some("not found"));
            let fields: Vec<_> = command.fields.iter().collect();
            assert_eq!(
                fields,
                [
                    ("suggestWhichBrokerId", "0"),
                    ("nextBeginOffset", "9223372036854775807"),
                    ("minOffset", "0"),
                    ("maxOffset", "-1"),
                ]
            );
        }
    }

    /// Trap 23 of `semantics.md` section 19: Go drops a frame with a field that is not a string. Trap 16: Java
    /// refuses to filter by SQL92 where the version is below 232.
    #[test]
    fn fields_are_strings_and_the_version_is_a_servers() {
        let send = send_response(MessageIds::One(id("A")));
        let offset = Response::with_header(ResponseHeader::Offset(7));
        for response in [send, offset] {
            let out = head(&response, i32::MIN, Encoding::Json);
            let header: serde_json::Value = serde_json::from_slice(&out[8..]).expect("JSON");
            let fields = header["extFields"].as_object().expect("fields");
            assert!(
                fields.values().all(serde_json::Value::is_string),
                "{header}"
            );
            assert!(header["version"].as_i64() >= Some(232), "{header}");
            assert_eq!(header["opaque"], i32::MIN);
        }
    }

    #[test]
    fn head_announces_the_body_that_follows() {
        let stored = Body::Stored {
            segments: smallvec::smallvec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")],
            bytes: 3,
        };
        for (body, bytes) in [
            (Body::None, 0),
            (Body::Bytes(Bytes::from_static(b"hello")), 5),
            (stored, 3),
        ] {
            let response = Response {
                body,
                ..Response::success()
            };
            let out = head(&response, 0, Encoding::Json);
            let total = out.len() + bytes;
            assert_eq!(
                split(&out),
                Ok(if bytes == 0 {
                    Split::Frame(decode_frame(&out))
                } else {
                    Split::Incomplete { total: Some(total) }
                })
            );
        }
    }

    /// `framing.md` section 4: no fields and empty fields are two things.
    #[test]
    fn absent_and_empty_fields_differ() {
        let text = |header| {
            let out = head(&Response::with_header(header), 0, Encoding::Json);
            String::from_utf8(out[8..].to_vec()).expect("UTF-8")
        };
        assert!(!text(ResponseHeader::None).contains("extFields"));
        assert!(text(ResponseHeader::Fields(Vec::new())).contains("\"extFields\":{},"));
        assert!(text(ResponseHeader::Offset(-1)).contains("\"extFields\":{\"offset\":\"-1\"},"));
    }

    #[test]
    fn frames_are_appended() {
        let mut out = BytesMut::from(&b"before"[..]);
        Response::success().encode_head(1, Encoding::Json, &mut out);
        assert_eq!(&out[..6], b"before");
        assert_eq!(decode_frame(&out[6..]).bytes, out.len() - 6);
    }
}
