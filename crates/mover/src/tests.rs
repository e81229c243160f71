//! The engine over scripted endpoints (order, bounds, errors) and over the endpoints of `block`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use area::PoolLimits;
use block::layer::{FaultMedium, FaultRule};
use block::{Endpoint, Identity, IoErrorKind, Medium, MemoryMedium, PatternMedium};
use io::Io;

mod extents;
mod impact;
mod recheck;
mod since;
mod trust;

use crate::scripted::{Did, Fault, Log, Random, Scripted, When};
use crate::{
    Control, CopyError, End, Limit, Phase, Plan, Progress, RateLimit, Refusal, Report, compare, copy,
};

const K: u64 = 1024;
const KC: u32 = 1024;

/// A source and a destination with a common log.
struct Pair {
    io: Io,
    log: Rc<RefCell<Log>>,
    source: Scripted,
    destination: Scripted,
}

impl Pair {
    fn new(source: Vec<u8>, destination: Vec<u8>) -> Self {
        Self::with_limits(source, destination, PoolLimits::default())
    }

    fn with_limits(source: Vec<u8>, destination: Vec<u8>, limits: PoolLimits) -> Self {
        let mut io = Io::new(limits).unwrap();
        let log = Rc::default();
        let source = Scripted::new(&mut io, 's', source, &log);
        let destination = Scripted::new(&mut io, 'd', destination, &log);
        Self { io, log, source, destination }
    }

    /// A possible content of the destination after a power loss: any sector not flushed may be old.
    fn after_power_cut(&self, random: &mut Random) -> Vec<u8> {
        let mut survived = self.destination.durable.borrow().clone();
        for (old, new) in survived.chunks_mut(512).zip(self.destination.data.chunks(512)) {
            if random.one_in(2) {
                old.copy_from_slice(new);
            }
        }
        survived
    }

    /// From request number `nth` on, the destination has no operation that writes zeroes.
    fn refuse_zeroes(&mut self, nth: usize) {
        let fault = Fault { verb: "write-zeroes", nth, kind: IoErrorKind::Unsupported, on: true };
        self.destination.faults.push(fault);
    }

    fn can_zero(&mut self, can: bool) {
        let capability = &mut self.destination.capability;
        (capability.write_zeroes, capability.discard) = (can, can);
    }

    /// Runs an operation; asserts that afterwards nothing is in flight and all memory is back.
    fn drained<T>(&mut self, operation: impl FnOnce(&mut Self) -> T) -> T {
        let borrowed = self.io.pool().borrowed();
        let result = operation(self);
        assert_eq!(self.io.pool().borrowed(), borrowed, "all memory is back");
        assert_eq!(self.log.borrow().in_flight(), 0, "everything was drained");
        result
    }

    fn copy(&mut self, plan: &Plan) -> Result<Report, CopyError> {
        self.copy_observed(plan, &mut go_on)
    }

    fn copy_observed(
        &mut self,
        plan: &Plan,
        observer: &mut dyn FnMut(&Progress) -> Control,
    ) -> Result<Report, CopyError> {
        self.drained(|pair| copy(&mut pair.io, &mut pair.source, &mut pair.destination, plan, observer))
    }

    fn compare(&mut self, plan: &Plan) -> Result<Option<u64>, CopyError> {
        let compare = |pair: &mut Self| {
            compare(&mut pair.io, &mut pair.source, &mut pair.destination, plan, &mut go_on)
        };
        self.drained(compare).map(|comparison| comparison.first_difference)
    }
}

fn go_on(_: &Progress) -> Control {
    Control::Continue
}

/// Seeds, and the numbers drawn from each.
fn seeds(count: u64) -> impl Iterator<Item = (u64, Random)> {
    (1..=count).map(|seed| (seed, Random::new(seed)))
}

/// Fills some of the source with zeroes; returns the end and the kind of extents in which some of the zeroes are holes.
fn punch(random: &mut Random, source: &mut [u8], longest: u64) -> Vec<(u64, bool)> {
    let (mut extents, mut at) = (Vec::new(), 0);
    while at < source.len() {
        let end = (at + 1 + random.below(longest) as usize).min(source.len());
        let (zero, hole) = (random.one_in(2), random.one_in(2));
        if zero {
            source[at..end].fill(0);
        }
        extents.push((end as u64, !(zero && hole)));
        at = end;
    }
    extents
}

fn any_order(random: &mut Random) -> When {
    match random.below(3) {
        0 => When::Inside,
        1 => When::Reversed,
        _ => When::Shuffled(random.clone()),
    }
}

