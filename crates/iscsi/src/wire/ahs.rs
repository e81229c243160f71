//! Additional header segments (RFC 7143 §11.2.2).
//!
//! An AHS is AHSLength (2 bytes), AHSType (1), a type-specific byte, then the rest, padded to four. AHSLength counts
//! from the type-specific byte on, without padding: 5 for the read length, CDB length - 15 for an extended CDB.

use super::{AHS_LENGTH_MAX, WireError};

const TYPE_EXTENDED_CDB: u8 = 1;
const TYPE_BIDI_READ_LENGTH: u8 = 2;

/// One additional header segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahs<'a> {
    /// The CDB's bytes from the 17th on; may include up to three bytes that the sender did not mark as padding.
    ExtendedCdb(&'a [u8]),
    /// Expected read data length of a bidirectional command, bytes.
    BidiReadLength(u32),
    /// A type the standard does not define.
    Other(u8),
}

/// Walks the AHS area of one PDU. Ends after the first error.
#[derive(Debug, Clone)]
pub struct AhsIter<'a> {
    rest: &'a [u8],
}

impl<'a> AhsIter<'a> {
    /// `area` is all the bytes that TotalAHSLength announced.
    #[must_use]
    pub const fn new(area: &'a [u8]) -> Self {
        Self { rest: area }
    }
}

impl<'a> Iterator for AhsIter<'a> {
    type Item = Result<Ahs<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let [high, low, kind, ..] = *rest else {
            return Some(Err(WireError::MalformedAhs));
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        // 3 bytes of length and type, then `length`, padded to four.
        let total = (3 + length).next_multiple_of(4);
        if length == 0 || rest.len() < total {
            return Some(Err(WireError::MalformedAhs));
        }
        let body = &rest[4..3 + length];
        let ahs = match kind & 0x3f {
            TYPE_EXTENDED_CDB if !body.is_empty() => Ahs::ExtendedCdb(body),
            TYPE_BIDI_READ_LENGTH => match *body {
                [a, b, c, d] => Ahs::BidiReadLength(u32::from_be_bytes([a, b, c, d])),
                _ => return Some(Err(WireError::MalformedAhs)),
            },
            TYPE_EXTENDED_CDB => return Some(Err(WireError::MalformedAhs)),
            other => Ahs::Other(other),
        };
        self.rest = &rest[total..];
        Some(Ok(ahs))
    }
}

/// Appends the AHS that carries `tail`, the CDB's bytes from the 17th on, padded.
///
/// Panics when `tail` is empty or exceeds what a CDB can have (260 bytes in all).
pub fn emit_extended_cdb(tail: &[u8], area: &mut Vec<u8>) {
    assert!((1..=260 - 16).contains(&tail.len()), "extended CDB of {} bytes", tail.len());
    let length = u16::try_from(tail.len() + 1).expect("bounded above");
    area.extend_from_slice(&length.to_be_bytes());
    area.extend_from_slice(&[TYPE_EXTENDED_CDB, 0]);
    area.extend_from_slice(tail);
    area.resize(area.len().next_multiple_of(4), 0);
    assert!(area.len() <= AHS_LENGTH_MAX);
}

/// Appends the AHS that carries the expected read length of a bidirectional command, in bytes.
pub fn emit_bidi_read_length(read_length: u32, area: &mut Vec<u8>) {
    area.extend_from_slice(&[0, 5, TYPE_BIDI_READ_LENGTH, 0]);
    area.extend_from_slice(&read_length.to_be_bytes());
    assert!(area.len() <= AHS_LENGTH_MAX);
}
