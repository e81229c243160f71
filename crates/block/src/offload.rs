//! Storage that copies by itself, without a byte of data passing through this program: what a copy may be handed to.
//!
//! Here are files: *reflink* (ioctl_ficlonerange(2)): both files have the same blocks until one is written. *copy_file_range(2)*: the
//! server copies. That call also works where neither helps, by a copy through the page cache; that is slower than reading and writing
//! past it and leaves all of it dirty, so it is only made where a server is behind it. NVMe namespaces are in `passthrough`. Nothing
//! here decides whether a copy may be made; docs/internals/mover.md says what the mover does with what is left over.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;

use crate::{FileMedium, IoError, IoErrorKind};

/// How storage copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// The two files share blocks.
    Reflink,
    /// The files' server copied.
    CopyFileRange,
    /// The controller of the two NVMe namespaces copied, or of two parts of one.
    NvmeCopy,
}

impl Means {
    /// As `copy --json` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reflink => "reflink",
            Self::CopyFileRange => "copy_file_range",
            Self::NvmeCopy => "nvme_copy",
        }
    }
}

/// A source and a destination that can be copied without us.
pub trait Offload {
    /// What [`Offload::copy`] does.
    fn means(&self) -> Means;

    /// Smallest part that can be copied, in bytes.
    fn block_bytes(&self) -> u64;

    /// Copies up to `length` bytes, more than none: as many as take less than a second, so that the user may stop it in between. So
    /// many from the start of the range are copied. If it fails, what is asked for must be copied otherwise. Not durable
    /// before a flush.
    fn copy(&mut self, src_offset: u64, dst_offset: u64, length: u64) -> std::result::Result<u64, IoError>;

    /// Makes what was copied durable. A failure is final: what was lost is not known to a second flush.
    fn flush(&self) -> std::result::Result<(), IoError>;
}

/// Asked of a file system at a time: it takes some ten milliseconds to share 1 GiB, however scattered it lies.
const REFLINK_BYTES: u64 = 1 << 30;
/// Asked of a server at a time.
const SERVER_BYTES: u64 = 64 << 20;

/// Two files, and how one may become the other.
#[derive(Debug)]
pub struct FileOffload<'a> {
    source: &'a File,
    destination: &'a File,
    /// Smallest part of a file that can be shared.
    block_bytes: u64,
    /// A server keeps both.
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
    /// A file system's way to copy between two files; `None` if one of them is a device.
    pub fn between(source: &'a FileMedium, destination: &'a FileMedium) -> Option<Self> {
        let (source, destination) = (source.regular_file()?, destination.regular_file()?);
        let ((from, _), (to, block_bytes)) = (file_system(source).ok()?, file_system(destination).ok()?);
        let is_remote = REMOTE.contains(&from) && REMOTE.contains(&to);
        Some(Self { source, destination, block_bytes, is_remote, means: Means::Reflink })
    }

    /// The kernel's refusal in our words.
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

    /// The last block of a file is shared in part only if nothing lies behind it in either file.
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
            let [mut from, mut to] = [src_offset + copied, dst_offset + copied].map(|offset| offset as i64);
            // SAFETY: a plain system call on live descriptors, with pointers to our own two offsets. It reads and writes no
            // memory of this process.
            let count = unsafe {
                libc::copy_file_range(
                    self.source.as_raw_fd(),
                    &raw mut from,
                    self.destination.as_raw_fd(),
                    &raw mut to,
                    (length - copied) as usize,
                    0,
                )
            };
            match count {
                1.. => copied += count as u64,
                0 if copied == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                0 => break,
                _ => match Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EINTR) => {}
                    error if copied == 0 => return Err(error),
                    _ => break,
                },
            }
        }
        Ok(copied)
    }
}

/// Makes `clone`, an empty file of the same file system, share all blocks of `file`, as they are at one moment.
pub fn clone_file(file: &File, clone: &File) -> Result<()> {
    // 0 for the length: up to the end.
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
    // SAFETY: a plain system call on live descriptors; it reads `range`, which lives through the call, and writes no memory of
    // this process.
    let result =
        unsafe { libc::ioctl(destination.as_raw_fd(), libc::FICLONERANGE as libc::Ioctl, &raw const range) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// File systems whose files a server keeps and can be asked to copy: NFS, and both kinds of SMB (linux/magic.h).
const REMOTE: [u32; 3] = [libc::NFS_SUPER_MAGIC as u32, 0xff53_4d42, 0xfe53_4d42];

/// The kind of a file's file system, and its block size in bytes.
fn file_system(file: &File) -> Result<(u32, u64)> {
    // SAFETY: statfs is plain C data; the call fills it when it returns zero.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a plain system call on a live descriptor.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut statfs) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok((statfs.f_type as u32, (statfs.f_bsize as u64).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The call works on every file system, so its loop can be tried on any.
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
        // Less than asked for: there is no more.
        assert_eq!(offload.copy(300_000, 300_006, 10).unwrap(), 1);
        assert_eq!(&std::fs::read(to).unwrap()[7..], &bytes[1..]);
        // Not open for writing: the error is the kernel's.
        offload.destination = &source;
        assert_eq!(offload.copy(0, 0, 10).unwrap_err().kind, IoErrorKind::ReadOnly);
    }
}
