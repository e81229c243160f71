//! `copy --offload`: what the file system copies is reported, complete, and limited to the requested range.
//!
//! File systems with shared extents are mounted, which needs root and their tools; without them a message names the
//! omitted cases.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Place, eventually, kill, spawn, wait};

const MIB: u64 = 1 << 20;

/// A file system with shared extents, in memory, mounted on `mnt` of a place; unmounted on drop.
struct Mounted {
    point: PathBuf,
    _memory: tempfile::TempDir,
}

impl Mounted {
    fn new(place: &Place, make: &str) -> Option<Self> {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let (image, point) = (memory.path().join("image"), place.path("mnt"));
        File::create(&image).unwrap().set_len(400 * MIB).unwrap();
        fs::create_dir(&point).unwrap();
        let ran = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let made = ran(Command::new(make).arg("-q").arg(&image))
            && ran(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point));
        if !made {
            eprintln!("no {make} or no mount (root is needed): skipped");
            return None;
        }
        Some(Self { point, _memory: memory })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.point).output();
    }
}

#[test]
fn file_systems_that_share_blocks() {
    for make in ["mkfs.xfs", "mkfs.btrfs"] {
        let place = Place::new();
        if let Some(_mounted) = Mounted::new(&place, make) {
            blocks_are_shared_holes_and_tail_included(&place);
            the_mover_does_what_cannot_be_shared(&place);
            what_asks_for_something_else_is_not_offloaded(&place);
            a_snapshot_keeps_the_moment(&place);
            if make == "mkfs.xfs" {
                a_copy_with_a_journal(&place);
            }
        }
    }
}

/// Creates `mnt/a`: data, holes and an unaligned tail.
fn source(place: &Place) -> u64 {
    let bytes = 12 * MIB + 1234;
    let file = File::create(place.path("mnt/a")).unwrap();
    file.set_len(bytes).unwrap();
    let mut data = vec![0; 3 * MIB as usize];
    block::fill_pattern(7, 0, &mut data);
    file.write_all_at(&data, 5 * MIB).unwrap();
    file.write_all_at(&data, 9 * MIB + 777).unwrap();
    file.write_all_at(b"the end", bytes - 7).unwrap();
    bytes
}

/// Creates `mnt/b`: a destination of `bytes` with other content.
fn full(place: &Place, bytes: u64) {
    fs::write(place.path("mnt/b"), vec![0xa5; bytes as usize]).unwrap();
}

fn blocks_are_shared_holes_and_tail_included(place: &Place) {
    let bytes = source(place);
    full(place, bytes);
    let ran = place.run(&["copy", "mnt/a", "mnt/b", "--verify", "--json"]).expect(0).json();
    assert_eq!((&ran["offload"], &ran["offloaded_bytes"]), (&"reflink".into(), &bytes.into()), "{ran}");
    assert_eq!((&ran["resumed_bytes"], &ran["write"]["bytes"]), (&0.into(), &0.into()), "{ran}");
    assert_eq!((&ran["verified"], &ran["source_changed"]), (&true.into(), &false.into()), "{ran}");
    let [a, b] = ["mnt/a", "mnt/b"].map(|name| fs::read(place.path(name)).unwrap());
    assert!(a == b);
    // The old data is gone where the source has holes.
    assert!(fs::metadata(place.path("mnt/b")).unwrap().blocks() * 512 < 9 * MIB);
}

fn the_mover_does_what_cannot_be_shared(place: &Place) {
    let bytes = source(place);
    // The tail cannot be shared if the destination continues behind it.
    full(place, bytes + 5000);
    let ran = place.run(&["copy", "mnt/a", "mnt/b", "--verify", "--json"]).expect(0).json();
    assert_eq!(ran["offloaded_bytes"], bytes - bytes % 4096, "{ran}");
    assert_eq!(ran["write"]["bytes"], bytes % 4096, "{ran}");
    let [a, b] = ["mnt/a", "mnt/b"].map(|name| fs::read(place.path(name)).unwrap());
    assert!(a[..] == b[..a.len()] && b[a.len()..] == [0xa5; 5000]);

    // A part, and nothing outside it.
    full(place, bytes);
    let part = ["--src-offset", "5M", "--dst-offset", "6M", "--size", "2M"];
    let ran = place.run(&[&["copy", "mnt/a", "mnt/b", "--json"], &part[..]].concat()).expect(0).json();
    assert_eq!(ran["offloaded_bytes"], 2 * MIB, "{ran}");
    let b = fs::read(place.path("mnt/b")).unwrap();
    let [from, to] = [6, 8].map(|mib| (mib * MIB) as usize);
    assert!(b[from..to] == a[from - MIB as usize..to - MIB as usize]);
    assert!(b[..from] == vec![0xa5; from] && b[to..] == vec![0xa5; b.len() - to]);

    // At different offsets within a block nothing can be shared.
    let skewed = ["--src-offset", "5M", "--dst-offset", "100", "--size", "2M"];
    let words = [&["copy", "mnt/a", "mnt/b", "--force", "--json"], &skewed[..]].concat();
    let ran = place.run(&words).expect(0).json();
    assert_eq!(ran["offload"], "none", "{ran}");
    assert!(fs::read(place.path("mnt/b")).unwrap()[100..][..1000] == a[5 * MIB as usize..][..1000]);
    place
        .run(&[&words[..], &["--offload", "require"]].concat())
        .expect(1)
        .on_stderr("at the same place in a block");
}

