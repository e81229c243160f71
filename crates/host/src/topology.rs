//! Which storage lies on which, and which programs use it.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::kernel::{Kernel, Node, names, number_in, path_in, value};
use crate::lock;

/// Maximum number of layers (device mapper, md, loop, partitions) that are followed downwards.
pub(crate) const LAYERS_MAX: u32 = 16;
/// Unit of sizes and starts in sysfs.
const SECTOR_BYTES: u64 = 512;

/// A range of bytes of storage that lies in no other storage, as far as sysfs shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: Node,
    pub bytes: Range<u64>,
}

impl Place {
    fn overlaps(&self, other: &Self) -> bool {
        self.node == other.node && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

enum Below {
    Nothing,
    /// The whole disk of a partition, or the components of a mapping.
    Devices(Vec<u64>),
    /// The file behind a loop device; `None` if sysfs gives no path.
    File(Option<PathBuf>),
}

/// Uses of storage, one sentence each.
pub type Users = Vec<String>;

impl Kernel {
    fn below(&self, device: u64) -> Below {
        let Some(dir) = self.directory(device) else { return Below::Nothing };
        if dir.join("partition").exists() {
            return Below::Devices(dir.parent().and_then(number_in).into_iter().collect());
        }
        if dir.join("loop").is_dir() {
            return Below::File(path_in(&dir.join("loop/backing_file")));
        }
        let slaves = dir.join("slaves");
        let devices: Vec<u64> =
            names(&slaves).into_iter().filter_map(|slave| number_in(&slaves.join(slave))).collect();
        if devices.is_empty() { Below::Nothing } else { Below::Devices(devices) }
    }

    /// The bytes that `node` consists of, and the storage that they lie in: a partition lies in its disk, a loop device
    /// in its file, anything else in itself.
    pub fn place(&self, node: Node) -> Place {
        self.place_of(node, LAYERS_MAX)
    }

    fn place_of(&self, node: Node, layers: u32) -> Place {
        self.lower(node).filter(|_| layers > 0).map_or(
            Place { node, bytes: 0..u64::MAX },
            |(below, bytes)| {
                let Place { node, bytes: whole } = self.place_of(below, layers - 1);
                let at = |offset| whole.start.saturating_add(offset).min(whole.end);
                Place { node, bytes: at(bytes.start)..at(bytes.end) }
            },
        )
    }

    /// The storage right below a partition or a loop device, and the bytes that it has there.
    fn lower(&self, node: Node) -> Option<(Node, Range<u64>)> {
        let Node::Device(device) = node else { return None };
        let dir = self.directory(device)?;
        let sectors = |name: &str| value(&dir.join(name)).unwrap_or(0u64).saturating_mul(SECTOR_BYTES);
        let (below, start) = match self.below(device) {
            Below::Devices(devices) if dir.join("partition").exists() => {
                (Node::Device(*devices.first()?), sectors("start"))
            }
            Below::File(file) => (Node::of(&file?)?, value(&dir.join("loop/offset")).unwrap_or(0)),
            _ => return None,
        };
        Some((below, start..start.saturating_add(sectors("size"))))
    }

    /// The place of `node`, and those of the components of the mapping that it is or lies in.
    pub(crate) fn places(&self, node: Node) -> Vec<Place> {
        let mut found = Vec::new();
        self.descend(node, LAYERS_MAX, &mut found);
        found
    }

    fn descend(&self, node: Node, layers: u32, found: &mut Vec<Place>) {
        let place = self.place(node);
        if layers == 0 || found.contains(&place) {
            return;
        }
        let base = place.node;
        found.push(place);
        if let Node::Device(device) = base
            && let Below::Devices(devices) = self.below(device)
        {
            devices.into_iter().for_each(|device| self.descend(Node::Device(device), layers - 1, found));
        }
    }

    /// Whether a write to one may change the other.
    pub fn is_same(&self, one: Node, other: Node) -> bool {
        let lies_on = |one, other| {
            let place = self.place(other);
            self.places(one).iter().any(|part| part.overlaps(&place))
        };
        lies_on(one, other) || lies_on(other, one)
    }

    /// Device numbers of the disks that serve requests to `node`, which was opened by `path`. Every layer is followed
    /// downwards, a file to the disk of its file system. Empty where no disk exists (tmpfs) or none is known (a network
    /// file system, an overlay).
    pub fn disks(&self, node: Node, path: &Path) -> BTreeSet<u64> {
        let mut disks = BTreeSet::new();
        self.sink_node(node, path, LAYERS_MAX, &mut disks);
        disks
    }

    fn sink_node(&self, node: Node, path: &Path, layers: u32, disks: &mut BTreeSet<u64>) {
        match node {
            Node::Device(device) => self.sink(device, layers, disks),
            Node::File(device, _) if libc::major(device) != 0 => self.sink(device, layers, disks),
            // A file system with device numbers of its own (btrfs): mountinfo names its device.
            Node::File(..) => {
                let mount = fs::canonicalize(path).ok().and_then(|path| self.mount_of(&path));
                if let Some(Node::Device(device)) = mount.and_then(|mount| Node::of(&mount.source)) {
                    self.sink(device, layers, disks);
                }
            }
        }
    }

    pub(super) fn sink(&self, device: u64, layers: u32, disks: &mut BTreeSet<u64>) {
        let Some(layers) = layers.checked_sub(1) else { return };
        match self.below(device) {
            Below::Nothing => {
                disks.insert(device);
            }
            Below::Devices(devices) => {
                devices.into_iter().for_each(|device| self.sink(device, layers, disks));
            }
            Below::File(file) => {
                if let Some((node, file)) = file.and_then(|file| Some((Node::of(&file)?, file))) {
                    self.sink_node(node, &file, layers, disks);
                }
            }
        }
    }

    /// The uses of the storage at `path`: holders, mounts, loop devices, swap, exclusive openers. Those of loop devices
    /// over the same bytes of a file are included.
    pub fn users(&self, path: &Path) -> Users {
        let Some(node) = Node::of(path) else { return Users::new() };
        let mut users = Users::new();
        let (family, base) = (self.family(node), self.place(node).node);
        for device in &family {
            let dir = self.directory(*device).unwrap_or_default();
            if matches!(node, Node::File(..)) && !dir.join("partition").exists() {
                users.push(format!("loop device {} is set up over it", self.node_path(*device)));
            }
            let holders = names(&dir.join("holders")).into_iter();
            users.extend(holders.map(|holder| format!("it is held by {holder}")));
        }
        for mount in self.mounts().iter().filter(|mount| family.contains(&mount.device)) {
            users.push(format!("it is mounted on {}", mount.point.display()));
        }
        if let Some(file) = self.written_file(node) {
            users.push(format!("another program writes to its file {}", file.display()));
        }
        for swap in self.swaps() {
            let is_used = match Node::of(&swap) {
                Some(Node::Device(device)) => family.contains(&device),
                file => file == Some(base),
            };
            if is_used {
                users.push("it is used as swap".to_owned());
            }
        }
        // For a generic device, the disk's own node is tested too: other programs hold the disk. A disk of the family
        // with partitions is left to them: an exclusive open of it fails for any of them that is held.
        let is_held_by_number = |other: &u64| {
            (node == Node::Device(*other) || self.partitions(*other).is_empty())
                && is_held(Path::new(&self.node_path(*other)), *other)
        };
        if let Node::Device(device) = node
            && users.is_empty()
            && (is_held(path, device) || family.iter().any(is_held_by_number))
        {
            users.push("another program holds it exclusively".to_owned());
        }
        users
    }

    /// The file behind a loop device or a partition of one, if another program has the locks of a writer on it. Locks of
    /// a file do not cover the devices over it.
    pub(crate) fn written_file(&self, node: Node) -> Option<PathBuf> {
        let Node::Device(mut device) = node else { return None };
        for _ in 0..LAYERS_MAX {
            if let Some(path) = self.backing_file(device)
                && fs::metadata(&path).is_ok_and(|file| file.is_file())
            {
                let mut options = fs::OpenOptions::new();
                let options = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
                let file = options.open(&path).ok()?;
                return lock::is_written(file.as_fd()).unwrap_or(false).then_some(path);
            }
            let Some(Node::Device(below)) = self.beneath(device) else { break };
            device = below;
        }
        None
    }

    /// Where the storage at `path` is mounted read-write, if anywhere: its data may then change during a read.
    pub fn written_at(&self, path: &Path) -> Option<PathBuf> {
        let family = self.family(Node::of(path)?);
        let mount = self.mounts().into_iter();
        mount.filter(|mount| mount.writable && family.contains(&mount.device)).map(|mount| mount.point).next()
    }

    /// The devices that share bytes with `node`: itself, loop devices, and the partitions of both.
    pub(crate) fn family(&self, node: Node) -> BTreeSet<u64> {
        self.sharing(node, [node])
    }

    /// Those of `devices`, of the loop devices and of the partitions of both that share bytes with `node`.
    pub(crate) fn sharing(&self, node: Node, devices: impl IntoIterator<Item = Node>) -> BTreeSet<u64> {
        let (place, block) = (self.place(node), self.sys.join("block"));
        let loops = names(&block).into_iter().filter(|name| name.starts_with("loop"));
        let own = devices.into_iter().filter_map(|node| match node {
            Node::Device(device) => Some(device),
            Node::File(..) => None,
        });
        loops
            .filter_map(|name| number_in(&block.join(name)))
            .chain(own)
            .flat_map(|device| std::iter::once(device).chain(self.partitions(device)))
            .filter(|device| self.place(Node::Device(*device)).overlaps(&place))
            .collect()
    }

    /// The storage right below a partition or a loop device; `None` below anything else.
    pub(crate) fn beneath(&self, device: u64) -> Option<Node> {
        self.lower(Node::Device(device)).map(|(below, _)| below)
    }

    /// The file behind a loop device.
    pub(crate) fn backing_file(&self, device: u64) -> Option<PathBuf> {
        match self.below(device) {
            Below::File(file) => file,
            _ => None,
        }
    }
}

/// Whether the block device with this number is held exclusively: by a mount, device mapper, md or another program.
/// `path` should lead to the device.
fn is_held(path: &Path, device: u64) -> bool {
    let leads_there =
        fs::metadata(path).is_ok_and(|node| node.file_type().is_block_device() && node.rdev() == device);
    let mut options = fs::OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC);
    leads_there && options.open(path).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}
