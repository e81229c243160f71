//! A copy with open endpoints: copies by the target, by storage or by the engine, in this order.

use std::sync::Arc;

use block::{Endpoint, Fingerprint, Medium, NewFile};
use io::Io;
use mover::{Checked, CopyError, Plan, Report};

use crate::cpu::CpuTime;
use crate::host::Watch;
use crate::journal::{Earlier, Kept};
use crate::offload::{self, Offloaded};
use crate::outcome::{self, Way};
use crate::remote::{self, ByTarget};
use crate::report::Record;
use crate::since::Changes;
use crate::stream::Piped;
use crate::{Copied, EndPath, Ending, Failure, Job, Mismatch, manifest, protection};

/// A copy that passed all checks: its endpoints are open, its destination is locked, its journal has begun. If it is
/// dropped instead of run, nothing is written to the destination, and the journal stays in the state directory.
pub struct Prepared<'a>(Ends<'a>);

enum Ends<'a> {
    Stream(Box<Piped<'a>>),
    Pair(Box<Paired<'a>>),
}

impl<'a> From<Piped<'a>> for Prepared<'a> {
    fn from(piped: Piped<'a>) -> Self {
        Self(Ends::Stream(Box::new(piped)))
    }
}

impl<'a> From<Paired<'a>> for Prepared<'a> {
    fn from(paired: Paired<'a>) -> Self {
        Self(Ends::Pair(Box::new(paired)))
    }
}

impl Prepared<'_> {
    /// The plan divided into chunks; `None` for a stream, whose length is unknown.
    pub fn checked(&self) -> Option<&Checked> {
        match &self.0 {
            Ends::Stream(_) => None,
            Ends::Pair(paired) => Some(&paired.pair.checked),
        }
    }

    /// Copies by the target, by storage or through this host's memory; verifies; ends the journal; writes the manifest.
    pub fn run(self, record: &mut Record) -> Result<Copied, Failure> {
        match self.0 {
            Ends::Stream(piped) => piped.run(record),
            Ends::Pair(paired) => paired.run(record),
        }
    }
}

pub struct Pair {
    pub source: Box<dyn Endpoint>,
    pub destination: Box<dyn Endpoint>,
    pub checked: Checked,
    /// Whether no writer of the source is known.
    pub source_consistent: bool,
    /// Fingerprint of the source before the first read; with a snapshot, of the snapshot's origin.
    pub source_was: Fingerprint,
    /// The journal of the interrupted copy that this one resumes.
    pub(crate) earlier: Option<Earlier>,
    /// The file that was made for this copy. Dropping it removes the file if nothing was written.
    pub(crate) created: Option<NewFile>,
    /// Media of source and destination, kept open as long as the endpoints.
    pub media: [Arc<dyn Medium>; 2],
}

/// The state of [`Prepared`] between two endpoints.
pub(crate) struct Paired<'a> {
    pub(crate) job: &'a Job<'a>,
    pub(crate) pair: Pair,
    /// Where the source differs from an earlier state, if `--since` names a bitmap or a snapshot.
    pub(crate) changes: Option<Changes>,
    pub(crate) kept: Kept,
    /// Kind of the snapshot, if the source is one.
    pub(crate) snapshot: Option<&'static str>,
    /// The loop to which the endpoints are attached. Declared last: fields are dropped in order, the endpoints first.
    pub(crate) io: Io,
}

