//! The only source of randomness. Its sequence is part of the meaning of a seed, so the generator is fixed here:
//! SplitMix64.

use std::ops::Range;

/// A generator. Not `Clone`: a copy would repeat the sequence.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate sequence for `purpose`, so that the draws of one part do not shift those of others.
    pub fn fork(seed: u64, purpose: &str) -> Self {
        let mixed =
            purpose.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut random = Self(mixed);
        random.draw();
        random
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `range`, which must not be empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.draw() % (range.end - range.start)
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.within(0..count) == 0
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0..choices.len() as u64) as usize]
    }

    /// A number of `range` with a uniformly distributed order of magnitude.
    pub fn magnitude(&mut self, range: Range<u64>) -> u64 {
        let bits = |number: u64| u64::from(u64::BITS - number.leading_zeros());
        let low = bits(range.start);
        let shift = self.within(low..bits(range.end - 1).max(low) + 1);
        let (from, to) = (if shift == 0 { 0 } else { 1 << (shift - 1) }, 1u64 << shift);
        self.within(from.max(range.start)..to.min(range.end).max(from.max(range.start) + 1))
    }
}
