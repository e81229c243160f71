//! Login: each side against a hostile peer, and both sides together.
//!
//! The hostile peer takes the correct next step with faults: it knows the exchange, may have the secret, and may echo
//! received values. Without the secret it must never complete the login.

use iscsi::chap::{Algorithm, Algorithms, Secret};
use iscsi::login::target::{Account, AuthRequirement, ChapPolicy, Identity, Policy, Refusal};
use iscsi::login::{ChapAccount, NextKey, REQUESTS_MAX, SEGMENT_LENGTH_MAX, initiator, target};
use iscsi::name::TargetAddress;
use iscsi::text::{self, binary, parse_binary, parse_number};
use iscsi::wire::{CmdSn, Isid, Itt, LoginRequest, LoginResponse, LoginStatus, Stage, StatSn};
use iscsi_test::{INITIATOR, TARGET, name};

use crate::text::{agree, plausible};
use crate::words;
use crate::{Source, heap};

const HEAP_MAX: usize = 512 << 10;
const INITIATORS: &[u8] = b"the initiator's secret";
const TARGETS: &[u8] = b"the target's secret";
/// The secret of a peer without the real one.
const GUESS: &[u8] = b"nobody's secret";

/// The first byte selects the side.
pub fn login(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    heap::within(HEAP_MAX, || match source.byte() % 3 {
        0 => at_target(source),
        1 => at_initiator(source),
        _ => both_sides(source),
    });
}

fn account(user: &str, secret: &[u8]) -> ChapAccount {
    ChapAccount { user: user.to_owned(), secret: Secret::new(secret).expect("long enough") }
}

fn algorithms(source: &mut Source<'_>) -> Algorithms {
    let all = Algorithm::ALL;
    let list = [source.pick(&all), source.pick(&all), source.pick(&all)];
    Algorithms::new(&list, true).expect("not empty")
}

/// The target's answer to [`target::Step::Identify`], or a refusal.
fn policy(source: &mut Source<'_>, chap: bool) -> Result<Policy, Refusal> {
    if source.rarely(32) {
        let target_address = TargetAddress::parse("[::1]:3260").ok().filter(|_| source.flag());
        let status = source.pick(&[LoginStatus::TargetMovedTemporarily, LoginStatus::NotFound]);
        return Err(Refusal { status, target_address });
    }
    let auth = if chap {
        AuthRequirement::Chap(ChapPolicy {
            accounts: vec![Account {
                initiator: account("user", INITIATORS),
                mutual: source.flag().then(|| account("target", TARGETS)),
            }],
            algorithms: algorithms(source),
            required: !source.rarely(4),
        })
    } else {
        AuthRequirement::None
    };
    let target_alias = source.flag().then(|| "alias".to_owned());
    Ok(Policy {
        auth,
        portal_group_tag: 1,
        target_alias,
        params: words::params(source),
        next_key: NextKey::Unsaid,
    })
}

/// Text that the hostile peer has received, to be answered or echoed.
#[derive(Default)]
struct ReceivedText {
    text: Vec<u8>,
}

impl ReceivedText {
    fn collect(&mut self, segment: &[u8], continued: &mut bool, continues: bool) {
        if !*continued {
            self.text.clear();
        }
        self.text.extend_from_slice(segment);
        *continued = continues;
    }

    fn value(&self, key: &str) -> Option<&str> {
        let pairs = text::parse(&self.text).ok()?;
        pairs.into_iter().find(|pair| pair.key == key).map(|pair| pair.value)
    }

    fn response(&self, secret: &[u8], algorithm: Option<Algorithm>) -> Option<String> {
        let named = self.value("CHAP_A").and_then(parse_number).and_then(Algorithm::from_code);
        let algorithm = named.or(algorithm)?;
        let identifier = u8::try_from(parse_number(self.value("CHAP_I")?)?).ok()?;
        let challenge = parse_binary(self.value("CHAP_C")?, 1024)?;
        let secret = Secret::new(secret).ok()?;
        Some(binary(&algorithm.respond(identifier, &secret, &challenge)))
    }
}

