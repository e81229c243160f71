//! What `copy` looks at before it writes a byte, and refuses.

use std::path::Path;
use std::sync::Arc;

use block::device::{Kernel, Node};
use block::signature::{self, Ends};
use block::{Endpoint, Identity, Location, Medium, OpenOptions};
use io::Io;
use mover::{Checked, Plan, Refusal};
use serde_json::json;

use super::estimate::{Estimate, estimate};
use super::{Allow, Args, Pair, request_alignment, since};
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::{output, units};

/// Opens both ends and looks whether anything speaks against the copy. The first thing that does is the
/// failure.
pub(super) fn prepare(
    context: &Context,
    args: &Args,
    io: &mut Io,
    source: &Named,
    destination: &Named,
) -> Result<Pair, Failure> {
    let mut inspection = Inspection::new(context, args, source, destination);
    inspection.look_at_paths();
    inspection.first()?;
    let (source_medium, source_endpoint) = inspection.open_source(io)?;
    let size_bytes = source_endpoint.capability().size_bytes;
    inspection.look_at_new_file(size_bytes);
    inspection.first()?;
    let plan = args.plan();
    let (destination_medium, mut destination_endpoint) = inspection.open_destination(io)?;
    inspection.look_at_identity(&*source_endpoint, &*destination_endpoint);
    let checked = inspection.check_plan(&plan, &*source_endpoint, &*destination_endpoint);
    inspection.first()?;
    inspection.look_at_content(io, &mut *destination_endpoint)?;
    inspection.first()?;
    Ok(Pair {
        source_was: source_endpoint.fingerprint(),
        source: source_endpoint,
        destination: destination_endpoint,
        checked: checked.expect("a plan that fails is a refusal"),
        source_consistent: inspection.source_consistent,
        media: [source_medium, destination_medium],
    })
}

/// As [`prepare`], for a source that is a stream.
pub(super) fn prepare_destination(
    context: &Context,
    args: &Args,
    io: &mut Io,
    [source, destination]: [&Named; 2],
) -> Result<Opened, Failure> {
    let mut inspection = Inspection::new(context, args, source, destination);
    inspection.look_at_paths();
    inspection.first()?;
    if args.range.size.is_some() {
        inspection.look_at_new_file(0);
        inspection.first()?;
    }
    let (medium, mut endpoint) = inspection.open_destination(io)?;
    inspection.look_at_content(io, &mut *endpoint)?;
    inspection.first()?;
    Ok((medium, endpoint))
}

/// As [`prepare`], for a destination that is a stream; and whether nobody else writes to the source.
pub(super) fn prepare_source(
    context: &Context,
    args: &Args,
    io: &mut Io,
    [source, destination]: [&Named; 2],
) -> Result<(Opened, bool), Failure> {
    let mut inspection = Inspection::new(context, args, source, destination);
    inspection.look_at_paths();
    inspection.first()?;
    let opened = inspection.open_source(io)?;
    Ok((opened, inspection.source_consistent))
}

/// As [`prepare`], but nothing is made or written; tells the plan and everything that speaks against it.
pub(super) fn dry_run(
    context: &Context,
    args: &Args,
    io: &mut Io,
    source: &Named,
    destination: &Named,
) -> Result<Exit, Failure> {
    let mut inspection = Inspection::new(context, args, source, destination);
    inspection.look_at_paths();
    let (_medium, mut source_endpoint) = inspection.open_source(io)?;
    inspection.look_at_new_file(source_endpoint.capability().size_bytes);
    let plan = args.plan();
    let (mut checked, mut changes) = (None, None);
    let stand_in = stand_in(context, destination)?;
    let exists = destination.path().is_none_or(Path::exists) || destination.creates();
    if exists {
        let options = OpenOptions {
            writable: true,
            request_alignment: request_alignment(plan.dst_offset, plan.chunk),
            // Who uses it has been noted; a lock is noted below by the open that it fails.
            allow_in_use: args.allow.contains(&Allow::InUse),
        };
        let target = stand_in.as_ref().unwrap_or(destination);
        match target.open(context, &options).and_then(|medium| endpoint::attach(io, &[(target, &medium)])) {
            Ok(mut endpoints) => {
                let mut endpoint = endpoints.remove(0);
                inspection.look_at_identity(&*source_endpoint, &*endpoint);
                checked = inspection.check_plan(&plan, &*source_endpoint, &*endpoint);
                inspection.look_at_content(io, &mut *endpoint)?;
                super::end(io, [endpoint]);
            }
            // Already refused for that reason by what /proc and /sys say.
            Err(failure) if failure.exit == Exit::Refused && !inspection.refusals.is_empty() => {}
            Err(failure) => inspection.refusals.push(failure),
        }
    }
    if let Some(checked) = &checked {
        match since::changes(context, args, io, source, &*source_endpoint, checked) {
            Ok(told) => changes = told.map(|changes| changes.bytes()),
            Err(failure) => inspection.refusals.push(failure),
        }
    }
    // How long it takes to copy a few changed places nobody knows from a look at the whole.
    let plan = Plan { differing: false, ..plan };
    let estimate = checked
        .filter(|_| changes.is_none())
        .map(|checked| estimate(io, &mut *source_endpoint, &plan, &checked));
    super::end(io, [source_endpoint]);
    Ok(tell(&inspection, checked, changes, &plan, estimate.as_ref()))
}

