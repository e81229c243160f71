//! A sealed volume between the disk and LUN 0: formatted before the first boot, opened anew at each boot.
//!
//! [`Volume::read`] reads what the disk holds while no server runs, by the state machine of the crate `volume` alone: it
//! shares neither memory nor the layer of `block` with the target, and its result depends only on the bytes of the disk.

use std::collections::HashMap;
use std::sync::Arc;

use block::layer::volume::{auth_of_keys, luks2_of_key};
use block::{Medium, OpenError};
use volume::auth::{
    self, Action, BLOCK_BYTES, Cipher, Keys, Layout, Operation, Outcome, REQUEST_BYTES_MAX, ReadError,
    Request, Source, State, Unit,
};
use xts::Xts;
use zeroize::Zeroizing;

use crate::disk::{Disk, SECTOR};
use crate::random::Random;

const KEY: [u8; 64] = {
    // XTS refuses equal halves.
    let mut key = [3; 64];
    key[0] = 4;
    key
};
const UUID: &str = "00000000-0000-4000-8000-000000000000";
/// Offset of the data of a `luks2` volume.
const LUKS2_OFFSET: u64 = 4096;
const BLOCK_SECTORS: u64 = (BLOCK_BYTES / SECTOR) as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    /// The disk keeps as many bytes whole as the unit has.
    Auth(Cipher, Unit),
    /// In sectors of 512 bytes.
    Luks2,
}

/// How the last one who wrote has left a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) is_closed: bool,
    /// Number of its session.
    pub(super) session: u32,
}

impl Volume {
    /// `None` in seven runs of twelve.
    pub(super) fn choose(random: &mut Random) -> Option<Self> {
        match random.within(0..12) {
            0 => Some(Self::Auth(Cipher::Aes256GcmSiv, Unit::Bytes512)),
            1 => Some(Self::Auth(Cipher::Aes256GcmSiv, Unit::Bytes4096)),
            2 => Some(Self::Auth(Cipher::Aegis256X4, Unit::Bytes512)),
            3 => Some(Self::Auth(Cipher::Aegis256X4, Unit::Bytes4096)),
            4 => Some(Self::Luks2),
            _ => None,
        }
    }

    /// Whether writes that were acknowledged and not flushed are lost with the process, not only with the power.
    pub(super) fn has_memory(self) -> bool {
        matches!(self, Self::Auth(..))
    }

    /// The first sector of a range that crosses a page or a group of contexts soon, or of any range.
    pub(super) fn crossing(self, random: &mut Random) -> u64 {
        let Self::Auth(cipher, _) = self else { return 0 };
        let page = BLOCK_SECTORS
            * match cipher {
                Cipher::Aes256GcmSiv => 64,
                Cipher::Aegis256X4 => 40,
            };
        random.pick(&[0, page, 4 * page]).saturating_sub(random.pick(&[64, 128, 192]))
    }

    /// A disk with this volume, of zeroes.
    pub(super) fn disk(self, name: &str, sectors: u64, random: Random, latency_max: u64) -> Disk {
        match self {
            Self::Auth(cipher, unit) => {
                let blocks = sectors / BLOCK_SECTORS;
                let layout = Layout::new(cipher, unit, 0, blocks).expect("a small volume");
                let disk = Disk::of_units(name, layout.end(), unit.bytes(), random, latency_max);
                for (offset, bytes) in auth::format(&layout, &keys(cipher, unit), blocks) {
                    disk.put(offset, &bytes);
                }
                disk
            }
            Self::Luks2 => {
                let disk = Disk::new(name, LUKS2_OFFSET / SECTOR as u64 + sectors, random, latency_max);
                let mut bytes = vec![0; sectors as usize * SECTOR];
                xts().seal(0, &mut bytes);
                disk.put(LUKS2_OFFSET, &bytes);
                disk
            }
        }
    }

    /// The plaintext, for one life of a process.
    pub(super) fn medium(self, disk: &Disk) -> Result<Arc<dyn Medium>, OpenError> {
        let inner = Arc::new(disk.clone());
        match self {
            Self::Auth(cipher, unit) => {
                let storage = (disk.size_bytes(), false);
                auth_of_keys(inner, keys(cipher, unit), (cipher, unit, 0), storage, UUID.to_owned(), None)
            }
            Self::Luks2 => {
                let key = Zeroizing::new(KEY.to_vec());
                Ok(luks2_of_key(inner, key, (LUKS2_OFFSET, None), SECTOR as u32, UUID.to_owned()))
            }
        }
    }

    /// What the disk holds. `recovers`: as the next writer finds it, which first writes what the last one left; otherwise as
    /// one finds it who only reads.
    pub(super) fn read(self, disk: &Disk, recovers: bool) -> Result<Vec<u8>, String> {
        match self {
            Self::Auth(cipher, unit) => {
                let mut reader = Reader::open(cipher, unit, disk, !recovers)?;
                reader.read_all()?;
                Ok(reader.contents)
            }
            Self::Luks2 => {
                let mut contents = disk.contents().split_off(LUKS2_OFFSET as usize);
                xts().open(0, &mut contents);
                Ok(contents)
            }
        }
    }

