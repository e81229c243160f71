//! A program without the feature.

use monitor::Sample;
use monitor::probe::Session;
use serde_json::Value;

pub(in super::super) struct Precise;

impl Precise {
    pub(in super::super) fn new(_wanted: bool) -> Self {
        Self
    }

    pub(in super::super) fn refusal(&self) -> Option<&str> {
        None
    }

    pub(in super::super) fn watch(&mut self, _sessions: &[Session]) {}

    pub(in super::super) fn read(&mut self, _sessions: &[Session], _on: impl FnMut(&Session, &Sample)) {}

    pub(in super::super) fn json(&self, _session: &Session) -> Value {
        Value::Null
    }

    pub(in super::super) fn sentence(&self, _session: &Session) -> Option<String> {
        None
    }
}
