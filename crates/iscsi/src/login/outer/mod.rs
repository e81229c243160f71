//! The outer login of a sealed session, both roles (docs/SEAL.md §2): two requests and two responses that agree on a
//! suite and carry a key exchange. The ordinary login that establishes the session follows inside records.
//!
//! ```text
//! initiator ── request 1: names, method, suites, unit, pattern ─► target: Offered ─► choose | decline | refuse
//! Chosen ◄──── response 1: method, suite, unit, pattern, nonce ─
//! send_message ─ request 2: message ────────────────────────────► Message ─► answer | refuse
//! Answer ◄──── response 2: message ─────────────────────────────            then records, in both directions
//! ```
//!
//! The module contains no cryptography. Messages are opaque; the handshake binds the [`Transcript`], so that a PDU
//! altered in transit makes the next message fail. Until then the peer's input is unauthenticated: it is bounded and
//! checked. Unlike the ordinary login, the parsers accept no deviations, because no older implementation exists: each
//! PDU has exactly its keys, flags are zero, PDUs arrive in turn.

use std::time::Duration;

use super::SEGMENT_LENGTH_MAX;
use crate::limits;
use crate::machine::{Digests, Fatal, Machine, Payload, Placement, Received, Transmit};
use crate::text::{self, Pair, TextError, parse_binary, parse_list, parse_number};
use crate::wire::{Stage, WireError};

pub mod initiator;
pub mod target;

/// The authentication method that requests sealing.
pub const METHOD: &str = "Z-example.hikyaku.seal1";
pub const SUITE: &str = "X-example.hikyaku.suite";
pub const UNIT: &str = "X-example.hikyaku.unit";
pub const PATTERN: &str = "X-example.hikyaku.pattern";
/// Key of the target's random bytes, fresh for each connection: request 2 of one connection is invalid in any other.
pub const NONCE: &str = "X-example.hikyaku.nonce";
pub const MESSAGE: &str = "X-example.hikyaku.message";

pub const UNIT_MIN: u32 = 512;
pub const UNIT_MAX: u32 = 1 << 20;
pub const SUITES_MAX: usize = 16;
pub const SUITE_LENGTH_MAX: usize = 64;
pub const NONCE_BYTES: usize = 16;
pub const MESSAGE_MAX: usize = 4096;

// A message and its key fit in one PDU: base64 encodes three bytes as four.
const _: () = assert!(MESSAGE.len() + "=0b\0".len() + MESSAGE_MAX.div_ceil(3) * 4 <= SEGMENT_LENGTH_MAX);
// The offer fits in one PDU, with both names.
const _: () = assert!(
    1024 + 2 * crate::name::NAME_LENGTH_MAX + SUITES_MAX * (SUITE_LENGTH_MAX + 1) <= SEGMENT_LENGTH_MAX
);
const _: () = assert!(UNIT_MIN.is_power_of_two() && UNIT_MAX.is_power_of_two() && UNIT_MIN < UNIT_MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// A session between two peers that have each other's public keys.
    IkPsk2,
    /// Enrolment: the target sends its public key; no session follows.
    Xx,
}

impl Pattern {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IkPsk2 => "IKpsk2",
            Self::Xx => "XX",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::IkPsk2, Self::Xx].into_iter().find(|pattern| pattern.as_str() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub suite: String,
    /// Unit size in bytes: the smaller of both sides' sizes.
    pub unit: u32,
    /// The pattern that the initiator requested.
    pub pattern: Pattern,
}

/// The PDUs before the first message: header and data segment, without padding, of request 1 and response 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    pub p1: Vec<u8>,
    pub p2: Vec<u8>,
}

impl Transcript {
    /// The prologue of the handshake (docs/SEAL.md §3).
    #[must_use]
    pub fn prologue(&self) -> Vec<u8> {
        let mut prologue = b"hikyaku SEAL/1".to_vec();
        for part in [&self.p1, &self.p2] {
            let length = u32::try_from(part.len()).expect("a PDU of the login");
            prologue.extend_from_slice(&length.to_be_bytes());
            prologue.extend_from_slice(part);
        }
        prologue
    }
}

