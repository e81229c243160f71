//! The stock Linux kernel as a peer, in an emulated machine (`tests/kernel-lab`): its initiator makes a file system on
//! a LUN of `hikyaku serve`, and its target is an end of `hikyaku copy`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use super::FULL_ONLY;
use crate::files::{empty_file, patchy_file, random_file, same_file};
use crate::process::tail;
use crate::{Against, Cases, Context, Credentials, Disk, Running, Scene, Url, free_port, run, scratch};

/// Downloads and unpacks the kernel, once.
const BUILD_LIMIT: Duration = Duration::from_secs(400);
/// Boot, work and shutdown in software emulation; a slow machine takes ten times the usual 12 s.
const GUEST_LIMIT: Duration = Duration::from_secs(240);
const LIO_READY_LIMIT: Duration = Duration::from_secs(120);
const COPY_LIMIT: Duration = Duration::from_secs(120);
const BYTES: u64 = 128 << 20;
const LIO_BYTES: u64 = 64 << 20;

pub(super) fn guest(context: &Context) -> Command {
    let mut command = Command::new(context.repository.join("tests/kernel-lab/guest"));
    command.env("KERNEL_LAB_DIR", context.repository.join("target/kernel-lab"));
    command
}

pub(super) fn build_guest(context: &Context) -> Result<()> {
    run(guest(context).arg("build"), BUILD_LIMIT)?.success().context("make the guest's image").map(|_| ())
}

pub(super) fn build_postgres(context: &Context) -> Result<()> {
    let mut command = guest(context);
    command.args(["build", "postgres"]);
    run(&mut command, BUILD_LIMIT)?.success().context("make PostgreSQL's image").map(|_| ())
}

pub(super) fn script(context: &Context, name: &str) -> String {
    context.repository.join("tests/kernel-lab").join(name).display().to_string()
}

/// Logs the kernel's initiator in and runs the guest's script; returns its output.
fn initiator(context: &Context, url: &Url, credentials: Option<&Credentials>) -> Result<String> {
    let mut command = guest(context);
    command.args(["run", &script(context, "initiator-ext4.sh")]);
    command
        .arg(format!("PORT={}", url.port()?))
        .arg(format!("IQN={}", url.iqn))
        .arg(format!("LUN={}", url.lun));
    if let Some(credentials) = credentials {
        command.arg(format!("CHAP_USER={}", credentials.user));
        command.arg(format!("CHAP_SECRET={}", credentials.secret));
    }
    let output = run(&mut command, GUEST_LIMIT)?;
    ensure!(
        !output.timed_out,
        "the guest did not end within {GUEST_LIMIT:?}\n{}",
        tail(&output.stdout, 3000)
    );
    Ok(output.text().replace('\r', ""))
}

/// The lines that the guest script prints after correct steps.
const STEPS: &[&str] = &["LOGIN-OK", "MD5-SAME", "TRIM-OK", "FSCK-CLEAN", "RAW-SAME", "GUEST-RC 0"];

/// Output of a guest that made a file system on a LUN with blocks of `block` bytes.
fn booted(context: &Context, block: u32, chap: bool) -> Result<String> {
    build_guest(context)?;
    let dir = scratch()?;
    let path = dir.path().join("disk.img");
    empty_file(&path, BYTES)?;
    let mut disk = Disk::file(&path);
    disk.block_size = (block != 512).then_some(block);
    let credentials = chap.then(Credentials::example);
    let mut served = context.serve(&[disk], credentials.as_ref())?;
    let url = served.url(0).clone();
    let result = initiator(context, &url, credentials.as_ref());
    served.blame(result)
}

fn initiator_cases(
    context: &Context,
    cases: &mut Cases,
    group: (&str, usize),
    (name, block, chap): (&str, u32, bool),
) {
    let text = Scene::new(|| booted(context, block, chap));
    for step in STEPS {
        let name = format!("initiator-{name}/{}", step.to_lowercase().replace(' ', "-"));
        cases.check_some(group, &name, || {
            let text = text.get()?;
            ensure!(text.lines().any(|line| line.trim() == *step), "no {step} in:\n{}", tail(text, 3000));
            Ok(())
        });
    }
    cases.check_some(group, &format!("initiator-{name}/size"), || {
        let wanted = format!("SIZE {BYTES} BLOCK {block} ");
        let line = text.get()?.lines().find(|line| line.starts_with("SIZE ")).context("no SIZE")?;
        ensure!(line.starts_with(&wanted), "{line}, expected {wanted}");
        ensure!(!line.contains("DISCARD 0 "), "the kernel sees no UNMAP: {line}");
        Ok(())
    });
}

fn wrong_secret_case(context: &Context) -> Result<()> {
    build_guest(context)?;
    let dir = scratch()?;
    let path = dir.path().join("disk.img");
    empty_file(&path, 16 << 20)?;
    let mut served = context.serve(&[Disk::file(&path)], Some(&Credentials::example()))?;
    let wrong = Credentials { secret: "not-the-secret-1".into(), ..Credentials::example() };
    let url = served.url(0).clone();
    let result = initiator(context, &url, Some(&wrong));
    let text = served.blame(result)?;
    ensure!(text.contains("LOGIN-FAILED") && !text.contains("LOGIN-OK"), "let in:\n{}", tail(&text, 2000));
    Ok(())
}

