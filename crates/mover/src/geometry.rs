//! The position of a plan's range at both ends, and the requests of a run at each end.

use block::{Capability, Endpoint};

use crate::error::End;
use crate::parts::Parts;
use crate::plan::{Plan, granularity};

/// The parameters of source and destination when the plan was checked.
pub(crate) struct Geometry {
    parts: [Parts; 2],
    /// Offset of the range at each end.
    pub(crate) offsets: [u64; 2],
}

impl Geometry {
    /// `unit` is that of the checked plan.
    pub(crate) fn new(ends: [&dyn Endpoint; 2], plan: &Plan, unit: u32) -> Self {
        let parts = |end: &Capability| Parts::new(end.max_transfer_bytes, granularity(end), unit);
        let parts = ends.map(|end| parts(end.capability()));
        Self { parts, offsets: [plan.src_offset, plan.dst_offset] }
    }

    pub(crate) fn parts(&self, end: End) -> Parts {
        self.parts[end.index()]
    }

    pub(crate) fn offset(&self, end: End, at: u64) -> u64 {
        self.offsets[end.index()] + at
    }
}
