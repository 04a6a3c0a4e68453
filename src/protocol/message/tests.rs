use super::*;

const PROPERTIES: &str = "TAGS\u{1}TagA\u{2}UNIQ_KEY\u{1}7F000001000218B4AAC2000000000000\u{2}";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// The message of `messages.md` section 1.4.
fn example() -> NewMessage<'static> {
    NewMessage {
        topic: "T",
        queue_id: 1,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: address("10.0.0.2:40000"),
        store_host: address("10.0.0.1:10911"),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"hello",
        properties: PROPERTIES,
        tags_code: 2_598_919,
    }
}

fn encode(message: &NewMessage<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    message.encode(
        QueueOffset(5),
        PhysicalOffset(1000),
        1_700_000_000_001,
        &mut out,
    );
    assert_eq!(out.len(), message.encoded_bytes());
    out
}

fn decode(bytes: &[u8]) -> StoredMessage<'_> {
    match StoredMessage::decode(bytes).expect("a record") {
        Record::Message(message) => message,
        blank => panic!("{blank:?}"),
    }
}

#[test]
fn record_is_the_worked_example() {
    let mut expected = vec![
        0, 0, 0, 0x95, 0xDA, 0xA3, 0x20, 0xA7, 0x36, 0x10, 0xA6, 0x86, 0, 0, 0, 1, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 3, 0xE8, 0, 0, 0, 0, 0, 0, 1, 0x8B, 0xCF, 0xE5,
        0x68, 0, 0x0A, 0, 0, 2, 0, 0, 0x9C, 0x40, 0, 0, 1, 0x8B, 0xCF, 0xE5, 0x68, 1, 0x0A, 0, 0,
        1, 0, 0, 0x2A, 0x9F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0x68, 0x65, 0x6C,
        0x6C, 0x6F, 1, 0x54, 0, 0x34,
    ];
    expected.extend(PROPERTIES.as_bytes());
    let out = encode(&example());
    assert_eq!(out[..], expected);
    assert_eq!(&out[QUEUE_OFFSET_AT..][..8], 5_u64.to_be_bytes());
    assert_eq!(&out[PHYSICAL_OFFSET_AT..][..8], 1000_u64.to_be_bytes());
    assert_eq!(out.len(), RECORD_OVERHEAD_BYTES + 5 + 1 + PROPERTIES.len());
}

#[test]
fn record_is_read_back() {
    let out = encode(&example());
    let message = decode(&out);
    assert_eq!(message.bytes, &out[..]);
    assert_eq!(
        (message.queue_id, message.flag, message.sys_flag),
        (1, 0, 0)
    );
    assert_eq!(message.queue_offset, QueueOffset(5));
    assert_eq!(message.physical_offset, PhysicalOffset(1000));
    assert_eq!(message.born_timestamp, 1_700_000_000_000);
    assert_eq!(message.born_host, address("10.0.0.2:40000"));
    assert_eq!(message.store_timestamp, 1_700_000_000_001);
    assert_eq!(message.store_host, address("10.0.0.1:10911"));
    assert_eq!((message.topic, message.body), ("T", &b"hello"[..]));
    assert_eq!(message.properties, PROPERTIES);
    assert_eq!(message.tag(), "TagA");
    assert_eq!(message.check_body_crc(), Ok(()));
    assert_eq!(store_timestamp_of(&out), Ok(1_700_000_000_001));
    assert_eq!(tag_of(&out), Ok("TagA"));
}

#[test]
fn bytes_behind_a_record_are_left_alone() {
    let mut out = encode(&example());
    let record_bytes = out.len();
    out.put_bytes(0xAA, 7);
    assert_eq!(decode(&out).bytes.len(), record_bytes);
}