impl Paired<'_> {
    fn run(mut self, record: &mut Record) -> Result<Copied, Failure> {
        let (created, journal) = (self.pair.created.take(), self.kept.path());
        let result = self.copy(record);
        // The command that resumes the copy needs the file.
        if let Some(created) = created
            && (result.is_ok() || journal.is_some_and(|journal| journal.exists()))
        {
            created.keep();
        }
        result
    }

    fn copy(mut self, record: &mut Record) -> Result<Copied, Failure> {
        match remote::copy(self.job, &mut self.io, &mut self.pair, &mut self.kept, record) {
            Ok(Some(by_target)) => self.finish_by_target(by_target, record),
            Ok(None) => self.run_here(record),
            Err(failure) => Err(self.kept.failed(self.job, &*self.pair.destination, failure)?),
        }
    }

    fn finish_by_target(mut self, by_target: ByTarget, record: &mut Record) -> Result<Copied, Failure> {
        self.kept.finish(true)?;
        let Pair { source, destination, source_consistent, .. } = self.pair;
        let protection = protection::of_both(&*source, &*destination);
        let way = Way::Target(by_target);
        let copied = Copied {
            way,
            source_consistent,
            protection,
            network: [].into(),
            paths: Vec::new(),
            snapshot: None,
            manifest: None,
        };
        self.job.finished(&copied, record);
        crate::close(&mut self.io, [source, destination]);
        Ok(copied)
    }

    /// Storage copies first what it can by itself; the engine copies the rest.
    fn run_here(mut self, record: &mut Record) -> Result<Copied, Failure> {
        let job = self.job;
        let before = CpuTime::now();
        let mut offloaded = match offload::offload(job, &self.pair, &mut self.kept.map) {
            Ok(offloaded) => offloaded,
            Err(failure) => {
                if !self.kept.is_resumed {
                    self.kept.obsolete.clear();
                    self.kept.finish(true)?;
                }
                return Err(failure);
            }
        };
        let result = self.engine(record);
        let cpu = CpuTime::now().since(before);
        let source = &*self.pair.source;
        match result {
            Ok(mut report) => {
                offloaded.amend(&mut report, &source.inspect().fingerprint());
                report.source_changed |=
                    self.changes.as_ref().is_some_and(|changes| changes.are_stale(source));
                self.finish(report, cpu, offloaded, record)
            }
            Err(error) => {
                if let CopyError::Verify { offset, length } = error {
                    let Pair { checked: Checked { bytes, .. }, source_consistent, .. } = self.pair;
                    job.host.on_mismatch(&Mismatch { bytes, offset, length, source_consistent });
                }
                let failure = outcome::failure(job, &error);
                Err(self.kept.failed(job, &*self.pair.destination, failure)?)
            }
        }
    }

    /// One call of the copy engine, with or without a journal.
    fn engine(&mut self, record: &mut Record) -> Result<Report, CopyError> {
        let Self { job, io, pair, changes, kept, .. } = self;
        let only = changes.as_ref().map(|changes| changes.only.clone());
        let impact = job.request.impact.plan([&*pair.source, &*pair.destination]);
        let skip_bad = kept.journal.is_some();
        let plan = Plan { map: kept.map.take(), only, skip_bad, impact, ..job.request.plan() };
        let _orderly = job.host.stop().orderly();
        let mut watch = Watch::new(job.host);
        watch.follow(&[("source", &*pair.source), ("destination", &*pair.destination)]);
        let mut observer = |now: &mover::Progress| watch.observe(now);
        let (from, to) = (&mut *pair.source, &mut *pair.destination);
        let result = match &mut kept.journal {
            Some(journal) => mover::copy_with_journal(io, from, to, &plan, &mut observer, journal),
            None => mover::copy(io, from, to, &plan, &mut observer),
        };
        record.followed = watch.take_network();
        record.series.extend(watch.finish());
        result
    }

    /// Ends the copy. All areas that could be read are copied and durable.
    fn finish(
        mut self,
        mut report: Report,
        cpu: CpuTime,
        offloaded: Offloaded,
        record: &mut Record,
    ) -> Result<Copied, Failure> {
        let job = self.job;
        if report.source_changed {
            job.host.warn(&format!(
                "{} was written while it was copied: the copy may mix several moments of it",
                job.source.text()
            ));
        }
        let command = self.kept.command(job);
        self.kept.finish(report.unreadable_bytes == 0)?;
        let manifest = manifest::write(job, &self.pair, report.sums.take())?;
        let unreadable = outcome::unreadable(&report, job.source.text(), &command);
        let Pair { source, destination, source_consistent, .. } = self.pair;
        let copied = Copied {
            source_consistent: source_consistent && !report.source_changed,
            protection: protection::of_both(&*source, &*destination),
            network: std::mem::take(&mut record.followed).judge(&report).into(),
            paths: [("source", &*source), ("destination", &*destination)]
                .into_iter()
                .filter_map(|(name, end)| EndPath::of(name, end))
                .collect(),
            way: Way::Engine(Box::new(report), cpu, offloaded),
            snapshot: self.snapshot,
            manifest,
        };
        job.finished(&copied, record);
        crate::close(&mut self.io, [source, destination]);
        if copied.ending() == Ending::Unreadable {
            job.host.warn(&unreadable);
        }
        Ok(copied)
    }
}
