//! Section 6: exchanges of fresh keys, and which records are valid when.

use std::collections::VecDeque;

use super::*;
use crate::schedule::{Ratchet, Use};

const SUITE: Suite = Suite::ChaCha20Poly1305;

fn offer_of(channel: &mut Channel, seed: u8) -> Result<Vec<u8>, Broken> {
    let Channel { sealer, opener, renewal, .. } = channel;
    let mut wire = Vec::new();
    renewal.seal(sealer, opener, &entropy(seed), Duration::ZERO, &mut wire)?;
    Ok(wire)
}

fn secrets(channel: &Channel) -> [Vec<u8>; 2] {
    [channel.sealer.ratchet(), channel.opener.ratchet()].map(|ratchet| ratchet.secret().to_vec())
}

#[test]
fn section6_exchange_gives_both_directions_keys_that_differ_from_the_hash_of_the_old_ones() {
    for suite in suites() {
        let (mut ours, mut theirs) = pair(suite);
        let mut seen = secrets(&ours).to_vec();
        for number in 0..3 {
            let hashed: Vec<Vec<u8>> = [ours.sealer.ratchet(), ours.opener.ratchet()]
                .map(|ratchet| schedule::expand32(ratchet.secret(), b"hikyaku seal1 next").to_vec())
                .into();
            exchange(&mut ours, &mut theirs, number);
            // The target's opener steps with the next record.
            open(&mut theirs.opener, &seal(&mut ours.sealer, 0, &[])).unwrap();
            let [sent, received] = secrets(&ours);
            assert_eq!(secrets(&theirs), [received.clone(), sent.clone()], "{suite:?}");
            for secret in [&sent, &received] {
                assert!(!seen.contains(secret) && !hashed.contains(secret), "{suite:?}");
            }
            seen.extend([sent, received]);
        }
    }
}

/// Every input affects the result: the entropy of either side and the old secret.
#[test]
fn section4_next_secret_depends_on_all_that_goes_into_it() {
    let after = |connection: u8, offer: u8, answer: u8| {
        let (mut ours, mut theirs) = pair_from(SUITE, connection);
        control(&mut ours, &mut theirs, offer, Duration::ZERO).unwrap();
        control(&mut theirs, &mut ours, answer, Duration::ZERO).unwrap();
        secrets(&ours)
    };
    let known = [after(3, 1, 2), after(3, 9, 2), after(3, 1, 9), after(4, 1, 2)];
    for (n, one) in known.iter().enumerate() {
        for other in &known[n + 1..] {
            assert!(one.iter().all(|secret| !other.contains(secret)));
        }
    }
    let fresh_of = |dh: u8, shared: u8, hash: u8| Fresh {
        dh: [dh; 32].into(),
        shared: [shared; 32].into(),
        hash: [hash; 32],
    };
    let ratchet = pair(SUITE).0;
    let next = |fresh: &Fresh| ratchet.sealer.ratchet().next(fresh).secret().to_vec();
    let base = next(&fresh_of(1, 2, 3));
    for other in [fresh_of(0, 2, 3), fresh_of(1, 0, 3), fresh_of(1, 2, 0)] {
        assert_ne!(next(&other), base);
    }
}

#[test]
fn section6_initiator_offers_when_either_direction_is_due() {
    const LIMITS: Limits = Limits { records_due: 5, unit_bytes_due: 1000, ..Limits::SPECIFIED };
    for from_target in [false, true] {
        for bytes in [0, 250] {
            let (mut ours, mut theirs) = pair_under(&LIMITS);
            let (sender, receiver) =
                if from_target { (&mut theirs, &mut ours) } else { (&mut ours, &mut theirs) };
            let mut records = 0;
            while records < 5 && (bytes == 0 || records < 4) {
                let plain = plain(bytes);
                let units: &[&[u8]] = if bytes == 0 { &[] } else { &[&plain] };
                open(&mut receiver.opener, &seal(&mut sender.sealer, 0, units)).unwrap();
                records += 1;
            }
            let is_due =
                |channel: &Channel, now| channel.renewal.is_due(&channel.sealer, &channel.opener, now);
            assert!(is_due(&ours, Duration::ZERO), "from target: {from_target}, {bytes} bytes");
            assert!(!is_due(&theirs, Duration::MAX), "a target does not offer");
            exchange(&mut ours, &mut theirs, 7);
            assert!(!is_due(&ours, Duration::ZERO), "both directions count anew");
            assert_eq!(ours.renewal.due_at(&ours.sealer), Some(LIMITS.age_due));
            assert_eq!(theirs.renewal.due_at(&theirs.sealer), None);
        }
    }
}

