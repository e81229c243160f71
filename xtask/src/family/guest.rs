//! What families share that let our program work in an emulated machine (`tests/kernel-lab`): how it gets there, and how the lines that a script
//! prints become cases.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::harness::process::tail;
use crate::harness::{Cases, Context, Output, program, run};

/// What the program needs beside the C library, which the guest has.
fn libraries(hikyaku: &Path) -> Result<Vec<PathBuf>> {
    let output = run(program("ldd")?.arg(hikyaku), Duration::from_secs(10))?.success()?;
    let needed = output.stdout.lines().filter_map(|line| line.trim().split_once(" => "));
    let wanted =
        needed.filter(|(name, _)| ["libgcc_s", "libm."].iter().any(|wanted| name.starts_with(wanted)));
    Ok(wanted.filter_map(|(_, path)| path.split(' ').next()).map(PathBuf::from).collect())
}

/// Lets `command`, a run of the guest, bring our program as `/lab/hikyaku`, whatever `--hikyaku` names. It lies in `dir` on the way.
pub(super) fn bring_program(command: &mut Command, context: &Context, dir: &Path) -> Result<()> {
    let hikyaku = dir.join("hikyaku");
    std::fs::copy(&context.hikyaku, &hikyaku)?;
    command.arg("--file").arg(&hikyaku);
    for library in libraries(&context.hikyaku)? {
        command.arg("--file").arg(library);
    }
    Ok(())
}

/// A case for each line "PASS name" or "FAIL name", the latter with the indented lines behind it; and one for the end of the script.
pub(super) fn judge(cases: &mut Cases, output: &Output, limit: Duration) {
    let text = output.text().replace('\r', "");
    let mut lines = text.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("PASS ") {
            cases.check(name, || Ok(()));
        } else if let Some(name) = line.strip_prefix("FAIL ") {
            let said: Vec<&str> =
                std::iter::from_fn(|| lines.next_if(|line| line.starts_with("  "))).collect();
            cases.record(name, Err(anyhow::anyhow!("{}", said.join("\n"))), 0.0);
        }
    }
    cases.check("script-ends", || {
        ensure!(!output.timed_out, "the guest did not end within {limit:?}\n{}", tail(&text, 3000));
        ensure!(text.lines().any(|line| line.trim() == "GUEST-RC 0"), "{}", tail(&text, 3000));
        Ok(())
    });
}
