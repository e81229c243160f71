//! `--dry-run`: what a copy would do, and every reason to refuse it. Creates and writes nothing.

use std::path::Path;

use block::Spec;
use io::Io;
use mover::{Checked, Plan};

use crate::address::Local;
use crate::estimate::{Estimate, estimate};
use crate::journal::{Earlier, label_of};
use crate::refusals::Inspection;
use crate::{Address, Ending, Failure, Job, since};

#[derive(Debug)]
pub struct Findings {
    /// All refusals, in the order in which a copy checks. A copy fails with the first.
    pub refusals: Vec<Failure>,
    pub plan: Plan,
    /// The plan divided into chunks; `None` if the destination cannot be opened or the engine refuses the plan.
    pub checked: Option<Checked>,
    /// Bytes that may differ; `None` if that is unknown before the comparison.
    pub changed_bytes: Option<u64>,
    /// The expected duration; `None` if only changed areas are copied and their size is unknown.
    pub estimate: Option<Estimate>,
    /// Whether no writer of the source is known.
    pub source_consistent: bool,
}

/// Makes the checks of [`refusals::prepare`](crate::refusals) and lists all refusals instead of the first.
pub(crate) fn find(job: &Job<'_>, io: &mut Io, earlier: Option<&Earlier>) -> Result<Findings, Failure> {
    let mut inspection = Inspection::new(job);
    inspection.look_at_paths();
    let (_medium, mut source) = inspection.open_source(io)?;
    inspection.look_at_new_file(source.capability().size_bytes);
    let (mut checked, mut changed_bytes) = (None, None);
    let stand_in = stand_in(&*job.destination)?;
    let exists = job.destination.path().is_none_or(Path::exists) || job.destination.creates();
    if exists {
        let at = stand_in.as_ref().map_or(&*job.destination, |stand_in| stand_in as &dyn Address);
        // Uses that the kernel lists are refusals already; a lock shows only by the failure of this open.
        match inspection.open_destination(io, at) {
            Ok((_medium, mut destination)) => {
                inspection.look_at_identity(&*source, &*destination);
                checked = inspection.check_plan(&*source, &*destination);
                inspection.look_at_content(io, &mut *destination)?;
                if let (Some(earlier), Some(checked)) = (earlier, &checked) {
                    let label = label_of(job, source.inspect().fingerprint(), &*destination, checked);
                    inspection.refusals.extend(earlier.check(job, &label).err());
                }
                crate::close(io, [destination]);
            }
            // /proc and /sys have shown the same use already.
            Err(failure) if failure.ending == Ending::Refused && !inspection.refusals.is_empty() => {}
            Err(failure) => inspection.refusals.push(failure),
        }
    }
    if let Some(checked) = &checked {
        match since::changes(job, io, &*source, checked) {
            Ok(changes) => changed_bytes = changes.map(|changes| changes.bytes()),
            Err(failure) => inspection.refusals.push(failure),
        }
    }
    // A duration estimated for the whole range does not apply to a few changed areas.
    let plan = Plan { differing: false, ..job.request.plan() };
    let estimate = checked
        .filter(|_| changed_bytes.is_none())
        .map(|checked| estimate(io, &mut *source, &plan, &checked));
    crate::close(io, [source]);
    let Inspection { refusals, source_consistent, .. } = inspection;
    Ok(Findings { refusals, plan, checked, changed_bytes, estimate, source_consistent })
}

/// A null medium of the same size, in place of a file that the copy would create or extend.
fn stand_in(destination: &dyn Address) -> Result<Option<Local>, Failure> {
    let usage = |error| Failure::usage("understand the endpoint", destination.text(), error);
    let spec = destination.spec();
    let size = spec.size("size").map_err(usage)?;
    let is_shorter = |path: &Path| std::fs::metadata(path).is_ok_and(|file| Some(file.len()) < size);
    let grows = spec.flag("grow").map_err(usage)? && destination.path().is_some_and(is_shorter);
    match size {
        Some(size) if destination.creates() || grows => {
            let spec = Spec::parse(&format!("null:{size}")).map_err(usage)?;
            Ok(Some(Local::named(destination.text(), spec)))
        }
        _ => Ok(None),
    }
}
