//! Encoded properties: `key 0x01 value 0x02 …`; the last 0x02 may be missing.
//!
//! Java 5.x and Go end the text with 0x02, Java 4.9 leaves it out (`messages.md` section 1.3), so that whoever
//! appends has to insert it, or two properties merge. Look-ups are over bytes: a record that Apache wrote may
//! hold text that is not UTF-8.

const PAIR_END: u8 = 2;
const NAME_END: u8 = 1;

/// Names of the properties that a broker reads or writes (`messages.md` section 6).
pub mod name {
    pub const KEYS: &str = "KEYS";
    pub const TAGS: &str = "TAGS";
    pub const WAIT: &str = "WAIT";
    pub const DELAY: &str = "DELAY";
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    pub const REAL_QUEUE_ID: &str = "REAL_QID";
    pub const TRANSACTION_PREPARED: &str = "TRAN_MSG";
    pub const PRODUCER_GROUP: &str = "PGROUP";
    pub const UNIQUE_KEY: &str = "UNIQ_KEY";
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    pub const MSG_REGION: &str = "MSG_REGION";
    pub const TRACE_ON: &str = "TRACE_ON";
    pub const CHECK_IMMUNITY_SECONDS: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    pub const TRANSACTION_PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
    pub const CORRELATION_ID: &str = "CORRELATION_ID";
    pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
    pub const SHARDING_KEY: &str = "__SHARDINGKEY";
    pub const CLUSTER: &str = "CLUSTER";
    pub const POP_CHECK_POINT: &str = "POP_CK";
    pub const FIRST_POP_TIME: &str = "1ST_POP_TIME";
    pub const TIMER_DELAY_SECONDS: &str = "TIMER_DELAY_SEC";
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    pub const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
    pub const DLQ_ORIGIN_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
}

/// Pairs in order. Pieces without 0x01 or with an empty key are skipped; last wins for [`get`].
pub fn iter(encoded: &str) -> impl Iterator<Item = (&str, &str)> {
    encoded
        .split('\u{2}')
        .filter_map(|piece| piece.split_once('\u{1}'))
        .filter(|(key, _)| !key.is_empty())
}

/// Value of the last pair of that key.
pub fn get<'a>(encoded: &'a str, key: &str) -> Option<&'a str> {
    if key.is_empty() {
        return None;
    }
    encoded
        .rsplit('\u{2}')
        .find_map(|piece| piece.strip_prefix(key)?.strip_prefix('\u{1}'))
}

/// [`get`] over bytes that need not be UTF-8.
pub fn get_bytes<'a>(encoded: &'a [u8], key: &str) -> Option<&'a [u8]> {
    if key.is_empty() {
        return None;
    }
    encoded
        .rsplit(|&byte| byte == PAIR_END)
        .find_map(|piece| value_of(piece, key))
}

/// The value in a piece `key 0x01 value` if its key is `key`.
fn value_of<'a>(piece: &'a [u8], key: &str) -> Option<&'a [u8]> {
    piece
        .strip_prefix(key.as_bytes())?
        .strip_prefix(&[NAME_END])
}

/// Appends a pair, inserting the separator that a 4.9 client leaves out.
pub fn append(encoded: &mut String, key: &str, value: &str) {
    if !encoded.is_empty() && !encoded.ends_with('\u{2}') {
        encoded.push('\u{2}');
    }
    encoded.reserve(key.len() + value.len() + 2);
    encoded.push_str(key);
    encoded.push('\u{1}');
    encoded.push_str(value);
    encoded.push('\u{2}');
}

/// Removes every pair of that key; all other bytes stay as they are.
pub fn remove(encoded: &mut String, key: &str) {
    let mut at = 0;
    while at < encoded.len() {
        let rest = &encoded.as_bytes()[at..];
        let piece_end = rest.iter().position(|&byte| byte == PAIR_END);
        let piece = &rest[..piece_end.unwrap_or(rest.len())];
        let next = at + piece_end.map_or(rest.len(), |end| end + 1);
        if value_of(piece, key).is_some() {
            encoded.replace_range(at..next, "");
        } else {
            at = next;
        }
    }
}

