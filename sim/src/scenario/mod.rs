//! What is done in a run: a target with a disk, initiators with work, and what befalls them.

mod clients;
mod copies;
mod faults;
mod host;
mod ledger;
mod process;
mod remote;
mod resumes;
mod target;
mod worker;
mod xcopies;

use std::str::FromStr;

use crate::random::Random;
use crate::world::{Context, Over};

/// A kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// One to three initiators read, write and flush; every answer is checked.
    Clients,
    /// The mover copies a disk into the LUN.
    Copies,
    /// As `Clients`, and the target is drained or stopped under load.
    Drains,
    /// The mover copies with a journal, and goes on by it until it is done.
    Resumes,
    /// The target copies from one LUN to another (EXTENDED COPY), while others write.
    Xcopies,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Clients, Self::Copies, Self::Drains, Self::Resumes, Self::Xcopies];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Copies => "copies",
            Self::Drains => "drains",
            Self::Resumes => "resumes",
            Self::Xcopies => "xcopies",
        }
    }

    /// The kind that a seed stands for where none is asked for.
    pub fn of(seed: u64) -> Self {
        Random::fork(seed, "scenario").pick(&[
            Self::Clients,
            Self::Clients,
            Self::Copies,
            Self::Drains,
            Self::Resumes,
            Self::Xcopies,
        ])
    }

    pub(crate) fn play(self, context: &Context, strict: bool) -> Result<(), Over> {
        match self {
            Self::Clients => clients::play(context, false, strict),
            Self::Drains => clients::play(context, true, strict),
            Self::Copies => copies::play(context, strict),
            Self::Resumes => resumes::play(context, strict),
            Self::Xcopies => xcopies::play(context),
        }
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scenario| scenario.name() == text);
        found.ok_or_else(|| {
            format!("{text} is not a scenario; choose clients, copies, drains, resumes or xcopies")
        })
    }
}
