//! Enrolment by Noise XX: which static key answers at a portal (docs/SEAL.md section 3). No session follows.

use std::fmt;

use x25519_dalek::StaticSecret;

use crate::handshake::ephemeral;
use crate::noise::{Symmetric, dh};
use crate::{Broken, Identity, PublicKey, TAG_BYTES, stack};

const PROTOCOL: &str = "Noise_XX_25519_ChaChaPoly_SHA256";
/// Bytes of message 1: e.
const MESSAGE1_BYTES: usize = 32;
/// Bytes of message 2: e, s, empty payload.
const MESSAGE2_BYTES: usize = 32 + (32 + TAG_BYTES) + TAG_BYTES;

/// The initiating side of enrolment (XX).
pub struct Enquirer {
    noise: Symmetric,
    /// On the heap, so that a move leaves no copy.
    ephemeral: Box<StaticSecret>,
}

impl Enquirer {
    /// Returns the state and message 1. `entropy` must be fresh.
    pub fn start(prologue: &[u8], entropy: &[u8; 128]) -> (Self, Vec<u8>) {
        stack::wiped(|| Self::begin(prologue, entropy))
    }

    fn begin(prologue: &[u8], entropy: &[u8; 128]) -> (Self, Vec<u8>) {
        let (e, e_public) = ephemeral(entropy.first_chunk().expect("32 bytes of 128"));
        let mut noise = Symmetric::new(PROTOCOL, prologue);
        let mut message = Vec::with_capacity(MESSAGE1_BYTES);
        noise.mix_hash(&e_public.0); // e
        message.extend_from_slice(&e_public.0);
        noise.encrypt_and_hash(&[], &mut message);
        (Self { noise, ephemeral: Box::new(e) }, message)
    }

    /// Takes message 2; returns the static key of the peer that answered.
    pub fn finish(mut self, answer: &[u8]) -> Result<PublicKey, Broken> {
        stack::wiped(|| self.open(answer))
    }

    fn open(&mut self, answer: &[u8]) -> Result<PublicKey, Broken> {
        if answer.len() != MESSAGE2_BYTES {
            return Err(Broken);
        }
        let (e, rest) = answer.split_first_chunk().ok_or(Broken)?;
        let (s, payload) = rest.split_at(32 + TAG_BYTES);
        let e = PublicKey(*e);
        self.noise.mix_hash(&e.0); // e
        self.noise.mix_key(&dh(&self.ephemeral, &e)); // ee
        let s = PublicKey(self.noise.decrypt_and_hash(s)?.as_slice().try_into().map_err(|_| Broken)?);
        self.noise.mix_key(&dh(&self.ephemeral, &s)); // es
        self.noise.decrypt_and_hash(payload)?;
        Ok(s)
    }
}

/// The answering side of enrolment (XX): returns message 2 for message 1. `entropy` must be fresh.
pub fn answer_enquiry(
    identity: &Identity,
    prologue: &[u8],
    message: &[u8],
    entropy: &[u8; 128],
) -> Result<Vec<u8>, Broken> {
    stack::wiped(|| answer_by(identity, prologue, message, entropy))
}

fn answer_by(
    identity: &Identity,
    prologue: &[u8],
    message: &[u8],
    entropy: &[u8; 128],
) -> Result<Vec<u8>, Broken> {
    let theirs = PublicKey(message.try_into().map_err(|_| Broken)?);
    let (e, e_public) = ephemeral(entropy.first_chunk().expect("32 bytes of 128"));
    let mut noise = Symmetric::new(PROTOCOL, prologue);
    noise.mix_hash(&theirs.0); // e
    noise.decrypt_and_hash(&[])?;
    let mut answer = Vec::with_capacity(MESSAGE2_BYTES);
    answer.extend_from_slice(&e_public.0); // e
    noise.mix_hash(&e_public.0);
    noise.mix_key(&dh(&e, &theirs)); // ee
    noise.encrypt_and_hash(&identity.public().0, &mut answer); // s
    noise.mix_key(&dh(identity.secret(), &theirs)); // es
    noise.encrypt_and_hash(&[], &mut answer);
    Ok(answer)
}

impl fmt::Debug for Enquirer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enquirer").finish_non_exhaustive()
    }
}
