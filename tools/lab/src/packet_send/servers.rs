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
        let [inet, nic] = cores;
        for (name, core) in [("inet", inet), ("nic", nic), ("nic (spare)", nic)] {
            if let (Some(core), Ok(pid)) = (core, up.pid(name)) {
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

    /// Of `inet`, of the driver at work (`nic`) or of its spare.
    fn pid(&self, name: &str) -> Result<Pid, LabError> {
        let status = self.status()?;
        let servers = status["servers"].as_array().into_iter().flatten();
        let number =
            servers.filter(|server| server["server"] == name).find_map(|server| server["pid"].as_i64());
        let pid = number.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        pid.ok_or_else(|| {
            LabError::new("read the state of the servers", &format!("no pid of {name}: {status}"))
        })
    }

    pub(super) fn kill_driver(&self) -> Result<(), LabError> {
        kill_process(self.pid("nic")?, Signal::KILL).attempted("kill the driver")
    }

    /// Processor time of both servers.
    pub(super) fn cpu(&self) -> Result<Cpu, LabError> {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let mut sum = Cpu::default();
        for name in ["inet", "nic"] {
            let pid = self.pid(name)?;
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
