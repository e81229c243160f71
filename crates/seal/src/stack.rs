//! Secrets that functions leave on the stack.
//!
//! The libraries of X25519 and ML-KEM take scalars and seeds by value or keep them in local variables. Rust moves values by
//! copying them. Neither wipes the copies, so the stack below is wiped when a handshake's message is made or taken, and before its
//! keys are put where they stay: padding of a value takes over what lay on the stack.

use zeroize::Zeroize;

/// Stack that the deepest handshake function uses at most, bytes; in a debug build, where frames are largest.
const STACK_BYTES: usize = 48 << 10;

/// Calls `work`, then overwrites the stack below. What it returns lies above: secrets in it have to be on the heap.
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
