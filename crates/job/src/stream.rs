//! `-`: standard input as the source, standard output as the destination.
//!
//! A stream has no size and cannot be read twice, so such a copy keeps no journal and cannot be resumed. If standard
//! output is the destination, nothing else may be printed there.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use block::NewFile;
use io::Io;
use mover::{CopyError, copy_from_stream, copy_to_stream};

use crate::cpu::CpuTime;
use crate::host::Watch;
use crate::outcome::Way;
use crate::refusals::Opened;
use crate::report::Record;
use crate::{Choice, Copied, Failure, Job, Request, Resume, journal, outcome, protection, refusals};

/// A copy from or to a stream that passed all checks. Its endpoint is open and, as a destination, locked.
pub(crate) struct Piped<'a> {
    job: &'a Job<'a>,
    end: Opened,
    source_consistent: bool,
    /// The file that was made for this copy.
    created: Option<NewFile>,
    /// Processor time before anything was opened.
    before: CpuTime,
    _claim: Option<File>,
    /// The loop to which the endpoint is attached. Declared last: fields are dropped in order, the endpoint first.
    io: Io,
}

/// Refuses what a copy from or to a stream cannot do.
pub(crate) fn check(job: &Job<'_>) -> Result<(), Failure> {
    unsuitable(job.request, job.source.is_stream(), job.destination.is_stream())
}

impl<'a> Piped<'a> {
    pub(crate) fn prepare(job: &'a Job<'a>) -> Result<Self, Failure> {
        check(job)?;
        let from = job.source.is_stream();
        let before = CpuTime::now();
        let mut io = crate::event_loop()?;
        let (end, source_consistent, created, _claim) = if from {
            let (end, created) = refusals::prepare_destination(job, &mut io)?;
            let claim = journal::claim_short(job, &*end.1)?;
            (end, true, created, claim)
        } else {
            let (end, source_consistent) = refusals::prepare_source(job, &mut io)?;
            (end, source_consistent, None, None)
        };
        Ok(Self { job, io, end, source_consistent, created, before, _claim })
    }

    pub(crate) fn run(self, record: &mut Record) -> Result<Copied, Failure> {
        let Self { job, mut io, end: (_medium, mut end), source_consistent, created, before, _claim } = self;
        let (plan, mut watch) = (job.request.plan(), Watch::new(job.host));
        let mut observer = |now: &mover::Progress| watch.observe(now);
        let result = {
            let _orderly = job.host.stop().orderly();
            if job.source.is_stream() {
                let stdin = File::from(owned(&std::io::stdin())?);
                copy_from_stream(&mut io, Box::new(stdin), &mut *end, &plan, &mut observer)
            } else {
                let stdout = File::from(owned(&std::io::stdout())?);
                copy_to_stream(&mut io, &mut *end, Box::new(stdout), &plan, &mut observer)
            }
        };
        record.series.extend(watch.finish());
        let cpu = CpuTime::now().since(before);
        let protection = protection::of(&end.inspect().facts());
        crate::close(&mut io, [end]);
        let report = result.map_err(|error| failure(job, &error))?;
        let way = Way::Stream(Box::new(report), cpu);
        let copied = Copied { way, source_consistent, protection, snapshot: None, manifest: None };
        if let Some(created) = created {
            created.keep();
        }
        job.finished(&copied, record);
        Ok(copied)
    }
}

fn owned(stream: &dyn AsFd) -> Result<std::os::fd::OwnedFd, Failure> {
    let owned = stream.as_fd().try_clone_to_owned();
    owned.map_err(|error| Failure::failed("open", "-", error))
}

/// Refuses options that a stream does not support.
fn unsuitable(request: &Request, from: bool, to: bool) -> Result<(), Failure> {
    let cause = match () {
        () if from && to => "only one of the two can be a stream",
        () if from && std::io::stdin().is_terminal() => "standard input is a terminal",
        () if to && std::io::stdout().is_terminal() => "standard output is a terminal",
        () if !matches!(request.resume, Resume::Found | Resume::Off) => {
            "a stream cannot be read or written from the middle (--resume)"
        }
        () if request.since.is_some() => "a stream has no earlier state, and is not compared (--since)",
        () if request.manifest.is_some() => "a stream is not verified extent by extent (--manifest)",
        () if request.remote_copy == Choice::Require => "a stream is no LUN (--remote-copy require)",
        () if request.offload == Choice::Require => {
            "a stream is no file to share blocks with (--offload require)"
        }
        () if to && request.plan.verify => "what went into a stream cannot be read back (--verify)",
        () if to && request.plan.dst_offset > 0 => "a stream has one place to write to (--dst-offset)",
        () => return Ok(()),
    };
    Err(Failure::usage("copy", if from { "from -" } else { "to -" }, cause).hint("name a file"))
}

fn failure(job: &Job<'_>, error: &CopyError) -> Failure {
    match error {
        CopyError::Interrupted { bytes_safe, .. } => {
            let mut failure = job.host.stop().failure("finish the copy to", job.destination.text());
            failure.cause += &format!("; the first {bytes_safe} bytes are copied");
            failure
        }
        CopyError::Long { .. } => outcome::failure(job, error)
            .hint("a larger destination, or --size to copy less; what fits was written"),
        CopyError::Short { .. } => {
            outcome::failure(job, error).hint("see why what writes the stream ended; what came was written")
        }
        error => outcome::failure(job, error),
    }
}
