//! A device as sysfs shows it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::kernel::{Kernel, names, node_name, path_in, value};

/// Bytes of a page of memory, the minimum length of a segment of a request.
const PAGE_BYTES: u64 = 4096;

/// Bytes of a `stat` file: 17 numbers of at most 20 digits.
const STAT_BYTES_MAX: usize = 512;
/// Bytes of a sector in sysfs, independent of the device's block size.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Bounds of [`Limits::optimal_transfer_bytes`]: 1 MiB measures well on every device, unless its limits are lower.
const OPTIMAL_TRANSFER_BYTES: u64 = 1 << 20;
const OPTIMAL_TRANSFER_MIN: u64 = 128 << 10;
/// Queue depth where a device reports none, and the depth beyond which throughput does not grow.
const QUEUE_DEPTH_DEFAULT: u32 = 32;
const QUEUE_DEPTH_MAX: u32 = 64;
/// Largest plausible block size; larger values in sysfs are ignored.
const BLOCK_BYTES_MAX: u32 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Node name under /dev, for example `sda1`.
    pub name: String,
    /// `st_rdev` of the node.
    pub number: u64,
    /// Generation. The kernel increments it with every new disk and every change of a medium: the same name with
    /// another `diskseq` is another disk. A partition has the value of its disk. `None` before Linux 5.15.
    pub diskseq: Option<u64>,
    pub size_bytes: u64,
    pub read_only: bool,
    /// Limits of the request queue; a partition has those of its disk.
    pub limits: Limits,
    pub partition_of: Option<String>,
    pub slaves: Vec<String>,
    pub holders: Vec<String>,
    pub backing_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In bytes; offsets and lengths of requests are multiples of it.
    pub logical_block_size: u32,
    /// Unit in bytes that the device writes without reading first.
    pub physical_block_size: u32,
    /// Longest request that the kernel does not split, in bytes.
    pub transfer_bytes_max: Option<u64>,
    pub segments_max: Option<u64>,
    /// Maximum length of one such range in bytes.
    pub segment_bytes_max: Option<u64>,
    /// Number of requests in flight beyond which throughput does not grow.
    pub queue_depth: u32,
    pub rotational: bool,
    /// Longest discard in bytes; 0 if not supported.
    pub discard_bytes_max: u64,
    /// Longest range in bytes that one command zeroes; 0 if not supported, `None` if the kernel does not report it.
    pub write_zeroes_bytes_max: Option<u64>,
}

/// Counts of a device's requests since it appeared: `Documentation/block/stat.rst`. Sectors have 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub reads: u64,
    pub read_merges: u64,
    pub sectors_read: u64,
    pub writes: u64,
    pub write_merges: u64,
    pub sectors_written: u64,
    /// Flushes completed, since Linux 5.5. The kernel may also count an empty flush as a write.
    pub flushes: u64,
}

impl Kernel {
    /// `None` if sysfs does not show the device with this number.
    pub fn entry(&self, device: u64) -> Option<Entry> {
        let dir = self.directory(device)?;
        let disk = disk_of(&dir);
        let sectors: u64 = value(&dir.join("size"))?;
        Some(Entry {
            name: node_name(&dir)?,
            number: device,
            diskseq: value(&disk.join("diskseq")),
            size_bytes: sectors.checked_mul(SECTOR_BYTES)?,
            read_only: value::<u8>(&dir.join("ro")) == Some(1),
            limits: Limits::read(disk),
            partition_of: if disk == dir { None } else { node_name(disk) },
            slaves: names(&dir.join("slaves")),
            holders: names(&dir.join("holders")),
            backing_file: path_in(&dir.join("loop/backing_file")),
        })
    }

    pub fn limits(&self, device: u64) -> Option<Limits> {
        Some(Limits::read(disk_of(&self.directory(device)?)))
    }

    pub fn traffic(&self, device: u64) -> Option<Traffic> {
        self.traffic_file(device)?.read()
    }

    /// The counters of a device as an open file, which can be read often.
    pub fn traffic_file(&self, device: u64) -> Option<TrafficFile> {
        File::open(self.directory(device)?.join("stat")).ok().map(TrafficFile)
    }
}

/// The open file of a device's counters.
#[derive(Debug)]
pub struct TrafficFile(File);

impl TrafficFile {
    /// One system call. `None`: the device has gone.
    pub fn read(&self) -> Option<Traffic> {
        let mut bytes = [0; STAT_BYTES_MAX];
        let length = self.0.read_at(&mut bytes, 0).ok()?;
        Traffic::parse(str::from_utf8(&bytes[..length]).ok()?)
    }
}

