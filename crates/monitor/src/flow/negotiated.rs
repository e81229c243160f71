//! What a login agreed on, as far as its text was captured.

use iscsi::text;

use crate::event::Side;
use crate::limits::{NEGOTIATED_KEYS_MAX, NEGOTIATED_TEXT_BYTES_MAX, NEGOTIATED_VALUE_BYTES_MAX};

/// A key as one end sent it last. Values of CHAP are not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub from: Side,
    pub key: String,
    pub value: String,
}

#[derive(Debug, Default)]
pub(super) struct Negotiated {
    pub(super) pairs: Vec<Pair>,
    /// Texts of PDUs that another PDU continues, by sender.
    partial: [Vec<u8>; 2],
    /// Whether the login was captured from its start.
    pub(super) is_from_start: bool,
    /// Which ends' texts were captured.
    is_seen: [bool; 2],
    /// Whether a part of a text was not captured.
    pub(super) is_cut: bool,
    header_digest: Option<bool>,
    data_digest: Option<bool>,
}

impl Negotiated {
    /// `is_from_start`: the login is captured.
    pub(super) fn new(is_from_start: bool) -> Self {
        Self { is_from_start, ..Self::default() }
    }

    /// Memory that is held, about.
    pub(super) fn held_bytes(&self) -> usize {
        let pairs = self.pairs.iter().map(|pair| pair.key.capacity() + pair.value.capacity()).sum::<usize>();
        let partial = self.partial.iter().map(Vec::capacity).sum::<usize>();
        self.pairs.capacity() * size_of::<Pair>() + pairs + partial
    }

    /// Nothing more is taken.
    pub(super) fn leave(&mut self) {
        self.partial = Default::default();
    }

    /// Takes the text of a PDU; `continues` is its C bit. `is_whole` is false if the capture holds only the first part.
    pub(super) fn add(&mut self, from: Side, text: &[u8], continues: bool, is_whole: bool) {
        let mut bytes = std::mem::take(&mut self.partial[from as usize]);
        self.is_cut |= !is_whole;
        self.is_seen[from as usize] = true;
        let room = NEGOTIATED_TEXT_BYTES_MAX.saturating_sub(bytes.len());
        bytes.extend_from_slice(&text[..text.len().min(room)]);
        if continues && is_whole {
            self.partial[from as usize] = bytes;
            return;
        }
        let pairs = bytes.split_inclusive(|byte| *byte == 0);
        for pair in pairs.filter(|pair| is_whole || pair.ends_with(&[0])) {
            for pair in text::parse(pair).unwrap_or_default() {
                self.set(from, pair.key, pair.value);
            }
        }
    }

    fn set(&mut self, from: Side, key: &str, value: &str) {
        let digest = match value {
            "None" => Some(false),
            "CRC32C" => Some(true),
            _ => None,
        };
        match key {
            "HeaderDigest" => self.header_digest = digest.or(self.header_digest),
            "DataDigest" => self.data_digest = digest.or(self.data_digest),
            _ => {}
        }
        let is_secret = key.starts_with("CHAP_") || key.ends_with(".message") || key.ends_with(".nonce");
        if is_secret || value.len() > NEGOTIATED_VALUE_BYTES_MAX {
            return;
        }
        if let Some(pair) = self.pairs.iter_mut().find(|pair| pair.from == from && pair.key == key) {
            value.clone_into(&mut pair.value);
        } else if self.pairs.len() < NEGOTIATED_KEYS_MAX {
            self.pairs.push(Pair { from, key: key.to_owned(), value: value.to_owned() });
        }
    }

    /// Header and data digest, if the login tells: the last single value of each key is the result (RFC 7143 section
    /// 13.1), and without the keys there are none.
    pub(super) fn digests(&self) -> Option<(bool, bool)> {
        if !self.is_from_start || self.is_cut || self.is_seen != [true; 2] {
            return Some((self.header_digest?, self.data_digest?));
        }
        Some((self.header_digest.unwrap_or(false), self.data_digest.unwrap_or(false)))
    }
}
