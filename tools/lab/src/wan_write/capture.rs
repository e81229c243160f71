//! The capture of a case through the crate `monitor`: events for the trace, commands, and the verdict.

use std::fs::File;
use std::path::Path;

use monitor::analysis::{Analyzer, Options};
use monitor::capture::Reader;
use monitor::command::{Command, Tracker};
use monitor::event::Distances;
use monitor::flow::Table;
use monitor::model::Verdict;

use super::trace::Trace;
use crate::{Attempted, LabError};

pub(super) struct Captured {
    pub(super) trace: Trace,
    pub(super) commands: Vec<Command>,
    /// Of the connection that carried most; `None` if there is none.
    pub(super) verdict: Option<Verdict>,
}

/// What passed between an initiator and `port`, the target's, captured at these distances.
pub(super) fn read(path: &Path, port: u16, distances: Distances) -> Result<Captured, LabError> {
    let doing = format!("read {}", path.display());
    let mut reader = Reader::new(File::open(path).attempted(&doing)?).attempted(&doing)?;
    let (mut table, mut tracker) = (Table::new(&[port]), Tracker::new());
    let mut analyzer = Analyzer::new(Options { ports: vec![port], ..Options::default() });
    let (mut trace, mut commands) = (Trace::default(), Vec::new());
    tracker.set_distances(distances);
    while let Some(packet) = reader.next().attempted(&doing)? {
        analyzer.handle(&packet);
        table.push(&packet, &mut |_, event| {
            trace.add(event);
            tracker.handle(event);
            commands.extend(std::iter::from_fn(|| tracker.poll_command()));
        });
    }
    tracker.finish();
    commands.extend(std::iter::from_fn(|| tracker.poll_command()));
    let report = analyzer.finish(&path.display().to_string(), reader.counts(), &reader.notes());
    let verdict = report.flows.into_iter().next().map(|flow| flow.verdict);
    Ok(Captured { trace, commands, verdict })
}
