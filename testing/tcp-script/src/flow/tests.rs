//! What no segment of a stack may be is found, one defect each.

use super::*;
use crate::script::Pattern;

const VARIATION: Variation = Variation { version: Version::V4, iss: 0xffff_fff0, ts_base: 0xffff_ff00 };
const IRS: u32 = 0xffff_ff00;

/// A flow after a handshake in which both sides offered these options.
fn flow(options: &[OptText]) -> Flow {
    let mut flow = Flow::new(0, &VARIATION);
    let syn = Pattern { flags: SYN, to: 1, options: Some(options.to_vec()), ..Pattern::default() };
    let peer = flow.build(&syn, 0).unwrap();
    let mut own = peer.options.clone();
    for option in &mut own {
        if let Opt::Timestamps(value, echo) = option {
            (*value, *echo) = (9000, *value);
        }
    }
    if !own.iter().any(|option| matches!(option, Opt::Mss(_))) {
        own.push(Opt::Mss(1460));
    }
    flow.on_segment(&Segment { flags: SYN | ACK, seq: IRS, options: own, ..segment(0, 1) }, 0).unwrap();
    flow.build(&Pattern { flags: ACK, from: 1, to: 1, ack: Some(1), ..Pattern::default() }, 0).unwrap();
    flow
}

/// An ACK of the stack with payload, relative numbers.
fn segment(bytes: usize, ack: i64) -> Segment {
    Segment {
        source: SocketAddr::new(stack_ip(Version::V4), 8080),
        destination: SocketAddr::new(peer_ip(Version::V4), 40_000),
        flags: ACK,
        seq: IRS.wrapping_add(1),
        ack: VARIATION.iss.wrapping_add(ack as u32),
        window: 1000,
        urgent: 0,
        options: Vec::new(),
        payload: (0..bytes as u64).map(stack_byte).collect(),
    }
}

fn found(mut flow: Flow, segments: &[Segment]) -> String {
    segments.iter().find_map(|segment| flow.on_segment(segment, 0).err()).unwrap_or_default()
}

#[test]
fn good_segments_pass() {
    assert_eq!(found(flow(&[OptText::Mss(Some(1000))]), &[segment(1000, 1), segment(0, 1)]), "");
    let stamped = Segment {
        options: vec![Opt::Timestamps(9001, VARIATION.ts_base.wrapping_add(1000))],
        ..segment(0, 1)
    };
    let options = [OptText::Timestamps(Value::Number(1000), Value::Zero)];
    assert_eq!(found(flow(&options), &[stamped]), "");
}

#[test]
fn defects_of_any_segment_are_found() {
    let with = |options: Vec<Opt>| Segment { options, ..segment(0, 1) };
    let (plain, mss) = (flow(&[]), flow(&[OptText::Mss(Some(500))]));
    let (sack, scale) = (flow(&[OptText::SackPermitted]), flow(&[OptText::Scale(Some(3))]));
    let stamps = flow(&[OptText::Timestamps(Value::Number(1000), Value::Zero)]);
    let mut byte = segment(10, 1);
    byte.payload[3] ^= 1;
    let sacked = |left: i64, right: i64| {
        let base = VARIATION.iss;
        with(vec![Opt::Sack(vec![(base.wrapping_add(left as u32), base.wrapping_add(right as u32))])])
    };
    let at = |value: u32| with(vec![Opt::Timestamps(value, VARIATION.ts_base.wrapping_add(1000))]);
    let beyond =
        Segment { seq: IRS.wrapping_add(70_000), payload: vec![stack_byte(69_999)], ..segment(0, 1) };
    let cases: Vec<(&str, &Flow, Vec<Segment>)> = vec![
        ("belongs on SYN", &plain, vec![with(vec![Opt::Mss(1000)])]),
        ("urgent pointer", &plain, vec![Segment { urgent: 5, ..segment(0, 1) }]),
        ("byte 3", &plain, vec![byte]),
        ("MSS is 536", &plain, vec![segment(537, 1)]),
        ("MSS is 500", &mss, vec![segment(501, 1)]),
        ("the window ends", &plain, vec![beyond]),
        ("an acknowledgement of 2, 1 was", &plain, vec![segment(0, 2)]),
        ("0 after one of 1", &plain, vec![segment(0, 1), segment(0, 0)]),
        ("the window shrank", &plain, vec![segment(0, 1), Segment { window: 999, ..segment(0, 1) }]),
        ("the window shrank", &scale, vec![segment(0, 1), Segment { window: 998, ..segment(0, 1) }]),
        ("SACK that was not", &plain, vec![sacked(0, 1)]),
        ("a SACK block 0:2", &sack, vec![sacked(0, 2)]),
        ("a SACK block 1:1", &sack, vec![sacked(1, 1)]),
        ("not negotiated", &plain, vec![at(1)]),
        ("no time stamp", &stamps, vec![segment(0, 1)]),
        ("never sent", &stamps, vec![with(vec![Opt::Timestamps(9001, 17)])]),
        ("lower than", &stamps, vec![at(9005), at(9004)]),
        ("another sequence", &plain, vec![Segment { flags: SYN | ACK, seq: 5, ..segment(0, 1) }]),
        ("without MSS", &plain, vec![Segment { flags: SYN | ACK, seq: IRS, ..segment(0, 1) }]),
    ];
    for (expected, flow, segments) in cases {
        let found = found(flow.clone(), &segments);
        assert!(found.contains(expected), "{expected}: {found:?}");
    }
}

