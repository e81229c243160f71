//! The lock that cryptsetup holds while it reads or writes a LUKS2 header, so that it and this program never change a header
//! at once: flock(2) on a file that is named for the number of a block device, or on the regular file itself.
//!
//! It is advisory and of this machine. It does not exclude a volume in use: cryptsetup takes it for the moment of a change
//! only, and so does this program.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, major, minor};

/// Where cryptsetup keeps the lock files of block devices, unless it was built for another place.
const DIRECTORY: &str = "/run/cryptsetup";
/// cryptsetup holds the lock while it reads or writes a header.
const WAIT_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
const NFS_SUPER_MAGIC: u32 = 0x6969;
const SMB2_SUPER_MAGIC: u32 = 0xfe53_4d42;
const CIFS_SUPER_MAGIC: u32 = 0xff53_4d42;

/// Released when it is dropped.
#[derive(Debug)]
pub struct HeaderLock {
    file: File,
    /// Of a block device: the lock file, which the last holder removes.
    path: Option<PathBuf>,
}

#[derive(Debug)]
pub enum HeaderLockError {
    /// Another program has had the lock for all the time that was waited.
    Held,
    Io(io::Error),
}

impl From<io::Error> for HeaderLockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl HeaderLock {
    /// The lock of a writer for the header on the storage at `path`. `Ok(None)`: on a network file system flock(2) is a
    /// byte-range lock of the whole file, with which the [`crate::lock`]s of a writer exclude it already.
    pub fn take(path: &Path) -> Result<Option<Self>, HeaderLockError> {
        Self::take_in(Path::new(DIRECTORY), path, WAIT_MAX)
    }

    fn take_in(directory: &Path, path: &Path, wait_max: Duration) -> Result<Option<Self>, HeaderLockError> {
        let until = Instant::now() + wait_max;
        loop {
            let Some((file, path)) = open(directory, path)? else { return Ok(None) };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let lock = Self { file, path };
                    if lock.is_current()? {
                        return Ok(Some(lock));
                    }
                    // Its last holder has removed the lock file in the meantime.
                }
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= until => {
                    return Err(HeaderLockError::Held);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Whether the lock file that was locked is the one that others find.
    fn is_current(&self) -> io::Result<bool> {
        let Some(path) = &self.path else { return Ok(true) };
        let own = self.file.metadata()?;
        let found = std::fs::metadata(path);
        Ok(found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
    }
}

/// The file to lock and, of a block device, its name.
fn open(directory: &Path, path: &Path) -> io::Result<Option<(File, Option<PathBuf>)>> {
    let storage = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = storage.metadata()?;
    if !metadata.file_type().is_block_device() {
        let is_remote = matches!(
            rustix::fs::fstatfs(&storage)?.f_type as u32,
            NFS_SUPER_MAGIC | SMB2_SUPER_MAGIC | CIFS_SUPER_MAGIC
        );
        return Ok((!is_remote).then_some((storage, None)));
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let number = metadata.rdev();
    let path = directory.join(format!("L_{}:{}", major(number), minor(number)));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)?;
    Ok(Some((file, Some(path))))
}

impl Drop for HeaderLock {
    /// Removes the lock file while it is still locked: a process that waits for the lock then finds that the file is gone, and
    /// makes another one.
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && self.is_current().unwrap_or(false)
        {
            // A lock file that stays is used again.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIME: Duration = Duration::ZERO;

    /// As cryptsetup opens it.
    fn other(path: &Path) -> File {
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn a_regular_file_is_locked_itself() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let directory = Path::new("/nonexistent");
        let lock = HeaderLock::take_in(directory, file.path(), NO_TIME).unwrap().unwrap();
        let cryptsetup = other(file.path());
        assert!(flock(&cryptsetup, FlockOperation::NonBlockingLockShared).is_err(), "not locked");
        drop(lock);
        flock(&cryptsetup, FlockOperation::NonBlockingLockShared).unwrap();
        let held = HeaderLock::take_in(directory, file.path(), Duration::from_millis(50));
        assert!(matches!(held, Err(HeaderLockError::Held)), "{held:?}");
        drop(cryptsetup);
        HeaderLock::take_in(directory, file.path(), NO_TIME).unwrap().unwrap();
        assert!(file.path().exists(), "the storage is no lock file");
        let missing = HeaderLock::take_in(directory, Path::new("/nonexistent/x"), NO_TIME);
        assert!(matches!(missing, Err(HeaderLockError::Io(_))), "{missing:?}");
    }

    /// A lock file that its last holder removed is not the one that others lock.
    #[test]
    fn a_removed_lock_file_locks_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("L_7:0");
        let file = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let [old, new] = [(); 2].map(|()| {
            let lock = HeaderLock { file: file().unwrap(), path: Some(path.clone()) };
            assert!(lock.is_current().unwrap());
            std::fs::remove_file(&path).unwrap();
            assert!(!lock.is_current().unwrap());
            lock
        });
        let present = HeaderLock { file: file().unwrap(), path: Some(path.clone()) };
        drop((old, new));
        assert!(present.is_current().unwrap(), "another's lock file was removed");
        drop(present);
        assert!(!path.exists());
    }
}
