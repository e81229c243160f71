//! The smallest confinement: a process that computes on memory it was given and waits for descriptors it was given.

use std::io::Result;

use crate::{Capabilities, Report, calls, filter, paths};

/// Descriptors that an isolated process may have open.
const DESCRIPTORS_MAX: u64 = 512;
/// Private memory of an isolated process, bytes.
const PRIVATE_BYTES_MAX: u64 = 128 << 20;

/// No file, no network, no other process, no right; few system calls.
#[derive(Clone, Copy, Debug)]
pub struct Isolation {
    /// The user and group that the process becomes. A number without an account: no file and no other process belongs to
    /// it.
    pub user: u32,
    /// The process reads and writes frames of a network device that it was given.
    pub has_device: bool,
}

impl Isolation {
    /// Binds this process, which must have one thread, for ever. What the kernel or missing rights do not allow is left
    /// out and reported: without root that is the user.
    ///
    /// The order matters: an own network namespace and another user need capabilities, a change of the user takes back
    /// the death signal and allows tracing where `fs.suid_dumpable` says so, and the last step forbids all others.
    pub fn apply(&self) -> Report {
        let mut report = Report::default();
        let mut note = |part: &str, result: std::result::Result<(), String>| {
            if let Err(cause) = result {
                report.missing.push(format!("{part}: {cause}"));
            }
        };
        let text = |result: Result<()>| result.map_err(|error| error.to_string());
        note("no_new_privs", text(calls::no_new_privileges()));
        note("an empty network namespace", text(leave_network()));
        note("the bounding set of capabilities", text(Capabilities::NONE.bound()));
        note("limits", text(limit()));
        note("a user of its own", text(calls::set_user(self.user)));
        note("capabilities", text(Capabilities::NONE.keep_only()));
        note("not to be traced", text(calls::forbid_tracing()));
        note("death with its parent", text(calls::die_with_parent()));
        note("Landlock", paths::restrict(&[]));
        note("seccomp", filter::isolate(self.has_device));
        report
    }
}

/// An empty network namespace; for a user without CAP_SYS_ADMIN within a user namespace of its own.
fn leave_network() -> Result<()> {
    calls::unshare(libc::CLONE_NEWNET)
        .or_else(|error| calls::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).map_err(|_| error))
}

fn limit() -> Result<()> {
    for (resource, most) in [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_NPROC, 0),
        (libc::RLIMIT_MSGQUEUE, 0),
        (libc::RLIMIT_NOFILE, DESCRIPTORS_MAX),
        (libc::RLIMIT_DATA, PRIVATE_BYTES_MAX),
    ] {
        calls::limit(resource, most)?;
    }
    Ok(())
}
