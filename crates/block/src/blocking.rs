//! An endpoint whose requests are waited for one after another, with a loop of its own: for headers and other metadata,
//! before any data moves.

use area::{PoolLimits, Span};
use io::Io;

use crate::{
    Completion, Endpoint, IoError, IoErrorKind, Kind, Medium, OpenError, Request, Router, close_all,
    wait_ready,
};

/// Memory of the loop: requests have at most [`REQUEST_BYTES_MAX`] bytes, one at a time.
const POOL: PoolLimits = PoolLimits { bytes_max: 64 << 20 };
/// Longest request; longer reads and writes are split.
const REQUEST_BYTES_MAX: usize = 1 << 20;

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
        for (index, part) in into.chunks_mut(step).enumerate() {
            let span = self.area(part.len())?;
            self.wait(Kind::Read { offset: offset + (index * step) as u64, into: span.clone() })?;
            span.read(0, part);
        }
        Ok(())
    }

    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), IoError> {
        let step = self.step();
        for (index, part) in from.chunks(step).enumerate() {
            let span = self.area(part.len())?;
            span.fill(0, part);
            self.wait(Kind::Write { offset: offset + (index * step) as u64, from: span, durable: false })?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<(), IoError> {
        self.wait(Kind::Flush)
    }

    fn step(&self) -> usize {
        REQUEST_BYTES_MAX.min(self.endpoint.capability().max_transfer_bytes as usize)
    }

    fn area(&self, length: usize) -> Result<Span, IoError> {
        let none = || IoError::new(IoErrorKind::Other, "no memory for a request");
        self.io.pool().take(length).ok_or_else(none)
    }

    fn wait(&mut self, kind: Kind) -> Result<(), IoError> {
        let mut done: Vec<Completion> = Vec::new();
        self.endpoint.submit(&mut self.io, Request { id: 0, kind }, &mut done);
        let (mut router, mut events) = (Router::new(), Vec::new());
        router.add_endpoint(&*self.endpoint, ());
        while done.is_empty() {
            self.io.turn_for(|owner| router.route(owner).is_some(), None, &mut events)?;
            for event in events.drain(..) {
                self.endpoint.on_event(&mut self.io, event, &mut done);
            }
        }
        done.remove(0).result
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
