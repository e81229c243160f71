//! Tests of the checkers: a build of a copy of the product with defects (`testing/mutants`), and for each defect the
//! simulator and the real program under torture, which must detect its effect on data. Without a defect the same runs
//! must pass.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mutants::{NAMES, VARIABLE};
use serde_json::{Value, json};

use super::torture::scene::{Disturbance, KILL, POWER, READY_LIMIT, Scene, Stand, TWO_CLIENTS, play};
use crate::files::random_file;
use crate::process::Surroundings;
use crate::{Cases, Context, Output, run};
use steps::{cargo, must, target_directory};

/// Maximum number of simulated runs with successive seeds until one fails, and the distance between first seeds; then
/// the number of first seeds.
const RUNS: u64 = 3000;
const STARTS: u64 = 4;
const SIMULATOR_LIMIT: Duration = Duration::from_secs(600);
const SCENE_SECONDS: u64 = 5;
/// Time for which clients work until they vanish.
const JOURNAL_TIME: Duration = Duration::from_secs(2);
const COPY_LIMIT: Duration = Duration::from_secs(20);
const COPY_BYTES: u64 = 4 << 20;
const EXIT_MISMATCH: i32 = 3;

const TWO: Scene = Scene { arguments: TWO_CLIENTS, ..KILL };
/// Scenes of the real program, run until one detects the defect.
const SCENES: &[Scene] = &[
    Scene { name: "slow storage", disturbance: Disturbance::None, options: ",delay=1ms", ..TWO },
    POWER,
    Scene { name: "cut", disturbance: Disturbance::Cut, ..TWO },
];

type Ending = fn(&Context, Option<&str>) -> Result<Option<String>>;
const ENDINGS: &[(&str, Ending)] =
    &[("end", ended), ("copy", copied), ("journal", resumed), ("gateway", read_ahead)];
const ENDINGS_EACH: usize = 5;

/// Defects that only the simulator has to detect.
const SIMULATED_ONLY: &[&str] = &[
    // Files and layers execute overlapping requests in the order of their submission.
    "RetryTwice",
    "RetryElsewhere",
    "ReinstateEarly",
    // `torture` writes data continuously: the cache rarely holds only zeroes when the power fails.
    "ForgetZeroes",
    // A layer's power fails after a write and rarely within a flush; and the data just behind a claim has mostly
    // arrived.
    "ClaimUnflushed",
    "TrustBeyond",
    // Only the simulator runs EXTENDED COPY under power cuts and aborts.
    "CopyUnflushed",
    "AbortEarly",
];

/// Defects that only the real program can show: the simulator has no files, one disk at an address, and no gateway.
const REAL_ONLY: &[&str] = &["SkipJournalSync", "MissExchange", "KeepAhead"];

/// Defects that a test of their crate must show: of TCP/IP and of what its processes share, which are not in data of iSCSI,
/// and of a volume. The package, the test.
const TESTED: &[(&str, &str, &str)] = &[
    ("RingWrap", "hikyaku-area", "loom"),
    ("LostBell", "hikyaku-area", "loom"),
    ("ReadTwice", "hikyaku-area", "once"),
    ("ReleaseAtAck", "hikyaku-inet", "scripts"),
    ("NoBackOff", "hikyaku-inet", "scripts"),
    ("GenerationUnchecked", "hikyaku-net", "servers"),
    ("HeaderEarly", "hikyaku-volume", "cuts"),
    ("WipeEarly", "hikyaku-volume", "cuts"),
    ("CountedFirst", "hikyaku-volume", "cuts"),
    ("ContextLate", "hikyaku-volume", "auth"),
    ("PairReused", "hikyaku-volume", "auth"),
    ("MarkEarly", "hikyaku-volume", "auth"),
    ("MemoryTrusted", "hikyaku-volume", "auth"),
    ("ReplayVolatile", "hikyaku-volume", "auth"),
    ("LogLate", "hikyaku-volume", "auth"),
    ("CommitEarly", "hikyaku-volume", "auth"),
];
const TEST_LIMIT: Duration = Duration::from_secs(900);
/// Of a test program in which a test has failed.
const EXIT_FAILED_TESTS: i32 = 101;

