//! Wipes secrets that functions leave on the stack.
//!
//! The libraries of X25519 and ML-KEM take scalars and seeds by value or keep them in local variables, and Rust moves
//! values by copying them; neither wipes the copies. Therefore [`wiped`] zeroes the stack below after a handshake
//! message is made or taken. That happens before the keys are stored: the padding of a stored value would retain old
//! stack contents.

use zeroize::Zeroize;

/// Bytes of stack that the deepest handshake function uses at most, in a debug build, whose frames are largest.
const STACK_BYTES: usize = 48 << 10;

/// Calls `work`, then zeroes the stack below. The result lies above that stack: secrets in it must be on the heap.
pub(crate) fn wiped<T>(work: impl FnOnce() -> T) -> T {
    let result = called(work);
    wipe();
    result
}

#[inline(never)]
fn called<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[inline(never)]
fn wipe() {
    let mut stack = [0_u8; STACK_BYTES];
    stack.zeroize();
}
