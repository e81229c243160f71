//! Chunks of which parts are written, zeroed or left alone: for random geometries, with errors, and with the number of
//! requests.

use super::trust::lasting_fault;
use super::*;
use crate::Status;

/// Ranges of 4 KiB to 256 KiB that are data, zeroes or equal at both ends; some are unaligned.
fn images(random: &mut Random, length: u64) -> (Vec<u8>, Vec<u8>) {
    let mut new = vec![3; length as usize];
    let mut old = vec![4; length as usize];
    for at in (0..length as usize).step_by(512) {
        let end = (at + 8).min(length as usize);
        random.fill(&mut new[at..end]);
        random.fill(&mut old[at..end]);
    }
    let mut at = 0;
    while at < new.len() {
        let stretch = 1 + random.below(64 * 4096) as usize;
        let end =
            (at + if random.one_in(3) { stretch } else { stretch.next_multiple_of(4096) }).min(new.len());
        match random.below(6) {
            0 | 1 => new[at..end].fill(0),
            2 => {
                new[at..end].fill(0);
                old[at..end].fill(0);
            }
            3 => old[at..end].copy_from_slice(&new[at..end]),
            _ => {}
        }
        if random.one_in(3) {
            new[end - 1] ^= 1;
        }
        at = end;
    }
    (new, old)
}

fn log_of(pair: &Pair, verb: &str) -> Vec<(u64, u64)> {
    let range = |did: &Did| match *did {
        Did::Submitted { end: 'd', verb: asked, offset, length } if asked == verb => Some((offset, length)),
        _ => None,
    };
    let mut asked: Vec<_> = pair.log.borrow().did.iter().filter_map(range).collect();
    asked.sort_unstable();
    asked
}

#[test]
fn any_stretches_over_any_geometry_become_the_source() {
    for (seed, mut random) in seeds(60) {
        let granularity = [1, 512, 4096][random.below(3) as usize];
        let blocks = |random: &mut Random, bytes: u64| random.below(bytes / granularity + 1) * granularity;
        let (before, bytes) = (blocks(&mut random, 9000), blocks(&mut random, 1_500_000));
        let (new, old) = images(&mut random, bytes);
        let edge = vec![9; before as usize];
        let mut pair = Pair::new(new.clone(), [&edge[..], &old, &edge].concat());
        pair.source.when = When::Shuffled(random.clone());
        pair.destination.when = any_order(&mut random);
        for end in [&mut pair.source, &mut pair.destination] {
            end.capability.granularity = if random.one_in(3) { 1 } else { granularity as u32 };
            end.capability.max_transfer_bytes = [5000, 40_000, 100_000, 1 << 20][random.below(4) as usize];
        }
        let names = !random.one_in(4);
        pair.can_zero(names);
        let on = random.one_in(2);
        let fault = |verb, nth, kind| Fault { verb, nth, kind, on };
        let denied = random.one_in(4);
        if denied {
            let nth = random.below(9) as usize;
            pair.destination.faults.push(fault("write-zeroes", nth, IoErrorKind::Unsupported));
        }
        let (lost, differing) = (random.one_in(4), random.one_in(2));
        if lost {
            // A differing copy starts with a flush.
            let nth = usize::from(differing);
            pair.destination.faults.push(Fault { on: false, ..fault("flush", nth, IoErrorKind::CacheLost) });
        }
        let plan = Plan {
            dst_offset: before,
            verify: random.one_in(2),
            differing,
            sparse: !random.one_in(5),
            ..small(
                [4096, 64 * KC, 256 * KC, 1024 * KC][random.below(4) as usize],
                1 + random.below(6) as u32,
            )
        };
        let report = pair.copy(&plan).unwrap_or_else(|error| panic!("seed {seed}: {error}: {plan:?}"));
        assert!(pair.destination.data == [&edge[..], &new, &edge].concat(), "seed {seed}: {plan:?}");
        assert_eq!(report.copied_again, lost, "seed {seed}");
        let moved = report.write.bytes + report.zero_bytes_skipped;
        assert_eq!(moved + report.equal_bytes, bytes, "seed {seed}: {report:?}");
        assert!(plan.differing || report.equal_bytes == 0, "seed {seed}");
        assert!(names && plan.sparse || report.zero_bytes_skipped == 0, "seed {seed}");
        let blake3 = plan.verify.then(|| blake3_of(&new));
        assert_eq!(report.blake3, blake3, "seed {seed}");
        // No range that was written contains zeroes that could have been a hole.
        if names && plan.sparse && !denied {
            for (offset, length) in log_of(&pair, "write") {
                let range = (offset - before) as usize..(offset - before + length) as usize;
                let units = new[range].chunks(4096).map(|unit| unit.iter().all(|byte| *byte == 0));
                let mut run = 0;
                let bounded = units.into_iter().all(|zero| {
                    run = if zero { run + 4096 } else { 0 };
                    run <= 64 << 10
                });
                assert!(bounded, "seed {seed}: zeroes were written at {offset}");
            }
        }
    }
}

#[test]
fn a_chunk_without_a_long_stretch_of_zeroes_is_one_write() {
    let mut source = random_bytes(1, 1 << 20);
    for at in (0..1 << 20).step_by(64 << 10) {
        source[at..at + (60 << 10)].fill(0);
    }
    let mut pair = Pair::new(source.clone(), vec![1; 1 << 20]);
    let report = pair.copy(&small(256 * KC, 2)).unwrap();
    assert!(pair.destination.data == source);
    assert_eq!((report.write.ops, report.read.ops, report.zero_bytes_skipped), (4, 4, 0));
    assert_eq!(log_of(&pair, "write"), [0, 1, 2, 3].map(|chunk| (chunk * 256 * K, 256 * K)));
}

