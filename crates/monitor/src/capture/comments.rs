//! What a reader of a capture wants to know of the PDUs in a packet, as text.
//!
//! Give it every event and command of every connection; [`Comments::take`] returns what came since the call before, which
//! belongs to the frame that showed it. Text is made of numbers and of names of the standards only.

use std::collections::HashMap;

use iscsi::wire::{
    Bhs, DataIn, DataOut, LoginRequest, LoginResponse, Opcode, R2t, ScsiCommand, ScsiResponse,
};
use scsi::cdb::{self, Access};

use crate::command::{Command, Transfer};
use crate::event::{Event, Kind, Opaque, PduStart, Side};
use crate::limits::COMMENTED_PDUS_MAX;

#[derive(Default)]
pub struct Comments {
    /// PDUs that have not ended, by connection, sender and offset; emptied when it is full of such that never ended.
    open: HashMap<(u64, Side, u64), Open>,
    lines: Vec<String>,
}

struct Open {
    frame: u64,
    name: &'static str,
}

impl Comments {
    /// `flow` names the connection; any number that is the same for all its events.
    pub fn event(&mut self, flow: u64, event: &Event) {
        match &event.kind {
            Kind::PduStart(start) => {
                self.lines.push(describe(start));
                if self.open.len() >= COMMENTED_PDUS_MAX {
                    self.open.clear();
                }
                let open = Open { frame: event.frame, name: name(start) };
                self.open.insert((flow, event.from, start.offset), open);
            }
            Kind::PduEnd(end) => {
                // One that begins and ends in one packet needs one comment.
                if let Some(open) = self.open.remove(&(flow, event.from, end.offset))
                    && open.frame != event.frame
                {
                    self.lines.push(format!("end of {} from frame {}", open.name, open.frame));
                }
            }
            Kind::CaptureLost { bytes, .. } => {
                self.lines.push(format!(
                    "{bytes} bytes before this are missing in the capture, not on the network"
                ));
            }
            Kind::HeadersUnseen { bytes, .. } => {
                self.lines.push(format!("{bytes} bytes hold PDUs whose headers the capture length cut off"));
            }
            Kind::Opaque(opaque) => self.lines.push(
                match opaque {
                    Opaque::Sealed => "from here on sealed (SEAL/1)",
                    Opaque::Tls => "from here on TLS",
                    Opaque::Unframed => "from here on no PDUs are found",
                }
                .into(),
            ),
            Kind::Segment(_) | Kind::Ack(_) | Kind::Ended { .. } => {}
        }
    }

    /// A command that ended with the current frame.
    pub fn command(&mut self, command: &Command) {
        let waits = match command.transfer {
            Transfer::Write => "response",
            Transfer::Read => "first data",
        };
        self.lines.push(format!(
            "{} of {} from frame {}: Ta {}, Tb {} (to the {waits}), {} R2T rounds, depth {}, target {}",
            cdb::name(command.operation),
            size(command.bytes),
            command.frame,
            milliseconds(command.ta_ns),
            milliseconds(command.tb_ns),
            command.r2t_rounds,
            command.depth,
            milliseconds(command.target_ns),
        ));
    }

    /// The comments since the last call.
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}

fn name(start: &PduStart) -> &'static str {
    match Bhs(&start.header).opcode() {
        Ok(Opcode::NopOut) => "NOP-Out",
        Ok(Opcode::ScsiCommand) => "SCSI Command",
        Ok(Opcode::TmRequest) => "Task Management Request",
        Ok(Opcode::LoginRequest) => "Login Request",
        Ok(Opcode::TextRequest) => "Text Request",
        Ok(Opcode::DataOut) => "SCSI Data-Out",
        Ok(Opcode::LogoutRequest) => "Logout Request",
        Ok(Opcode::Snack) => "SNACK",
        Ok(Opcode::NopIn) => "NOP-In",
        Ok(Opcode::ScsiResponse) => "SCSI Response",
        Ok(Opcode::TmResponse) => "Task Management Response",
        Ok(Opcode::LoginResponse) => "Login Response",
        Ok(Opcode::TextResponse) => "Text Response",
        Ok(Opcode::DataIn) => "SCSI Data-In",
        Ok(Opcode::LogoutResponse) => "Logout Response",
        Ok(Opcode::R2t) => "R2T",
        Ok(Opcode::AsyncMessage) => "Asynchronous Message",
        Ok(Opcode::Reject) => "Reject",
        Err(_) => "PDU of an unknown opcode",
    }
}

