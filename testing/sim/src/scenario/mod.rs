//! Scenarios: a target with a disk, initiators with work, and faults.

mod clients;
mod copies;
mod faults;
mod host;
mod ledger;
mod process;
mod remote;
mod resumes;
mod target;
mod volume;
mod worker;
mod xcopies;

use clap::ValueEnum;

use crate::random::Random;
use crate::world::{Context, Over};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Scenario {
    /// One to three initiators read, write and flush; every answer is checked.
    Clients,
    /// The mover copies a disk into the LUN.
    Copies,
    /// `Clients`, and the target is drained or stopped under load.
    Drains,
    /// The mover copies with a journal, and resumes by it until the copy is complete.
    Resumes,
    /// The target copies from one LUN to another (EXTENDED COPY), while other clients write.
    Xcopies,
}

impl Scenario {
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
