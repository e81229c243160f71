//! Four ways to hand an area from one process to the next, behind one interface, for measurements. The stack itself uses
//! tokens: `docs/internals/net.md`, "Hand-over modes", has the comparison.
//!
//! An [`Owner`] makes areas, and lends them to the process of a [`Taker`], which may forward them to a third one. Only the
//! memory is the matter here; that an area is handed over is said through a ring. The order of calls for one area:
//!
//! | owner | taker | next taker |
//! |---|---|---|
//! | writes, [`Owner::give`] | | |
//! | | [`Taker::take`], reads, [`Taker::give`] | |
//! | | | [`Taker::take`], reads, [`Taker::give_back`] |
//! | [`Owner::take_back`] | | |
//!
//! A call out of order is not noticed. It reads memory of another state, or is a fault of the process that made it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use area::{PAGE_BYTES, Region, memfd};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap, mmap_anonymous, munmap, userfaultfd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Both processes map the memory all the time, and nothing is done to it: who may use an area is an agreement.
    Token,
    /// As `Token`, and while an area is with a taker, the owner's mapping of it is write-protected by userfaultfd. The
    /// taker holds the userfaultfd. A thread that writes meanwhile stands still until the area is given back.
    WriteProtected,
    /// The paper's: an area is detached from the address space of who gives it and attached to that of who takes it.
    /// Each area is a memfd.
    Reattached,
    /// As in MINIX: a taker copies the area into memory of its own, and forwards the copy.
    Copying,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [Self::Token, Self::WriteProtected, Self::Reattached, Self::Copying];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "token",
            Self::WriteProtected => "write-protected",
            Self::Reattached => "re-attached",
            Self::Copying => "copying",
        })
    }
}

/// What a process needs to be a [`Taker`]. The descriptors travel beside a message; the numbers in it.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) mode: Mode,
    pub(super) areas: usize,
    /// Of one area, whole pages.
    pub(super) area_bytes: usize,
    /// One for all areas, or one each if they are re-attached.
    pub(super) memory: Vec<OwnedFd>,
    /// Of the owner's mapping: its userfaultfd, which the owner does not keep, and its address.
    pub(super) guard: Option<(OwnedFd, u64)>,
}

/// Areas of this process, which it writes.
#[derive(Debug)]
pub(super) struct Owner {
    mode: Mode,
    areas: usize,
    area_bytes: usize,
    memory: Vec<OwnedFd>,
    mapped: Mapped,
}

/// Areas that another process lends.
#[derive(Debug)]
pub(super) struct Taker {
    lent: Lent,
    mapped: Mapped,
    copies: Option<(OwnedFd, Region)>,
}

#[derive(Debug)]
enum Mapped {
    Always(Region),
    Windows(Vec<Window>),
}

impl Mapped {
    fn area(&self, area: usize, area_bytes: usize) -> *mut u8 {
        match self {
            Self::Always(region) => part(region, area, area_bytes),
            Self::Windows(windows) => windows[area].base.cast(),
        }
    }
}

fn part(region: &Region, area: usize, area_bytes: usize) -> *mut u8 {
    assert!((area + 1) * area_bytes <= region.len(), "area {area} outside of its region");
    // SAFETY: inside the region.
    unsafe { region.as_ptr().add(area * area_bytes) }
}

impl Owner {
    /// Makes `areas` areas of `area_bytes` bytes, rounded up to pages.
    pub(super) fn new(mode: Mode, areas: usize, area_bytes: usize) -> io::Result<Self> {
        let area_bytes = area_bytes.next_multiple_of(PAGE_BYTES);
        let (memory, mapped) = if mode == Mode::Reattached {
            let memory: Vec<_> =
                (0..areas).map(|_| memfd::create("area", area_bytes)).collect::<io::Result<_>>()?;
            let windows = memory.iter().map(|memory| {
                let window = Window::new(area_bytes)?;
                window.attach(memory.as_fd())?;
                Ok(window)
            });
            let mapped = Mapped::Windows(windows.collect::<io::Result<_>>()?);
            (memory, mapped)
        } else {
            let memory = memfd::create("areas", areas * area_bytes)?;
            let region = Region::shared(memory.as_fd(), areas * area_bytes, true)?;
            region.collapse();
            (vec![memory], Mapped::Always(region))
        };
        Ok(Self { mode, areas, area_bytes, memory, mapped })
    }

