//! Sums of a verified copy, and the comparison of a disk with them.

use super::*;
use crate::scripted::Bad;
use crate::{Area, Content, EXTENT_BYTES_MIN, Map, Recheck, Status, Sums, recheck};

const E: u64 = EXTENT_BYTES_MIN;

impl Pair {
    fn recheck(&mut self, sums: &Sums, plan: &Plan) -> Result<Recheck, CopyError> {
        self.drained(|pair| recheck(&mut pair.io, &mut pair.destination, sums, plan, &mut go_on))
    }
}

/// The extents that contain these bytes, joined.
fn extents(total: u64, places: impl Iterator<Item = u64>) -> Vec<Area> {
    let mut map = Map::new(total);
    places.for_each(|place| map.set(place / E * E, (place / E * E + E).min(total), Status::Finished));
    let marked = map.entries().filter(|entry| entry.status == Status::Finished);
    marked.map(|area| Area { offset: area.start, bytes: area.bytes() }).collect()
}

/// A source of data, zeroes and holes, and the sums of its copy.
fn copied(random: &mut Random, seed: u64) -> (Pair, Sums, u64) {
    let total = if random.one_in(6) { random.below(2 * E) } else { random.below(40 * E) };
    let mut source = random_bytes(seed, total);
    let extents = punch(random, &mut source, 5 * E);
    let before = random.below(3) * 4096;
    let old = random_bytes(!seed, before + total);
    let mut pair = Pair::new(source, old);
    pair.source.extents = extents;
    pair.source.when = When::Shuffled(random.clone());
    pair.destination.when = When::Shuffled(Random::new(seed + 1));
    pair.destination.capability.max_transfer_bytes = [4096, 40_000, 1 << 20][random.below(3) as usize];
    let map = random.one_in(3).then(|| {
        // A part of the range was copied before.
        let mut map = Map::new(total);
        let (start, end) = (random.below(total + 1), random.below(total + 1));
        let (start, end) = (start.min(end) / 4096 * 4096, start.max(end) / 4096 * 4096);
        if start < end {
            map.set(start, end, Status::Finished);
            let copied = pair.source.data[start as usize..end as usize].to_vec();
            pair.destination.data[(before + start) as usize..(before + end) as usize]
                .copy_from_slice(&copied);
        }
        map
    });
    let chunk = [4 * KC, 12 * KC, 16 * KC, 64 * KC, 100 * KC][random.below(5) as usize];
    let plan = Plan { dst_offset: before, verify: true, sums: true, map, ..small(chunk, 3) };
    let report = pair.copy(&plan).unwrap();
    let sums = report.sums.unwrap();
    assert_eq!(report.blake3, sums.blake3(), "seed {seed}");
    assert_eq!(sums.blake3(), Some(blake3_of(&pair.source.data)), "seed {seed}");
    (pair, sums, before)
}

#[test]
fn a_flipped_bit_is_found_in_its_extent_and_nothing_else_is() {
    for (seed, mut random) in seeds(100) {
        let (mut pair, sums, before) = copied(&mut random, seed);
        let total = sums.total();
        let chunk = [4 * KC, 12 * KC, 48 * KC][random.below(3) as usize];
        let plan = Plan { src_offset: before, sparse: random.one_in(2), ..small(chunk, 4) };
        // Holes of the disk, which count as zero without being read.
        pair.destination.extents =
            pair.source.extents.iter().map(|(end, data)| (end + before, *data)).collect();
        let was = pair.recheck(&sums, &plan).unwrap();
        assert!(was.different.is_empty() && was.unreadable.is_empty(), "seed {seed}: {was:?}");
        assert_eq!((was.bytes, was.unknown_bytes), (total, 0));

        let places: Vec<u64> =
            (0..random.below(4)).filter(|_| total > 0).map(|_| random.below(total)).collect();
        if random.one_in(2) {
            pair.destination.extents.clear();
        }
        // A disk has no data in a hole.
        let is_data = |at: &u64| pair.destination.extent(before + at).data;
        let places: Vec<_> = places.into_iter().filter(is_data).collect();
        for place in &places {
            pair.destination.data[(before + place) as usize] ^= 1 << random.below(8);
        }
        let places = places
            .into_iter()
            .filter(|at| pair.destination.data[(before + at) as usize] != pair.source.data[*at as usize]);
        let expected = extents(total, places);
        assert_eq!(pair.recheck(&sums, &plan).unwrap().different, expected, "seed {seed}: {sums:?}");
    }
}

