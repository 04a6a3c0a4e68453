//! A connection to a broker, and the requests that the harness sends.

use crate::protocol::command::{Command, Encoding, Scratch};
use crate::protocol::frame::{Split, split};
use crate::protocol::response::Request;
use bytes::BytesMut;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;
use tokio_uring::net::TcpStream;

pub const SEND: i32 = 310;
pub const SEND_BATCH: i32 = 320;
pub const PULL: i32 = 11;
const MAX_OFFSET: i32 = 30;
const CREATE_TOPIC: i32 = 17;
const DELETE_TOPIC: i32 = 215;
const ROUTE: i32 = 105;
/// The topic by which brokers make others on their own; a name server knows it by every broker that does.
const TEMPLATE_TOPIC: &str = "TBW102";
const READ_BYTES: usize = 64 * 1024;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The side that writes; the other one reads the same socket.
pub struct Writer {
    stream: Rc<TcpStream>,
    bytes: Vec<u8>,
    encoding: Encoding,
}

/// Frames as they come.
pub struct Reader {
    stream: Rc<TcpStream>,
    buffer: Vec<u8>,
    received: BytesMut,
}

pub async fn connect(address: SocketAddr, encoding: Encoding) -> Result<(Writer, Reader), String> {
    let connected = TcpStream::connect(address).await;
    let stream = connected
        .and_then(|stream| stream.set_nodelay(true).map(|()| Rc::new(stream)))
        .map_err(|error| format!("no connection to {address}: {error}"))?;
    let reader = Reader {
        stream: Rc::clone(&stream),
        buffer: Vec::with_capacity(READ_BYTES),
        received: BytesMut::new(),
    };
    let writer = Writer {
        stream,
        bytes: Vec::new(),
        encoding,
    };
    Ok((writer, reader))
}

impl Writer {
    fn request<'a>(
        &self,
        code: i32,
        opaque: i32,
        one_way: bool,
        fields: &'a [(&'a str, &'a str)],
        body: &'a [u8],
    ) -> Request<'a> {
        Request {
            code,
            opaque,
            one_way,
            encoding: self.encoding,
            fields,
            body,
        }
    }

    pub fn encode(
        &self,
        code: i32,
        opaque: i32,
        fields: &[(&str, &str)],
        body: &[u8],
        out: &mut BytesMut,
    ) {
        self.request(code, opaque, false, fields, body).encode(out);
    }

    pub fn encode_one_way(
        &self,
        code: i32,
        opaque: i32,
        fields: &[(&str, &str)],
        body: &[u8],
        out: &mut BytesMut,
    ) {
        self.request(code, opaque, true, fields, body).encode(out);
    }

    /// Writes all of it and leaves `out` empty. **Errors**: the broker closed the connection.
    pub async fn write(&mut self, out: &mut BytesMut) -> Result<(), String> {
        // `tokio-uring` owns what it writes meanwhile, and takes no `BytesMut`.
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend_from_slice(out);
        out.clear();
        let (result, bytes) = self.stream.write_all(bytes).await;
        self.bytes = bytes;
        result.map_err(|error| format!("the broker takes no more: {error}"))
    }
}

impl Reader {
    /// The next whole frame, waiting for it. **Errors**: the end of the connection, or bytes that are no frame.
    pub async fn frame(&mut self) -> Result<BytesMut, String> {
        loop {
            if let Some(frame) = self.taken()? {
                return Ok(frame);
            }
            let buffer = std::mem::take(&mut self.buffer);
            let (result, buffer) = self.stream.read(buffer).await;
            let count = result.map_err(|error| format!("no answer: {error}"))?;
            if count == 0 {
                return Err("the broker closed the connection".to_owned());
            }
            self.received.extend_from_slice(&buffer[..count]);
            self.buffer = buffer;
        }
    }

    fn taken(&mut self) -> Result<Option<BytesMut>, String> {
        match split(&self.received) {
            Ok(Split::Frame(frame)) => {
                let bytes = frame.bytes;
                Ok(Some(self.received.split_to(bytes)))
            }
            Ok(Split::Incomplete { .. }) => Ok(None),
            Err(error) => Err(format!("the broker sent no frame: {error}")),
        }
    }
}

/// Decodes a whole frame. **Errors**: one line for the user.
pub fn decode<'a>(bytes: &'a [u8], scratch: &'a mut Scratch) -> Result<Command<'a>, String> {
    match split(bytes) {
        Ok(Split::Frame(frame)) => Command::decode(&frame, scratch)
            .map_err(|error| format!("the broker sent no header: {error}")),
        Ok(Split::Incomplete { .. }) => Err("the broker sent half a frame".to_owned()),
        Err(error) => Err(format!("the broker sent no frame: {error}")),
    }
}

/// Codes of a pull that brings nothing and goes on at the offset of the answer.
const PULL_AGAIN: [i32; 3] = [19, 20, 21];

