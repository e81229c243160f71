//! The target against crafted headers: one test per clause of RFC 7143.

use iscsi::limits;
use iscsi::machine::{Fatal, Machine, Payload, Placement, Received, TargetRecord, TaskId, Transmit};
use iscsi::name::TargetAddress;
use iscsi::params::{Params, SessionType};
use iscsi::target::{Command, Completion, Config, Connection, Event, Scope};
use iscsi::wire::{
    Attribute, Bhs, CmdSn, DataIn, DataOut, DataSn, Itt, LoginRequest, LoginStatus, LogoutReason,
    LogoutRequest, LogoutResponse, LogoutResult, NopIn, NopOut, R2t, Reject, RejectReason, Residual,
    ScsiCommand, ScsiResponse, Snack, SnackType, StatSn, TargetPdu, TextRequest, TextResponse, TmFunction,
    TmRequest, TmResponse, TmResult, Ttt,
};
use iscsi_test::{NOW, Random, name, policy, request};
use std::time::Duration;

#[derive(Clone, Copy)]
enum Answer {
    /// Requests all data that the command offers.
    Want,
    /// Requests this many bytes.
    WantBytes(u32),
    /// Completes with GOOD at once.
    Complete,
    Wait,
}

struct Target {
    machine: Connection,
    answer: Answer,
    log: Vec<Event>,
    sent: Vec<TargetPdu>,
    payloads: Vec<Payload>,
    cmd_sn: CmdSn,
}

const LUN: u64 = 0x0001_0000_0000_0000;

fn keys(text: &str) -> Vec<u8> {
    text.replace(' ', "\0").into_bytes()
}

impl Target {
    fn new(text: &str) -> Self {
        Self::with(Config { tasks_max: 4, ping_interval: None, ..Config::default() }, text, CmdSn(1))
    }

    /// With the keys `OPEN_KEYS` and this answer to commands.
    fn open(answer: Answer) -> Self {
        Self { answer, ..Self::new(OPEN_KEYS) }
    }

    fn with(config: Config, text: &str, cmd_sn: CmdSn) -> Self {
        let machine = Connection::new(config, [3; 32], NOW);
        let mut target =
            Self { machine, answer: Answer::Want, log: vec![], sent: vec![], payloads: vec![], cmd_sn };
        let kind = if text.contains("Discovery") {
            ""
        } else {
            "SessionType=Normal TargetName=iqn.2026-11.test:target "
        };
        // Without a burst length in the request the target would offer its own, which takes another exchange.
        let bursts = if text.contains("Burst") { "" } else { "MaxBurstLength=65536 FirstBurstLength=65536 " };
        let text = keys(&format!("InitiatorName=iqn.2026-11.test:initiator {kind}{bursts}{text} "));
        let header = LoginRequest {
            cid: 9,
            exp_stat_sn: StatSn(u32::MAX - 1),
            ..iscsi_test::login_request(cmd_sn, &text)
        };
        target.give(&header.emit(), &text).unwrap();
        let TargetPdu::LoginResponse(response) = target.one() else { panic!() };
        assert_eq!((response.status, response.transit), (LoginStatus::Success, true));
        assert!(target.machine.is_full_feature());
        target.log.clear();
        target
    }

