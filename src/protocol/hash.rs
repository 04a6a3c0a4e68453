//! Hashes that RocketMQ stores or sends.

/// `String.hashCode` of Java: `h = 31 * h + unit` over the UTF-16 units, wrapping at 32 bits.
///
/// Example: `TagA` gives 2598919.
pub fn java_string_hash(text: &str) -> i32 {
    java_string_hash_of([text])
}

/// The same of texts put together.
pub fn java_string_hash_of<const N: usize>(texts: [&str; N]) -> i32 {
    let step = |hash: i32, unit: i32| hash.wrapping_mul(31).wrapping_add(unit);
    texts.into_iter().fold(0, |hash, text| {
        if text.is_ascii() {
            text.bytes().map(i32::from).fold(hash, step)
        } else {
            text.encode_utf16().map(i32::from).fold(hash, step)
        }
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

/// CRC-32 as in `java.util.zip`, masked to 31 bits; 0 for an empty body. This is not CRC-32C.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_hash_equals_java() {
        let cases = [
            ("", 0),
            ("a", 97),
            ("TagA", 2_598_919),
            ("TagB", 2_598_920),
            ("TopicTest#KEY1", -1_656_969_516),
            // Outside the basic plane: two UTF-16 units, D83D and DE00.
            ("\u{1F600}", 0xD83D * 31 + 0xDE00),
            ("é", 233),
        ];
        for (text, expected) in cases {
            assert_eq!(java_string_hash(text), expected, "{text}");
        }
    }

    #[test]
    fn tags_code_is_sign_extended() {
        assert_eq!(tags_code("TopicTest#KEY1"), -1_656_969_516);
        assert_eq!(tags_code("TagA"), 0x27_A807);
        assert_eq!(tags_code(""), 0);
    }

    #[test]
    fn body_crc_is_masked_to_31_bits() {
        assert_eq!(body_crc(b"hello"), 0x3610_A686);
        assert_eq!(body_crc(b""), 0);
        // The plain CRC-32 of "a" is 0xE8B7BE43.
        assert_eq!(body_crc(b"a"), 0x68B7_BE43);
    }
}