    /// For the process that takes. Write-protected areas can be lent once, because a mapping has one userfaultfd.
    pub(super) fn lend(&self) -> io::Result<Lent> {
        let guard = match &self.mapped {
            Mapped::Always(region) if self.mode == Mode::WriteProtected => {
                Some((guard(region)?, region.as_ptr() as u64))
            }
            _ => None,
        };
        let lend = |memory: &OwnedFd| match self.mode {
            Mode::Reattached => memory.try_clone(),
            _ => memfd::read_only(memory.as_fd()),
        };
        let memory = self.memory.iter().map(lend).collect::<io::Result<_>>()?;
        Ok(Lent { mode: self.mode, areas: self.areas, area_bytes: self.area_bytes, memory, guard })
    }

    /// Before the taker learns of the area.
    pub(super) fn give(&mut self, area: usize) -> io::Result<()> {
        match &self.mapped {
            Mapped::Always(_) => Ok(()),
            Mapped::Windows(windows) => windows[area].detach(),
        }
    }

    /// After the area came back.
    pub(super) fn take_back(&mut self, area: usize) -> io::Result<()> {
        match &self.mapped {
            Mapped::Always(_) => Ok(()),
            Mapped::Windows(windows) => windows[area].attach(self.memory[area].as_fd()),
        }
    }

    /// Of the area's first byte. Only while the area is here.
    pub(super) fn area(&self, area: usize) -> *mut u8 {
        self.mapped.area(area, self.area_bytes)
    }
}

impl Taker {
    pub(super) fn new(lent: Lent) -> io::Result<Self> {
        let bytes = lent.areas * lent.area_bytes;
        let (mapped, copies) = match lent.mode {
            Mode::Reattached => {
                let windows = (0..lent.areas).map(|_| Window::new(lent.area_bytes));
                (Mapped::Windows(windows.collect::<io::Result<_>>()?), None)
            }
            mode => {
                let memory = lent.memory.first().ok_or(io::ErrorKind::InvalidInput)?;
                let mapped = Mapped::Always(Region::shared(memory.as_fd(), bytes, false)?);
                let copies = (mode == Mode::Copying).then(|| {
                    let memory = memfd::create("copies", bytes)?;
                    let region = Region::shared(memory.as_fd(), bytes, true)?;
                    region.collapse();
                    Ok::<_, io::Error>((memory, region))
                });
                (mapped, copies.transpose()?)
            }
        };
        Ok(Self { lent, mapped, copies })
    }

    /// For the next taker. Areas that are write-protected are so already.
    pub(super) fn forward(&self) -> io::Result<Lent> {
        let Lent { mode, areas, area_bytes, .. } = self.lent;
        let memory = match &self.copies {
            Some((memory, _)) => vec![memfd::read_only(memory.as_fd())?],
            None => self.lent.memory.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?,
        };
        Ok(Lent { mode, areas, area_bytes, memory, guard: None })
    }

    /// After the area has come, of which `length` bytes are used.
    pub(super) fn take(&mut self, area: usize, length: usize) -> io::Result<()> {
        assert!(length <= self.lent.area_bytes, "{length} bytes of an area");
        match &self.mapped {
            Mapped::Windows(windows) => windows[area].attach(self.lent.memory[area].as_fd())?,
            Mapped::Always(region) => {
                let from = part(region, area, self.lent.area_bytes);
                if let Some((_, copies)) = &self.copies {
                    let into = part(copies, area, self.lent.area_bytes);
                    // SAFETY: both areas have `length` bytes (asserted) in separate mappings. The owner may write
                    // meanwhile if it breaks the rules; the copy then has whatever was there.
                    unsafe { ptr::copy_nonoverlapping(from, into, length) };
                }
                self.protect(area, true)?;
            }
        }
        Ok(())
    }

    /// Before the next taker learns of the area.
    pub(super) fn give(&mut self, area: usize) -> io::Result<()> {
        match &self.mapped {
            Mapped::Always(_) => Ok(()),
            Mapped::Windows(windows) => windows[area].detach(),
        }
    }

    /// Before the owner learns that it has the area again. Areas that are write-protected must be given back by the taker
    /// that the owner lent them to, which has the userfaultfd.
    pub(super) fn give_back(&mut self, area: usize) -> io::Result<()> {
        match &self.mapped {
            Mapped::Always(_) => self.protect(area, false),
            Mapped::Windows(windows) => windows[area].detach(),
        }
    }

