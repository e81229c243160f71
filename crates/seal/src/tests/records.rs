//! Section 5: which records open.

use super::*;

fn parsed(head: &[u8]) -> Result<(usize, usize), Broken> {
    parse_head(head).map(|(header, descriptors)| (header.len(), descriptors.len()))
}

/// Asserts that a unit does not open, and that nothing of it is left.
#[track_caller]
fn unit_refused(opener: &mut Opener, descriptor: &Descriptor, mut unit: Vec<u8>, what: &str) {
    assert_eq!(opener.open_unit(descriptor, &mut unit), Err(Broken), "{what}");
    assert!(unit.iter().all(|&byte| byte == 0), "{what}: what did not verify is not shown");
}

#[test]
fn section5_records_open_in_order_both_ways() {
    for suite in suites() {
        let (mut ours, mut theirs) = pair(suite);
        for (sealer, opener) in
            [(&mut ours.sealer, &mut theirs.opener), (&mut theirs.sealer, &mut ours.opener)]
        {
            for number in 0..5 {
                let (first, second) = (plain(1000 + usize::from(number)), plain(1));
                let record = seal(sealer, number, &[&first, &second]);
                let expected = (header(number).to_vec(), vec![first, second]);
                assert_eq!(open(opener, &record), Ok(expected), "{suite:?}");
            }
            assert_eq!(open(opener, &seal(sealer, 9, &[])), Ok((header(9).to_vec(), vec![])));
        }
    }
}

#[test]
fn section5_in_place_and_copied_units_open_alike() {
    for suite in suites() {
        let (mut ours, mut theirs) = pair(suite);
        let mut in_place = plain(70_000);
        let mut copied = vec![0; 70_000];
        let descriptors =
            [ours.sealer.seal_in_place(&mut in_place), ours.sealer.seal_into(&plain(70_000), &mut copied)];
        assert_ne!(in_place, copied, "two units, two nonces");
        let (prefix, head) = head_of(&mut ours.sealer, &header(1), &descriptors);
        let record = Sealed { prefix, head, units: vec![in_place, copied] };
        assert_eq!(open(&mut theirs.opener, &record).unwrap().1, [plain(70_000), plain(70_000)]);
    }
}

#[test]
fn section5_longest_head_travels() {
    let (mut ours, mut theirs) = pair(Suite::Aes256Gcm);
    let mut longest = vec![0x55; BHS_BYTES + 255 * 4];
    longest[4] = 255;
    let descriptors: Vec<_> = (0..DESCRIPTORS_MAX).map(|_| ours.sealer.seal_in_place(&mut [0])).collect();
    let (prefix, mut head) = head_of(&mut ours.sealer, &longest, &descriptors);
    assert_eq!(head.len(), HEAD_BYTES_MAX + TAG_BYTES);
    let opened = Head { kind: Kind::Pdu, bytes: HEAD_BYTES_MAX };
    assert_eq!(theirs.opener.open_head(prefix, &mut head), Ok(opened));
    let (header, opened) = parse_head(&head[..HEAD_BYTES_MAX]).unwrap();
    assert_eq!(header, longest);
    assert!(opened.eq(descriptors));
}

#[test]
fn section5_every_bit_of_prefix_head_and_units_counts() {
    for suite in suites() {
        let (mut ours, mut theirs) = pair(suite);
        let record = seal(&mut ours.sealer, 1, &[&plain(33), &plain(7)]);
        for (bit, prefix) in bit_flips(&record.prefix).enumerate() {
            let bad = Sealed { prefix: prefix.try_into().unwrap(), ..record.clone() };
            assert_eq!(open(&mut theirs.opener, &bad).unwrap_err(), Broken, "{suite:?} prefix bit {bit}");
            // The head as it is, for any length in the prefix.
            let opened = theirs.opener.open_head(bad.prefix, &mut record.head.clone());
            assert_eq!(opened, Err(Broken), "{suite:?} prefix bit {bit}");
        }
        for (bit, mut head) in bit_flips(&record.head).enumerate() {
            let opened = theirs.opener.open_head(record.prefix, &mut head);
            assert_eq!(opened, Err(Broken), "{suite:?} head bit {bit}");
            let shown = head[..head.len() - TAG_BYTES].iter().any(|&byte| byte != 0);
            assert!(!shown, "{suite:?}: what did not verify is not shown");
        }
        // No failed attempt advanced the counter: the record still opens. Then its units.
        let mut head = record.head.clone();
        let head_bytes = theirs.opener.open_head(record.prefix, &mut head).unwrap().bytes;
        let (_, descriptors) = parse_head(&head[..head_bytes]).unwrap();
        for (descriptor, unit) in descriptors.zip(&record.units) {
            for (bit, unit) in bit_flips(unit).enumerate() {
                unit_refused(&mut theirs.opener, &descriptor, unit, &format!("{suite:?} unit bit {bit}"));
            }
            let mut bads = vec![descriptor; 128 + 64 + 32];
            for (bit, bad) in bads.iter_mut().enumerate() {
                match bit {
                    0..128 => bad.tag[bit / 8] ^= 1 << (bit % 8),
                    128..192 => bad.seal_id ^= 1 << (bit - 128),
                    _ => bad.length ^= 1 << (bit - 192),
                }
            }
            for bad in bads {
                unit_refused(&mut theirs.opener, &bad, unit.clone(), &format!("{suite:?} {bad:?}"));
            }
            theirs.opener.open_unit(&descriptor, &mut unit.clone()).unwrap();
        }
    }
}

