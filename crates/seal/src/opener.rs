//! The receiving direction (docs/SEAL.md sections 5 and 6). After any error the connection must be closed.

use std::fmt;

use crate::head::{parse_head, parse_prefix};
use crate::limits::{GENERATION_MAX, Limits};
use crate::schedule::{Ratchet, Use};
use crate::suite::{Keyed, Tag};
use crate::{Broken, Descriptor, PREFIX_BYTES, TAG_BYTES};

/// A data key and how much it has opened.
struct DataKey {
    generation: u16,
    keyed: Keyed,
    bytes: u64,
}

/// The receiving direction.
pub struct Opener {
    limits: &'static Limits,
    ratchet: Ratchet,
    generation: u16,
    head: Keyed,
    /// Records of all generations: the next head's counter.
    counter: u64,
    /// Records of this generation.
    records: u64,
    data: DataKey,
    /// For units that were sealed ahead of a rekey.
    data_before: Option<DataKey>,
}

impl Opener {
    pub(crate) fn new(ratchet: Ratchet, limits: &'static Limits) -> Self {
        let head = ratchet.keyed(Use::Head);
        let data = DataKey { generation: 0, keyed: ratchet.keyed(Use::Data), bytes: 0 };
        Self { limits, ratchet, generation: 0, head, counter: 0, records: 0, data, data_before: None }
    }

    #[cfg(test)]
    pub(crate) fn ratchet(&self) -> &Ratchet {
        &self.ratchet
    }

    /// Bytes that follow a prefix up to the end of the sealed head (head and tag).
    pub fn sealed_head_bytes(&self, prefix: [u8; PREFIX_BYTES]) -> Result<usize, Broken> {
        let (generation, head_bytes) = parse_prefix(prefix)?;
        self.is_next(generation)?;
        Ok(head_bytes + TAG_BYTES)
    }

    /// Opens a sealed head where it lies; returns the head's length, or wipes it (zero). The counter moves on only if it
    /// opens. Its descriptors fill it and have a generation that may be opened.
    pub fn open_head(&mut self, prefix: [u8; PREFIX_BYTES], sealed: &mut [u8]) -> Result<usize, Broken> {
        let (generation, head_bytes) = parse_prefix(prefix)?;
        if sealed.len() != head_bytes + TAG_BYTES {
            return Err(Broken);
        }
        let (head, tag) = sealed.split_at_mut(head_bytes);
        let tag: &Tag = (&*tag).try_into().map_err(|_| Broken)?;
        if self.is_next(generation)? {
            let ratchet = self.ratchet.next();
            let keyed = ratchet.keyed(Use::Head);
            keyed.open(self.counter, &prefix, head, tag)?;
            self.follow(ratchet, keyed);
        } else {
            if self.records >= self.limits.records_max {
                return Err(Broken);
            }
            self.head.open(self.counter, &prefix, head, tag)?;
        }
        self.counter += 1;
        self.records += 1;
        let (_, mut descriptors) = parse_head(head)?;
        if !descriptors.all(|descriptor| self.data_key(&descriptor).is_some()) {
            return Err(Broken);
        }
        Ok(head_bytes)
    }

    /// Opens a whole unit where it lies. On an error the bytes are wiped (zero).
    pub fn open_unit(&mut self, descriptor: &Descriptor, unit: &mut [u8]) -> Result<(), Broken> {
        let opened = self.try_open_unit(descriptor, unit);
        if opened.is_err() {
            unit.fill(0);
        }
        opened
    }

    fn try_open_unit(&mut self, descriptor: &Descriptor, unit: &mut [u8]) -> Result<(), Broken> {
        let bytes = unit.len() as u64;
        let unit_bytes_max = self.limits.unit_bytes_max;
        let key = match &mut self.data_before {
            Some(before) if before.generation == descriptor.generation() => before,
            _ if self.data.generation == descriptor.generation() => &mut self.data,
            _ => return Err(Broken),
        };
        if bytes != u64::from(descriptor.length) || key.bytes + bytes > unit_bytes_max {
            return Err(Broken);
        }
        key.bytes += bytes;
        key.keyed.open(descriptor.seal_id, &[], unit, &descriptor.tag)
    }

    /// The data key of the present generation or of the one before, if the unit was sealed with that.
    fn data_key(&self, descriptor: &Descriptor) -> Option<&DataKey> {
        [Some(&self.data), self.data_before.as_ref()]
            .into_iter()
            .flatten()
            .find(|key| key.generation == descriptor.generation())
    }

    /// Whether a prefix begins the next generation; an error if it is neither that nor the present one.
    fn is_next(&self, generation: u8) -> Result<bool, Broken> {
        if generation == self.generation as u8 {
            Ok(false)
        } else if generation == (self.generation as u8).wrapping_add(1) && self.generation < GENERATION_MAX {
            Ok(true)
        } else {
            Err(Broken)
        }
    }

    /// Goes to the next generation, and forgets all keys but the data key of this one.
    fn follow(&mut self, ratchet: Ratchet, head: Keyed) {
        self.generation += 1;
        let data = DataKey { generation: self.generation, keyed: ratchet.keyed(Use::Data), bytes: 0 };
        self.data_before = Some(std::mem::replace(&mut self.data, data));
        (self.ratchet, self.head, self.records) = (ratchet, head, 0);
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("generation", &self.generation)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}
