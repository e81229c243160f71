//! The commands of one connection.

use std::collections::{HashMap, VecDeque};

use iscsi::wire::{
    BHS_LENGTH, CmdSn, DataIn, DataOut, InitiatorPdu, Opcode, R2t, Residual, ScsiCommand, ScsiResponse,
    StatSn, TargetPdu, TmFunction, TmRequest, TmResponse, TmResult,
};

use super::arrivals::{Arrivals, Brought};
use super::open::{Open, Phase};
use super::stream::{Passed, Pdu, Piece, Stream};
use super::table::{Key, Table};
use super::{Command, Counts, Keys, Standing, Transfer, Trigger};
use crate::event::{Ack, Distances, Event, Kind, Opaque, PduStart, Segment, Side};
use crate::limits::{ACKS_REMEMBERED_MAX, COMMANDS_ENDED_MAX, TASK_REQUESTS_MAX};

/// Shortest pause that separates two bursts when the round trip is short.
const PAUSE_MIN_NS: u64 = 500_000;
/// Longest time in which a sender goes on after what it waited for, at least.
const REACTION_MIN_NS: u64 = 500_000;
/// Unsolicited data of a command without the F bit while FirstBurstLength is not known (RFC 7143 section 13.14).
const FIRST_BURST_DEFAULT: u32 = 65_536;
/// A command whose response the capture may have lost is given up when this many times the commands outstanding then
/// have ended since.
const DOUBT_ROUNDS: u64 = 2;

/// Follows the commands of one connection. It takes events in the order of capture ([`Tracker::handle`]) and yields
/// commands when their times are complete ([`Tracker::poll_command`]); [`Tracker::standing`] may be asked after any
/// event. Commands whose start was not captured are counted and ignored.
#[derive(Debug, Default)]
pub struct Tracker {
    initiator: Stream,
    target: Stream,
    at_initiator: Arrivals,
    at_target: Arrivals,
    table: Table,
    distances: Distances,
    keys: Keys,
    counts: Counts,
    /// Largest unsolicited burst and data segment seen, where the keys are unknown.
    unsolicited_bytes_max: u32,
    segment_bytes_max: u32,
    next_cmd_sn: Option<CmdSn>,
    max_cmd_sn: Option<CmdSn>,
    /// (offset acknowledged by the target, time), both ascending.
    acks: VecDeque<(u64, u64)>,
    tasks: HashMap<u32, TmRequest>,
    /// Ended, the next command has not started; and when each ended in the initiator's clock.
    awaiting_next: VecDeque<(u64, Command)>,
    ended: VecDeque<Command>,
    ended_count: u64,
    /// ExpStatSN of the first command, and statuses that the target has sent since, as far as they were seen.
    first_stat_sn: Option<StatSn>,
    statuses: u64,
    /// CmdSN of the first command.
    first_cmd_sn: Option<CmdSn>,
    /// The last write whose start was seen.
    last_write: Option<Seen>,
}

/// What commands that pass unseen are taken to be like.
#[derive(Clone, Copy, Debug)]
struct Seen {
    lun: u64,
    operation: u8,
    bytes: u64,
    unsolicited_bytes: u64,
    /// Where it began, its depth, and the commands that had ended then.
    offset: u64,
    depth: u32,
    ended: u64,
}

impl Tracker {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Round trips between the point of capture and the ends, as known now. They apply to commands that end later.
    pub fn set_distances(&mut self, distances: Distances) {
        self.distances = distances;
    }

