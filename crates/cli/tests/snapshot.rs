//! `copy --snapshot` with scripts in place of the tools of LVM and ZFS: their arguments, their order, and the removal
//! of snapshots. Real file systems with shared extents are in `offload.rs`.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use common::{Loop, Place, eventually, spawn, wait};

/// Appends its arguments to `log`; a snapshot is a directory with a copy of the file.
const ZFS: &str = r#"#!/bin/sh
echo "zfs $*" >> log
at="$FILES/.zfs/snapshot/${2#*@}"
case "$*" in
    "list -H -t snapshot"*) test ! -e leftover || echo tank/files@hikyaku-7 ;;
    list*) printf 'tank/files\t%s\n' "$FILES" ;;
    snapshot*) test ! -e broken && mkdir -p "$at" && cp "$FILES/a.img" "$at" ;;
    destroy*) test ! -e held && rm -r "$at" ;;
esac"#;

/// The script for LVM; a snapshot is a file.
const LVM: &str = r#"#!/bin/sh
echo "${0##*/} $*" >> log
case "${0##*/} $*" in
    *pool_lv*) echo "  vg:data:" ;;
    *lv_path*) echo "  $PWD/snapshot" ;;
    lvs*) echo "  data" ;;
    lvcreate*) cp image snapshot ;;
    lvremove*) rm snapshot ;;
esac"#;

/// A place with these scripts first in PATH, and files on tmpfs, which cannot share extents.
struct Played {
    place: Place,
    files: tempfile::TempDir,
}

impl Played {
    fn new(names: &[&str], script: &str) -> Self {
        let place = Place::new();
        names.iter().for_each(|name| place.program(name, script));
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut bytes = vec![0; 1 << 20];
        block::fill_pattern(7, 0, &mut bytes);
        fs::write(files.path().join("a.img"), bytes).unwrap();
        Self { place, files }
    }

    fn source(&self) -> PathBuf {
        self.files.path().join("a.img")
    }

    /// `copy` with `--snapshot auto`.
    fn command(&self, source: &str, words: &[&str]) -> Command {
        let mut command = self.place.command();
        command.env("PATH", self.place.path_with_programs()).env("FILES", self.files.path());
        command.args(["copy", source, "b.img,create,size=1M", "--snapshot", "auto"]).args(words);
        command
    }

    fn zfs(&self, words: &[&str]) -> Command {
        self.command(self.source().to_str().unwrap(), words)
    }

    /// The logged arguments, without process numbers.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.place.path("log")).unwrap();
        let digits = |line: &str| line.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        log.lines().map(digits).collect()
    }

    fn snapshots(&self) -> usize {
        fs::read_dir(self.files.path().join(".zfs/snapshot")).map_or(0, Iterator::count)
    }
}

fn ran(mut command: Command) -> common::Ran {
    command.output().unwrap().into()
}

#[test]
fn zfs_is_thawed_before_the_copy_and_left_clean() {
    let played = Played::new(&["zfs"], ZFS);
    let was = fs::read(played.source()).unwrap();
    // `--post` changes the source as soon as the snapshot exists.
    let post = r#"echo post $HIKYAKU_EXIT >> log; head -c 1M /dev/zero > "$FILES/a.img""#;
    let words = ["--pre", "echo pre >> log", "--post", post, "--verify", "--json"];
    let object = ran(played.zfs(&words)).expect(0).json();
    assert_eq!((&object["snapshot"], &object["source_consistent"]), (&"zfs".into(), &true.into()));
    assert!(fs::read(played.place.path("b.img")).unwrap() == was);
    let snapshot = "tank/files@hikyaku-";
    let log = played.log();
    let expected =
        ["pre", "list", "list", &format!("snapshot {snapshot}"), "post", &format!("destroy {snapshot}")];
    assert_eq!(log.len(), expected.len(), "{log:?}");
    assert!(log.iter().zip(expected).all(|(line, words)| line.contains(words)), "{log:?}");
    assert_eq!(played.snapshots(), 0);
}

#[test]
fn a_snapshot_goes_with_a_copy_that_fails_or_is_killed() {
    let played = Played::new(&["zfs"], ZFS);
    played.place.file("b.img", b"");
    ran(played.zfs(&[])).expect(6);
    let destroyed = played.snapshots() == 0 && played.log().last().unwrap().contains("destroy");
    assert!(destroyed, "{:?}", played.log());

    fs::remove_file(played.place.path("b.img")).unwrap();
    let mut copy = spawn(&mut played.zfs(&["--rate", "64K", "--chunk", "64K"]));
    eventually("the copy begins", || played.place.path("b.img").exists());
    assert_eq!(played.snapshots(), 1);
    copy.kill().unwrap();
    wait(&mut copy);
    eventually("the snapshot is removed", || played.snapshots() == 0);
}

#[test]
fn without_its_snapshot_nothing_is_copied() {
    let played = Played::new(&["zfs"], ZFS);
    played.place.file("broken", b"");
    ran(played.zfs(&["--post", "echo post $HIKYAKU_EXIT >&2"]))
        .expect(1)
        .on_stderr("zfs snapshot tank/files@hikyaku-")
        .on_stderr("post 1");
    assert!(!played.place.path("b.img").exists());
    // Sources that no tool knows.
    ran(played.command("pattern:1M", &[])).expect(1).on_stderr("no file or device");
}

#[test]
fn what_stays_is_named() {
    let played = Played::new(&["zfs"], ZFS);
    played.place.file("leftover", b"");
    played.place.file("held", b"");
    ran(played.zfs(&[]))
        .expect(1)
        .on_stderr("zfs destroy tank/files@hikyaku-7")
        .on_stderr("cannot remove the snapshot")
        .on_stderr("try: zfs destroy tank/files@hikyaku-");
}

#[test]
fn lvm_is_asked_for_volumes() {
    let played = Played::new(&["lvs", "lvcreate", "lvremove"], LVM);
    let image = played.place.path("image");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    File::options().write(true).open(&image).unwrap().write_all_at(b"the moment", 4096).unwrap();
    let Some(device) = Loop::over(&image) else { return };
    let told = ran(played.command(&device.0, &["--json"]));
    assert_eq!(told.expect(0).json()["snapshot"], "lvm");
    assert_eq!(&fs::read(played.place.path("b.img")).unwrap()[4096..4106], b"the moment");
    assert!(!played.place.path("snapshot").exists());
    let log = played.log();
    assert!(log[2].starts_with("lvcreate --snapshot") && log[2].ends_with("vg/data"), "{log:?}");
    assert_eq!(log[4], "lvremove --force vg/hikyaku-", "{log:?}");
}
