//! `-`: standard input as the source, standard output as the destination.
//!
//! A stream has no size and cannot be read twice, so such a copy keeps no journal and is not resumed. Where standard output is
//! the destination it belongs to the data: all that is told goes to stderr.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use mover::{CopyError, copy_from_stream, copy_to_stream};
use serde_json::Value;

use super::offload::Offloading;
use super::remote::RemoteCopy;
use super::{Args, journal, observe, outcome, refusals, report};
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::progress::Progress;
use crate::sys::CpuTime;
use crate::{output, protection};

/// Copies if one of the two is a stream.
pub(super) fn copy(
    context: &Context,
    args: &Args,
    [source, destination]: [&Named; 2],
    record: &mut report::Record,
) -> Result<Option<Exit>, Failure> {
    let (from, to) = (source.is_stream(), destination.is_stream());
    if !from && !to {
        return Ok(None);
    }
    unsuitable(args, from, to)?;
    let before = CpuTime::now();
    let mut io = endpoint::event_loop()?;
    let mut progress = Progress::new(context);
    let stop = context.stop.clone();
    let mut observer = |now: &mover::Progress| observe(now, &mut progress, &stop);
    let plan = args.plan();
    let (result, end, source_consistent) = if from {
        let opened = refusals::prepare_destination(context, args, &mut io, [source, destination])?;
        let (_medium, mut end) = opened;
        let _claim = journal::claim_short(args, &*end, destination)?;
        let _orderly = context.stop.orderly();
        let stdin = File::from(owned(&std::io::stdin())?);
        (copy_from_stream(&mut io, Box::new(stdin), &mut *end, &plan, &mut observer), end, true)
    } else {
        let ((_medium, mut end), consistent) =
            refusals::prepare_source(context, args, &mut io, [source, destination])?;
        let _orderly = context.stop.orderly();
        let stdout = File::from(owned(&std::io::stdout())?);
        (copy_to_stream(&mut io, &mut *end, Box::new(stdout), &plan, &mut observer), end, consistent)
    };
    record.series.extend(progress.finish());
    let cpu = CpuTime::now().since(before);
    let protection = protection::of(&end.facts());
    super::end(&mut io, [end]);
    let report = result.map_err(|error| failure(context, args, &error, [source, destination]))?;
    let mut object = outcome::object(&report, cpu, source_consistent);
    object["protection"] = protection;
    let object = record.outcome.insert(object);
    tell(context, args, object, || outcome::sentence(&report, cpu), to);
    Ok(Some(Exit::Done))
}

fn owned(stream: &dyn AsFd) -> Result<std::os::fd::OwnedFd, Failure> {
    let owned = stream.as_fd().try_clone_to_owned();
    owned.map_err(|error| Failure::failed("open", "-", error))
}

/// What cannot be had of a stream.
fn unsuitable(args: &Args, from: bool, to: bool) -> Result<(), Failure> {
    let cause = match () {
        () if from && to => "only one of the two can be a stream",
        () if from && std::io::stdin().is_terminal() => "standard input is a terminal",
        () if to && std::io::stdout().is_terminal() => "standard output is a terminal",
        () if args.resume.is_some() => "a stream cannot be read or written from the middle (--resume)",
        () if args.since.is_some() => "a stream has no earlier state, and is not compared (--since)",
        () if args.manifest.is_some() => "a stream is not verified extent by extent (--manifest)",
        () if args.remote_copy == RemoteCopy::Require => "a stream is no LUN (--remote-copy require)",
        () if args.offload == Offloading::Require => {
            "a stream is no file to share blocks with (--offload require)"
        }
        () if to && args.verify => "what went into a stream cannot be read back (--verify)",
        () if to && args.range.dst_offset > 0 => "a stream has one place to write to (--dst-offset)",
        () => return Ok(()),
    };
    Err(Failure::usage("copy", if from { "from -" } else { "to -" }, cause).hint("name a file"))
}

fn failure(context: &Context, args: &Args, error: &CopyError, [source, destination]: [&Named; 2]) -> Failure {
    match error {
        CopyError::Interrupted { bytes_safe, .. } => {
            let mut failure = context.stop.failure("finish the copy to", destination.text.clone());
            failure.cause += &format!("; the first {bytes_safe} bytes are copied");
            failure
        }
        CopyError::Long { .. } => outcome::failure(context, args, error, source, destination)
            .hint("a larger destination, or --size to copy less; what fits was written"),
        CopyError::Short { .. } => outcome::failure(context, args, error, source, destination)
            .hint("see why what writes the stream ended; what came was written"),
        error => outcome::failure(context, args, error, source, destination),
    }
}

fn tell(context: &Context, args: &Args, object: &Value, sentence: impl FnOnce() -> String, to_stream: bool) {
    match (args.json, to_stream) {
        (true, true) => output::note_json(object),
        (true, false) => output::json(object),
        (false, _) if context.quiet => {}
        (false, true) => output::note(&sentence()),
        (false, false) => output::line(&sentence()),
    }
}
