//! Section 6: generations and how much each may carry.

use super::*;
use crate::schedule::{Ratchet, Use};

const HOUR: Duration = Duration::from_secs(3600);

/// A sender and its receiver under limits of a test's size.
fn limited(limits: &'static Limits) -> (Sealer, Opener) {
    let ratchet = || Ratchet::both(Suite::Aes256Gcm, &[1; 32], &([2; 32].into(), [3; 32].into())).0;
    (Sealer::new(ratchet(), limits), Opener::new(ratchet(), limits))
}

const SMALL: Limits = Limits {
    records_due: 10,
    unit_bytes_due: 1000,
    age_due: HOUR,
    records_late: 15,
    unit_bytes_late: 1500,
    records_max: 20,
    unit_bytes_max: 2000,
};

#[test]
fn section6_overdue_at_the_limits_that_must_not_be_reached() {
    let (mut sealer, _) = limited(&SMALL);
    for number in 0..15 {
        assert!(!sealer.is_overdue(), "{number}");
        seal(&mut sealer, number, &[]);
    }
    assert!(sealer.is_overdue());
    sealer.rekey(Duration::ZERO).unwrap();
    assert_eq!((sealer.is_overdue(), sealer.generation()), (false, 1));
    sealer.seal_in_place(&mut plain(1499));
    assert!(!sealer.is_overdue());
    sealer.seal_in_place(&mut [0]);
    assert!(sealer.is_overdue());
}

#[test]
fn section6_due_after_records_bytes_or_an_hour() {
    let (mut sealer, _) = limited(&SMALL);
    for number in 0..10 {
        assert!(!sealer.is_due(Duration::ZERO), "{number}");
        seal(&mut sealer, number, &[]);
    }
    assert!(sealer.is_due(Duration::ZERO));
    sealer.rekey(HOUR / 2).unwrap();
    assert!(!sealer.is_due(HOUR / 2));
    seal(&mut sealer, 0, &[&plain(999)]);
    assert!(!sealer.is_due(HOUR));
    seal(&mut sealer, 0, &[&[0]]);
    assert!(sealer.is_due(HOUR));
    sealer.rekey(HOUR).unwrap();
    assert!(!sealer.is_due(HOUR * 2 - Duration::from_nanos(1)));
    assert!(sealer.is_due(HOUR * 2));
    assert!(!sealer.is_due(Duration::ZERO), "a clock that goes back is not an hour");
}

#[test]
fn section6_limits_are_the_specified_ones() {
    let limits = Limits::SPECIFIED;
    assert_eq!((limits.records_late, limits.unit_bytes_late), (1 << 32, 1 << 38));
    assert_eq!((limits.age_due, limits.records_max, limits.unit_bytes_max), (HOUR, 1 << 33, 1 << 39));
}

#[test]
fn section6_receiver_follows_a_rekey_under_load() {
    for suite in suites() {
        let (mut ours, mut theirs) = pair(suite);
        for number in 0..40_u8 {
            // Sealed ahead, under whatever generation it is.
            let mut ahead = plain(700);
            let descriptor = ours.sealer.seal_in_place(&mut ahead);
            if number % 3 == 2 {
                ours.sealer.rekey(Duration::ZERO).unwrap();
            }
            assert!(ours.sealer.carries(&descriptor));
            let mut fresh = vec![0; 600];
            let second = ours.sealer.seal_into(&plain(600), &mut fresh);
            let (prefix, head) = head_of(&mut ours.sealer, &header(number), &[descriptor, second]);
            assert_eq!(prefix[1], (number + 1) / 3);
            let record = Sealed { prefix, head, units: vec![ahead, fresh] };
            let opened = open(&mut theirs.opener, &record);
            assert_eq!(
                opened,
                Ok((header(number).to_vec(), vec![plain(700), plain(600)])),
                "{suite:?} {number}"
            );
        }
    }
}

#[test]
fn section6_generation_without_a_record_is_not_left() {
    let (mut sealer, mut opener) = limited(&SMALL);
    let mut unit = plain(10);
    let descriptor = sealer.seal_in_place(&mut unit);
    for _ in 0..3 {
        sealer.rekey(HOUR).unwrap();
    }
    assert!(!sealer.is_due(HOUR), "an hour is counted from the last attempt");
    let (prefix, head) = head_of(&mut sealer, &header(1), &[descriptor]);
    assert_eq!(prefix[1], 0);
    open(&mut opener, &Sealed { prefix, head, units: vec![unit] }).unwrap();
    for _ in 0..3 {
        sealer.rekey(HOUR).unwrap();
    }
    open(&mut opener, &seal(&mut sealer, 2, &[])).unwrap();
}

