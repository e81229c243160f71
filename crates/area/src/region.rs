//! One mapping of shared memory. The only place in this crate that talks to the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::PAGE_BYTES;

/// Size and alignment of a huge page on the architectures we run on.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Where the system says whether a process may have huge pages for the asking.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Size of the pages that large areas are cut from (see [`crate::Pool`]), as far as the system has them.
pub(crate) fn large_page_bytes() -> usize {
    let is_on = std::fs::read_to_string(HUGE_PAGES).is_ok_and(|modes| !modes.contains("[never]"));
    if is_on { HUGE_PAGE_BYTES } else { PAGE_BYTES }
}

/// Gives what the process's allocator holds and nothing uses back to the system, where the allocator can (glibc): milliseconds, for
/// a time after much was freed.
pub fn release_heap() {
    // SAFETY: the allocator's own call, under its own locks; no memory in use is touched.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory mapped into this process, page aligned, unmapped when dropped. It costs no descriptor.
///
/// Several threads (and later processes) may hold it at once, so access goes through raw pointers and the owner of a
/// range is agreed by protocol, not by the borrow checker.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a Region is an address range that stays mapped while the value lives; the pointer itself carries no
// thread affinity. Who may touch which bytes is the users' protocol (see the type's documentation).
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives out only a pointer and a length.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `length` bytes (rounded up to pages) of zeroed memory, in huge pages where it is made of whole ones and the
    /// system has them. With `populate`, every page is faulted in now, so that no page fault happens on the data path.
    ///
    /// Errors are the kernel's: out of memory or of address space.
    pub fn new(length: usize, populate: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if !populate || !length.is_multiple_of(HUGE_PAGE_BYTES) || length == 0 {
            let populate = if populate { libc::MAP_POPULATE } else { 0 };
            return Self::map(length, protection, flags | populate, -1);
        }
        let mut region = Self::map(length + HUGE_PAGE_BYTES, protection, flags, -1)?;
        region.align(length);
        // SAFETY: the whole mapping. Either may be refused: then pages are small, or come when they are used.
        unsafe {
            libc::madvise(region.base.as_ptr().cast(), length, libc::MADV_HUGEPAGE);
            libc::madvise(region.base.as_ptr().cast(), length, libc::MADV_POPULATE_WRITE);
        }
        Ok(region)
    }

    /// Cuts the mapping down to `length` bytes that begin with a huge page.
    fn align(&mut self, length: usize) {
        let base = self.base.as_ptr();
        let head = base.align_offset(HUGE_PAGE_BYTES);
        let tail = self.length - head - length;
        // SAFETY: both ranges lie inside the mapping and outside of what is kept, and have not been used yet.
        unsafe {
            if head > 0 {
                libc::munmap(base.cast(), head);
            }
            if tail > 0 {
                libc::munmap(base.add(head + length).cast(), tail);
            }
            self.base = self.base.add(head);
        }
        self.length = length;
    }

    /// The first `length` bytes of a file, to be read by the kernel alone: see [`crate::Span::stored`].
    pub fn of_file(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        Self::map(length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(length: usize, protection: i32, flags: i32, file: i32) -> io::Result<Self> {
        let length = length.max(1).next_multiple_of(PAGE_BYTES);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, length })
    }

    /// First byte of the mapping.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped, a multiple of [`PAGE_BYTES`].
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never true: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether all of `[offset, offset + length)` lies in memory; `false` if the kernel does not tell.
    ///
    /// # Panics
    /// If the range lies outside the region or does not begin with a page.
    pub fn is_resident(&self, offset: usize, length: usize) -> bool {
        assert!(offset <= self.length && length <= self.length - offset, "look outside the region");
        assert!(offset.is_multiple_of(PAGE_BYTES), "look at part of a page");
        let mut pages = [0u8; 256];
        let step = pages.len() * PAGE_BYTES;
        (offset..offset + length).step_by(step).all(|start| {
            let length = step.min(offset + length - start);
            // SAFETY: the range lies inside the mapping, and there is room for a byte per page of it.
            let result =
                unsafe { libc::mincore(self.base.as_ptr().add(start).cast(), length, pages.as_mut_ptr()) };
            result == 0 && pages[..length.div_ceil(PAGE_BYTES)].iter().all(|page| page & 1 == 1)
        })
    }

    /// Takes the pages of a mapped file out of this process's page table; the next look brings them back. Keeps what
    /// a process seems to use from growing to the size of the file.
    pub fn forget(&self) {
        // SAFETY: the whole mapping; of a shared mapping this drops no data. An error would only leave it as it is.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.length, libc::MADV_DONTNEED) };
    }

    /// Gives the pages of `[offset, offset + length)` back to the kernel; they read as zeroes afterwards.
    ///
    /// # Panics
    /// If the range lies outside the region or is not made of whole pages.
    pub fn punch(&self, offset: usize, length: usize) -> io::Result<()> {
        assert!(offset <= self.length && length <= self.length - offset, "punch outside the region");
        if length == 0 {
            return Ok(());
        }
        assert!((offset | length).is_multiple_of(PAGE_BYTES), "punch of part of a page");
        // SAFETY: the range lies inside the mapping; who may touch these bytes is the users' protocol.
        let result =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), length, libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: base and length are what mmap returned, and no Span or endpoint outlives its Region.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
