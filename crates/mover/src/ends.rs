//! Both ends of a copy: requests go out, and what they become comes back in the order in which it came.

use std::collections::VecDeque;

use block::{Capability, Certainty, Completion, Endpoint, Fingerprint, IoError, Kind, Request, Router};
use io::{Event, Io};

use crate::error::End;
use crate::job::Extents;
use crate::parts::Parts;
use crate::plan::{Plan, granularity};

pub(crate) struct Ends<'a> {
    pub(crate) io: &'a mut Io,
    ends: [&'a mut dyn Endpoint; 2],
    capabilities: [Capability; 2],
    parts: [Parts; 2],
    /// Where the range begins.
    offsets: [u64; 2],
    /// Completions not yet taken, in the order they came.
    completions: VecDeque<(End, Completion)>,
    /// Where endpoints put them.
    done: Vec<Completion>,
    router: Router<End>,
    retries_before: u64,
}

impl<'a> Ends<'a> {
    /// `unit` is that of the plan, as it was checked.
    pub(crate) fn new(
        io: &'a mut Io,
        source: &'a mut dyn Endpoint,
        destination: &'a mut dyn Endpoint,
        plan: &Plan,
        unit: u32,
    ) -> Self {
        let capabilities = [source.capability().clone(), destination.capability().clone()];
        let parts = |end: &Capability| Parts::new(end.max_transfer_bytes, granularity(end), unit);
        let parts = [parts(&capabilities[0]), parts(&capabilities[1])];
        let mut router = Router::new();
        router.add_endpoint(source, End::Source);
        router.add_endpoint(destination, End::Destination);
        let retries_before = source.retries() + destination.retries();
        Self {
            io,
            ends: [source, destination],
            capabilities,
            parts,
            offsets: [plan.src_offset, plan.dst_offset],
            completions: VecDeque::new(),
            done: Vec::new(),
            router,
            retries_before,
        }
    }

    /// What one end said of itself at the start.
    pub(crate) fn capability(&self, end: End) -> &Capability {
        &self.capabilities[end.index()]
    }

    /// The requests of a piece at one end.
    pub(crate) fn parts(&self, end: End) -> Parts {
        self.parts[end.index()]
    }

    /// Where byte `at` of the range lies at one end.
    pub(crate) fn offset(&self, end: End, at: u64) -> u64 {
        self.offsets[end.index()] + at
    }

    pub(crate) fn extents(&mut self) -> Extents<'_, 'a> {
        Extents { ends: &mut self.ends, offsets: self.offsets }
    }

    pub(crate) fn submit(&mut self, end: End, id: u64, kind: Kind) {
        self.ends[end.index()].submit(self.io, Request { id, kind }, &mut self.done);
        self.keep(end);
    }

    pub(crate) fn on_event(&mut self, event: Event) {
        let end = self.router.route(event.token.owner).or_else(|| {
            // An endpoint that connected anew may have new owners.
            self.router.add_endpoint(&*self.ends[0], End::Source);
            self.router.add_endpoint(&*self.ends[1], End::Destination);
            self.router.route(event.token.owner)
        });
        if let Some(end) = end {
            self.ends[end.index()].on_event(self.io, event, &mut self.done);
            self.keep(end);
        }
    }

    fn keep(&mut self, end: End) {
        self.completions.extend(self.done.drain(..).map(|completion| (end, completion)));
    }

    /// The completion that came first.
    pub(crate) fn completed(&mut self) -> Option<(End, Completion)> {
        self.completions.pop_front()
    }

    pub(crate) fn are_quiet(&self) -> bool {
        self.completions.is_empty()
    }

    /// One end as it is now.
    pub(crate) fn fingerprint(&self, end: End) -> Fingerprint {
        self.ends[end.index()].fingerprint()
    }

    /// Requests repeated since the start.
    pub(crate) fn retries(&self) -> u64 {
        let now: u64 = self.ends.iter().map(|end| end.retries()).sum();
        now.saturating_sub(self.retries_before)
    }

    /// Whether both are still the storage that was opened.
    pub(crate) fn check_identities(&mut self, certainty: Certainty) -> Result<(), (End, IoError)> {
        End::BOTH.into_iter().try_for_each(|end| {
            self.ends[end.index()].check_identity(certainty).map_err(|error| (end, error))
        })
    }
}
