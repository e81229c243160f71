//! Attaching media to a thread's completion loop, reading from the endpoints, and closing them.

use std::sync::Arc;

use block::{Endpoint, IoError, IoErrorKind, Kind, Medium, OpenError, Request, Router};
use io::Io;

use crate::Failure;

/// Bytes of the longest request of [`read`].
const READ_BYTES_MAX: usize = 128 * 1024;

pub fn event_loop() -> Result<Io, Failure> {
    Io::new(area::PoolLimits::default())
        .map_err(|error| Failure::failed("start the completion loop", "", error))
}

/// Attaches a medium to the loop and waits until the endpoint is ready for requests. A remote medium is logged in when
/// this returns.
pub fn attach(io: &mut Io, medium: &Arc<dyn Medium>) -> Result<Box<dyn Endpoint>, OpenError> {
    let mut endpoint = medium.attach(io)?;
    block::wait_ready(io, &mut [&mut *endpoint])?;
    Ok(endpoint)
}

/// Closes the endpoints: sessions are logged out as far as the peers answer. Then the endpoints are dropped.
pub fn close<const N: usize>(io: &mut Io, mut endpoints: [Box<dyn Endpoint>; N]) {
    let mut borrowed = endpoints.each_mut().map(|endpoint| &mut **endpoint as &mut dyn Endpoint);
    block::close_all(io, &mut borrowed);
}

/// Reads `length` bytes at `offset`, one request at a time. Both must be multiples of the endpoint's granularity.
pub fn read(
    io: &mut Io,
    endpoint: &mut dyn Endpoint,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, IoError> {
    let mut router = Router::new();
    router.add_endpoint(endpoint, ());
    let mut bytes = Vec::with_capacity(length);
    let chunk_max = READ_BYTES_MAX.min(endpoint.capability().max_transfer_bytes as usize);
    let failed = |error: &std::io::Error| IoError::new(IoErrorKind::Other, error.to_string());
    while bytes.len() < length {
        let chunk = chunk_max.min(length - bytes.len());
        let span = io.pool().take(chunk).ok_or_else(|| failed(&std::io::ErrorKind::OutOfMemory.into()))?;
        let kind = Kind::Read { offset: offset + bytes.len() as u64, into: span.slice(0, chunk) };
        let (mut events, mut done) = (Vec::new(), Vec::new());
        endpoint.submit(io, Request { id: 0, kind }, &mut done);
        while done.is_empty() {
            io.turn_for(|owner| router.route(owner).is_some(), None, &mut events)
                .map_err(|error| failed(&error))?;
            for event in events.drain(..) {
                endpoint.on_event(io, event, &mut done);
            }
        }
        done.remove(0).result?;
        let start = bytes.len();
        bytes.resize(start + chunk, 0);
        span.read(0, &mut bytes[start..]);
    }
    Ok(bytes)
}
