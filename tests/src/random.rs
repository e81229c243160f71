//! Random choices: each from a seed, so that a run can be replayed.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

pub fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Fills many bytes from a key that is drawn: faster than the generator itself, which a debug build compiles as part of
/// this crate.
pub fn fill(rng: &mut StdRng, bytes: &mut [u8]) {
    let mut key = [0; blake3::KEY_LEN];
    rng.fill_bytes(&mut key);
    blake3::Hasher::new_keyed(&key).finalize_xof().fill(bytes);
}

pub fn bytes(rng: &mut StdRng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fill(rng, &mut bytes);
    bytes
}

/// Bytes whose number is drawn first.
pub fn bytes_of(rng: &mut StdRng, counts: Range<usize>) -> Vec<u8> {
    let count = rng.random_range(counts);
    bytes(rng, count)
}

/// An ISID of the format "random", drawn.
pub fn isid(rng: &mut StdRng) -> [u8; 6] {
    let mut isid = [0x80, 0, 0, 0, 0, 0];
    rng.fill_bytes(&mut isid[1..]);
    isid
}
