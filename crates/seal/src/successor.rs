//! The announcement of a target's next static key inside a sealed session (docs/SEAL.md section 9).

use std::fmt;

use crate::noise::dh;
use crate::schedule::{Secret32, expand, extract};
use crate::{Broken, Identity, PublicKey, stack};

/// Bytes of an announcement: version, next key, proof.
pub const ANNOUNCEMENT_BYTES: usize = 1 + 32 + 32;
/// Version in the first byte of an announcement.
const VERSION: u8 = 1;

/// What binds an announcement to one connection: both sides of a handshake derive the same. On the heap, so that a move
/// leaves no copy of it.
#[derive(Clone)]
pub struct Binding(Box<Secret32>);

/// The two static keys that the handshake of the connection has proven.
#[derive(Clone, Copy, Debug)]
pub struct Proven {
    pub initiator: PublicKey,
    pub target: PublicKey,
}

impl Binding {
    pub(crate) fn new(secret: Secret32) -> Self {
        Self(Box::new(secret))
    }

    /// The target's announcement that its next key is that of `next`.
    pub fn announce(&self, next: &Identity, proven: &Proven) -> [u8; ANNOUNCEMENT_BYTES] {
        stack::wiped(|| {
            let key = next.public();
            let proof = self.proof(&dh(next.secret(), &proven.initiator), &key, proven);
            let mut announcement = [VERSION; ANNOUNCEMENT_BYTES];
            announcement[1..33].copy_from_slice(&key.0);
            announcement[33..].copy_from_slice(proof.as_slice());
            announcement
        })
    }

    /// The next key that an announcement contains, if the announcer holds its private half and made the announcement for
    /// this connection. `own`: the initiator's key pair.
    pub fn accept(
        &self,
        own: &Identity,
        target: PublicKey,
        announcement: &[u8],
    ) -> Result<PublicKey, Broken> {
        let announcement: &[u8; ANNOUNCEMENT_BYTES] = announcement.try_into().map_err(|_| Broken)?;
        let (version, rest) = announcement.split_first().ok_or(Broken)?;
        let (next, theirs) = rest.split_first_chunk().ok_or(Broken)?;
        let (next, proven) = (PublicKey(*next), Proven { initiator: own.public(), target });
        if *version != VERSION || next == target {
            return Err(Broken);
        }
        stack::wiped(|| {
            let shared = dh(own.secret(), &next);
            // A point of low order: everyone could make the proof.
            if shared.iter().fold(0, |any, byte| any | byte) == 0 {
                return Err(Broken);
            }
            let ours = self.proof(&shared, &next, &proven);
            aws_lc_rs::constant_time::verify_slices_are_equal(ours.as_slice(), theirs).map_err(|_| Broken)?;
            Ok(next)
        })
    }

    fn proof(&self, shared: &Secret32, next: &PublicKey, proven: &Proven) -> Secret32 {
        let secret = extract(&self.0, &[shared.as_slice()]);
        let mut proof = Secret32::new([0; 32]);
        let label: [&[u8]; 4] =
            [b"hikyaku seal1 next key proof", &next.0, &proven.target.0, &proven.initiator.0];
        expand(&secret, &label, proof.as_mut_slice());
        proof
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Initiator, Responder, Suite};

    fn identity(byte: u8) -> Identity {
        Identity::generate([byte; 32])
    }

    /// The bindings of initiator (key 1) and target (key 2) after a handshake with this prologue.
    fn bindings(prologue: &[u8]) -> (Binding, Binding) {
        let (ours, theirs) = (identity(1), identity(2));
        let suite = Suite::Aes256Gcm;
        let (initiator, flight) = Initiator::start(&ours, theirs.public(), prologue, None, suite, &[3; 128]);
        let responder = Responder::read(&theirs, prologue, &flight).unwrap();
        let (answer, target) = responder.finish(None, suite, &[4; 128]).unwrap();
        let Channel { binding, .. } = initiator.finish(&answer).unwrap();
        (binding, target.binding)
    }

    fn proven() -> Proven {
        Proven { initiator: identity(1).public(), target: identity(2).public() }
    }

    #[test]
    fn an_announcement_is_accepted_in_its_session_seal1_9() {
        let (initiator, target) = bindings(b"p");
        let next = identity(5);
        let announcement = target.announce(&next, &proven());
        assert_eq!(initiator.accept(&identity(1), proven().target, &announcement), Ok(next.public()));
        assert_eq!((announcement[0], &announcement[1..33]), (1, &next.public().0[..]));
    }

    #[test]
    fn another_session_other_keys_and_every_flipped_bit_are_refused_seal1_9() {
        let (initiator, target) = bindings(b"p");
        let (other, _) = bindings(b"another connection");
        let announcement = target.announce(&identity(5), &proven());
        let accept = |binding: &Binding, own: u8, of: u8, bytes: &[u8]| {
            binding.accept(&identity(own), identity(of).public(), bytes)
        };
        assert_eq!(accept(&other, 1, 2, &announcement), Err(Broken), "a replay");
        assert_eq!(accept(&initiator, 6, 2, &announcement), Err(Broken), "for another initiator");
        assert_eq!(accept(&initiator, 1, 6, &announcement), Err(Broken), "of another target");
        for bit in 0..8 * ANNOUNCEMENT_BYTES {
            let mut bytes = announcement;
            bytes[bit / 8] ^= 1 << (bit % 8);
            // X25519 ignores the highest bit of a point; the label contains it.
            assert_eq!(accept(&initiator, 1, 2, &bytes), Err(Broken), "bit {bit}");
        }
        for length in [0, 1, ANNOUNCEMENT_BYTES - 1] {
            assert_eq!(accept(&initiator, 1, 2, &announcement[..length]), Err(Broken));
        }
        let long = [&announcement[..], &[0]].concat();
        assert_eq!(accept(&initiator, 1, 2, &long), Err(Broken));
    }

    #[test]
    fn a_key_without_its_private_half_is_refused_seal1_9() {
        let (initiator, target) = bindings(b"p");
        // The announcer knows the public half of key 5 and holds key 6.
        let mut announcement = target.announce(&identity(6), &proven());
        announcement[1..33].copy_from_slice(&identity(5).public().0);
        assert_eq!(initiator.accept(&identity(1), proven().target, &announcement), Err(Broken));
        // A point of low order: the product is zero for every private key.
        let zero = PublicKey([0; 32]);
        let proof = target.proof(&Secret32::new([0; 32]), &zero, &proven());
        let forged = [&[VERSION][..], &zero.0, proof.as_slice()].concat();
        assert_eq!(initiator.accept(&identity(1), proven().target, &forged), Err(Broken));
        let same = target.announce(&identity(2), &proven());
        assert_eq!(initiator.accept(&identity(1), proven().target, &same), Err(Broken), "the present key");
    }
}
