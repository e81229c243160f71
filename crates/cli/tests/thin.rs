//! `copy --since` of two thin volumes, with scripts in place of `dmsetup` and `thin_delta` and loop devices in place of
//! volumes: the arguments, the release of the pool's metadata snapshot in all cases, and the checks of the answers. The
//! real tools run in `tests/kernel-lab/volumes.sh`.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command};
use std::time::Duration;

use common::{Loop, Place, Ran, eventually, spawn, wait};

/// Tables and the pool's metadata snapshot are files.
const DMSETUP: &str = r#"#!/bin/sh
echo "dmsetup $1 $7" >> log
case "$*" in
    "table --major 7 --minor $NEW") cat new.table ;;
    "table --major 7 --minor $OLD") cat old.table ;;
    "table --major 254 --minor 9") echo "0 8192 thin-pool 999:0 999:1 8 0 0" ;;
    "message --major 254 --minor 9 0 reserve_metadata_snap") test ! -e reserved && touch reserved ;;
    "message --major 254 --minor 9 0 release_metadata_snap") test ! -e stuck && rm reserved ;;
    *) exit 1 ;;
esac"#;

const THIN_DELTA: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then cat version; exit; fi
echo "thin_delta $*" >> log
touch asked
while [ -e slow ]; do sleep 0.02; done
cat answer
exit $(cat code)"#;

const BYTES: usize = 1 << 20;
/// Bytes of a block.
const BLOCK: usize = 4096;
const ANSWER: &str = r#"<superblock uuid="" time="1" transaction="2" data_block_size="8" nr_data_blocks="0">
  <diff left="11" right="12">
    <same begin="0" length="5"/>
    <different begin="5" length="2"/>
    <right_only begin="100" length="1"/>
  </diff>
</superblock>"#;

/// A source, its earlier state, a destination with that state, and the scripts.
struct Played {
    place: Place,
    /// Devices of the source and of its earlier state.
    devices: [Loop; 2],
}

impl Played {
    /// `None` without loop devices.
    fn new() -> Option<Self> {
        let place = Place::new();
        place.program("dmsetup", DMSETUP);
        place.program("thin_delta", THIN_DELTA);
        let mut bytes = vec![0; BYTES];
        block::fill_pattern(7, 0, &mut bytes);
        let files = ["new", "old", "dst"].map(|name| place.file(name, &bytes));
        let played = Self { place, devices: [Loop::over(&files[0])?, Loop::over(&files[1])?] };
        let device = fs::File::options().write(true).open(&played.devices[0].0).unwrap();
        // Two changed blocks that the delta lists, and one that it does not.
        for block in [5, 6, 200] {
            device.write_all_at(&[block as u8; BLOCK], (block * BLOCK) as u64).unwrap();
        }
        for (name, content) in [
            ("new.table", "0 2048 thin 254:9 11"),
            ("old.table", "0 2048 thin 254:9 12"),
            ("version", "0.9.0"),
            ("answer", ANSWER),
            ("code", "0"),
        ] {
            played.place.file(name, content.as_bytes());
        }
        Some(played)
    }

    fn command(&self) -> Command {
        self.since(&self.devices[1].0)
    }

    fn since(&self, earlier: &str) -> Command {
        let mut command = self.place.command();
        let [new, old] = self.devices.each_ref().map(|device| &device.0);
        let minor = |device: &str| libc::minor(fs::metadata(device).unwrap().rdev()).to_string();
        command.env("PATH", self.place.path_with_programs()).env("NEW", minor(new)).env("OLD", minor(old));
        command.args(["copy", new, "dst", "--force", "--json", "--since", earlier]);
        command
    }

    fn run(&self) -> Ran {
        Ran::from(self.command().output().unwrap())
    }

    /// A copy that waits for `thin_delta`, which does not answer.
    fn waiting(&self) -> Child {
        self.place.file("slow", b"");
        let copy = spawn(&mut self.command());
        eventually("thin_delta is asked", || self.has("asked"));
        copy
    }

    fn has(&self, name: &str) -> bool {
        self.place.path(name).exists()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.path("log")).unwrap_or_default()
    }

    /// Whether the destination still has the earlier state.
    fn is_untouched(&self) -> bool {
        fs::read(self.place.path("dst")).unwrap() == fs::read(self.place.path("old")).unwrap()
    }
}

