//! Peers that send anything: no bytes panic a machine, place data outside a buffer, or lose a task.
//!
//! Headers are plausible ones with random fields, or such with random bits turned, so that they get past the first
//! check. The seed of a failure is printed.

mod support;

use std::collections::HashMap;

use iscsi::initiator::{self, Direction};
use iscsi::limits;
use iscsi::machine::{Fatal, Machine, Payload, Placement, Received, TaskId};
use iscsi::params::Params;
use iscsi::target::{self, AuthRequirement, Completion, Policy};
use iscsi::wire::{
    Attribute, Bhs, CmdSn, DataIn, DataOut, DataSn, InitiatorPdu, Isid, Itt, LoginRequest, LoginResponse,
    LoginStatus, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, NopIn, NopOut, R2t, Reject,
    RejectReason, Residual, ScsiCommand, ScsiResponse, ServiceResponse, Stage, StatSn, TargetPdu,
    TextRequest, TextResponse, TmFunction, TmRequest, TmResponse, TmResult, Ttt,
};
use support::{NOW, Random, name};

const SEGMENT_MAX: u32 = 8192;

fn turn_bits(random: &mut Random, header: &mut [u8; 48]) {
    if random.chance(4) {
        for _ in 0..=random.below(3) {
            header[random.below(48) as usize] ^= 1 << random.below(8);
        }
    }
}

/// Gives one PDU to a machine as an edge would; `Ok(None)` when the edge itself refuses it.
fn give<M: Machine>(
    machine: &mut M,
    random: &mut Random,
    header: &[u8; 48],
    buffers: &HashMap<u32, u32>,
) -> Result<(), Fatal> {
    let length = Bhs(header).data_segment_length();
    match machine.placement() {
        Placement::Nothing => assert_eq!(length, 0),
        placement => {
            assert!(length > 0 && length <= machine.data_segment_max());
            let inline: Vec<u8> = match random.below(3) {
                0 => (0..length).map(|_| random.next() as u8).collect(),
                1 => b"SendTargets=All\0".iter().copied().cycle().take(length as usize).collect(),
                _ => vec![0; length as usize],
            };
            let received = match placement {
                _ if random.chance(40) => Received::DigestError,
                Placement::Task { task, offset, length: keep } => {
                    assert!(keep > 0 && keep <= length);
                    let end = u64::from(offset) + u64::from(keep);
                    assert!(end <= u64::from(buffers[&task.0]), "placed outside the buffer");
                    Received::Placed
                }
                Placement::Inline => Received::Inline(&inline),
                Placement::Discard => Received::Discarded,
                Placement::Nothing => unreachable!(),
            };
            machine.on_data(received, NOW)?;
        }
    }
    Ok(())
}

struct HostileInitiator {
    random: Random,
    machine: target::Connection,
    /// Buffer length of each announced task.
    buffers: HashMap<u32, u32>,
    held: Vec<TaskId>,
    management: Vec<target::ManagementId>,
    r2ts: Vec<R2t>,
    cmd_sn: CmdSn,
    closed: bool,
}

