//! One path with its targets, and the measurement of a row over it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::peers::{self, Tgt, Tuning};
use super::super::plan::RATE;
use super::super::writer::Ready;
use super::files::Files;
use super::meter::{Took, measure};
use super::ours::Program;
use super::plan::{Ours, Row, Way, Who};
use super::raw::{Far, Near};
use crate::part::{Part, Role};
use crate::wan::{ADDRESSES, Options as PathOptions, Settings, Wan};
use crate::{Attempted, LabError};

/// Ports of our target and of plain sockets; tgt has its own.
const TARGET_PORT: u16 = 3261;
const RAW_PORT: u16 = 5001;

/// A path, and what waits at its far side. Dropping it ends all.
pub(super) struct Place<'a> {
    // Declared before the path and therefore dropped first.
    _far: Part,
    _tgt: Option<Tgt>,
    wan: Wan,
    files: &'a Files,
    program: Option<&'a Program>,
}

impl<'a> Place<'a> {
    /// `program`: for rows of this project; `has_peers`: for those of tgt.
    pub(super) fn new(
        rtt: Duration,
        files: &'a Files,
        program: Option<&'a Program>,
        has_peers: bool,
    ) -> Result<Self, LabError> {
        let wan = Wan::start(&PathOptions::new(Settings::new(rtt, Some(RATE))))?;
        let far = Far { namespace: wan.side(1).path(), address: address(RAW_PORT) };
        let (far, _) = Part::start::<Ready>("the far end", &Role::WanFar(far))?;
        let tgt = has_peers.then(|| Tgt::start(wan.side(1), &files.store())).transpose()?;
        Ok(Self { _far: far, _tgt: tgt, wan, files, program })
    }

    /// One cold copy of a row, from the start of its process to its exit. Files are compared afterwards.
    pub(super) fn measure(
        &self,
        row: &Row,
        bytes: u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Took, LabError> {
        self.prepare(row)?;
        match row.who {
            Who::Socket => {
                let near = Near::new(self.wan.side(0).path(), address(RAW_PORT), bytes, row.way);
                self.run(row, bytes, Part::alone(&Role::WanNear(near))?, is_stopped)
            }
            Who::Local => {
                let (from, to) = (self.files.source(row), self.files.store());
                self.files.spoil(bytes)?;
                let command = self.ours().copy(Ours::Plain, &text(&from), &text(&to), bytes);
                let took = self.run(row, bytes, command, is_stopped)?;
                self.files.compare(row, bytes, &to)?;
                Ok(took)
            }
            Who::Ours(how) => self.copy(row, how, bytes, is_stopped),
            Who::Peers(tuning) => self.convert(row, tuning, bytes, is_stopped),
        }
    }

    /// Sets the buffers and the congestion control of sockets that are made from now on.
    fn prepare(&self, row: &Row) -> Result<(), LabError> {
        for side in [0, 1] {
            let namespace = self.wan.side(side);
            for (key, value) in row.buffers.settings() {
                namespace.sysctl(&format!("net/ipv4/{key}"), value)?;
            }
            namespace.sysctl("net/ipv4/tcp_congestion_control", &row.congestion)?;
        }
        Ok(())
    }

    fn ours(&self) -> &Program {
        self.program.expect("rows of the program are left out without it")
    }

    fn copy(
        &self,
        row: &Row,
        how: Ours,
        bytes: u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Took, LabError> {
        let program = self.ours();
        let store = match row.way {
            Way::Write => self.files.store(),
            Way::Read => self.files.source(row),
        };
        let serving = program.serve(how, self.wan.side(1), address(TARGET_PORT), &store)?;
        let command = |from: &str, to: &str| program.copy(how, from, to, bytes);
        if row.way == Way::Write {
            self.files.spoil(bytes)?;
            let command = command(&text(&self.files.source(row)), &serving.url);
            let took = self.run(row, bytes, command, is_stopped)?;
            self.files.compare(row, bytes, &store)?;
            return Ok(took);
        }
        // The copy makes this file, as its user.
        let copy = program.home(how).join("copy.img");
        let took = self.run(row, bytes, command(&serving.url, &text(&copy)), is_stopped)?;
        self.files.compare(row, bytes, &copy)?;
        remove(&copy)?;
        Ok(took)
    }

    fn convert(
        &self,
        row: &Row,
        tuning: Tuning,
        bytes: u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Took, LabError> {
        if row.way == Way::Write {
            self.files.spoil(bytes)?;
            let command = peers::convert(&self.files.source(row), tuning, false, bytes);
            let took = self.run(row, bytes, command, is_stopped)?;
            self.files.compare(row, bytes, &self.files.store())?;
            return Ok(took);
        }
        let copy = self.files.at("copy.img");
        let made = File::create(&copy).and_then(|file| file.set_len(bytes));
        made.attempted(&format!("make {}", copy.display()))?;
        let took = self.run(row, bytes, peers::convert(&copy, tuning, true, bytes), is_stopped)?;
        self.files.compare(row, bytes, &copy)?;
        remove(&copy)?;
        Ok(took)
    }

    /// Runs a command beside the initiator until it ends.
    fn run(
        &self,
        row: &Row,
        bytes: u64,
        mut command: Command,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Took, LabError> {
        let errors = self.files.at("stderr");
        let stderr = File::create(&errors).attempted(&format!("make {}", errors.display()))?;
        let output = self.files.at("stdout");
        let stdout = File::create(&output).attempted(&format!("make {}", output.display()))?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let line = self.wan.line();
        line.reset_counters();
        let begun = Instant::now();
        let spawned = self.wan.side(0).within(|| command.spawn())?;
        let mut child = spawned.attempted(&row.name())?;
        let (took, is_good) = measure(line, row.way.data_side(), bytes, begun, &mut child, is_stopped)?;
        if is_good {
            // Only our copies print JSON.
            let text = std::fs::read_to_string(&output).unwrap_or_default();
            let object: Option<Value> = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
            return Ok(Took { path: object.and_then(|object| object.get("path").cloned()), ..took });
        }
        let complaint = std::fs::read_to_string(&errors).unwrap_or_default();
        Err(LabError::new(row.name(), &complaint.trim()))
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(ADDRESSES[1].parse().expect("an address"), port)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn remove(copy: &PathBuf) -> Result<(), LabError> {
    std::fs::remove_file(copy).attempted(&format!("remove {}", copy.display()))
}
