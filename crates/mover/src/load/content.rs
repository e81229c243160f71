//! The data that requests of a load write, and that reads are expected to return.
//!
//! All writes carry the same incompressible bytes, so that no data is generated per request, except for a stamp at the
//! start of every page: its offset and the number of writes of its block. So a lost, stale, torn or misplaced page is
//! detected. Reads expect `pattern:SIZE:SEED`.

use area::Span;
use block::fill_pattern;

/// Bytes per stamp; a shorter block is one page.
const PAGE_BYTES: usize = 4096;
/// Layout of a stamp: offset (8 bytes), generation (4), complement of the generation (4).
const STAMP_BYTES: usize = 16;
const FILLER_SEED: u64 = 0x6869_6b79_616b_7521;
/// Flag: a write of the block is in flight.
const BUSY: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct Content {
    block_bytes: usize,
    page_bytes: usize,
    /// Accesses of each block, and the flag [`BUSY`].
    touched: Vec<u32>,
    /// The expected content: filler with stamps, or the pattern of a seed.
    expect: Expect,
    scratch: Vec<u8>,
}

#[derive(Debug)]
enum Expect {
    Written { filler: Vec<u8> },
    Pattern { seed: u64 },
}

impl Content {
    /// Content of `blocks` blocks that this load writes.
    pub(super) fn written(block_bytes: usize, blocks: usize) -> Self {
        let mut filler = vec![0; block_bytes];
        fill_pattern(FILLER_SEED, 0, &mut filler);
        Self::new(block_bytes, blocks, Expect::Written { filler })
    }

    /// Content of `blocks` blocks with the pattern of `seed`.
    pub(super) fn pattern(block_bytes: usize, blocks: usize, seed: u64) -> Self {
        Self::new(block_bytes, blocks, Expect::Pattern { seed })
    }

    fn new(block_bytes: usize, blocks: usize, expect: Expect) -> Self {
        let page_bytes = PAGE_BYTES.min(block_bytes);
        Self { block_bytes, page_bytes, touched: vec![0; blocks], expect, scratch: vec![0; block_bytes] }
    }

    pub(super) fn blocks(&self) -> usize {
        self.touched.len()
    }

    pub(super) fn is_busy(&self, block: usize) -> bool {
        self.touched[block] & BUSY != 0
    }

    pub(super) fn is_touched(&self, block: usize) -> bool {
        self.touched[block] & !BUSY != 0
    }

    pub(super) fn fill(&self, span: &Span) {
        if let Expect::Written { filler } = &self.expect {
            span.fill(0, filler);
        }
    }

    pub(super) fn begin_read(&mut self, block: usize) {
        self.touched[block] = (self.touched[block] + 1) & !BUSY;
    }

    /// Starts a write of the block; with `stamp`, its pages are stamped.
    pub(super) fn begin_write(&mut self, block: usize, span: &Span, stamp: bool) {
        assert!(!self.is_busy(block), "two writes of block {block} at once have no known outcome");
        let generation = (self.touched[block] + 1) & !BUSY;
        self.touched[block] = generation | BUSY;
        if stamp {
            for page in (0..self.block_bytes).step_by(self.page_bytes) {
                let offset = (block * self.block_bytes + page) as u64;
                span.fill(page, &stamp_of(offset, generation));
            }
        }
    }

    pub(super) fn end_write(&mut self, block: usize) {
        self.touched[block] &= !BUSY;
    }

    /// Checks one word of every page read: cheap enough during the measurement. The position of the word depends on the
    /// page. Returns the offset in the range of the first wrong page.
    pub(super) fn glance(&self, block: usize, span: &Span) -> Option<u64> {
        let Expect::Pattern { seed } = self.expect else { return None };
        let bytes = span.as_slice();
        let words = self.page_bytes / 8;
        for page in (0..self.block_bytes).step_by(self.page_bytes) {
            let offset = (block * self.block_bytes + page) as u64;
            let at = (offset / self.page_bytes as u64 * 37 % words as u64) as usize * 8;
            let mut expected = [0; 8];
            fill_pattern(seed, offset + at as u64, &mut expected);
            if bytes[page + at..page + at + 8] != expected {
                return Some(offset);
            }
        }
        None
    }

    /// Compares every byte of a block. Returns the offset in the range of the first wrong byte.
    pub(super) fn compare(&mut self, block: usize, span: &Span) -> Option<u64> {
        let start = (block * self.block_bytes) as u64;
        match &self.expect {
            Expect::Pattern { seed } => fill_pattern(*seed, start, &mut self.scratch),
            Expect::Written { filler } => {
                self.scratch.copy_from_slice(filler);
                let generation = self.touched[block] & !BUSY;
                for page in (0..self.block_bytes).step_by(self.page_bytes) {
                    let stamp = stamp_of(start + page as u64, generation);
                    self.scratch[page..page + STAMP_BYTES].copy_from_slice(&stamp);
                }
            }
        }
        let bytes = span.as_slice();
        if bytes == self.scratch {
            return None;
        }
        let at = bytes.iter().zip(&self.scratch).position(|(found, expected)| found != expected);
        at.map(|at| start + at as u64)
    }
}

fn stamp_of(offset: u64, generation: u32) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&offset.to_le_bytes());
    stamp[8..12].copy_from_slice(&generation.to_le_bytes());
    stamp[12..].copy_from_slice(&(!generation).to_le_bytes());
    stamp
}
