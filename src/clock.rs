//! Time as the loop sees it: taken once per turn, then passed on.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The instant of a turn. Everything that happens in one turn carries the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Now {
    /// Microseconds since an arbitrary start; never goes back. Deadlines use this.
    pub monotonic_us: u64,
    /// Milliseconds since the Unix epoch; may jump. Timestamps stored in messages use this.
    pub wall_ms: u64,
}

impl Now {
    /// Deadline `ms` milliseconds from now, in monotonic microseconds.
    pub fn after_ms(self, ms: u64) -> u64 {
        self.monotonic_us.saturating_add(ms.saturating_mul(1000))
    }
}

/// The system clock; the only reader of it in this crate.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Microseconds since the start, for measuring.
    pub fn monotonic_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    pub fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64);
        Now {
            monotonic_us: self.monotonic_us(),
            wall_ms: wall,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
