//! Task management, logout and pings at the target.
//!
//! RFC 7143 §4.2.3 and §11.5. Semantics are those of TaskReporting=RFC3720: aborted tasks send no response, and the
//! function's response follows the last PDU of every task it affected. The edge decides whether the initiator may
//! execute a function, because access rights are configured there: nothing happens before [`Connection::carry_out`],
//! and a refused function (response 6) ends no task. The machine does not wait for the Data-Out that R2Ts of an aborted
//! task still solicit (§4.2.3.3 a): some initiators stop sending it and wait for the response. Such data is discarded,
//! since its task is unknown.

use super::task::State;
use super::transmit::Control;
use super::{Connection, Event, Segment};
use crate::limits::{MANAGEMENT_MAX, PING_DATA_MAX};
use crate::machine::{Fatal, TaskId};
use crate::wire::{
    Itt, LogoutReason, LogoutRequest, LogoutResult, NopOut, RejectReason, TmFunction, TmRequest, TmResult,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManagementId(u8);

#[derive(Debug)]
pub(super) struct Management {
    itt: Itt,
    /// Tasks of this session that the function affects.
    concerns: Concerns,
    /// Number of tasks that it marked and that have not ended.
    tasks: u32,
    /// The edge's answer, held until `tasks` is 0.
    result: Option<TmResult>,
}

/// The tasks of its own session that a function ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Concerns {
    None,
    Task(Itt),
    Unit(u64),
    All,
}

impl Concerns {
    fn covers(self, task: &super::task::Task) -> bool {
        match self {
            Self::None => false,
            Self::Task(itt) => task.itt == itt,
            Self::Unit(lun) => task.lun == lun,
            Self::All => true,
        }
    }
}

impl Connection {
    pub(super) fn on_management(&mut self) -> Result<(), Fatal> {
        let Ok(request) = TmRequest::parse(&self.header) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        if !self.admit(request.immediate, request.cmd_sn)? {
            return Ok(());
        }
        if self.discovery {
            return self.reject(RejectReason::CommandNotSupported);
        }
        if request.itt.is_reserved() {
            return self.reject(RejectReason::InvalidPduField);
        }
        let Some(id) = self.management.iter().position(Option::is_none) else {
            return if request.immediate {
                self.reject(RejectReason::TooManyImmediateCommands)
            } else {
                self.answer(request.itt, TmResult::Rejected)
            };
        };
        let concerns = match request.function {
            TmFunction::AbortTask => return self.on_abort_task(id, &request),
            TmFunction::AbortTaskSet | TmFunction::ClearTaskSet | TmFunction::LogicalUnitReset => {
                Concerns::Unit(request.lun)
            }
            TmFunction::TargetWarmReset | TmFunction::TargetColdReset => Concerns::All,
            TmFunction::ClearAca => Concerns::None,
            TmFunction::TaskReassign => {
                return self.answer(request.itt, TmResult::ReassignmentNotSupported);
            }
            // The functions of RFC 7144 require iSCSIProtocolLevel 2, which this target does not offer.
            _ => return self.answer(request.itt, TmResult::NotSupported),
        };
        self.begin(id, &request, concerns, None);
        Ok(())
    }

    /// §11.6.1, ABORT TASK.
    fn on_abort_task(&mut self, id: usize, request: &TmRequest) -> Result<(), Fatal> {
        if let Some(slot) = self.tasks.find(request.referenced_task_tag) {
            let task = self.tasks.get(slot);
            if task.lun != request.lun {
                return self.answer(request.itt, TmResult::TaskDoesNotExist);
            }
            let edge_holds = matches!(task.state, State::Offered | State::Owned);
            if edge_holds {
                let concerns = Concerns::Task(request.referenced_task_tag);
                self.begin(id, request, concerns, Some(TaskId(slot)));
                return Ok(());
            }
            self.mark(slot, 0);
            return self.answer(request.itt, TmResult::Complete);
        }
        // b) "If the Referenced Task Tag does not identify an existing task but if the CmdSN indicated by the RefCmdSN
        // field is within the valid CmdSN window and less than the CmdSN of the request itself, then targets must
        // consider the CmdSN received and return Function complete." If RefCmdSN is ExpCmdSN, that number is then
        // skipped; a higher one leaves a gap that ends the connection later, see `admit`.
        let reference = request.ref_cmd_sn;
        if reference.within(self.exp_cmd_sn, self.max_cmd_sn) && reference.precedes(request.cmd_sn) {
            if reference == self.exp_cmd_sn {
                self.exp_cmd_sn = self.exp_cmd_sn.next();
            }
            return self.answer(request.itt, TmResult::Complete);
        }
        self.answer(request.itt, TmResult::TaskDoesNotExist)
    }

