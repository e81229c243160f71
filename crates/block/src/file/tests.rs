//! Tests with real files: O_DIRECT, the cached tail, holes, refusals.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::FallocateFlags;

use super::*;
use crate::{Completion, Extent, IoErrorKind, Kind, Reader, Request};

const OPTIONS: OpenOptions = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };

pub(crate) fn perform(io: &mut Io, endpoint: &mut dyn Endpoint, kind: Kind) -> Completion {
    let (mut done, mut events) = (Vec::new(), Vec::new());
    endpoint.submit(io, Request { id: 77, kind }, &mut done);
    while done.is_empty() {
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            endpoint.on_event(io, event, &mut done);
        }
    }
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].id, 77);
    done.pop().unwrap()
}

fn open(path: &Path, words: &str) -> Result<FileMedium, OpenError> {
    let spec = Spec::parse(&format!("x{words}")).unwrap();
    FileMedium::open(path, &spec, &OPTIONS)
}

fn span(io: &Io, bytes: &[u8]) -> area::Span {
    let span = io.pool().take(bytes.len()).unwrap();
    span.fill(0, bytes);
    span
}

/// One directory on a disk, where O_DIRECT works, and one on tmpfs.
fn directories() -> Vec<tempfile::TempDir> {
    ["/var/tmp", "/dev/shm"].into_iter().filter_map(|at| tempfile::tempdir_in(at).ok()).collect()
}

#[test]
fn aligned_and_odd_requests_agree() {
    let mut io = new_io();
    for directory in directories() {
        let path = directory.path().join("image");
        fs::write(&path, vec![0xEE; 100_003]).unwrap();
        let medium = open(&path, "").unwrap();
        let mut endpoint = medium.attach(&mut io).unwrap();
        assert_eq!(endpoint.capability().size_bytes, 100_003);
        let write = |io: &mut Io, endpoint: &mut dyn Endpoint, offset: u64, bytes: &[u8]| {
            let from = span(io, bytes);
            perform(io, endpoint, Kind::Write { offset, from, durable: false }).result.unwrap();
        };
        write(&mut io, &mut *endpoint, 8192, &[1; 8192]);
        write(&mut io, &mut *endpoint, 16385, &[2; 3]);
        write(&mut io, &mut *endpoint, 100_000, &[3; 3]);
        perform(&mut io, &mut *endpoint, Kind::Flush).result.unwrap();
        let mut expected = vec![0xEE; 100_003];
        expected[8192..16384].fill(1);
        expected[16385..16388].fill(2);
        expected[100_000..].fill(3);
        assert_eq!(fs::read(&path).unwrap(), expected);
        for (offset, length) in [(0, 100_003), (8192, 8192), (16384, 4096), (99_999, 4)] {
            let into = io.pool().take(length).unwrap();
            let read = Kind::Read { offset: offset as u64, into: into.clone() };
            perform(&mut io, &mut *endpoint, read).result.unwrap();
            assert_eq!(into.as_slice(), &expected[offset..offset + length]);
        }
    }
}

