//! The outer login of sealed sessions: both machines, one test per clause of docs/SEAL.md §2.

use std::time::Duration;

use iscsi::login::NextKey;
use iscsi::login::outer::initiator::{self, Offer};
use iscsi::login::outer::target::{self, Offered};
use iscsi::login::outer::{Choice, MESSAGE_MAX, METHOD, NONCE_BYTES, Pattern, SUITES_MAX, Transcript};
use iscsi::machine::{Fatal, Machine, Payload, Placement, Received, Transmit};
use iscsi::params::{Params, SessionType};
use iscsi::target::{AuthRequirement, ChapPolicy, Connection, Policy};
use iscsi::text;
use iscsi::wire::{Bhs, CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn};
use iscsi_test::{INITIATOR, NOW, TARGET, login_request, login_response, name};

const DEADLINE: Duration = NOW.saturating_add(Duration::from_secs(15));
const QUESTION: &[u8] = &[0xfe; 64];
const ANSWER: &[u8] = &[7; 49];
const NONCE: &[u8; NONCE_BYTES] = &[b'N'; NONCE_BYTES];

fn offer() -> Offer {
    Offer {
        initiator_name: name(INITIATOR),
        isid: Isid::random([1, 2, 3], 4),
        cid: 5,
        session_type: SessionType::Normal,
        target_name: Some(name(TARGET)),
        plain: false,
        suites: vec!["AES-256-GCM".into(), "AEGIS-256X4".into()],
        unit: 65536,
        pattern: Pattern::IkPsk2,
    }
}

/// Header and data segment of a PDU.
type Pdu = ([u8; 48], Vec<u8>);

fn pair() -> (initiator::Exchange, target::Exchange) {
    (initiator::Exchange::new(offer(), DEADLINE), target::Exchange::new(DEADLINE))
}

/// Header and data segment of the one queued PDU.
#[track_caller]
fn sent(machine: &mut impl Machine) -> Pdu {
    let Transmit { header, payload, digests } = machine.poll_transmit().expect("a PDU");
    assert!(machine.poll_transmit().is_none() && !digests.header && !digests.data);
    match payload {
        Payload::None => (header, Vec::new()),
        Payload::Bytes(segment) => (header, segment),
        Payload::Task { .. } => panic!("no tasks here"),
    }
}

