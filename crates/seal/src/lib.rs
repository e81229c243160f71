//! SEAL/1: handshake, keys and records of sealed iSCSI (docs/SEAL.md). The crate has no I/O, clock or threads;
//! randomness is an argument.
//!
//! A handshake ([`Initiator`], [`Responder`]) ends in a [`Channel`]: a [`Sealer`] for the sending direction, an
//! [`Opener`] for the receiving one, and a [`Renewal`] that gives both fresh keys during the session. They work on
//! borrowed slices; the caller owns the memory and decides where each unit lies.
//!
//! Read docs/SEAL.md section 5 before changing a nonce.

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
mod successor;
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
pub use successor::{ANNOUNCEMENT_BYTES, Binding, Proven};
pub use suite::Suite;

use limits::Limits;
use schedule::Ratchet;

pub const PREFIX_BYTES: usize = 4;
pub const BHS_BYTES: usize = 48;
/// Bytes of the tag of a head or unit, in every suite.
pub const TAG_BYTES: usize = 16;
pub const DESCRIPTOR_BYTES: usize = 28;
pub const DESCRIPTORS_MAX: usize = 32;
/// Longest head: BHS, the longest AHS, descriptors.
pub const HEAD_BYTES_MAX: usize = BHS_BYTES + 255 * 4 + DESCRIPTORS_MAX * DESCRIPTOR_BYTES;
pub const UNIT_BYTES: u32 = 64 << 10;
/// Smallest unit size, bytes; a power of two.
pub const UNIT_BYTES_MIN: u32 = 512;
/// Largest unit size, bytes; a power of two.
pub const UNIT_BYTES_MAX: u32 = 1 << 20;
/// Longest unit of a data segment outside of a command, bytes.
pub const SEGMENT_UNIT_BYTES_MAX: usize = 64 << 10;

/// Any defect of the peer's input; one error for all reveals nothing to an attacker. The caller closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the seal is broken: not what the peer sent, or not the peer")]
pub struct Broken;

/// The keys of both directions of a connection. Each part has its own state; the caller uses them as their types say.
#[derive(Debug)]
pub struct Channel {
    pub sealer: Sealer,
    pub opener: Opener,
    pub renewal: Renewal,
    /// Binds announcements of next keys to this connection.
    pub binding: Binding,
}

impl Channel {
    fn initiator(ours: Ratchet, theirs: Ratchet, binding: Binding) -> Self {
        Self::new(ours, theirs, Renewal::initiator(), binding)
    }

    fn target(ours: Ratchet, theirs: Ratchet, binding: Binding) -> Self {
        Self::new(ours, theirs, Renewal::target(), binding)
    }

    fn new(ours: Ratchet, theirs: Ratchet, renewal: Renewal, binding: Binding) -> Self {
        Self {
            sealer: Sealer::new(ours, &Limits::SPECIFIED),
            opener: Opener::new(theirs, &Limits::SPECIFIED),
            renewal,
            binding,
        }
    }
}