#[test]
fn beyond_the_end_and_after_shrinking_is_out_of_range() {
    let mut io = new_io();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    fs::write(&path, vec![1; 65536]).unwrap();
    let mut endpoint = open(&path, "").unwrap().attach(&mut io).unwrap();
    let read = |io: &mut Io, endpoint: &mut dyn Endpoint, offset| {
        let into = io.pool().take(4096).unwrap();
        perform(io, endpoint, Kind::Read { offset, into }).result.map_err(|error| error.kind)
    };
    assert_eq!(read(&mut io, &mut *endpoint, 65536), Err(IoErrorKind::OutOfRange));
    assert_eq!(read(&mut io, &mut *endpoint, u64::MAX - 1), Err(IoErrorKind::OutOfRange));
    assert_eq!(read(&mut io, &mut *endpoint, 61440), Ok(()));
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(read(&mut io, &mut *endpoint, 61440), Err(IoErrorKind::OutOfRange));
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    let mut io = new_io();
    for directory in directories() {
        let path = directory.path().join("image");
        fs::write(&path, vec![9; 1 << 20]).unwrap();
        let medium = open(&path, "").unwrap();
        let mut endpoint = medium.attach(&mut io).unwrap();
        if endpoint.capability().discard {
            let discard = Kind::Discard { offset: 4096, length: 65536 };
            perform(&mut io, &mut *endpoint, discard).result.unwrap();
        }
        for (offset, length, may_unmap) in [(131_072, 300_000, false), (600_000, 5, true), (0, 0, true)] {
            let zero = Kind::WriteZeroes { offset, length, may_unmap };
            perform(&mut io, &mut *endpoint, zero).result.unwrap();
        }
        perform(&mut io, &mut *endpoint, Kind::Flush).result.unwrap();
        let bytes = fs::read(&path).unwrap();
        let zero = |start: usize, length: usize| bytes[start..start + length].iter().all(|byte| *byte == 0);
        assert!(!endpoint.capability().discard || zero(4096, 65536));
        assert!(zero(131_072, 300_000) && zero(600_000, 5));
        assert_eq!((bytes[131_071], bytes[431_072], bytes[599_999], bytes[600_005]), (9, 9, 9, 9));
    }
}

#[test]
fn holes_are_found() {
    let mut io = new_io();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    FileExt::write_all_at(&file, &[1; 65536], 262_144).unwrap();
    let medium = open(&path, "").unwrap();
    let mut endpoint = medium.attach(&mut io).unwrap();
    let mut at = 0;
    let mut data = 0;
    while at < 1 << 20 {
        let extent = endpoint.extent(at);
        assert!(extent.end > at);
        data += if extent.data { extent.end - at } else { 0 };
        at = extent.end;
    }
    assert_eq!(data, 65536);
    let discard = Kind::Discard { offset: 266_240, length: 4096 };
    perform(&mut io, &mut *endpoint, discard).result.unwrap();
    let expected = Extent { end: 266_240, data: true };
    assert_eq!(endpoint.extent(262_144), expected, "remembered extents are dropped");
    // A hole punched by another program: the recorded data extent stays valid, also for an endpoint attached later.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 262_144, 4096).unwrap();
    let mut later = medium.attach(&mut io).unwrap();
    for endpoint in [&mut endpoint, &mut later] {
        assert_eq!(endpoint.extent(262_144), Extent { end: 266_240, data: true });
    }
    perform(&mut io, &mut *endpoint, Kind::Discard { offset: 0, length: 4096 }).result.unwrap();
    assert_eq!(later.extent(262_144), Extent { end: 270_336, data: false }, "until we punch, anywhere");
}

fn fetch(span: &area::Span) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; span.len()];
    span.fetch(0, &mut bytes)?;
    Ok(bytes)
}

/// A time that is no other turn's.
fn turn() -> Duration {
    static LAST: AtomicU64 = AtomicU64::new(0);
    Duration::from_nanos(LAST.fetch_add(1, Ordering::Relaxed))
}

/// The bytes that borrowed from the file, equal for all values of `Reader`. The test may read the mapping, because the file
/// does not shrink.
fn borrowed(endpoint: &mut dyn Endpoint, offset: u64, length: usize) -> Option<Vec<u8>> {
    let now = turn();
    let mut stored = |reader| endpoint.borrow(now, offset, length, reader).map(|span| fetch(&span).unwrap());
    let (kernel, process) = (stored(Reader::Kernel), stored(Reader::Process));
    assert_eq!(kernel, process);
    assert_eq!(kernel, stored(Reader::Peer));
    kernel
}

