//! Both machines, each at its own edge, connected by byte streams. The test is the scheduler: every method is one
//! possible next step.

use iscsi::initiator::{self, Direction};
use iscsi::machine::Fatal;
use iscsi::params::Params;
use iscsi::target;
use iscsi::wire::{LogoutReason, TmFunction};

use crate::NOW;
use crate::edge::Edge;
use crate::users::{Load, Storage};

/// Rounds of the fair schedule without progress after which the session counts as hung.
const IDLE_ROUNDS_MAX: usize = 4;

#[derive(Debug)]
pub struct Pair {
    target: Edge<target::Connection>,
    initiator: Edge<initiator::Connection>,
    storage: Storage,
    load: Load,
    to_target: Vec<u8>,
    to_initiator: Vec<u8>,
}

impl Pair {
    /// Two machines before their login; `params` are the parameters of the target.
    pub fn new(initiator: initiator::Config, target: target::Config, params: Params) -> Self {
        let initiator = initiator::Connection::new(initiator, [2; 32], NOW).expect("a good configuration");
        Self {
            target: Edge::new(target::Connection::new(target, [1; 32], NOW)),
            initiator: Edge::new(initiator),
            storage: Storage::new(params),
            load: Load::default(),
            to_target: Vec::new(),
            to_initiator: Vec::new(),
        }
    }

    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Puts up to `count` PDUs on the wire to the target.
    pub fn send_to_target(&mut self, count: usize) {
        let load = &mut self.load;
        self.initiator.send(count, &mut self.to_target, |machine, buffers| load.drain(machine, buffers));
    }

    /// Puts up to `count` PDUs on the wire to the initiator.
    pub fn send_to_initiator(&mut self, count: usize) {
        let storage = &mut self.storage;
        self.target.send(count, &mut self.to_initiator, |machine, buffers| storage.drain(machine, buffers));
    }

    /// Moves up to `count` bytes to the target.
    pub fn carry_to_target(&mut self, count: usize) {
        let storage = &mut self.storage;
        let count = count.min(self.to_target.len());
        self.target.inbox.extend(self.to_target.drain(..count));
        let result = self.target.receive(|machine, buffers| storage.drain(machine, buffers));
        result.expect("a correct initiator");
    }

    /// Moves up to `count` bytes to the initiator. An error: the login failed because the parameters exclude each
    /// other.
    pub fn carry_to_initiator(&mut self, count: usize) -> Result<(), Fatal> {
        let load = &mut self.load;
        let count = count.min(self.to_initiator.len());
        self.initiator.inbox.extend(self.to_initiator.drain(..count));
        let result = self.initiator.receive(|machine, buffers| load.drain(machine, buffers));
        assert!(result.is_ok() || load.is_refused, "{result:?} from a correct target");
        result
    }

    /// Completes one of the commands that wait for storage.
    pub fn finish_job(&mut self, choice: usize) {
        self.storage.finish(choice, &mut self.target.machine, &mut self.target.buffers);
    }

    /// Answers one task management request at the target.
    pub fn finish_management(&mut self) {
        self.storage.manage(&mut self.target.machine, &mut self.target.buffers);
    }

    pub fn can_submit(&self) -> bool {
        self.initiator.machine.window() > 0
    }

    /// Submits a command: its operation, LUN and direction; the expected length, and the length that SCSI moves.
    pub fn submit(&mut self, op: u8, lun: u64, direction: Direction, expected: u32, length: u32) {
        let command = self.load.command(op, lun, direction, expected, length);
        self.load.submit(command, &mut self.initiator.machine, &mut self.initiator.buffers);
    }

    /// Requests task management of one of the initiator's tasks, if there are any.
    pub fn manage(&mut self, function: TmFunction, choice: usize) {
        self.load.manage(function, choice, &mut self.initiator.machine, &mut self.initiator.buffers);
    }

    /// Runs the fair schedule to the end of the session; asserts that everything ends.
    pub fn run_to_end(mut self) {
        let mut idle = 0;
        while idle < IDLE_ROUNDS_MAX {
            self.send_to_target(usize::MAX);
            self.send_to_initiator(usize::MAX);
            let moves = [&self.to_target, &self.to_initiator].iter().any(|wire| !wire.is_empty());
            idle = if moves || !self.storage.jobs.is_empty() { 0 } else { idle + 1 };
            self.carry_to_target(usize::MAX);
            if self.carry_to_initiator(usize::MAX).is_err() {
                return;
            }
            if self.load.is_logged_out && self.storage.is_closed {
                assert!(self.storage.is_idle() && self.target.buffers.is_empty());
                return;
            }
            self.finish_job(0);
            self.finish_management();
            if self.load.is_idle() {
                self.initiator.machine.logout(LogoutReason::CloseSession, NOW);
            }
        }
        panic!("stuck: {} commands without an answer", self.load.commands.len());
    }
}
