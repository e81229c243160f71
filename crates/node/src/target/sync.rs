//! The synchronization types of `mail.rs`. `tests/loom.rs` compiles that file with loom's types instead, to explore
//! every interleaving.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::sync::{Arc, Mutex, MutexGuard};

pub(super) use io::Waker;
