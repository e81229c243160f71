//! Copies that are interrupted: by signals, by power cuts, by deaths of a target, at every step of the journal; then resumed
//! until they are done.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;

use super::map::Journal;
use super::scene::{Kind, LIMIT, Mounted, Scene};
use super::{Case, case};
use crate::harness::files::can_loop;
use crate::harness::{Context, Output, run};

/// A whole copy takes some hundred milliseconds, so that there is a middle to be met.
const RATE: &str = "60MB/s";
/// Slow enough for a few claims, also under strace on a busy machine, until the one that is met.
const RATE_CLAIMS: &str = "10MB/s";
/// As [`RATE`] where holes are not known and so are read.
const RATE_DENSE: &str = "4GB/s";
/// Of that middle.
const MOMENT_MS: std::ops::Range<u64> = 5..250;
/// Interruptions of one copy in the matrix.
const ROUNDS: usize = 3;

/// What cuts a copy off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Kill,
    Int,
    Term,
    /// The destination loses its power, and with it the program (`crash=`); for a LUN, its target.
    Power,
}

const HOWS: &[How] = &[How::Kill, How::Int, How::Term, How::Power];

/// One round: starts or resumes the copy and cuts it off. True if it came to its end first.
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
    // One that has already ended is no failure: moments are drawn, not measured.
    let signal = match how {
        How::Kill => Some(libc::SIGKILL),
        How::Int => Some(libc::SIGINT),
        How::Term => Some(libc::SIGTERM),
        How::Power => None,
    };
    let code = match how {
        How::Kill => None,
        How::Int => Some(130),
        How::Term => Some(143),
        How::Power if remote => {
            scene.destination.target()?.kill();
            Some(5)
        }
        How::Power => Some(137),
    };
    if let Some(signal) = signal {
        let _ = copy.signal(signal);
    }
    let output = copy.finish(LIMIT)?;
    if how == How::Power && remote {
        scene.destination.serve_again(context)?;
    }
    if output.code == Some(0) {
        return Ok(true);
    }
    // A signal may come before anybody listens to it.
    let as_expected =
        output.code.is_some() && output.code == code || output.signal.is_some() && output.signal == signal;
    ensure!(as_expected, "{how:?}: {}\n{}", output.ending(), output.stderr);
    let journal = scene.is_true().with_context(|| format!("after {how:?}"))?;
    let told = output.stderr.contains("--resume");
    ensure!(!told || matches!(code, Some(130 | 143 | 5)), "{how:?}, and said: {}", output.stderr);
    // Who ends in order tells how to go on, if it has come to copying.
    let moved =
        journal.map_or(0, |journal| journal.bytes('+')) > before.map_or(0, |journal| journal.bytes('+'));
    ensure!(told || !moved || matches!(how, How::Kill | How::Power), "{how:?} said: {}", output.stderr);
    Ok(false)
}

/// A copy that is cut off again and again, then finished.
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

/// A call of the journal's that is the last of the program, or that fails.
struct Step {
    name: &'static str,
    /// strace's word for the call, and which of them: of the first claim under way, not of the map that a copy begins with.
    call: &'static str,
    when: u32,
    /// Only calls on the new file.
    beside: bool,
    /// With which it fails.
    error: Option<&'static str>,
    /// The power of the machine with the journal is cut there, too.
    cuts: bool,
}

/// In the order of `mover::journal`. Files are opened, written and synchronised; fsync is also the directory's.
const STEPS: &[Step] = &[
    Step { name: "open", call: "openat", when: 2, beside: true, error: None, cuts: true },
    Step { name: "write", call: "write", when: 2, beside: true, error: Some("ENOSPC"), cuts: true },
    Step { name: "sync", call: "fsync", when: 3, beside: false, error: Some("EIO"), cuts: true },
    Step { name: "rename", call: "rename", when: 2, beside: false, error: Some("EACCES"), cuts: true },
    Step { name: "sync-directory", call: "fsync", when: 4, beside: false, error: Some("EIO"), cuts: true },
    Step { name: "next-open", call: "openat", when: 3, beside: true, error: None, cuts: true },
    Step { name: "first-write", call: "write", when: 1, beside: true, error: None, cuts: false },
    Step { name: "first-sync", call: "fsync", when: 1, beside: false, error: None, cuts: false },
    Step { name: "first-rename", call: "rename", when: 1, beside: false, error: None, cuts: false },
    Step { name: "remove", call: "unlink", when: 1, beside: false, error: None, cuts: false },
];

impl Step {
    /// A copy in which `what` befalls this call.
    fn play(&self, context: &Context, scene: &Scene, what: &str, resume: &[&str]) -> Result<Output> {
        let injects = format!("{}:{what}:when={}", self.call, self.when);
        // The name that the journal gets is the same whenever the same is copied.
        let journal = name_of_journal(context, scene)?;
        let beside = journal.with_extension("map.new");
        // By both names, where a link leads there.
        let directory = beside.parent().context("a directory")?.canonicalize()?;
        let behind = directory.join(beside.file_name().context("a name")?);
        let paths = if self.beside { vec![beside.as_path(), &behind] } else { Vec::new() };
        let more = [&["--rate", RATE_CLAIMS][..], resume].concat();
        let mut command = scene.traced(context, &injects, &paths, ["", ""], &more)?;
        run(&mut command, LIMIT)
    }
}

/// Where a copy's journal will be: asked by ending one before its first map is in place.
fn name_of_journal(context: &Context, scene: &Scene) -> Result<std::path::PathBuf> {
    if let Some(journal) = scene.journal()? {
        return Ok(journal.path);
    }
    let mut command = scene.traced(context, "rename:signal=KILL:when=1", &[], ["", ""], &["--force"])?;
    run(&mut command, LIMIT)?;
    let copies = scene.home().join("state/hikyaku/copies");
    let entries = std::fs::read_dir(&copies).with_context(|| format!("read {}", copies.display()))?;
    let beside = entries.filter_map(Result::ok).next().context("no file beside the journal")?.path();
    std::fs::remove_file(&beside)?;
    Ok(beside.with_extension(""))
}

