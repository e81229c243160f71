//! Disks used by their own commands: this crate builds the READs and WRITEs of a copy and passes them to the device,
//! one command and one completion each, without file system, block layer or page cache.
//!
//! `/dev/sg0` takes SCSI commands (`sg/`), `/dev/ng0n1` NVMe commands (`nvme/`). The name of such a node selects this
//! crate; there is no option for it.
//!
//! Pure modules: `disk.rs` (properties of a device), `disk_command.rs` (block requests as commands), and for each
//! family the commands and the interpretation of their results. Data from a device is untrusted until one of these modules has
//! checked it. `endpoint.rs` queues requests over a `Channel`, which passes commands to the kernel; `flights.rs` is
//! shared by the channels. `guard.rs` holds the block device of the same disk, so that it cannot be mounted.
//!
//! The crate does not determine what lies beneath a device and which programs use it: see `block::device`. Read
//! docs/internals/passthrough.md first.

mod disk;
mod disk_command;
mod endpoint;
mod flights;
mod guard;
mod medium;
mod nvme;
mod sg;

pub use medium::PassthroughMedium;
pub use nvme::NvmeCopy;
