//! A [`Map`] as text in the format of GNU ddrescue and ddrescuelog, with the label of the copy and a checksum in
//! comments.
//!
//! Pure: bytes in, bytes out; the caller handles files and directories. The text may come from any source; the checksum
//! detects damage, not malice, so everything is validated. The format: `docs/internals/mover-journal.md`.

use std::fmt::Write;

use block::{Fingerprint, differing};
use thiserror::Error;

use crate::map::{Map, MapEntry, Status};
use crate::textfile::{self, Wrong, escape, number, unescape};

/// Version of the format. A higher one was written by a later release. Version 1 has no [`Origin`] and no
/// `destination-left`.
pub const MAPFILE_VERSION: u32 = 2;
/// Bound of the size of a mapfile, in bytes: about a million entries.
pub const MAPFILE_BYTES_MAX: u64 = 64 << 20;

const HEAD: &str = "# Mapfile of hikyaku copy, version ";
/// Name of the comment with the evidence of writes to the destination, after an orderly interruption.
const LEFT: &str = "destination-left";

/// The identity of a copy: names, range and fingerprints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The source as the user named it, without secrets.
    pub source: String,
    /// The destination as the user named it, without secrets.
    pub destination: String,
    pub src_offset: u64,
    pub dst_offset: u64,
    pub bytes: u64,
    /// Bytes of one chunk. A resumed copy may use another size.
    pub chunk: u32,
    /// Fingerprint of the source at the start of the copy.
    pub source_was: Fingerprint,
    /// Fingerprint of the destination. In a journal, `contents` is that after the last write of an orderly interruption
    /// ([`FileJournal::leave`](crate::FileJournal::leave)); empty while the copy runs, after a crash, and where it is no
    /// evidence after a restart of the machine. An empty one is not compared.
    pub destination_was: Fingerprint,
}

/// How the copy was begun, in words that only its caller interprets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The working directory, to which paths in `command` are relative.
    pub directory: String,
    /// A command line without secrets that resumes the copy if the name of this file is appended.
    pub command: String,
    /// Which part of the range was to be copied: only the same part can be resumed.
    pub part: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapfile {
    pub label: Label,
    /// `None` in a file of version 1.
    pub origin: Option<Origin>,
    pub map: Map,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MapfileError {
    #[error(
        "it is not a map that hikyaku copy made (it begins with other words); name the right file, or begin anew"
    )]
    Foreign,
    #[error(
        "it has version {0}, this release reads versions 1 to {MAPFILE_VERSION}: resume with the release that wrote \
         it, or begin anew"
    )]
    Version(String),
    #[error("it is damaged: {0}; its content cannot be trusted: begin anew without --resume")]
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

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Mismatch {
    #[error(
        "it is the map of another range: {what} {theirs}, here {ours}; give the offsets and the size of that copy"
    )]
    Range { what: &'static str, theirs: u64, ours: u64 },
    #[error("it is the map of a copy with another {end}: {theirs}, here {ours}")]
    Storage {
        /// `source` or `destination`.
        end: &'static str,
        theirs: String,
        ours: String,
    },
    #[error(
        "the destination has been written since the copy was interrupted (it was {was}, now {is})",
        was = differing(theirs, ours)[0], is = differing(theirs, ours)[1]
    )]
    DestinationWritten { theirs: String, ours: String },
    #[error(
        "the source has changed since the copy began ({was}, now {is}): what was copied before is not what it holds now",
        was = differing(theirs, ours)[0], is = differing(theirs, ours)[1]
    )]
    SourceChanged { theirs: String, ours: String },
}

impl Label {
    /// An identifier of the copy: the same for the same range between the same storage under the same names.
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
        let (theirs, ours) = (&self.destination_was, &now.destination_was);
        if !theirs.contents.is_empty() && theirs.contents != ours.contents {
            let (theirs, ours) = (theirs.contents.clone(), ours.contents.clone());
            return Err(Mismatch::DestinationWritten { theirs, ours });
        }
        let (theirs, ours) = (&self.source_was.contents, &now.source_was.contents);
        if theirs != ours {
            return Err(Mismatch::SourceChanged { theirs: theirs.clone(), ours: ours.clone() });
        }
        Ok(())
    }
}

