//! The result function of each key, with the expectation as data; then both roles against each other.

use proptest::prelude::*;

use super::negotiation::KEYS;
use super::*;
use crate::text::{self, NOT_UNDERSTOOD};

fn shown(text: &[u8]) -> String {
    String::from_utf8(text.to_vec()).unwrap().trim_end_matches('\0').replace('\0', " ")
}

/// A target's negotiation with `params`, for a normal session.
fn target(params: Params) -> Negotiation {
    Negotiation::new(Role::Target, SessionType::Normal, params)
}

fn answer(params: Params, key: &str, value: &str) -> String {
    let mut answers = Vec::new();
    target(params).on_pair(key, value, &mut answers).unwrap();
    shown(&answers)
}

#[test]
fn result_functions() {
    // (key, offered, answered) by a target with default parameters.
    for (key, offered, answered) in [
        // Lists: the first value that both support (§6.2.1).
        ("HeaderDigest", "None,CRC32C", "None"),
        ("HeaderDigest", "CRC32C,None", "CRC32C"),
        ("DataDigest", "CRC32C", "CRC32C"),
        ("DataDigest", "MD5,CRC32C", "CRC32C"),
        ("DataDigest", "MD5", "Reject"),
        ("DataDigest", "", "Reject"),
        ("TaskReporting", "FastAbort,RFC3720", "RFC3720"),
        ("TaskReporting", "FastAbort", "Reject"),
        // Functions OR and AND (§6.2.2).
        ("InitialR2T", "Yes", "Yes"),
        ("InitialR2T", "No", "No"),
        ("InitialR2T", "no", "Reject"),
        ("ImmediateData", "Yes", "Yes"),
        ("ImmediateData", "No", "No"),
        ("DataPDUInOrder", "No", "Yes"),
        ("DataSequenceInOrder", "No", "Yes"),
        ("DataSequenceInOrder", "Yes", "Yes"),
        // Functions minimum and maximum.
        ("MaxBurstLength", "512", "512"),
        ("MaxBurstLength", "16777215", "16777215"),
        ("MaxBurstLength", "0x40000", "262144"),
        ("MaxBurstLength", "511", "Reject"),
        ("MaxBurstLength", "16777216", "Reject"),
        ("MaxBurstLength", "-1", "Reject"),
        ("MaxBurstLength", "many", "Reject"),
        ("FirstBurstLength", "16777215", "262144"),
        ("FirstBurstLength", "4096", "4096"),
        ("MaxOutstandingR2T", "1", "1"),
        ("MaxOutstandingR2T", "65535", "16"),
        ("MaxOutstandingR2T", "0", "Reject"),
        ("MaxOutstandingR2T", "65536", "Reject"),
        ("MaxConnections", "8", "1"),
        ("MaxConnections", "0", "Reject"),
        ("DefaultTime2Wait", "0", "2"),
        ("DefaultTime2Wait", "3600", "3600"),
        ("DefaultTime2Wait", "3601", "Reject"),
        ("DefaultTime2Retain", "20", "0"),
        ("DefaultTime2Retain", "3601", "Reject"),
        ("ErrorRecoveryLevel", "2", "0"),
        ("ErrorRecoveryLevel", "3", "Reject"),
        ("iSCSIProtocolLevel", "2", "1"),
        ("iSCSIProtocolLevel", "32", "Reject"),
        // §13.25: obsolete.
        ("IFMarker", "Yes", "No"),
        ("OFMarker", "No", "No"),
        ("IFMarkInt", "2048~8192", "Reject"),
        ("OFMarkInt", "2048", "Reject"),
        // Unknown keys.
        ("X-com.example.key", "1", "NotUnderstood"),
        ("Nonsense", "Yes", "NotUnderstood"),
        ("maxburstlength", "512", "NotUnderstood"),
    ] {
        assert_eq!(answer(Params::default(), key, offered), format!("{key}={answered}"), "{key}={offered}");
    }
}

#[test]
fn declarations_want_no_answer() {
    for (key, value) in [
        ("MaxRecvDataSegmentLength", "512"),
        ("MaxRecvDataSegmentLength", "16777216"),
        ("X#NodeArchitecture", "anything"),
        ("X-com.example.key", "NotUnderstood"),
    ] {
        assert_eq!(answer(Params::default(), key, value), "", "{key}={value}");
    }
    for value in ["511", "0", "", "x"] {
        let answered = answer(Params::default(), "MaxRecvDataSegmentLength", value);
        assert_eq!(answered, "MaxRecvDataSegmentLength=Reject", "{value}");
    }
}