    /// Of the first byte of the area, or of its copy. Only while the area is here.
    pub(super) fn area(&self, area: usize) -> *const u8 {
        match &self.copies {
            Some((_, copies)) => part(copies, area, self.lent.area_bytes),
            None => self.mapped.area(area, self.lent.area_bytes),
        }
    }

    /// Stops the owner's writes to an area, or permits them and wakes who stood still.
    fn protect(&self, area: usize, is_protected: bool) -> io::Result<()> {
        let Some((guard, base)) = &self.lent.guard else { return Ok(()) };
        let mut request = WriteProtect {
            start: base + (area * self.lent.area_bytes) as u64,
            length: self.lent.area_bytes as u64,
            mode: if is_protected { WRITEPROTECT_MODE_WP } else { 0 },
        };
        control(guard.as_fd(), UFFDIO_WRITEPROTECT, &mut request)
    }
}

/// Address space of this process, with memory attached to it or not.
#[derive(Debug)]
struct Window {
    base: *mut std::ffi::c_void,
    bytes: usize,
}

const EMPTY: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

impl Window {
    fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), EMPTY)? };
        Ok(Self { base, bytes })
    }

    fn attach(&self, memory: BorrowedFd<'_>) -> io::Result<()> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: replaces the window's own range, which nothing uses while the area is not here.
        unsafe { mmap(self.base, self.bytes, protection, flags, memory, 0)? };
        Ok(())
    }

    /// Leaves an empty mapping, lest another one comes in its place.
    fn detach(&self) -> io::Result<()> {
        // SAFETY: as for `attach`; whoever gives an area does not use it any more.
        unsafe { mmap_anonymous(self.base, self.bytes, ProtFlags::empty(), EMPTY | MapFlags::FIXED)? };
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the window's own range; pointers into it are not used beyond the life of its owner.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

// linux/userfaultfd.h
const UFFD_USER_MODE_ONLY: u32 = 1;
const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1;
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFDIO_REGISTER: u64 = 0xC020_AA00;
const UFFDIO_WRITEPROTECT: u64 = 0xC018_AA06;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    length: u64,
    mode: u64,
}

/// A userfaultfd for write-protection of a region. It needs no rights, because faults of the kernel are not its
/// business: a system call that would write into a protected area fails with EFAULT.
fn guard(region: &Region) -> io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC
        | UserfaultfdFlags::NONBLOCK
        | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
    // SAFETY: the descriptor is used for the region alone.
    let guard = unsafe { userfaultfd(flags)? };
    let features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    control(guard.as_fd(), UFFDIO_API, &mut Api { api: UFFD_API, features, ioctls: 0 })?;
    let (start, length) = (region.as_ptr() as u64, region.len() as u64);
    let mut register = Register { start, length, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
    control(guard.as_fd(), UFFDIO_REGISTER, &mut register)?;
    Ok(guard)
}

