//! `-`: standard input as the source, standard output as the destination.
//!
//! A stream has no size and cannot be read twice, so such a copy keeps no journal and cannot be resumed. If standard
//! output is the destination, nothing else may be printed there. `standard` has what applies to streams that are files.

use std::fs::File;
use std::io::IsTerminal;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use block::{Endpoint, Medium, NewFile};
use io::Io;
use mover::{CopyError, Report, copy_from_stream, copy_to_stream};

use crate::cpu::CpuTime;
use crate::host::Watch;
use crate::outcome::Way;
use crate::refusals::Opened;
use crate::report::Record;
use crate::{
    Choice, Copied, EndPath, Failure, Job, Request, Resume, Sample, journal, journals, outcome, protection,
    refusals, standard,
};

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
    /// Standard output, if it is a file or a device: holds its lock.
    _output: Option<Arc<dyn Medium>>,
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
        let plan = &job.request.plan;
        if from {
            let (end, created, source_consistent) = refusals::prepare_destination(job, &mut io)?;
            let last = plan.size.map_or(u64::MAX, |size| plan.dst_offset.saturating_add(size));
            let _claim = claim(job, &*end.1, plan.dst_offset..last)?;
            return Ok(Self { job, io, end, source_consistent, created, before, _claim, _output: None });
        }
        let (end, output, source_consistent) = refusals::prepare_source(job, &mut io)?;
        let bytes = end.1.capability().size_bytes.saturating_sub(plan.src_offset);
        let range = output.as_ref().map(|output| output.range(plan.size.unwrap_or(bytes)));
        let opened = output.and_then(|output| output.opened.ok());
        let (mut _claim, mut _output) = (None, None);
        if let Some(((medium, endpoint), range)) = opened.zip(range) {
            _claim = claim(job, &*endpoint, range)?;
            _output = Some(medium);
            crate::close(&mut io, [endpoint]);
        }
        Ok(Self { job, io, end, source_consistent, created: None, before, _claim, _output })
    }

    pub(crate) fn run(self, record: &mut Record) -> Result<Copied, Failure> {
        let Self { job, mut io, end: (_medium, mut end), source_consistent, created, before, .. } = self;
        let (plan, mut watch) = (job.request.plan(), Watch::new(job.host));
        let name = if job.source.is_stream() { "destination" } else { "source" };
        watch.follow(&[(name, &*end)]);
        let mut last = None;
        let mut observer = |now: &mover::Progress| {
            last = Some(Sample::of(now));
            watch.observe(now)
        };
        let result = {
            let _orderly = job.host.stop().orderly();
            if job.source.is_stream() {
                let stdin = File::from(owned(&std::io::stdin())?);
                copy_from_stream(&mut io, Box::new(stdin), &mut *end, &plan, &mut observer)
            } else {
                let stdout = File::from(owned(&std::io::stdout())?);
                let writer = File::from(owned(&stdout)?);
                let result = copy_to_stream(&mut io, &mut *end, Box::new(writer), &plan, &mut observer);
                let is_flushed = standard::can_flush(&stdout)
                    && matches!(&result, Ok(_) | Err(CopyError::Interrupted { .. }));
                if let Some(last) = last.filter(|_| is_flushed) {
                    watch.update(&Sample { phase: "flush", ..last });
                }
                if is_flushed { flushed(result, &stdout) } else { result }
            }
        };
        let followed = watch.take_network();
        record.series.extend(watch.finish());
        let cpu = CpuTime::now().since(before);
        let protection = protection::of(&end.inspect().facts());
        let paths = EndPath::of(name, &*end).into_iter().collect();
        crate::close(&mut io, [end]);
        let report = result.map_err(|error| failure(job, &error))?;
        let network = followed.judge(&report).into();
        let way = Way::Stream(Box::new(report), cpu);
        let copied =
            Copied { way, source_consistent, protection, network, paths, snapshot: None, manifest: None };
        if let Some(created) = created {
            created.keep();
        }
        job.finished(&copied, record);
        Ok(copied)
    }
}

/// Locks the destination of a copy whose source or destination is a stream, and removes the journals of other copies
/// that it makes wrong: those of `range`.
fn claim(job: &Job<'_>, destination: &dyn Endpoint, range: Range<u64>) -> Result<Option<File>, Failure> {
    let claim = journal::claim_short(job, destination)?;
    if let Ok(state) = job.host.state_dir() {
        journals::invalidate(job, &state, &destination.inspect().fingerprint().storage, range);
    }
    Ok(claim)
}

/// Ends a copy to standard output by a flush, as other copies end. Of an interrupted copy it makes durable what the
/// message counts.
fn flushed(result: Result<Report, CopyError>, stdout: &File) -> Result<Report, CopyError> {
    let before = Instant::now();
    standard::flush(stdout).map_err(CopyError::Flush)?;
    let mut report = result?;
    report.flush_seconds = before.elapsed().as_secs_f64();
    report.seconds += report.flush_seconds;
    Ok(report)
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
