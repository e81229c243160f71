//! Copies that are interrupted by signals, by power cuts, by deaths of a target, at every step of the journal; then
//! resumed until they are complete.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;

use super::map::Journal;
use super::scene::{Kind, LIMIT, Mounted, Scene};
use super::{Case, case};
use crate::files::can_loop;
use crate::{Context, Disk, Output, run, wait_until};

/// Rate at which a whole copy takes some hundred milliseconds, so that an interruption hits its middle.
const RATE: &str = "60MB/s";
/// Rate that leaves time for a few claims, also under strace on a busy machine, until the interrupted one.
const RATE_CLAIMS: &str = "10MB/s";
/// As [`RATE`] for endpoints without known holes, which are read.
const RATE_DENSE: &str = "4GB/s";
const MOMENT_MS: std::ops::Range<u64> = 5..250;
const ROUNDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Kill,
    Int,
    Term,
    /// The destination loses its power, and the program ends with it (`crash=`); for a LUN, its target ends.
    Power,
}

const HOWS: &[How] = &[How::Kill, How::Int, How::Term, How::Power];

/// One round: starts or resumes the copy and interrupts it. True if the copy completed first.
fn cut_off(context: &Context, scene: &mut Scene, how: How) -> Result<bool> {
    let before = scene.journal()?;
    let path = before.as_ref().map(|journal| journal.path.display().to_string());
    let dense = matches!(scene.source.kind, Kind::Loop | Kind::Loop4096);
    let mut more = vec!["--rate", if dense { RATE_DENSE } else { RATE }];
    match &path {
        Some(path) => more.extend(["--resume", path]),
        None => more.push("--force"),
    }
    let moment = Duration::from_millis(scene.rng.random_range(MOMENT_MS));
    let remote = scene.destination.kind == Kind::Lun;
    let cut = format!(",crash=after={}:seed={}", scene.rng.random_range(1..80), scene.rng.random::<u32>());
    let options = match how {
        How::Power if remote => ["", ",timeout=1s"],
        How::Power => ["", &cut],
        _ => ["", ""],
    };
    let mut copy = scene.start(context, options, &more)?;
    if how != How::Power || remote {
        std::thread::sleep(moment);
    }
    let (signal, code) = match how {
        How::Kill => (Some(libc::SIGKILL), None),
        How::Int => (Some(libc::SIGINT), Some(130)),
        How::Term => (Some(libc::SIGTERM), Some(143)),
        How::Power => (None, Some(if remote { 5 } else { 137 })),
    };
    match signal {
        // A copy that has already ended is no failure: moments are drawn, not measured.
        Some(signal) => drop(copy.signal(signal)),
        None if remote => scene.destination.target()?.running.kill(),
        None => {}
    }
    let output = copy.finish(LIMIT)?;
    if how == How::Power && remote {
        scene.destination.serve_again(context)?;
    }
    if output.code == Some(0) {
        return Ok(true);
    }
    // A signal may come before its handler is installed.
    let as_expected =
        output.code.is_some() && output.code == code || output.signal.is_some() && output.signal == signal;
    ensure!(as_expected, "{how:?}: {output}");
    let journal = scene.is_true().with_context(|| format!("after {how:?}"))?;
    let names_resume = output.stderr.contains("--resume");
    ensure!(!names_resume || matches!(code, Some(130 | 143 | 5)), "{how:?}, and said: {}", output.stderr);
    // A program that ends in order prints how to resume, if it has begun to copy.
    let moved =
        journal.map_or(0, |journal| journal.bytes('+')) > before.map_or(0, |journal| journal.bytes('+'));
    let may_be_silent = !moved || matches!(how, How::Kill | How::Power);
    ensure!(names_resume || may_be_silent, "{how:?} said: {}", output.stderr);
    Ok(false)
}

/// A copy that is interrupted several times, then completed.
fn again_and_again(context: &Context, seed: u64, source: Kind, destination: Kind) -> Result<()> {
    let mut scene = Scene::new(context, seed, source, destination)?;
    let mut hows = Vec::new();
    for _ in 0..ROUNDS {
        let how = HOWS[scene.rng.random_range(0..HOWS.len())];
        hows.push(how);
        if cut_off(context, &mut scene, how).with_context(|| format!("{hows:?}"))? {
            return scene.is_done();
        }
    }
    scene.finish(context).with_context(|| format!("after {hows:?}"))
}