    fn drain(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match &event {
                Event::Identify(identity) => {
                    let params = Params {
                        initial_r2t: false,
                        max_burst_length: 65536,
                        first_burst_length: 65536,
                        max_recv_data_segment_length: 65536,
                        ..Params::default()
                    };
                    assert_eq!(identity.session_type == SessionType::Normal, identity.target_name.is_some());
                    self.machine.identify(Ok(policy(params)));
                }
                Event::SessionReady(_) => self.machine.accept_session(5),
                Event::Command(command) => match self.answer {
                    Answer::Want if command.write => {
                        self.machine.want_data_out(command.task, command.expected);
                    }
                    Answer::WantBytes(bytes) => self.machine.want_data_out(command.task, bytes),
                    Answer::Complete => self.machine.complete(command.task, Completion::default()),
                    Answer::Want | Answer::Wait => {}
                },
                _ => {}
            }
            self.log.push(event);
        }
    }

    fn give(&mut self, header: &[u8; 48], data: &[u8]) -> Result<Placement, Fatal> {
        self.give_ahs(header, &[], data, false)
    }

    fn give_ahs(
        &mut self,
        header: &[u8; 48],
        ahs: &[u8],
        data: &[u8],
        spoil: bool,
    ) -> Result<Placement, Fatal> {
        let result = self.machine.on_header(header, ahs, NOW);
        self.drain();
        let placement = self.machine.placement();
        if result.is_ok() && !data.is_empty() {
            let received = match placement {
                _ if spoil => Received::DigestError,
                Placement::Inline => Received::Inline(data),
                Placement::Task { .. } => Received::Placed,
                Placement::Discard => Received::Discarded,
                Placement::Nothing => panic!("no place for data"),
            };
            let result = self.machine.on_data(received, NOW);
            self.drain();
            self.flush();
            return result.map(|()| placement);
        }
        self.flush();
        result.map(|()| placement)
    }

    fn flush(&mut self) {
        while let Some(Transmit { header, payload, .. }) = self.machine.poll_transmit() {
            self.drain();
            self.sent.push(TargetPdu::parse(&header).unwrap());
            self.payloads.push(payload);
        }
        self.drain();
    }

    /// The one PDU sent since the last call.
    #[track_caller]
    fn one(&mut self) -> TargetPdu {
        assert_eq!(self.sent.len(), 1, "{:?}", self.sent);
        self.sent.pop().unwrap()
    }

    #[track_caller]
    fn silent(&mut self) {
        self.flush();
        assert!(self.sent.is_empty(), "{:?}", self.sent);
    }

    fn command(&mut self, command: ScsiCommand) -> Result<Placement, Fatal> {
        self.give(&command.emit(), bytes(command.data_segment_length))
    }

    #[track_caller]
    fn send(&mut self, itt: u32) {
        let command = self.cmd(itt);
        self.command(command).unwrap();
    }

    #[track_caller]
    fn send_read(&mut self, itt: u32, length: u32) {
        let command = self.read(itt, length);
        self.command(command).unwrap();
    }

    #[track_caller]
    fn send_write(&mut self, itt: u32, length: u32, immediate: u32, is_final: bool) -> Placement {
        let command = self.write(itt, length, immediate, is_final);
        self.command(command).unwrap()
    }

    fn cmd(&mut self, itt: u32) -> ScsiCommand {
        ScsiCommand {
            is_final: true,
            attribute: Attribute::Simple,
            lun: LUN,
            itt: Itt(itt),
            ..request(false, self.cmd_sn.take(), StatSn(0))
        }
    }

    fn read(&mut self, itt: u32, length: u32) -> ScsiCommand {
        ScsiCommand { read: true, expected_data_transfer_length: length, ..self.cmd(itt) }
    }

    fn write(&mut self, itt: u32, length: u32, immediate: u32, is_final: bool) -> ScsiCommand {
        let expected_data_transfer_length = length;
        let base = self.cmd(itt);
        ScsiCommand {
            write: true,
            is_final,
            expected_data_transfer_length,
            data_segment_length: immediate,
            ..base
        }
    }

    fn complete(&mut self, task: TaskId, completion: Completion<'_>) {
        self.machine.complete(task, completion);
        self.flush();
    }

    /// Receives a command and completes it with `data_in` bytes; sends nothing yet.
    fn complete_unsent(&mut self, command: ScsiCommand, data_in: u32) {
        self.machine.on_header(&command.emit(), &[], NOW).unwrap();
        self.drain();
        let task = self.last_command().task;
        self.machine
            .complete(task, Completion { data_in, transfer: data_in.into(), ..Completion::default() });
    }

    fn last_command(&self) -> Command {
        let found = self.log.iter().rev().find_map(|event| match event {
            Event::Command(command) => Some(*command),
            _ => None,
        });
        found.expect("a command")
    }

    #[track_caller]
    fn response(&mut self) -> ScsiResponse {
        match self.one() {
            TargetPdu::ScsiResponse(response) => response,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn r2t(&mut self) -> R2t {
        match self.one() {
            TargetPdu::R2t(r2t) => r2t,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn reject(&mut self) -> Reject {
        match self.one() {
            TargetPdu::Reject(reject) => reject,
            other => panic!("{other:?}"),
        }
    }

    /// Sense key, ASC and ASCQ of the response just taken.
    fn sense(&mut self) -> (u8, u8, u8) {
        let Some(Payload::Bytes(bytes)) = self.payloads.pop() else { panic!("no sense") };
        assert_eq!(bytes[..2], [0, 18]);
        (bytes[2 + 2], bytes[2 + 12], bytes[2 + 13])
    }

    fn data(
        &mut self,
        itt: u32,
        ttt: Ttt,
        sn: u32,
        offset: u32,
        length: u32,
        is_final: bool,
    ) -> Result<Placement, Fatal> {
        self.give(&data_out(itt, ttt, sn, offset, length, is_final), bytes(length))
    }

    fn done(&self) -> usize {
        self.log.iter().filter(|event| matches!(event, Event::TaskDone { .. })).count()
    }

    fn data_out(&self) -> usize {
        self.log.iter().filter(|event| matches!(event, Event::DataOut { .. })).count()
    }
}

fn data_out(itt: u32, ttt: Ttt, sn: u32, offset: u32, length: u32, is_final: bool) -> [u8; 48] {
    DataOut {
        is_final,
        lun: LUN,
        itt: Itt(itt),
        ttt,
        data_sn: DataSn(sn),
        buffer_offset: offset,
        data_segment_length: length,
        ..request(false, CmdSn(0), StatSn(0))
    }
    .emit()
}

static BYTES: [u8; 65536] = [0x5a; 65536];

fn bytes(length: u32) -> &'static [u8] {
    &BYTES[..length as usize]
}

const R2T_KEYS: &str =
    "InitialR2T=Yes ImmediateData=No MaxBurstLength=1024 FirstBurstLength=512 MaxOutstandingR2T=2";
const OPEN_KEYS: &str =
    "InitialR2T=No ImmediateData=Yes MaxBurstLength=4096 FirstBurstLength=2048 MaxOutstandingR2T=1";

const OPEN_KEYS_LONG: &str =
    "InitialR2T=No ImmediateData=Yes MaxBurstLength=65536 FirstBurstLength=65536 MaxOutstandingR2T=1";

// ---- window: §4.2.2.1 ----

#[test]
fn cmd_sn_too_high_is_ignored_with_its_data() {
    let mut target = Target::new(OPEN_KEYS);
    target.cmd_sn = CmdSn(1).plus(4);
    assert_eq!(target.send_write(1, 512, 512, true), Placement::Discard);
    assert_eq!(target.data(1, Ttt::RESERVED, 0, 512, 100, true), Ok(Placement::Discard));
    target.silent();
    assert!(target.log.is_empty());
    // The expected number is still accepted.
    target.answer = Answer::Complete;
    target.cmd_sn = CmdSn(1);
    target.send(2);
    assert_eq!(target.response().exp_cmd_sn, CmdSn(2));
}

#[test]
fn cmd_sn_too_low_or_twice_is_ignored() {
    let mut target = Target::open(Answer::Complete);
    for sn in [CmdSn(1).minus(1), CmdSn(0x8000_0001), CmdSn(1), CmdSn(1)] {
        let command = ScsiCommand { cmd_sn: sn, ..target.cmd(1) };
        target.command(command).unwrap();
    }
    assert_eq!(target.response().exp_cmd_sn, CmdSn(2));
}

#[test]
fn cmd_sn_gap_is_a_protocol_error() {
    let mut target = Target::new(OPEN_KEYS);
    target.cmd_sn = CmdSn(2);
    let command = target.cmd(1);
    assert!(matches!(target.command(command), Err(Fatal::Protocol(_))));
    assert_eq!(target.reject().reason, RejectReason::ProtocolError);
}

#[test]
fn window_closes_and_opens_over_the_wrap() {
    let config = Config { tasks_max: 3, ping_interval: None, ..Config::default() };
    let mut target = Target::with(config, OPEN_KEYS, CmdSn(u32::MAX - 1));
    target.answer = Answer::Wait;
    for itt in 0..3 {
        target.send(itt);
    }
    assert_eq!(target.log.len(), 3);
    target.send(3);
    assert_eq!(target.log.len(), 3, "beyond the window");
    let task = target.last_command().task;
    target.complete(task, Completion::default());
    let response = target.response();
    // Two tasks live, one slot free: the response that frees the slot offers it.
    assert_eq!((response.exp_cmd_sn, response.max_cmd_sn), (CmdSn(1), CmdSn(1)));
    assert_eq!(response.stat_sn, StatSn(u32::MAX));
    target.cmd_sn = CmdSn(1);
    target.send(4);
    assert_eq!(target.last_command().task, task, "the slot comes again after its TaskDone");
}

#[test]
fn immediate_commands_take_no_number_and_are_bounded() {
    let mut target = Target::open(Answer::Wait);
    for itt in 0..limits::IMMEDIATE_TASKS_MAX {
        let command = ScsiCommand { immediate: true, cmd_sn: CmdSn(1), ..target.cmd(itt) };
        target.command(command).unwrap();
        assert!(target.last_command().immediate);
    }
    let command = ScsiCommand { immediate: true, ..target.cmd(99) };
    target.command(command).unwrap();
    let reject = target.reject();
    assert_eq!(reject.reason, RejectReason::TooManyImmediateCommands);
    assert_eq!((reject.exp_cmd_sn, reject.max_cmd_sn), (CmdSn(1), CmdSn(4)));
    let Some(Payload::Bytes(header)) = target.payloads.pop() else { panic!() };
    assert_eq!(header, command.emit());
}

#[test]
fn tag_in_use_is_rejected() {
    let mut target = Target::open(Answer::Wait);
    for _ in 0..2 {
        target.send(7);
    }
    assert_eq!(target.reject().reason, RejectReason::TaskInProgress);
}

#[test]
fn extended_cdb_and_malformed_ahs() {
    let mut target = Target::open(Answer::Wait);
    let mut ahs = Vec::new();
    iscsi::wire::emit_extended_cdb(&[7; 16], &mut ahs);
    let command = ScsiCommand { total_ahs_length: ahs.len() as u16, ..target.cmd(1) };
    target.give_ahs(&command.emit(), &ahs, &[], false).unwrap();
    assert_eq!(target.machine.extended_cdb(target.last_command().task), [7; 16]);
    let command = ScsiCommand { total_ahs_length: 4, ..target.cmd(2) };
    target.give_ahs(&command.emit(), &[0xff, 0xff, 1, 0], &[], false).unwrap();
    assert_eq!(target.reject().reason, RejectReason::InvalidPduField);
}

// ---- data-out: §11.7, §11.8, §11.4.7.2 ----

#[test]
fn r2ts_in_bursts_and_bounds() {
    let mut target = Target::new(R2T_KEYS);
    target.send_write(1, 2500, 0, true);
    let [TargetPdu::R2t(first), TargetPdu::R2t(second)] = target.sent[..] else { panic!() };
    target.sent.clear();
    let seen = [first, second].map(|r| (r.r2t_sn.0, r.buffer_offset, r.desired_data_transfer_length, r.lun));
    assert_eq!(seen, [(0, 0, 1024, LUN), (1, 1024, 1024, LUN)], "MaxOutstandingR2T=2");
    let task = TaskId(0);
    let place = target.data(1, first.ttt, 0, 0, 512, false);
    assert_eq!(place, Ok(Placement::Task { task, offset: 0, length: 512 }));
    target.silent();
    target.data(1, first.ttt, 1, 512, 512, true).unwrap();
    let third = target.r2t();
    assert_eq!((third.r2t_sn.0, third.buffer_offset, third.desired_data_transfer_length), (2, 2048, 452));
    assert_ne!(third.ttt, first.ttt);
    // The R2Ts are answered in another order.
    target.data(1, third.ttt, 0, 2048, 452, true).unwrap();
    assert_eq!(target.data_out(), 0);
    target.data(1, second.ttt, 0, 1024, 1024, true).unwrap();
    assert_eq!(target.data_out(), 1);
    target.complete(task, Completion { transfer: 2500, ..Completion::default() });
    let response = target.response();
    assert_eq!((response.status, response.residual, response.exp_data_sn), (0, Residual::None, DataSn(3)));
    assert_eq!(target.done(), 1);
}

#[test]
fn data_without_a_gap_before_it_is_reported_as_it_arrives() {
    const PART: u32 = 32768;
    let mut target = Target::new("InitialR2T=Yes ImmediateData=No MaxBurstLength=65536 MaxOutstandingR2T=2");
    target.send_write(1, 5 * PART, 0, true);
    let [TargetPdu::R2t(first), TargetPdu::R2t(second)] = target.sent[..] else { panic!() };
    target.sent.clear();
    let fronts = |target: &Target| -> Vec<u32> {
        let front = |event: &Event| match event {
            Event::DataOutFront { task: TaskId(0), bytes } => Some(*bytes),
            _ => None,
        };
        target.log.iter().filter_map(front).collect()
    };
    target.data(1, second.ttt, 0, 2 * PART, PART, false).unwrap();
    target.data(1, first.ttt, 0, 0, PART, false).unwrap();
    assert_eq!(fronts(&target), [], "neither data behind a gap nor a few bytes");
    target.data(1, first.ttt, 1, PART, PART, true).unwrap();
    assert_eq!(fronts(&target), [2 * PART]);
    let third = target.r2t();
    target.data(1, third.ttt, 0, 4 * PART, PART, true).unwrap();
    target.data(1, second.ttt, 1, 3 * PART, PART, true).unwrap();
    assert_eq!(
        fronts(&target),
        [2 * PART],
        "what has overtaken the data before it is reported with all of it"
    );
    assert_eq!(target.data_out(), 1);
}

#[test]
fn all_data_is_reported_once() {
    let mut target = Target::new(OPEN_KEYS_LONG);
    target.send_write(1, 65536, 65536, true);
    assert!(matches!(target.log[..], [Event::Command(_), Event::DataOut { .. }]), "{:?}", target.log);
}

#[test]
fn r2t_window_over_tasks() {
    let config = Config { tasks_max: 8, solicited_bytes_max: 2048, ping_interval: None, ..Config::default() };
    let mut target = Target::with(config, R2T_KEYS, CmdSn(1));
    for itt in 0..4 {
        target.send_write(itt, 4096, 0, true);
    }
    assert_eq!(target.sent.len(), 2);
    let TargetPdu::R2t(r2t) = target.sent[0] else { panic!() };
    target.sent.clear();
    target.data(r2t.itt.0, r2t.ttt, 0, r2t.buffer_offset, 1024, true).unwrap();
    // The freed bytes go to a task that has had no turn.
    assert_ne!(target.r2t().itt, r2t.itt);
}

#[test]
fn immediate_and_unsolicited_data_then_r2t() {
    let mut target = Target::new(OPEN_KEYS);
    let task = TaskId(0);
    assert_eq!(target.send_write(1, 5000, 512, false), Placement::Task { task, offset: 0, length: 512 });
    // R2Ts solicit what lies beyond FirstBurstLength without waiting.
    let r2t = target.r2t();
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (2048, 2952));
    target.data(1, Ttt::RESERVED, 0, 512, 1000, false).unwrap();
    target.data(1, Ttt::RESERVED, 1, 1512, 536, true).unwrap();
    target.data(1, r2t.ttt, 0, 2048, 2952, true).unwrap();
    assert_eq!(target.data_out(), 1);
    target.silent();
}

#[test]
fn unsolicited_data_short_of_a_small_command_is_asked_for() {
    let mut target = Target::new(OPEN_KEYS);
    target.send_write(1, 1000, 100, false);
    target.data(1, Ttt::RESERVED, 0, 100, 100, true).unwrap();
    let r2t = target.r2t();
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (200, 800));
}

