//! Requests of one loop thread to a disk used by its own commands.

use std::collections::VecDeque;
use std::io::Result as IoResult;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use area::Span;
use block::remote::{Mark, WriteCache};
use block::{
    Capability, Completion, Endpoint, Evidence, Extent, Fingerprint, Identity, Inspect, IoError, IoErrorKind,
    Kind, OpenError, Request, RequestId,
};
use host::{Devices, Entry, Kernel, Lost, Node};
use io::{Event, Handle, Io, Owner, Token};
use slab::Slab;

use crate::disk::Disk;
use crate::disk_command::{self, DiskCommand, Verb};
use crate::guard::Guard;

/// Times that a command is sent without a pause in between.
const ATTEMPTS_MAX: u32 = 5;
/// Time limit of retries to a busy disk, and the pause between two.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// Pause after a readiness report without a completion, so that a removed device does not keep the thread busy.
const IDLE_PAUSE: Duration = Duration::from_millis(10);
/// Bytes of zeroes written at once, if they must be transferred.
const ZERO_BYTES: usize = 256 << 10;
/// A command that the kernel rejects as too long is halved down to this.
const TRANSFER_BYTES_MIN: u32 = 4096;
/// Keys of events that belong to no slot; the key of a retry timer is its slot.
const REPORT: u32 = u32::MAX;
const RECHECK: u32 = u32::MAX - 1;

#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// Executed.
    Done,
    /// Not executed; send again without a pause. `lost`: the disk may have lost power, and with it its volatile cache.
    Again { error: IoError, lost: bool },
    /// Not executed; send again after a pause.
    Later(IoError),
    /// Rejected by the kernel, possibly for its length.
    TooLong(IoError),
    /// Not repeated.
    Fail(IoError),
}

impl Verdict {
    pub(crate) fn result(self) -> Result<(), IoError> {
        match self {
            Self::Done => Ok(()),
            Self::Again { error, .. } | Self::Later(error) | Self::TooLong(error) | Self::Fail(error) => {
                Err(error)
            }
        }
    }

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

#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) verdict: Verdict,
    /// Bytes of data transferred, at most those of the command.
    pub(crate) moved: u32,
}