#[test]
fn section5_truncated_head_or_unit_does_not_open() {
    let (mut ours, mut theirs) = pair(Suite::Aes256Gcm);
    let record = seal(&mut ours.sealer, 1, &[&plain(100)]);
    for bytes in 0..record.head.len() {
        assert_eq!(theirs.opener.open_head(record.prefix, &mut record.head.clone()[..bytes]), Err(Broken));
    }
    let mut longer = record.head.clone();
    longer.push(0);
    assert_eq!(theirs.opener.open_head(record.prefix, &mut longer), Err(Broken));
    let mut head = record.head.clone();
    let head_bytes = theirs.opener.open_head(record.prefix, &mut head).unwrap().bytes;
    let descriptor = parse_head(&head[..head_bytes]).unwrap().1.next().unwrap();
    for bytes in 0..100 {
        for descriptor in [descriptor, Descriptor { length: bytes as u32, ..descriptor }] {
            let mut unit = record.units[0][..bytes].to_vec();
            assert_eq!(theirs.opener.open_unit(&descriptor, &mut unit), Err(Broken));
        }
    }
}

#[test]
fn section5_replayed_record_does_not_open() {
    let (mut ours, mut theirs) = pair(Suite::Aegis256X4);
    let record = seal(&mut ours.sealer, 1, &[&plain(100)]);
    open(&mut theirs.opener, &record).unwrap();
    assert_eq!(open(&mut theirs.opener, &record).unwrap_err(), Broken);
}

#[test]
fn section5_lost_or_swapped_record_does_not_open() {
    let (mut ours, mut theirs) = pair(Suite::Aegis128X2);
    let records: Vec<_> = (0..3).map(|number| seal(&mut ours.sealer, number, &[&plain(100)])).collect();
    assert_eq!(open(&mut theirs.opener, &records[1]).unwrap_err(), Broken);
    open(&mut theirs.opener, &records[0]).unwrap();
    assert_eq!(open(&mut theirs.opener, &records[2]).unwrap_err(), Broken);
    open(&mut theirs.opener, &records[1]).unwrap();
    open(&mut theirs.opener, &records[2]).unwrap();
}

#[test]
fn section5_reflected_record_does_not_open() {
    let (mut ours, mut theirs) = pair(Suite::Aes256Gcm);
    let record = seal(&mut ours.sealer, 1, &[]);
    assert_eq!(open(&mut ours.opener, &record).unwrap_err(), Broken);
    open(&mut theirs.opener, &record).unwrap();
}

#[test]
fn section4_record_of_another_connection_does_not_open() {
    let (mut ours, _) = pair_from(Suite::Aes256Gcm, 3);
    let (_, mut theirs) = pair_from(Suite::Aes256Gcm, 4);
    assert_eq!(open(&mut theirs.opener, &seal(&mut ours.sealer, 1, &[])).unwrap_err(), Broken);
}

#[test]
fn section5_units_of_two_heads_cannot_be_exchanged() {
    let (mut ours, mut theirs) = pair(Suite::ChaCha20Poly1305);
    let mut first = seal(&mut ours.sealer, 1, &[&plain(100)]);
    let second = seal(&mut ours.sealer, 2, &[&plain(100)]);
    first.units = second.units;
    assert_eq!(open(&mut theirs.opener, &first).unwrap_err(), Broken);
}

#[test]
fn section4_head_key_does_not_open_a_unit() {
    // Heads and units have separate keys: a head passed as a unit does not open.
    let (mut ours, mut theirs) = pair(Suite::Aes256Gcm);
    let record = seal(&mut ours.sealer, 1, &[]);
    let (body, tag) = record.head.split_at(record.head.len() - TAG_BYTES);
    let descriptor = Descriptor { seal_id: 0, length: body.len() as u32, tag: tag.try_into().unwrap() };
    assert_eq!(theirs.opener.open_unit(&descriptor, &mut body.to_vec()), Err(Broken));
}

