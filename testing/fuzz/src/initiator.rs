//! A session at the initiator, with a target that answers correctly, nearly correctly and wrongly.
//!
//! The input is a list of steps: a PDU from the target, or an action of the edge. Answers are built from the requests
//! (tags, offsets, sequence numbers) with faults in single fields. One violation ends a session, so faults are rare.

use std::collections::HashMap;
use std::time::Duration;

use iscsi::initiator::{self, Command, Direction, Event, TaskError};
use iscsi::limits;
use iscsi::machine::{Fatal, Machine, Placement, Received, TaskId};
use iscsi::wire::{
    AsyncEvent, AsyncMessage, Attribute, Bhs, CmdSn, DataIn, DataSn, InitiatorPdu, Itt, LogoutReason,
    LogoutResponse, LogoutResult, NopIn, Opcode, R2t, Reject, RejectReason, Residual, ScsiResponse,
    ServiceResponse, StatSn, TextResponse, TmFunction, TmResponse, TmResult, Ttt,
};

use iscsi_test::{NOW, answer};

use crate::{Source, edge, heap, words};

/// Heap memory of one session with few slots. A SendTargets response may have 1 MiB, and is briefly held as text and as
/// records.
const HEAP_MAX: usize = 4 << 20;
const STEPS_MAX: usize = 300;
const BUFFER_MAX: u32 = 1 << 20;
const SEGMENT_MAX: u32 = 8192;
const FIRST_BURST_MAX: u32 = 1 << 18;
/// Maximum number of requests, other than tasks, remembered for answers.
const REQUESTS_MAX: usize = 8;

pub fn initiator(bytes: &[u8]) {
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        let Some(mut session) = Session::log_in(&mut source) else { return };
        for _ in 0..STEPS_MAX {
            if source.is_empty() || session.over || session.step(&mut source).is_err() {
                break;
            }
        }
        session.drain();
    });
}

/// A task as the target sees it, after its command was sent.
struct Sent {
    itt: Itt,
    direction: Direction,
    length: u32,
    /// Bytes received or requested by R2T.
    done: u32,
    data_sn: DataSn,
}

struct Session {
    machine: initiator::Connection,
    now: Duration,
    /// Buffer lengths of all submitted tasks that have not ended.
    buffers: HashMap<u32, u32>,
    sent: Vec<Sent>,
    requests: Vec<(Opcode, Itt)>,
    cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    stat_sn: StatSn,
    managed: u32,
    over: bool,
}

impl Session {
    fn log_in(source: &mut Source<'_>) -> Option<Self> {
        let mut login = iscsi_test::login();
        login.cmd_sn = CmdSn(source.pick(&[1, u32::MAX - 3, 0x7fff_fffe]));
        login.params.max_recv_data_segment_length = SEGMENT_MAX;
        let config =
            initiator::Config { tasks_max: source.pick(&[6, 1, 30]), ..initiator::Config::new(login) };
        let mut machine = initiator::Connection::new(config, [0; 32], NOW).expect("a good configuration");
        let request = machine.poll_transmit().expect("a request");
        let InitiatorPdu::LoginRequest(request) = InitiatorPdu::parse(&request.header).expect("a header")
        else {
            panic!("a login begins with a login request");
        };
        let mut text = Vec::new();
        let mut emit = |key: &str, value: &str| iscsi::text::emit(key, value, &mut text);
        let bursts = ["16384", "512", "65536", "262144"];
        emit("InitialR2T", source.pick(&["No", "Yes"]));
        emit("ImmediateData", source.pick(&["Yes", "No"]));
        emit("MaxBurstLength", source.pick(&bursts));
        emit("FirstBurstLength", source.pick(&bursts));
        emit("MaxRecvDataSegmentLength", source.pick(&bursts));
        emit("MaxOutstandingR2T", source.pick(&["3", "1", "16"]));
        let max_cmd_sn =
            request.cmd_sn.plus(source.pick(&[10, 0, 40])).minus(source.byte().is_multiple_of(32).into());
        let response = iscsi_test::login_response(&request, StatSn(7), max_cmd_sn, &text);
        machine.on_header(&response.emit(), &[], NOW).expect("a login response");
        machine.on_data(Received::Inline(&text), NOW).ok()?;
        let mut session = Self {
            machine,
            now: NOW,
            buffers: HashMap::new(),
            sent: Vec::new(),
            requests: Vec::new(),
            cmd_sn: request.cmd_sn,
            max_cmd_sn,
            stat_sn: StatSn(8),
            managed: 0,
            over: false,
        };
        session.drain();
        session.machine.is_full_feature().then_some(session)
    }

