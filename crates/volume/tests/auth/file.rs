//! The local file of a ledger: of the writes since the last sync, a crash of the client keeps any sectors.

use super::Random;

pub(super) type WriteId = u64;

#[derive(Clone, Debug)]
struct Write {
    id: WriteId,
    offset: u64,
    bytes: Vec<u8>,
    is_complete: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct File {
    durable: Vec<u8>,
    writes: Vec<Write>,
    next: WriteId,
    pub(super) syncs: u64,
}

const SECTOR: usize = 512;

fn put(bytes: &mut Vec<u8>, offset: u64, from: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + from.len());
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(from);
}

impl File {
    pub(super) fn new(durable: Vec<u8>) -> Self {
        Self { durable, ..Self::default() }
    }

    pub(super) fn len(&self) -> u64 {
        self.durable.len() as u64
    }

    pub(super) fn submit(&mut self, offset: u64, bytes: Vec<u8>) -> WriteId {
        let id = self.next;
        self.next += 1;
        self.writes.push(Write { id, offset, bytes, is_complete: false });
        id
    }

    pub(super) fn complete(&mut self, id: WriteId) {
        let write = self.writes.iter_mut().find(|write| write.id == id);
        write.expect("a write completes once").is_complete = true;
    }

    /// A write fails: it may have arrived.
    pub(super) fn fail(&mut self, id: WriteId, random: &mut Random) {
        match random.one_in(2) {
            true => self.complete(id),
            false => self.writes.retain(|write| write.id != id),
        }
    }

    pub(super) fn completed(&self) -> Vec<WriteId> {
        self.writes.iter().filter(|write| write.is_complete).map(|write| write.id).collect()
    }

    pub(super) fn make_durable(&mut self, ids: &[WriteId]) {
        self.syncs += 1;
        let (done, left): (Vec<Write>, _) =
            std::mem::take(&mut self.writes).into_iter().partition(|write| ids.contains(&write.id));
        self.writes = left;
        for write in done {
            put(&mut self.durable, write.offset, &write.bytes);
        }
    }

    /// Bytes beyond the end are zero.
    pub(super) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = self.kept();
        bytes.resize(bytes.len().max(offset as usize + length), 0);
        bytes[offset as usize..][..length].to_vec()
    }

    /// What the file has if the process ends and the client goes on.
    pub(super) fn kept(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for write in &self.writes {
            put(&mut bytes, write.offset, &write.bytes);
        }
        bytes
    }

    /// The file after the end of the process: what it had written is seen, and not yet durable.
    pub(super) fn after_kill(&self) -> Self {
        let mut file = self.clone();
        file.writes.iter_mut().for_each(|write| write.is_complete = true);
        file
    }

    /// The file after a crash of the client, which keeps any sectors.
    pub(super) fn after_crash(&self, random: &mut Random) -> Self {
        let pieces = self.volatile();
        Self::new(self.image(pieces.iter().filter(|_| random.one_in(2))))
    }

    /// Sectors that a crash of the client may keep or not.
    pub(super) fn volatile(&self) -> Vec<(u64, Vec<u8>)> {
        let mut pieces = Vec::new();
        for write in &self.writes {
            let (mut offset, mut bytes) = (write.offset, &write.bytes[..]);
            while !bytes.is_empty() {
                let length = (SECTOR - offset as usize % SECTOR).min(bytes.len());
                pieces.push((offset, bytes[..length].to_vec()));
                (offset, bytes) = (offset + length as u64, &bytes[length..]);
            }
        }
        pieces
    }

    /// The file if a crash keeps these of the [`Self::volatile`] pieces.
    pub(super) fn image<'a>(&self, kept: impl IntoIterator<Item = &'a (u64, Vec<u8>)>) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (offset, piece) in kept {
            put(&mut bytes, *offset, piece);
        }
        bytes
    }
}
