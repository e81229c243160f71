//! The receiving direction (docs/SEAL.md sections 5 and 6). After any error the caller closes the connection.

use std::fmt;
use std::time::Duration;

use crate::head::{Kind, parse_head, parse_prefix};
use crate::limits::{GENERATION_MAX, Limits};
use crate::schedule::{Fresh, Ratchet, Use};
use crate::suite::{Keyed, Tag};
use crate::{Broken, Descriptor, PREFIX_BYTES, TAG_BYTES};

/// A data key and the bytes of units that it has opened.
struct DataKey {
    generation: u16,
    keyed: Keyed,
    bytes: u64,
}

/// The keys of the next generation, before its first record arrives.
struct Next {
    ratchet: Ratchet,
    head: Keyed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// With [`Kind::Pdu`] the head holds header and descriptors ([`parse_head`]), otherwise a message for
    /// [`crate::Renewal::open`].
    pub kind: Kind,
    pub bytes: usize,
}

/// The receiving direction of a connection.
///
/// For each record in order of arrival, the caller reads the prefix, calls [`Self::sealed_head_bytes`], reads that many
/// bytes, and calls [`Self::open_head`]; then it calls [`Self::open_unit`] for each unit that begins in the record,
/// once the unit has arrived completely. It calls [`Self::retire`] at [`Self::retire_at`]. Between calls the opener
/// holds the keys of one generation, and during an exchange also the data key of the previous one or the keys of the
/// next.
pub struct Opener {
    limits: &'static Limits,
    ratchet: Ratchet,
    generation: u16,
    head: Keyed,
    /// Records of all generations: the counter of the next head.
    counter: u64,
    records: u64,
    data: DataKey,
    /// For units that were sealed ahead of a step.
    data_before: Option<DataKey>,
    /// Set by an answer until the first record of the next generation.
    next: Option<Next>,
    /// When the remaining keys of the generation that the last exchange ended are wiped.
    retire_at: Option<Duration>,
}

impl Opener {
    pub(crate) fn new(ratchet: Ratchet, limits: &'static Limits) -> Self {
        let head = ratchet.keyed(Use::Head);
        let data = DataKey { generation: 0, keyed: ratchet.keyed(Use::Data), bytes: 0 };
        Self {
            limits,
            ratchet,
            generation: 0,
            head,
            counter: 0,
            records: 0,
            data,
            data_before: None,
            next: None,
            retire_at: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, limits: &'static Limits) {
        self.limits = limits;
    }

    #[cfg(test)]
    pub(crate) fn ratchet(&self) -> &Ratchet {
        &self.ratchet
    }

    /// Bytes that follow a prefix up to the end of the sealed head (head and tag).
    pub fn sealed_head_bytes(&self, prefix: [u8; PREFIX_BYTES]) -> Result<usize, Broken> {
        let (generation, _, head_bytes) = parse_prefix(prefix)?;
        self.is_next(generation)?;
        Ok(head_bytes + TAG_BYTES)
    }

    /// Opens a sealed head in place; on an error of the tag its bytes are zeroed. The counter advances only if the head
    /// opens. For a PDU it also checks that the descriptors fill the head and belong to a generation whose data key is
    /// present.
    pub fn open_head(&mut self, prefix: [u8; PREFIX_BYTES], sealed: &mut [u8]) -> Result<Head, Broken> {
        let (generation, kind, head_bytes) = parse_prefix(prefix)?;
        if sealed.len() != head_bytes + TAG_BYTES {
            return Err(Broken);
        }
        let (head, tag) = sealed.split_at_mut(head_bytes);
        let tag: &Tag = (&*tag).try_into().map_err(|_| Broken)?;
        if self.is_next(generation)? {
            let next = self.next.as_ref().ok_or(Broken)?;
            next.head.open(self.counter, &prefix, head, tag)?;
            self.follow();
        } else {
            if self.records >= self.limits.records_max {
                return Err(Broken);
            }
            self.head.open(self.counter, &prefix, head, tag)?;
        }
        self.counter += 1;
        self.records += 1;
        match kind {
            Kind::Pdu => {
                let (_, mut descriptors) = parse_head(head)?;
                if !descriptors.all(|descriptor| self.data_key(&descriptor).is_some()) {
                    return Err(Broken);
                }
            }
            // All units of the previous generation are complete, and none follows.
            Kind::Offer | Kind::Answer => self.data_before = None,
        }
        Ok(Head { kind, bytes: head_bytes })
    }

    /// Opens a complete unit in place. On an error its bytes are zeroed.
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

    /// The data key of the unit's generation, if it is the current or the previous one.
    fn data_key(&self, descriptor: &Descriptor) -> Option<&DataKey> {
        [Some(&self.data), self.data_before.as_ref()]
            .into_iter()
            .flatten()
            .find(|key| key.generation == descriptor.generation())
    }

    /// Whether a prefix begins the next generation; an error if it belongs to neither the next nor the current one.
    fn is_next(&self, generation: u8) -> Result<bool, Broken> {
        if generation == self.generation as u8 {
            Ok(false)
        } else if generation == (self.generation as u8).wrapping_add(1) && self.next.is_some() {
            Ok(true)
        } else {
            Err(Broken)
        }
    }

    /// The current generation: that of the last record.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Whether an exchange is due by the bytes or records of this direction.
    pub(crate) fn is_due(&self) -> bool {
        self.records >= self.limits.records_due || self.data.bytes >= self.limits.unit_bytes_due
    }

    /// Allows the next record to be of the next generation (section 6: the target's side, at the answer). Panics in
    /// generation 65535 and during an exchange.
    pub(crate) fn expect_step(&mut self, fresh: &Fresh, now: Duration) {
        assert!(self.generation < GENERATION_MAX && self.next.is_none(), "one exchange at a time");
        let ratchet = self.ratchet.next(fresh);
        let head = ratchet.keyed(Use::Head);
        self.next = Some(Next { ratchet, head });
        self.retire_at = Some(now + self.limits.keep_max);
    }

    /// Requires the next record to be of the next generation (section 6: the initiator's side, at the answer).
    pub(crate) fn step(&mut self, fresh: &Fresh, now: Duration) {
        self.expect_step(fresh, now);
        self.follow();
    }

    /// When [`Self::retire`] must be called; `None` if no old key is present.
    pub fn retire_at(&self) -> Option<Duration> {
        self.retire_at
    }

    /// Wipes the remaining keys of the generation that the last exchange ended, if [`Self::retire_at`] has passed.
    /// `now` is the time since the channel was created.
    pub fn retire(&mut self, now: Duration) {
        if self.retire_at.is_some_and(|at| at <= now) {
            self.retire_at = None;
            self.follow();
            self.data_before = None;
        }
    }

    /// Steps to the next generation, if there is one; of the old keys only the ended generation's data key is kept.
    fn follow(&mut self) {
        let Some(Next { ratchet, head }) = self.next.take() else { return };
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
