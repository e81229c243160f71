//! Text for terminals, logs, shells and reports. File names, configuration keys and messages of peers may contain any
//! character; those that control a terminal or reorder its text are escaped.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character controls a terminal (except newline and tab) or changes the direction of text.
pub(crate) fn acts(c: char) -> bool {
    let reorders =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reorders || c.is_control() && !matches!(c, '\n' | '\t')
}

fn escaped(text: &str, acts: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) { escape(&mut out, c) } else { out.push(c) }
    }
    out.into()
}

/// Text with control characters (except newline and tab) and direction marks as `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, acts, write_escape)
}

/// [`printable`] for a name within a line or a cell: newlines and tabs are escaped, too.
pub fn printable_name(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) || c.is_control(), write_escape)
}

fn write_escape(out: &mut String, c: char) {
    write!(out, "\\u{{{:x}}}", c as u32).expect("a string");
}

/// JSON text with these characters, which may occur in strings, as `\u001b`, which is equivalent. All have at most 16
/// bits.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    escaped(text, acts, |out, c| write!(out, "\\u{:04x}", c as u32).expect("a string"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn no_character_commands_a_terminal_or_reorders_its_text() {
        assert_eq!(printable("a\u{1b}[31mb\u{9b}c\r\u{7f}\n\td"), "a\\u{1b}[31mb\\u{9b}c\\u{d}\\u{7f}\n\td");
        assert_eq!(printable("x\u{202e}gpj.exe\u{2066}\u{200f}"), "x\\u{202e}gpj.exe\\u{2066}\\u{200f}");
        assert_eq!(printable_name("a\nb\tc\u{1b}"), "a\\u{a}b\\u{9}c\\u{1b}");
        assert!(matches!(printable("\u{5d0}\u{e9}\u{1f980}"), Cow::Borrowed(_)));
        let value = serde_json::json!({ "name": "a\u{1b}\u{9b}\u{202e}\u{7f}" });
        let text = printable_json(&value.to_string()).into_owned();
        assert!(!text.contains(acts), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