#[test]
fn max_recv_beyond_the_field_is_clamped() {
    let mut negotiation = target(Params::default());
    negotiation.on_pair("MaxRecvDataSegmentLength", "16777216", &mut Vec::new()).unwrap();
    assert_eq!(negotiation.send_limit(), 8192);
    assert_eq!(negotiation.finish().unwrap().max_send_data_segment_length, SEGMENT_LENGTH_MAX);
}

#[test]
fn discovery_finds_most_keys_irrelevant() {
    for (key, value, answered) in [
        ("InitialR2T", "No", "InitialR2T=Irrelevant"),
        ("ImmediateData", "Yes", "ImmediateData=Irrelevant"),
        ("MaxBurstLength", "65536", "MaxBurstLength=Irrelevant"),
        ("FirstBurstLength", "65536", "FirstBurstLength=Irrelevant"),
        ("MaxOutstandingR2T", "8", "MaxOutstandingR2T=Irrelevant"),
        ("MaxConnections", "1", "MaxConnections=Irrelevant"),
        ("DataPDUInOrder", "Yes", "DataPDUInOrder=Irrelevant"),
        ("HeaderDigest", "CRC32C,None", "HeaderDigest=CRC32C"),
        ("ErrorRecoveryLevel", "0", "ErrorRecoveryLevel=0"),
        ("MaxRecvDataSegmentLength", "32768", ""),
    ] {
        let mut negotiation = Negotiation::new(Role::Target, SessionType::Discovery, Params::default());
        let mut answers = Vec::new();
        negotiation.on_pair(key, value, &mut answers).unwrap();
        assert_eq!(shown(&answers), answered);
    }
}

#[test]
fn first_burst_never_exceeds_max_burst() {
    // In either order, with or without sorting by `order`.
    for keys in [["MaxBurstLength", "FirstBurstLength"], ["FirstBurstLength", "MaxBurstLength"]] {
        let mut negotiation = target(Params::default());
        for key in keys {
            let value = if key == "MaxBurstLength" { "4096" } else { "65536" };
            negotiation.on_pair(key, value, &mut Vec::new()).unwrap();
        }
        let negotiated = negotiation.finish().unwrap();
        assert_eq!((negotiated.max_burst_length, negotiated.first_burst_length), (4096, 4096));
    }
    assert!(order("MaxBurstLength") < order("FirstBurstLength"));
}

#[test]
fn twice_is_an_error() {
    for key in
        ["HeaderDigest", "MaxRecvDataSegmentLength", "InitialR2T", "MaxBurstLength", "ErrorRecoveryLevel"]
    {
        let value = match key {
            "HeaderDigest" => "None",
            "InitialR2T" => "Yes",
            "ErrorRecoveryLevel" => "0",
            _ => "512",
        };
        let mut negotiation = target(Params::default());
        negotiation.on_pair(key, value, &mut Vec::new()).unwrap();
        assert_eq!(negotiation.on_pair(key, value, &mut Vec::new()), Err(NegotiationError::Duplicate(key)));
    }
}

#[test]
fn digest_policies() {
    use DigestPolicy::{Allow, Off, Prefer, Require};
    // (target's policy, offer, answer or failure)
    for (policy, offer, answered) in [
        (Off, "CRC32C,None", Some("None")),
        (Off, "CRC32C", Some("Reject")),
        (Allow, "CRC32C,None", Some("CRC32C")),
        (Prefer, "None,CRC32C", Some("CRC32C")),
        (Prefer, "CRC32C,None", Some("CRC32C")),
        (Prefer, "None", Some("None")),
        (Prefer, "None,CRC32C,X-other", Some("CRC32C")),
        (Prefer, "X-other", Some("Reject")),
        (Require, "None,CRC32C", Some("CRC32C")),
        (Require, "None", None),
    ] {
        let mut negotiation = target(Params { header_digest: policy, ..Params::default() });
        let mut answers = Vec::new();
        let result = negotiation.on_pair("HeaderDigest", offer, &mut answers);
        match answered {
            Some(value) => {
                assert_eq!(shown(&answers), format!("HeaderDigest={value}"));
                assert_eq!(negotiation.take_rejected(), value == "Reject");
            }
            None => assert_eq!(result, Err(NegotiationError::NoAgreement("HeaderDigest"))),
        }
    }
    // Required and not mentioned by either side.
    let silent = target(Params { data_digest: Require, ..Params::default() });
    assert_eq!(silent.finish(), Err(NegotiationError::NoAgreement("DataDigest")));
}

#[test]
fn a_standard_key_is_understood_by_everyone_rfc7143_6_2() {
    for (_, name, _) in KEYS {
        let expected = match name {
            "TaskReporting" | "iSCSIProtocolLevel" => None,
            _ => Some(NegotiationError::NotUnderstood(name.to_owned())),
        };
        let mut negotiation = target(Params::default());
        let offered = negotiation.on_pair(name, NOT_UNDERSTOOD, &mut Vec::new());
        assert_eq!(offered.err(), expected, "{name}");
    }
}

