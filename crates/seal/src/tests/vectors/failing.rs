//! Generates the vectors that must fail, each named by its defect.

use serde_json::{Value, json};

use super::make::{self, NAMES};
use super::{field, handshake, to_hex};
use crate::handshake::{MAC_BYTES, mac};
use crate::noise::{Symmetric, dh};
use crate::schedule::{Ratchet, Use};
use crate::suite::Keyed;
use crate::tests::{Sealed, entropy, head_of, header, plain, seal};
use crate::*;

/// A list of records of which the last one fails at its `head` or at a `unit`.
fn stream(defect: &str, n: usize, fails: &str, records: &[&Sealed]) -> Value {
    let records: Vec<_> = records.iter().map(|sealed| make::record(sealed)).collect();
    json!({ "defect": defect, "handshake": NAMES[n].0, "from": "initiator", "fails": fails, "records": records })
}

fn sealer(n: usize) -> Sealer {
    make::channels(n).0.sealer
}

/// A correctly sealed record with any prefix and head.
fn forge(keyed: &Keyed, prefix: [u8; PREFIX_BYTES], counter: u64, head: &[u8]) -> Sealed {
    let mut sealed = head.to_vec();
    let tag = keyed.seal(counter, &prefix, &mut sealed);
    sealed.extend_from_slice(&tag);
    Sealed { prefix, head: sealed, units: vec![] }
}

fn prefix(version: u8, generation: u8, head: &[u8]) -> [u8; PREFIX_BYTES] {
    let [high, low] = (head.len() as u16).to_be_bytes();
    [version, generation, high, low]
}

fn kind_prefix(generation: u8, kind: u16, head: &[u8]) -> [u8; PREFIX_BYTES] {
    let [high, low] = (kind << 11 | head.len() as u16).to_be_bytes();
    [1, generation, high, low]
}

/// Marks the last record of a failing stream as a control record outside of the exchanges of the vectors.
fn alone(mut stream: Value) -> Value {
    stream["records"].as_array_mut().unwrap().last_mut().unwrap()["alone"] = true.into();
    stream
}

fn from_target(mut stream: Value) -> Value {
    stream["from"] = "target".into();
    stream
}

fn changed(sealed: &Sealed, change: impl FnOnce(&mut Sealed)) -> Sealed {
    let mut sealed = sealed.clone();
    change(&mut sealed);
    sealed
}

/// Bytes altered in transit, in every suite.
fn altered(n: usize, out: &mut Vec<Value>) {
    let (one, two) = (plain(100), plain(300));
    let mut sealer = sealer(n);
    let first = seal(&mut sealer, 0, &[&one, &two]);
    let second = seal(&mut sealer, 1, &[&one]);
    let last = first.head.len() - 1;
    let mut add = |defect, fails, records: &[&Sealed]| out.push(stream(defect, n, fails, records));
    add("head_bit_wrong", "head", &[&changed(&first, |record| record.head[20] ^= 1)]);
    add("head_tag_wrong", "head", &[&changed(&first, |record| record.head[last] ^= 0x80)]);
    add("descriptor_bit_wrong", "head", &[&changed(&first, |record| record.head[60] ^= 4)]);
    add("unit_first_bit_wrong", "unit", &[&changed(&first, |record| record.units[0][0] ^= 0x80)]);
    add("unit_last_bit_wrong", "unit", &[&changed(&first, |record| record.units[1][299] ^= 1)]);
    add("record_repeated", "head", &[&first, &first]);
    add("record_lost", "head", &[&second]);
    add(
        "unit_of_another_record",
        "unit",
        &[&first, &changed(&second, |record| record.units[0] = first.units[0].clone())],
    );
}

