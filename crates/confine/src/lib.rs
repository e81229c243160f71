//! What a server may still do once everything it serves is open.
//!
//! [`Policy::of`] says it as data, from a description of what is served: files, capabilities, system calls. [`Policy::apply`] binds the
//! calling thread to it, and the threads that this one starts from then on; a thread that runs already is not bound, so
//! each calls it. What the kernel lacks is reported and left out: a server that cannot be confined still serves.
//!
//! The parts, in the order in which they are applied: no_new_privs, the capabilities (all sets, the bounding set too), Landlock, seccomp.
//! A seccomp filter does not see the operations of an io_uring; what those may do, the ring itself was restricted to by
//! `io::uring`, and a new ring cannot be made.

mod calls;
mod capability;
mod filter;
mod paths;

use std::path::PathBuf;

pub use capability::Capabilities;
pub use paths::{Access, Grant};

/// What is served, as far as it decides what the server needs.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files and devices of the LUNs, and directories of files: a reload may add others there.
    pub storage: Vec<PathBuf>,
    /// Directories in which storage may be opened later (`[server] storage`).
    pub storage_directories: Vec<PathBuf>,
    /// Directories of the server's own state.
    pub state: Vec<PathBuf>,
    /// Configuration, lists of peers, keys, secrets: read again by a reload. They are replaced by renaming another over them, so
    /// it is their directories that are readable.
    pub configuration: Vec<PathBuf>,
    /// Names of hosts (a LUN is remote) or of users are looked up.
    pub resolves: bool,
    /// A LUN takes SCSI commands (`/dev/sgN`).
    pub scsi: bool,
    /// A LUN takes NVMe commands (`/dev/ngXnY`).
    pub nvme: bool,
}

/// What is left to a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What may be opened, beneath which paths.
    pub grants: Vec<Grant>,
    /// What is kept of the capabilities that the process has.
    pub capabilities: Capabilities,
    /// Whether rings of io_uring may still be made: every way to an NVMe device is one.
    pub makes_rings: bool,
}

/// What became of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Parts that do not work here, and why.
    pub missing: Vec<String>,
}

impl Policy {
    /// The least that serves these needs.
    pub fn of(needs: &Needs) -> Self {
        let mut capabilities = Capabilities::NONE;
        if needs.scsi {
            // Commands that are not on the kernel's list for everybody (drivers/scsi/scsi_ioctl.c).
            capabilities = capabilities.and(Capabilities::SYS_RAWIO);
        }
        if needs.nvme {
            // Before Linux 6.2 every passthrough command, since then those that it does not know to be harmless.
            capabilities = capabilities.and(Capabilities::SYS_ADMIN);
        }
        if !needs.storage_directories.is_empty() {
            // Images there may belong to others, who run virtual machines.
            capabilities = capabilities.and(Capabilities::DAC_OVERRIDE);
        }
        Self { grants: paths::grants(needs), capabilities, makes_rings: needs.nvme }
    }

    /// Binds the calling thread, and those that it will start.
    pub fn apply(&self) -> Report {
        let mut report = Report::default();
        let mut note = |part: &str, result: Result<(), String>| {
            if let Err(cause) = result {
                report.missing.push(format!("{part}: {cause}"));
            }
        };
        let privileges = calls::no_new_privileges().map_err(|error| error.to_string());
        note("no_new_privs", privileges);
        note("capabilities", self.capabilities.keep_only().map_err(|error| error.to_string()));
        note("Landlock", paths::restrict(&self.grants));
        note("seccomp", filter::restrict(self.makes_rings));
        report
    }
}

#[cfg(test)]
mod tests;
