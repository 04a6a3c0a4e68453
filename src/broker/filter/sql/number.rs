//! Numbers, of expressions and of property texts.

use std::cmp::Ordering;

/// Whole numbers stay exact.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    Whole(i64),
    Real(f64),
}

impl Number {
    /// Reads `[+-] digits [. digits] [E [+-] digits]`, blanks around it allowed, as Java's `Double.valueOf` does; but
    /// no "NaN", no "Infinity", no suffix. `None` if it is anything else, or not finite.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        if !is_number(text) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        if let Ok(whole) = text.parse() {
            return Some(Number::Whole(whole));
        }
        let real: f64 = text.parse().ok()?;
        real.is_finite().then_some(Number::Real(real))
    }

    fn as_real(self) -> f64 {
        match self {
            Number::Whole(whole) => whole as f64,
            Number::Real(real) => real,
        }
    }

    /// The sign changed; the smallest whole number, which has no counterpart, becomes a real one.
    pub fn negated(self) -> Self {
        match self {
            Number::Whole(whole) => match whole.checked_neg() {
                Some(negated) => Number::Whole(negated),
                None => Number::Real(-(whole as f64)),
            },
            Number::Real(real) => Number::Real(-real),
        }
    }

    pub fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Number::Whole(left), Number::Whole(right)) => left.cmp(&right),
            // Neither is NaN: texts are finite, and so are their negations.
            _ => self
                .as_real()
                .partial_cmp(&other.as_real())
                .unwrap_or(Ordering::Equal),
        }
    }
}

fn is_number(text: &[u8]) -> bool {
    let text = text
        .strip_prefix(b"+")
        .or(text.strip_prefix(b"-"))
        .unwrap_or(text);
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix(b".") {
        Some(rest) => digits(rest),
        None => (0, rest),
    };
    if whole + fraction == 0 {
        return false;
    }
    match rest {
        [] => true,
        [b'e' | b'E', exponent @ ..] => {
            let exponent = match exponent {
                [b'+' | b'-', digits @ ..] => digits,
                digits => digits,
            };
            let (count, rest) = digits(exponent);
            count > 0 && rest.is_empty()
        }
        _ => false,
    }
}

/// How many digits the text starts with, and what follows them.
fn digits(text: &[u8]) -> (usize, &[u8]) {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (count, &text[count..])
}
