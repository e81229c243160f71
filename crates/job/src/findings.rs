//! `--dry-run`: what a copy would do, and every reason to refuse it. Creates and writes nothing.

use std::path::Path;

use block::{Endpoint, Spec};
use io::Io;
use mover::{Checked, Plan};

use crate::address::Local;
use crate::estimate::{Estimate, estimate};
use crate::journal::{Earlier, label_of};
use crate::refusals::{Inspection, MISSING};
use crate::{Address, Ending, Failure, Job, since, space, stream};

#[derive(Debug)]
pub struct Findings {
    /// All refusals, in the order in which a copy checks. A copy fails with the first.
    pub refusals: Vec<Failure>,
    pub plan: Plan,
    /// The plan divided into chunks; `None` if the destination cannot be opened or the engine refuses the plan.
    pub checked: Option<Checked>,
    /// The journal of the interrupted copy that would be resumed, as an argument of `--resume`.
    pub resumes: Option<String>,
    /// Bytes that may differ; `None` if that is unknown before the comparison.
    pub changed_bytes: Option<u64>,
    /// The expected duration; `None` if only changed areas are copied and their size is unknown, after a refusal, and for
    /// a stream.
    pub estimate: Option<Estimate>,
    /// Whether no writer of the source is known.
    pub source_consistent: bool,
}

/// Makes the checks of [`refusals::prepare`](crate::refusals) and lists all refusals instead of the first.
pub(crate) fn find(job: &Job<'_>, io: &mut Io, earlier: Option<Earlier>) -> Result<Findings, Failure> {
    let Looked { inspection, mut source, checked } = look(io, Inspection::new(job, earlier))?;
    let Inspection { mut refusals, source_consistent, earlier, .. } = inspection;
    let mut changed_bytes = None;
    if let Some(checked) = checked.as_ref().filter(|_| earlier.is_none()) {
        match since::changes(job, io, &*source, checked) {
            Ok(changes) => changed_bytes = changes.map(|changes| changes.bytes()),
            Err(failure) => refusals.push(failure),
        }
    }
    // A duration estimated for the whole range does not apply to a few changed areas.
    let plan = Plan { differing: false, ..job.request.plan() };
    let estimate = checked
        .filter(|_| changed_bytes.is_none() && refusals.is_empty())
        .map(|checked| estimate(io, &mut *source, &plan, &checked));
    crate::close(io, [source]);
    let resumes = earlier.map(|earlier| earlier.name);
    Ok(Findings { refusals, plan, checked, resumes, changed_bytes, estimate, source_consistent })
}

/// The findings about a copy from or to a stream: at most the first refusal, and no estimate, because reading a stream
/// takes its data away.
pub(crate) fn find_for_stream(job: &Job<'_>, earlier: Option<Earlier>) -> Result<Findings, Failure> {
    stream::check(job)?;
    let refusals = check_all(job, earlier).err().into_iter().collect();
    let plan = Plan { differing: false, ..job.request.plan() };
    Ok(Findings {
        refusals,
        plan,
        checked: None,
        resumes: None,
        changed_bytes: None,
        estimate: None,
        source_consistent: true,
    })
}

/// Makes the same checks before `--pre` runs. The first refusal is the failure; a device that is missing and an end that
/// cannot be opened yet are none, because `--pre` may make them: activate a volume, log in to a target.
pub(crate) fn rehearse(job: &Job<'_>, earlier: Option<Earlier>) -> Result<(), Failure> {
    let is_awaited =
        |end: &dyn Address| end.path().is_some_and(|path| !path.exists() && block::is_among_devices(path));
    if is_awaited(&*job.source) || is_awaited(&*job.destination) && !job.creates {
        return Ok(());
    }
    match check_all(job, earlier) {
        Err(failure) if failure.attempted != MISSING && may_be_mended(failure.ending) => Ok(()),
        checked => checked,
    }
}

fn may_be_mended(ending: Ending) -> bool {
    matches!(ending, Ending::Failed | Ending::Authentication | Ending::Unreachable)
}

