//! Data phases at the initiator: Data-In into the task's buffer, R2Ts, Data-Out.
//!
//! RFC 7143 §11.7, §11.8. Every PDU is checked against the buffer before a byte of it is placed. At ErrorRecoveryLevel
//! 0 every violation ends the connection.

use super::task::Sequence;
use super::{Connection, Direction, Segment};
use crate::limits::TURN_BYTES;
use crate::machine::{Fatal, Payload, TaskId, Transmit};
use crate::wire::{DataIn, DataOut, DataSn, R2t, Ttt};

impl Connection {
    pub(super) fn on_data_in(&mut self) -> Result<(), Fatal> {
        let data = DataIn::parse(&self.header).map_err(|_| Fatal::Protocol("malformed Data-In"))?;
        let slot = self.tasks.find(data.itt).ok_or(Fatal::Protocol("Data-In for an unknown task"))?;
        if data.status.is_some() {
            self.on_stat_sn(data.stat_sn);
        }
        self.on_data_sn(slot, data.data_sn)?;
        let task = self.tasks.get(slot);
        let length = data.data_segment_length;
        if task.direction != Direction::In && length > 0 {
            return Err(Fatal::Protocol("Data-In for a command that reads nothing"));
        }
        if data.buffer_offset != task.received && length > 0 {
            return Err(Fatal::Protocol("Data-In out of order"));
        }
        if length > task.length - task.received {
            return Err(Fatal::Protocol("more Data-In than was requested"));
        }
        if length > 0 {
            self.segment = Segment::DataIn { slot, offset: data.buffer_offset, length };
        } else if let Some(status) = data.status {
            self.complete(slot, status, data.residual, &[]);
        }
        Ok(())
    }

    /// Handles a received data segment of a Data-In; with the S bit the task ends.
    pub(super) fn on_data_in_placed(&mut self, slot: u32, length: u32) -> Result<(), Fatal> {
        self.tasks.get_mut(slot).received += length;
        let data = DataIn::parse(&self.header).map_err(|_| Fatal::Protocol("malformed Data-In"))?;
        if let Some(status) = data.status {
            self.complete(slot, status, data.residual, &[]);
        }
        Ok(())
    }

    pub(super) fn on_r2t(&mut self) -> Result<(), Fatal> {
        let r2t = R2t::parse(&self.header).map_err(|_| Fatal::Protocol("malformed R2T"))?;
        let slot = self.tasks.find(r2t.itt).ok_or(Fatal::Protocol("R2T for an unknown task"))?;
        self.on_data_sn(slot, r2t.r2t_sn)?;
        let task = self.tasks.get(slot);
        let length = r2t.desired_data_transfer_length;
        let end = r2t.buffer_offset.checked_add(length).filter(|&end| end <= task.length);
        let (Direction::Out, Some(end)) = (task.direction, end) else {
            return Err(Fatal::Protocol("R2T beyond the command's data"));
        };
        if length == 0 || length > self.parameters.max_burst {
            return Err(Fatal::Protocol("R2T longer than MaxBurstLength, or for nothing"));
        }
        if r2t.ttt.is_reserved() {
            return Err(Fatal::Protocol("R2T without a transfer tag"));
        }
        if u32::from(task.r2ts) >= self.parameters.outstanding_r2t_max {
            return Err(Fatal::Protocol("more R2Ts than MaxOutstandingR2T"));
        }
        self.queue_sequence(slot, r2t.ttt, r2t.buffer_offset, end);
        Ok(())
    }

    pub(super) fn queue_sequence(&mut self, slot: u32, ttt: Ttt, offset: u32, end: u32) {
        let task = self.tasks.get_mut(slot);
        if !task.has_sequences() {
            self.data_queue.push_back(slot);
        }
        task.push_sequence(Sequence { ttt, offset, end, data_sn: DataSn(0) });
    }

    /// The next Data-Out of the task whose turn it is.
    pub(super) fn emit_data_out(&mut self) -> Option<Transmit> {
        let &slot = self.data_queue.front()?;
        let exp_stat_sn = self.exp_stat_sn;
        let task = self.tasks.get_mut(slot);
        let (itt, lun, end) = (task.itt, task.lun, task.length);
        let sequence = task.sequence();
        let offset = sequence.offset;
        let length = self.parameters.send_segment_max.min(sequence.end - offset);
        sequence.offset += length;
        let is_final = sequence.offset == sequence.end;
        let header = DataOut {
            is_final,
            lun: if sequence.ttt.is_reserved() { 0 } else { lun },
            itt,
            ttt: sequence.ttt,
            exp_stat_sn,
            data_sn: sequence.data_sn.take(),
            buffer_offset: offset,
            data_segment_length: length,
        };
        if is_final {
            task.pop_sequence();
        }
        // A target may request bytes more than once.
        task.sent = task.sent.saturating_add(length);
        self.turn_bytes += length;
        if !task.has_sequences() {
            self.turn_bytes = 0;
            self.data_queue.pop_front();
        } else if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            self.data_queue.rotate_left(1);
        }
        Some(self.transmit(header.emit(), Payload::Task { task: TaskId(slot), offset, length, end }))
    }
}
