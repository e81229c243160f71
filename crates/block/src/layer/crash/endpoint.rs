//! The crash layer's endpoint: one thread's requests to the shared cache, of which one thread at a time writes back.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use area::Span;
use io::{Event, Io, Owner, Token};

use super::SECTOR_BYTES;
use super::cache::{Bytes, Cache, Serial};
use crate::{
    Capability, Completion, Endpoint, Inspect, IoError, IoErrorKind, Kind, Request, RequestId, State, memory,
};

/// Exit status of a process whose power failed: that of SIGKILL.
const EXIT_STATUS: i32 = 137;
/// Maximum length of one write to the storage beneath, and maximum number of such writes in flight.
const RUN_SECTORS_MAX: u64 = 2048;
const RUNS_MAX: usize = 16;
/// A longer discard goes to the storage beneath instead of filling the cache.
const DISCARD_SECTORS_MAX: u64 = 8192;
/// Interval of the attempts to begin a write-back while another runs, and to get memory.
const RETRY: Duration = Duration::from_micros(500);

const ALL: Range<u64> = 0..u64::MAX;

/// One request of a write-back to the storage beneath.
#[derive(Debug)]
enum Operation {
    /// Writes these sectors back.
    Run { lba: u64, count: u64 },
    /// Submits this request after the completion of all earlier ones.
    Barrier(Kind),
}

/// A sequence of requests to the storage beneath: the write-back of `range` up to `last`, then `then`.
struct WriteBack {
    /// The request that completes at the end of the write-back.
    request: Option<RequestId>,
    is_write: bool,
    range: Range<u64>,
    last: Serial,
    then: Option<Kind>,
    operations: VecDeque<Operation>,
    in_flight: usize,
    result: Result<(), IoError>,
}

/// Meaning of a completion of the storage beneath.
enum Pending {
    /// `newer` (offset in `into`, bytes) replaces what was read.
    Read {
        request: RequestId,
        into: Span,
        newer: Vec<(usize, Bytes)>,
    },
    WriteBack,
}

pub(super) struct Crash {
    inner: Box<dyn Endpoint>,
    owner: Owner,
    cache: Arc<Mutex<Cache>>,
    capability: Capability,
    /// Number of power cuts when the endpoint was attached.
    cuts: u64,
    write_backs: VecDeque<WriteBack>,
    active: Option<WriteBack>,
    pending: HashMap<RequestId, Pending>,
    next: RequestId,
    waits: bool,
}

impl WriteBack {
    fn new(request: Option<RequestId>, range: Range<u64>, last: Serial, then: Option<Kind>) -> Self {
        let (operations, result) = (VecDeque::new(), Ok(()));
        Self { request, is_write: false, range, last, then, operations, in_flight: 0, result }
    }

    /// Writes back all that the cache holds, then flushes.
    fn flush(request: Option<RequestId>, last: Serial) -> Self {
        Self::new(request, ALL, last, Some(Kind::Flush))
    }

    fn plan(&mut self, cache: &Cache) {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (lba, _) in cache.until(self.range.clone(), self.last) {
            match runs.last_mut() {
                Some((start, count)) if *start + *count == lba && *count < RUN_SECTORS_MAX => *count += 1,
                _ => runs.push((lba, 1)),
            }
        }
        self.operations.extend(runs.into_iter().map(|(lba, count)| Operation::Run { lba, count }));
        self.operations.extend(self.then.take().map(Operation::Barrier));
    }
}

