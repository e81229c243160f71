//! Handshake IKpsk2 with ML-KEM-768 (docs/SEAL.md section 3), both sides, message by message.
//!
//! Comments such as `es` beside a line name the token of the Noise pattern that the line implements.

use std::fmt;

use kem::{CT_BYTES, EK_BYTES, KeyPair};
use sha2::{Digest, Sha256};
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use crate::noise::{Symmetric, dh};
use crate::schedule::{Ratchet, Secret32, expand32, extract};
use crate::{Broken, Channel, Identity, PublicKey, Suite, TAG_BYTES, stack};

pub(crate) const PROTOCOL: &str = "Noise_IKpsk2_25519_ChaChaPoly_SHA256";
/// Bytes of message 1: e, s, payload.
const MESSAGE1_BYTES: usize = 32 + (32 + TAG_BYTES) + (EK_BYTES + TAG_BYTES);
/// Bytes of the mac that precedes message 1.
pub(crate) const MAC_BYTES: usize = 16;
/// Bytes of the answer: ct, e, empty payload.
const ANSWER_BYTES: usize = CT_BYTES + 32 + TAG_BYTES;

/// The psk of the Noise pattern, from the ML-KEM shared secret and the pre-shared key P of the pair.
pub(crate) fn psk(shared: &[u8], pair: Option<&[u8; 32]>) -> Secret32 {
    let pair: &[u8] = pair.map_or(&[], |pair| pair);
    expand32(&extract(&[0; 32], &[shared, pair]), b"hikyaku seal1 psk")
}

/// The mac of message 1: proves that a sender with the target's public key made the message for this connection.
pub(crate) fn mac(target: &PublicKey, prologue: &[u8], message: &[u8]) -> [u8; MAC_BYTES] {
    let key = Sha256::new().chain_update(b"hikyaku seal1 mac").chain_update(target.0).finalize();
    // HKDF-Extract is HMAC with the salt as its key.
    let mac = extract(&key.into(), &[prologue, message]);
    *mac.first_chunk().expect("32 bytes")
}

pub(crate) fn ephemeral(scalar: &[u8; 32]) -> (StaticSecret, PublicKey) {
    let secret = StaticSecret::from(*scalar);
    let public = PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes());
    (secret, public)
}

/// The initiator's side of an IKpsk2 handshake: [`Initiator::start`], then [`Initiator::finish`] once. Its secrets are
/// on the heap, so that a move leaves no copy of them.
pub struct Initiator(pub(crate) Box<Started>);

pub(crate) struct Started {
    noise: Symmetric,
    identity: Identity,
    ephemeral: StaticSecret,
    pair: KeyPair,
    psk: Option<Secret32>,
    suite: Suite,
}

impl Initiator {
    /// Returns the state, and mac and message 1. `prologue` is that of docs/SEAL.md section 3; `psk` is P; `suite` is
    /// the negotiated one. `entropy` must be fresh; the caller wipes it.
    pub fn start(
        identity: &Identity,
        target: PublicKey,
        prologue: &[u8],
        psk: Option<&[u8; 32]>,
        suite: Suite,
        entropy: &[u8; 128],
    ) -> (Self, Vec<u8>) {
        stack::wiped(|| Self::begin(identity, target, prologue, psk, suite, entropy))
    }