/// Each case is a write of 5000 bytes with one violation; none may end with GOOD, and the response waits for the last
/// F.
#[test]
fn data_out_violations_end_in_check_condition() {
    type Script = fn(&mut Target, R2t);
    let cases: [(&str, (u8, u8), Script); 8] = [
        ("data_sn_wrong", (0x47, 0x05), |t, r| {
            t.data(1, r.ttt, 27, 2048, 2952, true).unwrap();
        }),
        ("data_sn_skips", (0x47, 0x05), |t, r| {
            t.data(1, r.ttt, 0, 2048, 100, false).unwrap();
            t.data(1, r.ttt, 2, 2148, 100, false).unwrap();
            t.silent();
            t.data(1, r.ttt, 3, 2248, 100, true).unwrap();
        }),
        ("offset_below", (0x0c, 0x0d), |t, r| {
            t.data(1, r.ttt, 0, 0, 2952, true).unwrap();
        }),
        ("offset_above", (0x0c, 0x0d), |t, r| {
            t.data(1, r.ttt, 0, 4999, 2952, true).unwrap();
        }),
        ("longer_than_r2t", (0x0c, 0x0d), |t, r| {
            t.data(1, r.ttt, 0, 2048, 2953, true).unwrap();
        }),
        ("shorter_than_r2t", (0x0c, 0x0d), |t, r| {
            t.data(1, r.ttt, 0, 2048, 2951, true).unwrap();
        }),
        ("offset_wraps", (0x0c, 0x0d), |t, r| {
            t.data(1, r.ttt, 0, u32::MAX, 2, true).unwrap();
        }),
        ("data_digest", (0x47, 0x05), |t, r| {
            let data = data_out(1, r.ttt, 0, 2048, 2952, true);
            t.give_ahs(&data, &[], bytes(2952), true).unwrap();
            let TargetPdu::Reject(reject) = t.sent.remove(0) else { panic!() };
            assert_eq!(reject.reason, RejectReason::DataDigestError);
        }),
    ];
    for (case, (asc, ascq), script) in cases {
        let mut target = Target::new(OPEN_KEYS);
        target.send_write(1, 5000, 2048, true);
        let r2t = target.r2t();
        script(&mut target, r2t);
        let response = target.response();
        assert_eq!(response.status, 2, "{case}");
        assert_eq!(target.sense(), (0x0b, asc, ascq), "{case}");
        assert_eq!((target.data_out(), target.done()), (0, 1), "{case}");
    }
}

