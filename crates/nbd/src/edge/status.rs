//! What is known of the extents ahead, and what is to be asked next: one block status at a time, ahead of whoever asks.

use std::time::Duration;

use block::Extent;

use crate::extents::Extents;
use crate::transmission::Status;
use crate::wire;

/// How far ahead of the last question is asked, in bytes. Whoever meets nothing but holes asks nothing else of the server,
/// so nobody would ask on for him.
const HORIZON_BYTES: u64 = 256 << 30;
/// Longest range of one question; a multiple of every block size.
const QUESTION_BYTES_MAX: u64 = 2 << 30;
/// What is not known is data for so many bytes; then one looks again.
const UNKNOWN_BYTES: u64 = 1 << 20;
/// What is known of an export that others may write is forgotten after this time.
const AGE_MAX: Duration = Duration::from_secs(10);

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// `base:allocation`: what reads as zeroes.
    Allocation,
    /// `qemu:dirty-bitmap:NAME`: what is dirty.
    Dirty(String),
}

impl Subject {
    /// The context's name.
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

/// A range to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) offset: u64,
    pub(super) length: u32,
    unit: u32,
    changes: u64,
}

/// The knowledge of one endpoint.
#[derive(Debug)]
pub(super) struct Knowledge {
    pub(super) subject: Subject,
    extents: Extents,
    /// Where somebody asked last.
    wanted: Option<u64>,
    /// Writes submitted so far, and of these under way: an answer that such a write may have overtaken is not believed.
    changes: u64,
    writing: u32,
    is_asking: bool,
    /// When the oldest of what is known was learnt.
    learnt: Duration,
    /// The server refuses to tell.
    given_up: bool,
}

impl Knowledge {
    pub(super) fn new(subject: Subject) -> Self {
        Self {
            subject,
            extents: Extents::default(),
            wanted: None,
            changes: 0,
            writing: 0,
            is_asking: false,
            learnt: Duration::ZERO,
            given_up: false,
        }
    }

    /// The extent that contains `offset`: its end, and whether it is data (or dirty). `None`: not known; it will be asked.
    pub(super) fn at(&mut self, offset: u64) -> Option<(u64, bool)> {
        self.wanted = Some(offset);
        self.extents.at(offset)
    }

    /// The same for a [`block::Endpoint`] of `size` bytes.
    pub(super) fn extent(&mut self, offset: u64, size: u64) -> Extent {
        match self.at(offset) {
            Some((end, data)) => Extent { end, data },
            None => Extent {
                end: (offset / UNKNOWN_BYTES + 1).saturating_mul(UNKNOWN_BYTES).min(size),
                data: true,
            },
        }
    }

    /// Somebody will ask about `offset`.
    pub(super) fn want(&mut self, offset: u64) {
        self.wanted = Some(offset);
    }

    /// Whether what was wanted last is known, or will never be.
    pub(super) fn is_settled(&mut self, size: u64) -> bool {
        self.given_up || self.wanted.is_none_or(|offset| offset >= size || self.extents.at(offset).is_some())
    }

