//! SCSI commands at the target: admission, the edge's answers, and the end of a task.
//!
//! Read RFC 7143 §4.2.2.1 before changing the window, §11.4.2 before changing when a response is sent.

use super::task::{Failure, State};
use super::{Command, Completion, Connection, Event, Segment, Urgent};
use crate::limits::{EXTENDED_CDB_MAX, IMMEDIATE_TASKS_MAX, SENSE_MAX};
use crate::machine::{Fatal, Payload, TaskId, Transmit};
use crate::wire::{Ahs, AhsIter, CmdSn, RejectReason, Residual, ScsiCommand, ScsiResponse, ServiceResponse};

const STATUS_CHECK_CONDITION: u8 = 0x02;

impl Connection {
    /// Whether to execute a request with this CmdSN; if so, advances ExpCmdSN. On `false` the request is silently
    /// ignored.
    ///
    /// Numbers outside the window and duplicates (which are below ExpCmdSN, since no command is held back) are ignored
    /// as §4.2.2.1 requires. A number inside the window but above ExpCmdSN leaves a gap. With several connections the
    /// target would wait for the missing number. With MaxConnections=1 the numbers leave the initiator in order
    /// (§4.2.2.1: "MUST send the commands in increasing order of CmdSN" per connection) over TCP, retries exist only
    /// above ErrorRecoveryLevel 0, and a header digest error drops the connection: the missing number cannot arrive,
    /// and to hold the command would hang every later one. Therefore a gap is a protocol error: Reject, and the
    /// connection ends, after which the initiator logs in again and repeats the unanswered commands.
    pub(super) fn admit(&mut self, immediate: bool, cmd_sn: CmdSn) -> Result<bool, Fatal> {
        if immediate {
            return Ok(true);
        }
        if !cmd_sn.within(self.exp_cmd_sn, self.max_cmd_sn) {
            return Ok(false);
        }
        if cmd_sn != self.exp_cmd_sn {
            self.reject(RejectReason::ProtocolError)?;
            return Err(Fatal::Protocol("CmdSN leaves a gap"));
        }
        self.exp_cmd_sn = self.exp_cmd_sn.next();
        Ok(true)
    }

    /// The current ExpCmdSN and MaxCmdSN. MaxCmdSN never decreases: a slot is offered once.
    pub(super) fn window(&mut self) -> (CmdSn, CmdSn) {
        let free = self.config.tasks_max - self.tasks.windowed;
        let max = self.exp_cmd_sn.plus(free).minus(1);
        if max.follows(self.max_cmd_sn) {
            self.max_cmd_sn = max;
        }
        (self.exp_cmd_sn, self.max_cmd_sn)
    }

    pub(super) fn on_command(&mut self, ahs: &[u8]) -> Result<(), Fatal> {
        let Ok(command) = ScsiCommand::parse(&self.header) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        if !self.admit(command.immediate, command.cmd_sn)? {
            return Ok(());
        }
        if self.discovery {
            return self.reject(RejectReason::CommandNotSupported);
        }
        if command.itt.is_reserved() || command.total_ahs_length as usize != ahs.len() {
            return self.reject(RejectReason::InvalidPduField);
        }
        if self.tasks.find(command.itt).is_some() {
            return self.reject(RejectReason::TaskInProgress);
        }
        let (mut tail, mut bidi_read) = (&[][..], 0);
        for ahs in AhsIter::new(ahs) {
            match ahs {
                Ok(Ahs::ExtendedCdb(bytes)) if bytes.len() <= EXTENDED_CDB_MAX => tail = bytes,
                Ok(Ahs::BidiReadLength(length)) => bidi_read = length,
                Ok(Ahs::Other(_)) => {}
                Ok(Ahs::ExtendedCdb(_)) | Err(_) => return self.reject(RejectReason::InvalidPduField),
            }
        }
        if command.immediate && self.tasks.immediate >= IMMEDIATE_TASKS_MAX {
            return self.reject(RejectReason::TooManyImmediateCommands);
        }
        // The window is the number of free slots, so an admitted command finds a slot.
        if !command.immediate && self.tasks.windowed >= self.config.tasks_max {
            return Err(Fatal::Overload("commands"));
        }
        let Some(slot) = self.tasks.allocate(command.itt, command.immediate) else {
            return Err(Fatal::Overload("commands"));
        };
        let immediate_length = command.data_segment_length;
        let task = self.tasks.get_mut(slot);
        task.cmd_sn = command.cmd_sn;
        task.lun = command.lun;
        (task.read, task.write) = (command.read, command.write);
        // Without a direction the command transfers no data (§11.3.4).
        task.expected = if command.read || command.write { command.expected_data_transfer_length } else { 0 };
        task.bidi_read = bidi_read;
        task.extended_cdb.extend_from_slice(tail);
        task.unsolicited_due = !command.is_final && command.write;
        task.unsolicited_end = immediate_length;
        if immediate_length > 0 {
            self.segment = Segment::Command { slot, length: immediate_length };
        }
        let unsolicited_max = self.parameters.first_burst.min(task.data_out_max());
        let failure = if (immediate_length > 0 && !(self.parameters.immediate_data && command.write))
            || (!command.is_final && (self.parameters.initial_r2t || !command.write))
        {
            Some(Failure::UnexpectedData)
        } else if immediate_length > unsolicited_max {
            Some(Failure::IncorrectAmount)
        } else {
            None
        };
        if let Some(failure) = failure {
            task.state = State::Collecting;
            self.fail(slot, failure);
            return Ok(());
        }
        task.announced = true;
        let event = Command {
            task: TaskId(slot),
            lun: command.lun,
            cdb: command.cdb,
            attribute: command.attribute,
            immediate: command.immediate,
            read: command.read,
            write: command.write,
            expected: task.expected,
        };
        self.events.push_back(Event::Command(event));
        Ok(())
    }

