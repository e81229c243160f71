//! `docs/evidence/bench-NAME.json` in groups, each with its own commit, date and machine, so that a long table can be
//! measured in several quiet periods.

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use harness::evidence;
use steps::repository;

/// Puts one group into the record `name`, in place of an earlier measurement of the group. Removes groups that are not
/// in `known`. Returns all groups.
pub(super) fn keep(name: &str, measured: Value, known: &[&str]) -> Result<Vec<Value>> {
    let path = repository().join(format!("docs/evidence/{name}.json"));
    let kept: Value = match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?,
        Err(_) => Value::Null,
    };
    let header = evidence::header(name);
    let groups =
        merge(kept["groups"].as_array().cloned().unwrap_or_default(), stamp(measured, &header), known);
    let mut content: Map<String, Value> =
        header.into_iter().filter(|(key, _)| ["schema", "name"].contains(&key.as_str())).collect();
    content.insert("groups".into(), json!(groups));
    evidence::write(name, &content)?;
    Ok(groups)
}

fn stamp(mut measured: Value, header: &Map<String, Value>) -> Value {
    for key in ["date", "commit", "machine"] {
        measured[key] = header.get(key).cloned().unwrap_or_default();
    }
    measured
}

/// `kept` with `new` in its place, in the order of `known`.
fn merge(kept: Vec<Value>, new: Value, known: &[&str]) -> Vec<Value> {
    let at = |group: &Value| known.iter().position(|name| group["group"] == *name);
    let mut groups: Vec<Value> = kept.into_iter().filter(|group| group["group"] != new["group"]).collect();
    groups.push(new);
    groups.retain(|group| at(group).is_some());
    groups.sort_by_key(at);
    groups
}

#[cfg(test)]
mod tests {
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
        let header = evidence::header("bench-sealed");
        let stamped = stamp(json!({ "group": "a" }), &header);
        assert!(["date", "commit", "machine"].iter().all(|key| !stamped[*key].is_null()), "{stamped}");
    }
}
