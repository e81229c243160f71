//! Third-party copy: `hikyaku serve` copies between its own LUNs, for `copy --remote-copy` and for an initiator that
//! shares no code with it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use tempfile::TempDir;

use crate::files::{empty_file, random_file, same_file, same_range};
use crate::pdu::{Answer, Session};
use crate::tap::{Tap, Way};
use crate::{Cases, Context, Disk, Output, Running, Target, scratch, wait_until};

const BYTES: u64 = 96 << 20;
/// Low enough that a copy of `BYTES` takes several seconds on every machine.
const RATE: &str = "limit=16M/s";
const COPY_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of bytes through the host: logins, inquiries, and the first and last blocks of the destination, which
/// `copy` reads to detect file systems.
const THROUGH_HOST_MAX: usize = 2 << 20;
const NAME: &str = "iqn.2026-11.example:xcopy";

/// Two files behind one target: a random one, and an empty one.
struct Scene {
    _dir: TempDir,
    source: PathBuf,
    destination: PathBuf,
    target: Target,
}

impl Scene {
    /// `slow` limits the reads of the source to [`RATE`].
    fn new(context: &Context, purpose: &str, slow: bool) -> Result<Self> {
        let dir = scratch()?;
        let seed = context.seed_for(&format!("xcopy/{purpose}"));
        let source = random_file(dir.path().join("source.img"), BYTES, seed)?;
        let destination = empty_file(dir.path().join("destination.img"), BYTES)?;
        let from = if slow { Disk::file(&source).option(RATE) } else { Disk::file(&source) };
        let target = Target::serve(context, &[from, Disk::file(&destination)], None, &[])?;
        Ok(Self { _dir: dir, source, destination, target })
    }

    fn urls(&self) -> [String; 2] {
        [0, 1].map(|lun| self.target.url(lun).to_string())
    }

    fn copy(&self, context: &Context, extra: &[&str]) -> Result<Output> {
        let [from, to] = self.urls();
        context.ours(&[&["copy", &from, &to, "--json"], extra].concat(), COPY_LIMIT)
    }

    fn session(&self) -> Result<Session> {
        let mut session = Session::login(self.target.url(0), NAME, [0x80, 0, 0, 0, 0, 7])?;
        for lun in [0, 1] {
            session.good(lun, &[0; 6], 0, &[])?;
        }
        Ok(session)
    }
}

fn is_remote(output: &Output) -> Result<bool> {
    output.json()?["remote_copy"].as_bool().context("no remote_copy")
}

/// The whole source, or a part at other offsets: byte for byte, and at most [`THROUGH_HOST_MAX`] bytes pass through the
/// host.
fn exact(context: &Context, whole: bool) -> Result<()> {
    let scene = Scene::new(context, "exact", false)?;
    let tap = Tap::passive(scene.target.url(0).port()?)?;
    let [from, to] = [0, 1].map(|lun| scene.target.url(lun).at(&tap.portal()).to_string());
    let mut rng = context.rng("xcopy/range");
    let blocks = BYTES / 512;
    let (src, dst, size) = match whole {
        true => (0, 0, blocks),
        false => (rng.random_range(0..blocks / 4), rng.random_range(0..blocks / 4), blocks / 2 + 1),
    };
    let [src, dst, size] = [src, dst, size].map(|blocks| blocks * 512);
    let options = [("--src-offset", src), ("--dst-offset", dst), ("--size", size)];
    let options = options.map(|(name, value)| format!("{name}={value}"));
    let copy = ["copy", &from, &to, "--json", "--remote-copy", "require"];
    let arguments = [&copy, &options.each_ref().map(String::as_str)[..]].concat();
    let output = context.ours(&arguments, COPY_LIMIT)?.success()?;
    ensure!(is_remote(&output)?, "it was not the target that copied");
    let session = &output.json()?["session_bytes"];
    let told = session["received"].as_u64().unwrap_or(u64::MAX) + session["sent"].as_u64().unwrap_or(0);
    ensure!(told < 64 << 10, "{told} bytes passed through the copying session");
    let passed: usize =
        tap.conversations().iter().flat_map(|one| Way::BOTH.map(|way| one.sent(way).len())).sum();
    ensure!(passed < THROUGH_HOST_MAX, "{passed} bytes passed through the host");
    same_range(&scene.source, src, &scene.destination, dst, size)?;
    let empty = empty_file(scene.source.with_extension("empty"), BYTES)?;
    same_range(&empty, 0, &scene.destination, 0, dst)?;
    same_range(&empty, 0, &scene.destination, dst + size, BYTES - dst - size)
}

