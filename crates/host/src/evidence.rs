//! Evidence that a block device was written, by any program and at any of its names.
//!
//! The kernel counts sectors when a request to a disk completes, and a file gets new times when it is written. So data
//! in the page cache of a device is not counted: [`Kernel::write_back`] before each fingerprint has it written first.
//! docs/LIMITS.md lists what stays without evidence.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::entry::disk_of;
use crate::fingerprint::{BOOT, FILE, times};
use crate::kernel::{Kernel, Node, names, text, value};
use crate::topology::LAYERS_MAX;

/// Attempts to read the counts of a disk and its partitions while no request completes between them.
const STEADY_ATTEMPTS_MAX: u32 = 8;

/// Sectors that requests wrote and discarded since the device appeared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    written: u64,
    discarded: u64,
}

impl Counts {
    fn read(dir: &Path) -> Self {
        let stat = text(&dir.join("stat")).unwrap_or_default();
        // Documentation/block/stat.rst: field 7 is sectors written, field 14 sectors discarded.
        let number =
            |index| stat.split_ascii_whitespace().nth(index).and_then(|n| n.parse().ok()).unwrap_or(0);
        Self { written: number(6), discarded: number(13) }
    }

    fn without(self, other: Self) -> Self {
        Self {
            written: self.written.wrapping_sub(other.written),
            discarded: self.discarded.wrapping_sub(other.discarded),
        }
    }
}

impl Kernel {
    /// The evidence of writes to a device, see [`Fingerprint::contents`](crate::Fingerprint). `sequence` is its
    /// `diskseq`.
    pub(super) fn contents(&self, device: u64, sequence: &str) -> String {
        let boot = text(&self.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
        let Counts { written, discarded } = self.counts(device);
        let mut contents =
            format!("{BOOT}{boot}, sequence {sequence}, {written} sectors written, {discarded} discarded");
        let mut device = device;
        for _ in 0..LAYERS_MAX {
            if let Some(Ok(file)) = self.backing_file(device).map(fs::metadata)
                && file.is_file()
            {
                contents += &format!("; {FILE}{}", times(&file));
                break;
            }
            let Some(Node::Device(below)) = self.beneath(device) else { break };
            // The counts of a partition are those of its disk.
            if self.backing_file(device).is_some() {
                let Counts { written, discarded } = self.counts(below);
                contents += &format!("; below {written} sectors written, {discarded} discarded");
            }
            device = below;
        }
        contents
    }

    /// Requests that may have changed the device. Writes to a partition are often made by the name of its disk, so a
    /// partition has the counts of the disk, less those of other partitions that do not overlap it.
    fn counts(&self, device: u64) -> Counts {
        let dir = self.directory(device).unwrap_or_default();
        let disk = disk_of(&dir);
        let mut whole = Counts::read(disk);
        if disk == dir {
            return whole;
        }
        let range = |dir: &Path| {
            let start: u64 = value(&dir.join("start")).unwrap_or(0);
            start..start.saturating_add(value(&dir.join("size")).unwrap_or(u64::MAX))
        };
        let own = range(&dir);
        let others: Vec<PathBuf> = names(disk)
            .into_iter()
            .map(|name| disk.join(name))
            .filter(|other| *other != dir && other.join("partition").exists())
            .filter(|other| {
                let other = range(other);
                other.end <= own.start || own.end <= other.start
            })
            .collect();
        for _ in 0..STEADY_ATTEMPTS_MAX {
            let counts = others.iter().fold(whole, |counts, other| counts.without(Counts::read(other)));
            let after = Counts::read(disk);
            if after == whole {
                return counts;
            }
            whole = after;
        }
        // Steady writes to other partitions: the disk's own count is larger, and shows a write that may be theirs.
        whole
    }

    /// Has the kernel write what its page cache holds of the storage at `path` under any name: of the device or file
    /// itself, of its disk, of loop devices over the same bytes, and of the files behind those. Waits for it. What
    /// cannot be opened for reading is left out. Needs no permission to write, and flushes no device.
    pub fn write_back(&self, node: Node, path: &Path) {
        let mut nodes = vec![node];
        while let Some(Node::Device(device)) = nodes.last().copied()
            && nodes.len() <= LAYERS_MAX as usize
            && let Some(below) = self.beneath(device)
        {
            nodes.push(below);
        }
        let depth = |device: &u64| {
            let mut layers = 0;
            let mut at = self.beneath(*device);
            while let Some(Node::Device(below)) = at
                && layers < LAYERS_MAX
            {
                (layers, at) = (layers + 1, self.beneath(below));
            }
            layers + u32::from(at.is_some())
        };
        // The upper layers first: what a loop device writes goes to the page cache of what is beneath it.
        let mut devices: Vec<u64> = self.sharing(node, nodes).into_iter().collect();
        devices.sort_by_key(|device| std::cmp::Reverse(depth(device)));
        for device in devices {
            let path = PathBuf::from(self.node_path(device));
            write_back(&path, |file| file.file_type().is_block_device() && file.rdev() == device);
            if let Some(file) = self.backing_file(device) {
                write_back(&file, fs::Metadata::is_file);
            }
        }
        write_back(path, |file| file.is_file() || file.file_type().is_block_device());
    }
}

/// Writes the dirty pages of a file or block device, which must be an `expected` one, and waits for it. The descriptor
/// is a new one, so that an error of an earlier write is still reported to the descriptors of others.
fn write_back(path: &Path, expected: impl Fn(&fs::Metadata) -> bool) {
    if !fs::metadata(path).is_ok_and(|file| expected(&file)) {
        return;
    }
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    let result = options.open(path).and_then(|file| sync_range(&file));
    if let Err(error) = result {
        tracing::debug!(path = %path.display(), %error, "its page cache was not written back");
    }
}

fn sync_range(file: &File) -> std::io::Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: a plain system call on an open descriptor; it takes no memory.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
