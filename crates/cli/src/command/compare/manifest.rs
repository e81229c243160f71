//! `compare DISK --manifest FILE`: compares one endpoint with the hashes of a verified copy.

use std::path::Path;

use block::OpenOptions;
use job::request_alignment;
use mover::{Area, CopyError, Label, Manifest, Plan, Recheck, Sums, read_manifest, recheck};
use serde_json::{Value, json};

use super::Args;
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::progress::Progress;
use crate::{output, protection, units};

/// Maximum number of areas listed in JSON, and in text.
const AREAS_LISTED: usize = 1000;
const AREAS_SHOWN: usize = 10;

pub(super) fn run(
    context: &Context,
    args: &Args,
    disk: &Named,
    path: &Path,
    plan: &Plan,
) -> Result<Exit, Failure> {
    let Manifest { label, sums } = read(path)?;
    let mut io = job::event_loop()?;
    let request_alignment = request_alignment(plan.src_offset, plan.chunk);
    let options = OpenOptions { writable: false, request_alignment, allow_in_use: false };
    let medium = disk.open(context, &options)?;
    let mut endpoint = endpoint::attach(&mut io, &[(disk, &medium)])?.remove(0);
    check_size(disk, path, &label, plan, endpoint.capability().size_bytes)?;
    let result = {
        let _orderly = context.stop.orderly();
        let mut progress = Progress::new(context);
        let mut observer = |now: &mover::Progress| progress.observe(now, &context.stop);
        let result = recheck(&mut io, &mut *endpoint, &sums, plan, &mut observer);
        progress.finish();
        result
    };
    let protection = protection::of(&endpoint.inspect().facts());
    job::close(&mut io, [endpoint]);
    let found = result.map_err(|error| match &error {
        CopyError::Interrupted { .. } => context.stop.failure("finish comparing", disk.text.clone()),
        CopyError::Refused(refusal) => Failure::usage("compare", disk.text.clone(), refusal),
        error => job::engine_failure(error, "compare", &disk.text, &disk.text),
    })?;
    let exit = match (&found.different[..], &found.unreadable[..], found.unknown_bytes) {
        ([], [], 0) => Exit::Done,
        ([], ..) => Exit::Unreadable,
        _ => Exit::Mismatch,
    };
    if args.json {
        let mut object = object(&found, exit, &sums);
        object["protection"] = protection;
        output::json(&object);
    } else {
        print(context, &found, exit, disk, plan.src_offset, sums.blake3());
    }
    Ok(exit)
}

fn read(path: &Path) -> Result<Manifest, Failure> {
    let failed = |cause: String| Failure::failed("read the manifest", path.display().to_string(), cause);
    let bytes = read_manifest(path).map_err(|error| failed(error.to_string()))?;
    Manifest::parse(&bytes).map_err(|error| failed(error.to_string()))
}

/// Refuses a disk of another size: it is another disk or a part of one, and which part cannot be determined.
fn check_size(disk: &Named, path: &Path, label: &Label, plan: &Plan, size: u64) -> Result<(), Failure> {
    let (offset, room) = (plan.src_offset, size.saturating_sub(plan.src_offset));
    let bytes = label.bytes;
    let hint = match plan.size {
        None if room == bytes => return Ok(()),
        Some(size) if size == bytes && room >= bytes => return Ok(()),
        _ if room > bytes => format!("--size {bytes} if that part of it is meant"),
        _ => "the right disk, or the right manifest".to_owned(),
    };
    let cause = format!(
        "it has {room} bytes from offset {offset} on; {} is of {bytes} bytes, from offset {} of {} and from offset {} of {}",
        path.display(),
        label.src_offset,
        label.source,
        label.dst_offset,
        label.destination,
    );
    let hint = format!("{hint}; --src-offset sets where it begins");
    Err(Failure::usage("compare", disk.text.clone(), cause).hint(hint))
}

fn bytes_of(areas: &[Area]) -> u64 {
    areas.iter().map(|area| area.bytes).sum()
}

/// The object of `compare --json`, with all differing areas. Offsets count from the start of the range.
fn object(found: &Recheck, exit: Exit, sums: &Sums) -> Value {
    let list = |areas: &[Area]| -> Vec<_> {
        areas.iter().take(AREAS_LISTED).map(|area| json!([area.offset, area.bytes])).collect()
    };
    let seconds = found.duration.as_secs_f64();
    let bytes = found.compared_bytes();
    json!({
        "schema": output::SCHEMA,
        "equal": match exit {
            Exit::Mismatch => Some(false),
            Exit::Done => Some(true),
            _ => None,
        },
        "offset": found.different.first().map(|area| area.offset),
        "bytes": bytes,
        "seconds": units::rounded(seconds),
        "mb_per_s": units::rounded(job::mb_per_s(bytes, seconds)),
        "limited_by": found.limited_by.name(),
        "extent_bytes": sums.extent(),
        "blake3": sums.blake3(),
        "different_bytes": bytes_of(&found.different),
        "different_areas": found.different.len(),
        "different": list(&found.different),
        "unreadable_bytes": bytes_of(&found.unreadable),
        "unreadable_areas": found.unreadable.len(),
        "unreadable": list(&found.unreadable),
        "unknown_bytes": found.unknown_bytes,
    })
}

/// The text form of [`object`]. Offsets count from the start of the disk.
fn print(
    context: &Context,
    found: &Recheck,
    exit: Exit,
    disk: &Named,
    src_offset: u64,
    blake3: Option<String>,
) {
    let places = |areas: &[Area]| {
        let shown = areas.iter().take(AREAS_SHOWN);
        let shown: Vec<_> =
            shown.map(|area| format!("{}+{}", src_offset + area.offset, area.bytes)).collect();
        let more = if areas.len() > AREAS_SHOWN { ", ..." } else { "" };
        format!(
            "in {} (offset+bytes: {}{more})",
            units::counted(areas.len() as u64, "area"),
            shown.join(", ")
        )
    };
    let name = &disk.text;
    if exit == Exit::Mismatch {
        let (bytes, places) = (bytes_of(&found.different), places(&found.different));
        output::line(&format!("{bytes} bytes of {name} are not what they were, {places}"));
    } else if !context.quiet {
        let rate = job::mb_per_s(found.compared_bytes(), found.duration.as_secs_f64());
        let whole = blake3.filter(|_| exit == Exit::Done).map(|blake3| format!(", BLAKE3 {blake3}"));
        output::line(&format!(
            "as it was: {} in {}, {}{}",
            units::bytes(found.compared_bytes()),
            units::duration(found.duration),
            units::rate(rate * 1e6),
            whole.unwrap_or_default(),
        ));
    }
    if !found.unreadable.is_empty() {
        let (bytes, places) = (bytes_of(&found.unreadable), places(&found.unreadable));
        context
            .warn(&format!("{bytes} bytes of {name} were not compared: they cannot all be read, {places}"));
    }
    if found.unknown_bytes > 0 {
        context.warn(&format!(
            "{} bytes of {name} were not compared: they were unreadable when the manifest was made",
            found.unknown_bytes
        ));
    }
}
