//! Finds the bytes that matter in JSON strings, eight at a time: most of the work of a header is to pass over text.

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGH_BITS: u64 = ONES << 7;

/// Marks the high bit of each byte of `word` that is below `limit`, which is 128 at most. Bytes above the lowest
/// mark may be marked wrongly, since the subtraction borrows from them; the lowest mark is right.
const fn bytes_below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * limit as u64) & !word & HIGH_BITS
}

const fn bytes_equal(word: u64, byte: u8) -> u64 {
    bytes_below(word ^ (ONES * byte as u64), 1)
}

/// Position of the first byte that `mark` marks in a word and `is_stop` accepts alone.
fn find(bytes: &[u8], mark: impl Fn(u64) -> u64, is_stop: impl Fn(u8) -> bool) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marks = mark(u64::from_le_bytes(*word));
        if marks != 0 {
            return Some(index * 8 + marks.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&byte| is_stop(byte))?;
    Some(words.len() * 8 + at)
}

/// Position of the first quote or backslash: where a string ends or goes on differently.
pub(super) fn find_quote_or_escape(bytes: &[u8]) -> Option<usize> {
    find(
        bytes,
        |word| bytes_equal(word, b'"') | bytes_equal(word, b'\\'),
        |byte| matches!(byte, b'"' | b'\\'),
    )
}

/// Position of the first byte that a JSON string can't hold as it is.
pub(super) fn find_unwritable(bytes: &[u8]) -> Option<usize> {
    find(
        bytes,
        |word| bytes_below(word, 0x20) | bytes_equal(word, b'"') | bytes_equal(word, b'\\'),
        |byte| matches!(byte, 0..0x20 | b'"' | b'\\'),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte at every place of two words and a rest, behind and before bytes that differ by one bit or borrow.
    #[test]
    fn finders_agree_with_a_plain_search() {
        for filler in [b'a', 0x80, 0xFF, b'#', b'!', b']', b'[', b' '] {
            for byte in 0..=u8::MAX {
                for at in 0..19 {
                    let mut bytes = [filler; 19];
                    bytes[at] = byte;
                    let stops = |byte: &u8| matches!(byte, b'"' | b'\\');
                    assert_eq!(find_quote_or_escape(&bytes), bytes.iter().position(stops));
                    let stops = |byte: &u8| *byte < 0x20 || stops(byte);
                    assert_eq!(find_unwritable(&bytes), bytes.iter().position(stops));
                }
            }
        }
        assert_eq!(find_quote_or_escape(b""), None);
        assert_eq!(find_quote_or_escape(b"\"\"\"\"\"\"\"\""), Some(0));
    }
}
