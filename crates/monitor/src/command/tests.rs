//! A connection as its packets show it, written as a list of PDUs with times.

use iscsi::wire::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, Itt, Reject, RejectReason, Residual, StatSn, TmFunction, TmRequest,
    TmResponse, TmResult,
};

use super::*;
use crate::event::{Ack, Distances, Event, Kind, Order, PduEnd, PduStart, Segment, Side};
use crate::pdus::{data_in, data_out, good, r2t, read, response, scsi, write};
use Side::{Initiator, Target};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const MSS: u16 = 1448;

/// Writes packets of both ends and feeds them to a tracker.
#[derive(Default)]
struct Wire {
    tracker: Tracker,
    offsets: [u64; 2],
    frame: u64,
    ended: Vec<Command>,
}

impl Wire {
    fn between(initiator_ns: u64, target_ns: u64) -> Self {
        let mut wire = Self::default();
        wire.tracker
            .set_distances(Distances { initiator_ns: Some(initiator_ns), target_ns: Some(target_ns) });
        wire
    }

    fn event(&mut self, at_ns: u64, from: Side, kind: Kind) {
        self.tracker.handle(&Event { at_ns, frame: self.frame, from, kind });
        while let Some(command) = self.tracker.poll_command() {
            self.ended.push(command);
        }
    }

    fn segment(&mut self, at_ns: u64, from: Side, offset: u64, bytes: u64) {
        self.frame += 1;
        let bytes = u32::try_from(bytes).unwrap();
        let segment =
            Segment { offset, bytes, repeated_bytes: 0, mss: MSS, push: true, ..Segment::default() };
        self.event(at_ns, from, Kind::Segment(segment));
    }

    /// A PDU in packets of `piece` bytes, one each `step_ns`. Returns when its last one passed.
    fn pdu_in(&mut self, at_ns: u64, from: Side, header: [u8; BHS_LENGTH], piece: u64, step_ns: u64) -> u64 {
        let bytes = BHS_LENGTH as u64 + u64::from(Bhs(&header).data_segment_length_padded());
        let offset = self.offsets[from as usize];
        self.offsets[from as usize] += bytes;
        let (mut at_ns, mut passed) = (at_ns, 0);
        while passed < bytes {
            let length = piece.min(bytes - passed);
            self.segment(at_ns, from, offset + passed, length);
            if passed == 0 {
                self.event(at_ns, from, Kind::PduStart(PduStart { offset, bytes, header }));
            }
            passed += length;
            if passed == bytes {
                self.event(at_ns, from, Kind::PduEnd(PduEnd { offset }));
            } else {
                at_ns += step_ns;
            }
        }
        at_ns
    }

    /// A PDU in one packet.
    fn pdu(&mut self, at_ns: u64, from: Side, header: [u8; BHS_LENGTH]) {
        self.pdu_in(at_ns, from, header, u64::MAX, 0);
    }

    /// The target has everything that the initiator sent, or the reverse.
    fn ack(&mut self, at_ns: u64, from: Side) {
        self.frame += 1;
        let ack = Ack { acknowledged: self.offsets[from.peer() as usize], is_bare: true, ..Ack::default() };
        self.event(at_ns, from, Kind::Ack(ack));
    }

    fn standing(&self) -> Standing {
        self.tracker.standing()
    }

    fn finish(mut self) -> (Vec<Command>, Counts) {
        self.tracker.finish();
        while let Some(command) = self.tracker.poll_command() {
            self.ended.push(command);
        }
        (self.ended, self.tracker.counts())
    }
}

