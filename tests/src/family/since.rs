//! `copy --since SNAPSHOT` on file systems that share blocks: images are changed in every way the kernel offers, mostly
//! without a sync, and the updated destination must equal the present source.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use rand::rngs::StdRng;

use super::mover::scene::Mounted;
use crate::files::{empty_file, patchy_file, same_range};
use crate::{Cases, Context, program, random, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 24 << 20;
const DISK_BYTES: u64 = 400 << 20;
/// Space of the destination for a source that grows, bytes.
const ROOM: u64 = 32 << 20;

fn tool(name: &str, arguments: &[&str]) -> Result<()> {
    run(program(name)?.args(arguments), LIMIT)?.success().map(drop)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("we named it")
}

/// One change of an image by an ordinary program. Returns an upper bound of the bytes that it touched, in whole blocks.
fn change(path: &Path, rng: &mut StdRng) -> Result<u64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let size = file.metadata()?.len();
    let start = rng.random_range(0..size);
    let length = [1, 700, 4096, 70_000, 400_000][rng.random_range(0..5)].min(size - start);
    let fallocate = |mode: i32, start: u64, length: u64| -> Result<()> {
        // SAFETY: a plain system call on an open descriptor.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, start as i64, length as i64) };
        demand!(result == 0, "fallocate: {}", std::io::Error::last_os_error())
    };
    match rng.random_range(0..8) {
        0 => fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, start, length)?,
        1 => fallocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, start, length)?,
        // Shortened and extended again: the range behind the cut is zero now.
        2 if size > BYTES / 2 => {
            let less = size - length.min(20_000);
            file.set_len(less)?;
            file.set_len(size)?;
            return Ok(size - less + 8192);
        }
        3 if size + length < ROOM => {
            file.set_len(size + length)?;
            return Ok(length + 8192);
        }
        // A range of the file cloned to another place of it: shared blocks at another offset.
        4 => {
            let from = rng.random_range(0..size / 4096 / 2) * 4096;
            let to = size / 2 / 4096 * 4096 + from / 2 / 4096 * 4096;
            let range = libc::file_clone_range {
                src_fd: i64::from(file.as_raw_fd()),
                src_offset: from,
                src_length: 8192,
                dest_offset: to,
            };
            // SAFETY: a plain system call on an open descriptor, which reads the structure.
            let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
            ensure!(result == 0 || from + 8192 > to, "FICLONERANGE: {}", std::io::Error::last_os_error());
            return Ok(8192);
        }
        _ => {
            let bytes = random::bytes(rng, length as usize);
            file.write_all_at(&bytes, start)?;
        }
    }
    if rng.random_range(0..6) == 0 {
        file.sync_all()?;
    }
    Ok(length + 8192)
}

/// Updates `destination` from the state of `snapshot` to that of `image`, and compares.
fn bring_up(
    context: &Context,
    image: &Path,
    snapshot: &Path,
    destination: &Path,
    more: &[&str],
) -> Result<u64> {
    let copy = ["copy", text(image), text(destination), "--force", "--json", "--since", text(snapshot)];
    let told = context.ours(&[&copy, more].concat(), LIMIT)?.success()?.json()?;
    same_range(image, 0, destination, 0, std::fs::metadata(image)?.len())?;
    let bytes = |name: &str| told[name].as_u64().with_context(|| format!("{name} of {told}"));
    let moved = told["write"]["bytes"].as_u64().unwrap_or(u64::MAX);
    ensure!(bytes("unchanged_bytes")? + moved + bytes("zero_bytes_skipped")? == bytes("bytes")?, "{told}");
    Ok(bytes("bytes")? - bytes("unchanged_bytes")?)
}

/// Rounds of changes, each based on the last one; `clone` makes the next snapshot.
fn rounds(
    context: &Context,
    purpose: &str,
    image: &Path,
    is_exact: bool,
    clone: impl Fn(&Path) -> Result<PathBuf>,
) -> Result<()> {
    let mut rng = context.rng(purpose);
    let dir = scratch()?;
    patchy_file(image, BYTES, context.seed_for(purpose))?;
    let destination = dir.path().join("destination");
    std::fs::copy(image, &destination)?;
    OpenOptions::new().write(true).open(&destination)?.set_len(ROOM)?;
    for round in 0..context.amount(4, 60) {
        let snapshot = clone(&dir.path().join(round.to_string()))?;
        let mut most = 0;
        for _ in 0..rng.random_range(0..12) {
            most += change(image, &mut rng)?;
        }
        let more: &[&str] = if round % 2 == 0 { &["--verify"] } else { &[] };
        let changed = bring_up(context, image, &snapshot, &destination, more)
            .with_context(|| format!("round {round}, {purpose}"))?;
        ensure!(!is_exact || changed <= most, "round {round}: {changed} bytes copied, {most} were changed");
    }
    Ok(())
}

fn clones(context: &Context, purpose: &str, make: &[&str]) -> Result<()> {
    let mounted = Mounted::new(make, "loop", DISK_BYTES)?;
    let image = mounted.path().join("image");
    rounds(context, purpose, &image, true, |name| {
        let clone = mounted.path().join(name.file_name().expect("it has a name"));
        tool("cp", &["--reflink=always", text(&image), text(&clone)])?;
        Ok(clone)
    })
}

fn snapshots(context: &Context, purpose: &str, options: &str, is_exact: bool) -> Result<()> {
    let mounted = Mounted::new(&["mkfs.btrfs", "-q"], options, DISK_BYTES)?;
    let volume = mounted.path().join("volume");
    tool("btrfs", &["subvolume", "create", text(&volume)])?;
    rounds(context, purpose, &volume.join("image"), is_exact, |name| {
        let snapshot = mounted.path().join(name.file_name().expect("it has a name"));
        tool("btrfs", &["subvolume", "snapshot", "-r", text(&volume), text(&snapshot)])?;
        Ok(snapshot.join("image"))
    })
}

/// If differences cannot be determined, the copy is refused, and nothing is written.
fn refusals(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let mounted = Mounted::new(&["mkfs.xfs", "-q"], "loop", DISK_BYTES)?;
    let image = patchy_file(mounted.path().join("image"), 1 << 20, 1)?;
    let elsewhere = dir.path().join("elsewhere");
    std::fs::copy(&image, &elsewhere)?;
    let destination = empty_file(dir.path().join("destination"), 1 << 20)?;
    let refused = |from: &str, since: &str, code: i32| -> Result<()> {
        let arguments = ["copy", from, text(&destination), "--force", "--since", since];
        context.ours(&arguments, LIMIT)?.expect(code)?.says("--since hash")?;
        demand!(std::fs::read(&destination)?.iter().all(|byte| *byte == 0), "something was written")
    };
    refused(text(&image), text(&elsewhere), 6)?;
    refused(text(&elsewhere), text(&elsewhere), 6)?;
    refused(text(&image), text(mounted.path()), 2)?;
    refused("pattern:1M", text(&image), 2)?;
    refused(text(&image), "bitmap:b0", 2)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("xfs-clones", || clones(context, "since/xfs", &["mkfs.xfs", "-q"]));
    cases.check("btrfs-snapshots", || snapshots(context, "since/btrfs", "loop", true));
    // The file system cannot report differences within a compressed extent.
    cases.check("btrfs-compressed", || {
        snapshots(context, "since/btrfs-compressed", "loop,compress-force=zstd", false)
    });
    cases.check("refusals", || refusals(context));
    Ok(())
}