impl HostileInitiator {
    fn drain(&mut self) {
        let machine = &mut self.machine;
        while let Some(event) = machine.poll_event() {
            match event {
                target::Event::Identify(_) => {
                    let params = Params { max_recv_data_segment_length: SEGMENT_MAX, ..Params::default() };
                    let policy = Policy {
                        auth: AuthRequirement::None,
                        portal_group_tag: 1,
                        target_alias: None,
                        params,
                    };
                    machine.identify(Ok(policy));
                }
                target::Event::SessionReady(_) => machine.accept_session(1),
                target::Event::Command(command) => {
                    assert!(self.buffers.insert(command.task.0, 0).is_none());
                    match self.random.below(4) {
                        0 => self.held.push(command.task),
                        1 => machine.complete(
                            command.task,
                            Completion { status: 2, sense: &[1; 300], ..Completion::default() },
                        ),
                        2 if command.read => {
                            let data_in =
                                self.random.below(u64::from(command.expected) * 2 + 2).min(100_000) as u32;
                            self.buffers.insert(command.task.0, data_in);
                            let transfer = self.random.next();
                            machine.complete(
                                command.task,
                                Completion { data_in, transfer, ..Completion::default() },
                            );
                        }
                        _ => {
                            let bytes = self.random.below(u64::from(command.expected) + 2) as u32;
                            self.buffers.insert(command.task.0, bytes.min(command.expected));
                            machine.want_data_out(command.task, bytes);
                        }
                    }
                }
                target::Event::DataOut { task } => self.held.push(task),
                target::Event::TaskDone { task } => {
                    self.buffers.remove(&task.0).expect("done once");
                    assert!(!self.held.contains(&task), "ended in our hands");
                }
                target::Event::TaskManagement { request, .. } => self.management.push(request),
                target::Event::SendTargets { request, .. } => machine.send_targets(request, &[]),
                target::Event::Logout { .. } => {}
                target::Event::Close => self.closed = true,
            }
        }
    }

