//! Debug builds fill a returned area with a pattern and check it when the area is borrowed again. The check detects an
//! operation that completed into memory it no longer owned, and a driver that kept a pointer; code that relies on
//! zeroes in a new area reads the pattern instead.

use crate::PAGE_BYTES;

pub(crate) const ON: bool = cfg!(debug_assertions);

static PATTERN: [u8; PAGE_BYTES] = [0xA5; PAGE_BYTES];

/// Fills an unused area of whole pages with the pattern.
pub(crate) fn put(base: *mut u8, bytes: usize) {
    debug_assert!(bytes.is_multiple_of(PAGE_BYTES));
    // SAFETY: the pool calls this with an area of its own, mapped for `bytes` bytes and not borrowed.
    unsafe { std::ptr::write_bytes(base, PATTERN[0], bytes) };
}

pub(crate) fn check(base: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: as for `put`; areas consist of whole pages. A concurrent late write is the defect that this check
        // detects: it may be missed now, and appears at the area's next use.
        let page = unsafe { std::slice::from_raw_parts(base.add(offset), PAGE_BYTES) };
        assert!(
            page == PATTERN,
            "an area of {bytes} bytes was written at {offset} or in the page behind it after it had been given back"
        );
    }
}
