//! Block devices and files of this machine: sysfs, uevents, mounts, signatures, locks, shared extents, thin pools.
//!
//! An [`Entry`] is a device as sysfs shows it at one moment: its number, generation (`diskseq`), size and limits, and
//! the devices beneath it. [`Devices`] holds the entries by node name, updates them by uevents, and reports when a name
//! no longer belongs to the disk that was opened. [`Kernel`] answers which storage lies on which, and which programs
//! use it.
//!
//! All files are read under a root directory, so that tests can run on a simulated machine. Their contents are not
//! trusted: numbers are bounded, text is cut, and an implausible value counts as absent. Nothing here protects against
//! races; the exclusive open of a device (`block`) and the [`lock`]s of a file do.
//!
//! Not here: I/O, and endpoints. This crate depends on no other crate of the project; `block` calls it when a path is
//! opened. Read sysfs(5) and `Documentation/ABI/stable/sysfs-block` first.

mod entry;
mod evidence;
mod fingerprint;
mod generic;
mod header_lock;
mod image;
mod kernel;
mod manager;
mod memory;
mod moment;
mod mounts;
mod names;
mod shared;
mod topology;
mod uevent;

pub mod lock;
pub mod signature;
pub mod thin;

pub use entry::{Entry, Limits, Traffic, TrafficFile};
pub use fingerprint::{Fingerprint, differing};
pub use generic::{Family, Generic, Namespace};
pub use header_lock::{HeaderLock, HeaderLockError};
pub use image::Image;
pub use kernel::{Kernel, Node, number_text};
pub use manager::{Devices, Lost};
pub use memory::memory_bytes_max;
pub use moment::utc;
pub use names::lasting_name;
pub use shared::{SharedError, unshared};
pub use topology::{Place, Users};
pub use uevent::{Monitor, Uevent};

#[cfg(test)]
mod tests;
