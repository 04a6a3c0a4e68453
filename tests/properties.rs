//! What holds for every input of the codec: what is encoded decodes to the same, a stream may be cut anywhere, and
//! no input panics.
//!
//! Arbitrary bytes rarely get past the first check of a decoder, so that valid encodings with a few bytes changed,
//! or cut, are tried as well.

use bytes::{Bytes, BytesMut};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use ringmq::ids::{PhysicalOffset, QueueOffset};
use ringmq::protocol::bodies::groups::{GroupConfig, GroupTable};
use ringmq::protocol::bodies::heartbeat::{CheckClientConfig, Heartbeat};
use ringmq::protocol::bodies::locks::LockBatchRequestBody;
use ringmq::protocol::bodies::offsets::OffsetTable;
use ringmq::protocol::bodies::registration::{Registration, RegistrationForm};
use ringmq::protocol::bodies::routes::{ClusterInfo, TopicRoute};
use ringmq::protocol::bodies::stats::{ConsumeStats, OffsetWrapper, TopicStatsTable};
use ringmq::protocol::bodies::topics::TopicTable;
use ringmq::protocol::bodies::{self, MessageQueue, TopicConfig};
use ringmq::protocol::codes::ResponseCode;
use ringmq::protocol::command::{Command, Encoding, Scratch};
use ringmq::protocol::fastjson::to_strict;
use ringmq::protocol::frame::{Frame, Split, split};
use ringmq::protocol::headers::{PullHeader, SendHeader};
use ringmq::protocol::message::{
    BatchRecord, NewMessage, Record, StoredMessage, batch_records, offset_message_id,
    parse_offset_message_id, properties_of, store_timestamp_of, tag_of,
};
use ringmq::protocol::names::{check_group, check_topic};
use ringmq::protocol::properties;
use ringmq::protocol::response::{Body, Request, Response, ResponseHeader};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Texts with everything that JSON escapes, and characters of every length.
fn text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        4 => prop::char::range('a', 'z'),
        2 => prop::char::range('\0', '\u{1F}'),
        1 => prop_oneof![Just('"'), Just('\\'), Just('/'), Just('\u{7F}'), Just('{'), Just(':')],
        2 => any::<char>(),
    ];
    vec(character, 0..24).prop_map(String::from_iter)
}

fn encoding() -> impl Strategy<Value = Encoding> {
    prop_oneof![Just(Encoding::Json), Just(Encoding::Binary)]
}

fn fields() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(text(), text(), 0..20)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..64)
}

/// The only frame of a stream.
fn whole(stream: &[u8]) -> Frame<'_> {
    match split(stream).expect("a frame") {
        Split::Frame(frame) => {
            assert_eq!(frame.bytes, stream.len());
            frame
        }
        incomplete => panic!("{incomplete:?}"),
    }
}

/// Fields as they come out: a binary header has no empty values.
fn expected_fields(fields: &BTreeMap<String, String>, encoding: Encoding) -> Vec<(&str, &str)> {
    fields
        .iter()
        .filter(|(_, value)| encoding == Encoding::Json || !value.is_empty())
        .map(|(name, value)| (&**name, &**value))
        .collect()
}

fn encode_request(
    (code, opaque, one_way): (i16, i32, bool),
    encoding: Encoding,
    fields: &BTreeMap<String, String>,
    body: &[u8],
) -> BytesMut {
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let request = Request {
        code: code.into(),
        opaque,
        one_way,
        encoding,
        fields: &fields,
        body,
    };
    let mut out = BytesMut::new();
    request.encode(&mut out);
    out
}