#[test]
fn zeroes_inside_of_a_chunk_are_made_by_name_beside_its_writes() {
    let mut source = random_bytes(1, 512 * K);
    source[100 << 10..200 << 10].fill(0);
    source[300 << 10..400 << 10].fill(0);
    let mut pair = Pair::new(source.clone(), vec![1; 512 << 10]);
    let report = pair.copy(&Plan { verify: true, ..small(512 * KC, 1) }).unwrap();
    assert!(pair.destination.data == source && report.verified);
    assert_eq!(log_of(&pair, "write"), [(0, 100 * K), (200 * K, 100 * K), (400 * K, 112 * K)]);
    assert_eq!(log_of(&pair, "write-zeroes"), [(100 * K, 100 * K), (300 * K, 100 * K)]);
    assert_eq!((report.zero_bytes_skipped, report.write.bytes, report.write.ops), (200 * K, 312 * K, 3));
    assert_eq!(pair.log.borrow().requests_max, 5, "they do not wait for each other");
}

#[test]
fn zeroing_that_is_denied_between_patches_is_made_good_and_not_tried_again() {
    for (nth, inside) in [(0, false), (1, false), (1, true)] {
        let mut source = random_bytes(1, 1 << 20);
        for at in [100, 300, 612, 812] {
            source[at << 10..(at + 100) << 10].fill(0);
        }
        let mut pair = Pair::new(source.clone(), vec![1; 1 << 20]);
        if inside {
            pair.destination.when = When::Inside;
        }
        pair.refuse_zeroes(nth);
        let report = pair.copy(&Plan { verify: true, ..small(512 * KC, 1) }).unwrap();
        assert!(pair.destination.data == source && report.verified);
        assert_eq!(report.zero_bytes_skipped, nth as u64 * 100 * K);
        assert_eq!(report.write.bytes + report.zero_bytes_skipped, 1 << 20);
        assert_eq!(log_of(&pair, "write-zeroes").len(), 2, "both of one chunk");
        assert!(log_of(&pair, "write").contains(&(512 * K, 512 * K)), "the next chunk is one write");
    }
}

#[test]
fn a_patch_that_fails_is_named_and_its_chunk_is_not_finished() {
    for (verb, nth, offset, length) in
        [("write", 2, 400, 112), ("write-zeroes", 1, 300, 100), ("write", 0, 0, 100)]
    {
        let mut source = random_bytes(1, 1 << 20);
        for at in [100, 300] {
            source[at << 10..(at + 100) << 10].fill(0);
        }
        let mut pair = Pair::new(source, vec![1; (1 << 20) + 8192]);
        pair.destination.when = When::Inside;
        let mut claims = pair.claims();
        pair.destination.faults.push(Fault { verb, nth, kind: IoErrorKind::Medium, on: true });
        let plan = Plan { dst_offset: 8192, ..small(512 * KC, 1) };
        let found = pair.copy_claiming(&plan, &mut claims).unwrap_err();
        let CopyError::Write { offset: at, length: bytes, .. } = found else { panic!("{found}") };
        assert_eq!((at, bytes), (8192 + offset * K, length * K), "{verb} {nth}");
        assert_eq!(claims.maps.last().unwrap().bytes(Status::Finished), 0, "{verb} {nth}");
    }
}

#[test]
fn after_a_power_cut_between_patches_the_rest_is_copied() {
    for (seed, mut random) in seeds(40) {
        let bytes = 900 * K + random.below(9000);
        let (new, old) = images(&mut random, bytes);
        let mut pair = Pair::new(new, old);
        pair.source.when = When::Shuffled(random.clone());
        pair.destination.when = When::Shuffled(Random::new(seed));
        let fault = lasting_fault(&mut random, ["write", "write-zeroes", "flush"], 12);
        pair.destination.faults.push(fault);
        let plan = Plan { differing: random.one_in(2), ..small(128 * KC, 1 + random.below(4) as u32) };
        let (mut pair, map) = pair.cut_off(&plan, seed, &mut random);
        let mut claims = pair.claims();
        let plan = Plan { map: Some(map.clone()), verify: random.one_in(2), ..plan };
        let report = pair.copy_claiming(&plan, &mut claims).unwrap();
        assert!(pair.destination.data == pair.source.data, "seed {seed}");
        assert_eq!(report.resumed_bytes, map.bytes(Status::Finished), "seed {seed}");
        let moved = report.write.bytes + report.zero_bytes_skipped + report.equal_bytes;
        assert_eq!(moved + report.resumed_bytes, bytes, "seed {seed}: {report:?}");
    }
}

#[test]
fn interrupted_between_patches_what_is_said_to_be_safe_is() {
    for differing in [false, true] {
        let mut random = Random::new(5);
        let (new, old) = images(&mut random, 3 << 20);
        let mut pair = Pair::new(new, old);
        pair.destination.when = When::Shuffled(Random::new(1));
        let mut claims = pair.claims();
        let stop = &mut |_: &Progress| Control::Stop;
        let plan = Plan { differing, rate: Some(1 << 20).into(), ..small(256 * KC, 3) };
        let result = pair.copy_claiming_observed(&plan, stop, &mut claims);
        let Err(CopyError::Interrupted { phase: Phase::Copy, bytes_safe }) = result else {
            panic!("{result:?}")
        };
        assert_eq!(claims.maps.last().unwrap().safe(), bytes_safe);
        assert!(bytes_safe > 0 && bytes_safe < 3 << 20 && bytes_safe.is_multiple_of(256 * K), "{bytes_safe}");
        let safe = ..bytes_safe as usize;
        assert!(pair.destination.durable.borrow()[safe] == pair.source.data[safe]);
    }
}
