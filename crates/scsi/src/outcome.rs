//! The result of a command, and the next step towards it.

use crate::copy::CopyList;
use crate::{Media, Sense, SenseKey};

/// Status codes of SAM-5 5.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    Good = 0x00,
    CheckCondition = 0x02,
    /// PRE-FETCH: all blocks are in the cache.
    ConditionMet = 0x04,
    Busy = 0x08,
    ReservationConflict = 0x18,
    TaskSetFull = 0x28,
    AcaActive = 0x30,
    /// Aborted by another I_T nexus while TAS is one.
    TaskAborted = 0x40,
}

impl Status {
    /// The status of this code; `None` if SAM-5 does not define it.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "GOOD",
            Self::CheckCondition => "CHECK CONDITION",
            Self::ConditionMet => "CONDITION MET",
            Self::Busy => "BUSY",
            Self::ReservationConflict => "RESERVATION CONFLICT",
            Self::TaskSetFull => "TASK SET FULL",
            Self::AcaActive => "ACA ACTIVE",
            Self::TaskAborted => "TASK ABORTED",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    pub status: Status,
    /// Present exactly when the status is CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Data-in built by the device server (INQUIRY, MODE SENSE, ..), already cut to the allocation length. Empty for
    /// commands with data from the medium.
    pub data: Vec<u8>,
}

impl Outcome {
    pub const fn good() -> Self {
        Self { status: Status::Good, sense: None, data: Vec::new() }
    }

    pub const fn data(data: Vec<u8>) -> Self {
        Self { status: Status::Good, sense: None, data }
    }

    pub const fn check(sense: Sense) -> Self {
        Self { status: Status::CheckCondition, sense: Some(sense), data: Vec::new() }
    }

    /// RESERVATION CONFLICT (no sense data, SAM-5 5.3.1).
    pub const fn conflict() -> Self {
        Self { status: Status::ReservationConflict, sense: None, data: Vec::new() }
    }

    /// BUSY, for an edge that cannot accept the command now.
    pub const fn busy() -> Self {
        Self { status: Status::Busy, sense: None, data: Vec::new() }
    }

    /// TASK SET FULL, for an edge whose task table is full.
    pub const fn task_set_full() -> Self {
        Self { status: Status::TaskSetFull, sense: None, data: Vec::new() }
    }

    /// ABORTED COMMAND with a code of the transport, such as 0Bh 47h/05h PROTOCOL SERVICE CRC ERROR.
    pub const fn aborted(asc: u8, ascq: u8) -> Self {
        Self::check(Sense::new(SenseKey::AbortedCommand, asc, ascq))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    Done(Outcome),
    /// Collect data-out, then call [`LogicalUnit::parameters`](crate::LogicalUnit::parameters) with the same CDB. If
    /// the initiator offers less than the list has, end the command with
    /// [`LogicalUnit::misfit`](crate::LogicalUnit::misfit).
    Collect {
        /// PARAMETER LIST LENGTH of the CDB.
        list_bytes: u32,
        /// Bytes to collect: all of them, but at most
        /// [`PARAMETER_LIST_MAX_BYTES`](crate::limits::PARAMETER_LIST_MAX_BYTES).
        bytes: u32,
    },
    /// Execute the operation on the storage, then call [`LogicalUnit::finish`](crate::LogicalUnit::finish).
    Media(Media),
    /// Find the units of the list, check each with [`LogicalUnit::copies`](crate::LogicalUnit::copies), copy segment by
    /// segment, then call [`LogicalUnit::copied`](crate::LogicalUnit::copied) of this unit.
    Copy(CopyList),
}
