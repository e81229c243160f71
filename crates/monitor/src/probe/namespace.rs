//! Sockets of another process's network namespace.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Why sockets in a process's network namespace cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("no process has the number {0}")]
    NoProcess(u32),
    #[error("the network namespace of process {pid} cannot be entered: {error}")]
    Entering { pid: u32, error: io::Error },
    #[error("{0}")]
    Opening(#[from] io::Error),
}

/// Runs `open` in the network namespace of a process; sockets that it opens stay there. Another namespace than one's own
/// is entered by a thread of its own, which ends with `open`, and needs CAP_SYS_ADMIN in the user namespace that owns it.
pub fn in_namespace<T: Send>(
    pid: u32,
    open: impl FnOnce() -> io::Result<T> + Send,
) -> Result<T, NamespaceError> {
    let path = format!("/proc/{pid}/ns/net");
    let entering = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => NamespaceError::NoProcess(pid),
        _ => NamespaceError::Entering { pid, error },
    };
    let theirs = match File::open(&path) {
        Ok(file) => file,
        // Its link cannot be read by others than its user; whether it is one's own is unknown then.
        Err(error) => return Err(entering(error)),
    };
    let own = fs::metadata("/proc/thread-self/ns/net")?;
    let other = theirs.metadata()?;
    if (own.dev(), own.ino()) == (other.dev(), other.ino()) {
        return Ok(open()?);
    }
    let enter = || {
        move_into_link_name_space(theirs.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| entering(error.into()))?;
        Ok(open()?)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, enter)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that entered it ended").into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_own_namespace_needs_no_rights() {
        assert_eq!(in_namespace(std::process::id(), || Ok(7)).unwrap(), 7);
    }

    #[test]
    fn a_process_that_does_not_exist_is_named() {
        let error = in_namespace(u32::MAX, || Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "no process has the number 4294967295");
    }
}
