//! A test endpoint that follows a script and logs its requests.

use std::cell::RefCell;
use std::rc::Rc;

use block::{
    Capability, Completion, Endpoint, Extent, Fingerprint, Identity, Inspect, IoError, IoErrorKind, Kind,
    Request, RequestId,
};
use io::{Event, Io, Owner, Token};

/// A small random generator, so that a printed seed repeats a test.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.below(256) as u8;
        }
    }
}

/// When requests complete.
#[derive(Clone, Debug)]
pub(crate) enum When {
    Inside,
    /// In a later turn, all waiting requests, in reverse order.
    Reversed,
    /// In later turns, one at a time in random order; occasionally inside `submit`.
    Shuffled(Random),
    /// After this time, all waiting requests.
    After(std::time::Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Submitted { end: char, verb: &'static str, offset: u64, length: u64 },
    Completed { end: char, verb: &'static str, offset: u64, failed: bool },
}

/// The requests at both ends, in order, and the numbers in flight.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) did: Vec<Did>,
    /// Loop time of each submitted read.
    pub(crate) read_times: Vec<std::time::Duration>,
    reads: usize,
    writes: usize,
    /// Writes with the durable flag.
    pub(crate) durable_writes: usize,
    pub(crate) requests_max: usize,
    /// How often a request was submitted while reads and writes were both in flight.
    pub(crate) overlaps: usize,
}

impl Log {
    pub(crate) fn count(&self, end: char, verb: &str) -> usize {
        let matches =
            |did: &&Did| matches!(did, Did::Submitted { end: e, verb: v, .. } if *e == end && *v == verb);
        self.did.iter().filter(matches).count()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.reads + self.writes
    }

    fn submitted(&mut self, end: char, kind: &Kind, now: std::time::Duration) {
        let (offset, length) = kind.range().unwrap_or((0, 0));
        self.did.push(Did::Submitted { end, verb: kind.verb(), offset, length });
        if kind.is_write() {
            self.writes += 1;
        } else {
            self.reads += 1;
        }
        self.durable_writes += usize::from(matches!(kind, Kind::Write { durable: true, .. }));
        if kind.verb() == "read" {
            self.read_times.push(now);
        }
        self.requests_max = self.requests_max.max(self.in_flight());
        self.overlaps += usize::from(self.reads > 0 && self.writes > 0);
    }

    fn completed(&mut self, end: char, kind: &Kind, failed: bool) {
        let offset = kind.range().unwrap_or((0, 0)).0;
        self.did.push(Did::Completed { end, verb: kind.verb(), offset, failed });
        if kind.is_write() {
            self.writes -= 1;
        } else {
            self.reads -= 1;
        }
    }
}

/// Fails request number `nth` (from 0) of a verb.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) verb: &'static str,
    pub(crate) nth: usize,
    pub(crate) kind: IoErrorKind,
    /// All later requests of the verb fail too.
    pub(crate) on: bool,
}

/// An unreadable range.
#[derive(Clone, Debug)]
pub(crate) struct Bad {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Number of failing reads, after which the range is readable.
    pub(crate) times: usize,
}

pub(crate) struct Scripted {
    pub(crate) name: char,
    pub(crate) data: Vec<u8>,
    pub(crate) capability: Capability,
    pub(crate) when: When,
    pub(crate) log: Rc<RefCell<Log>>,
    pub(crate) faults: Vec<Fault>,
    /// Flips a bit of each of these bytes after the flush: the medium then differs from what was written.
    pub(crate) rots: Vec<u64>,
    /// End and kind (data) of each extent.
    pub(crate) extents: Vec<(u64, bool)>,
    pub(crate) identity: Identity,
    pub(crate) bad: Vec<Bad>,
    /// The content guaranteed to survive a power loss.
    pub(crate) durable: Rc<RefCell<Vec<u8>>>,
    /// Loses power, without an error, before the read with this number (from 0).
    pub(crate) cut_at: Option<usize>,
    /// The durable content after each flush in flight has ended.
    flushing: Vec<(RequestId, Vec<u8>)>,
    /// The `contents` part of the fingerprint.
    pub(crate) contents: Rc<RefCell<String>>,
    owner: Owner,
    waiting: Vec<Request>,
    called: bool,
}

impl Scripted {
    pub(crate) fn new(io: &mut Io, name: char, data: Vec<u8>, log: &Rc<RefCell<Log>>) -> Self {
        let capability = Capability {
            size_bytes: data.len() as u64,
            block_size: 512,
            physical_block_size: 4096,
            granularity: 1,
            alignment: 1,
            max_transfer_bytes: 16 << 20,
            optimal_transfer_bytes: 512 << 10,
            queue_depth: 32,
            read_only: false,
            sole_writer: false,
            discard: true,
            write_zeroes: true,
            volatile_cache: true,
            rotational: false,
        };
        Self {
            name,
            durable: Rc::new(RefCell::new(data.clone())),
            bad: Vec::new(),
            cut_at: None,
            flushing: Vec::new(),
            contents: Rc::default(),
            data,
            capability,
            when: When::Reversed,
            log: Rc::clone(log),
            faults: Vec::new(),
            rots: Vec::new(),
            extents: Vec::new(),
            identity: Identity::Unique,
            owner: io.owner(),
            waiting: Vec::new(),
            called: false,
        }
    }

