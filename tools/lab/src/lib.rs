//! The papers' experiments, repeated: this project compared with the baselines. Each row states how it was obtained.
//!
//! An experiment runs its sides in separate processes ([`part`]): this program, started again as `hikyaku-lab part`.
//! The process that the user started only sends orders and reads answers, so the resource usage of a side is that of
//! its process.
//!
//! The product does not depend on this crate. Begin with `secure_read/mod.rs` or `device_copy/mod.rs`.

mod capture;
mod device_copy;
mod packet_send;
pub mod part;
mod plot;
mod secure_read;
mod stats;
mod sys;
mod table;
pub mod wan;
mod wan_write;

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use thiserror::Error;

/// Version of the JSON; later versions only add fields.
const SCHEMA: u32 = 1;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few sizes, one short round: shows that the experiment works, not its results.
    pub quick: bool,
    /// Block sizes in bytes; empty for the experiment's own.
    pub blocks: Vec<u32>,
    /// Requests in flight; empty for the experiment's own.
    pub depths: Vec<u32>,
    /// How often each row is measured; `None` for the experiment's own number.
    pub reps: Option<usize>,
    /// Only rows whose name contains one of these texts; empty for all.
    pub rows: Vec<String>,
    /// Runs only the appendix of the experiment, with this program, which starts an emulated machine.
    pub modes: Option<PathBuf>,
    /// Source and destination for experiments that copy; `None` for the experiment's own. The caller has checked that
    /// the destination may be overwritten.
    pub devices: Option<[PathBuf; 2]>,
}

impl Options {
    fn selects(&self, name: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| name.contains(part.as_str()))
    }

    /// What the user has `given`; otherwise the experiment's own values.
    fn values(&self, given: &[u32], quick: &[u32], all: &[u32]) -> Vec<u32> {
        match given {
            [] if self.quick => quick.to_vec(),
            [] => all.to_vec(),
            given => given.to_vec(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Report {
    /// Tables and remarks as lines of Markdown.
    pub text: String,
    /// Headline figures at the top level, rows under `rows`.
    pub json: Value,
    /// File names and SVG texts.
    pub figures: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The argument of `hikyaku lab NAME`.
    pub name: &'static str,
    pub about: &'static str,
    /// Whether the experiment copies and accepts [`Options::devices`].
    pub copies: bool,
    run: fn(&Options, &mut dyn Observer) -> Result<Report, LabError>,
}

impl Experiment {
    pub const ALL: &'static [Self] = &[
        Self {
            name: "secure-read",
            about: "sealed sequential reads above TCP, with and without sealing ahead (Kamisaka, Yamaguchi, Oguchi 2004)",
            copies: false,
            run: secure_read::run,
        },
        Self {
            name: "device-copy",
            about: "from device to device below the user, by number of buffers, beside what dd does (Suzuki et al. 2010)",
            copies: true,
            run: device_copy::run,
        },
        Self {
            name: "wan-write",
            about: "writes over a path with a round trip, and where the sender stops (Higa et al. 2009); needs root",
            copies: false,
            run: wan_write::run,
        },
        Self {
            name: "packet-send",
            about: "TCP/IP in crash-isolated servers that hand areas over (Inoue, Taniguchi, Yamauchi 2010); needs root",
            copies: false,
            run: packet_send::run,
        },
    ];

    /// Runs the experiment: seconds with `quick`, otherwise minutes. It requires an otherwise idle machine.
    pub fn run(&self, options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
        (self.run)(options, observer)
    }
}

pub trait Observer {
    /// The current step, and the completed share from 0 to 1.
    fn on_progress(&mut self, doing: &str, done: f64);
    fn is_stopped(&self) -> bool;
}

#[derive(Debug, Error)]
pub enum LabError {
    #[error("{0}")]
    Usage(String),
    #[error("{attempted}: {cause}")]
    Failed {
        /// The operation and its object.
        attempted: String,
        cause: String,
    },
    /// [`Observer::is_stopped`] returned true.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    fn new(attempted: impl Into<String>, cause: &impl ToString) -> Self {
        Self::Failed { attempted: attempted.into(), cause: cause.to_string() }
    }
}

trait Attempted<T> {
    fn attempted(self, what: &str) -> Result<T, LabError>;
}

impl<T, E: ToString> Attempted<T> for Result<T, E> {
    fn attempted(self, what: &str) -> Result<T, LabError> {
        self.map_err(|error| LabError::new(what, &error))
    }
}

/// The first fields of a report's JSON: experiment, machine (processor model, number of cores, kernel version).
fn heading(experiment: &str, options: &Options) -> Map<String, Value> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name") || line.starts_with("CPU part"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    fields(json!({
        "schema": SCHEMA,
        "experiment": experiment,
        "quick": options.quick,
        "machine": {
            "processor": model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name.trim()),
            "cores": std::thread::available_parallelism().map_or(1, usize::from),
            "kernel": kernel.trim(),
        },
    }))
}

fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        other => unreachable!("no object: {other}"),
    }
}

/// A temporary directory, in memory if possible, so that no disk limits the rate.
fn folder() -> Result<TempDir, LabError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("hikyaku-lab-");
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).attempted("make a temporary directory")
}
