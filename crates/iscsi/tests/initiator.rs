//! The initiator against crafted headers: PDUs that a target may and may not send.

use std::time::Duration;

use iscsi::initiator::{Command, Config, Connection, Direction, Event, TaskError};
use iscsi::limits;
use iscsi::machine::{Fatal, Machine, Payload, Placement, Received, TaskId, Transmit};
use iscsi::params::{Params, SessionType};
use iscsi::wire::{
    AsyncEvent, AsyncMessage, Attribute, CmdSn, DataIn, DataSn, InitiatorPdu, Isid, Itt, LoginResponse,
    LoginStatus, LogoutReason, LogoutResponse, LogoutResult, NopIn, R2t, Reject, RejectReason, ScsiResponse,
    StatSn, TextResponse, TmFunction, TmResponse, TmResult, Ttt,
};
use iscsi_test::{NOW, answer, login_response, name};

struct Initiator {
    machine: Connection,
    stat_sn: StatSn,
    log: Vec<Event>,
}

const KEYS: &str = "InitialR2T=No ImmediateData=Yes MaxRecvDataSegmentLength=1024 MaxBurstLength=4096 \
                    FirstBurstLength=2048 MaxOutstandingR2T=2 ";
const SOLICITED_KEYS: &str = "InitialR2T=Yes ImmediateData=No MaxRecvDataSegmentLength=1024 MaxBurstLength=4096 \
                              FirstBurstLength=2048 MaxOutstandingR2T=2 ";
const FIRST: CmdSn = CmdSn(u32::MAX);

impl Initiator {
    fn new(keys: &str) -> Self {
        Self::with(keys, SessionType::Normal, FIRST.plus(3))
    }

    fn start(session_type: SessionType) -> Connection {
        let isid = Isid::random([1, 2, 3], 4);
        let own = name("iqn.2026-11.test:initiator");
        let mut login = match session_type {
            SessionType::Normal => {
                iscsi::login::initiator::Config::normal(own, isid, name("iqn.2026-11.test:target"))
            }
            SessionType::Discovery => iscsi::login::initiator::Config::discovery(own, isid),
        };
        login.cmd_sn = FIRST;
        login.params = Params { max_burst_length: 65536, first_burst_length: 65536, ..Params::default() };
        let config =
            Config { tasks_max: 8, ping_interval: Some(Duration::from_secs(5)), ..Config::new(login) };
        Connection::new(config, [7; 32], NOW).unwrap()
    }

    fn with(keys: &str, session_type: SessionType, max_cmd_sn: CmdSn) -> Self {
        let machine = Self::start(session_type);
        let mut initiator = Self { machine, stat_sn: StatSn(u32::MAX), log: vec![] };
        let (InitiatorPdu::LoginRequest(request), _) = initiator.one() else { panic!() };
        // Without a value in `keys`, the default of an offered key is in force.
        let text = keys.replace(' ', "\0").into_bytes();
        let header = login_response(&request, initiator.stat_sn.take(), max_cmd_sn, &text);
        initiator.give(&header.emit(), &text).unwrap();
        assert!(matches!(initiator.log.pop(), Some(Event::LoggedIn(_))));
        initiator
    }

    fn give(&mut self, header: &[u8; 48], data: &[u8]) -> Result<Placement, Fatal> {
        let mut result = self.machine.on_header(header, &[], NOW);
        self.drain();
        let placement = self.machine.placement();
        if result.is_ok() && !data.is_empty() {
            let received = match placement {
                Placement::Inline => Received::Inline(data),
                Placement::Task { .. } => Received::Placed,
                Placement::Discard => Received::Discarded,
                Placement::Nothing => panic!("no place for data"),
            };
            result = self.machine.on_data(received, NOW);
            self.drain();
        }
        result.map(|()| placement)
    }