/// In a dry run, a file that would be made or grown is represented by nothing of the same size.
fn stand_in(context: &Context, destination: &Named) -> Result<Option<Named>, Failure> {
    let usage =
        |error: block::SpecError| Failure::usage("understand the endpoint", destination.text.clone(), error);
    let size = destination.spec.size("size").map_err(usage)?;
    let grows = destination.spec.flag("grow").map_err(usage)?
        && destination
            .path()
            .is_some_and(|path| std::fs::metadata(path).is_ok_and(|file| Some(file.len()) < size));
    match size {
        Some(size) if destination.creates() || grows => {
            let mut named = Named::parse(context, &format!("null:{size}"), &[])?;
            named.text.clone_from(&destination.text);
            Ok(Some(named))
        }
        _ => Ok(None),
    }
}

/// `changes` are the bytes that may differ, where that is known before anything is compared.
fn tell(
    inspection: &Inspection<'_>,
    checked: Option<Checked>,
    changes: Option<u64>,
    plan: &Plan,
    estimate: Option<&Estimate>,
) -> Exit {
    let exit = inspection.refusals.first().map_or(Exit::Done, |refusal| refusal.exit);
    let (source, destination) = (&inspection.source.text, &inspection.destination.text);
    if inspection.context.json {
        let refused: Vec<_> =
            inspection.refusals.iter().map(|refusal| refusal.to_json()["error"].clone()).collect();
        output::json(&json!({
            "schema": output::SCHEMA,
            "dry_run": true,
            "source": source,
            "destination": destination,
            "src_offset": plan.src_offset,
            "dst_offset": plan.dst_offset,
            "bytes": checked.map(|checked| checked.bytes),
            "chunk": checked.map(|checked| checked.chunk),
            "depth": checked.map(|checked| checked.depth),
            "verify": plan.verify,
            "sparse": plan.sparse,
            "rate_bytes_per_s": plan.rate,
            "changed_bytes": changes,
            "source_consistent": inspection.source_consistent,
            "refused": refused,
            "estimate": estimate.map(Estimate::object),
        }));
        return exit;
    }
    output::line(&format!(
        "would copy {source} (from byte {}) to {destination} (from byte {})",
        plan.src_offset, plan.dst_offset
    ));
    if let Some(checked) = checked {
        output::line(&format!(
            "  {} ({} bytes), {} chunks of {} in flight{}{}",
            units::bytes(checked.bytes),
            checked.bytes,
            checked.depth,
            units::bytes(checked.chunk.into()),
            if plan.verify { ", read back" } else { "" },
            plan.rate.map(|rate| format!(", at most {}", units::rate(rate as f64))).unwrap_or_default(),
        ));
    }
    if let Some(estimate) = estimate {
        output::line(&format!("  {}", estimate.sentences()));
    }
    match (&inspection.args.since, changes) {
        (Some(since), Some(bytes)) => {
            output::line(&format!("  of it {} have changed since {since}", units::bytes(bytes)));
        }
        (Some(since::Since::Hash), None) => {
            output::line("  how much differs is known when both ends have been read");
        }
        _ => {}
    }
    for refusal in &inspection.refusals {
        output::line(&format!("  refused: {refusal}"));
    }
    exit
}

impl Named {
    /// Whether opening it makes a file.
    pub(super) fn creates(&self) -> bool {
        self.spec.flag("create") == Ok(true)
    }

    /// Whether it is standard input or output.
    pub(super) fn is_stream(&self) -> bool {
        self.spec.location == Location::Stdio
    }

    /// What of this machine it is; `stream` is where a stream can be looked at.
    fn node(&self, stream: &Path) -> Option<Node> {
        Node::of(if self.is_stream() { stream } else { self.path()? })
    }
}

/// Storage, and this thread's way into it.
type Opened = (Arc<dyn Medium>, Box<dyn Endpoint>);

