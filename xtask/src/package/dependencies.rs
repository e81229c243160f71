//! The crates in the program, with their licences, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use steps::cargo;

/// A crate from crates.io that the program contains, or that builds it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Dependency {
    name: String,
    version: String,
    licence: String,
    /// Directory of its sources.
    sources: PathBuf,
}

/// All crates below `hikyaku` for this target, without those for tests and without the workspace's own; sorted.
pub(super) fn of_program(triple: &str) -> Result<Vec<Dependency>> {
    let output =
        cargo(&["metadata", "--locked", "--format-version", "1", "--filter-platform", triple]).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("output of cargo metadata")?;
    of_metadata(&metadata)
}

fn of_metadata(metadata: &Value) -> Result<Vec<Dependency>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: HashMap<String, Value> =
        array(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let nodes: HashMap<String, Value> =
        array(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let root =
        packages.iter().find(|(_, package)| package["name"] == "hikyaku" && package["source"].is_null());
    let mut waiting = vec![root.context("no package hikyaku")?.0.clone()];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        for dependency in array(&nodes[&id]["deps"]) {
            // The kind is null for a normal dependency, else "build" or "dev".
            if array(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev") {
                waiting.push(text(&dependency["pkg"]));
            }
        }
    }
    let foreign = seen.iter().map(|id| &packages[id]).filter(|package| !package["source"].is_null());
    let mut found: Vec<Dependency> = foreign
        .map(|package| Dependency {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            sources: Path::new(&text(&package["manifest_path"])).parent().unwrap_or(Path::new("")).to_owned(),
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Name, version and licence, a line each, tab-separated under a heading.
pub(super) fn table(crates: &[Dependency]) -> String {
    let mut table = String::from("name\tversion\tlicence\n");
    for Dependency { name, version, licence, .. } in crates {
        writeln!(table, "{name}\t{version}\t{licence}").expect("a string");
    }
    table
}

/// The texts of the licences in the crates' sources, each once, under the names of the crates that have it.
pub(super) fn licence_texts(crates: &[Dependency]) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Dependency { name, version, sources, .. } in crates {
        let entries = fs::read_dir(sources).with_context(|| format!("read {}", sources.display()))?;
        let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        files.sort_unstable();
        for file in files.iter().filter(|file| is_licence(file)) {
            let text = String::from_utf8_lossy(&fs::read(file)?).replace('\r', "");
            texts.entry(text.trim().to_owned()).or_default().push(format!("{name} {version}"));
        }
    }
    let mut parts: Vec<String> = texts
        .into_iter()
        .map(|(text, mut names)| {
            names.dedup();
            format!("{}\n\n{text}\n", names.join(", "))
        })
        .collect();
    parts.sort_unstable();
    Ok(parts.join(&format!("\n{}\n\n", "-".repeat(80))))
}

fn is_licence(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    let begins = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    file.is_file() && begins.iter().any(|begin| name.starts_with(begin)) && !name.ends_with(".RS")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_list_holds_what_the_program_contains_and_nothing_for_tests() {
        let package = |name: &str, source: Value| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source, "manifest_path": format!("/x/{name}/Cargo.toml") });
        let io = || json!("registry");
        let node = |name: &str, deps: Value| json!({ "id": name, "deps": deps });
        let kind = |kind: Value| json!([{ "kind": kind }]);
        let metadata = json!({
            "packages": [
                package("hikyaku", Value::Null), package("own", Value::Null), package("b", io()), package("a", io()),
                package("builder", io()), package("tests", io()), package("elsewhere", io()),
            ],
            "resolve": { "nodes": [
                node("hikyaku", json!([
                    { "pkg": "own", "dep_kinds": kind(Value::Null) }, { "pkg": "tests", "dep_kinds": kind(json!("dev")) },
                ])),
                node("own", json!([{ "pkg": "b", "dep_kinds": kind(Value::Null) }])),
                node("b", json!([
                    { "pkg": "a", "dep_kinds": kind(Value::Null) }, { "pkg": "builder", "dep_kinds": kind(json!("build")) },
                ])),
                node("a", json!([])), node("builder", json!([])), node("tests", json!([])), node("elsewhere", json!([])),
            ] },
        });
        let found = of_metadata(&metadata).unwrap();
        let names: Vec<&str> = found.iter().map(|dependency| dependency.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "builder"]);
        assert_eq!(table(&found[..1]), "name\tversion\tlicence\na\t1.0.0\tMIT\n");
    }
}
