//! Claims, the content that survives a power loss, and resumed copies.

use super::*;
use crate::scripted::Bad;
use crate::{Area, Journal, Map, Status, copy_with_journal};

/// Checks each claim: everything claimed as finished must survive a power loss at this moment.
pub(super) struct Claims {
    source: Vec<u8>,
    durable: Rc<RefCell<Vec<u8>>>,
    pub(super) maps: Vec<Map>,
    /// Fails the claim with this number.
    fails: usize,
    every: Duration,
}

impl Journal for Claims {
    fn claim(&mut self, map: &Map) -> Result<(), String> {
        for entry in map.entries().filter(|entry| entry.status == Status::Finished) {
            let range = entry.start as usize..entry.end as usize;
            assert!(self.durable.borrow()[range.clone()] == self.source[range], "{entry:?} is not durable");
        }
        self.maps.push(map.clone());
        if self.maps.len() > self.fails { Err("no space left".to_owned()) } else { Ok(()) }
    }

    fn every(&self) -> Duration {
        self.every
    }
}

impl Pair {
    fn shuffled(seed: u64, bytes: u64) -> Self {
        let mut pair = Self::new(random_bytes(seed, bytes), random_bytes(!seed, bytes));
        pair.source.when = When::Shuffled(Random::new(seed + 1));
        pair.destination.when = When::Shuffled(Random::new(seed + 2));
        pair
    }

    pub(super) fn claims(&self) -> Claims {
        let (source, durable) = (self.source.data.clone(), Rc::clone(&self.destination.durable));
        Claims { source, durable, maps: Vec::new(), fails: usize::MAX, every: Duration::ZERO }
    }

    pub(super) fn copy_claiming(&mut self, plan: &Plan, claims: &mut Claims) -> Result<Report, CopyError> {
        self.copy_claiming_observed(plan, &mut go_on, claims)
    }

    pub(super) fn copy_claiming_observed(
        &mut self,
        plan: &Plan,
        observer: &mut dyn FnMut(&Progress) -> Control,
        claims: &mut Claims,
    ) -> Result<Report, CopyError> {
        self.drained(|pair| {
            copy_with_journal(&mut pair.io, &mut pair.source, &mut pair.destination, plan, observer, claims)
        })
    }

    /// Copies with a fault until it fails; returns the pair after a power cut, and the last map.
    pub(super) fn cut_off(mut self, plan: &Plan, seed: u64, random: &mut Random) -> (Self, Map) {
        let mut claims = self.claims();
        let failed = self.copy_claiming(plan, &mut claims).is_err();
        let bytes = self.source.data.len() as u64;
        let map = claims.maps.pop().unwrap_or_else(|| Map::new(bytes));
        assert!(failed || map.safe() == bytes, "seed {seed}");
        let survived = self.after_power_cut(random);
        (Self::new(self.source.data, survived), map)
    }
}

