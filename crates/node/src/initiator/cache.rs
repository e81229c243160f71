//! The acknowledged writes that the target's volatile cache may still hold, and whether it lost them (SBC-3 4.15).
//!
//! A target that loses power loses acknowledged writes. The session ends, a new one begins, and a flush on it
//! succeeds; so the initiator must remember across sessions what was acknowledged. The unit attention at the start of a
//! new session decides: only 29h/07h I_T NEXUS LOSS means that the target kept running and lost no power. tgt sends
//! 29h/00h on every new session; the Linux target sends none, with or without a restart. A reset by an initiator
//! (29h/02h, 29h/03h) ends tasks and keeps the cache, which only a loss of power clears.

use scsi::{Sense, SenseKey};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unsaid,
    /// The target has kept running: the cache is intact.
    Kept,
    /// The target may have lost power, or its medium may have been exchanged.
    Lost,
}

pub(super) fn fate(sense: &Sense) -> Fate {
    match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::UnitAttention, 0x29, 0x07) => Fate::Kept,
        (SenseKey::UnitAttention, 0x29, 0x00 | 0x01 | 0x04) | (SenseKey::UnitAttention, 0x28, 0x00) => {
            Fate::Lost
        }
        _ => Fate::Unsaid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attentions_and_what_they_say() {
        for (key, asc, ascq, expected) in [
            (SenseKey::UnitAttention, 0x29, 0x00, Fate::Lost),
            (SenseKey::UnitAttention, 0x29, 0x01, Fate::Lost),
            (SenseKey::UnitAttention, 0x29, 0x02, Fate::Unsaid),
            (SenseKey::UnitAttention, 0x29, 0x03, Fate::Unsaid),
            (SenseKey::UnitAttention, 0x29, 0x04, Fate::Lost),
            (SenseKey::UnitAttention, 0x29, 0x07, Fate::Kept),
            (SenseKey::UnitAttention, 0x28, 0x00, Fate::Lost),
            (SenseKey::UnitAttention, 0x2a, 0x09, Fate::Unsaid),
            (SenseKey::NotReady, 0x29, 0x01, Fate::Unsaid),
        ] {
            assert_eq!(fate(&Sense::new(key, asc, ascq)), expected, "{asc:02x}/{ascq:02x}");
        }
    }
}
