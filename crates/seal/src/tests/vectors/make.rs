//! Generates the vectors that open.

use std::time::Duration;

use serde_json::{Value, json};

use super::{field, list, to_hex};
use crate::schedule::{Ratchet, Use};
use crate::tests::{Sealed, entropy, head_of, header, plain, seal};
use crate::*;

pub(super) const NAMES: [(&str, Suite, bool); 5] = [
    ("aes-256-gcm", Suite::Aes256Gcm, false),
    ("aegis-256x4", Suite::Aegis256X4, false),
    ("aegis-128x2", Suite::Aegis128X2, false),
    ("chacha20-poly1305", Suite::ChaCha20Poly1305, false),
    ("aes-256-gcm psk", Suite::Aes256Gcm, true),
];

/// Exchanges of each connection.
const EXCHANGES: usize = 2;

struct Inputs {
    initiator: Identity,
    target: Identity,
    prologue: Vec<u8>,
    psk: Option<[u8; 32]>,
    suite: Suite,
    initiator_entropy: [u8; 128],
    target_entropy: [u8; 128],
}

impl Inputs {
    fn made(n: usize) -> Self {
        let seed = 0x10 * n as u8;
        Self {
            initiator: Identity::generate(entropy(seed + 1)),
            target: Identity::generate(entropy(seed + 2)),
            prologue: plain(40 + n),
            psk: NAMES[n].2.then(|| entropy(seed + 3)),
            suite: NAMES[n].1,
            initiator_entropy: entropy(seed + 4),
            target_entropy: entropy(seed + 5),
        }
    }

    fn stored(value: &Value) -> Self {
        let array = |name| <[u8; 32]>::try_from(field(value, name)).unwrap();
        let mut initiator_entropy = [0; 128];
        initiator_entropy[..32].copy_from_slice(&array("initiator_ephemeral"));
        initiator_entropy[32..96].copy_from_slice(&field(value, "kem_seed"));
        let mut target_entropy = [0; 128];
        target_entropy[..32].copy_from_slice(&array("target_ephemeral"));
        target_entropy[32..64].copy_from_slice(&array("kem_m"));
        Self {
            initiator: Identity::generate(array("initiator_private")),
            target: Identity::generate(array("target_private")),
            prologue: field(value, "prologue"),
            psk: value["psk"].is_string().then(|| array("psk")),
            suite: Suite::from_name(value["suite"].as_str().unwrap()).unwrap(),
            initiator_entropy,
            target_entropy,
        }
    }

    fn start(&self) -> (Initiator, Vec<u8>) {
        let (psk, entropy) = (self.psk.as_ref(), &self.initiator_entropy);
        Initiator::start(&self.initiator, self.target.public(), &self.prologue, psk, self.suite, entropy)
    }

    fn run(&self) -> Result<(Vec<u8>, Channel, Vec<u8>, Channel), Broken> {
        let (start, m1) = self.start();
        let responder = Responder::read(&self.target, &self.prologue, &m1)?;
        let (answer, target) = responder.finish(self.psk.as_ref(), self.suite, &self.target_entropy)?;
        Ok((m1, start.finish(&answer)?, answer, target))
    }
}

/// The initiator of a stored handshake, with the changes of a failing vector.
pub(super) fn restart(value: &Value) -> Initiator {
    Inputs::stored(value).start().0
}

/// The initiator's channel, the answer, and the target's channel of a stored handshake.
pub(super) fn replay(value: &Value) -> Result<(Channel, Vec<u8>, Channel), Broken> {
    let (m1, initiator, answer, target) = Inputs::stored(value).run()?;
    assert_eq!(m1, field(value, "message1"));
    Ok((initiator, answer, target))
}

/// The channels of handshake `n`, generated.
pub(super) fn channels(n: usize) -> (Channel, Channel) {
    let (_, initiator, _, target) = Inputs::made(n).run().unwrap();
    (initiator, target)
}

pub(super) fn messages(n: usize) -> (Vec<u8>, Vec<u8>) {
    let (m1, _, answer, _) = Inputs::made(n).run().unwrap();
    (m1, answer)
}

fn generation(ratchet: &Ratchet) -> Value {
    let (head_key, head_iv) = ratchet.key_and_iv(Use::Head);
    let (data_key, data_iv) = ratchet.key_and_iv(Use::Data);
    json!({
        "secret": to_hex(ratchet.secret().as_slice()),
        "head_key": to_hex(&*head_key), "head_iv": to_hex(&*head_iv),
        "data_key": to_hex(&*data_key), "data_iv": to_hex(&*data_iv),
    })
}

/// Both ends of a connection, with the exchanges of the vectors.
pub(super) struct Session {
    pub(super) initiator: Channel,
    pub(super) target: Channel,
    n: usize,
    exchanges: u8,
}

