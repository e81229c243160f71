//! Memory shared by processes: a memfd that its maker can hand out without losing control of it, and the check of one
//! that another process made.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create, open,
};
use thiserror::Error;

/// `f_type` of the file system behind memfds without MFD_HUGETLB (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why a memfd of another process is refused.
#[derive(Debug, Error)]
pub enum Unfit {
    #[error("the descriptor is no memfd")]
    NoMemfd,
    #[error(
        "the memfd has huge pages of hugetlbfs, where reading a hole ends the reader by SIGBUS: make it without \
         MFD_HUGETLB"
    )]
    Hugetlb,
    #[error(
        "the memfd can shrink, and reading behind its end then ends the reader by SIGBUS: seal it with F_SEAL_SHRINK"
    )]
    CanShrink,
    #[error("the memfd has {has} bytes, fewer than the {needs} announced")]
    TooShort { has: u64, needs: u64 },
    #[error("the memfd cannot be examined: {0}")]
    Io(#[from] io::Error),
}

/// Makes a memfd of `bytes` zeroed bytes that can neither shrink nor grow. Its mode is 0600: a process of another user
/// that was given a descriptor open for reading ([`read_only`]) cannot open the memfd for writing through /proc.
pub fn create(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&memfd, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&memfd, bytes as u64)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memfd)
}

/// A second descriptor of a memfd, open for reading only: it cannot be mapped for writing. Needs /proc, and to own the
/// memfd or to be root.
pub fn read_only(memfd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Checks that the first `bytes` bytes of a memfd that another process made may be mapped without danger of SIGBUS,
/// whatever that process does with it later.
///
/// A hole that it punches later is no danger: it reads as zeroes.
pub fn check(memfd: BorrowedFd<'_>, bytes: u64) -> Result<(), Unfit> {
    // EINVAL: a file without seals.
    let seals = match fcntl_get_seals(memfd) {
        Err(rustix::io::Errno::INVAL) => return Err(Unfit::NoMemfd),
        seals => seals.map_err(io::Error::from)?,
    };
    let system = fstatfs(memfd).map_err(io::Error::from)?;
    if u64::try_from(system.f_type) != Ok(TMPFS_MAGIC) {
        return Err(Unfit::Hugetlb);
    }
    // Before the size: without this seal the size may change after the check.
    if !seals.contains(SealFlags::SHRINK) {
        return Err(Unfit::CanShrink);
    }
    let has = fstat(memfd).map_err(io::Error::from)?.st_size.cast_unsigned();
    if has < bytes {
        return Err(Unfit::TooShort { has, needs: bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use rustix::fs::fcntl_getfl;

    use super::*;
    use crate::Region;

    const BYTES: usize = 1 << 20;

    #[test]
    fn a_memfd_made_here_keeps_its_size_and_passes_the_check() {
        let memfd = File::from(create("test", BYTES).unwrap());
        check(memfd.as_fd(), BYTES as u64).unwrap();
        assert_eq!(memfd.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        for bytes in [0, BYTES - 1, BYTES + 1] {
            assert_eq!(memfd.set_len(bytes as u64).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        assert!(fcntl_add_seals(&memfd, SealFlags::WRITE).is_err(), "no more seals");
    }

    #[test]
    fn a_descriptor_for_reading_sees_all_and_changes_nothing() {
        let memfd = create("test", BYTES).unwrap();
        let reader = read_only(memfd.as_fd()).unwrap();
        assert_eq!(fcntl_getfl(&reader).unwrap() & OFlags::ACCMODE, OFlags::RDONLY);
        assert_eq!(
            Region::shared(reader.as_fd(), BYTES, true).unwrap_err().raw_os_error(),
            Some(libc::EACCES)
        );
        let (ours, theirs) = (
            Region::shared(memfd.as_fd(), BYTES, true).unwrap(),
            Region::shared(reader.as_fd(), BYTES, false).unwrap(),
        );
        // SAFETY: both mappings are BYTES long and no other thread uses them.
        unsafe {
            ours.as_ptr().add(5000).write(7);
            assert_eq!(theirs.as_ptr().add(5000).read(), 7);
        }
        assert_eq!(
            File::from(reader).write_at(&[1], 0).unwrap_err().raw_os_error(),
            Some(libc::EBADF),
            "not open for writing"
        );
    }

    #[test]
    fn a_memfd_that_could_kill_its_reader_is_refused_with_the_reason() {
        let made = |flags| memfd_create("test", MemfdFlags::CLOEXEC | flags).unwrap();
        let sized = |flags, seals| {
            let memfd = made(flags);
            ftruncate(&memfd, 4 << 20).unwrap();
            fcntl_add_seals(&memfd, seals).unwrap();
            memfd
        };
        let sealing = MemfdFlags::ALLOW_SEALING;
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        for (memfd, reason) in [
            (pipe, "no memfd"),
            (File::open("/proc/self/exe").unwrap().into(), "no memfd"),
            (sized(sealing | MemfdFlags::HUGETLB, SealFlags::SHRINK), "hugetlbfs"),
            (made(sealing), "can shrink"),
            (made(MemfdFlags::empty()), "can shrink"),
            (sized(sealing, SealFlags::GROW | SealFlags::SEAL), "can shrink"),
            (create("test", BYTES - 1).unwrap(), "1048575 bytes, fewer than the 1048576 announced"),
        ] {
            let unfit = check(memfd.as_fd(), BYTES as u64).unwrap_err();
            assert!(unfit.to_string().contains(reason), "{unfit}, not {reason}");
        }
        check(sized(sealing, SealFlags::SHRINK).as_fd(), BYTES as u64).unwrap();
    }
}
