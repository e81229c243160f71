//! One thread's way through the cache. What goes to the storage beneath goes as *jobs*, one at a time for all threads.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use area::Span;
use io::{Event, Io, Owner, Token};

use super::SECTOR_BYTES;
use super::cache::{Bytes, Cache, Serial};
use crate::{
    Capability, Certainty, Completion, Endpoint, Fingerprint, Identity, IoError, IoErrorKind, Kind, Request,
    RequestId, State, memory,
};

/// Status of a process whose power failed: that of SIGKILL.
const EXIT_STATUS: i32 = 137;
/// Longest write to the storage beneath, and how many at once.
const RUN_SECTORS_MAX: u64 = 2048;
const RUNS_MAX: usize = 16;
/// Discards longer than this go through at once instead of filling the cache.
const DISCARD_SECTORS_MAX: u64 = 8192;
/// When a job looks again whether it may begin, or whether there is memory.
const RETRY: Duration = Duration::from_micros(500);

/// Everything.
const ALL: Range<u64> = 0..u64::MAX;

/// What is asked of the storage beneath.
#[derive(Debug)]
enum Step {
    /// Write these sectors back.
    Run { lba: u64, count: u64 },
    /// Ask this, when all before it is done.
    Barrier(Kind),
}

/// Something to be done to the storage beneath.
struct Job {
    /// Whose completion waits for it.
    request: Option<RequestId>,
    is_write: bool,
    range: Range<u64>,
    last: Serial,
    /// Asked behind the write-back.
    then: Option<Kind>,
    steps: VecDeque<Step>,
    in_flight: usize,
    result: Result<(), IoError>,
}

/// What a completion of the storage beneath means.
enum Asked {
    /// The newer bytes to lay over what was read.
    Read {
        request: RequestId,
        into: Span,
        newer: Vec<(usize, Bytes)>,
    },
    Step,
}

pub(super) struct Crash {
    inner: Box<dyn Endpoint>,
    owner: Owner,
    cache: Arc<Mutex<Cache>>,
    capability: Capability,
    /// Cuts when it was attached.
    cuts: u64,
    jobs: VecDeque<Job>,
    active: Option<Job>,
    asked: HashMap<RequestId, Asked>,
    next: RequestId,
    waits: bool,
}

impl Job {
    fn new(request: Option<RequestId>, range: Range<u64>, last: Serial, then: Option<Kind>) -> Self {
        let (steps, result) = (VecDeque::new(), Ok(()));
        Self { request, is_write: false, range, last, then, steps, in_flight: 0, result }
    }

    /// All that the cache holds goes to the storage beneath.
    fn flush(request: Option<RequestId>, last: Serial) -> Self {
        Self::new(request, ALL, last, Some(Kind::Flush))
    }

