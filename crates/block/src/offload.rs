//! Copies within storage, without a transfer of data through this program.
//!
//! Implemented here for files. *Reflink* (ioctl_ficlonerange(2)): both files have the same blocks until one is written.
//! *copy_file_range(2)*: the server copies. That call also works without either, by a copy through the page cache; that
//! copy is slower than direct reads and writes and leaves dirty pages, so the call is used only for files on a server.
//! NVMe namespaces are in `passthrough`. This module does not decide whether a copy is permitted;
//! docs/internals/offload.md describes how the mover copies the ranges that remain.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;

use rustix::fs::copy_file_range;
use rustix::io::Errno;

use crate::{FileMedium, IoError, IoErrorKind};

/// The method by which storage copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    Reflink,
    /// The server of the files copied.
    CopyFileRange,
    /// The NVMe controller copied, between two namespaces or within one.
    NvmeCopy,
}

impl Means {
    /// The name in `copy --json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reflink => "reflink",
            Self::CopyFileRange => "copy_file_range",
            Self::NvmeCopy => "nvme_copy",
        }
    }
}

pub trait Offload {
    /// The method that [`Offload::copy`] uses; may change after a call.
    fn means(&self) -> Means;

    fn block_bytes(&self) -> u64;

    /// Copies from the start of the range; returns the number of bytes copied, at least 1 and at most `length`. A call
    /// takes less than a second, so that the user can stop the copy between calls. After an error the caller copies the
    /// range by reads and writes. Copied data is not durable before [`Offload::flush`].
    fn copy(&mut self, src_offset: u64, dst_offset: u64, length: u64) -> std::result::Result<u64, IoError>;

    /// Makes the copied data durable. An error is final: a second flush does not report the same loss again.
    fn flush(&self) -> std::result::Result<(), IoError>;
}

/// Maximum length of one reflink call: the file system needs about 10 ms to share 1 GiB, even if it is fragmented.
const REFLINK_BYTES: u64 = 1 << 30;
/// Maximum length of one request to a server.
const SERVER_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub struct FileOffload<'a> {
    source: &'a File,
    destination: &'a File,
    block_bytes: u64,
    is_remote: bool,
    means: Means,
}

impl Offload for FileOffload<'_> {
    fn means(&self) -> Means {
        self.means
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn copy(&mut self, src_offset: u64, dst_offset: u64, length: u64) -> std::result::Result<u64, IoError> {
        if self.means == Means::Reflink {
            match self.share(src_offset, dst_offset, length.min(REFLINK_BYTES)) {
                Err(_) if self.is_remote => self.means = Means::CopyFileRange,
                result => return result.map_err(|error| self.refusal(error)),
            }
        }
        let copied = self.copy_file_range(src_offset, dst_offset, length.min(SERVER_BYTES));
        copied.map_err(|error| self.refusal(error))
    }

    fn flush(&self) -> std::result::Result<(), IoError> {
        Ok(self.destination.sync_data()?)
    }
}

impl<'a> FileOffload<'a> {
    /// `None` if one of the two is a device.
    pub fn between(source: &'a FileMedium, destination: &'a FileMedium) -> Option<Self> {
        let (source, destination) = (source.regular_file()?, destination.regular_file()?);
        let ((from, _), (to, block_bytes)) = (file_system(source).ok()?, file_system(destination).ok()?);
        let is_remote = REMOTE.contains(&from) && REMOTE.contains(&to);
        Some(Self { source, destination, block_bytes, is_remote, means: Means::Reflink })
    }

    /// Translates the kernel's error into a reason for the user.
    fn refusal(&self, error: Error) -> IoError {
        let text = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => {
                "their file system does not share blocks between files, and no server keeps it".to_owned()
            }
            Some(libc::EXDEV) => "the two lie in different file systems".to_owned(),
            Some(libc::EINVAL) => format!(
                "the file system does not take this range: only whole blocks of {} bytes, at the same place in a block at both \
                 ends, are shared",
                self.block_bytes
            ),
            _ => return error.into(),
        };
        IoError::new(IoErrorKind::Unsupported, text)
    }

    /// Shares blocks. The last block of a file can be shared in part only if no data follows it in either file.
    fn share(&self, src_offset: u64, dst_offset: u64, length: u64) -> Result<u64> {
        let whole_blocks = length - length % self.block_bytes;
        match clone_range(self.source, self.destination, src_offset, dst_offset, length) {
            Ok(()) => Ok(length),
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL) && (1..length).contains(&whole_blocks) =>
            {
                clone_range(self.source, self.destination, src_offset, dst_offset, whole_blocks)
                    .map(|()| whole_blocks)
            }
            Err(error) => Err(error),
        }
    }

    fn copy_file_range(&self, src_offset: u64, dst_offset: u64, length: u64) -> Result<u64> {
        let mut copied = 0;
        while copied < length {
            let [mut from, mut to] = [src_offset + copied, dst_offset + copied];
            let rest = (length - copied) as usize;
            match copy_file_range(self.source, Some(&mut from), self.destination, Some(&mut to), rest) {
                Ok(0) if copied == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(0) => break,
                Ok(count) => copied += count as u64,
                Err(Errno::INTR) => {}
                Err(error) if copied == 0 => return Err(error.into()),
                Err(_) => break,
            }
        }
        Ok(copied)
    }
}

/// Makes `clone`, an empty file on the same file system, share all blocks that `file` has at one moment.
pub fn clone_file(file: &File, clone: &File) -> Result<()> {
    // Length 0 means up to the end.
    clone_range(file, clone, 0, 0, 0)
}

fn clone_range(
    source: &File,
    destination: &File,
    src_offset: u64,
    dst_offset: u64,
    length: u64,
) -> Result<()> {
    let range = libc::file_clone_range {
        src_fd: source.as_raw_fd().into(),
        src_offset,
        src_length: length,
        dest_offset: dst_offset,
    };
    // SAFETY: a plain system call on live descriptors; it reads `range`, which lives through the call, and writes no
    // memory of this process.
    let result =
        unsafe { libc::ioctl(destination.as_raw_fd(), libc::FICLONERANGE as libc::Ioctl, &raw const range) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// File systems whose files are on a server that can copy them: NFS, and both kinds of SMB (linux/magic.h).
const REMOTE: [u32; 3] = [libc::NFS_SUPER_MAGIC as u32, 0xff53_4d42, 0xfe53_4d42];

/// Magic number and block size in bytes of a file's file system.
fn file_system(file: &File) -> Result<(u32, u64)> {
    let statfs = rustix::fs::fstatfs(file)?;
    Ok((statfs.f_type as u32, (statfs.f_bsize as u64).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// copy_file_range works on every file system, so any directory can test the loop.
    #[test]
    fn a_server_is_asked_until_the_source_ends() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..300_001u32).map(|at| (at % 251) as u8).collect();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&from, &bytes).unwrap();
        let source = File::open(from).unwrap();
        let destination = File::create(&to).unwrap();
        let mut offload = FileOffload {
            source: &source,
            destination: &destination,
            block_bytes: 4096,
            is_remote: true,
            means: Means::CopyFileRange,
        };
        assert_eq!(offload.copy(1, 7, 300_000).unwrap(), 300_000);
        // A short count: the source ends.
        assert_eq!(offload.copy(300_000, 300_006, 10).unwrap(), 1);
        assert_eq!(&std::fs::read(to).unwrap()[7..], &bytes[1..]);
        // The destination is not open for writing; the error is the kernel's.
        offload.destination = &source;
        assert_eq!(offload.copy(0, 0, 10).unwrap_err().kind, IoErrorKind::ReadOnly);
    }
}
