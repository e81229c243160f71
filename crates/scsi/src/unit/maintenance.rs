//! MAINTENANCE IN: reports of the supported commands and task management functions.

use super::opcodes::{Opcode, TABLE};
use super::{Call, LogicalUnit, Stop};
use crate::{Outcome, Sense, Step};

/// RECOMMENDED COMMAND TIMEOUT: seconds after which an initiator may consider a command lost. The nominal time is not
/// reported, because it depends on the storage.
const TIMEOUT_S: u32 = 30;

/// REPORT SUPPORTED OPERATION CODES: SPC-4 6.32.
pub(super) fn opcodes(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let timeouts = call.cdb[2] & 0x80 != 0;
    let options = call.cdb[2] & 0x07;
    let code = call.cdb[3];
    let action = u16::from_be_bytes([call.cdb[4], call.cdb[5]]);
    let known = |opcode: &&Opcode| unit.config.thin || !opcode.thin;
    let mut data = match options {
        0b000 => all(TABLE.iter().filter(known), timeouts),
        0b001..=0b011 => {
            let mut same = TABLE.iter().filter(known).filter(|opcode| opcode.code() == code).peekable();
            let has_actions = same.peek().map(|opcode| opcode.service_action.is_some());
            match (options, has_actions) {
                (0b001, Some(true)) => return Err(Sense::field_in_cdb(2, Some(2)).into()),
                (0b010, Some(false)) => return Err(Sense::field_in_cdb(2, Some(2)).into()),
                _ => {}
            }
            let found = same.find(|opcode| match (options, opcode.service_action) {
                (0b001, _) => true,
                (_, None) => action == 0,
                (_, Some(known)) => u16::from(known) == action,
            });
            one(found, timeouts)
        }
        _ => return Err(Sense::field_in_cdb(2, Some(2)).into()),
    };
    data.truncate(allocation(call.cdb));
    Ok(Step::Done(Outcome::data(data)))
}

/// All commands: SPC-4 table 249.
fn all<'a>(opcodes: impl Iterator<Item = &'a Opcode>, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for opcode in opcodes {
        let [action_high, action_low] = u16::from(opcode.service_action.unwrap_or(0)).to_be_bytes();
        let flags = (u8::from(timeouts) << 1) | u8::from(opcode.service_action.is_some());
        data.extend([opcode.code(), 0, action_high, action_low, 0, flags, 0, opcode.length() as u8]);
        if timeouts {
            data.extend(timeouts_descriptor());
        }
    }
    let length = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

/// One command: SPC-4 table 251.
fn one(opcode: Option<&Opcode>, timeouts: bool) -> Vec<u8> {
    // SUPPORT 001b: not supported; 011b: supported in conformance with the standard.
    let Some(opcode) = opcode else { return vec![0, 0x01, 0, 0] };
    let mut data = vec![0, (u8::from(timeouts) << 7) | 0x03, 0, opcode.length() as u8];
    data.extend(opcode.usage);
    if timeouts {
        data.extend(timeouts_descriptor());
    }
    data
}

/// SPC-4 table 253.
fn timeouts_descriptor() -> [u8; 12] {
    let mut descriptor = [0; 12];
    descriptor[1] = 0x0a;
    descriptor[8..].copy_from_slice(&TIMEOUT_S.to_be_bytes());
    descriptor
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: SPC-4 6.33. Those of an iSCSI target: ABORT TASK, ABORT TASK SET, CLEAR
/// TASK SET, LOGICAL UNIT RESET and TARGET RESET.
pub(super) fn task_management(_: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let allocation = allocation(call.cdb);
    if allocation < 4 {
        return Err(Sense::field_in_cdb(6, None).into());
    }
    let mut data = vec![0xda, 0, 0, 0];
    if call.cdb[2] & 0x80 != 0 {
        // The extended format, with all timeouts unspecified (SPC-4 table 257).
        data[3] = 12;
        data.resize(16, 0);
    }
    data.truncate(allocation);
    Ok(Step::Done(Outcome::data(data)))
}

fn allocation(cdb: &[u8]) -> usize {
    u32::from_be_bytes([cdb[6], cdb[7], cdb[8], cdb[9]]) as usize
}
