//! Memory that an application sends from: areas of regions that the servers were given.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use area::{Region, memfd};

use crate::server::REGIONS_MAX;
use crate::slot::Span;

/// One huge page.
const REGION_BYTES: usize = 2 << 20;
/// Largest area.
pub const AREA_BYTES_MAX: usize = REGION_BYTES;
const CLASS_MIN_SHIFT: u32 = 12;
const CLASSES: usize = (REGION_BYTES.trailing_zeros() - CLASS_MIN_SHIFT + 1) as usize;

/// Gives the servers memory: registers a memfd of `bytes` with them and returns its number and generation.
pub(super) type Register<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, u32) -> io::Result<(u32, u32)>;

/// The regions of one application.
#[derive(Debug, Default)]
pub(super) struct Arena(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    regions: Vec<Carved>,
    /// Region and offset by size class; the last returned is the first taken, because its bytes are in the cache.
    free: [Vec<(u32, u32)>; CLASSES],
}

/// A region cut into areas of one size class.
#[derive(Debug)]
struct Carved {
    shared: Arc<Shared>,
    class: usize,
    /// Areas in use; at zero the region may be cut for another class.
    used: u32,
}

#[derive(Debug)]
struct Shared {
    memory: Region,
    number: u32,
    generation: u32,
}

/// Bytes of a region, given back when dropped.
pub(super) struct Lease {
    arena: Arc<Arena>,
    shared: Arc<Shared>,
    place: u32,
    offset: u32,
    class: usize,
}

fn class_of(bytes: usize) -> usize {
    (bytes.max(1 << CLASS_MIN_SHIFT).next_power_of_two().trailing_zeros() - CLASS_MIN_SHIFT) as usize
}

impl Arena {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // No code panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if all regions are in use: [`Arena::grow`], or wait for a release.
    ///
    /// # Panics
    /// If `bytes` exceeds [`AREA_BYTES_MAX`].
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Lease> {
        assert!(bytes <= AREA_BYTES_MAX, "an area of {bytes} bytes");
        let class = class_of(bytes);
        let mut state = self.state();
        if state.free[class].is_empty() && state.regions.len() == REGIONS_MAX {
            state.cut_again(class);
        }
        let (place, offset) = state.free[class].pop()?;
        let region = &mut state.regions[place as usize];
        region.used += 1;
        let shared = Arc::clone(&region.shared);
        Some(Lease { arena: Arc::clone(self), shared, place, offset, class })
    }

    /// Maps one more region, for areas of at least `bytes`. `false` if there are [`REGIONS_MAX`]. The caller lets one
    /// thread at a time grow the arena; others use it meanwhile.
    pub(super) fn grow(&self, bytes: usize, register: Register<'_>) -> io::Result<bool> {
        if self.state().regions.len() == REGIONS_MAX {
            return Ok(false);
        }
        let memfd = memfd::create("send", REGION_BYTES)?;
        let memory = Region::shared(memfd.as_fd(), REGION_BYTES, true)?;
        memory.collapse();
        let (number, generation) = register(memfd.as_fd(), REGION_BYTES as u32)?;
        let mut state = self.state();
        let (place, class) = (state.regions.len() as u32, class_of(bytes));
        let shared = Arc::new(Shared { memory, number, generation });
        state.regions.push(Carved { shared, class, used: 0 });
        state.cut(place, class);
        Ok(true)
    }
}

impl State {
    fn cut(&mut self, place: u32, class: usize) {
        self.regions[place as usize].class = class;
        let step = 1 << (CLASS_MIN_SHIFT as usize + class);
        let offsets = (0..REGION_BYTES as u32).step_by(step).rev();
        self.free[class].extend(offsets.map(|offset| (place, offset)));
    }

    /// Cuts an unused region of another class for this one.
    fn cut_again(&mut self, class: usize) {
        let Some(place) = self.regions.iter().position(|region| region.used == 0) else { return };
        let former = self.regions[place].class;
        self.free[former].retain(|&(other, _)| other as usize != place);
        self.cut(place as u32, class);
    }
}

impl Lease {
    pub(super) fn bytes(&self) -> usize {
        1 << (CLASS_MIN_SHIFT as usize + self.class)
    }

    pub(super) fn span(&self, start: usize, length: usize) -> Span {
        assert!(start <= self.bytes() && length <= self.bytes() - start, "a span outside of its area");
        Span {
            region: self.shared.number,
            generation: self.shared.generation,
            offset: self.offset + start as u32,
            length: length as u32,
        }
    }

    /// Of the first byte; the area is `bytes()` long.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: areas lie inside of their region, by construction in `grow`.
        unsafe { self.shared.memory.as_ptr().add(self.offset as usize) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.arena.state();
        state.regions[self.place as usize].used -= 1;
        state.free[self.class].push((self.place, self.offset));
    }
}

/// Memory to send from, the caller's alone until it is given to `TcpStream::send`. Its first contents are unspecified.
pub struct SendArea {
    lease: Lease,
    length: usize,
}

impl SendArea {
    pub(super) fn new(lease: Lease, length: usize) -> Self {
        Self { lease, length }
    }

    pub(super) fn into_lease(self) -> (Lease, usize) {
        (self.lease, self.length)
    }
}

impl Deref for SendArea {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside of the area, which is initialised memory that this value alone refers to: the servers read it
        // only between a send and its release, when no `SendArea` of it exists.
        unsafe { std::slice::from_raw_parts(self.lease.as_ptr(), self.length) }
    }
}

impl DerefMut for SendArea {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; no process writes the memory but this one.
        unsafe { std::slice::from_raw_parts_mut(self.lease.as_ptr(), self.length) }
    }
}

impl fmt::Debug for SendArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendArea({:p}, {} bytes)", self.lease.as_ptr(), self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_return_once_and_are_taken_again_first() {
        let arena = Arc::new(Arena::default());
        let mut asked = 0;
        let mut register = |_: BorrowedFd<'_>, bytes: u32| {
            asked += 1;
            assert_eq!(bytes as usize, REGION_BYTES);
            Ok((7, asked))
        };
        assert!(arena.take(1 << 20).is_none());
        assert!(arena.grow(1 << 20, &mut register).unwrap());
        let (one, two) = (arena.take(600_000).unwrap(), arena.take(1 << 20).unwrap());
        assert!(arena.take(1 << 20).is_none(), "two areas of 1 MiB");
        assert_eq!(two.span(16, 100), Span { region: 7, generation: 1, offset: (1 << 20) + 16, length: 100 });
        let address = one.as_ptr();
        drop(one);
        assert_eq!(arena.take(1 << 20).unwrap().as_ptr(), address);
        for _ in 1..REGIONS_MAX {
            assert!(arena.grow(4096, &mut register).unwrap());
        }
        assert!(!arena.grow(4096, &mut register).unwrap(), "bounded");
        let one = arena.take(AREA_BYTES_MAX).expect("a region cut again");
        let (used, other) = (arena.take(4096).unwrap(), arena.take(AREA_BYTES_MAX).unwrap());
        assert!(one.as_ptr() != other.as_ptr() && used.as_ptr() != one.as_ptr());
        let rest: Vec<_> = std::iter::from_fn(|| arena.take(4096)).collect();
        assert_eq!(rest.len() + 1, (REGIONS_MAX - 3) * REGION_BYTES / 4096, "all others but that of `two`");
    }
}
