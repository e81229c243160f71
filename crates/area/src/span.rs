//! The handle that travels instead of the bytes.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use crate::Region;
use crate::flight::{Access, Flights};
use crate::pool::{Inner, Place};

/// Part of an area: (area, start, length). Keeps the area alive; cloning shares it.
///
/// Holders of spans of one area agree by protocol which of them writes: while an operation that writes into a span
/// is in flight (a receive, a disk read), no other code reads those bytes. Lifetime is the type's business (the
/// memory cannot go away), order is the driver's; debug builds watch it.
#[derive(Clone)]
pub struct Span {
    area: Rc<Area>,
    start: usize,
    length: usize,
}

/// What keeps the bytes where they are.
enum Area {
    /// Lent by a pool, and given back.
    Pooled { place: Place, pool: Rc<Inner>, flights: Flights },
    /// Storage that is memory: no buffer, the thing itself.
    Stored(Arc<Region>),
    /// A file, read when its bytes are wanted: nothing is mapped, so no page fault is paid, and no signal comes if it shrinks.
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

    /// A whole region, to send from without copying; its bytes change when the storage is written. Slice it.
    ///
    /// Of a mapped file ([`Region::of_file`]) only the kernel may touch the bytes: it answers EFAULT where the file
    /// has shrunk, this process would be killed.
    pub fn stored(region: Arc<Region>) -> Self {
        let length = region.len();
        Self { area: Rc::new(Area::Stored(region)), start: 0, length }
    }

    /// The first `length` bytes of a file. They have no address: [`Span::fetch`] copies them out. Slice it.
    pub fn of_file(file: Rc<OwnedFd>, length: usize) -> Self {
        Self { area: Rc::new(Area::File(file)), start: 0, length }
    }

    /// The number of the pool's region it lies in; `None` for stored bytes.
    pub fn region(&self) -> Option<u32> {
        match &*self.area {
            Area::Pooled { place, .. } => Some(place.region),
            Area::Stored(_) | Area::File(_) => None,
        }
    }

    /// Bytes in the span.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the span has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte, for an operation that keeps a clone of this span until it is done.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: start lies within the area (checked when the span was made).
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

    /// The bytes, for looking at (parsing, digesting, comparing).
    pub fn as_slice(&self) -> &[u8] {
        self.range(0..self.length)
    }

    /// Some of the bytes, where others may be in flight.
    pub fn range(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.length, "range outside the span");
        self.check(range.start, range.len(), Access::Read);
        // SAFETY: the range is inside the area, which lives as long as `self`; areas are initialised memory
        // (fresh pages are zeroed). That no write runs meanwhile is the protocol stated on the type.
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

    /// Lets `change` work on `length` bytes from `offset` where they lie (opening what came sealed). Whatever else it looks at
    /// must be other bytes: debug builds watch that too.
    ///
    /// # Panics
    /// If the range is not inside this span, or the bytes are stored ones: those belong to the storage.
    pub fn change<T>(&self, offset: usize, length: usize, change: impl FnOnce(&mut [u8]) -> T) -> T {
        let part = self.slice(offset, length);
        assert!(matches!(*part.area, Area::Pooled { .. }), "change of stored bytes");
        part.begin_flight(Access::Write);
        // SAFETY: the range is inside the area, which lives as long as `part`. No other code reads or changes these bytes
        // them meanwhile: that is the protocol stated on the type, and a span stays on its thread.
        let result = change(unsafe { std::slice::from_raw_parts_mut(part.as_ptr(), length) });
        part.end_flight();
        result
    }

    /// The bytes, if they stay as they are while the span is held: those of a pool's area. What belongs to storage changes when
    /// that is written, and has to be [fetched](Span::fetch) by code that must read each byte only once.
    pub fn steady(&self) -> Option<&[u8]> {
        match &*self.area {
            Area::Pooled { .. } => Some(self.as_slice()),
            Area::Stored(_) | Area::File(_) => None,
        }
    }

    /// Copies out of the span from `offset`, wherever the bytes lie, each once. Errors are those of reading a file; `UnexpectedEof` where
    /// it has shrunk.
    pub fn fetch(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        assert!(offset <= self.len() && into.len() <= self.len() - offset, "fetch outside the span");
        let file = match &*self.area {
            Area::Pooled { .. } => {
                self.read(offset, into);
                return Ok(());
            }
            Area::Stored(_) => {
                // SAFETY: the range was checked, and lies in a region that lives as long as `self`; `into` is a buffer of the
                // caller's. Another thread may write the storage meanwhile, as any READ may race with a WRITE: no reference to
                // these bytes is made, and what arrives in `into` is some mixture of old and new that stays as it is.
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
            // SAFETY: a plain system call on a live descriptor, into bytes that are ours for its length.
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

    /// Sets `length` bytes from `offset` to zero.
    pub fn zero(&self, offset: usize, length: usize) {
        assert!(offset <= self.len() && length <= self.len() - offset, "zero outside the span");
        self.check(offset, length, Access::Write);
        // SAFETY: the range was checked.
        unsafe { std::ptr::write_bytes(self.as_ptr().add(offset), 0, length) };
    }

    /// An operation on the whole span begins. Debug builds note it, and panic if another one, or code that reads
    /// the bytes or changes them before [`Span::end_flight`], is in its way. Stored bytes are not watched.
    #[inline]
    pub fn begin_flight(&self, access: Access) {
        if let Area::Pooled { flights, .. } = &*self.area {
            flights.begin(self.start..self.start + self.length, access);
        }
    }

    /// An operation on the whole span is over.
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
    use std::os::fd::FromRawFd;

    use super::*;

    #[test]
    fn bytes_of_a_file_are_fetched_as_they_are_then_and_a_file_that_shrinks_is_an_error() {
        // SAFETY: a plain system call with a valid name; the descriptor is ours alone.
        let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"span".as_ptr(), 0)) };
        let bytes: Vec<u8> = (0..10_000).map(|at| (at / 7) as u8).collect();
        file.write_all(&bytes).unwrap();
        let span = Span::of_file(Rc::new(file.try_clone().unwrap().into()), bytes.len());
        let part = span.slice(1000, 5000).slice(500, 4000);
        assert!(part.steady().is_none());
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
        // SAFETY: as above.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"span".as_ptr(), 0)) };
        let _ = Span::of_file(Rc::new(file), 100).slice(0, 50).fetch(40, &mut [0; 11]);
    }
}
