//! Lends areas out of regions, newest first, so that the memory in hot use stays in the cache.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use crate::{PAGE_BYTES, Region, Span};

/// Smallest area, one page.
const CLASS_MIN_SHIFT: u32 = PAGE_BYTES.trailing_zeros();
/// Largest area: 16 MiB. A request for more is refused; split it.
const CLASS_MAX_SHIFT: u32 = 24;
const CLASSES: usize = (CLASS_MAX_SHIFT - CLASS_MIN_SHIFT + 1) as usize;
/// Areas smaller than this are carved from a common region of this size.
const REGION_BYTES: usize = 1 << 20;

/// Bounds of one pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Bytes of regions the pool may map in all.
    pub bytes_max: usize,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { bytes_max: 512 << 20 }
    }
}

/// Areas of one loop thread. Cloning shares the pool.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Rc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    limits: PoolLimits,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    regions: Vec<Region>,
    mapped: usize,
    lent: usize,
    /// Free areas by size class, last returned first.
    free: [Vec<*mut u8>; CLASSES],
}

impl Pool {
    /// An empty pool; regions are mapped as they are needed.
    pub fn new(limits: PoolLimits) -> Self {
        Self { inner: Rc::new(Inner { limits, state: RefCell::default() }) }
    }

    /// Largest area a pool lends, in bytes.
    pub const AREA_BYTES_MAX: usize = 1 << CLASS_MAX_SHIFT;

    /// A span of exactly `length` bytes at the head of a page-aligned area, contents unspecified.
    ///
    /// `None` when the pool's bound (or the machine's memory) is reached: wait until a span is dropped.
    ///
    /// # Panics
    /// If `length` exceeds [`Pool::AREA_BYTES_MAX`]: the caller bounds its requests.
    pub fn take(&self, length: usize) -> Option<Span> {
        assert!(length <= Self::AREA_BYTES_MAX, "{length} bytes asked of a pool of smaller areas");
        let class = class_of(length);
        let base = self.inner.lend(class).ok()?;
        Some(Span::new(base, class, length, Rc::clone(&self.inner)))
    }

    /// Areas lent at this moment.
    pub fn lent(&self) -> usize {
        self.inner.state.borrow().lent
    }

    /// Bytes of memory mapped by this pool.
    pub fn mapped_bytes(&self) -> usize {
        self.inner.state.borrow().mapped
    }
}

fn class_of(length: usize) -> u8 {
    let shift = length.max(PAGE_BYTES).next_power_of_two().trailing_zeros();
    (shift - CLASS_MIN_SHIFT) as u8
}

fn class_bytes(class: u8) -> usize {
    1 << (CLASS_MIN_SHIFT + u32::from(class))
}

impl Inner {
    fn lend(&self, class: u8) -> io::Result<*mut u8> {
        let mut state = self.state.borrow_mut();
        if state.free[usize::from(class)].is_empty() {
            state.grow(class, self.limits)?;
        }
        state.lent += 1;
        Ok(state.free[usize::from(class)].pop().expect("grown above"))
    }

    /// Takes an area back. Called when its last span is dropped.
    pub(crate) fn give_back(&self, base: *mut u8, class: u8) {
        let mut state = self.state.borrow_mut();
        state.lent -= 1;
        state.free[usize::from(class)].push(base);
    }
}

impl State {
    fn grow(&mut self, class: u8, limits: PoolLimits) -> io::Result<()> {
        let bytes = class_bytes(class);
        let region_bytes = bytes.max(REGION_BYTES);
        if self.mapped + region_bytes > limits.bytes_max {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let region = Region::new(region_bytes, true)?;
        for index in (0..region_bytes / bytes).rev() {
            // SAFETY: index * bytes lies inside the region just mapped.
            self.free[usize::from(class)].push(unsafe { region.as_ptr().add(index * bytes) });
        }
        self.mapped += region_bytes;
        self.regions.push(region);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_page_aligned_and_returns_newest_first() {
        let pool = Pool::new(PoolLimits::default());
        let first = pool.take(5000).unwrap();
        assert_eq!(first.len(), 5000);
        assert_eq!(first.as_ptr() as usize % PAGE_BYTES, 0);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.take(8192).unwrap().as_ptr(), address);
    }

    #[test]
    fn the_bound_is_kept_and_memory_comes_back() {
        let pool = Pool::new(PoolLimits { bytes_max: 2 << 20 });
        let one = pool.take(1 << 20).unwrap();
        let two = pool.take(1 << 20).unwrap();
        assert!(pool.take(1).is_none());
        let part = two.slice(4096, 100);
        drop(two);
        assert_eq!(pool.lent(), 2, "a slice keeps its area");
        drop(part);
        drop(one);
        assert_eq!(pool.lent(), 0);
        assert!(pool.take(1 << 20).is_some());
    }

    #[test]
    fn areas_do_not_overlap() {
        let pool = Pool::new(PoolLimits::default());
        let spans: Vec<_> = (1..200).map(|i| pool.take(i * 997).unwrap()).collect();
        for (i, span) in spans.iter().enumerate() {
            span.fill(0, &vec![i as u8; span.len()]);
        }
        for (i, span) in spans.iter().enumerate() {
            assert!(span.as_slice().iter().all(|byte| *byte == i as u8));
        }
    }
}
