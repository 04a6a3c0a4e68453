//! One bit for each offset from a place on that moves forward.

use std::collections::VecDeque;

const WORD_BITS: u64 = u64::BITS as u64;

/// **Invariants**: `words[i]` has the bits of the offsets from `WORD_BITS * (start + i)` on.
#[derive(Debug, Default)]
pub struct Bits {
    start: u64,
    words: VecDeque<u64>,
}

impl Bits {
    pub fn contains(&self, offset: u64) -> bool {
        let place = (offset / WORD_BITS).checked_sub(self.start);
        let word = place.and_then(|place| self.words.get(place as usize));
        word.is_some_and(|word| word >> (offset % WORD_BITS) & 1 == 1)
    }

    /// Sets the bit of an offset; those before `low` are not asked for any more.
    pub fn set(&mut self, offset: u64, low: u64) {
        self.forget_below(low);
        if self.words.is_empty() {
            self.start = low / WORD_BITS;
        }
        let Some(place) = (offset / WORD_BITS).checked_sub(self.start) else {
            return;
        };
        let place = place as usize;
        if place >= self.words.len() {
            self.words.resize(place + 1, 0);
        }
        self.words[place] |= 1 << (offset % WORD_BITS);
    }

    pub fn forget_below(&mut self, low: u64) {
        while self.start < low / WORD_BITS && self.words.pop_front().is_some() {
            self.start += 1;
        }
    }

    #[cfg(test)]
    pub fn words(&self) -> usize {
        self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Against a set, with a place that moves on as it does in use.
    #[test]
    fn bits_are_those_of_a_set() {
        let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
        let mut random = 1_u64;
        let mut low = 1000;
        for _ in 0..4000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            let offset = low + (random >> 33) % 300;
            if random >> 20 & 1 == 0 {
                bits.set(offset, low);
                set.insert(offset);
            } else {
                low += (random >> 40) % 3;
                bits.forget_below(low);
            }
            for offset in low..low + 320 {
                assert_eq!(
                    bits.contains(offset),
                    set.contains(&offset),
                    "{offset} of {low}"
                );
            }
            assert!(bits.words() <= 6, "{} words", bits.words());
        }
    }
}
