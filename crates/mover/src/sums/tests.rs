//! Tables of runs in any order, and invalid lists.

use std::ops::Range;

use super::{Collector, Content, EXTENT_BYTES_MIN, EXTENTS_MAX, Sum, Sums};
use crate::scripted::Random;
use crate::tree::Hashed;
use crate::zero::is_zero;

const E: u64 = EXTENT_BYTES_MIN;

/// Bytes with ranges of zeroes, and the runs that they are read in.
fn image(seed: u64) -> (Vec<u8>, Vec<Range<u64>>) {
    let mut random = Random::new(seed);
    let total = match seed % 4 {
        0 => random.below(3000),
        1 => E * random.below(12),
        _ => random.below(20 * E),
    };
    let (mut bytes, mut runs, mut at) = (vec![0; total as usize], Vec::new(), 0);
    let step = 1024 << random.below(7);
    while at < total {
        let end = (at + step * (1 + random.below(5))).min(total);
        if !random.one_in(2) {
            random.fill(&mut bytes[at as usize..end as usize]);
        }
        runs.push(at..end);
        at = end;
    }
    (bytes, runs)
}

/// The table of the runs, added in random order; zero runs are hashed or not.
fn table(seed: u64, bytes: &[u8], runs: &[Range<u64>], hashes_zeroes: bool) -> Sums {
    let mut random = Random::new(!seed);
    let total = bytes.len() as u64;
    let of = |run: &Range<u64>| &bytes[run.start as usize..run.end as usize];
    let zeroes = runs.iter().filter(|run| is_zero(of(run))).cloned();
    let mut collector = Collector::new(total, zeroes);
    let mut left = runs.to_vec();
    while !left.is_empty() {
        let run = left.swap_remove(random.below(left.len() as u64) as usize);
        if is_zero(of(&run)) && !hashes_zeroes {
            collector.add_bytes(run.start, of(&run));
        } else {
            collector.add(&Hashed::new(run.start, of(&run), total));
        }
    }
    collector.finish()
}

#[test]
fn the_values_join_to_the_hash_of_the_bytes() {
    for seed in 1..=300 {
        let (bytes, runs) = image(seed);
        let sums = table(seed, &bytes, &runs, true);
        let expected = blake3::hash(&bytes).to_hex().to_string();
        assert_eq!(sums.blake3(), Some(expected), "seed {seed}: {sums:?}");
        for Sum { offset, bytes: length, content } in sums.sums() {
            let held = &bytes[*offset as usize..(offset + length) as usize];
            let expected = is_zero(held);
            assert_eq!(matches!(content, Content::Zero(_)), expected, "seed {seed}: at {offset}");
        }
    }
}

#[test]
fn zeroes_that_are_not_hashed_are_told_from_data_all_the_same() {
    for seed in 1..=300 {
        let (bytes, runs) = image(seed);
        let (with, without) = (table(seed, &bytes, &runs, true), table(seed, &bytes, &runs, false));
        assert_eq!(with.sums().len(), without.sums().len(), "seed {seed}");
        for (with, without) in with.sums().iter().zip(without.sums()) {
            let content = match with.content {
                Content::Zero(_) => Content::Zero(None),
                content => content,
            };
            assert_eq!(Sum { content, ..*with }, *without, "seed {seed}");
        }
        let zero = without.sums().iter().any(|sum| matches!(sum.content, Content::Zero(_)));
        assert_eq!(without.blake3().is_none(), zero, "seed {seed}");
    }
}

#[test]
fn what_does_not_come_is_not_known() {
    let (bytes, total) = (vec![7; 4 * E as usize + 100], 4 * E + 100);
    let mut collector = Collector::new(total, std::iter::empty());
    for at in [0, E / 2, E, 3 * E] {
        let end = (at + E / 2) as usize;
        collector.add(&Hashed::new(at, &bytes[at as usize..end], total));
    }
    // A run within a chunk of the tree.
    collector.add(&Hashed::new(4 * E, &bytes[..50], total));
    let sums = collector.finish();
    let known: Vec<_> = sums.sums().iter().map(|sum| (sum.offset, sum.content != Content::Unknown)).collect();
    assert_eq!(known, [(0, true), (E, false), (2 * E, false), (4 * E, false)]);
    assert_eq!((sums.blake3(), sums.unknown_bytes()), (None, 3 * E + 100));
}