/// One text of the hostile peer. `knows` is the secret for its proofs.
fn compose(
    source: &mut Source<'_>,
    received: &ReceivedText,
    knows: Option<&[u8]>,
    steps: &[&str],
) -> Vec<u8> {
    let mut text = Vec::new();
    for step in steps {
        if source.rarely(24) {
            continue;
        }
        text.extend_from_slice(step.as_bytes());
        text.push(0);
    }
    match source.byte() {
        // A proof, or a challenge beside it.
        choice @ 0..=127 => {
            let algorithm = Some(source.pick(&Algorithm::ALL));
            let proof = received.response(knows.unwrap_or(GUESS), algorithm);
            if let Some(proof) = proof {
                text::emit("CHAP_N", "user", &mut text);
                text::emit("CHAP_R", &proof, &mut text);
                if choice >= 64 {
                    text::emit("CHAP_I", "7", &mut text);
                    text::emit("CHAP_C", "0x000102030405060708090a0b0c0d0e0f", &mut text);
                }
            }
        }
        // A received value, under the same key or another.
        128..=191 => {
            let key = source.pick(&words::KEYS);
            if let Some(value) = received.value(key) {
                let under = if source.flag() { key } else { source.pick(&["CHAP_R", "CHAP_C", "CHAP_I"]) };
                text::emit(under, value, &mut text);
            }
        }
        192.. => {}
    }
    for _ in 0..source.byte() % 8 {
        words::pair(source, &mut text);
    }
    text.truncate(SEGMENT_LENGTH_MAX);
    text
}

const STAGES: [Stage; 3] = [Stage::Security, Stage::Operational, Stage::FullFeature];

fn at_target(mut source: Source<'_>) {
    let chap = source.flag();
    let knows = source.flag();
    let config = target::Config {
        command_window: source.number().clamp(1, 1 << 20),
        segment_max: source.number().clamp(64, 8192) as usize,
    };
    let mut login = target::Login::new(config, source.array());
    let mut received = ReceivedText::default();
    let (mut continued, mut stage, mut wants) = (false, Stage::Security, None);
    let mut proven = false;
    let isid = Isid::random([1, 2, 3], 4);
    for round in 0..REQUESTS_MAX + 8 {
        if login.is_over() {
            break;
        }
        let names =
            ["InitiatorName=iqn.2026-11.test:i", "TargetName=iqn.2026-11.test:t", "SessionType=Normal"];
        let method = ["AuthMethod=CHAP"];
        let steps = match (round, received.value("AuthMethod")) {
            (0, _) => &names[..],
            (1, _) if chap => &method,
            (_, Some("CHAP")) => &["CHAP_A=8,7,6,5"],
            _ => &[],
        };
        let text = compose(&mut source, &received, knows.then_some(INITIATORS), steps);
        proven |= knows && text.windows(7).any(|bytes| bytes == b"CHAP_R=");
        let next = if source.rarely(8) { source.pick(&STAGES) } else { Stage::FullFeature };
        let csg = if source.rarely(16) { source.pick(&STAGES) } else { stage };
        let continues = source.rarely(8);
        let request = LoginRequest {
            transit: !continues && source.flag(),
            continues,
            csg,
            nsg: if csg == Stage::Security && source.flag() { Stage::Operational } else { next },
            version_max: if source.rarely(64) { source.byte() } else { 0 },
            version_min: if source.rarely(64) { source.byte() } else { 0 },
            isid: if source.rarely(64) { Isid(source.array()) } else { isid },
            tsih: if source.rarely(64) { source.u16() } else { 0 },
            itt: if source.rarely(64) { Itt(source.u32()) } else { Itt(1) },
            cid: 0,
            cmd_sn: CmdSn(5),
            exp_stat_sn: StatSn(source.byte().into()),
            data_segment_length: u32::try_from(text.len()).expect("at most 8192"),
        };
        wants = if request.transit { Some(request.nsg) } else { wants };
        let mut step = login.receive(&request, &text);
        if let target::Step::Identify(identity) = step {
            check_identity(&identity);
            step = login.identify(policy(&mut source, chap));
        }
        let response = match step {
            target::Step::Respond(response) => response,
            target::Step::Refused(response) => {
                assert!(response.header.status.class() != 0 && login.is_over());
                response
            }
            target::Step::Complete(complete) => {
                assert!(!chap || proven, "a session for a peer without the secret");
                assert_eq!(complete.authenticated_as.as_deref(), chap.then_some("user"));
                plausible(&complete.negotiated, &permissive());
                if source.rarely(4) {
                    login.refuse(LoginStatus::OutOfResources)
                } else {
                    login.accept(source.u16().max(1))
                }
            }
            target::Step::Identify(_) => unreachable!("identified above"),
        };
        check_response(&response.header, &response.text);
        stage = if response.header.transit { response.header.nsg } else { response.header.csg };
        received.collect(&response.text, &mut continued, response.header.continues);
    }
    assert!(login.is_over(), "a login without end");
}

