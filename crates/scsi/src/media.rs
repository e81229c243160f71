//! The work a command asks of the storage, and how that work can fail.

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// First logical block.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
}

/// One piece of work for the storage. Checked against capacity, limits and write protection: its blocks exist.
///
/// `blocks` may be zero (READ and WRITE of nothing are legal); the work is then done at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Media {
    /// What to do.
    pub op: MediaOp,
    /// First logical block; 0 for UNMAP.
    pub lba: u64,
    /// How many logical blocks; for UNMAP the sum over its ranges.
    pub blocks: u64,
    /// DISABLE PAGE OUT: a hint that the blocks will not be wanted again soon.
    pub dpo: bool,
    pub(crate) then: Then,
}

/// What [`crate::LogicalUnit::finish`] does after success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    Eject,
    /// Cuts the data it makes to this allocation length, in bytes.
    Cut {
        allocation: u32,
    },
}

/// The kinds of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaOp {
    /// Medium to data-in.
    Read {
        /// FUA: what is returned must be on the medium; a volatile cache writes its copy of the blocks first.
        fua: bool,
    },
    /// Data-out to medium.
    Write {
        /// FUA, or WCE is zero: on the medium (allocation included) before [`finish`](crate::LogicalUnit::finish).
        durable: bool,
    },
    /// The blocks must be readable and, if asked, equal to data-out.
    Verify {
        /// BYTCHK.
        compare: Compare,
    },
    /// Data-out to medium, always durable, then as `Verify`.
    WriteVerify {
        /// BYTCHK. [`Compare::One`] does not occur.
        compare: Compare,
    },
    /// Everything written before goes to the medium. The range may be widened to the whole unit.
    Flush,
    /// Deallocate. Afterwards the blocks read as zeros (LBPRZ), so zero what can not be deallocated.
    Unmap {
        /// Never overlapping the end of the unit; may overlap each other; none is empty.
        ranges: Vec<Range>,
        /// WCE is zero: not only in a volatile cache before the command ends.
        durable: bool,
    },
    /// One block of data-out, or zeros, to every block of the range.
    WriteSame {
        /// The initiator likes the blocks deallocated. Allowed only if the block written is all zeros
        /// (LBPRZ is one, SBC-3 5.44.3 table 110); otherwise write the block.
        unmap: bool,
        /// NDOB: there is no data-out, the block is zeros.
        zero: bool,
        /// WCE is zero.
        durable: bool,
    },
    /// Which blocks of the range are mapped. Ends with [`lba_status`](crate::LogicalUnit::lba_status); `finish`
    /// with success says that the storage does not know. Nothing travels from or to the medium, the answer is
    /// the outcome's data. Only thin units ask.
    LbaStatus {
        /// More extents than this are not wanted, neighbours of the same state counted as one. At least 1.
        descriptors_max: u32,
    },
}

/// A run of blocks in the same state, see [`MediaOp::LbaStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LbaExtent {
    /// How many logical blocks; an empty extent is passed over.
    pub blocks: u64,
    /// The storage has, or may have, something for these blocks. If not they read as zeros (LBPRZ).
    pub mapped: bool,
}

/// BYTCHK of VERIFY and WRITE AND VERIFY (SBC-3 5.33 table 96).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// 00b: only readable. Nothing travels for the comparison.
    None,
    /// 01b: every block with its block of data-out.
    Each,
    /// 11b: every block with the one block of data-out.
    One,
}

impl Media {
    pub(crate) const fn new(op: MediaOp, lba: u64, blocks: u64) -> Self {
        Self { op, lba, blocks, dpo: false, then: Then::Nothing }
    }

    /// Bytes that travel to the initiator when all goes well.
    pub const fn data_in_bytes(&self, block_size: u32) -> u64 {
        match self.op {
            MediaOp::Read { .. } => self.blocks * block_size as u64,
            _ => 0,
        }
    }

    /// Bytes the command takes from the initiator. For VERIFY with BYTCHK 00b that is zero, even where an
    /// initiator offers data: whatever it sends is a residual.
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

    /// Whether a data-out buffer of `offered` bytes can serve. If not, nothing is transferred and the command ends with
    /// [`LogicalUnit::misfit`](crate::LogicalUnit::misfit).
    ///
    /// A buffer that is longer than needed serves where its first bytes are the data; what is beyond is a residual. One
    /// that is shorter serves a write in whole blocks: those are written, the rest is a residual. Half a block is not
    /// written, a comparison needs all of its data, and a pattern cannot be half there: WRITE SAME needs exactly one
    /// block, or nothing at all together with UNMAP, which then means zeros (as libiscsi and old Linux send it).
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

    /// Whether the blocks may differ afterwards.
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

    /// Whether success promises that the effect survives a power cut.
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

/// Why the storage could not do it. [`crate::LogicalUnit::finish`] turns it into sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaError {
    /// The blocks can not be read (03h 11h/00h) or written (03h 0Ch/00h).
    Medium,
    /// No room to allocate: DATA PROTECT 27h/07h SPACE ALLOCATION FAILED WRITE PROTECT. A cluster stops here
    /// and can go on when room has been made.
    NoSpace,
    /// The storage became read-only: DATA PROTECT 27h/00h.
    ReadOnly,
    /// The storage shrank behind our back: ILLEGAL REQUEST 21h/00h.
    OutOfRange,
    /// Data-out differs from the medium: MISCOMPARE 1Dh/00h.
    Miscompare {
        /// Offset in data-out of the first byte that differs; for BYTCHK 11b in the verified range.
        offset: u64,
    },
    /// Given up half-way; the initiator should try again: ABORTED COMMAND 00h/00h.
    Aborted,
    /// The storage can not be reached now: NOT READY 04h/xxh.
    NotReady {
        /// 00h cause not reportable, 01h becoming ready, 02h initializing command required, 03h manual
        /// intervention required.
        ascq: u8,
    },
    /// Neither medium nor initiator is to blame: HARDWARE ERROR 44h/00h INTERNAL TARGET FAILURE.
    Hardware,
    /// Data that had been accepted did not reach the medium: MEDIUM ERROR 0Ch/00h, for this command and for
    /// every later one that needs the medium, until [`crate::LogicalUnit::reopened`]. Nothing is retried
    /// into success.
    FlushFailed,
    /// The storage may have lost what it held in a volatile cache, as when its power failed: MEDIUM ERROR 0Ch/00h for
    /// this command, and once for the next flush of every other nexus. The storage goes on; what is written again
    /// and flushed is safe.
    CacheLost,
}