    /// What the login agreed on, as far as it was seen.
    pub fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn handle(&mut self, event: &Event) {
        match event.kind {
            Kind::Ack(ack) => self.on_ack(event, &ack),
            Kind::Segment(segment) => self.on_segment(event, &segment),
            Kind::PduStart(start) => match event.from {
                Side::Initiator => self.on_initiator_pdu(event, &start),
                Side::Target => self.on_target_pdu(event, &start),
            },
            Kind::PduEnd(end) => {
                while let Some(pdu) = self.stream(event.from).pop_until(end.offset) {
                    if let (Some(task), missing @ 1..) = (pdu.task, pdu.missing_bytes()) {
                        self.table.update(task, |open| open.on_missing(missing));
                    }
                    if event.from == Side::Target {
                        self.on_target_pdu_end(event, &pdu);
                    }
                }
            }
            Kind::CaptureLost { .. } => {
                self.counts.capture_losses += 1;
                self.stream(event.from).set_patchy();
                self.doubt();
            }
            Kind::HeadersUnseen { offset, bytes } => {
                self.on_unseen(event, offset, bytes);
                self.doubt();
            }
            Kind::Opaque(why) => {
                let stream = self.stream(event.from);
                stream.close();
                if why == Opaque::Unframed {
                    stream.set_patchy();
                }
            }
            Kind::Ended { .. } => self.finish(),
        }
    }

    /// Memory that is held, about: what [`Tracker::finish`] makes superfluous.
    pub(crate) fn held_bytes(&self) -> usize {
        let waiting = self.awaiting_next.iter().map(|(_, command)| command).chain(&self.ended);
        let bursts: usize = waiting.map(|command| size_of_val(command.bursts.as_slice())).sum();
        self.initiator.held_bytes()
            + self.target.held_bytes()
            + self.at_initiator.held_bytes()
            + self.at_target.held_bytes()
            + self.table.held_bytes()
            + bursts
            + self.acks.capacity() * size_of::<(u64, u64)>()
            + (self.awaiting_next.capacity() + self.ended.capacity()) * size_of::<(u64, Command)>()
    }

