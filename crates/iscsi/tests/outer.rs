//! The outer login of sealed sessions: both machines, one test per clause of docs/SEAL.md §2.

use std::time::Duration;

use iscsi::login::outer::initiator::{self, Offer};
use iscsi::login::outer::target::{self, Offered};
use iscsi::login::outer::{Choice, METHOD, Pattern, Transcript};
use iscsi::machine::{Fatal, Machine, Payload, Placement, Received, Transmit};
use iscsi::params::SessionType;
use iscsi::wire::Isid;
use iscsi_test::{INITIATOR, NOW, TARGET, name};

const DEADLINE: Duration = NOW.saturating_add(Duration::from_secs(15));
const QUESTION: &[u8] = &[0xfe; 1280];
const ANSWER: &[u8] = &[7; 1137];

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

/// Header and data segment of the one PDU that waits.
#[track_caller]
fn sent(machine: &mut impl Machine) -> ([u8; 48], Vec<u8>) {
    let Transmit { header, payload, digests } = machine.poll_transmit().expect("a PDU");
    assert!(machine.poll_transmit().is_none() && !digests.header && !digests.data);
    match payload {
        Payload::None => (header, Vec::new()),
        Payload::Bytes(segment) => (header, segment),
        Payload::Task { .. } => panic!("no tasks here"),
    }
}

/// Gives a PDU as an edge does.
fn give(machine: &mut impl Machine, (header, segment): &([u8; 48], Vec<u8>)) -> Result<(), Fatal> {
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
    let mut initiator = initiator::Exchange::new(offer(), DEADLINE);
    let mut target = target::Exchange::new(DEADLINE);
    assert_eq!((initiator.poll_timeout(), target.poll_timeout()), (Some(DEADLINE), Some(DEADLINE)));
    let first = sent(&mut initiator);
    give(&mut target, &first).unwrap();
    let Some(target::Event::Offered(offered)) = target.poll_event() else { panic!("no offer") };
    let Offer { initiator_name, isid, cid, session_type, target_name, suites, unit, pattern, .. } = offer();
    let expected = Offered { initiator_name, isid, cid, session_type, target_name, suites, unit, pattern };
    assert_eq!(offered, expected);
    let choice = target.choose("AEGIS-256X4", 4096);
    assert_eq!(choice, Choice { suite: "AEGIS-256X4".into(), unit: 4096, pattern });
    let second = sent(&mut target);
    give(&mut initiator, &second).unwrap();
    let Some(initiator::Event::Chosen { choice: chosen, transcript }) = initiator.poll_event() else {
        panic!("no choice")
    };
    assert_eq!(chosen, choice);
    let joined = |(header, segment): &([u8; 48], Vec<u8>)| [&header[..], segment].concat();
    assert_eq!(transcript, Transcript { p1: joined(&first), p2: joined(&second) });
    initiator.send_message(QUESTION);
    give(&mut target, &sent(&mut initiator)).unwrap();
    assert_eq!(
        target.poll_event(),
        Some(target::Event::Message { message: QUESTION.into(), transcript: transcript.clone() })
    );
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
