//! The interface between a job and the program that runs it.

use std::path::PathBuf;
use std::time::Instant;

use block::Endpoint;
use mover::Control;

use crate::network::Network;
use crate::{Copied, Failure, Mismatch, Sample, Series, Stop};

/// The program that runs a job. Provides the stop flag and the state directory, and receives messages. All methods are
/// called on the thread that runs the job, in the order of its stages; the copy waits for them.
pub trait Host {
    fn stop(&self) -> &Stop;

    /// Directory of journals and of the lock file of destinations. Each copy looks for journals in it; the job creates it
    /// for a copy that keeps a journal, or whose destination is reachable from other machines.
    fn state_dir(&self) -> Result<PathBuf, Failure>;

    /// A message to the user about a problem that does not end the job.
    fn warn(&self, _text: &str) {}

    /// A message of interest to a human reader only.
    fn remark(&self, _text: &str) {}

    /// Called before the command of `--pre` or `--post` starts, which may take long. `phase` is `pre` or `post`.
    fn on_hook(&self, _phase: &'static str) {}

    /// A display for one stage. It gets every sample, several times a second, and is dropped before any other output.
    fn display(&self) -> Box<dyn FnMut(&Sample) + '_> {
        Box::new(|_| {})
    }

    /// Called if the data read back differs; the job then fails with [`Ending::Mismatch`](crate::Ending::Mismatch).
    fn on_mismatch(&self, _mismatch: &Mismatch) {}

    /// Called when the copy is complete and durable, before its snapshot is removed or, without one, `--post` runs.
    fn on_copied(&self, _copied: &Copied) {}
}

/// A host without messages and display.
#[derive(Debug, Default)]
pub struct Quiet {
    pub stop: Stop,
    pub state_dir: PathBuf,
}

impl Host for Quiet {
    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn state_dir(&self) -> Result<PathBuf, Failure> {
        Ok(self.state_dir.clone())
    }
}

pub(crate) struct Watch<'a> {
    stop: &'a Stop,
    display: Box<dyn FnMut(&Sample) + 'a>,
    series: Series,
    network: Network,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(host: &'a dyn Host) -> Self {
        let (series, network) = (Series::new(Instant::now()), Network::default());
        Self { stop: host.stop(), display: host.display(), series, network }
    }

    /// Follows the connections of these ends, too.
    pub(crate) fn follow(&mut self, ends: &[(&'static str, &dyn Endpoint)]) {
        self.network = Network::of(ends);
    }

    pub(crate) fn take_network(&mut self) -> Network {
        std::mem::take(&mut self.network)
    }

    pub(crate) fn update(&mut self, sample: &Sample) {
        self.series.push(Instant::now(), sample);
        (self.display)(sample);
    }

    /// Observer callback for calls into `mover`.
    pub(crate) fn observe(&mut self, now: &mover::Progress) -> Control {
        self.network.observe(now);
        self.update(&Sample::of(now));
        if self.stop.is_requested() { Control::Stop } else { Control::Continue }
    }

    /// Drops the display and returns the collected samples.
    pub(crate) fn finish(self) -> Series {
        self.series
    }
}
