//! Both machines, each at an edge of its own, connected by byte streams. A schedule is the test's: every method is one
//! thing that may happen next.

use iscsi::initiator::{self, Direction};
use iscsi::machine::Fatal;
use iscsi::params::Params;
use iscsi::target;
use iscsi::wire::{LogoutReason, TmFunction};

use crate::NOW;
use crate::edge::Edge;
use crate::users::{Load, Storage};

/// Rounds of the fair schedule in which nothing moves: more is a hang.
const IDLE_ROUNDS_MAX: usize = 4;

/// A session between honest sides.
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
    /// Two machines before their login, the target's side with these wishes.
    pub fn new(initiator: initiator::Config, target: target::Config, wishes: Params) -> Self {
        let initiator = initiator::Connection::new(initiator, [2; 32], NOW).expect("a good configuration");
        Self {
            target: Edge::new(target::Connection::new(target, [1; 32], NOW)),
            initiator: Edge::new(initiator),
            storage: Storage::new(wishes),
            load: Load::default(),
            to_target: Vec::new(),
            to_initiator: Vec::new(),
        }
    }

    /// What the initiator asked for, and what became of it.
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

    /// Moves up to so many bytes to the target.
    pub fn carry_to_target(&mut self, count: usize) {
        let storage = &mut self.storage;
        let count = count.min(self.to_target.len());
        self.target.inbox.extend(self.to_target.drain(..count));
        let result = self.target.receive(|machine, buffers| storage.drain(machine, buffers));
        result.expect("an honest initiator");
    }

    /// Moves up to so many bytes to the initiator. An error: the login has failed, since wishes exclude each other.
    pub fn carry_to_initiator(&mut self, count: usize) -> Result<(), Fatal> {
        let load = &mut self.load;
        let count = count.min(self.to_initiator.len());
        self.initiator.inbox.extend(self.to_initiator.drain(..count));
        let result = self.initiator.receive(|machine, buffers| load.drain(machine, buffers));
        assert!(result.is_ok() || load.is_refused(), "{result:?} from an honest target");
        result
    }

    /// Storage ends one of the commands that wait for it.
    pub fn finish_job(&mut self, choice: usize) {
        self.storage.finish(choice, &mut self.target.machine, &mut self.target.buffers);
    }

    /// The target answers a task management request.
    pub fn finish_management(&mut self) {
        self.storage.manage(&mut self.target.machine, &mut self.target.buffers);
    }

    /// Whether the initiator may submit now.
    pub fn can_submit(&self) -> bool {
        self.initiator.machine.window() > 0
    }

    /// Submits a command: its operation, LUN and direction; the length that is expected, and the one SCSI moves.
    pub fn submit(&mut self, op: u8, lun: u64, direction: Direction, expected: u32, length: u32) {
        let command = self.load.command(op, lun, direction, expected, length);
        self.load.submit(command, &mut self.initiator.machine, &mut self.initiator.buffers);
    }

    /// The initiator asks for the management of one of its tasks, if there are any.
    pub fn manage(&mut self, function: TmFunction, choice: usize) {
        self.load.manage(function, choice, &mut self.initiator.machine, &mut self.initiator.buffers);
    }

    /// The fair schedule, to the end of the session: everything must come to its end.
    pub fn run_to_end(mut self) {
        let mut idle = 0;
        while idle < IDLE_ROUNDS_MAX {
            self.send_to_target(usize::MAX);
            self.send_to_initiator(usize::MAX);
            let moves = [&self.to_target, &self.to_initiator].iter().any(|wire| !wire.is_empty());
            idle = if moves || self.storage.has_jobs() { 0 } else { idle + 1 };
            self.carry_to_target(usize::MAX);
            if self.carry_to_initiator(usize::MAX).is_err() {
                return;
            }
            if self.load.is_logged_out() && self.storage.is_closed() {
                assert!(self.storage.is_idle() && self.target.buffers.is_empty());
                return;
            }
            self.finish_job(0);
            self.finish_management();
            if self.load.is_idle() {
                self.initiator.machine.logout(LogoutReason::CloseSession, NOW);
            }
        }
        panic!("stuck: {} commands without an answer", self.load.waiting());
    }
}
