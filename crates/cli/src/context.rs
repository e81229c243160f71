//! The context of every command: form of the output, stop flag, and secrets from the arguments.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use job::{Sample, Stop};
use serde_json::json;
use signal_hook::iterator::Signals;

use crate::secret::{Password, UrlSecrets};
use crate::{output, sys, terminal};

#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) json: bool,
    /// No progress and no remarks; warnings and results stay.
    pub(crate) quiet: bool,
    /// The arguments of this process, without secrets, for hints that repeat the command.
    pub(crate) arguments: Vec<String>,
    /// Secrets removed from URLs, by the remaining URL.
    pub(crate) secrets: HashMap<String, UrlSecrets>,
    /// Passwords removed from the environment, by variable.
    pub(crate) environment: HashMap<&'static str, Password>,
    pub(crate) stop: Stop,
    /// Set by SIGUSR1: the display of progress prints a line now.
    pub(crate) shows_now: Arc<AtomicBool>,
    /// The progress at the last update, for the control socket.
    pub(crate) sample: Arc<Mutex<Option<Sample>>>,
    /// Warnings already printed that are printed only once.
    pub(crate) once: Once,
}

/// Prints each warning once per command, from any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Once(Arc<Mutex<BTreeSet<String>>>);

impl Once {
    pub(crate) fn is_first(&self, text: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned())
    }
}

pub(crate) fn warn(json: bool, text: &str) {
    if json {
        output::note_json(&json!({ "warning": text }));
    } else {
        output::note(&format!("warning: {text}"));
    }
}

/// Starts the thread that receives SIGINT, SIGTERM, SIGHUP (unless it was ignored at the start, as nohup does) and
/// SIGUSR1. With `prints`, the first signal that ends the command prints its effect on stderr.
pub(crate) fn listen(context: &Context, prints: bool) -> std::io::Result<()> {
    let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    let is_caught = |number: &i32| *number != libc::SIGHUP || !sys::is_ignored(*number);
    let mut signals = Signals::new(ends.into_iter().filter(is_caught).chain([libc::SIGUSR1]))?;
    let (stop, shows_now) = (context.stop.clone(), Arc::clone(&context.shows_now));
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for number in signals.forever() {
            if number == libc::SIGUSR1 {
                shows_now.store(true, Ordering::Relaxed);
                continue;
            }
            if !stop.request(number) {
                terminal::exit(128 + number);
            }
            if prints {
                output::note("finishing what is in flight; a second signal ends it at once");
            }
        }
    })?;
    Ok(())
}

impl Context {
    pub(crate) fn warn(&self, text: &str) {
        warn(self.json, text);
    }

    /// Prints a message of interest to a human reader only.
    pub(crate) fn remark(&self, text: &str) {
        if !self.json && !self.quiet {
            output::note(text);
        }
    }
}
