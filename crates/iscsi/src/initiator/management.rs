//! Task management, logout, pings, and the PDUs that a target sends unrequested: Asynchronous Message and Reject.

use super::task::{State, slot_of, tag};
use super::transmit::Control;
use super::{AsyncNotice, Connection, Event, Phase, Segment, TaskError};
use crate::limits::{MANAGEMENT_MAX, PING_DATA_MAX, TASKS_MAX};
use crate::machine::{Fatal, TaskId};
use crate::wire::{
    AsyncMessage, Bhs, CmdSn, Itt, LogoutReason, LogoutResponse, LogoutResult, NopIn, Opcode, Reject,
    RejectReason, TmFunction, TmResponse, TmResult,
};
use std::time::Duration;

/// Tags of requests other than commands use slots that tasks never have.
pub(super) const SERVICE_SLOT: u32 = TASKS_MAX - 16;
pub(super) const TEXT_SLOT: u32 = SERVICE_SLOT + MANAGEMENT_MAX;
pub(super) const PING_SLOT: u32 = TEXT_SLOT + 1;
pub(super) const LOGOUT_SLOT: u32 = PING_SLOT + 1;
pub(super) const TASK_SLOTS_MAX: u32 = SERVICE_SLOT;

// The last slot stays unused, so that no tag has the reserved value.
const _: () = assert!(LOGOUT_SLOT + 1 < TASKS_MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManagementId(u8);

/// [`MANAGEMENT_MAX`] task management requests are in progress, or there is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no further task management request is possible now")]
pub struct ManagementBusy;

impl Connection {
    /// Requests a task management function; [`Event::ManagementDone`] carries the answer. `referenced` is the task of
    /// ABORT TASK.
    ///
    /// When the target reports an abort or reset complete, the affected tasks that were active at the time of this call
    /// end with [`TaskError::Aborted`], before `ManagementDone`.
    pub fn task_management(
        &mut self,
        function: TmFunction,
        lun: u64,
        referenced: Option<TaskId>,
    ) -> Result<ManagementId, ManagementBusy> {
        let id = self.management.iter().position(Option::is_none).ok_or(ManagementBusy)?;
        if !self.is_full_feature() || self.logout.is_some() {
            return Err(ManagementBusy);
        }
        let bit = 1 << id;
        let request = ManagementId(u8::try_from(id).expect("few"));
        self.management_generation = self.management_generation.wrapping_add(1);
        let itt = tag(SERVICE_SLOT + u32::from(request.0), self.management_generation);
        let (mut referenced_task_tag, mut ref_cmd_sn) = (Itt::RESERVED, CmdSn(0));
        match (function, referenced) {
            (TmFunction::AbortTask, Some(TaskId(slot))) => {
                let task = self.tasks.get_mut(slot);
                match task.state {
                    // The command was not handed out: it ends without a request to the target.
                    State::Queued => {
                        self.fail(slot, TaskError::Aborted);
                        self.events.push_back(Event::ManagementDone { request, result: TmResult::Complete });
                        return Ok(request);
                    }
                    State::Active => {
                        task.marks |= bit;
                        (referenced_task_tag, ref_cmd_sn) = (task.itt, task.cmd_sn);
                    }
                    State::Free | State::Ended => {
                        let result = TmResult::TaskDoesNotExist;
                        self.events.push_back(Event::ManagementDone { request, result });
                        return Ok(request);
                    }
                }
            }
            (TmFunction::AbortTaskSet | TmFunction::ClearTaskSet | TmFunction::LogicalUnitReset, _) => {
                self.mark(bit, |task_lun| task_lun == lun);
            }
            (TmFunction::TargetWarmReset | TmFunction::TargetColdReset, _) => self.mark(bit, |_| true),
            _ => {}
        }
        self.management[id] = Some(itt);
        let control = Control::Management { function, lun, itt, referenced_task_tag, ref_cmd_sn };
        // Bounded by the request slots, so `CONTROL_MAX` does not apply.
        self.urgent.push_back(control);
        Ok(request)
    }

    fn mark(&mut self, bit: u8, concerns: impl Fn(u64) -> bool) {
        for (_, task) in self.tasks.iter_mut() {
            if task.state == State::Active && concerns(task.lun) {
                task.marks |= bit;
            }
        }
    }

    pub(super) fn on_management_response(&mut self) -> Result<(), Fatal> {
        let response = TmResponse::parse(&self.header)
            .map_err(|_| Fatal::Protocol("malformed task management response"))?;
        self.on_stat_sn(response.stat_sn);
        self.on_management_result(response.itt, response.result)
    }

    fn on_management_result(&mut self, itt: Itt, result: TmResult) -> Result<(), Fatal> {
        let Some(id) = self.management.iter().position(|&waiting| waiting == Some(itt)) else {
            return Err(Fatal::Protocol("answer to a task management request that was not made"));
        };
        self.management[id] = None;
        let bit = 1 << id;
        let mut ended = Vec::new();
        for (slot, task) in self.tasks.iter_mut() {
            if task.state == State::Active && task.marks & bit != 0 {
                task.marks &= !bit;
                ended.push(slot);
            }
        }
        if result == TmResult::Complete {
            for slot in ended {
                self.fail(slot, TaskError::Aborted);
            }
        }
        let request = ManagementId(u8::try_from(id).expect("few"));
        self.events.push_back(Event::ManagementDone { request, result });
        Ok(())
    }

    /// Requests the end of the session; [`Event::LoggedOut`] or [`Fatal::LogoutTimeout`] follows. Active tasks end with
    /// the session, so the edge waits for them first. Does nothing outside of the full feature phase or on a second
    /// call.
    pub fn logout(&mut self, reason: LogoutReason, now: Duration) {
        if self.is_full_feature() && self.logout.is_none() {
            let itt = tag(LOGOUT_SLOT, 0);
            self.logout = Some(now + self.config.logout_timeout);
            // Commands not handed out fail: no PDU may follow a logout request (§11.14).
            while let Some(&slot) = self.ready.front() {
                self.fail(slot, TaskError::Unsent);
            }
            self.urgent.push_back(Control::Logout { reason, itt });
        }
    }

    pub(super) fn on_logout_response(&mut self) -> Result<(), Fatal> {
        let response =
            LogoutResponse::parse(&self.header).map_err(|_| Fatal::Protocol("malformed logout response"))?;
        self.on_stat_sn(response.stat_sn);
        if self.logout.is_none() || response.itt != tag(LOGOUT_SLOT, 0) {
            return Err(Fatal::Protocol("logout response without a request"));
        }
        self.logout = None;
        if response.result == LogoutResult::Closed {
            self.phase = Phase::Over;
        }
        self.events.push_back(Event::LoggedOut { result: response.result });
        Ok(())
    }

    /// Sends a NOP-Out unless one is outstanding. The machine does so itself after `ping_interval`; the edge may call
    /// it earlier.
    pub fn ping(&mut self, now: Duration) {
        if self.is_full_feature() && self.ping.is_none() {
            self.ping_generation = self.ping_generation.wrapping_add(1);
            let itt = tag(PING_SLOT, self.ping_generation);
            self.ping = Some((itt, now + self.config.ping_timeout));
            self.urgent.push_back(Control::Ping { itt });
        }
    }

    pub(super) fn on_nop_in(&mut self) -> Result<(), Fatal> {
        let nop = NopIn::parse(&self.header).map_err(|_| Fatal::Protocol("malformed NOP-In"))?;
        if !nop.itt.is_reserved() {
            self.on_stat_sn(nop.stat_sn);
            if self.ping.is_some_and(|(itt, _)| itt == nop.itt) {
                self.ping = None;
            }
            return Ok(());
        }
        // §11.19.3: a target's ping carries the next StatSN without advancing it. One without a TTT needs no answer.
        if nop.ttt.is_reserved() {
            return Ok(());
        }
        if nop.data_segment_length > 0 {
            self.segment = Segment::Ping;
            return Ok(());
        }
        self.push_control(Control::Pong { ttt: nop.ttt, lun: nop.lun, data: Vec::new() })
    }

    pub(super) fn on_ping_data(&mut self, bytes: &[u8]) -> Result<(), Fatal> {
        let nop = NopIn::parse(&self.header).map_err(|_| Fatal::Protocol("malformed NOP-In"))?;
        let length = bytes.len().min(PING_DATA_MAX).min(self.parameters.send_segment_max as usize);
        self.push_control(Control::Pong { ttt: nop.ttt, lun: nop.lun, data: bytes[..length].to_vec() })
    }

    pub(super) fn on_async(&mut self, data: &[u8]) -> Result<(), Fatal> {
        let message = AsyncMessage::parse(&self.header)
            .map_err(|_| Fatal::Protocol("malformed asynchronous message"))?;
        self.on_stat_sn(message.stat_sn);
        self.async_pending += 1;
        if self.async_pending > crate::limits::CONTROL_MAX {
            return Err(Fatal::Overload("asynchronous messages"));
        }
        self.events.push_back(Event::Async(Box::new(AsyncNotice {
            event: message.event,
            vcode: message.vcode,
            lun: message.lun,
            parameters: [message.parameter1, message.parameter2, message.parameter3],
            data: data.to_vec(),
        })));
        Ok(())
    }

    /// Handles a Reject, whose data is the header of the rejected PDU (§11.17).
    pub(super) fn on_reject(&mut self, bytes: &[u8]) -> Result<(), Fatal> {
        let reject = Reject::parse(&self.header).map_err(|_| Fatal::Protocol("malformed Reject"))?;
        self.on_stat_sn(reject.stat_sn);
        let fatal = Fatal::Rejected(reject.reason.code());
        let Some(refused) = bytes.first_chunk::<48>() else { return Err(fatal) };
        let refused = Bhs(refused);
        match refused.opcode() {
            // §7.8: the target ends the task itself, with CHECK CONDITION.
            Ok(Opcode::ScsiCommand | Opcode::DataOut) if reject.reason == RejectReason::DataDigestError => {
                Ok(())
            }
            Ok(Opcode::ScsiCommand | Opcode::DataOut) => {
                let slot = self.tasks.find(refused.itt()).ok_or(fatal)?;
                self.fail(slot, TaskError::Rejected(reject.reason));
                Ok(())
            }
            Ok(Opcode::TmRequest) => self.on_management_result(refused.itt(), TmResult::Rejected),
            // A rejected ping also proves that the target is alive.
            Ok(Opcode::NopOut) => {
                if slot_of(refused.itt()) == PING_SLOT {
                    self.ping = None;
                }
                Ok(())
            }
            _ => Err(fatal),
        }
    }
}
