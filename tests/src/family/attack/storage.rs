//! One storage under two names: loop devices over one file, and a file that a server of this machine writes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::files::{Loop, can_loop, empty_file, random_file};
use crate::{Cases, Context, Disk, Output, Target, run, scratch};

const LIMIT: Duration = Duration::from_secs(30);
const BYTES: u64 = 8 << 20;

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    if can_loop() {
        cases.check("storage-two-loops-are-the-same", || two_loops(context));
        cases.check("storage-loop-beside-a-mounted-one", || beside_a_mount(context));
        cases.check("storage-two-loops-are-locked-as-one", || locked_as_one(context));
    } else {
        cases.note("no loop devices here: the cases storage-*loop* are left out");
    }
    cases.check("storage-served-file-as-source", || served_source(context));
}

fn copy(context: &Context, home: &Path, arguments: &[&str]) -> Result<Output> {
    run(context.command_in(home).arg("copy").args(arguments), LIMIT)
}

fn refused(output: Result<Output>, cause: &str) -> Result<()> {
    let output = output?.expect(6)?;
    ensure!(output.stderr.contains(cause), "{}", output.text());
    Ok(())
}

fn two_loops(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let file = dir.path().join("disk.img");
    random_file(&file, BYTES, 1)?;
    let before = fs::read(&file)?;
    let [whole, again] = [0, 0].map(|offset| Loop::attach_at(&file, offset));
    let (whole, again, tail) = (whole?, again?, Loop::attach_at(&file, 4 << 20)?);
    let [whole, again, tail] = [&whole, &again, &tail].map(|device| device.path().display().to_string());
    for (from, to, more) in [
        (&whole, &again, ["--dst-offset", "1M", "--size", "4M"]),
        (&whole, &tail, ["--src-offset", "2M", "--size", "4M"]),
        (&tail, &whole, ["--dst-offset", "1M", "--size", "1M"]),
    ] {
        let words = [&[from.as_str(), to, "--force"], &more[..]].concat();
        refused(copy(context, dir.path(), &words), "the same storage as the source")?;
    }
    ensure!(fs::read(&file)? == before, "the file was written");
    Ok(())
}

fn beside_a_mount(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let (file, point) = (dir.path().join("disk.img"), dir.path().join("mnt"));
    empty_file(&file, BYTES)?;
    fs::create_dir(&point)?;
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file), LIMIT)?.success()?;
    let (mounted, beside) = (Loop::attach_at(&file, 0)?, Loop::attach_at(&file, 0)?);
    run(Command::new("mount").arg(mounted.path()).arg(&point), LIMIT)?.success()?;
    let to = beside.path().display().to_string();
    let into = copy(context, dir.path(), &["pattern:1M", &to, "--force"]);
    let from = copy(context, dir.path(), &[&to, "null:8M"]);
    let unmounted = run(Command::new("umount").arg(&point), LIMIT)?.success();
    refused(into, "it is mounted on")?;
    let from = from?.success()?;
    ensure!(from.stderr.contains("is mounted read-write on"), "{}", from.text());
    unmounted.map(drop)
}

fn locked_as_one(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let file = dir.path().join("disk.img");
    empty_file(&file, BYTES)?;
    let (one, other) = (Loop::attach_at(&file, 0)?, Loop::attach_at(&file, 0)?);
    let [one, other] = [&one, &other].map(|device| device.path().display().to_string());
    let mut slow = context.command_in(dir.path());
    slow.args(["copy", "pattern:8M", &one, "--force", "--rate", "1MB/s"]);
    let mut slow = slow.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_secs(2));
    let second = copy(context, dir.path(), &["pattern:1M", &other, "--force"]);
    let running = slow.try_wait()?;
    slow.kill()?;
    slow.wait()?;
    ensure!(running.is_none(), "the first copy ended early: {running:?}");
    refused(second, "another program holds it exclusively")
}

fn served_source(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let file = dir.path().join("disk.img");
    random_file(&file, BYTES, 1)?;
    let before = fs::read(&file)?;
    let target = Target::serve(context, &[Disk::file(&file)], None, &[])?;
    let (from, to) = (file.display().to_string(), target.url(0).to_string());
    refused(
        copy(context, dir.path(), &[&from, &to, "--size", "4M", "--dst-offset", "2M", "--force"]),
        "another program writes to",
    )?;
    ensure!(fs::read(&file)? == before, "the file was written");
    let backup = copy(context, dir.path(), &[&from, "null:8M"])?.success()?;
    ensure!(backup.stderr.contains("may mix several moments"), "{}", backup.text());
    Ok(())
}