/// The path of a copy, its report about the path, and the reads of both ends for verification.
fn ways(context: &Context) -> Result<()> {
    let scene = Scene::new(context, "ways", false)?;
    let output = scene.copy(context, &["--verify"])?.success()?;
    ensure!(is_remote(&output)? && output.json()?["verified"] == true, "{}", output.stdout);
    same_file(&scene.source, &scene.destination)?;
    for extra in [&["--remote-copy", "off"][..], &["--rate", "1G"], &["--sparse", "off"]] {
        empty_file(&scene.destination, BYTES)?;
        let output = scene.copy(context, extra)?.success()?;
        ensure!(!is_remote(&output)?, "{extra:?}: the target copied");
        same_file(&scene.source, &scene.destination)?;
    }
    let [from, to] = scene.urls();
    let limited = ["copy", &from, &to, "--remote-copy", "require", "--rate", "1G"];
    context.ours(&limited, COPY_LIMIT)?.expect(1)?.says("--remote-copy require")?;
    let file = scene.source.display().to_string();
    let arguments = ["copy", &file, &to, "--force", "--remote-copy", "require"];
    // The program that serves the destination writes to the source too, so the destination might be the source.
    context.ours(&arguments, COPY_LIMIT)?.expect(6)?;
    context.ours(&[&arguments[..], &["--allow", "in-use"]].concat(), COPY_LIMIT)?.expect(1).map(drop)
}

/// A running copy of which a few megabytes are done.
fn begun(context: &Context, scene: &Scene) -> Result<Running> {
    use std::os::unix::fs::MetadataExt;
    let [from, to] = scene.urls();
    let mut command = context.command();
    command.args(["copy", &from, &format!("{to},timeout=5s"), "--remote-copy", "require"]);
    let mut copy = Running::start(&mut command)?;
    let arrived = wait_until(COPY_LIMIT, || {
        copy.alive().context("the copy, before it was disturbed")?;
        Ok(fs::metadata(&scene.destination)?.blocks() * 512 >= 20 << 20)
    });
    arrived.context("data at the destination")?;
    Ok(copy)
}

/// SIGINT aborts the target's work: nothing more is written, and the data that the message calls safe is there.
fn interrupted(context: &Context) -> Result<()> {
    let scene = Scene::new(context, "interrupted", true)?;
    let mut copy = begun(context, &scene)?;
    copy.signal(libc::SIGINT)?;
    let output = copy.finish(COPY_LIMIT)?.expect(130)?;
    let (_, rest) = output.stderr.split_once("the first ").context("nothing said of what is safe")?;
    let safe: u64 = rest.split_whitespace().next().unwrap_or_default().parse()?;
    ensure!(safe > 0, "nothing is safe: {}", output.stderr);
    same_range(&scene.source, 0, &scene.destination, 0, safe)?;
    let copy_of_it = scene.destination.with_extension("then");
    fs::copy(&scene.destination, &copy_of_it)?;
    std::thread::sleep(Duration::from_millis(500));
    same_file(&copy_of_it, &scene.destination).context("something is still written")?;
    scene.copy(context, &["--force", "--remote-copy", "require"])?.success()?;
    same_file(&scene.source, &scene.destination)
}

/// A target that dies is reported as unreachable, and the copy fails.
fn target_killed(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, "killed", true)?;
    let copy = begun(context, &scene)?;
    scene.target.running.kill();
    copy.finish(COPY_LIMIT)?.expect(5)?.says("--force").map(drop)
}

/// EXTENDED COPY (LID1) with descriptors of `ends` and segments (source, destination, blocks, two LBAs).
fn extended_copy(
    session: &mut Session,
    ends: &[[u8; 8]],
    segments: &[(u16, u16, u16, u64, u64)],
) -> Result<Answer> {
    let mut list = vec![1, 0x10, 0, 32 * ends.len() as u8, 0, 0, 0, 0];
    list.extend((28 * segments.len() as u32).to_be_bytes());
    list.extend([0; 4]);
    for naa in ends {
        list.extend([0xe4, 0, 0, 0, 1, 3, 0, 8]);
        list.extend(naa);
        list.resize(list.len() + 14, 0);
        list.extend([2, 0]);
    }
    for (source, destination, blocks, from, to) in segments {
        list.extend([2, 0, 0, 24]);
        list.extend(source.to_be_bytes());
        list.extend(destination.to_be_bytes());
        list.extend([0; 2]);
        list.extend(blocks.to_be_bytes());
        list.extend(from.to_be_bytes());
        list.extend(to.to_be_bytes());
    }
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    session.scsi(0, &cdb, 0, &list)
}

