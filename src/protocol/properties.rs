//! Encoded properties: `key 0x01 value 0x02 …`; the last 0x02 may be missing.

const NAME_END: char = '\u{1}';
const PAIR_END: char = '\u{2}';

/// Pairs in order. Pieces without 0x01 or with an empty key are skipped.
pub fn iter(encoded: &str) -> impl Iterator<Item = (&str, &str)> {
    encoded
        .split(PAIR_END)
        .filter_map(|piece| piece.split_once(NAME_END))
        .filter(|(key, _)| !key.is_empty())
}

/// The value of a key; the last pair wins.
pub fn get<'a>(encoded: &'a str, key: &str) -> Option<&'a str> {
    iter(encoded)
        .filter(|(k, _)| *k == key)
        .last()
        .map(|(_, value)| value)
}

/// Appends a pair, inserting the separator that a 4.9 client leaves out.
pub fn append(encoded: &mut String, key: &str, value: &str) {
    if !encoded.is_empty() && !encoded.ends_with(PAIR_END) {
        encoded.push(PAIR_END);
    }
    encoded.push_str(key);
    encoded.push(NAME_END);
    encoded.push_str(value);
    encoded.push(PAIR_END);
}

/// Copies all pairs but those of the given keys; everything else stays byte-exact.
pub fn copy_without(encoded: &str, keys: &[&str], out: &mut String) {
    for piece in encoded.split_inclusive(PAIR_END) {
        let key = piece.split(NAME_END).next().unwrap_or_default();
        if !keys.contains(&key) {
            out.push_str(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_last_separator_does_not_merge_pairs() {
        let mut encoded = "TAGS\u{1}A".to_owned();
        append(&mut encoded, "K", "v");
        assert_eq!(encoded, "TAGS\u{1}A\u{2}K\u{1}v\u{2}");
        assert_eq!(get(&encoded, "TAGS"), Some("A"));
        assert_eq!(get(&encoded, "K"), Some("v"));
        assert_eq!(get(&encoded, "v"), None);
    }

    #[test]
    fn removal_leaves_the_rest_byte_exact() {
        let mut out = String::new();
        copy_without(
            "a\u{1}1\u{2}POP_CK\u{1}x y\u{2}junk\u{2}b\u{1}",
            &["POP_CK"],
            &mut out,
        );
        assert_eq!(out, "a\u{1}1\u{2}junk\u{2}b\u{1}");
    }
}
