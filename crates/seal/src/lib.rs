//! SEAL/1: handshake, keys and records of sealed iSCSI (docs/SEAL.md). No I/O, no clock, no threads; randomness is an argument.
//!
//! A handshake ([`Initiator`], [`Responder`]) ends in a [`Channel`]: a [`Sealer`] for what is sent and an [`Opener`] for what
//! is received. Both work on slices; who owns the memory, and which unit lies where, is the caller's business.
//!
//! Read docs/SEAL.md section 5 before touching a nonce.

use std::time::Duration;

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

/// How units and heads are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-256-GCM, the default.
    Aes256Gcm,
    /// AEGIS-256X4.
    Aegis256X4,
    /// AEGIS-128X2.
    Aegis128X2,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Suite {
    /// All, in our order of preference.
    pub const ALL: [Self; 4] = [Self::Aes256Gcm, Self::Aegis256X4, Self::Aegis128X2, Self::ChaCha20Poly1305];

    /// As the protocol writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "AES-256-GCM",
            Self::Aegis256X4 => "AEGIS-256X4",
            Self::Aegis128X2 => "AEGIS-128X2",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        }
    }

    /// By its name, exactly.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }
}

/// Whatever is wrong with what a peer sent: there is one error, so that it tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the seal is broken: not what the peer sent, or not the peer")]
pub struct Broken;

/// What a head says of a unit that begins in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Generation and number; never used twice.
    pub seal_id: u64,
    /// Bytes of the unit.
    pub length: u32,
    /// Its tag.
    pub tag: [u8; TAG_BYTES],
}

impl Descriptor {
    /// The generation whose data key sealed the unit.
    pub fn generation(&self) -> u16 {
        (self.seal_id >> 48) as u16
    }
}

/// The descriptors of an opened head, in order; parsed as they are asked for, so nothing is allocated.
#[derive(Clone, Debug)]
pub struct Descriptors<'a>(std::slice::ChunksExact<'a, u8>);

