//! The stock Linux kernel as a peer, in an emulated machine (`tests/kernel-lab`): its initiator makes a file system on
//! a LUN of `hikyaku serve`, its target is an end of `hikyaku copy`, and dm-crypt shares volumes with `hikyaku volume`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::{FULL_ONLY, dm_crypt, send_buffer};
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
/// Groups of cases, by the kernel's role.
const INITIATORS: (&str, usize) = ("initiators", 1);
const TARGETS: (&str, usize) = ("targets", 1);

pub(super) fn guest(context: &Context) -> Command {
    let mut command = Command::new(context.repository.join("tests/kernel-lab/guest"));
    command.env("KERNEL_LAB_DIR", context.repository.join("target/kernel-lab"));
    command
}

pub(super) fn build_guest(context: &Context) -> Result<()> {
    run(guest(context).arg("build"), BUILD_LIMIT)?.success().context("make the guest's image").map(drop)
}

pub(super) fn build_postgres(context: &Context) -> Result<()> {
    let built = run(guest(context).args(["build", "postgres"]), BUILD_LIMIT)?;
    built.success().context("make PostgreSQL's image").map(drop)
}

/// Arguments of a script that name the CHAP user and its secret.
fn chap(credentials: Option<&Credentials>) -> Vec<String> {
    let Some(Credentials { user, secret }) = credentials else { return Vec::new() };
    vec![format!("CHAP_USER={user}"), format!("CHAP_SECRET={secret}")]
}

pub(super) fn script(context: &Context, name: &str) -> String {
    context.repository.join("tests/kernel-lab").join(name).display().to_string()
}

/// Logs the kernel's initiator in and runs the guest's script; returns its output.
fn initiator(context: &Context, url: &Url, credentials: Option<&Credentials>) -> Result<String> {
    let mut command = guest(context);
    command.args(["run", &script(context, "initiator-ext4.sh")]);
    let Url { iqn, lun, .. } = url;
    command.args([format!("PORT={}", url.port()?), format!("IQN={iqn}"), format!("LUN={lun}")]);
    let output = run(command.args(chap(credentials)), GUEST_LIMIT)?;
    let text = tail(&output.stdout, 3000);
    ensure!(!output.timed_out, "the guest did not end within {GUEST_LIMIT:?}\n{text}");
    Ok(output.text().replace('\r', ""))
}

/// The lines that the guest script prints after correct steps.
const STEPS: &[&str] = &["LOGIN-OK", "MD5-SAME", "TRIM-OK", "FSCK-CLEAN", "RAW-SAME", "GUEST-RC 0"];

/// Output of a guest that uses a LUN with blocks of `block` bytes; `own` are its credentials, `served` the target's.
fn booted(
    context: &Context,
    block: u32,
    own: Option<&Credentials>,
    served: Option<&Credentials>,
) -> Result<String> {
    build_guest(context)?;
    let dir = scratch()?;
    let path = empty_file(dir.path().join("disk.img"), BYTES)?;
    let disk = Disk { block_size: (block != 512).then_some(block), ..Disk::file(&path) };
    let mut served = context.serve(&[disk], served)?;
    let url = served.url(0).clone();
    let result = initiator(context, &url, own);
    served.blame(result)
}

fn initiator_cases(context: &Context, cases: &mut Cases, (name, block, chap): (&str, u32, bool)) {
    let credentials = chap.then(Credentials::example);
    let text = Scene::new(|| booted(context, block, credentials.as_ref(), credentials.as_ref()));
    for step in STEPS {
        let name = format!("initiator-{name}/{}", step.to_lowercase().replace(' ', "-"));
        cases.check_some(INITIATORS, &name, || {
            let text = text.get()?;
            demand!(text.lines().any(|line| line.trim() == *step), "no {step} in:\n{}", tail(text, 3000))
        });
    }
    cases.check_some(INITIATORS, &format!("initiator-{name}/size"), || {
        let wanted = format!("SIZE {BYTES} BLOCK {block} ");
        let line = text.get()?.lines().find(|line| line.starts_with("SIZE ")).context("no SIZE")?;
        ensure!(line.starts_with(&wanted), "{line}, expected {wanted}");
        demand!(!line.contains("DISCARD 0 "), "the kernel sees no UNMAP: {line}")
    });
}

