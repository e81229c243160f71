//! Standard input and output that are files or devices: checked, locked and flushed like the same storage by its name.

mod common;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Loop, Place, Ran, dirty_pages, kill, spawn, text, until_written, wait};

const MIB: usize = 1 << 20;

/// Opens a file as `1<>` and `<` of a shell do, without truncation.
fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Runs `copy a.img -` with this standard output.
fn copy_out(place: &Place, stdout: File, more: &[&str]) -> Ran {
    let mut command = place.command();
    command.args(["copy", "a.img", "-"]).args(more).stdout(stdout).stderr(Stdio::piped());
    Ran::from(command.spawn().unwrap().wait_with_output().unwrap())
}

/// Runs `copy - DESTINATION` with this standard input.
fn copy_in(place: &Place, stdin: File, words: &[&str]) -> Ran {
    let mut command = place.command();
    Ran::from(command.args(["copy", "-"]).args(words).stdin(stdin).output().unwrap())
}

/// A swap area.
fn swap() -> Vec<u8> {
    let mut bytes = vec![3; 2 * MIB];
    bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
    bytes[1024] = 1;
    bytes
}

#[test]
fn known_content_of_standard_output_is_refused_where_it_would_be_overwritten() {
    let place = Place::with_sample(MIB);
    let source = fs::read(place.path("a.img")).unwrap();
    let held = place.file("held", &swap());
    let at = |offset: u64| {
        let mut file = open(&held);
        file.seek(SeekFrom::Start(offset)).unwrap();
        file
    };
    for (condition, stdout) in [("from its start", at(0)), ("from its middle", at(MIB as u64))] {
        let ran = copy_out(&place, stdout, &[]);
        assert_eq!(ran.code, 6, "{condition}: {}", ran.stderr);
        ran.on_stderr("it holds: swap area").on_stderr("--force");
        assert!(fs::read(&held).unwrap() == swap(), "{condition}");
    }
    let appending = OpenOptions::new().append(true).open(&held).unwrap();
    for (condition, stdout) in [("appended", appending), ("from its end", at(3 * MIB as u64))] {
        copy_out(&place, stdout, &[]).expect(0);
        assert!(fs::read(&held).unwrap().starts_with(&swap()), "{condition}");
    }
    assert!(fs::read(&held).unwrap() == [&swap()[..], &source, &source].concat());
    copy_out(&place, at(0), &["--force"]).expect(0);
    assert!(fs::read(&held).unwrap().starts_with(&source));
    // Nothing is known of these.
    let unknown = place.file("unknown", &vec![7; 2 * MIB]);
    copy_out(&place, open(&unknown), &[]).expect(0);
    copy_out(&place, File::create(place.path("new")).unwrap(), &[]).expect(0);
    assert!(fs::read(place.path("new")).unwrap() == source);
}

#[test]
fn a_dry_run_of_a_stream_refuses_what_the_copy_refuses() {
    let place = Place::with_sample(MIB);
    let source = || File::open(place.path("a.img")).unwrap();
    place.file("held", &swap());
    let long = place.file("long", &vec![7; MIB]);
    copy_in(&place, source(), &["held"]).expect(6).on_stderr("it holds: swap area");
    copy_in(&place, source(), &["held", "--dry-run"]).expect(6).on_stdout("it holds: swap area");
    copy_in(&place, source(), &["held", "--dry-run", "--force"]).expect(0);
    copy_in(&place, source(), &["iscsi://127.0.0.1:1/iqn.2026-11.example:a/0,timeout=1s", "--dry-run"])
        .expect(5);
    // What a copy would make or enlarge stays as it is.
    copy_in(&place, source(), &["long,grow,size=2M", "--dry-run"]).expect(0);
    copy_in(&place, source(), &["new,create,size=2M", "--dry-run"]).expect(0);
    assert!(fs::metadata(long).unwrap().len() == MIB as u64 && !place.path("new").exists());
}

/// A file that the shell of another user opened: its lock is visible, its content is not.
#[test]
fn standard_output_that_only_its_opener_may_open_is_written_where_nothing_is_lost() {
    let place = Place::with_sample(MIB);
    let path = place.file("held", &[]);
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(&place.path(""), 0o755);
    mode(&place.path("a.img"), 0o644);
    let program = place.path("hikyaku");
    fs::copy(env!("CARGO_BIN_EXE_hikyaku"), &program).unwrap();
    mode(&program, 0o755);
    mode(&path, 0);
    if rustix::process::geteuid().as_raw() != 0 {
        eprintln!("only root can start a program of another user: skipped");
        return;
    }
    let copy = |stdout: File, more: &[&str]| {
        let mut command = Command::new(&program);
        command.uid(65534).current_dir(place.path("")).env("XDG_STATE_HOME", place.path("state"));
        command.args(["copy", "a.img", "-"]).args(more).stdout(stdout).stderr(Stdio::piped());
        // Another thread's child may hold the new program open for writing until it starts its own.
        let mut child = command.spawn();
        while matches!(&child, Err(error) if error.kind() == ErrorKind::ExecutableFileBusy) {
            std::thread::sleep(Duration::from_millis(10));
            child = command.spawn();
        }
        Ran::from(child.unwrap().wait_with_output().unwrap())
    };
    copy(open(&path), &[]).expect(0);
    copy(open(&path), &[]).expect(6).on_stderr("what it holds cannot be read").on_stderr("--force");
    copy(open(&path), &["--force"]).expect(0);
    let mut end = open(&path);
    end.seek(SeekFrom::End(0)).unwrap();
    copy(end, &[]).expect(0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 2 * MIB as u64);
    let _serving = place.serve(&[text(&path)]);
    copy(open(&path), &["--force"]).expect(6).on_stderr("is locked by another program");
    copy(open(&path), &["--force", "--allow", "in-use"]).expect(0);
}

