//! What the kernel tells about a file or device.

use std::fs::{File, read_to_string};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::OpenError;

/// Facts that decide how requests are made.
pub(super) struct Facts {
    pub(super) size_bytes: u64,
    pub(super) logical_block_size: u32,
    pub(super) physical_block_size: u32,
    /// Alignment of O_DIRECT requests, `None` where it does not work.
    pub(super) direct_alignment: Option<u32>,
    pub(super) optimal_transfer_bytes: u32,
    pub(super) discard: bool,
    pub(super) rotational: bool,
}

/// Chunks that measure well everywhere; a device's own limits narrow it.
const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;
const OPTIMAL_TRANSFER_MIN: u32 = 128 << 10;

pub(super) fn facts(file: &File, is_device: bool) -> Result<Facts> {
    let metadata = file.metadata()?;
    let device = if is_device { metadata.rdev() } else { metadata.dev() };
    let queue = queue_directory(device);
    let number =
        |name: &str| -> Option<u64> { read_to_string(queue.as_ref()?.join(name)).ok()?.trim().parse().ok() };
    let optimal = number("max_sectors_kb").map_or(OPTIMAL_TRANSFER_BYTES, |kib| {
        let segment_bytes = number("max_segment_size").unwrap_or(0);
        optimal_transfer(kib, number("max_segments"), segment_bytes, area::Pool::large_page_bytes())
    });
    let size_bytes = if is_device { device_size(file)? } else { metadata.len() };
    let discard = if is_device {
        number("discard_max_bytes").is_some_and(|bytes| bytes > 0)
            && number("write_zeroes_max_bytes").is_none_or(|bytes| bytes > 0)
    } else {
        punches_holes(file, size_bytes)
    };
    let block = |name: &str| if is_device { number(name).map(|bytes| bytes as u32) } else { None };
    Ok(Facts {
        size_bytes,
        logical_block_size: block("logical_block_size").unwrap_or(512),
        physical_block_size: block("physical_block_size").unwrap_or(4096),
        direct_alignment: direct_alignment(file),
        optimal_transfer_bytes: optimal,
        discard,
        rotational: number("rotational") == Some(1),
    })
}

/// The longest request that the device takes whole, as a power of two. One that is split costs a detour through the
/// kernel's workers, because it may not be made without waiting.
fn optimal_transfer(
    kib_max: u64,
    segments_max: Option<u64>,
    segment_bytes_max: u64,
    page_bytes: usize,
) -> u32 {
    let by_segments = segments_max.map_or(u64::MAX, |segments| {
        // A device that does not say takes a segment for each small page.
        segments.saturating_mul(segment_bytes_max.clamp(area::PAGE_BYTES as u64, page_bytes as u64))
    });
    let limit = (kib_max << 10).min(by_segments).min(OPTIMAL_TRANSFER_BYTES.into()) as u32;
    1 << limit.max(OPTIMAL_TRANSFER_MIN).ilog2()
}

/// The `queue` directory of a block device, or of the disk a partition lies on.
fn queue_directory(device: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    [node.join("queue"), node.join("../queue")].into_iter().find(|path| path.is_dir())
}

/// Whether the file lies in a file system of memory.
pub(super) fn is_in_memory(file: &File) -> bool {
    // SAFETY: statfs is plain C data; the call fills it when it returns zero.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a plain system call on a live descriptor.
    let found = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut statfs) == 0 };
    found && statfs.f_type == libc::TMPFS_MAGIC
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

const FORMATS: &[(&[u8], &str)] = &[
    (b"QFI\xfb", "qcow2"),
    (b"KDMV", "VMDK"),
    (b"# Disk DescriptorFile", "VMDK"),
    (b"vhdxfile", "VHDX"),
    (b"conectix", "VHD"),
    (b"<<< Oracle VM VirtualBox Disk Image >>>", "VDI"),
];

/// An image format is never interpreted, and never mistaken for a disk.
pub(super) fn refuse_other_formats(path: &Path, file: &File) -> std::result::Result<(), OpenError> {
    let mut head = [0; 64];
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    match FORMATS.iter().find(|(magic, _)| head[..length].starts_with(magic)) {
        None => Ok(()),
        Some((_, format)) => Err(OpenError::Refused(format!(
            "{0} looks like {format}, which is not interpreted; serve its content with \
             'qemu-nbd --format={1} {0}' or convert it with 'qemu-img convert -O raw {0} OUT', or say \
             {0},format=raw to use the bytes as they are",
            path.display(),
            format.to_lowercase(),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: usize = 4096;
    const HUGE: usize = 2 << 20;

    #[test]
    fn the_optimal_transfer_is_what_the_device_takes_whole() {
        // A loop device: enough segments, if a segment holds more than a small page.
        assert_eq!(optimal_transfer(1280, Some(128), 64 << 10, HUGE), 1 << 20);
        assert_eq!(optimal_transfer(1280, Some(128), 64 << 10, SMALL), 512 << 10);
        assert_eq!(optimal_transfer(1280, Some(128), 0, HUGE), 512 << 10, "it does not say");
        assert_eq!(optimal_transfer(1280, Some(254), u64::MAX, HUGE), 1 << 20);
        assert_eq!(optimal_transfer(1280, None, 0, HUGE), 1 << 20);
        assert_eq!(optimal_transfer(320, Some(128), 64 << 10, HUGE), 256 << 10);
        assert_eq!(optimal_transfer(4, Some(1), 4096, HUGE), OPTIMAL_TRANSFER_MIN);
    }
}
