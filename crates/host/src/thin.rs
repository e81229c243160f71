//! Thin volumes of the device mapper: parsers of `dmsetup table` and of `thin_delta`, which compares two volumes.
//!
//! For each volume, a pool records which of the pool's blocks stores which part of the volume. Two volumes with one
//! block for the same part have the same data there, whatever their history. This module runs no program, and refuses
//! implausible input. Read Documentation/admin-guide/device-mapper/thin-provisioning.rst first.

use std::io::{self, BufRead, Read};
use std::ops::Range;

use thiserror::Error;

use crate::kernel::parse_number;
use crate::shared::add;

/// Bytes of a sector in tables, independent of the device's block size.
const SECTOR_BYTES: u64 = 512;
/// Maximum length of an element of the XML; actual elements have about 120 bytes.
const TAG_BYTES_MAX: u64 = 1024;
/// Maximum number of changed ranges; after the last, the rest of the volume counts as changed.
const RANGES_MAX: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    pub size_bytes: u64,
    pub pool: u64,
    pub id: u32,
    /// Ranges that were never written are read from a device outside the pool.
    pub has_external_origin: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub metadata: u64,
    pub block_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    #[error("it is no {0} of the device mapper: its table begins with `{1}`")]
    Other(&'static str, String),
    /// The table does not have the format of Documentation/admin-guide/device-mapper.
    #[error("its table cannot be understood: `{0}`")]
    Malformed(String),
}

impl Volume {
    /// Parses `dmsetup table` for one device: `0 262144 thin 254:2 1`, optionally followed by an external origin.
    pub fn parse(table: &str) -> Result<Self, TableError> {
        let (sectors, words) = target(table, "thin", "thin volume")?;
        let parse = || {
            let (pool, id) = (parse_number(words.first()?)?, words.get(1)?.parse().ok()?);
            let size_bytes = sectors.checked_mul(SECTOR_BYTES)?;
            (words.len() <= 3).then_some(Self { size_bytes, pool, id, has_external_origin: words.len() == 3 })
        };
        parse().ok_or_else(|| malformed(table))
    }
}

impl Pool {
    /// Parses the output of `dmsetup table` for one device: `0 819200 thin-pool 254:0 254:1 128 0 0`.
    pub fn parse(table: &str) -> Result<Self, TableError> {
        let (_, words) = target(table, "thin-pool", "thin pool")?;
        let parse = || {
            let (metadata, sectors) = (parse_number(words.first()?)?, words.get(2)?.parse::<u64>().ok()?);
            Some(Self {
                metadata,
                block_bytes: sectors.checked_mul(SECTOR_BYTES).filter(|bytes| *bytes > 0)?,
            })
        };
        parse().ok_or_else(|| malformed(table))
    }
}

/// Sectors and parameters of a table with a single line, which must start at sector 0 and have the target type `kind`.
fn target<'a>(table: &'a str, kind: &str, name: &'static str) -> Result<(u64, Vec<&'a str>), TableError> {
    let words: Vec<&str> = table.split_whitespace().collect();
    let [start, sectors, found, parameters @ ..] = &words[..] else { return Err(malformed(table)) };
    let sectors = sectors.parse().map_err(|_| malformed(table))?;
    if *found != kind {
        return Err(TableError::Other(name, format!("{start} {sectors} {found}")));
    }
    if *start != "0" || table.trim().lines().count() != 1 {
        return Err(malformed(table));
    }
    Ok((sectors, parameters.to_vec()))
}

fn malformed(table: &str) -> TableError {
    TableError::Malformed(table.trim().chars().take(100).collect())
}

/// Whether the results of `thin_delta` with this version text are correct. Versions before 0.7, and 1.0.0 to 1.0.5,
/// report different blocks as the same: thin-provisioning-tools, CHANGES.
pub fn is_delta_sound(version: &str) -> bool {
    let number = version.split_whitespace().last().unwrap_or_default();
    let mut fields = number.split(['.', '-']).map_while(|field| field.parse::<u32>().ok());
    let mut next = || fields.next();
    let Some(number) = next().zip(next()) else { return false };
    let (number, patch) = ([number.0, number.1], next().unwrap_or(0));
    number >= [0, 7] && (number != [1, 0] || patch >= 6)
}

#[derive(Debug, Error)]
pub enum DeltaError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it ends early")]
    Truncated,
    #[error("`{0}` does not belong there")]
    Unexpected(String),
    #[error("`{0}` is not about these volumes")]
    Other(String),
}

