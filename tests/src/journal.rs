//! Passed cases on disk, so that an interrupted run can be resumed.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

/// The file: a line with seed and commit, then a line for each passed case.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    passed: BTreeSet<String>,
}

impl Journal {
    pub fn create(path: &Path, seed: u64, commit: &str) -> Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        writeln!(file, "seed {seed} commit {commit}")?;
        Ok(Self { path: path.to_owned(), file, passed: BTreeSet::new() })
    }

    /// Opens the journal of an earlier run of the same commit; returns its seed.
    pub fn resume(path: &Path, commit: &str) -> Result<(Self, u64)> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read {}: nothing to resume", path.display()))?;
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let ["seed", seed, "commit", earlier] = head[..] else {
            bail!("{}: not a journal of a nightly run", path.display());
        };
        ensure!(
            earlier == commit,
            "{}: began at commit {earlier}, this is {commit}; start without --resume",
            path.display()
        );
        // A torn last line has no newline and is ignored.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let passed = whole.lines().skip(1).map(str::to_owned).collect();
        let file = OpenOptions::new().append(true).open(path)?;
        let seed = seed.parse().with_context(|| format!("seed in {}", path.display()))?;
        Ok((Self { path: path.to_owned(), file, passed }, seed))
    }

    pub fn has_passed(&self, case: &str) -> bool {
        self.passed.contains(case)
    }

    pub fn add(&mut self, case: &str) -> Result<()> {
        writeln!(self.file, "{case}").with_context(|| format!("append to {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_is_known_after_a_restart_of_the_same_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let mut journal = Journal::create(&path, 7, "abc").unwrap();
        journal.add("unit::good").unwrap();
        drop(journal);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"unit::torn").unwrap();
        assert!(Journal::resume(&path, "other").is_err());
        let (journal, seed) = Journal::resume(&path, "abc").unwrap();
        assert!(seed == 7 && journal.has_passed("unit::good") && !journal.has_passed("unit::torn"));
    }
}