#[test]
fn a_disk_of_zeroes_is_a_few_lines() {
    let total = (1 << 40) + 4096;
    let sums = Collector::new(total, [0..1 << 39, 1 << 39..total].into_iter()).finish();
    assert_eq!(sums.sums().len(), 2, "{:?}", sums.sums());
    assert_eq!((sums.extents(), sums.blake3()), (EXTENTS_MAX / 2 + 1, None));
}

#[test]
fn extents_are_as_long_as_their_number_demands() {
    for total in
        [0, 1, E, E + 1, EXTENTS_MAX * E - 1, EXTENTS_MAX * E, EXTENTS_MAX * E + 1, 1 << 50, u64::MAX]
    {
        let extent = Sums::extent_of(total);
        assert!(extent.is_power_of_two() && extent >= E, "{total}: {extent}");
        assert!(total.div_ceil(extent) <= EXTENTS_MAX, "{total}: {extent}");
        assert!(extent == E || total.div_ceil(extent / 2) > EXTENTS_MAX, "{total}: {extent}");
    }
}

#[test]
fn what_does_not_tile_a_range_is_no_table() {
    let value = [1; 32];
    let data = |offset, bytes| Sum { offset, bytes, content: Content::Data(value) };
    let zero = |offset, bytes| Sum { offset, bytes, content: Content::Zero(Some(value)) };
    let unknown = |offset, bytes| Sum { offset, bytes, content: Content::Unknown };
    let total = 5 * E + 10;
    let fits = |sums: Vec<Sum>| Sums::new(total, E, sums).is_some();
    let tail = || vec![data(4 * E, E), data(5 * E, 10)];
    let with = |head: Vec<Sum>| fits(head.into_iter().chain(tail()).collect());
    assert!(with(vec![zero(0, 4 * E)]) && with(vec![data(0, E), data(E, E), unknown(2 * E, 2 * E)]));
    for (wrong, head) in [
        ("nothing", vec![]),
        ("data that is two extents", vec![data(0, 2 * E), data(2 * E, E), data(3 * E, E)]),
        ("not aligned", vec![data(0, E), zero(E, 2 * E), data(3 * E, E)]),
        ("no power of two", vec![zero(0, 3 * E), data(3 * E, E)]),
        ("a gap", vec![data(0, E), data(2 * E, E), data(3 * E, E)]),
        ("twice", vec![data(0, E), data(0, E), zero(2 * E, 2 * E)]),
        ("nothing in it", vec![zero(0, 0), zero(0, 4 * E)]),
        ("half an extent", vec![data(0, E / 2), data(E / 2, E / 2), data(E, E), zero(2 * E, 2 * E)]),
        ("beyond the end", vec![zero(0, 8 * E)]),
        ("beyond all numbers", vec![data(0, E), zero(E, u64::MAX)]),
    ] {
        assert!(!with(head), "{wrong}");
    }
    assert!(!fits(vec![zero(0, 4 * E), data(4 * E, E)]), "the end is missing");
    assert!(!fits(vec![zero(0, 4 * E), data(4 * E, E), data(5 * E, 11)]), "longer than the range");
    assert!(Sums::new(4 * E, E, vec![zero(0, 4 * E)]).is_none(), "the whole is no subtree");
    assert!(Sums::new(E, E, vec![zero(0, E)]).is_some());
    for extent in [0, 1024, E - 1, 3 * E] {
        assert!(Sums::new(extent, extent, vec![data(0, extent)]).is_none(), "extents of {extent}");
    }
    assert!(Sums::new(u64::MAX, E, vec![]).is_none(), "too many");
}
