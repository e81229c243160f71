//! Operations that commands request from the storage, and their failures.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    pub lba: u64,
    pub blocks: u64,
}

/// One operation for the storage, already checked against capacity, limits and write protection: its blocks exist.
/// `blocks` may be zero (READ and WRITE of zero blocks are legal); the operation then succeeds without I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Media {
    pub op: MediaOp,
    /// First logical block; 0 for UNMAP.
    pub lba: u64,
    /// Number of logical blocks; for UNMAP the sum over its ranges.
    pub blocks: u64,
    /// DISABLE PAGE OUT: a hint that the blocks will not be accessed again soon.
    pub dpo: bool,
    pub(crate) then: Then,
}

/// Action of [`crate::LogicalUnit::finish`] after success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    Eject,
    /// Truncates the data-in to this allocation length, in bytes.
    Cut {
        allocation: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaOp {
    /// Reads the medium into data-in.
    Read {
        /// FUA: the returned blocks must be on the medium; a volatile cache writes its copy of them first.
        fua: bool,
    },
    /// Writes data-out to the medium.
    Write {
        /// FUA is set, or WCE is zero: the data (and its allocation) must be on the medium before
        /// [`finish`](crate::LogicalUnit::finish).
        durable: bool,
    },
    /// Checks that the blocks are readable and, depending on `compare`, equal to data-out.
    Verify { compare: Compare },
    /// Writes data-out to the medium, always durably, then acts as `Verify`.
    WriteVerify {
        /// BYTCHK. [`Compare::One`] does not occur.
        compare: Compare,
    },
    /// Makes all earlier writes durable. The storage may widen the range to the whole unit.
    Flush,
    /// Deallocates. The blocks then read as zeros (LBPRZ), so the storage writes zeros where it cannot deallocate.
    Unmap {
        /// Within the unit, none empty; they may overlap each other.
        ranges: Vec<Range>,
        /// WCE is zero: the effect must be durable before the command ends.
        durable: bool,
    },
    /// Writes one block of data-out, or zeros, to every block of the range.
    WriteSame {
        /// The initiator prefers deallocation. It is allowed only if the block is all zeros (LBPRZ is one, SBC-3 5.44.3
        /// table 110); otherwise the block is written.
        unmap: bool,
        /// NDOB: no data-out, the block is zeros.
        zero: bool,
        /// WCE is zero: the effect must be durable before the command ends.
        durable: bool,
    },
    /// Reports which blocks of the range are mapped. Ends with [`lba_status`](crate::LogicalUnit::lba_status); `finish`
    /// with success reports an unknown state. Nothing is read or written; the data-in comes from the outcome. Only thin
    /// units issue it.
    LbaStatus {
        /// Most extents to report, adjacent ones of the same state counted as one. At least 1.
        descriptors_max: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LbaExtent {
    /// Number of logical blocks; an empty extent is ignored.
    pub blocks: u64,
    /// The storage has, or may have, data for these blocks. Otherwise they read as zeros (LBPRZ).
    pub mapped: bool,
}

/// BYTCHK of VERIFY and WRITE AND VERIFY (SBC-3 5.33 table 96).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// 00b: only readability; no data-out.
    None,
    /// 01b: every block against its own block of data-out.
    Each,
    /// 11b: every block against the same single block of data-out.
    One,
}

impl Media {
    pub(crate) const fn new(op: MediaOp, lba: u64, blocks: u64) -> Self {
        Self { op, lba, blocks, dpo: false, then: Then::Nothing }
    }

    /// Whether the operation is one on this block.
    pub(crate) fn concerns(&self, lba: u64) -> bool {
        let is_in = |first: u64, blocks: u64| lba.checked_sub(first).is_some_and(|index| index < blocks);
        match &self.op {
            MediaOp::Unmap { ranges, .. } => ranges.iter().any(|range| is_in(range.lba, range.blocks)),
            MediaOp::Flush => false,
            _ => is_in(self.lba, self.blocks),
        }
    }

    pub const fn data_in_bytes(&self, block_size: u32) -> u64 {
        match self.op {
            MediaOp::Read { .. } => self.blocks * block_size as u64,
            _ => 0,
        }
    }

    /// Bytes of data-out that the command uses. Zero for VERIFY with BYTCHK 00b, even if the initiator offers data:
    /// that is a residual.
    pub const fn data_out_bytes(&self, block_size: u32) -> u64 {
        let block = block_size as u64;
        match self.op {
            MediaOp::Write { .. }
            | MediaOp::WriteVerify { .. }
            | MediaOp::Verify { compare: Compare::Each } => self.blocks * block,
            MediaOp::Verify { compare: Compare::One } | MediaOp::WriteSame { zero: false, .. } => block,
            _ => 0,
        }
    }

    /// Whether the command can use a data-out buffer of `offered` bytes. If not, nothing is transferred and the command
    /// ends with [`LogicalUnit::misfit`](crate::LogicalUnit::misfit).
    ///
    /// A longer buffer is usable if the data is at its start; the excess is a residual. A shorter one is usable by a
    /// write in whole blocks: those are written, the rest is a residual. A partial block is not written. A comparison
    /// needs all of its data. WRITE SAME needs exactly one block, or with UNMAP zero bytes, which mean zeros (libiscsi
    /// and old Linux send that).
    pub const fn accepts_data_out(&self, offered: u64, block_size: u32) -> bool {
        let (block, needed) = (block_size as u64, self.data_out_bytes(block_size));
        match self.op {
            MediaOp::Write { .. } | MediaOp::WriteVerify { .. } => {
                offered >= needed || offered.is_multiple_of(block)
            }
            MediaOp::Verify { compare: Compare::Each } => offered >= needed,
            MediaOp::Verify { compare: Compare::One } => offered == block,
            MediaOp::WriteSame { unmap, zero: false, .. } => offered == block || (unmap && offered == 0),
            _ => true,
        }
    }

    pub const fn writes(&self) -> bool {
        match self.op {
            MediaOp::Read { .. } | MediaOp::Verify { .. } | MediaOp::Flush | MediaOp::LbaStatus { .. } => {
                false
            }
            MediaOp::Write { .. }
            | MediaOp::WriteVerify { .. }
            | MediaOp::Unmap { .. }
            | MediaOp::WriteSame { .. } => true,
        }
    }

    /// Whether success guarantees that the effect survives a power failure.
    pub const fn durable(&self) -> bool {
        match self.op {
            MediaOp::Write { durable }
            | MediaOp::Unmap { durable, .. }
            | MediaOp::WriteSame { durable, .. } => durable,
            MediaOp::WriteVerify { .. } | MediaOp::Flush => true,
            MediaOp::Read { .. } | MediaOp::Verify { .. } | MediaOp::LbaStatus { .. } => false,
        }
    }
}

/// Why the storage failed. [`crate::LogicalUnit::finish`] converts it to sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaError {
    /// The blocks cannot be read (03h 11h/00h) or written (03h 0Ch/00h).
    Medium {
        /// The first of them, where it is known: INFORMATION (SBC-3 4.18.1).
        lba: Option<u64>,
    },
    /// No space to allocate: DATA PROTECT 27h/07h SPACE ALLOCATION FAILED WRITE PROTECT. On it a cluster suspends and
    /// can resume once space was freed.
    NoSpace,
    /// The storage became read-only: DATA PROTECT 27h/00h.
    ReadOnly,
    /// The storage shrank: ILLEGAL REQUEST 21h/00h.
    OutOfRange,
    /// Data-out differs from the medium: MISCOMPARE 1Dh/00h.
    Miscompare {
        /// Offset in data-out of the first differing byte; for BYTCHK 11b in the verified range.
        offset: u64,
    },
    /// Abandoned before completion, to be retried by the initiator: ABORTED COMMAND 00h/00h.
    Aborted,
    /// The storage is temporarily unreachable: NOT READY 04h/xxh.
    NotReady {
        /// 00h cause not reportable, 01h becoming ready, 02h initializing command required, 03h manual
        /// intervention required.
        ascq: u8,
    },
    /// Fault of neither medium nor initiator: HARDWARE ERROR 44h/00h INTERNAL TARGET FAILURE.
    Hardware,
    /// Accepted data did not reach the medium: MEDIUM ERROR 0Ch/00h, for this command and every later one that needs
    /// the medium, until [`crate::LogicalUnit::reopened`]. A retried flush is not trusted: it could succeed without the
    /// lost data.
    FlushFailed,
    /// The storage may have lost its volatile cache, for example by a power failure: MEDIUM ERROR 0Ch/00h for this
    /// command, and once for the next flush of every other nexus. The storage stays in use; data written again and
    /// flushed is safe.
    CacheLost,
}
