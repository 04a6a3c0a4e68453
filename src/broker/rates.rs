//! Rates over the last seconds, from totals that the shard counts anyway.
//!
//! There is no tick: a sample is taken before the work of a turn, at most one a second. Between two turns nothing is
//! counted, so the totals of a moment without a sample are those of the next sample.

use crate::clock::Now;
use crate::limits::RATE_SAMPLES_MAX;
use crate::stats::Counters;
use std::collections::VecDeque;

const SAMPLE_US: u64 = 1_000_000;
const DAY_MS: u64 = 86_400_000;

/// Windows that Apache reports, in seconds.
const WINDOWS: [u64; 3] = [10, 60, 600];

/// Totals since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub put: u64,
    /// Pulls that were answered with messages.
    pub found: u64,
    /// Pulls that had to wait.
    pub missed: u64,
    /// Messages handed out.
    pub transferred: u64,
}

impl Totals {
    pub fn of(counters: &Counters) -> Self {
        Self {
            put: counters.messages_in,
            found: counters.pulls_found,
            missed: counters.holds_parked,
            transferred: counters.messages_out,
        }
    }
}

/// What the days add up to: totals at midnight (UTC) before, and at the one before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mornings {
    pub today: Totals,
    pub yesterday: Totals,
}

#[derive(Debug, Default)]
pub struct Rates {
    samples: VecDeque<(u64, Totals)>,
    started: Option<Now>,
    day: u64,
    mornings: Mornings,
}

impl Rates {
    /// Called before the work of each turn.
    pub fn sample(&mut self, now: Now, counters: &Counters) {
        let last = self.samples.back().map(|(at, _)| *at);
        if last.is_some_and(|at| now.monotonic_us < at + SAMPLE_US) {
            return;
        }
        let totals = Totals::of(counters);
        let day = now.wall_ms / DAY_MS;
        if self.started.is_none() {
            self.started = Some(now);
            self.day = day;
        }
        if day > self.day {
            let was_yesterday = day == self.day + 1;
            self.mornings = Mornings {
                yesterday: if was_yesterday {
                    self.mornings.today
                } else {
                    totals
                },
                today: totals,
            };
            self.day = day;
        }
        if self.samples.len() >= RATE_SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((now.monotonic_us, totals));
    }

    /// When this process took its first turn.
    pub fn started(&self) -> Option<Now> {
        self.started
    }

    pub fn mornings(&self) -> Mornings {
        self.mornings
    }

    /// One total's rates per second over the windows, as far as the process has lived through them.
    pub fn per_second(&self, now: Now, counters: &Counters, of: fn(&Totals) -> u64) -> [f64; 3] {
        let current = of(&Totals::of(counters));
        let start_us = self.started.map_or(now.monotonic_us, |at| at.monotonic_us);
        WINDOWS.map(|seconds| {
            let from_us = now
                .monotonic_us
                .saturating_sub(seconds * 1_000_000)
                .max(start_us);
            let first = self.samples.partition_point(|(at, _)| *at < from_us);
            let before = self
                .samples
                .get(first)
                .map_or(current, |(_, totals)| of(totals));
            let lived_us = now.monotonic_us - from_us;
            if lived_us == 0 {
                return 0.0;
            }
            (current - before) as f64 * 1e6 / lived_us as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        Now {
            monotonic_us: seconds * 1_000_000,
            wall_ms: seconds * 1000,
        }
    }

    /// Counts `messages` in the turn of each second that is named.
    fn run(rates: &mut Rates, counters: &mut Counters, turns: &[(u64, u64)]) {
        for (second, messages) in turns {
            rates.sample(at(*second), counters);
            counters.messages_in += messages;
        }
    }

    #[test]
    fn a_rate_is_that_of_its_window() {
        let (mut rates, mut counters) = (Rates::default(), Counters::default());
        run(
            &mut rates,
            &mut counters,
            &[(0, 0), (1000, 100), (1005, 50)],
        );
        let put = |now| rates.per_second(at(now), &counters, |t| t.put);
        assert_eq!(put(1005), [15.0, 2.5, 0.25]);
        // The burst of 1000 has left the first window, which no turn has seen happen.
        assert_eq!(put(1011), [5.0, 2.5, 0.25]);
        assert_eq!(put(1700), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_young_process_has_rates_over_its_life() {
        let (mut rates, mut counters) = (Rates::default(), Counters::default());
        let none = rates.per_second(at(5), &counters, |t| t.put);
        assert_eq!(none, [0.0; 3]);
        run(&mut rates, &mut counters, &[(5, 40)]);
        assert_eq!(rates.per_second(at(5), &counters, |t| t.put), [0.0; 3]);
        assert_eq!(rates.per_second(at(9), &counters, |t| t.put), [10.0; 3]);
    }

    #[test]
    fn samples_are_bounded_and_reach_over_the_longest_window() {
        let (mut rates, mut counters) = (Rates::default(), Counters::default());
        for second in 0..10_000 {
            run(&mut rates, &mut counters, &[(second, 7), (second, 0)]);
        }
        assert_eq!(rates.samples.len(), RATE_SAMPLES_MAX);
        let put = rates.per_second(at(10_000), &counters, |t| t.put);
        assert_eq!(put, [7.0; 3]);
    }

    #[test]
    fn mornings_are_taken_at_the_first_turn_of_a_day() {
        let (mut rates, mut counters) = (Rates::default(), Counters::default());
        run(&mut rates, &mut counters, &[(86_000, 10), (86_399, 5)]);
        assert_eq!(rates.mornings(), Mornings::default());
        run(&mut rates, &mut counters, &[(86_401, 1)]);
        let put = |m: Mornings| (m.yesterday.put, m.today.put);
        assert_eq!(put(rates.mornings()), (0, 15));
        run(&mut rates, &mut counters, &[(2 * 86_400, 1)]);
        assert_eq!(put(rates.mornings()), (15, 16));
        // A day without a turn.
        run(&mut rates, &mut counters, &[(4 * 86_400, 1)]);
        assert_eq!(put(rates.mornings()), (17, 17));
    }
}
