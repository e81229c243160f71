//! Tests of the cache over memory, and of the state after power cuts.

use area::PoolLimits;

use super::*;
use crate::{Completion, IoErrorKind, Kind, MemoryMedium, Request};

const SECTORS: usize = 64;

struct Scene {
    io: Io,
    beneath: Arc<MemoryMedium>,
    medium: CrashMedium,
    endpoint: Box<dyn Endpoint>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        Self::of(CrashRule::never(seed))
    }

    fn of(rule: CrashRule) -> Self {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let beneath = Arc::new(MemoryMedium::new((SECTORS * SECTOR_BYTES) as u64, false).unwrap());
        let medium = CrashMedium::new(Arc::clone(&beneath) as Arc<dyn Medium>, rule);
        let endpoint = medium.attach(&mut io).unwrap();
        Self { io, beneath, medium, endpoint }
    }

    fn ask(&mut self, kind: Kind) -> Result<(), IoErrorKind> {
        let mut done = Vec::new();
        self.endpoint.submit(&mut self.io, Request { id: 1, kind }, &mut done);
        let [Completion { id: 1, result }] = &done[..] else { panic!("memory completes at once: {done:?}") };
        result.clone().map_err(|error| error.kind)
    }

    fn write(&mut self, lba: usize, count: usize, byte: u8, durable: bool) {
        let from = self.io.pool().take(count * SECTOR_BYTES).unwrap();
        from.fill(0, &vec![byte; count * SECTOR_BYTES]);
        self.ask(Kind::Write { offset: (lba * SECTOR_BYTES) as u64, from, durable }).unwrap();
    }

    /// The first byte of each sector; asserts that no sector is torn.
    fn look(&mut self) -> Vec<u8> {
        let into = self.io.pool().take(SECTORS * SECTOR_BYTES).unwrap();
        self.ask(Kind::Read { offset: 0, into: into.clone() }).unwrap();
        let sectors = into.as_slice().chunks(SECTOR_BYTES);
        sectors
            .map(|sector| {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "torn inside");
                sector[0]
            })
            .collect()
    }

    fn beneath(&mut self) -> Vec<u8> {
        let endpoint = self.beneath.attach(&mut self.io).unwrap();
        let cached = std::mem::replace(&mut self.endpoint, endpoint);
        let found = self.look();
        self.endpoint = cached;
        found
    }

    fn cut(&mut self) {
        self.medium.cut();
        self.endpoint = self.medium.attach(&mut self.io).unwrap();
    }
}

#[test]
fn writes_stay_in_the_cache_until_a_flush() {
    let mut scene = Scene::new(0);
    assert!(scene.endpoint.capability().volatile_cache);
    scene.write(0, 8, 1, false);
    scene.write(4, 8, 2, false);
    scene.ask(Kind::Discard { offset: 512, length: 512 }).unwrap();
    let mut expected = vec![0; SECTORS];
    expected[..4].fill(1);
    expected[4..12].fill(2);
    expected[1] = 0;
    assert_eq!(scene.look(), expected);
    assert_eq!(scene.beneath(), [0; SECTORS]);
    scene.ask(Kind::Flush).unwrap();
    assert_eq!(scene.beneath(), expected);
    assert_eq!(scene.look(), expected);
}

#[test]
fn durable_writes_go_through_and_take_nothing_else_with_them() {
    let mut scene = Scene::new(0);
    scene.write(0, 4, 1, false);
    scene.write(2, 4, 2, true);
    assert_eq!(scene.beneath()[..8], [0, 0, 2, 2, 2, 2, 0, 0]);
    assert_eq!(scene.look()[..8], [1, 1, 2, 2, 2, 2, 0, 0]);
}

