//! Text: pairs, continuation, numbers, names, and the negotiation of both sides.

use iscsi::chap::{Algorithm, Algorithms};
use iscsi::name::{IscsiName, NAME_LENGTH_MAX, TargetAddress};
use iscsi::params::{DigestPolicy, Negotiated, Negotiation, Params, Role, SessionType, order};
use iscsi::text::{self, Collector, Segments};

use crate::words;
use crate::{Source, heap};

/// Rounds of answers after which a negotiation must be quiet: an answer is not answered.
const ROUNDS_MAX: usize = 6;

/// Reads whatever the first byte says.
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

/// What was understood survives being written and read again.
fn pairs(bytes: &[u8]) {
    let Ok(pairs) = heap::within(16 * bytes.len() + 4096, || text::parse(bytes)) else { return };
    assert!(pairs.len() <= text::PAIRS_MAX);
    let mut written = Vec::new();
    for pair in &pairs {
        text::emit(pair.key, pair.value, &mut written);
    }
    assert_eq!(text::parse(&written).as_ref(), Ok(&pairs));
}

/// However a text is cut, the whole comes out.
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

/// One side against a peer that says anything.
fn one_side(mut source: Source<'_>) {
    let role = source.pick(&[Role::Target, Role::Initiator]);
    let session_type = session_type(&mut source);
    let params = words::params(&mut source);
    let mut negotiation = Negotiation::new(role, session_type, params.clone());
    let mut answers = Vec::new();
    if role == Role::Initiator || source.flag() {
        negotiation.offer(&mut answers);
    }
    let mut said = Vec::new();
    while !source.is_empty() && said.len() < 20_000 {
        words::pair(&mut source, &mut said);
    }
    let Ok(mut pairs) = text::parse(&said) else { return };
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
    // An answer to each of the peer's keys and our own besides can be more than one text may have: the peer's own fault.
    for pair in answers.split_inclusive(|&byte| byte == 0) {
        text::parse(pair).expect("what we say is text");
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

/// What holds of every agreement, whatever the peer said.
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

/// Two honest sides come to the same result.
fn both_sides(mut source: Source<'_>) {
    let session_type = session_type(&mut source);
    let wishes = [words::params(&mut source), words::params(&mut source)];
    let mut sides = [
        Negotiation::new(Role::Initiator, session_type, wishes[0].clone()),
        Negotiation::new(Role::Target, session_type, wishes[1].clone()),
    ];
    let mut said = Vec::new();
    sides[0].offer(&mut said);
    let mut speaker = 0;
    for round in 0.. {
        assert!(round < ROUNDS_MAX, "the negotiation never ends");
        let listener = 1 - speaker;
        let mut answers = Vec::new();
        let mut pairs = text::parse(&said).expect("what we say is text");
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
        said = answers;
        speaker = listener;
    }
    let [initiator, target] = sides;
    let (Ok(initiator), Ok(target)) = (initiator.finish(), target.finish()) else { return };
    plausible(&initiator, &wishes[0]);
    plausible(&target, &wishes[1]);
    agree(&initiator, &target);
}

/// Both sides hold the same agreement, each from its own end.
pub(crate) fn agree(initiator: &Negotiated, target: &Negotiated) {
    let seen_from_target = Negotiated {
        max_recv_data_segment_length: initiator.max_send_data_segment_length,
        max_send_data_segment_length: initiator.max_recv_data_segment_length,
        ..*initiator
    };
    assert_eq!(seen_from_target, *target);
}
