//! Whether to poll for completions for a while before sleeping in the kernel, which costs a wake-up.
//!
//! It pays when the next completion comes within the time that is polled. So the pauses between the start of a wait
//! and its first completion are watched, polled or slept: short ones earn credit, long ones cost it, and without
//! enough credit the shard sleeps at once. An idle shard never polls.

/// Pauses in a row that change the mind.
const CREDIT_MAX: u8 = 16;
const CREDIT_TO_POLL: u8 = 8;

#[derive(Clone, Copy, Debug)]
pub struct BusyPoll {
    /// Microseconds to poll at most; 0: never.
    limit_us: u64,
    credit: u8,
}

impl BusyPoll {
    pub fn new(limit_us: u64) -> Self {
        Self {
            limit_us,
            credit: 0,
        }
    }

    pub fn is_on(&self) -> bool {
        self.limit_us > 0
    }

    /// Until when to poll, in monotonic microseconds; `None`: sleep at once. Something due ends it earlier.
    pub fn until(&self, start_us: u64, deadline_us: Option<u64>) -> Option<u64> {
        if !self.is_on() || self.credit < CREDIT_TO_POLL {
            return None;
        }
        let until = start_us + self.limit_us;
        Some(deadline_us.map_or(until, |deadline| deadline.min(until)))
    }

    /// A wait ended with a completion after so many microseconds.
    pub fn waited(&mut self, pause_us: u64) {
        self.credit = if pause_us <= self.limit_us {
            (self.credit + 1).min(CREDIT_MAX)
        } else {
            self.credit.saturating_sub(2)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pauses: &[(u64, usize)]) -> BusyPoll {
        let mut poll = BusyPoll::new(50);
        for (pause, times) in pauses {
            (0..*times).for_each(|_| poll.waited(*pause));
        }
        poll
    }

    #[test]
    fn polls_while_completions_come_in_time() {
        assert_eq!(
            after(&[]).until(1000, None),
            None,
            "not before it is known to pay"
        );
        assert_eq!(after(&[(50, 7)]).until(1000, None), None);
        assert_eq!(after(&[(50, 8)]).until(1000, None), Some(1050));
        assert_eq!(after(&[(50, 1000), (51, 4)]).until(0, None), Some(50));
        assert_eq!(after(&[(50, 1000), (51, 5)]).until(0, None), None);
    }

    #[test]
    fn what_is_due_ends_it() {
        assert_eq!(after(&[(1, 20)]).until(1000, Some(1020)), Some(1020));
        assert_eq!(after(&[(1, 20)]).until(1000, Some(9000)), Some(1050));
    }

    #[test]
    fn zero_never_polls() {
        let mut poll = BusyPoll::new(0);
        (0..100).for_each(|_| poll.waited(0));
        assert!(!poll.is_on());
        assert_eq!(poll.until(5, None), None);
    }
}
