//! The handle that is passed instead of the bytes.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use crate::Region;
use crate::flight::{Access, Flights};
use crate::pool::{Inner, Place};

/// Part of an area: (area, start, length). It keeps the area alive; clones share it.
///
/// The type guarantees the lifetime of the memory; the drivers guarantee the order of accesses: while an operation that
/// writes into a span is in flight (a receive, a disk read), no other code accesses those bytes. Debug builds check
/// that.
#[derive(Clone)]
pub struct Span {
    area: Rc<Area>,
    start: usize,
    length: usize,
}

enum Area {
    /// Borrowed from a pool; dropping returns it.
    Pooled { place: Place, pool: Rc<Inner>, flights: Flights },
    /// Storage that is memory: the stored bytes themselves, not a copy.
    Stored(Arc<Region>),
    /// A file that is read on demand: without a mapping there are no page faults, and no signal if the file shrinks.
    File(Rc<OwnedFd>),
}

impl Area {
    fn base(&self) -> *mut u8 {
        match self {
            Self::Pooled { place, .. } => place.base,
            Self::Stored(region) => region.as_ptr(),
            Self::File(_) => panic!("bytes of a file have no address until they are fetched"),
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if let Self::Pooled { place, pool, .. } = self {
            pool.give_back(*place);
        }
    }
}

impl Span {
    pub(crate) fn new(place: Place, length: usize, pool: Rc<Inner>) -> Self {
        Self { area: Rc::new(Area::Pooled { place, pool, flights: Flights::default() }), start: 0, length }
    }

    /// A whole region, to send from without a copy; its bytes change when the storage is written. The caller slices it.
    ///
    /// Only the kernel may access the bytes of a mapped file ([`Region::of_file`]): if the file has shrunk, a system
    /// call returns EFAULT, while an access by this process would be fatal (SIGBUS).
    pub fn stored(region: Arc<Region>) -> Self {
        let length = region.len();
        Self { area: Rc::new(Area::Stored(region)), start: 0, length }
    }

    /// The first `length` bytes of a file. They have no address: [`Span::fetch`] copies them out. The caller slices the
    /// span.
    pub fn of_file(file: Rc<OwnedFd>, length: usize) -> Self {
        Self { area: Rc::new(Area::File(file)), start: 0, length }
    }

    /// Index of the pool's region that contains the span; `None` for stored bytes.
    pub fn region(&self) -> Option<u32> {
        match &*self.area {
            Area::Pooled { place, .. } => Some(place.region),
            Area::Stored(_) | Area::File(_) => None,
        }
    }