    /// Cuts what the cache holds of it into runs.
    fn plan(&mut self, cache: &Cache) {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (lba, _) in cache.until(self.range.clone(), self.last) {
            match runs.last_mut() {
                Some((start, count)) if *start + *count == lba && *count < RUN_SECTORS_MAX => *count += 1,
                _ => runs.push((lba, 1)),
            }
        }
        self.steps.extend(runs.into_iter().map(|(lba, count)| Step::Run { lba, count }));
        self.steps.extend(self.then.take().map(Step::Barrier));
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
            jobs: VecDeque::new(),
            active: None,
            asked: HashMap::new(),
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

    /// Tells the submitter, unless the power failed: then nobody answers.
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
            self.jobs.push_back(Job::flush(None, Serial::MAX));
        }
    }

    fn ask(&mut self, io: &mut Io, asked: Asked, kind: Kind, inner_done: &mut Vec<Completion>) {
        self.next += 1;
        self.asked.insert(self.next, asked);
        self.inner.submit(io, Request { id: self.next, kind }, inner_done);
    }

    /// Takes what the storage beneath completed, and goes on until it has to wait.
    fn advance(&mut self, io: &mut Io, mut inner_done: Vec<Completion>, done: &mut Vec<Completion>) {
        loop {
            for Completion { id, result } in inner_done.drain(..) {
                match self.asked.remove(&id) {
                    Some(Asked::Read { request, into, newer }) => {
                        for (offset, bytes) in newer {
                            put(&into, offset, &bytes);
                        }
                        self.answer(request, false, result, done);
                    }
                    Some(Asked::Step) => {
                        let job = self.active.as_mut().expect("steps belong to the active job");
                        job.in_flight -= 1;
                        job.result = std::mem::replace(&mut job.result, Ok(())).and(result);
                    }
                    None => {}
                }
            }
            let went_on = self.begin(io) | self.step(io, &mut inner_done) | self.finish(done);
            if !went_on && inner_done.is_empty() {
                return;
            }
        }
    }

    /// Makes the next job the active one, if no other thread has one.
    fn begin(&mut self, io: &mut Io) -> bool {
        if self.active.is_some() || self.jobs.is_empty() {
            return false;
        }
        let mut job = self.jobs.pop_front().expect("just looked at");
        let mut cache = self.cache.lock().expect("no panic while locked");
        if !cache.begin_writing(&job.range, job.last) {
            drop(cache);
            self.jobs.push_front(job);
            self.wait(io);
            return false;
        }
        job.plan(&cache);
        drop(cache);
        self.active = Some(job);
        true
    }

    /// Asks what the active job has to ask next.
    fn step(&mut self, io: &mut Io, inner_done: &mut Vec<Completion>) -> bool {
        let (dead, ends) = (self.is_dead(), self.cache().ends);
        let Some(job) = &mut self.active else { return false };
        // The last job of all is that of a dead process.
        if job.result.is_err() || (dead && !(ends && job.request.is_none())) {
            job.steps.clear();
        }
        let ready = match job.steps.front() {
            None => false,
            Some(Step::Run { .. }) => job.in_flight < RUNS_MAX,
            Some(Step::Barrier(_)) => job.in_flight == 0,
        };
        if !ready {
            return false;
        }
        let kind = match job.steps.pop_front().expect("just looked at") {
            Step::Barrier(kind) => kind,
            Step::Run { lba, count } => {
                let Some(from) = io.pool().take(count as usize * SECTOR_BYTES) else {
                    job.steps.push_front(Step::Run { lba, count });
                    self.wait(io);
                    return false;
                };
                let cache = self.cache.lock().expect("no panic while locked");
                let sectors = cache.until(lba..lba + count, job.last);
                assert_eq!(sectors.len() as u64, count, "what is being written stays in the cache");
                for (at, bytes) in sectors {
                    put(&from, (at - lba) as usize * SECTOR_BYTES, &bytes);
                }
                Kind::Write { offset: lba * SECTOR_BYTES as u64, from, durable: false }
            }
        };
        job.in_flight += 1;
        self.ask(io, Asked::Step, kind, inner_done);
        true
    }

    /// Ends the active job, if nothing of it is left.
    fn finish(&mut self, done: &mut Vec<Completion>) -> bool {
        let Some(job) = self.active.take_if(|job| job.steps.is_empty() && job.in_flight == 0) else {
            return false;
        };
        let mut cache = self.cache();
        let last_job = cache.ends && job.request.is_none();
        let written = job.result.is_ok() && cache.cuts == self.cuts;
        cache.end_writing(written);
        drop(cache);
        if last_job {
            if let Err(error) = &job.result {
                tracing::error!(%error, "crash layer: what survived could not be written");
            }
            // At once, whatever other threads are doing: nothing that runs at an orderly exit runs here.
            // SAFETY: `_exit` touches no memory of this process and does not return.
            unsafe { libc::_exit(EXIT_STATUS) }
        }
        if let Some(id) = job.request {
            self.answer(id, job.is_write, job.result, done);
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
        // What is newer is kept aside: by the time the storage beneath answers it may have been written back,
        // behind the back of that read.
        let at = |lba: u64| (lba - first) as usize * SECTOR_BYTES;
        let newer = found.into_iter().map(|(lba, bytes)| (at(lba), bytes)).collect();
        let asked = Asked::Read { request: id, into: into.clone(), newer };
        self.ask(io, asked, Kind::Read { offset, into }, inner_done);
    }

    fn write(&mut self, io: &mut Io, id: RequestId, kind: Kind, done: &mut Vec<Completion>) {
        let (offset, length) = kind.range().expect("a write has a range");
        let sector = SECTOR_BYTES as u64;
        let range = offset / sector..(offset + length) / sector;
        let mut cache = self.cache.lock().expect("no panic while locked");
        let mut job = match &kind {
            Kind::Write { from, durable, .. } => {
                let sectors = from.as_slice().as_chunks::<SECTOR_BYTES>().0;
                let last =
                    cache.write(range.clone(), |lba| Some(Arc::new(sectors[(lba - range.start) as usize])));
                durable.then(|| Job::new(Some(id), range, last, Some(Kind::Flush)))
            }
            _ if range.end - range.start > DISCARD_SECTORS_MAX => {
                let last = cache.serial();
                Some(Job::new(Some(id), range, last, Some(kind)))
            }
            _ => {
                cache.write(range, |_| None);
                None
            }
        };
        if job.is_none() {
            job = cache.overflow().map(|last| Job::new(Some(id), ALL, last, None));
        }
        drop(cache);
        match job {
            Some(job) => self.jobs.push_back(Job { is_write: true, ..job }),
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

/// What storage can do behind the cache.
fn volatile(inner: &Capability) -> Capability {
    let granularity = inner.granularity.max(SECTOR_BYTES as u32);
    Capability { volatile_cache: true, granularity, ..inner.clone() }
}

// Not `forward_endpoint!`: what it can do is its own, and `extent` of the storage beneath knows nothing of the cache.
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
                self.jobs.push_back(Job::flush(Some(id), last));
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

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.inner.fingerprint()
    }

    fn disks(&self) -> &[u64] {
        self.inner.disks()
    }

    fn check_identity(&mut self, certainty: Certainty) -> Result<(), IoError> {
        self.inner.check_identity(certainty)
    }

    fn close(&mut self, io: &mut Io) {
        self.inner.close(io);
    }

    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.inner.facts()
    }

    fn retries(&self) -> u64 {
        self.inner.retries()
    }

    fn losses(&self) -> u64 {
        self.inner.losses()
    }
}

impl Drop for Crash {
    /// Lets others write. What it had in flight may still arrive, and stays in the cache, to be written again.
    fn drop(&mut self) {
        if self.active.is_some() {
            self.cache().end_writing(false);
        }
    }
}
