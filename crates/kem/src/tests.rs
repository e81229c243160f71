//! Against `ml-kem`, an implementation that shares no code with aws-lc. Wycheproof's vectors are in `seal`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ml_kem::ml_kem_768::{Ciphertext, DecapsulationKey, EncapsulationKey};
use ml_kem::{B32, Decapsulate, KeyExport, Seed};

use super::*;

fn bytes<const N: usize>(round: usize, salt: u8) -> [u8; N] {
    std::array::from_fn(|n| ((n + 1) * (round + 3)).wrapping_mul(167).wrapping_add(n >> 3) as u8 ^ salt)
}

fn oracle(seed: &[u8; SEED_BYTES]) -> DecapsulationKey {
    let mut theirs = Seed::default();
    theirs.copy_from_slice(seed);
    DecapsulationKey::from_seed(theirs)
}

#[test]
fn keys_ciphertexts_and_secrets_are_those_of_another_implementation() {
    for round in 0..50 {
        let (seed, m) = (bytes(round, 0x11), bytes(round, 0x22));
        let (ours, theirs) = (KeyPair::from_seed(&seed), oracle(&seed));
        let ek = ours.encapsulation_key();
        assert_eq!(ek[..], theirs.encapsulation_key().to_bytes()[..]);

        let (ct, shared) = encapsulate(&ek, &m).unwrap();
        let mut their_m = B32::default();
        their_m.copy_from_slice(&m);
        let their_ek = EncapsulationKey::new(ek.as_slice().try_into().unwrap()).unwrap();
        let (their_ct, their_shared) = their_ek.encapsulate_deterministic(&their_m);
        assert_eq!((&ct[..], &shared[..]), (&their_ct[..], &their_shared[..]));

        assert_eq!(ours.decapsulate(&ct), shared);
        let mut altered = ct;
        altered[round * 20] ^= 1;
        let rejected = ours.decapsulate(&altered);
        assert_ne!(rejected, shared, "implicit rejection");
        assert_eq!(rejected[..], theirs.decapsulate(&Ciphertext::from(altered))[..]);
    }
}

#[test]
fn key_that_is_not_reduced_is_refused() {
    let ek = KeyPair::from_seed(&bytes(1, 0)).encapsulation_key();
    for at in [0, 3, 381, 384, 1149] {
        let mut wrong = ek;
        wrong[at..at + 3].fill(0xFF); // 4095 twice; the modulus is 3329
        assert!(encapsulate(&wrong, &[7; 32]).is_none(), "{at}");
        assert!(encapsulate(&ek, &[7; 32]).is_some(), "an error does not outlive its call");
    }
}

/// Byte `n` of the seed, computed anew for each comparison, so that the search does not find its own pattern.
fn wanted(n: usize) -> u8 {
    (n as u8).wrapping_mul(73).wrapping_add(5).rotate_left(3)
}

/// Whether z, the second half of the seed, which a private key contains unchanged, occurs in the writable memory of
/// this process.
fn found() -> bool {
    let memory = File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut window = vec![0; 1 << 20];
    maps.lines().filter(|line| line.contains(" rw-p ")).any(|line| {
        let (begin, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        (begin..end).step_by(window.len() - 64).any(|at| {
            let bytes = window.len().min((end - at) as usize);
            let is_z = |part: &[u8]| part.iter().enumerate().all(|(n, byte)| *byte == wanted(32 + n));
            let there = memory.read_exact_at(&mut window[..bytes], at).is_ok()
                && window[..bytes].windows(32).any(is_z);
            // Clears the copy that was read.
            window.fill(0);
            there
        })
    })
}

#[test]
fn private_key_is_wiped_when_dropped() {
    let mut seed = Box::new(Zeroizing::new([0; SEED_BYTES]));
    seed.iter_mut().enumerate().for_each(|(n, byte)| *byte = wanted(n));
    let pair = KeyPair::from_seed(&seed);
    drop(seed);
    assert!(found(), "the test looks in the wrong place");
    drop(pair);
    assert!(!found(), "a private key was left behind");
}