/// One of `verbs` that fails from a random request on.
pub(super) fn lasting_fault(random: &mut Random, verbs: [&'static str; 3], requests: u64) -> Fault {
    let verb = verbs[random.below(3) as usize];
    let kind = if verb == "flush" { IoErrorKind::FlushFailed } else { IoErrorKind::Other };
    Fault { verb, nth: random.below(requests) as usize, kind, on: true }
}

fn flush_lost(nth: usize) -> Fault {
    Fault { verb: "flush", nth, kind: IoErrorKind::CacheLost, on: false }
}

#[test]
fn nothing_is_claimed_before_it_is_flushed() {
    for seed in 1..=60 {
        let mut pair = Pair::shuffled(seed, 400 * K + 17);
        pair.source.data[100 << 10..200 << 10].fill(0);
        pair.source.extents = vec![(100 * K, true), (200 * K, false)];
        let mut claims = pair.claims();
        let report = pair.copy_claiming(&small(8 * KC, 4), &mut claims).unwrap();
        assert!(pair.destination.data == pair.source.data);
        let maps = &claims.maps;
        assert!(maps.len() > 5 && report.claims == maps.len() as u64, "seed {seed}: {} claims", maps.len());
        assert_eq!(maps.last().unwrap().safe(), 400 * K + 17);
        let grows = |two: &[Map]| two[0].bytes(Status::Finished) <= two[1].bytes(Status::Finished);
        assert!(maps.windows(2).all(grows), "seed {seed}");
        assert!(pair.log.borrow().overlaps > 5, "seed {seed}: copying goes on during flushes");
    }
}

#[test]
fn after_a_power_cut_anywhere_the_rest_is_copied_and_nothing_else() {
    for (seed, mut random) in seeds(120) {
        let bytes = 300 * K + random.below(9000);
        let mut pair = Pair::shuffled(seed, bytes);
        let fault = lasting_fault(&mut random, ["write", "read", "flush"], 25);
        if fault.verb == "read" { &mut pair.source } else { &mut pair.destination }.faults.push(fault);
        let plan = small(8 * KC, 1 + random.below(8) as u32);
        let (mut pair, map) = pair.cut_off(&plan, seed, &mut random);
        let mut claims = pair.claims();
        let plan = Plan { map: Some(map.clone()), verify: random.one_in(2), ..small(16 * KC, 3) };
        let report = pair.copy_claiming(&plan, &mut claims).unwrap();
        assert!(pair.destination.data == pair.source.data, "seed {seed}");
        assert_eq!(report.resumed_bytes, map.bytes(Status::Finished), "seed {seed}");
        let log = pair.log.borrow();
        for did in &log.did {
            let Did::Submitted { verb, offset, length: 1.., .. } = did else { continue };
            let touched = map.at(*offset).status == Status::Finished;
            assert!(!touched || plan.verify && *verb == "read", "seed {seed}: {did:?} is finished");
        }
    }
}

#[test]
fn errors_and_interruptions_claim_all_that_was_finished() {
    let mut pair = Pair::shuffled(1, 400 * K);
    let mut claims = pair.claims();
    pair.destination.faults.push(Fault { verb: "write", nth: 20, kind: IoErrorKind::NoSpace, on: true });
    let error = pair.copy_claiming(&small(8 * KC, 4), &mut claims).unwrap_err();
    assert!(matches!(error, CopyError::Write { .. }), "{error}");
    assert_eq!(claims.maps.last().unwrap().bytes(Status::Finished), 20 * 8 * K);

    let mut pair = Pair::shuffled(2, 400 * K);
    let mut claims = pair.claims();
    let stop = &mut |_: &Progress| Control::Stop;
    let plan = Plan { rate: Some(100 * K).into(), ..small(8 * KC, 4) };
    let result = pair.copy_claiming_observed(&plan, stop, &mut claims);
    let Err(CopyError::Interrupted { phase: Phase::Copy, bytes_safe }) = result else { panic!("{result:?}") };
    assert_eq!(claims.maps.last().unwrap().safe(), bytes_safe);
    assert!(bytes_safe > 0 && bytes_safe < 400 * K);
}

#[test]
fn a_cache_lost_under_way_costs_only_what_was_not_flushed() {
    for seed in 1..=40 {
        let mut pair = Pair::shuffled(seed, 400 * K);
        pair.destination.faults.push(flush_lost(5));
        let mut claims = pair.claims();
        let plan = Plan { verify: true, ..small(8 * KC, 2) };
        let report = pair.copy_claiming(&plan, &mut claims).unwrap();
        assert!(report.copied_again && report.verified && pair.destination.data == pair.source.data);
        let writes = pair.log.borrow().count('d', "write");
        assert!((50..75).contains(&writes), "seed {seed}: {writes} of 50 writes");
    }
    let mut pair = Pair::shuffled(1, 400 * K);
    pair.destination.faults.extend([flush_lost(3), flush_lost(6)]);
    let mut claims = pair.claims();
    let error = pair.copy_claiming(&small(8 * KC, 2), &mut claims).unwrap_err();
    assert!(matches!(error, CopyError::Flush(error) if error.kind == IoErrorKind::CacheLost));
}

#[test]
fn a_journal_that_fails_ends_the_copy() {
    let mut pair = Pair::shuffled(1, 400 * K);
    let mut claims = Claims { fails: 2, ..pair.claims() };
    match pair.copy_claiming(&small(8 * KC, 2), &mut claims).unwrap_err() {
        CopyError::Journal(text) => assert_eq!(text, "no space left"),
        other => panic!("{other}"),
    }
    assert_eq!(claims.maps.len(), 3);
}

#[test]
fn verification_of_a_resumed_copy_reads_both_ends_where_it_must() {
    for (seed, mut random) in seeds(40) {
        let mut pair = Pair::shuffled(seed, 200 * K + 5);
        let mut map = Map::new(200 * K + 5);
        map.set(32 * K, 96 * K, Status::Finished);
        pair.destination.data[32 << 10..96 << 10].copy_from_slice(&pair.source.data[32 << 10..96 << 10]);
        let wrong = random.one_in(2);
        let place = 32 * K + random.below(64 * K);
        if wrong {
            pair.destination.data[place as usize] ^= 1;
        }
        let plan = Plan { map: Some(map), verify: true, ..small(8 * KC, 3) };
        match pair.copy(&plan) {
            Ok(report) => assert!(!wrong && report.verified && report.resumed_bytes == 64 * K),
            Err(CopyError::Verify { offset, length }) => {
                assert!(wrong && (offset..offset + length).contains(&place), "{offset} {length} {place}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_map_of_another_range_is_refused() {
    let mut pair = Pair::shuffled(1, 100 * K);
    let plan = Plan { map: Some(Map::new(100 * K + 512)), ..Plan::default() };
    assert!(matches!(pair.copy(&plan), Err(CopyError::Refused(Refusal::Map { .. }))));
    assert!(pair.log.borrow().did.is_empty());
}

#[test]
fn a_source_that_changes_under_the_copy_is_told() {
    for changes in [false, true] {
        let mut pair = Pair::shuffled(1, 100 * K);
        let contents = Rc::clone(&pair.source.contents);
        let report = pair.copy_observed(&Plan::default(), &mut |_| {
            if changes {
                *contents.borrow_mut() = "written".to_owned();
            }
            Control::Continue
        });
        assert_eq!(report.unwrap().source_changed, changes);
    }
}

/// Blocks of 512 bytes that contain a bad byte, joined.
fn bad_areas(bad: &[Bad], bytes: u64) -> Vec<Area> {
    let mut map = Map::new(bytes);
    for bad in bad.iter().filter(|bad| bad.times == usize::MAX) {
        let end = bad.end.next_multiple_of(512).min(bytes);
        map.set(bad.start / 512 * 512, end, Status::BadSector);
    }
    let areas = map.entries().filter(|entry| entry.status == Status::BadSector);
    areas.map(|area| Area { offset: area.start, bytes: area.bytes() }).collect()
}

#[test]
fn what_cannot_be_read_is_told_and_all_the_rest_is_copied() {
    for (seed, mut random) in seeds(80) {
        let bytes = 200 * K + random.below(5000);
        let mut pair = Pair::shuffled(seed, bytes);
        pair.source.capability.granularity = [1, 512][random.below(2) as usize];
        let bytes = if pair.source.capability.granularity == 512 { bytes / 512 * 512 } else { bytes };
        pair.source.capability.max_transfer_bytes = [5120, 1 << 20][random.below(2) as usize];
        for _ in 0..=random.below(6) {
            let start = random.below(bytes);
            let end = (start + 1 + random.below(3000)).min(bytes);
            // Some become readable: in the first pass, in trimming or scraping, or in the retry.
            let times = if random.one_in(3) { 1 + random.below(2) as usize } else { usize::MAX };
            pair.source.bad.push(Bad { start, end, times });
        }
        let areas = bad_areas(&pair.source.bad, bytes);
        let mut claims = Claims { every: Duration::from_secs(9), ..pair.claims() };
        let old = pair.destination.data.clone();
        let plan = Plan { size: Some(bytes), verify: true, skip_bad: true, ..small(16 * KC, 4) };
        let report = pair.copy_claiming(&plan, &mut claims).unwrap();
        let mut expected = pair.source.data.clone();
        expected[bytes as usize..].copy_from_slice(&old[bytes as usize..]);
        for area in &report.unreadable {
            let range = area.offset as usize..(area.offset + area.bytes) as usize;
            expected[range.clone()].copy_from_slice(&old[range]);
        }
        assert!(pair.destination.data == expected, "seed {seed}: nothing is written where nothing was read");
        let lasting = areas.iter().map(|area| area.bytes).sum::<u64>();
        assert_eq!((&report.unreadable, report.unreadable_bytes), (&areas, lasting), "seed {seed}");
        let map = claims.maps.last().unwrap();
        assert_eq!(map.bytes(Status::BadSector), lasting);
        assert_eq!(map.bytes(Status::Finished) + lasting, bytes);

        // The same copy again with the map: only the bad areas are tried, and they are readable now.
        pair.source.bad.clear();
        let reads = pair.log.borrow().count('s', "read");
        let plan = Plan { map: Some(map.clone()), verify: false, ..plan };
        let report = pair.copy_claiming(&plan, &mut claims).unwrap();
        assert_eq!(report.unreadable_areas, 0);
        assert!(pair.destination.data[..bytes as usize] == pair.source.data[..bytes as usize]);
        assert!(pair.log.borrow().count('s', "read") - reads <= lasting.div_ceil(512) as usize);
    }
}

#[test]
fn a_copy_that_keeps_no_map_stops_at_a_bad_sector_and_a_lost_connection_is_none() {
    let mut pair = Pair::shuffled(1, 100 * K);
    pair.source.bad.push(Bad { start: 5000, end: 5001, times: usize::MAX });
    assert!(matches!(pair.copy(&small(8 * KC, 2)), Err(CopyError::Read { end: End::Source, .. })));
    let mut pair = Pair::shuffled(1, 100 * K);
    pair.source.faults.push(Fault { verb: "read", nth: 3, kind: IoErrorKind::Unreachable, on: true });
    let plan = Plan { skip_bad: true, ..small(8 * KC, 2) };
    assert!(matches!(pair.copy(&plan), Err(CopyError::Read { end: End::Source, .. })));
}
