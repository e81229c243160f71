//! Every fuzz target for a while, from the kept corpus on; in the night from what earlier nights found, too.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::fuzz::{self, build, targets};
use crate::harness::{Cases, Context, Tier};

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let seconds = context.amount(8, 600);
    let time = Duration::from_secs(seconds as u64);
    let names: Vec<String> = targets()?.into_iter().filter(|name| cases.is_due(name)).collect();
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
