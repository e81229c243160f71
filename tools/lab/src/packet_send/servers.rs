//! `hikyaku net up` as a user starts it, in the far namespace.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use tempfile::TempDir;

use super::place::{Place, UP};
use crate::sys::Cpu;
use crate::{Attempted, LabError};

/// Running servers; a drop ends them.
pub(super) struct ServersUp {
    child: Child,
    program: PathBuf,
    folder: TempDir,
}

impl ServersUp {
    /// `cores` are those of `inet` and of the driver.
    pub(super) fn start(program: &Path, place: &Place, cores: [Option<usize>; 2]) -> Result<Self, LabError> {
        let doing = "start hikyaku net up";
        let folder = crate::folder()?;
        let errors = folder.path().join("stderr");
        let stderr = File::create(&errors).attempted("make a file for messages")?;
        let mut command = Command::new(program);
        let (nic, address) = (format!("tap:{}", UP.name), format!("{}/24", UP.ours));
        command.args(["net", "up", "--nic", &nic, "--address", &address]);
        command.arg("--socket").arg(folder.path().join("socket"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = place.far.within(|| command.spawn())?.attempted(doing)?;
        let stdout = child.stdout.take().expect("piped above");
        let up = Self { child, program: program.to_owned(), folder };
        // A line for each address, when they are ready.
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).attempted(doing)?;
        if line.is_empty() {
            let complaint = std::fs::read_to_string(&errors).unwrap_or_default();
            return Err(LabError::new(doing, &complaint.trim()));
        }
        for (pid, core) in up.pids()?.into_iter().zip(cores) {
            if let Some(core) = core {
                let mut set = CpuSet::new();
                set.set(core);
                sched_setaffinity(Some(pid), &set).attempted("bind a server to a core")?;
            }
        }
        Ok(up)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(super) fn status(&self) -> Result<Value, LabError> {
        let doing = "ask for the state of the servers";
        let output = Command::new(&self.program)
            .args(["net", "status", "--json", "--socket"])
            .arg(self.socket())
            .output()
            .attempted(doing)?;
        if !output.status.success() {
            return Err(LabError::new(doing, &String::from_utf8_lossy(&output.stderr).trim()));
        }
        serde_json::from_slice(&output.stdout).attempted(doing)
    }

    /// Of `inet` and of the driver at work.
    pub(super) fn pids(&self) -> Result<[Pid; 2], LabError> {
        let status = self.status()?;
        let pid = |name: &str| {
            let number = status[name]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            number.and_then(Pid::from_raw).ok_or_else(|| {
                LabError::new("read the state of the servers", &format!("no pid of {name}: {status}"))
            })
        };
        Ok([pid("inet")?, pid("nic")?])
    }

    pub(super) fn kill_driver(&self) -> Result<(), LabError> {
        kill_process(self.pids()?[1], Signal::KILL).attempted("kill the driver")
    }

    /// Processor time of both servers.
    pub(super) fn cpu(&self) -> Result<Cpu, LabError> {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let mut sum = Cpu::default();
        for pid in self.pids()? {
            let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
            let text = std::fs::read_to_string(&path).attempted("read a server's processor time")?;
            // proc_pid_stat(5): fields 14 and 15, counted behind the name in parentheses.
            let behind = text.rsplit(')').next().unwrap_or_default();
            let field = |at: usize| {
                behind.split_whitespace().nth(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0)
            };
            sum.user += field(11) / ticks;
            sum.system += field(12) / ticks;
        }
        Ok(sum)
    }
}

impl Drop for ServersUp {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // It may have ended; then there is nothing to end.
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.child.wait();
    }
}
