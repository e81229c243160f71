//! One loop thread's requests to a disk that is used by its own commands.

use std::collections::VecDeque;
use std::io::Result as IoResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use area::Span;
use block::device::{Devices, Entry, Kernel, Lost};
use block::{
    Capability, Certainty, Completion, Endpoint, Extent, Fingerprint, Identity, IoError, IoErrorKind, Kind,
    Mark, OpenError, Request, RequestId, WriteCache,
};
use io::{Event, Handle, Io, Owner, Token};
use slab::Slab;

use crate::disk::Disk;
use crate::guard::Guard;
use crate::step::{self, Step, Verb};

/// Times that a command is sent again at once.
const ATTEMPTS_MAX: u32 = 5;
/// How long a busy disk is waited for, and how long between two attempts.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// The pause after a report that told nothing, lest a device that has gone keeps this thread busy.
const IDLE_PAUSE: Duration = Duration::from_millis(10);
/// Zeroes written at a time where they must be.
const ZERO_BYTES: usize = 256 << 10;
/// A command that the kernel finds too long is halved down to this.
const TRANSFER_BYTES_MIN: u32 = 4096;
/// Keys of events; a request has its slot's.
const REPORT: u32 = u32::MAX;
const LOOK: u32 = u32::MAX - 1;

/// What to do about a command's answer.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Done,
    /// It was not carried out; send it again at once. `lost`: the disk may have lost power, and its volatile cache.
    Again {
        error: IoError,
        lost: bool,
    },
    /// It was not carried out; send it again in a moment.
    Later(IoError),
    /// The kernel did not take it, perhaps for its length.
    TooLong(IoError),
    Fail(IoError),
}

impl Verdict {
    /// Of a command that is not sent again.
    pub(crate) fn result(self) -> Result<(), IoError> {
        match self {
            Self::Done => Ok(()),
            Self::Again { error, .. } | Self::Later(error) | Self::TooLong(error) | Self::Fail(error) => {
                Err(error)
            }
        }
    }

    /// Of the question `name` that was asked before the disk is opened: why it is not.
    pub(crate) fn answered(self, name: &str) -> Result<(), OpenError> {
        let Err(error) = self.result() else { return Ok(()) };
        let text = format!("{name}: {error}");
        Err(match error.kind {
            IoErrorKind::Gone | IoErrorKind::Unreachable => OpenError::Unreachable(text),
            IoErrorKind::Refused => OpenError::Refused(text),
            _ => OpenError::Failed(text),
        })
    }
}

/// A command is over.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) verdict: Verdict,
    /// Bytes of data that were moved, at most those of the step.
    pub(crate) moved: u32,
}

/// Carries commands to a device and their answers back.
pub(crate) trait Channel {
    /// What poll(2) reports when an answer is there.
    fn handle(&self) -> &Handle;
    /// Whether one more command may be started.
    fn has_room(&self) -> bool;
    /// Starts a command, or queues it until [`Channel::flush`]. Its memory is kept until it is over. EINVAL, ENOMEM: it may
    /// be too long.
    fn start(&mut self, slot: u32, step: &Step) -> IoResult<()>;
    /// Starts what is queued.
    fn flush(&mut self) -> IoResult<()>;
    /// A command that is over, by its slot. An error: nothing more will be heard of any.
    fn take(&mut self) -> IoResult<Option<(u32, Ended)>>;
    /// Commands that are not over.
    fn in_flight(&self) -> u32;
    /// For people.
    fn facts(&self) -> Vec<(&'static str, String)>;
}

/// What the threads that use one disk must agree on.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    /// The block device as it was when the disk was opened.
    opened: Option<Entry>,
    guard: Option<Guard>,
    disks: Vec<u64>,
    cache: WriteCache,
    /// A flush failed: what was acknowledged may be gone, so nothing more is promised until reopened.
    flush_failed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        identity: Identity,
        opened: Option<Entry>,
        guard: Option<Guard>,
        disks: Vec<u64>,
    ) -> Self {
        let (cache, flush_failed) = (WriteCache::default(), AtomicBool::new(false));
        Self { identity, opened, guard, disks, cache, flush_failed }
    }

    /// Whether the disk is still the one that was opened.
    pub(crate) fn check(&self, certainty: Certainty) -> Result<(), Lost> {
        let Some(opened) = &self.opened else { return Ok(()) };
        match certainty {
            Certainty::Heard => Devices::shared().heard(opened),
            Certainty::Seen => Devices::shared().look(opened),
        }
    }
}

