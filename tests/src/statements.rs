//! The tables of docs/SEAL.md sections 7 and 9: each statement has tests, and each named test exists.

use std::path::Path;

use anyhow::{Context as _, Result};

use steps::repository;

/// Statements of a section's second table, each with the names in its last column.
fn statements(text: &str, section: &str) -> Vec<(String, Vec<String>)> {
    let lines = text.lines().skip_while(|line| !line.starts_with(section)).skip(1);
    let lines = lines.take_while(|line| !line.starts_with("## "));
    let rows = lines.skip_while(|line| !line.starts_with("| statement ")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let row = row.trim().trim_matches('|');
        let (statement, tests) = row.rsplit_once('|').unwrap_or((row, ""));
        let names = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (statement.trim().to_owned(), names)
    })
    .collect()
}

/// Appends all sources below a directory to `text`.
fn sources(directory: &Path, text: &mut String) -> Result<()> {
    for entry in std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Whether a name is a test's function, a case of a family or, with a dash at its end, the beginning of several cases.
fn exists(name: &str, crates: &str, families: &str) -> bool {
    let is_function = crates.contains(&format!("fn {name}("));
    let case = if name.ends_with('-') { format!("\"{name}") } else { format!("\"{name}\"") };
    is_function || families.contains(&case)
}

#[test]
fn every_statement_of_sections_7_and_9_names_tests_that_exist() {
    let root = repository();
    let text = std::fs::read_to_string(root.join("docs/SEAL.md")).unwrap();
    let (mut crates, mut families) = (String::new(), String::new());
    sources(&root.join("crates"), &mut crates).unwrap();
    sources(&root.join("tests/src/family"), &mut families).unwrap();
    let [policy, next_key] = ["## 7. ", "## 9. "].map(|section| statements(&text, section));
    assert!(policy.len() > 5 && next_key.len() > 4, "a table is gone: {policy:?} {next_key:?}");
    for (statement, names) in policy.into_iter().chain(next_key) {
        assert!(!names.is_empty(), "no test shows: {statement}");
        for name in names {
            assert!(exists(&name, &crates, &families), "no test {name}, which is to show: {statement}");
        }
    }
}

#[test]
fn a_name_is_a_function_or_a_case() {
    let (crates, families) = ("fn one() {", r#"cases.check("two-a", format!("three-{x}")"#);
    let found = |name| exists(name, crates, families);
    assert!(found("one") && found("two-a") && found("three-"));
    assert!(!found("on") && !found("two") && !found("three") && !found("four-"));
    let table = "## 7. x\n| statement | shown by |\n|---|---|\n| a | `one`, `two-a` |\n| b | |\n\n## 8. y\n| c | `d` |\n";
    let rows = [("a".into(), vec!["one".into(), "two-a".into()]), ("b".into(), vec![])];
    assert_eq!(statements(table, "## 7. "), rows);
}
