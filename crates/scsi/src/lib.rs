//! SCSI without I/O: the device server of one logical unit, and the words both roles speak.
//!
//! [`LogicalUnit`] is a machine. A command descriptor block goes in; out comes either a finished [`Outcome`]
//! (status, sense, data-in), a wish for a parameter list ([`Step::Collect`]) or one piece of work for the
//! storage ([`Step::Media`]) whose result is handed back through [`LogicalUnit::finish`]
//! ([`LogicalUnit::lba_status`] where the result is more than success). It never touches
//! payload, never waits, and knows neither sockets nor clocks.
//!
//! [`cdb`] builds and explains command descriptor blocks, [`inquiry`], [`capacity`] and [`mode`] read what
//! a device answers, and [`Sense`] goes both ways. Everything that parses takes bytes from a peer nobody
//! vouches for: lengths are checked, nothing panics, strings come out printable.
//!
//! Read first: SAM-5 clause 5 (command model, unit attentions), SPC-4 clause 6, SBC-3 clause 5. The claimed
//! versions are SPC-4 and SBC-3; where SPC-5 or SBC-4 said it better the clause is named. See
//! `docs/internals/scsi.md` for the order of checks and the decisions.
#![forbid(unsafe_code)]

pub mod capacity;
pub mod cdb;
pub mod copy;
pub mod inquiry;
pub mod limits;
pub mod lun;
mod media;
pub mod mode;
mod outcome;
mod sense;
mod text;
mod unit;

pub use lun::no_unit;
pub use media::{Compare, LbaExtent, Media, MediaError, MediaOp, Range};
pub use outcome::{Outcome, Status, Step};
pub use sense::{Sense, SenseKey, Specific};
pub use unit::{CopyEnd, LogicalUnit, NexusId, Rights, UnitConfig};
