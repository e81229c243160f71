//! Both machines, connected by byte streams, under a schedule of the fuzzer's: data must arrive right.
//!
//! When the input is used up the schedule is a fair one, under which everything must come to its end: a hang is a
//! failure like any other.

use std::collections::HashMap;

use iscsi::initiator::{self, Direction};
use iscsi::machine::TaskId;
use iscsi::name::IscsiName;
use iscsi::params::Params;
use iscsi::target::{self, AuthRequirement, Completion, Policy};
use iscsi::wire::{Attribute, CmdSn, Isid, LogoutReason, LogoutResult, Residual, TmFunction, TmResult};

use crate::edge::{Buffers, Edge, NOW};
use crate::words;
use crate::{Source, heap};

/// Both machines, what is on the way, and the buffers.
const HEAP_MAX: usize = 32 << 20;
const STEPS_MAX: usize = 2000;
const COMMANDS_MAX: u32 = 40;
/// Rounds of the fair schedule in which nothing moves: more is a hang.
const IDLE_ROUNDS_MAX: usize = 4;
const LENGTH_MAX: u32 = 70_000;
const SENSE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];

const READ: u8 = 1;
const WRITE: u8 = 2;
const NONE: u8 = 3;
const FAIL: u8 = 4;

/// One session.
pub fn pair(bytes: &[u8]) {
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        let Some(mut pair) = Pair::new(&mut source) else { return };
        for _ in 0..STEPS_MAX {
            if source.is_empty() {
                break;
            }
            if !pair.step(&mut source) {
                return;
            }
        }
        pair.finish();
    });
}

/// The byte at a place of the data with this tag: nothing lands elsewhere unseen.
fn content(tag: u32, length: u32) -> Vec<u8> {
    (0..length)
        .map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ tag.wrapping_mul(0x9e37_79b9) >> 16) as u8)
        .collect()
}

/// The command's operation, the tag of its data, and the length SCSI moves.
fn cdb(op: u8, tag: u32, length: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = op;
    cdb[4..8].copy_from_slice(&tag.to_be_bytes());
    cdb[8..12].copy_from_slice(&length.to_be_bytes());
    cdb
}

fn parse(cdb: &[u8; 16]) -> (u8, u32, u32) {
    let word = |at: usize| u32::from_be_bytes(cdb[at..at + 4].try_into().expect("four bytes"));
    (cdb[0], word(4), word(8))
}

/// The target's edge: storage that answers when the schedule says so.
struct Storage {
    params: Params,
    jobs: Vec<TaskId>,
    commands: HashMap<u32, target::Command>,
    management: Vec<target::ManagementId>,
    closed: bool,
}

impl Storage {
    fn drain(&mut self, machine: &mut target::Connection, buffers: &mut Buffers) {
        while let Some(event) = machine.poll_event() {
            match event {
                target::Event::Identify(_) => machine.identify(Ok(Policy {
                    auth: AuthRequirement::None,
                    portal_group_tag: 1,
                    target_alias: None,
                    params: self.params.clone(),
                })),
                target::Event::SessionReady(_) => machine.accept_session(7),
                target::Event::Command(command) => {
                    let slot = command.task.0;
                    assert!(self.commands.insert(slot, command).is_none(), "a slot in use given again");
                    let (op, _, length) = parse(&command.cdb);
                    let bytes = length.min(command.expected);
                    if op == WRITE && command.write && bytes > 0 {
                        buffers.insert(slot, vec![0; bytes as usize]);
                        machine.want_data_out(command.task, bytes);
                    } else {
                        self.jobs.push(command.task);
                    }
                }
                target::Event::DataOut { task } => {
                    let (_, tag, _) = parse(&self.commands[&task.0].cdb);
                    let buffer = &buffers[&task.0];
                    assert!(*buffer == content(tag, buffer.len() as u32), "data-out of {task:?} is wrong");
                    self.jobs.push(task);
                }
                target::Event::TaskDone { task } => {
                    self.commands.remove(&task.0).expect("a task ends once");
                    assert!(!self.jobs.contains(&task), "a task in the edge's hands ended by itself");
                    buffers.remove(&task.0);
                }
                target::Event::TaskManagement { request, .. } => self.management.push(request),
                target::Event::SendTargets { .. } => unreachable!("nobody asks"),
                target::Event::Logout { .. } => {}
                target::Event::Close => self.closed = true,
            }
        }
    }

