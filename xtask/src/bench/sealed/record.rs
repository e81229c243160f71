//! `docs/evidence/bench-sealed.json`: every group as it was last measured, with its own commit, date and machine, so that a long
//! table can be gathered in several quiet moments.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::groups::Group;
use crate::evidence;
use crate::steps::repository;

const NAME: &str = "bench-sealed";

/// Puts one group into the record, in the place of the same group measured earlier; the others stay as they are, but for
/// those that are not among `known` any more. Returns all of them.
pub(super) fn keep(measured: Value, known: &[&str]) -> Result<Vec<Value>> {
    let path = repository().join(format!("docs/evidence/{NAME}.json"));
    let kept: Value = match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?,
        Err(_) => Value::Null,
    };
    let header = evidence::header(NAME);
    let groups =
        merge(kept["groups"].as_array().cloned().unwrap_or_default(), stamp(measured, &header), known);
    let mut content: Map<String, Value> =
        header.into_iter().filter(|(key, _)| ["schema", "name"].contains(&key.as_str())).collect();
    content.insert("groups".into(), json!(groups));
    evidence::write(NAME, &content)?;
    Ok(groups)
}

/// Says of a group when, of what and on what it was measured.
fn stamp(mut measured: Value, header: &Map<String, Value>) -> Value {
    for key in ["date", "commit", "machine"] {
        measured[key] = header.get(key).cloned().unwrap_or_default();
    }
    measured
}

/// `kept` with `new` in its place; in the order of `known`.
fn merge(kept: Vec<Value>, new: Value, known: &[&str]) -> Vec<Value> {
    let at = |group: &Value| known.iter().position(|name| group["group"] == *name);
    let mut groups: Vec<Value> = kept.into_iter().filter(|group| group["group"] != new["group"]).collect();
    groups.push(new);
    groups.retain(|group| at(group).is_some());
    groups.sort_by_key(at);
    groups
}

/// The groups called `ahead-*` side by side, a line for each suite: MB/s with and without sealing ahead.
pub(super) fn ahead_table(kept: &[Value], groups: &[Group], write: bool) -> String {
    let shown: Vec<(&Group, &Value)> = groups
        .iter()
        .filter(|group| group.name.starts_with("ahead-") && group.shape.write == write)
        .filter_map(|group| Some((group, kept.iter().find(|kept| kept["group"] == *group.name)?)))
        .collect();
    let Some((first, _)) = shown.first() else { return String::new() };
    let mut text = format!("\n| {}, MB/s sealed ahead / not ahead |", if write { "writes" } else { "reads" });
    for (group, _) in &shown {
        write!(text, " {} KiB |", group.shape.block >> 10).expect("a String takes everything");
    }
    text += &format!("\n|---|{}", "---|".repeat(shown.len()));
    for claim in &first.claims {
        write!(text, "\n| {} |", claim.row.name()).expect("as before");
        for (_, kept) in &shown {
            let median = |name: &str| {
                let row = kept["rows"].as_array()?.iter().find(|row| row["row"] == name)?;
                row["mb_per_s"]["median"].as_f64()
            };
            let [with, without] = [claim.row, claim.peer].map(|row| median(row.name()).unwrap_or(f64::NAN));
            write!(text, " {with:.0} / {without:.0}, {:.2} |", with / without).expect("as before");
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::groups::groups;
    use super::*;

    fn group(name: &str, commit: &str) -> Value {
        json!({ "group": name, "commit": commit })
    }

    #[test]
    fn a_group_replaces_itself_and_no_other() {
        let kept = vec![group("b", "1"), group("gone", "1"), group("a", "1")];
        let all = merge(kept, group("b", "2"), &["a", "b", "c"]);
        assert_eq!(all, [group("a", "1"), group("b", "2")]);
        let all = merge(all, group("c", "3"), &["a", "b", "c"]);
        assert_eq!(all, [group("a", "1"), group("b", "2"), group("c", "3")]);
    }

    #[test]
    fn a_group_says_when_it_was_measured() {
        let header = evidence::header(NAME);
        let stamped = stamp(json!({ "group": "a" }), &header);
        assert!(["date", "commit", "machine"].iter().all(|key| !stamped[*key].is_null()), "{stamped}");
    }

    #[test]
    fn groups_of_sealing_ahead_stand_side_by_side() {
        let row = |name: &str, median: f64| json!({ "row": name, "mb_per_s": { "median": median } });
        let kept = [
            json!({ "group": "ahead-read-32K-qd1", "rows": [row("gcm", 500.0), row("gcm, not ahead", 250.0)] }),
        ];
        let table = ahead_table(&kept, &groups(), false);
        assert!(table.contains("sealed ahead / not ahead | 32 KiB |\n"), "{table}");
        assert!(table.contains("\n| gcm | 500 / 250, 2.00 |\n"), "{table}");
        assert!(ahead_table(&kept, &groups(), true).is_empty());
    }
}
