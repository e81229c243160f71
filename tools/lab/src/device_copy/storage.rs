//! Source and destination: loop devices over memory if permitted, otherwise files in memory, or paths given by the
//! user.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use host::{Kernel, Traffic};
use tempfile::TempDir;

use super::copier::open_plain;
use crate::{Attempted, LabError, folder, sys};

const CHUNK_BYTES: usize = 1 << 20;
/// Content written to the destination before a verified copy, and the number of places.
const SPOIL: [u8; 4096] = [0xA5; 4096];
const SPOILS: u64 = 64;

/// A source and a destination, each at least twice as long as a copy.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) paths: [PathBuf; 2],
    /// Kept open: a loop device disappears with its last descriptor.
    files: [File; 2],
    pub(super) what: &'static str,
    _folder: Option<TempDir>,
}

impl Storage {
    pub(super) fn own(bytes: u64) -> Result<Self, LabError> {
        let doing = "make storage in memory";
        let folder = folder()?;
        let mut paths = ["source", "destination"].map(|name| folder.path().join(name));
        for (seed, path) in paths.iter().enumerate() {
            let file = File::create(path).attempted(doing)?;
            let mut chunk = vec![0; CHUNK_BYTES];
            for at in (0..2 * bytes).step_by(CHUNK_BYTES) {
                block::fill_pattern(seed as u64, at, &mut chunk);
                file.write_all_at(&chunk, at).attempted(doing)?;
            }
        }
        let loops: Vec<PathBuf> = paths.iter().map_while(|path| attach(path)).collect();
        let is_loop = loops.len() == paths.len();
        for (path, device) in paths.iter_mut().zip(&loops).filter(|_| is_loop) {
            path.clone_from(device);
        }
        let files = [open_plain(&paths[0], true)?, open_plain(&paths[1], true)?];
        // The kernel delays the detachment until the last descriptor is closed, however this process ends.
        loops.iter().for_each(|device| detach(device));
        let what = if is_loop { "loop devices over memory" } else { "files in memory" };
        Ok(Self { paths, files, what, _folder: Some(folder) })
    }

    /// Storage given by the user; the destination may be overwritten.
    pub(super) fn given(paths: &[PathBuf; 2]) -> Result<Self, LabError> {
        let files = [open_plain(&paths[0], false)?, open_plain(&paths[1], true)?];
        Ok(Self { paths: paths.clone(), files, what: "as given", _folder: None })
    }

    /// Bytes of the shorter one.
    pub(super) fn size(&self) -> Result<u64, LabError> {
        let size = |path: &PathBuf| {
            let mut file = open_plain(path, false)?;
            std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).attempted("find out a size")
        };
        Ok(size(&self.paths[0])?.min(size(&self.paths[1])?))
    }

    pub(super) fn drop_caches(&self) -> Result<(), LabError> {
        self.files.iter().try_for_each(|file| sys::drop_cache(file).attempted("empty the page cache"))
    }

    /// Bytes of both in the page cache. For a file on tmpfs these are the file's own pages.
    pub(super) fn cached_bytes(&self) -> Option<u64> {
        self.files.iter().map(sys::cached_bytes).sum()
    }

    /// Requests counted by each device, if both are devices.
    pub(super) fn traffic(&self) -> Option<[Traffic; 2]> {
        let of = |file: &File| {
            let metadata = file.metadata().ok()?;
            let device = metadata.file_type().is_block_device().then_some(metadata.rdev())?;
            Kernel::default().traffic(device)
        };
        Some([of(&self.files[0])?, of(&self.files[1])?])
    }

    /// Overwrites parts of the destination, so that the comparison detects a copy that wrote nothing.
    pub(super) fn spoil(&self, bytes: u64) -> Result<(), LabError> {
        let step = (bytes / SPOILS / 4096 * 4096).max(4096);
        for at in (0..bytes).step_by(step as usize) {
            let length = SPOIL.len().min((bytes - at) as usize);
            self.files[1].write_all_at(&SPOIL[..length], at).attempted("spoil the destination")?;
        }
        Ok(())
    }

    pub(super) fn compare(&self, bytes: u64) -> Result<(), LabError> {
        let doing = "compare what was copied";
        let mut chunks = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let length = CHUNK_BYTES.min((bytes - at) as usize);
            for (file, chunk) in self.files.iter().zip(&mut chunks) {
                file.read_exact_at(&mut chunk[..length], at).attempted(doing)?;
            }
            if chunks[0][..length] != chunks[1][..length] {
                return Err(LabError::new(doing, &format!("they differ in the {length} bytes at {at}")));
            }
        }
        Ok(())
    }
}

fn losetup(arguments: &[&str], path: &Path) -> Option<String> {
    let mut command = Command::new("losetup");
    let output =
        command.args(arguments).arg(path).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Attaches a loop device, if permitted.
fn attach(path: &Path) -> Option<PathBuf> {
    losetup(&["--find", "--show", "--direct-io=on"], path).map(PathBuf::from)
}

fn detach(device: &Path) {
    // Without losetup no device was attached.
    let _ = losetup(&["--detach"], device);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_copied_is_found() {
        let storage = Storage::own(1 << 20).unwrap();
        assert_eq!(storage.size().unwrap(), 2 << 20);
        assert!(storage.compare(1 << 20).is_err(), "they begin with different patterns");
        let mut bytes = vec![0; 1 << 20];
        storage.files[0].read_exact_at(&mut bytes, 0).unwrap();
        storage.files[1].write_all_at(&bytes, 0).unwrap();
        storage.compare(1 << 20).unwrap();
        storage.spoil(1 << 20).unwrap();
        assert!(storage.compare(1 << 20).is_err());
        storage.drop_caches().unwrap();
    }
}
