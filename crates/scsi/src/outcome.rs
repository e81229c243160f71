//! What became of a command.

use crate::copy::CopyList;
use crate::{Media, Sense, SenseKey};

/// Status codes of SAM-5 5.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Completed.
    Good = 0x00,
    /// Sense data says what happened.
    CheckCondition = 0x02,
    /// PRE-FETCH: everything is in the cache.
    ConditionMet = 0x04,
    /// Try again later.
    Busy = 0x08,
    /// Another I_T nexus holds a reservation.
    ReservationConflict = 0x18,
    /// No room in the task set.
    TaskSetFull = 0x28,
    /// An ACA condition exists.
    AcaActive = 0x30,
    /// Aborted by another I_T nexus while TAS is one.
    TaskAborted = 0x40,
}

impl Status {
    /// The status with this code; `None` for a code SAM-5 does not define.
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

    /// The name as SAM-5 prints it.
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

/// A finished command, as the device server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// Goes into the SCSI Response.
    pub status: Status,
    /// Present exactly when the status is CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Data-in made by the device server (INQUIRY, MODE SENSE, ..), already cut to the allocation length.
    /// Empty for commands whose data comes from the medium.
    pub data: Vec<u8>,
}

impl Outcome {
    /// GOOD without data. Does not allocate.
    pub const fn good() -> Self {
        Self { status: Status::Good, sense: None, data: Vec::new() }
    }

    /// GOOD with data-in.
    pub const fn data(data: Vec<u8>) -> Self {
        Self { status: Status::Good, sense: None, data }
    }

    /// CHECK CONDITION.
    pub const fn check(sense: Sense) -> Self {
        Self { status: Status::CheckCondition, sense: Some(sense), data: Vec::new() }
    }

    /// RESERVATION CONFLICT (no sense data, SAM-5 5.3.1).
    pub const fn conflict() -> Self {
        Self { status: Status::ReservationConflict, sense: None, data: Vec::new() }
    }

    /// BUSY, for an edge that can not take the command now.
    pub const fn busy() -> Self {
        Self { status: Status::Busy, sense: None, data: Vec::new() }
    }

    /// TASK SET FULL, for an edge whose task table is full.
    pub const fn task_set_full() -> Self {
        Self { status: Status::TaskSetFull, sense: None, data: Vec::new() }
    }

    /// ABORTED COMMAND with a code of the transport's choosing, such as 0Bh 47h/05h PROTOCOL SERVICE CRC ERROR.
    pub const fn aborted(asc: u8, ascq: u8) -> Self {
        Self::check(Sense::new(SenseKey::AbortedCommand, asc, ascq))
    }
}

/// What the caller has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Nothing: answer the initiator with this.
    Done(Outcome),
    /// Gather data-out, then call [`LogicalUnit::parameters`](crate::LogicalUnit::parameters) with the same CDB. If the
    /// initiator offers less than the list has, end the command with [`LogicalUnit::misfit`](crate::LogicalUnit::misfit).
    Collect {
        /// PARAMETER LIST LENGTH of the CDB.
        list_bytes: u32,
        /// How much of that to gather: all of it, but never more than
        /// [`PARAMETER_LIST_MAX_BYTES`](crate::limits::PARAMETER_LIST_MAX_BYTES).
        bytes: u32,
    },
    /// Let the storage act, then call [`LogicalUnit::finish`](crate::LogicalUnit::finish).
    Media(Media),
    /// Find what the list names, ask every unit of it ([`LogicalUnit::copies`](crate::LogicalUnit::copies)), copy
    /// segment after segment, then call [`LogicalUnit::copied`](crate::LogicalUnit::copied) of this unit.
    Copy(CopyList),
}
