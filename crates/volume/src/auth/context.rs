//! Contexts of blocks, and their pages.
//!
//! A page has a pair of slots for each of its blocks. A slot is void (zeroes), *unwritten* (generation 0 and a tag that
//! the key gives for the block), or the context of a version of the block.

use super::keys::{self, EpochKeys, TAG_BYTES};
use super::{Cipher, PAGE_BYTES};

const NONCE_BYTES_MAX: usize = 28;
/// Sessions have 30 bits; with one claim of the volume each second they last for 34 years.
pub(super) const SESSION_MAX: u32 = (1 << 30) - 1;

/// Version of a block: the number of the session that sealed it, and a turn of 0, 1, 2, which tells the later of two
/// successive versions of one session. Never 0 in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(u32);

impl Generation {
    pub(super) fn new(session: u32, turn: u32) -> Self {
        debug_assert!((1..=SESSION_MAX).contains(&session) && turn < 3);
        Self(session << 2 | turn)
    }

    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    pub(super) fn session(self) -> u32 {
        self.0 >> 2
    }

    fn turn(self) -> u32 {
        self.0 & 3
    }

    /// The generation of the version after this one, sealed by `session`.
    pub(super) fn next(self, session: u32) -> Self {
        if self.session() == session {
            Self::new(session, (self.turn() + 1) % 3)
        } else {
            Self::new(session, 0)
        }
    }

    /// Whether this version came after the other one of the same pair.
    fn is_after(self, other: Self) -> bool {
        match self.session().cmp(&other.session()) {
            std::cmp::Ordering::Equal => self.turn() == (other.turn() + 1) % 3,
            order => order.is_gt(),
        }
    }
}

/// What opens a version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub generation: Generation,
    /// As many bytes as [`Cipher::nonce_bytes`]; the others are zero.
    pub nonce: [u8; NONCE_BYTES_MAX],
    pub tag: [u8; TAG_BYTES],
}

impl Context {
    pub(super) fn emit(&self, cipher: Cipher, slot: &mut [u8]) {
        let (generation, rest) = slot.split_at_mut(4);
        let (nonce, tag) = rest.split_at_mut(cipher.nonce_bytes());
        generation.copy_from_slice(&self.generation.0.to_le_bytes());
        nonce.copy_from_slice(&self.nonce[..cipher.nonce_bytes()]);
        tag.copy_from_slice(&self.tag);
    }

    /// The bytes of a slot, whatever they mean.
    pub(super) fn parse(cipher: Cipher, slot: &[u8]) -> Self {
        let (generation, rest) = slot.split_at(4);
        let (nonce_bytes, tag) = rest.split_at(cipher.nonce_bytes());
        let mut nonce = [0; NONCE_BYTES_MAX];
        nonce[..nonce_bytes.len()].copy_from_slice(nonce_bytes);
        Self {
            generation: Generation(u32::from_le_bytes(generation.try_into().expect("4 bytes"))),
            nonce,
            tag: tag.try_into().expect("16 bytes"),
        }
    }

    /// Whether it can be the context of a version: generation 0 is of slots that are void or unwritten.
    fn is_version(&self) -> bool {
        self.generation.session() != 0 && self.generation.turn() < 3
    }
}

/// What a pair of slots says of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pair {
    Unwritten,
    One(Context),
    /// The later version first.
    Two(Context, Context),
    /// No slot is valid: storage or provider changed it.
    Invalid,
}

/// The tags of unwritten blocks of a page.
pub(super) struct Unwritten([u8; PAGE_BYTES / 32 * TAG_BYTES]);

impl Unwritten {
    pub(super) fn of_page(keys: &EpochKeys, page: u64) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&keys.unwritten);
        hasher.update(&page.to_le_bytes());
        let mut tags = [0; PAGE_BYTES / 32 * TAG_BYTES];
        hasher.finalize_xof().fill(&mut tags);
        Self(tags)
    }

    fn tag(&self, index: usize) -> &[u8] {
        &self.0[index * TAG_BYTES..][..TAG_BYTES]
    }
}