/// A write of 24 KiB at the initiator's vantage, RTT 10 ms, target 2 ms: 8 KiB immediate, then two R2Ts.
#[test]
fn a_write_with_immediate_data_and_two_r2ts() {
    let mut wire = Wire::between(0, 10 * MS);
    wire.pdu(0, Initiator, write(1, 24_576, 8192));
    assert_eq!(wire.standing().awaiting_r2t, 1);
    wire.pdu(12 * MS, Target, r2t(1, 8192, 8192));
    assert_eq!((wire.standing().awaiting_r2t, wire.standing().permitted_bytes), (0, 8192));
    wire.pdu(12 * MS + 100 * US, Initiator, data_out(1, 7, 8192, 8192, true));
    wire.pdu(24 * MS, Target, r2t(1, 16_384, 8192));
    let half = wire.pdu_in(25 * MS, Initiator, data_out(1, 7, 16_384, 4096, false), 1448, 10 * US);
    assert_eq!(half, 25 * MS + 20 * US);
    // 4096 bytes and the header of their PDU, as long as the largest so far: 8192.
    assert_eq!(wire.standing().permitted_bytes, 4096 + 48);
    wire.pdu(26 * MS, Initiator, data_out(1, 7, 20_480, 4096, true));
    let standing = wire.standing();
    assert_eq!((standing.awaiting_response, standing.permitted_bytes), (1, 0));
    wire.pdu(38 * MS, Target, good(1));
    assert_eq!(wire.standing().outstanding, 0);
    assert_eq!(wire.standing().command_window, Some(99));
    wire.pdu(39 * MS, Initiator, write(2, 512, 512));
    let (commands, counts) = wire.finish();
    let [command] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!(command.bytes, 24_576);
    assert_eq!((command.ta_ns, command.tb_ns, command.tc_ns), (26 * MS, 12 * MS, Some(MS)));
    assert_eq!(command.latency_ns, 38 * MS);
    // 2 ms before each R2T, less the 100 us that the second burst was late, and 2 ms before the response.
    assert_eq!(command.target_ns, 2 * MS + 1900 * US + 2 * MS);
    assert_eq!((command.r2t_rounds, command.r2t_bytes, command.unsolicited_bytes), (2, 8192, 8192));
    let bursts: Vec<_> = command.bursts.iter().map(|b| (b.packets, b.bytes, b.gap_ns, b.trigger)).collect();
    let expected = [
        (6, 8192, 0, Trigger::Command),
        (6, 8192, 12 * MS + 100 * US, Trigger::R2t),
        (6, 8192, 12 * MS + 900 * US, Trigger::R2t),
    ];
    assert_eq!(bursts, expected);
    assert_eq!((counts.commands, counts.unfinished, counts.r2ts_outstanding_max), (2, 1, 1));
}

/// The same write where its packets pass at different places of the way: the initiator's times are the same.
#[test]
fn times_are_the_initiators_wherever_the_packets_were_captured() {
    let mut all = Vec::new();
    for to_initiator in [0, 4, 10] {
        let shift = to_initiator * MS / 2;
        let mut wire = Wire::between(to_initiator * MS, (10 - to_initiator) * MS);
        // What the initiator sends passes later than it left, what it receives passes earlier than it came.
        wire.pdu(50 * MS + shift, Initiator, write(1, 8192, 0));
        wire.pdu(62 * MS - shift, Target, r2t(1, 0, 8192));
        wire.pdu(62 * MS + shift, Initiator, data_out(1, 7, 0, 8192, true));
        wire.pdu(75 * MS - shift, Target, good(1));
        wire.pdu(76 * MS + shift, Initiator, read(2, 4096));
        wire.pdu(91 * MS - shift, Target, data_in(2, 0, 4096, Some(0)));
        wire.pdu(91 * MS + shift, Initiator, read(3, 4096));
        let (commands, _) = wire.finish();
        let times = |c: &Command| (c.ta_ns, c.tb_ns, c.tc_ns, c.latency_ns, c.target_ns, c.depth);
        all.push(commands.iter().map(times).collect::<Vec<_>>());
    }
    let expected = [(0, 13 * MS, Some(MS), 25 * MS, 5 * MS, 1), (0, 15 * MS, Some(0), 15 * MS, 5 * MS, 1)];
    assert_eq!(all, [expected, expected, expected]);
}

