//! Requests as they come over the wire, and their answers.

use super::*;
use crate::protocol::bodies::{DataVersion, Registration, RegistrationForm, TopicConfig};
use crate::protocol::codes::ResponseCode;
use crate::protocol::command::{Command, Encoding, Scratch};
use crate::protocol::frame::{Split, split};
use crate::protocol::response::{Body, Request, Response, ResponseHeader};
use bytes::BytesMut;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const CONNECTION: Source = Source::Connection(1);

fn at(milliseconds: u64) -> Now {
    Now {
        monotonic_us: milliseconds * 1000,
        wall_ms: 1_700_000_000_000 + milliseconds,
    }
}

fn server() -> NameServer {
    NameServer::new(Settings::default(), None).expect("no file")
}

/// Sends a request the way a client does; `version` goes into the header.
fn ask_as(
    server: &mut NameServer,
    version: i32,
    code: i32,
    fields: &[(&str, &str)],
    body: &[u8],
    now: Now,
) -> Response {
    let mut out = BytesMut::new();
    Request {
        code,
        opaque: 7,
        one_way: false,
        encoding: Encoding::Json,
        fields,
        body,
    }
    .encode(&mut out);
    let Ok(Split::Frame(frame)) = split(&out) else {
        panic!("not a frame");
    };
    let mut scratch = Scratch::default();
    let mut command = Command::decode(&frame, &mut scratch).expect("a command");
    command.version = version;
    let response = server.handle(&command, CONNECTION, now);
    server.routes.check();
    response.expect("not one-way")
}

fn ask(server: &mut NameServer, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Response {
    ask_as(server, 479, code, fields, body, at(0))
}

fn body_text(response: &Response) -> &str {
    match &response.body {
        Body::Bytes(bytes) => std::str::from_utf8(bytes).expect("text"),
        Body::None | Body::Stored { .. } => "",
    }
}

fn header(response: &Response) -> Vec<(&str, &str)> {
    match &response.header {
        ResponseHeader::Fields(fields) => fields.iter().map(|(n, v)| (*n, v.as_str())).collect(),
        _ => Vec::new(),
    }
}

/// Code and remark.
fn status(response: &Response) -> (i32, &str) {
    (response.code.0, response.remark.as_deref().unwrap_or(""))
}

fn table(counter: i64, topics: &[(&str, u32)]) -> TopicTable {
    let mut table = TopicTable::default();
    table.data_version.counter = counter;
    for (name, perm) in topics {
        let topic = TopicConfig::new(name, 4, *perm);
        table.topic_config_table.insert((*name).to_owned(), topic);
    }
    table
}

/// A broker with what a test wants to vary.
fn broker<'a>(name: &'a str, id: i64, address: &'a str) -> Broker<'a> {
    Broker {
        cluster: "DefaultCluster",
        name,
        id,
        address,
        ha_address: "10.0.0.1:10912",
        timeout_ms: None,
        acting_master: None,
    }
}

fn register(server: &mut NameServer, broker: &Broker<'_>, table: &TopicTable) {
    server
        .register(broker, table, CONNECTION, at(0))
        .expect("registered");
    server.routes.check();
}

/// One broker with two topics.
fn server_with_broker() -> NameServer {
    let mut server = server();
    let topics = table(1, &[("T", 6), ("TBW102", 7)]);
    register(
        &mut server,
        &broker("broker-a", 0, "10.0.0.1:10911"),
        &topics,
    );
    server
}

fn perms(server: &NameServer, topic: &str) -> Vec<(String, u32)> {
    let route = server.routes.route(topic, None).unwrap_or_default();
    let queues = route.queues.into_iter();
    queues.map(|q| (q.broker_name, q.perm)).collect()
}

const REGISTER: [(&str, &str); 5] = [
    ("brokerName", "broker-a"),
    ("brokerAddr", "10.0.0.1:10911"),
    ("clusterName", "DefaultCluster"),
    ("haServerAddr", "10.0.0.1:10912"),
    ("brokerId", "0"),
];

fn register_fields<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    REGISTER.iter().chain(more).copied().collect()
}

const STRICT_ROUTE: &str = r#"{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;

/// Trap 3 of `conventions.md`: ids of brokers are quoted for askers from V4_9_4 on, or where they ask for it.
#[test]
fn route_has_the_dialect_of_the_asker() {
    let mut server = server_with_broker();
    let bare = STRICT_ROUTE.replace("\"0\":", "0:");
    for (version, standard_only, expected) in [
        (479, None, STRICT_ROUTE),
        (401, None, STRICT_ROUTE),
        (400, None, &bare),
        (317, None, &bare),
        (0, None, &bare),
        (317, Some("true"), STRICT_ROUTE),
        (317, Some("false"), &bare),
    ] {
        let mut fields = vec![("topic", "T")];
        fields.extend(standard_only.map(|v| ("acceptStandardJsonOnly", v)));
        let answer = ask_as(&mut server, version, 105, &fields, b"", at(0));
        assert_eq!(status(&answer), (0, ""));
        assert_eq!(body_text(&answer), expected, "{version} {standard_only:?}");
    }
}

/// Trap 12 of `semantics.md`: anything but 17 keeps producers from falling back to the default topic.
#[test]
fn unknown_topic_is_answered_17() {
    let answer = ask(&mut server(), 105, &[("topic", "nope")], b"");
    let (code, remark) = status(&answer);
    assert_eq!(code, 17);
    assert!(
        remark.starts_with("No topic route info in name server for the topic: nope"),
        "{remark}"
    );
    let answer = ask(&mut server(), 105, &[], b"");
    assert_eq!(status(&answer), (1, "the custom field <topic> is null"));
}