/// Invalid prefixes and heads with a correct tag.
fn forged(out: &mut Vec<Value>) {
    let channel = make::channels(0).0;
    let ratchet = channel.sealer.ratchet();
    let keyed = ratchet.keyed(Use::Head);
    let bhs = header(0);
    let with = |descriptors: &[Descriptor]| {
        let mut head = bhs.to_vec();
        descriptors.iter().for_each(|descriptor| descriptor.emit(&mut head));
        head
    };
    let descriptor = Descriptor { seal_id: 0, length: 16, tag: [0; TAG_BYTES] };
    let mut add = |defect, record: Sealed| out.push(stream(defect, 0, "head", &[&record]));
    add("version_2", forge(&keyed, prefix(2, 0, &bhs), 0, &bhs));
    add("version_0", forge(&keyed, prefix(0, 0, &bhs), 0, &bhs));
    add("head_shorter_than_bhs", forge(&keyed, prefix(1, 0, &bhs[..47]), 0, &bhs[..47]));
    add("head_longer_than_1964", forge(&keyed, prefix(1, 0, &[0; 1965]), 0, &[0; 1965]));
    add("descriptors_do_not_fill_the_head", forge(&keyed, prefix(1, 0, &[0; 75]), 0, &[0; 75]));
    let long = with(&[descriptor; 33]);
    add("thirty_three_descriptors", forge(&keyed, prefix(1, 0, &long), 0, &long));
    let mut short = with(&[descriptor]);
    short[4] = 8;
    add("ahs_longer_than_the_head", forge(&keyed, prefix(1, 0, &short), 0, &short));
    let later = with(&[Descriptor { seal_id: 1 << 48, ..descriptor }]);
    add("seal_id_of_the_next_generation", forge(&keyed, prefix(1, 0, &later), 0, &later));
    add("counter_1_first", forge(&keyed, prefix(1, 0, &bhs), 1, &bhs));
    add("head_sealed_with_the_data_key", forge(&ratchet.keyed(Use::Data), prefix(1, 0, &bhs), 0, &bhs));
    add(
        "prefix_not_authenticated",
        changed(&forge(&keyed, [0; 4], 0, &bhs), |record| record.prefix = prefix(1, 0, &bhs)),
    );
    add("head_of_the_target", forge(&channel.opener.ratchet().keyed(Use::Head), prefix(1, 0, &bhs), 0, &bhs));
    add("head_of_another_connection", seal(&mut sealer(4), 0, &[]));

    add("generation_255_first", forge(&keyed, prefix(1, 255, &bhs), 0, &bhs));
    add("generation_1_with_the_key_of_0", forge(&keyed, prefix(1, 1, &bhs), 0, &bhs));
    add("kind_3", forge(&keyed, kind_prefix(0, 3, &bhs), 0, &bhs));
    add("kind_31", forge(&keyed, kind_prefix(0, 31, &bhs), 0, &bhs));
    for (defect, kind, bytes) in [
        ("offer_of_48_bytes", 1, 48),
        ("offer_of_1215_bytes", 1, 1215),
        ("offer_of_1217_bytes", 1, 1217),
        ("answer_of_1119_bytes", 2, 1119),
        ("answer_of_1216_bytes", 2, 1216),
    ] {
        add(defect, forge(&keyed, kind_prefix(0, kind, &plain(bytes)), 0, &plain(bytes)));
    }
    let mut session = make::Session::new(0);
    let offer = session.offer();
    let as_pdu = Sealed { prefix: prefix(1, 0, &plain(1216)), units: vec![], ..offer.clone() };
    add("offer_called_a_pdu", as_pdu);
    session.answer(&offer);
    let one = session.initiator.sealer.ratchet();
    add("step_without_an_exchange", forge(&one.keyed(Use::Head), prefix(1, 1, &bhs), 0, &bhs));
}

