//! A [`Map`] as text that GNU ddrescue and ddrescuelog read too, with whose map it is and a checksum in comments.
//!
//! Pure: bytes in, bytes out. Files and directories are the caller's. What is read may come from anybody; the checksum
//! finds damage, not malice, so that everything is checked once more. The format: `docs/internals/mover.md`.

use std::fmt::Write;

use block::Fingerprint;
use thiserror::Error;

use crate::map::{Map, Status, Stretch};
use crate::textfile::{self, Wrong, number};

/// Of the format. One that is greater was written by a later release.
pub const MAPFILE_VERSION: u32 = 1;
/// Longest mapfile that is read, in bytes: about a million stretches.
pub const MAPFILE_BYTES_MAX: u64 = 64 << 20;

const HEAD: &str = "# Mapfile of hikyaku copy, version ";

/// What a map is the map of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// What the user called the source, without secrets.
    pub source: String,
    /// What the user called the destination, without secrets.
    pub destination: String,
    /// First byte in the source.
    pub src_offset: u64,
    /// First byte in the destination.
    pub dst_offset: u64,
    /// Bytes of the range.
    pub bytes: u64,
    /// Bytes of one chunk. It may be another one when the copy is resumed.
    pub chunk: u32,
    /// The source when the copy began.
    pub source_was: Fingerprint,
    /// The destination when the copy began. Only which storage it is counts: the copy itself changes the rest.
    pub destination_was: Fingerprint,
}

/// A map and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapfile {
    /// Whose.
    pub label: Label,
    /// What is known of the range.
    pub map: Map,
}

/// Why bytes are not a mapfile that can be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MapfileError {
    /// It never was one.
    #[error(
        "it is not a map that hikyaku copy made (it begins with other words); name the right file, or begin anew"
    )]
    Foreign,
    /// Another release's.
    #[error(
        "it has version {0}, this release reads version {MAPFILE_VERSION}: resume with the release that wrote it, or \
         begin anew"
    )]
    Version(String),
    /// Bytes are missing or were changed.
    #[error("it is damaged: {0}; what it says cannot be trusted: begin anew without --resume")]
    Damaged(String),
}

impl From<Wrong> for MapfileError {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Foreign => Self::Foreign,
            Wrong::Version(version) => Self::Version(version),
            Wrong::Damaged(what) => Self::Damaged(what),
        }
    }
}

/// Why a map does not belong to a copy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Mismatch {
    /// Another range.
    #[error(
        "it is the map of another range: {what} {theirs}, here {ours}; give the offsets and the size of that copy"
    )]
    Range {
        /// Which number.
        what: &'static str,
        /// In the map.
        theirs: u64,
        /// Of this copy.
        ours: u64,
    },
    /// Another source or destination.
    #[error("it is the map of a copy with another {end}: {theirs}, here {ours}")]
    Storage {
        /// `source` or `destination`.
        end: &'static str,
        /// In the map.
        theirs: String,
        /// Of this copy.
        ours: String,
    },
    /// The source was written since.
    #[error(
        "the source has changed since the copy began ({theirs}, now {ours}): what was copied before is not what it holds \
         now"
    )]
    SourceChanged {
        /// Then.
        theirs: String,
        /// Now.
        ours: String,
    },
}

impl Label {
    /// A name for the copy, the same whenever the same range of the same storage is copied to the same place under the
    /// same names.
    pub fn id(&self) -> String {
        let text = format!(
            "{:?} {:?} {:?} {:?} {} {} {}",
            self.source,
            self.source_was.storage,
            self.destination,
            self.destination_was.storage,
            self.src_offset,
            self.dst_offset,
            self.bytes
        );
        blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
    }

    /// Whether a map with this label can be taken up by the copy that `now` describes.
    pub fn check(&self, now: &Self) -> Result<(), Mismatch> {
        let numbers = [
            ("it begins in the source at", self.src_offset, now.src_offset),
            ("it begins in the destination at", self.dst_offset, now.dst_offset),
            ("bytes", self.bytes, now.bytes),
        ];
        for (what, theirs, ours) in numbers {
            if theirs != ours {
                return Err(Mismatch::Range { what, theirs, ours });
            }
        }
        let storage = [
            ("source", &self.source_was.storage, &now.source_was.storage),
            ("destination", &self.destination_was.storage, &now.destination_was.storage),
        ];
        for (end, theirs, ours) in storage {
            if theirs != ours {
                return Err(Mismatch::Storage { end, theirs: theirs.clone(), ours: ours.clone() });
            }
        }
        let (theirs, ours) = (&self.source_was.contents, &now.source_was.contents);
        if theirs != ours {
            return Err(Mismatch::SourceChanged { theirs: theirs.clone(), ours: ours.clone() });
        }
        Ok(())
    }
}

impl Mapfile {
    /// The text. Positions are those in the source.
    pub fn emit(&self) -> String {
        let Label { src_offset, bytes, .. } = self.label;
        assert_eq!(bytes, self.map.size(), "the map of this range");
        let mut text = format!("{HEAD}{MAPFILE_VERSION}\n");
        self.label.emit(&mut text);
        let rest = self.map.stretches().find(|stretch| stretch.status != Status::Finished);
        let at = src_offset + rest.map_or(bytes, |rest| rest.start);
        let work = self.map.stretches().map(|stretch| stretch.status).min().unwrap_or(Status::Finished);
        text += "# current_pos  current_status  current_pass\n";
        writeln!(text, "0x{at:08X}     {}               1", work.sign()).expect("a string");
        text += "#      pos        size  status\n";
        for stretch in self.map.stretches() {
            let (at, bytes, sign) = (src_offset + stretch.start, stretch.bytes(), stretch.status.sign());
            writeln!(text, "0x{at:08X}  0x{bytes:08X}  {sign}").expect("a string");
        }
        textfile::finish(text)
    }

    /// Reads what [`Mapfile::emit`] wrote, and nothing else.
    pub fn parse(bytes: &[u8]) -> Result<Self, MapfileError> {
        let mut lines = textfile::open(bytes, HEAD, MAPFILE_VERSION)?;
        let label = Label::parse(&mut lines)?;
        let end = label.src_offset + label.bytes;
        for what in ["the heading of the position", "the position", "the heading of the stretches"] {
            lines.next(what)?;
        }
        let mut map = Map::new(label.bytes);
        let mut at = label.src_offset;
        for (number, line) in lines.lines {
            let wrong = || Wrong::damaged(format!("line {} is not the next stretch", number + 1));
            let stretch = stretch(line).filter(|stretch| stretch.start == at && stretch.end <= end);
            let Stretch { start, end, status } = stretch.ok_or_else(wrong)?;
            map.set(start - label.src_offset, end - label.src_offset, status);
            at = end;
        }
        if at != end {
            return Err(Wrong::damaged("its stretches end before its range").into());
        }
        Ok(Self { label, map })
    }
}

/// Position, size and sign; positions as they stand there.
fn stretch(line: &str) -> Option<Stretch> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || number(words.next()?.strip_prefix("0x")?, 16);
    let (start, bytes) = (next()?, next()?);
    let sign = words.next()?;
    let status = Status::ALL.into_iter().find(|status| sign.chars().eq([status.sign()]))?;
    let end = start.checked_add(bytes).filter(|end| *end > start)?;
    words.next().is_none().then_some(Stretch { start, end, status })
}

#[cfg(test)]
mod tests;
