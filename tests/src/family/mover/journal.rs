//! Journals that must not be trusted: damaged, of another copy, of storage that has changed or was exchanged; and two
//! concurrent copies. Each is refused (exit code 6), and not a byte is written.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;

use super::devices::moving;
use super::scene::{Kind, LIMIT, Scene};
use super::{Case, case, image};
use crate::files::{can_loop, copy_sparse};
use crate::{Context, run};

fn half(context: &Context, seed: u64, source: Kind, destination: Kind) -> Result<(Scene, String)> {
    let scene = Scene::new(context, seed, source, destination)?;
    // Chunk length of the scene.
    let chunks = image::pieces(&scene.source.file, 256 << 10)?;
    let fault = format!(",fault=write-error:after={}", chunks / 2);
    scene.run(context, ["", &fault], &["--force"])?.expect(1)?;
    scene.is_true()?;
    let journal = scene.journal_text()?;
    Ok((scene, journal))
}

/// Demands a refusal with its reason, and an unchanged destination and journal.
fn refused(context: &Context, scene: &Scene, journal: &str, destination: &Path, reason: &str) -> Result<()> {
    let copy = scene.dir.path().join("was");
    copy_sparse(destination, &copy)?;
    let was = fs::read(journal)?;
    scene.run(context, ["", ""], &["--resume", journal])?.expect(6)?.says(reason)?;
    ensure!(fs::read(journal)? == was, "the journal was written");
    image::same(&copy, destination).context("a copy that is refused wrote something")
}

/// One changed bit or byte, or a truncation, anywhere.
fn damaged(context: &Context, seed: u64, places: usize) -> Result<()> {
    let (mut scene, journal) = half(context, seed, Kind::File, Kind::File)?;
    let whole = fs::read(&journal)?;
    let was = fs::metadata(&scene.destination.file)?.modified()?;
    for _ in 0..places {
        let mut bytes = whole.clone();
        let place = scene.rng.random_range(0..bytes.len());
        let how = scene.rng.random_range(0..4);
        match how {
            0 => bytes.truncate(place),
            1 => bytes[place] ^= 1 << scene.rng.random_range(0..8),
            2 => bytes.insert(place, b'\n'),
            _ => drop(bytes.remove(place)),
        }
        if bytes == whole {
            continue;
        }
        fs::write(&journal, &bytes)?;
        let output = scene.run(context, ["", ""], &["--resume", &journal])?;
        output.expect(6).with_context(|| format!("way {how} at {place}"))?.says("cannot resume from")?;
    }
    ensure!(fs::metadata(&scene.destination.file)?.modified()? == was, "something was written");
    fs::write(&journal, &whole)?;
    scene.finish(context)
}

/// Another file, device or LUN under the same name, or changed content.
fn exchanged(context: &Context, seed: u64, kind: Kind, source: bool) -> Result<()> {
    let (from, to) = if source { (kind, Kind::File) } else { (Kind::File, kind) };
    let (mut scene, journal) = half(context, seed, from, to)?;
    let other = scene.dir.path().join("other");
    image::make(&other, &mut scene.rng, 4)?;
    let end = scene.end(source);
    match kind {
        Kind::Lun => end.serve_stranger(context, &other)?,
        Kind::Loop => {
            let device = end.text.clone();
            run(Command::new("losetup").args(["--detach", &device]), LIMIT)?.success()?;
            run(Command::new("losetup").arg(&device).arg(&other), LIMIT)?.success()?;
        }
        _ => fs::rename(&other, &end.file)?,
    }
    let watched = if source || kind == Kind::File { scene.destination.file.clone() } else { other };
    let word = if source { "another source" } else { "another destination" };
    refused(context, &scene, &journal, &watched, word)
}

/// Another program writes to the source between the two copies.
fn changed_between(context: &Context, seed: u64, kind: Kind) -> Result<()> {
    let (mut scene, journal) = half(context, seed, kind, Kind::File)?;
    write_to_source(&mut scene)?;
    refused(context, &scene, &journal, &scene.destination.file, "the source has changed")
}

fn write_to_source(scene: &mut Scene) -> Result<()> {
    let place = scene.rng.random_range(0..image::BYTES / 4096) * 4096;
    let mut command = Command::new("dd");
    command.arg("if=/dev/urandom").arg(format!("of={}", scene.source.text));
    command.args(["bs=4096", "count=1", "conv=notrunc,fsync", "status=none"]);
    run(command.arg(format!("seek={}", place / 4096)), LIMIT)?.success().map(drop)
}

/// Another program writes to the source during the copy, which reports it.
fn changed_under(context: &Context, seed: u64, kind: Kind) -> Result<()> {
    let mut scene = Scene::new(context, seed, kind, Kind::File)?;
    let rate = if kind == Kind::Loop { "1GB/s" } else { "8MB/s" };
    let mut copy = scene.start(context, ["", ""], &["--rate", rate, "--force", "--json"])?;
    moving(&scene, &mut copy)?;
    // The copy is stopped, so that it cannot complete before the write.
    copy.signal(libc::SIGSTOP)?;
    write_to_source(&mut scene)?;
    copy.signal(libc::SIGCONT)?;
    let told = copy.finish(LIMIT)?.success()?.says("was written while it was copied")?.json()?;
    demand!(told["source_changed"] == true && told["source_consistent"] == false, "{told}")
}

/// A second copy to a destination that another copy writes to is refused, with the first one's journal too; the first
/// copy is not disturbed.
fn two_movers(context: &Context, seed: u64, kind: Kind) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, kind)?;
    // The first copy is ended long before its completion.
    let mut first = scene.start(context, ["", ""], &["--rate", "1MB/s", "--force"])?;
    moving(&scene, &mut first)?;
    let journal = scene.journal_text().context("the first has ended")?;
    for more in [["--force", "--quiet"], ["--resume", &journal]] {
        scene.run(context, ["", ""], &more)?.expect(6).with_context(|| format!("{more:?}"))?;
    }
    first.signal(libc::SIGTERM)?;
    first.finish(LIMIT)?.expect(143)?;
    scene.finish(context)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for again in 0..40 {
        let name = format!("journal-damaged-{again}");
        cases.push(case(name, |context, seed| damaged(context, seed, 25)));
    }
    let due = |kind: &Kind| can_loop() || !kind.needs_root();
    for kind in [Kind::File, Kind::Loop, Kind::Lun].into_iter().filter(due) {
        for source in [true, false] {
            let name = format!("exchanged-{}-{}", if source { "source" } else { "destination" }, kind.name());
            cases.push(case(name, move |context, seed| exchanged(context, seed, kind, source)));
        }
    }
    for kind in [Kind::File, Kind::Loop].into_iter().filter(due) {
        let name = format!("changed-between-{}", kind.name());
        cases.push(case(name, move |context, seed| changed_between(context, seed, kind)));
        let name = format!("changed-under-{}", kind.name());
        cases.push(case(name, move |context, seed| changed_under(context, seed, kind)));
    }
    for kind in [Kind::File, Kind::Loop, Kind::Lun, Kind::Nbd].into_iter().filter(due) {
        let name = format!("two-movers-{}", kind.name());
        cases.push(case(name, move |context, seed| two_movers(context, seed, kind)));
    }
    cases
}
