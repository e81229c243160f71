//! Runs cargo in steps and measures the time of each.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{Tier, line_of};

/// Time limit of one cargo step with an empty cache, on two cores.
pub const STEP_LIMIT: Duration = Duration::from_secs(20 * 60);
/// Time limit of a run of the families, each of whose cases has a limit of its own.
pub const RUN_LIMIT: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
struct Done {
    name: String,
    seconds: f64,
    ok: bool,
}

#[derive(Debug, Default)]
pub struct Steps {
    done: Vec<Done>,
}

impl Steps {
    pub fn step<T>(&mut self, name: &str, body: impl FnOnce() -> Result<T>) -> Option<T> {
        println!("\n== {name}");
        let started = Instant::now();
        let result = body();
        let ok = result.is_ok();
        self.done.push(Done { name: name.to_owned(), seconds: started.elapsed().as_secs_f64(), ok });
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                println!("FAIL {name}: {error:#}");
                None
            }
        }
    }

    pub fn failures(&self) -> usize {
        self.done.iter().filter(|done| !done.ok).count()
    }

    pub fn print(&self) {
        println!("\n{:<28} {:>8}", "step", "seconds");
        for Done { name, seconds, ok } in &self.done {
            println!("{name:<28} {seconds:>8.1}{}", if *ok { "" } else { "  FAILED" });
        }
        println!("{:<28} {:>8.1}", "all", self.done.iter().map(|done| done.seconds).sum::<f64>());
    }
}

pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(repository());
    command
}

pub fn repository() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("the package lies in testing/").to_owned()
}

pub fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    // Short enough to be typed.
    (now ^ u64::from(std::process::id()) << 20) % 1_000_000_007
}

/// Builds the program under test and the simulator, and returns their directory. One build for both: built separately,
/// each would compile the dependencies again with other features. A sample runs the programs of the unit tests' profile:
/// most of their dependencies are compiled already, and debug assertions are on.
pub fn programs(tier: Tier) -> Result<PathBuf> {
    let (profile, directory) = if tier == Tier::Full { ("release", "release") } else { ("dev", "debug") };
    must(&mut cargo(&["build", "--profile", profile, "--package", "hikyaku", "--package", "hikyaku-sim"]))?;
    Ok(target_directory()?.join(directory))
}

pub fn binary_of(named: Option<&PathBuf>, tier: Tier) -> Result<PathBuf> {
    if let Some(path) = named {
        return path.canonicalize().with_context(|| format!("find {}", path.display()));
    }
    Ok(programs(tier)?.join("hikyaku"))
}

/// As [`binary_of`], for measurements.
pub fn binary(named: Option<&PathBuf>) -> Result<PathBuf> {
    binary_of(named, Tier::Full)
}

pub fn target_directory() -> Result<PathBuf> {
    let output =
        cargo(&["metadata", "--no-deps", "--format-version", "1"]).output().context("cargo metadata")?;
    let value: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("output of cargo metadata")?;
    Ok(value["target_directory"].as_str().context("no target_directory")?.into())
}

/// Runs a command and prints its output immediately. Returns whether it exited 0; after the limit it is killed, which is
/// an error.
pub fn show(command: &mut Command, limit: Duration) -> Result<bool> {
    follow(command, limit, |line| println!("{line}"))
}

/// As [`show`], but passes each line of standard output to `on_line` instead of printing it.
pub fn follow(command: &mut Command, limit: Duration, mut on_line: impl FnMut(&str)) -> Result<bool> {
    let line = line_of(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {line}"))?;
    let stdout = child.stdout.take().expect("piped above");
    let (over, ended) = mpsc::channel::<()>();
    let pid = child.id().cast_signed();
    let watchdog = std::thread::spawn(move || {
        let late = ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            // SAFETY: a plain system call; the child is reaped only after this thread was signalled to end.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        late
    });
    for text in BufReader::new(stdout).lines() {
        let Ok(text) = text else { break };
        on_line(&text);
    }
    // The pipe is closed: the command is about to end, or has closed its output.
    let deadline = Instant::now() + limit;
    let status = loop {
        // SAFETY: waits without reaping, so that the id stays the child's own for the watchdog.
        let ended = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
            libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, flags) == 0 && info.si_pid() != 0
        };
        if ended || Instant::now() > deadline {
            drop(over);
            break child.wait().with_context(|| format!("wait for {line}"))?;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    ensure!(!watchdog.join().unwrap_or(false), "{line}: killed after {limit:?}");
    Ok(status.success())
}

/// As [`show`]; an exit code other than 0 is an error.
pub fn must(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    if show(command, STEP_LIMIT)? { Ok(()) } else { bail!("{line} failed") }
}

/// Passed and failed tests in the output of `cargo test`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCounts {
    pub passed: usize,
    pub failed: usize,
}

impl UnitCounts {
    pub fn add(&mut self, line: &str) {
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else { return };
        let number = |word: &str| -> usize {
            let mut words = rest.split([' ', ';', '.']).filter(|word| !word.is_empty());
            let mut before = "0";
            for found in &mut words {
                if found == word {
                    return before.parse().unwrap_or(0);
                }
                before = found;
            }
            0
        };
        self.passed += number("passed");
        self.failed += number("failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let mut counts = UnitCounts::default();
        counts.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        counts.add("test result: FAILED. 3 passed; 2 failed; 0 ignored");
        counts.add("test a::b ... ok");
        assert_eq!(counts, UnitCounts { passed: 15, failed: 2 });
    }

    #[test]
    fn steps_remember_failures() {
        let mut steps = Steps::default();
        assert_eq!(steps.step("a", || Ok(3)), Some(3));
        assert_eq!(steps.step("b", || -> Result<()> { bail!("no") }), None);
        assert_eq!(steps.failures(), 1);
    }

    #[test]
    fn show_passes_lines_and_status() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        let ok = follow(command.args(["-c", "echo one; echo two; exit 1"]), STEP_LIMIT, |line| {
            lines.push(line.to_owned());
        });
        assert!(!ok.unwrap());
        assert_eq!(lines, ["one", "two"]);
        let late = show(Command::new("sleep").arg("60"), Duration::from_millis(100));
        assert!(late.unwrap_err().to_string().contains("killed after 100ms"));
    }
}
