//! Copies between real files and block devices: skipped zeroes lose no byte, and the devices get the expected number of
//! requests.
//!
//! Loop devices and mounts need root; without it the tests print what they skip.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use block::{FileMedium, Medium, Spec};
use host::{Kernel, Traffic};
use io::Io;
use mover::{Control, Plan, Report};
use tempfile::TempDir;

/// Runs a command; returns its output, trimmed, if it succeeded.
fn run(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device over a file; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None`, with a message, if loop devices are not permitted.
    fn over(file: &Path) -> Option<Self> {
        let device = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file));
        if device.is_none() {
            eprintln!("no loop device over {} (root is needed): skipped", file.display());
        }
        Some(Self(device?.into()))
    }

    fn traffic(&self) -> Traffic {
        Kernel::default().traffic(fs::metadata(&self.0).unwrap().rdev()).unwrap()
    }

    /// Bytes of the device in the page cache; `None` without `fincore`.
    fn cached_bytes(&self) -> Option<String> {
        run(Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(&self.0))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

/// A mounted file system in a file; unmounted when dropped.
struct Mounted {
    point: TempDir,
    _image: TempDir,
}

impl Mounted {
    fn xfs() -> Option<Self> {
        let (image, point) = (tempfile::tempdir_in("/dev/shm").ok()?, tempfile::tempdir().ok()?);
        let path = image.path().join("xfs");
        File::create(&path).ok()?.set_len(512 << 20).ok()?;
        let made = run(Command::new("mkfs.xfs").arg("-q").arg(&path))
            .and_then(|_| run(Command::new("mount").args(["-o", "loop"]).arg(&path).arg(point.path())));
        if made.is_none() {
            eprintln!("no xfs (mkfs.xfs and root are needed): skipped");
        }
        made.map(|_| Self { point, _image: image })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.point.path()));
    }
}

/// A small generator, so that a printed seed repeats a failure.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn copy(source: &Path, destination: &Path, plan: &Plan) -> Report {
    let mut io = Io::new(area::PoolLimits::default()).unwrap();
    let mut attach = |path: &Path, writable| {
        let options = block::OpenOptions { writable, request_alignment: 512, allow_in_use: false };
        let medium = FileMedium::open(path, &Spec::parse("x,format=raw").unwrap(), &options).unwrap();
        medium.attach(&mut io).unwrap()
    };
    let (mut source, mut destination) = (attach(source, false), attach(destination, true));
    mover::copy(&mut io, &mut *source, &mut *destination, plan, &mut |_| Control::Continue).unwrap()
}

/// Blocks of 4 KiB that are data, zero, or zero except for one byte at an end.
fn pattern(random: &mut Random, bytes: usize) -> Vec<u8> {
    let mut pattern = vec![0; bytes];
    let mut at = 0;
    while at < bytes {
        // Runs of up to 256 KiB, so that some chunks are entirely zero.
        let end = (at + (1 + random.below(64) as usize) * 4096).min(bytes);
        match random.below(5) {
            0 => pattern[at..end].iter_mut().for_each(|byte| *byte = 1 + random.below(255) as u8),
            1 => pattern[end - 1] = 1,
            2 => pattern[at] = 0x80,
            _ => {}
        }
        at = end;
    }
    pattern
}

fn write_with_holes(path: &Path, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (index, block) in bytes.chunks(4096).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, index as u64 * 4096).unwrap();
        }
    }
}

const SIZE: u64 = 3 << 20;
const OLD: u8 = 0xEE;

/// Copies random ranges of random patterns to `destination`, whose requests are multiples of `grain`, and compares its
/// whole content.
fn assert_no_byte_is_lost(destination: &Path, grain: u64, seeds: std::ops::Range<u64>) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = place.path().join("source");
    for seed in seeds {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let bytes = pattern(&mut random, SIZE as usize);
        write_with_holes(&source, &bytes);
        let file = OpenOptions::new().write(true).open(destination).unwrap();
        file.write_all_at(&vec![OLD; SIZE as usize], 0).unwrap();
        file.sync_all().unwrap();
        let mut multiple = |bound: u64| random.below(bound / grain + 1) * grain;
        let (src_offset, dst_offset) = (multiple(SIZE / 4), multiple(SIZE / 4));
        let size = multiple(SIZE * 3 / 4).max(grain);
        let chunk = Some(4096 << random.below(9));
        let plan = Plan { src_offset, dst_offset, size: Some(size), chunk, verify: true, ..Plan::default() };
        let report = copy(&source, destination, &plan);
        let mut expected = vec![OLD; SIZE as usize];
        let (from, to, size) = (src_offset as usize, dst_offset as usize, size as usize);
        expected[to..to + size].copy_from_slice(&bytes[from..from + size]);
        let found = fs::read(destination).unwrap();
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        let same = found.len() == expected.len() && wrong.is_none();
        assert!(same, "seed {seed}, {plan:?}: byte {wrong:?}; {report:?}");
    }
}

#[test]
fn zeroes_lose_no_byte_of_files() {
    let xfs = Mounted::xfs();
    let mounted = xfs.as_ref().map(|mounted| mounted.point.path());
    for place in [Some(Path::new("/dev/shm")), Some(Path::new("/var/tmp")), mounted].into_iter().flatten() {
        let place = tempfile::tempdir_in(place).unwrap();
        let destination = place.path().join("destination");
        File::create(&destination).unwrap();
        assert_no_byte_is_lost(&destination, 1, 0..6);
        assert_no_byte_is_lost(&destination, 512, 6..9);
    }
}

#[test]
fn zeroes_lose_no_byte_of_devices() {
    for place in ["/dev/shm", "/var/tmp"] {
        let place = tempfile::tempdir_in(place).unwrap();
        let image = place.path().join("image");
        File::create(&image).unwrap().set_len(SIZE).unwrap();
        let Some(device) = Loop::over(&image) else { return };
        assert_no_byte_is_lost(&device.0, 512, 0..8);
        assert_no_byte_is_lost(&device.0, 4096, 8..12);
    }
}

/// A chunk is one request at each device: not split, not read ahead, not merged with its neighbour, although the device
/// would accept both as one. The devices count the requests, so the test does not depend on speed.
#[test]
fn a_chunk_is_one_request_of_each_device() {
    const BYTES: u64 = 64 << 20;
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut loops = Vec::new();
    for name in ["source", "destination"] {
        let path = place.path().join(name);
        fs::write(&path, vec![0xA5; BYTES as usize]).unwrap();
        let Some(device) = Loop::over(&path) else { return };
        loops.push(device);
    }
    for (chunk, depth) in [(512 << 10, None), (512 << 10, Some(16)), (1 << 20, None)] {
        if chunk > 512 << 10 && area::Pool::large_page_bytes() < chunk as usize {
            eprintln!("no huge pages: {chunk} bytes in one request skipped");
            continue;
        }
        let cached = loops.iter().map(Loop::cached_bytes).collect::<Vec<_>>();
        let before = loops.iter().map(Loop::traffic).collect::<Vec<_>>();
        let plan = Plan { chunk: Some(chunk), depth, ..Plan::default() };
        let report = copy(&loops[0].0, &loops[1].0, &plan);
        let after = loops.iter().map(Loop::traffic).collect::<Vec<_>>();
        let count = BYTES / u64::from(chunk);
        let (reads, mut writes) = (after[0].reads - before[0].reads, after[1].writes - before[1].writes);
        let joined =
            [after[0].read_merges - before[0].read_merges, after[1].write_merges - before[1].write_merges];
        // The single flush at the end: the kernel may count an empty flush as a write.
        let flushes = after[1].flushes - before[1].flushes;
        writes -= if writes + joined[1] > count { flushes.min(1) } else { 0 };
        assert_eq!((reads + joined[0], writes + joined[1]), (count, count), "{chunk} bytes: {report:?}");
        // A loop device accepts requests of up to 1280 KiB.
        assert_eq!(joined, [0, 0], "{chunk} bytes, {depth:?}");
        assert_eq!(after[0].sectors_read - before[0].sectors_read, BYTES / 512);
        assert_eq!(after[1].sectors_written - before[1].sectors_written, BYTES / 512);
        assert_eq!(after[1].reads, before[1].reads, "nothing is read first");
        let now = loops.iter().map(Loop::cached_bytes).collect::<Vec<_>>();
        assert_eq!(now, cached, "the page cache has grown");
    }
}
