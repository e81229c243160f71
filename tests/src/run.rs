//! A run of the families: lists their cases as tests, runs the requested ones one at a time, and records the results.
//!
//! `cargo test --test families` ignores all cases, because they need peers, root or time; `-- --ignored` and a filter
//! run them on the program beside the test's own. `cargo xtask test`, `ci` and `nightly` pass [`Settings`] in the
//! environment: then the tier decides what is ignored.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail};
use libtest_mimic::{Arguments, Failed, Trial};
use steps::settings::{Settings, Tally};
use steps::{Against, Tier, fresh_seed};

use crate::cases::{self, Ended, Examination, Listed};
use crate::journal::Journal;
use crate::{Context, Family, evidence};

/// The program that cargo has built beside this test: `target/PROFILE/hikyaku` of `target/PROFILE/deps/TEST`.
fn program_beside() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    Ok(test.parent().and_then(Path::parent).context("a test lies in target/PROFILE/deps")?.join("hikyaku"))
}

/// The families that a run examines: the named ones, or those of its tier that can examine its target.
fn chosen(families: &'static [Family], settings: &Settings) -> Result<Vec<&'static Family>> {
    let names = &settings.families;
    if let Some(name) = names.iter().find(|name| !families.iter().any(|family| family.name == **name)) {
        let all: Vec<_> = families.iter().map(|family| family.name).collect();
        bail!("no family {name}; there are {}", all.join(", "));
    }
    let due = |family: &&Family| match names.is_empty() {
        true => settings.tier != Some(Tier::Sample) || !family.is_nightly,
        false => names.iter().any(|name| name == family.name),
    };
    let can = |family: &&Family| settings.against == Against::Ours || family.any_target;
    Ok(families.iter().filter(due).filter(can).collect())
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
                let seed = seed.unwrap_or_else(fresh_seed);
                (Journal::create(path, seed, &commit)?, seed)
            };
            (journal, seed) = (Some(found.0), Some(found.1));
        }
        let seed = seed.unwrap_or_else(fresh_seed);
        let hikyaku = settings.hikyaku.clone().map_or_else(program_beside, Ok)?;
        let tier = settings.tier.unwrap_or(Tier::Full);
        let examinations = chosen(families, &settings)?
            .into_iter()
            .map(|family| {
                let context = Context::new(hikyaku.clone(), seed, tier, settings.against)?;
                let simulator = settings.simulator.clone();
                let share = settings.share(family.name);
                let context = Arc::new(Context { share, simulator, ..context });
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
    if settings.is_overview {
        for family in chosen(families, &settings)? {
            println!("{:<16} {}", family.name, family.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
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

#[cfg(test)]
mod tests {
    use steps::settings::{results, totals};

    use super::*;
    use crate::Cases;

    fn cases(_: &Context, cases: &mut Cases) -> Result<()> {
        cases.check("passes", || Ok(()));
        cases.check("fails", || bail!("\nno\nmore"));
        cases.check("panics", || panic!("aaah"));
        Ok(())
    }

    static FAMILIES: [Family; 1] =
        [Family { name: "unit", about: "", examine: cases, any_target: false, is_nightly: false }];

    #[test]
    fn a_case_that_fails_is_counted_as_failed() {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("report");
        let settings =
            Settings { hikyaku: Some(PathBuf::new()), report: Some(report.clone()), ..Settings::default() };
        let mut run = Run::new(&FAMILIES, settings).unwrap();
        assert_eq!([0, 1, 2].map(|index| run.run(0, index).is_ok()), [true, false, false]);
        run.finish().unwrap();
        let tallies = results(&report).unwrap();
        let failures = [("fails", "no"), ("panics", "panic: aaah")];
        assert_eq!(tallies[0].failures, failures.map(|(case, text)| (case.to_owned(), text.to_owned())));
        assert_eq!((tallies[0].passed, totals(&tallies)), (1, (1, 2)));
    }
}
