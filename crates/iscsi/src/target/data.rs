//! Data phases at the target: Data-Out, checked against what was announced or solicited; R2Ts; Data-In.
//!
//! RFC 7143 §4.2.4 (sequences), §11.7 (data), §11.8 (R2T). DataPDUInOrder and DataSequenceInOrder are Yes, so offsets
//! within a sequence only grow; the R2Ts of a task may be answered in any order.

use super::task::{Failure, Solicited, State};
use super::{Connection, Event, FRONT_BYTES, Segment, Urgent};
use crate::limits::{R2T_BITS, R2T_OUTSTANDING_MAX, TASK_BITS, TURN_BYTES};
use crate::machine::{Fatal, Payload, Placement, TaskId, Transmit};
use crate::wire::{DataIn, DataOut, DataSn, R2t, RejectReason, StatSn, Ttt};

impl Connection {
    /// Requests that Data-Out fill the first `bytes` bytes of the task's buffer, which the edge has allocated;
    /// [`Event::DataOut`] reports completion. `bytes` is reduced to what the initiator offers
    /// ([`Command::expected`](super::Command::expected) with `write`, otherwise 0), so the edge compares both before it
    /// handles a short transfer.
    ///
    /// The edge calls it before `placement` for the command's own PDU; otherwise the immediate data is lost and the
    /// command fails.
    pub fn want_data_out(&mut self, task: TaskId, bytes: u32) {
        let slot = task.0;
        let first_burst = self.parameters.first_burst;
        let Some(task) = self.tasks.of_edge(task) else { return };
        if task.state != State::Offered || task.aborted {
            return;
        }
        task.requested = bytes.min(task.data_out_max());
        task.state = State::Collecting;
        // With F=0 the initiator owes unsolicited data up to FirstBurstLength (§11.3.4): R2Ts solicit only what lies
        // beyond, without waiting for the unsolicited data.
        task.solicited =
            if task.unsolicited_due { first_burst.min(task.expected) } else { task.unsolicited_end };
        if task.discarded && task.requested > 0 {
            self.fail(slot, Failure::IncorrectAmount);
            return;
        }
        self.queue_r2t(slot);
        self.progress(slot);
    }

    /// Queues a task for R2Ts if it has bytes to solicit and is below MaxOutstandingR2T.
    fn queue_r2t(&mut self, slot: u32) {
        let task = self.tasks.get_mut(slot);
        let outstanding = task.r2t_live.count_ones();
        if task.collects()
            && task.solicited < task.requested
            && outstanding < self.parameters.outstanding_r2t_max
            && !task.r2t_queued
        {
            task.r2t_queued = true;
            self.r2t_queue.push_back(slot);
        }
    }

    pub(super) fn on_data_out(&mut self) -> Result<(), Fatal> {
        let Ok(data) = DataOut::parse(&self.header) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        if data.ttt.is_reserved() {
            // Data with an unknown ITT belongs to a command that was ignored, or to an aborted task: it is discarded.
            return match self.tasks.find(data.itt) {
                Some(slot) => self.on_unsolicited(slot, &data),
                None => Ok(()),
            };
        }
        match (self.tasks.find_r2t(data.ttt, data.itt), self.tasks.find(data.itt)) {
            (Some((slot, index)), _) => self.on_solicited(slot, index, &data),
            (None, Some(slot)) if !self.tasks.get(slot).aborted => self.reject(RejectReason::InvalidPduField),
            _ => Ok(()),
        }
    }

