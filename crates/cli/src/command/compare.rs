//! `compare`: compares two endpoints, or one endpoint with the manifest of a verified copy.

mod manifest;

use std::path::PathBuf;

use block::OpenOptions;
use job::request_alignment;
use mover::CopyError;
use serde_json::json;

use crate::command::copy::{Range, Shape};
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::progress::Progress;
use crate::{output, protection, units};

/// Compare two endpoints: exit 3 and the offset if they differ
///
/// With --manifest one endpoint is compared with what `copy --manifest` wrote down, to its end, and all extents that are not
/// what they were are named. Exit 7 if none was found, but some could not be read, or were not known when it was made.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
hikyaku compare [OPTIONS] <A> <B>
       hikyaku compare [OPTIONS] <A> --manifest <FILE>")]
#[command(after_help = "\
Without --size, endpoints of different length differ at the latest where the
shorter one ends.

Examples:
  hikyaku compare disk.img iscsi://host/iqn.2026-11.example:disks/0
  hikyaku compare a.img b.img --size 1G --json
  hikyaku compare /dev/sdx --manifest disk.manifest")]
pub(crate) struct Args {
    /// One endpoint
    #[arg(value_name = "A")]
    first: String,

    /// The other
    #[arg(value_name = "B", required_unless_present = "manifest")]
    second: Option<String>,

    /// Compare A with the content that this manifest records; A begins at --src-offset
    #[arg(long, value_name = "FILE", conflicts_with_all = ["second", "dst_offset"])]
    manifest: Option<PathBuf>,

    #[command(flatten)]
    range: Range,

    #[command(flatten)]
    shape: Shape,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let sessions = args.shape.sessions();
    let first = Named::parse(context, &args.first, &[])?.with_sessions(sessions);
    let plan = args.range.plan(&args.shape);
    let Some(second) = &args.second else {
        let path = args.manifest.as_ref().expect("one of the two is there");
        return manifest::run(context, args, &first, path, &plan);
    };
    let second = Named::parse(context, second, &[])?.with_sessions(sessions);
    let mut io = job::event_loop()?;
    let open = |attempted: &str, named: &Named, offset: u64| {
        let request_alignment = request_alignment(offset, plan.chunk);
        let options = OpenOptions { writable: false, request_alignment, allow_in_use: false };
        named.open_to(attempted, context, &options)
    };
    let media = [
        open("open the first endpoint", &first, plan.src_offset)?,
        open("open the second endpoint", &second, plan.dst_offset)?,
    ];
    let mut endpoints = endpoint::attach(&mut io, &[(&first, &media[0]), (&second, &media[1])])?;
    let (mut b, mut a) = (endpoints.remove(1), endpoints.remove(0));
    let result = {
        let _orderly = context.stop.orderly();
        let mut progress = Progress::new(context);
        let mut observer = |now: &mover::Progress| progress.observe(now, &context.stop);
        let result = mover::compare(&mut io, &mut *a, &mut *b, &plan, &mut observer);
        progress.finish();
        result
    };
    let protection = protection::of_both(&*a, &*b);
    let sizes = [&a, &b].map(|end| end.capability().size_bytes);
    job::close(&mut io, [a, b]);
    let comparison = result.map_err(|error| match &error {
        CopyError::Interrupted { bytes_safe, .. } => {
            let mut failure =
                context.stop.failure("finish comparing", format!("{} with {}", first.text, second.text));
            failure.cause += &format!("; the first {bytes_safe} bytes are equal");
            failure
        }
        CopyError::Refused(refusal) => {
            Failure::usage("compare", format!("{} with {}", first.text, second.text), refusal)
        }
        error => job::engine_failure(error, "compare", &first.text, &second.text),
    })?;
    let seconds = comparison.duration.as_secs_f64();
    let rate = job::mb_per_s(comparison.bytes, seconds);
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA,
            "equal": comparison.first_difference.is_none(),
            "offset": comparison.first_difference,
            "bytes": comparison.bytes,
            "seconds": units::rounded(seconds),
            "mb_per_s": units::rounded(rate),
            "limited_by": comparison.limited_by.name(),
            "protection": protection,
        }));
    } else if let Some(offset) = comparison.first_difference {
        let (at_a, at_b) = (plan.src_offset + offset, plan.dst_offset + offset);
        let mut text = if at_a == at_b {
            format!("they differ at offset {at_a}")
        } else {
            format!("they differ at offset {at_a} of {} and {at_b} of {}", first.text, second.text)
        };
        let longer = match (at_a >= sizes[0], at_b >= sizes[1]) {
            (true, _) => Some((&first, &second, sizes[1])),
            (_, true) => Some((&second, &first, sizes[0])),
            _ => None,
        };
        if let Some((shorter, longer, bytes)) = longer {
            let (shorter, longer) = (&shorter.text, &longer.text);
            text += &format!(
                ", where {shorter} ends and {longer} goes on, to {bytes} bytes; what both have is equal"
            );
        }
        output::line(&text);
    } else if !context.quiet {
        output::line(&format!(
            "equal: {} in {}, {}",
            units::bytes(comparison.bytes),
            units::duration(comparison.duration),
            units::rate(rate * 1e6)
        ));
    }
    Ok(if comparison.first_difference.is_some() { Exit::Mismatch } else { Exit::Done })
}