/// Appends to `out` all pairs but those of `keys`; all other bytes stay as they are.
pub fn copy_without(encoded: &str, keys: &[&str], out: &mut String) {
    for piece in encoded.split_inclusive('\u{2}') {
        let key = piece.split_once('\u{1}').map(|(key, _)| key);
        if !key.is_some_and(|key| keys.contains(&key)) {
            out.push_str(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_with_and_without_the_last_separator() {
        for encoded in [
            "TAGS\u{1}TagA\u{2}k\u{1}v",
            "TAGS\u{1}TagA\u{2}k\u{1}v\u{2}",
        ] {
            assert_eq!(
                iter(encoded).collect::<Vec<_>>(),
                [("TAGS", "TagA"), ("k", "v")]
            );
        }
    }

    #[test]
    fn get_finds_the_last_pair_of_a_key() {
        let encoded = "a\u{1}1\u{2}ab\u{1}2\u{2}broken\u{2}\u{1}nameless\u{2}e\u{1}\u{2}a\u{1}x\u{1}y\u{2}é\u{1}ü";
        for (key, expected) in [
            ("a", Some("x\u{1}y")),
            ("ab", Some("2")),
            ("b", None),
            ("broken", None),
            ("", None),
            ("e", Some("")),
            ("é", Some("ü")),
        ] {
            assert_eq!(get(encoded, key), expected, "{key}");
            let bytes = get_bytes(encoded.as_bytes(), key);
            assert_eq!(bytes, expected.map(str::as_bytes), "{key}");
        }
        assert_eq!(get("", "a"), None);
    }

    #[test]
    fn bytes_that_are_not_utf8_do_not_hide_other_pairs() {
        let encoded = b"k\x01\xFF\xFE\x02TAGS\x01TagA";
        assert_eq!(get_bytes(encoded, "TAGS"), Some(&b"TagA"[..]));
        assert_eq!(get_bytes(encoded, "k"), Some(&b"\xFF\xFE"[..]));
    }

    /// Trap 39 of `semantics.md` section 19: a 4.9 producer's text does not end with 0x02.
    #[test]
    fn separator_is_inserted_after_a_text_of_a_4_9_producer() {
        for (before, after) in [
            ("", "k\u{1}v\u{2}"),
            ("TAGS\u{1}a", "TAGS\u{1}a\u{2}k\u{1}v\u{2}"),
            ("TAGS\u{1}a\u{2}", "TAGS\u{1}a\u{2}k\u{1}v\u{2}"),
        ] {
            let mut encoded = before.to_owned();
            append(&mut encoded, "k", "v");
            assert_eq!(encoded, after);
        }
    }

    #[test]
    fn append_writes_the_bytes_of_the_worked_example() {
        let mut encoded = String::new();
        append(&mut encoded, "TAGS", "TagA");
        let expected = [0x54, 0x41, 0x47, 0x53, 1, 0x54, 0x61, 0x67, 0x41, 2];
        assert_eq!(encoded.as_bytes(), expected);
    }

    #[test]
    fn remove_takes_every_pair_of_a_key_and_nothing_else() {
        for (before, key, after) in [
            ("a\u{1}1\u{2}b\u{1}2\u{2}a\u{1}3\u{2}", "a", "b\u{1}2\u{2}"),
            ("a\u{1}1\u{2}b\u{1}2", "b", "a\u{1}1\u{2}"),
            ("ab\u{1}1\u{2}\u{2}broken", "a", "ab\u{1}1\u{2}\u{2}broken"),
            ("a\u{1}", "a", ""),
            ("", "a", ""),
        ] {
            let mut encoded = before.to_owned();
            remove(&mut encoded, key);
            assert_eq!(encoded, after, "{before:?} without {key}");
            let mut copied = String::new();
            copy_without(before, &[key], &mut copied);
            assert_eq!(copied, after, "{before:?} without {key}");
        }
    }

    #[test]
    fn several_keys_are_left_out_at_once() {
        let mut copied = String::from("before");
        copy_without("a\u{1}1\u{2}b\u{1}2\u{2}c\u{1}3", &["c", "a"], &mut copied);
        assert_eq!(copied, "beforeb\u{1}2\u{2}");
    }
}
