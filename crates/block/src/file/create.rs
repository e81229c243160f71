//! New files, and the free space of the file system that they lie in.

use std::fs::{File, OpenOptions as FileOptions};
use std::io::{ErrorKind, Result as IoResult};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::failed;
use crate::OpenError;

/// A file that this process has created. A drop removes it if it still holds nothing, unless [`NewFile::keep`] was
/// called.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl NewFile {
    /// Creates a file of `size` zeroes, without blocks, with mode 0600. Never replaces a file; under /dev only in
    /// /dev/shm.
    pub fn create(path: &Path, size: u64) -> Result<Self, OpenError> {
        if is_among_devices(path) {
            return Err(OpenError::Refused(format!("{}: no plain file is made under /dev", path.display())));
        }
        let mut options = FileOptions::new();
        let file =
            options.write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
                match error.kind() {
                    ErrorKind::AlreadyExists => {
                        OpenError::Refused(format!("{} exists; leave out create to use it", path.display()))
                    }
                    _ => failed(path, "creating", &error),
                }
            })?;
        let new = Self { path: path.to_owned(), file, is_kept: false };
        new.file.set_len(size).map_err(|error| failed(path, "sizing", &error))?;
        Ok(new)
    }

    pub fn keep(mut self) {
        self.is_kept = true;
    }

    /// Whether the file has no data. The call moves the file position, which no code uses.
    fn is_empty(&self) -> bool {
        seek(&self.file, SeekFrom::Data(0)) == Err(Errno::NXIO)
    }

    /// Whether the path still leads to this file.
    fn is_there(&self) -> IoResult<bool> {
        let (ours, there) = (self.file.metadata()?, std::fs::symlink_metadata(&self.path)?);
        Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept && self.is_empty() && self.is_there().unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The directory of a file: the current one for a bare name.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a file at `path` would lie among device nodes, by its own name or through links.
pub fn is_among_devices(path: &Path) -> bool {
    let among = |path: &Path| path.starts_with("/dev") && !path.starts_with("/dev/shm");
    among(path) || directory(path).canonicalize().is_ok_and(|directory| among(&directory))
}

/// Bytes that this user can still write to the file system with the directory of `path`.
pub fn free_bytes(path: &Path) -> IoResult<u64> {
    let found = rustix::fs::statvfs(directory(path))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_made_for_nothing_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new.img");
        let new = NewFile::create(&path, 1 << 20).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.mode() & 0o777), (1 << 20, 0o600));
        assert!(matches!(NewFile::create(&path, 1), Err(OpenError::Refused(_))));
        drop(new);
        assert!(!path.exists());
        for (name, keeps, writes, replaced) in
            [("kept", true, false, false), ("written", false, true, false), ("replaced", false, false, true)]
        {
            let path = directory.path().join(name);
            let new = NewFile::create(&path, 1 << 20).unwrap();
            if writes {
                new.file.write_all_at(b"x", 1 << 19).unwrap();
            }
            if replaced {
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, "").unwrap();
            }
            if keeps {
                new.keep();
            } else {
                drop(new);
            }
            assert!(path.exists(), "{name}");
        }
    }

    #[test]
    fn no_file_is_made_among_devices() {
        for path in ["/dev/x.img", "/dev/mapper/../x.img", "/proc/self/root/dev/x.img"] {
            assert!(is_among_devices(Path::new(path)), "{path}");
        }
        for path in ["/dev/shm/x.img", "/tmp/dev/x.img", "x.img", "/nonexistent/x.img"] {
            assert!(!is_among_devices(Path::new(path)), "{path}");
        }
        assert!(free_bytes(Path::new("x.img")).is_ok() && free_bytes(Path::new("/nonexistent/x")).is_err());
    }
}