/// Trap 40 of `semantics.md` section 19: the other bits, those of compression among them, pass unchanged.
#[test]
fn hosts_set_their_bits() {
    let v6 = address("[2001:db8::1]:10911");
    let mapped = address("[::ffff:10.0.0.9]:40000");
    for (born_host, store_host, bits, v6_hosts) in [
        (v6, v6, 0x30, 2),
        (v6, example().store_host, 0x10, 1),
        (example().born_host, v6, 0x20, 1),
        (mapped, example().store_host, 0, 0),
    ] {
        let message = NewMessage {
            born_host,
            store_host,
            // Bits that lie about the hosts are corrected, the others kept.
            sys_flag: 0x30 | sys_flag::COMPRESSED | 0x300,
            ..example()
        };
        let out = encode(&message);
        let stored = decode(&out);
        assert_eq!(stored.sys_flag, 0x301 | bits);
        assert_eq!(stored.born_host.ip(), born_host.ip().to_canonical());
        assert_eq!(stored.store_host, store_host);
        assert_eq!(
            out.len(),
            encode(&example()).len() + v6_hosts * V6_EXTRA_BYTES
        );
        assert_eq!(store_timestamp_of(&out), Ok(1_700_000_000_001));
        assert_eq!(tag_of(&out), Ok("TagA"));
    }
}

/// Go reads one length byte whatever the magic, so v2 comes only with topics that v1 can't hold.
#[test]
fn long_topics_make_v2_records() {
    for (bytes, magic) in [(127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)] {
        let topic = "t".repeat(bytes);
        let message = NewMessage {
            topic: &topic,
            ..example()
        };
        let out = encode(&message);
        assert_eq!(u32_at(&out, MAGIC_AT), Some(magic));
        assert_eq!(decode(&out).topic, topic);
        assert_eq!(tag_of(&out), Ok("TagA"));
    }
}

#[test]
fn properties_that_are_not_utf8_do_not_fail_the_record() {
    let message = NewMessage {
        properties: "k\u{1}??\u{2}TAGS\u{1}TagA",
        ..example()
    };
    let mut out = encode(&message);
    let at = out.len() - message.properties.len() + 2;
    out[at..at + 2].copy_from_slice(&[0xFF, 0xFE]);
    let stored = decode(&out);
    assert_eq!(stored.properties, "");
    assert_eq!(stored.properties_bytes, b"k\x01\xFF\xFE\x02TAGS\x01TagA");
    assert_eq!((stored.tag(), tag_of(&out)), ("TagA", Ok("TagA")));
    assert_eq!(properties_of(&out), Ok(stored.properties_bytes));
}

#[test]
fn tag_that_is_not_utf8_is_no_tag() {
    let message = NewMessage {
        properties: "TAGS\u{1}??",
        ..example()
    };
    let mut out = encode(&message);
    let end = out.len();
    out[end - 2..].copy_from_slice(&[0xFF, 0xFE]);
    assert_eq!((decode(&out).tag(), tag_of(&out)), ("", Ok("")));
}

#[test]
fn every_cut_record_is_short() {
    let out = encode(&example());
    for have in 0..out.len() {
        let need = if have < BLANK_BYTES {
            BLANK_BYTES
        } else {
            out.len()
        };
        let short = MessageError::Short { have, need };
        assert_eq!(StoredMessage::decode(&out[..have]), Err(short));
        assert!(tag_of(&out[..have]).is_err());
    }
}

