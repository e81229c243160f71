//! Turns of requests on blocks: writes of a block, and reads beside them, run one after the other, in the order in which
//! they were submitted.

use std::collections::VecDeque;
use std::ops::Range;

use super::ACTIVE_MAX;
use super::volume::RequestId;

#[derive(Clone, Debug)]
struct Turn {
    id: RequestId,
    blocks: Range<u64>,
    is_exclusive: bool,
}

impl Turn {
    fn excludes(&self, other: &Self) -> bool {
        (self.is_exclusive || other.is_exclusive)
            && self.blocks.start < other.blocks.end
            && other.blocks.start < self.blocks.end
    }
}

#[derive(Default)]
pub(super) struct Turns {
    active: Vec<Turn>,
    waiting: VecDeque<Turn>,
}

impl Turns {
    /// Whether the request may run at once; otherwise [`Self::leave`] returns its number later.
    pub(super) fn enter(&mut self, id: RequestId, blocks: Range<u64>, is_exclusive: bool) -> bool {
        let turn = Turn { id, blocks, is_exclusive };
        let has_room = self.active.len() < ACTIVE_MAX;
        if has_room && !self.active.iter().chain(&self.waiting).any(|other| other.excludes(&turn)) {
            self.active.push(turn);
            return true;
        }
        self.waiting.push_back(turn);
        false
    }

    /// Ends the turn of a request; returns those that may run now.
    pub(super) fn leave(&mut self, id: RequestId) -> Vec<RequestId> {
        let at = self.active.iter().position(|turn| turn.id == id).expect("the request has its turn");
        self.active.swap_remove(at);
        let mut granted = Vec::new();
        let mut index = 0;
        while index < self.waiting.len() && self.active.len() < ACTIVE_MAX {
            let turn = &self.waiting[index];
            let before = self.waiting.iter().take(index);
            if self.active.iter().chain(before).any(|other| other.excludes(turn)) {
                index += 1;
            } else {
                granted.push(turn.id);
                let turn = self.waiting.remove(index).expect("index is below the length");
                self.active.push(turn);
            }
        }
        granted
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }
}
