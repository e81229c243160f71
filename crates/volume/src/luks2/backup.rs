//! Copies of a header with its keyslots, as `cryptsetup luksHeaderBackup` writes them, and their return.

use std::convert::Infallible;
use std::ops::Range;

use serde_json::json;

use super::change::{first_fit, gaps, wipe};
use super::error::{ReadError, Refusal};
use super::header::{Copies, Header, Place, read_in_reencryption};
use super::metadata::Metadata;
use super::{Random, copies};
use crate::Storage;

/// Bytes that are read or written in one request.
const REQUEST_BYTES: u64 = 1 << 20;

/// A header and its keyslot area, which were read and checked.
pub struct Backup {
    bytes: Vec<u8>,
    header: Header,
}

/// Why a header was not restored. After [`RestoreError::Storage`] the storage may hold no header: the backup is restored
/// again.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError<E> {
    #[error("the storage has {size} bytes, of which the header takes {needed}")]
    TooSmall { size: u64, needed: u64 },
    #[error("the JSON area has no room for the change")]
    NoRoomInJson,
    #[error("the header cannot be read or written")]
    Storage(#[source] E),
}

impl Header {
    /// The bytes of both copies and the keyslot area.
    pub fn backup<S: Storage>(&self, storage: &mut S) -> Result<Vec<u8>, ReadError<S::Error>> {
        if storage.size_bytes() < self.size_bytes() {
            return Err(Refusal::Truncated.into());
        }
        let mut bytes = vec![0; self.size_bytes() as usize];
        for (number, request) in bytes.chunks_mut(REQUEST_BYTES as usize).enumerate() {
            storage.read(number as u64 * REQUEST_BYTES, request).map_err(ReadError::Storage)?;
        }
        Ok(bytes)
    }
}