fn wrong_secret_case(context: &Context) -> Result<()> {
    let wrong = Credentials { secret: "not-the-secret-1".into(), ..Credentials::example() };
    let text = booted(context, 512, Some(&wrong), Some(&Credentials::example()))?;
    demand!(text.contains("LOGIN-FAILED") && !text.contains("LOGIN-OK"), "let in:\n{}", tail(&text, 2000))
}

fn start_lio(context: &Context, credentials: Option<&Credentials>) -> Result<(Running, Url)> {
    let port = free_port()?;
    let mut command = guest(context);
    command.args(["run", "--forward", &format!("{port}:3260"), &script(context, "lio-target.sh")]);
    command.args([format!("BYTES={LIO_BYTES}"), "HOLD=900".to_owned()]).args(chap(credentials));
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
        let options = credentials.map(|credentials| credentials.options(dir.path())).transpose()?;
        let options = options.unwrap_or_default();
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
        self.running.alive().context("the guest")?;
        result
    }
}

fn lio_cases(context: &Context, cases: &mut Cases, name: &str, credentials: Option<&Credentials>) {
    let prefix = format!("lio-{name}");
    let mut lio = Scene::new(|| Lio::new(context, credentials));
    type Fill = fn(PathBuf, u64, u64) -> Result<PathBuf>;
    let contents: [(&str, Fill); 2] = [("random", random_file), ("patchy", patchy_file)];
    for (content, fill) in contents {
        let seed = context.seed_for(&format!("kernel/{prefix}/{content}"));
        let fill = |lio: &Lio| fill(lio.path("source.img"), LIO_BYTES, seed);
        let mut is_there = false;
        cases.check_some(TARGETS, &format!("{prefix}/{content}-to-lio"), || {
            let lio = lio.get_mut()?;
            let source = fill(lio)?;
            let result = lio.copy(context, &source.display().to_string(), &lio.endpoint);
            is_there = result.is_ok();
            lio.blame(result)
        });
        cases.check_some(TARGETS, &format!("{prefix}/{content}-from-lio"), || {
            let lio = lio.get_mut()?;
            let (source, back) = (lio.path("source.img"), empty_file(lio.path("back.img"), LIO_BYTES)?);
            if !is_there {
                fill(lio)?;
                lio.copy(context, &source.display().to_string(), &lio.endpoint)?;
            }
            let result = lio.copy(context, &lio.endpoint, &back.display().to_string());
            lio.blame(result.and_then(|()| same_file(&source, &back)))
        });
    }
    if credentials.is_some() {
        cases.check_some(TARGETS, &format!("{prefix}/missing-secret-exits-4"), || {
            let lio = lio.get_mut()?;
            let back = empty_file(lio.path("back.img"), LIO_BYTES)?;
            let arguments = ["copy", "--force", &lio.url.to_string(), &back.display().to_string()];
            let result = context.ours(&arguments, COPY_LIMIT)?.expect(4).map(|_| ());
            lio.blame(result)
        });
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    for initiator in [("chap", 512, true), ("plain", 512, false), ("4096", 4096, false)] {
        initiator_cases(context, cases, initiator);
    }
    cases.check_some(FULL_ONLY, "initiator-wrong-secret", || wrong_secret_case(context));
    if context.against == Against::Tgt {
        cases.note("examined tgt; the cases with LIO need our initiator");
        return Ok(());
    }
    lio_cases(context, cases, "plain", None);
    lio_cases(context, cases, "chap", Some(&Credentials::example()));
    dm_crypt::examine(context, cases);
    send_buffer::examine(context, cases);
    Ok(())
}
