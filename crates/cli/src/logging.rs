//! The log on stderr: text or JSON lines; under systemd entries of the journal with fields. `HIKYAKU_LOG` sets the filter: a
//! level, or levels by module (`debug`, `node=trace,warn`).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Debug};
use std::io::{self, Write};

use clap::ValueEnum;
use tracing::field::Field;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output;

/// Environment variable with the filter.
pub(crate) const VARIABLE: &str = "HIKYAKU_LOG";

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Lines for people
    Text,
    /// A JSON object a line
    Json,
    /// Entries of the journal, with PEER=, INITIATOR= and so on as fields
    Journal,
}

impl Form {
    /// The journal if it reads stderr (`JOURNAL_STREAM` of sd-daemon(3) has its device and inode), otherwise text.
    fn of_stderr() -> Self {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let is_it = rustix::fs::fstat(io::stderr())
            .is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino));
        if is_it { Self::Journal } else { Self::Text }
    }
}

/// Starts logging at `level`, unless the environment contains a filter; `None`: in the form that suits stderr.
pub(crate) fn start(level: &str, form: Option<Form>) {
    let at_level = || level.parse::<Targets>().expect("the callers pass names of levels");
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse().unwrap_or_else(|error| {
            output::note(&format!(
                "warning: {VARIABLE}={text} is not a filter ({error}); logging at {level}"
            ));
            at_level()
        }),
        _ => at_level(),
    };
    let layer = || {
        tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(output::is_lively())
            .with_target(false)
    };
    let text = || layer().compact().fmt_fields(debug_fn(field).delimited(" ")).boxed();
    let form = form.unwrap_or_else(Form::of_stderr);
    let layer = match form {
        Form::Text => text(),
        Form::Json => layer().json().with_writer(|| JsonLines).boxed(),
        Form::Journal => match tracing_journald::layer() {
            // Without a prefix: the names are those of the fields in capitals.
            Ok(journal) => journal.with_field_prefix(None).boxed(),
            Err(error) => {
                output::note(&format!("warning: the journal cannot be used ({error}); logging as text"));
                text()
            }
        },
    };
    // Fails only on a second call, which does not occur.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter)).try_init();
}

/// Writes a field as the library does, with control characters escaped: peers choose names and messages.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = format!("{value:?}");
    let value = output::printable(&value);
    match field.name().trim_start_matches("r#") {
        "message" => writer.write_str(&value),
        name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
        name => write!(writer, "{name}={value}"),
    }
}

struct JsonLines;

impl Write for JsonLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        io::stderr().write_all(output::printable_json(&text).as_bytes()).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Installs a panic hook that logs the panic and its place: a server survives most panics, see `node::target`.
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_peers_send_is_escaped() {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .compact()
            .fmt_fields(debug_fn(field).delimited(" "))
            .finish();
        let name = "a\u{1b}[31m\u{202e}\r";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(name, shown = %name, count = 2, "from {name}");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let escaped = r"a\u{1b}[31m\u{202e}\u{d}";
        let expected =
            format!(" INFO from {escaped} name=\"{}\" shown={escaped} count=2\n", r"a\u{1b}[31m\u{202e}\r");
        assert_eq!(text, expected);
    }
}