fn is_unit(bytes: u32) -> bool {
    bytes.is_power_of_two() && (UNIT_MIN..=UNIT_MAX).contains(&bytes)
}

/// Whether `name` has 1 to 64 graphic ASCII characters without a comma.
fn is_suite(name: &str) -> bool {
    (1..=SUITE_LENGTH_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// Whether AuthMethod names [`METHOD`]. Accepts arbitrary bytes: a segment without the method belongs to another kind
/// of login, to which the rules of this module do not apply.
fn names_method(segment: &[u8]) -> bool {
    let lists = segment.split(|&byte| byte == 0).filter_map(|pair| pair.strip_prefix(b"AuthMethod="));
    lists.flat_map(|list| list.split(|&byte| byte == b',')).any(|method| method == METHOD.as_bytes())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Violation {
    #[error("a PDU out of turn")]
    Turn,
    #[error(transparent)]
    Header(#[from] WireError),
    #[error("{0} is not what it has to be here")]
    Field(&'static str),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("malformed {0}")]
    Malformed(&'static str),
    #[error("a key twice, or one that has no place here")]
    Surplus,
    #[error("{0} was not offered")]
    NotOffered(&'static str),
}

impl From<Violation> for Fatal {
    fn from(violation: Violation) -> Self {
        Self::Login(format!("the outer login: {violation}"))
    }
}

fn check_flags(transit: bool, continues: bool, csg: Stage, tsih: u16) -> Result<(), Violation> {
    let fields = [
        (transit, "the T bit"),
        (continues, "the C bit"),
        (csg != Stage::Security, "CSG"),
        (tsih != 0, "TSIH"),
    ];
    fields.iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |&(_, field)| Err(Violation::Field(field)))
}

/// The pairs of a text that must have certain keys, each once, and no others.
struct Keys<'a>(Vec<Pair<'a>>);

impl<'a> Keys<'a> {
    fn parse(segment: &'a [u8]) -> Result<Self, Violation> {
        Ok(Self(text::parse(segment)?))
    }

    /// Removes a required key and returns its value. A duplicate remains for [`Keys::end`] to find.
    fn take(&mut self, key: &'static str) -> Result<&'a str, Violation> {
        let at = self.0.iter().position(|pair| pair.key == key).ok_or(Violation::Missing(key))?;
        Ok(self.0.swap_remove(at).value)
    }

    fn unit(&mut self) -> Result<u32, Violation> {
        let unit = parse_number(self.take(UNIT)?).and_then(|unit| u32::try_from(unit).ok());
        unit.filter(|&unit| is_unit(unit)).ok_or(Violation::Malformed(UNIT))
    }

    fn suites(&mut self) -> Result<Vec<String>, Violation> {
        // One more than permitted suffices to detect the excess.
        let suites: Vec<_> = parse_list(self.take(SUITE)?).take(SUITES_MAX + 1).collect();
        if suites.len() > SUITES_MAX || !suites.iter().all(|suite| is_suite(suite)) {
            return Err(Violation::Malformed(SUITE));
        }
        Ok(suites.into_iter().map(str::to_owned).collect())
    }

    fn pattern(&mut self) -> Result<Pattern, Violation> {
        Pattern::parse(self.take(PATTERN)?).ok_or(Violation::Malformed(PATTERN))
    }

    fn nonce(&mut self) -> Result<(), Violation> {
        let value = self.take(NONCE)?;
        let nonce = value.starts_with("0b").then(|| parse_binary(value, NONCE_BYTES)).flatten();
        nonce.filter(|nonce| nonce.len() == NONCE_BYTES).map(drop).ok_or(Violation::Malformed(NONCE))
    }

    fn end(self) -> Result<(), Violation> {
        if self.0.is_empty() { Ok(()) } else { Err(Violation::Surplus) }
    }
}

fn parse_message(segment: &[u8]) -> Result<Vec<u8>, Violation> {
    let mut keys = Keys::parse(segment)?;
    let value = keys.take(MESSAGE)?;
    keys.end()?;
    let message = value.starts_with("0b").then(|| parse_binary(value, MESSAGE_MAX)).flatten();
    message.ok_or(Violation::Malformed(MESSAGE))
}

/// Panics if the message is empty or longer than [`MESSAGE_MAX`].
fn emit_message(message: &[u8]) -> Vec<u8> {
    assert!((1..=MESSAGE_MAX).contains(&message.len()), "a handshake message of {} bytes", message.len());
    let mut text = Vec::new();
    text::emit(MESSAGE, &text::base64(message), &mut text);
    text
}

fn joined(header: &[u8; 48], segment: &[u8]) -> Vec<u8> {
    [header, segment].concat()
}

/// State shared by both machines: one PDU being received, one queued PDU to send, and a deadline.
#[derive(Debug)]
struct Line {
    header: [u8; 48],
    ahs: Vec<u8>,
    /// The data segment of `header` has not arrived.
    awaits_data: bool,
    queued: Option<Transmit>,
    deadline: Duration,
}

impl Line {
    const fn new(deadline: Duration) -> Self {
        Self { header: [0; 48], ahs: Vec::new(), awaits_data: false, queued: None, deadline }
    }

    /// Stores a header. Returns whether the PDU is complete without a data segment.
    fn on_header(&mut self, bhs: &[u8; 48], ahs: &[u8]) -> Result<bool, Fatal> {
        let length = crate::wire::Bhs(bhs).data_segment_length();
        if length as usize > SEGMENT_LENGTH_MAX {
            return Err(Fatal::Protocol("data segment above the 8192 bytes of a login"));
        }
        self.header = *bhs;
        self.ahs = ahs.to_vec();
        self.awaits_data = length > 0;
        Ok(!self.awaits_data)
    }

    fn on_data<'a>(&mut self, data: Received<'a>) -> Result<&'a [u8], Fatal> {
        match data {
            Received::Inline(segment) if std::mem::take(&mut self.awaits_data) => Ok(segment),
            _ => Err(Fatal::Protocol("a data segment that is no login text")),
        }
    }

    const fn placement(&self) -> Placement {
        if self.awaits_data { Placement::Inline } else { Placement::Nothing }
    }

    fn send(&mut self, header: [u8; 48], text: Vec<u8>) {
        let payload = if text.is_empty() { Payload::None } else { Payload::Bytes(text) };
        self.queued = Some(Transmit { header, payload, digests: Digests::default() });
    }

    /// An outer login has no digests and no AHS; the transcript would not bind them.
    fn check_ahs(&self) -> Result<(), Violation> {
        if self.ahs.is_empty() { Ok(()) } else { Err(Violation::Field("TotalAHSLength")) }
    }
}

/// The part of a [`Machine`] that differs by role.
trait Side {
    fn line(&self) -> &Line;
    fn line_mut(&mut self) -> &mut Line;
    fn has_ended(&self) -> bool;
    /// Handles a complete PDU: its header is in the line, `segment` is its text.
    fn on_pdu(&mut self, segment: &[u8]) -> Result<(), Fatal>;
}

impl<S: Side> Machine for S {
    fn receive_digests(&self) -> Digests {
        Digests::default()
    }

    fn data_segment_max(&self) -> u32 {
        limits::LOGIN_SEGMENT_MAX
    }

    fn on_header(&mut self, bhs: &[u8; 48], ahs: &[u8], _now: Duration) -> Result<(), Fatal> {
        if self.line_mut().on_header(bhs, ahs)? { self.on_pdu(&[]) } else { Ok(()) }
    }

    fn on_header_digest_error(&mut self) -> Fatal {
        Fatal::HeaderDigest
    }

    fn placement(&self) -> Placement {
        self.line().placement()
    }

    fn on_data(&mut self, data: Received<'_>, _now: Duration) -> Result<(), Fatal> {
        let segment = self.line_mut().on_data(data)?;
        self.on_pdu(segment)
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        self.line_mut().queued.take()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        (!self.has_ended()).then_some(self.line().deadline)
    }

    fn on_timeout(&mut self, now: Duration) -> Result<(), Fatal> {
        if self.poll_timeout().is_some_and(|due| now >= due) { Err(Fatal::LoginTimeout) } else { Ok(()) }
    }
}
