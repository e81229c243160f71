//! The papers' experiments, drawn again: ours beside the baselines, each row saying how it was obtained.
//!
//! An experiment runs its sides in processes of their own ([`part`]): this program, started once more as `hikyaku lab part`. The
//! process that the user started only gives orders and reads answers, so that what a side used is what its process used.
//!
//! Here is nothing that the product needs; the product's crates know nothing of this one. Begin with `secure_read/mod.rs` or `device_copy/mod.rs`.

mod capture;
mod device_copy;
pub mod part;
pub mod plot;
mod secure_read;
mod stats;
mod sys;
mod table;

use std::path::PathBuf;

use serde_json::{Value, json};
use thiserror::Error;

/// What an experiment is asked for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Few sizes, one short round: shows that it works, not what is true.
    pub quick: bool,
    /// Block sizes in bytes instead of the experiment's own.
    pub blocks: Vec<u32>,
    /// Requests in flight instead of the experiment's own.
    pub depths: Vec<u32>,
    /// Only rows whose name contains one of these; all if empty.
    pub rows: Vec<String>,
    /// Only the appendix of the experiment, by the program that runs it in an emulated machine.
    pub modes: Option<PathBuf>,
    /// Storage to copy from and to instead of the experiment's own, for experiments that copy. The caller has made sure that the
    /// destination may be overwritten.
    pub devices: Option<[PathBuf; 2]>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// Tables and remarks for people, in lines of Markdown.
    pub text: String,
    /// Headline figures at the top level, rows under `rows`.
    pub json: Value,
    /// File name and SVG.
    pub figures: Vec<(String, String)>,
}

/// An experiment of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// As `hikyaku lab NAME` wants it.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// It copies, and can do so between what [`Options::devices`] names.
    pub copies: bool,
    run: fn(&Options, &mut dyn Observer) -> Result<Report, LabError>,
}

impl Experiment {
    /// Every experiment there is.
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
    ];

    /// Runs it. It takes the machine for itself: seconds with `quick`, else minutes.
    pub fn run(&self, options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
        (self.run)(options, observer)
    }
}

/// Who looks on.
pub trait Observer {
    /// What is being done now, and how much of it is done, from 0 to 1.
    fn tell(&mut self, doing: &str, done: f64);
    /// Whether to stop.
    fn is_stopped(&self) -> bool;
}

/// Why an experiment did not reach its end.
#[derive(Debug, Error)]
pub enum LabError {
    /// It was asked for something that it cannot do.
    #[error("{0}")]
    Usage(String),
    /// Something of this machine did not work.
    #[error("{attempted}: {cause}")]
    Failed {
        /// What was being done, and to what.
        attempted: String,
        /// Why it did not work.
        cause: String,
    },
    /// The observer said stop.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    fn new(attempted: impl Into<String>, cause: &impl ToString) -> Self {
        Self::Failed { attempted: attempted.into(), cause: cause.to_string() }
    }
}

/// To say what was being done when something failed.
trait Attempted<T> {
    fn attempted(self, what: &str) -> Result<T, LabError>;
}

impl<T, E: ToString> Attempted<T> for Result<T, E> {
    fn attempted(self, what: &str) -> Result<T, LabError> {
        self.map_err(|error| LabError::new(what, &error))
    }
}

/// Where it was measured.
fn machine() -> Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name") || line.starts_with("CPU part"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "processor": model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name.trim()),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": kernel.trim(),
    })
}
