//! libiscsi's conformance suite, `iscsi-test-cu`, against the target. CUnit counts a skipped test as passed, so the log
//! decides instead of the exit code: a skip is never a pass.
//!
//! In the required families a test must pass, or its skip must be listed with a reason in
//! `tests/conformance-known.toml`. In the others only listed tests may fail. A listed difference that does not happen
//! is an error too, so that the list cannot become outdated. A case passes when its test ends as expected, be that a
//! listed skip or failure: the facts of the family count passes, failures and skips separately.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;

use super::FULL_ONLY;
use crate::files::empty_file;
use crate::process::tail;
use crate::{Against, Cases, Context, Disk, Output, Scene, Served, program, run, scratch};

/// Time limit of one family; the slowest takes 10 s.
const LIMIT: Duration = Duration::from_secs(60);
/// Number of families that may hang before the rest is not run.
const INCOMPLETE_MAX: usize = 4;
const BYTES: u64 = 256 << 20;

const KNOWN: &str = "tests/conformance-known.toml";

/// Families that must have no failure on the thin LUN, separated by spaces as in the next lists.
const REQUIRED: &str = "ExtendedCopy Inquiry Mandatory ModeSense6 NoMedia Prefetch10 Prefetch16 Read6 Read10 Read12 \
    Read16 ReadCapacity10 ReadCapacity16 ReceiveCopyResults ReportSupportedOpcodes Reserve6 TestUnitReady Unmap \
    Verify10 Verify12 Verify16 Write10 Write12 Write16 WriteSame10 WriteSame16 WriteVerify10 WriteVerify12 \
    WriteVerify16 iSCSIcmdsn iSCSIdatasn iSCSIResiduals iSCSITMF";
const REMOVABLE: &str = "NoMedia PreventAllow StartStopUnit TestUnitReady";
const READ_ONLY: &str = "ReadOnly";

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
    name: String,
    verdict: Verdict,
    reason: String,
}

