//! Storage that vanishes, shrinks or is exchanged during a copy. Nothing is written to a stranger (other storage under
//! the same name), and everything claimed in the journal is there.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::scene::{Guard, Kind, LIMIT, Scene};
use super::{Case, case, image};
use crate::files::{can_loop, copy_sparse};
use crate::nbd::{At, Nbd};
use crate::{Context, Output, Running, run, wait_until};

/// Low enough that most of the copy remains after its first claim.
const RATE: &str = "8MB/s";

pub(super) fn moving(scene: &Scene, copy: &mut Running) -> Result<()> {
    let claims = wait_until(Duration::from_secs(10), || {
        copy.alive().context("the copy, before it claimed anything")?;
        Ok(scene.journal()?.is_some_and(|journal| journal.bytes('+') > 0))
    });
    claims.context("nothing is claimed")
}

fn stranger(scene: &mut Scene) -> Result<(PathBuf, PathBuf)> {
    let [file, was] = ["stranger", "stranger-was"].map(|name| scene.dir.path().join(name));
    image::make(&file, &mut scene.rng, 6)?;
    copy_sparse(&file, &was)?;
    Ok((file, was))
}

fn failed(output: Output, code: i32, says: &[&str]) -> Result<Output> {
    output.expect(code)?.says_all(says)
}

/// The URL refers to another disk from some moment on.
fn lun_swapped(context: &Context, seed: u64, source: bool) -> Result<()> {
    let kinds = if source { [Kind::Lun, Kind::File] } else { [Kind::File, Kind::Lun] };
    let mut scene = Scene::new(context, seed, kinds[0], kinds[1])?;
    let (file, was) = stranger(&mut scene)?;
    let options = if source { [",timeout=20s", ""] } else { ["", ",timeout=20s"] };
    let mut copy = scene.start(context, options, &["--rate", RATE, "--force"])?;
    moving(&scene, &mut copy)?;
    scene.end(source).serve_stranger(context, &file)?;
    failed(copy.finish(LIMIT)?, 1, &["another"])?;
    image::same(&was, &file).context("the stranger was written")?;
    scene.is_true()?;
    scene.end(source).serve_again(context)
}

/// A copy to an NBD server that is killed after the first claim, and the server's address.
fn to_killed_nbd(context: &Context, scene: &mut Scene, options: &str) -> Result<(At, Running)> {
    let at = At::port()?;
    let mut server = Nbd::qemu(at.clone(), &scene.destination.file, "raw", &["--discard=unmap"])?;
    scene.destination.text = server.url("disk");
    let mut copy = scene.start(context, ["", options], &["--rate", RATE, "--force"])?;
    moving(scene, &mut copy)?;
    server.kill();
    Ok((at, copy))
}

fn nbd_swapped(context: &Context, seed: u64) -> Result<()> {
    let mut scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let (file, was) = stranger(&mut scene)?;
    for path in [&file, &was] {
        OpenOptions::new().write(true).open(path)?.set_len(image::BYTES + (1 << 20))?;
    }
    let (at, copy) = to_killed_nbd(context, &mut scene, ",timeout=20s")?;
    let _server = Nbd::qemu(at, &file, "raw", &["--discard=unmap"])?;
    failed(copy.finish(LIMIT)?, 1, &["another export"])?;
    image::same(&was, &file).context("the stranger was written")?;
    scene.is_true().map(drop)
}

/// The export vanishes: exit code 5. When it is back, the copy can be resumed.
fn nbd_vanishes(context: &Context, seed: u64) -> Result<()> {
    let mut scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let (at, copy) = to_killed_nbd(context, &mut scene, ",timeout=1s")?;
    failed(copy.finish(LIMIT)?, 5, &["--resume"])?;
    scene.is_true()?;
    let server = Nbd::qemu(at, &scene.destination.file, "raw", &["--discard=unmap"])?;
    scene.destination.guard = Guard::Nbd { _server: server };
    // The earlier endpoint had a timeout, which is no part of the identity.
    scene.run(context, ["", ""], &["--resume", &scene.journal_text()?])?.success()?;
    scene.is_done()
}

