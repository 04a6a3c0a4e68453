//! Recent log bytes, still readable without a disk read.

use crate::ids::PhysicalOffset;
use bytes::Bytes;
use std::collections::VecDeque;

/// Batches in log order; the oldest go when the budget is spent. **Invariant**: no record spans two batches.
#[derive(Debug)]
pub struct TailCache {
    batches: VecDeque<(u64, Bytes)>,
    bytes: u64,
    budget: u64,
}

impl TailCache {
    pub fn new(budget: u64) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            budget,
        }
    }

    pub fn push(&mut self, start: PhysicalOffset, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        self.batches.push_back((start.0, bytes));
        // The newest batch stays whatever its size: its readers are about to come.
        while self.bytes > self.budget && self.batches.len() > 1 {
            if let Some((_, old)) = self.batches.pop_front() {
                self.bytes -= old.len() as u64;
            }
        }
    }

    /// The record's bytes, shared with the batch.
    pub fn get(&self, at: PhysicalOffset, bytes: u32) -> Option<Bytes> {
        let behind = self.batches.partition_point(|(start, _)| *start <= at.0);
        let (start, batch) = self.batches.get(behind.checked_sub(1)?)?;
        let from = (at.0 - start) as usize;
        let to = from.checked_add(bytes as usize)?;
        (to <= batch.len()).then(|| batch.slice(from..to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_batches_go_first() {
        let mut cache = TailCache::new(10);
        cache.push(PhysicalOffset(0), Bytes::from_static(b"abcdef"));
        cache.push(PhysicalOffset(6), Bytes::from_static(b"gh"));
        assert_eq!(
            cache.get(PhysicalOffset(2), 3).as_deref(),
            Some(&b"cde"[..])
        );
        assert_eq!(
            cache.get(PhysicalOffset(5), 2),
            None,
            "no record spans two batches"
        );
        cache.push(PhysicalOffset(8), Bytes::from_static(b"ijklm"));
        assert_eq!(cache.get(PhysicalOffset(2), 3), None);
        assert_eq!(cache.get(PhysicalOffset(6), 2).as_deref(), Some(&b"gh"[..]));
        assert_eq!(cache.get(PhysicalOffset(100), 1), None);
    }
}
