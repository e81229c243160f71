//! A run of the families: lists their cases as tests, runs the requested ones one at a time, and records the results.
//!
//! `cargo test --test families` ignores all cases, because they need peers, root or time; `-- --ignored` and a filter
//! run them on the program beside the test's own. `cargo xtask test`, `ci` and `nightly` pass [`Settings`] in the
//! environment: then the tier decides what is ignored.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use serde::{Deserialize, Serialize};

use crate::cases::{self, Ended, Examination, Listed};
use crate::journal::Journal;
use crate::{Against, Context, Family, Share, Tier, evidence, steps};

/// The environment variable that holds [`Settings`] as JSON.
pub const VARIABLE: &str = "HIKYAKU_TESTS";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// `None`: all cases are ignored unless the command line names them.
    pub tier: Option<Tier>,
    pub families: Vec<String>,
    pub seed: Option<u64>,
    /// Families that a change touches: their samples are larger and those of all others smaller. Empty: all alike.
    pub touched: Vec<String>,
    pub hikyaku: Option<PathBuf>,
    #[serde(default)]
    pub against: Against,
    /// Families whose cases all ran write docs/evidence/NAME.json.
    pub is_evidence: bool,
    pub journal: Option<PathBuf>,
    /// Skip the cases that passed according to the journal.
    pub is_resumed: bool,
    /// Path of the results, for [`results`].
    pub report: Option<PathBuf>,
}

impl Settings {
    fn of_environment() -> Result<Self> {
        let Some(text) = std::env::var_os(VARIABLE) else { return Ok(Self::default()) };
        let text = text.into_string().ok().with_context(|| format!("{VARIABLE} is no text"))?;
        serde_json::from_str(&text).with_context(|| format!("{VARIABLE}={text}"))
    }

    fn share(&self, family: &str) -> Share {
        match self.touched.iter().any(|name| name == family) {
            _ if self.touched.is_empty() => Share::Even,
            true => Share::Triple,
            false => Share::Half,
        }
    }

    fn wants(&self, family: &Family) -> bool {
        (self.families.is_empty() || self.families.iter().any(|name| name == family.name))
            && (self.against == Against::Ours || family.any_target)
    }
}

/// Results of one family, for the tables of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tally {
    pub family: String,
    pub share: Share,
    pub passed: usize,
    /// Passed cases that were taken from the resumed run.
    pub resumed: usize,
    /// Failed cases with the first line of their messages. The test program prints the whole message.
    pub failures: Vec<(String, String)>,
    pub notes: Vec<String>,
    pub seconds: f64,
}

pub fn results(report: &Path) -> Result<Vec<Tally>> {
    let text = std::fs::read_to_string(report).context("the run left no report")?;
    serde_json::from_str(&text).context("the report of a run")
}

/// The program that cargo has built beside this test: `target/PROFILE/hikyaku` of `target/PROFILE/deps/TEST`.
fn program_beside() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    Ok(test.parent().and_then(Path::parent).context("a test lies in target/PROFILE/deps")?.join("hikyaku"))
}

struct Run {
    settings: Settings,
    seed: u64,
    journal: Option<Journal>,
    examinations: Vec<(Examination, Vec<Listed>)>,
}

impl Run {
    fn new(families: &'static [Family], settings: Settings) -> Result<Self> {
        let commit = evidence::commit();
        let (mut journal, mut seed) = (None, settings.seed);
        if let Some(path) = &settings.journal {
            let found = if settings.is_resumed {
                Journal::resume(path, &commit)?
            } else {
                let seed = seed.unwrap_or_else(steps::fresh_seed);
                (Journal::create(path, seed, &commit)?, seed)
            };
            (journal, seed) = (Some(found.0), Some(found.1));
        }
        let seed = seed.unwrap_or_else(steps::fresh_seed);
        let hikyaku = settings.hikyaku.clone().map_or_else(program_beside, Ok)?;
        let tier = settings.tier.unwrap_or(Tier::Full);
        let wanted = families.iter().filter(|family| settings.wants(family));
        let examinations = wanted
            .map(|family| {
                let context = Context::new(hikyaku.clone(), seed, tier, settings.against)?;
                let context = Arc::new(Context { share: settings.share(family.name), ..context });
                let listed = cases::list(family, &context)
                    .with_context(|| format!("list the cases of {}", family.name))?;
                Ok((Examination::new(family, &context), listed))
            })
            .collect::<Result<_>>()?;
        Ok(Self { settings, seed, journal, examinations })
    }

