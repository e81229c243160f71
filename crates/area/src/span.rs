//! The handle that travels instead of the bytes.

use std::fmt;
use std::rc::Rc;

use crate::pool::{Inner, Place};

/// Part of an area: (area, start, length). Keeps the area alive; cloning shares it.
///
/// Whoever holds spans of one area agrees by protocol who writes: while an operation that writes into a span
/// is in flight (a receive, a disk read), nobody looks at those bytes. Lifetime is the type's business (the
/// memory cannot go away), order is the driver's.
#[derive(Clone)]
pub struct Span {
    area: Rc<Area>,
    start: u32,
    length: u32,
}

struct Area {
    place: Place,
    pool: Rc<Inner>,
}

impl Drop for Area {
    fn drop(&mut self) {
        self.pool.give_back(self.place);
    }
}

impl Span {
    pub(crate) fn new(place: Place, length: usize, pool: Rc<Inner>) -> Self {
        let length = u32::try_from(length).expect("areas are at most 16 MiB");
        Self { area: Rc::new(Area { place, pool }), start: 0, length }
    }

    /// Bytes in the span.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the span has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte, for an operation that keeps a clone of this span until it is done.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: start lies within the area (checked when the span was made).
        unsafe { self.area.place.base.add(self.start as usize) }
    }

    /// `length` bytes from `start` of this span, sharing the area.
    ///
    /// # Panics
    /// If the range is not inside this span.
    #[must_use]
    pub fn slice(&self, start: usize, length: usize) -> Self {
        assert!(start <= self.len() && length <= self.len() - start, "slice outside its span");
        Self { area: Rc::clone(&self.area), start: self.start + start as u32, length: length as u32 }
    }

    /// The bytes, for looking at (parsing, digesting, comparing).
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is inside the area, which lives as long as `self`; areas are initialised memory
        // (fresh pages are zeroed). That nobody writes meanwhile is the protocol stated on the type.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Copies `bytes` into the span at `offset`. One of the two counted copies.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset, "fill outside the span");
        // SAFETY: the range was checked; `copy` allows overlap should `bytes` lie in the same area.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.as_ptr().add(offset), bytes.len()) };
    }

    /// Copies out of the span from `offset`. The other counted copy.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.as_slice()[offset..offset + into.len()]);
    }

    /// Sets `length` bytes from `offset` to zero.
    pub fn zero(&self, offset: usize, length: usize) {
        assert!(offset <= self.len() && length <= self.len() - offset, "zero outside the span");
        // SAFETY: the range was checked.
        unsafe { std::ptr::write_bytes(self.as_ptr().add(offset), 0, length) };
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:p}, {} bytes)", self.as_ptr(), self.length)
    }
}