    fn step(&mut self, source: &mut Source<'_>) -> Result<(), Fatal> {
        match source.byte() {
            0..=111 => {
                let Some(header) = self.header(source) else { return Ok(()) };
                let result = self.receive(header, source);
                self.transmit_mostly(source);
                result
            }
            112..=199 => {
                self.submit(source);
                self.transmit_mostly(source);
                Ok(())
            }
            200..=231 => {
                self.act(source);
                Ok(())
            }
            232..=247 => {
                let count = source.below(8);
                self.transmit(count);
                Ok(())
            }
            248.. => {
                self.now += Duration::from_millis(u64::from(source.byte()) * 100);
                let result = self.machine.on_timeout(self.now);
                self.drain();
                result
            }
        }
    }

    fn submit(&mut self, source: &mut Source<'_>) {
        let direction = source.pick(&[Direction::In, Direction::Out, Direction::None]);
        let length = source.number().min(BUFFER_MAX);
        let lun = u64::from(source.byte() % 2) << 48;
        let command = Command { lun, cdb: [0; 16], direction, length, attribute: Attribute::Simple };
        let open = self.machine.window() > 0;
        match self.machine.submit(command) {
            Ok(task) => {
                assert!(open && task.0 < self.machine.slots());
                let length = if direction == Direction::None { 0 } else { length };
                assert!(self.buffers.insert(task.0, length).is_none(), "a slot in use given again");
            }
            Err(_) => assert!(!open),
        }
    }

