//! Disks by their own commands: the READs and WRITEs of a copy are built here and handed to the device as they are, one
//! command and one completion each. No file system, no block layer, no page cache between.
//!
//! `/dev/sg0` takes SCSI commands (`sg/`), `/dev/ng0n1` NVMe commands (`nvme/`). Whoever names such a node asks for just this,
//! so there is no option for it.
//!
//! Pure: `disk.rs` (what a device is), `step.rs` (block requests as commands), and of each family how a command is built
//! and how its answer is judged. What a device answers is hostile until one of them has looked at it. `endpoint.rs` queues
//! requests over a `Channel`, which carries commands; only channels talk to the kernel, and `flights.rs` is what they have in common. `guard.rs` holds the disk's other
//! face, the block device, so that nobody mounts it meanwhile.
//!
//! Not here: what lies beneath a device and who uses it (`block::device`).

mod disk;
mod endpoint;
mod flights;
mod guard;
mod medium;
mod nvme;
mod sg;
mod step;

pub use medium::PassthroughMedium;
pub use nvme::NvmeCopy;
