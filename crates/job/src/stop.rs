//! The flag that ends a job early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::{Ending, Failure};

/// Whether a signal has requested the end of the job. Shared by the thread that receives signals ([`Stop::request`])
/// and the stages of a job ([`Stop::is_requested`]).
///
/// Without an [`Orderly`] no stage polls the flag in time, and the thread that received the signal ends the process.
/// While an `Orderly` lives, the first signal only sets the flag, and the second ends the process. Clones share one
/// flag. The flag is never reset: after an interrupted job the next one needs another `Stop`.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    signal: Arc<AtomicI32>,
    orderly: Arc<AtomicBool>,
}

/// While it lives, the first signal only sets the flag. Only one at a time: dropping any of them ends the effect.
#[derive(Debug)]
pub struct Orderly {
    orderly: Arc<AtomicBool>,
}

impl Drop for Orderly {
    fn drop(&mut self) {
        self.orderly.store(false, Ordering::Relaxed);
    }
}

impl Stop {
    /// Sets the flag for a signal. `false`: the caller must end the process: a second signal, or no [`Orderly`] lives.
    pub fn request(&self, signal: i32) -> bool {
        let is_first = self.signal.swap(signal, Ordering::Relaxed) == 0;
        is_first && self.orderly.load(Ordering::Relaxed)
    }

    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    pub fn is_requested(&self) -> bool {
        self.signal().is_some()
    }

    /// While the result lives, the first signal only sets the flag; its holder must poll [`Stop::is_requested`]
    /// several times a second.
    pub fn orderly(&self) -> Orderly {
        self.orderly.store(true, Ordering::Relaxed);
        Orderly { orderly: Arc::clone(&self.orderly) }
    }

    /// The failure of an operation that a signal has stopped.
    pub fn failure(&self, attempted: &str, object: impl Into<String>) -> Failure {
        let signal = self.signal().unwrap_or(libc::SIGINT);
        let name = match signal {
            libc::SIGTERM => "SIGTERM",
            libc::SIGHUP => "SIGHUP",
            _ => "SIGINT",
        };
        Failure::new(Ending::Interrupted(signal), attempted, object, format!("interrupted by {name}"))
    }
}
