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

mod model;
mod registration;
mod requests;

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
