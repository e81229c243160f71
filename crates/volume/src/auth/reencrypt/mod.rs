//! A volume gets another key, in place (docs/VOLUME.md, "Re-encryption").
//!
//! [`Reencryption::read`] finds out how far it is, [`Reencryption::begin`] claims the volume, and [`Reencryption::step`] moves a
//! part of it until it returns false. The header names both keys from before the beginning until after the end. A cut
//! anywhere, or an error, leaves a volume that is read again and goes on.

mod chunk;
mod recover;
mod state;

use std::fmt;
use std::ops::Range;

use super::context::SESSION_MAX;
use super::keys::{EpochKeys, is_equal};
use super::map::Groups;
use super::superblock::WRITER_BYTES;
use super::{BLOCK_BYTES, Cipher, Keys, Layout, PAGE_BYTES, SECTOR_BYTES, Sealer, Superblock, Unit};
use crate::Storage;
use crate::luks2::Random;
use state::Moving;

/// Bytes of the map that are read or written in one request.
const MAP_REQUEST_BYTES: usize = 1 << 20;
/// Most offsets of an [`Unverified`].
const OFFSETS_MAX: usize = 10;
/// Most ranges of [`Reencryption::given_up`].
const GIVEN_UP_MAX: usize = 100;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReencryptError<E> {
    #[error("{0}")]
    Storage(E),
    #[error("the volume's superblock does not verify")]
    Damaged,
    #[error("sector {sector} of the volume's map does not verify")]
    Map { sector: u64 },
    /// Blocks of one part, of which nothing was changed.
    #[error(transparent)]
    Unverified(#[from] Unverified),
    #[error("the new key in the header is not the one that the re-encryption began with")]
    OtherKey,
    #[error("the storage ends within the volume")]
    Truncated,
    #[error("the volume has no session numbers left")]
    Exhausted,
    #[error("another program has begun to re-encrypt the volume, or uses it")]
    Foreign,
}

/// Blocks that do not verify in the part that was examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unverified {
    pub blocks: u64,
    /// Bytes of the volume at which the first ten of them begin.
    pub offsets: Vec<u64>,
}

impl std::error::Error for Unverified {}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [offset] = self.offsets[..] {
            return write!(f, "the block at byte {offset} does not verify");
        }
        let offsets: Vec<_> = self.offsets.iter().map(u64::to_string).collect();
        let more = if self.blocks > self.offsets.len() as u64 { ", ..." } else { "" };
        let (blocks, offsets) = (self.blocks, offsets.join(", "));
        write!(f, "{blocks} blocks do not verify in the part examined, at bytes {offsets}{more}")
    }
}

/// How far a re-encryption is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReencryptionProgress {
    /// Bytes of groups that have been written at some time; others have nothing to move.
    pub total_bytes: u64,
    pub moved_bytes: u64,
    /// Blocks that did not verify and were given up.
    pub lost_blocks: u64,
}

/// A volume that is not open, on its way from one key to another. After an error it is dropped and read again.
pub struct Reencryption {
    layout: Layout,
    old: Side,
    new: Side,
    /// Of the journal's pages; its other keys are not used.
    reencryption: EpochKeys,
    state: Moving,
    stage: Stage,
    groups: Groups,
    /// Most groups that a step moves.
    step_groups: u64,
    /// Groups before this one have their data in place.
    at: u64,
    /// Contexts without the old versions of the groups from `settled` to `at`, to be written once the data is durable.
    settling: Vec<(u64, Vec<u8>)>,
    /// Groups before this one have such contexts in place; those from [`Moving::moved`] on not durably.
    settled: u64,
    /// Blocks given up of groups from `settled` on, and of those from [`Moving::moved`] to `settled`.
    losing: [u64; 2],
    given_up: Vec<Range<u64>>,
    /// The last batch of the journal.
    batch: u64,
    /// Bytes of the groups that have blocks; of those before `at`.
    total_bytes: u64,
    moved_bytes: u64,
}

/// One of the two keys.
struct Side {
    keys: Keys,
    epoch: EpochKeys,
    sealer: Sealer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Data,
    /// All data has the new key.
    Map,
    /// The superblock has it, too.
    Done,
}

