//! Section 3: both patterns against `snow`, a Noise library that shares no code with this crate.

use ml_kem::ml_kem_768::{DecapsulationKey, EncapsulationKey};
use ml_kem::{Decapsulate, KeyExport};
use snow::params::NoiseParams;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};

use super::*;
use kem::CT_BYTES;

use crate::handshake::{MAC_BYTES, PROTOCOL, mac, psk};

/// The primitives of snow without randomness: the test provides the ephemeral keys.
struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn snow::types::Random>> {
        Some(Box::new(NoRandom))
    }
    fn resolve_dh(&self, choice: &snow::params::DHChoice) -> Option<Box<dyn snow::types::Dh>> {
        DefaultResolver.resolve_dh(choice)
    }
    fn resolve_hash(&self, choice: &snow::params::HashChoice) -> Option<Box<dyn snow::types::Hash>> {
        DefaultResolver.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &snow::params::CipherChoice) -> Option<Box<dyn snow::types::Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct NoRandom;

impl snow::types::Random for NoRandom {
    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), snow::Error> {
        panic!("ephemeral keys are given");
    }
}

/// Snow's state with a static and an ephemeral key of these seeds.
fn snow(protocol: &str, [s, e]: [u8; 2], initiator: bool, remote: Option<&[u8; 32]>) -> HandshakeState {
    let params: NoiseParams = protocol.parse().unwrap();
    let (s, e): ([u8; 32], [u8; 32]) = (entropy(s), entropy(e));
    let mut builder = Builder::with_resolver(params, Box::new(Resolver)).prologue(b"prologue").unwrap();
    builder = builder.local_private_key(&s).unwrap().fixed_ephemeral_key_for_testing_only(&e);
    if let Some(remote) = remote {
        builder = builder.remote_public_key(remote).unwrap();
    }
    if initiator { builder.build_initiator() } else { builder.build_responder() }.unwrap()
}

fn hash_and_keys(mut noise: HandshakeState) -> ([u8; 32], [u8; 32], [u8; 32]) {
    let hash = noise.get_handshake_hash().try_into().unwrap();
    let (first, second) = noise.dangerously_get_raw_split();
    (hash, first, second)
}

/// Asserts that the keys of the channel derive from those of snow.
fn assert_same(ours: &mut Sealer, (hash, first, second): ([u8; 32], [u8; 32], [u8; 32]), initiator: bool) {
    let (i, t, _) = Ratchet::both(Suite::Aes256Gcm, &hash, &(first.into(), second.into()));
    let mut opener = Opener::new(if initiator { i } else { t }, &Limits::SPECIFIED);
    let record = seal(ours, 1, &[b"unit"]);
    assert_eq!(open(&mut opener, &record).unwrap().1, [b"unit"]);
}

#[test]
fn section3_our_initiator_and_snows_responder_agree() {
    let (initiator, target) = identities();
    let pair_key = [9; 32];
    let (key, suite) = (target.public(), Suite::Aes256Gcm);
    let (start, m1) = Initiator::start(&initiator, key, b"prologue", Some(&pair_key), suite, &entropy(5));
    let mut noise = snow(PROTOCOL, [2, 6], false, None);
    let mut ek = [0; 2000];
    let ek_bytes = noise.read_message(&m1[MAC_BYTES..], &mut ek).unwrap();
    assert_eq!(noise.get_remote_static().unwrap(), initiator.public().0);
    let ek = EncapsulationKey::new(ek[..ek_bytes].try_into().unwrap()).unwrap();
    let (ct, shared) = ek.encapsulate_deterministic(&[7; 32].into());
    noise.set_psk(2, psk(&shared, Some(&pair_key)).as_slice()).unwrap();
    let mut answer = ct.to_vec();
    answer.resize(CT_BYTES + 48, 0);
    assert_eq!(noise.write_message(&[], &mut answer[CT_BYTES..]).unwrap(), 48);
    let mut channel = start.finish(&answer).unwrap();
    assert_same(&mut channel.sealer, hash_and_keys(noise), true);
}

#[test]
fn section3_our_responder_and_snows_initiator_agree() {
    let (initiator, target) = identities();
    let mut noise = snow(PROTOCOL, [1, 5], true, Some(&target.public().0));
    let dk = DecapsulationKey::from_seed([8; 64].into());
    let mut m1 = [0; 2000];
    noise.set_psk(2, &[0; 32]).unwrap();
    let m1_bytes = noise.write_message(&dk.encapsulation_key().to_bytes(), &mut m1).unwrap();
    let m1 = &m1[..m1_bytes];
    let flight = [&mac(&target.public(), b"prologue", m1)[..], m1].concat();
    let responder = Responder::read(&target, b"prologue", &flight).unwrap();
    assert_eq!(responder.initiator(), initiator.public());
    let (answer, mut channel) = responder.finish(None, Suite::Aes256Gcm, &entropy(6)).unwrap();
    let shared = dk.decapsulate(answer[..CT_BYTES].try_into().unwrap());
    noise.set_psk(2, psk(&shared, None).as_slice()).unwrap();
    assert_eq!(noise.read_message(&answer[CT_BYTES..], &mut []).unwrap(), 0);
    assert_same(&mut channel.sealer, hash_and_keys(noise), false);
}

#[test]
fn section3_xx_agrees_with_snow_both_ways() {
    const XX: &str = "Noise_XX_25519_ChaChaPoly_SHA256";
    let (_, target) = identities();
    let mut buffer = [0; 200];

    let (enquirer, m1) = Enquirer::start(b"prologue", &entropy(5));
    let mut noise = snow(XX, [2, 6], false, None);
    noise.read_message(&m1, &mut []).unwrap();
    let bytes = noise.write_message(&[], &mut buffer).unwrap();
    assert_eq!(enquirer.finish(&buffer[..bytes]), Ok(target.public()));

    let mut noise = snow(XX, [2, 6], true, None);
    let bytes = noise.write_message(&[], &mut buffer).unwrap();
    let answer = answer_enquiry(&target, b"prologue", &buffer[..bytes], &entropy(7)).unwrap();
    noise.read_message(&answer, &mut []).unwrap();
    assert_eq!(noise.get_remote_static().unwrap(), target.public().0);
}
