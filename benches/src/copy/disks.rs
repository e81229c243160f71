//! Sources and destinations of copies: files of random bytes in memory or on a disk, and loop devices over them.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use harness::files::{Loop, random_file, same_range};
use harness::scratch;

/// Number of blocks of a destination that are overwritten before each run.
const SPOILS: u64 = 64;

/// File system of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// tmpfs.
    Memory,
    /// The file system of `/var/tmp`; both ends share its disk.
    Disk,
}

impl Place {
    pub(crate) fn folder(self) -> Result<TempDir> {
        match self {
            Self::Memory => scratch(),
            Self::Disk => tempfile::Builder::new()
                .prefix("hikyaku-bench-")
                .tempdir_in("/var/tmp")
                .context("make a temporary directory in /var/tmp"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "tmpfs",
            Self::Disk => "one disk, ext4 or what /var/tmp is",
        }
    }
}

/// Two files of random bytes, fully written, so that no run includes the allocation of the destination.
pub(super) struct Files {
    pub(super) source: PathBuf,
    pub(super) destination: PathBuf,
    pub(super) bytes: u64,
    _folder: TempDir,
}

impl Files {
    pub(super) fn new(place: Place, bytes: u64) -> Result<Self> {
        let folder = place.folder()?;
        let source = random_file(folder.path().join("source"), bytes, 1)?;
        let destination = random_file(folder.path().join("destination"), bytes, 2)?;
        Ok(Self { source, destination, bytes, _folder: folder })
    }

    pub(super) fn loops(&self) -> Result<[Loop; 2]> {
        Ok([Loop::attach(&self.source, 512, true)?, Loop::attach(&self.destination, 512, true)?])
    }
}

/// Makes the destination differ from the source in places that depend on `rep`, and drops both from the page cache.
pub(super) fn prepare(source: &Path, destination: &Path, bytes: u64, rep: usize) -> Result<()> {
    let file = OpenOptions::new().write(true).open(destination)?;
    for index in 0..SPOILS {
        let offset = (index * bytes / SPOILS + rep as u64 * 4096) / 4096 * 4096;
        file.write_all_at(&[0xa5; 4096], offset.min(bytes - 4096))?;
    }
    file.sync_data().context("flush the spoiled blocks")?;
    uncache(source)?;
    uncache(destination)
}

/// Fails unless the first `bytes` of both are equal on storage.
pub(super) fn compare(source: &Path, destination: &Path, bytes: u64) -> Result<()> {
    uncache(destination)?;
    same_range(source, 0, destination, 0, bytes)
}

/// Flushes a file and drops its pages from the page cache.
fn uncache(path: &Path) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    file.sync_data()?;
    // SAFETY: the descriptor is open; the call only drops clean pages.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}
