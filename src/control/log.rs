//! Lines about what peers do are limited in rate: whoever can connect can cause them.

use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Lines of one kind in a row before some are left out.
const BURST: u32 = 20;
/// A burst is forgotten after this long.
const WINDOW: Duration = Duration::from_secs(10);

/// Rate limit of one kind of line. The next line that is let through tells how many were left out.
#[derive(Debug)]
pub struct Limit {
    window_start: Cell<Option<Instant>>,
    in_window: Cell<u32>,
    left_out: Cell<u64>,
}

impl Limit {
    pub const fn new() -> Self {
        Self {
            window_start: Cell::new(None),
            in_window: Cell::new(0),
            left_out: Cell::new(0),
        }
    }

    /// `None`: leave the line out. Else how many were left out before it.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let start = self.window_start.get();
        if start.is_none_or(|start| now.duration_since(start) >= WINDOW) {
            self.window_start.set(Some(now));
            self.in_window.set(0);
        }
        if self.in_window.get() >= BURST {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.in_window.set(self.in_window.get() + 1);
        Some(self.left_out.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_cut_and_counted() {
        let (limit, start) = (Limit::new(), Instant::now());
        let admitted = (0..100).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(admitted, BURST as usize);
        assert_eq!(limit.admit(start + WINDOW), Some(80));
        assert_eq!(limit.admit(start + WINDOW), Some(0));
    }
}
