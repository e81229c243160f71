//! One memory mapping.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::PAGE_BYTES;

pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returns unused memory of the process's allocator to the system, if the allocator supports it (glibc). Takes
/// milliseconds; for a time after much memory was freed.
pub fn release_heap() {
    // SAFETY: a function of the allocator, which takes its own locks; no memory in use is affected.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory mapped into this process, page aligned, unmapped when dropped. It uses no descriptor.
///
/// Several threads may share it, so access goes through raw pointers, and a protocol of the users, not the borrow
/// checker, determines who owns a range.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a Region is an address range that stays mapped while the value lives; the pointer has no thread affinity. The
// protocol of the users orders accesses to the bytes (see the type's documentation).
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` yields only a pointer and a length.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `length` bytes (rounded up to pages) of zeroed memory; with `populate` and a multiple of 2 MiB in huge
    /// pages, if the system has them. `populate` faults in every page now, so that no page fault occurs on the data
    /// path.
    ///
    /// Errors are the kernel's: out of memory or of address space.
    pub fn new(length: usize, populate: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if !populate || !length.is_multiple_of(HUGE_PAGE_BYTES) || length == 0 {
            let populate = if populate { libc::MAP_POPULATE } else { 0 };
            return Self::map(length, protection, flags | populate, -1);
        }
        let region = Self::on_demand(length)?;
        // SAFETY: the range is the whole mapping. The call may fail: then pages are faulted in on first use.
        unsafe { libc::madvise(region.base.as_ptr().cast(), length, libc::MADV_POPULATE_WRITE) };
        Ok(region)
    }

    /// As [`Region::new`] with `populate`, but each huge page is faulted in at its first use: for memory of which little may
    /// ever be used. `length` is a multiple of 2 MiB.
    pub fn on_demand(length: usize) -> io::Result<Self> {
        assert!(length > 0 && length.is_multiple_of(HUGE_PAGE_BYTES), "whole huge pages");
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let mut region = Self::map(length + HUGE_PAGE_BYTES, protection, flags, -1)?;
        region.align(length);
        // SAFETY: the range is the whole mapping. The call may fail: then pages are small.
        unsafe { libc::madvise(region.base.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
        Ok(region)
    }

    /// Cuts the mapping down to `length` bytes that start at a huge page boundary.
    fn align(&mut self, length: usize) {
        let base = self.base.as_ptr();
        let head = base.align_offset(HUGE_PAGE_BYTES);
        let tail = self.length - head - length;
        // SAFETY: both ranges lie inside the mapping and outside of the part that is kept, and have not been used yet.
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

    /// Maps the first `length` bytes of a memfd, for this process and all others that map it; multiples of 2 MiB at an
    /// address where huge pages can be. With `writable` the descriptor must be open for writing.
    ///
    /// The memfd must be sealed against shrinking ([`crate::memfd::check`]) unless its maker is trusted: an access
    /// behind the end of a file is fatal (SIGBUS).
    pub fn shared(memory: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Self> {
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let (protection, memory) = (libc::PROT_READ | write, memory.as_raw_fd());
        if !length.is_multiple_of(HUGE_PAGE_BYTES) || length == 0 {
            return Self::map(length, protection, libc::MAP_SHARED, memory);
        }
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut region = Self::map(length + HUGE_PAGE_BYTES, libc::PROT_NONE, reserve, -1)?;
        region.align(length);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: replaces exactly the range that was just reserved and that nothing uses.
        let address =
            unsafe { libc::mmap(region.base.as_ptr().cast(), length, protection, flags, memory, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(region)
    }

    /// Faults a writable shared region in, so that no page fault occurs on the data path, and puts it into huge pages
    /// for all processes that map it. Returns whether it lies in huge pages: `false` if its length is no multiple of
    /// 2 MiB, or the kernel has no such memory free or does not know MADV_COLLAPSE (Linux 6.1).
    ///
    /// A memfd has no huge pages by itself: where /sys/kernel/mm/transparent_hugepage/shmem_enabled is `never`, the
    /// default, MADV_HUGEPAGE has no effect. MADV_COLLAPSE does it without rights, in about 1 ms for 2 MiB.
    pub fn collapse(&self) -> bool {
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is the whole mapping. Both calls only change which pages back it.
        unsafe {
            libc::madvise(base, self.length, libc::MADV_POPULATE_WRITE);
            self.length.is_multiple_of(HUGE_PAGE_BYTES)
                && libc::madvise(base, self.length, libc::MADV_COLLAPSE) == 0
        }
    }

    /// Maps the first `length` bytes of a file. Only the kernel may read them: see [`crate::Span::stored`].
    pub fn of_file(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        Self::map(length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(length: usize, protection: i32, flags: i32, file: i32) -> io::Result<Self> {
        let length = length.max(1).next_multiple_of(PAGE_BYTES);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, length })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Never true: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether all of `[offset, offset + length)` is resident in memory; `false` if the kernel does not report it.
    ///
    /// # Panics
    /// If the range lies outside the region or does not start at a page.
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

    /// Removes the pages of a mapped file from this process's page table; the next access maps them again. Bounds the
    /// resident size that the system reports for the process.
    pub fn forget(&self) {
        // SAFETY: the range is the whole mapping; for a shared mapping the call drops no data. An error leaves the
        // pages mapped.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.length, libc::MADV_DONTNEED) };
    }

    /// Returns the pages of `[offset, offset + length)` to the kernel; they then read as zeroes.
    ///
    /// # Panics
    /// If the range lies outside the region or does not consist of whole pages.
    pub fn punch(&self, offset: usize, length: usize) -> io::Result<()> {
        assert!(offset <= self.length && length <= self.length - offset, "punch outside the region");
        if length == 0 {
            return Ok(());
        }
        assert!((offset | length).is_multiple_of(PAGE_BYTES), "punch of part of a page");
        // SAFETY: the range lies inside the mapping; the protocol of the users orders accesses to these bytes.
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
        // SAFETY: base and length are the mapping, or the part of it that `align` kept; no Span or endpoint outlives
        // its Region.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;
    use crate::memfd;

    /// Bytes in huge pages of the mapping at an address, by /proc/self/smaps.
    fn huge_bytes(base: *mut u8) -> usize {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", base as usize);
        let mapping = maps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
        let line = mapping.take_while(|line| line.contains("kB") || line.starts_with("THPeligible"));
        let line = line.into_iter().find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn a_shared_region_lies_in_huge_pages_for_its_writer_and_its_readers() {
        let memory = memfd::create("test", HUGE_PAGE_BYTES).unwrap();
        let writer = Region::shared(memory.as_fd(), HUGE_PAGE_BYTES, true).unwrap();
        assert_eq!(writer.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        // SAFETY: the first byte of a mapping that no other thread uses.
        unsafe { writer.as_ptr().write(5) };
        if !writer.collapse() {
            eprintln!("no huge page is free");
            return;
        }
        let memory = memfd::read_only(memory.as_fd()).unwrap();
        let reader = Region::shared(memory.as_fd(), HUGE_PAGE_BYTES, false).unwrap();
        for region in [&writer, &reader] {
            // SAFETY: as above.
            unsafe {
                assert_eq!(region.as_ptr().read_volatile(), 5);
                assert_eq!(region.as_ptr().add(HUGE_PAGE_BYTES - 1).read_volatile(), 0);
            }
            assert_eq!(huge_bytes(region.as_ptr()), HUGE_PAGE_BYTES);
        }
    }

    #[test]
    fn a_region_of_other_sizes_is_faulted_in_small_pages() {
        let memory = memfd::create("test", 3 * PAGE_BYTES).unwrap();
        let region = Region::shared(memory.as_fd(), 3 * PAGE_BYTES, true).unwrap();
        assert!(!region.is_resident(0, region.len()));
        assert!(!region.collapse());
        assert!(region.is_resident(0, region.len()));
    }
}