#[test]
fn what_the_pool_tells_is_copied_and_nothing_else() {
    let Some(played) = Played::new() else { return };
    let object = played.run().expect(0).json();
    assert_eq!(object["unchanged_bytes"], 253 * BLOCK, "{object}");
    let (new, dst) = (fs::read(&played.devices[0].0).unwrap(), fs::read(played.place.path("dst")).unwrap());
    let differing: Vec<usize> =
        (0..256).filter(|block| new[block * BLOCK..][..BLOCK] != dst[block * BLOCK..][..BLOCK]).collect();
    assert_eq!(differing, [200], "which nobody told of");
    let expected = "dmsetup table \ndmsetup table \ndmsetup table \ndmsetup message reserve_metadata_snap\n\
        thin_delta --metadata-snap --thin1 11 --thin2 12 999:0\ndmsetup message release_metadata_snap\n";
    assert_eq!(played.log(), expected);
    assert!(!played.has("reserved"));
}

#[test]
fn what_is_not_told_plainly_is_not_copied() {
    let Some(played) = Played::new() else { return };
    let hash = "--since hash";
    for (file, content, exit, words, hint) in [
        ("old.table", "0 2048 thin 254:8 12", 6, "different pools", hash),
        ("old.table", "0 2048 thin 254:9 11", 6, "the source itself", hash),
        ("old.table", "0 2048 thin 254:9 12 7:99", 6, "external origin", hash),
        ("new.table", "0 2048 linear 7:99 0", 6, "no thin volume", hash),
        ("new.table", "0 2048 thin", 6, "cannot be understood", hash),
        ("new.table", "0 2048 thin 254:7 11\n", 6, "different pools", hash),
        ("version", "1.0.5", 6, "thin_delta 1.0.5", "1.0.6"),
        ("code", "1", 1, "thin_delta: exit status: 1", hash),
        ("answer", "", 1, "it ends early", hash),
        ("answer", "<superblock data_block_size=\"128\">", 1, "not about these volumes", hash),
        ("answer", &ANSWER.replace("same", "maybe"), 1, "`maybe begin=\"0\" length=\"5\"/`", hash),
        ("reserved", "", 1, "one at a time", "dmsetup message --major 254 --minor 9 0 release_metadata_snap"),
        ("stuck", "", 1, "not released", "dmsetup message --major 254 --minor 9 0 release_metadata_snap"),
    ] {
        let was = fs::read(played.place.path(file)).ok();
        played.place.file(file, content.as_bytes());
        let told = played.run().expect(exit).stderr;
        assert!(told.contains(&words.replace('"', "\\\"")) && told.contains(hint), "{words}: {told}");
        assert!(played.is_untouched(), "{words}");
        // A metadata snapshot of another process is not released.
        let stays = ["reserved", "stuck"].contains(&file);
        assert_eq!(played.has("reserved"), stays, "{words}");
        match was {
            Some(was) => drop(played.place.file(file, &was)),
            None => fs::remove_file(played.place.path(file)).unwrap(),
        }
        let _ = fs::remove_file(played.place.path("reserved"));
    }
    played.run().expect(0);
}

#[test]
fn what_is_no_thin_volume_is_told_what_else_there_is() {
    let Some(played) = Played::new() else { return };
    for table in ["new.table", "old.table"] {
        let was = fs::read(played.place.path(table)).unwrap();
        fs::remove_file(played.place.path(table)).unwrap();
        let told = played.run().expect(6).stderr;
        assert!(told.contains("no thin volume") && told.contains("--since hash"), "{told}");
        played.place.file(table, &was);
    }
    let since = |what: &str, exit: i32, words: &str| {
        let told = Ran::from(played.since(what).output().unwrap()).expect(exit).stderr;
        assert!(told.contains(words), "{told}");
    };
    since("old", 2, "no block device");
    since("/dev/vg/not-there", 2, "--ignoreactivationskip");
    assert!(played.is_untouched() && !played.log().contains("message"));
}

#[test]
fn a_killed_copy_does_not_keep_the_pool_reserved() {
    let Some(played) = Played::new() else { return };
    let mut copy = played.waiting();
    // When a service is stopped, SIGTERM goes to all its processes.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", copy.id())).unwrap();
    let shell: i32 = children.trim().parse().unwrap();
    // SAFETY: a signal to the group of a process whose parent still waits for it.
    unsafe { libc::kill(-shell, libc::SIGTERM) };
    copy.kill().unwrap();
    wait(&mut copy);
    assert!(played.has("reserved"), "thin_delta still reads it");
    fs::remove_file(played.place.path("slow")).unwrap();
    eventually("it is released", || !played.has("reserved"));
    assert!(played.is_untouched());
}

#[test]
fn a_copy_that_is_stopped_waits_for_the_release() {
    let Some(played) = Played::new() else { return };
    let mut copy = played.waiting();
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(copy.id() as i32, libc::SIGTERM) };
    std::thread::sleep(Duration::from_millis(50));
    assert!(copy.try_wait().unwrap().is_none() && played.has("reserved"), "it waits");
    fs::remove_file(played.place.path("slow")).unwrap();
    assert_eq!(wait(&mut copy), 143);
    assert!(!played.has("reserved"));
}
