//! Simulated runs of initiator, target and mover: each seed is one, and says how to replay itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::harness::{Cases, Context, run};
use crate::suite::programs;

/// All runs of a scenario; they take 25 ms each on one core.
const LIMIT: Duration = Duration::from_secs(3600);
/// Scenarios, and how often one is run for each time that `drains` is.
const SCENARIOS: &[(&str, u64)] =
    &[("clients", 2), ("copies", 1), ("drains", 1), ("resumes", 1), ("xcopies", 1)];
/// What a night's runs must have met, and how often.
const CUTS_MIN: u64 = 10_000;

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let simulator = programs()?.join("hikyaku-sim");
    let unit = context.amount(160, 3000) as u64;
    let mut total = serde_json::Map::new();
    let mut complete = 0;
    for (name, share) in SCENARIOS {
        let mut counts = Value::Null;
        cases.check(name, || {
            counts = simulate(&simulator, name, unit * share, context.seed_for(name) % 1_000_000_000)?;
            complete += 1;
            Ok(())
        });
        for (what, count) in counts.as_object().into_iter().flatten() {
            let sum = count.as_u64().unwrap_or(0) + total.get(what).and_then(Value::as_u64).unwrap_or(0);
            total.insert(what.clone(), sum.into());
        }
    }
    for (what, count) in &total {
        cases.fact(what, count.clone());
    }
    // Not of a part, or of what a resumed night had left.
    if complete == SCENARIOS.len() {
        cases.check("coverage", || {
            // A sample is too small to be sure of the rarest.
            let rare: &[&str] = if context.amount(0, 1) == 0 { &["late_segments_heard"] } else { &[] };
            let missing = |(what, count): &(&String, &Value)| {
                **count == 0 && *what != "runs_failed" && !rare.contains(&what.as_str())
            };
            let never: Vec<_> = total.iter().filter(missing).collect();
            ensure!(never.is_empty(), "never happened: {never:?}");
            let of = |what: &str| total.get(what).and_then(Value::as_u64).unwrap_or(0);
            let cuts = of("target_cuts")
                + of("target_kills")
                + of("initiator_cuts")
                + of("resets")
                + of("half_dead");
            let wanted = context.amount(CUTS_MIN as usize / 20, CUTS_MIN as usize) as u64;
            ensure!(cuts >= wanted, "{cuts} cuts, fewer than {wanted}");
            Ok(())
        });
    }
    Ok(())
}

/// What happened in so many runs, all of which were well.
fn simulate(simulator: &Path, scenario: &str, runs: u64, seed: u64) -> Result<Value> {
    let mut command = Command::new(simulator);
    command.args([
        "--json",
        "--scenario",
        scenario,
        "--runs",
        &runs.to_string(),
        "--seed",
        &seed.to_string(),
    ]);
    let output = run(&mut command, LIMIT)?.success()?;
    serde_json::from_str(output.stdout.trim()).context("read the simulator's counts")
}
