//! The block device of a disk that is used by its own commands. It is held open, exclusively if the disk is written:
//! otherwise the kernel would permit to mount a disk whose blocks change. Its page cache is flushed and dropped,
//! because passthrough commands bypass it.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

use block::OpenError;
use host::Kernel;
use rustix::fs::Advice;

/// An open block device; opened exclusively, it can be neither mounted nor held by another program.
#[derive(Debug)]
pub(crate) struct Guard {
    disk: File,
}

impl Guard {
    /// Opens the block device `number`; with `exclusive`, fails if it is mounted or held exclusively. `None`: it cannot
    /// be opened, which is harmless without `exclusive`, since nothing is written.
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
                "{path}, which is the same disk, cannot be opened exclusively, so it could be mounted during the copy: {error}"
            ))),
            Err(error) => {
                tracing::warn!(%error, "{path} cannot be opened: what it has not written yet is not read");
                Ok(None)
            }
        }
    }

    /// Flushes earlier writes to the block device, so that none reaches the disk later, and drops its page cache.
    fn settle(&self) -> Result<()> {
        self.disk.sync_all()?;
        self.forget();
        Ok(())
    }

    /// Drops the page cache: later reads of the block device read the disk.
    pub(crate) fn forget(&self) {
        // The call is advice; pages in use stay cached.
        if let Err(error) = rustix::fs::fadvise(&self.disk, 0, None, Advice::DontNeed) {
            tracing::debug!(error = %Error::from(error), "the page cache is not emptied");
        }
    }
}
