//! What clients and tools ask, and bounds of the answers.

use super::*;

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