#[test]
fn syn_ack_offers_what_was_offered() {
    for (option, name) in [
        (Opt::Scale(3), "did not offer"),
        (Opt::SackPermitted, "did not offer"),
        (Opt::Timestamps(1, 2), "did not offer"),
        (Opt::Scale(15), "above 14"),
    ] {
        let mut flow = Flow::new(0, &VARIATION);
        let offered = if name == "above 14" { vec![OptText::Scale(Some(3))] } else { Vec::new() };
        let syn = Pattern { flags: SYN, to: 1, options: Some(offered), ..Pattern::default() };
        flow.build(&syn, 0).unwrap();
        let options = vec![Opt::Mss(1460), option];
        let answer = Segment { flags: SYN | ACK, seq: IRS, options, ..segment(0, 1) };
        let found = found(flow, &[answer]);
        assert!(found.contains(name), "{found:?}");
    }
}

#[test]
fn patterns_compare_what_they_say() {
    let mut flow = flow(&[OptText::Mss(Some(1000)), OptText::SackPermitted]);
    flow.sent = 100;
    let pattern = Pattern { flags: ACK, from: 1, to: 11, ack: Some(1), ..Pattern::default() };
    assert_eq!(flow.compare(&pattern, &segment(10, 1)), Ok(()));
    let block =
        |left: u32| Opt::Sack(vec![(VARIATION.iss.wrapping_add(left), VARIATION.iss.wrapping_add(90))]);
    let wanted = Pattern { options: Some(vec![OptText::Sack(vec![(50, 90)])]), ..pattern.clone() };
    let sacked = |left| Segment { options: vec![block(left)], ..segment(10, 1) };
    assert_eq!(flow.compare(&wanted, &sacked(50)), Ok(()));
    for (what, pattern, segment) in [
        ("flags", pattern.clone(), Segment { flags: ACK | FIN, ..segment(9, 1) }),
        ("PSH", Pattern { flags: ACK | PSH, ..pattern.clone() }, segment(10, 1)),
        ("range", pattern.clone(), segment(9, 1)),
        ("ack", pattern.clone(), segment(10, 0)),
        ("window", Pattern { window: Some(Bound::AtLeast(1001)), ..pattern.clone() }, segment(10, 1)),
        ("window", Pattern { window: Some(Bound::AtMost(999)), ..pattern.clone() }, segment(10, 1)),
        ("urgent", Pattern { urgent: Some(3), ..pattern.clone() }, segment(10, 1)),
        ("block", wanted.clone(), sacked(51)),
        ("no block", wanted, segment(10, 1)),
        ("unexpected", Pattern { options: Some(Vec::new()), ..pattern }, sacked(50)),
    ] {
        assert!(flow.compare(&pattern, &segment).is_err(), "{what}");
    }
}
