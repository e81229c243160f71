//! The common parts of a copy's files: a first line with a version, the label in comments, a checksum in the last line.
//!
//! Pure. The checksum detects damage, not malice: the parsers validate the lines between.

use std::fmt::Write;
use std::ops::RangeInclusive;

use crate::mapfile::Label;

const CHECKSUM: &str = "# blake3: ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Another format.
    Foreign,
    /// Another version, as written in the file.
    Version(String),
    /// Bytes are missing or changed; the evidence.
    Damaged(String),
}

impl Wrong {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}

pub(crate) fn finish(mut text: String) -> String {
    let checksum = blake3::hash(text.as_bytes());
    writeln!(text, "{CHECKSUM}{checksum}").expect("a string");
    text
}

/// The version of the file, and the lines after the first one, which must be `head` with one of these versions; without
/// the checksum line, which must match.
pub(crate) fn open<'a>(
    bytes: &'a [u8],
    head: &str,
    mut versions: RangeInclusive<u32>,
) -> Result<(u32, Lines<'a>), Wrong> {
    let rest = bytes.strip_prefix(head.as_bytes()).ok_or(Wrong::Foreign)?;
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let theirs = String::from_utf8_lossy(&line[..line.len().min(20)]).into_owned();
    let known = versions.find(|version| *theirs == version.to_string());
    let Some(version) = known else { return Err(Wrong::Version(theirs)) };
    let text = std::str::from_utf8(bytes).map_err(|_| Wrong::damaged("it is not text"))?;
    let end = text.rfind(CHECKSUM).ok_or_else(|| Wrong::damaged("its end is missing"))?;
    let (body, checksum) = text.split_at(end);
    if format!("{CHECKSUM}{}\n", blake3::hash(body.as_bytes())) != checksum {
        return Err(Wrong::damaged("its checksum is wrong"));
    }
    let mut lines = Lines { lines: body.lines().enumerate() };
    lines.next("the first line")?;
    Ok((version, lines))
}

pub(crate) struct Lines<'a> {
    pub(crate) lines: std::iter::Enumerate<std::str::Lines<'a>>,
}

impl<'a> Lines<'a> {
    pub(crate) fn next(&mut self, what: &str) -> Result<(usize, &'a str), Wrong> {
        self.lines.next().ok_or_else(|| Wrong::damaged(format!("{what} is missing")))
    }

    /// The value of the comment `name`, which must be the next line.
    pub(crate) fn comment<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, Wrong> {
        let (number, line) = self.next(name)?;
        let value = line.strip_prefix("# ").and_then(|line| line.strip_prefix(name));
        let value = value.and_then(|value| value.strip_prefix(": ")).and_then(parse);
        value.ok_or_else(|| Wrong::damaged(format!("line {} is not its {name}", number + 1)))
    }
}

/// Appends `# name: value`, for [`Lines::comment`].
pub(crate) fn comment(text: &mut String, name: &str, value: &str) {
    writeln!(text, "# {name}: {value}").expect("a string");
}

impl Label {
    /// Appends the label as comments, one line each.
    pub(crate) fn emit(&self, text: &mut String) {
        for (name, words) in self.words() {
            comment(text, name, &escape(words));
        }
        for (name, number) in [
            ("source-offset", self.src_offset),
            ("destination-offset", self.dst_offset),
            ("bytes", self.bytes),
            ("chunk", self.chunk.into()),
        ] {
            comment(text, name, &number.to_string());
        }
    }

    /// Parses the output of [`Label::emit`]. The end of the range must fit in the number type.
    pub(crate) fn parse(lines: &mut Lines<'_>) -> Result<Self, Wrong> {
        let mut label = Self::default();
        for (name, words) in label.words_mut() {
            *words = lines.comment(name, unescape)?;
        }
        label.src_offset = lines.comment("source-offset", |text| number(text, 10))?;
        label.dst_offset = lines.comment("destination-offset", |text| number(text, 10))?;
        label.bytes = lines.comment("bytes", |text| number(text, 10))?;
        label.chunk = lines.comment("chunk", |text| number(text, 10)?.try_into().ok())?;
        let end = label.src_offset.checked_add(label.bytes);
        end.map(|_| label).ok_or_else(|| Wrong::damaged("its range ends beyond any storage"))
    }

    fn words(&self) -> [(&'static str, &String); 5] {
        [
            ("source", &self.source),
            ("destination", &self.destination),
            ("source-storage", &self.source_was.storage),
            ("source-contents", &self.source_was.contents),
            ("destination-storage", &self.destination_was.storage),
        ]
    }

    fn words_mut(&mut self) -> [(&'static str, &mut String); 5] {
        [
            ("source", &mut self.source),
            ("destination", &mut self.destination),
            ("source-storage", &mut self.source_was.storage),
            ("source-contents", &mut self.source_was.contents),
            ("destination-storage", &mut self.destination_was.storage),
        ]
    }
}

/// Parses digits only; the standard library would accept a plus sign.
pub(crate) fn number(text: &str, radix: u32) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, radix).ok()).flatten()
}

/// Escapes control characters and `%` as `%XX`, so that a value is one line.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_control() || c == '%' {
            write!(escaped, "%{:02X}", c as u32).expect("a string");
        } else {
            escaped.push(c);
        }
    }
    escaped
}

pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        plain.push(u8::try_from(number(code, 16)?).ok().filter(u8::is_ascii)?.into());
        plain += rest;
    }
    Some(plain)
}