fn start_lio(context: &Context, credentials: Option<&Credentials>) -> Result<(Running, Url)> {
    let port = free_port()?;
    let mut command = guest(context);
    command.args(["run", "--forward", &format!("{port}:3260"), &script(context, "lio-target.sh")]);
    command.args([format!("BYTES={LIO_BYTES}"), "HOLD=900".to_owned()]);
    if let Some(credentials) = credentials {
        command.arg(format!("CHAP_USER={}", credentials.user));
        command.arg(format!("CHAP_SECRET={}", credentials.secret));
    }
    let mut running = Running::start(&mut command)?;
    running.wait_stdout("LIO-UP", LIO_READY_LIMIT, |text| {
        (text.contains("LIO-UP") || text.contains("GUEST-RC")).then(|| text.contains("LIO-UP"))
    })?;
    let url = Url { portal: format!("127.0.0.1:{port}"), iqn: "iqn.2026-11.org.example:lio".into(), lun: 0 };
    Ok((running, url))
}

struct Lio {
    dir: TempDir,
    running: Running,
    url: Url,
    endpoint: String,
}

impl Lio {
    fn new(context: &Context, credentials: Option<&Credentials>) -> Result<Self> {
        build_guest(context)?;
        let dir = scratch()?;
        let options = match credentials {
            Some(credentials) => format!(
                ",chap-user={},chap-secret-file={}",
                credentials.user,
                credentials.secret_file(dir.path())?.display()
            ),
            None => String::new(),
        };
        let (running, url) = start_lio(context, credentials)?;
        let endpoint = format!("{url}{options}");
        Ok(Self { dir, running, url, endpoint })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn copy(&self, context: &Context, from: &str, to: &str) -> Result<()> {
        context.ours(&["copy", "--verify", "--force", from, to], COPY_LIMIT)?.success().map(|_| ())
    }

    fn blame(&mut self, result: Result<()>) -> Result<()> {
        if self.running.ended() {
            bail!("the guest ended early\n{}", self.running.stderr_tail());
        }
        result
    }
}

fn lio_cases(
    context: &Context,
    cases: &mut Cases,
    group: (&str, usize),
    name: &str,
    credentials: Option<&Credentials>,
) {
    let prefix = format!("lio-{name}");
    let mut lio = Scene::new(|| Lio::new(context, credentials));
    type Fill = fn(&Path, u64, u64) -> Result<()>;
    let contents: [(&str, Fill); 2] = [("random", random_file), ("patchy", patchy_file)];
    for (content, fill) in contents {
        let fill =
            |source: &Path| fill(source, LIO_BYTES, context.seed_for(&format!("kernel/{prefix}/{content}")));
        let mut is_there = false;
        cases.check_some(group, &format!("{prefix}/{content}-to-lio"), || {
            let lio = lio.get_mut()?;
            let source = lio.path("source.img");
            fill(&source)?;
            let result = lio.copy(context, &source.display().to_string(), &lio.endpoint);
            is_there = result.is_ok();
            lio.blame(result)
        });
        cases.check_some(group, &format!("{prefix}/{content}-from-lio"), || {
            let lio = lio.get_mut()?;
            let (source, back) = (lio.path("source.img"), lio.path("back.img"));
            if !is_there {
                fill(&source)?;
                lio.copy(context, &source.display().to_string(), &lio.endpoint)?;
            }
            empty_file(&back, LIO_BYTES)?;
            let result = lio
                .copy(context, &lio.endpoint, &back.display().to_string())
                .and_then(|()| same_file(&source, &back));
            lio.blame(result)
        });
    }
    if credentials.is_some() {
        cases.check_some(group, &format!("{prefix}/missing-secret-exits-4"), || {
            let lio = lio.get_mut()?;
            let back = lio.path("back.img");
            empty_file(&back, LIO_BYTES)?;
            let arguments = ["copy", "--force", &lio.url.to_string(), &back.display().to_string()];
            let result = context.ours(&arguments, COPY_LIMIT)?.expect(4).map(|_| ());
            lio.blame(result)
        });
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    for initiator in [("chap", 512, true), ("plain", 512, false), ("4096", 4096, false)] {
        initiator_cases(context, cases, ("initiators", 1), initiator);
    }
    cases.check_some(FULL_ONLY, "initiator-wrong-secret", || wrong_secret_case(context));
    if context.against == Against::Tgt {
        cases.note("examined tgt; the cases with LIO need our initiator");
        return Ok(());
    }
    lio_cases(context, cases, ("targets", 1), "plain", None);
    lio_cases(context, cases, ("targets", 1), "chap", Some(&Credentials::example()));
    Ok(())
}