    /// Whether the server has refused to tell.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Forgets what is too old. False: there is nothing that could become so.
    pub(super) fn on_time(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.learnt) >= AGE_MAX {
            self.extents.forget();
        }
        !self.extents.is_empty()
    }

    /// What to ask now of an export of `size` bytes in blocks of `unit`.
    pub(super) fn question(&mut self, size: u64, unit: u32, now: Duration) -> Option<Question> {
        let wanted = self.wanted.filter(|_| !self.is_asking && self.writing == 0 && !self.given_up)?;
        let offset = self.extents.next(wanted) / u64::from(unit) * u64::from(unit);
        if offset >= size || offset - wanted.min(offset) >= HORIZON_BYTES || !self.extents.has_room() {
            return None;
        }
        if self.extents.is_empty() {
            self.learnt = now;
        }
        self.is_asking = true;
        let length = (size - offset).min(QUESTION_BYTES_MAX) as u32;
        Some(Question { offset, length, unit, changes: self.changes })
    }

    /// The answer to `question`.
    pub(super) fn on_answer(&mut self, question: Question, context: u32, answer: &[Status], size: u64) {
        self.is_asking = false;
        if question.changes != self.changes {
            return;
        }
        let Some(status) = answer.iter().find(|status| status.context == context) else { return };
        let mut end = question.offset;
        let extents = status.extents.iter().map(|(length, flags)| {
            // The last one may reach beyond the end of the export.
            let length = u64::from(*length).min(size - end);
            end += length;
            (length, self.subject.bit(*flags))
        });
        self.extents.append(question.offset, extents.filter(|(length, _)| *length > 0));
        // An extent that ends within a block: nobody could ask what comes after it.
        self.given_up |= end < size && !end.is_multiple_of(question.unit.into());
    }

    /// The server does not answer questions.
    pub(super) fn on_refused(&mut self) {
        (self.is_asking, self.given_up) = (false, true);
        self.extents.forget();
    }

    /// The question was lost with the connection; others may have written since.
    pub(super) fn on_lost(&mut self) {
        self.is_asking = false;
        self.extents.forget();
    }

    /// A write is on its way.
    pub(super) fn on_write(&mut self) {
        self.changes += 1;
        self.writing += 1;
        self.extents.forget();
    }

    /// It has ended.
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
        let mut knowledge = Knowledge::new(Subject::Allocation);
        assert_eq!(knowledge.question(SIZE, 1, NOW), None, "nobody asked");
        assert_eq!(knowledge.extent(5, SIZE), Extent { end: UNKNOWN_BYTES, data: true });
        let question = knowledge.question(SIZE, 1, NOW).unwrap();
        assert_eq!((question.offset, u64::from(question.length)), (5, SIZE - 5));
        assert_eq!(knowledge.question(SIZE, 1, NOW), None, "one at a time");
        knowledge.on_answer(question, 1, &answer(&[(95, 3), (1 << 30, 0)]), SIZE);
        assert_eq!(knowledge.extent(6, SIZE), Extent { end: 100, data: false });
        assert_eq!(knowledge.extent(100, SIZE), Extent { end: SIZE, data: true }, "cut at the end");
        assert_eq!(knowledge.question(SIZE, 1, NOW), None, "all is known");
    }

    #[test]
    fn an_answer_that_a_write_may_have_overtaken_is_not_believed() {
        let mut knowledge = Knowledge::new(Subject::Allocation);
        knowledge.want(0);
        let question = knowledge.question(SIZE, 1, NOW).unwrap();
        knowledge.on_write();
        knowledge.on_answer(question, 1, &answer(&[(SIZE as u32, 3)]), SIZE);
        assert!(knowledge.extent(0, SIZE).data);
        assert_eq!(knowledge.question(SIZE, 1, NOW), None, "while it is under way");
        knowledge.on_written();
        let question = knowledge.question(SIZE, 1, NOW).unwrap();
        knowledge.on_answer(question, 1, &answer(&[(SIZE as u32, 3)]), SIZE);
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
    fn questions_keep_to_blocks() {
        let mut knowledge = Knowledge::new(Subject::Allocation);
        knowledge.want(5000);
        let question = knowledge.question(SIZE, 4096, NOW).unwrap();
        assert_eq!(question.offset, 4096);
        knowledge.on_answer(question, 1, &answer(&[(4096 + 5, 3)]), SIZE);
        assert!(knowledge.is_given_up(), "an answer that does not is not asked on");
    }

    #[test]
    fn what_is_old_is_asked_again() {
        let mut knowledge = Knowledge::new(Subject::Allocation);
        knowledge.want(0);
        let question = knowledge.question(SIZE, 1, NOW).unwrap();
        knowledge.on_answer(question, 1, &answer(&[(SIZE as u32, 3)]), SIZE);
        assert!(knowledge.on_time(NOW + AGE_MAX / 2));
        assert_eq!(knowledge.question(SIZE, 1, NOW + AGE_MAX / 2), None);
        assert!(!knowledge.on_time(NOW + AGE_MAX));
        assert!(knowledge.question(SIZE, 1, NOW + AGE_MAX).is_some());
    }
}
