//! A disk with a volatile cache: of the writes since the last barrier, power loss keeps any pieces.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Random;
use volume::auth::Unit;

const PAGE: u64 = 4096;

pub(super) type WriteId = u64;

/// A part of a write that is kept whole or lost whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) bytes: Rc<[u8]>,
}

#[derive(Clone, Debug)]
struct Write {
    id: WriteId,
    pieces: Vec<Piece>,
    is_complete: bool,
}

/// Bytes by page; absent ones are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Image(BTreeMap<u64, Rc<[u8; 4096]>>);

impl Image {
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        for (at, chunk) in (offset..).step_by(512).zip(into.chunks_mut(512)) {
            let start = (at % PAGE) as usize;
            match self.0.get(&(at / PAGE)) {
                Some(page) => chunk.copy_from_slice(&page[start..start + chunk.len()]),
                None => chunk.fill(0),
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (at, chunk) in (offset..).step_by(512).zip(bytes.chunks(512)) {
            let start = (at % PAGE) as usize;
            let page = self.0.entry(at / PAGE).or_insert_with(|| Rc::new([0; 4096]));
            Rc::make_mut(page)[start..start + chunk.len()].copy_from_slice(chunk);
        }
    }

    /// Equal images have equal digests, and different ones most likely not.
    pub(super) fn digest(&self) -> u64 {
        let mix = |digest: u64, word: u64| (digest.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0.iter().fold(0, |digest, (page, bytes)| {
            let words =
                bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
            words.fold(mix(digest, *page), mix)
        })
    }

    fn holds(&self, piece: &Piece) -> bool {
        let mut bytes = [0; PAGE as usize];
        let bytes = &mut bytes[..piece.bytes.len()];
        self.read(piece.offset, bytes);
        *bytes == *piece.bytes
    }
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) unit: Unit,
    durable: Image,
    writes: Vec<Write>,
    next: WriteId,
    /// Barriers so far.
    pub(super) barriers: u64,
    /// Bytes written so far.
    pub(super) written: u64,
}

impl Disk {
    pub(super) fn new(unit: Unit, durable: Image) -> Self {
        Self { unit, durable, writes: Vec::new(), next: 0, barriers: 0, written: 0 }
    }

    /// Begins a write: from now on, power loss may keep any of its pieces.
    pub(super) fn submit(&mut self, offset: u64, bytes: &[u8]) -> WriteId {
        let size = self.unit.bytes() as usize;
        let pieces = (offset..)
            .step_by(size)
            .zip(bytes.chunks(size))
            .map(|(offset, bytes)| Piece { offset, bytes: bytes.into() });
        let id = self.next;
        self.next += 1;
        self.writes.push(Write { id, pieces: pieces.collect(), is_complete: false });
        self.written += bytes.len() as u64;
        id
    }

    pub(super) fn complete(&mut self, id: WriteId) {
        let write = self.writes.iter_mut().find(|write| write.id == id);
        write.expect("a write completes once").is_complete = true;
    }

    /// A write fails: some pieces of it may have arrived.
    pub(super) fn fail(&mut self, id: WriteId, random: &mut Random) {
        let write = self.writes.iter_mut().find(|write| write.id == id).expect("a write fails once");
        write.is_complete = true;
        write.pieces.retain(|_| random.one_in(2));
    }

    /// The writes that a barrier that begins now makes durable.
    pub(super) fn completed(&self) -> Vec<WriteId> {
        self.writes.iter().filter(|write| write.is_complete).map(|write| write.id).collect()
    }

    pub(super) fn make_durable(&mut self, ids: &[WriteId]) {
        self.barriers += 1;
        let (done, left) =
            std::mem::take(&mut self.writes).into_iter().partition(|write| ids.contains(&write.id));
        self.writes = left;
        for piece in <Vec<Write>>::into_iter(done).flat_map(|write| write.pieces) {
            self.durable.write(piece.offset, &piece.bytes);
        }
    }

    /// What a read sees; of writes in flight, any pieces.
    pub(super) fn read(&self, offset: u64, into: &mut [u8], random: &mut Random) {
        self.durable.read(offset, into);
        for write in &self.writes {
            for piece in &write.pieces {
                let end = piece.offset + piece.bytes.len() as u64;
                let (first, last) = (piece.offset.max(offset), end.min(offset + into.len() as u64));
                if first < last && (write.is_complete || random.one_in(2)) {
                    let from = &piece.bytes[(first - piece.offset) as usize..(last - piece.offset) as usize];
                    into[(first - offset) as usize..(last - offset) as usize].copy_from_slice(from);
                }
            }
        }
    }

    /// Power is lost and comes back: any pieces of what was not durable are kept.
    pub(super) fn lose_power(&mut self, random: &mut Random) {
        let keeps = 1 + random.below(4);
        let writes = std::mem::take(&mut self.writes);
        let (done, in_flight): (Vec<Write>, Vec<Write>) =
            writes.into_iter().partition(|write| write.is_complete);
        for piece in done.into_iter().flat_map(|write| write.pieces) {
            if random.below(4) < keeps {
                self.durable.write(piece.offset, &piece.bytes);
            }
        }
        // The storage performs those again that it had not answered.
        self.writes = in_flight;
    }

    /// The disk after the end of the process: of writes in flight, any pieces arrive.
    pub(super) fn after_kill(&self, random: &mut Random) -> Self {
        let mut disk = self.clone();
        for write in &mut disk.writes {
            if !write.is_complete {
                write.is_complete = true;
                write.pieces.retain(|_| random.one_in(2));
            }
        }
        disk
    }

    /// What power loss may keep or not, by write; without pieces that change nothing.
    pub(super) fn volatile(&self) -> Vec<Vec<Piece>> {
        let mut offsets = Vec::new();
        let mut writes = Vec::new();
        for write in &self.writes {
            let mut pieces = Vec::new();
            for piece in &write.pieces {
                if offsets.contains(&piece.offset) || !self.durable.holds(piece) {
                    offsets.push(piece.offset);
                    pieces.push(piece.clone());
                }
            }
            if !pieces.is_empty() {
                writes.push(pieces);
            }
        }
        writes
    }

    /// What is on the disk if power loss keeps these of the [`Self::volatile`] pieces.
    pub(super) fn image(&self, kept: impl IntoIterator<Item = Piece>) -> Image {
        let mut image = self.durable.clone();
        for piece in kept {
            image.write(piece.offset, &piece.bytes);
        }
        image
    }
}