/// Carries commands to a device and their results back. The endpoint calls [`Channel::start`] while
/// [`Channel::has_room`], then [`Channel::flush`], and when [`Channel::handle`] is readable [`Channel::take`] until it
/// returns `None`.
pub(crate) trait Channel {
    /// Descriptor that is readable when a result is available.
    fn handle(&self) -> &Handle;
    fn has_room(&self) -> bool;
    /// Starts a command, or queues it until [`Channel::flush`]. The channel keeps its memory until the result. EINVAL,
    /// ENOMEM: it may be too long.
    fn start(&mut self, slot: u32, command: &DiskCommand) -> IoResult<()>;
    fn flush(&mut self) -> IoResult<()>;
    /// A completed command, by its slot; `None`: none is available. After an error no command will complete.
    fn take(&mut self) -> IoResult<Option<(u32, Ended)>>;
    fn in_flight(&self) -> u32;
    fn facts(&self) -> Vec<(&'static str, String)>;
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    /// The block device as found when the disk was opened.
    opened: Option<Entry>,
    guard: Option<Guard>,
    disks: Vec<u64>,
    cache: WriteCache,
    /// A flush failed, so acknowledged writes may be lost: later writes and flushes fail until the disk is reopened.
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

    pub(crate) fn check(&self, certainty: Evidence) -> Result<(), Lost> {
        let Some(opened) = &self.opened else { return Ok(()) };
        match certainty {
            Evidence::Cached => Devices::shared().check_cached(opened),
            Evidence::Probed => Devices::shared().check_probed(opened),
        }
    }
}

struct Task {
    id: RequestId,
    kind: Kind,
    /// Bytes completed; `flushed`: the flush at the end of a durable write is complete.
    done: u64,
    flushed: bool,
    /// Position of the request relative to losses of the disk's cache.
    mark: Mark,
    /// Verb and length (bytes) of the last command sent.
    verb: Verb,
    length: u32,
    attempts: u32,
    /// Time of the first retry since the disk became busy.
    waits_since: Option<Duration>,
}

pub(crate) struct PassthroughEndpoint<C> {
    owner: Owner,
    channel: C,
    disk: Arc<Disk>,
    capability: Capability,
    shared: Arc<Shared>,
    tasks: Slab<Task>,
    /// Slots whose next command waits for room in the channel.
    queue: VecDeque<u32>,
    /// A poll of the channel, or a timer to look at it, is outstanding.
    is_armed: bool,
    /// Most bytes of one command; decreases when the kernel rejects one as too long.
    bytes_max: u32,
    zeroes: Option<Span>,
    /// The channel failed; no command completes any more.
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
        let next =
            disk_command::next(&task.kind, task.done, task.flushed, &self.disk, self.bytes_max, &zeroes);
        let Some(command) = next else { return self.finish(slot, Ok(()), done) };
        task.verb = command.verb;
        task.length = command.blocks * self.disk.block_size;
        match self.channel.start(slot, &command) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EDOM | libc::EBUSY)) => {
                // The device is busy with commands of other users.
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

    /// Halves the command length after a rejection: memory segments may be limited, and a small page is one each.
    fn shorten(&mut self, slot: u32, error: IoError, done: &mut Vec<Completion>) {
        let Task { verb, length, .. } = self.tasks[slot as usize];
        let least = TRANSFER_BYTES_MIN.max(self.disk.block_size);
        if !matches!(verb, Verb::Read | Verb::Write { .. }) || length <= least {
            return self.finish(slot, Err(error), done);
        }
        // Another rejection may have shortened it already.
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

    /// Takes all available results. False: there was none.
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
        // The request was completed by `give_up`.
        let Some(task) = self.tasks.get_mut(slot as usize) else { return };
        let verdict = match ended.verdict {
            // A disk without a cache need not support the flush command.
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
                    // Possibly fewer than requested; a partial block does not count.
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

    /// Sends a command again, or fails its request after [`ATTEMPTS_MAX`] attempts.
    fn repeat(&mut self, slot: u32, error: &IoError, done: &mut Vec<Completion>) {
        let task = &mut self.tasks[slot as usize];
        task.attempts += 1;
        if task.attempts < ATTEMPTS_MAX {
            return self.queue.push_front(slot);
        }
        let text = format!("{ATTEMPTS_MAX} times: {}", error.text);
        self.finish(slot, Err(IoError::new(error.kind, text)), done);
    }

    /// Sends a command again after [`PAUSE`], or fails its request after [`BUSY_TIMEOUT`].
    fn wait(&mut self, io: &mut Io, slot: u32, error: &IoError, done: &mut Vec<Completion>) {
        let now = io.now();
        let since = *self.tasks[slot as usize].waits_since.get_or_insert(now);
        if now.saturating_sub(since) < BUSY_TIMEOUT {
            return io.timer(Token { owner: self.owner, key: slot }, now + PAUSE);
        }
        let text = format!("for {} s: {}", BUSY_TIMEOUT.as_secs(), error.text);
        self.finish(slot, Err(IoError::new(error.kind, text)), done);
    }

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
                if disk_command::is_volatile(&kind, &self.disk) {
                    self.shared.cache.wrote();
                }
                Ok(())
            }
            // Commands to a removed disk fail with various errors.
            Err(error) => Err(self.check_identity(Evidence::Probed).err().unwrap_or(error)),
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
        self.check_identity(Evidence::Cached)?;
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
        let checked = match disk_command::check(&kind, &self.capability) {
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
            REPORT | RECHECK => {
                self.is_armed = false;
                if !self.collect(io, done) && event.token.key == REPORT && self.channel.in_flight() > 0 {
                    self.is_armed = true;
                    io.timer(Token { owner: self.owner, key: RECHECK }, io.now() + IDLE_PAUSE);
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

    fn is_closed(&self) -> bool {
        self.channel.in_flight() == 0
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl<C: Channel> Inspect for PassthroughEndpoint<C> {
    fn identity(&self) -> Identity {
        self.shared.identity.clone()
    }

    fn fingerprint(&self) -> Fingerprint {
        let size_bytes = self.capability.size_bytes;
        match &self.shared.identity {
            Identity::Device { device } => {
                let kernel = Kernel::default();
                kernel.write_back(Node::Device(*device), Path::new(&kernel.node_path(*device)));
                kernel.fingerprint(*device, size_bytes)
            }
            identity => identity.fingerprint(size_bytes),
        }
    }

    fn disks(&self) -> &[u64] {
        &self.shared.disks
    }

    fn check_identity(&self, certainty: Evidence) -> Result<(), IoError> {
        self.shared.check(certainty).map_err(|lost| {
            let name = self.shared.opened.as_ref().map(|entry| entry.name.clone()).unwrap_or_default();
            IoError::new(IoErrorKind::Gone, format!("/dev/{name}: {lost}"))
        })
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.disk.facts.clone();
        facts.extend(self.channel.facts());
        facts
    }
}

#[cfg(test)]
mod tests;
