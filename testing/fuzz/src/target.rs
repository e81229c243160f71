//! A session at the target, with an initiator that sends correct, nearly correct and wrong PDUs, while the edge acts.
//!
//! The input is a list of steps: a PDU, or an action of the edge. Headers are built from the current state of the
//! session (its numbers, its R2Ts, the tags in use) with faults in single fields, so that most of them pass the first
//! checks.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use iscsi::limits;
use iscsi::machine::{Fatal, Machine, Placement, Received, TargetRecord, TaskId};
use iscsi::name::TargetAddress;
use iscsi::params::Params;
use iscsi::target::{self, Completion, Event, ManagementId, TextId};
use iscsi::wire::{
    Attribute, Bhs, CmdSn, DataOut, DataSn, InitiatorPdu, Itt, LogoutReason, LogoutRequest, NopOut, R2t,
    ScsiCommand, Snack, SnackType, StatSn, TargetPdu, TextRequest, TmFunction, TmRequest, TmResult, Ttt,
};

use iscsi_test::{INITIATOR, NOW, TARGET, policy, request};

use crate::{Source, edge, heap, words};

const HEAP_MAX: usize = 1 << 20;
/// Maximum number of steps: further ones reach nothing new and cost time.
const STEPS_MAX: usize = 300;
const R2TS_MAX: usize = 16;

pub fn target(bytes: &[u8]) {
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        let Some(mut session) = Session::log_in(&mut source) else { return };
        for _ in 0..STEPS_MAX {
            if source.is_empty() || session.closed || session.step(&mut source).is_err() {
                break;
            }
        }
        session.end();
    });
}

struct Task {
    buffer: u32,
    placed: Vec<Range<u32>>,
    owner: Owner,
    expected: u32,
    read: bool,
    write: bool,
}

impl Task {
    /// Bytes that have been placed without a gap before them.
    fn front(&mut self) -> u32 {
        self.placed.sort_by_key(|range| range.start);
        self.placed.iter().fold(0, |end, range| if range.start <= end { end.max(range.end) } else { end })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The edge, which may still request data.
    Offered,
    /// The edge, with all requested data.
    Edge,
    Machine,
}

struct Session {
    machine: target::Connection,
    now: Duration,
    tasks: HashMap<u32, Task>,
    management: Vec<ManagementId>,
    carries_out: bool,
    text: Vec<TextId>,
    /// Number of unanswered commands per tag: more answers than that are a failure.
    unanswered: HashMap<Itt, u32>,
    r2ts: Vec<R2t>,
    text_tags: Vec<(Itt, Ttt)>,
    pings: Vec<Ttt>,
    cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    stat_sn: Option<StatSn>,
    closed: bool,
    /// The task whose buffer is being received into.
    receiving: Option<u32>,
}

fn keys(source: &mut Source<'_>) -> Vec<u8> {
    let sizes = ["512", "1024", "8192", "16384", "262144"];
    let mut text = Vec::new();
    let mut emit = |key: &str, value: &str| iscsi::text::emit(key, value, &mut text);
    emit("InitiatorName", INITIATOR);
    if source.rarely(16) {
        emit("SessionType", "Discovery");
    } else {
        emit("TargetName", TARGET);
    }
    emit("InitialR2T", source.pick(&["No", "Yes"]));
    emit("ImmediateData", source.pick(&["Yes", "No"]));
    emit("MaxBurstLength", source.pick(&sizes));
    emit("FirstBurstLength", source.pick(&sizes));
    emit("MaxRecvDataSegmentLength", source.pick(&sizes));
    emit("MaxOutstandingR2T", source.pick(&["1", "2", "3", "16"]));
    if source.flag() {
        emit("DataDigest", "CRC32C");
    }
    text
}

impl Session {
    fn log_in(source: &mut Source<'_>) -> Option<Self> {
        let config = target::Config {
            tasks_max: source.pick(&[4, 1, 2, 20]),
            solicited_bytes_max: source.pick(&[100_000, 1, 1 << 20]),
            ..target::Config::default()
        };
        let cmd_sn = CmdSn(source.pick(&[1, u32::MAX - 5, 0x7fff_fffe]));
        let mut session = Self {
            machine: target::Connection::new(config, [0; 32], NOW),
            now: NOW,
            tasks: HashMap::new(),
            management: Vec::new(),
            carries_out: true,
            text: Vec::new(),
            unanswered: HashMap::new(),
            r2ts: Vec::new(),
            text_tags: Vec::new(),
            pings: Vec::new(),
            cmd_sn,
            max_cmd_sn: cmd_sn,
            stat_sn: None,
            closed: false,
            receiving: None,
        };
        let text = keys(source);
        let header = iscsi_test::login_request(cmd_sn, &text);
        session.machine.on_header(&header.emit(), &[], NOW).expect("a login request");
        session.machine.on_data(Received::Inline(&text), NOW).expect("a login");
        session.drain(source);
        session.transmit(usize::MAX, source);
        session.machine.is_full_feature().then_some(session)
    }

