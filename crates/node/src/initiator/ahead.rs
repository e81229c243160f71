//! Sealing ahead of R2T: the units of a WRITE beyond its unsolicited data are sealed while the session waits for R2T or
//! for room in the socket. The request's buffer may not change before it has completed.

use std::collections::VecDeque;

use area::Span;
use iscsi::machine::TaskId;
use seal::Suite;

use crate::sealing::ahead_bytes_max;
use crate::stream::Stream;

#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Bound of the bytes that are sealed and not yet sent; 0 if the session is not sealed: no sealing ahead.
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

    /// Removes a task that has ended, or of which no further unit is sealed ahead.
    pub(super) fn on_end(&mut self, task: TaskId) {
        self.writes.retain(|write| *write != task);
    }

    /// The write whose next unit is to be sealed now, with all of its data.
    pub(super) fn next<'a>(
        &mut self,
        stream: &Stream,
        buffers: &'a [Option<Span>],
    ) -> Option<(TaskId, &'a Span)> {
        let send = stream.sealed_send()?;
        while let Some(task) = self.writes.front().copied() {
            let data = buffers[task.index()].as_ref();
            if let Some(data) = data.filter(|data| send.sealed_bytes(task) < data.len()) {
                return (send.waiting_bytes() < self.bytes_max).then_some((task, data));
            }
            self.writes.pop_front();
        }
        None
    }
}