#[test]
fn wrong_records_are_refused() {
    let check = |at: usize, bytes: &[u8], expected: MessageError| {
        let mut out = encode(&example());
        out[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(
            StoredMessage::decode(&out),
            Err(expected),
            "{bytes:02x?} at {at}"
        );
    };
    check(MAGIC_AT, &[0; 4], MessageError::Magic(0));
    check(0, &[0, 0, 0, 90], MessageError::Size(90));
    check(0, &[0xFF; 4], MessageError::Size(-1));
    check(0, &[1, 0, 0, 1], MessageError::Size(0x0100_0001));
    check(0, &[0, 0, 0, 0x94], MessageError::Lengths);
    check(84, &[0, 0, 0, 4], MessageError::Lengths);
    check(84, &[0xFF, 0xFF, 0xFF, 0xFF], MessageError::Lengths);
    check(93, &[2], MessageError::Lengths);
    check(95, &[0xFF, 0xFF], MessageError::Lengths);
    check(52, &[0, 1, 0, 0], MessageError::Lengths);
    check(94, &[0xFF], MessageError::Utf8);
}

#[test]
fn blank_tells_what_is_left_of_the_segment() {
    let blank = |size: u32| [size.to_be_bytes(), MAGIC_BLANK.to_be_bytes()].concat();
    assert_eq!(StoredMessage::decode(&blank(8)), Ok(Record::Blank(8)));
    assert_eq!(
        StoredMessage::decode(&blank(1 << 30)),
        Ok(Record::Blank(1 << 30))
    );
    assert_eq!(StoredMessage::decode(&blank(7)), Err(MessageError::Size(7)));
    assert_eq!(
        StoredMessage::decode(&blank(u32::MAX)),
        Err(MessageError::Size(-1))
    );
}

#[test]
fn changed_body_fails_its_crc() {
    let mut out = encode(&example());
    out[88] ^= 1;
    let error = decode(&out).check_body_crc().expect_err("changed");
    assert!(
        matches!(
            error,
            MessageError::BodyCrc {
                stored: 0x3610_A686,
                ..
            }
        ),
        "{error}"
    );
    let empty = NewMessage {
        body: b"",
        ..example()
    };
    assert_eq!(decode(&encode(&empty)).body_crc, 0);
}

#[test]
fn offset_message_id_is_the_worked_example() {
    let v4 = (example().store_host, PhysicalOffset(1000));
    let v6 = (address("[2001:db8::1]:10911"), PhysicalOffset(u64::MAX));
    for ((host, at), expected) in [
        (v4, "0A00000100002A9F00000000000003E8"),
        (
            v6,
            "20010DB800000000000000000000000100002A9FFFFFFFFFFFFFFFFF",
        ),
    ] {
        let id = offset_message_id(host, at);
        assert_eq!(id.as_str(), expected);
        assert_eq!(parse_offset_message_id(&id), Some((host, at)));
        assert_eq!(
            parse_offset_message_id(&id.to_lowercase()),
            Some((host, at))
        );
    }
}

/// A unique key has the shape of a server id; its "port" rarely fits 16 bits.
#[test]
fn other_texts_are_no_ids() {
    for id in [
        "",
        "0A00000100002A9F00000000000003E",
        "0A00000100002A9F00000000000003EG",
        "7F000001000218B4AAC2000000000000",
        "0A00000100002A9F000000000000\u{4E3B}E",
    ] {
        assert_eq!(parse_offset_message_id(id), None, "{id}");
    }
}

/// The example of `messages.md` section 4.
const BATCH: &[u8] = b"\0\0\0\x21\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01A\0\x0AWAIT\x01true\x02";

fn batch(body: &[u8]) -> Vec<Result<BatchRecord<'_>, MessageError>> {
    batch_records(body).collect()
}

#[test]
fn batch_is_the_worked_example() {
    let record = BatchRecord {
        flag: 0,
        body: b"A",
        properties: "WAIT\u{1}true\u{2}",
    };
    let mut out = BytesMut::new();
    record.encode(&mut out);
    assert_eq!(out[..], *BATCH);
    assert_eq!(batch(BATCH), [Ok(record)]);
    assert_eq!(batch(&BATCH.repeat(2)), [Ok(record), Ok(record)]);
    assert_eq!(batch(b""), []);
}

#[test]
fn error_ends_a_batch() {
    let good = BatchRecord {
        flag: 7,
        body: b"b",
        properties: "",
    };
    let mut first = BytesMut::new();
    good.encode(&mut first);
    let size = first.len();
    let check = |second: &[u8], expected: MessageError| {
        let body = [&first[..], second].concat();
        assert_eq!(batch(&body), [Ok(good), Err(expected)], "{second:02x?}");
    };
    let short = |have, need| MessageError::Short { have, need };
    check(&[0], short(1, 22));
    check(&first[..size - 1], short(size - 1, size));
    check(&[0, 0, 0, 21, 0], MessageError::Size(21));
    check(&[0xFF; 22], MessageError::Size(-1));
    let mut lengths = first.clone();
    lengths[19] = 2;
    check(&lengths, MessageError::Lengths);
    let mut behind = first.clone();
    behind[3] += 1;
    behind.put_u8(0);
    check(&behind, MessageError::Lengths);
}