#[test]
fn a_file_in_memory_lends_its_data_and_no_holes() {
    let mut io = new_io();
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(4 << 20).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|at| (at / 7) as u8).collect();
    FileExt::write_all_at(&file, &data, 1 << 20).unwrap();
    let medium = open(&path, "").unwrap();
    let mut endpoint = medium.attach(&mut io).unwrap();
    let allocated = || MetadataExt::blocks(&fs::metadata(&path).unwrap());
    let before = allocated();
    assert_eq!(borrowed(&mut *endpoint, 0, 4096), None, "a hole");
    assert_eq!(borrowed(&mut *endpoint, (1 << 20) - 4096, 8192), None, "half a hole");
    assert_eq!(borrowed(&mut *endpoint, (1 << 20) + 512, 70_000), Some(data[512..70_512].to_vec()));
    assert_eq!(borrowed(&mut *endpoint, 1 << 20, 1 << 20), Some(data));
    assert_eq!(allocated(), before, "looking allocates nothing");

    let from = span(&io, &[9; 4096]);
    perform(&mut io, &mut *endpoint, Kind::Write { offset: 1 << 20, from, durable: false }).result.unwrap();
    assert_eq!(borrowed(&mut *endpoint, 1 << 20, 4096), Some(vec![9; 4096]), "what was written");
    perform(&mut io, &mut *endpoint, Kind::Discard { offset: 1 << 20, length: 4096 }).result.unwrap();
    assert_eq!(borrowed(&mut *endpoint, 1 << 20, 4096), None, "a hole again");
    file.set_len(3 << 19).unwrap();
    assert_eq!(borrowed(&mut *endpoint, (3 << 19) - 512, 1024), None, "the file has shrunk");
    assert_eq!(borrowed(&mut *endpoint, u64::MAX, 1024), None);
    let now = turn();
    let stored = endpoint.borrow(now, (1 << 20) + 65_536, 8192, Reader::Process).unwrap();
    file.set_len(1 << 20).unwrap();
    let shrunk = fetch(&stored).unwrap_err();
    assert_eq!(shrunk.kind(), ErrorKind::UnexpectedEof, "shrunk under the eyes");
    let again =
        |endpoint: &mut dyn Endpoint, now| endpoint.borrow(now, (1 << 20) + 65_536, 8192, Reader::Process);
    assert!(again(&mut *endpoint, now).is_some(), "the size is looked at once in a turn");
    assert!(again(&mut *endpoint, turn()).is_none(), "the next turn looks again");
    let mut by_reference =
        |length| endpoint.borrow(turn(), 0, length, Reader::Peer).unwrap().file().is_some();
    FileExt::write_all_at(&file, &[1; 1 << 16], 0).unwrap();
    assert!(by_reference(1 << 16) && !by_reference(4096), "few bytes are copied");
}

#[test]
fn only_a_file_in_memory_is_written_at_once() {
    let mut io = new_io();
    for at in ["/var/tmp", "/dev/shm"] {
        let Ok(directory) = tempfile::tempdir_in(at) else { continue };
        let path = directory.path().join("image");
        fs::write(&path, vec![0xEE; 1 << 20]).unwrap();
        let mut endpoint = open(&path, "").unwrap().attach(&mut io).unwrap();
        let from = span(&io, &[7; 4096]);
        assert_eq!(endpoint.write_now(&io, 8192, &from), at == "/dev/shm");
        assert!(!endpoint.write_now(&io, (1 << 20) - 4095, &from), "a part is beyond the end");
        let mut read_only = open(&path, ",ro").unwrap().attach(&mut io).unwrap();
        assert!(!read_only.write_now(&io, 0, &from));
        let mut expected = vec![0xEE; 1 << 20];
        if at == "/dev/shm" {
            expected[8192..12288].fill(7);
        }
        assert!(fs::read(&path).unwrap() == expected);
    }
}

#[test]
fn a_file_on_a_disk_or_read_only_lends_nothing() {
    let mut io = new_io();
    for (directory, words) in [("/var/tmp", ""), ("/dev/shm", ",ro")] {
        let directory = tempfile::tempdir_in(directory).unwrap();
        let path = directory.path().join("image");
        fs::write(&path, [7; 8192]).unwrap();
        let mut endpoint = open(&path, words).unwrap().attach(&mut io).unwrap();
        assert_eq!(borrowed(&mut *endpoint, 0, 4096), None);
    }
}