#[test]
fn unsolicited_data_until_the_f_bit_and_a_read_in_two_sequences() {
    let mut wire = Wire::between(0, MS);
    wire.tracker.set_keys(Keys { first_burst_length: Some(16_384) });
    wire.pdu(0, Initiator, scsi(1, 0x2a, 65_536, 4096, false));
    assert_eq!((wire.standing().awaiting_r2t, wire.standing().permitted_bytes), (0, 12_288));
    // It ends its first burst early.
    wire.pdu(10 * US, Initiator, data_out(1, u32::MAX, 4096, 8192, true));
    assert_eq!((wire.standing().awaiting_r2t, wire.standing().permitted_bytes), (1, 0));
    // Two R2Ts at once: one wait.
    wire.pdu(2 * MS, Target, r2t(1, 12_288, 26_624));
    wire.pdu(2 * MS, Target, r2t(1, 38_912, 26_624));
    wire.pdu(3 * MS, Initiator, data_out(1, 7, 12_288, 26_624, true));
    wire.pdu(3 * MS, Initiator, data_out(1, 8, 38_912, 26_624, true));
    wire.pdu(3 * MS, Initiator, read(2, 1 << 20));
    let standing = wire.standing();
    assert_eq!((standing.awaiting_response, standing.awaiting_data), (1, 1));
    assert!(standing.permitted_read_bytes >= 1 << 20);
    wire.pdu(5 * MS, Target, good(1));
    let last = wire.pdu_in(6 * MS, Target, data_in(2, 0, 1 << 19, None), 65_160, 10 * US);
    assert_eq!((wire.standing().receiving, wire.standing().awaiting_data), (1, 0));
    // It arrives at the target 1 ms later.
    wire.ack(7 * MS, Initiator);
    wire.pdu_in(8 * MS + 50 * US, Target, data_in(2, 1 << 19, 1 << 19, None), 65_160, 10 * US);
    assert_eq!(wire.standing().awaiting_response, 1);
    wire.pdu(9 * MS, Target, good(2));
    let (commands, counts) = wire.finish();
    let [write, read] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!((write.r2t_rounds, write.unsolicited_bytes, counts.r2ts_outstanding_max), (1, 12_288, 2));
    assert_eq!((read.transfer, read.bytes, read.depth), (Transfer::Read, 1 << 20, 2));
    assert_eq!((read.tb_ns, read.latency_ns), (3 * MS, 6 * MS));
    let bursts: Vec<_> = read.bursts.iter().map(|b| (b.bytes, b.gap_ns, b.trigger)).collect();
    let gap = 8 * MS + 50 * US - last;
    assert_eq!(bursts, [(1 << 19, 0, Trigger::Command), (1 << 19, gap, Trigger::Ack)]);
}

/// The paper's case: no R2T, one burst for each buffer of acknowledged data.
/// The Data-Out that ends an R2T's data passes unseen; the bytes show that the R2T is not outstanding any more.
#[test]
fn r2ts_whose_end_is_unseen_are_not_outstanding() {
    let mut wire = Wire::between(0, MS);
    wire.pdu(0, Initiator, write(1, 65_536, 0));
    for (number, offset) in (0..).zip((0..65_536).step_by(16_384)) {
        wire.pdu((2 * number + 1) * MS, Target, r2t(1, offset, 16_384));
        wire.pdu((2 * number + 2) * MS, Initiator, data_out(1, 7, offset, 16_384, false));
    }
    wire.pdu(10 * MS, Target, good(1));
    let (commands, counts) = wire.finish();
    assert_eq!((commands[0].r2t_rounds, counts.r2ts_outstanding_max), (4, 1));
}

#[test]
fn bursts_that_acknowledgements_release() {
    let mut wire = Wire::between(0, 20 * MS);
    wire.tracker.set_keys(Keys { first_burst_length: Some(4 << 20) });
    wire.pdu(0, Initiator, scsi(1, 0x2a, 4 << 20, 0, false));
    for burst in 0..4 {
        let at = u64::from(burst) * 20 * MS + 100 * US;
        wire.pdu_in(at, Initiator, data_out(1, u32::MAX, burst << 20, 1 << 20, burst == 3), 14_480, 10 * US);
        wire.ack(at + 19 * MS + 990 * US, Target);
    }
    wire.pdu(85 * MS, Target, good(1));
    let (commands, _) = wire.finish();
    let bursts = &commands[0].bursts;
    assert_eq!(bursts.len(), 4);
    assert!(bursts[1..].iter().all(|burst| burst.trigger == Trigger::Ack && burst.gap_ns > 19 * MS));
    // 1 MiB and a header by 1448 bytes.
    assert!(bursts.iter().all(|burst| burst.packets == 725 && burst.bytes == 1 << 20), "{bursts:?}");
    // The last of 73 packets left at 60.82 ms and arrived 20 ms later.
    assert_eq!(commands[0].target_ns, 85 * MS - (60 * MS + 100 * US + 720 * US + 20 * MS));
}

