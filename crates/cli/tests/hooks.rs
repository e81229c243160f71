//! `copy --pre` and `--post`: the second command runs once, however the copy ends.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Child;

use common::{Place, eventually, kill, spawn, wait};

const PRE: &str = r#"echo "pre $HIKYAKU_SOURCE $HIKYAKU_DESTINATION" >> log"#;
const POST: &str = r#"echo "post $HIKYAKU_EXIT" >> log"#;
const HOOKS: [&str; 4] = ["--pre", PRE, "--post", POST];

fn log(place: &Place) -> String {
    fs::read_to_string(place.path("log")).unwrap_or_default()
}

#[track_caller]
fn wait_for(place: &Place, line: &str) {
    eventually(line, || {
        log(place).contains(&format!(
            "{line}
"
        ))
    });
}

/// A copy that takes minutes, in its own process group.
fn slow_copy(place: &Place, pre: &str) -> Child {
    let mut command = place.command();
    command.args(["copy", "pattern:64M", "mem:64M", "--rate", "256K", "--pre", pre, "--post", POST]);
    spawn(command.process_group(0))
}

#[test]
fn they_run_around_the_copy_and_speak_on_stderr() {
    let place = Place::with_sample(1 << 20);
    let words = ["copy", "a.img,ro", "b.img,create,size=1M", "--json", "--pre"];
    let pre = format!("echo noise; test ! -e b.img && {PRE}");
    let post = format!("echo more; cmp a.img b.img && {POST}");
    let ran = place.run(&[&words[..], &[&pre, "--post", &post]].concat()).expect(0);
    assert_eq!(log(&place), "pre a.img,ro b.img,create,size=1M\npost 0\n");
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    assert!(ran.stderr.contains("noise\n") && ran.stderr.contains("more\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains(r#"{"phase":"pre"}"#), "{}", ran.stderr);
}

#[test]
fn nothing_is_copied_where_pre_fails() {
    let place = Place::with_sample(1 << 20);
    let pre = format!("{PRE}; exit 9");
    let words = ["copy", "a.img", "b.img,create,size=1M", "--pre", &pre, "--post", POST];
    let ran = place.run(&words).expect(1);
    assert!(ran.stderr.contains("--pre") && ran.stderr.contains("exit status: 9"), "{}", ran.stderr);
    assert_eq!(log(&place), "pre a.img b.img,create,size=1M\npost 1\n");
    assert!(!place.path("b.img").exists());
}

#[test]
fn post_follows_a_copy_that_is_refused() {
    let place = Place::with_sample(1 << 20);
    // What --pre has changed is checked after it.
    let pre = format!("truncate -s 4K b.img; {PRE}");
    place.run(&["copy", "a.img", "b.img", "--pre", &pre, "--post", POST]).expect(6);
    assert_eq!(log(&place), "pre a.img b.img\npost 6\n");
    // `--post` alone runs too.
    place.run(&["copy", "a.img", "no/missing.img", "--post", POST]).expect(6);
    assert!(log(&place).ends_with("post 6\npost 6\n"), "{}", log(&place));
    place.run(&["copy", "a.img", "mem:1M", "--pre", PRE]).expect(0);
    assert!(log(&place).ends_with("pre a.img mem:1M\n"), "{}", log(&place));
}

#[test]
fn a_refusal_costs_no_freeze() {
    let place = Place::with_sample(1 << 20);
    place.file("small.img", &[0; 4096]);
    place.file("there.img", &vec![0; 1 << 20]);
    let mut swap = vec![0; 1 << 20];
    swap[1024] = 1;
    swap[4086..4096].copy_from_slice(b"SWAPSPACE2");
    place.file("swap.img", &swap);
    let mut serving = place.serve(&["there.img"]);
    let gone = serving.urls[0].clone();
    serving.signal("-TERM");
    serving.wait();
    for (words, code) in [
        (["none.img", "b.img"], 1),
        (["a.img", "no/b.img"], 6),
        (["a.img", "small.img"], 6),
        (["a.img", "swap.img"], 6),
        (["a.img", "there.img,create"], 6),
        (["a.img", "b.img,create,size=4K"], 6),
        (["a.img", "a.img"], 6),
        (["-", "b.img"], 6),
    ] {
        place.run(&[&["copy"], &words[..], &HOOKS[..]].concat()).expect(code);
        assert_eq!(log(&place), "", "{words:?}");
        assert!(!place.path("b.img").exists(), "{words:?}");
    }
    // What --pre may make: a device, and a target.
    for (words, code) in
        [(["/dev/hikyaku-none", "b.img"], 1), (["a.img", "/dev/hikyaku-none"], 6), (["a.img", &gone], 5)]
    {
        fs::remove_file(place.path("log")).unwrap_or_default();
        place.run(&[&["copy"], &words[..], &HOOKS[..]].concat()).expect(code);
        assert!(log(&place).ends_with(&format!("post {code}\n")), "{words:?}");
    }
}

#[test]
fn a_thaw_that_fails_is_a_failure() {
    let place = Place::with_sample(1 << 20);
    place.run(&["copy", "a.img", "mem:1M", "--post", "exit 3"]).expect(1).on_stderr("may still be frozen");
    // The failure of the copy is reported first.
    place
        .run(&["copy", "a.img", "no/missing.img", "--post", "exit 3"])
        .expect(6)
        .on_stderr("may still be frozen");
}

#[test]
fn a_dry_run_runs_neither() {
    let place = Place::with_sample(1 << 20);
    place.run(&[&["copy", "a.img", "mem:1M", "--dry-run"], &HOOKS[..]].concat()).expect(0);
    assert_eq!(log(&place), "");
}

#[test]
fn a_signal_thaws_before_the_copy_ends() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let place = Place::new();
        let mut copy = slow_copy(&place, PRE);
        wait_for(&place, "pre pattern:64M mem:64M");
        kill(signal, copy.id());
        assert_eq!(wait(&mut copy), code);
        // A signal before the copy begins ends the process immediately, and the guardian follows.
        let told = [code, 137].iter().any(|code| log(&place).contains(&format!("post {code}\n")));
        if !told {
            wait_for(&place, "post 137");
        }
        assert_eq!(log(&place).matches("post").count(), 1, "{}", log(&place));
    }
}