    /// Where the span is for another process that maps the pool's region: its index, and bytes from its start.
    pub fn place(&self) -> Option<(u32, usize)> {
        match &*self.area {
            Area::Pooled { place, .. } => Some((place.region, place.offset + self.start)),
            Area::Stored(_) | Area::File(_) => None,
        }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte, for an operation that keeps a clone of this span until it completes.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start` lies within the area (checked when the span was created).
        unsafe { self.area.base().add(self.start) }
    }

    /// `length` bytes from `start` of this span, sharing the area.
    ///
    /// # Panics
    /// If the range is not inside this span.
    #[must_use]
    pub fn slice(&self, start: usize, length: usize) -> Self {
        assert!(start <= self.len() && length <= self.len() - start, "slice outside its span");
        Self { area: Rc::clone(&self.area), start: self.start + start, length }
    }

    pub fn as_slice(&self) -> &[u8] {
        self.range(0..self.length)
    }

    /// Part of the bytes, while operations on other parts may be in flight.
    pub fn range(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.length, "range outside the span");
        self.check(range.start, range.len(), Access::Read);
        // SAFETY: the range is inside the area, which lives as long as `self`; areas are initialised memory (new pages
        // are zeroed). The protocol on the type excludes a concurrent write.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(range.start), range.len()) }
    }

    /// Copies `bytes` into the span at `offset`. One of the two counted copies.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset, "fill outside the span");
        self.check(offset, bytes.len(), Access::Write);
        // SAFETY: the range was checked; `copy` allows overlap should `bytes` lie in the same area.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.as_ptr().add(offset), bytes.len()) };
    }

    /// Copies out of the span from `offset`. The other counted copy.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(self.range(offset..offset + into.len()));
    }

    /// Passes `length` bytes from `offset` to `change` for modification in place (opening sealed data). `change` must
    /// not access them through another span; debug builds check that.
    ///
    /// # Panics
    /// If the range is not inside this span, or the bytes are stored ones, which belong to the storage.
    pub fn change<T>(&self, offset: usize, length: usize, change: impl FnOnce(&mut [u8]) -> T) -> T {
        let part = self.slice(offset, length);
        assert!(matches!(*part.area, Area::Pooled { .. }), "change of stored bytes");
        part.begin_flight(Access::Write);
        // SAFETY: the range is inside the area, which lives as long as `part`. The protocol on the type excludes other
        // accesses to these bytes meanwhile, and a span stays on its thread.
        let result = change(unsafe { std::slice::from_raw_parts_mut(part.as_ptr(), length) });
        part.end_flight();
        result
    }

    /// The bytes, if they cannot change while the span is held: those of a pool's area. Stored bytes change when the
    /// storage is written; code that must read each byte only once uses [`Span::fetch`].
    pub fn steady(&self) -> Option<&[u8]> {
        match &*self.area {
            Area::Pooled { .. } => Some(self.as_slice()),
            Area::Stored(_) | Area::File(_) => None,
        }
    }

    /// The file and the place in it, for a system call that takes them; `None` for bytes with an address.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &*self.area {
            Area::File(file) => Some((file.as_fd(), self.start as u64)),
            Area::Pooled { .. } | Area::Stored(_) => None,
        }
    }

    /// Copies out of the span from `offset`, for every kind of span; each byte is read once. Errors are those of
    /// reading a file; `UnexpectedEof` if it has shrunk.
    pub fn fetch(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        assert!(offset <= self.len() && into.len() <= self.len() - offset, "fetch outside the span");
        let file = match &*self.area {
            Area::Pooled { .. } => {
                self.read(offset, into);
                return Ok(());
            }
            Area::Stored(_) => {
                // SAFETY: the range was checked, and lies in a region that lives as long as `self`; `into` is a
                // separate buffer of the caller. Another thread may write the storage meanwhile, as any READ may race
                // with a WRITE: no reference to these bytes is created, and `into` receives a fixed mixture of old and
                // new bytes.
                unsafe {
                    let from = self.as_ptr().add(offset);
                    std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
                }
                return Ok(());
            }
            Area::File(file) => file,
        };
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let at = (self.start + offset + done) as libc::off_t;
            // SAFETY: a plain system call on a live descriptor, into `rest`, which is borrowed mutably for its length.
            let count = unsafe { libc::pread(file.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), at) };
            match usize::try_from(count) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    pub fn zero(&self, offset: usize, length: usize) {
        assert!(offset <= self.len() && length <= self.len() - offset, "zero outside the span");
        self.check(offset, length, Access::Write);
        // SAFETY: the range was checked.
        unsafe { std::ptr::write_bytes(self.as_ptr().add(offset), 0, length) };
    }

    /// Marks the start of an operation on the whole span. Debug builds record it, and panic on a conflicting operation
    /// or access before [`Span::end_flight`]. Stored bytes are not checked.
    #[inline]
    pub fn begin_flight(&self, access: Access) {
        if let Area::Pooled { flights, .. } = &*self.area {
            flights.begin(self.start..self.start + self.length, access);
        }
    }

    #[inline]
    pub fn end_flight(&self) {
        if let Area::Pooled { flights, .. } = &*self.area {
            flights.end(&(self.start..self.start + self.length));
        }
    }

    #[inline]
    fn check(&self, offset: usize, length: usize, access: Access) {
        if let Area::Pooled { flights, .. } = &*self.area {
            let start = self.start + offset;
            flights.check(&(start..start + length), access);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.area {
            Area::File(_) => write!(f, "Span(file at {}, {} bytes)", self.start, self.length),
            _ => write!(f, "Span({:p}, {} bytes)", self.as_ptr(), self.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Write as _};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn bytes_of_a_file_are_fetched_as_they_are_then_and_a_file_that_shrinks_is_an_error() {
        let mut file = File::from(memfd_create("span", MemfdFlags::empty()).unwrap());
        let bytes: Vec<u8> = (0..10_000).map(|at| (at / 7) as u8).collect();
        file.write_all(&bytes).unwrap();
        let span = Span::of_file(Rc::new(file.try_clone().unwrap().into()), bytes.len());
        let part = span.slice(1000, 5000).slice(500, 4000);
        assert!(part.steady().is_none());
        assert_eq!(part.file().unwrap().1, 1500, "its place in the file");
        let mut into = [0; 100];
        part.fetch(3900, &mut into).unwrap();
        assert_eq!(into, bytes[5400..5500]);
        file.set_len(5450).unwrap();
        assert_eq!(part.fetch(3900, &mut into).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        part.fetch(3800, &mut into).unwrap();
        assert_eq!(into, bytes[5300..5400], "what is left");
    }

    #[test]
    #[should_panic(expected = "fetch outside the span")]
    fn a_fetch_behind_the_end_is_caught() {
        let file = memfd_create("span", MemfdFlags::empty()).unwrap();
        let _ = Span::of_file(Rc::new(file), 100).slice(0, 50).fetch(40, &mut [0; 11]);
    }
}