    fn on_unsolicited(&mut self, slot: u32, data: &DataOut) -> Result<(), Fatal> {
        let first_burst = self.parameters.first_burst;
        let task = self.tasks.get_mut(slot);
        if task.aborted {
            return Ok(());
        }
        if !task.unsolicited_due {
            if task.state == State::Collecting {
                self.fail(slot, Failure::UnexpectedData);
                return Ok(());
            }
            return self.reject(RejectReason::ProtocolError);
        }
        let limit = first_burst.min(task.expected);
        let length = data.data_segment_length;
        let failure = if data.data_sn != task.unsolicited_sn {
            Some(Failure::Crc)
        } else if data.buffer_offset != task.unsolicited_end
            || length > limit.saturating_sub(task.unsolicited_end)
        {
            Some(Failure::IncorrectAmount)
        } else {
            None
        };
        let mut short = false;
        if failure.is_none() {
            task.unsolicited_sn = task.unsolicited_sn.next();
            task.unsolicited_end += length;
            short = data.is_final && task.unsolicited_end < limit;
        }
        if data.is_final {
            task.unsolicited_due = false;
        }
        if short && task.expected <= first_burst {
            // Shorter than announced, and no R2T solicits beyond it yet: R2Ts solicit the rest.
            task.solicited = task.unsolicited_end;
        }
        let short = short && task.expected > first_burst;
        self.segment_of_data(slot, data);
        if let Some(failure) = failure.or(short.then_some(Failure::IncorrectAmount)) {
            self.fail(slot, failure);
        } else {
            self.queue_r2t(slot);
        }
        if length == 0 {
            self.progress(slot);
        }
        Ok(())
    }

    fn on_solicited(&mut self, slot: u32, index: usize, data: &DataOut) -> Result<(), Fatal> {
        let task = self.tasks.get_mut(slot);
        let r2t = &mut task.r2ts[index];
        let length = data.data_segment_length;
        let failure = if data.data_sn != r2t.data_sn {
            Some(Failure::Crc)
        } else if data.buffer_offset != r2t.offset + r2t.received || length > r2t.length - r2t.received {
            Some(Failure::IncorrectAmount)
        } else {
            r2t.data_sn = r2t.data_sn.next();
            r2t.received += length;
            (data.is_final && r2t.received < r2t.length).then_some(Failure::IncorrectAmount)
        };
        if data.is_final {
            self.solicited_bytes -= u64::from(r2t.length);
            task.r2t_live &= !(1 << index);
        }
        self.segment_of_data(slot, data);
        if let Some(failure) = failure {
            self.fail(slot, failure);
        } else {
            self.queue_r2t(slot);
        }
        if length == 0 {
            self.progress(slot);
        }
        Ok(())
    }

    fn segment_of_data(&mut self, slot: u32, data: &DataOut) {
        if data.data_segment_length > 0 {
            self.segment =
                Segment::DataOut { slot, offset: data.buffer_offset, length: data.data_segment_length };
        }
    }

    /// Placement of command data at `offset`, by what the edge has requested so far.
    pub(super) fn place(&self, slot: u32, offset: u32, length: u32) -> Placement {
        let task = self.tasks.get(slot);
        let keep = length.min(task.requested.saturating_sub(offset));
        if task.collects() && keep > 0 {
            Placement::Task { task: TaskId(slot), offset, length: keep }
        } else {
            Placement::Discard
        }
    }

    pub(super) fn on_command_data(
        &mut self,
        slot: u32,
        offset: u32,
        length: u32,
        placed: bool,
        damaged: bool,
    ) -> Result<(), Fatal> {
        let task = self.tasks.get_mut(slot);
        if task.aborted {
            // `end` held the slot while its buffer was being received into, or the edge still works on the task.
            if task.state == State::Held {
                self.finish(slot);
            }
            return Ok(());
        }
        if damaged {
            // §7.8: reject the PDU, and end the task with a CRC error after all data that the initiator owes.
            self.reject(RejectReason::DataDigestError)?;
            self.fail(slot, Failure::Crc);
        } else if task.collects() {
            let kept = length.min(task.requested.saturating_sub(offset));
            if kept > 0 && !placed {
                // The edge requested it only after the placement, so it was discarded.
                self.fail(slot, Failure::IncorrectAmount);
            } else {
                task.arrived += kept;
                self.report_front(slot, offset, kept);
            }
        } else if task.state == State::Offered {
            task.discarded = true;
        }
        self.progress(slot);
        Ok(())
    }

    /// `length` bytes at `offset` of the requested data have arrived. What arrives before its predecessors, by R2Ts answered in
    /// another order, is no longer reported.
    fn report_front(&mut self, slot: u32, offset: u32, length: u32) {
        let task = self.tasks.get_mut(slot);
        if offset == task.front {
            task.front += length;
        }
        if task.front < task.requested && task.front - task.front_reported >= FRONT_BYTES {
            task.front_reported = task.front;
            self.events.push_back(Event::DataOutFront { task: TaskId(slot), bytes: task.front });
        }
    }

