//! Building and running the fuzz targets: libFuzzer on the stable compiler, with coverage and without a sanitizer.
//!
//! docs/internals/fuzz.md explains why that is enough here; `testing/fuzz/src/lib.rs` has the targets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use steps::build::{STEP_LIMIT, show};
use steps::{cargo, fresh_seed, must, repository, target_directory};

use crate::process::tail;
use crate::{Output, Running, find_program};

/// The flags that cargo-fuzz passes to the nightly compiler, in forms that the stable one accepts.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
pub const PARALLEL: usize = 2;
/// Maximum length of an input, bytes: sessions of some hundred steps.
const INPUT_BYTES_MAX: usize = 4096;
/// Time limit of one input: far above the time it takes, because a virtual machine may stop for minutes.
const INPUT_LIMIT: Duration = Duration::from_secs(300);
const RESIDENT_MIB_MAX: u32 = 512;
/// Time beyond the requested one: reading the corpus, and the last input, whose time libFuzzer checks at every half
/// limit.
const GRACE: Duration = Duration::from_secs(500);
const MERGE_LIMIT: Duration = Duration::from_secs(1200);
/// Maximum size of all kept inputs together, bytes.
const KEPT_BYTES_MAX: u64 = 2 << 20;

/// Coverage-guided fuzzing of parsers and sessions; replays what it found
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask fuzz")]
pub struct Args {
    /// Only this target (repeatable)
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// How long each target is fuzzed; fractions are fine
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Replays the fuzzer's random choices, not its timing
    #[arg(long)]
    seed: Option<u64>,
    /// Fold what earlier runs found into testing/fuzz/corpus, as few inputs as cover the same
    #[arg(long)]
    merge: bool,
    /// Run these inputs through the one target named, and do not fuzz
    #[arg(value_name = "FILE", conflicts_with = "merge")]
    files: Vec<PathBuf>,
}