fn unwritten_tag(keys: &EpochKeys, page: u64, index: usize) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(&keys.unwritten);
    hasher.update(&page.to_le_bytes());
    let mut reader = hasher.finalize_xof();
    reader.set_position((index * TAG_BYTES) as u64);
    let mut tag = [0; TAG_BYTES];
    reader.fill(&mut tag);
    tag
}

/// A page of contexts, as its bytes in storage.
pub(super) type PageBytes = Box<[u8; PAGE_BYTES]>;

/// A page of blocks that were never written.
pub(super) fn unwritten_page(cipher: Cipher, keys: &EpochKeys, page: u64) -> PageBytes {
    let mut bytes = Box::new([0; PAGE_BYTES]);
    let tags = Unwritten::of_page(keys, page);
    for index in 0..cipher.blocks_per_page() {
        let end = cipher.pair_offset(index) + cipher.slot_bytes();
        bytes[end - TAG_BYTES..end].copy_from_slice(tags.tag(index));
    }
    bytes
}

fn slots(cipher: Cipher, bytes: &[u8; PAGE_BYTES], index: usize) -> (&[u8], &[u8]) {
    let pair = &bytes[cipher.pair_offset(index)..][..2 * cipher.slot_bytes()];
    pair.split_at(cipher.slot_bytes())
}

fn slots_mut(cipher: Cipher, bytes: &mut [u8; PAGE_BYTES], index: usize) -> (&mut [u8], &mut [u8]) {
    let pair = &mut bytes[cipher.pair_offset(index)..][..2 * cipher.slot_bytes()];
    pair.split_at_mut(cipher.slot_bytes())
}

/// The pair of the block that is the `index`th of page `page`.
pub(super) fn pair(
    cipher: Cipher,
    keys: &EpochKeys,
    page: u64,
    bytes: &[u8; PAGE_BYTES],
    index: usize,
) -> Pair {
    let (first, second) = slots(cipher, bytes, index);
    let is_void = |slot: &[u8]| slot.iter().all(|byte| *byte == 0);
    let (left, right) = (Context::parse(cipher, first), Context::parse(cipher, second));
    match (left.is_version(), right.is_version()) {
        (true, true) if right.generation.is_after(left.generation) => Pair::Two(right, left),
        (true, true) => Pair::Two(left, right),
        (true, false) if is_void(second) => Pair::One(left),
        (false, true) if is_void(first) => Pair::One(right),
        (false, false) if is_void(second) && is_unwritten(cipher, keys, page, first, index) => {
            Pair::Unwritten
        }
        _ => Pair::Invalid,
    }
}

fn is_unwritten(cipher: Cipher, keys: &EpochKeys, page: u64, slot: &[u8], index: usize) -> bool {
    let (zero, tag) = slot.split_at(cipher.slot_bytes() - TAG_BYTES);
    zero.iter().all(|byte| *byte == 0) && keys::is_equal(tag, &unwritten_tag(keys, page, index))
}

/// Makes `context` the only version of the block.
pub(super) fn set_only(cipher: Cipher, bytes: &mut [u8; PAGE_BYTES], index: usize, context: &Context) {
    let (first, second) = slots_mut(cipher, bytes, index);
    context.emit(cipher, first);
    second.fill(0);
}

/// Adds `context` in the slot that does not hold the version `kept`.
pub(super) fn set_beside(
    cipher: Cipher,
    bytes: &mut [u8; PAGE_BYTES],
    index: usize,
    context: &Context,
    kept: Option<Generation>,
) {
    let (first, second) = slots_mut(cipher, bytes, index);
    let is_kept = |slot: &[u8]| kept == Some(Context::parse(cipher, slot).generation);
    if is_kept(first) { context.emit(cipher, second) } else { context.emit(cipher, first) }
}

pub(super) fn set_unwritten(
    cipher: Cipher,
    keys: &EpochKeys,
    page: u64,
    bytes: &mut [u8; PAGE_BYTES],
    index: usize,
) {
    let (first, second) = slots_mut(cipher, bytes, index);
    second.fill(0);
    let (zero, tag) = first.split_at_mut(cipher.slot_bytes() - TAG_BYTES);
    zero.fill(0);
    tag.copy_from_slice(&unwritten_tag(keys, page, index));
}
