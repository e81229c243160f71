//! Signals and sudden death: the survivor's actions, exit code and messages.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::FULL_ONLY;
use super::cli_contract::is_whole_error;
use crate::files::{empty_file, random_file, same_file};
use crate::{Cases, Context, Disk, Output, Running, Target, scratch, wait_until};

const BYTES: u64 = 128 << 20;
/// Low enough that a copy of `BYTES` takes several seconds on every machine.
const RATE: &str = "20MB/s";
const MOVING_LIMIT: Duration = Duration::from_secs(15);
const COPY_LIMIT: Duration = Duration::from_secs(60);
/// The endpoint's own timeout in these cases, and the tolerance.
const ENDPOINT_TIMEOUT_S: u64 = 5;
const TIMEOUT_SLACK_S: f64 = 10.0;
/// The target's `--drain-timeout`, and the tolerance.
const DRAIN_S: u64 = 3;
const DRAIN_SLACK_S: f64 = 7.0;

struct Scene {
    _dir: TempDir,
    source: PathBuf,
    stored: PathBuf,
    target: Target,
}

impl Scene {
    fn new(context: &Context, purpose: &str) -> Result<Self> {
        let dir = scratch()?;
        let seed = context.seed_for(&format!("kill/{purpose}"));
        let source = random_file(dir.path().join("source.img"), BYTES, seed)?;
        let stored = empty_file(dir.path().join("stored.img"), BYTES)?;
        let drain = format!("--drain-timeout={DRAIN_S}s");
        let target = Target::serve(context, &[Disk::file(&stored)], None, &[&drain])?;
        Ok(Self { _dir: dir, source, stored, target })
    }

    fn destination(&self) -> String {
        format!("{},timeout={ENDPOINT_TIMEOUT_S}s", self.target.url(0))
    }

    fn start_copy(&self, context: &Context, extra: &[&str]) -> Result<Running> {
        let mut command = context.command();
        command.arg("copy").arg(&self.source).arg(self.destination());
        command.args(["--force", "--rate", RATE]).args(extra);
        let mut copy = Running::start(&mut command)?;
        wait_moving(&self.stored, &mut copy)?;
        Ok(copy)
    }

    fn whole_copy(&self, context: &Context) -> Result<()> {
        let source = self.source.display().to_string();
        let copy = ["copy", "--verify", "--force", &source, &self.destination()];
        context.ours(&copy, COPY_LIMIT)?.success().context("a new copy after it")?;
        same_file(&self.source, &self.stored)
    }

    /// A whole copy succeeds, and the target still runs.
    fn serves_on(&mut self, context: &Context) -> Result<()> {
        self.whole_copy(context).with_context(|| format!("--- log of the target\n{}", self.target.log()))?;
        self.target.running.alive()
    }
}

/// Waits until a sparse file has blocks; the copy must still be running then.
pub(super) fn wait_moving(stored: &Path, copy: &mut Running) -> Result<()> {
    let moves = wait_until(MOVING_LIMIT, || {
        copy.alive().context("the copy, before it was disturbed")?;
        // A few megabytes, so that the copy is past its preparation.
        Ok(std::fs::metadata(stored)?.blocks() * 512 > 4 << 20)
    });
    moves.context("data at the target")
}

fn failed_copy(copy: Running, code: i32) -> Result<Output> {
    let started = Instant::now();
    let output = copy.finish(COPY_LIMIT)?.expect(code)?;
    let (took, limit) = (started.elapsed().as_secs_f64(), ENDPOINT_TIMEOUT_S as f64 + TIMEOUT_SLACK_S);
    ensure!(took <= limit, "it took {took:.1} s to notice, limit {limit} s");
    Ok(output)
}

fn names_a_way_out(Output { stderr, .. }: &Output, object: &str) -> Result<()> {
    let text = stderr.to_lowercase();
    ensure!(stderr.contains(object), "the message does not name {object}:\n{stderr}");
    let words = ["try", "check", "resume", "start", "again", "run"];
    demand!(words.iter().any(|word| text.contains(word)), "the message names nothing to do:\n{stderr}")
}

fn target_killed(context: &Context, extra: &[&str]) -> Result<Output> {
    let mut scene = Scene::new(context, "target-killed")?;
    let copy = scene.start_copy(context, extra)?;
    scene.target.running.signal(libc::SIGKILL)?;
    let output = failed_copy(copy, 5)?;
    if extra.is_empty() {
        names_a_way_out(&output, &scene.target.url(0).portal)?;
    }
    Ok(output)
}

fn copy_killed(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, "copy-killed")?;
    for _ in 0..3 {
        let mut copy = scene.start_copy(context, &[])?;
        copy.signal(libc::SIGKILL)?;
        copy.finish(COPY_LIMIT)?;
        // The next round must detect its own data.
        empty_file(&scene.stored, BYTES)?;
    }
    scene.serves_on(context)
}