#[test]
fn refusals() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    assert!(matches!(open(&path, ""), Err(OpenError::Missing(_))));
    assert!(matches!(open(&path, ",create"), Err(OpenError::Usage(_))));
    assert!(open(&path, ",create,size=1M").is_ok());
    assert!(matches!(open(&path, ",create,size=1M"), Err(OpenError::Refused(_))));
    assert!(matches!(open(&path, ",size=2M"), Err(OpenError::Usage(_))));
    assert_eq!(open(&path, ",size=2M,grow").unwrap().capability.size_bytes, 2 << 20);
    let held = open(&path, "").unwrap();
    assert!(matches!(open(&path, ""), Err(OpenError::Refused(_))), "two writers");
    drop(held);
    fs::write(&path, b"QFI\xfb and the rest").unwrap();
    assert!(matches!(open(&path, ""), Err(OpenError::Format { format: "qcow2", .. })));
    assert!(open(&path, ",format=raw").is_ok());
    assert!(matches!(open(directory.path(), ""), Err(OpenError::Usage(_))));
}

#[test]
fn a_read_only_endpoint_refuses_writes() {
    let (mut io, _directory, path) = image(8192);
    let mut endpoint = open(&path, ",ro").unwrap().attach(&mut io).unwrap();
    let from = span(&io, &[1; 4096]);
    let result = perform(&mut io, &mut *endpoint, Kind::Write { offset: 0, from, durable: false }).result;
    assert_eq!(result.unwrap_err().kind, IoErrorKind::ReadOnly);
}

#[test]
fn a_failed_flush_is_never_retried_into_success() {
    let (mut io, _directory, path) = image(8192);
    let medium = open(&path, "").unwrap();
    let mut endpoint = medium.attach(&mut io).unwrap();
    medium.shared.flush_failed.store(true, Ordering::Release);
    for _ in 0..2 {
        let result = perform(&mut io, &mut *endpoint, Kind::Flush).result;
        assert_eq!(result.unwrap_err().kind, IoErrorKind::FlushFailed);
    }
    let mut other = medium.attach(&mut io).unwrap();
    let from = span(&io, &[1; 4096]);
    let result = perform(&mut io, &mut *other, Kind::Write { offset: 0, from, durable: false }).result;
    assert_eq!(result.unwrap_err().kind, IoErrorKind::FlushFailed, "threads agree");
}

fn new_io() -> Io {
    Io::new(area::PoolLimits::default()).unwrap()
}

/// A loop, and a file of zeroes in a directory of its own.
fn image(bytes: usize) -> (Io, tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    fs::write(&path, vec![0; bytes]).unwrap();
    (new_io(), directory, path)
}

/// Drives the loop until `count` requests have completed.
fn settle(io: &mut Io, endpoint: &mut dyn Endpoint, count: usize, done: &mut Vec<Completion>) {
    let mut events = Vec::new();
    while done.len() < count {
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            endpoint.on_event(io, event, done);
        }
    }
}