/// The program dies at a step of the journal. What is there then is the claim before or the new one, and the copy goes on.
fn killed_at(context: &Context, seed: u64, step: &Step) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let output = step.play(context, &scene, "signal=KILL", &["--force"])?;
    ensure!(output.signal == Some(libc::SIGKILL), "{}\n{}", output.ending(), output.stderr);
    let journal = scene.is_true()?;
    let expected = !["first-write", "first-sync", "first-rename"].contains(&step.name);
    ensure!(journal.is_some() == expected, "a journal: {journal:?}");
    // What was left beside it is in nobody's way.
    scene.finish(context)
}

/// A step of the journal fails: the copy ends and says so, the journal that is there is true.
fn fails_at(context: &Context, seed: u64, step: &Step, error: &str) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let output = step.play(context, &scene, &format!("error={error}"), &["--force"])?.expect(1)?;
    ensure!(output.stderr.contains("journal"), "the message does not name the journal: {}", output.stderr);
    scene.finish(context)
}

/// The flush that a claim waits for is the last thing that happens, or fails; by the portable back end, whose calls can be met.
fn flush(context: &Context, seed: u64, what: &str) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let mut command = scene.traced(
        context,
        &format!("fdatasync:{what}:when=3"),
        &[&scene.destination.file],
        ["", ""],
        &["--rate", RATE_CLAIMS, "--force"],
    )?;
    let output = run(command.env("HIKYAKU_IO", "portable"), LIMIT)?;
    let killed = what.starts_with("signal");
    ensure!(output.signal.is_some() == killed, "{}\n{}", output.ending(), output.stderr);
    let output = if killed { output } else { output.expect(1)? };
    ensure!(killed || output.stderr.contains("flush"), "{}", output.stderr);
    scene.finish(context)
}

type Make = fn() -> Result<Mounted>;

/// Where journals lie. What ext4 does on its own, because programs forget to synchronise, is off.
const FILE_SYSTEMS: &[(&str, Make)] = &[
    ("ext4", || Mounted::new(&["mkfs.ext4", "-q", "-F"], "loop,noauto_da_alloc", 32 << 20)),
    ("xfs", || Mounted::xfs(320 << 20)),
];

/// The machine with the journal loses its power at a step: the image of its file system at that moment is mounted
/// elsewhere, and must hold a journal that is true.
fn machine_cut(context: &Context, seed: u64, step: &Step, make: Make) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let mounted = make()?;
    let home = scene.home();
    std::fs::create_dir_all(home.join("state"))?;
    std::fs::create_dir_all(mounted.path().join("hikyaku"))?;
    std::os::unix::fs::symlink(mounted.path().join("hikyaku"), home.join("state/hikyaku"))?;
    let output = step.play(context, &scene, "signal=KILL", &["--force"])?;
    ensure!(output.signal == Some(libc::SIGKILL), "{}\n{}", output.ending(), output.stderr);
    // Nothing that only the kernel knows gets into the copy of the image.
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

/// The target's power fails and comes back while the copy goes on: what was claimed is believed, the rest is copied again.
fn target_cut(context: &Context, seed: u64) -> Result<()> {
    let crash = format!("crash=after={}:seed={seed}", 20 + seed % 60);
    let mut scene = Scene::with_options(context, seed, Kind::File, Kind::Lun, &[&crash])?;
    let copy = scene.start(context, ["", ",timeout=20s"], &["--rate", RATE, "--force"])?;
    let mut ended = false;
    for _ in 0..500 {
        ended = scene.destination.target()?.ended();
        if ended {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(ended, "the target's power did not fail");
    scene.destination.serve_again(context)?;
    copy.finish(LIMIT)?.success()?;
    scene.is_done()
}

/// Every pair of ends, cut off at random moments.
pub(super) fn pairs(context: &Context) -> Vec<Case<'_>> {
    let kinds = || Kind::ALL.into_iter().filter(|kind| can_loop() || !kind.needs_root());
    let mut cases = Vec::new();
    for (source, destination) in kinds().flat_map(|source| kinds().map(move |to| (source, to))) {
        for again in 0..context.amount(1, 6) {
            let name = format!("cut-off-{}-to-{}-{again}", source.name(), destination.name());
            cases.push(case(context, name, move |context, seed| {
                again_and_again(context, seed, source, destination)
            }));
        }
    }
    cases
}

/// Every step of the journal.
pub(super) fn steps(context: &Context) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    for step in STEPS {
        let name = format!("killed-at-{}", step.name);
        cases.push(case(context, name, |context, seed| killed_at(context, seed, step)));
        if let Some(error) = step.error {
            let name = format!("journal-fails-at-{}", step.name);
            cases.push(case(context, name, move |context, seed| fails_at(context, seed, step, error)));
        }
        for system in FILE_SYSTEMS.iter().filter(|_| step.cuts && can_loop()) {
            let name = format!("machine-cut-{}-at-{}", system.0, step.name);
            cases.push(case(context, name, move |context, seed| machine_cut(context, seed, step, system.1)));
        }
    }
    for (name, what) in [("killed-at-flush", "signal=KILL"), ("flush-fails", "error=EIO")] {
        cases.push(case(context, name.to_owned(), move |context, seed| flush(context, seed, what)));
    }
    for again in 0..context.amount(1, 10) {
        cases.push(case(context, format!("target-loses-its-power-{again}"), target_cut));
    }
    cases
}
