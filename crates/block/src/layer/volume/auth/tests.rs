//! `auth` volumes over memory, alone and under a crash layer, against a model of their contents.

use std::sync::Arc;

use area::{PoolLimits, Span};
use io::Io;
use volume::auth::{Cipher, Keys, Layout, Unit, Volume, format};

use super::AuthMedium;
use crate::layer::{CrashMedium, CrashRule, DelayMedium, FaultMedium, FaultRule};
use crate::{
    Blocking, Completion, Endpoint, IoError, IoErrorKind, Kind, Medium, MemoryMedium, Request, State,
    close_all, wait_ready,
};

const SEGMENT: u64 = 16 << 10;
const STORAGE: u64 = 96 << 20;
const CIPHERS: [Cipher; 2] = [Cipher::Aes256GcmSiv, Cipher::Aegis256X4];
const UNITS: [Unit; 2] = [Unit::Bytes512, Unit::Bytes4096];
const KEY: [u8; 64] = [3; 64];
const UUID: &str = "00000000-0000-4000-8000-000000000000";

fn layout(cipher: Cipher, unit: Unit) -> Layout {
    Layout::fitting(cipher, unit, SEGMENT, STORAGE).unwrap()
}

fn keys(cipher: Cipher, unit: Unit) -> Keys {
    Keys::new(&KEY, UUID, cipher, unit, SEGMENT)
}

/// Makes an empty volume of as many blocks as fit, at most `blocks`.
fn make(medium: &dyn Medium, cipher: Cipher, unit: Unit, blocks: u64) {
    let mut storage = Blocking::attach(medium).unwrap();
    let layout = layout(cipher, unit);
    for (offset, bytes) in format(&layout, &keys(cipher, unit), blocks) {
        storage.write(offset, &bytes).unwrap();
    }
    storage.flush().unwrap();
}

fn open(inner: &Arc<dyn Medium>, cipher: Cipher, unit: Unit) -> AuthMedium {
    open_as(inner, cipher, unit, false)
}

fn open_as(inner: &Arc<dyn Medium>, cipher: Cipher, unit: Unit, is_read_only: bool) -> AuthMedium {
    let mut writer = [0; 16];
    io::entropy(&mut writer).unwrap();
    let volume =
        Volume::new(keys(cipher, unit), (cipher, unit, SEGMENT), STORAGE, writer, is_read_only).unwrap();
    AuthMedium::new(Arc::clone(inner), volume, "of a test".to_owned(), None).unwrap()
}

struct Rig {
    io: Io,
    endpoint: Box<dyn Endpoint>,
}

impl Rig {
    fn new(medium: &dyn Medium) -> Self {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut endpoint = medium.attach(&mut io).unwrap();
        wait_ready(&mut io, &mut [&mut *endpoint]).unwrap();
        Self { io, endpoint }
    }

    fn run(&mut self, kinds: Vec<Kind>) -> Vec<Option<IoErrorKind>> {
        let kind = |result: Result<(), IoError>| result.err().map(|error| error.kind);
        self.results(kinds).into_iter().map(kind).collect()
    }

    /// All at once; results by id.
    fn results(&mut self, kinds: Vec<Kind>) -> Vec<Result<(), IoError>> {
        let mut done: Vec<Completion> = Vec::new();
        let count = kinds.len();
        for (id, kind) in kinds.into_iter().enumerate() {
            self.endpoint.submit(&mut self.io, Request { id: id as u64, kind }, &mut done);
        }
        self.wait(count, done)
    }

    /// Of requests under way, once so many have completed.
    fn wait(&mut self, count: usize, mut done: Vec<Completion>) -> Vec<Result<(), IoError>> {
        let mut events = Vec::new();
        while done.len() < count {
            self.io.turn(&mut events).unwrap();
            for event in events.drain(..) {
                self.endpoint.on_event(&mut self.io, event, &mut done);
            }
        }
        done.sort_by_key(|completion| completion.id);
        done.into_iter().map(|completion| completion.result).collect()
    }

