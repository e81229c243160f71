//! The order of transmission: requests other than commands, then commands, then Data-Out, in turns of
//! [`TURN_BYTES`](limits::TURN_BYTES) per task. Data waits for at most [`URGENT_RUN_MAX`](limits::URGENT_RUN_MAX) other
//! PDUs. CmdSN is assigned at hand-out.

use super::{Connection, login};
use crate::limits;
use crate::machine::{Digests, Fatal, Payload, Transmit};
use crate::wire::{
    CmdSn, DataSn, Itt, LogoutReason, LogoutRequest, NopOut, TextRequest, TmFunction, TmRequest, Ttt,
};

/// A request other than a command. All are immediate, so none advances CmdSN.
#[derive(Debug)]
pub(super) enum Control {
    Login(login::Request),
    Ping { itt: Itt },
    Pong { ttt: Ttt, lun: u64, data: Vec<u8> },
    Text { itt: Itt, ttt: Ttt, data: Vec<u8> },
    Management { function: TmFunction, lun: u64, itt: Itt, referenced_task_tag: Itt, ref_cmd_sn: CmdSn },
    Logout { reason: LogoutReason, itt: Itt },
}

impl Connection {
    pub(super) fn push_control(&mut self, control: Control) -> Result<(), Fatal> {
        if self.urgent.len() >= limits::CONTROL_MAX {
            return Err(Fatal::Overload("answers"));
        }
        self.urgent.push_back(control);
        Ok(())
    }

    pub(super) fn transmit(&self, header: [u8; 48], payload: Payload) -> Transmit {
        Transmit { header, payload, digests: self.parameters.digests }
    }

    pub(super) fn next_transmit(&mut self) -> Option<Transmit> {
        if self.logout.is_some() {
            // No PDU may follow the logout request (§11.14).
            return self.urgent.pop_front().map(|control| self.emit_control(control));
        }
        if self.data_queue.is_empty() || self.urgent_run < limits::URGENT_RUN_MAX {
            let small = match self.urgent.pop_front() {
                Some(control) => Some(self.emit_control(control)),
                None => self.emit_command(),
            };
            if let Some(transmit) = small {
                self.urgent_run += 1;
                return Some(transmit);
            }
        }
        self.urgent_run = 0;
        self.emit_data_out()
    }

    fn emit_control(&mut self, control: Control) -> Transmit {
        let (cmd_sn, exp_stat_sn) = (self.cmd_sn, self.exp_stat_sn);
        match control {
            Control::Login(request) => Transmit {
                header: request.header.emit(),
                payload: bytes(request.text),
                digests: Digests::default(),
            },
            Control::Ping { itt } => {
                let header = NopOut {
                    immediate: true,
                    lun: 0,
                    itt,
                    ttt: Ttt::RESERVED,
                    cmd_sn,
                    exp_stat_sn,
                    data_segment_length: 0,
                };
                self.transmit(header.emit(), Payload::None)
            }
            Control::Pong { ttt, lun, data } => {
                let header = NopOut {
                    immediate: true,
                    lun,
                    itt: Itt::RESERVED,
                    ttt,
                    cmd_sn,
                    exp_stat_sn,
                    data_segment_length: length(&data),
                };
                self.transmit(header.emit(), bytes(data))
            }
            Control::Text { itt, ttt, data } => {
                let header = TextRequest {
                    immediate: true,
                    is_final: true,
                    continues: false,
                    lun: 0,
                    itt,
                    ttt,
                    cmd_sn,
                    exp_stat_sn,
                    data_segment_length: length(&data),
                };
                self.transmit(header.emit(), bytes(data))
            }
            Control::Management { function, lun, itt, referenced_task_tag, ref_cmd_sn } => {
                let header = TmRequest {
                    immediate: true,
                    function,
                    lun,
                    itt,
                    referenced_task_tag,
                    cmd_sn,
                    exp_stat_sn,
                    ref_cmd_sn,
                    exp_data_sn: DataSn(0),
                };
                self.transmit(header.emit(), Payload::None)
            }
            Control::Logout { reason, itt } => {
                let header = LogoutRequest {
                    immediate: true,
                    reason,
                    itt,
                    cid: self.config.login.cid,
                    cmd_sn,
                    exp_stat_sn,
                };
                self.transmit(header.emit(), Payload::None)
            }
        }
    }
}

fn bytes(data: Vec<u8>) -> Payload {
    if data.is_empty() { Payload::None } else { Payload::Bytes(data) }
}

fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("bounded by a segment")
}