impl Session {
    /// The connection of handshake `n`.
    pub(super) fn new(n: usize) -> Self {
        let (initiator, target) = channels(n);
        Self { initiator, target, n, exchanges: 0 }
    }

    fn entropy(&self, of_target: bool) -> [u8; RENEWAL_ENTROPY_BYTES] {
        entropy(0x10 * self.n as u8 + 6 + 2 * self.exchanges + u8::from(of_target))
    }

    /// The initiator's control record. The target can take it without any earlier record of this direction.
    pub(super) fn offer(&mut self) -> Sealed {
        let entropy = self.entropy(false);
        control(&mut self.initiator, &entropy)
    }

    /// The target's control record, after which the initiator has taken it.
    pub(super) fn answer(&mut self, offer: &Sealed) -> Sealed {
        take_message(&mut self.target, Kind::Offer, offer);
        let entropy = self.entropy(true);
        let answer = control(&mut self.target, &entropy);
        take_message(&mut self.initiator, Kind::Answer, &answer);
        self.exchanges += 1;
        answer
    }
}

/// Makes a control record; its plaintext message is stored as its only unit.
fn control(channel: &mut Channel, entropy: &[u8; RENEWAL_ENTROPY_BYTES]) -> Sealed {
    let Channel { sealer, opener, renewal, .. } = channel;
    let (ratchet, counter) = (sealer.ratchet().keyed(Use::Head), sealer.counter());
    let mut wire = Vec::new();
    renewal.seal(sealer, opener, entropy, Duration::ZERO, &mut wire).unwrap();
    let head = wire.split_off(PREFIX_BYTES);
    let prefix: [u8; PREFIX_BYTES] = wire.try_into().unwrap();
    let mut message = head.clone();
    let tag = message.split_off(head.len() - TAG_BYTES).try_into().unwrap();
    ratchet.open(counter, &prefix, &mut message, &tag).unwrap();
    Sealed { prefix, head, units: vec![message] }
}

fn take_message(channel: &mut Channel, kind: Kind, sealed: &Sealed) {
    let Channel { sealer, opener, renewal, .. } = channel;
    // The readers of the vectors open the records before it.
    while opener.generation() < sealer.generation() {
        opener.retire(Duration::MAX);
    }
    renewal.open(kind, &sealed.units[0], sealer, opener, Duration::ZERO).unwrap();
}

pub(super) fn handshakes() -> Value {
    (0..NAMES.len())
        .map(|n| {
            let inputs = Inputs::made(n);
            let (m1, _, answer, _) = inputs.run().unwrap();
            let mut session = Session::new(n);
            let (mut exchanges, mut of_initiator, mut of_target) = (vec![], vec![], vec![]);
            for exchange in 0.. {
                of_initiator.push(generation(session.initiator.sealer.ratchet()));
                of_target.push(generation(session.target.sealer.ratchet()));
                if exchange == EXCHANGES {
                    break;
                }
                let (ours, theirs) = (session.entropy(false), session.entropy(true));
                let offer = session.offer();
                let answer = session.answer(&offer);
                exchanges.push(json!({
                    "initiator_ephemeral": to_hex(&ours[..32]), "kem_seed": to_hex(&ours[32..]),
                    "target_ephemeral": to_hex(&theirs[..32]), "kem_m": to_hex(&theirs[32..64]),
                    "offer": to_hex(&offer.units[0]), "answer": to_hex(&answer.units[0]),
                }));
            }
            json!({
                "name": NAMES[n].0, "suite": inputs.suite.name(), "prologue": to_hex(&inputs.prologue),
                "initiator_private": to_hex(inputs.initiator.secret().as_bytes()),
                "initiator_public": to_hex(inputs.initiator.public().0),
                "target_private": to_hex(inputs.target.secret().as_bytes()),
                "target_public": to_hex(inputs.target.public().0),
                "psk": inputs.psk.map(to_hex),
                "initiator_ephemeral": to_hex(&inputs.initiator_entropy[..32]),
                "kem_seed": to_hex(&inputs.initiator_entropy[32..96]),
                "target_ephemeral": to_hex(&inputs.target_entropy[..32]),
                "kem_m": to_hex(&inputs.target_entropy[32..64]),
                "message1": to_hex(m1), "answer": to_hex(answer),
                "generations": {
                    "initiator": of_initiator,
                    "target": of_target,
                },
                "exchanges": exchanges,
            })
        })
        .collect()
}

pub(super) fn enquiry() -> Value {
    let target = Identity::generate(entropy(0xE0));
    let prologue = plain(30);
    let (enquirer, m1) = Enquirer::start(&prologue, &entropy(0xE1));
    let m2 = answer_enquiry(&target, &prologue, &m1, &entropy(0xE2)).unwrap();
    assert_eq!(enquirer.finish(&m2), Ok(target.public()));
    json!({
        "prologue": to_hex(prologue),
        "target_private": to_hex(target.secret().as_bytes()), "target_public": to_hex(target.public().0),
        "initiator_ephemeral": to_hex(entropy::<32>(0xE1)), "target_ephemeral": to_hex(entropy::<32>(0xE2)),
        "message1": to_hex(m1), "message2": to_hex(m2),
    })
}

