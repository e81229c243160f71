//! Debug builds fill an area that was given back with a pattern and look at it when it is lent again: an operation that
//! completed into memory that was no longer its own, or a driver that kept a pointer, has left its mark; and code that
//! counts on zeroes in a fresh area meets none.

use crate::PAGE_BYTES;

/// Whether areas are poisoned.
pub(crate) const ON: bool = cfg!(debug_assertions);

static PATTERN: [u8; PAGE_BYTES] = [0xA5; PAGE_BYTES];

/// Fills an unused area of whole pages.
pub(crate) fn put(base: *mut u8, bytes: usize) {
    debug_assert!(bytes.is_multiple_of(PAGE_BYTES));
    // SAFETY: the pool calls this with an area of its own, mapped for `bytes` bytes and not lent.
    unsafe { std::ptr::write_bytes(base, PATTERN[0], bytes) };
}

/// Panics if an area has been written to since [`put`].
pub(crate) fn check(base: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: as for `put`; areas are made of whole pages. A late write while we look is what is looked for: it may
        // be missed now, and shows in the area's next use.
        let page = unsafe { std::slice::from_raw_parts(base.add(offset), PAGE_BYTES) };
        assert!(
            page == PATTERN,
            "an area of {bytes} bytes was written at {offset} or in the page behind it after it had been given back"
        );
    }
}
