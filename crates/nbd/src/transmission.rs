//! The transmission phase: requests out, replies in, each checked against its request.
//!
//! The machine does not touch data. [`Transmission::advance`] returns where the next bytes belong ([`Step::Data`]); the
//! edge puts them there and reports the count. A task keeps its slot until [`Transmission::release`], so that its owner
//! decides when its buffer is free.

use std::collections::VecDeque;

use thiserror::Error;

use crate::coverage::Coverage;
use crate::limits::{STATUS_EXTENTS_MAX, STRING_BYTES_MAX, TASKS_MAX};
use crate::negotiation::Export;
use crate::wire::{self, Request, chunk, command, shown, u16_at, u32_at, u64_at};

/// The slot of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(u16);

impl TaskId {
    /// Index of the slot, below [`TASKS_MAX`].
    pub fn index(self) -> usize {
        self.0.into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Read {
        offset: u64,
        length: u32,
    },
    /// NBD_CMD_WRITE; the task's buffer is its data.
    Write {
        offset: u64,
        length: u32,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        length: u32,
    },
    WriteZeroes {
        offset: u64,
        length: u32,
        /// NBD_CMD_FLAG_NO_HOLE: the range stays allocated.
        no_hole: bool,
    },
    /// NBD_CMD_BLOCK_STATUS, for all selected contexts.
    BlockStatus {
        offset: u64,
        length: u32,
    },
}

impl Command {
    fn request(self, cookie: u64) -> Request {
        let with = |command, offset, length, flags| Request { flags, command, cookie, offset, length };
        match self {
            Self::Read { offset, length } => with(command::READ, offset, length, 0),
            Self::Write { offset, length, fua } => {
                with(command::WRITE, offset, length, if fua { command::FLAG_FUA } else { 0 })
            }
            Self::Flush => with(command::FLUSH, 0, 0, 0),
            Self::Trim { offset, length } => with(command::TRIM, offset, length, 0),
            Self::WriteZeroes { offset, length, no_hole } => {
                with(command::WRITE_ZEROES, offset, length, if no_hole { command::FLAG_NO_HOLE } else { 0 })
            }
            Self::BlockStatus { offset, length } => with(command::BLOCK_STATUS, offset, length, 0),
        }
    }
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the server answers {}{}{message}", name(*code), if message.is_empty() { "" } else { ": " })]
pub struct ServerError {
    /// Errno as in Linux.
    pub code: u32,
    /// Error text of the server, made printable; often empty.
    pub message: String,
}

fn name(code: u32) -> String {
    match code {
        1 => "EPERM".into(),
        5 => "EIO".into(),
        12 => "ENOMEM".into(),
        22 => "EINVAL".into(),
        28 => "ENOSPC".into(),
        75 => "EOVERFLOW".into(),
        95 => "ENOTSUP".into(),
        wire::ESHUTDOWN => "ESHUTDOWN".into(),
        other => format!("error {other}"),
    }
}

/// The extents of one context, length and flags each, from the offset of the request on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub context: u32,
    /// In order; only the last may reach beyond the request.
    pub extents: Vec<(u32, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The task; its slot is occupied until [`Transmission::release`].
    pub task: TaskId,
    /// The extents of a block status (empty for other commands), or the error.
    pub result: Result<Vec<Status>, ServerError>,
}

/// The server violates the protocol. Its further bytes must be ignored.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the server breaks the NBD protocol: {0}")]
pub struct Violation(pub &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    pub task: TaskId,
    /// Offset in the task's buffer.
    pub offset: u32,
    /// Length in bytes, at least 1.
    pub length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Starved,
    /// Number of bytes consumed.
    Took(usize),
    /// No bytes were consumed: the next ones belong into a buffer. Report those placed by [`Transmission::on_data`].
    Data(Data),
    /// `took` bytes were consumed; a range of the task's buffer must be zeroed.
    Hole {
        took: usize,
        hole: Data,
    },
}

/// A request to be sent: its header, and how many bytes of the task's buffer follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    pub header: [u8; wire::REQUEST_BYTES],
    /// The task, and the bytes of its buffer to send; `None` for NBD_CMD_DISC.
    pub task: Option<(TaskId, u32)>,
}

#[derive(Debug)]
struct Task {
    command: Command,
    cookie: u64,
    /// A chunk has arrived, so a simple reply is a violation.
    begun: bool,
    ended: bool,
    coverage: Coverage,
    error: Option<ServerError>,
    status: Vec<Status>,
}

/// The next element of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Reply,
    Payload {
        task: TaskId,
        kind: u16,
        length: u32,
        done: bool,
    },
    Data {
        data: Data,
        done: bool,
    },
    /// Descriptors of the last element of the task's `status`: `left` bytes of them remain; they have described
    /// `covered` bytes so far.
    Descriptors {
        task: TaskId,
        left: u32,
        covered: u64,
        done: bool,
    },
}

