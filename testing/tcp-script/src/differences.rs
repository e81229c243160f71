//! `differences.toml`: scripts that a stack does not pass, and why.

use serde::Deserialize;

const FILE: &str = include_str!("../differences.toml");

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Name of the script.
    pub script: String,
    /// `kernel` or `engine`.
    pub stack: String,
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    difference: Vec<Difference>,
}

/// # Errors
/// What is wrong in the file.
pub fn all() -> Result<Vec<Difference>, String> {
    toml::from_str::<File>(FILE).map(|file| file.difference).map_err(|error| error.to_string())
}

/// The verdict of a play: what is listed must fail, all else must pass.
///
/// # Errors
/// What is to be done about it.
pub fn judge(
    differences: &[Difference],
    stack: &str,
    script: &str,
    result: Result<(), String>,
) -> Result<(), String> {
    let known = differences.iter().find(|known| known.stack == stack && known.script == script);
    match (known, result) {
        (None, result) => result,
        (Some(_), Err(_)) => Ok(()),
        (Some(known), Ok(())) => {
            Err(format!("{script} passes at the {stack}: take it out of differences.toml ({})", known.reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_must_fail_and_nothing_else() {
        let listed = [Difference { script: "a/b".into(), stack: "kernel".into(), reason: "so".into() }];
        let verdict = |stack, script, is_ok: bool| {
            judge(&listed, stack, script, if is_ok { Ok(()) } else { Err("no".into()) }).is_ok()
        };
        assert!(verdict("kernel", "a/b", false) && !verdict("kernel", "a/b", true));
        assert!(verdict("engine", "a/b", true) && !verdict("engine", "a/b", false));
        assert!(!verdict("kernel", "a/c", false));
    }

    #[test]
    fn the_file_names_scripts_that_exist() {
        let scripts = crate::scripts().unwrap();
        for known in all().unwrap() {
            assert!(scripts.iter().any(|script| script.name == known.script), "{}", known.script);
            assert!(["kernel", "engine"].contains(&known.stack.as_str()) && !known.reason.is_empty());
        }
    }
}