/// All targets: one program each in testing/fuzz/targets.
pub fn targets() -> Result<Vec<String>> {
    let directory = repository().join("testing/fuzz/targets");
    let entries = fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

#[derive(Debug)]
pub struct Fuzzers {
    programs: PathBuf,
    /// Contains `found/TARGET` and `crash/`.
    work: PathBuf,
}

#[derive(Debug)]
pub struct Report {
    pub seconds: f64,
    pub executions: u64,
    /// Edges reached, and features: edges with their frequency.
    pub edges: u64,
    pub features: u64,
    pub kept: usize,
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Builds the programs of `names`, with coverage of all code.
pub fn build(names: &[String]) -> Result<Fuzzers> {
    demand_compiler()?;
    let host = host()?;
    let work = target_directory()?.join("fuzz");
    // With --target the flags do not reach build scripts; a separate directory keeps the other builds valid.
    let mut command = cargo(&["build", "--package", "hikyaku-fuzz", "--features", "libfuzzer"]);
    command.args(["--profile", "fuzz", "--target", &host, "--target-dir"]).arg(&work);
    command.args(names.iter().map(|name| format!("--bin=fuzz-{name}")));
    must(command.env("RUSTFLAGS", COVERAGE.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS"))?;
    Ok(Fuzzers { programs: work.join(host).join("fuzz"), work })
}

/// Builds the programs of `names` for runs so short that compiling would take longer than fuzzing: with coverage of this
/// workspace's code only, over the dependencies that its unit tests use, and without optimisation: optimised programs would
/// run at twice the rate after a build of two minutes.
pub fn build_briefly(names: &[String]) -> Result<Fuzzers> {
    demand_compiler()?;
    let target = target_directory()?;
    let work = target.join("fuzz");
    fs::create_dir_all(&work)?;
    let wrapper = work.join("rustc-coverage");
    fs::write(&wrapper, format!("#!/bin/sh\nexec \"$@\" {}\n", COVERAGE.join(" ")))?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let mut command = cargo(&["build", "--workspace", "--features", "hikyaku-fuzz/libfuzzer"]);
    command.args(names.iter().map(|name| format!("--bin=fuzz-{name}")));
    must(command.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env("CARGO_INCREMENTAL", "0"))?;
    Ok(Fuzzers { programs: target.join("debug"), work })
}

fn demand_compiler() -> Result<()> {
    ensure!(
        find_program("c++").is_some(),
        "libFuzzer is C++ and there is no compiler for it; as root:\n  apt-get install -y g++"
    );
    Ok(())
}

impl Fuzzers {
    /// The archive of a target's kept inputs.
    fn archive(name: &str) -> PathBuf {
        repository().join("testing/fuzz/corpus").join(format!("{name}.tar"))
    }

    /// Makes a fresh directory below `target` with the inputs of [`Fuzzers::archive`], one file each, as libFuzzer
    /// reads them.
    fn kept(&self, name: &str) -> Result<PathBuf> {
        let directory = fresh(&self.work.join("kept").join(name))?;
        tar::Archive::new(fs::File::open(Self::archive(name))?).unpack(&directory)?;
        Ok(directory)
    }

    fn found(&self, name: &str) -> Result<PathBuf> {
        let directory = self.work.join("found").join(name);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    fn command(&self, name: &str) -> Result<Command> {
        let crashes = self.work.join("crash");
        fs::create_dir_all(&crashes)?;
        let mut command = Command::new(self.programs.join(format!("fuzz-{name}")));
        command.env("RUST_BACKTRACE", "1").current_dir(repository());
        command.arg(format!("-artifact_prefix={}/{name}-", crashes.display()));
        command.arg(format!("-rss_limit_mb={RESIDENT_MIB_MAX}"));
        command.arg(format!("-timeout={}", INPUT_LIMIT.as_secs()));
        Ok(command)
    }

    /// Starts fuzzing. New inputs stay in the target directory, from which the next run continues.
    pub fn start(&self, name: &str, time: Duration, seed: u64) -> Result<Running> {
        let mut command = self.command(name)?;
        command.arg(format!("-max_total_time={}", time.as_secs().max(1)));
        command.args([format!("-max_len={INPUT_BYTES_MAX}"), "-print_final_stats=1".into()]);
        // libFuzzer's seed has 32 bits, and 0 selects a random one.
        command.arg(format!("-seed={}", seed % u64::from(u32::MAX) + 1));
        command.args([self.found(name)?, self.kept(name)?]);
        Running::start(&mut command)
    }

    /// Result of a run; a crash is an error that states how to replay it.
    pub fn report(&self, name: &str, running: Running, time: Duration) -> Result<Report> {
        let output = running.finish(time + GRACE)?;
        ensure!(output.code == Some(0), "{}", crash(name, &output));
        let (kept, _) = archived(name)?;
        report(&output, kept).with_context(|| format!("figures of {name}"))
    }

    fn replay(&self, name: &str, files: &[PathBuf]) -> Result<bool> {
        let files: Vec<PathBuf> = files.iter().map(std::path::absolute).collect::<Result<_, _>>()?;
        show(self.command(name)?.args(files), STEP_LIMIT)
    }

    /// Replaces the kept inputs of a target by a minimal set with the coverage of the kept and the found ones.
    fn merge(&self, name: &str) -> Result<()> {
        let (kept, found) = (self.kept(name)?, self.found(name)?);
        let merged = fresh(&self.work.join("merge").join(name))?;
        let mut command = self.command(name)?;
        command.args(["-merge=1", "-set_cover_merge=1"]).args([&merged, &kept, &found]);
        Running::start(&mut command)?.finish(MERGE_LIMIT)?.success()?;
        pack(&merged, &Self::archive(name))?;
        let (inputs, bytes) = archived(name)?;
        ensure!(inputs > 0, "merging {name} left nothing");
        println!("{name:<12} {inputs:>6} inputs {bytes:>9} bytes");
        Ok(())
    }
}

fn fresh(directory: &Path) -> Result<PathBuf> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory)?;
    Ok(directory.to_owned())
}

/// Writes the files of a directory to an archive, sorted by name and without times: the same files make the same
/// archive.
fn pack(directory: &Path, archive: &Path) -> Result<()> {
    let mut names: Vec<_> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    let mut builder = tar::Builder::new(Vec::new());
    for name in names {
        let bytes = fs::read(directory.join(&name))?;
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, &name, &bytes[..])?;
    }
    Ok(fs::write(archive, builder.into_inner()?)?)
}

fn archived(name: &str) -> Result<(usize, u64)> {
    let mut archive = tar::Archive::new(fs::File::open(Fuzzers::archive(name))?);
    archive.entries()?.try_fold((0, 0), |(inputs, bytes), entry| Ok((inputs + 1, bytes + entry?.size())))
}

/// Description of a crash: its message, and how to run the input again.
fn crash(name: &str, output: &Output) -> String {
    let text = &output.stderr;
    let wanted = |line: &&str| {
        line.contains("panicked at")
            || line.starts_with("SUMMARY:")
            || line.starts_with("==") && line.contains("ERROR")
    };
    let mut lines: Vec<&str> = Vec::new();
    let mut message = false;
    for line in text.lines() {
        // The line after "panicked at" is the message.
        if wanted(&line) || message {
            lines.push(line);
        }
        message = line.contains("panicked at");
    }
    if lines.is_empty() {
        lines.push(tail(text, 1500));
    }
    let mut said = format!("{name}: {}\n{}", output.ending(), lines.join("\n"));
    let artifact =
        text.lines().find_map(|line| line.split_once("Test unit written to ").map(|(_, path)| path));
    if let Some(path) = artifact {
        said.push_str(&format!("\nreplay with: cargo xtask fuzz --target {name} {path}"));
    }
    // Allows the input to be restored from a log alone: base64 --decode.
    if let Some(base64) = text.lines().find(|line| line.starts_with("Base64: ")) {
        said.push_str(&format!("\n{base64}"));
    }
    said
}

fn report(output: &Output, kept: usize) -> Result<Report> {
    let done = output
        .stderr
        .lines()
        .rfind(|line| line.contains("DONE"))
        .context("the fuzzer did not reach its end")?;
    let after = |word: &str| {
        let mut words = done.split_whitespace();
        words.find(|found| *found == word)?;
        words.next()?.parse::<u64>().ok()
    };
    let executions =
        done.trim_start_matches('#').split_whitespace().next().and_then(|text| text.parse().ok());
    Ok(Report {
        seconds: output.seconds,
        executions: executions.context("executions")?,
        edges: after("cov:").context("cov")?,
        features: after("ft:").context("ft")?,
        kept,
    })
}

/// Fuzzes targets, at most [`PARALLEL`] at once; calls `on_end` with each result immediately.
pub fn fuzz(
    fuzzers: &Fuzzers,
    names: &[String],
    time: Duration,
    seed: u64,
    mut on_end: impl FnMut(&str, Result<Report>),
) -> Result<()> {
    let mut waiting = names.iter();
    let mut running: Vec<(&String, Running)> = Vec::new();
    loop {
        while running.len() < PARALLEL
            && let Some(name) = waiting.next()
        {
            running.push((name, fuzzers.start(name, time, seed)?));
        }
        if running.is_empty() {
            return Ok(());
        }
        let mut still = Vec::new();
        for (name, mut one) in running {
            if one.ended() || one.seconds() > (time + GRACE).as_secs_f64() {
                on_end(name, fuzzers.report(name, one, time));
            } else {
                still.push((name, one));
            }
        }
        running = still;
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub fn run(args: &Args) -> Result<bool> {
    let all = targets()?;
    if let Some(name) = args.target.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target {name}; there are {}", all.join(", "));
    }
    ensure!(args.minutes > 0.0 && args.minutes < 10_000.0, "--minutes wants a positive number");
    let names = if args.target.is_empty() { &all } else { &args.target };
    let fuzzers = build(names)?;
    if !args.files.is_empty() {
        let [name] = &names[..] else { bail!("name the one target that the files are for: --target NAME") };
        return fuzzers.replay(name, &args.files);
    }
    if args.merge {
        names.iter().try_for_each(|name| fuzzers.merge(name))?;
        let sizes: Vec<_> = all.iter().map(|name| archived(name)).collect::<Result<_>>()?;
        let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
        println!("{bytes} bytes kept in all, at most {KEPT_BYTES_MAX}");
        return Ok(bytes <= KEPT_BYTES_MAX);
    }
    let seed = args.seed.unwrap_or_else(fresh_seed);
    let time = Duration::from_secs_f64(args.minutes * 60.0);
    println!("seed {seed}; {:.1} minutes for each target, {PARALLEL} at once", args.minutes);
    let mut good = true;
    fuzz(&fuzzers, names, time, seed, |name, result| match result {
        Ok(report) => println!(
            "ok   {name:<12} {:>12} executions {:>7} edges {:>7} features",
            report.executions, report.edges, report.features
        ),
        Err(error) => {
            println!("FAIL {error:#}");
            good = false;
        }
    })?;
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stderr: &str) -> Output {
        Output {
            code: Some(77),
            signal: None,
            timed_out: false,
            stdout: String::new(),
            stderr: stderr.into(),
            seconds: 1.0,
            line: "fuzz-wire".into(),
        }
    }

    #[test]
    fn figures_are_read_from_the_last_line() {
        let text = "#2 INITED cov: 3 ft: 4 corp: 1/1b\n\
                    #620926\tDONE   cov: 1803 ft: 7686 corp: 2015/251Kb lim: 679 exec/s: 15144 rss: 31Mb\n";
        let report = report(&output(text), 5).unwrap();
        assert_eq!((report.executions, report.edges, report.features), (620_926, 1803, 7686));
        assert!(super::report(&output("#2 INITED cov: 3 ft: 4"), 5).is_err(), "no end");
    }

    #[test]
    fn a_crash_says_what_happened_and_how_to_see_it_again() {
        let text = "thread '<unnamed>' (7) panicked at fuzz/src/wire.rs:43:5:\nassertion failed\nstack backtrace:\n\
                    SUMMARY: libFuzzer: deadly signal\n\
                    artifact_prefix='x'; Test unit written to /t/crash/wire-crash-12\nBase64: AAAA\n";
        let said = crash("wire", &output(text));
        assert!(said.contains("wire.rs:43") && said.contains("assertion failed"), "{said}");
        assert!(said.contains("cargo xtask fuzz --target wire /t/crash/wire-crash-12"), "{said}");
        assert!(said.contains("Base64: AAAA"), "{said}");
    }

    #[test]
    fn every_target_has_a_corpus_and_all_are_small() {
        let mut bytes = 0;
        for name in targets().unwrap() {
            let (inputs, more) = archived(&name).unwrap();
            assert!(inputs > 0, "{name}");
            bytes += more;
        }
        assert!(
            bytes <= KEPT_BYTES_MAX,
            "{bytes} bytes in testing/fuzz/corpus: run cargo xtask fuzz --merge"
        );
    }
}