#[test]
fn standard_output_in_use_is_refused() {
    let place = Place::with_sample(MIB);
    let served = place.file("served", &vec![5; MIB]);
    let _serving = place.serve(&[text(&served)]);
    copy_out(&place, open(&served), &[]).expect(6).on_stderr("is locked by another program");
    assert!(fs::read(&served).unwrap() == vec![5; MIB]);
    copy_out(&place, open(&served), &["--allow", "in-use"]).expect(0);
    assert!(fs::read(&served).unwrap() == fs::read(place.path("a.img")).unwrap());

    let backing = place.file("backing", &vec![5; MIB]);
    let Some(device) = Loop::over(&backing) else { return };
    copy_out(&place, open(&backing), &[]).expect(6).on_stderr("is set up over it");
    let path = Path::new(&device.0);
    let holder = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path).unwrap();
    copy_out(&place, open(path), &[]).expect(6).on_stderr("another program holds it exclusively");
    assert!(fs::read(&backing).unwrap() == vec![5; MIB]);
    copy_out(&place, open(path), &["--allow", "in-use"]).expect(0);
    drop(holder);
    copy_out(&place, open(path), &[]).expect(0);
}

/// The lock of a copy to standard output keeps other copies off, and ends with it although the shell keeps the file open.
#[test]
fn a_copy_to_standard_output_locks_it() {
    let place = Place::with_sample(8 * MIB);
    let destination = place.file("b.img", &vec![5; 8 * MIB]);
    let stdout = open(&destination);
    let mut command = place.command();
    command.args(["copy", "a.img", "-", "--rate", "1M", "--chunk", "64K"]);
    let mut copy = command.stdout(stdout.try_clone().unwrap()).stderr(Stdio::null()).spawn().unwrap();
    common::eventually("it writes", || fs::read(&destination).unwrap()[0] != 5);
    place.run(&["copy", "a.img", "b.img"]).expect(6).on_stderr("is locked by another program");
    kill("-KILL", copy.id());
    wait(&mut copy);
    place.run(&["copy", "a.img", "b.img"]).expect(0);
}

#[test]
fn standard_input_that_a_server_writes_to_does_not_go_to_a_unit_of_this_machine() {
    let place = Place::with_sample(MIB);
    let served = place.file("served", &vec![5; MIB]);
    let serving = place.serve(&[text(&served)]);
    let unit = &serving.urls[0];
    copy_in(&place, open(&served), &[unit]).expect(6).on_stderr("may be the server of this unit");
    copy_in(&place, open(&served), &[unit, "--allow", "in-use"]).expect(0);
    // Elsewhere it is copied with a warning, as by its name.
    let ran = copy_in(&place, open(&served), &["b.img,create,size=1M", "--json"]).expect(0);
    assert_eq!(ran.json()["source_consistent"], false);
    ran.on_stderr("another program writes to standard input");
    let ran = copy_in(&place, open(&place.path("a.img")), &[unit, "--json"]).expect(0);
    assert_eq!(ran.json()["source_consistent"], true);
}

#[test]
fn what_was_copied_to_standard_output_is_durable() {
    let place = Place::with_sample(4 * MIB);
    let other = File::create(place.path("other")).unwrap();
    other.write_all_at(&vec![7; 4 * MIB], 0).unwrap();
    if dirty_pages(&other).is_none_or(|pages| pages == 0) {
        eprintln!("the kernel shows no dirty pages of this file system: skipped");
        return;
    }
    let stdout = File::create(place.path("b.img")).unwrap();
    copy_out(&place, stdout.try_clone().unwrap(), &[]).expect(0);
    assert_eq!(dirty_pages(&stdout), Some(0));
    // Of an interrupted copy the bytes are durable that its message counts.
    let stdout = File::create(place.path("c.img")).unwrap();
    let mut command = place.command();
    command.args(["copy", "a.img", "-", "--rate", "1M", "--chunk", "64K"]);
    let mut copy = command.stdout(stdout.try_clone().unwrap()).stderr(Stdio::null()).spawn().unwrap();
    common::eventually("it writes", || stdout.metadata().unwrap().len() >= 256 << 10);
    kill("-TERM", copy.id());
    assert_eq!(wait(&mut copy), 143);
    // A chunk that was on the way is not counted.
    let dirty = dirty_pages(&stdout).unwrap();
    assert!(dirty <= 16, "{dirty}");
}

