//! Allocates areas of regions, the last returned first, so that frequently used memory stays in the cache.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use crate::region::HUGE_PAGE_BYTES;
use crate::{PAGE_BYTES, Region, Span, memfd, poison};

const CLASS_MIN_SHIFT: u32 = PAGE_BYTES.trailing_zeros();
/// Largest area: 16 MiB. A longer request panics; the caller splits it.
const CLASS_MAX_SHIFT: u32 = 24;
const CLASSES: usize = (CLASS_MAX_SHIFT - CLASS_MIN_SHIFT + 1) as usize;
/// Size of the regions from which areas below [`HUGE_FROM_BYTES`] are cut.
const REGION_BYTES: usize = 1 << 20;
/// Areas from this size on are cut from huge pages: a device then gets one segment instead of about a hundred.
const HUGE_FROM_BYTES: usize = 128 << 10;

#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Most bytes of regions that the pool maps.
    pub bytes_max: usize,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { bytes_max: 512 << 20 }
    }
}

/// The areas of one loop thread. Clones share the pool.
///
/// [`Pool::take`] returns an area as a [`Span`]; dropping the last span of an area returns it. Regions stay mapped for
/// reuse until another size class needs the memory or [`Pool::release`] is called.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Rc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    limits: PoolLimits,
    /// Regions are memfds.
    is_shared: bool,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// An unmapped region leaves a `None` that the next one reuses.
    regions: Vec<Option<Carved>>,
    mapped_bytes: usize,
    borrowed: usize,
    /// Free areas by size class, the last returned at the end.
    free: [Vec<Place>; CLASSES],
    /// Regions mapped or unmapped that [`Pool::changed_region`] has not returned yet.
    changed: Vec<u32>,
}

/// A region cut into areas of one size class.
#[derive(Debug)]
struct Carved {
    region: Region,
    memfd: Option<Rc<OwnedFd>>,
    class: u8,
    /// At zero the region may be unmapped.
    borrowed: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) base: *mut u8,
    class: u8,
    pub(crate) region: u32,
    /// Of the area in its region, bytes.
    pub(crate) offset: usize,
    /// The area was returned before and filled with the pattern.
    poisoned: bool,
}

/// A region of a pool, as [`Pool::changed_region`] reports it.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub base: *mut u8,
    pub bytes: usize,
    /// Of a pool whose regions other processes can map ([`Pool::shared`]).
    pub memfd: Option<Rc<OwnedFd>>,
}

impl Pool {
    pub fn new(limits: PoolLimits) -> Self {
        Self { inner: Rc::new(Inner { limits, is_shared: false, state: RefCell::default() }) }
    }

    /// A pool for a loop that sends through a stack in other processes: each region is a memfd ([`memfd::create`]) of
    /// 2 MiB or, for larger areas, the area's size, in huge pages if the system has them free. [`Span::place`] names an
    /// area's memory to a process that has the memfd.
    pub fn shared(limits: PoolLimits) -> Self {
        Self { inner: Rc::new(Inner { limits, is_shared: true, state: RefCell::default() }) }
    }

    pub const AREA_BYTES_MAX: usize = 1 << CLASS_MAX_SHIFT;

    /// Size of the pages for areas of 128 KiB and more, bytes, by the configuration of the system; smaller pages are
    /// used if memory is too fragmented.
    pub fn large_page_bytes() -> usize {
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let is_on = modes.is_ok_and(|modes| !modes.contains("[never]"));
        if is_on { HUGE_PAGE_BYTES } else { PAGE_BYTES }
    }

    /// Returns a span of exactly `length` bytes at the start of a page-aligned area; its contents are unspecified.
    ///
    /// `None` if the bound of the pool (or the machine's memory) is reached: retry after a span was dropped.
    ///
    /// # Panics
    /// If `length` exceeds [`Pool::AREA_BYTES_MAX`]: the caller bounds its requests.
    pub fn take(&self, length: usize) -> Option<Span> {
        assert!(length <= Self::AREA_BYTES_MAX, "{length} bytes requested of a pool of smaller areas");
        let place = self.inner.take_place(class_of(length)).ok()?;
        Some(Span::new(place, length, Rc::clone(&self.inner)))
    }

