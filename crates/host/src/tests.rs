//! Tests on a simulated machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::*;
use crate::mounts::unescape;

/// A simulated machine: disk 8:0 (`sda`) with partitions 8:1 (mounted rw on `/srv/a b`) and 8:2 (held by dm-0); loop0
/// over a file, mounted read-only; md0 over 8:2 and 8:16.
struct Machine {
    root: tempfile::TempDir,
    kernel: Kernel,
    image: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("image");
        fs::write(&image, b"x").unwrap();
        let kernel = Kernel { sys: root.path().join("sys"), proc: root.path().join("proc") };
        let machine = Self { root, kernel, image };
        for dir in ["sys/dev/block", "sys/class/block"] {
            fs::create_dir_all(machine.root.path().join(dir)).unwrap();
        }
        machine.add("sda", "8:0", 4096, 5);
        machine.put("sys/block/sda/queue/logical_block_size", "512\n");
        machine.put("sys/block/sda/queue/nr_requests", "256\n");
        machine.put("sys/block/sda/device/queue_depth", "31\n");
        machine.put("sys/block/sda/stat", "  11 1 88 5 22 2 176 9 0 7 8 0 0 0 0 33 44\n");
        machine.add("sda/sda1", "8:1", 1024, 0);
        machine.put("sys/block/sda/sda1/partition", "1\n");
        machine.put("sys/block/sda/sda1/start", "8\n");
        machine.add("sda/sda2", "8:2", 2048, 0);
        machine.put("sys/block/sda/sda2/partition", "2\n");
        machine.put("sys/block/sda/sda2/start", "2048\n");
        machine.put("sys/block/sda/sda2/holders/dm-0/dev", "253:0\n");
        machine.add("sdb", "8:16", 4096, 6);
        machine.add("dm-0", "253:0", 2048, 7);
        machine.put("sys/block/dm-0/slaves/sda2/dev", "8:2\n");
        machine.add("md0", "9:0", 2048, 8);
        machine.put("sys/block/md0/slaves/sda2/dev", "8:2\n");
        machine.put("sys/block/md0/slaves/sdb/dev", "8:16\n");
        machine.add("loop0", "7:0", 1, 9);
        machine.put("sys/block/loop0/loop/backing_file", &format!("{}\n", machine.image.display()));
        machine.put(
            "proc/self/mountinfo",
            "22 1 8:1 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/sda1 rw\n\
             23 1 7:0 / /mnt ro shared:2 - iso9660 /dev/loop0 ro\n\
             damaged line\n",
        );
        let swaps = format!("Filename Type Size Used Priority\n{} file 1 0 -2\n", machine.image.display());
        machine.put("proc/swaps", &swaps);
        machine
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Adds a device; a partition goes into its disk's directory. `diskseq` 0: the file is left out.
    fn add(&self, path: &str, number: &str, sectors: u64, diskseq: u64) {
        let dir = format!("sys/block/{path}");
        self.put(&format!("{dir}/dev"), &format!("{number}\n"));
        self.put(&format!("{dir}/size"), &format!("{sectors}\n"));
        if diskseq > 0 {
            self.put(&format!("{dir}/diskseq"), &format!("{diskseq}\n"));
        }
        let name = path.rsplit('/').next().unwrap();
        for link in [format!("sys/dev/block/{number}"), format!("sys/class/block/{name}")] {
            std::os::unix::fs::symlink(self.root.path().join(&dir), self.root.path().join(link)).unwrap();
        }
    }

    fn remove(&self, name: &str, number: &str) {
        fs::remove_dir_all(self.root.path().join("sys/block").join(name)).unwrap();
        for link in [format!("sys/dev/block/{number}"), format!("sys/class/block/{name}")] {
            fs::remove_file(self.root.path().join(link)).unwrap();
        }
    }
}

fn device(major: u32, minor: u32) -> Node {
    Node::Device(libc::makedev(major, minor))
}

