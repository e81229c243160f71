//! `--remote-copy`: two LUNs of one target are copied by that target, and the data never comes here.

use std::time::Duration;

use clap::ValueEnum;
use io::Io;
use mover::{CopyError, FileJournal, Journal, Map, Status};
use node::initiator::{RemoteCopyError, RemoteObserver, RemotePlan, RemoteReport, Url, remote_copy};
use serde_json::{Value, json};

use super::journal::Kept;
use super::report::Record;
use super::{Args, Pair, Sparse, outcome};
use crate::context::{Context, Stop};
use crate::endpoint::Named;
use crate::error::{Exit, Failure};
use crate::progress::{Progress, Sample};
use crate::{output, units};

/// `--remote-copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RemoteCopy {
    /// Where both ends are LUNs of one target that can
    Auto,
    /// Never
    Off,
    /// Or not at all
    Require,
}

impl RemoteCopy {
    /// As it is asked for; `None` where nobody need ask.
    pub(super) fn word(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::Off => Some("off"),
            Self::Require => Some("require"),
        }
    }
}

/// How a copy was made that did not pass through here.
pub(super) struct Copied {
    report: RemoteReport,
    bytes: u64,
    /// Of them an earlier copy had finished.
    resumed_bytes: u64,
    claims: u64,
    /// Of reading both ends afterwards.
    verify_seconds: Option<f64>,
}

/// Lets the target copy, and verifies if asked. `None`: it is to be copied through here.
pub(super) fn copy(
    context: &Context,
    args: &Args,
    io: &mut Io,
    pair: &mut Pair,
    [source, destination]: [&Named; 2],
    kept: &mut Kept,
    record: &mut Record,
) -> Result<Option<Copied>, Failure> {
    let bytes = pair.checked.bytes;
    let here = |why: &str| match args.remote_copy {
        RemoteCopy::Require => Err(Failure::failed("let the target copy to", destination.text.clone(), why)
            .hint("without --remote-copy require the data goes through this host")),
        RemoteCopy::Auto => {
            context.remark(&format!("copying through this host: {why}"));
            Ok(None)
        }
        RemoteCopy::Off => Ok(None),
    };
    let (from, to) = match (args.remote_copy, one_target(source, destination)) {
        (RemoteCopy::Off, _) => return Ok(None),
        // Nobody expects it there.
        (RemoteCopy::Auto, None) => return Ok(None),
        (RemoteCopy::Require, None) => return here("the two are not LUNs of one target at one portal"),
        (_, Some(ends)) => ends,
    };
    if let Some(why) = unsuitable(args, source, destination) {
        return here(why);
    }
    let map = kept.map.take().unwrap_or_else(|| Map::new(bytes));
    let open = map.stretches().filter(|stretch| stretch.status != Status::Finished);
    let plan = RemotePlan {
        source: from.lun.expect("an open LUN has a number"),
        destination: to.lun.expect("an open LUN has a number"),
        src_offset: args.range.src_offset,
        dst_offset: args.range.dst_offset,
        bytes,
        open: open.map(|stretch| (stretch.start, stretch.end)).collect(),
    };
    let resumed_bytes = map.bytes(Status::Finished);
    let options = destination.initiator_options(context, &to)?;
    let _orderly = context.stop.orderly();
    let (progress, journal) = (Progress::new(context), kept.journal.as_mut());
    let mut claims =
        Claims { progress, stop: &context.stop, total: bytes, resumed_bytes, map, journal, count: 0 };
    let result = remote_copy(io, &to, &options, &plan, &mut claims);
    let Claims { progress, map, count, .. } = claims;
    record.series.extend(progress.finish());
    // Whoever goes on goes on from here.
    kept.map = kept.journal.is_some().then_some(map);
    let failed = |cause: String| Failure::failed("let the target copy to", destination.text.clone(), cause);
    let report = match result {
        Ok(report) => report,
        Err(RemoteCopyError::Impossible(why)) => return here(&why),
        Err(RemoteCopyError::Refused(why)) => return here(&format!("the target refuses: {why}")),
        Err(RemoteCopyError::Lost(error)) => {
            let failure = Failure::io("let the target copy to", destination.text.clone(), &error);
            // With a journal the command that goes on is told behind it.
            return Err(failure.hint(match kept.journal {
                Some(_) => "see what became of the target; it may still be at what it was asked last",
                None => "see what became of the target; then the same command with --force begins anew",
            }));
        }
        Err(RemoteCopyError::Flush(why)) => return Err(failed(format!("the flush failed: {why}"))),
        Err(RemoteCopyError::Claim(why)) => {
            return Err(failed(format!("the journal cannot be written: {why}")));
        }
        Err(RemoteCopyError::Interrupted(bytes_safe)) => {
            let error = CopyError::Interrupted { phase: mover::Phase::Copy, bytes_safe };
            return Err(outcome::failure(context, args, &error, source, destination));
        }
    };
    let verify_seconds = if args.verify {
        Some(verify(context, args, io, pair, [source, destination], record)?)
    } else {
        None
    };
    Ok(Some(Copied { report, bytes, resumed_bytes, claims: count, verify_seconds }))
}

/// Shows how far the target is, and keeps what it has made durable.
struct Claims<'a> {
    progress: Progress,
    stop: &'a Stop,
    total: u64,
    resumed_bytes: u64,
    map: Map,
    journal: Option<&'a mut FileJournal>,
    count: u64,
}

