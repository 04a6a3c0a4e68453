//! Frames of real clients: every one decodes and survives a round trip in both encodings; every stored record and
//! every client batch is encoded back to the very same bytes.
//!
//! The captures are described in `tests/golden/README.md`. `RINGMQ_GOLDEN_FULL=<directory>` reads all `*.pcap` of
//! that directory as well.

use bytes::{Bytes, BytesMut};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use ringmq::protocol::bodies::groups::GroupConfig;
use ringmq::protocol::bodies::heartbeat::{ConsumerIds, Heartbeat};
use ringmq::protocol::bodies::locks::{LockBatchRequestBody, LockBatchResponseBody};
use ringmq::protocol::bodies::registration::{Registration, RegistrationForm, check_body_crc};
use ringmq::protocol::bodies::routes::{ClusterInfo, Dialect, TopicRoute};
use ringmq::protocol::bodies::stats::{ConsumeStats, TopicStatsTable};
use ringmq::protocol::bodies::tables::{GroupList, KvTableBuf, TopicList};
use ringmq::protocol::bodies::{decode, encode};
use ringmq::protocol::codes::{RequestCode, ResponseCode};
use ringmq::protocol::command::{Command, Encoding, Scratch};
use ringmq::protocol::frame::{Frame, Split, split};
use ringmq::protocol::headers::{PullHeader, SendHeader};
use ringmq::protocol::message::{
    self, NewMessage, Record, StoredMessage, batch_records, offset_message_id, store_timestamp_of,
    tag_of,
};
use ringmq::protocol::names::{check_group, check_topic};
use ringmq::protocol::response::{Body, Request, Response, ResponseHeader};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

/// One direction of a TCP connection: from, to.
type Direction = (SocketAddrV4, SocketAddrV4);

/// A TCP segment of a capture.
struct Segment {
    direction: Direction,
    sequence: u32,
    is_syn: bool,
    payload: Vec<u8>,
}

/// Takes Ethernet, IPv4 and TCP off a packet.
fn parse_segment(packet: &[u8]) -> Option<Segment> {
    const ETHERNET_BYTES: usize = 14;
    const PROTOCOL_TCP: u8 = 6;
    let ip = packet.get(ETHERNET_BYTES..)?;
    if ip[0] >> 4 != 4 || ip[9] != PROTOCOL_TCP {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let tcp = ip.get(usize::from(ip[0] & 15) * 4..total)?;
    let address = |ip_at: usize, port_at: usize| {
        let octets: [u8; 4] = ip[ip_at..ip_at + 4].try_into().expect("four bytes");
        let port = u16::from_be_bytes([tcp[port_at], tcp[port_at + 1]]);
        SocketAddrV4::new(Ipv4Addr::from(octets), port)
    };
    Some(Segment {
        direction: (address(12, 0), address(16, 2)),
        sequence: u32::from_be_bytes(tcp[4..8].try_into().expect("four bytes")),
        is_syn: tcp[13] & 2 != 0,
        payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
    })
}

/// Bytes of one direction, put in order.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// Sequence number of the byte behind `bytes`.
    next: Option<u32>,
    /// Segments that came too early.
    early: Vec<(u32, Vec<u8>)>,
}

impl Stream {
    fn push(&mut self, segment: Segment) {
        if segment.is_syn {
            self.next = Some(segment.sequence.wrapping_add(1));
        }
        if segment.payload.is_empty() {
            return;
        }
        self.next.get_or_insert(segment.sequence);
        self.early.push((segment.sequence, segment.payload));
        while let Some(at) = self
            .early
            .iter()
            .position(|(sequence, _)| self.behind(*sequence) >= 0)
        {
            let (sequence, payload) = self.early.swap_remove(at);
            let known = self.behind(sequence) as usize;
            // A retransmission brings nothing new, or only its end.
            if let Some(new) = payload.get(known..) {
                self.bytes.extend(new);
                self.next = self.next.map(|next| next.wrapping_add(new.len() as u32));
            }
        }
    }

    /// Bytes from `sequence` to the end of what is in order; negative before a gap.
    fn behind(&self, sequence: u32) -> i32 {
        self.next.unwrap_or(sequence).wrapping_sub(sequence) as i32
    }
}

/// All directions of a capture, in order of their first segment.
fn streams(path: &Path) -> Vec<(Direction, Vec<u8>)> {
    let file = std::fs::File::open(path).expect("the capture opens");
    let mut reader = PcapReader::new(file).expect("a pcap header");
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut order = Vec::new();
    let mut streams: HashMap<Direction, Stream> = HashMap::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a packet");
        let Some(segment) = parse_segment(&packet.data) else {
            continue;
        };
        let stream = streams.entry(segment.direction).or_insert_with(|| {
            order.push(segment.direction);
            Stream::default()
        });
        stream.push(segment);
    }
    order
        .into_iter()
        .map(|direction| {
            let stream = &mut streams.get_mut(&direction).expect("it was seen");
            assert!(stream.early.is_empty(), "{direction:?} has a gap");
            (direction, std::mem::take(&mut stream.bytes))
        })
        .collect()
}

