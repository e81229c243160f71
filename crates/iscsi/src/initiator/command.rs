//! SCSI commands at the initiator: submission, status, end.
//!
//! RFC 7143 §4.2.2.1 (window), §11.3, §11.4.

use super::task::{State, Task};
use super::{Command, Connection, Direction, Event, Outcome, Segment, TaskError, WindowFull};
use crate::limits::SENSE_MAX;
use crate::machine::{Fatal, Payload, TaskId, Transmit};
use crate::wire::{CmdSn, DataSn, Residual, ScsiCommand, ScsiResponse, ServiceResponse, Ttt};

impl Connection {
    /// Number of commands that may be submitted now: the smaller of the target's window and the free slots.
    pub fn window(&self) -> u32 {
        if !self.is_full_feature() || self.discovery || self.logout.is_some() {
            return 0;
        }
        // MaxCmdSN = CmdSN - 1 is a closed window; a smaller one is impossible, since `max_cmd_sn` never decreases.
        let open = self.max_cmd_sn.next().distance_from(self.cmd_sn);
        let open = u32::try_from(open).unwrap_or(0);
        let queued = u32::try_from(self.ready.len()).expect("slots are few");
        open.saturating_sub(queued).min(self.tasks.free())
    }

    /// Queues a command. The edge keeps the buffer of [`Command::length`] bytes until [`Event::Complete`] or
    /// [`Event::Failed`] names the task, and beyond that the memory from which its socket still reads.
    pub fn submit(&mut self, command: Command) -> Result<TaskId, WindowFull> {
        if self.window() == 0 {
            return Err(WindowFull);
        }
        let slot = self.tasks.allocate().ok_or(WindowFull)?;
        let task = self.tasks.get_mut(slot);
        task.lun = command.lun;
        task.cdb = command.cdb;
        task.direction = command.direction;
        task.length = if command.direction == Direction::None { 0 } else { command.length };
        task.attribute = command.attribute;
        self.ready.push_back(slot);
        Ok(TaskId(slot))
    }

    pub(super) fn emit_command(&mut self) -> Option<Transmit> {
        let slot = self.ready.pop_front()?;
        let parameters = self.parameters;
        let cmd_sn = self.cmd_sn.take();
        let exp_stat_sn = self.exp_stat_sn;
        let task = self.tasks.get_mut(slot);
        task.state = State::Active;
        task.cmd_sn = cmd_sn;
        let out = if task.direction == Direction::Out { task.length } else { 0 };
        let unsolicited_max = out.min(parameters.first_burst);
        let immediate =
            if parameters.immediate_data { unsolicited_max.min(parameters.send_segment_max) } else { 0 };
        let unsolicited = if parameters.initial_r2t { immediate } else { unsolicited_max };
        task.sent = immediate;
        let header = ScsiCommand {
            immediate: false,
            is_final: unsolicited == immediate,
            read: task.direction == Direction::In,
            write: task.direction == Direction::Out,
            attribute: task.attribute,
            lun: task.lun,
            itt: task.itt,
            expected_data_transfer_length: task.length,
            cmd_sn,
            exp_stat_sn,
            cdb: task.cdb,
            total_ahs_length: 0,
            data_segment_length: immediate,
        };
        if unsolicited > immediate {
            self.queue_sequence(slot, Ttt::RESERVED, immediate, unsolicited);
        }
        let payload = if immediate > 0 {
            Payload::Task { task: TaskId(slot), offset: 0, length: immediate, end: out }
        } else {
            Payload::None
        };
        Some(self.transmit(header.emit(), payload))
    }

    pub(super) fn on_response(&mut self) -> Result<(), Fatal> {
        let response =
            ScsiResponse::parse(&self.header).map_err(|_| Fatal::Protocol("malformed SCSI response"))?;
        self.on_stat_sn(response.stat_sn);
        let slot =
            self.tasks.find(response.itt).ok_or(Fatal::Protocol("SCSI response for an unknown task"))?;
        if response.data_segment_length > 0 {
            self.segment = Segment::Sense { slot };
            return Ok(());
        }
        self.on_outcome(slot, &response, &[]);
        Ok(())
    }

    pub(super) fn on_sense(&mut self, slot: u32, bytes: &[u8]) -> Result<(), Fatal> {
        let response =
            ScsiResponse::parse(&self.header).map_err(|_| Fatal::Protocol("malformed SCSI response"))?;
        // SenseLength, sense, then response data, which is not used (§11.4.7).
        let sense = match bytes {
            [high, low, rest @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                &rest[..rest.len().min(length).min(SENSE_MAX)]
            }
            _ => &[],
        };
        self.on_outcome(slot, &response, sense);
        Ok(())
    }

    fn on_outcome(&mut self, slot: u32, response: &ScsiResponse, sense: &[u8]) {
        if response.response == ServiceResponse::Completed {
            self.complete(slot, response.status, response.residual, sense);
        } else {
            self.fail(slot, TaskError::TargetFailure(response.response.code()));
        }
    }

    pub(super) fn complete(&mut self, slot: u32, status: u8, residual: Residual, sense: &[u8]) {
        self.end(slot);
        let &Task { received: data_in, sent: data_out, .. } = self.tasks.get(slot);
        let sense = sense.to_vec();
        let outcome = Outcome { task: TaskId(slot), status, sense, residual, data_in, data_out };
        self.events.push_back(Event::Complete(outcome));
    }

    pub(super) fn fail(&mut self, slot: u32, error: TaskError) {
        self.end(slot);
        self.events.push_back(Event::Failed { task: TaskId(slot), error });
    }

    fn end(&mut self, slot: u32) {
        let task = self.tasks.get_mut(slot);
        match task.state {
            State::Queued => self.ready.retain(|&other| other != slot),
            State::Active => {}
            State::Free | State::Ended => unreachable!("a task ends once"),
        }
        task.state = State::Ended;
        if task.has_sequences() {
            task.drop_sequences();
            if self.data_queue.front() == Some(&slot) {
                self.turn_bytes = 0;
            }
            self.data_queue.retain(|&other| other != slot);
        }
    }

    /// Takes ExpCmdSN and MaxCmdSN of any PDU (§4.2.2.1). A MaxCmdSN below ExpCmdSN - 1 is invalid and ignored; the
    /// window never shrinks. A MaxCmdSN so far ahead that it compares below this side's CmdSN is ignored too: queued
    /// commands would be sent outside the window.
    pub(super) fn on_window(&mut self, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) {
        if max_cmd_sn.precedes(exp_cmd_sn.minus(1)) {
            return;
        }
        if max_cmd_sn.follows(self.max_cmd_sn) && max_cmd_sn.next().follows(self.cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// Checks the DataSN or R2TSN of a PDU of the task: both share one number space (§11.7.5).
    pub(super) fn on_data_sn(&mut self, slot: u32, data_sn: DataSn) -> Result<(), Fatal> {
        let task = self.tasks.get_mut(slot);
        if task.data_sn != data_sn {
            return Err(Fatal::Protocol("DataSN or R2TSN out of order"));
        }
        task.data_sn = data_sn.next();
        Ok(())
    }
}