/// Control records that are invalid by their place or content.
fn exchanges(out: &mut Vec<Value>) {
    let mut session = make::Session::new(0);
    let keyed = session.initiator.sealer.ratchet().keyed(Use::Head);
    let theirs = session.target.sealer.ratchet().keyed(Use::Head);
    let bhs = header(0);
    let offer = session.offer();
    let message = offer.units[0].clone();
    let zero = [&[0; 32][..], &message[32..]].concat();
    let not_reduced = [&message[..32], &[0xFF; 3], &message[35..]].concat();
    let mut add = |defect, n: usize, fails, records: &[&Sealed]| out.push(stream(defect, n, fails, records));
    add("offer_x25519_zero", 0, "control", &[&forge(&keyed, kind_prefix(0, 1, &zero), 0, &zero)]);
    let bad = forge(&keyed, kind_prefix(0, 1, &not_reduced), 0, &not_reduced);
    add("offer_encapsulation_key_not_reduced", 0, "control", &[&bad]);
    let second = forge(&keyed, kind_prefix(0, 1, &message), 1, &message);
    let answer = session.answer(&offer);
    let (ours, reply) = (session.initiator.sealer.ratchet(), answer.units[0].clone());
    let chain: [u8; 32] =
        *schedule::expand32(make::channels(0).0.sealer.ratchet().secret(), b"hikyaku seal1 next");
    let hashed = Ratchet::from_secret(Suite::Aes256Gcm, chain.into());
    let alone_hashed = forge(&hashed.keyed(Use::Head), prefix(1, 1, &bhs), 1, &bhs);
    add("generation_1_is_a_hash_alone", 0, "head", &[&offer, &alone_hashed]);
    let anew = forge(&ours.keyed(Use::Head), prefix(1, 1, &bhs), 0, &bhs);
    add("counter_begins_anew_with_a_generation", 0, "head", &[&offer, &anew]);
    let skipped = forge(&ours.keyed(Use::Head), prefix(1, 2, &bhs), 1, &bhs);
    add("generation_skipped", 0, "head", &[&offer, &skipped]);
    out.push(alone(stream("second_offer_behind_the_answer", 0, "control", &[&offer, &second])));
    let from_us = forge(&keyed, kind_prefix(0, 2, &reply), 0, &reply);
    out.push(alone(stream("answer_of_the_initiator", 0, "control", &[&from_us])));

    out.push(from_target(alone(stream("answer_to_no_offer", 0, "control", &[&answer]))));
    let theirs_offer = forge(&theirs, kind_prefix(0, 1, &message), 0, &message);
    out.push(from_target(alone(stream("offer_of_the_target", 0, "control", &[&theirs_offer]))));
    let zero = [&[0; 32][..], &reply[32..]].concat();
    let bad = forge(&theirs, kind_prefix(0, 2, &zero), 0, &zero);
    out.push(from_target(stream("answer_x25519_zero", 0, "control", &[&bad])));
    let stays = forge(&theirs, prefix(1, 0, &bhs), 1, &bhs);
    out.push(from_target(stream("generation_0_behind_the_answer", 0, "head", &[&answer, &stays])));
    let early = forge(&session.target.sealer.ratchet().keyed(Use::Head), prefix(1, 1, &bhs), 0, &bhs);
    out.push(from_target(stream("generation_1_before_the_answer", 0, "head", &[&early])));
    let mut altered = reply.clone();
    altered[40] ^= 1; // The ciphertext: it yields another secret.
    let altered = forge(&theirs, kind_prefix(0, 2, &altered), 0, &altered);
    let next = seal(&mut session.target.sealer, 1, &[]);
    out.push(from_target(stream("answer_with_another_ciphertext", 0, "head", &[&altered, &next])));
}

/// Records of a wrong generation after an exchange.
fn mixed(out: &mut Vec<Value>) {
    let mut session = make::Session::new(0);
    let first = seal(&mut session.initiator.sealer, 0, &[]);
    let old = seal(&mut session.initiator.sealer, 1, &[]);
    let offer = session.offer();
    let late = seal(&mut session.initiator.sealer, 5, &[]);
    session.answer(&offer);
    let second = seal(&mut session.initiator.sealer, 2, &[]);
    out.push(stream("generation_gone_back", 0, "head", &[&first, &old, &offer, &late, &second, &late]));
    out.push(stream("last_record_of_a_generation_lost", 0, "head", &[&first, &old, &offer, &second]));
    let again = session.offer();
    let mut head = header(3).to_vec();
    Descriptor { seal_id: 0, length: 16, tag: [0; TAG_BYTES] }.emit(&mut head);
    let counter = session.initiator.sealer.counter();
    let keyed = session.initiator.sealer.ratchet().keyed(Use::Head);
    let lags = forge(&keyed, prefix(1, 1, &head), counter, &head);
    let before = [&first, &old, &offer, &late, &second, &again];
    out.push(stream(
        "seal_id_of_the_generation_before_behind_an_offer",
        0,
        "head",
        &[&before[..], &[&lags]].concat(),
    ));
    session.answer(&again);
    let keyed = session.initiator.sealer.ratchet().keyed(Use::Head);
    let third = forge(&keyed, prefix(1, 2, &head), counter, &head);
    out.push(stream("seal_id_two_generations_old", 0, "head", &[&before[..], &[&third]].concat()));
}

