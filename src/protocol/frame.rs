//! Frames: a 4-byte length, a word of serialize type and header length, the header, the body.
//!
//! ```text
//! offset  width  field
//!      0      4  L: bytes after this field = 4 + H + B
//!      4      1  T: serialize type, 0 = JSON, 1 = ROCKETMQ binary
//!      5      3  H: header bytes
//!      8      H  header
//!    8+H      B  body, B = L - 4 - H, may be 0
//! ```
//!
//! All integers are big-endian. There is no handshake: the first bytes of a connection are a frame.
//! Source: apache/rocketmq 4.9.8 `remoting/.../netty/NettyDecoder.java`, `RemotingCommand#decode`.

use super::command::Encoding;
use crate::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};

/// Bytes of the length prefix, which the announced length doesn't count.
pub const LENGTH_PREFIX_BYTES: usize = 4;
/// Bytes of the word of serialize type and header length.
pub const HEADER_WORD_BYTES: usize = 4;

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

/// Splits the first frame off `stream`. Limits are checked as soon as the 8 bytes that tell them are there,
/// so that nobody is made to buffer a frame that is refused in the end.
///
/// **Errors**: all are final for the connection, since the start of the next frame is unknown.
pub fn split(stream: &[u8]) -> Result<Split<'_>, FrameError> {
    let Some((prefix, rest)) = stream.split_first_chunk::<LENGTH_PREFIX_BYTES>() else {
        return Ok(Split::Incomplete { total: None });
    };
    let frame = u32::from_be_bytes(*prefix);
    check_frame_bytes(frame)?;
    let total = LENGTH_PREFIX_BYTES + frame as usize;
    let Some((word, content)) = rest.split_first_chunk::<HEADER_WORD_BYTES>() else {
        return Ok(Split::Incomplete { total: Some(total) });
    };
    let (encoding, header) = decode_word(*word, frame)?;
    let content_bytes = frame as usize - HEADER_WORD_BYTES;
    let Some(content) = content.get(..content_bytes) else {
        return Ok(Split::Incomplete { total: Some(total) });
    };
    let (header, body) = content.split_at(header as usize);
    Ok(Split::Frame(Frame {
        encoding,
        header,
        body,
        bytes: total,
    }))
}

fn check_frame_bytes(bytes: u32) -> Result<(), FrameError> {
    if bytes > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong {
            bytes,
            max: FRAME_BYTES_MAX,
        });
    }
    if (bytes as usize) < HEADER_WORD_BYTES {
        return Err(FrameError::TooShort { bytes });
    }
    Ok(())
}

/// Takes the header word apart: its top byte is the serialize type, the other three are the header length.
fn decode_word(word: [u8; HEADER_WORD_BYTES], frame: u32) -> Result<(Encoding, u32), FrameError> {
    let [kind, high, middle, low] = word;
    let encoding = match kind {
        0 => Encoding::Json,
        1 => Encoding::Binary,
        unknown => return Err(FrameError::UnknownEncoding(unknown)),
    };
    let header = u32::from_be_bytes([0, high, middle, low]);
    if header > frame - HEADER_WORD_BYTES as u32 {
        return Err(FrameError::HeaderBeyondFrame { header, frame });
    }
    if header > HEADER_BYTES_MAX {
        return Err(FrameError::HeaderTooLong {
            bytes: header,
            max: HEADER_BYTES_MAX,
        });
    }
    Ok((encoding, header))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stream: &[u8], expected: Result<Split<'_>, FrameError>) {
        assert_eq!(split(stream), expected, "{stream:02x?}");
    }

    fn incomplete(total: Option<usize>) -> Result<Split<'static>, FrameError> {
        Ok(Split::Incomplete { total })
    }

    #[test]
    fn every_prefix_of_a_frame_is_incomplete() {
        let stream = [0, 0, 0, 7, 0, 0, 0, 2, b'{', b'}', b'x'];
        for length in 0..4 {
            check(&stream[..length], incomplete(None));
        }
        for length in 4..stream.len() {
            check(&stream[..length], incomplete(Some(stream.len())));
        }
    }

    #[test]
    fn frame_is_split_from_what_follows() {
        let stream = [0, 0, 0, 7, 0, 0, 0, 2, b'{', b'}', b'x', 0xFF, 0xFF];
        let frame = Frame {
            encoding: Encoding::Json,
            header: b"{}",
            body: b"x",
            bytes: 11,
        };
        check(&stream, Ok(Split::Frame(frame)));
    }

    #[test]
    fn top_byte_of_the_word_is_the_serialize_type() {
        let stream = [0, 0, 0, 4, 1, 0, 0, 0];
        let frame = Frame {
            encoding: Encoding::Binary,
            header: b"",
            body: b"",
            bytes: 8,
        };
        check(&stream, Ok(Split::Frame(frame)));
        check(
            &[0, 0, 0, 4, 2, 0, 0, 0],
            Err(FrameError::UnknownEncoding(2)),
        );
        // A TLS client hello is no frame: its first byte makes a length beyond the limit.
        let bytes = 0x1603_0100;
        let max = FRAME_BYTES_MAX;
        check(&[0x16, 3, 1, 0], Err(FrameError::TooLong { bytes, max }));
    }

    #[test]
    fn limits_are_checked_before_the_frame_is_complete() {
        let max = FRAME_BYTES_MAX;
        for bytes in [max + 1, u32::MAX] {
            check(
                &bytes.to_be_bytes(),
                Err(FrameError::TooLong { bytes, max }),
            );
        }
        check(&max.to_be_bytes(), incomplete(Some(max as usize + 4)));
        for bytes in 0..4_u32 {
            check(&bytes.to_be_bytes(), Err(FrameError::TooShort { bytes }));
        }
        let beyond = FrameError::HeaderBeyondFrame {
            header: 5,
            frame: 8,
        };
        check(&[0, 0, 0, 8, 0, 0, 0, 5], Err(beyond));
        let too_long = FrameError::HeaderTooLong {
            bytes: HEADER_BYTES_MAX + 1,
            max: HEADER_BYTES_MAX,
        };
        check(&[0, 0x20, 0, 0, 0, 8, 0, 1], Err(too_long));
    }
}