#[test]
fn registration_is_read_in_all_forms() {
    let topics = Registration {
        topic_config_serialize_wrapper: table(3, &[("T", 6), ("TBW102", 7)]),
        ..Registration::default()
    };
    let json = topics.encode(RegistrationForm::Json);
    let compressed = topics.encode(RegistrationForm::Compressed);
    let old = crate::protocol::bodies::encode(&topics.topic_config_serialize_wrapper);
    let check = |version: i32, fields: &[(&str, &str)], body: &[u8]| {
        let mut server = server();
        let fields = register_fields(fields);
        let answer = ask_as(&mut server, version, 103, &fields, body, at(0));
        assert_eq!((status(&answer), header(&answer)), ((0, ""), vec![]));
        assert!(matches!(answer.body, Body::None));
        let route = ask(&mut server, 105, &[("topic", "T")], b"");
        assert_eq!(body_text(&route), STRICT_ROUTE);
    };
    let crc = crate::protocol::hash::body_crc(&json).to_string();
    check(479, &[("compressed", "false"), ("bodyCrc32", &crc)], &json);
    check(479, &[], &json);
    check(
        479,
        &[("bodyCrc32", "0"), ("enableActingMaster", "false")],
        &json,
    );
    check(479, &[("compressed", "true")], &compressed);
    // As 5.3.3 sends it with compressedRegister=true; and the other way round.
    check(479, &[("compressed", "false")], &compressed);
    check(479, &[("compressed", "true")], &json);
    check(36, &[], &old);
    check(0, &[], &json);
}

#[test]
fn registration_without_a_body_takes_the_broker_in() {
    let mut server = server();
    let answer = ask(&mut server, 103, &REGISTER, b"");
    assert_eq!(status(&answer).0, 0);
    let info = ask(&mut server, 106, &[], b"");
    assert_eq!(
        body_text(&info),
        r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#
    );
}

#[test]
fn bad_registrations_are_refused_and_change_nothing() {
    let table = table(1, &[("T", 6), ("U", 6)]);
    let body = table.encode_registration();
    let long = "x".repeat(256);
    let check = |fields: &[(&str, &str)], body: &[u8], expected: &str| {
        let mut server = server();
        let answer = ask(&mut server, 103, fields, body);
        let (code, remark) = status(&answer);
        assert_eq!(code, 1, "{remark}");
        assert!(remark.starts_with(expected), "{remark}");
        assert!(server.routes.groups.is_empty());
        let effects = server.take_effects();
        let refused = effects.refused.expect("worth a line");
        assert!(refused.ends_with(remark), "{refused}");
        assert_eq!(effects.changes, []);
    };
    let with = |name: &'static str, value: &'static str| {
        let mut fields = REGISTER.to_vec();
        fields.retain(|(n, _)| *n != name);
        fields.push((name, value));
        fields
    };
    check(
        &REGISTER[1..],
        &body,
        "the custom field <brokerName> is null",
    );
    check(
        &with("brokerId", "x"),
        &body,
        "the custom field <brokerId> is not",
    );
    check(&with("brokerId", "-1"), &body, "broker id -1 is negative");
    check(
        &with("brokerName", ""),
        &body,
        "the broker name of a registration is empty",
    );
    check(
        &with("brokerAddr", ""),
        &body,
        "the address of a registration is empty",
    );
    check(&with("bodyCrc32", "5"), &body, "the CRC of the body is");
    check(
        &with("compressed", "true"),
        b"no zlib",
        "the compressed body is broken",
    );
    check(&REGISTER, b"\x78\x9C", "the compressed body");
    check(&REGISTER, b"{", "the body is not what it must be");
    let mut fields = REGISTER.to_vec();
    fields[2].1 = &long;
    check(
        &fields,
        &body,
        "a cluster name of 256 bytes, the limit is 255",
    );
    let endless = super::tests::table(1, &[(&long, 6), ("U", 6)]).encode_registration();
    check(
        &REGISTER,
        &endless,
        "a topic name of 256 bytes, the limit is 255",
    );
}

