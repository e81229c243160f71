//! libiscsi's conformance suite, `iscsi-test-cu`, against the target. CUnit counts a skipped test as passed, so
//! the log is read instead of the exit code: a skip is never a pass.
//!
//! In the required families a test must pass, or its skip must be listed with a reason in
//! `tests/conformance-known.toml`. In the others only what is listed there may fail; what is listed and does not
//! happen is an error too, so that the list cannot go stale.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::json;

use crate::harness::files::empty_file;
use crate::harness::process::tail;
use crate::harness::{Against, Cases, Context, Disk, Output, Tier, program, run, scratch};

/// For one family; the slowest takes 10 s.
const LIMIT: Duration = Duration::from_secs(60);
/// Families that may hang before the rest is given up.
const INCOMPLETE_MAX: usize = 4;
const BYTES: u64 = 256 << 20;

/// Where the known differences are listed.
const KNOWN: &str = "tests/conformance-known.toml";

/// Kinds of LUN, each served by itself.
const KINDS: [&str; 3] = ["thin", "removable", "read-only"];
/// Families that must have no failure on the thin LUN.
const REQUIRED: &[&str] = &[
    "ExtendedCopy",
    "Inquiry",
    "Mandatory",
    "ModeSense6",
    "NoMedia",
    "Prefetch10",
    "Prefetch16",
    "Read6",
    "Read10",
    "Read12",
    "Read16",
    "ReadCapacity10",
    "ReadCapacity16",
    "ReceiveCopyResults",
    "ReportSupportedOpcodes",
    "Reserve6",
    "TestUnitReady",
    "Unmap",
    "Verify10",
    "Verify12",
    "Verify16",
    "Write10",
    "Write12",
    "Write16",
    "WriteSame10",
    "WriteSame16",
    "WriteVerify10",
    "WriteVerify12",
    "WriteVerify16",
    "iSCSIcmdsn",
    "iSCSIdatasn",
    "iSCSIResiduals",
    "iSCSITMF",
];
/// Families that only a removable LUN can show.
const REMOVABLE: &[&str] = &["NoMedia", "PreventAllow", "StartStopUnit", "TestUnitReady"];
/// Families that only a read-only LUN can show.
const READ_ONLY: &[&str] = &["ReadOnly"];

/// What one test of the suite came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Pass,
    Fail,
    Skip,
    /// The log ends before a verdict.
    Lost,
}

#[derive(Clone, Debug)]
struct Test {
    suite: String,
    name: String,
    verdict: Verdict,
    /// First reason given for a failure or skip.
    reason: String,
}

/// Reads the log of `iscsi-test-cu -v`. The second result says whether the suite came to its end.
fn parse_log(log: &str) -> (Vec<Test>, bool) {
    let mut tests: Vec<Test> = Vec::new();
    let mut suite = String::new();
    let mut open = false;
    let mut skipped = false;
    let mut complete = false;
    for line in log.lines() {
        let mut rest = line;
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name.trim().to_owned();
            open = false;
            continue;
        }
        if line.starts_with("Run Summary:") {
            complete = true;
            open = false;
            continue;
        }
        if let Some((name, more)) = line.strip_prefix("  Test: ").and_then(|text| text.split_once(" ...")) {
            let (suite, name) = (suite.clone(), name.to_owned());
            tests.push(Test { suite, name, verdict: Verdict::Lost, reason: String::new() });
            open = true;
            skipped = false;
            rest = more;
        }
        let Some(test) = tests.last_mut().filter(|_| open || line.starts_with("    ")) else { continue };
        if open {
            // What follows the verdict on its line is the suite's cleanup, which prints without a new line.
            if rest.starts_with("passed") {
                test.verdict = if skipped { Verdict::Skip } else { Verdict::Pass };
                open = false;
                continue;
            }
            if let Some((_, why)) = rest.split_once("[SKIPPED]") {
                skipped = true;
                remember(&mut test.reason, why);
            } else if let Some((_, why)) = rest.split_once("[FAILED]") {
                remember(&mut test.reason, why);
            }
            if rest.trim() == "FAILED" {
                test.verdict = Verdict::Fail;
                open = false;
            }
        } else if test.verdict == Verdict::Fail && test.reason.is_empty() {
            // CUnit lists the assertions that failed below the verdict.
            remember(&mut test.reason, line);
        }
    }
    (tests, complete)
}

