//! Frames: a 4-byte length, a word of serialize type and header length, the header, the body.
//!
//! ```text
//! 0       4       5        8          8+H
//! | L i32 | T u8  | H u24  | header H | body L-4-H |
//! ```

use super::command::Encoding;
use crate::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};

/// Bytes in front of the header: length prefix and header word.
pub const PREFIX_BYTES: usize = 8;

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
    /// More bytes are needed; `total` is the length of the whole frame, known once 8 bytes are there.
    Incomplete {
        total: Option<usize>,
    },
}

/// Splits the first frame off `stream`. Limits are checked as soon as the bytes that tell them are there.
///
/// **Errors**: see [`FrameError`]; the stream can't be resynchronised.
pub fn split(stream: &[u8]) -> Result<Split<'_>, FrameError> {
    let Some(length) = word(stream, 0) else {
        return Ok(Split::Incomplete { total: None });
    };
    if length > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong {
            bytes: length,
            max: FRAME_BYTES_MAX,
        });
    }
    if length < 4 {
        return Err(FrameError::TooShort { bytes: length });
    }
    let Some(word) = word(stream, 4) else {
        return Ok(Split::Incomplete { total: None });
    };
    let encoding = match word >> 24 {
        0 => Encoding::Json,
        1 => Encoding::Binary,
        other => return Err(FrameError::UnknownEncoding(other as u8)),
    };
    let header_bytes = word & 0x00FF_FFFF;
    if header_bytes > length - 4 {
        return Err(FrameError::HeaderBeyondFrame {
            header: header_bytes,
            frame: length,
        });
    }
    if header_bytes > HEADER_BYTES_MAX {
        return Err(FrameError::HeaderTooLong {
            bytes: header_bytes,
            max: HEADER_BYTES_MAX,
        });
    }
    let bytes = 4 + length as usize;
    let Some(whole) = stream.get(..bytes) else {
        return Ok(Split::Incomplete { total: Some(bytes) });
    };
    let (header, body) = whole[PREFIX_BYTES..].split_at(header_bytes as usize);
    Ok(Split::Frame(Frame {
        encoding,
        header,
        body,
        bytes,
    }))
}

fn word(stream: &[u8], at: usize) -> Option<u32> {
    let bytes = stream.get(at..at + 4)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_seen_before_the_bytes_arrive() {
        let check = |bytes: &[u8], expected: FrameError| assert_eq!(split(bytes), Err(expected));
        check(
            &[0x01, 0, 0, 1],
            FrameError::TooLong {
                bytes: 0x0100_0001,
                max: FRAME_BYTES_MAX,
            },
        );
        check(&[0, 0, 0, 3], FrameError::TooShort { bytes: 3 });
        check(
            &[0xff, 0xff, 0xff, 0xff],
            FrameError::TooLong {
                bytes: u32::MAX,
                max: FRAME_BYTES_MAX,
            },
        );
        check(
            &[0, 0, 0, 10, 0, 0, 0, 7],
            FrameError::HeaderBeyondFrame {
                header: 7,
                frame: 10,
            },
        );
        check(&[0, 0, 0, 10, 2, 0, 0, 6], FrameError::UnknownEncoding(2));
        check(
            &[0, 0x20, 0, 0, 0, 0x10, 0, 0],
            FrameError::HeaderTooLong {
                bytes: 0x10_0000,
                max: HEADER_BYTES_MAX,
            },
        );
    }

    #[test]
    fn a_frame_is_split_off_at_any_point_of_the_stream() {
        let stream = [0, 0, 0, 8, 0, 0, 0, 2, b'{', b'}', b'x', b'y', 9, 9];
        for end in 0..8 {
            assert_eq!(split(&stream[..end]), Ok(Split::Incomplete { total: None }));
        }
        for end in 8..12 {
            assert_eq!(
                split(&stream[..end]),
                Ok(Split::Incomplete { total: Some(12) })
            );
        }
        let frame = Frame {
            encoding: Encoding::Json,
            header: b"{}",
            body: b"xy",
            bytes: 12,
        };
        assert_eq!(split(&stream), Ok(Split::Frame(frame)));
    }
}