/// A copy of the repository with all defects, of which [`VARIABLE`] chooses one.
struct Tree {
    path: PathBuf,
    /// Where what is built from it goes.
    target: PathBuf,
}

impl Tree {
    fn make(repository: &Path) -> Result<Self> {
        let target = target_directory()?.join("mutants");
        let path = target.join("tree");
        mutants::make_tree(repository, &path)?;
        Ok(Self { path, target })
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo(arguments);
        command.arg("--release").arg("--target-dir").arg(&self.target).current_dir(&self.path);
        // Runs take a minute, so two minutes of link-time optimisation are not worth it.
        command.envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_DEBUG", "0")]);
        command
    }

    /// Whether a test fails. Without a defect it must pass.
    fn fails(&self, package: &str, test: &str, mutant: Option<&str>) -> Result<bool> {
        must(&mut self.cargo(&["test", "--no-run", "--package", package, "--test", test]))?;
        let mut command = self.cargo(&["test", "--package", package, "--test", test]);
        command.env_remove(VARIABLE).envs(mutant.map(|mutant| (VARIABLE, mutant)));
        let output = run(&mut command, TEST_LIMIT)?;
        if output.code == Some(EXIT_FAILED_TESTS) {
            return Ok(true);
        }
        output.success()?;
        Ok(false)
    }
}

/// The programs with all defects, of which [`VARIABLE`] chooses one.
struct Build {
    directory: PathBuf,
}

impl Build {
    fn make(tree: &Tree) -> Result<Self> {
        must(&mut tree.cargo(&["build", "--package", "hikyaku", "--package", "hikyaku-sim"]))?;
        Ok(Self { directory: tree.target.join("release") })
    }

    fn program(&self, name: &str, mutant: Option<&str>) -> Command {
        let mut command = Command::new(self.directory.join(name));
        command.env_remove(VARIABLE).envs(mutant.map(|mutant| (VARIABLE, mutant)));
        command
    }

    fn simulate(&self, seed: u64, mutant: Option<&str>) -> Result<Output> {
        let mut command = self.program("hikyaku-sim", mutant);
        command.args(["--runs", &RUNS.to_string(), "--seed", &seed.to_string()]);
        run(&mut command, SIMULATOR_LIMIT)
    }

    fn context(&self, context: &Context) -> Result<Context> {
        Context::new(self.directory.join("hikyaku"), context.seed, context.tier, context.against)
    }
}

/// An environment with the defect.
fn surroundings(mutant: Option<&str>) -> Surroundings {
    mutant.map(|mutant| Surroundings::variable(VARIABLE, mutant)).unwrap_or_default()
}

/// The first failing run for each first seed, counted from 1, and the simulator's message for the first of them. A
/// panic of the code counts separately.
fn simulated(build: &Build, first: u64, mutant: &str) -> Result<(Vec<Option<u64>>, Option<Value>)> {
    let (mut runs, mut caught) = (Vec::new(), None);
    for start in (0..STARTS).map(|start| first + start * RUNS) {
        let output = build.simulate(start, Some(mutant))?;
        let words = output.stderr.lines().find(|line| line.starts_with("seed ") && !line.contains("panic"));
        let words = words.and_then(|line| line.strip_prefix("seed ")?.split_once(": "));
        let found = words.filter(|_| output.code == Some(1)).map(|(seed, verdict)| {
            anyhow::Ok((seed.parse::<u64>().with_context(|| seed.to_owned())?, verdict.to_owned()))
        });
        let found = found.transpose()?;
        runs.push(found.as_ref().map(|(seed, _)| seed - start + 1));
        if caught.is_none() {
            caught = found.map(|(seed, verdict)| json!({"seed": seed, "verdict": verdict}));
        }
    }
    Ok((runs, caught))
}

/// Runs a scene; returns the message of `torture` about wrong data.
fn tortured(context: &Context, scene: &Scene, mutant: Option<&str>) -> Result<Option<String>> {
    let (output, disturbed) = play(context, scene, SCENE_SECONDS, &surroundings(mutant))?;
    ensure!(scene.disturbance == Disturbance::None || disturbed > 0, "{}: never disturbed", scene.name);
    verdict(output)
}

