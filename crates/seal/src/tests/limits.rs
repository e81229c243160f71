//! Section 6: generations and their limits.

use super::*;
use crate::schedule::{Ratchet, Use};

const HOUR: Duration = Duration::from_secs(3600);

fn limited(limits: &'static Limits) -> (Sealer, Opener) {
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
    ahead_max: Duration::from_secs(30),
    keep_max: Duration::from_secs(60),
};

#[test]
fn section6_overdue_at_the_limits_that_must_not_be_reached() {
    let (mut sealer, mut opener) = limited(&SMALL);
    for number in 0..15 {
        assert!(!sealer.is_overdue(), "{number}");
        seal(&mut sealer, number, &[]);
    }
    assert!(sealer.is_overdue());
    step(&mut sealer, &mut opener, Duration::ZERO);
    assert_eq!((sealer.is_overdue(), sealer.generation()), (false, 1));
    sealer.seal_in_place(&mut plain(1499));
    assert!(!sealer.is_overdue());
    sealer.seal_in_place(&mut [0]);
    assert!(sealer.is_overdue());
}

#[test]
fn section6_due_after_records_bytes_or_an_hour() {
    let (mut sealer, mut opener) = limited(&SMALL);
    for number in 0..10 {
        assert!(!sealer.is_due(Duration::ZERO) && !opener.is_due(), "{number}");
        open(&mut opener, &seal(&mut sealer, number, &[])).unwrap();
    }
    assert!(sealer.is_due(Duration::ZERO) && opener.is_due());
    step(&mut sealer, &mut opener, HOUR / 2);
    assert!(!sealer.is_due(HOUR / 2));
    open(&mut opener, &seal(&mut sealer, 0, &[&plain(999)])).unwrap();
    assert!(!sealer.is_due(HOUR) && !opener.is_due());
    open(&mut opener, &seal(&mut sealer, 0, &[&[0]])).unwrap();
    assert!(sealer.is_due(HOUR) && opener.is_due());
    step(&mut sealer, &mut opener, HOUR);
    assert!(!sealer.is_due(HOUR * 2 - Duration::from_nanos(1)));
    assert!(sealer.is_due(HOUR * 2));
    assert_eq!(sealer.due_at(), HOUR * 2);
    assert!(!sealer.is_due(Duration::ZERO), "a clock that goes back is not an hour");
}

#[test]
fn section6_limits_are_the_specified_ones() {
    let limits = Limits::SPECIFIED;
    assert_eq!((limits.records_due, limits.unit_bytes_due, limits.age_due), (1 << 32, 1 << 36, HOUR));
    assert_eq!((limits.records_late, limits.unit_bytes_late), (1 << 33, 1 << 38));
    assert_eq!((limits.records_max, limits.unit_bytes_max), (1 << 34, 1 << 39));
    assert_eq!((limits.ahead_max, limits.keep_max), (Duration::from_secs(30), Duration::from_secs(60)));
}

#[test]
fn section6_receiver_follows_a_step_under_load() {
    for suite in suites() {
        let (mut ours, mut theirs) = pair(suite);
        for number in 0..40_u8 {
            // Sealed ahead, in any generation.
            let mut ahead = plain(700);
            let descriptor = ours.sealer.seal_in_place(&mut ahead);
            if number % 3 == 2 {
                exchange(&mut ours, &mut theirs, number);
            }
            assert!(ours.sealer.carries(&descriptor, Duration::ZERO));
            let mut fresh = vec![0; 600];
            let second = ours.sealer.seal_into(&plain(600), &mut fresh);
            let (prefix, head) = head_of(&mut ours.sealer, &header(number), &[descriptor, second]);
            assert_eq!(prefix[1], (number + 1) / 3);
            let record = Sealed { prefix, head, units: vec![ahead, fresh] };
            let expected = (header(number).to_vec(), vec![plain(700), plain(600)]);
            assert_eq!(open(&mut theirs.opener, &record), Ok(expected), "{suite:?} {number}");
        }
    }
}