#[test]
fn what_lies_beneath_is_found() {
    let Machine { root: _root, kernel, image } = Machine::new();
    let part = Place { node: device(8, 0), bytes: 2048 * 512..4096 * 512 };
    assert_eq!(kernel.places(device(253, 0)), [kernel.place(device(253, 0)), part]);
    assert!(kernel.is_same(device(253, 0), device(8, 0)), "a mapping and the disk under it");
    assert!(kernel.is_same(device(8, 0), device(8, 1)), "a disk and its partition");
    assert!(!kernel.is_same(device(8, 1), device(8, 2)), "two partitions");
    assert!(!kernel.is_same(device(8, 1), device(253, 0)), "a partition and a mapping of its neighbour");
    assert!(kernel.is_same(device(7, 0), Node::of(&image).unwrap()), "a loop device and its file");
}

/// Loop devices over the image, by minor number, offset and size: 1, 2 and 3; 2 has a partition, 259:1.
fn siblings(machine: &Machine) {
    for (minor, offset, sectors) in [(1, 0, 8), (2, 2048, 8), (3, 5632, 8)] {
        let name = format!("loop{minor}");
        machine.add(&name, &format!("7:{minor}"), sectors, 10 + minor);
        machine
            .put(&format!("sys/block/{name}/loop/backing_file"), &format!("{}\n", machine.image.display()));
        machine.put(&format!("sys/block/{name}/loop/offset"), &format!("{offset}\n"));
    }
    machine.add("loop2/loop2p1", "259:1", 2, 0);
    machine.put("sys/block/loop2/loop2p1/partition", "1\n");
    machine.put("sys/block/loop2/loop2p1/start", "6\n");
}

#[test]
fn loop_devices_over_the_same_bytes_of_a_file_are_the_same() {
    let machine = Machine::new();
    siblings(&machine);
    let Machine { kernel, image, .. } = &machine;
    let same = |one, other| {
        let same = kernel.is_same(device(7, one), device(7, other));
        assert_eq!(same, kernel.is_same(device(7, other), device(7, one)));
        same
    };
    assert!(same(0, 1), "one is shorter");
    assert!(same(1, 2) && same(2, 3), "their ranges overlap");
    assert!(!same(0, 2) && !same(1, 3), "their ranges do not");
    assert!(kernel.is_same(device(259, 1), device(7, 2)) && kernel.is_same(device(259, 1), device(7, 3)));
    assert!(!kernel.is_same(device(259, 1), device(7, 1)), "a partition behind the end");
    let file = Node::of(image).unwrap();
    assert!(kernel.is_same(device(259, 1), file));
    assert_eq!(kernel.place(device(7, 2)), Place { node: file, bytes: 2048..6144 });
}

#[test]
fn users_of_a_loop_device_are_those_of_its_siblings_too() {
    let machine = Machine::new();
    siblings(&machine);
    let mount = |device: &str| {
        let line = format!("23 1 {device} / /mnt rw shared:2 - ext4 /dev/loop rw\n");
        machine.put("proc/self/mountinfo", &line);
        machine.put("proc/swaps", "Filename Type Size Used Priority\n");
    };
    let mounted = |minor| {
        let family = machine.kernel.family(device(7, minor));
        machine.kernel.mounts().iter().any(|mount| family.contains(&mount.device))
    };
    mount("7:1");
    assert!(mounted(0) && mounted(1) && mounted(2) && !mounted(3));
    mount("259:1");
    assert!(!mounted(0) && !mounted(1) && mounted(2) && mounted(3), "a partition of a sibling");
}

#[test]
fn layers_that_lie_on_each_other_are_followed_once() {
    let machine = Machine::new();
    machine.put("sys/block/dm-0/slaves/dm-1/dev", "253:1\n");
    machine.add("dm-1", "253:1", 1, 1);
    machine.put("sys/block/dm-1/slaves/dm-0/dev", "253:0\n");
    assert!(machine.kernel.is_same(device(253, 1), device(8, 0)));
    assert_eq!(machine.kernel.disks_of(253, 1), [(8, 0)]);
}

impl Kernel {
    /// [`Kernel::disks`] of a device without a node.
    fn disks_of(&self, major: u32, minor: u32) -> Vec<(u32, u32)> {
        let mut disks = BTreeSet::new();
        self.sink(libc::makedev(major, minor), 16, &mut disks);
        disks.into_iter().map(|disk| (libc::major(disk), libc::minor(disk))).collect()
    }
}

