//! Section 3: which handshakes succeed.

use super::*;
use crate::handshake::{MAC_BYTES, mac};

const SUITE: Suite = Suite::Aes256Gcm;

fn start(target: PublicKey, prologue: &[u8], psk: Option<&[u8; 32]>) -> (Initiator, Vec<u8>) {
    Initiator::start(&identities().0, target, prologue, psk, SUITE, &entropy(3))
}

/// The target's answer to a message without prologue and pre-shared key.
fn answered(target: &Identity, m1: &[u8], suite: Suite, seed: u8) -> (Vec<u8>, Channel) {
    Responder::read(target, b"", m1).unwrap().finish(None, suite, &entropy(seed)).unwrap()
}

/// Runs a handshake; fails unless both sides derive the same keys.
fn run(
    ours: &[u8],
    theirs: &[u8],
    our_psk: Option<&[u8; 32]>,
    their_psk: Option<&[u8; 32]>,
) -> Result<(), Broken> {
    let target = identities().1;
    let (initiator, m1) = start(target.public(), ours, our_psk);
    let responder = Responder::read(&target, theirs, &m1)?;
    let (answer, mut channel) = responder.finish(their_psk, SUITE, &entropy(4)).unwrap();
    let mut ours = initiator.finish(&answer)?;
    let record = seal(&mut ours.sealer, 1, &[b"unit"]);
    open(&mut channel.opener, &record).map(|_| ())
}

#[test]
fn section3_both_sides_come_to_the_same_keys_and_the_target_learns_who_asks() {
    let (initiator, target) = identities();
    let (_, m1) = start(target.public(), b"prologue", None);
    assert_eq!(Responder::read(&target, b"prologue", &m1).unwrap().initiator(), initiator.public());
    assert_eq!(run(b"prologue", b"prologue", None, None), Ok(()));
    assert_eq!(run(b"prologue", b"prologue", Some(&[7; 32]), Some(&[7; 32])), Ok(()));
}

#[test]
fn section3_message_lengths_are_the_protocols() {
    let target = identities().1;
    let (_, m1) = start(target.public(), b"", None);
    assert_eq!(m1.len(), 16 + 32 + 48 + 1184 + 16);
    let (answer, _) = answered(&target, &m1, SUITE, 4);
    assert_eq!(answer.len(), 1088 + 32 + 16);
}

#[test]
fn section3_altered_prologue_is_refused_at_message_1() {
    for bad in bit_flips(b"prologue").chain([b"".to_vec(), b"prologue ".to_vec(), b"prologu".to_vec()]) {
        assert_eq!(run(b"prologue", &bad, None, None), Err(Broken));
    }
}

#[test]
fn section3_another_psk_or_none_is_refused() {
    let (ours, theirs) = ([7; 32], [8; 32]);
    assert_eq!(run(b"", b"", Some(&ours), Some(&theirs)), Err(Broken));
    assert_eq!(run(b"", b"", Some(&ours), None), Err(Broken));
    assert_eq!(run(b"", b"", None, Some(&ours)), Err(Broken));
    assert_eq!(run(b"", b"", None, Some(&[0; 32])), Err(Broken), "no key is not a key of zeros");
}

#[test]
fn section3_the_mac_refuses_what_was_made_for_another_connection_or_target() {
    let (initiator, target) = identities();
    let (_, flight) = start(target.public(), b"prologue with one nonce", None);
    assert!(FirstFlight::check(&target, b"prologue with one nonce", &flight).is_ok());
    assert!(FirstFlight::check(&target, b"prologue with another nonce", &flight).is_err());
    assert!(FirstFlight::check(&initiator, b"prologue with one nonce", &flight).is_err());
    let whole = [&b"prologue with one nonce"[..], &flight[MAC_BYTES..]].concat();
    let shifted = [&flight[..MAC_BYTES], &whole[22..]].concat();
    assert!(FirstFlight::check(&target, &whole[..22], &shifted).is_err(), "the length of message 1 is fixed");
}

