//! The schemas of the program's JSON, `docs/schema/*.json`, and whether a value matches one.
//!
//! They use a part of JSON Schema 2020-12, and an unknown keyword is an error. Readers must accept fields that a later
//! release adds; [`Schema::problems`] reports them, so that no field is printed that its schema does not describe.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Keywords that only inform.
const REMARKS: [&str; 4] = ["$schema", "title", "description", "$defs"];
/// Problems that are reported of one value.
const PROBLEMS_MAX: usize = 20;

#[derive(Debug)]
pub struct Schema {
    root: Value,
}

impl Schema {
    /// The schema with this name in `docs/schema`.
    pub fn load(name: &str) -> Result<Self> {
        Self::read(&directory().join(format!("{name}.json")))
    }

    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Self { root: serde_json::from_str(&text).with_context(|| path.display().to_string())? })
    }

    /// Fails with each place of `value` that does not match.
    pub fn check(&self, value: &Value) -> Result<()> {
        let problems = self.problems(value);
        ensure!(problems.is_empty(), "{}\n{value}", problems.join("\n"));
        Ok(())
    }

    pub fn problems(&self, value: &Value) -> Vec<String> {
        let mut problems = Vec::new();
        self.compare(&self.root, value, "", &mut problems);
        problems.truncate(PROBLEMS_MAX);
        problems
    }

    fn definition(&self, reference: &str) -> Option<&Value> {
        self.root["$defs"].get(reference.strip_prefix("#/$defs/")?)
    }

    fn compare(&self, schema: &Value, value: &Value, at: &str, problems: &mut Vec<String>) {
        let mut report =
            |text: String| problems.push(format!("{}: {text}", if at.is_empty() { "/" } else { at }));
        let Some(keywords) = schema.as_object() else { return report(format!("not a schema: {schema}")) };
        for (keyword, expected) in keywords {
            let mut report =
                |text: String| problems.push(format!("{}: {text}", if at.is_empty() { "/" } else { at }));
            match keyword.as_str() {
                word if REMARKS.contains(&word) => {}
                "$ref" => match expected.as_str().and_then(|reference| self.definition(reference)) {
                    Some(schema) => self.compare(schema, value, at, problems),
                    None => report(format!("no definition {expected}")),
                },
                "anyOf" => {
                    let all = expected.as_array().into_iter().flatten();
                    let mut best: Option<Vec<String>> = None;
                    for schema in all {
                        let mut found = Vec::new();
                        self.compare(schema, value, at, &mut found);
                        if best.as_ref().is_none_or(|best| found.len() < best.len()) {
                            best = Some(found);
                        }
                    }
                    problems.extend(best.unwrap_or_else(|| vec![format!("{at}: anyOf has no schema")]));
                }
                "type" => {
                    let allowed =
                        expected.as_array().map_or_else(|| vec![expected], |all| all.iter().collect());
                    if !allowed.iter().any(|name| name.as_str().is_some_and(|name| is_of_type(value, name))) {
                        report(format!("{value} is not of the type {expected}"));
                    }
                }
                "const" if value != expected => report(format!("{value} is not {expected}")),
                "enum" if !expected.as_array().is_some_and(|all| all.contains(value)) => {
                    report(format!("{value} is none of {expected}"));
                }
                "minimum" if value.as_f64() < expected.as_f64() && value.is_number() => {
                    report(format!("{value} is less than {expected}"));
                }
                "maximum" if value.as_f64() > expected.as_f64() && value.is_number() => {
                    report(format!("{value} is more than {expected}"));
                }
                "const" | "enum" | "minimum" | "maximum" => {}
                "required" => {
                    let Some(object) = value.as_object() else { continue };
                    let names = expected.as_array().into_iter().flatten().filter_map(Value::as_str);
                    names
                        .filter(|name| !object.contains_key(*name))
                        .for_each(|name| report(format!("{name} is missing")));
                }
                "properties" => {
                    for (name, value) in value.as_object().into_iter().flatten() {
                        match expected.get(name) {
                            Some(schema) => self.compare(schema, value, &format!("{at}/{name}"), problems),
                            None => problems.push(format!("{at}/{name}: the schema does not describe it")),
                        }
                    }
                }
                "additionalProperties" => {
                    for (name, value) in value.as_object().into_iter().flatten() {
                        self.compare(expected, value, &format!("{at}/{name}"), problems);
                    }
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.compare(expected, item, &format!("{at}/{index}"), problems);
                    }
                }
                other => report(format!("the keyword {other} is not supported")),
            }
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        _ => false,
    }
}

