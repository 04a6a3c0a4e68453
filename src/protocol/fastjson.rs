//! The JSON dialect of Java's fastjson: maps with bare integer keys and with objects as keys.

use std::borrow::Cow;

/// Puts quotes around bare keys (`{0:5}` becomes `{"0":5}`), so that a strict parser reads what Java wrote. Strict
/// input comes back unchanged; what is not JSON at all is left to the parser to refuse.
pub fn to_strict(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    let bytes = text.as_bytes();
    let mut at = 0;
    // True where a key may start: after `{`, or after `,` inside an object.
    let mut key_next = false;
    let mut objects: Vec<bool> = Vec::new();
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at = string_end(bytes, at);
                key_next = false;
                continue;
            }
            b'{' => {
                objects.push(true);
                key_next = true;
            }
            b'[' => {
                objects.push(false);
                key_next = false;
            }
            b'}' | b']' => {
                objects.pop();
                key_next = false;
            }
            b',' => key_next = objects.last().copied().unwrap_or(false),
            b'-' | b'0'..=b'9' if key_next => {
                let end = at
                    + bytes[at..]
                        .iter()
                        .take_while(|b| **b == b'-' || b.is_ascii_digit())
                        .count();
                out.push_str(&text[copied..at]);
                out.push('"');
                out.push_str(&text[at..end]);
                out.push('"');
                copied = end;
                at = end;
                key_next = false;
                continue;
            }
            byte if !byte.is_ascii_whitespace() => key_next = false,
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// Position behind the string that starts at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::to_strict;

    #[test]
    fn bare_keys_get_quotes_and_nothing_else_changes() {
        let check = |input: &str, expected: &str| assert_eq!(to_strict(input), expected);
        check("{0:5,1:3}", r#"{"0":5,"1":3}"#);
        check("{ 0 : {1:[2,3],-4:5}}", r#"{ "0" : {"1":[2,3],"-4":5}}"#);
        check(r#"{"a{0:1":{0:"x,1:2"}}"#, r#"{"a{0:1":{"0":"x,1:2"}}"#);
        check(r#"{"a":1,"b\"":[1,2]}"#, r#"{"a":1,"b\"":[1,2]}"#);
        check(
            "{\"offsetTable\":{\"t@g\":{0:4,1:4\n\t\t},\n}}",
            "{\"offsetTable\":{\"t@g\":{\"0\":4,\"1\":4\n\t\t},\n}}",
        );
    }
}
