//! Encoded properties: `key 0x01 value 0x02 …`; the last 0x02 may be missing.

/// Pairs in order. Pieces without 0x01 or with an empty key are skipped; last wins for [`get`].
pub fn iter(encoded: &str) -> impl Iterator<Item = (&str, &str)> {
    encoded
        .split('\u{2}')
        .filter_map(|piece| piece.split_once('\u{1}'))
        .filter(|(key, _)| !key.is_empty())
}
pub fn get<'a>(encoded: &'a str, key: &str) -> Option<&'a str> {
    todo!("{encoded} {key}")
}
/// Appends a pair, inserting the separator that a 4.9 client leaves out.
pub fn append(encoded: &mut String, key: &str, value: &str) {
    todo!("{encoded} {key} {value}")
}
/// Removes every pair of that key; all other bytes stay as they are.
pub fn remove(encoded: &mut String, key: &str) {
    todo!("{encoded} {key}")
}
