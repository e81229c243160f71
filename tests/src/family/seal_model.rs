//! The model of SEAL/1's handshake and policy (`crates/seal/model`) under its checkers, which `check.sh` installs.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{Cases, Context, run};

/// Time limit of one case; the first builds the checker.
const LIMIT: Duration = Duration::from_secs(3600);

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let folder = context.repository.join("crates/seal/model");
    let list = folder.join("cases.sh");
    let text = std::fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("check ")?.split_whitespace().nth(1))
        .chain(["policy"])
        .collect();
    ensure!(names.len() > 1, "{}: no line begins with `check `", list.display());
    for name in names {
        cases.check(name, || {
            run(Command::new(folder.join("check.sh")).arg(name), LIMIT)?.success().map(|_| ())
        });
    }
    Ok(())
}
