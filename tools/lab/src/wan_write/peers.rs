//! Targets and initiators of others, where they are installed: tgt and QEMU.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::writer::Wrote;
use crate::wan::{ADDRESSES, Namespace};
use crate::{Attempted, LabError};

const START_LIMIT: Duration = Duration::from_secs(10);

/// How a target of tgt is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tuning {
    /// As it is.
    Default,
    /// Long segments and bursts, several R2Ts, unsolicited data.
    Tuned,
    /// FirstBurstLength and MaxBurstLength of the paper.
    Paper,
}

impl Tuning {
    const ALL: [Self; 3] = [Self::Default, Self::Tuned, Self::Paper];

    fn number(self) -> u32 {
        self as u32 + 1
    }

    pub(super) fn target(self) -> String {
        format!("iqn.2026-11.example.tgt:{}", self.number())
    }

    fn parameters(self) -> &'static [(&'static str, u32)] {
        match self {
            Self::Default => &[],
            Self::Tuned => &[
                ("MaxRecvDataSegmentLength", 262_144),
                ("MaxXmitDataSegmentLength", 262_144),
                ("MaxBurstLength", 16_776_192),
                ("FirstBurstLength", 262_144),
                ("MaxOutstandingR2T", 16),
            ],
            Self::Paper => &[
                ("MaxRecvDataSegmentLength", 262_144),
                ("MaxXmitDataSegmentLength", 262_144),
                ("MaxBurstLength", 4_194_304),
                ("FirstBurstLength", 4_194_304),
            ],
        }
    }
}

pub(super) const LUN: u8 = 1;
/// Port of its portal.
pub(super) const PORT: u16 = 3260;

pub(super) fn is_installed(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
    found || Path::new("/usr/sbin").join(program).exists()
}

/// A running tgtd in a namespace, with a target for each [`Tuning`] over one file. Dropping it ends it.
pub(super) struct Tgt {
    child: Child,
    control: String,
}

impl Tgt {
    pub(super) fn start(namespace: &Namespace, store: &Path) -> Result<Self, LabError> {
        let control = (10_000 + std::process::id() % 20_000).to_string();
        let child = namespace
            .command("tgtd")
            .args(["-f", "-C", &control])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .attempted("start tgtd")?;
        let tgt = Self { child, control };
        let begun = Instant::now();
        while let Err(error) = tgt.admin(&["--op", "show", "--mode", "sys"]) {
            if begun.elapsed() > START_LIMIT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        for tuning in Tuning::ALL {
            tgt.add(tuning, store)?;
        }
        Ok(tgt)
    }

    fn add(&self, tuning: Tuning, store: &Path) -> Result<(), LabError> {
        let (tid, store) = (tuning.number().to_string(), store.display().to_string());
        self.admin(&["--op", "new", "--mode", "target", "--tid", &tid, "-T", &tuning.target()])?;
        let lun = LUN.to_string();
        let unit = ["--op", "new", "--mode", "logicalunit", "--tid", &tid, "--lun", &lun, "-b", &store];
        self.admin(&unit)?;
        for (name, value) in tuning.parameters() {
            let value = value.to_string();
            self.admin(&[
                "--op", "update", "--mode", "target", "--tid", &tid, "--name", name, "--value", &value,
            ])?;
        }
        if !tuning.parameters().is_empty() {
            for (name, value) in [("InitialR2T", "No"), ("ImmediateData", "Yes")] {
                self.admin(&[
                    "--op", "update", "--mode", "target", "--tid", &tid, "--name", name, "--value", value,
                ])?;
            }
        }
        self.admin(&["--op", "bind", "--mode", "target", "--tid", &tid, "-I", "ALL"])
    }

    fn admin(&self, arguments: &[&str]) -> Result<(), LabError> {
        let mut command = Command::new("tgtadm");
        let output = command.args(["-C", &self.control, "--lld", "iscsi"]).args(arguments).output();
        let doing = format!("tgtadm {}", arguments.join(" "));
        let output = output.attempted(&doing)?;
        if output.status.success() {
            return Ok(());
        }
        Err(LabError::new(doing, &String::from_utf8_lossy(&output.stderr).trim()))
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        // It has no state to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `qemu-img convert` of the first `bytes` of a file to a LUN of tgt, or of a LUN to a file that has this size.
pub(super) fn convert(file: &Path, tuning: Tuning, is_read: bool, bytes: u64) -> Command {
    let portal = format!("{}:{PORT}", ADDRESSES[1]);
    let lun = format!("driver=iscsi,transport=tcp,portal={portal},target={},lun={LUN}", tuning.target());
    let file = format!("driver=file,filename={}", file.display());
    let below = |node: &str| format!("file.{}", node.replace(',', ",file."));
    let (from, to) = if is_read { (&lun, &file) } else { (&file, &lun) };
    let mut command = Command::new("qemu-img");
    // Not the default `unsafe`, so that it ends with a flush as well.
    command.args(["convert", "-n", "-t", "writeback", "--image-opts", "--target-image-opts"]);
    if tuning == Tuning::Tuned {
        command.args(["-m", "16", "-W"]);
    }
    command.args([format!("driver=raw,size={bytes},{}", below(from)), format!("driver=raw,{}", below(to))]);
    command
}

/// Writes of `block` bytes by QEMU's initiator, `depth` at a time.
pub(super) fn write_by_qemu(
    namespace: &Namespace,
    tuning: Tuning,
    block: u32,
    depth: u32,
    writes: usize,
) -> Result<Wrote, LabError> {
    let doing = "write by qemu-img bench";
    let url = format!("iscsi://{}/{}/{LUN}", ADDRESSES[1], tuning.target());
    let (block_text, depth, count) = (block.to_string(), depth.to_string(), writes.to_string());
    let mut command = namespace.command("qemu-img");
    command.args(["bench", "-f", "raw", "-t", "none", "-w", "-s", &block_text, "-S", &block_text]);
    let output = command.args(["-d", &depth, "-c", &count, &url]).output().attempted(doing)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let seconds = text.split("completed in ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    match seconds {
        Some(seconds) if output.status.success() => {
            Ok(Wrote { bytes: writes as u64 * u64::from(block), seconds, writes })
        }
        _ => Err(LabError::new(doing, &String::from_utf8_lossy(&output.stderr).trim())),
    }
}