proptest! {
    #[test]
    fn requests_decode_to_what_was_encoded(
        head in any::<(i16, i32, bool)>(), encoding in encoding(), fields in fields(), body in body(),
    ) {
        let out = encode_request(head, encoding, &fields, &body);
        let mut scratch = Scratch::default();
        let command = Command::decode(&whole(&out), &mut scratch).expect("a header");
        let (code, opaque, one_way) = head;
        prop_assert_eq!((command.code, command.opaque), (code.into(), opaque));
        prop_assert_eq!((command.is_one_way(), command.is_response()), (one_way, false));
        prop_assert_eq!(command.fields.iter().collect::<Vec<_>>(), expected_fields(&fields, encoding));
        prop_assert_eq!(command.body, body);
    }

    #[test]
    fn responses_decode_to_what_was_encoded(
        (code, opaque) in any::<(i16, i32)>(), encoding in encoding(), remark in prop::option::of(text()),
        offset in prop::option::of(any::<i64>()), body in body(),
    ) {
        let response = Response {
            code: ResponseCode(code.into()),
            remark: remark.clone().map(Cow::Owned),
            header: offset.map_or(ResponseHeader::None, ResponseHeader::Offset),
            body: Body::Bytes(Bytes::from(body.clone())),
        };
        let mut out = BytesMut::new();
        response.encode_head(opaque, encoding, &mut out);
        out.extend_from_slice(&body);
        let mut scratch = Scratch::default();
        let command = Command::decode(&whole(&out), &mut scratch).expect("a header");
        prop_assert_eq!((command.code, command.opaque, command.flag), (code.into(), opaque, 1));
        let empty_is_absent = |remark: &&str| encoding == Encoding::Json || !remark.is_empty();
        prop_assert_eq!(command.remark, remark.as_deref().filter(empty_is_absent));
        prop_assert_eq!(command.i64("offset"), Ok(offset));
        prop_assert_eq!(command.body, body);
    }

    /// A second opinion on the JSON scanner: the texts of fields are those of a full parser.
    #[test]
    fn json_headers_read_as_by_another_parser(
        fields in btree_map(text(), scalar(), 0..12), other in btree_map(text(), json(), 0..4), pretty in any::<bool>(),
        opaque in any::<i32>(),
    ) {
        let mut header: Map<String, Value> = other.into_iter().map(|(key, value)| (format!("x{key}"), value)).collect();
        header.insert("opaque".to_owned(), opaque.into());
        let fields: Map<String, Value> = fields.into_iter().collect();
        let expected: Vec<_> = fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect();
        header.insert("extFields".to_owned(), fields.into());
        let text = if pretty { serde_json::to_string_pretty(&header) } else { serde_json::to_string(&header) };
        let text = text.expect("JSON");
        let mut scratch = Scratch::default();
        let frame = Frame { encoding: Encoding::Json, header: text.as_bytes(), body: b"", bytes: 0 };
        let command = Command::decode(&frame, &mut scratch).expect("a header");
        prop_assert_eq!(command.opaque, opaque);
        let read: Vec<_> = command.fields.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn a_stream_cut_anywhere_yields_the_same_frames(
        frames in vec((any::<(i16, i32, bool)>(), encoding(), fields(), body()), 1..5), cuts in vec(1_usize..40, 1..60),
    ) {
        let encoded: Vec<_> = frames
            .iter()
            .map(|(head, encoding, fields, body)| encode_request(*head, *encoding, fields, body))
            .collect();
        let stream = encoded.concat();
        let mut received = Vec::new();
        let mut seen = Vec::new();
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            let (chunk, behind) = rest.split_at((*cut).min(rest.len()));
            received.extend(chunk);
            rest = behind;
            while let Split::Frame(frame) = split(&received).expect("frames") {
                let bytes = frame.bytes;
                seen.push(received[..bytes].to_vec());
                received.drain(..bytes);
            }
            if let Split::Incomplete { total: Some(total) } = split(&received).expect("frames") {
                prop_assert!(total > received.len());
            }
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(received.is_empty());
        prop_assert_eq!(seen, encoded);
    }
}

/// A value that a client may send for a field.
fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => text().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn json() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(text(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port))
}

#[derive(Clone, Debug)]
struct Stored {
    topic: String,
    queue_id: u32,
    flags: (i32, i32),
    timestamps: (i64, u64),
    hosts: (SocketAddr, SocketAddr),
    reconsume_times: i32,
    offsets: (u64, u64, u64),
    body: Vec<u8>,
    properties: String,
}

fn stored() -> impl Strategy<Value = Stored> {
    let ids = (any::<(i32, i32)>(), 0..i32::MAX as u32, any::<i32>());
    let times = (any::<(i64, u64)>(), any::<(u64, u64, u64)>());
    let texts = (
        prop_oneof!["[a-zA-Z0-9_%|-]{1,127}", "[a-z]{128,255}"],
        text(),
    );
    (ids, times, texts, (address(), address()), body()).prop_map(
        |(
            (flags, queue_id, reconsume_times),
            (timestamps, offsets),
            (topic, properties),
            hosts,
            body,
        )| Stored {
            topic,
            queue_id,
            flags,
            timestamps,
            hosts,
            reconsume_times,
            offsets,
            body,
            properties,
        },
    )
}