#[test]
fn target_says_little_of_its_own_accord() {
    let mut text = Vec::new();
    let mut negotiation = target(Params::default());
    negotiation.offer(&mut text);
    assert_eq!(shown(&text), "MaxRecvDataSegmentLength=262144");
    assert!(!negotiation.is_awaiting());
    negotiation.offer(&mut text);
    assert_eq!(shown(&text), "MaxRecvDataSegmentLength=262144", "once");
}

#[test]
fn initiator_offers() {
    for (session_type, expected) in [
        (
            SessionType::Normal,
            "HeaderDigest=None,CRC32C DataDigest=None,CRC32C MaxRecvDataSegmentLength=262144 InitialR2T=No \
             ImmediateData=Yes MaxBurstLength=16777215 FirstBurstLength=262144 MaxOutstandingR2T=16 \
             MaxConnections=1 DefaultTime2Wait=2 DefaultTime2Retain=0 ErrorRecoveryLevel=0 DataPDUInOrder=Yes \
             DataSequenceInOrder=Yes",
        ),
        (
            SessionType::Discovery,
            "HeaderDigest=None,CRC32C DataDigest=None,CRC32C MaxRecvDataSegmentLength=262144 \
             DefaultTime2Wait=2 DefaultTime2Retain=0 ErrorRecoveryLevel=0",
        ),
    ] {
        let mut text = Vec::new();
        Negotiation::new(Role::Initiator, session_type, Params::default()).offer(&mut text);
        assert_eq!(shown(&text), expected);
    }
}

/// The data digest that an initiator with `policy` negotiates when the target answers `answer`; `None` for no answer.
fn negotiated_digest(policy: DigestPolicy, answer: Option<&str>) -> Result<bool, NegotiationError> {
    let params = Params { data_digest: policy, ..Params::default() };
    let mut negotiation = Negotiation::new(Role::Initiator, SessionType::Normal, params);
    negotiation.offer(&mut Vec::new());
    if let Some(answer) = answer {
        negotiation.on_pair("DataDigest", answer, &mut Vec::new())?;
    }
    Ok(negotiation.finish()?.data_digest)
}

#[test]
fn a_digest_that_was_asked_for_is_required() {
    use DigestPolicy::{Allow, Off, Prefer, Require};
    assert_eq!(negotiated_digest(Require, Some("CRC32C")), Ok(true));
    for answer in ["None", "Reject", "Irrelevant", "CRC32B"] {
        let refused = NegotiationError::DigestRefused { key: "DataDigest", answer: answer.into() };
        assert_eq!(negotiated_digest(Require, Some(answer)), Err(refused), "{answer}");
    }
    let refused = NegotiationError::DigestRefused { key: "DataDigest", answer: NO_ANSWER.into() };
    assert_eq!(negotiated_digest(Require, None), Err(refused));
    for policy in [Allow, Prefer] {
        for (answer, digest) in
            [(Some("CRC32C"), true), (Some("None"), false), (Some("Reject"), false), (None, false)]
        {
            assert_eq!(negotiated_digest(policy, answer), Ok(digest), "{policy:?} {answer:?}");
        }
    }
    assert!(negotiated_digest(Off, Some("CRC32C")).is_err());
    let params = Params { data_digest: Require, ..Params::default() };
    let mut renamed = Negotiation::new(Role::Initiator, SessionType::Normal, params);
    renamed.offer(&mut Vec::new());
    let refused =
        NegotiationError::DigestRefused { key: "DataDigest", answer: "DataDigesu=NotUnderstood".into() };
    assert_eq!(renamed.on_pair("DataDigesu", "NotUnderstood", &mut Vec::new()), Err(refused));
    for policy in [Off, Allow, Prefer, Require] {
        let refused = NegotiationError::NotUnderstood("DataDigest".into());
        assert_eq!(negotiated_digest(policy, Some("NotUnderstood")), Err(refused), "{policy:?}");
    }
}

#[test]
fn the_words_of_urls_for_digests() {
    use DigestPolicy::{Off, Prefer, Require};
    for (word, policy) in
        [("none", Some(Off)), ("off", Some(Off)), ("prefer", Some(Prefer)), ("crc32c", Some(Require))]
    {
        assert_eq!(DigestPolicy::from_name(word), policy);
    }
    for wrong in ["", "CRC32C", "crc32c,none", "yes"] {
        assert_eq!(DigestPolicy::from_name(wrong), None, "{wrong}");
    }
}

