//! One storage under two names: loop devices over one file, and a file that a server of this machine writes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::files::{Loop, can_loop, empty_file, random_file};
use crate::{Cases, Context, Disk, Output, Running, Target, run, scratch};

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
    output?.expect(6)?.says(cause).map(drop)
}

fn two_loops(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let file = random_file(dir.path().join("disk.img"), BYTES, 1)?;
    let before = fs::read(&file)?;
    let [whole, again] = [0, 0].map(|offset| Loop::attach_at(&file, offset));
    let (whole, again, tail) = (whole?, again?, Loop::attach_at(&file, 4 << 20)?);
    let [whole, again, tail] = [&whole, &again, &tail].map(Loop::text);
    for (from, to, more) in [
        (&whole, &again, ["--dst-offset", "1M", "--size", "4M"]),
        (&whole, &tail, ["--src-offset", "2M", "--size", "4M"]),
        (&tail, &whole, ["--dst-offset", "1M", "--size", "1M"]),
    ] {
        let words = [&[from.as_str(), to, "--force"], &more[..]].concat();
        refused(copy(context, dir.path(), &words), "the same storage as the source")?;
    }
    demand!(fs::read(&file)? == before, "the file was written")
}

fn beside_a_mount(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let (file, point) = (empty_file(dir.path().join("disk.img"), BYTES)?, dir.path().join("mnt"));
    fs::create_dir(&point)?;
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file), LIMIT)?.success()?;
    let (mounted, beside) = (Loop::attach_at(&file, 0)?, Loop::attach_at(&file, 0)?);
    run(Command::new("mount").arg(mounted.path()).arg(&point), LIMIT)?.success()?;
    let to = beside.text();
    let into = copy(context, dir.path(), &["pattern:1M", &to, "--force"]);
    let from = copy(context, dir.path(), &[&to, "null:8M"]);
    let unmounted = run(Command::new("umount").arg(&point), LIMIT)?.success();
    refused(into, "it is mounted on")?;
    from?.success()?.says("is mounted read-write on")?;
    unmounted.map(drop)
}

fn locked_as_one(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let file = empty_file(dir.path().join("disk.img"), BYTES)?;
    let (one, other) = (Loop::attach_at(&file, 0)?, Loop::attach_at(&file, 0)?);
    let mut command = context.command_in(dir.path());
    command.args(["copy", "pattern:8M", &one.text(), "--force", "--rate", "1MB/s"]);
    let mut slow = Running::start(&mut command)?;
    std::thread::sleep(Duration::from_secs(2));
    let second = copy(context, dir.path(), &["pattern:1M", &other.text(), "--force"]);
    slow.alive().context("the first copy")?;
    slow.kill();
    refused(second, "another program holds it exclusively")
}

fn served_source(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let file = random_file(dir.path().join("disk.img"), BYTES, 1)?;
    let before = fs::read(&file)?;
    let target = Target::serve(context, &[Disk::file(&file)], None, &[])?;
    let (from, to) = (file.display().to_string(), target.url(0).to_string());
    let words = [&from, &to, "--size", "4M", "--dst-offset", "2M", "--force"];
    refused(copy(context, dir.path(), &words), "another program writes to")?;
    ensure!(fs::read(&file)? == before, "the file was written");
    copy(context, dir.path(), &[&from, "null:8M"])?.success()?.says("may mix several moments").map(drop)
}