fn verdict(output: Output) -> Result<Option<String>> {
    if output.code != Some(EXIT_MISMATCH) {
        output.success()?;
        return Ok(None);
    }
    let first = &output.json().context("no verdict")?["first"][0];
    let [fault, found] = ["fault", "found"].map(|name| first[name].as_str().unwrap_or_default());
    let expected = first["expected"].as_array().and_then(|all| all.last()?.as_str()).unwrap_or_default();
    Ok(Some(format!("sector {}: {fault}, found {found}, expected {expected}", first["sector"])))
}

/// A copy that reports success before the power fails: the file behind the crash layer must equal the source.
fn copied(context: &Context, mutant: Option<&str>) -> Result<Option<String>> {
    let stand = Stand::new(&surroundings(mutant))?;
    let source = random_file(stand.dir.path().join("source.img"), COPY_BYTES, context.seed)?;
    let mut target = stand.serve(context, ",crash=never")?;
    let mut command = stand.command(context);
    command.arg("copy").arg(&source).arg(stand.url());
    run(&mut command, COPY_LIMIT)?.success()?;
    target.signal(libc::SIGKILL)?;
    target.finish(READY_LIMIT)?;
    differing_sector(&source, &stand.file)
}

/// Clients that vanish under load, and a target that ends in order, which makes everything acknowledged durable: the
/// crash layer's cache is lost with the process, and must have been empty.
fn ended(context: &Context, mutant: Option<&str>) -> Result<Option<String>> {
    let stand = Stand::new(&surroundings(mutant))?;
    let mut target = stand.serve(context, ",crash=never")?;
    let journal = stand.dir.path().join("journal").display().to_string();
    let arguments = ["--seconds", "60", "--clients", "2", "--journal", &journal];
    let mut torture = stand.torture(context, &stand.url(), &arguments, context.seed)?;
    std::thread::sleep(JOURNAL_TIME);
    torture.signal(libc::SIGKILL)?;
    torture.finish(READY_LIMIT)?;
    target.signal(libc::SIGTERM)?;
    target.finish(READY_LIMIT)?.success()?;
    let _again = stand.serve(context, "")?;
    let mut command = stand.command(context);
    command.args(["torture", &stand.url(), "--check", &journal, "--json"]);
    verdict(run(&mut command, READY_LIMIT)?)
}

fn resumed(context: &Context, mutant: Option<&str>) -> Result<Option<String>> {
    super::mover::verdict(&with(context, mutant)?)
}

fn read_ahead(context: &Context, mutant: Option<&str>) -> Result<Option<String>> {
    super::gateway::verdict(&with(context, mutant)?)
}

/// A context whose programs have the defect.
fn with(context: &Context, mutant: Option<&str>) -> Result<Context> {
    let variables = mutant.map(|mutant| (VARIABLE, mutant.to_owned())).into_iter().collect();
    let context = Context::new(context.hikyaku.clone(), context.seed, context.tier, context.against)?;
    Ok(Context { variables, ..context })
}

fn differing_sector(source: &Path, copy: &Path) -> Result<Option<String>> {
    let (source, copy) = (std::fs::read(source)?, std::fs::read(copy)?);
    let sectors = source.chunks(512).zip(copy.chunks(512)).enumerate();
    let differs = sectors.filter(|(_, (one, two))| one != two).map(|(at, _)| at).next();
    Ok(differs.map(|at| format!("a copy reported success, and sector {at} is not the source's")))
}

fn really(context: &Context, mutant: &str) -> Result<Option<Value>> {
    for scene in SCENES {
        if let Some(verdict) = tortured(context, scene, Some(mutant))? {
            return Ok(Some(json!({"scene": scene.name, "verdict": verdict})));
        }
    }
    // The last acknowledged write may just have been flushed, so each is tried several times.
    for (name, scene) in (0..ENDINGS_EACH).flat_map(|_| ENDINGS) {
        if let Some(verdict) = scene(context, Some(mutant))? {
            return Ok(Some(json!({"scene": name, "verdict": verdict})));
        }
    }
    Ok(None)
}

