//! A volume becomes larger, within the room that its map and contexts have.

use super::keys::EpochKeys;
use super::ledger::{HEADERS_BYTES, Header, LedgerLayout};
use super::superblock::WRITER_BYTES;
use super::{BLOCK_BYTES, Cipher, Keys, Layout, LedgerError, PAGE_BYTES, Superblock, Unit};
use crate::Storage;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError<E> {
    #[error("{0}")]
    Storage(E),
    #[error("the volume's superblock does not verify")]
    Damaged,
    #[error("the volume has {now} bytes, and does not become smaller")]
    Smaller { now: u64 },
    #[error("the volume's contexts have room for {most} bytes")]
    Capacity { most: u64 },
    #[error("the storage has room for {most} bytes of the volume")]
    StorageFull { most: u64 },
}

/// A volume that is not open, and what it can become.
#[derive(Clone, Debug)]
pub struct Room {
    superblock: Superblock,
    layout: Layout,
    /// Bytes that the storage has room for, whatever the contexts have.
    storage_bytes: u64,
}

impl Room {
    pub fn read<S: Storage>(
        storage: &mut S,
        keys: &Keys,
        (cipher, unit, segment): (Cipher, Unit, u64),
    ) -> Result<Self, GrowError<S::Error>> {
        let place = Layout::new(cipher, unit, segment, 1).map_err(|_| GrowError::Damaged)?.superblock(0);
        let mut copies = vec![0; 2 * PAGE_BYTES];
        storage.read(place, &mut copies).map_err(GrowError::Storage)?;
        let (first, second) = copies.split_at(PAGE_BYTES);
        let superblock = Superblock::latest(keys, [first, second]).ok_or(GrowError::Damaged)?;
        let layout =
            Layout::new(cipher, unit, segment, superblock.capacity).map_err(|_| GrowError::Damaged)?;
        let block = BLOCK_BYTES as u64;
        let storage_bytes = storage.size_bytes().saturating_sub(layout.data_offset(0)) / block * block;
        Ok(Self { superblock, layout, storage_bytes })
    }

    pub fn size_bytes(&self) -> u64 {
        self.superblock.blocks * BLOCK_BYTES as u64
    }

    /// Bytes that the contexts have room for.
    pub fn capacity_bytes(&self) -> u64 {
        self.layout.capacity * BLOCK_BYTES as u64
    }

    /// Bytes of the volume that the storage has room for.
    pub fn storage_bytes(&self) -> u64 {
        self.storage_bytes
    }

    /// The largest size.
    pub fn most_bytes(&self) -> u64 {
        self.storage_bytes.min(self.capacity_bytes())
    }

    /// Makes the volume larger: a write of the superblock's other copy, so that a cut leaves the old size or the new one. `writer`
    /// is randomness: a process that has the volume open notices another writer.
    pub fn grow<S: Storage>(
        &mut self,
        storage: &mut S,
        keys: &Keys,
        size_bytes: u64,
        writer: [u8; WRITER_BYTES],
    ) -> Result<(), GrowError<S::Error>> {
        let (now, capacity) = (self.size_bytes(), self.capacity_bytes());
        if size_bytes < now {
            return Err(GrowError::Smaller { now });
        }
        if size_bytes > capacity {
            return Err(GrowError::Capacity { most: capacity });
        }
        if size_bytes > self.storage_bytes {
            return Err(GrowError::StorageFull { most: self.storage_bytes });
        }
        let blocks = size_bytes / BLOCK_BYTES as u64;
        if blocks == self.superblock.blocks {
            return Ok(());
        }
        // What the other process wrote, and what this one read, is durable before a later superblock is.
        storage.flush().map_err(GrowError::Storage)?;
        (self.superblock.blocks, self.superblock.writer) = (blocks, writer);
        self.superblock.sequence += 1;
        let mut bytes = self.superblock.emit(keys).to_vec();
        bytes.resize(PAGE_BYTES, 0);
        let offset = self.layout.superblock((self.superblock.sequence + 1) % 2);
        storage.write(offset, &bytes).map_err(GrowError::Storage)?;
        storage.flush().map_err(GrowError::Storage)
    }

    fn epoch(&self, keys: &Keys) -> EpochKeys {
        keys.of_epoch(&self.layout, self.superblock.epoch)
    }

    /// What the volume's ledger, of whose file these are the first [`Self::LEDGER_BYTES`], has to become after a change: an offset and
    /// bytes. Before one, whether it is the ledger of this volume.
    pub fn note(&self, keys: &Keys, ledger: &[u8]) -> Result<(u64, Vec<u8>), RoomLedgerError> {
        let epoch = self.epoch(keys);
        let mut header = Header::latest(&epoch, ledger)?;
        if self.superblock.sequence < header.sequence {
            return Err(RoomLedgerError::OldVolume);
        }
        if self.superblock.session > header.session {
            return Err(LedgerError::Behind.into());
        }
        header.serial += 1;
        header.sequence = self.superblock.sequence;
        Ok((LedgerLayout::header_offset(header.serial), header.emit(&epoch).to_vec()))
    }

    pub const LEDGER_BYTES: usize = HEADERS_BYTES;
}

/// Why a ledger and a volume are not of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoomLedgerError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("the storage has an older state of the volume than was flushed")]
    OldVolume,
}
