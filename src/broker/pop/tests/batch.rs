//! 200151 and 200055. The bits are what Java's `BitSet#toByteArray` gives, in Base64.

use super::*;

fn batch(topic: &str, kind: &str, start: u64, popped: &str, bits: &str) -> String {
    format!(
        r#"{{"brokerName":"b","acks":[{{"c":"G","t":"{topic}","r":"{kind}","so":{start},"q":0,"rq":0,"pt":{popped},"it":10000,"b":"{bits}"}}]}}"#
    )
}

fn call(desk: &mut Desk, body: &str) -> i32 {
    let code = Code::BATCH_ACK_MESSAGE.0;
    desk.call(code, &[], body.as_bytes()).code.0
}

#[test]
fn a_batch_acknowledges_by_the_bits_of_java() {
    let mut desk = desk_with(12);
    let answer = pop(&mut desk, &POP);
    let popped = field(&answer, "popTime").to_owned();
    // 0x02 0x05: bits 1, 8 and 10.
    for (body, expected) in [
        (batch("none", "0", 0, &popped, "Ag=="), 208),
        (batch("T", "0", 50, &popped, "Ag=="), 208),
        (batch("T", "1", 0, &popped, "Ag=="), 208),
        (batch("T", "2", 0, &popped, "Ag=="), 208),
        (batch("T", "0", 0, &popped, ""), 208),
        (batch("T", "0", 0, &popped, "no base64"), 208),
        (r#"{"acks":[]}"#.to_owned(), 208),
        (r#"{"brokerName":"b"}"#.to_owned(), 208),
        ("[".to_owned(), 1),
        (batch("T", "0", 0, &popped, "AgU="), 0),
        (batch("T", "0", 0, "5", "/w8="), 0),
    ] {
        assert_eq!(call(&mut desk, &body), expected, "{body}");
    }
    assert_eq!(desk.broker.pops.counts().0, 9);
    assert_eq!(desk.counters.pops_acknowledged, 3, "those alone");
    // 0xff 0x0f, from offset 0 on: all twelve, of which three are done with.
    assert_eq!(call(&mut desk, &batch("T", "0", 0, &popped, "/w8=")), 0);
    assert_eq!(committed(&desk, "T"), Some(12));
}

#[test]
fn a_batch_names_copies_by_their_kind() {
    let mut desk = desk_with(1);
    pop(&mut desk, &POP);
    desk.pass_ms(10_000);
    let again = pop(&mut desk, &POP);
    let popped = field(&again, "popTime").to_owned();
    assert_eq!(call(&mut desk, &batch("T", "1", 0, &popped, "AQ==")), 0);
    assert_eq!(committed(&desk, RETRY), Some(1));
    // The names of their fields in full are read too.
    let mut desk = desk_with(2);
    let answer = pop(&mut desk, &POP);
    let popped = field(&answer, "popTime");
    let long = format!(
        r#"{{"acks":[{{"consumerGroup":"G","topic":"T","retry":"0","startOffset":1,"queueId":0,"popTime":{popped},"bitSet":"AQ=="}}]}}"#
    );
    assert_eq!(call(&mut desk, &long), 0);
    assert_eq!(desk.broker.pops.counts().0, 1);
}

#[test]
fn waiting_pops_are_counted_by_queue() {
    let mut desk = desk_with(1);
    pop(&mut desk, &POP);
    for queue_id in [-1, 0, 0] {
        let waiting = Popping {
            queue_id,
            poll_ms: 15_000,
            ..POP
        };
        start(&mut desk, &waiting);
    }
    let count = |desk: &mut Desk, topic: &str, group: &str, queue_id: &str| {
        let fields = [
            ("consumerGroup", group),
            ("topic", topic),
            ("queueId", queue_id),
        ];
        desk.call(Code::POLLING_INFO.0, &fields, &[])
    };
    for (group, queue_id, expected) in [
        ("G", "0", "2"),
        ("G", "-1", "1"),
        ("G", "1", "0"),
        ("H", "0", "0"),
    ] {
        let response = count(&mut desk, "T", group, queue_id);
        assert_eq!(
            field(&response, "pollingNum"),
            expected,
            "{group} {queue_id}"
        );
    }
    assert_eq!(count(&mut desk, "none", "G", "0").code.0, 17);
    assert_eq!(count(&mut desk, "T", "G", "4").code.0, 29);
}
