//! System calls of both ends for each operation, counted by the kernel's tracepoint. Separate runs, because counting
//! slows the timed ones.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::run::{Ours, Storage};
use crate::RUN_LIMIT;
use crate::peers::Shape;
use harness::{Context, program, run, scratch};

const EVENT: &str = "raw_syscalls:sys_enter";
/// Bytes of the shorter of two runs; the longer one has three times as many. The difference of the two is the cost of
/// the operations without start-up and login.
const BYTES: u64 = 128 << 20;
const OPERATIONS_MIN: u64 = 500;
const OPERATIONS_MAX: u64 = 20_000;

/// The reason why system calls cannot be counted on this machine; `None` if they can.
fn obstacle() -> Option<String> {
    let Ok(mut perf) = program("perf") else { return Some("perf is not installed".to_owned()) };
    match run(perf.args(["stat", "-e", EVENT, "--", "true"]), Duration::from_secs(20)) {
        Ok(output) if output.code == Some(0) && !output.stderr.contains("not supported") => None,
        Ok(output) => {
            Some(format!("perf cannot count {EVENT}: {}", output.stderr.lines().next().unwrap_or_default()))
        }
        Err(error) => Some(format!("{error:#}")),
    }
}

/// The count in a report of `perf stat -x,`.
fn count(report: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(report)?;
    let line = text.lines().find(|line| line.contains(EVENT)).context("no line of perf")?;
    line.split(',').next().unwrap_or_default().parse().with_context(|| format!("no count in: {line}"))
}

fn calls(
    context: &Context,
    ours: &mut Ours,
    storage: Storage,
    shape: Shape,
    operations: u64,
    of_target: bool,
) -> Result<f64> {
    let dir = scratch()?;
    let report = dir.path().join("perf.csv");
    let pid = ours.pid().to_string();
    let load = ours.command(context, storage, shape);
    let mut perf = program("perf")?;
    perf.args(["stat", "-x", ",", "-o"]).arg(&report).args(["-e", EVENT]);
    if of_target {
        perf.args(["-p", &pid]);
    }
    perf.arg("--").arg(load.get_program()).args(load.get_args());
    perf.args(["--operations", &operations.to_string()]);
    perf.envs(load.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(&mut perf, RUN_LIMIT)?.success()?;
    count(&report)
}

/// A table of the system calls of each end, or a note that says why they cannot be counted.
pub(super) fn table(context: &Context, ours: &mut Ours, shapes: &[(Storage, Shape)]) -> Result<Value> {
    if let Some(obstacle) = obstacle() {
        println!("\nsystem calls were not counted: {obstacle}");
        return Ok(json!({ "not_counted": obstacle }));
    }
    println!("\n| system calls of one operation | initiator | target |\n|---|---|---|");
    let mut rows = Vec::new();
    for (storage, shape) in shapes {
        let few = (BYTES / shape.block).clamp(OPERATIONS_MIN, OPERATIONS_MAX);
        let mut of = |of_target: bool| -> Result<f64> {
            let short = calls(context, ours, *storage, *shape, few, of_target)?;
            let long = calls(context, ours, *storage, *shape, 3 * few, of_target)?;
            Ok((long - short) / (2 * few) as f64)
        };
        let (initiator, target) = (of(false)?, of(true)?);
        let name = super::name(*storage, *shape);
        println!("| {name} | {initiator:.2} | {target:.2} |");
        rows.push(json!({ "row": name, "initiator": initiator, "target": target }));
    }
    Ok(Value::Array(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read() {
        let dir = scratch().unwrap();
        let path = dir.path().join("perf.csv");
        std::fs::write(&path, "# started on Sat\n\n1234,,raw_syscalls:sys_enter,461556,100.00,,\n").unwrap();
        assert_eq!(count(&path).unwrap(), 1234.0);
        std::fs::write(&path, "<not counted>,,raw_syscalls:sys_enter,0,0.00,,\n").unwrap();
        assert!(count(&path).is_err());
    }
}
