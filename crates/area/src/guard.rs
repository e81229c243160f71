//! Mapped files that this process may look at, although a file that shrinks answers such a look with SIGBUS.
//!
//! The handler puts a page of zeroes in the place of the one that is missing and marks the region as spoilt; whoever reads on
//! reads zeroes, and asks [`is_spoilt`](Entry::is_spoilt) before it believes what it has read. A SIGBUS at any other address
//! goes to whoever handled it before, or kills the process as it would have.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::PAGE_BYTES;

/// Regions guarded at once: two for each file that is memory would be few.
const REGIONS_MAX: usize = 1024;

/// A guarded range of addresses; none while `base` is zero. The handler only reads `base` and `end`.
struct Slot {
    base: AtomicUsize,
    end: AtomicUsize,
    spoilt: AtomicBool,
}

static SLOTS: [Slot; REGIONS_MAX] =
    [const { Slot { base: AtomicUsize::new(0), end: AtomicUsize::new(0), spoilt: AtomicBool::new(false) } };
        REGIONS_MAX];
/// Held to take or give back a slot; never by the handler.
static CHANGES: Mutex<()> = Mutex::new(());
/// What handled the signal before us.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A region's place among the guarded ones, until it is dropped: before the region is unmapped.
#[derive(Debug)]
pub(crate) struct Entry(usize);

impl Entry {
    /// Guards `length` bytes from `base`, a private or shared mapping of whole pages that stays until this is dropped.
    pub(crate) fn new(base: usize, length: usize) -> io::Result<Self> {
        let _lock = CHANGES.lock().expect("no panic while locked");
        install()?;
        let free = SLOTS.iter().position(|slot| slot.base.load(Ordering::Relaxed) == 0);
        let index = free.ok_or_else(|| io::Error::other("too many mapped files"))?;
        let slot = &SLOTS[index];
        slot.spoilt.store(false, Ordering::Relaxed);
        slot.end.store(base + length, Ordering::Relaxed);
        slot.base.store(base, Ordering::Release);
        Ok(Self(index))
    }

    /// Whether some of what was read there was not the file's.
    pub(crate) fn is_spoilt(&self) -> bool {
        SLOTS[self.0].spoilt.load(Ordering::Acquire)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        SLOTS[self.0].base.store(0, Ordering::Release);
    }
}

/// Installs the handler, once.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: sigaction is plain C data; both calls get valid pointers, and the handler keeps to what a handler may do.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        BEFORE.set(before).unwrap_or_else(|_| unreachable!("under the lock"));
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_bus_error as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Only loads and stores of atomics, and system calls that are safe in a handler.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo, which for SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let guarded = SLOTS.iter().find(|slot| {
        let base = slot.base.load(Ordering::Acquire);
        base != 0 && base <= address && address < slot.end.load(Ordering::Relaxed)
    });
    if let Some(slot) = guarded {
        let page = (address & !(PAGE_BYTES - 1)) as *mut libc::c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: errno is the thread's own, and put back. The page lies in a mapping that its owner keeps and that nobody
        // writes to: what takes its place are zeroes, unmapped with the rest.
        let mapped = unsafe {
            let errno = *libc::__errno_location();
            let mapped = libc::mmap(page, PAGE_BYTES, libc::PROT_READ, flags, -1, 0);
            *libc::__errno_location() = errno;
            mapped
        };
        if mapped != libc::MAP_FAILED {
            slot.spoilt.store(true, Ordering::Release);
            return;
        }
    }
    // SAFETY: what was there before is valid; the access is made again and finds it.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let before = BEFORE.get().unwrap_or(&default);
        libc::sigaction(libc::SIGBUS, std::ptr::from_ref(before), std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::*;
    use crate::{Region, Span};

    fn memory_file(length: usize) -> File {
        // SAFETY: a plain system call with a valid name; the descriptor is ours alone.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"guard".as_ptr(), 0)) };
        file.write_all_at(&vec![7; length], 0).unwrap();
        file
    }

    #[test]
    fn a_file_that_shrinks_reads_as_zeroes_and_is_known_as_spoilt() {
        let length = 8 * PAGE_BYTES;
        let (file, other) = (memory_file(length), memory_file(length));
        let map = |file: &File| Arc::new(Region::of_file_to_look_at(file.as_fd(), length).unwrap());
        let (region, sound) = (map(&file), map(&other));
        let span = Span::stored(Arc::clone(&region));
        assert!(span.as_slice().iter().all(|byte| *byte == 7) && !span.is_spoilt());
        file.set_len(3 * PAGE_BYTES as u64).unwrap();
        assert_eq!(span.range(0..PAGE_BYTES)[5], 7, "what is left");
        assert!(!span.is_spoilt(), "nobody has looked at what is gone");
        let gone = span.slice(3 * PAGE_BYTES, 5 * PAGE_BYTES);
        assert!(gone.as_slice().iter().all(|byte| *byte == 0));
        assert!(gone.is_spoilt() && span.is_spoilt() && region.is_spoilt());
        let sound = Span::stored(sound);
        assert!(sound.as_slice().iter().all(|byte| *byte == 7) && !sound.is_spoilt(), "another file");
    }

    #[test]
    fn a_slot_is_free_again_when_its_region_is_gone() {
        let file = memory_file(PAGE_BYTES);
        for _ in 0..2 * REGIONS_MAX {
            let region = Region::of_file_to_look_at(file.as_fd(), PAGE_BYTES).unwrap();
            assert!(!region.is_spoilt());
        }
    }
}
