//! Properties of a file or device, as the kernel reports them.

use std::fs::{File, Metadata};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use host::signature;
use host::{Entry, Kernel, Limits};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, SeekFrom, Statx, StatxFlags};

use crate::OpenError;

pub(super) struct Facts {
    pub(super) size_bytes: u64,
    /// Alignment of O_DIRECT requests in bytes, `None` where O_DIRECT does not work.
    pub(super) direct_alignment: Option<u32>,
    /// Ranges can be deallocated, and then read as zeroes.
    pub(super) discard: bool,
    pub(super) write_zeroes: bool,
    /// Limits of the device, or of the device under the file system.
    pub(super) limits: Limits,
}

/// Facts of a file, or of the device in `entry`.
pub(super) fn facts(file: &File, entry: Option<&Entry>) -> Result<Facts> {
    let metadata = file.metadata()?;
    let is_device = metadata.file_type().is_block_device();
    let limits = match entry {
        Some(entry) => entry.limits,
        None => Kernel::default().limits(metadata.dev()).unwrap_or_default(),
    };
    let size_bytes = size(file, is_device)?;
    // A device gets only commands to write zeroes, with or without permission to unmap, and never a discard, after
    // which reads may return any data. See blkdev_fallocate in the kernel's block/fops.c.
    let write_zeroes = if is_device {
        limits.write_zeroes_bytes_max.is_some_and(|bytes| bytes > 0)
    } else {
        punches_holes(file, &metadata, size_bytes)
    };
    Ok(Facts {
        size_bytes,
        direct_alignment: direct_alignment(file),
        discard: write_zeroes && (!is_device || limits.discard_bytes_max > 0),
        write_zeroes,
        limits,
    })
}

/// Whether an open block device is the one of `entry`; true if the kernel does not report a generation.
pub(super) fn is_still(entry: &Entry, file: &impl AsRawFd) -> bool {
    entry.diskseq.zip(diskseq(file)).is_none_or(|(then, now)| then == now)
}

/// Generation number of an open block device, `None` before Linux 5.15. It belongs to the device, not to its name.
fn diskseq(file: &impl AsRawFd) -> Option<u64> {
    /// `_IOR(0x12, 128, __u64)`, linux/fs.h.
    const BLKGETDISKSEQ: libc::Ioctl = 0x8008_1280;
    let mut diskseq = 0u64;
    // SAFETY: a plain system call on a live descriptor, which writes eight bytes if it writes any.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETDISKSEQ, &raw mut diskseq) };
    (result == 0).then_some(diskseq)
}

pub(super) fn is_in_memory(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|statfs| statfs.f_type == libc::TMPFS_MAGIC)
}

pub(super) fn size(file: &File, is_device: bool) -> Result<u64> {
    if is_device { Ok(rustix::fs::seek(file, SeekFrom::End(0))?) } else { Ok(file.metadata()?.len()) }
}

/// Whether the file system deallocates blocks. Where that is not known, it is tried beyond the end of the file, where
/// there is no data; the kernel sets the times of the file nevertheless.
fn punches_holes(file: &File, metadata: &Metadata, size: u64) -> bool {
    let is_writable = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    if !is_writable {
        return false;
    }
    let magic = rustix::fs::fstatfs(file).map_or(0, |statfs| statfs.f_type);
    let is_known = match magic {
        libc::TMPFS_MAGIC | libc::XFS_SUPER_MAGIC | libc::BTRFS_SUPER_MAGIC => true,
        // The drivers of ext2, ext3 and ext4 have one number; that of ext2 deallocates nothing.
        libc::EXT4_SUPER_MAGIC => {
            Kernel::default().file_system(metadata.dev()).is_some_and(|kind| kind == "ext4")
        }
        _ => false,
    };
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    is_known || rustix::fs::fallocate(file, mode, size.next_multiple_of(1 << 20), 4096).is_ok()
}

fn direct_alignment(file: &File) -> Option<u32> {
    // An empty path with AT_EMPTY_PATH names the descriptor itself.
    let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let reports = |statx: &Statx| StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN);
    match found.filter(reports) {
        // An older kernel, or a file system that does not report the alignment: one page suffices wherever O_DIRECT
        // works.
        None => Some(4096),
        Some(statx) if statx.stx_dio_offset_align == 0 => None,
        Some(statx) => Some(statx.stx_dio_offset_align.max(statx.stx_dio_mem_align)),
    }
}

/// Refuses a file that begins like an image format: formats are not interpreted, and must not be taken for raw disks.
pub(super) fn refuse_other_formats(path: &Path, file: &File) -> std::result::Result<(), OpenError> {
    let mut head = [0; signature::IMAGE_HEAD_BYTES];
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    match signature::image(&head[..length]) {
        None => Ok(()),
        Some(format) => Err(OpenError::Format { path: path.to_owned(), format }),
    }
}