/// The NAA designator of a LUN: the first of page 83h.
fn naa(session: &mut Session, lun: u64) -> Result<[u8; 8]> {
    let page = session.good(lun, &[0x12, 1, 0x83, 0, 255, 0], 255, &[])?;
    ensure!(page[4..8] == [1, 3, 0, 8], "the first designator is no NAA: {page:02x?}");
    Ok(page[8..16].try_into()?)
}

fn ends_with(answer: &Answer, expected: [u8; 3]) -> Result<()> {
    let found = answer.sense_codes();
    demand!(found == expected, "status {:#x}, sense {found:02x?}, not {expected:02x?}", answer.status)
}

/// Lists that name a unit that is not reachable, or must not be written.
fn refusals(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, "refusals", false)?;
    let stranger = Scene::new(context, "stranger", false)?;
    let foreign = naa(&mut stranger.session()?, 1)?;
    let before = scene.destination.with_extension("before");
    fs::copy(&scene.destination, &before)?;
    let mut session = scene.session()?;
    let (source, destination) = (naa(&mut session, 0)?, naa(&mut session, 1)?);
    let answer = extended_copy(&mut session, &[source, foreign], &[(0, 1, 8, 0, 0)])?;
    ends_with(&answer, [0xa, 0x0d, 0x02]).context("a LUN of another target")?;
    let segments = [(0, 1, 8, 0, 0), (0, 1, 9, 0, BYTES / 512 - 8)];
    let answer = extended_copy(&mut session, &[source, destination], &segments)?;
    ends_with(&answer, [0xa, 0x0d, 0x01]).context("beyond the end")?;
    same_file(&before, &scene.destination).context("a list that is refused changed something")?;
    drop(session);
    let disks = [Disk::file(&scene.source), Disk { read_only: true, ..Disk::file(&scene.destination) }];
    scene.target.kill_and_restart(context, &disks)?;
    let mut session = scene.session()?;
    let ends = [naa(&mut session, 0)?, naa(&mut session, 1)?];
    let answer = extended_copy(&mut session, &ends, &[(0, 1, 8, 0, 0)])?;
    ends_with(&answer, [0xa, 0x0d, 0x01]).context("a read-only destination")?;
    same_file(&before, &scene.destination)
}

/// Within one LUN, in both directions and by any distance: the result is as if everything were read before anything is
/// written.
fn overlap(context: &Context, rounds: usize) -> Result<()> {
    let scene = Scene::new(context, "overlap", false)?;
    let mut session = scene.session()?;
    let end = naa(&mut session, 0)?;
    let mut rng = context.rng("xcopy/overlap");
    let expected_file = scene.source.with_extension("expected");
    for _ in 0..rounds {
        let mut expected = fs::read(&scene.source)?;
        let distance = 1u64 << rng.random_range(0..16u32);
        let (low, blocks) = (rng.random_range(0..4096u64), rng.random_range(1..=0xffffu16));
        let (from, to) = if rng.random() { (low, low + distance) } else { (low + distance, low) };
        let answer = extended_copy(&mut session, &[end], &[(0, 0, blocks, from, to)])?;
        ensure!(answer.status == 0, "{blocks} blocks from {from} to {to}: {:02x?}", answer.sense);
        let at = |lba: u64| lba as usize * 512;
        expected.copy_within(at(from)..at(from + u64::from(blocks)), at(to));
        // Data acknowledged by the target may not be in the file yet.
        session.good(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[])?;
        fs::write(&expected_file, expected)?;
        same_file(&expected_file, &scene.source)
            .with_context(|| format!("{blocks} blocks from {from} to {to}"))?;
    }
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("whole", || exact(context, true));
    cases.check("range", || exact(context, false));
    cases.check("ways", || ways(context));
    cases.check("refusals", || refusals(context));
    cases.check("overlap", || overlap(context, context.amount(3, 40)));
    cases.check("interrupted", || interrupted(context));
    cases.check("target-killed", || target_killed(context));
    Ok(())
}
