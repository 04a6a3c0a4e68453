//! Numbers from a seed, and a fingerprint of what was done with them.

/// A small generator (splitmix64). The same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }

    /// True `share` times out of ten thousand.
    pub fn chance(&mut self, share: u32) -> bool {
        share > 0 && self.below(10_000) < u64::from(share)
    }
}

/// Hash of a run: two runs that did the same have the same (FNV-1a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(pub u64);

impl Trace {
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}
