//! The outer login of a sealed session, both roles (docs/SEAL.md §2): two requests and two responses that agree on a
//! suite and carry a key exchange. The login that makes the session begins anew behind it, in records.
//!
//! ```text
//! initiator ── request 1: names, method, suites, unit, pattern ─► target: Offered ─► choose | decline | refuse
//! Chosen ◄──── response 1: method, suite, unit, pattern, nonce ─
//! send_message ─ request 2: message ────────────────────────────► Message ─► answer | refuse
//! Answer ◄──── response 2: message ─────────────────────────────            then records, in both directions
//! ```
//!
//! No cryptography is known here. Messages are opaque; [`Transcript`] is what the handshake has to bind, so that what
//! somebody altered on the way makes the next message fail. Until then nothing of the other side is believed: it is
//! bounded and checked. Unlike the ordinary login nothing is forgiven either, as no older implementation has to be
//! met: keys are exactly those of the table, flags are zero, PDUs come in turn.

use std::time::Duration;

use super::SEGMENT_LENGTH_MAX;
use crate::limits;
use crate::machine::{Digests, Fatal, Machine, Payload, Placement, Received, Transmit};
use crate::text::{self, Pair, TextError, parse_binary, parse_list, parse_number};
use crate::wire::{Stage, WireError};

pub mod initiator;
pub mod target;

/// The authentication method that asks for sealing.
pub const METHOD: &str = "Z-example.hikyaku.seal1";
/// Suites offered, or the one chosen.
pub const SUITE: &str = "X-example.hikyaku.suite";
/// Unit size in bytes.
pub const UNIT: &str = "X-example.hikyaku.unit";
/// Handshake pattern.
pub const PATTERN: &str = "X-example.hikyaku.pattern";
/// Random bytes of the target, fresh for each connection: request 2 of another connection is not valid in this one.
pub const NONCE: &str = "X-example.hikyaku.nonce";
/// Handshake message.
pub const MESSAGE: &str = "X-example.hikyaku.message";

/// Smallest unit, bytes.
pub const UNIT_MIN: u32 = 512;
/// Largest unit, bytes.
pub const UNIT_MAX: u32 = 1 << 20;
/// Most suites in an offer.
pub const SUITES_MAX: usize = 16;
/// Longest name of a suite, bytes.
pub const SUITE_LENGTH_MAX: usize = 64;
/// Length of a nonce, bytes.
pub const NONCE_BYTES: usize = 16;
/// Longest handshake message, bytes.
pub const MESSAGE_MAX: usize = 4096;

// A message and its key fit one PDU: base64 makes four bytes of three.
const _: () = assert!(MESSAGE.len() + "=0b\0".len() + MESSAGE_MAX.div_ceil(3) * 4 <= SEGMENT_LENGTH_MAX);
// So does the offer, with both names.
const _: () = assert!(
    1024 + 2 * crate::name::NAME_LENGTH_MAX + SUITES_MAX * (SUITE_LENGTH_MAX + 1) <= SEGMENT_LENGTH_MAX
);
const _: () = assert!(UNIT_MIN.is_power_of_two() && UNIT_MAX.is_power_of_two() && UNIT_MIN < UNIT_MAX);

/// What the handshake is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// A session between two that know each other's keys.
    IkPsk2,
    /// Enrolment: the target shows its public key; no session follows.
    Xx,
}

impl Pattern {
    /// Its name on the wire.
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

/// What was agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// One of the suites offered.
    pub suite: String,
    /// Unit size in bytes: the smaller of both wishes.
    pub unit: u32,
    /// The pattern asked for.
    pub pattern: Pattern,
}

/// What was said before the first message: header and data segment, without padding, of request 1 and response 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    /// Request 1.
    pub p1: Vec<u8>,
    /// Response 1.
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

/// Whether this is a unit size.
fn is_unit(bytes: u32) -> bool {
    bytes.is_power_of_two() && (UNIT_MIN..=UNIT_MAX).contains(&bytes)
}

/// Whether this is how a suite may be called.
fn is_suite(name: &str) -> bool {
    (1..=SUITE_LENGTH_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// Whether AuthMethod names our method. To be asked of any bytes: what does not is another kind of login, in which our
/// rules are not to be applied.
fn names_method(segment: &[u8]) -> bool {
    let lists = segment.split(|&byte| byte == 0).filter_map(|pair| pair.strip_prefix(b"AuthMethod="));
    lists.flat_map(|list| list.split(|&byte| byte == b',')).any(|method| method == METHOD.as_bytes())
}

/// What the peer did that ends the login.
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

/// The stage and flags that every PDU has.
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

    /// One that must be there. What is there twice stays for [`Keys::end`] to find.
    fn take(&mut self, key: &'static str) -> Result<&'a str, Violation> {
        let at = self.0.iter().position(|pair| pair.key == key).ok_or(Violation::Missing(key))?;
        Ok(self.0.swap_remove(at).value)
    }

    fn unit(&mut self) -> Result<u32, Violation> {
        let unit = parse_number(self.take(UNIT)?).and_then(|unit| u32::try_from(unit).ok());
        unit.filter(|&unit| is_unit(unit)).ok_or(Violation::Malformed(UNIT))
    }

    fn suites(&mut self) -> Result<Vec<String>, Violation> {
        // One more than permitted is enough to know.
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

/// The text of request 2 and of response 2.
fn parse_message(segment: &[u8]) -> Result<Vec<u8>, Violation> {
    let mut keys = Keys::parse(segment)?;
    let value = keys.take(MESSAGE)?;
    keys.end()?;
    let message = value.starts_with("0b").then(|| parse_binary(value, MESSAGE_MAX)).flatten();
    message.ok_or(Violation::Malformed(MESSAGE))
}

/// Panics when the message is empty or longer than [`MESSAGE_MAX`].
fn emit_message(message: &[u8]) -> Vec<u8> {
    assert!((1..=MESSAGE_MAX).contains(&message.len()), "a handshake message of {} bytes", message.len());
    let mut text = Vec::new();
    text::emit(MESSAGE, &text::base64(message), &mut text);
    text
}

/// Header and data segment.
fn joined(header: &[u8; 48], segment: &[u8]) -> Vec<u8> {
    [header, segment].concat()
}

/// What both machines do alike: whole PDUs in, one out, and a deadline.
#[derive(Debug)]
struct Line {
    header: [u8; 48],
    ahs: Vec<u8>,
    /// The data segment of `header` is on its way.
    awaits_data: bool,
    queued: Option<Transmit>,
    deadline: Duration,
}

impl Line {
    const fn new(deadline: Duration) -> Self {
        Self { header: [0; 48], ahs: Vec::new(), awaits_data: false, queued: None, deadline }
    }

    /// Keeps a header. Whether that is the whole PDU.
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

    /// The text of a PDU; it is whole with it.
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

    /// No digest, no AHS is part of an outer login; nothing would bind them.
    fn check_ahs(&self) -> Result<(), Violation> {
        if self.ahs.is_empty() { Ok(()) } else { Err(Violation::Field("TotalAHSLength")) }
    }
}

/// What tells the machines of both roles apart. The rest of a [`Machine`] is alike.
trait Side {
    fn line(&self) -> &Line;
    fn line_mut(&mut self) -> &mut Line;
    fn has_ended(&self) -> bool;
    /// A whole PDU: its header is in the line, this is its text.
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