#[test]
fn single_topic_is_taken_from_a_registered_broker_only() {
    let mut server = server();
    let single = table(1, &[("T", 6)]);
    let body = single.encode_registration();
    let answer = ask(&mut server, 103, &REGISTER, &body);
    assert_eq!(
        status(&answer),
        (
            1,
            "a single topic of broker broker-a id 0, which has not registered"
        )
    );
    let whole = table(1, &[("TBW102", 7), ("X", 6)]).encode_registration();
    assert_eq!(status(&ask(&mut server, 103, &REGISTER, &whole)).0, 0);
    assert_eq!(status(&ask(&mut server, 103, &REGISTER, &body)).0, 0);
    let all = ask(&mut server, 206, &[], b"");
    assert_eq!(body_text(&all), r#"{"topicList":["T","TBW102","X"]}"#);
    // A shard of this process always names all its topics, be it one.
    let mut server = self::server();
    let shard = server.register(&broker("b", 0, "a:1"), &single, Source::Shard(0), at(0));
    assert_eq!(shard, Ok(Master::default()));
}

/// 205 holds until the broker registers with a new data version; 327 gives back what it took.
#[test]
fn write_permission_is_wiped_until_the_data_version_changes() {
    let mut server = server_with_broker();
    let topics = [("T", 6), ("TBW102", 7)];
    let name = [("brokerName", "broker-a")];
    let wiped = ask(&mut server, 205, &name, b"");
    assert_eq!(header(&wiped), [("wipeTopicCount", "2")]);
    let a = broker("broker-a", 0, "10.0.0.1:10911");
    register(&mut server, &a, &table(1, &topics));
    assert_eq!(perms(&server, "T"), [("broker-a".to_owned(), 4)]);
    assert_eq!(perms(&server, "TBW102"), [("broker-a".to_owned(), 5)]);
    register(&mut server, &a, &table(2, &topics));
    assert_eq!(perms(&server, "T"), [("broker-a".to_owned(), 6)]);
    ask(&mut server, 205, &name, b"");
    let added = ask(&mut server, 327, &name, b"");
    assert_eq!(header(&added), [("addTopicCount", "2")]);
    assert_eq!(perms(&server, "TBW102"), [("broker-a".to_owned(), 7)]);
    let unknown = ask(&mut server, 205, &[("brokerName", "x")], b"");
    assert_eq!(header(&unknown), [("wipeTopicCount", "0")]);
}

#[test]
fn deleted_topic_is_away_until_it_is_registered_again() {
    let mut server = server_with_broker();
    register(
        &mut server,
        &broker("b", 0, "b:1"),
        &table(1, &[("T", 6), ("U", 6)]),
    );
    let mut other = broker("c", 0, "c:1");
    other.cluster = "Other";
    register(&mut server, &other, &table(1, &[("T", 6), ("V", 6)]));
    let in_cluster = [("topic", "T"), ("clusterName", "Other")];
    assert_eq!(status(&ask(&mut server, 216, &in_cluster, b"")).0, 0);
    assert_eq!(perms(&server, "T").len(), 2);
    let unknown = [("topic", "T"), ("clusterName", "nope")];
    assert_eq!(status(&ask(&mut server, 216, &unknown, b"")).0, 0);
    assert_eq!(perms(&server, "T").len(), 2);
    for _ in 0..2 {
        assert_eq!(status(&ask(&mut server, 216, &[("topic", "T")], b"")).0, 0);
        assert_eq!(status(&ask(&mut server, 105, &[("topic", "T")], b"")).0, 17);
    }
    // Even without a new data version: the broker still has it.
    register(
        &mut server,
        &broker("b", 0, "b:1"),
        &table(1, &[("T", 6), ("U", 6)]),
    );
    assert_eq!(perms(&server, "T"), [("b".to_owned(), 6)]);
}

#[test]
fn topics_that_a_shard_no_longer_has_are_gone() {
    let mut server = server();
    let shard = Source::Shard(3);
    let b = broker("b", 0, "b:1");
    let mut put = |table: &TopicTable| server.register(&b, table, shard, at(0)).map(|_| ());
    put(&table(1, &[("T", 6), ("U", 6)])).expect("room");
    put(&table(2, &[("U", 6)])).expect("room");
    assert_eq!(perms(&server, "T"), []);
    assert_eq!(perms(&server, "U"), [("b".to_owned(), 6)]);
    // Brokers elsewhere may register single topics, so theirs stay.
    let mut server = server_with_broker();
    let a = broker("broker-a", 0, "10.0.0.1:10911");
    register(&mut server, &a, &table(2, &[("U", 6)]));
    assert_eq!(perms(&server, "T").len() + perms(&server, "U").len(), 2);
}

#[test]
fn slaves_are_listed_and_learn_their_master() {
    let mut server = server_with_broker();
    let slave = broker("broker-a", 1, "10.0.0.2:10911");
    let master = server.register(
        &slave,
        &table(1, &[("S", 6), ("R", 6)]),
        Source::Connection(2),
        at(0),
    );
    let expected = Master {
        address: "10.0.0.1:10911".to_owned(),
        ha_address: "10.0.0.1:10912".to_owned(),
    };
    assert_eq!(master, Ok(expected));
    assert_eq!(perms(&server, "S"), [], "slaves register no topics");
    let group = [
        ("clusterName", "DefaultCluster"),
        ("brokerName", "broker-a"),
    ];
    let answer = ask(&mut server, 901, &group, b"");
    assert!(
        body_text(&answer).starts_with(r#"{"brokerMemberGroup":{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"DefaultCluster""#),
        "{}",
        body_text(&answer)
    );
    let unknown = [("clusterName", "c"), ("brokerName", "x")];
    let answer = ask(&mut server, 901, &unknown, b"");
    assert_eq!(answer.code, ResponseCode::SUCCESS);
    assert!(body_text(&answer).contains(r#""brokerAddrs":{}"#));
    // Without the master the topics stay, for consumers.
    server.on_closed(CONNECTION);
    server.routes.check();
    let route = server.routes.route("T", None).expect("a route");
    assert_eq!(route.brokers[0].addresses.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(perms(&server, "T"), [("broker-a".to_owned(), 6)]);
    server.on_closed(Source::Connection(2));
    server.routes.check();
    assert!(server.routes.groups.is_empty() && server.routes.pairs == 0);
}

#[test]
fn acting_master_takes_no_messages() {
    let mut server = server();
    let (mut master, mut slave) = (broker("b", 0, "b:1"), broker("b", 1, "b:2"));
    (master.acting_master, slave.acting_master) = (Some(true), Some(true));
    let topics = table(1, &[("T", 6), ("U", 6)]);
    register(&mut server, &master, &topics);
    server
        .register(&slave, &topics, Source::Connection(2), at(0))
        .expect("room");
    assert_eq!(perms(&server, "T"), [("b".to_owned(), 6)]);
    server.on_closed(CONNECTION);
    assert_eq!(perms(&server, "T"), [("b".to_owned(), 4)]);
    server
        .register(
            &slave,
            &table(2, &[("T", 6), ("U", 6)]),
            Source::Connection(2),
            at(0),
        )
        .expect("room");
    assert_eq!(perms(&server, "T"), [("b".to_owned(), 4)]);
    register(&mut server, &master, &topics);
    assert_eq!(perms(&server, "T"), [("b".to_owned(), 6)]);
}

#[test]
fn role_switch_leaves_the_address_once() {
    let mut server = server();
    let topics = table(1, &[("T", 6), ("U", 6)]);
    register(&mut server, &broker("b", 1, "b:1"), &topics);
    register(&mut server, &broker("b", 0, "b:1"), &topics);
    assert_eq!(server.routes.members, 1);
    let route = server.routes.route("T", None).expect("a route");
    assert_eq!(
        route.brokers[0].addresses,
        BTreeMap::from([(0, "b:1".to_owned())])
    );
}

/// The older state version loses (controller mode); with equal ones the newcomer wins, as a restart on another host.
#[test]
fn address_of_a_broker_is_replaced_unless_its_state_is_newer() {
    let mut server = server();
    let mut topics = table(1, &[("T", 6), ("U", 6)]);
    topics.data_version.state_version = 5;
    register(&mut server, &broker("b", 0, "b:1"), &topics);
    server.take_effects();
    topics.data_version.state_version = 4;
    let refused = server.register(
        &broker("b", 0, "b:2"),
        &topics,
        Source::Connection(2),
        at(0),
    );
    assert_eq!(
        refused,
        Err("broker b id 0 is at b:1 with state version 5, b:2 has 4".to_owned())
    );
    topics.data_version.state_version = 5;
    server
        .register(
            &broker("b", 0, "b:2"),
            &topics,
            Source::Connection(2),
            at(0),
        )
        .expect("newer");
    let kinds = server
        .take_effects()
        .changes
        .into_iter()
        .map(|c| (c.kind, c.address));
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [
            (ChangeKind::Replaced, "b:1".to_owned()),
            (ChangeKind::Registered, "b:2".to_owned())
        ]
    );
    // What the old one still says or does is about nobody.
    server.on_closed(CONNECTION);
    ask(
        &mut server,
        104,
        &[
            ("brokerName", "b"),
            ("brokerAddr", "b:1"),
            ("clusterName", "DefaultCluster"),
            ("brokerId", "0"),
        ],
        b"",
    );
    assert_eq!(server.routes.members, 1);
    ask(
        &mut server,
        104,
        &[
            ("brokerName", "b"),
            ("brokerAddr", "b:2"),
            ("clusterName", "DefaultCluster"),
            ("brokerId", "0"),
        ],
        b"",
    );
    assert_eq!((server.routes.members, server.routes.pairs), (0, 0));
}

#[test]
fn broker_name_belongs_to_one_cluster() {
    let mut server = server_with_broker();
    let topics = table(1, &[("T", 6), ("U", 6)]);
    let mut other = broker("broker-a", 0, "10.0.0.9:10911");
    other.cluster = "Other";
    let refused = server.register(&other, &topics, Source::Connection(2), at(0));
    assert_eq!(
        refused,
        Err(
            "broker name broker-a is taken in cluster DefaultCluster: id 0 at 10.0.0.1:10911"
                .to_owned()
        )
    );
    other.address = "10.0.0.1:10911";
    register(&mut server, &other, &topics);
    let info = ask(&mut server, 106, &[], b"");
    assert!(body_text(&info).ends_with(r#""clusterAddrTable":{"Other":["broker-a"]}}"#));
    assert_eq!(
        perms(&server, "TBW102"),
        [],
        "what it had in the old cluster is gone"
    );
}

#[test]
fn silent_brokers_expire_and_signs_of_life_help() {
    let mut server = server();
    assert_eq!(server.next_expiry(), None);
    let topics = table(1, &[("T", 6), ("U", 6)]);
    register(&mut server, &broker("a", 0, "a:1"), &topics);
    let mut fast = broker("b", 0, "b:1");
    fast.timeout_ms = Some(10_000);
    register(&mut server, &fast, &topics);
    fast.timeout_ms = Some(1);
    fast.name = "c";
    fast.address = "c:1";
    register(&mut server, &fast, &topics);
    assert_eq!(
        server.next_expiry(),
        Some(1_000_000),
        "no less than a second"
    );
    server.take_effects();
    server.expire(at(999));
    assert_eq!(server.take_effects(), Effects::default());
    server.expire(at(1000));
    let dropped = server.take_effects().changes;
    assert_eq!(dropped.len(), 1);
    assert_eq!(
        (dropped[0].broker.as_str(), dropped[0].kind),
        ("c", ChangeKind::Expired)
    );
    let beat = [
        ("clusterName", "DefaultCluster"),
        ("brokerName", "b"),
        ("brokerAddr", "b:1"),
    ];
    assert_eq!(
        status(&ask_as(&mut server, 479, 904, &beat, b"", at(9_000))).0,
        0
    );
    server.expire(at(18_999));
    assert_eq!(server.routes.members, 2);
    let version = br#"{"counter":1,"stateVersion":0,"timestamp":0}"#;
    let ask_version = ask_as(&mut server, 479, 322, &beat, version, at(18_999));
    assert_eq!(header(&ask_version), [("changed", "false")]);
    server.expire(at(28_998));
    assert_eq!(server.routes.members, 2);
    server.expire(at(120_000));
    assert_eq!((server.routes.members, server.next_expiry()), (0, None));
    assert_eq!(
        status(&ask_as(&mut server, 479, 904, &beat, b"", at(120_000))).0,
        0
    );
}

#[test]
fn data_version_tells_who_has_to_register() {
    let mut server = server_with_broker();
    let fields = |address: &'static str| {
        [
            ("clusterName", "DefaultCluster"),
            ("brokerName", "broker-a"),
            ("brokerAddr", address),
            ("brokerId", "0"),
        ]
    };
    let known = fields("10.0.0.1:10911");
    for (body, changed) in [
        (&br#"{"counter":1,"timestamp":0}"#[..], "false"),
        (br#"{"counter":2,"timestamp":0}"#, "true"),
        (br#"{"counter":1,"timestamp":5}"#, "true"),
    ] {
        let answer = ask(&mut server, 322, &known, body);
        assert_eq!(header(&answer), [("changed", changed)]);
        assert_eq!(
            body_text(&answer),
            r#"{"counter":1,"stateVersion":0,"timestamp":0}"#
        );
    }
    let answer = ask(&mut server, 322, &fields("10.0.0.7:1"), br#"{"counter":1}"#);
    assert_eq!(
        (header(&answer), body_text(&answer)),
        (vec![("changed", "true")], "")
    );
    assert_eq!(status(&ask(&mut server, 322, &known, b"{")).0, 1);
}

#[test]
fn key_value_configuration_is_put_read_listed_deleted() {
    let mut server = server_with_broker();
    let item = [("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T")];
    let missing = ask(&mut server, 101, &item, b"");
    assert_eq!(
        status(&missing),
        (22, "No config item, Namespace: ORDER_TOPIC_CONFIG Key: T")
    );
    let list = ask(&mut server, 219, &item[..1], b"");
    assert_eq!(
        status(&list),
        (22, "No config item, Namespace: ORDER_TOPIC_CONFIG")
    );
    server.take_effects();
    let value = [item[0], item[1], ("value", "broker-a:4")];
    assert_eq!(status(&ask(&mut server, 100, &value, b"")).0, 0);
    let file = server.take_effects().kv_file.expect("to be written");
    let mut restarted = NameServer::new(Settings::default(), Some(&file)).expect("its own file");
    assert_eq!(
        header(&ask(&mut restarted, 101, &item, b"")),
        [("value", "broker-a:4")]
    );
    let list = ask(&mut server, 219, &item[..1], b"");
    assert_eq!(body_text(&list), r#"{"table":{"T":"broker-a:4"}}"#);
    // In the route, and told to brokers.
    let route = ask(&mut server, 105, &[("topic", "T")], b"");
    assert!(body_text(&route).contains(r#""orderTopicConf":"broker-a:4","#));
    let body = table(1, &[("T", 6), ("TBW102", 7)]).encode_registration();
    let registered = ask(&mut server, 103, &REGISTER, &body);
    assert_eq!(body_text(&registered), r#"{"table":{"T":"broker-a:4"}}"#);
    for _ in 0..2 {
        assert_eq!(status(&ask(&mut server, 102, &item, b"")).0, 0);
        assert_eq!(status(&ask(&mut server, 101, &item, b"")).0, 22);
    }
    let route = ask(&mut server, 105, &[("topic", "T")], b"");
    assert_eq!(body_text(&route), STRICT_ROUTE);
    let incomplete = ask(&mut server, 100, &item, b"");
    assert_eq!(status(&incomplete), (1, "the custom field <value> is null"));
}

#[test]
fn lists_are_sorted_and_by_cluster() {
    let mut server = server_with_broker();
    let mut other = broker("c", 0, "c:1");
    other.cluster = "Other";
    let mut topics = table(1, &[("T", 6), ("Unit", 6), ("Sub", 6), ("Both", 6)]);
    for (topic, flag) in [("Unit", 1), ("Sub", 2), ("Both", 3)] {
        if let Some(topic) = topics.topic_config_table.get_mut(topic) {
            topic.topic_sys_flag = flag;
        }
    }
    register(&mut server, &other, &topics);
    for (code, fields, expected) in [
        (
            206,
            &[][..],
            r#"{"topicList":["Both","Sub","T","TBW102","Unit"]}"#,
        ),
        (
            224,
            &[("cluster", "DefaultCluster")],
            r#"{"topicList":["T","TBW102"]}"#,
        ),
        (224, &[("cluster", "nope")], r#"{"topicList":[]}"#),
        (
            304,
            &[],
            r#"{"brokerAddr":"10.0.0.1:10911","topicList":["DefaultCluster","Other","broker-a","c"]}"#,
        ),
        (311, &[], r#"{"topicList":["Both","Unit"]}"#),
        (312, &[], r#"{"topicList":["Both","Sub"]}"#),
        (313, &[], r#"{"topicList":["Sub"]}"#),
    ] {
        let answer = ask(&mut server, code, fields, b"");
        assert_eq!(
            (status(&answer), body_text(&answer)),
            ((0, ""), expected),
            "{code}"
        );
    }
    let empty = ask(&mut self::server(), 304, &[], b"");
    assert_eq!(body_text(&empty), r#"{"topicList":[]}"#);
}

#[test]
fn topic_is_registered_at_known_brokers() {
    let mut server = server_with_broker();
    let body = |name: &str| {
        format!(
            r#"{{"brokerDatas":[],"queueDatas":[{{"brokerName":"{name}","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":3}}]}}"#
        )
    };
    let topic = [("topic", "N")];
    assert_eq!(
        status(&ask(&mut server, 217, &topic, body("broker-a").as_bytes())).0,
        0
    );
    let route = server.routes.route("N", None).expect("a route");
    assert_eq!(
        (
            route.queues[0].read_queue_nums,
            route.queues[0].write_queue_nums
        ),
        (2, 3)
    );
    let refused = ask(&mut server, 217, &topic, body("x").as_bytes());
    assert_eq!(status(&refused), (1, "broker x is not registered"));
    assert_eq!(status(&ask(&mut server, 217, &topic, b"")).0, 1);
}

#[test]
fn configuration_is_shown_and_not_changed() {
    let shown = ask(&mut server(), 319, &[], b"");
    let text = body_text(&shown);
    assert!(text.contains("listenPort=9876\n"), "{text}");
    assert!(text.lines().all(|line| line.contains('=')), "{text}");
    let refused = ask(&mut server(), 318, &[], b"orderMessageEnable=false");
    assert_eq!(status(&refused).0, 16);
}

#[test]
fn unknown_codes_name_themselves() {
    for code in [0, 10, 34, 999, 200_050, -1] {
        let answer = ask(&mut server(), code, &[], b"");
        let remark = format!(" request type {code} not supported");
        assert_eq!(status(&answer), (3, remark.as_str()));
    }
}

#[test]
fn one_way_requests_and_answers_are_not_answered() {
    let mut server = server();
    let body = table(1, &[("T", 6), ("U", 6)]).encode_registration();
    for (code, one_way) in [(103, true), (999, true)] {
        let mut out = BytesMut::new();
        Request {
            code,
            opaque: 1,
            one_way,
            encoding: Encoding::Binary,
            fields: &REGISTER,
            body: &body,
        }
        .encode(&mut out);
        let Ok(Split::Frame(frame)) = split(&out) else {
            panic!("not a frame")
        };
        let mut scratch = Scratch::default();
        let mut command = Command::decode(&frame, &mut scratch).expect("a command");
        assert!(server.handle(&command, CONNECTION, at(0)).is_none());
        command.flag = 1;
        assert!(server.handle(&command, CONNECTION, at(0)).is_none());
    }
    assert_eq!(server.routes.members, 1, "4.9 registers one-way");
}

#[test]
fn brokers_and_topics_are_bounded() {
    use crate::limits::{NAMESRV_BROKERS_MAX, TOPICS_MAX};
    let mut server = server();
    let topics = table(1, &[]);
    for index in 0..NAMESRV_BROKERS_MAX {
        let name = format!("b-{index}");
        server
            .register(&broker(&name, 0, &name), &topics, CONNECTION, at(0))
            .expect("room");
    }
    assert_eq!(
        server.register(&broker("more", 0, "m:1"), &topics, CONNECTION, at(0)),
        Err("4096 brokers are registered, the limit is 4096".to_owned())
    );
    server
        .register(&broker("b-7", 0, "b-7"), &topics, CONNECTION, at(0))
        .expect("known");
    server
        .register(&broker("b-7", 0, "elsewhere"), &topics, CONNECTION, at(0))
        .expect("known");
    let names: Vec<String> = (0..=TOPICS_MAX).map(|i| format!("t{i}")).collect();
    let names: Vec<(&str, u32)> = names.iter().map(|n| (n.as_str(), 6)).collect();
    let mut many = table(2, &names);
    let b = broker("b-1", 0, "b-1");
    assert_eq!(
        server.register(&b, &many, CONNECTION, at(0)),
        Err("broker b-1 has 50001 topics, the limit is 50000".to_owned())
    );
    many.topic_config_table.pop_last();
    let mut result = Ok(Master::default());
    let mut registered = 0;
    for index in 0..30 {
        let name = format!("b-{index}");
        result = server.register(&broker(&name, 0, &name), &many, CONNECTION, at(0));
        registered += usize::from(result.is_ok());
    }
    assert_eq!(registered, 20);
    assert_eq!(
        result,
        Err("all brokers together have 1000000 topics and b-29 has 50000 more, the limit is 1000000".to_owned())
    );
    server
        .register(&broker("b-3", 0, "b-3"), &many, CONNECTION, at(0))
        .expect("nothing new");
    server.routes.check();
}

/// An answer that no frame can carry is an error, not a closed connection.
#[test]
fn answers_fit_a_frame() {
    let mut server = server();
    let long = "\u{1}".repeat(200);
    let names: Vec<String> = (0..20_000).map(|i| format!("{long}{i}")).collect();
    let names: Vec<(&str, u32)> = names.iter().map(|n| (n.as_str(), 6)).collect();
    register(&mut server, &broker("b", 0, "b:1"), &table(1, &names));
    let answer = ask(&mut server, 206, &[], b"");
    let (code, remark) = status(&answer);
    assert_eq!(code, 1);
    assert!(remark.contains("the limit is 16711680"), "{remark}");
}

/// Recorded from a broker of Apache 5.3.3 with `compressedRegister=true`: header and body. The header says false.
#[test]
fn recorded_registration_of_5_3_3_is_taken() {
    const RECORDED: &str = "\
        78da8551dd4bc330100fbefb2efa122a2842c565d3aedbdbda651fd82f9b581d22471905c76cab6d87c8f07ff7321136823377b9c0ddef\
        ee7eb92384d86b635eae8a26ab8c3e338dba499b2cc9aa7a511646bf651acd22cfd099bf61b8dbb318ebf53aed1b9b7d11420ef19ed44d\
        395f5ea694a174a99806638f831c8ce95a41ccd8bf03311320e341206032f04620c368ea6ef096863f77b262fe92a7d552625bca5aedeb\
        1fa3434da13abbafab1ac943cc236fb6b7f4b1741eb014b55174a2a7822b6a5cc8bd452e843be1c37be5522878c44399ad540777aafc1d\
        eacf1ac925d38483178e619bf4868a9e76b53bb330fa7f6c67e16824b8043f4cf81078c203f907f228c83e246da3e831eb97af98052e38\
        7178cb63f0b9efe0b3bd66a6651a3bdf6296527dc6074fcf68c937d533aa6e";
    let digits = RECORDED.as_bytes().chunks_exact(2);
    let body: Vec<u8> = digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("digits");
            u8::from_str_radix(pair, 16).expect("digits")
        })
        .collect();
    let fields = [
        ("brokerId", "0"),
        ("bodyCrc32", "962443061"),
        ("clusterName", "StockCluster"),
        ("brokerAddr", "127.0.0.1:27911"),
        ("enableActingMaster", "false"),
        ("haServerAddr", "127.0.0.1:27912"),
        ("compressed", "false"),
        ("brokerName", "stock-a"),
    ];
    let mut server = server();
    assert_eq!(status(&ask(&mut server, 103, &fields, &body)), (0, ""));
    let list = ask(&mut server, 206, &[], b"");
    assert_eq!(
        body_text(&list),
        r#"{"topicList":["BenchmarkTest","NewT","OFFSET_MOVED_EVENT","RMQ_SYS_TRANS_HALF_TOPIC","RMQ_SYS_TRANS_OP_HALF_TOPIC","SCHEDULE_TOPIC_XXXX","SELF_TEST_TOPIC","StockCluster","StockCluster_REPLY_TOPIC","TBW102","rmq_sys_REVIVE_LOG_StockCluster","rmq_sys_SYNC_BROKER_MEMBER_stock-a","stock-a"]}"#
    );
    assert_eq!(perms(&server, "TBW102"), [("stock-a".to_owned(), 7)]);
}

/// Recorded from a name server of Apache 4.9.8 (233 bytes, asker of version 333): the same but for a field of 5.x,
/// which clients of 4.9 ignore.
#[test]
fn route_is_the_recorded_one_of_4_9_8() {
    let recorded = r#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
    assert_eq!(recorded.len(), 233);
    let mut server = server();
    let topics = table(1, &[("SmokeT", 6), ("TBW102", 7)]);
    register(
        &mut server,
        &broker("broker-a", 0, "127.0.0.1:30911"),
        &topics,
    );
    let route = ask_as(&mut server, 333, 105, &[("topic", "SmokeT")], b"", at(0));
    assert_eq!(
        body_text(&route).replace(r#","enableActingMaster":false"#, ""),
        recorded
    );
}

/// What may happen to the table, over few names so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Register {
        broker: u8,
        id: u8,
        address: u8,
        source: u8,
        topics: u8,
        version: u8,
        is_shard: bool,
    },
    Unregister {
        broker: u8,
        address: u8,
    },
    Close {
        source: u8,
    },
    Wait {
        seconds: u8,
    },
    Delete {
        topic: u8,
    },
    Wipe {
        broker: u8,
        is_given: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_u8, 0..3_u8, 0..5_u8, 0..4_u8, 0..16_u8, 0..3_u8, any::<bool>()).prop_map(
            |(broker, id, address, source, topics, version, is_shard)| Step::Register {
                broker, id, address, source, topics, version, is_shard
            }
        ),
        1 => (0..3_u8, 0..5_u8).prop_map(|(broker, address)| Step::Unregister { broker, address }),
        1 => (0..4_u8).prop_map(|source| Step::Close { source }),
        1 => (1..100_u8).prop_map(|seconds| Step::Wait { seconds }),
        1 => (0..4_u8).prop_map(|topic| Step::Delete { topic }),
        1 => (0..3_u8, any::<bool>()).prop_map(|(broker, is_given)| Step::Wipe { broker, is_given }),
    ]
}

/// A broker of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Modelled {
    address: String,
    source: Source,
    until_seconds: u64,
    version: DataVersion,
}

/// The model: who is there by name and id, and which topic is at which broker.
#[derive(Default)]
struct Model {
    members: BTreeMap<(String, i64), Modelled>,
    pairs: BTreeSet<(String, String)>,
}

impl Model {
    fn keep(&mut self, is_kept: impl Fn(&(String, i64), &Modelled) -> bool) {
        self.members.retain(|key, member| is_kept(key, member));
        let members = &self.members;
        self.pairs
            .retain(|(_, broker)| members.keys().any(|(name, _)| name == broker));
    }

    /// False where it is refused.
    fn register(
        &mut self,
        broker: &Broker<'_>,
        table: &TopicTable,
        source: Source,
        seconds: u64,
    ) -> bool {
        let key = (broker.name.to_owned(), broker.id);
        let is_shard = matches!(source, Source::Shard(_));
        let known = self.members.get(&key).cloned();
        if table.topic_config_table.len() == 1 && !is_shard && known.is_none() {
            return false;
        }
        self.members.retain(|(name, id), member| {
            name != broker.name || *id == broker.id || member.address != broker.address
        });
        let member = Modelled {
            address: broker.address.to_owned(),
            source,
            until_seconds: seconds + 120,
            version: table.data_version,
        };
        self.members.insert(key, member);
        if broker.id != 0 {
            return true;
        }
        let is_same =
            known.is_some_and(|k| k.address == broker.address && k.version == table.data_version);
        if is_shard && !is_same {
            self.pairs.retain(|(_, name)| name != broker.name);
        }
        for topic in table.topic_config_table.keys() {
            self.pairs.insert((topic.clone(), broker.name.to_owned()));
        }
        true
    }
}

proptest! {
    /// After every step the indices agree, and brokers, deadlines and topics are those of the model.
    #[test]
    fn table_follows_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let (mut server, mut model, mut seconds) = (server(), Model::default(), 0_u64);
        for step in steps {
            match step {
                Step::Register { broker: name, id, address, source, topics, version, is_shard } => {
                    let (name, address) = (format!("b{name}"), format!("10.0.0.{address}:1"));
                    let picked = (0..4).filter(|bit| topics >> bit & 1 == 1).map(|bit| format!("t{bit}"));
                    let picked: Vec<String> = picked.collect();
                    let picked: Vec<(&str, u32)> = picked.iter().map(|t| (t.as_str(), 6)).collect();
                    let table = table(i64::from(version), &picked);
                    let source = if is_shard { Source::Shard(u16::from(source)) } else { Source::Connection(u64::from(source)) };
                    let broker = broker(&name, i64::from(id), &address);
                    let result = server.register(&broker, &table, source, at(seconds * 1000));
                    prop_assert_eq!(result.is_ok(), model.register(&broker, &table, source, seconds));
                }
                Step::Unregister { broker, address } => {
                    let (name, address) = (format!("b{broker}"), format!("10.0.0.{address}:1"));
                    ask(&mut server, 104, &[("brokerName", &name), ("brokerAddr", &address)], b"");
                    model.keep(|(n, _), m| *n != name || m.address != address);
                }
                Step::Close { source } => {
                    let source = Source::Connection(u64::from(source));
                    server.on_closed(source);
                    model.keep(|_, m| m.source != source);
                }
                Step::Wait { seconds: more } => {
                    seconds += u64::from(more);
                    server.expire(at(seconds * 1000));
                    model.keep(|_, m| m.until_seconds > seconds);
                }
                Step::Delete { topic } => {
                    let topic = format!("t{topic}");
                    ask(&mut server, 216, &[("topic", &topic)], b"");
                    model.pairs.retain(|(t, _)| *t != topic);
                }
                Step::Wipe { broker, is_given } => {
                    let name = format!("b{broker}");
                    let code = if is_given { 327 } else { 205 };
                    ask(&mut server, code, &[("brokerName", &name)], b"");
                }
            }
            server.routes.check();
            let mut there = BTreeMap::new();
            for (name, group) in &server.routes.groups {
                for (id, member) in &group.members {
                    there.insert((name.to_string(), *id), member.address.clone());
                }
            }
            let expected = model.members.iter().map(|(key, m)| (key.clone(), m.address.clone()));
            prop_assert_eq!(there, expected.collect::<BTreeMap<_, _>>());
            let next = model.members.values().map(|m| m.until_seconds * 1_000_000).min();
            prop_assert_eq!(server.next_expiry(), next);
            let mut pairs = BTreeSet::new();
            for topic in server.routes.topics_with_flag(|_| true) {
                pairs.extend(perms(&server, &topic).into_iter().map(|(b, _)| (topic.clone(), b)));
            }
            prop_assert_eq!(&pairs, &model.pairs);
        }
    }
}

/// Fields that some request needs, with values that mean something and others.
fn any_fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    const NAMES: [&str; 12] = [
        "topic",
        "brokerName",
        "brokerAddr",
        "clusterName",
        "cluster",
        "brokerId",
        "namespace",
        "key",
        "value",
        "compressed",
        "bodyCrc32",
        "heartbeatTimeoutMillis",
    ];
    const VALUES: [&str; 10] = [
        "",
        "0",
        "1",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "true",
        "b",
        "T",
        "\u{1F600}",
    ];
    let field = (0..NAMES.len(), 0..VALUES.len()).prop_map(|(n, v)| (NAMES[n], VALUES[v]));
    prop::collection::vec(field, 0..16)
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let registration = table(1, &[("T", 6), ("U", u32::MAX)]).encode_registration();
    prop_oneof![
        Just(Vec::new()),
        Just(registration),
        prop::collection::vec(any::<u8>(), 0..64),
        "[{}\\[\\]\":,a-z0-9-]{0,40}".prop_map(String::into_bytes),
    ]
}

proptest! {
    /// Whatever is asked is answered, and the indices agree afterwards.
    #[test]
    fn any_request_is_answered(
        requests in prop::collection::vec(
            (prop_oneof![Just(103), 100..107, 200..225, 300..328, 900..905, any::<i32>()], any_fields(), any_body(), any::<u32>()),
            1..20,
        ),
    ) {
        let mut server = server_with_broker();
        for (code, fields, body, milliseconds) in requests {
            let now = at(u64::from(milliseconds));
            ask_as(&mut server, 479, code, &fields, &body, now);
            server.expire(now);
            server.take_effects();
            server.routes.check();
        }
    }
}