    fn check(&self, kind: &Kind) {
        let Some((offset, length)) = kind.range() else { return };
        let granularity = u64::from(self.capability.granularity);
        let verb = kind.verb();
        assert!(length > 0, "an empty {verb}");
        assert!(offset + length <= self.capability.size_bytes, "{verb} beyond the end");
        assert!(offset.is_multiple_of(granularity), "{verb} at {offset} of granularity {granularity}");
        assert!(length.is_multiple_of(granularity), "{verb} of {length}, granularity {granularity}");
        assert!(length <= self.capability.max_transfer_bytes.into(), "{verb} of {length} bytes is too long");
    }

    fn perform(&mut self, request: &Request) -> Completion {
        let nth = {
            let verb = request.kind.verb();
            let done = |did: &&Did| matches!(did, Did::Completed { end, verb: v, .. } if *end == self.name && *v == verb);
            self.log.borrow().did.iter().filter(done).count()
        };
        let fault = self.faults.iter().find(|fault| {
            fault.verb == request.kind.verb() && (fault.nth == nth || fault.on && nth > fault.nth)
        });
        if request.kind.verb() == "read" && self.cut_at == Some(nth) {
            self.data.clone_from(&self.durable.borrow());
        }
        let mut result = fault.map_or(Ok(()), |fault| Err(IoError::new(fault.kind, "scripted")));
        if let Kind::Read { offset, into } = &request.kind {
            let end = offset + into.len() as u64;
            for bad in self.bad.iter_mut().filter(|bad| bad.times > 0 && bad.start < end && *offset < bad.end)
            {
                bad.times -= 1;
                result = Err(IoError::new(IoErrorKind::Medium, "scripted bad sector"));
            }
        }
        self.log.borrow_mut().completed(self.name, &request.kind, result.is_err());
        let flushing = self.flushing.iter().position(|(id, _)| *id == request.id);
        let flushed = flushing
            .filter(|_| matches!(request.kind, Kind::Flush))
            .map(|place| self.flushing.swap_remove(place).1);
        if result.is_ok() {
            match &request.kind {
                Kind::Read { offset, into } => {
                    into.fill(0, &self.data[*offset as usize..*offset as usize + into.len()]);
                }
                Kind::Write { offset, from, .. } => {
                    self.data[*offset as usize..][..from.len()].copy_from_slice(from.as_slice());
                }
                Kind::WriteZeroes { offset, length, .. } | Kind::Discard { offset, length } => {
                    self.data[*offset as usize..][..*length as usize].fill(0);
                }
                Kind::Flush => {
                    *self.durable.borrow_mut() = flushed.expect("it was submitted");
                    for rot in self.rots.drain(..) {
                        self.data[rot as usize] ^= 0x10;
                    }
                }
            }
        }
        Completion { id: request.id, result }
    }

    fn call(&mut self, io: &mut Io) {
        if !self.called && !self.waiting.is_empty() {
            let token = Token { owner: self.owner, key: 0 };
            match self.when {
                When::After(time) => io.timer(token, io.now() + time),
                _ => io.soon(token),
            }
            self.called = true;
        }
    }
}

impl Endpoint for Scripted {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        self.check(&request.kind);
        if matches!(request.kind, Kind::Flush) {
            self.flushing.push((request.id, self.data.clone()));
        }
        self.log.borrow_mut().submitted(self.name, &request.kind, io.now());
        let inside = match &mut self.when {
            When::Inside => true,
            When::Reversed | When::After(_) => false,
            When::Shuffled(random) => random.one_in(4),
        };
        if inside {
            done.push(self.perform(&request));
        } else {
            self.waiting.push(request);
        }
        self.call(io);
    }

    fn on_event(&mut self, io: &mut Io, _event: Event, done: &mut Vec<Completion>) {
        self.called = false;
        match &mut self.when {
            When::Inside | When::Reversed | When::After(_) => {
                while let Some(request) = self.waiting.pop() {
                    done.push(self.perform(&request));
                }
            }
            When::Shuffled(random) => {
                let place = random.below(self.waiting.len() as u64) as usize;
                let request = self.waiting.swap_remove(place);
                done.push(self.perform(&request));
            }
        }
        self.call(io);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
    }

    fn extent(&mut self, offset: u64) -> Extent {
        let found = self.extents.iter().find(|(end, _)| *end > offset);
        let (end, data) = found.copied().unwrap_or((self.capability.size_bytes, true));
        Extent { end, data }
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }
}

impl Inspect for Scripted {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint { storage: self.name.to_string(), contents: self.contents.borrow().clone() }
    }
}
