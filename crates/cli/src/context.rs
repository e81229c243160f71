//! What every command gets: how to speak, when to stop, and the secrets that came with the arguments.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use crate::error::{Exit, Failure};
use crate::output;
use crate::secret::{Password, UrlSecrets};

/// How a command speaks and when it stops.
#[derive(Debug, Default)]
pub(crate) struct Context {
    /// Programs read the output.
    pub(crate) json: bool,
    /// No progress and no remarks; warnings and results stay.
    pub(crate) quiet: bool,
    /// Secrets taken out of URLs, by the URL that was left.
    pub(crate) secrets: HashMap<String, UrlSecrets>,
    /// Passwords taken out of the environment, by variable.
    pub(crate) environment: HashMap<&'static str, Password>,
    /// The signal that asked us to stop.
    pub(crate) stop: Stop,
    /// Warnings that are printed once, and have been.
    pub(crate) once: Once,
}

/// Prints each warning once in the life of a command, from whatever thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Once(Arc<Mutex<BTreeSet<String>>>);

impl Once {
    /// Whether this is the first time for this text.
    pub(crate) fn is_first(&self, text: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned())
    }
}

/// Prints a warning as suits `--json` or people.
pub(crate) fn warn(json: bool, text: &str) {
    if json {
        output::note_json(&json!({ "warning": text }));
    } else {
        output::note(&format!("warning: {text}"));
    }
}

/// Tells whether a signal asked us to stop. A signal ends the process at once unless something is going on
/// that wants an orderly end; then the second one does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    signal: Arc<AtomicI32>,
    orderly: Arc<AtomicBool>,
}

/// While it lives, the first signal only asks.
#[derive(Debug)]
pub(crate) struct Orderly {
    orderly: Arc<AtomicBool>,
}

impl Drop for Orderly {
    fn drop(&mut self) {
        self.orderly.store(false, Ordering::Relaxed);
    }
}

impl Stop {
    /// The signal's number, once there was one.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    /// Whether to stop.
    pub(crate) fn is_asked(&self) -> bool {
        self.signal().is_some()
    }

    /// From now on the first signal only asks; whoever holds this looks at [`Stop::is_asked`].
    pub(crate) fn orderly(&self) -> Orderly {
        self.orderly.store(true, Ordering::Relaxed);
        Orderly { orderly: Arc::clone(&self.orderly) }
    }

    /// The failure of a command that stopped because it was asked to.
    pub(crate) fn failure(&self, attempted: &str, object: impl Into<String>) -> Failure {
        let signal = self.signal().unwrap_or(libc::SIGINT);
        let name = if signal == libc::SIGTERM { "SIGTERM" } else { "SIGINT" };
        Failure::new(Exit::Interrupted(signal), attempted, object, format!("interrupted by {name}"))
    }

    /// Begins to listen for SIGINT and SIGTERM.
    ///
    /// `tells` says whether people want to know what the first one does.
    pub(crate) fn listen(&self, tells: bool) -> std::io::Result<()> {
        let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM])?;
        let stop = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for number in signals.forever() {
                let is_second = stop.signal.swap(number, Ordering::Relaxed) != 0;
                if is_second || !stop.orderly.load(Ordering::Relaxed) {
                    std::process::exit(128 + number);
                }
                if tells {
                    output::note("finishing what is in flight; a second signal ends it at once");
                }
            }
        })?;
        Ok(())
    }
}

impl Context {
    /// Something the user should know although the command goes on.
    pub(crate) fn warn(&self, text: &str) {
        warn(self.json, text);
    }

    /// Something worth saying to people only.
    pub(crate) fn remark(&self, text: &str) {
        if !self.json && !self.quiet {
            output::note(text);
        }
    }
}
