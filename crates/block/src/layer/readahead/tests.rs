//! Tests of the layer over storage whose requests are executed and answered one by one, in any order.

mod far;
mod model;

use std::time::Duration;

use area::{PoolLimits, Span};
use far::{Disk, Far, Scene};

use super::*;
use crate::{IoErrorKind, Kind};

const READ_BYTES: u64 = 64 << 10;
/// Twice what 1 Gbit/s holds at 50 ms.
const PATH_BYTES: u64 = 12_500_000;

/// Round trips that a reader with one request outstanding takes for `reads` reads of [`READ_BYTES`] in sequence.
fn round_trips(scene: &mut Scene, reads: u64) -> u64 {
    let before = scene.far.disk().rounds;
    for number in 0..reads {
        scene.read(0, number * READ_BYTES, READ_BYTES as usize).unwrap();
    }
    scene.far.disk().rounds - before
}

#[test]
fn a_reader_with_one_request_outstanding_takes_a_fortieth_of_the_round_trips() {
    let reads = 2000;
    let size_bytes = reads * READ_BYTES;
    let mut without = Scene::new(Far::new(size_bytes, PATH_BYTES), None, 1);
    assert_eq!(round_trips(&mut without, reads), reads);
    let mut with = Scene::new(Far::new(size_bytes, PATH_BYTES), Some(BYTES_DEFAULT), 1);
    let rounds = round_trips(&mut with, reads);
    assert!(rounds * 40 <= reads, "{rounds} round trips for {reads} reads");
    assert_eq!(with.far.disk().bytes_read, size_bytes, "every byte is read once");
    let most = with.far.disk().in_flight_max;
    assert!(most <= PATH_BYTES, "{most} bytes in flight");
}

#[test]
fn random_readers_read_at_most_two_percent_more() {
    for (size_bytes, length, seed) in
        [(64u64 << 20, 4096u64, 1u64), (1 << 20, 4096, 2), (64 << 20, 64 << 10, 3), (1 << 20, 512, 4)]
    {
        let mut scene = Scene::new(Far::new(size_bytes, PATH_BYTES), Some(BYTES_DEFAULT), 1);
        let mut random = Random(seed);
        for _ in 0..10_000 {
            let at = random.below(size_bytes / length) * length;
            scene.read(0, at, length as usize).unwrap();
        }
        scene.round();
        let (read, wanted) = (scene.far.disk().bytes_read, 10_000 * length);
        assert!(read * 100 <= wanted * 102, "{read} bytes for {wanted}, {size_bytes} in all, seed {seed}");
    }
}

/// A scene of which 64 KiB are read ahead of a reader of blocks, on endpoint 0.
fn reading_ahead() -> (Scene, u64) {
    let mut scene = Scene::new(Far::new(1 << 20, PATH_BYTES), Some(BYTES_DEFAULT), 2);
    let mut at = 0;
    while scene.chunks() < 4 {
        scene.read(0, at, 512).unwrap();
        at += 512;
    }
    scene.round();
    (scene, at)
}

type Make = fn(&Scene, u64) -> Kind;

#[test]
fn changes_through_any_endpoint_end_what_was_read_ahead() {
    let changes: [(&str, Make); 5] = [
        ("write", |scene, offset| Kind::Write { offset, from: scene.filled(512, 7), durable: false }),
        ("discard", |_, offset| Kind::Discard { offset, length: 512 }),
        ("zeroes", |_, offset| Kind::WriteZeroes { offset, length: 512, may_unmap: true }),
        ("a long one", |_, _| Kind::WriteZeroes { offset: 0, length: 1 << 20, may_unmap: false }),
        ("flush", |_, _| Kind::Flush),
    ];
    for (name, change) in changes {
        for endpoint in [0, 1] {
            let (mut scene, at) = reading_ahead();
            let before = scene.far.disk().requests;
            let kind = change(&scene, at);
            scene.run(endpoint, kind).unwrap();
            assert_eq!(scene.far.disk().requests, before + 1);
            let expected = scene.far.disk().bytes[at as usize];
            let read = scene.read(0, at, 512).unwrap();
            assert!(read.iter().all(|byte| *byte == expected), "{name} through {endpoint}");
            assert!(scene.far.disk().requests > before + 1, "{name} through {endpoint}: no read");
        }
    }
}

