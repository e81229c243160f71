//! `--offload`: what storage can copy by itself it copies, and the mover does the rest.

use std::time::Instant;

use block::offload::{FileOffload, Means, Offload};
use block::{Fingerprint, IoError};
use clap::ValueEnum;
use mover::{Map, Report, Status};
use passthrough::NvmeCopy;
use serde_json::{Value, json};

use super::{Args, Pair, Sparse};
use crate::context::Context;
use crate::endpoint::Named;
use crate::error::Failure;
use crate::progress::{Progress, Sample};

/// `--offload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Offloading {
    /// Where it can; without a word where it cannot
    Auto,
    /// Never: all is read and written, and a file gets blocks of its own
    Off,
    /// Or not at all
    Require,
}

/// What was copied before the mover begins.
#[derive(Debug, Default)]
pub(super) struct Offloaded {
    means: Option<Means>,
    bytes: u64,
    /// Finished before, by an earlier copy.
    earlier_bytes: u64,
    seconds: f64,
    /// The source before the first of it was copied.
    was: Option<Fingerprint>,
}

/// Lets storage copy, as far as it does, and marks that in `map`. All that is marked is durable.
pub(super) fn offload(
    context: &Context,
    args: &Args,
    pair: &Pair,
    map: &mut Option<Map>,
    destination: &Named,
) -> Result<Offloaded, Failure> {
    let failed = |why: &str| {
        Failure::failed("let storage copy by itself to", destination.text.clone(), why)
            .hint("without --offload require the data is read and written")
    };
    let required = args.offload == Offloading::Require;
    let mut offload = match (args.offload, suitable(args, pair)) {
        (Offloading::Off, _) | (Offloading::Auto, Err(_)) => return Ok(Offloaded::default()),
        (Offloading::Require, Err(why)) => return Err(failed(&why)),
        (_, Ok(offload)) => offload,
    };
    let work = map.get_or_insert_with(|| Map::new(pair.checked.bytes));
    let mut offloaded = Offloaded {
        earlier_bytes: work.bytes(Status::Finished),
        was: Some(pair.source.fingerprint()),
        ..Offloaded::default()
    };
    let began = Instant::now();
    let refused = copy(context, args, work, &mut *offload);
    if work.bytes(Status::Finished) > offloaded.earlier_bytes {
        offloaded.means = Some(offload.means());
        // The journal claims what the map says.
        offload.flush().map_err(|error| {
            Failure::failed("flush", destination.text.clone(), error)
                .hint("what was written may be lost: check the medium, then copy again")
        })?;
    }
    offloaded.seconds = began.elapsed().as_secs_f64();
    match refused {
        Some(error) if required && work.bytes(Status::NonTried) >= offload.block_bytes() => {
            Err(failed(&error.text))
        }
        _ => Ok(offloaded),
    }
}

/// The way, or what is against it.
fn suitable<'a>(args: &Args, pair: &'a Pair) -> Result<Box<dyn Offload + 'a>, String> {
    if args.rate.is_some() {
        return Err("what copies by itself is not told how fast to copy (--rate)".into());
    }
    if args.since.is_some() {
        return Err("what copies by itself is not told what has changed (--since)".into());
    }
    if args.sparse == Sparse::Off {
        return Err("what copies by itself is not told to write zeroes (--sparse off)".into());
    }
    let [source, destination] = &pair.media;
    if let (Some(source), Some(destination)) = (source.as_disk(), destination.as_disk()) {
        return Ok(Box::new(NvmeCopy::between(source, destination)?));
    }
    let files = source.as_file().zip(destination.as_file());
    match files.and_then(|(source, destination)| FileOffload::between(source, destination)) {
        Some(offload) => Ok(Box::new(offload)),
        None => {
            Err("the two are not plain files of this machine, and not NVMe namespaces of one controller"
                .into())
        }
    }
}

/// Copies what was not tried, piece by piece, until all is done, a signal comes, or the storage refuses.
fn copy(context: &Context, args: &Args, map: &mut Map, offload: &mut dyn Offload) -> Option<IoError> {
    let _orderly = context.stop.orderly();
    let mut progress = Progress::new(context);
    let open: Vec<_> = map.stretches().filter(|stretch| stretch.status == Status::NonTried).collect();
    let mut refused = None;
    'all: for stretch in open {
        let mut at = stretch.start;
        while at < stretch.end && !context.stop.is_asked() {
            let (from, to) = (args.range.src_offset + at, args.range.dst_offset + at);
            match offload.copy(from, to, stretch.end - at) {
                Ok(copied) => {
                    map.set(at, at + copied, Status::Finished);
                    at += copied;
                }
                Err(error) => {
                    refused = Some(error);
                    break 'all;
                }
            }
            let bytes = map.bytes(Status::Finished);
            let sample = Sample { phase: "copy", bytes, total: map.size(), ..Sample::default() };
            progress.update(&Sample { limited_by: offload.means().name(), ..sample });
        }
    }
    progress.finish();
    refused
}

impl Offloaded {
    /// The mover takes what was copied before it began for an earlier copy's.
    pub(super) fn amend(&mut self, report: &mut Report, now: &Fingerprint) {
        let Some(was) = &self.was else { return };
        self.bytes = report.resumed_bytes.saturating_sub(self.earlier_bytes);
        report.resumed_bytes -= self.bytes;
        report.seconds += self.seconds;
        report.source_changed |= was != now;
    }

    /// What `copy --json` says of it.
    pub(super) fn tell(&self, object: &mut Value) {
        object["offload"] = json!(self.means.map_or("none", Means::name));
        object["offloaded_bytes"] = json!(self.bytes);
    }

    /// The same for people, behind the sentence.
    pub(super) fn words(&self) -> &'static str {
        match self.means {
            None => "",
            Some(Means::Reflink) => "; by reflink: both share their blocks until one is written",
            Some(Means::CopyFileRange) => "; by the file server (copy_file_range)",
            Some(Means::NvmeCopy) => "; by the controller (NVMe Copy)",
        }
    }
}