fn remember(reason: &mut String, text: &str) {
    if reason.is_empty() {
        text.trim().clone_into(reason);
    }
}

/// One line of the list of known differences.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// `Suite.Test`.
    test: String,
    /// Kind of LUN: `thin`, `removable`, `read-only`.
    lun: String,
    outcome: Verdict,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFile {
    #[serde(default)]
    known: Vec<Known>,
}

fn load_known(path: &Path) -> Result<Vec<Known>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let file: KnownFile = toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    for entry in &file.known {
        ensure!(!entry.reason.trim().is_empty(), "{}: no reason for {}", path.display(), entry.test);
        ensure!(KINDS.contains(&entry.lun.as_str()), "unknown lun {}", entry.lun);
    }
    Ok(file.known)
}

/// Judges one test; `None` for a skip in a family that is not required, which is neither passed nor failed.
fn judge(test: &Test, required: bool, known: Option<&Known>) -> Option<Result<()>> {
    let reason = &test.reason;
    match (test.verdict, known) {
        (Verdict::Lost, _) => Some(Err(anyhow!("no verdict: the suite stopped here"))),
        (verdict, Some(known)) if verdict == known.outcome => {
            // A known failure stays out of both counts; a known skip likewise.
            None
        }
        (Verdict::Pass, Some(known)) => Some(Err(anyhow!(
            "passes, but {KNOWN} lists it as {:?} ({}): take the line out",
            known.outcome,
            known.reason
        ))),
        (Verdict::Pass, None) => Some(Ok(())),
        (Verdict::Fail, _) => Some(Err(anyhow!("fails: {reason}"))),
        (Verdict::Skip, _) if required => Some(Err(anyhow!("skipped in a required family: {reason}"))),
        (Verdict::Skip, Some(known)) => {
            Some(Err(anyhow!("skipped ({reason}), but {KNOWN} lists it as {:?}", known.outcome)))
        }
        (Verdict::Skip, None) => None,
    }
}

/// Families of the suite, as `-t` takes them.
fn all_families() -> Result<Vec<String>> {
    let output = run(program("iscsi-test-cu")?.arg("-l"), LIMIT)?;
    let names: Vec<String> = output
        .stdout
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("ALL.") && line.matches('.').count() == 1)
        .map(str::to_owned)
        .collect();
    ensure!(!names.is_empty(), "iscsi-test-cu -l lists nothing:\n{}", output.text());
    Ok(names)
}

/// Runs one family. In a process of its own: some tests of 1.19 that end early leave the hook in place with
/// which they spoil PDUs (CompareAndWrite.InvalidDataOutSize), and every 16-byte CDB after them is wrong. It exits 1 when some test failed; the log says which.
fn run_suite(name: &str, urls: &[String]) -> Result<Output> {
    // Line by line, so that the log of a suite that hangs shows where.
    let mut command = program("stdbuf")?;
    command.args(["-oL", "iscsi-test-cu", "-d", "-S", "-v", "-t", name]).args(urls);
    run(&mut command, LIMIT)
}

