//! One command between its first byte and its response.

use iscsi::wire::{Attribute, CmdSn, R2t, ScsiCommand, StatSn};
use scsi::cdb::opcode::WRITE_10;
use scsi::cdb::{Direction, fact_of};

use super::stream::Passed;
use super::{Burst, Transfer, Trigger};
use crate::limits::BURSTS_MAX;

/// What a command waits for, or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A write with data that it may send.
    Sending,
    AwaitingR2t,
    AwaitingResponse,
    /// A read before its first Data-In.
    AwaitingData,
    /// A read of which a part has come.
    Receiving,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) frame: u64,
    pub(super) at_ns: u64,
    pub(super) itt: u32,
    pub(super) lun: u64,
    pub(super) operation: u8,
    /// `None` for commands without data.
    pub(super) transfer: Option<Transfer>,
    /// ExpectedDataTransferLength.
    pub(super) expected: u64,
    pub(super) depth: u32,
    /// Data bytes of PDUs that have started, and those that have passed.
    started: u64,
    pub(super) sent: u64,
    /// Data bytes that the initiator may send: unsolicited ones and those of R2Ts.
    granted: u64,
    pub(super) unsolicited_bytes: u64,
    /// The initiator sends data without an R2T until a PDU has the F bit.
    is_unsolicited_open: bool,
    pub(super) r2t_bytes: u32,
    /// R2Ts whose data is not all sent.
    pub(super) r2ts_outstanding: u32,
    pub(super) r2t_rounds: u32,
    /// When the last R2T passed.
    pub(super) r2t_ns: Option<u64>,
    pub(super) target_ns: u64,
    pub(super) first_data_ns: Option<u64>,
    pub(super) last_data_ns: Option<u64>,
    /// Offset of the command in the initiator's stream; 0 if it passed unseen.
    pub(super) sent_from: u64,
    /// Offset in the initiator's stream after the last of its bytes: the target has it when it acknowledges this.
    pub(super) sent_until: u64,
    pub(super) bursts: Vec<Burst>,
    /// Bytes of the last packet that are counted in the last burst already.
    frame_bytes: u64,
    data_frame: u64,
    /// The capture may have lost its response; it is given up when this many other commands have ended.
    pub(super) doubted_until: Option<u64>,
    /// Its start or its end was not captured.
    pub(super) is_inferred: bool,
}

/// Share of an open command in the connection's standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) phase: Phase,
    pub(super) permitted_write_bytes: u64,
    pub(super) permitted_read_bytes: u64,
}

impl Open {
    /// `first_burst` bounds the unsolicited data of a command without the F bit.
    pub(super) fn new(command: &ScsiCommand, at_ns: u64, frame: u64, first_burst: u64) -> Self {
        let (expected, transfer) = transfer(command);
        let immediate = u64::from(command.data_segment_length).min(expected);
        let is_write = transfer == Some(Transfer::Write);
        let is_unsolicited_open = is_write && !command.is_final;
        let unsolicited = if is_unsolicited_open { immediate.max(first_burst) } else { immediate };
        Self {
            frame,
            at_ns,
            itt: command.itt.0,
            lun: command.lun,
            operation: command.cdb[0],
            transfer,
            expected,
            depth: 0,
            started: if is_write { immediate } else { 0 },
            sent: 0,
            granted: if is_write { unsolicited.min(expected) } else { expected },
            unsolicited_bytes: if is_write { immediate } else { 0 },
            is_unsolicited_open,
            r2t_bytes: 0,
            r2ts_outstanding: 0,
            r2t_rounds: 0,
            r2t_ns: None,
            target_ns: 0,
            first_data_ns: None,
            last_data_ns: None,
            sent_from: 0,
            sent_until: 0,
            bursts: Vec::new(),
            frame_bytes: 0,
            data_frame: 0,
            doubted_until: None,
            is_inferred: false,
        }
    }

    /// A write whose first sign is an R2T: its start passed unseen. `at_ns` is when it must have been sent.
    pub(super) fn inferred(r2t: &R2t, at_ns: u64, frame: u64) -> Self {
        let command = ScsiCommand {
            immediate: false,
            is_final: true,
            read: false,
            write: true,
            attribute: Attribute::Simple,
            lun: r2t.lun,
            itt: r2t.itt,
            expected_data_transfer_length: r2t.buffer_offset,
            cmd_sn: CmdSn(0),
            exp_stat_sn: StatSn(0),
            cdb: [0; 16],
            total_ahs_length: 0,
            data_segment_length: r2t.buffer_offset,
        };
        let mut open = Self::new(&command, at_ns, frame, 0);
        (open.transfer, open.operation) = (Some(Transfer::Write), WRITE_10);
        open.is_inferred = true;
        open
    }

    pub(super) fn phase(&self) -> Phase {
        match self.transfer {
            Some(Transfer::Write) if self.sent < self.granted => Phase::Sending,
            Some(Transfer::Write) if self.sent < self.expected => Phase::AwaitingR2t,
            Some(Transfer::Read) if self.sent == 0 => Phase::AwaitingData,
            Some(Transfer::Read) if self.sent < self.expected => Phase::Receiving,
            _ => Phase::AwaitingResponse,
        }
    }

    pub(super) fn share(&self) -> Share {
        let left = self.left();
        let is_write = self.transfer == Some(Transfer::Write);
        Share {
            phase: self.phase(),
            permitted_write_bytes: if is_write { left } else { 0 },
            permitted_read_bytes: if is_write { 0 } else { left },
        }
    }