#[test]
fn section5_prefix_of_another_version_or_length_is_refused() {
    let (_, theirs) = pair(Suite::Aes256Gcm);
    let bytes = |prefix| theirs.opener.sealed_head_bytes(prefix);
    assert_eq!(bytes([1, 0, 0, 48]), Ok(48 + TAG_BYTES));
    assert_eq!(bytes([1, 0, 7, 0xAC]), Ok(HEAD_BYTES_MAX + TAG_BYTES));
    assert_eq!(bytes([1, 0, 8 | 4, 0xC0]), Ok(1216 + TAG_BYTES), "an offer");
    assert_eq!(bytes([1, 0, 16 | 4, 0x60]), Ok(1120 + TAG_BYTES), "an answer");
    for bad in [
        [1, 1, 0, 48],
        [1, 0, 8 | 4, 0xBF],
        [1, 0, 8 | 4, 0xC1],
        [1, 0, 8, 48],
        [1, 0, 16 | 4, 0x61],
        [1, 0, 16 | 4, 0xC0],
        [1, 0, 24, 48],
        [1, 0, 24 | 4, 0xC0],
        [1, 0, 0x80, 48],
        [0, 0, 0, 48],
        [2, 0, 0, 48],
        [1, 2, 0, 48],
        [1, 255, 0, 48],
        [1, 0, 0, 47],
        [1, 0, 7, 0xAD],
        [1, 0, 0, 0],
    ] {
        assert_eq!(bytes(bad), Err(Broken), "{bad:?}");
    }
}

#[test]
fn section5_descriptors_must_fill_the_head() {
    let mut head = vec![0; HEAD_BYTES_MAX + 100];
    assert_eq!(parsed(&head[..48]), Ok((48, 0)));
    assert_eq!(parsed(&head[..48 + 28 * 32]), Ok((48, 32)));
    for bytes in [0, 47, 49, 48 + 27, 48 + 29, 48 + 28 * 33, HEAD_BYTES_MAX + 1] {
        assert_eq!(parsed(&head[..bytes]), Err(Broken), "{bytes}");
    }
    head[4] = 2;
    assert_eq!(parsed(&head[..56]), Ok((56, 0)));
    assert_eq!(parsed(&head[..56 + 28]), Ok((56, 1)));
    for bytes in [48, 52, 55, 48 + 28] {
        assert_eq!(parsed(&head[..bytes]), Err(Broken), "{bytes}");
    }
}

#[test]
fn section5_numbers_may_be_skipped_and_come_in_any_order() {
    let (mut ours, mut theirs) = pair(Suite::Aes256Gcm);
    let mut units: Vec<_> = (0..4).map(|_| plain(600)).collect();
    let mut descriptors: Vec<_> = units.iter_mut().map(|unit| ours.sealer.seal_in_place(unit)).collect();
    units.reverse();
    descriptors.reverse();
    units.remove(1);
    descriptors.remove(1);
    let (prefix, head) = head_of(&mut ours.sealer, &header(1), &descriptors);
    open(&mut theirs.opener, &Sealed { prefix, head, units }).unwrap();
}

#[test]
#[should_panic(expected = "BHS and AHS")]
fn section5_header_that_is_not_one_is_our_fault() {
    let mut header = header(1);
    header[4] = 1;
    pair(Suite::Aes256Gcm).0.sealer.seal_head(&header, &[], &mut Vec::new());
}

#[test]
#[should_panic(expected = "units begin in one record")]
fn section5_too_many_descriptors_are_our_fault() {
    let mut sealer = pair(Suite::Aes256Gcm).0.sealer;
    let descriptors: Vec<_> = (0..=DESCRIPTORS_MAX).map(|_| sealer.seal_in_place(&mut [0])).collect();
    sealer.seal_head(&header(1), &descriptors, &mut Vec::new());
}

#[test]
fn section5_head_is_appended_to_what_is_there() {
    let (mut ours, _) = pair(Suite::Aes256Gcm);
    let mut out = b"before".to_vec();
    ours.sealer.seal_head(&header(1), &[], &mut out);
    assert_eq!(&out[..6], b"before");
    assert_eq!(out.len(), 6 + PREFIX_BYTES + BHS_BYTES + TAG_BYTES);
    assert_eq!(&out[6..10], [1, 0, 0, 48]);
}
