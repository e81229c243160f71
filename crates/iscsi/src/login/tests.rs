//! Both login machines against each other, and the target against hand-written requests.

use proptest::prelude::*;

use super::target::{Account, AuthRequirement, ChapPolicy, Identity, Policy, Refusal};
use super::{ANNOUNCEMENT_BYTES_MAX, NEXT_KEY, NextKey};
use super::{ChapAccount, initiator, target};
use crate::chap::{Algorithm, Algorithms, Secret};
use crate::name::{IscsiName, TargetAddress};
use crate::params::{DigestPolicy, Params, SessionType};
use crate::text;
use crate::wire::{CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn};

const ISID: Isid = Isid::random([1, 2, 3], 4);

fn name(text: &str) -> IscsiName {
    IscsiName::parse(text).unwrap()
}

fn account(user: &str, secret: &str) -> ChapAccount {
    ChapAccount { user: user.to_owned(), secret: Secret::new(secret.as_bytes()).unwrap() }
}

fn normal() -> initiator::Config {
    initiator::Config::normal(name("iqn.2026-01.a:i"), ISID, name("iqn.2026-01.a:t"))
}

fn policy() -> Policy {
    Policy {
        auth: AuthRequirement::None,
        portal_group_tag: 1,
        target_alias: None,
        params: Params::default(),
        next_key: NextKey::Unsaid,
    }
}

fn chap(algorithms: Algorithms) -> Policy {
    let mutual = Some(account("target", "the target's secret"));
    let known = |user, secret| Account { initiator: account(user, secret), mutual: mutual.clone() };
    let chap = ChapPolicy {
        accounts: vec![known("alice", "alice's secret"), known("bob", "bob's long secret")],
        algorithms,
        required: true,
    };
    Policy { auth: AuthRequirement::Chap(chap), ..policy() }
}

/// The results of both machines after one login.
#[derive(Debug)]
struct Outcome {
    initiator: Result<initiator::Step, initiator::LoginError>,
    target: Option<target::Complete>,
    identity: Option<Identity>,
    round_trips: usize,
    texts: Vec<String>,
}

/// Runs both machines against each other; every PDU passes through its bytes.
fn pair(
    config: initiator::Config,
    target_config: target::Config,
    answer: &Result<Policy, Refusal>,
) -> Outcome {
    let mut initiator = initiator::Login::new(config, [7; 32]).unwrap();
    let mut target = target::Login::new(target_config, [9; 32]);
    let mut outcome = Outcome {
        initiator: Err(initiator::LoginError::Protocol("no end")),
        target: None,
        identity: None,
        round_trips: 0,
        texts: Vec::new(),
    };
    let mut request = initiator.start();
    let mut stat_sn = None;
    for _ in 0..200 {
        outcome.round_trips += 1;
        assert_eq!(request.header.data_segment_length as usize, request.text.len());
        assert_eq!(request.header.cmd_sn, CmdSn(1));
        outcome.texts.push(show("I", &request.text));
        let header = LoginRequest::parse(&request.header.emit()).unwrap();
        assert_eq!(header, request.header);
        let mut step = target.receive(&header, &request.text);
        if let target::Step::Identify(identity) = step {
            outcome.identity = Some(identity);
            step = target.identify(answer.clone());
        }
        let response = match step {
            target::Step::Respond(response) | target::Step::Refused(response) => response,
            target::Step::Complete(complete) => {
                assert!(target.is_authenticated());
                let response = target.accept(0x1234);
                assert_eq!(complete.stat_sn, response.header.stat_sn.next());
                outcome.target = Some(*complete);
                response
            }
            target::Step::Identify(_) => panic!("identified twice"),
        };
        outcome.texts.push(show("T", &response.text));
        assert_eq!(response.header.data_segment_length as usize, response.text.len());
        if let Some(stat_sn) = stat_sn.replace(response.header.stat_sn) {
            assert_eq!(response.header.stat_sn, StatSn::next(stat_sn));
        }
        let header = LoginResponse::parse(&response.header.emit()).unwrap();
        match initiator.receive(&header, &response.text) {
            Ok(initiator::Step::Send(next)) => request = next,
            end => {
                outcome.initiator = end;
                break;
            }
        }
    }
    outcome
}

fn show(side: &str, text: &[u8]) -> String {
    format!("{side} {}", String::from_utf8_lossy(text).replace('\0', " "))
}

