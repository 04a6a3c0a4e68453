//! Text to tokens.

use super::SqlError;
use super::number::Number;

#[derive(Clone, PartialEq, Debug)]
pub enum Token<'a> {
    Name(&'a str),
    Number(Number),
    /// Between its quotes, each pair of quotes one.
    Text(String),
    Keyword(Keyword),
    Symbol(Symbol),
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keyword {
    Not,
    And,
    Or,
    Between,
    In,
    True,
    False,
    Null,
    Is,
    Contains,
    StartsWith,
    EndsWith,
}

const KEYWORDS: [(&str, Keyword); 12] = [
    ("NOT", Keyword::Not),
    ("AND", Keyword::And),
    ("OR", Keyword::Or),
    ("BETWEEN", Keyword::Between),
    ("IN", Keyword::In),
    ("TRUE", Keyword::True),
    ("FALSE", Keyword::False),
    ("NULL", Keyword::Null),
    ("IS", Keyword::Is),
    ("CONTAINS", Keyword::Contains),
    ("STARTSWITH", Keyword::StartsWith),
    ("ENDSWITH", Keyword::EndsWith),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Symbol {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Open,
    Close,
    Comma,
    Plus,
    Minus,
}

const SYMBOLS: [(&str, Symbol); 11] = [
    ("<>", Symbol::NotEqual),
    ("<=", Symbol::LessEqual),
    (">=", Symbol::GreaterEqual),
    ("=", Symbol::Equal),
    ("<", Symbol::Less),
    (">", Symbol::Greater),
    ("(", Symbol::Open),
    (")", Symbol::Close),
    (",", Symbol::Comma),
    ("+", Symbol::Plus),
    ("-", Symbol::Minus),
];

/// Reads one token after the other.
pub struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

/// A token and where it stands, in bytes.
pub struct Lexed<'a> {
    pub token: Token<'a>,
    pub start: usize,
    pub end: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(source: &'a str) -> Self {
        Self { source, at: 0 }
    }

    /// **Errors**: a character that starts no token, a text or comment without an end, a number out of range.
    pub fn next(&mut self) -> Result<Lexed<'a>, SqlError> {
        self.skip_blanks()?;
        let start = self.at;
        let rest = &self.source[start..];
        let (token, bytes) = match rest.as_bytes() {
            [] => (Token::End, 0),
            [b'\'', ..] => self.text(rest)?,
            [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => self.number(rest)?,
            [first, ..] if is_name_start(*first) => name(rest),
            _ => self.symbol(rest)?,
        };
        self.at = start + bytes;
        Ok(Lexed {
            token,
            start,
            end: self.at,
        })
    }

    /// Blanks; comments from `--` to the end of the line, from `/*` to `*/`.
    fn skip_blanks(&mut self) -> Result<(), SqlError> {
        loop {
            let rest = &self.source[self.at..];
            let skipped = if rest.starts_with("--") {
                rest.find(['\n', '\r']).unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                match rest.find("*/") {
                    Some(end) if end >= 2 => end + 2,
                    _ => return Err(self.error(rest, "the comment has no end")),
                }
            } else {
                rest.len()
                    - rest
                        .trim_start_matches([' ', '\t', '\n', '\r', '\u{C}'])
                        .len()
            };
            if skipped == 0 {
                return Ok(());
            }
            self.at += skipped;
        }
    }

    fn text(&self, rest: &str) -> Result<(Token<'a>, usize), SqlError> {
        let mut text = String::new();
        let mut at = 1;
        while let Some(quote) = rest[at..].find('\'') {
            text.push_str(&rest[at..at + quote]);
            at += quote + 1;
            if !rest[at..].starts_with('\'') {
                return Ok((Token::Text(text), at));
            }
            text.push('\'');
            at += 1;
        }
        Err(self.error(rest, "the text has no closing quote"))
    }

    /// Digits with a fraction or an exponent, or without; whole ones may end with L. A leading zero is refused: other
    /// languages read such a number in base 8.
    fn number(&self, rest: &str) -> Result<(Token<'a>, usize), SqlError> {
        let bytes = rest.as_bytes();
        let digits_from = |at: usize| {
            at + bytes[at..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count()
        };
        let mut end = digits_from(0);
        let whole_end = end;
        if bytes.get(end) == Some(&b'.') {
            end = digits_from(end + 1);
        }
        if let Some(b'e' | b'E') = bytes.get(end) {
            let signed = matches!(bytes.get(end + 1), Some(b'+' | b'-'));
            let from = end + 1 + usize::from(signed);
            if bytes.get(from).is_some_and(u8::is_ascii_digit) {
                end = digits_from(from);
            }
        }
        let is_whole = end == whole_end;
        let text = &rest[..end];
        let is_long = is_whole && matches!(bytes.get(end), Some(b'l' | b'L'));
        let bytes_taken = end + usize::from(is_long);
        let next = bytes.get(bytes_taken).copied().unwrap_or(b' ');
        if is_name_start(next) || next.is_ascii_digit() || next == b'.' {
            return Err(self.error(rest, "not a number"));
        }
        if is_whole && text.len() > 1 && text.starts_with('0') {
            return Err(self.error(rest, "a whole number starts with 0"));
        }
        match Number::parse(text.as_bytes()) {
            Some(Number::Real(_)) if is_whole => {
                Err(self.error(rest, "the whole number has more than 64 bits"))
            }
            Some(number) => Ok((Token::Number(number), bytes_taken)),
            None => Err(self.error(rest, "the number is out of range")),
        }
    }

    fn symbol(&self, rest: &str) -> Result<(Token<'a>, usize), SqlError> {
        let symbol = SYMBOLS.iter().find(|(text, _)| rest.starts_with(text));
        match symbol {
            Some((text, symbol)) => Ok((Token::Symbol(*symbol), text.len())),
            None => Err(self.error(rest, "unknown character")),
        }
    }

    fn error(&self, rest: &str, reason: &str) -> SqlError {
        let start = self.source.len() - rest.len();
        let end = start + rest.find(' ').unwrap_or(rest.len());
        error_at(self.source, start, end, reason)
    }
}

/// An error at a place in bytes; what stands there is cut to a readable length.
pub fn error_at(source: &str, start: usize, end: usize, reason: impl Into<String>) -> SqlError {
    const TOKEN_CHARACTERS_MAX: usize = 40;
    let token = match &source[start..end] {
        "" => "end of expression".to_owned(),
        token => token.chars().take(TOKEN_CHARACTERS_MAX).collect(),
    };
    SqlError {
        position: source[..start].chars().count() + 1,
        token,
        reason: reason.into(),
    }
}

fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$'
}

fn name(rest: &str) -> (Token<'_>, usize) {
    let is_part = |byte: &u8| is_name_start(*byte) || byte.is_ascii_digit();
    let end = rest.bytes().take_while(|byte| is_part(byte)).count();
    let name = &rest[..end];
    let keyword = KEYWORDS
        .iter()
        .find(|(text, _)| text.eq_ignore_ascii_case(name));
    let token = match keyword {
        Some((_, keyword)) => Token::Keyword(*keyword),
        None => Token::Name(name),
    };
    (token, end)
}
