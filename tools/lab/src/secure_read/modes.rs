//! The appendix of the papers: the same work in user mode and in kernel mode, alone and concurrently. It loads a kernel
//! module, so it runs in an emulated machine, whose clock counts instructions: it yields counts and shares, no speeds.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::stats::rounded;
use crate::table::Table;
use crate::{Attempted, LabError, Report};

/// The work in one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    mode: String,
    work: String,
    count: u64,
    instructions: u64,
    /// Result of the work; the same in both modes.
    result: u64,
    /// Whether the other mode runs concurrently, on one processor.
    is_together: bool,
}

/// Runs `program`, which is or replaces `tests/kernel-lab/modes/run`, and reports its counts.
pub(super) fn run(program: &Path) -> Result<Report, LabError> {
    let doing = format!("run {}", program.display());
    let output =
        Command::new(program).stdin(Stdio::null()).stderr(Stdio::inherit()).output().attempted(&doing)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let runs = parse(&text).filter(|_| text.contains("GUEST-RC 0"));
    let runs = runs.ok_or_else(|| LabError::new(doing, &format!("it did not come to its end: {text}")))?;
    Ok(report(&runs))
}

/// Parses the lines of the guest; `None` unless the same work ran in both modes, alone and together.
fn parse(text: &str) -> Option<Vec<Run>> {
    let (mut runs, mut is_together) = (Vec::new(), false);
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["MODES", "together"] => is_together = true,
            ["MODES", mode @ ("user" | "kernel"), work, count, instructions, result] => runs.push(Run {
                mode: mode.to_owned(),
                work: work.to_owned(),
                count: count.parse().ok()?,
                instructions: instructions.parse().ok().filter(|count| *count > 0)?,
                result: result.parse().ok()?,
                is_together,
            }),
            _ => {}
        }
    }
    // The same work in both modes has the same result.
    let is_paired = runs.iter().all(|run| other(&runs, run).is_some_and(|other| other.result == run.result));
    let has_both = [false, true].map(|together| runs.iter().any(|run| run.is_together == together));
    Some(runs).filter(|_| is_paired && has_both == [true, true])
}

fn other<'a>(runs: &'a [Run], run: &Run) -> Option<&'a Run> {
    let key = |run: &Run| (run.work.clone(), run.count, run.is_together);
    runs.iter().find(|found| key(found) == key(run) && found.mode != run.mode)
}

fn report(runs: &[Run]) -> Report {
    let mut table = Table::new("work | count | user, instructions | kernel | user by kernel | ");
    let mut rows = Vec::new();
    for user in runs.iter().filter(|run| run.mode == "user") {
        let kernel = other(runs, user).expect("they were paired");
        let ratio = rounded(user.instructions as f64 / kernel.instructions as f64);
        table.row(vec![
            user.work.clone(),
            user.count.to_string(),
            user.instructions.to_string(),
            kernel.instructions.to_string(),
            format!("{ratio:.2}"),
            if user.is_together { "both at once" } else { "" }.to_owned(),
        ]);
        rows.push(json!({
            "work": user.work, "count": user.count, "together": user.is_together,
            "user_instructions": user.instructions, "kernel_instructions": kernel.instructions, "user_by_kernel": ratio,
            "obtained": "counted: one emulated processor whose clock counts instructions",
        }));
    }
    let text = format!(
        "### The appendix: one work in two modes (emulated; instructions, not time)\n\n{}\nThe same object file runs in both modes. \
         At once, what the user's work has more is what it waited while the kernel's had the processor.\n",
        table.render()
    );
    let json: Value = json!({ "schema": 1, "experiment": "secure-read --modes", "rows": rows });
    Report { text, json, figures: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: &str = "MODES user fibonacci 20 110 6765\nMODES kernel fibonacci 20 100 6765\nMODES together\n\
        MODES kernel remainders 9 100 7\nMODES user remainders 9 250 7\nGUEST-RC 0\n";

    #[test]
    fn modes_are_set_side_by_side() {
        let report = report(&parse(GUEST).unwrap());
        assert_eq!(report.json["rows"][0]["user_by_kernel"], 1.1);
        let row = &report.json["rows"][1];
        assert_eq!((&row["together"], &row["user_by_kernel"]), (&json!(true), &json!(2.5)));
        assert!(report.text.contains("both at once"), "{}", report.text);
    }

    #[test]
    fn a_guest_that_did_not_do_it_all_is_no_result() {
        for (what, text) in [
            ("nothing", String::new()),
            ("one mode only", GUEST.replace("MODES kernel remainders 9 100 7\n", "")),
            ("another result", GUEST.replace("100 6765", "100 6766")),
            ("never at once", GUEST.replace("MODES together\n", "")),
            ("no count", GUEST.replace(" 110 ", " 0 ")),
        ] {
            assert_eq!(parse(&text), None, "{what}");
        }
    }
}