    fn step(&mut self, source: &mut Source<'_>) -> Result<(), Fatal> {
        match source.byte() {
            0..=175 => self.receive(source),
            176..=239 => {
                self.act(source);
                Ok(())
            }
            240..=247 => {
                let count = source.below(8);
                self.transmit(count, source);
                Ok(())
            }
            248.. => {
                self.now += Duration::from_secs(source.byte().into());
                let result = self.machine.on_timeout(self.now);
                self.drain(source);
                result
            }
        }
    }

    /// Receives one PDU with its segment; mostly followed by all pending transmissions.
    fn receive(&mut self, source: &mut Source<'_>) -> Result<(), Fatal> {
        let mut header = self.header(source);
        edge::flip(&mut header, source, 8);
        let length = Bhs(&header).data_segment_length();
        if length > self.machine.data_segment_max() {
            return Ok(());
        }
        if let Ok(InitiatorPdu::ScsiCommand(command)) = InitiatorPdu::parse(&header) {
            *self.unanswered.entry(command.itt).or_default() += 1;
        }
        let mut ahs = source.take(Bhs(&header).total_ahs_length()).to_vec();
        ahs.resize(Bhs(&header).total_ahs_length(), 0);
        let result = self.machine.on_header(&header, &ahs, self.now);
        self.drain(source);
        result?;
        let placement = edge::placement(&self.machine, length, |task| self.tasks[&task].buffer);
        self.receiving = match placement {
            Placement::Task { task, .. } => Some(task.0),
            _ => None,
        };
        // The edge continues to act while a long segment arrives.
        while length > 0 && source.rarely(4) {
            self.act(source);
        }
        if length > 0 {
            let inline;
            let received = if source.rarely(32) {
                Received::DigestError
            } else {
                inline = if placement == Placement::Inline { segment(source, length) } else { Vec::new() };
                edge::received(placement, &inline)
            };
            if let (Placement::Task { task, offset, length }, Received::Placed) = (placement, &received) {
                self.task(task).placed.push(offset..offset + length);
            }
            self.receiving = None;
            let result = self.machine.on_data(received, self.now);
            self.drain(source);
            result?;
        }
        if !source.rarely(4) {
            self.transmit(usize::MAX, source);
        }
        Ok(())
    }

