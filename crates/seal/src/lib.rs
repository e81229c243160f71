//! SEAL/1: handshake, keys and records of sealed iSCSI (docs/SEAL.md). No I/O, no clock, no threads; randomness is an argument.
//!
//! A handshake ([`Initiator`], [`Responder`]) ends in a [`Channel`]: a [`Sealer`] for what is sent and an [`Opener`] for what
//! is received, and a [`Renewal`] that gives both fresh keys while the session lasts. They work on slices; who owns the memory, and
//! which unit lies where, is the caller's business.
//!
//! Read docs/SEAL.md section 5 before touching a nonce.

#![forbid(unsafe_code)]

mod enrolment;
mod handshake;
mod head;
mod identity;
mod limits;
mod noise;
mod opener;
mod renewal;
mod schedule;
mod sealer;
mod stack;
mod suite;
#[cfg(test)]
mod tests;

pub use enrolment::{Enquirer, answer_enquiry};
pub use handshake::{Claim, FirstFlight, Initiator, Responder};
pub use head::{Descriptor, Descriptors, Kind, parse_head};
pub use identity::{Identity, PublicKey};
pub use opener::{Head, Opener};
pub use renewal::{ENTROPY_BYTES as RENEWAL_ENTROPY_BYTES, Renewal};
pub use sealer::Sealer;
pub use suite::Suite;

use limits::Limits;
use schedule::Ratchet;

/// Bytes of a record's prefix.
pub const PREFIX_BYTES: usize = 4;
/// Bytes of a basic header segment.
pub const BHS_BYTES: usize = 48;
/// Bytes of a tag, of heads and units, in every suite.
pub const TAG_BYTES: usize = 16;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 28;
/// Most descriptors in one head.
pub const DESCRIPTORS_MAX: usize = 32;
/// Longest head: BHS, the longest AHS, descriptors.
pub const HEAD_BYTES_MAX: usize = BHS_BYTES + 255 * 4 + DESCRIPTORS_MAX * DESCRIPTOR_BYTES;
/// Unit size unless there is a reason, bytes.
pub const UNIT_BYTES: u32 = 64 << 10;
/// Smallest and largest unit size, bytes; powers of two.
pub const UNIT_BYTES_MIN: u32 = 512;
/// Largest unit size, bytes.
pub const UNIT_BYTES_MAX: u32 = 1 << 20;
/// Longest unit of a data segment that belongs to no command, bytes.
pub const SEGMENT_UNIT_BYTES_MAX: usize = 64 << 10;

/// Whatever is wrong with what a peer sent: there is one error, so that it tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the seal is broken: not what the peer sent, or not the peer")]
pub struct Broken;

/// Both directions of a connection.
#[derive(Debug)]
pub struct Channel {
    /// What we send.
    pub sealer: Sealer,
    /// What we receive.
    pub opener: Opener,
    /// Fresh keys for both.
    pub renewal: Renewal,
}

impl Channel {
    fn initiator(ours: Ratchet, theirs: Ratchet) -> Self {
        Self::new(ours, theirs, Renewal::initiator())
    }

    fn target(ours: Ratchet, theirs: Ratchet) -> Self {
        Self::new(ours, theirs, Renewal::target())
    }

    fn new(ours: Ratchet, theirs: Ratchet, renewal: Renewal) -> Self {
        Self {
            sealer: Sealer::new(ours, &Limits::SPECIFIED),
            opener: Opener::new(theirs, &Limits::SPECIFIED),
            renewal,
        }
    }
}