#[test]
fn flushes_beside_each_other_share_one_that_began_after_them() {
    let mut io = new_io();
    for directory in directories() {
        let path = directory.path().join("image");
        fs::write(&path, vec![0; 65536]).unwrap();
        let mut endpoint = open(&path, "").unwrap().attach(&mut io).unwrap();
        let mut done = Vec::new();
        for round in 0..3 {
            for id in 0..8 {
                let from = span(&io, &[1; 4096]);
                let kind = match id % 2 {
                    0 => Kind::Flush,
                    _ => Kind::Write { offset: id * 4096, from, durable: true },
                };
                endpoint.submit(&mut io, Request { id, kind }, &mut done);
            }
            assert!(io.in_flight() <= 5, "round {round}: one flush is with the kernel");
            settle(&mut io, &mut *endpoint, 8, &mut done);
            let mut ids: Vec<_> = done.drain(..).map(|one| one.result.map(|()| one.id).unwrap()).collect();
            ids.sort_unstable();
            assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
        drop(endpoint);
    }
    assert_eq!(io.pool().borrowed(), 0);
}

#[test]
fn a_flush_that_fails_fails_all_that_wait_and_all_threads() {
    let (mut io, _directory, path) = image(65536);
    let medium = open(&path, "").unwrap();
    let mut well = medium.attach(&mut io).unwrap();
    // fsync on a pipe fails.
    let (pipe, _writer) = std::io::pipe().unwrap();
    let again = |file: &File| -> Handle { Rc::new(file.try_clone().unwrap().into()) };
    let handles = Handles {
        buffered: again(&medium.buffered),
        direct: None,
        in_memory: false,
        mapped: None,
        sync: Rc::new(std::os::fd::OwnedFd::from(pipe)),
    };
    let (identity, capability) = (medium.identity.clone(), medium.capability.clone());
    let mut ill = FileEndpoint::new(&io, handles, false, identity, capability, Arc::clone(&medium.shared));
    let mut done = Vec::new();
    // Durable writes through the page cache share the flush.
    for id in 0..4 {
        let durable = Kind::Write { offset: id * 4096, from: span(&io, &[1; 4096]), durable: true };
        let kind = if id % 2 == 0 { Kind::Flush } else { durable };
        ill.submit(&mut io, Request { id, kind }, &mut done);
    }
    settle(&mut io, &mut ill, 4, &mut done);
    for completion in done {
        assert_eq!(completion.result.unwrap_err().kind, IoErrorKind::FlushFailed);
    }
    let result = perform(&mut io, &mut *well, Kind::Flush).result;
    assert_eq!(result.unwrap_err().kind, IoErrorKind::FlushFailed, "threads agree");
}

/// A mounted file system of 1 MiB; unmounted when dropped.
struct SmallFileSystem(std::ffi::CString);

impl SmallFileSystem {
    /// `None` without the privilege to mount.
    fn mount(at: &Path) -> Option<Self> {
        let at = std::ffi::CString::new(at.to_str()?).ok()?;
        let (name, options) = (c"tmpfs".as_ptr(), c"size=1m".as_ptr());
        // SAFETY: a plain system call with live strings.
        let result = unsafe { libc::mount(name, at.as_ptr(), name, 0, options.cast()) };
        (result == 0).then_some(Self(at))
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // SAFETY: a plain system call with a live string.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_full_file_system_says_no_space() {
    let directory = tempfile::tempdir().unwrap();
    let Some(_mounted) = SmallFileSystem::mount(directory.path()) else { return };
    let mut io = new_io();
    let path = directory.path().join("image");
    File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let medium = open(&path, "").unwrap();
    let mut endpoint = medium.attach(&mut io).unwrap();
    for durable in [false, true] {
        let from = io.pool().take(2 << 20).unwrap();
        let write = Kind::Write { offset: 0, from, durable };
        let error = perform(&mut io, &mut *endpoint, write).result.unwrap_err();
        assert_eq!(error.kind, IoErrorKind::NoSpace, "{error}");
    }
    let zero = Kind::WriteZeroes { offset: 0, length: 2 << 20, may_unmap: true };
    perform(&mut io, &mut *endpoint, zero).result.unwrap();
    let from = io.pool().take(512 << 10).unwrap();
    let write = Kind::Write { offset: 1 << 20, from, durable: true };
    perform(&mut io, &mut *endpoint, write).result.unwrap();
    perform(&mut io, &mut *endpoint, Kind::Flush).result.unwrap();
}

/// A loop device; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None`, and a message, where loop devices are not allowed.
    fn over(file: &Path, arguments: &[&str]) -> Option<Self> {
        let run = std::process::Command::new("losetup").args(arguments).arg(file).output();
        let Some(output) = run.ok().filter(|output| output.status.success()) else {
            eprintln!("no loop device over {} (root is needed): skipped", file.display());
            return None;
        };
        Some(Self(String::from_utf8_lossy(&output.stdout).trim().into()))
    }

    fn detach(&self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Two files of 1 MiB; every byte is the file's number.
fn two_files(directory: &Path) -> [PathBuf; 2] {
    [1u8, 2].map(|number| {
        let path = directory.join(number.to_string());
        fs::write(&path, vec![number; 1 << 20]).unwrap();
        path
    })
}

#[test]
fn another_disk_under_an_open_device_is_an_error() {
    const LOOP_CHANGE_FD: libc::Ioctl = 0x4C06;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let [one, two] = two_files(directory.path());
    // The kernel exchanges the file of a read-only loop device while it is open.
    let Some(device) = Loop::over(&one, &["--find", "--show", "--read-only"]) else { return };
    let mut io = new_io();
    let spec = Spec::parse("x,ro").unwrap();
    let medium = FileMedium::open(&device.0, &spec, &OPTIONS).unwrap();
    let mut endpoint = medium.attach(&mut io).unwrap();
    let read = |io: &mut Io, endpoint: &mut dyn Endpoint| {
        let into = io.pool().take(4096).unwrap();
        perform(io, endpoint, Kind::Read { offset: 0, into: into.clone() }).result.unwrap();
        into.as_slice()[0]
    };
    assert_eq!(read(&mut io, &mut *endpoint), 1);
    for certainty in [crate::Evidence::Cached, crate::Evidence::Probed] {
        assert_eq!(endpoint.inspect().check_identity(certainty), Ok(()));
    }
    perform(&mut io, &mut *endpoint, Kind::Flush).result.unwrap();

    let two = File::open(two).unwrap();
    // SAFETY: a plain system call on live descriptors.
    let changed = unsafe { libc::ioctl(medium.buffered.as_raw_fd(), LOOP_CHANGE_FD, two.as_raw_fd()) };
    assert_eq!(changed, 0, "{}", Error::last_os_error());
    assert_eq!(read(&mut io, &mut *endpoint), 2, "the kernel says nothing");
    for certainty in [crate::Evidence::Cached, crate::Evidence::Probed] {
        let error = endpoint.inspect().check_identity(certainty).unwrap_err();
        assert_eq!(error.kind, IoErrorKind::Gone, "{error}");
    }
    let error = perform(&mut io, &mut *endpoint, Kind::Flush).result.unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Gone, "{error}");
    assert!(error.text.contains("another disk"), "{error}");
}

#[test]
fn another_disk_with_the_same_number_is_noticed() {
    use host::{Devices, Kernel, Lost, Monitor};
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let [one, two] = two_files(directory.path());
    let Some(device) = Loop::over(&one, &["--find", "--show"]) else { return };
    let mut devices = Devices::new(Kernel::default(), Monitor::new().ok());
    let opened = devices.open(fs::metadata(&device.0).unwrap().rdev()).unwrap();
    assert_eq!(device.0, Path::new("/dev").join(&opened.name));
    assert_eq!(opened.backing_file.as_deref(), Some(one.as_path()));
    assert_eq!((devices.check_cached(&opened), devices.check_probed(&opened)), (Ok(()), Ok(())));
    device.detach();
    let Some(_again) = Loop::over(&two, &[device.0.to_str().unwrap()]) else { return };
    assert_eq!(devices.check_cached(&opened), Err(Lost::TakenOver), "the kernel said so");
    let mut deaf = Devices::new(Kernel::default(), None);
    assert_eq!(deaf.check_probed(&opened), Err(Lost::TakenOver));
}

#[test]
fn a_new_file_is_for_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.img");
    drop(open(&path, ",create,size=4096").unwrap());
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn facts_are_those_of_the_open_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("a"), dir.path().join("b"));
    fs::write(&path, [1; 4096]).unwrap();
    let medium = open(&path, "").unwrap();
    let known = medium.lasting_name();
    fs::rename(&path, &moved).unwrap();
    fs::write(&path, [2; 8192]).unwrap();
    assert_eq!(medium.lasting_name(), known);
    assert_ne!(open(&path, "").unwrap().lasting_name(), known);
}

