//! What the target's volatile cache may hold of ours, and whether it was lost (SBC-3 4.15).
//!
//! A target that loses power forgets writes it has acknowledged. The session ends, a new one begins, and a flush on it
//! succeeds: somebody has to remember what was acknowledged on the old one. What tells is the unit attention that a
//! new session begins with. 29h/07h I_T NEXUS LOSS says that the target kept running: no power was lost. Nothing else
//! says so. 29h/00h is what tgt says to every new session; the Linux target says nothing, after a restart as before.
//! A reset by an initiator (29h/02h, 29h/03h) ends tasks and keeps the cache: only power undoes what is in it.

pub(super) use block::WriteCache;
use scsi::{Sense, SenseKey};

/// What sense data says of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unsaid,
    /// The target has kept running.
    Kept,
    /// It may not have, or its medium may be another.
    Lost,
}

/// Reads a unit attention.
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
