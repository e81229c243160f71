//! The stock Linux kernel as a peer, in an emulated machine (`tests/kernel-lab`): its initiator puts a file system
//! on our LUN, and its target is the other end of our `copy`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness::files::{empty_file, patchy_file, random_file, same_file};
use crate::harness::process::tail;
use crate::harness::{
    Against, Cases, Context, Credentials, Disk, Running, Tier, Url, free_port, run, scratch,
};

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

/// Makes the guest's image, once.
pub(super) fn build_guest(context: &Context) -> Result<()> {
    run(guest(context).arg("build"), BUILD_LIMIT)?.success().context("make the guest's image").map(|_| ())
}

/// Makes the image that brings PostgreSQL, once.
pub(super) fn build_postgres(context: &Context) -> Result<()> {
    let mut command = guest(context);
    command.args(["build", "postgres"]);
    run(&mut command, BUILD_LIMIT)?.success().context("make PostgreSQL's image").map(|_| ())
}

pub(super) fn script(context: &Context, name: &str) -> String {
    context.repository.join("tests/kernel-lab").join(name).display().to_string()
}

/// Logs the kernel's initiator in and lets it work; returns what the guest printed.
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

/// What needs a machine of its own.
const PREFIXES: &[&str] = &[
    "initiator-chap",
    "initiator-plain",
    "initiator-4096",
    "initiator-wrong-secret",
    "lio-plain",
    "lio-chap",
];

/// The lines that the guest script prints when a step is right.
const STEPS: &[&str] = &["LOGIN-OK", "MD5-SAME", "TRIM-OK", "FSCK-CLEAN", "RAW-SAME", "GUEST-RC 0"];

fn initiator_cases(context: &Context, cases: &mut Cases, name: &str, block: u32, chap: bool) -> Result<()> {
    let prefix = format!("initiator-{name}");
    if !cases.wants(&prefix, PREFIXES) {
        return Ok(());
    }
    let dir = scratch()?;
    let path = dir.path().join("disk.img");
    empty_file(&path, BYTES)?;
    let mut disk = Disk::file(&path);
    disk.block_size = (block != 512).then_some(block);
    let credentials = chap.then(Credentials::example);
    let mut served = context.serve(&[disk], credentials.as_ref())?;
    let url = served.url(0).clone();
    let result = initiator(context, &url, credentials.as_ref());
    let text = match served.blame(result) {
        Ok(text) => text,
        Err(error) => {
            cases.record(&format!("{prefix}/run"), Err(error), 0.0);
            return Ok(());
        }
    };
    for step in STEPS {
        cases.check(&format!("{prefix}/{}", step.to_lowercase().replace(' ', "-")), || {
            ensure!(text.lines().any(|line| line.trim() == *step), "no {step} in:\n{}", tail(&text, 3000));
            Ok(())
        });
    }
    cases.check(&format!("{prefix}/size"), || {
        let wanted = format!("SIZE {BYTES} BLOCK {block} ");
        let line = text.lines().find(|line| line.starts_with("SIZE ")).context("no SIZE")?;
        ensure!(line.starts_with(&wanted), "{line}, expected {wanted}");
        ensure!(!line.contains("DISCARD 0 "), "the kernel sees no UNMAP: {line}");
        Ok(())
    });
    Ok(())
}

fn wrong_secret_case(context: &Context) -> Result<()> {
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

/// A guest whose kernel is the target.
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

fn lio_cases(
    context: &Context,
    cases: &mut Cases,
    name: &str,
    credentials: Option<&Credentials>,
) -> Result<()> {
    let prefix = format!("lio-{name}");
    if !cases.wants(&prefix, PREFIXES) {
        return Ok(());
    }
    let dir = scratch()?;
    let options = match credentials {
        Some(credentials) => format!(
            ",chap-user={},chap-secret-file={}",
            credentials.user,
            credentials.secret_file(dir.path())?.display()
        ),
        None => String::new(),
    };
    let (mut running, url) = start_lio(context, credentials)?;
    let endpoint = format!("{url}{options}");
    let (source, back) = (dir.path().join("source.img"), dir.path().join("back.img"));
    let copy = |from: &str, to: &str| {
        context.ours(&["copy", "--verify", "--force", from, to], COPY_LIMIT)?.success().map(|_| ())
    };
    type Fill = fn(&std::path::Path, u64, u64) -> Result<()>;
    let contents: [(&str, Fill); 2] = [("random", random_file), ("patchy", patchy_file)];
    for (content, fill) in contents {
        fill(&source, LIO_BYTES, context.seed_for(&format!("kernel/{prefix}/{content}")))?;
        empty_file(&back, LIO_BYTES)?;
        let (there, here) = (source.display().to_string(), back.display().to_string());
        cases.check(&format!("{prefix}/{content}-to-lio"), || copy(&there, &endpoint));
        cases.check(&format!("{prefix}/{content}-from-lio"), || {
            copy(&endpoint, &here)?;
            same_file(&source, &back)
        });
    }
    if credentials.is_some() {
        cases.check(&format!("{prefix}/missing-secret-exits-4"), || {
            let here = back.display().to_string();
            context.ours(&["copy", "--force", &url.to_string(), &here], COPY_LIMIT)?.expect(4).map(|_| ())
        });
    }
    if running.ended() {
        bail!("the guest ended early\n{}", running.stderr_tail());
    }
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    build_guest(context)?;
    initiator_cases(context, cases, "chap", 512, true)?;
    if context.tier == Tier::Full {
        initiator_cases(context, cases, "plain", 512, false)?;
        initiator_cases(context, cases, "4096", 4096, false)?;
        cases.check("initiator-wrong-secret", || wrong_secret_case(context));
    }
    if context.against == Against::Tgt {
        cases.note("examined tgt; the cases with LIO need our initiator");
        return Ok(());
    }
    lio_cases(context, cases, "plain", None)?;
    if context.tier == Tier::Full {
        lio_cases(context, cases, "chap", Some(&Credentials::example()))?;
    }
    Ok(())
}