/// Units that do not match their descriptors.
fn units(out: &mut Vec<Value>) {
    let mut sealer = sealer(0);
    let mut session = make::Session::new(0);
    let offer = session.offer();
    session.answer(&offer);
    let ratchet = session.initiator.sealer.ratchet();
    let mut unit = plain(100);
    let good = sealer.seal_in_place(&mut unit);
    let mut add = |defect, descriptor: Descriptor, unit: &[u8]| {
        let mut sealer = self::sealer(0);
        let (prefix, head) = head_of(&mut sealer, &header(0), &[descriptor]);
        out.push(stream(defect, 0, "unit", &[&Sealed { prefix, head, units: vec![unit.to_vec()] }]));
    };
    add("unit_tag_wrong", Descriptor { tag: [0x11; TAG_BYTES], ..good }, &unit);
    add("unit_under_another_seal_id", Descriptor { seal_id: 7, ..good }, &unit);
    add("unit_longer_than_described", Descriptor { length: 99, ..good }, &unit);
    add("unit_shorter_than_described", Descriptor { length: 101, ..good }, &unit);
    add("unit_truncated", Descriptor { length: 99, ..good }, &unit[..99]);
    let mut forged = plain(100);
    let tag = self::sealer(0).ratchet().keyed(Use::Head).seal(0, &[], &mut forged);
    add("unit_sealed_with_the_head_key", Descriptor { tag, ..good }, &forged);
    let mut forged = plain(100);
    let tag = self::sealer(0).ratchet().keyed(Use::Data).seal(0, b"aad", &mut forged);
    add("unit_with_associated_data", Descriptor { tag, ..good }, &forged);
    let mut forged = plain(100);
    let tag = ratchet.keyed(Use::Data).seal(0, &[], &mut forged);
    add("unit_sealed_with_the_next_generation", Descriptor { tag, ..good }, &forged);
}

pub(super) fn streams() -> Value {
    let mut out = Vec::new();
    (0..4).for_each(|n| altered(n, &mut out));
    forged(&mut out);
    exchanges(&mut out);
    mixed(&mut out);
    units(&mut out);
    out.into()
}

/// Message 1 after its correct mac.
fn with_mac(message: &[u8]) -> Vec<u8> {
    let target = Identity::generate(entropy(2)).public();
    [&mac(&target, &plain(40), message)[..], message].concat()
}

/// Mac and message 1 with the given payload.
fn message1(payload: &[u8]) -> Vec<u8> {
    let initiator = Identity::generate(entropy(1));
    let target = Identity::generate(entropy(2)).public();
    let e = x25519_dalek::StaticSecret::from(entropy::<32>(4));
    let e_public = x25519_dalek::PublicKey::from(&e).to_bytes();
    let mut noise = Symmetric::new(crate::handshake::PROTOCOL, &plain(40));
    let mut message = e_public.to_vec();
    noise.mix_hash(&target.0);
    noise.mix_hash(&e_public);
    noise.mix_key(&zeroize::Zeroizing::new(e_public));
    noise.mix_key(&dh(&e, &target));
    noise.encrypt_and_hash(&initiator.public().0, &mut message);
    noise.mix_key(&dh(initiator.secret(), &target));
    noise.encrypt_and_hash(payload, &mut message);
    with_mac(&message)
}