fn permissive() -> iscsi::params::Params {
    iscsi::params::Params::default()
}

fn check_identity(identity: &Identity) {
    assert!(identity.target_name.is_some() || identity.session_type == iscsi::params::SessionType::Discovery);
    if let Some(alias) = &identity.initiator_alias {
        assert!(!alias.contains(char::is_control));
    }
}

fn check_response(header: &LoginResponse, text: &[u8]) {
    assert_eq!(header.data_segment_length as usize, text.len());
    assert!(text.len() <= SEGMENT_LENGTH_MAX);
    assert!(!(header.transit && header.continues));
    assert_eq!(LoginResponse::parse(&header.emit()).as_ref(), Ok(header));
}

fn config(source: &mut Source<'_>, chap: bool, mutual: bool) -> initiator::Config {
    let (initiator_name, target_name) = (name(INITIATOR), name(TARGET));
    let isid = Isid::random([1, 2, 3], 4);
    let base = if source.rarely(8) {
        initiator::Config::discovery(initiator_name, isid)
    } else {
        initiator::Config::normal(initiator_name, isid, target_name)
    };
    initiator::Config {
        auth: chap.then(|| account("user", INITIATORS)),
        mutual: (chap && mutual).then(|| account("target", TARGETS)),
        algorithms: algorithms(source),
        params: words::params(source),
        skip_security: source.flag(),
        segment_max: source.number().clamp(64, 8192) as usize,
        ..base
    }
}

fn at_initiator(mut source: Source<'_>) {
    let (chap, mutual, knows) = (source.flag(), source.flag(), source.flag());
    let config = config(&mut source, chap, mutual);
    let params = config.params.clone();
    let mutual = config.mutual.is_some();
    let mut login = initiator::Login::new(config, source.array()).expect("a good configuration");
    let mut request = login.start();
    let mut received = ReceivedText::default();
    let (mut continued, mut proven) = (false, false);
    for round in 0_u32.. {
        assert!(round <= REQUESTS_MAX + 1, "a login without end");
        check_request(&request.header, &request.text);
        received.collect(&request.text, &mut continued, request.header.continues);
        let steps = match (received.value("AuthMethod"), received.value("CHAP_A")) {
            (Some(_), _) if chap => &["AuthMethod=CHAP", "TargetPortalGroupTag=1"][..],
            (Some(_), _) => &["AuthMethod=None"],
            (_, Some(_)) => &["CHAP_A=7", "CHAP_I=1", "CHAP_C=0xa0a1a2a3a4a5a6a7a8a9aaabacadaeaf"],
            _ => &[],
        };
        let mut text = compose(&mut source, &received, knows.then_some(TARGETS), steps);
        proven |= knows && text.windows(7).any(|bytes| bytes == b"CHAP_R=");
        if proven && source.flag() {
            // `compose` sends the initiator's name with the proof; here it must be the target's.
            text = String::from_utf8_lossy(&text).replace("CHAP_N=user", "CHAP_N=target").into_bytes();
            text.truncate(SEGMENT_LENGTH_MAX);
        }
        let continues = source.rarely(8);
        let status = if source.rarely(32) {
            source.pick(&[
                LoginStatus::TargetMovedPermanently,
                LoginStatus::NotFound,
                LoginStatus::AuthenticationFailure,
            ])
        } else {
            LoginStatus::Success
        };
        let response = LoginResponse {
            transit: !continues && request.header.transit && !source.rarely(8),
            continues,
            csg: if source.rarely(32) { source.pick(&STAGES) } else { request.header.csg },
            nsg: if source.rarely(16) { source.pick(&STAGES) } else { request.header.nsg },
            version_max: 0,
            version_active: if source.rarely(64) { source.byte() } else { 0 },
            isid: request.header.isid,
            tsih: if source.rarely(32) { 0 } else { 9 },
            itt: if source.rarely(64) { Itt(source.u32()) } else { request.header.itt },
            stat_sn: StatSn(source.byte().into()),
            exp_cmd_sn: CmdSn(source.byte().into()),
            max_cmd_sn: CmdSn(source.byte().into()),
            status,
            data_segment_length: u32::try_from(text.len()).expect("at most 8192"),
        };
        match login.receive(&response, &text) {
            Ok(initiator::Step::Send(next)) => request = next,
            Ok(initiator::Step::Complete(complete)) => {
                assert!(!mutual || proven, "a session with a target that did not prove itself");
                plausible(&complete.negotiated, &params);
                return;
            }
            Ok(initiator::Step::Redirect(redirect)) => {
                assert!(redirect.address.port != 0);
                assert!(!mutual || status != LoginStatus::Success);
                return;
            }
            Err(error) => {
                assert!(!error.to_string().contains("secret"));
                return;
            }
        }
    }
}

