//! The order of a run: packages, unit tests, the release binary, the families; and the summary printed at the end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use steps::build::{RUN_LIMIT, STEP_LIMIT, Steps, UnitCounts, binary, binary_of, follow, show};
use steps::packages::{self, Purpose};
use steps::settings::{Settings, Tally, VARIABLE, print_summary, results, totals};
use steps::{Against, Share, Tier, cargo, fresh_seed, line_of, must, repository, target_directory};

use crate::{Selection, bpf, touched};

/// A run of the program of the families. Without `built`, which [`test_programs`] returns, cargo builds it.
fn families(settings: &Settings, built: Option<&TestProgram>) -> Result<Command> {
    let mut command = match built {
        Some(program) => Command::new(&program.path),
        None => cargo(&["test", "--package", "hikyaku-tests", "--test", "families", "--"]),
    };
    command.env(VARIABLE, serde_json::to_string(settings)?);
    Ok(command)
}

/// Prints the families of `settings`, by default all.
fn overview(settings: Settings) -> Result<bool> {
    show(&mut families(&Settings { is_overview: true, ..settings }, None)?, STEP_LIMIT)
}

pub(crate) fn list() -> Result<bool> {
    overview(Settings::default())
}

/// Ends a run before its long builds if a named family does not exist.
fn known(selection: &Selection) -> Result<()> {
    let settings = Settings { families: selection.family.clone(), ..Settings::default() };
    ensure!(selection.family.is_empty() || overview(settings)?, "see above");
    Ok(())
}

/// Runs the families as cargo's tests. Cases that a filter names run even if the sample leaves them out.
fn run_families(
    settings: &Settings,
    filter: Option<&str>,
    built: Option<&TestProgram>,
) -> Result<Vec<Tally>> {
    let report = target_directory()?.join("tests-report.json");
    let _ = std::fs::remove_file(&report);
    let settings = Settings { report: Some(report.clone()), ..settings.clone() };
    let mut command = families(&settings, built)?;
    if let Some(filter) = filter {
        command.args(["--include-ignored", filter]);
    }
    let ok = show(&mut command, RUN_LIMIT)?;
    let tallies = results(&report)?;
    ensure!(ok || totals(&tallies).1 > 0, "the test program failed without a failed case");
    Ok(tallies)
}

/// Arguments of cargo-deny; deny.toml states why advisories are not checked.
const DENY: &[&str] = &["--locked", "check", "licenses", "sources", "bans"];

/// Packages that drive `io`: their tests run again over its portable back end.
const OVER_IO: &[&str] = &["hikyaku-block", "hikyaku-mover", "hikyaku-node"];

/// A test program of the workspace.
struct TestProgram {
    package: String,
    target: String,
    path: PathBuf,
    /// Directory of the package, in which its tests run.
    home: PathBuf,
}

impl TestProgram {
    /// Parses a message of cargo; `None` if it announces no test program.
    fn parse(line: &[u8]) -> Result<Option<Self>> {
        let message: Value = serde_json::from_slice(line).context("a message of cargo")?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (Some(path), Some(manifest)) = (text(&message["executable"]), text(&message["manifest_path"]))
        else {
            return Ok(None);
        };
        let home = Path::new(&manifest).parent().context("a manifest without a directory")?.to_owned();
        let package = text(&message["package_id"]).unwrap_or_default();
        let target = text(&message["target"]["name"]).unwrap_or_default();
        let is_test = message["profile"]["test"] == true;
        Ok(is_test.then(|| Self { package, target, path: path.into(), home }))
    }

    fn holds_families(&self) -> bool {
        self.target == "families"
    }

    fn drives_io(&self) -> bool {
        OVER_IO.iter().any(|name| self.package.contains(&format!("#{name}@")))
    }

    /// Runs all tests, also those that plain `cargo test` leaves out because they need a peer or more than ten seconds.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("--include-ignored").current_dir(&self.home);
        command
    }
}

