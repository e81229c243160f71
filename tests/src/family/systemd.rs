//! The package under systemd, in an emulated machine that boots Debian with systemd as process 1: installed, started,
//! reloaded, restarted and upgraded under load, watched, and started by its socket unit. One boot runs all of
//! `systemd.sh`; each name that it judges is a case. The package holds the program under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use steps::cargo;

use super::FULL_ONLY;
use super::guest::{Said, judge, judge_some};
use super::kernel::{guest, script};
use crate::{Cases, Context, Scene, Tier, program, run, scratch};

/// Downloads and unpacks the kernel and Debian, once.
const BUILD_LIMIT: Duration = Duration::from_secs(590);
const PACKAGE_LIMIT: Duration = Duration::from_secs(300);
/// A boot and some hundred commands through an emulated processor; a busy machine takes five times the usual minute.
const GUEST_LIMIT: Duration = Duration::from_secs(580);

/// The names that the script judges.
const NAMES: &str = "installed enabled socket-disabled nothing-served started notified says-what-it-serves \
    confined-as-far-as-the-kernel-can start-active start-root start-own-user start-other-user \
    start-confined start-without-rights credential credential-wrong journal-field-PEER \
    journal-field-INITIATOR journal-field-TARGET journal-field-CHAP_USER journal-field-SYSLOG_IDENTIFIER \
    journal-priority reloaded reload-logged reload-other-user bad-reload-names-the-line \
    bad-reload-active busy restarted restart-is-another-process restart-keeps-the-socket stored \
    no-command-failed restart-active restart-root restart-own-user restart-other-user restart-confined \
    restart-without-rights stopped stop-is-clean stop-closes-the-port socket-started socket-waits \
    socket-activates socket-restarts socket-stays socket-active socket-root socket-other-user \
    socket-confined socket-without-rights socket-sealed sealed-session revoked revoked-session-ends \
    revoked-stays-out revoked-restarted restart-revoked-stays-out others-stay";
/// Names of the full tier only.
const MORE: &str = "unpacked upgrade-busy upgraded upgrade-is-under-load upgrade-is-another-process \
    upgrade-keeps-the-socket upgrade-fails-no-command watchdog-fed watchdog-ends-a-stuck-server \
    watchdog-restarts-it";
/// What `systemd-initiator.sh` judges, in the full tier only.
const INITIATOR: &str = "iscsid-started logged-in-0 logged-in-1 logged-in-2 logged-in-3 disks-appeared \
    restarted unpacked upgraded upgrade-is-another-process no-command-failed-0 no-command-failed-1 no-command-failed-2 \
    no-command-failed-3 sessions-came-back kernel-logs-no-error";

/// What `open-iscsi.sh` judges, in the full tier only.
const GUIDE: &str = "one-way both-ways logged-in two-portals one-map-two-paths one-group queues-without-paths written \
    one-path-lost read-by-the-other";

fn package(context: &Context, dir: &Path) -> Result<PathBuf> {
    let mut command = cargo(&["xtask", "package", "--uncompressed", "--hikyaku"]);
    run(command.arg(&context.hikyaku).arg("--output").arg(dir.join("made")), PACKAGE_LIMIT)?.success()?;
    let mut entries = std::fs::read_dir(dir.join("made"))?.filter_map(Result::ok).map(|entry| entry.path());
    let made = entries.find(|path| path.extension().is_some_and(|end| end == "deb")).context("no package")?;
    let path = dir.join("hikyaku.deb");
    std::fs::rename(made, &path)?;
    Ok(path)
}

/// The same package with a higher version.
fn later(package: &Path, dir: &Path) -> Result<PathBuf> {
    let (tree, path) = (dir.join("later"), dir.join("later.deb"));
    run(program("dpkg-deb")?.arg("-R").arg(package).arg(&tree), PACKAGE_LIMIT)?.success()?;
    let control = std::fs::read_to_string(tree.join("DEBIAN/control"))?;
    let raised: Vec<String> = control
        .lines()
        .map(|line| if line.starts_with("Version: ") { format!("{line}+later") } else { line.to_owned() })
        .collect();
    std::fs::write(tree.join("DEBIAN/control"), raised.join("\n") + "\n")?;
    let mut build = program("dpkg-deb")?;
    build.args(["--root-owner-group", "-Znone", "-b"]).arg(&tree).arg(&path);
    run(&mut build, PACKAGE_LIMIT)?.success()?;
    Ok(path)
}

/// A run of `name` in Debian with the package and a later one.
fn debian(context: &Context, dir: &Path) -> Result<Command> {
    run(guest(context).args(["build", "debian"]), BUILD_LIMIT)?.success().context("make Debian's disk")?;
    let package = package(context, dir)?;
    let mut command = guest(context);
    command.args(["run", "--debian", "--file"]).arg(&package).arg("--file").arg(later(&package, dir)?);
    Ok(command)
}

fn boot(context: &Context) -> Result<Said> {
    // Two packages of the program under test.
    let dir = scratch()?;
    let mut command = debian(context, dir.path())?;
    let full = if context.tier == Tier::Full { "yes" } else { "" };
    command.arg(script(context, "systemd.sh")).arg(format!("FULL={full}"));
    Ok(Said::read(&run(&mut command, GUEST_LIMIT)?))
}

/// Four sessions of the kernel's initiator during a restart and an upgrade.
fn initiator(context: &Context) -> Result<Said> {
    let dir = scratch()?;
    let mut command = debian(context, dir.path())?;
    Ok(Said::read(&run(command.arg(script(context, "systemd-initiator.sh")), GUEST_LIMIT)?))
}

/// The commands of the guide, typed as printed.
fn guide(context: &Context) -> Result<Said> {
    let dir = scratch()?;
    let mut command = debian(context, dir.path())?;
    command.arg("--file").arg(context.repository.join("docs/guides/open-iscsi.md"));
    Ok(Said::read(&run(command.arg(script(context, "open-iscsi.sh")), GUEST_LIMIT)?))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let said = Scene::new(|| boot(context));
    judge(cases, NAMES, MORE, || said.get());
    let said = Scene::new(|| initiator(context));
    judge_some(cases, FULL_ONLY, "kernel-initiator", INITIATOR, || said.get());
    if let Some(said) = said.into_made() {
        let longest = said.value("LONGEST ");
        println!("  kernel-initiator: the longest write with its flush took {} ms", longest.unwrap_or("?"));
        cases.fact("kernel_initiator_longest_write_ms", longest.and_then(|text| text.parse::<u64>().ok()));
    }
    let said = Scene::new(|| guide(context));
    judge_some(cases, FULL_ONLY, "open-iscsi-guide", GUIDE, || said.get());
    Ok(())
}
