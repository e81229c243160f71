//! The outer login of sealed sessions: both machines, and a relay between them that forwards, alters, repeats and
//! invents PDUs. The relay has no key, so a handshake over both transcripts must detect every alteration.

use iscsi::login::outer::initiator::{self, Offer};
use iscsi::login::outer::target;
use iscsi::login::outer::{Choice, MESSAGE_MAX, METHOD, NONCE_BYTES, Pattern, SUITES_MAX, Transcript};
use iscsi::machine::{Fatal, Machine, Payload, Placement, Transmit};
use iscsi::params::{Params, SessionType};
use iscsi::target::Connection;
use iscsi::wire::{Bhs, Isid, LoginResponse, LoginStatus};
use iscsi_test::{INITIATOR, NOW, TARGET, name, policy};

use crate::edge::{placement, received};
use crate::{Source, heap};

const HEAP_MAX: usize = 512 << 10;
const PDUS_MAX: usize = 12;
const SUITES: &[&str] = &["AES-256-GCM", "AEGIS-256X4", "AEGIS-128X2", "ChaCha20-Poly1305"];

/// Replacements of a pair by the relay.
const PAIRS: &[&str] = &[
    "AuthMethod=Z-example.hikyaku.seal1",
    "AuthMethod=Z-example.hikyaku.seal1,CHAP,None",
    "AuthMethod=CHAP,Z-example.hikyaku.seal1",
    "AuthMethod=None",
    "AuthMethod=Reject",
    "X-example.hikyaku.suite=AES-256-GCM",
    "X-example.hikyaku.suite=ChaCha20-Poly1305,AES-256-GCM",
    "X-example.hikyaku.suite=",
    "X-example.hikyaku.suite=a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q",
    "X-example.hikyaku.unit=512",
    "X-example.hikyaku.unit=1048576",
    "X-example.hikyaku.unit=0x10000",
    "X-example.hikyaku.unit=2097152",
    "X-example.hikyaku.unit=513",
    "X-example.hikyaku.pattern=IKpsk2",
    "X-example.hikyaku.pattern=XX",
    "X-example.hikyaku.nonce=0bAAAAAAAAAAAAAAAAAAAAAA==",
    "X-example.hikyaku.nonce=0bAAAA",
    "X-example.hikyaku.message=0bAAAA",
    "X-example.hikyaku.message=0x00",
    "X-example.hikyaku.message=",
    "InitiatorName=iqn.2026-11.test:x",
    "TargetName=iqn.2026-11.test:x",
    "SessionType=Discovery",
    "SessionType=Normal",
    "TargetAddress=[::1]:3260,1",
    "TargetPortalGroupTag=1",
];

pub fn outer(bytes: &[u8]) {
    heap::within(HEAP_MAX, || Ends::new(Source::new(bytes)).run());
}

#[derive(Clone, Debug)]
struct Pdu {
    header: [u8; 48],
    ahs: Vec<u8>,
    segment: Vec<u8>,
}

enum Listener {
    Outer(Box<target::Exchange>),
    /// After the edge declined the outer login.
    Ordinary(Box<Connection>),
    Closed,
}

/// Both ends with the results that their edges have received.
struct Ends<'a> {
    source: Source<'a>,
    offer: Offer,
    initiator: initiator::Exchange,
    target: Listener,
    question: Vec<u8>,
    answer: Vec<u8>,
    chosen: Option<(Choice, Transcript)>,
    answered: bool,
    /// The choice of the target's edge, and its result.
    choice: Option<Choice>,
    message: Option<(Vec<u8>, Transcript)>,
    /// Whether the relay has altered something, or an edge has refused.
    disturbed: bool,
    sent: Vec<(Pdu, bool)>,
}

impl<'a> Ends<'a> {
    fn new(mut source: Source<'a>) -> Self {
        let discovery = source.rarely(4);
        let suites = source.below(SUITES.len());
        let offer = Offer {
            initiator_name: name(INITIATOR),
            isid: Isid::random([1, 2, 3], 4),
            cid: source.byte().into(),
            session_type: if discovery { SessionType::Discovery } else { SessionType::Normal },
            target_name: (!discovery).then(|| name(TARGET)),
            plain: source.flag(),
            suites: SUITES[suites..].iter().map(|&suite| suite.to_owned()).collect(),
            unit: 512 << source.below(12),
            pattern: source.pick(&[Pattern::IkPsk2, Pattern::Xx]),
        };
        let length = (source.number() as usize).clamp(1, MESSAGE_MAX);
        Self {
            question: vec![0xa5; length],
            answer: vec![0x5a; length],
            initiator: initiator::Exchange::new(offer.clone(), NOW),
            target: Listener::Outer(Box::new(target::Exchange::new(NOW))),
            source,
            offer,
            chosen: None,
            answered: false,
            choice: None,
            message: None,
            disturbed: false,
            sent: Vec::new(),
        }
    }

