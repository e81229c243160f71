//! Copies beside other users of the same storage: dirty pages of the source are copied, cached pages of the destination
//! are not stale afterwards, and writes elsewhere on both devices are preserved.
//!
//! Each case runs on files and, as root, on loop devices; without root a message names the omitted cases.

mod common;

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Loop, Place, dirty_pages, text};

/// Bytes of each file or device, and of the half that is copied.
const BYTES: usize = 16 << 20;
const HALF: usize = BYTES / 2;

/// A source and a destination with different content in all bytes.
struct Pair {
    place: Place,
    paths: [PathBuf; 2],
    _loops: Vec<Loop>,
}

impl Pair {
    /// A pair of files and, if permitted, a pair of loop devices over such files.
    fn all() -> Vec<Self> {
        let files = || {
            let place = Place::new();
            let paths = [place.sample("source", BYTES), place.file("destination", &vec![0xEE; BYTES])];
            Self { place, paths, _loops: Vec::new() }
        };
        let mut pairs = vec![files()];
        let mut devices = files();
        let loops: Vec<_> = devices.paths.iter().map_while(|path| Loop::over(path)).collect();
        if let [source, destination] = &loops[..] {
            devices.paths = [&source.0, &destination.0].map(PathBuf::from);
            devices._loops = loops;
            pairs.push(devices);
        }
        pairs
    }

    fn open(&self, end: usize) -> File {
        OpenOptions::new().read(true).write(true).open(&self.paths[end]).unwrap()
    }

