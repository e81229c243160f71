//! Which bytes of a direction have passed: all below the highest, except the gaps.

use std::ops::Range;

use super::half::Stamp;
use crate::limits::HOLES_MAX;

/// Bytes that later bytes have overtaken.
#[derive(Clone, Debug)]
pub(super) struct Hole {
    pub(super) span: Range<u64>,
    /// Of the segment that passed behind it first.
    pub(super) since_ns: u64,
    pub(super) stamp: Stamp,
}

/// Gaps in ascending order.
#[derive(Debug, Default)]
pub(super) struct Holes(Vec<Hole>);

impl Holes {
    pub(super) fn first(&self) -> Option<&Hole> {
        self.0.first()
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Hole>()
    }

    /// Adds a gap above all others.
    pub(super) fn push(&mut self, hole: Hole) {
        if self.0.len() == HOLES_MAX {
            self.0.remove(0);
        }
        self.0.push(hole);
    }

    /// Fills `span`: returns the bytes of it that were in gaps, and the first gap that lost bytes.
    pub(super) fn fill(&mut self, span: &Range<u64>) -> (u64, Option<Hole>) {
        let (mut filled, mut first) = (0, None);
        let mut index = self.0.partition_point(|hole| hole.span.end <= span.start);
        while let Some(hole) = self.0.get(index).filter(|hole| hole.span.start < span.end).cloned() {
            let (start, end) = (hole.span.start.max(span.start), hole.span.end.min(span.end));
            filled += end - start;
            let (before, after) = (hole.span.start..start, end..hole.span.end);
            self.0.remove(index);
            for rest in [after, before] {
                if !rest.is_empty() {
                    self.0.insert(index, Hole { span: rest, ..hole.clone() });
                }
            }
            index += usize::from(hole.span.start < start);
            first.get_or_insert(hole.clone());
            if hole.span.end > span.end {
                break;
            }
        }
        self.0.truncate(HOLES_MAX);
        (filled, first)
    }

    /// Whether a byte of `span`, all of it below the highest that passed, is in no gap.
    pub(super) fn leaves_any_of(&self, span: &Range<u64>) -> bool {
        let mut at = span.start;
        for hole in &self.0 {
            if hole.span.start > at {
                break;
            }
            at = at.max(hole.span.end);
        }
        at < span.end
    }

    /// Removes the next gap that begins below `limit`, cut off there.
    pub(super) fn pop_below(&mut self, limit: u64) -> Option<Range<u64>> {
        let hole = self.0.first_mut().filter(|hole| hole.span.start < limit)?;
        let lost = hole.span.start..hole.span.end.min(limit);
        if hole.span.end > limit {
            hole.span.start = limit;
        } else {
            self.0.remove(0);
        }
        Some(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hole(span: Range<u64>) -> Hole {
        Hole { span, since_ns: 0, stamp: Stamp::default() }
    }

    fn spans(holes: &Holes) -> Vec<Range<u64>> {
        holes.0.iter().map(|hole| hole.span.clone()).collect()
    }

    #[test]
    fn gaps_are_filled_from_any_side() {
        let table: [(Range<u64>, u64, Vec<Range<u64>>); 8] = [
            (0..10, 0, vec![10..20, 30..40, 50..60]),
            (10..20, 10, vec![30..40, 50..60]),
            (12..15, 3, vec![10..12, 15..20, 30..40, 50..60]),
            (5..12, 2, vec![12..20, 30..40, 50..60]),
            (18..35, 7, vec![10..18, 35..40, 50..60]),
            (15..55, 20, vec![10..15, 55..60]),
            (0..100, 30, vec![]),
            (20..30, 0, vec![10..20, 30..40, 50..60]),
        ];
        for (span, filled, left) in table {
            let mut holes = Holes(vec![hole(10..20), hole(30..40), hole(50..60)]);
            assert_eq!(holes.fill(&span).0, filled, "{span:?}");
            assert_eq!(spans(&holes), left, "{span:?}");
        }
    }

    #[test]
    fn gaps_are_cut_at_a_limit() {
        let mut holes = Holes(vec![hole(10..20), hole(30..40)]);
        assert!(holes.leaves_any_of(&(15..25)) && !holes.leaves_any_of(&(12..20)));
        assert_eq!(holes.pop_below(35), Some(10..20));
        assert_eq!(holes.pop_below(35), Some(30..35));
        assert_eq!(holes.pop_below(35), None);
        assert_eq!(spans(&holes), vec![35..40]);
    }
}