    /// The next R2T, if a task has bytes to solicit and `solicited_bytes_max` allows it.
    pub(super) fn emit_r2t(&mut self) -> Option<Transmit> {
        loop {
            let &slot = self.r2t_queue.front()?;
            let task = self.tasks.get(slot);
            let outstanding = task.r2t_live.count_ones();
            if !task.collects()
                || task.solicited >= task.requested
                || outstanding >= self.parameters.outstanding_r2t_max
            {
                self.r2t_queue.pop_front();
                self.tasks.get_mut(slot).r2t_queued = false;
                continue;
            }
            let length = self.parameters.max_burst.min(task.requested - task.solicited);
            let bound = u64::from(self.config.solicited_bytes_max);
            if self.solicited_bytes > 0 && self.solicited_bytes + u64::from(length) > bound {
                return None;
            }
            self.r2t_queue.pop_front();
            return Some(self.emit_r2t_of(slot, length));
        }
    }

    fn emit_r2t_of(&mut self, slot: u32, length: u32) -> Transmit {
        let index = self.tasks.get(slot).r2t_live.trailing_ones();
        assert!(index < R2T_OUTSTANDING_MAX, "an R2T beyond MaxOutstandingR2T");
        let ttt = loop {
            self.r2t_generation = self.r2t_generation.wrapping_add(1);
            let ttt = Ttt(self.r2t_generation << (TASK_BITS + R2T_BITS) | index << TASK_BITS | slot);
            if !ttt.is_reserved() {
                break ttt;
            }
        };
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let stat_sn = self.stat_sn;
        let task = self.tasks.get_mut(slot);
        let offset = task.solicited;
        task.add_r2t(index, Solicited { ttt, offset, length, received: 0, data_sn: DataSn(0) });
        task.solicited += length;
        task.r2t_queued = false;
        self.solicited_bytes += u64::from(length);
        let header = R2t {
            lun: task.lun,
            itt: task.itt,
            ttt,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            r2t_sn: task.data_sn.take(),
            buffer_offset: offset,
            desired_data_transfer_length: length,
        };
        // Round-robin: every other queued task sends one R2T before the next one of this task.
        self.queue_r2t(slot);
        self.transmit(header.emit(), Payload::None)
    }

    /// The next Data-In of the task whose turn it is. The last one carries a GOOD status (§11.7.3).
    pub(super) fn emit_data_in(&mut self) -> Option<Transmit> {
        let &slot = self.data_queue.front()?;
        let (residual, _) = self.residuals(slot);
        let max_burst = self.parameters.max_burst;
        let task = self.tasks.get_mut(slot);
        debug_assert_eq!(task.state, State::Sending);
        let offset = task.sent;
        let left = task.data_in - offset;
        let length = left.min(self.parameters.send_segment_max).min(max_burst - task.burst);
        assert!(length > 0, "a task without data to send in the data queue");
        task.sent += length;
        task.burst += length;
        let last = length == left;
        let is_final = last || task.burst == max_burst;
        if is_final {
            task.burst = 0;
        }
        // The status of a bidirectional command needs a SCSI Response, which carries both residuals.
        let collapse = last && task.status == 0 && task.sense.is_empty() && !task.write;
        let (itt, data_sn, end) = (task.itt, task.data_sn.take(), task.data_in);

        self.turn_bytes += length;
        if last {
            self.turn_bytes = 0;
            self.data_queue.pop_front();
            if collapse {
                self.finish(slot);
            } else {
                task_responds(self, slot);
            }
        } else if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            self.data_queue.rotate_left(1);
        }
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let header = DataIn {
            is_final,
            acknowledge: false,
            status: collapse.then_some(0),
            lun: 0,
            itt,
            ttt: Ttt::RESERVED,
            stat_sn: if collapse { self.stat_sn.take() } else { StatSn(0) },
            exp_cmd_sn,
            max_cmd_sn,
            data_sn,
            buffer_offset: offset,
            residual,
            data_segment_length: length,
        };
        let payload = Payload::Task { task: TaskId(slot), offset, length, end };
        Some(self.transmit(header.emit(), payload))
    }
}

fn task_responds(connection: &mut Connection, slot: u32) {
    connection.tasks.get_mut(slot).state = State::Responding;
    connection.urgent.push_back(Urgent::Response(slot));
}