#[test]
fn what_cannot_be_read_now_does_not_hide_what_is_different() {
    let source = random_bytes(1, 10 * E + 4096);
    let mut pair = Pair::new(source.clone(), source);
    let plan = Plan { verify: true, sums: true, ..small(8 * KC, 3) };
    let sums = pair.copy(&plan).unwrap().sums.unwrap();
    let bad = |start, end| Bad { start, end, times: usize::MAX };
    pair.destination.bad = vec![bad(2 * E + 5, 2 * E + 6), bad(7 * E - 10, 7 * E + 10)];
    pair.destination.data[(9 * E) as usize] ^= 1;
    let found = pair.recheck(&sums, &plan).unwrap();
    assert_eq!(found.different, extents(10 * E, [9 * E].into_iter()));
    assert_eq!(found.unreadable, extents(10 * E, [2 * E, 6 * E, 7 * E].into_iter()));
    assert_eq!(found.compared_bytes(), 7 * E + 4096);
    // A lost connection, in contrast, is an error.
    pair.destination.faults.push(Fault { verb: "read", nth: 0, kind: IoErrorKind::Unreachable, on: true });
    assert!(matches!(pair.recheck(&sums, &plan), Err(CopyError::Read { end: End::Source, .. })));
}

#[test]
fn what_could_not_be_read_then_is_not_known_and_not_read_now() {
    let mut pair = Pair::new(random_bytes(1, 10 * E), random_bytes(2, 10 * E));
    pair.source.bad.push(Bad { start: 3 * E + 600, end: 3 * E + 601, times: usize::MAX });
    let plan = Plan { verify: true, sums: true, skip_bad: true, ..small(8 * KC, 3) };
    let report = pair.copy(&plan).unwrap();
    let sums = report.sums.unwrap();
    assert_eq!((report.blake3, sums.blake3(), sums.unknown_bytes()), (None, None, E));
    let unknown: Vec<_> = sums.sums().iter().filter(|sum| sum.content == Content::Unknown).collect();
    assert_eq!((unknown.len(), unknown[0].offset), (1, 3 * E));
    pair.destination.data[(3 * E) as usize] ^= 1;
    pair.destination.data[(4 * E) as usize] ^= 1;
    pair.log.borrow_mut().did.clear();
    let found = pair.recheck(&sums, &Plan::default()).unwrap();
    assert_eq!((found.unknown_bytes, found.different), (E, extents(10 * E, [4 * E].into_iter())));
    assert!(pair.log.borrow().did.iter().all(|did| !matches!(did,
        Did::Submitted { offset, length, .. } if *offset < 4 * E && offset + length > 3 * E)));
}

#[test]
fn where_nearly_all_is_zero_extents_are_compared_without_a_hash_of_the_whole() {
    // One chunk of data; in the second case also more runs than digests, so that the last ones are read from both
    // ends.
    for (chunk, data) in [(128 * KC, 8), (64 * KC, 4 + 16)] {
        let total = 4 << 20;
        let mut source = vec![0; total as usize];
        source[70_000..90_000].copy_from_slice(&random_bytes(1, 20_000));
        let mut pair = Pair::new(source, random_bytes(2, total));
        let plan = Plan { verify: true, sums: true, ..small(chunk, 3) };
        let report = pair.copy(&plan).unwrap();
        let sums = report.sums.unwrap();
        assert_eq!((report.blake3, sums.blake3(), sums.unknown_bytes()), (None, None, 0));
        let with = sums.sums().iter().filter(|sum| matches!(sum.content, Content::Data(_)));
        assert_eq!(with.count(), data);
        assert!(sums.sums().len() < data + 12, "{:?}", sums.sums());
        assert_eq!(pair.recheck(&sums, &plan).unwrap().different, []);
        let places = [75_000, 80_000, 3_000_000, total - 1];
        places.iter().for_each(|place| pair.destination.data[*place as usize] ^= 1);
        let found = pair.recheck(&sums, &plan).unwrap();
        assert_eq!(found.different, extents(total, places.into_iter()));
    }
}

#[test]
fn no_sums_without_being_asked_or_without_a_verification() {
    for (verify, sums) in [(true, false), (false, true)] {
        let mut pair = Pair::new(random_bytes(1, 3 * E), random_bytes(2, 3 * E));
        let plan = Plan { verify, sums, ..small(8 * KC, 3) };
        assert_eq!(pair.copy(&plan).unwrap().sums, None);
    }
}
