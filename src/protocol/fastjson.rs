//! The JSON dialect of Java's fastjson: maps with bare integer keys and with objects as keys.
//!
//! `{0:5}` is a map from an integer, `{{"queueId":0}:5}` one from an object. Neither is JSON. Here such text is
//! made strict for a parser; writing the dialect is up to the bodies that need it.

use std::borrow::Cow;

/// Nesting beyond which a text is left as it is, for the parser to refuse. That of `serde_json` is as deep.
const DEPTH_MAX: usize = 128;

/// Puts quotes around bare keys (`{0:5}` becomes `{"0":5}`) and object keys (`{{"a":1}:2}` becomes
/// `{"{\"a\":1}":2}`), so that a strict parser reads the text. Strict input comes back unchanged.
///
/// **Errors**: none. A text that is neither dialect comes out in some form that no parser takes for JSON.
pub fn to_strict(text: &str) -> Cow<'_, str> {
    let mut rewriter = Rewriter {
        text,
        at: 0,
        copied: 0,
        out: String::new(),
    };
    match rewriter.run() {
        Some(()) if rewriter.copied > 0 => {
            rewriter.out.push_str(&text[rewriter.copied..]);
            Cow::Owned(rewriter.out)
        }
        _ => Cow::Borrowed(text),
    }
}

struct Rewriter<'t> {
    text: &'t str,
    /// Next byte to look at.
    at: usize,
    /// Bytes of `text` that are in `out` already; 0 as long as nothing had to change.
    copied: usize,
    out: String,
}

impl Rewriter<'_> {
    /// Walks through the text; `None` where it can't be made strict.
    fn run(&mut self) -> Option<()> {
        // One entry for each open container: is it an object?
        let mut open = Vec::new();
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    if open.len() == DEPTH_MAX {
                        return None;
                    }
                    open.push(byte == b'{');
                    self.at += 1;
                    if byte == b'{' {
                        self.key()?;
                    }
                }
                b'}' | b']' => {
                    open.pop();
                    self.at += 1;
                }
                b',' => {
                    self.at += 1;
                    if open.last() == Some(&true) {
                        self.key()?;
                    }
                }
                _ => self.at += 1,
            }
        }
        Some(())
    }

    /// Quotes the key at the scanner unless it is a string or missing.
    fn key(&mut self) -> Option<()> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
        let start = self.at;
        match self.peek()? {
            b'"' | b'}' | b',' | b':' => return Some(()),
            b'{' | b'[' => self.skip_container()?,
            _ => self.skip_bare_key(),
        }
        self.out.push_str(&self.text[self.copied..start]);
        self.copied = self.at;
        self.out.push('"');
        for character in self.text[start..self.at].chars() {
            match character {
                '"' | '\\' => self.out.extend(['\\', character]),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                other => self.out.push(other),
            }
        }
        self.out.push('"');
        Some(())
    }

    fn skip_bare_key(&mut self) {
        while let Some(byte) = self.peek() {
            if matches!(byte, b':' | b',' | b'{' | b'}' | b'[' | b']' | b'"')
                || byte.is_ascii_whitespace()
            {
                return;
            }
            self.at += 1;
        }
    }

    /// Skips an object or array that serves as a key.
    fn skip_container(&mut self) -> Option<()> {
        let mut depth = 0;
        loop {
            match self.peek()? {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Skips a string, with the scanner on its opening quote.
    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(to_strict(text), expected);
        assert_eq!(to_strict(expected), expected, "strict text is left alone");
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(expected);
        assert!(parsed.is_ok(), "{expected}");
    }

    #[test]
    fn bare_keys_are_quoted() {
        check("{0:5}", r#"{"0":5}"#);
        check(
            r#"{0:"a:10911",1:"b:10911"}"#,
            r#"{"0":"a:10911","1":"b:10911"}"#,
        );
        check(
            r#"{"offsetTable":{"T@G":{ 0 : 5 , -1:6}}}"#,
            r#"{"offsetTable":{"T@G":{ "0" : 5 , "-1":6}}}"#,
        );
    }

    #[test]
    fn object_keys_become_strings() {
        check(r#"{{"a":1}:2}"#, r#"{"{\"a\":1}":2}"#);
        check(
            r#"{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":6},{"topic":"}\""}:{}}}"#,
            r#"{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":{"maxOffset":6},"{\"topic\":\"}\\\"\"}":{}}}"#,
        );
        check("{{\n\t\"a\":1}:2}", r#"{"{\n\t\"a\":1}":2}"#);
    }

    #[test]
    fn strict_text_is_borrowed() {
        for text in [
            "",
            "{}",
            "[]",
            "5",
            r#"{"a":[1,{"b":"{0:1}"},"x,"],"c\"":{}}"#,
            "[1,2,[3,{}],null]",
        ] {
            assert!(matches!(to_strict(text), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn text_of_no_dialect_is_no_json_afterwards() {
        let deep = "{0:".repeat(DEPTH_MAX + 1);
        for text in [
            "{",
            "{0",
            r#"{""#,
            r#"{{"a":1"#,
            "{0 1:2}",
            "{{",
            "\"\\",
            &deep,
            "{a:1]",
        ] {
            let strict = to_strict(text);
            assert!(
                serde_json::from_str::<serde_json::Value>(&strict).is_err(),
                "{text}"
            );
        }
    }
}