impl fmt::Debug for Reencryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reencryption").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Side {
    fn new(keys: &Keys, layout: &Layout, epoch: u32) -> Self {
        let epoch = keys.of_epoch(layout, epoch);
        let sealer = Sealer::new(layout.cipher, &epoch.data);
        Self { keys: keys.clone(), epoch, sealer }
    }
}

impl Reencryption {
    /// Reads a volume whose header has both keys. `blocks_max` bounds the memory: a step takes that many blocks, or one
    /// group where it is less.
    pub fn read<S: Storage>(
        storage: &mut S,
        [old, new]: [&Keys; 2],
        (cipher, unit, segment): (Cipher, Unit, u64),
        blocks_max: u64,
    ) -> Result<Self, ReencryptError<S::Error>> {
        let copies = read_copies(storage, (cipher, unit, segment))?;
        let (state, is_done) = match moved(new, &copies) {
            Some(superblock) => (Moving::not_begun(superblock), true),
            None => (Moving::latest(old, &copies).ok_or(ReencryptError::Damaged)?, false),
        };
        let superblock = &state.superblock;
        let layout = Layout::new(cipher, unit, segment, superblock.capacity);
        let layout = layout.map_err(|_| ReencryptError::Damaged)?;
        if !(1..=layout.capacity).contains(&superblock.blocks) {
            return Err(ReencryptError::Damaged);
        }
        if layout.data_offset(superblock.blocks) > storage.size_bytes() {
            return Err(ReencryptError::Truncated);
        }
        let epoch = if is_done { superblock.epoch - 1 } else { superblock.epoch };
        let next = epoch.checked_add(1).ok_or(ReencryptError::Exhausted)?;
        let (old, new) = (Side::new(old, &layout, epoch), Side::new(new, &layout, next));
        let journal = new.keys.of_reencryption(&layout, next);
        if state.first_session > 0 && !is_equal(&state.commitment, &Moving::commitment(&journal)) {
            return Err(ReencryptError::OtherKey);
        }
        let reencryption = EpochKeys { meta: journal, ..new.epoch.clone() };
        let blocks_max = match unit {
            Unit::Bytes512 => layout.journal_blocks().min(blocks_max),
            Unit::Bytes4096 => blocks_max,
        };
        let mut this = Self {
            old,
            new,
            reencryption,
            at: state.moved,
            settled: state.moved,
            stage: Stage::Done,
            groups: Groups::new(layout.groups()),
            step_groups: (blocks_max / layout.blocks_per_group()).max(1),
            settling: Vec::new(),
            losing: [0; 2],
            given_up: Vec::new(),
            batch: 0,
            total_bytes: 0,
            moved_bytes: 0,
            layout,
            state,
        };
        if !is_done {
            let is_moved = this.state.first_session > 0 && this.state.moved >= this.groups_end();
            this.stage = if is_moved { Stage::Map } else { Stage::Data };
            this.read_map(storage)?;
            this.total_bytes = this.bytes_of(0..this.groups_end());
            this.moved_bytes = this.bytes_of(0..this.at.min(this.groups_end()));
        }
        Ok(this)
    }

    /// The groups that have blocks.
    fn groups_end(&self) -> u64 {
        self.layout.group_of(self.state.superblock.blocks - 1) + 1
    }

    fn read_map<S: Storage>(&mut self, storage: &mut S) -> Result<(), ReencryptError<S::Error>> {
        let mut bytes = vec![0; MAP_REQUEST_BYTES];
        for pages in self.map_requests() {
            let bytes = &mut bytes[..(pages.end - pages.start) as usize * PAGE_BYTES];
            storage.read(self.layout.map_offset(pages.start), bytes).map_err(ReencryptError::Storage)?;
            for (sector, bytes) in (pages.start * 8..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
                let mut parsed = self.groups.parse_sector(&self.old.epoch, sector, bytes);
                if self.stage == Stage::Map {
                    parsed = parsed.or_else(|_| self.groups.parse_sector(&self.new.epoch, sector, bytes));
                }
                parsed.map_err(|sector| ReencryptError::Map { sector })?;
            }
        }
        Ok(())
    }

