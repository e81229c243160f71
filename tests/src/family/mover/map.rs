//! The journal as a ddrescue mapfile: parsed here, and compared with ddrescuelog's result.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{program, run};

#[derive(Clone, Debug)]
pub(super) struct Journal {
    pub(super) path: PathBuf,
    /// Begin, end, sign; positions in the source.
    pub(super) stretches: Vec<(u64, u64, char)>,
}

pub(super) fn all(state: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(state.join("hikyaku/copies")) else { return Ok(Vec::new()) };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "map"));
    paths.sort();
    Ok(paths)
}

pub(super) fn only(state: &Path) -> Result<Option<Journal>> {
    let paths = all(state)?;
    ensure!(paths.len() <= 1, "one journal was expected: {paths:?}");
    paths.first().map(|path| Journal::read(path)).transpose()
}

fn number(word: Option<&str>) -> Option<u64> {
    u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok()
}

impl Journal {
    /// Reads a journal, which must be complete and have the same meaning to ddrescuelog.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
        let stretches = lines
            .map(|line| {
                let mut words = line.split_ascii_whitespace();
                let (start, bytes) = (number(words.next())?, number(words.next())?);
                Some((start, start + bytes, words.next()?.chars().next()?))
            })
            .collect::<Option<Vec<_>>>()
            .with_context(|| format!("{} has lines that are no stretches:\n{text}", path.display()))?;
        ensure!(!stretches.is_empty() && stretches.windows(2).all(|two| two[0].1 == two[1].0), "{text}");
        let journal = Self { path: path.to_owned(), stretches };
        // ddrescuelog must list as many blocks as were parsed.
        let fine = journal.stretches.iter().any(|(start, ..)| !start.is_multiple_of(4096));
        let block = if fine { 512 } else { 4096 };
        let mut command = program("ddrescuelog")?;
        // A copy of the journal, because a running program replaces it.
        let mut same = tempfile::NamedTempFile::new()?;
        same.write_all(text.as_bytes())?;
        command.args(["-b", &block.to_string(), "-l", "+"]).arg(same.path());
        let report = run(&mut command, Duration::from_secs(20))?.success()?;
        let (theirs, ours) = (report.stdout.lines().count() as u64 * block, journal.bytes('+'));
        ensure!(theirs == ours, "ddrescuelog finds {theirs} bytes finished, we {ours}:\n{text}");
        Ok(journal)
    }

    pub(super) fn finished(&self) -> Vec<(u64, u64)> {
        let finished = self.stretches.iter().filter(|stretch| stretch.2 == '+');
        finished.map(|(start, end, _)| (*start, *end)).collect()
    }

    pub(super) fn bytes(&self, sign: char) -> u64 {
        self.stretches.iter().filter(|stretch| stretch.2 == sign).map(|(start, end, _)| end - start).sum()
    }
}
