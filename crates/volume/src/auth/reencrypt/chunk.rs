//! Groups on their way to the new key: read, verified with either key, and sealed again in memory.

use std::ops::Range;

use zeroize::Zeroizing;

use super::super::context::{ContextPage, Pair};
use super::super::{BLOCK_BYTES, Cipher, Context, Generation, Layout, PAGE_BYTES};
use super::{ReencryptError, Reencryption, Side};
use crate::Storage;
use crate::luks2::Random;

/// Neighbouring groups.
pub(super) struct Run {
    first_page: u64,
    /// Contexts as the storage has them, as they are before data is written - old version and new one - and as they are
    /// after it.
    stored: Vec<u8>,
    beside: Vec<u8>,
    settled: Vec<u8>,
    first_block: u64,
    /// As it is to be: blocks of `moves` are sealed with the new key, others are as they were read.
    data: Vec<u8>,
    /// Blocks that have to be written, in order.
    moves: Vec<(u64, Context)>,
    /// Blocks that do not verify, in order.
    pub(super) lost: Vec<u64>,
}

/// A block whose pair says that it is written.
enum Version {
    New(Context),
    Old(Context),
}

impl Run {
    pub(super) fn moves(&self) -> &[(u64, Context)] {
        &self.moves
    }

    /// Neighbouring blocks that have to be written: the first one and their bytes.
    pub(super) fn stretches(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.moves.chunk_by(|(block, _), (next, _)| block + 1 == *next).map(|stretch| {
            let first = stretch[0].0;
            let at = (first - self.first_block) as usize * BLOCK_BYTES;
            (first, &self.data[at..at + stretch.len() * BLOCK_BYTES])
        })
    }

    pub(super) fn write_beside<S: Storage>(&self, storage: &mut S, layout: &Layout) -> Result<(), S::Error> {
        if self.beside == self.stored {
            return Ok(());
        }
        storage.write(layout.page_offset(self.first_page), &self.beside)
    }

    pub(super) fn write_data<S: Storage>(&self, storage: &mut S, layout: &Layout) -> Result<(), S::Error> {
        self.stretches().try_for_each(|(block, bytes)| storage.write(layout.data_offset(block), bytes))
    }

    /// The contexts of the new key only, and where they lie.
    pub(super) fn into_settled(self, layout: &Layout) -> (u64, Vec<u8>) {
        (layout.page_offset(self.first_page), self.settled)
    }
}

impl Reencryption {
    /// Reads neighbouring groups, and seals again what is of the old key. Nothing is written. A block that does not
    /// verify is given up in what is returned.
    pub(super) fn examine<S: Storage>(
        &self,
        storage: &mut S,
        groups: Range<u64>,
        random: Random<'_>,
    ) -> Result<Run, ReencryptError<S::Error>> {
        let (layout, cipher) = (&self.layout, self.layout.cipher);
        let blocks = groups.start * layout.blocks_per_group()..groups.end * layout.blocks_per_group();
        let pages = layout.pages_of(&blocks);
        // Pages have room for blocks beyond the volume's end. There is no storage for them yet.
        let stored = blocks.start..blocks.end.min(self.state.superblock.blocks);
        let mut run = Run {
            first_page: pages.start,
            stored: vec![0; (pages.end - pages.start) as usize * PAGE_BYTES],
            beside: Vec::new(),
            settled: Vec::new(),
            first_block: blocks.start,
            data: vec![0; (stored.end - stored.start) as usize * BLOCK_BYTES],
            moves: Vec::new(),
            lost: Vec::new(),
        };
        storage.read(layout.page_offset(pages.start), &mut run.stored).map_err(ReencryptError::Storage)?;
        storage.read(layout.data_offset(blocks.start), &mut run.data).map_err(ReencryptError::Storage)?;
        let generation = Generation::new(self.state.superblock.session, 0);
        let mut nonce = vec![0; cipher.nonce_bytes()];
        let mut plain = Zeroizing::new([0; BLOCK_BYTES]);
        for (page, bytes) in pages.zip(run.stored.as_chunks::<PAGE_BYTES>().0) {
            let [old, new] = [&self.old, &self.new].map(|side| side.page(cipher, page, bytes));
            let mut beside = old.clone();
            let mut settled = ContextPage::unwritten(cipher, &self.new.epoch, page);
            for block in layout.blocks_of(page, &blocks) {
                let index = layout.index_in_page(block);
                let pair = old.pair(cipher, index);
                if pair == Pair::Unwritten || new.pair(cipher, index) == Pair::Unwritten {
                    continue;
                }
                let at = (block - blocks.start) as usize * BLOCK_BYTES;
                let data = run.data.get_mut(at..at + BLOCK_BYTES);
                let version = data.as_ref().and_then(|data| self.version(block, pair, data, &mut plain));
                match (version, data) {
                    (Some(Version::Old(context)), Some(data)) => {
                        random(&mut nonce);
                        let sealed = self.new.sealer.seal(block, generation, &nonce, &*plain, data);
                        beside.set_two(cipher, index, [&context, &sealed]);
                        settled.set_only(cipher, index, &sealed);
                        run.moves.push((block, sealed));
                    }
                    (Some(Version::New(context)), _) => settled.set_only(cipher, index, &context),
                    _ => {
                        settled.set_void(cipher, index);
                        run.lost.push(block);
                    }
                }
            }
            run.beside.extend_from_slice(beside.bytes());
            run.settled.extend_from_slice(settled.bytes());
        }
        Ok(run)
    }

    /// The version whose data this is, decrypted into `plain`.
    fn version(&self, block: u64, pair: Pair, data: &[u8], plain: &mut [u8; BLOCK_BYTES]) -> Option<Version> {
        let mut opens = |side: &Side, context: &Context| {
            plain.copy_from_slice(data);
            side.sealer.open(block, context, plain).is_ok()
        };
        let (later, earlier) = match pair {
            Pair::One(only) => (only, None),
            Pair::Two(later, earlier) => (later, Some(earlier)),
            Pair::Unwritten | Pair::Invalid => return None,
        };
        let is_new = |context: &Context| context.generation.session() >= self.state.first_session;
        let both = || [Some(later), earlier].into_iter().flatten();
        if let Some(context) = both().filter(is_new).find(|context| opens(&self.new, context)) {
            return Some(Version::New(context));
        }
        // As a read of the volume: an earlier version counts beside one of a session that was not closed.
        let is_possible = |context: &Context| {
            let first = both().find(|context| !is_new(context));
            first.is_none_or(|first| {
                first == *context || self.state.superblock.is_unclean(first.generation.session())
            })
        };
        let mut old = both().filter(|context| !is_new(context) && is_possible(context));
        // Sessions above the superblock's: the storage has an older superblock than the volume's last one.
        let mut unknown = both().filter(is_new);
        let context = old.find(|context| opens(&self.old, context));
        context.or_else(|| unknown.find(|context| opens(&self.old, context))).map(Version::Old)
    }
}

impl Side {
    fn page(&self, cipher: Cipher, number: u64, bytes: &[u8; PAGE_BYTES]) -> ContextPage {
        ContextPage::parse(cipher, &self.epoch, number, bytes)
    }
}
