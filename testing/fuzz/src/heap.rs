//! Heap memory in use by this thread, so that a target can bound what a peer can make the machine allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // While a thread ends its counters are destroyed.
    let _ = IN_USE.try_with(|in_use| {
        in_use.set(in_use.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(in_use.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; the counters do not affect it and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `body`; panics if more than `bytes_max` of heap memory was in use at any time.
pub(crate) fn within<T>(bytes_max: usize, body: impl FnOnce() -> T) -> T {
    let before = IN_USE.get();
    PEAK.set(before);
    let result = body();
    let peak = (PEAK.get() - before).cast_unsigned();
    assert!(peak <= bytes_max, "{peak} bytes of memory held at once, {bytes_max} are allowed");
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_memory_is_counted_and_returned_memory_is_not() {
        within(10_000, || (0..100).for_each(|_| drop(std::hint::black_box(vec![1_u8; 5000]))));
        let over = std::panic::catch_unwind(|| within(10_000, || std::hint::black_box(vec![1_u8; 20_000])));
        assert!(over.is_err());
    }
}
