//! Parts of the time of a data sender.

/// Where time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Part {
    /// The narrowest link is busy.
    Line,
    /// No command at the sender; `Full`: the initiator keeps as many on their way as ever.
    IdleFull,
    IdleLess,
    /// Within a round trip of the last data, and beyond.
    R2t,
    R2tTarget,
    /// All data sent.
    SentFull,
    SentLess,
    SentTarget,
    Window,
    /// The window is far smaller than it was: the receiver does not read.
    WindowShrunk,
    Repair,
    /// The sender may send.
    Open,
    /// Reads: the target has commands and has begun none.
    Unbegun,
    /// What the parts above are resolved to.
    Nagle,
    Local,
    Target,
    Blind,
    /// PDUs pass whose headers the capture does not hold: within a round trip of the last data, and beyond.
    Unframed,
    UnframedLate,
}

const PARTS: usize = Part::UnframedLate as usize + 1;

#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Parts([u64; PARTS]);

impl Parts {
    pub(in crate::model::attribution) fn add(&mut self, part: Part, ns: u64) {
        let slot = &mut self.0[part as usize];
        *slot = slot.saturating_add(ns);
    }

    pub(in super::super) fn of(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    pub(super) fn take(&mut self, part: Part) -> u64 {
        std::mem::take(&mut self.0[part as usize])
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(theirs);
        }
    }
}
