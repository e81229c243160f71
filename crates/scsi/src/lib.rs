//! SCSI without I/O: the device server of one logical unit, and the formats that both roles share.
//!
//! [`LogicalUnit`] is a machine. In: a command descriptor block (CDB). Out: a finished [`Outcome`], a request for a
//! parameter list ([`Step::Collect`]), one storage operation ([`Step::Media`]) whose result the caller passes to
//! [`LogicalUnit::finish`] or [`LogicalUnit::lba_status`], or a copy ([`Step::Copy`]). It never waits or reads payload.
//!
//! [`cdb`] builds and describes CDBs; [`inquiry`], [`capacity`] and [`mode`] parse the data that a device returns;
//! [`Sense`] is both emitted and parsed. All parsed bytes come from untrusted peers: lengths are checked, no input
//! causes a panic, strings are made printable.
//!
//! Read first: SAM-5 clause 5 (command model, unit attentions), SPC-4 clause 6, SBC-3 clause 5. The claimed versions
//! are SPC-4 and SBC-3; where SPC-5 or SBC-4 is clearer its clause is cited. `docs/internals/scsi.md` has the order of
//! checks and the decisions.
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