impl Backup {
    /// Reads a backup, also of a volume in re-encryption. Bytes behind the keyslot area are ignored.
    pub fn parse(mut bytes: Vec<u8>, place: Place) -> Result<Self, Refusal> {
        let header =
            read_in_reencryption(&mut Bytes(&bytes), place).map_err(|ReadError::Refused(refusal)| refusal)?;
        if (bytes.len() as u64) < header.size_bytes() {
            return Err(Refusal::Truncated);
        }
        bytes.truncate(header.size_bytes() as usize);
        Ok(Self { bytes, header })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Makes this header the storage's; keyslots that it does not have are overwritten.
    ///
    /// If the storage has a header of the same sizes that is accepted, and room for the keyslots of both, a cut leaves
    /// either header with all of its keyslots: a keyslot whose area the present header uses is moved. Otherwise the present
    /// header is erased first, and a cut leaves none.
    pub fn restore<S: Storage>(
        &self,
        storage: &mut S,
        random: Random<'_>,
    ) -> Result<Header, RestoreError<S::Error>> {
        let (size, needed) = (storage.size_bytes(), self.header.size_bytes());
        if size < needed {
            return Err(RestoreError::TooSmall { size, needed });
        }
        let present = match read_in_reencryption(storage, self.header.place) {
            Ok(present) => Some(present),
            Err(ReadError::Refused(_)) => None,
            Err(ReadError::Storage(error)) => return Err(RestoreError::Storage(error)),
        };
        let mut header = self.header.clone();
        header.copies = Copies::Both;
        let (newest, present_bytes) =
            present.as_ref().map_or((0, 0), |present| (present.binary.seqid, present.size_bytes()));
        header.binary.seqid = newest.saturating_add(1).max(header.binary.seqid);
        if let Some(present) = present.filter(|present| present.has_layout_of(&header))
            && let Some(moves) = self.moves(storage, &present).map_err(RestoreError::Storage)?
        {
            return self.restore_beside(storage, header, &moves, present.copies, random);
        }
        self.restore_over(storage, header, present_bytes.max(needed), random)
    }

    /// Where each keyslot goes so that no keyslot of `present` is overwritten; `None` without room.
    fn moves<S: Storage>(&self, storage: &mut S, present: &Header) -> Result<Option<Vec<Move>>, S::Error> {
        let slots = &self.header.metadata.slots;
        let mut used: Vec<_> = present.metadata.slots.values().map(|slot| slot.area.clone()).collect();
        let mut moves = Vec::with_capacity(slots.len());
        let mut conflicts = Vec::new();
        for (id, slot) in slots {
            let from = slot.area.clone();
            let is_free = used.iter().all(|area| area.end <= from.start || from.end <= area.start);
            let mut there = vec![0; (from.end - from.start) as usize];
            storage.read(from.start, &mut there)?;
            let is_there = there == self.at(&from);
            if is_free || is_there {
                moves.push(Move { id: *id, to: from.start, from, is_there });
            } else {
                conflicts.push((*id, from));
            }
        }
        used.extend(moves.iter().map(|slot| slot.from.clone()));
        for (id, from) in conflicts {
            let bytes = from.end - from.start;
            let Some(to) = first_fit(self.header.metadata.keyslots.clone(), used.clone(), bytes) else {
                return Ok(None);
            };
            used.push(to..to + bytes);
            moves.push(Move { id, from, to, is_there: false });
        }
        Ok(Some(moves))
    }

    fn restore_beside<S: Storage>(
        &self,
        storage: &mut S,
        mut header: Header,
        moves: &[Move],
        present: Copies,
        random: Random<'_>,
    ) -> Result<Header, RestoreError<S::Error>> {
        for Move { id, to, .. } in moves {
            header.json["keyslots"][id.to_string()]["area"]["offset"] = json!(to.to_string());
        }
        header.metadata = Metadata::parse(&header.json, header.binary.header_bytes)
            .expect("areas within the keyslot area that do not overlap");
        let text = header.text().ok_or(RestoreError::NoRoomInJson)?;
        for Move { from, to, .. } in moves.iter().filter(|slot| !slot.is_there) {
            storage.write(*to, self.at(from)).map_err(RestoreError::Storage)?;
        }
        storage.flush().map_err(RestoreError::Storage)?;
        copies::write(storage, present, &header.binary, &text, random).map_err(RestoreError::Storage)?;
        let used = header.metadata.slots.values().map(|slot| slot.area.clone()).collect();
        for gap in gaps(header.metadata.keyslots.clone(), used) {
            wipe(storage, gap, random).map_err(RestoreError::Storage)?;
        }
        Ok(header)
    }

    /// Copies of a header in the first `erased` bytes are erased first.
    fn restore_over<S: Storage>(
        &self,
        storage: &mut S,
        header: Header,
        erased: u64,
        random: Random<'_>,
    ) -> Result<Header, RestoreError<S::Error>> {
        let text = header.text().ok_or(RestoreError::NoRoomInJson)?;
        copies::erase(storage, erased).map_err(RestoreError::Storage)?;
        let Range { start, end } = header.metadata.keyslots;
        for at in (start..end).step_by(REQUEST_BYTES as usize) {
            let request = at..end.min(at + REQUEST_BYTES);
            storage.write(at, self.at(&request)).map_err(RestoreError::Storage)?;
        }
        storage.flush().map_err(RestoreError::Storage)?;
        copies::write(storage, Copies::Both, &header.binary, &text, random).map_err(RestoreError::Storage)?;
        Ok(header)
    }

    fn at(&self, area: &Range<u64>) -> &[u8] {
        &self.bytes[area.start as usize..area.end as usize]
    }
}

/// A keyslot of a backup and its place on the storage.
struct Move {
    id: u8,
    from: Range<u64>,
    to: u64,
    /// The storage has these bytes there.
    is_there: bool,
}

impl Header {
    fn has_layout_of(&self, other: &Self) -> bool {
        let layout = |header: &Self| (header.binary.header_bytes, header.metadata.keyslots.clone());
        layout(self) == layout(other)
    }
}

/// A backup as a storage that is only read.
struct Bytes<'a>(&'a [u8]);

impl Storage for Bytes<'_> {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Infallible> {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Infallible> {
        unreachable!("reading a header does not write")
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
