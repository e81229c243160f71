//! Bytes of which a receiver knows what they must be, by their offset in the stream.

/// A prime, so that no displacement by a multiple of a segment, an area or a page goes unseen.
const PERIOD: usize = 1_048_583;
/// Longest slice.
pub(super) const SLICE_BYTES_MAX: usize = 1 << 20;

pub(super) struct Pattern(Vec<u8>);

impl Pattern {
    pub(super) fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes = Vec::with_capacity(PERIOD + SLICE_BYTES_MAX);
        bytes.extend((0..PERIOD).map(|_| {
            // xorshift64 (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        }));
        bytes.extend_from_within(..SLICE_BYTES_MAX);
        Self(bytes)
    }

    /// # Panics
    /// If it is longer than [`SLICE_BYTES_MAX`].
    pub(super) fn at(&self, offset: u64, bytes: usize) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        &self.0[start..start + bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_that_of_its_offset_and_no_other() {
        let pattern = Pattern::new();
        let offset = PERIOD as u64 * 3 - 10;
        let slice = pattern.at(offset, 100).to_vec();
        assert_eq!(slice[10..], *pattern.at(0, 90));
        for displaced in [1, 1448, 4096, 65_536] {
            assert_ne!(slice, pattern.at(offset + displaced, 100), "{displaced}");
        }
        assert_eq!(pattern.at(1, SLICE_BYTES_MAX).len(), SLICE_BYTES_MAX);
    }
}