    /// A Data-Out begins.
    pub(super) fn on_data_out(&mut self, bytes: u32, is_final: bool, is_unsolicited: bool) {
        let bytes = u64::from(bytes);
        self.started = self.started.saturating_add(bytes).min(self.expected);
        if is_unsolicited {
            self.unsolicited_bytes = self.unsolicited_bytes.saturating_add(bytes).min(self.expected);
            if is_final && self.is_unsolicited_open {
                self.is_unsolicited_open = false;
                self.granted = self.started;
            }
        } else if is_final {
            self.r2ts_outstanding = self.r2ts_outstanding.saturating_sub(1);
        }
        // An R2T that the capture does not show.
        self.granted = self.granted.max(self.started);
    }

    /// A Data-In begins.
    pub(super) fn on_data_in(&mut self, bytes: u32) {
        self.started = self.started.saturating_add(u64::from(bytes)).min(self.expected);
    }

    pub(super) fn on_r2t(&mut self, r2t: &R2t, at_ns: u64) {
        if self.transfer != Some(Transfer::Write) {
            return;
        }
        if self.is_inferred {
            // Its data passes unseen; R2Ts show how much there is.
            let end = u64::from(r2t.buffer_offset) + u64::from(r2t.desired_data_transfer_length);
            self.expected = self.expected.max(end);
            self.granted = self.expected;
            self.sent = self.expected;
            self.r2t_rounds = self.r2t_rounds.saturating_add(1);
        }
        if self.phase() == Phase::AwaitingR2t {
            self.r2t_rounds = self.r2t_rounds.saturating_add(1);
        }
        let bytes = r2t.desired_data_transfer_length;
        self.granted = self.granted.saturating_add(u64::from(bytes)).min(self.expected);
        self.r2t_bytes = self.r2t_bytes.max(bytes);
        // The last Data-Out of an R2T may pass unseen: what is left tells then how many R2Ts it is of.
        let left = self.left().div_ceil(u64::from(self.r2t_bytes.max(1)));
        let most = u32::try_from(left).unwrap_or(u32::MAX).max(1);
        self.r2ts_outstanding = self.r2ts_outstanding.saturating_add(1).min(most);
        self.r2t_ns = Some(at_ns);
    }

    /// Data that it may still be sent, or may still send.
    pub(super) fn left(&self) -> u64 {
        self.granted.saturating_sub(self.sent)
    }

    /// Data has passed that the capture does not hold.
    pub(super) fn on_missing(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(bytes).min(self.expected);
    }

    /// Data has passed whose PDUs are not known.
    pub(super) fn on_inferred(&mut self, bytes: u64) {
        self.started = self.started.max(self.sent).saturating_add(bytes).min(self.expected);
    }

    /// Data has passed. `trigger` tells what ended the pause before it, from its begin on.
    pub(super) fn on_passed(&mut self, passed: Passed, pause_min_ns: u64, trigger: impl Fn(u64) -> Trigger) {
        let Passed { at_ns, frame, mss, wire_bytes, data_bytes, end } = passed;
        self.sent = self.sent.saturating_add(data_bytes).min(self.expected);
        self.sent_until = self.sent_until.max(end);
        let paused_ns = self.last_data_ns.unwrap_or(at_ns);
        let gap_ns = at_ns.saturating_sub(paused_ns);
        let is_first = self.bursts.is_empty();
        if is_first || gap_ns > pause_min_ns && self.bursts.len() < BURSTS_MAX {
            // The first data follows the command or its R2T, however long the pause before.
            let trigger = match (is_first, self.r2t_ns) {
                (true, Some(_)) => Trigger::R2t,
                (true, None) => Trigger::Command,
                (false, _) => trigger(paused_ns),
            };
            self.bursts.push(Burst { packets: 0, bytes: 0, gap_ns, trigger });
            self.data_frame = 0;
        }
        self.first_data_ns.get_or_insert(at_ns);
        self.last_data_ns = Some(self.last_data_ns.map_or(at_ns, |last| last.max(at_ns)));
        let Some(burst) = self.bursts.last_mut() else { return };
        burst.bytes = burst.bytes.saturating_add(data_bytes);
        // Several PDUs of the command in one frame share its packets.
        let before = if self.data_frame == frame { self.frame_bytes } else { 0 };
        (self.data_frame, self.frame_bytes) = (frame, before.saturating_add(wire_bytes));
        let packets = |bytes: u64| bytes.div_ceil(u64::from(mss.max(1)));
        let more = packets(self.frame_bytes).saturating_sub(packets(before));
        burst.packets = burst.packets.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
    }
}

/// Length and direction of a command's data. Of a bidirectional command the part that goes to the target counts.
fn transfer(command: &ScsiCommand) -> (u64, Option<Transfer>) {
    let expected = u64::from(command.expected_data_transfer_length);
    let by_code = fact_of(&command.cdb).map(|fact| fact.direction);
    let transfer = match (command.write, command.read) {
        _ if expected == 0 => None,
        (true, _) => Some(Transfer::Write),
        (false, true) => Some(Transfer::Read),
        // Neither flag, but a length: as the operation code has it.
        (false, false) => match by_code {
            Some(Direction::Out) => Some(Transfer::Write),
            Some(Direction::In) => Some(Transfer::Read),
            _ => None,
        },
    };
    (if transfer.is_some() { expected } else { 0 }, transfer)
}
