//! Hashes that RocketMQ stores or sends.

/// `String.hashCode` of Java over UTF-16 units.
pub fn java_string_hash(text: &str) -> i32 {
    todo!("{text}")
}

/// Tags code of a consume queue entry: the hash sign-extended; 0 without a tag.
pub fn tags_code(tag: &str) -> i64 {
    if tag.is_empty() {
        0
    } else {
        i64::from(java_string_hash(tag))
    }
}

/// CRC-32 as in `java.util.zip`, masked to 31 bits; 0 for an empty body.
pub fn body_crc(body: &[u8]) -> u32 {
    todo!("{}", body.len())
}