impl Crash {
    pub(super) fn new(owner: Owner, inner: Box<dyn Endpoint>, cache: Arc<Mutex<Cache>>) -> Self {
        let cuts = cache.lock().expect("no panic while locked").cuts;
        let capability = volatile(inner.capability());
        Self {
            inner,
            owner,
            cache,
            capability,
            cuts,
            write_backs: VecDeque::new(),
            active: None,
            pending: HashMap::new(),
            next: 0,
            waits: false,
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().expect("no panic while locked")
    }

    fn is_dead(&self) -> bool {
        self.cache().cuts != self.cuts
    }

    /// Completes a request. After a power cut it is aborted; if the process is to end, it is not completed at all.
    fn answer(
        &mut self,
        id: RequestId,
        is_write: bool,
        result: Result<(), IoError>,
        done: &mut Vec<Completion>,
    ) {
        let mut cache = self.cache();
        if cache.cuts != self.cuts {
            if !cache.ends {
                let result = Err(IoError::new(IoErrorKind::Aborted, "the power failed (crash layer)"));
                done.push(Completion { id, result });
            }
            return;
        }
        let fails = is_write && result.is_ok() && cache.acknowledge();
        drop(cache);
        done.push(Completion { id, result });
        if fails {
            tracing::warn!("crash layer: the power fails; this process ends with status {EXIT_STATUS}");
            self.write_backs.push_back(WriteBack::flush(None, Serial::MAX));
        }
    }

    fn submit_inner(&mut self, io: &mut Io, pending: Pending, kind: Kind, inner_done: &mut Vec<Completion>) {
        self.next += 1;
        self.pending.insert(self.next, pending);
        self.inner.submit(io, Request { id: self.next, kind }, inner_done);
    }

    /// Handles completions of the storage beneath, and starts the next operations until none can start.
    fn advance(&mut self, io: &mut Io, mut inner_done: Vec<Completion>, done: &mut Vec<Completion>) {
        loop {
            for Completion { id, result } in inner_done.drain(..) {
                match self.pending.remove(&id) {
                    Some(Pending::Read { request, into, newer }) => {
                        for (offset, bytes) in newer {
                            put(&into, offset, &bytes);
                        }
                        self.answer(request, false, result, done);
                    }
                    Some(Pending::WriteBack) => {
                        let write_back =
                            self.active.as_mut().expect("operations belong to the active write-back");
                        write_back.in_flight -= 1;
                        write_back.result = std::mem::replace(&mut write_back.result, Ok(())).and(result);
                    }
                    None => {}
                }
            }
            let went_on = self.begin(io) | self.advance_write_back(io, &mut inner_done) | self.finish(done);
            if !went_on && inner_done.is_empty() {
                return;
            }
        }
    }

    /// Makes the next write-back the active one, if no thread has an active write-back.
    fn begin(&mut self, io: &mut Io) -> bool {
        if self.active.is_some() || self.write_backs.is_empty() {
            return false;
        }
        let mut write_back = self.write_backs.pop_front().expect("just looked at");
        let mut cache = self.cache.lock().expect("no panic while locked");
        if !cache.begin_writing(&write_back.range, write_back.last) {
            drop(cache);
            self.write_backs.push_front(write_back);
            self.wait(io);
            return false;
        }
        write_back.plan(&cache);
        drop(cache);
        self.active = Some(write_back);
        true
    }

    fn advance_write_back(&mut self, io: &mut Io, inner_done: &mut Vec<Completion>) -> bool {
        let (dead, ends) = (self.is_dead(), self.cache().ends);
        let Some(write_back) = &mut self.active else { return false };
        // A dead process runs only its last write-back, which belongs to no request.
        if write_back.result.is_err() || (dead && !(ends && write_back.request.is_none())) {
            write_back.operations.clear();
        }
        let ready = match write_back.operations.front() {
            None => false,
            Some(Operation::Run { .. }) => write_back.in_flight < RUNS_MAX,
            Some(Operation::Barrier(_)) => write_back.in_flight == 0,
        };
        if !ready {
            return false;
        }
        let kind = match write_back.operations.pop_front().expect("just looked at") {
            Operation::Barrier(kind) => kind,
            Operation::Run { lba, count } => {
                let Some(from) = io.pool().take(count as usize * SECTOR_BYTES) else {
                    write_back.operations.push_front(Operation::Run { lba, count });
                    self.wait(io);
                    return false;
                };
                let cache = self.cache.lock().expect("no panic while locked");
                let sectors = cache.until(lba..lba + count, write_back.last);
                assert_eq!(sectors.len() as u64, count, "what is being written stays in the cache");
                for (at, bytes) in sectors {
                    put(&from, (at - lba) as usize * SECTOR_BYTES, &bytes);
                }
                Kind::Write { offset: lba * SECTOR_BYTES as u64, from, durable: false }
            }
        };
        write_back.in_flight += 1;
        self.submit_inner(io, Pending::WriteBack, kind, inner_done);
        true
    }

    fn finish(&mut self, done: &mut Vec<Completion>) -> bool {
        let Some(write_back) =
            self.active.take_if(|write_back| write_back.operations.is_empty() && write_back.in_flight == 0)
        else {
            return false;
        };
        let mut cache = self.cache();
        let is_last = cache.ends && write_back.request.is_none();
        let written = write_back.result.is_ok() && cache.cuts == self.cuts;
        cache.end_writing(written);
        drop(cache);
        if is_last {
            if let Err(error) = &write_back.result {
                tracing::error!(%error, "crash layer: what survived could not be written");
            }
            // `_exit` ends the process at once, without destructors and exit handlers, as a power cut would.
            // SAFETY: `_exit` touches no memory of this process and does not return.
            unsafe { libc::_exit(EXIT_STATUS) }
        }
        if let Some(id) = write_back.request {
            self.answer(id, write_back.is_write, write_back.result, done);
        }
        true
    }

    fn wait(&mut self, io: &mut Io) {
        if !self.waits {
            self.waits = true;
            io.timer(Token { owner: self.owner, key: 0 }, io.now() + RETRY);
        }
    }

    fn read(
        &mut self,
        io: &mut Io,
        id: RequestId,
        offset: u64,
        into: Span,
        inner_done: &mut Vec<Completion>,
    ) {
        let first = offset / SECTOR_BYTES as u64;
        let found = self.cache().visible(first..first + into.len() as u64 / SECTOR_BYTES as u64);
        // The newer bytes are copied now: before the read completes they may be written back and leave the cache, while
        // the read still returns older data.
        let at = |lba: u64| (lba - first) as usize * SECTOR_BYTES;
        let newer = found.into_iter().map(|(lba, bytes)| (at(lba), bytes)).collect();
        let pending = Pending::Read { request: id, into: into.clone(), newer };
        self.submit_inner(io, pending, Kind::Read { offset, into }, inner_done);
    }

    fn write(&mut self, io: &mut Io, id: RequestId, kind: Kind, done: &mut Vec<Completion>) {
        let (offset, length) = kind.range().expect("a write has a range");
        let sector = SECTOR_BYTES as u64;
        let range = offset / sector..(offset + length) / sector;
        let mut cache = self.cache.lock().expect("no panic while locked");
        let mut write_back = match &kind {
            Kind::Write { from, durable, .. } => {
                let sectors = from.as_slice().as_chunks::<SECTOR_BYTES>().0;
                let last =
                    cache.write(range.clone(), |lba| Some(Arc::new(sectors[(lba - range.start) as usize])));
                durable.then(|| WriteBack::new(Some(id), range, last, Some(Kind::Flush)))
            }
            _ if range.end - range.start > DISCARD_SECTORS_MAX => {
                let last = cache.serial();
                Some(WriteBack::new(Some(id), range, last, Some(kind)))
            }
            _ => {
                cache.write(range, |_| None);
                None
            }
        };
        if write_back.is_none() {
            write_back = cache.overflow().map(|last| WriteBack::new(Some(id), ALL, last, None));
        }
        drop(cache);
        match write_back {
            Some(write_back) => self.write_backs.push_back(WriteBack { is_write: true, ..write_back }),
            None => self.answer(id, true, Ok(()), done),
        }
        self.advance(io, Vec::new(), done);
    }
}

fn put(span: &Span, offset: usize, bytes: &Bytes) {
    match bytes {
        Some(bytes) => span.fill(offset, &**bytes),
        None => span.zero(offset, SECTOR_BYTES),
    }
}

/// The capability of the storage beneath, with the cache's granularity and volatility.
fn volatile(inner: &Capability) -> Capability {
    let granularity = inner.granularity.max(SECTOR_BYTES as u32);
    Capability { volatile_cache: true, granularity, ..inner.clone() }
}

// Not `forward_endpoint!`: the capability differs, and `extent` of the storage beneath does not include cached writes.
impl Endpoint for Crash {
    fn state(&self) -> State {
        self.inner.state()
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let Request { id, kind } = request;
        let whole = kind.range().is_none_or(|(offset, length)| (offset | length) % SECTOR_BYTES as u64 == 0);
        let checked = match memory::check(&self.capability, &kind) {
            Ok(()) if !whole => Err(IoError::new(IoErrorKind::Other, "the crash layer takes whole sectors")),
            checked => checked,
        };
        if checked.is_err() || self.is_dead() {
            return self.answer(id, false, checked, done);
        }
        match kind {
            Kind::Read { offset, into } => {
                let mut inner_done = Vec::new();
                self.read(io, id, offset, into, &mut inner_done);
                self.advance(io, inner_done, done);
            }
            Kind::Flush => {
                let last = self.cache().serial();
                self.write_backs.push_back(WriteBack::flush(Some(id), last));
                self.advance(io, Vec::new(), done);
            }
            kind => self.write(io, id, kind, done),
        }
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let mut inner_done = Vec::new();
        if event.token.owner == self.owner {
            self.waits = false;
        } else {
            self.inner.on_event(io, event, &mut inner_done);
            self.capability = volatile(self.inner.capability());
        }
        self.advance(io, inner_done, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
        self.inner.owners(owners);
    }

    fn close(&mut self, io: &mut Io) {
        self.inner.close(io);
    }

    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    fn inspect(&self) -> &dyn Inspect {
        self.inner.inspect()
    }
}

impl Drop for Crash {
    /// Lets another write-back begin. Writes in flight may still arrive; their versions stay and are written again.
    fn drop(&mut self) {
        if self.active.is_some() {
            self.cache().end_writing(false);
        }
    }
}
