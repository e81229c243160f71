//! Against the vectors of IEEE 1619.

use super::*;

/// IEEE 1619-2007 Annex B, vector 10: AES-256, data unit 0xff, 512 bytes that count up twice.
#[test]
fn ieee_1619_vector_10() {
    let half = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let key = half(concat!(
        "2718281828459045235360287471352662497757247093699959574966967627",
        "3141592653589793238462643383279502884197169399375105820974944592"
    ));
    let mut data: Vec<u8> = (0..512).map(|at| at as u8).collect();
    let mut xts = Xts::new(&key, 512).unwrap();
    xts.seal(0xff, &mut data);
    assert_eq!(data[..16], half("1c3b3a102f770386e4836c99e370cf9b")[..]);
    xts.open(0xff, &mut data);
    assert_eq!(data, (0..512).map(|at| at as u8).collect::<Vec<_>>());
}

/// IEEE 1619-2007 Annex B, vector 4: AES-128, data unit 0.
#[test]
fn ieee_1619_vector_4() {
    let key: Vec<u8> = [
        0x27182818284590452353602874713526_u128.to_be_bytes(),
        0x31415926535897932384626433832795_u128.to_be_bytes(),
    ]
    .concat();
    let mut data: Vec<u8> = (0..512).map(|at| at as u8).collect();
    let mut xts = Xts::new(&key, 512).unwrap();
    xts.seal(0, &mut data);
    assert_eq!(data[..16], 0x27a7479befa1d476489f308cd4cfa6e2_u128.to_be_bytes());
    xts.open(0, &mut data);
    assert_eq!(data, (0..512).map(|at| at as u8).collect::<Vec<_>>());
}

#[test]
fn a_unit_depends_on_its_number_and_size_alone() {
    for key_bytes in [32, 64] {
        let key: Vec<u8> = (0..key_bytes as u8).collect();
        for unit_bytes in [512, 1024, 2048, 4096] {
            let mut xts = Xts::new(&key, unit_bytes).unwrap();
            let plain: Vec<u8> = (0..16_384_u32).map(|at| (at / 7) as u8).collect();
            let (mut into, mut place) = (vec![0; plain.len()], plain.clone());
            xts.seal_into(1000, &plain, &mut into);
            xts.seal(1000, &mut place);
            assert_eq!(into, place);
            // Each unit alone, in another order.
            let mut alone = plain.clone();
            for (number, unit) in alone.chunks_exact_mut(unit_bytes).enumerate().rev() {
                xts.seal(1000 + (number * unit_bytes / 512) as u64, unit);
            }
            assert_eq!(alone, into);
            xts.open(1000, &mut into);
            assert_eq!(into, plain);
        }
    }
}

#[test]
fn keys_that_cannot_be_used() {
    assert!(matches!(Xts::new(&[1; 48], 512), Err(BadKey::Length)));
    assert!(matches!(Xts::new(&[1; 64], 512), Err(BadKey::EqualHalves)));
    assert!(matches!(Xts::new(&[1; 32], 512), Err(BadKey::EqualHalves)));
}
