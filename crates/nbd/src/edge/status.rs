//! The extents known ahead of use, and the next block status request: one at a time, ahead of the last query.

use std::ops::Range;
use std::time::Duration;

use block::Extent;

use crate::extents::Extents;
use crate::transmission::Status;
use crate::wire;

/// How far ahead of the last query block status is requested, in bytes. A caller that meets only holes submits no
/// requests, so nothing else would trigger further block status requests.
const HORIZON_BYTES: u64 = 256 << 30;
/// Longest range of one block status request, in bytes; a multiple of every block size.
const QUESTION_BYTES_MAX: u64 = 2 << 30;
/// Bytes for which an unknown extent counts as data, before the next query.
const UNKNOWN_BYTES: u64 = 1 << 20;
/// Age at which extents are dropped if others may write to the export.
const AGE_MAX: Duration = Duration::from_secs(10);

/// The metadata context of the queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// `base:allocation`: ranges that read as zeroes.
    Allocation,
    /// `qemu:dirty-bitmap:NAME`: dirty ranges.
    Dirty(String),
}

impl Subject {
    pub(super) fn context(&self) -> String {
        match self {
            Self::Allocation => "base:allocation".into(),
            Self::Dirty(name) => format!("qemu:dirty-bitmap:{name}"),
        }
    }

    /// Whether an extent with these flags is data, or dirty.
    fn bit(&self, flags: u32) -> bool {
        match self {
            Self::Allocation => flags & wire::STATE_ZERO == 0,
            Self::Dirty(_) => flags & wire::STATE_DIRTY != 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) offset: u64,
    pub(super) length: u32,
    unit: u32,
    changes: u64,
}

#[derive(Debug)]
pub(super) struct Knowledge {
    pub(super) subject: Subject,
    /// The bytes whose block status is requested.
    pub(super) range: Range<u64>,
    pub(super) replies: u32,
    extents: Extents,
    /// Offset of the last query.
    queried: Option<u64>,
    /// Number of writes submitted, and of writes in flight: a block status that may have raced with a write is dropped.
    changes: u64,
    writing: u32,
    is_requesting: bool,
    /// When the oldest known extent was received.
    oldest: Duration,
    given_up: bool,
}

impl Knowledge {
    pub(super) fn new(subject: Subject, range: Range<u64>) -> Self {
        Self {
            subject,
            range,
            replies: 0,
            extents: Extents::default(),
            queried: None,
            changes: 0,
            writing: 0,
            is_requesting: false,
            oldest: Duration::ZERO,
            given_up: false,
        }
    }

    /// The extent that contains `offset`: its end, and whether it is data (or dirty). `None`: unknown, then requested.
    pub(super) fn at(&mut self, offset: u64) -> Option<(u64, bool)> {
        self.queried = Some(offset);
        self.extents.at(offset)
    }

    /// As [`Self::at`], as the answer of a [`block::Endpoint`] of `size` bytes.
    pub(super) fn extent(&mut self, offset: u64, size: u64) -> Extent {
        match self.at(offset) {
            Some((end, data)) => Extent { end, data },
            None => Extent {
                end: (offset / UNKNOWN_BYTES + 1).saturating_mul(UNKNOWN_BYTES).min(size),
                data: true,
            },
        }
    }

    pub(super) fn query(&mut self, offset: u64) {
        self.queried = Some(offset);
    }

    /// Whether the last query can be answered, or never will be.
    pub(super) fn is_settled(&self, size: u64) -> bool {
        self.given_up || self.queried.is_none_or(|offset| offset >= size || self.extents.at(offset).is_some())
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Drops extents that are too old. False: none are known.
    pub(super) fn on_time(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.oldest) >= AGE_MAX {
            self.extents.forget();
        }
        !self.extents.is_empty()
    }

    /// The next block status request for an export of `size` bytes in blocks of `unit`.
    pub(super) fn next_query(&mut self, size: u64, unit: u32, now: Duration) -> Option<Query> {
        let queried = self.queried.filter(|_| !self.is_requesting && self.writing == 0 && !self.given_up)?;
        if !self.extents.has_room() {
            self.extents.drop_before(queried);
        }
        let offset = self.extents.next(queried) / u64::from(unit) * u64::from(unit);
        let end = size.min(self.range.end.div_ceil(unit.into()).saturating_mul(unit.into()));
        if offset >= end || offset - queried.min(offset) >= HORIZON_BYTES || !self.extents.has_room() {
            return None;
        }
        if self.extents.is_empty() {
            self.oldest = now;
        }
        self.is_requesting = true;
        let length = (end - offset).min(QUESTION_BYTES_MAX) as u32;
        Some(Query { offset, length, unit, changes: self.changes })
    }

    pub(super) fn on_answer(&mut self, query: Query, context: u32, answer: &[Status], size: u64) {
        self.is_requesting = false;
        self.replies = self.replies.saturating_add(1);
        if query.changes != self.changes {
            return;
        }
        let Some(status) = answer.iter().find(|status| status.context == context) else { return };
        let mut end = query.offset;
        let extents = status.extents.iter().map(|(length, flags)| {
            // The last extent may reach beyond the end of the export.
            let length = u64::from(*length).min(size - end);
            end += length;
            (length, self.subject.bit(*flags))
        });
        self.extents.append(query.offset, extents.filter(|(length, _)| *length > 0));
        // An extent ends within a block: the range after it cannot be requested.
        self.given_up |= end < size && !end.is_multiple_of(query.unit.into());
    }