fn check_request(header: &LoginRequest, text: &[u8]) {
    assert_eq!(header.data_segment_length as usize, text.len());
    assert!(text.len() <= SEGMENT_LENGTH_MAX);
    assert_eq!(LoginRequest::parse(&header.emit()).as_ref(), Ok(header));
}

/// Two correct sides: they agree, or one reports why not.
fn both_sides(mut source: Source<'_>) {
    let (chap, mutual) = (source.flag(), source.flag());
    let config = config(&mut source, chap, mutual);
    let normal = config.session_type == iscsi::params::SessionType::Normal;
    let segment_max = source.number().clamp(64, 8192) as usize;
    let command_window = source.number().clamp(1, 1 << 20);
    let mut target = target::Login::new(target::Config { command_window, segment_max }, [1; 32]);
    let mut initiator = initiator::Login::new(config, [2; 32]).expect("a good configuration");
    let mut request = initiator.start();
    let mut complete = None;
    for round in 0_u32.. {
        assert!(round <= REQUESTS_MAX, "a login without end");
        check_request(&request.header, &request.text);
        let mut step = target.receive(&request.header, &request.text);
        if let target::Step::Identify(identity) = step {
            assert_eq!(identity.initiator_name.as_str(), INITIATOR);
            step = target.identify(policy(&mut source, chap));
        }
        let response = match step {
            target::Step::Respond(response) | target::Step::Refused(response) => response,
            target::Step::Complete(done) => {
                complete = Some(done);
                target.accept(3)
            }
            target::Step::Identify(_) => unreachable!("identified above"),
        };
        check_response(&response.header, &response.text);
        match initiator.receive(&response.header, &response.text) {
            Ok(initiator::Step::Send(next)) => request = next,
            Ok(initiator::Step::Complete(done)) => {
                let complete = complete.expect("both sides complete, the target first");
                assert_eq!(complete.authenticated_as.as_deref(), chap.then_some("user"));
                assert!(done.tsih == 3 || !normal);
                assert_eq!((done.cmd_sn, done.exp_cmd_sn), (complete.exp_cmd_sn, complete.exp_cmd_sn));
                assert_eq!(done.max_cmd_sn, complete.max_cmd_sn);
                assert_eq!(done.exp_stat_sn, complete.stat_sn);
                agree(&done.negotiated, &complete.negotiated);
                return;
            }
            Ok(initiator::Step::Redirect(_)) | Err(_) => return,
        }
    }
}
