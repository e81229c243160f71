//! Fresh keys in a live session (docs/SEAL.md section 6): an exchange of X25519 and ML-KEM-768 keys in two control records takes
//! both directions to their next generation.
//!
//! Driven by the edge: [`Renewal::open`] takes each control record that the opener has opened, in its place among the records;
//! before each record, [`Renewal::is_due`] says whether [`Renewal::seal`] is to make a control record instead. What the peer does
//! against the rules is [`Broken`]; what the edge does against them panics.

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
/// Bytes of entropy that a control record is made from: an X25519 key, and the seed of an ML-KEM key pair or an encapsulation's.
pub const ENTROPY_BYTES: usize = 32 + kem::SEED_BYTES;

/// An offer that has been sent.
struct Offered {
    ephemeral: StaticSecret,
    pair: KeyPair,
    /// Has taken the offer.
    hash: Sha256,
}

/// An offer that has come.
struct Offer {
    e: PublicKey,
    ek: Box<[u8; EK_BYTES]>,
    hash: Sha256,
}

/// The X25519 key of these 96 bytes, and what is for ML-KEM.
fn keys(entropy: &[u8; ENTROPY_BYTES]) -> (StaticSecret, PublicKey, &[u8]) {
    let (scalar, seed) = entropy.split_first_chunk().expect("32 bytes and more");
    let (secret, public) = ephemeral(scalar);
    (secret, public, seed)
}

impl Offered {
    /// The message, and what its answer needs.
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
    /// The answer, and what both sides have then.
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

/// Which end we are, and what is under way.
enum End {
    Initiator(Option<Box<Offered>>),
    Target(Option<Offer>),
}

/// The exchanges of one connection.
pub struct Renewal(End);

impl Renewal {
    pub(crate) fn initiator() -> Self {
        Self(End::Initiator(None))
    }

    pub(crate) fn target() -> Self {
        Self(End::Target(None))
    }

    /// Whether a control record is to be sent as soon as no unit of the generation before is unfinished. `now`, here and below, is
    /// the time since the channel was made.
    pub fn is_due(&self, sealer: &Sealer, opener: &Opener, now: Duration) -> bool {
        match &self.0 {
            End::Initiator(offered) => offered.is_none() && (sealer.is_due(now) || opener.is_due()),
            End::Target(offer) => offer.is_some(),
        }
    }

    /// When an exchange is due though nothing is sent or received.
    pub fn due_at(&self, sealer: &Sealer) -> Option<Duration> {
        match &self.0 {
            End::Initiator(None) => Some(sealer.due_at()),
            End::Initiator(Some(_)) | End::Target(_) => None,
        }
    }

    /// Whether a control record may be sent: for an initiator if no answer is outstanding, for a target if an offer is.
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            End::Initiator(offered) => offered.is_none(),
            End::Target(offer) => offer.is_some(),
        }
    }

    /// Appends our control record to `out`: an initiator's offer, a target's answer, after which what we send is of the next
    /// generation. No unit of the generation before may be unfinished. `entropy` must be fresh. Fails at an offer that is not a
    /// right one, and in generation 65535: the connection must end.
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

    /// Takes a control record, opened just now. After an answer, what we send is of the next generation.
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
            // A target's direction steps with its answer; an offer before the initiator's has stepped is a second one.
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

/// X25519 of a fresh key; what comes out as zero is refused (RFC 7748 section 6.1).
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
