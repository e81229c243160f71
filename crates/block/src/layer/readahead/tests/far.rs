//! Storage behind a path: its requests wait until they are executed, and its answers until they are delivered.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

use io::{Event, Item, Owner, Token};

use super::super::endpoint::Readahead;
use super::*;
use crate::memory::synthetic_capability;
use crate::{
    Capability, Completion, Direction, Fingerprint, Identity, Inspect, IoError, IoErrorKind, Request,
};

pub(super) struct Disk {
    pub(super) bytes: Vec<u8>,
    pub(super) size_bytes: u64,
    path_bytes: u64,
    pub(super) sole_writer: bool,
    /// Requests that were not executed, with the owner of their endpoint.
    pub(super) waiting: VecDeque<(Owner, Request)>,
    /// Answers that were not delivered.
    pub(super) answered: VecDeque<(Owner, Completion)>,
    pub(super) losses: u64,
    /// A byte that cannot be read.
    pub(super) unreadable: Option<u64>,
    pub(super) rounds: u64,
    pub(super) requests: u64,
    pub(super) bytes_read: u64,
    in_flight: u64,
    /// The most bytes of reads that were in flight.
    pub(super) in_flight_max: u64,
}

impl Disk {
    fn perform(&mut self, kind: &Kind) -> Result<(), IoError> {
        let range = kind.range().map_or(0..0, |(offset, length)| offset..offset + length);
        if range.end > self.size_bytes {
            return Err(IoError::new(IoErrorKind::OutOfRange, "beyond the end"));
        }
        let (at, end) = (range.start as usize, range.end as usize);
        match kind {
            Kind::Read { .. } if self.unreadable.is_some_and(|bad| range.contains(&bad)) => {
                return Err(IoError::new(IoErrorKind::Medium, "unreadable"));
            }
            Kind::Read { into, .. } => into.fill(0, &self.bytes[at..end]),
            Kind::Write { from, .. } => self.bytes[at..end].copy_from_slice(from.as_slice()),
            Kind::Discard { .. } | Kind::WriteZeroes { .. } => self.bytes[at..end].fill(0),
            Kind::Flush => {}
        }
        Ok(())
    }

    /// Executes a waiting request.
    pub(super) fn execute(&mut self, index: usize) -> Kind {
        let (owner, request) = self.waiting.remove(index).unwrap();
        if let Kind::Read { into, .. } = &request.kind {
            self.bytes_read += into.len() as u64;
            self.in_flight -= into.len() as u64;
        }
        let result = self.perform(&request.kind);
        self.answered.push_back((owner, Completion { id: request.id, result }));
        request.kind
    }
}

#[derive(Clone)]
pub(super) struct Far(Rc<RefCell<Disk>>);

impl Far {
    pub(super) fn new(size_bytes: u64, path_bytes: u64) -> Self {
        Self(Rc::new(RefCell::new(Disk {
            bytes: vec![0; 2 * size_bytes as usize],
            size_bytes,
            path_bytes,
            sole_writer: false,
            waiting: VecDeque::new(),
            answered: VecDeque::new(),
            losses: 0,
            unreadable: None,
            rounds: 0,
            requests: 0,
            bytes_read: 0,
            in_flight: 0,
            in_flight_max: 0,
        })))
    }

    pub(super) fn disk(&self) -> RefMut<'_, Disk> {
        self.0.borrow_mut()
    }
}

struct FarEndpoint {
    far: Far,
    owner: Owner,
    capability: Capability,
}