#[test]
fn a_loop_device_has_the_identity_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk.img");
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let attach = |offset: &str| Loop::over(&file, &["--find", "--show", "--offset", offset]);
    let [Some(one), Some(other), Some(behind)] = ["0", "0", "4096"].map(attach) else { return };
    let identity = |path: &Path| {
        let medium = FileMedium::open(path, &Spec::parse("x").unwrap(), &OPTIONS).unwrap();
        assert_eq!(medium.as_disk().is_some(), path.starts_with("/dev"));
        medium.identity.clone()
    };
    let [one, other, behind] = [one, other, behind].map(|device| identity(&device.0));
    assert_eq!((&one, &one), (&other, &identity(&file)));
    assert!(matches!(behind, Identity::File { offset: 4096, .. }), "{behind:?}");
}

/// A resumed copy compares the times that its destination had at the end of the interrupted one. A file system of which
/// the probe is not known keeps them for one opening only.
#[test]
fn opening_a_file_does_not_change_its_fingerprint() {
    let mut io = new_io();
    for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let path = dir.path().join("disk.img");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        let closed = host::Fingerprint::of_file(&fs::metadata(&path).unwrap(), 1 << 20);
        std::thread::sleep(Duration::from_millis(10));
        let mut endpoint = open(&path, "").unwrap().attach(&mut io).unwrap();
        assert_eq!(endpoint.inspect().fingerprint(), closed);
        assert!(endpoint.capability().discard || !dir.path().starts_with("/dev/shm"));
        let from = io.pool().take(4096).unwrap();
        perform(&mut io, &mut *endpoint, Kind::Write { offset: 0, from, durable: true }).result.unwrap();
        assert_ne!(endpoint.inspect().fingerprint(), closed, "it was written");
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk.img");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(10));
    drop(open(&path, "").unwrap());
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before, "on tmpfs nothing is probed");
}