    /// Unmaps all regions without borrowed areas; for a time after a peak.
    pub fn release(&self) {
        self.inner.state.borrow_mut().make_room(usize::MAX, 0);
    }

    pub fn borrowed(&self) -> usize {
        self.inner.state.borrow().borrowed
    }

    /// A region mapped or unmapped since the last call: its index ([`Span::region`]), and where it is if mapped. A loop
    /// registers these regions with the kernel or with a stack. A region may have come in the place of another one.
    pub fn changed_region(&self) -> Option<(u32, Option<Mapping>)> {
        let mut state = self.inner.state.borrow_mut();
        let index = state.changed.pop()?;
        let mapping = state.regions[index as usize].as_ref().map(|Carved { region, memfd, .. }| Mapping {
            base: region.as_ptr(),
            bytes: region.len(),
            memfd: memfd.clone(),
        });
        Some((index, mapping))
    }

    pub fn mapped_bytes(&self) -> usize {
        self.inner.state.borrow().mapped_bytes
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
    fn take_place(&self, class: u8) -> io::Result<Place> {
        let mut state = self.state.borrow_mut();
        if state.free[usize::from(class)].is_empty() {
            state.grow(class, self.limits, self.is_shared)?;
        }
        let place = state.free[usize::from(class)].pop().expect("grown above");
        state.borrowed += 1;
        state.carved(place).borrowed += 1;
        if place.poisoned {
            poison::check(place.base, class_bytes(class));
        }
        Ok(place)
    }

    pub(crate) fn give_back(&self, place: Place) {
        let mut state = self.state.borrow_mut();
        state.borrowed -= 1;
        state.carved(place).borrowed -= 1;
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

    fn grow(&mut self, class: u8, limits: PoolLimits, is_shared: bool) -> io::Result<()> {
        let bytes = class_bytes(class);
        let is_small = bytes < HUGE_FROM_BYTES && !is_shared;
        let region_bytes = bytes.max(if is_small { REGION_BYTES } else { HUGE_PAGE_BYTES });
        self.make_room(region_bytes, limits.bytes_max);
        if self.mapped_bytes + region_bytes > limits.bytes_max {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let (region, memfd) = match is_shared {
            true => {
                let memfd = memfd::create("pool", region_bytes)?;
                let region = Region::shared(memfd.as_fd(), region_bytes, true)?;
                // Small pages serve as well, only slower.
                region.collapse();
                (region, Some(Rc::new(memfd)))
            }
            false => (Region::new(region_bytes, true)?, None),
        };
        let index = self.regions.iter().position(Option::is_none).unwrap_or_else(|| {
            self.regions.push(None);
            self.regions.len() - 1
        });
        for at in (0..region_bytes / bytes).rev() {
            let offset = at * bytes;
            // SAFETY: `offset` lies inside the region just mapped.
            let base = unsafe { region.as_ptr().add(offset) };
            let place = Place { base, class, region: index as u32, offset, poisoned: false };
            self.free[usize::from(class)].push(place);
        }
        self.mapped_bytes += region_bytes;
        self.note_change(index as u32);
        self.regions[index] = Some(Carved { region, memfd, class, borrowed: 0 });
        Ok(())
    }

    fn note_change(&mut self, index: u32) {
        if !self.changed.contains(&index) {
            self.changed.push(index);
        }
    }

    /// Unmaps regions without borrowed areas until `bytes` more fit below `bytes_max`: otherwise a size class used once
    /// would keep its memory from all others.
    fn make_room(&mut self, bytes: usize, bytes_max: usize) {
        for index in 0..self.regions.len() {
            if self.mapped_bytes.saturating_add(bytes) <= bytes_max {
                return;
            }
            if let Some(Carved { region, class, .. }) =
                self.regions[index].take_if(|carved| carved.borrowed == 0)
            {
                self.mapped_bytes -= region.len();
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
        assert_eq!(pool.borrowed(), 2, "a slice keeps its area");
        drop(part);
        drop(one);
        assert_eq!(pool.borrowed(), 0);
        assert!(pool.take(1 << 20).is_some());
    }

    #[test]
    fn memory_of_one_size_serves_the_others_when_it_is_free() {
        let pool = Pool::new(PoolLimits { bytes_max: 4 << 20 });
        for round in 0..3 {
            let large: Vec<_> = (0..2).map(|_| pool.take(2 << 20).unwrap()).collect();
            assert!(pool.take(1).is_none(), "round {round}: all is borrowed");
            drop(large);
            let small: Vec<_> = (0..1024).map(|_| pool.take(4096).unwrap()).collect();
            assert!(pool.take(2 << 20).is_none(), "round {round}: all is borrowed");
            small[1023].fill(0, &[1; 4096]);
            drop(small);
        }
        let kept = pool.take(4096).unwrap();
        kept.fill(0, &[7; 4096]);
        let _large = pool.take(2 << 20).unwrap();
        assert!(kept.as_slice().iter().all(|byte| *byte == 7), "a region with a borrowed area stays");
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
        let Mapping { base, bytes, memfd } = place.unwrap();
        assert_eq!((base as usize % HUGE_PAGE_BYTES, bytes), (0, HUGE_PAGE_BYTES));
        assert!(memfd.is_none() && pool.changed_region().is_none());
        drop(large);
        let small = pool.take(1).unwrap();
        let Mapping { base, bytes, .. } = pool.changed_region().unwrap().1.unwrap();
        assert_eq!((base, bytes), (small.as_ptr(), REGION_BYTES), "in its place");
        assert!(pool.changed_region().is_none());
    }

    #[test]
    fn areas_of_a_shared_pool_are_seen_by_whoever_maps_their_region() {
        let pool = Pool::shared(PoolLimits { bytes_max: 6 << 20 });
        let spans = [100, PAGE_BYTES * 2, 1 << 20, 4 << 20].map(|bytes| pool.take(bytes));
        assert!(spans[3].is_none(), "three regions of 2 MiB");
        let mut regions = std::collections::HashMap::new();
        while let Some((index, mapping)) = pool.changed_region() {
            let Mapping { bytes, memfd, .. } = mapping.unwrap();
            let memfd = memfd.unwrap();
            memfd::check(memfd.as_fd(), bytes as u64).unwrap();
            assert_eq!(bytes, HUGE_PAGE_BYTES);
            regions.insert(index, Region::shared(memfd.as_fd(), bytes, false).unwrap());
        }
        for (number, span) in spans.iter().flatten().enumerate() {
            let part = span.slice(7, 20);
            part.fill(3, &[number as u8 + 1; 5]);
            let (region, offset) = part.place().unwrap();
            assert_eq!(Some(region), part.region());
            let region = &regions[&region];
            assert!(offset + part.len() <= region.len());
            // SAFETY: checked above; this thread alone writes the region.
            let seen = unsafe { std::slice::from_raw_parts(region.as_ptr().add(offset), part.len()) };
            assert_eq!(seen, part.as_slice());
            assert_eq!(seen[3..8], [number as u8 + 1; 5]);
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "after it had been given back")]
    fn a_write_to_an_area_that_was_given_back_is_caught() {
        let pool = Pool::new(PoolLimits::default());
        let span = pool.take(PAGE_BYTES * 2).unwrap();
        let late = span.as_ptr();
        drop(span);
        // SAFETY: the region is still mapped; the late write is the defect under test.
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
