//! Fuzz targets for a while, from the kept corpus on: some, drawn by seed; in the night all, from what earlier nights found, too.

use std::time::Duration;

use anyhow::Result;
use rand::seq::SliceRandom;
use serde_json::json;

use crate::fuzz::{self, build, targets};
use crate::harness::{Cases, Context, Tier};

/// Targets of a sample. The kept inputs of all of them run in every `cargo test`.
const SAMPLE: usize = 5;

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let seconds = context.amount(10, 600);
    let time = Duration::from_secs(seconds as u64);
    let mut names: Vec<String> = targets()?.into_iter().filter(|name| cases.is_due(name)).collect();
    if context.tier == Tier::Sample {
        names.shuffle(&mut context.rng("fuzz/targets"));
        names.truncate(SAMPLE);
    }
    if names.is_empty() {
        return Ok(());
    }
    let fuzzers = build(&names, context.tier == Tier::Sample)?;
    let (mut executions, mut crashes) = (0, 0);
    fuzz::fuzz(&fuzzers, &names, time, context.seed, |name, result| {
        let result = result.map(|report| {
            executions += report.executions;
            let figures = json!({
                "seconds": report.seconds,
                "executions": report.executions,
                "edges": report.edges,
                "features": report.features,
                "kept_inputs": report.kept,
            });
            cases.fact(name, figures);
        });
        crashes += usize::from(result.is_err());
        cases.record(name, result, time.as_secs_f64());
    })?;
    cases.fact("seconds_each", seconds);
    cases.fact("executions", executions);
    cases.fact("crashes", crashes);
    Ok(())
}
