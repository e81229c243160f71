//! What iSCSI gives the data sender to send, in the sender's clock.
//!
//! The tracker's standing is in the order of capture; here R2Ts, commands and responses count when they reach the
//! sender. Only PDU starts are needed: what is left of a started PDU follows from stream offsets.

use std::collections::HashMap;

use iscsi::wire::{BHS_LENGTH, DataIn, InitiatorPdu, Opcode, R2t, ScsiCommand, ScsiResponse};

use crate::event::Side;
use crate::limits::COMMANDS_OPEN_MAX;

/// The part of a PDU that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pdu {
    Command { itt: u32, is_write: bool, expected: u64, immediate: u64, is_final: bool },
    DataOut { itt: u32, bytes: u64, is_final: bool, is_unsolicited: bool },
    DataIn { itt: u32, bytes: u64, is_last: bool },
    R2t { itt: u32, bytes: u64 },
    Response { itt: u32 },
    Other,
}

impl Pdu {
    pub(super) fn parse(from: Side, header: &[u8; BHS_LENGTH]) -> Self {
        match from {
            Side::Initiator => match InitiatorPdu::parse(header) {
                Ok(InitiatorPdu::ScsiCommand(command)) => of_command(&command),
                Ok(InitiatorPdu::DataOut(data)) => Self::DataOut {
                    itt: data.itt.0,
                    bytes: u64::from(data.data_segment_length),
                    is_final: data.is_final,
                    is_unsolicited: data.ttt.is_reserved(),
                },
                _ => Self::Other,
            },
            Side::Target => match Opcode::parse(header[0]) {
                Ok(Opcode::DataIn) => DataIn::parse(header).map_or(Self::Other, |data| Self::DataIn {
                    itt: data.itt.0,
                    bytes: u64::from(data.data_segment_length),
                    is_last: data.status.is_some(),
                }),
                Ok(Opcode::R2t) => R2t::parse(header).map_or(Self::Other, |r2t| Self::R2t {
                    itt: r2t.itt.0,
                    bytes: u64::from(r2t.desired_data_transfer_length),
                }),
                Ok(Opcode::ScsiResponse) => ScsiResponse::parse(header)
                    .map_or(Self::Other, |response| Self::Response { itt: response.itt.0 }),
                _ => Self::Other,
            },
        }
    }
}

/// READ(6), (10), (12), (16): other commands with data are few and small.
const READS: [u8; 4] = [0x08, 0x28, 0xa8, 0x88];

fn of_command(command: &ScsiCommand) -> Pdu {
    let expected = u64::from(command.expected_data_transfer_length);
    let is_write = command.write;
    if expected == 0 || !is_write && !READS.contains(&command.cdb[0]) {
        return Pdu::Other;
    }
    let immediate = if is_write { u64::from(command.data_segment_length).min(expected) } else { 0 };
    Pdu::Command { itt: command.itt.0, is_write, expected, immediate, is_final: command.is_final }
}

#[derive(Clone, Copy, Debug)]
struct Open {
    is_write: bool,
    expected: u64,
    granted: u64,
    started: u64,
    is_unsolicited_open: bool,
}

impl Open {
    fn is_awaiting_r2t(&self) -> bool {
        self.is_write && self.started >= self.granted && self.granted < self.expected
    }
}

/// Commands that carry data and are known at the sender.
#[derive(Debug)]
pub(super) struct Load {
    sender: Side,
    open: HashMap<u32, Open>,
    /// Data that the sender may send and has not begun to.
    permitted: u64,
    awaiting_r2t: usize,
    /// Commands of the sender's direction of which no data has begun.
    unbegun: usize,
    /// Most unsolicited data that a command sent, to know what one may send without FirstBurstLength.
    unsolicited_max: u64,
    /// FirstBurstLength, if the login was seen.
    pub(super) first_burst: Option<u64>,
}

