//! What the kernel tells about a file or device.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use crate::device::{Entry, Kernel, Limits};
use crate::{OpenError, signature};

/// Facts that decide how requests are made.
pub(super) struct Facts {
    pub(super) size_bytes: u64,
    /// Alignment of O_DIRECT requests, `None` where it does not work.
    pub(super) direct_alignment: Option<u32>,
    /// Ranges can be given back, and read as zeroes then.
    pub(super) discard: bool,
    /// Ranges can be zeroed without moving zeroes.
    pub(super) write_zeroes: bool,
    /// Of the device, or of the one that the file system lies on.
    pub(super) limits: Limits,
}

/// Of a file, or of the device in `entry`.
pub(super) fn facts(file: &File, entry: Option<&Entry>) -> Result<Facts> {
    let metadata = file.metadata()?;
    let is_device = metadata.file_type().is_block_device();
    let limits = match entry {
        Some(entry) => entry.limits,
        None => Kernel::default().limits(metadata.dev()).unwrap_or_default(),
    };
    let size_bytes = size(file, is_device)?;
    // A device is only ever told to write zeroes, with or without leave to unmap, and never to discard: what is read after a
    // discard is anything. See blkdev_fallocate in the kernel's block/fops.c.
    let write_zeroes = if is_device {
        limits.write_zeroes_bytes_max.is_some_and(|bytes| bytes > 0)
    } else {
        punches_holes(file, size_bytes)
    };
    Ok(Facts {
        size_bytes,
        direct_alignment: direct_alignment(file),
        discard: write_zeroes && (!is_device || limits.discard_bytes_max > 0),
        write_zeroes,
        limits,
    })
}

/// Whether an open block device is the one of `entry`, as far as the kernel tells.
pub(super) fn is_still(entry: &Entry, file: &impl AsRawFd) -> bool {
    entry.diskseq.zip(diskseq(file)).is_none_or(|(then, now)| then == now)
}

/// The generation of an open block device, `None` before Linux 5.15. It follows the device, not its name.
fn diskseq(file: &impl AsRawFd) -> Option<u64> {
    /// `_IOR(0x12, 128, __u64)`, linux/fs.h.
    const BLKGETDISKSEQ: libc::Ioctl = 0x8008_1280;
    let mut diskseq = 0u64;
    // SAFETY: a plain system call on a live descriptor, which writes eight bytes if it writes any.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETDISKSEQ, &raw mut diskseq) };
    (result == 0).then_some(diskseq)
}

/// Whether the file lies in a file system of memory.
pub(super) fn is_in_memory(file: &File) -> bool {
    // SAFETY: statfs is plain C data; the call fills it when it returns zero.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a plain system call on a live descriptor.
    let found = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut statfs) == 0 };
    found && statfs.f_type == libc::TMPFS_MAGIC
}

/// Bytes in all as they are now.
pub(super) fn size(file: &File, is_device: bool) -> Result<u64> {
    if is_device { device_size(file) } else { Ok(file.metadata()?.len()) }
}

fn device_size(file: &File) -> Result<u64> {
    // SAFETY: a plain system call on a live descriptor.
    let end = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
    u64::try_from(end).map_err(|_| Error::last_os_error())
}

/// Whether the file system gives blocks back: tried beyond the end, where there is nothing to lose.
fn punches_holes(file: &File, size: u64) -> bool {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let beyond = size.next_multiple_of(1 << 20) as i64;
    // SAFETY: a plain system call on a live descriptor.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, beyond, 4096) == 0 }
}

fn direct_alignment(file: &File) -> Option<u32> {
    // SAFETY: statx is plain C data; the call fills what it says it filled in stx_mask.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor itself.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut statx)
    };
    if result != 0 || statx.stx_mask & libc::STATX_DIOALIGN == 0 {
        // An older kernel or a file system that does not say: a page is always enough where it works.
        return Some(4096);
    }
    match statx.stx_dio_offset_align {
        0 => None,
        alignment => Some(alignment.max(statx.stx_dio_mem_align)),
    }
}

/// An image format is never interpreted, and never mistaken for a disk.
pub(super) fn refuse_other_formats(path: &Path, file: &File) -> std::result::Result<(), OpenError> {
    let mut head = [0; signature::IMAGE_HEAD_BYTES];
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    match signature::image(&head[..length]) {
        None => Ok(()),
        Some(format) => Err(OpenError::Refused(format!(
            "{0} looks like {format}, which is not interpreted; serve its content with \
             'qemu-nbd --format={format} {0}' or convert it with 'qemu-img convert -O raw {0} OUT', or say \
             {0},format=raw to use the bytes as they are",
            path.display(),
        ))),
    }
}
