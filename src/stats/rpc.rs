//! Requests by code and answer, and how long they took, in the buckets of RocketMQ's `rocketmq_rpc_latency`.

use crate::limits::RPC_SERIES_MAX;

/// Upper bounds of the buckets in milliseconds. Source: apache/rocketmq 5.3.x `RemotingMetricsManager`.
pub const BOUNDS_MS: [u64; 9] = [1, 3, 5, 7, 10, 100, 1000, 2000, 3000];

/// Code of requests that have no series of their own.
pub const OTHER_CODE: i32 = -1;

/// A request that is still to be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Of the request.
    pub code: i32,
    /// Monotonic microseconds of the turn in which it came.
    pub since_us: u64,
}

/// Which series a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    pub request_code: i32,
    pub response_code: i32,
    /// It was held.
    pub is_long_polling: bool,
}

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Series {
    pub kind: Kind,
    /// The last one has those above all bounds.
    pub buckets: [u64; BOUNDS_MS.len() + 1],
    pub sum_us: u64,
}

impl Series {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            buckets: [0; BOUNDS_MS.len() + 1],
            sum_us: 0,
        }
    }

    fn record(&mut self, micros: u64) {
        let above = BOUNDS_MS.iter().take_while(|ms| micros > **ms * 1000);
        self.buckets[above.count()] += 1;
        self.sum_us += micros;
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// All series of a shard. Beyond `RPC_SERIES_MAX` kinds, requests count as [`OTHER_CODE`].
#[derive(Clone, Debug, Default)]
pub struct Rpcs {
    kinds: Vec<Kind>,
    series: Vec<Series>,
}

impl Rpcs {
    /// The series of a kind. The first kinds seen are the frequent ones, so that looking from the front is fast.
    pub fn find(&mut self, kind: Kind) -> u16 {
        match self.kinds.iter().position(|known| *known == kind) {
            Some(place) => place as u16,
            None => self.add(kind),
        }
    }

    #[cold]
    fn add(&mut self, kind: Kind) -> u16 {
        let is_full = self.kinds.len() + 1 >= RPC_SERIES_MAX;
        let other = Kind {
            request_code: OTHER_CODE,
            ..kind
        };
        // Two places are left for them, held and not.
        if is_full && kind.request_code != OTHER_CODE {
            return self.find(Kind {
                response_code: OTHER_CODE,
                ..other
            });
        }
        self.kinds.push(kind);
        self.series.push(Series::new(kind));
        (self.kinds.len() - 1) as u16
    }

    pub fn record(&mut self, place: u16, micros: u64) {
        self.series[usize::from(place)].record(micros);
    }

    pub fn all(&self) -> &[Series] {
        &self.series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(request_code: i32) -> Kind {
        Kind {
            request_code,
            response_code: 0,
            is_long_polling: false,
        }
    }

    #[test]
    fn a_time_falls_below_its_bound() {
        let mut series = Series::new(kind(10));
        for micros in [0, 1000, 1001, 3000, 10_001, 3_000_000, 3_000_001] {
            series.record(micros);
        }
        assert_eq!(series.buckets, [2, 2, 0, 0, 0, 1, 0, 0, 1, 1]);
        assert_eq!((series.count(), series.sum_us), (7, 6_015_003));
    }

    #[test]
    fn kinds_are_bounded() {
        let mut rpcs = Rpcs::default();
        for code in 0..2 * RPC_SERIES_MAX as i32 {
            for is_long_polling in [false, true] {
                let place = rpcs.find(Kind {
                    is_long_polling,
                    ..kind(code)
                });
                rpcs.record(place, 1);
            }
        }
        assert!(rpcs.all().len() <= RPC_SERIES_MAX + 1);
        let total: u64 = rpcs.all().iter().map(Series::count).sum();
        assert_eq!(total, 4 * RPC_SERIES_MAX as u64, "none is lost");
        let first = rpcs.find(kind(0));
        assert_eq!(rpcs.all()[usize::from(first)].kind, kind(0));
    }
}
