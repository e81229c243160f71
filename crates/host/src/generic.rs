//! Generic character devices, which take a disk's native commands, and the block devices of the same storage.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::entry::{SECTOR_BYTES, disk_of};
use crate::kernel::{Kernel, names, node_name, number_in, number_text, value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// SCSI generic: `/dev/sg0`.
    Scsi,
    /// NVMe generic, one namespace: `/dev/ng0n1`.
    Nvme,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generic {
    pub family: Family,
    /// Node name under /dev.
    pub name: String,
    /// Number of the block device with the same storage; `None` if no driver made one (a tape, a disk without `sd`).
    pub block: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub node: PathBuf,
    /// `st_rdev` of that node.
    pub number: u64,
    /// sysfs directory of the namespace's controller; of the subsystem if that may have several controllers.
    pub parent: PathBuf,
    pub has_one_controller: bool,
    pub start_bytes: u64,
    pub size_bytes: u64,
}

impl Kernel {
    /// The NVMe namespace of the block device with this number, and the device's range in it.
    pub fn namespace(&self, device: u64) -> Option<Namespace> {
        let dir = self.directory(device)?;
        let disk = disk_of(&dir);
        let name = format!("ng{}", node_name(disk)?.strip_prefix("nvme")?);
        let parent = disk.parent()?.to_owned();
        let class = |dir: &Path| Some(fs::canonicalize(dir.join("subsystem")).ok()?.file_name()?.to_owned());
        let node = parent.join(&name);
        if class(&node)? != "nvme-generic" {
            return None;
        }
        let bytes = |field: &str| value::<u64>(&dir.join(field))?.checked_mul(SECTOR_BYTES);
        Some(Namespace {
            node: Path::new("/dev").join(&name),
            number: number_in(&node)?,
            has_one_controller: class(&parent)? == "nvme",
            parent,
            start_bytes: if disk == dir { 0 } else { bytes("start")? },
            size_bytes: bytes("size")?,
        })
    }

    pub fn generic_at(&self, path: &Path) -> Option<Generic> {
        let metadata = fs::metadata(path).ok()?;
        metadata.file_type().is_char_device().then(|| self.generic(metadata.rdev())).flatten()
    }

    /// The character device with this number, if it takes native commands.
    pub fn generic(&self, number: u64) -> Option<Generic> {
        let dir = fs::canonicalize(self.sys.join("dev/char").join(number_text(number))).ok()?;
        let class = fs::canonicalize(dir.join("subsystem")).ok()?;
        let name = node_name(&dir)?;
        let (family, block) = match class.file_name()?.to_str()? {
            "scsi_generic" => {
                let blocks = dir.join("device/block");
                (Family::Scsi, names(&blocks).iter().find_map(|name| number_in(&blocks.join(name))))
            }
            // The namespace's disk is in the same directory: that of the controller, or of the subsystem if that has
            // several paths.
            "nvme-generic" => {
                let disk = format!("nvme{}", name.strip_prefix("ng")?);
                (Family::Nvme, number_in(&dir.parent()?.join(disk)))
            }
            _ => return None,
        };
        Some(Generic { family, name, block })
    }
}