#[test]
fn a_change_elsewhere_ends_nothing() {
    let (mut scene, at) = reading_ahead();
    let from = scene.filled(512, 7);
    scene.run(1, Kind::Write { offset: 0, from, durable: false }).unwrap();
    let before = scene.far.disk().rounds;
    scene.read(0, at, 512).unwrap();
    assert_eq!(scene.far.disk().rounds, before, "it was there");
}

#[test]
fn unasked_it_reads_ahead_only_while_the_storage_has_no_other_writer() {
    let shared = Shared::new(BYTES_DEFAULT, false);
    let mut scene = Scene::of(Far::new(1 << 20, PATH_BYTES), Some(shared), 1);
    let mut at = 0;
    for (sole_writer, is_ahead) in [(false, false), (true, true), (false, false)] {
        scene.far.disk().sole_writer = sole_writer;
        for _ in 0..64 {
            scene.read(0, at, 512).unwrap();
            at += 512;
        }
        scene.round();
        scene.far.disk().bytes.fill(9);
        let is_old = scene.read(0, at, 512).unwrap() == [0; 512];
        assert_eq!(is_old, is_ahead, "{sole_writer}");
        scene.far.disk().bytes.fill(0);
        at += 512;
    }
}

#[test]
fn a_lost_session_and_another_size_end_what_was_read_ahead() {
    let losses: [fn(&mut Disk); 2] = [|disk| disk.losses += 1, |disk| disk.size_bytes *= 2];
    for lose in losses {
        let (mut scene, at) = reading_ahead();
        lose(&mut scene.far.disk());
        scene.far.disk().bytes.fill(9);
        // The endpoint beneath learns of it by an event.
        scene.read(0, 0, 512).unwrap();
        assert_eq!(scene.read(0, at, 512).unwrap(), [9; 512]);
    }
}

#[test]
fn a_reset_ends_what_was_read_ahead() {
    let (mut scene, at) = reading_ahead();
    let inner = Arc::new(crate::NullMedium::new(512, false));
    ReadaheadMedium { inner, shared: Arc::clone(&scene.shared) }.drop_read_ahead();
    scene.far.disk().bytes.fill(9);
    assert_eq!(scene.read(0, at, 512).unwrap(), [9; 512]);
}

#[test]
fn what_is_too_old_is_dropped_although_nobody_reads() {
    let (mut scene, at) = reading_ahead();
    scene.far.disk().bytes.fill(9);
    assert_eq!(scene.read(0, at, 512).unwrap(), [0; 512], "changed elsewhere, and not known here");
    scene.round();
    scene.wait(AGE_MAX + Duration::from_millis(100));
    assert_eq!(scene.chunks(), 0);
    assert_eq!(scene.read(0, at + 512, 512).unwrap(), [9; 512]);
    let counters = &scene.shared.counters;
    let [ahead, used, dropped] =
        [&counters.ahead, &counters.used, &counters.dropped].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(ahead, used + dropped);
}

#[test]
fn a_read_whose_bytes_cannot_be_read_ahead_is_submitted_itself() {
    let (mut scene, at) = reading_ahead();
    let unreadable = at + 8192;
    scene.far.disk().unreadable = Some(unreadable);
    for number in 0..32 {
        let offset = at + number * 512;
        let read = scene.read(0, offset, 512).map_err(|error| error.kind);
        let expected = if offset == unreadable { Err(IoErrorKind::Medium) } else { Ok(vec![0; 512]) };
        assert_eq!(read, expected, "{offset}");
    }
}

#[test]
fn an_endpoint_dropped_with_requests_in_flight_leaves_nothing_behind() {
    let (mut scene, at) = reading_ahead();
    let from = scene.filled(512, 7);
    scene.submit(0, Kind::Write { offset: at, from, durable: false });
    scene.endpoints.clear();
    assert!(scene.shared.ledger().begin_chunk(&(0..BYTES_DEFAULT), BYTES_DEFAULT).is_some());
}

#[test]
fn sizes_of_the_option() {
    for (value, expected) in [
        ("", Some(BYTES_DEFAULT)),
        ("off", None),
        ("0", None),
        ("8M", Some(8 << 20)),
        ("256M", Some(256 << 20)),
    ] {
        assert_eq!(parse(value), Ok(expected), "{value}");
    }
    for value in ["257M", "x", "-1", "on"] {
        assert!(parse(value).is_err(), "{value}");
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % bound
    }
}
