//! Logs: on stderr, for people, or as JSON lines beside `--json`. `HIKYAKU_LOG` chooses what is logged, in the
//! syntax of `tracing` (`debug`, `node=trace,warn`).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;

use tracing_subscriber::EnvFilter;

use crate::output;

/// The environment variable that chooses what is logged.
pub(crate) const VARIABLE: &str = "HIKYAKU_LOG";

/// Begins logging at `level` unless the environment says otherwise.
pub(crate) fn start(level: &str, json: bool) {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text).unwrap_or_else(|error| {
            output::note(&format!(
                "warning: {VARIABLE}={text} is not a filter ({error}); logging at {level}"
            ));
            EnvFilter::new(level)
        }),
        _ => EnvFilter::new(level),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(output::is_lively())
        .with_target(false);
    // Only a second call could fail, and there is none.
    let _ = if json { builder.json().try_init() } else { builder.compact().try_init() };
}

/// From now on a panic is a line of the log, with its place: a server survives most of them, see `node::target`.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        let text = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(
            place,
            thread = thread.name().unwrap_or("unnamed"),
            "panicked: {text}; this is a defect of hikyaku, please report it"
        );
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            tracing::error!("{trace}");
        }
    }));
}