/// One line of what the header says.
fn describe(start: &PduStart) -> String {
    let (header, name) = (&start.header, name(start));
    let bhs = Bhs(header);
    let itt = bhs.itt().0;
    match bhs.opcode() {
        Ok(Opcode::ScsiCommand) => match ScsiCommand::parse(header) {
            Ok(command) => {
                let operation = cdb::name(command.cdb[0]);
                let lba = Access::parse(&command.cdb)
                    .map_or(String::new(), |access| format!(" lba {}", access.lba));
                let length = size(command.expected_data_transfer_length.into());
                let with = match command.data_segment_length {
                    0 => String::new(),
                    bytes => format!(", {} immediate", size(bytes.into())),
                };
                format!("SCSI {operation} {length}{lba}{with}; itt {itt:#x}, CmdSN {}", command.cmd_sn.0)
            }
            Err(_) => format!("{name} itt {itt:#x}, malformed"),
        },
        Ok(Opcode::R2t) => R2t::parse(header).map_or_else(
            |_| format!("{name} itt {itt:#x}, malformed"),
            |r2t| {
                let length = size(r2t.desired_data_transfer_length.into());
                format!("R2T ttt {:#x} offset {} length {length}; itt {itt:#x}", r2t.ttt.0, r2t.buffer_offset)
            },
        ),
        Ok(Opcode::DataOut) => DataOut::parse(header).map_or_else(
            |_| format!("{name} itt {itt:#x}, malformed"),
            |data| {
                let (length, end) =
                    (size(data.data_segment_length.into()), if data.is_final { ", final" } else { "" });
                format!(
                    "{name} offset {} length {length}{end}; itt {itt:#x} ttt {:#x}",
                    data.buffer_offset, data.ttt.0
                )
            },
        ),
        Ok(Opcode::DataIn) => DataIn::parse(header).map_or_else(
            |_| format!("{name} itt {itt:#x}, malformed"),
            |data| {
                let (length, end) =
                    (size(data.data_segment_length.into()), if data.is_final { ", final" } else { "" });
                let status = data.status.map_or(String::new(), |status| format!(", status {status:#04x}"));
                format!("{name} offset {} length {length}{end}{status}; itt {itt:#x}", data.buffer_offset)
            },
        ),
        Ok(Opcode::ScsiResponse) => ScsiResponse::parse(header).map_or_else(
            |_| format!("{name} itt {itt:#x}, malformed"),
            |response| {
                format!("{name} status {:#04x}; itt {itt:#x}, StatSN {}", response.status, response.stat_sn.0)
            },
        ),
        Ok(Opcode::LoginRequest) => LoginRequest::parse(header)
            .map_or_else(|_| format!("{name}, malformed"), |login| format!("{name}, stage {:?}", login.csg)),
        Ok(Opcode::LoginResponse) => LoginResponse::parse(header).map_or_else(
            |_| format!("{name}, malformed"),
            |login| {
                format!(
                    "{name}, stage {:?}, status {:02x}{:02x}",
                    login.csg,
                    login.status.class(),
                    login.status.detail()
                )
            },
        ),
        _ => format!("{name} itt {itt:#x}, {} bytes", start.bytes),
    }
}

/// Bytes in the largest unit of which they are a multiple.
fn size(bytes: u64) -> String {
    match bytes {
        0 => "0 bytes".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

fn milliseconds(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}