    fn begin(
        identity: &Identity,
        target: PublicKey,
        prologue: &[u8],
        psk: Option<&[u8; 32]>,
        suite: Suite,
        entropy: &[u8; 128],
    ) -> (Self, Vec<u8>) {
        let (scalar, rest) = entropy.split_first_chunk().expect("32 bytes of 128");
        let (e, e_public) = ephemeral(scalar);
        let pair = KeyPair::from_seed(rest.first_chunk().expect("64 bytes of 96"));

        let mut noise = Symmetric::new(PROTOCOL, prologue);
        noise.mix_hash(&target.0); // pre-message: <- s
        let mut flight = Vec::with_capacity(MAC_BYTES + MESSAGE1_BYTES);
        flight.resize(MAC_BYTES, 0);
        flight.extend_from_slice(&e_public.0); // e; with a psk it is also mixed into the key (Noise section 9.2)
        noise.mix_hash(&e_public.0);
        noise.mix_key(&Zeroizing::new(e_public.0));
        noise.mix_key(&dh(&e, &target)); // es
        noise.encrypt_and_hash(&identity.public().0, &mut flight); // s
        noise.mix_key(&dh(identity.secret(), &target)); // ss
        noise.encrypt_and_hash(&pair.encapsulation_key(), &mut flight);
        let (place, message) = flight.split_at_mut(MAC_BYTES);
        debug_assert_eq!(message.len(), MESSAGE1_BYTES);
        place.copy_from_slice(&mac(&target, prologue, message));

        let psk = psk.copied().map(Zeroizing::new);
        let identity = identity.clone();
        (Self(Box::new(Started { noise, identity, ephemeral: e, pair, psk, suite })), flight)
    }

    pub fn finish(self, answer: &[u8]) -> Result<Channel, Broken> {
        let mut started = self.0;
        stack::wiped(|| started.take(answer))?;
        let (ours, theirs, binding) =
            Ratchet::both(started.suite, started.noise.hash(), &started.noise.split());
        Ok(Channel::initiator(ours, theirs, binding))
    }
}

impl Started {
    fn take(&mut self, answer: &[u8]) -> Result<(), Broken> {
        if answer.len() != ANSWER_BYTES {
            return Err(Broken);
        }
        let (ct, message) = answer.split_at(CT_BYTES);
        let (e, payload) = message.split_first_chunk().ok_or(Broken)?;
        let e = PublicKey(*e);
        let shared = self.pair.decapsulate(ct.try_into().map_err(|_| Broken)?);

        self.noise.mix_hash(&e.0); // e
        self.noise.mix_key(&Zeroizing::new(e.0));
        self.noise.mix_key(&dh(&self.ephemeral, &e)); // ee
        self.noise.mix_key(&dh(self.identity.secret(), &e)); // se
        self.noise.mix_key_and_hash(&psk(shared.as_slice(), self.psk.as_deref())); // psk
        self.noise.decrypt_and_hash(payload).map(drop)
    }
}

/// The target's side, first state: mac and message 1 have arrived and the mac is correct. The cost so far is one hash.
///
/// The states follow the steps of docs/SEAL.md section 3: [`FirstFlight::check`], [`FirstFlight::open`],
/// [`Claim::prove`], [`Responder::finish`]. Each step costs more than the one before, so that the caller can refuse in
/// between.
pub struct FirstFlight<'a> {
    identity: &'a Identity,
    prologue: &'a [u8],
    message: &'a [u8; MESSAGE1_BYTES],
}

impl<'a> FirstFlight<'a> {
    /// Checks the mac of `flight`, the message of request 2.
    pub fn check(identity: &'a Identity, prologue: &'a [u8], flight: &'a [u8]) -> Result<Self, Broken> {
        let (theirs, message) = flight.split_at_checked(MAC_BYTES).ok_or(Broken)?;
        let message: &[u8; MESSAGE1_BYTES] = message.try_into().map_err(|_| Broken)?;
        let ours = mac(&identity.public(), prologue, message);
        aws_lc_rs::constant_time::verify_slices_are_equal(&ours, theirs).map_err(|_| Broken)?;
        Ok(Self { identity, prologue, message })
    }

    /// Opens the initiator's static key: one DH.
    pub fn open(self) -> Result<Claim<'a>, Broken> {
        let Self { identity, prologue, message } = self;
        let (e, rest) = message.split_first_chunk().ok_or(Broken)?;
        let (s, payload) = rest.split_at(32 + TAG_BYTES);
        let e = PublicKey(*e);

        let mut noise = Symmetric::new(PROTOCOL, prologue);
        noise.mix_hash(&identity.public().0); // pre-message: <- s
        noise.mix_hash(&e.0); // e
        noise.mix_key(&Zeroizing::new(e.0));
        noise.mix_key(&dh(identity.secret(), &e)); // es
        let s = PublicKey(noise.decrypt_and_hash(s)?.as_slice().try_into().map_err(|_| Broken)?);
        Ok(Claim { identity, noise, initiator: s, initiator_ephemeral: e, payload })
    }
}