struct Task {
    id: RequestId,
    kind: Kind,
    /// Bytes that are done, and whether the flush at its end is.
    done: u64,
    flushed: bool,
    /// When it came, as far as the cache is concerned.
    mark: Mark,
    /// What was sent last.
    verb: Verb,
    length: u32,
    attempts: u32,
    /// Since when the disk has been busy.
    waits_since: Option<Duration>,
}

pub(crate) struct PassthroughEndpoint<C> {
    owner: Owner,
    channel: C,
    disk: Arc<Disk>,
    capability: Capability,
    shared: Arc<Shared>,
    tasks: Slab<Task>,
    /// Slots whose next command waits for room.
    queue: VecDeque<u32>,
    /// A report of the channel is on its way, or a look at it is due.
    is_armed: bool,
    /// Bytes of one command; shrinks when the kernel finds one too long.
    bytes_max: u32,
    zeroes: Option<Span>,
    /// Nothing is heard of the device any more.
    broken: Option<IoError>,
}

impl<C: Channel> PassthroughEndpoint<C> {
    pub(crate) fn new(
        io: &Io,
        channel: C,
        disk: Arc<Disk>,
        capability: Capability,
        shared: Arc<Shared>,
    ) -> Self {
        let bytes_max = capability.max_transfer_bytes;
        Self {
            owner: io.owner(),
            channel,
            disk,
            capability,
            shared,
            tasks: Slab::new(),
            queue: VecDeque::new(),
            is_armed: false,
            bytes_max,
            zeroes: None,
            broken: None,
        }
    }

    /// Starts commands as long as the channel takes some.
    fn pump(&mut self, io: &mut Io, done: &mut Vec<Completion>) {
        while (self.broken.is_some() || self.channel.has_room())
            && let Some(slot) = self.queue.pop_front()
        {
            self.start(io, slot, done);
        }
        if let Err(error) = self.channel.flush() {
            self.give_up(&error, done);
        }
        if self.channel.in_flight() > 0 && !self.is_armed && self.broken.is_none() {
            self.is_armed = true;
            io.poll(Token { owner: self.owner, key: REPORT }, self.channel.handle());
        }
    }