#[test]
fn the_headers_of_pdus_may_straddle_packets_and_one_packet_may_hold_many() {
    let mut wire = Wire::between(0, MS);
    let header = write(1, 4096, 4096);
    let next = read(2, 512);
    // 30 bytes of the command's header first, then all the rest and a second command.
    wire.segment(MS + 900 * US, Initiator, 0, 30);
    wire.segment(2 * MS, Initiator, 30, 48 + 4096 - 30 + 48);
    wire.event(2 * MS, Initiator, Kind::PduStart(PduStart { offset: 0, bytes: 4144, header }));
    wire.event(2 * MS, Initiator, Kind::PduEnd(PduEnd { offset: 0 }));
    wire.event(2 * MS, Initiator, Kind::PduStart(PduStart { offset: 4144, bytes: 48, header: next }));
    wire.event(2 * MS, Initiator, Kind::PduEnd(PduEnd { offset: 4144 }));
    assert_eq!((wire.standing().awaiting_response, wire.standing().awaiting_data), (1, 1));
    wire.pdu(4 * MS, Target, good(1));
    wire.pdu(4 * MS, Target, data_in(2, 0, 512, Some(0)));
    let (commands, _) = wire.finish();
    assert_eq!((commands[0].at_ns, commands[0].ta_ns, commands[0].tb_ns), (MS + 900 * US, 100 * US, 2 * MS));
    assert_eq!((commands[0].bursts[0].packets, commands[0].bursts[0].bytes), (4, 4096));
    assert_eq!((commands[1].at_ns, commands[1].depth), (2 * MS, 2));
}

#[test]
fn a_start_in_the_middle_is_counted_and_ignored() {
    let mut wire = Wire::between(0, MS);
    wire.pdu(0, Initiator, data_out(5, 7, 0, 512, true));
    wire.pdu(MS, Target, r2t(5, 512, 512));
    wire.pdu(MS, Target, data_in(6, 0, 512, None));
    wire.pdu(2 * MS, Target, good(5));
    wire.pdu(3 * MS, Initiator, write(7, 512, 512));
    wire.pdu(4 * MS, Target, good(7));
    let (commands, counts) = wire.finish();
    assert_eq!((commands.len(), counts.unknown, counts.commands), (1, 4, 1));
}