    fn drain(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            self.log.push(event);
        }
    }

    fn next(&mut self) -> Option<(InitiatorPdu, Payload)> {
        let Transmit { header, payload, .. } = self.machine.poll_transmit()?;
        Some((InitiatorPdu::parse(&header).unwrap(), payload))
    }

    /// Gives a response that has to be accepted.
    #[track_caller]
    fn respond(&mut self, itt: Itt) {
        let response = self.response(itt, 0, 0);
        self.give(&response.emit(), &[]).unwrap();
    }

    #[track_caller]
    fn one(&mut self) -> (InitiatorPdu, Payload) {
        let one = self.next().expect("a PDU");
        assert!(self.next().is_none());
        one
    }

    fn submit(&mut self, direction: Direction, length: u32) -> (TaskId, Itt) {
        let task = self.machine.submit(command(direction, length)).unwrap();
        let (InitiatorPdu::ScsiCommand(command), _) = self.next().unwrap() else { panic!() };
        (task, command.itt)
    }

    fn data_in(&self, itt: Itt, sn: u32, offset: u32, length: u32, status: Option<u8>) -> [u8; 48] {
        DataIn {
            is_final: true,
            status,
            itt,
            ttt: Ttt::RESERVED,
            data_sn: DataSn(sn),
            buffer_offset: offset,
            data_segment_length: length,
            ..answer(self.stat_sn, FIRST.plus(1), FIRST.plus(4))
        }
        .emit()
    }

    fn r2t(&self, itt: Itt, ttt: u32, sn: u32, offset: u32, length: u32) -> [u8; 48] {
        R2t {
            lun: 5,
            itt,
            ttt: Ttt(ttt),
            r2t_sn: DataSn(sn),
            buffer_offset: offset,
            desired_data_transfer_length: length,
            ..answer(self.stat_sn, FIRST.plus(1), FIRST.plus(4))
        }
        .emit()
    }

    fn response(&mut self, itt: Itt, status: u8, length: u32) -> ScsiResponse {
        ScsiResponse {
            status,
            itt,
            data_segment_length: length,
            ..answer(self.stat_sn.take(), FIRST.plus(1), FIRST.plus(4))
        }
    }
}

fn command(direction: Direction, length: u32) -> Command {
    Command { lun: 5, cdb: [0; 16], direction, length, attribute: Attribute::Simple }
}

const BYTES: [u8; 8192] = [0xa5; 8192];

fn bytes(length: u32) -> &'static [u8] {
    &BYTES[..length as usize]
}

#[test]
fn window_is_the_target_s_and_ours() {
    let mut initiator = Initiator::new(KEYS);
    assert_eq!(initiator.machine.window(), 4);
    for left in [3, 2, 1, 0] {
        initiator.machine.submit(command(Direction::None, 0)).unwrap();
        assert_eq!(initiator.machine.window(), left);
    }
    let mut sent = Vec::new();
    while let Some((InitiatorPdu::ScsiCommand(command), _)) = initiator.next() {
        sent.push((command.cmd_sn, command.itt));
    }
    let numbers: Vec<_> = sent.iter().map(|(sn, _)| sn.0).collect();
    assert_eq!(numbers, [u32::MAX, 0, 1, 2]);
    assert_eq!(initiator.machine.window(), 0);
    // MaxCmdSN advances by one with the response, never decreases, and a leap far ahead is limited by the slots.
    initiator.respond(sent[0].1);
    assert_eq!(initiator.machine.window(), 1);
    let back = ScsiResponse { max_cmd_sn: FIRST, ..initiator.response(sent[1].1, 0, 0) };
    initiator.give(&back.emit(), &[]).unwrap();
    assert_eq!(initiator.machine.window(), 1);
    let leap = ScsiResponse { max_cmd_sn: FIRST.plus(1 << 30), ..initiator.response(sent[2].1, 0, 0) };
    initiator.give(&leap.emit(), &[]).unwrap();
    assert_eq!(initiator.machine.window(), 7);
    let nonsense = ScsiResponse {
        exp_cmd_sn: CmdSn(1 << 30),
        max_cmd_sn: CmdSn(0),
        ..initiator.response(sent[3].1, 0, 0)
    };
    initiator.give(&nonsense.emit(), &[]).unwrap();
    assert_eq!(initiator.machine.window(), 8);
    // A leap ahead of the last MaxCmdSN that compares below the initiator's CmdSN.
    let behind = ScsiResponse {
        exp_cmd_sn: FIRST.plus((1 << 30) + (1 << 31) - 1),
        max_cmd_sn: FIRST.plus((1 << 30) + (1 << 31) - 1),
        ..initiator.response(sent[3].1, 0, 0)
    };
    assert!(behind.max_cmd_sn.precedes(FIRST));
    let _ = initiator.give(&behind.emit(), &[]);
    assert_eq!(initiator.machine.window(), 8);
}

