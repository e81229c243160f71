//! Fresh keys in a live session (docs/SEAL.md section 6): an exchange of X25519 and ML-KEM-768 keys in two control
//! records steps both directions to their next generation.
//!
//! The edge drives it: [`Renewal::open`] takes each control record that the opener has opened, in order among the
//! records; before each record to send, [`Renewal::is_due`] decides whether [`Renewal::seal`] makes a control record
//! instead. A violation by the peer is [`Broken`]; a violation by the edge panics.

use std::fmt;
use std::time::Duration;

use kem::{CT_BYTES, EK_BYTES, KeyPair};
use sha2::{Digest, Sha256};
use x25519_dalek::StaticSecret;

use crate::handshake::ephemeral;
use crate::limits::GENERATION_MAX;
use crate::noise::dh;
use crate::schedule::{Fresh, Secret32};
use crate::{Broken, Kind, Opener, PublicKey, Sealer, stack};

/// Bytes of an offer: e, ek.
pub(crate) const OFFER_BYTES: usize = 32 + EK_BYTES;
/// Bytes of an answer: e, ct.
pub(crate) const ANSWER_BYTES: usize = 32 + CT_BYTES;
/// Bytes of entropy for a control record: an X25519 key, and the seed of an ML-KEM key pair or encapsulation.
pub const ENTROPY_BYTES: usize = 32 + kem::SEED_BYTES;

struct Offered {
    ephemeral: StaticSecret,
    pair: KeyPair,
    /// Hash state that has absorbed the offer.
    hash: Sha256,
}

struct Offer {
    e: PublicKey,
    ek: Box<[u8; EK_BYTES]>,
    hash: Sha256,
}

/// The X25519 key pair of these 96 bytes, and the rest for ML-KEM.
fn keys(entropy: &[u8; ENTROPY_BYTES]) -> (StaticSecret, PublicKey, &[u8]) {
    let (scalar, seed) = entropy.split_first_chunk().expect("32 bytes and more");
    let (secret, public) = ephemeral(scalar);
    (secret, public, seed)
}

impl Offered {
    /// Returns the offer's message and the state for its answer.
    fn new(entropy: &[u8; ENTROPY_BYTES]) -> (Vec<u8>, Box<Self>) {
        let (ephemeral, PublicKey(e), seed) = keys(entropy);
        let pair = KeyPair::from_seed(seed.try_into().expect("the seed of a key pair"));
        let message = [e.as_slice(), &pair.encapsulation_key()].concat();
        debug_assert_eq!(message.len(), OFFER_BYTES);
        let hash = Sha256::new_with_prefix(&message);
        (message, Box::new(Self { ephemeral, pair, hash }))
    }

    /// Takes the answer; `e` and `ct` are its parts.
    fn take(&self, e: &PublicKey, ct: &[u8], answer: &[u8]) -> Result<Box<Fresh>, Broken> {
        let dh = contributory(&self.ephemeral, e)?;
        let shared = self.pair.decapsulate(ct.try_into().map_err(|_| Broken)?);
        let hash = self.hash.clone().chain_update(answer).finalize().into();
        Ok(Box::new(Fresh { dh, shared, hash }))
    }
}

impl Offer {
    /// Returns the answer's message and the secrets that both sides then share.
    fn answer(self, entropy: &[u8; ENTROPY_BYTES]) -> Result<(Vec<u8>, Box<Fresh>), Broken> {
        let (ephemeral, PublicKey(e), seed) = keys(entropy);
        let m = seed.first_chunk().expect("32 bytes and more");
        let (ct, shared) = kem::encapsulate(&self.ek, m).ok_or(Broken)?;
        let dh = contributory(&ephemeral, &self.e)?;
        let message = [e.as_slice(), &ct].concat();
        debug_assert_eq!(message.len(), ANSWER_BYTES);
        let hash = self.hash.chain_update(&message).finalize().into();
        Ok((message, Box::new(Fresh { dh, shared, hash })))
    }
}

/// The role of this end, with its pending exchange.
enum End {
    Initiator(Option<Box<Offered>>),
    Target(Option<Offer>),
}

/// The exchanges of one connection, at most one at a time. Between calls it holds the offer without an answer.
pub struct Renewal(End);