/// The attacker has both public keys and no private one.
#[test]
fn section3_a_claim_is_no_proof() {
    let (initiator, target) = identities();
    let (e, e_public) = (Identity::generate(entropy(9)), Identity::generate(entropy(9)).public());
    let mut noise = crate::noise::Symmetric::new(crate::handshake::PROTOCOL, b"");
    let mut message = e_public.0.to_vec();
    noise.mix_hash(&target.public().0);
    noise.mix_hash(&e_public.0);
    noise.mix_key(&zeroize::Zeroizing::new(e_public.0));
    noise.mix_key(&crate::noise::dh(e.secret(), &target.public()));
    noise.encrypt_and_hash(&initiator.public().0, &mut message);
    noise.encrypt_and_hash(&[0; 1184], &mut message);
    let flight = [&mac(&target.public(), b"", &message)[..], &message].concat();
    let claim = FirstFlight::check(&target, b"", &flight).unwrap().open().unwrap();
    assert_eq!(claim.initiator(), initiator.public(), "to be looked up before the next DH");
    assert_eq!(claim.prove().unwrap_err(), Broken);
}

#[test]
fn section3_message_for_another_target_is_refused() {
    let (initiator, target) = identities();
    for other in [initiator.public(), Identity::generate(entropy(9)).public()] {
        let (_, m1) = start(other, b"", None);
        assert_eq!(Responder::read(&target, b"", &m1).unwrap_err(), Broken);
    }
}

#[test]
fn section3_only_the_named_target_can_answer() {
    let (_, target) = identities();
    let impostor = Identity::generate(entropy(9));
    let (initiator, _) = start(target.public(), b"", None);
    // The impostor answers a message that was made for its own key.
    let (_, m1) = start(impostor.public(), b"", None);
    let (answer, _) = answered(&impostor, &m1, SUITE, 4);
    assert_eq!(initiator.finish(&answer).unwrap_err(), Broken);
}

#[test]
fn section3_reflected_message_is_no_answer() {
    let (initiator, m1) = start(identities().1.public(), b"", None);
    assert_eq!(initiator.finish(&m1).unwrap_err(), Broken);
    let (initiator, m1) = start(identities().1.public(), b"", None);
    assert_eq!(initiator.finish(&m1[..1136]).unwrap_err(), Broken);
}

#[test]
fn section3_answer_to_an_earlier_handshake_is_refused() {
    let target = identities().1;
    let (_, m1) = start(target.public(), b"", None);
    let (answer, _) = answered(&target, &m1, SUITE, 4);
    let (later, _) = Initiator::start(&identities().0, target.public(), b"", None, SUITE, &entropy(30));
    assert_eq!(later.finish(&answer).unwrap_err(), Broken);
}

#[test]
fn section3_replayed_message_1_gives_keys_that_its_replayer_does_not_have() {
    let target = identities().1;
    let (initiator, m1) = start(target.public(), b"", None);
    let (answer, mut first) = answered(&target, &m1, SUITE, 4);
    let (_, mut second) = answered(&target, &m1, SUITE, 5);
    let record = seal(&mut initiator.finish(&answer).unwrap().sealer, 1, &[]);
    assert_eq!(open(&mut second.opener, &record).unwrap_err(), Broken);
    open(&mut first.opener, &record).unwrap();
}

#[test]
fn section3_every_bit_of_message_1_counts() {
    let target = identities().1;
    let (_, m1) = start(target.public(), b"", None);
    // The last bit of an X25519 key has no meaning (RFC 7748 section 5), but the hash covers it.
    for (bit, bad) in bit_flips(&m1).enumerate().filter(|(bit, _)| bit % 41 == 0 || *bit < 96 * 8) {
        assert!(FirstFlight::check(&target, b"", &bad).is_err(), "bit {bit}");
        // The target's public key suffices to compute another mac.
        let again = mac(&target.public(), b"", &bad[MAC_BYTES..]);
        let bad = [&again[..], &bad[MAC_BYTES..]].concat();
        assert_eq!(Responder::read(&target, b"", &bad).is_err(), bad != m1, "bit {bit}");
    }
    for bytes in [0, 32, 79, 1264, m1.len() - 1] {
        assert!(Responder::read(&target, b"", &m1[..bytes]).is_err());
    }
    assert!(Responder::read(&target, b"", &[&m1[..], &[0]].concat()).is_err());
}

