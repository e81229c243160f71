//! Fuzz targets for a limited time, starting with the kept corpus: a seeded selection, or in the nightly run all, which
//! also start with what earlier nights found.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::Ahead;
use crate::fuzz::{build, build_briefly, targets};
use crate::{Cases, Context, Tier};

/// Targets of a sample. The kept inputs of all targets run in every `cargo test`.
const SAMPLE: usize = 2;

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let seconds = context.amount(10, 600);
    let time = Duration::from_secs(seconds as u64);
    let names = targets()?;
    let start = |number: usize| {
        let build = if context.tier == Tier::Full { build } else { build_briefly };
        let fuzzers = build(&names[number..=number])?;
        let running = fuzzers.start(&names[number], time, context.seed)?;
        anyhow::Ok((fuzzers, running))
    };
    let mut ahead = Ahead::new();
    let (mut executions, mut crashes) = (0, 0);
    for (number, name) in names.iter().enumerate() {
        let mut figures = None;
        cases.check_some(("targets", SAMPLE), name, || {
            let (fuzzers, running) = ahead.take(context, number, names.len(), start)?;
            let report = fuzzers.report(name, running, time);
            crashes += usize::from(report.is_err());
            let report = report?;
            executions += report.executions;
            figures = Some(json!({
                "seconds": report.seconds,
                "executions": report.executions,
                "edges": report.edges,
                "features": report.features,
                "kept_inputs": report.kept,
            }));
            Ok(())
        });
        if let Some(figures) = figures {
            cases.fact(name, figures);
        }
    }
    cases.fact("seconds_each", seconds);
    cases.fact("executions", executions);
    cases.fact("crashes", crashes);
    Ok(())
}