fn pair_under(limits: &'static Limits) -> (Channel, Channel) {
    let (mut ours, mut theirs) = pair(SUITE);
    for channel in [&mut ours, &mut theirs] {
        channel.sealer.limit(limits);
        channel.opener.limit(limits);
    }
    (ours, theirs)
}

#[test]
fn section6_zero_and_what_is_no_encapsulation_key_end_the_connection() {
    let forged = |channel: &Channel, kind: Kind, message: &[u8]| {
        let prefix = head::emit_prefix(0, kind, message.len());
        let mut wire = prefix.to_vec();
        wire.extend_from_slice(message);
        let keyed = channel.sealer.ratchet().keyed(Use::Head);
        let tag = keyed.seal(0, &prefix, &mut wire[PREFIX_BYTES..]);
        wire.extend(tag);
        wire
    };
    let ek = kem::KeyPair::from_seed(&entropy(1)).encapsulation_key();
    let mut not_reduced = ek;
    not_reduced[..3].fill(0xFF);
    let low_order = [
        [0; 32],
        std::array::from_fn(|n| u8::from(n == 0)),
        hex32("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    ];
    for (e, ek) in low_order.map(|e| (e, ek)).into_iter().chain([(entropy(2), not_reduced)]) {
        let (ours, mut theirs) = pair(SUITE);
        let wire = forged(&ours, Kind::Offer, &[&e[..], &ek].concat());
        let taken = take_control(&mut theirs, &wire, Duration::ZERO);
        assert_eq!(taken.and_then(|()| offer_of(&mut theirs, 3)), Err(Broken));
    }
    for e in low_order {
        let (mut ours, theirs) = pair(SUITE);
        offer_of(&mut ours, 1).unwrap();
        let wire = forged(&theirs, Kind::Answer, &[&e[..], &[7; kem::CT_BYTES]].concat());
        assert_eq!(take_control(&mut ours, &wire, Duration::ZERO), Err(Broken));
    }
}

fn hex32(text: &str) -> [u8; 32] {
    suites::hex(text).try_into().unwrap()
}

#[test]
fn section6_there_is_no_exchange_in_generation_65535() {
    let (mut ours, mut theirs) = pair(SUITE);
    for channel in [&mut ours, &mut theirs] {
        while channel.sealer.generation() < u16::MAX {
            let fresh = fresh(0);
            channel.sealer.step(&fresh, Duration::ZERO);
            channel.opener.step(&fresh, Duration::ZERO);
        }
    }
    let last = seal(&mut ours.sealer, 0, &[&plain(10)]);
    open(&mut theirs.opener, &last).unwrap();
    assert_eq!(theirs.opener.sealed_head_bytes([1, 0, 0, 48]), Err(Broken), "0 does not come after 65535");
    assert_eq!(offer_of(&mut ours, 1), Err(Broken));
    let message = vec![9; crate::renewal::OFFER_BYTES];
    let Channel { sealer, opener, renewal, .. } = &mut theirs;
    assert_eq!(renewal.open(Kind::Offer, &message, sealer, opener, Duration::ZERO), Err(Broken));
}

#[test]
fn section6_old_keys_end_60_s_after_the_answer_though_nothing_comes() {
    let keep = Limits::SPECIFIED.keep_max;
    let now = Duration::from_secs(1000);
    let (mut ours, mut theirs) = pair(SUITE);
    let mut ahead = [plain(20), plain(20)];
    let descriptors = [ours.sealer.seal_in_place(&mut ahead[0]), theirs.sealer.seal_in_place(&mut ahead[1])];
    control(&mut ours, &mut theirs, 1, now).unwrap();
    let late = seal(&mut ours.sealer, 9, &[]);
    control(&mut theirs, &mut ours, 2, now).unwrap();
    for channel in [&mut ours, &mut theirs] {
        assert_eq!(channel.opener.retire_at(), Some(now + keep));
        channel.opener.retire(now + keep - Duration::from_nanos(1));
        assert_eq!(channel.opener.retire_at(), Some(now + keep), "too early");
    }
    ours.opener.open_unit(&descriptors[1], &mut ahead[1].clone()).unwrap();
    theirs.opener.open_unit(&descriptors[0], &mut ahead[0].clone()).unwrap();
    for (channel, n) in [(&mut ours, 1), (&mut theirs, 0)] {
        channel.opener.retire(now + keep);
        assert_eq!((channel.opener.retire_at(), channel.opener.generation()), (None, 1));
        assert_eq!(channel.opener.open_unit(&descriptors[n], &mut ahead[n].clone()), Err(Broken));
    }
    assert_eq!(open(&mut theirs.opener, &late).unwrap_err(), Broken, "a record of the generation that ended");
    // Without that record the counters differ permanently; only a new connection recovers.
    assert_eq!(open(&mut ours.opener, &seal(&mut theirs.sealer, 0, &[])).map(|_| ()), Ok(()));
}

// The tests below run through all orders of events of a small connection.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A record with a unit sealed now and, if one may still begin, a unit sealed ahead.
    Record,
    Ahead,
    /// A control record: an offer, or the answer to an open one.
    Control,
    /// Takes the first record in transit to this side.
    Receive,
}

#[derive(Clone)]
enum Wire {
    Pdu(Sealed),
    Control(Vec<u8>),
}

/// Both sides, replayed from a list of steps, because channels cannot be cloned.
struct World {
    /// Initiator and target.
    sides: [Channel; 2],
    ahead: [Option<(Descriptor, Vec<u8>)>; 2],
    /// Records in transit to each side.
    wires: [VecDeque<Wire>; 2],
    exchanges: u8,
}

impl World {
    fn new() -> Self {
        let ratchets = || Ratchet::both(SUITE, &[1; 32], &([2; 32].into(), [3; 32].into()));
        let ((ours, theirs, one), (our, their, other)) = (ratchets(), ratchets());
        let sides = [Channel::initiator(ours, theirs, one), Channel::target(their, our, other)];
        Self { sides, ahead: [None, None], wires: [VecDeque::new(), VecDeque::new()], exchanges: 0 }
    }

    fn allowed(&self, side: usize, step: Step) -> bool {
        match step {
            Step::Record => self.wires[1 - side].len() < 2,
            Step::Ahead => self.ahead[side].is_none(),
            Step::Control => self.sides[side].renewal.is_ready() && (side == 1 || self.exchanges < 2),
            Step::Receive => !self.wires[side].is_empty(),
        }
    }

    fn apply(&mut self, side: usize, step: Step) {
        let channel = &mut self.sides[side];
        match step {
            Step::Ahead => {
                let mut unit = plain(3);
                self.ahead[side] = Some((channel.sealer.seal_in_place(&mut unit), unit));
            }
            Step::Record => {
                let mut unit = plain(2);
                let mut descriptors = vec![channel.sealer.seal_in_place(&mut unit)];
                let mut units = vec![unit];
                let sealer = &channel.sealer;
                let ahead = self.ahead[side].take().filter(|(unit, _)| sealer.carries(unit, Duration::ZERO));
                if let Some((descriptor, unit)) = ahead {
                    descriptors.push(descriptor);
                    units.push(unit);
                }
                let (prefix, head) = head_of(&mut channel.sealer, &header(7), &descriptors);
                self.wires[1 - side].push_back(Wire::Pdu(Sealed { prefix, head, units }));
            }
            Step::Control => {
                self.exchanges += u8::from(side == 0);
                let before = channel.sealer.generation();
                let wire = offer_of(channel, 0x20 + self.exchanges * 2 + side as u8).unwrap();
                assert_eq!(wire[1], before as u8, "a control record is of the generation that it ends");
                assert_eq!(channel.sealer.generation(), before + side as u16, "only the answer is a step");
                self.wires[1 - side].push_back(Wire::Control(wire));
            }
            Step::Receive => match self.wires[side].pop_front().unwrap() {
                Wire::Pdu(sealed) => {
                    let (_, units) = open(&mut channel.opener, &sealed).expect("what keeps the rules opens");
                    assert!(units.iter().all(|unit| *unit == plain(unit.len())));
                }
                Wire::Control(wire) => take_control(channel, &wire, Duration::ZERO).unwrap(),
            },
        }
        self.check();
    }

    fn check(&mut self) {
        let [initiator, target] = &self.sides;
        let generations =
            [initiator, target].map(|side| (side.sealer.generation(), side.opener.generation()));
        let [(ours_out, ours_in), (theirs_out, theirs_in)] = generations;
        assert_eq!(ours_out, ours_in, "the initiator steps both ways at once");
        assert!(theirs_out.abs_diff(ours_out) <= 1 && theirs_in <= theirs_out && theirs_out - theirs_in <= 1);
        // No record that violates the rules opens in any state. Only prefixes are tried, because they change no state.
        for side in 0..2 {
            let opener = &self.sides[side].opener;
            let present = opener.generation() as u8;
            let may_step = side == 1 && theirs_out > theirs_in;
            for generation in 0..8 {
                let legal = generation == present || may_step && generation == present.wrapping_add(1);
                assert_eq!(opener.sealed_head_bytes([1, generation, 0, 48]).is_ok(), legal, "side {side}");
            }
        }
    }
}

const STEPS: [(usize, Step); 8] = [
    (0, Step::Record),
    (0, Step::Ahead),
    (0, Step::Control),
    (0, Step::Receive),
    (1, Step::Record),
    (1, Step::Ahead),
    (1, Step::Control),
    (1, Step::Receive),
];

/// All orders of [`DEPTH`] steps, from the start and from the middle of an exchange.
#[test]
fn section6_every_order_of_offers_answers_records_and_units_sealed_ahead_opens() {
    let mut orders = 0;
    let beginnings: [&[(usize, Step)]; 3] = [
        &[],
        &[(0, Step::Ahead), (1, Step::Ahead), (0, Step::Control), (1, Step::Receive)],
        &[
            (0, Step::Control),
            (1, Step::Receive),
            (0, Step::Record),
            (1, Step::Control),
            (1, Step::Ahead),
            (0, Step::Receive),
        ],
    ];
    for beginning in beginnings {
        let mut paths = vec![beginning.to_vec()];
        for _ in 0..DEPTH {
            let mut longer = Vec::new();
            for path in paths {
                let mut world = World::new();
                path.iter().for_each(|(side, step)| world.apply(*side, *step));
                let next = STEPS.into_iter().filter(|(side, step)| world.allowed(*side, *step));
                longer.extend(next.map(|step| [&path[..], &[step]].concat()));
                orders += 1;
            }
            paths = longer;
        }
        for path in paths {
            let mut world = World::new();
            path.iter().for_each(|(side, step)| world.apply(*side, *step));
            orders += 1;
        }
    }
    assert!(orders > 1000, "{orders}");
}

/// Number of steps after a beginning.
const DEPTH: usize = 4;

/// In every state of an exchange, each control record out of place ends the connection.
#[test]
fn section6_control_records_out_of_place_are_refused() {
    let ready = |steps: &[(usize, Step)]| {
        let mut world = World::new();
        steps.iter().for_each(|(side, step)| world.apply(*side, *step));
        world
    };
    let states: [&[(usize, Step)]; 5] = [
        &[],
        &[(0, Step::Control)],
        &[(0, Step::Control), (1, Step::Receive)],
        &[(0, Step::Control), (1, Step::Receive), (1, Step::Control)],
        &[(0, Step::Control), (1, Step::Receive), (1, Step::Control), (0, Step::Receive)],
    ];
    for (number, state) in states.into_iter().enumerate() {
        for side in 0..2 {
            for kind in [Kind::Offer, Kind::Answer] {
                let mut world = ready(state);
                let Channel { sealer, opener, renewal, .. } = &mut world.sides[side];
                let bytes = if kind == Kind::Offer { 32 + 1184 } else { 32 + 1088 };
                let mut message = vec![0; bytes];
                message[0] = 9;
                let taken = renewal.open(kind, &message, sealer, opener, Duration::ZERO);
                let legal = match (side, kind) {
                    // The initiator waits for the answer.
                    (0, Kind::Answer) => (1..4).contains(&number),
                    // No offer is unanswered, and both directions have stepped.
                    (1, Kind::Offer) => number < 2,
                    _ => false,
                };
                assert_eq!(taken.is_ok(), legal, "state {number}, side {side}, {kind:?}");
            }
        }
    }
}

#[test]
fn section6_offer_may_be_the_first_record_of_its_generation() {
    let (mut ours, mut theirs) = pair(SUITE);
    for round in 0..300_u16 {
        exchange(&mut ours, &mut theirs, round as u8);
        assert_eq!((ours.sealer.generation(), theirs.sealer.generation()), (round + 1, round + 1));
    }
    open(&mut theirs.opener, &seal(&mut ours.sealer, 0, &[&plain(9)])).unwrap();
    open(&mut ours.opener, &seal(&mut theirs.sealer, 0, &[&plain(9)])).unwrap();
}

/// docs/SEAL.md requires less than 1 ms of processor time per side. The result depends on the machine, so it is only
/// printed: `cargo test --release -p hikyaku-seal processor -- --nocapture`.
#[test]
fn section6_processor_time_of_an_exchange() {
    let (mut ours, mut theirs) = pair(Suite::Aes256Gcm);
    let rounds = 20;
    let mut times = [Duration::ZERO; 2];
    for round in 0..rounds {
        let mut timed = |side: usize, act: &mut dyn FnMut()| {
            let start = std::time::Instant::now();
            act();
            times[side] += start.elapsed();
        };
        let (mut offer, mut answer) = (Vec::new(), Vec::new());
        timed(0, &mut || offer = offer_of(&mut ours, round).unwrap());
        timed(1, &mut || take_control(&mut theirs, &offer, Duration::ZERO).unwrap());
        timed(1, &mut || answer = offer_of(&mut theirs, round).unwrap());
        timed(0, &mut || take_control(&mut ours, &answer, Duration::ZERO).unwrap());
    }
    let [initiator, target] = times.map(|time| time / u32::from(rounds));
    println!("an exchange: initiator {initiator:?}, target {target:?}");
}