impl Renewal {
    pub(crate) fn initiator() -> Self {
        Self(End::Initiator(None))
    }

    pub(crate) fn target() -> Self {
        Self(End::Target(None))
    }

    /// Whether to send a control record as soon as every unit of the previous generation is complete. `now`, here and
    /// below, is the time since the channel was created.
    pub fn is_due(&self, sealer: &Sealer, opener: &Opener, now: Duration) -> bool {
        match &self.0 {
            End::Initiator(offered) => offered.is_none() && (sealer.is_due(now) || opener.is_due()),
            End::Target(offer) => offer.is_some(),
        }
    }

    /// When an exchange becomes due without traffic.
    pub fn due_at(&self, sealer: &Sealer) -> Option<Duration> {
        match &self.0 {
            End::Initiator(None) => Some(sealer.due_at()),
            End::Initiator(Some(_)) | End::Target(_) => None,
        }
    }

    /// Whether a control record may be sent: an initiator has no open offer, or a target has an unanswered one.
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            End::Initiator(offered) => offered.is_none(),
            End::Target(offer) => offer.is_some(),
        }
    }

    /// Appends this side's control record to `out`: an initiator's offer, or a target's answer, after which the sending
    /// direction is in the next generation. The caller must have completed every unit of the previous generation.
    /// `entropy` must be fresh. Fails at an invalid offer, and in generation 65535: the connection must end.
    pub fn seal(
        &mut self,
        sealer: &mut Sealer,
        opener: &mut Opener,
        entropy: &[u8; ENTROPY_BYTES],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        assert!(self.is_ready(), "an offer for no answer, or an answer to no offer");
        if sealer.generation() == GENERATION_MAX {
            return Err(Broken);
        }
        match &mut self.0 {
            End::Initiator(offered) => {
                let (message, new) = stack::wiped(|| Offered::new(entropy));
                sealer.seal_control(Kind::Offer, &message, out);
                sealer.be_strict();
                *offered = Some(new);
            }
            End::Target(offer) => {
                let offer = offer.take().expect("looked at above");
                let (message, fresh) = stack::wiped(|| offer.answer(entropy))?;
                sealer.seal_control(Kind::Answer, &message, out);
                sealer.step(&fresh, now);
                opener.expect_step(&fresh, now);
            }
        }
        Ok(())
    }

    /// Takes a control record just opened. After an answer the sending direction is in the next generation.
    pub fn open(
        &mut self,
        kind: Kind,
        message: &[u8],
        sealer: &mut Sealer,
        opener: &mut Opener,
        now: Duration,
    ) -> Result<(), Broken> {
        let (e, rest) = message.split_first_chunk().ok_or(Broken)?;
        let e = PublicKey(*e);
        match (&mut self.0, kind) {
            (End::Initiator(offered), Kind::Answer) => {
                let offered = offered.take().ok_or(Broken)?;
                let fresh = stack::wiped(|| offered.take(&e, rest, message))?;
                sealer.step(&fresh, now);
                opener.step(&fresh, now);
                Ok(())
            }
            // A target's sending direction steps with its answer; a further offer before the initiator's direction has
            // stepped is invalid.
            (End::Target(offer @ None), Kind::Offer)
                if opener.generation() == sealer.generation() && sealer.generation() < GENERATION_MAX =>
            {
                let ek: &[u8; EK_BYTES] = rest.try_into().map_err(|_| Broken)?;
                *offer = Some(Offer { e, ek: Box::new(*ek), hash: Sha256::new_with_prefix(message) });
                sealer.be_strict();
                Ok(())
            }
            _ => Err(Broken),
        }
    }
}

/// X25519 of a fresh key; an all-zero result is rejected (RFC 7748 section 6.1).
fn contributory(ephemeral: &StaticSecret, e: &PublicKey) -> Result<Secret32, Broken> {
    let dh = dh(ephemeral, e);
    let any = dh.iter().fold(0, |any, byte| any | byte);
    if any == 0 { Err(Broken) } else { Ok(dh) }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (end, is_pending) = match &self.0 {
            End::Initiator(offered) => ("initiator", offered.is_some()),
            End::Target(offer) => ("target", offer.is_some()),
        };
        f.debug_struct("Renewal").field("end", &end).field("is_pending", &is_pending).finish_non_exhaustive()
    }
}
