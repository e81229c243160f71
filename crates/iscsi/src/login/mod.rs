//! The login phase, both roles (RFC 7143 §6.3, §12.1). Section numbers in these files are those of RFC 7143.
//!
//! A login is a strict alternation of requests and responses. Each machine takes one parsed PDU with its text and
//! returns the next action as a `Step`. The machines keep no time: the caller bounds the duration of a login. The text
//! comes from an unauthenticated peer: PDUs, bytes and pairs are counted, with lower bounds before authentication than
//! after.
//!
//! Read §6.3.1 (stages), §6.2.1 (continuation) and §12.1.3 (CHAP) before changing the state transitions.

use crate::chap::{Secret, USER_LENGTH_MAX};
use crate::text::Pair;

pub mod initiator;
pub mod outer;
pub mod target;

/// Largest data segment of a login PDU, bytes: the default MaxRecvDataSegmentLength (§13.12).
pub const SEGMENT_LENGTH_MAX: usize = 8192;
/// Smallest limit on the data segments that this side sends, bytes. It is below the smallest value that a peer can
/// declare (512), so that tests can force continuation.
pub const SEGMENT_LENGTH_MIN: usize = 64;
/// Most requests of one login before the initiator has authenticated. 16 KiB of text in segments of 512 bytes take 32.
pub const REQUESTS_BEFORE_AUTHENTICATION_MAX: u32 = 48;
/// Most requests (or responses) of one login.
pub const REQUESTS_MAX: u32 = 192;

/// Key within a sealed session: the initiator's list of versions, the target's announcement of its next static key
/// (docs/SEAL.md section 9).
pub const NEXT_KEY: &str = "X-example.hikyaku.next-key";
/// The version of announcements that both machines of this crate know.
const NEXT_KEY_VERSION: &str = "1";
/// Most bytes of an announcement.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 128;

/// What a target's answer to [`NEXT_KEY`] says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NextKey {
    /// Nothing: the key was not sent, or the target does not understand it.
    #[default]
    Unsaid,
    /// The target keeps its key.
    Kept,
    /// An announcement, as it was received: not verified.
    Announced(Vec<u8>),
}

const _: () = assert!(REQUESTS_BEFORE_AUTHENTICATION_MAX < REQUESTS_MAX);
const _: () = assert!(
    crate::text::TEXT_BEFORE_AUTHENTICATION_MAX / (crate::params::SEGMENT_LENGTH_MIN as usize)
        < REQUESTS_BEFORE_AUTHENTICATION_MAX as usize
);

/// A CHAP user with its secret, whose memory is zeroed when dropped.
#[derive(Debug, Clone)]
pub struct ChapAccount {
    /// CHAP_N, 1..=255 bytes.
    pub user: String,
    /// Secret of 1 to 255 bytes.
    pub secret: Secret,
}

impl ChapAccount {
    fn is_valid(&self) -> bool {
        (1..=USER_LENGTH_MAX).contains(&self.user.len()) && !self.user.contains('\0')
    }
}

#[derive(Debug, Default)]
struct SecurityKeys<'a> {
    auth_method: Option<&'a str>,
    algorithm: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
}

enum Taken {
    Yes,
    NotSecurity,
    Duplicate,
}

impl<'a> SecurityKeys<'a> {
    fn take(&mut self, pair: &Pair<'a>) -> Taken {
        let place = match pair.key {
            "AuthMethod" => &mut self.auth_method,
            "CHAP_A" => &mut self.algorithm,
            "CHAP_I" => &mut self.identifier,
            "CHAP_C" => &mut self.challenge,
            "CHAP_N" => &mut self.name,
            "CHAP_R" => &mut self.response,
            _ => return Taken::NotSecurity,
        };
        if place.replace(pair.value).is_some() { Taken::Duplicate } else { Taken::Yes }
    }

    const fn has_chap(&self) -> bool {
        self.algorithm.is_some()
            || self.identifier.is_some()
            || self.challenge.is_some()
            || self.name.is_some()
            || self.response.is_some()
    }

    const fn is_empty(&self) -> bool {
        self.auth_method.is_none() && !self.has_chap()
    }
}

#[cfg(test)]
mod tests;
