//! Restricts a server, once all that it serves is open, to the files, capabilities and system calls that it still
//! needs.
//!
//! [`Policy::of`] derives the policy, as data, from a description of what is served. [`Policy::apply`] binds the
//! calling thread and the threads that it starts later; threads that already run are not bound, so each calls it. Parts
//! that the kernel lacks are reported and omitted: a server that cannot be confined still serves.
//!
//! [`Isolation`] is for processes that need no file at all: a loop over memory and descriptors that it was given.
//!
//! The parts of a policy, in the order of application: no_new_privs, the capabilities (all sets, with the bounding set), Landlock,
//! seccomp. A seccomp filter does not see the operations of an io_uring; `io::uring` has restricted those of existing
//! rings, and new rings cannot be created unless [`Policy::makes_rings`].

mod calls;
mod capability;
mod filter;
mod isolate;
mod paths;

use std::path::PathBuf;

pub use capability::Capabilities;
pub use isolate::Isolation;
pub use paths::{Access, Grant};

#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files and devices of the LUNs, and directories of files, to which a reload may add others.
    pub storage: Vec<PathBuf>,
    /// Directories in which storage may be opened later (`[server] storage`).
    pub storage_directories: Vec<PathBuf>,
    pub state: Vec<PathBuf>,
    /// Configuration, lists of peers, keys, secrets: read again by a reload. They are replaced by renaming a new file
    /// over them, so their directories are made readable.
    pub configuration: Vec<PathBuf>,
    /// Names of hosts (for a remote LUN) or of users are resolved.
    pub resolves: bool,
    /// A LUN takes SCSI commands (`/dev/sgN`).
    pub scsi: bool,
    /// A LUN takes NVMe commands (`/dev/ngXnY`).
    pub nvme: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub grants: Vec<Grant>,
    pub capabilities: Capabilities,
    /// Whether io_uring_setup stays allowed: each channel to an NVMe device is a ring.
    pub makes_rings: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Parts that are not in force, and why.
    pub missing: Vec<String>,
}

impl Policy {
    pub fn of(needs: &Needs) -> Self {
        let mut capabilities = Capabilities::NONE;
        if needs.scsi {
            // For commands outside of the kernel's list for unprivileged processes (drivers/scsi/scsi_ioctl.c).
            capabilities = capabilities.and(Capabilities::SYS_RAWIO);
        }
        if needs.nvme {
            // Before Linux 6.2 for every passthrough command, since then for those not known to be harmless.
            capabilities = capabilities.and(Capabilities::SYS_ADMIN);
        }
        if !needs.storage_directories.is_empty() {
            // Images there may belong to other users, who run virtual machines.
            capabilities = capabilities.and(Capabilities::DAC_OVERRIDE);
        }
        Self { grants: paths::grants(needs), capabilities, makes_rings: needs.nvme }
    }

    /// Binds the calling thread, and the threads that it starts later.
    pub fn apply(&self) -> Report {
        let mut report = Report::default();
        let mut note = |part: &str, result: Result<(), String>| {
            if let Err(cause) = result {
                report.missing.push(format!("{part}: {cause}"));
            }
        };
        note("no_new_privs", calls::no_new_privileges().map_err(|error| error.to_string()));
        note("capabilities", self.capabilities.keep_only().map_err(|error| error.to_string()));
        note("Landlock", paths::restrict(&self.grants));
        note("seccomp", filter::restrict(self.makes_rings));
        report
    }
}

#[cfg(test)]
mod tests;