/// What was found so far.
struct Inspection<'a> {
    context: &'a Context,
    args: &'a Args,
    source: &'a Named,
    destination: &'a Named,
    kernel: Kernel,
    refusals: Vec<Failure>,
    source_consistent: bool,
}

impl<'a> Inspection<'a> {
    fn new(context: &'a Context, args: &'a Args, source: &'a Named, destination: &'a Named) -> Self {
        let (refusals, kernel) = (Vec::new(), Kernel::default());
        Self { context, args, source, destination, kernel, refusals, source_consistent: true }
    }

    fn refuse(&mut self, cause: impl std::fmt::Display, hint: impl Into<String>) {
        self.refusals.push(Failure::refused("copy to", self.destination.text.clone(), cause).hint(hint));
    }

    /// The first refusal, if there is one.
    fn first(&mut self) -> Result<(), Failure> {
        if self.refusals.is_empty() { Ok(()) } else { Err(self.refusals.remove(0)) }
    }

    fn allows(&self, what: Allow) -> bool {
        self.args.allow.contains(&what)
    }

    /// Everything that can be said without opening either end.
    fn look_at_paths(&mut self) {
        let (source, destination) = (self.source, self.destination);
        if let Some(path) = destination.path()
            && !destination.creates()
        {
            match std::fs::metadata(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.refuse(
                        "it does not exist",
                        format!("to make a new file: {},create,size=SIZE", destination.text),
                    );
                    return;
                }
                _ => {}
            }
            if !self.allows(Allow::InUse) {
                for user in self.kernel.users(path) {
                    self.refuse(user, "end that use, or --allow in-use");
                }
            }
        }
        // A stream may lead to a file or a device too.
        let nodes = source.node(Path::new("/dev/stdin")).zip(destination.node(Path::new("/dev/stdout")));
        if nodes.is_some_and(|(source, destination)| self.kernel.is_same(source, destination)) {
            self.refuse(format!("it is the same storage as the source {}", source.text), "");
        }
        if let Some(point) = source.path().and_then(|path| self.kernel.written_at(path)) {
            self.source_consistent = false;
            self.context.warn(&format!(
                "{} is mounted read-write on {}: the copy may mix several moments of it",
                source.text,
                point.display()
            ));
        }
    }

    fn open_source(&mut self, io: &mut Io) -> Result<Opened, Failure> {
        let plan = self.args.plan();
        let request_alignment = request_alignment(plan.src_offset, plan.chunk);
        let mut options = OpenOptions { writable: false, request_alignment, allow_in_use: false };
        let medium = match self.source.open(self.context, &options) {
            Err(failure) if failure.exit == Exit::Refused && self.allows(Allow::InUse) => {
                options.allow_in_use = true;
                let medium = self.source.open(self.context, &options)?;
                self.source_consistent = false;
                self.context.warn(&format!("{}; the copy may mix several moments of it", failure.cause));
                medium
            }
            opened => opened?,
        };
        let mut endpoints = endpoint::attach(io, &[(self.source, &medium)])?;
        Ok((medium, endpoints.remove(0)))
    }

    fn open_destination(&mut self, io: &mut Io) -> Result<Opened, Failure> {
        let plan = self.args.plan();
        let options = OpenOptions {
            writable: true,
            request_alignment: request_alignment(plan.dst_offset, plan.chunk),
            allow_in_use: self.allows(Allow::InUse),
        };
        let medium = self.destination.open(self.context, &options)?;
        let mut endpoints = endpoint::attach(io, &[(self.destination, &medium)])?;
        Ok((medium, endpoints.remove(0)))
    }

    /// A file is not made to be found too small.
    fn look_at_new_file(&mut self, source_bytes: u64) {
        let Ok(Some(size)) = self.destination.spec.size("size") else { return };
        let range = &self.args.range;
        let bytes = range.size.unwrap_or(source_bytes.saturating_sub(range.src_offset));
        let needed = u128::from(range.dst_offset) + u128::from(bytes);
        if self.destination.creates() && u128::from(size) < needed {
            self.refuse(format!("it would have {size} bytes; {needed} are needed"), format!("size={needed}"));
        }
    }

    fn look_at_identity(&mut self, source: &dyn Endpoint, destination: &dyn Endpoint) {
        let same = source.identity() != Identity::Unique && source.identity() == destination.identity();
        // Two paths of this machine were compared before, with what lies beneath them.
        if same && !self.refusals.iter().any(|refusal| refusal.cause.contains("same storage")) {
            self.refuse(format!("it is the same storage as the source {}", self.source.text), "");
        }
    }

    fn check_plan(
        &mut self,
        plan: &Plan,
        source: &dyn Endpoint,
        destination: &dyn Endpoint,
    ) -> Option<Checked> {
        match mover::plan_check(source.capability(), destination.capability(), plan) {
            Ok(checked) => Some(checked),
            Err(refusal) => {
                self.refusals.push(refused(&refusal, self.source, self.destination));
                None
            }
        }
    }

    /// Looks for something worth keeping on the destination.
    fn look_at_content(&mut self, io: &mut Io, destination: &mut dyn Endpoint) -> Result<(), Failure> {
        // What a copy that is resumed has left there is its own.
        if self.args.force || self.args.resume.is_some() {
            return Ok(());
        }
        let found = probe(io, destination)
            .map_err(|error| Failure::io("look at what is on", self.destination.text.clone(), &error))?;
        if !found.is_empty() {
            self.refuse(format!("it holds: {}", found.join(", ")), "--force if that may be overwritten");
        }
        Ok(())
    }
}

