//! A case observed closely: its packets, its commands, its socket.

use std::ops::Range;
use std::time::Duration;

use monitor::command::{Command, Transfer};
use monitor::event::Distances;
use monitor::model::Verdict;

use super::capture::{Captured, read};
use super::place::Place;
use super::plan::{Row, Who, cell_name};
use super::trace::{Burst, Trace};
use super::watch::{Observed, Watch};
use super::writer::Wrote;
use crate::LabError;
use crate::stats::Spread;

/// Durations of the warm-up and of the observation. Several writes are always made.
const WARM_UP_MS: u64 = 500;
const OBSERVED_MS: u64 = 600;

pub(super) struct Watched {
    pub(super) row: Row,
    pub(super) rtt: Duration,
    pub(super) block: u32,
    pub(super) trace: Trace,
    /// Complete writes within the observation; empty for plain sockets.
    pub(super) commands: Vec<Command>,
    pub(super) observed: Vec<Observed>,
    /// What the analyser says about the whole capture, login and warm-up included.
    pub(super) verdict: Option<Verdict>,
    /// Greatest lateness of the path, milliseconds.
    pub(super) late_ms: f64,
}

impl Watched {
    pub(super) fn new(row: Row, rtt: Duration, block: u32) -> Result<Self, LabError> {
        let place = Place::new(rtt, true)?;
        let (mut part, ready) = place.writer(&row, block)?;
        let _: Wrote = part.ask(WARM_UP_MS)?;
        place.wan.line().reset_counters();
        let watch = Watch::start(place.wan.side(0).path(), Place::port(&row), ready.pid)?;
        let _: Wrote = part.ask(OBSERVED_MS)?;
        let observed = watch.finish()?;
        let late_ms = place.late_ms();
        drop(part);
        place.wan.line().finish_tap()?;
        let path = place.folder.path().join("initiator.pcap");
        // The capture is taken beside the initiator: the round trip lies behind it.
        let distances = Distances { initiator_ns: Some(0), target_ns: Some(rtt.as_nanos() as u64) };
        let Captured { trace, commands, verdict } = read(&path, Place::port(&row), distances)?;
        let ends = observed.first().zip(observed.last());
        let (first, last) =
            ends.ok_or_else(|| LabError::new(cell_name(&row, rtt), &"no sample of the socket"))?;
        let period = first.sample.at_ns..last.sample.at_ns;
        let is_within = |command: &Command| {
            command.transfer == Transfer::Write
                && period.contains(&command.at_ns)
                && period.contains(&(command.at_ns + command.latency_ns))
        };
        let commands = commands.into_iter().filter(is_within).collect();
        Ok(Self { row, rtt, block, trace: trace.within(period), commands, observed, verdict, late_ms })
    }

    /// Milliseconds of a part of each write.
    fn part(&self, ns: impl Fn(&Command) -> Option<u64>) -> Option<Spread> {
        Spread::of(self.commands.iter().filter_map(ns).map(|ns| ns as f64 / 1e6))
    }

    /// First to last data packet.
    pub(super) fn ta(&self) -> Option<Spread> {
        self.part(|command| Some(command.ta_ns))
    }

    /// Last data packet to the response, without the round trip.
    pub(super) fn tb(&self) -> Option<Spread> {
        let rtt_ns = self.rtt_ns();
        self.part(|command| Some(command.tb_ns.saturating_sub(rtt_ns)))
    }

    /// Response to the next write.
    pub(super) fn tc(&self) -> Option<Spread> {
        self.part(|command| command.tc_ns)
    }

    /// The least round trip that the kernel measured; the path's if it did not.
    pub(super) fn rtt_ns(&self) -> u64 {
        let least = self.observed.iter().filter_map(|one| one.sample.min_rtt_us).filter(|us| *us > 0).min();
        least.map_or(self.rtt.as_nanos() as u64, |us| u64::from(us) * 1000)
    }

    pub(super) fn bursts(&self) -> Vec<Burst> {
        self.trace.bursts(self.rtt)
    }

    /// The last whole write: from its first packet to the next write's.
    pub(super) fn one_write(&self) -> Option<Range<u64>> {
        let writes = self.trace.writes();
        let last = writes.len().checked_sub(2)?;
        Some(writes[last]..writes[last + 1])
    }

    /// Median of a value of the samples.
    pub(super) fn sampled(&self, value: impl Fn(&monitor::Sample) -> Option<u32>) -> Option<f64> {
        let values = self.observed.iter().filter_map(|one| value(&one.sample)).map(f64::from);
        Some(Spread::of(values)?.median)
    }

    /// Shares of the samples by the function in which the writer slept, the greatest first; running is `None`.
    pub(super) fn sleeps(&self) -> Vec<(Option<&str>, f64)> {
        let mut counts: Vec<(Option<&str>, f64)> = Vec::new();
        for one in &self.observed {
            let place = one.sleeps_in.as_deref();
            match counts.iter_mut().find(|(known, _)| *known == place) {
                Some((_, count)) => *count += 1.0,
                None => counts.push((place, 1.0)),
            }
        }
        let all = self.observed.len().max(1) as f64;
        counts.iter_mut().for_each(|(_, count)| *count /= all);
        counts.sort_by(|a, b| b.1.total_cmp(&a.1));
        counts
    }

    pub(super) fn is_iscsi(&self) -> bool {
        self.row.who != Who::Socket
    }
}
