//! The one source of chance. Its sequence is part of what a seed means, so it is our own: SplitMix64.

use std::ops::Range;

/// A generator; a copy of it would repeat itself, so there is none.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence of its own for `purpose`, so that what one part draws does not shift what the others get.
    pub fn fork(seed: u64, purpose: &str) -> Self {
        let mixed =
            purpose.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut random = Self(mixed);
        random.draw();
        random
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `range`, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.draw() % (range.end - range.start)
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.within(0..count) == 0
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0..choices.len() as u64) as usize]
    }

    /// A number of `range` whose order of magnitude is what is drawn evenly.
    pub fn magnitude(&mut self, range: Range<u64>) -> u64 {
        let bits = |number: u64| u64::from(u64::BITS - number.leading_zeros());
        let low = bits(range.start);
        let shift = self.within(low..bits(range.end - 1).max(low) + 1);
        let (from, to) = (if shift == 0 { 0 } else { 1 << (shift - 1) }, 1u64 << shift);
        self.within(from.max(range.start)..to.min(range.end).max(from.max(range.start) + 1))
    }
}