    pub(super) fn on_refused(&mut self) {
        (self.is_requesting, self.given_up) = (false, true);
        self.extents.forget();
    }

    /// The block status request and the writes in flight were lost with the connection; others may have written since.
    pub(super) fn on_lost(&mut self) {
        (self.is_requesting, self.writing) = (false, 0);
        self.extents.forget();
    }

    pub(super) fn on_write(&mut self) {
        self.changes += 1;
        self.writing += 1;
        self.extents.forget();
    }

    pub(super) fn on_written(&mut self) {
        self.writing -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 10 << 20;
    const NOW: Duration = Duration::from_secs(100);

    fn answer(extents: &[(u32, u32)]) -> Vec<Status> {
        vec![Status { context: 1, extents: extents.to_vec() }]
    }

    #[test]
    fn unknown_is_data_and_is_asked_about() {
        let mut knowledge = Knowledge::new(Subject::Allocation, 0..u64::MAX);
        assert_eq!(knowledge.next_query(SIZE, 1, NOW), None, "no query yet");
        assert_eq!(knowledge.extent(5, SIZE), Extent { end: UNKNOWN_BYTES, data: true });
        let query = knowledge.next_query(SIZE, 1, NOW).unwrap();
        assert_eq!((query.offset, u64::from(query.length)), (5, SIZE - 5));
        assert_eq!(knowledge.next_query(SIZE, 1, NOW), None, "one at a time");
        knowledge.on_answer(query, 1, &answer(&[(95, 3), (1 << 30, 0)]), SIZE);
        assert_eq!(knowledge.extent(6, SIZE), Extent { end: 100, data: false });
        assert_eq!(knowledge.extent(100, SIZE), Extent { end: SIZE, data: true }, "cut at the end");
        assert_eq!(knowledge.next_query(SIZE, 1, NOW), None, "all is known");
    }

    /// A copy sums up the holes ahead before it starts from the first byte.
    #[test]
    fn a_look_ahead_forgets_nothing() {
        let mut knowledge = Knowledge::new(Subject::Allocation, 0..u64::MAX);
        knowledge.query(0);
        let query = knowledge.next_query(SIZE, 1, NOW).unwrap();
        knowledge.on_answer(query, 1, &answer(&[(100, 0), (200, 3), (1 << 30, 0)]), SIZE);
        for start in [0, 100, 300, 0, 100] {
            assert_eq!(knowledge.extent(start, SIZE).data, start != 100, "{start}");
        }
    }

    #[test]
    fn an_answer_that_a_write_may_have_overtaken_is_not_believed() {
        let mut knowledge = Knowledge::new(Subject::Allocation, 0..u64::MAX);
        knowledge.query(0);
        let query = knowledge.next_query(SIZE, 1, NOW).unwrap();
        knowledge.on_write();
        knowledge.on_answer(query, 1, &answer(&[(SIZE as u32, 3)]), SIZE);
        assert!(knowledge.extent(0, SIZE).data);
        assert_eq!(knowledge.next_query(SIZE, 1, NOW), None, "while it is under way");
        knowledge.on_written();
        let query = knowledge.next_query(SIZE, 1, NOW).unwrap();
        knowledge.on_answer(query, 1, &answer(&[(SIZE as u32, 3)]), SIZE);
        assert!(!knowledge.extent(0, SIZE).data);
        knowledge.on_write();
        assert!(knowledge.extent(0, SIZE).data, "and a write undoes what was known");
    }

    #[test]
    fn a_hole_without_the_bit_zero_is_data() {
        assert!(Subject::Allocation.bit(1), "NBD_STATE_HOLE alone promises no zeroes");
        assert!(!Subject::Allocation.bit(2) && Subject::Dirty("b".into()).bit(1));
    }

    #[test]
    fn queries_keep_to_blocks() {
        let mut knowledge = Knowledge::new(Subject::Allocation, 0..u64::MAX);
        knowledge.query(5000);
        let query = knowledge.next_query(SIZE, 4096, NOW).unwrap();
        assert_eq!(query.offset, 4096);
        knowledge.on_answer(query, 1, &answer(&[(4096 + 5, 3)]), SIZE);
        assert!(knowledge.is_given_up(), "an answer that does not is not asked on");
    }

    #[test]
    fn nothing_behind_the_range_is_asked_about() {
        let mut knowledge = Knowledge::new(Subject::Dirty("b".into()), 5000..9000);
        knowledge.query(5000);
        let query = knowledge.next_query(SIZE, 4096, NOW).unwrap();
        assert_eq!((query.offset, query.length), (4096, 8192));
        knowledge.on_answer(query, 1, &answer(&[(8192, 1)]), SIZE);
        assert_eq!((knowledge.at(8999), knowledge.replies), (Some((12_288, true)), 1));
        assert_eq!(knowledge.next_query(SIZE, 4096, NOW), None);
    }

    #[test]
    fn what_is_old_is_asked_again() {
        let mut knowledge = Knowledge::new(Subject::Allocation, 0..u64::MAX);
        knowledge.query(0);
        let query = knowledge.next_query(SIZE, 1, NOW).unwrap();
        knowledge.on_answer(query, 1, &answer(&[(SIZE as u32, 3)]), SIZE);
        assert!(knowledge.on_time(NOW + AGE_MAX / 2));
        assert_eq!(knowledge.next_query(SIZE, 1, NOW + AGE_MAX / 2), None);
        assert!(!knowledge.on_time(NOW + AGE_MAX));
        assert!(knowledge.next_query(SIZE, 1, NOW + AGE_MAX).is_some());
    }
}
