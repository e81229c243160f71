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

    /// Whether it can be that of a version: generation 0 is of slots that are void or unwritten.
    fn is_version(self) -> bool {
        self.session() != 0 && self.turn() < 3
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
    /// For a block that is to be sealed; it has no tag yet.
    pub fn begin(generation: Generation, nonce: &[u8]) -> Self {
        let mut this = Self { generation, nonce: [0; _], tag: [0; TAG_BYTES] };
        this.nonce[..nonce.len()].copy_from_slice(nonce);
        this
    }

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
}

/// What a pair of slots says of its block; each version by its context, or by less of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pair<T = Context> {
    Unwritten,
    One(T),
    /// The later version first.
    Two(T, T),
    /// No slot is valid: storage or provider changed it.
    Invalid,
}

/// One of the two slots of a pair, and the generation in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Version<'a> {
    pub(super) generation: Generation,
    slot: &'a [u8],
}

impl<T> Pair<T> {
    fn map<U>(self, of: impl Fn(T) -> U) -> Pair<U> {
        match self {
            Self::Unwritten => Pair::Unwritten,
            Self::One(version) => Pair::One(of(version)),
            Self::Two(later, earlier) => Pair::Two(of(later), of(earlier)),
            Self::Invalid => Pair::Invalid,
        }
    }
}

/// Most blocks of a page: of each there is a bit.
const PAIRS_MAX: usize = PAGE_BYTES / 64;

/// The bytes of a page, and which of its blocks are unwritten.
#[derive(Clone)]
pub(super) struct ContextPage {
    bytes: Box<[u8; PAGE_BYTES]>,
    unwritten: u64,
}

const _: () = assert!(PAIRS_MAX <= u64::BITS as usize);

impl ContextPage {
    /// Page `number` of blocks that were never written.
    pub(super) fn unwritten(cipher: Cipher, keys: &EpochKeys, number: u64) -> Self {
        let mut page = Self { bytes: Box::new([0; PAGE_BYTES]), unwritten: 0 };
        let tags = unwritten_tags(keys, number);
        for (index, tag) in tags.iter().enumerate().take(cipher.blocks_per_page()) {
            page.put_unwritten(cipher, index, tag);
        }
        page
    }

    /// Page `number` as it is in storage.
    pub(super) fn parse(cipher: Cipher, keys: &EpochKeys, number: u64, bytes: &[u8; PAGE_BYTES]) -> Self {
        let mut page = Self { bytes: Box::new(*bytes), unwritten: 0 };
        let mut tags = None;
        for index in 0..cipher.blocks_per_page() {
            let (first, second) = page.slots(cipher, index);
            let (zero, tag) = first.split_at(cipher.slot_bytes() - TAG_BYTES);
            if is_zero(zero) && is_zero(second) && !is_zero(tag) {
                let tags = tags.get_or_insert_with(|| unwritten_tags(keys, number));
                page.unwritten |= u64::from(keys::is_equal(tag, &tags[index])) << index;
            }
        }
        page
    }

    pub(super) fn bytes(&self) -> &[u8; PAGE_BYTES] {
        &self.bytes
    }

    fn slots(&self, cipher: Cipher, index: usize) -> (&[u8], &[u8]) {
        self.pair_bytes(cipher, index).split_at(cipher.slot_bytes())
    }

    pub(super) fn pair_bytes(&self, cipher: Cipher, index: usize) -> &[u8] {
        &self.bytes[cipher.pair_offset(index)..][..2 * cipher.slot_bytes()]
    }

    /// Takes the pair of a block as it is in another state of the page.
    pub(super) fn copy_pair(&mut self, cipher: Cipher, index: usize, from: &Self) {
        let at = cipher.pair_offset(index);
        self.bytes[at..at + 2 * cipher.slot_bytes()].copy_from_slice(from.pair_bytes(cipher, index));
        self.unwritten = self.unwritten & !(1 << index) | from.unwritten & 1 << index;
    }