    fn run(mut self) {
        for _ in 0..PDUS_MAX {
            let from_initiator = pending_pdu(&mut self.initiator);
            let to_target = from_initiator.is_some();
            let sent = from_initiator.or_else(|| match &mut self.target {
                Listener::Outer(machine) => pending_pdu(&mut **machine),
                Listener::Ordinary(machine) => pending_pdu(&mut **machine),
                Listener::Closed => None,
            });
            let (pdu, to_target) = match sent {
                Some(pdu) => {
                    self.sent.push((pdu.clone(), to_target));
                    (pdu, to_target)
                }
                // No PDU is pending: the relay repeats one in either direction, or the run ends.
                None if self.source.is_empty() || self.source.flag() => break,
                None => {
                    self.disturbed = true;
                    let (pdu, to_target) = self.source.pick(&self.sent);
                    (pdu, to_target ^ self.source.flag())
                }
            };
            let pdu = self.relay(pdu);
            if to_target { self.at_target(&pdu) } else { self.at_initiator(&pdu) }
        }
        self.check();
    }

    fn relay(&mut self, mut pdu: Pdu) -> Pdu {
        let source = &mut self.source;
        let choice = source.byte();
        self.disturbed |= choice >= 96;
        match choice {
            0..=95 => return pdu,
            96..=127 => pdu.header[source.below(48)] ^= 1 << source.below(8),
            128..=143 if !pdu.segment.is_empty() => {
                let at = source.below(pdu.segment.len());
                pdu.segment[at] ^= 1 << source.below(8);
            }
            144..=151 => pdu.ahs = vec![source.byte(); 4 * source.below(4)],
            152..=159 => pdu.segment.truncate(source.number() as usize),
            160..=167 => pdu.segment.resize(source.number().min(8192) as usize, source.byte()),
            168..=175 => pdu.segment = source.some(200).to_vec(),
            _ => {
                let mut pairs: Vec<_> = pdu.segment.split_inclusive(|&byte| byte == 0).collect();
                let at = source.below(pairs.len().max(1));
                let other = [source.pick(PAIRS).as_bytes(), b"\0"].concat();
                match choice % 4 {
                    0 => pairs.push(&other),
                    _ if pairs.is_empty() => {}
                    1 => _ = pairs.remove(at),
                    2 => pairs.push(pairs[at]),
                    _ => pairs[at] = &other,
                }
                pdu.segment = pairs.concat();
            }
        }
        // A PDU that a stream can carry: lengths as announced.
        pdu.segment.truncate(8192);
        pdu.header[4] = u8::try_from(pdu.ahs.len() / 4).expect("few words");
        let length = u32::try_from(pdu.segment.len()).expect("at most 8192");
        pdu.header[5..8].copy_from_slice(&length.to_be_bytes()[1..]);
        pdu
    }

    fn at_target(&mut self, pdu: &Pdu) {
        let machine = match &mut self.target {
            Listener::Outer(machine) => machine,
            Listener::Ordinary(machine) => {
                if !at_ordinary(machine, |machine| give(machine, pdu)) {
                    self.target = Listener::Closed;
                }
                return;
            }
            Listener::Closed => return,
        };
        let over = machine.is_over();
        if let Err(fatal) = give(&mut **machine, pdu) {
            assert!(machine.is_over() && machine.poll_event().is_none());
            assert!(over == (fatal == Fatal::Closed), "{fatal:?}");
            return;
        }
        match machine.poll_event() {
            None => {}
            Some(target::Event::Ordinary) => {
                assert!(self.choice.is_none(), "not the first PDU");
                if self.source.flag() {
                    let first = machine.decline();
                    let mut machine =
                        Box::new(Connection::new(iscsi::target::Config::default(), [1; 32], NOW));
                    let lives = at_ordinary(&mut machine, |machine| first.replay(machine, NOW));
                    self.target = if lives { Listener::Ordinary(machine) } else { Listener::Closed };
                } else {
                    machine.refuse(LoginStatus::AuthenticationFailure);
                }
            }
            Some(target::Event::Offered(offered)) => {
                assert!(self.choice.is_none() && (1..=SUITES_MAX).contains(&offered.suites.len()));
                assert_eq!(offered.session_type == SessionType::Normal, offered.target_name.is_some());
                if self.source.rarely(8) {
                    self.disturbed = true;
                    return machine.refuse(LoginStatus::ServiceUnavailable);
                }
                let suite = self.source.pick(&offered.suites);
                let nonce = [self.source.byte(); NONCE_BYTES];
                let choice = machine.choose(&suite, 512 << self.source.below(12), &nonce);
                assert!(choice.unit <= offered.unit && choice.pattern == offered.pattern);
                self.choice = Some(choice);
            }
            Some(target::Event::Message { message, transcript }) => {
                assert!(self.choice.is_some() && self.message.is_none(), "a message out of turn");
                assert!((1..=MESSAGE_MAX).contains(&message.len()));
                self.message = Some((message, transcript));
                if self.source.rarely(8) {
                    self.disturbed = true;
                    machine.refuse(LoginStatus::AuthenticationFailure);
                } else {
                    machine.answer(&self.answer);
                }
            }
        }
    }