#[test]
fn section3_every_bit_of_the_answer_counts() {
    let target = identities().1;
    let (_, m1) = start(target.public(), b"", None);
    let (answer, _) = answered(&target, &m1, SUITE, 4);
    for (bit, bad) in bit_flips(&answer).enumerate().filter(|(bit, _)| bit % 23 == 0 || *bit >= 1088 * 8) {
        assert!(start(target.public(), b"", None).0.finish(&bad).is_err(), "bit {bit}");
    }
    for bad in [&answer[..0], &answer[..1088], &answer[..answer.len() - 1], &[&answer[..], &[0]].concat()] {
        assert!(start(target.public(), b"", None).0.finish(bad).is_err());
    }
    start(target.public(), b"", None).0.finish(&answer).unwrap();
}

#[test]
fn section3_suite_of_the_other_side_does_not_open() {
    // The prologue binds the suites; this checks the case without that binding.
    let target = identities().1;
    for suite in Suite::ALL.into_iter().filter(|suite| *suite != SUITE) {
        let (initiator, m1) = start(target.public(), b"", None);
        let (answer, mut theirs) = answered(&target, &m1, suite, 4);
        let record = seal(&mut initiator.finish(&answer).unwrap().sealer, 1, &[]);
        assert_eq!(open(&mut theirs.opener, &record).unwrap_err(), Broken);
    }
}

#[test]
fn section3_enrolment_gives_the_key_of_who_answers() {
    let target = identities().1;
    let (enquirer, m1) = Enquirer::start(b"prologue", &entropy(3));
    let m2 = answer_enquiry(&target, b"prologue", &m1, &entropy(4)).unwrap();
    assert_eq!(enquirer.finish(&m2), Ok(target.public()));
}

#[test]
fn section3_enrolment_is_proven_and_bound() {
    let target = identities().1;
    let enquire = || Enquirer::start(b"prologue", &entropy(3));
    let m2 = answer_enquiry(&target, b"prologue", &enquire().1, &entropy(4)).unwrap();
    for (bit, bad) in bit_flips(&m2).enumerate() {
        assert!(enquire().0.finish(&bad).is_err(), "bit {bit}");
    }
    let other = answer_enquiry(&target, b"Prologue", &enquire().1, &entropy(4)).unwrap();
    assert_eq!(enquire().0.finish(&other), Err(Broken));
    assert_eq!(enquire().0.finish(&m2[..95]), Err(Broken));
    for bytes in [0, 31, 33] {
        assert!(answer_enquiry(&target, b"", &vec![0; bytes], &entropy(4)).is_err());
    }
}

#[test]
fn identity_text_round_trips_and_is_44_characters() {
    let identity = Identity::generate(entropy(1));
    let text = identity.to_text();
    assert_eq!(text.len(), 44);
    assert_eq!(Identity::parse(&text).unwrap().public(), identity.public());
    let public = identity.public().to_string();
    assert_eq!(public.len(), 44);
    assert_eq!(PublicKey::parse(&public), Some(identity.public()));
}

#[test]
fn identity_is_x25519_of_rfc_7748_section_6_1() {
    let alice = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
    let public = Identity::parse(alice).unwrap().public().to_string();
    assert_eq!(public, "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
}

#[test]
fn key_text_that_is_not_one_is_refused() {
    let good = identities().0.public().to_string();
    let last = format!("{}B=", &good[..42]);
    for bad in
        ["", &good[..43], &format!("{good}="), &format!("{good}\n"), &good.replace('=', "A"), &last, "ä"]
    {
        assert_eq!(PublicKey::parse(bad), None, "{bad:?}");
        assert!(Identity::parse(bad).is_none(), "{bad:?}");
    }
    // Low-order points: 0 and 1.
    assert_eq!(PublicKey::parse(&PublicKey([0; 32]).to_string()), None);
    assert_eq!(PublicKey::parse(&PublicKey(std::array::from_fn(|n| u8::from(n == 0))).to_string()), None);
}