#[test]
fn section5_unit_of_the_generation_before_the_last_is_not_carried() {
    let (mut ours, mut theirs) = pair(Suite::Aes256Gcm);
    let mut unit = plain(600);
    let descriptor = ours.sealer.seal_in_place(&mut unit);
    for generation in 0..3 {
        assert_eq!(descriptor.generation(), 0);
        assert_eq!(ours.sealer.carries(&descriptor), generation < 2);
        let record = seal(&mut ours.sealer, 0, &[]);
        open(&mut theirs.opener, &record).unwrap();
        let opened = theirs.opener.open_unit(&descriptor, &mut unit.clone());
        assert_eq!(opened.is_ok(), generation < 2, "{generation}");
        ours.sealer.rekey(Duration::ZERO).unwrap();
    }
}

#[test]
#[should_panic(expected = "outlived its generation")]
fn section5_sending_a_unit_that_outlived_its_generation_is_our_fault() {
    let mut sealer = pair(Suite::Aes256Gcm).0.sealer;
    let descriptor = sealer.seal_in_place(&mut [0]);
    for number in 0..2 {
        seal(&mut sealer, number, &[]);
        sealer.rekey(Duration::ZERO).unwrap();
    }
    sealer.seal_head(&header(1), &[descriptor], &mut Vec::new());
}

/// A head that is sealed as the sender would, whatever it says.
fn forged(ratchet: &Ratchet, generation: u8, counter: u64, head: &[u8]) -> Sealed {
    let [high, low] = (head.len() as u16).to_be_bytes();
    let prefix = [1, generation, high, low];
    let mut sealed = head.to_vec();
    let tag = ratchet.keyed(Use::Head).seal(counter, &prefix, &mut sealed);
    sealed.extend_from_slice(&tag);
    Sealed { prefix, head: sealed, units: vec![] }
}

fn ratchet() -> Ratchet {
    Ratchet::both(Suite::Aes256Gcm, &[1; 32], &([2; 32].into(), [3; 32].into())).0
}

fn head_with(seal_id: u64) -> Vec<u8> {
    let mut head = header(1).to_vec();
    Descriptor { seal_id, length: 1, tag: [0; 16] }.emit(&mut head);
    head
}

#[test]
fn section5_seal_id_of_a_wrong_generation_ends_the_connection() {
    for (seal_id, good) in [(0, true), (5, true), (1 << 48, false), (u64::MAX, false)] {
        let mut opener = limited(&SMALL).1;
        let mut record = forged(&ratchet(), 0, 0, &head_with(seal_id));
        assert_eq!(opener.open_head(record.prefix, &mut record.head).is_ok(), good, "{seal_id:x}");
    }
    // At the first record of generation 1, what was sealed ahead is of generation 0.
    for (seal_id, good) in [(0, true), (1 << 48, true), (2 << 48, false)] {
        let mut opener = limited(&SMALL).1;
        let mut record = forged(&ratchet().next(), 1, 0, &head_with(seal_id));
        assert_eq!(opener.open_head(record.prefix, &mut record.head).is_ok(), good, "{seal_id:x}");
    }
}

#[test]
fn section5_head_that_does_not_add_up_ends_the_connection_though_it_opens() {
    for bad in [&[0; 49][..], &[0; 75], &[0xFF; 76]] {
        let mut opener = limited(&SMALL).1;
        let mut record = forged(&ratchet(), 0, 0, bad);
        assert_eq!(opener.open_head(record.prefix, &mut record.head), Err(Broken));
    }
}

#[test]
fn section6_generation_cannot_be_skipped_or_gone_back_to() {
    let (mut sealer, mut opener) = limited(&SMALL);
    let old = seal(&mut sealer, 0, &[]);
    open(&mut opener, &old).unwrap();
    let mut skipped = forged(&ratchet().next().next(), 2, 0, &header(1));
    assert_eq!(opener.sealed_head_bytes(skipped.prefix), Err(Broken));
    assert_eq!(opener.open_head(skipped.prefix, &mut skipped.head), Err(Broken));
    sealer.rekey(Duration::ZERO).unwrap();
    let new = seal(&mut sealer, 0, &[]);
    open(&mut opener, &new).unwrap();
    assert_eq!(opener.sealed_head_bytes(old.prefix), Err(Broken));
    let mut head = old.head.clone();
    assert_eq!(opener.open_head(old.prefix, &mut head), Err(Broken));
}

