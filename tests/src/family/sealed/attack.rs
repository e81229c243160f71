//! Attacks on encrypted records in transit: one deed on each connection, at one place.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::records::{Part, Piece, Records};
use crate::tap::{Middle, Way};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// The `offset`-th byte of a part of the `number`-th record or outer PDU. If a body or an outer PDU is shorter, the
    /// deed is not done, because its last byte is not known.
    Place {
        part: Part,
        number: u64,
        offset: usize,
    },
    Byte(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Flip(u8),
    Truncate,
    Drop,
    Duplicate,
    Swap,
    Replace(Vec<u8>),
    /// Sends an earlier record of this connection again, then the record.
    Replay(u64),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Done(Arc<OnceLock<Instant>>);

impl Done {
    pub(crate) fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }

    fn now(&self) {
        self.0.get_or_init(Instant::now);
    }
}

pub(crate) struct Attack {
    way: Way,
    aim: Aim,
    deed: Deed,
    done: Done,
    records: Records,
    passed: usize,
    /// Bytes received so far of the record of the deed, and of the one after it.
    held: Vec<Vec<u8>>,
    earlier: Vec<u8>,
}

impl Attack {
    pub(crate) fn new(way: Way, aim: Aim, deed: Deed, done: Done) -> Self {
        let records = Records::default();
        Self { way, aim, deed, done, records, passed: 0, held: Vec::new(), earlier: Vec::new() }
    }

    /// Offset of the attacked byte within the piece, if it lies there.
    fn hit(&self, piece: &Piece) -> Option<usize> {
        let (begin, wanted) = match self.aim {
            Aim::Byte(offset) => (self.passed, offset),
            Aim::Place { part, number, offset } => {
                if (piece.place.part, piece.place.number) != (part, number) {
                    return None;
                }
                (piece.place.offset, offset)
            }
        };
        wanted.checked_sub(begin).filter(|&at| at < piece.bytes.len())
    }

    fn begins(&self, piece: &Piece) -> bool {
        matches!(self.aim, Aim::Place { number, .. } if piece.begins_record() && piece.place.number == number)
    }

    /// Passes one piece on; `false` ends the connection.
    fn on_piece(&mut self, mut piece: Piece, out: &mut Vec<u8>) -> bool {
        if self.done.at().is_some() {
            out.extend(piece.bytes);
            return true;
        }
        match self.deed {
            Deed::Flip(_) | Deed::Truncate => {
                let hit = self.hit(&piece);
                self.passed += piece.bytes.len();
                if let Some(at) = hit {
                    self.done.now();
                    match self.deed {
                        Deed::Flip(bits) => piece.bytes[at] ^= bits,
                        _ => {
                            out.extend(&piece.bytes[..at]);
                            return false;
                        }
                    }
                }
                out.extend(piece.bytes);
            }
            _ => self.on_record(piece, out),
        }
        true
    }

    fn on_record(&mut self, piece: Piece, out: &mut Vec<u8>) {
        if piece.place.part != Part::Outer && self.deed == Deed::Replay(piece.place.number) {
            self.earlier.extend(&piece.bytes);
        }
        if self.begins(&piece) {
            self.held.push(piece.bytes);
        } else if self.held.is_empty() {
            out.extend(piece.bytes);
        } else if !piece.begins_record() {
            self.held.last_mut().expect("not empty").extend(piece.bytes);
        } else if self.deed == Deed::Swap && self.held.len() == 1 {
            self.held.push(piece.bytes);
        } else {
            self.release(out);
            out.extend(piece.bytes);
        }
    }

    /// Does the deed on the held records, which are complete.
    fn release(&mut self, out: &mut Vec<u8>) {
        if self.held.is_empty() || self.deed == Deed::Swap && self.held.len() == 1 {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let record = &held[0];
        match &self.deed {
            Deed::Duplicate => out.extend([&record[..], record].concat()),
            Deed::Swap => out.extend([&held[1][..], record].concat()),
            Deed::Replace(bytes) => out.extend(bytes),
            Deed::Replay(_) => out.extend([&self.earlier[..], record].concat()),
            Deed::Drop | Deed::Flip(_) | Deed::Truncate => {}
        }
        self.done.now();
    }
}

impl Middle for Attack {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        if way != self.way {
            out.extend_from_slice(bytes);
            return true;
        }
        let pieces = self.records.split_or_flush(bytes);
        let goes_on = pieces.into_iter().all(|piece| self.on_piece(piece, out));
        if bytes.is_empty() && self.done.at().is_none() {
            self.release(out);
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fill: u8, body: usize) -> Vec<u8> {
        let mut bytes = vec![1, 0, 0, 76];
        bytes.resize(4 + 76 + 16, fill);
        bytes.resize(bytes.len() + body, fill + 1);
        bytes
    }

    fn outer() -> Vec<u8> {
        vec![0; 96]
    }

    /// Bytes that arrive of three records.
    fn after(aim: Aim, deed: Deed) -> (Vec<u8>, bool) {
        let stream = [outer(), record(10, 5), record(20, 0), record(30, 3)].concat();
        let done = Done::default();
        let mut attack = Attack::new(Way::ToTarget, aim, deed, done.clone());
        let mut out = Vec::new();
        let goes_on = stream.chunks(50).all(|bytes| attack.pass(Way::ToTarget, bytes, &mut out));
        attack.pass(Way::ToTarget, &[], &mut out);
        assert!(done.at().is_some());
        (out, goes_on)
    }

    #[test]
    fn each_deed_is_done_where_it_should() {
        let [a, b, c] = [record(10, 5), record(20, 0), record(30, 3)];
        let second = Aim::Place { part: Part::Prefix, number: 1, offset: 0 };
        let x = vec![9; 7];
        for (deed, expected) in [
            (Deed::Drop, vec![&a, &c]),
            (Deed::Duplicate, vec![&a, &b, &b, &c]),
            (Deed::Swap, vec![&a, &c, &b]),
            (Deed::Replace(x.clone()), vec![&a, &x, &c]),
            (Deed::Replay(0), vec![&a, &a, &b, &c]),
        ] {
            let expected: Vec<u8> =
                outer().into_iter().chain(expected.into_iter().flatten().copied()).collect();
            assert_eq!(after(second, deed.clone()), (expected, true), "{deed:?}");
        }
        let in_body = Aim::Place { part: Part::Body, number: 2, offset: 2 };
        let whole = [outer(), a, b, c].concat();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 4;
        assert_eq!(after(in_body, Deed::Flip(4)), (flipped, true));
        assert_eq!(after(in_body, Deed::Truncate), (whole[..whole.len() - 1].to_vec(), false));
        let mut flipped = whole.clone();
        flipped[100] ^= 1;
        assert_eq!(after(Aim::Byte(100), Deed::Flip(1)), (flipped, true));
    }
}