/// The kernel changes the backing file of the source's device (LOOP_CHANGE_FD), which a new disk sequence number shows.
fn source_device_swapped(context: &Context, seed: u64) -> Result<()> {
    const LOOP_CHANGE_FD: libc::c_ulong = 0x4C06;
    let mut scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let (file, _) = stranger(&mut scene)?;
    let mut command = Command::new("losetup");
    command.args(["--find", "--show", "--read-only"]).arg(&scene.source.file);
    scene.source.text = run(&mut command, LIMIT)?.success()?.stdout.trim().to_owned();
    let result = (|| {
        let mut copy = scene.start(context, ["", ""], &["--rate", "600MB/s", "--force"])?;
        moving(&scene, &mut copy)?;
        let (device, other) = (File::open(&scene.source.text)?, File::open(&file)?);
        // SAFETY: the call takes a descriptor by value and touches no memory of this process.
        let changed = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CHANGE_FD, other.as_raw_fd()) };
        ensure!(changed == 0, "LOOP_CHANGE_FD: {}", std::io::Error::last_os_error());
        failed(copy.finish(LIMIT)?, 1, &["another disk"]).map(drop)
    })();
    run(Command::new("losetup").args(["--detach", &scene.source.text]), LIMIT)?;
    result
}

/// The end of the source is missing when it is read. The copy of a device continues without it and lists it; the copy
/// of a file that has shrunk fails.
fn source_shrunk(context: &Context, seed: u64, kind: Kind) -> Result<()> {
    const GONE: u64 = 64 << 10;
    let scene = Scene::new(context, seed, kind, Kind::File)?;
    let keep = scene.dir.path().join("keep");
    copy_sparse(&scene.source.file, &keep)?;
    let rate = if kind == Kind::Loop { "800MB/s" } else { RATE };
    let mut copy = scene.start(context, ["", ""], &["--rate", rate, "--force", "--json"])?;
    moving(&scene, &mut copy)?;
    let places = [(image::BYTES - GONE, GONE)];
    OpenOptions::new().write(true).open(&scene.source.file)?.set_len(places[0].0)?;
    let output = copy.finish(LIMIT)?;
    if kind == Kind::File {
        failed(output, 1, &["the storage has shrunk"])?;
        let finished = scene.journal()?.context("a journal")?.finished();
        return image::of_both(&keep, &scene.before, &scene.destination.file, &finished);
    }
    let output = failed(output, 7, &["cannot be read", "--resume"])?;
    ensure!(output.json()?["unreadable"] == json!([[places[0].0, GONE]]), "{}", output.stdout);
    image::same_but(&keep, &scene.before, &scene.destination.file, &places)
}

/// A device that is detached while it is written to persists until the copy has ended.
fn destination_detached(context: &Context, seed: u64) -> Result<()> {
    let scene = Scene::new(context, seed, Kind::File, Kind::Loop)?;
    let mut copy = scene.start(context, ["", ""], &["--rate", RATE, "--force"])?;
    moving(&scene, &mut copy)?;
    run(Command::new("losetup").args(["--detach", &scene.destination.text]), LIMIT)?.success()?;
    copy.finish(LIMIT)?.success()?;
    scene.is_done()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("swapped-lun-source", |context, seed| lun_swapped(context, seed, true)),
        case("swapped-lun-destination", |context, seed| lun_swapped(context, seed, false)),
        case("swapped-nbd-destination", nbd_swapped),
        case("vanished-nbd-destination", nbd_vanishes),
        case("shrunk-file-source", |context, seed| source_shrunk(context, seed, Kind::File)),
    ];
    if can_loop() {
        cases.extend([
            case("swapped-device-source", source_device_swapped),
            case("shrunk-device-source", |context, seed| source_shrunk(context, seed, Kind::Loop)),
            case("detached-device-destination", destination_detached),
        ]);
    }
    cases
}