#[test]
fn section5_records_lost_before_a_rekey_are_missed() {
    for lost in 1..4 {
        let (mut sealer, mut opener) = limited(&SMALL);
        open(&mut opener, &seal(&mut sealer, 0, &[])).unwrap();
        let mut records: Vec<_> = (0..lost).map(|number| seal(&mut sealer, number, &[])).collect();
        sealer.rekey(Duration::ZERO).unwrap();
        let next = seal(&mut sealer, 9, &[]);
        assert_eq!(open(&mut opener, &next).unwrap_err(), Broken);
        records.push(next);
        records.iter().for_each(|record| _ = open(&mut opener, record).unwrap());
    }
}

#[test]
fn section6_head_spliced_into_another_generation_does_not_open() {
    let (mut sealer, mut opener) = limited(&SMALL);
    let mut spliced = seal(&mut sealer, 0, &[]);
    spliced.prefix[1] = 1;
    assert_eq!(open(&mut opener, &spliced).unwrap_err(), Broken);
    // The counter goes on.
    let mut wrong_counter = forged(&ratchet().next(), 1, 1, &header(1));
    assert_eq!(opener.open_head(wrong_counter.prefix, &mut wrong_counter.head), Err(Broken));
    // An attempt that fails leaves the generation where it was.
    let (mut sealer, _) = limited(&SMALL);
    open(&mut opener, &seal(&mut sealer, 0, &[])).unwrap();
}

#[test]
fn section6_receiver_ends_the_connection_at_its_limit_of_records() {
    let (mut sealer, mut opener) = limited(&SMALL);
    for number in 0..20 {
        open(&mut opener, &seal(&mut sealer, number, &[])).unwrap();
    }
    let mut beyond = forged(&ratchet(), 0, 20, &header(1));
    assert_eq!(opener.open_head(beyond.prefix, &mut beyond.head), Err(Broken));
    sealer.rekey(Duration::ZERO).unwrap();
    open(&mut opener, &seal(&mut sealer, 0, &[])).unwrap();
}

#[test]
fn section6_receiver_ends_the_connection_at_its_limit_of_bytes() {
    let generous = &Limits { unit_bytes_max: 1 << 20, ..SMALL };
    let (mut sealer, _) = limited(generous);
    let (_, mut opener) = limited(&SMALL);
    open(&mut opener, &seal(&mut sealer, 0, &[&plain(1999)])).unwrap();
    open(&mut opener, &seal(&mut sealer, 0, &[&plain(1)])).unwrap();
    assert_eq!(open(&mut opener, &seal(&mut sealer, 0, &[&plain(1)])).unwrap_err(), Broken);
    // What was sealed ahead of a rekey counts where it was sealed.
    sealer.rekey(Duration::ZERO).unwrap();
    open(&mut opener, &seal(&mut sealer, 0, &[&plain(2000)])).unwrap();
}

#[test]
#[should_panic(expected = "due long ago")]
fn section6_sender_never_passes_the_limit_of_records() {
    let (mut sealer, _) = limited(&SMALL);
    for number in 0..21 {
        seal(&mut sealer, number, &[]);
    }
}

#[test]
#[should_panic(expected = "due long ago")]
fn section6_sender_never_passes_the_limit_of_bytes() {
    let (mut sealer, _) = limited(&SMALL);
    for number in 0..3 {
        seal(&mut sealer, number, &[&plain(1000)]);
    }
}

#[test]
fn section6_after_generation_65535_there_is_none() {
    let (mut sealer, mut opener) = limited(&SMALL);
    for generation in 0..=65535 {
        let (prefix, mut head) = head_of(&mut sealer, &header(1), &[]);
        opener.open_head(prefix, &mut head).unwrap();
        assert_eq!(sealer.rekey(Duration::ZERO).is_ok(), generation < 65535);
    }
    let record = seal(&mut sealer, 1, &[&plain(10)]);
    assert_eq!(record.prefix[1], 255);
    open(&mut opener, &record).unwrap();
    assert_eq!(opener.sealed_head_bytes([1, 0, 0, 48]), Err(Broken), "0 does not come after 65535");
}

#[test]
fn section5_no_seal_id_is_used_twice() {
    let (mut sealer, _) = limited(&Limits { unit_bytes_max: 1 << 20, ..SMALL });
    let mut seen = std::collections::HashSet::new();
    for _ in 0..5 {
        for _ in 0..50 {
            assert!(seen.insert(sealer.seal_in_place(&mut [0]).seal_id));
        }
        seal(&mut sealer, 0, &[]);
        sealer.rekey(Duration::ZERO).unwrap();
    }
}
