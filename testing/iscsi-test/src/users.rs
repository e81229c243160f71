//! The users at both ends of a connection: an initiator's load, and storage at the target. The CDB identifies the data.

use std::collections::HashMap;

use iscsi::initiator::{self, Command, Direction, Outcome, TaskError};
use iscsi::machine::TaskId;
use iscsi::params::Params;
use iscsi::target::{self, Completion, ManagementId};
use iscsi::wire::{Attribute, LogoutResult, Residual, TmFunction, TmResult};

use crate::edge::Buffers;
use crate::{Random, policy};

pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
pub const NONE: u8 = 3;
/// Operation that ends with CHECK CONDITION.
pub const FAIL: u8 = 4;

const SENSE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];

/// A CDB with the operation, the tag of the data, and the length that SCSI moves.
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

/// The data with this tag: bytes differ by position, so that misplaced data is detected.
fn content(tag: u32, length: u32) -> Vec<u8> {
    let mut random = Random(tag.into());
    let length = length as usize;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The target's edge: storage that completes commands when the schedule requires it.
#[derive(Debug)]
pub(crate) struct Storage {
    params: Params,
    pub(crate) jobs: Vec<TaskId>,
    commands: HashMap<u32, target::Command>,
    management: Vec<ManagementId>,
    /// Whether the machine has requested the end of the connection.
    pub(crate) is_closed: bool,
}

impl Storage {
    pub(crate) fn new(params: Params) -> Self {
        Self { params, jobs: Vec::new(), commands: HashMap::new(), management: Vec::new(), is_closed: false }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.commands.is_empty()
    }

    pub(crate) fn drain(&mut self, machine: &mut target::Connection, buffers: &mut Buffers) {
        while let Some(event) = machine.poll_event() {
            match event {
                target::Event::Identify(_) => machine.identify(Ok(policy(self.params.clone()))),
                target::Event::SessionReady(_) => machine.accept_session(7),
                target::Event::Command(command) => {
                    let slot = command.task.0;
                    assert!(self.commands.insert(slot, command).is_none(), "a slot in use given again");
                    let (op, tag, length) = parse(&command.cdb);
                    let bytes = length.min(command.expected);
                    if op == WRITE && command.write && bytes > 0 {
                        buffers.insert(slot, vec![0; bytes as usize]);
                        machine.want_data_out(command.task, bytes);
                    } else if matches!(op, NONE | FAIL) && tag % 2 == 1 {
                        // Completed immediately, also while the machine reports events.
                        self.complete(command.task, machine, buffers);
                    } else {
                        self.jobs.push(command.task);
                    }
                }
                target::Event::DataOutFront { task, bytes } => {
                    let (_, tag, _) = parse(&self.commands[&task.0].cdb);
                    let (buffer, bytes) = (&buffers[&task.0], bytes as usize);
                    let expected = content(tag, buffer.len() as u32);
                    assert!(buffer[..bytes] == expected[..bytes], "the first data-out of {task:?} is wrong");
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
                target::Event::TaskManagement { request, .. } => {
                    machine.carry_out(request);
                    self.management.push(request);
                }
                target::Event::SendTargets { .. } => unreachable!("no session sends SendTargets"),
                target::Event::Logout { .. } | target::Event::LoginRefused { .. } => {}
                target::Event::Close => self.is_closed = true,
            }
        }
    }

    fn complete(&self, task: TaskId, machine: &mut target::Connection, buffers: &mut Buffers) {
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
    }

    /// Completes one of the waiting commands, if there are any.
    pub(crate) fn finish(&mut self, choice: usize, machine: &mut target::Connection, buffers: &mut Buffers) {
        if !self.jobs.is_empty() {
            let task = self.jobs.swap_remove(choice % self.jobs.len());
            self.complete(task, machine, buffers);
            self.drain(machine, buffers);
        }
    }

    /// Answers the oldest task management request, if there is one.
    pub(crate) fn manage(&mut self, machine: &mut target::Connection, buffers: &mut Buffers) {
        if !self.management.is_empty() {
            let request = self.management.remove(0);
            machine.complete_management(request, TmResult::Complete);
            self.drain(machine, buffers);
        }
    }
}

/// The initiator's edge: submits commands and checks their results.
#[derive(Debug, Default)]
pub struct Load {
    pub(crate) commands: HashMap<u32, Command>,
    /// Tag of the next command; the number of submitted commands.
    tag: u32,
    /// Number of task management requests, and of those unanswered.
    managed: u32,
    managing: u32,
    logged_in: bool,
    pub(crate) is_logged_out: bool,
    /// Whether the login failed because the parameters exclude each other.
    pub(crate) is_refused: bool,
}

impl Load {
    pub fn submitted(&self) -> u32 {
        self.tag
    }

    /// Whether the session is logged in and all requests are answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.logged_in && self.commands.is_empty() && self.managing == 0
    }

    pub(crate) fn drain(&mut self, machine: &mut initiator::Connection, buffers: &mut Buffers) {
        while let Some(event) = machine.poll_event() {
            match event {
                initiator::Event::LoggedIn(_) => self.logged_in = true,
                initiator::Event::LoginFailed(_) => self.is_refused = true,
                initiator::Event::Complete(outcome) => {
                    let command = self.commands.remove(&outcome.task.0).expect("a task ends once");
                    let buffer = buffers.remove(&outcome.task.0).expect("its buffer");
                    check(&command, &outcome, &buffer);
                }
                initiator::Event::Failed { task, error } => {
                    assert!(error == TaskError::Aborted && self.managed > 0, "{error}");
                    self.commands.remove(&task.0).expect("a task ends once");
                    buffers.remove(&task.0).expect("its buffer");
                }
                initiator::Event::ManagementDone { result, .. } => {
                    assert!(matches!(result, TmResult::Complete | TmResult::TaskDoesNotExist), "{result:?}");
                    self.managing -= 1;
                }
                initiator::Event::LoggedOut { result } => {
                    assert_eq!(result, LogoutResult::Closed);
                    self.is_logged_out = true;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn command(
        &self,
        op: u8,
        lun: u64,
        direction: Direction,
        expected: u32,
        length: u32,
    ) -> Command {
        let expected = if direction == Direction::None { 0 } else { expected };
        let cdb = cdb(op, self.tag, length);
        Command { lun, cdb, direction, length: expected, attribute: Attribute::Simple }
    }

    pub(crate) fn submit(
        &mut self,
        command: Command,
        machine: &mut initiator::Connection,
        buffers: &mut Buffers,
    ) {
        let task = machine.submit(command).expect("the window is open");
        let buffer = match command.direction {
            Direction::Out => content(self.tag, command.length),
            _ => vec![0; command.length as usize],
        };
        assert!(buffers.insert(task.0, buffer).is_none(), "a slot in use given again");
        self.commands.insert(task.0, command);
        self.tag += 1;
    }

    /// Requests task management of one of the tasks, if there are any.
    pub(crate) fn manage(
        &mut self,
        function: TmFunction,
        choice: usize,
        machine: &mut initiator::Connection,
        buffers: &mut Buffers,
    ) {
        let mut slots: Vec<u32> = self.commands.keys().copied().collect();
        slots.sort_unstable();
        if slots.is_empty() {
            return;
        }
        let slot = slots[choice % slots.len()];
        let lun = self.commands[&slot].lun;
        if machine.task_management(function, lun, Some(TaskId(slot))).is_ok() {
            self.managing += 1;
            self.managed += 1;
        }
        self.drain(machine, buffers);
    }
}

fn check(command: &Command, outcome: &Outcome, buffer: &[u8]) {
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
    if op == WRITE {
        assert!(outcome.data_out >= length.min(expected), "the target received all data that it requested");
    }
    if op == READ {
        let moved = length.min(expected);
        assert_eq!(outcome.data_in, moved);
        assert!(buffer[..moved as usize] == content(tag, moved), "data-in is wrong");
    }
}
