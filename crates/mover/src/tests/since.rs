//! Incremental copies: by comparison, by a list, resumed; and the hash of the whole.

use super::*;
use crate::scripted::Bad;
use crate::{Map, Status};

/// An image and an older state of it, with the holes of both and the ranges in which they differ: begin and end.
struct Images {
    new: Vec<u8>,
    old: Vec<u8>,
    holes: [Vec<(u64, bool)>; 2],
    changed: Vec<(u64, u64)>,
}

/// End and kind (data) of each extent: zero bytes may be holes.
fn extents(random: &mut Random, bytes: &[u8]) -> Vec<(u64, bool)> {
    let (mut extents, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let zero = bytes[at] == 0;
        let run = bytes[at..].iter().take_while(|byte| (**byte == 0) == zero).count();
        let end = if zero { at + 1 + random.below(run as u64) as usize } else { at + run };
        extents.push((end as u64, !zero || random.one_in(3)));
        at = end;
    }
    extents
}

impl Images {
    fn new(random: &mut Random, bytes: u64, changes: u64) -> Self {
        let mut old = vec![1; bytes as usize];
        for at in (0..bytes as usize).step_by(512) {
            let length = (bytes as usize - at).min(8);
            random.fill(&mut old[at..at + length]);
        }
        let place = |random: &mut Random, most: u64| {
            let start = random.below(bytes);
            start..(start + 1 + random.below(most)).min(bytes)
        };
        for _ in 0..random.below(4) {
            let zero = place(random, 200 * K);
            old[zero.start as usize..zero.end as usize].fill(0);
        }
        let (mut new, mut changed) = (old.clone(), Vec::new());
        for _ in 0..changes {
            let most = if random.one_in(3) { 100 * K } else { 3000 };
            let range = place(random, most);
            let value = random.below(3) as u8;
            new[range.start as usize..range.end as usize].fill(value);
            changed.push((range.start, range.end));
        }
        let holes = [extents(random, &new), extents(random, &old)];
        Self { new, old, holes, changed }
    }

    fn pair(&self, random: &mut Random) -> Pair {
        let mut pair = Pair::new(self.new.clone(), self.old.clone());
        for (end, holes) in [&mut pair.source, &mut pair.destination].into_iter().zip(&self.holes) {
            end.extents.clone_from(holes);
            end.when = any_order(random);
            end.capability.max_transfer_bytes = [4096, 40_000, 1 << 20][random.below(3) as usize];
        }
        pair.can_zero(random.one_in(2));
        pair
    }

    /// Bytes of the runs of `step` bytes that contain a change.
    fn touched(&self, step: u64) -> u64 {
        let runs = self.changed.iter().flat_map(|(start, end)| start / step..end.div_ceil(step));
        runs.collect::<BTreeSet<_>>().len() as u64 * step
    }

    fn blake3(&self) -> Option<String> {
        Some(blake3_of(&self.new))
    }
}

fn plan(random: &mut Random) -> Plan {
    let chunk = [1, 2, 3, 5, 8, 16][random.below(6) as usize] * 4096;
    let (verify, sparse) = (random.one_in(2), !random.one_in(4));
    Plan { verify, sparse, ..small(chunk, 1 + random.below(9) as u32) }
}

#[test]
fn by_comparison_the_destination_becomes_the_source_and_little_is_written() {
    for (seed, mut random) in seeds(150) {
        let (bytes, changes) = (1 + random.below(700 * K), random.below(6));
        let images = Images::new(&mut random, bytes, changes);
        let mut pair = images.pair(&mut random);
        let plan = Plan { differing: true, ..plan(&mut random) };
        let report = pair.copy(&plan).unwrap_or_else(|error| panic!("seed {seed}: {error}: {plan:?}"));
        assert!(pair.destination.data == images.new, "seed {seed}: {plan:?}");
        let written = report.write.bytes + report.zero_bytes_skipped;
        assert_eq!(written + report.equal_bytes, bytes, "seed {seed}: {report:?}");
        // Runs of data may begin anywhere after a hole, so a change may touch one more run at each end.
        let chunk = u64::from(plan.chunk.unwrap());
        let most = images.touched(chunk) + 2 * chunk * images.changed.len() as u64;
        assert!(written <= most, "seed {seed}: {written} written, {most} at most");
        if images.new == images.old {
            let log = pair.log.borrow();
            assert_eq!(log.count('d', "write") + log.count('d', "write-zeroes"), 0, "seed {seed}");
        }
        assert_eq!(report.compared_bytes, report.read.bytes, "seed {seed}");
        assert_eq!(report.blake3, images.blake3().filter(|_| plan.verify), "seed {seed}");
    }
}