    /// Runs one case, unless it has passed in the run that is being resumed.
    fn run(&mut self, family: usize, index: usize) -> Result<(), String> {
        let (examination, listed) = &mut self.examinations[family];
        let name = &listed[index].name;
        let key = format!("{}::{name}", examination.family.name);
        if self.journal.as_ref().is_some_and(|journal| journal.has_passed(&key)) {
            let case = name.clone();
            examination.ended.push(Ended { case, failure: None, seconds: 0.0, is_resumed: true });
            return Ok(());
        }
        let result = examination.run(index, name);
        if let (Ok(()), Some(journal)) = (&result, &mut self.journal) {
            journal.add(&key).map_err(|error| format!("{error:#}"))?;
        }
        result
    }

    fn finish(mut self) -> Result<()> {
        let mut tallies = Vec::new();
        for (mut examination, listed) in self.examinations.drain(..) {
            let remarks = examination.finish();
            let ended = &examination.ended;
            if ended.is_empty() {
                continue;
            }
            let failures = ended.iter().filter_map(|ended| {
                Some((ended.case.clone(), first_line(ended.failure.as_ref()?).to_owned()))
            });
            let tally = Tally {
                family: examination.family.name.to_owned(),
                share: self.settings.share(examination.family.name),
                passed: ended.iter().filter(|ended| ended.failure.is_none()).count(),
                resumed: ended.iter().filter(|ended| ended.is_resumed).count(),
                failures: failures.collect(),
                notes: remarks.notes,
                seconds: ended.iter().map(|ended| ended.seconds).sum(),
            };
            // Part of a family is no evidence of the whole.
            if self.settings.is_evidence && ended.len() == listed.len() {
                evidence::write_family(&tally, &remarks.facts, self.seed)?;
            }
            tallies.push(tally);
        }
        match &self.settings.report {
            Some(path) => Ok(std::fs::write(path, serde_json::to_string(&tallies)?)?),
            None => Ok(()),
        }
    }
}

/// The `main` of the test program that holds `families`.
pub fn main(families: &'static [Family]) -> ExitCode {
    examine(families).unwrap_or_else(|error| {
        eprintln!("the families cannot be run: {error:#}");
        ExitCode::FAILURE
    })
}

fn examine(families: &'static [Family]) -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Cases share processors, ports and memory, so they run one at a time.
    arguments.test_threads = Some(1);
    let settings = Settings::of_environment()?;
    let tier = settings.tier;
    let run = Run::new(families, settings)?;
    if !arguments.list {
        println!("seed {}", run.seed);
    }
    let mut listed = Vec::new();
    for (family, (examination, cases)) in run.examinations.iter().enumerate() {
        for (index, case) in cases.iter().enumerate() {
            let is_ignored = tier.is_none() || !case.is_drawn;
            listed.push((format!("{}::{}", examination.family.name, case.name), family, index, is_ignored));
        }
    }
    let run = Arc::new(Mutex::new(run));
    let trials = listed.into_iter().map(|(name, family, index, is_ignored)| {
        let run = Arc::clone(&run);
        let body = move || {
            let mut run = run.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            run.run(family, index).map_err(Failed::from)
        };
        Trial::test(name, body).with_ignored_flag(is_ignored)
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let run = Arc::into_inner(run).context("a case is still running")?;
    run.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).finish()?;
    Ok(conclusion.exit_code())
}

fn first_line(message: &str) -> &str {
    message.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message")
}

pub fn print_summary(tallies: &[Tally]) {
    println!("\n{:<16} {:>7} {:>7} {:>8}", "family", "passed", "failed", "seconds");
    for tally in tallies {
        let resumed =
            if tally.resumed > 0 { format!("  ({} from before)", tally.resumed) } else { String::new() };
        let share = match tally.share {
            Share::Half => "  half",
            Share::Even => "",
            Share::Triple => "  triple, touched",
        };
        let Tally { family, passed, seconds, .. } = tally;
        println!("{family:<16} {passed:>7} {:>7} {seconds:>8.1}{share}{resumed}", tally.failures.len());
    }
    for tally in tallies {
        for note in &tally.notes {
            println!("note: {}: {note}", tally.family);
        }
        for (case, message) in &tally.failures {
            println!("FAIL {}::{case}: {message}", tally.family);
        }
    }
}

pub fn totals(tallies: &[Tally]) -> (usize, usize) {
    let failed = tallies.iter().map(|tally| tally.failures.len()).sum();
    (tallies.iter().map(|tally| tally.passed).sum(), failed)
}