    /// The CDB's bytes beyond the 16 of [`Command::cdb`]; empty for a shorter CDB.
    pub fn extended_cdb(&self, task: TaskId) -> &[u8] {
        &self.tasks.get(task.0).extended_cdb
    }

    /// Whether task management, logout or [`Connection::abort`] aborted the task: its I/O need not finish, and its
    /// outcome will not be sent. The edge must still call `complete` or `abort`.
    pub fn is_aborted(&self, task: TaskId) -> bool {
        self.tasks.get(task.0).aborted
    }

    /// Sets the outcome of a command; called once per command. Data-In is taken from the task's buffer, which must stay
    /// until [`Event::TaskDone`]. The call is also valid while the command's data still arrives: the rest is discarded,
    /// and the response waits until the initiator has ended the sequences that it owes.
    ///
    /// Ignored for a task that has ended.
    pub fn complete(&mut self, task: TaskId, completion: Completion<'_>) {
        let slot = task.0;
        let Some(task) = self.tasks.of_edge(task) else { return };
        match task.state {
            State::Offered | State::Owned | State::Collecting => {}
            State::Free | State::Held | State::Sending | State::Responding => return,
        }
        if task.aborted {
            self.end(slot);
            return;
        }
        task.failure = None;
        task.status = completion.status;
        let sense = &completion.sense[..completion.sense.len().min(SENSE_MAX)];
        task.sense.extend_from_slice(sense);
        task.transfer = completion.transfer;
        task.data_in = completion.data_in.min(task.data_in_max());
        task.state = State::Held;
        self.progress(slot);
    }

    /// Ends a task without a response, as task management requires. The edge calls it when no I/O into or out of the
    /// buffer is in progress; [`Event::TaskDone`] follows.
    pub fn abort(&mut self, task: TaskId) {
        if self.tasks.of_edge(task).is_some() {
            self.tasks.get_mut(task.0).aborted = true;
            self.end(task.0);
        }
    }

    /// Tasks of this session on a logical unit, aborted ones included, in no particular order.
    pub fn tasks_on(&self, lun: u64) -> impl Iterator<Item = TaskId> {
        self.tasks
            .live_slots()
            .filter(move |(_, task)| task.announced && task.lun == lun)
            .map(|(slot, _)| TaskId(slot))
    }

