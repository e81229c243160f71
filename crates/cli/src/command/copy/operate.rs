//! The control socket of a copy: its status, and changes of its rate limit.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use job::{Sample, units};
use mover::RateLimit;
use serde_json::{Value, json};

use crate::context::Context;
use crate::control::listen::ControlSocket;
use crate::control::{self, Request};
use crate::error::Failure;
use crate::progress;

/// Answers at the control socket while it lives.
pub(super) struct Operated(Option<Arc<ControlSocket>>);

impl Operated {
    /// `ends`: source and destination without secrets; `rate`: that of the copy's plan. A copy runs without a socket where
    /// there is no directory for it.
    pub(super) fn begin(context: &Context, ends: [String; 2], rate: RateLimit) -> Self {
        let opened = control::directory().and_then(|directory| ControlSocket::open(&directory, "copy").ok());
        let Some(socket) = opened.map(Arc::new) else { return Self(None) };
        let answering = Arc::clone(&socket);
        let sample = Arc::clone(&context.sample);
        let since = SystemTime::now();
        let answer = move |request| match request {
            Request::Status {} => Ok(status(&sample, &ends, since)),
            Request::SetRate { bytes_per_s } => set_rate(&rate, bytes_per_s),
            _ => Err(Failure::usage(
                "operate the copy",
                "",
                "only the status and the rate of a copy have requests",
            )),
        };
        let serve = move || answering.serve(answer);
        match std::thread::Builder::new().name("control".to_owned()).spawn(serve) {
            Ok(_) => Self(Some(socket)),
            Err(_) => Self(None),
        }
    }
}

impl Drop for Operated {
    fn drop(&mut self) {
        self.0.iter().for_each(|socket| socket.close());
    }
}

fn status(sample: &Mutex<Option<Sample>>, [source, destination]: &[String; 2], since: SystemTime) -> Value {
    let sample = sample.lock().unwrap_or_else(PoisonError::into_inner).clone();
    json!({
        "command": "copy",
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "since_unix_s": since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "source": source,
        "destination": destination,
        "progress": sample.as_ref().map(|sample| progress::object(sample)["progress"].clone()),
        "text": sample.as_ref().map(progress::line),
    })
}

/// Changes the rate limit; the copy applies it to the chunks that it reads from now on, in this phase and the next ones.
fn set_rate(rate: &RateLimit, bytes_per_s: Option<NonZeroU64>) -> Result<Value, Failure> {
    let words = |rate: Option<u64>| match rate {
        Some(rate) => format!("at most {}", units::rate(rate as f64)),
        None => "no limit".to_owned(),
    };
    let before = rate.get();
    rate.set(bytes_per_s).map_err(|reason| {
        Failure::usage("change the rate of the copy", "", reason)
            .hint("a copy that was started with --rate reads and writes the data itself")
    })?;
    Ok(
        json!({ "done": format!("rate: {}, before: {}", words(bytes_per_s.map(NonZeroU64::get)), words(before)) }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_set_and_a_copy_by_the_storage_refuses_it() {
        let rate = RateLimit::from(None);
        let set = |bytes_per_s| set_rate(&rate, NonZeroU64::new(bytes_per_s));
        assert_eq!(set(100_000_000).unwrap()["done"], "rate: at most 100 MB/s, before: no limit");
        assert_eq!(
            (rate.get(), &set(0).unwrap()["done"]),
            (Some(100_000_000), &json!("rate: no limit, before: at most 100 MB/s"))
        );
        let held = rate.hold_unlimited("the storage copies by itself").unwrap();
        let failure = set(5).unwrap_err();
        assert_eq!(
            (failure.ending, failure.cause.as_str()),
            (crate::error::Exit::Usage, "the storage copies by itself")
        );
        drop(held);
        assert!(set(5).is_ok());
    }
}