fn directory() -> PathBuf {
    steps::repository().join("docs/schema")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names() -> Vec<String> {
        let entries = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<String> =
            entries.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Calls `visit` with each schema inside of `schema`, itself included.
    fn walk(schema: &Value, visit: &mut impl FnMut(&Value)) {
        visit(schema);
        let nested =
            ["properties", "$defs"].iter().flat_map(|name| schema[name].as_object().into_iter().flatten());
        nested.for_each(|(_, schema)| walk(schema, visit));
        schema["anyOf"].as_array().into_iter().flatten().for_each(|schema| walk(schema, visit));
        for name in ["items", "additionalProperties"] {
            if let Some(schema) = schema.get(name) {
                walk(schema, visit);
            }
        }
    }

    #[test]
    fn each_schema_is_sound_and_has_its_line_in_the_document() {
        const KNOWN: [&str; 12] = [
            "$ref",
            "anyOf",
            "type",
            "const",
            "enum",
            "minimum",
            "maximum",
            "required",
            "properties",
            "additionalProperties",
            "items",
            "$defs",
        ];
        let document = fs::read_to_string(directory().with_file_name("JSON.md")).unwrap();
        for name in names() {
            let schema = Schema::load(&name).unwrap();
            assert!(document.contains(&format!("(schema/{name}.json)")), "{name} is not in JSON.md");
            walk(&schema.root, &mut |inner| {
                for keyword in inner.as_object().unwrap().keys() {
                    let is_known = KNOWN.contains(&keyword.as_str()) || REMARKS.contains(&keyword.as_str());
                    assert!(is_known, "{name}: {keyword}");
                }
                if let Some(reference) = inner.get("$ref") {
                    assert!(schema.definition(reference.as_str().unwrap()).is_some(), "{name}: {reference}");
                }
                for required in inner["required"].as_array().into_iter().flatten() {
                    let property = inner["properties"].get(required.as_str().unwrap());
                    assert!(property.is_some(), "{name}: {required} is required and not described");
                }
                for (property, of) in inner["properties"].as_object().into_iter().flatten() {
                    let says = of.get("description").is_some() || of.get("$ref").is_some();
                    assert!(says, "{name}: {property} is not explained");
                }
            });
        }
    }

    #[test]
    fn each_deviation_is_a_problem() {
        let schema = Schema {
            root: json!({
                "$defs": { "size": { "type": "integer", "minimum": 0 } },
                "anyOf": [{
                    "type": "object",
                    "properties": {
                        "a": { "$ref": "#/$defs/size" },
                        "b": { "type": ["string", "null"], "enum": ["x", null] },
                        "c": { "type": "array", "items": { "const": true } },
                    },
                    "required": ["a"],
                }],
            }),
        };
        let good = [json!({ "a": 1 }), json!({ "a": 0, "b": null, "c": [true, true] })];
        for value in good {
            assert_eq!(schema.problems(&value), Vec::<String>::new(), "{value}");
        }
        for (value, problem) in [
            (json!({}), "/: a is missing"),
            (json!({ "a": "1" }), "/a: \"1\" is not of the type \"integer\""),
            (json!({ "a": 1.5 }), "/a: 1.5 is not of the type \"integer\""),
            (json!({ "a": -1 }), "/a: -1 is less than 0"),
            (json!({ "a": 1, "b": "y" }), "/b: \"y\" is none of [\"x\",null]"),
            (json!({ "a": 1, "c": [true, false] }), "/c/1: false is not true"),
            (json!({ "a": 1, "d": 1 }), "/d: the schema does not describe it"),
            (json!([]), "/: [] is not of the type \"object\""),
        ] {
            assert_eq!(schema.problems(&value), [problem], "{value}");
        }
        let wrong = |schema: Value| Schema { root: schema }.problems(&json!(1));
        assert_eq!(wrong(json!({ "pattern": "x" })), ["/: the keyword pattern is not supported"]);
        assert_eq!(wrong(json!({ "$ref": "#/$defs/x" })), ["/: no definition \"#/$defs/x\""]);
    }
}