    /// Submits all, and handles so many events.
    fn begin(&mut self, kinds: Vec<Kind>, events_max: u64) {
        let (mut done, mut events): (Vec<Completion>, _) = (Vec::new(), Vec::new());
        let count = kinds.len();
        for (id, kind) in kinds.into_iter().enumerate() {
            self.endpoint.submit(&mut self.io, Request { id: id as u64, kind }, &mut done);
        }
        let mut handled = 0;
        while done.len() < count && handled < events_max {
            self.io.turn(&mut events).unwrap();
            for event in events.drain(..) {
                self.endpoint.on_event(&mut self.io, event, &mut done);
                handled += 1;
            }
        }
    }

    fn span(&self, bytes: &[u8]) -> Span {
        let span = self.io.pool().take(bytes.len()).unwrap();
        span.fill(0, bytes);
        span
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, IoErrorKind> {
        let into = self.io.pool().take(length).unwrap();
        match self.run(vec![Kind::Read { offset, into: into.clone() }])[0] {
            None => Ok(into.as_slice().to_vec()),
            Some(kind) => Err(kind),
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let from = self.span(bytes);
        assert_eq!(self.run(vec![Kind::Write { offset, from, durable: false }]), [None]);
    }

    fn flush(&mut self) {
        assert_eq!(self.run(vec![Kind::Flush]), [None]);
    }

    fn close(mut self) {
        close_all(&mut self.io, &mut [&mut *self.endpoint]);
        assert!(self.endpoint.is_closed());
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let word = self.next();
        (0..length).map(|at| (word >> (at % 8 * 8)) as u8 ^ (at / 8) as u8).collect()
    }
}

fn each(mut check: impl FnMut(Cipher, Unit)) {
    for cipher in CIPHERS {
        UNITS.into_iter().for_each(|unit| check(cipher, unit));
    }
}

#[test]
fn what_was_written_in_blocks_of_512_is_read_again_also_after_the_volume_was_closed() {
    each(|cipher, unit| {
        let inner: Arc<dyn Medium> = Arc::new(MemoryMedium::new(STORAGE, false).unwrap());
        let blocks = 2000;
        make(&*inner, cipher, unit, blocks);
        let size = blocks * 4096;
        let mut model = vec![0; size as usize];
        let mut random = Random(5);
        for _ in 0..3 {
            let medium = open(&inner, cipher, unit);
            let mut rig = Rig::new(&medium);
            assert_eq!(rig.endpoint.capability().size_bytes, size);
            for _ in 0..150 {
                let length = match random.below(4) {
                    0 => 512 * (1 + random.below(16)),
                    1 => 4096 * (1 + random.below(4)),
                    _ => 512 * (1 + random.below(1200)),
                };
                let offset = random.below((size - length) / 512) * 512;
                let range = offset as usize..(offset + length) as usize;
                match random.below(8) {
                    0 => {
                        let zeroes = Kind::WriteZeroes { offset, length, may_unmap: true };
                        assert_eq!(rig.run(vec![zeroes]), [None]);
                        model[range].fill(0);
                    }
                    1 => rig.flush(),
                    2 | 3 => {
                        let now = rig.read(offset, range.len()).unwrap();
                        assert!(now == model[range], "{cipher:?} {unit:?}: {offset}+{length}");
                    }
                    _ => {
                        let bytes = random.bytes(range.len());
                        rig.write(offset, &bytes);
                        model[range].copy_from_slice(&bytes);
                    }
                }
            }
            for (at, expected) in model.chunks(1 << 20).enumerate() {
                assert!(
                    rig.read((at as u64) << 20, expected.len()).unwrap() == expected,
                    "{cipher:?} {unit:?}"
                );
            }
            rig.close();
        }
    });
}

/// The first byte of a request that cannot be read: of the block that does not verify, or of the request if that begins
/// within it.
#[test]
fn a_failed_check_names_its_first_byte() {
    each(|cipher, unit| {
        let inner: Arc<dyn Medium> = Arc::new(MemoryMedium::new(STORAGE, false).unwrap());
        make(&*inner, cipher, unit, 512);
        let mut rig = Rig::new(&open(&inner, cipher, unit));
        rig.write(0, &[7; 16 * 4096]);
        rig.close();
        for block in [5, 9] {
            let mut beneath = Blocking::attach(&*inner).unwrap();
            beneath.write(layout(cipher, unit).data_offset(block), &[0; 4096]).unwrap();
        }
        let mut rig = Rig::new(&open(&inner, cipher, unit));
        let first = |rig: &mut Rig, kind| {
            let error = rig.results(vec![kind]).remove(0).unwrap_err();
            assert_eq!(error.kind, IoErrorKind::Medium, "{error}");
            error.offset
        };
        for (offset, length, expected) in [
            (0, 16 * 4096, 5 * 4096),
            (512, 16 * 4096 - 1024, 5 * 4096),
            (5 * 4096, 4096, 5 * 4096),
            (5 * 4096 + 1024, 512, 5 * 4096 + 1024),
            (6 * 4096 - 512, 8 * 4096, 6 * 4096 - 512),
            (6 * 4096, 8 * 4096, 9 * 4096),
        ] {
            let into = rig.io.pool().take(length).unwrap();
            let found = first(&mut rig, Kind::Read { offset, into });
            assert_eq!(found, Some(expected), "{cipher:?} {unit:?}: {length} bytes at {offset}");
        }
        // A write of a part merges with what cannot be read.
        let from = rig.span(&[9; 512]);
        let offset = 9 * 4096 + 2048;
        assert_eq!(first(&mut rig, Kind::Write { offset, from, durable: false }), Some(offset));
        let zeroes = Kind::WriteZeroes { offset: 4096 + 512, length: 8 * 4096, may_unmap: false };
        assert_eq!(first(&mut rig, zeroes), Some(9 * 4096));
    });
}

/// An offset in the storage is none in the volume.
#[test]
fn an_error_of_the_storage_names_no_place_in_the_volume() {
    let (cipher, unit) = (CIPHERS[0], UNITS[0]);
    let storage = MemoryMedium::new(STORAGE, false).unwrap();
    let failing =
        FaultRule::parse(&format!("read-error@{}+4K", layout(cipher, unit).data_offset(3))).unwrap();
    make(&storage, cipher, unit, 512);
    let storage: Arc<dyn Medium> = Arc::new(storage);
    let mut rig = Rig::new(&open(&storage, cipher, unit));
    rig.write(0, &[7; 16 * 4096]);
    rig.close();
    let storage: Arc<dyn Medium> = Arc::new(FaultMedium::new(storage, failing));
    let mut rig = Rig::new(&open(&storage, cipher, unit));
    let into = rig.io.pool().take(16 * 4096).unwrap();
    let error = rig.results(vec![Kind::Read { offset: 0, into }]).remove(0).unwrap_err();
    assert_eq!((error.kind, error.offset), (IoErrorKind::Medium, None));
}

#[test]
fn nothing_that_was_changed_beneath_is_handed_out() {
    each(|cipher, unit| {
        let inner: Arc<dyn Medium> = Arc::new(MemoryMedium::new(STORAGE, false).unwrap());
        make(&*inner, cipher, unit, 512);
        let mut rig = Rig::new(&open(&inner, cipher, unit));
        rig.write(0, &[7; 16384]);
        rig.close();
        let place = layout(cipher, unit).data_offset(1);
        let mut beneath = Blocking::attach(&*inner).unwrap();
        let mut block = [0; 4096];
        beneath.read(place, &mut block).unwrap();
        block[100] ^= 1;
        beneath.write(place, &block).unwrap();
        let mut rig = Rig::new(&open(&inner, cipher, unit));
        assert_eq!(rig.read(4096, 4096), Err(IoErrorKind::Medium));
        assert_eq!(rig.read(4608, 512), Err(IoErrorKind::Medium));
        assert_eq!(rig.read(0, 16384), Err(IoErrorKind::Medium));
        assert_eq!(rig.read(8192, 4096), Ok(vec![7; 4096]));
        // A part cannot be merged; the whole block is repaired.
        let from = rig.span(&[9; 512]);
        assert_eq!(
            rig.run(vec![Kind::Write { offset: 4096, from, durable: false }]),
            [Some(IoErrorKind::Medium)]
        );
        rig.write(4096, &[8; 4096]);
        assert_eq!(rig.read(4096, 4096), Ok(vec![8; 4096]));
    });
}

/// Writes, discards and flushes by sectors of 512 bytes, then a power cut: each sector reads as its last flushed version or
/// one after it.
fn cut(cipher: Cipher, unit: Unit, seed: u64, with_discards: bool) {
    const SECTORS: u64 = 12 * 8;
    let memory: Arc<dyn Medium> = Arc::new(MemoryMedium::new(STORAGE, false).unwrap());
    make(&*memory, cipher, unit, SECTORS / 8);
    let words = if unit == Unit::Bytes4096 { "never:unit=4096" } else { "never:unit=512" };
    let rule = CrashRule::parse(&format!("{words}:seed={seed}")).unwrap();
    let crash = Arc::new(CrashMedium::new(memory, rule));
    let delay = std::time::Duration::from_micros(20);
    let inner: Arc<dyn Medium> = Arc::new(DelayMedium::new(Arc::clone(&crash) as Arc<dyn Medium>, delay));
    let mut random = Random(seed);
    let what = format!("{cipher:?} {unit:?} seed {seed}");
    // For each sector: versions that may come back, and those of the last writes to it, which may overlap each other.
    let mut versions: Vec<[Vec<u8>; 2]> = vec![[Vec::new(), vec![0]]; SECTORS as usize];
    for round in 0..6 {
        let mut rig = Rig::new(&open(&inner, cipher, unit));
        let steps = random.below(30);
        for step in 0..steps {
            if random.below(6) == 0 {
                rig.flush();
                versions.iter_mut().for_each(|[earlier, _]| earlier.clear());
            }
            let (mut kinds, mut touched) = (Vec::new(), vec![Vec::new(); SECTORS as usize]);
            for _ in 0..1 + random.below(6) {
                let count =
                    if random.below(2) == 0 { 8 * (1 + random.below(3)) } else { 1 + random.below(20) };
                let first = random.below(SECTORS - count);
                let first = if count % 8 == 0 { first / 8 * 8 } else { first };
                let version =
                    if with_discards && random.below(4) == 0 { 0 } else { 1 + random.below(250) as u8 };
                let (offset, length) = (first * 512, count * 512);
                kinds.push(if version == 0 {
                    Kind::WriteZeroes { offset, length, may_unmap: true }
                } else {
                    let from = rig.span(&vec![version; length as usize]);
                    Kind::Write { offset, from, durable: random.below(10) == 0 }
                });
                if random.below(5) == 0 {
                    kinds.push(Kind::Flush);
                }
                touched[first as usize..(first + count) as usize]
                    .iter_mut()
                    .for_each(|all| all.push(version));
            }
            for ([earlier, last], now) in versions.iter_mut().zip(touched).filter(|(_, now)| !now.is_empty())
            {
                earlier.append(last);
                *last = now;
            }
            if step + 1 == steps {
                // The power fails while they are under way.
                rig.begin(kinds, random.below(30));
            } else {
                assert!(rig.run(kinds).iter().all(Option::is_none), "{what}");
            }
        }
        crash.cut();
        drop(rig);
        // Who only reads sees what the next writer recovers.
        let mut rig = Rig::new(&open_as(&inner, cipher, unit, true));
        let seen: Vec<_> = (0..SECTORS).map(|sector| rig.read(sector * 512, 512)).collect();
        drop(rig);
        let mut rig = Rig::new(&open(&inner, cipher, unit));
        for (sector, [earlier, last]) in versions.iter_mut().enumerate() {
            let now = rig.read(sector as u64 * 512, 512);
            let now = now.unwrap_or_else(|error| panic!("{what} round {round}: sector {sector}: {error:?}"));
            assert!(seen[sector].as_ref() == Ok(&now), "{what} round {round}: sector {sector}, by a reader");
            let version = now[0];
            assert!(now.iter().all(|byte| *byte == version), "{what}: a mixture");
            assert!(
                earlier.contains(&version) || last.contains(&version),
                "{what} round {round}: sector {sector}: {version} of {earlier:?}, {last:?}"
            );
            (*earlier, *last) = (Vec::new(), vec![version]);
        }
        rig.flush();
    }
}

#[test]
fn what_was_flushed_survives_power_cuts() {
    each(|cipher, unit| (0..3).for_each(|seed| cut(cipher, unit, seed, false)));
}

#[test]
fn what_was_flushed_or_discarded_survives_power_cuts() {
    each(|cipher, unit| (100..103).for_each(|seed| cut(cipher, unit, seed, true)));
}

#[test]
fn threads_share_a_volume() {
    const BLOCKS: u64 = 1024;
    each(|cipher, unit| {
        let inner: Arc<dyn Medium> = Arc::new(MemoryMedium::new(STORAGE, false).unwrap());
        make(&*inner, cipher, unit, BLOCKS);
        let medium = Arc::new(open(&inner, cipher, unit));
        let threads: Vec<_> = (0..3_u64)
            .map(|thread| {
                let medium = Arc::clone(&medium);
                std::thread::spawn(move || {
                    let mut rig = Rig::new(&*medium);
                    let mut random = Random(thread);
                    for round in 0..60 {
                        // Every third block is this thread's, and all read their neighbours'.
                        let block = random.below(BLOCKS / 3) * 3 + thread;
                        let version = (round % 80 + 80 * thread) as u8;
                        rig.write(block * 4096, &[version; 4096]);
                        let now = rig.read(block.saturating_sub(1) * 4096, 8192).unwrap();
                        let own = &now[if block == 0 { 0..4096 } else { 4096..8192 }];
                        assert!(own.iter().all(|byte| *byte == version));
                        assert!(now[..4096].iter().all(|byte| *byte == now[0]));
                        if round % 9 == 0 {
                            rig.flush();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_flush_succeeds_although_the_thread_that_has_its_operations_ends() {
    each(|cipher, unit| {
        let inner: Arc<dyn Medium> = Arc::new(MemoryMedium::new(STORAGE, false).unwrap());
        make(&*inner, cipher, unit, 512);
        let inner: Arc<dyn Medium> = Arc::new(DelayMedium::new(inner, std::time::Duration::from_millis(1)));
        let medium = open(&inner, cipher, unit);
        let (mut one, mut other) = (Rig::new(&medium), Rig::new(&medium));
        one.write(0, &[1; 4096]);
        one.begin(vec![Kind::Flush], 0);
        other.write(4096, &[2; 4096]);
        other.begin(vec![Kind::Flush], 0);
        // The end of the first round begins the second one, in the thread that has the first.
        assert_eq!(one.wait(1, Vec::new()), [Ok(())], "{cipher:?} {unit:?}");
        one.close();
        assert_eq!(other.wait(1, Vec::new()), [Ok(())], "{cipher:?} {unit:?}");
        other.close();
    });
}

#[test]
fn an_endpoint_is_ready_once_another_thread_has_opened_the_volume() {
    each(|cipher, unit| {
        let inner: Arc<dyn Medium> = Arc::new(MemoryMedium::new(STORAGE, false).unwrap());
        make(&*inner, cipher, unit, 512);
        let inner: Arc<dyn Medium> = Arc::new(DelayMedium::new(inner, std::time::Duration::from_millis(1)));
        let medium = open(&inner, cipher, unit);
        let attach = || {
            let mut io = Io::new(PoolLimits::default()).unwrap();
            let endpoint = medium.attach(&mut io).unwrap();
            (io, endpoint)
        };
        let ((mut first, mut opens), (mut io, mut endpoint)) = (attach(), attach());
        wait_ready(&mut first, &mut [&mut *opens]).unwrap();
        let (mut events, mut done) = (Vec::new(), Vec::new());
        let deadline = io.now() + std::time::Duration::from_secs(5);
        io.turn_until(Some(deadline), &mut events).unwrap();
        events.drain(..).for_each(|event| endpoint.on_event(&mut io, event, &mut done));
        assert!(matches!(endpoint.state(), State::Ready), "{cipher:?} {unit:?}");
    });
}