    fn act(&mut self, source: &mut Source<'_>) {
        match source.byte() % 16 {
            0..=3 => self.machine.send_targets(),
            4..=6 => self.machine.ping(self.now),
            7..=14 => {
                let mut slots: Vec<u32> = self.buffers.keys().copied().collect();
                slots.sort_unstable();
                let task = (!slots.is_empty()).then(|| TaskId(source.pick(&slots)));
                let function = TmFunction::from_code(source.byte() % 9);
                let lun = u64::from(source.byte() % 2) << 48;
                if self.machine.task_management(function, lun, task).is_ok() {
                    self.managed += 1;
                }
            }
            _ => self.machine.logout(LogoutReason::CloseSession, self.now),
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Complete(outcome) => {
                    let length = self.buffers.remove(&outcome.task.0).expect("a task ends once");
                    assert!(outcome.data_in <= length && outcome.sense.len() <= limits::SENSE_MAX);
                }
                Event::Failed { task, error } => {
                    self.buffers.remove(&task.0).expect("a task ends once");
                    let is_ending = !self.machine.is_full_feature() || self.machine.window() == 0;
                    assert!(match error {
                        TaskError::Aborted => self.managed > 0 || is_ending,
                        TaskError::Unsent => is_ending,
                        _ => true,
                    });
                }
                Event::ManagementDone { .. } => {}
                Event::Targets(targets) => {
                    assert!(targets.len() <= limits::TARGETS_MAX);
                    assert!(targets.iter().all(|target| target.addresses.len() <= limits::ADDRESSES_MAX));
                }
                Event::LoggedOut { result } => self.over = result == LogoutResult::Closed,
                Event::LoggedIn(_) | Event::Async(_) => {}
                Event::Redirect(_) | Event::LoginFailed(_) => unreachable!("the login was good"),
            }
        }
    }

    fn receive(&mut self, mut header: [u8; 48], source: &mut Source<'_>) -> Result<(), Fatal> {
        edge::flip(&mut header, source, 32);
        let length = Bhs(&header).data_segment_length();
        if length > self.machine.data_segment_max() {
            return Ok(());
        }
        self.window(Bhs(&header));
        let result = self.machine.on_header(&header, &[], self.now);
        self.drain();
        result?;
        let placement = edge::placement(&self.machine, length, |task| self.buffers[&task]);
        if length == 0 {
            return Ok(());
        }
        // The edge continues to act while a long segment arrives.
        while source.rarely(8) {
            self.act(source);
            if let Placement::Task { task, .. } = placement {
                assert!(self.buffers.contains_key(&task.0), "ended while its data arrives");
            }
        }
        let inline;
        let received = if source.rarely(64) {
            Received::DigestError
        } else {
            inline = if placement == Placement::Inline { segment(source, length) } else { Vec::new() };
            edge::received(placement, &inline)
        };
        let result = self.machine.on_data(received, self.now);
        self.drain();
        result
    }

    /// Reads the command window from a header (§4.2.2.1): it must not move back or be invalid.
    fn window(&mut self, bhs: Bhs<'_>) {
        let word = |at: usize| u32::from_be_bytes(bhs.0[at..at + 4].try_into().expect("four bytes"));
        let (exp_cmd_sn, max_cmd_sn) = (CmdSn(word(28)), CmdSn(word(32)));
        let sound = !max_cmd_sn.precedes(exp_cmd_sn.minus(1)) && max_cmd_sn.next().follows(self.cmd_sn);
        if bhs.opcode().is_ok_and(Opcode::is_from_target) && sound && max_cmd_sn.follows(self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// Takes up to `count` PDUs from the machine and checks them against the contract.
    fn transmit(&mut self, count: usize) {
        for _ in 0..count {
            let Some(transmit) = self.machine.poll_transmit() else { break };
            edge::check_payload(&transmit, |task| self.buffers[&task]);
            let pdu = InitiatorPdu::parse(&transmit.header).expect("our own PDU parses");
            self.note(&pdu, Bhs(&transmit.header));
            self.drain();
        }
        self.drain();
    }

    fn transmit_mostly(&mut self, source: &mut Source<'_>) {
        if !source.rarely(4) {
            self.transmit(usize::MAX);
        }
    }

    fn note(&mut self, pdu: &InitiatorPdu, bhs: Bhs<'_>) {
        if let InitiatorPdu::ScsiCommand(command) = pdu {
            assert_eq!(command.cmd_sn, self.cmd_sn, "CmdSN leaves a gap");
            assert!(!command.cmd_sn.follows(self.max_cmd_sn), "a command outside the window");
            self.cmd_sn = self.cmd_sn.next();
            let direction = match (command.read, command.write) {
                (true, _) => Direction::In,
                (_, true) => Direction::Out,
                _ => Direction::None,
            };
            assert!(command.data_segment_length <= FIRST_BURST_MAX);
            self.sent.push(Sent {
                itt: command.itt,
                direction,
                length: command.expected_data_transfer_length,
                done: 0,
                data_sn: DataSn(0),
            });
            if self.sent.len() > limits::TASKS_MAX as usize {
                self.sent.remove(0);
            }
        } else if !bhs.itt().is_reserved()
            && let Ok(opcode) = bhs.opcode()
            && opcode != Opcode::DataOut
        {
            self.requests.push((opcode, bhs.itt()));
            if self.requests.len() > REQUESTS_MAX {
                self.requests.remove(0);
            }
        }
    }

    /// The tag of a pending request of this kind; sometimes another tag.
    fn pending_tag(&mut self, source: &mut Source<'_>, opcode: Opcode) -> Option<Itt> {
        let index = self.requests.iter().position(|request| request.0 == opcode);
        match index {
            Some(index) if source.rarely(8) => Some(self.requests[index].1),
            Some(index) => Some(self.requests.remove(index).1),
            None => source.rarely(64).then(|| Itt(source.u32())),
        }
    }

    /// A header that fits the session, except for faults chosen by the source.
    fn header(&mut self, source: &mut Source<'_>) -> Option<[u8; 48]> {
        let wild = source.rarely(64);
        let stat_sn = if wild { StatSn(source.u32()) } else { self.stat_sn.take() };
        let exp_cmd_sn = self.cmd_sn;
        let max_cmd_sn =
            if wild { CmdSn(source.u32()) } else { self.cmd_sn.plus(u32::from(source.byte() % 48)).minus(1) };
        let size = source.number().min(SEGMENT_MAX);
        let residual = source.pick(&[Residual::None, Residual::Underflow(1), Residual::Overflow(u32::MAX)]);
        let index = source.below(self.sent.len().clamp(1, 256));
        let choice = source.byte() % 32;
        if let (0..=17, Some(task)) = (choice, self.sent.get_mut(index)) {
            let left = task.length - task.done;
            let data_sn = if wild { DataSn(source.byte().into()) } else { task.data_sn };
            let buffer_offset = if wild { source.number() } else { task.done };
            if choice < 14 && task.direction == Direction::In {
                let status = source.rarely(4).then_some(0);
                let length = match source.byte() {
                    255 => left.saturating_add(1).min(SEGMENT_MAX),
                    _ if wild => size,
                    _ => size.min(left),
                };
                task.done += length.min(left);
                task.data_sn = task.data_sn.next();
                let header = DataIn {
                    is_final: status.is_some() || source.flag(),
                    status,
                    itt: task.itt,
                    ttt: Ttt::RESERVED,
                    data_sn,
                    buffer_offset,
                    residual: if status.is_some() { residual } else { Residual::None },
                    data_segment_length: length,
                    ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
                };
                if status.is_some() && !source.rarely(16) {
                    self.sent.remove(index);
                }
                return Some(header.emit());
            }
            if choice < 14 && task.direction == Direction::Out && (left > 0 || wild) {
                let desired = source.number().clamp(1, 512 * 32).min(left.max(1));
                // One byte beyond the buffer, with all else correct.
                let desired = if source.rarely(16) { left.saturating_add(1) } else { desired };
                task.done += desired.min(left);
                task.data_sn = task.data_sn.next();
                let header = R2t {
                    itt: task.itt,
                    ttt: if wild { Ttt::RESERVED } else { Ttt(source.byte().into()) },
                    r2t_sn: data_sn,
                    buffer_offset,
                    desired_data_transfer_length: if wild { source.number() } else { desired },
                    ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
                };
                return Some(header.emit());
            }
            let response = ServiceResponse::from_code(u8::from(source.rarely(8)));
            let header = ScsiResponse {
                response,
                status: source.pick(&[0, 2, 8, 0x28]),
                itt: task.itt,
                exp_data_sn: data_sn,
                residual,
                data_segment_length: if source.flag() { size.min(300) } else { 0 },
                ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
            };
            if !source.rarely(16) {
                self.sent.remove(index);
            }
            return Some(header.emit());
        }
        Some(match choice {
            0..=20 => TmResponse {
                result: TmResult::from_code(source.pick(&[0, 1, 255, 5])),
                itt: self.pending_tag(source, Opcode::TmRequest)?,
                ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
            }
            .emit(),
            21..=23 => {
                let itt = self.pending_tag(source, Opcode::TextRequest)?;
                let is_final = source.flag();
                TextResponse {
                    is_final,
                    continues: !is_final,
                    itt,
                    ttt: if is_final { Ttt::RESERVED } else { Ttt(3) },
                    data_segment_length: size,
                    ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
                }
                .emit()
            }
            24 => LogoutResponse {
                result: LogoutResult::from_code(source.byte() % 4),
                itt: self.pending_tag(source, Opcode::LogoutRequest)?,
                ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
            }
            .emit(),
            25 => Reject {
                reason: RejectReason::from_code(source.byte() % 13),
                data_segment_length: source.pick(&[48, 0, 47, 60]),
                ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
            }
            .emit(),
            26 => AsyncMessage {
                event: AsyncEvent::from_code(source.byte() % 6),
                parameter1: source.u16(),
                parameter2: source.u16(),
                parameter3: source.u16(),
                data_segment_length: size,
                ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
            }
            .emit(),
            27 if wild => source.array(),
            _ => {
                let asked = self.pending_tag(source, Opcode::NopOut);
                NopIn {
                    itt: asked.unwrap_or(Itt::RESERVED),
                    ttt: if asked.is_some() || source.flag() { Ttt::RESERVED } else { Ttt(source.u32()) },
                    data_segment_length: size,
                    ..answer(stat_sn, exp_cmd_sn, max_cmd_sn)
                }
                .emit()
            }
        })
    }
}

/// A segment for the machine itself: targets, a rejected header, sense, or any bytes.
fn segment(source: &mut Source<'_>, length: u32) -> Vec<u8> {
    let length = length as usize;
    let mut bytes = Vec::new();
    match source.byte() % 4 {
        0 => {
            while bytes.len() < length && !source.is_empty() {
                let name = [
                    "TargetName=iqn.2026-11.test:t",
                    "TargetAddress=192.0.2.1:3260,1",
                    "TargetAddress=[::1]",
                ];
                bytes.extend_from_slice(source.pick(&name).as_bytes());
                bytes.push(0);
            }
        }
        1 => {
            let opcode =
                source.pick(&[Opcode::ScsiCommand, Opcode::DataOut, Opcode::TmRequest, Opcode::NopOut]);
            let mut header = [0; 48];
            header[0] = opcode as u8;
            header[16..20].copy_from_slice(&source.array::<4>());
            bytes.extend(header);
        }
        2 => words::pair(source, &mut bytes),
        _ => bytes.extend_from_slice(source.some(64)),
    }
    bytes.resize(length, 0);
    bytes
}
