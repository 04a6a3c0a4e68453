//! Frames: a 4-byte length, a word of serialize type and header length, the header, the body.

use super::command::Encoding;

/// Why a byte stream can't go on. The connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {bytes} bytes, the limit is {max}")]
    TooLong { bytes: u32, max: u32 },
    #[error("frame of {bytes} bytes is too short for its header word")]
    TooShort { bytes: u32 },
    #[error("header of {header} bytes in a frame of {frame}")]
    HeaderBeyondFrame { header: u32, frame: u32 },
    #[error("header of {bytes} bytes, the limit is {max}")]
    HeaderTooLong { bytes: u32, max: u32 },
    #[error("unknown serialize type {0}")]
    UnknownEncoding(u8),
}

/// One whole frame, borrowed from the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub encoding: Encoding,
    pub header: &'a [u8],
    pub body: &'a [u8],
    /// Bytes of the stream that the frame takes, its length prefix included.
    pub bytes: usize,
}

/// Result of looking at the start of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split<'a> {
    Frame(Frame<'a>),
    /// More bytes are needed; `total` is the length of the whole frame, known once 4 bytes are there.
    Incomplete {
        total: Option<usize>,
    },
}

/// Splits the first frame off `stream`. Limits are checked as soon as the 8 bytes that tell them are there.
pub fn split(stream: &[u8]) -> Result<Split<'_>, FrameError> {
    todo!("{}", stream.len())
}
