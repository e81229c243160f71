//! File locks compatible with QEMU's, so that QEMU and this program never write to the same image at once.
//!
//! QEMU holds byte-range locks (open file description locks): a lock on byte 100 + p means that the holder uses
//! permission p, one on byte 200 + p that the holder does not share permission p. Permissions: 0 consistent read, 1
//! write, 3 resize.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Time for which a lock may still belong to a dead process, and the interval of the attempts.
const TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

const USED_BASE: i64 = 100;
const UNSHARED_BASE: i64 = 200;
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

fn operate(fd: BorrowedFd<'_>, command: i32, kind: i32, byte: i64) -> io::Result<libc::flock> {
    // SAFETY: flock is plain C data for which all zeroes is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = byte;
    lock.l_len = 1;
    // SAFETY: a plain system call with a live structure.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}

fn is_held_by_another(fd: BorrowedFd<'_>, byte: i64) -> io::Result<bool> {
    let lock = operate(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Takes the locks of a reader, or of a writer that shares only reading. `Ok(false)`: the locks of another program
/// forbid it. The locks last as long as the open file description. On a file system without such locks the result is
/// `Ok(true)`.
pub fn lock(fd: BorrowedFd<'_>, writable: bool) -> io::Result<bool> {
    let used: &[i64] = if writable { &[CONSISTENT_READ, WRITE] } else { &[CONSISTENT_READ] };
    let unshared: &[i64] = if writable { &[WRITE, RESIZE] } else { &[] };
    let locks = used
        .iter()
        .map(|permission| USED_BASE + permission)
        .chain(unshared.iter().map(|permission| UNSHARED_BASE + permission));
    for byte in locks {
        match operate(fd, libc::F_OFD_SETLK, libc::F_RDLCK, byte) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                return Ok(false);
            }
            Err(_) => return Ok(true),
        }
    }
    let foreign = used
        .iter()
        .map(|permission| UNSHARED_BASE + permission)
        .chain(unshared.iter().map(|permission| USED_BASE + permission));
    for byte in foreign {
        if is_held_by_another(fd, byte)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes a lock by `attempt`, which returns whether it got it, for up to `TIMEOUT`: a killed process keeps its locks until the
/// kernel has ended its io_uring.
pub fn of_the_living(mut attempt: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let until = Instant::now() + TIMEOUT;
    loop {
        let locked = attempt()?;
        if locked || Instant::now() >= until {
            return Ok(locked);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether another program has the locks of a writer.
pub fn is_written(fd: BorrowedFd<'_>) -> io::Result<bool> {
    is_held_by_another(fd, USED_BASE + WRITE)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    fn open(path: &std::path::Path) -> File {
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (one, two, three) = (open(file.path()), open(file.path()), open(file.path()));
        assert!(lock(one.as_fd(), false).unwrap());
        assert!(lock(two.as_fd(), false).unwrap());
        assert!(!is_written(one.as_fd()).unwrap());
        assert!(lock(three.as_fd(), true).unwrap(), "a writer shares reading");
        assert!(is_written(one.as_fd()).unwrap() && !is_written(three.as_fd()).unwrap());
        let four = open(file.path());
        assert!(!lock(four.as_fd(), true).unwrap(), "two writers");
        drop((four, three));
        let five = open(file.path());
        assert!(lock(five.as_fd(), true).unwrap());
    }

    /// What another program does not share is refused, and what is used is visible to it: the bytes of QEMU's locks.
    #[test]
    fn locks_of_another_program_are_respected() {
        let cases = [
            (UNSHARED_BASE + CONSISTENT_READ, [false, false]),
            (UNSHARED_BASE + WRITE, [true, false]),
            (USED_BASE + CONSISTENT_READ, [true, true]),
            (USED_BASE + WRITE, [true, false]),
            (USED_BASE + RESIZE, [true, false]),
        ];
        for (byte, admitted) in cases {
            for (writable, admitted) in [false, true].into_iter().zip(admitted) {
                let file = tempfile::NamedTempFile::new().unwrap();
                let (other, own) = (open(file.path()), open(file.path()));
                operate(other.as_fd(), libc::F_OFD_SETLK, libc::F_RDLCK, byte).unwrap();
                assert_eq!(lock(own.as_fd(), writable).unwrap(), admitted, "{byte} {writable}");
            }
        }
        for (writable, bytes) in [(false, &[100][..]), (true, &[100, 101, 201, 203])] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let (other, own) = (open(file.path()), open(file.path()));
            assert!(lock(own.as_fd(), writable).unwrap());
            let held = (90..300).filter(|byte| is_held_by_another(other.as_fd(), *byte).unwrap());
            assert_eq!(held.collect::<Vec<_>>(), bytes);
        }
    }
}