/// The machine. The owner submits requests and sends what `poll_transmit` returns; it passes received bytes to
/// `advance` until that is starved, collects `poll_ended`, and releases each ended task.
#[derive(Debug)]
pub struct Transmission {
    structured: bool,
    contexts: Vec<u32>,
    tasks: Vec<Option<Task>>,
    free: Vec<u16>,
    /// Numbers the requests, so that a reply to an earlier request of the same slot is detected.
    serial: u64,
    transmit: VecDeque<Transmit>,
    expect: Expect,
    ended: VecDeque<Ended>,
}

type Result2<T> = Result<T, Violation>;

fn violation<T>(what: &'static str) -> Result2<T> {
    Err(Violation(what))
}

impl Transmission {
    /// Starts with the negotiated properties of `export`.
    pub fn new(export: &Export) -> Self {
        Self {
            structured: export.structured,
            contexts: export.contexts.iter().map(|context| context.id).collect(),
            tasks: Vec::new(),
            free: Vec::new(),
            serial: 0,
            transmit: VecDeque::new(),
            expect: Expect::Reply,
            ended: VecDeque::new(),
        }
    }

    pub fn window(&self) -> usize {
        TASKS_MAX - (self.tasks.len() - self.free.len())
    }

    /// Queues a request; returns its slot.
    ///
    /// # Panics
    /// If the window is closed.
    pub fn submit(&mut self, command: Command) -> TaskId {
        let slot = self.free.pop().unwrap_or_else(|| {
            assert!(self.tasks.len() < TASKS_MAX, "submitted beyond the window");
            self.tasks.push(None);
            (self.tasks.len() - 1) as u16
        });
        self.serial += 1;
        let cookie = self.serial << 16 | u64::from(slot);
        self.tasks[usize::from(slot)] = Some(Task {
            command,
            cookie,
            begun: false,
            ended: false,
            coverage: Coverage::default(),
            error: None,
            status: Vec::new(),
        });
        let bytes = if let Command::Write { length, .. } = command { length } else { 0 };
        let header = command.request(cookie).emit();
        self.transmit.push_back(Transmit { header, task: Some((TaskId(slot), bytes)) });
        TaskId(slot)
    }

