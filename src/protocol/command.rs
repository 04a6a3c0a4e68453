//! RemotingCommand, the envelope of every request and response; JSON and ROCKETMQ binary are its encodings.

use super::frame::Frame;

/// Serialize type of a header; the first byte of the header word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Json = 0,
    Binary = 1,
}

/// Version that ringmq gives in every frame: the ordinal of V5_3_3. Java clients need at least 232 to filter by SQL92.
pub const VERSION: i32 = 479;

pub const FLAG_RESPONSE: i32 = 1;
pub const FLAG_ONE_WAY: i32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("header is not JSON at byte {at}")]
    Json { at: u32 },
    #[error("binary header ends inside a field")]
    Truncated,
    #[error("text is not UTF-8")]
    Utf8,
    #[error("more than {max} fields")]
    TooManyFields { max: usize },
}

/// Memory of a decoder, kept over calls so that decoding a send or a pull allocates nothing in steady state.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Unescaped text of strings that had escapes, and of scalars.
    text: String,
    fields: Vec<()>,
}

/// A decoded header, borrowed from the frame and the scratch.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    pub encoding: Encoding,
    pub code: i32,
    /// Name as sent in JSON ("JAVA"), or the name of the binary code; "OTHER" where missing or unknown.
    pub language: &'a str,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<&'a str>,
    pub fields: Fields<'a>,
    pub body: &'a [u8],
}

/// The extFields: names and texts in the order of the frame. Scalars are coerced to text, nulls are left out.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    scratch: &'a Scratch,
    header: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn get(&self, name: &str) -> Option<&'a str> {
        todo!("{name} {:?} {:?}", self.scratch, self.header)
    }
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        std::iter::empty()
    }
}

/// A field that the handler needs is missing or not what it must be. Answered with code 1 and this text
/// (Java: "the custom field <name> is null").
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FieldError {
    #[error("the custom field <{0}> is null")]
    Missing(&'static str),
    #[error("the custom field <{name}> is not {expected}: {value:.40}")]
    Invalid {
        name: &'static str,
        expected: &'static str,
        value: String,
    },
}

impl<'a> Command<'a> {
    /// Decodes the header of a frame. Tolerates every field order, missing `language`, `version`, `remark`,
    /// `extFields`, `serializeTypeCurrentRPC`, unknown keys, white space, null, numbers and booleans as field values.
    pub fn decode(frame: &Frame<'a>, scratch: &'a mut Scratch) -> Result<Command<'a>, HeaderError> {
        todo!("{frame:?} {scratch:?}")
    }
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }
    pub fn is_one_way(&self) -> bool {
        self.flag & FLAG_ONE_WAY != 0
    }
    pub fn text(&self, name: &'static str) -> Option<&'a str> {
        self.fields.get(name)
    }
    pub fn require_text(&self, name: &'static str) -> Result<&'a str, FieldError> {
        todo!("{name}")
    }
    pub fn i32(&self, name: &'static str) -> Result<Option<i32>, FieldError> {
        todo!("{name}")
    }
    pub fn require_i32(&self, name: &'static str) -> Result<i32, FieldError> {
        todo!("{name}")
    }
    pub fn i64(&self, name: &'static str) -> Result<Option<i64>, FieldError> {
        todo!("{name}")
    }
    pub fn require_i64(&self, name: &'static str) -> Result<i64, FieldError> {
        todo!("{name}")
    }
    /// Case-insensitive "true" is true, anything else false, as Java parses it.
    pub fn bool(&self, name: &'static str) -> Option<bool> {
        todo!("{name}")
    }
}
