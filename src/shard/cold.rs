//! Requests that wait for bytes from disk; each is run again when they are there.

use crate::broker::Peer;
use crate::broker::internal::Task;
use crate::broker::pull::PullRequest;
use crate::limits::{COLD_REQUESTS_MAX, COLD_STEPS_MAX};
use crate::stats::Asked;
use bytes::Bytes;
use slab::Slab;

/// What runs again.
#[derive(Debug, Clone)]
pub enum Cold {
    /// A request as it came, whole frame.
    Frame {
        peer: Peer,
        frame: Bytes,
        asked: Asked,
        /// Nobody takes an answer.
        one_way: bool,
    },
    /// A pull that was held before.
    Pull(Box<PullRequest>),
    /// What the broker does by itself.
    Task(Task),
}

impl Cold {
    /// `None`: nobody waits for an answer.
    pub fn asked(&self) -> Option<Asked> {
        match self {
            Self::Frame { one_way: true, .. } | Self::Task(_) => None,
            Self::Frame { asked, .. } => Some(*asked),
            Self::Pull(request) => Some(request.asked),
        }
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    steps: u32,
    cold: Cold,
}

/// All of a shard's.
#[derive(Debug, Default)]
pub struct ColdRequests {
    slots: Slab<Slot>,
    next_generation: u32,
}

/// A request can't go on reading: too many wait, or it has read too often.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColdError {
    #[error("{0} requests wait for disk reads, the limit is {COLD_REQUESTS_MAX}")]
    TooMany(usize),
    #[error("the request needed more than {COLD_STEPS_MAX} reads")]
    TooManySteps,
}

impl ColdRequests {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Parks a request that has read `steps` times; returns the key of its next read.
    pub fn insert(&mut self, cold: Cold, steps: u32) -> Result<u64, ColdError> {
        if self.slots.len() >= COLD_REQUESTS_MAX {
            return Err(ColdError::TooMany(self.slots.len()));
        }
        if steps >= COLD_STEPS_MAX {
            return Err(ColdError::TooManySteps);
        }
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1);
        let index = self.slots.insert(Slot {
            generation,
            steps,
            cold,
        });
        Ok((u64::from(generation) << 32) | index as u64)
    }

    /// The request and how often it has read, this time included.
    pub fn take(&mut self, key: u64) -> Option<(Cold, u32)> {
        let index = (key & u64::from(u32::MAX)) as usize;
        let generation = (key >> 32) as u32;
        self.slots
            .get(index)
            .filter(|slot| slot.generation == generation)?;
        let slot = self.slots.remove(index);
        Some((slot.cold, slot.steps + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ConnectionId;

    fn request() -> Cold {
        let peer = Peer {
            connection: ConnectionId {
                index: 1,
                generation: 2,
            },
            address: ([127, 0, 0, 1], 1).into(),
        };
        Cold::Frame {
            peer,
            frame: Bytes::new(),
            asked: Asked {
                code: 11,
                since_us: 0,
            },
            one_way: false,
        }
    }

    #[test]
    fn a_request_reads_a_bounded_number_of_times() {
        let mut cold = ColdRequests::default();
        let key = cold.insert(request(), 0).expect("room");
        let (again, steps) = cold.take(key).expect("there");
        assert_eq!(steps, 1);
        assert!(cold.take(key).is_none(), "a key is good once");
        assert_eq!(
            cold.insert(again, COLD_STEPS_MAX),
            Err(ColdError::TooManySteps)
        );
        assert!(cold.is_empty());
    }
}