    fn finish(&mut self, index: usize, machine: &mut target::Connection, buffers: &mut Buffers) {
        let task = self.jobs.swap_remove(index);
        let command = &self.commands[&task.0];
        let (op, tag, length) = parse(&command.cdb);
        let transfer = u64::from(length);
        let completion = match op {
            READ => {
                let data_in = if command.read { length.min(command.expected) } else { 0 };
                buffers.insert(task.0, content(tag, data_in));
                Completion { data_in, transfer, ..Completion::default() }
            }
            WRITE => Completion { transfer, ..Completion::default() },
            NONE => Completion::default(),
            _ => Completion { status: 2, sense: &SENSE, ..Completion::default() },
        };
        machine.complete(task, completion);
        self.drain(machine, buffers);
    }
}

/// The initiator's edge.
#[derive(Default)]
struct Load {
    submitted: HashMap<u32, initiator::Command>,
    /// Task management requests without an answer.
    managing: usize,
    managed: bool,
    logged_in: bool,
    logged_out: bool,
    refused: bool,
}

impl Load {
    fn drain(&mut self, machine: &mut initiator::Connection, buffers: &mut Buffers) {
        while let Some(event) = machine.poll_event() {
            match event {
                initiator::Event::LoggedIn(_) => self.logged_in = true,
                // Wishes that exclude each other.
                initiator::Event::LoginFailed(_) => self.refused = true,
                initiator::Event::Complete(outcome) => {
                    let command = self.submitted.remove(&outcome.task.0).expect("a task ends once");
                    let buffer = buffers.remove(&outcome.task.0).expect("its buffer");
                    check(&command, &outcome, &buffer);
                }
                initiator::Event::Failed { task, error } => {
                    assert!(error == initiator::TaskError::Aborted && self.managed, "{error}");
                    self.submitted.remove(&task.0).expect("a task ends once");
                    buffers.remove(&task.0);
                }
                initiator::Event::ManagementDone { result, .. } => {
                    assert!(matches!(result, TmResult::Complete | TmResult::TaskDoesNotExist), "{result:?}");
                    self.managing -= 1;
                }
                initiator::Event::LoggedOut { result } => {
                    assert_eq!(result, LogoutResult::Closed);
                    self.logged_out = true;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn check(command: &initiator::Command, outcome: &initiator::Outcome, buffer: &[u8]) {
    let (op, tag, length) = parse(&command.cdb);
    let expected = command.length;
    let (status, moved) = match op {
        FAIL => (2, 0),
        NONE => (0, 0),
        _ => (0, length),
    };
    assert_eq!((outcome.status, outcome.residual), (status, Residual::between(expected, moved.into())));
    if op == FAIL {
        assert_eq!(outcome.sense, SENSE);
    }
    if op == READ {
        let moved = length.min(expected);
        assert_eq!(outcome.data_in, moved);
        assert!(buffer[..moved as usize] == content(tag, moved), "data-in is wrong");
    }
}

struct Pair {
    target: Edge<target::Connection>,
    initiator: Edge<initiator::Connection>,
    storage: Storage,
    load: Load,
    to_target: Vec<u8>,
    to_initiator: Vec<u8>,
    tag: u32,
}

impl Pair {
    fn new(source: &mut Source<'_>) -> Option<Self> {
        let name = |text| IscsiName::parse(text).expect("a name");
        let isid = Isid::random([1, 2, 3], 4);
        let mut login =
            iscsi::login::initiator::Config::normal(name(words::INITIATOR), isid, name(words::TARGET));
        login.cmd_sn = CmdSn(source.pick(&[1, u32::MAX - 20, 0x7fff_fff0]));
        login.params = words::params(source);
        let tasks_max = source.pick(&[30, 1, 3]);
        let config = initiator::Config { tasks_max, ..initiator::Config::new(login) };
        let target_config = target::Config {
            tasks_max: source.pick(&[32, 1, 2, 5]),
            solicited_bytes_max: source.pick(&[1 << 20, 1, 4096]),
            ..target::Config::default()
        };
        let storage = Storage {
            params: words::params(source),
            jobs: Vec::new(),
            commands: HashMap::new(),
            management: Vec::new(),
            closed: false,
        };
        Some(Self {
            target: Edge::new(target::Connection::new(target_config, [1; 32], NOW)),
            initiator: Edge::new(initiator::Connection::new(config, [2; 32], NOW).ok()?),
            storage,
            load: Load::default(),
            to_target: Vec::new(),
            to_initiator: Vec::new(),
            tag: 0,
        })
    }

    /// One step of the fuzzer's schedule; false when the login has failed.
    fn step(&mut self, source: &mut Source<'_>) -> bool {
        match source.byte() % 16 {
            0..=2 => self.send_to_target(source.below(6)),
            3..=5 => self.send_to_initiator(source.below(6)),
            6 | 7 => return self.carry(source.number() as usize, 0),
            8 | 9 => return self.carry(0, source.number() as usize),
            10 | 11 => self.work(source.byte().into()),
            12..=14 => self.submit(source),
            _ => self.manage(source),
        }
        true
    }

    fn send_to_target(&mut self, count: usize) {
        let load = &mut self.load;
        self.initiator.send(count, &mut self.to_target, |m, b| load.drain(m, b));
    }

    fn send_to_initiator(&mut self, count: usize) {
        let storage = &mut self.storage;
        self.target.send(count, &mut self.to_initiator, |m, b| storage.drain(m, b));
    }

    /// Moves bytes in both directions; false when the login has failed.
    fn carry(&mut self, to_target: usize, to_initiator: usize) -> bool {
        let (storage, load) = (&mut self.storage, &mut self.load);
        let count = to_target.min(self.to_target.len());
        self.target.inbox.extend(self.to_target.drain(..count));
        self.target.receive(|m, b| storage.drain(m, b)).expect("an honest initiator");
        let count = to_initiator.min(self.to_initiator.len());
        self.initiator.inbox.extend(self.to_initiator.drain(..count));
        let result = self.initiator.receive(|m, b| load.drain(m, b));
        assert!(result.is_ok() || load.refused, "{result:?} from an honest target");
        !load.refused
    }

    fn work(&mut self, choice: usize) {
        if !self.storage.jobs.is_empty() {
            let index = choice % self.storage.jobs.len();
            self.storage.finish(index, &mut self.target.machine, &mut self.target.buffers);
        }
        if choice.is_multiple_of(2) && !self.storage.management.is_empty() {
            let request = self.storage.management.remove(0);
            self.target.machine.complete_management(request, TmResult::Complete);
            self.storage.drain(&mut self.target.machine, &mut self.target.buffers);
        }
    }

    fn submit(&mut self, source: &mut Source<'_>) {
        if self.initiator.machine.window() == 0 || self.tag == COMMANDS_MAX {
            return;
        }
        let op = source.pick(&[READ, WRITE, NONE, FAIL]);
        let direction = match op {
            READ => Direction::In,
            WRITE => Direction::Out,
            _ => source.pick(&[Direction::None, Direction::In, Direction::Out]),
        };
        let length = if direction == Direction::None { 0 } else { source.number() % LENGTH_MAX };
        // SCSI's own length differs from the expected one now and then: residuals.
        let scsi = if source.rarely(4) { source.number() % LENGTH_MAX } else { length };
        let lun = u64::from(source.byte() % 2) << 48;
        let cdb = cdb(op, self.tag, scsi);
        let command = initiator::Command { lun, cdb, direction, length, attribute: Attribute::Simple };
        let task = self.initiator.machine.submit(command).expect("the window is open");
        let buffer =
            if direction == Direction::Out { content(self.tag, length) } else { vec![0; length as usize] };
        assert!(self.initiator.buffers.insert(task.0, buffer).is_none(), "a slot in use given again");
        self.load.submitted.insert(task.0, command);
        self.tag += 1;
    }

    fn manage(&mut self, source: &mut Source<'_>) {
        let functions = [TmFunction::AbortTask, TmFunction::AbortTaskSet, TmFunction::LogicalUnitReset];
        let function = source.pick(&functions);
        let mut slots: Vec<u32> = self.load.submitted.keys().copied().collect();
        slots.sort_unstable();
        if slots.is_empty() {
            return;
        }
        let slot = source.pick(&slots);
        let lun = self.load.submitted[&slot].lun;
        if self.initiator.machine.task_management(function, lun, Some(TaskId(slot))).is_ok() {
            self.load.managing += 1;
            self.load.managed = true;
        }
        self.load.drain(&mut self.initiator.machine, &mut self.initiator.buffers);
    }

    /// The fair schedule, to the end of the session.
    fn finish(&mut self) {
        let mut idle = 0;
        while idle < IDLE_ROUNDS_MAX {
            self.send_to_target(usize::MAX);
            self.send_to_initiator(usize::MAX);
            let moves = [&self.to_target, &self.to_initiator].iter().any(|wire| !wire.is_empty());
            idle = if moves || !self.storage.jobs.is_empty() { 0 } else { idle + 1 };
            if !self.carry(usize::MAX, usize::MAX) || (self.load.logged_out && self.storage.closed) {
                assert!(self.load.refused || self.storage.commands.is_empty());
                assert!(self.load.refused || self.target.buffers.is_empty());
                return;
            }
            self.work(0);
            if self.load.logged_in && self.load.submitted.is_empty() && self.load.managing == 0 {
                self.initiator.machine.logout(LogoutReason::CloseSession, NOW);
            }
        }
        panic!("stuck: {} commands without an answer", self.load.submitted.len());
    }
}
