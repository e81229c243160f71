//! The anti-forensic splitter (LUKS1 on-disk format §2.4): a key becomes [`STRIPES`] parts, all of which are needed to
//! join it, so that losing any one of them on the medium destroys the key.

use zeroize::Zeroizing;

use super::hash::{DIGEST_BYTES_MAX, Hash};

/// Parts of a key. The format has a field for the number; cryptsetup accepts this one only.
pub(super) const STRIPES: usize = 4000;

/// Splits `key`. `material` has [`STRIPES`] times its length and is filled with random bytes.
pub(super) fn split(hash: Hash, key: &[u8], material: &mut [u8]) {
    assert_eq!(material.len(), key.len() * STRIPES, "a place for every stripe");
    let (random, last) = material.split_at_mut(key.len() * (STRIPES - 1));
    let block = chain(hash, key.len(), random);
    last.iter_mut().zip(block.iter().zip(key)).for_each(|(out, (block, key))| *out = block ^ key);
}

/// Joins the key that `material` was split from.
pub(super) fn merge(hash: Hash, material: &[u8], key: &mut [u8]) {
    assert_eq!(material.len(), key.len() * STRIPES, "every stripe");
    let (random, last) = material.split_at(key.len() * (STRIPES - 1));
    let block = chain(hash, key.len(), random);
    key.iter_mut().zip(block.iter().zip(last)).for_each(|(out, (block, last))| *out = block ^ last);
}

/// The block that the last stripe is combined with.
fn chain(hash: Hash, key_bytes: usize, stripes: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut block = Zeroizing::new(vec![0; key_bytes]);
    for stripe in stripes.chunks_exact(key_bytes) {
        block.iter_mut().zip(stripe).for_each(|(block, stripe)| *block ^= stripe);
        diffuse(hash, &mut block);
    }
    block
}

/// Each piece of a digest's length becomes the digest of its number and itself.
fn diffuse(hash: Hash, block: &mut [u8]) {
    let mut digest = Zeroizing::new([0; DIGEST_BYTES_MAX]);
    for (number, piece) in (0_u32..).zip(block.chunks_mut(hash.bytes())) {
        let digest = &mut digest[..piece.len()];
        hash.digest(&[&number.to_be_bytes(), piece], digest);
        piece.copy_from_slice(digest);
    }
}