#[test]
fn times_that_only_the_probes_have_set_are_those_of_before() {
    let file = tempfile::tempfile().unwrap();
    let at = |seconds| {
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        file.metadata().unwrap()
    };
    let [before, after, later] = [1, 2, 3].map(at);
    let shared = Shared { probed: Some([before, after.clone()]), ..Shared::default() };
    assert_eq!([&after, &later].map(|now| shared.unprobed(now).mtime()), [1, 3]);
}

/// Storage is written by a name other than its own, and the data stays in the page cache of the name that wrote it,
/// whose descriptor stays open.
#[test]
fn a_write_by_any_name_of_the_storage_changes_the_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk.img");
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let Some(device) = Loop::over(&file, &["--find", "--show", "--partscan"]) else { return };
    let part = PathBuf::from(format!("{}p1", device.0.display()));
    let added = std::process::Command::new("addpart").arg(&device.0).args(["1", "64", "512"]).status();
    if !added.is_ok_and(|status| status.success()) || !part.exists() {
        return eprintln!("no partition of {}: skipped", device.0.display());
    }
    let mut io = new_io();
    let names = [file.as_path(), &device.0, &part];
    let endpoints = names.map(|path| {
        let medium = FileMedium::open(path, &Spec::parse("x,ro").unwrap(), &OPTIONS).unwrap();
        medium.attach(&mut io).unwrap()
    });
    let contents = || endpoints.each_ref().map(|endpoint| endpoint.inspect().fingerprint().contents);
    let mut before = contents();
    assert_eq!(contents(), before, "nothing was written");
    for writer in names {
        std::thread::sleep(Duration::from_millis(10));
        let held = fs::OpenOptions::new().write(true).open(writer).unwrap();
        held.write_all_at(&[7; 4096], 128 << 10).unwrap();
        let after = contents();
        for (name, (before, after)) in names.iter().zip(before.iter().zip(&after)) {
            assert_ne!(before, after, "{} after a write to {}", name.display(), writer.display());
        }
        before = after;
        assert_eq!(contents(), before, "after a write to {}", writer.display());
    }
}
