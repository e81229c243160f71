//! The command line as the host of a job: opens both endpoints and prints messages.

use std::path::PathBuf;
use std::sync::Arc;

use block::remote::Links;
use block::{Medium, OpenError, OpenOptions, Spec};
use job::{Address, Copied, Host, Mismatch, Sample, Stop};
use nbd::NbdMedium;
use node::initiator::{Options, Url};
use serde_json::json;

use crate::advice;
use crate::context::Context;
use crate::endpoint::Named;
use crate::error::Failure;
use crate::output;
use crate::progress::Progress;
use crate::secret::without_unknown;
use crate::state::StateDir;

/// An endpoint of the copy, opened with the secrets and trusted keys of the command line.
pub(super) struct End<'a> {
    context: &'a Context,
    pub(super) named: Named,
    words: String,
}

impl<'a> End<'a> {
    pub(super) fn parse(context: &'a Context, words: &str, sessions: Links) -> Result<Self, Failure> {
        let named = Named::parse(context, words, &[])?.with_sessions(sessions);
        Ok(Self { context, named, words: without_unknown(words) })
    }
}

impl Address for End<'_> {
    fn text(&self) -> &str {
        &self.named.text
    }

    fn words(&self) -> &str {
        &self.words
    }

    fn spec(&self) -> &Spec {
        &self.named.spec
    }

    fn spec_mut(&mut self) -> &mut Spec {
        &mut self.named.spec
    }

    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn Medium>, Failure> {
        self.named.open(self.context, options)
    }

    fn failed(&self, attempted: &str, error: &OpenError) -> Failure {
        self.named.failed(attempted, error)
    }

    fn if_missing(&self) -> String {
        self.named.path().map(advice::missing).unwrap_or_default()
    }

    fn nbd(&self) -> Result<Option<NbdMedium>, Failure> {
        self.named.nbd(true)
    }

    fn login(&self, url: &Url) -> Result<Options, Failure> {
        self.named.initiator_options(self.context, url)
    }
}

/// Prints the result on stdout and everything else on stderr, in the form for `--json`, `--quiet` or text.
pub(super) struct Terminal<'a> {
    pub(super) context: &'a Context,
    /// The destination is standard output, so the result goes to stderr.
    pub(super) data_on_stdout: bool,
}

impl<'a> Terminal<'a> {
    pub(super) fn new(context: &'a Context) -> Self {
        Self { context, data_on_stdout: false }
    }
}

impl Host for Terminal<'_> {
    fn stop(&self) -> &Stop {
        &self.context.stop
    }

    fn state_dir(&self) -> Result<PathBuf, Failure> {
        Ok(StateDir::locate()?.path().to_owned())
    }

    fn warn(&self, text: &str) {
        self.context.warn(text);
    }

    fn remark(&self, text: &str) {
        self.context.remark(text);
    }

    fn on_hook(&self, phase: &'static str) {
        if self.context.json {
            output::note_json(&json!({ "phase": phase }));
        } else {
            self.context.remark(&format!("running the command of --{phase}"));
        }
    }

    fn display(&self) -> Box<dyn FnMut(&Sample) + '_> {
        let mut progress = Progress::new(self.context);
        Box::new(move |sample| progress.update(sample))
    }

    fn on_mismatch(&self, mismatch: &Mismatch) {
        if self.context.json {
            output::json(&mismatch.object());
        }
    }

    fn on_copied(&self, copied: &Copied) {
        if self.context.json {
            let print = if self.data_on_stdout { output::note_json } else { output::json };
            print(&copied.object());
        } else if !self.context.quiet {
            let print = if self.data_on_stdout { output::note } else { output::line };
            copied.lines().iter().for_each(|line| print(line));
        }
    }
}
