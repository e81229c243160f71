//! The order of a run: packages, unit tests, the release binary, the families; and what it prints at the end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::family::{FAMILIES, Family, NIGHTLY};
use crate::harness::cases::{Failure, Journal, Tally, print_summary, totals};
use crate::harness::{Against, Cases, Context, Tier};
use crate::install::{self, Purpose};
use crate::steps::{Steps, UnitCounts, cargo, must, repository, show, target_directory};
use crate::{Selection, evidence};

/// Builds the program under test and the simulator, and says where they are. Built apart, each would get the dependencies with
/// features of its own, once more.
pub(crate) fn programs() -> Result<PathBuf> {
    must(&mut cargo(&["build", "--release", "--package", "hikyaku", "--package", "hikyaku-sim"]))?;
    Ok(target_directory()?.join("release"))
}

/// The program under test: the one named, or as built.
pub(crate) fn binary(named: Option<&PathBuf>) -> Result<PathBuf> {
    if let Some(path) = named {
        return path.canonicalize().with_context(|| format!("find {}", path.display()));
    }
    Ok(programs()?.join("hikyaku"))
}

/// A seed nobody chose.
pub(crate) fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    // Short enough to be typed.
    (now ^ u64::from(std::process::id()) << 20) % 1_000_000_007
}

fn chosen(selection: &Selection, against: Against, tier: Tier) -> Result<Vec<&'static Family>> {
    for name in &selection.family {
        if !FAMILIES.iter().any(|family| family.name == name) {
            let names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
            bail!("no family {name}; there are {}", names.join(", "));
        }
    }
    Ok(FAMILIES
        .iter()
        .filter(|family| {
            let everyone =
                selection.family.is_empty() && (tier == Tier::Full || !NIGHTLY.contains(&family.name));
            everyone || selection.family.iter().any(|name| name == family.name)
        })
        .filter(|family| against == Against::Ours || family.any_target)
        .collect())
}

/// Runs families one after the other.
fn run_families(
    context: &Context,
    families: &[&Family],
    filter: Option<&str>,
    mut journal: Option<&mut Journal>,
) -> Vec<Tally> {
    let mut tallies = Vec::new();
    for family in families {
        println!("\n== {} (seed {}): {}", family.name, context.seed, family.about);
        let mut cases = Cases::new(family.name, filter, journal.as_deref_mut());
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (family.examine)(context, &mut cases)));
        let result = result.unwrap_or_else(|_| Err(anyhow::anyhow!("the family panicked")));
        let mut tally = cases.finish();
        if let Err(error) = result {
            println!("  FAIL {}: {error:#}", family.name);
            tally.failures.push(Failure { case: "family".into(), message: format!("{error:#}") });
        }
        if tally.passed == 0 && tally.failures.is_empty() && filter.is_none() {
            tally.failures.push(Failure { case: "family".into(), message: "no case was run".into() });
        }
        tallies.push(tally);
    }
    tallies
}

/// What is asked of the dependencies; deny.toml says why advisories are not.
const DENY: &[&str] = &["--locked", "check", "licenses", "sources", "bans"];

/// Packages that drive `io`: their tests are run once more over its portable back end.
const OVER_IO: &[&str] = &["hikyaku-block", "hikyaku-mover", "hikyaku-node"];

/// The test programs of [`OVER_IO`] as the workspace built them: chosen by `--package`, they and what they depend on would be built with
/// other features once more.
fn portable_tests() -> Result<Vec<Command>> {
    let output = cargo(&["test", "--workspace", "--no-run", "--message-format", "json"])
        .output()
        .context("list the test programs")?;
    ensure!(output.status.success(), "the tests do not build");
    let mut commands = Vec::new();
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Value = serde_json::from_slice(line).context("a message of cargo")?;
        let (Some(program), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        let id = message["package_id"].as_str().unwrap_or_default();
        let is_wanted = OVER_IO.iter().any(|name| id.contains(&format!("#{name}@")));
        if message["profile"]["test"] == true && is_wanted {
            let mut command = Command::new(program);
            let home = Path::new(manifest).parent().context("a manifest without a directory")?;
            command.current_dir(home).env("HIKYAKU_IO", "portable");
            commands.push(command);
        }
    }
    Ok(commands)
}

