//! Names that identify a device across restarts, and fingerprints that change with every write.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::Fingerprint;
use crate::entry::disk_of;
use crate::kernel::{Kernel, number_text, path_in, text};

impl Kernel {
    /// A name that stays the same when the machine restarts: that of the disk, of the volume or array, or of the file
    /// behind a loop device. `None` if the device has no such name.
    pub fn lasting_name(&self, device: u64) -> Option<String> {
        let dir = self.directory(device)?;
        let disk = disk_of(&dir);
        let name = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"]
            .iter()
            .find_map(|name| text(&disk.join(name)).filter(|text| !text.is_empty()));
        let name = name.map(|name| format!("disk {name}")).or_else(|| {
            let file = fs::metadata(path_in(&disk.join("loop/backing_file"))?).ok()?;
            let offset = text(&disk.join("loop/offset")).unwrap_or_default();
            Some(format!("{} from byte {offset}", lasting_name(&file)))
        })?;
        let partition = text(&dir.join("partition"));
        Some(partition.map_or_else(|| name.clone(), |partition| format!("{name}, partition {partition}")))
    }

    /// Fingerprint of a block device. `storage` has the disk's worldwide name where it exists, because device numbers
    /// change at each start of the machine; a loop device is identified by its file. Written data changes `contents`
    /// when it leaves the page cache: call [`Kernel::write_back`] first.
    pub fn fingerprint(&self, device: u64, size_bytes: u64) -> Fingerprint {
        let dir = self.directory(device).unwrap_or_default();
        let disk = disk_of(&dir);
        let read = |dir: &Path, name: &str| text(&dir.join(name)).filter(|text| !text.is_empty());
        let sequence = read(disk, "diskseq").unwrap_or_default();
        let name =
            ["wwid", "device/wwid", "serial", "device/serial"].iter().find_map(|name| read(disk, name));
        let mut storage = match (name, file_behind(disk)) {
            (Some(name), _) => format!("disk {name}"),
            (None, Some(file)) => format!("loop over {file}"),
            (None, None) => format!("device {}, sequence {sequence}", number_text(device)),
        };
        if let Some(partition) = read(&dir, "partition") {
            let start = read(&dir, "start").unwrap_or_default();
            storage += &format!(", partition {partition} at sector {start}");
        }
        storage += &format!(", {size_bytes} bytes");
        let contents = self.contents(device, &sequence);
        Fingerprint { storage, contents }
    }
}

/// A name of a file that stays the same as long as the file exists: writes, moves within the file system and growth do
/// not change it. The file system's device number is left out, because it may change at the next start of the machine.
pub fn lasting_name(file: &fs::Metadata) -> String {
    format!("file {}{}", file.ino(), born(file))
}

/// The birth time of a file, for its name; empty where the file system keeps none. File systems give the inode number
/// of a deleted file to the next new one.
pub(crate) fn born(file: &fs::Metadata) -> String {
    let born = file.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    born.map_or_else(String::new, |born| format!(", born {}.{:09}", born.as_secs(), born.subsec_nanos()))
}

