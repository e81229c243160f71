//! Splits the stream of a sealed connection into its visible parts: the PDUs of the outer login, then prefix, sealed
//! head, tag and body of each record (docs/SEAL.md, sections 2 and 5). Needs no key and no code of the product.
//!
//! Only the length of a body is hidden. The body ends at the next prefix, whose four bytes are improbable in
//! ciphertext: one false match is expected in 100 MB, and the search skips the units that must still follow. Rekeys are
//! not followed: generation 0 only.

use crate::pdu::data_length;

/// Unit of `hikyaku`, bytes.
const UNIT_BYTES: usize = 64 << 10;
/// PDUs of the outer login in each direction.
const OUTER_PDUS: u64 = 2;
const BHS_BYTES: usize = 48;
const PREFIX_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
const DESCRIPTOR_BYTES: usize = 28;
const DESCRIPTORS_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A PDU of the outer login, padding included.
    Outer,
    Prefix,
    Head,
    Tag,
    Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Counted from 0 in each direction: PDUs in the outer login, records after it.
    pub number: u64,
    pub part: Part,
    /// Offset of the first byte within the part.
    pub offset: usize,
    /// Units that begin in the record: 0 if there are none, and outside of records.
    pub units: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub place: Place,
    pub bytes: Vec<u8>,
}

impl Piece {
    pub fn begins_record(&self) -> bool {
        self.place.part == Part::Prefix && self.place.offset == 0
    }
}

#[derive(Clone, Debug)]
pub struct Records {
    place: Place,
    /// Bytes left in this part; unknown for a body.
    left: usize,
    records: u64,
    unit: usize,
    /// Bytes not yet classified: the beginning of a header or possibly of a prefix.
    held: Vec<u8>,
}

impl Default for Records {
    fn default() -> Self {
        let place = Place { number: 0, part: Part::Outer, offset: 0, units: 0 };
        Self { place, left: 0, records: 0, unit: UNIT_BYTES, held: Vec::new() }
    }
}

/// Number of descriptors of the record that a prefix announces; `None` if the bytes are no prefix.
fn units_of(prefix: &[u8]) -> Option<usize> {
    let [1, 0, high, low] = *prefix else { return None };
    let rest = usize::from(u16::from_be_bytes([high, low])).checked_sub(BHS_BYTES)?;
    (rest % DESCRIPTOR_BYTES == 0 && rest / DESCRIPTOR_BYTES <= DESCRIPTORS_MAX)
        .then_some(rest / DESCRIPTOR_BYTES)
}

fn may_be_prefix(bytes: &[u8]) -> bool {
    [1, 0].iter().zip(bytes).all(|(expected, byte)| expected == byte)
        && bytes.get(2).is_none_or(|&high| high <= 7)
}

impl Records {
    pub fn split(&mut self, bytes: &[u8]) -> Vec<Piece> {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let (mut rest, mut pieces) = (held.as_slice(), Vec::new());
        while !rest.is_empty() {
            let taken = match self.place.part {
                Part::Outer if self.left == 0 => {
                    if rest.len() < BHS_BYTES {
                        break;
                    }
                    self.left = BHS_BYTES + data_length(rest).next_multiple_of(4);
                    continue;
                }
                // All units that begin in a record, except the last, end in it.
                Part::Body if self.place.offset < self.place.units.saturating_sub(1) * self.unit => {
                    ((self.place.units - 1) * self.unit - self.place.offset).min(rest.len())
                }
                Part::Body => {
                    match rest.windows(PREFIX_BYTES).position(|window| units_of(window).is_some()) {
                        Some(0) => {
                            self.begin(units_of(&rest[..PREFIX_BYTES]).unwrap_or(0));
                            continue;
                        }
                        Some(at) => at,
                        None => {
                            let tail = (1..PREFIX_BYTES).rev().find(|&tail| {
                                rest.len() >= tail && may_be_prefix(&rest[rest.len() - tail..])
                            });
                            let taken = rest.len() - tail.unwrap_or(0);
                            if taken == 0 {
                                break;
                            }
                            taken
                        }
                    }
                }
                _ => self.left.min(rest.len()),
            };
            let (now, later) = rest.split_at(taken);
            pieces.push(Piece { place: self.place, bytes: now.to_vec() });
            rest = later;
            self.advance(taken);
        }
        self.held = rest.to_vec();
        pieces
    }

    /// Splits received bytes; without bytes, as after a pause, returns what is held.
    pub fn split_or_flush(&mut self, bytes: &[u8]) -> Vec<Piece> {
        if bytes.is_empty() { self.flush().into_iter().collect() } else { self.split(bytes) }
    }

