//! Simulated runs of initiator, target and mover: each run has one seed, and prints how to replay it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value};

use crate::{Cases, Context, Scene, run};
use steps::build::programs;

/// Time limit of all runs of a scenario; one takes 25 ms on one core.
const LIMIT: Duration = Duration::from_secs(3600);
/// Scenarios, and their number of runs relative to `drains`.
const SCENARIOS: &[(&str, u64)] =
    &[("clients", 2), ("copies", 1), ("drains", 1), ("resumes", 1), ("xcopies", 1)];
const CUTS_MIN: u64 = 10_000;

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let simulator = Scene::new(|| match &context.simulator {
        Some(path) => Ok(path.clone()),
        None => Ok(programs(context.tier)?.join("hikyaku-sim")),
    });
    let unit = context.amount(160, 3000) as u64;
    let mut total = Map::new();
    let mut complete = 0;
    for (name, share) in SCENARIOS {
        cases.check(name, || {
            let seed = context.seed_for(name) % 1_000_000_000;
            for (what, count) in simulate(simulator.get()?, name, unit * share, seed)? {
                let sum = count.as_u64().unwrap_or(0) + of(&total, &what);
                total.insert(what, sum.into());
            }
            complete += 1;
            Ok(())
        });
    }
    for (what, count) in &total {
        cases.fact(what, count.clone());
    }
    cases.check_sum("coverage", complete == SCENARIOS.len(), || {
        // A sample is too small to contain the rarest events reliably.
        let rare: &[&str] = if context.amount(0, 1) == 0 { &["late_segments_heard"] } else { &[] };
        let missing = |(what, count): &(&String, &Value)| {
            **count == 0 && *what != "runs_failed" && !rare.contains(&what.as_str())
        };
        let never: Vec<_> = total.iter().filter(missing).collect();
        ensure!(never.is_empty(), "never happened: {never:?}");
        let cuts = ["target_cuts", "target_kills", "initiator_cuts", "resets", "half_dead"];
        let cuts: u64 = cuts.iter().map(|what| of(&total, what)).sum();
        let wanted = context.amount(CUTS_MIN as usize / 20, CUTS_MIN as usize) as u64;
        demand!(cuts >= wanted, "{cuts} cuts, fewer than {wanted}")
    });
    Ok(())
}

fn of(counts: &Map<String, Value>, what: &str) -> u64 {
    counts.get(what).and_then(Value::as_u64).unwrap_or(0)
}

/// Events of `runs` runs, all of which must pass.
fn simulate(simulator: &Path, scenario: &str, runs: u64, seed: u64) -> Result<Map<String, Value>> {
    let mut command = Command::new(simulator);
    command.args(["--json", "--scenario", scenario]);
    command.args(["--runs", &runs.to_string(), "--seed", &seed.to_string()]);
    let output = run(&mut command, LIMIT)?.success()?;
    serde_json::from_str(output.stdout.trim()).context("read the simulator's counts")
}
