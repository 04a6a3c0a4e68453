//! Memory that records are encoded into, reused once nothing refers to it any more.
//!
//! A chunk is filled from front to back; filled parts are split off as [`Bytes`](bytes::Bytes), which the write, the
//! tail cache and replies share. When the last of them is gone, the chunk's memory is taken again, so that a steady
//! flow allocates nothing per message. A slow reader of replies pins whole chunks, at most one for each slice it holds.

use crate::limits::MIB;
use bytes::BytesMut;
use std::collections::VecDeque;

/// Large enough that a turn's batch is rarely split, small enough that a pinned one is cheap.
const CHUNK_BYTES: usize = MIB as usize;
/// Retired chunks that are asked for their memory before a new one is made: pinned ones must not be searched for long.
const RECLAIM_ATTEMPTS: usize = 4;

#[derive(Debug)]
pub struct Chunks {
    current: BytesMut,
    /// Filled ones, oldest first: empty handles that keep the way back to their memory.
    retired: VecDeque<BytesMut>,
    retired_max: usize,
}

impl Chunks {
    /// For a tail cache of so many bytes.
    pub fn new(tail_cache_bytes: u64) -> Self {
        let cached = usize::try_from(tail_cache_bytes).unwrap_or(usize::MAX) / CHUNK_BYTES;
        Self {
            current: BytesMut::new(),
            retired: VecDeque::new(),
            retired_max: cached.saturating_add(2 * RECLAIM_ATTEMPTS),
        }
    }

    /// Where the next record is encoded.
    pub fn current(&mut self) -> &mut BytesMut {
        &mut self.current
    }

    pub fn filled(&self) -> usize {
        self.current.len()
    }

    pub fn has_room(&self, bytes: usize) -> bool {
        self.current.capacity() - self.current.len() >= bytes
    }

    /// Replaces the current chunk, whose filled part has been split off, by one with room for `bytes`.
    pub fn renew(&mut self, bytes: usize) {
        assert!(
            self.current.is_empty(),
            "{} bytes would be lost",
            self.current.len()
        );
        let fresh = if bytes > CHUNK_BYTES {
            BytesMut::with_capacity(bytes)
        } else {
            self.reclaim()
                .unwrap_or_else(|| BytesMut::with_capacity(CHUNK_BYTES))
        };
        let full = std::mem::replace(&mut self.current, fresh);
        self.retired.push_back(full);
        if self.retired.len() > self.retired_max {
            self.retired.pop_front();
        }
    }

    fn reclaim(&mut self) -> Option<BytesMut> {
        for _ in 0..RECLAIM_ATTEMPTS.min(self.retired.len()) {
            let mut oldest = self.retired.pop_front()?;
            if oldest.try_reclaim(CHUNK_BYTES) {
                return Some(oldest);
            }
            self.retired.push_back(oldest);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn fill(chunks: &mut Chunks) -> Bytes {
        let room = chunks.current().capacity();
        chunks.current().resize(room, 7);
        chunks.current().split().freeze()
    }

    #[test]
    fn memory_is_taken_again_once_nothing_refers_to_it() {
        let mut chunks = Chunks::new(0);
        chunks.renew(100);
        let first = fill(&mut chunks);
        let place = first.as_ptr();
        chunks.renew(100);
        let second = fill(&mut chunks);
        assert_ne!(second.as_ptr(), place, "the first is still referred to");
        drop(first);
        chunks.renew(100);
        assert_eq!(fill(&mut chunks).as_ptr(), place);
    }

    #[test]
    fn a_record_larger_than_a_chunk_gets_its_own() {
        let mut chunks = Chunks::new(0);
        chunks.renew(3 * CHUNK_BYTES);
        assert!(chunks.has_room(3 * CHUNK_BYTES));
    }
}
