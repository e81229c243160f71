//! Whether bytes are all zero.

/// Bytes examined before each decision.
const BLOCK: usize = 256;

/// Whether every byte is zero. Data is usually recognised in its first block.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    // Folded without a branch inside a block, which the compiler turns into vector code.
    blocks.iter().all(|block| block.iter().fold(0, |or, byte| or | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_is_data() {
        for length in [0, 1, 2, 255, 256, 257, 511, 512, 513, 4096, 4097, 70_000] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes), "{length}");
            let mut places: Vec<usize> = (0..length.min(520)).collect();
            places.extend((0..length).rev().take(520));
            places.extend((0..length).step_by(997));
            for place in places {
                for value in [1, 0x80, 0xff] {
                    bytes[place] = value;
                    assert!(!is_zero(&bytes), "{value} at {place} of {length}");
                }
                bytes[place] = 0;
            }
        }
    }
}