    /// Starts the next command of a request, or ends it.
    fn start(&mut self, io: &mut Io, slot: u32, done: &mut Vec<Completion>) {
        if let Some(error) = &self.broken {
            let error = error.clone();
            return self.finish(slot, Err(error), done);
        }
        let Some(zeroes) = self.zeroes(io) else {
            let error = IoError::new(IoErrorKind::Other, "no memory for zeroes");
            return self.finish(slot, Err(error), done);
        };
        let task = &mut self.tasks[slot as usize];
        let next = step::next(&task.kind, task.done, task.flushed, &self.disk, self.bytes_max, &zeroes);
        let Some(step) = next else { return self.finish(slot, Ok(()), done) };
        task.verb = step.verb;
        task.length = step.blocks * self.disk.block_size;
        match self.channel.start(slot, &step) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EDOM | libc::EBUSY)) => {
                // Others keep the device busy.
                let error =
                    IoError::new(IoErrorKind::Unreachable, format!("the device takes no command: {error}"));
                self.wait(io, slot, &error, done);
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM | libc::EFBIG)) => {
                self.shorten(slot, error.into(), done);
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                let error = IoError::new(IoErrorKind::Gone, "the device has gone");
                self.finish(slot, Err(error), done);
            }
            Err(error) => self.finish(slot, Err(error.into()), done),
        }
    }

    /// Makes commands shorter, after one that the kernel did not take: it holds so many stretches of memory and no more, and
    /// where huge pages are missing each page is one.
    fn shorten(&mut self, slot: u32, error: IoError, done: &mut Vec<Completion>) {
        let Task { verb, length, .. } = self.tasks[slot as usize];
        let least = TRANSFER_BYTES_MIN.max(self.disk.block_size);
        if !matches!(verb, Verb::Read | Verb::Write { .. }) || length <= least {
            return self.finish(slot, Err(error), done);
        }
        // Another may have been shortened meanwhile.
        self.bytes_max = self.bytes_max.min((length / 2).next_multiple_of(least));
        tracing::debug!(length, bytes_max = self.bytes_max, %error, "a command was too long");
        self.queue.push_front(slot);
    }

    fn zeroes(&mut self, io: &Io) -> Option<Span> {
        if self.zeroes.is_none() {
            let span = io.pool().take(ZERO_BYTES)?;
            span.zero(0, ZERO_BYTES);
            self.zeroes = Some(span);
        }
        self.zeroes.clone()
    }

    /// Takes what has ended. False: nothing had.
    fn collect(&mut self, io: &mut Io, done: &mut Vec<Completion>) -> bool {
        let mut any = false;
        loop {
            match self.channel.take() {
                Ok(Some((slot, ended))) => {
                    any = true;
                    self.on_ended(io, slot, ended, done);
                }
                Ok(None) => return any,
                Err(error) => {
                    self.give_up(&error, done);
                    return true;
                }
            }
        }
    }

    fn on_ended(&mut self, io: &mut Io, slot: u32, ended: Ended, done: &mut Vec<Completion>) {
        // Of one that was given up nobody wants to know.
        let Some(task) = self.tasks.get_mut(slot as usize) else { return };
        let verdict = match ended.verdict {
            // A disk without a cache need not know the command.
            Verdict::Fail(error)
                if task.verb == Verb::Flush
                    && error.kind == IoErrorKind::Unsupported
                    && !self.disk.write_cache =>
            {
                Verdict::Done
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Done => {
                match task.verb {
                    Verb::Flush => task.flushed = true,
                    Verb::Zero { .. } => task.done += u64::from(task.length),
                    // Fewer than asked, and a part of a block does not count.
                    Verb::Read | Verb::Write { .. } => {
                        let moved = ended.moved / self.disk.block_size * self.disk.block_size;
                        if moved == 0 {
                            let text = format!("GOOD, but none of {} bytes moved", task.length);
                            let error = IoError::new(IoErrorKind::Medium, text);
                            return self.repeat(slot, &error, done);
                        }
                        task.done += u64::from(moved);
                    }
                }
                task.attempts = 0;
                task.waits_since = None;
                self.queue.push_front(slot);
            }
            Verdict::Again { error, lost } => {
                if lost && self.shared.cache.lost() {
                    tracing::warn!("{error}: what the disk had not made durable may be lost");
                }
                self.repeat(slot, &error, done);
            }
            Verdict::Later(error) => self.wait(io, slot, &error, done),
            Verdict::TooLong(error) => self.shorten(slot, error, done),
            Verdict::Fail(error) => self.finish(slot, Err(error), done),
        }
    }

    /// Sends a command again, unless it has been too often.
    fn repeat(&mut self, slot: u32, error: &IoError, done: &mut Vec<Completion>) {
        let task = &mut self.tasks[slot as usize];
        task.attempts += 1;
        if task.attempts < ATTEMPTS_MAX {
            return self.queue.push_front(slot);
        }
        let text = format!("{ATTEMPTS_MAX} times: {}", error.text);
        self.finish(slot, Err(IoError::new(error.kind, text)), done);
    }

    /// Sends a command again in a moment, unless it has been too long.
    fn wait(&mut self, io: &mut Io, slot: u32, error: &IoError, done: &mut Vec<Completion>) {
        let now = io.now();
        let since = *self.tasks[slot as usize].waits_since.get_or_insert(now);
        if now.saturating_sub(since) < PATIENCE {
            return io.timer(Token { owner: self.owner, key: slot }, now + PAUSE);
        }
        let text = format!("for {} s: {}", PATIENCE.as_secs(), error.text);
        self.finish(slot, Err(IoError::new(error.kind, text)), done);
    }

    /// Nothing will be heard of what is in flight.
    fn give_up(&mut self, error: &std::io::Error, done: &mut Vec<Completion>) {
        let error = IoError::new(IoErrorKind::Gone, format!("the device answers no more: {error}"));
        self.broken = Some(error.clone());
        self.queue.clear();
        let slots: Vec<u32> = self.tasks.iter().map(|(slot, _)| slot as u32).collect();
        slots.into_iter().for_each(|slot| self.finish(slot, Err(error.clone()), done));
    }

    fn finish(&mut self, slot: u32, result: Result<(), IoError>, done: &mut Vec<Completion>) {
        let Task { id, kind, mark, verb, .. } = self.tasks.remove(slot as usize);
        let result = match result {
            Ok(()) if matches!(kind, Kind::Flush) => self.on_flushed(mark),
            Ok(()) => {
                if step::is_volatile(&kind, &self.disk) {
                    self.shared.cache.wrote();
                }
                Ok(())
            }
            // A disk that has gone fails commands with words of all kinds.
            Err(error) => Err(self.check_identity(Certainty::Seen).err().unwrap_or(error)),
        };
        let result = result.map_err(|error| match error.kind {
            IoErrorKind::Gone | IoErrorKind::CacheLost => error,
            kind if verb != Verb::Flush && kind != IoErrorKind::FlushFailed => error,
            _ => {
                self.shared.flush_failed.store(true, Ordering::Release);
                let text = format!("flush failed ({error}): what was written may be lost");
                IoError::new(IoErrorKind::FlushFailed, text)
            }
        });
        done.push(Completion { id, result });
    }

    fn on_flushed(&mut self, mark: Mark) -> Result<(), IoError> {
        if self.shared.flush_failed.load(Ordering::Acquire) {
            return Err(earlier_failure());
        }
        self.check_identity(Certainty::Heard)?;
        if let Some(guard) = &self.shared.guard
            && !self.capability.read_only
        {
            guard.forget();
        }
        self.shared.cache.flushed(mark)
    }
}