/// Builds all test programs and, in the same run, `hikyaku` and `hikyaku-sim`: packages built one by one would compile
/// the dependencies again with other features.
fn test_programs() -> Result<Vec<TestProgram>> {
    let mut build =
        cargo(&["build", "--workspace", "--tests", "--examples", "--bin=hikyaku", "--bin=hikyaku-sim"]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output().context("start cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| TestProgram::parse(line).transpose()).collect()
}

/// Test programs that run at once: many of their tests wait.
const PROGRAMS_AT_ONCE: usize = 2;

/// Runs cargo's tests and returns their results as a family. Of several programs, each is printed when it has ended.
fn unit_tests(family: &str, commands: Vec<Command>) -> Result<Tally> {
    let started = Instant::now();
    let is_alone = commands.len() == 1;
    let queue = Mutex::new(commands.into_iter());
    let run = |output: Sender<Vec<String>>| -> Result<bool> {
        let mut ok = true;
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(mut command) = next else { return Ok(ok) };
            let mut lines = vec![line_of(&command)];
            ok &= follow(&mut command, STEP_LIMIT, |line| {
                lines.push(line.to_owned());
                if is_alone {
                    _ = output.send(std::mem::take(&mut lines));
                }
            })?;
            _ = output.send(lines);
        }
    };
    let (mut counts, mut names) = (UnitCounts::default(), Vec::new());
    let ok = std::thread::scope(|scope| {
        let (output, printed) = mpsc::channel();
        let runs = [(); PROGRAMS_AT_ONCE].map(|()| {
            let output = output.clone();
            scope.spawn(|| run(output))
        });
        drop(output);
        for line in printed.into_iter().flatten() {
            println!("{line}");
            counts.add(&line);
            if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
                names.push(name.to_owned());
            }
        }
        runs.into_iter().try_fold(true, |ok, run| anyhow::Ok(ok & run.join().expect("it does not panic")?))
    })?;
    let mut failures: Vec<_> =
        names.into_iter().map(|case| (case, "see its output above".to_owned())).collect();
    if !ok && failures.is_empty() {
        failures.push(("cargo test".into(), "does not build, or was killed".into()));
    }
    Ok(Tally {
        family: family.to_owned(),
        share: Share::default(),
        passed: counts.passed,
        resumed: 0,
        failures,
        notes: Vec::new(),
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// All steps of `test` except the summary.
fn test_steps(
    steps: &mut Steps,
    selection: &Selection,
    against: Against,
    touched: Vec<String>,
) -> Result<Vec<Tally>> {
    known(selection)?;
    let tier = if selection.case.is_some() { Tier::Full } else { Tier::Sample };
    let seed = selection.seed.unwrap_or_else(fresh_seed);
    println!("seed {seed} (replay with --seed {seed})");
    let (mut tallies, mut programs) = (Vec::new(), Vec::new());
    let installed = steps.step("packages", || packages::ensure(Purpose::Test)).is_some();
    if selection.family.is_empty() && against == Against::Ours {
        programs = steps.step("build", test_programs).unwrap_or_default();
        let units = programs.iter().filter(|program| !program.holds_families());
        let mut unit: Vec<_> = units.map(TestProgram::command).collect();
        unit.push(cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]));
        tallies.extend(steps.step("unit tests", || unit_tests("unit", unit)));
        let mut portable: Vec<_> =
            programs.iter().filter(|program| program.drives_io()).map(TestProgram::command).collect();
        for command in &mut portable {
            command.env("HIKYAKU_IO", "portable").env("HIKYAKU_HELPERS", "2");
        }
        tallies.extend(steps.step("unit tests, portable", || unit_tests("unit, portable", portable)));
    }
    let built = programs.iter().find(|program| program.holds_families());
    let directory = built.and_then(|program| program.path.ancestors().nth(2));
    let hikyaku = match (against, directory) {
        (Against::Tgt, _) => Some(PathBuf::from("hikyaku")),
        (Against::Ours, Some(directory)) if selection.hikyaku.is_none() => Some(directory.join("hikyaku")),
        (Against::Ours, _) => steps.step("build", || binary_of(selection.hikyaku.as_ref(), tier)),
    };
    if let (Some(hikyaku), true) = (hikyaku, installed) {
        let settings = Settings {
            tier: Some(tier),
            families: selection.family.clone(),
            seed: Some(seed),
            touched,
            hikyaku: Some(hikyaku),
            simulator: directory.map(|directory| directory.join("hikyaku-sim")),
            against,
            ..Settings::default()
        };
        let found =
            steps.step("interoperability", || run_families(&settings, selection.case.as_deref(), built));
        tallies.extend(found.unwrap_or_default());
    } else {
        println!("FAIL: the interoperability families were not run");
    }
    if let (Some(case), (0, 0)) = (&selection.case, totals(&tallies)) {
        bail!("no case is named {case}");
    }
    if totals(&tallies).1 > 0 {
        println!("\nreplay with: cargo xtask test --family NAME --case CASE --seed {seed}");
    }
    Ok(tallies)
}

/// Prints the tables and, as the last line, the totals.
fn conclude(steps: &Steps, tallies: &[Tally]) -> bool {
    print_summary(tallies);
    steps.print();
    let (passed, failed) = totals(tallies);
    let failed = failed + steps.failures();
    println!("{passed} passed, {failed} failed");
    failed == 0
}

pub(crate) fn test(selection: &Selection, against: Against) -> Result<bool> {
    let mut steps = Steps::default();
    let tallies = test_steps(&mut steps, selection, against, Vec::new())?;
    Ok(conclude(&steps, &tallies))
}

fn lints(steps: &mut Steps) {
    steps.step("fmt", || must(&mut cargo(&["fmt", "--all", "--check"])));
    steps.step("clippy", || {
        must(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    });
}

pub(crate) fn quick() -> Result<bool> {
    let mut steps = Steps::default();
    lints(&mut steps);
    let libraries = cargo(&["test", "--workspace", "--lib", "--no-fail-fast"]);
    let tallies: Vec<_> =
        steps.step("unit tests", || unit_tests("unit", vec![libraries])).into_iter().collect();
    Ok(conclude(&steps, &tallies))
}

pub(crate) fn ci(selection: &Selection) -> Result<bool> {
    let mut steps = Steps::default();
    lints(&mut steps);
    steps.step("doc", || {
        let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
        must(command.env("RUSTDOCFLAGS", "-D warnings"))
    });
    steps.step("bpf", || {
        packages::ensure(Purpose::Test)?;
        bpf::run(&bpf::Args { check: true })?;
        if !touched::is_touched(&BPF_PATHS) {
            println!(
                "nothing that the feature bpf depends on has changed: not built again; nightly builds it"
            );
            return Ok(());
        }
        bpf_builds()
    });
    let touched = steps.step("changed files", touched::since_base).unwrap_or_default();
    let tallies = test_steps(&mut steps, selection, Against::Ours, touched)?;
    Ok(conclude(&steps, &tallies))
}

/// Paths that the feature `bpf` is built from.
const BPF_PATHS: [&str; 7] = [
    "Cargo.lock",
    "Cargo.toml",
    "crates/cli/Cargo.toml",
    "crates/cli/src/command/watch",
    "crates/monitor/",
    "xtask/src/bpf.rs",
    "xtask/src/suite.rs",
];

/// Lints and tests with the feature `bpf`. The lints are those of the workspace, which has the features of its
/// dependencies checked already: only what depends on `monitor` is checked again.
fn bpf_builds() -> Result<()> {
    let workspace = ["--workspace", "--features", "hikyaku/bpf", "--lib", "--bins", "--test", "bpf"];
    must(cargo(&["clippy"]).args(workspace).args(["--", "-D", "warnings"]))?;
    let package = ["--package", "hikyaku-monitor", "--features", "bpf", "--lib", "--test", "bpf"];
    must(cargo(&["test"]).args(package))
}

pub(crate) fn nightly(selection: &Selection, resume: bool) -> Result<bool> {
    let mut steps = Steps::default();
    known(selection)?;
    println!("interrupted, it goes on with: cargo xtask nightly --resume");
    if selection.family.is_empty() {
        steps.step("dependencies", || {
            must(Command::new(packages::cargo_deny()?).args(DENY).current_dir(repository()))
        });
    }
    let failed = steps.failures();
    steps.step("packages", || packages::ensure(Purpose::Test));
    if selection.family.is_empty() {
        steps.step("bpf", || bpf::run(&bpf::Args { check: true }).and_then(|_| bpf_builds()));
    }
    let hikyaku = steps.step("release build", || binary(selection.hikyaku.as_ref()));
    let mut tallies = Vec::new();
    if let (Some(hikyaku), true) = (hikyaku, steps.failures() == failed) {
        let settings = Settings {
            tier: Some(Tier::Full),
            families: selection.family.clone(),
            seed: selection.seed,
            hikyaku: Some(hikyaku),
            is_evidence: true,
            journal: Some(target_directory()?.join("nightly/journal")),
            is_resumed: resume,
            ..Settings::default()
        };
        let found =
            steps.step("interoperability", || run_families(&settings, selection.case.as_deref(), None));
        tallies = found.unwrap_or_default();
    }
    Ok(conclude(&steps, &tallies))
}