fn blake3_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn random_bytes(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    Random::new(seed).fill(&mut bytes);
    bytes
}

fn small(chunk: u32, depth: u32) -> Plan {
    Plan { chunk: Some(chunk), depth: Some(depth), ..Plan::default() }
}

#[test]
fn any_copy_is_exact_and_touches_nothing_else() {
    for (seed, mut random) in seeds(150) {
        let granularity = [1, 512, 4096][random.below(3) as usize];
        let blocks = |random: &mut Random, bytes: u64| random.below(bytes / granularity + 1) * granularity;
        let (before, after) = (blocks(&mut random, 9000), blocks(&mut random, 9000));
        let bytes = blocks(&mut random, 600_000);
        let skipped = blocks(&mut random, 20_000);
        let mut source = random_bytes(seed, skipped + bytes + blocks(&mut random, 9000));
        let extents = punch(&mut random, &mut source, 200_000);
        let old = random_bytes(!seed, before + bytes + after);
        let mut expected = old.clone();
        expected[before as usize..][..bytes as usize]
            .copy_from_slice(&source[skipped as usize..][..bytes as usize]);
        let mut pair = Pair::new(source, old);
        pair.source.extents = extents;
        pair.source.when = When::Shuffled(random.clone());
        pair.destination.when = any_order(&mut random);
        for capability in [&mut pair.source.capability, &mut pair.destination.capability] {
            capability.granularity = if random.one_in(3) { 1 } else { granularity as u32 };
            capability.max_transfer_bytes = [4096, 5000, 40_000, 1 << 20][random.below(4) as usize];
        }
        pair.can_zero(random.one_in(2));
        if random.one_in(4) {
            pair.refuse_zeroes(random.below(4) as usize);
        }
        let plan = Plan {
            src_offset: skipped,
            dst_offset: before,
            size: Some(bytes),
            chunk: Some(4096 * (1 + random.below(16) as u32)),
            depth: Some(1 + random.below(9) as u32),
            verify: random.one_in(2),
            sparse: !random.one_in(4),
            ..Plan::default()
        };
        let report = pair.copy(&plan).unwrap_or_else(|error| panic!("seed {seed}: {error}: {plan:?}"));
        assert!(pair.destination.data == expected, "seed {seed}: {plan:?}");
        assert_eq!((report.bytes, report.verified), (bytes, plan.verify), "seed {seed}");
        let copied = &expected[before as usize..][..bytes as usize];
        let blake3 = plan.verify.then(|| blake3_of(copied));
        assert_eq!(report.blake3, blake3, "seed {seed}: {plan:?}");
        assert_eq!(report.write.bytes + report.zero_bytes_skipped, bytes, "seed {seed}");
        // A verification reads both ends where no digests exist.
        let ends = 1 + usize::from(plan.verify);
        let requests = ends * plan.depth.unwrap() as usize * plan.chunk.unwrap().div_ceil(4096) as usize;
        let log = pair.log.borrow();
        assert!(report.depth_max <= plan.depth.unwrap() && log.requests_max <= requests, "seed {seed}");
        assert_eq!(log.count('d', "flush"), 1, "seed {seed}");
        assert_eq!(log.count('s', "write") + log.count('s', "write-zeroes"), 0, "seed {seed}");
    }
}

#[test]
fn one_flush_after_all_writes() {
    let mut pair = Pair::new(random_bytes(3, 300 * K), vec![0; 300 * 1024]);
    pair.destination.capability.volatile_cache = false;
    pair.copy(&small(16 * KC, 4)).unwrap();
    let log = pair.log.borrow();
    assert_eq!(log.count('d', "flush"), 1);
    let flushed = matches!(log.did[log.did.len() - 2], Did::Submitted { verb: "flush", .. });
    assert!(flushed, "nothing comes later");
    assert!(matches!(log.did.last(), Some(Did::Completed { verb: "flush", .. })));
}

#[test]
fn reads_and_writes_overlap_within_the_depth() {
    let mut pair = Pair::new(random_bytes(4, 640 * K), vec![0; 640 * 1024]);
    pair.source.when = When::Shuffled(Random::new(1));
    pair.destination.when = When::Shuffled(Random::new(2));
    let report = pair.copy(&small(16 * KC, 4)).unwrap();
    assert_eq!(report.depth_max, 4);
    let log = pair.log.borrow();
    assert_eq!(log.requests_max, 4, "one request a chunk");
    assert!(log.overlaps > 20, "{} of 80 requests met the other direction", log.overlaps);
}