    fn header(&mut self) -> [u8; 48] {
        let random = &mut self.random;
        let small = |random: &mut Random| Itt(random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, u32::MAX]));
        let sizes = [0, 0, 1, 4, 511, 512, 1024, 8192, 8193, 70_000];
        let (itt, length, flag) = (small(random), random.pick(&sizes), random.chance(2));
        let immediate = random.chance(4);
        let cmd_sn = if random.chance(10) {
            self.cmd_sn.plus(random.below(300) as u32).minus(50)
        } else {
            self.cmd_sn
        };
        let r2t = if self.r2ts.is_empty() { None } else { Some(random.pick(&self.r2ts)) };
        let exp_stat_sn = StatSn(random.next() as u32);
        let mut header = match random.below(16) {
            0..6 => ScsiCommand {
                immediate,
                is_final: flag,
                read: random.chance(2),
                write: random.chance(2),
                attribute: Attribute::Simple,
                lun: random.below(2),
                itt,
                expected_data_transfer_length: random.pick(&[0, 1, 512, 8192, 65536, 1 << 20, u32::MAX]),
                cmd_sn,
                exp_stat_sn,
                cdb: [0; 16],
                total_ahs_length: 0,
                data_segment_length: length,
            }
            .emit(),
            6..8 => DataOut {
                is_final: flag,
                lun: 0,
                itt,
                ttt: Ttt::RESERVED,
                exp_stat_sn,
                data_sn: DataSn(random.below(3) as u32),
                buffer_offset: random.pick(&[0, 1, 512, 1024, 8192, u32::MAX]),
                data_segment_length: length,
            }
            .emit(),
            8..12 => {
                let Some(r2t) = r2t else { return [0x1c; 48] };
                let length =
                    if random.chance(3) { length } else { r2t.desired_data_transfer_length.min(SEGMENT_MAX) };
                DataOut {
                    is_final: flag,
                    lun: 0,
                    itt: r2t.itt,
                    ttt: r2t.ttt,
                    exp_stat_sn,
                    data_sn: DataSn(random.pick(&[0, 0, 0, 1, 2])),
                    buffer_offset: r2t.buffer_offset.wrapping_add(random.pick(&[0, 0, 0, 8192, 1])),
                    data_segment_length: length,
                }
                .emit()
            }
            12 => TmRequest {
                immediate,
                function: TmFunction::from_code(random.below(10) as u8),
                lun: random.below(2),
                itt,
                referenced_task_tag: small(random),
                cmd_sn,
                exp_stat_sn,
                ref_cmd_sn: self.cmd_sn.minus(random.below(4) as u32),
                exp_data_sn: DataSn(0),
            }
            .emit(),
            13 => TextRequest {
                immediate,
                is_final: flag,
                continues: !flag && random.chance(2),
                lun: 0,
                itt,
                ttt: Ttt(random.pick(&[u32::MAX, 0, 1, 2, 3, 4])),
                cmd_sn,
                exp_stat_sn,
                data_segment_length: length,
            }
            .emit(),
            14 if random.chance(30) => LogoutRequest {
                immediate,
                reason: LogoutReason::from_code(random.below(4) as u8),
                itt,
                cid: 0,
                cmd_sn,
                exp_stat_sn,
            }
            .emit(),
            _ => NopOut {
                immediate,
                lun: 0,
                itt,
                ttt: Ttt(random.next() as u32),
                cmd_sn,
                exp_stat_sn,
                data_segment_length: length,
            }
            .emit(),
        };
        turn_bits(random, &mut header);
        header
    }

    fn step(&mut self) -> Result<(), Fatal> {
        let header = self.header();
        if Bhs(&header).data_segment_length() > self.machine.data_segment_max() {
            return Ok(());
        }
        let ahs: Vec<u8> = (0..Bhs(&header).total_ahs_length()).map(|_| self.random.below(3) as u8).collect();
        let result = self.machine.on_header(&header, &ahs, NOW);
        self.drain();
        result?;
        let result = give(&mut self.machine, &mut self.random, &header, &self.buffers);
        self.drain();
        result?;
        if !self.held.is_empty() && self.random.chance(2) {
            let index = self.random.below(self.held.len() as u64) as usize;
            let task = self.held.swap_remove(index);
            if self.random.chance(5) {
                self.machine.abort(task);
            } else {
                self.machine.complete(task, Completion::default());
            }
            self.drain();
        }
        if !self.management.is_empty() && self.random.chance(2) {
            let request = self.management.remove(0);
            self.machine.complete_management(request, TmResult::Complete);
            self.drain();
        }
        self.transmit();
        Ok(())
    }

    fn transmit(&mut self) {
        while let Some(transmit) = self.machine.poll_transmit() {
            let length = Bhs(&transmit.header).data_segment_length();
            match &transmit.payload {
                Payload::None => assert_eq!(length, 0),
                Payload::Bytes(bytes) => assert_eq!(length as usize, bytes.len()),
                Payload::Task { task, offset, length: bytes } => {
                    assert_eq!(length, *bytes);
                    assert!(offset + bytes <= self.buffers[&task.0], "sends beyond the buffer");
                }
            }
            match TargetPdu::parse(&transmit.header).unwrap() {
                TargetPdu::R2t(r2t) => {
                    self.cmd_sn = r2t.exp_cmd_sn;
                    self.r2ts.push(r2t);
                    if self.r2ts.len() > 8 {
                        self.r2ts.remove(0);
                    }
                }
                TargetPdu::ScsiResponse(response) => self.cmd_sn = response.exp_cmd_sn,
                TargetPdu::Reject(reject) => self.cmd_sn = reject.exp_cmd_sn,
                TargetPdu::NopIn(nop) => self.cmd_sn = nop.exp_cmd_sn,
                TargetPdu::DataIn(data) => self.cmd_sn = data.exp_cmd_sn,
                _ => {}
            }
            self.drain();
        }
    }
}

