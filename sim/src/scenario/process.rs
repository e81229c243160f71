//! A process of an initiator, on a machine of its own.

use std::time::Duration;

use io::Thread;

use crate::random::Random;
use crate::state::MachineId;
use crate::world::{Context, Over};

/// See the module.
pub(super) struct Process {
    context: Context,
    machine: MachineId,
    thread: Option<Thread<()>>,
}

impl Process {
    /// A machine on which nothing runs.
    pub(super) fn new(context: &Context) -> Self {
        Self { context: context.clone(), machine: context.add_machine(), thread: None }
    }

    /// Starts it.
    pub(super) fn start(&mut self, name: &str, body: impl FnOnce() + Send + 'static) {
        self.thread = Some(self.context.on(self.machine, || io::spawn(name, body)).expect("a thread"));
    }

    /// Kills it, with the machine's power or without, and returns when it is to be started again.
    pub(super) fn kill(&mut self, power: bool, random: &mut Random) -> Result<(), Over> {
        self.context.count(|counters| counters.initiator_cuts += 1);
        self.context.kill(self.machine, power);
        self.join();
        self.context.sleep(Duration::from_micros(random.magnitude(1000..5_000_000)))
    }

    /// Waits for its end.
    pub(super) fn join(&mut self) {
        let _ = self.thread.take().expect("started").join();
    }
}
