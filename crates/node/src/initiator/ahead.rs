//! Sealing ahead of the target's leave: what a WRITE sends beyond its unsolicited data is sealed while the target has not asked for
//! it yet, or the socket has no room.
//!
//! Nothing is guessed: the data is the request's, and nobody may change it before the request has ended.

use std::collections::VecDeque;

use area::Span;
use iscsi::machine::TaskId;
use seal::Suite;

use crate::sealing::ahead_bytes_max;
use crate::stream::Stream;

/// The writes of a session that may have something to seal, in the order of submission.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Bytes that may be sealed and wait; 0: none, as in a session that is not sealed.
    bytes_max: usize,
    writes: VecDeque<TaskId>,
}

impl Ahead {
    pub(super) fn new(suite: Suite) -> Self {
        Self { bytes_max: ahead_bytes_max(suite), ..Self::default() }
    }

    pub(super) fn on_write(&mut self, task: TaskId) {
        if self.bytes_max > 0 {
            self.writes.push_back(task);
        }
    }

    /// The task has ended, or nothing more of it is sealed ahead.
    pub(super) fn on_end(&mut self, task: TaskId) {
        self.writes.retain(|write| *write != task);
    }

    /// The write whose next unit is to be sealed now, with all of its data.
    pub(super) fn next<'a>(
        &mut self,
        stream: &Stream,
        buffers: &'a [Option<Span>],
    ) -> Option<(TaskId, &'a Span)> {
        while let Some(task) = self.writes.front().copied() {
            let data = buffers[task.index()].as_ref();
            if let Some(data) = data.filter(|data| stream.sealed_bytes(task) < data.len()) {
                return (stream.waiting_bytes() < self.bytes_max).then_some((task, data));
            }
            self.writes.pop_front();
        }
        None
    }
}
