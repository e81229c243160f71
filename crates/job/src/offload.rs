//! `--offload`: storage copies by itself as much as it can, before the engine copies the rest.

use std::time::Instant;

use block::offload::{FileOffload, Means, Offload};
use block::{Fingerprint, IoError};
use mover::{HeldUnlimited, Map, Report, Status};
use passthrough::NvmeCopy;
use serde_json::{Value, json};

use crate::host::Watch;
use crate::{Choice, Failure, Job, Pair, Sample};

#[derive(Debug, Default)]
pub struct Offloaded {
    means: Option<Means>,
    bytes: u64,
    /// Bytes finished by an earlier copy.
    earlier_bytes: u64,
    seconds: f64,
    /// Fingerprint of the source before storage copied.
    was: Option<Fingerprint>,
}

/// Lets storage copy as much as it can and marks the copied ranges in `map`. All marked ranges are durable.
pub fn offload(job: &Job<'_>, pair: &Pair, map: &mut Option<Map>) -> Result<Offloaded, Failure> {
    let failed = |why: &str| {
        Failure::failed("let storage copy by itself to", job.destination.text(), why)
            .hint("without --offload require the data is read and written")
    };
    let choice = job.request.offload;
    let (mut offload, _held) = match (choice, suitable(job, pair)) {
        (Choice::Off, _) | (Choice::Auto, Err(_)) => return Ok(Offloaded::default()),
        (Choice::Require, Err(why)) => return Err(failed(&why)),
        (_, Ok(suitable)) => suitable,
    };
    let work = map.get_or_insert_with(|| Map::new(pair.checked.bytes));
    let mut offloaded = Offloaded {
        earlier_bytes: work.bytes(Status::Finished),
        was: Some(pair.source.inspect().fingerprint()),
        ..Offloaded::default()
    };
    let began = Instant::now();
    let refused = copy(job, work, &mut *offload);
    if work.bytes(Status::Finished) > offloaded.earlier_bytes {
        offloaded.means = Some(offload.means());
        // The journal lists all ranges that the map marks as finished, so they must be durable first.
        offload.flush().map_err(|error| {
            Failure::failed("flush", job.destination.text(), error)
                .hint("what was written may be lost: check the medium, then copy again")
        })?;
    }
    offloaded.seconds = began.elapsed().as_secs_f64();
    match refused {
        Some(error) if choice == Choice::Require && work.bytes(Status::NonTried) >= offload.block_bytes() => {
            Err(failed(&error.text))
        }
        _ => Ok(offloaded),
    }
}

/// The means of copying between these media, with no rate limit as long as it is used, or the reason why there is none.
fn suitable<'a>(job: &Job<'_>, pair: &'a Pair) -> Result<(Box<dyn Offload + 'a>, HeldUnlimited), String> {
    if job.request.since.is_some() {
        return Err("a copy by the storage cannot be limited to changes (--since)".into());
    }
    if !job.request.plan.sparse {
        return Err("a copy by the storage cannot be made to write zeroes (--sparse off)".into());
    }
    let [source, destination] = &pair.media;
    let offload: Box<dyn Offload> = match (source.as_disk(), destination.as_disk()) {
        (Some(source), Some(destination)) => Box::new(NvmeCopy::between(source, destination)?),
        _ => {
            let files = source.as_file().zip(destination.as_file());
            let offload = files.and_then(|(source, destination)| FileOffload::between(source, destination));
            Box::new(offload.ok_or(
                "the two are not plain files of this machine, and not NVMe namespaces of one controller",
            )?)
        }
    };
    let held = job.request.plan.rate.hold_unlimited("the storage copies by itself, at its own rate");
    Ok((offload, held.ok_or("a copy by the storage has no rate limit (--rate)")?))
}

/// Copies the non-tried ranges, one `offload.copy` call each, until all are done, a signal, or a refusal.
fn copy(job: &Job<'_>, map: &mut Map, offload: &mut dyn Offload) -> Option<IoError> {
    let Job { host, request, .. } = job;
    let _orderly = host.stop().orderly();
    let mut watch = Watch::new(*host);
    let open: Vec<_> = map.entries().filter(|entry| entry.status == Status::NonTried).collect();
    let earlier = map.bytes(Status::Finished);
    let mut refused = None;
    'all: for entry in open {
        let mut at = entry.start;
        while at < entry.end && !host.stop().is_requested() {
            let (from, to) = (request.plan.src_offset + at, request.plan.dst_offset + at);
            match offload.copy(from, to, entry.end - at) {
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
            let data_bytes = bytes - earlier;
            let sample = Sample { phase: "copy", bytes, data_bytes, total: map.size(), ..Sample::default() };
            watch.update(&Sample { limited_by: offload.means().name(), ..sample });
        }
    }
    watch.finish();
    refused
}

impl Offloaded {
    /// Corrects the engine's report, which counts bytes copied by storage as resumed. `now`: the source after the copy.
    pub fn amend(&mut self, report: &mut Report, now: &Fingerprint) {
        let Some(was) = &self.was else { return };
        self.bytes = report.resumed_bytes.saturating_sub(self.earlier_bytes);
        report.resumed_bytes -= self.bytes;
        report.data_bytes += self.bytes;
        report.seconds += self.seconds;
        report.source_changed |= was != now;
    }

    /// Adds `offload` and `offloaded_bytes` to the final object of `copy --json`.
    pub(crate) fn add_to(&self, object: &mut Value) {
        object["offload"] = json!(self.means.map_or("none", Means::name));
        object["offloaded_bytes"] = json!(self.bytes);
    }

    pub(crate) fn words(&self) -> &'static str {
        match self.means {
            None => "",
            Some(Means::Reflink) => "; by reflink: both share their blocks until one is written",
            Some(Means::CopyFileRange) => "; by the file server (copy_file_range)",
            Some(Means::NvmeCopy) => "; by the controller (NVMe Copy)",
        }
    }
}