    fn begin(&mut self, id: usize, request: &TmRequest, concerns: Concerns, referenced: Option<TaskId>) {
        self.management[id] = Some(Management { itt: request.itt, concerns, tasks: 0, result: None });
        self.events.push_back(Event::TaskManagement {
            request: ManagementId(u8::try_from(id).expect("few")),
            function: request.function,
            lun: request.lun,
            referenced,
        });
    }

    /// Executes the function in this session: marks the tasks that it affects. The edge calls it at
    /// [`Event::TaskManagement`], once, before [`Connection::complete_management`]; without it no task is aborted.
    pub fn carry_out(&mut self, request: ManagementId) {
        let id = usize::from(request.0);
        let Some(management) = &mut self.management[id] else { return };
        let concerns = std::mem::replace(&mut management.concerns, Concerns::None);
        let slots: Vec<u32> =
            self.tasks.live_slots().filter(|(_, task)| concerns.covers(task)).map(|(slot, _)| slot).collect();
        management.tasks += u32::try_from(slots.len()).expect("slots are few");
        for slot in slots {
            // A second request may affect a task that the first one marked: both wait for it.
            self.mark(slot, 1 << id);
        }
    }

    /// Answers [`Event::TaskManagement`]. The response is sent when, in addition, the edge has completed or aborted
    /// every task that the request marked. A second answer is ignored.
    pub fn complete_management(&mut self, request: ManagementId, result: TmResult) {
        if let Some(management) = &mut self.management[usize::from(request.0)] {
            management.result.get_or_insert(result);
            self.answer_management(usize::from(request.0));
        }
    }

    pub(super) fn management_task_ended(&mut self, waits: u8) {
        for id in 0..MANAGEMENT_MAX as usize {
            if waits & 1 << id != 0 {
                if let Some(management) = &mut self.management[id] {
                    management.tasks -= 1;
                }
                self.answer_management(id);
            }
        }
    }

    fn answer_management(&mut self, id: usize) {
        if let Some(Management { itt, tasks: 0, result: Some(result), .. }) = self.management[id] {
            self.management[id] = None;
            self.push_reserved(Control::Management { itt, result });
        }
    }

    fn answer(&mut self, itt: Itt, result: TmResult) -> Result<(), Fatal> {
        self.push_control(Control::Management { itt, result })
    }

    pub(super) fn on_logout(&mut self) -> Result<(), Fatal> {
        let Ok(request) = LogoutRequest::parse(&self.header) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        if !self.admit(request.immediate, request.cmd_sn)? {
            return Ok(());
        }
        let result = match request.reason {
            LogoutReason::CloseSession => LogoutResult::Closed,
            LogoutReason::CloseConnection if request.cid == self.cid => LogoutResult::Closed,
            LogoutReason::CloseConnection => LogoutResult::CidNotFound,
            LogoutReason::RemoveConnectionForRecovery => LogoutResult::RecoveryNotSupported,
            LogoutReason::Other(_) => return self.reject(RejectReason::InvalidPduField),
        };
        if result != LogoutResult::Closed {
            return self.push_control(Control::Logout { itt: request.itt, result });
        }
        // §11.14: the tasks end with the session. The response waits for those that the edge works on: otherwise an
        // initiator that logs in again and repeats a write could race the first execution of that write.
        self.logout = Some(request.itt);
        let slots: Vec<u32> = self.tasks.live_slots().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.mark(slot, 0);
        }
        self.events.push_back(Event::Logout { reason: request.reason });
        if self.tasks.live() == 0 {
            self.logout_when_idle();
        }
        Ok(())
    }

    pub(super) fn logout_when_idle(&mut self) {
        if let Some(itt) = self.logout
            && self.tasks.live() == 0
            && self.is_full_feature()
            && !self.logout_answered
        {
            self.logout_answered = true;
            self.push_reserved(Control::Logout { itt, result: LogoutResult::Closed });
        }
    }

    pub(super) fn on_nop_out(&mut self) -> Result<(), Fatal> {
        let Ok(nop) = NopOut::parse(&self.header) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        if !self.admit(nop.immediate, nop.cmd_sn)? {
            return Ok(());
        }
        if nop.itt.is_reserved() {
            if self.ping.is_some_and(|(ttt, _)| ttt == nop.ttt) {
                self.ping = None;
            }
            return Ok(());
        }
        if nop.data_segment_length > 0 {
            self.segment = Segment::Ping;
            return Ok(());
        }
        self.push_control(Control::Pong { itt: nop.itt, lun: 0, data: Vec::new() })
    }

    pub(super) fn on_ping_data(&mut self, bytes: &[u8]) -> Result<(), Fatal> {
        let Ok(nop) = NopOut::parse(&self.header) else {
            return self.reject(RejectReason::InvalidPduField);
        };
        let length = bytes.len().min(PING_DATA_MAX).min(self.parameters.send_segment_max as usize);
        self.push_control(Control::Pong { itt: nop.itt, lun: 0, data: bytes[..length].to_vec() })
    }
}
