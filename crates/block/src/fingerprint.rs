//! What tells, later, whether storage is still the same and still holds the same.

use std::fs::{Metadata, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Identity;

/// What storage was like at one moment. Words to be compared and shown, not to be understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Which storage it is, its size included. Whoever writes to it does not change this.
    pub storage: String,
    /// Changes with every write to it, by anyone; empty where nothing tells.
    pub contents: String,
}

impl Fingerprint {
    /// All that can be said of storage that shows nothing but who it is and how large.
    pub fn of_identity(identity: &Identity, size_bytes: u64) -> Self {
        let storage = match identity {
            Identity::File { device, inode } => format!("file {device}:{inode}, {size_bytes} bytes"),
            Identity::Device { device } => format!("device {device}, {size_bytes} bytes"),
            Identity::Remote(name) => format!("{name}, {size_bytes} bytes"),
            Identity::Unique => format!("{size_bytes} bytes"),
        };
        Self { storage, contents: String::new() }
    }

    /// Of a regular file. Both times count: the first can be set by anyone, the second only by a change.
    pub(crate) fn of_file(metadata: &Metadata, size_bytes: u64) -> Self {
        let identity = Identity::File { device: metadata.dev(), inode: metadata.ino() };
        let contents = format!(
            "{} bytes, modified {}.{:09}, changed {}.{:09}",
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec()
        );
        Self { contents, ..Self::of_identity(&identity, size_bytes) }
    }

    /// Of a block device. Known by its name in the world where it has one: numbers are given anew at every start of the
    /// machine. What is written to it shows when it leaves the page cache.
    pub fn of_device(device: u64, size_bytes: u64) -> Self {
        let (major, minor) = (libc::major(device), libc::minor(device));
        let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        Self::of_node(&node, &format!("{major}:{minor}"), size_bytes)
    }

    fn of_node(node: &Path, number: &str, size_bytes: u64) -> Self {
        let partition = read(node, "partition");
        let disk = if partition.is_some() { node.join("..") } else { node.to_owned() };
        let sequence = read(&disk, "diskseq").unwrap_or_default();
        let name =
            ["wwid", "device/wwid", "serial", "device/serial"].iter().find_map(|name| read(&disk, name));
        let mut storage = name
            .map_or_else(|| format!("device {number}, sequence {sequence}"), |name| format!("disk {name}"));
        if let Some(partition) = partition {
            let start = read(node, "start").unwrap_or_default();
            storage += &format!(", partition {partition} at sector {start}");
        }
        storage += &format!(", {size_bytes} bytes");
        let boot = read(Path::new("/proc/sys/kernel/random"), "boot_id").unwrap_or_default();
        let stat = read(node, "stat").unwrap_or_default();
        // Documentation/block/stat.rst: sectors written are the seventh number, sectors discarded the fourteenth.
        let number = |index: usize| stat.split_ascii_whitespace().nth(index).unwrap_or("0");
        let contents = format!(
            "boot {boot}, sequence {sequence}, {} sectors written, {} discarded",
            number(6),
            number(13)
        );
        Self { storage, contents }
    }
}

/// A file of sysfs that says something.
fn read(directory: &Path, name: &str) -> Option<String> {
    let text = read_to_string(directory.join(name)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_told_from_another_and_from_what_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let of = |path: &Path| Fingerprint::of_file(&fs::metadata(path).unwrap(), 5);
        fs::write(&path, "first").unwrap();
        let first = of(&path);
        assert_eq!(of(&path), first);
        let later = fs::metadata(&path).unwrap().modified().unwrap() + std::time::Duration::from_nanos(1);
        fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let second = of(&path);
        assert_eq!(second.storage, first.storage);
        assert_ne!(second.contents, first.contents);
        fs::write(directory.path().join("b"), "first").unwrap();
        assert_ne!(of(&directory.path().join("b")).storage, first.storage);
    }

    #[test]
    fn a_disk_is_known_by_its_name_and_a_write_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("sdx");
        let write = |path: &str, text: &str| {
            let path = disk.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("diskseq", "9\n");
        write("stat", "  12 0 96 1  3 0 24 2  0 3 3  0 0 0 0 0 0\n");
        let of = |node: &Path| Fingerprint::of_node(node, "8:16", 1 << 20);
        let nameless = of(&disk);
        assert_eq!(nameless.storage, "device 8:16, sequence 9, 1048576 bytes");
        assert!(nameless.contents.ends_with("sequence 9, 24 sectors written, 0 discarded"), "{nameless:?}");
        write("device/wwid", "naa.5000c500a1b2c3d4\n");
        assert_eq!(of(&disk).storage, "disk naa.5000c500a1b2c3d4, 1048576 bytes");
        write("sdx1/partition", "1\n");
        write("sdx1/start", "2048\n");
        write("sdx1/stat", "0 0 0 0 0 0 8 0 0 0 0 0 0 7 0 0 0\n");
        let part = of(&disk.join("sdx1"));
        assert_eq!(part.storage, "disk naa.5000c500a1b2c3d4, partition 1 at sector 2048, 1048576 bytes");
        assert!(part.contents.ends_with("8 sectors written, 7 discarded"), "{part:?}");
    }
}
