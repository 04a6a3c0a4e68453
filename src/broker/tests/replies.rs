//! Replies to requests of clients: pushed to the requester here or at another shard, each replier answered once.

use super::*;
use crate::broker::relay::Letter;
use crate::limits::CLIENT_CALLS_MAX;
use crate::protocol::calls::{CallError, ClientAnswer};
use crate::protocol::properties;
use serde_json::json;

const REQUESTER: ConnectionId = connection(7);
const REPLIER: ConnectionId = connection(8);

fn hear_producer(desk: &mut Desk, from: ConnectionId, client_id: &str) {
    let body = json!({"clientID": client_id, "consumerDataSet": [],
        "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}, {"groupName": "PG"}]});
    desk.start(from, 34, &[], body.to_string().as_bytes());
    desk.turn();
    desk.answers.clear();
}

fn start_reply(desk: &mut Desk, to: &str) -> i32 {
    let properties = format!(
        "CORRELATION_ID\u{1}c1\u{2}REPLY_TO_CLIENT\u{1}{to}\u{2}MSG_TYPE\u{1}reply\u{2}TTL\u{1}3000"
    );
    let fields = [
        ("a", "PG"),
        ("b", "C_REPLY_TOPIC"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "2"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", &*properties),
    ];
    let opaque = desk.start(REPLIER, 325, &fields, b"pong");
    desk.turn();
    opaque
}

/// A client answers a request of the broker.
fn client_answers(desk: &mut Desk, from: ConnectionId, opaque: i32, code: i32) {
    let mut frame = BytesMut::new();
    let response = Response {
        code: ResponseCode(code),
        remark: Some("as asked".into()),
        ..Response::success()
    };
    response.encode_head(opaque, Encoding::Json, &mut frame);
    desk.run_frame(peer(from), frame.to_vec(), Fetched::default(), 0);
    desk.turn();
}

fn code_and_remark(desk: &mut Desk, opaque: i32) -> (i32, String) {
    let response = desk.take(opaque).expect("an answer");
    (
        response.code.0,
        response.remark.unwrap_or_default().into_owned(),
    )
}

#[test]
fn a_reply_is_pushed_and_answered_when_the_requester_has_it() {
    let mut desk = Desk::new();
    hear_producer(&mut desk, REQUESTER, "10.0.0.7@1");
    let opaque = start_reply(&mut desk, "10.0.0.7@1");
    assert!(
        desk.take(opaque).is_none(),
        "the requester has not answered"
    );
    let pushed = desk.calls.pop().expect("a push");
    assert_eq!((pushed.connection, pushed.call.code.0), (REQUESTER, 326));
    assert_eq!(&pushed.call.body[..], b"pong");
    let field = |name: &str| {
        let found = pushed.call.fields.iter().find(|(field, _)| *field == name);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(field("bornHost"), Some("10.0.0.9:40000"));
    assert_eq!(field("storeHost"), Some("10.0.0.1:10911"));
    assert_eq!(field("queueId"), Some("2"));
    let properties = field("properties").expect("properties");
    assert_eq!(properties::get(properties, "CORRELATION_ID"), Some("c1"));
    assert!(properties::get(properties, "PUSH_REPLY_TIME").is_some());
    assert_eq!(
        properties::get(properties, "TTL"),
        Some("3000"),
        "as it was"
    );

    client_answers(&mut desk, connection(1), pushed.opaque, 0);
    assert!(desk.take(opaque).is_none(), "another client's answer");
    client_answers(&mut desk, REQUESTER, pushed.opaque, 0);
    let response = desk.take(opaque).expect("an answer");
    assert_eq!(response.code.0, 0);
    let ResponseHeader::Fields(fields) = response.header else {
        panic!("{:?}", response.header);
    };
    let expected = [("msgId", "0"), ("queueId", "2"), ("queueOffset", "0")];
    assert_eq!(
        fields,
        expected.map(|(name, value)| (name, value.to_owned()))
    );
    client_answers(&mut desk, REQUESTER, pushed.opaque, 0);
    assert!(desk.answers.is_empty(), "once");
    assert!(desk.broker.relays.is_empty());
}

#[test]
fn a_requester_that_refuses_leaves_or_is_silent_is_reported() {
    let mut desk = Desk::new();
    hear_producer(&mut desk, REQUESTER, "R");
    let opaque = start_reply(&mut desk, "R");
    let pushed = desk.calls.pop().expect("a push");
    client_answers(&mut desk, REQUESTER, pushed.opaque, 1);
    let (code, remark) = code_and_remark(&mut desk, opaque);
    assert!(code == 1 && remark.contains("as asked"), "{code} {remark}");

    let opaque = start_reply(&mut desk, "R");
    desk.pass_ms(9_999);
    assert!(desk.take(opaque).is_none());
    desk.pass_ms(1);
    let (code, remark) = code_and_remark(&mut desk, opaque);
    assert!(code == 1 && remark.contains("in time"), "{code} {remark}");

    let opaque = start_reply(&mut desk, "R");
    desk.close(REQUESTER);
    desk.turn();
    let (code, remark) = code_and_remark(&mut desk, opaque);
    assert!(code == 1 && remark.contains("closed"), "{code} {remark}");
    assert!(desk.broker.clients.producer("R").is_none());
}

#[test]
fn a_requester_of_another_shard_is_looked_for_there() {
    let (mut here, mut there) = (Desk::new(), Desk::new());
    there.broker.config.shard = ShardId(1);
    hear_producer(&mut there, REQUESTER, "R");
    let opaque = start_reply(&mut here, "R");
    assert!(here.calls.is_empty());
    let Some(Letter::Call(call)) = here.letters.pop() else {
        panic!("no letter");
    };
    assert_eq!((call.origin, &*call.client_id), (ShardId(0), "R"));
    there.with(|broker, cx| relay::on_forwarded(broker, (*call).clone(), cx));
    let pushed = there.calls.pop().expect("a push");
    client_answers(&mut there, REQUESTER, pushed.opaque, 0);
    let Some(Letter::Answer { origin, id, result }) = there.letters.pop() else {
        panic!("no letter");
    };
    assert_eq!((origin, id), (ShardId(0), call.id));
    here.with(|broker, cx| relay::on_forwarded_answer(broker, id, result, cx));
    assert_eq!(here.take(opaque).map(|response| response.code.0), Some(0));

    // Nobody has it: it comes back.
    let opaque = start_reply(&mut here, "S");
    let Some(Letter::Call(call)) = here.letters.pop() else {
        panic!("no letter");
    };
    there.with(|broker, cx| relay::on_forwarded(broker, (*call).clone(), cx));
    assert!(
        matches!(there.letters.pop(), Some(Letter::Call(_))),
        "passed on"
    );
    let nobody = Err(CallError::NotConnected);
    here.with(|broker, cx| relay::on_forwarded_answer(broker, call.id, nobody, cx));
    let (code, remark) = code_and_remark(&mut here, opaque);
    assert!(code == 1 && remark.contains("not connected"), "{remark}");
    let late = Ok(ClientAnswer {
        code: 0,
        remark: None,
        body: bytes::Bytes::new(),
    });
    here.with(|broker, cx| relay::on_forwarded_answer(broker, call.id, late, cx));
    assert!(here.answers.is_empty());
}

#[test]
fn replies_without_a_client_and_beyond_the_limit_are_refused() {
    let mut desk = Desk::new();
    let fields = [
        ("producerGroup", "PG"),
        ("topic", "C_REPLY_TOPIC"),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "0"),
        ("sysFlag", "0"),
        ("bornTimestamp", "0"),
        ("flag", "0"),
    ];
    let response = desk.call(324, &fields, b"x");
    let remark = response.remark.unwrap_or_default();
    assert!(
        response.code.0 == 1 && remark.contains("REPLY_TO_CLIENT"),
        "{remark}"
    );

    hear_producer(&mut desk, REQUESTER, "R");
    for _ in 0..CLIENT_CALLS_MAX {
        start_reply(&mut desk, "R");
    }
    let opaque = start_reply(&mut desk, "R");
    let (code, remark) = code_and_remark(&mut desk, opaque);
    assert!(code == 2 && remark.contains("1024"), "{remark}");
    desk.pass_ms(10_000);
    assert_eq!(desk.answers.len(), CLIENT_CALLS_MAX);
    assert!(desk.broker.relays.is_empty());
}
