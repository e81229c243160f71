//! Standard input and output that are files or block devices. What refuses the same storage by its name refuses it here.

use std::fs::File;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use block::{IoError, IoErrorKind, OpenError, OpenOptions, Spec};
use host::lock;
use io::Io;
use rustix::fs::{FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::refusals::Opened;
use crate::{Address, Failure, Request};

pub(crate) const STDIN: &str = "/dev/stdin";
pub(crate) const STDOUT: &str = "/dev/stdout";

/// Whether another program has the lock of a writer on the source file at `path`. That of a stream is looked for by its
/// descriptor: the file may be one that this user cannot open.
pub(crate) fn is_written(source: &dyn Address, path: &Path) -> bool {
    let is_written = if source.is_stream() {
        lock::is_written(std::io::stdin().as_fd())
    } else {
        block::open_input(path).and_then(|file| lock::is_written(file.as_fd()))
    };
    is_written.unwrap_or(false)
}

/// Standard output, opened once more. The second open file holds the locks: those of the first would last as long as any
/// process, such as the shell, keeps it open.
pub(crate) struct Output {
    /// Or why it cannot be opened: this user may only have the descriptor.
    pub(crate) opened: Result<Opened, String>,
    /// The copy begins before the end of what is there.
    pub(crate) overwrites: bool,
    /// Offset of the first byte that is written.
    start: u64,
}

impl Output {
    /// Fails if another program has locked the file or holds the device, unless the request allows that.
    pub(crate) fn open(io: &mut Io, request: &Request) -> Result<Self, Failure> {
        let stdout = std::io::stdout();
        let failed = |error: &OpenError| Failure::open("open for writing", STDOUT, error);
        let spec = Spec::parse(&format!("{STDOUT},format=raw")).expect("it is an endpoint");
        let allow_in_use = request.allow_in_use;
        let options = OpenOptions { writable: true, request_alignment: 4096, allow_in_use };
        let opened = match block::open(&spec, &options) {
            Ok(medium) => {
                let endpoint = crate::attach(io, &medium).map_err(|error| failed(&error))?;
                Ok((medium, endpoint))
            }
            Err(error @ OpenError::Refused(_)) => return Err(failed(&error)),
            Err(_) if !allow_in_use && lock::is_written(stdout.as_fd()).unwrap_or(false) => {
                let text = format!("{STDOUT} is locked by another program (QEMU, or another hikyaku)");
                return Err(failed(&OpenError::Refused(text)).hint("end that program, or --allow in-use"));
            }
            Err(error) => Err(error.to_string()),
        };
        let (start, overwrites) =
            place(stdout.as_fd()).map_err(|error| Failure::failed("inspect", STDOUT, error))?;
        Ok(Self { opened, overwrites, start })
    }

    /// The range that `bytes` of a copy fill.
    pub(crate) fn range(&self, bytes: u64) -> Range<u64> {
        self.start..self.start.saturating_add(bytes)
    }
}

/// Where a write of the descriptor begins, and whether that is within what it holds.
fn place(fd: BorrowedFd<'_>) -> std::io::Result<(u64, bool)> {
    let stat = rustix::fs::fstat(fd)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if is_file && rustix::fs::fcntl_getfl(fd)?.contains(OFlags::APPEND) {
        return Ok((size, false));
    }
    let start = rustix::fs::seek(fd, SeekFrom::Current(0))?;
    Ok((start, !is_file || start < size))
}

/// Whether `output` is a file or a device; a pipe has nothing that can be flushed.
pub(crate) fn can_flush(output: &File) -> bool {
    rustix::fs::fstat(output).is_ok_and(|stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::RegularFile | FileType::BlockDevice)
    })
}

/// Makes what was written durable.
pub(crate) fn flush(output: &File) -> Result<(), IoError> {
    let failed = |error: Errno| IoError::new(IoErrorKind::FlushFailed, error.to_string());
    rustix::fs::fdatasync(output).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn a_write_overwrites_what_is_behind_the_position() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(place(file.as_file().as_fd()).unwrap(), (0, false), "empty");
        file.write_all(&[1; 100]).unwrap();
        assert_eq!(place(file.as_file().as_fd()).unwrap(), (100, false), "at its end");
        for (at, overwrites) in [(0, true), (99, true), (101, false)] {
            file.seek(SeekFrom::Start(at)).unwrap();
            assert_eq!(place(file.as_file().as_fd()).unwrap(), (at, overwrites));
        }
        let appending = File::options().append(true).open(file.path()).unwrap();
        assert_eq!(place(appending.as_fd()).unwrap(), (100, false), "appended");
        let (pipe, _) = std::io::pipe().unwrap();
        assert!(place(pipe.as_fd()).is_err(), "a pipe has no position");
    }

    #[test]
    fn files_are_flushed_and_pipes_cannot_be() {
        let file = tempfile::tempfile().unwrap();
        assert!(can_flush(&file) && flush(&file).is_ok());
        let (_reader, writer) = std::io::pipe().unwrap();
        assert!(!can_flush(&File::from(OwnedFd::from(writer))));
        let path_only = File::options().read(true).custom_flags(libc::O_PATH).open("/proc/self/exe").unwrap();
        assert!(can_flush(&path_only));
        assert_eq!(flush(&path_only).unwrap_err().kind, IoErrorKind::FlushFailed);
    }
}