#[test]
fn offer_alone_decides_where_it_can() {
    let params = Params { immediate_data: false, initial_r2t: true, ..Params::default() };
    let mut negotiation = Negotiation::new(Role::Initiator, SessionType::Normal, params);
    negotiation.offer(&mut Vec::new());
    let negotiated = negotiation.finish().unwrap();
    assert!(!negotiated.immediate_data && negotiated.initial_r2t);
}

#[test]
fn params_out_of_range() {
    for (key, params) in [
        ("MaxRecvDataSegmentLength", Params { max_recv_data_segment_length: 511, ..Params::default() }),
        ("MaxRecvDataSegmentLength", Params { max_recv_data_segment_length: 1 << 24, ..Params::default() }),
        ("MaxBurstLength", Params { max_burst_length: 1 << 24, ..Params::default() }),
        ("FirstBurstLength", Params { max_burst_length: 4096, ..Params::default() }),
        ("DefaultTime2Wait", Params { default_time2wait: 3601, ..Params::default() }),
        ("MaxOutstandingR2T", Params { max_outstanding_r2t: 0, ..Params::default() }),
        ("iSCSIProtocolLevel", Params { protocol_level: 32, ..Params::default() }),
    ] {
        assert_eq!(params.validate().unwrap_err().key, key);
    }
    assert_eq!(Params::default().validate(), Ok(()));
}

fn any_params() -> impl Strategy<Value = Params> {
    let digest = prop::sample::select(vec![DigestPolicy::Off, DigestPolicy::Allow, DigestPolicy::Prefer]);
    let bytes = SEGMENT_LENGTH_MIN..=SEGMENT_LENGTH_MAX;
    let numbers = (bytes.clone(), bytes.clone(), bytes, 0..=TIME_MAX, 0..=TIME_MAX, 1..=u16::MAX, 1_u8..=31);
    (digest.clone(), digest, any::<bool>(), any::<bool>(), numbers).prop_map(
        |(header, data, r2t, immediate, n)| Params {
            header_digest: header,
            data_digest: data,
            initial_r2t: r2t,
            immediate_data: immediate,
            max_recv_data_segment_length: n.0,
            max_burst_length: n.1.max(n.2),
            first_burst_length: n.1.min(n.2),
            default_time2wait: n.3,
            default_time2retain: n.4,
            max_outstanding_r2t: n.5,
            protocol_level: n.6,
        },
    )
}

proptest! {
    /// Both roles reach the same result, and it respects the parameters of each.
    #[test]
    fn both_agree(i in any_params(), t in any_params()) {
        let mut initiator = Negotiation::new(Role::Initiator, SessionType::Normal, i.clone());
        let mut target = target(t.clone());
        let (mut to_target, mut to_initiator) = (Vec::new(), Vec::new());
        initiator.offer(&mut to_target);
        for pair in text::parse(&to_target).unwrap() {
            target.on_pair(pair.key, pair.value, &mut to_initiator).unwrap();
        }
        target.offer(&mut to_initiator);
        let mut back = Vec::new();
        for pair in text::parse(&to_initiator).unwrap() {
            initiator.on_pair(pair.key, pair.value, &mut back).unwrap();
        }
        for pair in text::parse(&back).unwrap() {
            target.on_pair(pair.key, pair.value, &mut Vec::new()).unwrap();
        }
        let (a, mut b) = (initiator.finish().unwrap(), target.finish().unwrap());
        std::mem::swap(&mut b.max_recv_data_segment_length, &mut b.max_send_data_segment_length);
        prop_assert_eq!(a, b);
        prop_assert_eq!(a.max_burst_length, i.max_burst_length.min(t.max_burst_length));
        prop_assert!(a.first_burst_length <= i.first_burst_length.min(t.first_burst_length));
        prop_assert!(a.first_burst_length <= a.max_burst_length);
        prop_assert_eq!(a.initial_r2t, i.initial_r2t || t.initial_r2t);
        prop_assert_eq!(a.immediate_data, i.immediate_data && t.immediate_data);
        prop_assert_eq!(a.default_time2wait, i.default_time2wait.max(t.default_time2wait));
        prop_assert_eq!(a.max_send_data_segment_length, t.max_recv_data_segment_length);
    }

    #[test]
    fn any_pairs(pairs in prop::collection::vec(("[A-Za-z0-9-]{1,20}|MaxBurstLength|HeaderDigest", ".{0,30}"), 0..40)) {
        for role in [Role::Target, Role::Initiator] {
            let mut negotiation = Negotiation::new(role, SessionType::Normal, Params::default());
            let mut answers = Vec::new();
            for (key, value) in &pairs {
                if negotiation.on_pair(key, value, &mut answers).is_err() {
                    break;
                }
            }
            prop_assert!(answers.len() <= pairs.len() * 64);
        }
    }
}
