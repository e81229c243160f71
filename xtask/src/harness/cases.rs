//! The ledger of one family: what was checked, what failed, and how long it took.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Map, Value};

/// Failures of one family that are printed in full; the rest are counted.
const FAILURES_SHOWN_MAX: usize = 20;

/// One failed case.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) case: String,
    pub(crate) message: String,
}

/// Passed cases on disk, so that a long run can go on where it stopped.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    passed: BTreeSet<String>,
}

impl Journal {
    /// Starts over: nothing has passed yet.
    pub(crate) fn create(path: &Path, seed: u64, commit: &str) -> Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        writeln!(file, "seed {seed} commit {commit}")?;
        Ok(Self { path: path.to_owned(), file, passed: BTreeSet::new() })
    }

    /// Goes on with an earlier run of the same commit; returns its seed.
    pub(crate) fn resume(path: &Path, commit: &str) -> Result<(Self, u64)> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read {}: nothing to resume", path.display()))?;
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let ["seed", seed, "commit", earlier] = head[..] else {
            bail!("{}: not a journal of a nightly run", path.display());
        };
        if earlier != commit {
            bail!("{}: began at commit {earlier}, this is {commit}; start without --resume", path.display());
        }
        // A torn last line has no newline and is not believed.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let passed = whole.lines().skip(1).map(str::to_owned).collect();
        let file = OpenOptions::new().append(true).open(path)?;
        let seed = seed.parse().with_context(|| format!("seed in {}", path.display()))?;
        Ok((Self { path: path.to_owned(), file, passed }, seed))
    }

    fn add(&mut self, key: &str) -> Result<()> {
        writeln!(self.file, "{key}").with_context(|| format!("append to {}", self.path.display()))
    }
}

/// Collects the cases of one family.
#[derive(Debug)]
pub(crate) struct Cases<'a> {
    family: &'static str,
    /// Only cases whose name contains this are run.
    filter: Option<&'a str>,
    journal: Option<&'a mut Journal>,
    started: Instant,
    passed: usize,
    resumed: usize,
    failures: Vec<Failure>,
    notes: Vec<String>,
    facts: Map<String, Value>,
}

impl<'a> Cases<'a> {
    pub(crate) fn new(
        family: &'static str,
        filter: Option<&'a str>,
        journal: Option<&'a mut Journal>,
    ) -> Self {
        Self {
            family,
            filter,
            journal,
            started: Instant::now(),
            passed: 0,
            resumed: 0,
            failures: Vec::new(),
            notes: Vec::new(),
            facts: Map::new(),
        }
    }

    fn key(&self, case: &str) -> String {
        format!("{}::{case}", self.family)
    }

    /// Whether any case whose name starts with `prefix` may have to run: lets a family skip costly preparation.
    /// `prefixes` are all there are; a filter that names none of them wants them all.
    pub(crate) fn wants(&self, prefix: &str, prefixes: &[&str]) -> bool {
        let Some(filter) = self.filter else { return true };
        let named = |prefix: &str| filter.contains(prefix) || prefix.contains(filter);
        named(prefix) || !prefixes.iter().any(|prefix| named(prefix))
    }

    /// Whether the filter asks for `prefix` in so many words, which outweighs a sample's choice.
    pub(crate) fn names(&self, prefix: &str) -> bool {
        self.filter.is_some_and(|filter| filter.contains(prefix))
    }

    /// Whether a case is to be run: it is not filtered out, and has not passed in the run being resumed, which is
    /// entered here. For cases whose results come by [`Cases::record`].
    pub(crate) fn is_due(&mut self, case: &str) -> bool {
        if self.filter.is_some_and(|filter| !case.contains(filter)) {
            return false;
        }
        let key = self.key(case);
        let passed = self.journal.as_ref().is_some_and(|journal| journal.passed.contains(&key));
        if passed {
            self.passed += 1;
            self.resumed += 1;
        }
        !passed
    }

