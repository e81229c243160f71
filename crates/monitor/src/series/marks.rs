//! PDUs on the time line.

use iscsi::wire::BHS_LENGTH;

use super::track::{Thin, wider};
use crate::event::Side;

/// What begins at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MarkKind {
    Command,
    R2t,
    DataOut,
    DataIn,
    Response,
    /// Login, text, NOP, task management, logout, reject, asynchronous message.
    Other,
}

impl MarkKind {
    pub const ALL: [Self; 6] =
        [Self::Command, Self::R2t, Self::DataOut, Self::DataIn, Self::Response, Self::Other];

    /// As a label in a picture.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::R2t => "R2T",
            Self::DataOut => "Data-Out",
            Self::DataIn => "Data-In",
            Self::Response => "response",
            Self::Other => "other PDU",
        }
    }

    /// By the operation code (RFC 7143 section 11.2.1.2).
    fn of(header: &[u8; BHS_LENGTH]) -> Self {
        match header[0] & 0x3f {
            0x01 => Self::Command,
            0x05 => Self::DataOut,
            0x21 => Self::Response,
            0x25 => Self::DataIn,
            0x31 => Self::R2t,
            _ => Self::Other,
        }
    }
}

/// The start of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub at_ns: u64,
    pub kind: MarkKind,
    pub from: Side,
    pub itt: u32,
    /// Whole length of the PDU; for an R2T: bytes that it asks for.
    pub bytes: u32,
    /// PDUs of this kind that it stands for; more than 1 only if marks were thinned: then it is the first of them.
    pub count: u32,
    /// Where it lies in each direction's stream: the first byte in its own, the acknowledged offset in the other's.
    pub offsets: [u64; 2],
}

impl Mark {
    pub(super) fn new(
        at_ns: u64,
        from: Side,
        header: &[u8; BHS_LENGTH],
        bytes: u64,
        offsets: [u64; 2],
    ) -> Self {
        let kind = MarkKind::of(header);
        let word =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        // Initiator Task Tag and Desired Data Transfer Length: RFC 7143 sections 11.3 and 11.8.
        let bytes = if kind == MarkKind::R2t { word(44) } else { u32::try_from(bytes).unwrap_or(u32::MAX) };
        Self { at_ns, kind, from, itt: word(16), bytes, count: 1, offsets }
    }
}

/// Marks in the order of arrival: in a bin of time, one for each kind and sender.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    pub(super) entries: Vec<Mark>,
    bin_ns: u64,
    open: usize,
}

impl Marks {
    pub(super) fn push(&mut self, mark: Mark) {
        let bin = mark.at_ns.checked_div(self.bin_ns);
        let open = self.entries.get(self.open).and_then(|first| first.at_ns.checked_div(self.bin_ns));
        if bin.is_none() || bin != open {
            self.open = self.entries.len();
        }
        let same = |other: &&mut Mark| other.kind == mark.kind && other.from == mark.from;
        match self.entries[self.open..].iter_mut().find(same) {
            Some(first) => first.count = first.count.saturating_add(mark.count),
            None => self.entries.push(mark),
        }
    }
}

impl Thin for Marks {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn is_thinned(&self) -> bool {
        self.bin_ns > 0
    }

    fn halve(&mut self) {
        self.entries.sort_by_key(|mark| mark.at_ns);
        let most = (self.entries.len() / 2).max(2 * MarkKind::ALL.len());
        self.bin_ns = wider(self.bin_ns, self.entries.iter().map(|mark| mark.at_ns), self.entries.len());
        loop {
            let entries = std::mem::take(&mut self.entries);
            self.open = 0;
            for mark in entries {
                self.push(mark);
            }
            if self.entries.len() <= most || self.bin_ns == u64::MAX {
                return;
            }
            self.bin_ns = self.bin_ns.saturating_mul(2);
        }
    }
}
