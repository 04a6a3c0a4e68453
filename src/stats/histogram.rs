//! A histogram of fixed size: recording is an index and an addition, nothing is allocated after it was made.
//!
//! Values from 1 to 2^32 fall into buckets of equal width within each octave. The upper bounds include the powers of
//! two exactly, so that what Prometheus shows (`le`) is what was counted. A value is 0 where two events share an
//! instant; it counts as 1.

/// Highest power of two that is told apart; larger values count as that. In microseconds 71 minutes.
const OCTAVES: u32 = 32;

/// Counts by size of value, their sum and the largest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// An octave has `2^bits` buckets.
    bits: u32,
    counts: Box<[u64]>,
    sum: u64,
    max: u64,
}

impl Histogram {
    /// An octave is told apart into `2^bits` parts: a quantile is at most `1/2^bits` too high.
    pub fn new(bits: u32) -> Self {
        assert!(bits <= 6, "{bits} bits of an octave");
        let buckets = ((OCTAVES + 1 - bits) << bits) as usize;
        Self {
            bits,
            counts: vec![0; buckets].into(),
            sum: 0,
            max: 0,
        }
    }

    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// The same value, several times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        let bucket = self.bucket(value);
        self.counts[bucket] += times;
        self.sum += value * times;
        self.max = self.max.max(value);
    }

    fn bucket(&self, value: u64) -> usize {
        let below = value.saturating_sub(1).min((1 << OCTAVES) - 1);
        let shift = below.checked_ilog2().unwrap_or(0).saturating_sub(self.bits);
        ((u64::from(shift) << self.bits) + (below >> shift)) as usize
    }

    /// The largest value that a bucket counts.
    fn upper_bound(&self, bucket: usize) -> u64 {
        let bucket = bucket as u64;
        let shift = (bucket >> self.bits).saturating_sub(1);
        let part = bucket - (shift << self.bits);
        (part + 1) << shift
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum(&self) -> u64 {
        self.sum
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// How many values are at most `bound`, a power of two.
    pub fn count_to(&self, bound: u64) -> u64 {
        assert!(bound.is_power_of_two(), "{bound} is no bound of a bucket");
        self.counts[..=self.bucket(bound)].iter().sum()
    }

    /// A value that at least this part (0 to 1) of all values don't exceed; 0 without values.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = (part * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return self.upper_bound(bucket).min(self.max);
            }
        }
        0
    }

    /// Adds what another one of the same shape has counted.
    pub fn add(&mut self, other: &Self) {
        assert_eq!(self.bits, other.bits, "histograms of different shapes");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_bucket_begins_behind_the_one_before() {
        for bits in 0..=6 {
            let histogram = Histogram::new(bits);
            let mut lowest = 0;
            for bucket in 0..histogram.counts.len() {
                let upper = histogram.upper_bound(bucket);
                assert_eq!(histogram.bucket(lowest + 1), bucket, "{bits} bits");
                assert_eq!(histogram.bucket(upper), bucket, "{bits} bits");
                lowest = upper;
            }
            assert_eq!(lowest, 1 << OCTAVES);
            assert_eq!(histogram.bucket(u64::MAX), histogram.counts.len() - 1);
        }
    }

    #[test]
    fn without_values_everything_is_zero() {
        let histogram = Histogram::new(4);
        let seen = (histogram.count(), histogram.quantile(0.99), histogram.max());
        assert_eq!(seen, (0, 0, 0));
    }

    proptest! {
        #[test]
        fn it_counts_as_the_values_say(values in prop::collection::vec(0_u64..1 << 33, 1..200)) {
            let (mut ours, mut other) = (Histogram::new(4), Histogram::new(4));
            let mut reference = hdrhistogram::Histogram::<u64>::new(3).expect("a histogram");
            for (index, value) in values.iter().enumerate() {
                if index % 2 == 0 { ours.record(*value) } else { other.record(*value) }
                reference.record(*value).expect("it grows");
            }
            ours.add(&other);
            prop_assert_eq!(ours.count(), values.len() as u64);
            prop_assert_eq!(ours.sum(), values.iter().sum::<u64>());
            prop_assert_eq!(ours.max(), values.iter().copied().max().unwrap_or(0));
            for power in 0..32 {
                let bound = 1 << power;
                let expected = values.iter().filter(|value| **value <= bound).count() as u64;
                prop_assert_eq!(ours.count_to(bound), expected, "up to {}", bound);
            }
            for part in [0.5, 0.9, 0.99] {
                let exact = reference.value_at_quantile(part).min(1 << OCTAVES);
                let found = ours.quantile(part) as f64;
                prop_assert!(found >= exact as f64 * 0.998, "{} {}", found, exact);
                prop_assert!(found <= (exact as f64 * (1.0 + 1.0 / 16.0)).max(1.0) + 1.0, "{} {}", found, exact);
            }
        }
    }
}