fn target_drains(context: &Context, busy: bool) -> Result<()> {
    let scene = Scene::new(context, "drain")?;
    let copy = if busy { Some(scene.start_copy(context, &[])?) } else { None };
    let output = scene.target.terminate(Duration::from_secs(60))?.success()?;
    let limit = DRAIN_S as f64 + DRAIN_SLACK_S + MOVING_LIMIT.as_secs_f64();
    ensure!(output.seconds <= limit, "the drain took too long, {:.1} s of life: {output}", output.seconds);
    if let Some(copy) = copy {
        let output = copy.finish(COPY_LIMIT)?;
        ensure!(output.code.is_some_and(|code| code != 0), "the copy says {output}");
    }
    Ok(())
}

fn second_sigterm(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let stored = empty_file(dir.path().join("stored.img"), BYTES)?;
    let mut target = Target::serve(context, &[Disk::file(&stored)], None, &["--drain-timeout=50s"])?;
    target.running.signal(libc::SIGTERM)?;
    std::thread::sleep(Duration::from_millis(200));
    // An idle target may already have ended.
    let _ = target.running.signal(libc::SIGTERM);
    target.running.finish(Duration::from_secs(20))?.success().map(drop)
}

fn copy_interrupted(context: &Context, signal: i32, code: i32) -> Result<()> {
    let mut scene = Scene::new(context, "interrupted")?;
    let mut copy = scene.start_copy(context, &[])?;
    copy.signal(signal)?;
    failed_copy(copy, code)?;
    scene.serves_on(context)
}

/// A copy long enough for a journal, interrupted, then resumed by the command it prints.
fn resumed(context: &Context, signal: i32, code: Option<i32>) -> Result<()> {
    const LARGE: u64 = 1100 << 20;
    // Slow enough that the copy is far from its end when the signal comes.
    const LARGE_RATE: &str = "60MB/s";
    let dir = scratch()?;
    let source = random_file(dir.path().join("source.img"), LARGE, context.seed_for("kill/resume"))?;
    let stored = empty_file(dir.path().join("stored.img"), LARGE)?;
    let mut served = context.serve(&[Disk::file(&stored)], None)?;
    let url = served.url(0).to_string();
    let mut command = context.command();
    command.arg("copy").arg(&source).arg(&url).args(["--rate", LARGE_RATE]);
    let mut copy = Running::start(&mut command)?;
    wait_moving(&stored, &mut copy)?;
    std::thread::sleep(Duration::from_millis(1500));
    copy.signal(signal)?;
    let output = copy.finish(COPY_LIMIT)?;
    ensure!(output.code == code, "the copy says {output}");
    let result = (|| {
        let id = match code {
            Some(_) => resume_id(&output.stderr)?,
            None => newest_journal(&context.home.path().join("state/hikyaku/copies"))?,
        };
        let source_text = source.display().to_string();
        let output = context.ours(&["copy", &source_text, &url, "--resume", &id], COPY_LIMIT)?.success()?;
        same_file(&source, &stored).with_context(|| format!("resumed with {id}: {}", output.stderr))
    })();
    served.blame(result)
}

fn resume_id(text: &str) -> Result<String> {
    let rest =
        text.split("--resume").nth(1).with_context(|| format!("no command that resumes in:\n{text}"))?;
    let id =
        rest.trim_start_matches([' ', '=']).split([' ', '\n', '`', '\'', '"']).next().unwrap_or_default();
    ensure!(!id.is_empty(), "--resume names nothing in:\n{text}");
    Ok(id.to_owned())
}

fn newest_journal(dir: &Path) -> Result<String> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    let newest = entries
        .filter_map(Result::ok)
        .max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok())
        .with_context(|| format!("no journal in {}", dir.display()))?;
    Ok(newest.path().display().to_string())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    cases.check("target-killed-copy-exits-5", || target_killed(context, &[]).map(|_| ()));
    cases.check("target-killed-json-error", || {
        let output = target_killed(context, &["--json"])?;
        is_whole_error(&output)
    });
    cases.check("copy-killed-target-serves-on", || copy_killed(context));
    cases.check("target-sigterm-idle-exits-0", || target_drains(context, false));
    cases.check("target-sigterm-busy-exits-0", || target_drains(context, true));
    cases.check("target-sigterm-twice-exits-0", || second_sigterm(context));
    cases.check("copy-sigint-exits-130", || copy_interrupted(context, libc::SIGINT, 130));
    cases.check("copy-sigterm-exits-143", || copy_interrupted(context, libc::SIGTERM, 143));
    cases.check("sigint-then-resume", || resumed(context, libc::SIGINT, Some(130)));
    cases.check_some(FULL_ONLY, "sigkill-then-resume", || resumed(context, libc::SIGKILL, None));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_id_is_found() {
        assert_eq!(resume_id("interrupted; go on with: hikyaku copy a b --resume 7f3a\n").unwrap(), "7f3a");
        assert_eq!(resume_id("`hikyaku copy a b --resume=x.json`").unwrap(), "x.json");
        assert!(resume_id("sorry").is_err());
    }
}