impl Origin {
    fn words(&self) -> [(&'static str, &String); 3] {
        [("directory", &self.directory), ("command", &self.command), ("part", &self.part)]
    }

    fn parse(lines: &mut textfile::Lines<'_>) -> Result<Self, Wrong> {
        let mut next = |name| lines.comment(name, unescape);
        Ok(Self { directory: next("directory")?, command: next("command")?, part: next("part")? })
    }
}

impl Mapfile {
    /// Encodes the map. Positions are those in the source.
    pub fn emit(&self) -> String {
        let Label { src_offset, bytes, .. } = self.label;
        assert_eq!(bytes, self.map.size(), "the map of this range");
        let version = if self.origin.is_some() { MAPFILE_VERSION } else { 1 };
        let mut text = format!("{HEAD}{version}\n");
        self.label.emit(&mut text);
        for (name, words) in self.origin.iter().flat_map(Origin::words) {
            textfile::comment(&mut text, name, &escape(words));
        }
        if version > 1 {
            textfile::comment(&mut text, LEFT, &escape(&self.label.destination_was.contents));
        }
        let rest = self.map.entries().find(|entry| entry.status != Status::Finished);
        let at = src_offset + rest.map_or(bytes, |rest| rest.start);
        let work = self.map.entries().map(|entry| entry.status).min().unwrap_or(Status::Finished);
        text += "# current_pos  current_status  current_pass\n";
        writeln!(text, "0x{at:08X}     {}               1", work.sign()).expect("a string");
        text += "#      pos        size  status\n";
        for entry in self.map.entries() {
            let (at, bytes, sign) = (src_offset + entry.start, entry.bytes(), entry.status.sign());
            writeln!(text, "0x{at:08X}  0x{bytes:08X}  {sign}").expect("a string");
        }
        textfile::finish(text)
    }

    /// Parses the output of [`Mapfile::emit`] of this release or an earlier one, and accepts nothing else.
    pub fn parse(bytes: &[u8]) -> Result<Self, MapfileError> {
        let (version, mut lines) = textfile::open(bytes, HEAD, 1..=MAPFILE_VERSION)?;
        let mut label = Label::parse(&mut lines)?;
        let mut origin = None;
        if version > 1 {
            origin = Some(Origin::parse(&mut lines)?);
            label.destination_was.contents = lines.comment(LEFT, unescape)?;
        }
        let end = label.src_offset + label.bytes;
        for what in ["the heading of the position", "the position", "the heading of the entries"] {
            lines.next(what)?;
        }
        let mut map = Map::new(label.bytes);
        let mut at = label.src_offset;
        for (number, line) in lines.lines {
            let wrong = || Wrong::damaged(format!("line {} is not the next entry", number + 1));
            let entry = entry(line).filter(|entry| entry.start == at && entry.end <= end);
            let MapEntry { start, end, status } = entry.ok_or_else(wrong)?;
            map.set(start - label.src_offset, end - label.src_offset, status);
            at = end;
        }
        if at != end {
            return Err(Wrong::damaged("its entries end before its range").into());
        }
        Ok(Self { label, origin, map })
    }
}

/// Parses position, size and sign; the positions are not converted.
fn entry(line: &str) -> Option<MapEntry> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || number(words.next()?.strip_prefix("0x")?, 16);
    let (start, bytes) = (next()?, next()?);
    let sign = words.next()?;
    let status = Status::ALL.into_iter().find(|status| sign.chars().eq([status.sign()]))?;
    let end = start.checked_add(bytes).filter(|end| *end > start)?;
    words.next().is_none().then_some(MapEntry { start, end, status })
}

#[cfg(test)]
mod tests;