#[test]
fn depth_one_never_overlaps() {
    let mut pair = Pair::new(random_bytes(4, 100 * K), vec![0; 100 * 1024]);
    pair.copy(&small(16 * KC, 1)).unwrap();
    assert_eq!(pair.log.borrow().overlaps, 0);
    assert_eq!(pair.log.borrow().requests_max, 1);
}

#[test]
fn delayed_ends_are_kept_busy_together() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let delay = Duration::from_millis(2);
    let pattern = Arc::new(PatternMedium::new(1 << 20, 7));
    let memory = Arc::new(MemoryMedium::new(1 << 20, false).unwrap());
    let mut source = block::layer::DelayMedium::new(pattern, delay).attach(&mut io).unwrap();
    let mut destination = block::layer::DelayMedium::new(memory, delay).attach(&mut io).unwrap();
    let plan = Plan { verify: true, ..small(32 * KC, 4) };
    let report = copy(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap();
    assert!(report.verified && report.depth_max == 4);
    assert_eq!((report.read.ops, report.write.ops), (32, 32));
    // The busy times of both sides add up to more than the duration: they overlapped.
    let copying = report.seconds - report.flush_seconds;
    assert!(report.read.latency.p50_us >= 1900 && report.write.latency.max_us >= 1900, "{report:?}");
    assert!(report.read.busy_seconds <= copying + 1e-3 && report.write.busy_seconds <= copying + 1e-3);
    assert_eq!(io.pool().borrowed(), 0);
}

#[test]
fn a_write_error_stops_reading_and_is_reported_where_it_was() {
    let mut pair = Pair::new(random_bytes(5, 1000 * K), vec![0; 1004 * 1024]);
    pair.destination.when = When::Inside;
    pair.destination.faults.push(Fault { verb: "write", nth: 5, kind: IoErrorKind::NoSpace, on: false });
    let error = pair.copy(&Plan { dst_offset: 4 * K, ..small(20 * KC, 3) }).unwrap_err();
    let log = pair.log.borrow();
    let failed = log.did.iter().find_map(|did| match did {
        Did::Completed { offset, failed: true, .. } => Some(*offset),
        _ => None,
    });
    let CopyError::Write { offset, length, error } = error else { panic!("{error}") };
    assert_eq!((Some(offset), length, error.kind), (failed, 20 * K, IoErrorKind::NoSpace));
    let at = log.did.iter().position(|did| matches!(did, Did::Completed { failed: true, .. })).unwrap();
    let later = log.did[at..].iter().filter(|did| matches!(did, Did::Submitted { .. })).count();
    assert_eq!(later, 0, "nothing is begun after the error");
    assert_eq!(log.count('d', "flush"), 0, "a failed copy is not made to look finished");
}

#[test]
fn any_error_drains_what_is_in_flight_and_begins_nothing() {
    for (seed, mut random) in seeds(100) {
        let mut pair = Pair::new(random_bytes(seed, 400 * K), vec![0; 400 * 1024]);
        pair.source.when = When::Shuffled(random.clone());
        pair.destination.when = When::Shuffled(Random::new(seed + 1000));
        pair.source.capability.max_transfer_bytes = 8192;
        let (end, verb) = if random.one_in(2) { ('s', "read") } else { ('d', "write") };
        let failing = if end == 's' { &mut pair.source } else { &mut pair.destination };
        let nth = random.below(20) as usize;
        failing.faults.push(Fault { verb, nth, kind: IoErrorKind::Medium, on: random.one_in(2) });
        let error = pair.copy(&small(16 * KC, 6)).unwrap_err();
        let log = pair.log.borrow();
        let at = log.did.iter().position(|did| matches!(did, Did::Completed { failed: true, .. })).unwrap();
        let Did::Completed { offset: first, .. } = log.did[at] else { unreachable!() };
        match error {
            CopyError::Read { end: End::Source, offset, length: 8192, .. } => {
                assert!(end == 's' && offset == first);
            }
            CopyError::Write { offset, length: 16384, .. } => assert!(end == 'd' && offset == first),
            other => panic!("seed {seed}: {other}"),
        }
        // The requests still submitted: the other half of the chunk whose first half failed inside `submit`, or a chunk
        // whose read completed in the same turn and was processed first.
        let later: Vec<_> = log.did[at..].iter().filter(|did| matches!(did, Did::Submitted { .. })).collect();
        let begun = |did: &&Did| match did {
            Did::Submitted { verb: "read", offset, .. } => *offset == first + 8192,
            Did::Submitted { verb, .. } => *verb == "write",
            Did::Completed { .. } => false,
        };
        assert!(later.len() <= 1 && later.iter().all(begun), "seed {seed}: {later:?}");
    }
}