    /// Runs one case, unless it is filtered out or has passed in the run being resumed. A panic is a failure.
    pub(crate) fn check(&mut self, case: &str, body: impl FnOnce() -> Result<()>) {
        if !self.is_due(case) {
            return;
        }
        let started = Instant::now();
        let result = std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(anyhow!("panic: {text}"))
        });
        self.record(case, result, started.elapsed().as_secs_f64());
    }

    /// Enters the result of a case that was run elsewhere, such as a line of another suite's log.
    pub(crate) fn record(&mut self, case: &str, result: Result<()>, seconds: f64) {
        if self.filter.is_some_and(|filter| !case.contains(filter)) {
            return;
        }
        let key = self.key(case);
        match result {
            Ok(()) => {
                self.passed += 1;
                if seconds >= 1.0 {
                    println!("  ok   {key} ({seconds:.1} s)");
                } else {
                    println!("  ok   {key}");
                }
                if let Some(journal) = &mut self.journal
                    && let Err(error) = journal.add(&key)
                {
                    self.notes.push(format!("{error:#}"));
                }
            }
            Err(error) => {
                let message = format!("{error:#}");
                if self.failures.len() < FAILURES_SHOWN_MAX {
                    println!("  FAIL {key} ({seconds:.1} s)");
                    for line in message.lines() {
                        println!("       {line}");
                    }
                }
                self.failures.push(Failure { case: case.to_owned(), message });
            }
        }
    }

    /// Something a reader must know, such as cases that this machine cannot run.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("  note {}: {text}", self.family);
        self.notes.push(text);
    }

    /// A figure for the evidence file.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Closes the ledger.
    pub(crate) fn finish(self) -> Tally {
        Tally {
            family: self.family,
            passed: self.passed,
            resumed: self.resumed,
            failures: self.failures,
            notes: self.notes,
            facts: self.facts,
            seconds: self.started.elapsed().as_secs_f64(),
        }
    }
}

/// The closed ledger of one family.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) family: &'static str,
    pub(crate) passed: usize,
    /// Of the passed: those that passed in the run being resumed.
    pub(crate) resumed: usize,
    pub(crate) failures: Vec<Failure>,
    pub(crate) notes: Vec<String>,
    pub(crate) facts: Map<String, Value>,
    pub(crate) seconds: f64,
}

/// Prints the table of all families, and nothing that looks like the final line.
pub(crate) fn print_summary(tallies: &[Tally]) {
    println!("\n{:<16} {:>7} {:>7} {:>8}", "family", "passed", "failed", "seconds");
    for tally in tallies {
        let resumed =
            if tally.resumed > 0 { format!("  ({} from before)", tally.resumed) } else { String::new() };
        println!(
            "{:<16} {:>7} {:>7} {:>8.1}{resumed}",
            tally.family,
            tally.passed,
            tally.failures.len(),
            tally.seconds
        );
    }
    for tally in tallies {
        for note in &tally.notes {
            println!("note: {}: {note}", tally.family);
        }
        for failure in &tally.failures {
            let first = failure.message.lines().next().unwrap_or_default();
            println!("FAIL {}::{}: {first}", tally.family, failure.case);
        }
    }
}

/// Sums over families: passed, failed.
pub(crate) fn totals(tallies: &[Tally]) -> (usize, usize) {
    tallies.iter().fold((0, 0), |(passed, failed), t| (passed + t.passed, failed + t.failures.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_panics_count() {
        let mut cases = Cases::new("unit", None, None);
        cases.check("good", || Ok(()));
        cases.check("bad", || bail!("no"));
        cases.check("worse", || panic!("aaah"));
        let tally = cases.finish();
        assert_eq!((tally.passed, tally.failures.len()), (1, 2));
        assert!(tally.failures[1].message.contains("aaah"));
    }

    #[test]
    fn filter_runs_only_what_it_names() {
        let mut cases = Cases::new("unit", Some("one"), None);
        cases.check("one-a", || Ok(()));
        cases.check("two", || bail!("must not run"));
        let prefixes = ["one-a-long", "one", "two"];
        assert!(cases.wants("one", &prefixes) && cases.wants("one-a-long", &prefixes));
        assert!(!cases.wants("two", &prefixes) && cases.wants("two", &["two", "three"]));
        assert_eq!(totals(&[cases.finish()]), (1, 0));
    }

    #[test]
    fn journal_resumes_what_passed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let mut journal = Journal::create(&path, 7, "abc").unwrap();
        let mut cases = Cases::new("unit", None, Some(&mut journal));
        cases.check("good", || Ok(()));
        cases.check("bad", || bail!("first time"));
        drop(cases);
        assert!(Journal::resume(&path, "other").is_err());
        let (mut journal, seed) = Journal::resume(&path, "abc").unwrap();
        assert_eq!(seed, 7);
        let mut cases = Cases::new("unit", None, Some(&mut journal));
        cases.check("good", || bail!("must not run again"));
        cases.check("bad", || Ok(()));
        let tally = cases.finish();
        assert_eq!((tally.passed, tally.resumed, tally.failures.len()), (2, 1, 0));
    }
}