    fn slots_mut(&mut self, cipher: Cipher, index: usize) -> (&mut [u8], &mut [u8]) {
        let pair = &mut self.bytes[cipher.pair_offset(index)..][..2 * cipher.slot_bytes()];
        pair.split_at_mut(cipher.slot_bytes())
    }

    /// The pair of the block that is the `index`th of the page.
    pub(super) fn pair(&self, cipher: Cipher, index: usize) -> Pair {
        self.versions(cipher, index).map(|version| Context::parse(cipher, version.slot))
    }

    /// As [`Self::pair`], without the contexts.
    pub(super) fn versions(&self, cipher: Cipher, index: usize) -> Pair<Version<'_>> {
        if self.unwritten >> index & 1 == 1 {
            return Pair::Unwritten;
        }
        let (first, second) = self.slots(cipher, index);
        let (left, right) = (Version::of(first), Version::of(second));
        match (left.generation.is_version(), right.generation.is_version()) {
            (true, true) if right.generation.is_after(left.generation) => Pair::Two(right, left),
            (true, true) => Pair::Two(left, right),
            (true, false) if is_zero(second) => Pair::One(left),
            (false, true) if is_zero(first) => Pair::One(right),
            _ => Pair::Invalid,
        }
    }

    /// Makes `context` the only version of the block.
    pub(super) fn set_only(&mut self, cipher: Cipher, index: usize, context: &Context) {
        self.unwritten &= !(1 << index);
        let (first, second) = self.slots_mut(cipher, index);
        context.emit(cipher, first);
        second.fill(0);
    }

    /// Makes these the two versions of the block.
    pub(super) fn set_two(&mut self, cipher: Cipher, index: usize, contexts: [&Context; 2]) {
        self.unwritten &= !(1 << index);
        let (first, second) = self.slots_mut(cipher, index);
        contexts[0].emit(cipher, first);
        contexts[1].emit(cipher, second);
    }

    /// Makes the block an error: no slot is valid.
    pub(super) fn set_void(&mut self, cipher: Cipher, index: usize) {
        self.unwritten &= !(1 << index);
        let (first, second) = self.slots_mut(cipher, index);
        first.fill(0);
        second.fill(0);
    }

    /// Adds `context` in the slot that does not hold the version `kept`.
    pub(super) fn set_beside(
        &mut self,
        cipher: Cipher,
        index: usize,
        context: &Context,
        kept: Option<Generation>,
    ) {
        let (first, second) = self.slots_mut(cipher, index);
        let is_kept = kept == Some(Version::of(first).generation);
        context.emit(cipher, if is_kept { second } else { first });
    }

    pub(super) fn set_unwritten(&mut self, cipher: Cipher, keys: &EpochKeys, number: u64, index: usize) {
        let tags = unwritten_tags(keys, number);
        self.put_unwritten(cipher, index, &tags[index]);
    }

    fn put_unwritten(&mut self, cipher: Cipher, index: usize, tag: &[u8]) {
        self.unwritten |= 1 << index;
        let (first, second) = self.slots_mut(cipher, index);
        second.fill(0);
        let (zero, place) = first.split_at_mut(cipher.slot_bytes() - TAG_BYTES);
        zero.fill(0);
        place.copy_from_slice(tag);
    }
}

impl<'a> Version<'a> {
    fn of(slot: &'a [u8]) -> Self {
        let bits = slot.first_chunk().expect("a slot begins with 4 bytes");
        Self { generation: Generation(u32::from_le_bytes(*bits)), slot }
    }
}

/// Looks at all bytes, so that it is done by vectors.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

/// The tags of unwritten blocks of a page.
fn unwritten_tags(keys: &EpochKeys, page: u64) -> [[u8; TAG_BYTES]; PAIRS_MAX] {
    let mut hasher = blake3::Hasher::new_keyed(&keys.unwritten);
    hasher.update(&page.to_le_bytes());
    let mut tags = [[0; TAG_BYTES]; PAIRS_MAX];
    hasher.finalize_xof().fill(tags.as_flattened_mut());
    tags
}
