//! [`Sums`] as text, with the label of the copy and a checksum in comments. Pure. The text may come from any source, so
//! everything is validated. The format: `docs/internals/mover-verify.md`, "The manifest".

mod file;

use std::fmt::Write;

use thiserror::Error;

use crate::mapfile::Label;
use crate::sums::{Content, EXTENT_BYTES_MIN, EXTENTS_MAX, Sum, Sums};
use crate::textfile::{self, Wrong, comment, number};

pub use file::{check_manifest_place, read_manifest, write_manifest};

/// Version of the format. A higher one was written by a later release.
pub const MANIFEST_VERSION: u32 = 1;
/// Bound of the size of a manifest, in bytes: one line for each of [`EXTENTS_MAX`] extents.
pub const MANIFEST_BYTES_MAX: u64 = 128 << 20;
const HEAD: &str = "# Manifest of hikyaku copy, version ";

/// Two numbers of 16 digits, a sign, a value.
const LINE_BYTES_MAX: u64 = 18 + 2 + 18 + 2 + 1 + 2 + 64 + 1;
const _: () = assert!(EXTENTS_MAX * LINE_BYTES_MAX < MANIFEST_BYTES_MAX - (1 << 20));

/// The content of a verified range, and the label of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The copy. Its `bytes` equal the total of the sums.
    pub label: Label,
    pub sums: Sums,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ManifestError {
    #[error("it is not a manifest that hikyaku copy made (it begins with other words)")]
    Foreign,
    #[error(
        "it has version {0}, this release reads version {MANIFEST_VERSION}: use the release that wrote it"
    )]
    Version(String),
    #[error("it is damaged: {0}; its content cannot be trusted: take another copy of it")]
    Damaged(String),
}

impl From<Wrong> for ManifestError {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Foreign => Self::Foreign,
            Wrong::Version(version) => Self::Version(version),
            Wrong::Damaged(what) => Self::Damaged(what),
        }
    }
}

impl Manifest {
    /// Encodes the manifest. Positions count from the start of the range.
    pub fn emit(&self) -> String {
        assert_eq!(self.label.bytes, self.sums.total(), "the sums of this range");
        let mut text = format!("{HEAD}{MANIFEST_VERSION}\n");
        self.label.emit(&mut text);
        comment(&mut text, "extent", &self.sums.extent().to_string());
        comment(&mut text, "range-blake3", &whole(&self.sums));
        text += "#      pos        size  content  value\n";
        for Sum { offset, bytes, content } in self.sums.sums() {
            let sign = match content {
                Content::Unknown => '?',
                Content::Zero(_) => '0',
                Content::Data(_) => '+',
            };
            write!(text, "0x{offset:08X}  0x{bytes:08X}  {sign}").expect("a string");
            if let Some(value) = content.value() {
                write!(text, "  {}", blake3::Hash::from_bytes(value)).expect("a string");
            }
            text.push('\n');
        }
        textfile::finish(text)
    }

    /// Parses the output of [`Manifest::emit`], and accepts nothing else. Memory: 64 bytes per line.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let (_, mut lines) = textfile::open(bytes, HEAD, MANIFEST_VERSION..=MANIFEST_VERSION)?;
        let label = Label::parse(&mut lines)?;
        let extent = lines.comment("extent", |text| {
            let extent = number(text, 10)?;
            let is_extent = extent.is_power_of_two() && extent >= EXTENT_BYTES_MIN;
            (is_extent && label.bytes.div_ceil(extent) <= EXTENTS_MAX).then_some(extent)
        })?;
        let stated = lines.comment("range-blake3", |text| Some(text.to_owned()))?;
        lines.next("the heading of the extents")?;
        let mut sums = Vec::new();
        for (number, line) in lines.lines {
            let wrong = || Wrong::damaged(format!("line {} is not an extent", number + 1));
            if sums.len() as u64 == label.bytes.div_ceil(extent) {
                return Err(Wrong::damaged("it has more lines than extents").into());
            }
            sums.push(sum(line).ok_or_else(wrong)?);
        }
        let sums = Sums::new(label.bytes, extent, sums).ok_or_else(|| {
            Wrong::damaged("its extents do not follow each other from the first byte to the last")
        })?;
        if whole(&sums) != stated {
            return Err(Wrong::damaged("its values do not join to the hash of the range").into());
        }
        Ok(Self { label, sums })
    }
}

/// The hash of the whole range in the form of the file.
fn whole(sums: &Sums) -> String {
    sums.blake3().unwrap_or_else(|| "none".to_owned())
}

fn sum(line: &str) -> Option<Sum> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || number(words.next()?.strip_prefix("0x")?, 16);
    let (offset, bytes) = (next()?, next()?);
    let sign = words.next()?;
    let value = match words.next() {
        // Only digits as `emit` writes them, so that a value has exactly one text.
        Some(digits) if digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) => {
            Some(*blake3::Hash::from_hex(digits).ok()?.as_bytes())
        }
        Some(_) => return None,
        None => None,
    };
    let content = match (sign, value) {
        ("?", None) => Content::Unknown,
        ("0", value) => Content::Zero(value),
        ("+", Some(value)) => Content::Data(value),
        _ => return None,
    };
    words.next().is_none().then_some(Sum { offset, bytes, content })
}

#[cfg(test)]
mod tests;