/// Device, inode and birth time of the file behind a loop device, and the offset in it. `None` if the file cannot be
/// found.
fn file_behind(disk: &Path) -> Option<String> {
    let path = path_in(&disk.join("loop/backing_file"))?;
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let offset = text(&disk.join("loop/offset")).unwrap_or_default();
    Some(format!("file {}:{}{} from byte {offset}", file.dev(), file.ino(), born(&file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated machine with one disk, 8:16, and its partition, 8:17.
    fn machine() -> (tempfile::TempDir, Kernel) {
        let root = tempfile::tempdir().unwrap();
        let kernel = Kernel { sys: root.path().join("sys"), proc: root.path().join("proc") };
        let (numbers, disk) = (kernel.sys.join("dev/block"), kernel.sys.join("block/sdx"));
        fs::create_dir_all(&numbers).unwrap();
        fs::create_dir_all(disk.join("sdx1")).unwrap();
        std::os::unix::fs::symlink(&disk, numbers.join("8:16")).unwrap();
        std::os::unix::fs::symlink(disk.join("sdx1"), numbers.join("8:17")).unwrap();
        write(&kernel.proc, "sys/kernel/random/boot_id", "first\n");
        write(&disk, "diskseq", "9\n");
        write(&disk, "stat", "  12 0 96 1  3 0 24 2  0 3 3  0 0 0 0 0 0\n");
        (root, kernel)
    }

    fn write(dir: &Path, path: &str, text: &str) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_disk_is_known_by_its_name_and_a_write_is_seen() {
        let (_root, kernel) = machine();
        let disk = kernel.sys.join("block/sdx");
        let of = |minor| kernel.fingerprint(libc::makedev(8, minor), 1 << 20);
        let nameless = of(16);
        assert_eq!(nameless.storage, "device 8:16, sequence 9, 1048576 bytes");
        assert_eq!(nameless.contents, "boot first, sequence 9, 24 sectors written, 0 discarded");
        write(&disk, "device/wwid", "naa.5000c500a1b2c3d4\n");
        assert_eq!(of(16).storage, "disk naa.5000c500a1b2c3d4, 1048576 bytes");
        write(&disk, "sdx1/partition", "1\n");
        write(&disk, "sdx1/start", "2048\n");
        let part = of(17);
        assert_eq!(part.storage, "disk naa.5000c500a1b2c3d4, partition 1 at sector 2048, 1048576 bytes");
    }

    #[test]
    fn a_name_lasts_over_starts_of_the_machine() {
        let (root, kernel) = machine();
        let (disk, file) = (kernel.sys.join("block/sdx"), root.path().join("disk.img"));
        let of = |minor| kernel.lasting_name(libc::makedev(8, minor));
        assert_eq!(of(16), None);
        fs::write(&file, "x").unwrap();
        write(&disk, "loop/backing_file", &format!("{}\n", file.display()));
        write(&disk, "loop/offset", "512\n");
        let known = lasting_name(&fs::metadata(&file).unwrap());
        assert!(known.starts_with("file "), "{known}");
        assert_eq!(of(16), Some(format!("{known} from byte 512")));
        write(&disk, "dm/uuid", "LVM-a\n");
        write(&disk, "sdx1/partition", "1\n");
        assert_eq!(of(16).as_deref(), Some("disk LVM-a"));
        assert_eq!(of(17).as_deref(), Some("disk LVM-a, partition 1"));
        fs::write(&file, "longer than before").unwrap();
        assert_eq!(lasting_name(&fs::metadata(&file).unwrap()), known);
        fs::write(root.path().join("other.img"), "x").unwrap();
        fs::rename(root.path().join("other.img"), &file).unwrap();
        assert_ne!(lasting_name(&fs::metadata(&file).unwrap()), known);
    }

    #[test]
    fn a_loop_device_is_what_its_file_is() {
        let (root, kernel) = machine();
        let (disk, file) = (kernel.sys.join("block/sdx"), root.path().join("disk.img"));
        fs::write(&file, "x").unwrap();
        write(&disk, "loop/backing_file", &format!("{}\n", file.display()));
        write(&disk, "loop/offset", "512\n");
        let of = || kernel.fingerprint(libc::makedev(8, 16), 1 << 20);
        let first = of();
        let inode = fs::metadata(&file).unwrap().ino();
        assert!(first.storage.starts_with("loop over file "), "{first:?}");
        let named = format!(":{inode}{} from byte 512, 1048576 bytes", born(&fs::metadata(&file).unwrap()));
        assert!(named.contains(", born "), "{named}");
        assert!(first.storage.ends_with(&named), "{first:?}");
        // A loop device that is set up again is the same disk; whether it was written meanwhile is not known.
        write(&disk, "diskseq", "10\n");
        let again = of();
        assert_eq!(again.storage, first.storage);
        assert!(again.counts_anew_since(&first) && !first.counts_anew_since(&first));
        write(&disk, "stat", "  12 0 96 1  3 0 25 2  0 3 3  0 0 0 0 0 0\n");
        assert!(!of().counts_anew_since(&again), "it was written");
        write(&kernel.proc, "sys/kernel/random/boot_id", "second\n");
        assert!(of().counts_anew_since(&again));
        fs::remove_file(&file).unwrap();
        assert_eq!(of().storage, "device 8:16, sequence 10, 1048576 bytes");
    }
}