/// A system call for the journal at which the program dies, or which fails.
struct Step {
    name: &'static str,
    /// strace's name of the call, and its number: counted for the first claim, not for the map that a copy begins with.
    call: &'static str,
    when: u32,
    beside: bool,
    error: Option<&'static str>,
    /// The machine with the journal also loses power there.
    cuts: bool,
}

/// In the order of `mover::journal`. Files are opened, written and synchronised; fsync also applies to the directory.
const STEPS: &[Step] = &[
    Step { name: "open", call: "openat", when: 2, beside: true, error: None, cuts: true },
    Step { name: "write", call: "write", when: 2, beside: true, error: Some("ENOSPC"), cuts: true },
    Step { name: "sync", call: "fsync", when: 3, beside: false, error: Some("EIO"), cuts: true },
    Step { name: "rename", call: "rename", when: 2, beside: true, error: Some("EACCES"), cuts: true },
    Step { name: "sync-directory", call: "fsync", when: 4, beside: false, error: Some("EIO"), cuts: true },
    Step { name: "next-open", call: "openat", when: 3, beside: true, error: None, cuts: true },
    Step { name: "first-write", call: "write", when: 1, beside: true, error: None, cuts: false },
    Step { name: "first-sync", call: "fsync", when: 1, beside: false, error: None, cuts: false },
    Step { name: "first-rename", call: "rename", when: 1, beside: true, error: None, cuts: false },
    Step { name: "remove", call: "unlink", when: 1, beside: false, error: None, cuts: false },
];

impl Step {
    fn play(&self, context: &Context, scene: &Scene, what: &str, resume: &[&str]) -> Result<Output> {
        let injects = format!("{}:{what}:when={}", self.call, self.when);
        // The journal's name depends only on what is copied.
        let journal = name_of_journal(context, scene)?;
        let beside = journal.with_extension("map.new");
        // Both names, in case of a symbolic link.
        let directory = beside.parent().context("a directory")?.canonicalize()?;
        let behind = directory.join(beside.file_name().context("a name")?);
        let paths = if self.beside { vec![beside.as_path(), &behind] } else { Vec::new() };
        let more = [&["--rate", RATE_CLAIMS][..], resume].concat();
        run(&mut scene.traced(context, &injects, &paths, &more)?, LIMIT)
    }
}

/// Path of a copy's journal, found by killing a copy before its first map is in place: at the
/// first fsync, for the control socket has been renamed by then.
fn name_of_journal(context: &Context, scene: &Scene) -> Result<std::path::PathBuf> {
    if let Some(journal) = scene.journal()? {
        return Ok(journal.path);
    }
    run(&mut scene.traced(context, "fsync:signal=KILL:when=1", &[], &["--force"])?, LIMIT)?;
    let copies = scene.home().join("state/hikyaku/copies");
    let entries = std::fs::read_dir(&copies).with_context(|| format!("read {}", copies.display()))?;
    let beside = entries.filter_map(Result::ok).next().context("no file beside the journal")?.path();
    std::fs::remove_file(&beside)?;
    Ok(beside.with_extension(""))
}

/// The program dies at a step of the journal. The journal then has the earlier claim or the new one, and the copy can
/// be resumed.
fn killed_at(context: &Context, seed: u64, step: &Step) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let output = step.play(context, &scene, "signal=KILL", &["--force"])?;
    ensure!(output.signal == Some(libc::SIGKILL), "{output}");
    let journal = scene.is_true()?;
    let expected = !["first-write", "first-sync", "first-rename"].contains(&step.name);
    ensure!(journal.is_some() == expected, "a journal: {journal:?}");
    // A leftover file beside the journal does not disturb.
    scene.finish(context)
}

/// A step of the journal fails: the copy ends with an error, and the existing journal is true.
fn fails_at(context: &Context, seed: u64, step: &Step, error: &str) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    step.play(context, &scene, &format!("error={error}"), &["--force"])?.expect(1)?.says("journal")?;
    scene.finish(context)
}

/// The flush before a claim is the last call, or fails; with the portable back end, whose system calls strace can
/// alter.
fn flush(context: &Context, seed: u64, what: &str) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let (injects, more) = (format!("fdatasync:{what}:when=3"), ["--rate", RATE_CLAIMS, "--force"]);
    let mut command = scene.traced(context, &injects, &[&scene.destination.file], &more)?;
    let output = run(command.env("HIKYAKU_IO", "portable"), LIMIT)?;
    let killed = what.starts_with("signal");
    ensure!(output.signal.is_some() == killed, "{output}");
    if !killed {
        output.expect(1)?.says("flush")?;
    }
    scene.finish(context)
}