fn control<T>(guard: BorrowedFd<'_>, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each request above is used with its own structure, which has the size that the number of the request
    // contains and outlives the call.
    let result = unsafe { libc::ioctl(guard.as_raw_fd(), request, ptr::from_mut(argument)) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::time::Duration;

    use super::*;

    const AREA_BYTES: usize = 3 * PAGE_BYTES;

    fn byte<'a>(area: *const u8, offset: usize) -> &'a AtomicU8 {
        assert!(offset < AREA_BYTES);
        // SAFETY: inside an area that stays mapped for the test; all accesses are atomic.
        unsafe { AtomicU8::from_ptr(area.cast_mut().add(offset)) }
    }

    fn is_attached(area: *const u8) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", area as usize);
        maps.lines()
            .any(|line| line.starts_with(&start) && line.contains(" rw-s ") && line.contains("memfd:area"))
    }

    /// Of a mapped page, by /proc/self/pagemap (root).
    fn frame(area: *const u8) -> u64 {
        use std::os::unix::fs::FileExt as _;
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, area as u64 / PAGE_BYTES as u64 * 8).unwrap();
        u64::from_ne_bytes(entry) & ((1 << 55) - 1)
    }

    #[test]
    fn bytes_reach_the_second_taker_and_areas_come_back_in_every_mode() {
        for mode in Mode::ALL {
            let mut owner = Owner::new(mode, 3, AREA_BYTES - 100).unwrap();
            let mut first = Taker::new(owner.lend().unwrap()).unwrap();
            let mut second = Taker::new(first.forward().unwrap()).unwrap();
            for round in 1..4 {
                for area in 0..3 {
                    let value = round * 10 + area as u8;
                    byte(owner.area(area), AREA_BYTES - 1).store(value, Ordering::Relaxed);
                    owner.give(area).unwrap();
                    first.take(area, AREA_BYTES).unwrap();
                    assert_eq!(
                        byte(first.area(area), AREA_BYTES - 1).load(Ordering::Relaxed),
                        value,
                        "{mode}"
                    );
                    first.give(area).unwrap();
                    second.take(area, AREA_BYTES).unwrap();
                    assert_eq!(
                        byte(second.area(area), AREA_BYTES - 1).load(Ordering::Relaxed),
                        value,
                        "{mode}"
                    );
                    second.give_back(area).unwrap();
                    if mode == Mode::WriteProtected {
                        first.give_back(area).unwrap();
                    }
                    owner.take_back(area).unwrap();
                }
            }
        }
    }

    #[test]
    fn one_page_frame_serves_all_unless_bytes_are_copied() {
        for mode in Mode::ALL {
            let mut owner = Owner::new(mode, 2, AREA_BYTES).unwrap();
            let mut taker = Taker::new(owner.lend().unwrap()).unwrap();
            byte(owner.area(1), 0).store(1, Ordering::Relaxed);
            let before = frame(owner.area(1));
            owner.give(1).unwrap();
            taker.take(1, AREA_BYTES).unwrap();
            assert_eq!(byte(taker.area(1), 0).load(Ordering::Relaxed), 1);
            let after = frame(taker.area(1));
            if before == 0 {
                eprintln!("no right to see page frames");
                return;
            }
            assert_eq!(before == after, mode != Mode::Copying, "{mode}");
        }
    }

    #[test]
    fn a_re_attached_area_is_mapped_in_one_place_at_most() {
        let mut owner = Owner::new(Mode::Reattached, 2, AREA_BYTES).unwrap();
        let mut taker = Taker::new(owner.lend().unwrap()).unwrap();
        assert_eq!((is_attached(owner.area(1)), is_attached(taker.area(1))), (true, false));
        owner.give(1).unwrap();
        assert_eq!((is_attached(owner.area(1)), is_attached(taker.area(1))), (false, false));
        taker.take(1, AREA_BYTES).unwrap();
        assert_eq!((is_attached(owner.area(1)), is_attached(taker.area(1))), (false, true));
        assert!(is_attached(owner.area(0)), "the other area stays");
        taker.give_back(1).unwrap();
        owner.take_back(1).unwrap();
        assert_eq!((is_attached(owner.area(1)), is_attached(taker.area(1))), (true, false));
    }

    #[test]
    fn a_stray_write_waits_until_a_write_protected_area_is_given_back() {
        let mut owner = Owner::new(Mode::WriteProtected, 2, AREA_BYTES).unwrap();
        let mut taker = Taker::new(owner.lend().unwrap()).unwrap();
        let (held, free) = (byte(owner.area(0), PAGE_BYTES), byte(owner.area(1), PAGE_BYTES));
        held.store(1, Ordering::Relaxed);
        owner.give(0).unwrap();
        taker.take(0, AREA_BYTES).unwrap();
        free.store(5, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| held.store(2, Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!writer.is_finished());
            assert_eq!(byte(taker.area(0), PAGE_BYTES).load(Ordering::Relaxed), 1);
            taker.give_back(0).unwrap();
        });
        assert_eq!(byte(taker.area(0), PAGE_BYTES).load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_copy_does_not_change_with_its_original() {
        let mut owner = Owner::new(Mode::Copying, 1, AREA_BYTES).unwrap();
        let mut taker = Taker::new(owner.lend().unwrap()).unwrap();
        byte(owner.area(0), 0).store(1, Ordering::Relaxed);
        byte(owner.area(0), 10).store(1, Ordering::Relaxed);
        owner.give(0).unwrap();
        taker.take(0, 10).unwrap();
        byte(owner.area(0), 0).store(2, Ordering::Relaxed);
        let seen = [0, 10].map(|offset| byte(taker.area(0), offset).load(Ordering::Relaxed));
        assert_eq!(seen, [1, 0], "as it was, and no more than was used");
    }
}