fn line(mutant: &str, runs: &[Option<u64>], real: Option<&Value>) -> String {
    let shown = |count: &Option<u64>| count.map_or_else(|| format!("more than {RUNS}"), |n| n.to_string());
    let runs: Vec<String> = runs.iter().map(shown).collect();
    let runs = if runs.is_empty() { "-".to_owned() } else { runs.join(", ") };
    let scene = real.and_then(|real| real["scene"].as_str()).unwrap_or("-");
    format!("| {mutant} | {runs} | {scene} |")
}

fn unharmed(verdict: Option<&str>) -> Result<()> {
    demand!(verdict.is_none(), "without a defect: {verdict:?}")
}

#[derive(Default)]
struct Seen {
    table: Vec<String>,
    rows: Vec<Value>,
}

impl Seen {
    fn test(&mut self, mutant: &str, test: &str) {
        self.table.push(format!("| {mutant} | - | test `{test}` |"));
        self.rows.push(json!({"mutant": mutant, "test": test}));
    }

    fn look(&mut self, build: &Build, programs: &Context, seed: u64, mutant: &str) -> Result<()> {
        let real_only = REAL_ONLY.contains(&mutant);
        let (runs, simulated) = if real_only { (Vec::new(), None) } else { simulated(build, seed, mutant)? };
        let real = really(programs, mutant)?;
        let line = line(mutant, &runs, real.as_ref());
        println!("  {line}");
        self.table.push(line);
        self.rows
            .push(json!({"mutant": mutant, "simulated_runs": runs, "simulator": simulated, "real": real}));
        ensure!(real_only || simulated.is_some(), "{RUNS} simulated runs did not see it, {STARTS} times");
        let exempt = SIMULATED_ONLY.contains(&mutant);
        demand!(exempt || real.is_some(), "no scene of the real program showed it")
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let tree = crate::Scene::new(|| Tree::make(&context.repository));
    let made = crate::Scene::new(|| {
        let build = Build::make(tree.get()?)?;
        let programs = build.context(context)?;
        Ok((build, programs))
    });
    // Small seeds, because they are typed to replay.
    let seed = context.seed % 1_000_000;
    cases.check("none-simulator", || {
        made.get()?.0.simulate(seed, None)?.success().context("without a defect all runs pass")?;
        Ok(())
    });
    for scene in SCENES {
        cases.check(&format!("none-{}", scene.name.replace(' ', "-")), || {
            unharmed(tortured(&made.get()?.1, scene, None)?.as_deref())
        });
    }
    for (name, scene) in ENDINGS {
        cases.check(&format!("none-{name}"), || unharmed(scene(&made.get()?.1, None)?.as_deref()));
    }
    let mut tests: Vec<_> = TESTED.iter().map(|&(_, package, test)| (package, test)).collect();
    tests.dedup();
    for (package, test) in tests {
        cases.check(&format!("none-{test}"), || {
            demand!(!tree.get()?.fails(package, test, None)?, "without a defect the test fails")
        });
    }
    let mut seen = Seen::default();
    for mutant in NAMES {
        cases.check(mutant, || {
            if let Some((_, package, test)) = TESTED.iter().find(|(name, ..)| *name == mutant) {
                let is_caught = tree.get()?.fails(package, test, Some(mutant))?;
                if is_caught {
                    seen.test(mutant, test);
                }
                return demand!(is_caught, "the test `{test}` passes with it");
            }
            let (build, programs) = made.get()?;
            seen.look(build, programs, seed, mutant)
        });
    }
    cases.fact("simulated_runs_max", RUNS);
    cases.fact("first_seed", seed);
    cases.fact("table", seen.table);
    cases.fact("mutants", seen.rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exempt_defects_exist() {
        let tested = TESTED.iter().map(|(name, ..)| name);
        for name in SIMULATED_ONLY.iter().chain(REAL_ONLY).chain(tested) {
            assert!(NAMES.contains(name), "{name}");
        }
    }
}
