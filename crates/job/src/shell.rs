//! Quoting for the shell, and programs of the system.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::process::Command;

use crate::printable::acts;

/// A word as it is pasted into a shell, quoted where needed. A word with control characters or direction marks becomes
/// `$'...'` with their bytes in octal, which is printable, one line, and known to bash, zsh, ksh and busybox. Only a NUL
/// cannot be quoted, and no argument of a process has one.
pub fn quoted(word: &str) -> String {
    let is_escaped = |c: char| acts(c) || c.is_control();
    if !word.contains(is_escaped) {
        return literal(word);
    }
    let mut out = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            c if is_escaped(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    write!(out, "\\{byte:03o}").expect("a string");
                }
            }
            c => out.push(c),
        }
    }
    out + "'"
}

/// A word quoted as POSIX requires of every shell, with any character as it is.
fn literal(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Cow::into_owned)
}

/// Words as a command line that is pasted into a shell: each is [`quoted`].
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Words as a command line for `sh -c`, whose shell may not know `$'...'`, and for [`split`].
pub(crate) fn script(words: &[String]) -> String {
    words.iter().map(|word| literal(word)).collect::<Vec<_>>().join(" ")
}

/// The words of the command line in a journal; `None` if its quotes do not match.
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
        for (word, expected) in [
            ("iscsi://h:3260/iqn.x:y/0", "iscsi://h:3260/iqn.x:y/0"),
            ("my disk's.img", r#""my disk's.img""#),
            ("", "''"),
            (r"a\b", r#""a\\b""#),
            ("\u{e9}.img", "'\u{e9}.img'"),
            ("a\u{1b}7b", r"$'a\0337b'"),
            ("it's\n\t\\", r"$'it\'s\012\011\\'"),
            ("x\u{202e}gpj.exe\u{9b}", r"$'x\342\200\256gpj.exe\302\233'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn a_script_is_split_into_its_words() {
        let words = ["cp", "a\u{1b}'\n", "\u{202e} b", "", "$'x'"].map(str::to_owned);
        assert_eq!(split(&script(&words)).unwrap(), words);
    }
}
