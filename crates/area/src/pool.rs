//! Lends areas out of regions, newest first, so that the memory in hot use stays in the cache.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use crate::region::{self, HUGE_PAGE_BYTES};
use crate::{PAGE_BYTES, Region, Span, poison};

/// Smallest area, one page.
const CLASS_MIN_SHIFT: u32 = PAGE_BYTES.trailing_zeros();
/// Largest area: 16 MiB. A request for more is refused; split it.
const CLASS_MAX_SHIFT: u32 = 24;
const CLASSES: usize = (CLASS_MAX_SHIFT - CLASS_MIN_SHIFT + 1) as usize;
/// Small areas are carved from regions of this size,
const REGION_BYTES: usize = 1 << 20;
/// and those from here on from huge pages: a device then sees one segment where it would see a hundred.
const HUGE_FROM_BYTES: usize = 128 << 10;

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
    /// Those unmapped again leave a `None` that the next one takes.
    regions: Vec<Option<Carved>>,
    mapped: usize,
    lent: usize,
    /// Free areas by size class, last returned first.
    free: [Vec<Place>; CLASSES],
    /// Regions mapped or unmapped that [`Pool::changed_region`] has not told yet.
    changed: Vec<u32>,
}

/// A region cut into areas of one class.
#[derive(Debug)]
struct Carved {
    region: Region,
    class: u8,
    /// Areas of it that are lent: with none it may be unmapped.
    lent: u32,
}

/// One area: where it begins, what class it has, which region it lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) base: *mut u8,
    class: u8,
    pub(crate) region: u32,
    /// It was given back before, and filled with a pattern.
    poisoned: bool,
}

impl Pool {
    /// An empty pool; regions are mapped as they are needed.
    pub fn new(limits: PoolLimits) -> Self {
        Self { inner: Rc::new(Inner { limits, state: RefCell::default() }) }
    }

    /// Largest area a pool lends, in bytes.
    pub const AREA_BYTES_MAX: usize = 1 << CLASS_MAX_SHIFT;

    /// Size of the pages that areas of 128 KiB and more are cut from, as the system is set up; where memory is too
    /// fragmented they are smaller.
    pub fn large_page_bytes() -> usize {
        region::large_page_bytes()
    }

    /// A span of exactly `length` bytes at the head of a page-aligned area, contents unspecified.
    ///
    /// `None` when the pool's bound (or the machine's memory) is reached: wait until a span is dropped.
    ///
    /// # Panics
    /// If `length` exceeds [`Pool::AREA_BYTES_MAX`]: the caller bounds its requests.
    pub fn take(&self, length: usize) -> Option<Span> {
        assert!(length <= Self::AREA_BYTES_MAX, "{length} bytes asked of a pool of smaller areas");
        let place = self.inner.lend(class_of(length)).ok()?;
        Some(Span::new(place, length, Rc::clone(&self.inner)))
    }

    /// Unmaps all regions that lend nothing. For a time after many areas were lent and came back.
    pub fn release(&self) {
        self.inner.state.borrow_mut().make_room(usize::MAX, 0);
    }

    /// Areas lent at this moment.
    pub fn lent(&self) -> usize {
        self.inner.state.borrow().lent
    }

    /// A region that was mapped or unmapped since this was asked last: its number ([`Span::region`]), and where it lies
    /// now. For a loop that makes them known to the kernel.
    pub fn changed_region(&self) -> Option<(u32, Option<(*mut u8, usize)>)> {
        let mut state = self.inner.state.borrow_mut();
        let index = state.changed.pop()?;
        let region = state.regions[index as usize].as_ref().map(|carved| &carved.region);
        Some((index, region.map(|region| (region.as_ptr(), region.len()))))
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
    fn lend(&self, class: u8) -> io::Result<Place> {
        let mut state = self.state.borrow_mut();
        if state.free[usize::from(class)].is_empty() {
            state.grow(class, self.limits)?;
        }
        let place = state.free[usize::from(class)].pop().expect("grown above");
        state.lent += 1;
        state.carved(place).lent += 1;
        if place.poisoned {
            poison::check(place.base, class_bytes(class));
        }
        Ok(place)
    }

    /// Takes an area back. Called when its last span is dropped.
    pub(crate) fn give_back(&self, place: Place) {
        let mut state = self.state.borrow_mut();
        state.lent -= 1;
        state.carved(place).lent -= 1;
        if poison::ON {
            poison::put(place.base, class_bytes(place.class));
        }
        state.free[usize::from(place.class)].push(Place { poisoned: poison::ON, ..place });
    }
}

impl State {
    fn carved(&mut self, place: Place) -> &mut Carved {
        self.regions[place.region as usize].as_mut().expect("mapped while it has areas")
    }