/// Reads the log of `iscsi-test-cu -v`. The second result is whether the suite completed.
fn parse_log(log: &str) -> (Vec<Test>, bool) {
    let mut tests: Vec<Test> = Vec::new();
    let mut open = false;
    let mut skipped = false;
    let mut complete = false;
    for line in log.lines() {
        let mut rest = line;
        if line.starts_with("Suite: ") || line.starts_with("Run Summary:") {
            complete |= line.starts_with("Run Summary:");
            open = false;
            continue;
        }
        if let Some((name, more)) = line.strip_prefix("  Test: ").and_then(|text| text.split_once(" ...")) {
            tests.push(Test { name: name.to_owned(), verdict: Verdict::Lost, reason: String::new() });
            open = true;
            skipped = false;
            rest = more;
        }
        let Some(test) = tests.last_mut().filter(|_| open || line.starts_with("    ")) else { continue };
        if open {
            // The suite's cleanup follows the verdict on the same line, without a line break.
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
            // CUnit lists the failed assertions below the verdict.
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
        ensure!(KINDS.iter().any(|kind| kind.name == entry.lun), "unknown lun {}", entry.lun);
    }
    Ok(file.known)
}

/// Judges one test; `None` if the result is neither pass nor failure: a known difference, or a skip in a family that is
/// not required.
fn judge(test: &Test, required: bool, known: Option<&Known>) -> Option<Result<()>> {
    let reason = &test.reason;
    match (test.verdict, known) {
        (Verdict::Lost, _) => Some(Err(anyhow!("no verdict: the suite stopped here"))),
        (verdict, Some(known)) if verdict == known.outcome => None,
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

/// Family and name of each test.
type Tests = Vec<(String, String)>;

/// Tests of the suite, by family, as `iscsi-test-cu -l` names them: `ALL.Family.Test`.
fn all_tests() -> Result<Tests> {
    let output = run(program("iscsi-test-cu")?.arg("-l"), LIMIT)?;
    let lines = output.stdout.lines().filter_map(|line| line.trim().strip_prefix("ALL."));
    let tests: Vec<_> = lines.filter_map(|line| line.split_once('.')).collect();
    ensure!(!tests.is_empty(), "iscsi-test-cu -l lists nothing: {output}");
    Ok(tests.into_iter().map(|(family, test)| (family.to_owned(), test.to_owned())).collect())
}

/// Runs one family in its own process: some tests of 1.19 that end early (CompareAndWrite.InvalidDataOutSize) leave a
/// hook in place that alters PDUs, and every 16-byte CDB after them is wrong. The process exits 1 if a test failed; the
/// log says which.
fn run_suite(name: &str, urls: &[String]) -> Result<Output> {
    // Line buffering, so that the log of a suite that hangs shows the place.
    let mut command = program("stdbuf")?;
    command.args(["-oL", "iscsi-test-cu", "-d", "-S", "-v", "-t", name]).args(urls);
    run(&mut command, LIMIT)
}

struct Kind {
    name: &'static str,
    /// Families in which a skip is a failure.
    required: &'static str,
    /// Families that need another kind.
    elsewhere: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind { name: "thin", required: REQUIRED, elsewhere: "PreventAllow StartStopUnit ReadOnly" },
    Kind { name: "removable", required: REMOVABLE, elsewhere: READ_ONLY },
    Kind { name: "read-only", required: READ_ONLY, elsewhere: "" },
];

impl Kind {
    fn is_required(&self, family: &str) -> bool {
        self.required.split(' ').any(|name| name == family)
    }

    /// Whether a family is run on this kind: all except on the read-only LUN, which refuses most of them.
    fn has(&self, family: &str) -> bool {
        self.elsewhere.split(' ').all(|name| name != family)
            && (self.name != "read-only" || self.is_required(family))
    }

    fn group(&self, family: &str) -> Option<(&'static str, usize)> {
        (self.name == "removable" && !self.is_required(family)).then_some(FULL_ONLY)
    }
}

struct Lun {
    served: Served,
    urls: Vec<String>,
    log: File,
    families: BTreeMap<String, BTreeMap<String, Test>>,
    incomplete: Vec<String>,
    _dir: TempDir,
}

impl Lun {
    fn serve(context: &Context, kind: &Kind) -> Result<Self> {
        let dir = scratch()?;
        let path = empty_file(dir.path().join("disk.img"), BYTES)?;
        let (removable, read_only) = (kind.name == "removable", kind.name == "read-only");
        let served = context.serve(&[Disk { removable, read_only, ..Disk::file(&path) }], None)?;
        let url = served.url(0).to_string();
        // The multipath families need a second path: the same URL twice gives two sessions.
        let urls = if kind.name == "read-only" { vec![url] } else { vec![url.clone(), url] };
        let logs = context.repository.join("target/conformance");
        fs::create_dir_all(&logs)?;
        let log = File::create(logs.join(format!("{}.log", kind.name)))?;
        let (families, incomplete) = (BTreeMap::new(), Vec::new());
        Ok(Self { served, urls, log, families, incomplete, _dir: dir })
    }

    /// Result of one test; the first call for a family runs the whole family.
    fn test(&mut self, family: &str, name: &str) -> Result<&Test> {
        if !self.families.contains_key(family) {
            ensure!(self.incomplete.len() <= INCOMPLETE_MAX, "given up: too many families did not end");
            self.served.alive()?;
            let output = run_suite(&format!("ALL.{family}"), &self.urls)?;
            let text = output.text();
            let (tests, complete) = parse_log(&text);
            self.log.write_all(text.as_bytes())?;
            if !complete {
                self.incomplete.push(format!("{family}: {}\n{}", output.ending(), tail(&text, 600)));
            }
            let tests = tests.into_iter().map(|test| (test.name.clone(), test)).collect();
            self.families.insert(family.to_owned(), tests);
        }
        self.families[family].get(name).context("the suite did not come to it")
    }

    fn complete(&mut self) -> Result<()> {
        let complete = match self.incomplete.len() {
            0 => Ok(()),
            count => {
                Err(anyhow!("{count} families did not come to their end\n{}", self.incomplete.join("\n")))
            }
        };
        self.served.blame(complete)
    }

    fn facts(&self) -> serde_json::Value {
        let count = |tests: &[&Test], verdict| tests.iter().filter(|test| test.verdict == verdict).count();
        let row = |tests: &[&Test]| {
            let [pass, fail, skip] =
                [Verdict::Pass, Verdict::Fail, Verdict::Skip].map(|verdict| count(tests, verdict));
            json!({"pass": pass, "fail": fail, "skip": skip})
        };
        let all: Vec<&Test> = self.families.values().flat_map(BTreeMap::values).collect();
        let families = self.families.iter();
        let families: serde_json::Map<_, _> =
            families.map(|(name, tests)| (name.clone(), row(&tests.values().collect::<Vec<_>>()))).collect();
        let mut facts = row(&all);
        facts["tests"] = all.len().into();
        facts["families"] = families.into();
        facts
    }
}

fn lists_are_right(kind: &Kind, tests: &[(String, String)], known: &[Known]) -> Result<()> {
    for family in kind.required.split(' ') {
        ensure!(tests.iter().any(|(found, _)| found == family), "the suite has no family {family}");
    }
    for Known { test, .. } in known.iter().filter(|known| known.lun == kind.name) {
        let has_it = tests.iter().any(|(family, name)| format!("{family}.{name}") == *test);
        ensure!(has_it, "{KNOWN} lists {test}, which the suite does not have");
    }
    Ok(())
}

fn kind_cases(context: &Context, cases: &mut Cases, kind: &Kind, tests: &Tests, known: &[Known]) {
    let mut lun = Scene::new(|| Lun::serve(context, kind));
    for (family, name) in tests.iter().filter(|(family, _)| kind.has(family)) {
        let test = format!("{family}.{name}");
        let known = known.iter().find(|known| known.lun == kind.name && known.test == test);
        let body = || {
            let test = lun.get_mut()?.test(family, name)?;
            judge(test, kind.is_required(family), known).unwrap_or(Ok(()))
        };
        let case = format!("{}/{test}", kind.name);
        match kind.group(family) {
            Some(group) => cases.check_some(group, &case, body),
            None => cases.check(&case, body),
        }
    }
    cases.check_sum(&format!("{}/complete", kind.name), lun.is_made(), || lun.get_mut()?.complete());
    cases.check(&format!("{}/lists", kind.name), || lists_are_right(kind, tests, known));
    if let Some(lun) = lun.into_made() {
        cases.fact(kind.name, lun.facts());
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    // Without the suite there is one case, whose failure names the package to install.
    let Ok(tests) = all_tests() else {
        cases.check("suite", || all_tests().map(drop).context("install libiscsi-bin"));
        return Ok(());
    };
    // The list applies to `hikyaku serve`; tgt is judged without it.
    let known = match context.against {
        Against::Ours => load_known(&context.repository.join(KNOWN))?,
        Against::Tgt => Vec::new(),
    };
    for kind in &KINDS {
        kind_cases(context, cases, kind, &tests, &known);
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
        Test { name: "T".into(), verdict, reason: "r".into() }
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