/// Splits a whole stream.
fn frames(mut stream: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while let Split::Frame(frame) = split(stream).expect("frames") {
        stream = &stream[frame.bytes..];
        frames.push(frame);
    }
    assert!(stream.is_empty(), "{} bytes are left", stream.len());
    frames
}

/// What a capture held.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    requests: BTreeMap<i32, usize>,
    responses: usize,
    stored_records: usize,
    batch_records: usize,
    /// JSON bodies read and written.
    bodies: usize,
}

fn check_capture(path: &Path) -> Seen {
    let streams = streams(path);
    let mut seen = Seen::default();
    // Code of a request by who sent it to whom, and its opaque.
    let mut asked: HashMap<(Direction, i32), i32> = HashMap::new();
    for (direction, stream) in &streams {
        for frame in frames(stream) {
            let mut scratch = Scratch::default();
            let command = Command::decode(&frame, &mut scratch).expect("a header");
            if !command.is_response() {
                asked.insert((*direction, command.opaque), command.code);
            }
        }
    }
    for ((from, to), stream) in &streams {
        for frame in frames(stream) {
            let mut scratch = Scratch::default();
            let command = Command::decode(&frame, &mut scratch).expect("a header");
            if command.is_response() {
                seen.responses += 1;
                check_response_round_trip(&command);
                if let Some(code) = asked.get(&((*to, *from), command.opaque)) {
                    check_response_body(RequestCode(*code), &command, &mut seen);
                }
            } else {
                *seen.requests.entry(command.code).or_default() += 1;
                check_request_round_trip(&command);
                check_request(&command, &mut seen);
            }
        }
    }
    seen
}

/// Fields as a decoder sees them: by name, the last of a name. A binary header has no empty values.
fn field_map<'a>(command: &Command<'a>, encoding: Encoding) -> BTreeMap<&'a str, &'a str> {
    let fields = command.fields.iter();
    fields
        .filter(|(_, value)| encoding == Encoding::Json || !value.is_empty())
        .collect()
}

fn check_round_trip(command: &Command<'_>, encoding: Encoding, encoded: &[u8]) {
    let [frame] = frames(encoded)[..] else {
        panic!("one frame");
    };
    let mut scratch = Scratch::default();
    let again = Command::decode(&frame, &mut scratch).expect("a header");
    assert_eq!(
        (again.encoding, again.code, again.opaque, again.flag),
        (encoding, command.code, command.opaque, command.flag)
    );
    let remark = |command: &Command<'_>| command.remark.unwrap_or_default().to_owned();
    assert_eq!(remark(&again), remark(command));
    assert_eq!(field_map(&again, encoding), field_map(command, encoding));
    assert_eq!(again.body, command.body);
}

fn check_request_round_trip(command: &Command<'_>) {
    let fields: Vec<_> = command.fields.iter().collect();
    for encoding in [Encoding::Json, Encoding::Binary] {
        let request = Request {
            code: command.code,
            opaque: command.opaque,
            one_way: command.is_one_way(),
            encoding,
            fields: &fields,
            body: command.body,
        };
        let mut out = BytesMut::new();
        request.encode(&mut out);
        check_round_trip(command, encoding, &out);
    }
}

fn check_response_round_trip(command: &Command<'_>) {
    let leak = |text: &str| -> &'static str { String::leak(text.to_owned()) };
    let fields = command.fields.iter();
    let response = Response {
        code: ResponseCode(command.code),
        remark: command.remark.map(|remark| Cow::Owned(remark.to_owned())),
        header: ResponseHeader::Fields(
            fields
                .map(|(name, value)| (leak(name), value.to_owned()))
                .collect(),
        ),
        body: Body::Bytes(Bytes::copy_from_slice(command.body)),
    };
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut out = BytesMut::new();
        response.encode_head(command.opaque, encoding, &mut out);
        out.extend_from_slice(command.body);
        check_round_trip(command, encoding, &out);
    }
}