#[test]
fn target_survives_any_initiator() {
    let mut commands = 0;
    for seed in 0..600 {
        println!("seed {seed}");
        let config =
            target::Config { tasks_max: 6, solicited_bytes_max: 100_000, ..target::Config::default() };
        let mut hostile = HostileInitiator {
            random: Random(seed),
            machine: target::Connection::new(config, [0; 32], NOW),
            buffers: HashMap::new(),
            held: vec![],
            management: vec![],
            r2ts: vec![],
            cmd_sn: CmdSn(u32::MAX - 5),
            closed: false,
        };
        let open = "InitiatorName=iqn.2026-11.test:i TargetName=iqn.2026-11.test:t SessionType=Normal InitialR2T=No \
                    ImmediateData=Yes MaxBurstLength=16384 FirstBurstLength=8192 MaxOutstandingR2T=3 ";
        let text = open.replace(' ', "\0").into_bytes();
        let header = LoginRequest {
            transit: true,
            continues: false,
            csg: Stage::Operational,
            nsg: Stage::FullFeature,
            version_max: 0,
            version_min: 0,
            isid: Isid::random([0; 3], 0),
            tsih: 0,
            itt: Itt(0),
            cid: 0,
            cmd_sn: hostile.cmd_sn,
            exp_stat_sn: StatSn(0),
            data_segment_length: text.len() as u32,
        };
        hostile.machine.on_header(&header.emit(), &[], NOW).unwrap();
        hostile.machine.on_data(Received::Inline(&text), NOW).unwrap();
        hostile.drain();
        assert!(hostile.machine.is_full_feature());
        hostile.transmit();
        for _ in 0..400 {
            if hostile.closed || hostile.step().is_err() {
                break;
            }
            commands += 1;
        }
        // The connection ends: what the edge holds is given back, and every task ends exactly once.
        for task in hostile.machine.tasks().collect::<Vec<_>>() {
            hostile.held.retain(|&held| held != task);
            hostile.machine.abort(task);
            hostile.machine.abort(task);
        }
        hostile.drain();
        assert!(hostile.machine.tasks().count() <= 1, "at most the one whose segment is being received");
    }
    assert!(commands > 20_000, "only {commands} steps: the sessions end too early to test anything");
}