/// A copy that may run into a use of its destination holds the lock that it can get.
#[test]
fn a_copy_with_in_use_allowed_keeps_others_off() {
    let place = Place::with_sample(8 * MIB);
    let file = place.file("b.img", &vec![5; 8 * MIB]);
    let device = Loop::over(&place.file("c.img", &vec![5; 8 * MIB]));
    let words = ["--allow", "in-use", "--rate", "256K", "--chunk", "64K", "--offload", "off"];
    for destination in
        [Some(text(&file)), device.as_ref().map(|device| device.0.as_str())].into_iter().flatten()
    {
        let mut copy = spawn(place.command().args(["copy", "a.img", destination]).args(words));
        common::eventually("it writes", || first_byte(destination) != 5);
        for (more, code) in [(&[][..], 6), (&["--size", "64K", "--allow", "in-use"], 0)] {
            let ran = place.run(&[&["copy", "a.img", destination, "--offload", "off"], more].concat());
            assert_eq!(ran.code, code, "{destination} {more:?}: {}", ran.stderr);
        }
        kill("-TERM", copy.id());
        assert_eq!(wait(&mut copy), 143);
        place.run(&["copy", "a.img", destination]).expect(0);
    }
}

fn first_byte(path: &str) -> u8 {
    let mut byte = [0];
    File::open(path).unwrap().read_exact_at(&mut byte, 0).unwrap();
    byte[0]
}

/// The journal of a copy says which bytes of its destination are right. Other copies to the same bytes make it wrong.
#[test]
fn a_copy_of_a_stream_removes_the_journals_of_what_it_overwrites() {
    const SIZE: u64 = 1030 << 20;
    let place = Place::new();
    let disk = File::create(place.path("a.img")).unwrap();
    disk.set_len(SIZE).unwrap();
    let mut bytes = vec![0; 16 * MIB];
    block::fill_pattern(7, 0, &mut bytes);
    disk.write_all_at(&bytes, SIZE - bytes.len() as u64).unwrap();
    place.file("small", &[9; 4096]);
    let listed =
        || place.run(&["copy", "--list", "--json"]).expect(0).json()["copies"].as_array().unwrap().len();
    for through_stdin in [true, false] {
        let mut command = place.command();
        command.args(["copy", "a.img", "b.img", "--rate", "2M", "--chunk", "256K"]);
        let mut copy = spawn(command.env("HIKYAKU_CLAIM_MS", "100"));
        until_written(&place.path("b.img"), 2 << 20, &mut copy);
        kill("-TERM", copy.id());
        assert_eq!(wait(&mut copy), 143);
        assert_eq!(listed(), 1);
        let small = || open(&place.path("small"));
        let ran = if through_stdin {
            // Beyond the range of the interrupted copy, no journal becomes wrong.
            let longer = ["b.img", "--dst-offset", "1030M"];
            open(&place.path("b.img")).set_len(SIZE + 4096).unwrap();
            copy_in(&place, small(), &longer).expect(0);
            open(&place.path("b.img")).set_len(SIZE).unwrap();
            assert_eq!(listed(), 1);
            copy_in(&place, small(), &["b.img"]).expect(0)
        } else {
            let mut command = place.command();
            command.args(["copy", "small", "-"]).stdout(open(&place.path("b.img"))).stderr(Stdio::piped());
            Ran::from(command.spawn().unwrap().wait_with_output().unwrap()).expect(0)
        };
        ran.on_stderr("removed its journal");
        assert_eq!(listed(), 0);
        fs::remove_file(place.path("b.img")).unwrap();
    }
}

/// The printed command is pasted into a shell.
#[test]
fn a_resume_command_of_a_name_with_control_characters_can_be_pasted() {
    let place = Place::new();
    let name = "a\u{1b}[31m'\n\u{202e}.img";
    let disk = File::create(place.path(name)).unwrap();
    disk.set_len(1030 << 20).unwrap();
    let mut bytes = vec![0; 8 * MIB];
    block::fill_pattern(7, 0, &mut bytes);
    disk.write_all_at(&bytes, 0).unwrap();
    let mut command = place.command();
    command.args(["copy", name, "b.img", "--rate", "2M", "--chunk", "256K"]).stderr(Stdio::piped());
    let mut copy = command.spawn().unwrap();
    until_written(&place.path("b.img"), 1, &mut copy);
    kill("-TERM", copy.id());
    let ran = Ran::from(copy.wait_with_output().unwrap()).expect(143);
    let hint = ran.stderr.split_once("try: hikyaku ").expect(&ran.stderr).1.lines().next().unwrap();
    assert!(hint.contains(r"$'a\033[31m\'\012\342\200\256.img'"), "{hint}");
    let listed = place.run(&["copy", "--list"]).expect(0);
    assert!(listed.stdout.contains(hint.split(" --resume").next().unwrap()), "{}", listed.stdout);
    let mut shell = Command::new("bash");
    let Ok(output) = shell.args(["-c", &format!("printf '%s\\0' {hint}")]).output() else { return };
    assert_eq!(String::from_utf8(output.stdout).unwrap().split('\0').nth(1), Some(name));
    place.run(&["copy", "--resume", "--rate", "1G"]).expect(0);
}
