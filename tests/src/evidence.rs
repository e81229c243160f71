//! Results of a full run: `docs/evidence/NAME.json`, written by the run that measured them.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use crate::procfs::{cores, cpu_model, kernel_release};
use steps::repository;
use steps::settings::Tally;

/// Version of these files; fields are only added.
const SCHEMA: u32 = 1;

fn first_line(command: &mut Command) -> String {
    command
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.lines().next().map(str::to_owned))
        .unwrap_or_default()
}

/// The commit of the working tree, with a mark if files differ from it.
pub fn commit() -> String {
    let root = repository();
    let mut id = first_line(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(&root));
    if id.is_empty() {
        return "unknown".to_owned();
    }
    // Files that a run itself writes do not count as changes.
    let changes = ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/evidence"];
    if !first_line(Command::new("git").args(changes).current_dir(&root)).is_empty() {
        id.push_str("-modified");
    }
    id
}

/// Schema version, machine, commit and date.
pub fn header(name: &str) -> Map<String, Value> {
    let date = first_line(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]));
    let value = json!({
        "schema": SCHEMA,
        "name": name,
        "date": date,
        "commit": commit(),
        "machine": {"cpu": cpu_model(), "kernel": kernel_release(), "cores": cores()},
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

pub fn write(name: &str, content: &Map<String, Value>) -> Result<()> {
    let root = repository();
    let dir = root.join("docs/evidence");
    fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{name}.json"));
    // Messages quote command lines: where the checkout lies is no result.
    let mut text = serde_json::to_string_pretty(content)?.replace(&format!("{}/", root.display()), "");
    text.push('\n');
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    println!("wrote docs/evidence/{name}.json");
    Ok(())
}

pub fn write_family(tally: &Tally, facts: &Map<String, Value>, seed: u64) -> Result<()> {
    let mut content = header(&tally.family);
    let failures = tally.failures.iter().map(|(case, message)| json!({"case": case, "message": message}));
    let figures = json!({
        "seeds": [seed], "passed": tally.passed, "failed": tally.failures.len(),
        "seconds": (tally.seconds * 10.0).round() / 10.0, "failures": failures.collect::<Vec<_>>(),
        "notes": tally.notes, "facts": facts,
    });
    content.extend(figures.as_object().cloned().unwrap_or_default());
    write(&tally.family, &content)
}