impl Iterator for Descriptors<'_> {
    type Item = Descriptor;

    fn next(&mut self) -> Option<Descriptor> {
        let bytes = self.0.next()?;
        let (seal_id, rest) = bytes.split_first_chunk()?;
        let (length, tag) = rest.split_first_chunk()?;
        Some(Descriptor {
            seal_id: u64::from_be_bytes(*seal_id),
            length: u32::from_be_bytes(*length),
            tag: tag.try_into().ok()?,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Descriptors<'_> {}

/// A static X25519 key pair. The private half is wiped when dropped, and never shown.
pub struct Identity;

/// A static X25519 public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// From 44 characters of base64, as WireGuard writes keys.
    pub fn parse(_text: &str) -> Option<Self> {
        todo!()
    }
}
// impl Display for PublicKey: 44 characters of base64.

impl Identity {
    /// A new one from fresh entropy.
    pub fn generate(_entropy: [u8; 32]) -> Self {
        todo!()
    }

    /// From the 44 characters of base64 of its private half; `None` if it is not that.
    pub fn parse(_text: &str) -> Option<Self> {
        todo!()
    }

    /// The 44 characters of base64 to keep in a file; wiped when dropped (`zeroize::Zeroizing<String>`).
    pub fn to_text(&self) -> String {
        todo!()
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        todo!()
    }
}

/// The initiator's half of an IKpsk2 handshake.
pub struct Initiator;

impl Initiator {
    /// Makes message 1. `prologue` is SEAL.md section 3's; `psk` is P.
    pub fn start(
        _identity: &Identity,
        _target: PublicKey,
        _prologue: &[u8],
        _psk: Option<&[u8; 32]>,
        _suite: Suite,
        _entropy: [u8; 128],
    ) -> (Self, Vec<u8>) {
        todo!()
    }

    /// Takes the answer.
    pub fn finish(self, _answer: &[u8]) -> Result<Channel, Broken> {
        todo!()
    }
}

/// The target's half: message 1 was read, the caller looks up who that is.
pub struct Responder;

impl Responder {
    /// Reads message 1.
    pub fn read(_identity: &Identity, _prologue: &[u8], _message: &[u8]) -> Result<Self, Broken> {
        todo!()
    }

    /// Whose message it was; proven only when the first record opens.
    pub fn initiator(&self) -> PublicKey {
        todo!()
    }

    /// The answer, and the keys.
    pub fn finish(
        self,
        _psk: Option<&[u8; 32]>,
        _suite: Suite,
        _entropy: [u8; 128],
    ) -> Result<(Vec<u8>, Channel), Broken> {
        todo!()
    }
}

/// Enrolment (XX), the asking side.
pub struct Enquirer;

impl Enquirer {
    /// Makes message 1.
    pub fn start(_prologue: &[u8], _entropy: [u8; 128]) -> (Self, Vec<u8>) {
        todo!()
    }

    /// Who answered.
    pub fn finish(self, _answer: &[u8]) -> Result<PublicKey, Broken> {
        todo!()
    }
}

/// Enrolment (XX), the answering side: message 2 for message 1.
pub fn answer_enquiry(
    _identity: &Identity,
    _prologue: &[u8],
    _message: &[u8],
    _entropy: [u8; 128],
) -> Result<Vec<u8>, Broken> {
    todo!()
}

/// Both directions of a connection.
pub struct Channel {
    /// What we send.
    pub sealer: Sealer,
    /// What we receive.
    pub opener: Opener,
}

/// The sending direction.
pub struct Sealer;

impl Sealer {
    /// Seals a unit where it lies.
    pub fn seal_in_place(&mut self, _unit: &mut [u8]) -> Descriptor {
        todo!()
    }

    /// Copies and seals a unit in one pass; both slices have the unit's length.
    pub fn seal_into(&mut self, _plain: &[u8], _sealed: &mut [u8]) -> Descriptor {
        todo!()
    }

    /// Appends prefix and sealed head to `out`. `header` is BHS and AHS; every descriptor must be one that
    /// [`Self::carries`] is true for.
    pub fn seal_head(&mut self, _header: &[u8], _descriptors: &[Descriptor], _out: &mut Vec<u8>) {
        todo!()
    }

    /// Whether a unit that was sealed ahead may still be sent: its generation is the current one or the one before.
    pub fn carries(&self, _descriptor: &Descriptor) -> bool {
        todo!()
    }

    /// Whether the next record should begin a generation: bytes, records, or an hour since the last. `now` is the
    /// time since the channel was made.
    pub fn is_due(&self, _now: Duration) -> bool {
        todo!()
    }

    /// Begins the next generation with the next head; `now` as in [`Self::is_due`]. Fails after generation 65535: the
    /// connection must end.
    pub fn rekey(&mut self, _now: Duration) -> Result<(), Broken> {
        todo!()
    }
}

/// The receiving direction.
pub struct Opener;

impl Opener {
    /// Bytes that follow a prefix up to the end of the sealed head (head and tag).
    pub fn sealed_head_bytes(&self, _prefix: [u8; PREFIX_BYTES]) -> Result<usize, Broken> {
        todo!()
    }

    /// Opens a sealed head where it lies; returns the head's length. The counter moves on only if it opens.
    pub fn open_head(&mut self, _prefix: [u8; PREFIX_BYTES], _sealed: &mut [u8]) -> Result<usize, Broken> {
        todo!()
    }

    /// Opens a whole unit where it lies. On an error the bytes are wiped (zero).
    pub fn open_unit(&mut self, _descriptor: &Descriptor, _unit: &mut [u8]) -> Result<(), Broken> {
        todo!()
    }
}

/// Splits an opened head into header (BHS and AHS) and descriptors, which must fill it exactly.
pub fn parse_head(head: &[u8]) -> Result<(&[u8], Descriptors<'_>), Broken> {
    if head.len() < BHS_BYTES || head.len() > HEAD_BYTES_MAX {
        return Err(Broken);
    }
    let header_bytes = BHS_BYTES + usize::from(head[4]) * 4; // TotalAHSLength, RFC 7143 §11.2.1.5
    let (header, rest) = head.split_at_checked(header_bytes).ok_or(Broken)?;
    let descriptors = rest.chunks_exact(DESCRIPTOR_BYTES);
    if !descriptors.remainder().is_empty() || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Broken);
    }
    Ok((header, Descriptors(descriptors)))
}
