//! Shared part of families that run the program in an emulated machine (`tests/kernel-lab`): copies it there, and makes
//! cases of the lines that a script prints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::FULL_ONLY;
use super::kernel::{build_guest, guest};
use crate::process::tail;
use crate::{Cases, Context, Output, program, run};

/// Libraries of the program other than the C library, which the guest has.
fn libraries(hikyaku: &Path) -> Result<Vec<PathBuf>> {
    let output = run(program("ldd")?.arg(hikyaku), Duration::from_secs(10))?.success()?;
    let needed = output.stdout.lines().filter_map(|line| line.trim().split_once(" => "));
    let wanted =
        needed.filter(|(name, _)| ["libgcc_s", "libm."].iter().any(|wanted| name.starts_with(wanted)));
    Ok(wanted.filter_map(|(_, path)| path.split(' ').next()).map(PathBuf::from).collect())
}

/// A run of the guest with the program under test at `/lab/hikyaku`, whatever name `--hikyaku` gives. `dir` holds the
/// intermediate files.
pub(super) fn with_program(context: &Context, dir: &Path) -> Result<Command> {
    build_guest(context)?;
    let hikyaku = dir.join("hikyaku");
    std::fs::copy(&context.hikyaku, &hikyaku)?;
    let mut command = guest(context);
    command.arg("run").arg("--file").arg(&hikyaku);
    for library in libraries(&context.hikyaku)? {
        command.arg("--file").arg(library);
    }
    Ok(command)
}

pub(super) struct Said {
    /// Results by name; for a line "FAIL name" the indented lines after it.
    results: BTreeMap<String, Result<(), String>>,
    text: String,
    is_late: bool,
}

impl Said {
    pub(super) fn read(output: &Output) -> Self {
        let text = output.text().replace('\r', "");
        let mut results = BTreeMap::new();
        let mut lines = text.lines().map(str::trim_end).peekable();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("PASS ") {
                results.entry(name.to_owned()).or_insert(Ok(()));
            } else if let Some(name) = line.strip_prefix("FAIL ") {
                let said: Vec<&str> =
                    std::iter::from_fn(|| lines.next_if(|line| line.starts_with("  "))).collect();
                results.insert(name.to_owned(), Err(said.join("\n")));
            }
        }
        Self { results, text, is_late: output.timed_out }
    }

    /// The rest of the first line that begins so.
    pub(super) fn value(&self, beginning: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(beginning)).map(str::trim)
    }

    fn result(&self, name: &str) -> Result<()> {
        let result = self.results.get(name).context("the script did not come to it")?;
        result.clone().map_err(|said| anyhow!("{said}"))
    }

    /// Demands that the script completed and judged exactly `names`.
    fn ends(&self, names: &[&str]) -> Result<()> {
        ensure!(!self.is_late, "the guest did not end in time\n{}", tail(&self.text, 3000));
        let is_ended = self.text.lines().any(|line| line.trim() == "GUEST-RC 0");
        ensure!(is_ended, "{}", tail(&self.text, 3000));
        let others: Vec<_> = self.results.keys().filter(|name| !names.contains(&name.as_str())).collect();
        demand!(others.is_empty(), "no case is listed for {others:?}")
    }
}

/// Makes a case of each name that a script judges, with `full` in the full tier only, and one for the end of the
/// script. Names are separated by spaces; `said` runs the script once.
pub(super) fn judge<'a>(cases: &mut Cases, names: &str, full: &str, said: impl Fn() -> Result<&'a Said>) {
    let [names, full] = [names, full].map(|names| names.split_whitespace().collect::<Vec<_>>());
    for name in &names {
        cases.check(name, || said()?.result(name));
    }
    for name in &full {
        cases.check_some(FULL_ONLY, name, || said()?.result(name));
    }
    cases.check("script-ends", || said()?.ends(&[names, full].concat()));
}

/// As [`judge`], for a script of which a sample has the cases of `group`; `prefix` comes before each name.
pub(super) fn judge_some<'a>(
    cases: &mut Cases,
    group: (&str, usize),
    prefix: &str,
    names: &str,
    said: impl Fn() -> Result<&'a Said>,
) {
    let names: Vec<&str> = names.split_whitespace().collect();
    for name in &names {
        cases.check_some(group, &format!("{prefix}/{name}"), || said()?.result(name));
    }
    cases.check_some(group, &format!("{prefix}/script-ends"), || said()?.ends(&names));
}
