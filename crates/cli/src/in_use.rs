//! Who else uses a file or block device of this machine, and what lies beneath it: read from /proc and /sys.
//!
//! Everything here is a look at a moment. It protects against mistakes, not against races; the exclusive
//! open and the locks of `block` do that.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sys;

/// Layers of device mapper, md, loop and partitions that are followed downwards.
const DEPTH_MAX: u32 = 16;

/// A thing that holds bytes on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    /// Block device, by its number.
    Device(u64),
    /// File, by its file system's device and its inode.
    File(u64, u64),
}

impl Node {
    /// What `path` leads to, links followed.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        if metadata.file_type().is_block_device() {
            Some(Self::Device(metadata.rdev()))
        } else {
            Some(Self::File(metadata.dev(), metadata.ino()))
        }
    }
}

fn number(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    device: u64,
    point: String,
    writable: bool,
}

/// Where the kernel tells about itself.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    sys: PathBuf,
    proc: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into() }
    }
}

impl Kernel {
    fn device_dir(&self, device: u64) -> PathBuf {
        self.sys.join("dev/block").join(number(device))
    }

    /// Everything that `node` is stored on, itself included: whole disk of a partition, file behind a loop
    /// device, parts of a mapping.
    pub(crate) fn beneath(&self, node: Node) -> BTreeSet<Node> {
        let mut found = BTreeSet::new();
        self.descend(node, DEPTH_MAX, &mut found);
        found
    }

    fn descend(&self, node: Node, depth: u32, found: &mut BTreeSet<Node>) {
        if !found.insert(node) || depth == 0 {
            return;
        }
        let Node::Device(device) = node else { return };
        let Ok(dir) = fs::canonicalize(self.device_dir(device)) else { return };
        let read_number = |path: PathBuf| fs::read_to_string(path).ok().and_then(|text| parse_number(&text));
        if dir.join("partition").exists()
            && let Some(disk) = dir.parent().and_then(|disk| read_number(disk.join("dev")))
        {
            self.descend(Node::Device(disk), depth - 1, found);
        }
        if let Some(file) = self.backing_file(&dir).and_then(|file| Node::of(&file)) {
            self.descend(file, depth - 1, found);
        }
        for slave in names(&dir.join("slaves")) {
            if let Some(device) = read_number(dir.join("slaves").join(slave).join("dev")) {
                self.descend(Node::Device(device), depth - 1, found);
            }
        }
    }

    fn backing_file(&self, device_dir: &Path) -> Option<PathBuf> {
        let text = fs::read_to_string(device_dir.join("loop/backing_file")).ok()?;
        Some(PathBuf::from(text.strip_suffix('\n').unwrap_or(&text)))
    }

    /// Whether writing to one changes the other.
    pub(crate) fn is_same(&self, one: Node, other: Node) -> bool {
        self.beneath(one).contains(&other) || self.beneath(other).contains(&one)
    }

    /// Who uses the storage at `path`: a sentence each, none if nobody does.
    pub(crate) fn users(&self, path: &Path) -> Vec<String> {
        let Some(node) = Node::of(path) else { return Vec::new() };
        let mut users = Vec::new();
        let mut family = vec![node];
        match node {
            Node::Device(device) => {
                let partitions = self.partitions(device);
                family.extend(partitions.iter().map(|partition| Node::Device(*partition)));
                for device in std::iter::once(device).chain(partitions) {
                    let holders = names(&self.device_dir(device).join("holders"));
                    users.extend(holders.into_iter().map(|holder| format!("it is held by {holder}")));
                }
            }
            Node::File(..) => {
                for device in self.loops_over(node) {
                    users.push(format!("loop device {} is set up over it", self.device_name(device)));
                    family.push(Node::Device(device));
                    family.extend(self.partitions(device).into_iter().map(Node::Device));
                }
            }
        }
        for mount in self.mounts().iter().filter(|mount| family.contains(&Node::Device(mount.device))) {
            users.push(format!("it is mounted on {}", mount.point));
        }
        for swap in self.swaps() {
            if Node::of(&swap).is_some_and(|swap| family.contains(&swap)) {
                users.push("it is used as swap".to_owned());
            }
        }
        if users.is_empty() && matches!(node, Node::Device(_)) && sys::is_device_held(path).unwrap_or(false) {
            users.push("another program holds it exclusively".to_owned());
        }
        users
    }