type Make = fn() -> Result<Mounted>;

/// File systems of journals. ext4's own flushes, made because programs forget to synchronise, are off.
const FILE_SYSTEMS: &[(&str, Make)] = &[
    ("ext4", || Mounted::new(&["mkfs.ext4", "-q", "-F"], "loop,noauto_da_alloc", 32 << 20)),
    ("xfs", || Mounted::xfs(320 << 20)),
];

/// The machine with the journal loses power at a step: the image of its file system at that moment is mounted
/// elsewhere, and must contain a true journal.
fn machine_cut(context: &Context, seed: u64, step: &Step, make: Make) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let mounted = make()?;
    let home = scene.home();
    std::fs::create_dir_all(home.join("state"))?;
    std::fs::create_dir_all(mounted.path().join("hikyaku"))?;
    std::os::unix::fs::symlink(mounted.path().join("hikyaku"), home.join("state/hikyaku"))?;
    let output = step.play(context, &scene, "signal=KILL", &["--force"])?;
    ensure!(output.signal == Some(libc::SIGKILL), "{output}");
    // The copy of the image excludes everything that is only in the kernel's memory.
    let image = scene.dir.path().join("survived");
    std::fs::copy(mounted.image(), &image)?;
    drop(mounted);
    let survived = scene.dir.path().join("mounted");
    std::fs::create_dir(&survived)?;
    run(Command::new("mount").args(["-o", "loop"]).args([&image, &survived]), LIMIT)?.success()?;
    let result = taken_up(context, &scene, &survived);
    run(Command::new("umount").arg(&survived), LIMIT)?.success()?;
    result
}

fn taken_up(context: &Context, scene: &Scene, survived: &Path) -> Result<()> {
    let state = scene.home().join("state/hikyaku");
    std::fs::remove_file(&state)?;
    std::os::unix::fs::symlink(survived.join("hikyaku"), &state)?;
    let journal: Option<Journal> = scene.is_true()?;
    ensure!(journal.is_some(), "the journal that was there before is gone");
    scene.finish(context)
}

/// The target loses power and returns while the copy runs: claimed data stays, the rest is copied again.
fn target_cut(context: &Context, seed: u64) -> Result<()> {
    let crash = format!("crash=after={}:seed={seed}", 20 + seed % 60);
    let mut scene = Scene::new(context, seed, Kind::File, Kind::Lun)?;
    let disk = Disk::file(&scene.destination.file).option(crash);
    scene.destination.target()?.kill_and_restart(context, &[disk])?;
    let copy = scene.start(context, ["", ",timeout=20s"], &["--rate", RATE, "--force"])?;
    wait_until(Duration::from_secs(5), || Ok(scene.destination.target()?.running.ended()))
        .context("the target's power did not fail")?;
    scene.destination.serve_again(context)?;
    copy.finish(LIMIT)?.success()?;
    scene.is_done()
}

pub(super) fn pairs() -> Vec<Case> {
    let kinds = || Kind::ALL.into_iter().filter(|kind| can_loop() || !kind.needs_root());
    let mut cases = Vec::new();
    for (source, destination) in kinds().flat_map(|source| kinds().map(move |to| (source, to))) {
        for again in 0..6 {
            let name = format!("cut-off-{}-to-{}-{again}", source.name(), destination.name());
            cases.push(case(name, move |context, seed| again_and_again(context, seed, source, destination)));
        }
    }
    cases
}

pub(super) fn steps() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        let name = format!("killed-at-{}", step.name);
        cases.push(case(name, |context, seed| killed_at(context, seed, step)));
        if let Some(error) = step.error {
            let name = format!("journal-fails-at-{}", step.name);
            cases.push(case(name, move |context, seed| fails_at(context, seed, step, error)));
        }
        for system in FILE_SYSTEMS.iter().filter(|_| step.cuts && can_loop()) {
            let name = format!("machine-cut-{}-at-{}", system.0, step.name);
            cases.push(case(name, move |context, seed| machine_cut(context, seed, step, system.1)));
        }
    }
    for (name, what) in [("killed-at-flush", "signal=KILL"), ("flush-fails", "error=EIO")] {
        cases.push(case(name, move |context, seed| flush(context, seed, what)));
    }
    for again in 0..10 {
        cases.push(case(format!("target-loses-its-power-{again}"), target_cut));
    }
    cases
}