impl Endpoint for FarEndpoint {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, _: &mut Io, request: Request, _: &mut Vec<Completion>) {
        let mut disk = self.far.disk();
        disk.requests += 1;
        if let Kind::Read { into, .. } = &request.kind {
            disk.in_flight += into.len() as u64;
            disk.in_flight_max = disk.in_flight_max.max(disk.in_flight);
        }
        disk.waiting.push_back((self.owner, request));
    }

    /// Delivers the answer with the index that is the event's result.
    fn on_event(&mut self, _: &mut Io, event: Event, done: &mut Vec<Completion>) {
        let mut disk = self.far.disk();
        let (owner, completion) = disk.answered.remove(event.result as usize).unwrap();
        assert_eq!(owner, self.owner);
        (self.capability.size_bytes, self.capability.sole_writer) = (disk.size_bytes, disk.sole_writer);
        done.push(completion);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
    }

    fn in_flight(&self, _: Direction) -> Option<u64> {
        Some(self.far.disk().path_bytes)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for FarEndpoint {
    fn identity(&self) -> Identity {
        Identity::Unique
    }

    fn fingerprint(&self) -> Fingerprint {
        self.identity().fingerprint(self.capability.size_bytes)
    }

    fn losses(&self) -> u64 {
        self.far.disk().losses
    }
}

/// Endpoints of one storage, as those of several threads.
pub(super) struct Scene {
    pub(super) io: Io,
    pub(super) far: Far,
    pub(super) shared: Arc<Shared>,
    /// Each with the owner of the storage beneath.
    pub(super) endpoints: Vec<(Owner, Box<dyn Endpoint>)>,
    pub(super) done: Vec<Completion>,
    next: u64,
}

impl Scene {
    /// `bytes_max`: none for endpoints without the layer.
    pub(super) fn new(far: Far, bytes_max: Option<u64>, count: usize) -> Self {
        Self::of(far, bytes_max.map(|bytes_max| Shared::new(bytes_max, true)), count)
    }

    pub(super) fn of(far: Far, shared: Option<Shared>, count: usize) -> Self {
        let io = Io::new(PoolLimits::default()).unwrap();
        let has_layer = shared.is_some();
        let shared = Arc::new(shared.unwrap_or_else(|| Shared::new(0, false)));
        let mut endpoints = Vec::new();
        for _ in 0..count {
            let owner = io.owner();
            let capability = Capability { sole_writer: false, ..synthetic_capability(far.disk().size_bytes) };
            let inner: Box<dyn Endpoint> = Box::new(FarEndpoint { far: far.clone(), owner, capability });
            let endpoint = match has_layer {
                true => Box::new(Readahead::new(io.owner(), inner, Arc::clone(&shared))),
                false => inner,
            };
            endpoints.push((owner, endpoint));
        }
        Self { io, far, shared, endpoints, done: Vec::new(), next: 0 }
    }

    pub(super) fn filled(&self, length: usize, byte: u8) -> Span {
        let span = self.io.pool().take(length).unwrap();
        span.fill(0, &vec![byte; length]);
        span
    }

    /// The id of the next request.
    pub(super) fn next(&self) -> u64 {
        self.next + 1
    }

    pub(super) fn submit(&mut self, endpoint: usize, kind: Kind) -> u64 {
        self.next += 1;
        let request = Request { id: self.next, kind };
        self.endpoints[endpoint].1.submit(&mut self.io, request, &mut self.done);
        self.next
    }

    /// Delivers an answer.
    pub(super) fn deliver(&mut self, index: usize) {
        let owner = self.far.disk().answered[index].0;
        let event = Event { token: Token { owner, key: 0 }, result: index as i32, item: Item::None };
        let endpoint = self.endpoints.iter_mut().find(|(beneath, _)| *beneath == owner);
        endpoint.unwrap().1.on_event(&mut self.io, event, &mut self.done);
    }

    /// A round trip: what was submitted before is executed and answered.
    pub(super) fn round(&mut self) {
        let count = {
            let mut disk = self.far.disk();
            disk.rounds += 1;
            let count = disk.waiting.len();
            for _ in 0..count {
                disk.execute(0);
            }
            count
        };
        (0..count).for_each(|_| self.deliver(0));
    }

    pub(super) fn run(&mut self, endpoint: usize, kind: Kind) -> Result<(), IoError> {
        let id = self.submit(endpoint, kind);
        for _ in 0..3 {
            if let Some(at) = self.done.iter().position(|completion| completion.id == id) {
                return self.done.swap_remove(at).result;
            }
            self.round();
        }
        panic!("not completed after three round trips");
    }

    pub(super) fn read(&mut self, endpoint: usize, offset: u64, length: usize) -> Result<Vec<u8>, IoError> {
        let into = self.filled(length, 0xEE);
        self.run(endpoint, Kind::Read { offset, into: into.clone() })?;
        Ok(into.as_slice().to_vec())
    }

    /// Number of valid chunks of all endpoints.
    pub(super) fn chunks(&self) -> usize {
        self.shared.ledger().in_use().0
    }

    /// Lets the timers of this time fire.
    pub(super) fn wait(&mut self, time: Duration) {
        let until = self.io.now() + time;
        let mut events = Vec::new();
        while self.io.now() < until {
            self.io.turn_until(Some(until), &mut events).unwrap();
            for event in events.drain(..) {
                let endpoints = self.endpoints.iter_mut();
                endpoints.for_each(|(_, endpoint)| {
                    let mut owners = Vec::new();
                    endpoint.owners(&mut owners);
                    if owners.contains(&event.token.owner) {
                        let event = Event { token: event.token, result: 0, item: Item::None };
                        endpoint.on_event(&mut self.io, event, &mut self.done);
                    }
                });
            }
        }
    }
}
