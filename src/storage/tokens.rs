//! Kinds of tokens that the store gives to its operations.

use super::TOKEN_KINDS;
use crate::io::Token;

const FIRST: u8 = *TOKEN_KINDS.start();

/// A write of the log; index and generation are its number.
pub const LOG_WRITE: u8 = FIRST;
const LOG_FLUSH_KIND: u8 = FIRST + 1;
const LOG_PREPARE_KIND: u8 = FIRST + 2;
/// Operations on a consume queue file; the index is its slot in the table of open files.
pub const QUEUE_OPEN: u8 = FIRST + 3;
pub const QUEUE_WRITE: u8 = FIRST + 4;
pub const QUEUE_FLUSH: u8 = FIRST + 5;
/// A cold read; the index is its slot in the table of reads.
pub const COLD_READ: u8 = FIRST + 6;
const CHECKPOINT_KIND: u8 = FIRST + 7;
const TOMBSTONES_KIND: u8 = FIRST + 8;
const REMOVE_TOPIC_KIND: u8 = FIRST + 9;
const REMOVE_ABORT_KIND: u8 = FIRST + 10;
const RETENTION_SPACE_KIND: u8 = FIRST + 16;
const DATE_READ_KIND: u8 = FIRST + 17;
/// A read of entries for new starts of queues; the index is its slot in the table of open files.
pub const START_READ: u8 = FIRST + 18;
const REMOVE_SEGMENT_KIND: u8 = FIRST + 19;
const REMOVE_QUEUE_FILE_KIND: u8 = FIRST + 20;
/// One of the writes of a round.
pub const INDEX_WRITE: u8 = FIRST + 11;
const INDEX_OPEN_KIND: u8 = FIRST + 12;
const INDEX_FLUSH_KIND: u8 = FIRST + 13;
const INDEX_REMOVE_KIND: u8 = FIRST + 14;
const SPACE_KIND: u8 = FIRST + 15;
const DURABLE_MARK_KIND: u8 = FIRST + 21;

// At most one of each of these is in flight.
pub const LOG_FLUSH: Token = Token::new(LOG_FLUSH_KIND, 0, 0);
pub const LOG_PREPARE: Token = Token::new(LOG_PREPARE_KIND, 0, 0);
pub const CHECKPOINT: Token = Token::new(CHECKPOINT_KIND, 0, 0);
pub const TOMBSTONES: Token = Token::new(TOMBSTONES_KIND, 0, 0);
pub const REMOVE_TOPIC: Token = Token::new(REMOVE_TOPIC_KIND, 0, 0);
pub const REMOVE_ABORT: Token = Token::new(REMOVE_ABORT_KIND, 0, 0);
pub const INDEX_OPEN: Token = Token::new(INDEX_OPEN_KIND, 0, 0);
pub const INDEX_FLUSH: Token = Token::new(INDEX_FLUSH_KIND, 0, 0);
pub const INDEX_REMOVE: Token = Token::new(INDEX_REMOVE_KIND, 0, 0);
pub const SPACE: Token = Token::new(SPACE_KIND, 0, 0);
pub const RETENTION_SPACE: Token = Token::new(RETENTION_SPACE_KIND, 0, 0);
pub const DATE_READ: Token = Token::new(DATE_READ_KIND, 0, 0);
pub const REMOVE_SEGMENT: Token = Token::new(REMOVE_SEGMENT_KIND, 0, 0);
pub const REMOVE_QUEUE_FILE: Token = Token::new(REMOVE_QUEUE_FILE_KIND, 0, 0);
pub const DURABLE_MARK: Token = Token::new(DURABLE_MARK_KIND, 0, 0);

/// Token of the log write with a number.
pub fn log_write(number: u64) -> Token {
    Token::new(LOG_WRITE, number as u32, (number >> 32) as u32)
}

/// Number of a log write.
pub fn log_write_number(token: Token) -> u64 {
    u64::from(token.generation) << 32 | u64::from(token.index)
}