#[test]
fn a_small_change_is_a_small_write_and_holes_of_both_are_not_read() {
    let mut old = random_bytes(1, 1 << 20);
    old[256 << 10..768 << 10].fill(0);
    let mut new = old.clone();
    new[100_000] ^= 1;
    new[900_000] ^= 1;
    new[905_000] ^= 1;
    let mut pair = Pair::new(new.clone(), old);
    pair.source.extents = vec![(256 * K, true), (768 * K, false)];
    pair.destination.extents = vec![(200 * K, true), (256 * K, true), (700 * K, false)];
    let report = pair.copy(&Plan { differing: true, ..small(64 * KC, 4) }).unwrap();
    assert!(pair.destination.data == new);
    assert_eq!(report.write.bytes, 4096 + 2 * 4096, "one unit, and two that touch");
    assert_eq!((report.compared_bytes, report.equal_bytes), ((1024 - 444) * K, (1 << 20) - 3 * 4096));
}

#[test]
fn by_a_list_only_what_it_names_is_read_and_written() {
    for (seed, mut random) in seeds(150) {
        let (bytes, changes) = (1 + random.below(700 * K), random.below(6));
        let images = Images::new(&mut random, bytes, changes);
        let mut pair = images.pair(&mut random);
        let mut map = Map::new(bytes);
        images.changed.iter().for_each(|(start, end)| map.set(*start, *end, Status::BadSector));
        let marked = map.entries().filter(|entry| entry.status == Status::BadSector);
        let only: Vec<_> = marked.map(|entry| entry.start..entry.end).collect();
        let plan = Plan { only: Some(only), differing: random.one_in(3), ..plan(&mut random) };
        let report = pair.copy(&plan).unwrap_or_else(|error| panic!("seed {seed}: {error}: {plan:?}"));
        assert!(pair.destination.data == images.new, "seed {seed}: {plan:?}");
        let most = images.touched(4096).min(bytes);
        assert!(report.read.bytes <= most && report.write.bytes <= most, "seed {seed}: {report:?}");
        let written = report.write.bytes + report.zero_bytes_skipped;
        assert_eq!(written + report.equal_bytes + report.skipped_bytes, bytes, "seed {seed}: {report:?}");
        assert_eq!(report.blake3, images.blake3().filter(|_| plan.verify), "seed {seed}");
    }
}

#[test]
fn a_list_that_names_too_little_is_found_by_verification_only() {
    let old = random_bytes(1, 300 * K);
    let mut new = old.clone();
    new[5000] ^= 1;
    new[200_000] ^= 1;
    let mut pair = Pair::new(new.clone(), old.clone());
    let named = 4 * K..5 * K;
    let plan = Plan { only: Some(vec![named]), ..small(16 * KC, 4) };
    let report = pair.copy(&plan).unwrap();
    assert_eq!((report.write.bytes, report.skipped_bytes), (4096, 296 * K));
    assert_ne!(pair.destination.data, new);
    let plan = Plan { verify: true, ..plan };
    match Pair::new(new, old).copy(&plan).unwrap_err() {
        CopyError::Verify { offset, length } => assert!((offset..offset + length).contains(&200_000)),
        other => panic!("{other}"),
    }
}

#[test]
fn lists_that_are_none_are_refused() {
    #[expect(clippy::single_range_in_vec_init, reason = "it is a list of ranges")]
    let lists = [vec![0..5, 4..6], vec![5..6, 0..1], vec![90..101]];
    for only in lists {
        let mut pair = Pair::new(vec![1; 100], vec![0; 100]);
        let plan = Plan { only: Some(only), ..Plan::default() };
        assert!(matches!(pair.copy(&plan), Err(CopyError::Refused(Refusal::Only { bytes: 100 }))));
    }
    let mut pair = Pair::new(vec![1; 100], vec![0; 100]);
    let report = pair.copy(&Plan { only: Some(Vec::new()), ..Plan::default() }).unwrap();
    assert_eq!((report.skipped_bytes, report.read.ops, pair.destination.data[0]), (100, 0, 0));
}

