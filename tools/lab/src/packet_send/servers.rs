//! `hikyaku net up` as a user starts it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use tempfile::TempDir;

use crate::sys::Cpu;
use crate::wan::Namespace;
use crate::{Attempted, LabError};

const STARTING: &str = "start hikyaku net up";

/// Running servers; a drop ends them.
pub(super) struct ServersUp {
    child: Child,
    program: PathBuf,
    folder: TempDir,
    /// Of `inet` and of the driver.
    cores: [Option<usize>; 2],
}

/// What the servers have done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) cpu: Cpu,
    /// From `inet`, and from the driver, to other processes.
    pub(super) switches: [u64; 2],
}

impl Work {
    pub(super) fn since(self, before: Self) -> Self {
        let switches = [0, 1].map(|server| self.switches[server].saturating_sub(before.switches[server]));
        Self { cpu: self.cpu.since(before.cpu), switches }
    }
}

impl ServersUp {
    /// Starts the servers in a namespace, with options of `net up`; [`ServersUp::wait`] before they are used.
    pub(super) fn start(
        program: &Path,
        namespace: &Namespace,
        options: &[&str],
        cores: [Option<usize>; 2],
    ) -> Result<Self, LabError> {
        let folder = crate::folder()?;
        let stderr = File::create(folder.path().join("stderr")).attempted("make a file for messages")?;
        let mut command = Command::new(program);
        command.args(["net", "up"]).args(options);
        command.arg("--socket").arg(folder.path().join("socket"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let child = namespace.within(|| command.spawn())?.attempted(STARTING)?;
        Ok(Self { child, program: program.to_owned(), folder, cores })
    }

    /// Until the servers are ready.
    pub(super) fn wait(&mut self) -> Result<(), LabError> {
        // A line for each address.
        let mut line = String::new();
        let stdout = self.child.stdout.take().expect("piped, and taken once");
        BufReader::new(stdout).read_line(&mut line).attempted(STARTING)?;
        if line.is_empty() {
            let complaint = std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
            return Err(LabError::new(STARTING, &complaint.trim()));
        }
        self.bind()
    }

    /// Binds the servers to their cores, as must be done again for one that was started again.
    pub(super) fn bind(&self) -> Result<(), LabError> {
        let [inet, nic] = self.cores;
        for (name, core) in [("inet", inet), ("nic", nic), ("nic (spare)", nic)] {
            if let (Some(core), Ok(pid)) = (core, self.pid(name)) {
                let mut set = CpuSet::new();
                set.set(core);
                sched_setaffinity(Some(pid), &set).attempted("bind a server to a core")?;
            }
        }
        Ok(())
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

    /// `inet` or `nic`.
    pub(super) fn kill(&self, name: &str) -> Result<(), LabError> {
        kill_process(self.pid(name)?, Signal::KILL).attempted("kill a server")
    }

    /// Of both servers.
    pub(super) fn work(&self) -> Result<Work, LabError> {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let mut sum = Work::default();
        for (server, name) in ["inet", "nic"].into_iter().enumerate() {
            let folder = PathBuf::from(format!("/proc/{}", self.pid(name)?.as_raw_nonzero()));
            let read = |file: &str| {
                std::fs::read_to_string(folder.join(file)).attempted("read what a server has done")
            };
            let text = read("stat")?;
            // proc_pid_stat(5): fields 14 and 15, counted behind the name in parentheses.
            let behind = text.rsplit(')').next().unwrap_or_default();
            let field = |at: usize| {
                behind.split_whitespace().nth(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0)
            };
            sum.cpu.user += field(11) / ticks;
            sum.cpu.system += field(12) / ticks;
            sum.switches[server] = read("status")?
                .lines()
                .filter(|line| line.contains("ctxt_switches:"))
                .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
                .sum();
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
