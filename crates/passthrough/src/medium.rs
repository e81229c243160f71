//! The medium of a device that takes commands.

use std::fs::{File, OpenOptions as FileOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use block::{Capability, Endpoint, Identity, Medium, OpenError, OpenOptions, Spec};
use host::signature;
use host::{Devices, Family, Kernel, Limits, Lost};
use io::{Handle, Io};

use crate::disk::Disk;
use crate::endpoint::{PassthroughEndpoint, Shared};
use crate::guard::Guard;
use crate::nvme::{self, NvmeChannel};
use crate::sg::{self, SgChannel};

/// Options of files that do not apply here.
const STRANGE_OPTIONS: &[&str] = &["size", "create", "grow", "block-size", "physical-block"];

/// Command set of the device, with the parameters of its channel. `long`: the disk supports 16-byte commands.
#[derive(Clone, Copy, Debug)]
enum CommandSet {
    Scsi { long: bool },
    Nvme { namespace: u32 },
}

/// An open device that takes commands. The medium and its endpoints hold the block device of the same disk until all
/// are dropped; [`Medium::attach`] opens a further descriptor for each thread.
#[derive(Debug)]
pub struct PassthroughMedium {
    path: PathBuf,
    device: File,
    command_set: CommandSet,
    disk: Arc<Disk>,
    capability: Capability,
    shared: Arc<Shared>,
}

impl PassthroughMedium {
    pub fn takes(path: &Path) -> bool {
        Kernel::default().generic_at(path).is_some()
    }

    /// Opens the node at `path`, reads the disk's properties, and holds its block device. Options: `ro`, `format=raw`.
    pub fn open(path: &Path, spec: &Spec, options: &OpenOptions) -> Result<Self, OpenError> {
        let name = path.display();
        let at = |error: OpenError| prefix(&name, error);
        if let Some(strange) = STRANGE_OPTIONS.iter().find(|option| spec.get(option).is_some()) {
            return Err(OpenError::Usage(format!(
                "{name}: the option {strange} is for files and block devices"
            )));
        }
        let read_only = !options.writable || spec.flag("ro")?;
        let failed = |error: std::io::Error| OpenError::Failed(format!("opening {name}: {error}"));
        let device = open(path).map_err(failed)?;
        let metadata = device.metadata().map_err(failed)?;
        let kernel = Kernel::default();
        let generic = kernel
            .generic(metadata.rdev())
            .ok_or_else(|| OpenError::Failed(format!("{name}: sysfs does not show what it is")))?;
        // Precedes all commands, so that a disk in use elsewhere is not disturbed.
        let guard = match generic.block {
            Some(block) => Guard::take(block, !read_only && !options.allow_in_use).map_err(at)?,
            None => None,
        };
        let opened = generic.block.and_then(|block| Devices::shared().open(block));
        let fd = OwnedFd::from(device.try_clone().map_err(failed)?);
        let (disk, command_set) = match generic.family {
            Family::Scsi => sg::probe(&fd).map(|(disk, long)| (disk, CommandSet::Scsi { long })),
            Family::Nvme => nvme::probe(&fd).map(|(disk, namespace)| (disk, CommandSet::Nvme { namespace })),
        }
        .map_err(at)?;
        disk.check().map_err(|text| OpenError::Failed(format!("{name}: {text}")))?;
        if spec.get("format") != Some("raw") {
            let bytes = signature::IMAGE_HEAD_BYTES as u32;
            let head = match command_set {
                CommandSet::Scsi { .. } => sg::head(&fd, &disk, bytes),
                CommandSet::Nvme { namespace } => nvme::head(&fd, namespace, &disk, bytes),
            };
            if let Some(format) = signature::image(&head) {
                let text = format!(
                    "{name} looks like {format}, which is not interpreted; say {name},format=raw to use the bytes as they are"
                );
                return Err(OpenError::Refused(text));
            }
        }
        let limits = opened.as_ref().map_or_else(Limits::default, |entry| entry.limits);
        let depth = match command_set {
            CommandSet::Scsi { .. } => sg::QUEUE_MAX,
            CommandSet::Nvme { .. } => nvme::QUEUE_MAX,
        };
        let capability = disk.capability(&limits, depth, read_only);
        let identity = match generic.block {
            Some(device) => Identity::Device { device },
            // Without an identifier, its address, which is valid on this machine only.
            None if disk.designator.is_empty() => Identity::Remote(generic.name),
            None => Identity::Remote(disk.designator.clone()),
        };
        let disks =
            host::Node::of(path).map_or_else(Vec::new, |node| kernel.disks(node, path).into_iter().collect());
        let shared = Arc::new(Shared::new(identity, opened, guard, disks));
        Ok(Self { path: path.to_owned(), device, command_set, disk: Arc::new(disk), capability, shared })
    }
}

/// Opens without waiting for results; for writing too, since commands are sent by `write`.
fn open(path: &Path) -> std::io::Result<File> {
    FileOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
}

fn prefix(name: &impl std::fmt::Display, error: OpenError) -> OpenError {
    let to = |text: String| format!("{name}: {text}");
    match error {
        OpenError::Usage(text) => OpenError::Usage(to(text)),
        OpenError::Refused(text) => OpenError::Refused(to(text)),
        OpenError::Unreachable(text) => OpenError::Unreachable(to(text)),
        other => OpenError::Failed(to(other.to_string())),
    }
}

impl Medium for PassthroughMedium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let name = self.path.display();
        let failed = |error: std::io::Error| OpenError::Failed(format!("opening {name}: {error}"));
        // A separate descriptor of the node that was opened, even if the path changed.
        let again = open(Path::new(&format!("/proc/self/fd/{}", self.device.as_raw_fd()))).map_err(failed)?;
        if self.shared.check(block::Evidence::Probed).is_err_and(|lost| lost == Lost::TakenOver) {
            return Err(OpenError::Failed(format!("{name}: {}", Lost::TakenOver)));
        }
        let device: Handle = Rc::new(again.into());
        let (disk, capability, shared) =
            (Arc::clone(&self.disk), self.capability.clone(), Arc::clone(&self.shared));
        Ok(match self.command_set {
            CommandSet::Scsi { long } => {
                let channel = SgChannel::new(device, long);
                Box::new(PassthroughEndpoint::new(io, channel, disk, capability, shared))
            }
            CommandSet::Nvme { namespace } => {
                let channel = NvmeChannel::new(device, namespace).map_err(|error| {
                    let text =
                        format!("{name}: commands of NVMe need io_uring: {error}; name its block device");
                    OpenError::Failed(text)
                })?;
                Box::new(PassthroughEndpoint::new(io, channel, disk, capability, shared))
            }
        })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn as_disk(&self) -> Option<u64> {
        match self.shared.identity {
            Identity::Device { device } => Some(device),
            _ => None,
        }
    }
}