/// Bits of the sys flag that tell the hosts' families.
const HOST_BITS: i32 = 0x30;

fn encode_stored(stored: &Stored) -> BytesMut {
    let (queue_offset, physical_offset, prepared_transaction_offset) = stored.offsets;
    let message = NewMessage {
        topic: &stored.topic,
        queue_id: stored.queue_id,
        flag: stored.flags.0,
        sys_flag: stored.flags.1,
        born_timestamp: stored.timestamps.0,
        born_host: stored.hosts.0,
        store_host: stored.hosts.1,
        reconsume_times: stored.reconsume_times,
        prepared_transaction_offset,
        body: &stored.body,
        properties: &stored.properties,
        tags_code: 0,
    };
    let mut out = BytesMut::new();
    let store_timestamp = stored.timestamps.1;
    message.encode(
        QueueOffset(queue_offset),
        PhysicalOffset(physical_offset),
        store_timestamp,
        &mut out,
    );
    assert_eq!(out.len(), message.encoded_bytes());
    out
}

proptest! {
    #[test]
    fn messages_decode_to_what_was_encoded(stored in stored()) {
        let out = encode_stored(&stored);
        let record = match StoredMessage::decode(&out).expect("a record") {
            Record::Message(record) => record,
            blank => panic!("{blank:?}"),
        };
        prop_assert_eq!(record.bytes, &out[..]);
        prop_assert_eq!((record.topic, record.body), (&*stored.topic, &*stored.body));
        prop_assert_eq!((record.properties, record.queue_id), (&*stored.properties, stored.queue_id as i32));
        prop_assert_eq!((record.flag, record.sys_flag & !HOST_BITS), (stored.flags.0, stored.flags.1 & !HOST_BITS));
        prop_assert_eq!((record.born_timestamp, record.store_timestamp), stored.timestamps);
        prop_assert_eq!((record.born_host, record.store_host), stored.hosts);
        let offsets = (record.queue_offset.0, record.physical_offset.0, record.prepared_transaction_offset);
        prop_assert_eq!(offsets, stored.offsets);
        prop_assert_eq!(record.reconsume_times, stored.reconsume_times);
        prop_assert_eq!(record.check_body_crc(), Ok(()));
        prop_assert_eq!(tag_of(&out), Ok(record.tag()));
        prop_assert_eq!(record.tag(), properties::get(&stored.properties, "TAGS").unwrap_or_default());
        prop_assert_eq!(properties_of(&out), Ok(stored.properties.as_bytes()));
        prop_assert_eq!(store_timestamp_of(&out), Ok(stored.timestamps.1));
        let id = offset_message_id(record.store_host, record.physical_offset);
        prop_assert_eq!(parse_offset_message_id(&id), Some((record.store_host, record.physical_offset)));
    }

    #[test]
    fn batches_decode_to_what_was_encoded(records in vec((any::<i32>(), body(), text()), 0..8)) {
        let records: Vec<_> = records
            .iter()
            .map(|(flag, body, properties)| BatchRecord { flag: *flag, body, properties })
            .collect();
        let mut out = BytesMut::new();
        for record in &records {
            record.encode(&mut out);
        }
        let read: Result<Vec<_>, _> = batch_records(&out).collect();
        prop_assert_eq!(read.as_ref(), Ok(&records));
        // A batch that is cut, or goes on, has an error.
        out.extend_from_slice(&[0]);
        prop_assert!(batch_records(&out).any(|record| record.is_err()));
    }

    #[test]
    fn properties_change_like_a_list_of_pairs(
        pairs in vec(("[A-C]{1,2}", "[a-z0-9é]{0,4}"), 0..8), ended in any::<bool>(), key in "[A-C]{1,2}", value in "[a-z]{0,4}",
    ) {
        let mut pairs: Vec<(String, String)> = pairs;
        let mut encoded: String = pairs.iter().map(|(key, value)| format!("{key}\u{1}{value}\u{2}")).collect();
        if !ended {
            encoded.pop();
        }
        let list = |encoded: &str| -> Vec<(String, String)> {
            properties::iter(encoded).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let last = |pairs: &[(String, String)]| {
            pairs.iter().rfind(|(name, _)| *name == key).map(|(_, value)| value.clone())
        };
        prop_assert_eq!(list(&encoded), pairs.clone());
        prop_assert_eq!(properties::get(&encoded, &key).map(str::to_owned), last(&pairs));
        let mut copied = String::new();
        properties::copy_without(&encoded, &[&key], &mut copied);
        properties::remove(&mut encoded, &key);
        pairs.retain(|(name, _)| *name != key);
        prop_assert_eq!(&copied, &encoded);
        prop_assert_eq!(list(&encoded), pairs.clone());
        properties::append(&mut encoded, &key, &value);
        pairs.push((key.clone(), value));
        prop_assert_eq!(list(&encoded), pairs.clone());
        prop_assert_eq!(properties::get(&encoded, &key).map(str::to_owned), last(&pairs));
        let bytes = properties::get_bytes(encoded.as_bytes(), &key).map(<[u8]>::to_vec);
        prop_assert_eq!(bytes, last(&pairs).map(String::into_bytes));
    }
}

/// Writes JSON as fastjson does: keys that are integers without quotes, and keys that are objects as they are.
fn write_dialect(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            out.push('{');
            for (index, (key, value)) in map.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                let is_bare = key.parse::<i64>().is_ok() || key.starts_with("{\"");
                out.push_str(&if is_bare {
                    key.clone()
                } else {
                    Value::from(&**key).to_string()
                });
                out.push(':');
                write_dialect(value, out);
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for (index, value) in list.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                write_dialect(value, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// JSON with keys of all three kinds.
fn json_with_keys() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        text().prop_filter("a text", |key| !key.starts_with('{')),
        any::<i64>().prop_map(|key| key.to_string()),
        (text(), any::<i32>()).prop_map(|(topic, queue)| {
            let queue = MessageQueue {
                broker_name: "b".to_owned(),
                queue_id: queue,
                topic,
            };
            String::from_utf8(bodies::encode(&queue)).expect("JSON")
        }),
    ];
    scalar().prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn dialect_becomes_strict(value in json_with_keys()) {
        let mut dialect = String::new();
        write_dialect(&value, &mut dialect);
        let strict = to_strict(&dialect);
        prop_assert_eq!(serde_json::from_str::<Value>(&strict).ok(), Some(value));
    }

    #[test]
    fn strict_text_is_left_alone(value in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = text.expect("JSON");
        prop_assert!(matches!(to_strict(&text), Cow::Borrowed(same) if same == text));
    }

    #[test]
    fn tables_with_queues_as_keys_decode_to_what_was_encoded(
        queues in btree_map((text(), any::<i32>(), text()), any::<(i64, i64, i64, i64)>(), 0..6),
        offsets in btree_map(text(), btree_map(any::<u32>(), any::<i64>(), 0..4), 0..4),
    ) {
        let queue = |(broker_name, queue_id, topic)| MessageQueue { broker_name, queue_id, topic };
        let wrapper = |(broker_offset, consumer_offset, last_timestamp, pull_offset)| OffsetWrapper {
            broker_offset, consumer_offset, last_timestamp, pull_offset,
        };
        let offset_table = queues.into_iter().map(|(key, value)| (queue(key), wrapper(value))).collect();
        let stats = ConsumeStats { consume_tps: 0.5, offset_table };
        prop_assert_eq!(ConsumeStats::decode(&stats.encode()).ok(), Some(stats));
        let offsets = OffsetTable { offset_table: offsets, ..OffsetTable::default() };
        prop_assert_eq!(OffsetTable::decode(&offsets.encode()).ok(), Some(offsets));
    }

    #[test]
    fn registrations_decode_to_what_was_encoded(
        topics in btree_map("[a-zA-Z%_-]{1,20}", (any::<u16>(), 0_u32..16, btree_map("[a-z.]{1,8}", text(), 0..2)), 0..6),
    ) {
        let topic_config_table = topics
            .into_iter()
            .map(|(name, (queues, perm, attributes))| {
                let topic = TopicConfig { attributes, ..TopicConfig::new(&name, queues.into(), perm) };
                (name, topic)
            })
            .collect();
        let body = Registration {
            topic_config_serialize_wrapper: TopicTable { topic_config_table, ..TopicTable::default() },
            ..Registration::default()
        };
        for form in [RegistrationForm::Json, RegistrationForm::Compressed] {
            let again = Registration::decode(&body.encode(form), form).ok();
            prop_assert_eq!(again.as_ref(), Some(&body));
        }
    }
}

/// Runs every decoder over the bytes. Results don't matter, panics do.
fn decode_everything(bytes: &[u8]) {
    if let Ok(Split::Frame(frame)) = split(bytes) {
        decode_header(frame.encoding, frame.header);
    }
    decode_header(Encoding::Json, bytes);
    decode_header(Encoding::Binary, bytes);
    if let Ok(Record::Message(record)) = StoredMessage::decode(bytes) {
        let _ = (record.tag(), record.check_body_crc());
    }
    let _ = (
        tag_of(bytes),
        store_timestamp_of(bytes),
        properties_of(bytes),
    );
    assert!(batch_records(bytes).count() <= bytes.len());
    let _ = properties::get_bytes(bytes, "TAGS");
    decode_bodies(bytes);
    let text = String::from_utf8_lossy(bytes);
    let _ = (to_strict(&text), parse_offset_message_id(&text));
    let _ = (check_topic(&text), check_group(&text));
    let mut encoded = text.into_owned();
    let _ = properties::get(&encoded, "TAGS");
    properties::remove(&mut encoded, "TAGS");
    assert_eq!(
        properties::iter(&encoded)
            .filter(|(key, _)| *key == "TAGS")
            .count(),
        0
    );
}

fn decode_header(encoding: Encoding, header: &[u8]) {
    let frame = Frame {
        encoding,
        header,
        body: b"",
        bytes: 0,
    };
    let mut scratch = Scratch::default();
    if let Ok(command) = Command::decode(&frame, &mut scratch) {
        let _ = (SendHeader::decode(&command), PullHeader::decode(&command));
        for (name, _) in command.fields.iter() {
            assert!(command.fields.get(name).is_some());
        }
    }
}

fn decode_bodies(bytes: &[u8]) {
    let _ = bodies::decode::<Heartbeat>(bytes);
    let _ = bodies::decode::<CheckClientConfig>(bytes);
    let _ = bodies::decode::<LockBatchRequestBody>(bytes);
    let _ = bodies::decode::<TopicTable>(bytes);
    let _ = bodies::decode::<GroupTable>(bytes);
    let _ = bodies::decode::<GroupConfig>(bytes);
    let _ = bodies::decode::<TopicRoute>(bytes);
    let _ = bodies::decode::<ClusterInfo>(bytes);
    let _ = (TopicStatsTable::decode(bytes), ConsumeStats::decode(bytes));
    let _ = OffsetTable::decode(bytes);
    for form in [RegistrationForm::Json, RegistrationForm::Compressed] {
        let _ = Registration::decode(bytes, form);
    }
}

/// Valid encodings of every kind, to be damaged.
fn valid() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (any::<(i16, i32, bool)>(), encoding(), fields(), body()).prop_map(
            |(head, encoding, fields, body)| encode_request(head, encoding, &fields, &body)
                .to_vec()
        ),
        stored().prop_map(|stored| encode_stored(&stored).to_vec()),
        (any::<i32>(), body(), text()).prop_map(|(flag, body, properties)| {
            let mut out = BytesMut::new();
            BatchRecord {
                flag,
                body: &body,
                properties: &properties,
            }
            .encode(&mut out);
            out.to_vec()
        }),
        json_with_keys().prop_map(|value| {
            let mut dialect = String::new();
            write_dialect(&value, &mut dialect);
            dialect.into_bytes()
        }),
        Just(Registration::default().encode(RegistrationForm::Compressed)),
        Just(bodies::encode(&Heartbeat::default())),
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        decode_everything(&bytes);
    }

    #[test]
    fn damaged_encodings_never_panic(
        bytes in valid(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = bytes;
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        decode_everything(&bytes);
    }
}
