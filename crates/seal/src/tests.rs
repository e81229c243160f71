//! Handshakes and records, by clause of docs/SEAL.md.

use super::*;

fn pair(suite: Suite) -> (Channel, Channel) {
    let (initiator, target) = (Identity::generate([1; 32]), Identity::generate([2; 32]));
    let (start, m1) = Initiator::start(&initiator, target.public(), b"prologue", None, suite, [3; 128]);
    let responder = Responder::read(&target, b"prologue", &m1).unwrap();
    assert_eq!(responder.initiator(), initiator.public());
    let (m2, theirs) = responder.finish(None, suite, [4; 128]).unwrap();
    (start.finish(&m2).unwrap(), theirs)
}

#[test]
fn section3_handshake_then_units_both_ways() {
    for suite in Suite::ALL {
        let (mut ours, mut theirs) = pair(suite);
        for (from, to) in [(&mut ours.sealer, &mut theirs.opener), (&mut theirs.sealer, &mut ours.opener)] {
            let plain: Vec<u8> = (0..70_000u32).map(|n| n as u8).collect();
            let mut first = vec![0; plain.len()];
            let mut second = plain.clone();
            let descriptors = [from.seal_into(&plain, &mut first), from.seal_in_place(&mut second)];
            let mut record = Vec::new();
            from.seal_head(&[0; 48], &descriptors, &mut record);
            let prefix = record[..PREFIX_BYTES].try_into().unwrap();
            assert_eq!(to.sealed_head_bytes(prefix), Ok(record.len() - PREFIX_BYTES));
            let head_bytes = to.open_head(prefix, &mut record[PREFIX_BYTES..]).unwrap();
            let (header, opened) = parse_head(&record[PREFIX_BYTES..][..head_bytes]).unwrap();
            assert_eq!(header, [0; 48]);
            assert!(opened.clone().eq(descriptors));
            for (descriptor, unit) in opened.zip([&mut first, &mut second]) {
                assert_ne!(*unit, plain);
                to.open_unit(&descriptor, unit).unwrap();
                assert_eq!(*unit, plain);
            }
        }
    }
}