    /// The next command that is complete.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.ended.pop_front()
    }

    /// The connection or the capture has ended: nothing more comes for commands that are open or wait for a successor.
    pub fn finish(&mut self) {
        self.counts.unfinished += self.table.remove_where(|_| true);
        self.ended.extend(self.awaiting_next.drain(..).map(|(_, command)| command));
    }

    #[must_use]
    pub fn standing(&self) -> Standing {
        let mut standing = self.table.standing();
        let segment = u64::from(self.segment_bytes_max.max(1));
        let with_headers = |bytes: u64| bytes + bytes.div_ceil(segment) * BHS_LENGTH as u64;
        if self.segment_bytes_max > 0 {
            standing.permitted_bytes = with_headers(standing.permitted_bytes);
            standing.permitted_read_bytes = with_headers(standing.permitted_read_bytes);
        }
        standing.command_window = self.command_window();
        standing
    }

    fn command_window(&self) -> Option<u32> {
        let (next, max) = (self.next_cmd_sn?, self.max_cmd_sn?);
        Some(u32::try_from(max.distance_from(next).saturating_add(1)).unwrap_or(0))
    }

    fn stream(&mut self, from: Side) -> &mut Stream {
        match from {
            Side::Initiator => &mut self.initiator,
            Side::Target => &mut self.target,
        }
    }

    fn round_trip_ns(&self) -> Option<u64> {
        Some(self.distances.initiator_ns?.saturating_add(self.distances.target_ns?))
    }

    /// Notes that a packet of `event.from` is on its way to the other end.
    fn bring(&mut self, event: &Event, what: Brought) {
        let (arrivals, distance) = match event.from {
            Side::Initiator => (&mut self.at_target, self.distances.target_ns),
            Side::Target => (&mut self.at_initiator, self.distances.initiator_ns),
        };
        // What arrived before this packet passed is not kept: an end that sends no data never asks for it.
        arrivals.advance(event.at_ns);
        arrivals.on_peer(event.at_ns.saturating_add(distance.unwrap_or(0)), what);
    }

    fn on_ack(&mut self, event: &Event, ack: &Ack) {
        self.bring(event, Brought::Ack);
        if event.from == Side::Target && self.acks.back().is_none_or(|(last, _)| ack.acknowledged > *last) {
            // Those of bytes before the oldest command that is open will not be asked for.
            let first = self.table.first().map_or(self.initiator.framed_until(), |open| open.sent_from);
            while self.acks.len() == ACKS_REMEMBERED_MAX
                || self.acks.front().is_some_and(|(acknowledged, _)| *acknowledged < first)
            {
                self.acks.pop_front();
            }
            self.acks.push_back((ack.acknowledged, event.at_ns));
        }
    }

    fn on_segment(&mut self, event: &Event, segment: &Segment) {
        if segment.repeated_bytes >= segment.bytes {
            return;
        }
        let span = segment.offset..segment.offset.saturating_add(u64::from(segment.bytes));
        let piece = Piece { span, at_ns: event.at_ns, frame: event.frame, mss: segment.mss };
        self.with_data(event, |stream, count| stream.on_piece(piece, count));
    }

    /// Runs `change` on the stream of the event's sender; data that it counts goes to the commands.
    fn with_data(&mut self, event: &Event, change: impl FnOnce(&mut Stream, &mut dyn FnMut(Key, Passed))) {
        let round_trip_ns = self.round_trip_ns().unwrap_or(0);
        let pause_min_ns = (round_trip_ns / 2).max(PAUSE_MIN_NS);
        let reaction_ns = (round_trip_ns / 4).max(REACTION_MIN_NS);
        let (stream, arrivals, distance) = match event.from {
            Side::Initiator => (&mut self.initiator, &mut self.at_initiator, self.distances.initiator_ns),
            Side::Target => (&mut self.target, &mut self.at_target, self.distances.target_ns),
        };
        arrivals.advance(event.at_ns);
        let (arrivals, table) = (&*arrivals, &mut self.table);
        change(stream, &mut |key, passed| {
            table.update(key, |open| {
                let r2t_ns = open.r2t_ns.map(|at| at.saturating_add(distance.unwrap_or(0)));
                open.on_passed(passed, pause_min_ns, |paused_ns| -> Trigger {
                    arrivals.trigger(paused_ns, passed.at_ns, reaction_ns, r2t_ns)
                });
            });
        });
    }

    /// PDUs passed whose headers the capture does not hold. Their bytes are taken for data of the commands that have some
    /// left to move, the oldest first.
    fn on_unseen(&mut self, event: &Event, offset: u64, bytes: u64) {
        let span = offset..offset.saturating_add(bytes);
        let transfer = match event.from {
            Side::Initiator => Transfer::Write,
            Side::Target => Transfer::Read,
        };
        let mut packets = Vec::new();
        self.stream(event.from).on_unseen(&span, |passed| packets.push(passed));
        for mut passed in packets {
            while let Some(key) = self.table.first_moving(transfer).filter(|_| passed.wire_bytes > 0) {
                let left = self.table.get(key).map_or(0, Open::left);
                let bytes = passed.wire_bytes.min(left);
                let part = Passed { wire_bytes: bytes, data_bytes: bytes, ..passed };
                self.table.update(key, |open| open.on_inferred(bytes));
                self.with_data(event, |_, count| count(key, part));
                self.counts.inferred_bytes = self.counts.inferred_bytes.saturating_add(bytes);
                passed.wire_bytes -= bytes;
            }
        }
    }

    fn start(&mut self, event: &Event, start: &PduStart, task: Option<Key>) {
        self.with_data(event, |stream, count| stream.on_start(start, task, count));
    }

    fn on_initiator_pdu(&mut self, event: &Event, start: &PduStart) {
        let task = match InitiatorPdu::parse(&start.header) {
            Ok(InitiatorPdu::ScsiCommand(command)) => self.on_command(event, start, &command),
            Ok(InitiatorPdu::DataOut(data)) => self.on_data_out(&data),
            Ok(InitiatorPdu::TmRequest(request)) => {
                self.counts.task_management += 1;
                if self.tasks.len() < TASK_REQUESTS_MAX {
                    self.tasks.insert(request.itt.0, request);
                }
                None
            }
            Ok(_) => {
                self.counts.other += 1;
                None
            }
            Err(_) => {
                self.counts.malformed += 1;
                None
            }
        };
        self.start(event, start, task);
    }

    fn on_command(&mut self, event: &Event, start: &PduStart, command: &ScsiCommand) -> Option<Key> {
        let (at_ns, frame) = self
            .initiator
            .first_byte(start.offset)
            .map_or((event.at_ns, event.frame), |p| (p.at_ns, p.frame));
        self.counts.commands += 1;
        if !command.immediate {
            self.next_cmd_sn = Some(command.cmd_sn.next());
            self.first_cmd_sn.get_or_insert(command.cmd_sn);
        }
        self.on_statuses(event, command.exp_stat_sn);
        self.name_next(at_ns);
        self.bring(event, Brought::Command);
        let first_burst = self.keys.first_burst_length.unwrap_or(match self.unsolicited_bytes_max {
            0 => FIRST_BURST_DEFAULT,
            seen => seen,
        });
        let mut open = Open::new(command, at_ns, frame, u64::from(first_burst));
        open.sent_from = start.offset;
        open.sent_until = start.offset.saturating_add(BHS_LENGTH as u64);
        let in_flight = self.awaiting_next.iter().filter(|(end_ns, _)| *end_ns > at_ns).count();
        let depth = self.table.len() + in_flight + 1;
        open.depth = u32::try_from(depth).unwrap_or(u32::MAX);
        if open.transfer == Some(Transfer::Write) {
            let (bytes, unsolicited_bytes) = (open.expected, open.unsolicited_bytes);
            self.last_write = Some(Seen {
                lun: open.lun,
                operation: open.operation,
                bytes,
                unsolicited_bytes,
                offset: start.offset,
                depth: open.depth,
                ended: self.ended_count,
            });
        }
        let carries_data = open.transfer == Some(Transfer::Write) && command.data_segment_length > 0;
        let (key, displaced) = self.table.insert(open);
        self.counts.unfinished += displaced as u64;
        carries_data.then_some(key)
    }

    /// The initiator has the statuses before `expected`. If some of them passed unseen, the oldest commands have ended.
    fn on_statuses(&mut self, event: &Event, expected: StatSn) {
        let first = *self.first_stat_sn.get_or_insert(expected);
        let had = u64::try_from(expected.distance_from(first)).unwrap_or(0);
        if !self.target.is_patchy() {
            // What was not counted came before the first command, or is no command's.
            self.statuses = self.statuses.max(had);
            return;
        }
        while self.statuses < had
            && let Some(open) = self.table.first()
        {
            let itt = open.itt;
            if let Some(mut open) = self.table.remove_itt(itt) {
                open.is_inferred = true;
                self.ended_count += 1;
                self.close(open, event.at_ns, None, Residual::None);
            }
            self.statuses += 1;
        }
        self.statuses = self.statuses.max(had);
    }

    /// A command starts: the time since earlier ones ended is known. One whose response the initiator did not have yet
    /// goes on waiting, unless the initiator had nothing else outstanding.
    fn name_next(&mut self, at_ns: u64) {
        let is_idle = self.table.len() == 0;
        while let Some((end_ns, _)) = self.awaiting_next.front() {
            if *end_ns > at_ns && !is_idle {
                break;
            }
            let Some((end_ns, mut command)) = self.awaiting_next.pop_front() else { break };
            command.tc_ns = Some(at_ns.saturating_sub(end_ns));
            self.ended.push_back(command);
        }
    }

    fn on_data_out(&mut self, data: &DataOut) -> Option<Key> {
        self.segment_bytes_max = self.segment_bytes_max.max(data.data_segment_length);
        let Some(key) = self.table.find(data.itt.0) else {
            self.counts.unknown += 1;
            return None;
        };
        let (bytes, is_unsolicited) = (data.data_segment_length, data.ttt.is_reserved());
        let unsolicited = self.table.update(key, |open| {
            open.on_data_out(bytes, data.is_final, is_unsolicited);
            open.unsolicited_bytes
        });
        if is_unsolicited {
            let all = u32::try_from(unsolicited.unwrap_or(0)).unwrap_or(u32::MAX);
            self.unsolicited_bytes_max = self.unsolicited_bytes_max.max(all);
        }
        Some(key)
    }

    fn on_target_pdu(&mut self, event: &Event, start: &PduStart) {
        let task = match Opcode::parse(start.header[0]) {
            Ok(Opcode::DataIn) => match DataIn::parse(&start.header) {
                Ok(data) => self.on_data_in(event, start, &data),
                Err(_) => None,
            },
            _ => None,
        };
        self.start(event, start, task);
    }

    fn on_data_in(&mut self, event: &Event, start: &PduStart, data: &DataIn) -> Option<Key> {
        self.segment_bytes_max = self.segment_bytes_max.max(data.data_segment_length);
        let Some(key) = self.table.find(data.itt.0) else {
            self.counts.unknown += 1;
            return None;
        };
        let at_ns = self.target.first_byte(start.offset).map_or(event.at_ns, |piece| piece.at_ns);
        let wait = self.table.get(key).filter(|open| open.phase() == Phase::AwaitingData);
        if let Some((since, offset)) = wait.map(|open| (open.at_ns, open.sent_until)) {
            let own = self.own_time(since, offset, at_ns);
            self.table.update(key, |open| open.target_ns = open.target_ns.saturating_add(own));
        }
        self.table.update(key, |open| open.on_data_in(data.data_segment_length));
        Some(key)
    }

    /// What the target took itself between the initiator's packet at `since_ns` and its own at `until_ns`. The target has
    /// the packet when it acknowledges `offset`; if its acknowledgement came with the answer, the distance tells.
    fn own_time(&self, since_ns: u64, offset: u64, until_ns: u64) -> u64 {
        let whole = until_ns.saturating_sub(since_ns);
        let by_distance = self.distances.target_ns.map(|distance| whole.saturating_sub(distance));
        // Of a command that passed unseen the offset is not known.
        let place =
            (offset > 0).then(|| self.acks.partition_point(|(acknowledged, _)| *acknowledged < offset));
        let acknowledged = place.and_then(|place| self.acks.get(place)).map(|(_, at)| *at);
        let acknowledged = acknowledged.filter(|at| *at < until_ns && *at >= since_ns);
        let by_ack = acknowledged.map(|at| until_ns - at);
        match (by_distance, by_ack) {
            (Some(distance), Some(ack)) => distance.min(ack),
            (Some(time), None) | (None, Some(time)) => time,
            (None, None) => 0,
        }
    }

    fn on_target_pdu_end(&mut self, event: &Event, pdu: &Pdu) {
        let Ok(parsed) = TargetPdu::parse(&pdu.header) else {
            self.counts.malformed += 1;
            return;
        };
        self.statuses += u64::from(carries_status(&parsed));
        match parsed {
            TargetPdu::R2t(r2t) => {
                self.on_sequence(r2t.max_cmd_sn);
                self.on_r2t(event, &r2t);
            }
            TargetPdu::ScsiResponse(response) => self.on_response(event, &response),
            TargetPdu::DataIn(data) => {
                if let Some(status) = data.status {
                    self.on_sequence(data.max_cmd_sn);
                    self.bring(event, Brought::Response);
                    self.end(event, data.itt.0, Some(status), data.residual);
                }
            }
            TargetPdu::TmResponse(response) => {
                self.on_sequence(response.max_cmd_sn);
                self.on_task_response(&response);
            }
            TargetPdu::Reject(reject) => {
                self.on_sequence(reject.max_cmd_sn);
                self.counts.rejects += 1;
                // The rejected PDU may have been a command, which then never ends.
                self.doubt();
            }
            TargetPdu::NopIn(nop) => self.on_sequence(nop.max_cmd_sn),
            _ => self.counts.other += 1,
        }
    }

    fn on_response(&mut self, event: &Event, response: &ScsiResponse) {
        self.on_sequence(response.max_cmd_sn);
        self.bring(event, Brought::Response);
        match self.last_write.filter(|_| self.initiator.is_patchy()) {
            Some(like) if self.table.find(response.itt.0).is_none() => {
                self.infer_whole(event, response, like);
            }
            _ => self.end(event, response.itt.0, Some(response.status), response.residual),
        }
    }

    /// The response of a command of which nothing else was seen: a write like the last one that was.
    fn infer_whole(&mut self, event: &Event, response: &ScsiResponse, like: Seen) {
        let received = self.first_cmd_sn.map_or(0, |first| response.exp_cmd_sn.distance_from(first));
        let at_target = u64::try_from(received).unwrap_or(0).saturating_sub(self.ended_count);
        // All bytes sent since are those of such writes.
        let sent_bytes = self.initiator.passed_until().saturating_sub(like.offset);
        let sent = sent_bytes.div_ceil(like.bytes.saturating_add(BHS_LENGTH as u64));
        let at_initiator = u64::from(like.depth.saturating_sub(1))
            .saturating_add(sent)
            .saturating_sub(self.ended_count.saturating_sub(like.ended));
        let depth = at_target.max(at_initiator).max(1);
        self.ended_count += 1;
        self.counts.inferred += 1;
        let end_ns = event.at_ns.saturating_add(self.distances.initiator_ns.unwrap_or(0));
        let command = Command {
            frame: event.frame,
            at_ns: end_ns,
            itt: response.itt.0,
            lun: like.lun,
            operation: like.operation,
            transfer: Transfer::Write,
            bytes: like.bytes,
            ta_ns: 0,
            tb_ns: 0,
            tc_ns: None,
            latency_ns: 0,
            target_ns: 0,
            r2t_rounds: 0,
            r2t_bytes: 0,
            unsolicited_bytes: u32::try_from(like.unsolicited_bytes).unwrap_or(u32::MAX),
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            bursts: Vec::new(),
            status: Some(response.status),
            is_inferred: true,
        };
        self.ended.push_back(command);
    }

    /// MaxCmdSN never shrinks (RFC 7143 section 4.2.2.1).
    fn on_sequence(&mut self, max_cmd_sn: CmdSn) {
        if self.max_cmd_sn.is_none_or(|known| max_cmd_sn.follows(known)) {
            self.max_cmd_sn = Some(max_cmd_sn);
        }
    }

    fn on_r2t(&mut self, event: &Event, r2t: &R2t) {
        let key = match self.table.find(r2t.itt.0) {
            Some(key) => key,
            None if self.initiator.is_patchy() => self.infer(event, r2t),
            None => {
                self.counts.unknown += 1;
                return;
            }
        };
        let waits = self.table.get(key).filter(|open| open.phase() == Phase::AwaitingR2t);
        let since = waits.map(|open| (open.last_data_ns.unwrap_or(open.at_ns), open.sent_until));
        let own = since.map_or(0, |(since, offset)| self.own_time(since, offset, event.at_ns));
        let outstanding = self.table.update(key, |open| {
            open.target_ns = open.target_ns.saturating_add(own);
            open.on_r2t(r2t, event.at_ns);
            open.r2ts_outstanding
        });
        self.counts.r2ts += 1;
        self.counts.r2ts_outstanding_max = self.counts.r2ts_outstanding_max.max(outstanding.unwrap_or(0));
    }

    /// An R2T for a command that passed unseen, if the target answered it immediately a round trip before.
    fn infer(&mut self, event: &Event, r2t: &R2t) -> Key {
        let sent_ns = event.at_ns.saturating_sub(self.distances.target_ns.unwrap_or(0));
        let mut open = Open::inferred(r2t, sent_ns, event.frame);
        let depth = self.table.len() + 1;
        open.depth = u32::try_from(depth).unwrap_or(u32::MAX);
        self.counts.inferred += 1;
        let (key, displaced) = self.table.insert(open);
        self.counts.unfinished += displaced as u64;
        key
    }

    /// The response of a command has passed.
    fn end(&mut self, event: &Event, itt: u32, status: Option<u8>, residual: Residual) {
        let Some(mut open) = self.table.remove_itt(itt) else {
            self.counts.unknown += 1;
            return;
        };
        self.ended_count += 1;
        if open.phase() == Phase::AwaitingResponse && open.transfer != Some(Transfer::Read) {
            let since = open.last_data_ns.unwrap_or(open.at_ns);
            let own = self.own_time(since, open.sent_until, event.at_ns);
            open.target_ns = open.target_ns.saturating_add(own);
        }
        self.give_up_doubtful();
        let end_ns = event.at_ns.saturating_add(self.distances.initiator_ns.unwrap_or(0));
        self.close(open, end_ns, status, residual);
    }

    /// The command has ended at `end_ns` in the initiator's clock.
    fn close(&mut self, open: Open, end_ns: u64, status: Option<u8>, residual: Residual) {
        let Some(transfer) = open.transfer else {
            self.counts.without_data += 1;
            return;
        };
        let command = command(open, transfer, end_ns, self.distances, status, residual);
        if self.awaiting_next.len() == COMMANDS_ENDED_MAX
            && let Some((_, command)) = self.awaiting_next.pop_front()
        {
            self.ended.push_back(command);
        }
        self.awaiting_next.push_back((end_ns, command));
    }

    fn on_task_response(&mut self, response: &TmResponse) {
        let Some(request) = self.tasks.remove(&response.itt.0) else { return };
        if !matches!(response.result, TmResult::Complete | TmResult::TaskDoesNotExist) {
            return;
        }
        let (lun, tag) = (request.lun, request.referenced_task_tag.0);
        // Aborted commands get no response (RFC 7143 section 11.5.1).
        self.counts.aborted += match request.function {
            TmFunction::AbortTask => u64::from(self.table.remove_itt(tag).is_some()),
            TmFunction::AbortTaskSet | TmFunction::ClearTaskSet | TmFunction::LogicalUnitReset => {
                self.table.remove_where(|open| open.lun == lun)
            }
            TmFunction::TargetWarmReset | TmFunction::TargetColdReset | TmFunction::ItNexusReset => {
                self.table.remove_where(|_| true)
            }
            _ => 0,
        };
    }

    /// The responses of the commands that are open now may have been lost.
    fn doubt(&mut self) {
        let until = self.ended_count + DOUBT_ROUNDS * self.table.len().max(8) as u64;
        self.table.for_each(|open| {
            open.doubted_until.get_or_insert(until);
        });
        self.counts.doubted = self.table.len() as u64;
    }

    fn give_up_doubtful(&mut self) {
        if self.counts.doubted == 0 {
            return;
        }
        let ended = self.ended_count;
        let gone = self.table.remove_where(|open| open.doubted_until.is_some_and(|until| ended >= until));
        self.counts.unfinished += gone;
        let mut doubted = 0;
        self.table.for_each(|open| doubted += u64::from(open.doubted_until.is_some()));
        self.counts.doubted = doubted;
    }
}