#[test]
fn endless_completions_inside_submit_do_not_shut_the_observer_out() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut source = block::NullMedium::new(u64::MAX, false).attach(&mut io).unwrap();
    let mut destination = block::NullMedium::new(u64::MAX, false).attach(&mut io).unwrap();
    let plan = Plan { sparse: false, ..small(4096, 4) };
    let mut limit = None;
    let stop = &mut |progress: &Progress| {
        limit.get_or_insert(progress.limited_by);
        assert!(progress.eta.is_some() || progress.phase == Phase::Flush);
        Control::Stop
    };
    match copy(&mut io, &mut *source, &mut *destination, &plan, stop).unwrap_err() {
        CopyError::Interrupted { phase: Phase::Copy, bytes_safe } => assert!(bytes_safe > 0),
        other => panic!("{other}"),
    }
    assert_eq!(limit, Some(Limit::Cpu));
}

#[test]
fn the_part_of_a_chunk_that_failed_is_named() {
    let mut pair = Pair::new(random_bytes(5, 64 * K), vec![0; 64 * 1024]);
    pair.source.capability.max_transfer_bytes = 8192;
    pair.source.when = When::Inside;
    pair.source.faults.push(Fault { verb: "read", nth: 6, kind: IoErrorKind::Medium, on: false });
    let found = pair.copy(&small(32 * KC, 1)).unwrap_err();
    let CopyError::Read { end: End::Source, offset, length, error } = found else { panic!("{found}") };
    assert_eq!((offset, length, error.kind), (6 * 8192, 8192, IoErrorKind::Medium));
    assert_eq!(pair.destination.data[..32 << 10], pair.source.data[..32 << 10]);
    assert!(pair.destination.data[32 << 10..].iter().all(|byte| *byte == 0), "no torn chunk is written");
}

#[test]
fn a_flush_error_is_an_error_and_not_repeated() {
    let mut pair = Pair::new(random_bytes(6, 100 * K), vec![0; 100 * 1024]);
    pair.destination.faults.push(Fault { verb: "flush", nth: 0, kind: IoErrorKind::FlushFailed, on: false });
    let error = pair.copy(&Plan { verify: true, ..small(16 * KC, 4) }).unwrap_err();
    assert!(matches!(error, CopyError::Flush(error) if error.kind == IoErrorKind::FlushFailed));
    assert_eq!(pair.log.borrow().count('d', "flush"), 1);
    assert_eq!(pair.log.borrow().count('d', "read"), 0, "there is nothing to verify");
}

