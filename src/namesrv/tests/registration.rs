//! Brokers that register, change, fall silent and come back.

use super::*;

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
