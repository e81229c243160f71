//! The files that are copied from and to, in memory.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::plan::{Ours, Row, Way, Who};
use crate::{Attempted, LabError, folder};

const CHUNK_BYTES: usize = 1 << 20;
/// Seeds of what is copied to a LUN, and of what the LUN holds at first.
const SOURCE: u64 = 16;
const STORE: u64 = 17;
/// Places of a destination that are changed before a copy, so that the comparison afterwards means something.
const SPOILED: u64 = 64;
const SPOIL: [u8; 4096] = [0xee; 4096];

pub(super) struct Files {
    folder: TempDir,
}

impl Files {
    pub(super) fn new(bytes: u64, has_zeroes: bool) -> Result<Self, LabError> {
        let files = Self { folder: folder()? };
        open_to_all(files.folder.path())?;
        make(&files.at("source.img"), bytes, |at, chunk| block::fill_pattern(SOURCE, at, chunk))?;
        make(&files.store(), bytes, |at, chunk| block::fill_pattern(STORE, at, chunk))?;
        if has_zeroes {
            make(&files.at("zeroes.img"), bytes, |_, chunk| chunk.fill(0))?;
        }
        Ok(files)
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file behind the LUNs.
    pub(super) fn store(&self) -> PathBuf {
        self.at("store.img")
    }

    /// The file that a row copies from, at whichever end.
    pub(super) fn source(&self, row: &Row) -> PathBuf {
        match (row.who, row.way) {
            (Who::Ours(Ours::Zeroes), _) => self.at("zeroes.img"),
            (_, Way::Write) => self.at("source.img"),
            (_, Way::Read) => self.store(),
        }
    }

    /// Changes the file behind the LUNs in some places of its first `bytes`.
    pub(super) fn spoil(&self, bytes: u64) -> Result<(), LabError> {
        let step = (bytes / SPOILED).max(SPOIL.len() as u64);
        let spoil = || {
            let file = File::options().write(true).open(self.store())?;
            (0..bytes / step).try_for_each(|index| file.write_all_at(&SPOIL, index * step))
        };
        spoil().attempted("change the destination of a copy")
    }

    /// Fails unless `copy` begins with the first `bytes` of the row's source.
    pub(super) fn compare(&self, row: &Row, bytes: u64, copy: &Path) -> Result<(), LabError> {
        match are_equal(&self.source(row), copy, bytes).attempted("compare a copy")? {
            true => Ok(()),
            false => Err(LabError::new(row.name(), &"the copy differs from its source")),
        }
    }
}

/// Lets every user into a folder.
pub(super) fn open_to_all(folder: &Path) -> Result<(), LabError> {
    let permissions = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder, permissions).attempted(&format!("open {}", folder.display()))
}

fn make(path: &Path, bytes: u64, fill: impl Fn(u64, &mut [u8])) -> Result<(), LabError> {
    let write = || {
        let mut file = File::create(path)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            fill(at, &mut chunk);
            file.write_all(&chunk)?;
        }
        // For the row without root's rights.
        file.set_permissions(std::fs::Permissions::from_mode(0o666))
    };
    write().attempted(&format!("write {}", path.display()))
}

/// Whether two files begin with the same `bytes`.
fn are_equal(one: &Path, other: &Path, bytes: u64) -> std::io::Result<bool> {
    let [mut one, mut other] = [File::open(one)?, File::open(other)?];
    let [mut left, mut right] = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
    let mut rest = bytes as usize;
    while rest > 0 {
        let length = rest.min(CHUNK_BYTES);
        one.read_exact(&mut left[..length])?;
        other.read_exact(&mut right[..length])?;
        if left[..length] != right[..length] {
            return Ok(false);
        }
        rest -= length;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spoiled_destination_differs_until_it_is_copied() {
        let bytes = 2 << 20;
        let files = Files::new(bytes, true).unwrap();
        for row in Row::all(false) {
            let copy = files.at("copy.img");
            std::fs::copy(files.source(&row), &copy).unwrap();
            files.compare(&row, bytes, &copy).unwrap();
        }
        let write = Row::reference(Way::Write);
        std::fs::copy(files.source(&write), files.store()).unwrap();
        files.compare(&write, bytes, &files.store()).unwrap();
        files.spoil(64 << 10).unwrap();
        assert!(files.compare(&write, 64 << 10, &files.store()).is_err());
    }
}
