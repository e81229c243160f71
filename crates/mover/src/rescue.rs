//! Retries of unreadable ranges, as in GNU ddrescue: trim, scrape, retry.
//!
//! An entry that failed (`*`) is read block by block from its first edge until a block fails, then from its last edge;
//! the range between (`/`) is read block by block; failed blocks (`-`) are retried. One block is in flight at a time:
//! its result determines the next one, and concurrent reads do not help a failing medium.

use area::Span;

use crate::cutter::Run;
use crate::extent::WriteExtent;
use crate::map::{Map, MapEntry, Status};
use crate::operation::{Extents, Operation, Step};
use crate::progress::Phase;
use crate::verify::Digests;

/// How often a block that failed alone is read again.
pub(crate) const RETRIES: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    First,
    Last,
    Scrape,
    Retry(u32),
}

pub(crate) struct Rescue<'a> {
    block: u64,
    digests: &'a mut Option<Digests>,
    /// Start of the entry whose first edge is trimmed.
    trimmed: Option<u64>,
    /// The number of the current retry, and the offset that it has reached.
    retry: u32,
    retry_from: u64,
    /// The purpose of the run in flight.
    aim: Aim,
}

impl<'a> Rescue<'a> {
    pub(crate) fn new(block: u32, digests: &'a mut Option<Digests>) -> Self {
        let aim = Aim::First;
        Self { block: block.into(), digests, trimmed: None, retry: 0, retry_from: 0, aim }
    }

    fn pick(&self, map: &Map) -> Option<(u64, u64, Aim)> {
        let first = |status| map.entries().find(|entry| entry.status == status);
        let head = |entry: MapEntry| (entry.start, entry.end.min(entry.start + self.block));
        if let Some(entry) = first(Status::NonTrimmed) {
            if self.trimmed != Some(entry.start) {
                let (start, end) = head(entry);
                return Some((start, end, Aim::First));
            }
            let last = (entry.end - 1) / self.block * self.block;
            return Some((last.max(entry.start), entry.end, Aim::Last));
        }
        if let Some(entry) = first(Status::NonScraped) {
            let (start, end) = head(entry);
            return Some((start, end, Aim::Scrape));
        }
        let from = [(self.retry, self.retry_from), (self.retry + 1, 0)];
        from.into_iter().filter(|(retry, _)| *retry < RETRIES).find_map(|(retry, from)| {
            let bad = |entry: &MapEntry| entry.status == Status::BadSector && entry.end > from;
            let entry = map.entries().find(bad)?;
            let (start, end) = head(MapEntry { start: entry.start.max(from), ..entry });
            Some((start, end, Aim::Retry(retry)))
        })
    }
}

impl Operation for Rescue<'_> {
    const PHASE: Phase = Phase::Rescue;
    const SHRINKS: bool = true;
    const SKIPS_BAD: bool = true;

    fn depth_max(&self) -> usize {
        1
    }

    fn is_exhausted(&self, map: &Map) -> bool {
        self.pick(map).is_none()
    }

    fn next(&mut self, _chunk: u32, map: &Map, _extents: &mut Extents<'_, '_>) -> Option<Run> {
        let (start, end, aim) = self.pick(map)?;
        self.aim = aim;
        if let Aim::Retry(retry) = aim {
            (self.retry, self.retry_from) = (retry, end);
        }
        let index = self.digests.as_mut().map_or(0, |digests| digests.push(start));
        Some(Run { offset: start, length: (end - start) as u32, zero: false, index })
    }

    fn on_begin(&mut self, _piece: &Run) -> Step {
        Step::Read([true, false])
    }

    fn on_read(&mut self, run: &Run, spans: &[Span]) -> Step {
        if let Some(digests) = &mut *self.digests {
            digests.set(run.index, &spans[0].as_slice()[..run.length as usize]);
        }
        Step::Write(WriteExtent::all(run.length))
    }

    fn on_unreadable(&mut self, run: &Run, map: &mut Map) {
        if let Some(digests) = &mut *self.digests {
            digests.forget(run.index);
        }
        let (start, end) = (run.offset, run.offset + u64::from(run.length));
        let entry = map.at(start);
        map.set(start, end, Status::BadSector);
        match self.aim {
            Aim::First => self.trimmed = Some(end),
            Aim::Last => map.set(entry.start, start, Status::NonScraped),
            Aim::Scrape | Aim::Retry(_) => {}
        }
    }
}