/// Handshakes that one side must reject: the target `message1`, the initiator `answer` or `message2` (XX). `change`
/// holds the fields in which the rejecting side differs from the stored handshake.
pub(super) fn handshakes() -> Value {
    let (flight, answer) = make::messages(0);
    let m1 = &flight[MAC_BYTES..];
    let flipped = |bytes: &[u8], byte: usize| {
        let mut bytes = bytes.to_vec();
        bytes[byte] ^= 1;
        bytes
    };
    let of = |n: usize, defect: &str, message: &str, bytes: &[u8], change: Value| json!({ "defect": defect, "handshake": NAMES[n].0, "message": message, "bytes": to_hex(bytes), "change": change });
    let none = || json!({});
    let prologue = to_hex(plain(41));
    let other = to_hex(entropy::<32>(0x77));
    let mut m2 = field(&make::enquiry(), "message2");
    m2[40] ^= 1;
    let mut not_reduced = [0; 1184];
    not_reduced[..3].fill(0xFF); // 4095; the modulus of ML-KEM is 3329
    let mac_of_another = [&flipped(&flight, 0)[..MAC_BYTES], m1].concat();
    json!([
        of(0, "mac_first_bit_wrong", "message1", &mac_of_another, none()),
        of(0, "mac_last_bit_wrong", "message1", &flipped(&flight, MAC_BYTES - 1), none()),
        of(
            0,
            "mac_right_for_another_message1",
            "message1",
            &[&flight[..MAC_BYTES], &message1(&[0; 1184])[MAC_BYTES..]].concat(),
            none()
        ),
        of(0, "mac_missing", "message1", m1, none()),
        of(0, "message1_missing", "message1", &flight[..MAC_BYTES], none()),
        of(0, "message1_ephemeral_wrong", "message1", &with_mac(&flipped(m1, 0)), none()),
        of(0, "message1_static_wrong", "message1", &with_mac(&flipped(m1, 40)), none()),
        of(0, "message1_payload_wrong", "message1", &with_mac(&flipped(m1, 500)), none()),
        of(0, "message1_tag_wrong", "message1", &with_mac(&flipped(m1, m1.len() - 1)), none()),
        of(0, "message1_short", "message1", &with_mac(&m1[..m1.len() - 1]), none()),
        of(0, "message1_long", "message1", &with_mac(&[m1, &[0]].concat()), none()),
        of(0, "message1_prologue_other", "message1", &flight, json!({ "prologue": prologue })),
        of(0, "message1_for_another_target", "message1", &flight, json!({ "target_private": other })),
        of(0, "message1_encapsulation_key_not_reduced", "message1", &message1(&not_reduced), none()),
        of(0, "message1_encapsulation_key_short", "message1", &message1(&[0; 1183]), none()),
        of(0, "answer_ciphertext_wrong", "answer", &flipped(&answer, 10), none()),
        of(0, "answer_ephemeral_wrong", "answer", &flipped(&answer, 1088), none()),
        of(0, "answer_tag_wrong", "answer", &flipped(&answer, answer.len() - 1), none()),
        of(0, "answer_short", "answer", &answer[..answer.len() - 1], none()),
        of(0, "answer_prologue_other", "answer", &answer, json!({ "prologue": prologue })),
        of(0, "answer_with_psk_unexpected", "answer", &answer, json!({ "psk": other })),
        of(4, "answer_of_another_connection", "answer", &answer, none()),
        of(4, "answer_psk_other", "answer", &make::messages(4).1, json!({ "psk": other })),
        of(4, "answer_psk_missing", "answer", &make::messages(4).1, json!({ "psk": null })),
        of(0, "enquiry_static_wrong", "message2", &m2, none()),
    ])
}

/// Whether this code rejects the failing handshake.
pub(super) fn is_refused(vectors: &Value, failing: &Value) -> bool {
    let mut handshake = handshake(vectors, &failing["handshake"]).clone();
    for (name, value) in failing["change"].as_object().unwrap() {
        handshake[name] = value.clone();
    }
    let bytes = field(failing, "bytes");
    match failing["message"].as_str().unwrap() {
        "message1" => {
            let target = Identity::generate(field(&handshake, "target_private").try_into().unwrap());
            let read = Responder::read(&target, &field(&handshake, "prologue"), &bytes);
            read.and_then(|responder| responder.finish(None, Suite::Aes256Gcm, &[7; 128])).is_err()
        }
        "answer" => make::restart(&handshake).finish(&bytes).is_err(),
        "message2" => {
            let enquiry = &vectors["enquiries"][0];
            let mut entropy = [0; 128];
            entropy[..32].copy_from_slice(&field(enquiry, "initiator_ephemeral"));
            Enquirer::start(&field(enquiry, "prologue"), &entropy).0.finish(&bytes).is_err()
        }
        other => panic!("{other}"),
    }
}