    /// Copies the first half with the options `more`; returns `source_consistent` of the outcome.
    fn copy(&self, more: &[&str]) -> bool {
        let words =
            ["copy", text(&self.paths[0]), text(&self.paths[1]), "--json", "--size", "8M", "--chunk", "256K"];
        let words = [&words[..], &["--allow", "in-use", "--remote-copy", "off", "--force"], more].concat();
        let outcome = self.place.run(&words).expect(0).json();
        assert_eq!(outcome["bytes"], HALF);
        outcome["source_consistent"].as_bool().unwrap()
    }
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Unflushed writes of another process are only in the page cache: the copy reads past the page cache and must include
/// them.
#[test]
fn what_is_dirty_in_the_source_is_copied() {
    for pair in Pair::all() {
        let (source, destination) = (pair.open(0), pair.open(1));
        // The file stays open during the copy, so that closing it flushes nothing.
        source.write_all_at(&vec![0x11; HALF / 2], 0).unwrap();
        // Partial pages across a chunk boundary, and a range of zeroes, which the engine handles separately.
        source.write_all_at(&[0x22; 5000], (6 << 20) - 2500).unwrap();
        source.write_all_at(&vec![0; 1 << 20], 5 << 20).unwrap();
        let expected = read(&source);
        assert_ne!(dirty_pages(&source), Some(0), "nothing was dirty: {:?}", pair.paths);
        pair.copy(&["--verify"]);
        let found = read(&destination);
        assert!(found[..HALF] == expected[..HALF], "{:?}", pair.paths);
        assert!(found[HALF..].iter().all(|byte| *byte == 0xEE), "nothing else is written: {:?}", pair.paths);
        assert!(read(&source) == expected, "the source is only read");
    }
}

/// A read-only mapping of a file.
struct Mapping(*const u8);

impl Mapping {
    fn of(file: &File) -> Self {
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that exists as long as the mapping.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self(base.cast())
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < BYTES);
        // SAFETY: within the mapping; other processes change these bytes, so each is read volatile.
        unsafe { self.0.add(at).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no pointer into it remains.
        unsafe { libc::munmap(self.0.cast_mut().cast(), BYTES) };
    }
}

/// A process that read the destination before has the old bytes in the page cache or mapped; through the same
/// descriptor and mapping it must read the new bytes. The range of zeroes is written by hole punching.
#[test]
fn readers_of_the_destination_see_what_was_copied() {
    for pair in Pair::all() {
        let (source, destination) = (pair.open(0), pair.open(1));
        source.write_all_at(&vec![0; 2 << 20], 3 << 20).unwrap();
        source.sync_all().unwrap();
        let mapping = Mapping::of(&destination);
        assert!(read(&destination).iter().all(|byte| *byte == 0xEE));
        assert!((0..BYTES).step_by(4096).all(|at| mapping.byte(at) == 0xEE));
        // A page that is dirty before the copy must not overwrite copied data later.
        destination.write_all_at(&[0xDD; 100], 12345).unwrap();
        pair.copy(&[]);
        let (expected, found) = (read(&source), read(&destination));
        assert!(found[..HALF] == expected[..HALF], "read: {:?}", pair.paths);
        assert!(found[HALF..].iter().all(|byte| *byte == 0xEE), "{:?}", pair.paths);
        let wrong = (0..HALF).step_by(509).find(|at| mapping.byte(*at) != expected[*at]);
        assert_eq!(wrong, None, "mapped: {:?}", pair.paths);
        destination.sync_all().unwrap();
        assert!(read(&destination)[..HALF] == expected[..HALF], "{:?}", pair.paths);
    }
}

/// fio on the second half: blocks of 4 KiB in random order, three times, then verified.
struct Fio(Child);

impl Fio {
    fn on(path: &Path, buffered: bool) -> Self {
        let (offset, size) = (HALF.to_string(), (2 << 20).to_string());
        let child = Command::new("fio")
            .args(["--name=beside", "--rw=randwrite", "--bs=4k", "--verify=crc32c", "--loops=3", "--minimal"])
            .arg("--verify_state_save=0")
            .args(["--verify_fatal=1", "--ioengine=psync", "--randseed=7", "--thread", "--fallocate=none"])
            .arg(format!("--direct={}", i32::from(!buffered)))
            .args([
                format!("--filename={}", text(path)),
                format!("--offset={offset}"),
                format!("--size={size}"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("fio (apt-get install fio)");
        Self(child)
    }

    fn is_done(&mut self) -> bool {
        match self.0.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "fio did not find what it wrote");
                true
            }
            None => false,
        }
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// fio writes and verifies the second halves of both while the first halves are copied repeatedly: neither may find a
/// difference.
#[test]
#[ignore = "needs fio"]
fn writers_elsewhere_on_both_find_what_they_wrote() {
    for (pair, buffered) in Pair::all().into_iter().zip([true, false]) {
        let expected = read(&pair.open(0));
        let mut writers = [0, 1].map(|end| Fio::on(&pair.paths[end], buffered));
        let mut copies = 0;
        loop {
            let done = writers.each_mut().map(Fio::is_done);
            pair.copy(if copies == 0 { &["--verify"] } else { &[] });
            copies += 1;
            let found = read(&pair.open(1));
            assert!(found[..HALF] == expected[..HALF], "copy {copies}: {:?}", pair.paths);
            // The last copy ran beside at least one fio, unless both ended before the first copy.
            if done == [true, true] {
                break;
            }
        }
    }
}

/// A source written during the copy: each block of the copy comes from some moment, and the outcome reports it.
#[test]
fn a_source_that_is_written_meanwhile_is_told() {
    for pair in Pair::all() {
        let source = pair.open(0);
        source.write_all_at(&vec![1; HALF], 0).unwrap();
        source.sync_all().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let consistent = std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 2..=200u8 {
                    for block in 0..HALF / 4096 {
                        if stop.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                        source.write_all_at(&[round; 4096], block as u64 * 4096).unwrap();
                    }
                    source.sync_data().unwrap();
                }
            });
            // Slow enough that the writer writes during the copy.
            let consistent = pair.copy(&["--rate", "40MB/s"]);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            consistent
        });
        assert!(!consistent, "{:?}", pair.paths);
        let found = read(&pair.open(1));
        let foreign = found[..HALF].iter().position(|byte| !(1..=200).contains(byte));
        assert_eq!(foreign, None, "{:?}", pair.paths);
    }
}
