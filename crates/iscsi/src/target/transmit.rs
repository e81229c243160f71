//! The order of transmission.
//!
//! There are three queues. `urgent` holds everything without task data, in order of creation: responses, task
//! management, text. R2Ts come next, because a write waits a round trip for them. Data-In comes last, in turns of
//! [`TURN_BYTES`](limits::TURN_BYTES) per task. A response therefore waits for at most one turn of another task's data,
//! and data waits for at most [`URGENT_RUN_MAX`](limits::URGENT_RUN_MAX) small PDUs. Sequence numbers are assigned at
//! hand-out.

use super::{Connection, Event, Phase, login};
use crate::limits;
use crate::machine::{Digests, Fatal, Payload, Transmit};
use crate::wire::{
    AsyncEvent, AsyncMessage, CmdSn, DataSn, Itt, LogoutResponse, LogoutResult, NopIn, Reject, RejectReason,
    StatSn, TextResponse, TmResponse, TmResult, Ttt,
};

/// A queued PDU without task data.
#[derive(Debug)]
pub(super) enum Urgent {
    Response(u32),
    /// Any other PDU; rare, so it is boxed to keep the entries of the queue small.
    Control(Box<Control>),
}

#[derive(Debug)]
pub(super) enum Control {
    Login(login::Response),
    Pong { itt: Itt, lun: u64, data: Vec<u8> },
    Ping { ttt: Ttt },
    Reject { reason: RejectReason, header: [u8; 48] },
    Text { is_final: bool, continues: bool, itt: Itt, ttt: Ttt, data: Vec<u8> },
    Management { itt: Itt, result: TmResult },
    Logout { itt: Itt, result: LogoutResult },
    Async { event: AsyncEvent, vcode: u8, lun: u64, parameters: [u16; 3], data: Vec<u8> },
}

impl Connection {
    pub(super) fn push_control(&mut self, control: Control) -> Result<(), Fatal> {
        if self.controls >= limits::CONTROL_MAX {
            return Err(Fatal::Overload("answers"));
        }
        self.push_reserved(control);
        Ok(())
    }

    /// Queues an answer that must not be dropped, outside the bound of `push_control`. Such answers have their own
    /// bound: one login or logout, and [`MANAGEMENT_MAX`](limits::MANAGEMENT_MAX) task management responses.
    pub(super) fn push_reserved(&mut self, control: Control) {
        self.controls += 1;
        self.urgent.push_back(Urgent::Control(Box::new(control)));
    }

    pub(super) fn push_login(&mut self, response: login::Response) {
        self.push_reserved(Control::Login(response));
    }

    /// Queues a Reject of the PDU being received.
    pub(super) fn reject(&mut self, reason: RejectReason) -> Result<(), Fatal> {
        self.push_control(Control::Reject { reason, header: self.header })
    }

    /// Sends an Asynchronous Message (§11.9). `parameters` are Parameter1 to Parameter3. Dropped outside of the full
    /// feature phase, and if `data` exceeds the initiator's segment limit.
    pub fn async_message(
        &mut self,
        event: AsyncEvent,
        vcode: u8,
        lun: u64,
        parameters: [u16; 3],
        data: Vec<u8>,
    ) -> Result<(), Fatal> {
        if !self.is_full_feature() || data.len() > self.parameters.send_segment_max as usize {
            return Ok(());
        }
        self.push_control(Control::Async { event, vcode, lun, parameters, data })
    }

    /// Sends an Asynchronous Message that requests logout within `seconds`.
    pub fn request_logout(&mut self, seconds: u16) -> Result<(), Fatal> {
        self.async_message(AsyncEvent::LogoutRequested, 0, 0, [0, 0, seconds], Vec::new())
    }

    pub(super) fn transmit(&self, header: [u8; 48], payload: Payload) -> Transmit {
        Transmit { header, payload, digests: self.parameters.digests }
    }