#[test]
fn requests_end_at_disks() {
    let machine = Machine::new();
    let kernel = &machine.kernel;
    assert_eq!(kernel.disks_of(8, 1), [(8, 0)], "a partition");
    assert_eq!(kernel.disks_of(253, 0), [(8, 0)], "a mapping of a partition");
    assert_eq!(kernel.disks_of(9, 0), [(8, 0), (8, 16)], "an array");
    let file = std::os::unix::fs::MetadataExt::dev(&fs::metadata(&machine.image).unwrap());
    // The simulated sysfs does not contain the device of the test's own file system, so that counts as a disk.
    let expected = BTreeSet::from_iter((libc::major(file) != 0).then_some(file));
    assert_eq!(kernel.disks(Node::of(&machine.image).unwrap(), &machine.image), expected, "a file");
    let disks = kernel.disks(Node::of(Path::new("/dev/shm")).unwrap(), Path::new("/dev/shm"));
    assert_eq!(disks, BTreeSet::new(), "memory");
    let mut disks = BTreeSet::new();
    kernel.sink(libc::makedev(7, 0), 16, &mut disks);
    assert_eq!(disks, expected, "a loop device over the file");
}

#[test]
fn links_lead_to_the_same_file() {
    let Machine { root, kernel, image } = Machine::new();
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
    let Machine { root: _root, kernel, image } = Machine::new();
    let expected =
        ["loop device /dev/loop0 is set up over it", "it is mounted on /mnt", "it is used as swap"];
    assert_eq!(kernel.users(&image), expected);
    assert_eq!(kernel.written_at(&image), None, "mounted read-only");
    assert!(kernel.users(Path::new("/nonexistent")).is_empty());
}

#[test]
fn a_loop_device_is_used_while_another_program_writes_to_its_file() {
    let machine = Machine::new();
    machine.add("loop0/loop0p1", "259:1", 1, 0);
    machine.put("sys/block/loop0/loop0p1/partition", "1\n");
    let writers =
        || [device(7, 0), device(259, 1), device(8, 0)].map(|node| machine.kernel.written_file(node));
    let other = fs::File::options().read(true).write(true).open(&machine.image).unwrap();
    assert!(lock::lock(other.as_fd(), false).unwrap());
    assert_eq!(writers(), [None, None, None], "a reader");
    assert!(lock::lock(other.as_fd(), true).unwrap());
    assert_eq!(writers(), [Some(machine.image.clone()), Some(machine.image.clone()), None]);
}

#[test]
fn mounts_are_parsed() {
    let Machine { root: _root, kernel, .. } = Machine::new();
    let mounts = kernel.mounts();
    assert_eq!(mounts.len(), 2);
    assert_eq!(mounts[0].point, Path::new("/srv/a b"));
    assert_eq!(mounts[0].source, Path::new("/dev/sda1"));
    assert!(mounts[0].writable && !mounts[1].writable);
    assert_eq!(kernel.file_system(libc::makedev(7, 0)).as_deref(), Some("iso9660"));
    assert_eq!(kernel.file_system(libc::makedev(7, 1)), None);
    assert_eq!(kernel.mount_of(Path::new("/srv/a b/c")).unwrap(), mounts[0]);
    assert_eq!(kernel.mount_of(Path::new("/srv/a bc")), None);
    assert_eq!(kernel.partitions(libc::makedev(8, 0)), [libc::makedev(8, 1), libc::makedev(8, 2)]);
}

#[test]
fn octal_escapes_are_read() {
    assert_eq!(unescape(b"a\\040b\\134"), Path::new("a b\\"));
    assert_eq!(unescape(b"\\04"), Path::new("\\04"));
    assert_eq!(unescape(b"\\999"), Path::new("\\999"));
}

