//! Errors of the TOML parser in words about keys and values, with an example; and all errors of a file instead of the first.

mod problems;

use std::ops::Range;

pub(crate) use self::problems::{NO_LUN, NO_TARGET, NOT_OF_TARGET, Noted, Rest, is_placeholder, problems};
use crate::advice;
use crate::config::Wrong;

/// Bound of the errors that are reported of one file.
pub(crate) const PROBLEMS_MAX: usize = 20;

/// Each key of the configuration and of the peers file, with a value as it is written.
const EXAMPLES: &[(&str, &str)] = &[
    ("acl", "[[target.acl]] on a line of its own, with its keys below"),
    ("address", "\"192.0.2.1:3260\""),
    ("advertise", "\"192.0.2.1:3260\""),
    ("allow-user", "[\"backup\"]"),
    ("chap-user", "\"backup\""),
    ("drain-timeout", "\"10s\""),
    ("endpoint", "\"/srv/disk.img\""),
    ("identity", "\"secrets/server\""),
    ("initiator", "\"iqn.2026-11.com.example:host\""),
    ("iqn", "\"iqn.2026-11.com.example:disks\""),
    ("listen", "[\"0.0.0.0:3260\"]"),
    ("lun", "0"),
    ("luns", "[0, 1]"),
    ("metrics", "\"127.0.0.1:9260\""),
    ("metrics-token-file", "\"secrets/metrics\""),
    ("mode", "\"ro\""),
    ("mutual-chap-user", "\"storage\""),
    ("mutual-secret-file", "\"secrets/storage\""),
    ("name", "\"laptop\""),
    ("peer", "\"laptop\""),
    ("peers", "\"peers.toml\""),
    ("psk-file", "\"secrets/laptop.psk\""),
    ("public-key", "\"6IB3dX4mJQMqxHKb7bLYL4ZlvVQcsGGDHmPmUJBjgnM=\""),
    ("seal", "\"require\""),
    ("secret-file", "\"secrets/backup\""),
    ("serial", "\"VM-1\""),
    ("storage", "[\"/srv/hikyaku\"]"),
    ("tls-certificate", "\"tls/server.pem\""),
    ("tls-key", "\"secrets/server-tls.key\""),
    ("tpgt", "1"),
];

/// The kinds of values as serde names them, longest first where one begins with the other.
const KINDS: &[(&str, &str)] = &[
    ("string", "text in quotes"),
    ("integer", "a number"),
    ("floating point", "a number with a fraction"),
    ("boolean", "true or false"),
    ("sequence", "a list in brackets"),
    ("map", "a table"),
    ("datetime", "a date"),
];

fn example(key: &str) -> Option<String> {
    let (_, value) = EXAMPLES.iter().find(|(name, _)| *name == key)?;
    Some(if value.starts_with("[[") {
        format!("write {value}")
    } else {
        format!("write for example {key} = {value}")
    })
}

/// The key that a line assigns a value to.
fn key_of(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim().trim_matches('"');
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    is_key.then_some(key)
}

/// The line of a byte, without its end.
fn line_range(text: &str, byte: usize) -> Range<usize> {
    let byte = byte.min(text.len());
    let start = text.as_bytes()[..byte].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let end =
        text.as_bytes()[byte..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| byte + at);
    start..end
}

/// An error of the parser as an error of this program.
pub(crate) fn parser(text: &str, error: &toml::de::Error) -> Wrong {
    let at = error.span().unwrap_or_default();
    let line = text.get(line_range(text, at.start)).unwrap_or_default();
    let words = words(error.message(), key_of(line));
    (at, words)
}

/// The names in backquotes in a message.
fn names(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

fn words(message: &str, key: Option<&str>) -> String {
    if message.starts_with("unknown field") {
        let names = names(message);
        let (name, known) = names.split_first().map_or(("", &[][..]), |(name, known)| (*name, known));
        let begins = || known.iter().copied().find(|other| name.len() >= 3 && other.starts_with(name));
        return match advice::nearest(name, known).or_else(begins) {
            Some(meant) => format!("unknown key {name}; did you mean {meant}?"),
            None => format!("unknown key {name}; known here: {}", known.join(", ")),
        };
    }
    if message.starts_with("missing field") {
        let name = names(message).first().copied().unwrap_or_default();
        let example = example(name).map(|example| format!(": {example}")).unwrap_or_default();
        return format!("the key {name} is missing{example}");
    }
    let wrong = ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    let Some((found, expected)) = wrong.and_then(|rest| rest.split_once(", expected ")) else {
        return message.to_owned();
    };
    let (kind, words) =
        KINDS.iter().find(|(kind, _)| found.starts_with(kind)).copied().unwrap_or((found, found));
    let value = found.strip_prefix(kind).unwrap_or_default().trim().trim_matches('`');
    let value = if value.is_empty() { words.to_owned() } else { format!("{value} is {words}") };
    let needed = match expected {
        "a string" | "path string" => "text in quotes",
        "u16" => "a number from 0 to 65535",
        "a sequence" => "a list in brackets",
        other if other.starts_with("struct") || other == "a map" => "a table",
        other => other,
    };
    let example = key.and_then(example).map(|example| format!("; {example}")).unwrap_or_default();
    let of = key.map(|key| format!("{key}: ")).unwrap_or_default();
    format!("{of}{value}, and {needed} is needed{example}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_s_words_become_words_about_keys_and_values() {
        for (message, key, expected) in [
            (
                "invalid type: integer `5`, expected a string",
                Some("drain-timeout"),
                "drain-timeout: 5 is a number, and text in quotes is needed; write for example drain-timeout = \"10s\"",
            ),
            (
                "invalid type: string \"zero\", expected u16",
                Some("lun"),
                "lun: \"zero\" is text in quotes, and a number from 0 to 65535 is needed; write for example lun = 0",
            ),
            (
                "invalid type: string \"0\", expected a sequence",
                Some("luns"),
                "luns: \"0\" is text in quotes, and a list in brackets is needed; write for example luns = [0, 1]",
            ),
            (
                "unknown field `drain-time`, expected one of `listen`, `drain-timeout`",
                None,
                "unknown key drain-time; did you mean drain-timeout?",
            ),
            ("unknown field `x`, expected `a` or `b`", None, "unknown key x; known here: a, b"),
            (
                "missing field `endpoint`",
                None,
                "the key endpoint is missing: write for example endpoint = \"/srv/disk.img\"",
            ),
            ("string values must be quoted", None, "string values must be quoted"),
        ] {
            assert_eq!(words(message, key), expected, "{message}");
        }
    }

    #[test]
    fn examples_are_toml() {
        for (key, value) in EXAMPLES.iter().filter(|(_, value)| !value.starts_with("[[")) {
            let line = format!("{key} = {value}");
            assert!(line.parse::<toml::Table>().is_ok(), "{line}");
        }
    }
}