/// A record of a vector without its plaintext, as failing vectors store it.
pub(super) fn record(sealed: &Sealed) -> Value {
    let units: Vec<_> = match sealed.prefix[2] >> 3 {
        0 => sealed.units.iter().map(to_hex).collect(),
        _ => vec![],
    };
    json!({ "prefix": to_hex(sealed.prefix), "head": to_hex(&sealed.head), "units": units })
}

fn with_plains(sealed: &Sealed, header: &[u8], plains: &[&[u8]]) -> Value {
    let mut value = record(sealed);
    value["header"] = to_hex(header).into();
    value["plains"] = plains.iter().map(to_hex).collect();
    value
}

fn with_message(sealed: &Sealed) -> Value {
    let mut value = record(sealed);
    value["message"] = to_hex(&sealed.units[0]).into();
    value
}

/// Records of one direction: one without units, one with several.
fn first(sealer: &mut Sealer) -> Vec<Value> {
    let none = seal(sealer, 0, &[]);
    let (one, two, three) = (plain(1), plain(512), plain(777));
    let several = seal(sealer, 1, &[&one, &two, &three]);
    vec![with_plains(&none, &header(0), &[]), with_plains(&several, &header(1), &[&one, &two, &three])]
}

/// Two units before a step: one sealed ahead, one plaintext.
fn ahead(sealer: &mut Sealer) -> (Descriptor, Vec<u8>) {
    let mut ahead = plain(300);
    (sealer.seal_in_place(&mut ahead), ahead)
}

/// Records after a step: a longer header with a unit sealed ahead of the step, and an ordinary record.
fn second(sealer: &mut Sealer, (before, ahead): (Descriptor, Vec<u8>)) -> Vec<Value> {
    let mut fresh = plain(64);
    let after = sealer.seal_in_place(&mut fresh);
    let mut longer = vec![0x5A; BHS_BYTES + 8];
    longer[4] = 2;
    let (prefix, head) = head_of(sealer, &longer, &[before, after]);
    let both = Sealed { prefix, head, units: vec![ahead, fresh] };
    let ordinary = seal(sealer, 3, &[&plain(512)]);
    vec![
        with_plains(&both, &longer, &[&plain(300), &plain(64)]),
        with_plains(&ordinary, &header(3), &[&plain(512)]),
    ]
}

/// Three generations of both directions. The initiator sends a record between its offer and the answer.
fn both_streams(n: usize) -> [Vec<Value>; 2] {
    let mut session = Session::new(n);
    let (mut ours, mut theirs) = (first(&mut session.initiator.sealer), first(&mut session.target.sealer));
    let (our_ahead, their_ahead) = (ahead(&mut session.initiator.sealer), ahead(&mut session.target.sealer));
    let offer = session.offer();
    ours.push(with_message(&offer));
    let between = seal(&mut session.initiator.sealer, 2, &[&plain(5)]);
    ours.push(with_plains(&between, &header(2), &[&plain(5)]));
    theirs.push(with_message(&session.answer(&offer)));
    ours.extend(second(&mut session.initiator.sealer, our_ahead));
    theirs.extend(second(&mut session.target.sealer, their_ahead));
    let offer = session.offer();
    ours.push(with_message(&offer));
    theirs.push(with_message(&session.answer(&offer)));
    for (stream, sealer) in
        [(&mut ours, &mut session.initiator.sealer), (&mut theirs, &mut session.target.sealer)]
    {
        let last = seal(sealer, 4, &[&plain(1)]);
        stream.push(with_plains(&last, &header(4), &[&plain(1)]));
    }
    [ours, theirs]
}

pub(super) fn streams() -> Value {
    let mut streams = Vec::new();
    for (n, (name, ..)) in NAMES.iter().enumerate() {
        for (from, records) in ["initiator", "target"].into_iter().zip(both_streams(n)) {
            streams.push(json!({ "handshake": name, "from": from, "records": records }));
        }
    }
    assert_eq!(list(&json!({ "streams": streams }), "streams").len(), 2 * NAMES.len());
    streams.into()
}

/// The entropy of a stored exchange: the initiator's, or the target's.
pub(super) fn entropy_of(exchange: &Value, of_target: bool) -> [u8; RENEWAL_ENTROPY_BYTES] {
    let names = if of_target { ["target_ephemeral", "kem_m"] } else { ["initiator_ephemeral", "kem_seed"] };
    let mut bytes = names.map(|name| field(exchange, name)).concat();
    bytes.resize(RENEWAL_ENTROPY_BYTES, 0);
    bytes.try_into().unwrap()
}
