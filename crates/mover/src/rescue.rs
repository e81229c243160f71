//! What could not be read, tried again as GNU ddrescue does: trim, scrape, retry.
//!
//! A stretch that failed (`*`) is read block by block from its first edge until a block fails, then from its last
//! edge; what lies between (`/`) is read block by block; the blocks that failed (`-`) are tried once more. One block is in
//! flight at a time: each decides what comes next, and a failing medium is not helped by more.

use area::Span;

use crate::cutter::Piece;
use crate::job::{Extents, Job, Step};
use crate::map::{Map, Status, Stretch};
use crate::patch::Patch;
use crate::progress::Phase;
use crate::verify::Digests;

/// Times that a block which failed alone is read again.
pub(crate) const RETRIES: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    First,
    Last,
    Scrape,
    /// Which retry it is.
    Retry(u32),
}

pub(crate) struct Rescue<'a> {
    block: u64,
    digests: &'a mut Option<Digests>,
    /// Begin of the stretch whose first edge is trimmed.
    trimmed: Option<u64>,
    /// Which retry, and from where on.
    retry: u32,
    retry_from: u64,
    /// The piece in flight.
    aim: Aim,
}

impl<'a> Rescue<'a> {
    pub(crate) fn new(block: u32, digests: &'a mut Option<Digests>) -> Self {
        let aim = Aim::First;
        Self { block: block.into(), digests, trimmed: None, retry: 0, retry_from: 0, aim }
    }

    /// What to read next, and what for.
    fn pick(&self, map: &Map) -> Option<(u64, u64, Aim)> {
        let first = |status| map.stretches().find(|stretch| stretch.status == status);
        let head = |stretch: Stretch| (stretch.start, stretch.end.min(stretch.start + self.block));
        if let Some(stretch) = first(Status::NonTrimmed) {
            if self.trimmed != Some(stretch.start) {
                let (start, end) = head(stretch);
                return Some((start, end, Aim::First));
            }
            let last = (stretch.end - 1) / self.block * self.block;
            return Some((last.max(stretch.start), stretch.end, Aim::Last));
        }
        if let Some(stretch) = first(Status::NonScraped) {
            let (start, end) = head(stretch);
            return Some((start, end, Aim::Scrape));
        }
        let from = [(self.retry, self.retry_from), (self.retry + 1, 0)];
        from.into_iter().filter(|(retry, _)| *retry < RETRIES).find_map(|(retry, from)| {
            let bad = |stretch: &Stretch| stretch.status == Status::BadSector && stretch.end > from;
            let stretch = map.stretches().find(bad)?;
            let (start, end) = head(Stretch { start: stretch.start.max(from), ..stretch });
            Some((start, end, Aim::Retry(retry)))
        })
    }
}

impl Job for Rescue<'_> {
    const PHASE: Phase = Phase::Rescue;
    const SHRINKS: bool = true;
    const SKIPS_BAD: bool = true;

    fn depth_max(&self) -> usize {
        1
    }

    fn is_exhausted(&self, map: &Map) -> bool {
        self.pick(map).is_none()
    }

    fn next(&mut self, _chunk: u32, map: &Map, _extents: &mut Extents<'_, '_>) -> Option<Piece> {
        let (start, end, aim) = self.pick(map)?;
        self.aim = aim;
        if let Aim::Retry(retry) = aim {
            (self.retry, self.retry_from) = (retry, end);
        }
        let index = self.digests.as_mut().map_or(0, |digests| digests.push(start));
        Some(Piece { offset: start, length: (end - start) as u32, zero: false, index })
    }

    fn on_begin(&mut self, _piece: &Piece) -> Step {
        Step::Read([true, false])
    }

    fn on_read(&mut self, piece: &Piece, spans: &[Span]) -> Step {
        if let Some(digests) = &mut *self.digests {
            digests.set(piece.index, &spans[0].as_slice()[..piece.length as usize]);
        }
        Step::Write(Patch::all(piece.length))
    }

    fn on_unreadable(&mut self, piece: &Piece, map: &mut Map) {
        if let Some(digests) = &mut *self.digests {
            digests.forget(piece.index);
        }
        let (start, end) = (piece.offset, piece.offset + u64::from(piece.length));
        let stretch = map.at(start);
        map.set(start, end, Status::BadSector);
        match self.aim {
            Aim::First => self.trimmed = Some(end),
            Aim::Last => map.set(stretch.start, start, Status::NonScraped),
            Aim::Scrape | Aim::Retry(_) => {}
        }
    }
}
