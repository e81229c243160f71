//! The checkers checked: a build with defects on demand (`crates/mutant`), and for each defect the simulator and the
//! torture test, which must see what it does to data. Without a defect the same runs must pass.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::harness::process::Surroundings;
use crate::harness::{Cases, Context, Disk, Output, Served, Target, run, scratch};
use crate::steps::{cargo, must, target_directory};

/// Names the defect to a program of the build.
const VARIABLE: &str = "HIKYAKU_MUTANT";
/// Simulated runs, successive seeds, until one fails.
const RUNS: u64 = 6000;
const SIMULATOR_LIMIT: Duration = Duration::from_secs(1200);
/// Requests of each client of the torture test.
const OPERATIONS: &str = "3000";
const TORTURE_LIMIT: Duration = Duration::from_secs(120);
/// What `hikyaku torture` exits with when data is not what it must be.
const EXIT_MISMATCH: i32 = 3;

/// The programs with defects on demand.
struct Build {
    directory: PathBuf,
}

impl Build {
    fn make() -> Result<Self> {
        let directory = target_directory()?.join("mutants");
        let mut command = cargo(&["build", "--release", "--features", "hikyaku-mutant/mutants"]);
        command.args(["--package", "hikyaku", "--package", "hikyaku-sim", "--package", "hikyaku-mutant"]);
        command.arg("--target-dir").arg(&directory);
        // What runs for a minute need not be linked for two.
        command.envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_DEBUG", "0")]);
        must(&mut command)?;
        Ok(Self { directory: directory.join("release") })
    }

    fn program(&self, name: &str, mutant: Option<&str>) -> Command {
        let mut command = Command::new(self.directory.join(name));
        command.env_remove(VARIABLE).envs(mutant.map(|mutant| (VARIABLE, mutant)));
        command
    }

    /// All defects that there are.
    fn mutants(&self) -> Result<Vec<String>> {
        let listed = run(&mut self.program("hikyaku-mutant", None), Duration::from_secs(10))?.success()?;
        Ok(listed.stdout.lines().map(str::to_owned).collect())
    }

    fn simulate(&self, seed: u64, mutant: Option<&str>) -> Result<Output> {
        let mut command = self.program("hikyaku-sim", mutant);
        command.args(["--runs", &RUNS.to_string(), "--seed", &seed.to_string()]);
        run(&mut command, SIMULATOR_LIMIT)
    }

    /// Two clients on storage in memory that takes a millisecond for everything.
    fn torture(&self, context: &Context, seed: u64, mutant: Option<&str>) -> Result<Output> {
        let home = scratch()?;
        let context =
            Context { hikyaku: self.directory.join("hikyaku"), home, repository: PathBuf::new(), ..*context };
        let surroundings = mutant.map(|mutant| Surroundings::variable(VARIABLE, mutant)).unwrap_or_default();
        let disk = Disk::endpoint("mem:8M").option("delay=1ms").option("shared");
        let target = Served::Ours(Target::serve_with(&context, &[disk], None, &[], &surroundings)?);
        let mut command = self.program("hikyaku", mutant);
        in_home(&mut command, context.home.path());
        command.args(["torture", &target.url(0).to_string(), "--destroy", "--clients", "2"]);
        command.args(["--operations", OPERATIONS, "--seed", &seed.to_string()]);
        run(&mut command, TORTURE_LIMIT)
    }
}

fn in_home(command: &mut Command, home: &Path) {
    command.env("HOME", home).env("XDG_STATE_HOME", home.join("state"));
}

/// The simulator's words on data that is not what it must be. That the code panicked is another matter.
fn verdict_of_simulator(output: &Output) -> Option<Value> {
    let line = output.stderr.lines().find(|line| line.starts_with("seed ") && !line.contains("panic"))?;
    let (seed, verdict) = line.strip_prefix("seed ")?.split_once(": ")?;
    let seed: u64 = seed.parse().ok()?;
    (output.code == Some(1)).then(|| json!({"checker": "simulator", "seed": seed, "verdict": verdict}))
}

fn verdict_of_torture(output: &Output, seed: u64) -> Option<Value> {
    let text = output.text();
    let verdict = text.lines().find(|line| line.starts_with("sector "))?;
    (output.code == Some(EXIT_MISMATCH))
        .then(|| json!({"checker": "torture", "seed": seed, "verdict": verdict.trim()}))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let build = Build::make()?;
    // Small seeds: they are typed to replay.
    let seed = context.seed % 1_000_000;
    cases.check("none-simulator", || {
        build.simulate(seed, None)?.success().context("without a defect all runs pass")?;
        Ok(())
    });
    cases.check("none-torture", || {
        build.torture(context, seed, None)?.success().context("without a defect the data is right")?;
        Ok(())
    });
    let mut rows = Vec::new();
    for mutant in build.mutants()? {
        cases.check(&mutant, || {
            let simulated = build.simulate(seed, Some(&mutant))?;
            let simulated = verdict_of_simulator(&simulated).map(|mut found| {
                found["runs"] = json!(found["seed"].as_u64().unwrap_or(seed) - seed + 1);
                found
            });
            let tortured = verdict_of_torture(&build.torture(context, seed, Some(&mutant))?, seed);
            let caught: Vec<Value> = simulated.into_iter().chain(tortured).collect();
            rows.push(json!({"mutant": mutant, "caught_by": caught}));
            ensure!(!caught.is_empty(), "neither {RUNS} simulated runs nor the torture test saw it");
            Ok(())
        });
    }
    cases.fact("simulated_runs_max", RUNS);
    cases.fact("first_seed", seed);
    cases.fact("mutants", rows);
    Ok(())
}