#[test]
fn commands_end_without_a_response_too() {
    // Name, what follows two open commands with the tags 1 and 2, then: unfinished, aborted, still open.
    type Case = (&'static str, fn(&mut Wire), (u64, u64, u32));
    let cases: [Case; 5] = [
        ("tag used again", |wire| wire.pdu(MS, Initiator, write(1, 512, 512)), (1, 0, 2)),
        ("abort task", |wire| abort(wire, TmFunction::AbortTask, TmResult::Complete), (0, 1, 1)),
        ("abort refused", |wire| abort(wire, TmFunction::AbortTask, TmResult::NotSupported), (0, 0, 2)),
        ("unit reset", |wire| abort(wire, TmFunction::LogicalUnitReset, TmResult::Complete), (0, 2, 0)),
        ("end", |wire| wire.event(MS, Initiator, Kind::Ended { by_reset: true }), (2, 0, 0)),
    ];
    for (name, happens, expected) in cases {
        let mut wire = Wire::between(0, MS);
        wire.pdu(0, Initiator, write(1, 512, 512));
        wire.pdu(0, Initiator, write(2, 512, 512));
        happens(&mut wire);
        let counts = wire.tracker.counts();
        assert_eq!((counts.unfinished, counts.aborted, wire.standing().outstanding), expected, "{name}");
    }
}

fn abort(wire: &mut Wire, function: TmFunction, result: TmResult) {
    let request = TmRequest {
        immediate: true,
        function,
        lun: 0,
        itt: Itt(90),
        referenced_task_tag: Itt(1),
        cmd_sn: CmdSn(3),
        exp_stat_sn: StatSn(0),
        ref_cmd_sn: CmdSn(1),
        exp_data_sn: DataSn(0),
    };
    wire.pdu(MS, Initiator, request.emit());
    let response = TmResponse {
        result,
        information: 0,
        itt: Itt(90),
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(3),
        max_cmd_sn: CmdSn(9),
    };
    wire.pdu(2 * MS, Target, response.emit());
}

#[test]
fn a_response_that_the_capture_lost_does_not_stay_outstanding() {
    for reject in [false, true] {
        let mut wire = Wire::between(0, MS);
        wire.pdu(0, Initiator, write(1, 512, 512));
        if reject {
            let reject = Reject {
                reason: RejectReason::ProtocolError,
                stat_sn: StatSn(0),
                exp_cmd_sn: CmdSn(1),
                max_cmd_sn: CmdSn(9),
                data_sn: DataSn(0),
                data_segment_length: 48,
            };
            wire.pdu(MS, Target, reject.emit());
        } else {
            let offset = wire.offsets[1];
            wire.offsets[1] += 48;
            wire.event(MS, Target, Kind::CaptureLost { offset, bytes: 48 });
        }
        for itt in 2..40 {
            wire.pdu(u64::from(itt) * MS, Initiator, write(itt, 512, 512));
            wire.pdu(u64::from(itt) * MS + 100 * US, Target, good(itt));
        }
        assert_eq!(wire.standing().outstanding, 0);
        let (commands, counts) = wire.finish();
        assert_eq!((commands.len(), counts.unfinished, counts.doubted), (38, 1, 0));
        // While it was open, the depth was 2.
        assert_eq!((commands[0].depth, commands[37].depth), (2, 1));
    }
}

#[test]
fn residuals_statuses_and_commands_without_data() {
    let mut wire = Wire::between(0, MS);
    wire.pdu(0, Initiator, scsi(1, 0x00, 0, 0, true));
    assert_eq!(wire.standing().awaiting_response, 1);
    wire.pdu(MS, Target, good(1));
    wire.pdu(2 * MS, Initiator, scsi(2, 0x12, 255, 0, true));
    wire.pdu(3 * MS, Target, data_in(2, 0, 96, None));
    wire.pdu(3 * MS, Target, response(2, 0, Residual::Underflow(159)));
    wire.pdu(4 * MS, Initiator, read(3, 512));
    wire.pdu(6 * MS, Target, response(3, 2, Residual::None));
    let (commands, counts) = wire.finish();
    let seen: Vec<_> = commands.iter().map(|c| (c.itt, c.bytes, c.status, c.tb_ns)).collect();
    assert_eq!(seen, [(2, 96, Some(0), MS), (3, 512, Some(2), 2 * MS)]);
    assert_eq!((counts.commands, counts.without_data), (3, 1));
}

#[test]
fn retransmissions_count_once_and_a_gap_is_filled_later() {
    let mut wire = Wire::between(MS, 0);
    let header = write(1, 4096, 4096);
    wire.segment(0, Initiator, 0, 1448);
    wire.event(0, Initiator, Kind::PduStart(PduStart { offset: 0, bytes: 4144, header }));
    // The second packet is missing until 5 ms.
    wire.segment(10 * US, Initiator, 2896, 1248);
    assert_eq!((wire.standing().awaiting_response, wire.standing().permitted_bytes), (0, 1448));
    let again = Segment {
        offset: 0,
        bytes: 1448,
        repeated_bytes: 1448,
        mss: MSS,
        order: Order::Again,
        ..Segment::default()
    };
    wire.event(4 * MS, Initiator, Kind::Segment(again));
    assert_eq!(wire.standing().permitted_bytes, 1448);
    wire.segment(5 * MS, Initiator, 1448, 1448);
    wire.event(5 * MS, Initiator, Kind::PduEnd(PduEnd { offset: 0 }));
    assert_eq!(wire.standing().awaiting_response, 1);
    wire.offsets[0] = 4144;
    wire.pdu(6 * MS, Target, good(1));
    let (commands, _) = wire.finish();
    assert_eq!((commands[0].ta_ns, commands[0].tb_ns), (5 * MS, 2 * MS));
    assert_eq!(commands[0].bursts.iter().map(|burst| burst.bytes).sum::<u64>(), 4096);
}

#[test]
fn data_behind_headers_that_were_cut_off_belongs_to_the_command_that_may_send() {
    let mut wire = Wire::between(0, 10 * MS);
    wire.pdu(0, Initiator, write(1, 32_768, 0));
    wire.pdu(10 * MS, Target, r2t(1, 0, 32_768));
    wire.pdu(11 * MS, Initiator, data_out(1, 7, 0, 8192, false));
    // Two PDUs in one frame of which the header of the first is captured, then one more whose header is.
    let offset = wire.offsets[0];
    wire.segment(12 * MS, Initiator, offset, 2 * 8240);
    wire.event(12 * MS, Initiator, Kind::HeadersUnseen { offset, bytes: 2 * 8240 });
    wire.offsets[0] += 2 * 8240;
    wire.pdu(13 * MS, Initiator, data_out(1, 7, 24_576, 8192, true));
    assert_eq!((wire.standing().permitted_bytes, wire.standing().awaiting_response), (0, 1));
    wire.pdu(24 * MS, Target, good(1));
    let (commands, counts) = wire.finish();
    assert_eq!((commands[0].ta_ns, commands[0].tb_ns), (2 * MS, 11 * MS));
    assert_eq!(counts.inferred_bytes, 2 * 8240);
}

#[test]
fn data_that_the_capture_lost_within_a_pdu_has_passed() {
    let mut wire = Wire::between(0, MS);
    let header = write(1, 4096, 4096);
    wire.segment(0, Initiator, 0, 1448);
    wire.event(0, Initiator, Kind::PduStart(PduStart { offset: 0, bytes: 4144, header }));
    wire.segment(10 * US, Initiator, 2896, 1248);
    wire.event(MS, Initiator, Kind::CaptureLost { offset: 1448, bytes: 1448 });
    wire.event(MS, Initiator, Kind::PduEnd(PduEnd { offset: 0 }));
    assert_eq!((wire.standing().permitted_bytes, wire.standing().awaiting_response), (0, 1));
}

/// Whatever comes: no panic, sums stay right, and everything is bounded.
#[test]
fn any_sequence_of_headers_keeps_the_sums() {
    let mut seed = 1_u64;
    let mut random = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let mut wire = Wire::between(MS, MS);
    for at in 0..60_000 {
        let itt = u32::try_from(random(if at < 30_000 { 20 } else { 20_000 })).unwrap();
        let size = [0, 512, 8192, u32::MAX][random(4) as usize];
        let segment = [0, 512, 8192][random(3) as usize];
        let (from, mut header) = match random(8) {
            0 | 1 => (Initiator, scsi(itt, 0x2a, size, segment, random(2) == 0)),
            2 => (Initiator, read(itt, size)),
            3 => (Initiator, data_out(itt, [7, u32::MAX][random(2) as usize], 0, segment, random(2) == 0)),
            4 => (Target, r2t(itt, 0, size)),
            5 => (Target, data_in(itt, 0, segment, [None, Some(0)][random(2) as usize])),
            6 => (Target, good(itt)),
            _ => (Target, response(itt, 2, Residual::Underflow(u32::MAX))),
        };
        if random(20) == 0 {
            header[random(48) as usize] ^= 1 << random(8);
            header[5] = 0;
        }
        wire.pdu_in(at * US, from, header, 1 + random(9000), random(1000));
        if random(500) == 0 {
            wire.event(at * US, from, Kind::CaptureLost { offset: 0, bytes: u64::MAX });
        }
        if random(300) == 0 {
            let offset = wire.offsets[from as usize];
            wire.segment(at * US, from, offset, 3000);
            wire.event(at * US, from, Kind::HeadersUnseen { offset, bytes: 3000 });
            wire.offsets[from as usize] += 3000;
        }
        let standing = wire.standing();
        let sum = standing.awaiting_r2t + standing.awaiting_response + standing.awaiting_data;
        assert!(sum + standing.receiving <= standing.outstanding);
    }
    let outstanding = wire.standing().outstanding;
    assert!(outstanding as usize <= crate::limits::COMMANDS_OPEN_MAX);
    wire.tracker.finish();
    assert_eq!(
        wire.standing(),
        Standing { command_window: wire.standing().command_window, ..Standing::default() }
    );
}

/// Frames of 64 KiB of which only the headers of TCP were captured: the target's PDUs tell of the commands.
#[test]
fn writes_whose_commands_passed_unseen_are_known_by_their_r2ts() {
    let mut wire = Wire::between(0, 10 * MS);
    wire.segment(0, Initiator, 0, 65_160);
    wire.segment(US, Initiator, 65_160, 65_160);
    for itt in 1..=3 {
        wire.pdu(11 * MS, Target, r2t(itt, 8192, 8192));
        wire.pdu(22 * MS, Target, r2t(itt, 16_384, 8192));
    }
    assert_eq!(wire.standing().outstanding, 3);
    for itt in 1..=3 {
        wire.pdu(35 * MS, Target, good(itt));
    }
    let (commands, counts) = wire.finish();
    let seen: Vec<_> = commands
        .iter()
        .map(|c| (c.is_inferred, c.depth, c.bytes, c.r2t_rounds, c.unsolicited_bytes, c.latency_ns))
        .collect();
    let of_depth = |depth| (true, depth, 24_576, 2, 8192, 34 * MS);
    assert_eq!(seen, [of_depth(1), of_depth(2), of_depth(3)]);
    assert_eq!((counts.inferred, counts.unknown), (3, 0));
}

/// The same of reads: the next commands tell how many statuses the initiator has.
#[test]
fn reads_whose_ends_passed_unseen_are_known_by_sequence_numbers() {
    let command = |itt: u32, expected: u32| {
        let mut header = read(itt, 65_536);
        header[28..32].copy_from_slice(&expected.to_be_bytes());
        header
    };
    let mut wire = Wire::between(0, 10 * MS);
    wire.pdu(0, Initiator, command(1, 100));
    wire.pdu(0, Initiator, command(2, 100));
    wire.segment(11 * MS, Target, 0, 65_160);
    wire.segment(11 * MS, Target, 65_160, 65_160);
    wire.pdu(12 * MS, Initiator, command(3, 101));
    assert_eq!(wire.standing().outstanding, 2);
    wire.pdu(13 * MS, Initiator, command(4, 102));
    assert_eq!(wire.standing().outstanding, 2);
    let (commands, counts) = wire.finish();
    let seen: Vec<_> = commands.iter().map(|c| (c.itt, c.is_inferred, c.bytes, c.latency_ns)).collect();
    assert_eq!(seen, [(1, true, 65_536, 12 * MS), (2, true, 65_536, 13 * MS)]);
    assert_eq!(counts.unfinished, 2);
}

#[test]
fn writes_of_which_only_the_responses_were_seen_are_like_the_last_one_known() {
    let mut wire = Wire::between(0, 10 * MS);
    wire.pdu(0, Initiator, write(1, 8192, 8192));
    wire.segment(MS, Initiator, wire.offsets[0], 65_160);
    wire.segment(2 * MS, Initiator, wire.offsets[0] + 65_160, 65_160);
    for itt in 1..=3 {
        // The target has received four commands; 138560 bytes were sent: 17 commands of 8240 bytes.
        let mut header = good(itt);
        header[28..32].copy_from_slice(&5_u32.to_be_bytes());
        wire.pdu(u64::from(itt) * MS + 10 * MS, Target, header);
    }
    let (commands, counts) = wire.finish();
    let mut seen: Vec<_> = commands.iter().map(|c| (c.itt, c.is_inferred, c.bytes, c.depth)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [(1, false, 8192, 1), (2, true, 8192, 16), (3, true, 8192, 15)]);
    assert_eq!((counts.inferred, counts.unknown), (2, 0));
}