/// Whether the PDU takes a StatSN.
fn carries_status(pdu: &TargetPdu) -> bool {
    match pdu {
        TargetPdu::DataIn(data) => data.status.is_some(),
        TargetPdu::NopIn(nop) => !nop.itt.is_reserved(),
        TargetPdu::R2t(_) => false,
        _ => true,
    }
}

/// Times in the initiator's clock: what the target sent is later there by the distance of the initiator.
fn command(
    open: Open,
    transfer: Transfer,
    end_ns: u64,
    distances: Distances,
    status: Option<u8>,
    residual: Residual,
) -> Command {
    let (first, last) = (open.first_data_ns.unwrap_or(open.at_ns), open.last_data_ns.unwrap_or(open.at_ns));
    let to_initiator = distances.initiator_ns.unwrap_or(0);
    let tb_ns = match transfer {
        Transfer::Write => end_ns.saturating_sub(last),
        Transfer::Read if open.first_data_ns.is_some() => {
            first.saturating_add(to_initiator).saturating_sub(open.at_ns)
        }
        Transfer::Read => end_ns.saturating_sub(open.at_ns),
    };
    let missing = match residual {
        Residual::Underflow(bytes) => u64::from(bytes),
        Residual::None | Residual::Overflow(_) => 0,
    };
    Command {
        frame: open.frame,
        at_ns: open.at_ns,
        itt: open.itt,
        lun: open.lun,
        operation: open.operation,
        transfer,
        bytes: open.expected.saturating_sub(missing),
        ta_ns: last.saturating_sub(first),
        tb_ns,
        tc_ns: None,
        latency_ns: end_ns.saturating_sub(open.at_ns),
        target_ns: open.target_ns,
        r2t_rounds: open.r2t_rounds,
        r2t_bytes: open.r2t_bytes,
        unsolicited_bytes: u32::try_from(open.unsolicited_bytes).unwrap_or(u32::MAX),
        depth: open.depth,
        bursts: open.bursts,
        status,
        is_inferred: open.is_inferred,
    }
}
