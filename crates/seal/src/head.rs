//! The bytes of prefixes, heads and descriptors (docs/SEAL.md section 5).

use crate::renewal::{ANSWER_BYTES, OFFER_BYTES};
use crate::{BHS_BYTES, Broken, DESCRIPTOR_BYTES, DESCRIPTORS_MAX, HEAD_BYTES_MAX, PREFIX_BYTES, TAG_BYTES};

/// Protocol version in every prefix.
pub(crate) const VERSION: u8 = 1;

/// Describes a unit that begins in the record of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Generation (upper 16 bits) and number; never reused.
    pub seal_id: u64,
    /// Length of the unit, bytes.
    pub length: u32,
    pub tag: [u8; TAG_BYTES],
}

impl Descriptor {
    /// The generation whose data key sealed the unit.
    pub fn generation(&self) -> u16 {
        (self.seal_id >> 48) as u16
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.seal_id.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        out.extend_from_slice(&self.tag);
    }
}

/// The descriptors of an opened head, in order. The iterator parses without allocation.
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

/// Splits an opened head into header (BHS and AHS) and descriptors, which must fill it exactly.
pub fn parse_head(head: &[u8]) -> Result<(&[u8], Descriptors<'_>), Broken> {
    if head.len() < BHS_BYTES || head.len() > HEAD_BYTES_MAX {
        return Err(Broken);
    }
    let (header, rest) = head.split_at_checked(header_bytes(head)).ok_or(Broken)?;
    let descriptors = rest.chunks_exact(DESCRIPTOR_BYTES);
    if !descriptors.remainder().is_empty() || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Broken);
    }
    Ok((header, Descriptors(descriptors)))
}

/// Bytes of BHS and AHS, by the BHS: TotalAHSLength counts words (RFC 7143 §11.2.1.5).
pub(crate) fn header_bytes(bhs: &[u8]) -> usize {
    BHS_BYTES + usize::from(bhs[4]) * 4
}

/// Content of a record: the upper five bits of the last two bytes of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pdu,
    /// The initiator's message of an exchange ([`crate::Renewal`]).
    Offer,
    Answer,
}

/// Bits of a prefix that hold the length of the head, bytes.
const LENGTH_BITS: u32 = 11;
const LENGTH_MASK: u16 = (1 << LENGTH_BITS) - 1;

const _: () = assert!(HEAD_BYTES_MAX <= LENGTH_MASK as usize);
const _: () = assert!(OFFER_BYTES <= HEAD_BYTES_MAX && ANSWER_BYTES <= HEAD_BYTES_MAX);

impl Kind {
    fn from_bits(bits: u16) -> Option<Self> {
        [Self::Pdu, Self::Offer, Self::Answer].into_iter().find(|kind| *kind as u16 == bits)
    }

    fn admits(self, head_bytes: usize) -> bool {
        match self {
            Self::Pdu => (BHS_BYTES..=HEAD_BYTES_MAX).contains(&head_bytes),
            Self::Offer => head_bytes == OFFER_BYTES,
            Self::Answer => head_bytes == ANSWER_BYTES,
        }
    }
}

/// The prefix of a head of `head_bytes`.
pub(crate) fn emit_prefix(generation: u16, kind: Kind, head_bytes: usize) -> [u8; PREFIX_BYTES] {
    assert!(kind.admits(head_bytes), "a head of {head_bytes} bytes");
    let [high, low] = ((kind as u16) << LENGTH_BITS | head_bytes as u16).to_be_bytes();
    [VERSION, generation as u8, high, low]
}

/// Parses generation mod 256, kind and length of the head.
pub(crate) fn parse_prefix(prefix: [u8; PREFIX_BYTES]) -> Result<(u8, Kind, usize), Broken> {
    let [version, generation, high, low] = prefix;
    let last = u16::from_be_bytes([high, low]);
    let kind = Kind::from_bits(last >> LENGTH_BITS).ok_or(Broken)?;
    let head_bytes = usize::from(last & LENGTH_MASK);
    if version != VERSION || !kind.admits(head_bytes) {
        return Err(Broken);
    }
    Ok((generation, kind, head_bytes))
}
