//! Text: pairs, continuation, numbers, names, and the negotiation of both sides.

use iscsi::chap::{Algorithm, Algorithms};
use iscsi::name::{IscsiName, NAME_LENGTH_MAX, TargetAddress};
use iscsi::params::{DigestPolicy, Negotiated, Negotiation, Params, Role, SessionType, order};
use iscsi::text::{self, Collector, Segments};

use crate::words;
use crate::{Source, heap};

/// Rounds of answers after which a negotiation must end: an answer gets no answer.
const ROUNDS_MAX: usize = 6;

/// The first byte selects the test.
pub fn text(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    match source.byte() % 5 {
        0 => pairs(source.rest()),
        1 => continuation(source),
        2 => scalars(source.rest()),
        3 => one_side(source),
        _ => both_sides(source),
    }
}

/// Parsed pairs survive emission and parsing.
fn pairs(bytes: &[u8]) {
    let Ok(pairs) = heap::within(16 * bytes.len() + 4096, || text::parse(bytes)) else { return };
    assert!(pairs.len() <= text::PAIRS_MAX);
    let mut written = Vec::new();
    for pair in &pairs {
        text::emit(pair.key, pair.value, &mut written);
    }
    assert_eq!(text::parse(&written).as_ref(), Ok(&pairs));
}

/// Any division of a text into segments yields the whole text.
fn continuation(mut source: Source<'_>) {
    let bytes_max = source.number().min(65_536) as usize;
    let sizes = source.array::<8>();
    let whole = source.rest();
    let mut segments = Segments::new(whole.to_vec());
    let mut collector = Collector::new();
    for at in 0.. {
        let (segment, continues) = segments.next_segment(usize::from(sizes[at % 8]) + 1);
        let last = !continues;
        match collector.push(segment, continues, bytes_max) {
            Ok(Some(text)) => {
                assert!(last && text == whole && whole.len() <= bytes_max);
                return;
            }
            Ok(None) => assert!(!last && collector.is_partial()),
            Err(_) => {
                assert!(whole.len() > bytes_max && !collector.is_partial());
                return;
            }
        }
    }
}

fn scalars(bytes: &[u8]) {
    let Ok(value) = std::str::from_utf8(bytes) else { return };
    if let Some(number) = text::parse_number(value) {
        assert_eq!(text::parse_number(&number.to_string()), Some(number));
        assert_eq!(text::parse_number(&format!("0x{number:x}")), Some(number));
        assert_eq!(text::parse_range(value), Some((number, number)));
    }
    if let Some((low, high)) = text::parse_range(value) {
        assert!(low <= high);
    }
    if let Some(boolean) = text::parse_boolean(value) {
        assert_eq!(text::boolean(boolean), value);
    }
    for bytes_max in [1, 32, 1024] {
        if let Some(binary) = text::parse_binary(value, bytes_max) {
            assert!((1..=bytes_max).contains(&binary.len()));
            assert_eq!(text::parse_binary(&text::binary(&binary), bytes_max), Some(binary));
        }
    }
    assert!(!text::printable(value).contains(char::is_control));
    assert_eq!(text::parse_list(value).collect::<Vec<_>>().join(","), value);
    if let Ok(name) = IscsiName::parse(value) {
        assert!(name.as_str().len() <= NAME_LENGTH_MAX);
        assert_eq!(IscsiName::parse(name.as_str()).as_ref(), Ok(&name), "a name is its own normal form");
    }
    if let Ok(address) = TargetAddress::parse(value) {
        assert_eq!(TargetAddress::parse(&address.to_string()).as_ref(), Ok(&address));
        assert!(address.port != 0);
    }
    let algorithms = Algorithms::new(&[Algorithm::Sha256, Algorithm::Md5], false).expect("two of them");
    if let Some(chosen) = algorithms.choose(value) {
        assert!(algorithms.contains(chosen));
    }
}

fn session_type(source: &mut Source<'_>) -> SessionType {
    if source.rarely(4) { SessionType::Discovery } else { SessionType::Normal }
}

