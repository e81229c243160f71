//! Copies that give way to other programs on their disks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Disk, Impact, ReadCounter};

/// A disk that counts so many reads of others each time that it is looked at.
struct Counter {
    reads: AtomicU64,
    others: u64,
}

impl ReadCounter for Counter {
    fn name(&self) -> &str {
        "/dev/shared"
    }

    fn reads(&self) -> Option<u64> {
        Some(self.reads.fetch_add(self.others, Ordering::Relaxed))
    }
}

fn auto(ends: [bool; 2], others: u64) -> Impact {
    Impact::Auto(vec![Disk { ends, counter: Arc::new(Counter { reads: AtomicU64::new(0), others }) }])
}

/// A copy that lasts for some tenths of a second.
fn slow(impact: Impact) -> Plan {
    Plan { rate: Some(2_000 * K).into(), impact, verify: true, ..small(256 * KC, 4) }
}

#[test]
fn a_copy_beside_others_is_exact_and_says_that_it_gave_way() {
    for (seed, mut random) in seeds(4) {
        // With the destination alone on the disk, probes read what is finished there.
        let ends = [[true, true], [true, false], [false, true]][seed as usize % 3];
        let mut pair = Pair::new(random_bytes(seed, 1600 * K), random_bytes(!seed, 1600 * K));
        pair.source.when = When::Shuffled(random.clone());
        pair.destination.when = any_order(&mut random);
        let report = pair.copy(&slow(auto(ends, 100))).unwrap();
        assert!(pair.source.data == pair.destination.data, "seed {seed}");
        let yielded = report.yielded.unwrap_or_else(|| panic!("seed {seed} gave no way"));
        assert_eq!(yielded.disk, "/dev/shared");
        assert!(yielded.seconds > 0.1 && yielded.reads >= 100 && yielded.idle_us > 0.0, "{yielded:?}");
        assert_eq!(report.read.bytes, 1600 * K, "probes are no part of the copy");
        assert!(report.chunks >= 7, "{} runs", report.chunks);
    }
}

#[test]
fn without_others_a_copy_is_as_it_would_be() {
    let mut pair = Pair::new(random_bytes(1, 1600 * K), vec![0; 1600 * 1024]);
    // The disk counts no read at all, as where the page cache or a file system's own statistics answer.
    let report = pair.copy(&slow(auto([true, true], 0))).unwrap();
    assert_eq!((report.yielded, report.shares.impact, report.chunks), (None, 0.0, 7));
    assert_eq!(pair.log.borrow().count('s', "read"), 7);
}

#[test]
fn a_source_that_cannot_be_probed_is_copied_nevertheless() {
    let mut pair = Pair::new(random_bytes(2, 1600 * K), vec![0; 1600 * 1024]);
    // No place is finished and data: nothing can be learned, so the copy is not bounded.
    pair.source.extents = vec![(1600 * K, false)];
    pair.can_zero(false);
    let report = pair.copy(&Plan { sparse: false, ..slow(auto([true, false], 100)) }).unwrap();
    assert!(pair.source.data == pair.destination.data);
    assert_eq!(report.yielded, None);
}

#[test]
fn an_interrupted_copy_beside_others_leaves_nothing_in_flight() {
    // From the fifth call on, the second stop is near, in which a probe is in flight nearly always.
    for stop_at in [1, 2, 5, 6, 7] {
        let mut pair = Pair::new(random_bytes(3, 4800 * K), vec![0; 4800 * 1024]);
        pair.source.when = When::After(Duration::from_millis(20));
        let mut calls = 0;
        let error = pair.copy_observed(&slow(auto([true, true], 100)), &mut |_| {
            calls += 1;
            if calls == stop_at { Control::Stop } else { Control::Continue }
        });
        assert!(matches!(error, Err(CopyError::Interrupted { phase: Phase::Copy, .. })), "{error:?}");
    }
}

#[test]
fn the_least_impact_is_one_small_request_at_a_time_with_pauses() {
    let mut pair = Pair::new(random_bytes(4, 2048 * K), vec![0; 2048 * 1024]);
    let delay = Duration::from_millis(3);
    (pair.source.when, pair.destination.when) = (When::After(delay), When::After(delay));
    let plan = Plan { impact: Impact::Least, ..small(1024 * KC, 8) };
    let report = pair.copy(&plan).unwrap();
    assert!(pair.source.data == pair.destination.data);
    let log = pair.log.borrow();
    assert_eq!((log.requests_max, log.count('s', "read"), report.depth_max), (1, 16, 1));
    // A chunk takes two delays, and so does the pause after it.
    let pauses = log.read_times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(pauses.min() >= Some(4 * delay), "{:?}", log.read_times);
    assert!(report.yielded.is_some_and(|yielded| yielded.disk.is_empty() && yielded.seconds > 0.0));
}
