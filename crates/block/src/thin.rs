//! Thin volumes of the device mapper: what `dmsetup table` says of one, and what `thin_delta` says that two of them have in common.
//!
//! A pool keeps, for each volume, which of its blocks lies behind which part of it. Two volumes that have one block behind the
//! same part hold the same there, whatever happened to them before. Nothing is run here: these are parsers, and what they are given is
//! believed only as far as it makes sense. Read Documentation/admin-guide/device-mapper/thin-provisioning.rst first.

use std::io::{self, BufRead, Read};
use std::ops::Range;

use thiserror::Error;

use crate::device::parse_number;
use crate::shared::add;

/// Bytes of a sector in tables, whatever the device's blocks are.
const SECTOR_BYTES: u64 = 512;
/// Longest element of an answer; real ones have 120 bytes.
const TAG_BYTES_MAX: u64 = 1024;
/// Most stretches that are told apart; behind them all counts as changed.
const STRETCHES_MAX: usize = 4 << 20;

/// A thin volume, as its table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Bytes.
    pub size_bytes: u64,
    /// Device number of its pool.
    pub pool: u64,
    /// Its number in that pool.
    pub id: u32,
    /// What was never written to it is read from a device outside the pool.
    pub has_external_origin: bool,
}

/// A pool, as its table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Number of the device that its metadata lie on.
    pub metadata: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// Why a table is not what was looked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// It maps something else.
    #[error("it is no {0} of the device mapper: its table begins with `{1}`")]
    Other(&'static str, String),
    /// It has not the form of Documentation/admin-guide/device-mapper.
    #[error("its table cannot be understood: `{0}`")]
    Malformed(String),
}

impl Volume {
    /// From what `dmsetup table` prints of one device: `0 262144 thin 254:2 1`, and an external origin.
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
    /// From what `dmsetup table` prints of one device: `0 819200 thin-pool 254:0 254:1 128 0 0`.
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

/// Sectors and parameters of the only line of a table, which begins at 0 and is of this kind.
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

/// Whether a `thin_delta` that calls itself this can be believed.
///
/// Before 0.7 and from 1.0.0 to 1.0.5 it counts blocks as the same that are not: thin-provisioning-tools, CHANGES.
pub fn is_delta_sound(version: &str) -> bool {
    let number = version.split_whitespace().last().unwrap_or_default();
    let mut fields = number.split(['.', '-']).map_while(|field| field.parse::<u32>().ok());
    let mut next = || fields.next();
    let Some(number) = next().zip(next()) else { return false };
    let (number, patch) = ([number.0, number.1], next().unwrap_or(0));
    number >= [0, 7] && (number != [1, 0] || patch >= 6)
}

/// Why an answer of `thin_delta` is not believed.
#[derive(Debug, Error)]
pub enum DeltaError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It ends before its end.
    #[error("it ends early")]
    Truncated,
    /// Something else was expected here.
    #[error("`{0}` does not belong there")]
    Unexpected(String),
    /// It speaks of other volumes, or of blocks of another size.
    #[error("`{0}` is not about these volumes")]
    Other(String),
}

/// The stretches of a volume that may hold other bytes than the same stretches of an earlier one: in order, not touching, in bytes.
///
/// From what `thin_delta --thin1 NEW --thin2 OLD` prints. What neither has a block for reads as zeroes of both. What lies behind
/// the end of the earlier one counts as changed.
pub fn changed(
    answer: impl BufRead,
    [new, old]: [&Volume; 2],
    block_bytes: u64,
) -> Result<Vec<Range<u64>>, DeltaError> {
    let mut tags = Tags { answer };
    tags.expect("superblock", &[("data_block_size", block_bytes / SECTOR_BYTES)])?;
    tags.expect("diff", &[("left", new.id.into()), ("right", old.id.into())])?;
    let size = new.size_bytes.min(old.size_bytes);
    // Volumes that were made smaller keep blocks behind their end.
    let (mut changed, mut told) = (Vec::new(), 0);
    loop {
        let tag = tags.next()?.ok_or(DeltaError::Truncated)?;
        if tag.is("/diff") {
            break;
        }
        let range = tag.range(block_bytes).filter(|range| range.start >= told);
        let range = range.ok_or_else(|| tag.unexpected())?;
        told = range.end;
        let range = range.start.min(size)..range.end.min(size);
        match tag.name() {
            "same" => {}
            "different" | "left_only" | "right_only" if changed.len() < STRETCHES_MAX => {
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

/// Elements of an answer, one after the other.
struct Tags<R> {
    answer: R,
}

impl<R: BufRead> Tags<R> {
    /// What stands between the next `<` and its `>`; `None` at the end.
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

    /// An element of this name, of which these numbers are told.
    fn expect(&mut self, name: &str, numbers: &[(&str, u64)]) -> Result<(), DeltaError> {
        let tag = self.next()?.ok_or(DeltaError::Truncated)?;
        if !tag.is(name) {
            return Err(tag.unexpected());
        }
        for (name, number) in numbers {
            match tag.number(name) {
                Some(told) if told == *number => {}
                Some(_) => return Err(DeltaError::Other(tag.shown())),
                None => return Err(tag.unexpected()),
            }
        }
        Ok(())
    }
}

/// One element, without its brackets: `same begin="0" length="5"/`.
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

    /// A number that is told once.
    fn number(&self, name: &str) -> Option<u64> {
        let words = self.text.trim_end_matches('/').split_whitespace();
        let mut told = words.filter_map(|word| word.split_once('=')).filter(|(told, _)| *told == name);
        let (_, value) = told.next().filter(|_| told.next().is_none())?;
        let digits = value.strip_prefix('"')?.strip_suffix('"')?;
        digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// The bytes it speaks of, where it is one that holds no others.
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