    fn map_requests(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (pages, step) = (self.layout.map_pages(), MAP_REQUEST_BYTES / PAGE_BYTES);
        (0..pages).step_by(step).map(move |first| first..pages.min(first + step as u64))
    }

    pub fn progress(&self) -> ReencryptionProgress {
        ReencryptionProgress {
            total_bytes: self.total_bytes,
            moved_bytes: self.moved_bytes,
            lost_blocks: self.state.lost + self.losing.iter().sum::<u64>(),
        }
    }

    /// Bytes of those of the groups that have blocks. The last group ends with the volume.
    fn bytes_of(&self, groups: Range<u64>) -> u64 {
        let group_blocks = self.layout.blocks_per_group();
        let present = groups.filter(|group| self.groups.contains(*group));
        let blocks =
            present.map(|group| (self.state.superblock.blocks - group * group_blocks).min(group_blocks));
        blocks.sum::<u64>() * BLOCK_BYTES as u64
    }

    /// The bytes of the volume whose blocks this value gave up: the first ranges, whose number is bounded.
    pub fn given_up(&self) -> &[Range<u64>] {
        &self.given_up
    }

    /// The bytes that [`Self::unverified`] takes, for a segment at this offset.
    pub fn state_bytes(segment: u64) -> Range<u64> {
        segment..segment + 2 * PAGE_BYTES as u64
    }

    /// Groups that are done, and all of them, as the storage says: it is not verified, and without meaning for another volume
    /// than one in re-encryption.
    pub fn unverified(cipher: Cipher, state: &[u8]) -> Option<(u64, u64)> {
        let moving = Moving::unverified(state)?;
        let layout = Layout::new(cipher, Unit::Bytes4096, 0, moving.superblock.capacity).ok()?;
        let blocks = moving.superblock.blocks;
        let groups = layout.group_of(blocks.checked_sub(1)?) + 1;
        Some((moving.moved.min(groups), groups))
    }

    /// Before [`Self::begin`], whether the first part verifies: then the volume can stay as it is. Nothing is written. Not of a
    /// volume whose journal is to be written to its places first.
    pub fn try_first<S: Storage>(
        &mut self,
        storage: &mut S,
        random: Random<'_>,
    ) -> Result<(), ReencryptError<S::Error>> {
        let is_begun = self.stage != Stage::Data || self.state.first_session > 0;
        if is_begun || (self.layout.unit == Unit::Bytes512 && !self.state.superblock.is_closed) {
            return Ok(());
        }
        let before = self.state.clone();
        self.state.superblock.note_unclean();
        self.state.first_session = before.superblock.session + 1;
        let examined = self.examine_next(storage, random);
        self.state = before;
        verified(&examined?.0).map_err(ReencryptError::from)
    }

    /// Claims the volume, durably, so that a program that has it open notices. `writer` is randomness.
    pub fn begin<S: Storage>(
        &mut self,
        storage: &mut S,
        writer: [u8; WRITER_BYTES],
    ) -> Result<(), ReencryptError<S::Error>> {
        if self.stage == Stage::Done {
            return Ok(());
        }
        // What was read may be in a cache only, and what is written now must not be durable without it.
        storage.flush().map_err(ReencryptError::Storage)?;
        // In re-encryption the superblock is not closed either.
        let is_journal_live = !self.state.superblock.is_closed;
        if self.layout.unit == Unit::Bytes512 && self.stage == Stage::Data && is_journal_live {
            self.recover(storage)?;
        }
        let state = &mut self.state;
        let session = state.superblock.session + 1;
        if session > SESSION_MAX {
            return Err(ReencryptError::Exhausted);
        }
        if state.first_session == 0 {
            state.superblock.note_unclean();
            state.first_session = session;
            state.commitment = Moving::commitment(&self.reencryption.meta);
        }
        state.superblock.session = session;
        state.superblock.is_closed = false;
        state.superblock.writer = writer;
        // Both copies: no older one opens the volume, here or in a program that has it open.
        for _ in 0..2 {
            self.write_state(storage).map_err(ReencryptError::Storage)?;
            storage.flush().map_err(ReencryptError::Storage)?;
        }
        Ok(())
    }