    /// All tasks of this session, aborted ones included.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.live_slots().filter(|(_, task)| task.announced).map(|(slot, _)| TaskId(slot))
    }

    /// Ends a task because its data phase failed. A task in state `Offered` or `Owned` continues: the edge's own
    /// outcome applies, since the data that it requested is complete or was never requested.
    pub(super) fn fail(&mut self, slot: u32, failure: Failure) {
        let task = self.tasks.get_mut(slot);
        match task.state {
            State::Collecting => {
                task.failure.get_or_insert(failure);
                task.status = STATUS_CHECK_CONDITION;
                task.sense.clear();
                task.sense.extend_from_slice(&failure.sense());
                task.transfer = 0;
                task.data_in = 0;
                task.state = State::Held;
                self.progress(slot);
            }
            State::Offered => task.discarded = true,
            State::Free | State::Owned | State::Held | State::Sending | State::Responding => {}
        }
    }

    /// Moves a task to its next state if the condition for it is met; called after every change to the task.
    pub(super) fn progress(&mut self, slot: u32) {
        let receiving = self.segment.task() == Some(slot);
        let task = self.tasks.get_mut(slot);
        if task.aborted {
            return;
        }
        match task.state {
            State::Collecting if task.arrived == task.requested => {
                task.state = State::Owned;
                self.events.push_back(Event::DataOut { task: TaskId(slot) });
            }
            State::Held if !task.unsolicited_due && task.r2t_live == 0 && !receiving => {
                if task.r2t_queued {
                    task.r2t_queued = false;
                    self.r2t_queue.retain(|&other| other != slot);
                }
                let task = self.tasks.get_mut(slot);
                if task.data_in > 0 {
                    task.state = State::Sending;
                    self.data_queue.push_back(slot);
                } else {
                    task.state = State::Responding;
                    self.urgent.push_back(Urgent::Response(slot));
                }
            }
            _ => {}
        }
    }

    /// Marks a task aborted on behalf of management requests (bits). A task that the edge works on ends when the edge
    /// completes or aborts it; any other task ends now.
    pub(super) fn mark(&mut self, slot: u32, waits: u8) {
        let task = self.tasks.get_mut(slot);
        task.aborted = true;
        task.waits |= waits;
        match task.state {
            State::Offered | State::Owned => self.drop_transfers(slot),
            _ => self.end(slot),
        }
    }

    fn drop_transfers(&mut self, slot: u32) {
        let task = self.tasks.get_mut(slot);
        for (index, r2t) in task.r2ts.iter().enumerate() {
            if task.r2t_live & 1 << index != 0 {
                self.solicited_bytes -= u64::from(r2t.length);
            }
        }
        task.r2t_live = 0;
        task.unsolicited_due = false;
        if std::mem::take(&mut task.r2t_queued) {
            self.r2t_queue.retain(|&other| other != slot);
        }
        match task.state {
            State::Sending => {
                if self.data_queue.front() == Some(&slot) {
                    self.turn_bytes = 0;
                }
                self.data_queue.retain(|&other| other != slot);
            }
            State::Responding => {
                self.urgent.retain(|entry| !matches!(entry, Urgent::Response(other) if *other == slot));
            }
            _ => {}
        }
    }

    /// Ends a task: no later transmit names it. Data that arrives for it later has an unknown ITT and is discarded.
    pub(super) fn end(&mut self, slot: u32) {
        self.drop_transfers(slot);
        if self.segment.task() == Some(slot) {
            // The edge receives into its buffer: the slot ends with that PDU (see `on_command_data`).
            self.tasks.get_mut(slot).aborted = true;
            self.tasks.get_mut(slot).state = State::Held;
            return;
        }
        self.finish(slot);
    }

    /// Releases the slot. The events are in order, so `TaskDone` precedes any reuse of the slot.
    pub(super) fn finish(&mut self, slot: u32) {
        let task = self.tasks.get(slot);
        let (announced, waits) = (task.announced, task.waits);
        self.tasks.release(slot);
        if announced {
            self.events.push_back(Event::TaskDone { task: TaskId(slot) });
        }
        if waits != 0 {
            self.management_task_ended(waits);
        }
        if self.tasks.live() == 0 {
            self.logout_when_idle();
        }
    }

    /// Residuals of the task: for its direction, and for the read part of a bidirectional command (§11.4.5).
    pub(super) fn residuals(&self, slot: u32) -> (Residual, Residual) {
        let task = self.tasks.get(slot);
        if task.read && task.write {
            let reads = task.data_in > 0;
            let (read, write) = if reads { (task.transfer, 0) } else { (0, task.transfer) };
            (Residual::between(task.expected, write), Residual::between(task.bidi_read, read))
        } else {
            (Residual::between(task.expected, task.transfer), Residual::None)
        }
    }

    pub(super) fn emit_response(&mut self, slot: u32) -> Transmit {
        let (residual, bidi_residual) = self.residuals(slot);
        let task = self.tasks.get(slot);
        debug_assert_eq!(task.state, State::Responding);
        let payload = if task.sense.is_empty() {
            Payload::None
        } else {
            let length = u16::try_from(task.sense.len()).expect("bounded by SENSE_MAX");
            let mut bytes = Vec::with_capacity(2 + task.sense.len());
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&task.sense);
            Payload::Bytes(bytes)
        };
        let data_segment_length = match &payload {
            Payload::Bytes(bytes) => u32::try_from(bytes.len()).expect("bounded by SENSE_MAX"),
            _ => 0,
        };
        let (status, itt, exp_data_sn) = (task.status, task.itt, task.data_sn);
        // The slot is released first, so that the MaxCmdSN of this response offers it.
        self.finish(slot);
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let header = ScsiResponse {
            response: ServiceResponse::Completed,
            status,
            itt,
            snack_tag: 0,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn,
            max_cmd_sn,
            exp_data_sn,
            bidi_residual,
            residual,
            data_segment_length,
        };
        self.transmit(header.emit(), payload)
    }
}
