//! Additional header segments (RFC 7143 §11.2.2).
//!
//! An AHS is AHSLength (2 bytes), AHSType (1), a type-specific byte, then the rest, padded to four. AHSLength counts
//! from the type-specific byte on, without padding: 5 for the read length, CDB length - 15 for an extended CDB.

use super::{AHS_LENGTH_MAX, WireError};

const TYPE_EXTENDED_CDB: u8 = 1;
const TYPE_BIDI_READ_LENGTH: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahs<'a> {
    /// The CDB's bytes from the 17th on; may include up to three padding bytes that the sender counted in AHSLength.
    ExtendedCdb(&'a [u8]),
    /// Expected read data length of a bidirectional command, bytes.
    BidiReadLength(u32),
    Other(u8),
}

/// Iterator over the AHS area of one PDU. It ends after the first error.
#[derive(Debug, Clone)]
pub struct AhsIter<'a> {
    rest: &'a [u8],
}

impl<'a> AhsIter<'a> {
    /// `area` holds all bytes that TotalAHSLength announced.
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
        // 2 bytes AHSLength, 1 byte AHSType, `length` bytes, padded to four.
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

/// Appends the AHS that carries `tail`, the CDB's bytes from the 17th on, padded. Panics if `tail` is empty or longer
/// than 244 bytes (the longest CDB has 260).
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
