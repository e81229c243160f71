//! An endpoint whose requests are waited for, with a loop of its own: for headers and other metadata before any data
//! moves, and for re-encryption. Parts of one long request are in flight together.

use area::{PoolLimits, Span};
use io::Io;

use crate::{
    Completion, Endpoint, IoError, IoErrorKind, Kind, Medium, OpenError, Request, Router, close_all,
    wait_ready,
};

/// Memory of the loop.
const POOL: PoolLimits = PoolLimits { bytes_max: 64 << 20 };
/// Longest request; longer reads and writes are split.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Requests of one read or write that are in flight together.
const REQUESTS_MAX: usize = 32;
const _: () = assert!(REQUESTS_MAX * REQUEST_BYTES_MAX < POOL.bytes_max);

/// Dropped, it logs out of remote storage.
pub struct Blocking {
    io: Io,
    endpoint: Box<dyn Endpoint>,
}

impl Blocking {
    /// Attaches an endpoint, and waits until it is ready.
    pub fn attach(medium: &dyn Medium) -> Result<Self, OpenError> {
        let mut io = Io::new(POOL)
            .map_err(|error| OpenError::Failed(format!("a loop for the header's requests: {error}")))?;
        let mut endpoint = medium.attach(&mut io)?;
        wait_ready(&mut io, &mut [&mut *endpoint])?;
        Ok(Self { io, endpoint })
    }

    pub fn endpoint(&self) -> &dyn Endpoint {
        &*self.endpoint
    }

    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let step = self.step();
        for (offset, group) in
            (offset..).step_by(step * REQUESTS_MAX).zip(into.chunks_mut(step * REQUESTS_MAX))
        {
            let spans = self.areas(group.len(), step)?;
            let offsets = (offset..).step_by(step);
            let kinds = offsets.zip(&spans).map(|(offset, span)| Kind::Read { offset, into: span.clone() });
            self.wait(kinds.collect())?;
            for (span, part) in spans.iter().zip(group.chunks_mut(step)) {
                span.read(0, part);
            }
        }
        Ok(())
    }

    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), IoError> {
        let step = self.step();
        for (offset, group) in (offset..).step_by(step * REQUESTS_MAX).zip(from.chunks(step * REQUESTS_MAX)) {
            let spans = self.areas(group.len(), step)?;
            for (span, part) in spans.iter().zip(group.chunks(step)) {
                span.fill(0, part);
            }
            let offsets = (offset..).step_by(step);
            let kinds = offsets.zip(spans).map(|(offset, from)| Kind::Write { offset, from, durable: false });
            self.wait(kinds.collect())?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<(), IoError> {
        self.wait(vec![Kind::Flush])
    }

    fn step(&self) -> usize {
        REQUEST_BYTES_MAX.min(self.endpoint.capability().max_transfer_bytes as usize)
    }

    /// Memory for `length` bytes in parts of `step`.
    fn areas(&self, length: usize, step: usize) -> Result<Vec<Span>, IoError> {
        let none = || IoError::new(IoErrorKind::Other, "no memory for a request");
        let parts = (0..length).step_by(step).map(|at| step.min(length - at));
        parts.map(|bytes| self.io.pool().take(bytes).ok_or_else(none)).collect()
    }

    /// Performs these together, and ends when all have ended; the error is that of the first one that failed.
    fn wait(&mut self, kinds: Vec<Kind>) -> Result<(), IoError> {
        let (requests, mut done) = (kinds.len(), Vec::<Completion>::new());
        for (id, kind) in (0..).zip(kinds) {
            self.endpoint.submit(&mut self.io, Request { id, kind }, &mut done);
        }
        let (mut router, mut events) = (Router::new(), Vec::new());
        router.add_endpoint(&*self.endpoint, ());
        while done.len() < requests {
            self.io.turn_for(|owner| router.route(owner).is_some(), None, &mut events)?;
            for event in events.drain(..) {
                self.endpoint.on_event(&mut self.io, event, &mut done);
            }
        }
        done.sort_by_key(|completion| completion.id);
        done.into_iter().try_for_each(|completion| completion.result)
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        close_all(&mut self.io, &mut [&mut *self.endpoint]);
    }
}

impl volume::Storage for Blocking {
    type Error = IoError;

    fn size_bytes(&self) -> u64 {
        self.endpoint.capability().size_bytes
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        Self::read(self, offset, into)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), IoError> {
        Self::write(self, offset, from)
    }

    fn flush(&mut self) -> Result<(), IoError> {
        Self::flush(self)
    }
}