/// Messages and next offset of an answer to a pull. **Errors**: it was refused, in one line.
pub fn pulled<'a>(answer: &Command<'a>) -> Result<(&'a [u8], u64), String> {
    if answer.code != 0 && !PULL_AGAIN.contains(&answer.code) {
        let remark = answer.remark.unwrap_or_default();
        return Err(format!("a pull was refused with {}: {remark}", answer.code));
    }
    let next = answer.require_i64("nextBeginOffset");
    let next = next.map_err(|error| format!("an answer to a pull: {error}"))?;
    let body = if answer.code == 0 { answer.body } else { &[] };
    Ok((body, next as u64))
}

/// Asks and waits; the whole answer. **Errors**: it was refused, or no answer came in time.
async fn call(
    address: SocketAddr,
    encoding: Encoding,
    code: i32,
    fields: &[(&str, &str)],
) -> Result<BytesMut, String> {
    let (mut writer, mut reader) = connect(address, encoding).await?;
    let mut out = BytesMut::new();
    writer.encode(code, 1, fields, &[], &mut out);
    writer.write(&mut out).await?;
    let frame = tokio::time::timeout(ANSWER_WITHIN, reader.frame()).await;
    let frame = frame.map_err(|_| format!("{address} did not answer request {code}"))??;
    let mut scratch = Scratch::default();
    let answer = decode(&frame, &mut scratch)?;
    if answer.code == 0 {
        return Ok(frame);
    }
    let remark = answer.remark.unwrap_or_default();
    let code_of_answer = answer.code;
    Err(format!(
        "{address} refused request {code} with {code_of_answer}: {remark}"
    ))
}

pub async fn create_topic(
    address: SocketAddr,
    encoding: Encoding,
    topic: &str,
    queues: u32,
) -> Result<(), String> {
    let queues = queues.to_string();
    let fields = [
        ("topic", topic),
        ("defaultTopic", TEMPLATE_TOPIC),
        ("readQueueNums", &*queues),
        ("writeQueueNums", &*queues),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    let made = call(address, encoding, CREATE_TOPIC, &fields).await;
    made.map(|_| ())
}

pub async fn delete_topic(
    address: SocketAddr,
    encoding: Encoding,
    topic: &str,
) -> Result<(), String> {
    let deleted = call(address, encoding, DELETE_TOPIC, &[("topic", topic)]).await;
    deleted.map(|_| ())
}

/// Messages of a new topic, by the ends of its queues.
pub async fn stored(
    address: SocketAddr,
    encoding: Encoding,
    topic: &str,
    queues: u32,
) -> Result<u64, String> {
    let mut sum = 0;
    for queue in 0..queues {
        let queue = queue.to_string();
        let fields = [("topic", topic), ("queueId", &*queue)];
        let frame = call(address, encoding, MAX_OFFSET, &fields).await?;
        let mut scratch = Scratch::default();
        let end = decode(&frame, &mut scratch)?.require_i64("offset");
        sum += end.map_err(|error| format!("the end of queue {queue}: {error}"))? as u64;
    }
    Ok(sum)
}

/// The first address of `HOST:PORT`.
pub fn resolve(text: &str) -> Result<SocketAddr, String> {
    let found = text
        .to_socket_addrs()
        .map_err(|error| format!("{text} is no address: {error}"))?;
    let mut found = found;
    found.next().ok_or(format!("{text} has no address"))
}

/// The first broker that a name server knows.
pub async fn broker_of(name_server: SocketAddr) -> Result<SocketAddr, String> {
    let fields = [
        ("topic", TEMPLATE_TOPIC),
        ("acceptStandardJsonOnly", "true"),
    ];
    let frame = call(name_server, Encoding::Json, ROUTE, &fields).await?;
    let mut scratch = Scratch::default();
    let body = decode(&frame, &mut scratch)?.body;
    let unknown = || format!("{name_server} names no broker");
    let route: serde_json::Value = serde_json::from_slice(body).map_err(|_| unknown())?;
    let master = route["brokerDatas"][0]["brokerAddrs"]["0"].as_str();
    resolve(master.ok_or_else(unknown)?)
}

/// Fields of 310. `g` is the born time: it is not what is measured by, so that its text may stay the same.
pub fn send_fields<'a>(
    topic: &'a str,
    queues: &'a str,
    queue: &'a str,
) -> [(&'a str, &'a str); 12] {
    [
        ("a", "ringmq-bench"),
        ("b", topic),
        ("c", TEMPLATE_TOPIC),
        ("d", queues),
        ("e", queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", ""),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ]
}

pub fn mark_as_batch(fields: &mut [(&str, &str); 12]) {
    fields[11] = ("m", "true");
}

/// What clients ask for: a pull waits for up to 15 s.
pub const SUSPEND_MS: &str = "15000";

/// Fields of a pull that waits and brings its subscription along.
pub fn pull_fields<'a>(
    group: &'a str,
    topic: &'a str,
    queue: &'a str,
    offset: &'a str,
    suspend_ms: &'a str,
) -> [(&'a str, &'a str); 11] {
    [
        ("consumerGroup", group),
        ("topic", topic),
        ("queueId", queue),
        ("queueOffset", offset),
        ("maxMsgNums", "32"),
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", suspend_ms),
        ("subscription", "*"),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
    ]
}
