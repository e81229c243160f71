//! The families that a change touches, by the paths of its files: `ci` draws larger samples of them.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use steps::repository;

/// The commit that CI has examined last; without the variable the last [`COMMITS`] commits count as the change.
const BASE: &str = "HIKYAKU_CI_BASE";
const COMMITS: &str = "20";
/// A change that touches more families is drawn by all alike: tripled samples of them would double the whole run.
const FAMILIES_MAX: usize = 6;

/// Beginning of a path, and the families that examine the code below it. The first match counts; a path that matches
/// none belongs to all families alike.
const TABLE: &[(&str, &[&str])] = &[
    ("crates/cli/src/command/watch/", &["watch"]),
    ("crates/cli/src/command/analyze", &["analyze", "json", "messages"]),
    ("crates/cli/src/command/volume/", &["luks2", "json"]),
    ("crates/cli/", &["cli-contract", "service", "messages", "json"]),
    ("crates/area/src/ring.rs", &["net"]),
    ("crates/confine/", &["attack", "net"]),
    ("crates/host/", &["since", "cli-contract", "messages"]),
    ("crates/inet/", &["net"]),
    ("crates/iscsi/", &["bad-input", "conformance", "libiscsi-tools"]),
    ("crates/job/src/report/", &["report"]),
    ("crates/job/", &["mover", "copy-matrix", "since", "json"]),
    ("crates/kem/", &["sealed"]),
    ("crates/monitor/src/probe/", &["watch"]),
    ("crates/monitor/src/command/", &["analyze"]),
    ("crates/monitor/src/flow/", &["analyze", "fuzz"]),
    ("crates/monitor/src/capture/", &["analyze", "fuzz"]),
    ("crates/monitor/src/analysis/", &["analyze"]),
    ("crates/monitor/src/record/", &["watch", "fuzz"]),
    ("crates/mover/", &["mover", "copy-matrix", "xcopy"]),
    ("crates/net/", &["net"]),
    ("crates/nbd/", &["nbd", "copy-matrix"]),
    ("crates/node/src/initiator/", &["kill", "tgt", "torture"]),
    ("crates/node/src/stream/", &["sealed", "bad-input"]),
    ("crates/node/src/target/", &["sessions", "bad-input", "xcopy", "service"]),
    ("crates/passthrough/", &["copy-matrix"]),
    ("crates/scsi/", &["conformance", "libiscsi-tools", "xcopy"]),
    ("crates/seal/", &["sealed", "attack"]),
    ("crates/torture/", &["torture", "sim"]),
    ("crates/volume/", &["luks2"]),
    ("crates/xts/", &["luks2"]),
    ("crates/block/src/layer/volume/", &["luks2"]),
    ("testing/fuzz/", &["fuzz"]),
    ("testing/tcp-script/", &["net"]),
    ("testing/sim/", &["sim"]),
    ("contrib/", &["install", "service"]),
    ("packaging/", &["install", "systemd"]),
    ("docs/guides/open-iscsi.md", &["systemd"]),
    ("docs/guides/", &["guides"]),
    // No family of a sample runs this.
    ("benches/", &[]),
    ("docs/", &[]),
    ("testing/mutants/", &[]),
    ("tools/", &[]),
    ("README.md", &[]),
    ("CHANGELOG.md", &[]),
];

/// The families of the paths; empty if samples of all families are to be alike.
fn families<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut found = BTreeSet::new();
    for path in paths {
        let Some((_, names)) = TABLE.iter().find(|(prefix, _)| path.starts_with(prefix)) else {
            return Vec::new();
        };
        found.extend(*names);
    }
    if found.len() > FAMILIES_MAX {
        return Vec::new();
    }
    found.into_iter().map(str::to_owned).collect()
}

fn git(arguments: &[&str]) -> Result<String> {
    let output =
        Command::new("git").args(arguments).current_dir(repository()).output().context("start git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {error}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// Paths that the working tree changes since the base, and the base.
fn changed() -> Result<(Vec<String>, String)> {
    let base = match std::env::var(BASE) {
        Ok(base) => base,
        // A short history ends at its first commit.
        Err(_) => git(&["rev-list", "--first-parent", "--max-count", COMMITS, "HEAD"])?
            .lines()
            .next_back()
            .context("no commit")?
            .to_owned(),
    };
    let changed = git(&["diff", "--name-only", "--merge-base", &base])?;
    Ok((changed.lines().map(str::to_owned).collect(), base))
}

/// The families that the working tree touches since the base; empty if samples of all families are to be alike.
pub(crate) fn since_base() -> Result<Vec<String>> {
    let (changed, base) = changed()?;
    let found = families(changed.iter().map(String::as_str));
    let whose = if found.is_empty() { "all families alike".to_owned() } else { found.join(", ") };
    println!("{} files changed since {base}; larger samples: {whose}", changed.len());
    Ok(found)
}

/// Whether the working tree changes a path that begins with one of `prefixes`; `true` if that is not known.
pub(crate) fn is_touched(prefixes: &[&str]) -> bool {
    changed().map_or(true, |(changed, _)| begins(&changed, prefixes))
}

fn begins(paths: &[String], prefixes: &[&str]) -> bool {
    paths.iter().any(|path| prefixes.iter().any(|prefix| path.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use harness::family::FAMILIES;

    use super::*;

    #[test]
    fn paths_lead_to_families() {
        for (paths, expected) in [
            (&["crates/nbd/src/lib.rs", "docs/HACKING.md"][..], &["copy-matrix", "nbd"][..]),
            (&["docs/HACKING.md"], &[]),
            (&[], &[]),
            // Unknown paths, and too many families.
            (&["crates/nbd/src/lib.rs", "crates/io/src/lib.rs"], &[]),
            (&["crates/nbd/src/lib.rs", "Cargo.lock"], &[]),
            (&["crates/mover/a", "crates/job/a", "crates/iscsi/a"], &[]),
        ] {
            assert_eq!(families(paths.iter().copied()), expected, "{paths:?}");
        }
    }

    #[test]
    fn a_prefix_is_the_beginning_of_a_path() {
        let paths = ["crates/monitor/src/lib.rs".to_owned(), "docs/monitor".to_owned()];
        assert!(begins(&paths, &["Cargo.lock", "crates/monitor/"]));
        assert!(!begins(&paths, &["monitor/", "Cargo.lock"]) && !begins(&[], &["crates/"]));
    }

    #[test]
    fn the_table_names_families_and_directories_that_exist() {
        for (prefix, names) in TABLE {
            assert!(repository().join(prefix).exists(), "{prefix}");
            for name in *names {
                assert!(FAMILIES.iter().any(|family| family.name == *name), "{prefix}: {name}");
            }
        }
    }
}
