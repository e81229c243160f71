//! The receiving direction (docs/SEAL.md sections 5 and 6). After any error the connection must be closed.

use std::fmt;
use std::time::Duration;

use crate::head::{Kind, parse_head, parse_prefix};
use crate::limits::{GENERATION_MAX, Limits};
use crate::schedule::{Fresh, Ratchet, Use};
use crate::suite::{Keyed, Tag};
use crate::{Broken, Descriptor, PREFIX_BYTES, TAG_BYTES};

/// A data key and how much it has opened.
struct DataKey {
    generation: u16,
    keyed: Keyed,
    bytes: u64,
}

/// The generation that follows, before a record of it has come.
struct Next {
    ratchet: Ratchet,
    head: Keyed,
}

/// What a sealed head was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// For [`Kind::Pdu`] header and descriptors ([`parse_head`]), else a message for [`crate::Renewal::open`].
    pub kind: Kind,
    /// Length of the head, without the tag.
    pub bytes: usize,
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
    /// For units that were sealed ahead of a step.
    data_before: Option<DataKey>,
    /// After the answer that allows it.
    next: Option<Next>,
    /// When what is left of the generation that the last exchange ended is wiped.
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

    /// Opens a sealed head where it lies, or wipes it (zero). The counter moves on only if it opens. The descriptors of a PDU fill
    /// its head and have a generation that may be opened.
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
            // No unit of the generation before is unfinished, and none comes.
            Kind::Offer | Kind::Answer => self.data_before = None,
        }
        Ok(Head { kind, bytes: head_bytes })
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
        } else if generation == (self.generation as u8).wrapping_add(1) && self.next.is_some() {
            Ok(true)
        } else {
            Err(Broken)
        }
    }

    /// The present generation: that of the last record.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Whether an exchange is due, as far as this direction knows: bytes or records.
    pub(crate) fn is_due(&self) -> bool {
        self.records >= self.limits.records_due || self.data.bytes >= self.limits.unit_bytes_due
    }

    /// From now on the next record may be of the next generation (section 6: the target's side, at the answer). Not in
    /// generation 65535.
    pub(crate) fn expect_step(&mut self, fresh: &Fresh, now: Duration) {
        assert!(self.generation < GENERATION_MAX && self.next.is_none(), "one exchange at a time");
        let ratchet = self.ratchet.next(fresh);
        let head = ratchet.keyed(Use::Head);
        self.next = Some(Next { ratchet, head });
        self.retire_at = Some(now + self.limits.keep_max);
    }

    /// The next record must be of the next generation (section 6: the initiator's side, at the answer).
    pub(crate) fn step(&mut self, fresh: &Fresh, now: Duration) {
        self.expect_step(fresh, now);
        self.follow();
    }

    /// When [`Self::retire`] has something to do.
    pub fn retire_at(&self) -> Option<Duration> {
        self.retire_at
    }

    /// Wipes what is left of the generation that the last exchange ended, if it is time; `now` is the time since the channel was
    /// made.
    pub fn retire(&mut self, now: Duration) {
        if self.retire_at.is_some_and(|at| at <= now) {
            self.retire_at = None;
            self.follow();
            self.data_before = None;
        }
    }

    /// Goes to the next generation if there is one, and forgets all keys but the data key of this one.
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
