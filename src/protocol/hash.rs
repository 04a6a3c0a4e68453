//! Hashes that RocketMQ stores or sends.

/// `String.hashCode` of Java over UTF-16 units.
pub fn java_string_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
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
    if body.is_empty() {
        0
    } else {
        crc32fast::hash(body) & 0x7FFF_FFFF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(tags_code("TagA"), 2_598_919);
        assert_eq!(tags_code("TagB"), 2_598_920);
        assert_eq!(tags_code("a"), 97);
        assert_eq!(tags_code(""), 0);
        assert_eq!(tags_code("TopicTest#KEY1"), -1_656_969_516);
        assert_eq!(tags_code("Aa"), tags_code("BB"), "one code, two tags");
        assert_eq!(body_crc(b"hello"), 0x3610_A686);
        assert_eq!(body_crc(b""), 0);
    }
}
