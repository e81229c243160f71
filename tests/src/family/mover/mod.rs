//! Copies with a journal under every fault: interrupted at each step, on full, failing, vanishing and swapped storage,
//! with damaged or foreign journals. No data may be lost or skipped without a message, and the exit code shows the
//! cause.
//!
//! Images are a little longer than 1 GiB, where a journal is kept by default, and mostly hole, so that a case takes
//! well under a second. Read docs/internals/mover.md, "What is trusted after an interruption".

mod devices;
mod faults;
mod image;
mod interrupt;
mod journal;
mod map;
pub(super) mod scene;

use anyhow::Result;

use crate::{Cases, Context};

/// A name, and a function of the context and of a seed that follows from the name.
type Case = (String, Box<dyn Fn(&Context, u64) -> Result<()>>);

/// Cases of each group in a sample, which takes some twenty seconds.
const SAMPLE: usize = 5;

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let groups = [
        ("faults", faults::cases()),
        ("journal", journal::cases()),
        ("devices", devices::cases()),
        ("pairs", interrupt::pairs()),
        ("steps", interrupt::steps()),
    ];
    for (group, all) in groups {
        for (name, play) in all {
            cases.check_some((group, SAMPLE), &name, || play(context, seed(context, &name)));
        }
    }
    if !crate::files::can_loop() {
        cases.note("no loop devices and mounts: what needs them was not tried");
    }
    Ok(())
}

fn case(name: impl Into<String>, play: impl Fn(&Context, u64) -> Result<()> + 'static) -> Case {
    (name.into(), Box::new(play))
}

fn seed(context: &Context, name: &str) -> u64 {
    context.seed_for(&format!("mover/{name}"))
}

/// Runs cases that detect the effect of a defect on data, until one fails; returns its message. For the family
/// `mutants`.
pub(super) fn verdict(context: &Context) -> Result<Option<String>> {
    const TELLING: &[&str] = &[
        "cut-off-file-to-file",
        "killed-at-sync",
        "machine-cut-xfs-at-next-open",
        "swapped-lun-destination",
    ];
    let groups = [interrupt::pairs(), interrupt::steps(), devices::cases()];
    let telling = |(name, _): &Case| TELLING.iter().any(|telling| name.starts_with(telling));
    for (name, play) in groups.into_iter().flatten().filter(telling) {
        if let Err(error) = play(context, seed(context, &name)) {
            // Without its tools a case has told nothing of the program.
            if error.is::<crate::Missing>() {
                return Err(error.context(name));
            }
            return Ok(Some(format!("{name}: {error:#}").lines().next().unwrap_or_default().to_owned()));
        }
    }
    Ok(None)
}