impl RemoteObserver for Claims<'_> {
    fn on_progress(&mut self, done: u64) -> bool {
        let bytes = self.resumed_bytes + done;
        let sample =
            Sample { phase: "copy", bytes, total: self.total, limited_by: "target", ..Sample::default() };
        self.progress.update(&sample);
        !self.stop.is_asked()
    }

    fn claims_every(&self) -> Option<Duration> {
        self.journal.as_ref().map(|journal| journal.every())
    }

    fn on_durable(&mut self, stretches: &[(u64, u64)]) -> Result<(), String> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        for (start, end) in stretches {
            self.map.set(*start, *end, Status::Finished);
        }
        self.count += 1;
        journal.claim(&self.map)
    }
}

/// The two URLs, if they name LUNs of one target, reached at one portal by one initiator.
fn one_target(source: &Named, destination: &Named) -> Option<(Url, Url)> {
    let (from, to) = (source.url()?, destination.url()?);
    let same = (&from.host, from.port, &from.target) == (&to.host, to.port, &to.target)
        && source.spec.get("initiator") == destination.spec.get("initiator");
    same.then_some((from, to))
}

/// What was asked for and cannot be asked of a target.
fn unsuitable(args: &Args, source: &Named, destination: &Named) -> Option<&'static str> {
    let layered = |named: &Named| block::layer::OPTIONS.iter().any(|name| named.spec.get(name).is_some());
    match () {
        () if args.rate.is_some() => Some("a target is not told how fast to copy (--rate)"),
        () if args.sparse == Sparse::Off => Some("a target is not told to write zeroes (--sparse off)"),
        () if args.since.is_some() => Some("a target is not told what has changed (--since)"),
        () if args.manifest.is_some() => Some("a target does not tell what extents hold (--manifest)"),
        () if layered(source) || layered(destination) => {
            Some("an endpoint has layers, which the target does not")
        }
        () => None,
    }
}

/// Reads both ends and compares them. The seconds it took.
fn verify(
    context: &Context,
    args: &Args,
    io: &mut Io,
    pair: &mut Pair,
    [source, destination]: [&Named; 2],
    record: &mut Record,
) -> Result<f64, Failure> {
    let plan = mover::Plan { size: Some(pair.checked.bytes), verify: false, ..args.plan() };
    let mut progress = Progress::new(context);
    let stop = context.stop.clone();
    let mut observer = |now: &mover::Progress| super::observe(now, &mut progress, &stop);
    let result = mover::compare(io, &mut *pair.source, &mut *pair.destination, &plan, &mut observer);
    record.series.extend(progress.finish());
    let error = match result {
        Ok(comparison) => match comparison.first_difference {
            None => return Ok(comparison.duration.as_secs_f64()),
            Some(at) => CopyError::Verify { offset: args.range.dst_offset + at, length: 1 },
        },
        Err(CopyError::Interrupted { .. }) => {
            CopyError::Interrupted { phase: mover::Phase::Verify, bytes_safe: pair.checked.bytes }
        }
        Err(error) => error,
    };
    Err(outcome::failure(context, args, &error, source, destination))
}

impl Copied {
    /// The object that ends `copy --json`: fields of an ordinary copy that mean something here, and what the session
    /// moved, all headers included.
    pub(super) fn object(&self, source_consistent: bool) -> Value {
        let seconds = self.report.duration.as_secs_f64();
        let (received, sent) = self.report.session_bytes;
        json!({
            "schema": output::SCHEMA,
            "remote_copy": true,
            "offload": "none",
            "bytes": self.bytes,
            "seconds": units::rounded(seconds),
            "mb_per_s": units::rounded(outcome::mb_per_s(self.bytes - self.resumed_bytes, seconds)),
            "resumed_bytes": self.resumed_bytes,
            "claims": self.claims,
            "commands": self.report.commands,
            "session_bytes": { "received": received, "sent": sent },
            "verified": self.verify_seconds.is_some(),
            "source_consistent": source_consistent,
            "limited_by": "target",
            "flush_s": units::rounded(self.report.flush.as_secs_f64()),
            "verify_s": units::rounded(self.verify_seconds.unwrap_or_default()),
        })
    }

    /// The same for people.
    pub(super) fn sentence(&self) -> String {
        let rate =
            outcome::mb_per_s(self.bytes - self.resumed_bytes, self.report.duration.as_secs_f64()) * 1e6;
        let (received, sent) = self.report.session_bytes;
        let mut text = format!(
            "copied {} in {}, {}, by the target itself: {} passed through this host",
            units::bytes(self.bytes),
            units::duration(self.report.duration),
            units::rate(rate),
            units::bytes(received + sent),
        );
        if self.resumed_bytes > 0 {
            text += &format!(", {} of it before", units::bytes(self.resumed_bytes));
        }
        if let Some(seconds) = self.verify_seconds {
            text += &format!(", verified in {}", units::duration(Duration::from_secs_f64(seconds)));
        }
        text
    }

    /// Tells how it went.
    pub(super) fn tell(
        &self,
        context: &Context,
        args: &Args,
        source_consistent: bool,
        protection: Value,
        record: &mut Record,
    ) -> Exit {
        let object = record.outcome.insert(self.object(source_consistent));
        object["protection"] = protection;
        if args.json {
            output::json(object);
        } else if !context.quiet {
            output::line(&self.sentence());
        }
        Exit::Done
    }
}