#[test]
fn write_goes_out_as_negotiated() {
    // (keys, length, [(immediate or data-out, offset, length, F)])
    type Case = (&'static str, u32, &'static [(bool, u32, u32, bool)]);
    let no = "InitialR2T=Yes ImmediateData=No MaxRecvDataSegmentLength=1024 MaxBurstLength=4096 FirstBurstLength=2048 ";
    let immediate = "InitialR2T=Yes ImmediateData=Yes MaxRecvDataSegmentLength=1024 MaxBurstLength=4096 FirstBurstLength=2048 ";
    let unsolicited = "InitialR2T=No ImmediateData=No MaxRecvDataSegmentLength=1024 MaxBurstLength=4096 FirstBurstLength=1500 ";
    let cases: [Case; 5] = [
        (KEYS, 512, &[(true, 0, 512, true)]),
        (KEYS, 5000, &[(true, 0, 1024, false), (false, 1024, 1024, true)]),
        (immediate, 5000, &[(true, 0, 1024, true)]),
        (unsolicited, 5000, &[(true, 0, 0, false), (false, 0, 1024, false), (false, 1024, 476, true)]),
        (no, 5000, &[(true, 0, 0, true)]),
    ];
    for (keys, length, expected) in cases {
        let mut initiator = Initiator::new(keys);
        let task = initiator.machine.submit(command(Direction::Out, length)).unwrap();
        let mut seen = Vec::new();
        let mut sn = 0;
        while let Some((pdu, payload)) = initiator.next() {
            let (offset, length) = match payload {
                Payload::Task { task: of, offset, length: bytes, end } => {
                    assert_eq!((of, end), (task, length));
                    (offset, bytes)
                }
                _ => (0, 0),
            };
            match pdu {
                InitiatorPdu::ScsiCommand(command) => {
                    assert!(command.write && command.data_segment_length == length);
                    seen.push((true, offset, length, command.is_final));
                }
                InitiatorPdu::DataOut(data) => {
                    let told = (data.data_sn, data.buffer_offset, data.ttt);
                    assert_eq!(told, (DataSn(sn), offset, Ttt::RESERVED));
                    sn += 1;
                    seen.push((false, offset, length, data.is_final));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, expected, "{keys}");
    }
}

#[test]
fn r2ts_are_answered_in_segments() {
    let mut initiator = Initiator::new(SOLICITED_KEYS);
    let (task, itt) = initiator.submit(Direction::Out, 6000);
    initiator.give(&initiator.r2t(itt, 11, 0, 0, 2500), &[]).unwrap();
    initiator.give(&initiator.r2t(itt, 12, 1, 2500, 3500), &[]).unwrap();
    let mut seen = Vec::new();
    while let Some((InitiatorPdu::DataOut(data), payload)) = initiator.next() {
        let length = data.data_segment_length;
        assert_eq!(payload, Payload::Task { task, offset: data.buffer_offset, length, end: 6000 });
        assert_eq!(data.lun, 5);
        seen.push((data.ttt.0, data.data_sn.0, data.buffer_offset, length, data.is_final));
    }
    let expected = [
        (11, 0, 0, 1024, false),
        (11, 1, 1024, 1024, false),
        (11, 2, 2048, 452, true),
        (12, 0, 2500, 1024, false),
        (12, 1, 3524, 1024, false),
        (12, 2, 4548, 1024, false),
        (12, 3, 5572, 428, true),
    ];
    assert_eq!(seen, expected);
    initiator.respond(itt);
    assert!(
        matches!(initiator.log.pop(), Some(Event::Complete(outcome)) if outcome.task == task && outcome.sense.is_empty())
    );
}

#[test]
fn r2t_violations_end_the_connection() {
    // (case, [(TTT, R2TSN, offset, length)])
    type Case = (&'static str, &'static [(u32, u32, u32, u32)]);
    let cases: [Case; 9] = [
        ("beyond_the_buffer", &[(1, 0, 5900, 101)]),
        ("offset_wraps", &[(1, 0, u32::MAX, 2)]),
        ("longer_than_max_burst", &[(1, 0, 0, 4097)]),
        ("empty", &[(1, 0, 0, 0)]),
        ("r2t_sn_skips", &[(1, 1, 0, 512)]),
        ("r2t_sn_repeats", &[(1, 0, 0, 512), (2, 0, 512, 512)]),
        ("no_tag", &[(u32::MAX, 0, 0, 512)]),
        ("too_many", &[(1, 0, 0, 512), (2, 1, 512, 512), (3, 2, 1024, 512)]),
        ("of_no_task", &[]),
    ];
    for (case, r2ts) in cases {
        let mut initiator = Initiator::new(SOLICITED_KEYS);
        let (_, itt) = initiator.submit(Direction::Out, 6000);
        let mut result = Ok(Placement::Nothing);
        for &(ttt, sn, offset, length) in r2ts {
            assert!(result.is_ok(), "{case}");
            result = initiator.give(&initiator.r2t(itt, ttt, sn, offset, length), &[]);
        }
        if r2ts.is_empty() {
            result = initiator.give(&initiator.r2t(Itt(itt.0 ^ 1 << 20), 1, 0, 0, 512), &[]);
        }
        assert!(matches!(result, Err(Fatal::Protocol(_))), "{case}: {result:?}");
    }
    let mut initiator = Initiator::new(KEYS);
    let (_, itt) = initiator.submit(Direction::In, 6000);
    assert!(initiator.give(&initiator.r2t(itt, 1, 0, 0, 512), &[]).is_err(), "R2T of a read");
}

#[test]
fn data_in_is_placed_and_checked() {
    let mut initiator = Initiator::new(KEYS);
    let (task, itt) = initiator.submit(Direction::In, 1000);
    let first = initiator.data_in(itt, 0, 0, 600, None);
    assert_eq!(initiator.give(&first, bytes(600)), Ok(Placement::Task { task, offset: 0, length: 600 }));
    let second = initiator.data_in(itt, 1, 600, 400, Some(0));
    assert_eq!(initiator.give(&second, bytes(400)), Ok(Placement::Task { task, offset: 600, length: 400 }));
    let Some(Event::Complete(outcome)) = initiator.log.pop() else { panic!() };
    assert_eq!((outcome.status, outcome.data_in), (0, 1000));
    // (case, DataSN, offset, length)
    for (case, sn, offset, length) in [
        ("too_long", 0, 0, 1001),
        ("offset_ahead", 0, 8, 8),
        ("offset_wraps", 0, u32::MAX, 8),
        ("data_sn", 1, 0, 8),
    ] {
        let mut initiator = Initiator::new(KEYS);
        let (_, itt) = initiator.submit(Direction::In, 1000);
        let data = initiator.data_in(itt, sn, offset, length, None);
        assert!(matches!(initiator.give(&data, bytes(length)), Err(Fatal::Protocol(_))), "{case}");
    }
    let (_, itt) = initiator.submit(Direction::Out, 1000);
    let data = initiator.data_in(itt, 0, 0, 8, None);
    assert!(initiator.give(&data, bytes(8)).is_err(), "Data-In of a write");
    let data = initiator.data_in(Itt(12345), 0, 0, 8, None);
    assert!(initiator.give(&data, bytes(8)).is_err(), "Data-In of no task");
}

#[test]
fn data_digest_error_is_fatal() {
    let mut initiator = Initiator::new(KEYS);
    let (_, itt) = initiator.submit(Direction::In, 1000);
    let data = initiator.data_in(itt, 0, 0, 600, None);
    initiator.machine.on_header(&data, &[], NOW).unwrap();
    assert!(matches!(initiator.machine.on_data(Received::DigestError, NOW), Err(Fatal::DataDigest(_))));
}

#[test]
fn sense_is_cut_to_what_it_says() {
    for (data, sense) in [
        (&[0, 3, 1, 2, 3, 9, 9][..], &[1, 2, 3][..]),
        (&[0, 200, 1, 2], &[1, 2]),
        (&[0xff, 0xff, 7], &[7]),
        (&[0], &[]),
    ] {
        let mut initiator = Initiator::new(KEYS);
        let (_, itt) = initiator.submit(Direction::In, 1000);
        let response = initiator.response(itt, 2, data.len() as u32);
        initiator.give(&response.emit(), data).unwrap();
        let Some(Event::Complete(outcome)) = initiator.log.pop() else { panic!() };
        assert_eq!((outcome.status, outcome.sense.as_slice()), (2, sense));
    }
}

#[test]
fn responses_twice_or_for_nobody_are_fatal() {
    let mut initiator = Initiator::new(KEYS);
    let (_, itt) = initiator.submit(Direction::None, 0);
    let response = initiator.response(itt, 0, 0);
    initiator.give(&response.emit(), &[]).unwrap();
    assert!(initiator.give(&response.emit(), &[]).is_err());
}

fn ping_in(stat_sn: StatSn, length: u32) -> NopIn {
    NopIn {
        lun: 3,
        itt: Itt::RESERVED,
        ttt: Ttt(77),
        data_segment_length: length,
        ..answer(stat_sn, FIRST, FIRST.plus(3))
    }
}

#[test]
fn exp_stat_sn_follows_over_the_wrap() {
    let mut initiator = Initiator::new(KEYS);
    for _ in 0..3 {
        let (_, itt) = initiator.submit(Direction::None, 0);
        initiator.respond(itt);
        initiator.machine.ping(NOW);
        let (InitiatorPdu::NopOut(ping), _) = initiator.one() else { panic!() };
        assert_eq!(ping.exp_stat_sn, initiator.stat_sn);
        let pong = NopIn { itt: ping.itt, ttt: Ttt::RESERVED, ..ping_in(initiator.stat_sn.take(), 0) };
        initiator.give(&pong.emit(), &[]).unwrap();
    }
}

#[test]
fn target_pings_are_answered() {
    let mut initiator = Initiator::new(KEYS);
    for length in [0, 7, 5000] {
        let header = ping_in(initiator.stat_sn, length);
        initiator.give(&header.emit(), bytes(length)).unwrap();
        let (InitiatorPdu::NopOut(pong), _) = initiator.one() else { panic!() };
        assert!(pong.immediate && pong.itt.is_reserved());
        assert_eq!((pong.ttt, pong.lun, pong.data_segment_length), (Ttt(77), 3, length.min(1024)));
        assert_eq!(pong.exp_stat_sn, initiator.stat_sn, "a target's ping takes no StatSN");
    }
    let header = ping_in(initiator.stat_sn, 0);
    let mut result = Ok(());
    for _ in 0..=limits::CONTROL_MAX {
        result = initiator.machine.on_header(&header.emit(), &[], NOW);
    }
    assert!(matches!(result, Err(Fatal::Overload(_))));
}

#[test]
fn silence_is_pinged_and_ends() {
    let second = Duration::from_secs(1);
    let mut initiator = Initiator::new(KEYS);
    assert_eq!(initiator.machine.poll_timeout(), Some(NOW + 5 * second));
    initiator.machine.on_timeout(NOW + 5 * second).unwrap();
    let (InitiatorPdu::NopOut(ping), _) = initiator.one() else { panic!() };
    assert!(ping.immediate && !ping.itt.is_reserved() && ping.ttt.is_reserved());
    assert_eq!(initiator.machine.on_timeout(NOW + 10 * second), Err(Fatal::PingTimeout));
}

#[test]
fn rejects_fail_the_task_or_the_connection() {
    let mut initiator = Initiator::new(KEYS);
    let send = |initiator: &mut Initiator, reason| {
        let task = initiator.machine.submit(command(Direction::None, 0)).unwrap();
        let refused = initiator.machine.poll_transmit().unwrap().header;
        let reject = Reject {
            reason,
            data_segment_length: 48,
            ..answer(initiator.stat_sn.take(), FIRST, FIRST.plus(9))
        };
        initiator.give(&reject.emit(), &refused).unwrap();
        (task, reject, refused)
    };
    let (task, reject, refused) = send(&mut initiator, RejectReason::TooManyImmediateCommands);
    let Some(Event::Failed { task: failed, error }) = initiator.log.pop() else { panic!() };
    assert_eq!((failed, error), (task, TaskError::Rejected(RejectReason::TooManyImmediateCommands)));
    send(&mut initiator, RejectReason::DataDigestError);
    assert!(initiator.log.is_empty(), "the status follows");
    assert!(matches!(initiator.give(&reject.emit(), &refused), Err(Fatal::Rejected(6))), "of no task");
    let short = Reject { data_segment_length: 4, ..reject };
    assert!(initiator.give(&short.emit(), &refused[..4]).is_err());
    let empty = Reject { data_segment_length: 0, ..reject };
    assert!(initiator.give(&empty.emit(), &[]).is_err());
}

#[test]
fn management_ends_what_it_concerned() {
    let mut initiator = Initiator::new(KEYS);
    let (before, _) = initiator.submit(Direction::None, 0);
    let request = initiator.machine.task_management(TmFunction::LogicalUnitReset, 5, None).unwrap();
    let (InitiatorPdu::TmRequest(sent), _) = initiator.one() else { panic!() };
    assert!(sent.immediate && sent.referenced_task_tag.is_reserved());
    let (after, _) = initiator.submit(Direction::None, 0);
    let response = TmResponse {
        result: TmResult::Complete,
        itt: sent.itt,
        ..answer(initiator.stat_sn.take(), FIRST, FIRST.plus(9))
    };
    initiator.give(&response.emit(), &[]).unwrap();
    assert!(matches!(
        initiator.log[..],
        [Event::Failed { task, error: TaskError::Aborted }, Event::ManagementDone { request: done, result: TmResult::Complete }]
            if task == before && done == request && task != after
    ));
    assert!(initiator.give(&response.emit(), &[]).is_err(), "answered twice");
}

#[test]
fn abort_task_names_the_task() {
    let mut initiator = Initiator::new(KEYS);
    let (task, itt) = initiator.submit(Direction::In, 512);
    initiator.machine.task_management(TmFunction::AbortTask, 5, Some(task)).unwrap();
    let (InitiatorPdu::TmRequest(sent), _) = initiator.one() else { panic!() };
    assert_eq!((sent.referenced_task_tag, sent.ref_cmd_sn, sent.cmd_sn), (itt, FIRST, FIRST.next()));
    // A command that was not handed out ends without a request.
    let task = initiator.machine.submit(command(Direction::None, 0)).unwrap();
    initiator.machine.task_management(TmFunction::AbortTask, 5, Some(task)).unwrap();
    initiator.drain();
    assert!(matches!(initiator.log[0], Event::Failed { error: TaskError::Aborted, .. }));
    assert!(initiator.next().is_none());
}

/// The last segment of a text if `ttt` is reserved.
fn text_response(itt: Itt, ttt: Ttt, segment: &[u8]) -> TextResponse {
    TextResponse {
        is_final: ttt.is_reserved(),
        continues: !ttt.is_reserved(),
        itt,
        ttt,
        data_segment_length: segment.len() as u32,
        ..answer(StatSn(0), FIRST, FIRST)
    }
}

#[test]
fn discovery_reads_hostile_answers() {
    let mut initiator = Initiator::with("", SessionType::Discovery, FIRST.plus(3));
    assert_eq!(initiator.machine.window(), 0);
    initiator.machine.send_targets();
    let (InitiatorPdu::TextRequest(request), payload) = initiator.one() else { panic!() };
    assert_eq!(payload, Payload::Bytes(b"SendTargets=All\0".to_vec()));
    let one = b"TargetAddress=10.0.0.9:3260,1\0TargetName=iqn.2026-11.test:a\0TargetAddress=10.0.0.1:3260,1\0Target";
    let two = b"Name=iqn.2026-11.test:b\nnode.startup=automatic\0TargetAddress=10.0.0.2\0TargetName=iqn.2026-11.test:c\0\
                TargetAddress=-oProxyCommand=x\0TargetAddress=[::1]:3260,2\0";
    initiator.give(&text_response(request.itt, Ttt(9), one).emit(), one).unwrap();
    let (InitiatorPdu::TextRequest(more), Payload::None) = initiator.one() else { panic!() };
    assert_eq!((more.ttt, more.itt, more.is_final), (Ttt(9), request.itt, true));
    initiator.give(&text_response(request.itt, Ttt::RESERVED, two).emit(), two).unwrap();
    let Some(Event::Targets(targets)) = initiator.log.pop() else { panic!() };
    let seen: Vec<_> = targets
        .iter()
        .map(|t| (t.name.as_str(), t.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()))
        .collect();
    let expected = [
        ("iqn.2026-11.test:a", vec!["10.0.0.1:3260,1".to_owned()]),
        ("iqn.2026-11.test:c", vec!["[::1]:3260,2".to_owned()]),
    ];
    assert_eq!(seen, expected);
    // A SendTargets response that never ends.
    initiator.machine.send_targets();
    initiator.one();
    let late = initiator.give(&text_response(request.itt, Ttt::RESERVED, &[]).emit(), &[]);
    assert!(late.is_err(), "of the last exchange");
}

#[test]
fn discovery_without_end_is_cut() {
    let mut initiator = Initiator::with("", SessionType::Discovery, FIRST.plus(3));
    initiator.machine.send_targets();
    let (InitiatorPdu::TextRequest(request), _) = initiator.one() else { panic!() };
    let header = text_response(request.itt, Ttt(9), bytes(8192));
    let mut segments = 0;
    while initiator.give(&header.emit(), bytes(8192)).is_ok() {
        initiator.one();
        segments += 1;
    }
    assert_eq!(segments, limits::TEXT_RESPONSE_MAX / 8192);
}

#[test]
fn async_messages_and_logout() {
    let mut initiator = Initiator::new(KEYS);
    let header = AsyncMessage {
        event: AsyncEvent::LogoutRequested,
        parameter3: 10,
        ..answer(initiator.stat_sn.take(), FIRST, FIRST.plus(3))
    };
    initiator.give(&header.emit(), &[]).unwrap();
    let Some(Event::Async(notice)) = initiator.log.pop() else { panic!() };
    assert_eq!((notice.event, notice.parameters[2]), (AsyncEvent::LogoutRequested, 10));
    let unsent = initiator.machine.submit(command(Direction::None, 0)).unwrap();
    initiator.machine.logout(LogoutReason::CloseSession, NOW);
    let (InitiatorPdu::LogoutRequest(request), _) = initiator.one() else { panic!() };
    assert_eq!(initiator.machine.window(), 0);
    initiator.drain();
    let failed = initiator.log.pop();
    assert!(matches!(failed, Some(Event::Failed { task, error: TaskError::Unsent }) if task == unsent));
    let response = LogoutResponse {
        result: LogoutResult::Closed,
        itt: request.itt,
        time2wait: 2,
        ..answer(initiator.stat_sn.take(), FIRST, FIRST)
    };
    initiator.give(&response.emit(), &[]).unwrap();
    assert!(matches!(initiator.log.pop(), Some(Event::LoggedOut { result: LogoutResult::Closed })));
    assert_eq!(initiator.give(&response.emit(), &[]), Err(Fatal::Closed));
}

#[test]
fn logout_is_timed() {
    let mut initiator = Initiator::new(KEYS);
    initiator.machine.logout(LogoutReason::CloseSession, NOW);
    let due = NOW + Duration::from_secs(5);
    assert_eq!(initiator.machine.poll_timeout(), Some(due));
    assert_eq!(initiator.machine.on_timeout(due), Err(Fatal::LogoutTimeout));
}

#[test]
fn login_refused_redirected_or_nonsense() {
    let respond = |machine: &mut Connection, status, text: &[u8]| {
        let InitiatorPdu::LoginRequest(request) =
            InitiatorPdu::parse(&machine.poll_transmit().unwrap().header).unwrap()
        else {
            panic!()
        };
        let (csg, nsg) = (request.csg, request.csg);
        let success = login_response(&request, StatSn(0), FIRST, text);
        let header = LoginResponse { transit: false, csg, nsg, tsih: 0, status, ..success };
        machine.on_header(&header.emit(), &[], NOW)?;
        if text.is_empty() { Ok(()) } else { machine.on_data(Received::Inline(text), NOW) }
    };
    let mut machine = Initiator::start(SessionType::Normal);
    assert!(matches!(respond(&mut machine, LoginStatus::NotFound, &[]), Err(Fatal::Login(_))));
    assert!(matches!(machine.poll_event(), Some(Event::LoginFailed(_))));
    let mut machine = Initiator::start(SessionType::Normal);
    respond(&mut machine, LoginStatus::TargetMovedTemporarily, b"TargetAddress=10.1.1.1:3260\0").unwrap();
    assert!(matches!(machine.poll_event(), Some(Event::Redirect(_))));
    let mut machine = Initiator::start(SessionType::Normal);
    machine.poll_transmit().unwrap();
    assert!(matches!(machine.on_header(&[0x3f; 48], &[], NOW), Err(Fatal::Protocol(_))));
    let mut machine = Initiator::start(SessionType::Normal);
    machine.poll_transmit().unwrap();
    let mut reject = [0; 48];
    reject[0] = 0x3f;
    assert!(matches!(machine.on_header(&reject, &[], NOW), Err(Fatal::Login(_))));
}