fn check_request(command: &Command<'_>, seen: &mut Seen) {
    assert!(
        RequestCode(command.code).name().is_some(),
        "code {}",
        command.code
    );
    let body = command.body;
    match RequestCode(command.code) {
        RequestCode::SEND_MESSAGE | RequestCode::SEND_MESSAGE_V2 => check_send(command),
        RequestCode::SEND_BATCH_MESSAGE => {
            check_send(command);
            check_batch(body, seen);
        }
        RequestCode::PULL_MESSAGE => check_pull(command),
        RequestCode::CHECK_TRANSACTION_STATE => check_stored(body, seen),
        RequestCode::HEART_BEAT => check_body::<Heartbeat>(body, seen),
        RequestCode::LOCK_BATCH_MQ | RequestCode::UNLOCK_BATCH_MQ => {
            check_body::<LockBatchRequestBody>(body, seen);
        }
        RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => {
            check_body::<GroupConfig>(body, seen);
        }
        RequestCode::REGISTER_BROKER => check_registration(command, seen),
        _ => {}
    }
}

fn check_send(command: &Command<'_>) {
    let send = SendHeader::decode(command).expect("a send");
    assert_eq!(check_topic(send.topic), Ok(()));
    assert_eq!(check_group(send.producer_group), Ok(()));
    assert_eq!(send.default_topic_queue_nums, 4);
    assert!(send.born_timestamp > 1_700_000_000_000);
}

fn check_pull(command: &Command<'_>) {
    let pull = PullHeader::decode(command).expect("a pull");
    assert_eq!(check_topic(pull.topic), Ok(()));
    assert_eq!(pull.expression_type, "TAG");
    assert!(pull.suspend_timeout_millis > 0);
}

fn check_response_body(code: RequestCode, command: &Command<'_>, seen: &mut Seen) {
    let body = command.body;
    if body.is_empty() || command.code != ResponseCode::SUCCESS.0 {
        return;
    }
    match code {
        RequestCode::PULL_MESSAGE
        | RequestCode::VIEW_MESSAGE_BY_ID
        | RequestCode::QUERY_MESSAGE => {
            check_stored(body, seen);
        }
        RequestCode::GET_CONSUMER_LIST_BY_GROUP => {
            check_body::<ConsumerIds>(body, seen);
            let list: ConsumerIds = decode(body).expect("a list");
            assert_eq!(encode(&list), body);
        }
        RequestCode::LOCK_BATCH_MQ => {
            check_body::<LockBatchResponseBody>(body, seen);
            let locked: LockBatchResponseBody = decode(body).expect("locks");
            assert_eq!(encode(&locked), body);
        }
        RequestCode::GET_ROUTEINFO_BY_TOPIC => check_route(body, seen),
        RequestCode::GET_BROKER_CLUSTER_INFO => check_body::<ClusterInfo>(body, seen),
        RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => check_body::<TopicList>(body, seen),
        RequestCode::QUERY_TOPIC_CONSUME_BY_WHO => check_body::<GroupList>(body, seen),
        RequestCode::GET_BROKER_RUNTIME_INFO => check_body::<KvTableBuf>(body, seen),
        RequestCode::GET_TOPIC_STATS_INFO => {
            let stats = TopicStatsTable::decode(body).expect("statistics");
            assert!(!stats.offset_table.is_empty());
            assert_eq!(TopicStatsTable::decode(&stats.encode()).ok(), Some(stats));
            seen.bodies += 1;
        }
        RequestCode::GET_CONSUME_STATS => {
            let stats = ConsumeStats::decode(body).expect("statistics");
            assert_eq!(ConsumeStats::decode(&stats.encode()).ok(), Some(stats));
            seen.bodies += 1;
        }
        _ => {}
    }
}

/// A body reads, is not empty, and is the same when it is read again.
fn check_body<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(
    body: &[u8],
    seen: &mut Seen,
) {
    let text = String::from_utf8_lossy(body);
    let value: T = decode(body).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(decode::<T>(&encode(&value)).ok(), Some(value), "{text}");
    seen.bodies += 1;
}

fn check_route(body: &[u8], seen: &mut Seen) {
    let route: TopicRoute = decode(body).expect("a route");
    assert!(!route.brokers.is_empty());
    for dialect in [Dialect::Strict, Dialect::Fastjson] {
        assert_eq!(
            decode::<TopicRoute>(&route.encode(dialect)).ok().as_ref(),
            Some(&route)
        );
    }
    seen.bodies += 1;
}

fn check_registration(command: &Command<'_>, seen: &mut Seen) {
    assert_eq!(command.bool("compressed"), Some(false));
    let crc = command.require_i32("bodyCrc32").expect("a CRC");
    check_body_crc(command.body, u32::try_from(crc).ok()).expect("the right CRC");
    let body = Registration::decode(command.body, RegistrationForm::Json).expect("topics");
    for form in [RegistrationForm::Json, RegistrationForm::Compressed] {
        let again = Registration::decode(&body.encode(form), form);
        assert_eq!(again.ok().as_ref(), Some(&body));
    }
    seen.bodies += 1;
}