/// The target's side, second state: message 1 contains a static key. That is no proof, since public keys are public.
pub struct Claim<'a> {
    identity: &'a Identity,
    noise: Symmetric,
    initiator: PublicKey,
    initiator_ephemeral: PublicKey,
    payload: &'a [u8],
}

impl Claim<'_> {
    /// The static key in message 1.
    pub fn initiator(&self) -> PublicKey {
        self.initiator
    }

    /// Opens the rest of message 1: one more DH. The sender has the private key of the initiator or the target.
    pub fn prove(mut self) -> Result<Responder, Broken> {
        self.noise.mix_key(&dh(self.identity.secret(), &self.initiator)); // ss
        let ek = self.noise.decrypt_and_hash(self.payload)?;
        let ek: &[u8; EK_BYTES] = ek.as_slice().try_into().map_err(|_| Broken)?;
        let Self { noise, initiator, initiator_ephemeral, .. } = self;
        Ok(Responder { noise, initiator, initiator_ephemeral, ek: Box::new(*ek) })
    }
}

/// The target's side, last state: message 1 was made for this connection with the initiator's key.
pub struct Responder {
    noise: Symmetric,
    initiator: PublicKey,
    initiator_ephemeral: PublicKey,
    ek: Box<[u8; EK_BYTES]>,
}

impl Responder {
    /// Runs all earlier states, for a caller without checks in between.
    pub fn read(identity: &Identity, prologue: &[u8], flight: &[u8]) -> Result<Self, Broken> {
        FirstFlight::check(identity, prologue, flight)?.open()?.prove()
    }

    /// The initiator's static key. A holder of the target's private key can forge message 1; the first record that
    /// opens excludes that.
    pub fn initiator(&self) -> PublicKey {
        self.initiator
    }

    /// Returns the answer and the keys. `psk_of_pair` is P, `suite` the negotiated one. `entropy` must be fresh.
    pub fn finish(
        mut self,
        psk_of_pair: Option<&[u8; 32]>,
        suite: Suite,
        entropy: &[u8; 128],
    ) -> Result<(Vec<u8>, Channel), Broken> {
        let answer = stack::wiped(|| self.answer(psk_of_pair, entropy))?;
        let (theirs, ours, binding) = Ratchet::both(suite, self.noise.hash(), &self.noise.split());
        Ok((answer, Channel::target(ours, theirs, binding)))
    }

    fn answer(&mut self, psk_of_pair: Option<&[u8; 32]>, entropy: &[u8; 128]) -> Result<Vec<u8>, Broken> {
        let (scalar, rest) = entropy.split_first_chunk().expect("32 bytes of 128");
        let (e, e_public) = ephemeral(scalar);
        let m = rest.first_chunk().expect("32 bytes of 96");
        let (ct, shared) = kem::encapsulate(&self.ek, m).ok_or(Broken)?;

        let mut answer = Vec::with_capacity(ANSWER_BYTES);
        answer.extend_from_slice(&ct);
        answer.extend_from_slice(&e_public.0); // e
        self.noise.mix_hash(&e_public.0);
        self.noise.mix_key(&Zeroizing::new(e_public.0));
        self.noise.mix_key(&dh(&e, &self.initiator_ephemeral)); // ee
        self.noise.mix_key(&dh(&e, &self.initiator)); // se
        self.noise.mix_key_and_hash(&psk(shared.as_slice(), psk_of_pair)); // psk
        self.noise.encrypt_and_hash(&[], &mut answer);
        debug_assert_eq!(answer.len(), ANSWER_BYTES);
        Ok(answer)
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").field("identity", &self.0.identity).finish_non_exhaustive()
    }
}

impl fmt::Debug for FirstFlight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstFlight").finish_non_exhaustive()
    }
}

impl fmt::Debug for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("initiator", &self.initiator).finish_non_exhaustive()
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("initiator", &self.initiator).finish_non_exhaustive()
    }
}