    pub(super) fn next_transmit(&mut self) -> Option<Transmit> {
        let data_waits = !self.data_queue.is_empty();
        // Small PDUs precede the next Data-In of a task in its turn.
        if !data_waits || self.urgent_run < limits::URGENT_RUN_MAX {
            let small = match self.urgent.pop_front() {
                Some(Urgent::Response(slot)) => Some(self.emit_response(slot)),
                Some(Urgent::Control(control)) => {
                    self.controls -= 1;
                    Some(self.emit_control(*control))
                }
                None => self.emit_r2t(),
            };
            if let Some(transmit) = small {
                self.urgent_run += 1;
                return Some(transmit);
            }
        }
        self.urgent_run = 0;
        self.emit_data_in()
    }

    fn emit_control(&mut self, control: Control) -> Transmit {
        let (exp_cmd_sn, max_cmd_sn) = self.window_now();
        match control {
            Control::Login(response) => {
                if matches!(self.phase, Phase::Over) {
                    self.events.push_back(Event::Close);
                }
                let payload = bytes(response.text);
                Transmit { header: response.header.emit(), payload, digests: Digests::default() }
            }
            Control::Pong { itt, lun, data } => {
                let stat_sn = self.stat_sn.take();
                let header = self.nop_in((itt, Ttt::RESERVED), lun, stat_sn, &data);
                self.transmit(header.emit(), bytes(data))
            }
            Control::Ping { ttt } => {
                let header = self.nop_in((Itt::RESERVED, ttt), 0, self.stat_sn, &[]);
                self.transmit(header.emit(), Payload::None)
            }
            Control::Reject { reason, header } => {
                let reject = Reject {
                    reason,
                    stat_sn: self.stat_sn.take(),
                    exp_cmd_sn,
                    max_cmd_sn,
                    data_sn: DataSn(0),
                    data_segment_length: length(&header),
                };
                self.transmit(reject.emit(), Payload::Bytes(header.to_vec()))
            }
            Control::Text { is_final, continues, itt, ttt, data } => {
                let header = TextResponse {
                    is_final,
                    continues,
                    lun: 0,
                    itt,
                    ttt,
                    stat_sn: self.stat_sn.take(),
                    exp_cmd_sn,
                    max_cmd_sn,
                    data_segment_length: length(&data),
                };
                self.transmit(header.emit(), bytes(data))
            }
            Control::Management { itt, result } => {
                let header = TmResponse {
                    result,
                    information: 0,
                    itt,
                    stat_sn: self.stat_sn.take(),
                    exp_cmd_sn,
                    max_cmd_sn,
                };
                self.transmit(header.emit(), Payload::None)
            }
            Control::Logout { itt, result } => self.emit_logout(itt, result),
            Control::Async { event, vcode, lun, parameters: [parameter1, parameter2, parameter3], data } => {
                let header = AsyncMessage {
                    event,
                    vcode,
                    lun,
                    stat_sn: self.stat_sn.take(),
                    exp_cmd_sn,
                    max_cmd_sn,
                    parameter1,
                    parameter2,
                    parameter3,
                    data_segment_length: length(&data),
                };
                self.transmit(header.emit(), bytes(data))
            }
        }
    }

    fn nop_in(&mut self, (itt, ttt): (Itt, Ttt), lun: u64, stat_sn: StatSn, data: &[u8]) -> NopIn {
        let (exp_cmd_sn, max_cmd_sn) = self.window_now();
        NopIn { lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn, data_segment_length: length(data) }
    }

    fn emit_logout(&mut self, itt: Itt, result: LogoutResult) -> Transmit {
        let (exp_cmd_sn, max_cmd_sn) = self.window_now();
        let header = LogoutResponse {
            result,
            itt,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn,
            max_cmd_sn,
            time2wait: self.parameters.time2wait,
            time2retain: self.parameters.time2retain,
        };
        if result == LogoutResult::Closed {
            self.phase = Phase::Over;
            self.events.push_back(Event::Close);
        }
        self.transmit(header.emit(), Payload::None)
    }

    /// ExpCmdSN and MaxCmdSN of the next PDU.
    fn window_now(&mut self) -> (CmdSn, CmdSn) {
        match self.phase {
            Phase::FullFeature | Phase::Over => self.window(),
            Phase::Login { .. } => (self.exp_cmd_sn, self.max_cmd_sn),
        }
    }
}

fn bytes(data: Vec<u8>) -> Payload {
    if data.is_empty() { Payload::None } else { Payload::Bytes(data) }
}

fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("bounded by a segment")
}
