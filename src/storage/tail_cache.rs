//! The newest bytes of the log, in memory as they were written: a consumer that keeps up never causes a read.
//!
//! Slices share the memory of the batches that were written; nothing is copied in or out. A record lies in one slice.

use crate::ids::PhysicalOffset;
use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Debug)]
struct Slice {
    start: PhysicalOffset,
    bytes: Bytes,
}

impl Slice {
    fn end(&self) -> PhysicalOffset {
        self.start.advance(self.bytes.len() as u64)
    }
}

/// **Invariants**: slices are in order and don't overlap; between them lie only the unused ends of segments.
#[derive(Debug)]
pub struct TailCache {
    slices: VecDeque<Slice>,
    bytes: u64,
    bytes_max: u64,
}

impl TailCache {
    pub fn new(bytes_max: u64) -> Self {
        Self {
            slices: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds what was sealed at the log's end.
    pub fn push(&mut self, start: PhysicalOffset, bytes: Bytes) {
        if let Some(last) = self.slices.back() {
            let end = last.end();
            assert!(
                start >= end,
                "slice at {start} behind one that ends at {end}"
            );
        }
        self.bytes += bytes.len() as u64;
        self.slices.push_back(Slice { start, bytes });
    }

    /// Drops the oldest slices over the budget. Those that end above `visible` stay: nobody could read them
    /// elsewhere once they become visible.
    pub fn trim(&mut self, visible: PhysicalOffset) {
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.slices.front()
            && oldest.end() <= visible
        {
            self.bytes -= oldest.bytes.len() as u64;
            self.slices.pop_front();
        }
    }

    /// Drops what lies in front of the log's first byte.
    pub fn drop_below(&mut self, start: PhysicalOffset) {
        while let Some(oldest) = self.slices.front()
            && oldest.end() <= start
        {
            self.bytes -= oldest.bytes.len() as u64;
            self.slices.pop_front();
        }
    }

    /// The bytes at a place, if all of them are here.
    pub fn get(&self, at: PhysicalOffset, bytes: u32) -> Option<Bytes> {
        let behind = self.slices.partition_point(|slice| slice.start <= at);
        let slice = self.slices.get(behind.checked_sub(1)?)?;
        let from = at.bytes_since(slice.start) as usize;
        let to = from.checked_add(bytes as usize)?;
        (to <= slice.bytes.len()).then(|| slice.bytes.slice(from..to))
    }

    /// First byte in memory.
    pub fn start(&self) -> Option<PhysicalOffset> {
        self.slices.front().map(|slice| slice.start)
    }

    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> TailCache {
        let mut cache = TailCache::new(6);
        cache.push(PhysicalOffset(10), Bytes::from_static(b"abcd"));
        cache.push(PhysicalOffset(14), Bytes::from_static(b"efgh"));
        cache.push(PhysicalOffset(30), Bytes::from_static(b"ij"));
        cache
    }

    #[test]
    fn ranges_are_found_inside_one_slice() {
        let cache = cache();
        let cases: [(u64, u32, Option<&[u8]>); 8] = [
            (9, 1, None),
            (10, 4, Some(b"abcd")),
            (11, 2, Some(b"bc")),
            (13, 2, None),
            (14, 4, Some(b"efgh")),
            (18, 1, None),
            (31, 1, Some(b"j")),
            (31, u32::MAX, None),
        ];
        for (at, bytes, expected) in cases {
            let found = cache.get(PhysicalOffset(at), bytes);
            assert_eq!(found.as_deref(), expected, "{at} {bytes}");
        }
    }

    #[test]
    fn oldest_slices_go_first_but_never_invisible_ones() {
        let mut cache = cache();
        cache.trim(PhysicalOffset(12));
        assert_eq!(cache.bytes(), 10, "the oldest ends above 12");
        cache.trim(PhysicalOffset(14));
        assert_eq!(cache.start(), Some(PhysicalOffset(14)));
        cache.trim(PhysicalOffset(32));
        assert_eq!(cache.bytes(), 6, "within the budget");
    }
}
