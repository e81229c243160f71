//! The context of every command: form of the output, stop flag, and secrets from the arguments.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use job::Stop;
use serde_json::json;

use crate::output;
use crate::secret::{Password, UrlSecrets};

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

/// Starts the thread that receives SIGINT and SIGTERM. With `prints`, the first signal prints its effect on stderr.
pub(crate) fn listen(stop: &Stop, prints: bool) -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM])?;
    let stop = stop.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for number in signals.forever() {
            if !stop.request(number) {
                std::process::exit(128 + number);
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