fn what_asks_for_something_else_is_not_offloaded(place: &Place) {
    let bytes = source(place);
    full(place, bytes);
    let cases: [(&[&str], &str); 5] = [
        (&["--rate", "1G"], "mnt/a"),
        (&["--sparse", "off"], "mnt/a"),
        (&["--since", "hash"], "mnt/a"),
        (&["--offload", "off"], "mnt/a"),
        (&[], "mnt/a,delay=0ms"),
    ];
    for (options, source) in cases {
        let words = [&["copy", source, "mnt/b", "--json"], options].concat();
        let ran = place.run(&words).expect(0).json();
        let offloaded = (&ran["offload"], &ran["offloaded_bytes"]);
        assert_eq!(offloaded, (&"none".into(), &0.into()), "{words:?}: {ran}");
        if !options.contains(&"--offload") {
            place.run(&[&words[..], &["--offload", "require"]].concat()).expect(1);
        }
    }
}

fn a_snapshot_keeps_the_moment(place: &Place) {
    source(place);
    let was = fs::read(place.path("mnt/a")).unwrap();
    let part = ["--src-offset", "5M", "--size", "3M", "--rate", "4M", "--json"];
    let hooks = ["--snapshot", "auto", "--post", "echo thawed > log"];
    let mut command = place.command();
    command.args(["copy", "mnt/a", "c.img,create,size=3M"]).args(part).args(hooks);
    let copy = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the snapshot is made", || place.path("log").exists());
    fs::write(place.path("mnt/a"), vec![0x5a; 12 * MIB as usize]).unwrap();
    let ran = common::Ran::from(copy.wait_with_output().unwrap()).expect(0).json();
    assert_eq!((&ran["snapshot"], &ran["source_consistent"]), (&"reflink".into(), &true.into()), "{ran}");
    assert!(fs::read(place.path("c.img")).unwrap() == was[5 * MIB as usize..8 * MIB as usize]);
    // The clone never had a name.
    let mut names: Vec<_> =
        fs::read_dir(place.path("mnt")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
}

fn a_copy_with_a_journal(place: &Place) {
    let bytes = 1030 * MIB;
    source(place);
    File::options().write(true).open(place.path("mnt/a")).unwrap().set_len(bytes).unwrap();
    fs::remove_file(place.path("mnt/b")).unwrap();
    let destination = format!("mnt/b,create,size={bytes}");
    let ran = place.run(&["copy", "mnt/a", &destination, "--json"]).expect(0).json();
    assert_eq!((&ran["offloaded_bytes"], &ran["resumed_bytes"]), (&bytes.into(), &0.into()), "{ran}");
    // With an earlier copy's journal the rest is shared.
    fs::write(place.path("mnt/b"), b"").unwrap();
    let slow = ["--rate", "5M", "--chunk", "256K", "--snapshot", "auto"];
    let mut copy = spawn(place.command().args(["copy", "mnt/a", "mnt/b,grow,size=1030M"]).args(slow));
    let journals = || fs::read_dir(place.path("state/hikyaku/copies")).into_iter().flatten();
    eventually("there is a journal", || journals().next().is_some());
    std::thread::sleep(Duration::from_millis(200));
    kill("-TERM", copy.id());
    assert_eq!(wait(&mut copy), 143);
    let journal = journals().next().expect("a journal").unwrap().path();
    let words =
        ["copy", "mnt/a", "mnt/b", "--json", "--snapshot", "auto", "--resume", journal.to_str().unwrap()];
    let ran = place.run(&words).expect(0).json();
    let [resumed, offloaded] = ["resumed_bytes", "offloaded_bytes"].map(|name| ran[name].as_u64().unwrap());
    assert!(resumed > 0 && offloaded > 0 && resumed + offloaded == bytes, "{ran}");
    assert!(!journal.exists());
    let [a, b] = ["mnt/a", "mnt/b"].map(|name| {
        let mut data = vec![0; 13 * MIB as usize];
        File::open(place.path(name)).unwrap().read_exact_at(&mut data, 0).unwrap();
        data
    });
    assert!(a == b);
}

#[test]
fn require_says_why_not() {
    let place = Place::with_sample(1 << 20);
    place.run(&["copy", "a.img", "mem:1M", "--offload", "require"]).expect(1).on_stderr("not plain files");
    place.run(&["copy", "a.img", "mem:1M", "--json"]).expect(0);
    // Two file systems, one of them tmpfs.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let other = elsewhere.path().join("b.img");
    File::create(&other).unwrap().set_len(1 << 20).unwrap();
    let words = ["copy", "a.img", other.to_str().unwrap(), "--offload"];
    place.run(&[&words[..], &["require", "--json"]].concat()).expect(1);
    let ran = place.run(&[&words[..], &["auto", "--json"]].concat()).expect(0).json();
    assert_eq!(ran["offload"], "none");
}

#[test]
fn a_copy_by_the_target_that_differs_is_told_in_json() {
    let place = Place::new();
    let serving = place.serve(&["pattern:2M", "null:2M"]);
    let [from, to] = [&serving.urls[0], &serving.urls[1]];
    let ran = place.run(&["copy", from, to, "--remote-copy", "require", "--verify", "--json"]).expect(3);
    let object = ran.json();
    assert!(object["verified"] == false && object["bytes"] == 2 << 20, "{object}");
    assert!(object["difference"]["dst_offset"].is_u64(), "{object}");
    assert_eq!(ran.error()["code"], 3);
}
