//! `--remote-copy`: the target copies between two of its own LUNs; the data does not pass through this host.

use std::time::Duration;

use io::Io;
use mover::{CopyError, FileJournal, Journal, Map, Status};
use node::initiator::{RemoteCopyError, RemoteObserver, RemotePlan, RemoteReport, Url, remote_copy};
use serde_json::{Value, json};

use crate::host::Watch;
use crate::journal::Kept;
use crate::report::Record;
use crate::{Address, Choice, Failure, Job, Mismatch, Pair, SCHEMA, Sample, outcome, units};

#[derive(Clone, Debug)]
pub struct ByTarget {
    pub report: RemoteReport,
    pub bytes: u64,
    pub resumed_bytes: u64,
    pub claims: u64,
    /// Seconds of reading and comparing both ends; `None` if the plan does not verify.
    pub verify_seconds: Option<f64>,
}

/// Lets the target copy, and verifies if the plan says so. `None`: the data must pass through this host.
pub fn copy(
    job: &Job<'_>,
    io: &mut Io,
    pair: &mut Pair,
    kept: &mut Kept,
    record: &mut Record,
) -> Result<Option<ByTarget>, Failure> {
    let Job { host, request, source, destination, .. } = job;
    let ends = match (request.remote_copy, one_target(&**source, &**destination)) {
        (Choice::Off, _) => return Ok(None),
        // The default case; it causes no remark.
        (Choice::Auto, None) => return Ok(None),
        (Choice::Require, None) => return here(job, "the two are not LUNs of one target at one portal"),
        (_, Some(ends)) => ends,
    };
    if let Some(why) = unsuitable(job) {
        return here(job, why);
    }
    let Some(held) = request.plan.rate.hold_unlimited("the target copies by itself, at its own rate") else {
        return here(job, "a copy by the target has no rate limit (--rate)");
    };
    let bytes = pair.checked.bytes;
    let map = kept.map.take().unwrap_or_else(|| Map::new(bytes));
    let resumed_bytes = map.bytes(Status::Finished);
    let plan = plan(job, &ends, bytes, &map);
    let [_, to] = ends;
    let options = destination.login(&to)?;
    let _orderly = host.stop().orderly();
    let has_journal = kept.journal.is_some();
    let (watch, journal) = (Watch::new(*host), kept.journal.as_mut());
    let mut claims = Claims { watch, stop: host.stop(), total: bytes, resumed_bytes, map, journal, count: 0 };
    let result = remote_copy(io, &to, &options, &plan, &mut claims);
    drop(held);
    let Claims { watch, map, count: claims, .. } = claims;
    record.series.extend(watch.finish());
    // The engine, or a copy that resumes this one, continues from this map.
    kept.map = has_journal.then_some(map);
    let report = match result {
        Ok(report) => report,
        Err(error) => return unfinished(job, error, has_journal),
    };
    let verify_seconds = if request.plan.verify { Some(verify(job, io, pair, record)?) } else { None };
    Ok(Some(ByTarget { report, bytes, resumed_bytes, claims, verify_seconds }))
}

/// `Ok(None)`, so that the data passes through this host; a failure with `Choice::Require`.
fn here(job: &Job<'_>, why: &str) -> Result<Option<ByTarget>, Failure> {
    match job.request.remote_copy {
        Choice::Require => Err(Failure::failed("let the target copy to", job.destination.text(), why)
            .hint("without --remote-copy require the data goes through this host")),
        Choice::Auto => {
            job.host.remark(&format!("copying through this host: {why}"));
            Ok(None)
        }
        Choice::Off => Ok(None),
    }
}

/// The part of the range not finished in `map`, as a plan for the target.
fn plan(job: &Job<'_>, [from, to]: &[Url; 2], bytes: u64, map: &Map) -> RemotePlan {
    let open = map.entries().filter(|entry| entry.status != Status::Finished);
    RemotePlan {
        source: from.lun.expect("an open LUN has a number"),
        destination: to.lun.expect("an open LUN has a number"),
        src_offset: job.request.plan.src_offset,
        dst_offset: job.request.plan.dst_offset,
        bytes,
        open: open.map(|entry| (entry.start, entry.end)).collect(),
    }
}