/// What speaks against writing over all of an endpoint, in use or holding something; for commands without an override.
pub(crate) fn spoil(io: &mut Io, named: &Named, endpoint: &mut dyn Endpoint) -> Result<(), Failure> {
    let found =
        probe(io, endpoint).map_err(|error| Failure::io("look at what is on", named.text.clone(), &error))?;
    if !found.is_empty() {
        let cause = format!("it holds: {}", found.join(", "));
        return Err(Failure::refused("overwrite", named.text.clone(), cause)
            .hint("wipe it first, if that may be lost: wipefs -a, or copy null: over it with --force"));
    }
    Ok(())
}

/// The part of [`spoil`] that can be told without opening it.
pub(crate) fn spoil_path(named: &Named) -> Result<(), Failure> {
    let Some(path) = named.path().filter(|_| !named.creates()) else { return Ok(()) };
    match Kernel::default().users(path).into_iter().next() {
        Some(user) => Err(Failure::refused("overwrite", named.text.clone(), user).hint("end that use")),
        None => Ok(()),
    }
}

/// What an endpoint holds.
pub(crate) fn probe(io: &mut Io, endpoint: &mut dyn Endpoint) -> Result<Vec<&'static str>, block::IoError> {
    let size_bytes = endpoint.capability().size_bytes;
    let head_bytes = size_bytes.min(signature::HEAD_BYTES as u64);
    // The last bytes, from a page's beginning on, so that devices and LUNs take the request.
    let tail_start = size_bytes.saturating_sub(signature::TAIL_BYTES as u64) & !4095;
    let head = endpoint::read(io, endpoint, 0, head_bytes as usize)?;
    let tail = endpoint::read(io, endpoint, tail_start, (size_bytes - tail_start) as usize)?;
    Ok(signature::probe(&Ends { head: &head, tail: &tail, size_bytes }))
}

/// A plan that the mover refuses, told as our failure.
pub(super) fn refused(refusal: &Refusal, source: &Named, destination: &Named) -> Failure {
    let to = |exit: Exit| Failure::new(exit, "copy to", destination.text.clone(), refusal);
    match refusal {
        Refusal::Same | Refusal::ReadOnly => to(Exit::Refused),
        Refusal::DestinationTooSmall { .. } => {
            to(Exit::Refused).hint("a larger destination, or --size to copy less")
        }
        Refusal::BlockSize { .. } => to(Exit::Refused)
            .hint("file systems and partition tables depend on the block size; --allow sector-size if that is meant"),
        Refusal::SourceTooSmall { .. } => {
            Failure::new(Exit::Usage, "copy from", source.text.clone(), refusal).hint("--src-offset and --size")
        }
        Refusal::NotReady(_) => to(Exit::Failed),
        _ => to(Exit::Usage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_map_to_exit_codes() {
        let context = Context::default();
        let named = |words: &str| Named::parse(&context, words, &[]).unwrap();
        let (source, destination) = (named("a"), named("b"));
        let all = [
            (Refusal::Same, 6),
            (Refusal::ReadOnly, 6),
            (Refusal::DestinationTooSmall { offset: 0, bytes: 2, size: 1 }, 6),
            (Refusal::BlockSize { source_bytes: 512, destination_bytes: 4096 }, 6),
            (Refusal::SourceTooSmall { offset: 0, bytes: 2, size: 1 }, 2),
            (Refusal::Rate, 2),
            (Refusal::Depth { depth: 0 }, 2),
        ];
        for (refusal, code) in all {
            assert_eq!(refused(&refusal, &source, &destination).exit.code(), code, "{refusal}");
        }
    }
}