#[test]
fn section5_unit_of_the_generation_before_the_last_is_not_carried() {
    let (mut sealer, mut opener) = limited(&SMALL);
    let mut unit = plain(600);
    let descriptor = sealer.seal_in_place(&mut unit);
    for generation in 0..3 {
        assert_eq!(descriptor.generation(), 0);
        assert_eq!(sealer.carries(&descriptor, Duration::ZERO), generation < 2);
        open(&mut opener, &seal(&mut sealer, 0, &[])).unwrap();
        let opened = opener.open_unit(&descriptor, &mut unit.clone());
        assert_eq!(opened.is_ok(), generation < 2, "{generation}");
        step(&mut sealer, &mut opener, Duration::ZERO);
    }
}

#[test]
fn section6_unit_sealed_ahead_is_begun_within_30_s_of_the_step() {
    let (mut sealer, mut opener) = limited(&SMALL);
    let descriptor = sealer.seal_in_place(&mut [0]);
    step(&mut sealer, &mut opener, HOUR);
    let last = HOUR + SMALL.ahead_max - Duration::from_nanos(1);
    assert!(sealer.carries(&descriptor, last));
    assert!(!sealer.carries(&descriptor, last + Duration::from_nanos(1)));
    let now = sealer.seal_in_place(&mut [0]);
    assert!(sealer.carries(&now, HOUR * 10), "one of the present generation is never too old");
}

#[test]
#[should_panic(expected = "outlived its generation")]
fn section5_sending_a_unit_that_outlived_its_generation_is_our_fault() {
    let (mut sealer, mut opener) = limited(&SMALL);
    let descriptor = sealer.seal_in_place(&mut [0]);
    for number in 0..2 {
        open(&mut opener, &seal(&mut sealer, number, &[])).unwrap();
        step(&mut sealer, &mut opener, Duration::ZERO);
    }
    sealer.seal_head(&header(1), &[descriptor], &mut Vec::new());
}

/// A correctly sealed record with any head.
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
    // At the first record of generation 1, units sealed ahead belong to generation 0.
    for (seal_id, good) in [(0, true), (1 << 48, true), (2 << 48, false)] {
        let mut opener = limited(&SMALL).1;
        opener.expect_step(&fresh(0), Duration::ZERO);
        let mut record = forged(&ratchet().next(&fresh(0)), 1, 0, &head_with(seal_id));
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
    step(&mut sealer, &mut opener, Duration::ZERO);
    let mut skipped = forged(&ratchet().next(&fresh(0)).next(&fresh(1)), 2, 0, &header(1));
    assert_eq!(opener.sealed_head_bytes(skipped.prefix), Err(Broken));
    assert_eq!(opener.open_head(skipped.prefix, &mut skipped.head), Err(Broken));
    let new = seal(&mut sealer, 0, &[]);
    open(&mut opener, &new).unwrap();
    assert_eq!(opener.sealed_head_bytes(old.prefix), Err(Broken));
    let mut head = old.head.clone();
    assert_eq!(opener.open_head(old.prefix, &mut head), Err(Broken));
}

#[test]
fn section5_records_lost_before_a_step_are_missed() {
    for lost in 1..4 {
        let (mut sealer, mut opener) = limited(&SMALL);
        open(&mut opener, &seal(&mut sealer, 0, &[])).unwrap();
        let mut records: Vec<_> = (0..lost).map(|number| seal(&mut sealer, number, &[])).collect();
        step(&mut sealer, &mut opener, Duration::ZERO);
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
    // The counter continues across generations.
    opener.expect_step(&fresh(0), Duration::ZERO);
    let mut wrong_counter = forged(&ratchet().next(&fresh(0)), 1, 1, &header(1));
    assert_eq!(opener.open_head(wrong_counter.prefix, &mut wrong_counter.head), Err(Broken));
    // A failed attempt does not change the generation.
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
    step(&mut sealer, &mut opener, Duration::ZERO);
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
    // A unit sealed ahead of a step counts in its own generation.
    step(&mut sealer, &mut opener, Duration::ZERO);
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
fn section5_no_seal_id_is_used_twice() {
    let (mut sealer, mut opener) = limited(&Limits { unit_bytes_max: 1 << 20, ..SMALL });
    let mut seen = std::collections::HashSet::new();
    for _ in 0..5 {
        for _ in 0..50 {
            assert!(seen.insert(sealer.seal_in_place(&mut [0]).seal_id));
        }
        open(&mut opener, &seal(&mut sealer, 0, &[])).unwrap();
        step(&mut sealer, &mut opener, Duration::ZERO);
    }
}