/// cargo's tests as one more family.
fn unit_tests(family: &'static str, commands: Vec<Command>) -> Result<Tally> {
    let started = std::time::Instant::now();
    let mut counts = UnitCounts::default();
    let mut names = Vec::new();
    let mut ok = true;
    for mut command in commands {
        ok &= show(&mut command, |line| {
            counts.add(line);
            if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
                names.push(name.to_owned());
            }
        })?;
    }
    let mut failures: Vec<Failure> =
        names.into_iter().map(|case| Failure { case, message: "see its output above".into() }).collect();
    if !ok && failures.is_empty() {
        failures.push(Failure { case: "cargo test".into(), message: "does not build, or was killed".into() });
    }
    Ok(Tally {
        family,
        passed: counts.passed,
        resumed: 0,
        failures,
        notes: Vec::new(),
        facts: serde_json::Map::new(),
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Everything of `test` but the last line.
fn test_steps(steps: &mut Steps, selection: &Selection, against: Against) -> Result<Vec<Tally>> {
    let families = chosen(selection, against, Tier::Sample)?;
    let seed = selection.seed.unwrap_or_else(fresh_seed);
    println!("seed {seed} (replay with --seed {seed})");
    let mut tallies = Vec::new();
    let installed = steps.step("packages", || install::ensure(Purpose::Test)).is_some();
    if selection.family.is_empty() && against == Against::Ours {
        let workspace = cargo(&["test", "--workspace", "--no-fail-fast"]);
        tallies.extend(steps.step("unit tests", || unit_tests("unit", vec![workspace])));
        let portable = || unit_tests("unit, portable", portable_tests()?);
        tallies.extend(steps.step("unit tests, portable", portable));
    }
    let hikyaku = match against {
        Against::Ours => steps.step("release build", || binary(selection.hikyaku.as_ref())),
        Against::Tgt => Some(PathBuf::from("hikyaku")),
    };
    if let (Some(hikyaku), true) = (hikyaku, installed) {
        let context = Context::new(hikyaku, seed, Tier::Sample, against)?;
        let found = steps.step("interoperability", || {
            Ok(run_families(&context, &families, selection.case.as_deref(), None))
        });
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

/// Prints the tables and, as the very last line, the totals.
fn conclude(steps: &Steps, tallies: &[Tally]) -> bool {
    print_summary(tallies);
    steps.print();
    let (passed, failed) = totals(tallies);
    let failed = failed + steps.failures();
    println!("{passed} passed, {failed} failed");
    failed == 0
}

/// `cargo xtask test`.
pub(crate) fn test(selection: &Selection, against: Against) -> Result<bool> {
    let mut steps = Steps::default();
    let tallies = test_steps(&mut steps, selection, against)?;
    Ok(conclude(&steps, &tallies))
}

/// `cargo xtask ci`.
pub(crate) fn ci(selection: &Selection) -> Result<bool> {
    let mut steps = Steps::default();
    steps.step("fmt", || must(&mut cargo(&["fmt", "--all", "--check"])));
    steps.step("clippy", || {
        must(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    });
    steps.step("doc", || {
        let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
        must(command.env("RUSTDOCFLAGS", "-D warnings"))
    });
    let tallies = test_steps(&mut steps, selection, Against::Ours)?;
    Ok(conclude(&steps, &tallies))
}

/// `cargo xtask nightly`.
pub(crate) fn nightly(selection: &Selection, resume: bool) -> Result<bool> {
    let mut steps = Steps::default();
    let families = chosen(selection, Against::Ours, Tier::Full)?;
    let path = repository().join("target/nightly/journal");
    let commit = evidence::commit();
    let (mut journal, seed) = if resume {
        Journal::resume(&path, &commit)?
    } else {
        let seed = selection.seed.unwrap_or_else(fresh_seed);
        (Journal::create(&path, seed, &commit)?, seed)
    };
    println!("seed {seed}; interrupted, it goes on with: cargo xtask nightly --resume");
    if selection.family.is_empty() {
        steps.step("dependencies", || {
            must(Command::new(install::cargo_deny()?).args(DENY).current_dir(repository()))
        });
    }
    let failed = steps.failures();
    steps.step("packages", || install::ensure(Purpose::Test));
    let hikyaku = steps.step("release build", || binary(selection.hikyaku.as_ref()));
    let mut tallies = Vec::new();
    if let (Some(hikyaku), true) = (hikyaku, steps.failures() == failed) {
        let context = Context::new(hikyaku, seed, Tier::Full, Against::Ours)?;
        for family in families {
            let found = run_families(&context, &[family], selection.case.as_deref(), Some(&mut journal));
            // A filtered run is no evidence of the whole.
            if selection.case.is_none() {
                for tally in &found {
                    evidence::write_family(tally, seed)?;
                }
            }
            tallies.extend(found);
        }
    }
    Ok(conclude(&steps, &tallies))
}