#[test]
fn initiator_survives_any_target() {
    let mut steps = 0;
    for seed in 0..600 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut login = iscsi::login::initiator::Config::normal(
            name("iqn.2026-11.test:i"),
            Isid::random([0; 3], 0),
            name("iqn.2026-11.test:t"),
        );
        login.cmd_sn = CmdSn(u32::MAX - 3);
        login.params.max_recv_data_segment_length = SEGMENT_MAX;
        let config = initiator::Config { tasks_max: 6, ..initiator::Config::new(login) };
        let mut machine = initiator::Connection::new(config, [0; 32], NOW).unwrap();
        let request = machine.poll_transmit().unwrap();
        let InitiatorPdu::LoginRequest(request) = InitiatorPdu::parse(&request.header).unwrap() else {
            panic!()
        };
        let keys =
            "InitialR2T=No ImmediateData=Yes MaxBurstLength=16384 FirstBurstLength=8192 MaxOutstandingR2T=3 ";
        let text = keys.replace(' ', "\0").into_bytes();
        let header = LoginResponse {
            transit: true,
            continues: false,
            csg: Stage::Operational,
            nsg: Stage::FullFeature,
            version_max: 0,
            version_active: 0,
            isid: request.isid,
            tsih: 1,
            itt: request.itt,
            stat_sn: StatSn(0),
            exp_cmd_sn: request.cmd_sn,
            max_cmd_sn: request.cmd_sn.plus(10),
            status: LoginStatus::Success,
            data_segment_length: text.len() as u32,
        };
        machine.on_header(&header.emit(), &[], NOW).unwrap();
        machine.on_data(Received::Inline(&text), NOW).unwrap();
        assert!(machine.is_full_feature());

        // Task slots with buffer length, their tags, what was read so far and the next DataSN.
        let mut buffers: HashMap<u32, u32> = HashMap::new();
        let mut known: Vec<(Itt, u32, u32, u32, bool)> = Vec::new();
        let mut others: Vec<(Itt, u8)> = Vec::new();
        for _ in 0..400 {
            while let Some(event) = machine.poll_event() {
                match event {
                    initiator::Event::Complete(outcome) => {
                        let length = buffers.remove(&outcome.task.0).expect("ends once");
                        known.retain(|known| known.0.0 % limits::TASKS_MAX != outcome.task.0);
                        assert!(outcome.data_in <= length && outcome.sense.len() <= limits::SENSE_MAX);
                    }
                    initiator::Event::Failed { task, .. } => {
                        buffers.remove(&task.0).expect("ends once");
                        known.retain(|known| known.0.0 % limits::TASKS_MAX != task.0);
                    }
                    _ => {}
                }
            }
            if machine.window() > 0 && random.chance(3) {
                let length = random.pick(&[0, 1, 512, 8192, 20_000, 100_000]);
                let direction = random.pick(&[
                    Direction::None,
                    Direction::In,
                    Direction::In,
                    Direction::Out,
                    Direction::Out,
                ]);
                let command = initiator::Command {
                    lun: 0,
                    cdb: [0; 16],
                    direction,
                    length,
                    attribute: Attribute::Simple,
                };
                let task = machine.submit(command).unwrap();
                assert!(
                    buffers.insert(task.0, if direction == Direction::None { 0 } else { length }).is_none()
                );
            }
            if random.chance(12) {
                machine.send_targets();
            }
            if random.chance(12) {
                machine.ping(NOW);
            }
            if random.chance(12) {
                let task = buffers.keys().min().map(|&slot| TaskId(slot));
                let _ = machine.task_management(TmFunction::from_code(random.below(8) as u8), 0, task);
            }
            if random.chance(300) {
                machine.logout(LogoutReason::CloseSession, NOW);
            }
            while let Some(transmit) = machine.poll_transmit() {
                if let Payload::Task { task, offset, length } = transmit.payload {
                    assert!(offset + length <= buffers[&task.0], "sends beyond the buffer");
                }
                let itt = Bhs(&transmit.header).itt();
                match InitiatorPdu::parse(&transmit.header).unwrap() {
                    InitiatorPdu::ScsiCommand(command) => {
                        known.push((itt, command.expected_data_transfer_length, 0, 0, command.read));
                        if known.len() > 8 {
                            known.remove(0);
                        }
                    }
                    _ => others.push((itt, transmit.header[0] & 0x3f)),
                }
                if others.len() > 8 {
                    others.remove(0);
                }
            }
            let mut header = {
                let stat_sn = StatSn(random.below(4) as u32);
                let (exp_cmd_sn, max_cmd_sn) = (request.cmd_sn, request.cmd_sn.plus(random.below(40) as u32));
                let index = random.below(known.len().max(1) as u64) as usize;
                // Mostly what was asked, in an order of our own; now and then anything.
                let wild = random.chance(60);
                let mut answered = |random: &mut Random, opcode: u8| {
                    let index = others.iter().position(|other| other.1 == opcode && !other.0.is_reserved());
                    index.map(|index| others.remove(index).0).or((wild && random.chance(2)).then_some(Itt(3)))
                };
                let residual = Residual::None;
                let size = random.pick(&[0, 1, 512, 8192]);
                match (random.below(12), known.get_mut(index)) {
                    (5 | 6, _) if !wild => continue,
                    (0..5, Some((itt, length, received, sn, true))) => {
                        let size = if wild { size } else { size.min(*length - *received) };
                        let header = DataIn {
                            is_final: random.chance(2),
                            acknowledge: false,
                            status: random.chance(8).then_some(0),
                            lun: 0,
                            itt: *itt,
                            ttt: Ttt::RESERVED,
                            stat_sn,
                            exp_cmd_sn,
                            max_cmd_sn,
                            data_sn: DataSn(*sn),
                            buffer_offset: *received,
                            residual,
                            data_segment_length: size,
                        };
                        *received = (*received + size).min(*length);
                        *sn += 1;
                        header.emit()
                    }
                    (0..5, Some((itt, length, received, sn, false))) if *length > *received || wild => {
                        let offset = *received;
                        let header = R2t {
                            lun: 0,
                            itt: *itt,
                            ttt: Ttt(random.next() as u32),
                            stat_sn,
                            exp_cmd_sn,
                            max_cmd_sn,
                            r2t_sn: DataSn(*sn),
                            buffer_offset: offset,
                            desired_data_transfer_length: (*length - offset).min(if wild {
                                16385
                            } else {
                                16384
                            }),
                        };
                        *sn += 1;
                        *received = (*received + 16384).min(*length);
                        header.emit()
                    }
                    (7, Some((itt, ..))) => ScsiResponse {
                        response: ServiceResponse::from_code(random.below(2) as u8),
                        status: 0,
                        itt: *itt,
                        snack_tag: 0,
                        stat_sn,
                        exp_cmd_sn,
                        max_cmd_sn,
                        exp_data_sn: DataSn(0),
                        bidi_residual: residual,
                        residual,
                        data_segment_length: size,
                    }
                    .emit(),
                    (8, _) => match answered(&mut random, 2) {
                        None => continue,
                        Some(other) => TmResponse {
                            result: TmResult::from_code(random.below(3) as u8),
                            information: 0,
                            itt: other,
                            stat_sn,
                            exp_cmd_sn,
                            max_cmd_sn,
                        }
                        .emit(),
                    },
                    (9, _) => match answered(&mut random, 4) {
                        None => continue,
                        Some(other) => TextResponse {
                            is_final: random.chance(2),
                            continues: false,
                            lun: 0,
                            itt: other,
                            ttt: Ttt(3),
                            stat_sn,
                            exp_cmd_sn,
                            max_cmd_sn,
                            data_segment_length: size,
                        }
                        .emit(),
                    },
                    (10, _) => match answered(&mut random, 6) {
                        None => continue,
                        Some(other) => LogoutResponse {
                            result: LogoutResult::Closed,
                            itt: other,
                            stat_sn,
                            exp_cmd_sn,
                            max_cmd_sn,
                            time2wait: 0,
                            time2retain: 0,
                        }
                        .emit(),
                    },
                    (11, _) if wild => Reject {
                        reason: RejectReason::from_code(random.below(12) as u8),
                        stat_sn,
                        exp_cmd_sn,
                        max_cmd_sn,
                        data_sn: DataSn(0),
                        data_segment_length: 48,
                    }
                    .emit(),
                    _ => NopIn {
                        lun: 0,
                        itt: if random.chance(2) { Itt::RESERVED } else { Itt(3) },
                        ttt: Ttt(random.next() as u32),
                        stat_sn,
                        exp_cmd_sn,
                        max_cmd_sn,
                        data_segment_length: size,
                    }
                    .emit(),
                }
            };
            if random.chance(20) {
                turn_bits(&mut random, &mut header);
            }
            if Bhs(&header).data_segment_length() > machine.data_segment_max() {
                continue;
            }
            steps += 1;
            if machine.on_header(&header, &[], NOW).is_err()
                || give(&mut machine, &mut random, &header, &buffers).is_err()
            {
                break;
            }
        }
    }
    assert!(steps > 5_000, "only {steps} steps: the sessions end too early to test anything");
}

#[test]
fn login_survives_anything() {
    for seed in 0..3000 {
        let mut random = Random(seed);
        let mut machine = target::Connection::new(target::Config::default(), [0; 32], NOW);
        for _ in 0..4 {
            let mut header: [u8; 48] = std::array::from_fn(|_| random.next() as u8);
            header[0] = 0x43;
            (header[4], header[5], header[6]) = (0, 0, header[6] & 0x0f);
            let result = machine.on_header(&header, &[], NOW);
            while let Some(event) = machine.poll_event() {
                if let target::Event::Identify(_) = event {
                    machine.identify(Err(LoginStatus::NotFound.into()));
                }
            }
            if result.is_err() || give(&mut machine, &mut random, &header, &HashMap::new()).is_err() {
                break;
            }
            while machine.poll_transmit().is_some() {}
        }
    }
}