fn agreed(outcome: &Outcome) -> (&initiator::Complete, &target::Complete) {
    let Ok(initiator::Step::Complete(i)) = &outcome.initiator else {
        panic!("{:?} {:#?}", outcome.initiator, outcome.texts);
    };
    let t = outcome.target.as_ref().expect("the target completed too");
    let (a, b) = (&i.negotiated, &t.negotiated);
    assert_eq!(a.max_recv_data_segment_length, b.max_send_data_segment_length);
    assert_eq!(b.max_recv_data_segment_length, a.max_send_data_segment_length);
    let mut mirrored = *b;
    std::mem::swap(&mut mirrored.max_recv_data_segment_length, &mut mirrored.max_send_data_segment_length);
    assert_eq!(*a, mirrored, "{:#?}", outcome.texts);
    assert!(a.first_burst_length <= a.max_burst_length);
    assert_eq!(i.tsih, 0x1234);
    assert_eq!((i.cmd_sn, i.exp_cmd_sn), (t.exp_cmd_sn, t.exp_cmd_sn));
    assert_eq!(i.max_cmd_sn, t.max_cmd_sn);
    assert_eq!(i.exp_stat_sn, t.stat_sn);
    (i, t)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Auth {
    None,
    OneWay,
    Mutual,
}

impl Auth {
    const ALL: [Self; 3] = [Self::None, Self::OneWay, Self::Mutual];
}

#[test]
fn pair_agrees_under_all_combinations() {
    let policies = [DigestPolicy::Off, DigestPolicy::Allow, DigestPolicy::Prefer, DigestPolicy::Require];
    let digests = policies.iter().flat_map(|one| policies.map(|other| [*one, other]));
    for (auth, digests) in digests.flat_map(|digests| Auth::ALL.map(|auth| (auth, digests))) {
        for algorithm in Algorithm::ALL {
            for segment_max in [64, 512, 8192] {
                for skip_security in [true, false] {
                    combination(auth, algorithm, digests, segment_max, skip_security);
                }
            }
        }
    }
}

fn combination(
    auth: Auth,
    algorithm: Algorithm,
    [initiator_digest, target_digest]: [DigestPolicy; 2],
    segment_max: usize,
    skip_security: bool,
) {
    let algorithms = Algorithms::new(&[algorithm], true).unwrap();
    let mut config = initiator::Config {
        skip_security,
        segment_max,
        algorithms: algorithms.clone(),
        // Long enough that a first request with operational keys exceeds 512 bytes.
        initiator_alias: Some("alias ".repeat(42)),
        ..normal()
    };
    config.params.header_digest = initiator_digest;
    config.params.data_digest = initiator_digest;
    let mut policy = if auth == Auth::None { policy() } else { chap(algorithms) };
    policy.params.header_digest = target_digest;
    policy.params.data_digest = target_digest;
    policy.target_alias = Some("alias ".repeat(42));
    if auth != Auth::None {
        config.auth = Some(account("alice", "alice's secret"));
    }
    if auth == Auth::Mutual {
        config.mutual = Some(account("target", "the target's secret"));
    }
    let target_config = target::Config { segment_max, ..target::Config::default() };
    let outcome = pair(config, target_config, &Ok(policy));

    let off_and_required = matches!(
        (initiator_digest, target_digest),
        (DigestPolicy::Off, DigestPolicy::Require) | (DigestPolicy::Require, DigestPolicy::Off)
    );
    if off_and_required {
        assert!(outcome.initiator.is_err() && outcome.target.is_none());
        return;
    }
    let (i, t) = agreed(&outcome);
    if segment_max == 64 {
        // Every text longer than 64 bytes is split, those of CHAP included.
        let cut = outcome.texts.iter().filter(|text| text.len() == "I ".len() + 64).count();
        assert!(cut >= 14 + if auth == Auth::None { 0 } else { 2 }, "{cut} cut in {:#?}", outcome.texts);
    }
    let crc = match (initiator_digest, target_digest) {
        (DigestPolicy::Off, _) | (_, DigestPolicy::Off) => false,
        (DigestPolicy::Require, _) | (_, DigestPolicy::Require) => true,
        // The order of the offering side decides, unless the other side prefers CRC32C.
        (offer, answer) => offer == DigestPolicy::Prefer || answer == DigestPolicy::Prefer,
    };
    assert_eq!((i.negotiated.header_digest, i.negotiated.data_digest), (crc, crc));
    let user = (auth != Auth::None).then(|| "alice".to_owned());
    assert_eq!(t.authenticated_as, user);
    assert_eq!(i.authenticated_by, (auth != Auth::None).then_some(algorithm));
    assert_eq!(i.portal_group_tag, Some(1));
    assert_eq!(i.target_alias.as_deref(), Some(&*"alias ".repeat(42)));
    let n = &i.negotiated;
    assert_eq!((n.initial_r2t, n.immediate_data, n.max_outstanding_r2t), (false, true, 16));
    assert_eq!((n.max_burst_length, n.first_burst_length), (0xff_ffff, 256 << 10));
}

#[test]
fn round_trips() {
    let config = target::Config::default();
    let one = pair(normal(), config, &Ok(policy()));
    agreed(&one);
    assert_eq!(one.round_trips, 1);
    let two = pair(initiator::Config { skip_security: false, ..normal() }, config, &Ok(policy()));
    agreed(&two);
    assert_eq!(two.round_trips, 2);
    let alice = Some(account("alice", "alice's secret"));
    let chap = pair(initiator::Config { auth: alice, ..normal() }, config, &Ok(chap(Algorithms::default())));
    agreed(&chap);
    assert_eq!(chap.round_trips, 4);
    assert!(chap.texts[3].contains("CHAP_A=8 "), "the strongest: {:#?}", chap.texts);
}

#[test]
fn identity_is_what_the_initiator_says() {
    let outcome = pair(normal(), target::Config::default(), &Ok(policy()));
    let identity = outcome.identity.unwrap();
    assert_eq!(identity.initiator_name, name("iqn.2026-01.a:i"));
    assert_eq!(identity.target_name, Some(name("iqn.2026-01.a:t")));
    assert_eq!((identity.isid, identity.tsih, identity.cid), (ISID, 0, 0));
    assert_eq!(identity.session_type, SessionType::Normal);
}

#[test]
fn discovery_needs_no_target_but_authentication() {
    let discovery = || initiator::Config::discovery(name("iqn.2026-01.a:i"), ISID);
    let config = target::Config::default();
    let outcome = pair(discovery(), config, &Ok(policy()));
    let (i, _) = agreed(&outcome);
    assert_eq!(i.negotiated.session_type, SessionType::Discovery);
    assert_eq!(i.portal_group_tag, None);
    assert!(!outcome.texts[0].contains("MaxBurstLength"), "irrelevant keys are not offered");

    let refused = pair(discovery(), config, &Ok(chap(Algorithms::default())));
    assert!(matches!(refused.initiator, Err(initiator::LoginError::Authentication { .. })));
    assert!(refused.target.is_none());
    let bob = Some(account("bob", "bob's long secret"));
    let outcome =
        pair(initiator::Config { auth: bob, ..discovery() }, config, &Ok(chap(Algorithms::default())));
    assert_eq!(agreed(&outcome).1.authenticated_as.as_deref(), Some("bob"));
}

#[test]
fn authentication_fails() {
    let alice = || Some(account("alice", "alice's secret"));
    let mutual = |user, secret| Some(account(user, secret));
    let only = |algorithm| Algorithms::new(&[algorithm], true).unwrap();
    let failed = |algorithm| initiator::LoginError::Authentication { algorithm };
    let strongest = Some(Algorithm::Sha3_256);
    let untrusted = initiator::LoginError::TargetNotAuthenticated;
    let any = || chap(Algorithms::default());
    let with = |auth, mutual| initiator::Config { auth, mutual, ..normal() };
    let in_stage = initiator::Config { skip_security: false, ..normal() };
    let mut cases = vec![
        ("no_credentials", normal(), any(), failed(None)),
        ("no_credentials_security_stage", in_stage, any(), failed(None)),
        ("secret_wrong", with(mutual("alice", "bob's long secret"), None), any(), failed(strongest)),
        ("user_unknown", with(mutual("carol", "alice's secret"), None), any(), failed(strongest)),
        (
            "no_common_hash",
            initiator::Config { algorithms: only(Algorithm::Md5), ..with(alice(), None) },
            chap(only(Algorithm::Sha256)),
            failed(None),
        ),
        (
            "mutual_secret_wrong",
            with(alice(), mutual("target", "another secret")),
            any(),
            untrusted("wrong CHAP response"),
        ),
        (
            "mutual_user_wrong",
            with(alice(), mutual("impostor", "the target's secret")),
            any(),
            untrusted("unexpected user name"),
        ),
        (
            "mutual_wanted_from_target_without_authentication",
            with(alice(), mutual("target", "the target's secret")),
            policy(),
            failed(None),
        ),
    ];
    let (mut without_mutual, mut shared_secret) = (any(), any());
    if let (AuthRequirement::Chap(a), AuthRequirement::Chap(b)) =
        (&mut without_mutual.auth, &mut shared_secret.auth)
    {
        a.accounts.iter_mut().for_each(|account| account.mutual = None);
        b.accounts.iter_mut().for_each(|account| account.mutual = mutual("target", "bob's long secret"));
    }
    let config =
        initiator::Config { auth: alice(), mutual: mutual("target", "the target's secret"), ..normal() };
    cases.push(("mutual_wanted_and_not_configured", config.clone(), without_mutual, failed(strongest)));
    cases.push(("mutual_secret_shared_with_an_account", config, shared_secret, failed(strongest)));
    for (case, config, policy, error) in cases {
        let outcome = pair(config, target::Config::default(), &Ok(policy));
        assert_eq!(outcome.initiator.err(), Some(error), "{case}: {:#?}", outcome.texts);
        if !case.starts_with("mutual_secret_wrong") && !case.starts_with("mutual_user_wrong") {
            assert!(outcome.target.is_none(), "{case}");
        }
    }
    // The initiator has credentials and the target requires none: the login succeeds.
    let outcome =
        pair(initiator::Config { auth: alice(), ..normal() }, target::Config::default(), &Ok(policy()));
    assert_eq!(agreed(&outcome).0.authenticated_by, None);
}

#[test]
fn refusals_arrive() {
    use initiator::LoginError;
    for (status, error) in [
        (LoginStatus::AuthenticationFailure, LoginError::Authentication { algorithm: None }),
        (LoginStatus::AuthorizationFailure, LoginError::Authorization),
        (LoginStatus::NotFound, LoginError::TargetNotFound),
        (LoginStatus::TargetRemoved, LoginError::TargetNotFound),
        (LoginStatus::ServiceUnavailable, LoginError::Refused(LoginStatus::ServiceUnavailable)),
        (LoginStatus::SessionDoesNotExist, LoginError::Refused(LoginStatus::SessionDoesNotExist)),
        (LoginStatus::TooManyConnections, LoginError::Refused(LoginStatus::TooManyConnections)),
    ] {
        let outcome = pair(normal(), target::Config::default(), &Err(status.into()));
        assert_eq!(outcome.initiator.err(), Some(error));
    }
}

#[test]
fn redirection_arrives() {
    let address = TargetAddress::parse("[2001:db8::1]:3261").unwrap();
    for (status, permanent) in
        [(LoginStatus::TargetMovedTemporarily, false), (LoginStatus::TargetMovedPermanently, true)]
    {
        let refusal = Refusal { status, target_address: Some(address.clone()) };
        let outcome = pair(normal(), target::Config::default(), &Err(refusal));
        let Ok(initiator::Step::Redirect(redirect)) = outcome.initiator else { panic!("{outcome:?}") };
        assert_eq!((redirect.address, redirect.permanent), (address.clone(), permanent));
    }
    let nowhere = Refusal { status: LoginStatus::TargetMovedTemporarily, target_address: None };
    let outcome = pair(normal(), target::Config::default(), &Err(nowhere));
    assert_eq!(outcome.initiator.err(), Some(initiator::LoginError::BadRedirect(None)));
}

#[test]
fn target_offers_what_the_initiator_leaves_out() {
    // A target that takes no immediate data and requires digests; an initiator that sends neither key.
    let mut policy = policy();
    policy.params.immediate_data = false;
    policy.params.header_digest = DigestPolicy::Require;
    policy.params.max_burst_length = 65536;
    policy.params.first_burst_length = 4096;
    let mut hand = Hand::new(Ok(policy));
    let first = hand.send(0x87, NAMES);
    assert_eq!((first.transit, first.status), (false, LoginStatus::Success));
    let text = hand.text();
    for pair in ["HeaderDigest=CRC32C", "ImmediateData=No", "MaxBurstLength=65536", "FirstBurstLength=4096"] {
        assert!(text.contains(pair), "{text}");
    }
    assert!(!text.contains("DataDigest"));
    let answers = "HeaderDigest=CRC32C\0ImmediateData=No\0MaxBurstLength=65536\0FirstBurstLength=4096\0";
    let last = hand.send(0x87, answers);
    assert!(last.transit);
    let negotiated = hand.complete.unwrap().negotiated;
    assert!(negotiated.header_digest && !negotiated.immediate_data && !negotiated.data_digest);
    assert_eq!((negotiated.max_burst_length, negotiated.first_burst_length), (65536, 4096));
}

const NAMES: &str = "InitiatorName=iqn.2026-01.a:i\0TargetName=iqn.2026-01.a:t\0SessionType=Normal\0";

/// A target with requests written by the test.
struct Hand {
    target: target::Login,
    answer: Result<Policy, Refusal>,
    complete: Option<target::Complete>,
    text: Vec<u8>,
    header: LoginRequest,
}

impl Hand {
    fn new(answer: Result<Policy, Refusal>) -> Self {
        let header = LoginRequest {
            transit: false,
            continues: false,
            csg: Stage::Security,
            nsg: Stage::Security,
            version_max: 0,
            version_min: 0,
            isid: ISID,
            tsih: 0,
            itt: Itt(5),
            cid: 0,
            cmd_sn: CmdSn(u32::MAX),
            exp_stat_sn: StatSn(u32::MAX),
            data_segment_length: 0,
        };
        let target = target::Login::new(target::Config::default(), [3; 32]);
        Self { target, answer, complete: None, text: Vec::new(), header }
    }

    fn send(&mut self, flags: u8, text: &str) -> LoginResponse {
        let mut raw = self.header.emit();
        raw[1] = flags;
        let request = LoginRequest::parse(&raw).unwrap();
        let mut step = self.target.receive(&request, text.as_bytes());
        if let target::Step::Identify(_) = step {
            step = self.target.identify(self.answer.clone());
        }
        let response = match step {
            target::Step::Respond(response) | target::Step::Refused(response) => response,
            target::Step::Complete(complete) => {
                self.complete = Some(*complete);
                self.target.accept(1)
            }
            target::Step::Identify(_) => unreachable!(),
        };
        self.text = response.text;
        response.header
    }

    fn text(&self) -> String {
        String::from_utf8(self.text.clone()).unwrap().replace('\0', " ")
    }
}

#[test]
fn first_request_refused() {
    let names = |extra: &str| format!("{NAMES}{extra}");
    let only = |text: &str| text.to_owned();
    let initiator = |extra: &str| format!("InitiatorName=iqn.2026-01.a:i\0{extra}");
    for (case, flags, text, status) in [
        ("initiator_name_missing", 0x87, only("TargetName=iqn.2026-01.a:t\0"), LoginStatus::MissingParameter),
        ("target_name_missing", 0x87, initiator(""), LoginStatus::MissingParameter),
        ("no_text", 0x87, String::new(), LoginStatus::MissingParameter),
        ("initiator_name_malformed", 0x87, only("InitiatorName=a\nb\0"), LoginStatus::InitiatorError),
        ("target_name_malformed", 0x87, initiator("TargetName=../../etc\0"), LoginStatus::NotFound),
        ("session_type_unknown", 0x87, initiator("SessionType=Copy\0"), LoginStatus::SessionTypeNotSupported),
        ("initiator_name_twice", 0x87, names("InitiatorName=iqn.2026-01.a:i\0"), LoginStatus::InitiatorError),
        ("key_twice", 0x87, names("MaxBurstLength=512\0MaxBurstLength=512\0"), LoginStatus::InitiatorError),
        ("full_feature_stage", 0x0c, names(""), LoginStatus::InitiatorError),
        ("stage_backwards", 0x84, names(""), LoginStatus::InitiatorError),
        ("stage_stays", 0x85, names(""), LoginStatus::InitiatorError),
        ("no_equals", 0x87, names("Rubbish\0"), LoginStatus::InitiatorError),
        ("chap_without_method", 0x81, names("CHAP_A=5\0"), LoginStatus::InitiatorError),
        ("method_unknown", 0x81, names("AuthMethod=KRB5,SRP\0"), LoginStatus::AuthenticationFailure),
        ("method_in_operational_stage", 0x87, names("AuthMethod=None\0"), LoginStatus::InitiatorError),
        ("continuation_without_text", 0x44, String::new(), LoginStatus::InitiatorError),
        ("segment_too_long", 0x44, "x".repeat(8193), LoginStatus::InitiatorError),
    ] {
        let mut hand = Hand::new(Ok(policy()));
        let response = hand.send(flags, &text);
        assert_eq!(response.status, status, "{case}");
        assert!(!response.transit && hand.complete.is_none(), "{case}");
    }
}

#[test]
fn version_not_supported() {
    let mut hand = Hand::new(Ok(policy()));
    (hand.header.version_min, hand.header.version_max) = (1, 2);
    assert_eq!(hand.send(0x87, NAMES).status, LoginStatus::UnsupportedVersion);
    let mut hand = Hand::new(Ok(policy()));
    hand.header.version_max = 2;
    let response = hand.send(0x87, NAMES);
    assert_eq!((response.status, response.version_active), (LoginStatus::Success, 0));
}

#[test]
fn later_request_must_repeat_the_first() {
    type Change = fn(&mut LoginRequest);
    let changes: [(&str, Change, LoginStatus); 6] = [
        ("isid", |header| header.isid = Isid([0; 6]), LoginStatus::InitiatorError),
        ("cid", |header| header.cid = 9, LoginStatus::InitiatorError),
        ("itt", |header| header.itt = Itt(6), LoginStatus::InitiatorError),
        ("tsih", |header| header.tsih = 9, LoginStatus::InitiatorError),
        ("cmd_sn", |header| header.cmd_sn = CmdSn(9), LoginStatus::Success),
        ("exp_stat_sn", |header| header.exp_stat_sn = StatSn(99), LoginStatus::Success),
    ];
    for (field, change, status) in changes {
        let mut hand = Hand::new(Ok(policy()));
        assert!(hand.send(0x81, NAMES).transit);
        change(&mut hand.header);
        assert_eq!(hand.send(0x87, "").status, status, "{field}");
    }
    // A stage other than the one agreed on.
    let mut hand = Hand::new(Ok(policy()));
    assert!(hand.send(0x81, NAMES).transit);
    assert_eq!(hand.send(0x81, "").status, LoginStatus::InitiatorError);
}

#[test]
fn numbers_wrap_and_tsih_comes_last() {
    let mut hand = Hand::new(Ok(policy()));
    let first = hand.send(0x81, NAMES);
    assert_eq!((first.stat_sn, first.tsih), (StatSn(u32::MAX), 0));
    assert_eq!((first.exp_cmd_sn, first.max_cmd_sn), (CmdSn(u32::MAX), CmdSn(126)));
    assert_eq!(first.itt, Itt(5));
    let last = hand.send(0x87, "");
    assert_eq!((last.stat_sn, last.tsih), (StatSn(0), 1));
    assert_eq!((last.csg, last.nsg), (Stage::Operational, Stage::FullFeature));
    assert_eq!(hand.complete.unwrap().stat_sn, StatSn(1));
}

#[test]
fn initiators_habits() {
    // Every key in the security stage, in one request with transit to full feature.
    let mut hand = Hand::new(Ok(policy()));
    let all = format!(
        "{NAMES}AuthMethod=CHAP,None\0HeaderDigest=None\0MaxRecvDataSegmentLength=65536\0InitialR2T=No\0"
    );
    assert!(hand.send(0x83, &all).transit);
    let expected = "TargetPortalGroupTag=1 HeaderDigest=None InitialR2T=No AuthMethod=None \
                    MaxRecvDataSegmentLength=262144 ";
    assert_eq!(hand.text(), expected);
    let negotiated = hand.complete.unwrap().negotiated;
    assert_eq!((negotiated.max_send_data_segment_length, negotiated.initial_r2t), (65536, false));

    // AuthMethod=None, then a request that only transits.
    let mut hand = Hand::new(Ok(policy()));
    assert!(!hand.send(0x00, &format!("{NAMES}AuthMethod=None\0")).transit);
    assert!(hand.send(0x81, "").transit);
    assert!(!hand.send(0x04, "MaxBurstLength=262144\0").transit);
    assert!(hand.send(0x87, "IFMarker=No\0X-com.a.b=c\0").transit);
    assert_eq!(hand.text(), "IFMarker=No X-com.a.b=NotUnderstood ");

    // Names in continued requests, split in the middle of a key.
    let mut hand = Hand::new(Ok(policy()));
    let (a, b) = NAMES.split_at(33);
    assert_eq!(hand.send(0x44, a).status, LoginStatus::Success);
    assert_eq!(hand.text(), "");
    assert!(hand.send(0x87, b).transit);
}

#[test]
fn optional_chap_is_chosen_by_the_initiators_preference_rfc7143_13_1() {
    let mut answer = chap(Algorithms::default());
    let AuthRequirement::Chap(optional) = &mut answer.auth else { unreachable!() };
    optional.required = false;
    let answer = Ok(answer);
    // (first text, flags, response, authentication is over)
    for (methods, flags, expected, is_over) in [
        ("AuthMethod=None\0", 0x81, "AuthMethod=None ", true),
        ("AuthMethod=None,CHAP\0", 0x81, "AuthMethod=None ", true),
        ("AuthMethod=KRB5,CHAP,None\0", 0x00, "AuthMethod=CHAP ", false),
        ("", 0x87, "", true),
        ("", 0x81, "", true),
        ("", 0x00, "", false),
    ] {
        let mut hand = Hand::new(answer.clone());
        let status = hand.send(flags, &format!("{NAMES}{methods}")).status;
        assert_eq!(status, LoginStatus::Success, "{methods}");
        let methods_chosen = hand.text().replace("MaxRecvDataSegmentLength=262144 ", "");
        assert_eq!(methods_chosen, format!("TargetPortalGroupTag=1 {expected}"), "{methods}");
        let ended = hand.target.is_authenticated() || hand.target.is_over();
        assert_eq!(ended, is_over, "{methods} {flags:#x}");
    }
    for (case, text) in [("no_method_known", "AuthMethod=KRB5\0"), ("chap_keys_first", "CHAP_A=5\0")] {
        let status = Hand::new(answer.clone()).send(0x81, &format!("{NAMES}{text}")).status;
        assert_eq!(status, LoginStatus::AuthenticationFailure, "{case}");
    }
    let mut hand = Hand::new(answer.clone());
    hand.send(0x00, &format!("{NAMES}AuthMethod=CHAP,None\0"));
    hand.send(0x00, "CHAP_A=5\0");
    let wrong = hand.send(0x81, "CHAP_N=alice\0CHAP_R=0x0102\0");
    assert_eq!(wrong.status, LoginStatus::AuthenticationFailure, "CHAP once chosen must be passed");
    let mut hand = Hand::new(answer);
    hand.send(0x00, &format!("{NAMES}AuthMethod=CHAP,None\0"));
    assert!(hand.send(0x81, "").status != LoginStatus::Success, "nor is it left by T");
}

#[test]
fn chap_by_hand() {
    let answer = Ok(chap(Algorithms::default()));
    let first = format!("{NAMES}AuthMethod=CHAP\0");
    let challenged = || {
        let mut hand = Hand::new(answer.clone());
        hand.send(0x00, &first);
        assert_eq!(hand.text(), "TargetPortalGroupTag=1 AuthMethod=CHAP ");
        hand.send(0x00, "CHAP_A=5\0");
        let text = hand.text();
        let challenge = text.split("CHAP_C=").nth(1).unwrap().trim().to_owned();
        let identifier: u8 =
            text.split("CHAP_I=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        (hand, identifier, challenge)
    };
    let respond = |identifier, challenge: &str| {
        let challenge = text::parse_binary(challenge, 1024).unwrap();
        let secret = Secret::new(b"alice's secret").unwrap();
        text::binary(&Algorithm::Md5.respond(identifier, &secret, &challenge))
    };

    let (mut hand, identifier, challenge) = challenged();
    let response = respond(identifier, &challenge);
    assert!(hand.send(0x81, &format!("CHAP_N=alice\0CHAP_R={response}\0")).transit);
    assert!(hand.target.is_authenticated());

    let reflected = format!("CHAP_I=1\0CHAP_C={challenge}\0");
    let too_long = format!("CHAP_I=1\0CHAP_C=0x{}\0", "00".repeat(1025));
    // (case, text after "CHAP_N=alice CHAP_R=<right>", status)
    for (case, extra, status) in [
        ("challenge_reflected", reflected, LoginStatus::AuthenticationFailure),
        ("challenge_without_identifier", "CHAP_C=0x0102\0".to_owned(), LoginStatus::InitiatorError),
        ("identifier_too_large", "CHAP_I=256\0CHAP_C=0x0102\0".to_owned(), LoginStatus::InitiatorError),
        ("challenge_malformed", "CHAP_I=1\0CHAP_C=xyz\0".to_owned(), LoginStatus::InitiatorError),
        ("challenge_too_long", too_long, LoginStatus::InitiatorError),
        ("name_twice", "CHAP_N=alice\0".to_owned(), LoginStatus::InitiatorError),
        ("algorithm_again", "CHAP_A=5\0".to_owned(), LoginStatus::InitiatorError),
        ("method_again", "AuthMethod=CHAP\0".to_owned(), LoginStatus::InitiatorError),
    ] {
        let (mut hand, ..) = challenged();
        let text = format!("CHAP_N=alice\0CHAP_R={response}\0{extra}");
        assert_eq!(hand.send(0x81, &text).status, status, "{case}");
        assert!(!hand.target.is_authenticated(), "{case}");
    }
    for (case, text) in [
        ("transit_without_response", ""),
        ("response_missing", "CHAP_N=alice\0"),
        ("response_empty", "CHAP_N=alice\0CHAP_R=0x\0"),
        ("response_malformed", "CHAP_N=alice\0CHAP_R=12\0"),
    ] {
        let (mut hand, ..) = challenged();
        assert_eq!(hand.send(0x81, text).status, LoginStatus::AuthenticationFailure, "{case}");
    }

    // Attempts to skip the security stage.
    for (case, flags, text) in [
        ("transit_at_once", 0x81, NAMES),
        ("full_feature_at_once", 0x83, NAMES),
        ("operational_stage_at_once", 0x87, NAMES),
        ("method_none", 0x81, &format!("{NAMES}AuthMethod=None\0")),
    ] {
        let mut hand = Hand::new(answer.clone());
        assert_eq!(hand.send(flags, text).status, LoginStatus::AuthenticationFailure, "{case}");
    }
    // T with AuthMethod only: answered without T.
    let mut hand = Hand::new(answer.clone());
    assert!(!hand.send(0x83, &first).transit);

    // AuthMethod and CHAP_A in one request.
    let mut hand = Hand::new(answer.clone());
    hand.send(0x00, &format!("{first}CHAP_A=5,7\0"));
    assert!(hand.text().contains("AuthMethod=CHAP CHAP_A=7 CHAP_I="));
}

#[test]
fn the_log_gets_the_reason_of_a_denial() {
    let methods = format!("{NAMES}AuthMethod=CHAP\0");
    for (texts, denial) in [
        (&[(0x81, NAMES)][..], target::Denial::NotOffered),
        (&[(0x00, &methods), (0x81, "")], target::Denial::NoAlgorithm),
        (&[(0x00, &methods), (0x00, "CHAP_A=99\0")], target::Denial::Algorithm),
        (&[(0x00, &methods), (0x00, "CHAP_A=5\0"), (0x81, "")], target::Denial::NoResponse),
    ] {
        let mut hand = Hand::new(Ok(chap(Algorithms::default())));
        let status = texts.iter().map(|(flags, text)| hand.send(*flags, text).status).last();
        assert_eq!(status, Some(LoginStatus::AuthenticationFailure), "{denial}");
        assert_eq!(hand.target.denial(), Some(&denial));
    }
}

#[test]
fn stranger_is_bounded() {
    // Bound of requests without progress.
    let mut hand = Hand::new(Ok(chap(Algorithms::default())));
    let mut count = 0;
    hand.send(0x00, NAMES);
    while hand.send(0x00, "").status == LoginStatus::Success {
        count += 1;
        assert!(count <= super::REQUESTS_BEFORE_AUTHENTICATION_MAX);
    }
    // Bound of bytes.
    let mut hand = Hand::new(Ok(policy()));
    let mut bytes = 0;
    while hand.send(0x44, &"k".repeat(4096)).status == LoginStatus::Success {
        bytes += 4096;
        assert!(bytes <= text::TEXT_BEFORE_AUTHENTICATION_MAX);
    }
}

#[test]
fn refused_after_everything_was_agreed() {
    let mut target = target::Login::new(target::Config::default(), [0; 32]);
    let mut request = Hand::new(Ok(policy())).header;
    (request.transit, request.csg, request.nsg) = (true, Stage::Operational, Stage::FullFeature);
    let target::Step::Identify(_) = target.receive(&request, NAMES.as_bytes()) else { panic!() };
    let target::Step::Complete(_) = target.identify(Ok(policy())) else { panic!() };
    let response = target.refuse(LoginStatus::OutOfResources);
    assert_eq!(response.header.status, LoginStatus::OutOfResources);
    assert!(!response.header.transit && response.header.tsih == 0);
}

#[test]
fn request_out_of_turn_is_refused() {
    let request = LoginRequest { csg: Stage::Operational, ..Hand::new(Ok(policy())).header };
    let request = LoginRequest { transit: true, nsg: Stage::FullFeature, ..request };
    for answered in [false, true] {
        let mut target = target::Login::new(target::Config::default(), [0; 32]);
        let target::Step::Identify(_) = target.receive(&request, NAMES.as_bytes()) else { panic!() };
        if answered {
            let target::Step::Complete(_) = target.identify(Ok(policy())) else { panic!() };
        }
        for _ in 0..2 {
            let target::Step::Refused(response) = target.receive(&request, b"") else { panic!() };
            assert_eq!(response.header.status, LoginStatus::InitiatorError);
            assert!(target.is_over() && !target.is_authenticated());
        }
    }
}

#[test]
fn configuration_refused() {
    use initiator::ConfigError;
    let alice = || Some(account("alice", "alice's secret"));
    let mut params = normal();
    params.params.first_burst_length = 1 << 20;
    params.params.max_burst_length = 1 << 19;
    for (config, error) in [
        (initiator::Config { target_name: None, ..normal() }, ConfigError::TargetName),
        (initiator::Config { mutual: alice(), ..normal() }, ConfigError::MutualAlone),
        (initiator::Config { auth: alice(), mutual: alice(), ..normal() }, ConfigError::SameSecret),
        (initiator::Config { auth: Some(account("", "alice's secret")), ..normal() }, ConfigError::User),
        (initiator::Config { segment_max: 63, ..normal() }, ConfigError::SegmentMax),
    ] {
        assert_eq!(initiator::Login::new(config, [0; 32]).err(), Some(error));
    }
    assert!(matches!(initiator::Login::new(params, [0; 32]).err(), Some(ConfigError::Params(_))));
}

/// A response in the security stage.
fn response(request: &LoginRequest, stat_sn: StatSn) -> LoginResponse {
    LoginResponse {
        transit: false,
        continues: false,
        csg: Stage::Security,
        nsg: Stage::Security,
        version_max: 0,
        version_active: 0,
        isid: request.isid,
        tsih: 0,
        itt: request.itt,
        stat_sn,
        exp_cmd_sn: request.cmd_sn,
        max_cmd_sn: request.cmd_sn,
        status: LoginStatus::Success,
        data_segment_length: 0,
    }
}

/// An initiator with responses written by the test.
fn initiator_sees(
    config: initiator::Config,
    flags: u8,
    text: &str,
) -> Result<initiator::Step, initiator::LoginError> {
    let mut login = initiator::Login::new(config, [7; 32]).unwrap();
    let request = login.start().header;
    let mut raw = LoginResponse { tsih: 1, ..response(&request, StatSn(1)) }.emit();
    raw[1] = flags;
    login.receive(&LoginResponse::parse(&raw).unwrap(), text.as_bytes())
}

#[test]
fn targets_habits_and_faults() {
    use initiator::LoginError;
    let complete = |text: &str| match initiator_sees(normal(), 0x87, text) {
        Ok(initiator::Step::Complete(complete)) => complete.negotiated,
        other => panic!("{text}: {other:?}"),
    };
    // A target that sends no key: defaults.
    let silent = complete("");
    assert!(silent.initial_r2t && silent.immediate_data && !silent.header_digest);
    assert_eq!((silent.max_burst_length, silent.first_burst_length), (262_144, 65_536));
    assert_eq!((silent.max_recv_data_segment_length, silent.max_send_data_segment_length), (262_144, 8192));
    // Irrelevant and Reject leave defaults.
    let odd = complete("FirstBurstLength=Irrelevant\0InitialR2T=Reject\0MaxOutstandingR2T=Reject\0");
    assert!(odd.initial_r2t);
    assert_eq!((odd.first_burst_length, odd.max_outstanding_r2t), (65_536, 1));
    // The target's own value instead of the result, for keys where it is harmless.
    assert_eq!(complete("DefaultTime2Retain=20\0").default_time2retain, 0);
    assert_eq!(complete("MaxBurstLength=65536\0FirstBurstLength=131072\0").first_burst_length, 65536);

    for (text, error) in [
        ("MaxBurstLength=16777216\0", None),
        ("MaxOutstandingR2T=17\0", None),
        ("HeaderDigest=MD5\0", None),
        ("ImmediateData=Maybe\0", None),
        ("DataPDUInOrder=No\0", None),
        ("InitialR2T=No\0InitialR2T=No\0", None),
        ("MaxOutstandingR2T=NotUnderstood\0", None),
        ("MaxRecvDataSegmentLength=NotUnderstood\0", None),
        ("TargetName=NotUnderstood\0", None),
        ("HeaderDigesu=NotUnderstood\0", None),
        ("AuthMethod=None\0", Some(LoginError::Protocol("security key outside its stage"))),
        ("TargetPortalGroupTag=65536\0", Some(LoginError::Protocol("malformed TargetPortalGroupTag"))),
    ] {
        let found = initiator_sees(normal(), 0x87, text).unwrap_err();
        match error {
            Some(error) => assert_eq!(found, error, "{text}"),
            None => assert!(matches!(found, LoginError::Negotiation(_)), "{text}: {found:?}"),
        }
    }
    for (flags, case) in [(0x81, "other stage"), (0x83, "other stage"), (0x00, "other stage")] {
        assert!(matches!(initiator_sees(normal(), flags, ""), Err(LoginError::Protocol(_))), "{case}");
    }
    let alice = initiator::Config { auth: Some(account("alice", "alice's secret")), ..normal() };
    assert!(matches!(initiator_sees(alice.clone(), 0x81, "AuthMethod=CHAP\0"), Err(LoginError::Protocol(_))));
    assert!(matches!(
        initiator_sees(alice, 0x00, "AuthMethod=Reject\0"),
        Err(LoginError::Authentication { algorithm: None })
    ));
}

#[test]
fn target_that_reflects_is_not_believed() {
    let mut config = normal();
    config.auth = Some(account("alice", "alice's secret"));
    config.mutual = Some(account("alice", "the target's secret"));
    let mut login = initiator::Login::new(config, [7; 32]).unwrap();
    let request = login.start().header;
    let mut stat_sn = StatSn(0);
    let mut receive = |login: &mut initiator::Login, text: &str| {
        login.receive(&response(&request, stat_sn.take()), text.as_bytes())
    };
    assert!(receive(&mut login, "AuthMethod=CHAP\0").is_ok());
    let Ok(initiator::Step::Send(answer)) = receive(&mut login, "CHAP_A=8\0CHAP_I=1\0CHAP_C=0x0102\0") else {
        panic!()
    };
    let text = String::from_utf8(answer.text).unwrap();
    let reflected = text.split('\0').find(|pair| pair.starts_with("CHAP_R")).unwrap();
    let end = receive(&mut login, &format!("CHAP_N=alice\0{reflected}\0"));
    let expected = Some(initiator::LoginError::TargetNotAuthenticated("it reflected our own response"));
    assert_eq!(end.err(), expected);
}

/// Texts of the pairs that a hostile peer is likely to send, and arbitrary bytes.
fn hostile_text() -> impl Strategy<Value = Vec<u8>> {
    let keys = "InitiatorName TargetName SessionType AuthMethod CHAP_A CHAP_I CHAP_C CHAP_N CHAP_R HeaderDigest \
        MaxBurstLength FirstBurstLength MaxRecvDataSegmentLength InitialR2T X-a TargetAddress TargetPortalGroupTag \
        SendTargets IFMarkInt ";
    let key = prop::sample::select(keys.split(' ').collect::<Vec<_>>());
    let value = prop_oneof![
        Just("Yes".to_owned()),
        Just("CHAP,None".to_owned()),
        Just("5,6,7,8".to_owned()),
        Just("0x0102".to_owned()),
        Just("iqn.2026-01.a:i".to_owned()),
        Just("Discovery".to_owned()),
        "[0-9]{1,9}",
        ".{0,20}",
    ];
    let pair = (key, value).prop_map(|(key, value)| format!("{key}={value}\0").into_bytes());
    prop::collection::vec(prop_oneof![9 => pair, 1 => prop::collection::vec(any::<u8>(), 0..40)], 0..8)
        .prop_map(|pairs| pairs.concat())
}

proptest! {
    #[test]
    fn target_survives_any_requests(
        requests in prop::collection::vec((any::<u8>(), hostile_text()), 1..12), named: bool, secure: bool,
    ) {
        let policy = if secure { chap(Algorithms::default()) } else { policy() };
        let mut login = target::Login::new(target::Config { segment_max: 512, command_window: 1 }, [1; 32]);
        let header = Hand::new(Ok(policy.clone())).header;
        for (index, (flags, mut segment)) in requests.into_iter().enumerate() {
            let mut raw = header.emit();
            raw[1] = flags;
            let Ok(request) = LoginRequest::parse(&raw) else { continue };
            if named && index == 0 {
                segment.extend_from_slice(b"\0");
                segment.extend_from_slice(NAMES.as_bytes());
            }
            let mut step = login.receive(&request, &segment);
            if let target::Step::Identify(_) = step {
                step = login.identify(Ok(policy.clone()));
            }
            match step {
                target::Step::Respond(response) => prop_assert!(response.text.len() <= 512),
                target::Step::Complete(complete) => {
                    prop_assert!(!secure, "no peer has the secret");
                    prop_assert!(complete.negotiated.first_burst_length <= complete.negotiated.max_burst_length);
                    let _ = login.accept(1);
                    break;
                }
                target::Step::Refused(_) => break,
                target::Step::Identify(_) => unreachable!(),
            }
        }
    }

    #[test]
    fn initiator_survives_any_responses(
        responses in prop::collection::vec((any::<u8>(), any::<bool>(), hostile_text()), 1..12), secure: bool,
    ) {
        let mut config = initiator::Config { segment_max: 512, ..normal() };
        if secure {
            config.auth = Some(account("alice", "alice's secret"));
            config.mutual = Some(account("target", "the target's secret"));
        }
        let mut login = initiator::Login::new(config, [1; 32]).unwrap();
        let request = login.start().header;
        for (flags, refused, segment) in responses {
            let status =
                if refused && flags & 1 == 0 { LoginStatus::TargetMovedTemporarily } else { LoginStatus::Success };
            let mut raw = LoginResponse { tsih: 1, status, ..response(&request, StatSn(0)) }.emit();
            raw[1] = flags;
            let Ok(header) = LoginResponse::parse(&raw) else { continue };
            match login.receive(&header, &segment) {
                Ok(initiator::Step::Send(request)) => prop_assert!(request.text.len() <= 512),
                Ok(initiator::Step::Complete(_)) => {
                    prop_assert!(!secure, "no peer has the secret");
                    break;
                }
                Ok(initiator::Step::Redirect(_)) | Err(_) => break,
            }
        }
    }
}

#[test]
fn the_next_key_is_said_to_those_who_ask_seal1_9() {
    let announcement = NextKey::Announced(vec![1; 65]);
    for (asks, policy_says, expected) in [
        (true, announcement.clone(), announcement.clone()),
        (true, NextKey::Kept, NextKey::Kept),
        // A target of an earlier release does not understand the key.
        (true, NextKey::Unsaid, NextKey::Unsaid),
        (false, announcement, NextKey::Unsaid),
        (false, NextKey::Kept, NextKey::Unsaid),
    ] {
        for skip_security in [true, false] {
            let config = initiator::Config { asks_next_key: asks, skip_security, ..normal() };
            let policy = Policy { next_key: policy_says.clone(), ..policy() };
            let outcome = pair(config, target::Config::default(), &Ok(policy));
            assert_eq!(agreed(&outcome).0.next_key, expected, "{:#?}", outcome.texts);
            let text = outcome.texts.concat();
            assert_eq!(text.contains(NEXT_KEY), asks, "{text}");
        }
    }
}

/// A response to the first request of an initiator, with `text` beside what it must contain.
fn respond_with(
    config: initiator::Config,
    more: &[(&str, &str)],
) -> Result<initiator::Step, initiator::LoginError> {
    let mut initiator = initiator::Login::new(config, [7; 32]).unwrap();
    let mut target = target::Login::new(target::Config::default(), [9; 32]);
    let request = initiator.start();
    let target::Step::Identify(_) = target.receive(&request.header, &request.text) else {
        panic!("no names")
    };
    let target::Step::Complete(_) = target.identify(Ok(policy())) else { panic!("one round trip") };
    let mut response = target.accept(1);
    let answer = format!("{NEXT_KEY}={}\0", text::NOT_UNDERSTOOD);
    let without = String::from_utf8(response.text).unwrap().replace(&answer, "");
    response.text = without.into_bytes();
    more.iter().for_each(|(key, value)| text::emit(key, value, &mut response.text));
    initiator.receive(&response.header, &response.text)
}

#[test]
fn announcements_unasked_repeated_or_malformed_end_the_login_seal1_9() {
    let asks = || initiator::Config { asks_next_key: true, ..normal() };
    let long = text::binary(&[1; ANNOUNCEMENT_BYTES_MAX + 1]);
    for (config, more) in [
        (normal(), &[(NEXT_KEY, "0bAQI=")][..]),
        (normal(), &[(NEXT_KEY, "None")]),
        (asks(), &[(NEXT_KEY, "0bAQI="), (NEXT_KEY, "0bAQI=")]),
        (asks(), &[(NEXT_KEY, "0bA")]),
        (asks(), &[(NEXT_KEY, "")]),
        (asks(), &[(NEXT_KEY, &long)]),
    ] {
        let step = respond_with(config, more);
        assert!(step.is_err(), "{more:?}: {step:?}");
    }
    assert!(respond_with(asks(), &[(NEXT_KEY, "0bAQI=")]).is_ok());
    assert!(respond_with(asks(), &[]).is_ok(), "a target may leave it without an answer");
}
