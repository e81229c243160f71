//! The control socket of a copy: its status.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use job::Sample;
use serde_json::{Value, json};

use crate::context::Context;
use crate::control::listen::ControlSocket;
use crate::control::{self, Request};
use crate::error::Failure;
use crate::progress;

/// Answers at the control socket while it lives.
pub(super) struct Operated(Option<Arc<ControlSocket>>);

impl Operated {
    /// `ends`: source and destination without secrets. A copy runs without a socket where there is no directory for it.
    pub(super) fn begin(context: &Context, ends: [String; 2]) -> Self {
        let opened = control::directory().and_then(|directory| ControlSocket::open(&directory, "copy").ok());
        let Some(socket) = opened.map(Arc::new) else { return Self(None) };
        let answering = Arc::clone(&socket);
        let sample = Arc::clone(&context.sample);
        let since = SystemTime::now();
        let serve = move || answering.serve(|request| answer(&request, &sample, &ends, since));
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

fn answer(
    request: &Request,
    sample: &Mutex<Option<Sample>>,
    [source, destination]: &[String; 2],
    since: SystemTime,
) -> Result<Value, Failure> {
    if *request != (Request::Status {}) {
        return Err(Failure::usage("operate the copy", "", "a copy has only a status"));
    }
    let sample = sample.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(json!({
        "command": "copy",
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "since_unix_s": since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "source": source,
        "destination": destination,
        "progress": sample.as_ref().map(|sample| progress::object(sample)["progress"].clone()),
        "text": sample.as_ref().map(progress::line),
    }))
}
