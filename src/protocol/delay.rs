//! Delay levels: `messageDelayLevel`, e.g. `1s 5s 10m 2h`; level 1 is the first.

/// Default of `messageDelayLevel`. Source: apache/rocketmq `MessageStoreConfig`.
pub const DEFAULT_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// The delay of each level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DelayLevels(Vec<u64>);

impl Default for DelayLevels {
    fn default() -> Self {
        Self::parse(DEFAULT_LEVELS).expect("the default has the form")
    }
}

impl DelayLevels {
    /// `None` where a word is no number with a unit, or there is none.
    pub fn parse(text: &str) -> Option<Self> {
        let levels: Option<Vec<u64>> = text.split_whitespace().map(milliseconds).collect();
        levels.filter(|levels| !levels.is_empty()).map(Self)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The level that a message with this property is parked in; `None` below 1, which is no delay.
    pub fn level(&self, asked: i64) -> Option<u32> {
        let asked = usize::try_from(asked).ok().filter(|level| *level > 0)?;
        Some(asked.min(self.0.len()) as u32)
    }

    /// Delay of a level, in milliseconds; levels beyond the last have its delay.
    pub fn delay_ms(&self, level: u32) -> u64 {
        let place = (level.max(1) as usize).min(self.0.len()) - 1;
        self.0[place]
    }
}

fn milliseconds(word: &str) -> Option<u64> {
    let (number, unit) = word.split_at_checked(word.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    Some(u64::from(number.parse::<u32>().ok()?) * seconds * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_and_capped() {
        let levels = DelayLevels::default();
        assert_eq!(levels.len(), 18);
        for (asked, level, ms) in [(1, 1, 1000), (5, 5, 60_000), (18, 18, 7_200_000)] {
            assert_eq!(levels.level(asked), Some(level));
            assert_eq!(levels.delay_ms(level), ms);
        }
        assert_eq!(levels.level(99), Some(18));
        assert_eq!((levels.level(0), levels.level(-1)), (None, None));
        assert_eq!(
            DelayLevels::parse("2s 1d"),
            Some(DelayLevels(vec![2000, 86_400_000]))
        );
        for wrong in ["", "1", "s", "1x", "1s é"] {
            assert_eq!(DelayLevels::parse(wrong), None, "{wrong:?}");
        }
    }
}