#[test]
fn an_entry_is_what_sysfs_shows() {
    let machine = Machine::new();
    let disk = machine.kernel.entry(libc::makedev(8, 0)).unwrap();
    assert_eq!((disk.name.as_str(), disk.diskseq, disk.size_bytes), ("sda", Some(5), 4096 * 512));
    assert_eq!((disk.limits.logical_block_size, disk.limits.queue_depth), (512, 31));
    let partition = machine.kernel.entry(libc::makedev(8, 2)).unwrap();
    assert_eq!(partition.partition_of.as_deref(), Some("sda"));
    assert_eq!((partition.diskseq, partition.limits), (Some(5), disk.limits), "its disk's");
    assert_eq!(partition.holders, ["dm-0"]);
    assert_eq!(machine.kernel.entry(libc::makedev(253, 0)).unwrap().slaves, ["sda2"]);
    let looped = machine.kernel.entry(libc::makedev(7, 0)).unwrap();
    assert_eq!(looped.backing_file.as_deref(), Some(machine.image.as_path()));
    assert_eq!(machine.kernel.entry(libc::makedev(1, 1)), None);
    let traffic = machine.kernel.traffic(libc::makedev(8, 0)).unwrap();
    assert_eq!((traffic.reads, traffic.sectors_read), (11, 88));
    assert_eq!((traffic.writes, traffic.sectors_written, traffic.flushes), (22, 176, 33));
    let file = machine.kernel.traffic_file(libc::makedev(8, 0)).unwrap();
    for reads in [11, 12] {
        machine.put("sys/block/sda/stat", &format!("{reads} 1 88 2 22 3 176 4 0 5 6"));
        assert_eq!(
            file.read().map(|traffic| (traffic.reads, traffic.flushes)),
            Some((reads, 0)),
            "kept open"
        );
    }
}

#[test]
fn what_makes_no_sense_counts_as_absent() {
    let machine = Machine::new();
    let number = libc::makedev(8, 16);
    for (file, text) in [
        ("queue/logical_block_size", "0"),
        ("queue/physical_block_size", "513"),
        ("queue/max_sectors_kb", "18446744073709551615"),
        ("queue/max_segments", "0"),
        ("queue/max_segment_size", "-1"),
        ("queue/nr_requests", "0"),
        ("queue/rotational", "yes"),
        ("queue/discard_max_bytes", "99999999999999999999"),
        ("queue/write_zeroes_max_bytes", "\u{0}\u{7}"),
        ("diskseq", "six"),
        ("stat", "1 2 3"),
    ] {
        machine.put(&format!("sys/block/sdb/{file}"), text);
    }
    let entry = machine.kernel.entry(number).unwrap();
    assert_eq!(entry.limits, Limits::default());
    assert_eq!(entry.diskseq, None);
    assert_eq!(machine.kernel.traffic(number), None);
    machine.put("sys/block/sdb/size", "36028797018963968");
    assert_eq!(machine.kernel.entry(number), None, "more bytes than there are numbers");
    machine.put("sys/block/sdb/size", &"1".repeat(100_000));
    assert_eq!(machine.kernel.entry(number), None);
}

#[test]
fn a_disk_that_takes_over_a_name_is_noticed() {
    let machine = Machine::new();
    let mut devices = Devices::new(machine.kernel.clone(), Some(Monitor::new().unwrap()));
    let number = libc::makedev(8, 16);
    let event = Uevent { name: "sdb".into(), number };
    let opened = devices.open(number).unwrap();
    assert_eq!((devices.check_cached(&opened), devices.check_probed(&opened)), (Ok(()), Ok(())));

    machine.remove("sdb", "8:16");
    assert_eq!(devices.check_cached(&opened), Ok(()), "no uevent has been applied yet");
    devices.apply(&event);
    let checks = (devices.check_cached(&opened), devices.check_probed(&opened));
    assert_eq!(checks, (Err(Lost::Gone), Err(Lost::Gone)));

    machine.add("sdb", "8:16", 4096, 77);
    devices.apply(&event);
    assert_eq!(devices.check_cached(&opened), Err(Lost::TakenOver));
    assert_eq!(devices.check_probed(&opened), Err(Lost::TakenOver));

    let mut deaf = Devices::new(machine.kernel.clone(), None);
    let opened = deaf.open(number).unwrap();
    machine.put("sys/block/sdb/diskseq", "78\n");
    assert_eq!(deaf.check_cached(&opened), Err(Lost::TakenOver), "looked, for want of ears");
    assert_eq!(deaf.open(libc::makedev(1, 1)), None);
}

