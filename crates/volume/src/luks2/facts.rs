//! What a header says, for people and programs. Text of the header is escaped: it is the provider's.

use super::binary::Binary;
use super::header::{Copies, Header};
use super::kdf::Pbkdf;
use super::metadata::{Priority, Segment, SegmentKind, XTS};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub uuid: String,
    pub label: String,
    pub subsystem: String,
    /// Grows by one with each change.
    pub sequence_number: u64,
    pub copies: Copies,
    /// Bytes of one copy.
    pub header_bytes: u64,
    pub keyslots_bytes: u64,
    pub segment: Segment,
    pub cipher: &'static str,
    /// `None` without a keyslot.
    pub key_bits: Option<usize>,
    /// What checking a volume key costs.
    pub digest: Pbkdf,
    pub slots: Vec<SlotFacts>,
    pub tokens: Vec<TokenFacts>,
    pub requirements: Vec<String>,
    /// `config.flags`, which cryptsetup takes for options of dm-crypt.
    pub flags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFacts {
    pub slot: u8,
    /// Whether it holds the volume's key, not another.
    pub is_bound: bool,
    /// Whether it holds the key that the volume's re-encryption moves to.
    pub is_next: bool,
    pub priority: Priority,
    pub key_bits: usize,
    pub pbkdf: Pbkdf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFacts {
    pub token: u8,
    pub kind: String,
    pub slots: Vec<u8>,
}

impl Header {
    pub fn facts(&self) -> Facts {
        let Binary { header_bytes, seqid, label, subsystem, uuid, checksum: _ } = &self.binary;
        let metadata = &self.metadata;
        let slots = metadata.slots.iter().map(|(id, slot)| SlotFacts {
            slot: *id,
            is_bound: metadata.digest.slots.contains(id),
            is_next: metadata.next.as_ref().is_some_and(|next| next.slots.contains(id)),
            priority: slot.priority,
            key_bits: 8 * slot.key_bytes,
            pbkdf: slot.kdf,
        });
        let tokens = metadata.tokens.iter().map(|token| TokenFacts {
            token: token.id,
            kind: escaped(&token.kind),
            slots: token.slots.clone(),
        });
        Facts {
            uuid: escaped(&String::from_utf8_lossy(uuid)),
            label: escaped(&String::from_utf8_lossy(label)),
            subsystem: escaped(&String::from_utf8_lossy(subsystem)),
            sequence_number: *seqid,
            copies: self.copies,
            header_bytes: *header_bytes,
            keyslots_bytes: metadata.keyslots.end - metadata.keyslots.start,
            segment: metadata.segment.clone(),
            cipher: match metadata.segment.kind {
                SegmentKind::Crypt { .. } => XTS,
                SegmentKind::Auth { cipher, .. } => cipher.name(),
            },
            key_bits: metadata.key_bytes().map(|bytes| 8 * bytes),
            digest: metadata.digest.pbkdf(),
            slots: slots.collect(),
            tokens: tokens.collect(),
            requirements: metadata.requirements.clone(),
            flags: metadata.flags.iter().map(|flag| escaped(flag)).collect(),
        }
    }
}

fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}