impl Load {
    pub(super) fn new(sender: Side) -> Self {
        Self {
            sender,
            open: HashMap::new(),
            permitted: 0,
            awaiting_r2t: 0,
            unbegun: 0,
            unsolicited_max: 0,
            first_burst: None,
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.open.capacity() * size_of::<(u32, Open)>()
    }

    pub(super) fn is_open(&self, itt: u32) -> bool {
        self.open.contains_key(&itt)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.open.len()
    }

    pub(super) fn permitted(&self) -> u64 {
        self.permitted
    }

    pub(super) fn awaiting_r2t(&self) -> usize {
        self.awaiting_r2t
    }

    /// Whether all that is permitted belongs to commands of which no data has begun.
    pub(super) fn is_unbegun(&self) -> bool {
        self.unbegun > 0 && self.unbegun == self.open.len()
    }

    fn counts(&self, open: &Open) -> (u64, usize, usize) {
        let is_own = open.is_write == (self.sender == Side::Initiator);
        if !is_own {
            return (0, 0, 0);
        }
        let left = open.granted.saturating_sub(open.started);
        (left, usize::from(open.is_awaiting_r2t()), usize::from(open.started == 0))
    }

    fn add(&mut self, open: &Open) {
        let (left, awaiting, unbegun) = self.counts(open);
        self.permitted = self.permitted.saturating_add(left);
        self.awaiting_r2t += awaiting;
        self.unbegun += unbegun;
    }

    fn subtract(&mut self, open: &Open) {
        let (left, awaiting, unbegun) = self.counts(open);
        self.permitted = self.permitted.saturating_sub(left);
        self.awaiting_r2t = self.awaiting_r2t.saturating_sub(awaiting);
        self.unbegun = self.unbegun.saturating_sub(unbegun);
    }

    fn change(&mut self, itt: u32, change: impl FnOnce(&mut Open)) {
        let Some(mut open) = self.open.get(&itt).copied() else { return };
        self.subtract(&open);
        change(&mut open);
        self.add(&open);
        self.open.insert(itt, open);
    }

    /// Returns whether the command was open.
    pub(super) fn remove(&mut self, itt: u32) -> bool {
        let Some(open) = self.open.remove(&itt) else { return false };
        self.subtract(&open);
        true
    }

    /// Bytes passed whose PDUs are unknown: data of the commands that may send. Returns what is left beyond those, and
    /// how many reads ended with them.
    pub(super) fn on_unseen(&mut self, bytes: u64) -> (u64, usize) {
        let mut left = bytes;
        let mut ended = 0;
        let mut waiting: Vec<u32> =
            self.open.iter().filter(|(_, open)| open.granted > open.started).map(|(itt, _)| *itt).collect();
        waiting.sort_unstable();
        for itt in waiting {
            let mut is_whole = false;
            self.change(itt, |open| {
                let sent = left.min(open.granted.saturating_sub(open.started));
                open.started = open.started.saturating_add(sent);
                left -= sent;
                is_whole = !open.is_write && open.started >= open.expected;
            });
            if is_whole {
                self.remove(itt);
                ended += 1;
            }
            if left == 0 {
                break;
            }
        }
        (left, ended)
    }

    /// Returns whether a command ended.
    pub(super) fn handle(&mut self, pdu: Pdu) -> bool {
        match pdu {
            Pdu::Command { itt, is_write, expected, immediate, is_final } => {
                self.remove(itt);
                if self.open.len() >= COMMANDS_OPEN_MAX {
                    self.open.clear();
                    (self.permitted, self.awaiting_r2t, self.unbegun) = (0, 0, 0);
                }
                let unsolicited = match (is_final, self.first_burst) {
                    (true, _) => immediate,
                    (false, Some(first_burst)) => first_burst,
                    (false, None) => self.unsolicited_max.max(immediate),
                };
                let granted = if is_write { unsolicited.min(expected) } else { expected };
                let is_unsolicited_open = is_write && !is_final;
                let open = Open { is_write, expected, granted, started: immediate, is_unsolicited_open };
                self.add(&open);
                self.open.insert(itt, open);
                false
            }
            Pdu::DataOut { itt, bytes, is_final, is_unsolicited } => {
                let mut sent = 0;
                self.change(itt, |open| {
                    open.started = open.started.saturating_add(bytes).min(open.expected);
                    if is_unsolicited && is_final && open.is_unsolicited_open {
                        open.is_unsolicited_open = false;
                        open.granted = open.started;
                    }
                    open.granted = open.granted.max(open.started);
                    sent = open.started;
                });
                if is_unsolicited {
                    self.unsolicited_max = self.unsolicited_max.max(sent);
                }
                false
            }
            Pdu::DataIn { itt, bytes, is_last } => {
                self.change(itt, |open| open.started = open.started.saturating_add(bytes).min(open.expected));
                // At the target the command ends with the last byte, at the initiator when the answer has come.
                is_last && self.sender == Side::Initiator && self.remove(itt)
            }
            Pdu::R2t { itt, bytes } => {
                self.change(itt, |open| {
                    open.granted = open.granted.saturating_add(bytes).min(open.expected);
                });
                false
            }
            Pdu::Response { itt } => self.remove(itt),
            Pdu::Other => false,
        }
    }
}
