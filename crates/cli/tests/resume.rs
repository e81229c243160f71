//! Interrupted and resumed copies, refused journals, areas that cannot be read.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Place, kill, spawn, text, until_written, wait};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Above the size from which a copy keeps a journal.
const SIZE: u64 = 1030 * MIB;
/// Bytes of data at the end: the holes are done before the slow part begins.
const DATA: u64 = 16 * MIB;

/// With a disk image `a.img` that is mostly a hole.
fn with_disk() -> Place {
    let place = Place::new();
    let file = File::create(place.path("a.img")).unwrap();
    file.set_len(SIZE).unwrap();
    let mut bytes = vec![0; DATA as usize];
    block::fill_pattern(7, 0, &mut bytes);
    file.write_all_at(&bytes, SIZE - DATA).unwrap();
    place
}

/// Starts a copy of it to `b.img` that takes eight seconds.
fn slow_copy(place: &Place) -> Child {
    let mut command = place.command();
    let destination = format!("b.img,create,size={SIZE}");
    command.args(["copy", "a.img", &destination, "--rate", "2M", "--chunk", "256K"]);
    started(place, &mut command, MIB)
}

/// Starts a copy to `b.img` and waits until it has written so many bytes.
fn started(place: &Place, command: &mut Command, bytes: u64) -> Child {
    let mut copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until_written(&place.path("b.img"), bytes, &mut copy);
    copy
}

fn journals(place: &Place) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place.path("state/hikyaku/copies")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The only journal.
#[track_caller]
fn journal(place: &Place) -> String {
    let [journal] = &journals(place)[..] else { panic!("one journal") };
    text(journal).to_owned()
}

/// The journal of an interrupted copy to `b.img`.
fn cut_off(place: &Place) -> String {
    let mut copy = slow_copy(place);
    kill("-TERM", copy.id());
    assert_eq!(wait(&mut copy), 143);
    journal(place)
}

#[test]
fn the_printed_command_takes_a_copy_up() {
    let place = with_disk();
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let _ = fs::remove_file(place.path("b.img"));
        let mut copy = slow_copy(&place);
        kill(name, copy.id());
        assert_eq!(wait(&mut copy), code);
        let told = std::io::read_to_string(copy.stderr.take().unwrap()).unwrap();
        let command = told.lines().find_map(|line| line.split_once("try: hikyaku ")).expect(&told).1;
        let command = command.replace("--rate 2097152B/s ", "") + " --verify --json";
        let words = shlex::split(&command).expect("quoted for a shell");
        let ran = place.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).expect(0).json();
        assert!(ran["resumed_bytes"].as_u64().unwrap() > SIZE - DATA, "{ran}");
        assert!(ran["verified"] == true && ran["read"]["bytes"].as_u64().unwrap() < DATA, "{ran}");
        place.run(&["compare", "a.img", "b.img"]).expect(0);
        assert!(journals(&place).is_empty(), "nothing to resume is left");
    }
}

#[test]
fn a_killed_copy_is_taken_up_from_its_last_claim() {
    let place = with_disk();
    let mut copy = slow_copy(&place);
    kill("-KILL", copy.id());
    wait(&mut copy);
    let journal = journal(&place);
    let id = text(Path::new(&journal).file_stem().unwrap().as_ref());
    place.run(&["copy", "a.img", "b.img", "--resume", id]).expect(0);
    place.run(&["compare", "a.img", "b.img"]).expect(0);
    assert_eq!(journals(&place).len(), 0);
}

#[test]
fn an_earlier_copy_can_be_resumed_although_it_was_begun_anew() {
    let place = with_disk();
    File::create(place.path("b.img")).unwrap().set_len(SIZE).unwrap();
    let start = |data: u64| {
        let mut command = place.command();
        command.args(["copy", "a.img", "b.img", "--rate", "2M", "--chunk", "256K", "--resume", "off"]);
        command.env("HIKYAKU_CLAIM_MS", "100");
        started(&place, &mut command, data)
    };
    let mut copy = start(4 * MIB);
    kill("-KILL", copy.id());
    wait(&mut copy);
    // What is durable stays durable when the copies that begin anew are killed or interrupted.
    for name in ["-KILL", "-INT"] {
        let mut copy = start(0);
        let mut lines = BufReader::new(copy.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("of an earlier copy are durable")).expect("it is said");
        kill(name, copy.id());
        wait(&mut copy);
        assert!(line.starts_with("warning: 101"), "{line}");
        let command = line.split_once("instead: hikyaku ").expect(&line).1.to_owned();
        assert!(command.ends_with("-earlier"), "{command}");
        if name == "-INT" {
            let words = shlex::split(&command.replace("--rate 2097152B/s ", "")).unwrap();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let ran = place.run(&[&words[..], &["--json"]].concat()).expect(0).json();
            assert!(ran["resumed_bytes"].as_u64().unwrap() > SIZE - DATA, "{ran}");
        }
    }
    place.run(&["compare", "a.img", "b.img"]).expect(0);
    assert!(journals(&place).is_empty(), "both are removed: {:?}", journals(&place));
}