    /// How the last one who wrote has left it; `None` for a volume without such a state.
    pub(super) fn left(self, disk: &Disk) -> Result<Option<Left>, String> {
        let Self::Auth(cipher, unit) = self else { return Ok(None) };
        let reader = Reader::open(cipher, unit, disk, true)?;
        let superblock = reader.volume.superblock();
        Ok(Some(Left { is_closed: superblock.is_closed, session: superblock.session }))
    }
}

fn keys(cipher: Cipher, unit: Unit) -> Keys {
    Keys::new(&KEY, UUID, cipher, unit, 0)
}

fn xts() -> Xts {
    Xts::new(&KEY, SECTOR).expect("a key of 512 bits")
}

struct Reader<'a> {
    disk: &'a Disk,
    /// What recovery has written: offset and bytes, in order.
    written: Vec<(u64, Vec<u8>)>,
    volume: auth::Volume<String>,
    /// Blocks in memory, by slot.
    held: HashMap<u32, Vec<u8>>,
    contents: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn open(cipher: Cipher, unit: Unit, disk: &'a Disk, is_read_only: bool) -> Result<Self, String> {
        let (place, size_bytes) = ((cipher, unit, 0), disk.size_bytes());
        let volume = auth::Volume::new(keys(cipher, unit), place, size_bytes, [0; 16], is_read_only)
            .map_err(|error| error.to_string())?;
        let (written, held, contents) = (Vec::new(), HashMap::new(), Vec::new());
        let mut this = Self { disk, written, volume, held, contents };
        this.turn()?;
        match this.volume.state() {
            State::Open => Ok(this),
            state => Err(format!("the volume does not open: {state:?}, {:?}", this.volume.failure())),
        }
    }

    fn read_all(&mut self) -> Result<(), String> {
        let size_bytes = self.volume.size_bytes();
        while (self.contents.len() as u64) < size_bytes {
            let offset = self.contents.len() as u64;
            let length = (size_bytes - offset).min(REQUEST_BYTES_MAX);
            self.volume.submit(0, Request::Read { offset, length });
            self.turn()?;
            if self.contents.len() as u64 == offset {
                return Err(format!("a read at {offset} does not end"));
            }
        }
        Ok(())
    }

    fn stored(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = self.disk.read(offset, length);
        for (at, written) in &self.written {
            let (start, end) = (offset.max(*at), (offset + length as u64).min(at + written.len() as u64));
            if start < end {
                let from = &written[(start - at) as usize..(end - at) as usize];
                bytes[(start - offset) as usize..(end - offset) as usize].copy_from_slice(from);
            }
        }
        bytes
    }

    /// Takes actions until there are none.
    fn turn(&mut self) -> Result<(), String> {
        while let Some(action) = self.volume.poll() {
            match action {
                Action::Operate { id, operation } => {
                    let outcome = self.operate(operation)?;
                    self.volume.done(id, outcome);
                }
                Action::Open { id, sources } => {
                    let first = (self.contents.len() / BLOCK_BYTES) as u64;
                    let opened = self.unseal(first, &sources).map(|bytes| self.contents.extend(bytes));
                    self.volume.opened(id, opened);
                }
                Action::Fetch { .. } => {}
                Action::Complete { result, .. } => result.map_err(|failure| failure.to_string())?,
                action => return Err(format!("a reader is to do this: {action:?}")),
            }
        }
        Ok(())
    }

    fn operate(&mut self, operation: Operation) -> Result<Outcome<String>, String> {
        match operation {
            Operation::Read { offset, length } => {
                return Ok(Outcome::Read(self.stored(offset, length)));
            }
            Operation::Write { offset, bytes } => self.written.push((offset, bytes)),
            Operation::FillSlot { slot, bytes } => {
                self.held.insert(slot, bytes);
            }
            Operation::Barrier => {}
            operation => return Err(format!("a reader is to do this: {operation:?}")),
        }
        Ok(Outcome::Done)
    }

    fn unseal(&self, first: u64, sources: &[Source]) -> Result<Vec<u8>, ReadError<String>> {
        let (sealer, layout) = (self.volume.sealer(), self.volume.layout());
        let mut bytes = vec![0; sources.len() * BLOCK_BYTES];
        for ((block, source), data) in (first..).zip(sources).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            let offset = layout.data_offset(block);
            let is_opened = match source {
                Source::Zeroes => true,
                Source::Stored(candidates) => {
                    data.copy_from_slice(&self.stored(offset, BLOCK_BYTES));
                    sealer.open_any(block, candidates, data).is_ok()
                }
                Source::Held { slot, context } => {
                    data.copy_from_slice(&self.held[slot]);
                    sealer.open(block, context, data).is_ok()
                }
                Source::Invalid => false,
            };
            if !is_opened {
                return Err(ReadError::Unverified { block });
            }
        }
        Ok(bytes)
    }
}