/// One side against a hostile peer.
fn one_side(mut source: Source<'_>) {
    let role = source.pick(&[Role::Target, Role::Initiator]);
    let session_type = session_type(&mut source);
    let params = words::params(&mut source);
    let mut negotiation = Negotiation::new(role, session_type, params.clone());
    let mut answers = Vec::new();
    if role == Role::Initiator || source.flag() {
        negotiation.offer(&mut answers);
    }
    let mut sent = Vec::new();
    while !source.is_empty() && sent.len() < 20_000 {
        words::pair(&mut source, &mut sent);
    }
    let Ok(mut pairs) = text::parse(&sent) else { return };
    pairs.sort_by_key(|pair| order(pair.key));
    for pair in pairs {
        if negotiation.on_pair(pair.key, pair.value, &mut answers).is_err() {
            return;
        }
        assert!(negotiation.send_limit() >= 512);
    }
    if role == Role::Target {
        negotiation.offer(&mut answers);
    }
    // Answers to all keys of the peer plus the side's own keys may exceed the limit of a text; that is the peer's
    // fault.
    for pair in answers.split_inclusive(|&byte| byte == 0) {
        text::parse(pair).expect("our own text parses");
    }
    if let Ok(negotiated) = negotiation.finish() {
        plausible(&negotiated, &params);
    }
}

fn permits(policy: DigestPolicy, digest: bool) -> bool {
    match policy {
        DigestPolicy::Off => !digest,
        DigestPolicy::Allow | DigestPolicy::Prefer => true,
        DigestPolicy::Require => digest,
    }
}

pub(crate) fn plausible(negotiated: &Negotiated, params: &Params) {
    let sizes = 512..=(1 << 24) - 1;
    for size in [
        negotiated.max_recv_data_segment_length,
        negotiated.max_send_data_segment_length,
        negotiated.max_burst_length,
        negotiated.first_burst_length,
    ] {
        assert!(sizes.contains(&size), "{negotiated:?}");
    }
    assert!(negotiated.first_burst_length <= negotiated.max_burst_length, "{negotiated:?}");
    assert!(permits(params.header_digest, negotiated.header_digest), "{negotiated:?}");
    assert!(permits(params.data_digest, negotiated.data_digest), "{negotiated:?}");
    assert!(negotiated.max_outstanding_r2t >= 1 && negotiated.max_connections == 1);
    assert!(negotiated.error_recovery_level == 0);
    assert!(negotiated.data_pdu_in_order && negotiated.data_sequence_in_order);
}

/// Two correct sides reach the same result.
fn both_sides(mut source: Source<'_>) {
    let session_type = session_type(&mut source);
    let params = [words::params(&mut source), words::params(&mut source)];
    let mut sides = [
        Negotiation::new(Role::Initiator, session_type, params[0].clone()),
        Negotiation::new(Role::Target, session_type, params[1].clone()),
    ];
    let mut sent = Vec::new();
    sides[0].offer(&mut sent);
    let mut speaker = 0;
    for round in 0.. {
        assert!(round < ROUNDS_MAX, "the negotiation never ends");
        let listener = 1 - speaker;
        let mut answers = Vec::new();
        let mut pairs = text::parse(&sent).expect("our own text parses");
        pairs.sort_by_key(|pair| order(pair.key));
        for pair in pairs {
            if sides[listener].on_pair(pair.key, pair.value, &mut answers).is_err() {
                return;
            }
        }
        if listener == 1 && round == 0 {
            sides[1].offer(&mut answers);
        }
        if answers.is_empty() {
            break;
        }
        sent = answers;
        speaker = listener;
    }
    let [initiator, target] = sides;
    let (Ok(initiator), Ok(target)) = (initiator.finish(), target.finish()) else { return };
    plausible(&initiator, &params[0]);
    plausible(&target, &params[1]);
    agree(&initiator, &target);
}

/// Asserts that both sides have the same agreement, each from its own end.
pub(crate) fn agree(initiator: &Negotiated, target: &Negotiated) {
    let seen_from_target = Negotiated {
        max_recv_data_segment_length: initiator.max_send_data_segment_length,
        max_send_data_segment_length: initiator.max_recv_data_segment_length,
        ..*initiator
    };
    assert_eq!(seen_from_target, *target);
}