    fn drain(&mut self, source: &mut Source<'_>) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Identify(_) => self
                    .machine
                    .identify(Ok(policy(Params { max_recv_data_segment_length: 8192, ..Params::default() }))),
                Event::SessionReady(_) => self.machine.accept_session(1),
                Event::Command(command) => {
                    let task = Task {
                        buffer: 0,
                        placed: Vec::new(),
                        owner: Owner::Offered,
                        expected: command.expected,
                        read: command.read,
                        write: command.write,
                    };
                    assert!(self.tasks.insert(command.task.0, task).is_none(), "a slot in use given again");
                    assert!(command.task.0 < self.machine.slots());
                    assert!(self.machine.extended_cdb(command.task).len() <= limits::EXTENDED_CDB_MAX);
                    if source.rarely(4) {
                        continue;
                    }
                    if command.write && source.rarely(2) {
                        self.request_data(command.task, source);
                    } else if source.rarely(3) {
                        self.complete(command.task, source);
                    }
                }
                Event::DataOutFront { task, bytes } => {
                    let known = self.task(task);
                    assert!(known.front() >= bytes, "{bytes} of {:?}", known.placed);
                }
                Event::DataOut { task } => {
                    let known = self.task(task);
                    known.owner = Owner::Edge;
                    let (front, buffer) = (known.front(), known.buffer);
                    assert!(front == buffer, "data with a hole: {:?} of {buffer}", known.placed);
                }
                Event::TaskDone { task } => {
                    let known = self.tasks.remove(&task.0).expect("a task ends once");
                    assert!(known.owner == Owner::Machine, "a task that the edge owns ended by itself");
                    assert!(self.receiving != Some(task.0), "its buffer is being received into");
                }
                Event::TaskManagement { request, .. } => {
                    // Some are refused by rules outside the machine.
                    if self.carries_out {
                        self.machine.carry_out(request);
                    }
                    self.carries_out = !self.carries_out;
                    self.management.push(request);
                }
                Event::SendTargets { request, .. } => self.text.push(request),
                Event::Logout { .. } | Event::LoginRefused { .. } => {}
                Event::Close => self.closed = true,
            }
        }
        assert!(self.management.len() <= limits::MANAGEMENT_MAX as usize);
    }

    fn slots(&self, is_wanted: impl Fn(&Task) -> bool) -> Vec<u32> {
        let wanted = self.tasks.iter().filter(|(_, task)| is_wanted(task));
        let mut slots: Vec<u32> = wanted.map(|(&slot, _)| slot).collect();
        slots.sort_unstable();
        slots
    }

    fn task(&mut self, task: TaskId) -> &mut Task {
        self.tasks.get_mut(&task.0).expect("an event of a task that exists")
    }

    fn request_data(&mut self, task: TaskId, source: &mut Source<'_>) {
        let aborted = self.machine.is_aborted(task);
        let known = self.task(task);
        let bytes = if source.rarely(4) { source.number() } else { known.expected };
        known.buffer = if known.write { bytes.min(known.expected) } else { 0 };
        // An aborted task stays with the edge: no data is collected for it.
        known.owner = if aborted { Owner::Edge } else { Owner::Machine };
        self.machine.want_data_out(task, bytes);
    }

    fn complete(&mut self, task: TaskId, source: &mut Source<'_>) {
        let known = self.task(task);
        let mut completion = Completion::default();
        if known.read && source.rarely(2) {
            let data_in = if source.rarely(4) { source.number() } else { known.expected };
            known.buffer = known.buffer.max(data_in.min(1 << 20));
            completion.data_in = data_in.min(1 << 20);
            completion.transfer = source.number().into();
        }
        known.owner = Owner::Machine;
        if source.rarely(3) {
            completion.status = 2;
            completion.sense = &[1; 300];
        }
        self.machine.complete(task, completion);
    }

    fn act(&mut self, source: &mut Source<'_>) {
        let choice = source.byte();
        let held = self.slots(|task| task.owner != Owner::Machine);
        match choice % 8 {
            0..=3 if !held.is_empty() => {
                let task = TaskId(source.pick(&held));
                match choice % 8 {
                    0 if self.task(task).owner == Owner::Offered => self.request_data(task, source),
                    1 => {
                        self.task(task).owner = Owner::Machine;
                        self.machine.abort(task);
                    }
                    _ => self.complete(task, source),
                }
            }
            4 if !self.tasks.is_empty() => {
                // Completion while its data is still being collected is permitted too.
                let task = TaskId(source.pick(&self.slots(|_| true)));
                if source.flag() {
                    self.task(task).owner = Owner::Machine;
                    self.machine.abort(task);
                } else {
                    self.machine.complete(task, Completion { status: 8, ..Completion::default() });
                    self.task(task).owner = Owner::Machine;
                }
            }
            5 | 6 if !self.management.is_empty() => {
                let request = self.management.remove(source.below(self.management.len()));
                let result = TmResult::from_code(source.byte() % 8);
                self.machine.complete_management(request, result);
            }
            7 if !self.text.is_empty() => {
                let request = self.text.remove(0);
                let address = TargetAddress::parse("192.0.2.1:3260,1").expect("an address");
                let record = TargetRecord {
                    name: iscsi_test::name(TARGET),
                    addresses: vec![address; source.below(4)],
                };
                self.machine.send_targets(request, &vec![record; source.below(40)]);
            }
            _ => {}
        }
        self.drain(source);
    }

    /// A header that fits the session, except for faults chosen by the source.
    fn header(&mut self, source: &mut Source<'_>) -> [u8; 48] {
        let itt = if source.rarely(32) { Itt(source.u32()) } else { Itt(source.below(12) as u32) };
        let immediate = source.rarely(8);
        let cmd_sn =
            if source.rarely(32) { self.cmd_sn.plus(source.byte().into()).minus(50) } else { self.cmd_sn };
        let exp_stat_sn = self.stat_sn.unwrap_or(StatSn(0));
        let choice = source.byte();
        match choice % 32 {
            0..=9 => self.command(source, itt, immediate, cmd_sn),
            10..=13 => DataOut {
                is_final: source.flag(),
                itt,
                ttt: Ttt::RESERVED,
                data_sn: DataSn(source.below(3) as u32),
                buffer_offset: source.number(),
                data_segment_length: source.number().min(8192),
                ..request(immediate, cmd_sn, exp_stat_sn)
            }
            .emit(),
            14..=20 if !self.r2ts.is_empty() => self.answer(source),
            14..=22 => TmRequest {
                function: TmFunction::from_code(source.byte() % 16),
                lun: u64::from(source.byte() % 2) << 48,
                itt,
                referenced_task_tag: Itt(source.below(12) as u32),
                ref_cmd_sn: self.cmd_sn.minus(source.below(4) as u32),
                ..request(immediate, cmd_sn, exp_stat_sn)
            }
            .emit(),
            23..=25 => {
                let open = self.text_tags.last().copied().filter(|_| !source.rarely(4));
                let (itt, ttt) = open.unwrap_or((itt, Ttt::RESERVED));
                let continues = source.rarely(4);
                let length = if source.rarely(4) { 0 } else { source.number().min(8192) };
                TextRequest {
                    is_final: !continues && !source.rarely(4),
                    continues,
                    itt,
                    ttt,
                    data_segment_length: length,
                    ..request(immediate, cmd_sn, exp_stat_sn)
                }
                .emit()
            }
            26 if source.rarely(8) => LogoutRequest {
                reason: LogoutReason::from_code(source.byte() % 4),
                itt,
                cid: u16::from(source.rarely(4)),
                ..request(immediate, cmd_sn, exp_stat_sn)
            }
            .emit(),
            27 => Snack {
                kind: SnackType::from_code(source.byte() % 4),
                itt,
                tag: source.u32(),
                beg_run: source.u32(),
                run_length: source.u32(),
                ..request(immediate, cmd_sn, exp_stat_sn)
            }
            .emit(),
            28 => source.array(),
            _ => {
                let ping = self.pings.pop();
                NopOut {
                    itt: if ping.is_some() { Itt::RESERVED } else { itt },
                    ttt: ping.unwrap_or(Ttt::RESERVED),
                    data_segment_length: source.number().min(8192),
                    ..request(immediate, cmd_sn, exp_stat_sn)
                }
                .emit()
            }
        }
    }

    fn command(&mut self, source: &mut Source<'_>, itt: Itt, immediate: bool, cmd_sn: CmdSn) -> [u8; 48] {
        let (read, write) = source.pick(&[(false, true), (true, false), (false, false), (true, true)]);
        let expected = source.number();
        let length = if write && source.flag() { source.number().min(expected).min(8192) } else { 0 };
        ScsiCommand {
            is_final: !source.rarely(3),
            read,
            write,
            attribute: Attribute::from_code(source.byte() % 8),
            lun: u64::from(source.byte() % 2) << 48,
            itt,
            expected_data_transfer_length: expected,
            total_ahs_length: if source.rarely(16) { source.byte() % 8 * 4 } else { 0 }.into(),
            data_segment_length: length,
            ..request(immediate, cmd_sn, StatSn(0))
        }
        .emit()
    }

    /// The data that an R2T requested, in one or several PDUs.
    fn answer(&mut self, source: &mut Source<'_>) -> [u8; 48] {
        let index = source.below(self.r2ts.len());
        let r2t = &mut self.r2ts[index];
        let left = r2t.desired_data_transfer_length;
        let length = left.min(if source.rarely(4) { source.number() } else { 8192 });
        // One byte beyond the request, with all else correct.
        let length = if source.rarely(16) { left.saturating_add(1) } else { length }.min(8192);
        let is_final = if source.rarely(16) { source.flag() } else { length == left };
        let wrong = source.rarely(16);
        let header = DataOut {
            is_final,
            itt: r2t.itt,
            ttt: r2t.ttt,
            // The stored R2T tracks its answer: here its R2TSN counts the PDUs sent.
            data_sn: if wrong { DataSn(source.byte().into()) } else { r2t.r2t_sn },
            buffer_offset: if wrong { source.number() } else { r2t.buffer_offset },
            data_segment_length: length,
            ..request(false, CmdSn(0), StatSn(0))
        }
        .emit();
        r2t.r2t_sn = r2t.r2t_sn.next();
        r2t.buffer_offset = r2t.buffer_offset.wrapping_add(length);
        r2t.desired_data_transfer_length = left.saturating_sub(length);
        if is_final {
            self.r2ts.remove(index);
        }
        header
    }

    /// Takes up to `count` PDUs from the machine and checks them against the contract.
    fn transmit(&mut self, count: usize, source: &mut Source<'_>) {
        for _ in 0..count {
            let Some(transmit) = self.machine.poll_transmit() else { break };
            edge::check_payload(&transmit, |task| self.tasks[&task].buffer);
            self.sent(TargetPdu::parse(&transmit.header).expect("what we send can be read"));
            self.drain(source);
        }
        self.drain(source);
    }

    fn answered(&mut self, itt: Itt) {
        let unanswered = self.unanswered.get_mut(&itt).expect("an answer to a command");
        *unanswered = unanswered.checked_sub(1).expect("one answer to each command");
    }

    /// Asserts that StatSN has no gaps and the command window never shrinks.
    fn numbers(&mut self, stat_sn: Option<StatSn>, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) {
        if let Some(stat_sn) = stat_sn {
            assert!(self.stat_sn.is_none_or(|last| last.next() == stat_sn), "StatSN leaves a gap");
            self.stat_sn = Some(stat_sn);
        }
        assert!(!exp_cmd_sn.precedes(self.cmd_sn), "ExpCmdSN goes back");
        assert!(!max_cmd_sn.precedes(self.max_cmd_sn), "MaxCmdSN goes back");
        self.cmd_sn = exp_cmd_sn;
        self.max_cmd_sn = max_cmd_sn;
    }

    fn sent(&mut self, pdu: TargetPdu) {
        match pdu {
            TargetPdu::LoginResponse(_) => {}
            TargetPdu::R2t(pdu) => {
                self.numbers(None, pdu.exp_cmd_sn, pdu.max_cmd_sn);
                assert!(pdu.desired_data_transfer_length > 0);
                self.r2ts.push(R2t { r2t_sn: DataSn(0), ..pdu });
                if self.r2ts.len() > R2TS_MAX {
                    self.r2ts.remove(0);
                }
            }
            TargetPdu::ScsiResponse(pdu) => {
                self.numbers(Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn);
                self.answered(pdu.itt);
            }
            TargetPdu::DataIn(pdu) => {
                self.numbers(pdu.status.map(|_| pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn);
                if pdu.status.is_some() {
                    self.answered(pdu.itt);
                }
            }
            TargetPdu::NopIn(pdu) => {
                let answer = !pdu.itt.is_reserved();
                self.numbers(answer.then_some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn);
                if !pdu.ttt.is_reserved() {
                    self.pings.push(pdu.ttt);
                }
            }
            TargetPdu::TmResponse(pdu) => self.numbers(Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            TargetPdu::TextResponse(pdu) => {
                self.numbers(Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn);
                self.text_tags.clear();
                self.text_tags.extend((!pdu.ttt.is_reserved()).then_some((pdu.itt, pdu.ttt)));
            }
            TargetPdu::LogoutResponse(pdu) => self.numbers(Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            TargetPdu::Reject(pdu) => self.numbers(Some(pdu.stat_sn), pdu.exp_cmd_sn, pdu.max_cmd_sn),
            TargetPdu::AsyncMessage(_) => unreachable!("this target sends none"),
        }
    }

    /// The connection is lost: everything is returned, twice, and every task ends exactly once.
    fn end(&mut self) {
        let nothing = &mut Source::new(&[]);
        for task in self.machine.tasks().collect::<Vec<_>>() {
            self.task(task).owner = Owner::Machine;
            self.machine.abort(task);
            self.machine.abort(task);
        }
        self.receiving = None;
        self.drain(nothing);
        assert!(self.machine.tasks().count() <= 1, "at most the one whose segment is being received");
        assert!(self.tasks.len() <= 1);
    }
}

/// A segment of text or ping data: words or any bytes, repeated to the length.
fn segment(source: &mut Source<'_>, length: u32) -> Vec<u8> {
    let mut text = Vec::new();
    match source.byte() % 8 {
        0..=2 => iscsi::text::emit("SendTargets", source.pick(&["All", "", TARGET]), &mut text),
        3..=5 => words::pair(source, &mut text),
        _ => text.extend_from_slice(source.some(64)),
    }
    if source.flag() {
        text.resize(length as usize, 0);
    }
    text.push(b'x');
    text.into_iter().cycle().take(length as usize).collect()
}
