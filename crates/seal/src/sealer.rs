//! The sending direction (docs/SEAL.md sections 5 and 6).

use std::fmt;
use std::time::Duration;

use crate::head::{Kind, emit_prefix, header_bytes};
use crate::limits::Limits;
use crate::schedule::{Fresh, Ratchet, Use};
use crate::suite::Keyed;
use crate::{
    DESCRIPTOR_BYTES, DESCRIPTORS_MAX, Descriptor, HEAD_BYTES_MAX, PREFIX_BYTES, TAG_BYTES, UNIT_BYTES_MAX,
};

/// The sending direction of a connection.
///
/// The caller seals units with [`Self::seal_in_place`] or [`Self::seal_into`], possibly ahead of time, and begins each
/// in exactly one record by passing its descriptor to [`Self::seal_head`], provided that [`Self::carries`] is true
/// then. Records must be sent in the order of the calls. Between calls the sealer holds the keys and counters of the
/// current generation; [`crate::Renewal`] steps it to the next. Once [`Self::is_overdue`] is true the caller must end
/// the connection.
pub struct Sealer {
    limits: &'static Limits,
    ratchet: Ratchet,
    generation: u16,
    head: Keyed,
    data: Keyed,
    /// Records of all generations: the counter of the next head.
    counter: u64,
    records: u64,
    /// Units of the current generation: the number of the next unit.
    units: u64,
    /// Bytes of units of the current generation.
    unit_bytes: u64,
    /// Start of the current generation, as time since the channel was created.
    since: Duration,
    /// An exchange is in progress: no unit of the previous generation may begin.
    is_strict: bool,
}

impl Sealer {
    pub(crate) fn new(ratchet: Ratchet, limits: &'static Limits) -> Self {
        let (head, data) = (ratchet.keyed(Use::Head), ratchet.keyed(Use::Data));
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
            since: Duration::ZERO,
            is_strict: false,
        }
    }

    #[cfg(test)]
    pub(crate) fn ratchet(&self) -> &Ratchet {
        &self.ratchet
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, limits: &'static Limits) {
        self.limits = limits;
    }

    #[cfg(test)]
    pub(crate) fn counter(&self) -> u64 {
        self.counter
    }

    /// Seals a unit of 1 to [`UNIT_BYTES_MAX`] bytes in place.
    pub fn seal_in_place(&mut self, unit: &mut [u8]) -> Descriptor {
        let (seal_id, length) = self.next_unit(unit.len());
        Descriptor { seal_id, length, tag: self.data.seal(seal_id, &[], unit) }
    }

    /// Copies and seals a unit in one pass; both slices have the length of the unit.
    pub fn seal_into(&mut self, plain: &[u8], sealed: &mut [u8]) -> Descriptor {
        let (seal_id, length) = self.next_unit(plain.len());
        Descriptor { seal_id, length, tag: self.data.seal_into(seal_id, &[], plain, sealed) }
    }

    /// Appends prefix and sealed head to `out`. `header` is BHS and AHS; [`Self::carries`] must be true for every
    /// descriptor.
    pub fn seal_head(&mut self, header: &[u8], descriptors: &[Descriptor], out: &mut Vec<u8>) {
        assert_eq!(header.len(), header_bytes(header), "BHS and AHS");
        assert!(descriptors.len() <= DESCRIPTORS_MAX, "{} units begin in one record", descriptors.len());
        assert!(
            descriptors.iter().all(|descriptor| self.may_carry(descriptor)),
            "a unit outlived its generation"
        );
        let head_bytes = header.len() + descriptors.len() * DESCRIPTOR_BYTES;
        self.seal_record(Kind::Pdu, head_bytes, out, |out| {
            out.extend_from_slice(header);
            for descriptor in descriptors {
                descriptor.emit(out);
            }
        });
    }

    /// Appends prefix and sealed head of a control record to `out`.
    pub(crate) fn seal_control(&mut self, kind: Kind, message: &[u8], out: &mut Vec<u8>) {
        self.seal_record(kind, message.len(), out, |out| out.extend_from_slice(message));
    }

    /// Appends prefix and sealed head; `emit` appends the `head_bytes` of the head.
    fn seal_record(
        &mut self,
        kind: Kind,
        head_bytes: usize,
        out: &mut Vec<u8>,
        emit: impl FnOnce(&mut Vec<u8>),
    ) {
        assert!(self.records < self.limits.records_max, "the generation was due long ago");
        let prefix = emit_prefix(self.generation, kind, head_bytes);
        out.reserve(PREFIX_BYTES + head_bytes + TAG_BYTES);
        out.extend_from_slice(&prefix);
        let start = out.len();
        emit(out);
        let tag = self.head.seal(self.counter, &prefix, &mut out[start..]);
        out.extend_from_slice(&tag);
        self.counter += 1;
        self.records += 1;
    }

    /// Whether a unit that was sealed ahead may still begin: its generation is the current one, or the previous one if
    /// no exchange is in progress and the last step was less than 30 s ago. `now` is the time since the channel was
    /// created.
    pub fn carries(&self, descriptor: &Descriptor, now: Duration) -> bool {
        descriptor.generation() == self.generation
            || self.may_carry(descriptor) && now.saturating_sub(self.since) < self.limits.ahead_max
    }

    fn may_carry(&self, descriptor: &Descriptor) -> bool {
        let age_max = u16::from(!self.is_strict);
        self.generation.checked_sub(descriptor.generation()).is_some_and(|age| age <= age_max)
    }

    /// Whether an exchange is due by the bytes, records or age (an hour) of this direction.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.records >= self.limits.records_due
            || self.unit_bytes >= self.limits.unit_bytes_due
            || now >= self.due_at()
    }

    /// When an exchange becomes due without traffic.
    pub(crate) fn due_at(&self) -> Duration {
        self.since + self.limits.age_due
    }

    /// Whether this generation has reached its hard limit: nothing more may be sealed in it, and the connection ends.
    pub fn is_overdue(&self) -> bool {
        self.records >= self.limits.records_late || self.unit_bytes >= self.limits.unit_bytes_late
    }

    /// The current generation: that of the next head and unit.
    pub fn generation(&self) -> u16 {
        self.generation
    }

    /// Forbids units of the previous generation until the next step.
    pub(crate) fn be_strict(&mut self) {
        self.is_strict = true;
    }

    /// Steps to the next generation, to which the next record belongs. Panics in generation 65535.
    pub(crate) fn step(&mut self, fresh: &Fresh, now: Duration) {
        self.generation = self.generation.checked_add(1).expect("no exchange in the last generation");
        self.ratchet = self.ratchet.next(fresh);
        self.head = self.ratchet.keyed(Use::Head);
        self.data = self.ratchet.keyed(Use::Data);
        (self.records, self.units, self.unit_bytes) = (0, 0, 0);
        (self.since, self.is_strict) = (now, false);
    }

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