#[test]
fn after_lost_uevents_every_device_is_read_again() {
    use crate::uevent::Received;
    let machine = Machine::new();
    let mut devices = Devices::new(machine.kernel.clone(), Some(Monitor::new().unwrap()));
    let [changed, removed, same] =
        [(8, 16), (9, 0), (7, 0)].map(|(major, minor)| devices.open(libc::makedev(major, minor)).unwrap());
    machine.put("sys/block/sdb/diskseq", "77\n");
    machine.remove("md0", "9:0");
    assert_eq!(devices.check_cached(&changed), Ok(()), "no uevent, and none lost");
    assert!(devices.apply_messages([Received::Overrun, Received::Other, Received::Nothing]));
    assert_eq!(devices.check_cached(&changed), Err(Lost::TakenOver));
    assert_eq!(devices.check_cached(&removed), Err(Lost::Gone));
    assert_eq!(devices.check_cached(&same), Ok(()));
}

#[test]
fn a_generic_device_leads_to_its_disk() {
    let machine = Machine::new();
    let link = |target: &str, at: &str| {
        let at = machine.root.path().join(at);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(machine.root.path().join(target), at).unwrap();
    };
    for class in ["scsi_generic", "nvme-generic", "tty"] {
        fs::create_dir_all(machine.root.path().join("sys/class").join(class)).unwrap();
    }
    let generic = |name: &str, number: &str, class: &str| {
        machine.put(&format!("{name}/dev"), &format!("{number}\n"));
        link(&format!("sys/class/{class}"), &format!("{name}/subsystem"));
        link(name, &format!("sys/dev/char/{number}"));
    };
    generic("sys/devices/host0/scsi_generic/sg0", "21:0", "scsi_generic");
    link("sys/devices/host0", "sys/devices/host0/scsi_generic/sg0/device");
    link("sys/block/sda", "sys/devices/host0/block/sda");
    generic("sys/devices/host1/scsi_generic/sg1", "21:1", "scsi_generic");
    generic("sys/devices/nvme0/ng0n1", "240:0", "nvme-generic");
    machine.put("sys/devices/nvme0/nvme0n1/dev", "259:7\n");
    generic("sys/devices/nvme0/ng0n2", "240:1", "nvme-generic");
    generic("sys/devices/tty7", "4:7", "tty");
    let of = |major, minor| machine.kernel.generic(libc::makedev(major, minor));
    let expected = |family, name: &str, block| Some(Generic { family, name: name.to_owned(), block });
    assert_eq!(of(21, 0), expected(Family::Scsi, "sg0", Some(libc::makedev(8, 0))));
    assert_eq!(of(21, 1), expected(Family::Scsi, "sg1", None), "no driver took the disk");
    assert_eq!(of(240, 0), expected(Family::Nvme, "ng0n1", Some(libc::makedev(259, 7))));
    assert_eq!(of(240, 1), expected(Family::Nvme, "ng0n2", None));
    assert_eq!(of(4, 7), None, "takes no commands");
    assert_eq!(of(4, 8), None, "is not there");
}

