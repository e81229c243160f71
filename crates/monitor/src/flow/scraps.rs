//! Captured bytes that may belong to headers whose place is not known yet, or that are not complete.

use iscsi::wire::BHS_LENGTH;

use super::plausible::{Context, is_plausible, sender};
use crate::event::Side;
use crate::limits::SCRAPS_MAX;

#[derive(Clone, Copy, Debug)]
struct Scrap {
    offset: u64,
    length: u8,
    bytes: [u8; BHS_LENGTH],
}

impl Scrap {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

#[derive(Debug, Default)]
pub(super) struct Scraps(Vec<Scrap>);

impl Scraps {
    pub(super) fn held_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Scrap>()
    }

    /// Keeps the first 48 bytes of `bytes`.
    pub(super) fn keep(&mut self, offset: u64, bytes: &[u8]) {
        let length = bytes.len().min(BHS_LENGTH);
        if length == 0 || self.0.len() == SCRAPS_MAX {
            return;
        }
        let mut scrap = Scrap { offset, length: length as u8, bytes: [0; BHS_LENGTH] };
        scrap.bytes[..length].copy_from_slice(&bytes[..length]);
        self.0.push(scrap);
    }

    /// Keeps what may be headers in a payload before which a gap is open: its first bytes, its last ones, and every
    /// place that looks like a header. `next` is where the next PDU begins: others are multiples of four bytes away (RFC
    /// 7143 section 11.1).
    pub(super) fn keep_candidates(
        &mut self,
        side: Side,
        context: Context,
        next: u64,
        offset: u64,
        payload: &[u8],
    ) {
        let last = payload.len().saturating_sub(BHS_LENGTH - 1);
        self.keep(offset, payload);
        let first = (next.wrapping_sub(offset) % 4) as usize;
        for at in (first..payload.len()).step_by(4) {
            let rest = &payload[at..];
            match rest.first_chunk() {
                Some(header) if is_plausible(side, header, context) => self.keep(offset + at as u64, header),
                None if at >= last && sender(rest[0]) == Some(side) => self.keep(offset + at as u64, rest),
                _ => {}
            }
        }
    }

    /// Copies what is kept of the header at `offset`; returns a bit for each byte.
    pub(super) fn copy(&self, offset: u64, header: &mut [u8; BHS_LENGTH]) -> u64 {
        let mut found = 0;
        for scrap in &self.0 {
            found |= copy(scrap.offset, scrap.bytes(), offset, header);
        }
        found
    }

    /// The first place at `from` or beyond that is a whole plausible header.
    pub(super) fn find(&self, side: Side, context: Context, from: u64) -> Option<u64> {
        let headers = self.0.iter().filter(|scrap| scrap.offset >= from);
        let plausible = headers.filter(|scrap| {
            scrap.bytes().first_chunk().is_some_and(|header| is_plausible(side, header, context))
        });
        plausible.map(|scrap| scrap.offset).min()
    }

    /// Drops what lies below `offset`.
    #[inline]
    pub(super) fn drop_below(&mut self, offset: u64) {
        if !self.0.is_empty() {
            self.0.retain(|scrap| scrap.offset + u64::from(scrap.length) > offset);
        }
    }
}

/// Copies the part of `bytes`, which begin at `at`, that belongs to the header at `offset`; returns a bit for each byte.
pub(super) fn copy(at: u64, bytes: &[u8], offset: u64, header: &mut [u8; BHS_LENGTH]) -> u64 {
    let (start, end) = (at.max(offset), (at + bytes.len() as u64).min(offset + BHS_LENGTH as u64));
    if start >= end {
        return 0;
    }
    let (from, into, length) = ((start - at) as usize, (start - offset) as usize, (end - start) as usize);
    header[into..into + length].copy_from_slice(&bytes[from..from + length]);
    ((1 << length) - 1) << into
}