fn run_kind(context: &Context, cases: &mut Cases, known: &[Known], kind: &str, disk: Disk) -> Result<()> {
    let mut served = context.serve(&[disk], None)?;
    let url = served.url(0).to_string();
    let names: Vec<String> = match (kind, context.tier) {
        ("thin", _) | ("removable", Tier::Full) => all_families()?,
        ("removable", Tier::Sample) => REMOVABLE.iter().map(|name| format!("ALL.{name}")).collect(),
        _ => READ_ONLY.iter().map(|name| format!("ALL.{name}")).collect(),
    };
    let judged_elsewhere = |suite: &str| match kind {
        "thin" => REMOVABLE[1..3].contains(&suite) || READ_ONLY.contains(&suite),
        _ => READ_ONLY.contains(&suite) && kind != "read-only",
    };
    let required = |suite: &str| match kind {
        "thin" => REQUIRED.contains(&suite),
        "removable" => REMOVABLE.contains(&suite),
        _ => READ_ONLY.contains(&suite),
    };
    // The multipath families need a second path; the same URL twice is two sessions.
    let urls = if kind == "read-only" { vec![url] } else { vec![url.clone(), url] };
    let (mut log, mut tests) = (String::new(), Vec::new());
    let (mut seconds, mut incomplete) = (0.0, Vec::new());
    for name in &names {
        let output = run_suite(name, &urls)?;
        let text = output.text();
        let (found, complete) = parse_log(&text);
        log.push_str(&text);
        tests.extend(found);
        seconds += output.seconds;
        if !complete {
            incomplete.push(format!("{name}: {}\n{}", output.ending(), tail(&text, 600)));
        }
        if served.alive().is_err() || incomplete.len() > INCOMPLETE_MAX {
            break;
        }
    }
    let complete = match incomplete.len() {
        0 => Ok(()),
        count => Err(anyhow!("{count} families did not come to their end\n{}", incomplete.join("\n"))),
    };
    let all_complete = complete.is_ok();
    cases.record(&format!("{kind}/complete"), served.blame(complete), seconds);
    let logs = context.repository.join("target/conformance");
    fs::create_dir_all(&logs)?;
    fs::write(logs.join(format!("{kind}.log")), &log)?;

    let mut families: BTreeMap<&str, BTreeMap<Verdict, usize>> = BTreeMap::new();
    tests.retain(|test| !judged_elsewhere(&test.suite));
    for test in &tests {
        *families.entry(&test.suite).or_default().entry(test.verdict).or_default() += 1;
        let name = format!("{}.{}", test.suite, test.name);
        let known = known.iter().find(|known| known.lun == kind && known.test == name);
        if let Some(result) = judge(test, required(&test.suite), known) {
            cases.record(&format!("{kind}/{name}"), result, 0.0);
        }
    }
    let wanted: &[&str] = match kind {
        "thin" => REQUIRED,
        "removable" => REMOVABLE,
        _ => READ_ONLY,
    };
    for family in wanted.iter().filter(|_| all_complete) {
        if !families.contains_key(family) {
            cases.record(&format!("{kind}/{family}"), Err(anyhow!("the suite has no such family")), 0.0);
        }
    }
    for entry in known.iter().filter(|known| known.lun == kind && context.tier == Tier::Full) {
        if !tests.iter().any(|test| format!("{}.{}", test.suite, test.name) == entry.test) {
            let stale = format!("{KNOWN} lists {}, which the suite does not have", entry.test);
            cases.record(&format!("{kind}/{}", entry.test), Err(anyhow!(stale)), 0.0);
        }
    }
    let count = |verdict| tests.iter().filter(|test| test.verdict == verdict).count();
    println!(
        "  {kind}: {} tests: {} passed, {} failed, {} skipped ({seconds:.0} s)",
        tests.len(),
        count(Verdict::Pass),
        count(Verdict::Fail),
        count(Verdict::Skip)
    );
    let table: serde_json::Map<String, serde_json::Value> = families
        .iter()
        .map(|(name, counts)| {
            let count = |verdict| counts.get(&verdict).copied().unwrap_or(0);
            let row =
                json!({"pass": count(Verdict::Pass), "fail": count(Verdict::Fail), "skip": count(Verdict::Skip)});
            ((*name).to_owned(), row)
        })
        .collect();
    cases.fact(
        kind,
        json!({
            "tests": tests.len(), "pass": count(Verdict::Pass), "fail": count(Verdict::Fail),
            "skip": count(Verdict::Skip), "families": table,
        }),
    );
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    // The list is about our target; tgt is shown as it is.
    let known = match context.against {
        Against::Ours => load_known(&context.repository.join(KNOWN))?,
        Against::Tgt => Vec::new(),
    };
    let dir = scratch()?;
    for kind in KINDS {
        if !cases.wants(kind, &KINDS) {
            continue;
        }
        let path = dir.path().join(format!("{kind}.img"));
        empty_file(&path, BYTES)?;
        let mut disk = Disk::file(&path);
        disk.removable = kind == "removable";
        disk.read_only = kind == "read-only";
        if let Err(error) = run_kind(context, cases, &known, kind, disk) {
            cases.record(&format!("{kind}/run"), Err(error), 0.0);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
Suite: CompareAndWrite
  Test: Simple ...    [SKIPPED] COMPAREANDWRITE is not implemented.
    [SKIPPED] COMPAREANDWRITE is not implemented.
passed
Suite: GetLBAStatus
  Test: Simple ...passed
  Test: BeyondEol ...    [FAILED] GET_LBA_STATUS successful but should have failed
FAILED
    1. test_get_lba_status_beyond_eol.c:38  - CU_ASSERT_EQUAL(_r,0)
Suite: PrinReadKeys
  Test: Residuals ...passed    [FAILED] PRIN command: failed with sense.
  Test: Odd ...passed    [SKIPPED] PERSISTENT RESERVE IN is not implemented.
Suite: iSCSIdatasn
  Test: iSCSIDataSnInvalid ...FAILED
    1. test_iscsi_datasn_invalid.c:98  - CU_ASSERT_NOT_EQUAL(ret,0)
Suite: Reserve6
  Test: 2Initiators ...    Take out a RESERVE6 from the first initiator
    [FAILED] MODESENSE6 successful
    RELEASE6 from the first initiator
FAILED
Suite: Read10
  Test: Simple ...";

    #[test]
    fn log_verdicts() {
        let (tests, complete) = parse_log(LOG);
        let verdicts: Vec<Verdict> = tests.iter().map(|test| test.verdict).collect();
        use Verdict::{Fail, Lost, Pass, Skip};
        assert_eq!(verdicts, [Skip, Pass, Fail, Pass, Pass, Fail, Fail, Lost]);
        assert!(!complete);
        assert_eq!(tests[0].reason, "COMPAREANDWRITE is not implemented.");
        assert!(tests[5].reason.contains("iscsi_datasn"), "{:?}", tests[5]);
        assert_eq!(tests[6].reason, "MODESENSE6 successful");
        assert!(parse_log("Run Summary:    Type").1);
    }

    fn test(verdict: Verdict) -> Test {
        Test { suite: "S".into(), name: "T".into(), verdict, reason: "r".into() }
    }

    #[test]
    fn unlisted_failures_and_required_skips_fail() {
        assert!(judge(&test(Verdict::Fail), false, None).unwrap().is_err());
        assert!(judge(&test(Verdict::Skip), true, None).unwrap().is_err());
        assert!(judge(&test(Verdict::Lost), false, None).unwrap().is_err());
        assert!(judge(&test(Verdict::Skip), false, None).is_none());
        assert!(judge(&test(Verdict::Pass), true, None).unwrap().is_ok());
    }

    #[test]
    fn known_differences_must_happen() {
        let known = |outcome| Known { test: "S.T".into(), lun: "thin".into(), outcome, reason: "x".into() };
        assert!(judge(&test(Verdict::Fail), false, Some(&known(Verdict::Fail))).is_none());
        assert!(judge(&test(Verdict::Skip), true, Some(&known(Verdict::Skip))).is_none());
        assert!(judge(&test(Verdict::Pass), false, Some(&known(Verdict::Fail))).unwrap().is_err());
        assert!(judge(&test(Verdict::Skip), false, Some(&known(Verdict::Fail))).unwrap().is_err());
    }

    #[test]
    fn the_list_in_the_repository_parses() {
        load_known(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(KNOWN)).unwrap();
    }
}