#[test]
fn a_partition_leads_to_its_place_in_a_namespace() {
    let machine = Machine::new();
    let root = machine.root.path();
    let link = |target: &str, at: &str| {
        let at = root.join(at);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(root.join(target), at).unwrap();
    };
    let namespace = |dir: &str, class: &str, head: &str, number: u32| {
        for class in [class, "nvme-generic"] {
            fs::create_dir_all(root.join("sys/class").join(class)).unwrap();
        }
        link(&format!("sys/class/{class}"), &format!("{dir}/subsystem"));
        machine.put(&format!("{dir}/ng{head}/dev"), &format!("240:{number}\n"));
        link("sys/class/nvme-generic", &format!("{dir}/ng{head}/subsystem"));
        machine.put(&format!("{dir}/nvme{head}/dev"), &format!("259:{number}\n"));
        machine.put(&format!("{dir}/nvme{head}/size"), "4096\n");
        link(&format!("{dir}/nvme{head}"), &format!("sys/dev/block/259:{number}"));
    };
    namespace("sys/devices/nvme0", "nvme", "0n1", 0);
    let part = "sys/devices/nvme0/nvme0n1/nvme0n1p2";
    for (name, value) in [("partition", "2"), ("start", "2048"), ("size", "1000"), ("dev", "259:9")] {
        machine.put(&format!("{part}/{name}"), value);
    }
    link(part, "sys/dev/block/259:9");
    namespace("sys/devices/nvme-subsys1", "nvme-subsystem", "1n1", 1);
    let of = |minor| machine.kernel.namespace(libc::makedev(259, minor));
    let whole = of(0).unwrap();
    assert_eq!((whole.start_bytes, whole.size_bytes, whole.has_one_controller), (0, 4096 * 512, true));
    assert_eq!((whole.node.to_str().unwrap(), whole.number), ("/dev/ng0n1", libc::makedev(240, 0)));
    assert!(whole.parent.ends_with("devices/nvme0"));
    let part = Namespace { start_bytes: 2048 * 512, size_bytes: 1000 * 512, ..whole };
    assert_eq!(of(9), Some(part));
    assert!(!of(1).unwrap().has_one_controller, "a subsystem's");
    assert_eq!(machine.kernel.namespace(libc::makedev(8, 0)), None, "no NVMe");
    fs::remove_file(root.join("sys/devices/nvme0/ng0n1/dev")).unwrap();
    assert_eq!(of(0), None, "there is no node that takes commands");
}

/// Every name by which bytes of a partition or of a loop device can be written leaves evidence; a write elsewhere
/// leaves none.
#[test]
fn contents_change_with_a_write_by_any_name() {
    let machine = Machine::new();
    let contents =
        |major, minor| machine.kernel.fingerprint(libc::makedev(major, minor), 512).contents.clone();
    let stat = |device: &str, written: u64, discarded: u64| {
        let text = format!("0 0 0 0 0 0 {written} 0 0 0 0 0 0 {discarded} 0 0 0\n");
        machine.put(&format!("sys/block/{device}/stat"), &text);
    };
    // The disk, its partitions 1 and 2, and whether partition 1 and 2 may have been written since.
    let states = [
        ([100, 30, 20], None),
        ([108, 38, 20], Some([true, false])),
        ([116, 38, 28], Some([false, true])),
        ([124, 38, 28], Some([true, true])),
        ([124, 38, 28], Some([false, false])),
    ];
    for counts in [|n| (n, 0), |n| (0, n)] {
        let mut before = Vec::new();
        for (numbers, changed) in states {
            for (device, number) in ["sda", "sda/sda1", "sda/sda2"].into_iter().zip(numbers) {
                let (written, discarded) = counts(number);
                stat(device, written, discarded);
            }
            let now = vec![contents(8, 1), contents(8, 2)];
            if let Some(changed) = changed {
                let found: Vec<bool> = before.iter().zip(&now).map(|(before, now)| before != now).collect();
                assert_eq!(found, changed, "{numbers:?} {now:?}");
            }
            before = now;
        }
    }
    // A partition table may have partitions that overlap: each shows what is written to the other.
    machine.put("sys/block/sda/sda1/size", "4096\n");
    let before = contents(8, 1);
    stat("sda", 0, 132);
    stat("sda/sda2", 0, 36);
    assert_ne!(contents(8, 1), before);
}

#[test]
fn contents_of_a_loop_device_change_with_its_file_through_all_layers() {
    let machine = Machine::new();
    let (kernel, image) = (&machine.kernel, &machine.image);
    let contents = |major, minor| kernel.fingerprint(libc::makedev(major, minor), 512).contents.clone();
    machine.add("loop0/loop0p1", "259:1", 1, 0);
    machine.put("sys/block/loop0/loop0p1/partition", "1\n");
    let write = |seconds| {
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::options().write(true).open(image).unwrap().set_modified(time).unwrap();
    };
    write(1000);
    for (major, minor) in [(7, 0), (259, 1)] {
        let before = contents(major, minor);
        assert!(before.contains("; file modified 1000.000000000, changed "), "{before}");
        assert_eq!(contents(major, minor), before);
        write(2000);
        let after = contents(major, minor);
        assert!(after.contains("; file modified 2000.000000000, changed "), "{after}");
        write(1000);
    }
    fs::remove_file(image).unwrap();
    assert!(contents(7, 0).ends_with(" discarded"), "without its file");
}
