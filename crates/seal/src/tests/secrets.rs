//! Secrets are not printed, and their memory is wiped.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::schedule::{Ratchet, Use};

#[test]
fn debug_shows_no_secret() {
    let (initiator, target) = identities();
    let (start, m1) =
        Initiator::start(&initiator, target.public(), b"", Some(&[7; 32]), Suite::Aes256Gcm, &entropy(3));
    let flight = FirstFlight::check(&target, b"", &m1).unwrap();
    let shown_flight = format!("{flight:?}");
    let claim = flight.open().unwrap();
    let shown_claim = format!("{claim:?}");
    let responder = claim.prove().unwrap();
    let shown = [
        format!("{initiator:?}"),
        format!("{start:?}"),
        format!("{responder:?}"),
        format!("{:?}", Enquirer::start(b"", &entropy(3)).0),
        format!("{:?}", pair(Suite::Aegis256X4).0),
    ];
    let expected =
        format!("Identity(PublicKey({}))", initiator.public()).replace("PublicKey(", "").replace("))", ")");
    assert_eq!(shown[0], expected);
    assert_eq!(shown[1], format!("Initiator {{ identity: Identity({}), .. }}", initiator.public()));
    assert_eq!(shown[2], format!("Responder {{ initiator: PublicKey({}), .. }}", initiator.public()));
    assert_eq!(shown_flight, "FirstFlight { .. }");
    assert_eq!(shown_claim, format!("Claim {{ initiator: PublicKey({}), .. }}", initiator.public()));
    assert_eq!(shown[3], "Enquirer { .. }");
    let channel = "Channel { sealer: Sealer { generation: 0, records: 0, unit_bytes: 0, .. }, \
                   opener: Opener { generation: 0, records: 0, .. }, \
                   renewal: Renewal { end: \"initiator\", is_pending: false, .. }, binding: Binding(..) }";
    assert_eq!(shown[4], channel);
}

/// The contents of this process's memory; empty if the range is no longer mapped.
fn memory(address: usize, bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    let read = File::open("/proc/self/mem").unwrap().read_exact_at(&mut memory, address as u64);
    if read.is_ok() { memory } else { Vec::new() }
}

/// Whether 16 bytes of the secret are present: the allocator may already have overwritten the first bytes of a freed
/// block.
fn holds(memory: &[u8], secret: &[u8]) -> bool {
    memory.windows(16).any(|window| secret.windows(16).any(|part| part == window))
}

/// Drops a box and asserts that its memory no longer holds the secrets, which it held before.
fn assert_wiped<T>(value: Box<T>, secrets: &[&[u8]]) {
    let (address, bytes) = (std::ptr::from_ref(&*value) as usize, size_of::<T>());
    for secret in secrets {
        assert!(holds(&memory(address, bytes), secret), "the test looks in the wrong place");
    }
    drop(value);
    for secret in secrets {
        assert!(!holds(&memory(address, bytes), secret), "a secret was left behind");
    }
}

#[test]
fn identity_is_wiped() {
    assert_wiped(Box::new(Identity::generate(entropy(1))), &[&entropy::<32>(1)]);
}

#[test]
fn initiator_is_wiped() {
    let (initiator, target) = identities();
    let psk = entropy(77);
    let (start, _) =
        Initiator::start(&initiator, target.public(), b"", Some(&psk), Suite::Aes256Gcm, &entropy(3));
    let secrets = entropy::<128>(3);
    assert_wiped(start.0, &[&psk, &entropy::<32>(1), &secrets[..32]]);
}

#[test]
fn ratchet_and_handshake_state_are_wiped() {
    let secrets = (entropy(50).into(), entropy(51).into());
    let (ratchet, ..) = Ratchet::both(Suite::Aes256Gcm, &[1; 32], &secrets);
    let secret = schedule::expand32(
        &schedule::extract(&[1; 32], &[secrets.0.as_slice(), secrets.1.as_slice()]),
        b"hikyaku seal1 initiator",
    );
    assert_wiped(Box::new(ratchet), &[secret.as_slice()]);

    let mut noise = crate::noise::Symmetric::new("Noise_XX_25519_ChaChaPoly_SHA256", b"");
    noise.mix_key(&secret);
    let chaining = schedule::extract(b"Noise_XX_25519_ChaChaPoly_SHA256", &[secret.as_slice()]);
    let mut derived = [0; 64];
    schedule::expand(&chaining, &[], &mut derived);
    assert_wiped(Box::new(noise), &[&derived[..32], &derived[32..]]);
}

#[test]
fn keys_of_aegis_are_wiped() {
    use crate::suite::aegis_x::{Aegis128X2, Aegis256X4};
    let key = entropy::<32>(60);
    assert_wiped(Box::new(Aegis256X4::new(&key)), &[&key]);
    assert_wiped(Box::new(Aegis128X2::new(&key[..16])), &[&key[..16]]);
}

#[test]
fn iv_is_wiped() {
    let ratchet = Ratchet::both(Suite::Aegis256X4, &[1; 32], &([2; 32].into(), [3; 32].into())).0;
    let iv = ratchet.key_and_iv(Use::Data).1;
    assert_wiped(Box::new(ratchet.keyed(Use::Data)), &[&iv]);
}
