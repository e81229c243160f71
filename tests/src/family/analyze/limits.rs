//! Verdicts about connections whose limit was injected: a sample of the cells of `cargo xtask bench verdict`.

use std::cell::{OnceCell, RefCell};

use anyhow::{Context as _, Result, ensure};
use lab::wan::obstacle;

use crate::verdict::{Captures, Cell, Judged, Mark, Measured, Programs, Take, View, analyze, matrix};
use crate::{Cases, Context, scratch};

/// Cells of a sample: a minute.
const SAMPLE: usize = 6;
/// Runs of a cell until its verdicts are right: other work on the machine is a limit as well.
const RUNS_MAX: u64 = 3;
const SECONDS: f64 = 2.5;
/// Rounds of commands that a run has at least.
const ROUNDS_MIN: f64 = 4.0;
const WARM_SECONDS: f64 = 0.5;
/// A machine that delays the emulator longer than this measures itself.
const LATE_MS_MAX: f64 = 25.0;
/// Least share of right verdicts at the data sender, of six: at 94 % right, three wrong ones are rarer than one run of CI in
/// a hundred. The bar for the whole matrix, 95 %, is that of `cargo xtask bench verdict`.
const RIGHT_MIN: f64 = 0.6;

/// Verdicts from the three captures of a cell.
fn judge(context: &Context, programs: &Programs, cell: &Cell, seed: u64) -> Result<(Measured, Vec<Judged>)> {
    let dir = scratch()?;
    let setup = &cell.setup;
    let round_seconds = setup.load.block as f64 * f64::from(setup.load.depth) / setup.about();
    let take = Take {
        seconds: SECONDS.max(ROUNDS_MIN * round_seconds),
        warm_seconds: WARM_SECONDS,
        captures: Some(dir.path()),
        has_watch: false,
        seed,
    };
    let measured = crate::verdict::Scene::start(context, programs, &cell.setup, &take)?.measure(&take)?;
    let captures = Captures::within(dir.path());
    let files = [
        (View::Initiator, captures.initiator),
        (View::Between, captures.between),
        (View::Target, captures.target),
    ];
    let mut all = Vec::new();
    for (view, file) in files {
        let answer = analyze(context, &file).with_context(|| format!("the capture {}", view.name()))?;
        all.push(Judged::new(cell, view, answer, measured.mb_per_s, None));
    }
    Ok((measured, all))
}

fn is_at_sender(cell: &Cell, judged: &Judged) -> bool {
    judged.view == if cell.setup.load.is_write { View::Initiator } else { View::Target }
}

/// Runs a cell, again while a verdict is wrong. Returns whether the verdict at the data sender is right, and a note if the
/// machine was too busy.
fn examine_cell(context: &Context, programs: &Programs, cell: &Cell) -> Result<(bool, Option<String>)> {
    let seed = context.seed_for(&cell.name);
    let mut runs = (0..RUNS_MAX).map(|run| judge(context, programs, cell, seed.wrapping_add(run)));
    let is_right = |all: &[Judged]| all.iter().all(|judged| judged.mark() == Mark::Right);
    let mut last = runs.next().context("no run")?;
    for run in runs {
        if last.as_ref().is_ok_and(|(_, all)| is_right(all)) {
            break;
        }
        // A run in which nothing is wrong with certainty is not replaced by one in which something is.
        let is_better = run.as_ref().is_ok_and(|(_, all)| !all.iter().any(Judged::is_confidently_wrong));
        if is_better || last.is_err() {
            last = run;
        }
    }
    let (measured, all) = last?;
    let right = all.iter().any(|judged| is_at_sender(cell, judged) && judged.mark() == Mark::Right);
    if measured.late_max_ms > LATE_MS_MAX {
        let note = format!("{}: not judged, the path was late by {:.0} ms", cell.name, measured.late_max_ms);
        return Ok((true, Some(note)));
    }
    for judged in &all {
        ensure!(
            !judged.is_confidently_wrong(),
            "{}: the capture {} is said to be limited by {} with confidence {:.2}",
            cell.name,
            judged.view.name(),
            judged.answer.limit.name(),
            judged.answer.confidence
        );
    }
    Ok((right, None))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let obstacle = obstacle();
    let programs = OnceCell::new();
    let found: RefCell<Vec<bool>> = RefCell::default();
    for cell in matrix() {
        let mut note = None;
        cases.check_some(("limits", SAMPLE), &format!("limit-{}", cell.name), || {
            if let Some(obstacle) = &obstacle {
                note = Some(format!("{}: not run, {obstacle}", cell.name));
                return Ok(());
            }
            if programs.get().is_none() {
                programs.set(Programs::compile()?).expect("just found empty");
            }
            let (right, busy) = examine_cell(context, programs.get().expect("just set"), &cell)?;
            found.borrow_mut().push(right);
            note = busy;
            Ok(())
        });
        if let Some(note) = note {
            cases.note(note);
        }
    }
    let has_enough = found.borrow().len() >= SAMPLE / 2;
    cases.check_sum("limits-are-named", has_enough, || {
        let found = found.borrow();
        let share = found.iter().filter(|right| **right).count() as f64 / found.len() as f64;
        ensure!(share >= RIGHT_MIN, "{:.0} % of {} verdicts are right", share * 100.0, found.len());
        Ok(())
    });
    Ok(())
}