/// Passes a PDU to a machine as an edge does.
fn give(machine: &mut impl Machine, (header, segment): &Pdu) -> Result<(), Fatal> {
    machine.on_header(header, &[], NOW)?;
    match machine.placement() {
        Placement::Nothing => assert!(segment.is_empty()),
        Placement::Inline => machine.on_data(Received::Inline(segment), NOW)?,
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[test]
fn both_agree_and_hold_the_same_transcript() {
    let (mut initiator, mut target) = pair();
    assert_eq!((initiator.poll_timeout(), target.poll_timeout()), (Some(DEADLINE), Some(DEADLINE)));
    let first = sent(&mut initiator);
    give(&mut target, &first).unwrap();
    let Some(target::Event::Offered(offered)) = target.poll_event() else { panic!("no offer") };
    let Offer { initiator_name, isid, cid, session_type, target_name, suites, unit, pattern, .. } = offer();
    let expected = Offered { initiator_name, isid, cid, session_type, target_name, suites, unit, pattern };
    assert_eq!(offered, expected);
    let choice = target.choose("AEGIS-256X4", 4096, NONCE);
    assert_eq!(choice, Choice { suite: "AEGIS-256X4".into(), unit: 4096, pattern });
    let second = sent(&mut target);
    give(&mut initiator, &second).unwrap();
    let Some(initiator::Event::Chosen { choice: chosen, transcript }) = initiator.poll_event() else {
        panic!("no choice")
    };
    assert_eq!(chosen, choice);
    let joined = |(header, segment): &Pdu| [&header[..], segment].concat();
    assert_eq!(transcript, Transcript { p1: joined(&first), p2: joined(&second) });
    let question = vec![0xfe; MESSAGE_MAX];
    initiator.send_message(&question);
    give(&mut target, &sent(&mut initiator)).unwrap();
    let expected = Some(target::Event::Message { message: question.clone(), transcript: transcript.clone() });
    assert_eq!(target.poll_event(), expected);
    target.answer(ANSWER);
    give(&mut initiator, &sent(&mut target)).unwrap();
    assert_eq!(initiator.poll_event(), Some(initiator::Event::Answer(ANSWER.into())));
    assert!(initiator.is_over() && target.is_over());
    assert_eq!((initiator.poll_timeout(), target.poll_timeout()), (None, None));
    assert!(first.1.windows(METHOD.len()).any(|bytes| bytes == METHOD.as_bytes()));
}

#[test]
fn prologue_is_tag_and_both_pdus_with_their_lengths() {
    let transcript = Transcript { p1: vec![1; 300], p2: vec![2; 3] };
    let expected = [&b"hikyaku SEAL/1\0\0\x01\x2c"[..], &[1; 300], &[0, 0, 0, 3, 2, 2, 2]].concat();
    assert_eq!(transcript.prologue(), expected);
}

/// The pairs of a valid request 1.
const OFFER: [&str; 7] = [
    "InitiatorName=iqn.2026-11.test:i",
    "SessionType=Normal",
    "TargetName=iqn.2026-11.test:t",
    "AuthMethod=Z-example.hikyaku.seal1",
    "X-example.hikyaku.suite=AES-256-GCM,AEGIS-256X4",
    "X-example.hikyaku.unit=65536",
    "X-example.hikyaku.pattern=IKpsk2",
];
/// The pairs of a valid response 1.
const CHOICE: [&str; 5] = [
    "AuthMethod=Z-example.hikyaku.seal1",
    "X-example.hikyaku.suite=AES-256-GCM",
    "X-example.hikyaku.unit=65536",
    "X-example.hikyaku.pattern=IKpsk2",
    "X-example.hikyaku.nonce=0bTk5OTk5OTk5OTk5OTk5OTg==",
];

fn segment(pairs: &[impl AsRef<str>]) -> Vec<u8> {
    pairs.iter().flat_map(|pair| [pair.as_ref().as_bytes(), b"\0"].concat()).collect()
}

/// `pairs` with the pair of the same key replaced, or with `pair` appended.
fn with(pairs: &[&str], pair: &str) -> Vec<u8> {
    let key = &pair[..=pair.find('=').unwrap()];
    let mut pairs: Vec<_> = pairs.iter().filter(|old| !old.starts_with(key)).copied().collect();
    pairs.push(pair);
    segment(&pairs)
}

fn request(segment: &[u8]) -> LoginRequest {
    LoginRequest {
        transit: false,
        csg: Stage::Security,
        nsg: Stage::Security,
        isid: Isid::random([1, 2, 3], 4),
        cid: 5,
        exp_stat_sn: StatSn(8),
        ..login_request(CmdSn(1), segment)
    }
}

fn response(segment: &[u8]) -> LoginResponse {
    let (csg, nsg) = (Stage::Security, Stage::Security);
    let last = login_response(&request(&[]), StatSn(8), CmdSn(1), segment);
    LoginResponse { transit: false, csg, nsg, tsih: 0, ..last }
}

/// Asserts that the target refused with this status and accepts no further PDU.
#[track_caller]
fn refused(target: &mut target::Exchange, status: LoginStatus, what: &str) {
    let (header, segment) = sent(target);
    let response = LoginResponse::parse(&header).unwrap();
    assert_eq!((response.status, segment.len()), (status, 0), "{what}");
    assert!(target.is_over() && target.poll_event().is_none(), "{what}");
    let more = segment_request();
    assert_eq!(give(target, &more), Err(Fatal::Closed), "{what}");
    assert!(target.poll_transmit().is_none(), "{what}");
}

fn ask_with(segment: Vec<u8>) -> Pdu {
    (request(&segment).emit(), segment)
}

fn answer_with(segment: Vec<u8>) -> Pdu {
    (response(&segment).emit(), segment)
}

fn segment_request() -> Pdu {
    ask_with(segment(&OFFER))
}

#[test]
fn request_1_is_an_offer_or_not() {
    let text = |pair: &str| with(&OFFER, pair);
    let plain = |pair: &str| with(&OFFER[..3], pair);
    let discovery: Vec<_> = OFFER.into_iter().filter(|pair| !pair.starts_with("TargetName")).collect();
    let discovery = with(&discovery, "SessionType=Discovery");
    let suites = |count: usize| {
        let names: Vec<_> = (0..count).map(|number| format!("suite-{number}")).collect();
        text(&format!("X-example.hikyaku.suite={}", names.join(",")))
    };
    enum Is {
        Offer,
        Ordinary,
        Refused,
    }
    use Is::{Offer, Ordinary, Refused};
    for (what, segment, expected) in [
        ("right", segment(&OFFER), Offer),
        ("discovery", discovery.clone(), Offer),
        ("others_behind", text("AuthMethod=Z-example.hikyaku.seal1,CHAP,None"), Offer),
        ("pattern_xx", text("X-example.hikyaku.pattern=XX"), Offer),
        ("unit_smallest", text("X-example.hikyaku.unit=512"), Offer),
        ("unit_largest", text("X-example.hikyaku.unit=1048576"), Offer),
        ("suites_most", suites(SUITES_MAX), Offer),
        ("method_none", plain("AuthMethod=None"), Ordinary),
        ("method_chap", plain("AuthMethod=CHAP,None"), Ordinary),
        ("method_not_said", segment(&OFFER[..3]), Ordinary),
        ("method_of_another_version", text("AuthMethod=Z-example.hikyaku.seal2"), Ordinary),
        ("method_in_another_key", plain("CHAP_A=Z-example.hikyaku.seal1"), Ordinary),
        ("nothing", Vec::new(), Ordinary),
        ("no_text", vec![0xff; 40], Ordinary),
        ("method_not_first", text("AuthMethod=CHAP,Z-example.hikyaku.seal1"), Refused),
        ("key_twice", [segment(&OFFER), segment(&[OFFER[5]])].concat(), Refused),
        ("method_twice", [segment(&["AuthMethod=None"]), segment(&OFFER)].concat(), Refused),
        ("key_foreign", text("InitiatorAlias=me"), Refused),
        ("key_of_a_later_message", text("X-example.hikyaku.message=0bAAAA"), Refused),
        ("name_malformed", text("InitiatorName=me"), Refused),
        ("target_malformed", text("TargetName=it"), Refused),
        ("type_unknown", text("SessionType=Other"), Refused),
        ("discovery_with_a_target", text("SessionType=Discovery"), Refused),
        ("suite_empty", text("X-example.hikyaku.suite="), Refused),
        ("suite_empty_among_others", text("X-example.hikyaku.suite=a,,b"), Refused),
        ("suite_with_a_blank", text("X-example.hikyaku.suite=a b"), Refused),
        ("suite_too_long", text(&format!("X-example.hikyaku.suite={}", "a".repeat(65))), Refused),
        ("suites_one_too_many", suites(SUITES_MAX + 1), Refused),
        ("unit_256", text("X-example.hikyaku.unit=256"), Refused),
        ("unit_2097152", text("X-example.hikyaku.unit=2097152"), Refused),
        ("unit_no_power_of_two", text("X-example.hikyaku.unit=65535"), Refused),
        ("unit_0", text("X-example.hikyaku.unit=0"), Refused),
        ("unit_beyond_32_bits", text("X-example.hikyaku.unit=4294967808"), Refused),
        ("unit_no_number", text("X-example.hikyaku.unit=many"), Refused),
        ("pattern_unknown", text("X-example.hikyaku.pattern=NN"), Refused),
        ("not_utf8", [segment(&OFFER), vec![b'A', b'=', 0xff]].concat(), Refused),
    ] {
        let mut target = target::Exchange::new(DEADLINE);
        let result = give(&mut target, &ask_with(segment));
        match (expected, target.poll_event()) {
            (Offer, Some(target::Event::Offered(_))) | (Ordinary, Some(target::Event::Ordinary)) => {
                assert_eq!(result, Ok(()), "{what}");
            }
            (Refused, None) => {
                assert!(matches!(result, Err(Fatal::Login(_))), "{what}: {result:?}");
                refused(&mut target, LoginStatus::InitiatorError, what);
            }
            (_, event) => panic!("{what}: {event:?}"),
        }
    }
}

#[test]
fn every_key_of_every_pdu_must_be_there() {
    for missing in OFFER {
        let pairs: Vec<_> = OFFER.into_iter().filter(|&pair| pair != missing).collect();
        let segment = segment(&pairs);
        let mut target = target::Exchange::new(DEADLINE);
        let result = give(&mut target, &ask_with(segment));
        if missing.starts_with("AuthMethod") {
            assert_eq!(target.poll_event(), Some(target::Event::Ordinary));
        } else {
            assert!(result.is_err(), "{missing}");
            refused(&mut target, LoginStatus::InitiatorError, missing);
        }
    }
    for missing in CHOICE {
        let pairs: Vec<_> = CHOICE.into_iter().filter(|&pair| pair != missing).collect();
        let segment = segment(&pairs);
        let mut initiator = until_response_1();
        let result = give(&mut initiator, &answer_with(segment));
        let declined = (Ok(()), Some(initiator::Event::Declined));
        assert_eq!((result, initiator.poll_event()) == declined, missing == CHOICE[0], "{missing}");
        assert!(initiator.is_over());
    }
}

#[test]
fn request_1_with_flags_or_fields_that_do_not_belong() {
    type Edit = fn(&mut LoginRequest);
    let cases: [(&str, Edit); 6] = [
        ("transit", |request| (request.transit, request.nsg) = (true, Stage::Operational)),
        ("transit_to_the_end", |request| (request.transit, request.nsg) = (true, Stage::FullFeature)),
        ("continues", |request| request.continues = true),
        ("operational", |request| request.csg = Stage::Operational),
        ("tsih", |request| request.tsih = 1),
        ("version", |request| request.version_min = 1),
    ];
    for (what, edit) in cases {
        let segment = segment(&OFFER);
        let mut header = request(&segment);
        edit(&mut header);
        let mut target = target::Exchange::new(DEADLINE);
        assert!(give(&mut target, &(header.emit(), segment)).is_err(), "{what}");
        refused(&mut target, LoginStatus::InitiatorError, what);
    }
    // The transcript would not bind an AHS.
    let (mut header, segment) = segment_request();
    header[4] = 1;
    let mut target = target::Exchange::new(DEADLINE);
    target.on_header(&header, &[0; 4], NOW).unwrap();
    assert!(target.on_data(Received::Inline(&segment), NOW).is_err());
    refused(&mut target, LoginStatus::InitiatorError, "AHS");
}

#[test]
fn a_segment_above_8192_bytes_is_not_heard() {
    let header = LoginRequest { data_segment_length: 8193, ..request(&[]) }.emit();
    let (mut initiator, mut target) = pair();
    assert!(target.on_header(&header, &[], NOW).is_err() && initiator.on_header(&header, &[], NOW).is_err());
    assert_eq!((initiator.data_segment_max(), target.data_segment_max()), (8192, 8192));
}

/// A target that expects request 2, and that request.
fn until_request_2() -> (target::Exchange, Pdu) {
    let mut target = target::Exchange::new(DEADLINE);
    give(&mut target, &segment_request()).unwrap();
    assert!(matches!(target.poll_event(), Some(target::Event::Offered(_))));
    target.choose("AES-256-GCM", 65536, NONCE);
    sent(&mut target);
    let segment = segment(&[format!("X-example.hikyaku.message={}", text::base64(QUESTION))]);
    (target, (LoginRequest { exp_stat_sn: StatSn(9), ..request(&segment) }.emit(), segment))
}

#[test]
fn request_2_that_is_not_what_it_has_to_be() {
    let (mut target, right) = until_request_2();
    give(&mut target, &right).unwrap();
    assert!(matches!(target.poll_event(), Some(target::Event::Message { .. })));

    type Edit = fn(&mut LoginRequest);
    let headers: [(&str, Edit); 9] = [
        ("transit", |request| (request.transit, request.nsg) = (true, Stage::Operational)),
        ("continues", |request| request.continues = true),
        ("operational", |request| request.csg = Stage::Operational),
        ("tsih", |request| request.tsih = 1),
        ("isid", |request| request.isid = Isid([0; 6])),
        ("cid", |request| request.cid = 6),
        ("itt", |request| request.itt = Itt(1)),
        ("cmd_sn", |request| request.cmd_sn = CmdSn(2)),
        ("exp_stat_sn", |request| request.exp_stat_sn = StatSn(8)),
    ];
    for (what, edit) in headers {
        let (mut target, (header, segment)) = until_request_2();
        let mut header = LoginRequest::parse(&header).unwrap();
        edit(&mut header);
        assert!(give(&mut target, &(header.emit(), segment)).is_err(), "{what}");
        refused(&mut target, LoginStatus::InitiatorError, what);
    }

    let message = |bytes: usize| format!("X-example.hikyaku.message={}", text::base64(&vec![1; bytes]));
    for (what, pairs) in [
        ("missing", vec![]),
        ("twice", vec![message(9), message(9)]),
        ("more_text", vec![message(9), "InitiatorAlias=me".into()]),
        ("offer_again", OFFER.map(str::to_owned).to_vec()),
        ("too_long", vec![message(MESSAGE_MAX + 1)]),
        ("empty", vec!["X-example.hikyaku.message=0b".into()]),
        ("no_base64", vec!["X-example.hikyaku.message=0b!!!!".into()]),
        ("hexadecimal", vec!["X-example.hikyaku.message=0x00".into()]),
        ("no_prefix", vec!["X-example.hikyaku.message=AAAA".into()]),
    ] {
        let segment = segment(&pairs);
        let (mut target, _) = until_request_2();
        let header = LoginRequest { exp_stat_sn: StatSn(9), ..request(&segment) };
        assert!(give(&mut target, &(header.emit(), segment)).is_err(), "{what}");
        refused(&mut target, LoginStatus::InitiatorError, what);
    }
}

#[test]
fn pdus_out_of_turn() {
    // While the edge decides.
    let mut target = target::Exchange::new(DEADLINE);
    give(&mut target, &segment_request()).unwrap();
    assert!(give(&mut target, &segment_request()).is_err());
    refused(&mut target, LoginStatus::InitiatorError, "deciding");

    // Before the response with the choice was handed out.
    let (_, second) = until_request_2();
    let mut target = target::Exchange::new(DEADLINE);
    give(&mut target, &segment_request()).unwrap();
    target.poll_event();
    target.choose("AES-256-GCM", 65536, NONCE);
    assert!(give(&mut target, &second).is_err());
    refused(&mut target, LoginStatus::InitiatorError, "choice not sent");

    // While the edge computes its answer.
    let (mut target, second) = until_request_2();
    give(&mut target, &second).unwrap();
    assert!(give(&mut target, &second).is_err());
    refused(&mut target, LoginStatus::InitiatorError, "answering");

    // Another kind of PDU.
    let (mut target, _) = until_request_2();
    assert!(give(&mut target, &([0; 48], Vec::new())).is_err());
    refused(&mut target, LoginStatus::InitiatorError, "NOP-Out");

    // A response before the request, and while the edge of the initiator computes its message.
    let right = || answer_with(segment(&CHOICE));
    let mut initiator = pair().0;
    assert!(give(&mut initiator, &right()).is_err());
    let mut initiator = until_response_1();
    give(&mut initiator, &right()).unwrap();
    assert!(give(&mut initiator, &right()).is_err() && initiator.is_over());
    assert_eq!(give(&mut initiator, &right()), Err(Fatal::Closed));
}

#[test]
fn response_1_chooses_from_the_offer() {
    let text = |pair: &str| with(&CHOICE, pair);
    for (what, segment, right) in [
        ("right", segment(&CHOICE), true),
        ("the_other_suite", text("X-example.hikyaku.suite=AEGIS-256X4"), true),
        ("unit_smaller", text("X-example.hikyaku.unit=512"), true),
        ("unit_larger", text("X-example.hikyaku.unit=131072"), false),
        ("unit_malformed", text("X-example.hikyaku.unit=1000"), false),
        ("suite_not_offered", text("X-example.hikyaku.suite=AEGIS-128X2"), false),
        ("suites", text("X-example.hikyaku.suite=AES-256-GCM,AEGIS-256X4"), false),
        ("suite_reject", text("X-example.hikyaku.suite=Reject"), false),
        ("pattern_other", text("X-example.hikyaku.pattern=XX"), false),
        ("methods", text("AuthMethod=Z-example.hikyaku.seal1,None"), false),
        ("key_twice", [segment(&CHOICE), segment(&[CHOICE[2]])].concat(), false),
        ("nonce_short", text("X-example.hikyaku.nonce=0bTk5OTk5OTk5OTk5OTk5O"), false),
        ("nonce_long", text("X-example.hikyaku.nonce=0bTk5OTk5OTk5OTk5OTk5OTk4="), false),
        ("nonce_empty", text("X-example.hikyaku.nonce=0b"), false),
        ("nonce_hexadecimal", text("X-example.hikyaku.nonce=0x4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e"), false),
        ("more_text", text("TargetPortalGroupTag=1"), false),
        ("not_utf8", [segment(&CHOICE), vec![b'A', b'=', 0xff]].concat(), false),
    ] {
        let mut initiator = until_response_1();
        let result = give(&mut initiator, &answer_with(segment));
        let chosen = matches!(initiator.poll_event(), Some(initiator::Event::Chosen { .. }));
        assert_eq!((chosen, result.is_ok(), initiator.is_over()), (right, right, !right), "{what}");
    }
    type Edit = fn(&mut LoginResponse);
    let cases: [(&str, Edit); 7] = [
        ("transit", |response| (response.transit, response.nsg) = (true, Stage::Operational)),
        ("continues", |response| response.continues = true),
        ("operational", |response| response.csg = Stage::Operational),
        ("tsih", |response| response.tsih = 1),
        ("isid", |response| response.isid = Isid([0; 6])),
        ("itt", |response| response.itt = Itt(1)),
        ("version", |response| response.version_active = 1),
    ];
    for (what, edit) in cases {
        let segment = segment(&CHOICE);
        let mut header = response(&segment);
        edit(&mut header);
        let mut initiator = until_response_1();
        assert!(give(&mut initiator, &(header.emit(), segment)).is_err(), "{what}");
        assert!(initiator.is_over() && initiator.poll_event().is_none(), "{what}");
    }
}

/// An initiator that has sent its offer.
fn until_response_1() -> initiator::Exchange {
    let mut initiator = pair().0;
    sent(&mut initiator);
    initiator
}

/// An initiator that has sent its message.
fn until_response_2() -> initiator::Exchange {
    let mut initiator = until_response_1();
    let segment = segment(&CHOICE);
    give(&mut initiator, &answer_with(segment)).unwrap();
    initiator.poll_event();
    initiator.send_message(QUESTION);
    let (header, _) = sent(&mut initiator);
    assert_eq!(LoginRequest::parse(&header).unwrap().exp_stat_sn, StatSn(9));
    initiator
}

#[test]
fn response_2_that_is_not_what_it_has_to_be() {
    let message = format!("X-example.hikyaku.message={}", text::base64(ANSWER));
    for (what, pairs, stat_sn, right) in [
        ("right", vec![message.as_str()], 9, true),
        ("stat_sn", vec![&message], 8, false),
        ("missing", vec![], 9, false),
        ("more_text", vec![&message, "AuthMethod=None"], 9, false),
        ("choice_again", CHOICE.to_vec(), 9, false),
    ] {
        let mut initiator = until_response_2();
        let segment = segment(&pairs);
        let header = LoginResponse { stat_sn: StatSn(stat_sn), ..response(&segment) }.emit();
        assert_eq!(give(&mut initiator, &(header, segment)).is_ok(), right, "{what}");
        let event = right.then(|| initiator::Event::Answer(ANSWER.into()));
        assert_eq!(initiator.poll_event(), event, "{what}");
        assert!(initiator.is_over());
    }
}

#[test]
fn statuses_at_the_initiator() {
    use initiator::Event::{Declined, Refused};
    let refusal =
        |status, segment: &[u8]| (LoginResponse { status, ..response(segment) }.emit(), segment.to_vec());
    for (status, to_the_offer, to_the_message) in [
        // The answer of an ordinary target to an unknown method, and the answer to a wrong key.
        (LoginStatus::AuthenticationFailure, Declined, Refused(LoginStatus::AuthenticationFailure)),
        (
            LoginStatus::ServiceUnavailable,
            Refused(LoginStatus::ServiceUnavailable),
            Refused(LoginStatus::ServiceUnavailable),
        ),
        (
            LoginStatus::InitiatorError,
            Refused(LoginStatus::InitiatorError),
            Refused(LoginStatus::InitiatorError),
        ),
    ] {
        let mut initiator = until_response_1();
        give(&mut initiator, &refusal(status, &[])).unwrap();
        assert_eq!((initiator.poll_event(), initiator.is_over()), (Some(to_the_offer), true));
        let mut initiator = until_response_2();
        give(&mut initiator, &refusal(status, &[])).unwrap();
        assert_eq!((initiator.poll_event(), initiator.is_over()), (Some(to_the_message), true));
    }
    // A success class with a non-zero detail.
    let mut initiator = until_response_1();
    assert!(give(&mut initiator, &refusal(LoginStatus::from_code(0x0001), &[])).is_err());
    assert_eq!((initiator.poll_event(), initiator.is_over()), (None, true));
    for method in ["Reject", "None", "CHAP", "NotUnderstood"] {
        let segment = segment(&["TargetPortalGroupTag=1".to_owned(), format!("AuthMethod={method}")]);
        let mut initiator = until_response_1();
        give(&mut initiator, &answer_with(segment)).unwrap();
        assert_eq!((initiator.poll_event(), initiator.is_over()), (Some(Declined), true), "{method}");
    }
    for (text, right) in [("TargetAddress=192.0.2.1:3260,1", true), ("TargetAddress=", false), ("A=b", false)]
    {
        let mut initiator = until_response_1();
        let result = give(&mut initiator, &refusal(LoginStatus::TargetMovedTemporarily, &segment(&[text])));
        let event = initiator.poll_event();
        assert_eq!(result.is_ok(), right, "{text}");
        assert_eq!(matches!(event, Some(initiator::Event::Redirect(_))), right, "{text}");
    }
}

#[test]
fn login_is_timed() {
    let (mut initiator, mut target) = pair();
    let before = DEADLINE - Duration::from_millis(1);
    assert_eq!((initiator.on_timeout(before), target.on_timeout(before)), (Ok(()), Ok(())));
    assert_eq!(initiator.on_timeout(DEADLINE), Err(Fatal::LoginTimeout));
    assert_eq!(target.on_timeout(DEADLINE), Err(Fatal::LoginTimeout));
    // The deadline also applies while the edge computes.
    let (mut target, second) = until_request_2();
    give(&mut target, &second).unwrap();
    assert_eq!(target.on_timeout(DEADLINE), Err(Fatal::LoginTimeout));
}

#[test]
fn require_refuses_what_is_no_offer() {
    let segment = segment(&["InitiatorName=iqn.2026-11.test:i", "AuthMethod=None"]);
    let mut target = target::Exchange::new(DEADLINE);
    give(&mut target, &ask_with(segment)).unwrap();
    assert_eq!(target.poll_event(), Some(target::Event::Ordinary));
    target.refuse(LoginStatus::AuthenticationFailure);
    refused(&mut target, LoginStatus::AuthenticationFailure, "ordinary login");
    // A first PDU that is no login request gets no response.
    let mut target = target::Exchange::new(DEADLINE);
    give(&mut target, &([0; 48], Vec::new())).unwrap();
    assert_eq!(target.poll_event(), Some(target::Event::Ordinary));
    target.refuse(LoginStatus::AuthenticationFailure);
    assert!(target.poll_transmit().is_none() && target.is_over());
}

#[test]
fn messages_are_refused_without_a_difference() {
    let (mut target, second) = until_request_2();
    give(&mut target, &second).unwrap();
    target.poll_event();
    target.refuse(LoginStatus::AuthenticationFailure);
    refused(&mut target, LoginStatus::AuthenticationFailure, "message");
}

/// The response of an ordinary target to the first PDU of a connection.
fn ordinary(first: impl FnOnce(&mut Connection), chap: bool) -> (LoginResponse, String) {
    let mut machine = Connection::new(iscsi::target::Config::default(), [3; 32], NOW);
    first(&mut machine);
    let Some(iscsi::target::Event::Identify(_)) = machine.poll_event() else { panic!("no names") };
    let auth = if chap {
        let algorithms = iscsi::chap::Algorithms::default();
        AuthRequirement::Chap(ChapPolicy { accounts: Vec::new(), algorithms, required: true })
    } else {
        AuthRequirement::None
    };
    machine.identify(Ok(Policy {
        auth,
        portal_group_tag: 1,
        target_alias: None,
        params: Params::default(),
        next_key: NextKey::Unsaid,
    }));
    let (header, segment) = sent(&mut machine);
    (LoginResponse::parse(&header).unwrap(), String::from_utf8(segment).unwrap())
}

#[test]
fn an_ordinary_target_picks_what_it_knows() {
    for (plain, chap, expected) in [
        (true, false, Some("AuthMethod=None")),
        (true, true, Some("AuthMethod=CHAP")),
        (false, false, None),
        (false, true, None),
    ] {
        let mut initiator = initiator::Exchange::new(Offer { plain, ..offer() }, DEADLINE);
        let first = sent(&mut initiator);
        let direct = ordinary(|machine| give(machine, &first).unwrap(), chap);
        // A target that declines to seal gives the same response.
        let mut target = target::Exchange::new(DEADLINE);
        give(&mut target, &first).unwrap();
        let declined = ordinary(|machine| target.decline().replay(machine, NOW).unwrap(), chap);
        assert_eq!(direct, declined);
        let (header, answer) = direct;
        match expected {
            Some(method) => {
                assert_eq!(header.status, LoginStatus::Success);
                assert!(answer.split('\0').any(|pair| pair == method), "{answer}");
                let keys = answer.split('\0').filter(|pair| pair.starts_with("X-example.hikyaku."));
                assert!(
                    keys.clone().count() == 3 && keys.clone().all(|pair| pair.ends_with("=NotUnderstood"))
                );
            }
            None => assert_eq!(header.status, LoginStatus::AuthenticationFailure),
        }
        give(&mut initiator, &(header.emit(), answer.into_bytes())).unwrap();
        assert_eq!(initiator.poll_event(), Some(initiator::Event::Declined));
    }
}

// ---- PDUs altered in transit ----

/// What both edges have received at the end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    initiator: Option<(Transcript, Choice)>,
    target: Option<(Transcript, Choice, Vec<u8>)>,
    answer: Option<Vec<u8>>,
}

/// One PDU through a relay that edits its bytes. `None`: it does not arrive as a complete PDU.
fn relay(pdu: Pdu, edit: impl FnOnce(&mut Vec<u8>)) -> Option<(Pdu, Vec<u8>)> {
    let (header, mut segment) = pdu;
    segment.resize(segment.len().next_multiple_of(4), 0);
    let mut wire = [&header[..], &segment].concat();
    edit(&mut wire);
    let header = *wire.first_chunk::<48>()?;
    let ahs_end = 48 + Bhs(&header).total_ahs_length();
    let end = ahs_end + Bhs(&header).data_segment_length() as usize;
    Some(((header, wire.get(ahs_end..end)?.to_vec()), wire[48..ahs_end].to_vec()))
}

fn deliver(machine: &mut impl Machine, (pdu, ahs): &(Pdu, Vec<u8>)) -> Result<(), Fatal> {
    machine.on_header(&pdu.0, ahs, NOW)?;
    if pdu.1.is_empty() { Ok(()) } else { machine.on_data(Received::Inline(&pdu.1), NOW) }
}

/// A complete exchange in which one of the four PDUs is edited.
fn exchange(which: usize, mut edit: impl FnMut(&mut Vec<u8>)) -> Known {
    let (mut initiator, mut target) = pair();
    let mut known = Known::default();
    let mut at = 0;
    let mut through = |pdu: Pdu| {
        at += 1;
        relay(pdu, |wire| {
            if at - 1 == which {
                edit(wire);
            }
        })
    };
    let mut choice = None;
    loop {
        let Some(request) = through(sent(&mut initiator)) else { return known };
        let _ = deliver(&mut target, &request);
        match target.poll_event() {
            Some(target::Event::Offered(offered)) => {
                choice = Some(target.choose(offered.suites.last().unwrap(), 65536, NONCE));
            }
            Some(target::Event::Message { message, transcript }) => {
                known.target = Some((transcript, choice.take().unwrap(), message));
                target.answer(ANSWER);
            }
            Some(target::Event::Ordinary) => target.refuse(LoginStatus::AuthenticationFailure),
            None => {}
        }
        let Some(transmit) = target.poll_transmit() else { return known };
        let Payload::Bytes(segment) = transmit.payload else { return known };
        let Some(response) = through((transmit.header, segment)) else { return known };
        let _ = deliver(&mut initiator, &response);
        match initiator.poll_event() {
            Some(initiator::Event::Chosen { choice, transcript }) => {
                known.initiator = Some((transcript, choice));
                initiator.send_message(QUESTION);
            }
            Some(initiator::Event::Answer(answer)) => {
                known.answer = Some(answer);
                return known;
            }
            _ => return known,
        }
    }
}

/// Asserts that a handshake over both transcripts would fail, or that both sides agree as without the edit.
#[track_caller]
fn unharmed_or_noticed(known: &Known, right: &Known, what: &str) {
    let (Some(initiator), Some(target)) = (&known.initiator, &known.target) else { return };
    let bound = initiator.0 == target.0;
    // The handshake accepts no message but the one that was sent.
    let message = target.2 == QUESTION;
    if bound && message {
        assert_eq!((&known.initiator, &known.target), (&right.initiator, &right.target), "{what}");
        assert_eq!(initiator.1, target.1, "{what}");
    }
}

#[test]
fn any_bit_altered_on_the_way_is_noticed() {
    let right = exchange(usize::MAX, |_| {});
    assert_eq!(right.answer.as_deref(), Some(ANSWER));
    let mut noticed = 0;
    for which in 0..4 {
        let mut length = 0;
        exchange(which, |wire| length = wire.len());
        assert!(length > 48);
        for bit in 0..length * 8 {
            let known = exchange(which, |wire| wire[bit / 8] ^= 1 << (bit % 8));
            unharmed_or_noticed(&known, &right, &format!("bit {bit} of PDU {which}"));
            noticed += usize::from(known != right);
        }
    }
    assert!(noticed > 4000, "{noticed}");
}

#[test]
fn any_pair_dropped_on_the_way_is_noticed() {
    let right = exchange(usize::MAX, |_| {});
    for which in 0..4 {
        for drop in 0..7 {
            let known = exchange(which, |wire| {
                let mut header = *wire.first_chunk::<48>().unwrap();
                let end = 48 + Bhs(&header).data_segment_length() as usize;
                let pairs = wire[48..end].split_inclusive(|&byte| byte == 0).enumerate();
                let segment = pairs.filter(|&(at, _)| at != drop).flat_map(|(_, pair)| pair).copied();
                let mut segment: Vec<_> = segment.collect();
                header[5..8].copy_from_slice(&u32::try_from(segment.len()).unwrap().to_be_bytes()[1..]);
                segment.resize(segment.len().next_multiple_of(4), 0);
                *wire = [&header[..], &segment].concat();
            });
            unharmed_or_noticed(&known, &right, &format!("pair {drop} of PDU {which}"));
        }
    }
}
