//! Locks on single bytes of a lock file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// One open file holds the byte.
    Exclusive,
    /// Any number of open files hold the byte as shared.
    Shared,
}

/// Locks one byte of `file` until the file is closed; `Ok(false)` if another open file holds it. The lock belongs to
/// the open file (`F_OFD_SETLK`), so two opens by one process exclude each other too.
pub fn lock_byte(file: &File, offset: u64, hold: Hold) -> io::Result<bool> {
    let kind = if hold == Hold::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    // SAFETY: `flock` is plain data for which all zeroes is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = offset as _;
    lock.l_len = 1;
    // SAFETY: the descriptor is open and `lock` lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn locked_byte_excludes_and_shares() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let (first, second, third) = (open(), open(), open());
        assert!(lock_byte(&first, 7, Hold::Exclusive).unwrap());
        assert!(!lock_byte(&second, 7, Hold::Exclusive).unwrap());
        assert!(!lock_byte(&second, 7, Hold::Shared).unwrap());
        assert!(lock_byte(&second, 8, Hold::Shared).unwrap());
        assert!(lock_byte(&third, 8, Hold::Shared).unwrap());
        drop(first);
        assert!(lock_byte(&second, 7, Hold::Exclusive).unwrap());
    }
}