fn earlier_failure() -> IoError {
    let text = "an earlier flush failed; what was written before it may be lost: reopen the storage";
    IoError::new(IoErrorKind::FlushFailed, text)
}

impl<C: Channel> Endpoint for PassthroughEndpoint<C> {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let Request { id, kind } = request;
        let changes = kind.is_write() || matches!(kind, Kind::Flush);
        let checked = match step::check(&kind, &self.capability) {
            Ok(()) if changes && self.shared.flush_failed.load(Ordering::Acquire) => Err(earlier_failure()),
            checked => checked,
        };
        if let Err(error) = checked {
            return done.push(Completion { id, result: Err(error) });
        }
        let mark = self.shared.cache.mark();
        let slot = self.tasks.insert(Task {
            id,
            kind,
            done: 0,
            flushed: false,
            mark,
            verb: Verb::Read,
            length: 0,
            attempts: 0,
            waits_since: None,
        });
        self.queue.push_back(slot as u32);
        self.pump(io, done);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        match event.token.key {
            REPORT | LOOK => {
                self.is_armed = false;
                if !self.collect(io, done) && event.token.key == REPORT && self.channel.in_flight() > 0 {
                    self.is_armed = true;
                    io.timer(Token { owner: self.owner, key: LOOK }, io.now() + IDLE_PAUSE);
                }
            }
            slot if self.tasks.contains(slot as usize) => self.queue.push_back(slot),
            _ => {}
        }
        self.pump(io, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
    }

    fn extent(&mut self, _offset: u64) -> Extent {
        Extent { end: self.capability.size_bytes, data: true }
    }

    fn identity(&self) -> Identity {
        self.shared.identity.clone()
    }

    fn fingerprint(&self) -> Fingerprint {
        let size_bytes = self.capability.size_bytes;
        match &self.shared.identity {
            Identity::Device { device } => Kernel::default().fingerprint(*device, size_bytes),
            identity => Fingerprint::of_identity(identity, size_bytes),
        }
    }

    fn disks(&self) -> &[u64] {
        &self.shared.disks
    }

    fn check_identity(&mut self, certainty: Certainty) -> Result<(), IoError> {
        self.shared.check(certainty).map_err(|lost| {
            let name = self.shared.opened.as_ref().map(|entry| entry.name.clone()).unwrap_or_default();
            IoError::new(IoErrorKind::Gone, format!("/dev/{name}: {lost}"))
        })
    }

    fn is_closed(&self) -> bool {
        self.channel.in_flight() == 0
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.disk.facts.clone();
        facts.extend(self.channel.facts());
        facts
    }
}

#[cfg(test)]
mod tests;
