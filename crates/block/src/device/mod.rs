//! What this machine knows of its block devices: the device manager.
//!
//! An [`Entry`] is a device as sysfs shows it at one moment: its number, its generation (`diskseq`), its size and limits and
//! what lies beneath it. [`Devices`] holds the entries by node name, keeps them in step by uevents, and says when a name no
//! longer means the disk that was opened. [`Kernel`] answers questions about what is stored on what and who uses it.
//!
//! Everything is read from a root directory, so that tests run on a made-up machine. What is read is not believed: numbers
//! are bounded, text is cut, and what makes no sense counts as absent. Nothing here protects against races; the exclusive
//! open and the locks of `file` do that.
//!
//! Not here: I/O. Read sysfs(5) and `Documentation/ABI/stable/sysfs-block` first.

mod entry;
mod fingerprint;
mod generic;
mod kernel;
mod manager;
mod mounts;
mod topology;
mod uevent;

pub use entry::{Entry, Limits, Traffic};
pub use fingerprint::lasting_name;
pub use generic::{Family, Generic, Namespace};
pub(crate) use kernel::parse_number;
pub use kernel::{Kernel, Node, number_text};
pub use manager::{Devices, Lost};
pub use topology::Users;
pub use uevent::{Monitor, Uevent};

#[cfg(test)]
mod tests;