    /// Where the storage at `path` is mounted read-write, if it is: what is read from it may change meanwhile.
    pub(crate) fn written_at(&self, path: &Path) -> Option<String> {
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

    fn partitions(&self, device: u64) -> Vec<u64> {
        let dir = self.device_dir(device);
        names(&dir)
            .into_iter()
            .filter(|name| dir.join(name).join("partition").exists())
            .filter_map(|name| parse_number(&fs::read_to_string(dir.join(name).join("dev")).ok()?))
            .collect()
    }

    fn loops_over(&self, file: Node) -> Vec<u64> {
        let block = self.sys.join("block");
        names(&block)
            .into_iter()
            .filter(|name| name.starts_with("loop"))
            .filter(|name| {
                self.backing_file(&block.join(name)).and_then(|path| Node::of(&path)) == Some(file)
            })
            .filter_map(|name| parse_number(&fs::read_to_string(block.join(name).join("dev")).ok()?))
            .collect()
    }

    fn device_name(&self, device: u64) -> String {
        let name = fs::canonicalize(self.device_dir(device)).ok();
        let name = name.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        name.map_or_else(|| number(device), |name| format!("/dev/{name}"))
    }

    /// proc_pid_mountinfo(5): id, parent, major:minor, root, mount point, options, ... - type, source,
    /// options of the file system.
    fn mounts(&self) -> Vec<Mount> {
        let text = fs::read(self.proc.join("self/mountinfo")).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(parse_mount).collect()
    }

    fn swaps(&self) -> Vec<PathBuf> {
        let text = fs::read(self.proc.join("swaps")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines()
            .skip(1)
            .filter_map(|line| line.split_ascii_whitespace().next())
            .map(|path| unescape(path).into())
            .collect()
    }
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(2);
    let device = parse_number(fields.next()?)?;
    let point = unescape(fields.nth(1)?);
    let writable = |options: &str| options.split(',').any(|option| option == "rw");
    // A read-only bind mount of a writable file system does not keep others from writing.
    let writable = writable(system.rsplit(' ').next()?);
    Some(Mount { device, point, writable })
}

/// `\040` and its like, as mountinfo and swaps write blanks.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Names in a directory; none if it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small machine: disk 8:0 with partitions 8:1 (mounted rw on `/srv/a b`) and 8:2 (held by dm-0); loop0
    /// over a file, mounted read-only.
    fn machine() -> (tempfile::TempDir, Kernel, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("image");
        fs::write(&image, b"x").unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/block/sda/dev", "8:0\n");
        put("sys/block/sda/sda1/dev", "8:1\n");
        put("sys/block/sda/sda1/partition", "1\n");
        put("sys/block/sda/sda2/dev", "8:2\n");
        put("sys/block/sda/sda2/partition", "2\n");
        put("sys/block/sda/sda2/holders/dm-0/dev", "253:0\n");
        put("sys/block/dm-0/dev", "253:0\n");
        put("sys/block/dm-0/slaves/sda2/dev", "8:2\n");
        put("sys/block/loop0/dev", "7:0\n");
        put("sys/block/loop0/loop/backing_file", &format!("{}\n", image.display()));
        fs::create_dir_all(root.path().join("sys/dev/block")).unwrap();
        for (number, target) in
            [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:2", "sda/sda2"), ("253:0", "dm-0"), ("7:0", "loop0")]
        {
            let link = root.path().join("sys/dev/block").join(number);
            std::os::unix::fs::symlink(root.path().join("sys/block").join(target), link).unwrap();
        }
        put(
            "proc/self/mountinfo",
            "22 1 8:1 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/sda1 rw\n\
             23 1 7:0 / /mnt ro shared:2 - iso9660 /dev/loop0 ro\n\
             damaged line\n",
        );
        put("proc/swaps", &format!("Filename Type Size Used Priority\n{} file 1 0 -2\n", image.display()));
        let kernel = Kernel { sys: root.path().join("sys"), proc: root.path().join("proc") };
        (root, kernel, image)
    }

    fn device(major: u32, minor: u32) -> Node {
        Node::Device(libc::makedev(major, minor))
    }

    #[test]
    fn what_lies_beneath_is_found() {
        let (_root, kernel, image) = machine();
        let all = kernel.beneath(device(253, 0));
        assert_eq!(all, BTreeSet::from([device(253, 0), device(8, 2), device(8, 0)]));
        assert!(kernel.is_same(device(253, 0), device(8, 0)), "a mapping and the disk under it");
        assert!(kernel.is_same(device(8, 0), device(8, 1)), "a disk and its partition");
        assert!(!kernel.is_same(device(8, 1), device(8, 2)), "two partitions");
        assert!(!kernel.is_same(device(8, 1), device(253, 0)), "a partition and a mapping of its neighbour");
        assert!(kernel.is_same(device(7, 0), Node::of(&image).unwrap()), "a loop device and its file");
    }

    #[test]
    fn links_lead_to_the_same_file() {
        let (root, kernel, image) = machine();
        let (hard, soft) = (root.path().join("hard"), root.path().join("soft"));
        fs::hard_link(&image, &hard).unwrap();
        std::os::unix::fs::symlink(&image, &soft).unwrap();
        let node = Node::of(&image).unwrap();
        assert!(kernel.is_same(node, Node::of(&hard).unwrap()));
        assert!(kernel.is_same(node, Node::of(&soft).unwrap()));
        assert!(!kernel.is_same(node, Node::of(root.path()).unwrap()));
    }

    #[test]
    fn users_of_a_file_are_named() {
        let (_root, kernel, image) = machine();
        assert_eq!(
            kernel.users(&image),
            ["loop device /dev/loop0 is set up over it", "it is mounted on /mnt", "it is used as swap"]
        );
        assert_eq!(kernel.written_at(&image), None, "mounted read-only");
        assert!(kernel.users(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn mounts_are_parsed() {
        let (_root, kernel, _image) = machine();
        let mounts = kernel.mounts();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].point, "/srv/a b");
        assert!(mounts[0].writable && !mounts[1].writable);
        assert_eq!(kernel.partitions(libc::makedev(8, 0)), [libc::makedev(8, 1), libc::makedev(8, 2)]);
    }

    #[test]
    fn octal_escapes_are_read() {
        assert_eq!(unescape("a\\040b\\134"), "a b\\");
        assert_eq!(unescape("\\04"), "\\04");
        assert_eq!(unescape("\\999"), "\\999");
    }
}
