//! What is stored on what, and who uses it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::kernel::{Kernel, Node, names, number_in, path_in};

/// Layers of device mapper, md, loop and partitions that are followed downwards.
const LAYERS_MAX: u32 = 16;

/// What a device lies on.
enum Below {
    /// It is a disk.
    Nothing,
    /// Its whole disk, or the parts of a mapping.
    Devices(Vec<u64>),
    /// The file behind a loop device, if its name still leads to it.
    File(Option<PathBuf>),
}

/// Who uses storage: a sentence each, none if nobody does.
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

    /// Everything that `node` is stored on, itself included: whole disk of a partition, file behind a loop
    /// device, parts of a mapping.
    pub fn beneath(&self, node: Node) -> BTreeSet<Node> {
        let mut found = BTreeSet::new();
        self.descend(node, LAYERS_MAX, &mut found);
        found
    }

    fn descend(&self, node: Node, layers: u32, found: &mut BTreeSet<Node>) {
        if !found.insert(node) || layers == 0 {
            return;
        }
        let Node::Device(device) = node else { return };
        let below = match self.below(device) {
            Below::Nothing => Vec::new(),
            Below::Devices(devices) => devices.into_iter().map(Node::Device).collect(),
            Below::File(file) => file.and_then(|file| Node::of(&file)).into_iter().collect(),
        };
        for node in below {
            self.descend(node, layers - 1, found);
        }
    }

    /// Whether writing to one changes the other.
    pub fn is_same(&self, one: Node, other: Node) -> bool {
        self.beneath(one).contains(&other) || self.beneath(other).contains(&one)
    }

    /// The disks that requests to `node`, opened by `path`, end at, by number: everything is followed down, a file to the disk
    /// of its file system. Empty where there is none (tmpfs) or none is known (a network file system, an overlay).
    pub fn disks(&self, node: Node, path: &Path) -> BTreeSet<u64> {
        let mut disks = BTreeSet::new();
        self.sink_node(node, path, LAYERS_MAX, &mut disks);
        disks
    }

    fn sink_node(&self, node: Node, path: &Path, layers: u32, disks: &mut BTreeSet<u64>) {
        match node {
            Node::Device(device) => self.sink(device, layers, disks),
            Node::File(device, _) if libc::major(device) != 0 => self.sink(device, layers, disks),
            // A file system with numbers of its own (btrfs) tells its device by name.
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

    /// Who uses the storage at `path`.
    pub fn users(&self, path: &Path) -> Users {
        let Some(node) = Node::of(path) else { return Users::new() };
        let mut users = Users::new();
        let mut family = vec![node];
        match node {
            Node::Device(device) => {
                let partitions = self.partitions(device);
                family.extend(partitions.iter().map(|partition| Node::Device(*partition)));
                for device in std::iter::once(device).chain(partitions) {
                    let holders = self.directory(device).map(|dir| names(&dir.join("holders")));
                    let holders = holders.unwrap_or_default().into_iter();
                    users.extend(holders.map(|holder| format!("it is held by {holder}")));
                }
            }
            Node::File(..) => {
                for device in self.loops_over(node) {
                    users.push(format!("loop device {} is set up over it", self.node_path(device)));
                    family.push(Node::Device(device));
                    family.extend(self.partitions(device).into_iter().map(Node::Device));
                }
            }
        }
        for mount in self.mounts().iter().filter(|mount| family.contains(&Node::Device(mount.device))) {
            users.push(format!("it is mounted on {}", mount.point.display()));
        }
        for swap in self.swaps() {
            if Node::of(&swap).is_some_and(|swap| family.contains(&swap)) {
                users.push("it is used as swap".to_owned());
            }
        }
        // Of a character device the disk is asked: it is the disk that others hold.
        if let Node::Device(device) = node
            && users.is_empty()
            && (is_held(path, device) || is_held(Path::new(&self.node_path(device)), device))
        {
            users.push("another program holds it exclusively".to_owned());
        }
        users
    }

    /// Where the storage at `path` is mounted read-write, if it is: what is read from it may change meanwhile.
    pub fn written_at(&self, path: &Path) -> Option<PathBuf> {
        let node = Node::of(path)?;
        let devices = match node {
            Node::Device(device) => vec![device],
            Node::File(..) => self.loops_over(node),
        };
        let partitions: Vec<u64> = devices.iter().flat_map(|device| self.partitions(*device)).collect();
        let mount = self.mounts().into_iter().find(|mount| {
            mount.writable && (devices.contains(&mount.device) || partitions.contains(&mount.device))
        })?;
        Some(mount.point)
    }

    fn loops_over(&self, file: Node) -> Vec<u64> {
        let block = self.sys.join("block");
        names(&block)
            .into_iter()
            .filter(|name| name.starts_with("loop"))
            .map(|name| block.join(name))
            .filter(|dir| {
                path_in(&dir.join("loop/backing_file")).and_then(|path| Node::of(&path)) == Some(file)
            })
            .filter_map(|dir| number_in(&dir))
            .collect()
    }
}

/// Whether somebody holds the block device of that number, which `path` should lead to, exclusively: a mount, device
/// mapper, md, another opener.
fn is_held(path: &Path, device: u64) -> bool {
    let leads_there =
        fs::metadata(path).is_ok_and(|node| node.file_type().is_block_device() && node.rdev() == device);
    let mut options = fs::OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC);
    leads_there && options.open(path).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}
