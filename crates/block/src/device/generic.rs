//! Character devices that take a disk's own commands, and the block device of the same storage.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::kernel::{Kernel, names, node_name, number_in, number_text};

/// Whose commands a character device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// SCSI generic: `/dev/sg0`.
    Scsi,
    /// NVMe generic, one namespace: `/dev/ng0n1`.
    Nvme,
}

/// A character device that takes commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generic {
    /// Whose.
    pub family: Family,
    /// Node name under /dev.
    pub name: String,
    /// The block device that requests to it end at, too; `None` if no driver made one (a tape, a disk without `sd`).
    pub block: Option<u64>,
}

impl Kernel {
    /// What `path` leads to, if that is a character device which takes commands.
    pub fn generic_at(&self, path: &Path) -> Option<Generic> {
        let metadata = fs::metadata(path).ok()?;
        metadata.file_type().is_char_device().then(|| self.generic(metadata.rdev())).flatten()
    }

    /// The character device with this number, if it takes commands.
    pub fn generic(&self, number: u64) -> Option<Generic> {
        let dir = fs::canonicalize(self.sys.join("dev/char").join(number_text(number))).ok()?;
        let class = fs::canonicalize(dir.join("subsystem")).ok()?;
        let name = node_name(&dir)?;
        let (family, block) = match class.file_name()?.to_str()? {
            "scsi_generic" => {
                let blocks = dir.join("device/block");
                (Family::Scsi, names(&blocks).iter().find_map(|name| number_in(&blocks.join(name))))
            }
            // The namespace's disk lies beside it: of the controller, or of the subsystem if that has several paths.
            "nvme-generic" => {
                let disk = format!("nvme{}", name.strip_prefix("ng")?);
                (Family::Nvme, number_in(&dir.parent()?.join(disk)))
            }
            _ => return None,
        };
        Some(Generic { family, name, block })
    }
}
