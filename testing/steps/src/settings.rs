//! Settings of a run of the families, passed to their program in the environment, and the results that it leaves.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Portion of a family's cases that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tier {
    /// A seeded sample, for every change.
    Sample,
    /// Every case, for the nightly run.
    Full,
}

/// Size of a family's sample, by what a change touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// Other families are touched: half of the cases of each group, at least one.
    Half,
    #[default]
    Even,
    /// The family is touched: three times the cases and amounts.
    Triple,
}

impl Share {
    /// The number of cases of a group that a sample holds; 0 stays 0.
    pub fn cases(self, count: usize) -> usize {
        match self {
            Self::Half => count.div_ceil(2),
            Self::Even => count,
            Self::Triple => 3 * count,
        }
    }
}

/// The target that a family examines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum Against {
    /// `hikyaku serve`.
    #[default]
    Ours,
    /// tgt: checks the harness itself, and shows the peer's results.
    Tgt,
}

/// The environment variable that holds [`Settings`] as JSON.
pub const VARIABLE: &str = "HIKYAKU_TESTS";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// `None`: all cases are ignored unless the command line names them.
    pub tier: Option<Tier>,
    /// Empty: those of the tier.
    pub families: Vec<String>,
    /// Print the families and end.
    pub is_overview: bool,
    pub seed: Option<u64>,
    /// Families that a change touches: their samples are larger and those of all others smaller. Empty: all alike.
    pub touched: Vec<String>,
    pub hikyaku: Option<PathBuf>,
    /// `hikyaku-sim` of the same code; without it the family that runs it builds it.
    pub simulator: Option<PathBuf>,
    #[serde(default)]
    pub against: Against,
    /// Families whose cases all ran write docs/evidence/NAME.json.
    pub is_evidence: bool,
    pub journal: Option<PathBuf>,
    /// Skip the cases that passed according to the journal.
    pub is_resumed: bool,
    /// Path of the results, for [`results`].
    pub report: Option<PathBuf>,
}

impl Settings {
    /// Settings of the environment; the default without them.
    pub fn of_environment() -> Result<Self> {
        let Some(text) = std::env::var_os(VARIABLE) else { return Ok(Self::default()) };
        let text = text.into_string().ok().with_context(|| format!("{VARIABLE} is no text"))?;
        serde_json::from_str(&text).with_context(|| format!("{VARIABLE}={text}"))
    }

    pub fn share(&self, family: &str) -> Share {
        match self.touched.iter().any(|name| name == family) {
            _ if self.touched.is_empty() => Share::Even,
            true => Share::Triple,
            false => Share::Half,
        }
    }
}

/// Results of one family, for the tables of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tally {
    pub family: String,
    pub share: Share,
    pub passed: usize,
    /// Passed cases that were taken from the resumed run.
    pub resumed: usize,
    /// Failed cases with the first line of their messages. The test program prints the whole message.
    pub failures: Vec<(String, String)>,
    pub notes: Vec<String>,
    pub seconds: f64,
}

pub fn results(report: &Path) -> Result<Vec<Tally>> {
    let text = std::fs::read_to_string(report).context("the run left no report")?;
    serde_json::from_str(&text).context("the report of a run")
}

pub fn print_summary(tallies: &[Tally]) {
    println!("\n{:<16} {:>7} {:>7} {:>8}", "family", "passed", "failed", "seconds");
    for tally in tallies {
        let resumed =
            if tally.resumed > 0 { format!("  ({} from before)", tally.resumed) } else { String::new() };
        let share = match tally.share {
            Share::Half => "  half",
            Share::Even => "",
            Share::Triple => "  triple, touched",
        };
        println!(
            "{:<16} {:>7} {:>7} {:>8.1}{share}{resumed}",
            tally.family,
            tally.passed,
            tally.failures.len(),
            tally.seconds
        );
    }
    for tally in tallies {
        for note in &tally.notes {
            println!("note: {}: {note}", tally.family);
        }
        for (case, message) in &tally.failures {
            println!("FAIL {}::{case}: {message}", tally.family);
        }
    }
}

pub fn totals(tallies: &[Tally]) -> (usize, usize) {
    tallies
        .iter()
        .fold((0, 0), |(passed, failed), tally| (passed + tally.passed, failed + tally.failures.len()))
}