#[test]
fn unsolicited_violations_end_in_check_condition() {
    // (case, keys, immediate bytes, F of the command, [(DataSN, offset, length, F)], ASC/ASCQ)
    type Case = (&'static str, &'static str, u32, bool, &'static [(u32, u32, u32, bool)], (u8, u8));
    let cases: [Case; 8] = [
        ("immediate_not_negotiated", R2T_KEYS, 512, true, &[], (0x0c, 0x0c)),
        ("unsolicited_not_negotiated", R2T_KEYS, 0, false, &[(0, 0, 512, true)], (0x0c, 0x0c)),
        ("immediate_beyond_first_burst", OPEN_KEYS, 2049, true, &[], (0x0c, 0x0d)),
        ("beyond_first_burst", OPEN_KEYS, 2048, false, &[(0, 2048, 1, true)], (0x0c, 0x0d)),
        ("short_of_first_burst", OPEN_KEYS, 0, false, &[(0, 0, 2047, true)], (0x0c, 0x0d)),
        ("after_final", OPEN_KEYS, 512, true, &[(0, 512, 512, true)], (0x0c, 0x0c)),
        ("data_sn", OPEN_KEYS, 0, false, &[(27, 0, 2048, true)], (0x47, 0x05)),
        ("offset", OPEN_KEYS, 0, false, &[(0, 1, 2047, true)], (0x0c, 0x0d)),
    ];
    for (case, keys, immediate, is_final, data, (asc, ascq)) in cases {
        let mut target = Target::new(keys);
        target.send_write(1, 5000, immediate, is_final);
        for &(sn, offset, length, is_final) in data {
            target.data(1, Ttt::RESERVED, sn, offset, length, is_final).unwrap();
        }
        // The initiator answers the R2Ts already sent; only then the response follows.
        let r2ts: Vec<_> = target.sent.extract_if(.., |pdu| matches!(pdu, TargetPdu::R2t(_))).collect();
        for r2t in r2ts {
            let TargetPdu::R2t(r2t) = r2t else { unreachable!() };
            target.silent();
            let length = r2t.desired_data_transfer_length;
            assert_eq!(target.data(1, r2t.ttt, 0, r2t.buffer_offset, length, true), Ok(Placement::Discard));
        }
        assert_eq!(target.response().status, 2, "{case}");
        assert_eq!(target.sense(), (0x0b, asc, ascq), "{case}");
        assert_eq!(target.data_out(), 0, "{case}");
        target.answer = Answer::Complete;
        target.send(2);
        assert_eq!(target.response().status, 0, "{case}: the connection lives on");
    }
}

#[test]
fn data_with_a_stranger_s_transfer_tag() {
    let mut target = Target::new(R2T_KEYS);
    target.send_write(1, 512, 0, true);
    let r2t = target.r2t();
    assert_eq!(target.data(1, Ttt(r2t.ttt.0 ^ 0x0010_0000), 0, 0, 512, true), Ok(Placement::Discard));
    assert_eq!(target.reject().reason, RejectReason::InvalidPduField);
    // A tag of another task is unknown; its data is discarded.
    assert_eq!(target.data(2, r2t.ttt, 0, 0, 512, true), Ok(Placement::Discard));
    target.silent();
}

#[test]
fn early_status_waits_for_announced_data() {
    let mut target = Target::open(Answer::Complete);
    assert_eq!(target.send_write(1, 2048, 512, false), Placement::Discard);
    target.silent();
    assert_eq!(target.data(1, Ttt::RESERVED, 0, 512, 512, false), Ok(Placement::Discard));
    target.silent();
    target.data(1, Ttt::RESERVED, 1, 1024, 1024, true).unwrap();
    assert_eq!(target.response().residual, Residual::Underflow(2048));
}

#[test]
fn data_wanted_after_its_place_was_asked_for_fails_the_command() {
    let mut target = Target::open(Answer::Wait);
    let command = target.write(1, 512, 512, true);
    target.machine.on_header(&command.emit(), &[], NOW).unwrap();
    target.drain();
    assert_eq!(target.machine.placement(), Placement::Discard);
    target.machine.want_data_out(TaskId(0), 512);
    target.machine.on_data(Received::Discarded, NOW).unwrap();
    target.drain();
    assert_eq!(target.data_out(), 0, "a buffer in which nothing has arrived");
    target.flush();
    assert_eq!(target.response().status, 2);
}

#[test]
fn more_data_than_wanted_is_cut() {
    let mut target = Target::open(Answer::WantBytes(512));
    let task = TaskId(0);
    assert_eq!(target.send_write(1, 1500, 500, false), Placement::Task { task, offset: 0, length: 500 });
    let expected = Ok(Placement::Task { task, offset: 500, length: 12 });
    assert_eq!(target.data(1, Ttt::RESERVED, 0, 500, 500, false), expected);
    assert_eq!(target.data_out(), 1);
    target.machine.complete(task, Completion { transfer: 512, ..Completion::default() });
    target.silent();
    assert_eq!(target.data(1, Ttt::RESERVED, 1, 1000, 500, true), Ok(Placement::Discard));
    assert_eq!(target.response().residual, Residual::Underflow(988));
}

#[test]
fn write_wants_more_than_offered() {
    let mut target = Target::open(Answer::WantBytes(1024));
    target.send_write(1, 512, 512, true);
    assert_eq!(target.data_out(), 1);
    target.complete(TaskId(0), Completion { transfer: 1024, ..Completion::default() });
    assert_eq!(target.response().residual, Residual::Overflow(512));
    // A command without the W bit offers no Data-Out.
    target.send_read(2, 512);
    assert_eq!(target.data_out(), 2);
}

// ---- data-in ----

#[test]
fn data_in_sequences_and_collapsed_status() {
    let mut target = Target::new("MaxRecvDataSegmentLength=1024 MaxBurstLength=2048 FirstBurstLength=512");
    target.send_read(1, 5000);
    let done = Completion { data_in: 4500, transfer: 4500, ..Completion::default() };
    target.complete(TaskId(0), done);
    let data_in = |pdu: &TargetPdu| if let TargetPdu::DataIn(data) = pdu { *data } else { panic!() };
    let sent: Vec<DataIn> = target.sent.iter().map(data_in).collect();
    let fields = |d: &DataIn| (d.data_sn.0, d.buffer_offset, d.data_segment_length, d.is_final, d.status);
    let seen: Vec<_> = sent.iter().map(fields).collect();
    let expected = [
        (0, 0, 1024, false, None),
        (1, 1024, 1024, true, None),
        (2, 2048, 1024, false, None),
        (3, 3072, 1024, true, None),
        (4, 4096, 404, true, Some(0)),
    ];
    assert_eq!(seen, expected);
    // `end` is the end of the data sent, not of the data expected.
    for payload in &target.payloads[target.payloads.len() - 5..] {
        assert!(matches!(payload, Payload::Task { end: 4500, .. }), "{payload:?}");
    }
    assert_eq!(sent[4].residual, Residual::Underflow(500));
    assert_eq!(target.done(), 1);
}

#[test]
fn data_in_with_sense_is_followed_by_a_response() {
    let mut target = Target::new("");
    target.send_read(1, 1024);
    let done = Completion { status: 2, sense: &[0x70; 18], data_in: 512, transfer: 512 };
    target.complete(TaskId(0), done);
    let [TargetPdu::DataIn(data), TargetPdu::ScsiResponse(response)] = target.sent[..] else { panic!() };
    assert_eq!((data.status, data.is_final), (None, true));
    assert_eq!((response.status, response.exp_data_sn), (2, DataSn(1)));
    assert_eq!((response.residual, response.data_segment_length), (Residual::Underflow(512), 20));
}

#[test]
fn read_residuals() {
    // (expected, R bit, transfer, residual)
    for (expected, read, transfer, residual) in [
        (0, true, 512, Residual::Overflow(512)),
        (0, false, 512, Residual::Overflow(512)),
        (512, false, 512, Residual::Overflow(512)),
        (10_000, true, 512, Residual::Underflow(9488)),
        (200, true, 512, Residual::Overflow(312)),
        (512, true, 512, Residual::None),
        (512, true, u64::from(u32::MAX) * 2, Residual::Overflow(u32::MAX)),
    ] {
        let mut target = Target::new("");
        let command = ScsiCommand { read, ..target.read(1, expected) };
        target.command(command).unwrap();
        let data_in = u32::try_from(transfer).unwrap_or(512);
        target.complete(TaskId(0), Completion { data_in, transfer, ..Completion::default() });
        let (seen, length) = match target.one() {
            TargetPdu::DataIn(data) => (data.residual, data.data_segment_length),
            TargetPdu::ScsiResponse(response) => (response.residual, 0),
            other => panic!("{other:?}"),
        };
        assert_eq!(seen, residual);
        assert_eq!(length, if read { data_in.min(expected) } else { 0 });
    }
}

#[test]
fn bidirectional_command_has_two_residuals() {
    let mut target = Target::open(Answer::Wait);
    let mut ahs = Vec::new();
    iscsi::wire::emit_bidi_read_length(1000, &mut ahs);
    let base = target.write(1, 512, 0, true);
    let command = ScsiCommand { read: true, total_ahs_length: 8, ..base };
    target.give_ahs(&command.emit(), &ahs, &[], false).unwrap();
    let done = Completion { data_in: 2000, transfer: 2000, ..Completion::default() };
    target.complete(TaskId(0), done);
    let [TargetPdu::DataIn(data), TargetPdu::ScsiResponse(response)] = target.sent[..] else { panic!() };
    assert_eq!((data.status, data.data_segment_length), (None, 1000));
    let residuals = (response.residual, response.bidi_residual);
    assert_eq!(residuals, (Residual::Underflow(512), Residual::Overflow(1000)));
}

#[test]
fn small_answers_pass_large_ones() {
    let mut target = Target::new("MaxRecvDataSegmentLength=65536");
    target.answer = Answer::Wait;
    let next =
        |target: &mut Target| TargetPdu::parse(&target.machine.poll_transmit().unwrap().header).unwrap();
    let command = target.read(1, 4 << 20);
    target.complete_unsent(command, 4 << 20);
    assert!(matches!(next(&mut target), TargetPdu::DataIn(_)));
    let command = target.cmd(2);
    target.complete_unsent(command, 0);
    assert!(matches!(next(&mut target), TargetPdu::ScsiResponse(_)));
    assert!(matches!(next(&mut target), TargetPdu::DataIn(_)));
}

#[test]
fn two_reads_take_turns_and_keep_their_order() {
    let mut target = Target::new("MaxRecvDataSegmentLength=65536");
    target.answer = Answer::Wait;
    for itt in 0..2 {
        let command = target.read(itt, 1 << 20);
        target.complete_unsent(command, 1 << 20);
    }
    target.flush();
    let (mut run, mut last, mut offsets) = (0, Itt(0), [0, 0]);
    for pdu in &target.sent {
        let TargetPdu::DataIn(data) = pdu else { panic!() };
        run = if data.itt == last { run + data.data_segment_length } else { data.data_segment_length };
        last = data.itt;
        assert!(run <= limits::TURN_BYTES || offsets.contains(&(1 << 20)));
        let offset = &mut offsets[data.itt.0 as usize];
        assert_eq!((data.buffer_offset, data.data_sn.0), (*offset, *offset / 65536));
        *offset += data.data_segment_length;
    }
    assert_eq!(offsets, [1 << 20; 2]);
}

// ---- task management: §11.5, §11.6 ----

impl Target {
    fn manage(&mut self, function: TmFunction, itt: u32, reference: u32, ref_cmd_sn: CmdSn) {
        let header = TmRequest {
            function,
            lun: LUN,
            itt: Itt(itt),
            referenced_task_tag: Itt(reference),
            ref_cmd_sn,
            ..request(true, self.cmd_sn, StatSn(0))
        };
        self.give(&header.emit(), &[]).unwrap();
    }

    #[track_caller]
    fn managed(&mut self) -> TmResult {
        match self.one() {
            TargetPdu::TmResponse(TmResponse { result, .. }) => result,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn abort_task_waits_for_the_edge() {
    let mut target = Target::new(OPEN_KEYS);
    target.send_read(1, 512);
    target.manage(TmFunction::AbortTask, 100, 1, CmdSn(1));
    let task = TaskId(0);
    let Some(Event::TaskManagement { request, function, referenced, .. }) = target.log.pop() else {
        panic!()
    };
    assert_eq!((function, referenced), (TmFunction::AbortTask, Some(task)));
    target.machine.carry_out(request);
    assert!(target.machine.is_aborted(task));
    target.machine.complete_management(request, TmResult::Complete);
    target.silent();
    target.complete(task, Completion { data_in: 512, transfer: 512, ..Completion::default() });
    assert_eq!(target.managed(), TmResult::Complete);
    assert_eq!(target.done(), 1);
}

#[test]
fn abort_task_that_collects_data_ends_at_once() {
    let mut target = Target::new(R2T_KEYS);
    target.send_write(1, 512, 0, true);
    let r2t = target.r2t();
    target.manage(TmFunction::AbortTask, 100, 1, CmdSn(1));
    assert_eq!(target.managed(), TmResult::Complete);
    assert_eq!(target.done(), 1);
    assert_eq!(target.data(1, r2t.ttt, 0, 0, 512, true), Ok(Placement::Discard));
    target.silent();
}

#[test]
fn abort_task_unknown() {
    let mut target = Target::open(Answer::Complete);
    target.send(1);
    target.sent.clear();
    // The task has finished: RefCmdSN is below the window.
    target.manage(TmFunction::AbortTask, 100, 1, CmdSn(1));
    assert_eq!(target.managed(), TmResult::TaskDoesNotExist);
    // RefCmdSN never arrived, is within the window and below the request's CmdSN: considered received.
    target.cmd_sn = CmdSn(3);
    target.manage(TmFunction::AbortTask, 101, 2, CmdSn(2));
    assert_eq!(target.managed(), TmResult::Complete);
    target.send(3);
    assert_eq!(target.response().status, 0, "CmdSN 2 counts as received");
}

#[test]
fn a_function_that_is_refused_ends_no_task() {
    let mut target = Target::open(Answer::Wait);
    target.send(1);
    for (function, itt) in [(TmFunction::LogicalUnitReset, 100), (TmFunction::TargetWarmReset, 101)] {
        target.manage(function, itt, u32::MAX, CmdSn(0));
        let Some(Event::TaskManagement { request, .. }) = target.log.pop() else { panic!() };
        target.machine.complete_management(request, TmResult::AuthorizationFailed);
        target.flush();
        assert_eq!(target.managed(), TmResult::AuthorizationFailed);
        assert!(!target.machine.is_aborted(TaskId(0)));
        // A `carry_out` after `complete_management` has no effect.
        target.machine.carry_out(request);
        assert!(!target.machine.is_aborted(TaskId(0)));
    }
    target.complete(TaskId(0), Completion::default());
    assert_eq!(target.response().itt, Itt(1));
}

#[test]
fn lun_reset_takes_this_lun_s_tasks_only() {
    let mut target = Target::open(Answer::Wait);
    for (itt, lun) in [(1, LUN), (2, LUN), (3, 0)] {
        let command = ScsiCommand { lun, ..target.cmd(itt) };
        target.command(command).unwrap();
    }
    let mut tasks: Vec<_> = target.machine.tasks_on(LUN).collect();
    tasks.sort();
    assert_eq!(tasks, [TaskId(0), TaskId(1)]);
    target.manage(TmFunction::LogicalUnitReset, 100, u32::MAX, CmdSn(0));
    let Some(Event::TaskManagement { request, .. }) = target.log.pop() else { panic!() };
    target.machine.carry_out(request);
    target.machine.abort(TaskId(0));
    target.machine.complete_management(request, TmResult::Complete);
    target.silent();
    target.machine.abort(TaskId(1));
    target.flush();
    assert_eq!(target.managed(), TmResult::Complete);
    target.complete(TaskId(2), Completion::default());
    assert_eq!(target.response().itt, Itt(3));
}

#[test]
fn management_unsupported_and_bounded() {
    let mut target = Target::new(OPEN_KEYS);
    for (function, result) in [
        (TmFunction::TaskReassign, TmResult::ReassignmentNotSupported),
        (TmFunction::QueryTask, TmResult::NotSupported),
        (TmFunction::Other(99), TmResult::NotSupported),
    ] {
        target.manage(function, 1, 1, CmdSn(0));
        assert_eq!(target.managed(), result);
    }
    for itt in 0..limits::MANAGEMENT_MAX {
        target.manage(TmFunction::ClearAca, itt, u32::MAX, CmdSn(0));
    }
    target.silent();
    target.manage(TmFunction::ClearAca, 50, u32::MAX, CmdSn(0));
    assert_eq!(target.reject().reason, RejectReason::TooManyImmediateCommands);
}

// ---- text, NOP, logout, reject ----

impl Target {
    #[track_caller]
    fn text(&mut self, itt: u32, ttt: Ttt, continues: bool, data: &[u8]) {
        self.give(&text_request(itt, ttt, continues, data), data).unwrap();
    }

    #[track_caller]
    fn text_response(&mut self) -> (TextResponse, Vec<u8>) {
        let TargetPdu::TextResponse(response) = self.one() else { panic!() };
        let Some(payload) = self.payloads.pop() else { panic!() };
        (response, if let Payload::Bytes(bytes) = payload { bytes } else { vec![] })
    }
}

fn text_request(itt: u32, ttt: Ttt, continues: bool, data: &[u8]) -> [u8; 48] {
    TextRequest {
        is_final: !continues,
        continues,
        itt: Itt(itt),
        ttt,
        data_segment_length: data.len() as u32,
        ..request(true, CmdSn(1), StatSn(0))
    }
    .emit()
}

#[test]
fn send_targets_in_pieces() {
    let mut target = Target::new("SessionType=Discovery MaxRecvDataSegmentLength=512");
    // The request in two PDUs (§6.2).
    target.text(4, Ttt::RESERVED, true, b"SendTar");
    let (ack, data) = target.text_response();
    assert!(!ack.is_final && !ack.ttt.is_reserved() && data.is_empty());
    target.text(4, ack.ttt, false, b"gets=All\0");
    let Some(Event::SendTargets { request, scope }) = target.log.pop() else { panic!() };
    assert_eq!(scope, Scope::All);
    let addresses = vec![TargetAddress::parse("[::1]:3260,1").unwrap()];
    let record =
        |i| TargetRecord { name: name(&format!("iqn.2026-11.test:disk{i}")), addresses: addresses.clone() };
    target.machine.send_targets(request, &(0..40).map(record).collect::<Vec<_>>());
    target.flush();
    let mut answer = Vec::new();
    loop {
        let (response, data) = target.text_response();
        answer.extend(data);
        assert_eq!(response.is_final, !response.continues);
        if response.is_final {
            assert!(response.ttt.is_reserved());
            break;
        }
        target.text(4, response.ttt, false, &[]);
    }
    let text = String::from_utf8(answer).unwrap();
    assert_eq!(text.matches("TargetName=iqn.2026-11.test:disk").count(), 40);
    assert_eq!(text.matches("TargetAddress=[::1]:3260,1\0").count(), 40);
}

#[test]
fn text_keys_and_limits() {
    let mut target = Target::new("");
    target.text(1, Ttt::RESERVED, false, b"SendTargets=All\0X-foo=1\0");
    let (response, data) = target.text_response();
    assert!(response.is_final);
    assert_eq!(data, b"SendTargets=Reject\0X-foo=NotUnderstood\0");
    // Keys fixed by the login are rejected.
    for (key, value) in [("DataDigest", "None"), ("InitiatorName", "iqn.2000-01.a:b"), ("AuthMethod", "None")]
    {
        target.text(1, Ttt::RESERVED, false, format!("{key}={value}\0").as_bytes());
        assert_eq!(target.text_response().1, format!("{key}=Reject\0").as_bytes());
    }
    target.text(2, Ttt::RESERVED, false, b"SendTargets=\0");
    assert!(matches!(target.log.pop(), Some(Event::SendTargets { scope: Scope::This, .. })));
    target.text(3, Ttt(77), false, b"SendTargets=\0");
    assert_eq!(target.reject().reason, RejectReason::InvalidPduField);
    target.text(4, Ttt::RESERVED, false, b"no pair\0");
    assert_eq!(target.reject().reason, RejectReason::InvalidPduField);
    target.text(5, Ttt::RESERVED, true, bytes(limits::TEXT_REQUEST_MAX as u32 + 1));
    assert_eq!(target.reject().reason, RejectReason::InvalidPduField);
    let mut header = text_request(6, Ttt::RESERVED, false, &[]);
    header[1] |= 0x40;
    target.give(&header, &[]).unwrap();
    assert_eq!(target.reject().reason, RejectReason::InvalidPduField);
}

#[test]
fn discovery_session_takes_no_commands() {
    let mut target = Target::new("SessionType=Discovery");
    target.send(1);
    assert_eq!(target.reject().reason, RejectReason::CommandNotSupported);
    target.manage(TmFunction::LogicalUnitReset, 1, u32::MAX, CmdSn(0));
    assert_eq!(target.reject().reason, RejectReason::CommandNotSupported);
    assert!(target.log.is_empty());
}

fn pong(ttt: Ttt) -> NopOut {
    NopOut { itt: Itt::RESERVED, ttt, ..request(true, CmdSn(1), StatSn(0)) }
}

#[test]
fn ping_is_echoed_and_cut() {
    let mut target = Target::new("MaxRecvDataSegmentLength=8192");
    for (length, echoed) in [(0, 0), (5, 5), (8192, limits::PING_DATA_MAX)] {
        let header = NopOut {
            immediate: false,
            itt: Itt(3),
            cmd_sn: target.cmd_sn.take(),
            data_segment_length: length,
            ..pong(Ttt::RESERVED)
        };
        target.give(&header.emit(), bytes(length)).unwrap();
        let TargetPdu::NopIn(NopIn { itt, ttt, exp_cmd_sn, data_segment_length, .. }) = target.one() else {
            panic!()
        };
        assert_eq!((itt, ttt, exp_cmd_sn), (Itt(3), Ttt::RESERVED, target.cmd_sn));
        assert_eq!(data_segment_length as usize, echoed);
    }
}

#[test]
fn silence_is_pinged_and_ends() {
    let second = Duration::from_secs(1);
    let config = Config { ping_interval: Some(10 * second), ping_timeout: 4 * second, ..Config::default() };
    let mut target = Target::with(config, "", CmdSn(1));
    assert_eq!(target.machine.poll_timeout(), Some(NOW + 10 * second));
    target.machine.on_timeout(NOW + 9 * second).unwrap();
    target.silent();
    target.machine.on_timeout(NOW + 10 * second).unwrap();
    target.flush();
    let TargetPdu::NopIn(ping) = target.one() else { panic!() };
    assert!(ping.itt.is_reserved() && !ping.ttt.is_reserved());
    let stat_sn = ping.stat_sn;
    assert_eq!(target.machine.on_timeout(NOW + 13 * second), Ok(()));
    target.machine.on_header(&pong(ping.ttt).emit(), &[], NOW + 13 * second).unwrap();
    target.silent();
    assert_eq!(target.machine.poll_timeout(), Some(NOW + 23 * second));
    target.machine.on_timeout(NOW + 23 * second).unwrap();
    target.flush();
    let TargetPdu::NopIn(ping) = target.one() else { panic!() };
    assert_eq!(ping.stat_sn, stat_sn, "a target's ping takes no StatSN");
    assert_eq!(target.machine.on_timeout(NOW + 27 * second), Err(Fatal::PingTimeout));
}

#[test]
fn login_is_timed() {
    let mut machine = Connection::new(Config::default(), [0; 32], NOW);
    let due = machine.poll_timeout().unwrap();
    assert_eq!(machine.on_timeout(due - Duration::from_nanos(1)), Ok(()));
    assert_eq!(machine.on_timeout(due), Err(Fatal::LoginTimeout));
}

#[test]
fn logout_waits_for_tasks_and_closes() {
    let mut target = Target::new(OPEN_KEYS);
    target.send_read(1, 512);
    let header =
        |reason, cid, itt| LogoutRequest { reason, itt: Itt(itt), cid, ..request(true, CmdSn(2), StatSn(0)) };
    for (reason, cid, result) in [
        (LogoutReason::CloseConnection, 8, LogoutResult::CidNotFound),
        (LogoutReason::RemoveConnectionForRecovery, 9, LogoutResult::RecoveryNotSupported),
    ] {
        target.give(&header(reason, cid, 5).emit(), &[]).unwrap();
        let TargetPdu::LogoutResponse(response) = target.one() else { panic!() };
        assert_eq!(response.result, result);
    }
    target.give(&header(LogoutReason::CloseSession, 0, 6).emit(), &[]).unwrap();
    target.silent();
    assert!(target.machine.is_aborted(TaskId(0)));
    target.complete(TaskId(0), Completion::default());
    let TargetPdu::LogoutResponse(LogoutResponse { result, itt, .. }) = target.one() else { panic!() };
    assert_eq!((result, itt), (LogoutResult::Closed, Itt(6)));
    assert!(matches!(target.log.last(), Some(Event::Close)));
    target.send(9);
    target.silent();
}

fn with_opcode(first: u8) -> [u8; 48] {
    let mut header = [0; 48];
    header[0] = first;
    header
}

#[test]
fn rejects() {
    let mut target = Target::new(OPEN_KEYS);
    let snack =
        Snack { kind: SnackType::Status, itt: Itt(1), tag: u32::MAX, ..request(false, CmdSn(0), StatSn(0)) };
    target.give(&snack.emit(), &[]).unwrap();
    assert_eq!(target.reject().reason, RejectReason::SnackReject);
    target.give(&with_opcode(0x5c), &[]).unwrap();
    assert_eq!(target.reject().reason, RejectReason::CommandNotSupported);
    for opcode in [0x03, 0x21, 0x3f] {
        let mut target = Target::new(OPEN_KEYS);
        assert!(matches!(target.give(&with_opcode(opcode), &[]), Err(Fatal::Protocol(_))));
        assert_eq!(target.reject().reason, RejectReason::ProtocolError);
    }
}

#[test]
fn rejects_are_bounded() {
    let mut target = Target::new(OPEN_KEYS);
    let mut result = Ok(());
    for _ in 0..=limits::CONTROL_MAX {
        result = target.machine.on_header(&with_opcode(0x5c), &[], NOW);
    }
    assert!(matches!(result, Err(Fatal::Overload(_))));
}

#[test]
fn segment_longer_than_declared_ends_the_connection() {
    let mut target = Target::new(OPEN_KEYS);
    assert_eq!(target.machine.data_segment_max(), 65536);
    let command = target.write(1, 1 << 20, 65537, true);
    assert!(matches!(target.machine.on_header(&command.emit(), &[], NOW), Err(Fatal::Protocol(_))));
}

#[test]
fn nothing_but_login_before_login() {
    let mut machine = Connection::new(Config::default(), [0; 32], NOW);
    assert_eq!(machine.data_segment_max(), 8192);
    assert!(matches!(machine.on_header(&with_opcode(0x40), &[], NOW), Err(Fatal::Protocol(_))));
}

#[test]
fn login_survives_anything() {
    for seed in 0..3000 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut machine = Connection::new(Config::default(), [0; 32], NOW);
        for _ in 0..4 {
            let mut header: [u8; 48] = std::array::from_fn(|_| random.next() as u8);
            header[0] = 0x43;
            (header[4], header[5], header[6]) = (0, 0, header[6] & 0x0f);
            let length = Bhs(&header).data_segment_length();
            let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            let result = machine.on_header(&header, &[], NOW);
            while let Some(event) = machine.poll_event() {
                if let Event::Identify(_) = event {
                    machine.identify(Err(LoginStatus::NotFound.into()));
                }
            }
            let result = match (result, length) {
                (Ok(()), 1..) => machine.on_data(Received::Inline(&bytes), NOW),
                (result, _) => result,
            };
            if result.is_err() {
                break;
            }
            while machine.poll_transmit().is_some() {}
        }
    }
}

#[test]
fn request_logout_asks() {
    let mut target = Target::new(OPEN_KEYS);
    target.machine.request_logout(3).unwrap();
    target.flush();
    let TargetPdu::AsyncMessage(message) = target.one() else { panic!() };
    assert_eq!((message.event.code(), message.parameter3), (1, 3));
}
