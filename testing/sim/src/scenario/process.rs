//! A process of an initiator, on its own machine.

use std::time::Duration;

use io::Thread;

use crate::random::Random;
use crate::state::MachineId;
use crate::world::{Context, Over};

/// See the module. [`Process::start`], then [`Process::kill`] or [`Process::join`], and again.
pub(super) struct Process {
    context: Context,
    machine: MachineId,
    thread: Option<Thread<()>>,
}

impl Process {
    pub(super) fn new(context: &Context) -> Self {
        Self { context: context.clone(), machine: context.add_machine(), thread: None }
    }

    pub(super) fn start(&mut self, name: &str, body: impl FnOnce() + Send + 'static) {
        self.thread = Some(self.context.on(self.machine, || io::spawn(name, body)).expect("a thread"));
    }

    /// Kills the process, with the machine's power or without, and returns at the time of its next start.
    pub(super) fn kill(&mut self, power: bool, random: &mut Random) -> Result<(), Over> {
        self.context.count(|counters| counters.initiator_cuts += 1);
        self.context.kill(self.machine, power);
        self.join();
        self.context.sleep(Duration::from_micros(random.magnitude(1000..5_000_000)))
    }

    pub(super) fn join(&mut self) {
        let _ = self.thread.take().expect("started").join();
    }
}
