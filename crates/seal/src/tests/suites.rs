//! Section 4: the suites, in all their operations and against published vectors.

use serde_json::Value;

use super::*;
use crate::suite::{Keyed, aead};

fn keyed(suite: Suite) -> Keyed {
    Keyed::new(suite, &plain(suite.key_bytes()), &plain(suite.nonce_bytes()))
}

#[test]
fn section4_names_are_the_protocols_and_round_trip() {
    let names = suites().into_iter().map(Suite::name);
    assert!(names.eq(suites().into_iter().map(|suite| Suite::from_name(suite.name()).unwrap().name())));
    let listed: Vec<_> = Suite::ALL.into_iter().map(Suite::name).collect();
    assert_eq!(listed, ["AES-256-GCM", "AEGIS-256X4", "AEGIS-128X2", "ChaCha20-Poly1305"]);
    assert_eq!(Suite::from_name("aes-256-gcm"), None);
    assert_eq!(Suite::from_name(""), None);
    assert_eq!(Suite::from_name("3DES-EDE-CBC-HMAC-SHA256").is_some(), cfg!(feature = "lab"));
}

#[test]
fn section4_copying_and_in_place_are_one_cipher() {
    for suite in suites() {
        let keyed = keyed(suite);
        for bytes in (0..300).chain([511, 512, 513, 4096, 65535, 65536, 100_001]) {
            let plain = plain(bytes);
            let mut in_place = plain.clone();
            let tag = keyed.seal(7, b"aad", &mut in_place);
            let mut copied = vec![0xAA; bytes];
            assert_eq!(keyed.seal_into(7, b"aad", &plain, &mut copied), tag, "{suite:?} {bytes}");
            assert_eq!(copied, in_place, "{suite:?} {bytes}");
            keyed.open(7, b"aad", &mut copied, &tag).unwrap();
            assert_eq!(copied, plain, "{suite:?} {bytes}");
        }
    }
}

#[test]
fn section4_another_number_key_or_aad_does_not_open_and_leaves_zeros() {
    for suite in suites() {
        let ours = keyed(suite);
        let mut other_key = plain(suite.key_bytes());
        other_key[suite.key_bytes() - 1] ^= 2;
        let mut other_iv = plain(suite.nonce_bytes());
        other_iv[0] ^= 1;
        let other_key = Keyed::new(suite, &other_key, &plain(suite.nonce_bytes()));
        let other_iv = Keyed::new(suite, &plain(suite.key_bytes()), &other_iv);
        let mut sealed = plain(1000);
        let tag = ours.seal(5, b"aad", &mut sealed);
        for (keyed, number, aad) in [
            (&ours, 4, b"aad"),
            (&ours, 5 | 1 << 63, b"aad"),
            (&ours, 5, b"aae"),
            (&other_key, 5, b"aad"),
            (&other_iv, 5, b"aad"),
        ] {
            let mut data = sealed.clone();
            assert_eq!(keyed.open(number, aad, &mut data, &tag), Err(Broken), "{suite:?}");
            assert!(data.iter().all(|&byte| byte == 0), "{suite:?}: what did not verify is not shown");
        }
        ours.open(5, b"aad", &mut sealed, &tag).unwrap();
    }
}

#[test]
fn section4_nonce_is_iv_with_its_last_eight_bytes_xored() {
    for suite in suites() {
        let number = 0x0102_0304_0506_0708_u64;
        let iv = plain(suite.nonce_bytes());
        let mut nonce = iv.clone();
        let last = nonce.len() - 8;
        for (byte, number) in nonce[last..].iter_mut().zip(1..=8) {
            *byte ^= number;
        }
        let key = plain(suite.key_bytes());
        let (mut ours, mut theirs) = (plain(100), plain(100));
        let tag = Keyed::new(suite, &key, &iv).seal(number, b"", &mut ours);
        assert_eq!(aead(suite, &key).seal(&nonce, b"", &mut theirs), tag, "{suite:?}");
        assert_eq!(ours, theirs);
    }
}

#[test]
fn aegis_vectors_of_the_rfc() {
    let vectors: Value = serde_json::from_str(include_str!("../../vectors/aegis.json")).unwrap();
    let tests = vectors["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 4);
    for test in tests {
        let suite = Suite::from_name(test["suite"].as_str().unwrap()).unwrap();
        let field = |name: &str| hex(test[name].as_str().unwrap());
        check(
            suite,
            &field("key"),
            &field("nonce"),
            &field("aad"),
            &field("plain"),
            &field("sealed"),
            &field("tag"),
        );
    }
}

/// Checks all three operations against a vector.
pub(super) fn check(
    suite: Suite,
    key: &[u8],
    nonce: &[u8],
    aad: &[u8],
    plain: &[u8],
    sealed: &[u8],
    tag: &[u8],
) {
    let cipher = aead(suite, key);
    let mut data = plain.to_vec();
    assert_eq!(cipher.seal(nonce, aad, &mut data), tag);
    assert_eq!(data, sealed);
    let mut copied = vec![0; plain.len()];
    assert_eq!(cipher.seal_into(nonce, aad, plain, &mut copied), tag);
    assert_eq!(copied, sealed);
    cipher.open(nonce, aad, &mut data, tag.try_into().unwrap()).unwrap();
    assert_eq!(data, plain);
}

pub(super) fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap()).collect()
}

/// Computed with OpenSSL: 3DES-EDE-CBC, the encryption of the last block for the rest, HMAC-SHA-256.
#[cfg(feature = "lab")]
#[test]
fn triple_des_is_what_openssl_makes_of_it() {
    let key: Vec<u8> = (0..56).collect();
    let plain: Vec<u8> = (100..120).collect();
    let (sealed, tag) =
        (hex("b30eae742578df950b80f86f9b9f062f67b252c0"), hex("efd711a5b30c348ad53a98258aa199bf"));
    check(Suite::TripleDes, &key, &[1, 2, 3, 4, 5, 6, 7, 8], b"aad", &plain, &sealed, &tag);
}
