//! Quoting for the shell, and programs of the system.

use std::borrow::Cow;
use std::process::Command;

/// A word quoted for a shell, where needed. Only a NUL cannot be quoted, and no argument of a process has one.
pub fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Cow::into_owned)
}

/// Words quoted and joined to a command line for `sh -c`.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// The words of a command line that [`line()`] or [`quoted`] made; `None` if its quotes do not match.
pub fn split(line: &str) -> Option<Vec<String>> {
    shlex::split(line)
}

/// PATH with the directories of system programs added: cron's PATH lacks them.
pub(crate) fn path() -> String {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    path + ":/usr/sbin:/sbin"
}

pub(crate) fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", path());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("iscsi://h:3260/iqn.x:y/0"), "iscsi://h:3260/iqn.x:y/0");
        assert_eq!(quoted("my disk's.img"), r#""my disk's.img""#);
        assert_eq!(quoted(""), "''");
    }
}
