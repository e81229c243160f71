//! Pictures and pages of finished analyses: [`html`] (one page), [`svg`] (figures), [`xpl`] (graphs for xplot).
//!
//! Writers take [`Subject`]s and a [`std::io::Write`]; they open no files. Text that came from a packet or from the user
//! is escaped here, whatever it holds.

mod chart;
mod columns;
mod escape;
mod figure;
pub mod html;
pub mod svg;
mod words;
pub mod xpl;

use crate::command::Command;
use crate::event::{Distances, Vantage};
use crate::model::{Evidence, Verdict};
use crate::series::Series;

/// One connection with everything that a page shows of it. Borrowed: the analysis owns the parts.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    pub flow: Flow,
    pub verdict: &'a Verdict,
    pub evidence: &'a Evidence,
    pub series: &'a Series,
    /// Some or all of the commands, in the order of their start; [`Flow::commands`] counts all.
    pub commands: &'a [Command],
    /// What could not be seen of the connection, besides the notes of the verdict.
    pub notes: &'a [String],
}

/// What is known of a connection besides its evidence. Names may hold any character.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Short and unique within the analysis, as in `--json`.
    pub id: String,
    /// What was read: the name of a capture or recording, or what was observed.
    pub source: String,
    /// Address and port of each end, as text.
    pub initiator: String,
    pub target: String,
    /// iSCSI names of each end; `None` if the login was not captured.
    pub initiator_name: Option<String>,
    pub target_name: Option<String>,
    pub vantage: Vantage,
    pub distances: Distances,
    /// Negotiated keys with their values, in the order to show.
    pub negotiated: Vec<(String, String)>,
    /// Commands that ended, reads and writes.
    pub commands: u64,
    /// Frames of the connection.
    pub frames: u64,
}
