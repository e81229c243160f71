//! The block device of a disk that is used by its own commands. Held open, and exclusively where we write: the kernel would
//! let anybody mount a disk whose blocks change beneath it. And its page cache, which our commands go past.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use block::OpenError;
use block::device::Kernel;

/// A block device that nobody else takes meanwhile.
#[derive(Debug)]
pub(crate) struct Guard {
    disk: File,
}

impl Guard {
    /// Of the block device with this number. `exclusive`: nobody else may hold it. `None`: there is no node to open, and that
    /// is no harm since nothing is written.
    pub(crate) fn take(number: u64, exclusive: bool) -> std::result::Result<Option<Self>, OpenError> {
        let path = Kernel::default().node_path(number);
        let flags = libc::O_CLOEXEC | if exclusive { libc::O_EXCL } else { 0 };
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path).and_then(|disk| {
            let metadata = disk.metadata()?;
            let is_it = metadata.file_type().is_block_device() && metadata.rdev() == number;
            if is_it { Ok(disk) } else { Err(ErrorKind::NotFound.into()) }
        });
        match opened {
            Ok(disk) => {
                let guard = Self { disk };
                guard.settle().map_err(|error| OpenError::Failed(format!("flushing {path}: {error}")))?;
                Ok(Some(guard))
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(OpenError::Refused(format!(
                "{path}, which is the same disk, is mounted or held by another program; unmount it or end that program first"
            ))),
            Err(error) if exclusive => Err(OpenError::Refused(format!(
                "{path}, which is the same disk, cannot be held, so that anybody could mount it meanwhile: {error}"
            ))),
            Err(error) => {
                tracing::warn!(%error, "{path} cannot be opened: what it has not written yet is not read");
                Ok(None)
            }
        }
    }

    /// Nothing that was written to the block device before reaches the disk after this, and nothing that was read from it is
    /// remembered.
    fn settle(&self) -> Result<()> {
        self.disk.sync_all()?;
        self.forget();
        Ok(())
    }

    /// Whoever reads the block device from now on reads the disk.
    pub(crate) fn forget(&self) {
        // SAFETY: a plain system call on a live descriptor. What is in use stays; that is advice.
        let result = unsafe { libc::posix_fadvise(self.disk.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if result != 0 {
            tracing::debug!(error = %Error::from_raw_os_error(result), "the page cache is not emptied");
        }
    }
}