#[test]
fn a_resumed_copy_of_either_kind_has_the_hash_of_the_whole() {
    for (seed, mut random) in seeds(100) {
        let bytes = 1 + random.below(700 * K);
        let images = Images::new(&mut random, bytes, 4);
        let mut pair = images.pair(&mut random);
        let mut map = Map::new(bytes);
        for _ in 0..random.below(5) {
            let start = random.below(bytes) / 512 * 512;
            let end = (start + random.below(200 * K)).min(bytes);
            pair.destination.data[start as usize..end as usize]
                .copy_from_slice(&images.new[start as usize..end as usize]);
            // A copied range is no hole.
            pair.destination.extents.clear();
            map.set(start, end, Status::Finished);
        }
        let plan = Plan { map: Some(map), differing: random.one_in(2), verify: true, ..plan(&mut random) };
        let report = pair.copy(&plan).unwrap_or_else(|error| panic!("seed {seed}: {error}: {plan:?}"));
        assert!(pair.destination.data == images.new, "seed {seed}: {plan:?}");
        assert_eq!(report.blake3, images.blake3(), "seed {seed}: {plan:?}");
    }
}

#[test]
fn a_lost_cache_is_made_good_in_a_comparison_too() {
    for (seed, mut random) in seeds(40) {
        let images = Images::new(&mut random, 500 * K, 5);
        let mut pair = images.pair(&mut random);
        // The first flush precedes the comparison: a lost cache that it reports concerns earlier writers.
        let nth = random.below(2) as usize;
        pair.destination.faults.push(Fault { verb: "flush", nth, kind: IoErrorKind::CacheLost, on: false });
        let plan = Plan { differing: true, verify: true, ..small(8 * KC, 3) };
        let report = pair.copy(&plan).unwrap();
        assert!(report.copied_again == (nth == 1) && report.verified, "seed {seed}");
        assert!(pair.destination.data == images.new, "seed {seed}");
        assert_eq!(report.blake3, images.blake3(), "seed {seed}");
    }
}

#[test]
fn what_is_found_equal_was_durable_before_it_was_read() {
    for (seed, mut random) in seeds(40) {
        let images = Images::new(&mut random, 500 * K, 0);
        let mut pair = images.pair(&mut random);
        // An earlier copy had written everything when its process ended; the target loses power during the comparison.
        pair.destination.durable.borrow_mut().fill(7);
        pair.destination.cut_at = Some(random.below(20) as usize);
        let plan = Plan { differing: true, sparse: random.one_in(2), ..small(8 * KC, 3) };
        let report = pair.copy(&plan).unwrap();
        assert!(report.equal_bytes > 0 && *pair.destination.durable.borrow() == images.new, "seed {seed}");
    }
    let mut pair = Pair::new(vec![1; 100 << 10], vec![1; 100 << 10]);
    pair.destination.faults.push(Fault { verb: "flush", nth: 0, kind: IoErrorKind::FlushFailed, on: false });
    let error = pair.copy(&Plan { differing: true, ..small(8 * KC, 3) }).unwrap_err();
    assert!(matches!(error, CopyError::Flush(_)) && pair.log.borrow().count('d', "read") == 0, "{error}");
}

#[test]
fn a_destination_that_cannot_be_read_is_an_error_of_a_comparison() {
    let mut pair = Pair::new(vec![1; 100 << 10], vec![1; 100 << 10]);
    pair.destination.bad.push(Bad { start: 5000, end: 5001, times: usize::MAX });
    let plan = Plan { differing: true, skip_bad: true, ..small(8 * KC, 3) };
    let error = pair.copy(&plan).unwrap_err();
    assert!(matches!(error, CopyError::Read { end: End::Destination, .. }), "{error}");
}

#[test]
fn what_was_read_block_by_block_leaves_no_hash_of_the_whole() {
    for (times, whole) in [(0, true), (1, false)] {
        let mut pair = Pair::new(random_bytes(1, 100 * K), random_bytes(2, 100 * K));
        pair.source.bad.push(Bad { start: 5000, end: 5001, times });
        let plan = Plan { skip_bad: true, verify: true, ..small(8 * KC, 3) };
        let report = pair.copy(&plan).unwrap();
        assert!(pair.destination.data == pair.source.data && report.verified);
        assert_eq!(report.blake3.is_some(), whole);
    }
}

/// In tests 1 MiB takes the place of 4 GiB.
#[test]
fn an_image_that_is_nearly_all_zero_is_verified_without_the_hash_of_the_whole() {
    for (zero, whole) in [(1 << 20, true), ((1 << 20) + 4096, false)] {
        let data = random_bytes(1, 64 * K);
        let mut pair = Pair::new([data.clone(), vec![0; zero]].concat(), vec![7; 64 * 1024 + zero]);
        let plan = Plan { verify: true, ..small(64 * KC, 3) };
        let report = pair.copy(&plan).unwrap();
        assert!(pair.destination.data == pair.source.data && report.verified);
        assert_eq!(report.blake3.is_some(), whole, "{zero} bytes of zeroes");
    }
}