    fn grow(&mut self, class: u8, limits: PoolLimits) -> io::Result<()> {
        let bytes = class_bytes(class);
        let region_bytes = bytes.max(if bytes < HUGE_FROM_BYTES { REGION_BYTES } else { HUGE_PAGE_BYTES });
        self.make_room(region_bytes, limits.bytes_max);
        if self.mapped + region_bytes > limits.bytes_max {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let region = Region::new(region_bytes, true)?;
        let index = self.regions.iter().position(Option::is_none).unwrap_or_else(|| {
            self.regions.push(None);
            self.regions.len() - 1
        });
        for at in (0..region_bytes / bytes).rev() {
            // SAFETY: at * bytes lies inside the region just mapped.
            let base = unsafe { region.as_ptr().add(at * bytes) };
            self.free[usize::from(class)].push(Place { base, class, region: index as u32, poisoned: false });
        }
        self.mapped += region_bytes;
        self.note_change(index as u32);
        self.regions[index] = Some(Carved { region, class, lent: 0 });
        Ok(())
    }

    fn note_change(&mut self, index: u32) {
        if !self.changed.contains(&index) {
            self.changed.push(index);
        }
    }

    /// Unmaps regions that lend nothing until `bytes` more fit below `bytes_max`: what one size has used once must
    /// not be missing to all others for ever.
    fn make_room(&mut self, bytes: usize, bytes_max: usize) {
        for index in 0..self.regions.len() {
            if self.mapped.saturating_add(bytes) <= bytes_max {
                return;
            }
            if let Some(Carved { region, class, .. }) = self.regions[index].take_if(|carved| carved.lent == 0)
            {
                self.mapped -= region.len();
                self.note_change(index as u32);
                self.free[usize::from(class)].retain(|place| place.region as usize != index);
            }
        }
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
    fn memory_of_one_size_serves_the_others_when_it_is_free() {
        let pool = Pool::new(PoolLimits { bytes_max: 4 << 20 });
        for round in 0..3 {
            let large: Vec<_> = (0..2).map(|_| pool.take(2 << 20).unwrap()).collect();
            assert!(pool.take(1).is_none(), "round {round}: all is lent");
            drop(large);
            let small: Vec<_> = (0..1024).map(|_| pool.take(4096).unwrap()).collect();
            assert!(pool.take(2 << 20).is_none(), "round {round}: all is lent");
            small[1023].fill(0, &[1; 4096]);
            drop(small);
        }
        let kept = pool.take(4096).unwrap();
        kept.fill(0, &[7; 4096]);
        let _large = pool.take(2 << 20).unwrap();
        assert!(kept.as_slice().iter().all(|byte| *byte == 7), "a region that lends stays");
        assert!(pool.mapped_bytes() <= 4 << 20);
    }

    #[test]
    fn release_unmaps_what_lends_nothing_and_only_that() {
        let pool = Pool::new(PoolLimits::default());
        let many: Vec<_> = (0..1024).map(|_| pool.take(4096).unwrap()).collect();
        let kept = pool.take(100).unwrap();
        kept.fill(0, &[7; 100]);
        let mapped = pool.mapped_bytes();
        drop(many);
        assert_eq!(pool.mapped_bytes(), mapped, "kept for the next ones");
        pool.release();
        assert_eq!(pool.mapped_bytes(), REGION_BYTES);
        assert!(kept.as_slice().iter().all(|byte| *byte == 7));
        let more: Vec<_> = (0..1024).map(|_| pool.take(4096).unwrap()).collect();
        more.iter().for_each(|span| span.fill(0, &[1; 4096]));
        assert_eq!(pool.mapped_bytes(), mapped);
    }

    #[test]
    fn large_areas_lie_in_huge_pages_and_changes_of_regions_are_told() {
        let pool = Pool::new(PoolLimits { bytes_max: 2 << 20 });
        let large = pool.take(1 << 20).unwrap();
        let (number, place) = pool.changed_region().unwrap();
        assert_eq!(Some(number), large.region());
        let (base, length) = place.unwrap();
        assert_eq!((base as usize % HUGE_PAGE_BYTES, length), (0, HUGE_PAGE_BYTES));
        assert_eq!(pool.changed_region(), None);
        drop(large);
        let small = pool.take(1).unwrap();
        assert_eq!(pool.changed_region().unwrap().1, Some((small.as_ptr(), REGION_BYTES)), "in its place");
        assert_eq!(pool.changed_region(), None);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "after it had been given back")]
    fn a_write_to_an_area_that_was_given_back_is_caught() {
        let pool = Pool::new(PoolLimits::default());
        let span = pool.take(PAGE_BYTES * 2).unwrap();
        let late = span.as_ptr();
        drop(span);
        // SAFETY: the region is still mapped; what is wrong with it is what is tested.
        unsafe { late.add(5000).write(1) };
        let _ = pool.take(PAGE_BYTES * 2);
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