impl Traffic {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace().map(|field| field.parse().ok());
        let mut next = || fields.next().flatten();
        let (reads, read_merges, sectors_read, _) = (next()?, next()?, next()?, next()?);
        let (writes, write_merges, sectors_written) = (next()?, next()?, next()?);
        let flushes = fields.nth(8).flatten().unwrap_or(0);
        Some(Self { reads, read_merges, sectors_read, writes, write_merges, sectors_written, flushes })
    }
}

/// The directory of the whole disk; `dir` itself unless it is a partition's.
pub(super) fn disk_of(dir: &Path) -> &Path {
    match dir.parent() {
        Some(disk) if dir.join("partition").exists() => disk,
        _ => dir,
    }
}

impl Limits {
    fn read(disk: &Path) -> Self {
        let queue = disk.join("queue");
        let number = |name: &str| value::<u64>(&queue.join(name));
        let block = |name: &str, otherwise| {
            let bytes = number(name).and_then(|bytes| u32::try_from(bytes).ok());
            bytes
                .filter(|bytes| bytes.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(bytes))
                .unwrap_or(otherwise)
        };
        let logical_block_size = block("logical_block_size", 512);
        let depth = |path: PathBuf| value::<u32>(&path).filter(|depth| *depth > 0);
        // Depth of the scheduler's queue, and the number of commands that a SCSI device accepts at once.
        let depths = [depth(queue.join("nr_requests")), depth(disk.join("device/queue_depth"))];
        Self {
            logical_block_size,
            physical_block_size: block("physical_block_size", 4096).max(logical_block_size),
            transfer_bytes_max: number("max_sectors_kb")
                .and_then(|kib| kib.checked_mul(1024))
                .filter(|bytes| *bytes > 0),
            segments_max: number("max_segments").filter(|segments| *segments > 0),
            segment_bytes_max: number("max_segment_size").filter(|bytes| *bytes > 0),
            queue_depth: depths
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(QUEUE_DEPTH_DEFAULT)
                .min(QUEUE_DEPTH_MAX),
            rotational: number("rotational") == Some(1),
            discard_bytes_max: number("discard_max_bytes").unwrap_or(0),
            write_zeroes_bytes_max: number("write_zeroes_max_bytes"),
        }
    }

    /// The longest request that the device takes without a split, rounded down to a power of two, where memory comes in
    /// pages of `page_bytes`. A request that must be split cannot be submitted without waiting, so io_uring passes it
    /// to a kernel worker.
    pub fn optimal_transfer_bytes(&self, page_bytes: usize) -> u32 {
        let page_bytes = page_bytes as u64;
        let by_segments = self.segments_max.map_or(u64::MAX, |segments| {
            // A device that does not report a segment size needs one segment per 4 KiB page.
            let segment_bytes = self.segment_bytes_max.unwrap_or(0).clamp(PAGE_BYTES, page_bytes);
            segments.saturating_mul(segment_bytes)
        });
        let limit = self.transfer_bytes_max.unwrap_or(u64::MAX).min(by_segments);
        1 << limit.clamp(OPTIMAL_TRANSFER_MIN, OPTIMAL_TRANSFER_BYTES).ilog2()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            logical_block_size: 512,
            physical_block_size: 4096,
            transfer_bytes_max: None,
            segments_max: None,
            segment_bytes_max: None,
            queue_depth: QUEUE_DEPTH_DEFAULT,
            rotational: false,
            discard_bytes_max: 0,
            write_zeroes_bytes_max: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: usize = 4096;
    const HUGE: usize = 2 << 20;

    #[test]
    fn the_optimal_transfer_is_what_the_device_takes_whole() {
        let optimal = |kib: u64, segments_max, segment_bytes: u64, page_bytes| {
            let segment_bytes_max = Some(segment_bytes).filter(|bytes| *bytes > 0);
            let transfer_bytes_max = Some(kib << 10);
            let limits = Limits { transfer_bytes_max, segments_max, segment_bytes_max, ..Limits::default() };
            limits.optimal_transfer_bytes(page_bytes)
        };
        // A loop device: 128 segments suffice if a segment is longer than a 4 KiB page.
        assert_eq!(optimal(1280, Some(128), 64 << 10, HUGE), 1 << 20);
        assert_eq!(optimal(1280, Some(128), 64 << 10, SMALL), 512 << 10);
        assert_eq!(optimal(1280, Some(128), 0, HUGE), 512 << 10, "it does not say");
        assert_eq!(optimal(1280, Some(254), u64::MAX, HUGE), 1 << 20);
        assert_eq!(optimal(1280, None, 0, HUGE), 1 << 20);
        assert_eq!(optimal(320, Some(128), 64 << 10, HUGE), 256 << 10);
        assert_eq!(optimal(4, Some(1), 4096, HUGE), OPTIMAL_TRANSFER_MIN as u32);
        assert_eq!(Limits::default().optimal_transfer_bytes(SMALL), 1 << 20, "nothing is known");
    }
}