#[test]
fn a_lost_cache_is_filled_again_durably_and_once() {
    for (on, flushes) in [(false, 2), (true, 2)] {
        let mut pair = Pair::new(random_bytes(8, 100 * K), vec![0; 100 * 1024]);
        pair.destination.faults.push(Fault { verb: "flush", nth: 0, kind: IoErrorKind::CacheLost, on });
        let result = pair.copy(&Plan { verify: true, ..small(16 * KC, 4) });
        assert_eq!(pair.log.borrow().count('d', "flush"), flushes);
        assert_eq!((pair.log.borrow().count('d', "write"), pair.log.borrow().durable_writes), (14, 7));
        match result {
            Ok(report) => assert!(!on && report.copied_again && report.verified && report.chunks == 7),
            Err(CopyError::Flush(error)) => assert!(on && error.kind == IoErrorKind::CacheLost),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn an_empty_copy_still_flushes() {
    let mut pair = Pair::new(random_bytes(6, 10 * K), vec![7; 10]);
    let report = pair.copy(&Plan { src_offset: 10 * K, verify: true, ..Plan::default() }).unwrap();
    assert_eq!((report.bytes, report.chunks), (0, 0));
    assert_eq!(pair.log.borrow().count('d', "flush"), 1);
    assert_eq!(pair.destination.data, vec![7; 10]);
}

#[test]
fn verification_finds_the_first_chunk_that_rotted() {
    for (seed, mut random) in seeds(40) {
        let bytes = 400 * K + 5;
        let mut pair = Pair::new(random_bytes(seed, bytes), vec![0; bytes as usize + 4096]);
        pair.source.data[96 << 10..200 << 10].fill(0);
        if random.one_in(2) {
            pair.source.extents = vec![(96 * K, true), (200 * K, false)];
        }
        pair.destination.when = When::Shuffled(random.clone());
        let rots: BTreeSet<_> = (0..=random.below(3)).map(|_| random.below(bytes)).collect();
        pair.destination.rots = rots.iter().map(|rot| 4096 + rot).collect();
        let plan = Plan { dst_offset: 4096, verify: true, ..small(8 * KC, 6) };
        let found = pair.copy(&plan).unwrap_err();
        let CopyError::Verify { offset, length } = found else { panic!("seed {seed}: {found}") };
        let first = rots.first().unwrap();
        let chunk = first / (8 * K) * 8 * K;
        let expected = (4096 + chunk, (8 * K).min(bytes - chunk));
        // The hole was cut from its own start, a multiple of 8 KiB, so the chunks are the same.
        assert_eq!((offset, length), expected, "seed {seed}: {rots:?}");
    }
}

#[test]
fn verification_finds_a_flipped_bit_of_the_fault_layer() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut source = PatternMedium::new(1 << 20, 7).attach(&mut io).unwrap();
    let memory = Arc::new(MemoryMedium::new(1 << 20, false).unwrap());
    let rule = FaultRule::parse("corrupt-write@300K+1:count=1").unwrap();
    let mut destination = FaultMedium::new(memory, rule).attach(&mut io).unwrap();
    let plan = Plan { verify: true, ..small(64 * KC, 4) };
    match copy(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap_err() {
        CopyError::Verify { offset, length } => assert_eq!((offset, length), (256 * K, 64 * K)),
        other => panic!("{other}"),
    }
    let found = compare(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap();
    assert_eq!(found.first_difference, Some((256 + 32) * K), "the layer flips the middle");
    // The same copy again, without the fault.
    copy(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap();
    let found = compare(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap();
    assert_eq!(found.first_difference, None);
    assert_eq!(io.pool().borrowed(), 0);
}

#[test]
fn a_last_byte_alone_makes_a_chunk_data() {
    let chunk = 64 * K as usize;
    for place in [0, 1, 4095, chunk / 2, chunk - 1] {
        let mut source = vec![0; 3 * chunk];
        source[chunk + place] = 1;
        let mut pair = Pair::new(source.clone(), vec![0xee; 3 * chunk]);
        let report = pair.copy(&Plan { verify: true, ..small(64 * KC, 2) }).unwrap();
        assert!(pair.destination.data == source, "{place}");
        assert_eq!((report.zero_bytes_skipped, report.write.bytes), (2 * chunk as u64, chunk as u64));
    }
}

#[test]
fn holes_are_not_read_and_old_data_does_not_survive() {
    for (named, sparse) in [(true, true), (false, true), (true, false)] {
        let mut source = vec![0; 1 << 20];
        source[..4096].fill(5);
        let mut pair = Pair::new(source.clone(), random_bytes(8, 1 << 20));
        pair.source.extents = vec![(4096, true), (1 << 20, false)];
        pair.can_zero(named);
        let report = pair.copy(&Plan { sparse, verify: true, ..small(64 * KC, 2) }).unwrap();
        assert!(pair.destination.data == source);
        let hole = (1 << 20) - 4096;
        let log = pair.log.borrow();
        if sparse {
            assert_eq!(report.read.bytes, 4096);
            assert_eq!(
                report.data_bytes,
                if named { 4096 } else { 1 << 20 },
                "zeroes that are written are moved"
            );
            assert_eq!(report.zero_bytes_skipped, if named { hole } else { 0 });
            assert_eq!(log.count('d', "write-zeroes"), usize::from(named));
        } else {
            assert_eq!((report.read.bytes, report.zero_bytes_skipped), (1 << 20, 0));
            assert_eq!(report.data_bytes, 1 << 20);
            assert_eq!(log.count('d', "write-zeroes"), 0);
        }
    }
}

#[test]
fn a_destination_that_cannot_zero_after_all_gets_zeroes_written() {
    let mut pair = Pair::new(vec![0; 1 << 20], random_bytes(8, 1 << 20));
    pair.source.extents = vec![(512 * K, false), (1 << 20, true)];
    pair.refuse_zeroes(0);
    let report = pair.copy(&Plan { verify: true, ..small(64 * KC, 2) }).unwrap();
    assert!(pair.destination.data.iter().all(|byte| *byte == 0));
    assert_eq!((report.zero_bytes_skipped, report.write.bytes), (0, 1 << 20));
    assert!(pair.log.borrow().count('d', "write-zeroes") <= 2, "it is not asked again and again");
}

#[test]
fn zeroing_that_fails_is_a_write_error() {
    let mut pair = Pair::new(vec![0; 1 << 20], random_bytes(8, 1 << 20));
    pair.destination.faults.push(Fault {
        verb: "write-zeroes",
        nth: 3,
        kind: IoErrorKind::Medium,
        on: false,
    });
    assert!(matches!(pair.copy(&small(64 * KC, 2)), Err(CopyError::Write { length: 65536, .. })));
}

#[test]
fn the_rate_is_kept_by_the_loops_clock() {
    let mut pair = Pair::new(random_bytes(9, 80 * K), vec![0; 80 * 1024]);
    (pair.source.when, pair.destination.when) = (When::Inside, When::Inside);
    let rate = 800 * K;
    let report = pair.copy(&Plan { rate: Some(rate).into(), ..small(8 * KC, 8) }).unwrap();
    // Ten chunks of 10 ms each: the first starts immediately, each other one when the earlier ones are paid for.
    let log = pair.log.borrow();
    assert_eq!(log.read_times.len(), 10);
    for (index, time) in log.read_times.iter().enumerate() {
        let earliest = Duration::from_millis(10) * index as u32;
        assert!(*time - log.read_times[0] >= earliest, "read {index} at {time:?}");
    }
    assert!(report.rate_waits >= 1 && report.rate_waits <= 9, "{} waits", report.rate_waits);
    assert_eq!(report.limited_by, Limit::Rate);
}

#[test]
fn a_rate_raised_by_the_observer_ends_a_copy_that_would_last_for_hours() {
    let mut pair = Pair::new(random_bytes(9, 80 * K), vec![0; 80 * 1024]);
    let limit = RateLimit::from(Some(1));
    let plan = Plan { rate: limit.clone(), ..small(8 * KC, 8) };
    let mut seen = Vec::new();
    let report = pair.copy_observed(&plan, &mut |progress| {
        seen.push(progress.rate_limit);
        limit.set(None).unwrap();
        Control::Continue
    });
    assert_eq!(report.unwrap().bytes, 80 * K);
    assert_eq!((seen.first(), seen.last()), (Some(&Some(1)), Some(&None)));
}

#[test]
fn an_interrupted_copy_says_how_far_it_is_safe() {
    let mut pair = Pair::new(random_bytes(10, 800 * K), vec![0; 800 * 1024]);
    (pair.source.when, pair.destination.when) = (When::Inside, When::Inside);
    let (mut calls, mut seen) = (Vec::new(), 0);
    let plan = Plan { rate: Some(200 * K).into(), verify: true, ..small(8 * KC, 4) };
    let error = pair.copy_observed(&plan, &mut |progress| {
        calls.push(progress.phase);
        if progress.phase == Phase::Copy {
            assert_eq!(progress.total, 800 * K);
            seen = progress.bytes;
        }
        Control::Stop
    });
    let found = error.unwrap_err();
    let CopyError::Interrupted { phase: Phase::Copy, bytes_safe } = found else { panic!("{found}") };
    assert!(bytes_safe >= seen && bytes_safe > 0 && bytes_safe < 800 * K, "{bytes_safe} of {seen}");
    let safe = bytes_safe as usize;
    assert_eq!(pair.destination.data[..safe], pair.source.data[..safe]);
    assert_eq!(calls, [Phase::Copy, Phase::Flush]);
    assert_eq!(pair.log.borrow().count('d', "flush"), 1, "what is said to be safe was flushed");
    assert_eq!(pair.log.borrow().count('d', "read"), 0, "no verification");
}

#[test]
fn each_phase_ends_with_an_observation() {
    let mut pair = Pair::new(random_bytes(10, 80 * K), vec![0; 80 * 1024]);
    let mut phases = Vec::new();
    let mut watch = |progress: &Progress| {
        assert_eq!(progress.bytes, progress.total);
        phases.push(progress.phase);
        Control::Continue
    };
    pair.copy_observed(&Plan { verify: true, ..small(8 * KC, 4) }, &mut watch).unwrap();
    assert_eq!(phases, [Phase::Copy, Phase::Flush, Phase::Verify]);
}

#[test]
fn stop_at_the_end_of_the_copy_skips_only_the_verification() {
    for verify in [false, true] {
        let mut pair = Pair::new(random_bytes(10, 80 * K), vec![0; 80 * 1024]);
        let plan = Plan { verify, ..small(8 * KC, 4) };
        let result = pair.copy_observed(&plan, &mut |_| Control::Stop);
        assert!(pair.destination.data == pair.source.data);
        assert_eq!(pair.log.borrow().count('d', "flush"), 1);
        match result {
            Ok(report) => assert!(!verify && !report.verified),
            Err(CopyError::Interrupted { phase: Phase::Verify, bytes_safe }) => {
                assert!(verify && bytes_safe == 80 * K);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_small_pool_slows_but_does_not_stop() {
    // Memory for two areas of 1 MiB; then for no area of 4 MiB.
    for (chunk, limit) in [(1024 * KC, 2 << 20), (4096 * KC, 3 << 20)] {
        let bytes = 9 << 20;
        let limits = PoolLimits { bytes_max: limit };
        let mut pair = Pair::with_limits(random_bytes(11, bytes), vec![0; bytes as usize], limits);
        let report = pair.copy(&Plan { verify: true, ..small(chunk, 8) }).unwrap();
        assert!(pair.destination.data == pair.source.data);
        assert!(report.depth_max <= 2 && report.chunk <= chunk.min(2 << 20), "{report:?}");
    }
}

#[test]
fn verification_after_the_chunk_shrank_on_the_way() {
    let bytes = 512 * K;
    let limits = PoolLimits { bytes_max: 2 << 20 };
    let mut pair = Pair::with_limits(random_bytes(16, bytes), vec![0; bytes as usize], limits);
    let pool = pair.io.pool().clone();
    // One region of small areas, held by one of them; the other region is for chunks.
    let _small = pool.take(4096);
    let mut hogs = Vec::new();
    let plan = Plan { verify: true, rate: Some(1 << 20).into(), ..small(64 * KC, 2) };
    let report = pair.copy_observed(&plan, &mut |progress| {
        match progress.phase {
            Phase::Copy if progress.bytes < progress.total => {
                hogs.extend(std::iter::from_fn(|| pool.take(65536)));
            }
            _ => hogs.clear(),
        }
        Control::Continue
    });
    let report = report.unwrap();
    assert!(report.chunk < 64 * KC && report.chunks > 8, "{report:?}");
    assert!(report.verified && pair.destination.data == pair.source.data);
}

#[test]
fn no_memory_at_all_is_an_error() {
    let mut pair =
        Pair::with_limits(random_bytes(11, 10 * K), vec![0; 10240], PoolLimits { bytes_max: 1 << 20 });
    let hogs: Vec<_> = std::iter::from_fn(|| pair.io.pool().take(4096)).collect();
    assert!(!hogs.is_empty());
    match pair.copy(&Plan::default()).unwrap_err() {
        CopyError::Loop(error) => assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory),
        other => panic!("{other}"),
    }
}

#[test]
fn comparing_finds_the_first_difference_of_several() {
    for (seed, mut random) in seeds(60) {
        let bytes = 1 + random.below(300 * K);
        let data = random_bytes(seed, bytes);
        let offset = random.below(5000);
        let mut pair = Pair::new(data.clone(), [random_bytes(seed, offset), data].concat());
        pair.source.when = When::Shuffled(random.clone());
        pair.destination.when = if random.one_in(2) { When::Reversed } else { When::Inside };
        pair.source.capability.max_transfer_bytes = 10_000;
        let plan = Plan {
            dst_offset: offset,
            ..small(4096 * (1 + random.below(4) as u32), 1 + random.below(9) as u32)
        };
        assert_eq!(pair.compare(&plan).unwrap(), None, "seed {seed}");
        let places: BTreeSet<_> = (0..=random.below(4)).map(|_| random.below(bytes)).collect();
        for place in &places {
            pair.destination.data[(offset + place) as usize] ^= 1 << random.below(8);
        }
        assert_eq!(pair.compare(&plan).unwrap(), places.first().copied(), "seed {seed}");
        let log = pair.log.borrow();
        let changed = log.did.iter().any(|did| matches!(did, Did::Submitted { verb, .. } if *verb != "read"));
        assert!(!changed, "a comparison only reads");
    }
}

#[test]
fn comparing_different_sizes() {
    let data = random_bytes(12, 100 * K + 3);
    let mut pair = Pair::new(data.clone(), data[..90 * 1024].to_vec());
    assert_eq!(pair.compare(&small(16 * KC, 4)).unwrap(), Some(90 * K));
    assert_eq!(pair.compare(&Plan { size: Some(90 * K), ..Plan::default() }).unwrap(), None);
    assert!(matches!(
        pair.compare(&Plan { size: Some(90 * K + 1), ..Plan::default() }),
        Err(CopyError::Refused(Refusal::DestinationTooSmall { .. }))
    ));
    pair.destination.data[77] ^= 1;
    assert_eq!(pair.compare(&small(16 * KC, 4)).unwrap(), Some(77));
    // A file of odd length against blocks: the rest of the last block is ignored.
    let mut pair = Pair::new(data.clone(), [&data[..], &[1; 509]].concat());
    pair.destination.capability.granularity = 512;
    assert_eq!(pair.compare(&small(16 * KC, 4)).unwrap(), Some(100 * K + 3));
    assert_eq!(pair.compare(&Plan { size: Some(100 * K + 3), ..Plan::default() }).unwrap(), None);
}

#[test]
fn comparing_holes_reads_only_where_there_is_data() {
    let mut pair = Pair::new(vec![0; 1 << 20], vec![0; 1 << 20]);
    pair.source.extents = vec![(512 * K, false), (1 << 20, true)];
    pair.destination.extents = vec![(1 << 20, false)];
    assert_eq!(pair.compare(&small(64 * KC, 4)).unwrap(), None);
    assert_eq!(pair.log.borrow().count('s', "read"), 8);
    pair.destination.data[700 << 10] = 1;
    pair.destination.extents = vec![(600 * K, false)];
    assert_eq!(pair.compare(&small(64 * KC, 4)).unwrap(), Some(700 * K));
    // A hole at only one end is read.
    pair.source.extents = vec![(1 << 20, false)];
    assert_eq!(pair.compare(&small(64 * KC, 4)).unwrap(), Some(700 * K));
}

#[test]
fn a_read_error_of_a_comparison_names_the_end() {
    let data = random_bytes(13, 100 * K);
    let mut pair = Pair::new(data.clone(), data);
    pair.destination.faults.push(Fault { verb: "read", nth: 2, kind: IoErrorKind::Medium, on: false });
    assert!(matches!(
        pair.compare(&small(16 * KC, 3)),
        Err(CopyError::Read { end: End::Destination, length: 16384, .. })
    ));
}

#[test]
fn the_same_storage_is_refused_before_anything_happens() {
    let mut pair = Pair::new(random_bytes(1, 10 * K), vec![0; 10 * 1024]);
    let identity = Identity::File { device: 1, inode: 2, offset: 0 };
    pair.source.identity = identity.clone();
    pair.destination.identity = identity;
    assert!(matches!(pair.copy(&Plan::default()), Err(CopyError::Refused(Refusal::Same))));
    pair.destination.identity = Identity::File { device: 1, inode: 3, offset: 0 };
    pair.destination.capability.read_only = true;
    assert!(matches!(pair.copy(&Plan::default()), Err(CopyError::Refused(Refusal::ReadOnly))));
    assert!(pair.log.borrow().did.is_empty());
}

#[test]
fn ranges_at_the_end_of_a_huge_endpoint() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let size = u64::MAX / 4096 * 4096;
    let mut source = PatternMedium::new(size, 1).attach(&mut io).unwrap();
    let mut destination = block::NullMedium::new(size, false).attach(&mut io).unwrap();
    let plan = Plan { src_offset: size - 100_000, dst_offset: size - 100_000, ..Plan::default() };
    assert_eq!(copy(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap().bytes, 100_000);
}

#[test]
fn file_to_file_with_holes_and_an_odd_end() {
    let directory = std::env::temp_dir().join(format!("hikyaku-mover-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (from, to) = (directory.join("from"), directory.join("to"));
    let mut data = vec![0; (3 << 20) + 777];
    Random::new(14).fill(&mut data[..100_000]);
    let end = data.len();
    Random::new(15).fill(&mut data[end - 5000..]);
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(&from).unwrap();
        file.set_len(end as u64).unwrap();
        file.write_all_at(&data[..100_000], 0).unwrap();
        file.write_all_at(&data[end - 5000..], end as u64 - 5000).unwrap();
    }
    std::fs::write(&to, vec![0xee; end + 1000]).unwrap();
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let open = |io: &mut Io, path: &std::path::Path, writable| -> Box<dyn Endpoint> {
        let spec = block::Spec::parse(&format!("file:{}", path.display())).unwrap();
        let options =
            block::OpenOptions { writable, request_alignment: crate::UNIT_BYTES_MIN, allow_in_use: false };
        block::open(&spec, &options).unwrap().attach(io).unwrap()
    };
    let mut source = open(&mut io, &from, false);
    let mut destination = open(&mut io, &to, true);
    let plan = Plan { verify: true, ..small(64 * KC, 4) };
    let report = copy(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap();
    assert!(report.verified && report.zero_bytes_skipped > 2 << 20, "{report:?}");
    let found = compare(&mut io, &mut *source, &mut *destination, &plan, &mut go_on).unwrap();
    assert_eq!(found.first_difference, Some(end as u64), "the destination is longer");
    drop((source, destination));
    let copied = std::fs::read(&to).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(copied[..end] == data[..] && copied[end..].iter().all(|byte| *byte == 0xee));
}