    fn at_initiator(&mut self, pdu: &Pdu) {
        let machine = &mut self.initiator;
        if give(machine, pdu).is_err() {
            assert!(machine.is_over() && machine.poll_event().is_none());
            return;
        }
        match machine.poll_event() {
            Some(initiator::Event::Chosen { choice, transcript }) => {
                assert!(self.chosen.is_none() && choice.pattern == self.offer.pattern);
                assert!(self.offer.suites.contains(&choice.suite) && choice.unit <= self.offer.unit);
                self.chosen = Some((choice, transcript));
                machine.send_message(&self.question);
            }
            Some(initiator::Event::Answer(answer)) => {
                assert!(self.chosen.is_some() && !self.answered && machine.is_over());
                self.answered = answer == self.answer;
            }
            Some(initiator::Event::Declined) => assert!(self.chosen.is_none() && machine.is_over()),
            Some(initiator::Event::Refused(status)) => assert!(status.class() > 1 && machine.is_over()),
            Some(initiator::Event::Redirect(redirect)) => assert!(redirect.address.port != 0),
            None => panic!("a response that means nothing"),
        }
    }

    /// Asserts that a handshake over both transcripts fails, or both ends have the same result.
    fn check(&self) {
        if !self.disturbed {
            assert!(self.answered && self.message.is_some(), "undisturbed, and no end");
        }
        let (Some((chosen, ours)), Some((message, theirs))) = (&self.chosen, &self.message) else { return };
        if ours == theirs && *message == self.question {
            assert_eq!(Some(chosen), self.choice.as_ref());
            let holds = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|at| at == text.as_bytes());
            assert!(holds(&theirs.p1, METHOD) && holds(&theirs.p1, INITIATOR) && holds(&theirs.p2, METHOD));
        }
    }
}

fn pending_pdu(machine: &mut impl Machine) -> Option<Pdu> {
    let Transmit { header, payload, digests } = machine.poll_transmit()?;
    assert!(!digests.header && !digests.data);
    let segment = match payload {
        Payload::None => Vec::new(),
        Payload::Bytes(segment) => segment,
        Payload::Task { .. } => panic!("no tasks here"),
    };
    assert_eq!(Bhs(&header).data_segment_length() as usize, segment.len());
    if let Ok(response) = LoginResponse::parse(&header) {
        assert!(response.status == LoginStatus::Success || segment.is_empty());
    }
    Some(Pdu { header, ahs: Vec::new(), segment })
}

fn give(machine: &mut impl Machine, pdu: &Pdu) -> Result<(), Fatal> {
    let length = u32::try_from(pdu.segment.len()).expect("at most 8192");
    assert!(length <= machine.data_segment_max());
    machine.on_header(&pdu.header, &pdu.ahs, NOW)?;
    match placement(machine, length, |_| 0) {
        Placement::Nothing => Ok(()),
        place => machine.on_data(received(place, &pdu.segment), NOW),
    }
}

/// Passes the first PDU of a connection to the ordinary machine, which must accept any. Returns whether it continues.
fn at_ordinary(machine: &mut Connection, give: impl FnOnce(&mut Connection) -> Result<(), Fatal>) -> bool {
    if give(machine).is_err() {
        return false;
    }
    while let Some(event) = machine.poll_event() {
        match event {
            iscsi::target::Event::Identify(_) => machine.identify(Ok(policy(Params::default()))),
            iscsi::target::Event::SessionReady(_) => machine.refuse_session(LoginStatus::OutOfResources),
            _ => {}
        }
    }
    true
}