/// Waits for the thaw of a killed copy, the only one.
#[track_caller]
fn thawed_once(place: &Place) {
    wait_for(place, "post 137");
    assert_eq!(log(place).matches("post").count(), 1, "{}", log(place));
}

#[test]
fn a_kill_is_no_way_around_the_thaw() {
    // Kills the process alone, then its whole group.
    for group in [false, true] {
        let place = Place::new();
        let mut copy = slow_copy(&place, PRE);
        wait_for(&place, "pre pattern:64M mem:64M");
        kill("-KILL", if group { -i64::from(copy.id()) } else { copy.id().into() });
        wait(&mut copy);
        thawed_once(&place);
    }
}

#[test]
fn the_thaw_waits_for_a_freeze_that_is_still_running() {
    let place = Place::new();
    let pre = "echo begun >> log; until test -e go; do sleep 0.02; done; echo frozen >> log";
    let mut copy = slow_copy(&place, pre);
    wait_for(&place, "begun");
    kill("-KILL", copy.id());
    wait(&mut copy);
    assert_eq!(log(&place), "begun\n");
    place.file("go", b"");
    wait_for(&place, "post 137");
    assert_eq!(log(&place), "begun\nfrozen\npost 137\n");
}

#[test]
fn the_end_of_a_service_is_survived() {
    let place = Place::new();
    let mut copy = slow_copy(&place, &format!("echo $PPID > guardian; {PRE}"));
    wait_for(&place, "pre pattern:64M mem:64M");
    // All processes of a service get the signal, here the guardian first.
    kill("-TERM", fs::read_to_string(place.path("guardian")).unwrap().trim());
    kill("-KILL", copy.id());
    wait(&mut copy);
    thawed_once(&place);
}