    pub fn flush(&mut self) -> Option<Piece> {
        if self.held.is_empty() || self.place.part != Part::Body {
            return None;
        }
        let bytes = std::mem::take(&mut self.held);
        let place = self.place;
        self.advance(bytes.len());
        Some(Piece { place, bytes })
    }

    fn begin(&mut self, units: usize) {
        self.place = Place { number: self.records, part: Part::Prefix, offset: 0, units };
        self.left = PREFIX_BYTES;
        self.records += 1;
    }

    fn advance(&mut self, taken: usize) {
        self.place.offset += taken;
        if self.place.part == Part::Body {
            return;
        }
        self.left -= taken;
        if self.left > 0 {
            return;
        }
        let Place { number, units, .. } = self.place;
        let (part, left) = match self.place.part {
            Part::Outer if number + 1 < OUTER_PDUS => {
                self.place = Place { number: number + 1, offset: 0, ..self.place };
                return;
            }
            Part::Prefix => (Part::Head, BHS_BYTES + units * DESCRIPTOR_BYTES),
            Part::Head => (Part::Tag, TAG_BYTES),
            Part::Outer | Part::Tag | Part::Body => (Part::Body, 0),
        };
        // Bytes directly behind the outer login count as record 0, which has no earlier body before its prefix.
        let number = if self.records == 0 { 0 } else { number };
        self.place = Place { number, part, offset: 0, units };
        self.left = left;
    }
}

/// The PDUs of the outer login at the beginning of one direction, padding included.
pub fn outer(stream: &[u8]) -> [Vec<u8>; OUTER_PDUS as usize] {
    let pieces = Records::default().split(stream);
    std::array::from_fn(|number| {
        let own = pieces.iter().filter(|piece| piece.place.part == Part::Outer);
        own.filter(|piece| piece.place.number == number as u64)
            .flat_map(|piece| piece.bytes.clone())
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(data: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; BHS_BYTES + data.next_multiple_of(4)];
        bytes[5..8].copy_from_slice(&(data as u32).to_be_bytes()[1..]);
        bytes
    }

    fn record(units: usize, body: &[u8]) -> Vec<u8> {
        let length = BHS_BYTES + units * DESCRIPTOR_BYTES;
        let mut bytes = vec![1, 0];
        bytes.extend((length as u16).to_be_bytes());
        bytes.resize(bytes.len() + length + TAG_BYTES, 0xaa);
        bytes.extend(body);
        bytes
    }

    /// Part, number, units and bytes, joined over cuts.
    fn seen(stream: &[u8], cut: usize) -> Vec<(Part, u64, usize, usize)> {
        let mut records = Records { unit: 1, ..Records::default() };
        let mut pieces: Vec<Piece> = stream.chunks(cut).flat_map(|chunk| records.split(chunk)).collect();
        pieces.extend(records.flush());
        assert_eq!(pieces.iter().flat_map(|piece| piece.bytes.clone()).collect::<Vec<_>>(), stream);
        let mut seen: Vec<(Part, u64, usize, usize)> = Vec::new();
        for Piece { place, bytes } in pieces {
            match seen.last_mut() {
                Some(last) if (last.0, last.1) == (place.part, place.number) => {
                    assert_eq!(place.offset, last.3);
                    last.3 += bytes.len();
                }
                _ => seen.push((place.part, place.number, place.units, bytes.len())),
            }
        }
        seen
    }

    #[test]
    fn every_part_is_found_however_the_stream_is_cut() {
        // A body that ends like the beginning of a prefix, and one that contains half of a prefix.
        let bodies: [&[u8]; 4] = [b"", &[7; 90], &[9, 1, 0], &[1, 0, 9, 9, 1]];
        let mut stream = [pdu(10), pdu(1), record(1, bodies[1]), record(0, bodies[0])].concat();
        stream.extend([record(2, bodies[2]), record(4, bodies[3])].concat());
        let mut expected = vec![(Part::Outer, 0, 0, 60), (Part::Outer, 1, 0, 52)];
        for (number, units, body) in [(0, 1, 90), (1, 0, 0), (2, 2, 3), (3, 4, 5)] {
            let head = BHS_BYTES + units * DESCRIPTOR_BYTES;
            expected.extend(
                [(Part::Prefix, 4), (Part::Head, head), (Part::Tag, 16)]
                    .map(|(part, n)| (part, number, units, n)),
            );
            expected.extend((body > 0).then_some((Part::Body, number, units, body)));
        }
        for cut in [1, 2, 3, 5, 17, 64, 1000, stream.len()] {
            assert_eq!(seen(&stream, cut), expected, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_record_is_a_body() {
        let stream = [pdu(0), pdu(0), pdu(300)].concat();
        assert_eq!(seen(&stream, 7).last(), Some(&(Part::Body, 0, 0, 348)));
    }
}