/// Records back to back up to the end of the body, each encoded back to its bytes.
fn check_stored(mut body: &[u8], seen: &mut Seen) {
    while !body.is_empty() {
        let record = match StoredMessage::decode(body).expect("a record") {
            Record::Message(record) => record,
            Record::Blank(_) => panic!("a blank never leaves the log"),
        };
        body = &body[record.bytes.len()..];
        check_record(&record);
        seen.stored_records += 1;
    }
}

fn check_record(record: &StoredMessage<'_>) {
    assert_eq!(record.check_body_crc(), Ok(()));
    assert_eq!(tag_of(record.bytes), Ok(record.tag()));
    assert_eq!(store_timestamp_of(record.bytes), Ok(record.store_timestamp));
    let id = offset_message_id(record.store_host, record.physical_offset);
    let parsed = message::parse_offset_message_id(&id);
    assert_eq!(parsed, Some((record.store_host, record.physical_offset)));
    let again = NewMessage {
        topic: record.topic,
        queue_id: u32::try_from(record.queue_id).expect("a queue id"),
        flag: record.flag,
        sys_flag: record.sys_flag,
        born_timestamp: record.born_timestamp,
        born_host: record.born_host,
        store_host: record.store_host,
        reconsume_times: record.reconsume_times,
        prepared_transaction_offset: record.prepared_transaction_offset,
        body: record.body,
        properties: record.properties,
        tags_code: 0,
    };
    let mut out = BytesMut::new();
    again.encode(
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp,
        &mut out,
    );
    assert_eq!(out, record.bytes);
}

fn check_batch(body: &[u8], seen: &mut Seen) {
    let mut out = BytesMut::new();
    for record in batch_records(body) {
        record.expect("a batch record").encode(&mut out);
        seen.batch_records += 1;
    }
    assert_eq!(out, body);
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// Checks a capture and what it held: requests, responses, stored records, batch records, bodies.
fn check(name: &str, expected: [usize; 5]) {
    let seen = check_capture(&golden(name));
    let requests = seen.requests.values().sum();
    let counts = [
        requests,
        seen.responses,
        seen.stored_records,
        seen.batch_records,
        seen.bodies,
    ];
    assert_eq!(counts, expected, "{name}: {seen:?}");
}

#[test]
fn java_frames_with_binary_headers_survive() {
    check("java-5.3.3-binary.pcap", [47, 39, 2, 0, 16]);
}

#[test]
fn java_frames_survive() {
    check("java-4.9.8.pcap", [333, 217, 38, 101, 77]);
}

#[test]
fn mqadmin_frames_survive() {
    check("mqadmin-4.9.8.pcap", [70, 70, 2, 0, 32]);
}

#[test]
fn go_frames_survive() {
    check("go-2.1.3.pcap", [91, 79, 13, 3, 19]);
}

#[test]
fn cpp_1_frames_survive() {
    check("cpp-1.0.1.pcap", [40, 35, 64, 0, 5]);
}

#[test]
fn cpp_2_frames_survive() {
    check("cpp-2.pcap", [34, 29, 78, 0, 5]);
}

#[test]
fn cpp_2_transaction_frames_survive() {
    check("cpp-2-transactions.pcap", [44, 36, 93, 0, 10]);
}

#[test]
fn ali_ons_frames_survive() {
    check("ali-ons-3.12.0.pcap", [88, 82, 91, 0, 17]);
}

#[test]
fn full_captures_survive() {
    let Some(directory) = std::env::var_os("RINGMQ_GOLDEN_FULL") else {
        return;
    };
    let entries = std::fs::read_dir(directory).expect("the directory opens");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut captures: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "pcap"))
        .collect();
    captures.sort();
    assert!(!captures.is_empty(), "no captures");
    for path in captures {
        let seen = check_capture(&path);
        println!("{}: {seen:?}", path.display());
    }
}

#[test]
fn streams_are_put_in_order() {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    let segment = |sequence: u32, is_syn: bool, payload: &[u8]| Segment {
        direction: (address, address),
        sequence,
        is_syn,
        payload: payload.to_vec(),
    };
    let mut stream = Stream::default();
    let start = u32::MAX - 2;
    for (offset, is_syn, payload) in [
        (0, true, &b""[..]),
        (1, false, b"abc"),
        (1, false, b"abc"),
        (6, false, b"fg"),
        (2, false, b"bcde"),
        (4, false, b"de"),
        (7, false, b"gh"),
    ] {
        stream.push(segment(start.wrapping_add(offset), is_syn, payload));
    }
    assert_eq!(stream.bytes, b"abcdefgh");
    assert!(stream.early.is_empty());
}