#[test]
fn a_cut_keeps_what_was_flushed_and_any_of_the_rest() {
    let (mut seen, mut mixed) = ([[false; 4]; 2], false);
    for seed in 0..60 {
        let mut scene = Scene::new(seed);
        scene.write(0, SECTORS, 1, false);
        scene.ask(Kind::Flush).unwrap();
        scene.write(0, 32, 2, false);
        scene.write(0, 32, 3, false);
        scene.write(40, 2, 3, true);
        scene.cut();
        let found = scene.look();
        assert_eq!(found[32..40], [1; 8], "seed {seed}: untouched");
        assert_eq!(found[40..42], [3; 2], "seed {seed}: durable");
        for (lba, byte) in found[..32].iter().enumerate() {
            assert!((1..=3).contains(byte), "seed {seed}: {byte}");
            seen[lba % 2][usize::from(*byte)] = true;
        }
        mixed |= (1..=3).all(|byte| found[..32].contains(&byte));
        assert_eq!(scene.look(), found, "what was seen stays");
        scene.cut();
        assert_eq!(scene.look(), found, "what survived one cut survives the next");
        scene.ask(Kind::Flush).unwrap();
        assert_eq!(scene.beneath(), found);
    }
    assert_eq!(seen, [[false, true, true, true]; 2], "all that may happen does");
    assert!(mixed);
}

#[test]
fn writes_of_whole_units_are_not_torn() {
    let mut torn = [0, 0];
    for seed in 0..200 {
        for unit in [512, 4096] {
            let rule = CrashRule::parse(&format!("never:seed={seed}:unit={unit}")).unwrap();
            let mut scene = Scene::of(rule);
            for byte in 1..4 {
                scene.write(8, 16, byte, false);
            }
            scene.cut();
            let look = scene.look();
            let whole = look[8..24].chunks(8).all(|unit| unit.iter().all(|byte| *byte == unit[0]));
            torn[usize::from(unit == 4096)] += u32::from(!whole);
        }
    }
    assert!(torn[0] > 50 && torn[1] == 0, "{torn:?}");
}

#[test]
fn the_dead_abort_and_change_nothing() {
    let mut scene = Scene::new(1);
    scene.write(0, 1, 1, true);
    scene.medium.cut();
    let from = scene.io.pool().take(512).unwrap();
    for kind in [Kind::Flush, Kind::Write { offset: 0, from, durable: true }] {
        assert_eq!(scene.ask(kind), Err(IoErrorKind::Aborted));
    }
    scene.cut();
    assert_eq!(scene.look()[0], 1);
}

#[test]
fn a_full_cache_writes_the_oldest_back() {
    let mut scene = Scene::new(1);
    let mut round = 0u8;
    for _ in 0..SECTORS_MAX / SECTORS + 10 {
        round = round % 250 + 1;
        scene.write(0, SECTORS, round, false);
    }
    assert_eq!(scene.look(), vec![round; SECTORS]);
    assert_ne!(scene.beneath(), vec![0; SECTORS], "something was written back");
    assert_ne!(scene.beneath(), vec![round; SECTORS], "the newest was not");
}

#[test]
fn parts_of_sectors_are_refused() {
    let mut scene = Scene::new(0);
    let from = scene.io.pool().take(100).unwrap();
    let write = Kind::Write { offset: 0, from, durable: false };
    assert_eq!(scene.ask(write), Err(IoErrorKind::Other));
    let beyond = Kind::Discard { offset: (SECTORS * SECTOR_BYTES) as u64, length: 512 };
    assert_eq!(scene.ask(beyond), Err(IoErrorKind::OutOfRange));
}

#[test]
fn the_grammar() {
    for (text, when, seed) in [
        ("after=500:seed=7", When::After(500), 7),
        ("every=9", When::Every(9), 0),
        ("never:seed=3", When::Never, 3),
        ("never", When::Never, 0),
    ] {
        assert_eq!(CrashRule::parse(text), Ok(CrashRule { when, seed, unit: 1 }), "{text}");
    }
    for text in ["", "after", "after=0", "after=x", "seed=1", "after=1:twice", "nevermore", "after=1:seed=x"]
    {
        assert!(CrashRule::parse(text).is_err(), "{text}");
    }
}
