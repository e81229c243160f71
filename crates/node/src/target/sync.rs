//! What `mail.rs` is made of. `tests/loom.rs` compiles that file with loom's in their place, to see every interleaving.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

pub(super) use io::Waker;
