//! Newtypes for the numbers that can be mistaken for one another.

use std::collections::HashMap;
use std::fmt;

/// Position of a byte in a shard's commit log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PhysicalOffset(pub u64);

impl PhysicalOffset {
    /// The offset `bytes` further on.
    #[must_use]
    pub fn advance(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Bytes from `start` to here; `start` must not lie beyond.
    pub fn bytes_since(self, start: Self) -> u64 {
        assert!(start <= self, "offset {self} lies before {start}");
        self.0 - start.0
    }
}

impl fmt::Display for PhysicalOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a message in its queue; dense, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct QueueOffset(pub u64);

impl QueueOffset {
    /// The offset `count` messages further on.
    #[must_use]
    pub fn advance(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection of one shard. The generation tells a reused slot from the connection that had it before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConnectionId {
    pub index: u32,
    pub generation: u32,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Index of an open consume queue in its shard's store; stable while the process runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueIndex(pub u32);

impl QueueIndex {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A shard of this process, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Map keyed by a name that a client chose. Keyed hashing, so that chosen names can't pile up in one bucket;
/// iteration order is meaningless: sort before anything can see it.
pub type NameMap<V> = HashMap<Box<str>, V, ahash::RandomState>;