    fn write_state<S: Storage>(&mut self, storage: &mut S) -> Result<(), S::Error> {
        self.state.superblock.sequence += 1;
        let mut bytes = self.state.emit(&self.old.keys).to_vec();
        bytes.resize(PAGE_BYTES, 0);
        storage.write(self.layout.superblock((self.state.superblock.sequence + 1) % 2), &bytes)
    }

    /// Fails if another program has claimed the volume since [`Self::begin`].
    fn look<S: Storage>(&self, storage: &mut S) -> Result<(), ReencryptError<S::Error>> {
        let Layout { cipher, unit, segment, .. } = self.layout;
        let copies = read_copies(storage, (cipher, unit, segment))?;
        match Moving::latest(&self.old.keys, &copies) {
            Some(latest) if latest.superblock.writer == self.state.superblock.writer => Ok(()),
            Some(_) => Err(ReencryptError::Foreign),
            None if moved(&self.new.keys, &copies).is_some() => Err(ReencryptError::Foreign),
            None => Err(ReencryptError::Damaged),
        }
    }

    /// Moves a part, and returns whether another one is left. With `gives_up`, a block that does not verify is an error from
    /// now on, whatever the storage returns later; without it, the step fails before it writes anything of that part.
    pub fn step<S: Storage>(
        &mut self,
        storage: &mut S,
        gives_up: bool,
        random: Random<'_>,
    ) -> Result<bool, ReencryptError<S::Error>> {
        if self.stage == Stage::Data {
            self.move_groups(storage, gives_up, random)?;
            return Ok(true);
        }
        if self.stage == Stage::Map {
            self.look(storage)?;
            self.write_map(storage).map_err(ReencryptError::Storage)?;
            self.become_new();
        }
        // Also if it has the new key already: a cut may have left one copy.
        self.write_superblock(storage).map_err(ReencryptError::Storage)?;
        Ok(false)
    }

    fn move_groups<S: Storage>(
        &mut self,
        storage: &mut S,
        gives_up: bool,
        random: Random<'_>,
    ) -> Result<(), ReencryptError<S::Error>> {
        let (runs, end) = self.examine_next(storage, random)?;
        if !gives_up {
            verified(&runs)?;
        }
        self.look(storage)?;
        runs.iter().flat_map(|run| &run.lost).for_each(|block| note(&mut self.given_up, *block));
        self.write_runs(storage, runs, end).map_err(ReencryptError::Storage)?;
        if self.state.moved == self.groups_end() {
            storage.flush().map_err(ReencryptError::Storage)?;
            self.stage = Stage::Map;
        }
        Ok(())
    }

    /// Reads what the next round moves, and seals it in memory; the first group behind it.
    fn examine_next<S: Storage>(
        &self,
        storage: &mut S,
        random: Random<'_>,
    ) -> Result<(Vec<chunk::Run>, u64), ReencryptError<S::Error>> {
        let (ranges, end) = self.next_groups();
        let examined = ranges.into_iter().map(|groups| self.examine(storage, groups, random));
        Ok((examined.collect::<Result<_, _>>()?, end))
    }

    /// Groups to move next, and the first one behind them.
    fn next_groups(&self) -> (Vec<Range<u64>>, u64) {
        let end = self.groups_end();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut left = self.step_groups;
        let mut at = self.at;
        while at < end && left > 0 {
            if self.groups.contains(at) {
                left -= 1;
                match ranges.last_mut() {
                    Some(range) if range.end == at => range.end += 1,
                    _ => ranges.push(at..at + 1),
                }
            }
            at += 1;
        }
        (ranges, at)
    }