/// The ranges of a volume whose bytes may differ from an earlier volume's, in bytes, ascending and not adjacent;
/// `answer` is the output of `thin_delta --thin1 NEW --thin2 OLD`. Parts without a block in both volumes read as zeroes
/// in both. The range after the end of the earlier volume counts as changed.
pub fn changed(
    answer: impl BufRead,
    [new, old]: [&Volume; 2],
    block_bytes: u64,
) -> Result<Vec<Range<u64>>, DeltaError> {
    let mut tags = Tags { answer };
    tags.expect("superblock", &[("data_block_size", block_bytes / SECTOR_BYTES)])?;
    tags.expect("diff", &[("left", new.id.into()), ("right", old.id.into())])?;
    let size = new.size_bytes.min(old.size_bytes);
    // A volume that was made smaller keeps blocks after its end.
    let (mut changed, mut reported_end) = (Vec::new(), 0);
    loop {
        let tag = tags.next()?.ok_or(DeltaError::Truncated)?;
        if tag.is("/diff") {
            break;
        }
        let range = tag.range(block_bytes).filter(|range| range.start >= reported_end);
        let range = range.ok_or_else(|| tag.unexpected())?;
        reported_end = range.end;
        let range = range.start.min(size)..range.end.min(size);
        match tag.name() {
            "same" => {}
            "different" | "left_only" | "right_only" if changed.len() < RANGES_MAX => {
                add(&mut changed, range);
            }
            "different" | "left_only" | "right_only" => {
                changed.last_mut().expect("there are many").end = size;
            }
            _ => return Err(tag.unexpected()),
        }
    }
    tags.expect("/superblock", &[])?;
    if let Some(tag) = tags.next()? {
        return Err(tag.unexpected());
    }
    add(&mut changed, size..new.size_bytes);
    Ok(changed)
}

/// Reads the elements of the XML in sequence.
struct Tags<R> {
    answer: R,
}

impl<R: BufRead> Tags<R> {
    fn next(&mut self) -> Result<Option<Tag>, DeltaError> {
        let mut bytes = Vec::new();
        self.answer.by_ref().take(TAG_BYTES_MAX).read_until(b'>', &mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        match text.strip_prefix('<').map(|text| text.strip_suffix('>').ok_or(text)) {
            Some(Ok(text)) => Ok(Some(Tag { text: text.to_owned() })),
            Some(Err(text)) if bytes.len() < TAG_BYTES_MAX as usize && !text.contains('<') => {
                Err(DeltaError::Truncated)
            }
            _ => Err(Tag { text: text.to_owned() }.unexpected()),
        }
    }

    fn expect(&mut self, name: &str, numbers: &[(&str, u64)]) -> Result<(), DeltaError> {
        let tag = self.next()?.ok_or(DeltaError::Truncated)?;
        if !tag.is(name) {
            return Err(tag.unexpected());
        }
        for (name, number) in numbers {
            match tag.number(name) {
                Some(found) if found == *number => {}
                Some(_) => return Err(DeltaError::Other(tag.shown())),
                None => return Err(tag.unexpected()),
            }
        }
        Ok(())
    }
}

/// One element without its brackets: `same begin="0" length="5"/`.
struct Tag {
    text: String,
}

impl Tag {
    fn name(&self) -> &str {
        self.text.split_whitespace().next().unwrap_or_default()
    }

    fn is(&self, name: &str) -> bool {
        self.name() == name && !self.text.ends_with('/')
    }

    /// The value of a numeric attribute; `None` if the attribute occurs more than once.
    fn number(&self, name: &str) -> Option<u64> {
        let words = self.text.trim_end_matches('/').split_whitespace();
        let mut found = words.filter_map(|word| word.split_once('=')).filter(|(found, _)| *found == name);
        let (_, value) = found.next().filter(|_| found.next().is_none())?;
        let digits = value.strip_prefix('"')?.strip_suffix('"')?;
        digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// The byte range of an empty element with `begin` and `length`.
    fn range(&self, block_bytes: u64) -> Option<Range<u64>> {
        let (begin, length) = (self.number("begin")?, self.number("length")?);
        let end = begin.checked_add(length)?.checked_mul(block_bytes)?;
        (length > 0 && self.text.ends_with('/')).then_some(begin * block_bytes..end)
    }

    fn shown(&self) -> String {
        self.text.chars().filter(|char| !char.is_control()).take(100).collect()
    }

    fn unexpected(&self) -> DeltaError {
        DeltaError::Unexpected(self.shown())
    }
}

#[cfg(test)]
mod tests;