fn check_all(job: &Job<'_>, earlier: Option<Earlier>) -> Result<(), Failure> {
    let inspection = Inspection::rehearsal(job, earlier);
    if job.source.is_stream() || job.destination.is_stream() {
        return check_stream(inspection);
    }
    let mut io = crate::event_loop()?;
    let mut looked = look(&mut io, inspection)?;
    crate::close(&mut io, [looked.source]);
    looked.inspection.first()
}

/// Opens the end that is no stream, as a copy does, and standard output if it is a file or a device.
fn check_stream(mut inspection: Inspection<'_>) -> Result<(), Failure> {
    let job = inspection.job;
    stream::check(job)?;
    inspection.look_at_paths();
    inspection.look_at_stream();
    inspection.first()?;
    let mut io = crate::event_loop()?;
    if job.destination.is_stream() {
        let (_medium, source) = inspection.open_source(&mut io)?;
        crate::close(&mut io, [source]);
        let output = inspection.look_at_output(&mut io)?;
        if let Some(Ok((_medium, endpoint))) = output.map(|output| output.opened) {
            crate::close(&mut io, [endpoint]);
        }
    } else if !inspection.is_absent {
        inspection.look_at_growing(&mut io, 0)?;
        let stand_in = stand_in(job, false, 0)?;
        let at = stand_in.as_ref().map_or(&*job.destination, |stand_in| stand_in as &dyn Address);
        let (_medium, mut destination) = inspection.open_destination(&mut io, at)?;
        inspection.look_at_content(&mut io, &mut *destination)?;
        crate::close(&mut io, [destination]);
    }
    inspection.first()
}

struct Looked<'a> {
    inspection: Inspection<'a>,
    source: Box<dyn Endpoint>,
    checked: Option<Checked>,
}

/// Opens both endpoints, a stand-in for a file that is to be made, and collects every refusal.
fn look<'a>(io: &mut Io, mut inspection: Inspection<'a>) -> Result<Looked<'a>, Failure> {
    let job = inspection.job;
    inspection.look_at_paths();
    // The reason why a source is missing is the same failure in words of its own.
    let opened = inspection.open_source(io);
    let (_medium, mut source) = match opened {
        Err(_) if inspection.refusals.iter().any(|refusal| refusal.attempted == MISSING) => {
            return Err(inspection.refusals.remove(0));
        }
        opened => opened?,
    };
    let may_be_made = inspection.is_absent;
    inspection.look_at_new_file(&mut *source);
    let mut checked = None;
    let source_bytes = source.capability().size_bytes;
    if let Err(failure) = inspection.look_at_growing(io, source_bytes)
        && (failure.ending != Ending::Refused || inspection.refusals.is_empty())
    {
        inspection.refusals.push(failure);
    }
    let stand_in = stand_in(job, may_be_made, source_bytes)?;
    if may_be_made || job.destination.path().is_none_or(Path::exists) {
        let at = stand_in.as_ref().map_or(&*job.destination, |stand_in| stand_in as &dyn Address);
        // Uses that the kernel lists are refusals already; a lock shows only by the failure of this open.
        match inspection.open_destination(io, at) {
            Ok((_medium, mut destination)) => {
                inspection.look_at_identity(&*source, &*destination);
                checked = inspection.check_plan(&*source, &*destination);
                if let Some(checked) = &checked {
                    let was = source.inspect().fingerprint();
                    inspection.look_for_earlier(io, &was, checked, [&mut *source, &mut *destination])?;
                }
                inspection.look_at_content(io, &mut *destination)?;
                if let (Some(earlier), Some(checked)) = (&inspection.earlier, &checked) {
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
    Ok(Looked { inspection, source, checked })
}

/// A null medium of the same size, in place of a file that the copy would make or extend.
fn stand_in(job: &Job<'_>, is_absent: bool, source_bytes: u64) -> Result<Option<Local>, Failure> {
    let size = if is_absent {
        Some(space::size_of_new(job, source_bytes)?)
    } else {
        space::larger(job, source_bytes)?
    };
    let Some(size) = size else { return Ok(None) };
    let spec = Spec::parse(&format!("null:{size}"));
    let spec =
        spec.map_err(|error| Failure::usage("understand the endpoint", job.destination.text(), error))?;
    Ok(Some(Local::named(job.destination.text(), spec)))
}