    pub fn disconnect(&mut self) {
        let request = Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
        self.transmit.push_back(Transmit { header: request.emit(), task: None });
    }

    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmit.pop_front()
    }

    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    pub fn release(&mut self, task: TaskId) {
        let old = self.tasks[task.index()].take().expect("released once");
        assert!(old.ended, "released while it is under way");
        self.free.push(task.0);
    }

    /// `count` bytes were placed as [`Step::Data`] requested.
    pub fn on_data(&mut self, count: usize) -> Result2<()> {
        let Expect::Data { data, done } = self.expect else { unreachable!("no data is expected") };
        assert!(count <= data.length as usize, "more data than was called for");
        let (offset, length) = (data.offset + count as u32, data.length - count as u32);
        if length > 0 {
            self.expect = Expect::Data { data: Data { offset, length, ..data }, done };
            return Ok(());
        }
        self.end_of_chunk(data.task, done)
    }

    /// The pending data, if data is expected next.
    pub fn data(&self) -> Option<Data> {
        match self.expect {
            Expect::Data { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Processes at most one element of the received bytes. The buffer must have room for the longest header or
    /// message, [`STRING_BYTES_MAX`] and a few bytes more.
    pub fn advance(&mut self, bytes: &[u8]) -> Result2<Step> {
        match self.expect {
            Expect::Reply => self.on_reply(bytes),
            Expect::Payload { task, kind, length, done } => self.on_payload(bytes, task, kind, length, done),
            Expect::Data { data, .. } => Ok(Step::Data(data)),
            Expect::Descriptors { task, left, covered, done } => {
                self.on_descriptors(bytes, task, left, covered, done)
            }
        }
    }

    fn task_of(&self, cookie: u64) -> Result2<TaskId> {
        let slot = cookie as u16;
        match self.tasks.get(usize::from(slot)) {
            Some(Some(task)) if task.cookie == cookie && !task.ended => Ok(TaskId(slot)),
            _ => violation("a reply to a request that is not under way"),
        }
    }

    fn task(&mut self, task: TaskId) -> &mut Task {
        self.tasks[task.index()].as_mut().expect("looked up before")
    }

    fn on_reply(&mut self, bytes: &[u8]) -> Result2<Step> {
        if bytes.len() < wire::SIMPLE_REPLY_BYTES {
            return Ok(Step::Starved);
        }
        match u32_at(bytes, 0) {
            wire::SIMPLE_REPLY_MAGIC => self.on_simple(bytes),
            wire::STRUCTURED_REPLY_MAGIC if !self.structured => {
                violation("a structured reply, which was not negotiated")
            }
            wire::STRUCTURED_REPLY_MAGIC if bytes.len() < wire::CHUNK_BYTES => Ok(Step::Starved),
            wire::STRUCTURED_REPLY_MAGIC => self.on_chunk(bytes),
            _ => violation("a reply begins with another magic"),
        }
    }

    /// proto, "Simple reply message".
    fn on_simple(&mut self, bytes: &[u8]) -> Result2<Step> {
        let (code, id) = (u32_at(bytes, 4), self.task_of(u64_at(bytes, 8))?);
        let structured = self.structured;
        let task = self.task(id);
        if task.begun {
            return violation("a simple reply amid a structured one");
        }
        if code != 0 {
            task.error = Some(ServerError { code, message: String::new() });
        }
        match task.command {
            Command::Read { .. } if structured => return violation("a simple reply to a read"),
            Command::BlockStatus { .. } if code == 0 => return violation("a simple reply to a block status"),
            Command::Read { length, .. } if code == 0 && length > 0 => {
                task.coverage.add(0, length);
                self.expect = Expect::Data { data: Data { task: id, offset: 0, length }, done: true };
            }
            _ => self.end(id)?,
        }
        Ok(Step::Took(wire::SIMPLE_REPLY_BYTES))
    }

    /// proto, "Structured reply chunk message": checks whether the chunk is valid for its request.
    fn on_chunk(&mut self, bytes: &[u8]) -> Result2<Step> {
        let (flags, kind) = (u16_at(bytes, 4), u16_at(bytes, 6));
        let (id, length) = (self.task_of(u64_at(bytes, 8))?, u32_at(bytes, 16));
        let done = flags & chunk::DONE != 0;
        let task = self.task(id);
        task.begun = true;
        let fits = match (kind, task.command) {
            (chunk::NONE, _) => done && length == 0,
            (chunk::OFFSET_DATA, Command::Read { length: requested, .. }) => {
                length > 8 && u64::from(length) <= u64::from(requested) + 8
            }
            (chunk::OFFSET_HOLE, Command::Read { .. }) => length == 12,
            (chunk::BLOCK_STATUS, Command::BlockStatus { .. }) => length >= 12 && length % 8 == 4,
            (kind, _) if kind & chunk::IS_ERROR != 0 => {
                (6..=6 + STRING_BYTES_MAX as u32 + 8).contains(&length)
            }
            _ => return violation("a chunk of a type that does not belong to its request"),
        };
        if !fits {
            return violation("a chunk of a length that cannot be");
        }
        if length == 0 {
            self.end_of_chunk(id, done)?;
        } else {
            self.expect = Expect::Payload { task: id, kind, length, done };
        }
        Ok(Step::Took(wire::CHUNK_BYTES))
    }

    fn on_payload(&mut self, bytes: &[u8], id: TaskId, kind: u16, length: u32, done: bool) -> Result2<Step> {
        let head = match kind {
            chunk::OFFSET_DATA => 8,
            chunk::OFFSET_HOLE => 12,
            chunk::BLOCK_STATUS => 4,
            _ => length as usize,
        };
        if bytes.len() < head {
            return Ok(Step::Starved);
        }
        match kind {
            chunk::OFFSET_DATA => {
                let data = self.chunk_data(id, u64_at(bytes, 0), length - 8)?;
                self.expect = Expect::Data { data, done };
            }
            chunk::OFFSET_HOLE => {
                let hole = self.chunk_data(id, u64_at(bytes, 0), u32_at(bytes, 8))?;
                self.end_of_chunk(id, done)?;
                return Ok(Step::Hole { took: head, hole });
            }
            chunk::BLOCK_STATUS => {
                let context = u32_at(bytes, 0);
                let is_known = self.contexts.contains(&context);
                let task = self.task(id);
                if !is_known || task.status.iter().any(|status| status.context == context) {
                    return violation("a block status of a context that was not selected, or twice");
                }
                task.status.push(Status { context, extents: Vec::new() });
                self.expect = Expect::Descriptors { task: id, left: length - 4, covered: 0, done };
            }
            _ => {
                let (code, text) = (u32_at(bytes, 0), usize::from(u16_at(bytes, 4)));
                let Some(message) = bytes[6..head].get(..text) else {
                    return violation("an error's message is longer than its chunk");
                };
                if code == 0 {
                    return violation("an error without an error");
                }
                let message = shown(message);
                self.task(id).error.get_or_insert(ServerError { code, message });
                self.end_of_chunk(id, done)?;
            }
        }
        Ok(Step::Took(head))
    }

    /// The part of a read's buffer that a chunk covers; a violation if another chunk has covered any of it.
    fn chunk_data(&mut self, id: TaskId, at: u64, bytes: u32) -> Result2<Data> {
        let task = self.task(id);
        let Command::Read { offset, length } = task.command else { unreachable!("checked with the chunk") };
        let start = at.checked_sub(offset).filter(|start| *start < u64::from(length));
        let Some(start) = start.filter(|start| bytes > 0 && u64::from(bytes) <= u64::from(length) - start)
        else {
            return violation("a chunk outside the requested range");
        };
        if !task.coverage.add(start as u32, start as u32 + bytes) {
            return violation("chunks that overlap, or too many that do not follow each other");
        }
        Ok(Data { task: id, offset: start as u32, length: bytes })
    }

    fn on_descriptors(
        &mut self,
        bytes: &[u8],
        id: TaskId,
        mut left: u32,
        mut covered: u64,
        done: bool,
    ) -> Result2<Step> {
        let here = (bytes.len().min(left as usize) / 8) * 8;
        if here == 0 {
            return Ok(Step::Starved);
        }
        let task = self.task(id);
        let Command::BlockStatus { length: requested, .. } = task.command else {
            unreachable!("checked with the chunk")
        };
        let extents = &mut task.status.last_mut().expect("begun with the chunk").extents;
        for descriptor in bytes[..here].chunks_exact(8) {
            let (length, flags) = (u32_at(descriptor, 0), u32_at(descriptor, 4));
            // Only the last extent may reach beyond the requested range.
            if length == 0 || covered >= u64::from(requested) {
                return violation("extents beyond the requested range, or of no length");
            }
            covered += u64::from(length);
            if extents.len() < STATUS_EXTENTS_MAX {
                extents.push((length, flags));
            }
        }
        left -= here as u32;
        self.expect = Expect::Descriptors { task: id, left, covered, done };
        if left == 0 {
            self.end_of_chunk(id, done)?;
        }
        Ok(Step::Took(here))
    }

    fn end_of_chunk(&mut self, id: TaskId, done: bool) -> Result2<()> {
        self.expect = Expect::Reply;
        if done { self.end(id) } else { Ok(()) }
    }

    /// The reply is complete: checks that it covers the request.
    fn end(&mut self, id: TaskId) -> Result2<()> {
        self.expect = Expect::Reply;
        let contexts = self.contexts.len();
        let task = self.task(id);
        task.ended = true;
        let result = match (task.error.take(), task.command) {
            (Some(error), _) => Err(error),
            (None, Command::Read { length, .. }) if !task.coverage.is_whole(length) => {
                return violation("a read ends well without all of its data");
            }
            (None, Command::BlockStatus { .. }) if task.status.len() != contexts => {
                return violation("a block status ends well without all of its contexts");
            }
            (None, _) => Ok(std::mem::take(&mut task.status)),
        };
        self.ended.push_back(Ended { task: id, result });
        Ok(())
    }
}
