//! What an analysis found.

use crate::capture;
use crate::command::{Command, Counts, Summary};
use crate::model::{Evidence, Verdict};
use crate::series::Series;
use crate::view::{Flow, Subject};

/// The connections of a capture.
#[derive(Debug)]
pub struct Report {
    /// iSCSI connections, the one with most data first.
    pub flows: Vec<FlowReport>,
    pub frames: capture::Counts,
    /// Time of the last packet.
    pub ended_ns: u64,
    /// What keeps the analysis from being whole.
    pub notes: Vec<String>,
}

/// One connection.
#[derive(Debug)]
pub struct FlowReport {
    pub flow: Flow,
    pub verdict: Verdict,
    pub evidence: Evidence,
    pub series: Series,
    /// The first commands, the slowest and a sample of the others, in the order of their start;
    /// [`Flow::commands`] counts all.
    pub commands: Vec<Command>,
    pub summary: Summary,
    pub counts: Counts,
    /// First to last packet.
    pub seconds: f64,
    /// TCP payload by sender ([`crate::Side`] as index), repeated bytes left out.
    pub payload_bytes: [u64; 2],
    /// What could not be seen.
    pub notes: Vec<String>,
}

impl FlowReport {
    /// What views show.
    pub fn subject(&self) -> Subject<'_> {
        Subject {
            flow: self.flow.clone(),
            verdict: &self.verdict,
            evidence: &self.evidence,
            series: &self.series,
            commands: &self.commands,
            notes: &self.notes,
        }
    }
}
