//! The JSON dialect of Java's fastjson: maps with bare integer keys and with objects as keys.

/// Puts quotes around bare keys (`{0:5}` becomes `{"0":5}`) and object keys (`{{"a":1}:2}` becomes
/// `{"{\"a\":1}":2}`), so that a strict parser reads the text. Strict input comes back unchanged.
pub fn to_strict(text: &str) -> std::borrow::Cow<'_, str> {
    todo!("{text}")
}