    /// One round, with one barrier. Unit 4096: the pairs have both versions, durably, before the data is written. The old
    /// version goes after the barrier of the next round, by which the data is durable. Unit 512: data and contexts are in the
    /// journal, durably, before they are written to their places.
    fn write_runs<S: Storage>(
        &mut self,
        storage: &mut S,
        runs: Vec<chunk::Run>,
        end: u64,
    ) -> Result<(), S::Error> {
        let layout = self.layout;
        match layout.unit {
            Unit::Bytes4096 => runs.iter().try_for_each(|run| run.write_beside(storage, &layout))?,
            Unit::Bytes512 => self.write_batch(storage, &runs)?,
        }
        storage.flush()?;
        self.state.moved = self.settled;
        self.state.lost += self.losing[1];
        self.write_state(storage)?;
        for (offset, pages) in std::mem::take(&mut self.settling) {
            storage.write(offset, &pages)?;
        }
        self.settled = self.at;
        self.losing = [0, self.losing[0]];
        for run in runs {
            run.write_data(storage, &layout)?;
            self.losing[0] += run.lost.len() as u64;
            self.settling.push(run.into_settled(&layout));
        }
        self.moved_bytes += self.bytes_of(self.at..end);
        self.at = end;
        if layout.unit == Unit::Bytes512 {
            // The journal has them.
            for (offset, pages) in std::mem::take(&mut self.settling) {
                storage.write(offset, &pages)?;
            }
            self.settled = end;
            self.losing = [0, self.losing.iter().sum()];
        }
        Ok(())
    }

    /// Each sector under the new key; a cut leaves sectors of both.
    fn write_map<S: Storage>(&self, storage: &mut S) -> Result<(), S::Error> {
        for pages in self.map_requests() {
            let offset = self.layout.map_offset(pages.start);
            let emitted = pages.flat_map(|page| self.groups.emit_page(&self.new.epoch, page));
            storage.write(offset, &emitted.collect::<Vec<_>>())?;
        }
        storage.flush()
    }

    fn become_new(&mut self) {
        let superblock = &mut self.state.superblock;
        superblock.sequence += 1;
        superblock.epoch += 1;
        superblock.is_closed = true;
        superblock.journal_from = 0;
        superblock.unclean.clear();
        self.stage = Stage::Done;
    }

    /// Both copies under the new key, the older one first.
    fn write_superblock<S: Storage>(&self, storage: &mut S) -> Result<(), S::Error> {
        let superblock = &self.state.superblock;
        let mut bytes = superblock.emit(&self.new.keys).to_vec();
        bytes.resize(PAGE_BYTES, 0);
        for copy in [superblock.sequence + 1, superblock.sequence] {
            storage.write(self.layout.superblock(copy % 2), &bytes)?;
            storage.flush()?;
        }
        Ok(())
    }
}

fn verified(runs: &[chunk::Run]) -> Result<(), Unverified> {
    let lost = || runs.iter().flat_map(|run| &run.lost);
    let offsets: Vec<_> = lost().take(OFFSETS_MAX).map(|block| block * BLOCK_BYTES as u64).collect();
    if offsets.is_empty() { Ok(()) } else { Err(Unverified { blocks: lost().count() as u64, offsets }) }
}

/// Adds a block to the ranges of bytes, unless there are too many.
fn note(ranges: &mut Vec<Range<u64>>, block: u64) {
    let start = block * BLOCK_BYTES as u64;
    let end = start + BLOCK_BYTES as u64;
    let has_room = ranges.len() < GIVEN_UP_MAX;
    match ranges.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ if has_room => ranges.push(start..end),
        _ => {}
    }
}

fn read_copies<S: Storage>(
    storage: &mut S,
    (cipher, unit, segment): (Cipher, Unit, u64),
) -> Result<Vec<u8>, ReencryptError<S::Error>> {
    let place = Layout::new(cipher, unit, segment, 1).map_err(|_| ReencryptError::Damaged)?.superblock(0);
    let mut copies = vec![0; 2 * PAGE_BYTES];
    storage.read(place, &mut copies).map_err(ReencryptError::Storage)?;
    Ok(copies)
}

/// The superblock under the new key, which is written last, under the next epoch.
fn moved(new: &Keys, copies: &[u8]) -> Option<Superblock> {
    let (first, second) = copies.split_at(PAGE_BYTES);
    Superblock::latest(new, [first, second]).filter(|superblock| superblock.epoch > 0)
}