/// Turns an error of the remote copy into `Ok(None)` or a failure.
fn unfinished(job: &Job<'_>, error: RemoteCopyError, has_journal: bool) -> Result<Option<ByTarget>, Failure> {
    let failed = |cause: String| Failure::failed("let the target copy to", job.destination.text(), cause);
    Err(match error {
        RemoteCopyError::Impossible(why) => return here(job, &why),
        RemoteCopyError::Refused(why) => return here(job, &format!("the target refuses: {why}")),
        RemoteCopyError::Lost(error) => {
            let failure = Failure::io("let the target copy to", job.destination.text(), &error);
            // With a journal, `Kept::failed` appends the command that resumes the copy.
            failure.hint(if has_journal {
                "check the target; it may still be executing the last command"
            } else {
                "check the target; then the same command with --force begins anew"
            })
        }
        RemoteCopyError::Flush(why) => failed(format!("the flush failed: {why}")),
        RemoteCopyError::Claim(why) => failed(format!("the journal cannot be written: {why}")),
        RemoteCopyError::Interrupted(bytes_safe) => {
            outcome::failure(job, &CopyError::Interrupted { phase: mover::Phase::Copy, bytes_safe })
        }
    })
}

/// Shows the progress of the target, and records durable ranges in the journal.
struct Claims<'a> {
    watch: Watch<'a>,
    stop: &'a crate::Stop,
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
            Sample { phase: "copy", bytes, data_bytes: done, total: self.total, ..Sample::default() };
        let sample = Sample { limited_by: "target", ..sample };
        self.watch.update(&sample);
        !self.stop.is_requested()
    }

    fn claims_every(&self) -> Option<Duration> {
        self.journal.as_ref().map(|journal| journal.every())
    }

    fn on_durable(&mut self, ranges: &[(u64, u64)]) -> Result<(), String> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        for (start, end) in ranges {
            self.map.set(*start, *end, Status::Finished);
        }
        self.count += 1;
        journal.claim(&self.map)
    }
}

/// Both URLs, if they name LUNs of one target at one portal with one initiator name.
fn one_target(source: &dyn Address, destination: &dyn Address) -> Option<[Url; 2]> {
    let (from, to) = (source.url()?, destination.url()?);
    let same = (&from.host, from.port, &from.target) == (&to.host, to.port, &to.target)
        && source.spec().get("initiator") == destination.spec().get("initiator");
    same.then_some([from, to])
}

/// The first option of the request that a target does not support.
fn unsuitable(job: &Job<'_>) -> Option<&'static str> {
    let Job { request, source, destination, .. } = job;
    let layered = |end: &dyn Address| block::layer::OPTIONS.iter().any(|name| end.spec().get(name).is_some());
    match () {
        () if !request.plan.sparse => {
            Some("a copy by the target cannot be made to write zeroes (--sparse off)")
        }
        () if request.since.is_some() => Some("a copy by the target cannot be limited to changes (--since)"),
        () if request.manifest.is_some() => Some("a target does not report digests of extents (--manifest)"),
        () if layered(&**source) || layered(&**destination) => {
            Some("an endpoint has layers, which the target does not")
        }
        () => None,
    }
}

/// Reads and compares both ends. Returns the seconds it took.
fn verify(job: &Job<'_>, io: &mut Io, pair: &mut Pair, record: &mut Record) -> Result<f64, Failure> {
    let plan = mover::Plan { size: Some(pair.checked.bytes), verify: false, ..job.request.plan() };
    let mut watch = Watch::new(job.host);
    let mut observer = |now: &mover::Progress| watch.observe(now);
    let result = mover::compare(io, &mut *pair.source, &mut *pair.destination, &plan, &mut observer);
    record.series.extend(watch.finish());
    let error = match result {
        Ok(comparison) => match comparison.first_difference {
            None => return Ok(comparison.duration.as_secs_f64()),
            Some(at) => {
                let offset = plan.dst_offset + at;
                let Pair { checked, source_consistent, .. } = pair;
                let mismatch = Mismatch {
                    bytes: checked.bytes,
                    offset,
                    length: 1,
                    source_consistent: *source_consistent,
                };
                job.host.on_mismatch(&mismatch);
                CopyError::Verify { offset, length: 1 }
            }
        },
        Err(CopyError::Interrupted { .. }) => {
            CopyError::Interrupted { phase: mover::Phase::Verify, bytes_safe: pair.checked.bytes }
        }
        Err(error) => error,
    };
    Err(outcome::failure(job, &error))
}

impl ByTarget {
    /// The final object of `copy --json`: the fields that apply, and the session's bytes with headers.
    pub(crate) fn object(&self, source_consistent: bool) -> Value {
        let seconds = self.report.duration.as_secs_f64();
        let (received, sent) = self.report.session_bytes;
        json!({
            "schema": SCHEMA,
            "remote_copy": true,
            "offload": "none",
            "bytes": self.bytes,
            "data_bytes": self.bytes - self.resumed_bytes,
            "seconds": units::rounded(seconds),
            "mb_per_s": units::rounded(outcome::mb_per_s(self.bytes - self.resumed_bytes, seconds)),
            "data_mb_per_s": units::rounded(outcome::mb_per_s(self.bytes - self.resumed_bytes, seconds)),
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

    pub(crate) fn sentence(&self) -> String {
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
}
