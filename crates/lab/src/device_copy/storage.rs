//! What is copied, from where to where: loop devices over memory where that is allowed, else files in memory, or what the user named.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use block::device::{Kernel, Traffic};
use tempfile::TempDir;

use super::copier::open_plain;
use crate::{Attempted, LabError, sys};

/// Bytes looked at in one go.
const PIECE: usize = 1 << 20;
/// What the destination is spoiled with, and how often, before a copy that is compared.
const SPOIL: [u8; 4096] = [0xA5; 4096];
const SPOILS: u64 = 64;

/// A source and a destination, each at least twice as long as what is copied.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) paths: [PathBuf; 2],
    /// Open as long as they are wanted: a loop device goes with its last descriptor.
    files: [File; 2],
    /// For people.
    pub(super) what: &'static str,
    _folder: Option<TempDir>,
}

impl Storage {
    /// Storage of our own for copies of so many bytes.
    pub(super) fn own(bytes: u64) -> Result<Self, LabError> {
        let doing = "make storage in memory";
        let mut builder = tempfile::Builder::new();
        builder.prefix("hikyaku-lab-");
        let folder = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).attempted(doing)?;
        let mut paths = ["source", "destination"].map(|name| folder.path().join(name));
        for (seed, path) in paths.iter().enumerate() {
            let file = File::create(path).attempted(doing)?;
            let mut piece = vec![0; PIECE];
            for at in (0..2 * bytes).step_by(PIECE) {
                block::fill_pattern(seed as u64, at, &mut piece);
                file.write_all_at(&piece, at).attempted(doing)?;
            }
        }
        let loops: Vec<PathBuf> = paths.iter().map_while(|path| attach(path)).collect();
        let is_loop = loops.len() == paths.len();
        for (path, device) in paths.iter_mut().zip(&loops).filter(|_| is_loop) {
            path.clone_from(device);
        }
        let files = [open_plain(&paths[0], true)?, open_plain(&paths[1], true)?];
        // The kernel puts that off until the last descriptor is closed, however we end.
        loops.iter().for_each(|device| detach(device));
        let what = if is_loop { "loop devices over memory" } else { "files in memory" };
        Ok(Self { paths, files, what, _folder: Some(folder) })
    }

    /// What the user named; the destination may be overwritten.
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

    /// Nothing of either in the page cache.
    pub(super) fn drop_caches(&self) -> Result<(), LabError> {
        self.files.iter().try_for_each(|file| sys::drop_cache(file).attempted("empty the page cache"))
    }

    /// Bytes of both in the page cache. Of a file in memory it is what the file is made of.
    pub(super) fn cached_bytes(&self) -> Option<u64> {
        self.files.iter().map(sys::cached_bytes).sum()
    }

    /// Requests that each device has seen, where both are devices.
    pub(super) fn traffic(&self) -> Option<[Traffic; 2]> {
        let of = |file: &File| {
            let metadata = file.metadata().ok()?;
            let device = metadata.file_type().is_block_device().then_some(metadata.rdev())?;
            Kernel::default().traffic(device)
        };
        Some([of(&self.files[0])?, of(&self.files[1])?])
    }

    /// So that a copy that did nothing is found out.
    pub(super) fn spoil(&self, bytes: u64) -> Result<(), LabError> {
        let step = (bytes / SPOILS / 4096 * 4096).max(4096);
        for at in (0..bytes).step_by(step as usize) {
            let length = SPOIL.len().min((bytes - at) as usize);
            self.files[1].write_all_at(&SPOIL[..length], at).attempted("spoil the destination")?;
        }
        Ok(())
    }

    /// Whether the first bytes of both are the same.
    pub(super) fn compare(&self, bytes: u64) -> Result<(), LabError> {
        let doing = "compare what was copied";
        let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
        for at in (0..bytes).step_by(PIECE) {
            let length = PIECE.min((bytes - at) as usize);
            for (file, piece) in self.files.iter().zip(&mut pieces) {
                file.read_exact_at(&mut piece[..length], at).attempted(doing)?;
            }
            if pieces[0][..length] != pieces[1][..length] {
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

/// A loop device, where that is allowed.
fn attach(path: &Path) -> Option<PathBuf> {
    losetup(&["--find", "--show", "--direct-io=on"], path).map(PathBuf::from)
}

fn detach(device: &Path) {
    // Without losetup there is no device either.
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
