//! The sending direction (docs/SEAL.md sections 5 and 6).

use std::fmt;
use std::time::Duration;

use crate::head::{emit_prefix, header_bytes};
use crate::limits::{GENERATION_MAX, Limits};
use crate::schedule::{Ratchet, Use};
use crate::suite::Keyed;
use crate::{
    Broken, DESCRIPTOR_BYTES, DESCRIPTORS_MAX, Descriptor, HEAD_BYTES_MAX, PREFIX_BYTES, TAG_BYTES,
    UNIT_BYTES_MAX,
};

/// The sending direction.
pub struct Sealer {
    limits: &'static Limits,
    ratchet: Ratchet,
    generation: u16,
    head: Keyed,
    data: Keyed,
    /// Records of all generations: the next head's counter.
    counter: u64,
    /// Records of this generation.
    records: u64,
    /// Units of this generation: the next unit's number.
    units: u64,
    /// Bytes of units of this generation.
    unit_bytes: u64,
    /// When this generation began.
    since: Duration,
}

impl Sealer {
    pub(crate) fn new(ratchet: Ratchet, limits: &'static Limits) -> Self {
        let (head, data) = (ratchet.keyed(Use::Head), ratchet.keyed(Use::Data));
        let since = Duration::ZERO;
        Self {
            limits,
            ratchet,
            generation: 0,
            head,
            data,
            counter: 0,
            records: 0,
            units: 0,
            unit_bytes: 0,
            since,
        }
    }

    #[cfg(test)]
    pub(crate) fn ratchet(&self) -> &Ratchet {
        &self.ratchet
    }

    /// Seals a unit of 1 to [`UNIT_BYTES_MAX`] bytes where it lies.
    pub fn seal_in_place(&mut self, unit: &mut [u8]) -> Descriptor {
        let (seal_id, length) = self.next_unit(unit.len());
        Descriptor { seal_id, length, tag: self.data.seal(seal_id, &[], unit) }
    }

    /// Copies and seals a unit in one pass; both slices have the unit's length.
    pub fn seal_into(&mut self, plain: &[u8], sealed: &mut [u8]) -> Descriptor {
        let (seal_id, length) = self.next_unit(plain.len());
        Descriptor { seal_id, length, tag: self.data.seal_into(seal_id, &[], plain, sealed) }
    }

    /// Appends prefix and sealed head to `out`. `header` is BHS and AHS; every descriptor must be one that
    /// [`Self::carries`] is true for.
    pub fn seal_head(&mut self, header: &[u8], descriptors: &[Descriptor], out: &mut Vec<u8>) {
        assert_eq!(header.len(), header_bytes(header), "BHS and AHS");
        assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} units begin in one record", descriptors.len());
        assert!(
            descriptors.iter().all(|descriptor| self.carries(descriptor)),
            "a unit outlived its generation"
        );
        assert!(self.records < self.limits.records_max, "the generation was due long ago");
        let head_bytes = header.len() + descriptors.len() * DESCRIPTOR_BYTES;
        let prefix = emit_prefix(self.generation, head_bytes);
        out.reserve(PREFIX_BYTES + head_bytes + TAG_BYTES);
        out.extend_from_slice(&prefix);
        let start = out.len();
        out.extend_from_slice(header);
        for descriptor in descriptors {
            descriptor.emit(out);
        }
        let tag = self.head.seal(self.counter, &prefix, &mut out[start..]);
        out.extend_from_slice(&tag);
        self.counter += 1;
        self.records += 1;
    }

    /// Whether a unit that was sealed ahead may still be sent: its generation is the current one or the one before.
    pub fn carries(&self, descriptor: &Descriptor) -> bool {
        self.generation.checked_sub(descriptor.generation()).is_some_and(|age| age <= 1)
    }

    /// Whether the next record should begin a generation: bytes, records, or an hour since the last. `now` is the time
    /// since the channel was made.
    pub fn is_due(&self, now: Duration) -> bool {
        self.records >= self.limits.records_due
            || self.unit_bytes >= self.limits.unit_bytes_due
            || now.saturating_sub(self.since) >= self.limits.age_due
    }

    /// Whether this generation has reached what it must not: nothing more may be sealed in it. One that could not be left in
    /// time, since a unit of the one before is unfinished, ends the connection.
    pub fn is_overdue(&self) -> bool {
        self.records >= self.limits.records_late || self.unit_bytes >= self.limits.unit_bytes_late
    }

    /// The present generation: that of the next head and the next unit.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Begins the next generation with the next head; `now` as in [`Self::is_due`]. Fails after generation 65535: the
    /// connection must end. A generation without a record is not left: the receiver could not follow over it.
    pub fn rekey(&mut self, now: Duration) -> Result<(), Broken> {
        self.since = now;
        if self.records == 0 {
            return Ok(());
        }
        if self.generation == GENERATION_MAX {
            return Err(Broken);
        }
        self.generation += 1;
        self.ratchet = self.ratchet.next();
        self.head = self.ratchet.keyed(Use::Head);
        self.data = self.ratchet.keyed(Use::Data);
        (self.records, self.units, self.unit_bytes) = (0, 0, 0);
        Ok(())
    }

    /// Takes a seal-id for a unit.
    fn next_unit(&mut self, bytes: usize) -> (u64, u32) {
        assert!((1..=UNIT_BYTES_MAX as usize).contains(&bytes), "a unit of {bytes} bytes");
        assert!(self.unit_bytes < self.limits.unit_bytes_max, "the generation was due long ago");
        let seal_id = u64::from(self.generation) << 48 | self.units;
        self.units += 1;
        self.unit_bytes += bytes as u64;
        (seal_id, bytes as u32)
    }
}

const _: () = assert!(HEAD_BYTES_MAX == 1964);

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("generation", &self.generation)
            .field("records", &self.records)
            .field("unit_bytes", &self.unit_bytes)
            .finish_non_exhaustive()
    }
}