#[test]
fn the_names_of_journals_can_be_found() {
    let place = with_disk();
    let journal = cut_off(&place);
    let name = text(Path::new(&journal).file_stem().unwrap().as_ref());
    for words in [&["a.img", "c.img", "--resume"][..], &["a.img", "b.img", "--resume", "0123456789abcdef"]] {
        let ran = place.run(&[&["copy"], words].concat());
        assert!([1, 2].contains(&ran.code) && ran.stderr.contains("state/hikyaku/copies"), "{}", ran.stderr);
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
}

/// The hint of a refusal: the command that goes on, and before it the one that begins anew, without the program's name.
fn both_commands(stderr: &str) -> [Vec<String>; 2] {
    const ANEW: &str = " --resume off";
    let (_, anew) = stderr.split_once(": hikyaku ").expect(stderr);
    let (anew, resume) = anew.split_at(anew.find(ANEW).expect(stderr) + ANEW.len());
    let (_, resume) = resume.split_once(": hikyaku ").expect(stderr);
    [resume, anew].map(|command| shlex::split(command.trim_end()).expect("quoted for a shell"))
}

fn run(place: &Place, words: &[String]) -> common::Ran {
    place.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_same_command_goes_on() {
    let place = with_disk();
    let name = cut_off(&place);
    let id = text(Path::new(&name).file_stem().unwrap().as_ref()).to_owned();
    let destination = format!("b.img,create,size={SIZE}");
    // Another part of the same range is another copy.
    File::create(place.path("old.img")).unwrap().set_len(SIZE).unwrap();
    place
        .run(&["copy", "a.img", "b.img", "--since", "hash"])
        .expect(6)
        .on_stderr("another part (all, here since");
    let ran = place.run(&["copy", "a.img", &destination, "--dry-run"]).expect(0);
    assert!(!ran.stdout.contains("refused") && ran.stdout.contains(&id), "{}", ran.stdout);
    let ran = place.run(&["copy", "a.img", &destination]).expect(0);
    let says = format!("resuming the interrupted copy {id}; --resume off begins anew: 101");
    assert!(ran.stderr.contains(&says) && ran.stdout.contains("of it before"), "{}", ran.stderr);
    assert!(journals(&place).is_empty());
    place.run(&["compare", "a.img", "b.img"]).expect(0);
    // The copy has finished: the option says that nothing may be there.
    place.run(&["copy", "a.img", &destination]).expect(6).on_stderr("it exists");
}

#[test]
fn the_same_command_is_refused_where_something_has_changed() {
    // Under nohup the tests have it ignored, and so would the copies that they start.
    // SAFETY: the default action is no function; no other test of this program depends on the signal.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    for (file, offset, cause) in [
        ("a.img", 0, "the source has changed"),
        ("b.img", SIZE - DATA + 4096, "the destination has been written since the copy was interrupted"),
    ] {
        let place = with_disk();
        let destination = format!("b.img,create,size={SIZE}");
        let mut command = place.command();
        command.args(["copy", "a.img", &destination, "--rate", "2M", "--chunk", "64K"]);
        let mut copy = started(&place, &mut command, MIB);
        kill("-HUP", copy.id());
        assert_eq!(wait(&mut copy), 129);
        File::options().write(true).open(place.path(file)).unwrap().write_all_at(b"changed", offset).unwrap();
        let ran = place.run(&["copy", "a.img", "b.img", "--chunk", "64K", "--allow", "in-use"]).expect(6);
        assert!(ran.stderr.contains(cause), "{file}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(" UTC, now ") && ran.stderr.trim_end().ends_with(" --force"),
            "{}",
            ran.stderr
        );
        let [resume, anew] = both_commands(&ran.stderr);
        assert!(
            resume.contains(&"--resume".to_owned()) && anew.ends_with(&["--resume".into(), "off".into()])
        );
        assert!(anew.join(" ").contains("--chunk 65536 --allow in-use"), "{anew:?}");
        run(&place, &anew).expect(0);
        place.run(&["compare", "a.img", "b.img"]).expect(0);
        assert!(journals(&place).is_empty(), "{:?}", journals(&place));
    }
}

#[test]
fn a_copy_that_overwrites_an_interrupted_one_removes_its_journal() {
    let place = with_disk();
    cut_off(&place);
    place.sample("other.img", 4 << 20);
    let ran = place.run(&["copy", "other.img", "b.img", "--force"]).expect(0);
    assert!(ran.stderr.contains("this copy overwrites what an earlier one wrote"), "{}", ran.stderr);
    assert!(journals(&place).is_empty());
}

#[test]
fn interrupted_copies_are_listed_and_resumed_by_name_alone() {
    let place = with_disk();
    place.run(&["copy", "--list"]).expect(0).on_stderr("no interrupted copies");
    place.run(&["copy", "--resume"]).expect(2).on_stderr("no copy was interrupted");
    let name = cut_off(&place);
    let id = text(Path::new(&name).file_stem().unwrap().as_ref()).to_owned();
    let listed = place.run(&["copy", "--list", "--json"]).expect(0).json();
    let [listed] = &listed["copies"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert!(listed["done_bytes"].as_u64().unwrap() > SIZE - DATA && listed["bytes"] == SIZE, "{listed}");
    assert_eq!((&listed["id"], &listed["source"]), (&Value::from(id.as_str()), &"a.img".into()));
    let command =
        format!("hikyaku copy a.img 'b.img,size={SIZE}' --rate 2097152B/s --chunk 262144 --resume {id}");
    assert_eq!(listed["command"], command.as_str());
    // From another directory the command changes to the first one.
    fs::create_dir(place.path("elsewhere")).unwrap();
    let elsewhere = |words: &[&str]| {
        common::Ran::from(place.command().current_dir(place.path("elsewhere")).args(words).output().unwrap())
    };
    let told = elsewhere(&["copy", "--list"]).expect(0).stdout;
    assert!(told.contains(&format!("&& {command}")) && told.contains("a.img -> b.img"), "{told}");
    // A second journal makes the choice ambiguous; one of 31 days is removed.
    let second = name.replace(&id, "0123456789abcdef");
    fs::copy(&name, &second).unwrap();
    for words in [&["copy", "--resume"][..], &["copy", "a.img", "b.img", "--resume"]] {
        let ran = place.run(words).expect(2);
        assert!(ran.stderr.contains(&id) && ran.stderr.contains("0123456789abcdef"), "{}", ran.stderr);
    }
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(31 * 86_400);
    File::options().append(true).open(&second).unwrap().set_modified(old).unwrap();
    elsewhere(&["copy", "--list"]).expect(0).on_stderr("0123456789abcdef (a copy from a.img to b.img");
    assert_eq!(journals(&place).len(), 1);
    elsewhere(&["copy", "--resume", &id, "--chunk", "64K"]).expect(2).on_stderr("give SRC and DST");
    let ran = elsewhere(&["copy", "--resume", "--rate", "1G", "--json"]).expect(0).json();
    assert!(ran["resumed_bytes"].as_u64().unwrap() > SIZE - DATA, "{ran}");
    place.run(&["compare", "a.img", "b.img"]).expect(0);
}

#[test]
fn signals_interrupt_show_progress_or_are_ignored() {
    let place = with_disk();
    let mut command = Command::new("nohup");
    command
        .current_dir(place.path(""))
        .env("XDG_STATE_HOME", place.path("state"))
        .env("XDG_RUNTIME_DIR", place.path("run"));
    let program = place.command().get_program().to_owned();
    command
        .arg(program)
        .args(["copy", "a.img", "b.img", "--rate", "2M", "--chunk", "256K"])
        .stdin(Stdio::null());
    let mut copy = started(&place, &mut command, MIB);
    kill("-HUP", copy.id());
    let mut lines = BufReader::new(copy.stderr.take().unwrap()).lines().map(Result::unwrap);
    kill("-USR1", copy.id());
    // The first line is due after three seconds.
    let begun = std::time::Instant::now();
    let line = lines.find(|line| line.starts_with("copy ")).expect("a line of progress");
    assert!(begun.elapsed().as_secs_f64() < 1.5 && line.contains(" of 1.0 GiB"), "{line}");
    assert!(copy.try_wait().unwrap().is_none(), "SIGHUP is ignored");
    kill("-INT", copy.id());
    assert_eq!(wait(&mut copy), 130);
}

#[test]
fn a_journal_is_checked_before_it_is_believed() {
    let place = with_disk();
    let journal = cut_off(&place);
    let resume = |extra: &[&str]| place.run(&[&["copy", "a.img", "b.img", "--resume"][..], extra].concat());
    resume(&["0123456789abcdef"]).expect(1).on_stderr("removed when it has finished");
    resume(&[&journal, "--src-offset", "4K"]).expect(6).on_stderr("another range");
    resume(&[&journal, "--src-offset", "4K", "--dry-run"]).expect(6).on_stdout("another range");
    resume(&[&journal, "--dry-run"]).expect(0);
    resume(&["0123456789abcdef", "--dry-run"]).expect(1).on_stderr("removed when it has finished");
    let other = format!("other.img,create,size={SIZE}");
    for more in [&[][..], &["--dry-run"]] {
        let ran = place.run(&[&["copy", "a.img", &other, "--resume", &journal], more].concat()).expect(6);
        let belongs = format!("this journal belongs to a copy from a.img to b.img,create,size={SIZE}");
        let told = ran.stdout + &ran.stderr;
        assert!(told.contains(&belongs) && told.contains("it does not exist"), "{told}");
    }

    let whole = fs::read(&journal).unwrap();
    for place in (0..whole.len()).step_by(97) {
        let mut damaged = whole.clone();
        damaged[place] ^= 4;
        fs::write(&journal, damaged).unwrap();
        resume(&[&journal]).expect(6).on_stderr("cannot resume from");
    }
    fs::write(&journal, &whole).unwrap();

    fs::copy(place.path("b.img"), place.path("c.img")).unwrap();
    place.run(&["copy", "a.img", "c.img", "--resume", &journal]).expect(6).on_stderr("another destination");

    File::options().write(true).open(place.path("a.img")).unwrap().write_all_at(b"changed", 0).unwrap();
    resume(&[&journal]).expect(6).on_stderr("the source has changed");
    // --force resumes: the rest comes from the changed source, the start is from the old one.
    resume(&[&journal, "--force"]).expect(0);
    place.run(&["compare", "a.img", "b.img"]).expect(3);
}

#[test]
fn what_cannot_be_read_is_listed_and_tried_again() {
    let place = with_disk();
    let bad = SIZE - DATA + 5 * MIB + 1024;
    let source = format!("a.img,fault=read-error@{bad}+512");
    let destination = format!("b.img,create,size={SIZE}");
    let told = ["--verify", "--manifest", "b.man", "--json"];
    let ran = place.run(&[&["copy", &source, &destination][..], &told].concat()).expect(7);
    assert!(ran.stderr.contains(" --verify --manifest b.man --resume "), "{}", ran.stderr);
    // The hash of the extent around the area is unknown.
    assert_eq!(ran.json()["manifest"]["unknown_bytes"], MIB);
    let checked = place.run(&["compare", "b.img", "--manifest", "b.man", "--json"]).expect(7).json();
    assert_eq!((&checked["equal"], &checked["unknown_bytes"]), (&Value::Null, &MIB.into()));
    let object = ran.json();
    assert_eq!(object["unreadable"].to_string(), format!("[[{bad},512]]"));
    assert!(object["unreadable_bytes"] == 512 && object["verified"] == true, "{object}");
    assert!(ran.stderr.contains("cannot be read"), "{}", ran.stderr);
    let journal = journal(&place);
    let ran = place.run(&["compare", "a.img", "b.img"]).expect(3);
    assert!(ran.stderr.contains(&bad.to_string()) || ran.stdout.contains(&bad.to_string()), "{}", ran.stdout);
    let object = place.run(&["copy", "a.img", "b.img", "--resume", &journal, "--json"]).expect(0);
    assert_eq!(object.json()["resumed_bytes"], SIZE - 512);
    place.run(&["compare", "a.img", "b.img"]).expect(0);
    assert_eq!(journals(&place).len(), 0);
}

#[test]
fn a_full_destination_keeps_what_is_there() {
    let place = with_disk();
    let destination = format!("b.img,create,size={SIZE},fault=no-space:after=72:count=1");
    place.run(&["copy", "a.img", &destination]).expect(1).on_stderr("--resume");
    let object = place.run(&["copy", "a.img", "b.img", "--resume", &journal(&place), "--json"]).expect(0);
    assert!(object.json()["resumed_bytes"].as_u64().unwrap() > SIZE - DATA, "{}", object.stdout);
    place.run(&["compare", "a.img", "b.img"]).expect(0);
}

#[test]
fn a_power_cut_takes_nothing_that_was_claimed() {
    let place = with_disk();
    for seed in 1..=3 {
        let _ = fs::remove_file(place.path("b.img"));
        let after = 25 + 9 * seed;
        let destination = format!("b.img,create,size={SIZE},crash=after={after}:seed={seed}");
        place.run(&["copy", "a.img", &destination, "--chunk", "256K", "--rate", "20M"]);
        place.run(&["copy", "a.img", "b.img", "--resume", &journal(&place)]).expect(0);
        place.run(&["compare", "a.img", "b.img"]).expect(0);
    }
}

#[test]
fn a_source_that_is_written_meanwhile_is_told() {
    let place = with_disk();
    let mut command = place.command();
    let destination = format!("b.img,create,size={SIZE}");
    command.args(["copy", "a.img", &destination, "--rate", "6M", "--chunk", "256K", "--json"]);
    let copy = started(&place, &mut command, MIB);
    File::options().write(true).open(place.path("a.img")).unwrap().write_all_at(b"changed", 0).unwrap();
    let output = copy.wait_with_output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(object["source_changed"] == true && object["source_consistent"] == false, "{object}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("was written while it was copied"));
}

#[test]
fn two_copies_to_one_destination_are_refused() {
    let place = Place::new();
    place.sample("small.img", 4 << 20);
    File::create(place.path("lun.img")).unwrap().set_len(8 * MIB).unwrap();
    let serving = place.serve(&["lun.img"]);
    let mut command = place.command();
    let url = serving.urls[0].as_str();
    let mut first = spawn(command.args(["copy", "small.img", url, "--rate", "512K"]));
    until_written(&place.path("lun.img"), 1, &mut first);
    place.run(&["copy", "small.img", url, "--force"]).expect(6).on_stderr("another copy is writing to it");
    kill("-TERM", first.id());
    wait(&mut first);
    place.run(&["copy", "small.img", url, "--force"]).expect(0);
}

#[test]
fn a_copy_that_the_target_makes_is_journalled_and_its_destination_locked() {
    let place = with_disk();
    // Holes take no time on it.
    let slow = format!("b.img,create,size={SIZE},limit=6MB/s");
    let mut serving = place.serve(&["a.img,ro", &slow]);
    let [from, to] = [serving.urls[0].clone(), serving.urls[1].clone()];
    let words = ["copy", &from, &to, "--remote-copy", "require"];
    let mut command = place.command();
    command.args(words).arg("--json").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut first = command.spawn().unwrap();
    let mut lines = BufReader::new(first.stderr.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("\"progress\"") && !line.contains("\"bytes\":0,")).expect("it goes on");
    place.run(&[&words[..], &["--force"]].concat()).expect(6).on_stderr("another copy is writing to it");
    kill("-TERM", first.id());
    assert_eq!(wait(&mut first), 143);
    let told = lines.last().unwrap();
    assert!(told.contains("--remote-copy require --resume "), "{told}");
    // The same target without the rate limit.
    serving.signal("-TERM");
    serving.wait();
    let mut serving = place.serve_at(from.split('/').nth(2).unwrap(), &["a.img,ro", "b.img"]);
    let object =
        place.run(&[&words[..], &["--resume", &journal(&place), "--json"]].concat()).expect(0).json();
    assert!(object["remote_copy"] == true && object["claims"].as_u64() >= Some(1), "{object}");
    let resumed = object["resumed_bytes"].as_u64().unwrap();
    assert!(resumed > 0 && resumed < SIZE, "{object}");
    assert_eq!(journals(&place).len(), 0);
    serving.signal("-TERM");
    serving.wait();
    place.run(&["compare", "a.img", "b.img"]).expect(0);
}
